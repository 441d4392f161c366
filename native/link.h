/* Between the leaders of several hosts: connections, what travels on them, and the thread that serves them.
 *
 * link.c has the connections and the thread, mac.c what proves that a frame is a peer's, hosts.c what hosts tell each other
 * to agree, tree.c how that comes together, exchange.c the data. Everything here belongs to the leader's process, and is touched
 * under link->mutex only.
 */
#ifndef HORA_LINK_H
#define HORA_LINK_H
#include "core.h"
#include <sys/types.h>
#include <sys/uio.h>

enum frame_type { FRAME_SET = 1, FRAME_TELL, FRAME_DECIDE, FRAME_ASK, FRAME_SAID, FRAME_JOIN, FRAME_JOINED, FRAME_LEAVE,
                  FRAME_LEFT, FRAME_FAIL, FRAME_DATA, FRAME_GOODBYE, FRAME_READY, FRAME_GO, FRAME_BLAME };

/* What goes before every body. `code` proves the rest of the frame, its body and its place in the stream; `head` what stands
 * before it, so that nobody waits for the body of a frame whose length was altered. */
struct frame { uint32_t bytes; uint16_t type, pad; uint64_t order, at, head, code; };

#ifndef HORA_SIMULATED
enum { FRAME_BYTES = 128 << 10, SLICE_BYTES = 256 << 10, LEAST_SHARE = 8 << 10, MOST_CONTROL = 64 << 20, READ_BYTES = 64 << 10, GRACE_NS = 1000 * 1000 * 1000, FEW_HOSTS = 4 };
#else
enum { FRAME_BYTES = 128, SLICE_BYTES = 256, LEAST_SHARE = 128, MOST_CONTROL = 1 << 20, READ_BYTES = 256, GRACE_NS = 5 * 1000 * 1000, FEW_HOSTS = 2 };
#endif /* GRACE_NS: for the launcher to say who died, before a broken connection is taken for it */

struct key { uint64_t sip[2]; uint32_t nh[256]; }; /* of one direction of a connection; nh: a KiB, made from sip */

/* A connection to the leader of another host. */
struct line {
    int fd, host;
    struct fabric *fabric; /* carries its bytes, if the socket does not; then that only tells when the other end is gone */
    uint64_t fabric_host;  /* what the other end knows this host by */
    uint64_t hung_up_ns;   /* when it told so */
    bool open, goodbye, deaf, blocked, watched_out; /* deaf: it reads no more; blocked: it takes no more for the moment */
    struct key out_key, in_key;
    uint64_t sent, received; /* frames */
    /* going out: control frames as bytes, and at most one frame of data, whose body stays where it is */
    char *queue;
    size_t queued, queue_at, queue_room;
    struct frame data;
    const char *data_body;
    size_t data_at; /* of its header and body; 0 and no body: none */
    bool data_busy;
    struct job *data_job;
    char *narrowed; /* room for a body that travels in a narrower type */
    /* coming in: read ahead, and the frame that is being read */
    char *ahead;
    size_t ahead_at, ahead_end;
    struct frame in;
    bool in_head;   /* its header is known */
    char *in_body;  /* where its body goes */
    size_t in_at;
    void *in_stash; /* it is for a job that is not known here yet */
    char *bounce;   /* room for a body that has no better place: of control, or of data to be summed at once */
    size_t bounce_room;
};

struct link {
    struct core *c;
    pthread_mutex_t mutex;
    pthread_t thread;
    bool runs;
    word stop;
    int poller, door; /* to sleep on: all connections, and the socket by which workers of this host wake the leader */
    uint32_t hosts, host;
    struct line *lines; /* by host; this host's own is not open */
    struct fabric *fabric; /* if it is not sockets that carry */
    uint64_t lost_ns;   /* when a connection broke, 0 if none has */
    int lost_host;
    bool said_goodbye;  /* all ranks of this host have left */
    bool moved;         /* data went, or came */
    uint64_t seen;      /* the last operation that was given up, as far as is known here */
    struct tree *tree;
    struct job *jobs, **last_job;
    struct stash *stashed; /* data for jobs that are not known here yet */
    struct job *lingering;
};

/* mac.c */
void make_key(struct key *k, const uint8_t *secret); /* 32 bytes */
uint64_t prove_head(const struct key *k, uint64_t number, const struct frame *f);
uint64_t prove(const struct key *k, uint64_t number, const struct frame *f, const void *body);

/* link.c */
void send_control(struct link *l, int host, enum frame_type type, uint64_t order, const void *body, size_t bytes);
bool link_progress(struct link *l); /* do whatever can be done without waiting; whether anything was */
void break_link(struct link *l, int host, const char *why);

/* What carries bytes between leaders: the socket itself, or a fabric (ucx.c). send and receive are as sendmsg and recvmsg that
 * never wait; a fabric has to be driven, and asked before anybody sleeps on its descriptor, which is in link->poller. */
bool open_fabric(struct link *l, struct fabric *f, const char *const *addresses);
ssize_t fabric_send(struct line *line, const struct iovec *parts, int count);
ssize_t fabric_receive(struct line *line, const struct iovec *parts, int count);
bool fabric_progress(struct link *l);
bool fabric_may_sleep(struct link *l);
bool fabric_sent(struct line *line);
void close_fabric(struct link *l);

/* hosts.c, tree.c */
bool tell(struct link *l);                                                  /* what workers of this host have posted */
void hear(struct link *l, int host, const struct frame *f, const char *body); /* a control frame */
bool open_tree(struct link *l);
void close_tree(struct link *l);
void host_left(struct link *l, int host);                                   /* its leader has gone, in good order */

/* carry.c: how a sum lies in memory. All segments of one element type are a run. Runs are cut into slices, and a slice into a
 * share for each host; a frame of data is a share. */
struct run { int dtype; uint64_t at, count; };
struct layout { struct run runs[DTYPES]; int run_count, hosts; uint64_t share_bytes; uint32_t slices; };
struct slice { int run; uint64_t low, count; }; /* elements of a run */
struct stages { int inner, outer; double prescale, postscale, divisor; };
void lay_out(struct layout *l, const struct shape *segments, uint32_t count, int hosts);
struct slice slice_at(const struct layout *l, uint32_t number);
void part_of_slice(const struct slice *s, int index, int of, uint64_t *low, uint64_t *high); /* may be empty */
bool stages_of(const struct task *t, int dtype, double divisor, struct stages *s);
int here(struct core *c, struct entry *e, uint64_t round, int *ranks);
double divisor_of(struct core *c, struct entry *e, uint64_t round);
char *brought_by(struct core *c, struct entry *e, int r);
uint64_t needed(struct core *c, struct entry *e, uint64_t round, int r, uint32_t host);
static inline uint64_t up64(uint64_t bytes) { return (bytes + 63) & ~63ull; }
static inline uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* exchange.c */
void begin_job(struct link *l, uint32_t entry, uint64_t round, uint64_t order);
char *data_place(struct link *l, struct line *line);              /* where the body of line->in goes */
void data_came(struct link *l, struct line *line);
bool next_data(struct link *l, struct line *line);                /* fill line->data; false if there is nothing to send */
void data_went(struct link *l, struct line *line);
void blame_came(struct link *l, uint64_t order, const char *body, size_t bytes); /* whose numbers are not finite, as another host found */
bool get_on(struct link *l);                                      /* sum what came; whether anything was done */
bool starves(struct link *l);                                     /* something could be sent if this host's ranks had summed it */
bool waits_for(struct link *l, int host);                         /* for data to or from it */
void close_jobs(struct link *l);
#endif
