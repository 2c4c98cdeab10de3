/* picture_server_test.c - `carat serve` with a toy model and its vision tower: pictures over every
 * API, what they cost, and what is refused.
 */
#include "apps/commands.h"
#include "apps/server/dialects/request.h"
#include "base/base64.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "tests/server_rig.h"

#include <unistd.h>

/* PNG files of 8 x 6 pixels: a board of two colours, and a smooth one. */
#define BOARD                                                                                      \
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAGCAIAAABxZ0isAAAAGklEQVR42mNg+"                                \
    "M8AR0AIRwykS6BxUNSRJgEABLlHuSFd100AAAAASUVORK5CYII="
#define SMOOTH                                                                                     \
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAGCAIAAABxZ0isAAAAcUlEQVR42k3JkRbAMAwF0HxJeB8RHo/"              \
    "D43F4PA6Xx+"                                                                                  \
    "FyOVwujytvtHN29RIRMbOIqKqZuXtEZCbRsvC6yr7reVopXmv0nnMSbRsfh1yX3re15mMEkACRGbtLhGba8zjwRSlcq/" \
    "Sucxrwi9Z4DAEU+McLQ/FZQ8qF6A0AAAAASUVORK5CYII="

enum { BODY = 2400, N_SOFT = 63, N_QWEN = 20 };

typedef struct api {
    const char *path, *body;         /* with %s: base64 */
    const char *n_prompt, *n_cached; /* of usage */
    const char *says;                /* what differs between pictures */
} api;

#define TINY "\"image_tokens\":70,\"temperature\":0,"
#define CHAT                                                                                       \
    "{" TINY "\"max_tokens\":4,\"logprobs\":true,\"messages\":[{\"role\":\"user\",\"content\":["   \
    "{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:"    \
    "image/png;base64,%s\"}}]}]}"

static const api apis[] = {
    {"/v1/chat/completions", CHAT, "usage.prompt_tokens",
     "usage.prompt_tokens_details.cached_tokens", "choices.0.logprobs.content"},
    {"/v1/responses",
     "{" TINY "\"max_output_tokens\":4,\"top_logprobs\":1,\"input\":[{\"role\":\"user\","
     "\"content\":[{\"type\":\"input_text\",\"text\":\"b\"},{\"type\":\"input_image\",\"image_url\""
     ":\"data:image/png;base64,%s\"}]}]}",
     "usage.input_tokens", "usage.input_tokens_details.cached_tokens",
     "output.0.content.0.logprobs"},
    {"/v1/messages",
     "{" TINY "\"max_tokens\":40,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\","
     "\"text\":\"c\"},{\"type\":\"image\",\"source\":{\"type\":\"base64\",\"media_type\":"
     "\"image/png\",\"data\":\"%s\"}}]}]}",
     "usage.input_tokens", "usage.cache_read_input_tokens", "content"},
    {"/api/chat",
     "{\"image_tokens\":70,\"options\":{\"temperature\":0,\"num_predict\":4},\"stream\":false,"
     "\"logprobs\":true,\"messages\":[{\"role\":\"user\",\"content\":\"d\",\"images\":[\"%s\"]}]}",
     "prompt_eval_count", NULL, "logprobs"},
    {"/completion",
     "{\"image_tokens\":70,\"temperature\":0,\"n_predict\":4,\"n_probs\":1,\"prompt\":{\"prompt_"
     "string\":\"e<__media__>f\",\"multimodal_data\":[\"%s\"]}}",
     "tokens_evaluated", NULL, "completion_probabilities"}};
enum { CHAT_API, RESPONSES_API, MESSAGES_API, OLLAMA_API, LLAMA_API, N_APIS };

static void start(served *s, const char *base, const char *const *more)
{
    const char *words = strncmp(base, "qwen", 4) ? NULL : "qwen35";
    const char *text = toy_model_write(&(toy_model_file){.base = base, .words = words});
    const char *args[16] = {"-m", text, "--ctx", "512", "-t", "1"};
    for (int n = 6; *more; n++)
        args[n] = *more++;
    served_start(s, args);
}

/* Beside the model, where it is found. */
static const char *tower_write(const char *size)
{
    const char *path = test_temp("mmproj-F32.gguf");
    const char *make[] = {size, path, "--type", "f32"};
    CHECK_EQ(command_synth.run(&command_synth, 4, (char **)make), 0);
    return path;
}

static const jtree *ask(served *s, arena *mem, const char *path, const char *body,
                        const char *base64)
{
    char text[BODY];
    AUTO(response_free) response r;
    snprintf(text, sizeof text, body, base64);
    http_post(&r, s, path, text);
    CHECK_MSG(r.status == 200, "%s: %s", path, str_text(&r.body));
    const jtree *v = json_parsed(mem, r.body.at, r.body.n);
    return v;
}

static int64_t number_at(const jtree *v, const char *path)
{
    int64_t n = 0;
    CHECK_MSG(tree_int(json_at(v, path), 0, 1 << 20, &n), "%s", path);
    return n;
}

static str json_of(const jtree *v)
{
    str o = {0};
    CHECK(v);
    jtree_put_json(&o, v);
    return o;
}

static void check_apis(const char *base, const char *tower, int32_t n_soft)
{
    AUTO(stop) served s;
    AUTO(arena_free) arena mem = {0};
    start(&s, base, (const char *[]){"--mmproj", tower, "--chunk", "32", "--no-think", NULL});
    for (int i = 0; i < N_APIS; i++) {
        const api *a = &apis[i];
        const jtree *v[3];
        str says[3];
        int64_t n[3];
        for (int k = 0; k < 3; k++) {
            v[k] = ask(&s, &mem, a->path, a->body, k == 1 ? SMOOTH : BOARD);
            says[k] = json_of(json_at(v[k], a->says));
            n[k] = number_at(v[k], a->n_prompt);
            if (i == MESSAGES_API)
                n[k] += number_at(v[k], a->n_cached);
        }
        CHECK_MSG(strcmp(says[0].at, says[1].at) != 0, "%s: %s", a->path, says[0].at);
        CHECK_STR(says[2].at, says[0].at);
        CHECK_MSG(n[0] > n_soft + 2 && n[1] == n[0] && n[2] == n[0], "%s", a->path);
        if (a->n_cached) {
            CHECK(number_at(v[1], a->n_cached) < 10);
            if (n_soft == N_SOFT) /* recurrent layers go back to checkpoints alone */
                CHECK_EQ(number_at(v[2], a->n_cached), n[0] - 1);
        }
        for (int k = 0; k < 3; k++)
            str_free(&says[k]);
    }
    /* Begin, soft tokens and end between "e" and "f". */
    const jtree *bare = ask(&s, &mem, "/completion", "{\"prompt\":\"e%sf\",\"n_predict\":1}", "");
    CHECK_EQ(
        number_at(ask(&s, &mem, "/completion", apis[LLAMA_API].body, BOARD), "tokens_evaluated"),
        number_at(bare, "tokens_evaluated") + n_soft + 2);
}

/* A picture is answered as itself, whatever was asked before, and costs nothing when it is asked
 * again. Usage counts its tokens. In the second model they see each other. */
TEST(pictures_are_seen_in_every_api)
{
    const char *tower = tower_write("tiny-mmproj-clamped");
    check_apis("e2b", tower, N_SOFT);
    check_apis("dense", tower, N_SOFT);
}

/* Rows of pictures beside recurrent layers, at places on three axes. */
TEST(pictures_are_seen_by_qwen_in_every_api)
{
    check_apis("qwen35", tower_write("tiny-mmproj-qwen"), N_QWEN);
}

#define TWO                                                                                        \
    "{" TINY "\"max_tokens\":4,\"logprobs\":true,\"messages\":[{\"role\":\"user\",\"content\":["   \
    "{\"type\":\"image_url\",\"image_url\":{\"url\":\"%s\"}},{\"type\":\"text\",\"text\":\"a\"},"  \
    "{\"type\":\"image_url\",\"image_url\":{\"url\":\"%s\"}}]}]}"

/* The order of pictures is the conversation's; files of the server are as good as data. */
TEST(pictures_of_a_prompt_have_their_order_and_may_be_files)
{
    static const char *const word[] = {"data:image/png;base64," BOARD,
                                       "data:image/png;base64," SMOOTH, "file:board.png"};
    static const int asked[][2] = {{0, 1}, {1, 0}, {0, 0}, {2, 1}};
    char body[BODY], dir[512];
    uint8_t png[sizeof BOARD];
    size_t n_png, bad;
    arena mem = {0};
    str says[4];
    AUTO(stop) served s;
    CHECK(base64_decode(BOARD, sizeof BOARD - 1, png, &n_png, &bad));
    snprintf(dir, sizeof dir, "%s", test_temp("board.png"));
    FILE *f = fopen(dir, "wb");
    CHECK(f && fwrite(png, 1, n_png, f) == n_png && !fclose(f));
    *strrchr(dir, '/') = 0;
    tower_write("tiny-mmproj-clamped");
    start(&s, "e2b", (const char *[]){"--media-path", dir, NULL});
    for (int i = 0; i < 4; i++) {
        snprintf(body, sizeof body, TWO, word[asked[i][0]], word[asked[i][1]]);
        const jtree *v = ask(&s, &mem, "/v1/chat/completions", "%s", body);
        says[i] = json_of(json_at(v, "choices.0.logprobs.content"));
    }
    CHECK(strcmp(says[0].at, says[1].at) != 0 && strcmp(says[0].at, says[2].at) != 0 &&
          strcmp(says[1].at, says[2].at) != 0);
    CHECK_STR(says[3].at, says[0].at);
    for (int i = 0; i < 4; i++)
        str_free(&says[i]);
    arena_free(&mem);
}

/* The template of late April drops pictures of results: the client is told. */
TEST(pictures_that_a_template_drops_are_told)
{
    AUTO(stop) served s;
    AUTO(arena_free) arena mem = {0};
    tower_write("tiny-mmproj-clamped");
    const char *text = toy_model_write(
        &(toy_model_file){.base = "e2b", .template = "google-gemma-4-31B-it.jinja"});
    served_start(&s, (const char *[]){"-m", text, "--ctx", "512", "-t", "1", NULL});
    AUTO(str_free)
    str told = json_of(ask(
        &s, &mem, "/v1/messages",
        "{" TINY "\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":"
        "\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"f\",\"input\":{}"
        "}"
        "]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t\","
        "\"content\""
        ":[{\"type\":\"image\",\"source\":{\"type\":\"base64\",\"media_type\":\"image/"
        "png\",\"data\":"
        "\"%s\"}}]}]}]}",
        BOARD));
    CHECK_MSG(strstr(told.at, "has 0 of the request's 1 pictures"), "%s", told.at);
}

static void refused(served *s, const char *path, const char *body, const char *base64,
                    const char *word)
{
    char text[BODY];
    AUTO(response_free) response r;
    snprintf(text, sizeof text, body, base64);
    http_post(&r, s, path, text);
    CHECK_MSG(r.status == 400 && strstr(str_text(&r.body), word), "%s: %d %s", text, r.status,
              str_text(&r.body));
}

/* BOARD with other bytes for pixels: it can be counted, and not be decoded. */
#define TORN                                                                                       \
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAGCAIAAABxZ0isAAAAGklEQVR42mNg+"                                \
    "M8AR0AIAAAAAAAAAAAAJgEABLlHuSFd100AAAAASUVORK5CYII="
/* The head of a PNG file of 600 x 12 pixels: more patches in a row than the tower has places for.
 */
#define LONG "iVBORw0KGgoAAAANSUhEUgAAAlgAAAAMCAIAAAAxhFRDAAAAAUlEQVQA"
#define COUNT "/v1/messages/count_tokens"

TEST(pictures_are_counted_by_their_headers_and_refused_in_words)
{
    served s, blind;
    AUTO(arena_free) arena mem = {0};
    char body[BODY], *log;
    size_t n_log;
    tower_write("tiny-mmproj-clamped");
    start(&s, "e2b", (const char *[]){"--ctx", "128", NULL});
    const jtree *whole = ask(&s, &mem, "/v1/messages", apis[MESSAGES_API].body, BOARD);
    const jtree *count = ask(&s, &mem, COUNT, apis[MESSAGES_API].body, TORN);
    CHECK_EQ(number_at(count, "input_tokens"),
             number_at(whole, "usage.input_tokens") +
                 number_at(whole, "usage.cache_read_input_tokens"));
    const jtree *tokens = ask(&s, &mem, "/tokenize", CHAT, TORN); /* a placeholder for all */
    CHECK_EQ(number_at(tokens, "count"), json_at(tokens, "tokens")->count);
    CHECK_EQ(number_at(tokens, "count") + N_SOFT + 1,
             number_at(ask(&s, &mem, apis[CHAT_API].path, CHAT, BOARD), apis[CHAT_API].n_prompt));
    refused(&s, "/v1/messages", apis[MESSAGES_API].body, TORN, "messages[0].content[1]");
    refused(&s, COUNT, apis[MESSAGES_API].body, LONG,
            "'messages[0].content[1]': a picture of "); /* and not where the tower's file is */
    refused(&s, "/completion", apis[LLAMA_API].body, TORN, "multimodal_data[0]");
    snprintf(body, sizeof body, "{\"prompt_logprobs\":1,%s", &CHAT[1]);
    refused(&s, "/v1/chat/completions", body, BOARD, "pictures");
    snprintf(body, sizeof body, "{\"image_tokens\":280,%s", strstr(CHAT, "\"temp"));
    refused(&s, "/v1/chat/completions", body, BOARD, "context");
    snprintf(body, sizeof body, "{\"compress\":0.5,%s", &apis[LLAMA_API].body[1]);
    refused(&s, "/completion", body, BOARD, "has pictures");
    refused(
        &s, "/completion",
        "{\"prompt\":{\"prompt_string\":\"<|image|><__media__>\",\"multimodal_data\":[\"%s\"]}}",
        BOARD, "placeholder");
    refused(&s, "/completion", "{\"prompt\":[9,%s,10]}", "-1", "prompt");
    snprintf(body, sizeof body, TWO, "file:a.png", "file:b.png");
    refused(&s, "/v1/chat/completions", "%s", body, "--media-path");
    snprintf(body, sizeof body, TWO, "http://127.0.0.1/a.png", "");
    refused(&s, "/v1/chat/completions", "%s", body, "--media-urls");
    str shown = json_of(ask(&s, &mem, "/api/show", "{\"model\":\"%s\"}", "toy"));
    CHECK_MSG(strstr(shown.at, "\"vision\""), "%s", shown.at);
    str_free(&shown);
    stop(&s);
    start(&blind, "e2b", (const char *[]){"--mmproj", "none", NULL});
    refused(&blind, "/v1/chat/completions", CHAT, BOARD, "--mmproj");
    stop(&blind);
    const char *torn = tower_write("tiny-mmproj-clamped");
    CHECK(!truncate(torn, 20000)); /* its sizes are there, and not all of its weights */
    start(&blind, "e2b", (const char *[]){NULL});
    refused(&blind, "/v1/chat/completions", CHAT, BOARD, "--mmproj");
    stop(&blind);
    CHECK(!file_read_all(blind.log, 1 << 20, &log, &n_log, NULL));
    CHECK_MSG(strstr(log, "mmproj-F32.gguf is left out"), "%s", log);
    mem_free(log);
}
