/* json.c - a door to jansson, with this house's limits, errors and memory.
 *
 * jansson has one allocator per process, and another library or the program may use jansson too. So
 * our allocator passes every request on to the allocator that was set before: memory that jansson
 * has allocated stays valid, and a program that chose an allocator keeps it. If that was the C
 * library's, requests go through base/mem.h, so that tests can make each of them fail.
 */
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/show.h"
#include "base/str.h"
#include "base/utf8.h"

#include <pthread.h>
#include <stdlib.h>

/* jansson does not always report that memory ran out; the allocator does. */
static _Thread_local bool was_short;

static json_malloc_t below;

static void *alloc(size_t n)
{
    void *p = below(n);
    was_short |= !p;
    return p;
}

static void set_allocator(void)
{
    json_free_t free_below;
    json_get_alloc_funcs(&below, &free_below);
    if (below == malloc)
        below = mem_malloc_hook; /* malloc with a counter, so either may free the other's blocks */
    json_set_alloc_funcs(alloc, free_below);
}

void json_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_allocator);
}

bool json_was_short(void)
{
    bool yes = was_short;
    json_init();
    was_short = false;
    return yes;
}

static status parse_text(json_t **out, const char *text, size_t n, size_t flags, const char *what,
                         err *e)
{
    json_error_t je;
    json_init();
    was_short = false;
    *out = json_loadb(text, n, flags | JSON_DECODE_ANY, &je);
    if (was_short) { /* jansson may continue with a truncated string */
        json_decref(*out);
        *out = NULL;
        return err_memory(e, what, n);
    }
    if (*out)
        return OK;
    return err_set(e, E_FORMAT, "%s: not valid JSON at line %d: %s", what, je.line, je.text);
}

status json_parse(json_t **out, const char *text, size_t n, const char *what, err *e)
{
    return parse_text(out, text, n, JSON_REJECT_DUPLICATES, what, e);
}

status json_parse_words(json_t **out, const char *text, size_t n, const char *what, err *e)
{
    return parse_text(out, text, n, JSON_ALLOW_NUL, what, e);
}

status json_parse_file(json_t **out, const char *path, size_t max_bytes, err *e)
{
    char *text;
    size_t n;
    *out = NULL;
    status st = file_read_all(path, max_bytes, &text, &n, e);
    if (!st)
        st = json_parse(out, text, n, path, e);
    mem_free(text);
    return st;
}

static int append(const char *bytes, size_t n, void *out)
{
    str *o = out;
    str_put(o, bytes, n);
    return o->bad ? -1 : 0;
}

bool json_write(FILE *f, const json_t *v, size_t flags)
{
    str raw = {0}, safe = {0};
    bool ok = !json_dump_callback(v, append, &raw, flags);
    show_put_json(&safe, str_text(&raw), raw.n);
    str_putc(&safe, '\n');
    ok = ok && !safe.bad && fwrite(safe.at, 1, safe.n, f) == safe.n && !fflush(f);
    str_free(&raw);
    str_free(&safe);
    return ok;
}

json_t *json_lossy_text(const char *s, size_t n)
{
    str out = {0};
    if (utf8_valid(s, n))
        return json_stringn_nocheck(s, n);
    while (n) {
        uint32_t cp;
        bool ok;
        char b[4];
        int len = utf8_decode(s, n, &cp, &ok);
        str_put(&out, b, (size_t)utf8_encode(cp, b));
        s += len;
        n -= (size_t)len;
    }
    json_t *v = out.bad ? NULL : json_stringn_nocheck(str_text(&out), out.n);
    str_free(&out);
    return v;
}
