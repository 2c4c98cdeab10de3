/* check_lora.c - adapters on the CUDA device: the products of a gated unit, of rows that have an
 * adapter and of rows that have none.
 */
#include "tests/cuda/check_int.h"
#include "backend/lora.h"
#include "base/mem.h"

enum { N = 256, N_FF = 32, PARTS = 3 };

/* A weight with an adapter, on both devices. */
typedef struct adapted {
    pair w, a, b;
    lora_pair l[2];
} adapted;

static bool adapt(rig *g, adapted *x, num_type type, int32_t rank, int32_t n_in, int32_t n_out)
{
    bool ok = pair_make(g, &x->w, NUM_Q8_0, n_in, n_out, 1, 0.1, false) &&
              pair_make(g, &x->a, type, n_in, rank, 1, 0.1, false) &&
              pair_make(g, &x->b, type, rank, n_out, 1, 0.3, false);
    for (int i = 0; i < 2; i++) {
        x->l[i] = (lora_pair){.a = x->a.w[i], .b = x->b.w[i], .c = 0.5f};
        x->w.w[i].lora = &x->l[i];
    }
    return ok;
}

/* y = down(gelu(gate x) * (up x)). The first `with` rows have the adapter. In the narrow unit the
 * result of down takes more scratch than all that the unit has used. */
static void check_unit(rig *g, num_type type, int32_t rank, int32_t rows, int32_t with)
{
    static const float scale[LORAS_MAX] = {0.75f};
    const float *const of_seq[] = {scale, NULL};
    static chain c;
    adapted x[PARTS];
    both b;
    mat m[2], y[2];
    if (!my_turn(g, "lora"))
        return;
    bool ok = adapt(g, &x[0], type, rank, N, N_FF) && adapt(g, &x[1], type, rank, N, N_FF) &&
              adapt(g, &x[2], type, rank, N_FF, N);
    float *v = draw(g, (size_t)rows * N, 1.0);
    chain_init(&c, rows, 0, 0);
    for (int32_t i = with; i < rows; i++)
        c.seq[i] = 1;
    c.st.lora = of_seq;
    both_begin(g, &b, &c.st);
    both_mat(g, &b, m, v, rows, 1, N);
    for (int i = 0; i < 2 && ok; i++) {
        pass *p = i ? &b.gpu : &b.ref;
        mat h = op_glu(p, m[i], &x[0].w.w[i], &x[1].w.w[i], ACT_GELU_TANH);
        y[i] = op_matmul(p, h, &x[2].w.w[i]);
    }
    if (ok)
        verdict(g, "lora", text("%s of rank %d, %d of %d rows", num_name(type), rank, with, rows),
                both_error(g, &b, y[0], y[1]), 4 * product_bound(NUM_Q8_0, rows));
    for (int i = 0; i < PARTS; i++) {
        pair_free(g, &x[i].w);
        pair_free(g, &x[i].a);
        pair_free(g, &x[i].b);
    }
    mem_free(v);
}

void check_lora(rig *g)
{
    static const num_type types[] = {NUM_F16, NUM_F32, NUM_BF16, NUM_Q8_0};
    static const int32_t rows[] = {200, 1, 7, 40};
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < (g->brief ? 2 : 4); k++) {
            int32_t n = rows[(i + k) % 4];
            check_unit(g, types[i], types[i] == NUM_Q8_0 ? 32 : 16, n, n);
            if (n > 1)
                check_unit(g, types[i], types[i] == NUM_Q8_0 ? 32 : 16, n, n / 2);
        }
}
