/* embed_form_test.c - requests for embeddings as data: norms, base64, and every failed allocation.
 */
#include "apps/server/dialects/embed_form.h"
#include "tests/test.h"

enum { N_VOCAB = 100, N_EMBD = 8 };

static bool parse(embed_request *rq, embed_api api, const char *body, problem *p)
{
    *rq = (embed_request){0};
    *p = (problem){0};
    return embed_open(rq, api, body, strlen(body), false, p) && embed_read(rq, N_VOCAB, N_EMBD, p);
}

static void check_norm(const char *norm, const float want[4])
{
    AUTO(embed_free) embed_request rq;
    problem p;
    float v[4] = {3, -4, 0, 0};
    int32_t n = 4;
    char body[64];
    snprintf(body, sizeof body, "{\"input\":\"x\",\"embd_normalize\":%s}", norm);
    CHECK(parse(&rq, EMBED_LLAMA, body, &p));
    CHECK(embed_norm(&rq, v, &n, &p));
    for (int i = 0; i < 4; i++)
        CHECK_NEAR(v[i], want[i], 1e-3 * fabs((double)want[i]));
}

TEST(embed_form_norms_as_asked)
{
    check_norm("2", (float[]){0.6f, -0.8f, 0, 0});
    check_norm("-1", (float[]){3, -4, 0, 0});
    check_norm("1", (float[]){3.0f / 7, -4.0f / 7, 0, 0});
    check_norm("0", (float[]){24570, -32760, 0, 0});
    AUTO(embed_free) embed_request rq;
    problem p;
    float zero[2] = {0}, huge[2] = {3e38f, 3e38f};
    int32_t n = 2;
    CHECK(parse(&rq, EMBED_OPENAI, "{\"input\":\"x\"}", &p));
    CHECK(!embed_norm(&rq, zero, &n, &p) && p.status == 500);
    p = (problem){0};
    CHECK(embed_norm(&rq, huge, &n, &p));
    CHECK_NEAR(huge[0], sqrt(0.5), 1e-6);
    embed_free(&rq);
    float zeros[3] = {0};
    n = 3;
    CHECK(parse(&rq, EMBED_OPENAI, "{\"input\":\"x\",\"dimensions\":2}", &p));
    CHECK(!embed_norm(&rq, zeros, &n, &p) && p.status == 500);
    CHECK_EQ(n, 3);
    embed_free(&rq);
    p = (problem){0};
    float cut[3] = {5, 12, 100};
    n = 3;
    CHECK(parse(&rq, EMBED_OPENAI, "{\"input\":\"x\",\"dimensions\":2}", &p));
    CHECK(embed_norm(&rq, cut, &n, &p));
    CHECK_EQ(n, 2);
    CHECK_NEAR(cut[1], 12.0 / 13, 1e-6);
}

static void written(embed_api api, const char *body, str *o)
{
    static const float v[] = {1, -2.5f};
    AUTO(embed_free) embed_request rq;
    problem p;
    CHECK(parse(&rq, api, body, &p));
    embed_answer a = {.rq = &rq, .model = "m", .pooling = "last", .n_tokens = 5};
    str_cut(o, 0);
    embed_begin(&a, o);
    for (int32_t i = 0; i < rq.n_inputs; i++)
        embed_put(&a, i, v, 2, o);
    embed_end(&a, o);
}

TEST(embed_form_writes_every_dialect)
{
    AUTO(str_free) str o = {0};
    written(EMBED_OPENAI, "{\"input\":[\"x\"],\"encoding_format\":\"base64\"}", &o);
    /* 1.0f and -2.5f, little-endian: 00 00 80 3f 00 00 20 c0 */
    CHECK(strstr(o.at, "\"embedding\":\"AACAPwAAIMA=\""));
    CHECK(strstr(o.at, "\"usage\":{\"prompt_tokens\":5,\"total_tokens\":5}}"));
    written(EMBED_OPENAI, "{\"input\":[[1],[2,3]]}", &o);
    CHECK(strstr(o.at, "{\"object\":\"embedding\",\"index\":1,\"embedding\":[1,-2.5]}]"));
    written(EMBED_LLAMA, "{\"content\":\"x\"}", &o);
    CHECK_STR(o.at, "[{\"index\":0,\"embedding\":[[1,-2.5]]}]");
    written(EMBED_OLLAMA, "{\"input\":[\"x\",\"y\"]}", &o);
    CHECK(strstr(o.at, "\"embeddings\":[[1,-2.5],[1,-2.5]],"));
    written(EMBED_OLLAMA, "{}", &o);
    CHECK(strstr(o.at, "\"embeddings\":[],"));
    written(EMBED_OLLAMA_OLD, "{\"prompt\":\"x\"}", &o);
    CHECK_STR(o.at, "{\"embedding\":[1,-2.5]}");
    written(EMBED_OLLAMA_OLD, "{}", &o);
    CHECK_STR(o.at, "{\"embedding\":[]}");
}

static status parse_all(void *arg, err *e)
{
    static const char *const bodies[] = {"{\"input\":[\"x\",[1,2]],\"model\":\"m\"}",
                                         "{\"content\":[1,2,3]}", "{\"prompt\":\"x\"}"};
    static const embed_api apis[] = {EMBED_OPENAI, EMBED_LLAMA, EMBED_OLLAMA_OLD};
    (void)arg;
    for (int i = 0; i < 3; i++) {
        embed_request rq;
        problem p;
        bool ok = parse(&rq, apis[i], bodies[i], &p);
        embed_free(&rq);
        if (!ok)
            return err_set(e, p.status == 503 ? E_MEMORY : E_FORMAT, "%s", p.text);
    }
    return OK;
}

TEST(embed_form_every_allocation)
{
    test_every_allocation(parse_all, NULL);
}
