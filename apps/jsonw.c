/* jsonw.c - see jsonw.h. */
#include "apps/jsonw.h"
#include "base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Space and newline come before a text in an event stream ("data: "). */
static void put_comma(str *o)
{
    if (o->n && !strchr("{[:, \n", o->at[o->n - 1]))
        str_putc(o, ',');
}

void json_key(str *o, const char *key)
{
    put_comma(o);
    if (key) {
        jtree_put_string(o, key, strlen(key));
        str_putc(o, ':');
    }
}

void json_open(str *o, const char *key, char bracket)
{
    json_key(o, key);
    str_putc(o, bracket);
}

void json_empty(str *o, const char *key, const char *brackets)
{
    json_key(o, key);
    str_puts(o, brackets);
}

void json_close(str *o, const char *brackets)
{
    str_puts(o, brackets);
}

void json_text_n(str *o, const char *key, const char *s, size_t n)
{
    json_key(o, key);
    jtree_put_string(o, s, n);
}

void json_text(str *o, const char *key, const char *text)
{
    if (text)
        json_text_n(o, key, text, strlen(text));
    else
        json_nothing(o, key);
}

void json_words(str *o, const char *key, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    char *text = n < 0 ? NULL : mem_alloc((size_t)n + 1);
    o->bad |= !text;
    if (text) {
        vsnprintf(text, (size_t)n + 1, fmt, again);
        json_text_n(o, key, text, (size_t)n);
    }
    mem_free(text);
    va_end(again);
    va_end(ap);
}

void json_ready(str *o, const char *key, const char *json, size_t n)
{
    if (!n)
        return;
    json_key(o, key);
    str_put(o, json, n);
}

void json_int(str *o, const char *key, int64_t v)
{
    json_key(o, key);
    str_printf(o, "%" PRId64, v);
}

void json_number(str *o, const char *key, double v)
{
    json_key(o, key);
    if (isfinite(v))
        str_printf(o, "%.9g", v);
    else
        str_puts(o, "null");
}

void json_fixed(str *o, const char *key, double v, int digits)
{
    json_key(o, key);
    str_printf(o, "%.*f", digits, v);
}

void json_sampling(str *o, const carat_sampling *s)
{
    int32_t n;
    const carat_sampling_setting *all = carat_sampling_settings(&n);
    for (int32_t i = 0; i < n; i++)
        json_number(o, all[i].name, carat_sampling_get(s, &all[i]));
}

void json_bool(str *o, const char *key, bool v)
{
    json_key(o, key);
    str_puts(o, v ? "true" : "false");
}

void json_nothing(str *o, const char *key)
{
    json_key(o, key);
    str_puts(o, "null");
}

/* Recursion is bounded by the depth that jtree_parse allowed. */
void json_tree(str *o, const char *key, const jtree *v)
{
    json_key(o, key);
    jtree_pass(v);
    switch (v ? v->kind : JTREE_NULL) {
    case JTREE_NULL:
        str_puts(o, "null");
        break;
    case JTREE_FALSE:
        str_puts(o, "false");
        break;
    case JTREE_TRUE:
        str_puts(o, "true");
        break;
    case JTREE_INTEGER:
    case JTREE_REAL:
        str_put(o, v->s, v->n);
        break;
    case JTREE_STRING:
        jtree_put_string(o, v->s, v->n);
        break;
    case JTREE_ARRAY:
        str_putc(o, '[');
        for (const jtree *i = v->first; i; i = i->next)
            json_tree(o, NULL, i);
        str_putc(o, ']');
        break;
    case JTREE_OBJECT:
        str_putc(o, '{');
        for (const jtree *i = v->first; i; i = i->next) {
            put_comma(o);
            jtree_put_string(o, i->key, i->n_key);
            str_putc(o, ':');
            json_tree(o, NULL, i);
        }
        str_putc(o, '}');
        break;
    }
}
