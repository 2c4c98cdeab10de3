/* nextn.c - drafts by the NextN (MTP) layer of a model's own file (model/qwen35_nextn.c).
 *
 *     target's pass   tap: the stream after its last layer, of all rows        -> rows of `hidden`
 *     absorb          kept tokens, each with the row of the token before it    -> the layer's keys
 *     propose         the last token with its row, then each draft with the layer's own row
 *
 * Device memory `hidden`, [rows, n_embd], none of them normed:
 *
 *     seats      one for each timeline: the row of its newest token
 *     drafts     one for each row of a draft pass: the layer's own
 *     tap        rows of the target's last pass
 *
 * If the layer has a device of its own, the target's passes fill rows on the target's main device,
 * `there`. From the first kept one to the last they are copied to `tap`, once after each pass.
 *
 * The layer's keys number a timeline's tokens from `base` on, the first that it has seen without a
 * gap; rotation is relative, so earlier tokens are merely out of sight. Keys of drafts are taken
 * back after a proposal: their tokens come again with the target's rows.
 *
 * The newest row belongs to a timeline's state like the keys, and snapshots must have it. So it is
 * kept in the cache, as the input of a convolution of two taps that no pass computes: the cache
 * saves and loads such a store at its exact position, and clears it. A seat is its copy, where a
 * pass can gather it. After a rewind the row is zeros, as before the first token of a text: that
 * changes one key of the drafter, and no answer.
 */
#include "backend/plan.h"
#include "base/mem.h"
#include "model/qwen35.h"
#include "spec/work.h"

#include <string.h>

enum {
    SLOTS_MAX = 8, /* of a draft: the layer was trained for few */
    ANSWER_ROWS_MAX =
        64,           /* larger passes take the kernels of prompts: drafts may round in any way */
    ABSORB_ROWS = 512 /* of a pass */
};

/* An ask in the making. */
typedef struct nextn_job {
    const draft_ask *ask;
    int32_t n_slots, hidden; /* wanted; the row that the next entry joins */
    int64_t n_past;          /* of the layer's keys, before the drafts */
    int32_t token;
} nextn_job;

typedef struct nextn_drafter {
    drafter d;
    int32_t width;
    kv_layout layout;
    kv_batch batch;
    draft_work work;
    mat hidden, there; /* there: without rows, where the layer is beside the model */
    pass_taps taps;
    soft_run *soft;                     /* [rows of a pass] */
    bool *seat_taken;                   /* [n_seqs] */
    nextn_job *job;                     /* [n_seqs] */
    float *best;                        /* [n_seqs, 2 * DRAFT_RANKS_MAX] */
    char kind[2 * DRAFT_RANKS_MAX + 2]; /* addresses that tell recorded passes apart */
} nextn_drafter;

struct draft_state {
    kv_cache kv;
    int64_t base;
    int32_t seat;
    bool seated; /* the seat has the cache's row */
};

static nextn_drafter *self_of(drafter *d)
{
    return (nextn_drafter *)d;
}

/* ---- The model ----------------------------------------------------------------------------- */

static status nextn_bind_model(draft_model *m, gguf *file, err *e)
{
    status st = model_bind_nextn(&m->core, file, e);
    m->n_slots = SLOTS_MAX;
    return st ? st : qwen35_nextn_attach(&m->core, m->target, e);
}

/* ---- Sizes --------------------------------------------------------------------------------- */

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t slots_of(const draft_sizes *z)
{
    return least(z->n_slots, SLOTS_MAX);
}

/* The first rows of the parts of `hidden`; seats are at 0. */
static int32_t drafts_at(const draft_sizes *z)
{
    return z->n_seqs;
}

static int32_t tap_at(const draft_sizes *z)
{
    return 2 * z->n_seqs;
}

static mat hidden_of(const draft_model *m, const draft_sizes *z, float *at)
{
    int32_t d = m->core.n_embd;
    return mat_at(at, tap_at(z) + z->rows_max, 1, d, d);
}

static size_t hidden_bytes(const draft_model *m, const draft_sizes *z)
{
    mat h = hidden_of(m, z, NULL);
    return (size_t)h.rows * (size_t)h.cols * sizeof(float);
}

static mat rows_from(mat m, int32_t first, int32_t n)
{
    m.at = m.at ? mat_row(m, first) : NULL;
    m.rows = n;
    return m;
}

/* Of the layer on a device of its own: the rows on the target's. */
static mat there_of(const draft_model *m, const draft_sizes *z, float *at)
{
    int32_t d = m->core.n_embd;
    return mat_at(at, z->target_dev ? z->rows_max : 0, 1, d, d);
}

static size_t there_bytes(const draft_model *m, const draft_sizes *z)
{
    mat t = there_of(m, z, NULL);
    return (size_t)t.rows * (size_t)t.cols * sizeof(float);
}

static pass_taps taps_of(const draft_model *m, const draft_sizes *z, mat hidden, mat there)
{
    mat to = there.rows ? there : rows_from(hidden, tap_at(z), z->rows_max);
    return (pass_taps){.n = 1, .at = {{m->target->n_layer - 1, PASS_MAIN, to}}};
}

/* In f16, or in f32 beside a target whose keys are. */
static status layout_of(const draft_model *m, const draft_sizes *z, kv_layout *l, err *e)
{
    bool exact = z->target_kv && z->target_kv->n && z->target_kv->view[0].k_type == NUM_F32;
    num_type type = exact ? NUM_F32 : NUM_F16;
    int32_t rows = least(z->rows_max, ABSORB_ROWS);
    /* Its channels, 2 n_k dk + n_v dv, are the newest row. */
    const recur_view row = {.n_taps = 2, .n_k = 1, .n_v = 1, .dk = 1, .dv = m->core.n_embd - 2};
    const kv_want_layout w = {.spec = m->core.kv,
                              .n = m->core.n_kv,
                              .recur = &row,
                              .n_recur = 1,
                              .choice = {.k = {.type = type}, .v = {.type = type}},
                              .n_ctx = z->n_ctx + slots_of(z),
                              .rows_max = rows > 1 ? rows : 1,
                              .axes = z->target_kv && z->target_kv->axes,
                              .dev = {z->dev}};
    return kv_layout_init(l, &w, e);
}

static int32_t ranks_of(const draft_model *m)
{
    return least(m->target->n_vocab, DRAFT_RANKS_MAX);
}

enum { ABSORB = 0, FIRST_DRAFT = 1, NEXT_DRAFT = FIRST_DRAFT + DRAFT_RANKS_MAX };

/* The ops of one pass. what: ABSORB, or FIRST_DRAFT or NEXT_DRAFT and the number of ranks less 1.
 */
static mat pass_ops(pass *p, const draft_model *m, const draft_sizes *z, const kv_layout *l,
                    mat hidden, int32_t what)
{
    if (what == ABSORB) {
        qwen35_nextn_absorb(p, &m->core, l, hidden);
        return (mat){0};
    }
    bool next = what >= NEXT_DRAFT;
    return qwen35_nextn_draft(p, &m->core, l, hidden, next ? NEXTN_BY_LAYER : NEXTN_BY_MODEL,
                              rows_from(hidden, drafts_at(z), z->n_seqs),
                              1 + what - (next ? NEXT_DRAFT : FIRST_DRAFT));
}

/* Copies rows of `hidden` to the seats. */
static void seat_ops(pass *p, const draft_sizes *z, mat hidden)
{
    mat next = op_wanted_rows(p, hidden);
    op_copy(p, rows_from(hidden, 0, z->n_seqs), next);
}

enum { SEATS = -1 };

static status plan_pass_of(const draft_model *m, const draft_sizes *z, const kv_layout *l,
                           int32_t rows, int32_t what, work_sizes *scratch, err *e)
{
    step st = plan_step(rows, rows, rows > ANSWER_ROWS_MAX);
    mat hidden = hidden_of(m, z, NULL);
    pass p;
    st.n_kv = l->n;
    work_plan_begin(&p, m->target, z, &st);
    if (what == SEATS)
        seat_ops(&p, z, hidden);
    else
        pass_ops(&p, m, z, l, hidden, what);
    return work_plan_end(&p, scratch, e);
}

/* The most scratch of any pass. */
static status plan_scratch(const draft_model *m, const draft_sizes *z, const kv_layout *l,
                           work_sizes *scratch, err *e)
{
    int32_t most = least(z->rows_max, ABSORB_ROWS), ranks = ranks_of(m);
    status st = plan_pass_of(m, z, l, z->n_seqs, SEATS, scratch, e);
    for (int32_t n = 1; n <= most && !st; n = plan_next_count(n, ANSWER_ROWS_MAX, most))
        st = plan_pass_of(m, z, l, n, ABSORB, scratch, e);
    for (int32_t n = 1; n <= z->n_seqs && !st; n = plan_next_count(n, ANSWER_ROWS_MAX, z->n_seqs))
        for (int next = 0; next < 2 && !st; next++)
            st =
                plan_pass_of(m, z, l, n, (next ? NEXT_DRAFT : FIRST_DRAFT) + ranks - 1, scratch, e);
    return st;
}

static size_t host_bytes(const draft_sizes *z)
{
    return sizeof(nextn_drafter) + (size_t)least(z->rows_max, ABSORB_ROWS) * sizeof(soft_run) +
           (size_t)z->n_seqs * (sizeof(draft_state) + sizeof(bool) + sizeof(nextn_job) +
                                2 * DRAFT_RANKS_MAX * sizeof(float));
}

static status nextn_plan(const draft_model *m, const draft_sizes *z, draft_costs *c, err *e)
{
    kv_layout l;
    work_sizes scratch = {{0}};
    status st = layout_of(m, z, &l, e);
    if (st)
        return st;
    if ((st = plan_scratch(m, z, &l, &scratch, e))) {
        kv_layout_free(&l);
        return st;
    }
    *c = (draft_costs){.device_bytes = hidden_bytes(m, z),
                       .device_state_bytes = l.all.ring + l.all.linear + l.all.table + l.all.recur,
                       .host_bytes = host_bytes(z),
                       .taps = taps_of(m, z, hidden_of(m, z, NULL), there_of(m, z, NULL))};
    c->target_bytes[PASS_MAIN] = there_bytes(m, z);
    work_add_costs(&scratch, m->target, z, c);
    kv_layout_free(&l);
    return OK;
}

/* ---- The work space ------------------------------------------------------------------------ */

static void nextn_close(drafter *d)
{
    nextn_drafter *x = self_of(d);
    if (!x)
        return;
    work_close(&x->work);
    if (x->hidden.at)
        d->sizes.dev->release(d->sizes.dev, x->hidden.at, hidden_bytes(d->m, &d->sizes));
    if (x->there.at)
        d->sizes.target_dev->release(d->sizes.target_dev, x->there.at,
                                     there_bytes(d->m, &d->sizes));
    kv_batch_free(&x->batch);
    kv_layout_free(&x->layout);
    mem_free(x->soft);
    mem_free(x->best);
    mem_free(x->job);
    mem_free(x->seat_taken);
    mem_free(x);
}

static status open_buffers(nextn_drafter *x, const draft_sizes *z, err *e)
{
    const draft_model *m = x->d.m;
    work_sizes scratch = {{0}};
    size_t n = (size_t)z->n_seqs;
    int32_t rows = least(z->rows_max, ABSORB_ROWS);
    status st;
    if ((st = layout_of(m, z, &x->layout, e)) ||
        (st = plan_scratch(m, z, &x->layout, &scratch, e)) ||
        (st = kv_batch_init(&x->batch, rows > z->n_seqs ? rows : z->n_seqs, z->n_seqs, &x->layout,
                            e)))
        return st;
    x->seat_taken = mem_calloc(n, sizeof *x->seat_taken);
    x->job = mem_calloc(n, sizeof *x->job);
    x->best = mem_calloc(n * 2 * DRAFT_RANKS_MAX, sizeof *x->best);
    x->hidden = hidden_of(m, z, z->dev->alloc(z->dev, hidden_bytes(m, z)));
    x->soft = mem_calloc((size_t)rows, sizeof *x->soft);
    if (!x->soft || !x->seat_taken || !x->job || !x->best || !x->hidden.at)
        return err_memory(e, "a drafter", host_bytes(z) + hidden_bytes(m, z));
    x->there = there_of(m, z, NULL);
    if (x->there.rows &&
        !(x->there.at = z->target_dev->alloc(z->target_dev, there_bytes(m, z))))
        return err_memory(e, "a drafter's rows", there_bytes(m, z));
    x->taps = taps_of(m, z, x->hidden, x->there);
    x->d.taps = &x->taps;
    return work_open(&x->work, m->target, z, &scratch, e);
}

static status nextn_open(const draft_model *m, const draft_sizes *z, drafter **out, err *e)
{
    nextn_drafter *x = mem_calloc(1, sizeof *x);
    *out = NULL;
    if (!x)
        return err_memory(e, "a drafter", sizeof *x);
    x->d = (drafter){.class = &draft_nextn, .m = m, .sizes = *z};
    x->width = m->core.n_embd;
    status st = open_buffers(x, z, e);
    if (st)
        nextn_close(&x->d);
    else
        *out = &x->d;
    return st;
}

static void nextn_state_close(drafter *d, draft_state *s)
{
    if (s) {
        self_of(d)->seat_taken[s->seat] = false;
        kv_close(&s->kv);
    }
    mem_free(s);
}

static status nextn_state_open(drafter *d, draft_state **out, err *e)
{
    nextn_drafter *x = self_of(d);
    draft_state *s = mem_calloc(1, sizeof *s);
    status st;
    *out = NULL;
    if (!s)
        return err_memory(e, "a drafter's timeline", sizeof *s);
    while (s->seat < d->sizes.n_seqs && x->seat_taken[s->seat])
        s->seat++;
    if (s->seat == d->sizes.n_seqs)
        st = err_set(e, E_LIMIT, "a drafter for %d timelines", d->sizes.n_seqs);
    else
        st = kv_open(&s->kv, d->sizes.dev, &x->layout, e);
    if (st) {
        mem_free(s);
        return st;
    }
    kv_reset(&s->kv); /* the row becomes zeros */
    x->seat_taken[s->seat] = true;
    *out = s;
    return OK;
}

/* ---- Passes -------------------------------------------------------------------------------- */

static void begin_pass(nextn_drafter *x, pass *p)
{
    x->batch.st.prompt = x->batch.st.all.n > ANSWER_ROWS_MAX;
    work_begin(&x->work, p, &x->batch.st);
}

/* One pass over the rows in the batch. On a device that records passes, a like pass is replayed. */
static status run(nextn_drafter *x, int32_t what, mat *y, err *e)
{
    const draft_model *m = x->d.m;
    pass p;
    *y = (mat){0};
    begin_pass(x, &p);
    if (!work_records(&x->work, p.st) || !pass_first_ranks(&p, &m->core, &x->kind[what], y))
        *y = pass_last_ranks(&p, pass_ops(&p, m, &x->d.sizes, &x->layout, x->hidden, what));
    return pass_failed(&p) ? err_set(e, p.e.status, "%s", p.e.text) : OK;
}

/* Adds tokens after those of s; row[i] of `hidden` is joined with token[i]. Their places on axes
 * are those in the target's passes. */
static status add_rows(nextn_drafter *x, draft_state *s, const int32_t *token, const int32_t *row,
                       const row_axes *axes, int32_t n, err *e)
{
    const kv_rows rows = {.token = token, .n = n, .final = true, .want = KV_WANT_ALL, .axes = axes};
    int32_t at = x->batch.st.out.n;
    status st = kv_reserve(&s->kv, n, e);
    st = st ? st : kv_batch_add_rows(&x->batch, &s->kv, &rows, e);
    if (!st) /* the lists are const for kernels; the batch owns them */
        memcpy((int32_t *)x->batch.st.out_row + at, row, (size_t)n * sizeof *row);
    return st;
}

/* ---- Rows of timelines ---------------------------------------------------------------------- */

static mat cache_row(const nextn_drafter *x, const draft_state *s)
{
    return mat_at(s->kv.recur[0].conv, 1, 1, x->width, x->width);
}

static mat seat_row(const nextn_drafter *x, const draft_state *s)
{
    return rows_from(x->hidden, s->seat, 1);
}

/* A pass that moves rows alone; from: the row of `hidden` that comes to each seat. A device reads
 * the step when the pass begins. */
static void begin_moves(nextn_drafter *x, const int32_t *from, pass *p)
{
    int32_t n = x->d.sizes.n_seqs;
    kv_batch_clear(&x->batch);
    x->batch.st.all.n = x->batch.st.out.n = n;
    for (int k = 0; k < STORE_KINDS; k++) /* no row looks at keys; the batch owns the lists */
        memset((int32_t *)x->batch.st.all.keys[k].index, 0, (size_t)n * sizeof(int32_t));
    for (int32_t i = 0; i < n; i++)
        ((int32_t *)x->batch.st.out_row)[i] = from ? from[i] : i;
    begin_pass(x, p);
}

static status end_moves(nextn_drafter *x, pass *p, err *e)
{
    pass_end(p);
    kv_batch_clear(&x->batch);
    return pass_failed(p) ? err_set(e, p->e.status, "%s", p->e.text) : OK;
}

/* Fills the seats of timelines whose cache was loaded or cleared. */
static status fill_seats(nextn_drafter *x, draft_state *const *s, int32_t n, err *e)
{
    bool any = false;
    pass p;
    for (int32_t i = 0; i < n; i++)
        any |= !s[i]->seated;
    if (!any)
        return OK;
    begin_moves(x, NULL, &p);
    for (int32_t i = 0; i < n; i++)
        if (!s[i]->seated)
            op_copy(&p, seat_row(x, s[i]), cache_row(x, s[i]));
    status st = end_moves(x, &p, e);
    for (int32_t i = 0; i < n && !st; i++)
        s[i]->seated = true;
    return st;
}

/* The layer sees nothing before token n. The row becomes zeros. */
static void restart(draft_state *s, int64_t n)
{
    kv_reset(&s->kv);
    s->base = n;
    s->seated = false;
}

/* Keys behind the first n are forgotten. The store beside them is no recurrence, so nothing has to
 * be computed again. */
static void take_back(draft_state *s, int64_t n)
{
    s->kv.n_past = n;
    s->kv.recur_rows = (recur_seq){0};
    kv_cut_pages(&s->kv, n);
}

/* ---- What the target has computed ---------------------------------------------------------- */

/* Copies the target's rows to the layer's device, from the first kept one to the last. */
static status bring_rows(nextn_drafter *x, const draft_kept *kept, int32_t n, err *e)
{
    int32_t first = x->there.rows, end = 0;
    pass p;
    if (!x->there.rows) /* the layer is beside the model */
        return OK;
    for (int32_t i = 0; i < n; i++)
        if (kept[i].n) {
            const int32_t *row = kept[i].row;
            first = least(first, row[0]);
            end = end > row[kept[i].n - 1] ? end : row[kept[i].n - 1] + 1;
        }
    mat from = rows_from(x->there, first, end - first);
    mat to = rows_from(x->hidden, tap_at(&x->d.sizes) + first, from.rows);
    begin_moves(x, NULL, &p);
    pass_carry(&p, p.target, to.at, from.at,
               (size_t)from.rows * (size_t)x->width * sizeof(float), SEND_BEHIND_BOTH);
    return end_moves(x, &p, e);
}

/* Row `to` of this pass has the token of row `from` of the target's: the same embedding, if it is a
 * picture's. */
static void put_soft(nextn_drafter *x, const step *target, int32_t from, int32_t to)
{
    step *st = &x->batch.st;
    for (int32_t i = 0; i < target->n_soft; i++) {
        const soft_run *s = &target->soft[i];
        if (from < s->row0 || from >= s->row0 + s->n)
            continue;
        st->soft = x->soft;
        x->soft[st->n_soft++] =
            (soft_run){to, 1, s->at + (size_t)(from - s->row0) * (size_t)x->width, s->part};
    }
}

/* Rows first .. first + n of what a timeline keeps. */
static status add_kept(nextn_drafter *x, const draft_kept *k, int32_t first, int32_t n, err *e)
{
    int32_t row[ABSORB_ROWS], tap = tap_at(&x->d.sizes), row0 = x->batch.st.all.n;
    row_axes axes[ABSORB_ROWS];
    for (int32_t i = 0; i < n; i++) {
        int32_t before = first + i - 1;
        row[i] = before >= 0 ? tap + k->row[before] : k->s->seat;
        for (int a = 0; a < ROPE_AXES_MAX && x->layout.axes; a++)
            axes[i].at[a] = k->pass->all.axis[a][k->row[first + i]];
    }
    for (int32_t i = 0; i < n; i++)
        put_soft(x, k->pass, k->row[first + i], row0 + i);
    return add_rows(x, k->s, k->id + k->n_past + first, row, x->layout.axes ? axes : NULL, n, e);
}

/* Runs over the rows in the batch, and commits them: n_rows[i] of kept[i]. */
static status absorb_piece(nextn_drafter *x, const draft_kept *kept, int32_t *n_rows, int32_t n,
                           err *e)
{
    mat y;
    status st = run(x, ABSORB, &y, e);
    for (int32_t i = 0; i < n && !st; i++)
        kv_commit(&kept[i].s->kv, n_rows[i]);
    memset(n_rows, 0, (size_t)n * sizeof *n_rows);
    kv_batch_clear(&x->batch);
    return st;
}

/* Keeps the newest row of each timeline. */
static status keep_newest(nextn_drafter *x, const draft_kept *kept, int32_t n, err *e)
{
    const draft_sizes *z = &x->d.sizes;
    int32_t row[STEP_SEQS_MAX];
    pass p;
    for (int32_t i = 0; i < z->n_seqs; i++)
        row[i] = i;
    for (int32_t i = 0; i < n; i++)
        if (kept[i].n)
            row[kept[i].s->seat] = tap_at(z) + kept[i].row[kept[i].n - 1];
    begin_moves(x, row, &p);
    seat_ops(&p, z, x->hidden);
    for (int32_t i = 0; i < n; i++)
        if (kept[i].n)
            op_copy(&p, cache_row(x, kept[i].s), seat_row(x, kept[i].s));
    return end_moves(x, &p, e);
}

/* In passes of ABSORB_ROWS, so that scratch stays small beside the rows. */
static status nextn_absorb(drafter *d, const draft_kept *kept, int32_t n, err *e)
{
    nextn_drafter *x = self_of(d);
    int32_t in_pass[STEP_SEQS_MAX] = {0};
    draft_state *with_rows[STEP_SEQS_MAX];
    int32_t most = least(d->sizes.rows_max, ABSORB_ROWS), n_with = 0;
    for (int32_t i = 0; i < n; i++) {
        draft_state *s = kept[i].s;
        if (!kept[i].n)
            continue;
        with_rows[n_with++] = s;
        if (s->base + s->kv.n_past != kept[i].n_past) /* rows were missed */
            restart(s, kept[i].n_past);
    }
    if (!n_with)
        return OK;
    status st = bring_rows(x, kept, n, e);
    st = st ? st : fill_seats(x, with_rows, n_with, e);
    kv_batch_clear(&x->batch);
    for (int32_t i = 0; i < n && !st; i++) {
        for (int32_t at = 0; at < kept[i].n && !st; at += in_pass[i]) {
            int32_t room = most - x->batch.st.all.n;
            if (!room) {
                st = absorb_piece(x, kept, in_pass, n, e);
                room = most;
            }
            in_pass[i] = least(kept[i].n - at, room);
            st = st ? st : add_kept(x, &kept[i], at, in_pass[i], e);
        }
    }
    if (!st && x->batch.st.all.n)
        st = absorb_piece(x, kept, in_pass, n, e);
    return st ? st : keep_newest(x, kept, n, e);
}

/* ---- Drafts -------------------------------------------------------------------------------- */

/* Has it all tokens of the timeline but the last? */
static bool ready(const draft_ask *a)
{
    return a->s->kv.n_past > 0 && a->s->base + a->s->kv.n_past == a->n - 1;
}

static int32_t begin_jobs(nextn_drafter *x, const draft_ask *ask, int32_t n, int32_t *n_ranks)
{
    int32_t n_jobs = 0;
    *n_ranks = 1;
    for (int32_t i = 0; i < n; i++) {
        const draft_ask *a = &ask[i];
        *a->out = (proposal){.n_ranks = least(a->n_ranks, ranks_of(x->d.m))};
        if (!ready(a) || n_jobs == x->d.sizes.n_seqs)
            continue;
        int64_t room = x->layout.n_ctx - a->s->kv.n_past;
        int32_t slots = least(a->n_slots, slots_of(&x->d.sizes));
        x->job[n_jobs++] = (nextn_job){.ask = a,
                                       .n_slots = room < slots ? (int32_t)room : slots,
                                       .hidden = a->s->seat,
                                       .n_past = a->s->kv.n_past,
                                       .token = a->id[a->n - 1]};
        if (a->out->n_ranks > *n_ranks)
            *n_ranks = a->out->n_ranks;
    }
    return n_jobs;
}

/* The next slot of a job. A row of NaN ends it. */
static void take(nextn_job *j, const float *best, int32_t n_ranks)
{
    proposal *o = j->ask->out;
    int32_t i = o->n_slots;
    if (best[0] < 0) {
        j->n_slots = i;
        return;
    }
    for (int32_t r = 0; r < o->n_ranks; r++) {
        o->id[i][r] = (int32_t)best[r];
        o->logp[i][r] = best[n_ranks + r];
    }
    j->token = o->id[i][0];
    o->n_slots++;
}

/* One slot of every job that wants more. *more: whether there was one. */
static status draft_slot(nextn_drafter *x, int32_t n_jobs, bool first, int32_t n_ranks, bool *more,
                         err *e)
{
    device *dev = x->d.sizes.dev;
    int32_t rows = 0;
    status st = OK;
    mat y;
    *more = false;
    kv_batch_clear(&x->batch);
    for (int32_t i = 0; i < n_jobs && !st; i++) {
        nextn_job *j = &x->job[i];
        if (j->ask->out->n_slots == j->n_slots)
            continue;
        *more = true;
        int32_t at = j->ask->at + j->ask->out->n_slots;
        const row_axes axes = {{at, at, at}};
        st = add_rows(x, j->ask->s, &j->token, &j->hidden, x->layout.axes ? &axes : NULL, 1, e);
    }
    if (st || !*more || (st = run(x, (first ? FIRST_DRAFT : NEXT_DRAFT) + n_ranks - 1, &y, e)))
        return st;
    dev->download(dev, x->best, y.at, (size_t)y.rows * (size_t)y.cols * sizeof *x->best);
    if (dev->failed && (st = dev->failed(dev, e)))
        return st;
    for (int32_t i = 0; i < n_jobs; i++) {
        nextn_job *j = &x->job[i];
        if (j->ask->out->n_slots == j->n_slots)
            continue;
        kv_commit(&j->ask->s->kv, 1);
        j->hidden = drafts_at(&x->d.sizes) + rows;
        take(j, x->best + (size_t)rows * 2 * (size_t)n_ranks, n_ranks);
        rows++;
    }
    return OK;
}

static status nextn_propose(drafter *d, const draft_ask *ask, int32_t n, err *e)
{
    nextn_drafter *x = self_of(d);
    int32_t n_ranks, n_jobs = begin_jobs(x, ask, n, &n_ranks);
    bool more = n_jobs > 0;
    draft_state *s[STEP_SEQS_MAX];
    for (int32_t i = 0; i < n_jobs; i++)
        s[i] = x->job[i].ask->s;
    status st = fill_seats(x, s, n_jobs, e);
    for (int32_t slot = 0; more && !st; slot++)
        st = draft_slot(x, n_jobs, slot == 0, n_ranks, &more, e);
    for (int32_t i = 0; i < n_jobs; i++)
        take_back(x->job[i].ask->s, x->job[i].n_past);
    kv_batch_clear(&x->batch);
    return st;
}

/* ---- Timelines ----------------------------------------------------------------------------- */

static void nextn_forget(drafter *d, draft_state *s, int64_t n)
{
    int64_t keep = n - s->base;
    s->seated = false; /* the cache may be loaded next */
    if (keep >= s->kv.n_past && n > 0)
        return;
    if (keep <= 0) {
        restart(s, n);
        return;
    }
    take_back(s, keep);
    d->sizes.dev->clear(d->sizes.dev, s->kv.recur[0].conv,
                        (size_t)self_of(d)->width * sizeof(float));
}

static kv_cache *nextn_cache(draft_state *s)
{
    return s->base ? NULL : &s->kv;
}

const draft_class draft_nextn = {.name = "nextn",
                                 .apart = true,
                                 .bind = nextn_bind_model,
                                 .plan = nextn_plan,
                                 .open = nextn_open,
                                 .close = nextn_close,
                                 .state_open = nextn_state_open,
                                 .state_close = nextn_state_close,
                                 .propose = nextn_propose,
                                 .absorb = nextn_absorb,
                                 .forget = nextn_forget,
                                 .cache = nextn_cache};
