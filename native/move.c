/* Carrying operations out: the bytes move here.
 *
 * Three ways, from fast to faster:
 * - through the slots, a chunk at a time, so that what is written by one core is read by another from the cache. While
 *   one chunk is being summed (each member its share) the next is copied in: one barrier a chunk.
 * - in place, where all buffers lie in arenas: each member sums its share where it lies and writes it to all. Nobody
 *   waits for anybody, so it can be done in passing (hora_help).
 * - with the arrival (harvest): small payloads are already there when the round closes.
 *
 * A member reads what it needs of the table before its first barrier; after its last one the others may have gone on.
 * Slots are used in turn, and two operations of one set are separated by a barrier of the second, so none is filled while
 * a peer still reads it; when a rank turns to another set it first waits until each of the last one's members is through.
 */
#include "core.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* The members an operation runs among, and who brought data. */
struct members {
    struct core *c;
    struct set *set;
    const struct scheduled *first; /* of the batch */
    uint32_t batch;                /* operations in it */
    int me, count;        /* my position, members */
    int from[MAX_HERE];  /* ranks that brought data */
    int from_count;
    uint64_t base[MAX_HERE]; /* of each member's slots, known after the first barrier */
};

static char *slot_of(struct members *o, int member, uint64_t k) {
    return slot_at(o->c, members_of(o->c, o->set)[member], o->base[member] + k);
}

static char *my_slot(struct members *o, uint64_t k) { return slot_at(o->c, o->c->rank, o->c->slot_base + k); }

/* The first barrier of a movement: afterwards everybody knows where everybody's slots begin, and that all of them do the
 * same. Two places by parity: a peer may still read one while this rank is at the next barrier, but not at the one after
 * that. */
static int meet(struct members *o) {
    uint32_t parity = atomic_load(&o->set->barrier.phase) & 1;
    struct meeting mine = {o->c->slot_base, o->first->round, o->first->entry, o->batch};
    self(o->c)->meeting[parity] = mine;
    int status = barrier_wait(o->c, o->set);
    for (int m = 0; m < o->count && !status; m++) {
        struct meeting *peer = &rank_at(o->c, members_of(o->c, o->set)[m])->meeting[parity];
        if (!sound(o->c, peer->entry == mine.entry && peer->round == mine.round && peer->count == mine.count,
                   "ranks met for different operations"))
            return ABORTED;
        o->base[m] = peer->slot_base;
    }
    return status;
}

static uint64_t minimum(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ---- allreduce through the slots ---- */

/* A place in a list of pieces that are taken for one stream of bytes. */
struct cursor { struct piece *piece; uint64_t at; };

/* How much can be taken here at once, at most `bytes`; moves on when a piece is used up. */
static uint64_t run_of(struct cursor *u, uint64_t bytes) {
    while (u->at == u->piece->bytes) u->piece++, u->at = 0;
    return minimum(bytes, u->piece->bytes - u->at);
}

static void skip(struct cursor *u, uint64_t bytes) {
    for (uint64_t n; bytes; bytes -= n) n = run_of(u, bytes), u->at += n;
}

static void gather(struct cursor *u, char *to, uint64_t bytes) {
    for (uint64_t n; bytes; to += n, bytes -= n, u->at += n) {
        n = run_of(u, bytes);
        copy(to, u->piece->in + u->at, n);
    }
}

static void scatter(struct cursor *u, const char *from, uint64_t bytes) {
    for (uint64_t n; bytes; from += n, bytes -= n, u->at += n) {
        n = run_of(u, bytes);
        copy(u->piece->out + u->at, from, n);
    }
}

static uint64_t share(uint64_t bytes, int count) { return ((bytes + (uint64_t)count - 1) / (uint64_t)count + 63) & ~63ull; }

struct reduction { int dtype, op; double prescale, postscale, divisor; };

static bool reduce_bytes(const struct reduction *how, void *out, const void *const *in, int n, uint64_t bytes) {
    return reduce(out, in, n, bytes / item_bytes[how->dtype], how->dtype, how->op, how->prescale, how->postscale,
                  how->divisor);
}

/* The same for what `at` bytes into a segment was brought by `o`'s ranks; notes who brought inf or nan. The results must not
 * go where an input is. */
static void reduce_block(struct members *o, const struct scheduled *of, uint32_t segment, uint64_t at,
                         const struct reduction *how, void *out, const void *const *in, uint64_t bytes) {
    if (!reduce_bytes(how, out, in, o->from_count, bytes) || how->op > SUM) return;
    uint64_t item = item_bytes[how->dtype];
    blame(o->c, entry_at(o->c, of->entry), of->round, segment, at / item, o->from, in, o->from_count, out, bytes / item,
          how->dtype);
}

/* One chunk of the stream, cut into a share for each member. */
struct chunk { uint64_t k, bytes, part, low, high; }; /* low, high: my share */

static struct chunk chunk_of(struct members *o, uint64_t total, uint64_t k) {
    struct chunk u = {.k = k, .bytes = minimum(total - k * CHUNK_BYTES, CHUNK_BYTES)};
    u.part = share(u.bytes, o->count);
    u.low = minimum((uint64_t)o->me * u.part, u.bytes);
    u.high = minimum(u.low + u.part, u.bytes);
    return u;
}

/* Show the others their shares of my data; my own I read where it is. */
static void copy_in(struct members *o, struct cursor *u, struct chunk k) {
    char *slot = my_slot(o, k.k);
    gather(u, slot, k.low);
    skip(u, k.high - k.low);
    gather(u, slot + k.high, k.bytes - k.high);
}

/* Sum my share, into my slot for the others to fetch, and into my tensors. A block at a time, to find it in the cache. */
static void sum_share(struct members *o, struct cursor *u, struct chunk k, const struct reduction *how, bool contributes) {
    const void *from[MAX_HERE];
    skip(u, k.low);
    for (uint64_t at = k.low, n; at < k.high; at += n, u->at += n) {
        n = run_of(u, minimum(k.high - at, STEP_BYTES));
        for (int i = 0; i < o->from_count; i++) {
            int member = position_of(o->c, o->set)[o->from[i]];
            from[i] = member == o->me ? u->piece->in + u->at : slot_of(o, member, k.k) + at;
        }
        char *slot = my_slot(o, k.k) + at;
        reduce_block(o, u->piece->of, u->piece->segment, u->at, how, slot, from, n);
        if (contributes) copy(u->piece->out + u->at, slot, n);
    }
    skip(u, k.bytes - k.high);
}

static void copy_out(struct members *o, struct cursor *u, struct chunk k) {
    for (int m = 0; m < o->count; m++) {
        uint64_t low = minimum((uint64_t)m * k.part, k.bytes), bytes = minimum(k.part, k.bytes - low);
        if (m == o->me) skip(u, bytes);
        else scatter(u, slot_of(o, m, k.k) + low, bytes);
    }
}

/* A set of one: there is nothing to sum, but there may be factors. */
static void sum_own(struct members *o, const struct piece *piece, const struct reduction *how) {
    char result[STEP_BYTES] __attribute__((aligned(64)));
    for (uint64_t at = 0, n; at < piece->bytes; at += n) {
        const void *from = piece->in + at;
        n = minimum(piece->bytes - at, STEP_BYTES);
        reduce_block(o, piece->of, piece->segment, at, how, result, &from, n);
        copy(piece->out + at, result, n);
    }
}

static int allreduce_pieces(struct members *o, struct piece *pieces, uint64_t total, const struct reduction *how,
                            bool contributes) {
    struct core *c = o->c;
    if (o->count == 1) {
        for (uint64_t done = 0; done < total; done += pieces++->bytes) sum_own(o, pieces, how);
        return 0;
    }
    uint64_t chunks = (total + CHUNK_BYTES - 1) / CHUNK_BYTES;
    struct cursor in = {pieces, 0}, own = {pieces, 0}, out = {pieces, 0};
    if (contributes) copy_in(o, &in, chunk_of(o, total, 0));
    int status = meet(o);
    for (uint64_t k = 0; k < chunks && !status; k++) {
        sum_share(o, &own, chunk_of(o, total, k), how, contributes);
        if (contributes && k + 1 < chunks) copy_in(o, &in, chunk_of(o, total, k + 1));
        status = barrier_wait(c, o->set);
        if (contributes && !status) copy_out(o, &out, chunk_of(o, total, k));
    }
    c->slot_base += chunks;
    return status;
}

/* ---- allreduce where the buffers lie ---- */

bool reduced_in_place(struct core *c, struct entry *e, uint64_t round) {
    if (task_of(c, e, round)->kind != ALLREDUCE) return false;
    struct set *s = set_at(c, e->set);
    for (uint32_t m = 0; m < s->count; m++)
        if (has(contributors_of(c, e, round), members_of(c, s)[m]) && arrival_at(c, e, members_of(c, s)[m])->arena_at < 0) return false;
    return true;
}

/* No barrier: all data is there, or it would not have been agreed on, and each rank writes its share alone. Whoever sums
 * the last share ends the operation for all; until then a rank goes on with what it was doing: PENDING. */
static int allreduce_in_place(struct members *o, const struct scheduled *item, struct reduction how) {
    struct core *c = o->c;
    struct entry *e = entry_at(c, item->entry);
    char sum[STEP_BYTES] __attribute__((aligned(64)));
    char *buffers[MAX_HERE];
    struct task *t = task_of(c, e, item->round);
    uint64_t total = t->bytes, part = share(total, o->count);
    uint64_t low = minimum((uint64_t)o->me * part, total), high = minimum(low + part, total);
    how.dtype = (int)t->segments[0].dtype;
    for (int i = 0; i < o->from_count; i++) {
        uint64_t at = (uint64_t)arrival_at(c, e, o->from[i])->arena_at;
        if (!sound(c, at + total <= c->header->arena_bytes, "a tensor lies outside its arena")) return ABORTED;
        buffers[i] = arena_at(c, o->from[i]) + at;
    }
    for (uint64_t at = low; at < high; at += STEP_BYTES) {
        const void *from[MAX_HERE];
        uint64_t bytes = minimum(high - at, STEP_BYTES);
        for (int i = 0; i < o->from_count; i++) from[i] = buffers[i] + at;
        reduce_block(o, item, 0, at, &how, sum, from, bytes);
        for (int i = 0; i < o->from_count; i++) copy(buffers[i] + at, sum, bytes);
    }
    if (atomic_fetch_add(&e->shares[item->round & 1], 1) + 1 == o->set->count) ring(c);
    return PENDING;
}

/* ---- Adasum: pairs of ranks combine, then pairs of pairs; every member does its share of every pair ---- */

static int adasum(struct members *o, const char *in, char *out, uint64_t count, const struct reduction *how) {
    struct core *c = o->c;
    double *scratch = arena_alloc(c, count * sizeof(double));
    struct rank *me = rank_at(c, c->rank);
    me->scratch_at = scratch ? arena_offset(c, scratch, count * sizeof(double)) : -1;
    if (scratch) {
        to_double(scratch, in, count, how->dtype);
        for (uint64_t i = 0; how->prescale != 1.0 && i < count; i++) scratch[i] *= how->prescale;
    }
    int status = barrier_wait(c, o->set);
    double *vector[MAX_HERE];
    for (int m = 0; m < o->count && !status; m++) {
        int r = members_of(o->c, o->set)[m];
        if (rank_at(c, r)->scratch_at < 0) status = FULL; /* the same on all: everybody looks at everybody */
        else vector[m] = (double *)(arena_at(c, r) + rank_at(c, r)->scratch_at);
    }
    uint64_t part = (count + (uint64_t)o->count - 1) / (uint64_t)o->count;
    uint64_t low = minimum((uint64_t)o->me * part, count), high = minimum(low + part, count);
    for (int distance = 1, level = 0; distance < o->count && !status; distance *= 2, level++) {
        double *dots = me->dots[level & 1];
        for (int m = 0; m < o->count; m += 2 * distance) {
            const double *a = vector[m], *b = vector[m + distance];
            double ab = 0, aa = 0, bb = 0;
            for (uint64_t i = low; i < high; i++) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
            dots[3 * m] = ab, dots[3 * m + 1] = aa, dots[3 * m + 2] = bb;
        }
        status = barrier_wait(c, o->set);
        for (int m = 0; m < o->count && !status; m += 2 * distance) {
            double ab = 0, aa = 0, bb = 0;
            for (int k = 0; k < o->count; k++) {
                const double *d = rank_at(c, members_of(o->c, o->set)[k])->dots[level & 1] + 3 * m;
                ab += d[0], aa += d[1], bb += d[2];
            }
            double wa = aa > 0 ? 1 - ab / (2 * aa) : 1, wb = bb > 0 ? 1 - ab / (2 * bb) : 1;
            double *a = vector[m];
            const double *b = vector[m + distance];
            for (uint64_t i = low; i < high; i++) a[i] = wa * a[i] + wb * b[i];
        }
    }
    if (!status) status = barrier_wait(c, o->set);
    if (!status) {
        const double *result = vector[0];
        double block[1024];
        for (uint64_t at = 0; at < count; at += 1024) {
            uint64_t n = minimum(count - at, 1024);
            for (uint64_t i = 0; i < n; i++) block[i] = result[at + i] * how->postscale;
            from_double(out + at * item_bytes[how->dtype], block, n, how->dtype);
        }
    }
    int last = status && status != FULL ? status : barrier_wait(c, o->set); /* then the scratch goes, or was looked for */
    if (scratch) arena_free(c, scratch);
    return status ? status : last;
}

/* ---- allgather, broadcast, alltoall, reducescatter: publish a chunk, meet, take what is mine ---- */

struct exchange {
    const char *in;
    char *out;
    int64_t sent[MAX_HERE], received[MAX_HERE]; /* bytes to and from each member */
    const struct reduction *how;                  /* reducescatter */
    int root;                                     /* broadcast: a position */
    uint64_t rounds, step;                        /* step: bytes for one member in one round */
};

static void publish(struct members *o, const struct exchange *x, enum kind kind, uint64_t k) {
    char *slot = my_slot(o, k);
    if (kind == BROADCAST || kind == ALLGATHER) {
        uint64_t all = (uint64_t)x->sent[o->me], at = minimum(k * x->step, all);
        if (kind == ALLGATHER || o->me == x->root) copy(slot, x->in + at, minimum(x->step, all - at));
        return;
    }
    const char *in = x->in;
    for (int m = 0; m < o->count; m++) {
        uint64_t all = (uint64_t)x->sent[m], at = minimum(k * x->step, all);
        copy(slot + (uint64_t)m * x->step, in + at, minimum(x->step, all - at));
        in += all;
    }
}

static void consume(struct members *o, const struct exchange *x, enum kind kind, uint64_t k) {
    if (kind == REDUCESCATTER) {
        uint64_t all = (uint64_t)x->sent[o->me], at = minimum(k * x->step, all), bytes = minimum(x->step, all - at);
        const void *from[MAX_HERE];
        for (int m = 0; m < o->count; m++) from[m] = slot_of(o, m, k) + (uint64_t)o->me * x->step;
        if (bytes) reduce_bytes(x->how, x->out + at, from, o->count, bytes);
        return;
    }
    char *out = x->out;
    for (int m = 0; m < o->count; m++) {
        uint64_t all = (uint64_t)x->received[m], at = minimum(k * x->step, all);
        uint64_t offset = kind == ALLTOALL ? (uint64_t)o->me * x->step : 0;
        copy(out + at, slot_of(o, m, k) + offset, minimum(x->step, all - at));
        out += all;
    }
}

static int run_exchange(struct members *o, const struct exchange *x, enum kind kind) {
    if (!x->rounds) return 0;
    publish(o, x, kind, 0);
    int status = meet(o);
    for (uint64_t k = 0; k < x->rounds && !status; k++) {
        if (k + 1 < x->rounds) publish(o, x, kind, k + 1);
        consume(o, x, kind, k);
        if (k + 1 < x->rounds) status = barrier_wait(o->c, o->set);
    }
    o->c->slot_base += x->rounds;
    return status;
}

/* Elements of member m's part of a reducescatter: whole rows, the first members one more. */
uint64_t part_of(const struct shape *s, int m, int count) {
    uint64_t rows = s->row ? s->count / s->row : 0;
    return (rows / (uint64_t)count + ((uint64_t)m < rows % (uint64_t)count)) * s->row;
}

static uint64_t largest(const int64_t *v, int n) {
    int64_t most = 0;
    for (int i = 0; i < n; i++) most = v[i] > most ? v[i] : most;
    return (uint64_t)most;
}

static bool allocate(struct ticket *t, uint32_t segments, uint32_t members) {
    t->memory = calloc(segments, sizeof *t->memory);
    t->received = calloc((size_t)segments * members, sizeof *t->received);
    return t->memory && t->received;
}

/* Memory for what t->received says of this segment. */
static char *receive_into(struct ticket *t, uint32_t segment, int members) {
    uint64_t total = 0;
    for (int m = 0; m < members; m++) total += (uint64_t)t->received[segment * (uint32_t)members + (uint32_t)m];
    /* Aligned, so that TensorFlow and JAX adopt it without a copy; the size has to be a multiple of that. */
    return t->memory[segment] = aligned_alloc(64, ((size_t)total + 64) & ~(size_t)63);
}

static int execute_exchange(struct members *o, struct entry *e, struct ticket *t, struct reduction how) {
    struct plan *p = t->plan;
    enum kind kind = (enum kind)p->kind;
    int64_t *received = NULL;
    uint64_t most_sent = 0; /* alltoall: by anybody to anybody */
    if (kind == ALLGATHER || kind == ALLTOALL) { /* all that is said with the arrivals, before the others may go on */
        const char *no_memory = "there is no memory for what others send"; /* and no way to tell them before they meet */
        if (!sound(o->c, allocate(t, p->segment_count, (uint32_t)o->count), no_memory)) return ABORTED;
        received = t->received;
        for (int m = 0; m < o->count; m++) {
            struct arrival *a = arrival_at(o->c, e, members_of(o->c, o->set)[m]);
            const int64_t *meta = heap_at(o->c, a->meta.at);
            uint32_t said = kind == ALLGATHER ? p->segment_count : (uint32_t)o->count;
            if (!sound(o->c, a->meta_count == said, "a rank brought another number of sizes than was agreed")) return ABORTED;
            for (uint32_t k = 0; k < p->segment_count; k++)
                received[k * (uint32_t)o->count + (uint32_t)m] = meta[kind == ALLGATHER ? k : (uint32_t)o->me];
            uint64_t bytes = largest(meta, (int)said);
            most_sent = bytes > most_sent ? bytes : most_sent;
        }
        for (uint32_t k = 0; k < p->segment_count; k++)
            if (!sound(o->c, receive_into(t, k, o->count), no_memory)) return ABORTED;
    }
    int status = 0;
    for (uint32_t k = 0; k < p->segment_count && !status; k++) {
        how.dtype = (int)p->segments[k].dtype;
        struct exchange x = {.in = t->in[k], .how = &how, .step = CHUNK_BYTES, .out = received ? t->memory[k] : t->out[k]};
        uint64_t item = item_bytes[p->segments[k].dtype], most = most_sent;
        for (int m = 0; m < o->count; m++) {
            if (received) x.received[m] = received[k * (uint32_t)o->count + (uint32_t)m];
            if (kind == ALLGATHER) x.sent[m] = x.received[m];
            else if (kind == ALLTOALL) x.sent[m] = t->meta[m];
            else if (kind == BROADCAST) x.sent[m] = (int64_t)(p->segments[k].count * item);
            else x.sent[m] = (int64_t)(part_of(&p->segments[k], m, o->count) * item);
        }
        if (kind == BROADCAST) {
            x.root = position_of(o->c, o->set)[p->root];
            x.received[x.root] = o->me == x.root && t->in[k] == t->out[k] ? 0 : x.sent[x.root];
        }
        if (kind == ALLTOALL || kind == REDUCESCATTER) x.step = (CHUNK_BYTES / (uint64_t)o->count) & ~63ull;
        if (kind != ALLTOALL) most = largest(x.sent, o->count);
        x.rounds = (most + x.step - 1) / x.step;
        status = run_exchange(o, &x, kind);
    }
    return status;
}

/* ---- the batch ---- */

static struct piece *pieces(struct core *c, uint32_t wanted) {
    if (wanted > c->piece_room) {
        struct piece *more = realloc(c->pieces, wanted * sizeof *more);
        if (!more) return NULL;
        c->pieces = more;
        c->piece_room = wanted;
    }
    return c->pieces;
}

/* Every segment of one element type of every operation of the batch, as one stream; then the next type. What the table
 * says is read before anything moves: after the last barrier others may be through. */
static int allreduce_batch(struct members *o, const struct scheduled *batch, struct ticket **tickets, uint32_t count,
                           struct reduction how) {
    struct core *c = o->c;
    bool contributes = tickets[0] != NULL;
    uint32_t wanted = 0, first[DTYPES], n = 0;
    uint64_t total[DTYPES] = {0};
    for (uint32_t i = 0; i < count; i++) wanted += task_of(c, entry_at(c, batch[i].entry), batch[i].round)->segment_count;
    struct piece *all = pieces(c, wanted + 1);
    if (!sound(c, all, "there is no memory for a batch of operations")) return ABORTED;
    for (int dtype = 0; dtype < DTYPES; dtype++) {
        first[dtype] = n;
        for (uint32_t i = 0; i < count; i++) {
            struct task *t = task_of(c, entry_at(c, batch[i].entry), batch[i].round);
            for (uint32_t k = 0; k < t->segment_count; k++) {
                uint64_t bytes = t->segments[k].count * item_bytes[t->segments[k].dtype];
                if ((int)t->segments[k].dtype != dtype || !bytes) continue;
                all[n++] = contributes ? (struct piece){tickets[i]->in[k], tickets[i]->out[k], bytes, &batch[i], k}
                                       : (struct piece){NULL, NULL, bytes, &batch[i], k};
                total[dtype] += bytes;
            }
        }
    }
    int status = 0;
    for (how.dtype = 0; how.dtype < DTYPES && !status; how.dtype++)
        if (total[how.dtype]) status = allreduce_pieces(o, all + first[how.dtype], total[how.dtype], &how, contributes);
    return status;
}

static int allreduce_one(struct members *o, const struct scheduled *item, struct ticket *t, struct reduction how) {
    if (how.op != ADASUM) return allreduce_batch(o, item, &t, 1, how);
    int status = 0;
    for (uint32_t k = 0; k < t->plan->segment_count && !status; k++) {
        how.dtype = (int)t->plan->segments[k].dtype;
        status = adasum(o, t->in[k], t->out[k], t->plan->segments[k].count, &how);
    }
    return status;
}

/* My slots may still be read by members of the last set: wait for each of them. (A count over all of them would not do:
 * those who are ahead would hide one who is behind.) */
static int turn_to(struct core *c, uint32_t set) {
    int status = 0;
    if (c->last_set && c->last_set != set + 1) {
        struct set *last = set_at(c, c->last_set - 1);
        for (uint32_t m = 0; m < last->count && !status; m++)
            status = wait_count(c, &finished_of(last)[m], &last->sleepers, c->batches[c->last_set - 1]);
    }
    c->last_set = set + 1;
    return status;
}

/* At most BATCH operations. */
int execute(struct core *c, const struct scheduled *batch, uint32_t count) {
    struct entry *e = entry_at(c, batch[0].entry);
    struct ticket *tickets[BATCH];
    if (set_at(c, e->set)->abroad) return batch[0].taking ? take_here(c, batch) : sum_here(c, batch);
    struct members o = {.c = c, .set = set_at(c, e->set), .first = batch, .batch = count};
    uint32_t set = e->set, p = batch[0].round & 1;
    o.me = position_of(c, o.set)[c->rank];
    o.count = (int)o.set->count;
    o.from_count = contributors(c, e, batch[0].round, o.from);
    bool contributes = has(contributors_of(c, e, batch[0].round), c->rank);
    struct task *task = task_of(c, e, batch[0].round);
    struct reduction how = {.op = (int)task->op, .prescale = task->prescale, .postscale = task->postscale, .divisor = 1};
    bool sums = task->kind == ALLREDUCE;
    if (how.op == AVERAGE) how.divisor = e->average_active[p] ? o.from_count : o.count;
    for (uint32_t i = 0; i < BATCH && i < count; i++) {
        tickets[i] = contributes ? atomic_load(&c->in_flight[batch[i].entry]) : NULL;
        if (!contributes) continue;
        if (!sound(c, tickets[i] && tickets[i]->entry == batch[i].entry && tickets[i]->round == batch[i].round,
                   "an operation is carried out that this rank did not submit"))
            return ABORTED;
        tickets[i]->failure = entry_at(c, batch[i].entry)->note[batch[i].round & 1];
        trace(c, TRACE_BEGIN, tickets[i]->plan, c->rank, 0, count);
    }
    bool in_place = count == 1 && reduced_in_place(c, e, batch[0].round);
    bool through_slots = !in_place && (o.count > 1 || !sums);
    int status = through_slots ? turn_to(c, set) : 0;
    if (status) {
    } else if (in_place) {
        status = allreduce_in_place(&o, batch, how);
    } else if (sums) {
        status = count == 1 ? allreduce_one(&o, batch, tickets[0], how) : allreduce_batch(&o, batch, tickets, count, how);
    } else {
        status = execute_exchange(&o, e, tickets[0], how);
    }
    if (through_slots) count_up(&finished_of(o.set)[o.me], &o.set->sleepers, ++c->batches[set]);
    for (uint32_t i = 0; i < count; i++) {
        if (status == PENDING && tickets[i]) { /* the others' shares are missing */
            atomic_store(&tickets[i]->share_done, 1);
            continue;
        }
        uint32_t said = tickets[i] ? verdict(c, tickets[i], (uint32_t)status) : OK; /* while the round is still there */
        if (tickets[i]) finish(c, tickets[i], (int)said);
        else if (status != ABORTED && status != CLOSED) atomic_fetch_add(&entry_at(c, batch[i].entry)->finished, 1);
    }
    atomic_fetch_add(&c->header->progress, 1);
    return status;
}

/* ---- payloads that rode with the arrivals ---- */

bool round_over(struct core *c, struct ticket *t) {
    struct entry *e = entry_at(c, t->entry);
    uint32_t p = t->round & 1;
    if (atomic_load_explicit(&e->round, memory_order_acquire) <= t->round) return false; /* 64 bits: for ever */
    if (atomic_load_explicit(&arrival_at(c, e, c->rank)->failed, memory_order_relaxed) == t->round + 1) return true;
    if (atomic_load_explicit(&e->inlined[p], memory_order_relaxed)) return true;
    if (t->abroad) /* the data of the other hosts is here; and all of this one have taken it */
        return atomic_load(&e->arrived_data[p]) && (atomic_load(&e->taking[p]) == 1 || atomic_load(&e->takers[p]) == atomic_load(&e->taking[p]));
    return atomic_load(&t->share_done) && atomic_load(&e->shares[p]) == set_at(c, e->set)->count;
}

static int take(struct core *c, struct ticket *t, struct entry *e) {
    struct set *s = set_at(c, e->set);
    struct plan *p = t->plan;
    uint32_t parity = t->round & 1;
    if (p->kind == BARRIER) return 0;
    int from[s->count], n = contributors(c, e, t->round, from), me = position_of(c, s)[c->rank];
    if (p->kind == ALLGATHER || p->kind == ALLTOALL) {
        const char *at[n];
        int64_t sizes[n];
        uint32_t streams = p->kind == ALLGATHER ? p->segment_count : (uint32_t)n;
        for (int m = 0; m < n; m++) at[m] = payload_at(c, e, t->round, from[m]) + streams * sizeof(int64_t);
        if (!allocate(t, p->segment_count, (uint32_t)n)) return FULL;
        for (uint32_t k = 0; k < streams; k++) {
            bool mine = p->kind == ALLGATHER || (int)k == me;
            for (int m = 0; m < n; m++) sizes[m] = ((int64_t *)payload_at(c, e, t->round, from[m]))[k];
            uint32_t segment = p->kind == ALLGATHER ? k : 0;
            if (mine) memcpy(t->received + (size_t)segment * (size_t)n, sizes, (size_t)n * sizeof *sizes);
            char *out = mine ? receive_into(t, segment, n) : NULL;
            if (mine && !out) return FULL;
            for (int m = 0; m < n; m++) {
                if (mine) memcpy(out, at[m], (size_t)sizes[m]), out += sizes[m];
                at[m] += (sizes[m] + 7) & ~7ll;
            }
        }
        return 0;
    }
    double divisor = p->op != AVERAGE ? 1 : e->average_active[parity] ? n : (double)s->count;
    uint64_t at = 0;
    for (uint32_t k = 0; k < p->segment_count; k++) {
        struct shape *shape = &p->segments[k];
        uint64_t item = item_bytes[shape->dtype], bytes = shape->count * item, low = 0, count = shape->count;
        if (p->kind == BROADCAST) {
            if (c->rank != p->root || t->in[k] != t->out[k]) memcpy(t->out[k], payload_at(c, e, t->round, p->root) + at, bytes);
            at += (bytes + 7) & ~7ull;
            continue;
        }
        if (p->kind == REDUCESCATTER) {
            for (int m = 0; m < me; m++) low += part_of(shape, m, (int)s->count) * item;
            count = part_of(shape, me, (int)s->count);
        }
        const void *in[n];
        for (int m = 0; m < n; m++) in[m] = payload_at(c, e, t->round, from[m]) + at + low;
        if (count && reduce(t->out[k], in, n, count, (int)shape->dtype, (int)p->op, p->prescale, p->postscale, divisor) &&
            p->kind == ALLREDUCE && p->op <= SUM)
            blame(c, e, t->round, k, 0, from, in, n, t->out[k], count, (int)shape->dtype);
        at += (bytes + 7) & ~7ull;
    }
    return 0;
}

/* Take what a round left behind, if it is over. Only one thread does it. */
void harvest(struct core *c, struct ticket *t) {
    uint32_t state = atomic_load(&t->state);
    if ((state & ~DROPPED) != WAITING) return;
    if (!atomic_compare_exchange_strong(&t->state, &state, (state & DROPPED) | BUSY)) return;
    if (!round_over(c, t)) { /* it was, but of an operation that another thread took; this ticket was used again since */
        uint32_t busy = (state & DROPPED) | BUSY;
        while (!atomic_compare_exchange_weak(&t->state, &busy, (busy & DROPPED) | WAITING)) {}
        return;
    }
    struct entry *e = entry_at(c, t->entry);
    uint32_t p = t->round & 1;
    int status = OK;
    struct arrival *mine = arrival_at(c, e, c->rank);
    bool failed = atomic_load_explicit(&mine->failed, memory_order_relaxed) == t->round + 1;
    t->failure = failed ? mine->failure : e->note[p];
    if (failed) status = FAILED;
    else if (e->inlined[p]) status = take(c, t, e);
    else if (t->abroad) {
        status = e->taking[p] == 1 ? take_abroad(c, t, e) : (int)atomic_load(&t->took); /* else it was, by its schedule */
        if (e->taking[p] == 1) atomic_fetch_add(&e->takers[p], 1);
    }
    if (status == OK) status = (int)verdict(c, t, OK);
    finish(c, t, status);
}
