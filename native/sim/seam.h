/* The seam between the core and the simulator, included before everything else when the core is compiled for it.
 *
 * The core's sources are the same. What reaches the system goes to the simulator instead: futexes, mutexes, threads, the
 * clock, yielding and sleeping, by the names below. What reaches memory goes there through the compiler: the sources are
 * compiled with -fsanitize=thread, and simulate.c has the functions which that calls at every atomic step and at every
 * access to memory, in place of the sanitizer's own.
 */
#ifndef HORA_SEAM_H
#define HORA_SEAM_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef HORA_CROWD /* crowd.c: sizes as they are, and one thread */
#define HORA_SIMULATED 1
#endif

long sim_syscall(long number, ...);
int sim_mutex_init(pthread_mutex_t *m, const pthread_mutexattr_t *attributes);
int sim_mutex_lock(pthread_mutex_t *m);
int sim_mutex_trylock(pthread_mutex_t *m);
int sim_mutex_unlock(pthread_mutex_t *m);
int sim_thread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument);
int sim_thread_join(pthread_t thread, void **result);
int sim_clock_gettime(clockid_t clock, struct timespec *t);
int sim_nanosleep(const struct timespec *t, struct timespec *left);
int sim_yield(void);
/* network.c */
ssize_t sim_sendmsg(int fd, const struct msghdr *m, int flags);
ssize_t sim_recvmsg(int fd, struct msghdr *m, int flags);
ssize_t sim_sendto(int fd, const void *data, size_t bytes, int flags, const struct sockaddr *address, socklen_t length);
ssize_t sim_recv(int fd, void *data, size_t bytes, int flags);
int sim_socket(int family, int kind, int protocol);
int sim_bind(int fd, const struct sockaddr *address, socklen_t length);
int sim_epoll_create(int flags);
int sim_epoll_ctl(int poller, int what, int fd, struct epoll_event *e);
int sim_epoll_wait(int poller, struct epoll_event *events, int room, int timeout_ms);
int sim_close(int fd);
int sim_shutdown(int fd, int how);
void *sim_memcpy(void *to, const void *from, size_t bytes);
void *sim_memset(void *to, int value, size_t bytes);
int sim_memcmp(const void *a, const void *b, size_t bytes);

#define syscall sim_syscall
#define pthread_mutex_init sim_mutex_init
#define pthread_mutex_lock sim_mutex_lock
#define pthread_mutex_trylock sim_mutex_trylock
#define pthread_mutex_unlock sim_mutex_unlock
#define pthread_create sim_thread_create
#define pthread_join sim_thread_join
#define pthread_setname_np(thread, name) ((void)(name))
#define pthread_sigmask(how, set, before) ((void)(set), (void)(before))
#define clock_gettime sim_clock_gettime
#define nanosleep sim_nanosleep
#define sched_yield sim_yield
#define sendmsg sim_sendmsg
#define recvmsg sim_recvmsg
#define sendto sim_sendto
#define recv sim_recv
#define socket sim_socket
#define bind sim_bind
#define epoll_create1 sim_epoll_create
#define epoll_ctl sim_epoll_ctl
#define epoll_wait sim_epoll_wait
#define close sim_close
#define shutdown sim_shutdown
#undef memcpy
#undef memset
#undef memcmp
#define memcpy sim_memcpy
#define memset sim_memset
#define memcmp sim_memcmp
#ifndef HORA_CROWD /* what is one thread's own is kept in a section, whose contents change with the thread */
#define __thread __attribute__((section("sim_local")))
#endif
#endif
