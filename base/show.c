/* show.c - see show.h. One table of what is escaped, and three ways of writing it. */
#include "base/show.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

enum { SENTENCE_MAX = 2048 }; /* bytes of a sentence, before it is escaped */

/* U+202A..U+202E and U+2066..U+2069 reorder what stands around them. */
static bool reorders(uint32_t cp)
{
    return (cp >= 0x202a && cp <= 0x202e) || (cp >= 0x2066 && cp <= 0x2069);
}

/* Marks of direction (ALM, LRM, RLM) and separators of lines: needed in text, not in a name. */
static bool is_mark(uint32_t cp)
{
    return cp == 0x061c || cp == 0x200e || cp == 0x200f || cp == 0x2028 || cp == 0x2029;
}

static bool is_escaped(uint32_t cp, show_kind kind)
{
    if (kind == SHOW_TEXT && (cp == '\n' || cp == '\t'))
        return false;
    return cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || reorders(cp) ||
           (kind == SHOW_NAME && is_mark(cp));
}

size_t show_one(const char *text, size_t n, show_kind kind, char out[SHOW_CHAR_MAX], size_t *len)
{
    uint32_t cp;
    bool ok;
    size_t taken = (size_t)utf8_decode(text, n, &cp, &ok);
    if (ok && !is_escaped(cp, kind)) {
        memcpy(out, text, taken);
        *len = taken;
        return taken;
    }
    if (!ok)
        *len = (size_t)utf8_encode(0xfffd, out);
    else if (cp < 0x80)
        *len = (size_t)snprintf(out, SHOW_CHAR_MAX, "^%c", (int)(cp ^ 0x40));
    else
        *len = (size_t)snprintf(out, SHOW_CHAR_MAX, "<%04X>", (unsigned)cp & 0xffff);
    return taken;
}

void show_put(str *out, const char *text, size_t n, show_kind kind)
{
    char one[SHOW_CHAR_MAX];
    size_t len;
    for (size_t i = 0; i < n;) {
        i += show_one(text + i, n - i, kind, one, &len);
        str_put(out, one, len);
    }
}

const char *show_into(char *out, size_t cap, const char *text)
{
    char one[SHOW_CHAR_MAX];
    size_t n = strlen(text), at = 0, len;
    for (size_t i = 0; i < n; at += len) {
        i += show_one(text + i, n - i, SHOW_NAME, one, &len);
        if (at + len >= cap)
            break;
        memcpy(out + at, one, len);
    }
    out[at] = 0;
    return out;
}

/* snprintf cuts at a byte; what is left of a character there goes too. */
void show_format(char *out, size_t cap, const char *fmt, va_list ap)
{
    char raw[SENTENCE_MAX];
    size_t most = cap < sizeof raw ? cap : sizeof raw;
    int n = vsnprintf(raw, most, fmt, ap);
    if (n < 0)
        raw[0] = 0;
    else if ((size_t)n >= most)
        raw[most - 1 - utf8_partial_tail(raw, most - 1)] = 0;
    show_into(out, cap, raw);
}

void show_put_json(str *out, const char *json, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        bool ok;
        size_t len = (size_t)utf8_decode(json + i, n - i, &cp, &ok);
        if (!ok)
            str_puts(out, "\\ufffd");
        else if (cp >= 0x7f && is_escaped(cp, SHOW_NAME))
            str_printf(out, "\\u%04x", (unsigned)cp);
        else
            str_put(out, json + i, len);
        i += len;
    }
}
