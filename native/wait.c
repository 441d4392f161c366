/* Waiting: futexes, the one lock, the bell, and barriers.
 *
 * Where there are cores for all, a waiter spins a little first, because a peer is usually only microseconds away. Where
 * there are more workers than cores spinning would only keep the awaited peer off its core, so it yields a few times
 * instead: tried with four workers on two cores, that made a small operation several times faster than going to sleep
 * at once, and more yields gained nothing. Then it sleeps.
 * Every sleep is cut into slices, and between slices the waiter looks at the abort word: no wake-up that got lost and no
 * rank that died can keep anybody here.
 */
#include "core.h"
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { SLICE_NS = 50 * 1000 * 1000, YIELDS = 8 };

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

bool aborted(struct core *c) { return atomic_load_explicit(&c->header->abort, memory_order_acquire) != 0; }

/* 0, or ABORTED: a rank may have died holding it. */
int lock(struct core *c) {
    word *l = &c->header->lock;
    uint32_t expected = 0;
    for (int i = 0; i < 100; i++) {
        expected = 0;
        if (atomic_compare_exchange_weak_explicit(l, &expected, 1, memory_order_acquire, memory_order_relaxed)) return 0;
        relax();
    }
    while (atomic_exchange_explicit(l, 2, memory_order_acquire) != 0) {
        if (aborted(c)) return ABORTED;
        futex_wait(l, 2, SLICE_NS, true);
    }
    return 0;
}

void ring(struct core *c) {
    struct header *h = c->header;
    atomic_fetch_add(&h->bell, 1);
    if (atomic_load(&h->sleepers)) futex_wake(&h->bell, INT_MAX, true);
}

void unlock(struct core *c) {
    bool wanted = c->ring_wanted;
    uint64_t executors[MAX_RANKS / 64];
    if (wanted) {
        memcpy(executors, c->executors_wanted, sizeof executors);
        memset(c->executors_wanted, 0, sizeof executors);
        c->ring_wanted = false;
    }
    if (atomic_exchange_explicit(&c->header->lock, 0, memory_order_release) == 2)
        futex_wake(&c->header->lock, 1, true);
    if (!wanted) return;
    ring(c);
    for (int r = 0; r < c->size; r++)
        if (has(executors, r)) wake_executor(c, r);
}

/* Wait until *w differs from seen (or *also from unless), the deadline passes or the job aborts. */
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
    while (atomic_load(w) == seen && !(also && atomic_load(also) != unless) && !aborted(c)) {
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

/* All members of the set meet; 0, or ABORTED. */
int barrier_wait(struct core *c, struct set *s) {
    struct barrier *b = &s->barrier;
    if (s->count == 1) return 0;
    uint32_t phase = atomic_load_explicit(&b->phase, memory_order_acquire);
    if (atomic_fetch_add_explicit(&b->arrived, 1, memory_order_acq_rel) + 1 == s->count) {
        atomic_store_explicit(&b->arrived, 0, memory_order_relaxed);
        atomic_fetch_add(&b->phase, 1);
        if (atomic_load(&b->sleepers)) futex_wake(&b->phase, INT_MAX, true);
        return 0;
    }
    while (atomic_load_explicit(&b->phase, memory_order_acquire) == phase) {
        if (aborted(c)) return ABORTED;
        wait_word(c, &b->phase, phase, &b->sleepers, UINT64_MAX, true, NULL, 0);
    }
    return 0;
}

void wake_executor(struct core *c, int rank) {
    atomic_fetch_add(&rank_at(c, rank)->executor_bell, 1);
    futex_wake(&rank_at(c, rank)->executor_bell, 1, true);
}

void wake_everyone(struct core *c) {
    struct header *h = c->header;
    atomic_fetch_add(&h->bell, 1);
    futex_wake(&h->bell, INT_MAX, true);
    futex_wake(&h->lock, INT_MAX, true);
    for (uint32_t s = 0; s < MAX_SETS && set_at(c, s)->count; s++) futex_wake(&set_at(c, s)->barrier.phase, INT_MAX, true);
}
