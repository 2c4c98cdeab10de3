/* model_test.c - what a model does without a session: its plan, its tokens, its refusals. */
#include "carat.h"
#include "tests/test.h"
#include "tests/toy_model.h"

TEST(a_file_read_into_memory_is_planned_beside_its_copies)
{
    const char *path = toy_model_write(NULL);
    for (int direct = 0; direct < 2; direct++) {
        AUTO_MODEL *m = NULL;
        carat_memory_plan p;
        err e = {0};
        CHECK_OK(carat_model_open(path, &(carat_model_options){.no_mmap = direct}, &m, &e), e);
        CHECK_OK(carat_plan(m, NULL, &p, &e), e);
        CHECK(p.weight_bytes && p.repack_bytes);
        uint64_t most = p.weight_bytes > p.repack_bytes ? p.weight_bytes : p.repack_bytes;
        CHECK_EQ(p.total_bytes - p.kv_swa_bytes - p.kv_global_bytes - p.scratch_bytes,
                 direct ? p.weight_bytes + p.repack_bytes : most);
    }
}

TEST(an_image_is_refused_and_not_answered_unseen)
{
    AUTO_MODEL *m = toy_model_open(NULL, &(carat_model_options){.vocab_only = true});
    carat_chat c;
    err e = {0};
    CHECK_STATUS(carat_chat_render(m,
                                   "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", "
                                   "\"text\": \"What is this?\"}, {\"type\": \"image\"}]}]",
                                   NULL, NULL, &c, &e),
                 E_UNSUPPORTED);
    CHECK_MSG(strstr(e.text, "image input is not supported by this model"), "%s", e.text);
    CHECK(!c.text && !c.ids && !c.n_ids);
}

TEST(tokens_and_bytes_through_the_public_calls)
{
    AUTO_MODEL *m = toy_model_open(NULL, &(carat_model_options){.vocab_only = true});
    const char *text = "Hello, world <|turn>";
    int32_t ids[64];
    err e = {0};
    int64_t n = carat_tokenize(m, text, strlen(text), 0, NULL, 0, &e);
    CHECK(n > 0 && n < 60);
    CHECK_EQ(carat_tokenize(m, text, strlen(text), CARAT_TOK_BOS, ids, 2, &e), n + 1);
    CHECK_EQ(ids[0], carat_token_bos(m));
    CHECK(carat_tokenize(m, text, strlen(text), CARAT_TOK_SPECIAL, ids, 64, &e) < n);
    CHECK_EQ(carat_tokenize(m, text, strlen(text), 0, ids, 64, &e), n);
    char back[64] = "";
    for (int64_t i = 0; i < n; i++) {
        const char *bytes;
        int32_t k = carat_token_bytes(m, ids[i], false, &bytes);
        CHECK(k >= 0);
        strncat(back, bytes, (size_t)k);
    }
    CHECK_STR(back, text);
    const char *bytes;
    CHECK_EQ(carat_token_bytes(m, -1, false, &bytes), -1);
    CHECK_EQ(carat_token_bytes(m, 1 << 30, false, &bytes), -1);
}

/* A device is named with its reason, and --strict takes kernels for this processor or none. */
TEST(strict_refuses_slow_paths)
{
    const char *path = toy_model_write(NULL);
    carat_model_options o = {.device = "cpu", .strict = true, .no_repack = true};
    carat_model_info i;
    AUTO_MODEL *m;
    err e = {0};
    CHECK_EQ(carat_model_open(path, &o, &m, &e), E_UNSUPPORTED);
    CHECK(!m && strstr(e.text, "--strict: products with ") && strstr(e.text, "slow path"));
    o.strict = false;
    e = (err){0};
    CHECK_OK(carat_model_open(path, &o, &m, &e), e);
    carat_model_get_info(m, &i);
    CHECK(!i.on_gpu && !strcmp(i.device_why, "it was asked for"));
    carat_weight_kind k[8];
    int32_t n = carat_plan_weights(m, k, 8), n_slow = 0;
    for (int32_t j = 0; j < n; j++)
        n_slow += k[j].slow;
    CHECK(n >= 2 && n_slow >= 1);
}
