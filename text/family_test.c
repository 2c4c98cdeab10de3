/* family_test.c - a second family, made up here: nothing outside of an entry knows Gemma's marks.
 *
 * It has no BOS, thoughts in <think>, calls in JSON, and user-defined marks without bars, so that
 * each of these would break a general file that took Gemma's for granted.
 */
#include "tests/test.h"
#include "tests/vocab_parts.h"
#include "text/chat_int.h"
#include "text/family.h"
#include "text/grammar_int.h"

RELEASED_AT(vocab_close, vocab)

static const text_family toy_family;
static const chat_format toy_format = {"toy", &toy_family, 0, NULL, false};

static size_t whole_text(const char *s, size_t n)
{
    (void)s;
    return n;
}

static const chat_format *recognise(const char *t, size_t n)
{
    return memmem(t, n, "<|im_start|>", 12) ? &toy_format : NULL;
}

static void render(chat_writer *w, const chat_format *f, const carat_talk *t,
                   const carat_chat_options *opt)
{
    (void)f;
    (void)opt;
    for (size_t i = 0; i < t->n; i++) {
        chat_lit(w, "<|im_start|>");
        chat_puts(w, talk_role_names[t->turn[i].role]);
        chat_lit(w, "\n");
        chat_put_text(w, chat_text_of(w, &t->turn[i], NULL));
        chat_lit(w, "<|im_end|>\n");
    }
    chat_lit(w, "<|im_start|>assistant\n<think>\n");
    w->p->starts_thinking = true;
}

/* {"name": NAME, "arguments": {...}} */
static bool read_call(const call_text *c, str *name, str *arguments, size_t *n_read)
{
    *n_read = c->n;
    AUTO(arena_free) arena mem = {0};
    const jtree *v = NULL;
    str_cut(name, 0);
    str_cut(arguments, 0);
    bool ok = !jtree_parse(c->s, c->n, "call", 8, &mem, &v, NULL);
    const jtree *called = jtree_get(v, "name"), *a = jtree_get(v, "arguments");
    ok = ok && jtree_is(called, JTREE_STRING) && jtree_is(a, JTREE_OBJECT);
    if (ok) {
        str_put(name, called->s, called->n);
        str_printf(arguments, "{\"n\":%s}", jtree_get(a, "n") ? jtree_get(a, "n")->s : "0");
    }
    return ok;
}

static call_head read_head(const char *s, size_t n)
{
    (void)s;
    (void)n;
    return (call_head){.possible = true};
}

static gx *call_grammar(gx_builder *b, const char *name, gx *arguments)
{
    gx *head = gx_seq3(b, gx_text(b, "{\"name\": \""), gx_text(b, name), gx_text(b, "\", "));
    return gx_seq2(b, head, gx_seq3(b, gx_text(b, "\"arguments\": "), arguments, gx_text(b, "}")));
}

static const tokenizer_name tokenizers[] = {{"toy", NULL, VOCAB_CHARS, whole_text, NULL, 0}, {0}};
static const answer_syntax syntax = {
    .opening = "",
    .thought_open = "<think>",
    .thought_label = "",
    .thought_close = "</think>",
    .call_open = "<tool_call>",
    .call_close = "</tool_call>",
    .stray = STRINGS("<|im_start|>"),
    .thought_not = STRINGS("</think>", "<tool_call>"),
    .content_not = STRINGS("<think>", "</think>", "<tool_call>", "</tool_call>"),
    .name_not = "\"\\ \n",
    .read_call = read_call,
    .read_head = read_head,
    .call_grammar = call_grammar};
static const text_family toy_family = {
    .archs = STRINGS("toy"),
    .name = "the toy",
    .model_types = (const char *const[]){"toy", NULL},
    .tokenizers = tokenizers,
    .eos = "<|end|>",
    .ends = STRINGS("<|im_end|>", "<|end|>"),
    .ends_not = STRINGS("x"),
    .shown = STRINGS("<think>", "</think>", "<tool_call>", "</tool_call>"),
    .media = STRINGS("<|pad|>"),
    .turn_open = "<|im_start|>",
    .turn_close = "<|im_end|>",
    .recognise = recognise,
    .render = render,
    .answer = &syntax};

enum { START, END, THINK, THINK_END, CALL_OPEN, CALL_CLOSE, PAD, N_MARKS };

static vocab *toy_words(bool add_bos)
{
    static const char *const marks[N_MARKS] = {"<|im_start|>", "<|im_end|>",  "<think>",
                                               "</think>",     "<tool_call>", "</tool_call>",
                                               "<|pad|>"};
    vocab_settings set = {.family = &toy_family,
                          .model = "toy",
                          .bos = add_bos ? START : -1,
                          .eos = -1,
                          .eot = -1,
                          .unk = -1,
                          .pad = -1,
                          .add_bos = add_bos};
    vocab_builder *b;
    vocab *v;
    err e = {0};
    CHECK_OK(vocab_begin(&b, N_MARKS + 256 + 2, 1, &e), e);
    for (int i = 0; i < N_MARKS; i++)
        vocab_add_token(b, marks[i], strlen(marks[i]),
                        i < THINK || i == PAD ? TOKEN_CONTROL : TOKEN_USER_DEFINED);
    add_byte_pieces(b);
    vocab_add_token(b, "h", 1, TOKEN_NORMAL);
    vocab_add_token(b, "hh", 2, TOKEN_NORMAL);
    vocab_add_merge(b, "h h", 3);
    CHECK_OK(vocab_finish(b, &set, &v, &e), e);
    return v;
}

TEST(a_second_family_has_its_own_words)
{
    AUTO_PTR(vocab_close) vocab *v = toy_words(false);
    int32_t n_never;
    CHECK_EQ(vocab_bos(v), -1);
    CHECK_EQ(vocab_eos(v), -1);
    CHECK(vocab_is_eog(v, END) && !vocab_is_eog(v, START));
    CHECK(vocab_never_sampled(v, &n_never)[0] == PAD && n_never == 1);
    /* A mark without bars is structure too: never found in content. */
    id_list ids = {0};
    err e = {0};
    CHECK_OK(vocab_encode(v, "<think>", 7, SPECIAL_NONE, &ids, &e), e);
    CHECK_EQ(ids.n, 7);
    ids.n = 0;
    CHECK_OK(vocab_encode(v, "<think>", 7, SPECIAL_ALL, &ids, &e), e);
    CHECK_EQ(ids.n, 1);
    id_list_free(&ids);
    vocab_close(v);
    v = toy_words(true); /* the file's own wish */
    CHECK_EQ(vocab_bos(v), START);
}

TEST(a_second_family_writes_its_own_prompts)
{
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"hh <think><bos>\"}]";
    AUTO_PTR(vocab_close) vocab *v = toy_words(false);
    AUTO(chat_prompt_free) chat_prompt p;
    AUTO(id_list_free) id_list ids = {0};
    err e = {0};
    CHECK(chat_format_of(&toy_family, "x <|im_start|> y", 16) == &toy_format);
    CHECK(!chat_format_of(&toy_family, "<|turn>", 7));
    CHECK_OK(chat_render(&toy_format, messages, sizeof messages - 1, NULL, 0, NULL, &p, &e), e);
    CHECK_STR(p.text.at, "<|im_start|>user\nhh <think><bos><|im_end|>\n<|im_start|>assistant\n"
                         "<think>\n");
    CHECK(p.starts_thinking);
    CHECK_OK(chat_tokenize(v, &p, false, &ids, &e), e);
    CHECK_EQ(ids.at[0], START); /* and no BOS before it */
    int n_thinks = 0;
    for (int64_t i = 0; i < ids.n; i++)
        n_thinks += ids.at[i] == THINK;
    CHECK_EQ(n_thinks, 1); /* the template's, not the user's */
}

static bool collect(void *user, const answer_event *ev)
{
    str_printf(user, "%c(%s%s%s)", "RCT"[ev->kind], ev -> name ? ev -> name : "",
               ev->name ? " " : "", ev->text);
    return true;
}

TEST(a_second_family_has_its_answers_parsed)
{
    static const char tools[] = "[{\"function\":{\"name\":\"f\"}}]";
    static const char text[] = "hm<think>m</think>\n\nhi <|turn> <channel|>"
                               "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 3}}\n"
                               "</tool_call>";
    for (size_t cut = 1; cut < sizeof text; cut++) {
        answer_parser *a;
        AUTO(str_free) str s = {0};
        err e = {0};
        CHECK_OK(answer_open(&a, &toy_format, true, collect, &s, &e), e);
        CHECK_OK(answer_tools(a, tools, sizeof tools - 1, false, &e), e);
        CHECK_OK(answer_put(a, text, cut, &e), e);
        CHECK_OK(answer_put(a, text + cut, sizeof text - 1 - cut, &e), e);
        CHECK_OK(answer_end(a, false, &e), e);
        answer_close(a);
        CHECK(strstr(s.at, "R(") && strstr(s.at, "T(f {\"n\":3})"));
        CHECK(!strstr(s.at, "</think>")); /* Gemma's marks are plain text here */
        CHECK(strstr(s.at, "<|turn>") || strstr(s.at, "C("));
    }
}

TEST(a_second_family_has_its_calls_forced)
{
    static const char tools[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,"
        "\"parameters\":{\"properties\":{\"n\":{\"type\":\"integer\"}},"
        "\"required\":[\"n\"]}}}]";
    static const char call[] = "{\"name\": \"f\", \"arguments\": {\"n\":3}}";
    const grammar_setting how = {.answer = &syntax, .thought = THOUGHT_INSIDE};
    const grammar_tools o = {.tools = tools, .n_tools = sizeof tools - 1, .calls = CALLS_MUST};
    AUTO_PTR(vocab_close) vocab *v = toy_words(false);
    grammar *g;
    token_tree *t;
    matcher *m;
    grammar_run r = {0};
    bool ok;
    err e = {0};
    CHECK_OK(grammar_from_tools(&g, &o, &how, &e), e);
    CHECK_OK(token_tree_open(&t, v, &e), e);
    CHECK_OK(matcher_open(&m, g, t, &e), e);
    CHECK_OK(grammar_begin(&r, m, &e), e);
    CHECK_OK(grammar_accept_bytes(&r, "hm", 2, &ok, &e), e);
    const int32_t marks[] = {THINK_END, CALL_OPEN};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(grammar_accept(&r, marks[i], &ok, &e), e);
        CHECK(ok);
    }
    CHECK_OK(grammar_accept_bytes(&r, call, sizeof call - 1, &ok, &e), e);
    CHECK(ok && !grammar_may_end(&r));
    CHECK_OK(grammar_accept(&r, CALL_CLOSE, &ok, &e), e);
    CHECK(ok && grammar_may_end(&r));
    grammar_end(&r);
    matcher_close(m);
    token_tree_close(t);
    grammar_close(g);
}

/* So that files with random weights converse as the published ones do. */
TEST(made_up_vocabularies_have_the_landmarks_of_a_template)
{
    int n_without = 0;
    for (const text_family *const *f = text_families; *f; f++)
        for (const made_words *k = (*f)->made; k && k->arch; k++) {
            const char *t = k->template;
            CHECK_MSG(!t || (*f)->recognise(t, strlen(t)), "%s", k->arch);
            n_without += !t;
        }
    CHECK_EQ(n_without, 0);
}
