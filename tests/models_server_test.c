/* models_server_test.c - several models in one server: names, loading on demand, unloading, room.
 */
#include "tests/hub_rig.h"
#include "tests/server_rig.h"
#include "tests/spawn.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_MODELS = 3 };

static const char *const names[N_MODELS] = {"ant", "bee", "cat"};

/* Three models that answer differently, as NAME=FILE. */
static void write_models(const char *words[N_MODELS])
{
    static char text[N_MODELS][600];
    for (int i = 0; i < N_MODELS; i++) {
        toy_model_file f = {.seed = 100 + (uint64_t)i, .scale = 4, .n_ctx_train = 65536};
        snprintf(text[i], sizeof text[i], "%s=%s", names[i], toy_model_write(&f));
        words[i] = text[i];
    }
}

/* more: options, ending with NULL. */
static void start_models(served *s, const char *const *more)
{
    const char *words[N_MODELS];
    const char *args[32] = {"--ctx", "256", "-t", "1", "--parallel", "2"};
    int n = 6;
    write_models(words);
    for (int i = 0; i < N_MODELS; i++)
        args[n++] = words[i];
    while (more && *more)
        args[n++] = *more++;
    served_start(s, args);
}

/* A greedy answer. Returns the status. */
static int ask_as(const served *s, const char *model, const char *more, str *out)
{
    AUTO(response_free) response r;
    AUTO(arena_free) arena mem = {0};
    AUTO(str_free) str body = {0};
    str_printf(&body, "{\"model\":\"%s\",\"temperature\":0,\"max_tokens\":12,%s" ASK "}", model,
               more);
    http_post(&r, s, "/v1/chat/completions", body.at);
    int code = r.status;
    str_cut(out, 0);
    if (code == 200)
        str_puts(out, text_at(&mem, &r, "choices.0.message.content"));
    else
        str_puts(out, r.body.at);
    return code;
}

static void expect_state(const served *s, int i, const char *state)
{
    double until = clock_ms() + PATIENCE_MS;
    char path[40], seen[64] = "";
    snprintf(path, sizeof path, "data.%d.status.value", i);
    while (strcmp(seen, state) != 0) {
        response r;
        arena mem = {0};
        http_call(&r, s, "GET", "/v1/models", NULL, NULL);
        snprintf(seen, sizeof seen, "%s", text_at(&mem, &r, path));
        response_free(&r);
        arena_free(&mem);
        CHECK_MSG(clock_ms() < until, "%s is %s, expected %s", names[i], seen, state);
        usleep(2000);
    }
}

TEST(models_server_loads_on_demand)
{
    served s;
    response r;
    AUTO(arena_free) arena mem = {0};
    AUTO(str_free) str first = {0}, text = {0}, other = {0};
    start_models(&s, NULL);
    for (int i = 0; i < N_MODELS; i++)
        expect_state(&s, i, "unloaded");
    CHECK_EQ(ask_as(&s, "bee", "", &first), 200);
    expect_state(&s, 0, "unloaded");
    expect_state(&s, 1, "loaded");
    CHECK_EQ(ask_as(&s, "BEE:latest", "", &text), 200);
    CHECK_STR(text.at, first.at);
    CHECK_EQ(ask_as(&s, "", "", &other), 200); /* the first */
    expect_state(&s, 0, "loaded");
    CHECK(strcmp(other.at, first.at) != 0);
    CHECK_EQ(ask_as(&s, "bees", "", &text), 404);
    CHECK(strstr(text.at, "did you mean \\\"bee\\\"") && strstr(text.at, "model_not_found"));
    http_call(&r, &s, "GET", "/v1/models/cat", NULL, NULL);
    CHECK_STR(text_at(&mem, &r, "id"), "cat");
    response_free(&r);
    http_call(&r, &s, "GET", "/v1/models/dog", NULL, NULL);
    CHECK_EQ(r.status, 404);
    response_free(&r);
    http_call(&r, &s, "GET", "/props?model=cat&autoload=false", NULL, NULL);
    CHECK_EQ(r.status, 400);
    response_free(&r);
    http_call(&r, &s, "GET", "/props?model=bee", NULL, NULL);
    CHECK(r.status == 200 && strstr(r.body.at, "\"model_alias\":\"bee\""));
    response_free(&r);
    http_call(&r, &s, "GET", "/metrics", NULL, NULL);
    CHECK(strstr(r.body.at, "carat_models 3\n") && strstr(r.body.at, "carat_models_loaded 2\n"));
    CHECK(strstr(r.body.at, "carat_generations_total{model=\"bee\"} 2\n"));
    response_free(&r);
    /* The operator's way. */
    http_post(&r, &s, "/models/load", "{\"model\":\"cat\"}");
    CHECK(r.status == 200 && strstr(r.body.at, "true"));
    response_free(&r);
    expect_state(&s, 2, "loaded");
    http_post(&r, &s, "/models/unload", "{\"model\":\"bee\"}");
    CHECK_EQ(r.status, 200);
    response_free(&r);
    expect_state(&s, 1, "unloaded");
    http_post(&r, &s, "/models/unload", "{\"model\":\"dog\"}");
    CHECK_EQ(r.status, 404);
    response_free(&r);
    stop(&s);
}

TEST(models_server_unloads_what_is_idle)
{
    served s;
    AUTO(str_free) str text = {0};
    start_models(&s, ARGS("--keep-alive", "10ms"));
    CHECK_EQ(ask_as(&s, "ant", "\"keep_alive\":-1,", &text), 200);
    CHECK_EQ(ask_as(&s, "bee", "", &text), 200);
    CHECK_EQ(ask_as(&s, "cat", "\"keep_alive\":\"1h\",", &text), 200);
    expect_state(&s, 1, "unloaded");
    expect_state(&s, 0, "loaded");
    expect_state(&s, 2, "loaded");
    CHECK_EQ(ask_as(&s, "cat", "\"keep_alive\":0,", &text), 200);
    expect_state(&s, 2, "unloaded");
    static const char *const embeddings[] = {"/v1/embeddings", "/api/embed"};
    for (int i = 0; i < 2; i++) { /* they hold a model and let it go, too */
        response r;
        http_post(&r, &s, embeddings[i], "{\"model\":\"bee\",\"input\":\"x\",\"keep_alive\":-1}");
        CHECK_EQ(r.status, 200);
        response_free(&r);
        usleep(50000); /* five times --keep-alive */
        expect_state(&s, 1, "loaded");
        http_post(&r, &s, embeddings[i], "{\"model\":\"bee\",\"input\":\"x\",\"keep_alive\":0}");
        CHECK_EQ(r.status, 200);
        response_free(&r);
        expect_state(&s, 1, "unloaded");
        http_post(&r, &s, embeddings[i], "{\"input\":\"x\",\"keep_alive\":\"soon\"}");
        CHECK(r.status == 400 && strstr(r.body.at, "keep_alive"));
        response_free(&r);
    }
    CHECK_EQ(ask_as(&s, "cat", "\"keep_alive\":\"soon\",", &text), 400);
    CHECK(strstr(text.at, "keep_alive"));
    stop(&s);
}

TEST(models_server_makes_room)
{
    served s;
    AUTO(str_free) str text = {0};
    start_models(&s, ARGS("--max-loaded", "2"));
    CHECK_EQ(ask_as(&s, "ant", "", &text), 200);
    CHECK_EQ(ask_as(&s, "bee", "", &text), 200);
    CHECK_EQ(ask_as(&s, "ant", "", &text), 200);
    CHECK_EQ(ask_as(&s, "cat", "", &text), 200); /* bee was used longest ago */
    expect_state(&s, 0, "loaded");
    expect_state(&s, 1, "unloaded");
    expect_state(&s, 2, "loaded");
    stop(&s);
    start_models(&s, ARGS("--memory", "1"));
    CHECK_EQ(ask_as(&s, "ant", "", &text), 503); /* no model fits */
    CHECK(strstr(text.at, "model_no_memory") && strstr(text.at, "GiB"));
    stop(&s);
}

/* A model that is at work keeps its memory, and the other waits for it, but not for ever. */
TEST(models_server_waits_for_busy_models)
{
    served s;
    AUTO(str_free) str seen = {0}, text = {0};
    start_models(&s, ARGS("--max-loaded", "1", "--load-wait", "1", "--ctx", "60000"));
    int fd =
        http_begin(&s, "/v1/chat/completions",
                   "{\"model\":\"ant\",\"stream\":true,\"ignore_eos\":true,\"seed\":1," ASK "}");
    CHECK(http_read_until(fd, &seen, "content"));
    CHECK_EQ(ask_as(&s, "bee", "", &text), 503);
    CHECK_MSG(strstr(text.at, "at work"), "%s", text.at);
    close(fd); /* ant ends with its client; how soon depends on the machine */
    int code = 503;
    for (double until = clock_ms() + PATIENCE_MS; code == 503 && clock_ms() < until; usleep(20000))
        code = ask_as(&s, "bee", "", &text);
    CHECK_EQ(code, 200);
    expect_state(&s, 0, "unloaded");
    stop(&s);
}

/* One that waits in line, or for room, is stopped at once, and nothing leaves for it. */
TEST(models_server_stops_a_loading_that_waits)
{
    served s;
    AUTO(str_free) str seen = {0};
    response r;
    start_models(&s, ARGS("--max-loaded", "1", "--load-wait", "60", "--ctx", "60000"));
    int fd =
        http_begin(&s, "/v1/chat/completions",
                   "{\"model\":\"ant\",\"stream\":true,\"ignore_eos\":true,\"seed\":1," ASK "}");
    CHECK(http_read_until(fd, &seen, "content"));
    for (int i = 1; i < N_MODELS; i++) {
        char body[40];
        snprintf(body, sizeof body, "{\"model\":\"%s\"}", names[i]);
        http_post(&r, &s, "/models/load", body);
        CHECK_EQ(r.status, 200);
        response_free(&r);
        expect_state(&s, i, "loading");
    }
    for (int i = N_MODELS - 1; i > 0; i--) { /* cat is in line behind bee */
        char body[40];
        snprintf(body, sizeof body, "{\"model\":\"%s\"}", names[i]);
        http_post(&r, &s, "/models/unload", body);
        CHECK_EQ(r.status, 200);
        response_free(&r);
        expect_state(&s, i, "unloaded");
    }
    expect_state(&s, 0, "loaded");
    close(fd);
    stop(&s);
}

TEST(models_server_does_not_start_without_a_file_that_is_named)
{
    char there[600];
    snprintf(there, sizeof there, "ant=%s", toy_model_write(NULL));
    spawn_check(1, NULL, "carat: none.gguf: cannot open",
                ARGS("serve", "-p", "0", there, "bee=none.gguf"));
}

TEST(models_server_says_why_a_file_cannot_be_loaded)
{
    served s;
    AUTO(str_free) str text = {0}, path = {0};
    const char *dir = test_temp("models");
    CHECK(!mkdir(dir, 0700));
    str_printf(&path, "%s/broken.gguf", dir);
    FILE *f = fopen(path.at, "we");
    CHECK(f && fputs("GGUF but not really", f) >= 0 && !fclose(f));
    served_start(&s, ARGS("--models", dir, "-t", "1", "--ctx", "256"));
    for (int i = 0; i < 3; i++) { /* the sentence is repeated, not the attempt */
        CHECK_EQ(ask_as(&s, "broken", "", &text), 500);
        CHECK(strstr(text.at, "could not be loaded"));
    }
    /* A whole file in its place is taken at once; a new one in the directory is found. */
    CHECK(!rename(toy_model_write(NULL), path.at));
    CHECK_EQ(ask_as(&s, "broken", "", &text), 200);
    str_cut(&path, 0);
    str_printf(&path, "%s/late.gguf", dir);
    CHECK(!rename(toy_model_write(&(toy_model_file){.seed = 9}), path.at));
    int code = 404;
    for (double until = clock_ms() + PATIENCE_MS; code == 404 && clock_ms() < until;) {
        code = ask_as(&s, "late", "", &text);
        usleep(100000);
    }
    CHECK_EQ(code, 200);
    CHECK(!unlink(path.at));
    CHECK_EQ(ask_as(&s, "late", "", &text), 200); /* its pages are mapped */
    stop(&s);
}

/* Room is made for a model once its head was read and its plan fits: a broken file makes none
 * leave. */
TEST(models_server_unloads_nothing_for_a_file_that_cannot_be_loaded)
{
    served s;
    AUTO(str_free) str text = {0};
    const char *broken = test_temp("broken.gguf");
    test_write(broken, "GGUF but not really", 19);
    start_models(&s, ARGS("--max-loaded", "1", broken));
    CHECK_EQ(ask_as(&s, "ant", "", &text), 200);
    CHECK_EQ(ask_as(&s, "broken", "", &text), 500);
    CHECK(strstr(text.at, "could not be loaded"));
    expect_state(&s, 0, "loaded");
    CHECK_EQ(ask_as(&s, "bee", "", &text), 200);
    expect_state(&s, 0, "unloaded");
    stop(&s);
}

static int count_in_log(const served *s, const char *text)
{
    AUTO_MEM char *log;
    size_t n_log;
    int n = 0;
    err e = {0};
    CHECK_OK(file_read_all(s->log, 1 << 24, &log, &n_log, &e), e);
    for (const char *at = log; (at = strstr(at, text)); at += strlen(text))
        n++;
    return n;
}

/* Requests that wait for one model load it once. One whose client leaves gives its place back. */
TEST(models_server_loads_once_and_frees_the_place_of_who_leaves)
{
    served s;
    AUTO(str_free) str seen = {0}, text = {0};
    static const char wait[] = "{\"model\":\"bee\",\"max_tokens\":2," ASK "}";
    start_models(&s, ARGS("--max-loaded", "1", "--queue", "2", "--ctx", "60000"));
    int fd = http_begin(&s, "/v1/chat/completions",
                        "{\"model\":\"ant\",\"stream\":true,\"ignore_eos\":true," ASK "}");
    CHECK(http_read_until(fd, &seen, "content"));
    int two[2];
    for (int i = 0; i < 2; i++)
        two[i] = http_begin(&s, "/v1/chat/completions", wait);
    int code = 0;
    for (double until = clock_ms() + PATIENCE_MS; code != 429 && clock_ms() < until; usleep(5000)) {
        int more = http_begin(&s, "/v1/chat/completions", wait);
        struct pollfd answer = {more, POLLIN, 0}; /* none: it got a place before those two */
        str_cut(&seen, 0);
        if (poll(&answer, 1, 300) > 0)
            code = http_read_until(more, &seen, "429") ? 429 : 0;
        close(more);
    }
    CHECK_EQ(code, 429); /* the place of both is taken */
    close(two[0]);
    close(two[1]);
    double until = clock_ms() + PATIENCE_MS;
    while (!count_in_log(&s, "nobody waits for it") && clock_ms() < until)
        usleep(5000);
    CHECK_EQ(count_in_log(&s, "nobody waits for it"), 1);
    CHECK_EQ(count_in_log(&s, "loading bee"), 1);
    close(fd); /* the next client hears of no failure */
    code = 429;
    for (until = clock_ms() + PATIENCE_MS; code == 429 && clock_ms() < until; usleep(5000))
        code = ask_as(&s, "bee", "", &text);
    CHECK_MSG(code == 200, "%d: %s", code, text.at);
    CHECK_EQ(count_in_log(&s, "ready: bee"), 1);
    stop(&s);
}

/* Two fit, a third makes the one used longest ago leave, and one that could not fit makes none. */
PLAIN_TEST(models_server_plans_before_another_leaves)
{
    served s;
    AUTO(str_free) str text = {0}, word = {0}, room = {0};
    response r;
    AUTO(arena_free) arena mem = {0};
    const char *large = test_path("models/demo.gguf");
    if (access(large, R_OK))
        test_skip("there is no models/demo.gguf");
    str_printf(&word, "dog=%s", large);
    start_models(&s, ARGS("--ctx", "32768"));
    CHECK_EQ(ask_as(&s, "ant", "", &text), 200);
    http_call(&r, &s, "GET", "/api/ps", NULL, NULL);
    long long one = atoll(json_at(json_parsed(&mem, r.body.at, r.body.n), "models.0.size")->s);
    response_free(&r);
    stop(&s);
    str_printf(&room, "%lld", one * 5 / 2 >> 20);
    start_models(&s, ARGS("--ctx", "32768", "--memory", room.at, word.at));
    CHECK_EQ(ask_as(&s, "ant", "", &text), 200);
    CHECK_EQ(ask_as(&s, "bee", "", &text), 200);
    CHECK_EQ(ask_as(&s, "dog", "", &text), 503);
    CHECK_MSG(strstr(text.at, "model_no_memory"), "%s", text.at);
    expect_state(&s, 0, "loaded");
    expect_state(&s, 1, "loaded");
    CHECK_EQ(ask_as(&s, "cat", "", &text), 200);
    expect_state(&s, 0, "unloaded");
    expect_state(&s, 1, "loaded");
    stop(&s);
}

TEST(models_server_loads_by_hand_alone_if_asked)
{
    served s;
    response r;
    AUTO(str_free) str text = {0};
    start_models(&s, ARGS("--no-models-autoload"));
    CHECK_EQ(ask_as(&s, "ant", "", &text), 400);
    CHECK_MSG(strstr(text.at, "model_not_loaded"), "%s", text.at);
    http_post(&r, &s, "/v1/chat/completions?autoload=true",
              "{\"model\":\"bee\",\"max_tokens\":2," ASK "}");
    CHECK_EQ(r.status, 200);
    response_free(&r);
    http_post(&r, &s, "/models/load", "{\"model\":\"ant\"}");
    CHECK_EQ(r.status, 200);
    response_free(&r);
    expect_state(&s, 0, "loaded");
    CHECK_EQ(ask_as(&s, "ant", "", &text), 200);
    stop(&s);
}

/* Without a model the bundled one answers to any name, and every pulled model to its own names. */
TEST(models_server_without_a_model_offers_those_of_this_machine)
{
    static hub_rig hub;
    served s;
    response r;
    AUTO(arena_free) arena mem = {0};
    AUTO(str_free) str text = {0}, own = {0};
    char *bytes;
    size_t n;
    err e = {0};
    hub_rig_open(&hub, "own/Model-GGUF");
    CHECK_OK(file_read_all(toy_model_write(NULL), 1 << 30, &bytes, &n, &e), e);
    hub_rig_add_bytes(&hub, "Model-Q8_0.gguf", bytes, n, false);
    mem_free(bytes);
    served_start(&s, ARGS("-t", "1", "--ctx", "256", "--parallel", "1"));
    CHECK_EQ(ask_as(&s, "gpt-4o", "", &own), 200);
    http_post(&r, &s, "/api/pull", "{\"model\":\"own/Model-GGUF\"}");
    CHECK_MSG(strstr(str_text(&r.body), "success"), "%s", str_text(&r.body));
    response_free(&r);
    expect_state(&s, 0, "loaded");
    expect_state(&s, 1, "unloaded");
    static const char *const called[] = {"own/Model-GGUF:Q8_0", "model", "Model-GGUF:q8_0"};
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(ask_as(&s, called[i], "", &text), 200);
        CHECK(strcmp(text.at, own.at) != 0);
        expect_state(&s, 1, "loaded");
        http_post(&r, &s, "/models/unload", "{\"model\":\"own/Model-GGUF:Q8_0\"}");
        CHECK_EQ(r.status, 200);
        response_free(&r);
        expect_state(&s, 1, "unloaded");
    }
    CHECK_EQ(ask_as(&s, "gpt-4o", "", &text), 200);
    CHECK_STR(text.at, own.at);
    CHECK_EQ(ask_as(&s, "own/Model-GGUF:Q4_0", "", &text), 404);
    CHECK_MSG(strstr(text.at, "carat pull"), "%s", text.at);
    CHECK_EQ(ask_as(&s, "gemma4:e4b", "", &text), 404);
    http_post(&r, &s, "/models/unload", "{\"model\":\"gpt-4o\"}"); /* names none here */
    CHECK_EQ(r.status, 404);
    response_free(&r);
    expect_state(&s, 0, "loaded");
    http_call(&r, &s, "GET", "/v1/models/model", NULL, NULL);
    CHECK(r.status == 200 && !strcmp(text_at(&mem, &r, "status.value"), "unloaded"));
    response_free(&r);
    stop(&s);
    hub_rig_close(&hub);
}

/* ---- Under load ---- */

typedef struct stress {
    const served *s;
    const str *alone; /* [N_MODELS] */
    uint64_t rng;
    int n_right, n_busy;
    pthread_t thread;
} stress;

static void *press(void *arg)
{
    stress *t = arg;
    AUTO(str_free) str text = {0};
    static const char *const keeps[] = {"", "\"keep_alive\":0,", "\"keep_alive\":\"5ms\","};
    for (int i = 0; i < 12; i++) {
        int m = (int)rng_below(&t->rng, N_MODELS);
        int code = ask_as(t->s, names[m], keeps[rng_below(&t->rng, 3)], &text);
        CHECK_MSG(code == 200 || code == 503, "%d: %s", code, text.at);
        if (code == 200)
            CHECK_STR(text.at, t->alone[m].at);
        t->n_right += code == 200;
        t->n_busy += code == 503;
    }
    return NULL;
}

/* Models come and go while six clients ask all three and two fit. Each answer is the one given
 * alone. */
PLAIN_TEST(models_server_answers_alike_while_models_come_and_go)
{
    enum { N_CLIENTS = 6 };
    served s;
    str alone[N_MODELS] = {{0}};
    stress t[N_CLIENTS];
    int n_right = 0;
    start_models(&s, ARGS("--max-loaded", "2", "--keep-alive", "20ms", "--load-wait", "300"));
    for (int i = 0; i < N_MODELS; i++)
        CHECK_EQ(ask_as(&s, names[i], "", &alone[i]), 200);
    for (int i = 0; i < N_CLIENTS; i++) {
        t[i] = (stress){.s = &s, .alone = alone, .rng = test_seed() + (uint64_t)i};
        CHECK(!pthread_create(&t[i].thread, NULL, press, &t[i]));
    }
    for (int i = 0; i < N_CLIENTS; i++) {
        pthread_join(t[i].thread, NULL);
        n_right += t[i].n_right;
    }
    CHECK_MSG(n_right == N_CLIENTS * 12, "%d", n_right);
    stop(&s);
    for (int i = 0; i < N_MODELS; i++)
        str_free(&alone[i]);
}

/* A signal while models are loaded and asked for: it ends in order. */
TEST(models_server_ends_while_it_loads)
{
#ifdef __SANITIZE_THREAD__
    /* The gate's thread adds connections and is joined before MHD_stop_daemon (http_close), whose
     * thread frees them. libmicrohttpd passes that order on by a plain flag, which the sanitizer
     * does not count. */
    test_skip("ThreadSanitizer does not see how libmicrohttpd orders its end");
#endif
    for (int k = 0; k < 4; k++) {
        served s;
        int fd[N_MODELS];
        start_models(&s, ARGS("--max-loaded", "1", "--drain", "5"));
        for (int i = 0; i < N_MODELS; i++) {
            AUTO(str_free) str body = {0};
            str_printf(&body, "{\"model\":\"%s\",\"max_tokens\":3," ASK "}", names[i]);
            fd[i] = http_begin(&s, "/v1/chat/completions", body.at);
        }
        usleep((useconds_t)k * 3000);
        stop(&s);
        for (int i = 0; i < N_MODELS; i++)
            close(fd[i]);
    }
}

/* A second wish for a model that is loaded does not bring it back after it had to leave. */
TEST(models_server_loads_no_model_twice_by_hand)
{
    served s;
    response r;
    AUTO(str_free) str text = {0};
    start_models(&s, ARGS("--max-loaded", "1"));
    for (int i = 0; i < 2; i++) {
        http_post(&r, &s, "/models/load", "{\"model\":\"ant\"}");
        CHECK_EQ(r.status, 200);
        response_free(&r);
        expect_state(&s, 0, "loaded");
    }
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(ask_as(&s, "bee", "", &text), 200);
        usleep(50000);
    }
    CHECK_EQ(count_in_log(&s, "ready: ant,"), 1);
    CHECK_EQ(count_in_log(&s, "ready: bee,"), 1);
    CHECK_EQ(count_in_log(&s, " tokens, prompts in chunks of "), count_in_log(&s, "ready: "));
    stop(&s);
}
