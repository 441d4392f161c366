/* A program with the preloaded allocator, linked to libc's malloc or to another one: what it asks for is what it gets.
 * Its argument says whether an arena may be attached ("alone") or must be refused ("beside"). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) \
    do { \
        if (!(what)) return fprintf(stderr, "line %d: %s\n", __LINE__, #what), 1; \
    } while (0)

enum { SIZE = 1 << 20, ARENA = 64 << 20 };
static char *arena, *end;
static void *take(void *core, uint64_t bytes) { (void)core; char *at = end; end += bytes; return end <= arena + ARENA ? at : NULL; }
static void give(void *core, void *memory) { (void)core, (void)memory; }
static bool inside(void *p) { return (char *)p >= arena && (char *)p < arena + ARENA; }
static bool filled(const char *p, char with) {
    for (int i = 0; i < SIZE; i++) if (p[i] != with) return false;
    return true;
}

static int ordinary(void) {
    for (size_t bytes = 1; bytes < (4 << 20); bytes = bytes * 3 + 1) {
        void *blocks[5], *last;
        blocks[0] = malloc(bytes), blocks[1] = calloc(1, bytes), blocks[2] = aligned_alloc(64, (bytes + 63) / 64 * 64);
        blocks[3] = memalign(64, bytes);
        CHECK(!posix_memalign(&blocks[4], 64, bytes));
        for (int i = 0; i < 5; i++) {
            CHECK(blocks[i] && malloc_usable_size(blocks[i]) >= bytes);
            memset(blocks[i], i, bytes);
            CHECK((last = realloc(blocks[i], 2 * bytes)) && ((char *)last)[bytes - 1] == i);
            free(last);
        }
        free(NULL);
        free(strdup("text"));
    }
    return 0;
}

static int child_answers(pid_t child) {
    int status = 0;
    return waitpid(child, &status, 0) == child && !status;
}

static int with_arena(void) {
    bool (*serve)(uint64_t);
    void (*detach)(void *);
    *(void **)&serve = dlsym(RTLD_DEFAULT, "hora_preload_serve");
    *(void **)&detach = dlsym(RTLD_DEFAULT, "hora_preload_detach");
    CHECK(serve(SIZE) && !serve(100));
    void *held, *freed, *moved;
    CHECK(!posix_memalign(&held, 64, SIZE) && !posix_memalign(&freed, 64, SIZE) && inside(held) && inside(freed));
    CHECK(!posix_memalign(&moved, 64, SIZE));
    memset(held, 'a', SIZE), memset(freed, 'b', SIZE), memset(moved, 'c', SIZE);
    free(freed);
    int told[2], asked[2];
    CHECK(!pipe(told) && !pipe(asked));
    pid_t child = fork();
    if (!child) {
        char go;
        memset(moved, 'x', SIZE); /* nobody else's business */
        if (write(told[1], "", 1) != 1 || read(asked[0], &go, 1) != 1) _exit(2); /* now the parent has written */
        if (!filled(held, 'a') || !filled(moved, 'x')) _exit(3);
        void *fresh, *again = realloc(moved, 2 * SIZE);
        if (!again || inside(again) || !filled(again, 'x')) _exit(4);
        if (posix_memalign(&fresh, 64, SIZE) || inside(fresh) || serve(SIZE)) _exit(5);
        memset(fresh, 'z', SIZE);
        pid_t grandchild = fork();
        if (!grandchild) _exit(filled(held, 'a') ? 0 : 1);
        if (!child_answers(grandchild)) _exit(6);
        free(held), free(fresh), free(again);
        detach(arena);
        _exit(ordinary());
    }
    char done;
    CHECK(read(told[0], &done, 1) == 1 && filled(held, 'a') && filled(moved, 'c'));
    memset(held, 'd', SIZE);
    CHECK(write(asked[1], "", 1) == 1 && child_answers(child) && filled(held, 'd') && filled(moved, 'c'));
    void *used_again;
    CHECK(!posix_memalign(&used_again, 64, SIZE) && used_again == freed);
    free(held), free(moved), free(used_again);
    detach(arena);
    return 0;
}

int main(int count, char **arguments) {
    bool (*attach)(char *, uint64_t, void *, void *(*)(void *, uint64_t), void (*)(void *, void *));
    bool expected = count > 1 && !strcmp(arguments[1], "alone");
    if (ordinary()) return 1;
    *(void **)&attach = dlsym(RTLD_DEFAULT, "hora_preload_attach");
    end = arena = mmap(NULL, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(attach && arena != MAP_FAILED && attach(arena, ARENA, arena, take, give) == expected);
    return (expected && with_arena()) || ordinary();
}
