/* demo_test.c - the bundled model answers questions it has never seen, through the library.
 *
 * tests/demo/skills.jsonl has held-out cases of each skill: a conversation (with tools, with
 * results of tools, thinking or not) and the expected answer. This is the one test in which trained
 * weights go through everything together: chat format, tokenizer, chunks, windows that have
 * wrapped, experts, sampling, the parser of answers. A wrong kernel or template does not cost a few
 * right answers but nearly all.
 */
#include "tests/test.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"

#include "carat.h"

#include <unistd.h>

enum { FILE_MAX = 1 << 22 };

typedef struct asker {
    carat_model *m;
    carat_session *s;
    str content;
} asker;

static bool keep_content(void *user, const carat_event *ev)
{
    asker *a = user;
    if (ev->kind == CARAT_EV_CONTENT)
        str_put(&a->content, ev->text, ev->n_text);
    return true;
}

/* Whether the greedy answer to the case's conversation is the expected one. */
static bool answers(asker *a, const json_t *c)
{
    err e = {0};
    carat_chat prompt = {0};
    const json_t *tools = json_object_get(c, "tools");
    const char *expect = json_string_value(json_object_get(c, "expect"));
    char *messages = json_dumps(json_object_get(c, "messages"), JSON_COMPACT);
    char *declared = json_array_size(tools) ? json_dumps(tools, JSON_COMPACT) : NULL;
    carat_chat_options how = {.thinking = json_is_true(json_object_get(c, "thinking"))};
    CHECK(messages && expect);
    CHECK_OK(carat_chat_render(a->m, messages, declared, &how, &prompt, &e), e);
    carat_generate_options opt = {
        .max_tokens = 1000, .parse = true, .starts_thinking = prompt.starts_thinking};
    carat_sampling_default(a->m, &opt.sampling);
    opt.sampling.temperature = 0;
    str_cut(&a->content, 0);
    CHECK_OK(carat_generate(a->s, prompt.ids, prompt.n_ids, &opt, keep_content, a, NULL, &e), e);
    carat_chat_free(&prompt);
    free(messages);
    free(declared);
    const char *got = str_text(&a->content);
    bool exact = !strcmp(json_string_value(json_object_get(c, "match")), "exact");
    bool right = exact ? !strcmp(got, expect) : strstr(got, expect) != NULL;
    if (!right)
        printf("expected \"%s\", got \"%s\"\n", expect, got);
    return right;
}

PLAIN_TEST(demo_answers_what_it_has_never_seen)
{
    const char *model = test_path("models/demo.gguf");
    if (access(model, R_OK))
        test_skip("models/demo.gguf is not there");
    asker a = {0};
    err e = {0};
    char *text;
    size_t n;
    int n_cases = 0, n_right = 0, line_no = 0;
    const int every = test_brief() ? 9 : 3;
    CHECK_OK(carat_model_open(model, NULL, &a.m, &e), e);
    CHECK_OK(carat_session_open(a.m, &(carat_session_options){.n_ctx = 4096}, &a.s, &e), e);
    CHECK_OK(file_read_all(test_path("tests/demo/skills.jsonl"), FILE_MAX, &text, &n, &e), e);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *c;
        if (line_no++ % every)
            continue;
        CHECK_OK(json_parse(&c, line, strlen(line), "skills.jsonl", &e), e);
        /* The text of a call is tested with the parser. */
        if (strcmp(json_string_value(json_object_get(c, "skill")), "tool_call") != 0) {
            n_cases++;
            n_right += answers(&a, c);
        }
        json_decref(c);
    }
    CHECK(n_cases > 240 / every);
    CHECK_MSG(n_right >= n_cases * 95 / 100, "%d of %d answers are right", n_right, n_cases);
    mem_free(text);
    str_free(&a.content);
    carat_session_close(a.s);
    carat_model_close(a.m);
}
