/* grammar_test.c - a model that talks nonsense, held to a form: whatever it samples is of that
 * form, alone and side by side, with thoughts and with calls; and what cannot be done is said. */
#include "carat.h"
#include "base/arena.h"
#include "base/str.h"
#include "tests/test.h"
#include "tests/toy_model.h"
#include "text/jtree.h"

#include <pthread.h>

enum { CTX = 640, MAX_TOKENS = 400 };

typedef struct heard {
    str content, reasoning, calls;
    int n_calls;
    carat_finish finish;
    carat_status st;
    carat_error e;
    int n_done;
} heard;

static bool hear(void *user, const carat_event *ev)
{
    heard *h = user;
    if (ev->kind == CARAT_EV_CONTENT)
        str_put(&h->content, ev->text, ev->n_text);
    else if (ev->kind == CARAT_EV_REASONING)
        str_put(&h->reasoning, ev->text, ev->n_text);
    else if (ev->kind == CARAT_EV_TOOL_CALL) {
        h->n_calls++;
        str_cut(&h->calls, 0);
        str_put(&h->calls, ev->text, ev->n_text);
        CHECK_STR(ev->name, "pick");
    } else if (ev->kind == CARAT_EV_END) {
        h->finish = ev->finish;
    }
    return true;
}

static void over(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    heard *h = user;
    (void)t;
    h->n_done++;
    h->st = st;
    if (e)
        h->e = *e;
}

static void forget(heard *h)
{
    str_free(&h->content);
    str_free(&h->reasoning);
    str_free(&h->calls);
}

static const char schema[] =
    "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"integer\",\"minimum\":3,\"maximum\":77}"
    ","
    "\"s\":{\"type\":\"string\",\"maxLength\":6},\"k\":{\"enum\":[\"x\",\"yz\"]}},"
    "\"required\":[\"n\",\"s\",\"k\"],\"additionalProperties\":false}";

static void check_object(const str *text)
{
    AUTO(arena_free) arena mem = {0};
    err e = {0};
    const jtree *v;
    status st = jtree_parse(str_text(text), text->n, "an answer", 10, &mem, &v, &e);
    CHECK_MSG(!st, "%s: %s", str_text(text), e.text);
    CHECK_EQ(v->count, 3);
    CHECK_EQ(jtree_get(v, "n")->kind, JTREE_INTEGER);
    CHECK(atoi(jtree_get(v, "n")->s) >= 3 && atoi(jtree_get(v, "n")->s) <= 77);
    CHECK_EQ(jtree_get(v, "s")->kind, JTREE_STRING);
    const char *k = jtree_get(v, "k")->s;
    CHECK(!strcmp(k, "x") || !strcmp(k, "yz"));
}

static carat_generate_options options(const carat_model *m, uint32_t seed)
{
    carat_generate_options o = {.max_tokens = MAX_TOKENS, .parse = true};
    carat_sampling_default(m, &o.sampling);
    o.sampling.temperature = 2;
    o.sampling.top_k = 0;
    o.sampling.top_p = 1;
    o.sampling.seed = seed;
    return o;
}

static const int32_t prompt[] = {2, 40, 41, 42, 43};

/* One generation. */
static void say(carat_session *s, const carat_generate_options *o, heard *h)
{
    *h = (heard){.n_done = 0};
    h->st = carat_generate(s, prompt, 5, o, hear, h, NULL, &h->e);
}

PLAIN_TEST(answers_follow_their_grammar)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_SESSION *s;
    carat_error e = {0};
    CHECK_OK(carat_session_open(m, &(carat_session_options){.n_ctx = CTX}, &s, &e), e);
    for (uint32_t seed = 1; seed <= 25; seed++) {
        carat_generate_options o = options(m, seed);
        carat_grammar_options go = {
            .kind = CARAT_GRAMMAR_JSON_SCHEMA, .source = schema, .n_source = sizeof schema - 1};
        carat_grammar *g;
        heard h;
        o.starts_thinking = go.starts_thinking = seed % 3 == 0;
        go.thinking = seed % 3 == 1;
        o.max_thinking = 20; /* forced to end: the grammar sees those tokens too */
        CHECK_OK(carat_grammar_open(m, &go, &g, &e), e);
        o.mask = carat_grammar_mask(g);
        say(s, &o, &h);
        CHECK_OK(h.st, h.e);
        CHECK_STR(carat_grammar_failure(g), "");
        CHECK_EQ(h.finish, CARAT_FINISH_STOP);
        CHECK(carat_grammar_complete(g));
        check_object(&h.content);
        CHECK(seed % 3 != 2 || !h.reasoning.n);
        carat_grammar_close(g);
        forget(&h);
    }
}

PLAIN_TEST(calls_follow_their_tools)
{
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"pick\",\"parameters\":{\"type\":"
        "\"object\","
        "\"properties\":{\"n\":{\"type\":\"integer\",\"minimum\":3,\"maximum\":77},\"s\":{\"type\":"
        "\"string\",\"maxLength\":6},\"k\":{\"enum\":[\"x\",\"yz\"]}},\"required\":[\"n\",\"s\","
        "\"k\"]}}}]";
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_SESSION *s;
    carat_error e = {0};
    CHECK_OK(carat_session_open(m, &(carat_session_options){.n_ctx = CTX}, &s, &e), e);
    for (uint32_t seed = 1; seed <= 10; seed++) {
        carat_generate_options o = options(m, seed);
        carat_grammar_options go = {.kind = CARAT_GRAMMAR_TOOLS,
                                    .source = tools,
                                    .n_source = sizeof tools - 1,
                                    .must_call = true,
                                    .one_call = true,
                                    .strict = true};
        carat_grammar *g;
        heard h;
        CHECK_OK(carat_grammar_open(m, &go, &g, &e), e);
        o.mask = carat_grammar_mask(g);
        o.tools_json = tools;
        say(s, &o, &h);
        CHECK_OK(h.st, h.e);
        CHECK_EQ(h.n_calls, 1);
        CHECK_EQ(h.content.n, 0);
        CHECK_EQ(h.finish, CARAT_FINISH_TOOL_CALLS);
        check_object(&h.calls);
        carat_grammar_close(g);
        forget(&h);
    }
}

typedef struct opener {
    carat_model *m;
    carat_grammar *g;
} opener;

static void *open_one(void *user)
{
    opener *o = user;
    carat_grammar_options go = {
        .kind = CARAT_GRAMMAR_JSON_SCHEMA, .source = schema, .n_source = sizeof schema - 1};
    carat_grammar_open(o->m, &go, &o->g, NULL);
    return NULL;
}

/* Opened on threads of their own, followed in one batch: the same answers as alone. */
PLAIN_TEST(grammars_side_by_side)
{
    enum { N = RACES ? 4 : 6 }; /* one more than there are slots */
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_BATCH *b;
    AUTO_SESSION *s;
    carat_error e = {0};
    pthread_t thread[N];
    opener o[N];
    heard h[N], alone;
    carat_batch_options bo = {.session = {.n_ctx = CTX}, .n_slots = 3};
    CHECK_OK(carat_batch_open(m, &bo, &b, &e), e);
    CHECK_OK(carat_session_open(m, &(carat_session_options){.n_ctx = CTX}, &s, &e), e);
    for (int i = 0; i < N; i++) {
        o[i] = (opener){m, NULL};
        CHECK(!pthread_create(&thread[i], NULL, open_one, &o[i]));
    }
    for (uint32_t i = 0; i < N; i++) {
        pthread_join(thread[i], NULL);
        CHECK(o[i].g);
        carat_generate_options go = options(m, i + 1);
        go.mask = carat_grammar_mask(o[i].g);
        h[i] = (heard){.n_done = 0};
        carat_job job = {
            .ids = prompt, .n = 5, .opt = &go, .fn = hear, .done = over, .user = &h[i]};
        int64_t id;
        CHECK_OK(carat_batch_submit(b, &job, &id, NULL, &e), e);
    }
    while (carat_batch_step(b))
        ;
    for (uint32_t i = 0; i < N; i++) {
        CHECK_EQ(h[i].n_done, 1);
        CHECK_OK(h[i].st, h[i].e);
        check_object(&h[i].content);
        opener again = {m, NULL};
        open_one(&again);
        carat_generate_options go = options(m, i + 1);
        go.mask = carat_grammar_mask(again.g);
        say(s, &go, &alone);
        CHECK_STR(str_text(&alone.content), str_text(&h[i].content));
        carat_grammar_close(again.g);
        carat_grammar_close(o[i].g);
        forget(&alone);
        forget(&h[i]);
    }
}

/* The client's words first: what is sampled completes them, or there is nothing to complete. */
TEST(grammars_go_on_with_what_has_begun)
{
    static const char colours[] = "{\"enum\":[\"red\",\"green\",\"grey\"]}";
    static const struct {
        const char *begun;
        bool ok;
    } cases[] = {{"\"gre", true}, {"\"red\"", true}, {"", true}, {"\"blue", false}, {"12", false}};
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    AUTO_SESSION *s;
    carat_error e0 = {0};
    CHECK_OK(carat_session_open(m, &(carat_session_options){.n_ctx = CTX}, &s, &e0), e0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        carat_grammar_options o = {
            .kind = CARAT_GRAMMAR_JSON_SCHEMA, .source = colours, .n_source = sizeof colours - 1};
        carat_error e = {0};
        carat_grammar *g;
        heard h;
        str whole = {0};
        CHECK_OK(carat_grammar_open(m, &o, &g, &e), e);
        size_t n = strlen(cases[i].begun);
        CHECK_EQ(carat_grammar_follow(g, cases[i].begun, n, &e) == CARAT_OK, cases[i].ok);
        if (cases[i].ok) {
            carat_generate_options go = options(m, (uint32_t)i);
            go.mask = carat_grammar_mask(g);
            say(s, &go, &h);
            str_puts(&whole, cases[i].begun);
            str_puts(&whole, str_text(&h.content));
            CHECK_MSG(!strcmp(whole.at, "\"red\"") || !strcmp(whole.at, "\"green\"") ||
                          !strcmp(whole.at, "\"grey\""),
                      "%s", whole.at);
            str_free(&whole);
            forget(&h);
        } else {
            CHECK(e.status == E_ARG && *e.text);
        }
        carat_grammar_close(g);
    }
}

TEST(grammars_that_cannot_be_are_refused)
{
    AUTO_MODEL *m = toy_model_open(NULL, NULL);
    carat_error e = {0};
    carat_grammar *g;
    carat_grammar_options o = {.kind = CARAT_GRAMMAR_GBNF};
    CHECK_STATUS(carat_grammar_open(m, &o, &g, &e), E_ARG);
    o.source = "root ::= x";
    o.n_source = 10;
    e = (carat_error){0};
    CHECK_STATUS(carat_grammar_open(m, &o, &g, &e), E_FORMAT);
    CHECK(!g && strstr(e.text, "does not define"));
    o.kind = (carat_grammar_kind)99;
    CHECK_STATUS(carat_grammar_open(m, &o, &g, NULL), E_ARG);
}
