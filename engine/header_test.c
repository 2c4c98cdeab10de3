/* header_test.c - answers of gpt-oss whose thoughts are over, or which may hold no calls: the
 * headers of their messages, of toy models that are eager to write any header.
 */
#include "carat_bench.h"
#include "base/str.h"
#include "engine/engine_int.h"
#include "tests/round_rig.h"
#include "tests/test.h"
#include "text/place.h"

#define THOUGHT "<|channel|>analysis<|message|>"
#define COMMENT "<|channel|>commentary<|message|>"
#define FINAL "<|channel|>final<|message|>"
#define ROLE "<|end|><|start|>assistant"
#define TO " to=functions.f"

static const toy_model_file gpt_oss = {
    .base = "gpt-oss", .words = "gpt-4o", .template = "openai-gpt-oss-120b.jinja"};

enum { TRIALS = 6, TOKENS = 120 };

/* A model that always writes messages: a header, a few tokens, an end. It chooses the headers. */
typedef struct writer {
    const carat_model *m;
    str head; /* of the message so far; empty: in its text */
    int left; /* tokens of the text */
} writer;

static const char *bytes_of(const carat_model *m, int32_t id, size_t *n)
{
    const char *s;
    int32_t len = carat_token_bytes(m, id, true, &s);
    *n = len > 0 ? (size_t)len : 0;
    return s;
}

static void spell(const carat_model *m, const heard *h, str *out)
{
    str_cut(out, 0);
    for (int32_t i = 0; i < h->n; i++) {
        size_t n;
        const char *s = bytes_of(m, h->id[i], &n);
        str_put(out, s, n);
    }
}

static bool goes_on(const str *head, const char *s, size_t n)
{
    static const char *const heads[] = {ROLE THOUGHT, ROLE COMMENT, ROLE FINAL,
                                        ROLE "<|channel|>commentary" TO "<|message|>",
                                        ROLE TO "<|channel|>commentary<|message|>"};
    if (n && n < 3 && *s == ' ')
        return false; /* " to" is one token of every published vocabulary */
    if (n && memchr(s, '<', n) && (*s != '<' || s[n - 1] != '>'))
        return false; /* spells a part of a mark */
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (n && head->n + n <= strlen(heads[i]) && !memcmp(heads[i], str_text(head), head->n) &&
            !memcmp(heads[i] + head->n, s, n))
            return true;
    return false;
}

static carat_mask_use writer_fill(void *user, uint32_t *allowed, int32_t n_vocab)
{
    const writer *w = user;
    for (int32_t id = 0; id < n_vocab; id++) {
        size_t n;
        const char *s = bytes_of(w->m, id, &n);
        bool marks = n > 1 && s[0] == '<' && s[1] == '|', end = n == 7 && !memcmp(s, "<|end|>", n);
        if (w->head.n ? goes_on(&w->head, s, n) : w->left ? !marks : end)
            allowed[id >> 5] |= UINT32_C(1) << (id & 31);
    }
    return CARAT_MASK_APPLY;
}

static void writer_accept(void *user, int32_t id)
{
    writer *w = user;
    size_t n;
    const char *s = bytes_of(w->m, id, &n);
    if (n == 7 && !memcmp(s, "<|end|>", n)) {
        str_cut(&w->head, 0);
        str_puts(&w->head, "<|end|>");
    } else if (w->head.n) {
        str_put(&w->head, s, n);
        if (n == 11 && !memcmp(s, "<|message|>", n)) {
            str_cut(&w->head, 0);
            w->left = 4;
        }
    } else {
        w->left--;
    }
}

/* The answer's text, with its marks, in *out. */
static void say(pair *p, request *q, heard *h, str *out)
{
    writer w = {.m = p->m};
    carat_logit_bias often = {.bias = 15}; /* else it thinks less often than it calls */
    int32_t ids[8];
    CHECK(carat_tokenize(p->m, "analysis", 8, 0, ids, 8, NULL) > 0);
    often.id = ids[0];
    q->o.sampling.bias = &often;
    q->o.sampling.n_bias = 1;
    const carat_mask mask = {.fill = writer_fill, .accept = writer_accept, .user = &w};
    str_puts(&w.head, "<|end|><|start|>assistant");
    q->o.mask = &mask;
    heard_say(p->plain, q, h);
    CHECK_OK(h->st, h->e);
    q->o.mask = NULL;
    q->o.sampling.n_bias = 0;
    str_free(&w.head);
    spell(p->m, h, out);
}

static request request_of(const carat_model *m, int trial)
{
    request q = {.o = {.max_tokens = TOKENS}};
    err e = {0};
    const char *prompt = "<|start|>user<|message|>Hi<|end|><|start|>assistant";
    carat_sampling_default(m, &q.o.sampling);
    q.o.sampling.temperature = 3;
    q.o.sampling.ignore_eog = true;
    q.o.sampling.seed = (uint32_t)trial + 1;
    q.n = carat_tokenize(m, prompt, strlen(prompt), CARAT_TOK_SPECIAL, q.ids, PROMPT_MAX, &e);
    CHECK(q.n > 0);
    return q;
}

/* The same answer with drafts, which are taken up to every depth. */
static void check_drafts(pair *p, request *q, const heard *want, int trial)
{
    const int32_t depth[] = {1 + trial % 7};
    const carat_script script = {
        .answer = want->id, .n_answer = want->n, .accept = depth, .n_accept = 1};
    AUTO_PTR(heard_free) heard *got = heard_new();
    q->o.speculation = (carat_speculation){.n_max = 8, .tree_max = -1, .fixed = true};
    q->o.script = &script;
    heard_say(p->fast, q, got);
    heard_same(got, want, "drafts", trial);
}

TEST(after_the_last_thought_comes_a_call_or_an_answer)
{
    AUTO(pair_close) pair p;
    AUTO(str_free) str text = {0};
    AUTO_PTR(heard_free) heard *free = heard_new(), *cut = heard_new();
    int again = 0, calls = 0, finals = 0;
    pair_open(&p, &gpt_oss, (carat_session_options){0});
    for (int trial = 0; trial < TRIALS; trial++) {
        request q = request_of(p.m, trial);
        heard_free(free);
        heard_free(cut);
        free = heard_new();
        cut = heard_new();
        say(&p, &q, free, &text);
        const char *first = strstr(str_text(&text), THOUGHT);
        again += first && strstr(first + 1, THOUGHT);
        q.o.max_thinking = 3;
        say(&p, &q, cut, &text);
        if (!cut->t.thinking_cut)
            continue;
        first = strstr(str_text(&text), THOUGHT);
        CHECK_MSG(first && !strstr(first + 1, THOUGHT), "%s", text.at);
        const char *head = strstr(first, ROLE);
        if (!head)
            continue; /* its tokens have run out */
        CHECK_MSG(!strstr(head, ROLE COMMENT), "%s", text.at);
        calls += strstr(head, TO) != NULL;
        finals += strstr(head, FINAL) != NULL;
    }
    CHECK_MSG(again && calls && finals, "%d think again, %d call, %d answer", again, calls, finals);
}

TEST(answers_without_thoughts_or_calls)
{
    AUTO(pair_close) pair p;
    AUTO(str_free) str text = {0};
    int seen[2][3] = {{0}};
    pair_open(&p, &gpt_oss, (carat_session_options){0});
    for (int trial = 0; trial < 4 * TRIALS; trial++) {
        request q = request_of(p.m, trial);
        AUTO_PTR(heard_free) heard *h = heard_new();
        q.o.no_thoughts = trial % 2;
        q.o.no_calls = trial / 2 % 2;
        say(&p, &q, h, &text);
        bool thinks = strstr(str_text(&text), THOUGHT) || strstr(str_text(&text), ROLE COMMENT) ||
                      !strncmp(str_text(&text), COMMENT, strlen(COMMENT));
        bool calls = strstr(str_text(&text), TO);
        CHECK_MSG(!(q.o.no_thoughts && thinks) && !(q.o.no_calls && calls), "%s", text.at);
        CHECK_MSG(strstr(str_text(&text), "<|message|>") != NULL, "%s", text.at);
        seen[q.o.no_thoughts][0] += thinks;
        seen[q.o.no_calls][1] += calls;
        seen[q.o.no_calls][2] += strstr(str_text(&text), FINAL) != NULL;
    }
    CHECK(seen[0][0] && seen[0][1] && seen[0][2] && seen[1][2]);
}

/* Of a model that ends a message wherever it can, and has no mask to tell it what a header is. */
TEST(drafts_do_not_change_headers)
{
    AUTO(pair_close) pair p;
    AUTO(str_free) str text = {0};
    int n_heads = 0;
    pair_open(&p, &gpt_oss, (carat_session_options){0});
    for (int trial = 0; trial < TRIALS; trial++) {
        request q = request_of(p.m, trial);
        AUTO_PTR(heard_free) heard *h = heard_new();
        carat_logit_bias bias = {.bias = 6};
        err e = {0};
        CHECK_EQ(carat_tokenize(p.m, "<|end|>", 7, CARAT_TOK_SPECIAL, &bias.id, 1, &e), 1);
        q.o.sampling.bias = &bias;
        q.o.sampling.n_bias = 1;
        q.o.sampling.temperature = 1;
        q.o.no_calls = true;
        heard_say(p.plain, &q, h);
        spell(p.m, h, &text);
        n_heads += strstr(str_text(&text), ROLE "<|channel|>") != NULL;
        check_drafts(&p, &q, h, trial);
    }
    CHECK(n_heads);
}

TEST(calls_and_thoughts_that_cannot_be_kept_away_are_refused)
{
    static const toy_model_file llama = {.base = "llama",
                                         .words = "llama-bpe",
                                         .template = "meta-llama-Llama-3.1-8B-Instruct.jinja"};
    const toy_model_file *files[] = {&llama, NULL};
    for (int i = 0; i < 2; i++) {
        AUTO_MODEL *m = toy_model_open(files[i], NULL);
        AUTO_SESSION *s;
        carat_marks marks;
        err e = {0};
        int32_t id = 5;
        carat_timings t;
        CHECK_OK(carat_session_open(m, &(carat_session_options){.n_ctx = 64}, &s, &e), e);
        carat_generate_options o = {.max_tokens = 2, .no_thoughts = true};
        carat_sampling_default(m, &o.sampling);
        CHECK_STATUS(carat_generate(s, &id, 1, &o, NULL, NULL, &t, &e), E_UNSUPPORTED);
        o.no_thoughts = false;
        o.no_calls = true;
        carat_model_get_marks(m, &marks);
        CHECK(marks.bars_calls == !files[i]);
        err_clear(&e);
        CHECK_STATUS(carat_generate(s, &id, 1, &o, NULL, NULL, &t, &e),
                     files[i] ? E_UNSUPPORTED : OK);
    }
}

/* Rules come too late for a header that has begun as one that they bar. */
TEST(headers_that_have_begun_go_on)
{
    static const struct {
        const char *head, *next, *barred;
        bool no_thoughts, no_calls;
    } x[] = {{"<|channel|>analysis", "<|message|>", NULL, .no_thoughts = true},
             {"<|channel|>commentary to=functions.f", "<|message|>", NULL, .no_calls = true},
             {"<|channel|>commentary", "<|message|>", NULL, .no_thoughts = true, .no_calls = true},
             {"<|channel|>commentary", " to", "<|message|>", .no_thoughts = true},
             {"<|channel|>", "final", "analysis", .no_thoughts = true}};
    AUTO_MODEL *m = toy_model_open(&gpt_oss, NULL);
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
        int32_t ids[64], next[8], barred[8];
        answer_place p;
        place_rule r;
        err e = {0};
        place_begin(&p, m->text, m->chat, false);
        int32_t n = carat_tokenize(m, x[i].head, strlen(x[i].head), CARAT_TOK_SPECIAL, ids, 64, &e);
        CHECK(n > 0 && n <= 64);
        for (int32_t k = 0; k < n; k++)
            place_next(&p, ids[k]);
        CHECK(place_in_header(&p));
        place_rule_begin(&r, &p, x[i].no_thoughts, x[i].no_calls);
        CHECK(carat_tokenize(m, x[i].next, strlen(x[i].next), CARAT_TOK_SPECIAL, next, 8, &e) > 0);
        CHECK_MSG(place_rule_allows(&r, next[0]), "%s%s", x[i].head, x[i].next);
        if (!x[i].barred)
            continue;
        CHECK(carat_tokenize(m, x[i].barred, strlen(x[i].barred), CARAT_TOK_SPECIAL, barred, 8,
                             &e) > 0);
        CHECK_MSG(!place_rule_allows(&r, barred[0]), "%s%s", x[i].head, x[i].barred);
    }
}
