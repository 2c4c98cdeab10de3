/* base64.c - see base64.h. */
#include "base/base64.h"

static int value_of(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool base64_decode(const char *text, size_t n, uint8_t *out, size_t *n_out, size_t *bad)
{
    uint32_t held = 0;
    size_t n_chars = 0, n_pads = 0, at = 0;
    for (size_t i = 0; i < n; i++) {
        int v = value_of(text[i]);
        *bad = i;
        if (text[i] == '\n' || text[i] == '\r')
            continue;
        if (text[i] == '=') {
            n_pads++;
            continue;
        }
        if (v < 0 || n_pads)
            return false;
        held = held << 6 | (uint32_t)v;
        if (++n_chars % 4 == 0) {
            out[at++] = (uint8_t)(held >> 16);
            out[at++] = (uint8_t)(held >> 8);
            out[at++] = (uint8_t)held;
        }
    }
    *bad = n;
    size_t rest = n_chars % 4;
    if (rest == 1 || n_pads > 2 || (n_pads && (n_chars + n_pads) % 4))
        return false;
    if (rest == 2)
        out[at++] = (uint8_t)(held >> 4);
    if (rest == 3) {
        out[at++] = (uint8_t)(held >> 10);
        out[at++] = (uint8_t)(held >> 2);
    }
    *n_out = at;
    return true;
}

void base64_put(str *out, const void *bytes, size_t n)
{
    static const char code[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *b = bytes;
    for (size_t i = 0; i < n; i += 3) {
        size_t left = n - i;
        uint32_t v = (uint32_t)b[i] << 16 | (left > 1 ? (uint32_t)b[i + 1] << 8 : 0) |
                     (left > 2 ? b[i + 2] : 0);
        const char four[] = {code[v >> 18], code[v >> 12 & 63], left > 1 ? code[v >> 6 & 63] : '=',
                             left > 2 ? code[v & 63] : '='};
        str_put(out, four, sizeof four);
    }
}
