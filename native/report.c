/* What can be said about it all: timeline events, failures, last words, and who waits for what. */
#include "core.h"
#include "hora.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVENTS = 1 << 16 };

/* ---- timeline ---- */

void trace(struct core *c, enum trace what, struct plan *p, int rank, uint64_t time_ns, uint64_t detail) {
    if (!atomic_load_explicit(&c->tracing, memory_order_relaxed) || !p) return;
    pthread_mutex_lock(&c->trace_lock);
    if (c->events && c->event_head - c->event_tail < EVENTS)
        c->events[c->event_head++ % EVENTS] =
            (struct event){time_ns ? time_ns : now_ns(), p->number, (uint16_t)what, (uint16_t)rank, detail};
    pthread_mutex_unlock(&c->trace_lock);
}

void hora_trace(struct core *c, int on) {
    VISIT(c, );
    pthread_mutex_lock(&c->trace_lock);
    if (on && !c->events) c->events = malloc(EVENTS * sizeof *c->events);
    atomic_store(&c->tracing, on != 0);
    pthread_mutex_unlock(&c->trace_lock);
}

int64_t hora_events(struct core *c, char *out, int64_t room) {
    VISIT(c, 0);
    int64_t n = 0;
    pthread_mutex_lock(&c->trace_lock);
    for (; n < room && c->event_tail < c->event_head; n++)
        memcpy(out + n * (int64_t)sizeof(struct event), &c->events[c->event_tail++ % EVENTS], sizeof(struct event));
    pthread_mutex_unlock(&c->trace_lock);
    return n;
}

void trace_agreement(struct core *c, struct ticket *t) {
    if (!atomic_load_explicit(&c->tracing, memory_order_relaxed)) return;
    struct entry *e = entry_at(c, t->entry);
    struct set *s = set_at(c, e->set);
    uint64_t last = 0;
    for (uint32_t m = 0; m < s->count; m++) {
        int r = members_of(c, s)[m];
        if (!has(contributors_of(c, e, t->round), r)) continue;
        uint64_t at = 0; /* of another host's: it is known now */
        if (is_here(c, r)) at = atomic_load_explicit(&arrival_at(c, e, r)->time_ns, memory_order_relaxed);
        trace(c, TRACE_ARRIVED, t->plan, r, at, 0);
        last = at > last ? at : last;
    }
    trace(c, TRACE_AGREED, t->plan, c->rank, last, 0);
}

/* ---- failures ---- */

static bool is_rank(struct core *c, int rank) { return rank >= 0 && rank < c->size; }

uint64_t hora_failure(struct core *c, int64_t ticket) {
    VISIT(c, 0);
    struct ticket *t = ticket_of(c, ticket);
    return t ? t->failure : 0;
}

static struct failure *failure_of(struct core *c, uint64_t failure) {
    struct failure *f = failure ? failure_at(c, failure - 1) : NULL;
    return f && f->serial == failure - 1 ? f : NULL;
}

int hora_failure_code(struct core *c, uint64_t failure) {
    VISIT(c, 0);
    struct failure *f = failure_of(c, failure);
    return f ? (int)f->code : 0;
}

static int copy_out(const char *from, size_t length, char *out, int room) {
    if ((int)length >= room) length = (size_t)room - 1;
    memcpy(out, from, length);
    out[length] = 0;
    return (int)length;
}

int hora_failure_said(struct core *c, uint64_t failure, int rank, char *out, int room) {
    VISIT(c, 0);
    if (!is_rank(c, rank)) return 0;
    struct failure *f = failure_of(c, failure);
    int length = 0;
    uint64_t at = 0, end = f && f->said_bytes <= f->said.room ? f->said_bytes : 0;
    while (at + sizeof(struct said) <= end) {
        struct said *group = (struct said *)((char *)heap_at(c, f->said.at) + at);
        uint64_t names = (group->ranks * sizeof(uint16_t) + 7) & ~7ull, words = (group->bytes + 7ull) & ~7ull;
        const uint16_t *ranks = (const uint16_t *)(group + 1);
        at += sizeof *group + names + words;
        for (uint32_t i = 0; at <= end && i < group->ranks; i++)
            if (ranks[i] == rank) length = copy_out((const char *)ranks + names, group->bytes, out, room);
    }
    return failure_of(c, failure) ? length : 0; /* 0: many failures later, its place was taken meanwhile */
}

int hora_failure_text(struct core *c, uint64_t failure, char *out, int room) {
    VISIT(c, 0);
    struct failure *f = failure_of(c, failure);
    int length = f ? copy_out(f->text, strnlen(f->text, TEXT_BYTES), out, room) : 0;
    return failure_of(c, failure) ? length : 0;
}

int hora_fail(struct core *c, uint32_t entry, uint64_t stamp, int code, const char *text) {
    VISIT(c, CLOSED);
    if (!is_entry(c, entry)) return PENDING;
    int status = lock(c);
    if (status) return status;
    struct entry *e = entry_at(c, entry);
    bool open = e->stamp == stamp && e->arrived;
    if (open) fail_everywhere(c, e, (enum failure_code)code, text);
    unlock(c);
    return open ? OK : PENDING;
}

/* ---- last words ---- */

int hora_status(struct core *c, int rank, char *out, int room) {
    VISIT(c, 0);
    if (!is_rank(c, rank)) return 0;
    struct words *r = words_at(c, rank);
    return copy_out(r->status, strnlen(r->status, STATUS_BYTES), out, room);
}

void hora_say(struct core *c, int rank, const char *text) {
    VISIT(c, );
    if (is_rank(c, rank)) snprintf(words_at(c, rank)->text, TEXT_BYTES, "%s", text);
}

int hora_said(struct core *c, int rank, char *out, int room) {
    VISIT(c, 0);
    if (!is_rank(c, rank)) return 0;
    struct words *r = words_at(c, rank);
    return copy_out(r->text, strnlen(r->text, TEXT_BYTES), out, room);
}

/* ---- snapshot ---- */

struct writer { char *at, *end; int64_t wanted; };

static void write_bytes(struct writer *w, const void *from, size_t n) {
    w->wanted += (int64_t)n;
    if (w->at + n <= w->end) memcpy(w->at, from, n), w->at += n;
}

static void write_number(struct writer *w, int64_t value) { write_bytes(w, &value, sizeof value); }

/* Numbers of 8 bytes: progress, who holds the lock if it was not to be had, else -1, ranks, then for each its state, pid, threads [n, ids], waits [n, (thread, entry, stamp)],
 * then operations, for each its entry, stamp, age in ns, kind, members [n, ranks], arrivals [n, (rank, length, bytes)].
 * Without the lock it has no operations. Nothing at all if this generation is over. */
int64_t hora_snapshot(struct core *c, char *out, int64_t room) {
    VISIT(c, 0);
    struct writer w = {out, out + room, 0};
    int status = lock(c);
    if (status && status != PENDING) return 0;
    write_number(&w, (int64_t)atomic_load(&c->header->progress));
    write_number(&w, status ? hora_holder(c) : -1);
    write_number(&w, c->size);
    for (int r = 0; r < c->size; r++) {
        write_number(&w, (int64_t)atomic_load(&peer_at(c, r)->state));
        if (!is_here(c, r)) {
            for (int i = 0; i < 3; i++) write_number(&w, 0);
            continue;
        }
        struct rank *k = rank_at(c, r);
        int64_t waits = 0, threads = atomic_load(&k->thread_count);
        write_number(&w, atomic_load(&k->pid));
        write_number(&w, threads);
        for (int64_t i = 0; i < threads; i++) write_number(&w, atomic_load(&k->threads[i]));
        for (int i = 0; i < MAX_WAITS; i++) waits += atomic_load(&k->waits[i].used) != 0;
        write_number(&w, waits);
        for (int i = 0; waits && i < MAX_WAITS; i++) {
            uint32_t thread = atomic_load(&k->waits[i].used);
            if (!thread) continue;
            write_number(&w, thread);
            write_number(&w, atomic_load(&k->waits[i].entry));
            write_number(&w, (int64_t)atomic_load(&k->waits[i].stamp));
            waits--;
        }
        for (; waits > 0; waits--) write_number(&w, 0), write_number(&w, -1), write_number(&w, 0);
    }
    int64_t open = 0;
    for (uint32_t i = 0; !status && i < c->header->used_entries; i++) open += entry_at(c, i)->arrived != 0;
    write_number(&w, open);
    for (uint32_t i = 0; !status && i < c->header->used_entries; i++) {
        struct entry *e = entry_at(c, i);
        if (!e->arrived) continue;
        struct set *s = set_at(c, e->set);
        write_number(&w, i);
        write_number(&w, (int64_t)e->stamp);
        write_number(&w, (int64_t)(now_ns() - e->first_arrival_ns));
        write_number(&w, task_of(c, e, atomic_load(&e->round))->kind);
        write_number(&w, s->count);
        for (uint32_t m = 0; m < s->count; m++) write_number(&w, members_of(c, s)[m]);
        write_number(&w, e->arrived);
        for (int r = 0; r < c->size; r++) {
            if (!is_here(c, r) || !arrived(c, e, r)) continue;
            struct arrival *a = arrival_at(c, e, r);
            write_number(&w, r);
            write_number(&w, a->description_length);
            write_bytes(&w, description_of(c, a), a->description_length);
        }
    }
    if (!status) unlock(c);
    return w.wanted <= room ? w.wanted : -w.wanted;
}

int hora_reduce(char *out, const void *const *in, int n, uint64_t count, int dtype, int op, double prescale,
                double postscale, double divisor) {
    return reduce(out, in, n, count, dtype, op, prescale, postscale, divisor);
}

void hora_narrow(uint16_t *out, const float *in, uint64_t count, int dtype) { narrow(out, in, count, dtype); }
void hora_widen(float *out, const uint16_t *in, uint64_t count, int dtype) { widen(out, in, count, dtype); }
