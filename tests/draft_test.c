/* draft_test.c - how much of what the bundled drafters draft the bundled model accepts.
 *
 * A wrong drafter never shows in an answer: it only has fewer of its tokens accepted. So these
 * tests compare the acceptance on held-out prompts with that of PyTorch (tools/demo/README.md) and
 * with golden values: a wrong tap, norm, mask, rotation, scale or order of rows moves them. The
 * last token of an answer is never counted as accepted. tools/demo/README.md has
 * the mistakes that were tried, and the test that sees each. Floors lie 1 % below what is accepted.
 */
#include "tests/spawn.h"
#include "tests/test.h"
#include "base/json.h"
#include "base/map.h"

#include "carat.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { FILE_MAX = 1 << 22, SLOTS = 7, ROUNDS = 512, ANSWER = 160 };

/* A round has room if the answer goes on for at least as many tokens as were drafted. */
typedef struct stats {
    int n_rounds, n_accepted;
    int n_roomy;     /* rounds with room */
    int slot[SLOTS]; /* those of them that accepted slot i and all before */
} stats;

typedef struct speaker {
    carat_model *m;
    carat_session *s;
    carat_speculation how;
    int n_slots;
    stats t;
    int n, accepted[ROUNDS]; /* rounds of the current answer */
    int n_ids;               /* tokens of the answer */
} speaker;

static bool count_token(void *user, const carat_event *ev)
{
    speaker *a = user;
    a->n_ids += ev->kind == CARAT_EV_TOKEN;
    return true;
}

static void keep_round(void *user, const carat_round *r)
{
    speaker *a = user;
    CHECK(a->n < ROUNDS);
    a->accepted[a->n++] = r->n_accepted;
}

static void open_speaker(speaker *a, const char *drafter, const carat_session_options *so)
{
    char model[512], draft[512];
    err e = {0};
    snprintf(model, sizeof model, "%s", test_path("models/demo.gguf"));
    snprintf(draft, sizeof draft, "%s", test_path(drafter));
    if (access(model, R_OK) || access(draft, R_OK))
        test_skip("models/demo.gguf or its drafters are not there");
    *a = (speaker){.n_ids = 0};
    CHECK_OK(carat_model_open(model, &(carat_model_options){.draft = draft}, &a->m, &e), e);
    CHECK_OK(carat_session_open(a->m, so, &a->s, &e), e);
}

static void close_speaker(speaker *a)
{
    carat_session_close(a->s);
    carat_model_close(a->m);
}

/* Answers one conversation greedily and counts its rounds. messages, tools: JSON; tools NULL: none.
 */
static void answer(speaker *a, const char *messages, const char *tools, bool thinking)
{
    err e = {0};
    carat_chat prompt = {0};
    carat_timings t = {0};
    carat_chat_options how = {.thinking = thinking};
    carat_generate_options opt = {.max_tokens = ANSWER,
                                  .parse = true,
                                  .speculation = a->how,
                                  .on_round = keep_round,
                                  .round_user = a};
    a->n = a->n_ids = 0;
    CHECK_OK(carat_chat_render(a->m, messages, tools, &how, &prompt, &e), e);
    carat_sampling_default(a->m, &opt.sampling);
    opt.sampling.temperature = 0;
    opt.starts_thinking = prompt.starts_thinking;
    CHECK_OK(carat_generate(a->s, prompt.ids, prompt.n_ids, &opt, count_token, a, &t, &e), e);
    carat_chat_free(&prompt);
    for (int i = 0, at = 1; i < a->n; i++) { /* the prompt's pass gives the first token */
        a->t.n_rounds++;
        a->t.n_accepted += a->accepted[i];
        if (a->n_ids - at >= a->n_slots) {
            a->t.n_roomy++;
            for (int k = 0; k < a->accepted[i] && k < SLOTS; k++)
                a->t.slot[k]++;
        }
        at += a->accepted[i] + 1;
    }
}

/* Every `every`-th conversation of the held-out ones. */
static void answer_skills(speaker *a, int every)
{
    err e = {0};
    AUTO_MEM char *text;
    size_t n;
    int line_no = 0;
    CHECK_OK(file_read_all(test_path("tests/demo/skills.jsonl"), FILE_MAX, &text, &n, &e), e);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *c;
        if (line_no++ % every)
            continue;
        CHECK_OK(json_parse(&c, line, strlen(line), "skills.jsonl", &e), e);
        const json_t *tools = json_object_get(c, "tools");
        char *messages = json_dumps(json_object_get(c, "messages"), JSON_COMPACT);
        char *declared = json_array_size(tools) ? json_dumps(tools, JSON_COMPACT) : NULL;
        answer(a, messages, declared, json_is_true(json_object_get(c, "thinking")));
        free(messages);
        free(declared);
        json_decref(c);
    }
}

/* All questions about the two texts, of 1000 tokens ("short") or 8000 ("long"). */
static void answer_texts(speaker *a, const char *which)
{
    err e = {0};
    AUTO_MEM char *text;
    size_t n;
    CHECK_OK(file_read_all(test_path("tests/demo/draft_texts.jsonl"), FILE_MAX, &text, &n, &e), e);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *c;
        CHECK_OK(json_parse(&c, line, strlen(line), "draft_texts.jsonl", &e), e);
        const json_t *asks = json_object_get(c, "asks");
        for (size_t i = 0; i < json_array_size(asks); i++) {
            json_t *m =
                json_pack("[{s:s,s:o}]", "role", "user", "content",
                          json_sprintf("%s\n\n%s", json_string_value(json_object_get(c, which)),
                                       json_string_value(json_array_get(asks, i))));
            char *messages = json_dumps(m, JSON_COMPACT);
            answer(a, messages, NULL, false);
            free(messages);
            json_decref(m);
        }
        json_decref(c);
    }
}

static double per_round(const stats *t)
{
    return (double)t->n_accepted / t->n_rounds;
}

static void show(const char *what, const stats *t, int n_slots)
{
    printf("  %s: %d rounds, %.3f accepted; %d with room:", what, t->n_rounds, per_round(t),
           t->n_roomy);
    for (int i = 0; i < n_slots; i++)
        printf(" %.3f", (double)t->slot[i] / t->n_roomy);
    printf("\n");
}

/* golden: [n_slots] shares of the rounds with room. */
static void expect(const speaker *a, const char *what, double floor, const double *golden)
{
    show(what, &a->t, a->n_slots);
    if (SANITIZED)
        return;
    if (test_brief())
        floor *= 0.93, golden = NULL;
    CHECK_MSG(per_round(&a->t) >= floor, "%s: %.3f accepted per round, expected %.2f or more", what,
              per_round(&a->t), floor);
    for (int i = 0; golden && i < a->n_slots; i++) {
        double share = (double)a->t.slot[i] / a->t.n_roomy;
        CHECK_MSG(fabs(share - golden[i]) <= 0.05, "%s: slot %d is accepted in %.3f, expected %.3f",
                  what, i + 1, share, golden[i]);
    }
}

static const carat_speculation blocks = {.n_max = 7, .tree_max = -1, .fixed = true};
static const carat_speculation trees = {.n_max = 7, .tree_max = 16, .fixed = true};
static const carat_speculation steps = {.n_max = 4, .tree_max = -1, .fixed = true};

/* The short suite asks so few that shares of slots say little. */
static int every(void)
{
    return SANITIZED ? 40 : test_brief() ? 12 : 3;
}

/* PyTorch has the same rounds for these prompts, all but one of 390, in f32. Trees of 16 have 361
 * rounds there and here. */
PLAIN_TEST(draft_blocks_are_accepted)
{
    static const double golden[] = {0.98, 0.96, 0.89, 0.85, 0.80, 0.71, 0.62};
    speaker a;
    open_speaker(&a, "models/demo-dflash.gguf", &(carat_session_options){.n_ctx = 4096});
    a.how = blocks;
    a.n_slots = 7;
    answer_skills(&a, every());
    expect(&a, "dflash", 4.7, golden);
    double chain = per_round(&a.t);
    a.t = (stats){0};
    a.how = trees;
    answer_skills(&a, every()); /* the prompts come back from checkpoints, the drafter's keys too */
    expect(&a, "dflash, trees of 16", 1.07 * chain, NULL);
    close_speaker(&a);
}

LONG_TEST(draft_blocks_are_accepted_far_into_a_text)
{
    static const double golden[] = {1, 1, 1, 0.92, 0.81, 0.73, 0.595};
    speaker a;
    open_speaker(&a, "models/demo-dflash.gguf", &(carat_session_options){.n_ctx = 12288});
    a.how = blocks;
    a.n_slots = 7;
    answer_texts(&a, "short");
    expect(&a, "dflash at 1000 tokens", 4.8, golden);
    double near = per_round(&a.t);
    a.t = (stats){0};
    answer_texts(&a, "long");
    expect(&a, "dflash at 8000 tokens", 0.95 * near, golden);
    close_speaker(&a);
}

/* PyTorch has exactly as many rounds for these prompts in f32: 496. */
PLAIN_TEST(draft_steps_are_accepted)
{
    static const double golden[] = {0.99, 0.98, 0.975, 0.89};
    static const char *const formats[] = {"f16", "q8_0", "q4_0+rot"};
    for (int i = 0; i < (test_brief() ? 2 : 3); i++) {
        speaker a;
        open_speaker(&a, "models/demo-mtp.gguf",
                     &(carat_session_options){.n_ctx = 4096, .kv_k = formats[i]});
        a.how = steps;
        a.n_slots = 4;
        answer_skills(&a, i ? 3 * every() : every());
        expect(&a, formats[i], i ? 3.42 : 3.48, golden);
        close_speaker(&a);
    }
}

LONG_TEST(draft_steps_are_accepted_far_into_a_text)
{
    static const double golden[] = {1, 1, 1, 0.965};
    speaker a;
    open_speaker(&a, "models/demo-mtp.gguf", &(carat_session_options){.n_ctx = 12288});
    a.how = steps;
    a.n_slots = 4;
    answer_texts(&a, "short");
    expect(&a, "mtp at 1000 tokens", 3.43, golden);
    double near = per_round(&a.t);
    a.t = (stats){0};
    answer_texts(&a, "long");
    expect(&a, "mtp at 8000 tokens", 0.97 * near, golden);
    close_speaker(&a);
}

/* The program's own model has its drafters with it. */
TEST(draft_of_the_bundled_model)
{
    static const char *const wish[][2] = {{"none", NULL}, {"auto", "dflash: "}, {"mtp", "mtp: "}};
    spawned r[3];
    if (access(test_path("models/demo.gguf"), R_OK) ||
        access(test_path("models/demo-mtp.gguf"), R_OK))
        test_skip("models/demo.gguf or its drafters are not there");
    for (int i = 0; i < 3; i++) {
        spawn_carat(&r[i], NULL,
                    (const char *const[]){"run", "--greedy", "--draft", wish[i][0],
                                          "Count from 1 to 60.", NULL});
        CHECK_MSG(r[i].code == 0, "%s", str_text(&r[i].err));
        CHECK_STR(str_text(&r[i].out), str_text(&r[0].out));
        CHECK_MSG(!wish[i][1] || strstr(str_text(&r[i].err), wish[i][1]), "%s",
                  str_text(&r[i].err));
    }
    CHECK(strstr(str_text(&r[0].out), "58 59 60"));
    for (int i = 0; i < 3; i++)
        spawned_free(&r[i]);
}

/* Half of the text's pages are on the host. An assistant reads the keys that are left, as the
 * target does; a block drafter has keys of its own. */
PLAIN_TEST(drafts_are_accepted_on_a_pool)
{
    static const struct {
        const char *file;
        const carat_speculation *how;
        int n_slots;
        double floor;
    } drafter[] = {{"models/demo-mtp.gguf", &steps, 4, 3.49},
                   {"models/demo-dflash.gguf", &trees, 7, 4.9}};
    for (int i = 0; i < (test_brief() ? 1 : 2); i++) {
        carat_pool_info p;
        speaker a;
        open_speaker(&a, drafter[i].file,
                     &(carat_session_options){.n_ctx = 4096, .kv_resident = 512});
        a.how = *drafter[i].how;
        a.n_slots = drafter[i].n_slots;
        answer_texts(&a, "short");
        expect(&a, drafter[i].file, drafter[i].floor, NULL);
        carat_session_get_pool(a.s, &p);
        CHECK(p.lossy && p.n_paged_out > 300);
        close_speaker(&a);
    }
}
