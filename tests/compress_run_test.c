/* compress_run_test.c - `carat run --compress`, with a toy model that scores for itself. */
#include "base/json.h"
#include "tests/spawn.h"
#include "tests/test.h"
#include "tests/toy_model.h"

static const char *model, *in;

static void run(spawned *r, const char *const *args)
{
    const char *argv[24] = {"run", "-m", model, "--greedy", "-n", "2"};
    int n = 6;
    while (*args)
        argv[n++] = *args++;
    spawn_carat(r, &(spawn_options){.in = in}, argv);
}

#define RUN(r, ...) run(r, (const char *const[]){__VA_ARGS__, NULL})

static void says(const spawned *r, int code, const char *what)
{
    CHECK_MSG(r->code == code && spawned_says(&r->err, what), "exit status %d, \"%s\": %s", r->code,
              what, str_text(&r->err));
}

PLAIN_TEST(run_compresses_what_comes_before_the_question)
{
    char path[512];
    AUTO(str_free) str text = {0};
    AUTO(spawned_free) spawned r;
    err e = {0};
    json_t *v = NULL;
    model = toy_model_write(NULL);
    snprintf(path, sizeof path, "%s", test_temp("long.txt"));
    for (int i = 0; i < 60; i++)
        str_printf(&text, "Sentence %d is about a stone. ", i);
    test_write(path, text.at, text.n);

    RUN(&r, "--compress", "0.3", "--compress-show", "-f", path, "Where is 41?");
    says(&r, 0, "[compressed in ");
    says(&r, 0, "--- message 1: ");
    says(&r, 0, "[-Sentence ");
    CHECK(!spawned_says(&r.err, "Where is 41?") && !spawned_says(&r.err, "```"));
    spawned_free(&r);

    in = text.at;
    RUN(&r, "--compress", "0.3", "--format", "json", "Where is 41?");
    CHECK_MSG(r.code == 0, "exit status %d: %s", r.code, str_text(&r.err));
    CHECK_OK(json_parse(&v, r.out.at, r.out.n, "the answer", &e), e);
    const json_t *c = json_object_get(json_object_get(v, "usage"), "compression");
    json_int_t before = json_integer_value(json_object_get(c, "original_tokens"));
    json_int_t after = json_integer_value(json_object_get(c, "kept_tokens"));
    CHECK(after > 100 && after < before / 2);
    CHECK_EQ(json_array_size(json_object_get(c, "texts")), 1);
    json_decref(v);
    spawned_free(&r);

    RUN(&r, "--compress", "0.3"); /* the end of the one message is its question */
    says(&r, 0, "[compressed in ");
    spawned_free(&r);
    RUN(&r, "-v", "--compress", "auto", "And?");
    says(&r, 0, "[not compressed: the conversation is shorter than 32000 tokens");
    spawned_free(&r);
    RUN(&r, "--compress", "0.3", "--raw");
    says(&r, 0, "[compressed in ");
    spawned_free(&r);
    in = NULL;

    RUN(&r, "--compress", "1.5", "Hi");
    says(&r, 1, "--compress: compression '1.5': expected auto, auto:TOKENS, or the share");
    spawned_free(&r);
    RUN(&r, "--compress-show", "Hi");
    says(&r, 2, "--compress-show has no effect without --compress");
    spawned_free(&r);
    RUN(&r, "--compress", "0.3", "--compress-model", "/nowhere.gguf", "Hi");
    says(&r, 1, "/nowhere.gguf");
}
