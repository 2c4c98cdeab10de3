/* parse_qwen_test.c - answers in the Qwen and Laguna formats, each cut into pieces at every byte.
 */
#include "tests/test.h"
#include "text/laguna.h"
#include "text/qwen.h"
#include "base/mem.h"
#include "base/rng.h"

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"s\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},"
    "\"b\":{\"type\":\"boolean\"},\"a\":{\"type\":\"array\"},\"o\":{\"$ref\":\"#/$defs/o\"},"
    "\"u\":{\"type\":[\"string\",\"null\"]},\"v\":{\"anyOf\":[{\"type\":\"number\"},"
    "{\"enum\":[\"auto\"]}]},\"x\":{}},\"$defs\":{\"o\":{\"type\":\"object\"}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";

typedef struct record {
    str text;
    int last;
} record;

static bool note(void *user, const answer_event *ev)
{
    record *r = user;
    bool call = ev->kind == ANSWER_TOOL_CALL;
    if (call || (int)ev->kind != r->last)
        str_printf(&r->text, "%s%c(", r->last >= 0 ? ")" : "", "RCT"[ev->kind]);
    if (call) {
        arena mem = {0};
        const jtree *v;
        err e = {0};
        CHECK_OK(jtree_parse(ev->text, ev->n, "arguments", 100, &mem, &v, &e), e);
        CHECK(v->kind == JTREE_OBJECT);
        arena_free(&mem);
        str_printf(&r->text, "%s ", ev->name);
    }
    r->last = (int)ev->kind;
    str_put(&r->text, ev->text, ev->n);
    return true;
}

/* piece 0: two pieces, cut at `cut`. */
static void read_answer(const chat_format *f, const char *text, bool thinking, size_t piece,
                        size_t cut, str *out)
{
    record r = {.last = -1};
    size_t n = strlen(text);
    answer_parser *a;
    err e = {0};
    CHECK_OK(answer_open(&a, f, thinking, note, &r, &e), e);
    CHECK_OK(answer_tools(a, tools, sizeof tools - 1, &e), e);
    for (size_t i = 0, len; i < n; i += len) {
        len = piece ? piece : i ? n - i : cut ? cut : n;
        len = len > n - i ? n - i : len;
        CHECK_OK(answer_put(a, text + i, len, &e), e);
    }
    CHECK_OK(answer_end(a, &e), e);
    answer_close(a);
    str_cut(out, 0);
    str_printf(out, "%s%s", str_text(&r.text), r.last >= 0 ? ")" : "");
    str_free(&r.text);
}

static void expect(const chat_format *f, bool thinking, const char *text, const char *want)
{
    str got = {0};
    for (size_t piece = 0; piece < 8; piece++) {
        read_answer(f, text, thinking, piece, 0, &got);
        CHECK_MSG(!strcmp(got.at, want), "\"%s\" in pieces of %zu\n  gives    %s\n  expected %s",
                  text, piece, got.at, want);
    }
    for (size_t cut = 1; cut < strlen(text); cut++) {
        read_answer(f, text, thinking, 0, cut, &got);
        CHECK_MSG(!strcmp(got.at, want), "\"%s\" cut at %zu\n  gives    %s\n  expected %s", text,
                  cut, got.at, want);
    }
    str_free(&got);
}

#define QWEN3 &qwen_formats[QWEN_3]
#define QWEN36 &qwen_formats[QWEN_36]
#define LAGUNA &laguna_formats[LAGUNA_COMPACT]

TEST(answers_of_qwen_are_split)
{
    expect(QWEN3, false, "Hello", "C(Hello)");
    expect(QWEN3, false, "<think>\nhm\n</think>\n\nYes.", "R(hm)C(Yes.)");
    expect(QWEN3, false, "<think>\n\n</think>\n\nYes.", "C(Yes.)");
    expect(QWEN36, true, "hm\n</think>\n\nYes.", "R(hm)C(Yes.)");
    expect(QWEN36, true, "<think>\nhm\n</think>\n\nYes.", "R(hm)C(Yes.)");
    expect(QWEN36, true, "never closed ", "R(never closed)");
    expect(QWEN36, false, "a </thin b < c <tool_x", "C(a </thin b < c <tool_x)");
    expect(QWEN36, false, "</think>\n\nYes", "C(Yes)");
    expect(QWEN36, false, "in XML <parameter=a> and </parameter> are text, <function=f> too",
           "C(in XML <parameter=a> and </parameter> are text, <function=f> too)");
    expect(QWEN36, false, "x<tool_response>y</tool_response>", "C(xy)");
}

TEST(calls_of_qwen3)
{
    expect(QWEN3, false,
           "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1.50, \"e\":1E5, "
           "\"big\": 123456789012345678901}}\n</tool_call>",
           "T(f {\"n\": 1.50, \"e\": 1E5, \"big\": 123456789012345678901})");
    expect(QWEN3, false,
           "Wait.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n"
           "{\"name\": \"g\", \"arguments\": {\"s\": \"\\u00e9 \\\"q\\\"\"}}\n</tool_call>",
           "C(Wait.)T(f {})T(g {\"s\": \"\xC3\xA9 \\\"q\\\"\"})");
    /* The mark in a string is text. */
    expect(QWEN3, false,
           "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"a</tool_call>\\\"<tool_call>b\"}}"
           "</tool_call>c",
           "T(f {\"s\": \"a</tool_call>\\\"<tool_call>b\"})C(c)");
    /* Repairs. */
    expect(QWEN3, false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1}</tool_call>",
           "T(f {\"n\": 1})");
    expect(QWEN3, false, "<tool_call>{'name': 'f', 'arguments': {'b': True}}}</tool_call>x",
           "T(f {\"b\": true})C(x)");
    expect(QWEN3, false, "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"n\\\": 1}\"}",
           "T(f {\"n\": 1})");
    expect(QWEN3, false, "<tool_call>what?</tool_call>ok", "C(what?ok)");
    expect(QWEN3, false, "<think>\nlet me<tool_call>{\"name\": \"f\"}</tool_call>",
           "R(let me)T(f {})");
    /* A string that was not closed swallows the end; what follows is still found. */
    expect(QWEN3, false,
           "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"x}}</tool_call><tool_call>"
           "{\"name\": \"g\", \"arguments\": {}}</tool_call>z",
           "T(f {\"s\": \"x\"})T(g {})C(z)");
}

TEST(calls_of_the_coder_formats)
{
    expect(QWEN36, true,
           "hm\n</think>\n\n<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n"
           "<parameter=n>\n12\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n<parameter=a>\n"
           "[1.50, \"x\"]\n</parameter>\n<parameter=o>\n{\"k\": null}\n</parameter>\n"
           "</function>\n</tool_call>",
           "R(hm)T(f {\"s\": \"12\", \"n\": 12, \"b\": true, \"a\": [1.50, \"x\"], "
           "\"o\": {\"k\": null}})");
    expect(QWEN36, false,
           "<tool_call>\n<function=f>\n<parameter=u>\nnull\n</parameter>\n<parameter=v>\n1e3\n"
           "</parameter>\n<parameter=x>\nfree text\n</parameter>\n<parameter=other>\n7\n"
           "</parameter>\n</function>\n</tool_call>",
           "T(f {\"u\": null, \"v\": 1e3, \"x\": \"free text\", \"other\": 7})");
    expect(QWEN36, false,
           "<tool_call>\n<function=f>\n<parameter=v>\nauto\n</parameter>\n<parameter=n>\nmany\n"
           "</parameter>\n<parameter=o>\n{'k': [True]}\n</parameter>\n</function>\n</tool_call>",
           "T(f {\"v\": \"auto\", \"n\": \"many\", \"o\": {\"k\": [true]}})");
    /* One line feed at each end belongs to the syntax. */
    expect(QWEN36, false,
           "<tool_call>\n<function=f>\n<parameter=s>\n\n if x:\n  y\n\n</parameter>\n</function>\n"
           "</tool_call>",
           "T(f {\"s\": \"\\n if x:\\n  y\\n\"})");
    expect(QWEN36, false,
           "<tool_call>\n<function=f>\n<parameter=s>\n</tool_call><tool_call>\n</parameter>\n"
           "</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
           "T(f {\"s\": \"</tool_call><tool_call>\"})T(g {})");
    /* Repairs: no </parameter>, no </function>, no <tool_call>, JSON. */
    expect(QWEN36, false,
           "<tool_call>\n<function=f>\n<parameter=s>\nx\n<parameter=n>\n3\n</function>\n"
           "</tool_call>",
           "T(f {\"s\": \"x\", \"n\": 3})");
    expect(QWEN36, false, "<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter></tool_call>",
           "T(f {\"n\": 3})");
    expect(QWEN36, false,
           "So:\n<function=f>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>",
           "C(So:)T(f {\"n\": 3})");
    expect(QWEN36, false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 3}}</tool_call>",
           "T(f {\"n\": 3})");
    expect(QWEN36, false, "<function=unknown>\n</function> x",
           "C(<function=unknown>\n</function> x)");
    expect(QWEN36, false, "<tool_call>\n<parameter=a>\n1\n</parameter></tool_call>ok",
           "C(<parameter=a>\n1\n</parameter>ok)");
}

TEST(answers_of_laguna)
{
    expect(LAGUNA, true, "hm</think>Yes.</assistant>", "R(hm)C(Yes.)");
    expect(LAGUNA, false, "Yes.\n</assistant>", "C(Yes.\n)");
    expect(LAGUNA, false, "</think>Yes.", "C(Yes.)");
    expect(LAGUNA, false, "Yes<think>no</think>yes", "C(Yes)R(no)C(yes)");
    expect(LAGUNA, true,
           "Need it.<tool_call>f<arg_key>s</arg_key><arg_value>Ro\nme</arg_value><arg_key>n"
           "</arg_key><arg_value>2</arg_value><arg_key>b</arg_key><arg_value>false</arg_value>"
           "</tool_call></assistant>",
           "R(Need it.)T(f {\"s\": \"Ro\\nme\", \"n\": 2, \"b\": false})");
    expect(LAGUNA, false,
           "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>[1, 2.0]</arg_value>\n</tool_call>\n"
           "<tool_call>g\n</tool_call>\n",
           "T(f {\"a\": [1, 2.0]})T(g {})");
    expect(LAGUNA, false,
           "<tool_call>f<arg_key>s</arg_key><arg_value></tool_call></arg_value></tool_call>",
           "T(f {\"s\": \"</tool_call>\"})");
    expect(LAGUNA, false, "<tool_call>f<arg_key>s</arg_key><arg_value>x</tool_call>y",
           "T(f {\"s\": \"x\"})C(y)");
    expect(LAGUNA, false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 1}}</tool_call>",
           "T(f {\"n\": 1})");
    expect(LAGUNA, false, "<tool_call>f {\"n\": 1}</tool_call>", "T(f {\"n\":1})");
    expect(LAGUNA, false, "<tool_call>two words\n and more</tool_call>.",
           "C(two words\n and more.)");
}

static const chat_format *const formats[] = {QWEN3, QWEN36, LAGUNA};

TEST(answers_of_qwen_and_laguna_are_the_same_however_they_are_cut)
{
    static const char *const parts[] = {"<think>",
                                        "</think>",
                                        "\n",
                                        "<tool_call>",
                                        "</tool_call>",
                                        "<function=f>",
                                        "</function>",
                                        "<parameter=s>",
                                        "</parameter>",
                                        "<arg_key>",
                                        "</arg_key>",
                                        "<arg_value>",
                                        "</arg_value>",
                                        "{\"name\": \"f\", \"arguments\": {",
                                        "\"s\": \"",
                                        "\"",
                                        "}",
                                        "}}",
                                        "f",
                                        "n",
                                        "1",
                                        "word ",
                                        "<",
                                        "\\",
                                        "\xC3\xA9",
                                        "</assistant>",
                                        "</",
                                        "<tool_response>",
                                        "{\"name\": \"g\"}",
                                        "'",
                                        "[",
                                        ","};
    enum { N = sizeof parts / sizeof *parts };
    uint64_t rng = test_seed();
    str text = {0}, want = {0}, got = {0};
    for (int round = 0; round < 3000; round++) {
        const chat_format *f = formats[round % 3];
        str_cut(&text, 0);
        str_puts(&text, "");
        for (uint64_t n = rng_below(&rng, 30); n > 0; n--)
            str_puts(&text, parts[rng_below(&rng, N)]);
        bool thinking = rng_below(&rng, 3) == 0;
        read_answer(f, text.at, thinking, 0, 0, &want);
        for (size_t piece = 1; piece < 4; piece++) {
            read_answer(f, text.at, thinking, piece, 0, &got);
            CHECK_MSG(!strcmp(got.at, want.at), "\"%s\"\n  in pieces of %zu: %s\n  whole: %s",
                      text.at, piece, got.at, want.at);
        }
    }
    str_free(&text);
    str_free(&want);
    str_free(&got);
}

static bool count_bytes(void *user, const answer_event *ev)
{
    *(size_t *)user += ev->n;
    return true;
}

/* Calls of many values without end marks take linear time. */
TEST(hostile_calls_of_pairs_are_bounded)
{
    static const char *const begin[] = {"<tool_call><function=f>", "<tool_call>f"};
    static const char *const unit[] = {"<parameter=s>\nx", "<arg_key>s</arg_key><arg_value>x"};
    for (int k = 0; k < 2; k++) {
        answer_parser *a;
        size_t bytes = 0;
        err e = {0};
        CHECK_OK(answer_open(&a, formats[1 + k], false, count_bytes, &bytes, &e), e);
        CHECK_OK(answer_put(a, begin[k], strlen(begin[k]), &e), e);
        for (size_t n = 0; n < (test_brief() ? (size_t)1 : 4) << 20; n += strlen(unit[k]))
            CHECK_OK(answer_put(a, unit[k], strlen(unit[k]), &e), e);
        CHECK_OK(answer_put(a, "</tool_call>", 12, &e), e);
        CHECK_OK(answer_end(a, &e), e);
        CHECK(bytes > 0);
        answer_close(a);
    }
}

static status read_some(void *arg, err *e)
{
    static const char text[] =
        "x</think>y <tool_call>\n<function=f>\n<parameter=o>\n{'a': 1}\n</parameter>\n"
        "<parameter=n>\n1\n</tool_call><tool_call>{\"name\": \"f\", \"arguments\": {'s': 'x'}}"
        "</tool_call>";
    answer_parser *a;
    size_t bytes = 0;
    status st = OK;
    (void)arg;
    for (int i = 0; i < 3 && !st; i++) {
        st = answer_open(&a, formats[i], true, count_bytes, &bytes, e);
        if (!st)
            st = answer_tools(a, tools, sizeof tools - 1, e);
        if (!st)
            st = answer_put(a, text, sizeof text - 1, e);
        if (!st)
            st = answer_end(a, e);
        answer_close(a);
    }
    return st;
}

TEST(answers_of_qwen_survive_every_failed_allocation)
{
    test_every_allocation(read_some, NULL);
}
