/* call_gemma.c - the text of one Gemma 4 tool call to a name and a JSON object.
 *
 *     call:NAME{key:value,...}     strings between GEMMA_QUOTE
 */
#include "text/gemma4.h"
#include "text/parse_int.h"

/* The name behind "call:", at *at; *at becomes the offset of what ends it. */
static size_t take_gemma_name(const char *s, size_t n, size_t *at)
{
    size_t from, end;
    while (*at < n && call_is_space(s[*at]))
        ++*at;
    from = end = *at;
    while (end < n && s[end] != '{' && s[end] != '<' && (unsigned char)s[end] >= 0x20 &&
           end - from <= CALL_MAX_NAME_BYTES)
        end++;
    *at = end;
    while (end > from && call_is_space(s[end - 1]))
        end--;
    return end - from;
}

call_head gemma_read_head(const char *s, size_t n)
{
    call_head h = {0};
    size_t at, from;
    h.possible = call_may_begin(s, n, "call:", &at);
    if (!at)
        return h;
    size_t n_name = take_gemma_name(s, n, &at);
    if (at == n && n_name <= CALL_MAX_NAME_BYTES)
        return h;
    h.possible = at < n && s[at] == '{' && n_name > 0 && n_name <= CALL_MAX_NAME_BYTES;
    for (from = at; from > 0 && s[from - 1] != ':'; from--)
        ;
    while (call_is_space(s[from]))
        from++;
    h.name = h.possible ? s + from : NULL;
    h.n_name = n_name;
    h.arguments = at + 1;
    return h;
}

bool gemma_read_call(const call_text *c, str *name, str *arguments, size_t *n_read)
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
    size_t brace = r.at, n_name = take_gemma_name(s, r.n, &brace);
    call_skip_space(&r);
    if (brace == r.n || s[brace] != '{' || !n_name || n_name > CALL_MAX_NAME_BYTES)
        return false;
    str_put(name, s + r.at, n_name);
    r.at = brace + 1;
    if (!call_read_object(&r))
        return false;
    call_skip_space(&r);
    while (call_take(&r, "}"))
        call_skip_space(&r);
    *n_read = r.at;
    return true;
}
