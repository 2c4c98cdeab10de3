/* llama_test.c - conversations, against what jinja2 makes of the templates of Llama 3 to 3.3,
 * without a clock; the rows with continue_last are the template's text with its last turn open.
 */
#include "text/llama.h"
#include "tests/test.h"
#include "text/chat.h"

#include <string.h>

TEST(llama_prompts)
{
    static const struct {
        const chat_format *f;
        const char *messages, *want;
        carat_chat_options opt;
    } cases[] = {
        {&llama3_format,
         "[{\"role\":\"user\",\"content\":\" hi \\n\"}]",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|><|start_header_"
         "id|>assistant<|end_header_id|>\n\n",
         {0}},
        {&llama31_format,
         "[{\"role\":\"user\",\"content\":\" hi \\n\"}]",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
         "December 2023\nToday Date: 26 Jul "
         "2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|><|start_header_"
         "id|>assistant<|end_header_id|>\n\n",
         {0}},
        {&llama3_format,
         "[{\"role\":\"system\",\"content\":\" Be brief.\\n\"},{\"role\":\"user\",\"content\":\"a "
         "<|eot_id|>\"},{\"role\":\"assistant\",\"content\":\" b "
         "\"},{\"role\":\"user\",\"content\":\"c\"}]",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe "
         "brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\na "
         "<|eot_id|><|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|><|start_"
         "header_id|>user<|end_header_id|>\n\nc<|eot_id|><|start_header_id|>assistant<|end_header_"
         "id|>\n\n",
         {0}},
        {&llama31_format,
         "[{\"role\":\"system\",\"content\":\" Be brief.\\n\"},{\"role\":\"user\",\"content\":\"a "
         "<|eot_id|>\"},{\"role\":\"assistant\",\"content\":\" b "
         "\"},{\"role\":\"user\",\"content\":\"c\"}]",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
         "December 2023\nToday Date: 26 Jul 2024\n\nBe "
         "brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\na "
         "<|eot_id|><|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|><|start_"
         "header_id|>user<|end_header_id|>\n\nc<|eot_id|><|start_header_id|>assistant<|end_header_"
         "id|>\n\n",
         {0}},
        {&llama3_format,
         "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"s "
         "\"},{\"role\":\"assistant\",\"content\":\"\"}]",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_"
         "id|>system<|end_header_id|>\n\ns<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
         "\n\n<|eot_id|>",
         {.no_generation_prompt = true}},
        {&llama31_format,
         "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"s "
         "\"},{\"role\":\"assistant\",\"content\":\"\"}]",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
         "December 2023\nToday Date: 26 Jul "
         "2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_"
         "id|>system<|end_header_id|>\n\ns<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
         "\n\n<|eot_id|>",
         {.no_generation_prompt = true}},
        {&llama3_format,
         "[{\"role\":\"system\",\"content\":\"\"}]",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n<|eot_id|><|start_header_"
         "id|>assistant<|end_header_id|>\n\n",
         {0}},
        {&llama31_format,
         "[{\"role\":\"system\",\"content\":\"\"}]",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
         "December 2023\nToday Date: 26 Jul "
         "2024\n\n<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
         {0}},
        {&llama3_format,
         "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"}]",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_"
         "id|>user<|end_header_id|>\n\nb<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
         "\n\n",
         {0}},
        {&llama31_format,
         "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"}]",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
         "December 2023\nToday Date: 26 Jul "
         "2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_"
         "id|>user<|end_header_id|>\n\nb<|eot_id|><|start_header_id|>assistant<|end_header_id|>"
         "\n\n",
         {0}},
        {&llama3_format,
         "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\" b \"}]",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_"
         "id|>assistant<|end_header_id|>\n\nb ",
         {.continue_last = true}},
        {&llama31_format,
         "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\" b \"}]",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: "
         "December 2023\nToday Date: 26 Jul "
         "2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_"
         "id|>assistant<|end_header_id|>\n\nb ",
         {.continue_last = true}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        chat_prompt p = {0};
        err e = {0};
        CHECK_OK(chat_render(cases[i].f, cases[i].messages, strlen(cases[i].messages), NULL, 0,
                             &cases[i].opt, &p, &e),
                 e);
        CHECK_STR(p.text.at, cases[i].want);
        chat_prompt_free(&p);
    }
}

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
    CHECK(chat_format_of(&llama_text, turn, sizeof turn - 1) == &llama3_format);
    CHECK(chat_format_of(&llama_text, dated, sizeof dated - 1) == &llama31_format);
    CHECK(!chat_format_of(&llama_text, other, sizeof other - 1));
    CHECK(!chat_format_of(&llama_text, "", 0));
}

TEST(llama_refuses_tools_and_calls)
{
    static const struct {
        const char *messages, *tools, *word;
    } cases[] = {
        {"[{\"role\":\"user\",\"content\":\"a\"}]",
         "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", "no tools in Llama's"},
        {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"tool\",\"content\":\"b\"}]", NULL,
         "no calls and results"},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]", NULL,
         "image"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        chat_prompt p = {0};
        err e = {0};
        CHECK(chat_render(&llama31_format, cases[i].messages, strlen(cases[i].messages),
                          cases[i].tools, cases[i].tools ? strlen(cases[i].tools) : 0, NULL, &p,
                          &e) != OK);
        CHECK_MSG(strstr(e.text, cases[i].word), "%s", e.text);
        CHECK(!p.text.n);
    }
}
