/* mcp_rig.c - see mcp_rig.h.
 *
 * Modes of both: plain; pages (a list in three), endless (a list without an end), other_id, markup,
 * kinds (every kind of content), structured, refuses (a JSON-RPC error), future (another revision),
 * bare (no tools), mute (no answer at all), hang (none to a call), weather (the tool
 * of tools/demo_tools.json) and storm (the same, which hangs), progress (of a slow call), quoted (a
 * tool that Gemma 4's chat format cannot tell), crowd (200 tools more), huge (100 MB in one
 * message). Of a program alone: dies, flood, noise (words that are no messages), asks (requests of
 * its own), stubborn (ends for SIGKILL alone), words (writes to stderr), changes (its tools), deaf
 * (does not read), env, files (descriptors that it has), posing (a tool whose name reads as one of
 * server a), brief (ends when it has begun), tired (ends soon after its list), halves (half a
 * character in an answer), clings (hangs, and ends for SIGKILL alone). Of an address alone: json
 * (no events), lost (the session, once), drops (the stream, after an id), forgets (drops, and knows
 * no session after it), moved, denied, gone, page (HTML).
 */
#include "tests/mcp_rig.h"
#include "tests/test.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HUGE_BYTES = 100 << 20, REQUEST_MAX = 1 << 20 };

static bool is(const char *mode, const char *name)
{
    return !strcmp(mode, name);
}

/* ---- Answers ---- */

static json_t *tool(const char *name, const char *about)
{
    return json_pack("{s:s, s:s, s:{s:s, s:{s:{s:s}, s:{s:s}}}}", "name", name, "description",
                     about, "inputSchema", "type", "object", "properties", "a", "type", "integer",
                     "b", "type", "integer");
}

static json_t *list(const char *mode, const char *cursor, int n_calls)
{
    if (is(mode, "pages")) {
        int page = cursor ? atoi(cursor) : 0;
        static const char *const names[] = {"echo", "add", "third"}, *const next[] = {"1", "2"};
        json_t *r = json_pack("{s:[o]}", "tools", tool(names[page], "one of three"));
        if (page < 2)
            json_object_set_new(r, "nextCursor", json_string(next[page]));
        return r;
    }
    if (is(mode, "weather") || is(mode, "storm"))
        return json_pack("{s:[{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}}, s:[s]}}]}", "tools", "name",
                         "get_weather", "description", "Get the weather of a city.", "inputSchema",
                         "type", "object", "properties", "city", "type", "string", "description",
                         "City name", "required", "city");
    if (is(mode, "endless"))
        return json_pack("{s:[], s:s}", "tools", "nextCursor", "again");
    if (is(mode, "changes") && n_calls)
        return json_pack("{s:[o, o]}", "tools", tool("echo", "another description"),
                         tool("add", "Adds."));
    json_t *r = json_pack("{s:[o, o]}", "tools", tool("echo", "Gives its arguments back."),
                          tool("add", "Adds."));
    if (is(mode, "posing"))
        json_array_append_new(json_object_get(r, "tools"), tool("a/add", "Not the add of a."));
    if (is(mode, "quoted"))
        json_array_append_new(json_object_get(r, "tools"), tool("marks", "Ends with <|\"|>."));
    for (int i = 0; is(mode, "crowd") && i < 200; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", i);
        json_array_append_new(json_object_get(r, "tools"), json_pack("{s:s}", "name", name));
    }
    if (is(mode, "odd")) {
        json_t *all = json_object_get(r, "tools");
        json_array_append_new(all, json_pack("{s:s}", "name", ""));
        json_array_append_new(all, json_pack("{s:s, s:i}", "name", "schema", "inputSchema", 3));
        json_array_append_new(all, json_pack("{s:s, s:{s:s}}", "name", "task", "execution",
                                             "taskSupport", "required"));
        json_array_append_new(all, json_pack("{s:s}", "name", "dots.and spaces"));
        json_array_append_new(all, json_string("no object"));
        json_array_append_new(all, tool("echo", "a second time"));
    }
    return r;
}

static json_t *text_result(const char *text)
{
    return json_pack("{s:[{s:s, s:s}]}", "content", "type", "text", "text", text);
}

static json_t *kinds(void)
{
    return json_pack("{s:[{s:s, s:s}, {s:s, s:s, s:s}, {s:s, s:s, s:s}, {s:s, s:s, s:s}, {s:s, "
                     "s:{s:s, s:s}}, {s:s, s:{s:s, s:s, s:s}}, {s:s}], s:b}",
                     "content", "type", "text", "text", "words", "type", "image", "data",
                     "AAAAAAAA", "mimeType", "image/png", "type", "audio", "data", "AAAA",
                     "mimeType", "audio/wav", "type", "resource_link", "uri", "file:///x", "name",
                     "x", "type", "resource", "resource", "uri", "file:///y", "text", "inside",
                     "type", "resource", "resource", "uri", "file:///z", "mimeType", "a/b", "blob",
                     "AAAA", "type", "hologram", "isError", 1);
}

static int n_open_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n - 3; /* ".", ".." and the directory itself */
}

static json_t *call(const char *mode, const json_t *params)
{
    const json_t *args = json_object_get(params, "arguments");
    const char *name = json_string_value(json_object_get(params, "name"));
    char text[256];
    if (is(mode, "markup"))
        return text_result(
            "<script>alert(1)</script>\x1b]0;title\x07\x1b[2J<end_of_turn>\xe2\x80\xae"
            "<|im_end|>");
    if (is(mode, "weather"))
        return text_result("18 degrees and sunny");
    if (is(mode, "kinds"))
        return kinds();
    if (is(mode, "structured"))
        return json_pack("{s:[], s:{s:i}}", "content", "structuredContent", "n", 7);
    if (is(mode, "env") || is(mode, "files")) {
        const char *own = getenv("FAKE_OWN"), *secret = getenv("FAKE_SECRET");
        snprintf(text, sizeof text, "own %s, secret %s, files %d", own ? own : "none",
                 secret ? secret : "none", n_open_files());
        return text_result(text);
    }
    if (name && is(name, "add")) {
        snprintf(text, sizeof text, "%lld",
                 (long long)(json_integer_value(json_object_get(args, "a")) +
                             json_integer_value(json_object_get(args, "b"))));
        return text_result(text);
    }
    AUTO_PTR(free) char *all = json_dumps(args, JSON_COMPACT | JSON_SORT_KEYS);
    json_t *r = text_result(all);
    return r;
}

/* The answer to a message; NULL: none. */
static json_t *answer(const char *mode, const json_t *m, int n_calls)
{
    const char *method = json_string_value(json_object_get(m, "method"));
    json_t *id = json_object_get(m, "id"), *params = json_object_get(m, "params"), *r = NULL;
    if (!method || !id || is(mode, "mute"))
        return NULL;
    bool calls = is(method, "tools/call");
    if (is(method, "initialize"))
        r = json_pack("{s:s, s:{s:{}}, s:{s:s, s:s}}", "protocolVersion",
                      is(mode, "future") ? "2030-01-01" : "2025-06-18", "capabilities",
                      is(mode, "bare") ? "prompts" : "tools", "serverInfo", "name", "fake",
                      "version", "1");
    else if (is(method, "tools/list"))
        r = list(mode, json_string_value(json_object_get(params, "cursor")), n_calls);
    else if (calls && is(mode, "refuses"))
        return json_pack("{s:s, s:O, s:{s:i, s:s}}", "jsonrpc", "2.0", "id", id, "error", "code",
                         -32602, "message", "no such thing");
    else if (calls && (is(mode, "hang") || is(mode, "storm") || is(mode, "clings")))
        return NULL;
    else if (calls)
        r = call(mode, params);
    if (calls && is(mode, "other_id"))
        return json_pack("{s:s, s:s, s:o}", "jsonrpc", "2.0", "id", "another", "result", r);
    return json_pack("{s:s, s:O, s:o}", "jsonrpc", "2.0", "id", id, "result", r);
}

static json_t *notice(const char *method, const char *key, json_t *value)
{
    return json_pack("{s:s, s:s, s:{s:o}}", "jsonrpc", "2.0", "method", method, "params", key,
                     value);
}

/* The beginning of a message of 100 MB, as far as anyone reads it. */
static void put_huge(int fd)
{
    char block[65536];
    memset(block, 'x', sizeof block);
    memcpy(block, "{\"jsonrpc\":\"", 12);
    for (int i = 0; i < HUGE_BYTES / (int)sizeof block; i++) {
        if (write(fd, block, sizeof block) < 0)
            return;
        block[0] = 'x';
    }
}

/* ---- As a program ---- */

static void say(json_t *v)
{
    AUTO_PTR(free) char *text = json_dumps(v, JSON_COMPACT);
    json_decref(v);
    if (text && printf("%s\n", text) > 0)
        fflush(stdout);
}

static json_t *hear(void)
{
    static char line[REQUEST_MAX];
    return fgets(line, sizeof line, stdin) ? json_loads(line, 0, NULL) : NULL;
}

/* Asks the client, and says what it answered. */
static const char *ask(const char *method)
{
    static char said[128];
    say(json_pack("{s:s, s:s, s:s}", "jsonrpc", "2.0", "id", "mine", "method", method));
    json_t *m = hear();
    const json_t *error = json_object_get(m, "error");
    snprintf(said, sizeof said, "%s %d", json_object_get(m, "result") ? "result" : "error",
             (int)json_integer_value(json_object_get(error, "code")));
    json_decref(m);
    return said;
}

static void misbehave(const char *mode, const json_t *m)
{
    const json_t *token =
        json_object_get(json_object_get(json_object_get(m, "params"), "_meta"), "progressToken");
    if (is(mode, "dies")) {
        fputs("Traceback: the last words\n", stderr);
        printf("{\"jsonrpc\":");
        fflush(stdout);
        _exit(3);
    }
    while (is(mode, "flood"))
        puts("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}");
    if (is(mode, "huge"))
        put_huge(1);
    if (is(mode, "halves"))
        printf("{\"jsonrpc\":\"2.0\",\"id\":%d,\"result\":{\"content\":[{\"type\":\"text\","
               "\"text\":\"\\ud83d\"}]}}\n",
               (int)json_integer_value(json_object_get(m, "id")));
    if (is(mode, "noise"))
        printf("Welcome!\n\n[debug] got {\"jsonrpc\":\"2.0\"}\n\x1b[31mDEBUG\x1b[0m {not "
               "json}\n[1, 2\nnull\n\"x\"\n");
    for (int i = 0; i < 30 && is(mode, "progress"); i++) {
        usleep(60000);
        say(notice("notifications/progress", "progressToken", json_copy((json_t *)token)));
    }
    for (int i = 0; i < 10000 && is(mode, "words"); i++)
        fprintf(stderr, "%d words and words and words and words and words\x1b[2J\n", i);
    if (is(mode, "changes"))
        say(notice("notifications/tools/list_changed", "x", json_null()));
}

void mcp_fake_main(const char *mode)
{
    json_t *m;
    int n_calls = 0;
    const char *noted = getenv("FAKE_PID_FILE");
    FILE *f = noted ? fopen(noted, "w") : NULL;
    if (f) {
        fprintf(f, "%d", (int)getpid());
        fclose(f);
    }
    if (is(mode, "stubborn"))
        signal(SIGTERM, SIG_IGN);
    while ((m = hear()) != NULL) {
        const char *method = json_string_value(json_object_get(m, "method"));
        bool calls = method && is(method, "tools/call");
        n_calls += calls;
        if (calls)
            misbehave(mode, m);
        if (calls && is(mode, "asks")) {
            char both[256];
            size_t n = (size_t)snprintf(both, sizeof both, "%s, ", ask("ping"));
            snprintf(both + n, sizeof both - n, "%s", ask("sampling/createMessage"));
            say(json_pack("{s:s, s:O, s:o}", "jsonrpc", "2.0", "id", json_object_get(m, "id"),
                          "result", text_result(both)));
        } else {
            json_t *a = answer(mode, m, n_calls);
            if (a)
                say(a);
        }
        if (is(mode, "deaf") && method && is(method, "tools/list"))
            pause();
        if ((is(mode, "brief") && method && is(method, "initialize")) ||
            (is(mode, "tired") && method && is(method, "tools/list") && !usleep(800000))) {
            fputs("had enough\n", stderr);
            _exit(3);
        }
        json_decref(m);
    }
    while (is(mode, "stubborn") || is(mode, "clings"))
        pause();
    _exit(0);
}

const char *mcp_rig_program(void)
{
    static char path[1024];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    CHECK(n > 0);
    path[n] = 0;
    return path;
}

void mcp_rig_specs(mcp_specs *s, const char *mode, double timeout_s)
{
    err e = {0};
    json_t *v = json_pack("{s:s, s:[s, s], s:f, s:{s:s}}", "command", mcp_rig_program(), "args",
                          "--mcp-fake", mode, "timeout", timeout_s, "env", "FAKE_OWN",
                          "${HOME}${env:HOME}!");
    CHECK_OK(mcp_specs_add(s, "fake", v, MCP_OWN, NULL, &e), e);
    json_decref(v);
}

const char *mcp_rig_file(const char *mode)
{
    char text[2048];
    const char *path = test_temp("mcp.json");
    int n =
        snprintf(text, sizeof text,
                 "{\"mcpServers\":{\"fake\":{\"command\":\"%s\",\"args\":[\"--mcp-fake\",\"%s\"],"
                 "\"env\":{\"FAKE_PID_FILE\":\"%s\"}}}}",
                 mcp_rig_program(), mode, test_temp("pid"));
    test_write(path, text, (size_t)n);
    return path;
}

/* ---- At an address ---- */

static void send_all(int fd, const char *bytes, size_t n)
{
    while (n) {
        ssize_t done = send(fd, bytes, n, MSG_NOSIGNAL);
        if (done <= 0)
            return;
        bytes += done;
        n -= (size_t)done;
    }
}

static void send_text(int fd, const char *text)
{
    send_all(fd, text, strlen(text));
}

static void reply_simple(int fd, const char *status_line, const char *type, const char *body)
{
    char head[512];
    snprintf(head, sizeof head,
             "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: "
             "close\r\n\r\n",
             status_line, type, strlen(body));
    send_text(fd, head);
    send_text(fd, body);
}

/* Reads a request; its body is out[*body..). False: the client left. */
static bool read_request(int fd, char *out, size_t cap, size_t *body)
{
    size_t n = 0, want = cap;
    while (n < want && n < cap - 1) {
        ssize_t got = recv(fd, out + n, cap - 1 - n, 0);
        if (got <= 0)
            return false;
        n += (size_t)got;
        out[n] = 0;
        const char *end = strstr(out, "\r\n\r\n");
        const char *length = strcasestr(out, "content-length:");
        if (end) {
            *body = (size_t)(end + 4 - out);
            want = *body + (length && length < end ? strtoul(length + 15, NULL, 10) : 0);
        }
    }
    return true;
}

static void stream_answer(mcp_http_rig *r, int fd, json_t *a, bool begins)
{
    char *text = json_dumps(a, JSON_COMPACT);
    send_text(fd, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n");
    if (begins)
        send_text(fd, "mcp-session-id: session-1\r\n");
    send_text(fd, "Connection: close\r\n\r\n");
    if ((is(r->mode, "drops") || is(r->mode, "forgets")) && !begins) {
        send_text(fd, "id: 7\nretry: 30\ndata:\n\n"); /* the answer comes by GET */
        free(text);
        return;
    }
    send_text(fd, ": a comment\r\nevent: message\r\ndata: ");
    if (is(r->mode, "halves") && strstr(text, "\"content\""))
        send_text(fd, "{\"jsonrpc\":\"2.0\",\"id\":3,\"result\":{\"content\":\"\\ud83d\"}}");
    else
        send_text(fd, text);
    send_text(fd, "\r\n\r\n");
    free(text);
}

/* False: the connection stays open, without an answer. */
static bool serve_post(mcp_http_rig *r, int fd, const char *head, const char *body, char *held)
{
    json_t *m = json_loads(body, 0, NULL);
    const char *method = json_string_value(json_object_get(m, "method"));
    bool begins = method && is(method, "initialize");
    bool session = strcasestr(head, "mcp-session-id: session-1");
    r->n_sessions += begins;
    r->n_without_session += !begins && !session;
    r->n_without_version += !begins && !strcasestr(head, "mcp-protocol-version: 2025-06-18");
    json_t *a = answer(r->mode, m, 0);
    if (is(r->mode, "moved"))
        send_text(fd, "HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:1/secret\r\n"
                      "Content-Length: 0\r\nConnection: close\r\n\r\n");
    else if (is(r->mode, "denied"))
        reply_simple(fd, "401 Unauthorized", "application/json", "{\"error\":\"invalid_token\"}");
    else if (is(r->mode, "gone"))
        reply_simple(fd, "404 Not Found", "text/plain", "");
    else if (is(r->mode, "page"))
        reply_simple(fd, "200 OK", "text/html", "<h1>Welcome</h1>");
    else if (is(r->mode, "lost") && method && is(method, "tools/call") && r->n_sessions == 1)
        reply_simple(fd, "404 Not Found", "text/plain", "no such session");
    else if (!json_object_get(m, "id"))
        reply_simple(fd, "202 Accepted", "text/plain", "");
    else if (!a) {
        json_decref(m);
        return false;
    } else if (is(r->mode, "huge") && method && is(method, "tools/call")) {
        send_text(fd, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                      "Connection: close\r\n\r\n");
        put_huge(fd);
    } else if (is(r->mode, "json")) {
        char *text = json_dumps(a, JSON_COMPACT);
        reply_simple(fd, "200 OK", "application/json", text);
        free(text);
    } else {
        if (is(r->mode, "drops") || is(r->mode, "forgets")) {
            AUTO_PTR(free) char *text = json_dumps(a, JSON_COMPACT);
            snprintf(held, 4096, "%s", text);
        }
        stream_answer(r, fd, a, begins);
    }
    json_decref(a);
    json_decref(m);
    return true;
}

static void *serve(void *arg)
{
    mcp_http_rig *r = arg;
    sigset_t pipes;
    sigemptyset(&pipes);
    sigaddset(&pipes, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipes, NULL);
    char *request = malloc(REQUEST_MAX), held[4096] = "";
    int open_[16], n_open = 0;
    while (!r->stop) {
        int fd = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
        size_t body = 0;
        if (fd < 0)
            break;
        if (read_request(fd, request, REQUEST_MAX, &body)) {
            if (!strncmp(request, "POST", 4)) {
                r->n_posts++;
                if (!serve_post(r, fd, request, request + body, held) && n_open < 16) {
                    open_[n_open++] = fd;
                    continue;
                }
            } else if (!strncmp(request, "GET", 3)) {
                r->n_gets++;
                if (is(r->mode, "forgets") && r->n_gets > 1) {
                    reply_simple(fd, "404 Not Found", "text/plain", "");
                    close(fd);
                    continue;
                }
                send_text(fd, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                              "Connection: close\r\n\r\nid: 8\ndata: ");
                if (strcasestr(request, "last-event-id: 7"))
                    send_text(fd, held);
                send_text(fd, "\n\n");
            } else {
                r->n_deletes++;
                reply_simple(fd, "200 OK", "text/plain", "");
            }
        }
        close(fd);
    }
    while (n_open)
        close(open_[--n_open]);
    free(request);
    return NULL;
}

void mcp_http_open(mcp_http_rig *r, const char *mode)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    *r = (mcp_http_rig){.mode = mode, .listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    CHECK(r->listener >= 0 && !bind(r->listener, (struct sockaddr *)&a, n) &&
          !listen(r->listener, 16) && !getsockname(r->listener, (struct sockaddr *)&a, &n));
    snprintf(r->url, sizeof r->url, "http://127.0.0.1:%d/mcp", ntohs(a.sin_port));
    CHECK(!pthread_create(&r->thread, NULL, serve, r));
}

void mcp_http_specs(mcp_specs *s, const mcp_http_rig *r, double timeout_s)
{
    err e = {0};
    json_t *v = json_pack("{s:s, s:f}", "url", r->url, "timeout", timeout_s);
    CHECK_OK(mcp_specs_add(s, "fake", v, MCP_OWN, NULL, &e), e);
    json_decref(v);
}

void mcp_http_close(mcp_http_rig *r)
{
    r->stop = true;
    shutdown(r->listener, SHUT_RDWR);
    pthread_join(r->thread, NULL);
    close(r->listener);
}
