/* pool_server_test.c - sixteen clients on a pool of keys for five of them: every greedy answer is
 * the one that was given alone, and memory stays flat; with conversations that keep all of their
 * keys, and with conversations that keep a part. Options that make no sense.
 *
 * POOL_SECONDS in the environment sets how long clients ask, up to two hours (tools/pool_soak.sh).
 */
#include "tests/http_client.h"
#include "tests/spawn.h"
#include "tests/test.h"
#include "tests/toy_model.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum {
    CLIENTS = 16,
    TALKS_MAX = 32,
    SECONDS_BRIEF = 1, /* each client asks at least once, however long that takes */
    SECONDS_LONG = 2,
    SECONDS_MAX = 7200,
    SECONDS_AROUND = 300, /* servers start, and every text is asked alone */
    GROWTH_MIB = 16
};

static int n_conversations(void)
{
    return RACES ? 3 : test_brief() ? 10 : TALKS_MAX;
}

typedef struct talk {
    str body, said;
    bool lossy;
} talk;

typedef struct crowd {
    const served *s;
    talk *talk;
    atomic_int next; /* each talk once; or any of them until until_ms */
    double until_ms;
} crowd;

typedef struct client {
    crowd *all;
    uint64_t rng;
    int n;
    pthread_t thread;
} client;

/* Every text begins with its number, so that only the same talk finds its beginning in a slot. */
static void make_talk(talk *t, int i, int least, int most, int answer)
{
    uint64_t rng = 77 + (uint64_t)i;
    int n = least + (int)rng_below(&rng, (uint64_t)(most - least));
    str_printf(&t->body, "{\"temperature\":0,\"max_tokens\":%d,\"ignore_eos\":true,\"prompt\":\"%d",
               answer / 2 + (int)rng_below(&rng, (uint64_t)answer / 2), i * 7919);
    for (int k = 0; k < n; k++)
        str_printf(&t->body, " %c%c", 'a' + (int)rng_below(&rng, 26),
                   'a' + (int)rng_below(&rng, 26));
    str_puts(&t->body, "\"}");
}

static void ask(const served *s, const talk *t, str *said, bool *lossy)
{
    AUTO(response_free) response r;
    AUTO(arena_free) arena mem = {0};
    http_post(&r, s, "/v1/completions", t->body.at);
    CHECK_MSG(r.status == 200, "%d: %s", r.status, str_text(&r.body));
    const jtree *v = json_parsed(&mem, r.body.at, r.body.n);
    const jtree *text = json_at(v, "choices.0.text");
    str_puts(said, jtree_is(text, JTREE_STRING) ? text->s : "");
    *lossy = json_at(v, "usage.kv_pool.lossy") != NULL;
}

static void ask_again(client *c, const talk *t)
{
    str said = {0};
    bool lossy;
    ask(c->all->s, t, &said, &lossy);
    CHECK_STR(str_text(&said), str_text(&t->said));
    CHECK_EQ(lossy, t->lossy);
    str_free(&said);
    c->n++;
}

static void *live(void *arg)
{
    client *c = arg;
    if (c->all->until_ms > 0) {
        while (clock_ms() < c->all->until_ms)
            ask_again(c, &c->all->talk[rng_below(&c->rng, n_conversations())]);
        return NULL;
    }
    for (int i; (i = atomic_fetch_add(&c->all->next, 1)) < n_conversations();)
        ask_again(c, &c->all->talk[i]);
    return NULL;
}

static double seconds(void)
{
    const char *said = getenv("POOL_SECONDS");
    double usual = test_brief() ? SECONDS_BRIEF : SECONDS_LONG, s = said ? atof(said) : usual;
    return s > 0 && s <= SECONDS_MAX ? s : usual;
}

static void start(served *s, const char *model, const char *const *more)
{
    const char *args[32] = {"-m", model, "-t", "2"};
    int n = 4;
    while (*more)
        args[n++] = *more++;
    served_start(s, args);
}

/* All clients at once; the memory in use half way and at the end. */
static void crowd_in(crowd *all, double *half, double *end)
{
    static client clients[CLIENTS];
    double begun = clock_ms();
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (client){.all = all, .rng = test_seed() + (uint64_t)i};
        CHECK(!pthread_create(&clients[i].thread, NULL, live, &clients[i]));
    }
    while (all->until_ms > 0 && clock_ms() < (begun + all->until_ms) / 2)
        usleep(10000);
    *half = http_metric(all->s, "carat_resident_memory_bytes");
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(clients[i].thread, NULL);
    *end = http_metric(all->s, "carat_resident_memory_bytes");
    CHECK_EQ(http_metric(all->s, "carat_slots_busy"), 0);
    CHECK_EQ(http_metric(all->s, "carat_kv_paged_out"), 0);
}

static void ask_alone(const served *s, talk *t, int least, int most, int answer)
{
    for (int i = 0; i < n_conversations(); i++) {
        make_talk(&t[i], i, least, most, answer);
        ask(s, &t[i], &t[i].said, &t[i].lossy);
    }
}

static void forget(talk *t)
{
    for (int i = 0; i < n_conversations(); i++) {
        str_free(&t[i].body);
        str_free(&t[i].said);
        t[i] = (talk){0};
    }
}

/* A line when the pool is full, and one when all are back, in turns. */
static void check_log(const served *s)
{
    AUTO_MEM char *log;
    size_t n, full = 0, back = 0;
    err e = {0};
    CHECK_OK(file_read_all(s->log, 1 << 24, &log, &n, &e), e);
    for (const char *at = log; (at = strstr(at, "pool of keys: ")); at++) {
        full += !strncmp(at, "pool of keys: full", 18);
        back += !strncmp(at, "pool of keys: all", 17);
        CHECK(full - back < 2);
    }
    CHECK_MSG(back, "%zu times full", full);
}

PLAIN_TEST(sixteen_clients_of_a_pool_for_five_hear_what_they_hear_alone)
{
    static talk conversations[TALKS_MAX];
    const char *model = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    const char *const whole[] = {"-t", "1", "--ctx", "512", "--parallel", "1", NULL};
    const char *const pool[] = {"--ctx",           "512", "--parallel", "16", "--kv-pool", "1600",
                                "--checkpoint-mb", "2",   NULL};
    served s;
    crowd all = {.s = &s, .talk = conversations};
    double half, end;
    if (seconds() > SECONDS_AROUND) /* longer than a test may take */
        alarm((unsigned)seconds() + SECONDS_AROUND);
    start(&s, model, whole);
    ask_alone(&s, conversations, 15, 50, 240); /* about 300 tokens with their answers */
    CHECK_EQ(served_stop(&s, SIGTERM), 0);
    start(&s, model, pool);
    CHECK_EQ(http_metric(&s, "carat_kv_pool_tokens"), 1600);
    all.until_ms = clock_ms() + seconds() * 1e3;
    crowd_in(&all, &half, &end);
    printf("  %.0f times one had to leave; %.1f MiB more in the second half\n",
           http_metric(&s, "carat_kv_preempted_total"), (end - half) / 1048576);
    CHECK(http_metric(&s, "carat_kv_preempted_total") > 0);
    check_log(&s);
    CHECK_MSG(SANITIZED || end - half < GROWTH_MIB * 1048576.0, "%.1f MiB more",
              (end - half) / 1048576);
    CHECK_EQ(served_stop(&s, SIGTERM), 0);
    forget(conversations);
}

/* Each text is asked once: a second time it would go on from what its slot has. */
PLAIN_TEST(sixteen_clients_that_keep_part_of_their_keys_hear_what_they_hear_alone)
{
    static talk conversations[TALKS_MAX];
    const char *model = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    const char *const one[] = {"-t",         "1", "--ctx",     "2048", "--kv-policy", "scored",
                               "--parallel", "1", "--kv-keep", "512",  NULL};
    const char *const pool[] = {
        "--ctx", "2048",        "--parallel", "16",           "--kv-pool", "2560", "--kv-keep",
        "512",   "--kv-policy", "scored",     "--kv-host-mb", "64",        NULL};
    served s;
    crowd all = {.s = &s, .talk = conversations};
    double half, end;
    int n_lossy = 0;
    start(&s, model, one);
    ask_alone(&s, conversations, 60, 500, 80);
    CHECK_EQ(served_stop(&s, SIGTERM), 0);
    for (int i = 0; i < n_conversations(); i++)
        n_lossy += conversations[i].lossy;
    CHECK_MSG(n_lossy > n_conversations() / 2 && n_lossy < n_conversations(), "%d of %d", n_lossy,
              n_conversations());
    start(&s, model, pool);
    CHECK_EQ(http_metric(&s, "carat_kv_pool_tokens"), 2560);
    crowd_in(&all, &half, &end);
    CHECK(http_metric(&s, "carat_kv_pages_out_total") > 0);
    CHECK_EQ(http_metric(&s, "carat_kv_host_file_bytes"), 0);
    CHECK_EQ(served_stop(&s, SIGTERM), 0);
    forget(conversations);
}

TEST(pools_that_make_no_sense_are_refused_by_the_program)
{
    static const struct {
        const char *option, *value, *more, *its, *says;
    } bad[] = {
        {"--kv-pool", "many", NULL, NULL, "--kv-pool"},
        {"--kv-pool", "0", NULL, NULL, "--kv-pool"},
        {"--kv-pool", "100", NULL, NULL, "at least 512"},
        {"--kv-pool", "9000", NULL, NULL, "never hold more than 4096"},
        {"--kv-tau", "0", "--kv-policy", "lru", "--kv-tau"},
        {"--kv-policy", "best", NULL, NULL, "scored"},
        {"--kv-keep", "100", NULL, NULL, "too small"},
        {"--kv-keep", "512", "--kv-pool", "4096", "never hold more than 2048"},
        {"--kv-keep", "8192", "--kv-pool", "4096", "expected a larger --kv-pool"},
        {"--kv-host-mb", "0", NULL, NULL, "--kv-host-mb"},
        {"--kv-policy", "drafter", NULL, NULL, "expected --kv-scorer FILE"},
        {"--kv-scorer", "x.gguf", NULL, NULL, "no effect without --kv-policy drafter"},
        {"--kv-policy", "drafter", "--kv-scorer", "/nowhere.gguf", "/nowhere.gguf"},
    };
    const char *model = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *const args[] = {"serve",      "-m",        model,        "-p", "0",
                                    "--ctx",      "1024",      "--parallel", "4",  bad[i].option,
                                    bad[i].value, bad[i].more, bad[i].its,   NULL};
        AUTO(spawned_free) spawned r;
        spawn_carat(&r, &(spawn_options){0}, args);
        CHECK_MSG(r.code && r.code < 128, "%s %s: %d", bad[i].option, bad[i].value, r.code);
        CHECK_MSG(spawned_says(&r.err, bad[i].says), "%s %s: %s", bad[i].option, bad[i].value,
                  str_text(&r.err));
    }
}

/* A small model of another vocabulary scores the pages, in the program and in the server. */
TEST(programs_score_pages_by_a_small_model)
{
    char scorer[512];
    snprintf(
        scorer, sizeof scorer, "%s",
        toy_model_write(&(toy_model_file){.base = "qwen3", .words = "qwen2", .n_ctx_train = 8192}));
    const char *model = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    const char *const args[] = {"--ctx",       "2048",    "--parallel",  "2",    "--kv-keep", "512",
                                "--kv-policy", "drafter", "--kv-scorer", scorer, NULL};
    talk t = {0};
    str said = {0};
    served s;
    bool lossy;
    make_talk(&t, 1, 400, 401, 40);
    start(&s, model, args);
    ask(&s, &t, &t.said, &t.lossy);
    CHECK(t.lossy);
    CHECK_EQ(served_stop(&s, SIGTERM), 0);
    start(&s, model, args);
    ask(&s, &t, &said, &lossy);
    CHECK_STR(str_text(&said), str_text(&t.said));
    CHECK_EQ(served_stop(&s, SIGTERM), 0);
    str_cut(&said, 0);
    for (int i = 0; i < 300; i++)
        str_printf(&said, "a%d ", i);
    const char *const run[] = {"run",           "-m",          model,     "--raw",
                               str_text(&said), "-n",          "20",      "--kv-pool",
                               "512",           "--kv-policy", "drafter", "--kv-scorer",
                               scorer,          "--ctx",       "2048",    NULL};
    spawned r;
    spawn_carat(&r, &(spawn_options){0}, run);
    CHECK_MSG(r.code == 0 && spawned_says(&r.err, "pool of 512 tokens, drafter"), "%d: %s", r.code,
              str_text(&r.err));
    spawned_free(&r);
    str_free(&said);
    str_free(&t.body);
    str_free(&t.said);
}

/* Words in place of numbers and files: the pool's size, the bundled scorer, a length with k. */
TEST(server_takes_words_for_pools_scorers_and_sparse_attention)
{
    static const char *const words[][7] = {
        {"--kv-pool", "auto"},
        {"--kv-policy", "drafter", "--kv-keep", "512", "--kv-scorer", "bundled"},
        {"--sparse", "auto:4k"}};
    char model[512];
    snprintf(model, sizeof model, "%s", toy_model_write(&(toy_model_file){.n_ctx_train = 4096}));
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        served s;
        response r;
        start(&s, model, words[i]);
        http_post(&r, &s, "/v1/completions", "{\"prompt\":\"a b\",\"max_tokens\":2}");
        CHECK_MSG(r.status == 200, "%s: %s", words[i][0], str_text(&r.body));
        response_free(&r);
        CHECK_EQ(served_stop(&s, SIGTERM), 0);
    }
}

/* One file for prompt compression and for pages: it is loaded once, and both work. */
TEST(server_loads_a_scorer_of_prompts_and_pages_once)
{
    const char *model = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    const char *const args[] = {"-m",
                                model,
                                "-t",
                                "1",
                                "--ctx",
                                "2048",
                                "--parallel",
                                "2",
                                "--kv-keep",
                                "512",
                                "--kv-policy",
                                "drafter",
                                "--kv-scorer",
                                model,
                                "--compress",
                                "0.3",
                                "--compress-model",
                                model,
                                NULL};
    talk t = {0};
    served s;
    response r;
    char *log = NULL;
    size_t n = 0;
    err e = {0};
    make_talk(&t, 1, 250, 251, 20);
    served_start(&s, args);
    ask(&s, &t, &t.said, &t.lossy);
    CHECK(t.lossy);
    str_cut(&t.body, 0);
    str_puts(&t.body, "{\"max_tokens\":2,\"compress\":0.3,\"prompt\":\"");
    for (int i = 0; i < 100; i++)
        str_printf(&t.body, "Sentence %d has words. ", i);
    str_puts(&t.body, "\"}");
    http_post(&r, &s, "/v1/completions", t.body.at);
    CHECK_MSG(r.status == 200 && strstr(r.body.at, "\"compression\""), "%d: %s", r.status,
              str_text(&r.body));
    response_free(&r);
    CHECK_EQ(served_stop(&s, SIGTERM), 0);
    CHECK_OK(file_read_all(s.log, 1 << 20, &log, &n, &e), e);
    CHECK_MSG(strstr(log, "tokens at once, of pages, too"), "%s", log);
    mem_free(log);
    str_free(&t.body);
    str_free(&t.said);
}

/* The host's memory is spent: one request ends with a sentence, the others go on; with a directory
 * its pages go to a file, and the answer is the same. */
PLAIN_TEST(a_request_beyond_the_hosts_budget_ends_alone)
{
    const char *model = toy_model_write(&(toy_model_file){.n_ctx_train = 8192, .wide_heads = true});
    const char *dir = test_temp("pages");
    const char *const memory[] = {
        "--ctx",        "8192", "--parallel",      "2", "--kv-keep", "512", "--kv-policy", "lru",
        "--kv-host-mb", "1",    "--checkpoint-mb", "0", NULL};
    const char *const file[] = {"--ctx",       "8192", "--parallel",   "2", "--kv-keep",      "512",
                                "--kv-policy", "lru",  "--kv-host-mb", "1", "--kv-cache-dir", dir,
                                NULL};
    const char *const any[] = {"--ctx", "8192",        "--parallel", "2", "--kv-keep",
                               "512",   "--kv-policy", "lru",        NULL};
    talk small = {0}, large = {0};
    served s;
    response r;
    str said = {0};
    bool lossy;
    make_talk(&small, 1, 20, 30, 40);
    make_talk(&large, 2, 2000, 2001, 40);
    start(&s, model, any);
    ask(&s, &large, &large.said, &large.lossy);
    CHECK(large.lossy);
    CHECK_EQ(served_stop(&s, SIGTERM), 0);
    start(&s, model, memory);
    http_post(&r, &s, "/v1/completions", large.body.at);
    CHECK_MSG(r.status >= 400 && strstr(r.body.at, "host memory"), "%d: %s", r.status,
              str_text(&r.body));
    response_free(&r);
    ask(&s, &small, &small.said, &lossy);
    CHECK(!lossy);
    CHECK_EQ(served_stop(&s, SIGTERM), 0);
    start(&s, model, file);
    ask(&s, &large, &said, &lossy);
    CHECK(lossy);
    CHECK_STR(str_text(&said), str_text(&large.said));
    CHECK(http_metric(&s, "carat_kv_host_file_bytes") > 0);
    CHECK_EQ(served_stop(&s, SIGTERM), 0);
    str_free(&said);
    str_free(&small.body);
    str_free(&small.said);
    str_free(&large.body);
    str_free(&large.said);
}

/* Killed while pages leave and conversations are saved: nothing that is left is damaged, and
 * answers are the same. */
PLAIN_TEST(a_killed_server_leaves_nothing_damaged)
{
    enum { KILLS = 5 };
    const char *model = toy_model_write(&(toy_model_file){.n_ctx_train = 8192, .wide_heads = true});
    const char *dir = test_temp("kept");
    const char *const args[] = {"--ctx",       "8192", "--parallel",   "2", "--kv-keep",      "512",
                                "--kv-policy", "lru",  "--kv-host-mb", "1", "--kv-cache-dir", dir,
                                NULL};
    talk small[KILLS] = {{.lossy = false}}, large = {0};
    uint64_t rng = test_seed();
    served s;
    str said = {0};
    bool lossy;
    make_talk(&large, 2, 2000, 2001, 40);
    start(&s, model, args);
    ask(&s, &large, &large.said, &large.lossy);
    for (int i = 0; i < KILLS; i++) {
        make_talk(&small[i], 10 + i, 60, 61, 40);
        ask(&s, &small[i], &small[i].said, &lossy);
    }
    CHECK_EQ(served_stop(&s, SIGTERM), 0);
    for (int i = 0; i < KILLS; i++) {
        start(&s, model, args);
        int fd = http_begin(&s, "/v1/completions", large.body.at);
        int other = http_begin(&s, "/v1/completions", small[i].body.at);
        usleep((useconds_t)rng_below(&rng, 400000));
        CHECK_EQ(served_stop(&s, SIGKILL), 128 + SIGKILL);
        close(fd);
        close(other);
    }
    start(&s, model, args);
    ask(&s, &large, &said, &lossy);
    CHECK(lossy);
    CHECK_STR(str_text(&said), str_text(&large.said));
    for (int i = 0; i < KILLS; i++) {
        str_cut(&said, 0);
        ask(&s, &small[i], &said, &lossy);
        CHECK_STR(str_text(&said), str_text(&small[i].said));
    }
    CHECK_EQ(http_metric(&s, "carat_checkpoint_files_rejected_total"), 0);
    CHECK_EQ(served_stop(&s, SIGTERM), 0);
    DIR *d = opendir(dir);
    CHECK(d);
    for (struct dirent *f; (f = readdir(d));)
        CHECK_MSG(strncmp(f->d_name, "pages.", 6), "%s is left", f->d_name);
    closedir(d);
    str_free(&said);
    for (int i = 0; i < KILLS; i++) {
        str_free(&small[i].body);
        str_free(&small[i].said);
    }
    str_free(&large.body);
    str_free(&large.said);
}
