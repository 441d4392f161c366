/* The programs of program.c on real threads, for the sanitizers: simulate.h without a scheduler.
 *
 * Ranks are threads of one process and share one mapping of the segment, so that a sanitizer sees what each of them does to
 * the same memory. There are no faults here, and no order but the machine's own.
 */
#define _GNU_SOURCE
#include "core.h"
#include "simulate.h"
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

struct thread { pthread_t id; int rank; bool awaited; void (*body)(void *); void *argument; uint64_t state; };

char sim_failure[1024];
bool sim_faults, sim_detail;
const bool sim_exact = false;
uint64_t sim_steps;

static struct thread threads[MAX_THREADS * 4];
static int thread_count;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER, gate = PTHREAD_MUTEX_INITIALIZER;
static __thread struct thread *self_thread;
static uint64_t state;

static uint64_t next_bits(uint64_t *at) {
    uint64_t z = (*at += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

uint64_t random_bits(void) { return next_bits(self_thread ? &self_thread->state : &state); }

void sim_begin(uint64_t seed) {
    state = seed;
    *sim_failure = 0;
    sim_faults = false;
    thread_count = 0;
    pthread_mutex_lock(&gate); /* nobody begins before all are there */
}

static void *run(void *argument) {
    self_thread = argument;
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    self_thread->body(self_thread->argument);
    return NULL;
}

int sim_spawn(int rank, bool awaited, void (*body)(void *), void *argument) {
    uint64_t bits = random_bits();
    pthread_mutex_lock(&guard);
    int i = thread_count;
    threads[i] = (struct thread){.rank = rank, .awaited = awaited, .body = body, .argument = argument, .state = bits};
    if (pthread_create(&threads[i].id, NULL, run, &threads[i])) __builtin_trap();
    thread_count++;
    pthread_mutex_unlock(&guard);
    return i;
}

bool sim_run(void) {
    pthread_mutex_unlock(&gate);
    for (int i = 0;; i++) {
        pthread_mutex_lock(&guard);
        bool more = i < thread_count;
        pthread_t id = threads[i].id;
        pthread_mutex_unlock(&guard);
        if (!more) return !*sim_failure;
        pthread_join(id, NULL);
    }
}

void sim_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&guard);
    if (!*sim_failure) vsnprintf(sim_failure, sizeof sim_failure, format, arguments);
    pthread_mutex_unlock(&guard);
    va_end(arguments);
}

uint64_t sim_now(void) { return now_ns(); }
int sim_rank(void) { return self_thread ? self_thread->rank : -1; }
void sim_point(void) { sched_yield(); }

void sim_sleep(uint64_t ns) {
    if (ns > 2 * 1000 * 1000) ns = 2 * 1000 * 1000; /* nothing is learnt from waiting longer */
    struct timespec t = {0, (long)ns};
    nanosleep(&t, NULL);
}

void sim_touch(const void *memory, size_t bytes, bool write) { (void)memory, (void)bytes, (void)write; } /* the sanitizer sees */
void sim_watch(const void *base, size_t bytes, int region) { (void)base, (void)bytes, (void)region; }
void sim_stop(int rank) { (void)rank; }
void sim_continue(int rank) { (void)rank; }
void sim_kill(int rank) { (void)rank; }
void sim_at(uint64_t step, bool (*act)(void)) { (void)step, (void)act; }
void sim_busy(int more) { (void)more; }
void sim_describe(void) {}
void sim_network_begin(void) {}
void sim_network_cut(void) {}
void sim_network_describe(void) {}
void sim_pair(int *pair, int rank_a, int rank_b) {
    (void)rank_a, (void)rank_b;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) __builtin_trap();
}

/* One mapping for all. */
void *__real_hora_map(int fd);
void __real_hora_unmap(void *base);
static struct mapping { int fd, users; void *base; } mappings[8];

void *__wrap_hora_map(int fd) {
    pthread_mutex_lock(&guard);
    struct mapping *m = mappings;
    while (m->users && m->fd != fd) m++;
    if (!m->users) m->base = __real_hora_map(fd), m->fd = fd;
    m->users++;
    void *base = m->base;
    pthread_mutex_unlock(&guard);
    return base;
}

void __wrap_hora_unmap(void *base) {
    pthread_mutex_lock(&guard);
    for (struct mapping *m = mappings; base && m < mappings + 8; m++)
        if (m->users && m->base == base && !--m->users) __real_hora_unmap(base);
    pthread_mutex_unlock(&guard);
}
