/* check_attend.c - attention on the CUDA device, and the bytes it stores, against
 * backend/cpu/ref.c; and rows in a pass against the same rows alone. check_attend_cases.c and
 * check_sparse.c have the cases.
 *
 *     open       a store on both devices, with random committed keys and values
 *     run        a pass on both: op_kv_store of its own rows, then op_attend
 *     parts      what else must hold of such a case: a table, at the end of this file
 *
 * Bounds are normalised mean square errors: 1e-10 for sums in f32; 2e-6 where queries, keys and
 * probabilities are f16 (a few times the square of 2^-11 / sqrt(3)).
 */
#include "tests/cuda/check_attend.h"
#include "tests/cuda/check_keys.h"
#include "tests/cuda/check_pages.h"
#include "backend/cuda/cuda_int.h"
#include "backend/sparse.h"
#include "base/mem.h"
#include "kv/kv.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A case under way. Pairs are of the reference and the device. */
typedef struct scene {
    const attend_case *a;
    const char *name;
    char shape[128];
    num_type type[2]; /* of keys, values */
    bool rot[2];
    double key_sigma, bound; /* of errors */
    float scale;             /* of scores */
    key_source source;
    pair sinks; /* of half of the cases */
    kv_layout layout;
    kv_view view[2];
    kv_cache cache[2][2]; /* [reference, device][sequence] */
    kv_base base[2][2];
    chain c;
    int32_t other[3][ROWS_MAX]; /* numbers of keys in stores of the other kind */
    step st[2];
    sparse_stats stats[2];  /* what was left out, in all passes of the case */
    sparse_rule rule[2][2]; /* [reference, device][sequence] */
    float *x, *own;         /* of the rows: queries and values; keys */
    both b;
    mat q[2], want; /* queries; the reference's result */
    float *got;     /* the device's, on the host */
} scene;

static bool is_sparse(const scene *s)
{
    return s->a->skip > 0 || s->a->alpha > 0;
}

/* Skip-softmax that drops tiles. */
static bool drops(const scene *s)
{
    return s->a->skip > 0 && s->a->skip != ATTEND_NEVER;
}

static size_t result_bytes(const attend_case *a)
{
    return (size_t)a->rows * (size_t)a->n_head * (size_t)a->d * sizeof(float);
}

static attend_path path_of(const rig *g, const scene *s)
{
    return cuda_attend_path(g->gpu->self, &s->view[1], false);
}

/* Row i of a tree follows this row: threes of siblings, so that a path has a third of the rows. */
static int32_t tree_parent(int32_t i)
{
    return i ? (i < 3 ? 0 : i - 1 - i % 3) : -1;
}

/* ---- A case on both devices ---------------------------------------------------------------- */

static const char *name_of(const rig *g, const attend_case *a)
{
    const cuda_device *c = g->gpu->self;
    return a->label       ? a->label
           : !c->shallow  ? "attend tiles"
           : a->tree      ? "attend tree"
           : a->all       ? "attend all"
           : a->later     ? "attend later"
           : a->skip > 0  ? "attend sparse"
           : a->alpha > 0 ? "attend blocks"
           : a->turning   ? "attend one"
                          : "attend";
}

static void put_shape(scene *s)
{
    const attend_case *a = s->a;
    char format[2][32];
    for (int kv = 0; kv < 2; kv++)
        kv_format_name((kv_format){s->type[kv], s->rot[kv]}, format[kv], sizeof format[kv]);
    snprintf(s->shape, sizeof s->shape, "%s%s%s %d/%dx%d w%d past %d rows %d%s%s%s%s%s", format[0],
             a->values ? "/" : "", a->values ? format[1] : "", a->n_head, a->n_head_kv, a->d,
             a->window, a->past, a->rows, a->tree ? " tree" : "", a->two_seqs ? " 2 seqs" : "",
             a->all ? " all" : "", a->later ? " later" : "", a->wide ? " wide" : "");
}

/* Random rows in every place of the stores. */
static void fill_stores(rig *g, scene *s)
{
    const attend_case *a = s->a;
    const kv_view *v = &s->view[0];
    size_t n_rows = (size_t)v->n_slots * (size_t)a->n_head_kv;
    for (int i = 0; i < s->c.st.n_seqs; i++)
        for (int kv = 0; kv < (a->turning ? 1 : 2); kv++) {
            int32_t planted = a->alpha > 0 && !kv ? SPARSE_TILE * a->d : 0;
            void *enc = encoded(g, s->type[kv], s->rot[kv], n_rows * (size_t)a->d,
                                kv || a->turning ? 1.0 : s->key_sigma, planted);
            size_t bytes = n_rows * (kv ? v->v_row_bytes : v->k_row_bytes);
            const kv_base *ref = &s->base[0][i], *gpu = &s->base[1][i];
            memcpy(kv ? ref->v : ref->k, enc, bytes);
            g->gpu->upload(g->gpu, kv ? gpu->v : gpu->k, enc, bytes);
            mem_free(enc);
        }
}

/* The last key that row i of its sequence sees: the end of its block of a->later rows, and of a
 * window not further ahead than behind. */
static int32_t later_key(const attend_case *a, int32_t i, int32_t first, int32_t last)
{
    int32_t n = a->later ? a->later : 1, end = first + i / n * n + n - 1;
    if (a->window && end > first + i + a->window - 1)
        end = first + i + a->window - 1;
    return end < last ? end : last;
}

/* The rows of the pass: one chain, two, or trees. */
static void number_rows(scene *s)
{
    const attend_case *a = s->a;
    chain *c = &s->c;
    int32_t half = a->cut ? a->cut : a->rows / 2;
    chain_init(c, a->rows, a->past, 0);
    for (int32_t i = 0; i < a->rows; i++) {
        c->seq[i] = a->two_seqs && i >= half;
        int32_t in = c->seq[i] ? i - half : i, parent = tree_parent(in);
        c->first[i] = a->past - 3 * c->seq[i];
        c->index[i] = c->first[i] + in;
        c->last[i] = c->first[i] + (!a->two_seqs ? a->rows : c->seq[i] ? a->rows - half : half) - 1;
        s->other[0][i] = c->index[i] + 1000;
        s->other[1][i] = c->first[i] + 1000;
        s->other[2][i] = c->last[i] + 1000;
        c->newest[i] = later_key(a, in, c->first[i], c->last[i]);
        c->pos[i] = c->index[i];
        if (a->tree) {
            c->seen[i] = (uint64_t)1 << in | (in ? c->seen[i - in + parent] : 0);
            c->pos[i] = in ? c->pos[i - in + parent] + 1 : c->first[i];
        }
    }
    c->st.n_seqs = a->two_seqs ? 2 : 1;
    c->st.all.keys[!s->view[0].kind] = (row_keys){s->other[0], s->other[1], s->other[2], NULL};
    c->st.prompt = of_prompt(a->rows) && !a->tree; /* trees are of answers */
    if (a->tree)
        c->st.all.seen = c->seen;
}

static status open_stores(rig *g, scene *s, err *e)
{
    const attend_case *a = s->a;
    const kv_spec spec = {.window = a->window,
                          .n_head_kv = a->n_head_kv,
                          .head_dim = a->d,
                          .wide = a->wide,
                          .k_is_v = a->turning > 0,
                          .k_norm = &s->source.norm.w[0],
                          .k_rope = &s->source.on[0]};
    const kv_want_layout want = {.spec = &spec,
                                 .n = 1,
                                 .choice = {.k = {s->type[0], s->rot[0]},
                                            .v = {s->type[1], s->rot[1]},
                                            .single = a->turning ? KV_SINGLE_ON : KV_SINGLE_OFF},
                                 .n_ctx = a->n_ctx,
                                 .rows_max = a->rows,
                                 .dev = {g->gpu}};
    status st = kv_layout_init(&s->layout, &want, e);
    if (st)
        return st;
    s->layout.view[0].inside = a->all     ? KV_INSIDE_ALL
                               : a->later ? KV_INSIDE_ROWS
                                          : KV_INSIDE_CAUSAL;
    s->view[0] = s->view[1] = s->layout.view[0];
    if (a->turning)
        s->view[1].k_weight = &s->source.norm.w[1], s->view[1].k_rope = &s->source.on[1];
    for (int side = 0; side < 2 && s->sinks.bytes; side++)
        s->view[side].sinks = &s->sinks.w[side];
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < (a->two_seqs ? 2 : 1); i++) {
            if ((st = kv_open(&s->cache[side][i], side ? g->gpu : g->ref, &s->layout, e)))
                return st;
            s->base[side][i] = s->cache[side][i].base[0];
            s->base[side][i].page = NULL; /* in the order of keys; check_pages.c has the others */
        }
    return OK;
}

static bool scene_open(rig *g, scene *s, const attend_case *a)
{
    err e = {0};
    memset(s, 0, sizeof *s);
    s->a = a;
    s->name = name_of(g, a);
    s->key_sigma = a->wide ? 6e4 : 0.3;
    s->type[0] = a->type;
    s->type[1] = a->values ? a->values : a->type;
    for (int kv = 0; kv < 2; kv++)
        s->rot[kv] =
            s->type[kv] == NUM_TQ3_0 || (a->rot && num_format_of(s->type[kv])->block_n > 1);
    put_shape(s);
    if (a->turning && !source_make(g, &s->source, a->d, a->turning))
        return false;
    if ((rng_below(&g->rng, 2) || a->sinks) &&
        !pair_make(g, &s->sinks, NUM_F32, a->n_head, 1, 1, 4.0, false))
        return false;
    if (open_stores(g, s, &e)) {
        failed(g, "attend", e.text);
        return false;
    }
    number_rows(s);
    fill_stores(g, s);
    return true;
}

static void scene_close(rig *g, scene *s)
{
    mem_free(s->got);
    mem_free(s->own);
    mem_free(s->x);
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < 2; i++)
            if (s->cache[side][i].layout)
                kv_close(&s->cache[side][i]);
    kv_layout_free(&s->layout);
    source_free(g, &s->source);
    if (s->sinks.bytes)
        pair_free(g, &s->sinks);
}

static void rules_init(rig *g, scene *s)
{
    const attend_case *a = s->a;
    for (int side = 0; side < 2; side++) {
        s->stats[side] = (sparse_stats){0};
        for (int i = 0; i < 2; i++) {
            s->rule[side][i] = (sparse_rule){.skip = a->skip,
                                             .alpha = a->alpha,
                                             .n_prompt = a->n_prompt ? a->n_prompt : 1 << 20,
                                             .stats = &s->stats[side]};
            /* The reference does what the device is to do; some checks give it the device's. */
            g->gpu->narrow_sparse(g->gpu, &s->view[1], s->c.st.prompt, &s->rule[side][i]);
        }
    }
}

/* op_kv_store and op_attend on both devices. */
static void run(rig *g, scene *s)
{
    const attend_case *a = s->a;
    size_t n = (size_t)a->rows * (size_t)a->n_head * (size_t)a->d;
    mat k[2], v[2], y;
    s->x = draw(g, n, 1.0);
    for (size_t i = 0; a->alpha > 0 && i < n; i++)
        s->x[i] += point_along(&s->source, i % (size_t)a->d);
    for (int side = 0; side < 2; side++) {
        s->st[side] = s->c.st;
        s->st[side].kv = s->base[side];
    }
    if (is_sparse(s)) {
        pass_begin(&s->b.gpu, g->gpu, &s->st[1], g->gpu_scratch, g->scratch_bytes);
        cuda_take_stats(g->gpu->self, &s->b.gpu); /* of earlier checks, which did not end passes */
        rules_init(g, s);
        s->st[0].sparse = s->rule[0];
        s->c.st.sparse = s->st[1].sparse = s->rule[1];
    }
    both_begin(g, &s->b, &s->st[0]);
    pass_begin(&s->b.gpu, g->gpu, &s->st[1], g->gpu_scratch, g->scratch_bytes);
    s->b.ref.il = s->b.gpu.il = 0;
    both_mat(g, &s->b, s->q, s->x, a->rows, a->n_head, a->d);
    /* Scores of a standard deviation of 1.5, so that many keys count; or tiles are dropped. A row
     * alone has few tiles, so more of them must be far below the largest score. Where none is
     * dropped, larger scores would only have larger errors. */
    double deviation = !drops(s) ? 1.5 : a->rows > 1 ? 4.5 : 6;
    s->scale = (float)(deviation / (s->key_sigma * sqrt((double)a->d)));
    s->own = draw(g, (size_t)a->rows * (size_t)a->n_head_kv * (size_t)a->d, s->key_sigma);
    both_mat(g, &s->b, k, s->own, a->rows, a->n_head_kv, a->d);
    both_mat(g, &s->b, v, s->x, a->rows, a->n_head_kv, a->d);
    op_kv_store(&s->b.ref, &s->view[0], a->turning ? v[0] : k[0], v[0]);
    op_kv_store(&s->b.gpu, &s->view[1], a->turning ? v[1] : k[1], v[1]);
    s->want = op_attend(&s->b.ref, s->q[0], &s->view[0], s->scale);
    y = op_attend(&s->b.gpu, s->q[1], &s->view[1], s->scale);
    s->bound = a->type == NUM_F32 ? 1e-10 : drops(s) ? 1e-4 : 2e-6;
    if (drops(s)) /* one pair's vote on a tile may differ, within rounding of its limit */
        s->bound += 0.05 / ((double)a->rows * a->n_head);
    verdict(g, s->name, s->shape, both_error(g, &s->b, s->want, y), s->bound);
    if (!pass_failed(&s->b.ref) && !pass_failed(&s->b.gpu))
        s->got = gpu_rows(g, y);
}

/* ---- Keys left out ------------------------------------------------------------------------- */

static bool leaves_out(const rig *g, const scene *s)
{
    (void)g;
    return is_sparse(s) && !s->a->least;
}

/* A limit that no tile is under gives the bits of exact attention; in answers a scale of 0. */
static void check_nothing_dropped(rig *g, scene *s)
{
    bool blocks = s->rule[1][0].alpha > 0;
    step *st = &s->st[1];
    float *got[2];
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 2; k++)
            *(blocks ? &s->rule[1][k].alpha : &s->rule[1][k].skip) = st->prompt ? 1e-37f : 0;
        st->sparse = i ? s->rule[1] : NULL;
        got[i] = gpu_rows(g, op_attend(&s->b.gpu, s->q[1], &s->view[1], s->scale));
    }
    verdict(g, blocks ? "attend blocks" : "attend sparse",
            text("%s: nothing dropped, bits that differ", s->shape),
            memcmp(got[0], got[1], result_bytes(s->a)) != 0, 0);
    mem_free(got[0]);
    mem_free(got[1]);
}

/* Tiles that both keep, but for scores near the limit; certificates: those of answers are exact,
 * the reference's are bounds. */
static void check_left_out(rig *g, scene *s)
{
    const sparse_rule *rule = &s->rule[1][0];
    bool blocks = rule->alpha > 0;
    const char *name = blocks ? "attend blocks" : "attend sparse";
    sparse_stats *ref = &s->stats[0], *gpu = &s->stats[1];
    pass_end(&s->b.gpu);
    double kept = (double)ref->n_kept, n = (double)ref->n_tiles;
    verdict(g, name, text("%s: tiles", s->shape), fabs((double)gpu->n_tiles - n), 0);
    verdict(g, name, text("%s: kept of %.0f", s->shape, n), fabs((double)gpu->n_kept - kept),
            blocks ? 0 : 0.005 * n + 1);
    if ((!rule->alpha || rule->n_prompt == 1 << 20) && rule->skip != ATTEND_NEVER)
        verdict(g, name, text("%s: share kept", s->shape), kept / n, blocks ? 0.95 : 0.9);
    double p99 = sparse_quantile(ref, 0.99);
    double off = sparse_quantile(gpu, 0.99) - p99;
    verdict(g, name, text("%s: certificates", s->shape), s->st[1].prompt ? fabs(off) : fmax(off, 0),
            0.25 * p99);
    check_nothing_dropped(g, s);
    rules_init(g, s); /* for the parts that follow */
    s->st[1].sparse = s->rule[1];
}

/* ---- Other kernels ------------------------------------------------------------------------- */

static bool has_flash(const rig *g, const scene *s)
{
    const cuda_device *c = g->gpu->self;
    return s->c.st.prompt && c->hopper && s->a->d >= 128 && path_of(g, s) >= ATTEND_TILES &&
           !s->c.st.sparse;
}

/* The kernels of other GPUs. */
static void check_flash(rig *g, scene *s)
{
    cuda_device *gpu = g->gpu->self;
    bool usual = gpu->hopper;
    gpu->hopper = false;
    mat y = op_attend(&s->b.gpu, s->q[1], &s->view[1], s->scale);
    verdict(g, s->a->turning ? "attend one flash" : "attend flash", s->shape,
            both_error(g, &s->b, s->want, y), 2e-6);
    gpu->hopper = usual;
}

static bool has_spread(const rig *g, const scene *s)
{
    const cuda_device *gpu = g->gpu->self;
    return has_flash(g, s) && gpu->spread && s->a->d == 512;
}

/* Blocks that share a tile of pairs give the bits of one block that has it alone. */
static void check_spread(rig *g, scene *s)
{
    cuda_device *gpu = g->gpu->self;
    gpu->spread = false;
    float *got = gpu_rows(g, op_attend(&s->b.gpu, s->q[1], &s->view[1], s->scale));
    gpu->spread = true;
    verdict(g, "attend spread", text("%s: bits that differ", s->shape),
            memcmp(got, s->got, result_bytes(s->a)) != 0, 0);
    mem_free(got);
}

static bool has_slices(const rig *g, const scene *s)
{
    return s->c.st.prompt && path_of(g, s) == ATTEND_SLICES;
}

/* Slices of any length give the same bits. */
static void check_slices(rig *g, scene *s)
{
    const attend_case *a = s->a;
    cuda_device *gpu = g->gpu->self;
    size_t usual = gpu->slice_bytes, key = 4 * (size_t)a->n_head_kv * (size_t)a->d;
    for (size_t keys = SLICE_KEYS; keys <= 3 * SLICE_KEYS; keys += 2 * SLICE_KEYS) {
        gpu->slice_bytes = keys * key;
        mat y = op_attend(&s->b.gpu, s->q[1], &s->view[1], s->scale);
        verdict(g, a->turning ? "attend one slices" : "attend slices",
                text("%s slices of %d", s->shape, (int)keys), both_error(g, &s->b, s->want, y),
                s->bound);
        float *got = gpu_rows(g, y);
        verdict(g, "attend slices", text("slices of %d and one: bits that differ", (int)keys),
                memcmp(got, s->got, result_bytes(a)) != 0, 0);
        mem_free(got);
    }
    gpu->slice_bytes = usual;
}

/* ---- What is stored ------------------------------------------------------------------------ */

static bool always(const rig *g, const scene *s)
{
    (void)g;
    (void)s;
    return true;
}

/* The rows that op_kv_store wrote have equal bytes on both devices. */
static void check_stored(rig *g, scene *s)
{
    const attend_case *a = s->a;
    const kv_view *v = &s->view[0];
    const chain *c = &s->c;
    int32_t differ = 0;
    for (int32_t i = 0; i < a->rows; i++)
        for (int32_t h = 0; h < a->n_head_kv; h++)
            for (int kv = 0; kv < (v->single ? 1 : 2); kv++) {
                uint8_t got[4096];
                size_t n = kv ? v->v_row_bytes : v->k_row_bytes;
                kv_base ref = s->base[0][c->seq[i]], gpu = s->base[1][c->seq[i]];
                g->gpu->download(g->gpu, got, stored_at(v, gpu, kv, h, c->index[i]), n);
                differ += memcmp(got, stored_at(v, ref, kv, h, c->index[i]), n) != 0;
            }
    verdict(g, "attend stored", text("%d rows, heads that differ in a byte", a->rows), differ, 0);
}

static bool rotates(const rig *g, const scene *s)
{
    (void)g;
    return s->view[0].k_rot && !s->a->turning;
}

/* The case's queries, by op_qkv with that rope. */
static mat queries_by(rig *g, const scene *s, pass *p, const pair *norm, const rope *turn)
{
    const attend_case *a = s->a;
    mat q = pass_mat(p, a->rows, a->n_head, a->d);
    g->gpu->upload(g->gpu, q.at, s->x, result_bytes(a));
    const qkv of = {.q = q, .q_norm = &norm->w[1], .eps = 1e-6f, .q_rope = turn};
    return op_qkv(p, &of, &s->view[1]);
}

/* Queries for rotated keys. Where op_qkv rotates them into a copy, attention gives the bits that it
 * gives without one. Pairs that lie side by side turn behind op_qkv's kernel: then there is no
 * copy. */
static void check_rotation(rig *g, scene *s)
{
    const attend_case *a = s->a;
    pass *p = &s->b.gpu;
    pair norm;
    float freq[256];
    if (!pair_fill(g, &norm, a->d, 1.5f))
        return;
    const int32_t n_pairs = a->d >= 256 ? a->d / 2 : 32; /* that heads_kernel turns */
    mat inv = pass_mat(p, 1, 1, n_pairs);
    for (int32_t i = 0; i < n_pairs; i++)
        freq[i] = (float)pow(1e4, -(double)i / n_pairs);
    g->gpu->upload(g->gpu, inv.at, freq, (size_t)n_pairs * sizeof *freq);
    for (int late = 0; late < 2; late++) {
        const rope turn = {.n_pairs = n_pairs, .inv_freq = inv.at, .interleaved = late};
        const size_t mark = pass_mark(p);
        const mat q = queries_by(g, s, p, &norm, &turn);
        const bool copied = q.copies.state[COPY_ROTATED] == COPY_LINE;
        float *got[2];
        for (int bare = 0; bare < 2; bare++)
            got[bare] = gpu_rows(g, op_attend(p, bare ? mat_bare(q) : q, &s->view[1], 0.1f));
        verdict(g, "attend rotation", late ? "late, copies" : "joined, copies that are missing",
                late ? copied : heads_take(a->d) && !copied, 0);
        verdict(g, "attend rotation",
                text("%s of heads of %d, bits that differ", late ? "late" : "joined", a->d),
                memcmp(got[0], got[1], result_bytes(a)) != 0, 0);
        pass_release(p, mark);
        mem_free(got[0]);
        mem_free(got[1]);
    }
    pair_free(g, &norm);
}

/* ---- Other company ------------------------------------------------------------------------- */

static bool is_tree(const rig *g, const scene *s)
{
    (void)g;
    return s->a->tree;
}

/* The path to row r of a tree, as a chain of its own after the same committed keys: rows that
 * differ in a bit. Its keys take the places of the tree's. */
static int32_t path_differs(rig *g, const scene *s, int32_t r)
{
    static chain c;
    const attend_case *a = s->a;
    const step *st = &s->st[1];
    const kv_view *view = &s->view[1];
    const float *key = a->turning ? s->x : s->own;
    int32_t path[STEP_TREE_ROWS_MAX], n = 0, differ = 0, seq = st->all.seq[r], r0 = r;
    size_t q_width = (size_t)a->n_head * (size_t)a->d, width = (size_t)a->n_head_kv * (size_t)a->d;
    pass p;
    while (r0 > 0 && st->all.seq[r0 - 1] == seq)
        r0--;
    for (int32_t i = r - r0; i >= 0; i = tree_parent(i))
        n++;
    for (int32_t i = r - r0, at = n; i >= 0; i = tree_parent(i))
        path[--at] = r0 + i;
    chain_init(&c, n, rows_keys(&st->all, view)->first[r], 0);
    c.st.prompt = false;
    c.st.n_seqs = st->n_seqs;
    c.st.kv = st->kv;
    c.st.sparse = st->sparse;
    for (int32_t i = 0; i < n; i++)
        c.seq[i] = seq;
    pass_begin(&p, g->gpu, &c.st, g->gpu_scratch, g->scratch_bytes);
    mat q = pass_mat(&p, n, a->n_head, a->d), k = pass_mat(&p, n, a->n_head_kv, a->d);
    mat v = pass_mat(&p, n, a->n_head_kv, a->d);
    for (int32_t i = 0; i < n; i++) {
        size_t from = (size_t)path[i], to = (size_t)i;
        g->gpu->upload(g->gpu, q.at + to * q_width, s->x + from * q_width, q_width * 4);
        g->gpu->upload(g->gpu, k.at + to * width, key + from * width, width * 4);
        g->gpu->upload(g->gpu, v.at + to * width, s->x + from * width, width * 4);
    }
    op_kv_store(&p, view, k, v);
    float *got = gpu_rows(g, op_attend(&p, q, view, s->scale));
    for (int32_t i = 0; i < n; i++)
        differ +=
            memcmp(got + (size_t)i * q_width, s->got + (size_t)path[i] * q_width, q_width * 4) != 0;
    mem_free(got);
    if (pass_failed(&p))
        failed(g, "attend twins", p.e.text);
    return differ;
}

/* Rows of a tree give the bits of chains. */
static void check_twins(rig *g, scene *s)
{
    int32_t n = s->a->rows, differ = 0;
    for (int32_t r = n - 1; r >= 0; r -= n / 3 + 1)
        differ += path_differs(g, s, r);
    verdict(g, "attend twins", text("a tree of %d, rows that differ from a chain's", n), differ, 0);
}

static bool may_be_alone(const rig *g, const scene *s)
{
    const attend_case *a = s->a;
    (void)g;
    return a->rows > 1 && !a->tree && !a->two_seqs && !a->all && !a->later;
}

/* Do rows r .. r + n - 1 give other bits in a pass of their own? */
static bool alone_differs(rig *g, const scene *s, int32_t r, int32_t n)
{
    const attend_case *a = s->a;
    size_t width = (size_t)a->n_head * (size_t)a->d, n_bytes = (size_t)n * width * sizeof(float);
    step st = s->st[1];
    pass p;
    st.all.n = n;
    st.all.token += r, st.all.pos += r, st.all.seq += r;
    for (int kind = 0; kind < STORE_KINDS; kind++) {
        row_keys *keys = &st.all.keys[kind];
        keys->index += r, keys->first += r, keys->last = keys->index;
    }
    pass_begin(&p, g->gpu, &st, g->gpu_scratch, g->scratch_bytes);
    mat q = pass_mat(&p, n, a->n_head, a->d);
    g->gpu->upload(g->gpu, q.at, s->x + (size_t)r * width, n_bytes);
    float *got = gpu_rows(g, op_attend(&p, q, &s->view[1], s->scale));
    bool differs = memcmp(got, s->got + (size_t)r * width, n_bytes) != 0;
    mem_free(got);
    return differs;
}

/* A row alone gives the same bits as among others; of a prompt, in passes of 13; of block
 * selection, in passes of whole query blocks. */
static void check_alone(rig *g, scene *s)
{
    const attend_case *a = s->a;
    int32_t most = a->alpha > 0 ? SPARSE_TILE : s->c.st.prompt ? 13 : 1, differ = 0;
    for (int32_t r = 0, n; r < a->rows; r += n) {
        n = a->alpha > 0 ? SPARSE_TILE - s->c.index[r] % SPARSE_TILE : most;
        n = a->rows - r < n ? a->rows - r : n;
        differ += alone_differs(g, s, r, n);
    }
    verdict(g, "attend alone",
            text("%d rows, %d at a time: passes that differ", a->rows, (int)most), differ, 0);
}

/* ---- Pages --------------------------------------------------------------------------------- */

static bool has_pages(const rig *g, const scene *s)
{
    (void)g;
    return s->view[0].kind == STORE_LINEAR;
}

/* The bits of a linear store do not depend on its pages: by the kernels for it, by those of other
 * GPUs, and in the shortest slices. */
static void check_paged(rig *g, scene *s)
{
    cuda_device *gpu = g->gpu->self;
    attend_path path = path_of(g, s);
    bool usual = gpu->hopper;
    size_t slice = gpu->slice_bytes;
    char with[160];
    placed t = {.st = &s->c.st,
                .ref = &s->view[0],
                .gpu = &s->view[1],
                .base = s->base[0],
                .q = s->x,
                .k = s->a->turning ? s->x : s->own,
                .v = s->x,
                .n_head = s->a->n_head,
                .scale = s->scale,
                .got = s->got,
                .bound = s->bound};
    check_placement(g, &t, s->shape);
    t.got = NULL;
    if (t.st->prompt && path == ATTEND_SLICES) {
        gpu->slice_bytes = 1;
        snprintf(with, sizeof with, "%s slices", s->shape);
        check_placement(g, &t, with);
        gpu->slice_bytes = slice;
    }
    if (has_flash(g, s)) {
        gpu->hopper = false;
        snprintf(with, sizeof with, "%s flash", s->shape);
        check_placement(g, &t, with);
        gpu->hopper = usual;
    }
}

/* ---- A case -------------------------------------------------------------------------------- */

/* In this order: pages come last, because they have stores of their own. */
static const struct {
    bool (*concerns)(const rig *g, const scene *s);
    void (*check)(rig *g, scene *s);
} parts[] = {
    {leaves_out, check_left_out}, {has_flash, check_flash},    {has_slices, check_slices},
    {has_spread, check_spread},   {always, check_stored},      {rotates, check_rotation},
    {is_tree, check_twins},       {may_be_alone, check_alone}, {has_pages, check_paged},
};

void check_attend(rig *g, const attend_case *a)
{
    static scene s;
    cuda_device *cuda = g->gpu->self;
    cuda->skip_least = a->least;
    if (!my_turn(g, text("%s %s", name_of(g, a), num_name(a->type))))
        return;
    bool opened = scene_open(g, &s, a);
    if (opened)
        run(g, &s);
    for (size_t i = 0; s.got && i < sizeof parts / sizeof *parts; i++)
        if (!pass_failed(&s.b.gpu) && parts[i].concerns(g, &s))
            parts[i].check(g, &s);
    scene_close(g, &s);
}
