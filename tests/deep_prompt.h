/* deep_prompt.h - a prompt with two pictures for a tiny Qwen3-VL, and what transformers makes of it
 * (tests/data/images/deep.f32).
 */
#ifndef TESTS_DEEP_PROMPT_H
#define TESTS_DEEP_PROMPT_H

#include "apps/commands.h"
#include "base/mem.h"
#include "carat.h"
#include "engine/engine_int.h"
#include "engine/media.h"
#include "image/image_test_int.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>

/* As tools/deepstack_fixture.py has them. */
enum { HEAD = 5, SOFT = 20, BETWEEN = 3, SOFT_2 = 22, TAIL = 20, COLS = 64, BUDGET = 70 };
enum { SECOND = HEAD + SOFT + BETWEEN, ALL = SECOND + SOFT_2 + TAIL, CTX = 128, ANSWER = 16 };
enum { DEEP_SIZES = 2 };
static const char *const deep_sizes[DEEP_SIZES] = {"tiny-qwen3-vl", "tiny-qwen3-vl-moe"};

typedef struct deep_prompt {
    carat_model *m;
    carat_media *picture[2];
    int32_t ids[ALL], n_vocab;
} deep_prompt;

static inline int32_t deep_word(int32_t k)
{
    return 10 + 37 * k % 400;
}

static inline const char *deep_made(const char *size, const char *name)
{
    const char *path = test_temp(name);
    const char *make[] = {size, path, "--type", "f32"};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
    return path;
}

/* device: that of the model; the tower is on the same. */
static inline void deep_begin(deep_prompt *x, const char *size, const char *dev)
{
    char tower[300];
    err e = {0};
    snprintf(tower, sizeof tower, "%s", deep_made("tiny-mmproj-qwen3-vl", "tower.gguf"));
    bool cpu = !strcmp(dev, "cpu");
    const carat_model_options mo = {
        .device = dev, .n_threads = cpu ? 1 : 0, .exact_f32 = cpu, .mmproj = tower};
    CHECK_OK(carat_model_open(deep_made(size, "text.gguf"), &mo, &x->m, &e), e);
    x->n_vocab = x->m->core.n_vocab;
    int32_t n = 0, n_words = 0;
    for (int i = 0; i < 2; i++) {
        static const int32_t seed[2] = {3, 6}, width[2] = {40, 90}, height[2] = {30, 20};
        const carat_image_options o = {.n_tokens = BUDGET};
        image p;
        test_picture(&p, seed[i], width[i], height[i]);
        CHECK_OK(carat_image_new(x->m, p.rgb, width[i], height[i], &o, &x->picture[i], &e), e);
        image_free(&p);
        CHECK_EQ(carat_media_n(x->picture[i]), i ? SOFT_2 : SOFT);
        for (int32_t k = i ? BETWEEN : HEAD; k > 0; k--)
            x->ids[n++] = deep_word(n_words++);
        for (int32_t k = 0; k < carat_media_n(x->picture[i]); k++)
            x->ids[n++] = carat_media_id(x->picture[i]) - k;
    }
    while (n < ALL)
        x->ids[n++] = deep_word(n_words++);
}

static inline void deep_end(deep_prompt *x)
{
    carat_media_free(x->picture[0]);
    carat_media_free(x->picture[1]);
    carat_model_close(x->m);
}

#endif
