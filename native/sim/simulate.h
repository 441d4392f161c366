/* The simulator: threads of several ranks in one process, one at a time, in an order that a seed decides.
 *
 * Owns the scheduler (random, or PCT: priorities that change at few points), virtual time, futexes, mutexes and threads,
 * and the record of who wrote and read what: two accesses to one place of memory that nothing orders are an error, whatever
 * came of them. program.c has what the ranks do, and model.c what must come of it.
 */
#ifndef HORA_SIMULATE_H
#define HORA_SIMULATE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_THREADS = 24, NOBODY = -1 };

/* A generator of numbers: splitmix64. */
uint64_t random_bits(void);
static inline uint32_t below(uint32_t n) { return (uint32_t)(random_bits() >> 32) % n; }
static inline bool chance(uint32_t one_in) { return below(one_in) == 0; }

/* One schedule: begin, spawn threads, run until all that are awaited have ended. False if it failed: `failure` says how. */
void sim_begin(uint64_t seed);
int sim_spawn(int rank, bool awaited, void (*body)(void *), void *argument);
bool sim_run(void);
extern char sim_failure[1024];
void sim_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

extern bool sim_detail;   /* note where threads are, for sim_describe */
void sim_describe(void); /* how it was scheduled, and where everybody is */

/* For the threads: */
void sim_point(void);                           /* somebody else may go on here */
void sim_sleep(uint64_t ns);
uint64_t sim_now(void);
int sim_rank(void);                             /* whose thread this is */
void sim_touch(const void *memory, size_t bytes, bool write); /* this thread accesses that */

/* Faults, and what must be known of them. */
void sim_stop(int rank);                        /* its threads do not go on */
void sim_continue(int rank);
void sim_kill(int rank);                        /* its threads never go on; the one that calls it neither, if it is its */
void sim_at(uint64_t step, bool (*act)(void));  /* whoever takes that step does this first; the next one too, until true */
void sim_busy(int threads);                     /* so many more are busy elsewhere: others may rightly wait for them */
extern const bool sim_exact;                    /* time and order are the simulator's; else (stress.c) the machine's */
extern bool sim_faults;                         /* a fault has happened: sleeps may end by their bound, not by a wake-up */
extern uint64_t sim_steps;

/* For network.c: sleep on something until it is woken or the time is up; what was done before comes before. */
void sim_wait(const void *on, uint64_t deadline);
void sim_wake(const void *on);
void sim_acquired(const void *on);
void sim_released(const void *on);
void sim_network_begin(void);
void sim_pair(int *pair, int rank_a, int rank_b); /* a connection between these */
void sim_network_kill(int rank);
void sim_network_cut(void);                       /* some connection, and both its ends live */
bool sim_network_busy(void);                      /* something is on its way */
int sim_slept_through(void);                       /* see program.c */
void sim_network_describe(void);

/* Memory that is watched: the same at several addresses (the mappings of one segment), or at one. */
void sim_watch(const void *base, size_t bytes, int region);
#endif
