/* recall.c - which score of pages finds what a question needs.
 *
 *     build/bench_recall MODEL.gguf CASES.jsonl [TOKENS_MOST [scores | policies]]
 *
 * A line of CASES is a text, questions about it and their answers (tools/demo/recall_cases.py). The
 * text is computed whole, but for its last page or two. For each question, the pages of the text
 * that stay visible are chosen by a score; then the text's end, the question and its answer are
 * computed with those pages alone, through a table of pages, and the answer counts if its every
 * token is the model's first choice.
 *
 * Order of events, as with a pool that is smaller than the context: the end of the prompt is first
 * computed with the youngest pages; its queries give the scores; the end and the answer are
 * computed with the pages that the scores choose. `found`: the question's fact lies in a visible
 * page; `right`: the answer is.
 *
 * Each question prints a line of JSON for each share of pages and each way to choose them, as soon
 * as it has been asked. tools/recall_table.py counts them.
 *
 *     policies   those of --kv-policy, and the oracle: the real attention of the last 8 rows to all
 *                pages, which "scored" has of the visible pages and of the best quarter by bounds.
 *                "bounds": bounds alone. "bounds of old": of one row in the last layer, as a pass
 *                computes it that wants the last row's logits. The model is its own scorer of
 *                "drafter"
 *     scores     many scores side by side
 *
 * A question may name several facts. Then `found` is that of all of them.
 *
 * Sinks and tail are those of kv/residency.h. Queries: of the last 8 rows, or as the policy has it.
 */
#include "backend/key_walk.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/engine_int.h"
#include "kv/rescore.h"
#include "kv/residency.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    LAYERS_MOST = 64,
    ROWS_MOST = 512,
    ASKS_MOST = 64,
    FACTS_MOST = 8, /* of a question */
    QUERY_ROWS = 8,
    WINDOW_ROWS = 64, /* of snapkv */
    SHARES = 3
};
static const double share[SHARES] = {0.25, 0.09, 0.0625};

/* What a page and a query give. */
typedef enum feature {
    F_MASS, /* the share of the query's attention that the page has: the oracle */
    F_COS,  /* cosine with the mean key */
    F_DOT,  /* product with the mean key */
    F_SUB,  /* the largest product with a mean of 16 keys */
    F_BOX,  /* the bound of all products, by the page's summary */
    F_ARK,  /* the same of the middle and the mean distance from it */
    N_FEATURES
} feature;
static const char *const feature_name[] = {"mass", "cos", "dot", "sub16", "box", "ark"};

/* How features of heads and rows become one score. */
typedef struct scoring {
    feature f;
    bool soft;       /* a soft max over the pages first, query by query */
    bool mean_heads; /* else the largest */
    int32_t n_rows;  /* of the last ones, the mean */
    bool max_layers; /* else their mean */
} scoring;

typedef struct layer_queries {
    const kv_view *kv;
    float scale;
    int32_t rows, heads;
    float *q; /* [ROWS_MOST][heads][dim] */
} layer_queries;

static struct {
    carat_model *m;
    device *d;
    device_ops ops;
    const device_ops *plain;
    carat_session *scorer; /* NULL: "drafter" is not asked for */
    float *importance;     /* [n_ctx] */
    kv_layout l;
    kv_cache c;
    kv_batch b;
    void *scratch;
    size_t scratch_bytes;
    int32_t n_vocab, n_pages;
    bool listens;
    int32_t n_layers;
    layer_queries layer[LAYERS_MOST];
    int32_t n_rows[N_FEATURES];            /* of the last rows, the most that a method wants */
    float *value[LAYERS_MOST][N_FEATURES]; /* [ROWS_MOST][heads][n_pages] */
    float *key;                            /* [tokens][dim] of the view at hand */
    kv_page *table;
    float *logits;
} g;

static void or_exit(status st, const err *e)
{
    if (st) {
        fprintf(stderr, "bench_recall: %s\n", e->text);
        exit(1);
    }
}

static void *room(size_t n)
{
    void *p = mem_calloc(1, n ? n : 1);
    if (!p) {
        fprintf(stderr, "bench_recall: no memory\n");
        exit(1);
    }
    return p;
}

static void listening_attend(pass *p, mat *o, mat q, const kv_view *kv, float scale)
{
    if (!p->dry && g.listens && kv->kind == STORE_LINEAR) {
        layer_queries *y = &g.layer[g.n_layers++];
        y->kv = kv;
        y->scale = scale;
        y->rows = q.rows;
        y->heads = q.heads;
        if (!y->q)
            y->q = room((size_t)ROWS_MOST * (size_t)mat_width(q) * 4);
        for (int32_t r = 0; r < q.rows; r++)
            memcpy(y->q + (size_t)r * (size_t)mat_width(q), mat_row(q, r),
                   (size_t)mat_width(q) * 4);
    }
    g.plain->attend(p, o, q, kv, scale);
}

static void open_all(const char *path, int32_t n_ctx)
{
    err e = {0};
    model_costs costs;
    carat_model_options mo = {.device = "cpu"};
    or_exit(carat_model_open(path, &mo, &g.m, &e), &e);
    model *core = &g.m->core;
    g.d = g.m->dev;
    g.plain = g.d->op;
    g.ops = *g.plain;
    g.ops.attend = listening_attend;
    g.d->op = &g.ops;
    kv_want_layout w = {
        .spec = core->kv, .n = core->n_kv, .n_ctx = n_ctx, .rows_max = ROWS_MOST, .dev = {g.d}};
    kv_words words = {.k = "f16", .single = "off"};
    or_exit(kv_choice_parse(&w.choice, &words, &e), &e);
    or_exit(kv_layout_init(&g.l, &w, &e), &e);
    or_exit(kv_open(&g.c, g.d, &g.l, &e), &e);
    or_exit(kv_batch_init(&g.b, ROWS_MOST, 1, &g.l, &e), &e);
    or_exit(model_plan(core, g.d, &g.l, ROWS_MOST, ROWS_MOST, NULL, &costs, &e), &e);
    g.scratch_bytes = costs.side[PASS_MAIN].scratch_bytes + (1 << 22);
    g.scratch = g.d->alloc(g.d, g.scratch_bytes);
    g.n_vocab = core->n_vocab;
    g.n_pages = n_ctx / KV_PAGE + 1;
    g.table = room((size_t)g.n_pages * sizeof *g.table);
    g.key = room((size_t)n_ctx * 1024 * 4);
    g.logits = room((size_t)ROWS_MOST * (size_t)g.n_vocab * 4);
}

/* A pass of n tokens after the committed ones. visible: [n_pages] or NULL, all. The last layer
 * computes the rows that are wanted alone. */
static void run(const int32_t *ids, int32_t n, const bool *visible, kv_want want)
{
    err e = {0};
    pass p;
    or_exit(kv_reserve(&g.c, n, &e), &e);
    kv_batch_clear(&g.b);
    const kv_rows rows = {.token = ids, .n = n, .want = want, .n_wanted = QUERY_ROWS};
    or_exit(kv_batch_add_rows(&g.b, &g.c, &rows, &e), &e);
    if (visible) { /* keys are numbered without those of the other pages */
        int32_t n_table = 0, missing = 0;
        for (int32_t c = 0; c <= (g.c.n_past + n - 1) / KV_PAGE; c++)
            if (visible[c] || c >= g.c.n_past / KV_PAGE)
                g.table[n_table++] = (kv_page){c * KV_PAGE, c * KV_PAGE};
            else
                missing++;
        for (int32_t i = 0; i < g.l.n; i++)
            if (g.l.view[i].kind == STORE_LINEAR)
                g.b.bases[i].page = g.table;
        rowset *sets[] = {&g.b.st.all, &g.b.st.out};
        for (int s = 0; s < 2; s++)
            for (int32_t r = 0; r < sets[s]->n; r++) {
                ((int32_t *)sets[s]->keys[STORE_LINEAR].index)[r] -= missing * KV_PAGE;
                ((int32_t *)sets[s]->keys[STORE_LINEAR].first)[r] -= missing * KV_PAGE;
                ((int32_t *)sets[s]->keys[STORE_LINEAR].last)[r] -= missing * KV_PAGE;
            }
    }
    pass_begin(&p, g.d, &g.b.st, g.scratch, g.scratch_bytes);
    g.n_layers = 0;
    mat y = model_forward(&p, &g.m->core, &g.l);
    pass_end(&p);
    or_exit(p.e.status, &p.e);
    for (int32_t i = 0; want == KV_WANT_ALL && i < y.rows; i++)
        memcpy(g.logits + (size_t)i * (size_t)g.n_vocab, mat_row(y, i), (size_t)g.n_vocab * 4);
}

static int32_t first_choice(int32_t row)
{
    const float *x = g.logits + (size_t)row * (size_t)g.n_vocab;
    int32_t best = 0;
    for (int32_t i = 1; i < g.n_vocab; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

/* ---- Features of pages --------------------------------------------------------------------- */

static void read_keys(const kv_view *kv, int32_t head, int64_t n)
{
    for (int64_t t = 0; t < n; t++)
        num_format_of(kv->k_type)
            ->decode(key_row(kv, g.c.base[kv->id].k, kv->k_row_bytes, head, (size_t)t),
                     g.key + t * kv->head_dim, kv->head_dim);
}

typedef struct page_facts {
    float mean[1024], lo[1024], hi[1024], mid[1024], dev[1024], sub[4][1024];
    float middle[1024], width[1024]; /* of the summary */
} page_facts;

/* The summaries of the first n pages, as a pool has them. The caller frees s->at. */
static void sum_pages(const kv_view *kv, int32_t n, page_sums *s)
{
    kv_base base = g.c.base[kv->id];
    base.page = NULL;
    *s = (page_sums){.n_rows = n, .parts = PAGE_SUM_BOUNDS};
    s->at = room(page_sums_bytes(s, kv));
    if (n)
        g.d->sum_pages(g.d, kv, &base, s, 0, 0, n);
}

static void unpack_bounds(const kv_view *kv, const page_sums *s, int32_t head, int32_t row,
                          page_facts *f)
{
    for (int32_t i = 0; i < kv->head_dim; i++) {
        const uint16_t *scale = page_scales(s, kv, head, row) + i / PAGE_SUM_GROUP * 2;
        f->middle[i] = num_bf16_to_f32(scale[0]) * (float)page_middles(s, kv, head, row)[i];
        f->width[i] = num_bf16_to_f32(scale[1]) * (float)page_widths(s, kv, head, row)[i];
    }
}

static void facts_of(const float *key, int32_t dim, page_facts *f)
{
    for (int32_t i = 0; i < dim; i++) {
        f->lo[i] = INFINITY;
        f->hi[i] = -INFINITY;
        f->dev[i] = 0;
        for (int s = 0; s < 4; s++)
            f->sub[s][i] = 0;
    }
    for (int32_t t = 0; t < KV_PAGE; t++) {
        const float *x = key + (size_t)t * (size_t)dim;
        for (int32_t i = 0; i < dim; i++) {
            f->sub[t / 16][i] += x[i] / 16;
            f->lo[i] = x[i] < f->lo[i] ? x[i] : f->lo[i];
            f->hi[i] = x[i] > f->hi[i] ? x[i] : f->hi[i];
        }
    }
    for (int32_t i = 0; i < dim; i++) {
        f->mean[i] = (f->sub[0][i] + f->sub[1][i] + f->sub[2][i] + f->sub[3][i]) / 4;
        f->mid[i] = (f->lo[i] + f->hi[i]) / 2;
    }
    for (int32_t t = 0; t < KV_PAGE; t++)
        for (int32_t i = 0; i < dim; i++)
            f->dev[i] += fabsf(key[(size_t)t * (size_t)dim + (size_t)i] - f->mid[i]) / KV_PAGE;
}

static float dot(const float *a, const float *b, int32_t n)
{
    float s[8] = {0};
    for (int32_t i = 0; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++)
            s[k] += a[i + k] * b[i + k];
    return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

static float *value_at(int32_t il, feature f, int32_t row, int32_t head)
{
    const layer_queries *y = &g.layer[il];
    return g.value[il][f] + ((size_t)row * (size_t)y->heads + (size_t)head) * (size_t)g.n_pages;
}

static const float *query(const layer_queries *y, int32_t row, int32_t head)
{
    return y->q + ((size_t)row * (size_t)y->heads + (size_t)head) * (size_t)y->kv->head_dim;
}

/* The first of a layer's last n rows. */
static int32_t first_row(const layer_queries *y, int32_t n)
{
    return y->rows > n ? y->rows - n : 0;
}

static float value_of(feature k, const float *q, const float *key, const page_facts *f, int32_t dim,
                      float scale)
{
    float sum = 0, top = -INFINITY;
    switch (k) {
    case F_MASS:
        for (int32_t t = 0; t < KV_PAGE; t++) /* normed rows and columns: far from overflow */
            sum += expf(scale * dot(q, key + (size_t)t * (size_t)dim, dim) - 60);
        return logf(sum);
    case F_COS:
        return dot(f->mean, q, dim) / (sqrtf(dot(f->mean, f->mean, dim)) + 1e-6f) /
               (sqrtf(dot(q, q, dim)) + 1e-6f);
    case F_DOT:
        return scale * dot(q, f->mean, dim);
    case F_SUB:
        for (int s = 0; s < 4; s++) {
            float x = dot(q, f->sub[s], dim);
            top = x > top ? x : top;
        }
        return scale * top;
    case F_BOX:
        for (int32_t i = 0; i < dim; i++)
            sum += q[i] * f->middle[i] + fabsf(q[i]) * f->width[i];
        return scale * sum;
    default:
        for (int32_t i = 0; i < dim; i++)
            sum += q[i] * f->mid[i] + fabsf(q[i]) * f->dev[i];
        return scale * sum;
    }
}

/* The features of the methods, of the whole pages below the committed end. */
static void fill_features(void)
{
    static page_facts f;
    int32_t n_whole = (int32_t)(g.c.n_past / KV_PAGE);
    for (int32_t il = 0; il < g.n_layers; il++) {
        const layer_queries *y = &g.layer[il];
        int32_t dim = y->kv->head_dim, group = y->heads / y->kv->n_head_kv;
        page_sums sums;
        sum_pages(y->kv, n_whole, &sums);
        for (int k = 0; k < N_FEATURES; k++)
            if (g.n_rows[k] && !g.value[il][k])
                g.value[il][k] = room((size_t)ROWS_MOST * (size_t)y->heads * (size_t)g.n_pages * 4);
        for (int32_t head = 0; head < y->kv->n_head_kv; head++) {
            read_keys(y->kv, head, g.c.n_past);
            for (int32_t c = 0; c < n_whole; c++) {
                const float *key = g.key + (size_t)c * KV_PAGE * (size_t)dim;
                facts_of(key, dim, &f);
                unpack_bounds(y->kv, &sums, head, c, &f);
                for (int32_t h = head * group; h < (head + 1) * group; h++)
                    for (int k = 0; k < N_FEATURES; k++)
                        for (int32_t r = first_row(y, g.n_rows[k]); r < y->rows; r++)
                            value_at(il, (feature)k, r, h)[c] =
                                value_of((feature)k, query(y, r, h), key, &f, dim, y->scale);
            }
        }
        mem_free(sums.at);
    }
}

/* seen: [pages] or NULL, all: the pages among which the soft max is. The others have the score 0.
 */
static void score_pages(const scoring *s, const bool *seen, float *score)
{
    int32_t n = (int32_t)(g.c.n_past / KV_PAGE);
    static float x[1 << 14], one[1 << 14], layer[1 << 14];
    for (int32_t c = 0; c < n; c++)
        score[c] = s->max_layers ? -INFINITY : 0;
    for (int32_t il = 0; il < g.n_layers; il++) {
        const layer_queries *y = &g.layer[il];
        int32_t from = first_row(y, s->n_rows);
        for (int32_t c = 0; c < n; c++)
            layer[c] = 0;
        for (int32_t r = from; r < y->rows; r++) {
            for (int32_t c = 0; c < n; c++)
                one[c] = s->mean_heads ? 0 : -INFINITY;
            for (int32_t h = 0; h < y->heads; h++) {
                const float *v = value_at(il, s->f, r, h);
                float top = -INFINITY, sum = 0;
                for (int32_t c = 0; c < n; c++)
                    top = (!seen || seen[c]) && v[c] > top ? v[c] : top;
                for (int32_t c = 0; c < n; c++)
                    sum += !seen || seen[c] ? expf(v[c] - top) : 0;
                for (int32_t c = 0; c < n; c++) {
                    x[c] = seen && !seen[c] ? 0 : s->soft ? expf(v[c] - top) / sum : v[c];
                    one[c] = s->mean_heads   ? one[c] + x[c] / (float)y->heads
                             : x[c] > one[c] ? x[c]
                                             : one[c];
                }
            }
            for (int32_t c = 0; c < n; c++)
                layer[c] += one[c] / (float)(y->rows - from);
        }
        for (int32_t c = 0; c < n; c++)
            score[c] = s->max_layers ? (layer[c] > score[c] ? layer[c] : score[c])
                                     : score[c] + layer[c] / (float)g.n_layers;
    }
}

/* ---- Choosing and asking ------------------------------------------------------------------- */

static const float *sort_score;
static int by_score(const void *a, const void *b)
{
    float x = sort_score[*(const int32_t *)a], y = sort_score[*(const int32_t *)b];
    return x != y ? (x < y ? 1 : -1) : *(const int32_t *)b - *(const int32_t *)a;
}

/* Sinks, tail and the best of the rest: most pages in all. score NULL: the youngest. */
static void choose(const float *score, int32_t most, bool *visible)
{
    static int32_t order[1 << 14];
    int32_t n = (int32_t)(g.c.n_past / KV_PAGE), left = most;
    memset(visible, 0, (size_t)g.n_pages);
    for (int32_t c = 0; c < n; c++)
        if (c < RESIDENCY_SINKS || c >= n - RESIDENCY_TAIL) {
            visible[c] = true;
            left--;
        }
    for (int32_t c = 0; c < n; c++)
        order[c] = c;
    if (score) {
        sort_score = score;
        qsort(order, (size_t)n, sizeof *order, by_score);
    } else {
        for (int32_t c = 0; c < n; c++)
            order[c] = n - 1 - c;
    }
    for (int32_t i = 0; i < n && left > 0; i++)
        if (!visible[order[i]]) {
            visible[order[i]] = true;
            left--;
        }
}

typedef struct ask {
    const int32_t *all;                    /* [n] */
    int32_t ids[ROWS_MOST], n, n_question; /* ids: of the end, which is computed again */
    int64_t fact[FACTS_MOST];              /* tokens at which its facts begin */
    int32_t n_facts;
    int32_t depth; /* of the fact, in percent of the text; -1: not said */
} ask;

static bool is_right(const ask *a, int32_t n_text, const bool *visible)
{
    bool right = true;
    run(a->ids, a->n - n_text, visible, KV_WANT_ALL);
    for (int32_t i = a->n_question; i < a->n; i++)
        right &= first_choice(i - n_text - 1) == a->ids[i - n_text];
    return right;
}

static bool is_found(const ask *a, int32_t n_whole, const bool *visible)
{
    for (int32_t i = 0; i < a->n_facts; i++)
        if (a->fact[i] / KV_PAGE < n_whole && !visible[a->fact[i] / KV_PAGE])
            return false;
    return true;
}

enum { METHODS_MOST = 96 };
static struct {
    char name[48];
    scoring s;
    bool lru, full, drafter;
    bool one_row;  /* the last layer has the prompt's last row alone; else QUERY_ROWS */
    bool rescores; /* masses of a part of the pages, in the order of bounds */
} method[METHODS_MOST];
static int32_t n_methods;

static void add_method(const char *name, const scoring *s)
{
    method[n_methods].s = *s;
    snprintf(method[n_methods++].name, sizeof method[0].name, "%s", name);
    if (s->n_rows > g.n_rows[s->f])
        g.n_rows[s->f] = s->n_rows;
}

/* Those of kv/pager.h, and what they are compared with. Of one row comes last. */
static void add_policies(void)
{
    const scoring bounds = {F_BOX, true, true, QUERY_ROWS, false};
    const scoring mass = {F_MASS, true, true, QUERY_ROWS, false};
    add_method("scored", &mass);
    method[n_methods - 1].rescores = true;
    add_method("oracle", &mass);
    add_method("snapkv", &(scoring){F_BOX, true, true, WINDOW_ROWS, false});
    method[n_methods++] = (__typeof__(method[0])){.name = "drafter", .drafter = true};
    add_method("bounds", &bounds);
    add_method("bounds of old", &bounds);
    method[n_methods - 1].one_row = true;
}

static void add_scores(void)
{
    enum { ALL_ROWS = 32 };
    static const struct {
        bool soft, mean_heads, max_layers;
        int32_t n_rows;
    } kind[] = {{false, false, false, QUERY_ROWS},
                {true, true, false, QUERY_ROWS},
                {true, true, false, ALL_ROWS},
                {true, true, true, QUERY_ROWS},
                {true, true, false, 1},
                {true, false, false, QUERY_ROWS},
                {false, true, false, QUERY_ROWS}};
    char name[48];
    for (int f = 0; f < N_FEATURES; f++)
        for (size_t i = 0; i < sizeof kind / sizeof *kind; i++) {
            if ((f == F_MASS && i != 1 && i != 2) || (f == F_SUB && i != 1) ||
                (i > 1 && f != F_DOT && f != F_MASS && f != F_BOX))
                continue;
            snprintf(name, sizeof name, "%s%s %s heads, %d rows%s", feature_name[f],
                     kind[i].soft ? " soft" : "", kind[i].mean_heads ? "mean" : "max",
                     kind[i].n_rows, kind[i].max_layers ? ", max layers" : "");
            add_method(name, &(scoring){(feature)f, kind[i].soft, kind[i].mean_heads,
                                        kind[i].n_rows, kind[i].max_layers});
        }
}

/* As kv/rescore.c: masses of the visible pages and of the best by bounds. */
static void score_some_pages(const scoring *mass, const bool *visible, float *score)
{
    static int32_t order[1 << 14];
    static float votes[1 << 14];
    static bool seen[1 << 14];
    int32_t n = (int32_t)(g.c.n_past / KV_PAGE);
    score_pages(&(scoring){F_BOX, true, true, QUERY_ROWS, false}, NULL, votes);
    for (int32_t c = 0; c < n; c++) {
        order[c] = c;
        seen[c] = visible[c];
    }
    sort_score = votes;
    qsort(order, (size_t)n, sizeof *order, by_score);
    for (int32_t i = 0; i < (n + KV_RESCORE_PART - 1) / KV_RESCORE_PART; i++)
        seen[order[i]] = true;
    score_pages(mass, seen, score);
    for (int32_t c = 0; c < n; c++)
        score[c] = seen[c] ? score[c] : -1 / votes[c];
}

static void print_line(const char *kind, int32_t n_text, int32_t depth, int k, const char *name,
                       bool found, bool right)
{
    printf("{\"kind\":\"%s\",\"tokens\":%d,\"depth\":%d,\"share\":%g,\"choice\":\"%s\","
           "\"found\":%d,\"right\":%d}\n",
           kind, n_text, depth, share[k], name, found, right);
    fflush(stdout);
}

/* The mean importance of each page's tokens: engine/scorer.c, where both models have one
 * vocabulary. The session keeps the text. */
static void ask_scorer(const ask *a, int32_t n_text, float *score)
{
    err e = {0};
    or_exit(carat_importance(g.scorer, a->all, a->n_question, g.importance, &e), &e);
    for (int32_t c = 0; c < n_text / KV_PAGE; c++) {
        score[c] = 0;
        for (int32_t i = 0; i < KV_PAGE; i++)
            score[c] += g.importance[c * KV_PAGE + i] / KV_PAGE;
    }
}

/* The queries of the prompt's end give features; it sees the youngest pages. */
static void listen(const ask *a, int32_t n_text, int32_t most, bool one_row, bool *visible)
{
    choose(NULL, most, visible);
    g.listens = true;
    run(a->ids, a->n_question - n_text, visible, one_row ? KV_WANT_LAST : KV_WANT_TAIL);
    g.listens = false;
    fill_features();
}

static void ask_all(const char *kind, const ask *asks, int32_t n_asks, int32_t n_text)
{
    bool *visible = room((size_t)g.n_pages);
    float *score = room((size_t)g.n_pages * 4);
    int32_t n_whole = n_text / KV_PAGE, least = RESIDENCY_SINKS + RESIDENCY_TAIL + 1;
    for (int32_t i = 0; i < n_asks; i++) {
        const ask *a = &asks[i];
        bool knows = is_right(a, n_text, NULL);
        for (int k = 0; k < SHARES; k++) {
            int32_t most = (int32_t)(share[k] * n_whole);
            most = most < least ? least : most;
            listen(a, n_text, most, false, visible);
            int32_t n_layers = g.n_layers;
            for (int32_t m = 0; m < n_methods; m++) {
                if (method[m].one_row)
                    listen(a, n_text, most, true, visible);
                g.n_layers = n_layers;
                choose(NULL, most, visible);
                if (method[m].drafter)
                    ask_scorer(a, n_text, score);
                else if (method[m].rescores)
                    score_some_pages(&method[m].s, visible, score);
                else if (!method[m].full && !method[m].lru)
                    score_pages(&method[m].s, NULL, score);
                choose(method[m].lru ? NULL : score, most, visible);
                print_line(kind, n_text, a->depth, k, method[m].name,
                           method[m].full || is_found(a, n_whole, visible),
                           method[m].full ? knows : is_right(a, n_text, visible));
            }
        }
    }
    mem_free(score);
    mem_free(visible);
}

/* ---- Cases --------------------------------------------------------------------------------- */

static void render(const char *text, carat_chat *c)
{
    err e = {0};
    json_t *j = json_pack("[{s:s, s:s}]", "role", "user", "content", text);
    char *words = json_dumps(j, 0);
    or_exit(carat_chat_render(g.m, words, NULL, NULL, c, &e), &e);
    free(words);
    json_decref(j);
}

static char *replaced(const char *frame, const char *with)
{
    const char *at = strstr(frame, "{q}");
    char *text = room(strlen(frame) + strlen(with) + 1);
    memcpy(text, frame, (size_t)(at - frame));
    strcat(text, with);
    strcat(text, at + 3);
    return text;
}

/* says: the sentence of the question's fact, or a list of them. */
static void find_facts(ask *a, const json_t *says, const char *text, int32_t n_ctx)
{
    int32_t *ids = room((size_t)n_ctx * 4);
    size_t n = json_is_array(says) ? json_array_size(says) : 1;
    a->n_facts = 0;
    for (size_t i = 0; i < n && i < FACTS_MOST; i++) {
        const json_t *one = json_is_array(says) ? json_array_get(says, i) : says;
        const char *words = json_string_value(one), *at = words ? strstr(text, words) : NULL;
        err e = {0};
        if (!at) {
            fprintf(stderr, "a fact is not in its text\n");
            exit(1);
        }
        a->fact[a->n_facts++] = carat_tokenize(g.m, text, (size_t)(at - text), 0, ids, n_ctx, &e);
    }
    mem_free(ids);
}

static void run_case(const json_t *j, int32_t n_ctx)
{
    static ask asks[ASKS_MOST];
    static int32_t *text_ids;
    const json_t *list = json_object_get(j, "asks");
    const char *frame = json_string_value(json_object_get(j, "frame"));
    int32_t n_asks = 0, n_text = INT32_MAX;
    int64_t n_first = 0;
    if (!text_ids)
        text_ids = room((size_t)n_ctx * 4);
    static int32_t *all[ASKS_MOST];
    for (size_t i = 0; i < json_array_size(list) && n_asks < ASKS_MOST; i++) {
        const json_t *x = json_array_get(list, i);
        carat_chat c;
        char *text = replaced(frame, json_string_value(json_object_get(x, "q")));
        render(text, &c);
        const char *answer = json_string_value(json_object_get(x, "a"));
        int32_t ids[ROWS_MOST];
        int64_t n_answer = carat_tokenize(g.m, answer, strlen(answer), 0, ids, ROWS_MOST, NULL);
        if (c.n_ids + 128 > n_ctx || n_answer < 1) {
            fprintf(stderr, "a case of %lld tokens is left out\n", (long long)c.n_ids);
            exit(1);
        }
        find_facts(&asks[n_asks], json_object_get(x, "s"), c.text, n_ctx);
        all[n_asks] = room((size_t)n_ctx * 4);
        memcpy(all[n_asks], c.ids, (size_t)c.n_ids * 4);
        memcpy(all[n_asks] + c.n_ids, ids, (size_t)n_answer * 4);
        const json_t *depth = json_object_get(x, "depth");
        asks[n_asks].depth = depth ? (int32_t)json_integer_value(depth) : -1;
        asks[n_asks].n_question = (int32_t)c.n_ids;
        asks[n_asks].n = (int32_t)(c.n_ids + n_answer);
        int32_t same = 0;
        while (n_asks && same < c.n_ids && same < n_first && c.ids[same] == all[0][same])
            same++;
        if (n_asks)
            n_text = same < n_text ? same : n_text;
        else
            n_first = c.n_ids;
        n_asks++;
        carat_chat_free(&c);
        mem_free(text);
    }
    /* The prompt's end is computed again with the chosen pages: engine/paging.c. */
    n_text = n_text / KV_PAGE * KV_PAGE - KV_PAGE;
    if (n_text < 0)
        n_text = 0;
    kv_reset(&g.c);
    for (int32_t at = 0; at < n_text; at += ROWS_MOST) {
        int32_t n = n_text - at < ROWS_MOST ? n_text - at : ROWS_MOST;
        run(all[0] + at, n, NULL, KV_WANT_LAST);
        kv_commit(&g.c, n);
    }
    fprintf(stderr, "a text of %d tokens\n", n_text);
    static ask cut[ASKS_MOST];
    for (int32_t i = 0; i < n_asks; i++) {
        cut[i] = asks[i];
        cut[i].all = all[i];
        memcpy(cut[i].ids, all[i] + n_text, (size_t)(asks[i].n - n_text) * 4);
    }
    const char *kind = json_string_value(json_object_get(j, "kind"));
    ask_all(kind ? kind : "mixed", cut, n_asks, n_text);
    for (int32_t i = 0; i < n_asks; i++) {
        mem_free(all[i]);
        all[i] = NULL;
    }
}

int main(int argc, char **argv)
{
    bool scores = argc > 4 && !strcmp(argv[4], "scores");
    if (argc < 3 || argc > 5 || (argc > 4 && !scores && strcmp(argv[4], "policies") != 0)) {
        fprintf(stderr,
                "usage: bench_recall MODEL.gguf CASES.jsonl [TOKENS_MOST [scores | policies]]\n");
        return 2;
    }
    int32_t n_ctx = argc > 3 ? atoi(argv[3]) : 32768;
    err e = {0};
    FILE *f = fopen(argv[2], "r");
    if (!f || n_ctx < ROWS_MOST) {
        fprintf(stderr, "bench_recall: %s\n", f ? "TOKENS_MOST is too small" : strerror(errno));
        return 1;
    }
    open_all(argv[1], n_ctx);
    method[n_methods++] = (__typeof__(method[0])){.name = "full", .full = true};
    method[n_methods++] = (__typeof__(method[0])){.name = "lru", .lru = true};
    if (scores)
        add_scores();
    else {
        const carat_session_options so = {.n_ctx = n_ctx, .chunk = ROWS_MOST, .checkpoint_mb = -1};
        add_policies();
        or_exit(carat_session_open(g.m, &so, &g.scorer, &e), &e);
        g.importance = room((size_t)n_ctx * 4);
    }
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, f)) > 0) {
        json_t *j;
        or_exit(json_parse(&j, line, (size_t)n, argv[2], &e), &e);
        run_case(j, n_ctx);
        json_decref(j);
    }
    free(line);
    fclose(f);
    return 0;
}
