/* head.c - see head.h. */
#include "apps/server/http/head.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- Headers ---- */

/* Headers that decide who may ask. Of two such headers a proxy may read one, and carat the other.
 */
static const char *const once[] = {"Host", "Origin", "Authorization", "X-Api-Key"};

void head_take(head *h, const char *name, const char *value)
{
    if (!strcasecmp(name, "Content-Length")) {
        h->n_lengths++;
        h->bad |=
            !value || !*value || strspn(value, "0123456789") != strlen(value) || strlen(value) > 18;
    } else if (!strcasecmp(name, "Transfer-Encoding")) {
        h->n_encodings++;
        h->bad |= !value || strcasecmp(value, "chunked") != 0;
    } else if (!strcasecmp(name, "Content-Encoding") && value && strcasecmp(value, "identity")) {
        h->coding = value;
    }
    for (size_t i = 0; i < sizeof once / sizeof *once; i++)
        if (!strcasecmp(name, once[i])) {
            if (h->seen & 1u << i)
                h->twice = once[i];
            h->seen |= 1u << i;
        }
}

/* Request smuggling: a proxy and a server that read two lengths see different requests. */
bool head_check(const head *h, problem *p)
{
    if (h->coding)
        return problem_set(p, 415, "Content-Encoding",
                           "the body is %.40s: this server reads bodies that are not compressed",
                           h->coding);
    if (h->twice)
        return problem_set(p, 400, h->twice, "the header %s is given more than once", h->twice);
    return (h->n_lengths + h->n_encodings <= 1 && !h->bad) ||
           problem_set(p, 400, h->n_encodings ? "Transfer-Encoding" : "Content-Length",
                       "the length of the body is given more than once or in an unknown way: "
                       "expected one Content-Length, or Transfer-Encoding: chunked");
}

/* Empty lines before a request do not end it. */
const char *header_end(const char *s, size_t n)
{
    while (n && (*s == '\r' || *s == '\n')) {
        s++;
        n--;
    }
    const char *end = memmem(s, n, "\r\n\r\n", 4);
    return end ? end : memmem(s, n, "\n\n", 2);
}

/* ---- Who asks ---- */

static bool is_local_name(const char *s, size_t n)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]", "::1"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (n == strlen(names[i]) && !strncasecmp(s, names[i], n))
            return true;
    return n > 4 && !strncmp(s, "127.", 4) && strspn(s, "0123456789.") == n;
}

/* The length of the name in "name", "name:port" and "[::1]:port". */
static size_t host_length(const char *host)
{
    const char *end = *host == '[' ? strchr(host, ']') : NULL;
    return end ? (size_t)(end - host) + 1 : strcspn(host, ":/");
}

bool host_is_local(const char *host)
{
    size_t n = host_length(host);
    const char *port = host + n;
    return is_local_name(host, n) &&
           (!*port || (*port == ':' && strspn(port + 1, "0123456789") == strlen(port + 1)));
}

bool origin_is_own(const char *origin, const char *host)
{
    const char *at = strstr(origin, "://");
    return at && host && !strcasecmp(at + 3, host);
}

bool origin_is_listed(const char *list, const char *origin)
{
    for (const char *at = list; at && *at;) {
        size_t n = strcspn(at, ",");
        if ((n == 1 && *at == '*') || (n == strlen(origin) && !strncasecmp(at, origin, n)))
            return true;
        at += n + (at[n] == ',');
    }
    return false;
}

/* Timing reveals no part of a key. */
bool key_is(const char *key, const char *given)
{
    size_t n = strlen(key), m = strlen(given);
    unsigned diff = n != m;
    for (size_t i = 0; i < n; i++)
        diff |= (unsigned char)key[i] ^ (unsigned char)given[i < m ? i : 0];
    return !diff;
}

/* ---- Addresses ---- */

/* Decodes %XX in paths and queries. %00 stays as it is: as a NUL it would end the text, and
 * "/health%00x" would be another path than it seems. */
size_t url_unescape(char *text)
{
    char *to = text;
    for (const char *at = text; *at; at++) {
        int high = *at == '%' ? hex_digit(at[1]) : -1, low = high >= 0 ? hex_digit(at[2]) : -1;
        if (low >= 0 && high + low > 0) {
            *to++ = (char)(high << 4 | low);
            at += 2;
        } else {
            *to++ = *at;
        }
    }
    *to = 0;
    return (size_t)(to - text);
}

/* ---- What the client takes and has: the grammars of RFC 9110, 12.5.3 and 13.1.2 ---- */

static size_t skip_blanks(const char *at)
{
    return strspn(at, " \t");
}

/* The quality in the parameters of a coding, ";q=0.5"; 1 if there is none. */
static double quality(const char *at, const char *end)
{
    for (; at < end; at++)
        if (*at == ';') {
            at += 1 + skip_blanks(at + 1);
            if (at + 1 < end && (*at == 'q' || *at == 'Q') && at[1] == '=')
                return strtod(at + 2, NULL);
        }
    return 1;
}

bool accepts_gzip(const char *value)
{
    double gzip = -1, any = -1;
    for (const char *at = value; at && *at;) {
        at += skip_blanks(at);
        const char *end = at + strcspn(at, ",");
        size_t n = strcspn(at, " \t;,");
        if ((n == 4 && !strncasecmp(at, "gzip", 4)) || (n == 6 && !strncasecmp(at, "x-gzip", 6)))
            gzip = quality(at + n, end);
        else if (n == 1 && *at == '*')
            any = quality(at + n, end);
        at = end + (*end == ',');
    }
    return gzip > 0 || (gzip < 0 && any > 0);
}

bool names_tag(const char *value, const char *tag)
{
    size_t n_tag = strlen(tag);
    for (const char *at = value; at && *at;) {
        at += skip_blanks(at);
        if (*at == '*')
            return true;
        if (!strncmp(at, "W/", 2))
            at += 2;
        if (!strncmp(at, tag, n_tag)) /* it ends with a quote, so it is no part of another */
            return true;
        at += strcspn(at, ",");
        at += *at == ',';
    }
    return false;
}
