/* Data between hosts, as a rank sees it: what it brings, what ranks of one host do for each other, what it takes.
 *
 * An allreduce or reducescatter between hosts is cut into slices, and each slice into a share for every host that takes part. While one slice
 * is on the network, ranks of a host copy in and add up the next, each a part of it (sum_here), and copy the results of those
 * before out (take_early); the leaders' side is in exchange.c. A partial sum is rounded to the type of the tensor; where that
 * could go wrong (integers averaged, products of halves), all inputs travel instead.
 *
 * For everything else all that a host needs of the others' inputs is collected in its leader's arena, or in a file where that has
 * no room; each rank makes its result of that, as it would of what lies in shared memory.
 */
#include "link.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* ---- how an operation lies in memory ---- */


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

bool stages_of(const struct task *t, int dtype, double divisor, struct stages *s) {
    return two_steps((int)t->op, t->wire, t->prescale, t->postscale, dtype, divisor, s);
}

bool reduces(const struct plan *p) {
    struct stages s;
    if (p->kind != ALLREDUCE && p->kind != REDUCESCATTER) return false;
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

void lay_out(struct layout *l, const struct shape *segments, uint32_t count, int hosts) {
    *l = (struct layout){.hosts = hosts};
    l->run_count = runs_of(segments, count, l->runs);
    uint64_t bytes = (uint64_t)SLICE_BYTES / (uint64_t)hosts;
    l->share_bytes = bytes < LEAST_SHARE ? LEAST_SHARE : bytes > FRAME_BYTES ? FRAME_BYTES : bytes & ~(uint64_t)(LEAST_SHARE - 1);
    for (int i = 0; i < l->run_count; i++) {
        uint64_t whole = l->share_bytes / item_bytes[l->runs[i].dtype] * (uint64_t)hosts;
        l->slices += (uint32_t)((l->runs[i].count + whole - 1) / whole);
    }
}

struct slice slice_at(const struct layout *l, uint32_t number) {
    for (int run = 0;; run++) {
        uint64_t whole = l->share_bytes / item_bytes[l->runs[run].dtype] * (uint64_t)l->hosts, count = l->runs[run].count;
        uint32_t slices = (uint32_t)((count + whole - 1) / whole);
        if (number < slices) return (struct slice){run, number * whole, least(count - number * whole, whole)};
        number -= slices;
    }
}

void part_of_slice(const struct slice *b, int index, int of, uint64_t *low, uint64_t *high) {
    uint64_t part = ((b->count + (uint64_t)of - 1) / (uint64_t)of + 15) & ~15ull;
    *low = b->low + least((uint64_t)index * part, b->count);
    *high = least(*low + part, b->low + b->count);
}

/* Copy elements of a run from the tensors, or to them: then those that are this rank's. */
static void pack_some(struct core *c, const struct plan *p, char **tensors, char *packed, const struct run *run, uint64_t low,
                      uint64_t count, bool in) {
    struct set *s = set_at(c, p->set);
    uint64_t at = 0, item = item_bytes[run->dtype];
    for (uint32_t k = 0; k < p->segment_count && at < low + count; k++) {
        const struct shape *shape = &p->segments[k];
        if ((int)shape->dtype != run->dtype) continue;
        uint64_t first = at, end = at + shape->count;
        at = end;
        if (!in && p->kind == REDUCESCATTER) {
            int me = position_of(c, s)[c->rank];
            for (int m = 0; m < me; m++) first += part_of(shape, m, (int)s->count);
            end = first + part_of(shape, me, (int)s->count);
        }
        uint64_t from = first > low ? first : low, to = least(end, low + count);
        if (from >= to) continue;
        char *tensor = tensors[k] + (from - first) * item, *there = packed + run->at + from * item;
        copy(in ? there : tensor, in ? tensor : there, (to - from) * item);
    }
}

/* ---- on the rank that submits ---- */

static bool speaks_alone(struct core *c, struct set *s) { return s->here_count == 1 && c->rank == (int)c->header->leader; }

/* What idle plans keep for the next time; whether there was any. */
static bool drop_spares(struct core *c) {
    bool any = false;
    pthread_mutex_lock(&c->mine);
    for (uint32_t i = 0; i < c->plan_count; i++) {
        char *spare = c->plans[i] ? atomic_exchange(&c->plans[i]->spare, NULL) : NULL;
        if (spare) arena_give(c, spare);
        any |= spare != NULL;
    }
    pthread_mutex_unlock(&c->mine);
    return any;
}

/* Where the leader of the host can reach it: in place, or as a copy, which of what is large is made when it is summed. False
 * if there is no room for that. */
bool stage(struct core *c, struct ticket *t) {
    struct plan *p = t->plan;
    t->taken = 0;
    t->copies = false;
    struct set *s = set_at(c, p->set);
    bool gathers = p->kind == ALLGATHER || p->kind == ALLTOALL;
    uint64_t bytes = 0;
    if (p->kind == BARRIER || (!gathers && t->rides)) return true;
    if (p->kind == BROADCAST && p->root != c->rank) return true;
    bool reduces = p->reduces;
    bool shared = arena_offset(c, p->segment_count ? t->in[0] : NULL, p->bytes) >= 0 && t->in[0] == t->out[0];
    if (p->kind == ALLREDUCE && reduces && p->segment_count == 1 && (speaks_alone(c, s) || shared)) return true;
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
    if (!t->staged) t->staged = arena_alloc(c, bytes);
    if (!t->staged && drop_spares(c)) t->staged = arena_alloc(c, bytes);
    if (!t->staged) return false;
    t->staged_bytes = bytes;
    if (reduces) {
        t->copies = bytes > SLICE_BYTES;
        struct run runs[DTYPES];
        int n = t->copies ? 0 : runs_of(p->segments, p->segment_count, runs);
        for (int i = 0; i < n; i++) pack_some(c, p, t->in, t->staged, &runs[i], 0, runs[i].count, true);
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

/* The ranks of this host that take part, ascending. */
int here(struct core *c, struct entry *e, uint64_t round, int *ranks) {
    struct set *s = set_at(c, e->set);
    int n = 0;
    for (uint32_t m = 0; m < s->here_count; m++)
        if (has(contributors_of(c, e, round), here_of(c, s)[m])) ranks[n++] = here_of(c, s)[m];
    return n;
}

double divisor_of(struct core *c, struct entry *e, uint64_t round) {
    int ranks[c->size];
    return e->average_active[round & 1] ? contributors(c, e, round, ranks) : set_at(c, e->set)->count;
}

char *brought_by(struct core *c, struct entry *e, int r) {
    int64_t at = arrival_at(c, e, r)->arena_at;
    return at < 0 ? NULL : arena_at(c, r) + at;
}

/* How many hosts take part. */
static int hosts_of(struct core *c, struct entry *e, uint64_t round) {
    int ranks[c->size], n = contributors(c, e, round, ranks), hosts = 0;
    bool counted[MAX_HOSTS] = {0};
    for (int i = 0; i < n; i++) {
        hosts += !counted[host_of_rank(c, ranks[i])];
        counted[host_of_rank(c, ranks[i])] = true;
    }
    return hosts;
}

/* Whether ranks wait for each other in sum_here. */
bool copies_here(struct core *c, struct entry *e, uint64_t round) {
    int ranks[MAX_HERE], n = here(c, e, round, ranks);
    for (int i = 0; i < n; i++)
        if (atomic_load(&arrival_at(c, e, ranks[i])->copied) != ALL_COPIED) return true;
    return false;
}

/* Add up what this host's ranks brought, where the first of them has it: slice by slice, a part of each slice each. */
int sum_here(struct core *c, const struct scheduled *item) {
    struct entry *e = entry_at(c, item->entry);
    struct set *s = set_at(c, e->set);
    struct task *t = task_of(c, e, item->round);
    char sum[STEP_BYTES] __attribute__((aligned(64)));
    int ranks[MAX_HERE], n = here(c, e, item->round, ranks), me = 0;
    struct layout layout;
    double divisor = divisor_of(c, e, item->round);
    lay_out(&layout, t->segments, t->segment_count, hosts_of(c, e, item->round));
    while (me < n && ranks[me] != c->rank) me++;
    struct ticket *ticket = atomic_load(&c->in_flight[item->entry]);
    if (!sound(c, me < n && ticket && ticket->round == item->round, "a sum is to be made that this rank has no part in")) return ABORTED;
    trace(c, TRACE_BEGIN, ticket->plan, c->rank, 0, 1);
    word *summed = &arrival_at(c, e, c->rank)->summed, *copied = &arrival_at(c, e, c->rank)->copied;
    for (uint32_t k = 0, in = 0; k < layout.slices; k++) {
        struct slice b = slice_at(&layout, k);
        const struct run *run = &layout.runs[b.run];
        struct stages how;
        uint64_t size = item_bytes[run->dtype], low, high;
        for (; ticket->copies && in < layout.slices && in <= k + 1; in++) { /* one ahead, for others to go on with */
            struct slice next = slice_at(&layout, in);
            pack_some(c, ticket->plan, ticket->in, ticket->staged, &layout.runs[next.run], next.low, next.count, true);
            count_up(copied, &s->sleepers, in + 1);
        }
        for (int r = 0; r < n; r++) {
            int status = wait_count(c, &arrival_at(c, e, ranks[r])->copied, &s->sleepers, k + 1);
            if (status) return status;
        }
        part_of_slice(&b, me, n, &low, &high);
        stages_of(t, run->dtype, divisor, &how);
        for (uint64_t at = low, count; at < high && (n > 1 || how.prescale != 1); at += count) {
            const void *from[MAX_HERE];
            count = least(high - at, STEP_BYTES / size);
            for (int r = 0; r < n; r++) from[r] = brought_by(c, e, ranks[r]) + run->at + at * size;
            if (reduce(sum, from, n, count, run->dtype, how.inner, how.prescale, 1, 1))
                blame_run(c, e, item->round, at, ranks, from, n, sum, count, run->dtype);
            copy(brought_by(c, e, ranks[0]) + run->at + at * size, sum, count * size);
        }
        atomic_store(summed, k + 1);
        bool all = true;
        for (int r = 0; r < n; r++) all &= atomic_load(&arrival_at(c, e, ranks[r])->summed) > k;
        if (all && atomic_exchange(&c->header->hungry, 0)) knock(c);
    }
    atomic_fetch_add(&c->header->progress, 1);
    if (!layout.slices) knock(c);
    return OK;
}

/* How much of a rank's input this host needs, if it is not reduced on the way. */
uint64_t needed(struct core *c, struct entry *e, uint64_t round, int r, uint32_t host) {
    struct set *s = set_at(c, e->set);
    struct task *t = task_of(c, e, round);
    const int64_t *meta = t->kind == ALLTOALL || t->kind == ALLGATHER ? meta_of(c, e, round, r) : NULL;
    uint64_t bytes = 0;
    if (t->kind == BROADCAST && r != t->root) return 0;
    if (t->kind == ALLTOALL) {
        for (uint32_t m = 0; m < s->count; m++)
            if (host_of_rank(c, members_of(c, s)[m]) == host) bytes += (uint64_t)meta[m];
        return bytes;
    }
    for (uint32_t k = 0; k < t->segment_count; k++)
        bytes += up64(t->kind == ALLGATHER ? (uint64_t)meta[k] : bytes_of(&t->segments[k]));
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
    double *all = malloc((size_t)n * s->count * sizeof *all + 1), *vectors[n];
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

/* All inputs are here, those of other hosts at `collected`: make this rank's result of them. */
static int take_collected(struct core *c, struct ticket *t, struct entry *e, char *collected) {
    struct plan *p = t->plan;
    struct set *s = set_at(c, e->set);
    const char *at[s->count];
    int ranks[s->count], n = contributors(c, e, t->round, ranks), me = position_of(c, s)[c->rank];
    for (int m = 0; m < n; m++) {
        if (is_here(c, ranks[m])) {
            at[m] = brought_by(c, e, ranks[m]);
            continue;
        }
        at[m] = collected;
        if (collected) collected += up64(needed(c, e, t->round, ranks[m], c->header->host));
    }
    if (p->kind == ALLGATHER || p->kind == ALLTOALL) {
        t->memory = calloc(p->segment_count, sizeof *t->memory);
        t->received = calloc((size_t)p->segment_count * (size_t)n, sizeof *t->received);
        if (!t->memory || !t->received) return FULL;
    }
    double divisor = p->op == AVERAGE ? divisor_of(c, e, t->round) : 1; /* a reducescatter: of integers, or Adasum */
    for (uint32_t k = 0; k < p->segment_count; k++) {
        struct shape *shape = &p->segments[k];
        uint64_t item = item_bytes[shape->dtype], total = 0;
        if (p->kind == ALLGATHER || p->kind == ALLTOALL) {
            int64_t *received = t->received + (size_t)k * (size_t)n;
            for (int m = 0; m < n; m++) total += (uint64_t)(received[m] = meta_of(c, e, t->round, ranks[m])[p->kind == ALLGATHER ? k : (uint32_t)me]);
            char *out = t->memory[k] = aligned_alloc(64, ((size_t)total + 64) & ~(size_t)63);
            if (!out) return FULL;
            for (int m = 0; m < n; out += received[m++]) {
                const char *from = at[m];
                for (int before = 0; p->kind == ALLTOALL && before < me; before++) /* of those on this host, or all */
                    if (is_here(c, ranks[m]) || is_here(c, members_of(c, s)[before])) from += meta_of(c, e, t->round, ranks[m])[before];
                if (received[m]) copy(out, from, (uint64_t)received[m]);
                if (p->kind == ALLGATHER) at[m] += up64((uint64_t)received[m]);
            }
            continue;
        }
        const void *in[n];
        uint64_t low = 0, count = shape->count;
        int status = OK;
        if (p->kind == REDUCESCATTER) {
            for (int m = 0; m < me; m++) low += part_of(shape, m, (int)s->count) * item;
            count = part_of(shape, me, (int)s->count);
        }
        for (int m = 0; m < n; m++) in[m] = at[m] ? at[m] + low : NULL;
        if (p->kind == BROADCAST) {
            if (count && (c->rank != p->root || t->in[k] != t->out[k])) copy(t->out[k], at[position_of(c, s)[p->root]], count * item);
        } else if (p->op == ADASUM) {
            status = adasum_from(p, k, t->out[k], in, n);
        } else if (count && reduce(t->out[k], in, n, count, (int)shape->dtype, (int)p->op, p->prescale, p->postscale, divisor) &&
                   p->kind == ALLREDUCE && p->op <= SUM) {
            blame(c, e, t->round, k, 0, ranks, in, n, t->out[k], count, (int)shape->dtype);
        }
        if (status) return status;
        for (int m = 0; m < n; m++)
            if (at[m]) at[m] += up64(shape->count * item);
    }
    return OK;
}

/* What other hosts sent is in the leader's arena, or, if there was no room, in a file of its own. */
static int take_all(struct core *c, struct ticket *t, struct entry *e) {
    int64_t at = e->result_at[t->round & 1];
    if (file_of(at) < 0) return take_collected(c, t, e, at == NOWHERE ? NULL : arena_at(c, (int)c->header->leader) + at);
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/fd/%d", atomic_load(&rank_at(c, (int)c->header->leader)->pid), file_of(at));
    FILE *file = fopen(path, "re");
    struct stat is;
    void *memory = MAP_FAILED;
    if (file && !fstat(fileno(file), &is)) memory = mmap(NULL, (size_t)is.st_size, PROT_READ, MAP_SHARED, fileno(file), 0);
    if (file) fclose(file);
    if (memory == MAP_FAILED) return over(c) ? over(c) : FULL;
    int status = take_collected(c, t, e, memory);
    munmap(memory, (size_t)is.st_size);
    return status;
}

/* Copy out so many slices of a sum. */
static void take_slices(struct core *c, struct ticket *t, struct entry *e, uint32_t upto) {
    int ranks[MAX_HERE];
    here(c, e, t->round, ranks);
    char *sum = brought_by(c, e, ranks[0]);
    if (!sum || (ranks[0] == c->rank && !t->staged)) return; /* it is where it belongs */
    struct layout layout;
    lay_out(&layout, t->plan->segments, t->plan->segment_count, hosts_of(c, e, t->round));
    for (; t->taken < upto && t->taken < layout.slices; t->taken++) {
        struct slice b = slice_at(&layout, t->taken);
        pack_some(c, t->plan, t->out, sum, &layout.runs[b.run], b.low, b.count, false);
    }
}

static int take(struct core *c, struct ticket *t, struct entry *e) {
    if (!task_of(c, e, t->round)->reduces) return take_all(c, t, e);
    take_slices(c, t, e, UINT32_MAX);
    t->taken = UINT32_MAX;
    return OK;
}

/* What has come so far, while the rest is on its way; for a thread that waits for it and holds the driver's mutex, so that no
 * other takes it. Until it is taken its place in the table stays as it is, unless the round failed or rode along: what is
 * read of that is believed if the place is still that round's. */
bool take_early(struct core *c, struct ticket *t) {
    struct entry *e = entry_at(c, t->entry);
    uint32_t p = t->round & 1;
    if (!t->abroad || !t->plan->reduces || atomic_load(&e->of[p]) != t->round + 1) return false;
    uint32_t there = atomic_load(&e->arrived_slices[p]);
    bool moves = !atomic_load(&e->inlined[p]) && atomic_load(&e->taking[p]) > 1;
    if (!moves || t->taken >= there || atomic_load(&e->of[p]) != t->round + 1) return false;
    take_slices(c, t, e, there);
    if (t->taken < there) t->taken = there; /* it is where it belongs */
    return true;
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
