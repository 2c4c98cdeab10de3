/* vision_run_test.c - soft tokens against transformers' towers, on every instruction set. */
#include "model/vision_test_int.h"

RELEASED_AT(device_close, device)

static const char *const kinds[] = {"reference", "portable", "avx2", "avx512", "neon"};
enum { N_KINDS = 5 };

/* NULL where the machine lacks it. */
static device *open_kind(int kind)
{
    cpu_options o = {.n_threads = 2, .exact_f32 = true};
    device *d = NULL;
    err e = {0};
    if (kind)
        o.isa = kinds[kind];
    else
        o.reference = true;
    return device_open_cpu(&d, &o, &e) ? NULL : d;
}

TEST(vision_soft_tokens_are_those_of_transformers)
{
    static soft_case c[SOFT_CASES];
    int32_t n_kinds = 0;
    soft_read(c);
    for (int kind = 0; kind < N_KINDS; kind++) {
        device *d = open_kind(kind);
        if (!d)
            continue;
        for (int32_t i = 0; i < SOFT_CASES; i++) {
            AUTO(model_free) model m;
            soft_open(&m, soft_file(c[i].size, "f32", NULL), d);
            int32_t end = i;
            for (; end < SOFT_CASES && !strcmp(c[end].size, c[i].size); end++) {
                double worst = soft_distance(&m, d, &c[end]);
                CHECK_MSG(worst <= 3e-5, "%s, picture %d, %s: a value is %g apart", c[i].size,
                          c[end].seed, kinds[kind], worst);
            }
            i = end - 1;
        }
        device_close(d);
        n_kinds++;
    }
    CHECK(n_kinds >= 2);
}

static status encode_once(void *arg, err *e)
{
    static float patches[9 * 48], soft[96];
    static _Alignas(64) char room[1 << 16];
    model *m = arg;
    const image_grid g = {
        .width = 12, .height = 12, .cols = 3, .rows = 3, .n_patches = 9, .n_tokens = 1};
    return vision_encode(m, m->dev[PASS_MAIN], &g, patches, room, sizeof room, soft, e);
}

TEST(vision_refuses_what_it_cannot_encode)
{
    AUTO_PTR(device_close) device *d = open_kind(0);
    AUTO(model_free) model m;
    vision_memory need;
    err e = {0};
    image_grid g = {.cols = 129, .rows = 3, .n_patches = 387, .n_tokens = 43};
    CHECK(d);
    soft_open(&m, soft_file("tiny-mmproj-clamped", "f32", NULL), d);
    CHECK_STATUS(vision_check(&m, &g, &e), E_LIMIT);
    CHECK(strstr(e.text, "129 patches a side; the tower has 128 positions"));
    test_every_allocation(encode_once, &m);
    model_free(&m);
    /* Two towers have positions for any size, or no attention. */
    soft_open(&m, soft_file("tiny-mmproj-qwen", "f32", NULL), d);
    g = (image_grid){.cols = 200, .rows = 2, .n_patches = 400, .n_tokens = 100};
    CHECK_OK(vision_check(&m, &g, &e), e);
    model_free(&m);
    soft_open(&m, soft_file("tiny-mmproj-flat", "f32", NULL), d);
    g = (image_grid){.cols = 40, .rows = 2, .n_patches = 80, .n_tokens = 80};
    CHECK_OK(vision_check(&m, &g, &e), e);
    CHECK_OK(vision_plan(&m, d, &g, &need, &e), e);
    CHECK_EQ(need.key_bytes, 0);
    g.cols = 41;
    CHECK_STATUS(vision_check(&m, &g, &e), E_LIMIT);
}
