/* net.c - see net.h. Rules of the hub: docs/models.md. */
#include "apps/hub/net.h"

#include "base/clock.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    TRIES_MAX = 5, /* of a request that may succeed later */
    HOPS_MAX = 10, /* redirects in a row */
    TICK_MS = 100,
    CONNECT_S = 10,
    SILENCE_S = 30 /* before a request is given up */
};

int net_second_ms = 1000;

static pthread_once_t started = PTHREAD_ONCE_INIT;

static void start_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

static bool add_line(struct curl_slist **list, const char *line)
{
    struct curl_slist *more = curl_slist_append(*list, line);
    if (more)
        *list = more;
    return more != NULL;
}

status net_open(net *n, const place *p, err *e)
{
    pthread_once(&started, start_curl);
    str auth = {0};
    *n = (net){.p = p, .multi = curl_multi_init(), .single = curl_multi_init()};
    /* A compressed text would have no length, and its ranges would be those of other bytes. */
    bool ok = n->multi && n->single && add_line(&n->plain, "Accept-Encoding: identity") &&
              add_line(&n->with_token, "Accept-Encoding: identity");
    if (ok && p->token) {
        str_printf(&auth, "Authorization: Bearer %s", p->token);
        ok = !auth.bad && add_line(&n->with_token, auth.at);
    }
    str_free(&auth);
    if (ok)
        return OK;
    net_close(n);
    return err_memory(e, "a connection", sizeof *n);
}

void net_close(net *n)
{
    curl_multi_cleanup(n->multi);
    curl_multi_cleanup(n->single);
    curl_slist_free_all(n->plain);
    curl_slist_free_all(n->with_token);
    *n = (net){0};
}

/* May a request to this address carry the token? */
static bool trusted(const net *n, const char *url)
{
    return url_same_origin(url, n->p->endpoint) && (url_is_https(url) || url_is_loopback(url));
}

static size_t take_line(char *line, size_t one, size_t n, void *head)
{
    (void)one;
    reply_take(head, line, n);
    return n;
}

static size_t drop_body(char *bytes, size_t one, size_t n, void *user)
{
    (void)bytes, (void)one, (void)user;
    return n;
}

/* The certificates that the hub's is checked by. NULL: those that libcurl was built with. The
 * libcurl of `make dist` was built with none, because each system keeps them elsewhere. */
static const char *certificates(void)
{
    static const char *const kept[] = {
        "/etc/ssl/certs/ca-certificates.crt", /* Debian, Ubuntu, Arch */
        "/etc/pki/tls/certs/ca-bundle.crt",   /* Fedora, Red Hat */
        "/etc/ssl/ca-bundle.pem",             /* SUSE */
        "/etc/ssl/cert.pem"                   /* Alpine */
    };
    const curl_version_info_data *v = curl_version_info(CURLVERSION_NOW);
    const char *own = getenv("SSL_CERT_FILE");
    if (v->cainfo || v->capath)
        return NULL;
    if (own && *own)
        return own;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (!access(kept[i], R_OK))
            return kept[i];
    return NULL;
}

CURL *net_plain(const char *url)
{
    pthread_once(&started, start_curl);
    CURL *c = curl_easy_init();
    if (!c)
        return NULL;
    curl_easy_setopt(c, CURLOPT_URL, url);
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
#else /* before 7.85, as in Ubuntu 22.04 */
    curl_easy_setopt(c, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    if (url_is_loopback(url)) /* another machine would ask itself, and see the token or key */
        curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
    const char *ca = certificates();
    if (ca)
        curl_easy_setopt(c, CURLOPT_CAINFO, ca);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "carat");
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    return c;
}

CURL *net_request(net *n, const char *url, reply *head, char reason[CURL_ERROR_SIZE])
{
    CURL *c = net_plain(url);
    if (!c)
        return NULL;
    reason[0] = 0;
    reply_clear(head);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, reason);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, take_line);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, head);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, drop_body);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, trusted(n, url) ? n->with_token : n->plain);
    curl_easy_setopt(c, CURLOPT_HEADEROPT, (long)CURLHEADER_SEPARATE); /* no token for proxies */
    /* Parallel ranges are for several connections; HTTP/2 would put them into one. */
    curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(c, CURLOPT_BUFFERSIZE, 256L << 10);
    /* A limit on the whole time would end large files. */
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)SILENCE_S);
    return c;
}

/* active: requests that were added. When one of them has just ended there is nothing to wait for.
 */
static status poll_multi(net *n, CURLM *multi, int active, bool busy, err *e)
{
    int running = 0;
    curl_multi_perform(multi, &running);
    curl_multi_poll(multi, NULL, 0, busy || running < active ? 0 : TICK_MS, NULL);
    return n->tick(n->user, "") ? OK : err_set(e, E_CANCELLED, "interrupted");
}

status net_poll(net *n, int active, bool busy, err *e)
{
    return poll_multi(n, n->multi, active, busy, e);
}

status net_wait(net *n, double s, const char *note, err *e)
{
    double until = clock_ms() + s * net_second_ms;
    do {
        if (!n->tick(n->user, note))
            return err_set(e, E_CANCELLED, "interrupted");
        double left = until - clock_ms();
        if (left > 0)
            curl_multi_poll(n->single, NULL, 0, left < TICK_MS ? (int)left + 1 : TICK_MS, NULL);
    } while (clock_ms() < until);
    return OK;
}

bool net_is_final(CURLcode c)
{
    return c == CURLE_PEER_FAILED_VERIFICATION || c == CURLE_UNSUPPORTED_PROTOCOL ||
           c == CURLE_URL_MALFORMAT || c == CURLE_SSL_CACERT_BADFILE || c == CURLE_OUT_OF_MEMORY ||
           c == CURLE_COULDNT_RESOLVE_PROXY || c == CURLE_NOT_BUILT_IN;
}

/* ---- One request after the other ----------------------------------------------------------- */

typedef struct text_sink {
    str *body;
    size_t max;
    const char *range; /* "FROM-LAST"; NULL: all */
    bool over;
} text_sink;

static size_t take_text(char *bytes, size_t one, size_t n, void *user)
{
    text_sink *s = user;
    (void)one;
    if (n > s->max - s->body->n) {
        s->over = true;
        return 0;
    }
    str_put(s->body, bytes, n);
    return s->body->bad ? 0 : n;
}

/* Runs one request to its end. *result: what libcurl says. E_CANCELLED, E_MEMORY. */
static status run_one(net *n, CURL *c, CURLcode *result, err *e)
{
    status st = OK;
    CURLcode code = CURLE_OK;
    bool done = false;
    if (curl_multi_add_handle(n->single, c))
        return err_memory(e, "a connection", sizeof *n);
    while (!st && !done) {
        int left;
        st = poll_multi(n, n->single, 1, false, e);
        for (CURLMsg *m; (m = curl_multi_info_read(n->single, &left));)
            if (m->msg == CURLMSG_DONE && m->easy_handle == c) {
                code = m->data.result;
                done = true;
            }
    }
    curl_multi_remove_handle(n->single, c);
    if (!st)
        *result = code;
    return st;
}

static status unreachable(const char *url, CURLcode c, const char *reason, err *e)
{
    char host[URL_PART_MAX];
    url_host(url, host);
    return err_set(e, c == CURLE_OUT_OF_MEMORY ? E_MEMORY : E_IO, "cannot reach %s: %s", host,
                   *reason ? reason : curl_easy_strerror(c));
}

/* One request with retries; redirects are the caller's. sink NULL: HEAD. */
static status exchange(net *n, const char *url, text_sink *sink, reply *head, err *e)
{
    char reason[CURL_ERROR_SIZE], note[128];
    for (int tries = 1;; tries++) {
        CURL *c = net_request(n, url, head, reason);
        CURLcode result = CURLE_OUT_OF_MEMORY;
        if (!c)
            return err_memory(e, "a connection", sizeof *n);
        if (sink) {
            str_cut(sink->body, 0);
            curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_text);
            curl_easy_setopt(c, CURLOPT_WRITEDATA, sink);
            if (sink->range)
                curl_easy_setopt(c, CURLOPT_RANGE, sink->range);
        } else {
            curl_easy_setopt(c, CURLOPT_NOBODY, 1L);
        }
        status st = run_one(n, c, &result, e);
        curl_easy_cleanup(c);
        if (st)
            return st;
        if (sink && sink->body->bad)
            return err_memory(e, "an answer", sink->body->n);
        if (sink && sink->over)
            return err_set(e, E_LIMIT, "%s: an answer of more than %zu bytes", url, sink->max);
        bool answered = result == CURLE_OK && head->code;
        if (answered && !worth_retrying(head->code))
            return OK;
        /* Where there is no network at all, waiting only keeps the user from the message. */
        bool in_vain = !answered && (net_is_final(result) || result == CURLE_COULDNT_RESOLVE_HOST ||
                                     result == CURLE_COULDNT_CONNECT);
        double s = wait_s(answered ? head : NULL, tries);
        if (in_vain || tries == TRIES_MAX || s < 0)
            return answered ? OK : unreachable(url, result, reason, e);
        if (answered)
            snprintf(note, sizeof note, "the hub answers %d; waiting %.0f s", head->code, s);
        else
            snprintf(note, sizeof note, "the connection failed; waiting %.0f s", s);
        if ((st = net_wait(n, s, note, e)))
            return st;
    }
}

/* The sentence about an answer that is no success. */
static status refused(const net *n, const reply *r, const char *url, const char *repo, err *e)
{
    const char *hub = n->p->endpoint, *code = r->error_code, *says = r->error_message;
    char host[URL_PART_MAX];
    url_host(url, host);
    if (!strcmp(code, "GatedRepo"))
        return err_set(e, E_ARG, "%s is gated: accept its licence at %s/%s%s", repo, hub, repo,
                       n->p->token ? ""
                                   : ", then give carat a token of yours (HF_TOKEN, or 'hf auth "
                                     "login')");
    if (r->code == 401 && n->p->token && strstr(says, "nvalid"))
        return err_set(e, E_ARG, "%s does not accept the token from %s", hub, n->p->token_from);
    if (!strcmp(code, "RevisionNotFound"))
        return err_set(e, E_ARG, "%s has no such branch, tag or commit", repo);
    if (!strcmp(code, "EntryNotFound"))
        return err_set(e, E_ARG, "%s no longer has that file", repo);
    if (!strcmp(code, "RepoNotFound") || r->code == 401 || r->code == 404)
        return err_set(e, E_ARG, "%s has no repository %s%s", hub, repo,
                       n->p->token ? ", or this token may not see it"
                                   : ", or it is private (then set HF_TOKEN)");
    if (r->code == 403 && strstr(says, "disabled"))
        return err_set(e, E_ARG, "%s was taken down from %s", repo, hub);
    if (r->code == 403)
        return err_set(e, E_ARG, "%s refuses access to %s%s%s", hub, repo, *says ? ": " : "", says);
    if (r->code == 429)
        return err_set(e, E_IO, "%s: too many requests; try again later%s", hub,
                       n->p->token ? "" : " (with HF_TOKEN set the limit is higher)");
    return err_set(e, E_IO, "%s answers %d%s%s", host, r->code, *says ? ": " : "", says);
}

static bool is_redirect(int code)
{
    return code == 301 || code == 302 || code == 303 || code == 307 || code == 308;
}

static status bad_redirect(const char *url, err *e)
{
    return err_set(e, E_IO, "%s: redirected to no valid address", url);
}

status net_text(net *n, const char *url, const char *repo, size_t max, str *body, reply *head,
                err *e)
{
    char at[URL_MAX], to[URL_MAX];
    text_sink sink = {.body = body, .max = max};
    if (strlen(url) >= URL_MAX || !url_valid(url))
        return err_set(e, E_ARG, "%s: not an http or https address", url);
    strcpy(at, url);
    for (int hops = 0;; hops++) {
        status st = exchange(n, at, &sink, head, e);
        if (st)
            return st;
        if (!is_redirect(head->code))
            break;
        if (hops == HOPS_MAX)
            return err_set(e, E_IO, "%s: more than %d redirects", url, HOPS_MAX);
        if (!url_resolve(at, head->location, to))
            return bad_redirect(at, e);
        /* A hub's API does not live elsewhere: this is a captive portal, or a trap for the token.
         */
        if (!url_same_origin(to, n->p->endpoint)) {
            char host[URL_PART_MAX];
            url_host(to, host);
            return err_set(e, E_IO,
                           "%s redirects to %s: not a hub, or a network that wants a login first",
                           n->p->endpoint, host);
        }
        strcpy(at, to);
    }
    if (head->code != 200)
        return refused(n, head, at, repo, e);
    if (!head->json)
        return err_set(
            e, E_IO,
            "%s answers with a page, not with JSON: not a hub, or a network that wants a "
            "login first",
            n->p->endpoint);
    return OK;
}

status net_locate(net *n, const char *url, const char *repo, char out[URL_MAX], reply *first,
                  err *e)
{
    char at[URL_MAX], to[URL_MAX];
    reply *head = mem_alloc(2 * sizeof *head), *found = head ? head + 1 : NULL;
    status st = head ? OK : err_memory(e, "an answer", 2 * sizeof *head);
    bool known = false;
    snprintf(at, sizeof at, "%s", url);
    for (int hops = 0; !st; hops++) {
        if ((st = exchange(n, at, NULL, head, e)))
            break;
        /* The file's size and hash are on the answer of the hub, not on that of the storage. */
        if (!known && *head->commit) {
            *found = *head;
            known = true;
        }
        if (head->code == 200)
            break;
        if (!is_redirect(head->code))
            st = refused(n, head, at, repo, e);
        else if (hops == HOPS_MAX)
            st = err_set(e, E_IO, "%s: more than %d redirects", url, HOPS_MAX);
        else if (!url_resolve(at, head->location, to))
            st = bad_redirect(at, e);
        else if (url_is_https(at) && !url_is_https(to))
            st = err_set(e, E_IO, "%s redirects to an address without encryption", n->p->endpoint);
        if (st)
            break;
        strcpy(at, to);
        if (!url_same_origin(to,
                             n->p->endpoint)) /* the storage; its address may be for GET alone */
            break;
    }
    if (!st && !known)
        st = err_set(e, E_IO,
                     "%s does not answer as a hub: a wrong HF_ENDPOINT, or a network that wants a "
                     "login first",
                     n->p->endpoint);
    if (!st) {
        strcpy(out, at);
        *first = *found;
    }
    mem_free(head);
    return st;
}

/* What an answer to a request for bytes from `from` on says, which came as `body`. */
static status check_range(const net *n, const char *url, const char *repo, const reply *r,
                          bool over, uint64_t from, const str *body, err *e)
{
    char host[URL_PART_MAX];
    url_host(url, host);
    if (r->code == 200)
        return err_set(e, E_UNSUPPORTED, "%s: %s sends whole files and no parts of them", repo,
                       host);
    if (r->code != 206)
        return refused(n, r, url, repo, e);
    if (over || !body->n || r->range_from < 0 || (uint64_t)r->range_from != from)
        return err_set(e, E_IO, "%s: %s sends other bytes than those asked for; try again later",
                       repo, host);
    return OK;
}

status net_range(net *n, const char *url, const char *repo, uint64_t from, uint64_t to, str *body,
                 uint64_t *total, err *e)
{
    char at[URL_MAX], next[URL_MAX], range[64];
    text_sink sink = {.body = body, .max = (size_t)(to - from), .range = range};
    reply *head = mem_alloc(sizeof *head);
    status st =
        head ? net_locate(n, url, repo, at, head, e) : err_memory(e, "an answer", sizeof *head);
    snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)from,
             (unsigned long long)to - 1);
    for (int hops = 0; !st; hops++) {
        err why = {0};
        sink.over = false;
        st = exchange(n, at, &sink, head, &why);
        if (st && !sink.over) {
            err_set(e, st, "%s", why.text);
            break;
        }
        if (!is_redirect(head->code) || sink.over) {
            st = check_range(n, at, repo, head, sink.over, from, body, e);
            break;
        }
        if (hops == HOPS_MAX || !url_resolve(at, head->location, next) ||
            (url_is_https(at) && !url_is_https(next)))
            st = bad_redirect(at, e);
        else
            strcpy(at, next);
    }
    if (!st)
        *total = head->range_total < 0 ? 0 : (uint64_t)head->range_total;
    mem_free(head);
    return st;
}
