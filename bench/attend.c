/* attend.c - attention over every format of cache: its time and its error, at the large models'
 * head size of 512.
 *
 *     bench_attend [KEYS [THREADS]]     default 8192 1
 *
 * Keys and values are those of a K=V layer of 31B or 26B-A4B with random weights: the value is a
 * normed random u, the key RoPE(w u). Queries are made alike. Half of the heads attend to all keys,
 * the other half to one key, because models have heads of both kinds.
 *
 * Error: root mean square of the difference from f32 in two streams, divided by the root mean
 * square of f32's result. Time: on one thread the thread's processor time, which other processes
 * disturb less; on several threads the clock's; the median of the repetitions. Ratio: the time of
 * f16 in two streams / this time. Formats take turns, so the keys of each are out of the caches.
 * Table: the time without a table of pages, the keys lying in line, / this time.
 */
#include "backend/ops.h"
#include "base/mem.h"
#include "base/order.h"
#include "base/rng.h"
#include "kv/kv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { DIM = 512, TURNING = 64, REPS = 31, N_WORDS = 21, ROWS_STORED = 512 };

static const struct {
    const char *type, *single;
} words[N_WORDS] = {
    {"f16", "off"},     {"f32", "off"},    {"f32", "on"},       {"f16", "on"},
    {"bf16", "off"},    {"q8_0", "off"},   {"q8_0", "on"},      {"q8_0+rot", "off"},
    {"q5_1", "off"},    {"q5_0", "off"},   {"q5_0+rot", "off"}, {"q4_1", "off"},
    {"q4_1", "on"},     {"q4_0", "off"},   {"q4_0", "on"},      {"q4_0+rot", "off"},
    {"q4_0+rot", "on"}, {"iq4_nl", "off"}, {"iq4_nl", "on"},    {"tq3_0", "off"},
    {"tq3_0", "on"},
};

typedef struct bench {
    device *d;
    int32_t n_head, n_head_kv, n_keys;
    float *u, *k; /* [n_keys, n_head_kv, DIM] */
    weight norm;
    rope turn;
    kv_spec spec;
    kv_layout l[N_WORDS];
    kv_cache c[N_WORDS];
    kv_batch b;
    void *scratch;
    size_t scratch_bytes;
} bench;

static void or_exit(status st, const err *e)
{
    if (st) {
        fprintf(stderr, "%s\n", e->text);
        exit(1);
    }
}

static int32_t n_threads = 1;

static double run_ms(void)
{
    struct timespec t;
    clock_gettime(n_threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void *room(size_t n)
{
    void *p = mem_pages(n);
    if (!p) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    return p;
}

static void open_maker(bench *b, uint64_t *rng)
{
    float *inv = room(DIM / 2 * sizeof *inv), *w = room(DIM * sizeof *w);
    float *turns = room((size_t)ROPE_TURNS * 2 * TURNING * sizeof *turns);
    for (int i = 0; i < DIM; i++) /* scores of a standard deviation of about 1 */
        w[i] = (float)((1 + 0.3 * rng_normal(rng)) / pow(DIM, 0.25));
    for (int i = 0; i < TURNING; i++)
        inv[i] = (float)pow(1e6, -2.0 * i / DIM);
    for (int p = 0; p < ROPE_TURNS; p++)
        for (int i = 0; i < TURNING; i++) {
            turns[2 * p * TURNING + i] = (float)cos((double)p * inv[i]);
            turns[(2 * p + 1) * TURNING + i] = (float)sin((double)p * inv[i]);
        }
    b->turn = (rope){.n_pairs = DIM / 2, .inv_freq = inv, .n_turning = TURNING, .turns = turns};
    b->norm = (weight){.name = "k_norm", .n_in = DIM, .n_out = 1, .n_mat = 1, .data = w};
    b->spec = (kv_spec){.n_head_kv = b->n_head_kv,
                        .head_dim = DIM,
                        .k_is_v = true,
                        .k_norm = &b->norm,
                        .k_rope = &b->turn};
}

/* A normed random vector and RoPE_pos(w u). */
static void draw_row(const bench *b, float *u, float *k, int32_t pos, uint64_t *rng)
{
    const float *w = b->norm.data;
    double sum = 0;
    for (int i = 0; i < DIM; i++) {
        u[i] = (float)rng_normal(rng);
        sum += (double)u[i] * u[i];
    }
    for (int i = 0; i < DIM; i++) {
        u[i] = (float)(u[i] / sqrt(sum / DIM));
        k[i] = w[i] * u[i];
    }
    for (int i = 0; i < TURNING; i++) {
        double a = (double)pos * b->turn.inv_freq[i], x = k[i], y = k[i + DIM / 2];
        k[i] = (float)(x * cos(a) - y * sin(a));
        k[i + DIM / 2] = (float)(x * sin(a) + y * cos(a));
    }
}

static pass *begin_pass(bench *b, pass *p, kv_cache *c, int32_t n)
{
    static int32_t ids[ROWS_STORED];
    err e = {0};
    kv_batch_clear(&b->b);
    or_exit(kv_reserve(c, n, &e), &e);
    or_exit(kv_batch_add(&b->b, c, ids, n, NULL, KV_WANT_NONE, &e), &e);
    pass_begin(p, b->d, &b->b.st, b->scratch, b->scratch_bytes);
    return p;
}

static void store_all(bench *b, int i)
{
    pass p;
    int32_t width = b->n_head_kv * DIM;
    for (int32_t at = 0; at < b->n_keys; at += ROWS_STORED) {
        int32_t n = b->n_keys - at < ROWS_STORED ? b->n_keys - at : ROWS_STORED;
        mat u = mat_at(b->u + (size_t)at * (size_t)width, n, b->n_head_kv, DIM, width), k = u;
        k.at = b->k + (size_t)at * (size_t)width;
        begin_pass(b, &p, &b->c[i], n);
        op_kv_store(&p, &b->l[i].view[0], b->l[i].view[0].single ? u : k, u);
        or_exit(p.e.status, &p.e);
        kv_commit(&b->c[i], n);
    }
    b->c[i].n_past--; /* the last key is the row that attends */
}

static void open_bench(bench *b, int32_t n_head, int32_t n_head_kv, int32_t n_keys)
{
    uint64_t rng = 5;
    err e = {0};
    *b = (bench){.n_head = n_head, .n_head_kv = n_head_kv, .n_keys = n_keys};
    or_exit(device_open_cpu(&b->d, &(cpu_options){.n_threads = n_threads}, &e), &e);
    open_maker(b, &rng);
    size_t n = (size_t)n_keys * (size_t)n_head_kv * DIM;
    b->u = room(n * 4);
    b->k = room(n * 4);
    for (size_t i = 0; i < n; i += DIM)
        draw_row(b, b->u + i, b->k + i, (int32_t)(i / DIM) / n_head_kv, &rng);
    b->scratch_bytes = (size_t)256 << 20;
    b->scratch = room(b->scratch_bytes);
    for (int i = 0; i < N_WORDS; i++) {
        kv_want_layout w = {
            .spec = &b->spec, .n = 1, .n_ctx = n_keys, .rows_max = ROWS_STORED, .dev = {b->d}};
        const kv_words say = {.k = words[i].type, .single = words[i].single};
        or_exit(kv_choice_parse(&w.choice, &say, &e), &e);
        or_exit(kv_layout_init(&b->l[i], &w, &e), &e);
        or_exit(kv_open(&b->c[i], b->d, &b->l[i], &e), &e);
        if (!i)
            or_exit(kv_batch_init(&b->b, ROWS_STORED, 1, &b->l[0], &e), &e);
        store_all(b, i);
    }
}

/* The first half of the heads attends to all keys; the others to one, with a score of about 12. */
static void draw_queries(const bench *b, float *q, uint64_t *rng)
{
    float u[DIM];
    for (int32_t h = 0; h < b->n_head; h++) {
        float *to = q + (size_t)h * DIM;
        draw_row(b, u, to, b->n_keys - 1, rng);
        if (h % 2 == 0)
            continue;
        size_t at = rng_below(rng, (uint64_t)b->n_keys) * (size_t)b->n_head_kv +
                    (size_t)(h / (b->n_head / b->n_head_kv));
        const float *k = b->k + at * DIM;
        double kk = 0;
        for (int i = 0; i < DIM; i++)
            kk += (double)k[i] * k[i];
        for (int i = 0; i < DIM; i++)
            to[i] += (float)(12 / kk) * k[i];
    }
}

static double error_of(const bench *b, const float *x, const float *want, int odd)
{
    double diff = 0, sum = 0;
    for (int32_t h = odd; h < b->n_head; h += 2)
        for (size_t i = (size_t)h * DIM; i < (size_t)(h + 1) * DIM; i++) {
            diff += ((double)x[i] - want[i]) * ((double)x[i] - want[i]);
            sum += (double)want[i] * want[i];
        }
    return sqrt(diff / sum);
}

static void run_bench(const char *name, int32_t n_head, int32_t n_head_kv, int32_t n_keys)
{
    static bench b;
    static double ms[N_WORDS][REPS], line_ms[N_WORDS][REPS];
    uint64_t rng = 9;
    open_bench(&b, n_head, n_head_kv, n_keys);
    size_t n = (size_t)n_head * DIM;
    float *q = room(n * 4), *o = room(n * 4 * N_WORDS);
    draw_queries(&b, q, &rng);
    for (int r = -1; r < REPS; r++)
        for (int i = 0; i < N_WORDS; i++) {
            pass p;
            mat to = mat_at(o + (size_t)i * n, 1, n_head, DIM, (int64_t)n), from = to;
            from.at = q;
            begin_pass(&b, &p, &b.c[i], 1);
            for (int k = 0; k < 2; k++) {
                bool line = k == (r & 1);
                b.b.bases[0].page = line ? NULL : b.c[i].base[0].page;
                double t0 = run_ms();
                b.d->op->attend(&p, &to, from, &b.l[i].view[0], 1.0f);
                or_exit(p.e.status, &p.e);
                if (r >= 0)
                    (line ? line_ms : ms)[i][r] = run_ms() - t0;
            }
        }
    printf("%s: one row, %d keys, %d query heads, %d key heads of %d, on %s\n", name, n_keys,
           n_head, n_head_kv, DIM, b.d->name);
    printf("| type | streams | bytes/token | time | of f16 | table | spread attention | on one key "
           "|\n");
    printf("| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    double base = 0;
    for (int i = 0; i < N_WORDS; i++) {
        const kv_view *v = &b.l[i].view[0];
        qsort(ms[i], REPS, sizeof ms[i][0], order_doubles);
        qsort(line_ms[i], REPS, sizeof ms[i][0], order_doubles);
        double t = ms[i][REPS / 2];
        base = i ? base : t;
        const float *x = o + (size_t)i * n, *want = o + n; /* words[1] is f32 in two */
        printf("| %s | %d | %zu | %.0f us | %.2f | %.2f | %.2e | %.2e |\n", words[i].type,
               v->single ? 1 : 2, (v->k_row_bytes + v->v_row_bytes) * (size_t)n_head_kv, t * 1e3,
               base / t, line_ms[i][REPS / 2] / t, error_of(&b, x, want, 0),
               error_of(&b, x, want, 1));
    }
    for (int i = 0; i < N_WORDS; i++) {
        kv_close(&b.c[i]);
        kv_layout_free(&b.l[i]);
    }
    kv_batch_free(&b.b);
    device_close(b.d);
    mem_pages_free(b.scratch, b.scratch_bytes);
    mem_pages_free(b.u, (size_t)n_keys * (size_t)n_head_kv * DIM * 4);
    mem_pages_free(b.k, (size_t)n_keys * (size_t)n_head_kv * DIM * 4);
}

int main(int argc, char **argv)
{
    int32_t n_keys = argc > 1 ? atoi(argv[1]) : 8192;
    if (argc > 2)
        n_threads = atoi(argv[2]);
    if (n_keys < 2 || n_keys > 1 << 20 || n_threads < 1 || n_threads > 64)
        return fprintf(stderr, "usage: bench_attend [KEYS [THREADS]]\n"), 2;
    run_bench("31B", 32, 4, n_keys);
    run_bench("26B-A4B", 16, 2, n_keys);
    run_bench("12B", 16, 1, n_keys);
    return 0;
}
