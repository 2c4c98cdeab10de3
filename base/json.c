/* json.c - see json.h. */
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"

#include <pthread.h>

/* jansson does not always say that memory was the reason; the allocator knows. */
static _Thread_local bool was_short;

static void *alloc(size_t n)
{
    void *p = mem_malloc_hook(n);
    was_short |= !p;
    return p;
}

static void set_allocator(void)
{
    json_set_alloc_funcs(alloc, mem_free_hook);
}

void json_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_allocator);
}

status json_parse(json_t **out, const char *text, size_t n, const char *what, err *e)
{
    json_error_t je;
    json_init();
    was_short = false;
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &je);
    if (was_short) { /* jansson may go on with a string that lost its end */
        json_decref(*out);
        *out = NULL;
        return err_memory(e, what, n);
    }
    if (*out)
        return OK;
    return err_set(e, E_FORMAT, "%s: not valid JSON, line %d: %s", what, je.line, je.text);
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
