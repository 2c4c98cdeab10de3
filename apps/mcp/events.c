/* events.c - lines out of bytes, and text/event-stream out of lines. */
#include "apps/mcp/mcp_int.h"

#include <string.h>

bool lines_next(lines *l, const char **line, size_t *n)
{
    const char *from = l->buf.at + l->seen;
    const char *end = l->buf.n > l->seen ? memchr(from, '\n', l->buf.n - l->seen) : NULL;
    if (!end) {
        str_drop(&l->buf, l->at);
        l->at = 0;
        l->seen = l->buf.n;
        return false;
    }
    *line = l->buf.at + l->at;
    *n = (size_t)(end - *line);
    l->at = l->seen = (size_t)(end + 1 - l->buf.at);
    return true;
}

/* "NAME: VALUE" with this name: the value, else NULL. */
static const char *field(const char *line, size_t n, const char *name, size_t *n_value)
{
    size_t n_name = strlen(name);
    if (n < n_name || memcmp(line, name, n_name) || (n > n_name && line[n_name] != ':'))
        return NULL;
    const char *at = line + n_name + (n > n_name);
    if (at < line + n && *at == ' ')
        at++;
    *n_value = (size_t)(line + n - at);
    return at;
}

static void take_line(events *v, const char *line, size_t n, events_fn *each, void *user)
{
    const char *at;
    size_t n_value;
    if (n && line[n - 1] == '\r')
        n--;
    if (!n) {
        if (v->data.n)
            each(user, v->data.at, v->data.n - 1); /* without the last newline */
        str_cut(&v->data, 0);
    } else if ((at = field(line, n, "data", &n_value))) {
        str_put(&v->data, at, n_value);
        str_putc(&v->data, '\n');
    } else if ((at = field(line, n, "id", &n_value)) && n_value < 1024 && !memchr(at, 0, n_value)) {
        str_cut(&v->id, 0);
        str_put(&v->id, at, n_value);
    } else if ((at = field(line, n, "retry", &n_value)) && n_value && n_value < 9) {
        int64_t ms = 0;
        for (size_t i = 0; i < n_value && ms >= 0; i++)
            ms = at[i] >= '0' && at[i] <= '9' ? ms * 10 + (at[i] - '0') : -1;
        v->retry_ms = ms;
    }
}

bool events_take(events *v, const char *bytes, size_t n, events_fn *each, void *user)
{
    const char *line;
    size_t n_line;
    str_put(&v->in.buf, bytes, n);
    while (lines_next(&v->in, &line, &n_line))
        take_line(v, line, n_line, each, user);
    return v->in.buf.n <= MESSAGE_MAX && v->data.n <= MESSAGE_MAX && !v->in.buf.bad &&
           !v->data.bad && !v->id.bad;
}

void events_free(events *v)
{
    str_free(&v->in.buf);
    str_free(&v->data);
    str_free(&v->id);
    *v = (events){.retry_ms = -1};
}
