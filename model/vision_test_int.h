/* vision_test_int.h - soft tokens of transformers' towers (tests/data/images/soft.*), and a tower
 * on a device beside them.
 */
#ifndef MODEL_VISION_TEST_INT_H
#define MODEL_VISION_TEST_INT_H

#include "apps/commands.h"
#include "base/mem.h"
#include "image/image_test_int.h"
#include "model/vision.h"
#include "tests/test.h"

enum { SOFT_CASES = 20, SOFT_MOST = 10 * 3 * 64 };

typedef struct soft_case {
    char size[32];
    int32_t budget, seed, w, h, n, width; /* width: with that of deepstack */
    float want[SOFT_MOST];
} soft_case;

static inline void soft_read(soft_case c[SOFT_CASES])
{
    FILE *lines = fopen(test_path("tests/data/images/soft.txt"), "r"),
         *values = fopen(test_path("tests/data/images/soft.f32"), "rb");
    CHECK(lines && values);
    for (int i = 0; i < SOFT_CASES; i++, c++) {
        CHECK_EQ(fscanf(lines, "%31s %d %d %d %d %d %d", c->size, &c->budget, &c->seed, &c->w,
                        &c->h, &c->n, &c->width),
                 7);
        size_t count = (size_t)c->n * (size_t)c->width;
        CHECK(count <= SOFT_MOST);
        CHECK_EQ(fread(c->want, sizeof(float), count, values), count);
    }
    CHECK(fgetc(values) == EOF);
    fclose(lines);
    fclose(values);
}

/* A tower's file. layers: NULL: all. */
static inline const char *soft_file(const char *size, const char *type, const char *layers)
{
    const char *path = test_temp("tower.gguf");
    const char *make[] = {size, path, "--type", type, "--layers", layers};
    CHECK_EQ(command_synth.run(&command_synth, layers ? 6 : 4, (char **)make), 0);
    return path;
}

/* m is loaded on d. */
static inline void soft_open(model *m, const char *path, device *d)
{
    gguf g = {0};
    err e = {0};
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    CHECK_OK(model_bind(m, &g, &e), e);
    CHECK_OK(model_load(m, d, NULL, NULL, &e), e);
}

/* Soft tokens of the case's picture, in room that is exactly as planned. mem_free. */
static inline float *soft_rows(const model *m, device *d, const soft_case *c, image_grid *g)
{
    AUTO(image_free) image picture;
    image_rule rule;
    AUTO_MEM float *patches;
    vision_memory need;
    err e = {0};
    test_picture(&picture, c->seed, c->w, c->h);
    CHECK_OK(vision_grid(m, c->budget, c->w, c->h, &rule, g, "a.png", &e), e);
    CHECK_OK(image_patches_of(&patches, g, &rule, &picture, "a.png", &e), e);
    CHECK_OK(vision_plan(m, d, g, &need, &e), e);
    float *soft = mem_alloc((size_t)g->n_tokens * vision_width(vision_of(m)) * sizeof *soft);
    size_t n_bytes = vision_room(&need);
    void *room = d->alloc(d, n_bytes);
    CHECK(room && soft);
    CHECK_STATUS(vision_encode(m, d, g, patches, room, n_bytes - 1, soft, &e), E_MEMORY);
    CHECK_OK(vision_encode(m, d, g, patches, room, n_bytes, soft, &e), e);
    d->release(d, room, n_bytes);
    return soft;
}

/* How far they are from those of transformers; NaN shows. */
static inline double soft_distance(const model *m, device *d, const soft_case *c)
{
    image_grid g;
    double worst = 0;
    AUTO_MEM float *soft = soft_rows(m, d, c, &g);
    CHECK_EQ(g.n_tokens, c->n);
    for (int32_t i = 0; i < c->n * c->width; i++) {
        double apart = fabs((double)soft[i] - c->want[i]);
        worst = apart > worst || isnan(apart) ? apart : worst;
    }
    return worst;
}

#endif
