/* grammar_pairs_test.c - forced calls in the Qwen, Laguna, Mistral, gpt-oss and Llama formats: what
 * the grammars allow, and that the parsers read it.
 */
#include "tests/test.h"
#include "tests/vocab_parts.h"
#include "text/grammar_int.h"
#include "text/gpt_oss.h"
#include "text/laguna.h"
#include "text/llama.h"
#include "text/mistral.h"
#include "text/qwen.h"

RELEASED_AT(vocab_close, vocab)

static size_t one_byte(const char *s, size_t n)
{
    (void)s;
    (void)n;
    return 1;
}

static const char *const marks[] = {
    "<think>",     "</think>",    "<tool_call>",   "</tool_call>",  "<assistant>", "[TOOL_CALLS]",
    "[CALL_ID]",   "[ARGS]",      "[THINK]",       "[/THINK]",      "<|start|>",   "<|end|>",
    "<|channel|>", "<|message|>", "<|constrain|>", "<|python_tag|>"};
enum { N_MARKS = sizeof marks / sizeof *marks };

static const tokenizer_name tokenizers[] = {{"toy", NULL, VOCAB_CHARS, one_byte, NULL, 0}, {0}};
static const text_family toy = {
    .archs = STRINGS("toy"),
    .name = "the toy",
    .model_types = (const char *const[]){"toy", NULL},
    .tokenizers = tokenizers,
    .ends = STRINGS("<end>"),
    .ends_not = STRINGS(NULL),
    .media = STRINGS(NULL),
    .shown = STRINGS("<think>", "</think>", "<tool_call>", "</tool_call>", "<assistant>",
                     "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[THINK]", "[/THINK]", "<|start|>",
                     "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|python_tag|>")};

static vocab *toy_marks(void)
{
    vocab_settings set = {
        .family = &toy, .model = "toy", .bos = -1, .eos = -1, .eot = -1, .unk = -1, .pad = -1};
    vocab_builder *b;
    vocab *v;
    err e = {0};
    CHECK_OK(vocab_begin(&b, N_MARKS + 256 + 2, 1, &e), e);
    for (int i = 0; i < N_MARKS; i++)
        vocab_add_token(b, marks[i], strlen(marks[i]), TOKEN_USER_DEFINED);
    add_byte_pieces(b);
    vocab_add_token(b, "h", 1, TOKEN_NORMAL);
    vocab_add_token(b, "hh", 2, TOKEN_NORMAL);
    vocab_add_merge(b, "h h", 3);
    CHECK_OK(vocab_finish(b, &set, &v, &e), e);
    return v;
}

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"city\":{\"type\":\"string\"},\"unit\":{\"enum\":[\"C\",\"F\"]},"
    "\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":14},\"id\":{\"type\":\"string\","
    "\"pattern\":\"^[a-z]{2}$\"},\"list\":{\"type\":\"array\",\"items\":{\"type\":\"boolean\"}},"
    "\"any\":{}},\"required\":[\"city\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"ping\"}}]";

static void open_grammar(grammar **g, const chat_format *f, const grammar_tools *o,
                         grammar_thought thought)
{
    const grammar_setting how = {.answer = text_answer_syntax(f, f->family), .thought = thought};
    err e = {0};
    CHECK_OK(grammar_from_tools(g, o, &how, &e), e);
}

/* Follows text, in which marks are spelled, as tokens. True: allowed, and complete. */
static bool follows(matcher *m, const vocab *v, const char *text)
{
    AUTO(grammar_end) grammar_run r = {0};
    bool ok = true;
    err e = {0};
    CHECK_OK(grammar_begin(&r, m, &e), e);
    while (*text && ok) {
        int k = 0;
        while (k < N_MARKS && strncmp(text, marks[k], strlen(marks[k])))
            k++;
        if (k < N_MARKS)
            CHECK_OK(grammar_accept(&r, vocab_mark(v, marks[k]), &ok, &e), e);
        else
            CHECK_OK(grammar_accept_bytes(&r, text, 1, &ok, &e), e);
        text += k < N_MARKS ? strlen(marks[k]) : 1;
    }
    ok = ok && grammar_may_end(&r);
    return ok;
}

static bool count_call(void *user, const answer_event *ev)
{
    *(int *)user += ev->kind == ANSWER_TOOL_CALL;
    return true;
}

typedef struct example {
    const char *text;
    int n_calls; /* -1: refused */
} example;

static void check_examples(const chat_format *f, const grammar_tools *o, grammar_thought thought,
                           const example *x)
{
    grammar *g;
    token_tree *t;
    matcher *m;
    AUTO_PTR(vocab_close) vocab *v = toy_marks();
    err e = {0};
    open_grammar(&g, f, o, thought);
    CHECK_OK(token_tree_open(&t, v, &e), e);
    CHECK_OK(matcher_open(&m, g, t, &e), e);
    for (; x->text; x++) {
        CHECK_MSG(follows(m, v, x->text) == (x->n_calls >= 0), "%s: \"%s\" is %s", f->name, x->text,
                  x->n_calls >= 0 ? "refused" : "allowed");
        if (x->n_calls < 0)
            continue;
        int n = 0;
        answer_parser *a;
        CHECK_OK(answer_open(&a, f, thought == THOUGHT_INSIDE, count_call, &n, &e), e);
        CHECK_OK(answer_tools(a, tools, sizeof tools - 1, false, &e), e);
        CHECK_OK(answer_put(a, x->text, strlen(x->text), &e), e);
        CHECK_OK(answer_end(a, false, &e), e);
        answer_close(a);
        CHECK_MSG(n == x->n_calls, "%s: \"%s\" has %d calls", f->name, x->text, n);
    }
    matcher_close(m);
    token_tree_close(t);
    grammar_close(g);
}

static const grammar_tools must = {
    .tools = tools, .n_tools = sizeof tools - 1, .calls = CALLS_MUST, .strict_all = true};

TEST(forced_calls_of_qwen3_are_json)
{
    static const example x[] = {
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"a </tool b\", \"days\": 3}}\n"
         "</tool_call>",
         1},
        {"<think>hm\n</think>\n\n<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n"
         "</tool_call>\n<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>",
         2},
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"days\": 3}}\n</tool_call>", -1},
        {"<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>", -1},
        {"Hello", -1},
        {NULL, 0}};
    check_examples(&qwen_formats[QWEN_3], &must, THOUGHT_MAY, x);
}

#define CALL(x) "<tool_call>\n<function=f>\n" x "</function>\n</tool_call>"
#define P(k, v) "<parameter=" k ">\n" v "\n</parameter>\n"

TEST(forced_calls_of_the_coder_formats)
{
    static const example x[] = {
        {"hm\n</think>\n\n" CALL(P("city", "S\303\243o </param> \n\"x\"")), 1},
        {"</think>" CALL(P("city", "") P("unit", "F") P("days", "14") P("id", "ab")
                             P("list", "[true, false]") P("any", "x: 1")),
         1},
        {"</think>\n" CALL(P("city", "a")) "\n<tool_call>\n<function=ping>\n</function>\n"
                                           "</tool_call>",
         2},
        {"</think>" CALL(""), -1},
        {"</think>" CALL(P("city", "a") P("unit", "K")), -1},
        {"</think>" CALL(P("city", "a") P("days", "15")), -1},
        {"</think>" CALL(P("city", "a") P("id", "abc")), -1},
        {"</think>" CALL(P("city", "a") P("other", "1")), -1},
        {"</think>text", -1},
        {NULL, 0}};
    check_examples(&qwen_formats[QWEN_36], &must, THOUGHT_INSIDE, x);
    static const example loose[] = {
        {CALL(P("days", "many") P("other", "x")), 1}, {CALL(P("a b", "x")), -1}, {NULL, 0}};
    grammar_tools o = must;
    o.strict_all = false;
    o.only = "f";
    check_examples(&qwen_formats[QWEN_3_CODER], &o, THOUGHT_NONE, loose);
}

TEST(forced_calls_of_laguna)
{
    static const example compact[] = {
        {"hm</think><tool_call>f<arg_key>city</arg_key><arg_value>Rome</arg_value><arg_key>days"
         "</arg_key><arg_value>2</arg_value></tool_call>",
         1},
        {"</think><tool_call>ping</tool_call><tool_call>ping</tool_call>", 2},
        {"</think><tool_call>f</tool_call>", -1},
        {"</think><tool_call>f\n<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>",
         -1},
        {NULL, 0}};
    static const example lines[] = {
        {"<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>\n"
         "<tool_call>ping\n</tool_call>\n",
         2},
        {"<tool_call>f<arg_key>city</arg_key><arg_value>Rome</arg_value></tool_call>", -1},
        {NULL, 0}};
    check_examples(&laguna_formats[LAGUNA_COMPACT], &must, THOUGHT_INSIDE, compact);
    check_examples(&laguna_formats[LAGUNA_LINES], &must, THOUGHT_NONE, lines);
}

TEST(forced_calls_of_mistral)
{
    static const example list[] = {
        {"[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"city\": \"[Rome]\", \"days\": 3}, "
         "\"id\": "
         "\"aZ3456789\"}]",
         1},
        {"[TOOL_CALLS][{\"name\": \"ping\", \"arguments\": {}}]", 1},
        {"[TOOL_CALLS][{\"name\": \"ping\", \"arguments\": {}}, {\"name\": \"ping\", "
         "\"arguments\": {}}]",
         -1},
        {"[TOOL_CALLS][{\"name\": \"ping\", \"arguments\": {}, \"id\": \"short\"}]", -1},
        {"[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}]", -1},
        {"[TOOL_CALLS]{\"name\": \"ping\", \"arguments\": {}}", -1},
        {NULL, 0}};
    static const example free_list[] = {{"Let me see.[TOOL_CALLS][{\"name\": \"ping\", "
                                         "\"arguments\": {}}, {\"name\": \"f\", \"arguments\": "
                                         "{\"x\": [1]}, \"id\": \"aZ3456789\"}]",
                                         2},
                                        {"Hello [1]", 0},
                                        {NULL, 0}};
    static const example named[] = {{"[TOOL_CALLS]f[CALL_ID]aZ3456789[ARGS]{\"city\": "
                                     "\"Rome\"}[TOOL_CALLS]ping[CALL_ID]123456789"
                                     "[ARGS]{}",
                                     2},
                                    {"[TOOL_CALLS]ping[ARGS]{}", -1},
                                    {"[TOOL_CALLS]ping[CALL_ID]12345678[ARGS]{}", -1},
                                    {NULL, 0}};
    static const example bare[] = {
        {"[THINK]hm[/THINK][TOOL_CALLS]f[ARGS]{\"city\": \"Rome\"}[TOOL_CALLS]ping[ARGS]{}", 2},
        {"[TOOL_CALLS]ping[ARGS]{}", 1},
        {"[TOOL_CALLS]f[ARGS]{}", -1},
        {NULL, 0}};
    grammar_tools may = must;
    may.calls = CALLS_MAY;
    may.strict_all = false;
    check_examples(&mistral_formats[MISTRAL_V3], &must, THOUGHT_NONE, list);
    check_examples(&mistral_formats[MISTRAL_V3_TEKKEN], &may, THOUGHT_NONE, free_list);
    check_examples(&mistral_formats[MISTRAL_V11], &must, THOUGHT_NONE, named);
    check_examples(&mistral_formats[MISTRAL_V13], &must, THOUGHT_MAY, bare);
}

TEST(json_may_follow_the_line_feeds_after_a_thought)
{
    const grammar_setting how = {.answer = qwen_formats[QWEN_36].answer, .thought = THOUGHT_INSIDE};
    grammar *g;
    token_tree *t;
    matcher *m;
    AUTO_PTR(vocab_close) vocab *v = toy_marks();
    err e = {0};
    CHECK_OK(grammar_from_schema(&g, NULL, 0, &how, &e), e);
    CHECK_OK(token_tree_open(&t, v, &e), e);
    CHECK_OK(matcher_open(&m, g, t, &e), e);
    CHECK(follows(m, v, "hm\n</think>\n\n{\"a\": 1}") && follows(m, v, "</think>{}"));
    CHECK(!follows(m, v, "hm") && !follows(m, v, "{}") && !follows(m, v, "</think>\n\n\n{}"));
    matcher_close(m);
    token_tree_close(t);
    grammar_close(g);
}

static status make_grammar(void *arg, err *e)
{
    const grammar_setting how = {.answer = qwen_formats[QWEN_36].answer, .thought = THOUGHT_MAY};
    grammar *g;
    (void)arg;
    status st = grammar_from_tools(&g, &must, &how, e);
    grammar_close(g);
    return st;
}

TEST(grammars_of_pairs_survive_every_failed_allocation)
{
    test_every_allocation(make_grammar, NULL);
}

TEST(forced_calls_of_gpt_oss)
{
#define ANALYSIS "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
#define PREAMBLE "<|channel|>commentary<|message|>Plan.<|end|><|start|>assistant"
#define F "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
#define FINAL "<|channel|>final<|message|>"
    static const example forced[] = {
        {F "{\"city\": \"<b>\", \"days\": 3}", 1},
        {ANALYSIS ANALYSIS F "{\"city\": \"Rome\"}", 1},
        {PREAMBLE F "{\"city\": \"Rome\"}", -1},
        {" to=functions.ping<|channel|>commentary json<|message|>{}", 1},
        {"<|channel|>commentary to=functions.ping<|message|>{}", 1},
        {"<|channel|>commentary to=functions.pong<|message|>{}", -1},
        {"<|channel|>analysis to=functions.ping<|message|>{}", -1},
        {F "{\"days\": 3}", -1},
        {ANALYSIS FINAL "no", -1},
        {NULL, 0}};
    static const example free[] = {{ANALYSIS FINAL "Hello", 0},
                                   {FINAL, 0},
                                   {F "{\"x\": [1]}", 1},
                                   {ANALYSIS PREAMBLE ANALYSIS F "{\"x\": [1]}", 1},
                                   {"Hello", -1},
                                   {ANALYSIS, -1},
                                   {NULL, 0}};
    static const example json[] = {{ANALYSIS "<|channel|>final <|constrain|>json<|message|>{}", 0},
                                   {FINAL "{\"a\": 1}", 0},
                                   {F "{\"city\": \"Rome\"}", 1},
                                   {FINAL "no", -1},
                                   {NULL, 0}};
    grammar_tools may = must, or_json = must;
    may.calls = or_json.calls = CALLS_MAY;
    may.strict_all = false;
    or_json.json = true;
    check_examples(&harmony_format, &must, THOUGHT_MAY, forced);
    check_examples(&harmony_format, &may, THOUGHT_MAY, free);
    check_examples(&harmony_format, &or_json, THOUGHT_MAY, json);

    static const example silent[] = {{F "{\"x\": [1]}", 1},
                                     {FINAL "Hello", 0},
                                     {ANALYSIS FINAL "Hello", -1},
                                     {PREAMBLE FINAL "Hello", -1},
                                     {NULL, 0}};
    check_examples(&harmony_format, &may, THOUGHT_NONE, silent);
}

TEST(forced_calls_of_llama)
{
    static const example forced[] = {{"{\"name\": \"f\", \"parameters\": {\"city\": \"Rome\"}}", 1},
                                     {"<|python_tag|>{\"name\": \"ping\", \"parameters\": {}}", 1},
                                     {"{\"name\": \"f\", \"parameters\": {}}", -1},
                                     {"{\"name\": \"pong\", \"parameters\": {}}", -1},
                                     {"Hello", -1},
                                     {NULL, 0}};
    static const example free[] = {{"Hello {\"name\": 1}", 0},
                                   {"", 0},
                                   {"{\"name\": \"f\", \"parameters\": {\"x\": 1}}", 1},
                                   {"{\"x\": 1}", -1},
                                   {NULL, 0}};
    static const example json[] = {{"{\"x\": 1}", 0},
                                   {"{\"name\": \"ping\", \"parameters\": {}}", 1},
                                   {"Hello", -1},
                                   {NULL, 0}};
    grammar_tools may = must, or_json = must;
    may.calls = or_json.calls = CALLS_MAY;
    may.strict_all = false;
    or_json.json = true;
    check_examples(&llama_formats[LLAMA_31], &must, THOUGHT_NONE, forced);
    check_examples(&llama_formats[LLAMA_31], &may, THOUGHT_NONE, free);
    check_examples(&llama_formats[LLAMA_31], &or_json, THOUGHT_NONE, json);
}
