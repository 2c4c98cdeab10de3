/* utf8.c - decoding and encoding of UTF-8, strict.
 *
 * Well-formed means table 3-7 of the Unicode Standard: no overlong forms, no surrogates, nothing
 * above U+10FFFF. All of that is decided by the range of the second byte, so one small function
 * knows it and the rest only counts.
 */
#include "base/utf8.h"

/* Length of the sequence that lead byte b announces, 0 if b leads nothing; and the range its
 * second byte must lie in (The Unicode Standard, table 3-7). */
static int lead(unsigned char b, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (b < 0x80)
        return 1;
    if (b >= 0xC2 && b <= 0xDF)
        return 2;
    if (b >= 0xE0 && b <= 0xEF) {
        if (b == 0xE0)
            *lo = 0xA0;
        if (b == 0xED)
            *hi = 0x9F;
        return 3;
    }
    if (b >= 0xF0 && b <= 0xF4) {
        if (b == 0xF0)
            *lo = 0x90;
        if (b == 0xF4)
            *hi = 0x8F;
        return 4;
    }
    return 0;
}

/* How many of the n bytes at s fit the sequence they start; *len is what it needs, 0 if none. */
static int match(const unsigned char *s, size_t n, int *len)
{
    unsigned char lo, hi;
    *len = lead(s[0], &lo, &hi);
    int have = *len > 0;
    while (have && have < *len && (size_t)have < n && s[have] >= lo && s[have] <= hi) {
        lo = 0x80;
        hi = 0xBF;
        have++;
    }
    return have;
}

int utf8_decode(const char *str, size_t n, uint32_t *cp, bool *ok)
{
    const unsigned char *s = (const unsigned char *)str;
    int len;
    int have = match(s, n, &len);
    if (len == 0 || have < len) {
        *cp = 0xFFFD;
        *ok = false;
        return 1;
    }
    static const unsigned char mask[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t c = s[0] & mask[len];
    for (int i = 1; i < len; i++)
        c = c << 6 | (s[i] & 0x3F);
    *cp = c;
    *ok = true;
    return len;
}

int utf8_encode(uint32_t c, char out[4])
{
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
        c = 0xFFFD;
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    int len = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char first[5] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (int i = len - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (c & 0x3F));
        c >>= 6;
    }
    out[0] = (char)(first[len] | c);
    return len;
}

bool utf8_valid(const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        bool ok;
        i += (size_t)utf8_decode(s + i, n - i, &cp, &ok);
        if (!ok)
            return false;
    }
    return true;
}

size_t utf8_partial_tail(const char *str, size_t n)
{
    const unsigned char *s = (const unsigned char *)str;
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        int len;
        const unsigned char *p = s + n - back;
        if ((*p & 0xC0) == 0x80)
            continue; /* a continuation byte: its lead is further back */
        int have = match(p, back, &len);
        return len > (int)back && have == (int)back ? back : 0;
    }
    return 0;
}

const utf8_row utf8_wide[UTF8_WIDE_ROWS] = {
    {2, {0xC2, 0x80}, {0xDF, 0xBF}},
    {3, {0xE0, 0xA0, 0x80}, {0xE0, 0xBF, 0xBF}},
    {3, {0xE1, 0x80, 0x80}, {0xEC, 0xBF, 0xBF}},
    {3, {0xED, 0x80, 0x80}, {0xED, 0x9F, 0xBF}},
    {3, {0xEE, 0x80, 0x80}, {0xEF, 0xBF, 0xBF}},
    {4, {0xF0, 0x90, 0x80, 0x80}, {0xF0, 0xBF, 0xBF, 0xBF}},
    {4, {0xF1, 0x80, 0x80, 0x80}, {0xF3, 0xBF, 0xBF, 0xBF}},
    {4, {0xF4, 0x80, 0x80, 0x80}, {0xF4, 0x8F, 0xBF, 0xBF}}};
