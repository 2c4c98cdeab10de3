/* qwen35_test.c - files of Qwen3.5 and 3.6: tensor counts of published sizes, NextN layers that are
 * not layers, and what is refused, with the sentence's main words. */
#include "model/qwen35.h"
#include "base/mem.h"
#include "model/model.h"
#include "tests/doctor.h"
#include "tests/fidelity_model.h"
#include "tests/test.h"

TEST(qwen35_shapes_have_the_tensors_of_published_files)
{
    static const struct {
        const char *name;
        bool nextn;
        int32_t n_tensors;
        double billions; /* parameters */
    } sizes[] = {{"qwen3.6-27b", false, 851, 26.89}, {"qwen3.8-27b", false, 851, 26.89},
                 {"qwen3.6-27b", true, 866, 27.32},  {"qwen3.6-35b-a3b", false, 733, 34.66},
                 {"qwen3.6-35b-a3b", true, 753, 0},  {"qwen3.5-2b", false, 320, 0},
                 {"qwen3.5-2b", true, 335, 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        AUTO_MEM model_shape *s;
        err e = {0};
        double total = 0;
        CHECK_OK(shape_named(sizes[i].name, &s, &e), e);
        if (sizes[i].nextn)
            CHECK_EQ(s->family->set_nextn(s, 1), 0);
        CHECK_OK(s->family->check(s, sizes[i].name, &e), e);
        int32_t n = s->family->list(s, NULL, 0);
        AUTO_MEM shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
        CHECK(list);
        s->family->list(s, list, n);
        for (int32_t k = 0; k < n; k++)
            total += (double)(list[k].ne[0] * list[k].ne[1] * list[k].ne[2]);
        CHECK_EQ(n, sizes[i].n_tensors);
        CHECK_MSG(sizes[i].billions == 0 || fabs(total / 1e9 - sizes[i].billions) < 0.006, "%s: %g",
                  sizes[i].name, total);
    }
}

/* Binds a copy of a file with a change. */
static status bind_changed(const char *from, const doctor_change *c, model *m, err *e)
{
    const char *path = test_temp("changed.gguf");
    gguf g;
    doctor_gguf(from, path, c);
    *e = (err){0};
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, e), *e);
    return model_bind(m, &g, e);
}

TEST(qwen35_files_that_are_something_else_are_refused)
{
    static const struct {
        doctor_change change;
        const char *words; /* in the sentence */
    } cases[] = {
        {{.arch = "qwen3next"}, "Qwen3-Next"},
        {{.arch = "qwen4exp"}, "hyper-connections"},
        {{.add = "blk.0.hc_attn_norm.weight"}, "qwen4exp"},
        {{.add = "blk.3.indexer.q_proj.weight"}, "qwen4exp"},
        {{.add = "blk.1.ple_key.weight"}, "qwen4exp"},
        {{.rename = "blk.0.attn_norm.weight", .as = "blk.8.nextn.eh_proj.weight"},
         "NextN (MTP) layer"},
        {{.key = "qwen35.full_attention_interval", .value = 2}, "blk.1.attn_q.weight is missing"},
        {{.add = "blk.3.ssm_a"}, "layer 3 attends"},
        {{.add = "blk.0.attn_q.weight"}, "layer 0 is recurrent"},
        {{.key = "qwen35.ssm.group_count", .value = 4}, "share 4 key heads"},
        {{.key = "qwen35.ssm.time_step_rank", .value = 7}, "over 7 value heads"},
        {{.key = "qwen35.ssm.state_size", .value = 16}, "attn_qkv.weight: shape"},
        {{.key = "qwen35.ssm.conv_kernel", .value = 9}, "ssm.conv_kernel = 9"},
        {{.key = "qwen35.ssm.conv_kernel", .value = 3}, "ssm_conv1d.weight: shape"},
        {{.key = "qwen35.attention.head_count_kv", .value = 3}, "with 3 KV heads"},
        {{.key = "qwen35.attention.key_length", .value = 33},
         "value_length = 32: they must be equal"},
        {{.key = "qwen35.rope.dimension_count", .value = 7}, "expected an even number"},
        {{.key = "qwen35.nextn_predict_layers", .value = 8}, "nextn_predict_layers = 8"},
        {{.key = "qwen35.expert_gating_func", .value = 2}, "expert_gating_func = 2"},
        {{.drop = "blk.0.ssm_dt.bias"}, "blk.0.ssm_dt.bias is missing"},
        {{.drop = "qwen35.ssm.inner_size"}, "qwen35.ssm.inner_size is missing"},
    };
    AUTO(fidelity_close) fidelity f;
    model m;
    err e;
    fidelity_open(&f, "qwen35");
    const char *path = fidelity_write(&f, NULL);
    CHECK_OK(bind_changed(path, &(doctor_change){0}, &m, &e), e);
    CHECK(m.n_layer == 8 && m.n_recur == 6 && m.n_kv == 2);
    model_free(&m);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_MSG(bind_changed(path, &cases[i].change, &m, &e), "case %zu (%s) is not refused", i,
                  cases[i].words);
        CHECK_MSG(strstr(e.text, cases[i].words), "case %zu: %s", i, e.text);
    }
}

/* A file with an MTP layer counts it in block_count; its tensors are not asked for. */
TEST(qwen35_mtp_layers_are_not_layers)
{
    AUTO(fidelity_close) fidelity f;
    AUTO(model_free) model m;
    err e = {0};
    fidelity_open(&f, "qwen35");
    const char *from = fidelity_write(&f, NULL), *nine = test_temp("nine.gguf");
    doctor_gguf(from, nine, &(doctor_change){.key = "qwen35.block_count", .value = 9});
    CHECK_STATUS(bind_changed(nine, &(doctor_change){0}, &m, &e), E_FORMAT);
    CHECK_OK(bind_changed(nine,
                          &(doctor_change){.key = "qwen35.nextn_predict_layers",
                                           .value = 1,
                                           .add = "blk.8.nextn.eh_proj.weight"},
                          &m, &e),
             e);
    CHECK_EQ(m.n_layer, 8);
}
