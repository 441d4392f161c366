/* Random programs for the simulator: what the ranks do, a plain model of what must come of it, and the command.
 *
 *   simulate [--seconds S] [--seed N] [--schedules N] [--from K]
 *
 * Schedule K of seed N is always the same: its sets, operations, sizes, orders, faults, and every step. The first one that
 * fails is printed with the command that replays it, and the exit code is 1.
 *
 * After every schedule: each result equals the model's; every wait has ended, and, where nothing went wrong, by a wake-up and
 * not because its time was up; no place of the segment or of a tensor was accessed by two threads in no order; the lock is
 * free and every operation idle; and all ranks were told the same.
 */
#include "core.h"
#include "hora.h"
#include "simulate.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    RANKS = 4, SETS = 4, OPS = 12, STEPS = 6, PARTS = 3, VARIANTS = 2, SCRIPTS = 2, /* at most */
    TENSOR_BYTES = 2048, ARENA_BYTES = 1 << 17, UNEVEN = 5,
};

enum fault { NONE, KILL, STOP };
enum how_placed { APART, IN_PLACE, IN_ARENA };

struct op {
    uint32_t set, kind, op, dtype[PARTS], parts;
    int root;
    double prescale, postscale;
    uint64_t counts[VARIANTS][PARTS];
    bool varies, again, fresh; /* varies: another shape at odd steps; again: by hora_again; fresh: a new name each step */
    uint64_t key;
};

/* What one thread of every rank does: in each step some operations, each rank in its own order. */
struct script {
    struct op ops[OPS];
    uint32_t op_count, steps;
    uint32_t chosen[STEPS];           /* bits of ops */
    int liar[STEPS][OPS];             /* the rank that says something else, or -1 */
    uint32_t limit[UNEVEN][RANKS];    /* epochs with join: how many of its steps each rank makes */
    bool active[UNEVEN][RANKS];
    uint32_t epochs;
};

struct seat { /* of a rank */
    struct core *core;
    int sets[SETS];
    word over, closing, closed;
    int last_joined[UNEVEN];
    int outcome[SCRIPTS][STEPS][OPS]; /* status + 1 */
    char said[SCRIPTS][STEPS][OPS][64];
};

struct started { int64_t ticket, plan; uint32_t op; }; /* plan: to be dropped, or -1 */

struct work { /* of a thread */
    int rank, slot;
    struct started started[OPS];
    uint32_t started_count;
    int64_t plans[OPS][VARIANTS], lies[OPS];
    struct plan *ready[OPS];
    char *in[OPS][PARTS], *out[OPS][PARTS];
    enum how_placed placed[OPS];
};

static int ranks, set_count, scripts, fd;
static int members[SETS][RANKS], member_count[SETS];
static struct script script[SCRIPTS];
static struct seat seats[RANKS];
static struct work works[SCRIPTS][RANKS];
static char *pool;
static _Atomic size_t pool_used;
enum { POOL_BYTES = 4 << 20 };

static enum fault fault;
static enum { ANYWHERE, IN_LOCK, LEAVING } fault_where;
static int victim;
static bool comes_back, impatient, busy, dropping, has_quitter, has_straggler;
static uint64_t fault_step;
static struct { int64_t spin_us, cycle_us; uint64_t fusion, capacity; int split; } tuning;

/* ---- making a program ---- */

static uint64_t some_count(uint64_t item) {
    switch (below(6)) {
    case 0: return below(3);
    case 1: return INLINE_BYTES / item - 1 + below(3);
    case 2: return CHUNK_BYTES / item - 1 + below(3);
    case 3: return below((uint32_t)(TENSOR_BYTES / item));
    default: return 1 + below(40);
    }
}

static void make_op(struct op *o, int slot, uint32_t number, bool for_join) {
    static const uint32_t dtypes[] = {FLOAT32, FLOAT64, INT32, INT64, UINT8};
    static const uint32_t kinds[] = {ALLREDUCE, ALLREDUCE, ALLREDUCE, ALLGATHER, BROADCAST, ALLTOALL, REDUCESCATTER, BARRIER};
    static const uint32_t ops[] = {SUM, SUM, AVERAGE, MIN, MAX, PRODUCT};
    *o = (struct op){.set = below((uint32_t)set_count), .prescale = 1, .postscale = 1, .key = (uint64_t)slot << 32 | number};
    o->kind = for_join ? (chance(8) ? BARRIER : ALLREDUCE) : kinds[below(8)];
    o->op = o->kind == ALLREDUCE || o->kind == REDUCESCATTER ? ops[below(6)] : SUM;
    bool pairs = (member_count[o->set] & (member_count[o->set] - 1)) == 0;
    if (o->kind == ALLREDUCE && !for_join && pairs && chance(8)) o->op = ADASUM;
    o->parts = o->kind == BARRIER ? 0 : o->kind == ALLTOALL || chance(2) ? 1 : 1 + below(PARTS);
    o->root = members[o->set][below((uint32_t)member_count[o->set])];
    if (o->op == SUM && chance(3)) o->prescale = 2, o->postscale = 0.5;
    o->varies = chance(3);
    bool mixed = chance(4);
    for (uint32_t k = 0; k < o->parts; k++) {
        o->dtype[k] = o->op == ADASUM ? FLOAT32 : k && !mixed ? o->dtype[0] : dtypes[below(5)];
        if (o->prescale != 1) o->dtype[k] = FLOAT64;
        for (int v = 0; v < VARIANTS; v++) o->counts[v][k] = some_count(item_bytes[o->dtype[k]]);
        if (chance(6)) o->counts[0][k] = 0;
    }
    o->fresh = chance(4);
    o->again = !o->fresh && !o->varies && o->kind == ALLREDUCE && o->parts == 1 && o->op != ADASUM && !for_join && chance(4);
}

/* The script of a second thread goes with a join only on sets of one rank: there it meets nobody who has joined. */
static bool alone(const struct script *s, int slot, uint32_t i) {
    return !slot || !script[0].epochs || member_count[s->ops[i].set] == 1;
}

static void make_script(struct script *s, int slot, bool join) {
    *s = (struct script){.op_count = 1 + below(slot ? 4 : OPS), .steps = 1 + below(STEPS)};
    s->epochs = join ? 1 + below(UNEVEN) : 0;
    for (uint32_t i = 0; i < s->op_count; i++) make_op(&s->ops[i], slot, i, join);
    for (uint32_t step = 0; step < s->steps; step++) {
        s->chosen[step] = (uint32_t)random_bits() & (uint32_t)random_bits();
        if (chance(3)) s->chosen[step] = (uint32_t)random_bits();
        for (uint32_t i = 0; i < s->op_count; i++)
            if (!alone(s, slot, i)) s->chosen[step] &= ~(1u << i);
        for (uint32_t i = 0; i < OPS; i++) {
            struct op *o = &s->ops[i];
            s->liar[step][i] = i < s->op_count && !join && !script[0].epochs && member_count[o->set] > 1 && chance(40)
                                   ? members[o->set][below((uint32_t)member_count[o->set])] : -1;
        }
    }
    for (uint32_t e = 0; e < s->epochs; e++)
        for (int r = 0; r < ranks; r++) s->limit[e][r] = below(s->steps + 1), s->active[e][r] = chance(2);
}

static void make_program(void) {
    ranks = 2 + (int)below(RANKS - 1);
    set_count = 1 + (int)below(SETS);
    for (int s = 0; s < set_count; s++) {
        uint32_t bits = s ? (uint32_t)random_bits() : ~0u;
        member_count[s] = 0;
        for (int r = 0; r < ranks; r++)
            if (bits >> r & 1) members[s][member_count[s]++] = r;
        if (!member_count[s]) members[s][member_count[s]++] = (int)below((uint32_t)ranks);
    }
    bool join = chance(3);
    scripts = chance(3) ? 2 : 1;
    if (join && scripts > 1 && set_count > 1) member_count[set_count - 1] = 1;
    for (int i = 0; i < scripts; i++) make_script(&script[i], i, join && !i);
    static const uint64_t fusions[] = {0, 300, 1 << 20};
    tuning.spin_us = chance(2) ? 0 : 2;
    tuning.cycle_us = chance(2) ? 0 : 50;
    tuning.fusion = fusions[below(3)];
    tuning.capacity = chance(2) ? 0 : MAX_ENTRIES;
    tuning.split = chance(4);
    fault = sim_exact && chance(3) ? (chance(2) ? KILL : STOP) : NONE;
    victim = (int)below((uint32_t)ranks);
    comes_back = chance(2);
    fault_step = below(chance(3) ? 300 : 6000);
    fault_where = below(3);
    if (fault_where == LEAVING) fault_step = 0;
    impatient = chance(4);
    busy = chance(4);
    dropping = !fault && chance(6);
    has_quitter = !fault && !dropping && chance(8);
    has_straggler = !fault && !has_quitter && !join && scripts == 1 && chance(8);
}

/* ---- what everybody brings, and what must come of it ---- */

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
    return (x ^ (x >> 29)) * 0xc4ceb9fe1a85ec53ull >> 32;
}

static int variant(const struct op *o, uint32_t step) { return o->varies && step % 2; }

/* Elements that a rank brings of a part; rows are of one element. */
static uint64_t brought(const struct op *o, uint32_t step, int rank, uint32_t k) {
    uint64_t most = o->counts[variant(o, step)][k];
    if (o->kind != ALLGATHER && o->kind != ALLTOALL) return most;
    return most ? mix(o->key ^ step << 8 ^ (uint64_t)rank << 20 ^ k) % (most + 1) : 0;
}

/* Of an alltoall: the elements for a member, by position. */
static uint64_t part_for(const struct op *o, uint32_t step, int rank, int position) {
    uint64_t left = brought(o, step, rank, 0), n = (uint64_t)member_count[o->set];
    for (int m = 0; m < position; m++) left -= left / (n - (uint64_t)m) / (1 + (uint64_t)(m + rank) % 2);
    return position == (int)n - 1 ? left : left / (n - (uint64_t)position) / (1 + (uint64_t)(position + rank) % 2);
}

static double value(const struct op *o, uint32_t step, int rank, uint32_t k, uint64_t i) {
    uint64_t h = mix(o->key * 31 + step * 131 + (uint64_t)rank * 7 + k * 1013 + i * 8191);
    return o->op == PRODUCT ? 1 + (double)(h % 2) : 12 * (1 + (double)(h % 5));
}

static void put_value(char *at, uint32_t dtype, uint64_t i, double v) {
    switch (dtype) {
    case FLOAT32: ((float *)at)[i] = (float)v; break;
    case FLOAT64: ((double *)at)[i] = v; break;
    case INT32: ((int32_t *)at)[i] = (int32_t)v; break;
    case INT64: ((int64_t *)at)[i] = (int64_t)v; break;
    default: ((uint8_t *)at)[i] = (uint8_t)v;
    }
}

static double get_value(const char *at, uint32_t dtype, uint64_t i) {
    switch (dtype) {
    case FLOAT32: return ((const float *)at)[i];
    case FLOAT64: return ((const double *)at)[i];
    case INT32: return ((const int32_t *)at)[i];
    case INT64: return (double)((const int64_t *)at)[i];
    default: return ((const uint8_t *)at)[i];
    }
}

static double reduced(const struct op *o, uint32_t step, uint32_t k, uint64_t i, const bool *present, bool active) {
    double all = 0;
    int n = 0;
    for (int m = 0; m < member_count[o->set]; m++) {
        int r = members[o->set][m];
        if (!present[r]) continue;
        double v = value(o, step, r, k, i) * o->prescale;
        if (!n++) all = v;
        else if (o->op == MIN) all = v < all ? v : all;
        else if (o->op == MAX) all = v > all ? v : all;
        else if (o->op == PRODUCT) all *= v;
        else all += v;
    }
    double divisor = active ? n : member_count[o->set];
    if (o->op != AVERAGE) return all * o->postscale;
    if (o->dtype[k] == FLOAT32) return (float)all / (float)divisor;
    return o->dtype[k] == FLOAT64 ? all / divisor : (double)(int64_t)(all / divisor);
}

static int position_in(const struct op *o, int rank) {
    for (int m = 0; m < member_count[o->set]; m++)
        if (members[o->set][m] == rank) return m;
    return -1;
}

static void expect(const struct op *o, uint32_t step, int rank, uint32_t k, uint64_t i, double got, double wanted) {
    if (got == wanted) return;
    sim_fail("wrong result: rank %d, operation %llx (kind %u, reduction %u, type %u, set %u), step %u, part %u, element %llu: "
             "%g in place of %g", rank, (unsigned long long)o->key, o->kind, o->op, o->dtype[k], o->set, step, k,
             (unsigned long long)i, got, wanted);
}

/* ---- one thread of one rank ---- */

static char *from_pool(size_t bytes) {
    size_t at = atomic_fetch_add(&pool_used, (bytes + 63) & ~63ull);
    if (at + bytes > POOL_BYTES) abort();
    return pool + at;
}

/* A status that ends this rank's part: true. Anything that may not be is a failure. */
static bool ends(int rank, int status, const char *what) {
    if (status == OK) return false;
    bool may_abort = sim_faults && fault != NONE;
    if ((status == ABORTED && may_abort) || ((status == LEFT || status == CLOSED || status == FAILED) && has_quitter)) {
        seats[rank].over = true;
        return true;
    }
    char why[STATUS_BYTES] = "";
    int dead = hora_dead(seats[rank].core);
    if (status == ABORTED && dead >= 0) hora_status(seats[rank].core, dead, why, sizeof why);
    sim_fail("rank %d: status %d from %s%s%s", rank, status, what, *why ? ": " : "", why);
    return true;
}

static int64_t patience(void) { return impatient && fault != STOP ? 1 + (int64_t)below(300) : 200000; }

static void fill(struct work *w, uint32_t i, uint32_t step) {
    struct op *o = &script[w->slot].ops[i];
    for (uint32_t k = 0; k < o->parts; k++) {
        uint64_t n = brought(o, step, w->rank, k);
        sim_touch(w->in[i][k], n * item_bytes[o->dtype[k]], true);
        for (uint64_t j = 0; j < n; j++) put_value(w->in[i][k], o->dtype[k], j, value(o, step, w->rank, k, j));
    }
}

static void check_result(struct work *w, uint32_t i, uint32_t step, int64_t ticket, const bool *present, bool active) {
    struct op *o = &script[w->slot].ops[i];
    struct core *c = seats[w->rank].core;
    int me = position_in(o, w->rank), n = member_count[o->set];
    for (uint32_t k = 0; k < o->parts; k++) {
        uint64_t item = item_bytes[o->dtype[k]], count = o->counts[variant(o, step)][k];
        char *out = w->out[i][k];
        if (o->kind == ALLGATHER || o->kind == ALLTOALL) {
            int64_t received[RANKS];
            char *memory = hora_take(c, ticket, (int)k, received);
            uint64_t at = 0;
            for (int m = 0; m < n; m++) {
                int from = members[o->set][m];
                uint64_t low = 0, sent = o->kind == ALLGATHER ? brought(o, step, from, k) : part_for(o, step, from, me);
                for (int q = 0; o->kind == ALLTOALL && q < me; q++) low += part_for(o, step, from, q);
                if (received[m] != (int64_t)(sent * item)) {
                    sim_fail("rank %d got %lld bytes from rank %d in place of %llu", w->rank, (long long)received[m], from,
                             (unsigned long long)(sent * item));
                    break;
                }
                for (uint64_t j = 0; j < sent; j++)
                    expect(o, step, w->rank, k, j, get_value(memory, o->dtype[k], at++), value(o, step, from, k, low + j));
            }
            hora_free(memory);
            continue;
        }
        uint64_t low = 0;
        if (o->kind == REDUCESCATTER) {
            uint64_t rows = count;
            count = rows / (uint64_t)n + ((uint64_t)me < rows % (uint64_t)n);
            for (int m = 0; m < me; m++) low += rows / (uint64_t)n + ((uint64_t)m < rows % (uint64_t)n);
        }
        sim_touch(out, count * item, false);
        for (uint64_t j = 0; j < count; j++) {
            double got = get_value(out, o->dtype[k], j);
            if (o->op == ADASUM) { /* checked by arithmetic's own tests; here only that there is something */
                if (!(got > 0)) expect(o, step, w->rank, k, j, got, 1);
            } else if (o->kind == BROADCAST) {
                expect(o, step, w->rank, k, j, got, value(o, step, o->root, k, j));
            } else {
                expect(o, step, w->rank, k, j, got, reduced(o, step, k, low + j, present, active));
            }
        }
    }
}

static int64_t new_plan(struct work *w, const struct op *o, int v, uint32_t step) {
    struct seat *seat = &seats[w->rank];
    uint64_t segments[3 * PARTS];
    bool free_rows = o->kind == ALLGATHER || o->kind == ALLTOALL;
    for (uint32_t k = 0; k < o->parts; k++) {
        segments[3 * k] = o->dtype[k];
        segments[3 * k + 1] = free_rows ? 0 : o->counts[v % VARIANTS][k];
        segments[3 * k + 2] = 1;
    }
    char words[32];
    int length = snprintf(words, sizeof words, "%llx", (unsigned long long)o->key);
    uint64_t fingerprint = (o->key << 4) + 1 + (v == VARIANTS ? 14 : o->varies && !free_rows ? (uint64_t)v : 0);
    return hora_plan(seat->core, o->key + 1 + ((uint64_t)step << 40), 1ull << 62 | o->set, seat->sets[o->set], (int)o->kind, (int)o->op,
                     o->root, o->prescale, o->postscale, fingerprint, 1, 0, (int)o->parts, segments, words, length);
}

static int64_t submit(struct work *w, uint32_t i, uint32_t step, bool lies, int64_t *used) {
    struct op *o = &script[w->slot].ops[i];
    struct core *c = seats[w->rank].core;
    int64_t meta[8];
    int meta_count = 0;
    fill(w, i, step);
    if (o->kind == ALLGATHER)
        for (uint32_t k = 0; k < o->parts; k++)
            meta[meta_count++] = (int64_t)(brought(o, step, w->rank, k) * item_bytes[o->dtype[k]]);
    if (o->kind == ALLTOALL)
        for (int m = 0; m < member_count[o->set]; m++)
            meta[meta_count++] = (int64_t)(part_for(o, step, w->rank, m) * item_bytes[o->dtype[0]]);
    int64_t plan = lies ? w->lies[i] : w->plans[i][variant(o, step)], ticket;
    if (o->fresh) plan = new_plan(w, o, lies ? VARIANTS : variant(o, step), step);
    if (plan < 0) return plan;
    *used = o->fresh ? plan : -1;
    bool gathers = o->kind == ALLGATHER || o->kind == ALLTOALL;
    while ((ticket = hora_submit(c, plan, w->in[i], gathers ? NULL : w->out[i], meta, meta_count)) == -PENDING) {}
    return ticket;
}

static word submitted[SCRIPTS][STEPS][OPS]; /* by how many; not counted where ranks join */

/* Do something else for long. What all ranks have submitted before that must be carried out meanwhile. */
static void compute(struct work *w, uint32_t step) {
    struct core *c = seats[w->rank].core;
    bool complete[OPS];
    for (uint32_t i = 0; i < w->started_count; i++) {
        uint32_t op = w->started[i].op;
        complete[i] = !script[0].epochs && submitted[w->slot][step][op] == (uint32_t)member_count[script[w->slot].ops[op].set];
    }
    bool polls = chance(2); /* goes on as soon as it is done */
    sim_busy(1);
    uint64_t until = sim_now() + (sim_exact ? 2000ull : 1) * 1000 * 1000;
    for (uint32_t looked = 0, left = 1; left && sim_now() < until; looked++) {
        left = !polls;
        for (uint32_t i = 0; polls && i < w->started_count; i++) left |= !hora_done(c, w->started[i].ticket);
        if (left) sim_sleep(polls && looked < 500 ? 100 : 2000ull * 1000 * 1000);
    }
    sim_busy(-1);
    for (uint32_t i = 0; i < w->started_count; i++) {
        struct ticket *t = c->tickets[w->started[i].ticket];
        if (complete[i] && sim_exact && t->state != DONE && !round_over(c, t) && !t->share_done)
            sim_fail("rank %d: an operation that all have submitted was not carried out while it was busy elsewhere", w->rank);
    }
}

/* Submit all that was chosen for one step; true if this rank's part is over. */
static bool start_step(struct work *w, uint32_t step, const bool *present) {
    struct script *s = &script[w->slot];
    struct core *c = seats[w->rank].core;
    uint32_t mine[OPS], n = 0;
    w->started_count = 0;
    for (uint32_t i = 0; i < s->op_count; i++)
        if ((s->chosen[step] >> i & 1) && position_in(&s->ops[i], w->rank) >= 0 && !(s->ops[i].again && s->liar[step][i] < 0))
            mine[n++] = i;
    for (uint32_t i = n; i > 1; i--) { /* everybody in an order of its own */
        uint32_t j = below(i), swapped = mine[j];
        mine[j] = mine[i - 1], mine[i - 1] = swapped;
    }
    for (uint32_t i = 0; i < n; i++) {
        struct started *started = &w->started[i];
        started->op = mine[i];
        started->ticket = submit(w, mine[i], step, s->liar[step][mine[i]] == w->rank, &started->plan);
        if (started->ticket < 0 && ends(w->rank, (int)-started->ticket, "hora_submit")) return true;
        w->started_count++;
        submitted[w->slot][step][mine[i]]++;
        if (chance(8)) hora_help(c);
        if (chance(8)) hora_done(c, w->started[below(i + 1)].ticket);
    }
    for (uint32_t i = 0; i < s->op_count; i++) { /* these in one order */
        if (!(s->chosen[step] >> i & 1) || position_in(&s->ops[i], w->rank) < 0) continue;
        if (!s->ops[i].again || s->liar[step][i] >= 0) continue;
        fill(w, i, step);
        int64_t code;
        while ((code = hora_again(w->ready[i], w->in[i][0])) >> 62 && (code & 0xff) == PENDING) {}
        int status = (int)(code & 0xff);
        int64_t ticket = code >> 62 ? -1 : code >> 8;
        while (status == PENDING) status = hora_finish(c, ticket, patience());
        if (ends(w->rank, status, "hora_again")) return true;
        check_result(w, i, step, -1, present, false);
    }
    if (!sim_faults && chance(busy ? 2 : 12)) compute(w, step);
    return false;
}

static void note_mismatch(struct work *w, uint32_t step, const struct started *x) {
    struct core *c = seats[w->rank].core;
    char out[64] = "";
    uint64_t failure = hora_failure(c, x->ticket);
    for (int r = 0, length = 0; r < ranks; r++) {
        char text[32];
        int said = hora_failure_said(c, failure, r, text, sizeof text);
        if (length + said < 56) length += snprintf(out + length, 64 - (size_t)length, "%d:%s ", r, said ? text : "");
    }
    memcpy(seats[w->rank].said[w->slot][step][x->op], out, sizeof out); /* at once: this rank may be killed */
    int code = hora_failure_code(c, failure);
    if (code != MISMATCH && !has_quitter) sim_fail("a mismatch was called %d", code);
}

/* Wait for it all, in another order, and look at what came; true if this rank's part is over. */
static bool end_step(struct work *w, uint32_t step, const bool *present, const bool *active_flags, bool leave_some) {
    struct script *s = &script[w->slot];
    struct core *c = seats[w->rank].core;
    for (uint32_t i = w->started_count; i > 1; i--) {
        uint32_t j = below(i);
        struct started swapped = w->started[j];
        w->started[j] = w->started[i - 1], w->started[i - 1] = swapped;
    }
    for (uint32_t i = 0; i < w->started_count; i++) {
        struct started *x = &w->started[i];
        struct op *o = &s->ops[x->op];
        bool lie = s->liar[step][x->op] >= 0, active = false;
        int status = OK;
        if (!(leave_some && chance(3))) { /* else nobody asks for it */
            while ((status = hora_wait(c, x->ticket, patience())) == PENDING) {}
            seats[w->rank].outcome[w->slot][step][x->op] = status + 1;
            for (int m = 0; m < member_count[o->set]; m++)
                if (!present[members[o->set][m]]) active |= active_flags[members[o->set][m]];
            if (lie && status == FAILED) note_mismatch(w, step, x);
            else if (ends(w->rank, status, "hora_wait")) return true;
            else if (lie) sim_fail("rank %d was not told of a mismatch", w->rank);
            else check_result(w, x->op, step, x->ticket, present, active);
        }
        hora_release(c, x->ticket);
        if (x->plan >= 0) hora_drop(c, x->plan);
    }
    return false;
}

static bool do_step(struct work *w, uint32_t step, bool leave_some) {
    bool present[RANKS] = {true, true, true, true}, none[RANKS] = {false};
    return start_step(w, step, present) || end_step(w, step, present, none, leave_some);
}

static bool do_epochs(struct work *w) {
    struct script *s = &script[w->slot];
    struct core *c = seats[w->rank].core;
    for (uint32_t e = 0; e < s->epochs; e++) {
        uint32_t steps = s->limit[e][w->rank];
        bool present[RANKS], late = steps && chance(3); /* late: what was submitted last is waited for after the join */
        for (uint32_t step = 0; step < steps; step++) {
            for (int r = 0; r < ranks; r++) present[r] = s->limit[e][r] > step;
            if (start_step(w, step, present)) return true;
            if (!(late && step + 1 == steps) && end_step(w, step, present, s->active[e], false)) return true;
        }
        int64_t round;
        while ((round = hora_join(c, s->active[e][w->rank])) == -PENDING) {}
        if (round < 0 && ends(w->rank, (int)-round, "hora_join")) return true;
        int status, last = -1;
        while ((status = hora_join_wait(c, round, patience(), &last)) == PENDING) {}
        if (ends(w->rank, status, "hora_join_wait")) return true;
        if (late && end_step(w, steps - 1, present, s->active[e], false)) return true;
        seats[w->rank].last_joined[e] = last + 1;
    }
    return false;
}

static void prepare(struct work *w) {
    struct script *s = &script[w->slot];
    struct seat *seat = &seats[w->rank];
    for (uint32_t i = 0; i < s->op_count; i++) {
        struct op *o = &s->ops[i];
        if (position_in(o, w->rank) < 0) continue;
        w->placed[i] = o->again ? (chance(2) ? IN_PLACE : IN_ARENA) : (enum how_placed)below(3);
        if (o->kind != ALLREDUCE && o->kind != BROADCAST && w->placed[i] != APART) w->placed[i] = APART;
        for (uint32_t k = 0; k < o->parts; k++) {
            uint64_t most = o->counts[0][k] > o->counts[1][k] ? o->counts[0][k] : o->counts[1][k];
            size_t bytes = (most + 1) * item_bytes[o->dtype[k]];
            w->in[i][k] = w->placed[i] == IN_ARENA ? hora_alloc(seat->core, bytes) : NULL;
            if (!w->in[i][k]) w->in[i][k] = from_pool(bytes);
            w->out[i][k] = w->placed[i] == APART ? from_pool(bytes) : w->in[i][k];
        }
        for (int v = 0; v < VARIANTS + 1; v++) {
            int64_t plan = new_plan(w, o, v, 0);
            if (plan < 0) {
                ends(w->rank, (int)-plan, "hora_plan");
                return;
            }
            if (v < VARIANTS) w->plans[i][v] = plan;
            else w->lies[i] = plan;
        }
        if (o->again) w->ready[i] = hora_ready(seat->core, w->plans[i][0]);
    }
}

static void leave(int rank) {
    struct seat *seat = &seats[rank];
    int status;
    while ((status = hora_leave(seat->core)) == PENDING) {}
    if (!seat->over && !(fault && sim_faults)) ends(rank, status, "hora_leave");
    seat->closing = true;
    hora_close(seat->core);
    seat->closed = true;
}

static void second_thread(void *argument) {
    struct work *w = argument;
    prepare(w);
    for (uint32_t step = 0; step < script[1].steps && !seats[w->rank].over; step++)
        if (do_step(w, step, false)) break;
}

/* Waits for something that nobody else submits, until this process shuts down. */
static void straggler(void *argument) {
    struct work *w = argument;
    struct core *c = seats[w->rank].core;
    uint64_t segment[3] = {FLOAT32, 1, 1};
    static float number[RANKS];
    char *at = (char *)&number[w->rank];
    int64_t plan = hora_plan(c, 1ull << 60, 1ull << 62 | (uint64_t)w->rank, seats[w->rank].sets[0], ALLREDUCE, SUM, 0, 1, 1, 99, 1, 0, 1,
                             segment, "alone", 5);
    int64_t ticket = plan < 0 ? plan : hora_submit(c, plan, &at, &at, NULL, 0);
    int status = ticket < 0 ? (int)-ticket : PENDING;
    while (status == PENDING) status = hora_wait(c, ticket, 200000);
    if (status == OK) sim_fail("an operation of one rank of %d came to an end", ranks);
}

static void watch_others(void *argument) {
    struct work *w = argument;
    char room[1 << 15];
    for (int i = 0; i < 3 && !seats[w->rank].closed; i++) {
        sim_point();
        hora_snapshot(seats[w->rank].core, room, sizeof room);
    }
}

static word helpers_left[RANKS];
static void second_and_tell(void *argument) {
    struct work *w = argument;
    second_thread(w);
    helpers_left[w->rank] = 0;
}

static void first_thread(void *argument) {
    struct work *w = argument;
    struct seat *seat = &seats[w->rank];
    seat->core = hora_open(fd, w->rank, tuning.spin_us, tuning.cycle_us, tuning.fusion, tuning.capacity, tuning.split);
    if (!seat->core) {
        sim_fail("no core");
        return;
    }
    sim_watch(seat->core->base, seat->core->header->segment_bytes, 0);
    for (int s = 0; s < set_count; s++) {
        int32_t ranks_of_it[RANKS];
        for (int m = 0; m < member_count[s]; m++) ranks_of_it[m] = members[s][m];
        while ((seat->sets[s] = hora_set(seat->core, ranks_of_it, member_count[s])) == -PENDING) {}
        if (seat->sets[s] < 0 && ends(w->rank, -seat->sets[s], "hora_set")) break;
    }
    if (scripts > 1 && !seat->over) {
        helpers_left[w->rank] = 1;
        sim_spawn(w->rank, true, second_and_tell, &works[1][w->rank]);
    }
    if (has_straggler && w->rank == victim && !seat->over) sim_spawn(w->rank, true, straggler, w);
    if (chance(4)) sim_spawn(w->rank, false, watch_others, w);
    if (!seat->over) prepare(w);
    bool gone = has_quitter && w->rank == victim;
    for (uint32_t step = 0; step < script[0].steps && !seat->over && !script[0].epochs; step++) {
        if (gone && step == script[0].steps / 2) break;
        if (do_step(w, step, dropping && step + 1 == script[0].steps)) break;
    }
    bool present[RANKS] = {true, true, true, true};
    if (script[0].epochs && !seat->over && gone && script[0].limit[0][w->rank] && chance(2))
        start_step(w, 0, present); /* and leaves without waiting */
    else if (script[0].epochs && !seat->over) do_epochs(w);
    if (dropping && !seat->over) { /* others may not have submitted yet what this rank did not wait for */
        int64_t plan = hora_plan(seat->core, 1ull << 61, 0, seat->sets[0], BARRIER, SUM, 0, 1, 1, 77, 1, 0, 0, NULL, "end", 3);
        int64_t ticket = hora_submit(seat->core, plan, NULL, NULL, NULL, 0);
        int status = PENDING;
        while (status == PENDING) status = hora_finish(seat->core, ticket, patience());
        ends(w->rank, status, "the last barrier");
    }
    sim_busy(1);
    while (helpers_left[w->rank]) sim_sleep(1000 * 1000); /* it uses the core too */
    sim_busy(-1);
    leave(w->rank);
}

/* ---- faults ---- */

static bool struck;

/* As the core's watcher does: a death is passed on. */
static void pass_on_death(void *argument) {
    struct work *w = argument;
    while (!struck || !seats[w->rank].core) sim_sleep(100 * 1000);
    sim_sleep(below(3000) * 1000);
    hora_mark_dead(seats[w->rank].core, victim, NULL);
}

/* As a monitor does: a rank that is silent for long is given up. It comes back before that, or after. */
static void judge(void *argument) {
    (void)argument;
    while (!struck) sim_sleep(100 * 1000);
    sim_sleep((uint64_t)(comes_back ? below(400) : 2000) * 1000 * 1000);
    for (int r = 0; r < ranks && !comes_back; r++)
        if (r != victim && seats[r].core) hora_mark_dead(seats[r].core, victim, "given up");
    sim_sleep(below(1000) * 1000);
    sim_continue(victim);
}

static bool strike(void) {
    struct core *c = seats[victim].core;
    if (seats[victim].closing) return true;
    if (fault_where != ANYWHERE && !c) return false;
    if (fault_where == IN_LOCK && (c->header->lock & 0xffff) != (uint32_t)victim + 1) return false;
    if (fault_where == LEAVING && !rank_at(c, victim)->left) return false;
    fault_step = sim_steps;
    struck = true;
    if (fault == KILL) sim_kill(victim);
    else sim_stop(victim);
    return true;
}

/* ---- after a schedule ---- */

static void check_the_end(void) {
    for (int slot = 0; slot < scripts; slot++)
        for (uint32_t step = 0; step < script[slot].steps; step++)
            for (uint32_t i = 0; i < script[slot].op_count; i++) {
                const char *first = NULL;
                for (int r = 0; r < ranks; r++) {
                    if (seats[r].outcome[slot][step][i] != FAILED + 1 || !*seats[r].said[slot][step][i] || has_quitter) continue;
                    if (!first) first = seats[r].said[slot][step][i];
                    if (strcmp(first, seats[r].said[slot][step][i]))
                        sim_fail("two stories of one mismatch: '%s' and '%s'", first, seats[r].said[slot][step][i]);
                }
            }
    for (uint32_t e = 0; e < script[0].epochs; e++) {
        int last = 0;
        for (int r = 0; r < ranks; r++) {
            int told = seats[r].last_joined[e];
            if (told && last && told != last) sim_fail("two stories of who joined last: %d and %d", last - 1, told - 1);
            if (told) last = told;
        }
    }
    if (fault || has_quitter || has_straggler) return;
    struct core whole = {.base = hora_map(fd), .size = ranks};
    whole.header = (struct header *)whole.base;
    if (atomic_load(&whole.header->lock)) sim_fail("the lock is held at the end");
    for (uint32_t i = 0; i < whole.header->used_entries; i++) {
        struct entry *e = entry_at(&whole, i);
        if (e->arrived) sim_fail("operation %u is open at the end", i);
        if (!dropping && atomic_load(&e->finished) != e->finished_wanted) sim_fail("operation %u is not idle at the end", i);
    }
    for (uint32_t s = 0; s < MAX_SETS && atomic_load(&set_at(&whole, s)->made); s++) {
        struct set *set = set_at(&whole, s);
        if (atomic_load(&set->barrier.arrived) || atomic_load(&set->barrier.sleepers) || atomic_load(&set->sleepers))
            sim_fail("somebody is at a barrier of set %u at the end", s);
    }
    hora_unmap(whole.base);
}

static bool run_schedule(uint64_t seed) {
    sim_begin(seed);
    memset((void *)seats, 0, sizeof seats);
    memset(works, 0, sizeof works);
    memset((void *)helpers_left, 0, sizeof helpers_left);
    pool_used = 0;
    struck = false;
    memset((void *)submitted, 0, sizeof submitted);
    make_program();
    fd = memfd_create("simulated", 0);
    if (fd < 0 || hora_format(fd, ranks, 7, ARENA_BYTES)) abort();
    sim_watch(pool, POOL_BYTES, 1);
    if (impatient) sim_faults = true;
    for (int r = 0; r < ranks; r++) {
        works[0][r] = (struct work){.rank = r};
        works[1][r] = (struct work){.rank = r, .slot = 1};
        sim_spawn(r, true, first_thread, &works[0][r]);
    }
    if (fault) {
        sim_faults = true; /* from the beginning: time may pass while nobody can go on */
        sim_at(fault_step, strike);
        for (int r = 0; r < ranks && fault == KILL; r++)
            if (r != victim) sim_spawn(r, false, pass_on_death, &works[0][r]);
        if (fault == STOP) sim_spawn(RANKS, false, judge, NULL);
    }
    bool fine = sim_run();
    if (fine) check_the_end();
    for (int r = 0; r < ranks && !*sim_failure; r++) {
        struct core *c = seats[r].core;
        if (!c) continue;
        if (!seats[r].closed) { /* it was killed */
            atomic_store(&c->callers, 0);
            c->executor_runs = false;
            hora_close(c);
        }
        if (c->arena_used) hora_unmap(c->base);
        for (struct plan *p = c->kept, *next; p; p = next) {
            next = p->next_kept;
            free(p->segments), free(p->description), free(p->own), free(p);
        }
        free(c);
    }
    close(fd);
    return !*sim_failure;
}

/* What is under way on each rank. */
static void describe_ranks(void) {
    for (int r = 0; r < ranks; r++) {
        struct core *c = seats[r].core;
        if (!c || seats[r].closing) continue;
        struct rank *k = rank_at(c, r);
        printf("rank %d: schedule %llu of %llu, helpers %u, pending %u, executor %s%s\n", r, (unsigned long long)c->next,
               (unsigned long long)k->tail, c->helpers, c->pending, k->executor_wanted ? "wanted" : "not wanted",
               k->executor_asleep ? " and asleep" : "");
        for (uint32_t i = 0; i < c->ticket_count; i++) {
            struct ticket *t = c->tickets[i];
            if (!t->plan || t->state == OWNED) continue;
            struct entry *e = entry_at(c, t->entry);
            printf("  ticket %u: operation %.*s of kind %u on set %u, round %llu of %llu, state %u, arrived %u, inlined %u, share %u, "
                   "shares %u\n", i, (int)t->plan->description_length, t->plan->description, t->plan->kind, t->plan->set,
                   (unsigned long long)t->round, (unsigned long long)e->round, t->state, e->arrived, e->inlined[t->round & 1],
                   t->share_done, e->shares[t->round & 1]);
        }
    }
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int count, char **words) {
    double most_s = 10;
    uint64_t seed = 1, from = 0, most = UINT64_MAX;
    for (int i = 1; i + 1 < count; i += 2) {
        uint64_t number = strtoull(words[i + 1], NULL, 10);
        if (!strcmp(words[i], "--seconds")) most_s = (double)number;
        else if (!strcmp(words[i], "--seed")) seed = number;
        else if (!strcmp(words[i], "--from")) from = number;
        else if (!strcmp(words[i], "--schedules")) most = number;
        else count = 0;
    }
    if (count % 2 == 0) {
        fprintf(stderr, "usage: simulate [--seconds S] [--seed N] [--schedules N] [--from K]\n");
        return 2;
    }
    pool = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sim_detail = most == 1;
    double started = seconds();
    uint64_t done = 0, steps = 0;
    for (; done < most && (most != UINT64_MAX || seconds() - started < most_s); done++) {
        if (!run_schedule(seed * 1000000007ull + from + done)) {
            printf("schedule %llu of seed %llu failed at step %llu: %s\n", (unsigned long long)(from + done),
                   (unsigned long long)seed, (unsigned long long)sim_steps, sim_failure);
            static const char *faults[] = {"none", "killed", "stopped"};
            printf("%d ranks, %d sets, %d threads each, %u epochs with join; fault: %s, of rank %d at step %llu%s%s%s%s\n", ranks,
                   set_count, scripts, script[0].epochs, faults[fault], victim, (unsigned long long)fault_step,
                   comes_back ? ", comes back" : "", impatient ? "; impatient" : "", has_quitter ? "; somebody leaves early" : "",
                   has_straggler ? "; somebody waits for ever" : "");
            sim_describe();
            if (sim_detail) describe_ranks();
            printf("again: simulate --seed %llu --from %llu --schedules 1\n", (unsigned long long)seed,
                   (unsigned long long)(from + done));
            return 1;
        }
        steps += sim_steps;
    }
    printf("%llu schedules of seed %llu, %llu steps, in %.0f s: nothing found\n", (unsigned long long)done,
           (unsigned long long)seed, (unsigned long long)steps, seconds() - started);
    return 0;
}
