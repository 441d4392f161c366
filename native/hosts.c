/* Agreement between hosts: a host is a worker of a higher table.
 *
 * When all workers of a host have arrived at an operation (table.c), its leader tells the first host, with what they said
 * and, if it is small, what they brought. When every host that takes part has told, the first host decides: it compares, and
 * gives all of them the same word in the same order. A host that gets it closes the round in its table. So the table of each
 * host is closed by the same decisions in the same order, and data between hosts moves in that order too.
 *
 * What a decision costs does not depend on how many workers a host has. Names, lines and shapes travel only when ranks
 * disagree: then the first host asks for them, so that everybody can be shown the same table.
 *
 * Small payloads ride with what is told, and all of them with the decision: every rank sums them itself, in rank order, with
 * the same bits as on one host.
 *
 * Joins, ranks that leave and operations that are given up go the same way, so they too come in one order. A host may have
 * told of an operation that has just been given up: what it tells carries the last decision it knew, and is ignored if the
 * end of that operation is newer.
 */
#include "link.h"
#include <stdlib.h>
#include <string.h>

enum { TELL_UNNAMED = 1, TELL_INLINED = 2, TELL_BODY = 4, TELL_DISAGREE = 8, TELL_LINES = 16, TELL_NOTE = 32, TELL_ACTIVE = 64 };

struct told { /* FRAME_TELL; then ranks, then what each brought */
    uint64_t key[2], set, fingerprint, line, seen;
    uint32_t kind, op, flags, present;
};
struct brought { uint32_t rank, meta_count, bytes, pad; }; /* then the payload, or the numbers alone */
struct decision { /* FRAME_DECIDE; then ranks, what each brought, what each said, a text */
    uint64_t key[2];
    uint32_t code, flags, present, brought, said, text;
};
struct said { uint32_t rank, bytes; };

/* A growing piece of memory, and a place in one. */
struct pack { char *data; size_t bytes, room; };
struct view { const char *at, *end; };

static void add(struct pack *p, const void *data, size_t bytes) {
    size_t wanted = p->bytes + ((bytes + 7) & ~(size_t)7);
    if (wanted > p->room) {
        char *more = realloc(p->data, 2 * wanted + 256);
        if (!more) abort();
        p->data = more;
        p->room = 2 * wanted + 256;
    }
    memset(p->data + p->bytes, 0, wanted - p->bytes);
    if (bytes) memcpy(p->data + p->bytes, data, bytes);
    p->bytes = wanted;
}

/* The next bytes, NULL if there are not so many. */
static const void *next(struct view *v, size_t bytes) {
    const char *at = v->at;
    size_t taken = (bytes + 7) & ~(size_t)7;
    if ((size_t)(v->end - v->at) < taken) return NULL;
    v->at += taken;
    return at;
}

/* ---- what this host has to say ---- */

void post(struct core *c, enum post_kind what, uint32_t entry, uint64_t value) {
    struct header *h = c->header;
    struct entry *e = entry_at(c, entry);
    if (!sound(c, h->post_tail - h->post_head < 2 * h->entry_count + 4 * MAX_RANKS, "too much is waiting to be told")) return;
    *post_at(c, h->post_tail++) = (struct post){what, entry, e->stamp, atomic_load(&e->round), value};
    c->post_wanted = true;
}

static void tell_set(struct link *l, uint32_t set) {
    struct set *s = set_at(l->c, set);
    if (l->set_told[set]) return;
    l->set_told[set] = 1;
    struct pack p = {0};
    uint64_t count = s->count;
    add(&p, &s->key, 8);
    add(&p, &count, 8);
    add(&p, s->members, s->count * sizeof *s->members);
    send_control(l, 0, FRAME_SET, 0, p.data, p.bytes);
    free(p.data);
}

/* What everybody here said and brought; called under the lock. */
static void pack_arrival(struct link *l, struct entry *e, struct pack *p) {
    struct core *c = l->c;
    struct set *s = set_at(c, e->set);
    uint64_t round = atomic_load(&e->round);
    struct task *task = task_of(e, round);
    struct told t = {.key = {e->key[0], e->key[1]}, .set = s->key, .seen = l->seen, .kind = task->kind, .op = task->op,
                     .flags = TELL_INLINED};
    uint16_t ranks[MAX_RANKS];
    bool first = true;
    for (uint32_t m = 0; m < s->here_count; m++) {
        struct arrival *a = arrival_at(e, s->here[m]);
        if (!arrived(e, s->here[m])) {
            if (has(c->header->joined_active, s->here[m])) t.flags |= TELL_ACTIVE;
            continue;
        }
        if (first) t.fingerprint = a->fingerprint, t.line = a->line;
        if (a->fingerprint != t.fingerprint) t.flags |= TELL_DISAGREE;
        if (a->line != t.line) t.flags |= TELL_LINES;
        if (a->unnamed) t.flags |= TELL_UNNAMED;
        if (!a->inlined) t.flags &= ~(uint32_t)TELL_INLINED;
        first = false;
        ranks[t.present++] = s->here[m];
    }
    bool sizes = task->kind == ALLGATHER || task->kind == ALLTOALL;
    if (t.flags & TELL_INLINED || sizes) t.flags |= TELL_BODY;
    add(p, &t, sizeof t);
    add(p, ranks, t.present * sizeof *ranks);
    for (uint32_t i = 0; i < t.present && t.flags & TELL_BODY; i++) {
        struct arrival *a = arrival_at(e, ranks[i]);
        bool all = a->inlined; /* sizes are told again with the decision, if another host's do not ride along */
        struct brought b = {.rank = ranks[i], .meta_count = a->meta_count,
                            .bytes = all ? a->payload_bytes : a->meta_count * (uint32_t)sizeof *a->meta};
        add(p, &b, sizeof b);
        add(p, all ? payload_at(c, e, round, ranks[i]) : (char *)a->meta, b.bytes);
    }
}

bool tell(struct link *l) {
    struct core *c = l->c;
    struct header *h = c->header;
    if (!atomic_load(&h->posted)) return false;
    atomic_store(&h->posted, 0);
    for (bool more = true; more;) {
        struct pack body = {0};
        struct post p = {0};
        uint32_t set = 0;
        enum frame_type type = 0;
        if (lock(c)) { /* it will be looked at again */
            atomic_store(&h->posted, 1);
            return false;
        }
        more = h->post_head < h->post_tail;
        if (more) {
            p = *post_at(c, h->post_head++);
            struct entry *e = entry_at(c, p.entry);
            bool open = e->stamp == p.stamp && atomic_load(&e->round) == p.round && e->arrived;
            set = e->set;
            if (p.what == POST_ARRIVED && open && e->told) {
                type = FRAME_TELL;
                pack_arrival(l, e, &body);
            } else if (p.what == POST_FAILED && open) {
                struct failure *f = failure_at(c, p.value - 1);
                uint64_t code = f->code, length = strnlen(f->text, TEXT_BYTES);
                type = FRAME_FAIL;
                add(&body, e->key, sizeof e->key);
                add(&body, &l->seen, 8);
                add(&body, &code, 8);
                add(&body, &length, 8);
                add(&body, f->text, length);
            } else if (p.what == POST_JOINED || p.what == POST_QUIET || p.what == POST_LEFT) {
                type = p.what == POST_LEFT ? FRAME_LEAVE : FRAME_JOIN;
                add(&body, &p.value, 8);
            }
        }
        unlock(c);
        if (type == FRAME_TELL) tell_set(l, set);
        if (type) send_control(l, 0, type, 0, body.data, body.bytes);
        free(body.data);
    }
    return true;
}

/* ---- what the first host decided ---- */

static int64_t find(struct core *c, const uint64_t *key) {
    uint32_t *link = (uint32_t *)(c->base + c->header->at_index) + key[0] % c->header->entry_count;
    for (uint32_t i = *link; i; i = entry_at(c, i - 1)->next_in_bucket)
        if (entry_at(c, i - 1)->key[0] == key[0] && entry_at(c, i - 1)->key[1] == key[1]) return i - 1;
    return -1;
}

/* The lock may be held by a rank that is stopped: then nothing goes on here anyway. */
static bool lock_at_last(struct core *c) {
    int status;
    while ((status = lock(c)) == PENDING) {}
    return !status;
}

static const char nonsense[] = "the first host said something that makes no sense";

static void decided(struct link *l, uint64_t order, struct view v) {
    struct core *c = l->c;
    const struct decision *d = next(&v, sizeof *d);
    const uint16_t *ranks = d ? next(&v, d->present * sizeof *ranks) : NULL;
    l->seen = order;
    if (!sound(c, d && (ranks || !d->present), nonsense) || !lock_at_last(c)) return;
    int64_t i = find(c, d->key);
    struct entry *e = i >= 0 ? entry_at(c, (uint32_t)i) : NULL;
    bool open = e && e->arrived && (e->told || d->code);
    uint64_t round = e ? atomic_load(&e->round) : 0;
    uint32_t p = round & 1;
    if (!open) { /* an operation that ended elsewhere, and that nobody here has begun */
        unlock(c);
        sound(c, d->code, "an operation was agreed on that this host did not tell of");
        return;
    }
    memset(e->contributors[p], 0, sizeof e->contributors[p]);
    for (uint32_t k = 0; k < d->present; k++) put(e->contributors[p], ranks[k]);
    bool fine = true;
    for (uint32_t k = 0; k < d->brought && fine; k++) {
        const struct brought *b = next(&v, sizeof *b);
        const char *data = b ? next(&v, b->bytes) : NULL;
        fine = b && data && b->rank < (uint32_t)c->size && b->meta_count <= MAX_META &&
               b->bytes <= (d->flags & TELL_INLINED ? c->header->inline_bytes : MAX_META * sizeof(int64_t));
        if (!fine || c->header->host_of[b->rank] == c->header->host) continue;
        struct arrival *a = arrival_at(e, (int)b->rank);
        a->meta_count = b->meta_count;
        memcpy(a->meta, data, b->meta_count * sizeof *a->meta);
        if (d->flags & TELL_INLINED) memcpy(payload_at(c, e, round, (int)b->rank), data, b->bytes);
    }
    const char *said_at[MAX_RANKS] = {0};
    uint32_t said_bytes[MAX_RANKS] = {0};
    for (uint32_t k = 0; k < d->said && fine; k++) {
        const struct said *s = next(&v, sizeof *s);
        const char *text = s ? next(&v, s->bytes) : NULL;
        fine = s && text && s->rank < (uint32_t)c->size && s->bytes <= DESCRIPTION_BYTES;
        if (fine) said_at[s->rank] = text, said_bytes[s->rank] = s->bytes;
    }
    const char *text = fine ? next(&v, d->text) : NULL;
    if (!fine || !text) {
        unlock(c);
        sound(c, false, nonsense);
        return;
    }
    uint64_t failure = 0, note = 0;
    if (d->code || d->flags & TELL_NOTE) {
        char words[TEXT_BYTES] = {0};
        memcpy(words, text, d->text < TEXT_BYTES ? d->text : TEXT_BYTES - 1);
        uint64_t made = record(c, e, d->code ? (enum failure_code)d->code : NOTE, words);
        struct failure *f = failure_at(c, made - 1);
        for (int r = 0; r < c->size; r++)
            if (said_at[r]) {
                f->length[r] = said_bytes[r];
                memcpy(f->description + (uint64_t)r * DESCRIPTION_BYTES, said_at[r], said_bytes[r]);
            }
        if (d->code) failure = made;
        else note = made;
    }
    bool inlined = d->flags & TELL_INLINED;
    close_abroad(c, (uint32_t)i, failure, note, d->flags & TELL_ACTIVE, inlined);
    unlock(c);
    if (!failure && !inlined) begin_job(l, (uint32_t)i, round, order);
}

static void left(struct link *l, int rank) {
    struct core *c = l->c;
    if (!sound(c, rank >= 0 && rank < c->size, nonsense) || !lock_at_last(c)) return;
    bool ours = c->header->host_of[rank] == c->header->host;
    atomic_store(&rank_at(c, rank)->left, 2);
    leave_table(c, rank);
    c->ring_wanted = true;
    unlock(c);
    if (!ours) atomic_store(&rank_at(c, rank)->state, GONE_CLEAN);
}

static void all_joined(struct link *l, int last) {
    struct core *c = l->c;
    struct header *h = c->header;
    if (!lock_at_last(c)) return;
    h->joined_count = h->quiet = 0;
    memset(h->join_told, 0, sizeof h->join_told);
    memset(h->joined, 0, sizeof h->joined);
    memset(h->joined_active, 0, sizeof h->joined_active);
    atomic_store(&h->last_joined[atomic_load(&h->join_round) & 1], (uint32_t)last);
    atomic_fetch_add(&h->join_round, 1);
    atomic_fetch_add(&h->progress, 1);
    c->ring_wanted = true;
    unlock(c);
}

/* The first host wants to know what was said here about an operation. */
static void answer(struct link *l, struct view v) {
    struct core *c = l->c;
    const uint64_t *key = next(&v, 16);
    struct pack p = {0};
    if (!sound(c, key, nonsense) || !lock_at_last(c)) return;
    add(&p, key, 16);
    size_t counted = p.bytes;
    uint64_t count = 0;
    add(&p, &count, 8);
    int64_t i = find(c, key);
    struct entry *e = i >= 0 ? entry_at(c, (uint32_t)i) : NULL;
    for (int r = 0; e && r < c->size; r++) {
        struct arrival *a = arrival_at(e, r);
        if (c->header->host_of[r] != c->header->host || !arrived(e, r)) continue;
        struct said s = {(uint32_t)r, a->description_length};
        add(&p, &s, sizeof s);
        add(&p, a->description, s.bytes);
        count++;
    }
    unlock(c);
    memcpy(p.data + counted, &count, 8);
    send_control(l, 0, FRAME_SAID, 0, p.data, p.bytes);
    free(p.data);
}

/* ---- the first host ---- */

/* An operation that some hosts have told of. */
struct pending {
    struct pending *next;
    uint64_t key[2];
    struct known_set *set;
    char *told[MAX_HOSTS];      /* a copy of what each said; struct told first */
    size_t bytes[MAX_HOSTS];
    char *said[MAX_HOSTS];      /* and, if that was asked, in words */
    size_t said_bytes[MAX_HOSTS];
    uint32_t told_count, asked, answers, code;
    uint64_t present[MAX_RANKS / 64];
};
struct known_set { struct known_set *next; uint64_t key; uint32_t count; uint16_t members[MAX_RANKS]; };
struct end { uint64_t key[2], order; };
enum { BUCKETS = 1024, ENDS = 1024 };
struct root {
    struct pending *buckets[BUCKETS];
    struct known_set *sets;
    struct end ends[ENDS]; /* operations that were given up lately */
    uint64_t end_count, order;
    uint32_t open;
    uint64_t joined[MAX_RANKS / 64], active[MAX_RANKS / 64], gone[MAX_RANKS / 64];
    int joined_count, last_joined;
    uint32_t quiet; /* hosts all of whose ranks have joined, and that need nothing more for it */
};

bool open_root(struct link *l) { return (l->root = calloc(1, sizeof *l->root)); }

static void forget_pending(struct root *root, struct pending *p) {
    struct pending **link = &root->buckets[p->key[0] % BUCKETS];
    while (*link != p) link = &(*link)->next;
    *link = p->next;
    for (int h = 0; h < MAX_HOSTS; h++) free(p->told[h]), free(p->said[h]);
    free(p);
    root->open--;
}

void close_root(struct link *l) {
    struct root *root = l->root;
    if (!root) return;
    for (int b = 0; b < BUCKETS; b++)
        while (root->buckets[b]) forget_pending(root, root->buckets[b]);
    while (root->sets) {
        struct known_set *s = root->sets;
        root->sets = s->next;
        free(s);
    }
    free(root);
    l->root = NULL;
}

static struct pending *find_pending(struct root *root, const uint64_t *key) {
    struct pending *p = root->buckets[key[0] % BUCKETS];
    while (p && (p->key[0] != key[0] || p->key[1] != key[1])) p = p->next;
    return p;
}

static void to_all(struct link *l, enum frame_type type, uint64_t order, const void *body, size_t bytes) {
    for (uint32_t h = 1; h < l->hosts; h++) send_control(l, (int)h, type, order, body, bytes);
    send_control(l, 0, type, order, body, bytes);
}

/* The same word to every host that has told; or, of an end, to all, for some may have begun and not told. */
static void decide(struct link *l, struct pending *p, uint32_t code, const char *text, size_t text_bytes) {
    struct root *root = l->root;
    struct decision d = {.key = {p->key[0], p->key[1]}, .code = code, .flags = TELL_INLINED | TELL_BODY,
                         .text = (uint32_t)text_bytes};
    uint16_t ranks[MAX_RANKS];
    for (int r = 0; r < l->c->size; r++)
        if (has(p->present, r)) ranks[d.present++] = (uint16_t)r;
    struct pack bodies = {0}, saids = {0};
    bool lines = false, unnamed = false;
    uint64_t line = 0;
    for (uint32_t h = 0, first = 1; h < l->hosts; h++) {
        const struct told *t = (const struct told *)p->told[h];
        if (!t) continue;
        if (first) line = t->line;
        first = 0;
        lines |= t->line != line || t->flags & TELL_LINES;
        unnamed |= t->flags & TELL_UNNAMED;
        d.flags |= t->flags & TELL_ACTIVE;
        if (!(t->flags & TELL_INLINED)) d.flags &= ~(uint32_t)TELL_INLINED;
        if (!(t->flags & TELL_BODY)) d.flags &= ~(uint32_t)TELL_BODY;
    }
    for (uint32_t m = 0; m < p->set->count; m++)
        if (!has(p->present, p->set->members[m]) && has(root->active, p->set->members[m])) d.flags |= TELL_ACTIVE;
    bool inlined = d.flags & TELL_INLINED;
    for (uint32_t h = 0; h < l->hosts; h++) {
        if (!p->told[h]) continue;
        struct view v = {p->told[h], p->told[h] + p->bytes[h]};
        const struct told *t = next(&v, sizeof *t);
        next(&v, t->present * sizeof(uint16_t));
        for (uint32_t i = 0; i < t->present && d.flags & TELL_BODY && !code; i++) {
            struct brought b = *(const struct brought *)next(&v, sizeof b);
            const char *data = next(&v, b.bytes);
            if (!inlined) b.bytes = b.meta_count * (uint32_t)sizeof(int64_t); /* the numbers come first */
            add(&bodies, &b, sizeof b);
            add(&bodies, data, b.bytes);
            d.brought++;
        }
        struct view w = {p->said[h], p->said[h] + p->said_bytes[h]};
        const uint64_t *count = p->said[h] ? next(&w, 8) : NULL;
        for (uint64_t i = 0; count && i < *count; i++) {
            const struct said *s = next(&w, sizeof *s);
            const char *words = s ? next(&w, s->bytes) : NULL;
            if (!words) break;
            add(&saids, s, sizeof *s);
            add(&saids, words, s->bytes);
            d.said++;
        }
    }
    if (!code && unnamed && lines) d.flags |= TELL_NOTE;
    struct pack all = {0};
    add(&all, &d, sizeof d);
    add(&all, ranks, d.present * sizeof *ranks);
    add(&all, bodies.data, bodies.bytes);
    add(&all, saids.data, saids.bytes);
    add(&all, text, text_bytes);
    uint64_t order = ++root->order;
    bool told[MAX_HOSTS];
    for (uint32_t h = 0; h < l->hosts; h++) told[h] = code || p->told[h];
    if (code) root->ends[root->end_count++ % ENDS] = (struct end){{p->key[0], p->key[1]}, order};
    uint64_t group = p->key[0];
    forget_pending(root, p);
    for (int b = 0; b < BUCKETS && code; b++) /* with it all parts of its group */
        for (struct pending *part = root->buckets[b], *after; part; part = after) {
            after = part->next;
            if (part->key[1] == group) forget_pending(root, part);
        }
    for (uint32_t h = 1; h < l->hosts; h++)
        if (told[h]) send_control(l, (int)h, FRAME_DECIDE, order, all.data, all.bytes);
    if (told[0]) send_control(l, 0, FRAME_DECIDE, order, all.data, all.bytes);
    free(bodies.data);
    free(saids.data);
    free(all.data);
}

/* Before ranks are told that they disagree: what did they say? */
static void ask(struct link *l, struct pending *p, uint32_t code) {
    p->asked = 1;
    p->code = code;
    uint64_t key[2] = {p->key[0], p->key[1]};
    bool told[MAX_HOSTS];
    for (uint32_t h = 0; h < l->hosts; h++) told[h] = p->told[h];
    for (uint32_t h = l->hosts; h-- > 0;) /* this host last: its answer may be what is still missing */
        if (told[h]) send_control(l, (int)h, FRAME_ASK, 0, key, sizeof key);
}

/* If nobody is missing any more. */
static bool consider(struct link *l, struct pending *p) {
    struct root *root = l->root;
    uint32_t present = 0, note = 0;
    if (p->asked) return false;
    for (uint32_t m = 0; m < p->set->count; m++) {
        int r = p->set->members[m];
        if (has(p->present, r)) present++;
        else if (!has(root->joined, r)) {
            if (!p->told[l->c->header->host_of[r]]) return false; /* else that host knows that it has joined */
        }
    }
    bool agree = true, lines = false;
    const struct told *first = NULL;
    for (uint32_t h = 0; h < l->hosts; h++) {
        const struct told *t = (const struct told *)p->told[h];
        if (!t) continue;
        if (!first) first = t;
        agree &= t->fingerprint == first->fingerprint && !(t->flags & TELL_DISAGREE);
        lines |= t->line != first->line || t->flags & TELL_LINES;
        note |= t->flags & TELL_UNNAMED;
    }
    bool goes_on = first->kind == BARRIER || (first->kind == ALLREDUCE && first->op != ADASUM);
    if (!agree) ask(l, p, MISMATCH);
    else if (present < p->set->count && !goes_on) ask(l, p, JOINED);
    else if (note && lines) ask(l, p, 0);
    else decide(l, p, 0, "", 0);
    return true;
}

static void end_join(struct link *l) {
    struct root *root = l->root;
    if (root->joined_count < l->c->size || root->quiet < l->hosts || root->open) return;
    uint64_t last = (uint64_t)root->last_joined;
    root->joined_count = 0;
    root->quiet = 0;
    memset(root->joined, 0, sizeof root->joined);
    memset(root->active, 0, sizeof root->active);
    to_all(l, FRAME_JOINED, ++root->order, &last, 8);
}

static void consider_all(struct link *l) {
    for (int b = 0; b < BUCKETS; b++)
        for (struct pending *p = l->root->buckets[b], *after; p; p = after) {
            after = p->next;
            if (consider(l, p)) after = l->root->buckets[b]; /* the list has changed */
        }
    end_join(l);
}

static struct known_set *set_of(struct root *root, uint64_t key) {
    struct known_set *s = root->sets;
    while (s && s->key != key) s = s->next;
    return s;
}

/* Whether an operation, or the group it is a part of, was given up after what a host had heard when it spoke of it. */
static bool ended_since(struct root *root, const uint64_t *key, uint64_t seen) {
    for (uint64_t n = root->end_count > ENDS ? root->end_count - ENDS : 0; n < root->end_count; n++) {
        struct end *e = &root->ends[n % ENDS];
        bool it = e->key[0] == key[0] && e->key[1] == key[1];
        if ((it || key[1] == e->key[0]) && seen < e->order) return true;
    }
    return false;
}

static void host_told(struct link *l, int host, const char *body, size_t bytes) {
    struct root *root = l->root;
    struct view v = {body, body + bytes};
    const struct told *t = next(&v, sizeof *t);
    const uint16_t *ranks = t ? next(&v, t->present * sizeof *ranks) : NULL;
    struct known_set *s = t ? set_of(root, t->set) : NULL;
    if (!sound(l->c, ranks && s, "a host told of an operation in a way that makes no sense")) return;
    if (ended_since(root, t->key, t->seen)) return; /* it will hear of that */
    for (uint32_t m = 0; m < s->count; m++)
        if (has(root->gone, s->members[m])) return; /* it will hear that, too */
    struct pending *p = find_pending(root, t->key);
    if (!p) {
        p = calloc(1, sizeof *p);
        if (!sound(l->c, p, "there is no memory for an operation")) return;
        p->key[0] = t->key[0], p->key[1] = t->key[1];
        p->set = s;
        p->next = root->buckets[p->key[0] % BUCKETS];
        root->buckets[p->key[0] % BUCKETS] = p;
        root->open++;
    }
    if (!sound(l->c, !p->told[host], "a host told of an operation twice")) return;
    p->told[host] = malloc(bytes);
    if (!sound(l->c, p->told[host], "there is no memory for an operation")) return;
    memcpy(p->told[host], body, bytes);
    p->bytes[host] = bytes;
    p->told_count++;
    for (uint32_t i = 0; i < t->present; i++) put(p->present, ranks[i]);
    if (p->asked) ask(l, p, p->code); /* cannot be: all had told */
    else consider(l, p);
    end_join(l);
}

static void host_said(struct link *l, int host, struct view v) {
    const uint64_t *key = next(&v, 16);
    struct pending *p = key ? find_pending(l->root, key) : NULL;
    if (!p || !p->asked || p->said[host]) return;
    size_t bytes = (size_t)(v.end - v.at);
    p->said[host] = malloc(bytes + 1);
    if (!sound(l->c, p->said[host], "there is no memory for an operation")) return;
    memcpy(p->said[host], v.at, bytes);
    p->said_bytes[host] = bytes;
    if (++p->answers < p->told_count) return;
    decide(l, p, p->code, "", 0);
    end_join(l);
}

static void host_fails(struct link *l, struct view v) {
    const uint64_t *key = next(&v, 16), *seen = next(&v, 8), *code = next(&v, 8), *length = next(&v, 8);
    const char *text = length ? next(&v, *length) : NULL;
    if (!sound(l->c, text, "a host gave an operation up in a way that makes no sense")) return;
    struct pending *p = find_pending(l->root, key);
    if (ended_since(l->root, key, *seen) || (p && p->asked)) return; /* it ends anyway */
    if (!p) { /* begun on some hosts, complete on none */
        p = calloc(1, sizeof *p);
        static struct known_set nobody;
        if (!p) return;
        p->key[0] = key[0], p->key[1] = key[1];
        p->set = &nobody;
        p->next = l->root->buckets[key[0] % BUCKETS];
        l->root->buckets[key[0] % BUCKETS] = p;
        l->root->open++;
    }
    decide(l, p, (uint32_t)*code, text, *length);
    end_join(l);
}

static void rank_joins(struct link *l, uint64_t value) {
    struct root *root = l->root;
    if (value == UINT64_MAX) {
        root->quiet++;
        end_join(l);
        return;
    }
    int rank = (int)(value >> 1);
    if (!sound(l->c, rank < l->c->size, nonsense) || has(root->joined, rank)) return;
    put(root->joined, rank);
    if (value & 1) put(root->active, rank);
    root->joined_count++;
    root->last_joined = rank;
    consider_all(l);
}

static void rank_leaves(struct link *l, uint64_t rank) {
    struct root *root = l->root;
    if (!sound(l->c, rank < (uint64_t)l->c->size, nonsense)) return;
    put(root->gone, (int)rank);
    for (int b = 0; b < BUCKETS; b++)
        for (struct pending *p = root->buckets[b], *after; p; p = after) {
            bool member = false;
            after = p->next;
            for (uint32_t m = 0; m < p->set->count; m++) member |= p->set->members[m] == rank;
            if (member) forget_pending(root, p);
        }
    to_all(l, FRAME_LEFT, ++root->order, &rank, 8);
}

static void learn_set(struct link *l, struct view v) {
    const uint64_t *key = next(&v, 8), *count = next(&v, 8);
    const uint16_t *members = count && *count <= MAX_RANKS ? next(&v, *count * sizeof *members) : NULL;
    if (!sound(l->c, members, "a host named a process set in a way that makes no sense") || set_of(l->root, *key)) return;
    struct known_set *s = calloc(1, sizeof *s);
    if (!sound(l->c, s, "there is no memory for a process set")) return;
    s->key = *key;
    s->count = (uint32_t)*count;
    memcpy(s->members, members, *count * sizeof *members);
    s->next = l->root->sets;
    l->root->sets = s;
}

void hear(struct link *l, int host, const struct frame *f, const char *body) {
    struct view v = {body, body + f->bytes};
    uint64_t number = 0;
    if (f->bytes == 8) memcpy(&number, body, 8);
    bool to_root = f->type == FRAME_SET || f->type == FRAME_TELL || f->type == FRAME_SAID || f->type == FRAME_JOIN ||
                   f->type == FRAME_LEAVE || f->type == FRAME_FAIL;
    if (!sound(l->c, to_root ? l->root != NULL : host == 0 || f->type == FRAME_GOODBYE, "a host spoke out of turn")) return;
    switch (f->type) {
    case FRAME_SET: learn_set(l, v); break;
    case FRAME_TELL: host_told(l, host, body, f->bytes); break;
    case FRAME_SAID: host_said(l, host, v); break;
    case FRAME_JOIN: rank_joins(l, number); break;
    case FRAME_LEAVE: rank_leaves(l, number); break;
    case FRAME_FAIL: host_fails(l, v); break;
    case FRAME_DECIDE: decided(l, f->order, v); break;
    case FRAME_ASK: answer(l, v); break;
    case FRAME_JOINED: l->seen = f->order; all_joined(l, (int)number); break;
    case FRAME_LEFT: l->seen = f->order; left(l, (int)number); break;
    case FRAME_GOODBYE: l->lines[host].goodbye = true, ring(l->c); break;
    default: sound(l->c, false, "a frame of a kind that there is not");
    }
}
