/* chat_others_test.c - prompts of gpt-oss, Llama 3 and Gemma 3 against Jinja2's.
 *
 * tests/data/chat/others.jsonl is made by tools/chat_fixtures_others.py from the published
 * templates. It holds a hash of each text; the script prints the text of a line.
 */
#include "tests/test.h"
#include "tests/chat_replay.h"
#include "text/gemma3.h"
#include "text/gpt_oss.h"
#include "text/llama.h"
#include "text/mistral.h"

#include <time.h>

static const replay_template templates[] = {
    {"openai-gpt-oss-120b.jinja", &harmony_format},
    {"Meta-Llama-3-8B-Instruct.jinja", &llama_formats[LLAMA_3]},
    {"meta-llama-Llama-3.1-8B-Instruct.jinja", &llama_formats[LLAMA_31]},
    {"meta-llama-Llama-3.2-3B-Instruct.jinja", &llama_formats[LLAMA_32]},
    {"google-gemma-3.jinja", &gemma3_format}};
enum { N_TEMPLATES = sizeof templates / sizeof *templates };

TEST(prompts_of_other_families_are_what_jinja_renders)
{
    chat_replay("tests/data/chat/others.jsonl", templates, N_TEMPLATES, 60, NULL);
}

TEST(templates_of_other_families_are_recognised)
{
    chat_recognised(templates, N_TEMPLATES);
}

/* What the template leaves out, or cannot write. */
TEST(harmony_writes_what_its_template_cannot)
{
#define CALL(id, name) "{\"id\":\"" id "\",\"function\":{\"name\":\"" name "\",\"arguments\":\"\"}}"
#define BEFORE "[{\"role\":\"user\",\"content\":\"q\"},"
#define CALLS                                                                                      \
    BEFORE "{\"role\":\"assistant\",\"reasoning\":\"why\",\"content\":\"plan\",\"tool_calls\":"    \
           "[" CALL("a", "f") "," CALL(                                                            \
               "b", "g") "]},{\"role\":\"tool\",\"tool_call_id\":\"b\",\"content\":\"2\"},"        \
                         "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"1\"}"
#define WROTE                                                                                      \
    "<|start|>assistant<|channel|>commentary<|message|>plan<|end|>"                                \
    "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>"             \
    "<|start|>assistant to=functions.g<|channel|>commentary json<|message|>{}<|call|>"             \
    "<|start|>functions.g to=assistant<|channel|>commentary<|message|>\"2\"<|end|>"                \
    "<|start|>functions.f to=assistant<|channel|>commentary<|message|>\"1\"<|end|>"
#define THOUGHT "<|start|>assistant<|channel|>analysis<|message|>why<|end|>"
#define DONE ",{\"role\":\"assistant\",\"content\":\"done\"}]"
    static const struct {
        const char *messages, *want;
        carat_chat_options opt;
    } cases[] = {
        {CALLS "]", THOUGHT WROTE, {.thinking = true}},
        {CALLS DONE, WROTE, {.thinking = true}},
        {CALLS DONE, THOUGHT WROTE, {.thinking = true, .preserve_thinking = true}},
        {CALLS "]", WROTE, {.thinking = true, .drop_thinking = true}},
        {BEFORE "{\"role\":\"user\",\"content\":\"b\"}]",
         "Reasoning: low",
         {.thinking = true, .reasoning_effort = "minimal"}},
        {BEFORE "{\"role\":\"user\",\"content\":\"b\"}]", "Current date: 20", {.thinking = true}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO(chat_prompt_free) chat_prompt p = {0};
        err e = {0};
        CHECK_OK(chat_render(&harmony_format, cases[i].messages, strlen(cases[i].messages), NULL, 0,
                             &cases[i].opt, &p, &e),
                 e);
        CHECK_MSG(strstr(p.text.at, cases[i].want), "case %zu: %s", i, p.text.at);
        CHECK((strstr(p.text.at, "why") != NULL) == (strstr(cases[i].want, "why") != NULL));
    }
}

TEST(harmony_refuses_in_plain_words)
{
    static const struct {
        const char *messages, *tools, *word;
    } cases[] = {
        {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"tool\",\"content\":\"b\"}]", NULL,
         "messages[1] is the result of a tool, and no message"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]", NULL,
         "image"},
        {"[{\"role\":\"user\",\"content\":\"a\"}]",
         "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":"
         "{\"a\":{\"type\":\"string\",\"enum\":[{}]}}}}}]",
         "tools[0] (f): a type or an enum has an object"},
        {"[{\"role\":\"user\",\"content\":\"a\"}]",
         "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":"
         "{\"a\":{\"description\":3}}}}}]",
         "a description is"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        chat_prompt p = {0};
        err e = {0};
        carat_chat_options opt = {.thinking = true};
        CHECK(chat_render(&harmony_format, cases[i].messages, strlen(cases[i].messages),
                          cases[i].tools, cases[i].tools ? strlen(cases[i].tools) : 0, &opt, &p,
                          &e) != OK);
        CHECK_MSG(strstr(e.text, cases[i].word), "case %zu: %s", i, e.text);
        CHECK(!p.text.n);
    }
}

/* Who was called is known, not looked for from each result. */
TEST(many_results_of_a_call_take_no_quadratic_time)
{
    static const chat_format *const formats[] = {&harmony_format,
                                                 &mistral_formats[MISTRAL_V3_TEKKEN]};
    enum { RESULTS = 60000 };
    AUTO(str_free) str all = {0};
    str_puts(&all, "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"tool_calls\":"
                   "[{\"function\":{\"name\":\"f\"}}]}");
    for (int i = 0; i < RESULTS; i++)
        str_printf(&all, ",{\"role\":\"tool\",\"content\":\"%060d\"}", i);
    str_putc(&all, ']');
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        AUTO(chat_prompt_free) chat_prompt p;
        err e = {0};
        clock_t begin = clock();
        CHECK_OK(chat_render(formats[i], all.at, all.n, NULL, 0, NULL, &p, &e), e);
        double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
        CHECK_MSG(seconds < 3, "%s: %.1f s", formats[i]->name, seconds);
    }
}
