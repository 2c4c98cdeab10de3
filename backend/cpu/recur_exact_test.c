/* recur_exact_test.c - recurrent layers against numbers that other programs or other algebra give.
 *
 * Against transformers: its chunked form in f64, in tests/data/fidelity/delta.golden
 * (tools/delta_fixture.py). Against the chunked form written out here in f64: 65,536 tokens, over
 * which an error of the state would grow. recur_test.c compares kernels with the definition.
 */
#include "backend/cpu/cpu_test_int.h"
#include "tests/fidelity_model.h"

enum { CHUNK = 64 };

/* A layer and one sequence. Arrays of the heap. */
typedef struct rig {
    recur_view v;
    recur_base base;
    recur_seq seq;
    weight taps, a, dt, norm;
    int32_t parent[ROWS_CAP];
    size_t n_state;
} rig;

static weight make_weight(int32_t n_in, int32_t n_out, uint64_t seed, double mean, double sigma)
{
    weight w = {.name = "w", .type = NUM_F32, .n_in = n_in, .n_out = n_out, .n_mat = 1};
    w.row_bytes = (size_t)n_in * sizeof(float);
    w.mat_bytes = w.n_bytes = w.row_bytes * (size_t)n_out;
    float *at = mem_alloc(w.n_bytes);
    CHECK(at);
    w.data = at;
    fidelity_draw(at, (uint64_t)n_in * (uint64_t)n_out, seed, mean, sigma);
    return w;
}

static float *draw(size_t n, uint64_t seed, double mean, double sigma)
{
    float *x = mem_alloc(n * sizeof *x);
    CHECK(x);
    fidelity_draw(x, n, seed, mean, sigma);
    return x;
}

/* Weights and state have the numbers of the fixture's arrays: 1 taps, 5 ssm_a, 6 dt, 7 norm, 8
 * state. */
static void rig_open(rig *g, recur_view v, uint64_t seed, double state_sigma)
{
    size_t conv = (size_t)(v.n_taps - 1) * (size_t)recur_channels(&v);
    *g = (rig){.v = v};
    g->taps = make_weight(v.n_taps, recur_channels(&v), seed + 1, 0.2, 0.6);
    g->a = make_weight(v.n_v, 1, seed + 5, -1.5, 0.4);
    g->dt = make_weight(v.n_v, 1, seed + 6, -0.5, 0.8);
    g->norm = make_weight(v.dv, 1, seed + 7, 1, 0.3);
    g->n_state = (size_t)v.n_v * (size_t)v.dv * (size_t)v.dk;
    g->base.state = draw(g->n_state, seed + 8, 0, state_sigma);
    g->base.conv = mem_calloc(conv, sizeof(float));
    CHECK(g->base.conv);
    for (int32_t i = 0; i < ROWS_CAP; i++)
        g->parent[i] = i - 1;
}

static void rig_close(rig *g)
{
    test_weight_free(&g->taps);
    test_weight_free(&g->a);
    test_weight_free(&g->dt);
    test_weight_free(&g->norm);
    mem_free(g->base.state);
    mem_free(g->base.conv);
}

/* A pass of n certain rows; the caller adds the ops. */
static pass *rig_pass(rig *g, test_pass *t, device *d, int32_t n)
{
    g->seq = (recur_seq){.n = n, .final = true};
    pass *p = test_pass_begin(t, d, n, 0);
    t->st.n_recur = 1;
    t->st.recur = &g->base;
    t->st.recur_seq = &g->seq;
    t->st.parent = g->parent;
    return p;
}

static mat rows_of(const float *x, int32_t rows, int32_t cols)
{
    return mat_at((float *)x, rows, 1, cols, cols);
}

/* |got - want| / |want|, and the same of the worst element against the mean one. */
typedef struct distance {
    double rms, worst;
} distance;

static distance distance_of(const float *got, const double *want, size_t n)
{
    double se = 0, ss = 0, top = 0;
    for (size_t i = 0; i < n; i++) {
        double t = fabs((double)got[i] - want[i]);
        top = t <= top ? top : t; /* NaN too */
        se += t * t;
        ss += want[i] * want[i];
    }
    return (distance){sqrt(se / ss), top / sqrt(ss / (double)n)};
}

/* ---- Against transformers ------------------------------------------------------------------ */

enum { ROWS = 100, EQUAL_FROM = 20, EQUAL_TO = 32 };

static void check_part(const gguf *g, const char *kase, const char *part, const float *got,
                       size_t n, const char *dev, int32_t chunk)
{
    char name[32];
    snprintf(name, sizeof name, "%s.%s", kase, part);
    const tensor *t = tensor_find(&g->tensors, name);
    CHECK_MSG(t && t->ne[0] == n, "%s is not in the file", name);
    double *want = mem_alloc(n * sizeof *want);
    CHECK(want);
    for (size_t i = 0; i < n; i++)
        want[i] = ((const float *)t->bytes)[i];
    distance d = distance_of(got, want, n);
    printf("  %s, %s, chunk %d: %.1e, worst element %.1e\n", name, dev, chunk, d.rms, d.worst);
    CHECK_MSG(d.rms <= 2e-6 && d.worst <= 5e-5, "%s, %s, chunk %d: %.2e, worst element %.2e", name,
              dev, chunk, d.rms, d.worst);
    mem_free(want);
}

static void check_case(test_pass *t, device *d, const gguf *golden, const char *name, uint64_t seed,
                       double x_sigma, double state_sigma, int32_t chunk)
{
    const recur_view v = {.n_k = 2, .n_v = 6, .dk = 16, .dv = 8, .n_taps = 4};
    int32_t channels = recur_channels(&v), width = v.n_v * v.dv;
    AUTO(rig_close) rig g;
    rig_open(&g, v, seed, state_sigma);
    size_t row = (size_t)channels * sizeof(float), n_out = ROWS * (size_t)width;
    float *x = draw(ROWS * (size_t)channels, seed, 0, x_sigma), *z = draw(n_out, seed + 2, 0, 1.5);
    float *a = draw(ROWS * 6, seed + 3, 0, 5), *b = draw(ROWS * 6, seed + 4, 0, 6);
    float *delta = mem_alloc(n_out * sizeof *delta), *unit = mem_alloc(n_out * sizeof *unit);
    CHECK(delta && unit);
    for (int32_t r = EQUAL_FROM + 1; r < EQUAL_TO; r++)
        memcpy(x + (size_t)r * (size_t)channels, x + EQUAL_FROM * (size_t)channels, row);
    float *state = mem_alloc(g.n_state * sizeof *state);
    CHECK(state);
    memcpy(state, g.base.state, g.n_state * sizeof *state);
    for (int both = 0; both < 2; both++) {
        memcpy(g.base.state, state, g.n_state * sizeof *state);
        memset(g.base.conv, 0, 3 * row);
        for (int32_t r = 0, n; r < ROWS; r += n) {
            n = ROWS - r < chunk ? ROWS - r : chunk;
            pass *p = rig_pass(&g, t, d, n);
            const delta_unit u = {&g.taps, &g.norm, {&g.a, &g.dt}, 1e-6f};
            mat mx = rows_of(x + (size_t)r * (size_t)channels, n, channels);
            mat ma = rows_of(a + r * 6, n, 6), mb = rows_of(b + r * 6, n, 6);
            size_t at = (size_t)r * (size_t)width;
            mat o = both ? op_delta_unit(p, mx, rows_of(z + at, n, width), ma, mb, &u, &g.v)
                         : op_delta(p, op_conv(p, mx, u.taps, &g.v), ma, mb, &u.gate, &g.v);
            CHECK_OK(p->e.status, p->e);
            for (int32_t i = 0; i < n; i++)
                memcpy((both ? unit : delta) + at + (size_t)i * (size_t)width, mat_row(o, i),
                       (size_t)width * sizeof(float));
        }
    }
    check_part(golden, name, "delta", delta, n_out, d->name, chunk);
    check_part(golden, name, "unit", unit, n_out, d->name, chunk);
    check_part(golden, name, "state", g.base.state, g.n_state, d->name, chunk);
    mem_free(x), mem_free(z), mem_free(a), mem_free(b);
    mem_free(delta), mem_free(unit), mem_free(state);
}

TEST(recur_ops_equal_transformers)
{
    static const int32_t chunks[] = {1, 2, 3, 64, ROWS};
    AUTO(gguf_close) gguf golden;
    err e = {0};
    AUTO(test_pass_close) test_pass t;
    CHECK_OK(
        gguf_open(&golden, test_path("tests/data/fidelity/delta.golden"), true, NULL, NULL, &e), e);
    test_pass_open(&t, 16u << 20);
    for (int s = -1; s < N_ISA; s++) {
        AUTO_PTR(device_close)
        device *d = test_device(s < 0 ? NULL : every_isa[s], (cpu_options){.reference = s < 0});
        for (size_t i = 0; d && i < sizeof chunks / sizeof *chunks; i++) {
            check_case(&t, d, &golden, "plain", 3000, 1, 0.3, chunks[i]);
            check_case(&t, d, &golden, "small", 4000, 2e-3, 1e-3, chunks[i]);
        }
    }
}

/* ---- Against the chunked form -------------------------------------------------------------- */

/* Rows of one head, in f64: keys and queries divided by their lengths, queries scaled. */
typedef struct head_rows {
    int32_t n, dk, dv;
    double q[CHUNK][128], k[CHUNK][128], v[CHUNK][128], beta[CHUNK], g[CHUNK];
} head_rows;

static double dot(const double *a, const double *b, int32_t n)
{
    double s[4] = {0};
    int32_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++)
            s[j] += a[i + j] * b[i + j];
    for (; i < n; i++)
        s[0] += a[i] * b[i];
    return (s[0] + s[1]) + (s[2] + s[3]);
}

/* The WY form of a chunk. S: [dv][dk]. With G the running sum of g inside the chunk:
 *
 *     (I + A) X = diag(beta) (V - diag(exp G) K S^T)     A[i][j] = beta_i (k_i.k_j) e^(G_i - G_j)
 *     O = diag(exp G) Q S^T + ((Q K^T) .* e^(G_i - G_j)) X
 *     S = e^(G_n) S + X^T diag(e^(G_n - G)) K
 */
static void chunk_form(const head_rows *h, double *S, double *o)
{
    static double x[CHUNK][128];
    double G[CHUNK], sum = 0;
    int32_t dk = h->dk, dv = h->dv;
    for (int32_t i = 0; i < h->n; i++) {
        G[i] = sum += h->g[i];
        for (int32_t c = 0; c < dv; c++)
            x[i][c] = h->beta[i] * (h->v[i][c] - exp(G[i]) * dot(h->k[i], S + c * dk, dk));
        for (int32_t j = 0; j < i; j++) {
            double a = h->beta[i] * dot(h->k[i], h->k[j], dk) * exp(G[i] - G[j]);
            for (int32_t c = 0; c < dv; c++)
                x[i][c] -= a * x[j][c];
        }
        for (int32_t c = 0; c < dv; c++)
            o[i * dv + c] = exp(G[i]) * dot(h->q[i], S + c * dk, dk);
        for (int32_t j = 0; j <= i; j++) {
            double a = dot(h->q[i], h->k[j], dk) * exp(G[i] - G[j]);
            for (int32_t c = 0; c < dv; c++)
                o[i * dv + c] += a * x[j][c];
        }
    }
    for (int32_t c = 0; c < dv; c++)
        for (int32_t l = 0; l < dk; l++)
            S[c * dk + l] *= exp(sum);
    for (int32_t i = 0; i < h->n; i++) {
        double fade = exp(sum - G[i]);
        for (int32_t c = 0; c < dv; c++)
            for (int32_t l = 0; l < dk; l++)
                S[c * dk + l] += fade * x[i][c] * h->k[i][l];
    }
}

static void by_length(double *to, const float *x, int32_t n, double divide)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    for (int32_t i = 0; i < n; i++)
        to[i] = x[i] / sqrt(sum + 1e-6) / divide;
}

/* Rows of the only head from what op_delta is given. */
static void read_head(head_rows *h, const rig *g, const float *c, const float *a, const float *b,
                      int32_t n)
{
    int32_t dk = g->v.dk, dv = g->v.dv;
    h->n = n, h->dk = dk, h->dv = dv;
    for (int32_t i = 0; i < n; i++, c += 2 * dk + dv) {
        by_length(h->q[i], c, dk, sqrt(dk));
        by_length(h->k[i], c + dk, dk, 1);
        for (int32_t j = 0; j < dv; j++)
            h->v[i][j] = c[2 * dk + j];
        h->beta[i] = 1 / (1 + exp(-(double)b[i]));
        double x = (double)a[i] + *(const float *)g->dt.data;
        h->g[i] = *(const float *)g->a.data * (fmax(x, 0) + log1p(exp(-fabs(x))));
    }
}

/* n tokens through both. Returns the worst distance of a thousand rows, or of the last state. */
static distance drift(test_pass *t, device *d, int32_t dk, int32_t dv, int32_t n)
{
    enum { PART = 1024 };
    static head_rows h;
    const recur_view v = {.n_k = 1, .n_v = 1, .dk = dk, .dv = dv, .n_taps = 2};
    int32_t channels = recur_channels(&v);
    distance worst = {0};
    AUTO(rig_close) rig g;
    rig_open(&g, v, 5000, 0.3);
    double *S = mem_alloc(g.n_state * sizeof *S);
    AUTO_MEM double *want = mem_alloc(PART * (size_t)dv * sizeof *want);
    CHECK(S && want);
    for (size_t i = 0; i < g.n_state; i++)
        S[i] = g.base.state[i];
    *(float *)g.a.data = -0.02f; /* most decays near 1: roundings stay for hundreds of tokens */
    for (int32_t at = 0; at < n; at += PART) {
        uint64_t seed = 6000 + 4 * (uint64_t)at;
        float *c = draw(PART * (size_t)channels, seed, 0, 1), *a = draw(PART, seed + 1, -1, 3);
        float *b = draw(PART, seed + 2, 0, 4);
        for (int32_t r = 0; r < PART; r += CHUNK) {
            for (int32_t i = 1; i < 5; i++) /* equal rows */
                memcpy(c + (r + i) * channels, c + r * channels, (size_t)channels * sizeof *c);
            if (at / PART % 4 == 0)
                a[r + 7] = 1000; /* e^-20: forgets nearly all */
            read_head(&h, &g, c + r * channels, a + r, b + r, CHUNK);
            chunk_form(&h, S, want + r * dv);
        }
        pass *p = rig_pass(&g, t, d, PART);
        mat o = op_delta(p, rows_of(c, PART, channels), rows_of(a, PART, 1), rows_of(b, PART, 1),
                         &(delta_gate){&g.a, &g.dt}, &g.v);
        CHECK_OK(p->e.status, p->e);
        distance now = distance_of(o.at, want, PART * (size_t)dv);
        worst.rms = fmax(worst.rms, now.rms);
        worst.worst = fmax(worst.worst, now.worst);
        mem_free(c), mem_free(a), mem_free(b);
    }
    distance end = distance_of(g.base.state, S, g.n_state);
    printf("  %s, %d tokens, heads of %d and %d: rows %.1e, worst element %.1e; state %.1e, %.1e\n",
           d->name, n, dk, dv, worst.rms, worst.worst, end.rms, end.worst);
    worst.rms = fmax(worst.rms, end.rms);
    mem_free(S);
    return worst;
}

/* Heads of the published size stay as close over as many tokens: bench/journal/exactness.md. */
PLAIN_TEST(recur_rows_equal_the_chunked_form)
{
    AUTO(test_pass_close) test_pass t;
    test_pass_open(&t, 16u << 20);
    for (int s = 0; s < N_ISA; s++) {
        device *d = test_device(every_isa[s], (cpu_options){0});
        if (!d)
            continue;
        distance many = drift(&t, d, 16, 8, test_brief() ? 4096 : 65536);
        distance wide = drift(&t, d, 128, 128, 2048);
        CHECK_MSG(many.rms <= 1e-5 && wide.rms <= 1e-5,
                  "%s: %.2e over many tokens, %.2e in wide heads", d->name, many.rms, wide.rms);
        device_close(d);
    }
}
