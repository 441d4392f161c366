/* Between the leaders of several hosts: connections, what travels on them, and the thread that serves them.
 *
 * link.c has the connections and the thread, mac.c what proves that a frame is a peer's, hosts.c what hosts tell each other
 * to agree, carry.c the data. Everything here belongs to the leader's process, and is touched under link->mutex only.
 */
#ifndef HORA_LINK_H
#define HORA_LINK_H
#include "core.h"
#include <sys/types.h>
#include <sys/uio.h>

enum frame_type { FRAME_SET = 1, FRAME_TELL, FRAME_DECIDE, FRAME_ASK, FRAME_SAID, FRAME_JOIN, FRAME_JOINED, FRAME_LEAVE,
                  FRAME_LEFT, FRAME_FAIL, FRAME_DATA, FRAME_GOODBYE };

/* What goes before every body. `code` proves the rest of the frame, its body and its place in the stream. */
struct frame { uint32_t bytes; uint16_t type, pad; uint64_t order, at, code; };

#ifndef HORA_SIMULATED
enum { FRAME_BYTES = 128 << 10, MOST_CONTROL = 64 << 20, READ_BYTES = 64 << 10, GRACE_NS = 1000 * 1000 * 1000 };
#else
enum { FRAME_BYTES = 96, MOST_CONTROL = 1 << 20, READ_BYTES = 256, GRACE_NS = 5 * 1000 * 1000 };
#endif /* GRACE_NS: for the launcher to say who died, before a broken connection is taken for it */

struct key { uint64_t sip[2]; uint32_t nh[256]; }; /* of one direction of a connection; nh: a KiB, made from sip */

/* A connection to the leader of another host. */
struct line {
    int fd, host;
    bool open, goodbye, blocked, watched_out; /* blocked: it takes no more for the moment */
    struct key out_key, in_key;
    uint64_t sent, received; /* frames */
    /* going out: control frames as bytes, and at most one frame of data, whose body stays where it is */
    char *queue;
    size_t queued, queue_at, queue_room;
    struct frame data;
    const char *data_body;
    size_t data_at; /* of its header and body; 0 and no body: none */
    bool data_busy;
    void *data_stream;  /* of which job's stream it is */
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
    uint64_t lost_ns;   /* when a connection broke, 0 if none has */
    int lost_host;
    bool said_goodbye;  /* all ranks of this host have left */
    uint64_t seen;      /* the last decision that was carried out here */
    uint8_t set_told[MAX_SETS];
    struct root *root;  /* on the first host */
    struct job *jobs, **last_job;
    struct stash *stashed; /* data for jobs that are not known here yet */
    struct job *lingering;
};

/* mac.c */
void make_key(struct key *k, const uint8_t *secret); /* 32 bytes */
uint64_t prove(const struct key *k, uint64_t number, const struct frame *f, const void *body);

/* link.c */
void send_control(struct link *l, int host, enum frame_type type, uint64_t order, const void *body, size_t bytes);
bool link_progress(struct link *l); /* do whatever can be done without waiting; whether anything was */
void break_link(struct link *l, int host, const char *why);

/* hosts.c */
void hear(struct link *l, int host, const struct frame *f, const char *body); /* a control frame */
bool tell(struct link *l);                                                  /* what workers of this host have posted */
bool open_root(struct link *l);
void close_root(struct link *l);

/* carry.c */
void begin_job(struct link *l, uint32_t entry, uint64_t round, uint64_t order);
char *data_place(struct link *l, struct line *line);              /* where the body of line->in goes */
void data_came(struct link *l, struct line *line);
bool next_data(struct link *l, struct line *line);                /* fill line->data; false if there is nothing to send */
void data_went(struct link *l, struct line *line);
bool get_on(struct link *l);                                      /* sum what came; whether anything was done */
void close_jobs(struct link *l);
#endif
