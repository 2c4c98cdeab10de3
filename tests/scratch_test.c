/* scratch_test.c - rows with different adapters take no more scratch than dry passes say: of tiny
 * models of every family on GPUs that are not here (plan_only.h), alone and split.
 *
 * The passes are as those of a replayed recording: every op takes the scratch of a pass that
 * computes, and computes nothing.
 */
#include "carat.h"
#include "backend/lora.h"
#include "backend/plan.h"
#include "base/mem.h"
#include "engine/engine_int.h"
#include "tests/fidelity_model.h"
#include "tests/lora_rig.h"
#include "tests/test.h"

enum { ROWS = 300, ANSWERS = 64, CTX = 512 };

/* run: so many rows have the same adapters, then the next ones have others. */
typedef struct rows_case {
    int32_t rows, outs, run;
    bool prompt, tree;
} rows_case;

/* A pass, of which each device's peak is wanted. lora: of all rows; else step.lora. */
static void run_dry(pass *p, const carat_model *m, const kv_layout *l, const step *st,
                    const float *lora, bool plans)
{
    pass_begin(p, m->dev, st, NULL, 0);
    for (int32_t i = 1; i < m->n_sides; i++)
        pass_add_side(p, model_device(m, i), NULL, 0);
    for (int32_t i = 0; i < m->n_sides; i++)
        p->side[i].replayed = !plans;
    p->plans = plans;
    p->lora = lora;
    model_forward(p, &m->core, l);
    CHECK_OK(p->e.status, p->e);
}

/* As model_plan does: dry passes of no row and of all rows with adapters. */
static void check_pass(const carat_model *m, const kv_layout *l, const char *what,
                       const rows_case *a)
{
    static const float scales[3][LORAS_MAX] = {{1}, {0}, {0.25f}}, all[LORAS_MAX] = {1};
    const float *of_seq[ROWS];
    int32_t seq[ROWS];
    uint64_t seen[ROWS] = {0};
    pass p, plan[2];
    step st = plan_step(a->rows, a->outs, a->prompt);
    st.n_kv = l->n;
    st.all.seen = st.out.seen = a->tree ? seen : NULL;
    for (int i = 0; i < 2; i++)
        run_dry(&plan[i], m, l, &st, i ? all : NULL, true);
    for (int32_t i = 0; i < a->rows; i++) {
        seq[i] = i / a->run;
        of_seq[seq[i]] = scales[seq[i] % 3];
    }
    st.all.seq = st.out.seq = seq;
    st.lora = of_seq;
    run_dry(&p, m, l, &st, NULL, false);
    for (int32_t i = 0; i < m->n_sides; i++) {
        size_t n = plan[0].side[i].peak, with = plan[1].side[i].peak;
        n = with > n ? with : n;
        CHECK_MSG(n && p.side[i].peak <= n,
                  "%s: %d rows of %s, runs of %d%s, %d wanted: device %d takes %zu of %zu bytes",
                  what, a->rows, a->prompt ? "a prompt" : "answers", a->run,
                  a->tree ? ", a tree" : "", a->outs, i, p.side[i].peak, n);
    }
}

static void check_passes(const carat_model *m, const kv_layout *l, const char *what)
{
    static const int32_t rows[] = {1, 2, 3, 7, 8, 9, 16, 31, 33, 64, 65, 130, ROWS};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int32_t n = rows[i], runs[] = {1, 2, 9, n > 1 ? n - 1 : 1};
        for (size_t k = 0; k < sizeof runs / sizeof *runs; k++) {
            rows_case a = {.rows = n, .outs = 1, .run = runs[k], .prompt = true};
            check_pass(m, l, what, &a);
            a.prompt = false;
            a.outs = n;
            for (int tree = 0; tree < 2 && n <= ANSWERS; tree++) {
                a.tree = tree;
                check_pass(m, l, what, &a);
            }
        }
    }
}

/* On n_gpus GPUs, which have layers or (split) parts of them. False: such a model cannot be. */
static bool check_model(const char *path, const char *adapter, int32_t n_gpus, const char *split,
                        const char *what)
{
    const carat_lora lora = {adapter, 1};
    const carat_session_options so = {
        .n_ctx = CTX, .chunk = ROWS, .n_outputs = ANSWERS, .checkpoint_mb = -1};
    carat_model_options o = {.vocab_only = true,
                             .split = split,
                             .gpu_split = n_gpus > 1 && !split ? "2,3" : NULL,
                             .loras = &lora,
                             .n_loras = 1,
                             .session = &so};
    AUTO_MODEL *m;
    carat_memory_plan plan;
    session_shape shape;
    kv_layout l;
    err e = {0};
    for (int32_t i = 0; i < n_gpus; i++)
        o.plan_gpu_mb[i] = 8000;
    if (carat_model_open(path, &o, &m, &e)) { /* heads or layers that belong together; experts */
        printf("  %s on %d: %s\n", what, n_gpus, e.text);
        return false;
    }
    CHECK_OK(plan_shape(m, &so, ANSWERS, 0, &shape, &e), e);
    CHECK_OK(plan_costs(m, &shape, &l, &plan, &e), e);
    CHECK_EQ(plan.n_devices, n_gpus);
    check_passes(m, &l, what);
    kv_layout_free(&l);
    return true;
}

TEST(rows_with_different_adapters_take_the_scratch_of_plans)
{
    static const char *const of[] = {"attn", "ffn_gate.", "ffn_down.", "ssm"};
    int n_by[3] = {0};
    for (int i = 0; fidelity_names[i]; i++) {
        AUTO(fidelity_close) fidelity f;
        fidelity_open(&f, fidelity_names[i]);
        AUTO_MEM char *floats = mem_strdup(fidelity_write(&f, NULL));
        AUTO_MEM char *blocks = mem_strdup(fidelity_write(&f, &(fidelity_file){.type = NUM_Q8_0}));
        for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
            const lora_recipe r = {.rank = 4, .alpha = 8, .seed = 31, .only = of[k]};
            const char *adapter = test_temp("adapter.gguf");
            char what[64];
            snprintf(what, sizeof what, "%s, adapter of %s", f.name, of[k]);
            lora_rig_adapter(floats, adapter, &r);
            for (int by = 0; by < 3; by++)
                n_by[by] +=
                    check_model(blocks, adapter, 1 + (by > 0), by > 1 ? "tensor" : NULL, what);
        }
    }
    CHECK(n_by[0] > 40 && n_by[1] > 20 && n_by[2] > 20);
}
