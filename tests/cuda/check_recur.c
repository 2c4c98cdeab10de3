/* check_recur.c - recurrent layers of the CUDA device: the ops against the definition, with chains,
 * trees, certain and pending rows of several sequences; and against themselves, bit for bit: kept
 * rows leave what a fresh run of them leaves, settled in between or not, and a prompt leaves the
 * same wherever it is cut. */
#include "tests/cuda/check_int.h"
#include "base/mem.h"
#include "kv/snapshot.h"

#include <string.h>

enum { LINES = 3, TOKENS = 96, JOURNAL = 16, PASS_ROWS = ROWS_MAX };

typedef struct shape {
    int32_t n_k, n_v, dk, dv, n_taps;
} shape;

/* A layer on both devices: [0] the reference's. */
typedef struct layer {
    recur_view v;
    pair taps, a, dt, norm;
    float *x, *z, *fade, *share; /* [TOKENS] rows */
    bool apart;                  /* the GPU computes a unit op by op */
    bool prompts;                /* passes of certain rows are of prompts, however few they are */
} layer;

/* A timeline, its store on both devices. */
typedef struct line {
    recur_base base[2];
    float *memory[2];
    float *block; /* the GPU's part of a started block */
    size_t n_bytes, n_floats, block_bytes;
    recur_seq s;
    int32_t n; /* rows that are committed */
} line;

typedef struct part {
    line *l;
    const int32_t *token, *parent;
    int32_t n;
    bool final;
} part;

static bool layer_open(rig *g, layer *y, const shape *s)
{
    *y = (layer){.v = {.n_k = s->n_k,
                       .n_v = s->n_v,
                       .dk = s->dk,
                       .dv = s->dv,
                       .n_taps = s->n_taps,
                       .journal_rows = JOURNAL}};
    if (s->dk == g->gpu->recur_head && s->dv == g->gpu->recur_head)
        y->v.block = g->gpu->recur_block;
    size_t n = (size_t)recur_channels(&y->v), nv = (size_t)s->n_v;
    if (!pair_make(g, &y->taps, NUM_F32, s->n_taps, (int32_t)n, 1, 0.5, true) ||
        !pair_make(g, &y->a, NUM_F32, s->n_v, 1, 1, 1.0, false) ||
        !pair_make(g, &y->dt, NUM_F32, s->n_v, 1, 1, 0.5, false) ||
        !pair_make(g, &y->norm, NUM_F32, s->dv, 1, 1, 1.0, false))
        return false;
    float *a = y->a.bytes; /* negative, the last of three strong */
    for (int32_t j = 0; j < s->n_v; j++)
        a[j] = j % 3 == 2 ? -5.0f : -0.02f * (float)(j % 7 + 1);
    g->gpu->upload(g->gpu, y->a.w[1].packed, a, nv * sizeof *a);
    y->x = draw(g, TOKENS * n, 1.0);
    y->z = draw(g, TOKENS * nv * (size_t)s->dv, 2.0);
    y->fade = draw(g, TOKENS * nv, 2.0);
    y->share = draw(g, TOKENS * nv, 4.0);
    for (size_t t = 5; t < TOKENS; t += 5) /* repeated keys */
        memcpy(y->x + t * n, y->x + (t - 1) * n, n * sizeof(float));
    for (size_t j = 0; j < nv; j++) {
        y->share[7 * nv + j] = -30;
        y->share[8 * nv + j] = 30;
        y->fade[9 * nv + j] = -40;
        y->fade[10 * nv + j] = 4;
    }
    return true;
}

static void layer_close(rig *g, layer *y)
{
    pair_free(g, &y->taps);
    pair_free(g, &y->a);
    pair_free(g, &y->dt);
    pair_free(g, &y->norm);
    mem_free(y->x);
    mem_free(y->z);
    mem_free(y->fade);
    mem_free(y->share);
}

static void line_open(rig *g, line *l, const recur_view *v, double state)
{
    size_t n_state = (size_t)v->n_v * (size_t)v->dv * (size_t)v->dk;
    size_t conv = (size_t)(v->n_taps - 1) * (size_t)recur_channels(v);
    size_t journal = (size_t)v->journal_rows * (size_t)recur_journal_row(v);
    *l = (line){.n_floats = n_state + conv + 2 * journal};
    l->n_bytes = l->n_floats * sizeof(float);
    l->block_bytes = (recur_block_floats(v) + 64) * sizeof(float);
    l->block = g->gpu->alloc(g->gpu, l->block_bytes);
    for (int i = 0; i < 2; i++) {
        device *d = i ? g->gpu : g->ref;
        float *at = l->memory[i] = d->alloc(d, l->n_bytes);
        l->base[i] = (recur_base){.state = at,
                                  .conv = at + n_state,
                                  .journal = {at + n_state + conv},
                                  .block = i ? l->block : NULL};
        l->base[i].journal[1] = l->base[i].journal[0] + journal;
    }
    float *first = draw(g, n_state, state);
    memcpy(l->base[0].state, first, n_state * sizeof *first);
    g->gpu->upload(g->gpu, l->base[1].state, first, n_state * sizeof *first);
    mem_free(first);
}

static void line_close(rig *g, line *l)
{
    g->ref->release(g->ref, l->memory[0], l->n_bytes);
    g->gpu->release(g->gpu, l->memory[1], l->n_bytes);
    g->gpu->release(g->gpu, l->block, l->block_bytes);
}

static void keep(line *l, const int32_t *path, int32_t n)
{
    l->s.bank = !l->s.bank;
    l->s.n_pending = n;
    l->n += n;
    for (int32_t i = 0; i < n; i++)
        l->s.pending[i] = path ? path[i] : i;
}

static void settle(rig *g, const layer *y, line *l)
{
    g->ref->settle(g->ref, &y->v, &l->base[0], 1, &l->s);
    g->gpu->settle(g->gpu, &y->v, &l->base[1], 1, &l->s);
    l->s.n_pending = 0;
}

/* Rows of a pass, part after part. */
typedef struct laid_rows {
    chain c;
    recur_base base[2][LINES];
    recur_seq seq[LINES];
    int32_t parent[PASS_ROWS], token[PASS_ROWS], n;
} laid_rows;

static void lay_rows(laid_rows *to, const layer *y, const part *parts, int32_t n_parts)
{
    chain *c = &to->c;
    int32_t rows = 0;
    bool certain = true;
    chain_init(c, PASS_ROWS, 0, 0);
    for (int32_t i = 0; i < n_parts; i++) {
        const part *w = &parts[i];
        to->base[0][i] = w->l->base[0];
        to->base[1][i] = w->l->base[1];
        to->seq[i] = w->l->s;
        to->seq[i].row0 = rows;
        to->seq[i].n = w->n;
        to->seq[i].final = w->final;
        certain = certain && w->final;
        for (int32_t k = 0; k < w->n; k++, rows++) {
            int32_t from = w->parent ? w->parent[k] : k - 1;
            to->parent[rows] = from < 0 ? -1 : to->seq[i].row0 + from;
            to->token[rows] = w->token[k];
            c->pos[rows] = w->l->n + k;
            c->seq[rows] = i;
        }
        if (w->final)
            w->l->n += w->n;
        if (w->parent)
            c->st.all.seen = c->seen;
    }
    to->n = c->st.all.n = rows;
    c->st.n_seqs = n_parts;
    c->st.n_kv = 0;
    c->st.n_recur = 1;
    c->st.recur_seq = to->seq;
    c->st.parent = to->parent;
    c->st.prompt = y->prompts ? certain : parts->final && parts->n >= 5;
}

/* The rows of `from`, [tokens][width], that the pass has. */
static void both_rows(rig *g, both *b, mat m[2], const float *from, const laid_rows *r,
                      int32_t width)
{
    size_t n = (size_t)width;
    float *x = mem_alloc((size_t)r->n * n * sizeof *x);
    for (int32_t i = 0; i < r->n; i++)
        memcpy(x + (size_t)i * n, from + (size_t)r->token[i] * n, n * sizeof *x);
    both_mat(g, b, m, x, r->n, 1, width);
    mem_free(x);
}

/* One pass on both devices, of a prompt if its first part is five certain rows or more, or as
 * layer.prompts says. The GPU's outputs to `out`, where it is not NULL; returns the error against
 * the reference. */
static double run(rig *g, layer *y, const part *parts, int32_t n_parts, float *out)
{
    static laid_rows r;
    lay_rows(&r, y, parts, n_parts);
    step st[2] = {r.c.st, r.c.st};
    st[0].recur = r.base[0];
    st[1].recur = r.base[1];
    both b;
    both_begin(g, &b, &st[1]);
    b.ref.st = &st[0];
    b.ref.rows = &st[0].all;
    mat mx[2], mz[2], ma[2], mb[2], o[2];
    device_ops apart = *g->gpu->op, *usual = (device_ops *)g->gpu->op;
    apart.delta_unit = NULL;
    both_rows(g, &b, mx, y->x, &r, recur_channels(&y->v));
    both_rows(g, &b, mz, y->z, &r, y->v.n_v * y->v.dv);
    both_rows(g, &b, ma, y->fade, &r, y->v.n_v);
    both_rows(g, &b, mb, y->share, &r, y->v.n_v);
    g->gpu->op = y->apart ? &apart : usual;
    for (int i = 0; i < 2; i++) {
        const delta_unit u = {&y->taps.w[i], &y->norm.w[i], {&y->a.w[i], &y->dt.w[i]}, 1e-6f};
        o[i] = op_delta_unit(i ? &b.gpu : &b.ref, mx[i], mz[i], ma[i], mb[i], &u, &y->v);
    }
    double e = both_error(g, &b, o[0], o[1]);
    g->gpu->op = usual;
    if (out && !pass_failed(&b.gpu)) {
        float *got = gpu_rows(g, o[1]);
        memcpy(out, got, (size_t)r.n * (size_t)mat_width(o[1]) * sizeof *got);
        mem_free(got);
    }
    for (int32_t i = 0; i < n_parts; i++)
        parts[i].l->s.n_pending = 0;
    return e;
}

/* The error of the whole store. */
static double store_error(rig *g, const line *l)
{
    double diff = 0, sum = 0;
    float *got = mem_alloc(l->n_bytes);
    g->gpu->download(g->gpu, got, l->memory[1], l->n_bytes);
    for (size_t i = 0; i < l->n_floats; i++) {
        double d = (double)got[i] - l->memory[0][i];
        diff += d * d;
        sum += (double)l->memory[0][i] * l->memory[0][i];
    }
    mem_free(got);
    return diff / (sum > 0 ? sum : 1);
}

static double larger(double a, double b)
{
    return a > b || a != a ? a : b;
}

/* A tree: 0 - 1 - 2, 0 - 3 - 4, 5 - 6, 3 - 7. */
static const int32_t tree[8] = {-1, 0, 1, 0, 3, -1, 5, 3};

static void check_shape(rig *g, const shape *s, int32_t n_prompt)
{
    static int32_t prompt[PASS_ROWS];
    static const int32_t drafts[] = {12, 13, 14, 15, 16, 17, 18, 19}, next[] = {21, 22, 23};
    layer y;
    line l[LINES];
    double e = 0, stores = 0;
    if (!my_turn(g, "recur") || !layer_open(g, &y, s))
        return;
    for (int32_t i = 0; i < n_prompt; i++)
        prompt[i] = i % TOKENS;
    for (int i = 0; i < LINES; i++)
        line_open(g, &l[i], &y.v, 0.3);
    const part first[] = {{&l[0], prompt, NULL, n_prompt, true},
                          {&l[1], prompt + 1, NULL, 2, false},
                          {&l[2], prompt, NULL, 1, true}};
    e = larger(e, run(g, &y, first, 3, NULL));
    keep(&l[1], NULL, 2);
    const part second[] = {{&l[0], drafts, tree, 8, false},
                           {&l[1], next, NULL, 1, false},
                           {&l[2], prompt, NULL, 7, true}};
    e = larger(e, run(g, &y, second, 3, NULL));
    keep(&l[0], (const int32_t[]){0, 3, 7}, 3);
    keep(&l[1], NULL, 1);
    const part third[] = {{&l[0], next, NULL, 3, true},
                          {&l[1], next, NULL, 3, false},
                          {&l[2], drafts, tree, 8, false}};
    e = larger(e, run(g, &y, third, 3, NULL));
    keep(&l[1], NULL, 2);
    keep(&l[2], (const int32_t[]){5, 6}, 2);
    const part fourth[] = {{&l[0], drafts, NULL, 8, false},
                           {&l[1], next, NULL, 1, true},
                           {&l[2], prompt, NULL, 12, false}};
    e = larger(e, run(g, &y, fourth, 3, NULL));
    for (int i = 0; i < LINES; i++) {
        stores = larger(stores, store_error(g, &l[i]));
        line_close(g, &l[i]);
    }
    char *what = text("%d/%d heads of %d, %d; %d taps; %d rows", s->n_k, s->n_v, s->dk, s->dv,
                      s->n_taps, n_prompt);
    verdict(g, "recur", what, e, 1e-10);
    verdict(g, "recur stores", what, stores, 1e-10);
    layer_close(g, &y);
}

/* Runs four passes: five final rows; a chain of eight rows, of which n0 are committed; a tree, of
 * which n1 are committed; three final rows. Compares them with a new run of the committed rows on
 * the same device, op by op. 0: bit-equal. */
static double kept_error(rig *g, layer *y, int32_t n0, int32_t n1, bool settled)
{
    int32_t token[32], path[] = {0, 3, 4}, all[32], n = 0;
    size_t width = (size_t)y->v.n_v * (size_t)y->v.dv;
    float *a = mem_calloc(32 * width, sizeof *a), *b = mem_calloc(32 * width, sizeof *b);
    line l, again;
    for (int32_t i = 0; i < 32; i++)
        token[i] = i;
    line_open(g, &l, &y->v, 0);
    line_open(g, &again, &y->v, 0);
    run(g, y, &(part){&l, token, NULL, 5, true}, 1, b);
    for (; n < 5; n++)
        all[n] = n;
    run(g, y, &(part){&l, token + 5, NULL, 8, false}, 1, b + 5 * width);
    keep(&l, NULL, n0);
    for (int32_t i = 0; i < n0; i++)
        all[n++] = token[5 + i];
    if (settled)
        settle(g, y, &l);
    run(g, y, &(part){&l, token + 13, tree, 8, false}, 1, a);
    for (int32_t i = 0; i < n1; i++) {
        memcpy(b + (size_t)n * width, a + (size_t)path[i] * width, width * sizeof *a);
        all[n++] = token[13 + path[i]];
    }
    keep(&l, path, n1);
    if (settled)
        settle(g, y, &l);
    run(g, y, &(part){&l, token + 21, NULL, 3, true}, 1, b + (size_t)n * width);
    for (int32_t i = 0; i < 3; i++)
        all[n++] = token[21 + i];
    y->apart = true;
    run(g, y, &(part){&again, all, NULL, n, true}, 1, a);
    y->apart = false;
    double e = memcmp(a, b, (size_t)n * width * sizeof *a) ? 1 : 0;
    size_t state = (size_t)(l.base[1].journal[0] - l.base[1].state) * sizeof(float);
    float *x = mem_alloc(state), *z = mem_alloc(state);
    g->gpu->download(g->gpu, x, l.memory[1], state);
    g->gpu->download(g->gpu, z, again.memory[1], state);
    e += memcmp(x, z, state) ? 1 : 0;
    mem_free(x);
    mem_free(z);
    mem_free(a);
    mem_free(b);
    line_close(g, &l);
    line_close(g, &again);
    return e;
}

static void check_kept(rig *g, const shape *s)
{
    layer y;
    double e = 0;
    if (!my_turn(g, "recur kept") || !layer_open(g, &y, s))
        return;
    y.v.block = 0; /* answers, and prompts row by row */
    for (int32_t n0 = 0; n0 <= 8; n0 += g->quick ? 4 : 1)
        for (int32_t n1 = 0; n1 <= 3; n1++)
            e += kept_error(g, &y, n0, n1, (n0 + n1) % 2);
    verdict(g, "recur kept", text("%d/%d heads of %d, %d: bits", s->n_k, s->n_v, s->dk, s->dv), e,
            0);
    layer_close(g, &y);
}

/* ---- Blocks of prompts --------------------------------------------------------------------- */

static const int32_t *tokens_from(int32_t first)
{
    static int32_t list[TOKENS + PASS_ROWS];
    for (int32_t i = 0; i < TOKENS + PASS_ROWS; i++)
        list[i] = i * 31 % TOKENS;
    return list + first % TOKENS;
}

/* Prompts in company, after answers of which a part is kept, in a first block that answers began.
 */
static void check_blocks(rig *g, const shape *s, int32_t n_prompt)
{
    static const int32_t drafts[] = {12, 13, 14, 15, 16, 17, 18, 19};
    layer y;
    line l[LINES];
    double e = 0, stores = 0;
    if (!my_turn(g, "recur blocks") || !layer_open(g, &y, s))
        return;
    y.prompts = true;
    for (int i = 0; i < LINES; i++)
        line_open(g, &l[i], &y.v, 0.3);
    const part first[] = {{&l[0], tokens_from(0), NULL, n_prompt, true},
                          {&l[1], tokens_from(3), NULL, 1, true},
                          {&l[2], tokens_from(5), NULL, 64, true}};
    e = larger(e, run(g, &y, first, 3, NULL));
    const part second[] = {{&l[0], drafts, NULL, 5, false},
                           {&l[1], drafts, NULL, 8, false},
                           {&l[2], drafts, tree, 8, false}};
    e = larger(e, run(g, &y, second, 3, NULL));
    keep(&l[0], NULL, 2);
    keep(&l[1], NULL, 8);
    keep(&l[2], (const int32_t[]){0, 3, 7}, 3);
    settle(g, &y, &l[1]);
    const part third[] = {{&l[0], tokens_from(7), NULL, 90, true},
                          {&l[1], tokens_from(8), NULL, 20, true},
                          {&l[2], tokens_from(9), NULL, 61, true}};
    e = larger(e, run(g, &y, third, 3, NULL));
    const part fourth[] = {{&l[0], tokens_from(11), NULL, 1, true},
                           {&l[1], tokens_from(12), NULL, 35, true},
                           {&l[2], tokens_from(13), NULL, 2, true}};
    e = larger(e, run(g, &y, fourth, 3, NULL));
    for (int i = 0; i < LINES; i++) {
        stores = larger(stores, store_error(g, &l[i]));
        line_close(g, &l[i]);
    }
    char *what = text("%d/%d heads of %d, %d rows", s->n_k, s->n_v, s->dk, n_prompt);
    verdict(g, "recur blocks", what, e, 1e-10);
    verdict(g, "recur blocks stores", what, stores, 1e-10);
    layer_close(g, &y);
}

/* The outputs and the state of n rows of a prompt, after n_before rows of an answer, in passes that
 * end at each cut, each in company of one more line. mem_free */
static float *cut_prompt(rig *g, layer *y, int32_t n_before, int32_t n, const int32_t *cut,
                         int32_t n_cuts)
{
    line l, other;
    size_t width = (size_t)y->v.n_v * (size_t)y->v.dv, state = width * (size_t)y->v.dk;
    float *out = mem_calloc((size_t)(n + PASS_ROWS) * width + state, sizeof *out);
    uint64_t rng = g->rng;
    line_open(g, &l, &y->v, 0.3);
    line_open(g, &other, &y->v, 0.3);
    g->rng = rng; /* the same states for all cuts */
    if (n_before) {
        run(g, y, &(part){&l, tokens_from(40), NULL, n_before, false}, 1, NULL);
        keep(&l, NULL, n_before);
    }
    for (int32_t i = 0, at = 0; i <= n_cuts; i++) {
        int32_t end = i < n_cuts ? cut[i] : n;
        const part parts[] = {{&l, tokens_from(0) + at, NULL, end - at, true},
                              {&other, tokens_from(i), NULL, 1 + i, true}};
        run(g, y, parts, i % 2 ? 2 : 1, out + (size_t)at * width);
        at = end;
    }
    g->gpu->download(g->gpu, out + (size_t)n * width, l.base[1].state, state * sizeof *out);
    line_close(g, &l);
    line_close(g, &other);
    return out;
}

static void check_prompt_cuts(rig *g, const shape *s, int32_t n)
{
    static const int32_t cuts[][4] = {{10, 20, 64, 130}, {3, 67, 68, 69}, {1}, {63}, {64}, {65}};
    static const int32_t n_cuts[] = {4, 4, 1, 1, 1, 1};
    static const int32_t before[] = {0, 5};
    layer y;
    double e = 0;
    if (!my_turn(g, "recur cuts") || !layer_open(g, &y, s))
        return;
    y.prompts = true;
    size_t width = (size_t)s->n_v * (size_t)s->dv;
    size_t n_bytes = ((size_t)n + (size_t)s->dk) * width * sizeof(float);
    for (size_t b = 0; b < 2; b++) {
        float *whole = cut_prompt(g, &y, before[b], n, NULL, 0);
        for (size_t i = 0; i < (g->quick ? 2 : sizeof cuts / sizeof *cuts); i++) {
            float *pieces = cut_prompt(g, &y, before[b], n, cuts[i], n_cuts[i]);
            e += memcmp(whole, pieces, n_bytes) ? 1 : 0;
            mem_free(pieces);
        }
        mem_free(whole);
    }
    verdict(g, "recur cuts", text("%d/%d heads of %d, %d rows: bits", s->n_k, s->n_v, s->dk, n), e,
            0);
    layer_close(g, &y);
}

/* A line whose store on the GPU is a cache's. */
typedef struct cached {
    kv_cache c;
    line l;
} cached;

static bool cached_open(rig *g, cached *k, const layer *y, const kv_layout *l)
{
    err e = {0};
    line_open(g, &k->l, &y->v, 0);
    if (kv_open(&k->c, g->gpu, l, &e)) {
        failed(g, "recur snapshots", e.text);
        return false;
    }
    k->l.base[1] = k->c.recur[0];
    return true;
}

static void cached_close(rig *g, cached *k)
{
    kv_close(&k->c);
    line_close(g, &k->l);
}

/* Rows from .. end - 1 of a text, of a prompt or of an answer that is kept. */
static void cached_rows(rig *g, layer *y, cached *k, const int32_t *token, int32_t end, bool prompt,
                        float *out)
{
    int32_t from = k->l.n, n = end - from;
    size_t width = (size_t)y->v.n_v * (size_t)y->v.dv;
    err e = {0};
    if (kv_reserve(&k->c, n, &e))
        failed(g, "recur snapshots", e.text);
    run(g, y, &(part){&k->l, token + from, NULL, n, prompt}, 1,
        out ? out + (size_t)from * width : NULL);
    k->c.recur_rows = k->l.s;
    k->c.recur_rows.n = n;
    k->c.recur_rows.final = prompt;
    kv_commit(&k->c, n);
    if (!prompt)
        keep(&k->l, NULL, n);
}

/* A prompt and n_answer rows of an answer after it, then more of the prompt: a cache that loads a
 * snapshot at n, after another prompt of n + n_answer rows, continues like the cache that it was
 * taken of. */
static double snapshot_differs(rig *g, layer *y, const kv_layout *l, int32_t n, int32_t n_answer)
{
    enum { END = 150 };
    cached a, b;
    kv_snapshot *k = NULL;
    err e = {0};
    double differ = 1;
    const int32_t *token = tokens_from(0);
    size_t width = (size_t)y->v.n_v * (size_t)y->v.dv, state = width * (size_t)y->v.dk;
    size_t n_all = END * width + state;
    float *x[2] = {mem_calloc(n_all, sizeof **x), mem_calloc(n_all, sizeof **x)};
    if (cached_open(g, &a, y, l) && cached_open(g, &b, y, l)) {
        const kv_snapshot_want want = {.layout = l, .ids = token, .n = n};
        cached_rows(g, y, &a, token, n, true, NULL);
        cached_rows(g, y, &b, tokens_from(17), n + n_answer, true, NULL);
        if (!kv_snapshot_new(&want, &k, &e)) {
            kv_snapshot_fill(k, &a.c);
            if (kv_snapshot_load(k, &b.c, &e))
                failed(g, "recur snapshots", e.text);
            b.l.n = n;
            b.l.s = b.c.recur_rows;
            cached *of[2] = {&a, &b};
            for (int i = 0; i < 2; i++) {
                cached *at = of[i];
                if (n_answer)
                    cached_rows(g, y, at, token, n + n_answer, false, x[i]);
                cached_rows(g, y, at, token, END, true, x[i]);
                g->gpu->download(g->gpu, x[i] + END * width, at->l.base[1].state,
                                 state * sizeof **x);
            }
            differ = memcmp(x[0], x[1], n_all * sizeof **x) ? 1 : 0;
        }
        kv_snapshot_drop(k);
        cached_close(g, &a);
        cached_close(g, &b);
    }
    mem_free(x[0]);
    mem_free(x[1]);
    return differ;
}

static void check_block_snapshots(rig *g, const shape *s)
{
    layer y;
    kv_layout l;
    err e = {0};
    const kv_spec spec = {.n_head_kv = 1, .head_dim = 64};
    if (!my_turn(g, "recur snapshots") || !layer_open(g, &y, s))
        return;
    y.prompts = true;
    const kv_want_layout want = {.spec = &spec,
                                 .n = 1,
                                 .recur = &y.v,
                                 .n_recur = 1,
                                 .journal_rows = JOURNAL,
                                 .choice = {.k = {NUM_F16, false}, .v = {NUM_F16, false}},
                                 .n_ctx = 192,
                                 .rows_max = 192,
                                 .dev = {g->gpu}};
    if (kv_layout_init(&l, &want, &e)) {
        failed(g, "recur snapshots", e.text);
    } else {
        verdict(g, "recur snapshots", "between two blocks: bits",
                snapshot_differs(g, &y, &l, 64, 6), 0);
        verdict(g, "recur snapshots", "inside a block: bits", snapshot_differs(g, &y, &l, 100, 0),
                0);
        kv_layout_free(&l);
    }
    layer_close(g, &y);
}

/* An error of the state would grow over many rows. */
static void check_many_blocks(rig *g, const shape *s, int32_t n)
{
    static int32_t token[PASS_ROWS];
    layer y;
    line l;
    double worst = 0;
    if (!my_turn(g, "recur many") || !layer_open(g, &y, s))
        return;
    y.prompts = true;
    line_open(g, &l, &y.v, 0.3);
    for (int32_t at = 0; at < n; at += 1024) {
        for (int32_t i = 0; i < 1024; i++)
            token[i] = (int32_t)rng_below(&g->rng, TOKENS);
        worst = larger(worst, run(g, &y, &(part){&l, token, NULL, 1024, true}, 1, NULL));
    }
    char *what = text("%d/%d heads of %d, %d rows", s->n_k, s->n_v, s->dk, n);
    verdict(g, "recur many: the worst pass", what, worst, 1e-10);
    verdict(g, "recur many: the store", what, store_error(g, &l), 1e-10);
    line_close(g, &l);
    layer_close(g, &y);
}

void check_recur(rig *g)
{
    static const shape small[] = {{2, 6, 16, 16, 4},
                                  {2, 4, 128, 128, 4},
                                  {1, 3, 32, 33, 2},
                                  {3, 3, 64, 20, 8},
                                  {1, 2, 256, 40, 3}};
    static const shape large[] = {{16, 48, 128, 128, 4}, {16, 32, 128, 128, 4}};
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        check_shape(g, &small[i], g->quick ? 40 : 150);
        check_kept(g, &small[i]);
    }
    for (size_t i = 0; i < sizeof large / sizeof *large && !g->quick; i++) {
        check_shape(g, &large[i], 150);
        check_kept(g, &large[i]);
    }
    if (!g->gpu->recur_block)
        return;
    static const shape heads[] = {{2, 3, 128, 128, 4}, {1, 1, 128, 128, 4}};
    check_blocks(g, &heads[0], 150);
    check_blocks(g, &heads[1], g->quick ? 64 : 1100); /* more blocks than a launch takes */
    check_prompt_cuts(g, &heads[1], 150);
    for (size_t i = 0; i < sizeof large / sizeof *large && !g->quick; i++) {
        check_blocks(g, &large[i], 400);
        check_prompt_cuts(g, &large[i], 300);
    }
    check_block_snapshots(g, &heads[1]);
    check_many_blocks(g, &heads[1], g->quick ? 1024 : 65536);
}
