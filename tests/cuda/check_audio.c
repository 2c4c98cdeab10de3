/* check_audio.c - audio towers on the CUDA device: their three ops against the reference, tiny
 * towers against soft tokens of transformers, published widths against the CPU reference, and their
 * memory against its plan.
 */
#include "base/mem.h"
#include "model/audio_test_int.h"
#include "tests/cuda/check_int.h"

#include <unistd.h>

/* Times and places at the borders, odd and even numbers of them, bands that do not begin at the
 * first time. */
static void check_unfold(rig *g, int32_t times, int32_t places, int32_t channels, int32_t first,
                         int32_t n)
{
    static chain c;
    both b;
    mat x[2];
    if (!my_turn(g, "audio unfold"))
        return;
    float *v = draw(g, (size_t)times * (size_t)places * (size_t)channels, 1.0);
    chain_init(&c, 1, 0, 0);
    both_begin(g, &b, &c.st);
    both_mat(g, &b, x, v, times, places, channels);
    mat ref = op_unfold(&b.ref, x[0], first, n), gpu = op_unfold(&b.gpu, x[1], first, n);
    verdict(g, "audio unfold", text("%d of %d times, %d places of %d", n, times, places, channels),
            both_error(g, &b, ref, gpu), 0);
    mem_free(v);
}

static void check_depthwise(rig *g, int32_t rows, int32_t cols, int32_t taps)
{
    static chain c;
    both b;
    mat x[2];
    pair w;
    if (!my_turn(g, "audio depthwise") || !pair_make(g, &w, NUM_F32, taps, cols, 1, 1.0, false))
        return;
    float *v = draw(g, 2 * (size_t)rows * (size_t)cols, 1.0);
    chain_init(&c, 1, 0, 0);
    both_begin(g, &b, &c.st);
    both_mat(g, &b, x, v, rows, 1, 2 * cols);
    mat ref = op_depthwise(&b.ref, mat_columns(x[0], cols, cols), &w.w[0]),
        gpu = op_depthwise(&b.gpu, mat_columns(x[1], cols, cols), &w.w[1]);
    verdict(g, "audio depthwise", text("%d rows of %d, %d taps", rows, cols, taps),
            both_error(g, &b, ref, gpu), F32_BOUND);
    mem_free(v);
    pair_free(g, &w);
}

static void check_near(rig *g, int32_t rows, int32_t heads, int32_t d, int32_t n_near)
{
    static chain c;
    both b;
    mat x[2], far[2], o[2];
    pair scale;
    if (!my_turn(g, "audio near") || !pair_make(g, &scale, NUM_F32, d, 1, 1, 1.0, false))
        return;
    int32_t width = heads * d;
    float *v = draw(g, 3 * (size_t)rows * (size_t)width, 1.0),
          *u = draw(g, (size_t)n_near * (size_t)width, 1.0);
    chain_init(&c, 1, 0, 0);
    both_begin(g, &b, &c.st);
    both_mat(g, &b, x, v, rows, 1, 3 * width);
    both_mat(g, &b, far, u, n_near, heads, d);
    for (int i = 0; i < 2; i++) {
        /* Scores beyond the cap, and few of nearly equal size */
        const near_rule rule = {
            .n_near = n_near, .scale = &scale.w[i], .c = 1.5f, .k_factor = 1.9f, .cap = 5};
        mat part[3];
        for (int k = 0; k < 3; k++)
            part[k] = mat_heads(mat_columns(x[i], k * width, width), d);
        o[i] = op_near(i ? &b.gpu : &b.ref, part[0], part[1], part[2], far[i], &rule);
    }
    verdict(g, "audio near", text("%d rows, %d heads of %d, %d near", rows, heads, d, n_near),
            both_error(g, &b, o[0], o[1]), F32_BOUND);
    mem_free(v);
    mem_free(u);
    pair_free(g, &scale);
}

void check_audio_ops(rig *g)
{
    check_unfold(g, 9, 128, 1, 0, 5);
    check_unfold(g, 8, 64, 3, 1, 3);
    check_unfold(g, 7, 5, 33, 2, 2);
    check_unfold(g, 1, 1, 2, 0, 1);
    check_depthwise(g, 9, 300, 5);
    check_depthwise(g, 3, 32, 5);
    check_depthwise(g, 1, 7, 1);
    check_near(g, 30, 8, 128, 12);
    check_near(g, 5, 2, 16, 12);
    check_near(g, 70, 3, 40, NEAR_MAX);
    check_near(g, 40, 1, 7, 33);
    check_near(g, 4, 1, 64, 1);
}

static void check_golden(rig *g)
{
    static sound_case c[SOUND_CASES];
    sound_cases_read(c);
    for (int i = 0, end; i < SOUND_CASES; i = end) {
        const char *size = c[i].size;
        bool mine = my_turn(g, text("%s audio tower", size));
        const char *path = mine ? sound_file(size, "f32", NULL) : NULL;
        model m = {0};
        if (mine)
            sound_open(&m, path, g->gpu);
        for (end = i; end < SOUND_CASES && !strcmp(c[end].size, size); end++) {
            double worst, rms;
            if (!mine || (g->brief && end > i))
                continue;
            sound_distance(&m, g->gpu, &c[end], &worst, &rms);
            verdict(g, "audio tower golden", text("%-22s %d samples", size, c[end].n_samples),
                    worst, 1e-4);
            verdict(g, "audio tower golden", text("%-22s %d samples, rms", size, c[end].n_samples),
                    rms, 1e-5);
        }
        model_free(&m);
        if (mine)
            unlink(path);
    }
}

/* Widths and heads as published, in files as they are downloaded. The sound is longer than a band
 * of a convolution. */
static void check_published(rig *g)
{
    enum { OF_PROMPT = 33 }; /* a tower's rows are those of a prompt, however few */
    static const struct {
        const char *size, *layers;
        int32_t n_samples;
    } towers[] = {{"mmproj-e4b", "2", 96000}, {"mmproj-12b", NULL, 20000}};
    static const num_type types[] = {NUM_BF16, NUM_F16, NUM_Q8_0, NUM_F32};
    for (size_t i = 0; i < sizeof towers / sizeof *towers; i++)
        for (int t = 0; t < 4; t++) {
            model m[2];
            float *soft[2];
            int32_t n;
            double diff = 0, sum = 0;
            const char *path = sound_file(towers[i].size, num_name(types[t]), towers[i].layers);
            for (int k = 0; k < 2; k++) {
                device *d = k ? g->gpu : g->ref;
                sound_open(&m[k], path, d);
                soft[k] = sound_rows(&m[k], d, 1, towers[i].n_samples, &n);
            }
            for (int32_t at = 0; at < n * audio_of(&m[0])->n_out; at++) {
                double x = soft[0][at], apart = (double)soft[1][at] - x;
                diff += apart * apart;
                sum += x * x;
            }
            /* A layer of a conformer is a chain of nine products. Weights that are not bf16 are
             * rounded to it, so of them both factors are. f32 has no such rounding: it shows the
             * arithmetic. */
            double n_bounds = types[t] == NUM_BF16 || types[t] == NUM_F32 ? 4 : 10;
            verdict(g, "audio tower",
                    text("%-15s %s, %d tokens", towers[i].size, num_name(types[t]), n), diff / sum,
                    n_bounds * product_bound(types[t], OF_PROMPT));
            unlink(path);
            for (int k = 0; k < 2; k++) {
                model_free(&m[k]);
                mem_free(soft[k]);
            }
        }
}

void check_audio_towers(rig *g)
{
    check_golden(g);
    if (my_turn(g, "audio tower memory")) {
        const char *path = sound_file("tiny-mmproj-hears", "bf16", NULL);
        check_memory(g, "e2b", path);
        unlink(path);
    }
    if (!g->quick && my_turn(g, "audio tower"))
        check_published(g);
}
