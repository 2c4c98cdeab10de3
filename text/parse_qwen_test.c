/* parse_qwen_test.c - answers in the Qwen, Laguna, Mistral, gpt-oss and Llama formats, each cut
 * into pieces at every byte.
 */
#include "tests/test.h"
#include "text/gemma4.h"
#include "text/gpt_oss.h"
#include "text/laguna.h"
#include "text/llama.h"
#include "text/mistral.h"
#include "text/qwen.h"
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
    CHECK_OK(answer_tools(a, tools, sizeof tools - 1, false, &e), e);
    for (size_t i = 0, len; i < n; i += len) {
        len = piece ? piece : i ? n - i : cut ? cut : n;
        len = len > n - i ? n - i : len;
        CHECK_OK(answer_put(a, text + i, len, &e), e);
    }
    CHECK_OK(answer_end(a, false, &e), e);
    answer_close(a);
    str_cut(out, 0);
    str_printf(out, "%s%s", str_text(&r.text), r.last >= 0 ? ")" : "");
    str_free(&r.text);
}

static void expect(const chat_format *f, bool thinking, const char *text, const char *want)
{
    AUTO(str_free) str got = {0};
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
}

#define QWEN3 &qwen_formats[QWEN_3]
#define QWEN36 &qwen_formats[QWEN_36]
#define V3 &mistral_formats[MISTRAL_V3]
#define V11 &mistral_formats[MISTRAL_V11]
#define V13 &mistral_formats[MISTRAL_V13]
#define HARMONY &harmony_format
#define LLAMA &llama_formats[LLAMA_31]
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
    expect(QWEN36, false, "x<tool_response>y</tool_response>",
           "C(x<tool_response>y</tool_response>)");
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
           "C(<tool_call>\n<parameter=a>\n1\n</parameter></tool_call>ok)");
}

TEST(answers_of_laguna)
{
    expect(LAGUNA, true, "hm</think>Yes.", "R(hm)C(Yes.)");
    expect(LAGUNA, false, "Yes.\n", "C(Yes.\n)");
    expect(LAGUNA, false, "</think>Yes.", "C(Yes.)");
    expect(LAGUNA, false, "Yes<think>no</think>yes", "C(Yes<think>no</think>yes)");
    expect(LAGUNA, true,
           "Need it.</think><tool_call>f<arg_key>s</arg_key><arg_value>Ro\nme</arg_value><arg_key>n"
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
           "C(<tool_call>two words\n and more</tool_call>.)");
}

PLAIN_TEST(marks_of_calls_in_prose_are_text_in_every_family)
{
    static const char *const prose[] = {
        "To call a tool, write <tool_call> and then the JSON.",
        "`<tool_call>` begins a call and `</tool_call>` ends it",
        "<tool_call>what?</tool_call>ok",
        "Write <tool_call>",
        "</tool_call>",
        "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
        "<tool_call>\n<function=unknown>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f> is how it begins</tool_call>",
        "<tool_call>two words</tool_call> was meant.",
        "<tool_call>unknown</tool_call>",
        "<tool_call>{\"name\": \"f\", \"argum",
        "<tool_call>\n<function=f>\n<parameter=s>\nrm -rf /tmp",
        "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>rm -rf /tmp",
        "a\n\n<tool_call>\n\nb </tool_call>",
        "<tool_call><tool_call><tool_call>",
        "<tool_call>[]</tool_call> <tool_call>{}</tool_call>",
    };
    static const chat_format *const all[] = {QWEN3, QWEN36, LAGUNA};
    str want = {0}, text = {0};
    for (size_t i = 0; i < 3 * sizeof prose / sizeof *prose; i++) {
        const char *s = prose[i / 3];
        str_cut(&want, 0);
        str_cut(&text, 0);
        str_printf(&want, "C(%s)", s);
        expect(all[i % 3], false, s, want.at);
        str_cut(&want, 0);
        str_printf(&text, "%s</think>\n\nok", s);
        str_printf(&want, "R(%s)C(ok)", s);
        expect(all[i % 3], true, text.at, want.at);
        str_cut(&want, 0);
        str_printf(&want, "R(%s)", s);
        expect(all[i % 3], true, s, want.at);
    }
    str_free(&want);
    str_free(&text);
    expect(QWEN36, true, "I <tool_call>\n<function=g>\n</function>\n</tool_call> then</think>ok",
           "R(I <tool_call>\n<function=g>\n</function>\n</tool_call> then)C(ok)");
    expect(QWEN36, false, "Not <tool_call>.\n<tool_call>\n<function=g>\n</function>\n</tool_call>",
           "C(Not <tool_call>.)T(g {})");
}

TEST(answers_of_mistral)
{
    /* The space that SentencePiece puts before a text, and no more. */
    expect(&mistral_formats[LLAMA2], false, " Hello </s", "C(Hello </s)");
    expect(&mistral_formats[MISTRAL_V1], false, "  Hello [TOOL_CALLS]", "C( Hello [TOOL_CALLS])");
    expect(V3, false, " [TOOL_CALLS", "C([TOOL_CALLS)");
    expect(V13, false, "[THINK]hm[/THINK]Yes.", "R(hm)C(Yes.)");
    expect(V11, false, " [1] [THINK]", "C( [1] [THINK])");
}

TEST(calls_of_mistral)
{
    expect(
        V3, false,
        "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"n\": 1.50, \"s\": \"[TOOL_CALLS]]}\"}, "
        "\"id\": \"abcdefghi\"}, {\"name\": \"g\", \"arguments\": {}, \"id\": \"123456789\"}]",
        "T(f {\"n\": 1.50, \"s\": \"[TOOL_CALLS]]}\"})T(g {})");
    expect(V3, false, " Wait.\n[TOOL_CALLS][{\"name\": \"g\", \"arguments\": {}}] so",
           "C(Wait.)T(g {})C(so)");
    expect(V3, false, "[TOOL_CALLS] [{\"name\": \"h\", \"arguments\": {}}]",
           "C([TOOL_CALLS] [{\"name\": \"h\", \"arguments\": {}}])");
    expect(V3, false, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"n\": 1",
           "C([TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"n\": 1)");
    expect(V11, false,
           "a[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{\"s\": \"x[ARGS][TOOL_CALLS]\"}[TOOL_CALLS]g"
           "[CALL_ID]123456789[ARGS]{}",
           "C(a)T(f {\"s\": \"x[ARGS][TOOL_CALLS]\"})T(g {})");
    expect(V13, false, "[THINK]a [TOOL_CALLS][/THINK][TOOL_CALLS]f[ARGS]{\"o\": {\"k\": []}}",
           "R(a [TOOL_CALLS])T(f {\"o\": {\"k\": []}})");
    expect(V13, false, "[TOOL_CALLS]g[ARGS] {}\nb", "T(g {})C(b)");
    expect(V13, false, "[TOOL_CALLS]g[ARGX]{}", "C([TOOL_CALLS]g[ARGX]{})");
    expect(V13, false, "[TOOL_CALLS]g[ARGS]1", "C([TOOL_CALLS]g[ARGS]1)");
    expect(V13, false, "[TOOL_CALLS]f [ARGS]{}", "C([TOOL_CALLS]f [ARGS]{})");
}

#define ANALYSIS "<|channel|>analysis<|message|>"
#define FINAL "<|channel|>final<|message|>"
#define NEXT "<|start|>assistant"
#define F "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"

TEST(answers_of_gpt_oss)
{
    expect(HARMONY, false, ANALYSIS "2 + 2. <|end|>" NEXT FINAL " 4.\n", "R(2 + 2.)C(4.\n)");
    expect(HARMONY, false, ANALYSIS "a<|end|>" NEXT ANALYSIS "b<|end|>" NEXT FINAL "c<|return|>",
           "R(a\n\nb)C(c)");
    /* A text before calls, and the answer behind it. */
    expect(HARMONY, false, "<|channel|>commentary<|message|>Plan.<|end|>" NEXT FINAL "Done.",
           "C(Plan.\n\nDone.)");
    expect(HARMONY, false, NEXT FINAL "x", "C(x)");
    expect(HARMONY, false, "<|channel|>final <|constrain|>json<|message|>{}", "C({})");
    /* The prompt has opened the message, or the model forgot its header. */
    expect(HARMONY, false, " to be <b>", "C( to be <b>)");
    expect(HARMONY, false, "<|message|>x", "C(x)");
    expect(HARMONY, false, NEXT "<|message|>x", "C(x)");
    expect(HARMONY, false, "", "");
}

TEST(calls_of_gpt_oss)
{
    expect(HARMONY, false, ANALYSIS "why<|end|>" NEXT F "{\"n\": 1.50}<|call|>",
           "R(why)T(f {\"n\": 1.50})");
    /* The recipient behind the role, the type without its mark, no arguments. */
    expect(HARMONY, false, " to=functions.g<|channel|>commentary json<|message|>{}", "T(g {})");
    expect(HARMONY, false, " to=g<|channel|>commentary<|message|> <|call|>", "T(g {})");
    expect(HARMONY, false, "<|channel|>analysis to=functions.g code<|message|>{}", "T(g {})");
    /* Marks in strings are text. */
    expect(HARMONY, false, F "{\"s\": \"<|call|><|start|>\\\"\"}",
           "T(f {\"s\": \"<|call|><|start|>\\\"\"})");
    /* Several, and a preamble. */
    expect(HARMONY, false,
           "<|channel|>commentary<|message|>Two.<|end|>" NEXT F "{\"n\": 1}<|end|>" NEXT
           " to=functions.g<|channel|>commentary json<|message|>{}<|call|>",
           "C(Two.)T(f {\"n\": 1})T(g {})");
    expect(HARMONY, false, F "{\"n\": 1}<|call|>" NEXT FINAL "and", "T(f {\"n\": 1})C(and)");
}

TEST(hostile_answers_of_gpt_oss)
{
    /* No end, no start; two channels. */
    expect(HARMONY, false, ANALYSIS "a" FINAL "b", "R(a)C(b)");
    expect(HARMONY, false, ANALYSIS "a" NEXT FINAL "b", "R(a)C(b)");
    expect(HARMONY, false, "<|channel|>commentary to=assistant" ANALYSIS "a", "R(a)");
    /* The answer ends in a header. */
    expect(HARMONY, false, ANALYSIS "a<|end|>", "R(a)");
    expect(HARMONY, false, ANALYSIS "a<|end|><|start|>assis", "R(a)");
    expect(HARMONY, false, FINAL "a<|end|>" NEXT "<|channel|>comm", "C(a)");
    expect(HARMONY, false, "<|chan", "C(<|chan)");
    /* What is no header is text. */
    expect(HARMONY, false, FINAL "a <|end|> b <|channel|>x <|start|>user<|message|>c",
           "C(a <|end|> b <|channel|>x <|start|>user<|message|>c)");
    expect(HARMONY, false, "<|channel|>x<|message|>y", "C(<|channel|>x<|message|>y)");
    /* No call: an unknown function, broken JSON, the end of the answer. */
    expect(HARMONY, false, "<|channel|>commentary to=functions.h json<|message|>{}<|call|>",
           "C(<|channel|>commentary to=functions.h json<|message|>{})");
    expect(HARMONY, false, ANALYSIS "a<|end|>" NEXT F "{n}<|call|>", "R(a)C(" NEXT F "{n})");
    expect(HARMONY, false, F "{\"n\": 1", "C(" F "{\"n\": 1)");
    expect(HARMONY, false, F "[1]<|call|>" NEXT FINAL "b", "C(" F "[1]\n\nb)");
}

TEST(calls_of_llama)
{
    expect(LLAMA, false,
           "{\"name\": \"f\", \"parameters\": {\"n\": 1.50, \"s\": \"}<|python_tag|>\"}}",
           "T(f {\"n\": 1.50, \"s\": \"}<|python_tag|>\"})");
    expect(LLAMA, false, "\n{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}",
           "T(f {})");
    expect(LLAMA, false, "<|python_tag|>{\"name\": \"g\", \"parameters\": {}}", "T(g {})");
    expect(LLAMA, false, "I call.<|python_tag|>{\"name\": \"g\", \"parameters\": {}}",
           "C(I call.)T(g {})");
    expect(LLAMA, false,
           "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {\"a\": []}}",
           "T(f {})T(g {\"a\": []})");
    expect(LLAMA, false, "[{\"name\": \"f\", \"parameters\": {}}, {\"name\": \"g\"}]",
           "T(f {})T(g {})");
    expect(LLAMA, false, "{\"name\": \"f\", \"parameters\": {}} done", "T(f {})C(done)");
    /* Text. */
    expect(LLAMA, false, " Hello {\"name\": \"f\", \"parameters\": {}}",
           "C( Hello {\"name\": \"f\", \"parameters\": {}})");
    expect(LLAMA, false, "{\"name\": \"h\", \"parameters\": {}}",
           "C({\"name\": \"h\", \"parameters\": {}})");
    expect(LLAMA, false, "{\"city\": \"Rome\"}", "C({\"city\": \"Rome\"})");
    expect(LLAMA, false, " [1, 2]", "C( [1, 2])");
    expect(LLAMA, false, "{\"name\": \"f\", \"parameters\": {\"n\": 1",
           "C({\"name\": \"f\", \"parameters\": {\"n\": 1)");
    expect(LLAMA, false, "<|python_tag|>print(1)", "C(<|python_tag|>print(1))");
    expect(LLAMA, false, "  ", "C(  )");
    expect(LLAMA, false, "", "");
}

TEST(several_calls_between_two_marks_of_qwen_are_calls)
{
    expect(QWEN36, false,
           "<tool_call>\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n<function=f>\n"
           "<parameter=n>\n2\n</parameter>\n</function>\n</tool_call>\n",
           "T(f {\"n\": 1})T(f {\"n\": 2})");
    expect(QWEN36, false,
           "<tool_call>\n<function=g>\n</function>\n<function=f>\n<parameter=n>\n2\n"
           "</tool_call>",
           "T(g {})T(f {\"n\": 2})");
    expect(QWEN36, false, "<tool_call>\n<function=g>\n</function>\nthat is it</tool_call>.",
           "T(g {})C(that is it.)");
    expect(QWEN3, false,
           "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n{\"name\": \"g\"}\n"
           "</tool_call>",
           "T(f {\"n\": 1})T(g {})");
    expect(QWEN3, false,
           "<tool_call>[{\"name\": \"f\", \"arguments\": {\"n\": [1]}}, {\"name\": \"g\"}]"
           "</tool_call>",
           "T(f {\"n\": [1]})T(g {})");
    expect(QWEN3, false, "<tool_call>{\"name\": \"g\"} done</tool_call>", "T(g {})C(done)");
    expect(QWEN3, false, "<tool_call>{\"name\": \"g\"}{\"name\": \"h\"}</tool_call>",
           "T(g {})C({\"name\": \"h\"})");
}

/* Arguments in parts, as a client joins them: "name: part|part|" and "." behind a whole call. */
static bool note_parts(void *user, const answer_event *ev)
{
    record *r = user;
    if (ev->kind == ANSWER_CALL_PART)
        str_put(&r->text, ev->text, ev->n);
    else if (ev->kind == ANSWER_TOOL_CALL)
        str_printf(&r->text, ".%s", ev->name);
    else if (ev->kind == ANSWER_CONTENT)
        str_printf(&r->text, "C(%s)", ev->text);
    r->last += ev->kind == ANSWER_CALL_PART;
    return true;
}

static int parts_of(const chat_format *f, const char *text, size_t piece, str *out)
{
    record r = {0};
    answer_parser *a;
    size_t n = strlen(text);
    err e = {0};
    CHECK_OK(answer_open(&a, f, false, note_parts, &r, &e), e);
    CHECK_OK(answer_tools(a, tools, sizeof tools - 1, true, &e), e);
    for (size_t i = 0; i < n; i += piece)
        CHECK_OK(answer_put(a, text + i, piece < n - i ? piece : n - i, &e), e);
    CHECK_OK(answer_end(a, false, &e), e);
    answer_close(a);
    str_cut(out, 0);
    str_puts(out, str_text(&r.text));
    str_free(&r.text);
    return r.last;
}

TEST(arguments_of_calls_come_in_parts)
{
    static const struct {
        const chat_format *f;
        const char *text, *want;
        int least; /* parts, where the text comes by bytes */
    } x[] = {
        {QWEN36,
         "<tool_call>\n<function=f>\n<parameter=s>\nsome \"words\"\nand \xC3\xA9\n</parameter>\n"
         "<parameter=n>\n12\n</parameter>\n<parameter=o>\n{\"k\": [1]}\n</parameter>\n</function>\n"
         "</tool_call>",
         "{\"s\": \"some \\\"words\\\"\\nand \xC3\xA9\", \"n\": 12, \"o\": {\"k\": [1]}}.f", 10},
        {QWEN36, "<tool_call>\n<function=g>\n</function>\n</tool_call>", ".g", 0},
        {QWEN3,
         "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\":\"a\\n\\u00e9 b\",  \"n\": 1.50,\n"
         "\"a\":[1,true,{\"x\":null},[],{}],\"e\":\"\\ud83d\\ude00\"}}\n</tool_call>",
         "{\"s\": \"a\\n\xC3\xA9 b\", \"n\": 1.50, \"a\": [1, true, {\"x\": null}, [], {}], \"e\": "
         "\"\xF0\x9F\x98\x80\"}.f",
         10},
        {LAGUNA,
         "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a b c d e f</arg_value>\n<arg_key>n"
         "</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
         "{\"s\": \"a b c d e f\", \"n\": 2}.f", 8},
        {&gemma4_formats[GEMMA4_JULY_LARGE],
         "<|tool_call>call:f{s:<|\"|>a \"b\"\n<c><|\"|>,n:12,a:[1,<|\"|>x<|\"|>],o:{k:true,l:{}}}"
         "<tool_call|>",
         "{\"s\":\"a \\\"b\\\"\\n<c>\",\"n\":12,\"a\":[1,\"x\"],\"o\":{\"k\":true,\"l\":{}}}.f", 8},
        /* A repeated key stays repeated; a backslash that begins no escape is text; a comma in
         * front of nothing, and a forgotten quote. */
        {QWEN36,
         "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n<parameter=s>\ny\n"
         "</parameter>\n</function>\n</tool_call>",
         "{\"s\": \"x\", \"s\": \"y\"}.f", 4},
        {QWEN3,
         "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"a\\n\\d+ b\", \"s\": "
         "\"c\"}}</tool_call>",
         "{\"s\": \"a\\n\\\\d+ b\", \"s\": \"c\"}.f", 8},
        {QWEN3,
         "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1,], \"s\": \"c}}</tool_call>",
         "{\"a\": [1], \"s\": \"c\"}.f", 2},
        {&gemma4_formats[GEMMA4_JULY_LARGE], "<|tool_call>call:f{s:<|\"|>some text}<tool_call|>",
         "{\"s\":\"some text\"}.f", 8},
        {V3,
         "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"s\": \"some text\", \"n\": 1}}, "
         "{\"name\": "
         "\"g\", \"arguments\": {}}]",
         "{\"s\": \"some text\", \"n\": 1}.f.g", 8},
        {V11, "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{\"s\": \"some text\", \"n\": 1}",
         "{\"s\": \"some text\", \"n\": 1}.f", 8},
        {V13, "[TOOL_CALLS]f[ARGS]{\"s\": \"some text\"}[TOOL_CALLS]f[ARGS]{\"n\": 1}",
         "{\"s\": \"some text\"}.f{\"n\": 1}.f", 8},
        {HARMONY,
         "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"s\": \"some text\"}"
         "<|end|><|start|>assistant to=functions.g<|channel|>commentary json<|message|>{\"n\": 1}",
         "{\"s\": \"some text\"}.f{\"n\": 1}.g", 8},
        {LLAMA, "{\"name\": \"f\", \"parameters\": {\"s\": \"some text\", \"n\": 1}}",
         "{\"s\": \"some text\", \"n\": 1}.f", 8},
        /* Two calls, each in its marks. */
        {QWEN36,
         "<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n</function>\n</tool_call>\n"
         "<tool_call>\n<function=f>\n<parameter=s>\ny\n</parameter>\n</function>\n</tool_call>",
         "{\"s\": \"x\"}.f{\"s\": \"y\"}.f", 4},
    };
    AUTO(str_free) str got = {0};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        for (size_t piece = 1; piece < 20; piece++) {
            int n = parts_of(x[i].f, x[i].text, piece, &got);
            CHECK_MSG(!strcmp(str_text(&got), x[i].want), "\"%s\" in pieces of %zu\n%s\n%s",
                      x[i].text, piece, str_text(&got), x[i].want);
            CHECK(piece > 1 || n >= x[i].least);
        }
    /* A form that breaks: the text is content, and no whole call follows the parts. */
    parts_of(QWEN36,
             "<tool_call>\n<function=f>\n<parameter=s>\nsome text\n</parameter>no</tool_call>", 1,
             &got);
    CHECK_MSG(strstr(got.at, "{\"s\": \"some text") == got.at && strstr(got.at, "C(<tool_call>)") &&
                  !strchr(got.at, '.'),
              "%s", got.at);
    /* A call that the end cuts: the parts stand for it. */
    parts_of(QWEN36, "<tool_call>\n<function=f>\n<parameter=s>\nsome text", 1, &got);
    CHECK_STR(got.at, "{\"s\": \"some text");
}

static const chat_format *const formats[] = {QWEN3, QWEN36, LAGUNA, V3, V11, V13, HARMONY, LLAMA};
enum { N_FORMATS = sizeof formats / sizeof *formats };

PLAIN_TEST(answers_are_the_same_however_they_are_cut)
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
                                        ",",
                                        "[TOOL_CALLS]",
                                        "[ARGS]",
                                        "[CALL_ID]",
                                        "[THINK]",
                                        "[/THINK]",
                                        "<|python_tag|>",
                                        "{\"name\": \"f\", \"parameters\": {\"n\": 1}}",
                                        ";",
                                        "<|channel|>",
                                        "<|message|>",
                                        "<|start|>",
                                        "assistant",
                                        "<|end|>",
                                        "<|call|>",
                                        "analysis",
                                        "final",
                                        "commentary to=functions.f json<|message|>",
                                        (" to=functions.g<|channel|>commentary <|constrain|>json"
                                         "<|message|>{}")};
    enum { N = sizeof parts / sizeof *parts };
    uint64_t rng = test_seed();
    AUTO(str_free) str text = {0}, want = {0}, got = {0};
    for (int round = 0; round < 3000; round++) {
        const chat_format *f = formats[round % N_FORMATS];
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
        CHECK_OK(answer_end(a, false, &e), e);
        CHECK(bytes > 0);
        answer_close(a);
    }
}

static status read_some(void *arg, err *e)
{
    static const char text[] =
        "[TOOL_CALLS]f[ARGS]{\"s\": \"x\"}[TOOL_CALLS] [{\"name\": \"g\", \"arguments\": "
        "{}}]x</think>y <tool_call>\n<function=f>\n<parameter=o>\n{'a': 1}\n</parameter>\n"
        "<parameter=n>\n1\n</tool_call><tool_call>{\"name\": \"f\", \"arguments\": {'s': 'x'}}"
        "</tool_call>";
    answer_parser *a;
    size_t bytes = 0;
    status st = OK;
    (void)arg;
    for (int i = 0; i < N_FORMATS && !st; i++) {
        st = answer_open(&a, formats[i], true, count_bytes, &bytes, e);
        if (!st)
            st = answer_tools(a, tools, sizeof tools - 1, true, e);
        if (!st)
            st = answer_put(a, text, sizeof text - 1, e);
        if (!st)
            st = answer_end(a, false, e);
        answer_close(a);
    }
    return st;
}

TEST(answers_of_all_formats_survive_every_failed_allocation)
{
    test_every_allocation(read_some, NULL);
}
