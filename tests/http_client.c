/* http_client.c - see http_client.h. */
#include "tests/http_client.h"
#include "tests/spawn.h"
#include "tests/test.h"
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGS_MAX = 48 };

void served_start(served *s, const char *const *args)
{
    const char *argv[ARGS_MAX] = {"carat", "serve", "-p", "0"}, *log = test_temp("server.log");
    int n = 4, out[2];
    AUTO(str_free) str line = {0};
    s->log = log;
    while (args && *args && n < ARGS_MAX - 1)
        argv[n++] = *args++;
    CHECK(!pipe2(out, O_CLOEXEC));
    fflush(stdout);
    s->pid = fork();
    CHECK(s->pid >= 0);
    if (!s->pid) {
        dup2(out[1], 1);
        dup2(open(log, O_WRONLY | O_CREAT | O_APPEND, 0600), 2);
        spawn_become("carat", argv);
    }
    close(out[1]);
    s->out = out[0];
    signal(SIGPIPE, SIG_IGN);
    CHECK_MSG(http_read_until(s->out, &line, "\n"), "the server did not come up: see %s", log);
    CHECK_MSG(sscanf(line.at, "http://127.0.0.1:%d", &s->port) == 1, "%s", line.at);
}

int served_stop(served *s, int sig)
{
    int how = 0;
    kill(s->pid, sig);
    while (waitpid(s->pid, &how, 0) < 0 && errno == EINTR)
        ;
    close(s->out);
    return WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
}

int http_dial(const served *s)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)s->port)};
    double start = clock_ms();
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (;;) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(fd >= 0);
        if (!connect(fd, (struct sockaddr *)&to, sizeof to))
            return fd;
        /* All ports may be waiting for the last packets of clients that have left. */
        CHECK_MSG(errno == EADDRNOTAVAIL && clock_ms() - start < PATIENCE_MS, "connect: %s",
                  strerror(errno));
        close(fd);
        usleep(10000);
    }
}

static void send_all(int fd, const char *s, size_t n)
{
    while (n) {
        ssize_t k = send(fd, s, n, MSG_NOSIGNAL);
        if (k <= 0)
            return; /* refused before all was sent: the answer says why */
        s += k;
        n -= (size_t)k;
    }
}

static bool read_some(int fd, str *to)
{
    char buf[65536];
    struct pollfd p = {fd, POLLIN, 0};
    CHECK_MSG(poll(&p, 1, PATIENCE_MS) > 0, "nothing comes; so far: %s", str_text(to));
    ssize_t n = read(fd, buf, sizeof buf);
    if (n > 0)
        str_put(to, buf, (size_t)n);
    return n > 0;
}

bool http_read_until(int fd, str *seen, const char *text)
{
    while (!seen->n || !memmem(seen->at, seen->n, text, strlen(text)))
        if (!read_some(fd, seen))
            return false;
    return true;
}

static void put_request(str *o, const char *method, const char *path, const char *headers,
                        const char *body)
{
    str_printf(o, "%s %s HTTP/1.1\r\nConnection: close\r\n", method, path);
    if (!headers || !strstr(headers, "Host:"))
        str_puts(o, "Host: localhost\r\n");
    str_puts(o, headers ? headers : "");
    if (body)
        str_printf(o, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
    str_puts(o, "\r\n");
    str_puts(o, body ? body : "");
}

static void join_chunks(str *body)
{
    str all = {0};
    for (size_t at = 0; at < body->n;) {
        char *end;
        size_t n = strtoul(body->at + at, &end, 16);
        size_t from = (size_t)(end - body->at) + 2;
        if (!n || from + n > body->n)
            break;
        str_put(&all, body->at + from, n);
        at = from + n + 2;
    }
    str_free(body);
    *body = all;
}

void http_call(response *r, const served *s, const char *method, const char *path,
               const char *headers, const char *body)
{
    str o = {0};
    int fd = http_dial(s);
    *r = (response){0};
    put_request(&o, method, path, headers, body);
    send_all(fd, o.at, o.n);
    str_free(&o);
    while (read_some(fd, &r->body))
        ;
    close(fd);
    char *split = r->body.n ? memmem(r->body.at, r->body.n, "\r\n\r\n", 4) : NULL;
    CHECK_MSG(split, "%s %s: no answer", method, path);
    str_put(&r->head, r->body.at, (size_t)(split - r->body.at) + 2);
    str_drop(&r->body, (size_t)(split - r->body.at) + 4);
    CHECK_EQ(sscanf(r->head.at, "HTTP/1.1 %d", &r->status), 1);
    if (strcasestr(r->head.at, "transfer-encoding: chunked"))
        join_chunks(&r->body);
    str_puts(&r->body, ""); /* NUL-terminated, even when empty */
}

void http_post(response *r, const served *s, const char *path, const char *body)
{
    http_call(r, s, "POST", path, NULL, body);
}

void response_free(response *r)
{
    str_free(&r->head);
    str_free(&r->body);
    *r = (response){0};
}

int http_begin(const served *s, const char *path, const char *body)
{
    AUTO(str_free) str o = {0};
    int fd = http_dial(s);
    put_request(&o, "POST", path, NULL, body);
    send_all(fd, o.at, o.n);
    return fd;
}

const jtree *json_at(const jtree *v, const char *path)
{
    while (v && *path) {
        char key[64];
        size_t n = strcspn(path, ".");
        CHECK(n < sizeof key);
        memcpy(key, path, n);
        key[n] = 0;
        if (v->kind == JTREE_ARRAY) {
            int i = atoi(key);
            for (v = v->first; v && i--;)
                v = v->next;
        } else {
            v = jtree_get(v, key);
        }
        path += n + (path[n] == '.');
    }
    return v;
}

const jtree *json_parsed(arena *mem, const char *s, size_t n)
{
    const jtree *v = NULL;
    err e = {0};
    CHECK_MSG(!jtree_parse(s, n, "the answer", 64, mem, &v, &e), "%s: %.*s", e.text, (int)n, s);
    return v;
}

const char *text_at(arena *mem, const response *r, const char *path)
{
    const jtree *v = json_at(json_parsed(mem, str_text(&r->body), r->body.n), path);
    CHECK_MSG(v && v->s, "no %s in %s", path, str_text(&r->body));
    return v->s;
}

void stream_text(const response *r, const char *path, str *out)
{
    const char *from = str_text(&r->body);
    for (const char *line; (line = strstr(from, "data: ")); from = line + 6) {
        const char *end = strstr(line, "\n\n");
        AUTO(arena_free) arena mem = {0};
        CHECK_MSG(end, "an event without an end: %s", line);
        if (strncmp(line, "data: [DONE]", 12)) {
            const jtree *v = json_at(json_parsed(&mem, line + 6, (size_t)(end - line - 6)), path);
            if (jtree_is(v, JTREE_STRING))
                str_put(out, v->s, v->n);
        }
    }
    str_puts(out, "");
}

double http_metric(const served *s, const char *name)
{
    AUTO(response_free) response r;
    char line[64];
    double v = -1;
    http_call(&r, s, "GET", "/metrics", NULL, NULL);
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr(r.body.at, line);
    CHECK_MSG(at && sscanf(at + strlen(line), "%lf", &v) == 1, "no %s in %s", name, r.body.at);
    return v;
}
