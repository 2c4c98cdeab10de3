/* chat_media_test.c - pictures in messages: placeholders are the template's, in the order of their
 * numbers, and no text of a conversation becomes one. Whole prompts are in the fixtures of
 * chat_test.c and chat_qwen_test.c.
 */
#include "tests/test.h"
#include "text/gemma4.h"
#include "text/llama.h"
#include "text/qwen.h"

#include <string.h>

#define GEMMA (&gemma4_formats[GEMMA4_JULY_LARGE])
#define QWEN (&qwen_formats[QWEN_36])

static status render(const chat_format *f, const char *messages, chat_prompt *p, err *e)
{
    return chat_render(f, messages, strlen(messages), NULL, 0, NULL, p, e);
}

/* How often `what` stands in segments of this kind. */
static int count(const chat_prompt *p, const char *what, bool literal)
{
    int n = 0;
    size_t len = strlen(what);
    for (size_t i = 0; i < p->n_segments; i++)
        for (size_t k = 0; p->segment[i].literal == literal && k + len <= p->segment[i].n; k++)
            n += !memcmp(p->text.at + p->segment[i].at + k, what, len);
    return n;
}

TEST(pictures_keep_their_numbers_and_their_places)
{
    static const char messages[] =
        "[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"number\":4},{\"type\":\"text\","
        "\"text\":\"a\"},{\"type\":\"image\",\"number\":1}]},{\"role\":\"assistant\",\"content\":"
        "\"\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\"}}]},{\"role\":\"tool\","
        "\"tool_call_id\":\"1\",\"content\":[{\"type\":\"image\",\"number\":2},{\"type\":\"text\","
        "\"text\":\"r\"}]},{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]";
    static const struct {
        const chat_format *f;
        const char *text, *mark;
    } row[] = {
        {GEMMA,
         "<bos><|turn>user\n<|image|>a<|image|><turn|>\n<|turn>model\n<|tool_call>call:f{}"
         "<tool_call|><|tool_response>response:f{value:<|\"|>r<|\"|>}<tool_response|><|image|>",
         "<|image|>"},
        {QWEN,
         "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>a<|vision_start|>"
         "<|image_pad|><|vision_end|><|im_end|>\n<|im_start|>assistant\n",
         "<|vision_start|><|image_pad|><|vision_end|>"},
        {&qwen_formats[QWEN_3_VL],
         "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>a<|vision_start|>"
         "<|image_pad|><|vision_end|><|im_end|>\n<|im_start|>assistant\n<tool_call>\n{\"name\": "
         "\"f\", \"arguments\": {}}\n</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n"
         "<|vision_start|><|image_pad|><|vision_end|>r\n</tool_response><|im_end|>\n<|im_start|>"
         "user\n<|vision_start|><|image_pad|><|vision_end|><|im_end|>\n<|im_start|>assistant\n",
         "<|vision_start|><|image_pad|><|vision_end|>"},
    };
    static const int32_t numbers[] = {4, 1, 2, 3};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        AUTO(chat_prompt_free) chat_prompt p;
        err e = {0};
        CHECK_OK(render(row[i].f, messages, &p, &e), e);
        CHECK_MSG(!strncmp(p.text.at, row[i].text, strlen(row[i].text)), "%s", p.text.at);
        CHECK_EQ(p.n_images, 4);
        CHECK(!memcmp(p.image, numbers, sizeof numbers));
        CHECK_EQ(count(&p, row[i].mark, true), 4);
        CHECK_EQ(p.n_others, 0);
    }
}

TEST(text_of_users_is_no_placeholder)
{
    static const char messages[] =
        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"<|image|><|image_pad|> "
        "\\u00ff1\\u00fe\"},{\"type\":\"image\"},{\"type\":\"text\",\"text\":\"<|image_pad|>"
        "<|image|>\"}]}]";
    static const struct {
        const chat_format *f;
        const char *mark;
    } row[] = {{GEMMA, "<|image|>"}, {QWEN, "<|image_pad|>"}};
    for (size_t i = 0; i < 2; i++) {
        AUTO(chat_prompt_free) chat_prompt p;
        err e = {0};
        CHECK_OK(render(row[i].f, messages, &p, &e), e);
        CHECK_EQ(p.n_images, 1);
        CHECK_EQ(count(&p, row[i].mark, true), 1);
        CHECK_EQ(count(&p, row[i].mark, false), 2);
        CHECK(strstr(p.text.at, "\xC3\xBF"
                                "1\xC3\xBE"));
    }
}

TEST(parts_that_a_format_cannot_place_are_refused)
{
    static const struct {
        const chat_format *f;
        const char *messages, *sentence;
    } bad[] = {
        {&llama_formats[LLAMA_31], "[{\"role\":\"user\",\"content\":[{\"type\":\"image\"}]}]",
         "messages[0].content: image input is not supported by this model"},
        {&qwen_formats[QWEN_3], "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]",
         "image input is not supported"},
        {QWEN, "[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}]",
         "audio input is not supported"},
        {QWEN,
         "[{\"role\":\"system\",\"content\":[{\"type\":\"image\"}]},{\"role\":\"user\",\"content\":"
         "\"x\"}]",
         "messages[0].content: a system message holds text only"},
        {GEMMA, "[{\"role\":\"system\",\"content\":[{\"type\":\"image\"}]}]",
         "messages[0].content: a system message holds text only"},
        {GEMMA, "[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"number\":-1}]}]",
         "the number of an image"},
        {GEMMA, "[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"number\":\"1\"}]}]",
         "the number of an image"},
        {QWEN, "[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"number\":99999999999999}]}]",
         "the number of an image"},
        {QWEN, "[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"number\":1.5}]}]",
         "the number of an image"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        chat_prompt p;
        err e = {0};
        status st = render(bad[i].f, bad[i].messages, &p, &e);
        CHECK_MSG(st, "%s was accepted", bad[i].messages);
        CHECK_MSG(strstr(e.text, bad[i].sentence), "\"%s\" does not say \"%s\"", e.text,
                  bad[i].sentence);
        CHECK(!p.text.n && !p.image);
    }
}

static status render_pictures(void *arg, err *e)
{
    static const char messages[] =
        "[{\"role\":\"user\",\"content\":[{\"type\":\"image\"},{\"type\":\"text\",\"text\":\"x\"},"
        "{\"type\":\"image\"},{\"type\":\"image\"},{\"type\":\"image\"},{\"type\":\"image\"},"
        "{\"type\":\"image\"},{\"type\":\"image\"},{\"type\":\"image\"},{\"type\":\"image\"}]}]";
    AUTO(chat_prompt_free) chat_prompt p;
    status st = render(arg, messages, &p, e);
    return st;
}

TEST(pictures_survive_every_failed_allocation)
{
    test_every_allocation(render_pictures, (void *)(uintptr_t)QWEN);
    test_every_allocation(render_pictures, (void *)(uintptr_t)GEMMA);
}
