/* The memory the workers share: its layout, and each rank's arena.
 *
 * The file is a memfd: it has no name, so whatever dies, the kernel frees it with its last user. It is sparse: only
 * touched pages exist. An arena is the part of it in which one rank allocates tensors that its peers can read and write.
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

uint64_t failure_bytes(int size) { return up(sizeof(struct failure) + (uint64_t)size * DESCRIPTION_BYTES, 64); }

struct failure *failure_at(struct core *c, uint64_t serial) {
    return (struct failure *)(c->base + c->header->at_failures + serial % FAILURES * failure_bytes(c->size));
}

static struct header layout(int size, uint32_t generation, uint64_t arena_bytes, int hosts) {
    struct header h = {.magic = HORA_MAGIC, .abi = HORA_ABI, .size = (uint32_t)size, .generation = generation};
    const uint64_t page = 4096;
    h.entry_count = size <= 8 ? MAX_ENTRIES : MAX_ENTRIES / 4;
    h.arena_bytes = up(arena_bytes, page);
    h.hosts = (uint32_t)hosts;
    h.inline_bytes = INLINE_BYTES;
    while (hosts > 1 && (uint64_t)size * h.inline_bytes > 8 * INLINE_BYTES) h.inline_bytes /= 2;
    h.entry_bytes = up(sizeof(struct entry) + (uint64_t)size * (sizeof(struct arrival) + 2 * h.inline_bytes), page);
    h.at_ranks = up(sizeof(struct header), page);
    h.at_sets = up(h.at_ranks + (uint64_t)size * sizeof(struct rank), page);
    h.at_failures = up(h.at_sets + MAX_SETS * sizeof(struct set), page);
    h.at_index = up(h.at_failures + FAILURES * failure_bytes(size), page);
    h.at_schedule = up(h.at_index + h.entry_count * sizeof(uint32_t), page);
    h.at_posts = up(h.at_schedule + (uint64_t)size * h.entry_count * sizeof(struct scheduled), page);
    h.at_slots = up(h.at_posts + (2 * (uint64_t)h.entry_count + 4 * MAX_RANKS) * sizeof(struct post), page);
    h.at_entries = up(h.at_slots + (uint64_t)size * SLOTS * CHUNK_BYTES, page);
    h.at_arenas = up(h.at_entries + h.entry_count * h.entry_bytes, page);
    h.segment_bytes = h.at_arenas + (uint64_t)size * h.arena_bytes;
    return h;
}

int hora_format(int fd, int size, uint32_t generation, uint64_t arena_bytes, int hosts, int host, const int32_t *host_of) {
    if (size < 1 || size > MAX_RANKS || hosts < 1 || hosts > size || host < 0 || host >= hosts) return -EINVAL;
    struct header h = layout(size, generation, arena_bytes, hosts);
    h.host = (uint32_t)host;
    h.leader = (uint32_t)size;
    for (int r = size - 1; r >= 0; r--) {
        h.host_of[r] = hosts > 1 ? (uint16_t)host_of[r] : 0;
        if (h.host_of[r] == host) h.leader = (uint32_t)r, h.here++;
    }
    if (ftruncate(fd, (off_t)h.segment_bytes) != 0) return -errno;
    return pwrite(fd, &h, sizeof h, 0) == (ssize_t)sizeof h ? 0 : -errno;
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

/* ---- arena: first fit over a sorted list of blocks; few and large, so a list will do ---- */

struct block { struct block *next; uint64_t at, bytes; };
enum { ALIGNMENT = 4096 };

void *arena_alloc(struct core *c, uint64_t bytes) {
    bytes = up(bytes ? bytes : 1, ALIGNMENT);
    void *memory = NULL;
    pthread_mutex_lock(&c->mine);
    struct block **link = &c->blocks;
    uint64_t at = 0;
    while (*link && (*link)->at - at < bytes) {
        at = (*link)->at + (*link)->bytes;
        link = &(*link)->next;
    }
    struct block *b = at + bytes <= c->header->arena_bytes ? malloc(sizeof *b) : NULL;
    if (b) {
        *b = (struct block){*link, at, bytes};
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
    for (struct block **link = &c->blocks; *link; link = &(*link)->next) {
        struct block *b = *link;
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
    while (c->blocks) {
        struct block *b = c->blocks;
        c->blocks = b->next;
        free(b);
    }
}

int64_t arena_offset(struct core *c, const void *memory, uint64_t bytes) {
    const char *start = arena_at(c, c->rank), *p = memory;
    if (p < start || p + bytes > start + c->header->arena_bytes) return -1;
    return p - start;
}
