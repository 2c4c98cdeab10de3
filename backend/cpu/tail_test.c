/* tail_test.c - op_tail on every instruction set against its definition: formats of keys, rotated
 * or not, windows, pages out of order, one stream, rows that see different keys, odd sizes. The
 * definition itself is compared with transformers in engine/importance_test.c. */
#include "backend/cpu/cpu_test_int.h"

enum { N_KEYS = 300, N_SLOTS = 320, TAIL_ROWS = 8 };

typedef struct tail_shape {
    int32_t dim, n_head, n_head_kv, n_pairs, window;
    num_type type;
    bool rot, single, paged;
    float factor;
} tail_shape;

static const tail_shape shapes[] = {{128, 16, 8, 64, 0, NUM_F32, .factor = 0},
                                    {128, 16, 8, 64, 0, NUM_F16, .paged = true, .factor = 1.3f},
                                    {32, 6, 2, 4, 40, NUM_F32, .factor = 1.2f},
                                    {64, 9, 1, 32, 0, NUM_Q8_0, .paged = true},
                                    {128, 4, 4, 32, 0, NUM_Q4_0, .rot = true},
                                    {128, 4, 2, 64, 0, NUM_TQ3_0, .rot = true},
                                    {128, 8, 2, 64, 0, NUM_F16, .single = true},
                                    {20, 3, 3, 7, 0, NUM_BF16, .factor = 0.7f}};

typedef struct tail_rig {
    kv_view view;
    rope turn;
    weight norm;
    kv_page page[N_SLOTS / KV_PAGE];
    char *store;
    float *q; /* [TAIL_ROWS][n_head][dim] */
} tail_rig;

static void rig_open(tail_rig *g, const tail_shape *s, uint64_t *rng)
{
    uint64_t row_bytes;
    size_t dim = (size_t)s->dim, n_q = TAIL_ROWS * (size_t)s->n_head * dim;
    CHECK(num_row_bytes(s->type, (uint64_t)s->dim, &row_bytes));
    float *inv = mem_alloc((size_t)s->n_pairs * 4), *w = mem_alloc(dim * 4),
          *x = mem_alloc(dim * 4);
    g->q = mem_alloc(n_q * 4);
    size_t n_rows = (size_t)s->n_head_kv * N_SLOTS;
    g->store = mem_calloc(n_rows, row_bytes);
    CHECK(inv && w && x && g->q && g->store);
    for (int32_t i = 0; i < s->n_pairs; i++)
        inv[i] = (float)pow(1e4, -1.0 * i / s->n_pairs);
    test_fill(w, dim, 0.5f, rng);
    test_fill(g->q, n_q, 3, rng);
    for (size_t i = 0; i < n_rows; i++) {
        test_fill(x, dim, 1, rng);
        num_format_of(s->type)->encode(x, g->store + i * row_bytes, s->dim);
    }
    mem_free(x);
    g->turn = (rope){.n_pairs = s->n_pairs, .inv_freq = inv, .factor = s->factor};
    g->norm = (weight){.name = "k_norm", .n_in = s->dim, .n_out = 1, .n_mat = 1, .data = w};
    g->view = (kv_view){.kind = s->window ? STORE_RING : STORE_LINEAR,
                        .k_type = s->type,
                        .n_head_kv = s->n_head_kv,
                        .head_dim = s->dim,
                        .window = s->window,
                        .n_slots = N_SLOTS,
                        .n_keys = N_KEYS,
                        .k_row_bytes = row_bytes,
                        .k_rot = s->rot,
                        .single = s->single,
                        .k_weight = &g->norm,
                        .k_rope = &g->turn};
    for (int32_t i = 0; i < N_SLOTS / KV_PAGE; i++) /* positions with a gap: a page is elsewhere */
        g->page[i] = (kv_page){(N_SLOTS / KV_PAGE - 1 - i) * KV_PAGE, (i + (i > 1)) * KV_PAGE};
}

static void rig_close(tail_rig *g)
{
    mem_free((void *)g->turn.inv_freq);
    mem_free((void *)g->norm.data);
    mem_free(g->store);
    mem_free(g->q);
}

enum { STRIDE = N_SLOTS + KV_PAGE };

/* Shares of `rows` rows, the last of n_keys keys. */
static void measure(tail_rig *g, const tail_shape *s, test_pass *t, device *d, int32_t n_keys,
                    int32_t rows, float *top)
{
    pass_tail tail = {.top = top, .stride = STRIDE, .rows = rows};
    memset(top, 0, (size_t)rows * STRIDE * sizeof *top);
    t->kv[0] = (kv_base){.k = g->store, .page = s->paged ? g->page : NULL};
    pass *p = test_pass_begin(t, d, rows, n_keys - rows);
    p->tail = &tail;
    op_tail(p, mat_at(g->q, rows, s->n_head, s->dim, (int64_t)s->n_head * s->dim), &g->view,
            &g->turn, 0.1f);
    CHECK_OK(p->e.status, p->e);
    CHECK_EQ(tail.n_layers, 1);
}

PLAIN_TEST(tail_shares_equal_the_definition)
{
    static const int32_t n_keys[] = {1, 9, 64, 65, 200, N_KEYS}, n_rows[] = {1, 3, 8, 8, 5, 8};
    uint64_t rng = test_seed();
    AUTO_PTR(device_close) device *ref = test_device(NULL, (cpu_options){.reference = true});
    AUTO_MEM float *want = mem_alloc(TAIL_ROWS * STRIDE * 4),
                   *got = mem_alloc(TAIL_ROWS * STRIDE * 4);
    AUTO(test_pass_close) test_pass t;
    CHECK(want && got);
    test_pass_open(&t, 16u << 20);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        AUTO(rig_close) tail_rig g;
        rig_open(&g, &shapes[i], &rng);
        for (int k = 0; k < 6; k++) {
            measure(&g, &shapes[i], &t, ref, n_keys[k], n_rows[k], want);
            for (int s = 0; s < N_ISA; s++) {
                device *d = test_device(every_isa[s], (cpu_options){0});
                double worst = 0, sum = 0;
                if (!d)
                    continue;
                measure(&g, &shapes[i], &t, d, n_keys[k], n_rows[k], got);
                for (int32_t j = 0; j < n_rows[k] * STRIDE; j++) {
                    double e = fabs((double)got[j] - want[j]) / fmax(want[j], 1e-3);
                    worst = e <= worst ? worst : e;
                    sum += want[j];
                }
                CHECK_MSG(worst <= 2e-5 && sum >= 0.99 * n_rows[k],
                          "%s, shape %zu, %d keys: %.2e, sum %g", d->name, i, n_keys[k], worst,
                          sum);
                device_close(d);
            }
        }
    }
}

/* Nobody asks: nothing happens. A device without the op, or rows that do not fit: an error. */
TEST(tail_of_nobody_costs_nothing)
{
    uint64_t rng = test_seed();
    AUTO_PTR(device_close) device *d = test_device(NULL, (cpu_options){0});
    float top[STRIDE];
    pass_tail tail = {.top = top, .stride = STRIDE, .rows = 1};
    tail_rig g;
    AUTO(test_pass_close) test_pass t;
    test_pass_open(&t, 1u << 20);
    rig_open(&g, &shapes[0], &rng);
    t.kv[0] = (kv_base){.k = g.store};
    pass *p = test_pass_begin(&t, d, 2, 20);
    mat q = mat_at(g.q, 2, shapes[0].n_head, shapes[0].dim, shapes[0].n_head * shapes[0].dim);
    op_tail(p, q, &g.view, &g.turn, 1);
    CHECK_OK(p->e.status, p->e);
    CHECK_EQ(p->side[PASS_MAIN].peak, 0);
    p->tail = &tail; /* two rows, and one line */
    op_tail(p, q, &g.view, &g.turn, 1);
    CHECK_EQ(p->e.status, E_ARG);
    CHECK_EQ(tail.n_layers, 0);

    device_ops less = *d->op;
    device other = *d;
    less.tail = NULL;
    other.op = &less;
    p = test_pass_begin(&t, &other, 1, 20);
    p->tail = &tail;
    q.rows = 1;
    op_tail(p, q, &g.view, &g.turn, 1);
    CHECK_EQ(p->e.status, E_UNSUPPORTED);
    rig_close(&g);
}
