/* parse_test.c - answers: every rule by example, every example at every cut. */
#include "tests/test.h"
#include "text/gemma4.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"

#define Q "<|\"|>"

static const char tools[] = "[{\"function\":{\"name\":\"f\"}},{\"function\":{\"name\":\"g\"}},"
                            "{\"function\":{\"name\":\"f.g\"}},{\"function\":{\"name\":\"rm\"}}]";

/* What came: "R(...)", "C(...)" with neighbours of a kind joined, "T(name args)". */
typedef struct record {
    str text;
    int last;
    bool check_json;
} record;

static bool note(void *user, const answer_event *ev)
{
    record *r = user;
    CHECK(ev->n > 0 && ev->text[ev->n] == 0);
    CHECK(utf8_valid(ev->text, ev->n));
    if (ev->kind == ANSWER_TOOL_CALL) {
        arena mem = {0};
        const jtree *v;
        err e = {0};
        CHECK(ev->name && *ev->name);
        CHECK_OK(jtree_parse(ev->text, ev->n, "arguments", 100, &mem, &v, &e), e);
        CHECK(v->kind == JTREE_OBJECT);
        arena_free(&mem);
        if (r->last >= 0)
            str_puts(&r->text, ")");
        str_puts(&r->text, "T(");
        str_puts(&r->text, ev->name);
        str_puts(&r->text, " ");
        str_put(&r->text, ev->text, ev->n);
        r->last = ANSWER_TOOL_CALL;
        return true;
    }
    CHECK(!ev->name);
    if ((int)ev->kind != r->last) {
        if (r->last >= 0)
            str_puts(&r->text, ")");
        str_puts(&r->text, ev->kind == ANSWER_REASONING ? "R(" : "C(");
    }
    r->last = (int)ev->kind;
    str_put(&r->text, ev->text, ev->n);
    return true;
}

/* Cuts: 0 whole, 1 single bytes, 2.. pieces of that size, -1 random. */
static void parse(const char *text, size_t n, bool thinking, int piece, uint64_t *rng, str *out)
{
    record r = {.last = -1};
    answer_parser *a;
    err e = {0};
    CHECK_OK(answer_open(&a, &gemma4_formats[GEMMA4_JULY_LARGE], thinking, note, &r, &e), e);
    CHECK_OK(answer_tools(a, tools, sizeof tools - 1, false, &e), e);
    for (size_t i = 0; i < n;) {
        size_t len = piece == 0 ? n : piece > 0 ? (size_t)piece : 1 + rng_below(rng, 12);
        len = len > n - i ? n - i : len;
        CHECK_OK(answer_put(a, text + i, len, &e), e);
        i += len;
    }
    CHECK_OK(answer_end(a, false, &e), e);
    answer_close(a);
    if (r.last >= 0)
        str_puts(&r.text, ")");
    str_cut(out, 0);
    str_put(out, str_text(&r.text), r.text.n);
    str_free(&r.text);
}

static void expect_from(const char *text, bool thinking, const char *want)
{
    AUTO(str_free) str got = {0}, other = {0};
    size_t n = strlen(text);
    parse(text, n, thinking, 0, NULL, &got);
    CHECK_MSG(!strcmp(str_text(&got), want), "\"%s\"\n  gives    %s\n  expected %s", text,
              str_text(&got), want);
    for (int piece = 1; piece < 8; piece++) {
        parse(text, n, thinking, piece, NULL, &other);
        CHECK_STR(str_text(&other), str_text(&got));
    }
    /* Two pieces, cut at every byte. */
    for (size_t i = 0; i <= n; i++) {
        record r = {.last = -1};
        answer_parser *a;
        err e = {0};
        CHECK_OK(answer_open(&a, &gemma4_formats[GEMMA4_JULY_SMALL], thinking, note, &r, &e), e);
        CHECK_OK(answer_tools(a, tools, sizeof tools - 1, false, &e), e);
        CHECK_OK(answer_put(a, text, i, &e), e);
        CHECK_OK(answer_put(a, text + i, n - i, &e), e);
        CHECK_OK(answer_end(a, false, &e), e);
        answer_close(a);
        if (r.last >= 0)
            str_puts(&r.text, ")");
        CHECK_STR(str_text(&r.text), want);
        str_free(&r.text);
    }
}

static void expect(const char *text, const char *want)
{
    expect_from(text, false, want);
}

TEST(answers_are_split_into_thought_text_and_calls)
{
    expect("", "");
    expect("Hello", "C(Hello)");
    expect("  two\n", "C(  two\n)");
    expect("<|channel>thought\nhm\n<channel|>Yes.", "R(hm)C(Yes.)");
    expect("<|channel>thought hm <channel|>\n\nYes.\n", "R(hm)C(Yes.\n)");
    expect("<|channel>thought<channel|>Yes", "C(Yes)");
    expect("<|channel>thought\n<channel|>Yes", "C(Yes)");
    expect("Yes<|channel>thought\n<channel|>", "C(Yes)");
    expect("<|turn>model\nHello", "C(Hello)");
    expect("<|turn>model\n<|channel>thought\nx<channel|>y", "R(x)C(y)");
    expect("<|channel>thought\nnever closed ", "R(never closed)");
    expect("a < b <| c <|chan", "C(a < b <| c <|chan)");
    expect("a\n<|tool_call>call:f{}<tool_call|>\nb", "C(a)T(f {})C(b)");
    expect("<|tool_call>call:f{}<tool_call|><|tool_call>call:g{a:1}<tool_call|><|tool_response>",
           "T(f {})T(g {\"a\":1})");
    expect_from("still thinking\n<channel|>done", true, "R(still thinking)C(done)");
    expect_from("<|channel>thought\nagain<channel|>done", true, "R(again)C(done)");
}

TEST(answers_with_stray_markers_keep_their_text)
{
    expect("<|channel>Hello", "C(Hello)");
    expect("<|channel>thx", "C(thx)");
    expect("<|channel>", "");
    expect("<|channel>thou", "");
    expect("Hello<channel|> there", "C(Hello there)");
    expect("<|tool_call>call:f{}<tool_call|><tool_call|>x", "T(f {})C(x)");
    expect("a" Q "b" Q, "C(a" Q "b" Q ")");
    expect("x<turn|>", "C(x<turn|>)");
    expect("x<tool_call|><tool_response|>", "C(x<tool_call|><tool_response|>)");
}

TEST(calls_of_every_value)
{
    expect("<|tool_call>call:f{l:[1," Q "a" Q "],n:1.5,o:{k:" Q "v" Q "},x:null,t:true,u:false,"
           "e:-2e-3,z:[],y:{}}<tool_call|>",
           "T(f {\"l\":[1,\"a\"],\"n\":1.5,\"o\":{\"k\":\"v\"},\"x\":null,\"t\":true,\"u\":false,"
           "\"e\":-2e-3,\"z\":[],\"y\":{}})");
    expect("<|tool_call> call: f.g { a : " Q "x" Q " , b : [ 1 , 2 ] } <tool_call|>",
           "T(f.g {\"a\":\"x\",\"b\":[1,2]})");
    expect("<|tool_call>call:f{s:" Q "{a:1}, \"q\" \\ <b> \n\t" Q "}<tool_call|>",
           "T(f {\"s\":\"{a:1}, \\\"q\\\" \\\\ <b> \\n\\t\"})");
    expect("<|tool_call>call:f{" Q "k" Q ":1,\"m\":2}<tool_call|>", "T(f {\"k\":1,\"m\":2})");
    /* An end marker inside a string is text, if the call reads that way. */
    expect("<|tool_call>call:f{s:" Q "a<tool_call|>b<|tool_call>" Q "}<tool_call|>c",
           "T(f {\"s\":\"a<tool_call|>b<|tool_call>\"})C(c)");
    expect("<|tool_call>call:f{\xC3\xA9:" Q "\xF0\x9F\x98\x8A" Q "}<tool_call|>",
           "T(f {\"\xC3\xA9\":\"\xF0\x9F\x98\x8A\"})");
}

TEST(calls_are_repaired)
{
    expect("<|tool_call>call:f{a:'x y'}<tool_call|>", "T(f {\"a\":\"x y\"})");
    expect("<|tool_call>call:f{a:'it's',b:\"q\\n\"}<tool_call|>",
           "T(f {\"a\":\"it's\",\"b\":\"q\\n\"})");
    expect("<|tool_call>call:f{a:" Q "Paris}<tool_call|>", "T(f {\"a\":\"Paris\"})");
    expect("<|tool_call>call:f{a:" Q "Paris<tool_call|>", "T(f {\"a\":\"Paris\"})");
    expect("<|tool_call>call:f{a:[{b:" Q "x}]}<tool_call|>", "T(f {\"a\":[{\"b\":\"x\"}]})");
    expect("<|tool_call>call:f{a:1<tool_call|>", "T(f {\"a\":1})");
    expect("<|tool_call>call:f{a:{b:[1,2<tool_call|>", "T(f {\"a\":{\"b\":[1,2]}})");
    expect("<|tool_call>call:f{cmd:ls -la /tmp, now,n:2}<tool_call|>",
           "T(f {\"cmd\":\"ls -la /tmp, now\",\"n\":2})");
    expect("<|tool_call>call:f{cmd:awk {print}}<tool_call|>", "T(f {\"cmd\":\"awk {print}\"})");
    expect("<|tool_call>call:f{a:True,b:None,c:[red,green]}<tool_call|>",
           "T(f {\"a\":true,\"b\":null,\"c\":[\"red\",\"green\"]})");
    expect("<|tool_call>call:f{a:1,}}<tool_call|>", "T(f {\"a\":1})");
    expect("<|tool_call>call:f{a:007}<tool_call|>", "T(f {\"a\":\"007\"})");
    /* A missing delimiter swallows the end marker; what follows is still found. */
    expect("<|tool_call>call:f{a:" Q "x}<tool_call|><|tool_call>call:g{b:" Q "y" Q "}<tool_call|>z",
           "T(f {\"a\":\"x\"})T(g {\"b\":\"y\"})C(z)");
}

/* A key whose quotation mark is never closed is no key, wherever the text ends. */
TEST(calls_with_open_keys_are_text)
{
    expect("<|tool_call>call:f{\"a:1}<tool_call|>", "C(<|tool_call>call:f{\"a:1}<tool_call|>)");
    expect("<|tool_call>call:f{\":1}<tool_call|>", "C(<|tool_call>call:f{\":1}<tool_call|>)");
    expect("<|tool_call>call:f{\"<tool_call|>", "T(f {})"); /* cut: no key has begun */
}

TEST(an_equals_sign_in_a_call_of_gemma_is_a_colon)
{
    expect("<|tool_call>call:f{a=1}<tool_call|>", "T(f {\"a\":1})");
    expect("<|tool_call>call:f{a=" Q "x=y" Q ",b:2}<tool_call|>", "T(f {\"a\":\"x=y\",\"b\":2})");
    expect("<|tool_call>call:f{a=red, green,b=c=d}<tool_call|>",
           "T(f {\"a\":\"red, green\",\"b\":\"c=d\"})");
    expect("<|tool_call>call:f{cmd:a, b=c}<tool_call|>", "T(f {\"cmd\":\"a, b=c\"})");
}

TEST(calls_without_end_are_calls_if_they_are_complete)
{
    expect("<|tool_call>call:f{a:" Q "x" Q "}", "T(f {\"a\":\"x\"})");
    expect("<|tool_call>call:f{a:" Q "x" Q ",b:", "C(<|tool_call>call:f{a:" Q "x" Q ",b:)");
    expect("<|tool_call>call:f{a:" Q "x", "C(<|tool_call>call:f{a:" Q "x)");
    expect("<|tool_call>call:f{a:1<|tool_call>call:g{}<tool_call|>",
           "C(<|tool_call>call:f{a:1)T(g {})");
    expect("<|tool_call>call:f{a:1}<|tool_call>call:g{}<tool_call|>", "T(f {\"a\":1})T(g {})");
    expect("<|tool_call>call:f", "C(<|tool_call>call:f)");
}

TEST(marks_of_calls_in_prose_are_text)
{
    static const char *const prose[] = {
        "To call a tool, write <|tool_call> and then call:f{}.",
        "<|tool_call>what?<tool_call|>ok",
        "<|tool_call>say " Q "a<|tool_call>b" Q "!<tool_call|>ok",
        "`<|tool_call>call:NAME{}<tool_call|>` is a call",
        "<|tool_call>call:unknown{a:1}<tool_call|>",
        "Write <|tool_call>",
        "<|tool_call> <tool_call|>",
        "a\n\n<|tool_call>\n\nb",
        "One moment. <|tool_call>call:rm",
        "<|tool_call>call:rm{path:" Q "/tmp",
        "<|tool_call>call:f{a:1} is it<|tool_call>",
    };
    str want = {0};
    for (size_t i = 0; i < sizeof prose / sizeof *prose; i++) {
        str_cut(&want, 0);
        str_printf(&want, "C(%s)", prose[i]);
        if (i < 10)
            expect(prose[i], want.at);
        str_cut(&want, 0);
        str_printf(&want, "R(%s)", prose[i]);
        expect_from(prose[i], true, want.at);
        str_cut(&want, 0);
        str_printf(&want, "R(%s)C(ok)", prose[i]);
        AUTO_MEM char *with_end = mem_alloc(strlen(prose[i]) + 20);
        CHECK(with_end);
        snprintf(with_end, strlen(prose[i]) + 20, "%s<channel|>ok", prose[i]);
        expect_from(with_end, true, want.at);
    }
    str_free(&want);
    expect("No. <|tool_call> is the mark.\n<|tool_call>call:f{}<tool_call|>",
           "C(No. <|tool_call> is the mark.)T(f {})");
}

TEST(several_calls_between_two_marks_are_calls)
{
    expect("<|tool_call>call:f{a:1}call:g{}<tool_call|>", "T(f {\"a\":1})T(g {})");
    expect("<|tool_call>call:f{a:1}\ncall:g{b:'x'}<tool_call|>z",
           "T(f {\"a\":1})T(g {\"b\":\"x\"})C(z)");
    expect("<|tool_call>call:f{} and more<tool_call|>", "T(f {})C(and more)");
}

static bool stop_note(const char *text, const char *stop, size_t piece, str *out)
{
    record r = {.last = -1};
    answer_parser *a;
    size_t n = strlen(text);
    err e = {0};
    CHECK_OK(answer_open(&a, &gemma4_formats[GEMMA4_JULY_LARGE], false, note, &r, &e), e);
    CHECK_OK(answer_tools(a, tools, sizeof tools - 1, false, &e), e);
    CHECK_OK(answer_stops(a, &stop, 1, &e), e);
    for (size_t i = 0; i < n; i += piece)
        CHECK_OK(answer_put(a, text + i, piece < n - i ? piece : n - i, &e), e);
    CHECK_OK(answer_end(a, false, &e), e);
    bool was_met = answer_met(a) == 0;
    answer_close(a);
    str_cut(out, 0);
    str_printf(out, "%s%s", str_text(&r.text), r.last >= 0 ? ")" : "");
    str_free(&r.text);
    return was_met;
}

TEST(stop_strings_end_content_alone)
{
    static const struct {
        const char *text, *want;
        bool met;
    } x[] = {
        {"<|channel>thought\nParis?<channel|>It is in France. Paris!",
         "R(Paris?)C(It is in France. )", true},
        {"<|channel>thought\nParis", "R(Paris)", false},
        {"<|tool_call>call:f{a:" Q "Paris" Q "}<tool_call|>Pa", "T(f {\"a\":\"Paris\"})C(Pa)",
         false},
        {"Pa<|tool_call>call:f{}<tool_call|>ris", "C(Pa)T(f {})C(ris)", false},
        {"<|tool_call> Paris <|tool_call>call:f{}<tool_call|>", "C(<|tool_call> )", true},
        {"Paris", "", true},
    };
    AUTO(str_free) str got = {0};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        for (size_t piece = 1; piece < 40; piece++) {
            CHECK_EQ(stop_note(x[i].text, "Paris", piece, &got), x[i].met);
            CHECK_STR(str_text(&got), x[i].want);
        }
}

PLAIN_TEST(answers_are_the_same_however_they_are_cut)
{
    static const char *const parts[] = {"<|channel>",
                                        "thought",
                                        "\n",
                                        "<channel|>",
                                        "<|tool_call>",
                                        "<tool_call|>",
                                        "call:f{",
                                        "}",
                                        Q,
                                        "a:",
                                        "1",
                                        ",",
                                        "[",
                                        "]",
                                        " ",
                                        "word ",
                                        "<",
                                        "|",
                                        "\xC3\xA9",
                                        "\xE2\x96",
                                        "'",
                                        "\"",
                                        "{",
                                        "<|t",
                                        "{a:" Q "x" Q "}",
                                        "<|turn>model\n",
                                        "<|tool_response>",
                                        "call:g{b:",
                                        "\\",
                                        "null"};
    enum { N = sizeof parts / sizeof *parts };
    uint64_t rng = test_seed();
    AUTO(str_free) str text = {0}, want = {0}, got = {0};
    for (int round = 0; round < 4000; round++) {
        str_cut(&text, 0);
        str_puts(&text, "");
        for (uint64_t n = rng_below(&rng, 30); n > 0; n--)
            str_puts(&text, parts[rng_below(&rng, N)]);
        bool thinking = rng_below(&rng, 4) == 0;
        parse(text.at, text.n, thinking, 0, NULL, &want);
        for (int piece = -1; piece < 4; piece++) {
            if (piece == 0)
                continue;
            parse(text.at, text.n, thinking, piece, &rng, &got);
            CHECK_MSG(!strcmp(str_text(&got), str_text(&want)),
                      "\"%s\"\n  in pieces of %d: %s\n"
                      "  whole:           %s",
                      text.at, piece, str_text(&got), str_text(&want));
        }
    }
}

TEST(long_white_space_is_the_same_however_it_is_cut)
{
    uint64_t rng = test_seed();
    AUTO(str_free) str text = {0}, want = {0}, got = {0};
    for (size_t n = 4090; n < 4104; n++) {
        str_cut(&text, 0);
        str_puts(&text, "a");
        for (size_t i = 0; i < n; i++)
            str_putc(&text, ' ');
        str_puts(&text, "<|tool_call>call:f{}<tool_call|>");
        parse(text.at, text.n, false, 0, NULL, &want);
        parse(text.at, text.n, false, 1, NULL, &got);
        CHECK_STR(str_text(&got), str_text(&want));
        parse(text.at, text.n, false, -1, &rng, &got);
        CHECK_STR(str_text(&got), str_text(&want));
        CHECK_EQ(want.n > 4000, n > 4096);
    }
}

static bool count_bytes(void *user, const answer_event *ev)
{
    *(size_t *)user += ev->n;
    return true;
}

static size_t total(const char *text, size_t n, size_t piece, int32_t *calls)
{
    answer_parser *a;
    size_t bytes = 0;
    err e = {0};
    CHECK_OK(answer_open(&a, &gemma4_formats[GEMMA4_JULY_LARGE], false, count_bytes, &bytes, &e),
             e);
    CHECK_OK(answer_tools(a, tools, sizeof tools - 1, false, &e), e);
    for (size_t i = 0; i < n; i += piece)
        CHECK_OK(answer_put(a, text + i, piece < n - i ? piece : n - i, &e), e);
    CHECK_OK(answer_end(a, false, &e), e);
    *calls = answer_n_calls(a);
    answer_close(a);
    return bytes;
}

PLAIN_TEST(hostile_answers_are_bounded)
{
    static const char *const units[] = {"<",
                                        "<|tool_call>",
                                        "<|tool_call>call:f{<|\"|><tool_call|>",
                                        "<|tool_call>call:f{a:'x,",
                                        "<|channel>thought\n",
                                        "<|tool_call>call:f{a:<|\"|><tool_call|><|\"|>",
                                        " ",
                                        "{[",
                                        "<|tool_call><|\"|><tool_call|><|\"|><|\"|>"};
    enum { N = 9 << 20 };
    AUTO_MEM char *text = mem_alloc(N);
    CHECK(text);
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t len = strlen(units[u]);
        int32_t calls_small, calls_large;
        for (size_t i = 0; i < N; i++)
            text[i] = units[u][i % len];
        memcpy(text, "<|tool_call>call:f{a:[", 22); /* one long call, whatever comes after */
        size_t large = total(text, N, N, &calls_large);
        CHECK_EQ(total(text, N, 65521, &calls_small), large);
        CHECK_EQ(calls_small, calls_large);
        CHECK(calls_large <= ANSWER_MAX_CALLS);
    }
}

static status parse_some(void *arg, err *e)
{
    static const char text[] =
        "<|channel>thought\nx<channel|>y <|tool_call>call:f{a:\"b\",c:1<tool_call|>";
    answer_parser *a;
    size_t bytes = 0;
    status st = answer_open(&a, &gemma4_formats[GEMMA4_JULY_LARGE], false, count_bytes, &bytes, e);
    (void)arg;
    if (!st)
        st = answer_tools(a, tools, sizeof tools - 1, true, e);
    if (!st)
        st = answer_put(a, text, sizeof text - 1, e);
    if (!st)
        st = answer_end(a, false, e);
    answer_close(a);
    return st;
}

TEST(answers_survive_every_failed_allocation)
{
    test_every_allocation(parse_some, NULL);
}

TEST(ordinary_answers_allocate_nothing_after_open)
{
    answer_parser *a;
    size_t bytes = 0;
    err e = {0};
    CHECK_OK(answer_open(&a, &gemma4_formats[GEMMA4_JULY_LARGE], false, count_bytes, &bytes, &e),
             e);
    CHECK_OK(answer_tools(a, tools, sizeof tools - 1, false, &e), e);
    int64_t before = mem_count();
    for (int i = 0; i < 2000; i++) {
        CHECK_OK(answer_put(a, "Some words, ", 12, &e), e);
        CHECK_OK(answer_put(a, "<|tool_call>call:f{a:" Q "x" Q, 30, &e), e);
        CHECK_OK(answer_put(a, "}<tool_call|>", 13, &e), e);
    }
    CHECK_EQ(mem_count(), before);
    answer_close(a);
}

static bool stop_at_once(void *user, const answer_event *ev)
{
    (void)user;
    (void)ev;
    return false;
}

TEST(answers_can_be_cancelled)
{
    answer_parser *a;
    err e = {0};
    CHECK_OK(answer_open(&a, &gemma4_formats[GEMMA4_JULY_LARGE], false, stop_at_once, NULL, &e), e);
    CHECK_STATUS(answer_put(a, "some text", 9, &e), E_CANCELLED);
    CHECK_STATUS(answer_end(a, false, &e), E_CANCELLED);
    answer_close(a);
}
