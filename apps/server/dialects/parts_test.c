/* parts_test.c - pictures in requests of every dialect: where they stand in the messages, what they
 * cost, and what is refused by the client's own name of the field.
 */
#include "apps/server/dialects/parts.h"
#include "apps/server/dialects/request.h"
#include "tests/talk_json.h"
#include "tests/test.h"

#include <string.h>

#define DOT                                                                                        \
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5Erk"   \
    "Jggg"
#define URI "data:image/png;base64," DOT
#define N(n) "{\"type\":\"image\",\"number\":" #n "}"
#define T(t) "{\"type\":\"text\",\"text\":\"" t "\"}"

static const request_limits sees = {.n_vocab = 1000, .images = true};

TEST(every_dialect_brings_pictures)
{
    static const struct {
        api_kind api;
        int32_t n, tokens[3];
        const char *body, *messages;
    } row[] = {
        {API_CHAT,
         3,
         {0, 70, 1120},
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{"
         "\"type\":\"image_url\",\"image_url\":\"" URI "\"},{\"type\":\"image_url\",\"image_url\":"
         "{\"url\":\"" URI "\",\"detail\":\"low\"}}]},{\"role\":\"user\",\"content\":[{\"type\":"
         "\"image_url\",\"image_url\":{\"url\":\"" URI "\",\"detail\":\"high\"}}]}]}",
         "[{\"role\":\"user\",\"content\":[" T("a") "," N(0) "," N(1) "]},{\"role\":\"user\","
                                                                      "\"content\":[" N(2) "]}]"},
        {API_RESPONSES,
         2,
         {280, -1},
         "{\"image_tokens\":280,\"input\":[{\"role\":\"user\",\"content\":[{\"type\":"
         "\"input_image\",\"image_url\":\"" URI "\",\"detail\":\"auto\"},{\"type\":\"input_text\","
         "\"text\":\"what?\"}]},{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\","
         "\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":[{"
         "\"type\":\"input_text\",\"text\":\"r\"},{\"type\":\"input_image\",\"image_url\":\"" URI
         "\",\"detail\":\"original\"}]}]}",
         "[{\"role\":\"user\",\"content\":[" N(0) "," T(
             "what?") "]},{\"role\":\"assistant\","
                      "\"content\":\"\",\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\","
                      "\"function\":{"
                      "\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"tool_call_id\":"
                      "\"c\","
                      "\"content\":[" T("r") "," N(1) "]}]"},
        {API_MESSAGES,
         2,
         {-1, -1},
         "{\"image_tokens\":\"native\",\"max_tokens\":5,\"messages\":[{\"role\":\"user\","
         "\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image\",\"source\":{\"type\":"
         "\"base64\",\"media_type\":\"image/jpeg\",\"data\":\"" DOT "\"}},{\"type\":\"text\","
         "\"text\":\"b\"}]},{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":"
         "\"t\",\"name\":\"f\",\"input\":{}}]},{\"role\":\"user\",\"content\":[{\"type\":"
         "\"tool_result\",\"tool_use_id\":\"t\",\"content\":[{\"type\":\"image\",\"source\":{"
         "\"type\":\"url\",\"url\":\"" URI "\"}}]}]}]}",
         "[{\"role\":\"user\",\"content\":[" T("a") "," N(0) "," T(
             "b") "]},{\"role\":"
                  "\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"t\",\"type\":"
                  "\"function\","
                  "\"function\":{\"name\":\"f\",\"arguments\":{}}}]},{\"role\":\"tool\",\"tool_"
                  "call_id\":"
                  "\"t\",\"content\":[" N(1) "]}]"},
        {API_OLLAMA_CHAT,
         2,
         {140, 140},
         "{\"image_tokens\":140,\"messages\":[{\"role\":\"user\",\"content\":\"hi\",\"images\":["
         "\"" DOT "\",\"" URI "\"]}]}",
         "[{\"role\":\"user\",\"content\":[" N(0) "," N(1) "," T("hi") "]}]"},
        {API_OLLAMA_GENERATE,
         1,
         {0},
         "{\"prompt\":\"hi\",\"system\":\"s\",\"images\":[\"" DOT "\"]}",
         "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":[" N(0) "," T(
             "hi") "]}]"},
        {API_OLLAMA_GENERATE,
         1,
         {0},
         "{\"images\":[\"" DOT "\"]}",
         "[{\"role\":\"user\",\"content\":[" N(0) "]}]"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        AUTO(request_free) request rq = {0};
        problem p = {0};
        CHECK_MSG(request_parse(&rq, row[i].api, row[i].body, strlen(row[i].body), &sees, &p),
                  "%s: %s", row[i].body, p.text);
        CHECK_TALK(&rq.talk, row[i].messages);
        CHECK_EQ(rq.pictures.n, row[i].n);
        for (int32_t k = 0; k < row[i].n; k++)
            CHECK_EQ(rq.pictures.at[k].n_tokens, row[i].tokens[k]);
        CHECK_MSG(!rq.n_left_out, "%s", str_text(&rq.left_out));
    }
}

TEST(prompts_of_llama_server_have_marks_for_pictures)
{
    static const char body[] =
        "{\"prompt\":[{\"prompt_string\":\"a" PICTURE_MARK "b" PICTURE_MARK
        "\",\"multimodal_data\":"
        "[\"" DOT "\",\"" DOT "\"]},\"plain " PICTURE_MARK "\",{\"prompt_string\":\"" PICTURE_MARK
        "\",\"multimodal_data\":[\"" DOT "\"]}]}";
    AUTO(request_free) request rq = {0};
    problem p = {0};
    CHECK_MSG(request_parse(&rq, API_LLAMA, body, sizeof body - 1, &sees, &p), "%s", p.text);
    CHECK_EQ(rq.n_prompts, 3);
    CHECK_EQ(rq.pictures.n, 3);
    CHECK(rq.prompt[0].n_pictures == 2 && rq.prompt[0].first_picture == 0);
    CHECK(rq.prompt[1].n_pictures == 0);
    CHECK(rq.prompt[2].n_pictures == 1 && rq.prompt[2].first_picture == 2);
}

static void put_many(str *o, int n)
{
    str_puts(o, "{\"messages\":[{\"role\":\"user\",\"images\":[");
    for (int i = 0; i < n; i++)
        str_printf(o, "%s\"%s\"", i ? "," : "", DOT);
    str_puts(o, "]}]}");
}

TEST(pictures_of_requests_that_are_refused)
{
#define IN(part)                                                                                   \
    "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"\"}," part "]}]" \
    "}"
#define URL(url) "{\"type\":\"image_url\",\"image_url\":{\"url\":\"" url "\"}}"
    static const struct {
        api_kind api;
        bool blind;
        const char *body, *param, *sentence;
    } bad[] = {
        {API_CHAT, true, IN(URL(URI)), "messages[0].content[1]", "image input is not supported"},
        {API_CHAT, false, IN(URL("x.png")), "messages[0].content[1]", "neither a data URI"},
        {API_CHAT, false, IN(URL("data:text/plain;base64,aGk=")), "messages[0].content[1]",
         "type text/plain"},
        {API_CHAT, false, IN(URL("data:image/png;base64,iVBORw0KGgo=")), "messages[0].content[1]",
         "'messages[0].content[1]': "},
        {API_CHAT, false, IN(URL("http://example.com/a.png")), "messages[0].content[1]",
         "--media-urls"},
        {API_CHAT, false, IN(URL("file:///etc/passwd")), "messages[0].content[1]", "--media-path"},
        {API_CHAT, false, IN("{\"type\":\"image_url\"}"), "messages[0].content[1]", "without"},
        {API_CHAT, false, IN("{\"type\":\"image_url\",\"image_url\":{}}"), "messages[0].content[1]",
         "without"},
        {API_CHAT, false, IN("{\"type\":\"image\",\"number\":0}"), "messages[0].content[1]",
         "of type \"image\""},
        {API_CHAT, false, IN("{\"type\":\"input_audio\"}"), "messages[0].content[1]",
         "audio input is not supported"},
        {API_CHAT, false,
         IN("{\"type\":\"image_url\",\"image_url\":{\"url\":\"" URI "\",\"detail\":\"fine\"}}"),
         "messages[0].content[1]", "the detail fine"},
        {API_CHAT, false, "{\"image_tokens\":0,\"messages\":[]}", "image_tokens",
         "from 70 to 1120"},
        {API_CHAT, false,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":"
         "[" URL(URI) "]}]}",
         "messages[1]", "begins the answer"},
        {API_MESSAGES, false,
         IN("{\"type\":\"image\",\"source\":{\"type\":\"base64\",\"media_type\":\"application/"
            "pdf\","
            "\"data\":\"" DOT "\"}}"),
         "messages[0].content[1]", "media_type"},
        {API_MESSAGES, false,
         IN("{\"type\":\"image\",\"source\":{\"type\":\"file\",\"file_id\":\"f\"}}"),
         "messages[0].content[1]", "neither base64 nor url"},
        {API_MESSAGES, false, IN("{\"type\":\"image\",\"source\":{\"type\":\"base64\"}}"),
         "messages[0].content[1]", "without data"},
        {API_MESSAGES, false,
         "{\"system\":[{\"type\":\"image\"}],\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}",
         "system", "without text"},
        {API_MESSAGES, false,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"},{\"role\":\"assistant\",\"content\":"
         "["
         "{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image\",\"source\":{\"type\":\"base64\","
         "\"data\":\"" DOT "\"}}]}]}",
         "messages[1].content[0]", "begins the answer"},
        {API_RESPONSES, false,
         "{\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"file_id\":\"f\"}]"
         "}]}",
         "input[0]", "file_id"},
        {API_RESPONSES, false,
         "{\"input\":[{\"role\":\"user\",\"content\":\"x\"},{\"type\":\"reasoning\",\"summary\":[{"
         "\"type\":\"input_image\",\"image_url\":\"" URI "\"}]}]}",
         "input[1]", "a thought"},
        {API_OLLAMA_CHAT, true, "{\"messages\":[{\"role\":\"user\",\"images\":[\"" DOT "\"]}]}",
         "messages[0].images[0]", "image input is not supported"},
        {API_OLLAMA_CHAT, false, "{\"messages\":[{\"role\":\"user\",\"images\":[\"" DOT "\",5]}]}",
         "messages[0].images[1]", "without data"},
        {API_OLLAMA_CHAT, false, "{\"messages\":[{\"role\":\"user\",\"images\":\"" DOT "\"}]}",
         "messages[0].images", "expected an array"},
        {API_OLLAMA_CHAT, false, "{\"messages\":[{\"role\":\"user\",\"images\":[\"/tmp/a.png\"]}]}",
         "messages[0].images[0]", "no base64"},
        {API_OLLAMA_GENERATE, false, "{\"prompt\":\"x\",\"raw\":true,\"images\":[\"" DOT "\"]}",
         "images", "exclude"},
        {API_OLLAMA_GENERATE, false, "{\"prompt\":\"x\",\"suffix\":\"y\",\"images\":[\"" DOT "\"]}",
         "images", "gap"},
        {API_LLAMA, false,
         "{\"prompt\":{\"prompt_string\":\"a\",\"multimodal_data\":[\"" DOT "\"]}}", "prompt",
         "0 times"},
        {API_LLAMA, false,
         "{\"prompt\":{\"prompt_string\":\"" PICTURE_MARK "\",\"multimodal_data\":[\"Zm9v\"]}}",
         "prompt.multimodal_data[0]", "no picture"},
        {API_LLAMA, true,
         "{\"prompt\":{\"prompt_string\":\"" PICTURE_MARK "\",\"multimodal_data\":[\"" DOT "\"]}}",
         "prompt.multimodal_data[0]", "image input is not supported"},
        {API_LLAMA, false, "{\"prompt\":{\"prompt\":\"a\"}}", "prompt", "unknown member"},
        {API_COMPLETIONS, false,
         "{\"prompt\":{\"prompt_string\":\"" PICTURE_MARK "\",\"multimodal_data\":[\"" DOT "\"]}}",
         "prompt", "an object"},
    };
    static const request_limits blind = {.n_vocab = 1000};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        AUTO(request_free) request rq = {0};
        problem p = {0};
        bool ok = request_parse(&rq, bad[i].api, bad[i].body, strlen(bad[i].body),
                                bad[i].blind ? &blind : &sees, &p);
        CHECK_MSG(!ok && p.status == 400, "%s: %d", bad[i].body, p.status);
        CHECK_MSG(!strcmp(p.param, bad[i].param), "%s: %s", bad[i].body, p.param);
        CHECK_MSG(strstr(p.text, bad[i].sentence), "%s", p.text);
    }
    for (int n = PICTURES_MAX; n <= PICTURES_MAX + 1; n++) {
        AUTO(request_free) request rq = {0};
        problem p = {0};
        AUTO(str_free) str body = {0};
        put_many(&body, n);
        bool ok = request_parse(&rq, API_OLLAMA_CHAT, body.at, body.n, &sees, &p);
        CHECK_EQ(ok, n == PICTURES_MAX);
        CHECK(ok || (!strcmp(p.param, "messages[0].images[16]") &&
                     strstr(p.text, "more than 16 pictures")));
    }
}
