/* The network of the simulator: connections between hosts that delay, cut what is sent into pieces and take only so much, and
 * the sockets by which workers wake their leader. All of it decided by the seed. See seam.h for who calls it.
 */
#define _GNU_SOURCE
#include "simulate.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { FIRST = 1000, ENDS = 32, DOORS = 16, POLLERS = 8, ROOM = 4096, CHUNKS = 512, WATCHES = 8 };

struct way { /* from one end to the other */
    char bytes[ROOM];
    size_t head, tail, room;
    struct { size_t end; uint64_t at; } chunks[CHUNKS]; /* what was sent together, and when it is there */
    size_t first_chunk, last_chunk;
    uint64_t last_ns, slow; /* slow: how many times longer it takes than others */
    bool closed;
};
static struct way ways[ENDS]; /* by the end that reads; the other end of a connection has the number with the last bit flipped */
static int end_count, owner[ENDS];
static struct { char name[64]; uint32_t rung; bool used; } doors[DOORS];
static struct poller { bool used; struct { int fd; uint32_t events; uint64_t data; } watches[WATCHES]; int count; } pollers[POLLERS];

void sim_network_begin(void) {
    memset(doors, 0, sizeof doors);
    memset(pollers, 0, sizeof pollers);
    end_count = 0;
}

void sim_pair(int *pair, int rank_a, int rank_b) {
    for (int i = 0; i < 2; i++) {
        struct way *w = &ways[end_count];
        *w = (struct way){.room = 64 + below(ROOM - 64), .slow = chance(6) ? 10 : 1}; /* so connections overtake each other */
        owner[end_count] = i ? rank_b : rank_a;
        pair[i] = FIRST + end_count++;
    }
}

static struct way *way_in(int fd) { return &ways[fd - FIRST]; }
static struct way *way_out(int fd) { return &ways[(fd - FIRST) ^ 1]; }
static bool is_end(int fd) { return fd >= FIRST && fd < FIRST + ENDS; }

static void wake(const void *what) { sim_wake(what); }

/* A process has died: so are its connections. */
void sim_network_kill(int rank) {
    for (int i = 0; i < end_count; i++)
        if (owner[i] == rank) ways[i].closed = ways[i ^ 1].closed = true;
    for (int p = 0; p < POLLERS; p++) wake(&pollers[p]);
}

/* One connection is cut, and both ends live. */
void sim_network_cut(void) {
    if (!end_count) return;
    int i = (int)below((uint32_t)end_count);
    ways[i].closed = ways[i ^ 1].closed = true;
    for (int p = 0; p < POLLERS; p++) wake(&pollers[p]);
}

static size_t there(struct way *w) { /* bytes that have arrived */
    size_t end = w->tail;
    for (size_t i = w->first_chunk; i < w->last_chunk; i++)
        if (w->chunks[i % CHUNKS].at > sim_now()) {
            end = i > w->first_chunk ? w->chunks[(i - 1) % CHUNKS].end : w->head;
            break;
        }
    return end > w->head ? end - w->head : 0;
}

static void wake_readers(void) {
    for (int p = 0; p < POLLERS; p++)
        if (pollers[p].used) wake(&pollers[p]);
}

ssize_t sim_sendmsg(int fd, const struct msghdr *m, int flags) {
    (void)flags;
    sim_point();
    struct way *w = way_out(fd);
    if (w->closed) return errno = EPIPE, -1;
    size_t left = w->room - (w->tail - w->head), sent = 0;
    if (!left || w->last_chunk - w->first_chunk == CHUNKS) return errno = EAGAIN, -1;
    if (chance(3)) left = 1 + below((uint32_t)left);
    for (size_t i = 0; i < m->msg_iovlen && left; i++) {
        const char *from = m->msg_iov[i].iov_base;
        size_t n = m->msg_iov[i].iov_len < left ? m->msg_iov[i].iov_len : left;
        sim_touch(from, n, false);
        for (size_t k = 0; k < n; k++) w->bytes[w->tail++ % ROOM] = from[k];
        left -= n;
        sent += n;
    }
    uint64_t at = sim_now() + w->slow * (chance(4) ? 1000ull * below(300) : below(3000));
    if (at < w->last_ns) at = w->last_ns;
    w->last_ns = at;
    w->chunks[w->last_chunk++ % CHUNKS].end = w->tail;
    w->chunks[(w->last_chunk - 1) % CHUNKS].at = at;
    sim_released(w);
    wake_readers();
    return (ssize_t)sent;
}

ssize_t sim_recvmsg(int fd, struct msghdr *m, int flags) {
    (void)flags;
    sim_point();
    struct way *w = way_in(fd);
    size_t left = there(w), got = 0;
    if (!left) return w->closed && w->head == w->tail ? 0 : (errno = EAGAIN, -1);
    if (chance(3)) left = 1 + below((uint32_t)left);
    sim_acquired(w);
    for (size_t i = 0; i < m->msg_iovlen && left; i++) {
        char *to = m->msg_iov[i].iov_base;
        size_t n = m->msg_iov[i].iov_len < left ? m->msg_iov[i].iov_len : left;
        sim_touch(to, n, true);
        for (size_t k = 0; k < n; k++) to[k] = w->bytes[w->head++ % ROOM];
        left -= n;
        got += n;
    }
    while (w->first_chunk < w->last_chunk && w->chunks[w->first_chunk % CHUNKS].end <= w->head) w->first_chunk++;
    wake_readers();
    return (ssize_t)got;
}

/* ---- doors ---- */

static int door_named(const struct sockaddr *address, socklen_t length) {
    const struct sockaddr_un *a = (const struct sockaddr_un *)address;
    size_t n = length - offsetof(struct sockaddr_un, sun_path);
    int empty = -1;
    for (int i = DOORS; i-- > 0;) {
        if (doors[i].used && !memcmp(doors[i].name, a->sun_path, n < 64 ? n : 64)) return i;
        if (!doors[i].used) empty = i;
    }
    doors[empty].used = true;
    memcpy(doors[empty].name, a->sun_path, n < 64 ? n : 64);
    return empty;
}

static int door_fds[DOORS]; /* of a descriptor, + 1 */
int sim_socket(int family, int kind, int protocol) {
    (void)family, (void)kind, (void)protocol;
    static int next;
    next = (next + 1) % DOORS;
    door_fds[next] = 0;
    return FIRST + 100 + next;
}

int sim_bind(int fd, const struct sockaddr *address, socklen_t length) {
    door_fds[fd - FIRST - 100] = door_named(address, length) + 1;
    return 0;
}

ssize_t sim_sendto(int fd, const void *data, size_t bytes, int flags, const struct sockaddr *address, socklen_t length) {
    (void)fd, (void)data, (void)flags;
    sim_point();
    int door = door_named(address, length);
    doors[door].rung++;
    sim_released(&doors[door]);
    wake_readers();
    return (ssize_t)bytes;
}

ssize_t sim_recv(int fd, void *data, size_t bytes, int flags) {
    (void)data, (void)bytes, (void)flags;
    sim_point();
    int door = door_fds[fd - FIRST - 100] - 1;
    if (!doors[door].rung) return errno = EAGAIN, -1;
    doors[door].rung--;
    sim_acquired(&doors[door]);
    return 1;
}

/* ---- sleeping on several ---- */

int sim_epoll_create(int flags) {
    (void)flags;
    for (int i = 0; i < POLLERS; i++)
        if (!pollers[i].used) {
            pollers[i] = (struct poller){.used = true};
            return FIRST + 200 + i;
        }
    return errno = EMFILE, -1;
}

int sim_epoll_ctl(int poller, int what, int fd, struct epoll_event *e) {
    struct poller *p = &pollers[poller - FIRST - 200];
    int i = 0;
    while (i < p->count && p->watches[i].fd != fd) i++;
    if (what == EPOLL_CTL_DEL) {
        if (i < p->count) p->watches[i] = p->watches[--p->count];
        return 0;
    }
    if (i == p->count) p->count++;
    p->watches[i].fd = fd;
    p->watches[i].events = e->events;
    p->watches[i].data = e->data.u64;
    wake(p);
    return 0;
}

int sim_epoll_wait(int poller, struct epoll_event *events, int room, int timeout_ms) {
    struct poller *p = &pollers[poller - FIRST - 200];
    uint64_t deadline = sim_now() + (uint64_t)timeout_ms * 1000000;
    sim_point();
    for (;;) {
        int n = 0;
        uint64_t until = deadline;
        for (int i = 0; i < p->count && n < room; i++) {
            int fd = p->watches[i].fd;
            bool ready;
            if (is_end(fd)) {
                struct way *in = way_in(fd), *out = way_out(fd);
                ready = there(in) || (in->closed && in->head == in->tail);
                if (p->watches[i].events & EPOLLOUT) ready |= out->tail - out->head < out->room || out->closed;
                if (!ready && in->first_chunk < in->last_chunk && in->chunks[in->first_chunk % CHUNKS].at < until)
                    until = in->chunks[in->first_chunk % CHUNKS].at;
            } else {
                ready = doors[door_fds[fd - FIRST - 100] - 1].rung != 0;
            }
            if (!ready) continue;
            events[n].events = EPOLLIN;
            events[n++].data.u64 = p->watches[i].data;
        }
        if (n || sim_now() >= deadline) return n;
        sim_wait(p, until);
    }
}

int sim_close(int fd) {
    if (fd < FIRST) return close(fd);
    if (fd >= FIRST + 200) pollers[fd - FIRST - 200].used = false;
    else if (is_end(fd)) {
        way_in(fd)->closed = way_out(fd)->closed = true;
        wake_readers();
    }
    return 0;
}

int sim_shutdown(int fd, int how) {
    (void)how;
    return sim_close(fd);
}

bool sim_network_busy(void) {
    for (int i = 0; i < end_count; i++)
        if (ways[i].tail > ways[i].head) return true;
    return false;
}

void sim_network_describe(void) {
    for (int i = 0; i < end_count; i++)
        printf("to rank %d: %zu bytes on the way, %zu there, room %zu%s, first at %llu, now %llu\n", owner[i], ways[i].tail - ways[i].head,
               there(&ways[i]), ways[i].room, ways[i].closed ? ", closed" : "",
               (unsigned long long)ways[i].chunks[ways[i].first_chunk % CHUNKS].at, (unsigned long long)sim_now());
}
