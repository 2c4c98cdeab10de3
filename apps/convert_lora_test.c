/* convert_lora_test.c - adapters of PEFT become GGUF files; tools/lora_oracle.py compares what they
 * compute.
 */
#include "apps/hub/place.h"
#include "carat.h"
#include "base/str.h"
#include "tests/spawn.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <stdio.h>

/* A table of embeddings as PEFT saves its adapter, of rank 2: A is [rank, vocabulary], B [width,
 * rank]. */
static void write_table_adapter(const char *dir, int32_t n_vocab, int32_t n_embd)
{
    static const char config[] = "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4,"
                                 "\"target_modules\":[\"embed_tokens\"]}";
    static const char name[] = "base_model.model.model.embed_tokens.lora_embedding_";
    char path[700];
    AUTO(str_free) str head = {0}, file = {0};
    uint64_t n_a = 8 * (uint64_t)n_vocab, n_b = 8 * (uint64_t)n_embd;
    str_printf(&head,
               "{\"%sA\":{\"dtype\":\"F32\",\"shape\":[2,%d],\"data_offsets\":[0,%llu]},"
               "\"%sB\":{\"dtype\":\"F32\",\"shape\":[%d,2],\"data_offsets\":[%llu,%llu]}}",
               name, n_vocab, (unsigned long long)n_a, name, n_embd, (unsigned long long)n_a,
               (unsigned long long)(n_a + n_b));
    uint64_t n_head = head.n;
    str_put(&file, (const char *)&n_head, sizeof n_head);
    str_put(&file, head.at, head.n);
    for (uint64_t i = 0; i < (n_a + n_b) / 4; i++) {
        float x = (float)(i % 7) * 0.25f - 0.5f;
        str_put(&file, (const char *)&x, sizeof x);
    }
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    test_write(path, config, sizeof config - 1);
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    test_write(path, file.at, file.n);
}

/* A GGUF file says by no key how many tokens it has. */
TEST(convert_of_an_adapted_table_with_a_file_as_target)
{
    char base[600], dir[600], out[600];
    carat_model_info info;
    err e = {0};
    carat_model *m = toy_model_open(NULL, &(carat_model_options){.vocab_only = true});
    carat_model_get_info(m, &info);
    snprintf(base, sizeof base, "%s", toy_model_write(NULL));
    snprintf(dir, sizeof dir, "%s", test_temp("peft"));
    snprintf(out, sizeof out, "%s", test_temp("table.gguf"));
    CHECK_OK(make_dirs(dir, &e), e);
    write_table_adapter(dir, info.n_vocab, info.n_embd);
    carat_model_close(m);
    spawn_check(0, NULL, NULL, ARGS("convert", dir, out, "--target", base));
    spawn_check(0, "token_embd", NULL, ARGS("inspect", out, "--target", base));
}
