/* backend_test.c - dry passes plan exactly, fused ops equal their expansions, wrappers see and stop
 * what they should. On the reference device: kernels have tests of their own. */
#include "backend/ops.h"
#include "backend/plan.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"
#include "kv/kv.h"
#include "tests/test.h"

enum { D = 64, FF = 96, HEAD = 32, ROWS = 5 };

typedef struct {
    device *dev;
    kv_layout l;
    kv_cache c;
    kv_batch b;
    weight norm, wq, wk, gate, up, both, down, embd;
    rope rope;
    float inv[HEAD / 2];
    err e;
} fixture;

static void weight_init(weight *w, const char *name, int32_t n_in, int32_t n_out, uint64_t *rng)
{
    float *v = mem_alloc(sizeof *v * (size_t)n_in * (size_t)n_out);
    CHECK(v);
    for (int64_t i = 0; i < (int64_t)n_in * n_out; i++)
        v[i] = (float)rng_normal(rng) * 0.2f;
    *w = (weight){.name = name,
                  .type = NUM_F32,
                  .n_in = n_in,
                  .n_out = n_out,
                  .n_mat = 1,
                  .data = v,
                  .row_bytes = (size_t)n_in * 4,
                  .mat_bytes = (size_t)n_in * (size_t)n_out * 4,
                  .n_bytes = (size_t)n_in * (size_t)n_out * 4};
}

static void fixture_open(fixture *f)
{
    uint64_t rng = test_seed();
    *f = (fixture){0};
    CHECK_OK(device_open_cpu(&f->dev, &(cpu_options){.n_threads = 1, .reference = true}, &f->e),
             f->e);
    kv_spec s = {.window = 4, .n_head_kv = 1, .head_dim = HEAD};
    kv_want_layout want = {.spec = &s, .n = 1, .n_ctx = 64, .rows_max = ROWS};
    CHECK_OK(kv_layout_init(&f->l, &want, &f->e), f->e); /* all zero is f32 */
    CHECK_OK(kv_open(&f->c, f->dev, &f->l, &f->e), f->e);
    CHECK_OK(kv_batch_init(&f->b, ROWS, 1, &f->l, &f->e), f->e);
    weight_init(&f->embd, "embd", D, 10, &rng);
    weight_init(&f->norm, "norm", D, 1, &rng);
    weight_init(&f->wq, "wq", D, 2 * HEAD, &rng);
    weight_init(&f->wk, "wk", D, HEAD, &rng);
    weight_init(&f->gate, "gate", D, FF, &rng);
    weight_init(&f->up, "up", D, FF, &rng);
    weight_init(&f->both, "both", D, 2 * FF, &rng);
    weight_init(&f->down, "down", FF, D, &rng);
    for (int i = 0; i < HEAD / 2; i++)
        f->inv[i] = 1.0f / (float)(1 + i);
    f->rope = (rope){.n_pairs = HEAD / 2, .inv_freq = f->inv};
}

static void fixture_close(fixture *f)
{
    weight *w[] = {&f->embd, &f->norm, &f->wq, &f->wk, &f->gate, &f->up, &f->both, &f->down};
    for (size_t i = 0; i < sizeof w / sizeof *w; i++)
        mem_free((void *)w[i]->data);
    kv_batch_free(&f->b);
    kv_close(&f->c);
    kv_layout_free(&f->l);
    device_close(f->dev);
}

/* A layer's worth of ops, as a model would call them. */
static mat toy_forward(pass *p, const fixture *f)
{
    mat x = op_embed(p, &f->embd, 2.0f);
    size_t mark = pass_mark(p);
    mat h = op_rms_norm(p, x, &f->norm, 1e-6f);
    mat k = mat_heads(op_matmul(p, h, &f->wk), HEAD);
    op_kv_store(p, &f->l.view[0], op_rope(p, k, &f->rope), op_rms_norm(p, k, NULL, 1e-6f));
    mat q = op_rope(p, mat_heads(op_matmul(p, h, &f->wq), HEAD), &f->rope);
    op_add(p, x, mat_flat(op_attend(p, q, &f->l.view[0], 1.0f)));
    mat a = op_glu(p, x, &f->gate, &f->up, ACT_GELU_TANH);
    const residual r = {.y = op_matmul(p, a, &f->down), .norm = &f->norm, .eps = 1e-6f};
    op_residual(p, x, &r, NULL, NULL, 0);
    pass_release(p, mark);
    op_keep_outputs(p, (mat *const[]){&x}, 1);
    return op_softcap(p, op_scale(p, x, 3.0f, NULL), 30.0f, NULL, 0);
}

static void fill_step(fixture *f)
{
    static const int32_t token[ROWS] = {1, 9, 0, 4, 4};
    kv_reset(&f->c);
    CHECK_OK(kv_reserve(&f->c, ROWS, &f->e), f->e);
    kv_batch_clear(&f->b);
    CHECK_OK(kv_batch_add(&f->b, &f->c, token, ROWS, NULL, KV_WANT_LAST, &f->e), f->e);
}

static size_t planned_bytes(const fixture *f)
{
    step st = plan_step(ROWS, 1, true);
    pass p;
    st.n_kv = 1;
    pass_begin(&p, f->dev, &st, NULL, 0);
    toy_forward(&p, f);
    CHECK_OK(p.e.status, p.e);
    CHECK(p.n_flops > 0 && p.weight_bytes_read > 0);
    return p.side[PASS_MAIN].peak;
}

TEST(dry_pass_plans_the_scratch_exactly)
{
    AUTO(fixture_close) fixture f;
    fixture_open(&f);
    size_t n = planned_bytes(&f);
    unsigned char *scratch = mem_aligned(64, n);
    pass p;
    fill_step(&f);
    pass_begin(&p, f.dev, &f.b.st, scratch, n);
    mat y = toy_forward(&p, &f);
    CHECK_OK(p.e.status, p.e);
    CHECK_EQ(p.side[PASS_MAIN].peak, n);
    CHECK_EQ(y.rows, 1);
    pass_begin(&p, f.dev, &f.b.st, scratch, n - 64);
    toy_forward(&p, &f);
    CHECK_STATUS(p.e.status, E_MEMORY);
    mem_free(scratch);
}

TEST(shape_errors_stick_and_stop_the_pass)
{
    AUTO(fixture_close) fixture f;
    fixture_open(&f);
    step st = plan_step(ROWS, 1, true);
    pass p;
    pass_begin(&p, f.dev, &st, NULL, 0);
    mat x = op_embed(&p, &f.embd, 1.0f);
    p.il = 7;
    mat y = op_matmul(&p, x, &f.down); /* 64 columns into 96 */
    CHECK_STATUS(p.e.status, E_ARG);
    CHECK(strstr(p.e.text, "matmul") && strstr(p.e.text, "layer 7"));
    CHECK(!y.at && !y.rows);
    op_add(&p, x, y);
    CHECK(strstr(p.e.text, "matmul"));
}

/* gate and up as the halves of one weight give what two weights give. */
TEST(glu_of_one_fused_weight_equals_two)
{
    AUTO(fixture_close) fixture f;
    fixture_open(&f);
    float *both = (float *)f.both.data;
    memcpy(both, f.gate.data, f.gate.n_bytes);
    memcpy(both + D * FF, f.up.data, f.up.n_bytes);
    static _Alignas(64) unsigned char scratch[1 << 18];
    pass p;
    fill_step(&f);
    pass_begin(&p, f.dev, &f.b.st, scratch, sizeof scratch);
    mat x = op_embed(&p, &f.embd, 1.0f);
    mat a = op_glu(&p, x, &f.gate, &f.up, ACT_GELU_TANH);
    mat b = op_glu(&p, x, &f.both, NULL, ACT_GELU_TANH);
    CHECK_OK(p.e.status, p.e);
    for (int32_t r = 0; r < ROWS; r++)
        CHECK(!memcmp(mat_row(a, r), mat_row(b, r), FF * sizeof(float)));
}

static void refuses_unknown_act(fixture *f)
{
    static _Alignas(64) unsigned char scratch[1 << 18];
    const act_kind unknown = ACT_KINDS;
    fill_step(f);
    CHECK(device_knows_act(f->dev, ACT_GELU_TANH));
    CHECK(!device_knows_act(f->dev, unknown) && !device_knows_act(f->dev, (act_kind)99));
    for (int dry = 0; dry < 2; dry++)
        for (int op = 0; op < 3; op++) {
            int32_t id[ROWS] = {0};
            float share[ROWS] = {0};
            routing to = {.id = id, .weight = share, .rows = ROWS, .k = 1};
            pass p;
            pass_begin(&p, f->dev, &f->b.st, dry ? NULL : scratch, dry ? 0 : sizeof scratch);
            mat x = op_embed(&p, &f->embd, 1.0f);
            if (op == 0)
                op_glu(&p, x, &f->gate, &f->up, unknown);
            else if (op == 1)
                op_act_mul(&p, x, x, unknown);
            else
                op_moe_glu(&p, x, &to, &f->gate, &f->up, unknown);
            CHECK_STATUS(p.e.status, E_UNSUPPORTED);
            CHECK_MSG(strstr(p.e.text, "activation"), "%s", p.e.text);
        }
}

/* No device computes another activation in the place of one that it does not know. */
TEST(an_unknown_activation_is_refused)
{
    AUTO(fixture_close) fixture f;
    fixture_open(&f);
    device *ref = f.dev;
    refuses_unknown_act(&f);
    CHECK_OK(device_open_cpu(&f.dev, &(cpu_options){.n_threads = 1}, &f.e), f.e);
    refuses_unknown_act(&f);
    CHECK_OK(device_wrap(&f.dev, "check", NULL, NULL, &f.e), f.e);
    refuses_unknown_act(&f);
    device_close(f.dev);
    f.dev = ref;
}

/* The n-th op that writes x in place; false: there are no more. */
static bool writes_in_place(pass *p, const fixture *f, int n, mat x)
{
    const mat heads = mat_heads(x, HEAD);
    const residual r = {.y = pass_mat(p, x.rows, 1, x.cols), .eps = 1e-6f};
    switch (n) {
    case 0:
        op_rms_norm_inplace(p, x, &f->norm, 1e-6f);
        return true;
    case 1:
        op_add(p, x, r.y);
        return true;
    case 2:
        op_scale(p, x, 2, NULL);
        return true;
    case 3:
        op_rope(p, heads, &f->rope);
        return true;
    case 4:
        op_clamp_inplace(p, x, -1, 1);
        return true;
    case 5:
        op_standardize(p, x, &f->norm, &f->norm);
        return true;
    case 6:
        op_act(p, x, ACT_SILU);
        return true;
    case 7:
        op_softcap(p, x, 5, NULL, 0);
        return true;
    case 8:
        op_copy(p, x, r.y);
        return true;
    case 9:
        op_residual(p, x, &r, NULL, NULL, 0);
        return true;
    case 10: { /* keys, in a part of x; values beside them */
        const mat k = mat_columns(x, 0, HEAD), v = mat_columns(r.y, 0, HEAD);
        op_qkv(p, &(qkv){.k = k, .v = v, .k_rope = &f->rope}, &f->l.view[0]);
        return true;
    }
    case 11: {
        const residual two = {.y = r.y, .norm = &f->norm, .b = {.y = x}, .eps = 1e-6f};
        op_residual(p, pass_mat(p, x.rows, 1, x.cols), &two, NULL, NULL, 0);
        return true;
    }
    case 12:
        op_put_soft(p, x);
        return true;
    case 13: { /* of no rows */
        const mat best = mat_rows(mat_heads(x, D / 2), 0, 0);
        op_renumber(p, best, (routing){.k = 1}, NULL, 1, 1);
        return true;
    }
    }
    return false;
}

/* A copy for products would be stale. So ops refuse to write to an activation that has one, and
 * leave it as it is. */
TEST(an_activation_with_a_copy_is_not_written)
{
    AUTO(fixture_close) fixture f;
    static _Alignas(64) unsigned char scratch[1 << 18];
    fixture_open(&f);
    for (int op = 0, more = 1; more; op++)
        for (int copied = 0; copied < 3; copied++) {
            float before[D];
            pass p;
            fill_step(&f);
            pass_begin(&p, f.dev, &f.b.st, scratch, sizeof scratch);
            mat x = op_embed(&p, &f.embd, 1.0f);
            memcpy(before, mat_row(x, 0), sizeof before);
            if (copied)
                x.copies = (mat_copies){.of = x.at, .rows = x.rows, .cols = x.cols};
            if (copied)
                x.copies.state[copied == 1 ? COPY_INT8 : COPY_BF16] = COPY_LINE;
            more = writes_in_place(&p, &f, op, x);
            if (more && copied)
                CHECK_STATUS(p.e.status, E_ARG);
            else
                CHECK_OK(p.e.status, p.e);
            CHECK_MSG(!copied || !memcmp(before, mat_row(x, 0), sizeof before), "op %d wrote", op);
        }
}

static void collect(void *user, const char *line)
{
    str_puts(user, line);
}

static status run_wrapped(fixture *f)
{
    size_t n = planned_bytes(f);
    unsigned char *scratch = mem_aligned(64, n);
    pass p;
    fill_step(f);
    pass_begin(&p, f->dev, &f->b.st, scratch, n);
    toy_forward(&p, f);
    mem_free(scratch);
    f->e = p.e;
    return p.e.status;
}

TEST(wrappers_trace_time_and_agree_with_the_reference)
{
    AUTO(fixture_close) fixture f;
    AUTO(str_free) str out = {0};
    fixture_open(&f);
    f.c.dev[PASS_MAIN] = f.dev; /* the cache keeps the inner device: wrappers only see ops */
    CHECK_OK(device_wrap(&f.dev, "check", NULL, NULL, &f.e), f.e);
    CHECK_OK(device_wrap(&f.dev, "time", collect, &out, &f.e), f.e);
    CHECK_OK(device_wrap(&f.dev, "trace", collect, &out, &f.e), f.e);
    CHECK_OK(run_wrapped(&f), f.e);
    CHECK(strstr(str_text(&out), "attend") && strstr(str_text(&out), "kv_store"));
    CHECK(!strstr(str_text(&out), "share")); /* the table comes at the end */
    CHECK_STATUS(device_wrap(&f.dev, "nonsense", NULL, NULL, &f.e), E_ARG);
    kv_close(&f.c);
    device *d = f.dev;
    f.dev = NULL;
    device_close(d);
    CHECK(strstr(str_text(&out), "share"));
}

static void wrong_scale(pass *p, mat x, float c, const weight *w)
{
    (void)w;
    for (int32_t r = 0; !p->dry && r < x.rows; r++)
        for (int32_t i = 0; i < mat_width(x); i++)
            mat_row(x, r)[i] *= c + (i == 3 ? 1e-2f : 0);
}

TEST(check_wrapper_stops_at_the_first_op_that_disagrees)
{
    AUTO(fixture_close) fixture f;
    fixture_open(&f);
    device_ops broken = *f.dev->op;
    const device_ops *whole = f.dev->op;
    broken.scale = wrong_scale;
    f.dev->op = &broken;
    CHECK_OK(device_wrap(&f.dev, "check", NULL, NULL, &f.e), f.e);
    CHECK_STATUS(run_wrapped(&f), E_NUMERIC);
    CHECK_MSG(strstr(f.e.text, "scale"), "%s", f.e.text);
    f.dev->inner->op = whole;
}
