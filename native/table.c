/* Agreement: the table of known operations, and the schedule.
 *
 * A rank arrives at an operation by name. The arrival that completes the members closes the round: it compares the
 * fingerprints and either fails the round, declares it over (every payload rode along), or appends it to the schedule.
 * There is no coordinator and no message; what a repeated operation costs is this function under one lock.
 *
 * Rounds: a rank arrives at round r + 1 of an operation only when it is through with round r. So when round r + 2 opens,
 * everybody is through with r, and two copies (by parity) of what a round leaves behind are enough. A round that fails may
 * do so without everybody: it leaves nothing behind but a word for each who was in it, and the next has the same parity.
 */
#include "core.h"
#include <sched.h>
#include <stdio.h>
#include <string.h>

static uint32_t *index_at(struct core *c, const uint64_t *key) {
    return (uint32_t *)(c->base + c->header->at_index) + key[0] % c->header->entry_count;
}

/* Everybody is through with the rounds that are closed. */
static bool through(struct entry *e) { return atomic_load(&e->finished) == e->finished_wanted; }
static bool idle(struct entry *e) { return e->arrived == 0 && through(e); }

/* ---- what rides along ---- */

static bool fit_rider(struct core *c, struct block *b, uint64_t bytes) {
    uint32_t before = b->room;
    bool fits = fit(c, b, bytes);
    if (b->room != before) atomic_fetch_add_explicit(&c->header->riding, (uint64_t)b->room - before, memory_order_relaxed);
    return fits;
}

static void drop_rider(struct core *c, struct block *b) {
    if (b->room <= RIDES_ALWAYS) return;
    atomic_fetch_sub_explicit(&c->header->riding, b->room, memory_order_relaxed);
    give_back(c, b);
}

/* There is much of it: what idle operations keep for the next time is given up, some at a time. */
static void drop_riders(struct core *c) {
    struct header *h = c->header;
    for (int looked = 0; looked < 8 && h->used_entries; looked++) {
        struct entry *e = entry_at(c, (uint32_t)(h->riding_hand++ % h->used_entries));
        if (!idle(e)) continue;
        for (uint32_t m = 0; m < 2 * h->here; m++) drop_rider(c, &payloads_of(c, e, 0)[m]);
        drop_rider(c, &e->others[0]);
        drop_rider(c, &e->others[1]);
    }
}

bool keep_others(struct core *c, struct entry *e, uint32_t parity, uint64_t bytes) { return fit_rider(c, &e->others[parity], bytes); }

static bool many_riders(struct core *c) { return atomic_load_explicit(&c->header->riding, memory_order_relaxed) >= RIDING_BYTES; }

/* Whether what a ticket brings goes along with its arrival. On one host each rank may decide that for itself: if not all that
 * is brought to a round rides along, it goes as what is large does. So it need not where there is much on its way already. */
bool rides(struct core *c, const struct plan *p, struct ticket *t) {
    uint64_t bytes = t->meta_count * sizeof *t->meta;
    bool sizes = p->kind == ALLGATHER || p->kind == ALLTOALL;
    if (sizes)
        for (uint32_t m = 0; m < t->meta_count; m++) bytes += ((uint64_t)t->meta[m] + 7) & ~7ull;
    else
        bytes += p->packed_bytes;
    t->payload_bytes = bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
    if (bytes > c->header->inline_bytes || p->op == ADASUM) return false;
    /* with sizes always: if there is no data nobody meets anybody, and sizes would be read when they are the next round's */
    return bytes <= RIDES_ALWAYS || sizes || t->abroad || !many_riders(c);
}

/* ---- places ---- */

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
    e->stamp = ++c->header->next_stamp;
    e->key[0] = e->key[1] = 0; /* nobody's, if there is no memory for it */
    if (!fit(c, &e->task[0], sizeof(struct task)) || !fit(c, &e->task[1], sizeof(struct task))) return -1;
    e->key[0] = p->key[0];
    e->key[1] = p->key[1];
    e->set = p->set;
    e->arrived = e->told = 0;
    task_of(c, e, 0)->fingerprint = task_of(c, e, 1)->fingerprint = 0;
    e->described = e->number = e->agreed = 0;
    e->next_in_bucket = *index_at(c, p->key);
    *index_at(c, p->key) = (uint32_t)i + 1;
    for (uint32_t m = 0; m < c->header->here; m++) {
        struct arrival *a = (struct arrival *)(e + 1) + m;
        a->plan = a->round = 0;
        atomic_store(&a->taken, 0);
    }
    /* rounds go on counting: a late reader of the operation that was here sees that its round is over */
    return i;
}

/* False if there is no memory for it. */
static bool describe(struct core *c, struct entry *e, uint64_t round, struct plan *p) {
    if (!fit(c, &e->task[round & 1], sizeof(struct task) + p->segment_count * sizeof *p->segments)) return false;
    struct task *t = task_of(c, e, round);
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
    return true;
}

/* A description in the heap. Ranks mostly say the same: then they have one. */
struct description { uint32_t users, length; struct block block; char words[]; };

static bool describe_arrival(struct core *c, struct entry *e, struct arrival *a, struct plan *p) {
    struct description *known = heap_at(c, e->described), *old = heap_at(c, a->description);
    struct block b = {0, 0};
    if (e->described && known->length == p->description_length && !memcmp(known->words, p->description, known->length)) {
        if (a->description == e->described) return true;
        b.at = e->described;
        known->users++;
    } else {
        if (!fit(c, &b, sizeof *known + p->description_length)) return false;
        known = heap_at(c, b.at);
        *known = (struct description){.users = 1, .length = p->description_length, .block = b};
        memcpy(known->words, p->description, p->description_length);
    }
    if (a->description && !--old->users) {
        struct block gone = old->block;
        give_back(c, &gone);
    }
    a->description = e->described = b.at;
    a->description_length = p->description_length;
    return true;
}

const char *description_of(struct core *c, struct arrival *a) { return ((struct description *)heap_at(c, a->description))->words; }

/* What ranks of this host said about the open round, in groups that said the same; returns how many bytes, and writes them if
 * there is room: see struct said. */
uint64_t what_was_said(struct core *c, struct entry *e, char *to, uint64_t room) {
    struct arrival *all = (struct arrival *)(e + 1);
    uint64_t wanted = 0;
    for (uint32_t m = 0; m < c->header->here; m++) {
        uint16_t ranks[MAX_HERE];
        struct said group = {0, all[m].description_length};
        bool first = all[m].round == e->round + 1;
        for (uint32_t k = 0; first && k < m; k++) first = all[k].round != e->round + 1 || all[k].description != all[m].description;
        if (!first) continue;
        for (int r = 0, left = (int)c->header->here; left; r++) {
            if (!is_here(c, r)) continue;
            left--;
            if (arrived(c, e, r) && arrival_at(c, e, r)->description == all[m].description) ranks[group.ranks++] = (uint16_t)r;
        }
        uint64_t names = (group.ranks * sizeof *ranks + 7) & ~7ull, words = (group.bytes + 7ull) & ~7ull;
        if (wanted + sizeof group + names + words <= room) {
            memcpy(to + wanted, &group, sizeof group);
            memcpy(to + wanted + sizeof group, ranks, group.ranks * sizeof *ranks);
            memcpy(to + wanted + sizeof group + names, description_of(c, &all[m]), group.bytes);
        }
        wanted += sizeof group + names + words;
    }
    return wanted;
}

/* Keep what was said, so that every rank can print it; `said` is what was heard from all hosts, or NULL for what was said
 * here. If there is no memory for it, nobody said anything. */
uint64_t record(struct core *c, struct entry *e, enum failure_code code, const char *text, const char *said, uint64_t bytes) {
    uint64_t serial = c->header->failure_count++;
    struct failure *f = failure_at(c, serial);
    f->serial = serial;
    f->code = code;
    strncpy(f->text, text, TEXT_BYTES - 1);
    f->text[TEXT_BYTES - 1] = 0;
    if (!said) bytes = what_was_said(c, e, NULL, 0);
    f->said_bytes = fit(c, &f->said, bytes) ? (uint32_t)bytes : 0;
    if (f->said_bytes && said) memcpy(heap_at(c, f->said.at), said, bytes);
    else if (f->said_bytes) what_was_said(c, e, heap_at(c, f->said.at), bytes);
    return serial + 1;
}

/* What the absent said about averages; of several, any. */
static bool average_active(struct core *c, struct entry *e) {
    struct set *s = set_at(c, e->set);
    for (uint32_t m = 0; c->header->joined_count && m < s->count; m++)
        if (!arrived(c, e, members_of(c, s)[m]) && has(c->header->joined_active, place_of_rank(c, members_of(c, s)[m])->here)) return true;
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
        int place = place_of_rank(c, members[m])->here;
        uint64_t tail = atomic_load(&rank->tail);
        *schedule_at(c, place, tail) = (struct scheduled){round, i, 0, taking};
        atomic_store(&rank->tail, tail + 1);
        if (atomic_load(&rank->executor_wanted) && atomic_load(&rank->executor_asleep)) put(c->executors_wanted, place);
    }
}

/* It leaves the others where they are: some may not be through with the round before. */
static void close_failed(struct core *c, uint32_t i, uint64_t failure) {
    struct entry *e = entry_at(c, i);
    struct set *s = set_at(c, e->set);
    uint64_t round = atomic_load(&e->round);
    for (uint32_t m = 0; m < s->here_count; m++) {
        struct arrival *a = arrival_at(c, e, here_of(c, s)[m]);
        if (!arrived(c, e, here_of(c, s)[m])) continue;
        atomic_store_explicit(&a->failed, round + 1, memory_order_relaxed); /* e->round says that it is there */
        a->failure = failure;
        e->finished_wanted++;
    }
    e->arrived = e->told = 0;
    atomic_store(&e->round, round + 2);
    atomic_fetch_add(&c->header->progress, 1);
    c->ring_wanted = true;
    fail_parts(c, e, failure);
}

/* The other hosts' word on a round that this host has told them of, or the end of one that it has not. The contributors
 * of all hosts are in the entry already, and what they brought if it rode along. */
void close_abroad(struct core *c, uint32_t i, uint64_t failure, uint64_t note, bool active, bool inlined) {
    struct entry *e = entry_at(c, i);
    struct set *s = set_at(c, e->set);
    uint64_t round = atomic_load(&e->round);
    uint32_t p = round & 1, present = 0;
    uint16_t here[MAX_HERE];
    if (failure) {
        close_failed(c, i, failure);
        return;
    }
    for (uint32_t m = 0; m < s->here_count; m++)
        if (arrived(c, e, here_of(c, s)[m])) here[present++] = here_of(c, s)[m];
    e->note[p] = note;
    e->average_active[p] = active;
    e->inlined[p] = inlined;
    atomic_store(&e->shares[p], 0);
    atomic_store(&e->arrived_data[p], 0);
    atomic_store(&e->arrived_slices[p], 0);
    atomic_store(&e->takers[p], 0);
    e->result_at[p] = NOWHERE;
    e->taking[p] = present;
    forget_blame(c, e, round);
    e->finished_wanted += present;
    e->arrived = e->told = 0;
    atomic_store(&e->of[p], round + 1); /* the rest is there */
    atomic_store(&e->round, round + 1);
    e->batch_formed = e->batch_next = 0;
    bool direct = present == 1 && arrival_at(c, e, here[0])->arena_at < 0; /* the leader's own, which nobody here adds to */
    if (!inlined && task_of(c, e, round)->reduces && !direct) schedule(c, i, round, here, present, 0);
    atomic_fetch_add(&c->header->progress, 1);
    c->ring_wanted = true;
}

/* What the other hosts had to bring is here: everybody takes it. Called under the lock. */
void schedule_taking(struct core *c, uint32_t i, uint64_t round) {
    struct entry *e = entry_at(c, i);
    struct set *s = set_at(c, e->set);
    uint16_t here[MAX_HERE];
    uint32_t n = 0;
    for (uint32_t m = 0; m < s->here_count; m++)
        if (has(contributors_of(c, e, round), here_of(c, s)[m])) here[n++] = here_of(c, s)[m];
    schedule(c, i, round, here, n, 1);
    c->ring_wanted = true;
}

static void close_round(struct core *c, uint32_t i, uint64_t failure) {
    struct header *h = c->header;
    struct entry *e = entry_at(c, i);
    struct set *s = set_at(c, e->set);
    if (failure || s->abroad) { /* abroad: an end that only this host knows of yet; the others are told by whoever makes it */
        close_failed(c, i, failure);
        return;
    }
    uint64_t round = atomic_load(&e->round);
    uint32_t p = round & 1, present = 0;
    bool agree = true, same_line = true, inlined = true, unnamed = false;
    struct arrival *first = NULL;
    uint64_t *present_bits = contributors_of(c, e, round);
    memset(present_bits, 0, c->header->bit_words * sizeof *present_bits);
    for (uint32_t m = 0; m < s->count; m++) {
        if (!arrived(c, e, members_of(c, s)[m])) continue;
        struct arrival *a = arrival_at(c, e, members_of(c, s)[m]);
        if (!first) first = a;
        agree &= a->fingerprint == first->fingerprint;
        same_line &= a->line == first->line;
        unnamed |= a->unnamed;
        inlined &= a->inlined;
        put(present_bits, members_of(c, s)[m]);
        present++;
    }
    if (!agree) failure = record(c, e, MISMATCH, "", NULL, 0);
    struct task *t = task_of(c, e, round);
    bool goes_on = t->kind == BARRIER || (t->kind == ALLREDUCE && t->op != ADASUM); /* also without those who joined */
    if (!failure && present < s->count && !goes_on) failure = record(c, e, JOINED, "", NULL, 0);
    if (failure) {
        close_failed(c, i, failure);
        return;
    }
    e->note[p] = unnamed && !same_line ? record(c, e, NOTE, "", NULL, 0) : 0;
    e->average_active[p] = average_active(c, e);
    e->inlined[p] = inlined;
    atomic_store(&e->shares[p], 0);
    forget_blame(c, e, round);
    e->finished_wanted += inlined ? present : s->count;
    e->arrived = 0;
    atomic_store(&e->of[p], round + 1); /* the rest is there */
    atomic_store(&e->round, round + 1);
    e->batch_formed = e->batch_next = 0;
    if (!inlined) schedule(c, i, round, members_of(c, s), s->count, 0);
    atomic_fetch_add(&h->progress, 1);
    c->ring_wanted = true;
}

/* A rank that has joined is not waited for, once it is through with what it had submitted before: two rounds without it
 * would overwrite what the last one with it left behind. */
static bool absent(struct core *c, struct entry *e, int r) {
    struct arrival *a = arrival_at(c, e, r);
    return has(c->header->joined, place_of_rank(c, r)->here) && atomic_load(&a->taken) >= a->round;
}

/* Everybody of this host who is needed has arrived or has joined. */
static bool complete(struct core *c, struct entry *e) {
    struct set *s = set_at(c, e->set);
    if (e->arrived == s->here_count) return true;
    if (!e->arrived || !c->header->joined_count) return false;
    for (uint32_t m = 0; m < s->here_count; m++)
        if (!arrived(c, e, here_of(c, s)[m]) && !absent(c, e, here_of(c, s)[m])) return false;
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
        if (e->arrived && !e->told && set_at(c, e->set)->abroad && arrived(c, e, rank)) return true;
    }
    return false;
}

void fail_round(struct core *c, struct entry *e, enum failure_code code, const char *text) {
    close_round(c, number_of(c, e), record(c, e, code, text, NULL, 0));
}

/* The same on all hosts: each ends its own part when the first says so. */
void fail_everywhere(struct core *c, struct entry *e, enum failure_code code, const char *text) {
    if (!set_at(c, e->set)->abroad) {
        fail_round(c, e, code, text);
        return;
    }
    post(c, POST_FAILED, number_of(c, e), record(c, e, code, text, NULL, 0));
}

/* This rank goes, and carries nothing out any more: whoever waits for something that it is a member of must not wait any
 * longer, even if it has arrived there. Called under the lock. */
void leave_table(struct core *c, int gone) {
    for (uint32_t i = 0; i < c->header->used_entries; i++) {
        struct entry *e = entry_at(c, i);
        if (e->arrived && position_of(c, set_at(c, e->set))[gone] >= 0) {
            char rank[8];
            snprintf(rank, sizeof rank, "%d", gone);
            fail_round(c, e, GONE, rank);
        }
    }
}

/* The ranks of another host are gone, and with them the way to all others: nothing goes on that needs another host. */
void leave_others(struct core *c, int gone) {
    char rank[8];
    snprintf(rank, sizeof rank, "%d", gone);
    atomic_store(&c->header->cut, 1);
    for (uint32_t i = 0; i < c->header->used_entries; i++) {
        struct entry *e = entry_at(c, i);
        if (e->arrived && set_at(c, e->set)->abroad) fail_round(c, e, GONE, rank);
    }
}

int contributors(struct core *c, struct entry *e, uint64_t round, int *ranks) {
    int n = 0;
    struct set *s = set_at(c, e->set);
    for (uint32_t m = 0; m < s->count; m++)
        if (has(contributors_of(c, e, round), members_of(c, s)[m])) ranks[n++] = members_of(c, s)[m];
    return n;
}

int arrive(struct core *c, struct ticket *t) {
    struct plan *p = t->plan;
    struct set *s = set_at(c, p->set);
    int status = lock(c);
    if (status) return status;
    status = over(c);
    for (uint32_t m = 0; status == OK && m < s->count; m++)
        if (atomic_load(&peer_at(c, members_of(c, s)[m])->left)) status = LEFT;
    if (status == OK && s->abroad && (leader_gone(c) || atomic_load(&c->header->cut))) status = LEFT;
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
    struct arrival *a = (struct arrival *)(e + 1) + c->here;
    struct ticket *before = atomic_load(&c->in_flight[i]);
    while (before && round_over(c, before)) { /* over, but nobody asked for it yet, or another thread is just taking it */
        harvest(c, before);
        before = atomic_load(&c->in_flight[i]);
        if (before) sched_yield();
    }
    if (before || arrived(c, e, c->rank)) {
        unlock(c);
        return DUPLICATE;
    }
    p->entry = t->entry = (uint32_t)i;
    p->stamp = t->stamp = e->stamp;
    t->round = atomic_load(&e->round);
    if (t->payload_bytes > RIDES_ALWAYS && t->payload_bytes <= c->header->inline_bytes && many_riders(c)) drop_riders(c);
    struct block *mine = &payloads_of(c, e, t->round)[c->here], *before_that = &payloads_of(c, e, t->round + 1)[c->here];
    if (t->rides && mine->room < t->payload_bytes && before_that->room >= t->payload_bytes && through(e)) { /* one will do */
        struct block swapped = *mine;
        *mine = *before_that, *before_that = swapped;
    }
    bool room = (!t->rides || fit_rider(c, mine, t->payload_bytes)) &&
                fit(c, &a->meta, t->meta_count * sizeof *t->meta) &&
                (task_of(c, e, t->round)->fingerprint == p->fingerprint || describe(c, e, t->round, p)) &&
                (a->plan == p->serial || describe_arrival(c, e, a, p));
    if (!room) {
        unlock(c);
        return FULL;
    }
    a->plan = p->serial;
    a->fingerprint = p->fingerprint;
    a->line = p->line;
    a->unnamed = p->unnamed;
    a->meta_count = t->meta_count; /* no more than MAX_META: see hora_submit */
    if (t->meta_count) memcpy(heap_at(c, a->meta.at), t->meta, t->meta_count * sizeof *t->meta);
    a->inlined = t->rides;
    a->payload_bytes = t->payload_bytes;
    a->arena_at = t->staged ? arena_offset(c, t->staged, 1) : -1;
    atomic_store(&a->copied, t->copies ? 0 : ALL_COPIED);
    atomic_store(&a->summed, 0);
    if (a->inlined) {
        char *to = heap_at(c, mine->at);
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
    struct task *t = task_of(c, e, a->round);
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
    struct task *t = task_of(c, a, x->round), *u = task_of(c, b, y->round);
    return a->set == b->set && t->op == u->op && t->prescale == u->prescale && t->postscale == u->postscale &&
           t->segments[0].dtype == u->segments[0].dtype && uniform(t) && uniform(u) &&
           a->average_active[x->round & 1] == b->average_active[y->round & 1] &&
           !memcmp(contributors_of(c, a, x->round), contributors_of(c, b, y->round), c->header->bit_words * sizeof(uint64_t));
}

/* The next operations to carry out as one, in *out; 0 if there is nothing to do, or nothing that is done in place if
 * only that is wanted. The first member to come here decides for all: it looks ahead over its schedule and pulls what fuses to the front. That keeps one global order, because all
 * members carry the whole batch out where its first operation stands. Called under the lock. */
uint32_t form_batch(struct core *c, struct scheduled *out, uint32_t room, bool only_in_place) {
    uint64_t tail = atomic_load(&self(c)->tail);
    while (c->next < tail && schedule_at(c, c->here, c->next)->done) c->next++;
    if (c->next == tail) return 0;
    if (!sound(c, tail - c->next <= c->header->entry_count, "the schedule ran over")) return 0;
    struct scheduled *head = schedule_at(c, c->here, c->next);
    struct entry *first = entry_at(c, head->entry);
    bool waits = set_at(c, first->set)->abroad ? !head->taking && copies_here(c, first, head->round) : !reduced_in_place(c, first, head->round);
    if (only_in_place && waits) return 0;
    if (!first->batch_formed) {
        first->batch_formed = 1;
        uint64_t bytes = task_of(c, first, head->round)->bytes;
        struct entry *last = first;
        uint32_t count = 1;
        bool open = fusible(c, head);
        for (uint64_t at = c->next + 1; open && at < tail && count < room; at++) {
            struct scheduled *other = schedule_at(c, c->here, at);
            uint64_t more = task_of(c, entry_at(c, other->entry), other->round)->bytes;
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
        while (at < tail && (schedule_at(c, c->here, at)->entry != i - 1 || schedule_at(c, c->here, at)->done)) at++;
        if (!sound(c, at < tail && count < room, "an operation of a batch is not on this rank's schedule")) return 0;
        schedule_at(c, c->here, at)->done = 1;
        out[count++] = *schedule_at(c, c->here, at);
    }
    return count;
}
