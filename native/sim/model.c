/* Random programs for the simulator, and a plain model of them: what everybody brings, and what must come of it. */
#include "program.h"
#include "link.h"

int ranks, set_count, scripts, hosts;
int32_t host_of[RANKS];
int members[SETS][RANKS], member_count[SETS];
struct script script[SCRIPTS];
enum fault fault;
enum where fault_where;
int victim;
bool comes_back, impatient, busy, dropping, has_quitter, has_straggler, has_withdrawer;
uint64_t fault_step, fault_later;
struct tuning tuning;

/* ---- making a program ---- */

static uint64_t some_count(uint64_t item) {
    switch (below(7)) {
    case 0: return below(3);
    case 1: return INLINE_BYTES / item - 1 + below(3);
    case 2: return CHUNK_BYTES / item - 1 + below(3);
    case 3: return below((uint32_t)(TENSOR_BYTES / item));
    case 4: return (1 + below(2)) * (uint64_t)hosts * LEAST_SHARE / item; /* whole slices */
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

void make_program(void) {
    ranks = 2 + (int)below(RANKS - 1);
    set_count = 1 + (int)below(SETS);
    hosts = chance(2) ? 1 : 2 + (int)below((uint32_t)(ranks < HOSTS ? ranks : HOSTS) - 1);
    for (int r = 0; r < ranks; r++) host_of[r] = r < hosts ? r : (int32_t)below((uint32_t)hosts);
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
    if (fault && hosts > 1 && chance(3)) fault = CUT;
    victim = (int)below((uint32_t)ranks);
    comes_back = chance(2);
    fault_step = below(chance(3) ? 300 : 6000);
    fault_where = fault == CUT ? ANYWHERE : below(3);
    if (fault_where == LEAVING) fault_step = 0;
    fault_later = chance(3) ? 0 : below(60);
    impatient = chance(4);
    busy = chance(4);
    dropping = !fault && chance(6);
    has_quitter = !fault && !dropping && chance(8);
    has_straggler = !fault && !has_quitter && !join && scripts == 1 && chance(8);
    has_withdrawer = !fault && !has_quitter && !has_straggler && !dropping && !join && chance(6);
}

/* ---- what everybody brings, and what must come of it ---- */

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
    return (x ^ (x >> 29)) * 0xc4ceb9fe1a85ec53ull >> 32;
}

int variant(const struct op *o, uint32_t step) { return o->varies && step % 2; }

uint64_t brought(const struct op *o, uint32_t step, int rank, uint32_t k) {
    uint64_t most = o->counts[variant(o, step)][k];
    if (o->kind != ALLGATHER && o->kind != ALLTOALL) return most;
    return most ? mix(o->key ^ step << 8 ^ (uint64_t)rank << 20 ^ k) % (most + 1) : 0;
}

uint64_t part_for(const struct op *o, uint32_t step, int rank, int position) {
    uint64_t left = brought(o, step, rank, 0), n = (uint64_t)member_count[o->set];
    for (int m = 0; m < position; m++) left -= left / (n - (uint64_t)m) / (1 + (uint64_t)(m + rank) % 2);
    return position == (int)n - 1 ? left : left / (n - (uint64_t)position) / (1 + (uint64_t)(position + rank) % 2);
}

double value(const struct op *o, uint32_t step, int rank, uint32_t k, uint64_t i) {
    uint64_t h = mix(o->key * 31 + step * 131 + (uint64_t)rank * 7 + k * 1013 + i * 8191);
    return o->op == PRODUCT ? 1 + (double)(h % 2) : 12 * (1 + (double)(h % 5));
}

void put_value(char *at, uint32_t dtype, uint64_t i, double v) {
    switch (dtype) {
    case FLOAT32: ((float *)at)[i] = (float)v; break;
    case FLOAT64: ((double *)at)[i] = v; break;
    case INT32: ((int32_t *)at)[i] = (int32_t)v; break;
    case INT64: ((int64_t *)at)[i] = (int64_t)v; break;
    default: ((uint8_t *)at)[i] = (uint8_t)v;
    }
}

double get_value(const char *at, uint32_t dtype, uint64_t i) {
    switch (dtype) {
    case FLOAT32: return ((const float *)at)[i];
    case FLOAT64: return ((const double *)at)[i];
    case INT32: return ((const int32_t *)at)[i];
    case INT64: return (double)((const int64_t *)at)[i];
    default: return ((const uint8_t *)at)[i];
    }
}

double reduced(const struct op *o, uint32_t step, uint32_t k, uint64_t i, const bool *present, bool active) {
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

int position_in(const struct op *o, int rank) {
    for (int m = 0; m < member_count[o->set]; m++)
        if (members[o->set][m] == rank) return m;
    return -1;
}

void expect(const struct op *o, uint32_t step, int rank, uint32_t k, uint64_t i, double got, double wanted) {
    if (got == wanted) return;
    sim_fail("wrong result: rank %d, operation %llx (kind %u, reduction %u, type %u, set %u), step %u, part %u, element %llu: "
             "%g in place of %g", rank, (unsigned long long)o->key, o->kind, o->op, o->dtype[k], o->set, step, k,
             (unsigned long long)i, got, wanted);
}
