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
 * so a rank that dies, even while it holds the lock, ends every other rank's wait.
 *
 * Files: kernels.c (arithmetic), finite.c (whose numbers are inf or nan), segment.c (layout, arena), wait.c (futex, lock,
 * barrier), table.c (arrivals, schedule, join, failures), move.c (carrying operations out), engine.c (plans, tickets,
 * threads), report.c (what can be said about it).
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
#define HORA_ABI 3

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
};
enum failure_code { MISMATCH = 1, JOINED = 2, GONE = 3, DEADLOCK = 4, STALLED = 5, NOTE = 6, NO_MEMORY = 7 };
enum rank_state { ABSENT, LIVE, GONE_CLEAN, DEAD };

enum {
    MAX_RANKS = 256,
    MAX_SETS = 1024,
    MAX_SEGMENTS = 4096,
    MAX_WAITS = 16,
    INLINE_BYTES = 8192,    /* payload that rides with an arrival */
    CHUNK_BYTES = 256 << 10, /* what goes through a slot at once: stays in cache */
    SLOTS = 3,              /* slots a rank: one being filled, one being summed, one being read */
    DESCRIPTION_BYTES = 3072,
    MAX_META = MAX_RANKS,
    FAILURES = 256,
    TEXT_BYTES = 16 << 10,
    STATUS_BYTES = 256,
};

#define LINE __attribute__((aligned(64)))

typedef _Atomic uint32_t word;

struct barrier { LINE word phase; word sleepers; LINE word arrived; };

struct header {
    uint32_t magic, abi, size, generation;
    uint64_t segment_bytes, arena_bytes;
    uint32_t entry_count;
    uint64_t at_ranks, at_sets, at_failures, at_entries, entry_bytes, at_index, at_schedule, at_slots, at_arenas;
    LINE word abort;              /* first dead rank + 1 */
    LINE word lock;               /* 0 free, 1 held, 2 held and wanted */
    LINE word bell; word sleepers; /* rung whenever anything changes that somebody may wait for */
    LINE uint64_t used_entries, hand, next_stamp, failure_count;
    _Atomic uint64_t progress;
    word joined_count, last_joined, join_round, join_active;
    uint64_t joined[MAX_RANKS / 64];
};

struct wait { uint32_t entry; uint64_t stamp; word used; }; /* used: thread id of the waiter, 0 if free */

struct rank {
    LINE word state;
    int32_t pid;
    word thread_count;
    int32_t threads[MAX_WAITS]; /* ids of the threads that submit */
    struct wait waits[MAX_WAITS];
    LINE _Atomic uint64_t tail; /* end of its part of the schedule */
    word executor_wanted;       /* operations are in flight and none of its threads waits: its executor has to act */
    word executor_asleep, executor_bell;
    uint32_t join_round;        /* which it joined */
    char status[STATUS_BYTES];  /* how it ended, in words */
    char text[TEXT_BYTES];      /* its last exception */
    uint64_t slot_base[2];      /* which of its slots the movement it takes part in began with, by the barrier's parity */
    int64_t scratch_at;         /* Adasum's workspace in its arena */
    double dots[2][3 * MAX_RANKS];
};

struct set {
    struct barrier barrier;
    LINE _Atomic uint64_t finished; /* batches carried out, summed over the members */
    uint32_t count;
    uint16_t members[MAX_RANKS];   /* ascending */
    int16_t position[MAX_RANKS];   /* of a rank among the members, or -1 */
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
    uint32_t round; /* the last round this rank arrived at, + 1: entry.round + 1 while it is in the open one */
    word taken;     /* the last round it is through with, + 1 */
    uint32_t unnamed, inlined; /* inlined: its payload rides along */
    int64_t arena_at; /* where its buffer lies in its arena if it is to be reduced in place, else -1 */
    uint64_t time_ns, plan;
    uint32_t description_length, meta_count;
    int64_t meta[MAX_META]; /* allgather: bytes of each segment; alltoall: bytes for each member */
    char description[DESCRIPTION_BYTES];
};

struct entry {
    LINE uint64_t key[2];
    uint64_t stamp; /* changes when the place is given to another operation */
    uint32_t set, arrived;
    uint32_t next_in_bucket; /* index + 1 */
    uint32_t recent;         /* used since the hand last came by */
    LINE word round;         /* rounds closed */
    _Atomic uint64_t finished; /* members that are through with a round, summed over rounds */
    uint64_t finished_wanted;  /* what that will be when everybody is through with the closed rounds */
    /* of the round with that parity */
    uint32_t failed[2], note[2], average_active[2], inlined[2];
    word shares[2]; /* summed in place, of as many as there are members */
    uint64_t contributors[2][MAX_RANKS / 64];
    /* what is done; written when the first round with this fingerprint closes */
    uint64_t fingerprint, bytes;
    uint32_t kind, op, segment_count;
    int32_t root;
    double prescale, postscale;
    uint64_t first_arrival_ns;
    uint32_t batch_formed, batch_next; /* index + 1 of what is carried out together with this */
    struct shape segments[MAX_SEGMENTS];
    /* of the round with that parity: whether a sum is inf or nan; the first place by the rank that brought it, and, at
     * MAX_RANKS, of a sum that is too large */
    word blemished[2];
    _Atomic uint64_t not_finite[2][MAX_RANKS + 1];
    /* then: struct arrival[size]; then payload [2][size][INLINE_BYTES] */
};

struct scheduled { uint32_t entry, round, done; };

/* A piece of a tensor's memory, null on a rank that has joined; and which segment of which operation it is. */
struct piece { char *in, *out; uint64_t bytes; const struct scheduled *of; uint32_t segment; };

struct event { uint64_t time_ns; uint32_t plan; uint16_t what, rank; uint64_t detail; };
enum trace { TRACE_SUBMITTED, TRACE_ARRIVED, TRACE_AGREED, TRACE_BEGIN, TRACE_END };

/* What this rank wants done, known by name: made once, submitted often. */
struct plan {
    uint64_t serial, key[2], fingerprint, line, stamp;
    uint32_t number, entry, set, kind, op, segment_count, unnamed, description_length;
    int32_t root;
    double prescale, postscale;
    uint64_t bytes, packed_bytes; /* packed: each segment rounded up to 8 */
    struct shape *segments;
    char *description;
    uint32_t users; /* tickets in flight */
    bool dropped;
    struct core *core;
    struct ticket *own; /* for hora_again: used only by it, so that it takes no lock of this process's */
};

/* DROPPED is a bit on top of WAITING or BUSY: nobody will ask for it, so whoever finishes it frees it. */
enum ticket_state { FREE, WAITING, BUSY, DONE, DROPPED = 4, OWNED = 8 }; /* OWNED: free, but its plan's own */

/* One submission. */
struct ticket {
    uint32_t number;
    word state;
    struct plan *plan;
    uint32_t entry, round, status;
    uint64_t stamp, failure; /* failure: serial + 1 of a failure or note */
    word share_done;         /* reduced in place: this rank has summed its share, and waits for the others' */
    char **in, **out;        /* segment_count each */
    char *one_in, *one_out;
    int64_t *meta;
    uint32_t meta_count;
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
    bool ring_wanted;       /* under the lock: ring when it is let go, so that nobody wakes only to find it taken */
    uint64_t executors_wanted[MAX_RANKS / 64];
    uint64_t spin_ns, cycle_ns, fusion_bytes, cache_capacity;
    bool split_groups;      /* groups do not fuse with others */
    pthread_mutex_t mine;   /* guards plans, tickets and the arena's blocks */
    pthread_mutex_t driver; /* held by the thread that carries the schedule out */
    word helpers, pending, stop;
    pthread_t executor, watcher;
    bool executor_runs, watcher_runs;
    int watch_pipe[2], watch_pids[MAX_RANKS];
    uint64_t serial;
    struct plan **plans;
    struct ticket **tickets;
    uint32_t *free_plans; /* a stack of numbers to use again */
    uint32_t plan_count, free_plan_count, ticket_count, ticket_hand;
    _Atomic(struct ticket *) *in_flight; /* by entry */
    uint64_t next;                       /* position in the schedule */
    uint64_t slot_base;
    uint64_t *batches;                   /* carried out on each set */
    uint32_t last_set;                   /* whose members may still read my slots; + 1 */
    struct block *blocks;
    uint64_t arena_used;
    struct piece *pieces;
    uint32_t piece_room;
    word tracing;
    pthread_mutex_t trace_lock;
    struct event *events;
    uint64_t event_head, event_tail, events_lost;
};

/* segment.c */
static inline struct rank *rank_at(struct core *c, int r) {
    return (struct rank *)(c->base + c->header->at_ranks) + r;
}
static inline struct set *set_at(struct core *c, uint32_t s) { return (struct set *)(c->base + c->header->at_sets) + s; }
static inline struct entry *entry_at(struct core *c, uint32_t e) {
    return (struct entry *)(c->base + c->header->at_entries + (uint64_t)e * c->header->entry_bytes);
}
static inline struct arrival *arrival_at(struct entry *e, int r) { return (struct arrival *)(e + 1) + r; }
/* What rides with an arrival: the meta numbers, then the data. */
static inline char *payload_at(struct core *c, struct entry *e, uint32_t round, int r) {
    return (char *)arrival_at(e, c->size) + ((uint64_t)(round & 1) * c->size + r) * INLINE_BYTES;
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
static inline bool has(const uint64_t *bits, int r) { return bits[r >> 6] >> (r & 63) & 1; }
static inline void put(uint64_t *bits, int r) { bits[r >> 6] |= 1ull << (r & 63); }
struct failure *failure_at(struct core *c, uint64_t serial);
uint64_t failure_bytes(int size);
uint64_t now_ns(void);
void *arena_alloc(struct core *c, uint64_t bytes);
void arena_free(struct core *c, void *memory);
void arena_close(struct core *c);
int64_t arena_offset(struct core *c, const void *memory, uint64_t bytes);

/* wait.c */
extern __thread bool never_spin; /* set by a thread that has time */
bool aborted(struct core *c);
int lock(struct core *c);
void unlock(struct core *c);
void ring(struct core *c);
void wait_bell(struct core *c, uint32_t seen, uint64_t deadline_ns, bool spin, const word *also, uint32_t unless);
int barrier_wait(struct core *c, struct set *s);
void wake_everyone(struct core *c);
void wake_executor(struct core *c, int rank);
void futex_wake(word *w, int count, bool shared);
void futex_wait(word *w, uint32_t value, uint64_t timeout_ns, bool shared);

/* table.c */
int arrive(struct core *c, struct ticket *t);
void fail_round(struct core *c, struct entry *e, enum failure_code code, const char *text);
void close_ready(struct core *c);
void leave_table(struct core *c);
uint32_t form_batch(struct core *c, struct scheduled *out, uint32_t room, bool only_in_place);
int contributors(struct core *c, struct entry *e, uint32_t round, int *ranks);

/* move.c */
int execute(struct core *c, const struct scheduled *batch, uint32_t count);
bool round_over(struct core *c, struct ticket *t);
void harvest(struct core *c, struct ticket *t);

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
void blame(struct entry *e, uint32_t round, uint32_t segment, uint64_t element, const int *ranks, const void *const *in,
           int n, const void *out, uint64_t count, int dtype);
void forget_blame(struct entry *e, uint32_t round);
uint32_t verdict(struct core *c, struct ticket *t, uint32_t status);

/* report.c */
void trace(struct core *c, enum trace what, struct plan *p, int rank, uint64_t time_ns, uint64_t detail);
void trace_agreement(struct core *c, struct ticket *t);

/* engine.c */
void finish(struct core *c, struct ticket *t, int status);

#endif
