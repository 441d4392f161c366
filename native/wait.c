/* Waiting: futexes, the one lock, the bell, and barriers.
 *
 * Where there are cores for all, a waiter spins a little first, because a peer is usually only microseconds away. Where
 * there are more workers than cores spinning would only keep the awaited peer off its core, so it yields a few times
 * instead: tried with four workers on two cores, that made a small operation several times faster than going to sleep
 * at once, and more yields gained nothing. Then it sleeps.
 * Every sleep is cut into slices, and between slices the waiter looks at the abort word: no wake-up that got lost and no
 * rank that died can keep anybody here. Nor can a rank that is stopped while it holds the lock: after LOCK_NS a call
 * gives up and says PENDING, so that Ctrl-C acts, and the lock says who holds it, so that it can be named and given up.
 */
#include "core.h"
#include "hora.h"
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SLICE_NS = 50 * 1000 * 1000, LOCK_NS = 200 * 1000 * 1000, YIELDS = 8 };
#define WANTED 0x80000000u

__thread bool never_spin;

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void futex_wait(word *w, uint32_t value, uint64_t timeout_ns, bool shared) {
    struct timespec t = {(time_t)(timeout_ns / 1000000000ull), (long)(timeout_ns % 1000000000ull)};
    syscall(SYS_futex, w, shared ? FUTEX_WAIT : FUTEX_WAIT_PRIVATE, value, &t, NULL, 0);
}

void futex_wake(word *w, int count, bool shared) {
    syscall(SYS_futex, w, shared ? FUTEX_WAKE : FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

/* Whether there is nothing to wait for any more: 0, ABORTED or CLOSED. */
int over(struct core *c) {
    if (__builtin_expect(atomic_load_explicit(&c->header->abort, memory_order_acquire) != 0, 0)) return ABORTED;
    return __builtin_expect(atomic_load_explicit(&c->closing, memory_order_acquire) != 0, 0) ? CLOSED : 0;
}

static bool take_lock(struct core *c, uint32_t flag) {
    uint32_t free = 0;
    return atomic_compare_exchange_strong_explicit(&c->header->lock, &free, (uint32_t)(c->rank + 1) | flag,
                                                   memory_order_acquire, memory_order_relaxed);
}

/* 0; ABORTED or CLOSED; or PENDING if somebody has held it all the time. */
int lock(struct core *c) {
    word *l = &c->header->lock;
    for (int i = 0; i < 100; i++) {
        if (take_lock(c, 0)) return 0;
        relax();
    }
    uint64_t deadline = now_ns() + LOCK_NS;
    while (!take_lock(c, WANTED)) { /* wanted: others may sleep for it too */
        uint32_t held = atomic_load(l);
        if (!held || (!(held & WANTED) && !atomic_compare_exchange_strong(l, &held, held | WANTED))) continue;
        int status = over(c);
        if (status) return status;
        uint64_t now = now_ns();
        if (now >= deadline) return PENDING;
        futex_wait(l, held | WANTED, deadline - now < SLICE_NS ? deadline - now : SLICE_NS, true);
    }
    return 0;
}

/* The rank that holds the lock, or -1. */
int hora_holder(struct core *c) {
    VISIT(c, -1);
    return (int)(atomic_load(&c->header->lock) & ~WANTED) - 1;
}

void ring(struct core *c) {
    struct header *h = c->header;
    atomic_fetch_add(&h->bell, 1);
    if (atomic_load(&h->sleepers)) futex_wake(&h->bell, INT_MAX, true);
}

static void wake_place(struct core *c, int place) {
    struct rank *rank = (struct rank *)(c->base + c->header->at_ranks) + place;
    atomic_fetch_add(&rank->executor_bell, 1);
    futex_wake(&rank->executor_bell, 1, true);
}

void wake_executor(struct core *c) { wake_place(c, c->here); }

void unlock(struct core *c) {
    bool wanted = c->ring_wanted, post_wanted = c->post_wanted;
    c->post_wanted = false;
    uint64_t executors[MAX_HERE / 64];
    if (wanted) {
        memcpy(executors, c->executors_wanted, sizeof executors);
        memset(c->executors_wanted, 0, sizeof executors);
        c->ring_wanted = false;
    }
    uint32_t held = atomic_exchange_explicit(&c->header->lock, 0, memory_order_release);
    if (held & WANTED) futex_wake(&c->header->lock, 1, true);
    if (!sound(c, (held & ~WANTED) == (uint32_t)(c->rank + 1), "the table's lock was not held by who let it go")) return;
    if (post_wanted) wake_leader(c);
    if (!wanted) return;
    ring(c);
    for (uint32_t w = 0; w * 64 < c->header->here; w++)
        for (uint64_t bits = executors[w]; bits; bits &= bits - 1) wake_place(c, (int)w * 64 + __builtin_ctzll(bits));
}

/* Wait until *w differs from seen (or *also from unless), the deadline passes or it is over. */
static void wait_word(struct core *c, word *w, uint32_t seen, word *sleepers, uint64_t deadline_ns, bool spin,
                      const word *also, uint32_t unless) {
    if (spin && c->spin_ns && !never_spin) {
        uint64_t until = now_ns() + c->spin_ns;
        if (until > deadline_ns) until = deadline_ns;
        do {
            for (int i = 0; i < 64; i++) {
                if (atomic_load_explicit(w, memory_order_acquire) != seen) return;
                if (also && atomic_load_explicit(also, memory_order_acquire) != unless) return;
                relax();
            }
        } while (now_ns() < until);
    }
    for (int i = 0; spin && i < YIELDS; i++) {
        if (atomic_load_explicit(w, memory_order_acquire) != seen) return;
        if (also && atomic_load_explicit(also, memory_order_acquire) != unless) return;
        sched_yield();
    }
    atomic_fetch_add(sleepers, 1);
    while (atomic_load(w) == seen && !(also && atomic_load(also) != unless) && !over(c)) {
        uint64_t now = now_ns();
        if (now >= deadline_ns) break;
        uint64_t left = deadline_ns - now;
        futex_wait(w, seen, left < SLICE_NS ? left : SLICE_NS, true);
    }
    atomic_fetch_sub(sleepers, 1);
}

void wait_bell(struct core *c, uint32_t seen, uint64_t deadline_ns, bool spin, const word *also, uint32_t unless) {
    wait_word(c, &c->header->bell, seen, &c->header->sleepers, deadline_ns, spin, also, unless);
}

/* All members of the set meet; 0, ABORTED or CLOSED. Whoever gave up a barrier still counts in it, but gave up because it
 * was over: so nobody believes in a barrier that was completed after that. */
int barrier_wait(struct core *c, struct set *s) {
    struct barrier *b = &s->barrier;
    if (s->count == 1) return 0;
    uint32_t phase = atomic_load_explicit(&b->phase, memory_order_acquire);
    if (atomic_fetch_add_explicit(&b->arrived, 1, memory_order_acq_rel) + 1 == s->count) {
        atomic_store_explicit(&b->arrived, 0, memory_order_relaxed);
        atomic_fetch_add(&b->phase, 1);
        if (atomic_load(&b->sleepers)) futex_wake(&b->phase, INT_MAX, true);
        return over(c);
    }
    while (atomic_load_explicit(&b->phase, memory_order_acquire) == phase) {
        int status = over(c);
        if (status) return status;
        wait_word(c, &b->phase, phase, &b->sleepers, UINT64_MAX, true, NULL, 0);
    }
    return over(c);
}

/* A word that only grows, by who writes it, and by who waits until it has; 0, ABORTED or CLOSED. */
void count_up(word *w, word *sleepers, uint32_t count) {
    atomic_store(w, count);
    if (atomic_load(sleepers)) futex_wake(w, INT_MAX, true);
}

int wait_count(struct core *c, word *w, word *sleepers, uint32_t wanted) {
    for (uint32_t seen; (int32_t)((seen = atomic_load_explicit(w, memory_order_acquire)) - wanted) < 0;) {
        int status = over(c);
        if (status) return status;
        wait_word(c, w, seen, sleepers, UINT64_MAX, true, NULL, 0);
    }
    return 0;
}


void wake_everyone(struct core *c) {
    struct header *h = c->header;
    atomic_fetch_add(&h->bell, 1);
    futex_wake(&h->bell, INT_MAX, true);
    futex_wake(&h->lock, INT_MAX, true);
    for (uint32_t s = 0; s < MAX_SETS && atomic_load(&set_at(c, s)->made); s++) {
        futex_wake(&set_at(c, s)->barrier.phase, INT_MAX, true);
        if (!atomic_load(&set_at(c, s)->sleepers)) continue;
        for (uint32_t m = 0; m < set_at(c, s)->here_count; m++) futex_wake(&finished_of(set_at(c, s))[m], INT_MAX, true);
    }
}
