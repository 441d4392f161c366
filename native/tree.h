/* What hosts tell each other to agree, and where each stands in the tree that it goes through. See tree.c and hosts.c. */
#ifndef HORA_TREE_H
#define HORA_TREE_H
#include "link.h"

#ifndef HORA_SIMULATED
enum { FANOUT = 4, MAX_NUMBERS = 1 << 16 };
#else
extern int FANOUT; /* of a schedule: sim/program.c */
enum { MAX_NUMBERS = 6 };
#endif
enum { MOST_CHILDREN = 8, OWN = MOST_CHILDREN, PARTS_OF_A_HOST }; /* parts: the subtree of each child, and this host's ranks */

/* Of what is told. Those of the first line hold if they do for all; of the second, if for any. */
enum {
    TELL_INLINED = 1, TELL_BODY = 2, TELL_AGAIN = 4, TELL_ALL = 7,
    TELL_UNNAMED = 8, TELL_DISAGREE = 16, TELL_LINES = 32, TELL_ACTIVE = 64,
    TELL_NOTE = 128, /* of a decision: unnamed operations from different lines were paired */
};

/* What an operation is. A number stands for all of it, once it was agreed on twice. */
struct summary { uint64_t key[2], set, fingerprint, line; uint32_t kind, op, flags, number; };
/* FRAME_TELL: of a subtree; then uint64_t[absent]: members there that have joined; then what was brought */
struct told { struct summary is; uint32_t hosts, absent, brought, pad; };
/* FRAME_DECIDE: then uint64_t[absent], what was brought, what was said (struct said), a text */
struct decision { struct summary is; uint32_t code, absent, brought, brought_bytes, said_bytes, text; };
struct go { uint32_t number, after; }; /* FRAME_GO: its order is that of the frame and so many more */

/* A growing piece of memory, and a place in one. */
struct pack { char *data; size_t bytes, room; };
struct view { const char *at, *end; };
void add(struct pack *p, const void *data, size_t bytes); /* padded to 8 bytes */
const void *next(struct view *v, size_t bytes);           /* NULL if there are not so many */

struct known_set {
    struct known_set *next;
    uint64_t key;
    uint32_t count, wanted;            /* parts that have members, as bits */
    uint32_t hosts[PARTS_OF_A_HOST];   /* of each part, that have members */
    bool told_up;
    uint64_t *bits;
    uint16_t members[];
};

/* An operation that has a number, and where this host has it. */
struct known { struct summary is; struct known_set *set; uint64_t stamp; uint32_t entry, next_number; };

struct known *known_at(struct link *l, uint32_t number); /* NULL if there is none */
struct known_set *set_here(struct link *l, uint32_t set);

/* What this host says, to itself as a part of the tree. */
/* seen: l->seen when that was looked at */
void tell_ready(struct link *l, uint32_t number, uint64_t seen);
void tell_arrival(struct link *l, struct known_set *s, const struct told *t, uint64_t seen, struct view rest);
void tell_up(struct link *l, enum frame_type type, const void *body, size_t bytes); /* towards the first host */
uint64_t carried_out(struct link *l); /* the last decision that was, here */
bool flush(struct link *l);     /* what is to go out together; whether there was anything */

/* hosts.c: the same for this host, in the agreed order */
struct agreed { uint32_t number; uint64_t order; };
void carry_out(struct link *l, const struct agreed *all, uint32_t count);
void decided(struct link *l, uint64_t order, struct view v);
void left(struct link *l, int rank);
void cut_off(struct link *l, int host);
void all_joined(struct link *l, int last);
void answer(struct link *l, const uint64_t *key);
#endif
