/* http.c - connections: permissions, bodies in, answers and streams out. routes.c has the paths.
 *
 * gate.c passes a connection on when its first header is complete. libmicrohttpd gives it a thread,
 * so a handler may block on the mailbox of its request. Unknown paths, missing keys and declared
 * lengths beyond the limit are refused before the body is read.
 *
 * A web page must not use a keyless server on loopback without its user's knowledge. So requests
 * are refused whose Host is not a name of this machine (DNS rebinding), and requests from pages of
 * other origins, unless --cors allows them.
 */
#include "apps/server/http/http.h"

#include "apps/server/http/gate.h"
#include "apps/server/answers/generate.h"
#include "apps/server/http/head.h"
#include "apps/server/http/routes.h"
#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    HEADERS_MAX = 64 << 10,        /* bytes of one request's headers */
    THREAD_STACK = 1 << 20,        /* the deepest recursion is over a request's JSON */
    BODIES_MAX_SHARE = 8,          /* all bodies together, in units of --max-body */
    WORK_FACTOR = 12,              /* memory for parsing and tokenising, in units of the body */
    WORK_MAX_SHARE = 16,           /* all of that memory, in units of --max-body */
    SWALLOWED_MAX = 4,             /* of a body that is refused, in units of --max-body */
    LEAVE_MS = 1000,               /* for an idle connection that was told to leave */
    UPLOAD_MAX_MS = 5 * 60 * 1000, /* for a body: it holds a thread */
    HEADER_MAX_MS = 10 * 1000,     /* for the first header of a connection */
    PRESSED_MS = 5 * 1000,         /* instead of --timeout, while a new connection finds no room */
    LEAST_BYTES_PER_S = 4096,      /* of a body, and of an answer that the client reads */
    WAITING_MAX = 4096             /* connections without a complete header */
};

/* A connection of the library. */
typedef struct visitor {
    struct visitor *previous, *next;
    int fd;
    bool awaited;    /* the client has to send: a header, or the rest of a body */
    bool idle;       /* it has its answers, and no further request has begun */
    double left_ms;  /* it was told to leave then, to make room; 0: it was not */
    double since_ms; /* the client has to send since then; or to read what was sent */
    double heard_ms; /* the last bytes of a body */
    uint64_t n_body; /* bytes of it so far */
    uint64_t n_read; /* bytes of answers that the client had read at since_ms */
} visitor;

struct http {
    server *s;
    struct MHD_Daemon *daemon;
    gate *gate;
    int listener;
    pthread_mutex_t lock; /* of the next three */
    visitor *first;
    int64_t n_visitors;
    bool pressed; /* a new connection found no room since the last tick */
};

/* ---- Permissions ---- */

static bool has_key(exchange *x)
{
    const api_keys *k = &x->s->keys;
    const char *given = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "X-Api-Key");
    const char *auth = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Authorization");
    bool ok = !k->n;
    if (auth && !strncasecmp(auth, "Bearer ", 7))
        auth += 7 + strspn(auth + 7, " ");
    for (int32_t i = 0; i < k->n; i++) {
        /* Both are compared, so that the time does not tell which header had the key. */
        bool by_given = given && key_is(k->key[i], given);
        bool by_auth = auth && key_is(k->key[i], auth);
        if (by_given || by_auth) {
            x->owner = i;
            ok = true;
        }
    }
    return ok;
}

/* The value of Access-Control-Allow-Origin, or NULL. */
static const char *allowed_origin(const exchange *x)
{
    const char *origin = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Origin");
    return origin && origin_is_listed(x->s->o->cors, origin) ? origin : NULL;
}

/* Has a page of another origin asked, which --cors does not list? Browsers send no Origin with
 * pictures, links and frames: there Sec-Fetch-Site says it, and without that, Referer. */
static bool page_is_foreign(const exchange *x, const char *host)
{
    const char *site =
        MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Sec-Fetch-Site");
    const char *from = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Referer");
    const char *name = from ? strstr(from, "://") : NULL;
    char origin[300] = "";
    if (name)
        snprintf(origin, sizeof origin, "%.*s", (int)(name + 3 + strcspn(name + 3, "/?#") - from),
                 from);
    bool foreign = site ? strcasecmp(site, "same-origin") && strcasecmp(site, "none")
                        : *origin && !origin_is_own(origin, host);
    return foreign && !allowed_origin(x) && !origin_is_listed(x->s->o->cors, origin);
}

static bool may_ask(exchange *x, const route *r, problem *p)
{
    const char *host = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Host");
    const char *origin = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Origin");
    if (x->s->loopback && !x->s->keys.n && host && !host_is_local(host))
        return problem_set(p, 403, "Host",
                           "this server is for this machine only; \"%.100s\" is no "
                           "name of it (give it an API key to reach it under other names)",
                           host);
    if (origin && strcmp(origin, "null") && !origin_is_own(origin, host) && !allowed_origin(x))
        return problem_set(p, 403, "Origin",
                           "pages of %.100s may not use this server; --cors lets "
                           "them",
                           origin);
    if (origin && !strcmp(origin, "null") && !allowed_origin(x))
        return problem_set(p, 403, "Origin", "pages without an origin may not use this server");
    /* Any request may load a model and unload another, whatever its method. */
    if (r->access == KEY_HOLDERS && page_is_foreign(x, host))
        return problem_set(p, 403, "Origin",
                           "a page of another origin asked; such pages may not use this server, "
                           "--cors lets them");
    if (r->access == KEY_HOLDERS && !has_key(x))
        return problem_set(p, 401, "Authorization",
                           "the API key is missing or wrong: send it as "
                           "'Authorization: Bearer KEY' or 'x-api-key: KEY'");
    return true;
}

/* ---- One request ---- */

typedef struct request_state {
    exchange x;
    const route *route;
    char *path, *method;
    str body;
    bool too_long, counted;
    visitor *visitor;
    long long n_work;
    size_t n_swallowed;
} request_state;

static const char *query(const exchange *x, const char *key)
{
    return MHD_lookup_connection_value(x->connection, MHD_GET_ARGUMENT_KIND, key);
}

static const char *find_header(const exchange *x, const char *name)
{
    return MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

static void add_headers(const exchange *x, struct MHD_Response *r)
{
    const char *origin = allowed_origin(x);
    char number[24];
    MHD_add_response_header(r, "Content-Type", x->type ? x->type : "application/json");
    MHD_add_response_header(r, "X-Request-Id", x->id);
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    if (x->file) /* no other page may frame the chat page */
        MHD_add_response_header(r, "X-Frame-Options", "DENY");
    if (x->policy) {
        MHD_add_response_header(r, "Content-Security-Policy", x->policy);
        MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
    }
    if (x->encoding)
        MHD_add_response_header(r, "Content-Encoding", x->encoding);
    if (x->tag) { /* browsers keep the file and ask whether it is still the same */
        MHD_add_response_header(r, "ETag", x->tag);
        MHD_add_response_header(r, "Cache-Control", "no-cache");
        MHD_add_response_header(r, "Vary", "Accept-Encoding");
    }
    if (x->stream || x->feed) {
        MHD_add_response_header(r, "Cache-Control", "no-cache");
        MHD_add_response_header(r, "X-Accel-Buffering", "no"); /* nginx: do not buffer the stream */
    }
    if (origin) {
        MHD_add_response_header(r, "Access-Control-Allow-Origin", origin);
        MHD_add_response_header(r, "Vary", "Origin");
    }
    if (x->retry_s) {
        snprintf(number, sizeof number, "%d", x->retry_s);
        MHD_add_response_header(r, "Retry-After", number);
    }
    if (x->status == 401)
        MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (x->close || x->status >= 500 || atomic_load(&x->s->state) == SERVER_DRAINING)
        MHD_add_response_header(r, "Connection", "close");
}

static ssize_t pull_stream(void *cls, uint64_t pos, char *buf, size_t max)
{
    exchange *x = cls;
    (void)pos;
    int64_t n = x->feed ? x->feed->read(x->feed, buf, max) : stream_read(x->stream, buf, max);
    return n > 0    ? (ssize_t)n
           : n == 0 ? MHD_CONTENT_READER_END_OF_STREAM
                    : MHD_CONTENT_READER_END_WITH_ERROR;
}

static enum MHD_Result send_reply(exchange *x, const char *allow)
{
    struct MHD_Response *r;
    if (x->status == 499)
        return MHD_NO; /* the client is gone */
    if (x->out.bad) {  /* parts of the answer are missing */
        static char sorry[] = "{\"error\":{\"message\":\"no memory for the answer\",\"type\":"
                              "\"unavailable_error\",\"param\":null,\"code\":null}}";
        x->status = 503;
        r = MHD_create_response_from_buffer(sizeof sorry - 1, sorry, MHD_RESPMEM_PERSISTENT);
    } else if (x->stream || x->feed) {
        r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, pull_stream, x, NULL);
    } else {
        void *at = x->file ? (void *)(size_t)x->file : (void *)(size_t)str_text(&x->out);
        size_t n = x->file ? x->n_file : x->out.n;
        r = MHD_create_response_from_buffer(n, at, MHD_RESPMEM_PERSISTENT);
    }
    if (!r)
        return MHD_NO;
    add_headers(x, r);
    if (allow && *allow)
        MHD_add_response_header(r, "Allow", allow);
    enum MHD_Result ok = MHD_queue_response(x->connection, (unsigned)x->status, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result refuse_exchange(exchange *x, const problem *p, const char *allow)
{
    reply_problem(x, p);
    return send_reply(x, allow);
}

/* The answer to OPTIONS: browsers ask it before requests to other origins (CORS). */
static enum MHD_Result preflight(exchange *x, const char *methods)
{
    const char *origin = allowed_origin(x);
    const char *wanted = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND,
                                                     "Access-Control-Request-Headers");
    struct MHD_Response *r =
        MHD_create_response_from_buffer(0, (void *)(size_t) "", MHD_RESPMEM_PERSISTENT);
    x->status = 204;
    if (!r)
        return MHD_NO;
    if (origin) {
        MHD_add_response_header(r, "Access-Control-Allow-Origin", origin);
        MHD_add_response_header(r, "Access-Control-Allow-Methods", methods);
        MHD_add_response_header(r, "Access-Control-Allow-Headers",
                                wanted ? wanted : "Authorization, Content-Type, X-Api-Key");
        MHD_add_response_header(r, "Access-Control-Max-Age", "86400");
        MHD_add_response_header(r, "Vary", "Origin");
    }
    MHD_add_response_header(r, "Allow", methods);
    enum MHD_Result ok = MHD_queue_response(x->connection, 204, r);
    MHD_destroy_response(r);
    return ok;
}

static bool body_too_large(const exchange *x, problem *p)
{
    return problem_set(p, 413, "", "the body is larger than %lld bytes, the limit of this server",
                       (long long)x->s->o->max_body);
}

static bool check_state(const exchange *x, problem *p)
{
    int state = atomic_load(&x->s->state);
    if (state == SERVER_READY)
        return true;
    p->retry_s = state == SERVER_LOADING ? 2 : 5;
    return problem_set(p, 503, "",
                       state == SERVER_LOADING ? "the model is being loaded"
                                               : "the server is shutting down");
}

static enum MHD_Result see_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                  const char *value)
{
    (void)kind;
    head_take(cls, name, value);
    return MHD_YES;
}

static bool check_framing(exchange *x, problem *p)
{
    head h = {0};
    MHD_get_connection_values(x->connection, MHD_HEADER_KIND, see_header, &h);
    x->close = !head_check(&h, p);
    return !x->close;
}

/* All checks that need no body. */
static bool check_request_head(request_state *q, problem *p, char allow[METHODS_BYTES])
{
    exchange *x = &q->x;
    const char *length =
        MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Content-Length");
    q->route = find_route(x->method, x->path);
    x->errors = route_errors(x->path);
    if (!check_framing(x, p))
        return false;
    const char *why = q->route ? NULL : route_refusal(x->path);
    if (why)
        return problem_set(p, 501, "", "%.100s is not supported: %s", x->path, why);
    if (!q->route && route_methods(x->path, allow))
        return problem_set(p, 405, "", "%.100s does not know %.20s; its methods are %s", x->path,
                           x->method, allow);
    if (!q->route) {
        const char *near = route_near(x->path);
        return problem_set(p, 404, "",
                           "there is no path %.100s%s%s%s; /openapi.json lists all paths", x->path,
                           near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
    }
    if (!may_ask(x, q->route, p))
        return false;
    if (length && strtoull(length, NULL, 10) > (unsigned long long)x->s->o->max_body) {
        /* Most clients send all of a body before they read. One that asks first is told now. */
        q->too_long = true;
        if (find_header(x, "Expect") || strtoull(length, NULL, 10) / SWALLOWED_MAX >
                                            (unsigned long long)x->s->o->max_body)
            return body_too_large(x, p);
    }
    return !q->route->needs_model || check_state(x, p);
}

static void take_body(request_state *q, const char *bytes, size_t n)
{
    exchange *x = &q->x;
    long long all = atomic_fetch_add(&x->s->body_bytes, (long long)n) + (long long)n;
    bool room = all <= BODIES_MAX_SHARE * x->s->o->max_body;
    if (q->too_long || q->body.n + n > (size_t)x->s->o->max_body || !room) {
        atomic_fetch_sub(&x->s->body_bytes, (long long)n);
        q->too_long = true; /* reads and drops the rest: clients read the answer after sending */
        q->n_swallowed += n;
        return;
    }
    str_put(&q->body, bytes, n);
}

/* Reserves the memory that parsing and tokenising the body may take. */
static bool take_work(request_state *q, problem *p)
{
    server *s = q->x.s;
    long long n = (long long)q->body.n * WORK_FACTOR;
    if (atomic_fetch_add(&s->work_bytes, n) + n <= WORK_MAX_SHARE * s->o->max_body) {
        q->n_work = n;
        return true;
    }
    atomic_fetch_sub(&s->work_bytes, n);
    p->retry_s = 2;
    return problem_set(p, 503, "", "other large requests are at work: try again soon");
}

static enum MHD_Result run_handler(request_state *q)
{
    exchange *x = &q->x;
    problem p = {0};
    if (q->too_long)
        body_too_large(x, &p);
    else if (q->body.bad)
        problem_set(&p, 503, "", "no memory for a body of this size");
    else if (q->route->needs_model)
        check_state(x, &p);
    if (!p.status)
        take_work(q, &p);
    if (p.status)
        return refuse_exchange(x, &p, NULL);
    /* Some programs write a mark of UTF-8 before a text. */
    const size_t mark = q->body.n >= 3 && !memcmp(q->body.at, "\xEF\xBB\xBF", 3) ? 3 : 0;
    x->body = str_text(&q->body) + mark;
    x->n_body = q->body.n - mark;
    atomic_fetch_add(&x->s->n_active, 1);
    q->counted = true;
    q->route->handle(x);
    return send_reply(x, NULL);
}

/* The path of a target in absolute form (RFC 9112, 3.2.2), "http://localhost:8080/health", as clients
 * with a proxy send it. One of another host than the header Host stays as it is: no path. */
static const char *path_of_target(struct MHD_Connection *c, const char *target)
{
    const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host");
    const char *at = strstr(target, "://");
    const size_t n = host ? strlen(host) : 0;
    if (!n || !at || (strncasecmp(target, "http://", 7) && strncasecmp(target, "https://", 8)) ||
        strncasecmp(at + 3, host, n) || (at[3 + n] && at[3 + n] != '/'))
        return target;
    return at[3 + n] ? at + 3 + n : "/";
}

static request_state *open_request(server *s, struct MHD_Connection *c, const char *path,
                                   const char *method)
{
    request_state *q = mem_calloc(1, sizeof *q);
    const union MHD_ConnectionInfo *fd =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (!q)
        return NULL;
    q->path = mem_strdup(path_of_target(c, path));
    q->method = mem_strdup(method);
    q->x = (exchange){.s = s,
                      .connection = c,
                      .query = query,
                      .header = find_header,
                      .keep_ms = KEEP_DEFAULT,
                      .path = q->path,
                      .method = q->method,
                      .fd = fd ? fd->connect_fd : -1,
                      .errors = &chat_dialect,
                      .start_ms = clock_ms()};
    make_id(q->x.id, "req_");
    const union MHD_ConnectionInfo *context =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    q->visitor = context ? context->socket_context : NULL;
    if (!q->path || !q->method) {
        mem_free(q->path);
        mem_free(q->method);
        mem_free(q);
        return NULL;
    }
    return q;
}

/* Bytes of answers that the client has acknowledged; *waiting: others are sent and not read. */
static uint64_t bytes_read(int fd, bool *waiting)
{
    struct tcp_info t = {0};
    socklen_t n = sizeof t;
    int queued = 0;
    *waiting = !ioctl(fd, SIOCOUTQ, &queued) && queued > 0;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &t, &n) ? 0 : t.tcpi_bytes_acked;
}

/* From now on the client has to send, or it has sent all. idle: nothing is due from it. */
static void await_client(http *h, visitor *v, bool awaited, bool idle)
{
    bool waiting;
    if (!v)
        return;
    pthread_mutex_lock(&h->lock);
    v->awaited = awaited;
    v->idle = idle;
    v->since_ms = v->heard_ms = clock_ms();
    v->n_body = 0;
    v->n_read = bytes_read(v->fd, &waiting);
    pthread_mutex_unlock(&h->lock);
}

static void hear_client(http *h, visitor *v, size_t n_bytes)
{
    if (!v)
        return;
    pthread_mutex_lock(&h->lock);
    v->heard_ms = clock_ms();
    v->n_body += n_bytes;
    pthread_mutex_unlock(&h->lock);
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *path,
                                  const char *method, const char *version, const char *upload,
                                  size_t *n_upload, void **state)
{
    http *h = cls;
    request_state *q = *state;
    (void)version;
    if (!q) {
        problem p = {0};
        char methods[METHODS_BYTES] = "";
        if (!(q = open_request(h->s, c, path, method)))
            return MHD_NO;
        *state = q;
        await_client(h, q->visitor, true, false);
        if (!strcmp(method, "OPTIONS") && route_methods(q->path, methods) && check_framing(&q->x, &p))
            return preflight(&q->x, methods);
        methods[0] = '\0';
        return check_request_head(q, &p, methods) ? MHD_YES : refuse_exchange(&q->x, &p, methods);
    }
    if (*n_upload) {
        take_body(q, upload, *n_upload);
        hear_client(h, q->visitor, *n_upload);
        bool endless = q->n_swallowed > SWALLOWED_MAX * (size_t)h->s->o->max_body ||
                       clock_ms() - q->x.start_ms > UPLOAD_MAX_MS;
        *n_upload = 0;
        return endless ? MHD_NO : MHD_YES;
    }
    await_client(h, q->visitor, false, false);
    return q->x.status ? MHD_YES : run_handler(q);
}

static void on_completed(void *cls, struct MHD_Connection *c, void **state,
                         enum MHD_RequestTerminationCode why)
{
    http *h = cls;
    request_state *q = *state;
    (void)c;
    if (!q)
        return;
    exchange *x = &q->x;
    stream_close(x->stream);
    if (x->rest)
        shutdown(x->fd, SHUT_WR); /* the answer was sent; its client may read to the end */
    stream_close(x->rest);
    if (x->feed)
        x->feed->close(x->feed);
    exchange_release(x);
    if (why != MHD_REQUEST_TERMINATED_COMPLETED_OK && !x->note)
        x->note = "connection lost";
    if (x->status) {
        metrics_count(&h->s->m, q->route ? q->route->metric : ROUTE_OTHER, x->status);
        histogram_add(&h->s->m.request, (clock_ms() - x->start_ms) * 1e-3);
        log_exchange(x);
    }
    await_client(h, q->visitor, true, true);
    if (q->counted)
        atomic_fetch_sub(&h->s->n_active, 1);
    atomic_fetch_sub(&h->s->body_bytes, (long long)q->body.n);
    atomic_fetch_sub(&h->s->work_bytes, q->n_work);
    str_free(&q->body);
    str_free(&x->out);
    mem_free(q->path);
    mem_free(q->method);
    mem_free(q);
    *state = NULL;
}

/* ---- Connections ---- */

static void on_connection(void *cls, struct MHD_Connection *c, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    http *h = cls;
    visitor *v = *context;
    const union MHD_ConnectionInfo *fd =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (what == MHD_CONNECTION_NOTIFY_STARTED)
        v = mem_calloc(1, sizeof *v);
    pthread_mutex_lock(&h->lock);
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        if (v) { /* without memory it has no limit */
            double now = clock_ms();
            *v = (visitor){.next = h->first,
                           .fd = fd ? fd->connect_fd : -1,
                           .awaited = true,
                           .since_ms = now,
                           .heard_ms = now};
            if (h->first)
                h->first->previous = v;
            h->first = v;
        }
        *context = v;
    } else {
        h->n_visitors--;
        if (v) {
            *(v->previous ? &v->previous->next : &h->first) = v->next;
            if (v->next)
                v->next->previous = v->previous;
        }
        mem_free(v);
    }
    pthread_mutex_unlock(&h->lock);
}

static void count_expired(void *user)
{
    http *h = user;
    atomic_fetch_add(&h->s->m.expired, 1);
}

/* Whether a client that has to send is late: the next header must be complete grace_ms after the
 * last answer, and a body gets grace_ms and a second for each LEAST_BYTES_PER_S of it. Its bytes
 * must not stop for longer than grace_ms either. */
static bool is_late_sender(const visitor *v, double now, double grace_ms)
{
    double earned_ms = 1000.0 * (double)v->n_body / LEAST_BYTES_PER_S;
    return now > v->since_ms + grace_ms + earned_ms || now > v->heard_ms + grace_ms;
}

/* Whether a client that reads its answer is late. A client that has read every byte sent so far is
 * not late: its answer waits for the model. */
static bool is_late_reader(visitor *v, double now, double grace_ms)
{
    bool waiting;
    uint64_t n = bytes_read(v->fd, &waiting);
    if (!waiting) {
        v->since_ms = now;
        v->n_read = n;
        return false;
    }
    return now > v->since_ms + grace_ms + 1000.0 * (double)(n - v->n_read) / LEAST_BYTES_PER_S;
}

/* Closes the connections of late clients. While all connections are taken they have less time, so
 * that the others are served. The library's timeout would count the silence of a stream, too, and
 * from version 1.0 on it cannot be turned off for one connection. */
static void close_late(void *user)
{
    http *h = user;
    double now = clock_ms(), grace_ms = 1000.0 * (double)h->s->o->timeout_s;
    pthread_mutex_lock(&h->lock);
    if (h->pressed && grace_ms > PRESSED_MS)
        grace_ms = PRESSED_MS;
    h->pressed = false;
    for (visitor *v = h->first; v; v = v->next)
        if (v->fd >= 0 &&
            (v->awaited ? is_late_sender(v, now, grace_ms) : is_late_reader(v, now, grace_ms)))
            shutdown(v->fd, SHUT_RDWR); /* the connection's thread closes it */
    pthread_mutex_unlock(&h->lock);
}

/* Tells the connection that has been idle for longest to leave, unless one is about to. False: none
 * is idle. Keep-alive is the server's to end; the client opens another connection. */
static bool make_room(http *h)
{
    const double now = clock_ms();
    visitor *oldest = NULL;
    for (visitor *v = h->first; v; v = v->next) {
        int n = 0;
        if (!v->idle || v->fd < 0)
            continue;
        if (v->left_ms > 0 && now - v->left_ms < LEAVE_MS)
            return true;
        /* bytes that have arrived are a request that is about to begin */
        if (!(v->left_ms > 0) && !ioctl(v->fd, SIOCINQ, &n) && !n &&
            (!oldest || v->since_ms < oldest->since_ms))
            oldest = v;
    }
    if (!oldest)
        return false;
    oldest->left_ms = now;
    shutdown(oldest->fd, SHUT_RDWR); /* the connection's thread closes it */
    return true;
}

/* The kernel closes a connection whose client acknowledges nothing for --timeout. */
static bool take_connection(void *user, int fd, const struct sockaddr *address, socklen_t n)
{
    http *h = user;
    unsigned ms = (unsigned)h->s->o->timeout_s * 1000;
    pthread_mutex_lock(&h->lock);
    bool room = h->n_visitors < h->s->o->connections;
    h->n_visitors += room; /* now, because the library starts connections later */
    h->pressed |= !room && !make_room(h);
    pthread_mutex_unlock(&h->lock);
    if (!room)
        return false;
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
    if (MHD_add_connection(h->daemon, fd, address, n) != MHD_YES) { /* it has closed fd */
        pthread_mutex_lock(&h->lock);
        h->n_visitors--;
        pthread_mutex_unlock(&h->lock);
    }
    return true;
}

/* Raises the limit of open files. Returns the limit of connections without a header. */
static int32_t raise_limit(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l))
        return WAITING_MAX;
    if (l.rlim_cur < l.rlim_max) {
        struct rlimit more = {l.rlim_max, l.rlim_max};
        if (!setrlimit(RLIMIT_NOFILE, &more))
            l = more;
    }
    return l.rlim_cur / 2 < WAITING_MAX ? (int32_t)(l.rlim_cur / 2) : WAITING_MAX;
}

static size_t unescape(void *cls, struct MHD_Connection *c, char *text)
{
    (void)cls, (void)c;
    return url_unescape(text);
}

/* ---- Listening ---- */

static int bind_first(const struct addrinfo *list)
{
    for (const struct addrinfo *a = list; a; a = a->ai_next) {
        int one = 1, fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                                 a->ai_protocol);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (!bind(fd, a->ai_addr, a->ai_addrlen))
            return fd;
        close(fd);
    }
    return -1;
}

static bool is_loopback(const struct sockaddr_storage *a)
{
    const struct sockaddr_in *v4 = (const void *)a;
    const struct sockaddr_in6 *v6 = (const void *)a;
    if (a->ss_family == AF_INET)
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    return a->ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr);
}

static status cannot_listen(const serve_options *o, err *e)
{
    char what[300];
    snprintf(what, sizeof what, "%.200s port %d", o->host, (int)o->port);
    if (errno == EADDRINUSE)
        return err_set(e, E_IO,
                       "%s: another program listens there; --port chooses another port (0: any)",
                       what);
    if (errno == EADDRNOTAVAIL)
        return err_set(e, E_IO, "%s: this machine does not have that address (--host)", what);
    return err_errno(e, "listen", what);
}

static status bind_to(http *h, int *port, err *e)
{
    const serve_options *o = h->s->o;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    struct sockaddr_storage at = {0};
    socklen_t n = sizeof at;
    char name[16];
    snprintf(name, sizeof name, "%d", (int)o->port);
    int bad = getaddrinfo(o->host, name, &hints, &list);
    if (bad)
        return err_set(e, E_ARG, "%.200s port %s: %s", o->host, name, gai_strerror(bad));
    h->listener = bind_first(list);
    freeaddrinfo(list);
    if (h->listener < 0 || getsockname(h->listener, (struct sockaddr *)&at, &n))
        return cannot_listen(o, e);
    h->s->loopback = is_loopback(&at);
    *port =
        ntohs(at.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)(const void *)&at)->sin6_port
                                       : ((const struct sockaddr_in *)(const void *)&at)->sin_port);
    return OK;
}

status http_open(http **out, server *s, int *port, err *e)
{
    http *h = mem_calloc(1, sizeof *h);
    *out = NULL;
    if (!h)
        return err_memory(e, "the server", sizeof *h);
    h->s = s;
    h->listener = -1;
    pthread_mutex_init(&h->lock, NULL);
    status st = bind_to(h, port, e);
    if (st)
        http_close(h);
    else
        *out = h;
    return st;
}

status http_start(http *h, err *e)
{
    const serve_options *so = h->s->o;
    if (listen(h->listener, 1024))
        return cannot_listen(so, e);
    h->daemon = MHD_start_daemon(
        MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL |
            MHD_USE_ITC | MHD_USE_NO_LISTEN_SOCKET,
        0, NULL, NULL, on_request, h, MHD_OPTION_NOTIFY_COMPLETED, on_completed, h,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, h, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)so->connections + 1, MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEADERS_MAX,
        MHD_OPTION_THREAD_STACK_SIZE, (size_t)THREAD_STACK, MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL, MHD_OPTION_END);
    if (!h->daemon)
        return err_set(e, E_IO, "the HTTP server could not be started");
    int64_t header_ms = so->timeout_s * 1000;
    gate_options o = {.listener = h->listener,
                      .waiting_max = raise_limit(),
                      .header_ms = (int)(header_ms < HEADER_MAX_MS ? header_ms : HEADER_MAX_MS),
                      .header_max = HEADERS_MAX,
                      .user = h,
                      .enter = take_connection,
                      .expired = count_expired,
                      .tick = close_late};
    status st = gate_open(&h->gate, &o, e);
    if (!st)
        h->listener = -1; /* the gate's */
    return st;
}

void http_stop_accepting(http *h)
{
    gate_close(h->gate); /* closes the listener, too */
    h->gate = NULL;
}

void http_close(http *h)
{
    if (!h)
        return;
    http_stop_accepting(h);
    if (h->daemon)
        MHD_stop_daemon(h->daemon);
    if (h->listener >= 0)
        close(h->listener);
    pthread_mutex_destroy(&h->lock);
    mem_free(h);
}
