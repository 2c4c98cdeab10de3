/* wire.c - see wire.h. Header lines by RFC 9110, addresses by RFC 3986. */
#include "apps/hub/wire.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- Header lines -------------------------------------------------------------------------- */

void reply_clear(reply *r)
{
    *r = (reply){.length = -1,
                 .range_from = -1,
                 .range_to = -1,
                 .range_total = -1,
                 .linked_size = -1,
                 .retry_after_s = -1,
                 .limit_left = -1,
                 .limit_reset_s = -1};
}

typedef struct span {
    const char *at;
    size_t n;
} span;

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static span trimmed(const char *at, size_t n)
{
    while (n && is_space(at[n - 1]))
        n--;
    while (n && is_space(*at))
        at++, n--;
    return (span){at, n};
}

/* A decimal number at the start of s, which is then behind it; -1: none, or above 2^62. */
static int64_t take_number(span *s)
{
    int64_t v = 0;
    size_t n = 0;
    while (n < s->n && s->at[n] >= '0' && s->at[n] <= '9') {
        if (v > ((int64_t)1 << 62) / 10 - 1)
            return -1;
        v = 10 * v + (s->at[n++] - '0');
    }
    s->at += n;
    s->n -= n;
    return n ? v : -1;
}

static int64_t whole_number(span s)
{
    int64_t v = take_number(&s);
    return s.n ? -1 : v;
}

/* Copies a value without control characters; one that is too long leaves out empty. */
static void copy(char *out, size_t cap, span s)
{
    out[0] = 0;
    if (s.n >= cap)
        return;
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.at[i] < 0x20 || s.at[i] == 0x7f)
            return;
    memcpy(out, s.at, s.n);
    out[s.n] = 0;
}

/* W/"abc" and "abc" are abc. */
static void copy_etag(char *out, size_t cap, span s)
{
    if (s.n >= 2 && !strncmp(s.at, "W/", 2))
        s = (span){s.at + 2, s.n - 2};
    if (s.n >= 2 && s.at[0] == '"' && s.at[s.n - 1] == '"')
        s = (span){s.at + 1, s.n - 2};
    copy(out, cap, s);
}

/* "bytes 0-99/1000", "bytes * /1000" (without the space), "bytes 0-99/ *". */
static void read_range(reply *r, span s)
{
    int64_t from = -1, to = -1, total = -1;
    if (s.n < 6 || strncasecmp(s.at, "bytes ", 6))
        return;
    s = trimmed(s.at + 6, s.n - 6);
    if (s.n && *s.at == '*') {
        s = (span){s.at + 1, s.n - 1};
    } else {
        from = take_number(&s);
        if (from < 0 || !s.n || *s.at != '-')
            return;
        s = (span){s.at + 1, s.n - 1};
        if ((to = take_number(&s)) < from)
            return;
    }
    if (!s.n || *s.at != '/')
        return;
    s = (span){s.at + 1, s.n - 1};
    if (!(s.n == 1 && *s.at == '*') && (total = whole_number(s)) < 0)
        return;
    if (total >= 0 && to >= total)
        return;
    r->range_from = from;
    r->range_to = to;
    r->range_total = total;
}

/* <address>; rel="next", <address>; rel="last" */
static void read_link(reply *r, span s)
{
    while (s.n) {
        const char *open = memchr(s.at, '<', s.n);
        size_t left = open ? s.n - (size_t)(open - s.at) : 0;
        const char *close = open ? memchr(open, '>', left) : NULL;
        if (!close)
            return;
        left -= (size_t)(close - open);
        /* Parameters last until the next "<"; a comma inside of quotes does not matter for rel. */
        const char *end = memchr(close, '<', left);
        size_t n = end ? (size_t)(end - close) : left;
        for (size_t i = 0; i + 4 < n; i++) {
            if (strncasecmp(close + i, "rel=", 4))
                continue;
            const char *v = close + i + 4;
            bool quoted = *v == '"';
            size_t m = n - i - 4 - quoted;
            if (m >= 4 && !strncasecmp(v + quoted, "next", 4) &&
                (m == 4 || strchr("\" ;,\t", v[quoted + 4])))
                copy(r->next, sizeof r->next, (span){open + 1, (size_t)(close - open) - 1});
        }
        s = end ? (span){end, left - n} : (span){0};
    }
}

/* RateLimit: "api";r=12;t=55 */
static void read_limit(reply *r, span s)
{
    for (size_t i = 0; i + 2 < s.n; i++) {
        span v = {s.at + i + 3, s.n - i - 3};
        if (s.at[i] != ';' || s.at[i + 2] != '=')
            continue;
        if (s.at[i + 1] == 'r')
            r->limit_left = take_number(&v);
        else if (s.at[i + 1] == 't')
            r->limit_reset_s = take_number(&v);
    }
}

static bool named(span name, const char *what)
{
    return name.n == strlen(what) && !strncasecmp(name.at, what, name.n);
}

void reply_take(reply *r, const char *line, size_t n)
{
    if (n >= 9 && !strncmp(line, "HTTP/", 5)) {
        const char *space = memchr(line, ' ', n);
        span code = space ? trimmed(space, n - (size_t)(space - line)) : (span){0};
        reply_clear(r);
        int64_t v = code.n >= 3 ? whole_number((span){code.at, 3}) : -1;
        r->code = v >= 100 && v < 600 ? (int)v : 0;
        return;
    }
    const char *colon = memchr(line, ':', n);
    if (!colon)
        return;
    span name = trimmed(line, (size_t)(colon - line));
    span v = trimmed(colon + 1, n - (size_t)(colon - line) - 1);
    if (named(name, "content-length"))
        r->length = whole_number(v);
    else if (named(name, "content-range"))
        read_range(r, v);
    else if (named(name, "content-type"))
        r->json = v.n >= 16 && !strncasecmp(v.at, "application/json", 16);
    else if (named(name, "content-encoding"))
        r->encoded = v.n && !named(v, "identity");
    else if (named(name, "location"))
        copy(r->location, sizeof r->location, v);
    else if (named(name, "link"))
        read_link(r, v);
    else if (named(name, "etag"))
        copy_etag(r->etag, sizeof r->etag, v);
    else if (named(name, "x-linked-etag"))
        copy_etag(r->linked_etag, sizeof r->linked_etag, v);
    else if (named(name, "x-linked-size"))
        r->linked_size = whole_number(v);
    else if (named(name, "x-repo-commit"))
        copy(r->commit, sizeof r->commit, v);
    else if (named(name, "x-error-code"))
        copy(r->error_code, sizeof r->error_code, v);
    else if (named(name, "x-error-message"))
        copy(r->error_message, sizeof r->error_message, v);
    else if (named(name, "x-hf-warning"))
        copy(r->warning, sizeof r->warning, v);
    else if (named(name, "retry-after"))
        r->retry_after_s = whole_number(v);
    else if (named(name, "ratelimit"))
        read_limit(r, v);
}

/* ---- Addresses ----------------------------------------------------------------------------- */

typedef struct url {
    span scheme, host, port, path; /* path: with query, from its '/' on */
} url;

static bool split_url(const char *text, url *u)
{
    size_t n = !strncasecmp(text, "https://", 8) ? 5 : !strncasecmp(text, "http://", 7) ? 4 : 0;
    if (!n || strlen(text) >= URL_MAX)
        return false;
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c <= ' ' || (unsigned char)*c >= 0x7f || *c == '\\')
            return false;
    const char *host = text + n + 3;
    size_t len = strcspn(host, "/?#");
    if (memchr(host, '@', len))
        return false;
    u->scheme = (span){text, n};
    u->path = (span){host + len, strlen(host + len)};
    size_t name = *host == '[' ? strcspn(host, "]") + 1 : 0;
    if (name > len)
        return false;
    while (!(*host == '[') && name < len && host[name] != ':')
        name++;
    u->host = (span){host, name};
    u->port = (span){host + name, len - name};
    if (!name || name >= URL_PART_MAX || (u->port.n && host[name] != ':'))
        return false;
    if (u->port.n) {
        u->port = (span){u->port.at + 1, u->port.n - 1};
        int64_t v = whole_number(u->port);
        if (v < 1 || v > 65535)
            return false;
    } else {
        u->port = n == 5 ? (span){"443", 3} : (span){"80", 2};
    }
    return true;
}

bool url_valid(const char *text)
{
    url u;
    return split_url(text, &u);
}

static bool same(span a, span b)
{
    return a.n == b.n && !strncasecmp(a.at, b.at, a.n);
}

bool url_same_origin(const char *a, const char *b)
{
    url x, y;
    return split_url(a, &x) && split_url(b, &y) && same(x.scheme, y.scheme) &&
           same(x.host, y.host) && same(x.port, y.port);
}

bool url_is_https(const char *text)
{
    url u;
    return split_url(text, &u) && u.scheme.n == 5;
}

bool url_is_loopback(const char *text)
{
    url u;
    if (!split_url(text, &u))
        return false;
    bool four = u.host.n > 4 && !strncmp(u.host.at, "127.", 4);
    for (size_t i = 0; i < u.host.n; i++) /* 127.0.0.1.example.org is elsewhere */
        four = four && strchr("0123456789.", u.host.at[i]);
    return four || same(u.host, (span){"localhost", 9}) || same(u.host, (span){"[::1]", 5});
}

void url_host(const char *text, char out[URL_PART_MAX])
{
    const char *host = strstr(text, "//");
    host = host ? host + 2 : text;
    snprintf(out, URL_PART_MAX, "%.*s", (int)strcspn(host, "/?#"), host);
}

bool url_resolve(const char *base, const char *ref, char out[URL_MAX])
{
    url b;
    int n;
    if (!split_url(base, &b))
        return false;
    size_t end = strcspn(ref, "#"); /* a fragment is no part of a request */
    size_t origin = (size_t)(b.path.at - base);
    size_t dir = strcspn(b.path.at, "?#");
    while (dir && b.path.at[dir - 1] != '/')
        dir--;
    if (!strncasecmp(ref, "http://", 7) || !strncasecmp(ref, "https://", 8))
        n = snprintf(out, URL_MAX, "%.*s", (int)end, ref);
    else if (!strncmp(ref, "//", 2))
        n = snprintf(out, URL_MAX, "%.*s:%.*s", (int)b.scheme.n, b.scheme.at, (int)end, ref);
    else if (*ref == '/')
        n = snprintf(out, URL_MAX, "%.*s%.*s", (int)origin, base, (int)end, ref);
    else if (*ref == '?')
        n = snprintf(out, URL_MAX, "%.*s%.*s", (int)(origin + strcspn(b.path.at, "?#")), base,
                     (int)end, ref);
    else if (!*ref || strchr(ref, ':'))
        return false;
    else /* dots are left to the server */
        n = snprintf(out, URL_MAX, "%.*s%s%.*s", (int)(origin + dir), base, dir ? "" : "/",
                     (int)end, ref);
    return end < URL_MAX && n > 0 && n < URL_MAX && url_valid(out);
}

void url_put(str *out, const char *text, bool slash)
{
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        bool plain = (*c >= '0' && *c <= '9') || (*c >= 'a' && *c <= 'z') ||
                     (*c >= 'A' && *c <= 'Z') || strchr("-_.~", *c) || (slash && *c == '/');
        if (plain)
            str_putc(out, (char)*c);
        else
            str_printf(out, "%%%02X", *c);
    }
}

/* ---- Waiting ------------------------------------------------------------------------------- */

bool worth_retrying(int code)
{
    return code == 408 || code == 429 || code == 500 || code == 502 || code == 503 || code == 504;
}

double wait_s(const reply *r, int tries)
{
    int64_t s = -1;
    if (!r)
        s = -1;
    else if (r->code == 429 && r->limit_left == 0 && r->limit_reset_s >= 0)
        s = r->limit_reset_s + 1;
    else if ((r->code == 429 || r->code == 503) && r->retry_after_s >= 0)
        s = r->retry_after_s;
    if (s > WAIT_MAX_S)
        return -1;
    if (s >= 0)
        return s ? (double)s : 0.5;
    return tries > 4 ? 8 : (double)(1 << (tries > 1 ? tries - 1 : 0));
}
