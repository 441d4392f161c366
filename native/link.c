/* The connections between the leaders of hosts, and the thread that serves them.
 *
 * Whatever comes is handled at once, without the GIL and without a clock: the thread sleeps until a connection can be read
 * or written, or a worker of this host has something to tell. A thread of the leader that waits for an operation serves
 * the connections too while it spins, which saves two wake-ups of every small operation.
 *
 * Nothing here ever waits for a peer to read: control frames are queued, frames of data are made when there is room. Data
 * that comes for an operation that is not known here yet (it was decided, but the first host's word is still on its way)
 * is kept. So no two hosts can wait for each other.
 */
#include "hora.h"
#include "link.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>


/* ---- waking the leader ---- */

static void door_address(struct core *c, struct sockaddr_un *a, socklen_t *length) {
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    size_t n = strnlen(c->header->door, sizeof c->header->door);
    memcpy(a->sun_path + 1, c->header->door, n); /* abstract: no file */
    *length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
}

static bool tell_at_once(struct link *l);

void wake_leader(struct core *c) {
    if (atomic_exchange(&c->header->posted, 1)) return;
    if (!c->link || !tell_at_once(c->link)) knock(c);
}

void knock(struct core *c) {
    struct sockaddr_un address;
    socklen_t length;
    if (!atomic_load(&c->header->door_open)) return;
    atomic_store(&c->header->knocked, 1);
    if (!atomic_load(&c->header->asleep)) return; /* it looks whether somebody knocked before it sleeps */
    door_address(c, &address, &length);
    sendto(c->door, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&address, length); /* full: it will wake anyway */
}

static bool open_door(struct link *l) {
    struct core *c = l->c;
    struct sockaddr_un address;
    socklen_t length;
    snprintf(c->header->door, sizeof c->header->door, "hora-%d-%llx", (int)getpid(), (unsigned long long)now_ns());
    door_address(c, &address, &length);
    l->door = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->door < 0 || bind(l->door, (struct sockaddr *)&address, length)) return false;
    atomic_store(&c->header->door_open, 1);
    return true;
}

/* ---- what carries ---- */

static ssize_t send_some(struct line *line, struct iovec *parts, int count) {
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    return line->fabric ? fabric_send(line, parts, count) : sendmsg(line->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static ssize_t receive_some(struct line *line, struct iovec *parts, int count) {
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    return line->fabric ? fabric_receive(line, parts, count) : recvmsg(line->fd, &message, MSG_DONTWAIT);
}

/* The socket beside a fabric says something only when the other end is gone. What that one sent before may still be on its way:
 * it has a while to come. */
static void look_for_end(struct link *l, struct line *line) {
    char byte;
    if (!line->open || line->hung_up_ns || (recv(line->fd, &byte, 1, MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR))) return;
    line->hung_up_ns = now_ns();
    epoll_ctl(l->poller, EPOLL_CTL_DEL, line->fd, NULL);
}

/* ---- going out ---- */

void send_control(struct link *l, int host, enum frame_type type, uint64_t order, const void *body, size_t bytes) {
    struct frame f = {.bytes = (uint32_t)bytes, .type = (uint16_t)type, .order = order};
    if (host == (int)l->host) {
        hear(l, host, &f, body);
        return;
    }
    struct line *line = &l->lines[host];
    if (!line->open) return;
    if (line->queue_at == line->queued) line->queue_at = line->queued = 0;
    if (!sound(l->c, bytes <= MOST_CONTROL, "what hosts have to agree on is too long for one frame")) return;
    size_t wanted = line->queued + sizeof f + bytes;
    if (wanted > line->queue_room) {
        char *more = realloc(line->queue, 2 * wanted);
        if (!more) {
            break_link(l, host, "there is no memory for what is to be sent");
            return;
        }
        line->queue = more;
        line->queue_room = 2 * wanted;
    }
    f.head = prove_head(&line->out_key, line->sent, &f);
    f.code = prove(&line->out_key, line->sent++, &f, body);
    memcpy(line->queue + line->queued, &f, sizeof f);
    if (bytes) memcpy(line->queue + line->queued + sizeof f, body, bytes);
    line->queued = wanted;
}

static void forget_line(struct link *l, struct line *line) {
    line->open = false;
    epoll_ctl(l->poller, EPOLL_CTL_DEL, line->fd, NULL);
    ring(l->c); /* somebody may linger for it */
}

/* The other end is gone: in good order, if it had said so, and nothing is missing of it. What is left here goes on without it then. */
static void end_line(struct link *l, struct line *line, const char *why) {
    if (!line->goodbye || (!l->said_goodbye && waits_for(l, line->host))) {
        break_link(l, line->host, why);
        return;
    }
    forget_line(l, line);
    if (!l->said_goodbye && !over(l->c)) host_left(l, line->host);
}

/* Of the room that something large took. */
static void keep_little(struct line *line) {
    line->queue_at = line->queued = 0;
    if (line->queue_room <= 2 * FRAME_BYTES) return;
    free(line->queue);
    line->queue = NULL;
    line->queue_room = 0;
}

/* Write as much as goes: control first, but never into the middle of a frame of data; or only control. */
static bool write_line(struct link *l, struct line *line, bool data) {
    bool done = false;
    while (line->open && !line->deaf) {
        struct iovec parts[2];
        int count = 0;
        bool control = !line->data_busy && line->queue_at < line->queued;
        if (control) {
            parts[count++] = (struct iovec){line->queue + line->queue_at, line->queued - line->queue_at};
        } else {
            if (!line->data_busy) {
                if (!data || !next_data(l, line)) break;
                line->data.head = prove_head(&line->out_key, line->sent, &line->data);
                line->data.code = prove(&line->out_key, line->sent++, &line->data, line->data_body);
                line->data_busy = true;
                line->data_at = 0;
            }
            size_t head = sizeof line->data, at = line->data_at;
            if (at < head) parts[count++] = (struct iovec){(char *)&line->data + at, head - at};
            size_t in_body = at < head ? 0 : at - head;
            parts[count++] = (struct iovec){(char *)line->data_body + in_body, line->data.bytes - in_body};
        }
        ssize_t n = send_some(line, parts, count);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS)) {
            line->blocked = true;
            return done;
        }
        if (n < 0) { /* what it sent before it went is still to be read, and may be that it goes */
            line->deaf = true;
            line->blocked = false;
            knock(l->c);
            return done;
        }
        done = true;
        if (control) {
            line->queue_at += (size_t)n;
            if (line->queue_at == line->queued) keep_little(line);
            continue;
        }
        l->moved = true;
        line->data_at += (size_t)n;
        if (line->data_at == sizeof line->data + line->data.bytes) {
            line->data_busy = false;
            line->data_at = 0;
            data_went(l, line);
        }
    }
    line->blocked = false;
    if (done && l->said_goodbye) ring(l->c);
    return done;
}

/* ---- coming in ---- */

static char *bounce(struct line *line, size_t bytes) {
    if (bytes > line->bounce_room) {
        free(line->bounce);
        line->bounce = malloc(bytes);
        line->bounce_room = line->bounce ? bytes : 0;
    }
    return line->bounce;
}

static const char forged[] = "a frame does not authenticate: it was altered, replayed or lost";

/* The header of the next frame is whole: where does its body go? */
static bool begin_frame(struct link *l, struct line *line) {
    if (prove_head(&line->in_key, line->received, &line->in) != line->in.head) {
        break_link(l, line->host, forged);
        return false;
    }
    size_t most = line->in.type == FRAME_DATA ? FRAME_BYTES : MOST_CONTROL;
    line->in_at = 0;
    line->in_head = true;
    if (line->in.bytes > most) {
        break_link(l, line->host, "it announced a frame that is too long");
        return false;
    }
    line->in_body = line->in.type == FRAME_DATA ? data_place(l, line) : bounce(line, line->in.bytes + 1);
    if (!line->in_body && line->open) break_link(l, line->host, "there is no memory for what it sends");
    return line->open;
}

static void end_frame(struct link *l, struct line *line) {
    line->in_head = false;
    if (prove(&line->in_key, line->received++, &line->in, line->in_body) != line->in.code) {
        break_link(l, line->host, forged);
        return;
    }
    if (line->in.type == FRAME_DATA) data_came(l, line);
    else hear(l, line->host, &line->in, line->in_body);
    if (line->bounce_room <= 2 * FRAME_BYTES) return; /* something large came */
    line->bounce_room = 0;
    if (!bounce(line, FRAME_BYTES)) break_link(l, line->host, "there is no memory for what it sends");
}

static bool read_line(struct link *l, struct line *line) {
    bool done = false, drained = false;
    while (line->open && !over(l->c)) { /* over: tensors may be given back, and nothing may be written to them */
        size_t at_hand = line->ahead_end - line->ahead_at;
        if (!line->in_head && at_hand >= sizeof line->in) {
            memcpy(&line->in, line->ahead + line->ahead_at, sizeof line->in);
            line->ahead_at += sizeof line->in;
            if (!begin_frame(l, line)) break;
            at_hand = line->ahead_end - line->ahead_at;
        }
        if (line->in_head) {
            size_t wanted = line->in.bytes - line->in_at, n = wanted < at_hand ? wanted : at_hand;
            memcpy(line->in_body + line->in_at, line->ahead + line->ahead_at, n);
            line->in_at += n;
            line->ahead_at += n;
            if (line->in_at == line->in.bytes) {
                end_frame(l, line);
                done = true;
                continue;
            }
        }
        if (line->ahead_at) memmove(line->ahead, line->ahead + line->ahead_at, line->ahead_end - line->ahead_at);
        line->ahead_end -= line->ahead_at;
        line->ahead_at = 0;
        bool straight = line->in_head && line->in.bytes - line->in_at >= READ_BYTES / 4; /* into its place */
        struct iovec parts[2] = {{line->in_body + line->in_at, line->in.bytes - line->in_at},
                                 {line->ahead + line->ahead_end, READ_BYTES - line->ahead_end}};
        if (drained) break;
        ssize_t n = receive_some(line, straight ? parts : parts + 1, straight ? 2 : 1);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) break;
        if (n <= 0) {
            end_line(l, line, n ? strerror(errno) : "it was closed");
            break;
        }
        done = true;
        size_t placed = straight ? (size_t)n < parts[0].iov_len ? (size_t)n : parts[0].iov_len : 0;
        if (straight) line->in_at += placed, l->moved = true;
        drained = !line->fabric && (size_t)n < (straight ? parts[0].iov_len : 0) + parts[1].iov_len; /* a socket has no more */
        line->ahead_end += (size_t)n - placed;
    }
    return done;
}

/* ---- the thread ---- */

void break_link(struct link *l, int host, const char *why) {
    struct line *line = &l->lines[host];
    if (!line->open) return;
    forget_line(l, line);
    shutdown(line->fd, SHUT_RDWR);
    if (l->lost_ns) return;
    l->lost_ns = now_ns();
    l->lost_host = host;
    knock(l->c); /* another thread than the one that gives it up may have found it: that one must not sleep past the grace */
    for (int r = 0; r < l->c->size; r++)
        if ((int)host_of_rank(l->c, r) == host) {
            snprintf(words_at(l->c, r)->lost, STATUS_BYTES, "the connection to its host broke: %s", why);
            break;
        }
}

/* The launcher mostly knows better who died; if it does not say so, the leader of that host is named. */
static void give_up_lost(struct link *l) {
    if (!l->lost_ns || over(l->c) || now_ns() - l->lost_ns < GRACE_NS) return;
    for (int r = 0; r < l->c->size; r++)
        if ((int)host_of_rank(l->c, r) == l->lost_host) {
            end_all(l->c, r, words_at(l->c, r)->lost);
            return;
        }
}

/* Of few connections all are looked at; of many, those of which the kernel says that there is something. Of what a fabric
 * brings the kernel knows nothing. */
static bool read_lines(struct link *l) {
    struct epoll_event ready[64];
    bool done = false, all = l->fabric || l->hosts <= FEW_HOSTS;
    int n = all ? (int)l->hosts : epoll_wait(l->poller, ready, 64, 0);
    for (int i = 0; i < n; i++) {
        uint32_t h = all ? (uint32_t)i : ready[i].data.u32;
        if (h < l->hosts && l->lines[h].open) done |= read_line(l, &l->lines[h]);
    }
    return done;
}

/* The thread sleeps on all that has yet to be written, whoever found that a connection takes no more. */
static void watch_blocked(struct link *l) {
    for (uint32_t h = 0; h < l->hosts; h++) {
        struct line *line = &l->lines[h];
        if (!line->open || line->fabric || line->blocked == line->watched_out) continue;
        struct epoll_event e = {.events = EPOLLIN | (line->blocked ? EPOLLOUT : 0), .data.u32 = h};
        epoll_ctl(l->poller, EPOLL_CTL_MOD, line->fd, &e);
        line->watched_out = line->blocked;
    }
}

bool link_progress(struct link *l) {
    bool done = false;
    for (bool more = true, look = true; more && !over(l->c); look = l->fabric || l->moved) { /* data takes long: more may have come */
        l->moved = false;
        atomic_store(&l->c->header->knocked, 0);
        more = tell(l);
        if (l->fabric) more |= fabric_progress(l);
        if (look) more |= read_lines(l);
        more |= get_on(l);
        if (!more && starves(l) && !atomic_exchange(&l->c->header->hungry, 1)) more = true; /* look again: then it knocks */
        for (uint32_t h = 0; h < l->hosts; h++)
            if (l->lines[h].open) more |= write_line(l, &l->lines[h], true);
        done |= more;
    }
    watch_blocked(l);
    return done;
}

/* What a thread of the leader has to tell, it sends itself if nobody is just at the connections: to wake the other thread
 * for it would take longer. Data is left to that one; false if it has to be woken. */
static bool tell_at_once(struct link *l) {
    if (pthread_mutex_trylock(&l->mutex)) return false;
    struct job **last = l->last_job;
    tell(l);
    for (uint32_t h = 0; h < l->hosts; h++)
        if (l->lines[h].open && !l->lines[h].data_busy) write_line(l, &l->lines[h], false);
    watch_blocked(l);
    bool done = l->last_job == last && !atomic_load(&l->c->header->posted); /* posted: the table's lock was not to be had */
    pthread_mutex_unlock(&l->mutex);
    return done;
}

bool serve_link(struct core *c) {
    struct link *l = c->link;
    if (!l || pthread_mutex_trylock(&l->mutex)) return false;
    bool done = link_progress(l);
    pthread_mutex_unlock(&l->mutex);
    return done;
}

static void *serve(void *argument) {
    struct link *l = argument;
    struct epoll_event events[64];
    char drained[64];
    never_spin = true;
    while (!atomic_load(&l->stop)) {
        pthread_mutex_lock(&l->mutex);
        link_progress(l);
        give_up_lost(l);
        bool soon = l->lost_ns || atomic_load(&l->c->header->posted), sleep = true; /* posted: the table's lock was not to be had */
        for (uint32_t h = 0; h < l->hosts && l->fabric; h++) {
            struct line *line = &l->lines[h];
            soon |= line->open && line->hung_up_ns;
            if (!line->open || !line->hung_up_ns) continue;
            if (line->goodbye && l->said_goodbye) forget_line(l, line);
            else if (now_ns() - line->hung_up_ns > GRACE_NS) end_line(l, line, "it was closed");
        }
        if (l->fabric) sleep = fabric_may_sleep(l);
        for (uint32_t h = 0; h < l->hosts && over(l->c); h++) { /* then the other hosts must not wait for this one */
            if (!l->lines[h].open) continue;
            forget_line(l, &l->lines[h]);
            shutdown(l->lines[h].fd, SHUT_RDWR);
        }
        pthread_mutex_unlock(&l->mutex);
        atomic_store(&l->c->header->asleep, 1);
        int n = atomic_exchange(&l->c->header->knocked, 0) ? 0 : epoll_wait(l->poller, events, 64, !sleep ? 0 : soon ? 20 : 500);
        atomic_store(&l->c->header->asleep, 0);
        for (int i = 0; i < n; i++) {
            if (events[i].data.u32 == UINT32_MAX)
                while (recv(l->door, drained, sizeof drained, MSG_DONTWAIT) > 0) {}
            if (!l->fabric || events[i].data.u32 >= l->hosts) continue;
            pthread_mutex_lock(&l->mutex);
            look_for_end(l, &l->lines[events[i].data.u32]);
            pthread_mutex_unlock(&l->mutex);
        }
    }
    return NULL;
}

int hora_link(struct core *c, const int32_t *fds, const uint8_t *keys, struct fabric *fabric, const char *const *addresses) {
    VISIT(c, EINVAL);
    if (c->header->hosts < 2 || c->rank != (int)c->header->leader || c->link) return EINVAL;
    struct link *l = calloc(1, sizeof *l);
    if (!l || !(l->lines = calloc(c->header->hosts, sizeof *l->lines))) {
        for (uint32_t h = 0; h < c->header->hosts; h++)
            if (fds[h] >= 0) close(fds[h]);
        hora_fabric_close(fabric);
        free(l);
        return ENOMEM;
    }
    l->c = c;
    l->hosts = c->header->hosts;
    l->host = c->header->host;
    l->last_job = &l->jobs;
    l->door = l->poller = -1; /* from here on stop_link closes what is open */
    l->fabric = fabric;
    for (uint32_t h = 0; h < l->hosts; h++) l->lines[h].fd = fds[h];
    pthread_mutex_init(&l->mutex, NULL);
    l->poller = epoll_create1(EPOLL_CLOEXEC);
    bool fine = l->poller >= 0 && open_door(l) && open_tree(l);
    for (uint32_t h = 0; h < l->hosts && fine; h++) {
        struct line *line = &l->lines[h];
        line->host = (int)h;
        if (h == l->host) continue;
        line->fabric_host = l->host;
        make_key(&line->out_key, keys + 64 * (size_t)h);
        make_key(&line->in_key, keys + 64 * (size_t)h + 32);
        line->ahead = malloc(READ_BYTES);
        line->open = true;
        struct epoll_event e = {.events = EPOLLIN, .data.u32 = h};
        line->narrowed = malloc(FRAME_BYTES);
        fine = line->ahead && line->narrowed && bounce(line, FRAME_BYTES) && epoll_ctl(l->poller, EPOLL_CTL_ADD, line->fd, &e) == 0;
    }
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = UINT32_MAX};
    fine = fine && epoll_ctl(l->poller, EPOLL_CTL_ADD, l->door, &e) == 0;
    fine = fine && (!fabric || open_fabric(l, fabric, addresses));
    c->link = l;
    l->runs = fine && start_thread(&l->thread, serve, l, "hora-link");
    return l->runs ? 0 : errno ? errno : EAGAIN;
}

/* A leader that could not wait any longer for those who are still here: they have no way to the other hosts. */
bool leader_gone(struct core *c) {
    return c->header->hosts > 1 && atomic_load(&peer_at(c, (int)c->header->leader)->state) == GONE_CLEAN;
}

static bool all_left_here(struct core *c) {
    for (int r = 0; r < c->size; r++) {
        uint32_t state = atomic_load(&peer_at(c, r)->state);
        bool gone = state == GONE_CLEAN || state == DEAD || atomic_load(&peer_at(c, r)->left);
        if (is_here(c, r) && !gone) return false;
    }
    return true;
}

static bool say_goodbye(struct link *l) {
    bool waiting = false;
    for (uint32_t h = 0; h < l->hosts; h++) {
        if (!l->said_goodbye) send_control(l, (int)h, FRAME_GOODBYE, 0, NULL, 0);
        struct line *line = &l->lines[h];
        waiting |= line->open && (!line->goodbye || line->queue_at < line->queued || (line->fabric && !fabric_sent(line)));
    }
    l->said_goodbye = true;
    link_progress(l);
    return waiting;
}

/* This leader goes although others are still here, or elsewhere: what needs it from now on is refused. */
static void go(struct core *c, struct link *l) {
    pthread_mutex_lock(&l->mutex);
    say_goodbye(l);
    bool unfinished = l->jobs != NULL;
    pthread_mutex_unlock(&l->mutex);
    if (unfinished) end_all(c, c->rank, "it shut down, and could not wait any longer for others of its host, for which it moved data");
    int status;
    while ((status = lock(c)) == PENDING) {}
    if (status) return;
    leave_others(c, c->rank);
    c->ring_wanted = true;
    unlock(c);
}

int hora_linger(struct core *c, int64_t timeout_us) {
    VISIT(c, OK);
    struct link *l = c->link;
    uint64_t deadline = now_ns() + (uint64_t)timeout_us * 1000;
    if (!l) return OK;
    if (!timeout_us && !over(c)) go(c, l);
    for (uint32_t bell = atomic_load(&c->header->bell); now_ns() < deadline; bell = atomic_load(&c->header->bell)) {
        if (over(c)) return OK;
        if (!l->said_goodbye && !all_left_here(c)) {
            wait_bell(c, bell, deadline, false, NULL, 0);
            continue;
        }
        pthread_mutex_lock(&l->mutex);
        bool waiting = say_goodbye(l);
        pthread_mutex_unlock(&l->mutex);
        if (!waiting) return OK;
        enum { SENT_NS = 2 * 1000 * 1000 }; /* nobody says that a fabric has sent it */
        wait_bell(c, bell, l->fabric && now_ns() + SENT_NS < deadline ? now_ns() + SENT_NS : deadline, false, NULL, 0);
    }
    return PENDING;
}

void stop_link(struct core *c) {
    struct link *l = c->link;
    if (l) atomic_store(&l->stop, 1);
    if (l && l->runs) {
        knock(c);
        pthread_join(l->thread, NULL);
    }
    if (c->door >= 0) close(c->door);
    c->door = -1;
    if (!l) return;
    if (l->fabric) close_fabric(l);
    for (uint32_t h = 0; l->lines && h < l->hosts; h++) {
        struct line *line = &l->lines[h];
        if (h != l->host && line->fd >= 0) close(line->fd);
        free(line->queue);
        free(line->ahead);
        free(line->bounce);
        free(line->narrowed);
    }
    close_jobs(l);
    close_tree(l);
    if (l->poller >= 0) close(l->poller);
    if (l->door >= 0) close(l->door);
    free(l->lines);
    free(l);
    c->link = NULL;
}
