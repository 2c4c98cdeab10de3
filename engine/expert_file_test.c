/* expert_file_test.c - FILE.experts, written, read, damaged, and of another model. */
#include "engine/expert_file.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/test.h"

#include <string.h>
#include <unistd.h>

static err why; /* of the test under way, which has a process of its own */

enum { LAYERS = 3, EXPERTS = 7 };

static void layers(expert_counts *l, uint64_t at[LAYERS][EXPERTS])
{
    for (int i = 0; i < LAYERS; i++)
        l[i] = (expert_counts){.layer = 2 * i + 1, .n_experts = EXPERTS - i, .count = at[i]};
}

TEST(expert_counts_come_back_from_their_file)
{
    uint64_t in[LAYERS][EXPERTS] = {{1, 2, UINT64_MAX}, {7}, {0}}, out[LAYERS][EXPERTS];
    expert_counts a[LAYERS], b[LAYERS];
    const char *path = test_temp("counts.experts");
    memset(out, 0xff, sizeof out);
    layers(a, in);
    layers(b, out);
    CHECK_OK(expert_file_write(path, 42, a, LAYERS, &why), why);
    CHECK_OK(expert_file_read(path, 42, b, LAYERS, &why), why);
    for (int i = 0; i < LAYERS; i++)
        CHECK(!memcmp(in[i], out[i], (size_t)a[i].n_experts * 8));
}

TEST(expert_counts_of_another_model_are_refused)
{
    uint64_t in[LAYERS][EXPERTS] = {{5}}, out[LAYERS][EXPERTS];
    expert_counts a[LAYERS], b[LAYERS];
    const char *path = test_temp("other.experts");
    err e = {0};
    layers(a, in);
    layers(b, out);
    CHECK_OK(expert_file_write(path, 42, a, LAYERS, &why), why);
    CHECK_EQ(expert_file_read(path, 43, b, LAYERS, &e), E_FORMAT);
    CHECK(strstr(e.text, "another model"));
    err_clear(&e);
    CHECK_EQ(expert_file_read(path, 42, b, LAYERS - 1, &e), E_FORMAT);
    b[1].n_experts--;
    err_clear(&e);
    CHECK_EQ(expert_file_read(path, 42, b, LAYERS, &e), E_FORMAT);
    CHECK_EQ(out[0][0], 0);
    CHECK_EQ(expert_file_read(test_temp("none.experts"), 42, b, LAYERS, NULL), E_IO);
    CHECK(expert_file_write("/nowhere/at/all.experts", 42, a, LAYERS, NULL) != OK);
}

TEST(damaged_expert_counts_are_refused)
{
    uint64_t in[LAYERS][EXPERTS] = {{5, 6, 7}}, out[LAYERS][EXPERTS], seed = test_seed();
    expert_counts a[LAYERS], b[LAYERS];
    const char *path = test_temp("damaged.experts");
    char *bytes;
    size_t n;
    layers(a, in);
    layers(b, out);
    CHECK_OK(expert_file_write(path, 42, a, LAYERS, &why), why);
    CHECK_OK(file_read_all(path, 1 << 20, &bytes, &n, &why), why);
    for (size_t cut = 0; cut < n; cut += 1 + n / 40) {
        test_write(path, bytes, cut);
        CHECK_EQ(expert_file_read(path, 42, b, LAYERS, NULL), E_FORMAT);
    }
    for (int i = 0; i < 40; i++) {
        size_t at = (size_t)(rng_next(&seed) % n);
        bytes[at] ^= 1 << i % 8;
        test_write(path, bytes, n);
        CHECK_EQ(expert_file_read(path, 42, b, LAYERS, NULL), E_FORMAT);
        bytes[at] ^= 1 << i % 8;
    }
    mem_free(bytes);
    unlink(path);
}
