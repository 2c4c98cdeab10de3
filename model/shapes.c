/* shapes.c - the families of shapes, and the quantisation mixes of all families. */
#include "model/shapes.h"
#include "base/mem.h"
#include "base/nearest.h"
#include "model/dflash_shapes.h"
#include "model/gemma3.h"
#include "model/gemma4_mtp_shapes.h"
#include "model/gemma4_shapes.h"
#include "model/gpt_oss.h"
#include "model/laguna.h"
#include "model/llama.h"
#include "model/qwen35.h"
#include "model/qwen3.h"
#include "model/gemma4_vision.h"
#include "model/qwen_vision.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const shape_family *const shape_families[] = {&gemma4_shapes,          &gemma3_shapes,
                                                     &gemma_embedding_shapes, &qwen3_shapes,
                                                     &qwen35_shapes,          &laguna_shapes,
                                                     &llama_shapes,           &gpt_oss_shapes,
                                                     &dflash_shapes,          &gemma4_mtp_shapes,
                                                     &gemma4v_shapes,         &gemma4uv_shapes,
                                                     &qwen3vl_shapes,         NULL};

enum { SIZES_MAX = 160, SIZE_BYTES = 32 };

/* A number of a shape that is no integer, and its bounds. */
typedef struct shape_real {
    const char *name;
    double v, min, max;
} shape_real;

static status check_reals(const shape_real *real, size_t n, const char *what, err *e)
{
    for (size_t i = 0; i < n; i++)
        if (!(real[i].v >= real[i].min && real[i].v <= real[i].max)) /* also true for NaN */
            return err_set(e, E_ARG, "%s: the %s is %g, expected %g to %g", what, real[i].name,
                           real[i].v, real[i].min, real[i].max);
    return OK;
}

/* ---- Rotation ---- */

static double attn_factor(const rope_scaling *y)
{
    return y->magnitude != 0 ? y->magnitude / (1 + 0.1 * log(y->factor)) : 1;
}

status scaling_check(const rope_scaling *y, const char *what, err *e)
{
    const shape_real real[] = {{"factor of the rotation", y->factor, 1, 1e6},
                               {"trained context of YaRN", y->n_ctx, 1, CTX_MAX},
                               {"beta_fast of YaRN", y->beta_fast, 1e-3, 1e6},
                               {"beta_slow of YaRN", y->beta_slow, 1e-3, 1e6},
                               {"attention factor of YaRN", attn_factor(y), 1e-3, 1e3}};
    size_t n[] = {[SCALING_LINEAR] = 1, [SCALING_YARN] = sizeof real / sizeof *real};
    return check_reals(real, n[y->kind], what, e);
}

void scaling_put(gguf_writer *w, const char *arch, const rope_scaling *y)
{
    char key[96];
#define KEY(tail) (snprintf(key, sizeof key, "%s.rope.scaling." tail, arch), key)
    if (y->kind == SCALING_NONE)
        return;
    bool linear = y->kind == SCALING_LINEAR;
    gguf_put_string(w, KEY("type"), linear ? "linear" : "yarn", linear ? 6 : 4);
    gguf_put_f32(w, KEY("factor"), (float)y->factor);
    if (linear)
        return;
    gguf_put_u32(w, KEY("original_context_length"), (uint32_t)y->n_ctx);
    gguf_put_f32(w, KEY("yarn_beta_fast"), (float)y->beta_fast);
    gguf_put_f32(w, KEY("yarn_beta_slow"), (float)y->beta_slow);
    if (y->magnitude != 0)
        gguf_put_f32(w, KEY("attn_factor"), (float)attn_factor(y));
#undef KEY
}

/* ---- Shapes ---- */

const shape_family *shape_family_at(int32_t i)
{
    return shape_families[i];
}

/* The published size or size for tests whose name is most like `size`, in buf; "": none is. */
static const char *nearest_size(const char *size, char buf[SIZE_BYTES])
{
    char name[SIZES_MAX][SIZE_BYTES];
    const char *known[SIZES_MAX];
    size_t n = 0;
    for (const shape_family *const *f = shape_families; *f; f++)
        for (const char *p = (*f)->sizes; *p && n < SIZES_MAX; p += strspn(p, ", "), n++) {
            size_t bytes = strcspn(p, ",");
            snprintf(name[n], SIZE_BYTES, "%.*s", (int)bytes, p);
            known[n] = name[n];
            p += bytes;
        }
    const char *found = nearest_word(size, known, n);
    snprintf(buf, SIZE_BYTES, "%s", found ? found : "");
    return buf;
}

status shape_named(const char *size, model_shape **out, err *e)
{
    char like[SIZE_BYTES];
    *out = NULL;
    for (const shape_family *const *f = shape_families; *f; f++) {
        model_shape *s = mem_calloc(1, (*f)->shape_bytes);
        if (!s)
            return err_memory(e, "a shape", (*f)->shape_bytes);
        s->family = *f;
        if ((*f)->named(size, s)) {
            *out = s;
            return OK;
        }
        mem_free(s);
    }
    nearest_size(size, like);
    return err_set(e, E_ARG, "there is no size %.40s%s%s%s: carat synth --help lists them", size,
                   *like ? " (did you mean " : "", like, *like ? "?)" : "");
}

/* ---- Quantisation mixes -------------------------------------------------------------------- */

static const weight_mix mixes[] = {
    {"f32", NUM_F32, NUM_F32, NUM_F32, 0},
    {"f16", NUM_F16, NUM_F16, NUM_F16, 1},
    {"bf16", NUM_BF16, NUM_BF16, NUM_BF16, 32},
    {"q8_0", NUM_Q8_0, NUM_Q8_0, NUM_Q8_0, 7},
    {"q4_0", NUM_Q4_0, NUM_Q6_K, NUM_Q4_0, 2},
    {"q4_1", NUM_Q4_1, NUM_Q6_K, NUM_Q4_1, 3},
    {"q5_0", NUM_Q5_0, NUM_Q6_K, NUM_Q5_0, 8},
    {"q5_1", NUM_Q5_1, NUM_Q6_K, NUM_Q5_1, 9},
    {"q2_k", NUM_Q2_K, NUM_Q6_K, NUM_Q3_K, 10},
    {"q3_k_m", NUM_Q3_K, NUM_Q6_K, NUM_Q4_K, 12},
    {"q4_k_s", NUM_Q4_K, NUM_Q6_K, NUM_Q4_K, 14},
    {"q4_k_m", NUM_Q4_K, NUM_Q6_K, NUM_Q6_K, 15},
    {"q5_k_s", NUM_Q5_K, NUM_Q6_K, NUM_Q5_K, 16},
    {"q5_k_m", NUM_Q5_K, NUM_Q6_K, NUM_Q6_K, 17},
    {"q6_k", NUM_Q6_K, NUM_Q6_K, NUM_Q6_K, 18},
    {"iq4_nl", NUM_IQ4_NL, NUM_Q6_K, NUM_IQ4_NL, 25},
    {"iq4_xs", NUM_IQ4_XS, NUM_Q6_K, NUM_IQ4_XS, 30},
    {"mxfp4", NUM_MXFP4, NUM_Q8_0, NUM_MXFP4, 38},
    {"tq1_0", NUM_TQ1_0, NUM_Q6_K, NUM_TQ1_0, 36},
    {"tq2_0", NUM_TQ2_0, NUM_Q6_K, NUM_TQ2_0, 37},
    {"q1_0", NUM_Q1_0, NUM_Q1_0, NUM_Q1_0, 40},
    {"q2_0", NUM_Q2_0, NUM_Q2_0, NUM_Q2_0, 41},
    {"nvfp4", NUM_NVFP4, NUM_Q8_0, NUM_NVFP4, 39},
    {"iq2_xxs", NUM_IQ2_XXS, NUM_Q5_K, NUM_IQ2_XXS, 19},
    {"iq2_xs", NUM_IQ2_XS, NUM_Q5_K, NUM_IQ2_XS, 20},
    {"iq2_s", NUM_IQ2_XS, NUM_Q5_K, NUM_IQ2_XS, 28},
    {"iq2_m", NUM_IQ2_S, NUM_Q5_K, NUM_IQ2_S, 29},
    {"iq3_xxs", NUM_IQ3_XXS, NUM_Q5_K, NUM_IQ3_XXS, 23},
    {"iq3_xs", NUM_IQ3_S, NUM_Q6_K, NUM_IQ3_S, 22},
    {"iq3_s", NUM_IQ3_S, NUM_Q6_K, NUM_IQ3_S, 26},
    {"iq3_m", NUM_IQ3_S, NUM_Q6_K, NUM_IQ3_S, 27},
    {"iq1_s", NUM_IQ1_S, NUM_Q5_K, NUM_IQ1_S, 24},
    {"iq1_m", NUM_IQ1_M, NUM_Q5_K, NUM_IQ1_M, 31},
};

#define VALUES "attn_v.weight", "attn_qkv.weight"
/* Matrices of some mixes that get another type than `base`, as in llama.cpp. The last rule that
 * fits counts. */
static const struct mix_rule {
    const char *mixes;   /* names, with a space before and behind each */
    const char *part[2]; /* of the tensor's name: one of them */
    /* Among the tensors of that name; or only in models of four experts or more, or of eight. */
    enum { EVERYWHERE, FIRST_EIGHTH, MIDDLE, OF_EXPERTS, OF_EIGHT, MORE_OF_EIGHT } where;
    num_type type;
    num_type shared; /* where a head of keys serves four heads or more; 0: as `type` */
} mix_rules[] = {
    {" nvfp4 ", {"token_embd.weight"}, EVERYWHERE, NUM_Q8_0, 0}, /* looked up: it has no factor */
    {" tq1_0 tq2_0 q2_0 ", {"token_embd.weight"}, EVERYWHERE, NUM_Q4_K, 0},
    {" iq1_s iq1_m iq2_xxs iq2_xs ", {"token_embd.weight"}, EVERYWHERE, NUM_Q2_K, 0},
    {" iq2_s iq2_m iq3_xxs ", {"token_embd.weight"}, EVERYWHERE, NUM_IQ3_S, 0},
    {" iq1_s iq1_m iq2_xxs iq2_xs ", {VALUES}, EVERYWHERE, NUM_Q2_K, NUM_Q4_K},
    {" iq2_s iq2_m ", {VALUES}, EVERYWHERE, NUM_IQ3_S, NUM_Q4_K},
    {" iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq2_m ", {VALUES}, OF_EXPERTS, NUM_Q4_K, 0},
    {" iq1_s iq1_m ", {"attn_output.weight"}, EVERYWHERE, NUM_IQ2_XXS, 0},
    {" iq2_s iq2_m iq3_xxs ", {"attn_output.weight"}, EVERYWHERE, NUM_IQ3_S, 0},
    {" iq1_s iq1_m iq2_xxs iq2_xs ", {"ffn_down"}, FIRST_EIGHTH, NUM_Q2_K, 0},
    {" iq2_s iq2_m ", {"ffn_down"}, FIRST_EIGHTH, NUM_IQ3_S, 0},
    {" iq3_xxs ", {VALUES}, EVERYWHERE, NUM_IQ3_XXS, NUM_Q4_K},
    {" iq3_xxs ", {"attn_q.weight", "attn_k.weight"}, EVERYWHERE, NUM_IQ2_S, 0},
    {" iq3_xs iq3_s ", {VALUES}, EVERYWHERE, NUM_IQ3_S, NUM_Q4_K},
    {" iq3_xs ", {"attn_q.weight", "attn_k.weight"}, EVERYWHERE, NUM_IQ3_XXS, 0},
    {" iq3_xs ", {"ffn_gate", "ffn_up"}, MIDDLE, NUM_IQ3_XXS, 0},
    {" iq3_m ", {VALUES}, EVERYWHERE, NUM_Q4_K, 0},
    {" iq3_m ", {"attn_output.weight"}, EVERYWHERE, NUM_Q4_K, 0},
    {" iq3_m ", {"ffn_down"}, FIRST_EIGHTH, NUM_Q4_K, 0},
    {" iq3_m ", {"ffn_down"}, MORE_OF_EIGHT, NUM_Q4_K, 0},
    {" iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq2_m ", {"attn_k.weight"}, OF_EIGHT, NUM_Q4_K, 0},
    {" iq3_xxs iq3_xs iq3_s iq3_m ", {"attn_k.weight", "attn_v.weight"}, OF_EIGHT, NUM_Q8_0, 0},
    {" iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq2_m iq3_xxs iq3_xs iq3_s iq3_m ",
     {"attn_output.weight"},
     OF_EIGHT,
     NUM_Q5_K,
     0},
};

const char weight_mix_names[] =
    "f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, q3_k_m, q4_k_s, "
    "q4_k_m, q5_k_s, q5_k_m, q6_k, iq4_nl, iq4_xs, mxfp4, tq1_0, tq2_0, q1_0, q2_0";
const char weight_mix_quantize_names[] =
    "nvfp4, iq1_s, iq1_m, iq2_xxs, iq2_xs, iq2_s, iq2_m, iq3_xxs, iq3_xs, iq3_s, iq3_m";

bool weight_mix_writes(const weight_mix *m)
{
    return num_format_of(m->base)->encode && num_format_of(m->table)->encode &&
           num_format_of(m->more)->encode;
}

static bool can_quantize(num_type t)
{
    return num_format_of(t)->encode || num_format_of(t)->weigh;
}

bool weight_mix_quantizes(const weight_mix *m)
{
    return can_quantize(m->base) && can_quantize(m->table) && can_quantize(m->more);
}

const weight_mix *weight_mix_named(const char *name)
{
    for (size_t i = 0; i < sizeof mixes / sizeof *mixes; i++)
        if (!strcasecmp(mixes[i].name, name))
            return &mixes[i];
    return NULL;
}

/* The next wider format with smaller blocks: the fallback of llama.cpp. */
static num_type fallback(num_type t)
{
    switch (t) {
    case NUM_Q2_K:
    case NUM_Q3_K:
    case NUM_IQ1_S:
    case NUM_IQ1_M:
    case NUM_IQ2_XXS:
    case NUM_IQ2_XS:
    case NUM_IQ2_S:
    case NUM_IQ3_XXS:
    case NUM_IQ3_S:
    case NUM_IQ4_XS:
        return NUM_IQ4_NL;
    case NUM_Q1_0:
    case NUM_Q2_0:
    case NUM_TQ1_0:
    case NUM_TQ2_0:
    case NUM_NVFP4:
        return NUM_Q4_0;
    case NUM_Q4_K:
        return NUM_Q5_0;
    case NUM_Q5_K:
        return NUM_Q5_1;
    case NUM_Q6_K:
        return NUM_Q8_0;
    default:
        return NUM_F16;
    }
}

/* Layers with more bits: the first eighth, the last eighth, and every third between. i counts the
 * tensors of the same role in the file. */
static bool gets_more(int32_t i, int32_t n)
{
    return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
}

/* Does a head of keys serve four heads or more, in the first layer that says so? Matrices of values
 * are then a small part of the model. */
static bool shares_keys(const shape_tensor *list, int32_t n)
{
    uint64_t v = 0, out = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!v && strstr(list[i].name, ".attn_v.weight"))
            v = list[i].ne[1];
        if (!out && strstr(list[i].name, ".attn_output.weight"))
            out = list[i].ne[0];
    }
    return v && out / v >= 4;
}

static uint64_t n_experts(const shape_tensor *list, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (list[i].role == ROLE_DOWN_EXPERTS)
            return list[i].ne[2];
    return 0;
}

static bool rule_fits(const struct mix_rule *r, const shape_tensor *list, int32_t n, int32_t i)
{
    int32_t at = 0, of = 0;
    const char *part = strstr(list[i].name, r->part[0]) ? r->part[0] : r->part[1];
    if (!part || !strstr(list[i].name, part))
        return false;
    for (int32_t k = 0; k < n && r->where != EVERYWHERE; k++)
        if (list[k].role >= ROLE_ATTN_V && strstr(list[k].name, part)) {
            at += k < i;
            of++;
        }
    switch (r->where) {
    case FIRST_EIGHTH:
        return at < of / 8;
    case MIDDLE:
        return at >= of / 8 && at < 7 * of / 8;
    case OF_EXPERTS:
        return n_experts(list, n) >= 4;
    case OF_EIGHT:
        return n_experts(list, n) == 8;
    case MORE_OF_EIGHT:
        return n_experts(list, n) == 8 && gets_more(at, of);
    default:
        return true;
    }
}

/* What the rules of a mix make of a matrix that would be `type`. */
static num_type type_by_rules(const weight_mix *m, const shape_tensor *list, int32_t n, int32_t i,
                              num_type type)
{
    char name[32];
    snprintf(name, sizeof name, " %s ", m->name);
    for (size_t k = 0; k < sizeof mix_rules / sizeof *mix_rules; k++) {
        const struct mix_rule *r = &mix_rules[k];
        if (strstr(r->mixes, name) && rule_fits(r, list, n, i))
            type = r->shared && shares_keys(list, n) ? r->shared : r->type;
    }
    return type;
}

num_type weight_mix_type(const weight_mix *m, const shape_tensor *list, int32_t n, int32_t i)
{
    const shape_tensor *t = &list[i];
    num_type type = m->base;
    int32_t at = 0, of = 0;
    switch (t->role) {
    case ROLE_NORM:
    case ROLE_QK_NORM:
    case ROLE_SCALE:
    case ROLE_BIAS:
    case ROLE_ROUTER:
    case ROLE_DECAY:
    case ROLE_TAPS:
    case ROLE_ROPE_FACTORS:
    case ROLE_LOW:
    case ROLE_HIGH:
        return NUM_F32;
    case ROLE_IDS:
        return NUM_I32;
    case ROLE_HALF:
        return m->base == NUM_F32 ? NUM_F32 : NUM_F16;
    case ROLE_EIGHT_BITS:
        type = num_format_of(m->base)->block_n == 1 ? m->base : NUM_Q8_0;
        break;
    case ROLE_PLE_PROJ: /* its output is added to every layer: never quantised */
        return m->base == NUM_F32 || m->base == NUM_F16 ? m->base : NUM_BF16;
    case ROLE_EMBD:
    case ROLE_PLE_EMBD:
        type = m->table;
        break;
    case ROLE_ATTN_V:
    case ROLE_FFN_DOWN:
    case ROLE_DOWN_EXPERTS:
        for (int32_t k = 0; k < n; k++)
            if (list[k].role == t->role) {
                at += k < i;
                of++;
            }
        if (gets_more(at, of))
            type = m->more;
        break;
    case ROLE_MATRIX:
        break;
    }
    if (t->role >= ROLE_ATTN_V)
        type = type_by_rules(m, list, n, i, type);
    while (t->ne[0] % (uint64_t)num_format_of(type)->block_n)
        type = fallback(type);
    return type;
}
