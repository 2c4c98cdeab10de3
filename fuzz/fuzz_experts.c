/* fuzz_experts.c - any bytes as FILE.experts, the counts of a model with two layers of experts.
 *
 * The target first makes the checksum right and takes the file for that of its model, because
 * nearly every input would end there. A file is read as it is, or refused with a reason, all counts
 * 0.
 */
#include "fuzz/fuzz.h"
#include "base/hash.h"
#include "engine/expert_file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { KEY_AT = 18, TAIL = 8, EXPERTS = 3, OTHERS = 2, LENGTH = 30 + 2 * 8 + 5 * 8 + TAIL };

FUZZ(experts)
{
    uint64_t count[EXPERTS + OTHERS] = {1, 2, 3, 4, 5}, sum = 0;
    const expert_counts l[2] = {{0, EXPERTS, count}, {5, OTHERS, count + EXPERTS}};
    char path[64];
    err e = {0};
    int fd = memfd_create("experts", MFD_CLOEXEC);
    uint8_t *copy = malloc(n ? n : 1);
    fuzz_check(fd >= 0 && copy, "no memory");
    memcpy(copy, data, n);
    if (n >= TAIL)
        fuzz_put64(copy + n - TAIL, hash64(copy, n - TAIL));
    fuzz_check(write(fd, copy, n) == (ssize_t)n, "no memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    uint64_t key = n >= KEY_AT + 8 ? fuzz_get64(copy + KEY_AT) : 0;
    status st = expert_file_read(path, key, l, 2, &e);
    for (int i = 0; i < EXPERTS + OTHERS; i++)
        sum |= count[i];
    if (st)
        fuzz_check(st == E_FORMAT && *e.text && !sum, "refused without a reason, or half read");
    else
        fuzz_check(n == LENGTH && count[0] == fuzz_get64(copy + 38) &&
                       count[EXPERTS + OTHERS - 1] == fuzz_get64(copy + n - 2 * TAIL),
                   "read otherwise");
    close(fd);
    free(copy);
}
