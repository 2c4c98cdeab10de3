/* matmul.c - products: how they are split, and which kernel computes each piece.
 *
 *            inputs ->  stretch 0   stretch 1  ...
 *   panel 0  32 outputs [ codes  ]  [ codes  ]        one task: for each stretch expand the codes,
 *   panel 1  32 outputs [ codes  ]  [ codes  ]        then for each 6 rows add to acc[rows][32]
 *
 * A panel is two packed groups (32 outputs); a task is one or several panels of one matrix. A task
 * expands the codes of a stretch of inputs, which fits L1 together with its activations, and
 * multiplies it by the rows, six at a time. Each output is summed over the inputs in ascending
 * order, so its bits depend neither on the stretch nor on the number of rows.
 *
 * Few rows do not expand: codes go from the packed layout to registers, for up to packed_rows rows,
 * or for tiles of WIDE_ROWS interleaved rows. Then reading weights is much of the work, so a task
 * is a long run through them.
 *
 * glu has two panels (gate and up) per task. Experts have lists of rows instead of all rows.
 */
#include "backend/cpu/cpu_int.h"
#include "backend/cpu/table_ops_int.h"

#include <string.h>

enum {
    ROWS_MAX = 516,       /* rows per task and expansion: sums of 64 KB */
    STRETCH_BLOCKS = 32,  /* 1024 inputs by 32 outputs: 32 KB of codes */
    STRETCH_FLOATS = 512, /* inputs per partial sum of a float product */
    READ_ROWS = 32,       /* up to so many rows, reading the weights is much of the work: */
    TASK_BYTES = 1 << 19  /* of weights; the prefetchers need runs of this length */
};

/* y[rows] (+)= W x for the panels of one matrix or a pair. Row lists are NULL for "all rows". */
typedef struct product {
    const cpu_device *c;
    const weight *w[2]; /* gate and up, or the one */
    int64_t first[2];   /* first output row in w */
    int32_t n_parts;    /* 2: y = act(part 0) * part 1 */
    act_kind act;
    int32_t n_out;            /* outputs per part */
    const pack_kind *kind[2]; /* NULL: float sums */
    const unsigned char *x;   /* rows of f32, of xblock, or of pairs of bf16 */
    size_t x_row_bytes;
    const unsigned char *x2; /* activations for part 1, where its format needs others */
    size_t x2_row_bytes;
    bool pairs[2]; /* of a part: activations are rounded to bf16, two inputs in 32 bits */
    bool wide;     /* activations are tiles [n_in / 32][WIDE_ROWS] */
    bool lists;    /* experts: each matrix has a list of rows */
    float *y;
    size_t y_stride;
    int32_t n_rows;
    int32_t panels_per_task, n_panels;
    unsigned char *temp; /* per thread: a panel packed or decoded for this product; may be NULL */
    size_t temp_bytes;
    /* experts */
    const int32_t *expert; /* [n_active] */
    const int32_t *from;   /* [n_active + 1]: its rows are list[from[i]] .. */
    const int32_t *list;   /* numbers of y rows */
    int32_t x_share;       /* y rows per x row: x row = y row / x_share */
} product;

/* ---- One panel --------------------------------------------------------------------------- */

/* Rows of a task: numbers of y rows, or r0 + i when list is NULL. */
typedef struct row_span {
    const int32_t *list;
    int32_t r0, n, x_share;
} row_span;

static int32_t span_row(const row_span *s, int32_t i)
{
    return s->list ? s->list[i] : s->r0 + i;
}

/* Row o of matrix k of w, and the 31 after it, decoded to packed f32 groups. */
static void decode_panel(const weight *w, int32_t k, int64_t o, int64_t o_end, float *to)
{
    const num_format *f = num_format_of(w->type);
    size_t n = (size_t)w->n_in;
    float *row = to + TILE_COLS * n; /* one row beyond the groups */
    for (int32_t l = 0; l < TILE_COLS; l++) {
        float *at = to + (size_t)(l / PACK_LANES) * PACK_LANES * n + l % PACK_LANES;
        bool live = o + l < o_end;
        if (live)
            f->decode(weight_row(w, k, o + l), row, w->n_in);
        for (size_t i = 0; i < n; i++)
            at[i * PACK_LANES] = live ? row[i] : 0.0f;
    }
}

static size_t decode_panel_bytes(const weight *w)
{
    return ((size_t)TILE_COLS + 1) * (size_t)w->n_in * sizeof(float);
}

/* One panel of one part of a product, for the rows of s. */
typedef struct panel_job {
    const product *m;
    const row_span *s;
    bool last;          /* the part after which outputs are complete */
    const float *gate;  /* the sums of part 0; NULL: there is one part */
    int32_t out, n_out; /* the panel's outputs in a row of y */
    int64_t first;      /* the output of w that is y's first */
    int32_t k, thread;  /* the matrix; the thread whose temporaries are used */
    const weight *w;
    const pack_kind *kind; /* NULL: float sums */
    bool pairs;
    const unsigned char *x;
    size_t x_row_bytes;
    num_type type; /* of the groups: a panel may have been decoded to f32 */
    const unsigned char *group[TILE_GROUPS];
} panel_job;

static panel_job product_part(const product *m, int part, const row_span *s, int32_t k,
                              int32_t thread)
{
    bool other = part && m->x2;
    return (panel_job){.m = m,
                       .s = s,
                       .k = k,
                       .thread = thread,
                       .w = m->w[part],
                       .kind = m->kind[part],
                       .pairs = m->pairs[part],
                       .x = other ? m->x2 : m->x,
                       .x_row_bytes = other ? m->x2_row_bytes : m->x_row_bytes,
                       .type = m->w[part]->type,
                       .first = m->first[part]};
}

static const void *x_row(const panel_job *j, int32_t i)
{
    return j->x + (size_t)(span_row(j->s, i) / j->s->x_share) * j->x_row_bytes;
}

/* Finds the panel's groups in the packed copy, or makes them. */
static void find_groups(panel_job *j, int64_t o)
{
    const weight *w = j->w;
    size_t n_bytes = pack_group_bytes(w);
    if (w->packed) {
        int64_t g = o / PACK_LANES, n_groups = (w->n_out + PACK_LANES - 1) / PACK_LANES;
        const unsigned char *base =
            (const unsigned char *)w->packed + (size_t)j->k * (size_t)n_groups * n_bytes;
        for (int i = 0; i < TILE_GROUPS; i++) /* past the end the last is repeated, and dropped */
            j->group[i] = base + (size_t)(g + i < n_groups ? g + i : n_groups - 1) * n_bytes;
        return;
    }
    unsigned char *temp = j->m->temp + (size_t)j->thread * j->m->temp_bytes;
    if (j->kind) {
        for (int i = 0; i < TILE_GROUPS; i++)
            pack_group(w, j->k, o + i * PACK_LANES, temp + (size_t)i * n_bytes);
    } else {
        decode_panel(w, j->k, o, w->n_out, (float *)(void *)temp);
        j->type = NUM_F32;
        n_bytes = (size_t)w->n_in * PACK_LANES * sizeof(float);
    }
    for (int i = 0; i < TILE_GROUPS; i++)
        j->group[i] = temp + (size_t)i * n_bytes;
}

static void float_sums(const panel_job *j, float *acc)
{
    size_t lane = j->type == NUM_F32 ? 4 : 2;
    const cpu_device *c = j->m->c;
    int32_t n_in = j->w->n_in, n_rows_all = j->s->n;
    if (j->pairs && c->pairs->begin)
        c->pairs->begin();
    for (int32_t i = 0; i < n_in; i += STRETCH_FLOATS) {
        int32_t n = n_in - i < STRETCH_FLOATS ? n_in - i : STRETCH_FLOATS;
        const void *at[TILE_GROUPS];
        for (int g = 0; g < TILE_GROUPS; g++)
            at[g] = j->group[g] + (size_t)i * PACK_LANES * lane;
        for (int32_t r = 0; r < n_rows_all; r += TILE_ROWS) {
            int32_t n_rows = n_rows_all - r < TILE_ROWS ? n_rows_all - r : TILE_ROWS;
            const float *xs[TILE_ROWS];
            const uint32_t *pairs[TILE_ROWS];
            float part_acc[TILE_ROWS * TILE_COLS] = {0};
            for (int32_t a = 0; a < n_rows; a++) {
                const void *x = x_row(j, r + a);
                xs[a] = (const float *)x + i;
                pairs[a] = (const uint32_t *)x + i / 2;
            }
            if (j->pairs)
                c->pairs->tile(at, (n + 1) / 2, pairs, n_rows, part_acc);
            else
                c->k->float_tile(j->type, at, n, xs, n_rows, part_acc);
            for (int32_t a = 0; a < n_rows * TILE_COLS; a++)
                acc[(size_t)r * TILE_COLS + (size_t)a] += part_acc[a];
        }
    }
    if (j->pairs && c->pairs->end)
        c->pairs->end();
}

/* Sums of n rows times the factor of their matrix, and its biases. */
static void apply_factor(const panel_job *j, int32_t n, float *a)
{
    float f = weight_factor(j->w, j->k);
    const float *bias = weight_bias(j->w, j->k);
    for (size_t i = 0; f != 1 && i < (size_t)n * TILE_COLS; i++)
        a[i] *= f;
    if (bias)
        for (int32_t r = 0; r < n; r++, a += TILE_COLS)
            for (int32_t o = 0; o < j->n_out; o++)
                a[o] += bias[j->first + j->out + o];
}

/* Outputs of rows r .. r + n, whose sums are at a, to y. */
static void put_rows(const panel_job *j, int32_t r, int32_t n, float *a)
{
    const product *m = j->m;
    const float *gate = j->gate ? j->gate + (size_t)r * TILE_COLS : NULL;
    apply_factor(j, n, a);
    for (int32_t i = 0; i < n; i++, a += TILE_COLS) {
        float *y = m->y + (size_t)span_row(j->s, r + i) * m->y_stride + j->out;
        if (gate)
            cpu_act_kernel(m->c->k, m->act)(y, gate + (size_t)i * TILE_COLS, a, j->n_out);
        else
            memcpy(y, a, (size_t)j->n_out * sizeof(float));
    }
}

/* Rows of y lie far apart: a line that is not in cache when it is written costs as much as a
 * product of its rows. */
static void expect_rows(const panel_job *j, int32_t r, int32_t n)
{
    enum { LINE = 64 / sizeof(float) };
    for (int32_t i = 0; i < n; i++) {
        const float *y = j->m->y + (size_t)span_row(j->s, r + i) * j->m->y_stride + j->out;
        for (int32_t o = 0; o < j->n_out; o += LINE)
            __builtin_prefetch(y + o, 1);
    }
}

/* Expands codes once for all rows, a stretch of inputs at a time. With the last stretch a tile of
 * rows is complete and goes to y while it is in cache. */
static void code_sums(const panel_job *j, float *acc)
{
    _Alignas(64) uint8_t q[TILE_GROUPS][STRETCH_BLOCKS * PACK_CODES];
    _Alignas(64) float sc[TILE_GROUPS][STRETCH_BLOCKS * 2 * PACK_LANES];
    _Alignas(64) float mn[TILE_GROUPS][STRETCH_BLOCKS * 2 * PACK_LANES];
    const cpu_kernels *kern = j->m->c->k;
    int32_t n_blocks = j->w->n_in / 32, n_rows_all = j->s->n;
    codes c[TILE_GROUPS];
    for (int g = 0; g < TILE_GROUPS; g++)
        c[g] = (codes){q[g], sc[g], mn[g]};
    /* For few rows an expansion must stay in L1; with many rows a larger one pays, unless its
     * scales are many too. */
    int32_t stretch = n_rows_all <= TILE_ROWS ? 8 : STRETCH_BLOCKS / j->kind->n_sub;
    for (int32_t b = 0; b < n_blocks; b += stretch) {
        int32_t n = n_blocks - b < stretch ? n_blocks - b : stretch;
        size_t at = (size_t)(b / j->kind->n_blocks) * (size_t)j->kind->super_bytes;
        for (int g = 0; g < TILE_GROUPS; g++)
            kern->expand(j->kind, j->group[g] + at, n, q[g], sc[g], mn[g]);
        bool complete = j->last && b + n == n_blocks;
        for (int32_t r = 0; r < n_rows_all; r += TILE_ROWS) {
            int32_t n_rows = n_rows_all - r < TILE_ROWS ? n_rows_all - r : TILE_ROWS;
            const xblock *xs[TILE_ROWS];
            for (int32_t a = 0; a < n_rows; a++)
                xs[a] = (const xblock *)x_row(j, r + a) + b;
            if (complete)
                expect_rows(j, r, n_rows);
            kern->code_tile(j->kind, c, n, xs, n_rows, acc + (size_t)r * TILE_COLS);
            if (complete)
                put_rows(j, r, n_rows, acc + (size_t)r * TILE_COLS);
        }
    }
}

/* Expands codes in registers, anew for each tile of rows. The first tile prefetches them from
 * memory, the others find them in cache. */
static void wide_sums(const panel_job *j, float *acc)
{
    int32_t n_blocks = j->w->n_in / 32;
    const xblock *x = (const xblock *)(const void *)j->x;
    for (int32_t r = 0; r < j->s->n; r += WIDE_ROWS, x += (size_t)n_blocks * WIDE_ROWS) {
        int32_t n_rows = j->s->n - r < WIDE_ROWS ? j->s->n - r : WIDE_ROWS;
        j->m->c->k->wide_tile(j->kind, j->group, n_blocks, x, n_rows, acc + (size_t)r * TILE_COLS);
    }
}

/* acc[n][32] = the panel's outputs for the rows of the job; those of the last part go to y. */
static void panel_sums(panel_job *j, int64_t o, float *acc)
{
    const cpu_kernels *kern = j->m->c->k;
    find_groups(j, o);
    if (!j->kind || !j->m->wide)
        memset(acc, 0, (size_t)j->s->n * TILE_COLS * sizeof(float));
    if (j->kind && j->m->wide) {
        wide_sums(j, acc);
    } else if (!j->kind) {
        float_sums(j, acc);
    } else if (j->s->n <= kern->packed_rows) {
        const xblock *xs[TILE_ROWS];
        for (int32_t a = 0; a < j->s->n; a++)
            xs[a] = x_row(j, a);
        kern->packed_tile(j->kind, j->group, j->w->n_in / 32, xs, j->s->n, acc);
    } else {
        code_sums(j, acc);
        if (!j->last)
            apply_factor(j, j->s->n, acc);
        return;
    }
    if (j->last)
        put_rows(j, 0, j->s->n, acc);
    else
        apply_factor(j, j->s->n, acc);
}

/* n panels from panel p0 on, for rows whose sums fit. All panels of part 0, then all of part 1: a
 * few rows take microseconds per panel, and alternating would break both weights' runs through
 * memory. */
static void panels_rows(const product *m, int32_t k, int32_t p0, int32_t n, const row_span *s,
                        int32_t thread)
{
    _Alignas(64) float acc[2][ROWS_MAX * TILE_COLS];
    size_t panel_acc = (size_t)s->n * TILE_COLS;
    for (int part = 0; part < m->n_parts; part++) {
        panel_job j = product_part(m, part, s, k, thread);
        j.last = part == m->n_parts - 1;
        for (int32_t p = 0; p < n; p++) {
            j.out = (p0 + p) * TILE_COLS;
            j.n_out = m->n_out - j.out < TILE_COLS ? m->n_out - j.out : TILE_COLS;
            j.gate = part ? acc[0] + (size_t)p * panel_acc : NULL;
            panel_sums(&j, m->first[part] + j.out, acc[part] + (size_t)p * panel_acc);
        }
    }
}

/* ---- Tasks ------------------------------------------------------------------------------- */

static void panel_task(void *arg, int32_t chunk, int32_t thread)
{
    const product *m = arg;
    int32_t tasks = (m->n_panels + m->panels_per_task - 1) / m->panels_per_task;
    int32_t p0 = chunk % tasks * m->panels_per_task, which = chunk / tasks, k = 0;
    row_span s = {NULL, 0, m->n_rows, m->x_share};
    if (m->expert) {
        k = m->expert[which];
        s.list = m->list + m->from[which];
        s.n = m->from[which + 1] - m->from[which];
    }
    int32_t end = p0 + m->panels_per_task < m->n_panels ? p0 + m->panels_per_task : m->n_panels;
    if (s.n <= TILE_ROWS || m->wide) {
        int32_t most = ROWS_MAX / s.n;
        for (int32_t p = p0; p < end; p += most)
            panels_rows(m, k, p, end - p < most ? end - p : most, &s, thread);
        return;
    }
    for (int32_t panel = p0; panel < end; panel++) {
        /* Blocks of about equal numbers of rows; all but the last are whole tiles. */
        int32_t n_blocks = (s.n + ROWS_MAX - 1) / ROWS_MAX;
        int32_t per = (s.n + n_blocks - 1) / n_blocks;
        per = (per + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
        for (int32_t r = 0; r < s.n; r += per) {
            row_span b = s;
            b.n = s.n - r < per ? s.n - r : per;
            b.r0 = r;
            b.list = s.list ? s.list + r : NULL;
            panels_rows(m, k, panel, 1, &b, thread);
        }
    }
}

static void run_product(product *m, int32_t n_active)
{
    size_t bytes = 0;
    for (int part = 0; part < m->n_parts; part++)
        bytes += TILE_GROUPS * pack_group_bytes(m->w[part]);
    m->n_panels = (m->n_out + TILE_COLS - 1) / TILE_COLS;
    m->panels_per_task = 1;
    if (m->n_rows <= READ_ROWS && bytes) {
        int32_t most = m->n_panels * n_active / (m->c->n_threads * 2);
        m->panels_per_task = bytes < TASK_BYTES ? (int32_t)(TASK_BYTES / bytes) : 1;
        if (m->panels_per_task > most)
            m->panels_per_task = most > 0 ? most : 1;
    }
    int32_t tasks = (m->n_panels + m->panels_per_task - 1) / m->panels_per_task;
    pool_run(m->c->pool, tasks * n_active, panel_task, m);
}

/* ---- Activations ------------------------------------------------------------------------- */

/* A row in pairs of bf16: zeros up to a multiple of PAIR_STEP inputs. */
static size_t pairs_bytes(int32_t n)
{
    return ((size_t)n + PAIR_STEP - 1) / PAIR_STEP * PAIR_STEP * sizeof(uint16_t);
}

typedef struct round_job {
    const cpu_device *c;
    unsigned char *to;
    mat x; /* one head per row */
} round_job;

static void round_row_task(void *arg, int32_t r, int32_t thread)
{
    (void)thread;
    const round_job *j = arg;
    j->c->pairs->round((uint32_t *)(void *)(j->to + (size_t)r * pairs_bytes(j->x.cols)),
                       mat_row(j->x, r), j->x.cols);
}

typedef struct quantise_job {
    const cpu_kernels *k;
    const pack_kind *kind;
    xblock *to;
    mat x;     /* one head per row */
    bool wide; /* to is tiles [n_blocks][WIDE_ROWS] */
} quantise_job;

/* Row r of a wide tile; zeros past the last row, because whole tiles are computed. */
static void quantise_wide(const quantise_job *j, int32_t r)
{
    enum { STRETCH = 32 };
    int32_t n_blocks = j->x.cols / 32, n;
    xblock some[STRETCH] = {0};
    xblock *to = j->to + (size_t)(r / WIDE_ROWS) * (size_t)n_blocks * WIDE_ROWS + r % WIDE_ROWS;
    for (int32_t b = 0; b < n_blocks; b += n) {
        n = n_blocks - b < STRETCH ? n_blocks - b : STRETCH;
        if (r < j->x.rows)
            j->k->quantise(some, mat_row(j->x, r) + 32 * b, 32 * n, j->kind);
        for (int32_t i = 0; i < n; i++, to += WIDE_ROWS)
            *to = some[i];
    }
}

static void quantise_row_task(void *arg, int32_t r, int32_t thread)
{
    (void)thread;
    const quantise_job *j = arg;
    if (j->wide) {
        quantise_wide(j, r);
        return;
    }
    j->k->quantise(j->to + (size_t)r * (size_t)(j->x.cols / 32), mat_row(j->x, r), j->x.cols,
                   j->kind);
}

/* The kind of w's codes; NULL: products in floats. */
static const pack_kind *product_kind(const cpu_device *c, const weight *w)
{
    return c->exact_f32 || w->n_in % 32 ? NULL : pack_kind_of(w->type);
}

static int32_t xblock_rows(mat x, bool wide)
{
    return wide ? (x.rows + WIDE_ROWS - 1) / WIDE_ROWS * WIDE_ROWS : x.rows;
}

/* Temporary bytes of a thread that reads w without a packed copy. A dry pass may run before the
 * weights are loaded; then it counts on their packed copy. */
static size_t panel_temp_bytes(const pass *p, const weight *w)
{
    const cpu_device *c = cpu_of(p);
    if (w->packed || (p->dry && cpu_wants_pack(c, w)))
        return 0;
    size_t n = product_kind(c, w) ? TILE_GROUPS * pack_group_bytes(w) : decode_panel_bytes(w);
    return (n + 63) & ~(size_t)63;
}

/* Few rows are made at once: waking the other threads would take longer. */
enum { ALONE = 65536 };

static void round_all(cpu_device *c, unsigned char *to, mat x)
{
    round_job j = {c, to, x};
    for (int32_t r = 0; (int64_t)x.rows * x.cols < ALONE && r < x.rows; r++)
        round_row_task(&j, r, 0);
    if ((int64_t)x.rows * x.cols >= ALONE)
        pool_run(c->pool, x.rows, round_row_task, &j);
}

static void quantise_all(cpu_device *c, const pack_kind *kind, xblock *to, mat x, bool wide)
{
    quantise_job j = {c->k, kind, to, x, wide};
    int32_t rows = xblock_rows(x, wide);
    if ((int64_t)x.rows * x.cols < ALONE)
        for (int32_t r = 0; r < rows; r++)
            quantise_row_task(&j, r, 0);
    else
        pool_run(c->pool, rows, quantise_row_task, &j);
}

/* Two formats share activation blocks if offset, sums and mins are alike. */
static bool same_blocks(const pack_kind *a, const pack_kind *b)
{
    return a && b && a->off == b->off && a->n_sub == b->n_sub && a->mins == b->mins;
}

/* Fills in weights, activations and temporaries. False: the pass is dry or has failed. */
static bool product_begin(pass *p, product *m, mat x, const weight *a, const weight *b)
{
    cpu_device *c = cpu_of(p);
    size_t mark = pass_mark(p);
    m->c = c;
    m->w[0] = a;
    m->w[1] = b;
    m->n_parts = b ? 2 : 1;
    m->n_rows = x.rows;
    m->x_share = 1;
    m->temp_bytes = panel_temp_bytes(p, a);
    m->kind[0] = product_kind(c, a);
    if (b) {
        size_t other = panel_temp_bytes(p, b);
        m->temp_bytes = other > m->temp_bytes ? other : m->temp_bytes;
        m->kind[1] = product_kind(c, b);
    }
    for (int part = 0; part < m->n_parts; part++) {
        const weight *w = m->w[part];
        m->pairs[part] = c->pairs && w->type == NUM_BF16 && !panel_temp_bytes(p, w);
    }
    bool two = b && (m->pairs[0] != m->pairs[1] ||
                     (m->kind[1] != m->kind[0] && !same_blocks(m->kind[0], m->kind[1])));
    unsigned char *made[2] = {NULL, NULL};
    size_t row_bytes[2] = {0, 0};
    m->wide = !m->lists && x.rows > c->k->packed_rows && x.rows <= c->k->wide_rows;
    for (int part = 0; part <= two; part++) {
        row_bytes[part] = m->kind[part]    ? (size_t)(x.cols / 32) * sizeof(xblock)
                          : m->pairs[part] ? pairs_bytes(x.cols)
                                           : 0;
        int32_t rows = m->kind[part] ? xblock_rows(x, m->wide) : x.rows;
        if (row_bytes[part])
            made[part] = pass_temp(p, (size_t)rows * row_bytes[part]);
    }
    if (m->temp_bytes)
        m->temp = pass_temp(p, m->temp_bytes * (size_t)c->n_threads);
    pass_release(p, mark); /* still valid: nothing else takes scratch until the op returns */
    if (p->dry || pass_failed(p))
        return false;
    for (int part = 0; part <= two; part++) {
        if (m->kind[part])
            quantise_all(c, m->kind[part], (xblock *)(void *)made[part], x, m->wide);
        else if (made[part])
            round_all(c, made[part], x);
        const unsigned char *rows = made[part] ? made[part] : (const unsigned char *)x.at;
        size_t n = made[part] ? row_bytes[part] : (size_t)x.stride * sizeof(float);
        *(part ? &m->x2 : &m->x) = rows;
        *(part ? &m->x2_row_bytes : &m->x_row_bytes) = n;
    }
    return true;
}

/* ---- Ops --------------------------------------------------------------------------------- */

/* y[r] = W x[r] in floats for a matrix of one output. It has no packed copy, and decoding it as a
 * panel would write 31 outputs of padding. A row's bits do not depend on the number of rows. */
static void one_output(pass *p, mat y, mat x, const weight *w)
{
    size_t mark = pass_mark(p);
    float *decoded = pass_temp(p, (size_t)w->n_in * sizeof *decoded);
    pass_release(p, mark);
    if (p->dry || pass_failed(p))
        return;
    const void *row = weight_row(w, 0, 0);
    if (w->type != NUM_F32) {
        num_format_of(w->type)->decode(row, decoded, w->n_in);
        for (int32_t i = 0; w->factor && i < w->n_in; i++)
            decoded[i] *= w->factor[0];
        row = decoded;
    }
    cpu_of(p)->k->key_dot(&(key_product){.type = NUM_F32,
                                         .n_q = x.rows,
                                         .n_keys = 1,
                                         .dim = w->n_in,
                                         .s = y.at,
                                         .s_stride = (int32_t)y.stride,
                                         .q = x.at,
                                         .q_stride = (int32_t)x.stride,
                                         .k = row,
                                         .row_bytes = (size_t)w->n_in * sizeof *decoded,
                                         .source = ROWS_IN_CACHE});
    for (int32_t r = 0; w->bias && r < x.rows; r++)
        *mat_row(y, r) += *weight_bias(w, 0);
}

void cpu_matmul(pass *p, mat y, mat *x, const weight *w)
{
    product m = {0};
    if (w->n_out == 1 && !product_kind(cpu_of(p), w)) {
        one_output(p, y, *x, w);
        return;
    }
    if (!product_begin(p, &m, *x, w, NULL))
        return;
    m.y = y.at;
    m.y_stride = (size_t)y.stride;
    m.n_out = w->n_out;
    run_product(&m, 1);
}

/* Can both halves of one weight be read together? The second must begin at a group. */
static bool halves_fit(const weight *gate, const weight *up)
{
    return up || gate->n_out / 2 % PACK_LANES == 0;
}

void cpu_glu(pass *p, mat *y, mat x, const weight *gate, const weight *up, act_kind act)
{
    product m = {.act = act};
    int32_t n = mat_width(*y);
    size_t mark = pass_mark(p);
    if (!halves_fit(gate, up)) {
        mat both = mat_at(pass_temp(p, (size_t)x.rows * 2 * (size_t)n * sizeof(float)), x.rows, 1,
                          2 * n, 2 * n);
        cpu_matmul(p, both, &x, gate);
        mat b = both;
        b.at = both.at ? both.at + n : NULL;
        both.cols = b.cols = n;
        cpu_act_mul(p, y, both, b, act);
        pass_release(p, mark);
        return;
    }
    if (!product_begin(p, &m, x, gate, up ? up : gate))
        return;
    m.y = y->at;
    m.y_stride = (size_t)y->stride;
    m.n_out = n;
    m.first[1] = up ? 0 : n;
    run_product(&m, 1);
}

/* Sorts the (row, choice) pairs by expert: expert[], from[], list[]. Returns the number of experts
 * that have pairs. Pairs of an expert ascend. */
static int32_t group_by_expert(const routing *r, const weight *w, int32_t *expert, int32_t *from,
                               int32_t *list, int32_t *count)
{
    int32_t n = r->rows * r->k, n_active = 0, at = 0;
    memset(count, 0, (size_t)w->n_mat * sizeof *count);
    for (int32_t i = 0; i < n; i++)
        if (weight_expert(w, r->id[i]) >= 0)
            count[weight_expert(w, r->id[i])]++;
    for (int32_t e = 0; e < w->n_mat; e++) {
        int32_t rows = count[e];
        count[e] = at; /* from here on: the place of its next pair */
        if (!rows)
            continue;
        expert[n_active] = e;
        from[n_active++] = at;
        at += rows;
    }
    from[n_active] = at;
    for (int32_t i = 0; i < n; i++)
        if (weight_expert(w, r->id[i]) >= 0)
            list[count[weight_expert(w, r->id[i])]++] = i;
    return n_active;
}

/* Experts' products: rows of y are (row, choice) pairs, x rows are pairs / x_share. */
typedef struct expert_call {
    routing r;
    const weight *a, *b; /* b NULL: one part */
    mat x, y;
    int32_t x_share, n_out;
    int64_t second; /* where part 1 starts in b */
    act_kind act;
} expert_call;

static void run_experts(pass *p, const expert_call *e)
{
    product m = {.lists = true, .act = e->act};
    size_t n = (size_t)e->r.rows * (size_t)e->r.k, ne = (size_t)e->a->n_mat, mark = pass_mark(p);
    int32_t *expert = pass_temp(p, ne * sizeof *expert);
    int32_t *from = pass_temp(p, (ne + 1) * sizeof *from);
    int32_t *list = pass_temp(p, n * sizeof *list);
    int32_t *count = pass_temp(p, ne * sizeof *count);
    bool live = product_begin(p, &m, e->x, e->a, e->b);
    pass_release(p, mark);
    if (!live)
        return;
    m.x_share = e->x_share;
    m.y = e->y.at;
    m.y_stride = (size_t)e->y.stride;
    m.n_out = e->n_out;
    m.first[1] = e->second;
    m.expert = expert;
    m.from = from;
    m.list = list;
    for (size_t i = 0; i < n; i++)
        if (weight_expert(e->a, e->r.id[i]) < 0)
            memset(mat_row(e->y, (int32_t)i), 0, (size_t)e->n_out * sizeof *e->y.at);
    run_product(&m, group_by_expert(&e->r, e->a, expert, from, list, count));
}

void cpu_moe_glu(pass *p, mat *y, mat x, routing *r, const weight *gate, const weight *up,
                 act_kind act)
{
    int32_t f = y->cols;
    mat flat = mat_head_rows(*y);
    size_t mark = pass_mark(p);
    if (!halves_fit(gate, up)) {
        mat both = pass_mat(p, r->rows * r->k, 1, 2 * f);
        run_experts(p, &(expert_call){
                           .r = *r, .a = gate, .x = x, .y = both, .x_share = r->k, .n_out = 2 * f});
        mat b = both;
        b.at = both.at ? both.at + f : NULL;
        both.cols = b.cols = f;
        cpu_act_mul(p, &flat, both, b, act);
        pass_release(p, mark);
        return;
    }
    run_experts(p, &(expert_call){.r = *r,
                                  .a = gate,
                                  .b = up ? up : gate,
                                  .x = x,
                                  .y = flat,
                                  .x_share = r->k,
                                  .n_out = f,
                                  .second = up ? 0 : f,
                                  .act = act});
}

void cpu_moe_matmul(pass *p, mat y, mat *x, routing r, const weight *w)
{
    run_experts(
        p, &(expert_call){
               .r = r, .a = w, .x = *x, .y = mat_head_rows(y), .x_share = r.k, .n_out = y.cols});
}

typedef struct join_job {
    mat y, z;
    routing r;
} join_job;

/* y[r] = sum over j, ascending, of weight[r, j] z[r, j] */
static void join_row(void *arg, int32_t r, int32_t thread)
{
    (void)thread;
    const join_job *j = arg;
    float *y = mat_row(j->y, r);
    int32_t n = j->z.cols;
    for (int32_t i = 0; i < j->r.k; i++) {
        int32_t at = r * j->r.k + i;
        const float *z = mat_row(j->z, at);
        float c = j->r.weight[at];
        for (int32_t o = 0; o < n; o++)
            y[o] = (i ? y[o] : 0.0f) + c * z[o];
    }
}

void cpu_moe_down(pass *p, mat y, mat x, routing r, const weight *down)
{
    int32_t n = r.rows * r.k, d = down->n_out;
    size_t mark = pass_mark(p);
    mat z = mat_at(pass_temp(p, (size_t)n * (size_t)d * sizeof(float)), n, 1, d, d);
    run_experts(p, &(expert_call){
                       .r = r, .a = down, .x = mat_head_rows(x), .y = z, .x_share = 1, .n_out = d});
    join_job j = {y, z, r};
    if (p->dry || pass_failed(p))
        j.r.rows = 0;
    if (j.r.rows < 4)
        for (int32_t i = 0; i < j.r.rows; i++)
            join_row(&j, i, 0);
    else
        pool_run(cpu_of(p)->pool, j.r.rows, join_row, &j);
    pass_release(p, mark); /* only now: debug builds poison what is released */
}
