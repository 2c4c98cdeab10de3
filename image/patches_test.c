/* patches_test.c - sizes and patches against transformers' processors, bit for bit. */
#include "image/image_test_int.h"
#include "base/mem.h"
#include "image/patches.h"

/* A line's rule: budget PATCH MERGE TOKENS, or pixels PATCH MERGE LEAST MOST. */
static bool read_rule(FILE *f, image_rule *r)
{
    char kind[16];
    long long least = 0, most;
    if (fscanf(f, "%15s %d %d", kind, &r->patch, &r->merge) != 3)
        return false;
    if (!strcmp(kind, "budget")) {
        r->fit = IMAGE_FIT_BUDGET;
        r->grouped = false;
        return fscanf(f, "%d", &r->budget) == 1;
    }
    r->fit = IMAGE_FIT_PIXELS;
    r->budget = 0;
    r->grouped = true;
    bool ok = fscanf(f, "%lld %lld", &least, &most) == 2;
    r->min_pixels = least;
    r->max_pixels = most;
    return ok;
}

/* Hundreds of shapes for every budget of Gemma 4, for Qwen's limits and for llama.cpp's. */
TEST(patches_grid_is_that_of_transformers)
{
    FILE *f = fopen(test_path("tests/data/images/sizes.txt"), "r");
    image_rule r = {.std = {1, 1, 1}};
    int n = 0, w, h, tw, th;
    CHECK(f);
    while (read_rule(f, &r)) {
        image_grid g = {.width = -1};
        CHECK_EQ(fscanf(f, "%d %d %d %d", &w, &h, &tw, &th), 4);
        status st = image_grid_for(&g, &r, w, h, "a.png", NULL);
        CHECK_MSG(st == (tw ? OK : E_LIMIT) &&
                      (st ? g.width == -1 : g.width == tw && g.height == th),
                  "%d x %d to %d x %d, expected %d x %d (line %d)", w, h, g.width, g.height, tw, th,
                  n + 1);
        if (!st)
            CHECK_EQ(g.n_tokens * r.merge * r.merge, g.n_patches);
        if (!st && r.fit == IMAGE_FIT_BUDGET)
            CHECK(g.n_tokens >= 1 && g.n_tokens <= r.budget);
        n++;
    }
    CHECK(feof(f) && n > 800);
    fclose(f);
}

TEST(patches_are_those_of_transformers)
{
    FILE *f = fopen(test_path("tests/data/images/patches.txt"), "r");
    image_rule r = {0};
    int n = 0, seed, w, h, tw, th;
    char want[TEST_DIGEST], got[TEST_DIGEST];
    CHECK(f);
    while (read_rule(f, &r)) {
        image m;
        image_grid g;
        float *values;
        err e = {0};
        for (int c = 0; c < 3; c++)
            CHECK_EQ(fscanf(f, "%f %f", &r.mean[c], &r.std[c]), 2);
        CHECK_EQ(fscanf(f, "%d %d %d %d %d %16s", &seed, &w, &h, &tw, &th, want), 6);
        test_picture(&m, seed, w, h);
        CHECK_OK(image_patches_of(&values, &g, &r, &m, "a.png", &e), e);
        CHECK(g.width == tw && g.height == th);
        size_t n_values = (size_t)3 * (size_t)tw * (size_t)th;
        CHECK_MSG(!strcmp(test_digest(values, n_values * sizeof *values, got), want),
                  "other values in line %d", n + 1);
        mem_free(values);
        image_free(&m);
        n++;
    }
    CHECK(feof(f) && n >= 12);
    fclose(f);
}

static status patches_once(void *arg, err *e)
{
    const image_rule r = {.patch = 2, .merge = 2, .budget = 5, .std = {1, 1, 1}};
    image_grid g = {.width = -1};
    AUTO_MEM float *values = NULL;
    status st = image_patches_of(&values, &g, &r, arg, "a.png", e);
    CHECK(st ? !values && g.width == -1 : values && g.width == 8);
    return st;
}

TEST(patches_survive_failed_allocations)
{
    AUTO(image_free) image m;
    test_picture(&m, 1, 9, 6);
    test_every_allocation(patches_once, &m);
}
