/* Gradients that are allocated in shared memory.
 *
 * `hora run` preloads this library into its workers. It does nothing until the core attaches its arena and the optimizer
 * says which sizes its gradients have; from then on a block of exactly such a size comes from the arena, where the host's
 * other workers can reach it, so that an allreduce copies nothing. Blocks that are freed are kept for the next step, which
 * also spares their page faults. Everything else goes to whoever would have been asked without this library.
 *
 * Only posix_memalign serves from the arena, because that is what tensor libraries call; free, realloc and
 * malloc_usable_size must know such blocks. A program may bring an allocator of its own (jemalloc, tcmalloc): then calls
 * are passed on to that one, and no arena is attached.
 *
 * A forked child has what it would have without an arena: it takes none of its blocks, and of those in use at the fork it
 * has copies of its own, which neither it nor its parent can change for the other.
 *
 * A process has one arena after another, one a generation. An arena whose generation is over is *retired*: its blocks are
 * recognised as long as any lives, and their pages given back to the system when they are freed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <gnu/libc-version.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define API __attribute__((visibility("default")))

/* Who is asked for everything else: whose functions come next after ours, which need not be the C library's. */
static struct {
    int (*posix_memalign)(void **, size_t, size_t);
    void *(*realloc)(void *, size_t);
    size_t (*malloc_usable_size)(void *);
    void (*free)(void *); /* the last to be found */
} next;

/* False only while dlsym itself asks for memory, in the process's first moment. */
__attribute__((constructor(101))) static bool find_next(void) {
    static bool looking;
    if (next.free) return true;
    if (looking) return false;
    looking = true;
    *(void **)&next.posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
    *(void **)&next.realloc = dlsym(RTLD_NEXT, "realloc");
    *(void **)&next.malloc_usable_size = dlsym(RTLD_NEXT, "malloc_usable_size");
    *(void **)&next.free = dlsym(RTLD_NEXT, "free");
    looking = false;
    return next.free != NULL;
}

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
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP; /* held over a fork, in which others may free */

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

static uint64_t whole_pages(uint64_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

static void keep(struct arena *a, void *memory) {
    if (atomic_load(&forked)) { /* a copy, or nothing */
        madvise(memory, whole_pages(size_of(a, memory)), MADV_DONTNEED);
        return;
    }
    pthread_mutex_lock(&lock);
    uint16_t *number = kind_at(a, memory);
    struct kind *k = *number ? &kinds[*number - 1] : NULL;
    if (a != current) {
        if (k) madvise(memory, whole_pages(k->bytes), MADV_REMOVE);
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
    return find_next() ? next.posix_memalign(out, alignment, bytes) : ENOMEM;
}

API void free(void *memory) {
    struct arena *a = arena_of(memory);
    if (a) keep(a, memory);
    else if (find_next()) next.free(memory);
}

API void *realloc(void *memory, size_t bytes) {
    struct arena *a = arena_of(memory);
    if (!a) return find_next() ? next.realloc(memory, bytes) : NULL;
    void *other = malloc(bytes);
    if (other) {
        uint64_t before = size_of(a, memory);
        memcpy(other, memory, before < bytes ? before : bytes);
        keep(a, memory);
    }
    return other;
}

API size_t malloc_usable_size(void *memory) {
    struct arena *a = arena_of(memory);
    if (a) return size_of(a, memory);
    return find_next() ? next.malloc_usable_size(memory) : 0;
}

/* ---- forks: an arena is memory that processes share, and a child must not share it ---- */

struct copied { char *block; uint64_t bytes; };

static struct {
    char *memory; /* the blocks in use, one after another, and before them the list of these; null if there are none */
    uint64_t bytes;
    struct copied *list;
    uint32_t count;
    bool failed; /* no memory to copy to: the child goes without them */
} snapshot;

static bool in_use(uint16_t number, const void *memory) {
    if (!number) return false;
    for (uint32_t i = 0; i < kinds[number - 1].kept; i++)
        if (kinds[number - 1].blocks[i] == memory) return false;
    return true;
}

static void each_in_use(void (*visit)(char *block, uint64_t bytes)) {
    for (uint32_t i = 0; i < arena_count; i++) {
        char *low = arenas[i].low;
        if (!low) continue;
        for (uint64_t page = 0; low + page * PAGE < arenas[i].high; page++) {
            uint16_t number = arenas[i].kind_of_page[page];
            if (in_use(number, low + page * PAGE)) visit(low + page * PAGE, whole_pages(kinds[number - 1].bytes));
        }
    }
}

static void count_block(char *block, uint64_t bytes) {
    (void)block;
    snapshot.bytes += bytes, snapshot.count++;
}

static void copy_block(char *block, uint64_t bytes) {
    memcpy(snapshot.memory + snapshot.bytes, block, bytes);
    snapshot.list[snapshot.count++] = (struct copied){block, bytes};
    snapshot.bytes += bytes;
}

static void leave_out(char *block, uint64_t bytes) { madvise(block, bytes, MADV_DONTFORK); }
static void leave_in(char *block, uint64_t bytes) { madvise(block, bytes, MADV_DOFORK); }

static void before_fork(void) {
    if (atomic_load(&forked)) return;
    pthread_mutex_lock(&lock);
    memset(&snapshot, 0, sizeof snapshot);
    each_in_use(count_block);
    if (!snapshot.count) return;
    uint64_t listed = whole_pages(snapshot.count * sizeof *snapshot.list);
    void *memory = mmap(NULL, listed + snapshot.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    snapshot.failed = memory == MAP_FAILED;
    if (snapshot.failed) {
        each_in_use(leave_out);
        return;
    }
    snapshot.memory = memory, snapshot.list = memory;
    snapshot.bytes = listed, snapshot.count = 0;
    each_in_use(copy_block);
}

static void after_fork_in_parent(void) {
    if (atomic_load(&forked)) return;
    if (snapshot.memory) munmap(snapshot.memory, snapshot.bytes);
    if (snapshot.failed) each_in_use(leave_in);
    pthread_mutex_unlock(&lock);
}

/* Put the copies where the blocks are. */
static void after_fork_in_child(void) {
    if (atomic_exchange(&forked, true)) return;
    atomic_store(&serving, false);
    char *from = snapshot.memory + (snapshot.memory ? whole_pages(snapshot.count * sizeof *snapshot.list) : 0);
    for (uint32_t i = 0; snapshot.memory && i < snapshot.count; i++) {
        struct copied *c = &snapshot.list[i];
        mremap(from, c->bytes, c->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, c->block);
        from += c->bytes;
    }
}

/* ---- what the core says ---- */

static void *object_of(void *address) {
    Dl_info about;
    return address && dladdr(address, &about) ? about.dli_fbase : NULL;
}

/* Whether memory comes from the C library and nobody else, and goes back through us. Else a block of the arena could be
 * freed by an allocator that does not know it. */
static bool alone(void) {
    static const char *libc_has[] = {"malloc", "calloc", "memalign", "aligned_alloc"};
    static const char *we_have[] = {"free", "realloc", "posix_memalign", "malloc_usable_size"};
    /* Not by __libc_malloc: tcmalloc has that too. */
    void *libc = object_of((void *)gnu_get_libc_version), *us = object_of((void *)arenas);
    for (int i = 0; i < 4; i++)
        if (object_of(dlsym(RTLD_DEFAULT, libc_has[i])) != libc || object_of(dlsym(RTLD_DEFAULT, we_have[i])) != us)
            return false;
    return true;
}

/* Serve from this arena; false if there is another, too many live on, or another allocator is at work. */
API bool hora_preload_attach(char *low, uint64_t bytes, void *core, void *(*core_take)(void *, uint64_t),
                             void (*core_give)(void *, void *)) {
    static atomic_bool registered;
    if (atomic_load(&forked) || !alone()) return false;
    uint16_t *kind_of_page = calloc(bytes / PAGE + 1, sizeof *kind_of_page);
    pthread_mutex_lock(&lock);
    uint32_t place = 0;
    while (place < MAX_ARENAS && arenas[place].low) place++;
    bool fits = !current && kind_of_page && place < MAX_ARENAS;
    if (fits) {
        struct arena *a = current = &arenas[place];
        a->kind_of_page = kind_of_page;
        owner = core, take = core_take, give = core_give;
        atomic_store(&a->high, low + bytes);
        atomic_store(&a->low, low);
        if (place == arena_count) atomic_store(&arena_count, place + 1);
    }
    pthread_mutex_unlock(&lock);
    if (!fits) free(kind_of_page);
    if (!atomic_exchange(&registered, true)) pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
    return fits;
}

/* Serve blocks of this size from now on; false if there are too many sizes, or it is too small to be worth it. */
API bool hora_preload_serve(uint64_t bytes) {
    if (bytes < LEAST || atomic_load(&forked)) return false;
    pthread_mutex_lock(&lock);
    uint16_t *number = bucket_of(bytes);
    if (!*number && kind_count < MAX_SIZES) {
        kinds[kind_count++].bytes = bytes;
        *number = (uint16_t)kind_count;
    }
    bool known = *number != 0 && current;
    if (known) atomic_store(&serving, true);
    pthread_mutex_unlock(&lock);
    return known;
}

/* The core goes: it gets back what is not in use, and its arena retires. */
API void hora_preload_detach(void *core) {
    if (owner != core || atomic_load(&forked)) return;
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
    if (atomic_load(&forked)) return;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < arena_count; i++) {
        if (arenas[i].low != low || &arenas[i] == current) continue;
        atomic_store(&arenas[i].low, NULL);
        free(arenas[i].kind_of_page);
        arenas[i].kind_of_page = NULL;
    }
    pthread_mutex_unlock(&lock);
}
