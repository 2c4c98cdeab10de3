/* result.c - what a tool gives back, as text for the model.
 *
 * A picture or a sound stands as a line that says so: the model does not get it. A link to a
 * resource is not followed.
 */
#include "apps/mcp/mcp_int.h"

#include <stdlib.h>
#include <string.h>

/* A string may hold U+0000, at which the text of a message would end. */
static void put_text(str *out, const json_t *v)
{
    const char *s = json_string_value(v);
    size_t n = json_string_length(v), at = 0;
    while (at < n) {
        const char *nul = memchr(s + at, 0, n - at);
        size_t len = nul ? (size_t)(nul - s) - at : n - at;
        str_put(out, s + at, len);
        if (nul)
            str_puts(out, "\xef\xbf\xbd");
        at += len + (nul != NULL);
    }
}

static const char *member(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* Bytes in a text in base64. */
static size_t decoded(const json_t *v)
{
    return json_string_length(v) / 4 * 3;
}

static void put_part(str *out, const json_t *part)
{
    const char *type = member(part, "type");
    const json_t *r = json_object_get(part, "resource");
    if (!strcmp(type, "text")) {
        put_text(out, json_object_get(part, "text"));
    } else if (!strcmp(type, "image") || !strcmp(type, "audio")) {
        str_printf(out, "[%s, %s, about %zu bytes; not passed on to you]",
                   *type == 'i' ? "a picture" : "a sound", member(part, "mimeType"),
                   decoded(json_object_get(part, "data")));
    } else if (!strcmp(type, "resource_link")) {
        str_printf(out, "[link %s: %s", member(part, "name"), member(part, "uri"));
        if (*member(part, "description"))
            str_printf(out, " (%s)", member(part, "description"));
        str_puts(out, "]");
    } else if (!strcmp(type, "resource") && json_is_string(json_object_get(r, "text"))) {
        str_printf(out, "[%s]\n", member(r, "uri"));
        put_text(out, json_object_get(r, "text"));
    } else if (!strcmp(type, "resource")) {
        str_printf(out, "[%s, %s, about %zu bytes; not passed on to you]", member(r, "uri"),
                   member(r, "mimeType"), decoded(json_object_get(r, "blob")));
    } else {
        str_printf(out, "[content of a kind that carat does not know: %s]", type);
    }
}

void result_put(str *out, const json_t *result, bool *failed)
{
    const json_t *content = json_object_get(result, "content");
    const json_t *structured = json_object_get(result, "structuredContent");
    *failed = json_is_true(json_object_get(result, "isError"));
    if (*failed)
        str_puts(out, "error: ");
    for (size_t i = 0; i < json_array_size(content) && out->n <= RESULT_MAX; i++) {
        if (i)
            str_putc(out, '\n');
        put_part(out, json_array_get(content, i));
    }
    /* A server that has both puts the same into both. */
    char *text = !json_array_size(content) && structured
                     ? json_dumps(structured, JSON_COMPACT | JSON_ENCODE_ANY)
                     : NULL;
    if (text)
        str_puts(out, text);
    else if (!json_array_size(content))
        str_puts(out, "(no content)");
    free(text);
}

void result_cut(str *out, size_t max)
{
    size_t n = out->n;
    if (n <= max)
        return;
    size_t keep = max;
    while (keep && ((unsigned char)out->at[keep] & 0xc0) == 0x80)
        keep--;
    str_cut(out, keep);
    str_printf(out, "\n[cut here: %zu of %zu bytes are left out]", n - keep, n);
}
