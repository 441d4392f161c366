/* This process's side: plans, tickets, and the threads that drive.
 *
 * Who waits, helps: a thread blocked in hora_wait carries the schedule out itself. The executor thread does it only when
 * something is scheduled while nobody waits, so that communication overlaps with computation; a program that only makes
 * blocking calls never wakes it, and small operations, whose data rode along, never need it. A third thread sleeps until
 * a peer's process ends.
 */
#include "core.h"
#include "hora.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_TICKETS = 1 << 16, MAX_PLANS = 1 << 17 };

static void attach_allocator(struct core *c);
static void detach_allocator(struct core *c);
static struct rank *self(struct core *c) { return rank_at(c, c->rank); }

/* ---- calls from Python ---- */

struct core *begin_visit(struct core *c) {
    if (!c) return NULL;
    atomic_fetch_add(&c->callers, 1);
    if (!atomic_load(&c->closing)) return c;
    end_visit(&c);
    return NULL;
}

void end_visit(struct core **c) {
    if (*c && atomic_fetch_sub(&(*c)->callers, 1) == 1 && atomic_load(&(*c)->closing)) futex_wake(&(*c)->callers, 1, false);
}

static void mark_dead(struct core *c, int rank, const char *status);

/* Something that must hold does not: end the job with that sentence rather than with a wrong number. */
bool broken(struct core *c, const char *sentence, const char *file, int line) {
    char text[STATUS_BYTES];
    const char *name = strrchr(file, '/');
    snprintf(text, sizeof text, "a check inside Hora failed: %s (%s:%d); please report this", sentence, name ? name + 1 : file,
             line);
    mark_dead(c, c->rank, text);
    return false;
}

/* ---- plans ---- */

static bool is_plan(struct core *c, int64_t plan) { return plan >= 0 && plan < c->plan_count && c->plans[plan]; }

int64_t hora_plan(struct core *c, uint64_t key0, uint64_t key1, int set, int kind, int op, int root, double prescale,
                  double postscale, uint64_t fingerprint, uint64_t line, int unnamed, int segment_count,
                  const uint64_t *segments, const char *description, int description_length) {
    VISIT(c, -CLOSED);
    if (segment_count < 0 || segment_count > MAX_SEGMENTS || description_length > DESCRIPTION_BYTES) return -TOO_MANY;
    if (kind == ALLGATHER && segment_count > MAX_META) return -TOO_MANY;
    if (set < 0 || set >= MAX_SETS || !atomic_load(&set_at(c, (uint32_t)set)->made)) return -TOO_MANY;
    if (kind == BROADCAST && (root < 0 || root >= c->size || set_at(c, (uint32_t)set)->position[root] < 0)) return -TOO_MANY;
    struct plan *p = calloc(1, sizeof *p);
    if (!p) return -FULL;
    *p = (struct plan){.key = {key0, key1}, .fingerprint = fingerprint, .line = line, .set = (uint32_t)set,
                       .kind = (uint32_t)kind, .op = (uint32_t)op, .root = root, .prescale = prescale,
                       .postscale = postscale, .unnamed = (uint32_t)unnamed, .segment_count = (uint32_t)segment_count};
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

static void free_plan(struct core *c, struct plan *p) {
    if (p->own) {
        p->own->plan = NULL;
        p->own->in = p->own->out = NULL;
        atomic_store(&p->own->state, FREE);
    }
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
        p->users++;
    }
    pthread_mutex_unlock(&c->mine);
    return t;
}

static void free_ticket(struct core *c, struct ticket *t) {
    free(t->not_finite);
    t->not_finite = NULL;
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
    atomic_store(&arrival_at(e, c->rank)->taken, t->round + 1);
    atomic_compare_exchange_strong(&c->in_flight[t->entry], &mine, NULL);
    atomic_fetch_sub(&c->pending, 1);
    bool dropped = atomic_exchange(&t->state, DONE) & DROPPED;
    if (status != ABORTED && status != CLOSED) atomic_fetch_add(&e->finished, 1);
    if (dropped) free_ticket(c, t);
}

/* ---- driving ---- */

/* Carry out whatever is on the schedule, or what of it needs no waiting; how many batches. The caller holds the driver's
 * mutex. */
static int drive(struct core *c, bool only_in_place) {
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

static bool something_scheduled(struct core *c) { return c->next < atomic_load(&self(c)->tail); }

/* Let others drive. Those who wait have seen the mutex taken and gone to sleep: they are told if something was done, which
 * may be what they wait for, or if something was scheduled after this thread looked for the last time. */
static void end_driving(struct core *c, int done, uint32_t own_helpers) {
    pthread_mutex_unlock(&c->driver);
    if ((done || something_scheduled(c)) && atomic_load(&c->helpers) > own_helpers) ring(c);
}

static void settle(struct core *c, struct ticket *t) {
    if ((atomic_load(&t->state) & ~DROPPED) == WAITING && round_over(c, t)) {
        if (!atomic_load(&t->share_done)) trace_agreement(c, t); /* else it was, when this rank summed its share */
        harvest(c, t);
    }
}

/* Nobody waits any more, or yet: the executor is to carry out what gets scheduled. */
static void want_executor(struct core *c) {
    atomic_store(&self(c)->executor_wanted, 1);
    if (atomic_load(&self(c)->executor_asleep) && something_scheduled(c)) wake_executor(c, c->rank);
}

static bool executor_has_work(struct core *c) {
    return atomic_load(&self(c)->executor_wanted) && !atomic_load(&c->helpers) && something_scheduled(c) && !over(c);
}

/* Sleeps until something is scheduled that nobody waits for; then one cycle more, so that what is submitted together is
 * carried out together and the thread that submits it is not disturbed; then drives. */
static void *executor(void *argument) {
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
    int status = arrive(c, t);
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
            end_driving(c, done, 1);
        }
        if (atomic_load(&t->state) == DONE) break;
        if ((status = over(c))) break;
        status = PENDING;
        if (done) continue;
        uint64_t now = now_ns();
        if (!started) started = now, deadline = timeout_ns ? now + timeout_ns : now;
        if (now >= deadline) break;
        if (!marked && now - started > BLOCKED_AFTER_NS) mark_blocked(c, t), marked = true;
        uint64_t until = marked ? deadline : started + BLOCKED_AFTER_NS + 1;
        wait_bell(c, bell, until < deadline ? until : deadline, true, &t->state, WAITING);
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
    int status = begin(c, t);
    if (status != OK) return status | (1ll << 62);
    status = wait_ticket(c, t, 200 * 1000 * 1000);
    if (status != OK) return (int64_t)t->number << 8 | status;
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

void hora_withdraw(struct core *c, int64_t ticket) {
    VISIT(c, );
    struct ticket *t = ticket_of(c, ticket);
    if (!t || lock(c)) return;
    struct entry *e = entry_at(c, t->entry);
    if (e->stamp == t->stamp && atomic_load(&e->round) == t->round && e->arrived) fail_round(c, e, WITHDRAWN, "");
    unlock(c);
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
        if (!atomic_load_explicit(&s->made, memory_order_relaxed)) {
            for (int r = 0; r < MAX_RANKS; r++) s->position[r] = -1;
            for (int m = 0; m < count; m++) s->members[m] = (uint16_t)members[m], s->position[members[m]] = (int16_t)m;
            s->count = (uint32_t)count;
            atomic_store(&s->made, 1);
        }
        bool same = s->count == (uint32_t)count;
        for (int m = 0; same && m < count; m++) same = s->members[m] == members[m];
        if (same) found = i;
    }
    unlock(c);
    return found;
}

static bool somebody_left(struct core *c) {
    for (int r = 0; r < c->size; r++)
        if (atomic_load(&rank_at(c, r)->left)) return true;
    return false;
}

/* Close what waits only for ranks that have joined; and if all have, and nothing is left to close, end the round of join.
 * Something may be left: a rank that has joined is waited for until it is through with what it had submitted. Called under
 * the lock, when a rank joins and whenever one that has joined has got on. */
static void go_on_without_joined(struct core *c) {
    struct header *h = c->header;
    bool open = close_ready(c);
    if (open || h->joined_count < h->size) return;
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
    if (!has(h->joined, c->rank)) { /* another thread may have joined it */
        put(h->joined, c->rank);
        if (average_active) put(h->joined_active, c->rank);
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
        for (uint32_t i = 0, n = atomic_load(&c->ticket_count); i < n; i++) settle(c, c->tickets[i]);
        if (!lock(c)) {
            go_on_without_joined(c);
            unlock(c);
        }
        if ((status = over(c))) break;
        bool left = somebody_left(c); /* looked at first: who joined this round may leave when it is over */
        status = done ? PENDING : atomic_load(&h->join_round) > (uint64_t)round ? OK : left ? LEFT : PENDING;
        if (status != PENDING || now_ns() >= deadline) break;
        if (!done) wait_bell(c, bell, deadline, true, NULL, 0);
    }
    if (status != PENDING) unblock(c);
    end_helping(c);
    *last = (int)atomic_load(&h->last_joined[round & 1]);
    return status;
}

/* ---- life and death ---- */

int hora_abi(void) { return HORA_ABI; }

uint32_t hora_generation(struct core *c) {
    VISIT(c, 0);
    return c->header->generation;
}

int hora_dead(struct core *c) {
    VISIT(c, -1);
    return (int)atomic_load(&c->header->abort) - 1;
}

int hora_state(struct core *c, int rank) {
    VISIT(c, ABSENT);
    return rank < 0 || rank >= c->size ? ABSENT : (int)atomic_load(&rank_at(c, rank)->state);
}

int hora_waiting(struct core *c) {
    VISIT(c, 0);
    return (int)atomic_load(&c->pending);
}

static void mark_dead(struct core *c, int rank, const char *status) {
    struct rank *r = rank_at(c, rank);
    if (status && *status) snprintf(r->status, STATUS_BYTES, "%s", status);
    if (atomic_load(&r->state) == GONE_CLEAN) return;
    atomic_store(&r->state, DEAD);
    uint32_t nobody = 0;
    atomic_compare_exchange_strong(&c->header->abort, &nobody, (uint32_t)rank + 1);
    wake_everyone(c);
}

void hora_mark_dead(struct core *c, int rank, const char *status) {
    VISIT(c, );
    if (rank >= 0 && rank < c->size) mark_dead(c, rank, status);
}

static bool running(int pid) { return kill(pid, 0) == 0 || errno == EPERM; }

/* Sleep until a peer's process ends. Without pidfds (old kernels), look four times a second. */
static void *watcher(void *argument) {
    struct core *c = argument;
    struct pollfd fds[MAX_RANKS + 1] = {{.fd = c->watch_pipe[0], .events = POLLIN}};
    bool all = true, gone[MAX_RANKS] = {0};
    for (int r = 0; r < c->size; r++) {
        fds[r + 1] = (struct pollfd){.fd = -1, .events = POLLIN};
        if (r == c->rank) continue;
        fds[r + 1].fd = (int)syscall(SYS_pidfd_open, c->watch_pids[r], 0);
        if (fds[r + 1].fd < 0 && errno != ESRCH) all = false;
        else if (fds[r + 1].fd < 0) gone[r] = true;
    }
    while (!atomic_load(&c->stop)) {
        for (int r = 0; r < c->size; r++) {
            if (r == c->rank) continue;
            bool ended = gone[r] || fds[r + 1].revents || (fds[r + 1].fd < 0 && !all && !running(c->watch_pids[r]));
            if (!ended) continue;
            mark_dead(c, r, NULL); /* unless it has left; one that never came is as dead */
            if (fds[r + 1].fd >= 0) close(fds[r + 1].fd);
            fds[r + 1] = (struct pollfd){.fd = -1};
            gone[r] = false;
            c->watch_pids[r] = getpid(); /* watched no longer */
        }
        poll(fds, (nfds_t)c->size + 1, all ? -1 : 250);
    }
    for (int r = 0; r < c->size; r++)
        if (fds[r + 1].fd >= 0) close(fds[r + 1].fd);
    return NULL;
}

static bool start_thread(pthread_t *thread, void *(*body)(void *), struct core *c, const char *name) {
    sigset_t all, before; /* signals are for the program's own threads */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    bool started = pthread_create(thread, NULL, body, c) == 0;
    if (started) pthread_setname_np(*thread, name);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

struct core *hora_open(int fd, int rank, int64_t spin_us, int64_t cycle_us, uint64_t fusion_bytes,
                       uint64_t cache_capacity, int split_groups) {
    char *base = hora_map(fd);
    struct core *c = base ? calloc(1, sizeof *c) : NULL;
    if (!c) return NULL;
    c->base = base;
    c->header = (struct header *)base;
    static _Atomic uint64_t identities;
    c->identity = atomic_fetch_add(&identities, 1) + 1;
    c->rank = rank;
    c->size = (int)c->header->size;
    c->spin_ns = (uint64_t)spin_us * 1000;
    c->cycle_ns = (uint64_t)cycle_us * 1000;
    c->fusion_bytes = fusion_bytes;
    c->cache_capacity = cache_capacity < LEAST_CAPACITY ? LEAST_CAPACITY : cache_capacity;
    if (c->cache_capacity > c->header->entry_count) c->cache_capacity = c->header->entry_count;
    c->split_groups = split_groups != 0;
    pthread_mutex_init(&c->mine, NULL);
    pthread_mutex_init(&c->driver, NULL);
    pthread_mutex_init(&c->trace_lock, NULL);
    c->watch_pipe[0] = c->watch_pipe[1] = -1;
    if (rank < 0) return c;
    if (rank >= c->size) {
        hora_unmap(base);
        free(c);
        return NULL;
    }
    c->plans = calloc(MAX_PLANS, sizeof *c->plans);
    c->free_plans = calloc(MAX_PLANS, sizeof *c->free_plans);
    c->tickets = calloc(MAX_TICKETS, sizeof *c->tickets);
    c->in_flight = calloc(c->header->entry_count, sizeof *c->in_flight);
    c->batches = calloc(MAX_SETS, sizeof *c->batches);
    atomic_store(&self(c)->pid, (uint32_t)getpid());
    uint32_t absent = ABSENT; /* it may have been given up already */
    atomic_compare_exchange_strong(&self(c)->state, &absent, LIVE);
    attach_allocator(c);
    c->executor_runs = start_thread(&c->executor, executor, c, "hora-executor");
    return c;
}

void hora_watch(struct core *c, const int32_t *pids) {
    VISIT(c, );
    for (int r = 0; r < c->size; r++) c->watch_pids[r] = pids[r];
    if (c->size > 1 && pipe2(c->watch_pipe, O_CLOEXEC) == 0)
        c->watcher_runs = start_thread(&c->watcher, watcher, c, "hora-watcher");
}

int hora_pin(struct core *c, int core_number) {
    VISIT(c, EINVAL);
    cpu_set_t set;
    CPU_ZERO(&set);
    if (core_number < 0 || core_number >= CPU_SETSIZE || !c->executor_runs) return EINVAL;
    CPU_SET(core_number, &set);
    return pthread_setaffinity_np(c->executor, sizeof set, &set);
}

int hora_leave(struct core *c) {
    VISIT(c, CLOSED);
    int status = over(c);
    for (bool left = false; !left && !status;) { /* first carry out what was agreed with this rank: peers count on it */
        pthread_mutex_lock(&c->driver);
        int done = drive(c, false);
        end_driving(c, done, 0);
        if ((status = lock(c))) break;
        left = !something_scheduled(c);
        if (left) {
            atomic_store(&self(c)->left, 1);
            leave_table(c);
            c->ring_wanted = true;
        }
        unlock(c);
        if (!left) status = over(c);
    }
    /* Only now: a rank that is killed while it holds the lock must count as dead. */
    if (status != PENDING) atomic_store(&self(c)->state, GONE_CLEAN);
    return status;
}

/* Threads that wait are sent away, and all that are inside are waited for; then everything is freed but *c itself and the
 * plans of hora_ready: whoever comes later finds it closed. */
void hora_close(struct core *c) {
    if (!c || atomic_exchange(&c->closing, 1)) return;
    if (c->rank >= 0 && atomic_load(&self(c)->state) != GONE_CLEAN) mark_dead(c, c->rank, "it closed without leaving");
    atomic_store(&c->stop, 1);
    wake_everyone(c);
    for (uint32_t inside; (inside = atomic_load(&c->callers)); wake_everyone(c))
        futex_wait(&c->callers, inside, 10 * 1000 * 1000, false);
    if (c->executor_runs) {
        wake_executor(c, c->rank);
        pthread_join(c->executor, NULL);
    }
    if (c->watcher_runs) {
        if (write(c->watch_pipe[1], "", 1) < 0) return; /* cannot be: a fresh pipe has room */
        pthread_join(c->watcher, NULL);
    }
    if (c->watch_pipe[0] >= 0) close(c->watch_pipe[0]), close(c->watch_pipe[1]);
    for (uint32_t i = 0; i < c->ticket_count; i++) {
        struct ticket *t = c->tickets[i];
        if (t->plan && t->plan->own != t) free_ticket(c, t);
    }
    for (uint32_t i = 0; i < c->plan_count; i++)
        if (c->plans[i] && !c->plans[i]->own) free_plan(c, c->plans[i]);
    for (uint32_t i = 0; i < c->ticket_count; i++)
        if (!c->tickets[i]->plan) free(c->tickets[i]);
    if (c->rank >= 0) detach_allocator(c);
    arena_close(c);
    free(c->plans);
    free(c->free_plans);
    free(c->tickets);
    free((void *)c->in_flight);
    free(c->batches);
    free(c->pieces);
    free(c->events);
    /* Tensors may still live in the arena: the mapping stays until the process ends, unless nobody uses it. */
    if (!c->arena_used) hora_unmap(c->base);
    c->blocks = NULL;
}

/* ---- the preloaded allocator, if there is one (native/preload) ---- */

static void *take_for_allocator(void *c, uint64_t bytes) { return arena_alloc(c, bytes); }
static void give_from_allocator(void *c, void *memory) { arena_free(c, memory); }

static void attach_allocator(struct core *c) {
    bool (*attach)(char *, uint64_t, void *, void *(*)(void *, uint64_t), void (*)(void *, void *));
    *(void **)&attach = dlsym(RTLD_DEFAULT, "hora_preload_attach");
    if (attach) attach(arena_at(c, c->rank), c->header->arena_bytes, c, take_for_allocator, give_from_allocator);
}

/* It gives back what it keeps; then, if no block of the arena is in use, its addresses are nobody's. */
static void detach_allocator(struct core *c) {
    void (*detach)(void *), (*forget)(char *);
    *(void **)&detach = dlsym(RTLD_DEFAULT, "hora_preload_detach");
    *(void **)&forget = dlsym(RTLD_DEFAULT, "hora_preload_forget");
    if (detach) detach(c);
    if (forget && !c->arena_used) forget(arena_at(c, c->rank));
}

int hora_serve(uint64_t bytes) {
    bool (*serve)(uint64_t);
    *(void **)&serve = dlsym(RTLD_DEFAULT, "hora_preload_serve");
    return serve && serve(bytes);
}

int hora_shares(struct core *c, void *memory, uint64_t bytes) {
    VISIT(c, 0);
    return arena_offset(c, memory, bytes) >= 0;
}

void *hora_alloc(struct core *c, uint64_t bytes) {
    VISIT(c, NULL);
    return arena_alloc(c, bytes);
}

void hora_dealloc(struct core *c, void *memory) {
    VISIT(c, );
    arena_free(c, memory);
}
