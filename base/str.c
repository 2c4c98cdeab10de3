/* str.c - a growing byte string that remembers a failed allocation.
 *
 * Appending returns nothing: a caller builds a whole text and checks `bad` once. A failed append
 * keeps the contents, so a bad string lacks whole appends. One byte beyond the contents is always
 * NUL.
 */
#include "base/str.h"
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Makes room for n more bytes and the NUL. */
static bool make_room(str *s, size_t n)
{
    if (s->bad || n > SIZE_MAX / 4 || s->n > SIZE_MAX / 4) {
        s->bad = true;
        return false;
    }
    if (s->n + n + 1 > s->cap) {
        size_t cap = s->cap ? s->cap : 64;
        while (cap < s->n + n + 1)
            cap *= 2;
        char *p = mem_realloc(s->at, cap, 1);
        if (!p) {
            s->bad = true;
            return false;
        }
        s->at = p;
        s->cap = cap;
    }
    return true;
}

void str_put(str *s, const char *bytes, size_t n)
{
    if (!make_room(s, n))
        return;
    if (n)
        memcpy(s->at + s->n, bytes, n);
    s->n += n;
    s->at[s->n] = 0;
}

void str_puts(str *s, const char *text)
{
    str_put(s, text, strlen(text));
}

void str_putc(str *s, char c)
{
    str_put(s, &c, 1);
}

void str_printf(str *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !make_room(s, (size_t)n)) {
        s->bad = true;
        return;
    }
    va_start(ap, fmt);
    vsnprintf(s->at + s->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    s->n += (size_t)n;
}

void str_cut(str *s, size_t n)
{
    if (n < s->n) {
        s->n = n;
        s->at[n] = 0;
    }
}

void str_drop(str *s, size_t n)
{
    if (n > s->n)
        n = s->n;
    if (!n)
        return;
    memmove(s->at, s->at + n, s->n - n + 1);
    s->n -= n;
}

void str_fit(str *s)
{
    char *p = s->at && s->n + 1 < s->cap ? mem_realloc(s->at, s->n + 1, 1) : NULL;
    if (p) { /* else it keeps what it has */
        s->at = p;
        s->cap = s->n + 1;
    }
}

const char *str_text(const str *s)
{
    return s->at ? s->at : "";
}

char *str_take(str *s)
{
    if (!make_room(s, 0))
        return NULL;
    s->at[s->n] = 0;
    char *p = s->at;
    *s = (str){0};
    return p;
}

void str_free(str *s)
{
    mem_free(s->at);
    *s = (str){0};
}

bool text_ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

int hex_digit(int c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}
