/* A random program: sets of ranks, what each rank submits and in which steps, and what goes wrong. model.c makes one, and
 * knows what everybody brings and what must come of it; program.c carries it out.
 */
#ifndef HORA_PROGRAM_H
#define HORA_PROGRAM_H
#include "core.h"
#include "simulate.h"

enum {
    RANKS = 4, SETS = 4, OPS = 12, STEPS = 6, PARTS = 3, VARIANTS = 2, SCRIPTS = 2, /* at most */
    TENSOR_BYTES = 2048, ARENA_BYTES = 1 << 17, UNEVEN = 5, HOSTS = 4, POOL = 4,
};

enum fault { NONE, KILL, STOP, CUT };
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

extern int ranks, set_count, scripts, hosts;
extern int32_t host_of[RANKS];
extern int members[SETS][RANKS], member_count[SETS];
extern struct script script[SCRIPTS];
extern enum fault fault;
extern enum where { ANYWHERE, IN_LOCK, LEAVING } fault_where;
extern int victim;
extern bool comes_back, impatient, busy, dropping, has_quitter, has_straggler, has_withdrawer;
extern uint64_t fault_step, fault_later; /* later: so many steps at which it could have struck are let pass */
extern struct tuning { int64_t spin_us, cycle_us; uint64_t fusion, capacity; int split; } tuning;

void make_program(void);

int variant(const struct op *o, uint32_t step);
uint64_t brought(const struct op *o, uint32_t step, int rank, uint32_t k); /* elements of a part; rows are of one element */
uint64_t part_for(const struct op *o, uint32_t step, int rank, int position); /* of an alltoall: elements for a member */
double value(const struct op *o, uint32_t step, int rank, uint32_t k, uint64_t i);
void put_value(char *at, uint32_t dtype, uint64_t i, double v);
double get_value(const char *at, uint32_t dtype, uint64_t i);
double reduced(const struct op *o, uint32_t step, uint32_t k, uint64_t i, const bool *present, bool active);
int position_in(const struct op *o, int rank); /* of a rank in its set, or -1 */
void expect(const struct op *o, uint32_t step, int rank, uint32_t k, uint64_t i, double got, double wanted);
#endif
