/* Many hosts in one process: the core's own sources, agreeing, and what that costs each of them.
 *
 *   crowd [--hosts N] [--workers N] [--operations N] [--steps N] [--seed N] [--tcp 1] [--one-by-one 1] [--bytes N]
 *
 * One thread plays all workers and leaders, in an order that the seed decides. Each step every worker submits all operations,
 * in an order of its own (barriers, or with --bytes sums of that many bytes which ride along), as many at once as comes; or,
 * one by one, each only when all are through with the one before. A leader acts when somebody of its host has posted
 * something, or something has come. Connections are those of the tree, in memory with delays, or by TCP on loopback: then
 * what the kernel does is counted too, for sender and receiver.
 *
 * Checked are every result, and that all hosts closed the same operations in the same order. Printed is, after steps in which
 * operations get their numbers, what a step costs: CPU time in the core, frames, bytes and system calls, of the host that has
 * most of it (with what its leader submits) and of one on average. The same seed is the same run, but for time.
 */
#define _GNU_SOURCE
#include "hora.h"
#include "tree.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int hosts = 8, workers = 2, operations = 161, steps = 3, tcp, one_by_one, payload_bytes;
static uint64_t state = 1, now = 1000;
enum { WARM_UP = 3, FIRST = 1 << 20, MOST_EDGES = 4096 };

static uint64_t random_bits(void) {
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}
static uint32_t below(uint32_t n) { return (uint32_t)(random_bits() >> 32) % n; }

static struct host {
    struct core **cores;
    struct link *link;
    uint64_t cpu_ns, frames, bytes, calls, worker_ns, order; /* order: of what was closed, hashed */
} *all;
static struct host *acting; /* whose leader is at work */

/* ---- the network: connections of the tree, by end; the other end has the number with the last bit flipped ---- */

static struct end { int fd, host; char *bytes; size_t at, count, room; uint64_t there_at; } ends[MOST_EDGES];
static int end_count;

static struct end *end_of(int fd) { return fd >= FIRST && fd < FIRST + end_count ? &ends[fd - FIRST] : NULL; }

static void connect_hosts(int a, int b) {
    int pair[2] = {-1, -1};
    if (tcp) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof address;
        int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
        if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
            getsockname(listener, (struct sockaddr *)&address, &length))
            abort();
        pair[0] = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(pair[0], (struct sockaddr *)&address, length) || (pair[1] = accept(listener, NULL, NULL)) < 0) abort();
        for (int i = 0; i < 2; i++) setsockopt(pair[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        close(listener);
    }
    for (int i = 0; i < 2; i++) ends[end_count++] = (struct end){.fd = pair[i], .host = i ? b : a};
}

ssize_t sim_sendmsg(int fd, const struct msghdr *m, int flags) {
    struct end *from = end_of(fd), *to = from ? &ends[(fd - FIRST) ^ 1] : NULL;
    size_t sent = 0;
    if (!from) abort(); /* a connection that agreement has no use for */
    acting->calls++;
    if (tcp) {
        ssize_t n = sendmsg(from->fd, m, flags);
        acting->bytes += n > 0 ? (size_t)n : 0;
        return n;
    }
    if (!to->count) to->at = 0;
    for (size_t i = 0; i < m->msg_iovlen; i++) {
        size_t n = m->msg_iov[i].iov_len;
        if (to->at + to->count + n > to->room && !(to->bytes = realloc(to->bytes, to->room = 2 * (to->at + to->count + n)))) abort();
        memcpy(to->bytes + to->at + to->count, m->msg_iov[i].iov_base, n);
        to->count += n;
        sent += n;
    }
    to->there_at = now + below(400);
    acting->bytes += sent;
    return (ssize_t)sent;
}

ssize_t sim_recvmsg(int fd, struct msghdr *m, int flags) {
    struct end *e = end_of(fd);
    size_t got = 0;
    if (!e) return errno = EAGAIN, -1;
    acting->calls++;
    if (tcp) return recvmsg(e->fd, m, flags);
    if (!e->count || e->there_at > now) return errno = EAGAIN, -1;
    for (size_t i = 0; i < m->msg_iovlen && e->count; i++) {
        size_t n = m->msg_iov[i].iov_len < e->count ? m->msg_iov[i].iov_len : e->count;
        memcpy(m->msg_iov[i].iov_base, e->bytes + e->at, n);
        e->at += n, e->count -= n, got += n;
    }
    return (ssize_t)got;
}

static struct poller { int fd, count, fds[16]; uint32_t data[16]; } *pollers;
static int poller_count;

int sim_epoll_create(int flags) {
    pollers[poller_count].fd = tcp ? epoll_create1(flags) : 0;
    return FIRST * 2 + poller_count++;
}

int sim_epoll_ctl(int poller, int what, int fd, struct epoll_event *e) {
    struct poller *p = &pollers[poller - FIRST * 2];
    struct end *end = end_of(fd);
    if (!end) return 0;
    if (what == EPOLL_CTL_ADD) p->fds[p->count] = fd, p->data[p->count++] = e->data.u32;
    return tcp ? epoll_ctl(p->fd, what, end->fd, e) : 0;
}

int sim_epoll_wait(int poller, struct epoll_event *events, int room, int timeout_ms) {
    struct poller *p = &pollers[poller - FIRST * 2];
    int n = 0;
    acting->calls++;
    if (tcp) return epoll_wait(p->fd, events, room, timeout_ms);
    for (int i = 0; i < p->count; i++) {
        struct end *e = end_of(p->fds[i]);
        if (e->count && e->there_at <= now) events[n].events = EPOLLIN, events[n++].data.u32 = p->data[i];
    }
    return n;
}

static bool something_came(int host) {
    struct poller *p = &pollers[host];
    struct epoll_event events[16];
    if (tcp) return epoll_wait(p->fd, events, 16, 0) > 0;
    for (int i = 0; i < p->count; i++)
        if (end_of(p->fds[i])->count && end_of(p->fds[i])->there_at <= now) return true;
    return false;
}

/* ---- the rest of the seam: one thread, which never sleeps ---- */

long sim_syscall(long number, ...) { return number == SYS_gettid ? 1 : 0; }
int sim_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *a) { return (void)m, (void)a, 0; }
int sim_mutex_lock(pthread_mutex_t *m) { return (void)m, 0; }
int sim_mutex_trylock(pthread_mutex_t *m) { return (void)m, 0; }
int sim_mutex_unlock(pthread_mutex_t *m) { return (void)m, 0; }
int sim_thread_create(pthread_t *t, const pthread_attr_t *a, void *(*body)(void *), void *x) { return (void)t, (void)a, (void)body, (void)x, 0; }
int sim_thread_join(pthread_t t, void **result) { return (void)t, (void)result, 0; }
int sim_clock_gettime(clockid_t clock, struct timespec *t) {
    (void)clock, now++;
    *t = (struct timespec){(time_t)(now / 1000000000), (long)(now % 1000000000)};
    return 0;
}
int sim_nanosleep(const struct timespec *t, struct timespec *left) { return (void)t, (void)left, 0; }
int sim_yield(void) { return 0; }
ssize_t sim_sendto(int fd, const void *d, size_t n, int f, const struct sockaddr *a, socklen_t l) { return (void)fd, (void)d, (void)f, (void)a, (void)l, (ssize_t)n; }
ssize_t sim_recv(int fd, void *d, size_t n, int f) { return (void)fd, (void)d, (void)n, (void)f, errno = EAGAIN, -1; }
int sim_socket(int family, int kind, int protocol) { return (void)family, (void)kind, (void)protocol, FIRST - 2; }
int sim_bind(int fd, const struct sockaddr *a, socklen_t l) { return (void)fd, (void)a, (void)l, 0; }
int sim_close(int fd) { return fd < FIRST - 2 ? close(fd) : 0; }
int sim_shutdown(int fd, int how) { return (void)fd, (void)how, 0; }
void *sim_memcpy(void *to, const void *from, size_t n) { return memcpy(to, from, n); }
void *sim_memset(void *to, int value, size_t n) { return memset(to, value, n); }
int sim_memcmp(const void *a, const void *b, size_t n) { return memcmp(a, b, n); }

/* ---- what is watched ---- */

void __real_close_abroad(struct core *c, uint32_t i, uint64_t failure, uint64_t note, bool active, bool inlined);
void __wrap_close_abroad(struct core *c, uint32_t i, uint64_t failure, uint64_t note, bool active, bool inlined) {
    struct host *h = &all[c->header->host];
    h->order = (h->order ^ entry_at(c, i)->key[0]) * 1099511628211ull;
    __real_close_abroad(c, i, failure, note, active, inlined);
}

void __real_send_control(struct link *l, int host, enum frame_type type, uint64_t order, const void *body, size_t bytes);
void __wrap_send_control(struct link *l, int host, enum frame_type type, uint64_t order, const void *body, size_t bytes) {
    all[l->host].frames++;
    __real_send_control(l, host, type, order, body, bytes);
}

static uint64_t cpu_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* ---- a run ---- */

static void fail(const char *what, int host, int worker) {
    printf("%s: worker %d of host %d\n", what, worker, host);
    exit(1);
}

static struct player { int64_t *plans, *tickets; int *order, submitted, waited; char *memory; } *players; /* by host, then worker */

static void open_all(void) {
    int size = hosts * workers, *fds = calloc((size_t)hosts * 2, sizeof *fds);
    int32_t *host_of = calloc((size_t)size, sizeof *host_of), *members = calloc((size_t)size, sizeof *members);
    all = calloc((size_t)hosts, sizeof *all);
    pollers = calloc((size_t)hosts, sizeof *pollers);
    players = calloc((size_t)size, sizeof *players);
    for (int r = 0; r < size; r++) host_of[r] = r / workers, members[r] = r;
    for (int h = 1; h < hosts; h++) {
        fds[h] = end_count;
        connect_hosts(h, (h - 1) / FANOUT);
    }
    uint8_t *keys = calloc((size_t)hosts, 64);
    for (int h = 0; h < hosts; h++) {
        struct host *host = acting = &all[h];
        int fd = memfd_create("crowd", 0);
        if (hora_format(fd, size, 1, 4096, hosts, h, host_of)) abort();
        host->cores = calloc((size_t)workers, sizeof *host->cores);
        for (int w = 0; w < workers; w++) {
            struct player *p = &players[h * workers + w];
            struct core *c = host->cores[w] = hora_open(fd, h * workers + w, 0, 0, 1 << 20, 1 << 14, 0);
            if (!c) fail("no core", h, w);
            if (!w) {
                int32_t *links = calloc((size_t)hosts, sizeof *links);
                for (int k = 0; k < hosts; k++) {
                    links[k] = FIRST - 1; /* of no use here */
                    if (k && (k - 1) / FANOUT == h) links[k] = FIRST + fds[k] + 1;
                    if (h && k == (h - 1) / FANOUT) links[k] = FIRST + fds[h];
                }
                if (hora_link(c, links, keys, NULL, NULL)) fail("no link", h, w);
                host->link = c->link;
                free(links);
            }
            int set = hora_set(c, members, size);
            p->plans = calloc((size_t)operations, sizeof *p->plans);
            p->tickets = calloc((size_t)operations, sizeof *p->tickets);
            p->order = calloc((size_t)operations, sizeof *p->order);
            p->memory = calloc((size_t)operations, (size_t)payload_bytes + 8);
            for (int i = 0; i < operations; i++) {
                uint64_t segment[3] = {INT32, (uint64_t)payload_bytes / 4, 1};
                p->order[i] = i;
                p->plans[i] = hora_plan(c, (uint64_t)i * 0x9e3779b97f4a7c15ull + 1, 2, set, payload_bytes ? ALLREDUCE : BARRIER, SUM, 0, 1,
                                        1, (uint64_t)i + 7, 1, 0, -1, payload_bytes ? 1 : 0, segment, "an operation", 12);
                if (p->plans[i] < 0) fail("no plan", h, w);
            }
        }
        close(fd);
    }
    free(fds), free(host_of), free(members), free(keys);
}

static void submit(int h, int w) {
    struct player *p = &players[h * workers + w];
    int i = p->order[p->submitted++];
    int32_t *at = (int32_t *)(p->memory + (size_t)i * ((size_t)payload_bytes + 8));
    char *memory = (char *)at;
    for (int k = 0; k < payload_bytes / 4; k++) at[k] = h * workers + w + i + k;
    acting = &all[h];
    uint64_t before = cpu_now();
    p->tickets[i] = hora_submit(all[h].cores[w], p->plans[i], &memory, &memory, NULL, 0);
    *(w ? &all[h].worker_ns : &all[h].cpu_ns) += cpu_now() - before; /* a leader may tell at once */
    if (p->tickets[i] < 0) fail("not submitted", h, w);
}

/* What was submitted first and is done is looked at; whether all that was submitted is. */
static bool finish_some(int h, int w) {
    struct player *p = &players[h * workers + w];
    struct core *c = all[h].cores[w];
    int64_t size = hosts * workers;
    for (; p->waited < p->submitted; p->waited++) {
        int i = p->order[p->waited];
        if (!hora_done(c, p->tickets[i])) return false;
        if (hora_finish(c, p->tickets[i], 0) != OK) {
            char why[STATUS_BYTES] = "";
            if (hora_dead(c) >= 0) hora_status(c, hora_dead(c), why, sizeof why);
            puts(why);
            fail("not well ended", h, w);
        }
        int32_t *at = (int32_t *)(p->memory + (size_t)i * ((size_t)payload_bytes + 8));
        for (int k = 0; k < payload_bytes / 4; k++)
            if (at[k] != size * (size - 1) / 2 + size * (i + k)) fail("wrong sum", h, w);
    }
    return true;
}

static void step(void) {
    for (int r = 0; r < hosts * workers; r++) {
        struct player *p = &players[r];
        p->submitted = p->waited = 0;
        for (int i = operations; i > 1 && !one_by_one; i--) {
            int j = (int)below((uint32_t)i), swapped = p->order[j];
            p->order[j] = p->order[i - 1], p->order[i - 1] = swapped;
        }
    }
    int allowed = one_by_one ? 1 : operations;
    uint64_t idle = 0;
    for (;;) {
        bool left = false, waits = false, moved = false;
        uint32_t from = below((uint32_t)hosts);
        for (int k = 0; k < hosts; k++) {
            int h = (int)((from + (uint32_t)k) % (uint32_t)hosts);
            struct host *host = &all[h];
            for (int w = 0; w < workers; w++) {
                struct player *p = &players[h * workers + w];
                for (int n = (int)below(40); n && p->submitted < allowed; n--) submit(h, w), moved = true;
                left |= p->submitted < operations;
                waits |= p->submitted < allowed;
            }
            now += 50;
            if (!atomic_load(&host->cores[0]->header->posted) && !something_came(h)) continue;
            acting = host;
            uint64_t before = cpu_now();
            link_progress(host->link);
            host->cpu_ns += cpu_now() - before;
            moved = true;
        }
        for (int r = 0; r < hosts * workers; r++) waits |= !finish_some(r / workers, r % workers);
        idle = moved ? 0 : idle + 1;
        if (idle > 100000) fail("nothing goes on", 0, 0);
        if (waits) continue;
        if (!left) return;
        allowed++;
    }
}

int main(int count, char **words) {
    for (int i = 1; i + 1 < count; i += 2) {
        int number = atoi(words[i + 1]);
        if (!strcmp(words[i], "--hosts")) hosts = number;
        else if (!strcmp(words[i], "--workers")) workers = number;
        else if (!strcmp(words[i], "--operations")) operations = number;
        else if (!strcmp(words[i], "--steps")) steps = number;
        else if (!strcmp(words[i], "--seed")) state = (uint64_t)number;
        else if (!strcmp(words[i], "--tcp")) tcp = number;
        else if (!strcmp(words[i], "--one-by-one")) one_by_one = number;
        else if (!strcmp(words[i], "--bytes")) payload_bytes = number;
        else count = 0;
    }
    if (count % 2 == 0 || hosts < 2 || workers < 1 || steps < 1 || payload_bytes % 4) {
        fprintf(stderr, "usage: crowd [--hosts N] [--workers N] [--operations N] [--steps N] [--seed N] [--tcp 1] [--one-by-one 1] [--bytes N]\n");
        return 2;
    }
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    open_all();
    for (int s = 0; s < WARM_UP; s++) step();
    for (int h = 0; h < hosts; h++) all[h] = (struct host){all[h].cores, all[h].link, 0, 0, 0, 0, 0, all[h].order};
    for (int s = 0; s < steps; s++) step();
    struct host most = {0}, sum = {0};
    for (int h = 0; h < hosts; h++) {
        struct host *x = &all[h];
        if (x->order != all[0].order) fail("another order", h, 0);
#define COUNT(field) sum.field += x->field, most.field = x->field > most.field ? x->field : most.field
        COUNT(cpu_ns), COUNT(frames), COUNT(bytes), COUNT(calls), COUNT(worker_ns);
    }
    double n = steps, m = (double)steps * hosts;
    printf("{\"hosts\": %d, \"workers\": %d, \"operations\": %d, \"order\": \"%016llx\", \"cpu_us\": [%.1f, %.1f], \"frames\": [%.1f, %.1f], "
           "\"bytes\": [%.0f, %.0f], \"calls\": [%.1f, %.1f], \"worker_us\": %.1f}\n", hosts, workers, operations,
           (unsigned long long)all[0].order, (double)most.cpu_ns / n / 1e3, (double)sum.cpu_ns / m / 1e3, (double)most.frames / n,
           (double)sum.frames / m, (double)most.bytes / n, (double)sum.bytes / m, (double)most.calls / n, (double)sum.calls / m,
           (double)sum.worker_ns / m / (workers > 1 ? workers - 1 : 1) / 1e3);
    return 0;
}
