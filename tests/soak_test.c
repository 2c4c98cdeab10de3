/* soak_test.c - many clients at once, polite and rude ones, against one server.
 *
 * Each conversation is first held alone. Then threads hold all of them at random, whole and
 * streamed, in all dialects; they leave in the middle, send bad and half bodies, read slowly, read
 * the metrics. Every complete answer must equal the answer that was given alone. Afterwards no
 * request is at work and the server ends in order, which is when sanitizers report.
 *
 * SOAK_SECONDS in the environment sets the duration. The toy model has short passes, so clients
 * meet at all places of the server in a few seconds.
 */
#include "tests/http_client.h"
#include "tests/spawn.h"
#include "tests/test.h"
#include "tests/toy_model.h"
#include "base/clock.h"
#include "base/rng.h"

#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    N_CLIENTS = 16,
    SECONDS_BRIEF = 2,
    SECONDS_LONG = 4,
    SECONDS_MAX = 400, /* of the time a test may take */
    GROWTH_MIB = 24    /* of the resident memory in the second half; without sanitizers */
};

typedef struct talk {
    const char *path, *whole_at, *delta_at; /* where the text is */
    str whole, stream;                      /* bodies */
    str said, streamed;                     /* what was answered when it was alone */
} talk;

typedef enum deed { WHOLE, STREAM, LEAVE, BAD, HALF, SLOW, LOOK, N_DEEDS } deed;
static const char *const deed_names[] = {"whole answers", "streams", "left early",  "bad bodies",
                                         "half bodies",   "slow",    "looks inside"};
static const int weights[] = {30, 30, 20, 8, 4, 4, 4}; /* of 100 */

typedef struct soak {
    const served *s;
    talk *talk;
    int n_conversations;
    double until_ms;
} soak;

typedef struct client {
    const soak *all;
    uint64_t rng;
    int64_t n[N_DEEDS], n_again;
    pthread_t thread;
} client;

/* ---- Conversations ---- */

static const struct {
    const char *path, *whole_at, *delta_at, *before, *after;
} dialects[] = {
    {"/v1/chat/completions", "choices.0.message.content", "choices.0.delta.content",
     "\"max_tokens\":16,\"messages\":[", "{\"role\":\"user\",\"content\":\"%s\"}]"},
    {"/v1/messages", "content.0.text", "delta.text", "\"max_tokens\":16,\"messages\":[",
     "{\"role\":\"user\",\"content\":\"%s\"}]"},
    {"/v1/responses", "output.0.content.0.text", "delta", "\"max_output_tokens\":16,\"input\":[",
     "{\"role\":\"user\",\"content\":\"%s\"}]"},
    {"/v1/completions", "choices.0.text", "choices.0.text", "\"max_tokens\":16,\"prompt\":\"",
     "%s\""},
};

/* Conversations of all dialects: short and long, new ones and edited ones, greedy and drawn. */
static void make_talk(talk *t, int i)
{
    static const char *const asks[] = {"Say something.", "And then?", "What is the weather?"};
    size_t d = (size_t)i % 4;
    *t = (talk){.path = dialects[d].path,
                .whole_at = dialects[d].whole_at,
                .delta_at = dialects[d].delta_at};
    str_printf(&t->whole, "{\"temperature\":%s,\"seed\":%d,%s", i % 3 ? "0" : "1.25", i,
               dialects[d].before);
    if (i % 5 >= 2 && d != 3) /* a history; one that ends differently was edited */
        str_printf(
            &t->whole,
            "{\"role\":\"user\",\"content\":\"Tell me of the sea.\"},{\"role\":\"assistant\","
            "\"content\":\"It is %s.\"},",
            i % 5 == 2 ? "wide" : "deep and cold");
    AUTO(str_free) str ask = {0};
    for (int k = 0; i % 7 == 3 && k < 40; k++)
        str_puts(&ask, "The quick brown fox. ");
    str_puts(&ask, asks[i / 4 % 3]);
    str_printf(&t->whole, dialects[d].after, ask.at);
    str_put(&t->stream, t->whole.at, t->whole.n);
    str_puts(&t->whole, "}");
    str_puts(&t->stream, ",\"stream\":true}");
}

static void forget_talk(talk *t)
{
    str_free(&t->whole);
    str_free(&t->stream);
    str_free(&t->said);
    str_free(&t->streamed);
}

/* The text of a whole answer or of a stream; false if the queue was full. An answer may be all
 * markers: then the path leads nowhere, and it is "". */
static bool hear_answer(const served *s, const talk *t, bool stream, str *said)
{
    AUTO(response_free) response r;
    http_post(&r, s, t->path, stream ? t->stream.at : t->whole.at);
    bool taken = r.status != 429;
    CHECK_MSG(!taken || r.status == 200, "%s: %d: %s", t->path, r.status, str_text(&r.body));
    if (taken && stream) {
        CHECK_MSG(!strstr(r.body.at, "\"error\":{"), "%s", r.body.at);
        stream_text(&r, t->delta_at, said);
    } else if (taken) {
        AUTO(arena_free) arena mem = {0};
        const jtree *v = json_at(json_parsed(&mem, r.body.at, r.body.n), t->whole_at);
        str_puts(said, jtree_is(v, JTREE_STRING) ? v->s : "");
    }
    return taken;
}

/* ---- Clients ---- */

static const char *const bad_bodies[] = {
    "",
    "{",
    "[]",
    "{\"messages\":1,\"input\":1,\"prompt\":{}}",
    "{\"a\":\"\xff\"}",
    "{\"temperature\":1e999,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"input\":\"x\","
    "\"prompt\":\"x\"}",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"input\":\"x\",\"prompt\":\"x\","
    "\"seed\":\"many\"}"};

static void say_again(client *c, const talk *t, bool stream)
{
    AUTO(str_free) str said = {0};
    while (!hear_answer(c->all->s, t, stream, &said)) {
        c->n_again++;
        usleep(20000);
    }
    CHECK_STR(str_text(&said), str_text(stream ? &t->streamed : &t->said));
}

/* Reads a part of a stream, or nothing, and leaves. */
static void leave(client *c, const talk *t)
{
    char buf[256];
    int fd = http_begin(c->all->s, t->path, t->stream.at);
    for (uint64_t n = rng_below(&c->rng, 12); n > 0; n--)
        if (recv(fd, buf, 1 + rng_below(&c->rng, sizeof buf), 0) <= 0)
            break;
    close(fd);
}

static void send_half(client *c, const talk *t)
{
    char head[256];
    int fd = http_dial(c->all->s);
    int n =
        snprintf(head, sizeof head,
                 "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{", t->path);
    if (send(fd, head, rng_below(&c->rng, (uint64_t)n) + 1, MSG_NOSIGNAL) > 0 && n % 2)
        usleep(1000);
    close(fd);
}

static void read_slowly(client *c, const talk *t)
{
    str seen = {0};
    int fd = http_begin(c->all->s, t->path, t->stream.at);
    usleep(100000 + (useconds_t)rng_below(&c->rng, 100000));
    http_read_until(fd, &seen, "\r\n0\r\n");
    CHECK_MSG(seen.n &&
                  (!memcmp(seen.at, "HTTP/1.1 200", 12) || !memcmp(seen.at, "HTTP/1.1 429", 12)),
              "%s", str_text(&seen));
    str_free(&seen);
    close(fd);
}

static void do_something(client *c, deed what)
{
    static const char *const inside[] = {"/metrics", "/slots", "/health", "/props", "/v1/models"};
    const talk *t = &c->all->talk[rng_below(&c->rng, (uint64_t)c->all->n_conversations)];
    response r;
    switch (what) {
    case WHOLE:
    case STREAM:
        say_again(c, t, what == STREAM);
        break;
    case LEAVE:
        leave(c, t);
        break;
    case BAD:
        http_post(&r, c->all->s, t->path,
                  bad_bodies[rng_below(&c->rng, sizeof bad_bodies / sizeof *bad_bodies)]);
        CHECK_MSG(r.status == 400 && strstr(r.body.at, "\"message\":\""), "%d: %s", r.status,
                  str_text(&r.body));
        response_free(&r);
        break;
    case HALF:
        send_half(c, t);
        break;
    case SLOW:
        read_slowly(c, t);
        break;
    case LOOK:
        http_call(&r, c->all->s, "GET", inside[rng_below(&c->rng, 5)], NULL, NULL);
        CHECK_EQ(r.status, 200);
        response_free(&r);
        break;
    case N_DEEDS:
        break;
    }
    c->n[what]++;
}

static void *live(void *arg)
{
    client *c = arg;
    while (clock_ms() < c->all->until_ms) {
        int at = (int)rng_below(&c->rng, 100), what = 0;
        while (at >= weights[what])
            at -= weights[what++];
        do_something(c, (deed)what);
    }
    return NULL;
}

/* ---- The server's own numbers ---- */

static void wait_for_rest(const served *s)
{
    static const char *const names[] = {"carat_slots_busy", "carat_queue_depth",
                                        "carat_requests_active"};
    double start = clock_ms();
    for (int i = 0; i < 3; i++)
        while (http_metric(s, names[i]) > 0) {
            CHECK_MSG(clock_ms() - start < PATIENCE_MS, "%s is still %g", names[i],
                      http_metric(s, names[i]));
            usleep(20000);
        }
}

static double seconds(void)
{
    const char *said = getenv("SOAK_SECONDS");
    double usual = test_brief() ? SECONDS_BRIEF : SECONDS_LONG, s = said ? atof(said) : usual;
    return s > 0 && s < SECONDS_MAX ? s : usual;
}

/* Ends it, and shows what it said if that was not in order. */
static void end_server(served *s)
{
    int code = served_stop(s, SIGTERM);
    FILE *log = code ? fopen(s->log, "r") : NULL;
    char line[512];
    for (int n = 0; log && n < 400 && fgets(line, sizeof line, log); n++)
        fputs(line, stdout);
    if (log)
        fclose(log);
    CHECK_EQ(code, 0);
}

TEST(server_soak_with_rude_clients)
{
    enum { N_TALKS = 24 };
    static talk conversations[N_TALKS];
    static client clients[N_CLIENTS];
    const char *args[] = {"-m",
                          toy_model_write(&(toy_model_file){.n_ctx_train = 4096}),
                          "--ctx",
                          "1024",
                          "-t",
                          "2",
                          "--parallel",
                          "4",
                          "--queue",
                          "11",
                          "--checkpoint-mb",
                          "4",
                          "--log",
                          "off",
                          NULL};
    served s;
    soak all = {.s = &s, .talk = conversations, .n_conversations = N_TALKS};
    int64_t n[N_DEEDS] = {0}, n_again = 0;
    served_start(&s, args);
    for (int i = 0; i < N_TALKS; i++) {
        make_talk(&conversations[i], i);
        CHECK(hear_answer(&s, &conversations[i], false, &conversations[i].said));
        CHECK(hear_answer(&s, &conversations[i], true, &conversations[i].streamed));
    }
    double start = clock_ms(), ms = seconds() * 1e3;
    all.until_ms = start + ms;
    for (int i = 0; i < N_CLIENTS; i++) {
        clients[i] = (client){.all = &all, .rng = test_seed() + (uint64_t)i};
        CHECK(!pthread_create(&clients[i].thread, NULL, live, &clients[i]));
    }
    while (clock_ms() < start + ms / 2)
        usleep(10000);
    double half = http_metric(&s, "carat_resident_memory_bytes");
    for (int i = 0; i < N_CLIENTS; i++) {
        pthread_join(clients[i].thread, NULL);
        n_again += clients[i].n_again;
        for (int k = 0; k < N_DEEDS; k++)
            n[k] += clients[i].n[k];
    }
    wait_for_rest(&s);
    double grown = (http_metric(&s, "carat_resident_memory_bytes") - half) / 1048576;
    for (int k = 0; k < N_DEEDS; k++)
        printf("  %lld %s,", (long long)n[k], deed_names[k]);
    printf(" %lld times 429; %.1f MiB more in the second half\n", (long long)n_again, grown);
    CHECK_MSG(SANITIZED || grown < GROWTH_MIB, "%.1f MiB more", grown);
    end_server(&s);
    for (int i = 0; i < N_TALKS; i++)
        forget_talk(&conversations[i]);
}
