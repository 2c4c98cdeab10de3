/* draft_shapes_test.c - the tables of drafters against what is published about the files.
 *
 * Counts of tensors, parameters and types are public for each size; a shape that contradicts itself
 * is refused by name.
 */
#include "tests/test.h"
#include "base/mem.h"
#include "model/dflash_shapes.h"
#include "model/gemma4_mtp_shapes.h"

static shape_tensor *listed(const char *name, model_shape **s, int32_t *n)
{
    err e = {0};
    CHECK_OK(shape_named(name, s, &e), e);
    CHECK((*s)->family->drafter);
    CHECK_OK((*s)->family->check(*s, name, &e), e);
    *n = (*s)->family->list(*s, NULL, 0);
    shape_tensor *t = mem_calloc((size_t)*n, sizeof *t);
    CHECK_EQ((*s)->family->list(*s, t, *n), *n);
    return t;
}

TEST(draft_shapes_have_the_published_counts)
{
    static const struct {
        const char *name;
        int32_t n;
        double params, q8_bytes; /* in millions; 0: not published */
    } want[] = {{"dflash-26b", 58, 0, 457},
                {"dflash-31b", 58, 0, 1630},
                {"dflash-tiny-laguna", 40, 0, 0},
                {"mtp-e2b", 51, 0, 0},
                {"mtp-e4b", 51, 78.5, 79},
                {"mtp-12b", 49, 0, 0},
                {"mtp-26b", 49, 0, 0},
                {"mtp-31b", 49, 470, 0},
                {"dflash-tiny-dspark", 40, 0, 0},
                {"mtp-tiny-ordered", 51, 0, 0}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        AUTO_MEM model_shape *s;
        int32_t n;
        AUTO_MEM shape_tensor *t = listed(want[i].name, &s, &n);
        double params = 0, bytes = 0;
        CHECK_MSG(n == want[i].n, "%s has %d tensors", want[i].name, n);
        const weight_mix *mix = weight_mix_named(s->family->mix);
        for (int32_t k = 0; k < n; k++) {
            uint64_t row, rows = t[k].ne[1] * t[k].ne[2];
            num_type type = weight_mix_type(mix, t, n, k);
            CHECK(num_row_bytes(type, t[k].ne[0], &row));
            bytes += (double)(row * rows);
            if (t[k].role != ROLE_ROPE_FACTORS && t[k].role != ROLE_IDS)
                params += (double)(t[k].ne[0] * rows);
        }
        if (want[i].params > 0)
            CHECK_MSG(fabs(params * 1e-6 / want[i].params - 1) < 0.01, "%s: %g parameters",
                      want[i].name, params);
        if (want[i].q8_bytes > 0)
            CHECK_MSG(fabs(bytes * 1e-6 / want[i].q8_bytes - 1) < 0.08, "%s: %g bytes",
                      want[i].name, bytes);
    }
}

TEST(draft_shapes_keep_the_types_of_sensitive_tensors)
{
    static const struct {
        const char *size, *tensor;
        num_type q8, q4;
    } want[] = {
        {"dflash-31b", "fc.weight", NUM_Q8_0, NUM_Q8_0},
        {"dflash-31b", "blk.4.ffn_up.weight", NUM_Q8_0, NUM_Q4_K},
        {"dflash-31b", "blk.0.attn_k_norm.weight", NUM_F32, NUM_F32},
        {"dflash-tiny-laguna", "enc.aux_norm.weight", NUM_F32, NUM_F32},
        {"dflash-tiny-laguna", "blk.2.attn_gate.weight", NUM_F16, NUM_F16},
        {"dflash-tiny-dspark", "markov_w1.weight", NUM_F16, NUM_F16},
        {"dflash-tiny-dspark", "markov_w2.weight", NUM_Q8_0, NUM_Q8_0},
        {"dflash-tiny-dspark", "conf_proj.weight", NUM_F32, NUM_F32},
        {"mtp-e4b", "masked_embd_ordering", NUM_I32, NUM_I32},
        {"mtp-e4b", "masked_embd_centroids.weight", NUM_Q8_0, NUM_Q8_0},
        {"mtp-e4b", "blk.3.layer_output_scale.weight", NUM_F32, NUM_F32},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        AUTO_MEM model_shape *s;
        int32_t n, at = 0;
        AUTO_MEM shape_tensor *t = listed(want[i].size, &s, &n);
        while (at < n && strcmp(t[at].name, want[i].tensor) != 0)
            at++;
        CHECK_MSG(at < n, "%s", want[i].tensor);
        CHECK_EQ(weight_mix_type(weight_mix_named("q8_0"), t, n, at), want[i].q8);
        CHECK_EQ(weight_mix_type(weight_mix_named("q4_k_m"), t, n, at), want[i].q4);
    }
}

TEST(draft_shapes_check_names_what_is_wrong)
{
    AUTO_MEM model_shape *s;
    err e = {0};
    CHECK_OK(shape_named("dflash-31b", &s, &e), e);
    ((dflash_shape *)s)->feature[5] = 60;
    CHECK_STATUS(s->family->check(s, "config.json", &e), E_ARG);
    CHECK_STR(e.text, "config.json: captured layer 5 is 60, expected ascending numbers below 60");
    mem_free(s);
    e = (err){0};
    CHECK_OK(shape_named("mtp-e2b", &s, &e), e);
    s->n_vocab = 262145;
    CHECK_STATUS(s->family->check(s, "config.json", &e), E_ARG);
    CHECK_STR(e.text, "config.json: 262145 tokens do not make 2048 clusters of equal size, "
                      "32 of them used");
    CHECK(!s->family->dialect(s, "lucebox"));
}
