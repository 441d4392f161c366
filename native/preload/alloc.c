/* Gradients that are born in shared memory.
 *
 * `hora run` preloads this library into its workers. It does nothing until the core attaches its arena and the optimizer
 * says which sizes its gradients have; from then on a block of exactly such a size comes from the arena, where the host's
 * other workers can reach it, so that an allreduce copies nothing. Blocks that are freed are kept for the next step, which
 * also spares their page faults. Everything else goes to the C library as ever.
 *
 * Only posix_memalign serves from the arena, because that is what tensor libraries call; free, realloc and
 * malloc_usable_size must know such blocks. A forked child shares the arena's pages with its parent: it takes none.
 *
 * A process has one arena after another, one a generation. An arena whose generation is over is *retired*: its blocks are
 * recognised as long as any lives, and their pages given back to the system when they are freed.
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
#include <sys/mman.h>

#define API __attribute__((visibility("default")))

extern void *__libc_memalign(size_t, size_t);
extern void *__libc_malloc(size_t);
extern void *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

enum { MAX_SIZES = 1024, BUCKETS = 4096, KEPT = 64, MAX_ARENAS = 64, PAGE = 4096, LEAST = 64 << 10 };

struct kind { uint64_t bytes; uint32_t kept; void *blocks[KEPT]; };

struct arena {
    _Atomic(char *) low, high; /* null if this place is free */
    uint16_t *kind_of_page;    /* of a block's first page: index + 1 */
};

static struct arena arenas[MAX_ARENAS];
static _Atomic uint32_t arena_count; /* places that were ever used */
static struct arena *current;        /* serves blocks; null if there is none */
static atomic_bool serving, forked;
static void *owner; /* of the current one */
static void *(*take)(void *owner, uint64_t bytes);
static void (*give)(void *owner, void *memory);
static struct kind kinds[MAX_SIZES];
static uint16_t bucket[BUCKETS]; /* by size: index + 1 */
static uint32_t kind_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct arena *arena_of(const void *memory) {
    for (uint32_t i = 0, n = atomic_load_explicit(&arena_count, memory_order_relaxed); i < n; i++) {
        char *low = atomic_load_explicit(&arenas[i].low, memory_order_relaxed);
        if (low && (const char *)memory >= low &&
            (const char *)memory < atomic_load_explicit(&arenas[i].high, memory_order_relaxed))
            return &arenas[i];
    }
    return NULL;
}

static uint16_t *kind_at(struct arena *a, const void *memory) {
    return &a->kind_of_page[(uint64_t)((const char *)memory - a->low) / PAGE];
}

static uint16_t *bucket_of(uint64_t bytes) {
    uint32_t at = (uint32_t)(bytes * 0x9e3779b97f4a7c15ull >> 52);
    while (bucket[at] && kinds[bucket[at] - 1].bytes != bytes) at = (at + 1) % BUCKETS;
    return &bucket[at];
}

static void *serve(uint64_t bytes) {
    pthread_mutex_lock(&lock);
    uint16_t number = current ? *bucket_of(bytes) : 0;
    struct kind *k = number ? &kinds[number - 1] : NULL;
    void *memory = NULL;
    if (k && k->kept) memory = k->blocks[--k->kept];
    else if (k && (memory = take(owner, bytes))) *kind_at(current, memory) = number;
    pthread_mutex_unlock(&lock);
    return memory;
}

static uint64_t size_of(struct arena *a, const void *memory) {
    uint16_t number = *kind_at(a, memory);
    return number ? kinds[number - 1].bytes : 0;
}

static void keep(struct arena *a, void *memory) {
    if (atomic_load(&forked)) return; /* the pages are the parent's */
    pthread_mutex_lock(&lock);
    uint16_t *number = kind_at(a, memory);
    struct kind *k = *number ? &kinds[*number - 1] : NULL;
    if (a != current) {
        if (k) madvise(memory, (k->bytes + PAGE - 1) / PAGE * PAGE, MADV_REMOVE);
        *number = 0;
    } else if (k && k->kept < KEPT) {
        k->blocks[k->kept++] = memory;
    } else {
        *number = 0;
        give(owner, memory);
    }
    pthread_mutex_unlock(&lock);
}

/* ---- what the C library is asked for ---- */

API int posix_memalign(void **out, size_t alignment, size_t bytes) {
    if (atomic_load_explicit(&serving, memory_order_relaxed) && bytes >= LEAST && alignment <= PAGE) {
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
    struct arena *a = arena_of(memory);
    if (a) keep(a, memory);
    else __libc_free(memory);
}

API void *realloc(void *memory, size_t bytes) {
    struct arena *a = arena_of(memory);
    if (!a) return __libc_realloc(memory, bytes);
    void *other = __libc_malloc(bytes);
    if (other) {
        uint64_t before = size_of(a, memory);
        memcpy(other, memory, before < bytes ? before : bytes);
        keep(a, memory);
    }
    return other;
}

API size_t malloc_usable_size(void *memory) {
    static size_t (*original)(void *);
    struct arena *a = arena_of(memory);
    if (a) return size_of(a, memory);
    if (!original) {
        extern void *dlsym(void *, const char *);
        *(void **)&original = dlsym((void *)-1l, "malloc_usable_size"); /* RTLD_NEXT */
    }
    return original ? original(memory) : 0;
}

/* ---- what the core says ---- */

static void stop_after_fork(void) {
    atomic_store(&serving, false);
    atomic_store(&forked, true);
}

/* Serve from this arena; false if there is another, or too many live on. */
API bool hora_preload_attach(char *low, uint64_t bytes, void *core, void *(*core_take)(void *, uint64_t),
                             void (*core_give)(void *, void *)) {
    static atomic_bool registered;
    uint16_t *kind_of_page = calloc(bytes / PAGE + 1, sizeof *kind_of_page);
    pthread_mutex_lock(&lock);
    uint32_t place = 0;
    while (place < MAX_ARENAS && arenas[place].low) place++;
    bool fits = !current && kind_of_page && place < MAX_ARENAS && !atomic_load(&forked);
    if (fits) {
        struct arena *a = current = &arenas[place];
        a->kind_of_page = kind_of_page;
        owner = core, take = core_take, give = core_give;
        atomic_store(&a->high, low + bytes);
        atomic_store(&a->low, low);
        if (place == arena_count) atomic_store(&arena_count, place + 1);
    }
    pthread_mutex_unlock(&lock);
    if (!fits) __libc_free(kind_of_page);
    if (!atomic_exchange(&registered, true)) pthread_atfork(NULL, NULL, stop_after_fork);
    return fits;
}

/* Serve blocks of this size from now on; false if there are too many sizes, or it is too small to be worth it. */
API bool hora_preload_serve(uint64_t bytes) {
    if (bytes < LEAST) return false;
    pthread_mutex_lock(&lock);
    uint16_t *number = bucket_of(bytes);
    if (!*number && kind_count < MAX_SIZES) {
        kinds[kind_count++].bytes = bytes;
        *number = (uint16_t)kind_count;
    }
    bool known = *number != 0 && current && !atomic_load(&forked);
    if (known) atomic_store(&serving, true);
    pthread_mutex_unlock(&lock);
    return known;
}

/* The core goes: it gets back what is not in use, and its arena retires. */
API void hora_preload_detach(void *core) {
    if (owner != core) return;
    pthread_mutex_lock(&lock);
    atomic_store(&serving, false);
    for (uint32_t i = 0; i < kind_count; i++)
        while (kinds[i].kept) {
            void *memory = kinds[i].blocks[--kinds[i].kept];
            *kind_at(current, memory) = 0;
            give(owner, memory);
        }
    current = NULL;
    owner = NULL;
    pthread_mutex_unlock(&lock);
}

/* A retired arena of which no block is in use: its addresses may become somebody else's. */
API void hora_preload_forget(char *low) {
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < arena_count; i++) {
        if (arenas[i].low != low || &arenas[i] == current) continue;
        atomic_store(&arenas[i].low, NULL);
        __libc_free(arenas[i].kind_of_page);
        arenas[i].kind_of_page = NULL;
    }
    pthread_mutex_unlock(&lock);
}
