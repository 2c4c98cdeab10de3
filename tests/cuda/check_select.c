/* check_select.c - block selection on the CUDA device: the lists themselves, entry by entry,
 * against sums in f64 over the means of pages. check_attend.c has attention by these lists.
 *
 * An entry may differ where the share of a tile is within 1e-3 of the threshold: scores of rounded
 * queries and means decide there.
 */
#include "tests/cuda/check_keys.h"
#include "backend/cuda/ops_int.h"
#include "backend/sparse.h"
#include "base/mem.h"

#include <math.h>

enum { LIST_TILES = 192 }; /* of a case, at most */

typedef struct list_case {
    num_type type;
    int32_t n_head, n_head_kv, d, past, rows, turning;
    float alpha;
} list_case;

/* Both stores, of the same bytes, and what a mean is made of. */
typedef struct list_rig {
    const list_case *c;
    kv_layout l;
    kv_view view[2]; /* of the reference, of the device */
    kv_cache cache[2];
    kv_base base[2];
    key_source source;
    float *q; /* as attention meets it */
    float scale;
} list_rig;

static bool open_lists(rig *g, list_rig *r, const list_case *c, step *st)
{
    err e = {0};
    device *dev[2] = {g->ref, g->gpu};
    bool rot = c->type == NUM_TQ3_0;
    if (c->turning && !source_make(g, &r->source, c->d, c->turning))
        return false;
    kv_spec s = {.n_head_kv = c->n_head_kv,
                 .head_dim = c->d,
                 .k_is_v = c->turning > 0,
                 .k_norm = &r->source.norm.w[0],
                 .k_rope = &r->source.on[0]};
    kv_want_layout want = {.spec = &s,
                           .n = 1,
                           .choice = {.k = {c->type, rot},
                                      .v = {c->type, rot},
                                      .single = c->turning ? KV_SINGLE_ON : KV_SINGLE_OFF},
                           .n_ctx = c->past + c->rows,
                           .rows_max = c->rows,
                           .dev = {g->gpu}};
    if (kv_layout_init(&r->l, &want, &e) || kv_open(&r->cache[0], g->ref, &r->l, &e) ||
        kv_open(&r->cache[1], g->gpu, &r->l, &e)) {
        failed(g, "attend lists", e.text);
        return false;
    }
    r->view[0] = r->view[1] = r->l.view[0];
    if (c->turning)
        r->view[1].k_weight = &r->source.norm.w[1], r->view[1].k_rope = &r->source.on[1];
    const kv_view *v = &r->view[0];
    size_t tile = (size_t)SPARSE_TILE * (size_t)c->d, n_rows = (size_t)v->n_slots;
    size_t n = n_rows * (size_t)v->n_head_kv * (size_t)c->d;
    float *k = draw(g, n, 0.3), *common = draw(g, (n / tile + 1) * (size_t)c->d, 0.15);
    void *enc = mem_alloc(n_rows * (size_t)v->n_head_kv * v->k_row_bytes);
    for (size_t i = 0; i < n; i++) /* so that means tell tiles apart */
        k[i] += common[i / tile * (size_t)c->d + i % (size_t)c->d];
    if (rot)
        num_rotate(k, (int64_t)n);
    num_format_of(c->type)->encode(k, enc, (int64_t)n);
    for (int i = 0; i < 2; i++) {
        r->base[i] = r->cache[i].base[0];
        r->base[i].page = NULL;
        dev[i]->upload(dev[i], r->base[i].k, enc, n_rows * (size_t)v->n_head_kv * v->k_row_bytes);
    }
    size_t n_q = (size_t)c->rows * (size_t)c->n_head * (size_t)c->d;
    r->q = draw(g, n_q, 1);
    if (rot && !c->turning)
        num_rotate(r->q, (int64_t)n_q);
    double sigma = c->turning ? 0.3 * 0.3 : 0.3; /* of keys: weights and values */
    r->scale = (float)(6 / (sigma * sqrt((double)c->d)));
    st->kv = &r->base[1];
    mem_free(k);
    mem_free(common);
    mem_free(enc);
    return true;
}

static void close_lists(rig *g, list_rig *r)
{
    for (int i = 0; i < 2; i++)
        kv_close(&r->cache[i]);
    kv_layout_free(&r->l);
    source_free(g, &r->source);
    mem_free(r->q);
}

/* The shares of tiles 0 .. m of a query block and head, relative to the threshold. */
static void shares_of(const list_rig *r, const page_sums *sums, int32_t i, int32_t h, double *share)
{
    const list_case *c = r->c;
    int32_t m = c->past / SPARSE_TILE + i, g = h / (c->n_head / c->n_head_kv);
    double best = -INFINITY, most = 0;
    static double t[LIST_TILES][SPARSE_TILE];
    for (int32_t n = 0; n <= m; n++) {
        const uint16_t *a = page_mean(sums, &r->view[0], g, 2 * n), *b = a + c->d;
        for (int32_t j = n < m ? 0 : SPARSE_TILE - 1; j < SPARSE_TILE; j++) {
            const float *q =
                r->q +
                ((size_t)(SPARSE_TILE * i + j) * (size_t)c->n_head + (size_t)h) * (size_t)c->d;
            double sum = 0;
            for (int32_t d = 0; d < c->d; d++)
                sum += 0.5 * q[d] * ((double)num_bf16_to_f32(a[d]) + num_bf16_to_f32(b[d]));
            t[n][j] = sum * r->scale;
            best = t[n][j] > best ? t[n][j] : best;
        }
    }
    for (int32_t n = 0; n <= m; n++) {
        share[n] = 0;
        for (int32_t j = n < m ? 0 : SPARSE_TILE - 1; j < SPARSE_TILE; j++)
            share[n] += exp(t[n][j] - best);
        most = share[n] > most ? share[n] : most;
    }
    for (int32_t n = 0; n <= m; n++)
        share[n] /= most * c->alpha;
}

/* Of an entry: how far the share is from the threshold where the list is wrong; 0: it is right. */
static double entry_error(const list_rig *r, const double (*share)[LIST_TILES], int32_t m,
                          int32_t n, bool kept)
{
    int32_t group = r->c->n_head / r->c->n_head_kv;
    double nearest = INFINITY, above = 0;
    if (sparse_forced(m, n))
        return kept ? 0 : INFINITY;
    for (int32_t h = 0; h < group; h++) {
        nearest = fmin(nearest, fabs(share[h][n] - 1));
        above = fmax(above, share[h][n] - 1);
    }
    return kept ? above > 0 ? 0 : nearest : above;
}

static void check_lists(rig *g, const list_case *c)
{
    static chain of;
    static double share[16][LIST_TILES];
    list_rig r = {.c = c};
    sparse_rule rule = {.alpha = c->alpha, .n_prompt = 1 << 20};
    int32_t group = c->n_head / c->n_head_kv, n_kept = 0, n_all = 0, beyond = 0;
    double worst = 0;
    pass p;
    if (!my_turn(g, text("attend lists %s", num_name(c->type))))
        return;
    chain_init(&of, c->rows, c->past, 0);
    of.st.prompt = true;
    if (!open_lists(g, &r, c, &of.st)) {
        close_lists(g, &r);
        return;
    }
    of.st.sparse = &rule;
    pass_begin(&p, g->gpu, &of.st, g->gpu_scratch, g->scratch_bytes);
    mat q = pass_mat(&p, c->rows, c->n_head, c->d);
    g->gpu->upload(g->gpu, q.at, r.q, (size_t)c->rows * (size_t)mat_width(q) * sizeof(float));
    const attend_args a = {
        .q = cuda_mat(q),
        .kv = cuda_kv_view(&r.view[1], c->turning ? r.view[1].k_weight->packed : NULL),
        .st = cuda_step(&p, &r.view[1]),
        .n_head = c->n_head,
        .scale = r.scale};
    const uint32_t *at =
        cuda_lists(&p, &r.view[1], p.rows, &a,
                   pass_temp(&p, cuda_select_bytes(&r.view[1], c->rows, c->n_head)));
    int32_t blocks = c->rows / SPARSE_TILE, n_word = sparse_words(r.view[0].n_keys);
    size_t n_list = (size_t)blocks * (size_t)c->n_head_kv * (size_t)n_word;
    uint32_t *lists = mem_calloc(n_list, sizeof *lists);
    g->gpu->download(g->gpu, lists, at, n_list * sizeof *lists);
    page_sums sums = {.n_rows = r.view[0].n_keys / KV_PAGE, .parts = PAGE_SUM_MEAN};
    sums.at = mem_alloc(page_sums_bytes(&sums, &r.view[0]));
    g->ref->sum_pages(g->ref, &r.view[0], &r.base[0], &sums, 0, 0, sums.n_rows);
    for (int32_t i = 0; i < blocks; i++)
        for (int32_t head = 0; head < c->n_head_kv; head++) {
            const uint32_t *list = lists + (size_t)(i * c->n_head_kv + head) * (size_t)n_word;
            int32_t m = c->past / SPARSE_TILE + i;
            for (int32_t h = 0; h < group; h++)
                shares_of(&r, &sums, i, head * group + h, share[h]);
            for (int32_t n = 0; n < 32 * n_word; n++) {
                bool kept = list[n / 32] >> n % 32 & 1;
                if (n > m) {
                    beyond += kept;
                    continue;
                }
                n_all++;
                n_kept += kept;
                worst = fmax(worst, entry_error(&r, share, m, n, kept));
            }
        }
    const char *shape = text("%s%s %d/%dx%d past %d rows %d alpha %g, %d of %d", num_name(c->type),
                             c->turning ? " one" : "", c->n_head, c->n_head_kv, c->d, c->past,
                             c->rows, c->alpha, n_kept, n_all);
    verdict(g, "attend lists", shape, pass_failed(&p) ? INFINITY : worst, 1e-3);
    verdict(g, "attend lists", "entries beyond the query block", beyond, 0);
    verdict(g, "attend lists", "share kept", n_kept / (double)n_all, 0.95);
    mem_free(lists);
    mem_free(sums.at);
    close_lists(g, &r);
}

void check_selection(rig *g)
{
    static const num_type types[] = {NUM_F16,  NUM_BF16, NUM_Q8_0,   NUM_Q5_1, NUM_Q5_0,
                                     NUM_Q4_1, NUM_Q4_0, NUM_IQ4_NL, NUM_TQ3_0};
    static const int32_t dims[] = {128, 256, 512};
    cuda_device *c = g->gpu->self;
    const gpu_facts facts = c->facts;
    c->facts.wgmma = false; /* scores of select.cu; then with queries that come with every stage */
    for (int small = 0; small < 2; small++) {
        c->facts.shared_block = small ? 99 << 10 : facts.shared_block;
        for (int k = 0; k < 3; k++) {
            check_lists(g, &(list_case){NUM_F16, 4, 2, dims[k], 2048, 384, 0, 0.3f});
            check_lists(g, &(list_case){NUM_F16, 1, 1, dims[k], 130 * SPARSE_TILE, 128, 0, 0.5f});
        }
    }
    c->facts = facts;
    for (int i = 0; i < 9; i++)
        for (int k = 0; k < 3; k++)
            if (!g->quick || i % 3 == k)
                check_lists(g, &(list_case){types[i], 4, 2, dims[k], 2048, 256, 0, 0.3f});
    for (int i = 0; i < 9; i += 2)
        check_lists(g, &(list_case){types[i], 2, 1, 512, 1792, 128, 64, 0.6f});
    check_lists(g, &(list_case){NUM_F16, 4, 1, 256, 1792, 128, 32, 0.6f});
    check_lists(g, &(list_case){NUM_F16, 16, 1, 512, 4864, 128, 0, 0.9f});
    check_lists(g, &(list_case){NUM_F16, 1, 1, 128, 5120, 384, 0, 0.5f});
    check_lists(g, &(list_case){NUM_F16, 2, 1, 128, 0, 2304 + 77, 0, 0.5f});
    /* More tiles than are scored at a time: 128, or 64. */
    check_lists(g, &(list_case){NUM_F16, 1, 1, 128, 128 * SPARSE_TILE, 256, 0, 0.5f});
    check_lists(g, &(list_case){NUM_F16, 2, 1, 256, 150 * SPARSE_TILE, 128, 0, 0.5f});
    /* Blocks of threads that take eight heads, of one and of two groups of 64 tiles. */
    c->facts.n_sm = 3;
    for (int k = 0; k < 3; k++)
        check_lists(g, &(list_case){NUM_F16, 6, 2, dims[k], 62 * SPARSE_TILE, 512, 0, 0.5f});
    c->facts = facts;
}
