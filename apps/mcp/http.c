/* http.c - a server at an address ("streamable HTTP"): every message is a POST.
 *
 *     a request       POST -> JSON, or events with messages on the way and the answer at last
 *     all else        POST -> 202, one after the other, beside the request ("beside")
 *     a broken stream GET with the last event's id, after the pause that the server asks for
 *
 * Redirects are not followed: the headers of the settings are for this address alone.
 */
#include "apps/mcp/mcp_int.h"

#include "apps/hub/net.h"
#include "base/clock.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum {
    SESSION_MAX = 1024,
    REFUSAL_MAX = 4096, /* bytes of an answer that is no success */
    BESIDE_MAX = 256,   /* messages that wait to be sent */
    RESUMES_MAX = 1000, /* of one stream */
    RETRY_MS = 1000,
    GOODBYE_MS = 1000
};

/* One HTTP exchange. */
typedef struct http_exchange {
    mcp_client *c;
    CURL *easy; /* NULL: none is under way */
    struct curl_slist *lines;
    char *sent;
    str body;
    char location[256];
    bool json, streams;
    bool over; /* the answer is too long */
    char reason[CURL_ERROR_SIZE];
    err e; /* of a message in it */
} http_exchange;

typedef struct http_state {
    CURLM *multi;
    arena mem;
    const char *url;
    struct curl_slist *own; /* headers of the settings */
    char session[SESSION_MAX];
    http_exchange asked, beside;
    events stream; /* of what was asked */
    int n_resumes;
    double resume_ms; /* when the broken stream is asked for again; 0: it is whole */
    char *queue[BESIDE_MAX];
    size_t n_queue;
} http_state;

/* ---- What comes back ---- */

static void take_event(void *user, const char *data, size_t n)
{
    http_exchange *x = user;
    client_take(x->c, data, n, &x->e);
}

static size_t take_body(char *bytes, size_t one, size_t n, void *user)
{
    http_exchange *x = user;
    http_state *s = x->c->state;
    long code = 0;
    (void)one;
    if (client_count(x->c, n, &x->e))
        return 0;
    curl_easy_getinfo(x->easy, CURLINFO_RESPONSE_CODE, &code);
    if (x == &s->asked && x->streams && code == 200) {
        x->over = !events_take(&s->stream, bytes, n, take_event, x);
        return x->over || x->e.status ? 0 : n;
    }
    size_t most = code == 200 && x == &s->asked ? MESSAGE_MAX : REFUSAL_MAX;
    size_t room = most > x->body.n ? most - x->body.n : 0;
    str_put(&x->body, bytes, n < room ? n : room);
    x->over = x->body.bad || (n > room && code == 200);
    return x->over ? 0 : n;
}

static void take_value(char *to, size_t cap, const char *line, size_t n, size_t n_name)
{
    const char *at = line + n_name, *end = line + n;
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    while (end > at && (unsigned char)end[-1] <= ' ')
        end--;
    size_t len = (size_t)(end - at);
    bool plain = len < cap;
    for (size_t i = 0; i < len && plain; i++)
        plain = at[i] > ' ' && at[i] < 0x7f;
    if (plain) {
        memcpy(to, at, len);
        to[len] = 0;
    }
}

static size_t take_line(char *line, size_t one, size_t n, void *user)
{
    static const char type[] = "content-type:", session[] = "mcp-session-id:",
                      location[] = "location:";
    http_exchange *x = user;
    http_state *s = x->c->state;
    char value[64] = "";
    (void)one;
    if (n > 5 && !strncasecmp(line, "HTTP/", 5))
        x->json = x->streams = false;
    if (n > sizeof type && !strncasecmp(line, type, sizeof type - 1)) {
        const char *end = memchr(line, ';', n);
        take_value(value, sizeof value, line, end ? (size_t)(end - line) : n, sizeof type - 1);
        x->json = !strcasecmp(value, "application/json");
        x->streams = !strcasecmp(value, "text/event-stream");
    } else if (n > sizeof session && !strncasecmp(line, session, sizeof session - 1)) {
        if (x == &s->asked && !x->c->ready) /* the answer to initialize begins the session */
            take_value(s->session, sizeof s->session, line, n, sizeof session - 1);
    } else if (n > sizeof location && !strncasecmp(line, location, sizeof location - 1)) {
        take_value(x->location, sizeof x->location, line, n, sizeof location - 1);
    }
    return n;
}

/* ---- One exchange ---- */

static bool add(struct curl_slist **list, const char *line)
{
    struct curl_slist *more = curl_slist_append(*list, line);
    if (more)
        *list = more;
    return more != NULL;
}

static void drop(http_state *s, http_exchange *x)
{
    if (x->easy) {
        curl_multi_remove_handle(s->multi, x->easy);
        curl_easy_cleanup(x->easy);
    }
    curl_slist_free_all(x->lines);
    mem_free(x->sent);
    str_free(&x->body);
    *x = (http_exchange){.c = x->c};
}

/* The lines of a head for any request to this server. */
static bool put_lines(const mcp_client *c, http_exchange *x, const char *resume)
{
    const http_state *s = c->state;
    char line[SESSION_MAX + 64];
    bool ok = add(&x->lines, "Expect:") &&
              add(&x->lines, resume ? "Accept: text/event-stream"
                                    : "Accept: application/json, text/event-stream") &&
              add(&x->lines, "Content-Type: application/json");
    for (const struct curl_slist *l = s->own; l && ok; l = l->next)
        ok = add(&x->lines, l->data);
    if (ok && *s->session) {
        snprintf(line, sizeof line, "Mcp-Session-Id: %s", s->session);
        ok = add(&x->lines, line);
    }
    if (ok && c->ready) {
        snprintf(line, sizeof line, "MCP-Protocol-Version: %s", c->revision);
        ok = add(&x->lines, line);
    }
    if (ok && resume) {
        snprintf(line, sizeof line, "Last-Event-ID: %s", resume);
        ok = add(&x->lines, line);
    }
    return ok;
}

/* Begins to POST text, or with resume to GET what comes after that event. Takes text. */
static status begin(mcp_client *c, http_exchange *x, char *text, const char *resume, err *e)
{
    http_state *s = c->state;
    drop(s, x);
    x->c = c;
    x->sent = text;
    x->easy = net_plain(s->url);
    if (!x->easy || !put_lines(c, x, resume))
        return err_memory(e, c->spec->name, 256);
    curl_easy_setopt(x->easy, CURLOPT_HTTPHEADER, x->lines);
    curl_easy_setopt(x->easy, CURLOPT_HEADEROPT, (long)CURLHEADER_SEPARATE);
    curl_easy_setopt(x->easy, CURLOPT_ERRORBUFFER, x->reason);
    curl_easy_setopt(x->easy, CURLOPT_HEADERFUNCTION, take_line);
    curl_easy_setopt(x->easy, CURLOPT_HEADERDATA, x);
    curl_easy_setopt(x->easy, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(x->easy, CURLOPT_WRITEDATA, x);
    if (text) {
        curl_easy_setopt(x->easy, CURLOPT_POSTFIELDS, text);
        curl_easy_setopt(x->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(text));
    }
    if (curl_multi_add_handle(s->multi, x->easy))
        return err_memory(e, c->spec->name, 256);
    return OK;
}

/* ---- The way ---- */

static status put_own_header(mcp_client *c, http_state *s, const char *text, err *e)
{
    const char *line;
    status st = spec_expand(&s->mem, c->spec->name, text, &line, e);
    if (st)
        return st;
    if (strpbrk(line, "\r\n"))
        return err_set(e, E_ARG, "MCP server '%s': a header with a line break", c->spec->name);
    return add(&s->own, line) ? OK : err_memory(e, c->spec->name, strlen(line));
}

static status http_start(mcp_client *c, err *e)
{
    http_state *s = c->state = mem_calloc(1, sizeof *s);
    if (!s)
        return err_memory(e, c->spec->name, sizeof *s);
    events_free(&s->stream);
    s->asked.c = s->beside.c = c;
    status st = spec_expand(&s->mem, c->spec->name, c->spec->url, &s->url, e);
    if (!st && !url_valid(s->url))
        st = err_set(e, E_ARG, "MCP server '%s': '%s' is no http or https address", c->spec->name,
                     c->spec->url);
    for (size_t i = 0; !st && c->spec->header && c->spec->header[i]; i++)
        st = put_own_header(c, s, c->spec->header[i], e);
    if (!st && !(s->multi = curl_multi_init()))
        st = err_memory(e, c->spec->name, 256);
    return st;
}

static status http_send(mcp_client *c, const char *text, size_t n, bool asks, err *e)
{
    http_state *s = c->state;
    char *copy = mem_strndup(text, n);
    if (!copy)
        return err_memory(e, c->spec->name, n);
    if (asks) {
        events_free(&s->stream);
        s->resume_ms = 0;
        s->n_resumes = 0;
        return begin(c, &s->asked, copy, NULL, e);
    }
    if (s->n_queue == BESIDE_MAX) {
        mem_free(copy);
        return err_set(e, E_LIMIT, "MCP server '%s' asks more than it takes answers",
                       c->spec->name);
    }
    s->queue[s->n_queue++] = copy;
    return OK;
}

static bool http_idle(const mcp_client *c)
{
    const http_state *s = c->state;
    return !s || (!s->n_queue && !s->beside.easy);
}

/* The first words of an answer that is no success. */
static void put_refusal(const http_exchange *x, str *out)
{
    json_t *v = json_loadb(str_text(&x->body), x->body.n, 0, NULL);
    const json_t *err_ = json_object_get(v, "error");
    const char *says = json_string_value(json_object_get(err_, "message"));
    says = says ? says : json_string_value(err_);
    if (says)
        str_printf(out, ": %.300s", says);
    json_decref(v);
}

static status refused(mcp_client *c, const http_exchange *x, long code, err *e)
{
    const http_state *s = c->state;
    str says = {0};
    char host[URL_PART_MAX]; /* a path or a query may hold a key, and the model sees the sentence */
    url_host(s->url, host);
    put_refusal(x, &says);
    status st;
    if (code == 404 && *s->session) {
        c->over = x->sent != NULL; /* a call that is under way is not sent again */
        st = err_set(e, E_IO, "MCP server '%s' has ended the session", c->spec->name);
    } else if (code == 401 || code == 403) {
        st = err_set(e, E_IO,
                     "MCP server '%s' refuses access (%ld%s): a token goes into its headers, "
                     "Authorization = \"Bearer ...\"",
                     c->spec->name, code, str_text(&says));
    } else if (code >= 300 && code < 400) {
        st = err_set(e, E_IO, "MCP server '%s' is elsewhere: %s answers %ld%s%s", c->spec->name,
                     host, code, *x->location ? " and names " : "", x->location);
    } else if (code == 404 || code == 405) {
        st = err_set(e, E_IO, "MCP server '%s': %s answers %ld%s; is it an MCP endpoint?",
                     c->spec->name, host, code, str_text(&says));
    } else {
        st =
            err_set(e, E_IO, "MCP server '%s' answers %ld%s", c->spec->name, code, str_text(&says));
    }
    str_free(&says);
    return st;
}

/* The exchange of a request has ended. */
static status finish(mcp_client *c, CURLcode result, err *e)
{
    http_state *s = c->state;
    http_exchange *x = &s->asked;
    long code = 0;
    status st = OK;
    char host[URL_PART_MAX];
    if (!c->waits && !x->e.status) { /* of a request that was given up */
        drop(s, x);
        return OK;
    }
    curl_easy_getinfo(x->easy, CURLINFO_RESPONSE_CODE, &code);
    url_host(s->url, host);
    bool broken = result && x->streams && *str_text(&s->stream.id);
    if (x->e.status)
        st = err_set(e, x->e.status, "%s", x->e.text);
    else if (x->over)
        st = err_set(e, E_LIMIT, "MCP server '%s' sends a message of more than %d MiB",
                     c->spec->name, MESSAGE_MAX >> 20);
    else if (result && !broken && !c->answer)
        st = err_set(e, result == CURLE_OUT_OF_MEMORY ? E_MEMORY : E_IO,
                     "MCP server '%s': cannot reach %s: %s", c->spec->name, host,
                     *x->reason ? x->reason : curl_easy_strerror(result));
    else if (code / 100 != 2)
        st = refused(c, x, code, e);
    if (!st && x->json)
        st = client_take(c, str_text(&x->body), x->body.n, e);
    if (!st && !c->answer && x->streams && *str_text(&s->stream.id) &&
        s->n_resumes++ < RESUMES_MAX) {
        int64_t ms = s->stream.retry_ms < 0 ? RETRY_MS : s->stream.retry_ms;
        s->resume_ms = clock_ms() + (double)(ms ? ms : 1);
    } else if (!st && !c->answer) {
        st = err_set(e, E_FORMAT,
                     "MCP server '%s' answers the request with nothing that is an "
                     "answer",
                     c->spec->name);
    }
    drop(s, x);
    return st;
}

static status http_turn(mcp_client *c, int ms, err *e)
{
    http_state *s = c->state;
    status st = OK;
    int running, left;
    if (!s->beside.easy && s->n_queue) {
        char *text = s->queue[0];
        memmove(s->queue, s->queue + 1, --s->n_queue * sizeof *s->queue);
        st = begin(c, &s->beside, text, NULL, e);
    }
    if (!st && s->resume_ms > 0 && clock_ms() >= s->resume_ms) {
        s->resume_ms = 0;
        st = begin(c, &s->asked, NULL, str_text(&s->stream.id), e);
    }
    if (st)
        return st;
    curl_multi_perform(s->multi, &running);
    CURLMsg *m = curl_multi_info_read(s->multi, &left);
    if (!m && !c->answer) {
        curl_multi_poll(s->multi, NULL, 0, ms, NULL);
        curl_multi_perform(s->multi, &running);
        m = curl_multi_info_read(s->multi, &left);
    }
    for (; m && !st; m = curl_multi_info_read(s->multi, &left)) {
        if (m->msg != CURLMSG_DONE)
            continue;
        if (m->easy_handle == s->beside.easy)
            drop(s, &s->beside); /* what it says to a notification changes nothing */
        else if (m->easy_handle == s->asked.easy)
            st = finish(c, m->data.result, e);
    }
    return st;
}

static void http_end(mcp_client *c, bool in_order)
{
    http_state *s = c->state;
    if (!s)
        return;
    drop(s, &s->asked);
    drop(s, &s->beside);
    if (in_order && *s->session && !c->over && put_lines(c, &s->beside, NULL) &&
        (s->beside.easy = net_plain(s->url))) {
        curl_easy_setopt(s->beside.easy, CURLOPT_CUSTOMREQUEST, "DELETE");
        curl_easy_setopt(s->beside.easy, CURLOPT_HTTPHEADER, s->beside.lines);
        curl_easy_setopt(s->beside.easy, CURLOPT_WRITEFUNCTION, take_body);
        curl_easy_setopt(s->beside.easy, CURLOPT_WRITEDATA, &s->beside);
        curl_easy_setopt(s->beside.easy, CURLOPT_TIMEOUT_MS, (long)GOODBYE_MS);
        curl_easy_perform(s->beside.easy);
        curl_easy_cleanup(s->beside.easy);
        s->beside.easy = NULL;
    }
    drop(s, &s->beside);
    for (size_t i = 0; i < s->n_queue; i++)
        mem_free(s->queue[i]);
    curl_multi_cleanup(s->multi);
    curl_slist_free_all(s->own);
    events_free(&s->stream);
    arena_free(&s->mem);
    mem_free(s);
    c->state = NULL;
}

const way http_way = {http_start, http_send, http_turn, http_idle, http_end};
