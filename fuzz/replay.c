/* replay.c - the corpus as a test: each file of fuzz/corpus/TARGET/ goes through the target once; a
 * small file also cut at every length. */
#include "fuzz/fuzz.h"
#include "base/map.h"
#include "base/mem.h"

#include <dirent.h>

enum { CUT_BELOW = 512 };

void fuzz_replay(const char *target, void (*fn)(const uint8_t *data, size_t n))
{
    char path[1024];
    int n_files = 0;
    struct dirent *f;
    snprintf(path, sizeof path, "fuzz/corpus/%s", target);
    DIR *d = opendir(test_path(path));
    CHECK_MSG(d, "%s is missing", path);
    while ((f = readdir(d))) {
        char *bytes;
        size_t n;
        err e = {0};
        if (f->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "fuzz/corpus/%s/%s", target, f->d_name);
        printf("  %s\n", path); /* shown if the target crashes */
        fflush(stdout);
        CHECK_OK(file_read_all(test_path(path), 64 << 20, &bytes, &n, &e), e);
        for (size_t cut = n < CUT_BELOW ? 0 : n; cut <= n; cut++) {
            uint8_t *copy = mem_alloc(cut); /* exact, so that sanitizers see an overrun */
            CHECK(copy);
            memcpy(copy, bytes, cut);
            fn(copy, cut);
            mem_free(copy);
        }
        mem_free(bytes);
        n_files++;
    }
    closedir(d);
    CHECK_MSG(n_files > 0, "fuzz/corpus/%s is empty", target);
}
