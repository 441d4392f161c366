/* Data between hosts, as leaders see it: what was decided is moved, in the decided order, by their connections.
 *
 * Of every slice of a sum each host owns a share. It is sent the other hosts' sums of it, adds them up in the order of hosts,
 * and sends the result to all: the number of bytes of a ring in two steps instead of 2 (n - 1), and every element is summed
 * by one host in one order. All steps of all slices run into each other: a slice is sent when this host's ranks have summed
 * it (carry.c), added up as soon as all of it has come, and shown to the ranks when its results are here, so what cannot hide
 * behind the network is the first slice and the last. A frame is one share: it is proven, summed, rounded and widened while
 * it is in the cache.
 *
 * Two operations never wait for each other: results of one and inputs of the next are on their way at once, older first.
 */
#include "link.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OUT, IN };
enum { SHOW_SLICES = 4 }; /* so many at a time are shown to ranks that wait: a megabyte, for one wake-up */

/* What is collected from one host, or sent to it: pieces of memory, in a row. */
struct span { char *at; uint64_t bytes; };
struct stream { struct span *spans; uint32_t count, now; uint64_t in_span, bytes, done; };

struct job {
    struct job *next;
    uint64_t order, round;
    uint32_t entry, in_flight; /* in_flight: frames that connections have not written yet */
    int me, count;
    uint16_t hosts[MAX_HOSTS]; /* that take part */
    bool reduces, blames, complete; /* blames: says whose numbers are not finite; complete: all that is to be said of it is known */
    /* a sum */
    int wire;
    struct layout layout;
    struct stages stages[DTYPES];
    int local, ranks[MAX_HERE];     /* who sums here; none: it is the leader's own */
    const char *from;               /* then this is what it brings, if that is not where the sum goes */
    char *vector;
    uint32_t ready, summed, shown;  /* slices: summed by this host's ranks; with all hosts'; whose results are here */
    bool bad, blamed;               /* a result is inf or nan; the others were told what this host found */
    int blamed_by;                  /* hosts that have told it */
    uint32_t *flows;                /* the next slice each way, of each step, by host */
    char *inbox[MAX_HOSTS];         /* shares that came too early to be summed, by slice */
    /* anything else */
    struct stream *streams;         /* out and in, by host */
    char *collected;
    uint64_t collected_bytes;
    int file;                       /* that it is in, if the arena had no room: -1 if it is there */
};

struct stash { struct stash *next; int host; uint64_t order, at, bytes; char data[]; };

/* ---- what is collected ---- */

static struct stream *stream(struct job *j, int way, int index) { return &j->streams[way * j->count + index]; }

static void add_span(struct stream *s, char *at, uint64_t bytes) {
    if (!bytes) return;
    if ((s->count & (s->count - 1)) == 0) {
        struct span *more = realloc(s->spans, (s->count ? 2 * s->count : 1) * sizeof *more);
        if (!more) abort();
        s->spans = more;
    }
    s->spans[s->count++] = (struct span){at, bytes};
    s->bytes += bytes;
}

static void pass(struct stream *s, uint64_t bytes) {
    s->done += bytes;
    s->in_span += bytes;
    while (s->now < s->count && s->in_span >= s->spans[s->now].bytes) s->in_span -= s->spans[s->now++].bytes;
}


/* Where what other hosts send is put, and its ranks find it: in the arena, or, if that has no room, in a file. */
static bool make_room(struct core *c, struct job *j, struct entry *e, uint64_t bytes) {
    int64_t *at = &e->result_at[j->round & 1];
    *at = NOWHERE;
    if (!bytes) return true;
    j->collected_bytes = bytes;
    if ((j->collected = arena_alloc(c, bytes))) {
        *at = arena_offset(c, j->collected, bytes);
        return true;
    }
    j->file = memfd_create("hora-overflow", MFD_CLOEXEC);
    void *memory = MAP_FAILED;
    if (j->file >= 0 && !ftruncate(j->file, (off_t)bytes)) memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, j->file, 0);
    if (memory != MAP_FAILED) {
        j->collected = memory;
        *at = in_file(j->file);
        return true;
    }
    char text[STATUS_BYTES];
    snprintf(text, sizeof text, "its host has no memory (%s) for %llu bytes that other hosts send for one operation, and HORA_ARENA_BYTES "
             "(%llu) leaves no room; give the job more memory, or operations less data", strerror(errno), (unsigned long long)bytes,
             (unsigned long long)c->header->arena_bytes);
    end_all(c, c->rank, text);
    return false;
}

static void give_room(struct core *c, struct job *j) {
    if (j->collected && j->file < 0) arena_free(c, j->collected);
    else if (j->collected) munmap(j->collected, j->collected_bytes);
    if (j->file >= 0) close(j->file);
}

static void prepare_collection(struct link *l, struct job *j, struct entry *e) {
    struct core *c = l->c;
    struct set *s = set_at(c, e->set);
    struct task *t = task_of(c, e, j->round);
    int ranks[s->count], n = contributors(c, e, j->round, ranks);
    uint64_t wanted = 0;
    for (int m = 0; m < n; m++)
        if (!is_here(c, ranks[m])) wanted += up64(needed(c, e, j->round, ranks[m], l->host));
    if (!make_room(c, j, e, wanted)) return;
    char *to = j->collected;
    for (int m = 0; m < n; m++) {
        const int64_t *meta = t->kind == ALLTOALL ? meta_of(c, e, j->round, ranks[m]) : NULL;
        int owner = 0;
        while (j->hosts[owner] != host_of_rank(c, ranks[m])) owner++;
        for (int i = 0; i < j->count; i++) {
            bool mine = owner == j->me;
            if (mine == (i == j->me) && !(owner != j->me && i == owner)) continue;
            if (!mine && i != owner) continue;
            struct stream *stream_ = mine ? stream(j, OUT, i) : stream(j, IN, owner);
            uint32_t host = mine ? j->hosts[i] : l->host;
            char *at = mine ? brought_by(c, e, ranks[m]) : to;
            if (t->kind != ALLTOALL) {
                add_span(stream_, at, needed(c, e, j->round, ranks[m], host));
            } else {
                for (uint32_t k = 0; k < s->count; k++) { /* sender: each part where it lies; receiver: in a row */
                    bool wanted_there = host_of_rank(c, members_of(c, s)[k]) == host;
                    if (wanted_there) add_span(stream_, at, (uint64_t)meta[k]);
                    if (wanted_there || mine) at += meta[k];
                }
            }
        }
        if (owner != j->me) to += up64(needed(c, e, j->round, ranks[m], l->host));
    }
    j->complete = true;
}

/* ---- sums ---- */

/* Each way and step goes through the slices in order; step 0 are sums of hosts, step 1 results. */
static uint32_t *flow(struct job *j, int way, int step, int index) { return &j->flows[(way * 2 + step) * j->count + index]; }

static bool is_narrowed(const struct job *j, int run) { return j->wire >= 0 && j->layout.runs[run].dtype == FLOAT32; }

/* The share of a slice that one frame carries; its bytes as they travel. */
struct share { int run; uint64_t low, count, bytes; };

static struct share share_of(struct job *j, int way, int step, int index, uint32_t number) {
    struct slice b = slice_at(&j->layout, number);
    uint64_t high;
    struct share s = {.run = b.run};
    part_of_slice(&b, (way == OUT) == (step == 0) ? index : j->me, j->count, &s.low, &high);
    s.count = high - s.low;
    s.bytes = s.count * (is_narrowed(j, b.run) ? 2 : item_bytes[j->layout.runs[b.run].dtype]);
    return s;
}

static char *in_vector(struct job *j, const struct share *s) {
    const struct run *run = &j->layout.runs[s->run];
    return j->vector + run->at + s->low * item_bytes[run->dtype];
}

/* On to the next slice that has something for that host. */
static void skip_empty(struct job *j, int way, int step, int index) {
    uint32_t *next = flow(j, way, step, index);
    while (*next < j->layout.slices && !share_of(j, way, step, index, *next).count) ++*next;
}

/* Which slices this host's ranks have summed, at least `wanted` if that is up to this thread. */
static void make_ready(struct link *l, struct job *j, uint32_t wanted) {
    struct entry *e = entry_at(l->c, j->entry);
    if (j->local) {
        uint32_t all = j->layout.slices;
        for (int r = 0; r < j->local; r++) all = (uint32_t)least(all, atomic_load(&arrival_at(l->c, e, j->ranks[r])->summed));
        j->ready = all;
        return;
    }
    if (!j->from) j->ready = j->layout.slices;
    for (; j->ready < wanted; j->ready++) {
        struct slice b = slice_at(&j->layout, j->ready);
        uint64_t at = j->layout.runs[b.run].at + b.low * item_bytes[j->layout.runs[b.run].dtype];
        const void *from = j->from + at;
        reduce(j->vector + at, &from, 1, b.count, j->layout.runs[b.run].dtype, j->stages[b.run].inner, j->stages[b.run].prescale, 1, 1);
    }
}

/* The one rank of a host that takes part, or -1 if there are several. */
static int only_rank(struct link *l, struct job *j, int index) {
    int ranks[l->c->size], n = contributors(l->c, entry_at(l->c, j->entry), j->round, ranks), only = -1, there = 0;
    for (int k = 0; k < n; k++)
        if (host_of_rank(l->c, ranks[k]) == j->hosts[index]) only = there++ ? -1 : ranks[k];
    return only;
}

/* A block of results is not finite: through which host? Of those with one rank in it that says who it was. What came rounded
 * does not tell whether it was brought so: that its sender finds out (see blame_rounded). */
static void blame_hosts(struct link *l, struct job *j, uint64_t element, const void *const *in, const void *sum, uint64_t count, int dtype,
                        bool rounded) {
    int who[MAX_HOSTS];
    for (int i = 0; i < j->count; i++) who[i] = rounded && i != j->me ? -1 : only_rank(l, j, i);
    j->bad = true;
    blame_run(l->c, entry_at(l->c, j->entry), j->round, element, who, in, j->count, sum, count, dtype);
}

/* What this host sends is not finite now that it is rounded: it was before, or it is too large. The others hear that with the
 * result, of which the same is true. */
static void blame_rounded(struct link *l, struct job *j, uint64_t element, const float *from, const uint16_t *rounded, uint64_t count) {
    float wide[STEP_BYTES / sizeof(float)];
    int who = only_rank(l, j, j->me);
    for (uint64_t done = 0, n; done < count; done += n) {
        const void *in = from + done;
        n = least(count - done, STEP_BYTES / sizeof *wide);
        widen(wide, rounded + done, n, j->wire);
        blame_run(l->c, entry_at(l->c, j->entry), j->round, element + done, &who, &in, 1, wide, n, FLOAT32);
    }
}

/* When all is moved: whether all hosts have told each other whose numbers are not finite, if some are. */
static bool all_blamed(struct link *l, struct job *j) {
    if (!j->bad) return true;
    if (!j->blamed) {
        uint64_t (*pairs)[2] = malloc(((size_t)l->c->size + 1) * sizeof *pairs);
        if (!pairs) abort();
        uint32_t n = blamed(l->c, entry_at(l->c, j->entry), j->round, pairs);
        for (int i = 0; i < j->count; i++)
            if (i != j->me) send_control(l, j->hosts[i], FRAME_BLAME, j->order, pairs, n * sizeof *pairs);
        free(pairs);
        j->blamed = true;
    }
    return j->blamed_by == j->count - 1;
}

/* Add up my share of the next slice; the others' are at `from`, by host. */
static void sum_slice(struct link *l, struct job *j, const char *const *from) {
    enum { MANY = STEP_BYTES / 8 };
    float wide[8][MANY], *widened = wide[0], *many = NULL;
    char sum[STEP_BYTES] __attribute__((aligned(64)));
    if (j->wire >= 0 && j->count > 8 && !(widened = many = malloc((size_t)j->count * MANY * sizeof *many))) abort();
    struct share s = share_of(j, OUT, 1, 0, j->summed);
    bool rounded = is_narrowed(j, s.run);
    int dtype = j->layout.runs[s.run].dtype;
    uint64_t size = item_bytes[dtype];
    struct stages *how = &j->stages[s.run];
    for (uint64_t done = 0, count; done < s.count; done += count) {
        char *own = in_vector(j, &s) + done * size;
        const void *in[MAX_HOSTS];
        count = least(s.count - done, MANY);
        for (int i = 0; i < j->count; i++) {
            in[i] = i == j->me ? own : from[i] + done * (rounded ? 2 : size);
            if (rounded && i != j->me) {
                widen(widened + (size_t)i * MANY, in[i], count, j->wire);
                in[i] = widened + (size_t)i * MANY;
            }
        }
        bool bad = reduce(sum, in, j->count, count, dtype, how->outer, 1, how->postscale, how->divisor);
        if (rounded) { /* here too what the others get: rounding that again changes nothing */
            uint16_t travels[MANY];
            narrow(travels, (float *)sum, count, j->wire);
            bad |= any_not_finite(travels, count, j->wire);
            widen((float *)sum, travels, count, j->wire);
        }
        if (bad && j->blames && how->outer <= SUM) blame_hosts(l, j, s.low + done, in, sum, count, dtype, rounded);
        copy(own, sum, count * size);
    }
    free(many);
    j->summed++;
}

static bool sum_inboxes(struct link *l, struct job *j) {
    uint32_t before = j->summed, upto = j->layout.slices;
    const char *from[MAX_HOSTS];
    for (int i = 0; i < j->count; i++)
        if (i != j->me) upto = (uint32_t)least(upto, *flow(j, IN, 0, i));
    make_ready(l, j, upto);
    while (j->summed < upto && j->summed < j->ready) {
        for (int i = 0; i < j->count; i++) from[i] = j->inbox[i] ? j->inbox[i] + j->summed * j->layout.share_bytes : NULL;
        sum_slice(l, j, from);
    }
    return j->summed > before;
}

/* Tell this host's ranks how far the results are. */
static void show(struct link *l, struct job *j) {
    struct entry *e = entry_at(l->c, j->entry);
    uint32_t upto = j->summed, p = j->round & 1;
    for (int i = 0; i < j->count; i++)
        if (i != j->me) upto = (uint32_t)least(upto, *flow(j, IN, 1, i));
    if (upto < j->shown + SHOW_SLICES || upto == j->layout.slices || e->taking[p] < 2) return; /* all: get_on says so */
    j->shown = upto;
    atomic_store(&e->arrived_slices[p], upto);
    ring(l->c);
}

/* ---- jobs ---- */

static void unstash(struct link *l);

static void prepare_sum(struct link *l, struct job *j, struct entry *e, struct task *t) {
    struct core *c = l->c;
    int n = here(c, e, j->round, j->ranks);
    lay_out(&j->layout, t->segments, t->segment_count, j->count);
    for (int i = 0; i < j->layout.run_count; i++) stages_of(t, j->layout.runs[i].dtype, divisor_of(c, e, j->round), &j->stages[i]);
    j->wire = j->count > 1 ? t->wire : -1;
    j->vector = brought_by(c, e, j->ranks[0]);
    if (j->vector) {
        j->local = n;
    } else { /* nobody here adds to it */
        struct ticket *own = atomic_load(&c->in_flight[j->entry]);
        if (!sound(c, own && own->round == j->round, "data is to be sent that was not brought")) return;
        trace(c, TRACE_BEGIN, own->plan, c->rank, 0, 1);
        j->vector = own->out[0];
        if (own->in[0] != own->out[0] || j->stages[0].prescale != 1) j->from = own->in[0];
    }
    j->flows = calloc(4 * (size_t)j->count, sizeof *j->flows);
    if (!sound(c, j->flows, "there is no memory for an operation")) return;
    for (int i = 0; i < j->count; i++)
        for (int way = 0; way < 4; way++)
            if (i == j->me) *flow(j, way / 2, way % 2, i) = j->layout.slices;
            else skip_empty(j, way / 2, way % 2, i);
    j->complete = true;
}

void begin_job(struct link *l, uint32_t entry, uint64_t round, uint64_t order) {
    struct core *c = l->c;
    struct entry *e = entry_at(c, entry);
    struct task *t = task_of(c, e, round);
    struct job *j = calloc(1, sizeof *j);
    int ranks[c->size], n = contributors(c, e, round, ranks);
    bool takes_part[MAX_HOSTS] = {0};
    if (!sound(c, j, "there is no memory for an operation")) return;
    *j = (struct job){.order = order, .round = round, .entry = entry, .wire = -1, .file = -1, .reduces = t->reduces, .blames = t->kind == ALLREDUCE};
    for (int i = 0; i < n; i++) takes_part[host_of_rank(c, ranks[i])] = true;
    for (uint32_t h = 0; h < l->hosts; h++) {
        if (!takes_part[h]) continue;
        if (h == l->host) j->me = j->count;
        j->hosts[j->count++] = (uint16_t)h;
    }
    *l->last_job = j;
    l->last_job = &j->next;
    if (j->reduces) {
        prepare_sum(l, j, e, t);
    } else {
        j->streams = calloc(2 * (size_t)j->count, sizeof *j->streams);
        if (!sound(c, j->streams, "there is no memory for an operation")) return;
        prepare_collection(l, j, e);
    }
    unstash(l);
}

static struct job *job_of(struct link *l, uint64_t order) {
    struct job *j = l->jobs;
    while (j && j->order != order) j = j->next;
    return j;
}

static int index_of(struct job *j, int host) {
    for (int i = 0; i < j->count; i++)
        if (j->hosts[i] == host) return i;
    return -1;
}

bool waits_for(struct link *l, int host) {
    for (struct job *j = l->jobs; j; j = j->next) {
        int i = index_of(j, host);
        if (i < 0) continue;
        bool moved = j->complete;
        for (int way = 0; way < 2 && moved; way++) {
            if (!j->reduces) moved = stream(j, way, i)->done == stream(j, way, i)->bytes;
            else moved = *flow(j, way, 0, i) == j->layout.slices && *flow(j, way, 1, i) == j->layout.slices;
        }
        if (!moved) return true;
    }
    return false;
}

static bool all_moved(struct job *j) {
    if (!j->complete || j->in_flight) return false;
    for (int k = 0; k < 4 * j->count && j->reduces; k++)
        if (j->flows[k] < j->layout.slices) return false;
    for (int k = 0; k < 2 * j->count && !j->reduces; k++)
        if (j->streams[k].done < j->streams[k].bytes) return false;
    return !j->reduces || j->summed == j->layout.slices;
}

static void free_job(struct link *l, struct job *j) {
    for (int k = 0; k < 2 * j->count && j->streams; k++) free(j->streams[k].spans);
    for (int i = 0; i < j->count; i++) free(j->inbox[i]);
    give_room(l->c, j);
    free(j->streams);
    free(j->flows);
    free(j);
}

bool starves(struct link *l) {
    for (struct job *j = l->jobs; j; j = j->next)
        if (j->complete && j->local && j->ready < j->layout.slices) return true;
    return false;
}

bool get_on(struct link *l) {
    struct core *c = l->c;
    bool done = false;
    int status;
    for (struct job **link = &l->jobs, *j; (j = *link);) {
        struct entry *e = entry_at(c, j->entry);
        uint32_t p = j->round & 1, ready = j->ready;
        if (j->complete && j->reduces) {
            make_ready(l, j, 0);
            done |= sum_inboxes(l, j) || j->ready > ready;
            show(l, j);
        }
        if (!all_moved(j) || !all_blamed(l, j)) {
            link = &j->next;
            continue;
        }
        *link = j->next;
        if (!j->next) l->last_job = link;
        j->next = l->lingering;
        l->lingering = j;
        done = true;
        if (e->taking[p] > 1) {
            while ((status = lock(c)) == PENDING) {}
            if (status) break;
            schedule_taking(c, j->entry, j->round);
        }
        atomic_store(&e->arrived_data[p], 1);
        atomic_fetch_add(&c->header->progress, 1);
        if (e->taking[p] > 1) unlock(c);
        else ring(c);
    }
    for (struct job **link = &l->lingering, *j; (j = *link);) { /* until all here have taken it */
        struct entry *e = entry_at(c, j->entry);
        if (j->collected && atomic_load(&e->of[j->round & 1]) == j->round + 1 && atomic_load(&e->takers[j->round & 1]) < e->taking[j->round & 1]) {
            link = &j->next;
            continue;
        }
        *link = j->next;
        free_job(l, j);
    }
    return done;
}

void blame_came(struct link *l, uint64_t order, const char *body, size_t bytes) {
    struct job *j = job_of(l, order);
    if (!sound(l->c, j, "a host spoke of numbers of an operation that is over")) return;
    for (const uint64_t *pair = (const uint64_t *)body; bytes >= 16; bytes -= 16, pair += 2)
        blame_too(l->c, entry_at(l->c, j->entry), j->round, pair[0], pair[1]);
    j->blamed_by++;
}

void close_jobs(struct link *l) {
    for (struct job *j; (j = l->jobs);) l->jobs = j->next, free_job(l, j);
    for (struct job *j; (j = l->lingering);) l->lingering = j->next, free_job(l, j);
    for (struct stash *s; (s = l->stashed);) l->stashed = s->next, free(s);
}

/* ---- frames of data ---- */

enum { STEP_SHIFT = 63, BAD_SHIFT = 62 }; /* BAD: of a result, it or one before is inf or nan */

/* The next share that can go to that host, of the oldest operation that has one; results before inputs. */
static bool next_share(struct link *l, struct job *j, int i, struct line *line) {
    for (int step = 1; step >= 0; step--) {
        uint32_t *next = flow(j, OUT, step, i), number = *next;
        if (number == j->layout.slices) continue;
        if (!step && number >= j->ready) make_ready(l, j, number + 1);
        if (number >= (step ? j->summed : j->ready)) continue;
        struct share s = share_of(j, OUT, step, i, number);
        line->data = (struct frame){.bytes = (uint32_t)s.bytes, .at = (uint64_t)step << STEP_SHIFT | (uint64_t)(step && j->bad) << BAD_SHIFT | number};
        line->data_body = in_vector(j, &s);
        if (is_narrowed(j, s.run)) {
            uint16_t *rounded = (uint16_t *)line->narrowed;
            const float *from = (const float *)line->data_body;
            narrow(rounded, from, s.count, j->wire);
            bool says = !step && j->blames && j->stages[s.run].outer <= SUM;
            if (says && any_not_finite(rounded, s.count, j->wire)) blame_rounded(l, j, s.low, from, rounded, s.count);
            line->data_body = line->narrowed;
        }
        ++*next;
        skip_empty(j, OUT, step, i);
        return true;
    }
    return false;
}

static bool next_piece(struct job *j, int i, struct line *line) {
    struct stream *s = stream(j, OUT, i);
    if (s->done == s->bytes) return false;
    struct span *span = &s->spans[s->now];
    uint64_t bytes = least(span->bytes - s->in_span, FRAME_BYTES);
    line->data = (struct frame){.bytes = (uint32_t)bytes, .at = s->done};
    line->data_body = span->at + s->in_span;
    pass(s, bytes);
    return true;
}

bool next_data(struct link *l, struct line *line) {
    for (struct job *j = l->jobs; j; j = j->next) {
        int i = index_of(j, line->host);
        if (i < 0 || !j->complete || !(j->reduces ? next_share(l, j, i, line) : next_piece(j, i, line))) continue;
        line->data.type = FRAME_DATA;
        line->data.order = j->order;
        line->data_job = j;
        j->in_flight++;
        return true;
    }
    return false;
}

void data_went(struct link *l, struct line *line) {
    (void)l;
    line->data_job->in_flight--;
}

/* Where data goes that comes now; NULL and a broken connection if it must not. A share is put into its place, or into
 * line->bounce if it is summed or widened at once, or into an inbox. */
struct target { struct job *job; int index, step; struct stream *stream; struct share share; bool at_once; char *place; };

static bool find_target(struct link *l, struct job *j, struct line *line, uint64_t at, uint64_t bytes, struct target *t) {
    *t = (struct target){.job = j, .index = index_of(j, line->host), .step = (int)(at >> STEP_SHIFT)};
    uint64_t number = at & ~(3ull << BAD_SHIFT);
    bool fine = t->index >= 0 && j->complete;
    if (fine && !j->reduces) {
        t->stream = stream(j, IN, t->index);
        struct span *span = &t->stream->spans[t->stream->now];
        fine = !t->step && number == t->stream->done && bytes <= t->stream->bytes - number;
        if (fine && bytes) t->place = span->bytes - t->stream->in_span >= bytes ? span->at + t->stream->in_span : line->bounce;
    } else if (fine) {
        fine = number < j->layout.slices && number == *flow(j, IN, t->step, t->index);
        if (fine) t->share = share_of(j, IN, t->step, t->index, (uint32_t)number);
        fine = fine && bytes == t->share.bytes;
        if (fine && t->step) {
            t->place = is_narrowed(j, t->share.run) ? line->bounce : in_vector(j, &t->share);
        } else if (fine) {
            make_ready(l, j, (uint32_t)number + 1);
            t->at_once = j->count == 2 && number == j->summed && number < j->ready;
            if (!t->at_once && !j->inbox[t->index]) j->inbox[t->index] = malloc(j->layout.slices * j->layout.share_bytes);
            if (!t->at_once && !j->inbox[t->index]) return false;
            t->place = t->at_once ? line->bounce : j->inbox[t->index] + number * j->layout.share_bytes;
        }
    }
    if (!fine) break_link(l, line->host, "it sent data that was not asked for");
    return fine;
}

char *data_place(struct link *l, struct line *line) {
    struct frame *f = &line->in;
    struct job *j = job_of(l, f->order);
    struct target t;
    line->in_stash = NULL;
    if (j) return find_target(l, j, line, f->at, f->bytes, &t) ? t.place : NULL;
    struct stash *s = malloc(sizeof *s + f->bytes);
    if (!s) return NULL;
    *s = (struct stash){NULL, line->host, f->order, f->at, f->bytes};
    line->in_stash = s;
    return s->data;
}

/* A frame of data is whole and proven; it is at `body`, which is its place or not: what could be done at once may have become
 * possible, or too late, since its header came. */
static void accept_data(struct link *l, struct job *j, int host, uint64_t at, uint64_t bytes, const char *body) {
    struct target t;
    if (!find_target(l, j, &l->lines[host], at, bytes, &t)) return;
    if (!j->reduces) {
        for (uint64_t n; bytes; bytes -= n, body += n) {
            char *to = t.stream->spans[t.stream->now].at + t.stream->in_span;
            n = least(bytes, t.stream->spans[t.stream->now].bytes - t.stream->in_span);
            if (to != body) copy(to, body, n);
            pass(t.stream, n);
        }
        return;
    }
    j->bad |= t.step && at >> BAD_SHIFT & 1;
    ++*flow(j, IN, t.step, t.index);
    skip_empty(j, IN, t.step, t.index);
    if (t.step && is_narrowed(j, t.share.run)) {
        widen((float *)in_vector(j, &t.share), (const uint16_t *)body, t.share.count, j->wire);
    } else if (t.at_once) {
        const char *from[MAX_HOSTS] = {0};
        from[t.index] = body;
        sum_slice(l, j, from);
    } else if (body != t.place) {
        memcpy(t.place, body, bytes);
    }
}

void data_came(struct link *l, struct line *line) {
    struct stash *s = line->in_stash;
    struct job *j = job_of(l, line->in.order);
    if (!s) {
        if (j) accept_data(l, j, line->host, line->in.at, line->in.bytes, line->in_body);
        return;
    }
    line->in_stash = NULL;
    struct stash **last = &l->stashed;
    while (*last) last = &(*last)->next;
    *last = s;
    if (j) unstash(l);
}

static void unstash(struct link *l) {
    for (struct stash **link = &l->stashed, *s; (s = *link);) {
        struct job *j = job_of(l, s->order);
        if (!j) {
            link = &s->next;
            continue;
        }
        *link = s->next;
        accept_data(l, j, s->host, s->at, s->bytes, s->data);
        free(s);
    }
}
