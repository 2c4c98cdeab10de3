/* check_vision.c - whole vision towers on the CUDA device: tiny ones against soft tokens of
 * transformers, published widths against the CPU reference, and their memory against its plan.
 */
#include "tests/cuda/check_int.h"
#include "carat.h"
#include "model/vision_test_int.h"
#include "tests/deep_prompt.h"

#include <unistd.h>

static void check_soft(rig *g)
{
    static soft_case c[SOFT_CASES];
    soft_read(c);
    for (int i = 0, end; i < SOFT_CASES; i = end) {
        const char *size = c[i].size;
        bool mine = my_turn(g, text("%s tower", size));
        const char *path = mine ? soft_file(size, "f32", NULL) : NULL;
        model m = {0};
        if (mine)
            soft_open(&m, path, g->gpu);
        for (end = i; end < SOFT_CASES && !strcmp(c[end].size, size); end++)
            if (mine && (end == i || !g->brief))
                verdict(g, "tower golden", text("%-20s %d tokens", size, c[end].n),
                        soft_distance(&m, g->gpu, &c[end]), 3e-5);
        model_free(&m);
        if (mine)
            unlink(path);
    }
}

/* Widths, heads and patches as published, in files as they are downloaded. */
static void check_published(rig *g)
{
    static const struct {
        const char *size, *layers;
        int32_t budget, w, h;
    } towers[] = {{"mmproj-e4b", "2", 70, 800, 300},
                  {"mmproj-31b", "2", 70, 300, 800},
                  {"mmproj-12b", NULL, 280, 800, 600},
                  {"mmproj-qwen-27b", "2", 70, 640, 320},
                  {"mmproj-qwen3-vl-2b", "6", 70, 640, 320}};
    static const num_type types[] = {NUM_BF16, NUM_F16, NUM_Q8_0, NUM_F32};
    for (size_t i = 0; i < sizeof towers / sizeof *towers; i++)
        for (int t = 0; t < 4; t++) {
            soft_case c = {
                .budget = towers[i].budget, .seed = 1, .w = towers[i].w, .h = towers[i].h};
            model m[2];
            image_grid grid;
            float *soft[2];
            const char *path = soft_file(towers[i].size, num_name(types[t]), towers[i].layers);
            for (int k = 0; k < 2; k++) {
                device *d = k ? g->gpu : g->ref;
                soft_open(&m[k], path, d);
                soft[k] = soft_rows(&m[k], d, &c, &grid);
            }
            double diff = 0, sum = 0;
            for (int32_t n = grid.n_tokens * (int32_t)vision_width(vision_of(&m[0])), at = 0;
                 at < n; at++) {
                double x = soft[0][at], apart = (double)soft[1][at] - x;
                diff += apart * apart;
                sum += x * x;
            }
            verdict(
                g, "tower",
                text("%-15s %s, %d patches", towers[i].size, num_name(types[t]), grid.n_patches),
                diff / sum, 4 * product_bound(types[t], grid.n_patches)); /* a chain of products */
            unlink(path);
            for (int k = 0; k < 2; k++) {
                model_free(&m[k]);
                mem_free(soft[k]);
            }
        }
}

typedef struct deep_rows {
    FILE *want;
    int32_t n_vocab;
    double worst;
} deep_rows;

static bool compare_rows(void *user, int64_t first, int64_t n, const float *rows)
{
    deep_rows *x = user;
    float want[COLS];
    (void)first;
    for (int64_t r = 0; r < n; r++) {
        if (fread(want, sizeof *want, COLS, x->want) != COLS)
            return false;
        for (int32_t c = 0; c < COLS; c++) {
            double apart = fabs((double)rows[r * x->n_vocab + c] - want[c]);
            x->worst = apart > x->worst || isnan(apart) ? apart : x->worst;
        }
    }
    return true;
}

/* Rows of deepstack that are added to parts of a pass: text models with pictures. */
static void check_deep(rig *g)
{
    FILE *f = fopen(test_path("tests/data/images/deep.f32"), "rb");
    for (int i = 0; i < (g->brief ? 1 : DEEP_SIZES) && f; i++) {
        const carat_session_options o = {
            .n_ctx = CTX, .chunk = 33, .n_outputs = 33, .kv_k = "f32", .checkpoint_mb = -1};
        deep_prompt x = {0};
        carat_session *s = NULL;
        err e = {0};
        deep_begin(&x, deep_sizes[i], "cuda");
        deep_rows rows = {.want = f, .n_vocab = x.n_vocab};
        status st = carat_session_open(x.m, &o, &s, &e);
        if (st || (st = carat_eval_rows(s, x.ids, ALL, compare_rows, &rows, &e)))
            failed(g, "deepstack", e.text);
        else
            verdict(g, "deepstack", deep_sizes[i], rows.worst, 1e-3);
        carat_session_close(s);
        deep_end(&x);
    }
    if (f)
        fclose(f);
    else
        failed(g, "deepstack", "no golden file");
}

void check_towers(rig *g)
{
    check_soft(g);
    if (my_turn(g, "deepstack"))
        check_deep(g);
    if (my_turn(g, "tower memory")) {
        const char *path = soft_file("tiny-mmproj-clamped", "bf16", NULL);
        check_memory(g, "e2b", path);
        unlink(path);
    }
    if (!g->quick && my_turn(g, "tower"))
        check_published(g);
}
