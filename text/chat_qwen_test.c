/* chat_qwen_test.c - prompts of the Qwen and Laguna formats against Jinja2's.
 *
 * tests/data/chat/qwen.jsonl is made by tools/chat_fixtures_qwen.py from the published templates.
 * It holds a hash of each text; the script prints the text of a line.
 */
#include "tests/chat_replay.h"
#include "tests/test.h"
#include "text/laguna.h"
#include "text/qwen.h"
#include "base/map.h"
#include "base/mem.h"

static const replay_template templates[] = {
    {"Qwen-Qwen3-0.6B.jinja", &qwen_formats[QWEN_3]},
    {"Qwen3-Coder.jinja", &qwen_formats[QWEN_3_CODER]},
    {"Qwen3.5-4B.jinja", &qwen_formats[QWEN_35]},
    {"Qwen3.6.jinja", &qwen_formats[QWEN_36]},
    {"Qwen3.8.jinja", &qwen_formats[QWEN_38]},
    {"Qwen3-VL-Thinking.jinja", &qwen_formats[QWEN_3_OPENS]},
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
    chat_recognised(templates, N_TEMPLATES);
    for (int i = 0; others[i]; i++) {
        snprintf(path, sizeof path, "tests/data/chat/%s", others[i]);
        CHECK_OK(file_read_all(test_path(path), 1 << 20, &text, &n, &e), e);
        CHECK(!chat_format_of(&qwen_text, text, n) && !chat_format_of(&laguna_text, text, n));
        mem_free(text);
    }
    const char *chatml = "{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}";
    CHECK(!chat_format_of(&qwen_text, chatml, strlen(chatml)));
    /* Qwen3-VL's, without thoughts; with thoughts that it does not open it is none of these. */
    const char *vl = "<|im_start|> <tool_call> <function-name> <tool_response> <|image_pad|>";
    const char *thinks =
        "<|im_start|> <tool_call> <function-name> <tool_response> <|image_pad|> </think>";
    CHECK(chat_format_of(&qwen_text, vl, strlen(vl)) == &qwen_formats[QWEN_3_VL]);
    CHECK(!chat_format_of(&qwen_text, thinks, strlen(thinks)));
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
        AUTO(chat_prompt_free) chat_prompt p;
        err e = {0};
        CHECK_OK(chat_render(&qwen_formats[QWEN_3], m, (size_t)n, NULL, 0, &opt, &p, &e), e);
        CHECK_MSG(!strstr(str_text(&p.text), "deep") == !row[i].result, "%s: %s", row[i].text,
                  str_text(&p.text));
    }
}

static bool ends_with(const chat_prompt *p, const char *end)
{
    size_t n = strlen(end);
    return p->text.n >= n && !memcmp(p->text.at + p->text.n - n, end, n);
}

static void check_thought(const chat_prompt *p, const carat_chat_options *opt)
{
    bool asks = !opt->no_generation_prompt && !opt->continue_last;
    CHECK_EQ(p->starts_thinking,
             asks && (ends_with(p, "<think>\n") || ends_with(p, "<assistant>\n<think>") ||
                      ends_with(p, "<assistant><think>")));
}

TEST(prompts_of_qwen_and_laguna_are_what_jinja_renders)
{
    chat_replay("tests/data/chat/qwen.jsonl", templates, N_TEMPLATES, 200, check_thought);
}
