/* Data between hosts: what was decided is moved, in the decided order, by the leaders' connections.
 *
 * An allreduce between hosts is cut into a share for each of them. Every host sends each other host that one's share of
 * its own sum; the owner adds them up, in the order of hosts, as they come, and sends the result to all. That is the
 * number of bytes of a ring in two steps instead of 2 (n - 1), and every element is summed by one host in one order. Where
 * workers share a host, they have summed theirs before (sum_here): in shared memory, each a part. A partial sum is rounded
 * to the type of the tensor; where that could go wrong (integers averaged, products of halves), all inputs travel instead.
 *
 * For everything else all that a host needs of the others' inputs is collected in its leader's arena; each rank makes its
 * result of that, as it would of what lies in shared memory.
 *
 * Two operations never wait for each other: results of one and inputs of the next are on their way at once, older first.
 */
#include "link.h"
#include <stdlib.h>
#include <string.h>

/* ---- how an operation lies in memory ---- */

struct run { int dtype; uint64_t at, count; }; /* all segments of one element type, in a row */
struct stages { int inner, outer; double prescale, postscale, divisor; };

static uint64_t up64(uint64_t bytes) { return (bytes + 63) & ~63ull; }
static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* A reduction in two steps, inside hosts and between them; false if a partial sum might not fit its type. */
static bool two_steps(int op, int wire, double prescale, double postscale, int dtype, double divisor, struct stages *s) {
    bool floats = dtype == FLOAT16 || dtype == BFLOAT16 || dtype == FLOAT32 || dtype == FLOAT64;
    if (wire >= 0 && dtype == FLOAT32) dtype = wire;
    int inner = op == AVERAGE ? SUM : op;
    if (op != AVERAGE) divisor = 1;
    *s = (struct stages){inner, op, prescale, postscale, divisor};
    if (op == ADASUM) return false;
    if (dtype == BOOL) *s = (struct stages){inner, inner, 1, 1, 1};
    else if (!floats) return op != AVERAGE && prescale == 1 && postscale == 1;
    else if (dtype == FLOAT16 && inner == SUM) /* a host's sum may exceed its range where the average does not: scale first */
        *s = (struct stages){SUM, SUM, prescale * postscale / divisor, 1, 1};
    else if (dtype == FLOAT16) return op != PRODUCT && prescale == 1;
    return true;
}

static bool stages_of(const struct task *t, int dtype, double divisor, struct stages *s) {
    return two_steps((int)t->op, t->wire, t->prescale, t->postscale, dtype, divisor, s);
}

bool reduces(const struct plan *p) {
    struct stages s;
    if (p->kind != ALLREDUCE) return false;
    for (uint32_t k = 0; k < p->segment_count; k++)
        if (!two_steps((int)p->op, p->wire, p->prescale, p->postscale, (int)p->segments[k].dtype, 1, &s)) return false;
    return true;
}

static uint64_t bytes_of(const struct shape *s) { return s->count * item_bytes[s->dtype]; }

/* Runs of what is reduced; how many. */
static int runs_of(const struct shape *segments, uint32_t count, struct run *runs) {
    int n = 0;
    uint64_t at = 0;
    for (int dtype = 0; dtype < DTYPES; dtype++) {
        uint64_t elements = 0;
        for (uint32_t k = 0; k < count; k++)
            if ((int)segments[k].dtype == dtype) elements += segments[k].count;
        if (!elements) continue;
        runs[n++] = (struct run){dtype, at, elements};
        at = up64(at + elements * item_bytes[dtype]);
    }
    return n;
}

/* Copy tensors into that layout, or out of it. */
static void pack(const struct plan *p, char **tensors, char *packed, bool in) {
    struct run runs[DTYPES];
    int n = runs_of(p->segments, p->segment_count, runs);
    for (int i = 0; i < n; i++) {
        char *at = packed + runs[i].at;
        for (uint32_t k = 0; k < p->segment_count; k++) {
            if ((int)p->segments[k].dtype != runs[i].dtype) continue;
            uint64_t bytes = bytes_of(&p->segments[k]);
            if (bytes && in) copy(at, tensors[k], bytes);
            else if (bytes) copy(tensors[k], at, bytes);
            at += bytes;
        }
    }
}

/* ---- on the rank that submits ---- */

static bool speaks_alone(struct core *c, struct set *s) { return s->here_count == 1 && c->rank == (int)c->header->leader; }

/* Where the leader of the host can reach it: in place, or as a copy. False if there is no room for that. */
bool stage(struct core *c, struct ticket *t) {
    struct plan *p = t->plan;
    struct set *s = set_at(c, p->set);
    bool gathers = p->kind == ALLGATHER || p->kind == ALLTOALL;
    uint64_t bytes = 0;
    if (p->kind == BARRIER || (!gathers && p->packed_bytes <= c->header->inline_bytes && p->op != ADASUM)) return true;
    if (p->kind == BROADCAST && p->root != c->rank) return true;
    bool reduces = p->reduces;
    bool shared = arena_offset(c, p->segment_count ? t->in[0] : NULL, p->bytes) >= 0 && t->in[0] == t->out[0];
    if (reduces && p->segment_count == 1 && (speaks_alone(c, s) || shared)) return true;
    if (reduces) {
        struct run runs[DTYPES];
        int n = runs_of(p->segments, p->segment_count, runs);
        if (n) bytes = runs[n - 1].at + runs[n - 1].count * item_bytes[runs[n - 1].dtype];
    } else if (gathers) {
        for (uint32_t k = 0; k < t->meta_count; k++) bytes += p->kind == ALLGATHER ? up64((uint64_t)t->meta[k]) : (uint64_t)t->meta[k];
    } else {
        for (uint32_t k = 0; k < p->segment_count; k++) bytes += up64(bytes_of(&p->segments[k]));
    }
    if (!bytes) return true;
    t->staged = atomic_exchange(&p->spare, NULL);
    if (t->staged && p->spare_bytes < bytes) arena_free(c, t->staged), t->staged = NULL;
    if (!t->staged && !(t->staged = arena_alloc(c, bytes))) return false;
    t->staged_bytes = bytes;
    if (reduces) {
        pack(p, t->in, t->staged, true);
        return true;
    }
    char *at = t->staged;
    for (uint32_t k = 0; k < p->segment_count; k++) {
        uint64_t n = p->kind == ALLGATHER ? (uint64_t)t->meta[k] : p->kind == ALLTOALL ? bytes : bytes_of(&p->segments[k]);
        if (n) copy(at, t->in[k], n);
        at += up64(n);
    }
    return true;
}

/* It stays with the plan, for the next time. */
void unstage(struct core *c, struct ticket *t) {
    char *staged = t->staged, *none = NULL;
    t->staged = NULL;
    if (!staged) return;
    if (t->plan && !t->plan->dropped && atomic_compare_exchange_strong(&t->plan->spare, &none, staged)) t->plan->spare_bytes = t->staged_bytes;
    else arena_free(c, staged);
}

/* ---- what ranks of one host do for each other ---- */

static bool is_here(struct core *c, int r) { return c->header->host_of[r] == c->header->host; }

/* The ranks of this host that take part, ascending. */
static int here(struct core *c, struct entry *e, uint64_t round, int *ranks) {
    struct set *s = set_at(c, e->set);
    int n = 0;
    for (uint32_t m = 0; m < s->here_count; m++)
        if (has(e->contributors[round & 1], s->here[m])) ranks[n++] = s->here[m];
    return n;
}

static double divisor_of(struct core *c, struct entry *e, uint64_t round) {
    int ranks[MAX_RANKS];
    return e->average_active[round & 1] ? contributors(c, e, round, ranks) : set_at(c, e->set)->count;
}

static char *brought_by(struct core *c, struct entry *e, int r) {
    int64_t at = arrival_at(e, r)->arena_at;
    return at < 0 ? NULL : arena_at(c, r) + at;
}

/* Add up what this host's ranks brought, a part of it each, where the first of them has it. */
int sum_here(struct core *c, const struct scheduled *item) {
    struct entry *e = entry_at(c, item->entry);
    struct task *t = task_of(e, item->round);
    char sum[STEP_BYTES] __attribute__((aligned(64)));
    int ranks[MAX_RANKS], n = here(c, e, item->round, ranks), me = 0;
    struct run runs[DTYPES];
    int run_count = runs_of(t->segments, t->segment_count, runs);
    double divisor = divisor_of(c, e, item->round);
    while (me < n && ranks[me] != c->rank) me++;
    struct ticket *ticket = atomic_load(&c->in_flight[item->entry]);
    if (!sound(c, me < n && ticket && ticket->round == item->round, "a sum is to be made that this rank has no part in")) return ABORTED;
    trace(c, TRACE_BEGIN, ticket->plan, c->rank, 0, 1);
    for (int i = 0; i < run_count; i++) {
        struct stages how;
        uint64_t size = item_bytes[runs[i].dtype], part = up64((runs[i].count + (uint64_t)n - 1) / (uint64_t)n);
        uint64_t low = least((uint64_t)me * part, runs[i].count), high = least(low + part, runs[i].count);
        stages_of(t, runs[i].dtype, divisor, &how);
        if (n == 1 && how.prescale == 1) continue;
        for (uint64_t k = low, count; k < high; k += count) {
            const void *from[MAX_RANKS];
            count = least(high - k, STEP_BYTES / size);
            for (int r = 0; r < n; r++) from[r] = brought_by(c, e, ranks[r]) + runs[i].at + k * size;
            reduce(sum, from, n, count, runs[i].dtype, how.inner, how.prescale, 1, 1);
            copy(brought_by(c, e, ranks[0]) + runs[i].at + k * size, sum, count * size);
        }
    }
    atomic_fetch_add(&c->header->progress, 1);
    if (atomic_fetch_add(&e->shares[item->round & 1], 1) + 1 == (uint32_t)n) wake_leader(c);
    return OK;
}

/* How much of a rank's input this host needs, if it is not reduced on the way. */
static uint64_t needed(struct core *c, struct entry *e, struct task *t, int r, uint32_t host) {
    struct set *s = set_at(c, e->set);
    struct arrival *a = arrival_at(e, r);
    uint64_t bytes = 0;
    if (t->kind == BROADCAST && r != t->root) return 0;
    if (t->kind == ALLTOALL) {
        for (uint32_t m = 0; m < s->count; m++)
            if (c->header->host_of[s->members[m]] == host) bytes += (uint64_t)a->meta[m];
        return bytes;
    }
    for (uint32_t k = 0; k < t->segment_count; k++)
        bytes += up64(t->kind == ALLGATHER ? (uint64_t)a->meta[k] : bytes_of(&t->segments[k]));
    return bytes;
}

static void adasum_of(double **vectors, int n, uint64_t count) {
    for (int distance = 1; distance < n; distance *= 2)
        for (int m = 0; m < n; m += 2 * distance) {
            double *a = vectors[m], *b = vectors[m + distance], ab = 0, aa = 0, bb = 0;
            for (uint64_t i = 0; i < count; i++) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
            double wa = aa > 0 ? 1 - ab / (2 * aa) : 1, wb = bb > 0 ? 1 - ab / (2 * bb) : 1;
            for (uint64_t i = 0; i < count; i++) a[i] = wa * a[i] + wb * b[i];
        }
}

static int adasum_from(struct plan *p, uint32_t k, char *out, const void *const *in, int n) {
    struct shape *s = &p->segments[k];
    double *all = malloc((size_t)n * s->count * sizeof *all + 1), *vectors[MAX_RANKS];
    if (!all) return FULL;
    for (int m = 0; m < n; m++) {
        vectors[m] = all + (uint64_t)m * s->count;
        to_double(vectors[m], in[m], s->count, (int)s->dtype);
        for (uint64_t i = 0; p->prescale != 1 && i < s->count; i++) vectors[m][i] *= p->prescale;
    }
    adasum_of(vectors, n, s->count);
    for (uint64_t i = 0; i < s->count; i++) all[i] *= p->postscale;
    from_double(out, all, s->count, (int)s->dtype);
    free(all);
    return OK;
}

/* All inputs are here: make this rank's result of them. */
static int take_collected(struct core *c, struct ticket *t, struct entry *e) {
    struct plan *p = t->plan;
    struct set *s = set_at(c, e->set);
    struct task *task = task_of(e, t->round);
    const char *at[MAX_RANKS];
    int ranks[MAX_RANKS], n = contributors(c, e, t->round, ranks), me = s->position[c->rank];
    char *collected = e->result_at[t->round & 1] < 0 ? NULL : arena_at(c, (int)c->header->leader) + e->result_at[t->round & 1];
    for (int m = 0; m < n; m++) {
        if (is_here(c, ranks[m])) {
            at[m] = brought_by(c, e, ranks[m]);
            continue;
        }
        at[m] = collected;
        if (collected) collected += up64(needed(c, e, task, ranks[m], c->header->host));
    }
    if (p->kind == ALLGATHER || p->kind == ALLTOALL) {
        t->memory = calloc(p->segment_count, sizeof *t->memory);
        t->received = calloc((size_t)p->segment_count * (size_t)n, sizeof *t->received);
        if (!t->memory || !t->received) return FULL;
    }
    double divisor = p->op == AVERAGE ? divisor_of(c, e, t->round) : 1;
    for (uint32_t k = 0; k < p->segment_count; k++) {
        struct shape *shape = &p->segments[k];
        uint64_t item = item_bytes[shape->dtype], total = 0;
        if (p->kind == ALLGATHER || p->kind == ALLTOALL) {
            int64_t *received = t->received + (size_t)k * (size_t)n;
            for (int m = 0; m < n; m++) total += (uint64_t)(received[m] = arrival_at(e, ranks[m])->meta[p->kind == ALLGATHER ? k : (uint32_t)me]);
            char *out = t->memory[k] = aligned_alloc(64, ((size_t)total + 64) & ~(size_t)63);
            if (!out) return FULL;
            for (int m = 0; m < n; out += received[m++]) {
                const char *from = at[m];
                for (int before = 0; p->kind == ALLTOALL && before < me; before++) /* of those on this host, or all */
                    if (is_here(c, ranks[m]) || is_here(c, s->members[before])) from += arrival_at(e, ranks[m])->meta[before];
                if (received[m]) copy(out, from, (uint64_t)received[m]);
                if (p->kind == ALLGATHER) at[m] += up64((uint64_t)received[m]);
            }
            continue;
        }
        const void *in[MAX_RANKS];
        uint64_t low = 0, count = shape->count;
        int status = OK;
        if (p->kind == REDUCESCATTER) {
            for (int m = 0; m < me; m++) low += part_of(shape, m, (int)s->count) * item;
            count = part_of(shape, me, (int)s->count);
        }
        for (int m = 0; m < n; m++) in[m] = at[m] ? at[m] + low : NULL;
        if (p->kind == BROADCAST) {
            if (count && (c->rank != p->root || t->in[k] != t->out[k])) copy(t->out[k], at[s->position[p->root]], count * item);
        } else if (p->op == ADASUM) {
            status = adasum_from(p, k, t->out[k], in, n);
        } else if (count) {
            reduce(t->out[k], in, n, count, (int)shape->dtype, (int)p->op, p->prescale, p->postscale, divisor);
        }
        if (status) return status;
        for (int m = 0; m < n; m++)
            if (at[m]) at[m] += up64(shape->count * item);
    }
    return OK;
}

static int take(struct core *c, struct ticket *t, struct entry *e) {
    if (!task_of(e, t->round)->reduces) return take_collected(c, t, e);
    int ranks[MAX_RANKS];
    here(c, e, t->round, ranks);
    char *sum = brought_by(c, e, ranks[0]);
    if (!sum || (ranks[0] == c->rank && !t->staged)) return OK; /* it is where it belongs */
    pack(t->plan, t->out, sum, false);
    return OK;
}

/* If it is over, what was read may have been given back by a rank that is gone: it is not believed. */
int take_abroad(struct core *c, struct ticket *t, struct entry *e) {
    int status = take(c, t, e);
    return status ? status : over(c);
}

/* The same where several ranks of the host do, each when it comes by: what they take is there until all have. */
int take_here(struct core *c, const struct scheduled *item) {
    struct entry *e = entry_at(c, item->entry);
    struct ticket *t = atomic_load(&c->in_flight[item->entry]);
    if (!sound(c, t && t->round == item->round, "something is to be taken that this rank did not submit")) return ABORTED;
    atomic_store(&t->took, (uint32_t)take_abroad(c, t, e));
    atomic_fetch_add(&c->header->progress, 1);
    if (atomic_fetch_add(&e->takers[item->round & 1], 1) + 1 == e->taking[item->round & 1]) ring(c);
    return OK;
}

/* ---- jobs: operations on their way between hosts ---- */

struct span { char *at; uint64_t bytes; };
struct stream { struct span *spans; uint32_t count, now; uint64_t in_span, bytes, done, gone, limit; }; /* gone: written */

struct job {
    struct job *next;
    uint64_t order, round;
    uint32_t entry;
    int me, count;
    uint16_t hosts[MAX_HOSTS]; /* that take part */
    bool reduces, ready, finished;
    int wire;
    struct run runs[DTYPES];
    struct stages stages[DTYPES];
    int run_count, local;
    char *vector, *narrow; /* what is summed, and the same as it travels, if that is narrower */
    char *inbox[MAX_HOSTS];
    uint64_t summed, mine;
    char *collected;
    struct stream *streams; /* out and in, of each step, by host */
};

struct stash { struct stash *next; int host; uint64_t order, at, bytes; char data[]; };

enum { OUT, IN };
static struct stream *stream(struct job *j, int way, int step, int index) {
    return &j->streams[(way * 2 + step) * j->count + index];
}

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

static uint64_t wire_item(struct job *j, int run) {
    return j->wire >= 0 && j->runs[run].dtype == FLOAT32 ? 2 : item_bytes[j->runs[run].dtype];
}

static void share_of(struct job *j, int run, int index, uint64_t *low, uint64_t *high) {
    uint64_t count = j->runs[run].count, part = ((count + (uint64_t)j->count - 1) / (uint64_t)j->count + 63) & ~63ull;
    *low = least((uint64_t)index * part, count);
    *high = least(*low + part, count);
}

static void prepare_reduction(struct job *j) {
    for (int run = 0; run < j->run_count; run++)
        for (int i = 0; i < j->count; i++) {
            uint64_t low, high, item = wire_item(j, run);
            share_of(j, run, i, &low, &high);
            char *at = (j->narrow && item == 2 && j->runs[run].dtype == FLOAT32 ? j->narrow : j->vector) + j->runs[run].at + low * item;
            if (i == j->me) {
                j->mine += (high - low) * item;
                for (int k = 0; k < j->count; k++)
                    if (k != j->me) add_span(stream(j, OUT, 1, k), at, (high - low) * item);
                continue;
            }
            add_span(stream(j, OUT, 0, i), at, (high - low) * item);
            add_span(stream(j, IN, 1, i), at, (high - low) * item);
        }
    for (int i = 0; i < j->count; i++)
        if (i != j->me) stream(j, IN, 0, i)->bytes = j->mine;
}

static void prepare_collection(struct link *l, struct job *j, struct entry *e) {
    struct core *c = l->c;
    struct set *s = set_at(c, e->set);
    struct task *t = task_of(e, j->round);
    int ranks[MAX_RANKS], n = contributors(c, e, j->round, ranks);
    uint64_t wanted = 0;
    for (int m = 0; m < n; m++)
        if (!is_here(c, ranks[m])) wanted += up64(needed(c, e, t, ranks[m], l->host));
    if (wanted && !sound(c, j->collected = arena_alloc(c, wanted), "there is no room for what other hosts send")) return;
    e->result_at[j->round & 1] = wanted ? arena_offset(c, j->collected, wanted) : -1;
    char *to = j->collected;
    for (int m = 0; m < n; m++) {
        struct arrival *a = arrival_at(e, ranks[m]);
        int owner = 0;
        while (j->hosts[owner] != c->header->host_of[ranks[m]]) owner++;
        for (int i = 0; i < j->count; i++) {
            bool mine = owner == j->me;
            if (mine == (i == j->me) && !(owner != j->me && i == owner)) continue;
            if (!mine && i != owner) continue;
            struct stream *stream_ = mine ? stream(j, OUT, 0, i) : stream(j, IN, 0, owner);
            uint32_t host = mine ? j->hosts[i] : l->host;
            char *at = mine ? brought_by(c, e, ranks[m]) : to;
            if (t->kind != ALLTOALL) {
                add_span(stream_, at, needed(c, e, t, ranks[m], host));
            } else {
                for (uint32_t k = 0; k < s->count; k++) { /* sender: each part where it lies; receiver: in a row */
                    bool wanted_there = c->header->host_of[s->members[k]] == host;
                    if (wanted_there) add_span(stream_, at, (uint64_t)a->meta[k]);
                    if (wanted_there || mine) at += a->meta[k];
                }
            }
        }
        if (owner != j->me) to += up64(needed(c, e, t, ranks[m], l->host));
    }
    for (int i = 0; i < j->count; i++) stream(j, OUT, 0, i)->limit = stream(j, OUT, 0, i)->bytes;
    j->ready = true;
}

static void unstash(struct link *l);

void begin_job(struct link *l, uint32_t entry, uint64_t round, uint64_t order) {
    struct core *c = l->c;
    struct entry *e = entry_at(c, entry);
    struct task *t = task_of(e, round);
    struct job *j = calloc(1, sizeof *j);
    int ranks[MAX_RANKS], n = contributors(c, e, round, ranks);
    bool takes_part[MAX_HOSTS] = {0};
    if (!sound(c, j, "there is no memory for an operation")) return;
    *j = (struct job){.order = order, .round = round, .entry = entry, .wire = t->wire, .reduces = t->reduces};
    for (int i = 0; i < n; i++) takes_part[c->header->host_of[ranks[i]]] = true;
    for (uint32_t h = 0; h < l->hosts; h++) {
        if (!takes_part[h]) continue;
        if (h == l->host) j->me = j->count;
        j->hosts[j->count++] = (uint16_t)h;
    }
    j->streams = calloc(4 * (size_t)j->count, sizeof *j->streams);
    if (!sound(c, j->streams, "there is no memory for an operation")) return;
    *l->last_job = j;
    l->last_job = &j->next;
    if (!j->reduces) {
        prepare_collection(l, j, e);
        unstash(l);
        return;
    }
    j->local = here(c, e, round, ranks);
    j->run_count = runs_of(t->segments, t->segment_count, j->runs);
    for (int i = 0; i < j->run_count; i++) stages_of(t, j->runs[i].dtype, divisor_of(c, e, round), &j->stages[i]);
    struct ticket *own = atomic_load(&c->in_flight[entry]);
    j->vector = brought_by(c, e, ranks[0]);
    if (!j->vector) { /* the leader's own, and nobody here adds to it */
        if (!sound(c, own && own->round == round, "data is to be sent that was not brought")) return;
        trace(c, TRACE_BEGIN, own->plan, c->rank, 0, 1);
        j->vector = own->out[0];
        if (own->in[0] != own->out[0] || j->stages[0].prescale != 1) {
            const void *from = own->in[0];
            reduce(j->vector, &from, 1, j->runs[0].count, j->runs[0].dtype, j->stages[0].inner == AVERAGE ? SUM : j->stages[0].inner,
                   j->stages[0].prescale, 1, 1);
        }
        j->local = 0;
    }
    if (j->count == 1) j->wire = -1; /* nothing travels */
    if (j->wire >= 0) {
        struct run *last = &j->runs[j->run_count - 1];
        j->narrow = malloc(last->at + last->count * item_bytes[last->dtype]);
        if (!sound(c, j->narrow, "there is no memory for an operation")) return;
    }
    prepare_reduction(j);
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

/* ---- summing ---- */

/* Where a place of my share's stream is: which run, which element of it; and how many elements follow there. */
static int locate(struct job *j, uint64_t at, uint64_t *element, uint64_t *left) {
    for (int run = 0;; run++) {
        uint64_t low, high, item = wire_item(j, run);
        share_of(j, run, j->me, &low, &high);
        if (at < (high - low) * item) {
            *element = low + at / item;
            *left = high - *element;
            return run;
        }
        at -= (high - low) * item;
    }
}

/* Where a place of my share's stream is in an inbox, in which each run begins aligned; of its end: how large that is. */
static uint64_t in_inbox(struct job *j, uint64_t at) {
    uint64_t before = 0;
    for (int run = 0; run < j->run_count; run++) {
        uint64_t low, high;
        share_of(j, run, j->me, &low, &high);
        uint64_t bytes = (high - low) * wire_item(j, run);
        if (at < bytes) return before + at;
        at -= bytes;
        before += up64(bytes);
    }
    return before;
}

/* Sum so many bytes of my share at `summed`; peers' parts are at `from`, by host. */
static void sum_some(struct job *j, const char *const *from, uint64_t bytes) {
    enum { BLOCK = STEP_BYTES / 8 };
    float wide[8][BLOCK], *widened = wide[0], *many = NULL;
    char sum[STEP_BYTES] __attribute__((aligned(64)));
    if (j->narrow && j->count > 8 && !(widened = many = malloc((size_t)j->count * BLOCK * sizeof *many))) abort();
    for (uint64_t done = 0; done < bytes;) {
        uint64_t element, left;
        int run = locate(j, j->summed, &element, &left);
        uint64_t item = wire_item(j, run), size = item_bytes[j->runs[run].dtype];
        uint64_t count = least(least((bytes - done) / item, left), BLOCK);
        char *own = j->vector + j->runs[run].at + element * size;
        bool rounded = item != size;
        const void *in[MAX_HOSTS];
        struct stages *how = &j->stages[run];
        for (int i = 0; i < j->count; i++) {
            in[i] = i == j->me ? own : from[i] + done;
            if (rounded && i != j->me) {
                widen(widened + (size_t)i * BLOCK, (const uint16_t *)(from[i] + done), count, j->wire);
                in[i] = widened + (size_t)i * BLOCK;
            }
        }
        reduce(sum, in, j->count, count, j->runs[run].dtype, how->outer, 1, how->postscale, how->divisor);
        if (rounded) { /* everybody gets what the others can */
            uint16_t *travels = (uint16_t *)(j->narrow + j->runs[run].at) + element;
            narrow(travels, (float *)sum, count, j->wire);
            widen((float *)own, travels, count, j->wire);
        } else {
            copy(own, sum, count * size);
        }
        j->summed += count * item;
        done += count * item;
    }
    free(many);
    for (int i = 0; i < j->count; i++)
        if (i != j->me) stream(j, OUT, 1, i)->limit = j->summed;
}

static void become_ready(struct job *j) {
    j->ready = true;
    for (int run = 0; run < j->run_count && j->narrow; run++)
        if (j->runs[run].dtype == FLOAT32)
            narrow((uint16_t *)(j->narrow + j->runs[run].at), (float *)(j->vector + j->runs[run].at), j->runs[run].count, j->wire);
    for (int i = 0; i < j->count; i++) stream(j, OUT, 0, i)->limit = stream(j, OUT, 0, i)->bytes;
}

/* What lies in the inboxes of all peers. */
static bool sum_inboxes(struct job *j) {
    uint64_t upto = j->mine;
    const char *from[MAX_HOSTS];
    for (int i = 0; i < j->count; i++)
        if (i != j->me) upto = least(upto, stream(j, IN, 0, i)->done);
    if (!j->ready || upto <= j->summed) return false;
    while (j->summed < upto) { /* run by run: in an inbox each begins aligned */
        uint64_t element, left;
        int run = locate(j, j->summed, &element, &left);
        for (int i = 0; i < j->count; i++) from[i] = j->inbox[i] ? j->inbox[i] + in_inbox(j, j->summed) : NULL;
        sum_some(j, from, least(upto - j->summed, left * wire_item(j, run)));
    }
    return true;
}

static bool all_moved(struct job *j) {
    for (int k = 0; k < 2 * j->count; k++)
        if (j->streams[k].gone < j->streams[k].bytes || j->streams[2 * j->count + k].done < j->streams[2 * j->count + k].bytes) return false;
    return j->ready && (!j->reduces || j->summed == j->mine);
}

static void free_job(struct link *l, struct job *j) {
    for (int k = 0; k < 4 * j->count; k++) free(j->streams[k].spans);
    for (int i = 0; i < j->count; i++) free(j->inbox[i]);
    if (j->collected) arena_free(l->c, j->collected);
    free(j->streams);
    free(j->narrow);
    free(j);
}

bool get_on(struct link *l) {
    struct core *c = l->c;
    bool done = false;
    int status;
    for (struct job **link = &l->jobs, *j; (j = *link);) {
        struct entry *e = entry_at(c, j->entry);
        uint32_t p = j->round & 1;
        if (j->reduces && !j->ready && (!j->local || atomic_load(&e->shares[p]) == (uint32_t)j->local)) become_ready(j), done = true;
        if (j->reduces) done |= sum_inboxes(j);
        if (!all_moved(j)) {
            link = &j->next;
            continue;
        }
        *link = j->next;
        if (!j->next) l->last_job = link;
        j->next = l->lingering;
        l->lingering = j;
        j->finished = done = true;
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
        if (j->collected && atomic_load(&e->round) == j->round + 1 && atomic_load(&e->takers[j->round & 1]) < e->taking[j->round & 1]) {
            link = &j->next;
            continue;
        }
        *link = j->next;
        free_job(l, j);
    }
    return done;
}

void close_jobs(struct link *l) {
    for (struct job *j; (j = l->jobs);) l->jobs = j->next, free_job(l, j);
    for (struct job *j; (j = l->lingering);) l->lingering = j->next, free_job(l, j);
    for (struct stash *s; (s = l->stashed);) l->stashed = s->next, free(s);
}

/* ---- frames of data ---- */

enum { STEP_SHIFT = 63 };

bool next_data(struct link *l, struct line *line) {
    for (struct job *j = l->jobs; j; j = j->next) {
        int i = index_of(j, line->host);
        for (int step = 1; i >= 0 && step >= 0; step--) {
            struct stream *s = stream(j, OUT, step, i);
            if (s->done >= s->limit) continue;
            struct span *span = &s->spans[s->now];
            uint64_t bytes = least(least(span->bytes - s->in_span, s->limit - s->done), FRAME_BYTES);
            line->data = (struct frame){.bytes = (uint32_t)bytes, .type = FRAME_DATA, .order = j->order,
                                        .at = (uint64_t)step << STEP_SHIFT | s->done};
            line->data_body = span->at + s->in_span;
            line->data_stream = s;
            pass(s, bytes);
            return true;
        }
    }
    return false;
}

void data_went(struct link *l, struct line *line) {
    (void)l;
    ((struct stream *)line->data_stream)->gone += line->data.bytes;
}

static struct stream *stream_of(struct link *l, struct job *j, int host, uint64_t at, uint64_t bytes) {
    int i = index_of(j, host), step = (int)(at >> STEP_SHIFT);
    struct stream *s = i >= 0 ? stream(j, IN, step, i) : NULL;
    uint64_t place = at & ~(1ull << STEP_SHIFT);
    if (s && place == s->done && bytes <= s->bytes - s->done) return s;
    break_link(l, host, "it sent data that was not asked for");
    return NULL;
}

static bool at_once(struct job *j, int step, struct stream *s) {
    return j->reduces && !step && j->count == 2 && j->ready && s->done == j->summed;
}

char *data_place(struct link *l, struct line *line) {
    struct frame *f = &line->in;
    struct job *j = job_of(l, f->order);
    line->in_stash = NULL;
    if (!j) {
        struct stash *s = malloc(sizeof *s + f->bytes);
        if (!s) return NULL;
        *s = (struct stash){NULL, line->host, f->order, f->at, f->bytes};
        line->in_stash = s;
        return s->data;
    }
    struct stream *s = stream_of(l, j, line->host, f->at, f->bytes);
    int step = (int)(f->at >> STEP_SHIFT), i = index_of(j, line->host);
    if (!s) return NULL;
    if (j->reduces && !step) {
        if (at_once(j, step, s)) return line->bounce;
        if (!j->inbox[i]) j->inbox[i] = malloc(in_inbox(j, j->mine) + 1);
        return j->inbox[i] ? j->inbox[i] + in_inbox(j, s->done) : NULL;
    }
    return s->spans[s->now].bytes - s->in_span >= f->bytes ? s->spans[s->now].at + s->in_span : line->bounce;
}

/* A frame of data is whole and proven; it is at `body`, which is its place or not. */
static void accept_data(struct link *l, struct job *j, int host, uint64_t at, uint64_t bytes, const char *body) {
    struct stream *s = stream_of(l, j, host, at, bytes);
    int step = (int)(at >> STEP_SHIFT), i = index_of(j, host);
    if (!s) return;
    if (j->reduces && !step) {
        if (at_once(j, step, s)) {
            const char *from[MAX_HOSTS] = {0};
            from[i] = body;
            s->done += bytes;
            sum_some(j, from, bytes);
            return;
        }
        if (!j->inbox[i]) j->inbox[i] = malloc(in_inbox(j, j->mine) + 1);
        if (!sound(l->c, j->inbox[i], "there is no memory for what other hosts send")) return;
        char *to = j->inbox[i] + in_inbox(j, s->done);
        if (body != to) memcpy(to, body, bytes);
        s->done += bytes;
        return;
    }
    for (uint64_t n; bytes; bytes -= n, body += n) {
        char *to = s->spans[s->now].at + s->in_span;
        n = least(bytes, s->spans[s->now].bytes - s->in_span);
        if (to != body) copy(to, body, n);
        if (j->narrow && to >= j->narrow)
            for (int run = 0; run < j->run_count; run++) { /* widen it at once, while it is in the cache */
                char *base = j->narrow + j->runs[run].at;
                if (j->runs[run].dtype != FLOAT32 || to < base || to >= base + j->runs[run].count * 2) continue;
                widen((float *)(j->vector + j->runs[run].at) + (to - base) / 2, (const uint16_t *)to, n / 2, j->wire);
            }
        pass(s, n);
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
