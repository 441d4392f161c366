/* This process's side: plans, tickets, and the threads that drive.
 *
 * Who waits, helps: a thread blocked in hora_wait carries the schedule out itself. The executor thread does it only when
 * something is scheduled while nobody waits, so that communication overlaps with computation; a program that only makes
 * blocking calls never wakes it, and small operations, whose data rode along, never need it.
 */
#include "core.h"
#include "hora.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "link.h"

/* ---- plans ---- */

static bool is_plan(struct core *c, int64_t plan) { return plan >= 0 && plan < c->plan_count && c->plans[plan]; }

int64_t hora_plan(struct core *c, uint64_t key0, uint64_t key1, int set, int kind, int op, int root, double prescale,
                  double postscale, uint64_t fingerprint, uint64_t line, int unnamed, int wire, int segment_count,
                  const uint64_t *segments, const char *description, int description_length) {
    VISIT(c, -CLOSED);
    if (segment_count < 0 || segment_count > MAX_SEGMENTS || description_length > DESCRIPTION_BYTES) return -TOO_MANY;
    if (kind == ALLGATHER && segment_count > MAX_GATHERED) return -TOO_MANY;
    if (set < 0 || set >= MAX_SETS || !atomic_load(&set_at(c, (uint32_t)set)->made)) return -TOO_MANY;
    if (kind == BROADCAST && (root < 0 || root >= c->size || position_of(c, set_at(c, (uint32_t)set))[root] < 0)) return -TOO_MANY;
    struct plan *p = calloc(1, sizeof *p);
    if (!p) return -FULL;
    *p = (struct plan){.key = {key0, key1}, .fingerprint = fingerprint, .line = line, .set = (uint32_t)set,
                       .kind = (uint32_t)kind, .op = (uint32_t)op, .root = root, .prescale = prescale,
                       .postscale = postscale, .wire = wire, .unnamed = (uint32_t)unnamed, .segment_count = (uint32_t)segment_count};
    p->segments = calloc((size_t)segment_count + 1, sizeof *p->segments);
    p->description = malloc((size_t)description_length + 1);
    if (!p->segments || !p->description) {
        free(p->segments);
        free(p->description);
        free(p);
        return -FULL;
    }
    for (int i = 0; i < segment_count; i++) {
        p->segments[i] = (struct shape){.dtype = (uint32_t)segments[3 * i], .count = segments[3 * i + 1],
                                        .row = segments[3 * i + 2]};
        uint64_t bytes = p->segments[i].count * item_bytes[p->segments[i].dtype];
        p->bytes += bytes;
        p->packed_bytes += (bytes + 7) & ~7ull;
    }
    memcpy(p->description, description, (size_t)description_length);
    p->reduces = reduces(p);
    p->description_length = (uint32_t)description_length;
    pthread_mutex_lock(&c->mine);
    p->serial = ++c->serial;
    uint32_t n = MAX_PLANS;
    if (c->free_plan_count) n = c->free_plans[--c->free_plan_count];
    else if (c->plan_count < MAX_PLANS) n = c->plan_count++;
    if (n < MAX_PLANS) c->plans[n] = p;
    p->number = n;
    pthread_mutex_unlock(&c->mine);
    if (n < MAX_PLANS) return n;
    free(p->segments);
    free(p->description);
    free(p);
    return -FULL;
}

void free_plan(struct core *c, struct plan *p) {
    if (p->own) {
        p->own->plan = NULL;
        p->own->in = p->own->out = NULL;
        atomic_store(&p->own->state, FREE);
    }
    if (p->spare) arena_give(c, p->spare);
    c->plans[p->number] = NULL;
    c->free_plans[c->free_plan_count++] = p->number;
    free(p->segments);
    free(p->description);
    free(p);
}

void hora_drop(struct core *c, int64_t plan) {
    VISIT(c, );
    pthread_mutex_lock(&c->mine);
    if (is_plan(c, plan)) {
        struct plan *p = c->plans[plan];
        p->dropped = true;
        if (!p->users || (p->users == 1 && p->own && atomic_load(&p->own->state) == OWNED)) free_plan(c, p);
    }
    pthread_mutex_unlock(&c->mine);
}

/* ---- tickets ---- */

struct ticket *ticket_of(struct core *c, int64_t number) {
    struct ticket *t = number >= 0 && number < atomic_load(&c->ticket_count) ? c->tickets[number] : NULL;
    return t && t->plan ? t : NULL;
}

/* NULL if there is no such plan, or no memory. */
static struct ticket *new_ticket(struct core *c, int64_t plan) {
    struct ticket *t = NULL;
    pthread_mutex_lock(&c->mine);
    struct plan *p = is_plan(c, plan) ? c->plans[plan] : NULL;
    for (uint32_t looked = 0; p && looked < c->ticket_count; looked++) {
        struct ticket *candidate = c->tickets[c->ticket_hand++ % c->ticket_count];
        if (atomic_load(&candidate->state) != FREE) {
            if (looked < 16) continue;
            break; /* mostly in use: make another rather than look on */
        }
        t = candidate;
        break;
    }
    if (p && !t && c->ticket_count < MAX_TICKETS && (t = calloc(1, sizeof *t))) {
        t->number = c->ticket_count;
        c->tickets[t->number] = t;
        atomic_store(&c->ticket_count, t->number + 1);
    }
    if (t) {
        atomic_store(&t->state, BUSY);
        t->plan = p;
        t->status = OK;
        t->failure = 0;
        atomic_store(&t->share_done, 0);
        atomic_store(&t->took, 0);
        p->users++;
    }
    pthread_mutex_unlock(&c->mine);
    return t;
}

void free_ticket(struct core *c, struct ticket *t) {
    free(t->not_finite);
    t->not_finite = NULL;
    unstage(c, t);
    if (t->plan->own == t) { /* stays with its plan */
        atomic_store(&t->state, OWNED);
        return;
    }
    pthread_mutex_lock(&c->mine);
    if (t->memory)
        for (uint32_t k = 0; k < t->plan->segment_count; k++) free(t->memory[k]);
    free(t->memory);
    free(t->received);
    if (t->in != &t->one_in) {
        free(t->in);
        free(t->out);
    }
    free(t->meta);
    t->memory = t->in = t->out = NULL;
    t->received = t->meta = NULL;
    t->meta_count = 0;
    struct plan *p = t->plan;
    t->plan = NULL;
    atomic_store(&t->state, FREE);
    if (p && --p->users == (p->own ? 1u : 0u) && p->dropped) free_plan(c, p);
    pthread_mutex_unlock(&c->mine);
}

/* This rank is through with it. What points from here to its place in the table goes first, for when all ranks are through
 * the place may be given to another operation. */
void finish(struct core *c, struct ticket *t, int status) {
    struct entry *e = entry_at(c, t->entry);
    struct ticket *mine = t;
    trace(c, TRACE_END, t->plan, c->rank, 0, (uint64_t)status);
    t->status = (uint32_t)status;
    atomic_store(&arrival_at(c, e, c->rank)->taken, t->round + 1);
    atomic_compare_exchange_strong(&c->in_flight[t->entry], &mine, NULL);
    atomic_fetch_sub(&c->pending, 1);
    bool dropped = atomic_exchange(&t->state, DONE) & DROPPED;
    if (status != ABORTED && status != CLOSED) atomic_fetch_add(&e->finished, 1);
    if (dropped) free_ticket(c, t);
    if (c->header->hosts > 1 && atomic_load(&peer_at(c, c->rank)->left)) ring(c); /* it waits for its last ones before it goes */
}

/* ---- driving ---- */

/* Carry out whatever is on the schedule, or what of it needs no waiting; how many batches. The caller holds the driver's
 * mutex. */
int drive(struct core *c, bool only_in_place) {
    struct scheduled batch[BATCH];
    int done = 0;
    while (c->next < atomic_load_explicit(&self(c)->tail, memory_order_acquire)) {
        if (over(c) || lock(c)) break; /* over: after a barrier that was abandoned none may be used again */
        uint32_t count = form_batch(c, batch, BATCH, only_in_place);
        unlock(c);
        if (!count) break;
        for (uint32_t i = 0; i < count; i++) {
            struct ticket *t = atomic_load(&c->in_flight[batch[i].entry]);
            if (t) trace_agreement(c, t);
        }
        done++;
        int status = execute(c, batch, count);
        if (status == ABORTED || status == CLOSED) break;
    }
    return done;
}

/* Let others drive. Those who wait have seen the mutex taken and gone to sleep: they are told if something was done, which
 * may be what they wait for, or if something was scheduled after this thread looked for the last time. */
void end_driving(struct core *c, int done, uint32_t own_helpers) {
    pthread_mutex_unlock(&c->driver);
    if ((done || something_scheduled(c)) && atomic_load(&c->helpers) > own_helpers) ring(c);
}

static void settle(struct core *c, struct ticket *t) {
    if ((atomic_load(&t->state) & ~DROPPED) == WAITING && round_over(c, t)) {
        if (!atomic_load(&t->share_done)) trace_agreement(c, t); /* else it was, when this rank summed its share */
        harvest(c, t);
    }
}

void settle_all(struct core *c) {
    for (uint32_t i = 0, n = atomic_load(&c->ticket_count); i < n; i++) settle(c, c->tickets[i]);
}

/* Nobody waits any more, or yet: the executor is to carry out what gets scheduled. */
static void want_executor(struct core *c) {
    atomic_store(&self(c)->executor_wanted, 1);
    if (atomic_load(&self(c)->executor_asleep) && something_scheduled(c)) wake_executor(c);
}

static bool executor_has_work(struct core *c) {
    return atomic_load(&self(c)->executor_wanted) && !atomic_load(&c->helpers) && something_scheduled(c) && !over(c);
}

/* Sleeps until something is scheduled that nobody waits for; then one cycle more, so that what is submitted together is
 * carried out together and the thread that submits it is not disturbed; then drives. */
void *executor(void *argument) {
    struct core *c = argument;
    struct timespec cycle = {(time_t)(c->cycle_ns / 1000000000ull), (long)(c->cycle_ns % 1000000000ull)};
    never_spin = true;
    while (!atomic_load(&c->stop)) {
        uint32_t bell = atomic_load(&self(c)->executor_bell);
        atomic_store(&self(c)->executor_asleep, 1);
        if (!executor_has_work(c)) futex_wait(&self(c)->executor_bell, bell, 1000000000ull, true);
        atomic_store(&self(c)->executor_asleep, 0);
        if (!executor_has_work(c)) continue;
        nanosleep(&cycle, NULL);
        pthread_mutex_lock(&c->driver); /* another thread may just be helping: sleep, and look again */
        int done = executor_has_work(c) ? drive(c, false) : 0;
        end_driving(c, done, 0);
        if (atomic_load(&c->pending)) continue;
        atomic_store(&self(c)->executor_wanted, 0);
        if (atomic_load(&c->pending)) atomic_store(&self(c)->executor_wanted, 1); /* submitted meanwhile */
    }
    return NULL;
}

/* A thread that waits drives; while there is one, the executor rests. */
static void begin_helping(struct core *c) {
    if (!atomic_fetch_add(&c->helpers, 1)) atomic_store(&self(c)->executor_wanted, 0);
}

static void end_helping(struct core *c) {
    if (atomic_fetch_sub(&c->helpers, 1) == 1 && atomic_load(&c->pending)) want_executor(c);
}

/* ---- submitting and waiting ---- */

static __thread uint64_t known_to;
static __thread int32_t thread_id;

/* Deadlock reports need to know which threads submit: a process is blocked when all of them wait. */
static void introduce_thread(struct core *c) {
    if (known_to == c->identity) return;
    known_to = c->identity;
    thread_id = (int32_t)syscall(SYS_gettid);
    struct rank *me = self(c);
    pthread_mutex_lock(&c->mine);
    uint32_t n = atomic_load(&me->thread_count);
    uint32_t place = n;
    for (uint32_t i = 0; i < n; i++) {
        int32_t known = (int32_t)atomic_load(&me->threads[i]);
        if (known == thread_id) place = i;
        else if (place == n && syscall(SYS_tgkill, getpid(), known, 0) != 0) place = i; /* it is gone */
    }
    if (place < MAX_WAITS) {
        atomic_store(&me->threads[place], (uint32_t)thread_id);
        if (place == n) atomic_store(&me->thread_count, n + 1);
    }
    pthread_mutex_unlock(&c->mine);
}

static void mark_blocked(struct core *c, struct ticket *t) {
    struct rank *me = self(c);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < MAX_WAITS; i++) {
            uint32_t expected = pass ? 0 : (uint32_t)thread_id;
            if (!atomic_compare_exchange_strong(&me->waits[i].used, &expected, (uint32_t)thread_id)) continue;
            atomic_store(&me->waits[i].entry, t ? t->entry : UINT32_MAX); /* UINT32_MAX: in join */
            atomic_store(&me->waits[i].stamp, t ? t->stamp : 0);
            return;
        }
}

static void unblock(struct core *c) {
    struct rank *me = self(c);
    for (int i = 0; i < MAX_WAITS; i++) {
        uint32_t expected = (uint32_t)thread_id;
        atomic_compare_exchange_strong(&me->waits[i].used, &expected, 0);
    }
}

void hora_unblock(struct core *c) {
    VISIT(c, );
    unblock(c);
}

static int begin(struct core *c, struct ticket *t) {
    introduce_thread(c);
    atomic_fetch_add(&c->pending, 1);
    trace(c, TRACE_SUBMITTED, t->plan, c->rank, 0, 0);
    t->abroad = set_at(c, t->plan->set)->abroad;
    t->rides = rides(c, t->plan, t);
    int status = !t->abroad || stage(c, t) ? arrive(c, t) : FULL;
    if (status != OK) {
        atomic_fetch_sub(&c->pending, 1);
        free_ticket(c, t);
        return status;
    }
    uint32_t busy = BUSY; /* it may be done already */
    atomic_compare_exchange_strong(&t->state, &busy, WAITING);
    return OK;
}

/* How many numbers must ride with an arrival. */
static uint32_t meta_wanted(struct core *c, struct plan *p) {
    return p->kind == ALLGATHER ? p->segment_count : p->kind == ALLTOALL ? set_at(c, p->set)->count : 0;
}

int64_t hora_submit(struct core *c, int64_t plan, char **in, char **out, const int64_t *meta, int meta_count) {
    VISIT(c, -CLOSED);
    struct ticket *t = new_ticket(c, plan);
    if (!t) return -FULL;
    struct plan *p = t->plan;
    uint32_t n = p->segment_count;
    if (meta_count < 0 || (uint32_t)meta_count != meta_wanted(c, p) || meta_count > MAX_META) {
        free_ticket(c, t);
        return -TOO_MANY;
    }
    if (n <= 1) {
        t->in = &t->one_in, t->out = &t->one_out;
        t->one_in = n ? in[0] : NULL, t->one_out = n && out ? out[0] : NULL;
    } else {
        t->in = malloc(n * sizeof *t->in);
        t->out = malloc(n * sizeof *t->out);
        for (uint32_t k = 0; k < n; k++) t->in[k] = in[k], t->out[k] = out ? out[k] : NULL;
    }
    if (meta_count) {
        t->meta = malloc((size_t)meta_count * sizeof *meta);
        memcpy(t->meta, meta, (size_t)meta_count * sizeof *meta);
        t->meta_count = (uint32_t)meta_count;
    }
    int status = begin(c, t);
    if (status != OK) return -status;
    if (!atomic_load(&c->helpers)) want_executor(c);
    return t->number;
}

int64_t hora_submit_one(struct core *c, int64_t plan, char *in, char *out) { return hora_submit(c, plan, &in, &out, NULL, 0); }

/* Until it is done, or it is over, or the time has passed. */
static int wait_ticket(struct core *c, struct ticket *t, uint64_t timeout_ns) {
    enum { BLOCKED_AFTER_NS = 20 * 1000 * 1000 };
    if (atomic_load(&t->state) == DONE) return (int)t->status;
    uint64_t started = 0, deadline = UINT64_MAX;
    bool marked = false;
    int status = PENDING;
    begin_helping(c);
    for (;;) {
        uint32_t bell = atomic_load(&c->header->bell);
        settle(c, t);
        if (atomic_load(&t->state) == DONE) break;
        int done = 0;
        if (!pthread_mutex_trylock(&c->driver)) {
            done = drive(c, false);
            bool taken = take_early(c, t);
            end_driving(c, done, 1);
            if (taken) continue;
        }
        if (atomic_load(&t->state) == DONE) break;
        if ((status = over(c))) break;
        status = PENDING;
        if (done || serve_link(c)) continue;
        uint64_t now = now_ns();
        if (!started) started = now, deadline = timeout_ns ? now + timeout_ns : now;
        if (now >= deadline) break;
        if (!marked && now - started > BLOCKED_AFTER_NS) mark_blocked(c, t), marked = true;
        uint64_t until = marked ? deadline : started + BLOCKED_AFTER_NS + 1;
        if ((atomic_load(&t->state) & ~DROPPED) == BUSY) sched_yield(); /* another thread of this process is just taking it */
        wait_bell(c, bell, until < deadline ? until : deadline, !t->abroad, &t->state, WAITING);
    }
    if (atomic_load(&t->state) == DONE) status = (int)t->status;
    if (status != PENDING) unblock(c);
    end_helping(c);
    return status;
}

int hora_wait(struct core *c, int64_t ticket, int64_t timeout_us) {
    VISIT(c, CLOSED);
    struct ticket *t = ticket_of(c, ticket);
    if (!sound(c, t, "a wait for an operation that is not in flight")) return ABORTED;
    introduce_thread(c);
    return wait_ticket(c, t, (uint64_t)timeout_us * 1000);
}

int hora_finish(struct core *c, int64_t ticket, int64_t timeout_us) {
    VISIT(c, CLOSED);
    int status = hora_wait(c, ticket, timeout_us);
    if (status == OK) free_ticket(c, ticket_of(c, ticket));
    return status;
}

void hora_help(struct core *c) {
    VISIT(c, );
    if (!something_scheduled(c) || pthread_mutex_trylock(&c->driver)) return;
    int done = drive(c, true);
    end_driving(c, done, 0);
}

int hora_done(struct core *c, int64_t ticket) {
    VISIT(c, 1);
    struct ticket *t = ticket_of(c, ticket);
    if (!t) return 1;
    settle(c, t);
    return atomic_load(&t->state) == DONE || over(c);
}

struct plan *hora_ready(struct core *c, int64_t plan) {
    VISIT(c, NULL);
    struct ticket *t = new_ticket(c, plan);
    if (!t) return NULL;
    struct plan *p = t->plan;
    p->core = c;
    p->own = t;
    t->in = &t->one_in, t->out = &t->one_out;
    atomic_store(&t->state, OWNED);
    return p;
}

int64_t hora_again(struct plan *p, char *memory) {
    if (!p) return CLOSED | 1ll << 62; /* hora_ready has to be called first */
    struct core *c = p->core;
    VISIT(c, CLOSED | 1ll << 62);
    struct ticket *t = p->own;
    uint32_t owned = OWNED;
    if (!atomic_compare_exchange_strong(&t->state, &owned, BUSY)) { /* in use: by another thread, or not released yet */
        int64_t ticket = hora_submit(c, p->number, &memory, &memory, NULL, 0);
        return ticket < 0 ? -ticket | 1ll << 62 : ticket << 8 | PENDING;
    }
    t->one_in = t->one_out = memory;
    t->status = OK;
    t->failure = 0;
    atomic_store(&t->share_done, 0);
    atomic_store(&t->took, 0);
    int status = begin(c, t);
    if (status != OK) return status | (1ll << 62);
    status = wait_ticket(c, t, 200 * 1000 * 1000);
    if (status != OK) return (int64_t)t->number << 8 | status;
    unstage(c, t);
    atomic_store(&t->state, OWNED);
    return 0;
}

void hora_release(struct core *c, int64_t ticket) {
    VISIT(c, );
    struct ticket *t = ticket_of(c, ticket);
    if (!t) return;
    uint32_t state = atomic_load(&t->state);
    while (state == WAITING || state == BUSY)
        if (atomic_compare_exchange_weak(&t->state, &state, state | DROPPED)) return;
    if (state == DONE) free_ticket(c, t);
}

int hora_withdraw(struct core *c, int64_t ticket) {
    VISIT(c, CLOSED);
    struct ticket *t = ticket_of(c, ticket);
    int status = t ? lock(c) : OK;
    if (!t || status) return status;
    struct entry *e = entry_at(c, t->entry);
    if (e->stamp == t->stamp && atomic_load(&e->round) == t->round && e->arrived) fail_everywhere(c, e, WITHDRAWN, "");
    unlock(c);
    return OK;
}

void *hora_take(struct core *c, int64_t ticket, int segment, int64_t *received) {
    VISIT(c, NULL);
    struct ticket *t = ticket_of(c, ticket);
    if (!t || !t->memory || segment < 0 || (uint32_t)segment >= t->plan->segment_count) return NULL;
    uint32_t members = set_at(c, t->plan->set)->count;
    memcpy(received, t->received + (uint64_t)segment * members, members * sizeof *received);
    void *memory = t->memory[segment];
    t->memory[segment] = NULL;
    return memory;
}

void hora_free(void *memory) { free(memory); }

/* ---- sets, join ---- */

int hora_set(struct core *c, const int32_t *members, int count) {
    VISIT(c, -CLOSED);
    bool fine = count > 0 && count <= c->size;
    for (int m = 0; fine && m < count; m++) fine = members[m] < c->size && members[m] > (m ? members[m - 1] : -1);
    if (!fine) return -TOO_MANY;
    int status = lock(c), found = -TOO_MANY;
    if (status) return -status;
    for (int i = 0; i < MAX_SETS && found < 0; i++) {
        struct set *s = set_at(c, (uint32_t)i);
        uint16_t *theirs = members_of(c, s);
        if (!atomic_load_explicit(&s->made, memory_order_relaxed)) {
            for (int r = 0; r < c->size; r++) position_of(c, s)[r] = -1;
            s->key = 14695981039346656037ull;
            for (int m = 0; m < count; m++) {
                theirs[m] = (uint16_t)members[m], position_of(c, s)[members[m]] = (int16_t)m;
                s->key = (s->key ^ (uint64_t)members[m]) * 1099511628211ull;
                if (is_here(c, members[m])) here_of(c, s)[s->here_count++] = (uint16_t)members[m];
            }
            s->abroad = s->here_count < (uint32_t)count;
            s->count = (uint32_t)count;
            atomic_store(&s->made, 1);
        }
        bool same = s->count == (uint32_t)count;
        for (int m = 0; same && m < count; m++) same = theirs[m] == members[m];
        if (same) found = i;
    }
    unlock(c);
    return found;
}

static bool somebody_left(struct core *c) {
    for (int r = 0; r < c->size; r++)
        if (atomic_load(&peer_at(c, r)->left)) return true;
    return false;
}

/* Close what waits only for ranks that have joined; and if all have, and nothing is left to close, end the round of join.
 * Something may be left: a rank that has joined is waited for until it is through with what it had submitted. Called under
 * the lock, when a rank joins and whenever one that has joined has got on. */
static void go_on_without_joined(struct core *c) {
    struct header *h = c->header;
    bool open = close_ready(c);
    for (int r = 0; h->hosts > 1 && h->joined_count && r < c->size; r++) {
        int place = place_of_rank(c, r)->here;
        if (place < 0 || !has(h->joined, place) || has(h->join_told, place) || has_untold(c, r)) continue; /* what it brought comes first */
        put(h->join_told, place);
        post(c, POST_JOINED, 0, (uint64_t)r << 1 | has(h->joined_active, place));
    }
    if (open || h->joined_count < h->here) return;
    if (h->hosts > 1) { /* of several, the first says when all have */
        if (!h->quiet) post(c, POST_QUIET, 0, UINT64_MAX);
        h->quiet = 1;
        return;
    }
    h->joined_count = 0;
    memset(h->joined, 0, sizeof h->joined);
    memset(h->joined_active, 0, sizeof h->joined_active);
    atomic_fetch_add(&h->join_round, 1);
    c->ring_wanted = true;
}

int64_t hora_join(struct core *c, int average_active) {
    VISIT(c, -CLOSED);
    struct header *h = c->header;
    int status = lock(c);
    if (status) return -status;
    uint64_t round = atomic_load(&h->join_round);
    if (!has(h->joined, c->here)) { /* another thread may have joined it */
        put(h->joined, c->here);
        if (average_active) put(h->joined_active, c->here);
        h->joined_count++;
        atomic_store(&h->last_joined[round & 1], (uint32_t)c->rank);
        go_on_without_joined(c);
        atomic_fetch_add(&h->progress, 1);
        c->ring_wanted = true;
    }
    unlock(c);
    return (int64_t)round;
}

int hora_join_wait(struct core *c, int64_t round, int64_t timeout_us, int *last) {
    VISIT(c, CLOSED);
    struct header *h = c->header;
    introduce_thread(c);
    uint64_t deadline = now_ns() + (uint64_t)timeout_us * 1000;
    int status = PENDING;
    mark_blocked(c, NULL);
    begin_helping(c);
    for (;;) {
        uint32_t bell = atomic_load(&h->bell);
        pthread_mutex_lock(&c->driver);
        int done = drive(c, false);
        end_driving(c, done, 1);
        settle_all(c);
        if (!lock(c)) {
            go_on_without_joined(c);
            unlock(c);
        }
        if ((status = over(c))) break;
        bool left = somebody_left(c); /* looked at first: who joined this round may leave when it is over */
        status = done ? PENDING : atomic_load(&h->join_round) > (uint64_t)round ? OK : left ? LEFT : PENDING;
        if (status != PENDING || now_ns() >= deadline) break;
        if (!done && !serve_link(c)) wait_bell(c, bell, deadline, true, NULL, 0);
    }
    if (status != PENDING) unblock(c);
    end_helping(c);
    *last = (int)atomic_load(&h->last_joined[round & 1]);
    return status;
}
