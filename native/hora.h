/* What Python calls. Every function is safe to call from any thread, also during hora_close and after it, when it does
 * nothing; those that wait take a bound in microseconds. Whatever needs the table's lock may answer PENDING: it was not
 * to be had, hora_holder says who holds it, and the call is to be made again. */
#ifndef HORA_H
#define HORA_H
#include <stdint.h>

#define API __attribute__((visibility("default")))

struct core;
struct fabric;

/* The segment: format a file for the workers of one host, of which there are several if `hosts` is more than one: then
 * `size` counts the workers of all, and host_of says where each is; returns 0 or -errno. */
API int hora_abi(void);
API int hora_format(int fd, int size, uint32_t generation, uint64_t arena_bytes, int hosts, int host, const int32_t *host_of);

/* Take a place in it. rank -1 only looks on (the launcher, to say how a worker ended). NULL if it is not a segment. */
API struct core *hora_open(int fd, int rank, int64_t spin_us, int64_t cycle_us, uint64_t fusion_bytes,
                           uint64_t cache_capacity, int split_groups);
API int hora_watch(struct core *c, const int32_t *pids);  /* notice the death of these processes, by rank; 0 or an errno */
/* On the lowest rank of each of several hosts: connections to the others' (descriptors by host, -1 for this one), which
 * the core owns from now on, whatever it answers but EINVAL, and 32 bytes of key for each direction of each (out, then in); 0 or an
 * errno: then the core can only be closed. With a fabric, which
 * the core owns then too, data goes to its addresses. */
API int hora_link(struct core *c, const int32_t *fds, const uint8_t *keys, struct fabric *fabric, const char *const *addresses);
/* UCX, from this library, on these devices ("": its choice): NULL, or a fabric to link with; its version or why there is none
 * is in `said`. The address by which others reach it: its length, which may be more than there is room for, or -1. */
API struct fabric *hora_fabric_open(const char *library, const char *devices, char *said, int room);
API int hora_fabric_address(struct fabric *f, char *out, int room);
API void hora_fabric_close(struct fabric *f);
/* Before it closes: wait until all ranks here have left, and the other hosts too; 0, or PENDING. With 0 it waits for nobody: who is
 * left here, and the other hosts, are told that it goes. */
API int hora_linger(struct core *c, int64_t timeout_us);
API int hora_pin(struct core *c, int core_number);        /* keep the executor on one processor; 0 or an errno */
API int hora_leave(struct core *c);                       /* shut down in good order */
API void hora_close(struct core *c);                      /* sends away who waits (CLOSED), then frees */
API int hora_holder(struct core *c);                      /* the rank that holds the table's lock, or -1 */
API uint32_t hora_generation(struct core *c);

/* Process sets: the number of the set with these members (ascending), made if new; or minus a status. */
API int hora_set(struct core *c, const int32_t *members, int count);

/* A plan is what this rank means by a name; segments are (dtype, count, row) triples. The key is the name's; of a part of a
 * group that has several, key1 is key0 of the first of them, whose failure is the failure of all. */
API int64_t hora_plan(struct core *c, uint64_t key0, uint64_t key1, int set, int kind, int op, int root, double prescale,
                      double postscale, uint64_t fingerprint, uint64_t line, int unnamed, int wire,
                      int segment_count, const uint64_t *segments, const char *description, int description_length);
API void hora_drop(struct core *c, int64_t plan);

/* Submit: a ticket, or minus a status. Wait: a status. Now: both at once for an operation of one segment. */
API int64_t hora_submit(struct core *c, int64_t plan, char **in, char **out, const int64_t *meta, int meta_count);
API int64_t hora_submit_one(struct core *c, int64_t plan, char *in, char *out);
API int hora_done(struct core *c, int64_t ticket);
API int hora_wait(struct core *c, int64_t ticket, int64_t timeout_us);
API void hora_help(struct core *c); /* do what was agreed on and can be done in place, without waiting for anybody */
API int hora_finish(struct core *c, int64_t ticket, int64_t timeout_us); /* wait, and release it if that went well */
/* For operations of one segment that are repeated in place and must cost little: a plan made ready for it, and the whole
 * of it in one call: 0, or ticket << 8 | status; with bit 62 set there is no ticket. */
API struct plan *hora_ready(struct core *c, int64_t plan);
API int64_t hora_again(struct plan *p, char *memory);
API void hora_release(struct core *c, int64_t ticket);
API int hora_withdraw(struct core *c, int64_t ticket); /* fail it on all ranks, if somebody is still missing */
API void hora_unblock(struct core *c); /* this thread gave up waiting */

/* What an allgather or alltoall brought: the caller owns the memory (hora_free); received: bytes from each member. */
API void *hora_take(struct core *c, int64_t ticket, int segment, int64_t *received);
API void hora_free(void *memory);

/* Failures: the serial of a ticket's failure or note (0: none); what each rank said; the text. */
API uint64_t hora_failure(struct core *c, int64_t ticket);
API int hora_failure_code(struct core *c, uint64_t failure);
API int hora_failure_said(struct core *c, uint64_t failure, int rank, char *out, int room);
API int hora_failure_text(struct core *c, uint64_t failure, char *out, int room);
API int hora_fail(struct core *c, uint32_t entry, uint64_t stamp, int code, const char *text);

/* Of a ticket whose wait answered NOT_FINITE or SUSPICIOUS: 1 if a result is inf or nan. places[r], for each rank and one
 * more, is 0, or 1 + (segment << 48 | element << 1 | it is nan): the first inf or nan that rank r brought; the last one is
 * of a sum that is too large although all that was brought is finite. The same on every rank. */
API int hora_not_finite(struct core *c, int64_t ticket, uint64_t *places);

/* Join: the number of the round of join() that this rank is in now, or minus a status. Then wait until all have joined
 * that round: PENDING, ABORTED, CLOSED, LEFT, or OK with the last rank to join in *last. */
API int64_t hora_join(struct core *c, int average_active);
API int hora_join_wait(struct core *c, int64_t round, int64_t timeout_us, int *last);

/* Deaths and last words. */
API int hora_dead(struct core *c); /* the first rank that died, or -1 */
API void hora_mark_dead(struct core *c, int rank, const char *status);
API int hora_state(struct core *c, int rank);
API int hora_status(struct core *c, int rank, char *out, int room);
API void hora_say(struct core *c, int rank, const char *text); /* its last exception: this rank's, or one's elsewhere */
API int hora_said(struct core *c, int rank, char *out, int room);

/* Everything about who waits for what, for Python to read; returns the bytes written, or minus the bytes needed. */
API int64_t hora_snapshot(struct core *c, char *out, int64_t room);
API int hora_waiting(struct core *c); /* operations of this rank in flight */

/* Memory that peers can reduce in place. */
API int hora_shares(struct core *c, void *memory, uint64_t bytes); /* is this such memory? */
API int hora_serve(uint64_t bytes); /* let blocks of exactly this size be such memory, where the allocator is preloaded */
API void *hora_alloc(struct core *c, uint64_t bytes);
API void hora_dealloc(struct core *c, void *memory);

/* Timeline events since the last call; see struct event. */
API void hora_trace(struct core *c, int on);
API int64_t hora_events(struct core *c, char *out, int64_t room_events);

/* A half type from float, rounded to nearest, and back. */
API void hora_narrow(uint16_t *out, const float *in, uint64_t count, int dtype);
API void hora_widen(float *out, const uint16_t *in, uint64_t count, int dtype);

/* The kernels alone; 1 if a result is inf or nan. */
API int hora_reduce(char *out, const void *const *in, int n, uint64_t count, int dtype, int op, double prescale,
                    double postscale, double divisor);
#endif
