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

void wake_leader(struct core *c) {
    if (atomic_exchange(&c->header->posted, 1) || !atomic_load(&c->header->door_open)) return;
    struct sockaddr_un address;
    socklen_t length;
    door_address(c, &address, &length);
    if (c->door < 0) c->door = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
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
    f.code = prove(&line->out_key, line->sent++, &f, body);
    memcpy(line->queue + line->queued, &f, sizeof f);
    if (bytes) memcpy(line->queue + line->queued + sizeof f, body, bytes);
    line->queued = wanted;
}

/* Write as much as goes: control first, but never into the middle of a frame of data. */
static bool write_line(struct link *l, struct line *line) {
    bool done = false;
    while (line->open) {
        struct iovec parts[2];
        int count = 0;
        bool control = !line->data_busy && line->queue_at < line->queued;
        if (control) {
            parts[count++] = (struct iovec){line->queue + line->queue_at, line->queued - line->queue_at};
        } else {
            if (!line->data_busy) {
                if (!next_data(l, line)) break;
                line->data.code = prove(&line->out_key, line->sent++, &line->data, line->data_body);
                line->data_busy = true;
                line->data_at = 0;
            }
            size_t head = sizeof line->data, at = line->data_at;
            if (at < head) parts[count++] = (struct iovec){(char *)&line->data + at, head - at};
            size_t in_body = at < head ? 0 : at - head;
            parts[count++] = (struct iovec){(char *)line->data_body + in_body, line->data.bytes - in_body};
        }
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
        ssize_t n = sendmsg(line->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS)) {
            line->blocked = true;
            return done;
        }
        if (n < 0) {
            break_link(l, line->host, strerror(errno));
            return done;
        }
        done = true;
        if (control) {
            line->queue_at += (size_t)n;
            continue;
        }
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

static void forget_line(struct link *l, struct line *line) {
    line->open = false;
    epoll_ctl(l->poller, EPOLL_CTL_DEL, line->fd, NULL);
    ring(l->c); /* somebody may linger for it */
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

/* The header of the next frame is whole: where does its body go? */
static bool begin_frame(struct link *l, struct line *line) {
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
        break_link(l, line->host, "a frame does not authenticate: it was altered, replayed or lost");
        return;
    }
    if (line->in.type == FRAME_DATA) data_came(l, line);
    else hear(l, line->host, &line->in, line->in_body);
}

static bool read_line(struct link *l, struct line *line) {
    bool done = false;
    while (line->open) {
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
        struct msghdr message = {.msg_iov = straight ? parts : parts + 1, .msg_iovlen = straight ? 2 : 1};
        ssize_t n = recvmsg(line->fd, &message, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) break;
        if (n <= 0) {
            if (n == 0 && line->goodbye && l->said_goodbye) forget_line(l, line);
            else break_link(l, line->host, n ? strerror(errno) : "it was closed");
            break;
        }
        done = true;
        size_t placed = straight ? (size_t)n < parts[0].iov_len ? (size_t)n : parts[0].iov_len : 0;
        if (straight) line->in_at += placed;
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
    for (int r = 0; r < l->c->size; r++)
        if (l->c->header->host_of[r] == host) {
            snprintf(rank_at(l->c, r)->lost, sizeof rank_at(l->c, r)->lost, "the connection to its host broke: %s", why);
            break;
        }
}

/* The launcher mostly knows better who died; if it does not say so, the leader of that host is named. It may have left in
 * good order, and yet be missed: a leader has to stay until all have left. */
static void give_up_lost(struct link *l) {
    if (!l->lost_ns || over(l->c) || now_ns() - l->lost_ns < GRACE_NS) return;
    for (int r = 0; r < l->c->size; r++)
        if (l->c->header->host_of[r] == l->lost_host) {
            end_all(l->c, r, rank_at(l->c, r)->lost);
            return;
        }
}

bool link_progress(struct link *l) {
    bool done = false;
    for (bool more = true; more && !over(l->c);) {
        more = tell(l);
        for (uint32_t h = 0; h < l->hosts; h++)
            if (l->lines[h].open) more |= read_line(l, &l->lines[h]);
        more |= get_on(l);
        for (uint32_t h = 0; h < l->hosts; h++)
            if (l->lines[h].open) more |= write_line(l, &l->lines[h]);
        done |= more;
    }
    for (uint32_t h = 0; h < l->hosts; h++) { /* whoever was here: the thread sleeps on all that has to be written */
        struct line *line = &l->lines[h];
        if (!line->open || line->blocked == line->watched_out) continue;
        struct epoll_event e = {.events = EPOLLIN | (line->blocked ? EPOLLOUT : 0), .data.u32 = h};
        epoll_ctl(l->poller, EPOLL_CTL_MOD, line->fd, &e);
        line->watched_out = line->blocked;
    }
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
        bool soon = l->lost_ns != 0;
        for (uint32_t h = 0; h < l->hosts && over(l->c); h++) { /* then the other hosts must not wait for this one */
            if (!l->lines[h].open) continue;
            forget_line(l, &l->lines[h]);
            shutdown(l->lines[h].fd, SHUT_RDWR);
        }
        pthread_mutex_unlock(&l->mutex);
        int n = epoll_wait(l->poller, events, 64, soon ? 20 : 500);
        for (int i = 0; i < n; i++)
            if (events[i].data.u32 == UINT32_MAX)
                while (recv(l->door, drained, sizeof drained, MSG_DONTWAIT) > 0) {}
    }
    return NULL;
}

int hora_link(struct core *c, const int32_t *fds, const uint8_t *keys) {
    VISIT(c, EINVAL);
    if (c->header->hosts < 2 || c->rank != (int)c->header->leader || c->link) return EINVAL;
    struct link *l = calloc(1, sizeof *l);
    if (!l) return ENOMEM;
    l->c = c;
    l->hosts = c->header->hosts;
    l->host = c->header->host;
    l->last_job = &l->jobs;
    pthread_mutex_init(&l->mutex, NULL);
    l->lines = calloc(l->hosts, sizeof *l->lines);
    l->poller = epoll_create1(EPOLL_CLOEXEC);
    bool fine = l->lines && l->poller >= 0 && open_door(l) && (l->host != 0 || open_root(l));
    for (uint32_t h = 0; h < l->hosts && fine; h++) {
        struct line *line = &l->lines[h];
        line->host = (int)h;
        line->fd = fds[h];
        if (h == l->host) continue;
        make_key(&line->out_key, keys + 64 * (size_t)h);
        make_key(&line->in_key, keys + 64 * (size_t)h + 32);
        line->ahead = malloc(READ_BYTES);
        line->open = true;
        struct epoll_event e = {.events = EPOLLIN, .data.u32 = h};
        fine = line->ahead && bounce(line, FRAME_BYTES) && epoll_ctl(l->poller, EPOLL_CTL_ADD, line->fd, &e) == 0;
    }
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = UINT32_MAX};
    fine = fine && epoll_ctl(l->poller, EPOLL_CTL_ADD, l->door, &e) == 0;
    c->link = l;
    l->runs = fine && start_thread(&l->thread, serve, l, "hora-link");
    return l->runs ? 0 : errno ? errno : EAGAIN;
}

/* A leader that could not wait any longer for those who are still here: they have no way to the other hosts. */
bool leader_gone(struct core *c) {
    return c->header->hosts > 1 && atomic_load(&rank_at(c, (int)c->header->leader)->state) == GONE_CLEAN;
}

static bool all_left_here(struct core *c) {
    for (int r = 0; r < c->size; r++) {
        uint32_t state = atomic_load(&rank_at(c, r)->state);
        bool gone = state == GONE_CLEAN || state == DEAD || atomic_load(&rank_at(c, r)->left);
        if (c->header->host_of[r] == c->header->host && !gone) return false;
    }
    return true;
}

int hora_linger(struct core *c, int64_t timeout_us) {
    VISIT(c, OK);
    struct link *l = c->link;
    uint64_t deadline = now_ns() + (uint64_t)timeout_us * 1000;
    if (!l) return OK;
    for (uint32_t bell = atomic_load(&c->header->bell); now_ns() < deadline; bell = atomic_load(&c->header->bell)) {
        if (over(c)) return OK;
        if (!l->said_goodbye && !all_left_here(c)) {
            wait_bell(c, bell, deadline, false, NULL, 0);
            continue;
        }
        pthread_mutex_lock(&l->mutex);
        bool waiting = false;
        for (uint32_t h = 0; h < l->hosts; h++) {
            if (!l->said_goodbye) send_control(l, (int)h, FRAME_GOODBYE, 0, NULL, 0);
            struct line *line = &l->lines[h];
            waiting |= line->open && (!line->goodbye || line->queue_at < line->queued);
        }
        l->said_goodbye = true;
        link_progress(l);
        pthread_mutex_unlock(&l->mutex);
        if (!waiting) return OK;
        wait_bell(c, bell, deadline, false, NULL, 0);
    }
    return PENDING;
}

void stop_link(struct core *c) {
    struct link *l = c->link;
    if (c->door >= 0) close(c->door);
    c->door = -1;
    if (!l) return;
    atomic_store(&l->stop, 1);
    atomic_store(&c->header->posted, 0);
    if (l->runs) {
        wake_leader(c);
        pthread_join(l->thread, NULL);
    }
    for (uint32_t h = 0; l->lines && h < l->hosts; h++) {
        struct line *line = &l->lines[h];
        if (h != l->host && line->fd >= 0) close(line->fd);
        free(line->queue);
        free(line->ahead);
        free(line->bounce);
    }
    close_jobs(l);
    close_root(l);
    if (l->poller >= 0) close(l->poller);
    if (l->door >= 0) close(l->door);
    free(l->lines);
    free(l);
    c->link = NULL;
    if (c->door >= 0) close(c->door);
    c->door = -1;
}
