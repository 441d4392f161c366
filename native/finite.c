/* Whose numbers are not finite: after an allreduce every rank knows who brought the first inf or nan, and where.
 *
 * One rank's nan is, after the reduction, everybody's. The kernels notice it in the results for almost nothing; only then,
 * and while they are still there, are the inputs of that block looked at, and what is found is written into the entry:
 * for each rank the first place. The shares of an operation are summed by different ranks, so the first of all wins.
 */
#include "core.h"
#include "hora.h"
#include <stdlib.h>
#include <string.h>

static bool is_nan(const void *in, uint64_t at, int dtype) { /* of something that is inf or nan */
    switch (dtype) {
    case FLOAT16: return ((const uint16_t *)in)[at] & 0x3ff;
    case BFLOAT16: return ((const uint16_t *)in)[at] & 0x7f;
    case FLOAT32: return ((const float *)in)[at] != ((const float *)in)[at];
    default: return ((const double *)in)[at] != ((const double *)in)[at];
    }
}

/* Places are ordered by segment, then element, and carry what is there; 0 is none. See hora_not_finite. */
static uint64_t place_of(uint32_t segment, uint64_t element, bool nan) {
    return ((uint64_t)segment << 48 | element << 1 | nan) + 1;
}

static void note(_Atomic uint64_t *first, uint64_t place) {
    uint64_t known = atomic_load(first);
    while ((!known || place < known) && !atomic_compare_exchange_weak(first, &known, place)) {}
}

/* A block of results is not finite: find out through whom. If through nobody, the sum is too large. */
void blame(struct entry *e, uint64_t round, uint32_t segment, uint64_t element, const int *ranks, const void *const *in,
           int n, const void *out, uint64_t count, int dtype) {
    _Atomic uint64_t *first = e->not_finite[round & 1];
    bool somebody = false;
    for (int i = 0; i < n; i++) {
        uint64_t known = atomic_load(&first[ranks[i]]);
        uint64_t at = first_not_finite(in[i], 0, count, dtype);
        if (at == count) continue;
        somebody = true;
        if (!known || known > place_of(segment, element, false))
            note(&first[ranks[i]], place_of(segment, element + at, is_nan(in[i], at, dtype)));
    }
    if (!somebody) {
        uint64_t at = first_not_finite(out, 0, count, dtype);
        note(&first[MAX_RANKS], place_of(segment, element + at, is_nan(out, at, dtype)));
    }
    atomic_store(&e->blemished[round & 1], 1);
}

/* A round closes: what was written two rounds ago is read by nobody any more. */
void forget_blame(struct entry *e, uint64_t round) {
    if (!atomic_exchange(&e->blemished[round & 1], 0)) return;
    memset((void *)e->not_finite[round & 1], 0, sizeof e->not_finite[0]);
}

/* A round is over: how it went, for its ticket, which keeps what was found. */
uint32_t verdict(struct core *c, struct ticket *t, uint32_t status) {
    struct entry *e = entry_at(c, t->entry);
    if (status == OK && atomic_load(&e->blemished[t->round & 1])) {
        t->not_finite = malloc(((size_t)c->size + 1) * sizeof *t->not_finite);
        for (int r = 0; t->not_finite && r < c->size; r++) t->not_finite[r] = e->not_finite[t->round & 1][r];
        if (t->not_finite) t->not_finite[c->size] = e->not_finite[t->round & 1][MAX_RANKS];
        status = NOT_FINITE;
    }
    return (status == OK || status == NOT_FINITE) && t->failure ? SUSPICIOUS : status;
}

int hora_not_finite(struct core *c, int64_t ticket, uint64_t *places) {
    VISIT(c, 0);
    struct ticket *t = ticket_of(c, ticket);
    if (!t || !t->not_finite) return 0;
    memcpy(places, t->not_finite, ((size_t)c->size + 1) * sizeof *places);
    return 1;
}
