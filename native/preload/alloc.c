/* Gradients that are born in shared memory.
 *
 * `hora run` preloads this library into its workers. It does nothing until the core attaches its arena and the optimizer
 * says which sizes its gradients have; from then on a block of exactly such a size comes from the arena, where the host's
 * other workers can reach it, so that an allreduce copies nothing. Blocks that are freed are kept for the next step, which
 * also spares their page faults. Everything else goes to the C library as ever.
 *
 * Only posix_memalign serves from the arena, because that is what tensor libraries call; free, realloc and
 * malloc_usable_size must know such blocks. A forked child shares the arena's pages with its parent: it takes none.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

extern void *__libc_memalign(size_t, size_t);
extern void *__libc_malloc(size_t);
extern void *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

enum { MAX_SIZES = 1024, BUCKETS = 4096, KEPT = 64, PAGE = 4096, LEAST = 64 << 10 };

struct kind { uint64_t bytes; uint32_t kept; void *blocks[KEPT]; };

static struct {
    _Atomic(char *) low, high; /* of the arena; null if there is none */
    atomic_bool serving;
    void *owner;
    void *(*take)(void *owner, uint64_t bytes);
    void (*give)(void *owner, void *memory);
    uint16_t *kind_of_page; /* of a block's first page: index + 1 */
    struct kind kinds[MAX_SIZES];
    uint16_t bucket[BUCKETS]; /* by size: index + 1 */
    uint32_t count;
    pthread_mutex_t lock;
} arena = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool inside(const void *memory) {
    char *low = atomic_load_explicit(&arena.low, memory_order_relaxed);
    return low && (const char *)memory >= low &&
           (const char *)memory < atomic_load_explicit(&arena.high, memory_order_relaxed);
}

static uint64_t page_of(const void *memory) { return (uint64_t)((const char *)memory - arena.low) / PAGE; }

static uint16_t *bucket_of(uint64_t bytes) {
    uint32_t at = (uint32_t)(bytes * 0x9e3779b97f4a7c15ull >> 52);
    while (arena.bucket[at] && arena.kinds[arena.bucket[at] - 1].bytes != bytes) at = (at + 1) % BUCKETS;
    return &arena.bucket[at];
}

static void *serve(uint64_t bytes) {
    pthread_mutex_lock(&arena.lock);
    uint16_t number = arena.owner ? *bucket_of(bytes) : 0;
    struct kind *k = number ? &arena.kinds[number - 1] : NULL;
    void *memory = NULL;
    if (k && k->kept) memory = k->blocks[--k->kept];
    else if (k && (memory = arena.take(arena.owner, bytes))) arena.kind_of_page[page_of(memory)] = number;
    pthread_mutex_unlock(&arena.lock);
    return memory;
}

static void keep(void *memory) {
    if (!atomic_load(&arena.serving)) return; /* detached, or a forked child: the mapping goes with the process */
    pthread_mutex_lock(&arena.lock);
    if (!arena.owner) {
        pthread_mutex_unlock(&arena.lock);
        return;
    }
    uint16_t number = arena.kind_of_page[page_of(memory)];
    struct kind *k = number ? &arena.kinds[number - 1] : NULL;
    if (k && k->kept < KEPT) {
        k->blocks[k->kept++] = memory;
    } else {
        arena.kind_of_page[page_of(memory)] = 0;
        arena.give(arena.owner, memory);
    }
    pthread_mutex_unlock(&arena.lock);
}

static uint64_t size_of(const void *memory) {
    uint16_t number = arena.kind_of_page[page_of(memory)];
    return number ? arena.kinds[number - 1].bytes : 0;
}

/* ---- what the C library is asked for ---- */

API int posix_memalign(void **out, size_t alignment, size_t bytes) {
    if (atomic_load_explicit(&arena.serving, memory_order_relaxed) && bytes >= LEAST && alignment <= PAGE) {
        void *memory = serve(bytes);
        if (memory) {
            *out = memory;
            return 0;
        }
    }
    if (alignment % sizeof(void *) || (alignment & (alignment - 1)) || !alignment) return EINVAL;
    void *memory = __libc_memalign(alignment, bytes);
    if (!memory) return ENOMEM;
    *out = memory;
    return 0;
}

API void free(void *memory) {
    if (inside(memory)) keep(memory);
    else __libc_free(memory);
}

API void *realloc(void *memory, size_t bytes) {
    if (!inside(memory)) return __libc_realloc(memory, bytes);
    void *other = __libc_malloc(bytes);
    if (other) {
        uint64_t before = size_of(memory);
        memcpy(other, memory, before < bytes ? before : bytes);
        keep(memory);
    }
    return other;
}

API size_t malloc_usable_size(void *memory) {
    static size_t (*original)(void *);
    if (inside(memory)) return size_of(memory);
    if (!original) {
        extern void *dlsym(void *, const char *);
        *(void **)&original = dlsym((void *)-1l, "malloc_usable_size"); /* RTLD_NEXT */
    }
    return original ? original(memory) : 0;
}

/* ---- what the core says ---- */

static void stop_after_fork(void) { atomic_store(&arena.serving, false); }

API bool hora_preload_attach(char *low, uint64_t bytes, void *owner, void *(*take)(void *, uint64_t),
                             void (*give)(void *, void *)) {
    static atomic_bool registered;
    if (arena.low) return false; /* one arena a process, for its whole life: blocks of it may live as long */
    arena.kind_of_page = calloc(bytes / PAGE + 1, sizeof *arena.kind_of_page);
    if (!arena.kind_of_page) return false;
    arena.owner = owner;
    arena.take = take;
    arena.give = give;
    atomic_store(&arena.high, low + bytes);
    atomic_store(&arena.low, low);
    if (!atomic_exchange(&registered, true)) pthread_atfork(NULL, NULL, stop_after_fork);
    return true;
}

/* Serve blocks of this size from now on; false if there are too many sizes, or it is too small to be worth it. */
API bool hora_preload_serve(uint64_t bytes) {
    if (bytes < LEAST) return false;
    pthread_mutex_lock(&arena.lock);
    uint16_t *number = bucket_of(bytes);
    if (!*number && arena.count < MAX_SIZES) {
        arena.kinds[arena.count++].bytes = bytes;
        *number = (uint16_t)arena.count;
    }
    bool known = *number != 0 && arena.owner;
    if (known) atomic_store(&arena.serving, true);
    pthread_mutex_unlock(&arena.lock);
    return known;
}

/* The arena's owner goes. `unmapped`: no block of it is in use, and its addresses may become somebody else's. */
API void hora_preload_detach(void *owner, bool unmapped) {
    if (arena.owner != owner) return;
    pthread_mutex_lock(&arena.lock);
    atomic_store(&arena.serving, false);
    arena.owner = NULL; /* blocks that live on are still recognised, and nothing more is done with them */
    if (!unmapped) {
        pthread_mutex_unlock(&arena.lock);
        return;
    }
    for (uint32_t i = 0; i < arena.count; i++) arena.kinds[i].kept = 0;
    atomic_store(&arena.low, NULL);
    __libc_free(arena.kind_of_page);
    arena.kind_of_page = NULL;
    pthread_mutex_unlock(&arena.lock);
}
