/* check_sparse.c - attention that leaves keys out, on the CUDA device: the cases. check_attend.c
 * says what is compared; check_select.c has the lists of block selection themselves.
 */
#include "tests/cuda/check_attend.h"
#include "backend/cuda/cuda_int.h"

/* Skip-softmax, heads of d. */
static void check_skip(rig *g, int32_t d)
{
    check_attend(g, &(attend_case){NUM_F16, 4, 2, d, 0, 700, 430, 77, .skip = 40});
    check_attend(g, &(attend_case){NUM_Q8_0, 6, 2, d, 0, 700, 430, 40, .skip = 40});
    check_attend(g, &(attend_case){NUM_F16, 8, 1, d, 0, 700, 383, 90, .two_seqs = true, .cut = 35,
                                   .skip = 40});
    if (g->quick)
        return;
    check_attend(g, &(attend_case){NUM_F16, 16, 1, d, 0, 3000, 2500, 77, .skip = 200});
    check_attend(g, &(attend_case){NUM_BF16, 32, 4, d, 0, 3000, 2304, 300, .skip = 200});
    check_attend(g, &(attend_case){NUM_Q4_0, 2, 2, d, 0, 1200, 1000, 129, .skip = 100});
    check_attend(g, &(attend_case){NUM_TQ3_0, 4, 1, d, 0, 1200, 1000, 128, .skip = 100});
    check_attend(g, &(attend_case){NUM_F16, 4, 1, d, 0, 1200, 0, 127, .skip = 40});
}

/* Skip-softmax in answers: every format, heads of d. Contexts of one tile, of whole tiles and of
 * one key more; trees, two sequences, several rows of a chunk; rows that are too short for it. */
static void check_answers(rig *g, int32_t d)
{
    static const num_type types[] = {NUM_F16,  NUM_BF16, NUM_Q8_0,   NUM_Q5_1, NUM_Q5_0,
                                     NUM_Q4_1, NUM_Q4_0, NUM_IQ4_NL, NUM_TQ3_0};
    const char *label = "attend answers";
    for (int i = 0; i < 9; i++) {
        num_type t = types[i], other = types[(i + 4) % 9];
        bool rot = i > 1 && i % 2;
        attend_case c[] = {
            {t, 4, 2, d, 0, 1400, 900, 3, .skip = 40, .rot = rot},
            {t, 8, 1, d, 0, 1100, 767 + i % 3, 1, .skip = 40, .values = other},
            {t, 16, 1, d, 0, 1000, 640, 2, .skip = 40},
            {t, 12, 2, d, 0, 1100, 830, 5, .skip = 40, .two_seqs = true},
            {t, 4, 2, d, 0, 1100, 760, 9, .skip = 40, .tree = true},
        };
        for (int k = 0; k < 5; k++) {
            c[k].label = label;
            if (!g->quick || k == 0 || k == 1 + i % 4)
                check_attend(g, &c[k]);
        }
    }
    check_attend(g, &(attend_case){NUM_F16, 6, 2, d, 0, 1400, 1021, 7, .skip = ATTEND_NEVER,
                                   .label = label});
    check_attend(g, &(attend_case){NUM_Q8_0, 4, 2, d, 0, 1400, 1021, 7, .skip = 40, .least = 1025,
                                   .label = label});
    check_attend(g, &(attend_case){NUM_F16, 4, 2, d, 0, 1400, 1021, 7, .skip = 40,
                                   .least = d == 128 ? 1025 / SKIP_FAR : 1025, .label = label});
    check_attend(g, &(attend_case){NUM_F16, 4, 2, d, 0, 1400, 770, 12, .skip = 40, .tree = true,
                                   .two_seqs = true, .label = label});
    for (int32_t past = 0; past < 130; past += past ? 1 : 126) /* 1, 127, 128, 129 keys */
        check_attend(g, &(attend_case){NUM_Q4_0, 4, 2, d, 0, 300, past, 1, .skip = ATTEND_NEVER,
                                       .label = label});
    if (g->quick)
        return;
    check_attend(
        g, &(attend_case){NUM_F16, 32, 4, d, 0, 34000, 31000, 3, .skip = 400, .label = label});
    check_attend(
        g, &(attend_case){NUM_Q8_0, 16, 2, d, 0, 20000, 16384, 2, .skip = 400, .label = label});
    check_attend(
        g, &(attend_case){NUM_BF16, 8, 8, d, 0, 9000, 2048 + 77, 16, .skip = 100, .label = label});
}

/* Block selection, heads of d. Passes that begin and end inside a query block, with the prompt's
 * last blocks, of several sequences, and too short for a query block. */
static void check_blocks(rig *g, int32_t d)
{
    check_attend(g, &(attend_case){NUM_F16, 2, 1, d, 0, 1800, 1152, 161, .alpha = 0.05f});
    check_attend(g, &(attend_case){NUM_Q8_0, 3, 1, d, 0, 1800, 1200, 208, .alpha = 0.05f});
    check_attend(g, &(attend_case){NUM_F16, 2, 1, d, 0, 1800, 1027, 290, .two_seqs = true,
                                   .cut = 128, .alpha = 0.05f});
    check_attend(g, &(attend_case){NUM_F16, 2, 2, d, 0, 1800, 1024, 129, .alpha = 0.05f,
                                   .n_prompt = 1153 + 128});
    check_attend(g,
                 &(attend_case){NUM_F16, 1, 1, d, 0, 400, 0, 127, .alpha = 0.05f, .n_prompt = 127});
    if (g->quick)
        return;
    check_attend(g, &(attend_case){NUM_F16, 16, 1, d, 0, 6000, 4096, 1061, .alpha = 0.05f});
    check_attend(g, &(attend_case){NUM_BF16, 32, 4, d, 0, 6000, 5000, 300, .alpha = 0.05f});
    check_attend(g, &(attend_case){NUM_Q4_0, 2, 2, d, 0, 3000, 2304, 257, .alpha = 0.05f});
    check_attend(g, &(attend_case){NUM_Q5_1, 6, 1, d, 0, 3000, 2304, 256, .alpha = 0.05f});
    check_attend(g, &(attend_case){NUM_TQ3_0, 4, 1, d, 0, 3000, 2304, 384, .alpha = 0.05f});
    check_attend(g, &(attend_case){NUM_F16, 4, 1, d, 0, 2000, 0, 1024, .alpha = 0.05f,
                                   .n_prompt = 1024 + 77});
}

/* Block selection by flash.cu, in every format and in one stream. */
static void check_listed(rig *g)
{
    static const num_type types[] = {NUM_F16,  NUM_BF16, NUM_Q8_0,   NUM_Q5_1, NUM_Q5_0,
                                     NUM_Q4_1, NUM_Q4_0, NUM_IQ4_NL, NUM_TQ3_0};
    static const int32_t dims[] = {128, 256, 512};
    const char *label = "attend listed";
    cuda_device *c = g->gpu->self;
    bool hopper = c->hopper;
    c->hopper = false;
    for (int i = 0; i < 27; i++) {
        int32_t d = dims[i / 9];
        attend_case a = {types[i % 9], 3, 1, d, 0, 1800, 1100, 205, .alpha = 0.05f, .label = label};
        if (g->brief) /* the emulator takes more than a minute for the whole one in heads of 512 */
            a.n_head = 1, a.past = 1010, a.rows = 160;
        if (!g->quick || i % 9 == 0 || i % 3 == i / 9)
            check_attend(g, &a);
    }
    check_attend(g, &(attend_case){NUM_F16, 2, 1, 512, 0, 1800, 1152, 130, .turning = 64,
                                   .alpha = 0.05f, .label = label});
    check_attend(g, &(attend_case){NUM_Q8_0, 2, 1, 256, 0, 1800, 1100, 200, .turning = 32,
                                   .alpha = 0.05f, .label = label});
    for (int i = 0; i < 3; i++) {
        check_attend(g, &(attend_case){NUM_F16, 2, 1, dims[i], 0, 1800, 1027, 290, .two_seqs = true,
                                       .cut = 128, .alpha = 0.05f, .label = label});
        check_attend(g, &(attend_case){NUM_F16, 2, 2, dims[i], 0, 1800, 1024, 129, .alpha = 0.05f,
                                       .n_prompt = 1153 + 128, .label = label});
    }
    c->hopper = hopper;
}

/* Skip-softmax and block selection in prompts, by this card's kernels. */
static void check_prompts(rig *g)
{
    static const int32_t dims[] = {128, 256, 512};
    for (int i = 0; i < 3; i++)
        check_blocks(g, dims[i]);
    check_skip(g, 512);
    /* one stream */
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 700, 430, 40, .turning = 64, .skip = 40});
    check_attend(g,
                 &(attend_case){NUM_Q8_0, 4, 2, 512, 0, 700, 430, 77, .turning = 64, .skip = 40});
    check_attend(
        g, &(attend_case){NUM_F16, 2, 1, 512, 0, 1800, 1152, 130, .turning = 64, .alpha = 0.05f});
    check_attend(
        g, &(attend_case){NUM_Q8_0, 2, 1, 512, 0, 1800, 1100, 200, .turning = 64, .alpha = 0.05f});
    check_attend(
        g, &(attend_case){NUM_TQ3_0, 2, 1, 256, 0, 1800, 1152, 128, .turning = 32, .alpha = 0.05f});
}

/* Skip-softmax of prompts by flash.cu, on GPUs of 9.0. */
static void check_skip_by_flash(rig *g)
{
    cuda_device *c = g->gpu->self;
    c->hopper = false;
    check_skip(g, 512);
    c->hopper = true;
}

void check_sparse_attention(rig *g)
{
    const cuda_device *c = g->gpu->self;
    static const int32_t dims[] = {128, 256, 512};
    for (int i = 0; i < 3; i++)
        check_answers(g, dims[i]);
    check_listed(g);
    check_prompts(g);
    if (c->hopper)
        check_skip_by_flash(g);
}
