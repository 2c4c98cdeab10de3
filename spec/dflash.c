/* dflash.c - DFlash block drafters: one pass of the drafter fills all slots of a block.
 *
 *     target's pass   copies the captured layers' streams, side by side, to `features`
 *     absorb          kept rows of `features` -> keys and values of the drafter, committed. While
 *                     no draft is wanted, the rows are copied to `held` instead
 *     propose         [last token, MASK, ...] after them -> best tokens of every slot, not
 *                     committed
 *
 * The drafter's keys number a timeline's tokens from `base` on, the first that it has seen without
 * a gap. Held rows come after them. All of them are absorbed in one pass when a draft is wanted,
 * the buffer is full or the keys are read: a pass of 16 rows takes little longer than a pass of
 * one, and plain decoding beside a drafter that does not pay would have one for each token. Many
 * timelines fill the buffer at once, so it has room for some passes of all of them. Rows are
 * bit-identical in passes of up to ANSWER_ROWS_MAX rows, so the drafts are the same. Larger passes
 * round in another way: drafts may differ, answers do not. Rotation is relative, so tokens before
 * `base` are merely out of sight. All timelines of a pass have blocks of one length, so that few
 * shapes of passes are recorded on a GPU.
 *
 * The drafter may have a device of its own. Both buffers are with the target, whose passes fill
 * them without a wait for another device. A kept row crosses once, when it is absorbed.
 */
#include "backend/plan.h"
#include "base/mem.h"
#include "model/dflash.h"
#include "spec/work.h"

#include <math.h>
#include <string.h>

enum {
    ANSWER_ROWS_MAX =
        64,            /* larger passes take the kernels of prompts: drafts may round in any way */
    ABSORB_ROWS = 512, /* of a pass */
    HELD_LEAST = 16,   /* rows that may be held, however few timelines there are */
    HELD_PASSES = 4,   /* of more timelines: a row of each from so many passes */
    HELD_MOST = 256    /* however many there are */
};

/* A row whose absorption was put off. */
typedef struct held_row {
    draft_state *s; /* NULL: forgotten */
    int32_t token;
} held_row;

typedef struct dflash_drafter {
    drafter d;
    const dflash *g;
    int32_t slots_max; /* of a block */
    kv_layout layout;
    kv_batch batch;
    draft_work work;
    /* On the target's main device. [rows of a pass of the target, n_features, n_embd], f32 as all
     * activations: attention sinks have values beyond f16 */
    mat features;
    mat held; /* [held_most, n_features, n_embd] */
    held_row held_row[HELD_MOST];
    int32_t n_held;
    pass_taps taps;
    float *result;                  /* [rows][cols] of a pass */
    char kind[DRAFT_RANKS_MAX + 2]; /* addresses that tell recorded passes apart */
} dflash_drafter;

struct draft_state {
    kv_cache kv;
    int64_t base;
    int32_t n_held;
    bool asked; /* for a draft, since rows were absorbed */
};

/* ---- The model ----------------------------------------------------------------------------- */

static status dflash_bind_model(draft_model *m, gguf *file, err *e)
{
    status st = model_bind(&m->core, file, e);
    if (!st && m->core.arch != &dflash_arch)
        st = err_set(e, E_ARG, "%s is no DFlash drafter", m->core.file.path);
    if (st || (st = dflash_attach(&m->core, m->target, e)))
        return st;
    const dflash *g = m->core.impl;
    m->n_slots = dflash_drafts(g);
    m->notes = g->notes;
    return OK;
}

/* ---- Sizes --------------------------------------------------------------------------------- */

static int32_t slots_of(const dflash *g, const draft_sizes *z)
{
    int32_t most = dflash_drafts(g);
    return dflash_slots(g, z->n_slots < most ? z->n_slots : most);
}

static size_t features_bytes(const dflash *g, const draft_sizes *z)
{
    return (size_t)z->rows_max * (size_t)g->n_features * (size_t)g->n_embd * sizeof(float);
}

/* How many rows are held, while so many timelines go on. */
static int32_t held_most(const draft_sizes *z, int32_t n)
{
    int32_t most = n < HELD_MOST / HELD_PASSES ? n * HELD_PASSES : (int32_t)HELD_MOST;
    most = most > HELD_LEAST ? most : (int32_t)HELD_LEAST;
    return most < z->rows_max ? most : z->rows_max; /* what one pass absorbs */
}

static size_t held_bytes(const dflash *g, const draft_sizes *z)
{
    return (size_t)held_most(z, z->n_seqs) * (size_t)g->n_features * (size_t)g->n_embd *
           sizeof(float);
}

/* at: [rows_max, n_features, n_embd], or NULL. A captured layer's stream is a range of columns. */
static pass_taps taps_of(const dflash *g, const draft_sizes *z, float *at)
{
    pass_taps taps = {.n = g->n_features};
    mat all = mat_at(at, z->rows_max, g->n_features, g->n_embd, (int64_t)g->n_features * g->n_embd);
    for (int32_t i = 0; i < g->n_features; i++)
        taps.at[i] = (pass_tap_point){g->feature[i], PASS_MAIN, mat_head(all, i)};
    return taps;
}

/* Room for a block after the last token. Rings hold a pass of the target, or a block. */
static status layout_of(const draft_model *m, const draft_sizes *z, kv_layout *l, err *e)
{
    int32_t slots = slots_of(m->core.impl, z);
    const kv_want_layout w = {.spec = m->core.kv,
                              .n = m->core.n_kv,
                              .choice = {.k = {.type = NUM_F16}, .v = {.type = NUM_F16}},
                              .n_ctx = z->n_ctx + slots,
                              .rows_max = z->rows_max > slots ? z->rows_max : slots,
                              .dev = {z->dev}};
    return kv_layout_init(l, &w, e);
}

static status plan_pass_of(const draft_model *m, const draft_sizes *z, const kv_layout *l,
                           const step *st, bool absorb, work_sizes *scratch, err *e)
{
    const dflash *g = m->core.impl;
    pass p;
    work_plan_begin(&p, m->target, z, st);
    if (absorb)
        dflash_absorb(&p, &m->core, l,
                      mat_at(NULL, z->rows_max, g->n_features, g->n_embd,
                             (int64_t)g->n_features * g->n_embd));
    else
        dflash_forward(&p, &m->core, l, DRAFT_RANKS_MAX);
    return work_plan_end(&p, scratch, e);
}

/* The most scratch of the passes of each kind. n: rows, or blocks of `slots` rows. */
static status plan_scratch(const draft_model *m, const draft_sizes *z, const kv_layout *l,
                           work_sizes *scratch, err *e)
{
    int32_t most = z->rows_max < ABSORB_ROWS ? z->rows_max : ABSORB_ROWS;
    const dflash *g = m->core.impl;
    status failed = OK;
    for (int32_t n = 1; n <= most && !failed; n = plan_next_count(n, ANSWER_ROWS_MAX, most)) {
        step st = plan_step(n, n, n > ANSWER_ROWS_MAX);
        st.n_kv = l->n;
        failed = plan_pass_of(m, z, l, &st, true, scratch, e);
    }
    for (int32_t slots = dflash_slots(g, 1); slots <= slots_of(g, z); slots++) {
        const int32_t few = (ANSWER_ROWS_MAX + slots - 1) / slots; /* blocks in so many rows */
        for (int32_t n = 1; n <= z->n_seqs && !failed; n = plan_next_count(n, few, z->n_seqs)) {
            int32_t rows = n * slots;
            step st = plan_step(rows, g->anchor_first ? rows : rows - n, rows > ANSWER_ROWS_MAX);
            st.n_seqs = n; /* a bigram correction has a row for each */
            st.n_kv = l->n;
            failed = plan_pass_of(m, z, l, &st, false, scratch, e);
        }
    }
    return failed;
}

static size_t result_bytes(const dflash *g, const draft_sizes *z)
{
    return (size_t)z->n_seqs * (size_t)slots_of(g, z) * (2 * DRAFT_RANKS_MAX + 1) * sizeof(float);
}

static status dflash_plan(const draft_model *m, const draft_sizes *z, draft_costs *c, err *e)
{
    const dflash *g = m->core.impl;
    kv_layout l;
    work_sizes scratch = {{0}};
    status st = layout_of(m, z, &l, e);
    if (st)
        return st;
    if ((st = plan_scratch(m, z, &l, &scratch, e))) {
        kv_layout_free(&l);
        return st;
    }
    *c = (draft_costs){.device_state_bytes = l.all.ring + l.all.linear + l.all.table,
                       .host_bytes = sizeof(dflash_drafter) + result_bytes(g, z),
                       .taps = taps_of(g, z, NULL)};
    *draft_target_cost(c, z) += features_bytes(g, z) + held_bytes(g, z);
    work_add_costs(&scratch, m->target, z, c);
    kv_layout_free(&l);
    return OK;
}

/* ---- Opening ------------------------------------------------------------------------------- */

static void dflash_close(drafter *d)
{
    dflash_drafter *x = (dflash_drafter *)d;
    if (!x)
        return;
    device *target = draft_target_dev(&d->sizes);
    work_close(&x->work);
    if (x->features.at)
        target->release(target, x->features.at, features_bytes(x->g, &d->sizes));
    if (x->held.at)
        target->release(target, x->held.at, held_bytes(x->g, &d->sizes));
    kv_batch_free(&x->batch);
    kv_layout_free(&x->layout);
    mem_free(x->result);
    mem_free(x);
}

static status open_buffers(dflash_drafter *x, const draft_sizes *z, err *e)
{
    const draft_model *m = x->d.m;
    device *target = draft_target_dev(z);
    work_sizes scratch = {{0}};
    size_t n = features_bytes(x->g, z);
    int32_t blocks = z->n_seqs * x->slots_max;
    int32_t rows = z->rows_max < ABSORB_ROWS ? z->rows_max : ABSORB_ROWS;
    status st;
    if ((st = layout_of(m, z, &x->layout, e)) ||
        (st = plan_scratch(m, z, &x->layout, &scratch, e)) ||
        (st = kv_batch_init(&x->batch, rows > blocks ? rows : blocks, z->n_seqs, &x->layout, e)))
        return st;
    if (!(x->result = mem_alloc(result_bytes(x->g, z))))
        return err_memory(e, "a drafter", result_bytes(x->g, z));
    x->features = mat_at(target->alloc(target, n), z->rows_max, x->g->n_features, x->g->n_embd,
                         (int64_t)x->g->n_features * x->g->n_embd);
    if (!x->features.at)
        return err_memory(e, "a drafter's features", n);
    x->held = x->features;
    x->held.rows = held_most(z, z->n_seqs);
    if (!(x->held.at = target->alloc(target, held_bytes(x->g, z))))
        return err_memory(e, "a drafter's features", held_bytes(x->g, z));
    x->taps = taps_of(x->g, z, x->features.at);
    x->d.taps = &x->taps;
    return work_open(&x->work, m->target, z, &scratch, e);
}

static status dflash_open(const draft_model *m, const draft_sizes *z, drafter **out, err *e)
{
    dflash_drafter *x = mem_calloc(1, sizeof *x);
    *out = NULL;
    if (!x)
        return err_memory(e, "a drafter", sizeof *x);
    x->d = (drafter){.class = &draft_dflash, .m = m, .sizes = *z};
    x->g = m->core.impl;
    x->slots_max = slots_of(x->g, z);
    status st = open_buffers(x, z, e);
    if (st)
        dflash_close(&x->d);
    else
        *out = &x->d;
    return st;
}

/* Forgets the held rows of s but the first n. */
static void drop_held(dflash_drafter *x, draft_state *s, int32_t n)
{
    for (int32_t i = 0; i < x->n_held && s->n_held > 0; i++)
        if (x->held_row[i].s == s && n-- <= 0) {
            x->held_row[i].s = NULL;
            s->n_held--;
        }
}

static void dflash_state_close(drafter *d, draft_state *s)
{
    if (s) {
        drop_held((dflash_drafter *)d, s, 0);
        kv_close(&s->kv);
    }
    mem_free(s);
}

static status dflash_state_open(drafter *d, draft_state **out, err *e)
{
    dflash_drafter *x = (dflash_drafter *)d;
    draft_state *s = *out = mem_calloc(1, sizeof *s);
    if (!s)
        return err_memory(e, "a drafter", sizeof *s);
    status st = kv_open(&s->kv, d->sizes.dev, &x->layout, e);
    if (st) {
        mem_free(s);
        *out = NULL;
    }
    return st;
}

/* ---- Passes -------------------------------------------------------------------------------- */

static void begin_pass(dflash_drafter *x, pass *p)
{
    x->batch.st.prompt = x->batch.st.all.n > ANSWER_ROWS_MAX;
    work_begin(&x->work, p, &x->batch.st);
}

enum { ABSORB = 0, ABSORB_HELD = DRAFT_RANKS_MAX + 1 };

/* One pass over the rows in the batch: the `what` best tokens of each wanted row, or ABSORB or
 * ABSORB_HELD. On a device that records passes, a like pass is replayed. */
static status run_pass_of(dflash_drafter *x, int32_t what, mat *y, err *e)
{
    const draft_model *m = x->d.m;
    pass p;
    *y = (mat){0};
    begin_pass(x, &p);
    if (!work_records(&x->work, p.st) || !pass_first_ranks(&p, &m->core, &x->kind[what], y)) {
        if (what == ABSORB || what == ABSORB_HELD)
            dflash_absorb(&p, &m->core, &x->layout, what == ABSORB ? x->features : x->held);
        else
            *y = dflash_forward(&p, &m->core, &x->layout, what);
        *y = pass_last_ranks(&p, *y);
    }
    if (pass_failed(&p))
        return err_set(e, p.e.status, "%s", p.e.text);
    return OK;
}

/* Runs over the rows in the batch, and commits them: n_rows[i] of kept[i]. */
static status absorb_piece(dflash_drafter *x, const draft_kept *kept, int32_t *n_rows, int32_t n,
                           err *e)
{
    mat y;
    status st = run_pass_of(x, ABSORB, &y, e);
    for (int32_t i = 0; i < n && !st; i++)
        kv_commit(&kept[i].s->kv, n_rows[i]);
    memset(n_rows, 0, (size_t)n * sizeof *n_rows);
    kv_batch_clear(&x->batch);
    return st;
}

/* Rows first .. first + n of what a timeline keeps: adds them to the batch. */
static status add_kept(dflash_drafter *x, const draft_kept *k, int32_t first, int32_t n, err *e)
{
    const kv_rows rows = {.token = k->id + k->n_past + first, .n = n, .want = KV_WANT_ALL};
    int32_t at = x->batch.st.out.n;
    status st = kv_reserve(&k->s->kv, n, e);
    st = st ? st : kv_batch_add_rows(&x->batch, &k->s->kv, &rows, e);
    if (!st)
        memcpy((int32_t *)x->batch.st.out_row + at, k->row + first, (size_t)n * sizeof *k->row);
    return st;
}

/* In passes of ABSORB_ROWS, so that scratch stays small beside the features. */
static status absorb_now(dflash_drafter *x, const draft_kept *kept, int32_t n, err *e)
{
    int32_t in_pass[STEP_SEQS_MAX] = {0};
    status st = OK;
    kv_batch_clear(&x->batch);
    for (int32_t i = 0; i < n && !st; i++)
        for (int32_t at = 0; at < kept[i].n && !st; at += in_pass[i]) {
            int32_t room = ABSORB_ROWS - x->batch.st.all.n, left = kept[i].n - at;
            if (!room) {
                st = absorb_piece(x, kept, in_pass, n, e);
                room = ABSORB_ROWS;
            }
            in_pass[i] = left < room ? left : room;
            st = st ? st : add_kept(x, &kept[i], at, in_pass[i], e);
        }
    if (!st && x->batch.st.all.n)
        st = absorb_piece(x, kept, in_pass, n, e);
    return st;
}

/* The held rows of one timeline: adds them to the batch, in their order. */
static status add_held(dflash_drafter *x, draft_state *s, err *e)
{
    int32_t row[HELD_MOST], token[HELD_MOST], n = 0, at = x->batch.st.out.n;
    for (int32_t i = 0; i < x->n_held; i++)
        if (x->held_row[i].s == s) {
            token[n] = x->held_row[i].token;
            row[n++] = i;
        }
    const kv_rows rows = {.token = token, .n = n, .want = KV_WANT_ALL};
    status st = kv_reserve(&s->kv, n, e);
    st = st ? st : kv_batch_add_rows(&x->batch, &s->kv, &rows, e);
    if (!st)
        memcpy((int32_t *)x->batch.st.out_row + at, row, (size_t)n * sizeof *row);
    return st;
}

/* Absorbs the held rows of all timelines in one pass. */
static status dflash_settle(drafter *d, err *e)
{
    dflash_drafter *x = (dflash_drafter *)d;
    draft_state *s[HELD_MOST];
    int32_t n = 0;
    status st = OK;
    mat y;
    kv_batch_clear(&x->batch);
    for (int32_t i = 0; i < x->n_held && !st; i++) {
        int32_t k = 0;
        while (k < n && s[k] != x->held_row[i].s)
            k++;
        if (k == n && x->held_row[i].s) {
            s[n++] = x->held_row[i].s;
            st = add_held(x, x->held_row[i].s, e);
        }
    }
    if (!st && n)
        st = run_pass_of(x, ABSORB_HELD, &y, e);
    for (int32_t k = 0; k < n; k++) {
        if (!st)
            kv_commit(&s[k]->kv, s[k]->n_held);
        s[k]->n_held = 0;
    }
    x->n_held = 0;
    kv_batch_clear(&x->batch);
    return st;
}

/* Copies the kept rows behind the held ones. */
static status hold(dflash_drafter *x, const draft_kept *kept, int32_t n, err *e)
{
    status st = OK;
    int32_t first = x->n_held;
    pass p;
    kv_batch_clear(&x->batch);
    for (int32_t i = 0; i < n && !st; i++) {
        if (kept[i].n)
            st = add_kept(x, &kept[i], 0, kept[i].n, e);
        for (int32_t k = 0; k < kept[i].n && !st; k++) {
            x->held_row[x->n_held++] = (held_row){kept[i].s, kept[i].id[kept[i].n_past + k]};
            kept[i].s->n_held++;
        }
    }
    if (st)
        return st;
    begin_pass(x, &p);
    pass_turn(&p, p.target);
    mat rows = op_wanted_rows(&p, x->features);
    mat to = x->held;
    to.at = mat_row(to, first);
    to.rows = x->n_held - first;
    op_copy(&p, to, rows);
    pass_end(&p);
    kv_batch_clear(&x->batch);
    return pass_failed(&p) ? err_set(e, p.e.status, "%s", p.e.text) : OK;
}

static status dflash_absorb_rows(drafter *d, const draft_kept *kept, int32_t n, err *e)
{
    dflash_drafter *x = (dflash_drafter *)d;
    int32_t rows = 0;
    bool asked = false;
    status st = OK;
    for (int32_t i = 0; i < n; i++) {
        draft_state *s = kept[i].s;
        rows += kept[i].n;
        asked |= s->asked;
        s->asked = false;
        if (kept[i].n &&
            s->base + s->kv.n_past + s->n_held != kept[i].n_past) { /* rows were missed */
            drop_held(x, s, 0);
            kv_reset(&s->kv);
            s->base = kept[i].n_past;
        }
    }
    if (!rows)
        return OK;
    int32_t most = held_most(&d->sizes, n < d->sizes.n_seqs ? n : d->sizes.n_seqs);
    if (!asked && rows <= most) {
        if (rows > most - x->n_held)
            st = dflash_settle(d, e);
        return st ? st : hold(x, kept, n, e);
    }
    st = x->n_held ? dflash_settle(d, e) : OK;
    return st ? st : absorb_now(x, kept, n, e);
}

/* Has it all tokens of the timeline but the last? */
static bool ready(const draft_ask *a)
{
    int64_t n = a->s->kv.n_past + a->s->n_held;
    return n > 0 && a->s->base + n == a->n - 1;
}

/* The trained estimate replaces the best token's probability; the others share the rest. */
static void set_confidence(proposal *p, int32_t i, float z)
{
    double c = 1 / (1 + exp(-(double)z)), rest = 1 - exp((double)p->logp[i][0]);
    double change = rest > 1e-9 ? log1p(-c) - log(rest) : 0;
    if (!(c > 1e-6))
        c = 1e-6;
    if (!(change > -20))
        change = -20;
    for (int32_t k = 1; k < p->n_ranks; k++)
        p->logp[i][k] += (float)change;
    p->logp[i][0] = (float)log(c);
}

/* y: the rows of one block. Ends before a slot without a finite logit. */
static void take_drafts(const dflash_drafter *x, const float *y, int32_t cols, int32_t k,
                        const draft_ask *a)
{
    proposal *p = a->out;
    int32_t n = a->n_slots < x->d.m->n_slots ? a->n_slots : x->d.m->n_slots;
    p->n_ranks = a->n_ranks < k ? a->n_ranks : k;
    for (int32_t i = 0; i < n; i++, y += cols) {
        if (!(y[0] >= 0) || !(y[k] <= 0))
            return;
        for (int32_t j = 0; j < p->n_ranks; j++) {
            p->id[i][j] = (int32_t)y[j];
            p->logp[i][j] = y[k + j];
        }
        if (cols > 2 * k)
            set_confidence(p, i, y[2 * k] + x->g->conf_bias);
        p->n_slots = i + 1;
    }
}

/* The rows of a block: which of them draft. */
static status add_block(dflash_drafter *x, const draft_ask *a, int32_t slots, err *e)
{
    int32_t token[DFLASH_BLOCK_MAX], wanted[DFLASH_BLOCK_MAX];
    token[0] = a->id[a->n - 1];
    for (int32_t i = 1; i < slots; i++) {
        token[i] = x->g->mask_id;
        wanted[i - 1] = i;
    }
    kv_rows rows = {.token = token, .n = slots, .want = KV_WANT_ALL};
    if (!x->g->anchor_first) {
        rows.want = KV_WANT_LISTED;
        rows.wanted = wanted;
        rows.n_wanted = slots - 1;
    }
    status st = kv_reserve(&a->s->kv, slots, e);
    return st ? st : kv_batch_add_rows(&x->batch, &a->s->kv, &rows, e);
}

static status dflash_propose(drafter *d, const draft_ask *ask, int32_t n, err *e)
{
    dflash_drafter *x = (dflash_drafter *)d;
    int32_t drafts = 0, k = 1, n_rows;
    mat y;
    status st;
    for (int32_t i = 0; i < n; i++) {
        ask[i].out->n_slots = 0;
        ask[i].s->asked = true;
        if (!ready(&ask[i]))
            continue;
        drafts = ask[i].n_slots > drafts ? ask[i].n_slots : drafts;
        k = ask[i].n_ranks > k ? ask[i].n_ranks : k;
    }
    if (!drafts)
        return OK;
    int32_t slots = dflash_slots(x->g, drafts);
    slots = slots < x->slots_max ? slots : x->slots_max;
    k = k < DRAFT_RANKS_MAX ? k : DRAFT_RANKS_MAX;
    if (x->n_held && (st = dflash_settle(d, e)))
        return st;
    kv_batch_clear(&x->batch);
    for (int32_t i = 0; i < n; i++)
        if (ready(&ask[i]) && (st = add_block(x, &ask[i], slots, e)))
            return st;
    if ((st = run_pass_of(x, k, &y, e)))
        return st;
    n_rows = y.rows / x->batch.st.n_seqs;
    d->sizes.dev->download(d->sizes.dev, x->result, y.at,
                           (size_t)y.rows * (size_t)y.cols * sizeof *x->result);
    if (d->sizes.dev->failed && (st = d->sizes.dev->failed(d->sizes.dev, e)))
        return st;
    const float *from = x->result;
    for (int32_t i = 0; i < n; i++)
        if (ready(&ask[i])) {
            draft_ask one = ask[i];
            one.n_slots = one.n_slots < n_rows ? one.n_slots : n_rows;
            take_drafts(x, from, y.cols, k, &one);
            from += (size_t)n_rows * (size_t)y.cols;
        }
    return OK;
}

/* ---- Timelines ----------------------------------------------------------------------------- */

static void dflash_forget(drafter *d, draft_state *s, int64_t n)
{
    int64_t keep = n - s->base;
    if (keep >= s->kv.n_past && n > 0) {
        if (keep < s->kv.n_past + s->n_held)
            drop_held((dflash_drafter *)d, s, (int32_t)(keep - s->kv.n_past));
        return;
    }
    drop_held((dflash_drafter *)d, s, 0);
    if (keep > 0 && kv_rewind(&s->kv, keep))
        return;
    kv_reset(&s->kv); /* the rest was overwritten: what comes is seen alone */
    s->base = n;
}

static kv_cache *dflash_cache(draft_state *s)
{
    return s->base ? NULL : &s->kv;
}

const draft_class draft_dflash = {.name = "dflash",
                                  .apart = true,
                                  .bind = dflash_bind_model,
                                  .plan = dflash_plan,
                                  .open = dflash_open,
                                  .close = dflash_close,
                                  .state_open = dflash_state_open,
                                  .state_close = dflash_state_close,
                                  .propose = dflash_propose,
                                  .absorb = dflash_absorb_rows,
                                  .forget = dflash_forget,
                                  .settle = dflash_settle,
                                  .cache = dflash_cache};
