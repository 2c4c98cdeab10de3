/* compress_test.c - texts in units, the units that are kept, and what of a conversation is never
 * touched. Values of tokens are made up here; engine/compress_test.c takes those of a model. */
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "tests/test.h"
#include "text/chat.h"
#include "text/compress_int.h"

/* ---- A text with a token for each word or each few bytes ------------------------------------- */

typedef struct rig {
    compress_input in;
    str text;
    size_t *end;
    int32_t *id;
    float *value;
    int64_t cap;
} rig;

static void rig_free(rig *r)
{
    str_free(&r->text);
    mem_free(r->end);
    mem_free(r->id);
    mem_free(r->value);
}

/* Tokens are a space and a word, or single bytes of what is no word; ids are hashes of their bytes.
 * So tokens end inside of characters. */
static void tokenize(rig *r)
{
    const char *s = str_text(&r->text);
    r->cap = (int64_t)r->text.n + 1;
    r->end = mem_calloc((size_t)r->cap, sizeof *r->end);
    r->id = mem_calloc((size_t)r->cap, sizeof *r->id);
    r->value = mem_calloc((size_t)r->cap, sizeof *r->value);
    CHECK(r->end && r->id && r->value);
    int64_t n = 0;
    for (size_t at = 0; at < r->text.n; n++) {
        size_t from = at;
        at++;
        while (at < r->text.n && at - from < 7 && (unsigned char)s[at] < 0x80 &&
               strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", s[at]) && s[at])
            at++;
        uint32_t h = 7;
        for (size_t i = from; i < at; i++)
            h = h * 31 + (unsigned char)s[i];
        r->id[n] = (int32_t)(h & 0x7fffffff);
        r->end[n] = at;
    }
    r->in = (compress_input){.text = s,
                             .n = r->text.n,
                             .end = r->end,
                             .id = r->id,
                             .value = r->value,
                             .n_tokens = n,
                             .query = "",
                             .keep = 0.3};
}

static void rig_make(rig *r, const char *text)
{
    *r = (rig){0};
    str_puts(&r->text, text);
    tokenize(r);
}

/* The values of tokens that overlap `words` become v. */
static void raise_value(rig *r, const char *words, float v)
{
    const char *at = strstr(r->in.text, words);
    CHECK(at);
    size_t from = (size_t)(at - r->in.text), to = from + strlen(words);
    for (int64_t i = 0; i < r->in.n_tokens; i++)
        if (r->end[i] > from && (i ? r->end[i - 1] : 0) < to)
            r->value[i] = v;
}

static str kept_text(const rig *r, int64_t *n_kept)
{
    compress_result x;
    str out = {0};
    err e = {0};
    CHECK_OK(compress_choose(&r->in, &x, &e), e);
    compress_join(r->in.text, x.span, x.n, &out);
    if (n_kept)
        *n_kept = x.n_kept;
    compress_result_free(&x);
    CHECK(!out.bad);
    return out;
}

static void put_filler(str *s, int sentences, uint64_t *rng)
{
    static const char *const words[] = {"river", "stone",  "quiet",  "walked", "under",  "lamp",
                                        "seven", "garden", "before", "letter", "window", "slow"};
    for (int i = 0; i < sentences; i++) {
        int n = 6 + (int)rng_below(rng, 8);
        for (int k = 0; k < n; k++)
            str_printf(s, "%s%s", k ? " " : "", words[rng_below(rng, 12)]);
        str_puts(s, i % 6 == 5 ? ".\n\n" : ". ");
    }
}

/* ---- Choosing -------------------------------------------------------------------------------- */

TEST(compress_keeps_the_sentence_of_value)
{
    static const char needle[] = "Now the number of the third locker is eighty and one.";
    uint64_t rng = test_seed();
    AUTO(rig_free) rig r = {0};
    int64_t n_kept;
    put_filler(&r.text, 100, &rng);
    str_printf(&r.text, "%s ", needle);
    put_filler(&r.text, 100, &rng);
    tokenize(&r);
    raise_value(&r, "number of the third locker", 1);
    r.in.keep = 0.1;
    AUTO(str_free) str s = kept_text(&r, &n_kept);
    CHECK_MSG(strstr(s.at, needle), "%s", s.at);
    CHECK(strstr(s.at, "[...]"));
    CHECK((double)n_kept <= 0.1 * (double)r.in.n_tokens && n_kept > r.in.n_tokens / 20);
}

/* A part that is no longer than the mark of a gap is kept where both of its neighbours are, and not
 * for one of them alone. */
TEST(compress_leaves_no_gap_that_is_shorter_than_its_mark)
{
    enum { MARK_TOKENS = 4 };
    uint64_t rng = test_seed();
    int n_closed = 0, n_open = 0;
    for (int trial = 0; trial < 60; trial++) {
        AUTO(rig_free) rig r = {0};
        compress_units u = {0};
        AUTO(compress_result_free) compress_result x;
        err e = {0};
        for (int i = 0; i < 40; i++) { /* between blocks of code even a word stands alone */
            str_puts(&r.text, "```\n");
            put_filler(&r.text, 2, &rng);
            str_puts(&r.text, rng_below(&rng, 2) ? "\n```\nso\n" : "\n```\nand then so\n");
        }
        if (trial % 3 == 0) { /* the last gap is before the last unit */
            str_puts(&r.text, "```\n");
            put_filler(&r.text, 2, &rng);
            str_puts(&r.text, "\n```\n");
        }
        tokenize(&r);
        for (int64_t i = 0; i < r.in.n_tokens; i++)
            r.value[i] = (float)rng_below(&rng, 1000);
        r.in.keep = trial % 2 ? 0.6 : 0.2;
        CHECK_OK(compress_cut(&r.in, &u, &e), e);
        CHECK_OK(compress_choose(&r.in, &x, &e), e);
        bool *kept = mem_calloc(u.n, 1);
        CHECK(kept);
        for (size_t i = 0; i < u.n; i++)
            for (size_t k = 0; k < x.n; k++)
                kept[i] |= u.at[i].from >= x.span[k].at && u.at[i].to <= x.span[k].at + x.span[k].n;
        for (size_t i = 1; i + 1 < u.n; i++) {
            if (u.at[i].tokens > MARK_TOKENS)
                continue;
            CHECK_MSG(kept[i] || !kept[i - 1] || !kept[i + 1], "trial %d, unit %zu", trial, i);
            n_closed += kept[i] && kept[i - 1] && kept[i + 1];
            n_open += !kept[i] && (kept[i - 1] || kept[i + 1]);
        }
        mem_free(kept);
        mem_free(u.at);
    }
    CHECK_MSG(n_closed > 20 && n_open > 20, "%d closed, %d open", n_closed, n_open);
}

/* Short sentences are not cut inside, whatever follows a point in them. */
TEST(compress_units_end_with_sentences)
{
    static const char *const inside[] = {"1.234", "a.tar", "3.14159", "x.y\xe2\x82\xac", "no.Not"};
    uint64_t rng = test_seed();
    AUTO(rig_free) rig r = {0};
    compress_units u = {0};
    err e = {0};
    for (int i = 0; i < 300; i++) {
        for (int k = 2 + (int)rng_below(&rng, 4); k; k--)
            str_puts(&r.text, "so ");
        str_printf(&r.text, "%s ", inside[rng_below(&rng, 5)]);
        for (int k = 2 + (int)rng_below(&rng, 4); k; k--)
            str_puts(&r.text, k > 1 ? "then " : rng_below(&rng, 2) ? "end. " : "end.\xe2\x80\x9d ");
    }
    tokenize(&r);
    CHECK_OK(compress_cut(&r.in, &u, &e), e);
    CHECK(u.n > 20);
    for (size_t i = 0; i + 1 < u.n; i++)
        CHECK_MSG(u.at[i].to > 8 && strstr(r.in.text + u.at[i].to - 8, "end.") &&
                      strstr(r.in.text + u.at[i].to - 8, "end.") < r.in.text + u.at[i].to,
                  "a unit ends with '%.20s'", r.in.text + u.at[i].to - 20);
    mem_free(u.at);
}

/* Digits after a point end no sentence, quotation marks after it do not begin one. */
TEST(compress_cuts_sentences_at_their_ends_alone)
{
    static const char *const whole[] = {
        "Release 1.234 of it came out in May.",
        "It says \xe2\x80\x9cno.\xe2\x80\x9d to whom came out in May.",
        "The file a.tar.gz of it came out in May."};
    static const char behind[] = "Nothing else came out in May.";
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        uint64_t rng = test_seed();
        AUTO(rig_free) rig r = {0};
        put_filler(&r.text, 100, &rng);
        str_printf(&r.text, "%s ", whole[i]);
        put_filler(&r.text, 50, &rng);
        str_printf(&r.text, "Old news.\xe2\x80\x9d %s ", behind);
        put_filler(&r.text, 50, &rng);
        tokenize(&r);
        raise_value(&r, i == 1 ? "to whom came out" : "of it came out", 1);
        r.in.keep = 0.05;
        AUTO(str_free) str s = kept_text(&r, NULL);
        CHECK_MSG(strstr(s.at, i == 1 ? "to whom came out in May." : whole[i]), "%s", s.at);
    }
}

TEST(compress_keeps_rare_words_of_the_question)
{
    uint64_t rng = test_seed();
    AUTO(rig_free) rig r = {0};
    put_filler(&r.text, 80, &rng);
    str_puts(&r.text, "The harbour of Bergen was closed that year. ");
    put_filler(&r.text, 80, &rng);
    tokenize(&r);
    r.in.query = "Why was the garden in BERGEN closed before seven?";
    r.in.n_query_bytes = strlen(r.in.query);
    r.in.keep = 0.08;
    AUTO(str_free) str s = kept_text(&r, NULL);
    CHECK_MSG(strstr(s.at, "The harbour of Bergen was closed that year."), "%s", s.at);
}

TEST(compress_keeps_neighbours_that_the_question_has)
{
    uint64_t rng = test_seed();
    AUTO(rig_free) rig r = {0}, q;
    put_filler(&r.text, 80, &rng);
    str_puts(&r.text, "it is on as at by we do so to. ");
    put_filler(&r.text, 80, &rng);
    tokenize(&r);
    rig_make(&q, "find: it is on as at by");
    r.in.query_id = q.in.id;
    r.in.n_query = q.in.n_tokens;
    r.in.keep = 0.1;
    AUTO(str_free) str s = kept_text(&r, NULL);
    CHECK_MSG(strstr(s.at, "it is on as at by we do so to."), "%s", s.at);
}

TEST(compress_never_cuts_code)
{
    static const char *const code[] = {
        "```c\nint main(void)\n{\n    return 0;\n}\n```\n",
        "~~~\na\n```\nstill code\n~~~\n",
        "````\n```\nnot the end\n```\n````\n",
        "  > ```\n  > quoted\n  > ```\n",
        "1. step\n\n    ```sh\n    make\n    ```\n",
    };
    uint64_t rng = test_seed();
    for (int keep = 2; keep <= 9; keep++) {
        AUTO(rig_free) rig r = {0};
        for (size_t i = 0; i < sizeof code / sizeof *code; i++) {
            put_filler(&r.text, 12, &rng);
            str_printf(&r.text, "\n%s", code[i]);
        }
        put_filler(&r.text, 12, &rng);
        tokenize(&r);
        for (int64_t i = 0; i < r.in.n_tokens; i++)
            r.value[i] = (float)rng_below(&rng, 1000) * 1e-3f;
        r.in.keep = keep * 0.1;
        AUTO(str_free) str s = kept_text(&r, NULL);
        for (size_t i = 0; i < sizeof code / sizeof *code; i++) {
            const char *from = strpbrk(code[i], "`~"), *line = strchr(from, '\n');
            char open[32];
            snprintf(open, sizeof open, "%.*s\n", (int)(line - from), from);
            /* The lines between the fences are there all or none. */
            bool whole = strstr(s.at, code[i] + (from - code[i])) != NULL;
            const char *body = line + 1;
            char first[32];
            snprintf(first, sizeof first, "%.*s\n", (int)strcspn(body, "\n"), body);
            CHECK_MSG(whole || i == 1 || i == 2 || !strstr(s.at, first),
                      "keep %.1f: %s is in parts: %s", keep * 0.1, code[i], s.at);
        }
    }
}

/* Spans ascend, do not touch, and have whole characters; units cover the text. */
static void check_cut(const compress_input *in)
{
    compress_units u = {0};
    compress_result x, again;
    err e = {0};
    size_t at = 0;
    int64_t tokens = 0;
    CHECK_OK(compress_cut(in, &u, &e), e);
    for (size_t i = 0; i < u.n; i++) {
        CHECK(u.at[i].from == at && u.at[i].to > at);
        CHECK(at == in->n || ((unsigned char)in->text[at] & 0xc0) != 0x80);
        CHECK(u.at[i].code || u.at[i].tokens <= 2 * COMPRESS_UNIT + 4);
        at = u.at[i].to;
        tokens += u.at[i].tokens;
    }
    CHECK(at == in->n && tokens == in->n_tokens);
    mem_free(u.at);
    CHECK_OK(compress_choose(in, &x, &e), e);
    CHECK_OK(compress_choose(in, &again, &e), e);
    CHECK(x.n > 0 && x.n == again.n && !memcmp(x.span, again.span, x.n * sizeof *x.span));
    at = 0;
    for (size_t i = 0; i < x.n; i++) {
        size_t to = x.span[i].at + x.span[i].n;
        CHECK(x.span[i].n && to <= in->n && (i ? x.span[i].at > at : true));
        CHECK(utf8_valid(in->text + x.span[i].at, x.span[i].n));
        at = to;
    }
    compress_result_free(&x);
    compress_result_free(&again);
}

static void put_random(str *s, int n, uint64_t *rng)
{
    static const char *const pieces[] = {
        " ",      "\n", "\n\n",  ". ",      "word",    "```\n", "~~~",
        "> ",     "\t", "é",     "日本",    "。",      "…",     "\xf0\x9f\x99\x82",
        "a",      "B",  "12",    "(x).\" ", "\r\n",    "-",     "    ",
        "```c\n", "!",  "“q.” ", "x_y",     "\xcc\x81"};
    for (int i = 0; i < n; i++) {
        const char *p = pieces[rng_below(rng, sizeof pieces / sizeof *pieces)];
        for (uint64_t k = rng_below(rng, 40) ? 1 : rng_below(rng, 200); k > 0; k--)
            str_puts(s, p);
    }
}

TEST(compress_of_any_text)
{
    uint64_t rng = test_seed();
    for (int i = 0; i < test_trials(300); i++) {
        rig r = {0};
        put_random(&r.text, 1 + (int)rng_below(&rng, i % 10 ? 300 : 3), &rng);
        tokenize(&r);
        if (!r.in.n) {
            rig_free(&r);
            continue;
        }
        for (int64_t k = 0; k < r.in.n_tokens; k++)
            r.value[k] = rng_below(&rng, 50) ? (float)rng_below(&rng, 10) : (float)NAN;
        r.in.query = r.in.text;
        r.in.n_query_bytes = r.in.n < 500 ? r.in.n : 500;
        r.in.query_id = r.in.id;
        r.in.n_query = r.in.n_tokens < 120 ? r.in.n_tokens : 120;
        r.in.keep = 0.01 * (double)(1 + rng_below(&rng, 99));
        check_cut(&r.in);
        rig_free(&r);
    }
}

/* Millions of bytes without a space, or of lines that look like fences, take time by their length.
 */
TEST(compress_of_hostile_texts)
{
    static const char *const pieces[] = {"a", "`", "~~~\n", "```\n", "\n",
                                         " ", ".", ". ",    "é",     "> "};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        AUTO(rig_free) rig r = {0};
        for (int k = 0; k < (test_brief() ? 20000 : 100000); k++)
            str_puts(&r.text, pieces[i]);
        tokenize(&r);
        check_cut(&r.in);
    }
}

TEST(compress_choose_refuses_nonsense)
{
    AUTO(rig_free) rig r;
    compress_result x;
    err e = {0};
    rig_make(&r, "One. Two. Three.");
    r.in.keep = 0;
    CHECK_STATUS(compress_choose(&r.in, &x, &e), E_ARG);
    r.in.keep = NAN;
    CHECK_STATUS(compress_choose(&r.in, &x, &e), E_ARG);
    r.in.keep = 0.5;
    r.in.n_tokens--;
    CHECK_STATUS(compress_choose(&r.in, &x, &e), E_ARG);
    CHECK(!x.span && !x.n);
}

static status choose_of(void *arg, err *e)
{
    AUTO(compress_result_free) compress_result x;
    status st = compress_choose(arg, &x, e);
    return st;
}

TEST(compress_choose_without_memory)
{
    uint64_t rng = test_seed();
    AUTO(rig_free) rig r = {0};
    put_filler(&r.text, 60, &rng);
    tokenize(&r);
    test_every_allocation(choose_of, &r.in);
}

TEST(compress_keep_falls_with_the_length)
{
    double before = 1;
    for (int64_t n = 1; n < 400000; n += 997) {
        double keep = compress_keep_of(n);
        CHECK(keep <= before && keep >= 0.02 && keep <= 0.30);
        before = keep;
    }
    CHECK_NEAR(compress_keep_of(32768), 0.10, 1e-9);
    CHECK_NEAR(compress_keep_of(65536), 0.05, 1e-9);
}

/* ---- Conversations --------------------------------------------------------------------------- */

static carat_talk read_talk(const char *text, arena *mem)
{
    carat_talk t = {.mem = mem};
    err e = {0};
    CHECK_OK(chat_read(&t, text, strlen(text), NULL, 0, &e), e);
    return t;
}

TEST(compress_finds_texts_and_their_questions)
{
    static const char messages[] =
        "[{\"role\":\"system\",\"content\":\"sss sss\"},"
        "{\"role\":\"user\",\"content\":\"doc zero\"},{\"role\":\"user\",\"content\":\"ask 0\"},"
        "{\"role\":\"assistant\",\"content\":\"answer 0\"},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"part a\"},"
        "{\"type\":\"image_url\",\"image_url\":{}},{\"type\":\"text\",\"text\":\"part b\"}]},"
        "{\"role\":\"assistant\",\"content\":\"calls it\",\"tool_calls\":[{\"x\":1}]},"
        "{\"role\":\"tool\",\"content\":\"result result\"},"
        "{\"role\":\"assistant\",\"content\":\"answer 1\"},"
        "{\"role\":\"user\",\"content\":\"ask 2\"},{\"role\":\"assistant\",\"content\":\"answer "
        "2\"},"
        "{\"role\":\"user\",\"content\":\"ask 3\"}]";
    static const struct {
        size_t message;
        int part;
        const char *text, *query;
    } want[] = {{1, -1, "doc zero", "ask 2"}, {2, -1, "ask 0", "ask 2"},
                {3, -1, "answer 0", "ask 2"}, {4, 0, "part a", "ask 3"},
                {4, 2, "part b", "ask 3"},    {7, -1, "answer 1", "ask 3"},
                {8, -1, "ask 2", "ask 3"},    {10, -1, "ask 3", "ask 3"}};
    AUTO(arena_free) arena mem = {0};
    compress_texts t;
    err e = {0};
    carat_talk v = read_talk(messages, &mem), w = {.mem = &mem};
    CHECK_OK(compress_find(&v, 1, &mem, &t, &e), e);
    CHECK_EQ(t.n, sizeof want / sizeof *want);
    for (size_t i = 0; i < t.n; i++) {
        const compress_text *x = &t.at[i];
        CHECK_MSG(x->message == want[i].message && x->part == want[i].part &&
                      !strcmp(x->text, want[i].text) && !strcmp(x->query, want[i].query),
                  "text %zu: message %zu, part %d: %s, for %s", i, x->message, (int)x->part,
                  x->text, x->query);
        CHECK_MSG(x->asks == (i != 0 && i != 2 && i != 3 && i != 5), "text %zu", i);
    }
    str now[8] = {{0}};
    str_puts(&now[3], "A \"quoted\" line\n");
    talk_copy(&v, &w);
    compress_put(&t, now, &w);
    CHECK(!w.bad && w.n == v.n && w.turn[0].part == v.turn[0].part);
    CHECK(!strcmp(w.turn[4].part[0].text.s, "A \"quoted\" line\n"));
    CHECK(!strcmp(v.turn[4].part[0].text.s, "part a"));
    CHECK(!strcmp(w.turn[4].part[2].text.s, "part b"));
    str_free(&now[3]);
}

TEST(compress_finds_nothing_where_nothing_may_go)
{
    static const char *const none[] = {
        "[{\"role\":\"system\",\"content\":\"long long\"}]",
        "[{\"role\":\"assistant\",\"content\":\"before any user\"}]",
        "[{\"role\":\"user\",\"content\":[[],{},1,{\"text\":3}]},{\"role\":\"user\"}]"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        AUTO(arena_free) arena mem = {0};
        compress_texts t;
        err e = {0};
        carat_talk v = read_talk(none[i], &mem);
        CHECK_OK(compress_find(&v, 1, &mem, &t, &e), e);
        CHECK_MSG(!t.n, "%s", none[i]);
    }
}
