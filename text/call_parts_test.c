/* call_parts_test.c - the pieces of a call's arguments: joined they are the arguments of the whole
 * call, whatever mistakes the model makes and however the text is cut.
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
    "\"a\":{\"type\":\"array\"},\"u\":{\"type\":[\"string\",\"null\"]}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";

/* What came: "R(...)", "C(...)", "T(name args)"; joined: pieces of a call that has not ended. */
typedef struct record {
    str text, joined;
    int last, n_parts;
} record;

static bool note(void *user, const answer_event *ev)
{
    record *r = user;
    if (ev->kind == ANSWER_CALL_PART) {
        CHECK(ev->n && ev->name && *ev->name);
        str_put(&r->joined, ev->text, ev->n);
        r->n_parts++;
        return true;
    }
    bool call = ev->kind == ANSWER_TOOL_CALL;
    if (call && r->joined.n)
        CHECK_STR(r->joined.at, ev->text);
    str_cut(&r->joined, 0);
    if (call || (int)ev->kind != r->last)
        str_printf(&r->text, "%s%c(", r->last >= 0 ? ")" : "", "RCT"[ev->kind]);
    if (call)
        str_printf(&r->text, "%s ", ev->name);
    r->last = (int)ev->kind;
    str_put(&r->text, ev->text, ev->n);
    return true;
}

static void read_cut(const chat_format *f, const str *text, size_t piece, bool parts, bool cut,
                     record *r)
{
    answer_parser *a;
    err e = {0};
    *r = (record){.last = -1};
    CHECK_OK(answer_open(&a, f, false, note, r, &e), e);
    CHECK_OK(answer_tools(a, tools, sizeof tools - 1, parts, &e), e);
    for (size_t i = 0; i < text->n; i += piece)
        CHECK_OK(answer_put(a, text->at + i, piece < text->n - i ? piece : text->n - i, &e), e);
    CHECK_OK(answer_end(a, cut, &e), e);
    answer_close(a);
}

static void read_answer(const chat_format *f, const str *text, size_t piece, bool parts, record *r)
{
    read_cut(f, text, piece, parts, false, r);
}

static void free_record(record *r)
{
    str_free(&r->text);
    str_free(&r->joined);
}

#define Q "<|\"|>"
/* A format, a call in its words, and more words that models put in the wrong place. */
static const struct {
    const chat_format *f;
    const char *const *call, *const *more;
} languages[] = {
    {&gemma4_formats[GEMMA4_JULY_LARGE],
     STRINGS("<|tool_call>", "call:f{", "s:", Q, "some ", "text", " \"x\"\n", Q, ",", "n:", "12",
             ",", "a:", "[", "1", ",", Q, "y ", Q, ",", "{", "k:", "true", "}", "]", ",",
             "u:", "null", "}", "<tool_call|>"),
     STRINGS("=", "'", "\"", "True", "word", " ", "}", "]", "\\", "<", "\xC3\xA9", "<|turn>model\n",
             "call:g{}", "call:f{s:" Q "z" Q "}", "<|channel>thought\n", "<channel|>",
             ",s:", "\n")},
    {&qwen_formats[QWEN_3],
     STRINGS("<tool_call>", "\n", "{\"name\": \"f\", \"arguments\": {", "\"s\": ", "\"", "some ",
             "te\\nxt", " \\\"x\\\"", "\\ud83d\\ude00", "\"", ", ", "\"n\"", ": ", "12", ",",
             " \"a\":", "[", "1", ",", "\"y \"", ",", "{", "\"k\":", "true", "}", "]", ",",
             "\"u\": null", "}", "}", "\n", "</tool_call>"),
     STRINGS("=", "'", "\"", "True", "word", " ", "}", "]", "\\", "\\d", "\\u12", "\\ud83d", "<",
             "\t", "\xC3\xA9", "{\"name\": \"g\"}", ", \"s\": \"z\"", "\"arguments\": {\"n\": 3}",
             "\"parameters\"", "</think>", "\n", ", ")},
    {&qwen_formats[QWEN_36],
     STRINGS("<tool_call>", "\n", "<function=f>", "\n", "<parameter=s>", "\n", "some ", "text\n",
             "\"x\" ", "\n", "</parameter>", "\n", "<parameter=n>", "\n", "12", "\n",
             "</parameter>", "\n", "<parameter=a>\n[1, \"y\"]\n</parameter>\n", "<parameter=u>\n",
             "null", "\n</parameter>", "\n", "</function>", "\n", "</tool_call>"),
     STRINGS(" ", "\n", "\n\n", "<", "word", "</function>", "</tool_call>",
             "<parameter=s>\nz\n</parameter>", "<parameter=n>", "<function=g>\n</function>",
             "\xC3\xA9", "</", "<param", "[", "True",
             "<function=f>\n<parameter=s>\nw\n</parameter>\n</function>", "</think>")},
    {&laguna_formats[LAGUNA_COMPACT],
     STRINGS("<tool_call>", "f", "<arg_key>", "s", "</arg_key>", "<arg_value>", "some ", "text\n",
             "\"x\" ", "</arg_value>", "<arg_key>", "n", "</arg_key>", "<arg_value>", "12",
             "</arg_value>", "<arg_key>a</arg_key><arg_value>[1, \"y\"]</arg_value>",
             "<arg_key>u</arg_key>", "<arg_value>null</arg_value>", "</tool_call>"),
     STRINGS(" ", "\n", "<", "word", "</tool_call>", "<arg_key>s</arg_key><arg_value>z</arg_value>",
             "</arg_value>", "<arg_value>", "{", "}", "\xC3\xA9", "</", "</assistant>", "True",
             "{\"s\": \"w\"}", "g")},
};
enum { N_LANGUAGES = sizeof languages / sizeof *languages };

static size_t length_of(const char *const *list)
{
    size_t n = 0;
    while (list[n])
        n++;
    return n;
}

/* Calls with up to three mistakes: a word is missing, comes twice, or another comes before it. */
static void put_answer(const char *const *call, const char *const *more, uint64_t *rng, str *text)
{
    size_t n = length_of(call), n_more = length_of(more);
    str_cut(text, 0);
    str_puts(text, rng_below(rng, 2) ? "Well, " : "");
    for (uint64_t n_calls = 1 + rng_below(rng, 2); n_calls > 0; n_calls--) {
        uint64_t left = rng_below(rng, 4);
        for (size_t i = 0; i < n; i++) {
            bool wrong = left && rng_below(rng, n) < left;
            uint64_t how = wrong ? rng_below(rng, 4) : 0;
            left -= wrong;
            if (how >= 2)
                str_puts(text, more[rng_below(rng, n_more)]);
            if (how == 1)
                str_puts(text, call[i]);
            if (!wrong || how)
                str_puts(text, call[i]);
        }
        str_puts(text, rng_below(rng, 2) ? "\n" : "");
    }
    if (rng_below(rng, 3) == 0)
        str_puts(text, " And so on.");
    if (rng_below(rng, 4) == 0)
        str_cut(text, rng_below(rng, text->n));
}

static bool begins(const str *s, const str *with)
{
    return s->n >= with->n && (!with->n || !memcmp(s->at, with->at, with->n));
}

TEST(pieces_of_calls_are_the_arguments_whatever_the_mistake)
{
    uint64_t rng = test_seed();
    AUTO(str_free) str text = {0};
    int n_told[N_LANGUAGES] = {0};
    const int rounds = SANITIZED ? 700 : test_brief() ? 2000 : 12000;
    for (int round = 0; round < rounds; round++) {
        int k = round % N_LANGUAGES;
        record whole, told;
        put_answer(languages[k].call, languages[k].more, &rng, &text);
        read_answer(languages[k].f, &text, text.n ? text.n : 1, false, &whole);
        for (size_t piece = 1; piece < 6; piece += 2) {
            read_answer(languages[k].f, &text, piece, true, &told);
            /* A call that the end cuts: its pieces stand for its text. */
            bool same = told.joined.n ? begins(&whole.text, &told.text)
                                      : !strcmp(str_text(&told.text), str_text(&whole.text));
            CHECK_MSG(same, "\"%s\" in pieces of %zu\n  told:  %s\n  whole: %s\n  and: %s", text.at,
                      piece, str_text(&told.text), str_text(&whole.text), str_text(&told.joined));
            n_told[k] += told.n_parts;
            free_record(&told);
        }
        free_record(&whole);
    }
    for (int k = 0; k < N_LANGUAGES; k++)
        CHECK(n_told[k] > rounds);
}

/* The token limit cuts a call at each byte behind its mark. Its text is nobody's answer; what
 * stands before it, another call too, is there. The same text is content where the model has ended
 * it. */
TEST(calls_that_the_token_limit_cuts_are_left_out)
{
    static const struct {
        const chat_format *f;
        const char *before, *mark, *call, *says;
    } cases[] = {
        {&gemma4_formats[GEMMA4_JULY_LARGE], "Well, ", "<|tool_call>",
         "call:f{s:" Q "some <b>" Q ",n:12}", "C(Well,"},
        {&gemma4_formats[GEMMA4_JULY_LARGE], "<|tool_call>call:g{}<tool_call|>", "<|tool_call>",
         "call:f{s:" Q "some" Q "}", "T(g {}"},
        {&qwen_formats[QWEN_3], "Well, ", "<tool_call>",
         "\n{\"name\": \"f\", \"arguments\": {\"s\": \"some }\", \"n\": 12}}", "C(Well,"},
        {&qwen_formats[QWEN_36], "Well, ", "<tool_call>",
         "\n<function=f>\n<parameter=s>\nsome\n</parameter>\n</function>", "C(Well,"},
        {&laguna_formats[LAGUNA_COMPACT], "Well, ", "<tool_call>",
         "f<arg_key>s</arg_key><arg_value>some</arg_value>", "C(Well,"},
        {&harmony_format, "<|channel|>final<|message|>Well,<|end|>",
         "<|start|>assistant<|channel|>commentary to=functions.f json<|message|>",
         "{\"s\": \"some\"}", "C(Well,"},
        {&llama_formats[LLAMA_31], "", "{\"name\": \"f\"", ", \"parameters\": {\"s\": \"some\"}}",
         ""},
        {&mistral_formats[MISTRAL_V3], "Well, ", "[TOOL_CALLS]",
         "[{\"name\": \"f\", \"arguments\": {\"s\": \"some\"}}]", "C(Well,"},
        {&mistral_formats[MISTRAL_V13], "Well, ", "[TOOL_CALLS]", "f[ARGS]{\"s\": \"some\"}",
         "C(Well,"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t n_call = strlen(cases[i].call);
        for (size_t n = 0; n < n_call; n++)
            for (int how = 0; how < 3; how++) { /* whole, in parts, and not cut by the limit */
                str text = {0};
                record r;
                str_puts(&text, cases[i].before);
                str_puts(&text, cases[i].mark);
                str_put(&text, cases[i].call, n);
                read_cut(cases[i].f, &text, 3, how == 1, how < 2, &r);
                const char *said = str_text(&r.text);
                bool whole = strstr(said, "T(f ") != NULL; /* but for its last mark */
                if (how < 2)
                    CHECK_MSG(whole || !strcmp(said, cases[i].says), "%zu: %s: %s", i, text.at,
                              said);
                else
                    CHECK_MSG(whole || strlen(said) > strlen(cases[i].says), "%zu: %s: %s", i,
                              text.at, said);
                free_record(&r);
                str_free(&text);
            }
    }
}
