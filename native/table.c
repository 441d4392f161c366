/* Agreement: the table of known operations, and the schedule.
 *
 * A rank arrives at an operation by name. The arrival that completes the members closes the round: it compares the
 * fingerprints and either fails the round, declares it over (every payload rode along), or appends it to the schedule.
 * There is no coordinator and no message; what a repeated operation costs is this function under one lock.
 *
 * Rounds: a rank arrives at round r + 1 of an operation only when it is through with round r. So when round r + 2 opens,
 * everybody is through with r, and two copies (by parity) of what a round leaves behind are enough.
 */
#include "core.h"
#include <sched.h>
#include <string.h>

static uint32_t *index_at(struct core *c, const uint64_t *key) {
    return (uint32_t *)(c->base + c->header->at_index) + key[0] % c->header->entry_count;
}

static bool idle(struct entry *e) { return e->arrived == 0 && atomic_load(&e->finished) == e->finished_wanted; }

static void forget(struct core *c, uint32_t i) {
    struct entry *e = entry_at(c, i);
    for (uint32_t *link = index_at(c, e->key); *link; link = &entry_at(c, *link - 1)->next_in_bucket) {
        if (*link != i + 1) continue;
        *link = e->next_in_bucket;
        return;
    }
}

/* A place for a new operation: a fresh one up to the cache's capacity, then one that is idle and was not used since the
 * hand last came by, then fresh ones again. -1 if all are busy. */
static int64_t find_room(struct core *c) {
    struct header *h = c->header;
    if (h->used_entries < c->cache_capacity) return (int64_t)h->used_entries++;
    for (uint64_t looked = 0; looked < 2 * h->used_entries; looked++) {
        uint32_t i = (uint32_t)(h->hand++ % h->used_entries);
        struct entry *e = entry_at(c, i);
        if (!idle(e)) continue;
        if (e->recent) { e->recent = 0; continue; }
        forget(c, i);
        return i;
    }
    return h->used_entries < h->entry_count ? (int64_t)h->used_entries++ : -1;
}

static int64_t find_or_make(struct core *c, struct plan *p) {
    for (uint32_t i = *index_at(c, p->key); i; i = entry_at(c, i - 1)->next_in_bucket) {
        struct entry *e = entry_at(c, i - 1);
        if (e->key[0] == p->key[0] && e->key[1] == p->key[1]) return i - 1;
    }
    int64_t i = find_room(c);
    if (i < 0) return -1;
    struct entry *e = entry_at(c, (uint32_t)i);
    e->key[0] = p->key[0];
    e->key[1] = p->key[1];
    e->stamp = ++c->header->next_stamp;
    e->set = p->set;
    e->arrived = e->told = 0;
    e->task[0].fingerprint = e->task[1].fingerprint = 0;
    e->next_in_bucket = *index_at(c, p->key);
    *index_at(c, p->key) = (uint32_t)i + 1;
    for (int r = 0; r < c->size; r++) {
        arrival_at(e, r)->plan = 0;
        arrival_at(e, r)->round = 0;
        atomic_store(&arrival_at(e, r)->taken, 0);
    }
    /* rounds go on counting: a late reader of the operation that was here sees that its round is over */
    return i;
}

static void describe(struct task *t, struct plan *p) {
    t->fingerprint = p->fingerprint;
    t->kind = p->kind;
    t->op = p->op;
    t->root = p->root;
    t->wire = p->wire;
    t->reduces = p->reduces;
    t->prescale = p->prescale;
    t->postscale = p->postscale;
    t->bytes = p->bytes;
    t->segment_count = p->segment_count;
    memcpy(t->segments, p->segments, p->segment_count * sizeof *p->segments);
}

/* Copy everything that was said, so that every rank can print it. */
uint64_t record(struct core *c, struct entry *e, enum failure_code code, const char *text) {
    uint64_t serial = c->header->failure_count++;
    struct failure *f = failure_at(c, serial);
    f->serial = serial;
    f->code = code;
    strncpy(f->text, text, TEXT_BYTES - 1);
    f->text[TEXT_BYTES - 1] = 0;
    for (int r = 0; r < c->size; r++) {
        struct arrival *a = arrival_at(e, r);
        f->length[r] = a->round == e->round + 1 ? a->description_length : 0;
        memcpy(f->description + (uint64_t)r * DESCRIPTION_BYTES, a->description, f->length[r]);
    }
    return serial + 1;
}

/* What the absent said about averages; of several, any. */
static bool average_active(struct core *c, struct entry *e) {
    struct set *s = set_at(c, e->set);
    for (uint32_t m = 0; c->header->joined_count && m < s->count; m++)
        if (!arrived(e, s->members[m]) && has(c->header->joined_active, s->members[m])) return true;
    return false;
}

static void close_round(struct core *c, uint32_t i, uint64_t failure);

/* A group with more parts than one fails as a whole, under one lock: whoever is told may submit it again, and must not meet
 * what others had brought to it. The second half of a part's key is the first half of its group's first part's. */
static void fail_parts(struct core *c, struct entry *first, uint64_t failure) {
    for (uint32_t i = 0; i < c->header->used_entries; i++) {
        struct entry *e = entry_at(c, i);
        if (e->arrived && e->key[1] == first->key[0]) close_round(c, i, failure);
    }
}

/* The members on this host put it on their schedule. */
static void schedule(struct core *c, uint32_t i, uint64_t round, const uint16_t *members, uint32_t count, uint32_t taking) {
    for (uint32_t m = 0; m < count; m++) { /* never overflows: each unexecuted item is another entry */
        struct rank *rank = rank_at(c, members[m]);
        uint64_t tail = atomic_load(&rank->tail);
        *schedule_at(c, members[m], tail) = (struct scheduled){round, i, 0, taking};
        atomic_store(&rank->tail, tail + 1);
        if (atomic_load(&rank->executor_wanted) && atomic_load(&rank->executor_asleep)) put(c->executors_wanted, members[m]);
    }
}

/* The other hosts' word on a round that this host has told them of, or the end of one that it has not. The contributors
 * of all hosts are in the entry already, and what they brought if it rode along. */
void close_abroad(struct core *c, uint32_t i, uint64_t failure, uint64_t note, bool active, bool inlined) {
    struct entry *e = entry_at(c, i);
    struct set *s = set_at(c, e->set);
    uint64_t round = atomic_load(&e->round);
    uint32_t p = round & 1, present = 0;
    uint16_t here[MAX_RANKS];
    for (uint32_t m = 0; m < s->here_count; m++)
        if (arrived(e, s->here[m])) here[present++] = s->here[m];
    e->failed[p] = failure;
    e->note[p] = note;
    e->average_active[p] = active;
    e->inlined[p] = inlined;
    atomic_store(&e->shares[p], 0);
    atomic_store(&e->arrived_data[p], 0);
    atomic_store(&e->takers[p], 0);
    e->result_at[p] = -1;
    e->taking[p] = present;
    forget_blame(e, round);
    e->finished_wanted += present;
    e->arrived = e->told = 0;
    atomic_store(&e->round, round + 1);
    e->batch_formed = e->batch_next = 0;
    bool direct = present == 1 && arrival_at(e, here[0])->arena_at < 0; /* the leader's own, which nobody here adds to */
    if (!failure && !inlined && task_of(e, round)->reduces && !direct) schedule(c, i, round, here, present, 0);
    atomic_fetch_add(&c->header->progress, 1);
    c->ring_wanted = true;
    if (failure) fail_parts(c, e, failure);
}

/* What the other hosts had to bring is here: everybody takes it. Called under the lock. */
void schedule_taking(struct core *c, uint32_t i, uint64_t round) {
    struct entry *e = entry_at(c, i);
    struct set *s = set_at(c, e->set);
    uint16_t here[MAX_RANKS];
    uint32_t n = 0;
    for (uint32_t m = 0; m < s->here_count; m++)
        if (has(e->contributors[round & 1], s->here[m])) here[n++] = s->here[m];
    schedule(c, i, round, here, n, 1);
    c->ring_wanted = true;
}

static void close_round(struct core *c, uint32_t i, uint64_t failure) {
    struct header *h = c->header;
    struct entry *e = entry_at(c, i);
    struct set *s = set_at(c, e->set);
    if (s->abroad) { /* an end that only this host knows of yet; the others are told by whoever makes it */
        close_abroad(c, i, failure, 0, false, false);
        return;
    }
    uint64_t round = atomic_load(&e->round);
    uint32_t p = round & 1, present = 0;
    bool agree = true, same_line = true, inlined = true, unnamed = false;
    struct arrival *first = NULL;
    memset(e->contributors[p], 0, sizeof e->contributors[p]);
    for (uint32_t m = 0; m < s->count; m++) {
        if (!arrived(e, s->members[m])) continue;
        struct arrival *a = arrival_at(e, s->members[m]);
        if (!first) first = a;
        agree &= a->fingerprint == first->fingerprint;
        same_line &= a->line == first->line;
        unnamed |= a->unnamed;
        inlined &= a->inlined;
        put(e->contributors[p], s->members[m]);
        present++;
    }
    if (!failure && !agree) failure = record(c, e, MISMATCH, "");
    struct task *t = task_of(e, round);
    bool goes_on = t->kind == BARRIER || (t->kind == ALLREDUCE && t->op != ADASUM); /* also without those who joined */
    if (!failure && present < s->count && !goes_on) failure = record(c, e, JOINED, "");
    e->failed[p] = failure;
    e->note[p] = !failure && unnamed && !same_line ? record(c, e, NOTE, "") : 0;
    e->average_active[p] = average_active(c, e);
    e->inlined[p] = inlined;
    atomic_store(&e->shares[p], 0);
    forget_blame(e, round);
    bool scheduled = !failure && !inlined;
    e->finished_wanted += scheduled ? s->count : present;
    e->arrived = 0;
    atomic_store(&e->round, round + 1);
    e->batch_formed = e->batch_next = 0;
    if (scheduled) schedule(c, i, round, s->members, s->count, 0);
    atomic_fetch_add(&h->progress, 1);
    c->ring_wanted = true;
    if (failure) fail_parts(c, e, failure);
}

/* A rank that has joined is not waited for, once it is through with what it had submitted before: two rounds without it
 * would overwrite what the last one with it left behind. */
static bool absent(struct core *c, struct entry *e, int r) {
    struct arrival *a = arrival_at(e, r);
    return has(c->header->joined, r) && atomic_load(&a->taken) >= a->round;
}

/* Everybody of this host who is needed has arrived or has joined. */
static bool complete(struct core *c, struct entry *e) {
    struct set *s = set_at(c, e->set);
    if (e->arrived == s->here_count) return true;
    if (!e->arrived || !c->header->joined_count) return false;
    for (uint32_t m = 0; m < s->here_count; m++)
        if (!arrived(e, s->here[m]) && !absent(c, e, s->here[m])) return false;
    return true;
}

/* Then the round is over, or, where other hosts take part, they are told. */
static void completed(struct core *c, uint32_t i) {
    struct entry *e = entry_at(c, i);
    if (!set_at(c, e->set)->abroad) {
        close_round(c, i, 0);
    } else if (!e->told) {
        e->told = 1;
        post(c, POST_ARRIVED, i, 0);
    }
}

/* Close what the last join made complete; whether something stays open. Called under the lock. */
bool close_ready(struct core *c) {
    bool open = false;
    for (uint32_t i = 0; i < c->header->used_entries; i++) {
        if (complete(c, entry_at(c, i))) completed(c, i);
        open |= entry_at(c, i)->arrived && !entry_at(c, i)->told;
    }
    return open;
}

/* Whether this rank has arrived at something that the other hosts have not been told of yet. */
bool has_untold(struct core *c, int rank) {
    for (uint32_t i = 0; i < c->header->used_entries; i++) {
        struct entry *e = entry_at(c, i);
        if (e->arrived && !e->told && set_at(c, e->set)->abroad && arrived(e, rank)) return true;
    }
    return false;
}

void fail_round(struct core *c, struct entry *e, enum failure_code code, const char *text) {
    uint32_t i = (uint32_t)(((char *)e - c->base - c->header->at_entries) / c->header->entry_bytes);
    close_round(c, i, record(c, e, code, text));
}

/* The same on all hosts: each ends its own part when the first says so. */
void fail_everywhere(struct core *c, struct entry *e, enum failure_code code, const char *text) {
    if (!set_at(c, e->set)->abroad) {
        fail_round(c, e, code, text);
        return;
    }
    uint32_t i = (uint32_t)(((char *)e - c->base - c->header->at_entries) / c->header->entry_bytes);
    post(c, POST_FAILED, i, record(c, e, code, text));
}

/* This rank goes, and carries nothing out any more: whoever waits for something that it is a member of must not wait any
 * longer, even if it has arrived there. Called under the lock. */
void leave_table(struct core *c, int gone) {
    for (uint32_t i = 0; i < c->header->used_entries; i++) {
        struct entry *e = entry_at(c, i);
        if (e->arrived && set_at(c, e->set)->position[gone] >= 0) {
            char rank[8] = {(char)('0' + gone / 100), (char)('0' + gone / 10 % 10), (char)('0' + gone % 10)};
            fail_round(c, e, GONE, rank);
        }
    }
}

int contributors(struct core *c, struct entry *e, uint64_t round, int *ranks) {
    int n = 0;
    struct set *s = set_at(c, e->set);
    for (uint32_t m = 0; m < s->count; m++)
        if (has(e->contributors[round & 1], s->members[m])) ranks[n++] = s->members[m];
    return n;
}

int arrive(struct core *c, struct ticket *t) {
    struct plan *p = t->plan;
    struct set *s = set_at(c, p->set);
    int status = lock(c);
    if (status) return status;
    status = over(c);
    for (uint32_t m = 0; status == OK && m < s->count; m++)
        if (atomic_load(&rank_at(c, s->members[m])->left)) status = LEFT;
    if (status == OK && s->abroad && leader_gone(c)) status = LEFT;
    int64_t i = p->entry;
    if (status == OK && (!p->stamp || entry_at(c, p->entry)->stamp != p->stamp)) {
        i = find_or_make(c, p);
        if (i < 0) status = FULL;
    }
    if (status != OK) {
        unlock(c);
        return status;
    }
    struct entry *e = entry_at(c, (uint32_t)i);
    struct arrival *a = arrival_at(e, c->rank);
    struct ticket *before = atomic_load(&c->in_flight[i]);
    while (before && round_over(c, before)) { /* over, but nobody asked for it yet, or another thread is just taking it */
        harvest(c, before);
        before = atomic_load(&c->in_flight[i]);
        if (before) sched_yield();
    }
    if (before || arrived(e, c->rank)) {
        unlock(c);
        return DUPLICATE;
    }
    p->entry = t->entry = (uint32_t)i;
    p->stamp = t->stamp = e->stamp;
    t->round = atomic_load(&e->round);
    if (task_of(e, t->round)->fingerprint != p->fingerprint) describe(task_of(e, t->round), p);
    if (a->plan != p->serial) {
        a->plan = p->serial;
        a->fingerprint = p->fingerprint;
        a->line = p->line;
        a->unnamed = p->unnamed;
        a->description_length = p->description_length;
        memcpy(a->description, p->description, p->description_length);
    }
    a->meta_count = t->meta_count; /* no more than MAX_META: see hora_submit */
    if (t->meta_count) memcpy(a->meta, t->meta, t->meta_count * sizeof *t->meta);
    uint64_t payload = t->meta_count * sizeof *t->meta;
    if (p->kind == ALLGATHER || p->kind == ALLTOALL)
        for (uint32_t m = 0; m < t->meta_count; m++) payload += ((uint64_t)t->meta[m] + 7) & ~7ull;
    else
        payload += p->packed_bytes;
    a->inlined = payload <= c->header->inline_bytes && p->op != ADASUM;
    a->payload_bytes = (uint32_t)payload;
    a->arena_at = t->staged ? arena_offset(c, t->staged, 1) : -1;
    if (a->inlined) {
        char *to = payload_at(c, e, t->round, c->rank);
        if (t->meta_count) memcpy(to, t->meta, t->meta_count * sizeof *t->meta);
        to += t->meta_count * sizeof *t->meta;
        if (p->kind == ALLGATHER || p->kind == ALLTOALL) { /* one stream of bytes a segment, or a member */
            const char *from = t->in ? t->in[0] : NULL;
            for (uint32_t m = 0; m < t->meta_count; m++) {
                if (p->kind == ALLGATHER) from = t->in[m];
                memcpy(to, from, (size_t)t->meta[m]);
                to += ((uint64_t)t->meta[m] + 7) & ~7ull;
                from += t->meta[m];
            }
        } else if (p->kind != BARRIER && (p->kind != BROADCAST || p->root == c->rank)) {
            for (uint32_t k = 0; k < p->segment_count; k++) {
                uint64_t bytes = p->segments[k].count * item_bytes[p->segments[k].dtype];
                memcpy(to, t->in[k], bytes);
                to += (bytes + 7) & ~7ull;
            }
        }
    } else if (!t->staged && !(s->abroad && s->here_count == 1 && c->rank == (int)c->header->leader) && p->kind == ALLREDUCE && p->segment_count == 1 && t->in[0] == t->out[0] && p->op != ADASUM) {
        a->arena_at = arena_offset(c, t->in[0], p->bytes);
    }
    uint64_t now = now_ns();
    atomic_store_explicit(&a->time_ns, now, memory_order_relaxed);
    if (!e->arrived) e->first_arrival_ns = now;
    a->round = t->round + 1;
    e->arrived++;
    e->recent = 1;
    atomic_store(&c->in_flight[i], t);
    atomic_fetch_add(&c->header->progress, 1);
    if (complete(c, e)) completed(c, (uint32_t)i);
    unlock(c);
    return OK;
}

/* ---- the schedule ---- */

static bool fusible(struct core *c, const struct scheduled *a) {
    struct entry *e = entry_at(c, a->entry);
    struct task *t = task_of(e, a->round);
    return t->kind == ALLREDUCE && t->op != ADASUM && t->bytes <= c->fusion_bytes && !set_at(c, e->set)->abroad &&
           !(c->split_groups && t->segment_count > 1) && !reduced_in_place(c, e, a->round);
}

static bool uniform(struct task *t) { /* one element type throughout */
    for (uint32_t k = 1; k < t->segment_count; k++)
        if (t->segments[k].dtype != t->segments[0].dtype) return false;
    return true;
}

static bool alike(struct core *c, const struct scheduled *x, const struct scheduled *y) {
    struct entry *a = entry_at(c, x->entry), *b = entry_at(c, y->entry);
    struct task *t = task_of(a, x->round), *u = task_of(b, y->round);
    return a->set == b->set && t->op == u->op && t->prescale == u->prescale && t->postscale == u->postscale &&
           t->segments[0].dtype == u->segments[0].dtype && uniform(t) && uniform(u) &&
           a->average_active[x->round & 1] == b->average_active[y->round & 1] &&
           !memcmp(a->contributors[x->round & 1], b->contributors[y->round & 1], sizeof a->contributors[0]);
}

/* The next operations to carry out as one, in *out; 0 if there is nothing to do, or nothing that is done in place if
 * only that is wanted. The first member to come here decides for all: it looks ahead over its schedule and pulls what fuses to the front. That keeps one global order, because all
 * members carry the whole batch out where its first operation stands. Called under the lock. */
uint32_t form_batch(struct core *c, struct scheduled *out, uint32_t room, bool only_in_place) {
    uint64_t tail = atomic_load(&rank_at(c, c->rank)->tail);
    while (c->next < tail && schedule_at(c, c->rank, c->next)->done) c->next++;
    if (c->next == tail) return 0;
    if (!sound(c, tail - c->next <= c->header->entry_count, "the schedule ran over")) return 0;
    struct scheduled *head = schedule_at(c, c->rank, c->next);
    struct entry *first = entry_at(c, head->entry);
    if (only_in_place && !set_at(c, first->set)->abroad && !reduced_in_place(c, first, head->round)) return 0;
    if (!first->batch_formed) {
        first->batch_formed = 1;
        uint64_t bytes = task_of(first, head->round)->bytes;
        struct entry *last = first;
        uint32_t count = 1;
        bool open = fusible(c, head);
        for (uint64_t at = c->next + 1; open && at < tail && count < room; at++) {
            struct scheduled *other = schedule_at(c, c->rank, at);
            uint64_t more = task_of(entry_at(c, other->entry), other->round)->bytes;
            if (other->done || bytes + more > c->fusion_bytes || !fusible(c, other) || !alike(c, head, other)) continue;
            last->batch_next = other->entry + 1;
            last = entry_at(c, other->entry);
            bytes += more;
            count++;
        }
    }
    uint32_t count = 0;
    uint64_t at = c->next;
    for (uint32_t i = head->entry + 1; i; i = entry_at(c, i - 1)->batch_next) {
        while (at < tail && (schedule_at(c, c->rank, at)->entry != i - 1 || schedule_at(c, c->rank, at)->done)) at++;
        if (!sound(c, at < tail && count < room, "an operation of a batch is not on this rank's schedule")) return 0;
        schedule_at(c, c->rank, at)->done = 1;
        out[count++] = *schedule_at(c, c->rank, at);
    }
    return count;
}
