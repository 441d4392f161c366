/* The memory the workers share: its layout, the heap, and each rank's arena.
 *
 * The file is a memfd: it has no name, so whatever dies, the kernel frees it with its last user. It is sparse: only
 * touched pages exist. So what is rarely used (failures, last words, whose numbers were not finite) lies apart from what
 * always is, and what has no size of its own is in the heap. Of ranks on other hosts there are a few bytes.
 * An arena is the part of it in which one rank allocates tensors that its peers can read and write.
 */
#include "core.h"
#include "hora.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static uint64_t up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

static struct header layout(int size, int here, uint32_t generation, uint64_t arena_bytes, int hosts) {
    struct header h = {.magic = HORA_MAGIC, .abi = HORA_ABI, .size = (uint32_t)size, .generation = generation};
    const uint64_t page = 4096, n = (uint64_t)size, m = (uint64_t)here;
    h.here = (uint32_t)here;
    h.entry_count = size <= 8 ? MAX_ENTRIES : MAX_ENTRIES / 4;
    h.arena_bytes = up(arena_bytes, page);
    h.hosts = (uint32_t)hosts;
    h.bit_words = (uint32_t)(n + 63) / 64;
    h.inline_bytes = INLINE_BYTES;
    while (hosts > 1 && h.inline_bytes > 8 && n * h.inline_bytes > 8 * INLINE_BYTES) h.inline_bytes /= 2;
    h.entry_bytes = up(sizeof(struct entry) + m * (sizeof(struct arrival) + 2 * sizeof(struct block)) + 2 * h.bit_words * 8, 64);
    h.set_bytes = up(sizeof(struct set) + m * (sizeof(word) + 2) + n * 4, 64);
    h.at_places = up(sizeof(struct header), page);
    h.at_peers = up(h.at_places + n * sizeof(struct place), 64);
    h.at_words = up(h.at_peers + n * sizeof(struct peer), page);
    h.at_ranks = up(h.at_words + n * sizeof(struct words), page);
    h.at_sets = up(h.at_ranks + m * sizeof(struct rank), page);
    h.at_failures = up(h.at_sets + MAX_SETS * h.set_bytes, page);
    h.at_index = up(h.at_failures + FAILURES * sizeof(struct failure), page);
    h.at_schedule = up(h.at_index + h.entry_count * sizeof(uint32_t), page);
    h.at_posts = up(h.at_schedule + m * h.entry_count * sizeof(struct scheduled), page);
    h.at_blames = up(h.at_posts + (2 * (uint64_t)h.entry_count + 4 * m) * sizeof(struct post), page);
    h.at_entries = up(h.at_blames + 2 * (uint64_t)h.entry_count * (n + 1) * sizeof(uint64_t), page);
    h.at_slots = up(h.at_entries + h.entry_count * h.entry_bytes, page);
    h.at_heap = up(h.at_slots + m * SLOTS * CHUNK_BYTES, page);
    h.at_arenas = up(h.at_heap + HEAP_BYTES, page);
    h.heap_used = BLOCK_BYTES; /* 0 is none */
    h.segment_bytes = h.at_arenas + m * h.arena_bytes;
    return h;
}

int hora_format(int fd, int size, uint32_t generation, uint64_t arena_bytes, int hosts, int host, const int32_t *host_of) {
    if (size < 1 || size > MAX_RANKS || hosts < 1 || hosts > size || hosts > MAX_HOSTS || host < 0 || host >= hosts) return -EINVAL;
    struct place *places = calloc((size_t)size, sizeof *places);
    if (!places) return -ENOMEM;
    int here = 0, leader = size;
    for (int r = 0; r < size; r++) {
        places[r] = (struct place){hosts > 1 ? (uint16_t)host_of[r] : 0, -1};
        if (places[r].host != host) continue;
        if (leader == size) leader = r;
        places[r].here = (int16_t)here++;
    }
    int error = here < 1 || here > MAX_HERE ? EINVAL : 0;
    if (!error) {
        struct header h = layout(size, here, generation, arena_bytes, hosts);
        h.host = (uint32_t)host;
        h.leader = (uint32_t)leader;
        size_t bytes = (size_t)size * sizeof *places;
        if (ftruncate(fd, (off_t)h.segment_bytes) || pwrite(fd, places, bytes, (off_t)h.at_places) != (ssize_t)bytes ||
            pwrite(fd, &h, sizeof h, 0) != (ssize_t)sizeof h)
            error = errno ? errno : EIO;
    }
    free(places);
    return -error;
}

void *hora_map(int fd) {
    struct header h;
    if (pread(fd, &h, sizeof h, 0) != (ssize_t)sizeof h || h.magic != HORA_MAGIC || h.abi != HORA_ABI) return NULL;
    char *base = mmap(NULL, h.segment_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) return NULL;
    madvise(base, h.segment_bytes, MADV_DONTDUMP);
    return base;
}

void hora_unmap(void *base) {
    if (base) munmap(base, ((struct header *)base)->segment_bytes);
}

/* ---- heap: pieces of 64 bytes and its powers of two, guarded by the table's lock ---- */

static uint32_t size_of(uint64_t bytes) { /* which power */
    uint32_t size = 0;
    while (((uint64_t)BLOCK_BYTES << size) < bytes) size++;
    return size;
}

void give_back(struct core *c, struct block *b) {
    struct header *h = c->header;
    if (!b->room) return;
    uint32_t size = size_of(b->room);
    *(uint32_t *)heap_at(c, b->at) = h->free_blocks[size];
    h->free_blocks[size] = b->at;
    *b = (struct block){0, 0};
}

bool fit(struct core *c, struct block *b, uint64_t bytes) {
    struct header *h = c->header;
    if (b->room >= bytes) return true;
    uint32_t size = size_of(bytes);
    if (size >= BLOCK_SIZES) return false;
    uint32_t at = h->free_blocks[size];
    if (at) {
        h->free_blocks[size] = *(uint32_t *)heap_at(c, at);
    } else {
        uint64_t taken = (uint64_t)BLOCK_BYTES << size;
        if (h->heap_used + taken > HEAP_BYTES) return false;
        at = (uint32_t)(h->heap_used / BLOCK_BYTES);
        h->heap_used += taken;
    }
    give_back(c, b);
    *b = (struct block){at, BLOCK_BYTES << size};
    return true;
}

/* ---- arena: first fit over a sorted list of extents; few and large, so a list will do ---- */

struct extent { struct extent *next; uint64_t at, bytes; };
enum { ALIGNMENT = 4096 };

void *arena_alloc(struct core *c, uint64_t bytes) {
    bytes = up(bytes ? bytes : 1, ALIGNMENT);
    void *memory = NULL;
    pthread_mutex_lock(&c->mine);
    struct extent **link = &c->extents;
    uint64_t at = 0;
    while (*link && (*link)->at - at < bytes) {
        at = (*link)->at + (*link)->bytes;
        link = &(*link)->next;
    }
    struct extent *b = at + bytes <= c->header->arena_bytes ? malloc(sizeof *b) : NULL;
    if (b) {
        *b = (struct extent){*link, at, bytes};
        *link = b;
        memory = arena_at(c, c->rank) + at;
        c->arena_used += bytes;
    }
    pthread_mutex_unlock(&c->mine);
    return memory;
}

/* The same for who holds c->mine. */
void arena_give(struct core *c, void *memory) {
    uint64_t at = (uint64_t)((char *)memory - arena_at(c, c->rank));
    if (at >= c->header->arena_bytes) return; /* of another generation */
    for (struct extent **link = &c->extents; *link; link = &(*link)->next) {
        struct extent *b = *link;
        if (b->at != at) continue;
        *link = b->next;
        c->arena_used -= b->bytes;
        madvise(memory, b->bytes, MADV_REMOVE); /* give the pages back */
        free(b);
        break;
    }
}

void arena_free(struct core *c, void *memory) {
    pthread_mutex_lock(&c->mine);
    arena_give(c, memory);
    pthread_mutex_unlock(&c->mine);
}

void arena_close(struct core *c) {
    while (c->extents) {
        struct extent *b = c->extents;
        c->extents = b->next;
        free(b);
    }
}

int64_t arena_offset(struct core *c, const void *memory, uint64_t bytes) {
    const char *start = arena_at(c, c->rank), *p = memory;
    if (p < start || p + bytes > start + c->header->arena_bytes) return -1;
    return p - start;
}
