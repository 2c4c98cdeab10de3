/* call_gemma.c - the text of one Gemma 4 tool call to a name and a JSON object.
 *
 *     call:NAME{key:value,...}     strings between GEMMA_QUOTE
 */
#include "text/gemma4.h"
#include "text/parse_int.h"

#include <string.h>

bool gemma_read_call(const call_text *c, str *name, str *arguments)
{
    const char *s = c->s;
    call_reading r = {
        .s = s, .n = c->n, .lenient = c->lenient, .quote = GEMMA_QUOTE, .out = arguments};
    str_cut(name, 0);
    str_cut(arguments, 0);
    while (r.n && call_is_space(s[r.n - 1]))
        r.n--;
    call_skip_space(&r);
    if (!call_take(&r, "call:"))
        return false;
    call_skip_space(&r);
    const char *brace = memchr(s + r.at, '{', r.n - r.at);
    if (!brace)
        return false;
    size_t end = (size_t)(brace - s);
    while (end > r.at && call_is_space(s[end - 1]))
        end--;
    if (end == r.at || end - r.at > CALL_MAX_NAME_BYTES)
        return false;
    for (size_t i = r.at; i < end; i++)
        if ((unsigned char)s[i] < 0x20 || s[i] == '<')
            return false;
    str_put(name, s + r.at, end - r.at);
    r.at = (size_t)(brace - s) + 1;
    if (!call_read_object(&r))
        return false;
    call_skip_space(&r);
    while (c->lenient && call_take(&r, "}"))
        call_skip_space(&r);
    return call_at_end(&r);
}
