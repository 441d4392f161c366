/* Agreement between hosts: the tree.
 *
 * Host h hears of hosts FANOUT h + 1 to FANOUT h + FANOUT, and tells the one that hears of it; host 0 hears of no other and
 * decides. When all parts of a host (its own ranks, and the hosts below) have arrived at an operation, it tells that in one
 * word, whatever is below. Decisions go down the same connections in the order in which they were made, so every host gets
 * the same order. A host has FANOUT + 1 neighbours, however many hosts there are.
 *
 * An operation that was agreed on twice has a number. If it is as it was, the number is all that is told, and all that is
 * decided; numbers that are told at once go in one frame.
 *
 * A part all of whose members have joined is not waited for. Hosts above learn of joins only after what was told before, and
 * after what that join made complete.
 */
#include "tree.h"
#include <stdlib.h>
#include <string.h>

static const char invalid[] = "a host sent an invalid message";
static const char no_memory[] = "there is no memory for what hosts agree on";

/* An operation that some parts have told of. */
struct pending {
    struct pending *next;
    struct summary is;
    struct known_set *set;
    uint32_t parts, hosts; /* that have told */
    uint32_t absent, brought;
    bool plain;            /* all said its number, and nothing else */
    bool sent;             /* to the host above */
    bool asked;            /* what was said */
    uint32_t code, answers;
    struct pack absentees, bodies, saids;
};
struct end { uint64_t key[2], order; };
struct batch { struct pack words; uint64_t order; enum frame_type type; };
enum { BUCKETS = 1024, ENDS = 1024 };

struct tree {
    int above, first_child, children;
    uint8_t *part_of; /* by host: OWN, a child, or 255 */
    struct pending *buckets[BUCKETS], *unused;
    struct known_set *sets, *here[MAX_SETS];
    struct known *known;
    uint32_t numbers, known_room, numbered[BUCKETS]; /* numbered: the first host's, by key */
    struct batch out[PARTS_OF_A_HOST];               /* to each child; OWN: to the host above */
    struct agreed *agreed;                           /* of this host, to be carried out */
    uint32_t agreed_count, agreed_room;
    struct end ends[ENDS]; /* operations that were given up lately */
    struct end made[ENDS]; /* the last decisions, on the first host */
    uint64_t end_count, order, carried_out;
    uint32_t open;
    bool cut; /* the way to the first host is gone */
    uint64_t joined[MAX_RANKS / 64], active[MAX_RANKS / 64], gone[MAX_RANKS / 64]; /* of this host and those below */
    int joined_count, gone_count, last_joined;
    uint32_t quiet; /* hosts all of whose ranks have joined, and that need nothing more for it */
};

/* ---- packs ---- */

void add(struct pack *p, const void *data, size_t bytes) {
    if (!bytes) return;
    size_t wanted = p->bytes + ((bytes + 7) & ~(size_t)7);
    if (wanted > p->room) {
        char *more = realloc(p->data, 2 * wanted + 256);
        if (!more) abort();
        p->data = more;
        p->room = 2 * wanted + 256;
    }
    memset(p->data + p->bytes, 0, wanted - p->bytes);
    memcpy(p->data + p->bytes, data, bytes);
    p->bytes = wanted;
}

const void *next(struct view *v, size_t bytes) {
    const char *at = v->at;
    size_t left = (size_t)(v->end - v->at), taken = (bytes + 7) & ~(size_t)7;
    if (left < bytes || left < taken) return NULL; /* bytes: rounded up it may be none */
    v->at += taken;
    return at;
}

/* ---- sets and numbers ---- */

static int above(int host) { return (host - 1) / FANOUT; }

bool open_tree(struct link *l) {
    struct tree *t = l->tree = calloc(1, sizeof *t);
    if (!t || !(t->part_of = malloc(l->hosts))) return false;
    int me = (int)l->host;
    t->above = me ? above(me) : -1;
    t->first_child = FANOUT * me + 1;
    for (int h = 0; h < (int)l->hosts; h++) {
        int at = h;
        while (at > me && above(at) != me) at = above(at);
        t->part_of[h] = at == me ? OWN : at > me ? (uint8_t)(at - t->first_child) : 255;
        if (at == h && at > me) t->children++;
    }
    return true;
}

static void forget_pending(struct tree *t, struct pending *p) {
    struct pending **link = &t->buckets[p->is.key[0] % BUCKETS];
    while (*link != p) link = &(*link)->next;
    *link = p->next;
    p->next = t->unused;
    t->unused = p;
    t->open--;
}

void close_tree(struct link *l) {
    struct tree *t = l->tree;
    if (!t) return;
    for (int b = 0; b < BUCKETS; b++)
        while (t->buckets[b]) forget_pending(t, t->buckets[b]);
    for (struct pending *p; (p = t->unused); free(p)) {
        t->unused = p->next;
        free(p->absentees.data);
        free(p->bodies.data);
        free(p->saids.data);
    }
    for (struct known_set *s; (s = t->sets); free(s)) {
        t->sets = s->next;
        free(s->bits);
    }
    for (int i = 0; i < PARTS_OF_A_HOST; i++) free(t->out[i].words.data);
    free(t->agreed);
    free(t->known);
    free(t->part_of);
    free(t);
    l->tree = NULL;
}

static struct known_set *learn_set(struct link *l, uint64_t key, const uint16_t *members, uint32_t count) {
    struct tree *t = l->tree;
    struct known_set *s = t->sets;
    while (s && s->key != key) s = s->next;
    if (s) return s;
    s = calloc(1, sizeof *s + count * sizeof *members);
    if (!s || !(s->bits = calloc(l->c->header->bit_words, sizeof *s->bits))) abort();
    s->key = key;
    s->count = count;
    memcpy(s->members, members, count * sizeof *members);
    uint8_t *seen = calloc(l->hosts, 1);
    if (!seen) abort();
    for (uint32_t m = 0; m < count; m++) {
        uint32_t host = host_of_rank(l->c, members[m]), part = t->part_of[host];
        put(s->bits, members[m]);
        if (part == 255) continue;
        s->wanted |= 1u << part;
        if (!seen[host]) s->hosts[part]++;
        seen[host] = 1;
    }
    free(seen);
    s->next = t->sets;
    return t->sets = s;
}

struct known_set *set_here(struct link *l, uint32_t set) {
    struct set *s = set_at(l->c, set);
    if (!l->tree->here[set]) l->tree->here[set] = learn_set(l, s->key, members_of(l->c, s), s->count);
    return l->tree->here[set];
}

static struct known_set *set_of(struct tree *t, uint64_t key) {
    struct known_set *s = t->sets;
    while (s && s->key != key) s = s->next;
    return s;
}

struct known *known_at(struct link *l, uint32_t number) {
    struct tree *t = l->tree;
    return number && number < t->known_room && t->known[number].set ? &t->known[number] : NULL;
}

static void learn_number(struct link *l, const struct summary *is, struct known_set *set) {
    struct tree *t = l->tree;
    if (!is->number || is->number > MAX_NUMBERS || known_at(l, is->number)) return;
    if (is->number >= t->known_room) {
        uint32_t room = 2 * is->number + 64;
        struct known *more = realloc(t->known, room * sizeof *more);
        if (!more) abort();
        memset(more + t->known_room, 0, (room - t->known_room) * sizeof *more);
        t->known = more;
        t->known_room = room;
    }
    t->known[is->number] = (struct known){.is = *is, .set = set};
}

/* On the first host: the number of what all have agreed on, 0 if it has none. What has one stays as it is. */
static uint32_t number_for(struct link *l, const struct summary *is, struct known_set *set) {
    struct tree *t = l->tree;
    uint32_t *bucket = &t->numbered[is->key[0] % BUCKETS];
    for (uint32_t n = *bucket; n; n = t->known[n].next_number) {
        const struct summary *known = &t->known[n].is;
        if (known->key[0] == is->key[0] && known->key[1] == is->key[1] && known->fingerprint == is->fingerprint &&
            known->line == is->line && known->flags == is->flags)
            return n;
    }
    if (t->numbers == MAX_NUMBERS) return 0;
    struct summary numbered = *is;
    numbered.number = ++t->numbers;
    learn_number(l, &numbered, set);
    t->known[numbered.number].next_number = *bucket;
    return *bucket = numbered.number;
}

/* ---- sending ---- */

static int host_at(struct tree *t, int part) { return part == OWN ? t->above : t->first_child + part; }

static void flush_part(struct link *l, int part) {
    struct batch *b = &l->tree->out[part];
    if (b->words.bytes) send_control(l, host_at(l->tree, part), b->type, b->order, b->words.data, b->words.bytes);
    b->words.bytes = 0;
}

static void say(struct link *l, int part, enum frame_type type, uint64_t order, const void *body, size_t bytes) {
    flush_part(l, part);
    send_control(l, host_at(l->tree, part), type, order, body, bytes);
}

/* Before this host hears of anything else: what was agreed on comes first. */
static void flush_agreed(struct link *l) {
    struct tree *t = l->tree;
    uint32_t count = t->agreed_count;
    t->agreed_count = 0;
    if (!count) return;
    carry_out(l, t->agreed, count);
    t->carried_out = t->agreed[count - 1].order;
}

uint64_t carried_out(struct link *l) { return l->tree->carried_out; }

bool flush(struct link *l) {
    struct tree *t = l->tree;
    bool any = t->agreed_count;
    for (int i = 0; i < PARTS_OF_A_HOST; i++) {
        any |= t->out[i].words.bytes != 0;
        flush_part(l, i);
    }
    flush_agreed(l);
    return any;
}

static void say_ready(struct link *l, uint32_t number) {
    struct batch *b = &l->tree->out[OWN];
    uint64_t word = number;
    if (!b->words.bytes) b->type = FRAME_READY, b->order = l->seen;
    add(&b->words, &word, sizeof word);
}

static void say_go(struct link *l, int part, uint32_t number, uint64_t order) {
    struct batch *b = &l->tree->out[part];
    if (!b->words.bytes) b->type = FRAME_GO, b->order = order;
    struct go go = {number, (uint32_t)(order - b->order)};
    add(&b->words, &go, sizeof go);
}

void tell_up(struct link *l, enum frame_type type, const void *body, size_t bytes) {
    struct frame f = {.bytes = (uint32_t)bytes, .type = (uint16_t)type, .order = l->seen};
    hear(l, (int)l->host, &f, body);
}

/* ---- deciding ---- */

static void forget_ended(struct link *l, const uint64_t *key, uint64_t order) {
    struct tree *t = l->tree;
    flush_part(l, OWN); /* with what was known when it was said */
    t->ends[t->end_count++ % ENDS] = (struct end){{key[0], key[1]}, order};
    l->seen = order;
    uint64_t group = key[0], second = key[1];
    for (int b = 0; b < BUCKETS; b++) /* with it all parts of its group */
        for (struct pending *p = t->buckets[b], *after; p; p = after) {
            after = p->next;
            if ((p->is.key[0] == group && p->is.key[1] == second) || p->is.key[1] == group) forget_pending(t, p);
        }
}

static struct pending *find_pending(struct tree *t, const uint64_t *key) {
    struct pending *p = t->buckets[key[0] % BUCKETS];
    while (p && (p->is.key[0] != key[0] || p->is.key[1] != key[1])) p = p->next;
    return p;
}

/* A decision on its way down: to those below who have told; of an end, to all, for some may have begun and not told. */
static void pass_on(struct link *l, uint64_t order, const char *body, size_t bytes) {
    struct tree *t = l->tree;
    struct view v = {body, body + bytes};
    const struct decision *d = next(&v, sizeof *d);
    struct pending *p = d ? find_pending(t, d->is.key) : NULL;
    if (!sound(l->c, d && (d->code || p), invalid)) return;
    uint32_t parts = d->code ? ~0u : p->parts;
    if (d->code) {
        forget_ended(l, d->is.key, order);
    } else {
        learn_number(l, &d->is, p->set);
        forget_pending(t, p);
    }
    for (int i = 0; i < t->children; i++)
        if (parts >> i & 1) say(l, i, FRAME_DECIDE, order, body, bytes);
    flush_agreed(l);
    if (parts >> OWN & 1) decided(l, order, (struct view){body, body + bytes});
    t->carried_out = order;
}

static void pass_on_go(struct link *l, uint32_t number, uint64_t order) {
    struct tree *t = l->tree;
    struct known *k = known_at(l, number);
    struct pending *p = k ? find_pending(t, k->is.key) : NULL;
    if (!sound(l->c, p, "an operation was agreed on that this host did not tell of")) return;
    for (int i = 0; i < t->children; i++)
        if (p->parts >> i & 1) say_go(l, i, number, order);
    if (p->parts >> OWN & 1) {
        if (t->agreed_count == t->agreed_room) {
            struct agreed *more = realloc(t->agreed, (2 * t->agreed_room + 64) * sizeof *more);
            if (!more) abort();
            t->agreed = more;
            t->agreed_room = 2 * t->agreed_room + 64;
        }
        t->agreed[t->agreed_count++] = (struct agreed){number, order};
    }
    forget_pending(t, p);
}

/* On the first host. Without p: an operation that was begun on some hosts and is complete on none. */
static void decide(struct link *l, struct pending *p, const uint64_t *key, uint32_t code, const char *text, size_t text_bytes) {
    struct tree *t = l->tree;
    struct decision d = {.code = code, .text = (uint32_t)text_bytes};
    struct pack bodies = {0}, all = {0};
    memcpy(d.is.key, key, sizeof d.is.key);
    if (p) {
        d.is = p->is;
        d.absent = p->absent;
        d.said_bytes = (uint32_t)p->saids.bytes;
        uint32_t same = TELL_AGAIN | TELL_BODY | TELL_LINES | TELL_ACTIVE;
        if (!code && p->is.flags & TELL_UNNAMED && p->is.flags & TELL_LINES) d.is.flags |= TELL_NOTE;
        if (!code && !p->absent && (p->is.flags & same) == TELL_AGAIN) d.is.number = number_for(l, &p->is, p->set);
    }
    struct view v = {p ? p->bodies.data : NULL, p ? p->bodies.data + p->bodies.bytes : NULL};
    for (uint32_t i = 0; p && i < p->brought && p->is.flags & TELL_BODY && !code; i++) {
        const struct brought *b = next(&v, sizeof *b);
        const char *data = b ? next(&v, b->bytes) : NULL;
        if (!sound(l->c, data, invalid)) break;
        struct brought short_ = *b;
        if (!(p->is.flags & TELL_INLINED)) short_.bytes = b->meta_count * (uint32_t)sizeof(int64_t); /* the numbers come first */
        add(&bodies, &short_, sizeof short_);
        add(&bodies, data, short_.bytes);
        d.brought++;
    }
    d.brought_bytes = (uint32_t)bodies.bytes;
    add(&all, &d, sizeof d);
    if (p) add(&all, p->absentees.data, p->absentees.bytes);
    add(&all, bodies.data, bodies.bytes);
    if (p) add(&all, p->saids.data, p->saids.bytes);
    add(&all, text, text_bytes);
    t->order++;
    t->made[t->order % ENDS] = (struct end){{key[0], key[1]}, t->order};
    pass_on(l, t->order, all.data, all.bytes);
    free(bodies.data);
    free(all.data);
}

/* Before ranks are told that they disagree: what did they say? */
static void ask(struct link *l, struct pending *p, uint32_t code) {
    p->asked = true;
    p->code = code;
    uint64_t key[2] = {p->is.key[0], p->is.key[1]};
    uint32_t parts = p->parts;
    for (int i = 0; i < l->tree->children; i++)
        if (parts >> i & 1) say(l, i, FRAME_ASK, 0, key, sizeof key);
    if (parts >> OWN & 1) answer(l, key); /* last: it may be what is still missing */
}

static void pass_on_question(struct link *l, const uint64_t *key) {
    struct pending *p = find_pending(l->tree, key);
    if (p) ask(l, p, 0);
}

/* ---- hearing ---- */

static bool joined_part(struct link *l, struct known_set *s, int part) {
    struct tree *t = l->tree;
    for (uint32_t m = 0; m < s->count; m++)
        if (t->part_of[host_of_rank(l->c, s->members[m])] == part && !has(t->joined, s->members[m])) return false;
    return true;
}

/* If no part is missing any more: tell, or decide. */
static bool consider(struct link *l, struct pending *p) {
    struct tree *t = l->tree;
    uint32_t missing = p->set->wanted & ~p->parts;
    if (p->asked || p->sent || !p->parts || (missing && !t->joined_count)) return false;
    for (uint32_t left = missing; left; left &= left - 1)
        if (!joined_part(l, p->set, __builtin_ctz(left))) return false;
    for (uint32_t m = 0; missing && m < p->set->count; m++) {
        uint16_t rank = p->set->members[m];
        uint32_t part = t->part_of[host_of_rank(l->c, rank)];
        if (part == 255 || !(missing >> part & 1)) continue;
        add(&p->absentees, &(uint64_t){rank}, sizeof(uint64_t));
        p->absent++;
        if (has(t->active, rank)) p->is.flags |= TELL_ACTIVE;
        p->plain = false;
    }
    if (t->above >= 0) {
        p->sent = true;
        if (p->plain) {
            say_ready(l, p->is.number);
            return true;
        }
        if (!p->set->told_up) {
            struct pack set = {0};
            uint64_t count = p->set->count;
            add(&set, &p->set->key, 8);
            add(&set, &count, 8);
            add(&set, p->set->members, count * sizeof *p->set->members);
            say(l, OWN, FRAME_SET, 0, set.data, set.bytes);
            free(set.data);
            p->set->told_up = true;
        }
        struct told told = {p->is, p->hosts, p->absent, p->brought, 0};
        struct pack all = {0};
        told.is.number = 0;
        add(&all, &told, sizeof told);
        add(&all, p->absentees.data, p->absentees.bytes);
        add(&all, p->bodies.data, p->bodies.bytes);
        say(l, OWN, FRAME_TELL, l->seen, all.data, all.bytes);
        free(all.data);
        return true;
    }
    if (p->plain) {
        t->order++;
        t->made[t->order % ENDS] = (struct end){{p->is.key[0], p->is.key[1]}, t->order};
        pass_on_go(l, p->is.number, t->order);
        return true;
    }
    p->is.number = 0;
    bool goes_on = p->is.kind == BARRIER || (p->is.kind == ALLREDUCE && p->is.op != ADASUM);
    if (p->is.flags & TELL_DISAGREE) ask(l, p, MISMATCH);
    else if (p->absent && !goes_on) ask(l, p, JOINED);
    else if (p->is.flags & TELL_UNNAMED && p->is.flags & TELL_LINES) ask(l, p, 0);
    else decide(l, p, p->is.key, 0, "", 0);
    return true;
}

static void end_join(struct link *l) {
    struct tree *t = l->tree;
    if (t->above >= 0 || t->joined_count < l->c->size || t->quiet < l->hosts || t->open) return;
    uint64_t last = (uint64_t)t->last_joined;
    struct frame f = {.bytes = 8, .type = FRAME_JOINED, .order = ++t->order};
    hear(l, 0, &f, (const char *)&last);
}

/* Whether an operation, or the group it is a part of, was given up after what a host had heard when it spoke of it. */
static bool ended_since(struct tree *t, const uint64_t *key, uint64_t seen) {
    if (!t->end_count || seen >= t->ends[(t->end_count - 1) % ENDS].order) return false;
    for (uint64_t n = t->end_count > ENDS ? t->end_count - ENDS : 0; n < t->end_count; n++) {
        struct end *e = &t->ends[n % ENDS];
        bool it = e->key[0] == key[0] && e->key[1] == key[1];
        if ((it || key[1] == e->key[0]) && seen < e->order) return true;
    }
    return false;
}

static bool somebody_gone(struct tree *t, struct known_set *s) {
    for (uint32_t m = 0; t->gone_count && m < s->count; m++)
        if (has(t->gone, s->members[m])) return true;
    return false;
}

/* What one part tells is added to what others have; NULL if that is over already, which it will hear. */
static struct pending *add_part(struct link *l, int part, const struct summary *is, struct known_set *s, uint32_t hosts, uint64_t seen,
                                bool plain) {
    struct tree *t = l->tree;
    if (ended_since(t, is->key, seen) || somebody_gone(t, s)) return NULL;
    struct pending *p = find_pending(t, is->key);
    if (!p) {
        p = t->unused;
        if (p) t->unused = p->next;
        else if (!(p = calloc(1, sizeof *p))) abort();
        struct pack absentees = p->absentees, bodies = p->bodies, saids = p->saids;
        absentees.bytes = bodies.bytes = saids.bytes = 0;
        *p = (struct pending){.next = t->buckets[is->key[0] % BUCKETS], .is = *is, .set = s, .plain = plain, .absentees = absentees,
                              .bodies = bodies, .saids = saids};
        t->buckets[is->key[0] % BUCKETS] = p;
        t->open++;
    }
    if (!sound(l->c, !(p->parts >> part & 1) && !p->sent && !p->asked && p->set == s, "a host told of an operation twice")) return NULL;
    if (p->is.fingerprint != is->fingerprint) p->is.flags |= TELL_DISAGREE;
    if (p->is.line != is->line) p->is.flags |= TELL_LINES;
    p->is.flags = (p->is.flags & is->flags & TELL_ALL) | ((p->is.flags | is->flags) & ~(uint32_t)TELL_ALL);
    p->plain = p->plain && plain && p->is.number == is->number;
    p->parts |= 1u << part;
    p->hosts += hosts;
    return p;
}

static void part_ready(struct link *l, int part, uint32_t number, uint64_t seen) {
    struct known *k = known_at(l, number);
    if (!sound(l->c, k, invalid)) return;
    struct pending *p = add_part(l, part, &k->is, k->set, k->set->hosts[part], seen, true);
    if (p) consider(l, p);
    if (l->tree->joined_count) end_join(l);
}

static void part_told(struct link *l, int part, struct known_set *s, const struct told *told, uint64_t seen, struct view v) {
    const uint64_t *absent = next(&v, told->absent * sizeof(uint64_t));
    if (!sound(l->c, absent && s, invalid)) return;
    struct pending *p = add_part(l, part, &told->is, s, told->hosts, seen, false);
    if (!p) return;
    add(&p->absentees, absent, told->absent * sizeof(uint64_t));
    add(&p->bodies, v.at, (size_t)(v.end - v.at));
    p->absent += told->absent;
    p->brought += told->brought;
    consider(l, p);
    end_join(l);
}

void tell_ready(struct link *l, uint32_t number, uint64_t seen) { part_ready(l, OWN, number, seen); }
void tell_arrival(struct link *l, struct known_set *s, const struct told *t, uint64_t seen, struct view rest) {
    part_told(l, OWN, s, t, seen, rest);
}

static void rank_joins(struct link *l, uint64_t value) {
    struct tree *t = l->tree;
    if (value == UINT64_MAX) {
        t->quiet++;
    } else {
        if (!sound(l->c, value >> 1 < (uint64_t)l->c->size, invalid)) return;
        int rank = (int)(value >> 1);
        if (has(t->joined, rank)) return;
        put(t->joined, rank);
        if (value & 1) put(t->active, rank);
        t->joined_count++;
        t->last_joined = rank;
        for (int b = 0; b < BUCKETS; b++) /* before the hosts above hear of it */
            for (struct pending *p = t->buckets[b], *after; p; p = after) {
                after = p->next;
                if (consider(l, p)) after = t->buckets[b]; /* the list may have changed */
            }
    }
    if (t->above >= 0) say(l, OWN, FRAME_JOIN, 0, &value, 8);
    end_join(l);
}

static void rank_leaves(struct link *l, uint64_t order, uint64_t rank) {
    struct tree *t = l->tree;
    if (!sound(l->c, rank < (uint64_t)l->c->size, invalid)) return;
    flush_part(l, OWN);
    put(t->gone, (int)rank);
    t->gone_count++;
    for (int b = 0; b < BUCKETS; b++)
        for (struct pending *p = t->buckets[b], *after; p; p = after) {
            after = p->next;
            if (has(p->set->bits, (int)rank)) forget_pending(t, p);
        }
    for (int i = 0; i < t->children; i++) say(l, i, FRAME_LEFT, order, &rank, 8);
    flush_agreed(l);
    left(l, (int)rank);
}

static bool is_above(int host, int of) {
    while (of > host) of = above(of);
    return of == host;
}

/* The leader of a host has gone for good, in good order: its ranks take part in nothing any more. Hosts that heard of the others
 * through it hear nothing any more either: to them all others are as good as gone, and they to all. Inside hosts all goes on. */
void host_left(struct link *l, int host) {
    struct tree *t = l->tree;
    flush(l);
    if (is_above(host, (int)l->host)) {
        t->cut = true;
        cut_off(l, host);
        return;
    }
    for (int r = 0; t->above < 0 && r < l->c->size; r++)
        if (is_above(host, (int)host_of_rank(l->c, r)) && !has(t->gone, r)) rank_leaves(l, ++t->order, (uint64_t)r);
}

static void everybody_joined(struct link *l, uint64_t order, uint64_t last) {
    struct tree *t = l->tree;
    t->joined_count = 0;
    t->quiet = 0;
    memset(t->joined, 0, sizeof t->joined);
    memset(t->active, 0, sizeof t->active);
    for (int i = 0; i < t->children; i++) say(l, i, FRAME_JOINED, order, &last, 8);
    flush_agreed(l);
    all_joined(l, (int)last);
}

/* On the first host. */
static void host_said(struct link *l, struct view v) {
    const uint64_t *key = next(&v, 16);
    struct pending *p = key ? find_pending(l->tree, key) : NULL;
    if (!p || !p->asked) return;
    add(&p->saids, v.at, (size_t)(v.end - v.at));
    if (++p->answers < p->hosts) return;
    decide(l, p, p->is.key, p->code, "", 0);
    end_join(l);
}

static void host_fails(struct link *l, struct view v) {
    const uint64_t *key = next(&v, 16), *last = next(&v, 8), *code = next(&v, 8), *length = next(&v, 8);
    const char *text = length ? next(&v, *length) : NULL;
    if (!sound(l->c, text, invalid)) return;
    struct pending *p = find_pending(l->tree, key);
    if (p && p->asked) return; /* it ends anyway */
    for (int n = 0; n < ENDS; n++) { /* so it does, or it has: that was decided when this was on its way */
        struct end *made = &l->tree->made[n];
        if (made->order > *last && ((made->key[0] == key[0] && made->key[1] == key[1]) || made->key[0] == key[1])) return;
    }
    decide(l, NULL, key, (uint32_t)*code, text, *length);
    end_join(l);
}

void hear(struct link *l, int host, const struct frame *f, const char *body) {
    struct tree *t = l->tree;
    struct view v = {body, body + f->bytes};
    uint64_t number = 0;
    if (f->bytes >= 8) memcpy(&number, body, 8);
    int part = t->part_of[host];
    bool from_below = part != 255, first = t->above < 0;
    bool up = f->type == FRAME_SET || f->type == FRAME_TELL || f->type == FRAME_READY || f->type == FRAME_SAID || f->type == FRAME_JOIN ||
              f->type == FRAME_LEAVE || f->type == FRAME_FAIL;
    bool fine = f->type == FRAME_GOODBYE || f->type == FRAME_BLAME || (up ? from_below : host == (first ? (int)l->host : t->above));
    if (!sound(l->c, fine, "a host spoke out of turn")) return;
    switch (f->type) {
    case FRAME_SET: {
        const uint64_t *key = next(&v, 8), *count = next(&v, 8);
        const uint16_t *members = count && *count <= (uint64_t)l->c->size ? next(&v, *count * sizeof *members) : NULL;
        bool known = members != NULL;
        for (uint64_t m = 0; known && m < *count; m++) known = members[m] < l->c->size;
        if (sound(l->c, known, invalid)) learn_set(l, *key, members, (uint32_t)*count);
        break;
    }
    case FRAME_TELL: {
        const struct told *told = next(&v, sizeof *told);
        if (sound(l->c, told, invalid)) part_told(l, part, set_of(t, told->is.set), told, f->order, v);
        break;
    }
    case FRAME_READY:
        for (const uint64_t *n; (n = next(&v, 8));) part_ready(l, part, (uint32_t)*n, f->order);
        break;
    case FRAME_SAID:
        if (first) host_said(l, v);
        else say(l, OWN, FRAME_SAID, 0, body, f->bytes);
        break;
    case FRAME_JOIN: rank_joins(l, number); break;
    case FRAME_LEAVE:
        if (first || t->cut) rank_leaves(l, ++t->order, number);
        else say(l, OWN, FRAME_LEAVE, 0, body, f->bytes);
        break;
    case FRAME_FAIL:
        if (first) host_fails(l, v);
        else say(l, OWN, FRAME_FAIL, 0, body, f->bytes);
        break;
    case FRAME_DECIDE: pass_on(l, f->order, body, f->bytes); break;
    case FRAME_GO:
        for (const struct go *go; (go = next(&v, sizeof *go));) pass_on_go(l, go->number, f->order + go->after);
        break;
    case FRAME_ASK:
        if (sound(l->c, f->bytes == 16, invalid)) pass_on_question(l, (const uint64_t *)body);
        break;
    case FRAME_JOINED: everybody_joined(l, f->order, number); break;
    case FRAME_LEFT: rank_leaves(l, f->order, number); break;
    case FRAME_BLAME: blame_came(l, f->order, body, f->bytes); break;
    case FRAME_GOODBYE: l->lines[host].goodbye = true, ring(l->c); break;
    default: sound(l->c, false, "a frame of a kind that there is not");
    }
}
