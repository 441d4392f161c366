/* A rank's life: opening the segment, watching the others, dying, leaving, closing.
 *
 * Whoever calls from Python is counted, so that closing can wait for threads that are inside. A rank that is killed at any
 * point counts as dead, and ends everybody's waits; one that left in good order does not. A second thread of the process
 * sleeps until a peer's process ends.
 */
#include "core.h"
#include "hora.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static void mark_dead(struct core *c, int rank, const char *status);
enum { LEAVE_NS = 200 * 1000 * 1000 };
static void attach_allocator(struct core *c);
static void detach_allocator(struct core *c);

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

/* Something that must hold does not: end the job with that sentence rather than with a wrong number. */
bool broken(struct core *c, const char *sentence, const char *file, int line) {
    char text[STATUS_BYTES];
    const char *name = strrchr(file, '/');
    snprintf(text, sizeof text, "a check inside Hora failed: %s (%s:%d); please report this", sentence, name ? name + 1 : file,
             line);
    mark_dead(c, c->rank, text);
    return false;
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
    if (rank < 0 || rank >= c->size) return ABSENT;
    uint32_t state = atomic_load(&peer_at(c, rank)->state);
    return state == LIVE && atomic_load(&peer_at(c, rank)->left) ? GONE_CLEAN : (int)state;
}

int hora_waiting(struct core *c) {
    VISIT(c, 0);
    return (int)atomic_load(&c->pending);
}

static void mark_dead(struct core *c, int rank, const char *status) {
    if (status && *status) snprintf(words_at(c, rank)->status, STATUS_BYTES, "%s", status);
    if (atomic_load(&peer_at(c, rank)->state) == GONE_CLEAN) return;
    atomic_store(&peer_at(c, rank)->state, DEAD);
    end_all(c, rank, "");
}

/* Because of this rank, whatever its state. */
void end_all(struct core *c, int rank, const char *status) {
    if (*status) snprintf(words_at(c, rank)->status, STATUS_BYTES, "%s", status);
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
    struct pollfd fds[MAX_HERE + 1] = {{.fd = c->watch_pipe[0], .events = POLLIN}};
    bool all = true, gone[MAX_HERE] = {0};
    int here = (int)c->header->here;
    for (int m = 0; m < here; m++) {
        fds[m + 1] = (struct pollfd){.fd = -1, .events = POLLIN};
        if (m == c->here || !c->watch_pids[m]) continue;
        fds[m + 1].fd = (int)syscall(SYS_pidfd_open, c->watch_pids[m], 0);
        if (fds[m + 1].fd < 0 && errno != ESRCH) all = false;
        else if (fds[m + 1].fd < 0) gone[m] = true;
    }
    while (!atomic_load(&c->stop)) {
        for (int m = 0; m < here; m++) {
            if (m == c->here || !c->watch_pids[m]) continue;
            bool ended = gone[m] || fds[m + 1].revents || (fds[m + 1].fd < 0 && !all && !running(c->watch_pids[m]));
            if (!ended) continue;
            mark_dead(c, c->watch_ranks[m], NULL); /* unless it has left; one that never came is as dead */
            if (fds[m + 1].fd >= 0) close(fds[m + 1].fd);
            fds[m + 1] = (struct pollfd){.fd = -1};
            gone[m] = false;
            c->watch_pids[m] = 0; /* watched no longer */
        }
        poll(fds, (nfds_t)here + 1, all ? -1 : 250);
    }
    for (int m = 0; m < here; m++)
        if (fds[m + 1].fd >= 0) close(fds[m + 1].fd);
    return NULL;
}

bool start_thread(pthread_t *thread, void *(*body)(void *), void *argument, const char *name) {
    sigset_t all, before; /* signals are for the program's own threads */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    bool started = pthread_create(thread, NULL, body, argument) == 0;
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
    c->watch_pipe[0] = c->watch_pipe[1] = c->door = -1;
    if (rank < 0) return c;
    if (rank >= c->size || !is_here(c, rank)) {
        hora_unmap(base);
        free(c);
        return NULL;
    }
    c->here = place_of_rank(c, rank)->here;
    if (c->header->hosts > 1) c->door = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); /* now: threads share it */
    c->plans = calloc(MAX_PLANS, sizeof *c->plans);
    c->free_plans = calloc(MAX_PLANS, sizeof *c->free_plans);
    c->tickets = calloc(MAX_TICKETS, sizeof *c->tickets);
    c->in_flight = calloc(c->header->entry_count, sizeof *c->in_flight);
    c->batches = calloc(MAX_SETS, sizeof *c->batches);
    atomic_store(&self(c)->pid, (uint32_t)getpid());
    uint32_t absent = ABSENT; /* it may have been given up already */
    atomic_compare_exchange_strong(&peer_at(c, rank)->state, &absent, LIVE);
    for (int r = 0; r < c->size; r++)
        if (!is_here(c, r)) {
            absent = ABSENT;
            atomic_compare_exchange_strong(&peer_at(c, r)->state, &absent, LIVE);
        }
    attach_allocator(c);
    c->executor_runs = start_thread(&c->executor, executor, c, "hora-executor");
    return c;
}

int hora_watch(struct core *c, const int32_t *pids) {
    VISIT(c, 0);
    if (!c->executor_runs) return EAGAIN; /* hora_open could not start it */
    for (int r = 0; r < c->size; r++)
        if (is_here(c, r)) c->watch_pids[place_of_rank(c, r)->here] = pids[r], c->watch_ranks[place_of_rank(c, r)->here] = r;
    if (c->header->here == 1) return 0;
    if (pipe2(c->watch_pipe, O_CLOEXEC) != 0) return errno;
    c->watcher_runs = start_thread(&c->watcher, watcher, c, "hora-watcher");
    return c->watcher_runs ? 0 : EAGAIN;
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
    uint64_t deadline = now_ns() + LEAVE_NS;
    for (bool left = false; !left && !status;) { /* first carry out what was agreed with this rank: peers count on it */
        uint32_t bell = atomic_load(&c->header->bell);
        pthread_mutex_lock(&c->driver);
        int done = drive(c, false);
        end_driving(c, done, 0);
        if (c->header->hosts > 1) settle_all(c);
        if ((status = lock(c))) break;
        left = !something_scheduled(c);
        if (c->header->hosts > 1) { /* others may just have decided on something with it: they are told, and answer */
            if (left && !atomic_load(&peer_at(c, c->rank)->left)) {
                atomic_store(&peer_at(c, c->rank)->left, 1);
                post(c, POST_LEFT, 0, (uint64_t)c->rank);
            }
            left = left && ((atomic_load(&peer_at(c, c->rank)->left) == 2 && !atomic_load(&c->pending)) || leader_gone(c));
        } else if (left) {
            atomic_store(&peer_at(c, c->rank)->left, 1);
            leave_table(c, c->rank);
            c->ring_wanted = true;
        }
        unlock(c);
        if (left || (status = over(c))) break;
        if (c->header->hosts > 1 && now_ns() > deadline) status = PENDING;
        else if (c->header->hosts > 1 && !done) wait_bell(c, bell, deadline, false, NULL, 0);
    }
    /* Only now: a rank that is killed while it holds the lock must count as dead. */
    /* And a leader is missed until it has seen the others off: see hora_linger. */
    if (status != PENDING && !c->link) atomic_store(&peer_at(c, c->rank)->state, GONE_CLEAN);
    return status;
}

/* Threads that wait are sent away, and all that are inside are waited for; then everything is freed but *c itself and the
 * plans of hora_ready: whoever comes later finds it closed. */
void hora_close(struct core *c) {
    if (!c || atomic_exchange(&c->closing, 1)) return;
    if (c->rank >= 0 && atomic_load(&peer_at(c, c->rank)->left) == 2) atomic_store(&peer_at(c, c->rank)->state, GONE_CLEAN);
    if (c->rank >= 0 && atomic_load(&peer_at(c, c->rank)->state) != GONE_CLEAN) mark_dead(c, c->rank, "it closed without leaving");
    atomic_store(&c->stop, 1);
    wake_everyone(c);
    for (uint32_t inside; (inside = atomic_load(&c->callers)); wake_everyone(c))
        futex_wait(&c->callers, inside, 10 * 1000 * 1000, false);
    stop_link(c);
    if (c->executor_runs) {
        wake_executor(c);
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
    for (uint32_t i = 0; i < c->plan_count; i++) {
        struct plan *p = c->plans[i];
        if (p && !p->own) free_plan(c, p);
        else if (p) p->next_kept = c->kept, c->kept = p;
    }
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
    c->extents = NULL;
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
