/* vector_server_test.c - `carat serve` with models that write no text: an encoder and rerankers. */
#include "tests/server_rig.h"
#include "apps/server/dialects/request.h"
#include "base/str.h"

#include <math.h>

static void start_vectors(served *s, const toy_model_file *f)
{
    const char *args[] = {"-m", toy_model_write(f), "--ctx", "1024", "-t", "1", NULL};
    served_start(s, args);
}

/* {status, a part of the answer} for a POST. */
static void answers(const served *s, const char *path, const char *body, int code, const char *part)
{
    AUTO(response_free) response r;
    http_post(&r, s, path, body);
    CHECK_MSG(r.status == code && (!part || strstr(str_text(&r.body), part)), "%s %s: %d %.400s",
              path, body, r.status, str_text(&r.body));
}

static double number_in(const served *s, const char *path, const char *body, const char *where)
{
    AUTO(arena_free) arena mem = {0};
    AUTO(response_free) response r;
    double x = 0;
    http_post(&r, s, path, body);
    CHECK_MSG(r.status == 200, "%s: %s", body, str_text(&r.body));
    CHECK_MSG(tree_real(json_at(json_parsed(&mem, r.body.at, r.body.n), where), -1e9, 1e9, &x),
              "%s: no number %s in %s", body, where, str_text(&r.body));
    return x;
}

TEST(an_encoder_serves_vectors_and_no_text)
{
    static const toy_model_file encoder = {.base = "encoder", .no_chat = true};
    AUTO(stop) served s;
    start_vectors(&s, &encoder);
    answers(&s, "/v1/chat/completions", "{" ASK "}", 400, "is an encoder");
    answers(&s, "/v1/completions", "{\"prompt\":\"x\"}", 400, "is an encoder");
    answers(&s, "/completion", "{\"prompt\":\"x\"}", 400, "is an encoder");
    answers(&s, "/v1/messages", "{\"max_tokens\":5," ASK "}", 400, "is an encoder");
    answers(&s, "/api/chat", "{\"model\":\"toy\"," ASK "}", 400, "does not support chat");
    answers(&s, "/api/generate", "{\"model\":\"toy\",\"prompt\":\"x\"}", 400,
            "does not support generate");
    answers(&s, "/api/show", "{\"model\":\"toy\"}", 200, "\"capabilities\":[\"embedding\"]");
    answers(&s, "/v1/embeddings", "{\"input\":\"x\",\"prompt_name\":\"nonsense\"}", 400,
            "Retrieval-query");
    answers(&s, "/v1/embeddings", "{\"input\":[1,2],\"prompt_name\":\"query\"}", 400,
            "list of token ids");
    /* A prompt by name is that prompt before the text. */
    const char *by_name = "{\"input\":\"a cat\",\"prompt_name\":\"query\"}";
    const char *by_hand = "{\"input\":\"task: search result | query: a cat\"}";
    const char *without = "{\"input\":\"a cat\"}";
    double x = number_in(&s, "/v1/embeddings", by_name, "data.0.embedding.3");
    CHECK(x == number_in(&s, "/v1/embeddings", by_hand, "data.0.embedding.3"));
    CHECK(x != number_in(&s, "/v1/embeddings", without, "data.0.embedding.3"));
    /* The begin token, and the end token that the file asks for. */
    CHECK(number_in(&s, "/v1/embeddings", without, "usage.prompt_tokens") ==
          2 + number_in(&s, "/v1/embeddings", "{\"input\":[9]}", "usage.prompt_tokens") *
                  (number_in(&s, "/v1/embeddings", without, "usage.total_tokens") - 2));
    /* Longer than the context: a sentence, or the beginning. */
    AUTO(str_free) str body = {0};
    str_puts(&body, "{\"input\":\"");
    for (int i = 0; i < 1500; i++)
        str_puts(&body, "x 7 ");
    str_puts(&body, "\"}");
    answers(&s, "/v1/embeddings", body.at, 400, "the context holds 1024");
    str_cut(&body, body.n - 1);
    str_puts(&body, ",\"truncate\":true}");
    CHECK(number_in(&s, "/v1/embeddings", body.at, "usage.prompt_tokens") == 1024);
}

/* The cosine of two texts, by their vectors. */
static double cosine(const served *s, const char *a, const char *b)
{
    AUTO(arena_free) arena mem = {0};
    AUTO(response_free) response r;
    double dot = 0, x, y;
    char body[128];
    snprintf(body, sizeof body, "{\"input\":[\"%s\",\"%s\"]}", a, b);
    http_post(&r, s, "/v1/embeddings", body);
    CHECK_MSG(r.status == 200, "%s", str_text(&r.body));
    const jtree *all = json_parsed(&mem, r.body.at, r.body.n);
    const jtree *v = json_at(all, "data.0.embedding"), *w = json_at(all, "data.1.embedding");
    CHECK(v && w && v->count == w->count);
    for (v = v->first, w = w->first; v; v = v->next, w = w->next)
        if (tree_real(v, -1, 1, &x) && tree_real(w, -1, 1, &y))
            dot += x * y;
    return dot;
}

TEST(a_model_for_vectors_scores_by_their_cosine)
{
    AUTO(stop) served s;
    start_vectors(&s, &(toy_model_file){.base = "encoder", .no_chat = true});
    double one = cosine(&s, "a cat", "x 7"), two = cosine(&s, "a cat", "two words"),
           pair = cosine(&s, "third", "two words");
    CHECK(fabs(one - two) > 1e-3);
    const char *some = "{\"text_1\":\"a cat\",\"text_2\":[\"x 7\",\"two words\"]}";
    const char *pairs = "{\"text_1\":[\"a cat\",\"third\"],\"text_2\":[\"x 7\",\"two words\"]}";
    const char *best = "{\"query\":\"a cat\",\"top_n\":1,\"documents\":[\"x 7\",\"two words\"]}";
    CHECK_NEAR(number_in(&s, "/v1/score", some, "data.0.score"), one, 1e-5);
    CHECK_NEAR(number_in(&s, "/v1/score", some, "data.1.score"), two, 1e-5);
    CHECK_NEAR(number_in(&s, "/v1/score", pairs, "data.0.score"), one, 1e-5);
    CHECK_NEAR(number_in(&s, "/v1/score", pairs, "data.1.score"), pair, 1e-5);
    CHECK_NEAR(number_in(&s, "/rerank", best, "results.0.relevance_score"), fmax(one, two), 1e-5);
    CHECK(number_in(&s, "/rerank", best, "results.0.index") == (two > one));
    answers(&s, "/v1/rerank", "{\"query\":\"q\",\"instruction\":\"x\",\"documents\":[\"a\"]}", 400,
            "does not change");
    stop(&s);
    start_vectors(&s, &(toy_model_file){.base = "qwen3", .words = "qwen2"});
    answers(&s, "/v1/rerank", "{\"query\":\"x\",\"documents\":[\"y\"]}", 501, "no reranker");
}

TEST(a_reranker_orders_documents)
{
    static const toy_model_file rerankers[] = {
        {.base = "qwen3", .words = "qwen2", .ranks = TOY_RANK_MATRIX},
        {.base = "qwen3", .words = "qwen2", .ranks = TOY_RANK_HEAD}};
#define DOCS "\"documents\":[\"one\",{\"text\":\"two words\"},\"three\",\"f\",\"\",\"six\"]"
    for (int k = 0; k < 2; k++) {
        AUTO(stop) served s;
        arena mem = {0};
        response r;
        start_vectors(&s, &rerankers[k]);
        http_post(&r, &s, "/v1/rerank", "{\"query\":\"count\",\"return_documents\":true," DOCS "}");
        CHECK_MSG(r.status == 200, "%s", str_text(&r.body));
        const jtree *list = json_at(json_parsed(&mem, r.body.at, r.body.n), "results");
        CHECK(list && list->count == 6);
        double last = 2, x = 0, at = 0;
        int seen = 0;
        for (const jtree *i = list->first; i; i = i->next) {
            CHECK(tree_real(jtree_get(i, "relevance_score"), 0, 1, &x) && x <= last);
            CHECK(tree_real(jtree_get(i, "index"), 0, 5, &at));
            CHECK(jtree_is(json_at(i, "document.text"), JTREE_STRING));
            seen |= 1 << (int)at;
            last = x;
            /* The same alone, and as a pair. */
            char body[128];
            const char *text = json_at(i, "document.text")->s;
            snprintf(body, sizeof body, "{\"text_1\":\"count\",\"text_2\":[\"%s\"]}", text);
            CHECK_NEAR(number_in(&s, "/v1/score", body, "data.0.score"), x, 1e-7);
        }
        CHECK_EQ(seen, 63);
        response_free(&r);
        arena_free(&mem);
        answers(&s, "/rerank", "{\"query\":\"q\",\"texts\":[\"a\",\"b\"],\"return_text\":true}",
                200, "[{\"index\":");
        answers(&s, "/reranking", "{\"query\":\"q\",\"top_n\":1,\"documents\":[\"a\",\"a\"]}", 200,
                "\"results\":[{\"index\":0,");
        answers(&s, "/v2/rerank", "{\"query\":\"q\",\"instruction\":\"x\",\"documents\":[\"a\"]}",
                200, "relevance_score");
        answers(&s, "/score", "{\"text_1\":[\"a\",\"b\"],\"text_2\":[\"c\",\"d\"]}", 200,
                "\"index\":1,\"score\":");
    }
}

TEST(bad_requests_to_a_reranker_are_named)
{
    static const struct {
        const char *body, *says;
    } bad[] = {
        {"{", "error"},
        {"[]", "expected a JSON object"},
        {"{\"documents\":[\"a\"]}", "'query' is missing"},
        {"{\"query\":\"\",\"documents\":[\"a\"]}", "empty"},
        {"{\"query\":7,\"documents\":[\"a\"]}", "expected a text"},
        {"{\"query\":[\"a\"],\"documents\":[\"a\"]}", "expected a text"},
        {"{\"query\":\"q\"}", "'documents' is missing"},
        {"{\"query\":\"q\",\"documents\":[]}", "1 to 10000"},
        {"{\"query\":\"q\",\"documents\":\"a\"}", "1 to 10000"},
        {"{\"query\":\"q\",\"documents\":[7]}", "expected texts"},
        {"{\"query\":\"q\",\"documents\":[{\"title\":\"a\"}]}", "expected texts"},
        {"{\"query\":\"q\",\"documents\":[[\"a\"]]}", "expected texts"},
        {"{\"query\":\"q\",\"documents\":[\"a\"],\"top_n\":0}", "top_n"},
        {"{\"query\":\"q\",\"documents\":[\"a\"],\"temperature\":1}", "unknown field"},
        {"{\"query\":\"q\",\"documents\":[\"a\"],\"instruction\":3}", "instruction"},
    };
    AUTO(stop) served s;
    AUTO(str_free) str body = {0};
    start_vectors(&s, &(toy_model_file){.base = "qwen3", .words = "qwen2", .ranks = 1});
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        answers(&s, "/v1/rerank", bad[i].body, 400, bad[i].says);
    answers(&s, "/v1/score", "{\"text_1\":[\"a\",\"b\"],\"text_2\":[\"a\",\"b\",\"c\"]}", 400,
            "as many");
    str_puts(&body, "{\"query\":\"q\",\"documents\":[\"a\"");
    for (int i = 0; i < 10000; i++)
        str_puts(&body, ",\"b\"");
    str_puts(&body, "]}");
    answers(&s, "/v1/rerank", body.at, 400, "10001");
    str_cut(&body, 0);
    str_puts(&body, "{\"query\":\"q\",\"documents\":[\"");
    for (int i = 0; i < 2000; i++)
        str_puts(&body, "7 ");
    str_puts(&body, "\"]}");
    answers(&s, "/v1/rerank", body.at, 400, "context_length_exceeded");
    answers(&s, "/v1/rerank", "{\"query\":\"q\",\"documents\":[\"a\"]}", 200, "results");
}
