/* clients_server_test.c - `carat serve` and its clients: many at once, those that leave, slow and
 * hostile connections, the memory of a request, and the end of the server. */
#include "tests/http_client.h"
#include "tests/server_rig.h"
#include "tests/spawn.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- Several at once ---- */

typedef struct asker {
    const served *s;
    const char *body;
    response r;
} asker;

static void *ask(void *arg)
{
    asker *a = arg;
    http_post(&a->r, a->s, "/v1/chat/completions", a->body);
    return NULL;
}

TEST(server_answers_many_as_it_answers_one)
{
    enum { N = 12 };
    static char bodies[N][256];
    asker a[N];
    pthread_t t[N];
    arena mem = {0};
    AUTO(stop) served s;
    start_toy(&s, ARGS("--parallel", "4"));
    for (int i = 0; i < N; i++) {
        snprintf(bodies[i], sizeof bodies[i],
                 "{\"messages\":[{\"role\":\"user\",\"content\":\"Number %d.\"}],\"max_tokens\":20,"
                 "\"temperature\":%s,\"seed\":%d}",
                 i, i % 2 ? "0" : "1.5", i);
        a[i] = (asker){.s = &s, .body = bodies[i]};
        CHECK(!pthread_create(&t[i], NULL, ask, &a[i]));
    }
    for (int i = 0; i < N; i++) {
        response alone;
        pthread_join(t[i], NULL);
        CHECK_MSG(a[i].r.status == 200, "%s", str_text(&a[i].r.body));
        http_post(&alone, &s, "/v1/chat/completions", bodies[i]);
        CHECK_STR(text_at(&mem, &a[i].r, "choices.0.message.content"),
                  text_at(&mem, &alone, "choices.0.message.content"));
        response_free(&alone);
        response_free(&a[i].r);
    }
    arena_free(&mem);
}

/* A stream that lasts until the context is full. What was read of it is appended to seen, unless
 * that is NULL. */
static int begin_long(const served *s, str *seen)
{
    AUTO(str_free) str none = {0};
    int fd = http_begin(s, "/v1/chat/completions",
                        "{" ASK ",\"stream\":true,\"ignore_eos\":true,\"temperature\":0}");
    CHECK(http_read_until(fd, seen ? seen : &none, "\"content\":"));
    return fd;
}

static int busy_slots(const served *s)
{
    AUTO(response_free) response r;
    int busy;
    http_call(&r, s, "GET", "/metrics", NULL, NULL);
    const char *line = strstr(r.body.at, "\ncarat_slots_busy ");
    CHECK(line && sscanf(line, "\ncarat_slots_busy %d", &busy) == 1);
    return busy;
}

/* Numbers are as of the last pass. */
static void wait_for_busy(const served *s, int n)
{
    double start = clock_ms();
    int busy;
    while ((busy = busy_slots(s)) != n && clock_ms() - start < PATIENCE_MS)
        usleep(10000);
    CHECK_EQ(busy, n);
}

TEST(server_stops_for_clients_that_leave)
{
    const char *args[] = {
        "-m", toy_model_write(&(toy_model_file){.n_ctx_train = 65536}), "--ctx", "60000", "-t", "1",
        NULL};
    AUTO(stop) served s;
    served_start(&s, args);
    int fd = begin_long(&s, NULL);
    wait_for_busy(&s, 1);
    close(fd);
    wait_for_busy(&s, 0);
}

TEST(server_queue_is_full_at_some_point)
{
    const char *args[] = {"-m",         toy_model_write(&(toy_model_file){.n_ctx_train = 65536}),
                          "--ctx",      "60000",
                          "-t",         "1",
                          "--parallel", "1",
                          "--queue",    "1",
                          NULL};
    AUTO(stop) served s;
    response r;
    served_start(&s, args);
    int first = begin_long(&s, NULL);
    int second = http_begin(&s, "/v1/chat/completions",
                            "{" ASK ",\"max_tokens\":2,\"temperature\":0,\"stream\":true}");
    str seen = {0};
    CHECK(http_read_until(second, &seen, "\r\n\r\n")); /* accepted, and waiting */
    http_post(&r, &s, "/v1/chat/completions", "{" ASK "}");
    CHECK_MSG(r.status == 429, "%d %s", r.status, r.body.at);
    CHECK(strstr(r.head.at, "Retry-After: ") && strstr(r.body.at, "rate_limit_error"));
    response_free(&r);
    close(first);
    CHECK_MSG(http_read_until(second, &seen, "[DONE]"), "%s", seen.at); /* then it runs */
    str_free(&seen);
    close(second);
}

static void wait_for_draining(const served *s)
{
    int code = 200;
    for (double start = clock_ms(); code == 200 && clock_ms() - start < PATIENCE_MS;
         usleep(10000)) {
        response r;
        http_call(&r, s, "GET", "/health", NULL, NULL);
        code = r.status;
        response_free(&r);
    }
    CHECK_EQ(code, 503);
}

TEST(server_drains_on_the_first_signal_and_ends_on_the_second)
{
    served s;
    AUTO(str_free) str seen = {0};
    start_toy(&s, ARGS("--drain", "300"));
    int fd = begin_long(&s, &seen);
    kill(s.pid, SIGTERM);
    CHECK_MSG(http_read_until(fd, &seen, "[DONE]"), "%s", str_text(&seen));
    close(fd);
    CHECK_EQ(served_stop(&s, 0), 0);
    const char *args[] = {
        "-m", toy_model_write(&(toy_model_file){.n_ctx_train = 65536}), "--ctx", "60000", "-t", "1",
        NULL};
    served_start(&s, args);
    fd = begin_long(&s, NULL);
    kill(s.pid, SIGTERM);
    wait_for_draining(&s); /* two signals at once would be one */
    CHECK_EQ(served_stop(&s, SIGTERM), 128 + SIGTERM);
    close(fd);
}

/* A terminal that closes may send SIGHUP twice. */
TEST(server_drains_when_its_terminal_closes)
{
    served s;
    AUTO(str_free) str seen = {0};
    start_toy(&s, ARGS("--drain", "300"));
    int fd = begin_long(&s, &seen);
    kill(s.pid, SIGHUP);
    wait_for_draining(&s);
    kill(s.pid, SIGHUP);
    CHECK_MSG(http_read_until(fd, &seen, "[DONE]"), "%s", str_text(&seen));
    close(fd);
    CHECK_EQ(served_stop(&s, 0), 0);
}

/* A stream that ends by a shutdown says so, and the log has the true number of tokens. */
TEST(server_says_that_a_stream_ends_by_its_shutdown)
{
    const char *args[] = {"-m",      toy_model_write(&(toy_model_file){.n_ctx_train = 65536}),
                          "--ctx",   "60000",
                          "-t",      "1",
                          "--drain", "0",
                          NULL};
    served s;
    str seen = {0};
    AUTO_MEM char *log;
    size_t n;
    err e = {0};
    served_start(&s, args);
    int fd = begin_long(&s, NULL);
    for (int i = 0; i < 20; i++)
        CHECK(http_read_until(fd, &seen, "\n\n") && (str_drop(&seen, seen.n), true));
    kill(s.pid, SIGTERM);
    CHECK_MSG(http_read_until(fd, &seen, "was shut down before the answer was complete"), "%s",
              str_text(&seen));
    close(fd);
    str_free(&seen);
    CHECK_EQ(served_stop(&s, 0), 0);
    CHECK_OK(file_read_all(s.log, 1 << 20, &log, &n, &e), e);
    const char *line = strstr(log, "(0 cached), "), *end = line ? strchr(line, '\n') : NULL;
    CHECK_MSG(end && strtol(line + 12, NULL, 10) > 10, "%s", log);
    CHECK_MSG(memmem(line, (size_t)(end - line), "shut down", 9), "%s", log);
}

/* ---- Long waits ---- */

TEST(server_says_that_it_is_alive_while_others_are_served)
{
    const char *args[] = {"-m",         toy_model_write(&(toy_model_file){.n_ctx_train = 65536}),
                          "--ctx",      "60000",
                          "-t",         "1",
                          "--parallel", "1",
                          "--ping",     "1",
                          NULL};
    AUTO(stop) served s;
    AUTO(str_free) str seen = {0}, unpinged = {0};
    served_start(&s, args);
    int first = begin_long(&s, NULL);
    int second = http_begin(&s, "/v1/messages",
                            "{" ASK ",\"max_tokens\":2,\"temperature\":0,\"stream\":true}");
    int third = http_begin(&s, "/v1/chat/completions",
                           "{" ASK ",\"max_tokens\":2,\"sse_ping_interval\":-1,\"stream\":true}");
    CHECK_MSG(http_read_until(second, &seen, "event: ping"), "%s", str_text(&seen));
    CHECK_MSG(http_read_until(second, &seen, "event: ping"), "%s", str_text(&seen));
    close(first);
    CHECK_MSG(http_read_until(second, &seen, "message_stop"), "%s", str_text(&seen));
    close(second);
    CHECK_MSG(http_read_until(third, &unpinged, "[DONE]"), "%s", str_text(&unpinged));
    CHECK_MSG(!strstr(unpinged.at, "at work"), "%s", unpinged.at);
    close(third);
}

TEST(server_streams_may_be_silent_for_longer_than_clients)
{
    const char *args[] = {"-m",         toy_model_write(&(toy_model_file){.n_ctx_train = 65536}),
                          "--ctx",      "60000",
                          "-t",         "1",
                          "--parallel", "1",
                          "--ping",     "0",
                          "--timeout",  "1",
                          NULL};
    AUTO(stop) served s;
    AUTO(str_free) str seen = {0};
    served_start(&s, args);
    int first = begin_long(&s, NULL);
    int second = http_begin(&s, "/v1/messages",
                            "{" ASK ",\"max_tokens\":2,\"temperature\":0,\"stream\":true}");
    for (double start = clock_ms(); clock_ms() - start < 2500;) { /* it does not read */
        struct pollfd p = {first, POLLIN, 0};
        char buf[65536];
        if (poll(&p, 1, 50) > 0 && read(first, buf, sizeof buf) <= 0)
            break;
    }
    close(first);
    CHECK_MSG(http_read_until(second, &seen, "message_stop"), "%s", str_text(&seen));
    close(second);
}

/* Compiling a large schema stops when the client leaves. */
TEST(server_gives_up_a_schema_whose_client_left)
{
    AUTO(stop) served s;
    AUTO(str_free) str body = {0};
    AUTO_MEM char *log = NULL;
    size_t n;
    err e = {0};
    start_toy(&s, NULL);
    str_puts(&body, "{" ASK ",\"guided_json\":{\"properties\":{");
    for (int i = 0; i < 20000; i++)
        str_printf(&body, "%s\"p%d\":{\"$ref\":\"#/$defs/d%d\"}", i ? "," : "", i, i % 100);
    str_puts(&body, "},\"$defs\":{");
    for (int i = 0; i < 100; i++)
        str_printf(&body,
                   "%s\"d%d\":{\"type\":\"object\",\"properties\":{\"x%d\":{\"type\":"
                   "\"string\",\"pattern\":\"^[a-z]{1,40}$\"}}}",
                   i ? "," : "", i, i);
    str_puts(&body, "}}}");
    CHECK(body.n > 200000);
    int fd = http_begin(&s, "/v1/chat/completions", body.at);
    close(fd);
    double start = clock_ms();
    while (!log || !strstr(log, "/v1/chat/completions")) {
        mem_free(log);
        CHECK_OK(file_read_all(s.log, 1 << 20, &log, &n, &e), e);
        CHECK(clock_ms() - start < PATIENCE_MS);
        usleep(5000);
    }
    CHECK_MSG(strstr(log, " 499 ") && strstr(log, "client gone"), "%s", log);
}

/* ---- Connections ---- */

/* Sends raw bytes and reads until the server closes the connection. */
static void say_raw(const served *s, const char *bytes, str *seen)
{
    int fd = http_dial(s);
    str_cut(seen, 0);
    CHECK(send(fd, bytes, strlen(bytes), MSG_NOSIGNAL) == (ssize_t)strlen(bytes));
    CHECK(!http_read_until(fd, seen, "never said"));
    close(fd);
}

TEST(server_refuses_a_body_of_two_lengths)
{
    static const char *const frames[] = {
        "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
        "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        "Content-Length: 2\r\ncontent-length: 3\r\n\r\n{} ",
        "Content-Length: 2, 2\r\n\r\n{}",
        "Content-Length: +2\r\n\r\n{}",
        "Content-Length: -2\r\n\r\n{}",
        "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    };
    static const char hidden[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    AUTO(stop) served s;
    AUTO(str_free) str seen = {0};
    start_toy(&s, NULL);
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        char bytes[512];
        snprintf(bytes, sizeof bytes, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n%s%s",
                 frames[i], hidden);
        say_raw(&s, bytes, &seen);
        CHECK_MSG(!strncmp(str_text(&seen), "HTTP/1.1 400", 12), "%s: %s", frames[i],
                  str_text(&seen));
        CHECK_MSG(!strstr(seen.at, "HTTP/1.1 200"), "%s: %s", frames[i], seen.at);
    }
    static const char zero[] = "GET /health\0x HTTP/1.1\r\nHost: localhost\r\n\r\n";
    int fd = http_dial(&s);
    str_cut(&seen, 0);
    CHECK(send(fd, zero, sizeof zero - 1, MSG_NOSIGNAL) == sizeof zero - 1);
    CHECK(http_read_until(fd, &seen, "HTTP/1.1 400"));
    close(fd);
    AUTO(response_free) response r;
    http_call(&r, &s, "GET", "/health", NULL, NULL);
    CHECK_EQ(r.status, 200);
}

enum { SLOW_CLIENTS = 1000 };

/* A quarter of them send nothing, the others the beginning of a request. */
static void dial_slowly(const served *s, int fd[SLOW_CLIENTS])
{
    static const char begin[] = "GET /health HTTP/1.1\r\nX-Slow: ";
    for (int i = 0; i < SLOW_CLIENTS; i++) {
        fd[i] = http_dial(s);
        if (i % 4)
            send(fd[i], begin, sizeof begin - 1, MSG_NOSIGNAL);
    }
}

static void trickle(const int fd[SLOW_CLIENTS])
{
    for (int i = 0; i < SLOW_CLIENTS; i++)
        if (i % 4)
            send(fd[i], "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Clients that send their header at once are served, although the slow ones may stay for ever;
 * where there is a limit in time, those are closed. */
TEST(server_serves_the_honest_beside_a_thousand_slow_ones)
{
    static int fd[SLOW_CLIENTS];
    struct rlimit l;
    AUTO(stop) served s;
    CHECK(!getrlimit(RLIMIT_NOFILE, &l));
    if (l.rlim_cur < SLOW_CLIENTS + 100) {
        l.rlim_cur = l.rlim_max < SLOW_CLIENTS + 100 ? l.rlim_max : SLOW_CLIENTS + 100;
        if (l.rlim_cur < SLOW_CLIENTS + 100 || setrlimit(RLIMIT_NOFILE, &l)) {
            test_skip("this process may not have 1,100 open files");
        }
    }
    start_toy(&s, ARGS("--timeout", "86400", "--connections", "8"));
    dial_slowly(&s, fd);
    for (int n = 0; n < 20; n++) {
        response r;
        http_call(&r, &s, "GET", "/health", NULL, NULL);
        CHECK_EQ(r.status, 200);
        response_free(&r);
        trickle(fd);
    }
    for (int i = 0; i < SLOW_CLIENTS; i++)
        close(fd[i]);
    stop(&s);
    start_toy(&s, ARGS("--timeout", "1", "--connections", "8"));
    dial_slowly(&s, fd);
    double start = clock_ms();
    for (int i = 0; i < SLOW_CLIENTS; i++) {
        struct pollfd p = {fd[i], POLLIN, 0};
        while (poll(&p, 1, 50) != 1) {
            CHECK_MSG(clock_ms() - start < PATIENCE_MS, "client %d is still connected", i);
            trickle(fd);
        }
    }
    for (int i = 0; i < SLOW_CLIENTS; i++)
        close(fd[i]);
}

/* The header of a second request has a deadline, too. */
TEST(server_closes_connections_that_trickle_a_second_request)
{
    static const char first[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    AUTO(stop) served s;
    AUTO(str_free) str seen = {0};
    start_toy(&s, ARGS("--timeout", "1"));
    int fd = http_dial(&s);
    double start = clock_ms();
    CHECK_EQ(send(fd, first, sizeof first - 1, MSG_NOSIGNAL), sizeof first - 1);
    CHECK(http_read_until(fd, &seen, "\"status\":\"ok\""));
    for (bool open = true; open;) {
        struct pollfd p = {fd, POLLIN, 0};
        char c;
        send(fd, "G", 1, MSG_NOSIGNAL);
        open = poll(&p, 1, 100) == 0 || read(fd, &c, 1) > 0;
        CHECK(clock_ms() - start < PATIENCE_MS);
    }
    close(fd);
}

/* Waits until the server closes the connection; returns after how many ms. */
static double wait_for_end(int fd)
{
    double start = clock_ms();
    char c;
    for (bool open = true; open;) {
        struct pollfd p = {fd, POLLIN, 0};
        open = poll(&p, 1, 100) == 0 || read(fd, &c, 1) > 0;
        CHECK(clock_ms() - start < PATIENCE_MS);
    }
    return clock_ms() - start;
}

TEST(server_closes_connections_whose_body_stops)
{
    static const char begin[] = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                                "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{";
    AUTO(stop) served s;
    start_toy(&s, ARGS("--timeout", "1"));
    int fd = http_dial(&s);
    CHECK_EQ(send(fd, begin, sizeof begin - 1, MSG_NOSIGNAL), sizeof begin - 1);
    CHECK(wait_for_end(fd) >= 900);
    close(fd);
}

static void open_slow_clients(const served *s, int fd[4])
{
    static const char *const begin[] = {
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{",
        ("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
         "fffff\r\n{"),
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;a",
        "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n\r\n"};
    int small = 2048;
    for (int i = 0; i < 4; i++) {
        fd[i] = http_dial(s);
        setsockopt(fd[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
        CHECK(send(fd[i], begin[i], strlen(begin[i]), MSG_NOSIGNAL) > 0);
    }
}

/* Asks for /health until it is answered, while the slow clients go on. */
static void get_past_slow_clients(const served *s, const int *fd, int n, int reader)
{
    static const char ask[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n"
                              "Connection: close\r\n\r\n";
    double start = clock_ms();
    for (bool answered = false; !answered;) {
        AUTO(str_free) str seen = {0};
        char c;
        int honest = http_dial(s);
        CHECK(send(honest, ask, sizeof ask - 1, MSG_NOSIGNAL) > 0);
        for (struct pollfd p = {honest, POLLIN, 0}; poll(&p, 1, 100) == 0;) {
            for (int i = 0; i < n; i++)
                if (i != reader)
                    send(fd[i], " ", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (reader >= 0)
                recv(fd[reader], &c, 1, MSG_DONTWAIT);
            CHECK_MSG(clock_ms() - start < PATIENCE_MS, "slow clients hold all connections");
        }
        answered = http_read_until(honest, &seen, "\"status\":\"ok\"");
        close(honest);
    }
}

/* Clients that hold all connections with bodies of a byte now and then (of a length, in a chunk, in
 * the line before one), or with answers that they read a byte at a time, are closed. */
TEST(server_closes_connections_that_trickle_a_body_or_read_slowly)
{
    AUTO(stop) served s;
    int fd[4];
    start_toy(&s, ARGS("--timeout", "1", "--connections", "4"));
    open_slow_clients(&s, fd);
    get_past_slow_clients(&s, fd, 4, 3);
    for (int i = 0; i < 4; i++)
        close(fd[i]);
}

/* More slow clients than connections, all at once: the first lose theirs long before --timeout. */
PLAIN_TEST(server_makes_room_while_slow_clients_hold_all_connections)
{
    enum { CROWD = 12 };
    static const char begin[] =
        "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{";
    AUTO(stop) served s;
    int fd[CROWD];
    start_toy(&s, ARGS("--timeout", "86400", "--connections", "6"));
    for (int i = 0; i < CROWD; i++) {
        fd[i] = http_dial(&s);
        CHECK(send(fd[i], begin, sizeof begin - 1, MSG_NOSIGNAL) > 0);
    }
    get_past_slow_clients(&s, fd, CROWD, -1);
    for (int i = 0; i < CROWD; i++)
        close(fd[i]);
}

TEST(server_takes_several_requests_of_one_connection)
{
    static const char two[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
                              "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";
    AUTO(stop) served s;
    AUTO(str_free) str seen = {0};
    start_toy(&s, NULL);
    int fd = http_begin(&s, "/v1/chat/completions", NULL);
    close(fd); /* a request without a body leaves no trace */
    fd = http_dial(&s);
    CHECK_EQ(send(fd, two, sizeof two - 1, MSG_NOSIGNAL), sizeof two - 1);
    CHECK(http_read_until(fd, &seen, "\"status\":\"ok\""));
    CHECK(http_read_until(fd, &seen, "\"object\":\"list\""));
    close(fd);
}

static const char ask_health[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";

static bool still_answers(int fd)
{
    AUTO(str_free) str seen = {0};
    return send(fd, ask_health, sizeof ask_health - 1, MSG_NOSIGNAL) > 0 &&
           http_read_until(fd, &seen, "\"status\":\"ok\"");
}

/* A pool of idle connections keeps nobody out: one of them makes room, and the others stay. */
TEST(server_makes_room_of_an_idle_connection)
{
    enum { POOL = 4 };
    AUTO(stop) served s;
    int fd[POOL];
    start_toy(&s, ARGS("--timeout", "86400", "--connections", "4"));
    for (int i = 0; i < POOL; i++) {
        fd[i] = http_dial(&s);
        CHECK(still_answers(fd[i]));
    }
    int other = http_dial(&s), n_open = 0;
    CHECK(still_answers(other));
    for (int i = 0; i < POOL; i++) {
        n_open += still_answers(fd[i]);
        close(fd[i]);
    }
    /* A second one leaves where the first takes a second for it, as on a machine that stands still. */
    CHECK_MSG(n_open == POOL - 1 || n_open == POOL - 2, "%d are open", n_open);
    close(other);
}

/* Clients send a body whole before they read, and see nothing of an answer if the server closes
 * meanwhile. One that asks with Expect is told before. */
TEST(server_reads_a_body_that_it_refuses)
{
    enum { BODY = 10 << 20 };
    AUTO(stop) served s;
    AUTO(str_free) str seen = {0}, asks = {0};
    AUTO_MEM char *body = mem_calloc(BODY, 1);
    start_toy(&s, ARGS("--max-body", "4000000"));
    CHECK(body);
    memset(body, ' ', BODY);
    str_printf(&asks, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n",
               BODY);
    int fd = http_dial(&s);
    CHECK(send(fd, asks.at, asks.n, MSG_NOSIGNAL) == (ssize_t)asks.n);
    for (size_t at = 0; at < BODY;) {
        ssize_t n = send(fd, body + at, BODY - at, MSG_NOSIGNAL);
        CHECK_MSG(n > 0, "closed after %zu bytes", at);
        at += (size_t)n;
    }
    CHECK(http_read_until(fd, &seen, "HTTP/1.1 413"));
    CHECK(http_read_until(fd, &seen, "4000000 bytes"));
    CHECK(still_answers(fd));
    close(fd);
    for (int i = 0; i < 2; i++) { /* not of any length */
        fd = http_dial(&s);
        str_cut(&asks, 0);
        str_cut(&seen, 0);
        str_printf(&asks, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: %s\r\n%s\r\n",
                   i ? "900000000000" : "4000001", i ? "" : "Expect: 100-continue\r\n");
        CHECK(send(fd, asks.at, asks.n, MSG_NOSIGNAL) == (ssize_t)asks.n);
        CHECK(http_read_until(fd, &seen, "HTTP/1.1 413"));
        CHECK(!strstr(seen.at, "100 Continue"));
        close(fd);
    }
}

/* A browser at https:// would wait for the end of a header that never comes. */
TEST(server_tells_what_is_no_http_at_once)
{
    static const char *const first[] = {"\x16\x03\x01\x02", "\r\n\x80", " GET"};
    AUTO(stop) served s;
    start_toy(&s, ARGS("--timeout", "86400"));
    for (int i = 0; i < 3; i++) {
        AUTO(str_free) str seen = {0};
        int fd = http_dial(&s);
        CHECK(send(fd, first[i], strlen(first[i]), MSG_NOSIGNAL) > 0);
        CHECK_MSG(http_read_until(fd, &seen, "HTTP/1.1 400"), "%d: %s", i, str_text(&seen));
        close(fd);
    }
}

TEST(server_reads_targets_in_absolute_form)
{
    static const struct {
        const char *target, *host;
        int status;
    } asked[] = {{"http://localhost:8080/health", "localhost:8080", 200},
                 {"HTTP://LocalHost/v1/models?x=1", "localhost", 200},
                 {"http://localhost/health", "localhost:8080", 404},
                 {"http://localhost.evil/health", "localhost", 404},
                 {"http://evil/health", "localhost", 404},
                 {"ftp://localhost/health", "localhost", 404},
                 {"http://evil/health", "evil", 403}};
    AUTO(stop) served s;
    start_toy(&s, NULL);
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        AUTO(response_free) response r;
        char host[64];
        snprintf(host, sizeof host, "Host: %s\r\n", asked[i].host);
        http_call(&r, &s, "GET", asked[i].target, host, NULL);
        CHECK_MSG(r.status == asked[i].status, "%s: %d", asked[i].target, r.status);
    }
}

TEST(server_reads_bodies_behind_a_mark_of_utf_8)
{
    AUTO(stop) served s;
    AUTO(response_free) response r;
    start_toy(&s, NULL);
    http_post(&r, &s, "/tokenize", "\xEF\xBB\xBF{\"content\":\"a\"}");
    CHECK_EQ(r.status, 200);
}

/* ---- Memory ---- */

TEST(server_says_what_checkpoints_may_take)
{
    static const char *const mb[] = {"0", "33"}; /* the log goes on */
    for (int i = 0; i < 2; i++) {
        AUTO_MEM char *log = NULL;
        size_t n;
        err e = {0};
        served s;
        start_toy(&s, ARGS("--checkpoint-mb", mb[i]));
        stop(&s);
        CHECK_OK(file_read_all(s.log, 1 << 20, &log, &n, &e), e);
        CHECK_EQ(strstr(log, "plan: checkpoints: at most 33.0 MiB of host memory\n") != NULL, i);
        CHECK(!strstr(log, "the GPU locks"));
    }
}

static long peak_kib(const served *s)
{
    char path[64], line[256];
    long kib = -1;
    snprintf(path, sizeof path, "/proc/%d/status", s->pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %ld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib;
}

static void put_times(str *o, const char *text, int n)
{
    for (int i = 0; i < n; i++)
        str_puts(o, text);
}

/* The memory for a request is a small multiple of its body. */
TEST(server_memory_is_bounded_by_the_body)
{
    enum { BODY = 8 << 20 };
    static const struct {
        const char *path, *before, *piece, *after;
    } bodies[] = {
        {"/v1/chat/completions", "{\"messages\":[", "1,", "1]}"},
        {"/v1/completions", "{\"prompt\":[", "1,", "1]}"},
        {"/detokenize", "{\"tokens\":[", "5,", "5]}"},
        {"/v1/responses", "{\"input\":[", "{},", "{}]}"},
        {"/v1/messages", "{\"messages\":[{\"role\":\"user\",\"content\":\"", "a", "\"}]}"},
        {"/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
         "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[",
         "1,", "1]}\"}}],\"tool_responses\":[{\"response\":1}]}]}"},
    };
    AUTO(stop) served s;
    start_toy(&s, NULL);
    long before = peak_kib(&s);
    if (before < 0)
        test_skip("no /proc to read the memory of a process in");
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        response r;
        str body = {0};
        str_puts(&body, bodies[i].before);
        put_times(&body, bodies[i].piece, BODY / (int)strlen(bodies[i].piece));
        str_puts(&body, bodies[i].after);
        http_post(&r, &s, bodies[i].path, body.at);
        CHECK_MSG(r.status == 400, "%s: %d %.200s", bodies[i].path, r.status, str_text(&r.body));
        response_free(&r);
        str_free(&body);
        long kib = peak_kib(&s) - before;
        CHECK_MSG(SANITIZED || kib < 24 * (BODY >> 10), "%s: %ld KiB for a body of %d",
                  bodies[i].path, kib, BODY >> 10);
    }
}

/* With and without drafts: the same answer, and numbers that say what was drafted. */
TEST(server_drafts_leave_answers_alone)
{
    static const char *const asks[] = {
        "{" ASK ",\"max_tokens\":60,\"temperature\":0,\"speculative\":false}",
        "{" ASK ",\"max_tokens\":60,\"temperature\":0}",
        "{" ASK ",\"max_tokens\":60,\"temperature\":0,\"speculative\":{\"n_max\":2}}",
        "{" ASK ",\"max_tokens\":60,\"temperature\":1,\"seed\":3,\"speculative\":false}",
        "{" ASK ",\"max_tokens\":60,\"temperature\":1,\"seed\":3}"};
    AUTO(stop) served s;
    AUTO(response_free) response r;
    AUTO(arena_free) arena mem = {0};
    const char *said[5];
    int n[5]; /* what is sampled, and so its length, differs between instruction sets */
    start_toy(&s, ARGS("--draft", "lookup", "--parallel", "2"));
    for (int i = 0; i < 5; i++) {
        http_post(&r, &s, "/v1/chat/completions", asks[i]);
        CHECK_EQ(r.status, 200);
        said[i] = text_at(&mem, &r, "choices.0.message.content");
        n[i] = atoi(text_at(&mem, &r, "usage.completion_tokens"));
        CHECK_EQ(n[i], n[i / 3 * 3]);
        int good =
            atoi(text_at(&mem, &r, "usage.completion_tokens_details.accepted_prediction_tokens"));
        int bad =
            atoi(text_at(&mem, &r, "usage.completion_tokens_details.rejected_prediction_tokens"));
        if (i % 3) {
            CHECK_STR(text_at(&mem, &r, "timings.drafter"), "lookup");
            CHECK_EQ(atoi(text_at(&mem, &r, "timings.draft_n")), good + bad);
            CHECK_EQ(atoi(text_at(&mem, &r, "timings.draft_n_accepted")), good);
            CHECK_STR(said[i], said[i / 3 * 3]);
        } else {
            CHECK_EQ(good + bad, 0);
        }
        response_free(&r);
    }
    http_post(&r, &s, "/v1/responses", "{\"input\":\"x\",\"speculative\":{\"n_max\":64}}");
    CHECK_EQ(r.status, 400);
    CHECK_STR(text_at(&mem, &r, "error.param"), "n_max");
    response_free(&r);
    http_call(&r, &s, "GET", "/metrics", NULL, NULL);
    CHECK(strstr(r.body.at, "carat_drafted_tokens_total ") &&
          strstr(r.body.at, "carat_accepted_draft_tokens_total ") &&
          strstr(r.body.at, "carat_draft_rounds_total "));
    response_free(&r);
    http_call(&r, &s, "GET", "/slots", NULL, NULL);
    CHECK(strstr(r.body.at, "\"speculative\":true"));
}
