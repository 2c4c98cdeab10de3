/* llama_test.c - templates that are none of Llama's, and what its formats refuse. Prompts are
 * compared in chat_others_test.c.
 */
#include "text/llama.h"
#include "tests/test.h"
#include "text/chat.h"

#include <string.h>

TEST(llama_templates_are_known_by_the_end_of_a_turn)
{
    static const char turn[] =
        "{{- '<|start_header_id|>' + message['role'] + "
        "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}";
    static const char dated[] =
        "{{- \"Cutting Knowledge Date: December 2023\\n\" }}"
        "{{- '<|start_header_id|>' + message['role'] + "
        "'<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}";
    static const char other[] = "<|start_header_id|>{{ message.role }}<|end_header_id|>";
    CHECK(chat_format_of(&llama_text, turn, sizeof turn - 1) == &llama_formats[LLAMA_3]);
    CHECK(chat_format_of(&llama_text, dated, sizeof dated - 1) == &llama_formats[LLAMA_31]);
    CHECK(!chat_format_of(&llama_text, other, sizeof other - 1));
    CHECK(!chat_format_of(&llama_text, "", 0));
}

TEST(llama_refuses_in_plain_words)
{
    static const char tool[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]";
    static const struct {
        int format;
        const char *messages, *tools, *word;
    } cases[] = {
        {LLAMA_3, "[{\"role\":\"user\",\"content\":\"a\"}]", tool,
         "Llama 3's chat format has none"},
        {LLAMA_3, "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"tool\",\"content\":\"b\"}]",
         NULL, "no calls and results"},
        {LLAMA_31, "[{\"role\":\"system\",\"content\":\"a\"}]", tool, "must be the user's"},
        {LLAMA_31, "[{\"role\":\"user\",\"content\":\"a\"}]", "[{}]", "tools[0]"},
        {LLAMA_31, "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]",
         NULL, "image"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        chat_prompt p = {0};
        err e = {0};
        CHECK(chat_render(&llama_formats[cases[i].format], cases[i].messages,
                          strlen(cases[i].messages), cases[i].tools,
                          cases[i].tools ? strlen(cases[i].tools) : 0, NULL, &p, &e) != OK);
        CHECK_MSG(strstr(e.text, cases[i].word), "%s", e.text);
        CHECK(!p.text.n);
    }
}

TEST(dates_of_prompts_are_checked)
{
    static const char hi[] = "[{\"role\":\"user\",\"content\":\"a\"}]";
    static const char *const bad[] = {"",           "2026",      "2026-13-01", "2026-00-01",
                                      "2026-01-32", "26-01-01x", "2026-01-01 "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        carat_chat_options opt = {.date = bad[i]};
        chat_prompt p = {0};
        err e = {0};
        CHECK(chat_render(&llama_formats[LLAMA_32], hi, sizeof hi - 1, NULL, 0, &opt, &p, &e) ==
              E_ARG);
    }
}
