/* vision_run_test.c - soft tokens against transformers' towers, on every instruction set. */
#include "apps/commands.h"
#include "base/mem.h"
#include "image/image_test_int.h"
#include "model/vision.h"
#include "tests/test.h"

static const char *const kinds[] = {"reference", "portable", "avx2", "avx512", "neon"};
enum { N_KINDS = 5, CASES = 17, SOFT_MOST = 16 * 96 };

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

typedef struct soft_case {
    char size[32];
    int32_t budget, seed, w, h, n, width;
    float want[SOFT_MOST];
} soft_case;

static int32_t read_cases(soft_case *c)
{
    FILE *lines = fopen(test_path("tests/data/images/soft.txt"), "r"),
         *values = fopen(test_path("tests/data/images/soft.f32"), "rb");
    int32_t n = 0;
    CHECK(lines && values);
    for (; n < CASES && fscanf(lines, "%31s %d %d %d %d %d %d", c->size, &c->budget, &c->seed,
                               &c->w, &c->h, &c->n, &c->width) == 7;
         n++, c++) {
        size_t count = (size_t)c->n * (size_t)c->width;
        CHECK(count <= SOFT_MOST);
        CHECK_EQ(fread(c->want, sizeof(float), count, values), count);
    }
    CHECK(n < CASES && fgetc(values) == EOF);
    fclose(lines);
    fclose(values);
    return n;
}

static void open_tower(model *m, const char *size, device *d)
{
    const char *path = test_temp("tower.gguf");
    const char *make[] = {size, path, "--type", "f32"};
    gguf g = {0};
    err e = {0};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    CHECK_OK(model_bind(m, &g, &e), e);
    CHECK_OK(model_load(m, d, NULL, NULL, &e), e);
}

static void compare(const model *m, device *d, const soft_case *c, const char *kind)
{
    image picture;
    image_rule rule;
    image_grid g;
    float *patches, soft[SOFT_MOST];
    double worst = 0;
    err e = {0};
    test_picture(&picture, c->seed, c->w, c->h);
    CHECK_OK(vision_grid(m, c->budget, c->w, c->h, &rule, &g, "a.png", &e), e);
    CHECK_EQ(g.n_tokens, c->n);
    CHECK_OK(image_patches_of(&patches, &g, &rule, &picture, "a.png", &e), e);
    uint64_t used = d->used_bytes ? d->used_bytes(d) : 0;
    CHECK_OK(vision_encode(m, d, &g, patches, soft, &e), e);
    CHECK_EQ(d->used_bytes ? d->used_bytes(d) : 0, used);
    for (int32_t i = 0; i < c->n * c->width; i++) {
        double apart = fabs((double)soft[i] - c->want[i]);
        worst = apart > worst || isnan(apart) ? apart : worst;
    }
    CHECK_MSG(worst <= 3e-5, "%s, picture %d, %s: a value is %g apart", c->size, c->seed, kind,
              worst);
    mem_free(patches);
    image_free(&picture);
}

TEST(vision_soft_tokens_are_those_of_transformers)
{
    static soft_case c[CASES];
    int32_t n = read_cases(c), n_kinds = 0;
    CHECK_EQ(n, 16);
    for (int kind = 0; kind < N_KINDS; kind++) {
        device *d = open_kind(kind);
        if (!d)
            continue;
        for (int32_t i = 0; i < n; i++) {
            model m;
            open_tower(&m, c[i].size, d);
            int32_t end = i;
            while (end < n && !strcmp(c[end].size, c[i].size))
                compare(&m, d, &c[end++], kinds[kind]);
            i = end - 1;
            model_free(&m);
        }
        device_close(d);
        n_kinds++;
    }
    CHECK(n_kinds >= 2);
}

static status encode_once(void *arg, err *e)
{
    static float patches[9 * 48], soft[96];
    model *m = arg;
    const image_grid g = {
        .width = 12, .height = 12, .cols = 3, .rows = 3, .n_patches = 9, .n_tokens = 1};
    return vision_encode(m, m->dev[PASS_MAIN], &g, patches, soft, e);
}

TEST(vision_refuses_what_it_cannot_encode)
{
    device *d = open_kind(0);
    model m;
    vision_memory need = {.key_bytes = 7};
    err e = {0};
    image_grid g = {.cols = 129, .rows = 3, .n_patches = 387, .n_tokens = 43};
    CHECK(d);
    open_tower(&m, "tiny-mmproj-clamped", d);
    CHECK_STATUS(vision_plan(&m, d, &g, &need, &e), E_LIMIT);
    CHECK(strstr(e.text, "129 patches a side; the tower has 128 positions") && need.key_bytes == 7);
    test_every_allocation(encode_once, &m);
    model_free(&m);
    /* Two towers have positions for any size, or no attention. */
    open_tower(&m, "tiny-mmproj-qwen", d);
    g = (image_grid){.cols = 200, .rows = 2, .n_patches = 400, .n_tokens = 100};
    CHECK_OK(vision_plan(&m, d, &g, &need, &e), e);
    model_free(&m);
    open_tower(&m, "tiny-mmproj-flat", d);
    g = (image_grid){.cols = 40, .rows = 2, .n_patches = 80, .n_tokens = 80};
    CHECK_OK(vision_plan(&m, d, &g, &need, &e), e);
    CHECK_EQ(need.key_bytes, 0);
    g.cols = 41;
    CHECK_STATUS(vision_plan(&m, d, &g, &need, &e), E_LIMIT);
    model_free(&m);
    device_close(d);
}
