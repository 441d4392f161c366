/* Agreement between hosts: a host is a worker of a higher table.
 *
 * When all workers of a host have arrived at an operation (table.c), its leader says so in the tree of hosts (tree.c), with
 * what they said and, if it is small, what they brought. When every host that takes part has, the first host decides: it
 * compares, and gives all of them the same word in the same order. A host that gets it closes the round in its table. So the
 * table of each host is closed by the same decisions in the same order, and data between hosts moves in that order too.
 *
 * What a decision costs does not depend on how many workers a host has. Names, lines and shapes travel only when ranks
 * disagree: then the first host asks for them, so that everybody can be shown the same table.
 *
 * Small payloads ride with what is told, and all of them with the decision: every rank sums them itself, in rank order, with
 * the same bits as on one host.
 *
 * Joins, ranks that leave and operations that are given up go the same way, so they too come in one order. A host may have
 * told of an operation that has just been given up: what it tells carries the last end that it knew of, and is ignored if the
 * end of that operation is newer. Who gives one up says what it had carried out: if it was decided since, it was too late.
 */
#include "tree.h"
#include <stdlib.h>
#include <string.h>

static const char invalid[] = "the first host sent an invalid message";

/* ---- what this host has to say ---- */

void post(struct core *c, enum post_kind what, uint32_t entry, uint64_t value) {
    struct header *h = c->header;
    struct entry *e = entry_at(c, entry);
    if (!sound(c, h->post_tail - h->post_head < post_room(c), "too much is waiting to be told")) return;
    *post_at(c, h->post_tail++) = (struct post){what, entry, e->stamp, atomic_load(&e->round), value};
    c->post_wanted = true;
}

/* Something to tell, copied under the lock. */
struct item { enum frame_type type; uint32_t number, set; uint64_t seen; struct told told; struct pack rest; };

/* What everybody here said and brought. */
static void pack_arrival(struct link *l, struct entry *e, struct item *to) {
    struct core *c = l->c;
    struct set *s = set_at(c, e->set);
    uint64_t round = atomic_load(&e->round);
    struct task *task = task_of(c, e, round);
    struct summary is = {.key = {e->key[0], e->key[1]}, .set = s->key, .kind = task->kind, .op = task->op,
                         .flags = TELL_INLINED | (e->agreed ? TELL_AGAIN : 0)};
    bool first = true;
    for (uint32_t m = 0; m < s->here_count; m++) {
        int r = here_of(c, s)[m];
        struct arrival *a = arrival_at(c, e, r);
        if (!arrived(c, e, r)) {
            if (has(c->header->joined_active, place_of_rank(c, r)->here)) is.flags |= TELL_ACTIVE;
            add(&to->rest, &(uint64_t){(uint64_t)r}, sizeof(uint64_t));
            to->told.absent++;
            continue;
        }
        if (first) is.fingerprint = a->fingerprint, is.line = a->line;
        if (a->fingerprint != is.fingerprint) is.flags |= TELL_DISAGREE;
        if (a->line != is.line) is.flags |= TELL_LINES;
        if (a->unnamed) is.flags |= TELL_UNNAMED;
        if (!a->inlined) is.flags &= ~(uint32_t)TELL_INLINED;
        first = false;
    }
    bool sizes = task->kind == ALLGATHER || task->kind == ALLTOALL;
    if (sizes || (is.flags & TELL_INLINED && task->kind != BARRIER)) is.flags |= TELL_BODY;
    to->set = e->set;
    to->type = FRAME_TELL;
    struct known *known = known_at(l, e->number);
    if (known && known->stamp == e->stamp && !to->told.absent && known->is.fingerprint == is.fingerprint && known->is.line == is.line &&
        known->is.flags == is.flags) { /* it is as it was */
        to->number = e->number;
        return;
    }
    to->told.is = is;
    to->told.hosts = 1;
    for (uint32_t m = 0; m < s->here_count && is.flags & TELL_BODY; m++) {
        int r = here_of(c, s)[m];
        struct arrival *a = arrival_at(c, e, r);
        if (!arrived(c, e, r)) continue;
        bool all = a->inlined; /* sizes are told again with the decision, if another host's do not ride along */
        struct brought b = {.rank = (uint32_t)r, .meta_count = a->meta_count,
                            .bytes = all ? a->payload_bytes : a->meta_count * (uint32_t)sizeof(int64_t)};
        add(&to->rest, &b, sizeof b);
        add(&to->rest, all ? payload_at(c, e, round, r) : (char *)heap_at(c, a->meta.at), b.bytes);
        to->told.brought++;
    }
}

static void pack_post(struct link *l, struct item *to) {
    struct core *c = l->c;
    struct post p = *post_at(c, c->header->post_head++);
    struct entry *e = entry_at(c, p.entry);
    bool open = e->stamp == p.stamp && atomic_load(&e->round) == p.round && e->arrived;
    if (p.what == POST_ARRIVED && open && e->told) {
        pack_arrival(l, e, to);
    } else if (p.what == POST_FAILED && open) {
        struct failure *f = failure_at(c, p.value - 1);
        uint64_t code = f->code, length = strnlen(f->text, TEXT_BYTES);
        to->type = FRAME_FAIL;
        add(&to->rest, e->key, sizeof e->key);
        uint64_t last = carried_out(l);
        add(&to->rest, &last, 8);
        add(&to->rest, &code, 8);
        add(&to->rest, &length, 8);
        add(&to->rest, f->text, length);
    } else if (p.what == POST_JOINED || p.what == POST_QUIET || p.what == POST_LEFT) {
        to->type = p.what == POST_LEFT ? FRAME_LEAVE : FRAME_JOIN;
        add(&to->rest, &p.value, 8);
    }
}

bool tell(struct link *l) {
    enum { AT_ONCE = 64 };
    struct core *c = l->c;
    struct header *h = c->header;
    bool done = flush(l);
    if (!atomic_load(&h->posted)) return done;
    atomic_store(&h->posted, 0);
    for (bool more = true; more;) {
        struct item items[AT_ONCE];
        int count = 0;
        if (lock(c)) { /* it will be looked at again */
            atomic_store(&h->posted, 1);
            return done;
        }
        for (; count < AT_ONCE && h->post_head < h->post_tail; count++) {
            memset(&items[count], 0, sizeof items[count]);
            items[count].seen = l->seen; /* carrying out one of them may change it */
            pack_post(l, &items[count]);
        }
        more = h->post_head < h->post_tail;
        unlock(c);
        for (int i = 0; i < count; i++) {
            struct item *x = &items[i];
            const char *data = x->rest.data ? x->rest.data : "";
            struct view rest = {data, data + x->rest.bytes};
            if (x->number) tell_ready(l, x->number, x->seen);
            else if (x->type == FRAME_TELL) tell_arrival(l, set_here(l, x->set), &x->told, x->seen, rest);
            else if (x->type) tell_up(l, x->type, x->rest.data, x->rest.bytes);
            free(x->rest.data);
        }
    }
    flush(l);
    return true;
}

/* ---- what was decided ---- */

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

static void everybody(struct link *l, struct entry *e, uint64_t round) {
    memcpy(contributors_of(l->c, e, round), set_here(l, e->set)->bits, l->c->header->bit_words * sizeof(uint64_t));
}

/* Operations that are as they were when they got their numbers, in this order. */
void carry_out(struct link *l, const struct agreed *all, uint32_t count) {
    struct core *c = l->c;
    uint64_t rounds[64];
    for (uint32_t from = 0, n; from < count; from += n) {
        bool fine = true;
        n = count - from < 64 ? count - from : 64;
        if (!lock_at_last(c)) return;
        for (uint32_t i = 0; i < n && fine; i++) {
            struct known *k = known_at(l, all[from + i].number);
            struct entry *e = entry_at(c, k->entry);
            rounds[i] = atomic_load(&e->round);
            fine = e->stamp == k->stamp && e->arrived && e->told;
            if (!fine) break;
            everybody(l, e, rounds[i]);
            close_abroad(c, k->entry, 0, 0, false, k->is.flags & TELL_INLINED);
        }
        unlock(c);
        if (!sound(c, fine, "an operation was agreed on that this host did not tell of")) return;
        for (uint32_t i = 0; i < n; i++) {
            struct known *k = known_at(l, all[from + i].number);
            if (!(k->is.flags & TELL_INLINED)) begin_job(l, k->entry, rounds[i], all[from + i].order);
        }
    }
}

/* Whether what a rank is said to have brought is as much as this operation needs: all of it, or the sizes alone. */
static bool fits_task(struct core *c, struct entry *e, uint64_t round, const struct brought *b, const char *data, bool inlined) {
    struct task *t = task_of(c, e, round);
    uint32_t sizes = t->kind == ALLGATHER ? t->segment_count : t->kind == ALLTOALL ? set_at(c, e->set)->count : 0;
    uint64_t wanted = sizes * sizeof(int64_t), most = inlined ? c->header->inline_bytes : 1ull << 48;
    if (b->meta_count != sizes || b->bytes < wanted) return false;
    for (uint32_t k = 0; k < (sizes ? sizes : inlined ? t->segment_count : 0); k++) {
        uint64_t bytes = sizes ? ((const uint64_t *)data)[k] : t->segments[k].count * item_bytes[t->segments[k].dtype];
        if (bytes > most) return false;
        if (inlined) wanted += (bytes + 7) & ~7ull;
    }
    return b->bytes == wanted;
}

/* Keep what ranks of other hosts brought, for all ranks here to read. */
static bool keep_brought(struct core *c, struct entry *e, uint64_t round, uint32_t count, bool inlined, struct view v) {
    struct set *s = set_at(c, e->set);
    uint32_t parity = round & 1;
    uint64_t table = (s->count * sizeof(uint32_t) + 15) & ~15ull, at = table;
    if (!keep_others(c, e, parity, table + (uint64_t)(v.end - v.at))) return false;
    uint32_t *others = heap_at(c, e->others[parity].at);
    memset(others, 0, table);
    for (uint32_t k = 0; k < count; k++) {
        const struct brought *b = next(&v, sizeof *b);
        const char *data = b ? next(&v, b->bytes) : NULL;
        if (!data || b->rank >= (uint32_t)c->size || position_of(c, s)[b->rank] < 0 || !fits_task(c, e, round, b, data, inlined)) return false;
        if (is_here(c, (int)b->rank)) continue;
        memcpy((char *)others + at, b, sizeof *b);
        memcpy((char *)others + at + sizeof *b, data, b->bytes);
        others[position_of(c, s)[b->rank]] = (uint32_t)at;
        at += sizeof *b + ((b->bytes + 7ull) & ~7ull);
    }
    return true;
}

void decided(struct link *l, uint64_t order, struct view v) {
    struct core *c = l->c;
    const struct decision *d = next(&v, sizeof *d);
    const uint64_t *absent = d ? next(&v, d->absent * sizeof *absent) : NULL;
    const char *brought = absent ? next(&v, d->brought_bytes) : NULL, *said = brought ? next(&v, d->said_bytes) : NULL;
    const char *text = said ? next(&v, d->text) : NULL;
    if (!sound(c, text, invalid) || !lock_at_last(c)) return;
    int64_t i = find(c, d->is.key);
    struct entry *e = i >= 0 ? entry_at(c, (uint32_t)i) : NULL;
    bool open = e && e->arrived && (e->told || d->code);
    uint64_t round = e ? atomic_load(&e->round) : 0;
    if (!open) { /* an operation that ended elsewhere, and that nobody here has begun */
        unlock(c);
        sound(c, d->code, "an operation was agreed on that this host did not tell of");
        return;
    }
    everybody(l, e, round);
    uint64_t *present = contributors_of(c, e, round);
    bool inlined = d->is.flags & TELL_INLINED, fine = true;
    for (uint32_t k = 0; k < d->absent && fine; k++) {
        fine = absent[k] < (uint64_t)c->size;
        if (fine) present[absent[k] / 64] &= ~(1ull << absent[k] % 64);
    }
    if (d->brought) fine = fine && keep_brought(c, e, round, d->brought, inlined, (struct view){brought, brought + d->brought_bytes});
    if (!fine) {
        unlock(c);
        sound(c, false, invalid);
        return;
    }
    uint64_t failure = 0, note = 0;
    if (d->code || d->is.flags & TELL_NOTE) {
        char words[TEXT_BYTES] = {0};
        memcpy(words, text, d->text < TEXT_BYTES ? d->text : TEXT_BYTES - 1);
        uint64_t made = record(c, e, d->code ? (enum failure_code)d->code : NOTE, words, d->said_bytes ? said : NULL, d->said_bytes);
        if (d->code) failure = made;
        else note = made;
    }
    struct known *known = known_at(l, d->is.number);
    if (known) known->entry = (uint32_t)i, known->stamp = e->stamp;
    e->number = known ? d->is.number : 0;
    e->agreed |= !failure;
    close_abroad(c, (uint32_t)i, failure, note, d->is.flags & TELL_ACTIVE, inlined);
    unlock(c);
    if (!failure && !inlined) begin_job(l, (uint32_t)i, round, order);
}

void left(struct link *l, int rank) {
    struct core *c = l->c;
    if (!lock_at_last(c)) return;
    atomic_store(&peer_at(c, rank)->left, 2);
    leave_table(c, rank);
    c->ring_wanted = true;
    unlock(c);
    if (!is_here(c, rank)) atomic_store(&peer_at(c, rank)->state, GONE_CLEAN);
}

/* This host has lost its way to the others with a host that left. Who here is about to leave hears no answer any more. */
void cut_off(struct link *l, int host) {
    struct core *c = l->c;
    int gone = -1;
    for (int r = 0; r < c->size; r++) {
        bool there = (int)host_of_rank(c, r) == host;
        if (there && gone < 0) gone = r;
        if (there ? atomic_load(&peer_at(c, r)->left) != 2 : is_here(c, r) && atomic_load(&peer_at(c, r)->left) == 1) left(l, r);
    }
    if (!lock_at_last(c)) return;
    leave_others(c, gone);
    c->ring_wanted = true;
    unlock(c);
}

void all_joined(struct link *l, int last) {
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
void answer(struct link *l, const uint64_t *key) {
    struct core *c = l->c;
    struct pack p = {0};
    if (!lock_at_last(c)) return;
    add(&p, key, 16);
    int64_t i = find(c, key);
    struct entry *e = i >= 0 ? entry_at(c, (uint32_t)i) : NULL;
    uint64_t bytes = e ? what_was_said(c, e, NULL, 0) : 0;
    char *said = bytes ? calloc(1, bytes) : NULL;
    if (said) {
        what_was_said(c, e, said, bytes);
        add(&p, said, bytes);
    }
    unlock(c);
    free(said);
    tell_up(l, FRAME_SAID, p.data, p.bytes);
    free(p.data);
}
