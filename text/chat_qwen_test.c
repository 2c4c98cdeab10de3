/* chat_qwen_test.c - prompts of the Qwen and Laguna formats against Jinja2's.
 *
 * tests/data/chat/qwen.jsonl is made by tools/chat_fixtures_qwen.py from the published templates.
 * It holds a hash of each text; the script prints the text of a line.
 */
#include "tests/test.h"
#include "text/laguna.h"
#include "text/qwen.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <inttypes.h>

static const struct {
    const char *path;
    const chat_format *f;
} templates[] = {
    {"Qwen-Qwen3-0.6B.jinja", &qwen_formats[QWEN_3]},
    {"Qwen3-Coder.jinja", &qwen_formats[QWEN_3_CODER]},
    {"Qwen3.5-4B.jinja", &qwen_formats[QWEN_35]},
    {"Qwen3.6.jinja", &qwen_formats[QWEN_36]},
    {"Qwen3.8.jinja", &qwen_formats[QWEN_38]},
    {"laguna.jinja", &laguna_formats[LAGUNA_LINES]},
    {"laguna_v8_chat_template.jinja2", &laguna_formats[LAGUNA_COMPACT]},
};
enum { N_TEMPLATES = sizeof templates / sizeof *templates };

TEST(templates_of_qwen_and_laguna_are_recognised)
{
    static const char *const others[] = {"google-gemma-4-31B-it.jinja",
                                         "gemma4_e2b_chat_template.jinja2", NULL};
    char path[200], *text;
    size_t n;
    err e = {0};
    for (int i = 0; i < N_TEMPLATES; i++) {
        const chat_format *f = templates[i].f;
        snprintf(path, sizeof path, "tests/data/chat/%s", templates[i].path);
        CHECK_OK(file_read_all(test_path(path), 1 << 20, &text, &n, &e), e);
        for (const text_family *const *x = text_families; *x; x++)
            CHECK(chat_format_of(*x, text, n) == (*x == f->family ? f : NULL));
        mem_free(text);
    }
    for (int i = 0; others[i]; i++) {
        snprintf(path, sizeof path, "tests/data/chat/%s", others[i]);
        CHECK_OK(file_read_all(test_path(path), 1 << 20, &text, &n, &e), e);
        CHECK(!chat_format_of(&qwen_text, text, n) && !chat_format_of(&laguna_text, text, n));
        mem_free(text);
    }
    const char *chatml = "{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}";
    CHECK(!chat_format_of(&qwen_text, chatml, strlen(chatml)));
    CHECK(!chat_format_of(&qwen_text, NULL, 0) && !chat_format_of(&laguna_text, NULL, 0));
}

/* Thoughts before the last question are left out. A user's message is a question, and not the
 * result of a tool, unless one mark begins it and the other one ends it. */
TEST(messages_with_half_the_marks_of_a_result_are_questions)
{
    static const struct {
        const char *text;
        bool result;
    } row[] = {{"<tool_response>\nx\n</tool_response>", true},
               {"<tool_response></tool_response>", true},
               {"<tool_response>\nx", false},
               {"x\n</tool_response>", false},
               {"<tool_response>", false},
               {"</tool_response>", false},
               {"x<tool_response></tool_response>", false},
               {"<tool_response></tool_response>x", false},
               {"", false}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char m[500];
        int n = snprintf(
            m, sizeof m,
            "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\","
            "\"reasoning_content\":\"deep\"},{\"role\":\"user\",\"content\":\"%s\"}]",
            row[i].text);
        for (char *c = m; (c = strchr(c, '\n'));)
            *c = ' ';
        carat_chat_options opt = {.thinking = true};
        chat_prompt p;
        err e = {0};
        CHECK_OK(chat_render(&qwen_formats[QWEN_3], m, (size_t)n, NULL, 0, &opt, &p, &e), e);
        CHECK_MSG(!strstr(str_text(&p.text), "deep") == !row[i].result, "%s: %s", row[i].text,
                  str_text(&p.text));
        chat_prompt_free(&p);
    }
}

static uint64_t fnv(const char *s, size_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * UINT64_C(0x100000001b3);
    return h;
}

static void check_tiles(const chat_prompt *p)
{
    size_t at = 0;
    for (size_t i = 0; i < p->n_segments; i++) {
        CHECK_EQ(p->segment[i].at, at);
        CHECK(p->segment[i].n > 0);
        at += p->segment[i].n;
    }
    CHECK_EQ(at, p->text.n);
    CHECK(utf8_valid(str_text(&p->text), p->text.n));
}

static bool ends_with(const chat_prompt *p, const char *end)
{
    size_t n = strlen(end);
    return p->text.n >= n && !memcmp(p->text.at + p->text.n - n, end, n);
}

/* want: the hash of the text, or null. */
static bool check_line(int line, const jtree *c, const jtree *want, const chat_format *f)
{
    const jtree *m = jtree_get(c, "messages"), *tools = jtree_get(c, "tools");
    const jtree *effort = jtree_get(c, "effort");
    carat_chat_options opt = {.thinking = jtree_truthy(jtree_get(c, "thinking")),
                              .preserve_thinking = jtree_truthy(jtree_get(c, "preserve")),
                              .drop_thinking = jtree_truthy(jtree_get(c, "drop")),
                              .continue_last = jtree_truthy(jtree_get(c, "continue")),
                              .no_generation_prompt = !jtree_truthy(jtree_get(c, "generate")),
                              .reasoning_effort = effort ? effort->s : NULL};
    chat_prompt p;
    err e = {0};
    status st =
        chat_render(f, m->s, m->n, tools ? tools->s : NULL, tools ? tools->n : 0, &opt, &p, &e);
    if (want->kind == JTREE_NULL) {
        CHECK_MSG(st && *e.text, "line %d, template %s: not refused", line, f->name);
        return false;
    }
    char hash[20];
    CHECK_MSG(!st, "line %d, template %s: %s", line, f->name, e.text);
    snprintf(hash, sizeof hash, "%016" PRIx64, fnv(p.text.at, p.text.n));
    CHECK_MSG(!strcmp(hash, want->s), "line %d, template %s: another text than Jinja's:\n%s", line,
              f->name, p.text.at);
    check_tiles(&p);
    bool asks = !opt.no_generation_prompt && !opt.continue_last;
    CHECK_EQ(p.starts_thinking,
             asks && (ends_with(&p, "<think>\n") || ends_with(&p, "<assistant>\n<think>") ||
                      ends_with(&p, "<assistant><think>")));
    chat_prompt_free(&p);
    return true;
}

TEST(prompts_of_qwen_and_laguna_are_what_jinja_renders)
{
    char *text;
    size_t n;
    err e = {0};
    int line = 0, compared[N_TEMPLATES] = {0};
    CHECK_OK(file_read_all(test_path("tests/data/chat/qwen.jsonl"), 4 << 20, &text, &n, &e), e);
    for (char *at = text, *end; at < text + n; at = end + 1) {
        arena mem = {0};
        const jtree *c;
        end = memchr(at, '\n', (size_t)(text + n - at));
        CHECK(end);
        line++;
        CHECK_OK(jtree_parse(at, (size_t)(end - at), "fixtures", 10, &mem, &c, &e), e);
        const jtree *want = jtree_get(c, "want")->first;
        for (int k = 0; k < N_TEMPLATES; k++, want = want->next)
            compared[k] += check_line(line, c, want, templates[k].f);
        arena_free(&mem);
    }
    for (int k = 0; k < N_TEMPLATES; k++)
        CHECK(compared[k] >= 200);
    mem_free(text);
}
