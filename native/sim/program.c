/* Random programs (model.c) under the simulator: what the ranks do, what is looked at after it, and the command.
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
#include "hora.h"
#include "link.h"
#include "program.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

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
    uint32_t started_count, plan_count; /* plan_count: made before the first step */
    int64_t plans[OPS][VARIANTS], lies[OPS];
    struct plan *ready[OPS];
    char *in[OPS][PARTS], *out[OPS][PARTS];
    enum how_placed placed[OPS];
};

static int fds[HOSTS], links[HOSTS][HOSTS];
static struct seat seats[RANKS];
int FANOUT = 2; /* of the tree of hosts */
static struct work works[SCRIPTS][RANKS];
static char *pool;
static _Atomic size_t pool_used;
enum { POOL_BYTES = 4 << 20 };

/* ---- one thread of one rank ---- */

static char *from_pool(size_t bytes) {
    size_t at = atomic_fetch_add(&pool_used, (bytes + 63) & ~63ull);
    if (at + bytes > POOL_BYTES) abort();
    return pool + at;
}

/* Somebody leaves while others go on; or a connection is gone whose other end had said goodbye, which is taken for that. */
static bool somebody_leaves(void) { return has_quitter || (fault && sim_faults && hosts > 1); }

static _Atomic bool hurries; /* who leaves early does not wait for anybody */

/* A status that ends this rank's part: true. Anything that may not be is a failure. */
static bool ends(int rank, int status, const char *what) {
    if (status == OK) return false;
    bool may_abort = sim_faults && fault != NONE;
    if ((status == ABORTED && may_abort) || ((status == LEFT || status == CLOSED || status == FAILED) && somebody_leaves())) {
        seats[rank].over = true;
        return true;
    }
    char why[STATUS_BYTES] = "";
    int dead = hora_dead(seats[rank].core);
    if (status == ABORTED && dead >= 0) hora_status(seats[rank].core, dead, why, sizeof why);
    if (hurries && dead == victim && strstr(why, "could not wait any longer")) { /* with data on its way: that ends all, and says so */
        seats[rank].over = true;
        return true;
    }
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
    return hora_plan(seat->core, o->key + 1 + ((uint64_t)step << 40), 1ull << 62 | o->set, seat->sets[o->set],
                     (int)o->kind, (int)o->op, o->root, o->prescale, o->postscale, fingerprint, 1, 0, -1, (int)o->parts, segments, words, length);
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
        complete[i] = !script[0].epochs && !has_withdrawer && submitted[w->slot][step][op] == (uint32_t)member_count[script[w->slot].ops[op].set];
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
        if (complete[i] && sim_exact && !over(c) && t->state != DONE && !round_over(c, t) && !t->share_done)
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
        if (has_withdrawer && w->rank == victim && chance(4))
            while (hora_withdraw(c, started->ticket) == PENDING) {}
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
    if (code != MISMATCH && !somebody_leaves()) sim_fail("a mismatch was called %d", code);
}

/* What was withdrawn is submitted once more, with those who had not come yet, until all is done; true if this rank's part is
 * over. */
static bool submit_again(struct work *w, uint32_t step) {
    struct core *c = seats[w->rank].core;
    for (bool left = true; left;) {
        left = false;
        for (uint32_t i = 0; i < w->started_count; i++) {
            struct started *x = &w->started[i];
            int status = hora_wait(c, x->ticket, 50);
            left |= status == PENDING;
            if (status != FAILED || hora_failure_code(c, hora_failure(c, x->ticket)) != WITHDRAWN) continue;
            hora_release(c, x->ticket);
            if (x->plan >= 0) hora_drop(c, x->plan);
            x->ticket = submit(w, x->op, step, script[w->slot].liar[step][x->op] == w->rank, &x->plan);
            if (x->ticket < 0 && ends(w->rank, (int)-x->ticket, "hora_submit")) return true;
            left = true;
        }
        if (left) sim_sleep(100 * 1000); /* time passes only when nobody runs */
    }
    return false;
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
    if (has_withdrawer && submit_again(w, step)) return true;
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
            w->plan_count++;
            if (v < VARIANTS) w->plans[i][v] = plan;
            else w->lies[i] = plan;
        }
        if (o->again) w->ready[i] = hora_ready(seat->core, w->plans[i][0]);
    }
}

/* What was released is free again: a rank submits for weeks. */
static void check_nothing_leaks(int rank) {
    struct core *c = seats[rank].core;
    uint32_t plans = 0, wanted = 0;
    for (int slot = 0; slot < scripts; slot++)
        for (uint32_t i = 0; i < OPS; i++)
            if (works[slot][rank].ready[i] && chance(2)) { /* else it stays with hora_close */
                hora_drop(c, works[slot][rank].plans[i][0]);
                works[slot][rank].plan_count--;
            }
    for (uint32_t i = 0; i < c->ticket_count; i++) {
        struct ticket *t = c->tickets[i];
        if (t->state == FREE ? t->plan != NULL : t->state != OWNED) sim_fail("rank %d: ticket %u is in use at the end", rank, i);
    }
    for (uint32_t i = 0; i < c->plan_count; i++) plans += c->plans[i] != NULL;
    for (int slot = 0; slot < scripts; slot++) wanted += works[slot][rank].plan_count;
    if (plans != wanted) sim_fail("rank %d: %u plans are in use at the end in place of %u", rank, plans, wanted);
}

static void leave(int rank) {
    struct seat *seat = &seats[rank];
    int status;
    if (!seat->over && !fault && !dropping && !has_quitter && !has_straggler) check_nothing_leaks(rank);
    while ((status = hora_leave(seat->core)) == PENDING) {}
    if (!seat->over && !(fault && sim_faults)) ends(rank, status, "hora_leave");
    bool hurry = has_quitter && rank == victim && chance(2); /* and is gone while others still do things */
    if (hurry) hurries = true;
    for (int i = 0; i <= (hurry ? 2 : 50) && hora_linger(seat->core, i == (hurry ? 2 : 50) ? 0 : hurry ? 300 : 200000) == PENDING; i++) {}
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
    int64_t plan = hora_plan(c, 1ull << 60, 1ull << 62 | (uint64_t)w->rank, seats[w->rank].sets[0], ALLREDUCE, SUM, 0, 1, 1,
                             99, 1, 0, -1, 1, segment, "alone", 5);
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
    seat->core = hora_open(fds[host_of[w->rank]], w->rank, tuning.spin_us, tuning.cycle_us, tuning.fusion, tuning.capacity, tuning.split);
    if (!seat->core) {
        sim_fail("no core");
        return;
    }
    sim_watch(seat->core->base, seat->core->header->segment_bytes, host_of[w->rank]);
    if (hosts > 1 && seat->core->header->leader == (uint32_t)w->rank) {
        static const uint8_t keys[64 * HOSTS];
        if (hora_link(seat->core, links[host_of[w->rank]], keys, NULL, NULL)) sim_fail("no link");
    }
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
        int64_t plan = hora_plan(seat->core, 1ull << 61, 0, seat->sets[0], BARRIER, SUM, 0, 1, 1, 77, 1, 0, -1, 0, NULL, "end", 3);
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

/* All threads sleep: a host whose leader's thread does so although somebody knocked; -1 if there is none. */
int sim_slept_through(void) {
    for (int h = 0; h < hosts && hosts > 1; h++) {
        struct core *c = seats[h].core;
        struct link *l = c && !seats[h].closing ? c->link : NULL;
        if (l && l->runs && !atomic_load(&l->stop) && atomic_load(&c->header->knocked)) return h;
    }
    return -1;
}

static bool strike(void) {
    struct core *c = seats[victim].core;
    if (seats[victim].closing) return true;
    if (fault_where != ANYWHERE && !c) return false;
    if (fault_where == IN_LOCK && (c->header->lock & 0xffff) != (uint32_t)victim + 1) return false;
    if (fault_where == LEAVING && !peer_at(c, victim)->left) return false;
    if (fault_where != ANYWHERE && fault_later) return fault_later--, false;
    fault_step = sim_steps;
    struck = true;
    if (fault == KILL) sim_kill(victim);
    else if (fault == STOP) sim_stop(victim);
    else sim_network_cut();
    return true;
}

/* ---- after a schedule ---- */

static void check_segment(int h);
static void check_the_end(void) {
    for (int slot = 0; slot < scripts; slot++)
        for (uint32_t step = 0; step < script[slot].steps; step++)
            for (uint32_t i = 0; i < script[slot].op_count; i++) {
                const char *first = NULL;
                for (int r = 0; r < ranks; r++) {
                    if (seats[r].outcome[slot][step][i] != FAILED + 1 || !*seats[r].said[slot][step][i] || somebody_leaves()) continue;
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
    for (int h = 0; h < hosts; h++) check_segment(h);
}

static void check_segment(int h) {
    struct core whole = {.base = hora_map(fds[h]), .size = ranks};
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
    hurries = false;
    memset(works, 0, sizeof works);
    memset((void *)helpers_left, 0, sizeof helpers_left);
    pool_used = 0;
    struck = false;
    memset((void *)submitted, 0, sizeof submitted);
    make_program();
    FANOUT = 1 + (int)below(2);
    sim_network_begin();
    for (int h = 0; h < hosts; h++) {
        fds[h] = memfd_create("simulated", 0);
        if (fds[h] < 0 || hora_format(fds[h], ranks, 7, ARENA_BYTES, hosts, h, host_of)) abort();
        for (int k = 0; k < h; k++) { /* host h is led by rank h */
            int pair[2];
            sim_pair(pair, h, k);
            links[h][k] = pair[0], links[k][h] = pair[1];
        }
    }
    sim_watch(pool, POOL_BYTES, POOL);
    if (impatient || has_withdrawer) sim_faults = true;
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
            if (c->link) c->link->runs = false;
            hora_close(c);
        }
        if (c->arena_used) hora_unmap(c->base);
        for (struct plan *p = c->kept, *next; p; p = next) {
            next = p->next_kept;
            free(p->segments), free(p->description), free(p->own), free(p);
        }
        free(c);
    }
    for (int h = 0; h < hosts; h++) close(fds[h]);
    return !*sim_failure;
}

/* What is under way on each rank. */
static void describe_ranks(void) {
    if (hosts > 1) sim_network_describe();
    for (int r = 0; r < ranks; r++) {
        struct core *c = seats[r].core;
        if (!c || seats[r].closing) continue;
        struct rank *k = rank_at(c, r);
        printf("rank %d: schedule %llu of %llu, helpers %u, pending %u, executor %s%s\n", r, (unsigned long long)c->next,
               (unsigned long long)k->tail, c->helpers, c->pending, k->executor_wanted ? "wanted" : "not wanted",
               k->executor_asleep ? " and asleep" : "");
        if (hosts > 1)
            printf("  on host %d: joined %u, quiet %u, join round %llu, posts %llu to %llu, posted %u, left %u; a lost host %d\n", host_of[r],
                   c->header->joined_count, c->header->quiet, (unsigned long long)c->header->join_round,
                   (unsigned long long)c->header->post_head, (unsigned long long)c->header->post_tail, c->header->posted, peer_at(c, r)->left,
                   c->link && c->link->lost_ns ? c->link->lost_host : -1);
        if (c->link && c->link->lost_ns) printf("  %s\n", words_at(c, c->link->lost_host)->lost);
        for (int h = 0; c->link && h < hosts; h++)
            printf("  line to host %d: open %d, queued %zu to %zu, blocked %d, read ahead %zu to %zu, frame %d of %u bytes at %zu\n", h,
                   c->link->lines[h].open, c->link->lines[h].queue_at, c->link->lines[h].queued, c->link->lines[h].blocked,
                   c->link->lines[h].ahead_at, c->link->lines[h].ahead_end, c->link->lines[h].in_head, c->link->lines[h].in.bytes,
                   c->link->lines[h].in_at);
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
            static const char *faults[] = {"none", "killed", "stopped", "a connection cut"};
            printf("%d ranks on %d hosts, %d sets, %d threads each, %u epochs with join; fault: %s, of rank %d at step %llu%s%s%s%s\n", ranks, hosts,
                   set_count, scripts, script[0].epochs, faults[fault], victim, (unsigned long long)fault_step,
                   comes_back ? ", comes back" : "", impatient ? "; impatient" : "", has_quitter ? "; somebody leaves early" : "",
                   has_straggler ? "; somebody waits for ever" : has_withdrawer ? "; somebody withdraws" : "");
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
