/* UCX between hosts, where it is installed: InfiniBand, RoCE and other fabrics, or TCP by its own means.
 *
 * Nothing of it is needed to build: the library is opened when a job wants it, and what is used of its interface is declared
 * here, as its documentation (ucp/api/ucp.h) has it since 1.10. Structures say by a mask which of their fields count, so
 * later versions read no further than what is set here.
 *
 * A connection is a row of messages with the sender's host as their tag, out of and into buffers of this file: what is sent is
 * copied once more than it has to be, and in return frames, their codes and their order are exactly those of a socket. The
 * socket by which leaders found and proved each other stays open, and tells when the other end is gone. Everything is called
 * under link->mutex.
 */
#include "hora.h"
#include "link.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { UCS_OK = 0, UCS_INPROGRESS = 1, UCS_ERR_BUSY = -15, UCS_ERR_LAST = -100 };
enum { FEATURES = 1 << 0, TAG = 1 << 0, WAKEUP = 1 << 4, THREAD_MODE = 1 << 0, SERIALIZED = 1 };
enum { REMOTE_ADDRESS = 1 << 0, ERROR_MODE = 1 << 1, ERROR_HANDLER = 1 << 2, MODE_PEER = 1 };
enum { OP_FLAGS = 1 << 4, OP_LATER = 1 << 16, CLOSE_FORCE = 1 << 0 }; /* later: never complete inside the call */

struct ucp_params { uint64_t mask, features; size_t request_size; void *init, *cleanup; uint64_t tag_mask, rest[16]; };
struct ucp_worker_params { uint64_t mask; int thread_mode; uint64_t rest[40]; };
struct ucp_ep_params { uint64_t mask; const void *address; int mode; void (*failed)(void *argument, void *ep, int status); void *argument; uint64_t rest[24]; };
struct ucp_request_param { uint32_t mask, flags; void *request, *callback; uint64_t rest[16]; };
struct ucp_tag_info { uint64_t tag; size_t length; };

/* What is used of the library. */
static struct {
    int (*ucp_config_read)(const char *, const char *, void **);
    int (*ucp_config_modify)(void *, const char *, const char *);
    void (*ucp_config_release)(void *);
    int (*ucp_init_version)(unsigned, unsigned, const struct ucp_params *, const void *, void **);
    void (*ucp_cleanup)(void *);
    const char *(*ucp_get_version_string)(void);
    int (*ucp_worker_create)(void *, const struct ucp_worker_params *, void **);
    void (*ucp_worker_destroy)(void *);
    int (*ucp_worker_get_address)(void *, void **, size_t *);
    void (*ucp_worker_release_address)(void *, void *);
    int (*ucp_worker_get_efd)(void *, int *);
    int (*ucp_worker_arm)(void *);
    unsigned (*ucp_worker_progress)(void *);
    int (*ucp_ep_create)(void *, const struct ucp_ep_params *, void **);
    void *(*ucp_ep_close_nbx)(void *, const struct ucp_request_param *);
    void *(*ucp_tag_send_nbx)(void *, const void *, size_t, uint64_t, const struct ucp_request_param *);
    void *(*ucp_tag_recv_nbx)(void *, void *, size_t, uint64_t, uint64_t, const struct ucp_request_param *);
    int (*ucp_tag_recv_request_test)(void *, struct ucp_tag_info *);
    int (*ucp_request_check_status)(void *);
    void (*ucp_request_cancel)(void *, void *);
    void (*ucp_request_free)(void *);
    const char *(*ucs_status_string)(int);
} api;

static const char *const names[] = {
    "ucp_config_read", "ucp_config_modify", "ucp_config_release", "ucp_init_version", "ucp_cleanup", "ucp_get_version_string",
    "ucp_worker_create", "ucp_worker_destroy", "ucp_worker_get_address", "ucp_worker_release_address", "ucp_worker_get_efd",
    "ucp_worker_arm", "ucp_worker_progress", "ucp_ep_create", "ucp_ep_close_nbx", "ucp_tag_send_nbx", "ucp_tag_recv_nbx",
    "ucp_tag_recv_request_test", "ucp_request_check_status", "ucp_request_cancel", "ucp_request_free", "ucs_status_string"};
_Static_assert(sizeof api == sizeof names, "a name for each function, in their order");

enum { WAYS = 4, MESSAGE_BYTES = FRAME_BYTES + 64 }; /* messages on their way at once, each way; one is a frame */

struct message { void *request; size_t bytes, at; char *data; };
struct channel {
    void *ep;
    int failed; /* a status of UCX */
    struct message out[WAYS], in[WAYS];
    uint32_t next_out, next_in;
};
struct fabric { void *context, *worker; int efd; struct channel *channels; };

static bool is_error(const void *request) { return (uintptr_t)request >= (uintptr_t)(intptr_t)UCS_ERR_LAST; }

static void *lookup(void *library, const char *name) { return dlsym(library, name); }

static const char *load(const char *path) {
    static bool loaded;
    static char why[256];
    if (loaded) return NULL;
    setenv("UCX_HANDLE_ERRORS", "none", 0); /* older versions would take over this process's signals */
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    for (size_t i = 0; library && i < sizeof names / sizeof *names; i++) {
        void *found = lookup(library, names[i]);
        if (!found) {
            snprintf(why, sizeof why, "%s has no %s", path, names[i]);
            return why;
        }
        memcpy((char *)&api + i * sizeof found, &found, sizeof found);
    }
    loaded = library != NULL;
    if (!loaded) snprintf(why, sizeof why, "%s", dlerror());
    return loaded ? NULL : why;
}

void hora_fabric_close(struct fabric *f) {
    if (!f) return;
    if (f->worker) api.ucp_worker_destroy(f->worker);
    if (f->context) api.ucp_cleanup(f->context);
    free(f);
}

struct fabric *hora_fabric_open(const char *library, const char *devices, char *said, int room) {
    const char *why = load(library);
    struct fabric *f = why ? NULL : calloc(1, sizeof *f);
    if (!f) {
        snprintf(said, (size_t)room, "%s", why ? why : "there is no memory");
        return NULL;
    }
    struct ucp_params params = {.mask = FEATURES, .features = TAG | WAKEUP};
    struct ucp_worker_params worker = {.mask = THREAD_MODE, .thread_mode = SERIALIZED};
    void *config = NULL;
    int status = api.ucp_config_read(NULL, NULL, &config);
    if (!status && *devices) status = api.ucp_config_modify(config, "NET_DEVICES", devices);
    if (!status) status = api.ucp_init_version(1, 10, &params, config, &f->context);
    if (config) api.ucp_config_release(config);
    if (!status) status = api.ucp_worker_create(f->context, &worker, &f->worker);
    if (!status) status = api.ucp_worker_get_efd(f->worker, &f->efd);
    snprintf(said, (size_t)room, "%s", status ? api.ucs_status_string(status) : api.ucp_get_version_string());
    if (!status) return f;
    hora_fabric_close(f);
    return NULL;
}

int hora_fabric_address(struct fabric *f, char *out, int room) {
    void *address = NULL;
    size_t bytes = 0;
    if (api.ucp_worker_get_address(f->worker, &address, &bytes)) return -1;
    if (bytes <= (size_t)room) memcpy(out, address, bytes);
    api.ucp_worker_release_address(f->worker, address);
    return (int)bytes;
}

/* ---- a connection ---- */

static struct channel *channel_of(struct line *line) { return &line->fabric->channels[line->host]; }

static void failed(void *argument, void *ep, int status) {
    struct channel *ch = argument;
    (void)ep;
    if (!ch->failed) ch->failed = status;
}

static bool expect(struct line *line, struct message *m) {
    struct ucp_request_param param = {.mask = OP_LATER};
    m->at = m->bytes = 0;
    void *request = api.ucp_tag_recv_nbx(line->fabric->worker, m->data, MESSAGE_BYTES, (uint64_t)line->host, UINT64_MAX, &param);
    m->request = is_error(request) ? NULL : request; /* what there is is cancelled when it is closed */
    return m->request;
}

bool open_fabric(struct link *l, struct fabric *f, const char *const *addresses) {
    f->channels = calloc(l->hosts, sizeof *f->channels);
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = UINT32_MAX - 1};
    if (!f->channels || epoll_ctl(l->poller, EPOLL_CTL_ADD, f->efd, &e)) return false;
    for (uint32_t h = 0; h < l->hosts; h++) {
        struct channel *ch = &f->channels[h];
        struct ucp_ep_params params = {.mask = REMOTE_ADDRESS | ERROR_MODE | ERROR_HANDLER, .address = addresses[h], .mode = MODE_PEER,
                                       .failed = failed, .argument = ch};
        if (h == l->host) continue;
        l->lines[h].fabric = f;
        for (int i = 0; i < WAYS; i++) {
            ch->out[i].data = malloc(MESSAGE_BYTES);
            ch->in[i].data = malloc(MESSAGE_BYTES);
            if (!ch->out[i].data || !ch->in[i].data || !expect(&l->lines[h], &ch->in[i])) return false;
        }
        if (api.ucp_ep_create(f->worker, &params, &ch->ep)) return false;
    }
    return true;
}

/* Whether a buffer is free again. */
static bool is_free(struct message *m) {
    if (m->request && api.ucp_request_check_status(m->request) != UCS_INPROGRESS) {
        api.ucp_request_free(m->request);
        m->request = NULL;
    }
    return !m->request;
}

ssize_t fabric_send(struct line *line, const struct iovec *parts, int count) {
    struct channel *ch = channel_of(line);
    struct message *m = &ch->out[ch->next_out % WAYS];
    struct ucp_request_param param = {0};
    size_t bytes = 0;
    if (ch->failed) return errno = ECONNRESET, -1;
    if (!is_free(m)) return errno = EAGAIN, -1;
    for (int i = 0; i < count; i++) {
        size_t n = least(parts[i].iov_len, MESSAGE_BYTES - bytes);
        if (n) memcpy(m->data + bytes, parts[i].iov_base, n);
        bytes += n;
    }
    void *request = api.ucp_tag_send_nbx(ch->ep, m->data, bytes, line->fabric_host, &param);
    if (is_error(request)) return ch->failed = UCS_ERR_LAST, errno = ECONNRESET, -1;
    m->request = request;
    ch->next_out++;
    return (ssize_t)bytes;
}

ssize_t fabric_receive(struct line *line, const struct iovec *parts, int count) {
    struct channel *ch = channel_of(line);
    size_t got = 0;
    for (int i = 0; i < count; i++)
        for (size_t at = 0; at < parts[i].iov_len;) {
            struct message *m = &ch->in[ch->next_in % WAYS];
            struct ucp_tag_info info;
            if (!m->bytes) {
                int status = api.ucp_tag_recv_request_test(m->request, &info);
                if (status == UCS_INPROGRESS) {
                    if (got) return (ssize_t)got;
                    return errno = ch->failed ? ECONNRESET : EAGAIN, -1;
                }
                if (status) return errno = ECONNRESET, -1;
                m->bytes = info.length;
            }
            size_t n = least(m->bytes - m->at, parts[i].iov_len - at);
            memcpy((char *)parts[i].iov_base + at, m->data + m->at, n);
            m->at += n, at += n, got += n;
            if (m->at < m->bytes) continue;
            api.ucp_request_free(m->request);
            m->request = NULL;
            ch->next_in++;
            if (!expect(line, m)) return errno = ENOMEM, -1;
        }
    return (ssize_t)got;
}

bool fabric_progress(struct link *l) {
    bool done = false;
    while (api.ucp_worker_progress(l->fabric->worker)) done = true;
    return done;
}

/* Before the thread sleeps: false if there is something to do. */
bool fabric_may_sleep(struct link *l) { return api.ucp_worker_arm(l->fabric->worker) != UCS_ERR_BUSY; }

/* Whether all that was sent has left. */
bool fabric_sent(struct line *line) {
    for (int i = 0; i < WAYS; i++)
        if (!is_free(&channel_of(line)->out[i])) return false;
    return true;
}

void close_fabric(struct link *l) {
    struct fabric *f = l->fabric;
    enum { CLOSE_NS = 500 * 1000 * 1000 };
    for (uint32_t h = 0; f->channels && h < l->hosts; h++) {
        struct channel *ch = &f->channels[h];
        struct ucp_request_param param = {.mask = OP_FLAGS, .flags = ch->failed || over(l->c) == ABORTED ? CLOSE_FORCE : 0};
        void *closing = ch->ep ? api.ucp_ep_close_nbx(ch->ep, &param) : NULL;
        uint64_t deadline = now_ns() + CLOSE_NS;
        if (closing && !is_error(closing)) {
            while (api.ucp_request_check_status(closing) == UCS_INPROGRESS && now_ns() < deadline) api.ucp_worker_progress(f->worker);
            api.ucp_request_free(closing);
        }
        for (int i = 0; i < WAYS; i++) {
            if (ch->in[i].request) {
                api.ucp_request_cancel(f->worker, ch->in[i].request);
                while (api.ucp_request_check_status(ch->in[i].request) == UCS_INPROGRESS && now_ns() < deadline + CLOSE_NS) api.ucp_worker_progress(f->worker);
                api.ucp_request_free(ch->in[i].request);
            }
            if (ch->out[i].request) api.ucp_request_free(ch->out[i].request);
        }
    }
    api.ucp_worker_destroy(f->worker); /* before the buffers go: what is left writes to them no more */
    f->worker = NULL;
    for (uint32_t h = 0; f->channels && h < l->hosts; h++)
        for (int i = 0; i < WAYS; i++) free(f->channels[h].out[i].data), free(f->channels[h].in[i].data);
    free(f->channels);
    hora_fabric_close(f);
    l->fabric = NULL;
}
