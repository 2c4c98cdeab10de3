/* audio.c - the ops of audio towers on the CPU: rows over the pool.
 *
 * Products take nine tenths of a tower's time, so these are plain loops that compilers vectorize.
 */
#include "backend/cpu/cpu_int.h"
#include "backend/cpu/table_ops_int.h"

#include <math.h>
#include <string.h>

typedef struct audio_job {
    mat y, q, k, v, far;
    const weight *w;
    const near_rule *rule;
    int32_t rows; /* of a chunk */
} audio_job;

static int32_t end_of(const audio_job *j, int32_t chunk)
{
    int32_t end = (chunk + 1) * j->rows;
    return end < j->y.rows ? end : j->y.rows;
}

static void run_job(pass *p, audio_job *j, void (*fn)(void *arg, int32_t chunk, int32_t thread))
{
    j->rows = 16;
    if (!p->dry)
        pool_run(cpu_of(p)->pool, (j->y.rows + j->rows - 1) / j->rows, fn, j);
}

/* A tap of all channels at once, so that channels are lanes. */
static void depthwise_chunk(void *arg, int32_t chunk, int32_t thread)
{
    const audio_job *j = arg;
    int32_t n = j->w->n_in;
    (void)thread;
    for (int32_t r = chunk * j->rows; r < end_of(j, chunk); r++) {
        float *y = mat_row(j->y, r);
        const float *tap = j->w->data;
        memset(y, 0, (size_t)j->y.cols * sizeof *y);
        for (int32_t t = n - 1 - r > 0 ? n - 1 - r : 0; t < n; t++) {
            const float *x = mat_row(j->q, r - (n - 1) + t);
            for (int32_t c = 0; c < j->y.cols; c++)
                y[c] += tap[(size_t)c * (size_t)n + (size_t)t] * x[c];
        }
    }
}

void cpu_depthwise(pass *p, mat y, mat x, const weight *w)
{
    audio_job j = {.y = y, .q = x, .w = w};
    run_job(p, &j, depthwise_chunk);
}

enum { LANES = 16 };
/* sum of a[i] b[i] (f k[i] + r[i]) */
static float score(const float *q, const float *scale, const float *k, const float *far, float f,
                   int32_t n)
{
    float s[LANES] = {0}, sum = 0;
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int32_t l = 0; l < LANES; l++)
            s[l] += q[i + l] * scale[i + l] * (f * k[i + l] + far[i + l]);
    for (; i < n; i++)
        s[0] += q[i] * scale[i] * (f * k[i] + far[i]);
    for (int32_t l = 0; l < LANES; l++)
        sum += s[l];
    return sum;
}

static void near_head(const audio_job *j, int32_t r, int32_t at)
{
    const near_rule *rule = j->rule;
    int32_t n = r + 1 < rule->n_near ? r + 1 : rule->n_near, width = j->q.cols;
    float s[NEAR_MAX], most = -INFINITY, sum = 0, *o = mat_row(j->y, r) + at;
    for (int32_t d = 0; d < n; d++) {
        float dot =
            rule->c * score(mat_row(j->q, r) + at, rule->scale->data, mat_row(j->k, r - d) + at,
                            mat_row(j->far, d) + at, rule->k_factor, width);
        s[d] = rule->cap * tanhf(dot / rule->cap);
        most = s[d] > most ? s[d] : most;
    }
    for (int32_t d = 0; d < n; d++)
        sum += s[d] = expf(s[d] - most);
    memset(o, 0, (size_t)width * sizeof *o);
    for (int32_t d = 0; d < n; d++) {
        const float *v = mat_row(j->v, r - d) + at;
        float share = s[d] / sum;
        for (int32_t i = 0; i < width; i++)
            o[i] += share * v[i];
    }
}

static void near_chunk(void *arg, int32_t chunk, int32_t thread)
{
    const audio_job *j = arg;
    (void)thread;
    for (int32_t r = chunk * j->rows; r < end_of(j, chunk); r++)
        for (int32_t h = 0; h < j->q.heads; h++)
            near_head(j, r, h * j->q.cols);
}

void cpu_near(pass *p, mat o, mat q, mat k, mat v, mat far, const near_rule *rule)
{
    audio_job j = {.y = o, .q = q, .k = k, .v = v, .far = far, .rule = rule};
    run_job(p, &j, near_chunk);
}
