/* Whose numbers are not finite: after an allreduce every rank knows who brought the first inf or nan, and where.
 *
 * One rank's nan is, after the reduction, everybody's. The kernels notice it in the results for almost nothing; only then,
 * and while they are still there, are the inputs of that block looked at, and what is found is written into the entry:
 * for each rank the first place. The shares of an operation are summed by different ranks, so the first of all wins.
 * Between hosts whoever sums a share finds out through which host; where several ranks of it had been summed before, they have
 * found out through whom. Then all hosts tell each other what they found, and only then is such an operation over.
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

/* Of a round: the first place by the rank that brought it, and after them of a sum that is too large. Apart from the entries,
 * because mostly nothing is ever written there. */
static _Atomic uint64_t *blames_of(struct core *c, struct entry *e, uint64_t round) {
    uint64_t places = (uint64_t)c->size + 1;
    return (_Atomic uint64_t *)(c->base + c->header->at_blames) + (2 * (uint64_t)number_of(c, e) + (round & 1)) * places;
}

/* A block of results is not finite: find out through whom. If through nobody, the sum is too large. */
void blame(struct core *c, struct entry *e, uint64_t round, uint32_t segment, uint64_t element, const int *ranks,
           const void *const *in, int n, const void *out, uint64_t count, int dtype) {
    _Atomic uint64_t *first = blames_of(c, e, round);
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
        note(&first[c->size], place_of(segment, element + at, is_nan(out, at, dtype)));
    }
    atomic_store(&e->blemished[round & 1], 1);
}

/* The same for elements of a run, which is all segments of one type in a row (carry.c). Some of the inputs are sums of several
 * ranks, of whom it is found out elsewhere: their rank is -1. */
void blame_run(struct core *c, struct entry *e, uint64_t round, uint64_t element, const int *ranks, const void *const *in, int n,
               const void *out, uint64_t count, int dtype) {
    struct task *t = task_of(c, e, round);
    uint64_t begins = 0, item = item_bytes[dtype];
    if (t->op > SUM || t->kind != ALLREDUCE) return;
    for (uint32_t k = 0; k < t->segment_count; k++) {
        if ((int)t->segments[k].dtype != dtype) continue;
        uint64_t ends = begins + t->segments[k].count, low = begins > element ? begins : element;
        uint64_t high = ends < element + count ? ends : element + count;
        begins = ends;
        if (low >= high || first_not_finite((const char *)out + (low - element) * item, 0, high - low, dtype) == high - low) continue;
        const void *from[n];
        int known[n], m = 0;
        bool somebody = false;
        for (int i = 0; i < n; i++) {
            from[m] = (const char *)in[i] + (low - element) * item;
            known[m] = ranks[i];
            if (ranks[i] >= 0) m++;
            else somebody |= first_not_finite(from[m], 0, high - low, dtype) < high - low;
        }
        uint64_t before = atomic_load(&blames_of(c, e, round)[c->size]);
        blame(c, e, round, k, low - (ends - t->segments[k].count), known, from, m, (const char *)out + (low - element) * item, high - low, dtype);
        if (somebody) atomic_store(&blames_of(c, e, round)[c->size], before); /* not too large: a sum was bad already */
    }
}

/* What was found here, for the other hosts: pairs of a rank (or one more than there are) and its place; how many. */
uint32_t blamed(struct core *c, struct entry *e, uint64_t round, uint64_t (*pairs)[2]) {
    uint32_t n = 0;
    for (int r = 0; r <= c->size; r++) {
        uint64_t place = atomic_load(&blames_of(c, e, round)[r]);
        if (!place) continue;
        pairs[n][0] = (uint64_t)r, pairs[n++][1] = place;
    }
    return n;
}

void blame_too(struct core *c, struct entry *e, uint64_t round, uint64_t rank, uint64_t place) {
    if (rank > (uint64_t)c->size || !place) return;
    note(&blames_of(c, e, round)[rank], place);
    atomic_store(&e->blemished[round & 1], 1);
}

/* A round closes: what was written two rounds ago is read by nobody any more. */
void forget_blame(struct core *c, struct entry *e, uint64_t round) {
    if (!atomic_exchange(&e->blemished[round & 1], 0)) return;
    memset((void *)blames_of(c, e, round), 0, ((size_t)c->size + 1) * sizeof(uint64_t));
}

/* A round is over: how it went, for its ticket, which keeps what was found. */
uint32_t verdict(struct core *c, struct ticket *t, uint32_t status) {
    struct entry *e = entry_at(c, t->entry);
    if (status == OK && atomic_load(&e->blemished[t->round & 1])) {
        t->not_finite = malloc(((size_t)c->size + 1) * sizeof *t->not_finite);
        for (int r = 0; t->not_finite && r <= c->size; r++) t->not_finite[r] = blames_of(c, e, t->round)[r];
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
