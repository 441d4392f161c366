/* See simulate.h. Threads are coroutines; the functions that the compiler calls for memory accesses are at the end. */
#define _GNU_SOURCE
#include "simulate.h"
#include <errno.h>
#include <execinfo.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

enum { STACK_BYTES = 512 << 10, MOST_STEPS = 1000 * 1000, LOCAL_BYTES = 64, FRAMES = 5 };

enum waiting { RUNNABLE, ON_FUTEX, ON_MUTEX, ASLEEP, ON_THREAD, ENDED };

struct thread {
    ucontext_t context;
    char *stack;
    void (*body)(void *);
    void *(*started)(void *);
    void *argument;
    int rank;
    bool awaited;
    enum waiting waiting;
    const void *on; /* futex, mutex */
    uint32_t expected;
    uint64_t deadline;
    int joins;
    int asked; /* for its number */
    int priority;
    char local[LOCAL_BYTES];
    void *at[FRAMES]; /* where it is, for reports */
    uint32_t clock[MAX_THREADS];
};

char sim_failure[1024];
bool sim_faults;
const bool sim_exact = true;
uint64_t sim_steps;

static struct thread threads[MAX_THREADS];
static int thread_count, current;
static ucontext_t scheduler;
static uint64_t state, now;
static bool running, stopped[MAX_THREADS], killed[MAX_THREADS];

/* How this schedule is made. */
static bool by_priority;
static uint32_t switch_one_in, change_count;
static uint64_t changes[8];
static int lowest, busy;
static const void *race_at[2];
bool sim_detail;
static uint64_t act_step;
static bool (*act)(void);

extern char __start_sim_local[], __stop_sim_local[];
char sim_local_anchor __attribute__((section("sim_local"))); /* so that there is such a section */

uint64_t random_bits(void) {
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

void sim_fail(const char *format, ...) {
    if (*sim_failure) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sim_failure, sizeof sim_failure, format, arguments);
    va_end(arguments);
}

/* ---- scheduling ---- */

static void forget_memory(void);

void sim_begin(uint64_t seed) {
    state = seed * 0x2545f4914f6cdd1dull + 1;
    random_bits();
    *sim_failure = 0;
    sim_faults = false;
    busy = 0;
    sim_steps = 0;
    act = NULL;
    now = 1000 * 1000 * 1000;
    thread_count = 0;
    memset(stopped, 0, sizeof stopped);
    memset(killed, 0, sizeof killed);
    by_priority = chance(2);
    switch_one_in = 1u << (1 + 2 * below(4));
    lowest = -1;
    change_count = below(6);
    for (uint32_t i = 0; i < change_count; i++) changes[i] = below(chance(2) ? 1000 : 8000);
    forget_memory();
}

static bool can_run(int i) {
    return threads[i].waiting == RUNNABLE && !stopped[threads[i].rank] && !killed[threads[i].rank];
}

/* Back to the scheduler; it decides who goes on. */
static void leave(void) {
    struct thread *t = &threads[current];
    size_t bytes = (size_t)(__stop_sim_local - __start_sim_local);
    memcpy(t->local, __start_sim_local, bytes);
    void *frames[8];
    int depth = sim_detail ? backtrace(frames, 8) : 0;
    for (int i = 0; i < FRAMES && sim_detail; i++) t->at[i] = i + 2 < depth ? frames[i + 2] : NULL;
    swapcontext(&t->context, &scheduler);
    memcpy(__start_sim_local, t->local, bytes);
}

static void trampoline(void) {
    struct thread *t = &threads[current];
    memcpy(__start_sim_local, t->local, (size_t)(__stop_sim_local - __start_sim_local));
    if (t->started) t->started(t->argument);
    else t->body(t->argument);
    t->waiting = ENDED;
    for (int i = 0; i < thread_count; i++)
        if (threads[i].waiting == ON_THREAD && threads[i].joins == current) threads[i].waiting = RUNNABLE;
    leave();
}

static int spawn(int rank, bool awaited) {
    if (thread_count == MAX_THREADS) abort();
    int i = thread_count++;
    struct thread *t = &threads[i];
    char *stack = t->stack;
    memset(t, 0, sizeof *t);
    if (!stack) stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    t->stack = stack;
    t->rank = rank;
    t->awaited = awaited;
    t->priority = (int)below(1000000);
    if (running) {
        memcpy(t->clock, threads[current].clock, sizeof t->clock); /* what its maker did came before */
        threads[current].clock[current]++;
    }
    t->clock[i]++;
    getcontext(&t->context);
    t->context.uc_stack.ss_sp = stack;
    t->context.uc_stack.ss_size = STACK_BYTES;
    makecontext(&t->context, trampoline, 0);
    return i;
}

int sim_spawn(int rank, bool awaited, void (*body)(void *), void *argument) {
    int i = spawn(rank, awaited);
    threads[i].body = body;
    threads[i].argument = argument;
    return i;
}

static int pick(void) {
    int able[MAX_THREADS], n = 0, best = NOBODY;
    for (int i = 0; i < thread_count; i++)
        if (can_run(i)) able[n++] = i;
    if (!n) return NOBODY;
    if (!by_priority) return able[below((uint32_t)n)];
    for (int i = 0; i < n; i++)
        if (best == NOBODY || threads[able[i]].priority > threads[best].priority) best = able[i];
    return best;
}

/* Nobody can go on: let time pass until somebody can. */
static bool let_time_pass(void) {
    uint64_t first = UINT64_MAX;
    int who = NOBODY;
    for (int i = 0; i < thread_count; i++) {
        struct thread *t = &threads[i];
        if (stopped[t->rank] || killed[t->rank] || (t->waiting != ON_FUTEX && t->waiting != ASLEEP)) continue;
        if (t->deadline < first) first = t->deadline, who = i;
    }
    if (who == NOBODY) return false;
    if (threads[who].waiting == ON_FUTEX && !sim_faults && !busy && threads[who].awaited && !sim_network_busy())
        sim_fail("a wake-up is missing: all threads sleep, and thread %d of rank %d goes on only because its time is up",
                 who, threads[who].rank);
    if (!sim_faults && sim_slept_through() >= 0)
        sim_fail("a wake-up is missing: all threads sleep, and the leader of host %d was not woken by a knock", sim_slept_through());
    if (first > now) now = first;
    for (int i = 0; i < thread_count; i++) {
        struct thread *t = &threads[i];
        if ((t->waiting == ON_FUTEX || t->waiting == ASLEEP) && t->deadline <= now) t->waiting = RUNNABLE;
    }
    return true;
}

void sim_describe(void) {
    static const char *names[] = {"runs", "waits on a futex", "waits for a mutex", "sleeps", "waits for a thread", "ended"};
    printf("%s, time %.6f s\n", by_priority ? "scheduled by priority" : "scheduled at random", (double)now / 1e9 - 1);
    for (int i = 0; i < thread_count; i++)
        printf("  thread %d of rank %d %s%s%s\n", i, threads[i].rank, names[threads[i].waiting],
               stopped[threads[i].rank] ? ", stopped" : "", killed[threads[i].rank] ? ", killed" : "");
    if (!sim_detail) return;
    fflush(stdout);
    char command[4096], *end = command + sizeof command, *at = command;
    for (int i = 0; i < thread_count; i++) {
        at = command;
        at += snprintf(at, (size_t)(end - at), "echo 'thread %d:'; addr2line -e /proc/%d/exe -fsp", i, (int)getpid());
        for (int k = 0; k < FRAMES && threads[i].at[k]; k++) at += snprintf(at, (size_t)(end - at), " %p", threads[i].at[k]);
        if (threads[i].at[0] && system(command)) return;
    }
    if (!race_at[0]) return;
    snprintf(command, sizeof command, "echo 'accesses:'; addr2line -e /proc/%d/exe -fsp %p %p", (int)getpid(), race_at[0], race_at[1]);
    if (system(command)) return;
}

bool sim_run(void) {
    running = true;
    for (;;) {
        bool left = false;
        for (int i = 0; i < thread_count; i++)
            left |= threads[i].awaited && threads[i].waiting != ENDED && !killed[threads[i].rank];
        if (!left || *sim_failure) break;
        int next = pick();
        if (next == NOBODY) {
            if (let_time_pass()) continue;
            sim_fail("a wait that never ends");
            break;
        }
        if (sim_steps > MOST_STEPS) {
            sim_fail("no end after %d steps", MOST_STEPS);
            break;
        }
        current = next;
        swapcontext(&scheduler, &threads[next].context);
    }
    running = false;
    return !*sim_failure;
}

void sim_point(void) {
    if (!running) return;
    sim_steps++;
    now += 20;
    if (act && sim_steps >= act_step && act()) act = NULL;
    if (*sim_failure || sim_steps > MOST_STEPS) leave();
    if (by_priority) {
        for (uint32_t i = 0; i < change_count; i++)
            if (changes[i] == sim_steps) threads[current].priority = lowest--;
        if (pick() != current) leave();
    } else if (chance(switch_one_in)) {
        leave();
    }
}

static void block(enum waiting waiting, const void *on, uint64_t deadline) {
    struct thread *t = &threads[current];
    t->waiting = waiting;
    t->on = on;
    t->deadline = deadline;
    leave();
}

int sim_yield(void) {
    sim_steps++;
    now += 1000;
    threads[current].priority = lowest--;
    leave();
    return 0;
}

void sim_at(uint64_t step, bool (*what)(void)) { act_step = step, act = what; }
void sim_busy(int more) { busy += more; }
void sim_sleep(uint64_t ns) { block(ASLEEP, NULL, now + ns); }
uint64_t sim_now(void) { return now; }
int sim_rank(void) { return threads[current].rank; }

void sim_stop(int rank) {
    sim_faults = true;
    stopped[rank] = true;
    act = NULL;
    if (threads[current].rank == rank) leave();
}

void sim_continue(int rank) { stopped[rank] = false; }

void sim_kill(int rank) {
    sim_faults = true;
    killed[rank] = true;
    act = NULL;
    sim_network_kill(rank);
    if (running && threads[current].rank == rank) leave();
}

/* ---- what the core asks the system for ---- */

static uint32_t *word_of(const void *address); /* the same for all mappings of a segment */

long sim_syscall(long number, ...) {
    va_list a;
    va_start(a, number);
    long result = 0;
    if (number == SYS_futex) {
        uint32_t *w = va_arg(a, uint32_t *);
        int what = va_arg(a, int);
        uint32_t value = va_arg(a, uint32_t);
        struct timespec *timeout = va_arg(a, struct timespec *);
        sim_point();
        if ((what & FUTEX_CMD_MASK) == FUTEX_WAIT) {
            uint64_t ns = timeout ? (uint64_t)timeout->tv_sec * 1000000000ull + (uint64_t)timeout->tv_nsec : UINT64_MAX / 2;
            if (__atomic_load_n(w, __ATOMIC_SEQ_CST) == value) block(ON_FUTEX, word_of(w), now + ns);
        } else {
            for (int i = 0; i < thread_count && value; i++)
                if (threads[i].waiting == ON_FUTEX && threads[i].on == word_of(w)) threads[i].waiting = RUNNABLE, value--;
        }
    } else if (number == SYS_gettid) {
        if (threads[current].asked++) sim_fail("thread %d asks for its number again: it was to keep it", current);
        result = 1000 + current;
    } else if (number == SYS_tgkill) {
        (void)va_arg(a, int);
        int thread = va_arg(a, int) - 1000;
        result = thread >= 0 && thread < thread_count && threads[thread].waiting != ENDED ? 0 : -1;
    } else {
        errno = ENOSYS;
        result = -1;
    }
    va_end(a);
    return result;
}

int sim_clock_gettime(clockid_t clock, struct timespec *t) {
    (void)clock;
    now += 200;
    t->tv_sec = (time_t)(now / 1000000000ull);
    t->tv_nsec = (long)(now % 1000000000ull);
    return 0;
}

int sim_nanosleep(const struct timespec *t, struct timespec *left) {
    (void)left;
    sim_sleep((uint64_t)t->tv_sec * 1000000000ull + (uint64_t)t->tv_nsec);
    return 0;
}

static void acquired(const void *sync);
static void released(const void *sync, bool keep);

int sim_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *attributes) {
    (void)attributes;
    *(int *)m = 0;
    return 0;
}

int sim_mutex_trylock(pthread_mutex_t *m) {
    sim_point();
    if (running && *(int *)m) return EBUSY;
    *(int *)m = current + 1;
    if (running) acquired(m);
    return 0;
}

int sim_mutex_lock(pthread_mutex_t *m) {
    while (sim_mutex_trylock(m)) {
        if (*(int *)m == current + 1) sim_fail("rank %d locks a mutex that it holds", sim_rank());
        block(ON_MUTEX, m, UINT64_MAX);
    }
    return 0;
}

int sim_mutex_unlock(pthread_mutex_t *m) {
    if (running && *(int *)m != current + 1) sim_fail("rank %d unlocks a mutex that it does not hold", sim_rank());
    if (running) released(m, false);
    *(int *)m = 0;
    for (int i = 0; i < thread_count; i++)
        if (threads[i].waiting == ON_MUTEX && threads[i].on == m) threads[i].waiting = RUNNABLE;
    sim_point();
    return 0;
}

int sim_thread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) {
    (void)attributes;
    int i = spawn(threads[current].rank, false);
    threads[i].started = body;
    threads[i].argument = argument;
    *thread = (pthread_t)i;
    return 0;
}

int sim_thread_join(pthread_t thread, void **result) {
    (void)result;
    sim_point();
    struct thread *t = &threads[current];
    t->joins = (int)thread;
    while (threads[thread].waiting != ENDED) block(ON_THREAD, NULL, UINT64_MAX);
    for (int i = 0; i < MAX_THREADS; i++)
        if (threads[thread].clock[i] > t->clock[i]) t->clock[i] = threads[thread].clock[i];
    return 0;
}

/* ---- who did what to memory: happens-before by vector clocks ---- */

enum { MAX_WATCHED = 12, REGIONS = 5, PAGE = 4096, GRANULE = 4, SYNCS = 1 << 13 };

static struct watched { const char *base; size_t bytes; int region; } watched[MAX_WATCHED];
static int watched_count;

struct place { const void *writer_at, *reader_at; uint32_t written, read; int8_t writer, reader; uint16_t readers; };
struct page { uint64_t schedule; struct place places[PAGE / GRANULE]; };
static struct page **pages[REGIONS];
static size_t page_room[REGIONS];
static uint32_t (*reader_clocks)[MAX_THREADS];
static uint32_t reader_count;
static uint64_t schedule;
enum { MOST_READERS = 65535 };

static struct sync { const void *key; uint64_t schedule; uint32_t clock[MAX_THREADS]; } syncs[SYNCS];

static void forget_memory(void) {
    schedule++;
    watched_count = 0;
    reader_count = 0;
    if (!reader_clocks) reader_clocks = calloc(MOST_READERS + 1, sizeof *reader_clocks);
}

void sim_wait(const void *on, uint64_t deadline) { block(ON_FUTEX, on, deadline); }
void sim_wake(const void *on) {
    for (int i = 0; i < thread_count; i++)
        if (threads[i].waiting == ON_FUTEX && threads[i].on == on) threads[i].waiting = RUNNABLE;
}
void sim_acquired(const void *on) { if (running) acquired(on); }
void sim_released(const void *on) { if (running) released(on, true); }

void sim_watch(const void *base, size_t bytes, int region) {
    int i = 0; /* what was here before has been unmapped */
    while (i < watched_count && ((const char *)base >= watched[i].base + watched[i].bytes || (const char *)base + bytes <= watched[i].base)) i++;
    if (i == MAX_WATCHED) abort();
    if (i == watched_count) watched_count++;
    watched[i] = (struct watched){base, bytes, region};
    size_t wanted = bytes / PAGE + 2;
    if (wanted > page_room[region]) {
        pages[region] = realloc(pages[region], wanted * sizeof(struct page *));
        memset(pages[region] + page_room[region], 0, (wanted - page_room[region]) * sizeof(struct page *));
        page_room[region] = wanted;
    }
}

static bool find(const void *address, int *region, size_t *offset) {
    for (int i = 0; i < watched_count; i++) {
        size_t at = (size_t)((const char *)address - watched[i].base);
        if ((const char *)address < watched[i].base || at >= watched[i].bytes) continue;
        *region = watched[i].region, *offset = at;
        return true;
    }
    return false;
}

static uint32_t *word_of(const void *address) {
    int region;
    size_t offset;
    if (!find(address, &region, &offset)) return (uint32_t *)address;
    return (uint32_t *)(uintptr_t)(((uintptr_t)region + 1) << 56 | offset);
}

static struct sync *sync_of(const void *address) {
    const void *key = word_of(address);
    size_t at = ((uintptr_t)key >> 2) * 0x9e3779b97f4a7c15ull >> 51;
    for (;; at = (at + 1) % SYNCS) {
        struct sync *s = &syncs[at % SYNCS];
        if (s->schedule != schedule) {
            *s = (struct sync){.key = key, .schedule = schedule};
            return s;
        }
        if (s->key == key) return s;
    }
}

static void acquired(const void *address) {
    struct sync *s = sync_of(address);
    struct thread *t = &threads[current];
    for (int i = 0; i < thread_count; i++)
        if (s->clock[i] > t->clock[i]) t->clock[i] = s->clock[i];
}

/* keep: what was released there before still counts, as it does for a read-modify-write. */
static void released(const void *address, bool keep) {
    struct sync *s = sync_of(address);
    struct thread *t = &threads[current];
    for (int i = 0; i < MAX_THREADS; i++)
        if (!keep || t->clock[i] > s->clock[i]) s->clock[i] = t->clock[i];
    t->clock[current]++;
}

static void race(const char *what, int other, const void *theirs, const void *mine, const void *address) {
    int region = 0;
    size_t offset = 0;
    find(address, &region, &offset);
    race_at[0] = mine, race_at[1] = theirs;
    sim_fail("rank %d %s what rank %d uses, and nothing says which comes first (%s + %#zx)", sim_rank(), what,
             threads[other].rank, region == REGIONS - 1 ? "a tensor" : "a segment", offset);
}

static void access_granule(struct place *p, bool write, const void *address, const void *code) {
    struct thread *t = &threads[current];
    if (p->written && p->writer != current && p->written > t->clock[p->writer])
        race(write ? "overwrites" : "reads", p->writer, p->writer_at, code, address);
    if (write) {
        if (p->readers) {
            for (int i = 0; i < MAX_THREADS; i++)
                if (i != current && reader_clocks[p->readers][i] > t->clock[i])
                    race("overwrites", i, p->reader_at, code, address);
        } else if (p->read && p->reader != current && p->read > t->clock[p->reader]) {
            race("overwrites", p->reader, p->reader_at, code, address);
        }
        *p = (struct place){.writer_at = code, .written = t->clock[current], .writer = (int8_t)current};
        return;
    }
    p->reader_at = code;
    if (p->readers) {
        reader_clocks[p->readers][current] = t->clock[current];
    } else if (!p->read || p->reader == current || p->read <= t->clock[p->reader]) {
        p->read = t->clock[current], p->reader = (int8_t)current;
    } else if (reader_count < MOST_READERS) { /* several at once */
        p->readers = (uint16_t)++reader_count;
        memset(reader_clocks[p->readers], 0, sizeof *reader_clocks);
        reader_clocks[p->readers][p->reader] = p->read;
        reader_clocks[p->readers][current] = t->clock[current];
    }
}

static void touched(const void *address, size_t bytes, bool write, const void *code) {
    int region;
    size_t offset;
    if (!running || !bytes || !find(address, &region, &offset)) return;
    for (size_t at = offset / GRANULE * GRANULE; at < offset + bytes; at += GRANULE) {
        struct page **p = &pages[region][at / PAGE];
        if (!*p) *p = calloc(1, sizeof **p);
        if ((*p)->schedule != schedule) {
            memset(*p, 0, sizeof **p);
            (*p)->schedule = schedule;
        }
        access_granule(&(*p)->places[at % PAGE / GRANULE], write, address, code);
    }
}

void sim_touch(const void *memory, size_t bytes, bool write) { touched(memory, bytes, write, __builtin_return_address(0)); }

void *sim_memcpy(void *to, const void *from, size_t bytes) {
    touched(from, bytes, false, __builtin_return_address(0));
    touched(to, bytes, true, __builtin_return_address(0));
    return memcpy(to, from, bytes);
}

void *sim_memset(void *to, int value, size_t bytes) {
    touched(to, bytes, true, __builtin_return_address(0));
    return memset(to, value, bytes);
}

int sim_memcmp(const void *a, const void *b, size_t bytes) {
    touched(a, bytes, false, __builtin_return_address(0));
    touched(b, bytes, false, __builtin_return_address(0));
    return memcmp(a, b, bytes);
}

/* ---- what -fsanitize=thread calls ---- */

#define PLAIN(name, bytes)                                                                                                 \
    void __tsan_read##name(const void *p) { touched(p, bytes, false, __builtin_return_address(0)); }                      \
    void __tsan_write##name(const void *p) { touched(p, bytes, true, __builtin_return_address(0)); }                      \
    void __tsan_unaligned_read##name(const void *p) { touched(p, bytes, false, __builtin_return_address(0)); }            \
    void __tsan_unaligned_write##name(const void *p) { touched(p, bytes, true, __builtin_return_address(0)); }
PLAIN(1, 1)
PLAIN(2, 2)
PLAIN(4, 4)
PLAIN(8, 8)
PLAIN(16, 16)
void __tsan_read_range(const void *p, size_t n) { touched(p, n, false, __builtin_return_address(0)); }
void __tsan_write_range(const void *p, size_t n) { touched(p, n, true, __builtin_return_address(0)); }
void __tsan_init(void) {}
void __tsan_func_entry(void *caller) { (void)caller; }
void __tsan_func_exit(void) {}
void __tsan_atomic_thread_fence(int order) { (void)order; }
void __tsan_atomic_signal_fence(int order) { (void)order; }

static void loaded(const void *p, int order) {
    if (running && order != __ATOMIC_RELAXED && order != __ATOMIC_RELEASE) acquired(p);
}

static void stored(const void *p, int order, bool keep) {
    if (running && order != __ATOMIC_RELAXED && order != __ATOMIC_CONSUME && order != __ATOMIC_ACQUIRE) released(p, keep);
}

#define FETCH(bits, type, name, operator)                                                                                  \
    type __tsan_atomic##bits##_fetch_##name(volatile type *p, type v, int order) {                                        \
        sim_point();                                                                                                       \
        type was = *p;                                                                                                     \
        *p = (type)(was operator v);                                                                                       \
        loaded((void *)p, order), stored((void *)p, order, true);                                                          \
        return was;                                                                                                        \
    }
#define ATOMIC(bits, type)                                                                                                 \
    type __tsan_atomic##bits##_load(const volatile type *p, int order) {                                                  \
        sim_point();                                                                                                       \
        loaded((const void *)p, order);                                                                                    \
        return *p;                                                                                                         \
    }                                                                                                                      \
    void __tsan_atomic##bits##_store(volatile type *p, type v, int order) {                                               \
        sim_point();                                                                                                       \
        *p = v;                                                                                                            \
        stored((void *)p, order, false);                                                                                   \
    }                                                                                                                      \
    type __tsan_atomic##bits##_exchange(volatile type *p, type v, int order) {                                            \
        sim_point();                                                                                                       \
        type was = *p;                                                                                                     \
        *p = v;                                                                                                            \
        loaded((void *)p, order), stored((void *)p, order, true);                                                          \
        return was;                                                                                                        \
    }                                                                                                                      \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile type *p, type *expected, type v, int order, int failed) {   \
        sim_point();                                                                                                       \
        type was = *p;                                                                                                     \
        if (was != *expected) {                                                                                            \
            *expected = was;                                                                                               \
            loaded((void *)p, failed);                                                                                     \
            return 0;                                                                                                      \
        }                                                                                                                  \
        *p = v;                                                                                                            \
        loaded((void *)p, order), stored((void *)p, order, true);                                                          \
        return 1;                                                                                                          \
    }                                                                                                                      \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile type *p, type *expected, type v, int order, int failed) {     \
        return __tsan_atomic##bits##_compare_exchange_strong(p, expected, v, order, failed);                               \
    }                                                                                                                      \
    type __tsan_atomic##bits##_compare_exchange_val(volatile type *p, type expected, type v, int order, int failed) {      \
        __tsan_atomic##bits##_compare_exchange_strong(p, &expected, v, order, failed);                                     \
        return expected;                                                                                                   \
    }                                                                                                                      \
    FETCH(bits, type, add, +) FETCH(bits, type, sub, -) FETCH(bits, type, and, &) FETCH(bits, type, or, |)                 \
    FETCH(bits, type, xor, ^)
ATOMIC(8, uint8_t)
ATOMIC(16, uint16_t)
ATOMIC(32, uint32_t)
ATOMIC(64, uint64_t)
