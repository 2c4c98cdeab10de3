/* num.c - the table of formats and what follows from it: names, sizes, the plain dot product.
 *
 * Every type number in known GGUF files has a line, those that carat cannot decode included: an
 * error that says "iq2_xxs" helps, one that says "type 16" does not.
 */
#include "num/num_int.h"

#define BOTH(n) num_decode_##n, num_encode_##n, NULL
#define WEIGHS(n) num_decode_##n, num_encode_##n, num_weigh_##n
#define WEIGHS_ONLY(n) num_decode_##n, NULL, num_weigh_##n
#define NEITHER NULL, NULL, NULL

static const num_format table[NUM_TYPE_END] = {
    [NUM_F32] = {"f32", 1, 4, BOTH(f32)},
    [NUM_F16] = {"f16", 1, 2, BOTH(f16)},
    [NUM_Q4_0] = {"q4_0", 32, 18, BOTH(q4_0)},
    [NUM_Q4_1] = {"q4_1", 32, 20, BOTH(q4_1)},
    [NUM_Q5_0] = {"q5_0", 32, 22, BOTH(q5_0)},
    [NUM_Q5_1] = {"q5_1", 32, 24, BOTH(q5_1)},
    [NUM_Q8_0] = {"q8_0", 32, 34, BOTH(q8_0)},
    [NUM_Q8_1] = {"q8_1", 32, 36, NEITHER},
    [NUM_Q2_K] = {"q2_k", QK, 84, WEIGHS(q2_k)},
    [NUM_Q3_K] = {"q3_k", QK, 110, WEIGHS(q3_k)},
    [NUM_Q4_K] = {"q4_k", QK, 144, WEIGHS(q4_k)},
    [NUM_Q5_K] = {"q5_k", QK, 176, WEIGHS(q5_k)},
    [NUM_Q6_K] = {"q6_k", QK, 210, WEIGHS(q6_k)},
    [NUM_Q8_K] = {"q8_k", QK, 292, NEITHER},
    [NUM_IQ2_XXS] = {"iq2_xxs", QK, 66, WEIGHS_ONLY(iq2_xxs)},
    [NUM_IQ2_XS] = {"iq2_xs", QK, 74, WEIGHS_ONLY(iq2_xs)},
    [NUM_IQ3_XXS] = {"iq3_xxs", QK, 98, WEIGHS_ONLY(iq3_xxs)},
    [NUM_IQ1_S] = {"iq1_s", QK, 50, WEIGHS_ONLY(iq1_s)},
    [NUM_IQ4_NL] = {"iq4_nl", 32, 18, BOTH(iq4_nl)},
    [NUM_IQ3_S] = {"iq3_s", QK, 110, WEIGHS_ONLY(iq3_s)},
    [NUM_IQ2_S] = {"iq2_s", QK, 82, WEIGHS_ONLY(iq2_s)},
    [NUM_IQ4_XS] = {"iq4_xs", QK, 136, WEIGHS(iq4_xs)},
    [NUM_I8] = {"i8", 1, 1, NEITHER},
    [NUM_I16] = {"i16", 1, 2, NEITHER},
    [NUM_I32] = {"i32", 1, 4, NEITHER},
    [NUM_I64] = {"i64", 1, 8, NEITHER},
    [NUM_F64] = {"f64", 1, 8, NEITHER},
    [NUM_IQ1_M] = {"iq1_m", QK, 56, WEIGHS_ONLY(iq1_m)},
    [NUM_BF16] = {"bf16", 1, 2, BOTH(bf16)},
    [NUM_TQ1_0] = {"tq1_0", QK, 54, WEIGHS(tq1_0)},
    [NUM_TQ2_0] = {"tq2_0", QK, 66, WEIGHS(tq2_0)},
    [NUM_MXFP4] = {"mxfp4", 32, 17, BOTH(mxfp4)},
    [NUM_NVFP4] = {"nvfp4", 64, 36, WEIGHS_ONLY(nvfp4)},
    [NUM_Q1_0] = {"q1_0", 128, 18, WEIGHS(q1_0)},
    [NUM_Q2_0] = {"q2_0", 64, 18, WEIGHS(q2_0)},
};

static const num_format tq3_0 = {"tq3_0", NUM_ROT_GROUP, 56, BOTH(tq3_0)};

const num_format *num_format_of(uint32_t type)
{
    if (type == NUM_TQ3_0)
        return &tq3_0;
    return type < NUM_TYPE_END && table[type].name ? &table[type] : NULL;
}

const char *num_name(uint32_t type)
{
    /* Names of the numbers just above the known ones, in static storage; others share one name. */
    static const char *const unknown[] = {"type 43", "type 44", "type 45", "type 46"};
    const num_format *f = num_format_of(type);
    if (f)
        return f->name;
    return type >= 43 && type <= 46 ? unknown[type - 43] : "unknown type";
}

bool num_row_bytes(uint32_t type, uint64_t n, uint64_t *n_bytes)
{
    const num_format *f = num_format_of(type);
    return f && n % (uint32_t)f->block_n == 0 &&
           !__builtin_mul_overflow(n / (uint32_t)f->block_n, (uint64_t)f->block_bytes, n_bytes);
}

void num_set_factor(num_type type, void *block, float d)
{
    const num_format *f = num_format_of(type);
    uint8_t *b = block;
    uint16_t h = num_f32_to_f16(d);
    if (type == NUM_NVFP4) /* see nvfp4_factor */
        memset(b, (uint8_t)(((num_f32_to_f16(fminf(d, 400) / 256) & 0x7fff) + 64) >> 7), 4);
    else if (type == NUM_IQ1_M) /* a nibble of it in each of four words */
        for (int i = 0; i < 4; i++)
            b[49 + 2 * i] = (uint8_t)((b[49 + 2 * i] & 15) | (h >> 4 * i & 15) << 4);
    else
        st_u16(b + (type == NUM_TQ1_0 || type == NUM_TQ2_0 ? f->block_bytes - 2 : 0), h);
}
