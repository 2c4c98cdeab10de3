/* bind_test.c - what a model file must say, and that every way of not saying it is one sentence. */
#include "model/model.h"
#include "tests/fidelity_model.h"
#include "tests/test.h"

static status bind_file(const char *path, err *e)
{
    gguf g;
    model m;
    status st = gguf_open(&g, path, false, NULL, NULL, e);
    if (!st)
        st = model_bind(&m, &g, e);
    if (!st)
        model_free(&m);
    return st;
}

/* Binding the file made with v must fail with `want`, naming `name`. */
static void refuse(const fidelity *f, const fidelity_file *v, status want, const char *name)
{
    err e = {0};
    status st = bind_file(fidelity_write(f, v), &e);
    CHECK_MSG(st == want, "%s: gives %s: %s", name, carat_status_name(st), e.text);
    CHECK_MSG(strstr(e.text, name) != NULL, "the message does not name %s: %s", name, e.text);
}

TEST(bind_names_each_missing_key)
{
    static const char *const keys[] = {"gemma4.block_count",
                                       "gemma4.context_length",
                                       "gemma4.embedding_length",
                                       "gemma4.feed_forward_length",
                                       "gemma4.attention.head_count",
                                       "gemma4.attention.key_length",
                                       "gemma4.attention.key_length_swa",
                                       "gemma4.attention.sliding_window",
                                       "gemma4.attention.sliding_window_pattern",
                                       "gemma4.expert_used_count",
                                       "gemma4.expert_feed_forward_length"};
    fidelity f;
    fidelity_open(&f, "all");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        refuse(&f, &(fidelity_file){.drop_key = keys[i]}, E_FORMAT, keys[i]);
    fidelity_close(&f);
}

TEST(bind_names_each_missing_tensor)
{
    static const char *const optional[] = {"rope_freqs.weight", "ffn_down_exps.scale",
                                           "attn_v.weight"};
    fidelity f;
    err e = {0};
    gguf g;
    fidelity_open(&f, "all");
    CHECK_OK(gguf_open(&g, fidelity_write(&f, NULL), false, NULL, NULL, &e), e);
    for (uint64_t i = 0; i < g.tensors.n; i++) {
        const char *name = g.tensors.at[i].name;
        bool skip = strncmp(name, "blk.", 4) == 0 && strncmp(name, "blk.0.", 6) != 0;
        for (size_t k = 0; k < sizeof optional / sizeof *optional; k++)
            skip |= strstr(name, optional[k]) != NULL;
        /* With the fused experts gone the split ones are looked for. */
        const char *named = strstr(name, "gate_up_exps") ? "ffn_gate_exps" : name;
        if (!skip)
            refuse(&f, &(fidelity_file){.drop_tensor = name}, E_FORMAT, named);
    }
    gguf_close(&g);
    fidelity_close(&f);
}

TEST(bind_refuses_numbers_that_contradict_the_tensors_or_themselves)
{
    static const struct {
        const char *key;
        uint32_t value;
        status want;
    } bad[] = {
        {"gemma4.block_count", 0, E_FORMAT},
        {"gemma4.block_count", 100000, E_FORMAT},
        {"gemma4.block_count", 10, E_FORMAT},
        {"gemma4.embedding_length", 0, E_FORMAT},
        {"gemma4.embedding_length", 97, E_FORMAT},
        {"gemma4.embedding_length", UINT32_MAX, E_FORMAT},
        {"gemma4.context_length", 0, E_FORMAT},
        {"gemma4.feed_forward_length", 161, E_FORMAT},
        {"gemma4.attention.head_count", 3, E_FORMAT},
        {"gemma4.attention.head_count", 0, E_FORMAT},
        {"gemma4.attention.head_count", 65536, E_FORMAT},
        {"gemma4.attention.head_count_kv", 0, E_FORMAT},
        {"gemma4.attention.head_count_kv", 4, E_FORMAT},
        {"gemma4.attention.key_length", 63, E_UNSUPPORTED},
        {"gemma4.attention.key_length", UINT32_MAX, E_FORMAT},
        {"gemma4.attention.value_length", 32, E_UNSUPPORTED},
        {"gemma4.rope.dimension_count", 16, E_UNSUPPORTED},
        {"gemma4.attention.sliding_window", 0, E_FORMAT},
        {"gemma4.attention.sliding_window_pattern", 2, E_FORMAT},
        {"gemma4.attention.shared_kv_layers", 9, E_FORMAT},
        {"gemma4.attention.shared_kv_layers", 8, E_FORMAT},
        {"gemma4.expert_count", 7, E_FORMAT},
        {"gemma4.expert_count", UINT32_MAX, E_FORMAT},
        {"gemma4.expert_used_count", 0, E_FORMAT},
        {"gemma4.expert_used_count", 9, E_FORMAT},
        {"gemma4.expert_feed_forward_length", 47, E_FORMAT},
        {"gemma4.embedding_length_per_layer_input", 17, E_FORMAT},
    };
    fidelity f;
    fidelity_open(&f, "all");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = {0};
        fidelity_file v = {.set_key = bad[i].key, .set_value = bad[i].value};
        status st = bind_file(fidelity_write(&f, &v), &e);
        CHECK_MSG(st == bad[i].want, "%s = %u gives %s: %s", bad[i].key, bad[i].value,
                  carat_status_name(st), e.text);
        CHECK(e.text[0] && strstr(e.text, ".gguf"));
    }
    fidelity_close(&f);
}

TEST(bind_names_an_architecture_it_does_not_know)
{
    static const char *const archs[] = {"llama", NULL};
    static const status want[] = {E_UNSUPPORTED, E_FORMAT};
    for (int i = 0; i < 2; i++) {
        const char *path = test_temp(i ? "none.gguf" : "other.gguf");
        gguf_writer *w;
        err e = {0};
        CHECK_OK(gguf_create(&w, path, &e), e);
        if (archs[i])
            gguf_put_string(w, "general.architecture", archs[i], strlen(archs[i]));
        gguf_put_tensor(w, "x", NUM_F32, 1, (uint64_t[]){1});
        CHECK_OK(gguf_write_header(w, &e), e);
        CHECK_OK(gguf_write_data(w, "1234", 4, &e), e);
        CHECK_OK(gguf_commit(w, &e), e);
        CHECK_STATUS(bind_file(path, &e), want[i]);
        CHECK_MSG(strstr(e.text, archs[i] ? archs[i] : "general.architecture"), "%s", e.text);
    }
}

static status bind_again(void *path, err *e)
{
    return bind_file(path, e);
}

TEST(bind_survives_every_failed_allocation)
{
    fidelity f;
    fidelity_open(&f, "all");
    const char *path = fidelity_write(&f, NULL);
    fidelity_close(&f);
    test_every_allocation(bind_again, (void *)path);
}

/* The numbers people see: parameters are counted once although a tied table is used twice. */
TEST(bind_counts_parameters_once)
{
    fidelity f;
    gguf g;
    model m;
    err e = {0};
    fidelity_open(&f, "dense");
    CHECK_OK(gguf_open(&g, fidelity_write(&f, NULL), false, NULL, NULL, &e), e);
    uint64_t n = 0;
    for (uint64_t i = 0; i < g.tensors.n; i++)
        n += g.tensors.at[i].n_elements;
    CHECK_OK(model_bind(&m, &g, &e), e);
    CHECK_EQ(m.n_params, n);
    CHECK(m.n_params_active <= n);
    model_free(&m);
    fidelity_close(&f);
}
