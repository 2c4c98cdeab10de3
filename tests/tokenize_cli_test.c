/* tokenize_cli_test.c - carat tokenize, and lists of ids as text where other commands read ids.
 *
 * The library's own answers are the measure: ids by carat_tokenize and carat_chat_render, pieces by
 * carat_token_bytes.
 */
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"
#include "tests/spawn.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <string.h>

#define TOKENIZE(...) ((const char *const[]){"tokenize", __VA_ARGS__, NULL})

/* Runs it; stdout must be `want`. */
static void prints(const char *want, const char *in, const char *const *args)
{
    AUTO(spawned_free) spawned r;
    spawn_carat(&r, &(spawn_options){.in = in}, args);
    CHECK_MSG(r.code == 0, "exit status %d: %s", r.code, str_text(&r.err));
    CHECK_MSG(!strcmp(str_text(&r.out), want), "\"%s\", expected \"%s\"", str_text(&r.out), want);
}

static void fails(int code, const char *word, const char *const *args)
{
    AUTO(spawned_free) spawned r;
    spawn_carat(&r, NULL, args);
    CHECK_MSG(r.code == code && !r.out.n, "exit status %d, \"%s\"", r.code, str_text(&r.out));
    CHECK_MSG(strstr(str_text(&r.err), word), "\"%s\" does not say %s", str_text(&r.err), word);
}

static void put_list(str *s, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        str_printf(s, "%s%d", i ? "," : "", ids[i]);
    str_putc(s, '\n');
}

PLAIN_TEST(tokenize_prints_the_ids_that_the_library_gives)
{
    static const struct {
        const char *option;
        int32_t flags;
    } ways[] = {{"--ids", CARAT_TOK_BOS | CARAT_TOK_SPECIAL},
                {"--no-bos", CARAT_TOK_SPECIAL},
                {"--no-special", CARAT_TOK_BOS}};
    static const char text[] = "a text with <|turn> and w\xC3\xB6rds";
    const char *m = toy_model_write(NULL), *file = test_temp("text.txt");
    AUTO_MODEL *model;
    carat_error e = {0};
    int32_t ids[200];
    test_write(file, text, strlen(text));
    CHECK_OK(carat_model_open(m, &(carat_model_options){.vocab_only = true}, &model, &e), e);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        AUTO(str_free) str want = {0};
        char count[32];
        int64_t n = carat_tokenize(model, text, strlen(text), ways[i].flags, ids, 200, &e);
        CHECK(n > 0 && n < 200);
        put_list(&want, ids, n);
        prints(str_text(&want), NULL, TOKENIZE("-m", m, "--ids", ways[i].option, text));
        prints(str_text(&want), text, TOKENIZE("-m", m, "--ids", ways[i].option));
        prints(str_text(&want), text, TOKENIZE("-m", m, "--ids", ways[i].option, "-f", "-"));
        prints(str_text(&want), "other", TOKENIZE("-m", m, "--ids", ways[i].option, "-f", file));
        snprintf(count, sizeof count, "%lld\n", (long long)n);
        if (i)
            prints(count, text, TOKENIZE("-m", m, "--count", ways[i].option));
    }
}

TEST(tokenize_prints_pieces_on_one_line_each_and_as_json)
{
    static const char text[] = "a\n\xC3\xB6\x1B";
    const char *m = toy_model_write(NULL);
    AUTO(spawned_free) spawned r;
    json_t *all;
    err e = {0};
    spawn_carat(&r, &(spawn_options){.in = text}, TOKENIZE("-m", m, "--no-bos"));
    CHECK_EQ(r.code, 0);
    CHECK_MSG(strstr(str_text(&r.out), "'a'\n") && strstr(str_text(&r.out), "'\\n'\n") &&
                  strstr(str_text(&r.out), "'\\xC3'\n") && strstr(str_text(&r.out), "'\\x1B'\n"),
              "%s", str_text(&r.out));
    spawned_free(&r);
    spawn_carat(&r, &(spawn_options){.in = text}, TOKENIZE("-m", m, "--no-bos", "--json"));
    CHECK_EQ(r.code, 0);
    CHECK_OK(json_parse(&all, str_text(&r.out), r.out.n, "tokens", &e), e);
    const json_t *list = json_object_get(all, "tokens");
    CHECK_EQ(json_integer_value(json_object_get(all, "count")), json_array_size(list));
    CHECK_STR(json_string_value(json_object_get(json_array_get(list, 0), "piece")), "a");
    const json_t *bytes = json_object_get(json_array_get(list, 2), "piece");
    CHECK_EQ(json_integer_value(json_array_get(bytes, 0)), 0xC3);
    json_decref(all);
}

TEST(tokenize_renders_conversations)
{
    static const char messages[] = "[{\"role\":\"system\",\"content\":\"s\"},"
                                   "{\"role\":\"user\",\"content\":\"hi <turn|>\"}]";
    const char *m = toy_model_write(NULL), *file = test_temp("messages.json");
    AUTO_MODEL *model;
    carat_model_info info;
    carat_chat chat;
    carat_error e = {0};
    test_write(file, messages, strlen(messages));
    CHECK_OK(carat_model_open(m, &(carat_model_options){.vocab_only = true}, &model, &e), e);
    carat_model_get_info(model, &info);
    for (int i = 0; i < 3; i++) {
        AUTO(str_free) str want = {0};
        const carat_chat_options how = {.thinking = i == 1 || (i == 0 && info.thinks),
                                        .no_generation_prompt = i == 2};
        const char *option = i == 0 ? "--ids" : i == 1 ? "--think" : "--no-generation-prompt";
        CHECK_OK(carat_chat_render(model, messages, NULL, &how, &chat, &e), e);
        put_list(&want, chat.ids, chat.n_ids);
        if (i != 2 || !info.thinks) {
            prints(str_text(&want), NULL, TOKENIZE("-m", m, "--ids", option, "--messages", file));
            prints(str_text(&want), NULL,
                   TOKENIZE("-m", m, "--ids", option, "--chat", "-s", "s", "hi <turn|>"));
            prints(str_text(&want), "hi <turn|>\n",
                   TOKENIZE("-m", m, "--ids", option, "--chat", "-s", "s"));
        }
        carat_chat_free(&chat);
    }
}

TEST(tokenize_refuses_options_that_say_nothing)
{
    const char *m = toy_model_write(NULL), *ids = test_temp("ids.txt");
    test_write(ids, "5,6", 3);
    fails(2, "--think needs --chat", TOKENIZE("-m", m, "--think", "x"));
    fails(2, "--tools needs --chat", TOKENIZE("-m", m, "--tools", "x", "x"));
    fails(2, "--system needs --chat", TOKENIZE("-m", m, "-s", "x", "x"));
    fails(2, "exclude each other", TOKENIZE("-m", m, "--ids", "--json", "x"));
    fails(2, "exclude each other", TOKENIZE("-m", m, "--chat", "--think", "--no-think", "x"));
    fails(2, "for texts", TOKENIZE("-m", m, "--chat", "--no-bos", "x"));
    fails(2, "tokens already", TOKENIZE("-m", m, "--tokens-file", ids, "x"));
    fails(2, "whole conversation", TOKENIZE("-m", m, "--messages", ids, "x"));
    fails(1, "expected one of them", TOKENIZE("-m", m, "-f", ids, "x"));
    fails(1, "cannot open", TOKENIZE("-m", m, "-f", "/nonexistent/x"));
    test_write(ids, "999999", 6);
    fails(1, "999999", TOKENIZE("-m", m, "--tokens-file", ids));
}

/* The same ids as bytes and as text, in every form that people write. */
TEST(ids_are_read_as_numbers_with_commas_too)
{
    static const char *const same[] = {"5,6,70,8",      "5,6,70,8\n",      "5, 6, 70, 8",
                                       "[5, 6, 70, 8]", " [5,6,70,8]\r\n", "5\n6\n70\n8\n",
                                       "5 6 70 8",      "5,\n6,\n70,\n8",  "0005,6,70,8"};
    static const struct {
        const char *text, *word;
    } bad[] = {{"5,,6", "','"},
               {",5", "','"},
               {"5,6,", "ends with a comma"},
               {"5;6", "neither"},
               {"5,-6", "does not have"},
               {"99999999999", "too large"},
               {"[5,6", "'['"},
               {"5]", "']'"},
               {"2147483648", "too large"},
               {"[[5]]", "'['"},
               {"5,6 x", "neither"}};
    const char *m = toy_model_write(NULL), *path = test_temp("list"), *raw = test_temp("raw");
    const char *a = test_temp("a"), *b = test_temp("b");
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        test_write(path, same[i], strlen(same[i]));
        prints("5,6,70,8\n", NULL, TOKENIZE("-m", m, "--ids", "--tokens-file", path));
        prints("5,6,70,8\n", NULL, TOKENIZE("-m", m, "--ids", "--tokens-file", same[i]));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        test_write(path, bad[i].text, strlen(bad[i].text));
        fails(1, bad[i].word, TOKENIZE("-m", m, "--ids", "--tokens-file", path));
    }
    /* The other readers of ids. */
    test_write(path, same[3], strlen(same[3]));
    prints("", NULL, TOKENIZE("-m", m, "--tokens-file", path, "-o", raw));
    spawned r;
    spawn_carat(&r, NULL,
                (const char *const[]){"logits", "-m", m, "--tokens", path, "-o", a, NULL});
    CHECK_MSG(r.code == 0, "%s", str_text(&r.err));
    spawned_free(&r);
    spawn_carat(&r, NULL, (const char *const[]){"logits", "-m", m, "--tokens", raw, "-o", b, NULL});
    CHECK_MSG(r.code == 0, "%s", str_text(&r.err));
    spawned_free(&r);
    size_t n_a, n_b;
    char *x, *y;
    err e = {0};
    CHECK_OK(file_read_all(a, 1 << 26, &x, &n_a, &e), e);
    CHECK_OK(file_read_all(b, 1 << 26, &y, &n_b, &e), e);
    CHECK(n_a == n_b && n_a > 0 && !memcmp(x, y, n_a));
    mem_free(x);
    mem_free(y);
    str answer[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++) {
        spawn_carat(&r, NULL,
                    (const char *const[]){"daemon", "-m", m, "--stream-fd", "1", "--tokens-file",
                                          i ? raw : path, "-n", "4", NULL});
        CHECK_MSG(r.code == 0 && r.out.n >= 4, "%s", str_text(&r.err));
        str_put(&answer[i], r.out.at, r.out.n);
        spawned_free(&r);
    }
    CHECK(answer[0].n && answer[1].n);
    str_free(&answer[0]);
    str_free(&answer[1]);
}
