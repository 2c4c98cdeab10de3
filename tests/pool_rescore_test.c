/* pool_rescore_test.c - the end of a prompt looks at pages: its scores are the shares that the
 * reference computes from all keys, wherever they lie, and the best pages by them are then in the
 * pool. Every format of keys, ends shorter than the watched rows, copies in the file.
 */
#include "backend/ops.h"
#include "base/rng.h"
#include "engine/batch_int.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <math.h>

RELEASED_AT(device_close, device)

enum { CTX = 2560, KEEP = 512, PAGES_MOST = CTX / KV_PAGE };

static void draw(int32_t *ids, int n, uint64_t seed)
{
    for (int i = 0; i < n; i++)
        ids[i] = 20 + (int32_t)rng_below(&seed, 300);
}

/* Logarithms of all queries' shares of page p, side by side, by the reference. */
static void ask_reference(device *ref, kv_cache *c, const page_query *q, int32_t p, float *to)
{
    static unsigned char copy[1 << 20];
    const kv_pager *g = c->pager;
    err e = {0};
    kv_view v = *q->kv;
    kv_page entry = {g->r.page[p].place, p * KV_PAGE};
    kv_base base = {.k = c->base[v.id].k, .page = &entry};
    if (entry.place < 0) {
        CHECK(kv_page_bytes(c->layout) <= sizeof copy);
        CHECK_OK(kv_copy_read(c->pool, &g->copy[p], copy, &e), e);
        base.k = copy + kv_packed_keys(c->pool, v.id);
        entry.place = 0;
        v.n_slots = KV_PAGE;
    }
    const page_rescore l = {q->q, q->scale, 0, 1, to, q->q.rows * q->q.heads};
    ref->rescore_pages(ref, &v, &base, &l);
}

typedef struct scores {
    double of[PAGES_MOST];
    int32_t n_queries;
} scores;

/* What the scores of rescored pages must be: every query has one vote. */
static void expect(device *ref, kv_cache *c, const bool *looked, int32_t n, scores *x)
{
    const page_queries *q = &c->pager->queries;
    static float share[PAGES_MOST][4096];
    *x = (scores){.n_queries = 0};
    for (int32_t i = 0; i < q->n; i++) {
        int32_t n_q = q->at[i].q.rows * q->at[i].q.heads;
        CHECK(n_q <= 4096);
        for (int32_t p = 0; p < n; p++)
            if (looked[p])
                ask_reference(ref, c, &q->at[i], p, share[p]);
        for (int32_t j = 0; j < n_q; j++) {
            double sum = 0;
            for (int32_t p = 0; p < n; p++)
                sum += looked[p] ? exp(share[p][j]) : 0;
            for (int32_t p = 0; p < n; p++)
                x->of[p] += looked[p] ? exp(share[p][j]) / sum : 0;
        }
        x->n_queries += n_q;
    }
}

/* What the votes say of a page that was looked at. */
static double score_of(uint64_t votes)
{
    return (double)(votes % KV_LOOKED) / (1 << PAGE_VOTE_BITS);
}

static void check_scores(const kv_cache *c, const uint64_t *got, const bool *looked, int32_t n,
                         const scores *want)
{
    const kv_pager *g = c->pager;
    int32_t n_looked = 0, n_paged_out = 0;
    double sum = 0;
    for (int32_t p = 0; p < n; p++) {
        bool resident = g->r.page[p].place >= 0;
        CHECK(looked[p] || !resident);
        n_looked += looked[p];
        n_paged_out += looked[p] && !resident;
        sum += looked[p] ? score_of(got[p]) : 0;
        CHECK_MSG(!looked[p] || fabs(score_of(got[p]) - want->of[p]) <= 2e-3 * want->n_queries / n,
                  "page %d has %g of %d queries, expected %g", p, score_of(got[p]),
                  want->n_queries, want->of[p]);
    }
    CHECK_NEAR(sum, want->n_queries, 1e-3 * want->n_queries);
    CHECK(n_looked < n && n_paged_out > 0 &&
          n_paged_out <= (n + KV_RESCORE_PART - 1) / KV_RESCORE_PART);
}

/* No page that may leave has a lower score than one that is away. */
static void check_choice(const kv_cache *c, const uint64_t *score, int32_t n)
{
    const residency *r = &c->pager->r;
    uint64_t worst = UINT64_MAX;
    for (int32_t p = 0; p < n; p++)
        if (r->page[p].place >= 0 && !residency_is_protected(r, p) && score[p] < worst)
            worst = score[p];
    for (int32_t p = 0; p < n; p++)
        CHECK_MSG(r->page[p].place >= 0 || score[p] <= worst, "page %d is away with %g", p,
                  score_of(score[p]));
}

/* Of pages that are away, a quarter is rescored: those with the most votes. */
static void check_quarter(kv_cache *c, int32_t n)
{
    const kv_pager *g = c->pager;
    uint64_t votes[PAGES_MOST];
    err e = {0};
    n -= n % KV_RESCORE_PART;
    for (int32_t p = 0; p < n; p++)
        votes[p] = g->r.page[p].place >= 0 ? 0 : 1 + (uint64_t)p;
    CHECK_OK(kv_rescore_votes(c, &g->queries, votes, n, &e), e);
    for (int32_t p = n - 1, n_paged_out = 0; p >= 0; p--)
        if (g->r.page[p].place < 0)
            CHECK_MSG((votes[p] >= KV_LOOKED) == (n_paged_out++ < n / KV_RESCORE_PART),
                      "page %d has %g", p, score_of(votes[p]));
}

/* A prompt of n tokens, whose last `rows` look. */
static void rescore(const carat_session_options *o, carat_model *m, int32_t n, int32_t rows)
{
    carat_pool_info info;
    static int32_t ids[CTX];
    carat_session *s;
    AUTO_PTR(device_close) device *ref;
    scores want;
    err e = {0};
    draw(ids, n, (uint64_t)n);
    CHECK_OK(device_open_cpu(&ref, &(cpu_options){.n_threads = 1, .reference = true}, &e), e);
    CHECK_OK(carat_session_open(m, o, &s, &e), e);
    CHECK_OK(carat_eval(s, ids, n - rows, NULL, NULL, &e), e);
    timeline *t = session_timeline(s);
    kv_cache *c = &t->kv;
    const kv_pager *g = c->pager;
    const pass_part part = paging_rescore_part((pass_part){
        .t = t,
        .rows = {.token = ids + n - rows, .n = rows, .final = true, .want = KV_WANT_LAST},
        .prompt = true,
        .until = n});
    pass_part rescores = part;
    CHECK(paging_rescores(t, n));
    CHECK_OK(run_pass(m, &s->b.layout, &s->b.w, &rescores, 1, &e), e);
    CHECK_EQ(c->n_past, n - rows);
    int32_t n_pages = g->n_summed;
    bool looked[PAGES_MOST];
    uint64_t got[PAGES_MOST];
    CHECK(n_pages <= PAGES_MOST && g->queries.n == g->queries.cap);
    for (int32_t i = 0; i < g->queries.n; i++) /* the last layer too */
        CHECK_EQ(g->queries.at[i].q.rows, rows < KV_RESCORE_ROWS ? rows : KV_RESCORE_ROWS);
    for (int32_t p = 0; p < n_pages; p++) {
        got[p] = g->watch.votes[PASS_MAIN][p];
        looked[p] = got[p] >= KV_LOOKED;
    }
    expect(ref, c, looked, n_pages, &want);
    check_scores(c, got, looked, n_pages, &want);
    carat_session_get_pool(s, &info);
    CHECK_EQ(info.file_bytes > 0, o->kv_host_mb > 0);
    check_quarter(c, n_pages);
    CHECK_OK(timeline_ready(t, ids + n - rows, n, true, &e), e);
    check_choice(c, got, n_pages);
    carat_session_close(s);
}

PLAIN_TEST(a_prompts_end_has_the_pages_that_it_attends_to)
{
    static const struct {
        const char *type, *single;
        int32_t n, rows;
    } x[] = {{"f32", "off", 1700, 40},      {"f16", "off", 1700, 5},  {"bf16", "off", 1665, 1},
             {"q8_0+rot", "off", 1703, 40}, {"q5_1", "off", 1700, 9}, {"q5_0", "off", 1728, 64},
             {"q4_1", "off", 1700, 40},     {"q4_0", "off", 2500, 8}, {"iq4_nl", "off", 1700, 7},
             {"tq3_0", "off", 1700, 40},    {"f16", "on", 1700, 40},  {"q8_0+rot", "on", 1700, 11}};
    AUTO_MODEL *m =
        toy_model_open(&(toy_model_file){.wide_heads = true, .n_ctx_train = CTX, .scale = 4},
                       &(carat_model_options){.n_threads = 1});
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        const carat_session_options o = {.n_ctx = CTX,
                                         .chunk = 64,
                                         .kv_resident = KEEP,
                                         .kv_k = x[i].type,
                                         .kv_single = x[i].single};
        rescore(&o, m, x[i].n, x[i].rows);
    }
}

/* A page in the file counts as much as one in memory. */
TEST(a_rescore_reads_pages_in_the_file)
{
    AUTO_MODEL *m =
        toy_model_open(&(toy_model_file){.wide_heads = true, .n_ctx_train = CTX, .scale = 4},
                       &(carat_model_options){.n_threads = 1});
    char dir[512];
    snprintf(dir, sizeof dir, "%s", test_temp("looks"));
    const carat_session_options o = {.n_ctx = CTX,
                                     .chunk = 64,
                                     .kv_resident = KEEP,
                                     .kv_k = "f32",
                                     .kv_host_mb = 1,
                                     .checkpoint_mb = 1,
                                     .cache_dir = dir};
    rescore(&o, m, 2500, 40);
}

/* Layers with keys of the whole context on both sides: each side asks its own, and the shares of
 * both are added. */
PLAIN_TEST(every_side_of_a_divided_model_looks)
{
    static const struct {
        const char *base, *words, *devices;
        int32_t gpu_layers, n, rows;
    } x[] = {{"dense", NULL, "cpu,cpu", 3, 1700, 40},
             {"qwen3", "qwen2", "cpu,cpu,cpu", 2, 1703, 5}};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        const carat_model_options mo = {
            .device = x[i].devices, .gpu_layers = x[i].gpu_layers, .n_threads = 1};
        const carat_session_options o = {
            .n_ctx = CTX, .chunk = 64, .kv_resident = KEEP, .kv_k = "f16"};
        AUTO_MODEL *m = toy_model_open(
            &(toy_model_file){
                .base = x[i].base, .words = x[i].words, .n_ctx_train = CTX, .scale = 4},
            &mo);
        int32_t n_sides = 0;
        for (int32_t side = 0; side < m->core.n_sides; side++) {
            bool asked = false;
            for (int32_t k = 0; k < m->core.n_kv; k++)
                asked |= !m->core.kv[k].window && m->core.kv[k].side == side;
            n_sides += asked;
        }
        CHECK_MSG(n_sides >= 2, "%d layers, %d", m->core.n_layer, n_sides);
        rescore(&o, m, x[i].n, x[i].rows);
    }
}
