/* compress_test.c - prompt compression through the library: a thousand made-up conversations of
 * which only what may be shortened is, beginnings that stay, the memory of what was shortened,
 * scorers that fail, and a whole model as its own scorer. */
#include "tests/talk_json.h"
#include "tests/toy_model.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "carat.h"
#include "tests/test.h"
#include "text/chat.h"
#include "text/compress_int.h"

/* ---- A scorer without a model -----------------------------------------------------------------
 */

typedef struct fake {
    int64_t calls, longest;
    carat_status fails;
    const carat_model *m; /* with heard: what it was asked last */
    str *heard;
} fake;

/* Values by token and place; the same in every call. */
static carat_status score_fake(void *user, const int32_t *ids, int64_t n, float *out,
                               carat_error *e)
{
    fake *f = user;
    f->calls++;
    f->longest = n > f->longest ? n : f->longest;
    if (f->fails)
        return err_set(e, f->fails, "the scorer failed");
    if (f->heard)
        str_cut(f->heard, 0);
    for (int64_t i = 0; i < n && f->heard; i++) {
        const char *bytes;
        int32_t len = carat_token_bytes(f->m, ids[i], false, &bytes);
        str_put(f->heard, bytes, len > 0 ? (size_t)len : 0);
    }
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)(rng_mix((uint64_t)ids[i] * 31 + (uint64_t)i / 40) >> 40) * 1e-7f;
    return CARAT_OK;
}

typedef struct rig {
    carat_model *m;
    carat_compressor *c;
    fake f;
    carat_scorer s;
    carat_talk *talk[4]; /* the last ones: results borrow from them */
    int n_conversations;
} rig;

static void rig_open(rig *r)
{
    err e = {0};
    *r = (rig){.m = toy_model_open(NULL, &(carat_model_options){.n_threads = 1})};
    CHECK_OK(carat_compressor_open(&r->c, 0, &e), e);
    r->s = (carat_scorer){.model = r->m, .n_ctx = 4096, .score = score_fake, .user = &r->f};
}

static void keep_talk(rig *r, carat_talk *t)
{
    carat_talk **at = &r->talk[r->n_conversations++ % 4];
    carat_talk_close(*at);
    *at = t;
}

static void rig_close(rig *r)
{
    for (int i = 0; i < 4; i++)
        carat_talk_close(r->talk[i]);
    carat_compressor_close(r->c);
    carat_model_close(r->m);
}

/* The result is JSON as the messages are. */
static status compress_json(rig *r, carat_compressor *c, const char *messages,
                            const carat_compress_options *o, carat_compressed *out, err *e)
{
    carat_talk *t;
    str s = {0};
    *out = (carat_compressed){0};
    status st = carat_talk_open(&t, messages, NULL, e);
    if (st)
        return st;
    if ((st = carat_compress_chat(c, r->m, &r->s, t, NULL, o, out, e)) || !out->talk) {
        keep_talk(r, t);
        return st;
    }
    talk_json(&s, out->talk);
    keep_talk(r, t);
    if (s.bad) {
        str_free(&s);
        carat_compressed_free(out);
        return err_memory(e, "a test's JSON", 1);
    }
    out->n_text = s.n;
    out->text = str_take(&s);
    return CARAT_OK;
}

static void compress(rig *r, const str *messages, double ratio, carat_compressed *out)
{
    err e = {0};
    carat_compress_options o = {.ratio = ratio};
    CHECK_OK(compress_json(r, r->c, str_text(messages), &o, out, &e), e);
}

/* ---- Conversations ----------------------------------------------------------------------------
 */

static void put_words(str *s, int n, uint64_t *rng)
{
    static const char *const words[] = {
        "river", "stone. ", "quiet ", "walked ", "under ", "lamp! ", "seven ", "\n",
        "\n\n",  "é",       "日本。", "\"q\" ",  "a\\b ",  "🙂",   "\t",     "garden "};
    for (int i = 0; i < n; i++)
        str_puts(s, words[rng_below(rng, sizeof words / sizeof *words)]);
}

static void put_text(str *s, uint64_t *rng)
{
    bool is_long = rng_below(rng, 2);
    put_words(s, is_long ? 60 + (int)rng_below(rng, 150) : 1 + (int)rng_below(rng, 10), rng);
    for (uint64_t i = rng_below(rng, 3); i > 0; i--) {
        const char *mark = rng_below(rng, 2) ? "```" : "~~~~";
        str_printf(s, "\n%s%s\n", mark, rng_below(rng, 2) ? "c" : "");
        put_words(s, 1 + (int)rng_below(rng, 60), rng);
        str_printf(s, "\n%s\n", rng_below(rng, 8) ? mark : "");
        put_words(s, (int)rng_below(rng, is_long ? 80 : 4), rng);
    }
}

static void put_member(str *o, const char *key, const str *text)
{
    str_printf(o, ",\"%s\":", key);
    jtree_put_string(o, str_text(text), text->n);
}

/* A "caller" is an assistant whose message calls a tool. */
static void put_message(str *o, const char *role, uint64_t *rng)
{
    AUTO(str_free) str text = {0};
    put_text(&text, rng);
    str_printf(o, "%s{\"role\":\"%s\"", o->n > 1 ? "," : "",
               strcmp(role, "caller") ? role : "assistant");
    if (!strcmp(role, "caller")) {
        put_member(o, "reasoning_content", &text);
        str_puts(o, ",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\",\"function\":{\"name\":"
                    "\"look\",\"arguments\":\"{\\\"a\\\": 1}\"}}]");
    }
    if (!strcmp(role, "tool"))
        str_puts(o, ",\"tool_call_id\":\"c\",\"name\":\"look\"");
    if (!strcmp(role, "user") && !rng_below(rng, 4)) {
        str_puts(o, ",\"content\":[{\"type\":\"text\"");
        put_member(o, "text", &text);
        str_puts(o, "},{\"type\":\"text\"");
        put_member(o, "text", &text);
        str_puts(o, "}]}");
    } else {
        put_member(o, "content", &text);
        str_puts(o, "}");
    }
}

/* A conversation without its closing bracket. */
static void put_turns(str *o, int n, uint64_t *rng)
{
    if (!o->n) {
        str_putc(o, '[');
        if (rng_below(rng, 2))
            put_message(o, "system", rng);
    }
    for (int i = 0; i < n; i++) {
        put_message(o, "user", rng);
        if (!rng_below(rng, 5))
            put_message(o, "user", rng);
        if (!rng_below(rng, 3)) {
            put_message(o, "caller", rng);
            put_message(o, "tool", rng);
        }
        put_message(o, "assistant", rng);
    }
}

static const jtree *parse(const char *text, size_t n, arena *mem)
{
    const jtree *v;
    err e = {0};
    CHECK_OK(jtree_parse(text, n, "messages", 64, mem, &v, &e), e);
    return v;
}

static bool is_role(const jtree *m, const char *role)
{
    return !strcmp(jtree_get(m, "role")->s, role);
}

static bool same_value(const jtree *a, const jtree *b)
{
    AUTO(str_free) str x = {0}, y = {0};
    jtree_put_json(&x, a);
    jtree_put_json(&y, b);
    bool same = x.n == y.n && !memcmp(x.at, y.at, x.n);
    return same;
}

static const carat_compressed_text *shortened(const carat_compressed *x, int32_t message,
                                              int32_t part)
{
    for (int32_t i = 0; i < x->n; i++)
        if (x->at[i].message == message && x->at[i].part == part)
            return &x->at[i];
    return NULL;
}

/* Code is kept or dropped as a whole. */
static void check_code(const carat_compressed_text *t)
{
    compress_units u = {0};
    err e = {0};
    size_t *end = mem_calloc(t->n_text, sizeof *end);
    AUTO_MEM int32_t *id = mem_calloc(t->n_text, sizeof *id);
    AUTO_MEM float *value = mem_calloc(t->n_text, sizeof *value);
    CHECK(end && id && value);
    for (size_t i = 0; i < t->n_text; i++)
        end[i] = i + 1;
    compress_input in = {.text = t->text,
                         .n = t->n_text,
                         .end = end,
                         .id = id,
                         .value = value,
                         .n_tokens = (int64_t)t->n_text,
                         .keep = 0.5};
    CHECK_OK(compress_cut(&in, &u, &e), e);
    for (size_t i = 0; i < u.n; i++)
        for (int32_t k = 0; u.at[i].code && k < t->n_spans; k++) {
            size_t from = t->span[k].at, to = from + t->span[k].n;
            bool apart = to <= u.at[i].from || from >= u.at[i].to;
            CHECK_MSG(apart || (from <= u.at[i].from && to >= u.at[i].to), "code is cut");
        }
    mem_free(u.at);
    mem_free(end);
}

static void check_text(const carat_compressed_text *t, const jtree *before, const jtree *after)
{
    AUTO(str_free) str joined = {0};
    CHECK(t->n_text <= before->n && !memcmp(t->text, before->s, t->n_text));
    compress_join(t->text, (const text_span *)(const void *)t->span, (size_t)t->n_spans, &joined);
    str_put(&joined, before->s + t->n_text, before->n - t->n_text); /* a question stays whole */
    CHECK(after->n == joined.n && !memcmp(after->s, joined.at, joined.n));
    CHECK(utf8_valid(after->s, after->n) && t->n_kept < t->n_tokens && t->n_tokens >= 512);
    check_code(t);
}

/* Only what may change has changed, and in the way that is told. Returns the number of texts. */
static int check_conversation(const str *messages, const carat_compressed *x)
{
    arena mem = {0};
    int n = 0;
    carat_talk was = {.mem = &mem};
    str all = {0};
    err e = {0};
    CHECK_OK(chat_read(&was, messages->at, messages->n, NULL, 0, &e), e);
    talk_json(&all, &was);
    const jtree *a = parse(str_text(&all), all.n, &mem);
    str_free(&all);
    if (!x->text) {
        CHECK(!x->n && x->why[0] && x->n_kept == x->n_original);
        arena_free(&mem);
        return 0;
    }
    const jtree *b = parse(x->text, x->n_text, &mem);
    CHECK(a->count == b->count && x->n_kept < x->n_original);
    int32_t i = 0;
    for (const jtree *m = a->first, *w = b->first; m; m = m->next, w = w->next, i++) {
        bool may = is_role(m, "user") || (is_role(m, "assistant") && !jtree_has(m, "tool_calls"));
        CHECK(m->count == w->count);
        for (const jtree *f = m->first, *g = w->first; f; f = f->next, g = g->next) {
            int32_t k = 0;
            CHECK(f->n_key == g->n_key && !memcmp(f->key, g->key, f->n_key));
            if (same_value(f, g))
                continue;
            CHECK_MSG(may && !strcmp(f->key, "content"), "message %d: %s has changed", (int)i,
                      f->key);
            if (f->kind == JTREE_STRING) {
                const carat_compressed_text *t = shortened(x, i, -1);
                CHECK(t);
                check_text(t, f, g);
                n++;
                continue;
            }
            for (const jtree *p = f->first, *q = g->first; p; p = p->next, q = q->next, k++) {
                const carat_compressed_text *t = shortened(x, i, k);
                if (!t) {
                    CHECK(same_value(p, q));
                    continue;
                }
                check_text(t, jtree_get(p, "text"), jtree_get(q, "text"));
                n++;
            }
        }
    }
    CHECK_EQ(n, x->n);
    arena_free(&mem);
    return n;
}

PLAIN_TEST(compress_touches_nothing_that_is_protected)
{
    uint64_t rng = test_seed();
    int n_texts = 0, n_conversations = test_trials(1000);
    AUTO(rig_close) rig r;
    rig_open(&r);
    for (int i = 0; i < n_conversations; i++) {
        AUTO(str_free) str messages = {0};
        carat_compressed x, again;
        carat_compressor *other, *mine = r.c;
        err e = {0};
        double ratio = 0.01 * (double)(1 + rng_below(&rng, 99));
        put_turns(&messages, 1 + (int)rng_below(&rng, 4), &rng);
        put_message(&messages, "user", &rng);
        str_putc(&messages, ']');
        compress(&r, &messages, ratio, &x);
        n_texts += check_conversation(&messages, &x);
        if (i % 10 == 0) { /* nothing depends on what is remembered */
            CHECK_OK(carat_compressor_open(&other, 0, &e), e);
            r.c = other;
            compress(&r, &messages, ratio, &again);
            r.c = mine;
            CHECK(x.n_text == again.n_text && (!x.text || !memcmp(x.text, again.text, x.n_text)));
            carat_compressed_free(&again);
            carat_compressor_close(other);
        }
        carat_compressed_free(&x);
    }
    CHECK_MSG(n_texts > n_conversations, "only %d texts were shortened", n_texts);
}

/* With every turn more, what comes before the last two turns is as in the prompt before. */
TEST(compress_leaves_old_turns_as_they_were)
{
    uint64_t rng = test_seed();
    AUTO(rig_close) rig r;
    rig_open(&r);
    for (int i = 0; i < test_trials(20); i++) {
        AUTO(str_free) str messages = {0}, old = {0};
        size_t stable = 0;
        for (int turn = 0; turn < 7; turn++) {
            AUTO(str_free) str now = {0};
            carat_compressed x;
            AUTO(arena_free) arena mem = {0};
            str_put(&now, str_text(&messages), messages.n);
            if (!messages.n)
                str_putc(&now, '[');
            put_message(&now, "user", &rng);
            str_put(&messages, now.at + messages.n, now.n - messages.n);
            str_putc(&now, ']');
            compress(&r, &now, 0.2, &x);
            const char *text = x.text ? x.text : now.at;
            const jtree *v = parse(text, strlen(text), &mem), *m = v->first;
            for (size_t k = 0; k < stable && old.n; k++) {
                str a = {0};
                jtree_put_json(&a, m);
                str_puts(&a, "\n");
                CHECK_MSG(!strncmp(old.at, a.at, a.n), "turn %d: message %zu is another one", turn,
                          k);
                str_drop(&old, a.n);
                str_free(&a);
                m = m->next;
            }
            str_cut(&old, 0);
            stable = turn >= 2 ? 2 * (size_t)(turn - 1) : 0; /* a turn has two messages */
            m = v->first;
            for (size_t k = 0; k < stable; k++, m = m->next) {
                jtree_put_json(&old, m);
                str_puts(&old, "\n");
            }
            put_message(&messages, "assistant", &rng);
            carat_compressed_free(&x);
        }
    }
}

static void put_long(str *o, int words, const char *question, uint64_t *rng)
{
    AUTO(str_free) str text = {0};
    put_words(&text, words, rng);
    str_puts(o, "[{\"role\":\"user\"");
    put_member(o, "content", &text);
    str_printf(o, "},{\"role\":\"user\",\"content\":\"%s\"}]", question);
}

TEST(compress_remembers_and_scores_in_parts)
{
    uint64_t rng = test_seed();
    AUTO(rig_close) rig r;
    AUTO(str_free) str a = {0}, b = {0};
    carat_compressed x, y;
    rig_open(&r);
    put_long(&a, 400, "Where was the lamp?", &rng);
    compress(&r, &a, 0.3, &x);
    CHECK_EQ(r.f.calls, 1);
    compress(&r, &a, 0.3, &y);
    CHECK_EQ(r.f.calls, 1);
    CHECK(x.n_text == y.n_text && !memcmp(x.text, y.text, x.n_text));
    carat_compressed_free(&y);
    compress(&r, &a, 0.4, &y);
    CHECK_EQ(r.f.calls, 2);
    CHECK(y.n_kept > x.n_kept);
    carat_compressed_free(&y);
    carat_compressed_free(&x);

    r.f = (fake){0};
    r.s.n_ctx = 300;
    put_long(&b, 400, "And the garden?", &rng);
    compress(&r, &b, 0.3, &x);
    CHECK(x.n == 1 && r.f.calls == (x.at[0].n_tokens + 280) / 281 && r.f.longest <= 300);
    carat_compressed_free(&x);
}

/* A small memory forgets; it never grows beyond its bound, and no result changes. */
TEST(compress_with_little_memory)
{
    uint64_t rng = test_seed();
    AUTO(rig_close) rig r, small;
    err e = {0};
    rig_open(&r);
    rig_open(&small);
    carat_compressor_close(small.c);
    CHECK_OK(carat_compressor_open(&small.c, 6000, &e), e);
    for (int i = 0; i < 12; i++) {
        AUTO(str_free) str a = {0};
        carat_compressed x, y;
        put_long(&a, 150 + 40 * (i % 3), "Which stone?", &rng);
        compress(&r, &a, 0.25, &x);
        compress(&small, &a, 0.25, &y);
        CHECK(x.n_text == y.n_text && (!x.text || !memcmp(x.text, y.text, x.n_text)));
        carat_compressed_free(&x);
        carat_compressed_free(&y);
    }
}

/* A text that is one block of code stays whole, however long it is. */
TEST(compress_of_code_alone_says_so)
{
    uint64_t rng = test_seed();
    carat_compressed x;
    AUTO(rig_close) rig r;
    AUTO(str_free) str text = {0}, a = {0};
    rig_open(&r);
    str_puts(&text, "```\n");
    for (int i = 0; i < 200; i++)
        str_printf(&text, "line %d says %d\n", i, (int)rng_below(&rng, 1000));
    str_puts(&text, "```");
    str_puts(&a, "[{\"role\":\"user\"");
    put_member(&a, "content", &text);
    str_puts(&a, "},{\"role\":\"user\",\"content\":\"Where is line 41?\"}]");
    compress(&r, &a, 0.1, &x);
    CHECK_MSG(!x.text && strstr(x.why, "code between fences"), "%s", x.why);
    carat_compressed_free(&x);
    str_cut(&a, 0);
    str_puts(&text, "\nAnd prose. Of two sentences.\n"); /* then there is something beside it */
    str_puts(&a, "[{\"role\":\"user\"");
    put_member(&a, "content", &text);
    str_puts(&a, "},{\"role\":\"user\",\"content\":\"Where is line 41?\"}]");
    compress(&r, &a, 0.1, &x);
    CHECK_EQ(check_conversation(&a, &x), 1);
    CHECK(!strstr(x.text, "line 41 says"));
    carat_compressed_free(&x);
}

/* A long text and its question in one message, as people paste them. */
TEST(compress_shortens_a_message_with_its_question)
{
    static const char question[] = "\\n\\nWhich line says forty-one?\\n";
    static const char *const forms[][2] = {{"\"content\":\"", "\""},
                                           {"\"content\":[{\"type\":\"text\",\"text\":\"", "\"}]"}};
    AUTO(rig_close) rig r;
    rig_open(&r);
    for (int form = 0; form < 2; form++)
        for (int turns = 0; turns < 2; turns++) {
            AUTO(str_free) str a = {0}, text = {0};
            AUTO(carat_compressed_free) carat_compressed x;
            for (int i = 0; i < 300; i++)
                str_printf(&text, "The line %d says what it says. ", i);
            str_puts(&a, "[");
            if (turns)
                str_puts(&a, "{\"role\":\"user\",\"content\":\"hi\"},"
                             "{\"role\":\"assistant\",\"content\":\"ho\"},");
            str_printf(&a, "{\"role\":\"user\",%s%s%s%s}]", forms[form][0], str_text(&text),
                       question, forms[form][1]);
            compress(&r, &a, 0.2, &x);
            CHECK_MSG(x.text, "%s", x.why);
            CHECK_EQ(check_conversation(&a, &x), 1);
            CHECK(strstr(x.text, question) && x.n_text < a.n * 3 / 4);
        }
}

/* Of the end of a message, the scorer's question is the last paragraph alone. */
TEST(compress_asks_for_the_last_paragraph)
{
    static const char *const ends[] = {"Say.\\nWhich one?", "Say.\\nWhich one?\\n",
                                       "Say.\\nWhich one?\\n\\n \\n"};
    AUTO(rig_close) rig r;
    AUTO(str_free) str heard = {0}, body = {0};
    rig_open(&r);
    r.f.m = r.m;
    r.f.heard = &heard;
    for (size_t k = 0; k < sizeof ends / sizeof *ends; k++) {
        AUTO(carat_compressed_free) carat_compressed x;
        str_cut(&body, 0);
        str_puts(&body, "[{\"role\":\"user\",\"content\":\"");
        for (int i = 0; i < 300; i++)
            str_printf(&body, "The line %d says it. ", i);
        str_printf(&body, "\\n\\nAnd thanks.\\n\\n%s\"}]", ends[k]);
        compress(&r, &body, 0.2, &x);
        CHECK_MSG(x.text, "%s", x.why);
        const char *last = memmem(heard.at, heard.n, "\n\nSay.\nWhich one?", 17);
        CHECK_MSG(last && last[-1] != '\n' && !memmem(heard.at, heard.n, "thanks", 6),
                  "%zu: ... %s", k, str_text(&heard) + (heard.n > 80 ? heard.n - 80 : 0));
    }
}

TEST(compress_says_why_it_does_not)
{
    uint64_t rng = test_seed();
    carat_compressed x;
    carat_compress_options o = {.ratio = 0.3};
    AUTO(rig_close) rig r;
    AUTO(str_free) str a = {0}, lossy = {0};
    err e = {0};
    rig_open(&r);
    put_long(&a, 400, "Where?", &rng);
    compress(&r, &a, 0, &x); /* auto, and short */
    CHECK_MSG(!x.text && strstr(x.why, "32000"), "%s", x.why);
    carat_compressed_free(&x);

    r.f.fails = CARAT_E_UNSUPPORTED;
    CHECK_STATUS(compress_json(&r, r.c, a.at, &o, &x, &e), CARAT_E_UNSUPPORTED);
    CHECK_MSG(strstr(e.text, "the scorer failed") && !x.own, "%s", e.text);
    r.f.fails = CARAT_E_NUMERIC;
    e = (err){0};
    CHECK_STATUS(compress_json(&r, r.c, a.at, &o, &x, &e), CARAT_E_NUMERIC);
    r.f.fails = CARAT_OK;
    r.s.n_ctx = 40;
    e = (err){0};
    CHECK_STATUS(compress_json(&r, r.c, a.at, &o, &x, &e), CARAT_E_LIMIT);
    r.s.n_ctx = 4096;
    e = (err){0};
    CHECK_STATUS(compress_json(&r, r.c, "[1", &o, &x, &e), CARAT_E_FORMAT);

    /* U+2581 is a space in this vocabulary, so the tokens spell another text. */
    str_puts(&lossy, "[{\"role\":\"user\",\"content\":\"\xe2\x96\x81");
    for (int i = 0; i < 300; i++)
        str_puts(&lossy, "word. ");
    str_puts(&lossy, "\"},{\"role\":\"user\",\"content\":\"?\"}]");
    e = (err){0};
    CHECK_STATUS(compress_json(&r, r.c, lossy.at, &o, &x, &e), CARAT_E_UNSUPPORTED);
    CHECK_MSG(strstr(e.text, "byte for byte"), "%s", e.text);
}

TEST(compress_reads_its_option)
{
    static const char *const bad[] = {"",      "0",      "1",        "0.001",    "1.5",   "-0.3",
                                      "nan",   "0.3x",   "AUTO",     " 0.3",     "1e-1",  ".",
                                      "auto:", "auto:0", "auto:1.5", "auto:9e9", "auto:x"};
    carat_compress_options o;
    err e = {0};
    CHECK_OK(carat_compress_parse("auto", &o, &e), e);
    CHECK(o.ratio == 0);
    CHECK_OK(carat_compress_parse("0.25", &o, &e), e);
    CHECK_NEAR(o.ratio, 0.25, 0);
    CHECK_OK(carat_compress_parse("auto:4k", &o, &e), e);
    CHECK(o.ratio == 0 && o.least_tokens == 4096);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e = (err){0};
        CHECK_STATUS(carat_compress_parse(bad[i], &o, &e), CARAT_E_ARG);
    }
}

TEST(compress_of_plain_texts)
{
    uint64_t rng = test_seed();
    carat_compress_options o = {.ratio = 0.2};
    carat_compressed x;
    AUTO(rig_close) rig r;
    AUTO(str_free) str a = {0};
    err e = {0};
    rig_open(&r);
    put_words(&a, 400, &rng);
    CHECK_OK(carat_compress_text(r.c, r.m, &r.s, a.at, a.n, &o, &x, &e), e);
    CHECK(x.n == 1 && x.n_kept < x.n_original / 2);
    size_t tail = a.n - x.at[0].n_text;
    CHECK(tail > 200 && x.n_text > tail &&
          !memcmp(x.text + x.n_text - tail, a.at + a.n - tail, tail));
    carat_compressed_free(&x);
    str_puts(&a, "<|turn>user\n");
    CHECK_STATUS(carat_compress_text(r.c, r.m, &r.s, a.at, a.n, &o, &x, &e), CARAT_E_UNSUPPORTED);
    CHECK_MSG(strstr(e.text, "control tokens"), "%s", e.text);
    CHECK_OK(carat_compress_text(r.c, r.m, &r.s, "short", 5, &o, &x, &e), e);
    CHECK(!x.text && x.why[0]);
    carat_compressed_free(&x);
}

/* The ids of a text; role: as a message of this one. */
static int64_t put_ids(const carat_model *m, const char *text, size_t n, const char *role,
                       int32_t *ids, int64_t cap)
{
    AUTO(str_free) str own = {0};
    err e = {0};
    str_puts(&own, role ? role : "");
    str_put(&own, text, n);
    const char *part[] = {"<|turn>", own.at, "<turn|>\n<|turn>model\n"};
    int64_t at = 0;
    for (int i = role ? 0 : 1; i < (role ? 3 : 2); i++) {
        int64_t some = carat_tokenize(m, part[i], i == 1 ? own.n : strlen(part[i]),
                                      i == 1 ? 0 : CARAT_TOK_SPECIAL, ids + at, cap - at, &e);
        CHECK_MSG(some > 0 && some <= cap - at, "%s", e.text);
        at += some;
    }
    return at;
}

/* Ids of one text, and of a user's message with its question, become those of what the text
 * becomes; those of another's message stay. */
TEST(compress_of_ids_of_one_text)
{
    enum { CAP = 8192 };
    uint64_t rng = test_seed();
    const carat_compress_options o = {.ratio = 0.2};
    AUTO(carat_compressed_free) carat_compressed x;
    AUTO(rig_close) rig r;
    AUTO(str_free) str a = {0};
    err e = {0};
    static int32_t ids[CAP], out[CAP], want[CAP];
    rig_open(&r);
    put_words(&a, 400, &rng);
    CHECK_OK(carat_compress_text(r.c, r.m, &r.s, a.at, a.n, &o, &x, &e), e);
    CHECK(x.n == 1);
    static const char *const roles[] = {NULL, "user\n", "model\n"};
    for (int i = 0; i < 3; i++) {
        int64_t n = put_ids(r.m, a.at, a.n, roles[i], ids, CAP), n_out = 0;
        int64_t n_want = i == 2 ? put_ids(r.m, a.at, a.n, roles[i], want, CAP)
                                : put_ids(r.m, x.text, x.n_text, roles[i], want, CAP);
        CHECK_OK(carat_compress_ids(r.c, r.m, &r.s, ids, n, &o, out, &n_out, &e), e);
        CHECK_EQ(n_out, n_want);
        CHECK(i == 2 || n_out < n * 2 / 3);
        CHECK(!memcmp(out, want, (size_t)n_want * sizeof *out));
    }
    ids[3] = -1;
    CHECK_STATUS(carat_compress_ids(r.c, r.m, &r.s, ids, 9, &o, out, &(int64_t){0}, &e),
                 CARAT_E_ARG);
    CHECK_STR(e.text, "token 3 of the prompt is -1, which is no id of the model");
}

typedef struct attempt {
    rig *r;
    const str *messages;
} attempt;

static status attempt_chat(void *arg, err *e)
{
    const attempt *a = arg;
    carat_compressor *c;
    carat_compressed x = {0}, y = {0};
    carat_compress_options o = {.ratio = 0.3};
    status st = carat_compressor_open(&c, 0, e);
    if (st)
        return st;
    st = compress_json(a->r, c, str_text(a->messages), &o, &x, e);
    if (!st) /* remembered now */
        st = compress_json(a->r, c, str_text(a->messages), &o, &y, e);
    carat_compressed_free(&x);
    carat_compressed_free(&y);
    carat_compressor_close(c);
    return st;
}

TEST(compress_without_memory)
{
    uint64_t rng = test_seed();
    AUTO(rig_close) rig r;
    AUTO(str_free) str a = {0};
    rig_open(&r);
    put_long(&a, 150, "Where was it?", &rng);
    test_every_allocation(attempt_chat, &(attempt){&r, &a});
}

/* ---- A model as the scorer ---------------------------------------------------------------------
 */

static carat_status score_session(void *user, const int32_t *ids, int64_t n, float *out,
                                  carat_error *e)
{
    return carat_importance(user, ids, n, out, e);
}

PLAIN_TEST(compress_with_a_model)
{
    uint64_t rng = test_seed();
    AUTO(rig_close) rig r;
    AUTO(str_free) str a = {0};
    err e = {0};
    AUTO_SESSION *s;
    AUTO(carat_compressed_free) carat_compressed x;
    rig_open(&r);
    CHECK_OK(carat_session_open(r.m, &(carat_session_options){.n_ctx = 256}, &s, &e), e);
    r.s = (carat_scorer){.model = r.m, .n_ctx = 256, .score = score_session, .user = s};
    put_long(&a, 150, "Where was the lamp?", &rng);
    compress(&r, &a, 0.3, &x);
    CHECK_EQ(check_conversation(&a, &x), 1);
}
