/* check_attend_cases.c - the cases of attention on the CUDA device, dense ones and trees, in every
 * cache format. check_attend.c says what is compared; check_sparse.c has the cases that leave keys
 * out.
 */
#include "tests/cuda/check_attend.h"
#include "backend/cuda/cuda_int.h"
#include "kv/kv.h"

/* Heads of gpt-oss: 64 wide, eight to a KV head, with sinks; few rows and prompts, windows past the
 * ring's wrap, trees, two sequences. */
static void check_sinks(rig *g)
{
    static const num_type types[] = {NUM_F16, NUM_Q8_0, NUM_Q4_0};
    for (int i = 0; i < 3; i++) {
        num_type t = types[i];
        const char *name = "attend sinks";
        check_attend(g,
                     &(attend_case){t, 16, 2, 64, 24, 300, 230, 1, .sinks = true, .label = name});
        check_attend(g, &(attend_case){t, 16, 2, 64, 0, 300, 130, 5, .sinks = true, .label = name});
        check_attend(g,
                     &(attend_case){t, 16, 2, 64, 24, 300, 130, 70, .sinks = true, .label = name});
        check_attend(g, &(attend_case){t, 8, 1, 64, 0, 300, 130, 70, .sinks = true, .label = name});
        if (i != 1)
            check_attend(g, &(attend_case){t, 8, 1, 64, 0, 300, 90, 9, .tree = true, .sinks = true,
                                           .label = name});
    }
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 64, 24, 300, 90, 45, .two_seqs = true, .cut = 5,
                                   .sinks = true, .label = "attend sinks"});
}

/* Every format, in heads with fast kernels and in others; keys and values of different formats;
 * rings past their wrap. */
static void check_formats(rig *g)
{
    static const num_type types[] = {NUM_BF16, NUM_Q8_0, NUM_Q5_1,   NUM_Q5_0,
                                     NUM_Q4_1, NUM_Q4_0, NUM_IQ4_NL, NUM_TQ3_0};
    for (int i = 0; i < 8; i++) {
        num_type t = types[i], other = types[(i + 3) % 8];
        bool rot = t != NUM_BF16;
        check_attend(g, &(attend_case){t, 8, 2, 256, 40, 400, 230, 3, .rot = false});
        check_attend(g, &(attend_case){t, 8, 1, 512, 0, 500, 300, 5, .rot = rot});
        check_attend(g, &(attend_case){t, 16, 1, 512, 0, 200, 120, 2, .rot = rot});
        check_attend(g, &(attend_case){t, 8, 4, 512, 70, 400, 230, 3, .rot = rot});
        check_attend(g, &(attend_case){t, 8, 4, 512, 0, 800, 750, 2, .rot = rot});
        check_attend(g, &(attend_case){t, 16, 4, 256, 0, 800, 750, 5, .rot = rot});
        check_attend(g, &(attend_case){t, 4, 2, 128, 60, 300, 150, 2, .rot = rot});
        check_attend(g, &(attend_case){t, 4, 2, 128, 0, 300, 140, 35, .values = NUM_F16});
        check_attend(g, &(attend_case){NUM_F16, 4, 2, 128, 0, 300, 140, 4, .values = t});
        if (t != NUM_TQ3_0) {
            check_attend(g, &(attend_case){t, 8, 2, 64, 40, 400, 230, 5, .rot = false});
            check_attend(g, &(attend_case){t, 4, 2, 64, 0, 300, 130, 40, .rot = false});
        }
        check_attend(g, &(attend_case){t, 4, 2, 256, 0, 300, 130, 35, .rot = rot});
        check_attend(g, &(attend_case){t, 8, 4, 256, 50, 400, 90, 9, .tree = true});
        check_attend(g, &(attend_case){t, 4, 2, 256, 0, 300, 130, 6, .values = other, .rot = rot});
        check_attend(g, &(attend_case){t, 4, 2, 512, 70, 200, 110, 40, .values = NUM_F16});
        check_attend(g, &(attend_case){NUM_F16, 4, 2, 512, 0, 200, 60, 2, .values = t, .rot = rot});
        if (g->quick)
            continue;
        check_attend(g, &(attend_case){t, 16, 2, 512, 0, 9000, 8000, 2, .rot = rot});
        check_attend(g, &(attend_case){t, 32, 16, 256, 1024, 9000, 8000, 4, .rot = false});
        check_attend(g, &(attend_case){t, 16, 2, 512, 0, 2000, 1000, 40, .rot = rot});
    }
    /* Prompts: windows, rings past their wrap, trees, answers beside them. */
    check_attend(g, &(attend_case){NUM_Q8_0, 4, 2, 256, 100, 700, 600, 70, .tree = false});
    check_attend(g, &(attend_case){NUM_Q4_0, 8, 2, 512, 90, 700, 600, 70, .two_seqs = true});
    check_attend(g,
                 &(attend_case){NUM_Q5_1, 4, 2, 256, 0, 400, 200, 64, .two_seqs = true, .cut = 3});
    check_attend(g,
                 &(attend_case){NUM_F16, 4, 1, 512, 0, 400, 300, 45, .two_seqs = true, .cut = 40});
    check_attend(g,
                 &(attend_case){NUM_TQ3_0, 4, 1, 512, 0, 400, 300, 45, .two_seqs = true, .cut = 5});
    check_attend(g, &(attend_case){NUM_IQ4_NL, 4, 2, 256, 50, 400, 90, 48, .tree = true});
    check_attend(g, &(attend_case){NUM_Q8_0, 2, 1, 512, 0, 900, 800, 100, .values = NUM_F16});
    check_attend(g, &(attend_case){NUM_Q4_0, 8, 4, 512, 0, 16600, 700, 3, .values = NUM_Q8_0});
    check_attend(g, &(attend_case){NUM_F32, 4, 2, 64, 0, 100, 60, 3, .values = NUM_Q8_0});
    /* Chunks longer than a turn of split512.cu's warps. */
    check_attend(g, &(attend_case){NUM_Q8_0, 32, 4, 512, 0, 6000, 5000, 2, .rot = false});
    check_attend(g, &(attend_case){NUM_TQ3_0, 12, 1, 512, 0, 9000, 8500, 1, .rot = true});
    check_attend(g, &(attend_case){NUM_BF16, 4, 2, 256, 0, 200, 120, 3, .wide = true});
    /* Rows that see those after them: in chains, by every kernel; in trees. */
    check_attend(g, &(attend_case){NUM_F16, 8, 2, 256, 60, 400, 230, 16, .all = true});
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 300, 200, 16, .all = true});
    check_attend(g, &(attend_case){NUM_F16, 4, 2, 128, 40, 300, 130, 7, .all = true});
    check_attend(g, &(attend_case){NUM_F32, 4, 2, 64, 16, 200, 90, 9, .all = true});
    check_attend(g, &(attend_case){NUM_F32, 4, 2, 64, 0, 200, 90, 40, .all = true});
    check_attend(g, &(attend_case){NUM_Q8_0, 8, 4, 256, 50, 400, 230, 9, .all = true});
    check_attend(g, &(attend_case){NUM_Q4_0, 8, 1, 512, 0, 400, 230, 5, .all = true});
    check_attend(g, &(attend_case){NUM_F16, 8, 2, 256, 50, 400, 90, 64, .all = true});
    check_attend(g, &(attend_case){NUM_F16, 4, 1, 512, 30, 400, 90, 48, .all = true});
    check_attend(g, &(attend_case){NUM_Q5_0, 4, 1, 512, 0, 400, 90, 48, .all = true});
    check_attend(
        g, &(attend_case){NUM_F16, 8, 2, 256, 50, 400, 230, 40, .two_seqs = true, .all = true});
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 300, 90, 9, .all = true, .turning = 64});
    check_attend(g, &(attend_case){NUM_F16, 4, 1, 512, 0, 300, 90, 40, .all = true, .turning = 64});
    check_attend(g, &(attend_case){NUM_Q8_0, 4, 1, 512, 0, 300, 90, 9, .all = true, .turning = 64});
    check_attend(g, &(attend_case){NUM_Q8_0, 4, 1, 512, 0, 200, 90, 35, .wide = true});
    /* Whole texts, with and without a window on both sides; blocks of rows inside a text. */
    check_attend(g, &(attend_case){NUM_F16, 3, 1, 256, 33, 400, 0, 150, .later = 400});
    check_attend(g, &(attend_case){NUM_F16, 3, 1, 256, 0, 400, 0, 140, .later = 400});
    check_attend(
        g, &(attend_case){NUM_F16, 3, 1, 256, 33, 400, 3, 90, .two_seqs = true, .later = 400});
    check_attend(g, &(attend_case){NUM_Q8_0, 3, 1, 256, 33, 400, 90, 64, .later = 400});
    check_attend(g, &(attend_case){NUM_F16, 8, 2, 256, 60, 400, 90, 64, .later = 20});
    check_attend(g, &(attend_case){NUM_F16, 4, 2, 128, 40, 300, 90, 70, .later = 9});
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 400, 90, 48, .later = 17});
    check_attend(g, &(attend_case){NUM_F16, 3, 1, 32, 9, 300, 0, 100, .later = 300});
    check_attend(g, &(attend_case){NUM_F32, 4, 2, 64, 16, 200, 90, 40, .later = 11});
}

/* Heads of vision towers, all patches of a picture at once, which see each other. */
static void check_tower_heads(rig *g)
{
    static const int32_t heads[] = {72, 64, 80, 96, 88};
    const char *name = "attend tower";
    for (int i = 0; i < 5; i++) {
        int32_t d = heads[i];
        check_attend(g,
                     &(attend_case){NUM_F16, 2, 2, d, 0, 300, 0, 150, .later = 300, .label = name});
        check_attend(g,
                     &(attend_case){NUM_F16, 3, 3, d, 0, 128, 0, 128, .later = 128, .label = name});
        check_attend(g, &(attend_case){NUM_F16, 4, 2, d, 40, 300, 20, 70, .label = name});
        check_attend(g, &(attend_case){NUM_F16, 2, 1, d, 0, 300, 90, 45, .two_seqs = true, .cut = 5,
                                       .label = name});
        check_attend(g, &(attend_case){NUM_F16, 2, 2, d, 0, 100, 9, 3, .label = name});
        if (!g->quick)
            check_attend(g, &(attend_case){NUM_F16, 16, 16, d, 0, 2400, 0, 2400, .later = 2400,
                                           .label = name});
    }
}

/* Keys made of values: in tiles, for heads of which a quarter turns, and by the f32 kernel. */
static void check_one_stream(rig *g)
{
    static const num_type types[] = {NUM_F16,  NUM_BF16, NUM_Q8_0,   NUM_Q5_1, NUM_Q5_0,
                                     NUM_Q4_1, NUM_Q4_0, NUM_IQ4_NL, NUM_TQ3_0};
    for (int i = 0; i < 9; i++) {
        num_type t = types[i];
        check_attend(g, &(attend_case){t, 8, 1, 512, 0, 700, 500, 5, .turning = 64});
        check_attend(g, &(attend_case){t, 8, 2, 512, 0, 200, 110, 40, .turning = 64});
        check_attend(g, &(attend_case){t, 2, 2, 512, 8, 200, 50, 34, .turning = 64});
        check_attend(g,
                     &(attend_case){t, 2, 1, 512, 90, 400, 210, 64, .tree = true, .turning = 64});
        check_attend(g, &(attend_case){t, 8, 2, 256, 70, 400, 230, 3, .turning = 32});
        check_attend(g, &(attend_case){t, 4, 1, 512, 0, 300, 90, 9, .tree = true, .turning = 64});
        if (num_format_of(t)->block_n > 1 && t != NUM_TQ3_0) {
            check_attend(g,
                         &(attend_case){t, 4, 1, 512, 0, 300, 200, 2, .rot = true, .turning = 64});
            check_attend(g,
                         &(attend_case){t, 4, 1, 512, 0, 300, 130, 35, .rot = true, .turning = 64});
        }
        check_attend(g, &(attend_case){t, 4, 2, 128, 0, 200, 120, 3, .turning = 64});
        if (g->quick)
            continue;
        if (i % 3 == 0) /* slow in the reference; large angles do not depend on the format */
            check_attend(g, &(attend_case){t, 8, 1, 512, 0, 140000, 131000, 1, .turning = 64});
        check_attend(g, &(attend_case){t, 32, 4, 512, 0, 3000, 2000, 4, .turning = 64});
        check_attend(g, &(attend_case){t, 16, 1, 512, 0, 2000, 1000, 70, .turning = 64});
    }
    check_attend(g, &(attend_case){NUM_Q8_0, 32, 4, 512, 0, 6000, 5000, 2, .turning = 64});
    check_attend(g, &(attend_case){NUM_Q4_0, 8, 4, 512, 4500, 6000, 5000, 3, .turning = 64});
    check_attend(g, &(attend_case){NUM_F32, 4, 2, 64, 0, 200, 90, 9, .tree = true, .turning = 8});
    check_attend(g, &(attend_case){NUM_F32, 4, 1, 512, 60, 300, 150, 2, .turning = 256});
    check_attend(g, &(attend_case){NUM_F32, 4, 2, 64, 16, 200, 90, 40, .turning = 32});
    check_attend(g, &(attend_case){NUM_TQ3_0, 4, 2, 128, 0, 200, 90, 3, .turning = 16});
    check_attend(
        g, &(attend_case){NUM_F16, 8, 2, 512, 50, 300, 200, 20, .two_seqs = true, .turning = 64});
    check_attend(
        g, &(attend_case){NUM_Q8_0, 8, 2, 256, 50, 300, 200, 40, .two_seqs = true, .turning = 32});
    check_attend(g,
                 &(attend_case){NUM_F16, 8, 1, 512, 0, 300, 100, 60, .tree = true, .turning = 64});
    /* Of f16, beside what the list has: rings past their wrap, two sequences, many tiles. */
    check_attend(
        g, &(attend_case){NUM_F16, 8, 2, 512, 90, 700, 600, 70, .two_seqs = true, .turning = 64});
    check_attend(g, &(attend_case){NUM_F16, 4, 1, 512, 0, 700, 500, 37, .turning = 64});
    check_attend(g, &(attend_case){NUM_F16, 2, 2, 512, 300, 2000, 1500, 100, .turning = 64});
}

/* Tiles of 32 and 64 pairs in f16, and trees in every kernel of few rows: keys of the pass in the
 * middle of a chunk and across two, windows, rings past their wrap, two sequences. */
static void check_shared(rig *g)
{
    cuda_device *gpu = g->gpu->self;
    int32_t shallow = gpu->shallow;
    gpu->shallow = 0; /* short contexts too by split_hopper.cu */
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 1300, 1250, 8, .turning = 64});
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 1300, 1250, 13, .turning = 64});
    check_attend(g, &(attend_case){NUM_F16, 16, 2, 512, 300, 1300, 1250, 4, .turning = 64});
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 1300, 1250, 7, .tree = false});
    check_attend(g, &(attend_case){NUM_F16, 8, 4, 256, 500, 1300, 1250, 17, .tree = false});
    check_attend(g, &(attend_case){NUM_F16, 8, 2, 256, 500, 1300, 1250, 9, .turning = 32});
    check_attend(g,
                 &(attend_case){NUM_F16, 8, 1, 512, 0, 600, 380, 16, .tree = true, .turning = 64});
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 600, 509, 12, .tree = true});
    check_attend(g, &(attend_case){NUM_F16, 8, 4, 256, 500, 1300, 1250, 17, .tree = true});
    /* All rows past half of the bucket of 2,048 keys; one that is not; two sequences apart. */
    gpu->shallow = 1024;
    check_attend(g, &(attend_case){NUM_F16, 4, 2, 128, 0, 1400, 1024, 1, .tree = false});
    check_attend(g, &(attend_case){NUM_F16, 4, 2, 128, 0, 1400, 1022, 4, .tree = false});
    check_attend(g, &(attend_case){NUM_F16, 4, 2, 128, 0, 1400, 1030, 4, .two_seqs = true});
    /* Rows of both kernels in a pass. */
    gpu->shallow = 295;
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 600, 290, 12, .turning = 64});
    check_attend(g, &(attend_case){NUM_F16, 16, 2, 256, 0, 600, 290, 9, .tree = false});
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 128, 0, 600, 290, 16, .tree = true});
    check_attend(g, &(attend_case){NUM_F16, 8, 2, 512, 0, 600, 297, 18, .two_seqs = true});
    gpu->shallow = shallow;
    check_attend(g, &(attend_case){NUM_F16, 8, 4, 256, 70, 400, 300, 20, .tree = true});
    check_attend(g, &(attend_case){NUM_F16, 8, 4, 256, 70, 90, 60, 22, .tree = true});
    check_attend(
        g, &(attend_case){NUM_F16, 8, 2, 256, 70, 400, 230, 14, .tree = true, .two_seqs = true});
    check_attend(g, &(attend_case){NUM_F16, 4, 2, 128, 40, 300, 150, 16, .tree = true});
    check_attend(g, &(attend_case){NUM_Q8_0, 8, 4, 256, 50, 90, 70, 18, .tree = true});
    check_attend(g, &(attend_case){NUM_Q5_0, 8, 2, 512, 0, 400, 250, 12, .tree = true});
    check_attend(g, &(attend_case){NUM_Q8_0, 8, 1, 512, 0, 400, 250, 12, .tree = true});
    check_attend(g,
                 &(attend_case){NUM_TQ3_0, 8, 1, 512, 0, 400, 250, 12, .rot = true, .tree = true});
    check_attend(g,
                 &(attend_case){NUM_Q4_0, 8, 1, 512, 0, 400, 250, 9, .tree = true, .turning = 64});
    check_attend(g,
                 &(attend_case){NUM_Q5_1, 8, 1, 512, 0, 400, 250, 9, .tree = true, .turning = 64});
}

/* Few rows of prompts in heads of 512, over so many keys that several blocks share a tile of pairs:
 * one row, one tile and two, many KV heads, rings past their wrap, two sequences, one stream,
 * slices of another format. */
static void check_spread_rows(rig *g)
{
    few_rows(0);
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 2700, 2600, 1, .tree = false});
    /* more than 32 chunks, joined among many rows */
    check_attend(g, &(attend_case){NUM_F16, 8, 4, 256, 1090, 1300, 1200, 4, .tree = false});
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 1300, 1025, 8, .tree = false});
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 1300, 1271, 13, .tree = false});
    check_attend(g, &(attend_case){NUM_F16, 32, 4, 512, 0, 1300, 1100, 3, .tree = false});
    check_attend(g, &(attend_case){NUM_F16, 4, 2, 512, 1100, 2000, 1800, 5, .tree = false});
    check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 1400, 1200, 6, .two_seqs = true});
    check_attend(g, &(attend_case){NUM_F16, 8, 2, 512, 0, 1300, 1100, 5, .turning = 64});
    check_attend(g, &(attend_case){NUM_Q8_0, 8, 1, 512, 0, 1300, 1100, 5, .tree = false});
    if (!g->quick)
        check_attend(g, &(attend_case){NUM_F16, 8, 1, 512, 0, 40000, 36000, 1, .tree = false});
    few_rows(RIG_FEW);
}

/* The kernels of a view with such heads are fast ones. */
static void check_speed(rig *g, num_type t, int32_t n_head_kv, int32_t d, int32_t window)
{
    char said[256] = "";
    kv_layout l;
    kv_spec s = {.window = window, .n_head_kv = n_head_kv, .head_dim = d};
    kv_format f = {t, t == NUM_TQ3_0};
    kv_want_layout want = {.spec = &s,
                           .n = 1,
                           .choice = {.k = f, .v = f, .single = KV_SINGLE_OFF},
                           .n_ctx = 100,
                           .rows_max = 64,
                           .dev = {g->gpu}};
    err e = {0};
    if (kv_layout_init(&l, &want, &e)) {
        failed(g, "attend speed", e.text);
        return;
    }
    kernel_speed speed = cuda_attend_kernel(g->gpu, &l.view[0], said, sizeof said);
    verdict(g, "attend speed", text("%s in heads of %d: %.60s", num_name(t), d, said),
            speed != KERNEL_FULL, 0);
    kv_layout_free(&l);
}

/* Heads of 64, 128 and 256 in groups of any size: few rows, prompts, trees, windows of 512. Quick:
 * f16 and one other format, in turn, for each shape. */
static void check_groups(rig *g)
{
    static const int32_t dims[] = {64, 128, 256}, groups[] = {1, 2, 4, 6, 8, 9, 16};
    static const num_type types[] = {NUM_F16,  NUM_BF16, NUM_Q8_0,   NUM_Q5_1, NUM_Q5_0,
                                     NUM_Q4_1, NUM_Q4_0, NUM_IQ4_NL, NUM_TQ3_0};
    enum { DIMS = 3, GROUPS = 7, TYPES = 9 };
    const char *label = "attend groups";
    cuda_device *gpu = g->gpu->self;
    int32_t shallow = gpu->shallow;
    for (int n = 0; n < DIMS * GROUPS * TYPES; n++) {
        int i = n / TYPES % GROUPS, t = n % TYPES;
        int32_t d = dims[n / TYPES / GROUPS], group = groups[i], heads = group < 9 ? 2 : 1;
        num_type type = types[t];
        bool rot = d >= 128 && i % 2;
        if (type == NUM_TQ3_0 && d < 128)
            continue;
        if (g->quick && t && t != 1 + (n / TYPES) % (TYPES - 1))
            continue;
        attend_case few = {type, group * heads, heads, d, 0, 300, 140, 5, .rot = rot};
        attend_case window = {type, group * heads, heads, d, 512, 900, 700, 3, .rot = rot};
        attend_case prompt = {type, group * heads, heads, d, 0, 200, 70, 34, .rot = rot};
        attend_case tree = {type, group * heads, heads, d, 50, 200, 90, 9, .tree = true};
        gpu->shallow = i % 2 ? shallow : 0;
        few.label = window.label = prompt.label = tree.label = label;
        check_attend(g, &few);
        check_attend(g, &window);
        check_attend(g, &prompt);
        check_attend(g, &tree);
        if (my_turn(g, label))
            check_speed(g, type, heads, d, 0);
    }
    gpu->shallow = shallow;
}

void check_attention(rig *g)
{
    static const attend_case cases[] = {
        {NUM_F32, 4, 2, 32, 0, 300, 0, 1, .tree = false},
        {NUM_F32, 4, 1, 64, 8, 64, 37, 7, .tree = false},
        {NUM_F16, 4, 4, 96, 40, 500, 300, 3, .tree = false},
        {NUM_F16, 8, 2, 256, 512, 2000, 1234, 5, .tree = false},
        {NUM_F16, 16, 2, 512, 0, 1500, 1111, 4, .tree = false},
        {NUM_BF16, 16, 1, 512, 0, 700, 600, 2, .tree = false},
        {NUM_F16, 8, 2, 256, 128, 1000, 700, 15, .tree = true},
        {NUM_F32, 4, 2, 64, 16, 200, 90, 9, .tree = true},
        {NUM_F16, 8, 4, 128, 64, 400, 200, 10, .two_seqs = true},
        {NUM_F16, 8, 4, 256, 100, 400, 0, 70, .tree = false},
        {NUM_F16, 8, 1, 512, 0, 400, 250, 40, .tree = false},
        {NUM_F16, 8, 1, 512, 0, 1500, 1000, 37, .tree = false},
        {NUM_F16, 6, 2, 512, 0, 300, 0, 65, .tree = false},
        {NUM_F16, 4, 2, 512, 70, 200, 110, 40, .tree = false},
        {NUM_F16, 2, 2, 512, 8, 90, 50, 34, .tree = false},
        {NUM_F16, 8, 4, 512, 64, 400, 200, 70, .two_seqs = true},
        {NUM_F16, 8, 2, 512, 50, 400, 90, 48, .tree = true},
        {NUM_F16, 4, 2, 64, 0, 300, 150, 40, .tree = false},
        {NUM_F16, 4, 2, 128, 70, 300, 150, 40, .tree = false},
        {NUM_F16, 8, 1, 256, 0, 1500, 1000, 37, .tree = false},
        {NUM_F16, 6, 2, 256, 0, 300, 0, 65, .tree = false},
        {NUM_F16, 2, 2, 256, 8, 90, 50, 34, .tree = false},
        {NUM_F16, 8, 4, 256, 64, 400, 200, 70, .two_seqs = true},
        {NUM_F16, 8, 2, 256, 50, 400, 90, 48, .tree = true},
        {NUM_BF16, 4, 2, 128, 0, 300, 100, 33, .tree = false},
        {NUM_F16, 8, 1, 128, 0, 1500, 1000, 37, .tree = false},
        {NUM_F16, 6, 2, 128, 0, 300, 0, 65, .tree = false},
        {NUM_F16, 2, 2, 128, 8, 90, 50, 34, .tree = false},
        {NUM_F16, 18, 2, 128, 200, 900, 700, 41, .tree = false},
        {NUM_F16, 8, 4, 128, 64, 400, 200, 70, .two_seqs = true},
        {NUM_F32, 4, 2, 32, 8, 100, 20, 50, .tree = false},
        /* Chunks by the dozen and by the hundred, joined by few threads and by many. */
        {NUM_F16, 4, 2, 64, 0, 6000, 5000, 9, .tree = false},
        {NUM_F16, 4, 2, 64, 0, 24000, 21000, 3, .tree = false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_attend(g, &cases[i]);
    check_sinks(g);
    check_formats(g);
    check_tower_heads(g);
    check_sparse_attention(g);
    check_one_stream(g);
    check_shared(g);
    check_spread_rows(g);
    check_groups(g);
    few_rows(FEW_ROWS);
    check_attend(g, &(attend_case){NUM_F16, 4, 2, 256, 50, 400, 230, FEW_ROWS, .tree = false});
    check_attend(g, &(attend_case){NUM_Q8_0, 8, 2, 512, 0, 400, 230, 41, .tree = false});
    check_attend(g, &(attend_case){NUM_F32, 4, 2, 32, 8, 200, 20, 50, .tree = false});
    few_rows(RIG_FEW);
    if (!g->quick) {
        check_attend(g, &(attend_case){NUM_F16, 32, 16, 256, 1024, 9000, 8000, 8, .tree = false});
        check_attend(g, &(attend_case){NUM_F16, 32, 4, 512, 0, 32000, 31000, 3, .tree = false});
        check_attend(g, &(attend_case){NUM_F16, 32, 16, 256, 1024, 5000, 3000, 300, .tree = false});
        check_attend(g, &(attend_case){NUM_F16, 16, 2, 512, 0, 5000, 2000, 200, .tree = false});
    }
}
