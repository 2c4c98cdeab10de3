/* embed_cli_test.c - `carat embed` and `carat rerank`: texts from words, files and standard input;
 * vectors as lines, JSON and floats; sentences for wrong input. */
#include "base/json.h"
#include "tests/spawn.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <math.h>

static void run(spawned *r, const char *in, const char *const *args)
{
    spawn_carat(r, &(spawn_options){.in = in}, args);
}
#define RUN(r, in, ...) run(r, in, (const char *const[]){__VA_ARGS__, NULL})

static void refused(int code, const char *says, const char *in, const char *const *args)
{
    AUTO(spawned_free) spawned r;
    run(&r, in, args);
    CHECK_MSG(r.code == code && strstr(str_text(&r.err), says), "%s: %d %s", says, r.code,
              str_text(&r.err));
}
#define REFUSED(code, says, in, ...)                                                               \
    refused(code, says, in, (const char *const[]){__VA_ARGS__, NULL})

static json_t *parsed(const spawned *r)
{
    json_t *v;
    err e = {0};
    CHECK_MSG(r->code == 0, "exit status %d: %s", r->code, str_text(&r->err));
    CHECK_OK(json_parse(&v, str_text(&r->out), r->out.n, "output", &e), e);
    return v;
}

TEST(embed_command_gives_the_same_vectors_in_every_form)
{
    const char *m = toy_model_write(&(toy_model_file){.base = "encoder", .no_chat = true});
    spawned words, lines, file, raw, other;
    RUN(&words, NULL, "embed", "-m", m, "-t", "1", "--json", "a cat", "two dogs bark");
    json_t *v = parsed(&words), *data = json_object_get(v, "data");
    CHECK_EQ(json_array_size(data), 2);
    CHECK_STR(json_string_value(json_object_get(v, "pooling")), "mean");
    const json_t *x = json_object_get(json_array_get(data, 1), "embedding");
    CHECK_EQ(json_array_size(x), 96);
    double sum = 0;
    for (size_t i = 0; i < 96; i++)
        sum += pow(json_number_value(json_array_get(x, i)), 2);
    CHECK_NEAR(sum, 1, 1e-5);

    RUN(&raw, "a cat\ntwo dogs bark\n", "embed", "-m", m, "-t", "1", "--raw");
    CHECK_MSG(raw.code == 0 && raw.out.n == 2 * 96 * sizeof(float), "%zu bytes", raw.out.n);
    for (size_t i = 0; i < 96; i++) {
        float y;
        memcpy(&y, raw.out.at + (96 + i) * sizeof y, sizeof y);
        CHECK(y == (float)json_number_value(json_array_get(x, i)));
    }
    const char *path = test_temp("texts");
    test_write(path, "a cat\r\ntwo dogs bark", 20);
    RUN(&lines, "a cat\ntwo dogs bark\n", "embed", "-m", m, "-t", "1");
    RUN(&file, NULL, "embed", "-m", m, "-t", "1", "-f", path);
    CHECK(lines.code == 0 && file.code == 0);
    CHECK_STR(str_text(&lines.out), str_text(&file.out));
    CHECK(lines.out.at[0] == '[');
    RUN(&other, NULL, "embed", "-m", m, "-t", "1", "-d", "8", "--prompt", "document", "--json",
        "a cat");
    json_t *w = parsed(&other);
    CHECK_EQ(json_integer_value(json_object_get(w, "dimensions")), 8);
    json_decref(w);
    json_decref(v);
    spawned_free(&words);
    spawned_free(&lines);
    spawned_free(&file);
    spawned_free(&raw);
    spawned_free(&other);

    REFUSED(1, "text 2 is empty", "a\n\nb\n", "embed", "-m", m);
    REFUSED(1, "0 texts", "", "embed", "-m", m);
    REFUSED(1, "expected one of them", NULL, "embed", "-m", m, "-f", path, "a");
    REFUSED(1, "have 96 numbers", NULL, "embed", "-m", m, "-d", "97", "a");
    REFUSED(1, "Retrieval-query", NULL, "embed", "-m", m, "--prompt", "none", "a");
    REFUSED(1, "mean or last", NULL, "embed", "-m", m, "--pooling", "cls", "a");
    REFUSED(1, "no reranker", NULL, "rerank", "-m", m, "query", "a");
}

TEST(embed_command_cuts_or_refuses_long_texts)
{
    const char *m =
        toy_model_write(&(toy_model_file){.base = "encoder", .no_chat = true, .n_ctx_train = 128});
    AUTO(str_free) str text = {0};
    AUTO(spawned_free) spawned r;
    for (int i = 0; i < 300; i++)
        str_puts(&text, "x 7 ");
    str_putc(&text, '\n');
    REFUSED(1, "the context of toy holds 128", text.at, "embed", "-m", m);
    RUN(&r, text.at, "embed", "-m", m, "-t", "1", "--truncate", "--json");
    json_t *v = parsed(&r);
    CHECK_EQ(json_integer_value(
                 json_object_get(json_array_get(json_object_get(v, "data"), 0), "tokens")),
             128);
    json_decref(v);
}

TEST(rerank_command_orders_texts)
{
    const char *m = toy_model_write(
        &(toy_model_file){.base = "qwen3", .words = "qwen2", .ranks = TOY_RANK_MATRIX});
    spawned r, top;
    RUN(&r, NULL, "rerank", "-m", m, "-t", "1", "--json", "count", "one", "two", "three", "four");
    json_t *v = parsed(&r), *list = json_object_get(v, "results");
    CHECK_EQ(json_array_size(list), 4);
    for (size_t i = 1; i < 4; i++)
        CHECK(json_number_value(json_object_get(json_array_get(list, i), "relevance_score")) <=
              json_number_value(json_object_get(json_array_get(list, i - 1), "relevance_score")));
    RUN(&top, "one\ntwo\nthree\nfour\n", "rerank", "-m", m, "-t", "1", "-n", "1", "count");
    CHECK(top.code == 0);
    const char *best = json_string_value(json_object_get(json_array_get(list, 0), "document"));
    CHECK_MSG(strstr(str_text(&top.out), best) && top.out.n < 30, "%s", str_text(&top.out));
    json_decref(v);
    spawned_free(&top);
    spawned_free(&r);
    REFUSED(2, "QUERY", NULL, "rerank", "-m", m);
}
