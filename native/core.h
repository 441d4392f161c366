/* Hora's C core: collectives between the workers of one host, in shared memory.
 *
 * A plain shared library: no Python, no framework, no network. Python reaches it through the functions of hora.h.
 *
 * One memory file (a memfd, so there is nothing to unlink) holds everything the workers share:
 *
 *   header | places | peers | words | ranks | sets | failures | index | schedule | posts | blames | entries | slots | heap | arenas
 *
 * - An *entry* is a known operation: who has arrived at its open round, and with which fingerprint. The last member to
 *   arrive closes the round. Small payloads ride with the arrival, so a small operation is over when its round closes.
 * - What differs in size from operation to operation (shapes, descriptions, numbers and payloads that ride along) is in the
 *   *heap*, as large as it has to be: that is what makes the table small. Payloads of idle operations are given up when
 *   there is much of them.
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
 * join), life.c (opening, dying, leaving), report.c (what can be said about it); between hosts those of link.h. sim/ runs them
 * under a scheduler of its own.
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
#define HORA_ABI 7

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
    MAX_WAITS = 16,
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
    MAX_RANKS = 16384, /* of a job */
    MAX_HERE = 512,    /* of them on one host */
    MAX_HOSTS = 1024,
    MAX_SETS = 16384,
    MAX_ENTRIES = 16384, /* known operations; of more than 8 ranks, a quarter */
    MAX_SEGMENTS = 4096,
    MAX_GATHERED = 256,  /* segments of an allgather */
    MAX_META = 2048,     /* numbers that ride with an arrival: one a member (alltoall) or a segment (allgather) */
    HEAP_BYTES = 1 << 30,
    RIDES_ALWAYS = 256,  /* bytes of payload that ride in any case; */
    RIDING_BYTES = 8 << 20, /* more do while all that is kept of riders is less than this */
    INLINE_BYTES = 8192,     /* payload that rides with an arrival */
    CHUNK_BYTES = 256 << 10, /* what goes through a slot at once: stays in cache */
    STEP_BYTES = 16 << 10,   /* what is summed at once: stays in the first-level cache */
    BATCH = 512,             /* operations carried out together */
    LEAST_CAPACITY = 64,     /* of the cache, in operations */
};
#else /* small, so that a little data crosses every threshold; see native/sim */
enum {
    MAX_RANKS = 64,
    MAX_HERE = 64,
    MAX_HOSTS = 64,
    MAX_SETS = 32,
    MAX_ENTRIES = 16,
    MAX_SEGMENTS = 8,
    MAX_GATHERED = 8,
    MAX_META = 8,
    HEAP_BYTES = 1 << 18,
    RIDES_ALWAYS = 16,
    RIDING_BYTES = 1 << 10,
    INLINE_BYTES = 64,
    CHUNK_BYTES = 256,
    STEP_BYTES = 64,
    BATCH = 4,
    LEAST_CAPACITY = 4,
};
#endif
_Static_assert((int)MAX_META >= (int)MAX_HERE || MAX_SETS < 64, "an alltoall brings a number for each member");

#define LINE __attribute__((aligned(64)))

typedef _Atomic uint32_t word;

/* A piece of the heap: where, in steps of 64 bytes (0: none), and how large. */
struct block { uint32_t at, room; };
enum { BLOCK_BYTES = 64, BLOCK_SIZES = 26 };

struct barrier { LINE word phase; word sleepers; LINE word arrived; };

struct header {
    uint32_t magic, abi, size, generation;
    uint64_t segment_bytes, arena_bytes;
    uint32_t entry_count;
    uint32_t here; /* ranks on this host */
    uint32_t hosts, host, leader; /* how many, which this is, and the lowest rank here, which speaks for it */
    uint32_t inline_bytes;        /* payload that rides with an arrival; less where many ranks are on several hosts */
    uint32_t bit_words;           /* of 64 bits, that hold one for each rank */
    uint64_t at_places, at_peers, at_words, at_ranks, at_sets, set_bytes, at_failures, at_entries, entry_bytes, at_index, at_schedule,
        at_posts, at_blames, at_slots, at_heap, at_arenas;
    LINE word abort;              /* first dead rank + 1 */
    LINE word lock;               /* 0 if free, else 1 + the rank that holds it, with WANTED if another sleeps for it */
    LINE word bell; word sleepers; /* rung whenever anything changes that somebody may wait for */
    LINE uint64_t used_entries, hand, next_stamp, failure_count;
    uint64_t heap_used;           /* bytes of it that were ever in use */
    uint32_t free_blocks[BLOCK_SIZES]; /* by size: the first, which has the next in it */
    _Atomic uint64_t riding;      /* bytes that are kept for payloads */
    uint64_t riding_hand;
    _Atomic uint64_t progress;
    _Atomic uint64_t join_round;  /* rounds of join() that all ranks have joined */
    uint32_t quiet;               /* this round of join() needs nothing more of this host */
    word joined_count, last_joined[2]; /* last_joined: by the round's parity */
    uint64_t post_tail, post_head; /* what the leader has yet to tell the other hosts: guarded by the lock */
    word posted;                   /* it has been woken for that */
    word hungry;                   /* it waits for sums of this host: knock */
    word knocked, asleep;          /* somebody knocked; it sleeps, and has to be woken to notice */
    word cut;                      /* this host has no way to the others any more, and they left in good order */
    word door_open;                /* it listens, at */
    char door[32];                 /* an abstract Unix socket */
    /* of the ranks of this host, by their place: who has joined; the other hosts know it; wants averages over active ranks */
    uint64_t joined[MAX_HERE / 64], join_told[MAX_HERE / 64], joined_active[MAX_HERE / 64];
};

/* Where each rank of the job is: its host, and its place among the ranks of this one, or -1. */
struct place { uint16_t host; int16_t here; };

/* What a host has to say to the others; see hosts.c. */
enum post_kind { POST_ARRIVED, POST_JOINED, POST_QUIET, POST_LEFT, POST_FAILED };
struct post { uint32_t what, entry; uint64_t stamp, round, value; };

struct wait { word entry; _Atomic uint64_t stamp; word used; }; /* used: thread id of the waiter, 0 if free */

/* What a member does when it meets the others at the first barrier of a movement. */
struct meeting { uint64_t slot_base, round; uint32_t entry, count; };

/* What is known of every rank of the job. left: takes part in nothing new; set under the lock; its state is GONE_CLEAN when
 * the lock is free again. */
struct peer { word state, left; };
struct words {
    char status[STATUS_BYTES];  /* how it ended, in words */
    char lost[STATUS_BYTES];    /* what the connection to its host said, if that broke */
    char text[TEXT_BYTES];      /* its last exception */
};

/* One of this host. */
struct rank {
    LINE word pid;
    word thread_count;
    word threads[MAX_WAITS]; /* ids of the threads that submit */
    struct wait waits[MAX_WAITS];
    LINE _Atomic uint64_t tail; /* end of its part of the schedule */
    word executor_wanted;       /* operations are in flight and none of its threads waits: its executor has to act */
    word executor_asleep, executor_bell;
    LINE struct meeting meeting[2]; /* by the barrier's parity */
    int64_t scratch_at;         /* Adasum's workspace in its arena */
    double dots[2][3 * MAX_HERE];
};

struct set {
    struct barrier barrier;
    LINE word sleepers;            /* waiting for one of `finished` */
    word made;                     /* the rest is there, and stays as it is */
    uint32_t count;
    uint64_t key;                  /* the same on all hosts */
    uint32_t abroad, here_count;   /* whether members are on several hosts; how many are on this one */
    /* then:
     * word finished[here]          batches that went through the slots and that a member is done with, by position
     * uint16_t members[size]       ascending
     * int16_t position[size]       of a rank among the members, or -1
     * uint16_t here[here]          members of this host, ascending */
};

struct failure {
    uint64_t serial; /* which failure this is; records are reused */
    uint32_t code, said_bytes;
    struct block said; /* what was said, as it travels: see struct said */
    char text[TEXT_BYTES];
};
/* What some ranks said in the same words; then uint16_t[ranks], then the words, each padded to 8 bytes. */
struct said { uint32_t ranks, bytes; };

struct shape { uint32_t dtype; uint32_t pad; uint64_t count; uint64_t row; }; /* row: elements in one step of dimension 0 */

/* What one rank of this host said when it last arrived. */
enum { ALL_COPIED = INT32_MAX };
struct arrival {
    LINE uint64_t fingerprint;
    uint64_t line;
    uint64_t round;         /* the last round this rank arrived at, + 1: entry.round + 1 while it is in the open one */
    _Atomic uint64_t taken; /* the last round it is through with, + 1 */
    uint32_t unnamed, inlined; /* inlined: its payload rides along */
    word copied, summed;       /* over hosts, in slices: of its input that others can read; that it has summed its part of */
    int64_t arena_at; /* where its buffer lies in its arena if it is to be reduced in place, or was put there; else -1 */
    uint32_t payload_bytes; /* if inlined */
    uint32_t description;   /* in the heap; shared with those who say the same: see describe_arrival */
    _Atomic uint64_t time_ns;
    uint64_t plan;
    uint32_t description_length, meta_count;
    _Atomic uint64_t failed; /* the last round it was in that failed, + 1; also read by who finds out only then that it is late */
    uint64_t failure;        /* why: serial + 1 */
    struct block meta; /* int64_t[]; allgather: bytes of each segment; alltoall: bytes for each member */
};

/* What is to be done; written by the first to arrive at a round, if it is something new. */
struct task {
    uint64_t fingerprint, bytes;
    uint32_t kind, op, segment_count;
    int32_t root, wire;
    uint32_t reduces;
    double prescale, postscale;
    struct shape segments[];
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
    _Atomic uint64_t of[2]; /* which round that is, + 1: of those that did not fail, the last or the one before */
    word inlined[2];
    uint64_t note[2]; /* serial + 1 */
    uint32_t average_active[2];
    word shares[2]; /* summed in place, of as many as there are members */
    word blemished[2]; /* a sum is inf or nan: see finite.c */
    /* of an operation that went over hosts: the data is here; where, in the leader's arena; who has taken it */
    word arrived_data[2], takers[2];
    word arrived_slices[2]; /* so much of it, before all is */
    word taking[2]; /* of how many */
    int64_t result_at[2]; /* see NOWHERE */
    struct block task[2]; /* a rank that had joined may be back for the next round while others carry this one out */
    struct block others[2]; /* what ranks of other hosts brought: uint32_t[members], where in it is struct brought, or 0 */
    uint32_t number, agreed; /* between hosts: what it is known by, 0 if it has none; it was agreed on before */
    uint32_t described; /* a description that some arrival has, for others to share */
    uint64_t first_arrival_ns;
    uint32_t batch_formed, batch_next; /* index + 1 of what is carried out together with this */
    /* then: struct arrival[here]; struct block payload[2][here]; uint64_t contributors[2][bit_words] */
};
/* What came is at an offset of the leader's arena, nowhere, or in a file that the leader has open. */
enum { NOWHERE = -1 };
static inline int64_t in_file(int fd) { return NOWHERE - 1 - (int64_t)fd; }
static inline int file_of(int64_t at) { return at < NOWHERE ? (int)(NOWHERE - 1 - at) : -1; } /* -1: it is in none */
struct brought { uint32_t rank, meta_count, bytes, pad; }; /* then the payload, which the numbers are first in, or they alone */

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
    uint32_t rides;  /* with its arrival: see rides() */
    uint32_t payload_bytes;
    uint64_t staged_bytes;
    char *staged;    /* a copy of what it brings, in the arena, for the leader to send */
    bool copies;     /* that copy is made when it is summed */
    uint32_t taken;  /* slices of the result */
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
    int rank, size, here; /* here: its place among those of this host */
    uint64_t identity;      /* no two in a process have the same */
    bool post_wanted;       /* under the lock: wake the leader when it is let go */
    int door;               /* the socket to wake it by */
    struct link *link;      /* to the other hosts, if this is the leader */
    bool ring_wanted;       /* under the lock: ring when it is let go, so that nobody wakes only to find it taken */
    uint64_t executors_wanted[MAX_HERE / 64]; /* by place */
    uint64_t spin_ns, cycle_ns, fusion_bytes, cache_capacity;
    bool split_groups;      /* groups do not fuse with others */
    pthread_mutex_t mine;   /* guards plans, tickets and the arena's blocks */
    pthread_mutex_t driver; /* held by the thread that carries the schedule out */
    word helpers, pending, stop;
    word callers, closing; /* threads inside the core, which hora_close waits for */
    pthread_t executor, watcher;
    bool executor_runs, watcher_runs;
    int watch_pipe[2], watch_pids[MAX_HERE], watch_ranks[MAX_HERE];
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
    struct extent *extents;
    uint64_t arena_used;
    struct piece *pieces;
    uint32_t piece_room;
    word tracing;
    pthread_mutex_t trace_lock;
    struct event *events;
    uint64_t event_head, event_tail; /* of a ring: what finds no room is not in the timeline */
};

/* segment.c */
static inline struct place *place_of_rank(struct core *c, int r) { return (struct place *)(c->base + c->header->at_places) + r; }
static inline uint32_t host_of_rank(struct core *c, int r) { return place_of_rank(c, r)->host; }
static inline bool is_here(struct core *c, int r) { return place_of_rank(c, r)->here >= 0; }
static inline struct peer *peer_at(struct core *c, int r) { return (struct peer *)(c->base + c->header->at_peers) + r; }
static inline struct words *words_at(struct core *c, int r) { return (struct words *)(c->base + c->header->at_words) + r; }
static inline struct rank *rank_at(struct core *c, int r) { /* of this host */
    return (struct rank *)(c->base + c->header->at_ranks) + place_of_rank(c, r)->here;
}
static inline struct rank *self(struct core *c) { return (struct rank *)(c->base + c->header->at_ranks) + c->here; }
static inline bool something_scheduled(struct core *c) { return c->next < atomic_load(&self(c)->tail); }
static inline struct set *set_at(struct core *c, uint32_t s) {
    return (struct set *)(c->base + c->header->at_sets + (uint64_t)s * c->header->set_bytes);
}
static inline word *finished_of(struct set *s) { return (word *)(s + 1); }
static inline uint16_t *members_of(struct core *c, struct set *s) { return (uint16_t *)(finished_of(s) + c->header->here); }
static inline int16_t *position_of(struct core *c, struct set *s) { return (int16_t *)(members_of(c, s) + c->size); }
static inline uint16_t *here_of(struct core *c, struct set *s) { return (uint16_t *)(position_of(c, s) + c->size); }
static inline void *heap_at(struct core *c, uint32_t at) { return c->base + c->header->at_heap + (uint64_t)at * BLOCK_BYTES; }
static inline struct entry *entry_at(struct core *c, uint32_t e) {
    return (struct entry *)(c->base + c->header->at_entries + (uint64_t)e * c->header->entry_bytes);
}
static inline uint32_t number_of(struct core *c, struct entry *e) {
    return (uint32_t)((uint64_t)((char *)e - c->base - (ptrdiff_t)c->header->at_entries) / c->header->entry_bytes);
}
static inline struct arrival *arrival_at(struct core *c, struct entry *e, int r) { /* of a rank of this host */
    return (struct arrival *)(e + 1) + place_of_rank(c, r)->here;
}
static inline struct block *payloads_of(struct core *c, struct entry *e, uint64_t round) { /* by place */
    return (struct block *)((struct arrival *)(e + 1) + c->header->here) + (round & 1) * c->header->here;
}
static inline uint64_t *contributors_of(struct core *c, struct entry *e, uint64_t round) { /* bits of ranks */
    return (uint64_t *)(payloads_of(c, e, 0) + 2 * c->header->here) + (round & 1) * c->header->bit_words;
}
/* Whether this rank of this host is in the open round. */
static inline bool arrived(struct core *c, struct entry *e, int r) { return arrival_at(c, e, r)->round == e->round + 1; }
static inline uint64_t post_room(struct core *c) { return 2 * (uint64_t)c->header->entry_count + 4 * c->header->here; }
static inline struct post *post_at(struct core *c, uint64_t n) {
    return (struct post *)(c->base + c->header->at_posts) + n % post_room(c);
}
static inline struct task *task_of(struct core *c, struct entry *e, uint64_t round) { return heap_at(c, e->task[round & 1].at); }
/* What a rank of another host brought; NULL if it brought nothing. */
static inline struct brought *brought_from(struct core *c, struct entry *e, uint64_t round, int r) {
    uint32_t *all = heap_at(c, e->others[round & 1].at), at = all[position_of(c, set_at(c, e->set))[r]];
    return at ? (struct brought *)((char *)all + at) : NULL;
}
/* What rode with an arrival: the meta numbers, then the data. */
static inline char *payload_at(struct core *c, struct entry *e, uint64_t round, int r) {
    if (!is_here(c, r)) return (char *)(brought_from(c, e, round, r) + 1);
    return heap_at(c, payloads_of(c, e, round)[place_of_rank(c, r)->here].at);
}
/* The numbers that a rank brought. */
static inline const int64_t *meta_of(struct core *c, struct entry *e, uint64_t round, int r) {
    if (!is_here(c, r)) return (const int64_t *)(brought_from(c, e, round, r) + 1);
    return heap_at(c, arrival_at(c, e, r)->meta.at);
}
static inline struct scheduled *schedule_at(struct core *c, int place, uint64_t position) {
    uint64_t room = c->header->entry_count;
    return (struct scheduled *)(c->base + c->header->at_schedule) + (uint64_t)place * room + position % room;
}
static inline char *slot_at(struct core *c, int r, uint64_t index) {
    return c->base + c->header->at_slots + ((uint64_t)place_of_rank(c, r)->here * SLOTS + index % SLOTS) * CHUNK_BYTES;
}
static inline char *arena_at(struct core *c, int r) {
    return c->base + c->header->at_arenas + (uint64_t)place_of_rank(c, r)->here * c->header->arena_bytes;
}
static inline bool is_entry(struct core *c, uint64_t e) { return e < c->header->entry_count; }
static inline bool has(const uint64_t *bits, int r) { return bits[r >> 6] >> (r & 63) & 1; }
static inline void put(uint64_t *bits, int r) { bits[r >> 6] |= 1ull << (r & 63); }
bool broken(struct core *c, const char *sentence, const char *file, int line); /* life.c: ends the job; false */
#define sound(c, condition, sentence) (__builtin_expect(!!(condition), 1) || broken(c, sentence, __FILE__, __LINE__))
void *hora_map(int fd);
void hora_unmap(void *base);
bool fit(struct core *c, struct block *b, uint64_t bytes); /* at least that large; what was in it is lost; under the lock */
void give_back(struct core *c, struct block *b);
static inline struct failure *failure_at(struct core *c, uint64_t serial) {
    return (struct failure *)(c->base + c->header->at_failures) + serial % FAILURES;
}
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
int wait_count(struct core *c, word *w, word *sleepers, uint32_t wanted);
void count_up(word *w, word *sleepers, uint32_t count);
void wake_everyone(struct core *c);
void wake_executor(struct core *c); /* this process's */
void futex_wake(word *w, int count, bool shared);
void futex_wait(word *w, uint32_t value, uint64_t timeout_ns, bool shared);

/* table.c */
int arrive(struct core *c, struct ticket *t);
void fail_round(struct core *c, struct entry *e, enum failure_code code, const char *text);
void fail_everywhere(struct core *c, struct entry *e, enum failure_code code, const char *text);
bool close_ready(struct core *c);
bool has_untold(struct core *c, int rank);
void leave_table(struct core *c, int gone);
void leave_others(struct core *c, int gone);
uint32_t form_batch(struct core *c, struct scheduled *out, uint32_t room, bool only_in_place);
int contributors(struct core *c, struct entry *e, uint64_t round, int *ranks);
bool rides(struct core *c, const struct plan *p, struct ticket *t); /* along with its arrival */
bool keep_others(struct core *c, struct entry *e, uint32_t parity, uint64_t bytes);

/* move.c */
int execute(struct core *c, const struct scheduled *batch, uint32_t count);
bool reduced_in_place(struct core *c, struct entry *e, uint64_t round);
bool round_over(struct core *c, struct ticket *t);
void harvest(struct core *c, struct ticket *t);
uint64_t part_of(const struct shape *s, int m, int count);

/* hosts.c: what this host tells the others, under the lock */
void post(struct core *c, enum post_kind what, uint32_t entry, uint64_t value);
void wake_leader(struct core *c);
void knock(struct core *c);
void close_abroad(struct core *c, uint32_t i, uint64_t failure, uint64_t note, bool average_active, bool inlined);
uint64_t record(struct core *c, struct entry *e, enum failure_code code, const char *text, const char *said, uint64_t bytes);
uint64_t what_was_said(struct core *c, struct entry *e, char *to, uint64_t room);
const char *description_of(struct core *c, struct arrival *a);

/* carry.c: data between hosts */
bool stage(struct core *c, struct ticket *t);
void unstage(struct core *c, struct ticket *t);
int take_abroad(struct core *c, struct ticket *t, struct entry *e);
int sum_here(struct core *c, const struct scheduled *item);
bool copies_here(struct core *c, struct entry *e, uint64_t round);
bool take_early(struct core *c, struct ticket *t);
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
bool any_not_finite(const uint16_t *in, uint64_t count, int dtype); /* of a half type; fast */
void narrow(uint16_t *out, const float *in, uint64_t count, int dtype);
void widen(float *out, const uint16_t *in, uint64_t count, int dtype);
void to_double(double *restrict out, const void *in, uint64_t count, int dtype);
void from_double(void *restrict out, const double *in, uint64_t count, int dtype);

/* finite.c */
void blame(struct core *c, struct entry *e, uint64_t round, uint32_t segment, uint64_t element, const int *ranks,
           const void *const *in, int n, const void *out, uint64_t count, int dtype);
void blame_run(struct core *c, struct entry *e, uint64_t round, uint64_t element, const int *ranks, const void *const *in, int n,
               const void *out, uint64_t count, int dtype);
uint32_t blamed(struct core *c, struct entry *e, uint64_t round, uint64_t (*pairs)[2]); /* room for one more than ranks */
void blame_too(struct core *c, struct entry *e, uint64_t round, uint64_t rank, uint64_t place);
void forget_blame(struct core *c, struct entry *e, uint64_t round);
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
