/* Hora's C core: collectives between the workers of one host, in shared memory.
 *
 * A plain shared library: no Python, no framework, no network. Python reaches it through the functions of hora.h.
 *
 * One memory file (a memfd, so there is nothing to unlink) holds everything the workers share:
 *
 *   header | ranks[n] | sets | failures | index | schedule[n] | slots[n] | entries | arenas[n]
 *
 * - An *entry* is a known operation: who has arrived at its open round, and with which fingerprint. The last member to
 *   arrive closes the round. Small payloads ride with the arrival, so a small operation is over when its round closes.
 * - A large operation is appended to the *schedule* of every member by whoever closes its round; every rank carries its
 *   schedule out in order, moving data through the *slots* (or in place, where every rank's buffer lies in its *arena*).
 * - A *failure* is a copy of what every rank said, kept so that all of them can print the same table.
 *
 * One lock guards entries, sets, failures and the schedule. Nothing waits under it. Every wait looks at the abort word,
 * so a rank that dies, even while it holds the lock, ends every other rank's wait. A rank that is stopped while it holds
 * the lock is known by its number in it, and no call waits for the lock for long.
 *
 * What must hold or a sum would be wrong is checked in every build (sound()); what does not hold ends the job.
 *
 * Files: kernels.c (arithmetic), finite.c (whose numbers are inf or nan), segment.c (layout, arena), wait.c (futex, lock,
 * barrier), table.c (arrivals, schedule, failures), move.c (carrying operations out), engine.c (plans, tickets, waiting,
 * join), life.c (opening, dying, leaving), report.c (what can be said about it). sim/ runs them under a scheduler of its own.
 */
#ifndef HORA_CORE_H
#define HORA_CORE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HORA_MAGIC 0x61726f48u /* "Hora" */
#define HORA_ABI 5

enum kind { ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER, BARRIER };
enum reduce_op { AVERAGE, SUM, ADASUM, MIN, MAX, PRODUCT };
enum dtype { UINT8, INT8, INT16, INT32, INT64, FLOAT16, BFLOAT16, FLOAT32, FLOAT64, BOOL, DTYPES };

/* What calls answer. Failures are the codes of a failure record. */
enum status {
    OK = 0,
    PENDING = 1,    /* not finished within the time given */
    FAILED = 2,     /* this operation failed: read its failure record */
    ABORTED = 3,    /* a rank died: this generation is over */
    DUPLICATE = 4,  /* the name is in flight on this rank */
    LEFT = 5,       /* a member has shut down */
    FULL = 6,       /* too many operations in flight, or out of memory */
    SUSPICIOUS = 7, /* done, but unnamed operations from different source lines were paired */
    NOT_FINITE = 8, /* done, but a result is inf or nan: ask hora_not_finite */
    CLOSED = 9,     /* this process closed its side meanwhile */
    TOO_MANY = 10,  /* more process sets, segments or numbers than there is room for */
};
enum failure_code { MISMATCH = 1, JOINED = 2, GONE = 3, DEADLOCK = 4, STALLED = 5, NOTE = 6, WITHDRAWN = 7 };
enum rank_state { ABSENT, LIVE, GONE_CLEAN, DEAD };

enum {
    MAX_RANKS = 256,
    MAX_WAITS = 16,
    MAX_HOSTS = MAX_RANKS,
    SLOTS = 3, /* slots a rank: one being filled, one being summed, one being read */
    DESCRIPTION_BYTES = 3072,
    FAILURES = 256,
    TEXT_BYTES = 16 << 10,
    STATUS_BYTES = 256,
    MAX_TICKETS = 1 << 16,
    MAX_PLANS = 1 << 17,
};
#ifndef HORA_SIMULATED
enum {
    MAX_SETS = 16384,
    MAX_ENTRIES = 16384, /* known operations; of more than 8 ranks, a quarter */
    MAX_SEGMENTS = 4096,
    MAX_META = 256,          /* numbers that ride with an arrival: one a member (alltoall) or a segment (allgather) */
    INLINE_BYTES = 8192,     /* payload that rides with an arrival */
    CHUNK_BYTES = 256 << 10, /* what goes through a slot at once: stays in cache */
    STEP_BYTES = 16 << 10,   /* what is summed at once: stays in the first-level cache */
    BATCH = 512,             /* operations carried out together */
    LEAST_CAPACITY = 64,     /* of the cache, in operations */
};
#else /* small, so that a little data crosses every threshold; see native/sim */
enum {
    MAX_SETS = 32,
    MAX_ENTRIES = 16,
    MAX_SEGMENTS = 8,
    MAX_META = 8,
    INLINE_BYTES = 64,
    CHUNK_BYTES = 256,
    STEP_BYTES = 64,
    BATCH = 4,
    LEAST_CAPACITY = 4,
};
#endif
_Static_assert((int)MAX_META >= (int)MAX_RANKS || MAX_SETS < 64, "an alltoall brings a number for each member");

#define LINE __attribute__((aligned(64)))

typedef _Atomic uint32_t word;

struct barrier { LINE word phase; word sleepers; LINE word arrived; };

struct header {
    uint32_t magic, abi, size, generation;
    uint64_t segment_bytes, arena_bytes;
    uint32_t entry_count;
    uint32_t here; /* ranks on this host */
    uint32_t hosts, host, leader; /* how many, which this is, and the lowest rank here, which speaks for it */
    uint32_t inline_bytes;        /* payload that rides with an arrival; less where many ranks are on several hosts */
    uint16_t host_of[MAX_RANKS];
    uint64_t at_ranks, at_sets, at_failures, at_entries, entry_bytes, at_index, at_schedule, at_posts, at_slots, at_arenas;
    LINE word abort;              /* first dead rank + 1 */
    LINE word lock;               /* 0 if free, else 1 + the rank that holds it, with WANTED if another sleeps for it */
    LINE word bell; word sleepers; /* rung whenever anything changes that somebody may wait for */
    LINE uint64_t used_entries, hand, next_stamp, failure_count;
    _Atomic uint64_t progress;
    _Atomic uint64_t join_round;  /* rounds of join() that all ranks have joined */
    uint32_t quiet;               /* this round of join() needs nothing more of this host */
    word joined_count, last_joined[2]; /* last_joined: by the round's parity */
    uint64_t post_tail, post_head; /* what the leader has yet to tell the other hosts: guarded by the lock */
    word posted;                   /* it has been woken for that */
    word door_open;                /* it listens, at */
    char door[32];                 /* an abstract Unix socket */
    uint64_t join_told[MAX_RANKS / 64]; /* the other hosts know that it has joined */
    uint64_t joined[MAX_RANKS / 64], joined_active[MAX_RANKS / 64]; /* active: the average is to be over active ranks */
};

/* What a host has to say to the others; see hosts.c. */
enum post_kind { POST_ARRIVED, POST_JOINED, POST_QUIET, POST_LEFT, POST_FAILED };
struct post { uint32_t what, entry; uint64_t stamp, round, value; };

struct wait { word entry; _Atomic uint64_t stamp; word used; }; /* used: thread id of the waiter, 0 if free */

/* What a member does when it meets the others at the first barrier of a movement. */
struct meeting { uint64_t slot_base, round; uint32_t entry, count; };

struct rank {
    LINE word state;
    word pid;
    word left; /* takes part in nothing new; set under the lock. Its state is GONE_CLEAN when the lock is free again */
    word thread_count;
    word threads[MAX_WAITS]; /* ids of the threads that submit */
    struct wait waits[MAX_WAITS];
    LINE _Atomic uint64_t tail; /* end of its part of the schedule */
    word executor_wanted;       /* operations are in flight and none of its threads waits: its executor has to act */
    word executor_asleep, executor_bell;
    char status[STATUS_BYTES];  /* how it ended, in words */
    char lost[STATUS_BYTES];    /* what the connection to its host said, if that broke */
    char text[TEXT_BYTES];      /* its last exception */
    LINE struct meeting meeting[2]; /* by the barrier's parity */
    int64_t scratch_at;         /* Adasum's workspace in its arena */
    double dots[2][3 * MAX_RANKS];
};

struct set {
    struct barrier barrier;
    LINE word finished[MAX_RANKS]; /* batches that went through the slots and that a member is done with, by position */
    word sleepers;                 /* waiting for one of these */
    word made;                     /* the rest is there, and stays as it is */
    uint32_t count;
    uint16_t members[MAX_RANKS];   /* ascending */
    int16_t position[MAX_RANKS];   /* of a rank among the members, or -1 */
    uint64_t key;                  /* the same on all hosts */
    uint32_t abroad, here_count;   /* whether members are on several hosts; how many are on this one */
    uint16_t here[MAX_RANKS];      /* which, ascending */
};

struct failure {
    uint64_t serial; /* which failure this is; records are reused */
    uint32_t code, entry;
    uint32_t length[MAX_RANKS];
    char text[TEXT_BYTES];
    char description[]; /* size * DESCRIPTION_BYTES */
};

struct shape { uint32_t dtype; uint32_t pad; uint64_t count; uint64_t row; }; /* row: elements in one step of dimension 0 */

/* What one rank said when it last arrived. */
struct arrival {
    LINE uint64_t fingerprint, line;
    uint64_t round;         /* the last round this rank arrived at, + 1: entry.round + 1 while it is in the open one */
    _Atomic uint64_t taken; /* the last round it is through with, + 1 */
    uint32_t unnamed, inlined; /* inlined: its payload rides along */
    int64_t arena_at; /* where its buffer lies in its arena if it is to be reduced in place, or was put there; else -1 */
    uint32_t payload_bytes; /* if inlined */
    _Atomic uint64_t time_ns;
    uint64_t plan;
    uint32_t description_length, meta_count;
    int64_t meta[MAX_META]; /* allgather: bytes of each segment; alltoall: bytes for each member */
    char description[DESCRIPTION_BYTES];
};

/* What is to be done; written by the first to arrive at a round, if it is something new. */
struct task {
    uint64_t fingerprint, bytes;
    uint32_t kind, op, segment_count;
    int32_t root, wire;
    uint32_t reduces;
    double prescale, postscale;
    struct shape segments[MAX_SEGMENTS];
};

struct entry {
    LINE uint64_t key[2];
    uint64_t stamp; /* changes when the place is given to another operation */
    word set; /* also read by who finds out only then that the place is another operation's */
    uint32_t arrived;
    uint32_t next_in_bucket; /* index + 1 */
    uint32_t recent;         /* used since the hand last came by */
    uint32_t told;           /* the other hosts know that all of this host have arrived; only they can close the round */
    LINE _Atomic uint64_t round; /* rounds closed */
    _Atomic uint64_t finished; /* members that are through with a round, summed over rounds */
    uint64_t finished_wanted;  /* what that will be when everybody is through with the closed rounds */
    /* of the round with that parity */
    _Atomic uint64_t failed[2]; /* serial + 1 */
    word inlined[2];
    uint64_t note[2]; /* serial + 1 */
    uint32_t average_active[2];
    word shares[2]; /* summed in place, of as many as there are members */
    /* of an operation that went over hosts: the data is here; where, in the leader's arena; who has taken it */
    word arrived_data[2], takers[2];
    word taking[2]; /* of how many */
    int64_t result_at[2];
    uint64_t contributors[2][MAX_RANKS / 64];
    uint64_t first_arrival_ns;
    uint32_t batch_formed, batch_next; /* index + 1 of what is carried out together with this */
    struct task task[2]; /* a rank that had joined may be back for the next round while others carry this one out */
    /* of the round with that parity: whether a sum is inf or nan; the first place by the rank that brought it, and, at
     * MAX_RANKS, of a sum that is too large */
    word blemished[2];
    _Atomic uint64_t not_finite[2][MAX_RANKS + 1];
    /* then: struct arrival[size]; then payload [2][size][INLINE_BYTES] */
};

struct scheduled { uint64_t round; uint32_t entry, done, taking; }; /* taking: what came from other hosts */

/* A piece of a tensor's memory, null on a rank that has joined; and which segment of which operation it is. */
struct piece { char *in, *out; uint64_t bytes; const struct scheduled *of; uint32_t segment; };

struct event { uint64_t time_ns; uint32_t plan; uint16_t what, rank; uint64_t detail; };
enum trace { TRACE_SUBMITTED, TRACE_ARRIVED, TRACE_AGREED, TRACE_BEGIN, TRACE_END };

/* What this rank wants done, known by name: made once, submitted often. */
struct plan {
    uint64_t serial, key[2], fingerprint, line, stamp;
    uint32_t number, entry, set, kind, op, segment_count, unnamed, description_length;
    int32_t root, wire; /* wire: the type that float32 is rounded to between hosts, or -1 */
    double prescale, postscale;
    uint64_t bytes, packed_bytes; /* packed: each segment rounded up to 8 */
    struct shape *segments;
    char *description;
    uint32_t users; /* tickets in flight */
    bool dropped, reduces;
    struct core *core;
    struct ticket *own; /* for hora_again: used only by it, so that it takes no lock of this process's */
    struct plan *next_kept;
    _Atomic(char *) spare; /* where it was staged last: its pages are there already */
    uint64_t spare_bytes;
};

/* DROPPED is a bit on top of WAITING or BUSY: nobody will ask for it, so whoever finishes it frees it. */
enum ticket_state { FREE, WAITING, BUSY, DONE, DROPPED = 4, OWNED = 8 }; /* OWNED: free, but its plan's own */

/* One submission. */
struct ticket {
    uint32_t number;
    word state;
    struct plan *plan;
    uint32_t entry, status;
    uint64_t round, stamp, failure; /* failure: serial + 1 of a failure or note */
    word share_done;         /* reduced in place: this rank has summed its share, and waits for the others' */
    char **in, **out;        /* segment_count each */
    char *one_in, *one_out;
    int64_t *meta;
    uint32_t meta_count;
    uint32_t abroad; /* goes over hosts */
    uint64_t staged_bytes;
    char *staged;    /* a copy of what it brings, in the arena, for the leader to send */
    word took;       /* has taken what came, and waits until all of the host have */
    /* allgather, alltoall: memory for Python to take over, and the bytes from each member, per segment */
    char **memory;
    int64_t *received;
    uint64_t *not_finite; /* size + 1 places, if any; see hora_not_finite */
};

/* This process's side. */
struct core {
    struct header *header;
    char *base;
    int rank, size;
    uint64_t identity;      /* no two in a process have the same */
    bool post_wanted;       /* under the lock: wake the leader when it is let go */
    int door;               /* the socket to wake it by */
    struct link *link;      /* to the other hosts, if this is the leader */
    bool ring_wanted;       /* under the lock: ring when it is let go, so that nobody wakes only to find it taken */
    uint64_t executors_wanted[MAX_RANKS / 64];
    uint64_t spin_ns, cycle_ns, fusion_bytes, cache_capacity;
    bool split_groups;      /* groups do not fuse with others */
    pthread_mutex_t mine;   /* guards plans, tickets and the arena's blocks */
    pthread_mutex_t driver; /* held by the thread that carries the schedule out */
    word helpers, pending, stop;
    word callers, closing; /* threads inside the core, which hora_close waits for */
    pthread_t executor, watcher;
    bool executor_runs, watcher_runs;
    int watch_pipe[2], watch_pids[MAX_RANKS];
    uint64_t serial;
    struct plan **plans;
    struct ticket **tickets;
    uint32_t *free_plans; /* a stack of numbers to use again */
    uint32_t plan_count, free_plan_count, ticket_hand;
    word ticket_count;
    _Atomic(struct ticket *) *in_flight; /* by entry */
    _Atomic uint64_t next;               /* position in the schedule */
    uint64_t slot_base;
    uint32_t *batches;                   /* of each set, through the slots */
    uint32_t last_set;                   /* whose members may still read my slots; + 1 */
    struct plan *kept; /* after hora_close: those that hora_again may still be called with */
    struct block *blocks;
    uint64_t arena_used;
    struct piece *pieces;
    uint32_t piece_room;
    word tracing;
    pthread_mutex_t trace_lock;
    struct event *events;
    uint64_t event_head, event_tail; /* of a ring: what finds no room is not in the timeline */
};

/* segment.c */
static inline struct rank *rank_at(struct core *c, int r) {
    return (struct rank *)(c->base + c->header->at_ranks) + r;
}
static inline struct rank *self(struct core *c) { return rank_at(c, c->rank); }
static inline bool something_scheduled(struct core *c) { return c->next < atomic_load(&self(c)->tail); }
static inline struct set *set_at(struct core *c, uint32_t s) { return (struct set *)(c->base + c->header->at_sets) + s; }
static inline struct entry *entry_at(struct core *c, uint32_t e) {
    return (struct entry *)(c->base + c->header->at_entries + (uint64_t)e * c->header->entry_bytes);
}
static inline struct arrival *arrival_at(struct entry *e, int r) { return (struct arrival *)(e + 1) + r; }
/* Whether this rank is in the open round. */
static inline bool arrived(struct entry *e, int r) { return arrival_at(e, r)->round == e->round + 1; }
static inline struct post *post_at(struct core *c, uint64_t n) {
    return (struct post *)(c->base + c->header->at_posts) + n % (2 * c->header->entry_count + 4 * MAX_RANKS);
}
static inline struct task *task_of(struct entry *e, uint64_t round) { return &e->task[round & 1]; }
/* What rides with an arrival: the meta numbers, then the data. */
static inline char *payload_at(struct core *c, struct entry *e, uint64_t round, int r) {
    return (char *)arrival_at(e, c->size) + ((round & 1) * (uint64_t)c->size + (uint64_t)r) * c->header->inline_bytes;
}
static inline struct scheduled *schedule_at(struct core *c, int r, uint64_t position) {
    uint64_t room = c->header->entry_count;
    return (struct scheduled *)(c->base + c->header->at_schedule) + (uint64_t)r * room + position % room;
}
static inline char *slot_at(struct core *c, int r, uint64_t index) {
    return c->base + c->header->at_slots + ((uint64_t)r * SLOTS + index % SLOTS) * CHUNK_BYTES;
}
static inline char *arena_at(struct core *c, int r) {
    return c->base + c->header->at_arenas + (uint64_t)r * c->header->arena_bytes;
}
static inline bool is_entry(struct core *c, uint64_t e) { return e < c->header->entry_count; }
static inline bool has(const uint64_t *bits, int r) { return bits[r >> 6] >> (r & 63) & 1; }
static inline void put(uint64_t *bits, int r) { bits[r >> 6] |= 1ull << (r & 63); }
bool broken(struct core *c, const char *sentence, const char *file, int line); /* life.c: ends the job; false */
#define sound(c, condition, sentence) (__builtin_expect(!!(condition), 1) || broken(c, sentence, __FILE__, __LINE__))
void *hora_map(int fd);
void hora_unmap(void *base);
struct failure *failure_at(struct core *c, uint64_t serial);
uint64_t failure_bytes(int size);
uint64_t now_ns(void);
void *arena_alloc(struct core *c, uint64_t bytes);
void arena_free(struct core *c, void *memory);
void arena_give(struct core *c, void *memory);
void arena_close(struct core *c);
int64_t arena_offset(struct core *c, const void *memory, uint64_t bytes);

/* wait.c */
extern __thread bool never_spin; /* set by a thread that has time */
int over(struct core *c);
int lock(struct core *c);
void unlock(struct core *c);
void ring(struct core *c);
void wait_bell(struct core *c, uint32_t seen, uint64_t deadline_ns, bool spin, const word *also, uint32_t unless);
int barrier_wait(struct core *c, struct set *s);
int wait_finished(struct core *c, struct set *s, uint32_t member, uint32_t wanted);
void note_finished(struct set *s, uint32_t member, uint32_t count);
void wake_everyone(struct core *c);
void wake_executor(struct core *c, int rank);
void futex_wake(word *w, int count, bool shared);
void futex_wait(word *w, uint32_t value, uint64_t timeout_ns, bool shared);

/* table.c */
int arrive(struct core *c, struct ticket *t);
void fail_round(struct core *c, struct entry *e, enum failure_code code, const char *text);
void fail_everywhere(struct core *c, struct entry *e, enum failure_code code, const char *text);
bool close_ready(struct core *c);
bool has_untold(struct core *c, int rank);
void leave_table(struct core *c, int gone);
uint32_t form_batch(struct core *c, struct scheduled *out, uint32_t room, bool only_in_place);
int contributors(struct core *c, struct entry *e, uint64_t round, int *ranks);

/* move.c */
int execute(struct core *c, const struct scheduled *batch, uint32_t count);
bool reduced_in_place(struct core *c, struct entry *e, uint64_t round);
bool round_over(struct core *c, struct ticket *t);
void harvest(struct core *c, struct ticket *t);
uint64_t part_of(const struct shape *s, int m, int count);

/* hosts.c: what this host tells the others, under the lock */
void post(struct core *c, enum post_kind what, uint32_t entry, uint64_t value);
void wake_leader(struct core *c);
void close_abroad(struct core *c, uint32_t i, uint64_t failure, uint64_t note, bool average_active, bool inlined);
uint64_t record(struct core *c, struct entry *e, enum failure_code code, const char *text);

/* carry.c: data between hosts */
bool stage(struct core *c, struct ticket *t);
void unstage(struct core *c, struct ticket *t);
int take_abroad(struct core *c, struct ticket *t, struct entry *e);
int sum_here(struct core *c, const struct scheduled *item);
int take_here(struct core *c, const struct scheduled *item);
void schedule_taking(struct core *c, uint32_t i, uint64_t round);
bool reduces(const struct plan *p); /* between hosts: sums travel, not inputs */
void stop_link(struct core *c);
bool leader_gone(struct core *c);
bool serve_link(struct core *c); /* a leader's thread that waits serves the connections; whether anything happened */

/* kernels.c */
extern const uint8_t item_bytes[DTYPES];
void copy(char *to, const char *from, uint64_t bytes);
bool reduce(void *out, const void *const *in, int n, uint64_t count, int dtype, int op, double prescale,
            double postscale, double divisor); /* true if a result is inf or nan */
uint64_t first_not_finite(const void *in, uint64_t at, uint64_t count, int dtype);
void narrow(uint16_t *out, const float *in, uint64_t count, int dtype);
void widen(float *out, const uint16_t *in, uint64_t count, int dtype);
void to_double(double *restrict out, const void *in, uint64_t count, int dtype);
void from_double(void *restrict out, const double *in, uint64_t count, int dtype);

/* finite.c */
void blame(struct entry *e, uint64_t round, uint32_t segment, uint64_t element, const int *ranks, const void *const *in,
           int n, const void *out, uint64_t count, int dtype);
void forget_blame(struct entry *e, uint64_t round);
uint32_t verdict(struct core *c, struct ticket *t, uint32_t status);

/* report.c */
void trace(struct core *c, enum trace what, struct plan *p, int rank, uint64_t time_ns, uint64_t detail);
void trace_agreement(struct core *c, struct ticket *t);

/* engine.c */
void finish(struct core *c, struct ticket *t, int status);
struct ticket *ticket_of(struct core *c, int64_t number); /* NULL if that is no ticket in use */
void free_ticket(struct core *c, struct ticket *t);
void free_plan(struct core *c, struct plan *p);
int drive(struct core *c, bool only_in_place);
void end_driving(struct core *c, int done, uint32_t own_helpers);
void *executor(void *core);
void settle_all(struct core *c);

/* life.c */
void end_all(struct core *c, int rank, const char *status);
bool start_thread(pthread_t *thread, void *(*body)(void *), void *argument, const char *name);
struct core *begin_visit(struct core *c);
void end_visit(struct core **c);
/* First in every call from Python: hora_close waits for it, and it does nothing once that has begun. */
#define VISIT(c, closed)                                                                                                   \
    struct core *visited __attribute__((cleanup(end_visit))) = begin_visit(c);                                            \
    if (!visited) return closed

#endif
