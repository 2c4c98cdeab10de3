/* chat_test.c - prompts against Jinja2's, segments, hostile requests.
 *
 * tests/data/chat/fixtures.jsonl is made by tools/chat_fixtures.py from the published templates.
 */
#include "tests/test.h"
#include "tests/toy_vocab.h"
#include "text/chat_int.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"

static const struct {
    const char *name, *path;
    chat_format f;
} templates[] = {
    {"first", "google-gemma-4-31B-it-interleaved.jinja", CHAT_GEMMA4_APRIL_FIRST},
    {"late", "google-gemma-4-31B-it.jinja", CHAT_GEMMA4_APRIL_LATE},
    {"small", "gemma4_e2b_chat_template.jinja2", CHAT_GEMMA4_JULY_SMALL},
    {"large", "gemma4_31b_chat_template.jinja2", CHAT_GEMMA4_JULY_LARGE},
};

TEST(templates_are_recognised)
{
    for (int i = 0; i < 4; i++) {
        char path[200], *text;
        size_t n;
        err e = {0};
        snprintf(path, sizeof path, "tests/data/chat/%s", templates[i].path);
        CHECK_OK(file_read_all(test_path(path), 1 << 20, &text, &n, &e), e);
        CHECK_EQ(chat_format_of(text, n), templates[i].f);
        mem_free(text);
    }
    const char *chatml = "{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}";
    CHECK_EQ(chat_format_of(chatml, strlen(chatml)), CHAT_NONE);
    CHECK_EQ(chat_format_of(NULL, 0), CHAT_NONE);
}

/* The segments tile the text. */
static void check_segments(const chat_prompt *p)
{
    size_t at = 0;
    for (size_t i = 0; i < p->n_segments; i++) {
        CHECK_EQ(p->segment[i].at, at);
        CHECK(p->segment[i].n > 0);
        at += p->segment[i].n;
    }
    CHECK_EQ(at, p->text.n);
    CHECK(utf8_valid(str_text(&p->text), p->text.n));
    CHECK(!memcmp(p->text.at, "<bos>", 5));
}

static void show_difference(const char *got, const char *want, char *out, size_t n)
{
    size_t i = 0;
    while (got[i] && got[i] == want[i])
        i++;
    i = i > 40 ? i - 40 : 0;
    snprintf(out, n, "at byte %zu: ...%.160s\n  expected ...%.160s", i, got + i, want + i);
}

static void check_case(int line, const jtree *c, int t, const vocab *v)
{
    const jtree *want = jtree_get(jtree_get(c, "want"), templates[t].name);
    const jtree *large = jtree_get(jtree_get(c, "want"), "large");
    const jtree *m = jtree_get(c, "messages"), *tools = jtree_get(c, "tools");
    carat_chat_options opt = {.thinking = jtree_truthy(jtree_get(c, "thinking")),
                              .preserve_thinking = jtree_truthy(jtree_get(c, "preserve")),
                              .no_generation_prompt = !jtree_truthy(jtree_get(c, "generate"))};
    chat_prompt p;
    err e = {0};
    str text = {0};
    char diff[500];
    if (!want)
        return;
    status st = chat_render(templates[t].f, m->s, m->n, tools ? tools->s : NULL,
                            tools ? tools->n : 0, &opt, &p, &e);
    CHECK_MSG(!st, "line %d, template %s: %s", line, templates[t].name, e.text);
    if (want->kind == JTREE_STRING) {
        str_put(&text, want->s, want->n);
    } else {
        const jtree *front = want->first, *middle = front->next, *back = middle->next;
        str_put(&text, large->s, strtoul(front->s, NULL, 10));
        str_put(&text, middle->s, middle->n);
        size_t n_back = strtoul(back->s, NULL, 10);
        str_put(&text, large->s + large->n - n_back, n_back);
    }
    show_difference(str_text(&p.text), str_text(&text), diff, sizeof diff);
    CHECK_MSG(text.n == p.text.n && !memcmp(text.at, p.text.at, text.n), "line %d, template %s %s",
              line, templates[t].name, diff);
    check_segments(&p);
    static const char open[] = "<|channel>thought\n";
    CHECK_EQ(p.starts_thinking, p.text.n >= sizeof open - 1 && !opt.no_generation_prompt &&
                                    !strcmp(p.text.at + p.text.n - (sizeof open - 1), open));

    /* One BOS; and what the conversation says is never structure. */
    id_list ids = {0};
    CHECK_OK(chat_tokenize(v, &p, false, &ids, &e), e);
    CHECK_EQ(ids.at[0], vocab_bos(v));
    int64_t n_turns = 0, n_marked = 0;
    for (int64_t i = 1; i < ids.n; i++) {
        CHECK(ids.at[i] != vocab_bos(v));
        n_turns += ids.at[i] == vocab_find(v, "<|turn>", 7);
    }
    for (size_t i = 0; i < p.n_segments; i++)
        for (size_t k = 0; p.segment[i].literal && k + 7 <= p.segment[i].n; k++)
            n_marked += !memcmp(p.text.at + p.segment[i].at + k, "<|turn>", 7);
    CHECK_EQ(n_turns, n_marked);
    id_list_free(&ids);
    str_free(&text);
    chat_prompt_free(&p);
}

TEST(prompts_are_what_jinja_renders)
{
    char *text;
    size_t n;
    err e = {0};
    int line = 0, compared = 0;
    toy *t = toy_gemma();
    CHECK_OK(file_read_all(test_path("tests/data/chat/fixtures.jsonl"), 4 << 20, &text, &n, &e), e);
    for (char *at = text, *end; at < text + n; at = end + 1) {
        arena mem = {0};
        const jtree *c;
        end = memchr(at, '\n', (size_t)(text + n - at));
        CHECK(end);
        line++;
        CHECK_OK(jtree_parse(at, (size_t)(end - at), "fixtures", 10, &mem, &c, &e), e);
        for (int k = 0; k < 4; k++) {
            check_case(line, c, k, t->v);
            compared += jtree_get(jtree_get(c, "want"), templates[k].name) != NULL;
        }
        arena_free(&mem);
    }
    CHECK(compared > 700);
    mem_free(text);
    toy_free(t);
}
