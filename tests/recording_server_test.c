/* recording_server_test.c - streams that outlive their connection: a client that comes back gets
 * each event once.
 */
#include "tests/server_rig.h"
#include "tests/spawn.h"
#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CHAT "{" ASK ",\"temperature\":0,\"max_tokens\":120,\"ignore_eos\":true,\"stream\":true}"

/* Posts with a header. Returns the connection. */
static int post(const served *s, const char *path, const char *header, const char *body)
{
    AUTO(str_free) str ask = {0};
    str_printf(&ask, "POST %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n%s", path,
               header, strlen(body), body);
    int fd = http_dial(s);
    CHECK_EQ(write(fd, ask.at, ask.n), (int)ask.n);
    return fd;
}

/* Posts, reads until `text` was seen, and leaves. */
static void post_and_leave(const served *s, const char *path, const char *header, const char *body,
                           const char *text, str *seen)
{
    int fd = post(s, path, header, body);
    CHECK_MSG(http_read_until(fd, seen, text), "%s", str_text(seen));
    close(fd);
}

/* The rest of the stream, once its answer is complete. */
static void get(response *r, const served *s, const char *path, const char *header)
{
    http_call(r, s, "GET", path, header, NULL);
}

static void refused(const served *s, const char *path, const char *header, int want,
                    const char *text)
{
    AUTO(response_free) response r;
    get(&r, s, path, header);
    CHECK_MSG(r.status == want && strstr(str_text(&r.body), text), "%s %s: %d %s", path,
              header ? header : "", r.status, str_text(&r.body));
}

/* How often a text stands in another. */
static int count(const char *in, const char *text)
{
    int n = 0;
    for (const char *at = strstr(in, text); at; at = strstr(at + 1, text))
        n++;
    return n;
}

TEST(a_stream_goes_on_without_its_client)
{
    AUTO(stop) served s;
    AUTO(str_free) str seen = {0};
    response all, rest, again;
    char path[160], header[160], id[80];
    start_toy(&s, NULL);
    post_and_leave(&s, "/v1/chat/completions", "X-Conversation-Id: talk\r\n", CHAT, ":5\ndata",
                   &seen);
    get(&all, &s, "/v1/stream?conv_id=talk", NULL);
    CHECK_EQ(all.status, 200);
    CHECK(strstr(all.body.at, "data: [DONE]\n\n") && strstr(all.body.at, "\"usage\"") == NULL);
    CHECK(strstr(all.body.at, "\"finish_reason\":\"length\""));
    /* Ids are numbers without gaps, each once. */
    const char *first = strstr(all.body.at, "id: ");
    size_t n_id = first ? strcspn(first + 4, ":") : 0;
    CHECK(first && n_id < 60);
    for (int i = 0; i < count(all.body.at, "id: strm_"); i++) {
        snprintf(id, sizeof id, "id: %.*s:%d\n", (int)n_id, first + 4, i);
        CHECK_MSG(count(all.body.at, id) == 1, "%s", id);
    }
    /* By the byte and by the event. */
    snprintf(path, sizeof path, "/v1/stream?conv_id=talk&from=%zu", all.body.n - 30);
    get(&rest, &s, path, NULL);
    CHECK_STR(rest.body.at, all.body.at + all.body.n - 30);
    response_free(&rest);
    snprintf(path, sizeof path, "/v1/stream?conv_id=talk&from=%zu", all.body.n);
    get(&rest, &s, path, NULL);
    CHECK_EQ(rest.status, 200);
    CHECK_EQ(rest.body.n, 0);
    response_free(&rest);
    snprintf(header, sizeof header, "Last-Event-ID: %.*s:5\r\n", (int)n_id, first + 4);
    get(&rest, &s, "/v1/stream", header);
    snprintf(id, sizeof id, "id: %.*s:6\n", (int)n_id, first + 4);
    CHECK_STR(rest.body.at, strstr(all.body.at, id));
    /* The request again, with the id of the last event: no second answer. */
    http_call(&again, &s, "POST", "/v1/chat/completions", header, CHAT);
    CHECK_STR(again.body.at, rest.body.at);
    response_free(&again);
    response_free(&rest);
    http_post(&again, &s, "/v1/streams/lookup", "{\"conversation_ids\":[\"talk\",\"other\"]}");
    CHECK(strstr(again.body.at, "\"is_done\":true") && !strstr(again.body.at, "other"));
    response_free(&again);
    refused(&s, "/v1/stream", NULL, 400, "conv_id");
    refused(&s, "/v1/stream?conv_id=other", NULL, 404, "no stream 'other'");
    refused(&s, "/v1/stream?conv_id=talk&from=99999999", NULL, 400, "bytes so far");
    refused(&s, "/v1/stream?conv_id=talk&from=-1", NULL, 400, "'-1'");
    refused(&s, "/v1/stream", "Last-Event-ID: 7\r\n", 400, "no id of an event");
    refused(&s, "/v1/stream", "Last-Event-ID: strm_0:7\r\n", 404, "no stream");
    refused(&s, "/v1/stream?conv_id=talk", "Last-Event-ID: strm_0:7\r\n", 400, "another stream");
    snprintf(header, sizeof header, "Last-Event-ID: %.*s:9999\r\n", (int)n_id, first + 4);
    refused(&s, "/v1/stream", header, 400, "no event 9999");
    http_call(&again, &s, "DELETE", "/v1/stream?conv_id=talk", NULL, NULL);
    CHECK_EQ(again.status, 204);
    response_free(&again);
    refused(&s, "/v1/stream?conv_id=talk", NULL, 404, "no stream");
    response_free(&all);
}

TEST(a_stream_ends_when_its_client_says_so)
{
    static const char endless[] =
        "{" ASK ",\"temperature\":0,\"max_tokens\":400,\"ignore_eos\":true,\"stream\":true}";
    AUTO(stop) served s;
    AUTO(str_free) str seen = {0};
    response r;
    start_toy(&s, ARGS("--parallel", "1"));
    post_and_leave(&s, "/v1/chat/completions", "X-Conversation-Id: a\r\n", endless, ":1\ndata",
                   &seen);
    /* Another request of the same name takes its place. */
    str_cut(&seen, 0);
    post_and_leave(&s, "/v1/chat/completions", "X-Conversation-Id: a\r\n", endless, ":1\ndata",
                   &seen);
    http_call(&r, &s, "DELETE", "/v1/stream?conv_id=a", NULL, NULL);
    CHECK_EQ(r.status, 204);
    response_free(&r);
    /* Its slot is free soon, and nobody's stream is left. */
    http_post(&r, &s, "/v1/chat/completions", "{" ASK ",\"max_tokens\":1}");
    CHECK_EQ(r.status, 200);
    response_free(&r);
    refused(&s, "/v1/stream?conv_id=a", NULL, 404, "no stream");
}

/* Browsers call a response without its last chunk an error. */
TEST(a_stream_that_is_ended_has_a_last_chunk)
{
    AUTO(stop) served s;
    AUTO(str_free) str seen = {0};
    response r;
    served_start(&s, ARGS("-m", toy_model_write(&(toy_model_file){.n_ctx_train = 65536}), "-t", "1",
                          "--ctx", "60000", "--parallel", "1"));
    int fd = post(&s, "/v1/chat/completions", "X-Conversation-Id: b\r\n",
                  "{" ASK ",\"ignore_eos\":true,\"stream\":true}");
    CHECK(http_read_until(fd, &seen, ":1\ndata"));
    http_call(&r, &s, "DELETE", "/v1/stream?conv_id=b", NULL, NULL);
    CHECK_EQ(r.status, 204);
    response_free(&r);
    CHECK_MSG(http_read_until(fd, &seen, "\r\n0\r\n\r\n") && !strstr(seen.at, "[DONE]"),
              "it ends with %s", seen.at + (seen.n < 80 ? 0 : seen.n - 80));
    close(fd);
}

TEST(a_background_response_is_followed_by_its_id)
{
    AUTO(stop) served s;
    AUTO(str_free) str seen = {0};
    response r, all;
    char path[160];
    start_toy(&s, NULL);
    post_and_leave(&s, "/v1/responses", "",
                   "{\"input\":\"Hello\",\"temperature\":0,\"max_output_tokens\":60,"
                   "\"background\":true,\"stream\":true}",
                   "\"sequence_number\":5", &seen);
    const char *id = strstr(seen.at, "\"id\":\"resp_");
    CHECK(id);
    snprintf(path, sizeof path, "/v1/responses/%.*s?stream=true", (int)strcspn(id + 6, "\""),
             id + 6);
    get(&all, &s, path, NULL);
    CHECK(all.status == 200 && strstr(all.body.at, "response.created"));
    str_puts(&seen, "");
    snprintf(path + strlen(path), 40, "&starting_after=5");
    get(&r, &s, path, NULL);
    CHECK_MSG(r.status == 200 && !strstr(r.body.at, "\"sequence_number\":5,") &&
                  strstr(r.body.at, "\"sequence_number\":6"),
              "%s", str_text(&r.body));
    CHECK_STR(r.body.at, all.body.at + (all.body.n - r.body.n));
    response_free(&r);
    response_free(&all);
    http_post(&r, &s, "/v1/responses", "{\"input\":\"a\",\"max_output_tokens\":1}");
    id = strstr(r.body.at, "resp_");
    snprintf(path, sizeof path, "/v1/responses/%.*s?stream=true", (int)strcspn(id, "\""), id);
    refused(&s, path, NULL, 400, "is not kept");
    response_free(&r);
}

/* Begins a response of background. The connection is read to its end, which does not wait for the
 * answer. */
static void begin_background(const served *s, const char *fields, char id[64])
{
    response r;
    arena mem = {0};
    char body[600];
    snprintf(body, sizeof body, "{\"background\":true,%s}", fields);
    http_post(&r, s, "/v1/responses", body);
    CHECK_MSG(r.status == 200 && strstr(r.head.at, "onnection: close"), "%d %s", r.status,
              str_text(&r.body));
    CHECK_STR(text_at(&mem, &r, "status"), "queued");
    CHECK(strstr(r.body.at, "\"background\":true") && strstr(r.body.at, "\"output\":[]"));
    snprintf(id, 64, "%s", text_at(&mem, &r, "id"));
    response_free(&r);
    arena_free(&mem);
}

/* Polls until the response has this state; every one before is a state before it. */
static void await_state(const served *s, const char *id, const char *state, str *out)
{
    static const char *const states[] = {"queued", "in_progress", "completed"};
    size_t last = 0;
    for (double until = clock_ms() + PATIENCE_MS;; usleep(10000)) {
        char now[32] = "";
        CHECK_EQ(call_response(s, "GET", id, "", NULL, out), 200);
        sscanf(strstr(out->at, "\"status\":\"") + 10, "%31[a-z_]", now);
        for (size_t i = 0; i < 3; i++)
            if (!strcmp(now, states[i])) {
                CHECK_MSG(i >= last, "%s after %s", now, states[last]);
                last = i;
            }
        if (!strcmp(now, state))
            return;
        CHECK_MSG(clock_ms() < until, "it stays %s", now);
    }
}

TEST(a_background_response_is_polled)
{
    served s;
    str polled = {0}, again = {0};
    response r;
    arena mem = {0};
    char id[64], body[300];
    start_toy(&s, NULL);
#define FIELDS "\"input\":\"Hello\",\"temperature\":0,\"max_output_tokens\":40"
    begin_background(&s, FIELDS, id);
    await_state(&s, id, "incomplete", &polled); /* by max_output_tokens */
    http_post(&r, &s, "/v1/responses", "{" FIELDS "}");
    const char *text = text_at(&mem, &r, "output.0.content.0.text");
    CHECK(*text);
    CHECK_STR(json_at(json_parsed(&mem, polled.at, polled.n), "output.0.content.0.text")->s, text);
    response_free(&r);
    /* It is a response like others: its items, its stream, what continues it. */
    CHECK_EQ(call_response(&s, "GET", id, "/input_items", NULL, &again), 200);
    CHECK(strstr(again.at, "Hello"));
    CHECK_EQ(call_response(&s, "GET", id, "?stream=true", NULL, &again), 200);
    CHECK(strstr(again.at, "event: response.created") && strstr(again.at, "response.incomplete"));
    CHECK(strstr(again.at, id));
    snprintf(body, sizeof body,
             "{\"input\":\"b\",\"max_output_tokens\":1,\"previous_response_id\":\"%s\"}", id);
    http_post(&r, &s, "/v1/responses", body);
    CHECK_EQ(r.status, 200);
    response_free(&r);
    CHECK_EQ(call_response(&s, "POST", id, "/cancel", NULL, &again),
             200); /* too late: it stays as it is */
    CHECK_STR(again.at, polled.at);
    http_post(&r, &s, "/v1/responses", "{\"input\":\"a\",\"background\":true,\"store\":false}");
    CHECK(r.status == 400 && strstr(r.body.at, "'background' needs 'store'"));
    response_free(&r);
    http_post(&r, &s, "/v1/responses", "{\"background\":true}");
    CHECK(r.status == 400 && strstr(r.body.at, "'input' is missing"));
    response_free(&r);
    stop(&s);
    start_toy(&s, ARGS("--responses", "0"));
    http_post(&r, &s, "/v1/responses", "{\"input\":\"a\",\"background\":true}");
    CHECK_MSG(r.status == 400 && strstr(r.body.at, "--responses"), "%s", str_text(&r.body));
    response_free(&r);
    stop(&s);
    str_free(&polled);
    str_free(&again);
    arena_free(&mem);
}

/* The requests that the server answers now, beside that for its metrics. */
static void await_idle(const served *s)
{
    for (double until = clock_ms() + PATIENCE_MS; http_metric(s, "carat_requests_active") > 1;
         usleep(20000))
        CHECK(clock_ms() < until);
}

TEST(a_background_response_is_cancelled)
{
    served s;
    str seen = {0}, cancelled = {0};
    response r;
    char id[64], body[200];
    served_start(&s, ARGS("-m", toy_model_write(&(toy_model_file){.n_ctx_train = 65536}), "-t", "1",
                          "--ctx", "60000", "--parallel", "1"));
#define ENDLESS "\"input\":\"a\",\"ignore_eos\":true,\"max_output_tokens\":50000"
    begin_background(&s, ENDLESS, id);
    await_state(&s, id, "in_progress", &seen);
    snprintf(body, sizeof body, "{\"input\":\"b\",\"previous_response_id\":\"%s\"}", id);
    http_post(&r, &s, "/v1/responses", body);
    CHECK_MSG(r.status == 400 && strstr(r.body.at, "is not complete"), "%s", str_text(&r.body));
    response_free(&r);
    CHECK_EQ(call_response(&s, "POST", id, "/cancel", NULL, &cancelled), 200);
    CHECK(strstr(cancelled.at, "\"status\":\"cancelled\"") &&
          strstr(cancelled.at, "\"output\":[]"));
    await_idle(&s);
    /* The end of its answer changes nothing, and neither does a second time. */
    CHECK_EQ(call_response(&s, "GET", id, "", NULL, &seen), 200);
    CHECK_STR(seen.at, cancelled.at);
    CHECK_EQ(call_response(&s, "POST", id, "/cancel", NULL, &seen), 200);
    CHECK_STR(seen.at, cancelled.at);
    CHECK_EQ(call_response(&s, "GET", id, "?stream=true", NULL, &seen), 400);
    /* Other methods do not do with that path what they do with the response. */
    CHECK_EQ(call_response(&s, "GET", id, "/cancel", NULL, &seen), 404);
    CHECK_EQ(call_response(&s, "DELETE", id, "/cancel", NULL, &seen), 404);
    CHECK_EQ(call_response(&s, "DELETE", id, "/input_items", NULL, &seen), 404);
    CHECK_EQ(call_response(&s, "GET", id, "", NULL, &seen), 200);
    /* Who forgets one ends it, too. */
    begin_background(&s, ENDLESS, id);
    await_state(&s, id, "in_progress", &seen);
    CHECK_EQ(call_response(&s, "DELETE", id, "", NULL, &seen), 200);
    await_idle(&s);
    CHECK_EQ(call_response(&s, "GET", id, "", NULL, &seen), 404);
    CHECK_EQ(call_response(&s, "POST", id, "/cancel", NULL, &seen), 404);
    /* Also a stream can be polled and cancelled. */
    int fd = post(&s, "/v1/responses", "", "{" ENDLESS ",\"background\":true,\"stream\":true}");
    str_cut(&seen, 0);
    CHECK(http_read_until(fd, &seen, "output_text.delta"));
    snprintf(id, sizeof id, "%.37s", strstr(seen.at, "resp_"));
    await_state(&s, id, "in_progress", &seen);
    CHECK_EQ(call_response(&s, "POST", id, "/cancel", NULL, &seen), 200);
    /* The last chunk may be all that comes: what was before it has been read. */
    CHECK(http_read_until(fd, &seen, "0\r\n\r\n"));
    close(fd);
    http_post(&r, &s, "/v1/responses", "{\"input\":\"a\",\"max_output_tokens\":1}");
    snprintf(id, sizeof id, "%.37s", strstr(r.body.at, "resp_"));
    CHECK_EQ(call_response(&s, "POST", id, "/cancel", NULL, &seen), 400);
    CHECK(strstr(seen.at, "no response of 'background'"));
    response_free(&r);
    stop(&s);
    str_free(&seen);
    str_free(&cancelled);
}

TEST(a_stream_belongs_to_its_api_key)
{
    AUTO(stop) served s;
    AUTO(str_free) str seen = {0};
    char keys[1200];
    snprintf(keys, sizeof keys, "%s", test_temp("keys"));
    test_write(keys, "one\ntwo\n", 8);
    start_toy(&s, ARGS("--api-key-file", keys));
    post_and_leave(&s, "/v1/chat/completions",
                   "Authorization: Bearer one\r\nX-Conversation-Id: a\r\n", CHAT, "[DONE]", &seen);
    refused(&s, "/v1/stream?conv_id=a", "Authorization: Bearer two\r\n", 404, "no stream");
    refused(&s, "/v1/stream?conv_id=a", "Authorization: Bearer one\r\n", 200, "[DONE]");
}

/* The client leaves while its model waits for the place of another. */
TEST(a_stream_goes_on_while_its_model_is_loaded)
{
    static const char ask[] =
        "{\"model\":\"b\"," ASK ",\"max_tokens\":3,\"ignore_eos\":true,\"stream\":true}";
    served s;
    AUTO(str_free) str seen = {0}, one = {0}, two = {0};
    response r;
    str_printf(&one, "a=%s", toy_model_write(&(toy_model_file){.n_ctx_train = 65536}));
    str_printf(&two, "b=%s", toy_model_write(&(toy_model_file){.seed = 7, .n_ctx_train = 65536}));
    served_start(&s, ARGS("-t", "1", "--ctx", "60000", "--max-loaded", "1", "--parallel", "1",
                          "--ping", "1", "--load-wait", "60", one.at, two.at));
    int fd = http_begin(&s, "/v1/chat/completions",
                        "{\"model\":\"a\",\"stream\":true,\"ignore_eos\":true," ASK "}");
    CHECK(http_read_until(fd, &seen, "content"));
    int kept = post(&s, "/v1/chat/completions", "X-Conversation-Id: kept\r\n", ask);
    int ended = post(&s, "/v1/chat/completions", "X-Conversation-Id: ended\r\n", ask);
    str_cut(&seen, 0);
    CHECK(http_read_until(kept, &seen, ": the server"));
    close(kept);
    str_cut(&seen, 0);
    CHECK(http_read_until(ended, &seen, ": the server"));
    close(ended);
    CHECK_EQ((int)http_metric(&s, "carat_requests_active"), 3);
    for (double until = clock_ms() + PATIENCE_MS;
         !(http_metric(&s, "carat_busy_seconds_total") > 0); usleep(20000))
        CHECK(clock_ms() < until);
    http_call(&r, &s, "DELETE", "/v1/stream?conv_id=ended", NULL, NULL);
    response_free(&r);
    for (double until = clock_ms() + PATIENCE_MS; http_metric(&s, "carat_requests_active") > 2;
         usleep(20000))
        CHECK(clock_ms() < until);
    char id[64], bad[64];
    begin_background(&s, "\"model\":\"b\",\"input\":\"a\",\"max_output_tokens\":3", id);
    begin_background(&s, "\"model\":\"b\",\"input\":7", bad);
    CHECK_EQ(call_response(&s, "GET", id, "", NULL, &seen), 200);
    CHECK(strstr(seen.at, "\"status\":\"queued\""));
    close(fd);
    await_state(&s, id, "incomplete", &seen);
    CHECK(strstr(seen.at, "output_text") && strstr(seen.at, id));
    CHECK_EQ(call_response(&s, "GET", id, "/input_items", NULL, &seen), 200);
    CHECK(strstr(seen.at, "input_text"));
    await_state(&s, bad, "failed", &seen);
    CHECK_MSG(strstr(seen.at, "'input' is a number"), "%s", seen.at);
    get(&r, &s, "/v1/stream?conv_id=kept", NULL);
    CHECK_MSG(r.status == 200 && strstr(r.body.at, "\"finish_reason\":\"length\""), "%s",
              str_text(&r.body));
    response_free(&r);
    stop(&s);
}
