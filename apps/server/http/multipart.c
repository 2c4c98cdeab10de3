/* multipart.c - see multipart.h. */
#include "apps/server/http/multipart.h"

#include <string.h>
#include <strings.h>

static const char form[] = "multipart/form-data";

bool multipart_is(const char *type)
{
    size_t n = sizeof form - 1;
    return type && !strncasecmp(type, form, n) && (!type[n] || strchr("; \t", type[n]));
}

/* A run of bytes. */
typedef struct slice {
    const char *at;
    size_t n;
} slice;

static slice skip_blanks(slice s)
{
    while (s.n && (*s.at == ' ' || *s.at == '\t'))
        s.at++, s.n--;
    return s;
}

/* The value of parameter `name` in a header's value such as `form-data; name="a"`. at NULL: there
 * is none, or it has no end. */
static slice parameter(slice s, const char *name)
{
    size_t n_name = strlen(name);
    while (s.n) {
        bool quoted = false;
        size_t n = 0;
        for (; n < s.n && (quoted || s.at[n] != ';'); n++) {
            if (quoted && s.at[n] == '\\' && n + 1 < s.n)
                n++;
            else if (s.at[n] == '"')
                quoted = !quoted;
        }
        slice p = skip_blanks((slice){s.at, n});
        if (p.n > n_name && !strncasecmp(p.at, name, n_name) && p.at[n_name] == '=') {
            slice v = {p.at + n_name + 1, p.n - n_name - 1};
            while (v.n && (v.at[v.n - 1] == ' ' || v.at[v.n - 1] == '\t'))
                v.n--;
            if (!v.n || *v.at != '"')
                return v;
            if (v.n < 2 || v.at[v.n - 1] != '"')
                return (slice){NULL, 0};
            return (slice){v.at + 1, v.n - 2};
        }
        s = n < s.n ? (slice){s.at + n + 1, s.n - n - 1} : (slice){NULL, 0};
    }
    return (slice){NULL, 0};
}

/* The line that ends in CR LF, without them; false: there is no end. */
static bool take_line(slice *s, slice *line)
{
    const char *end = memmem(s->at, s->n, "\r\n", 2);
    if (!end)
        return false;
    *line = (slice){s->at, (size_t)(end - s->at)};
    s->n -= line->n + 2;
    s->at = end + 2;
    return true;
}

/* Name and file of a part, whose body *s is then. */
static status read_heads(slice *s, multipart_field *f, err *e)
{
    static const char head[] = "content-disposition:";
    slice line, v = {NULL, 0};
    for (;;) {
        if (!take_line(s, &line))
            return err_set(e, E_FORMAT, "a part of the form ends in its headers");
        if (!line.n)
            break;
        if (line.n >= sizeof head - 1 && !strncasecmp(line.at, head, sizeof head - 1))
            v = (slice){line.at + sizeof head - 1, line.n - (sizeof head - 1)};
    }
    slice name = parameter(v, "name"), file = parameter(v, "filename");
    if (!name.at)
        return err_set(e, E_FORMAT, "a part of the form has no name");
    *f = (multipart_field){.name = name.at, .n_name = name.n, .file = file.at, .n_file = file.n};
    return OK;
}

/* CR LF, two dashes and the boundary. */
static status read_boundary(const char *type, char mark[MULTIPART_BOUNDARY_MAX + 5], size_t *n,
                            err *e)
{
    slice b = {NULL, 0};
    if (multipart_is(type))
        b = parameter((slice){type, strlen(type)}, "boundary");
    if (!b.at || !b.n || b.n > MULTIPART_BOUNDARY_MAX)
        return err_set(e, E_FORMAT,
                       "the Content-Type is no multipart/form-data with a boundary of 1 to %d "
                       "characters",
                       MULTIPART_BOUNDARY_MAX);
    memcpy(mark, "\r\n--", 4);
    memcpy(mark + 4, b.at, b.n);
    *n = b.n + 4;
    return OK;
}

status multipart_split(multipart *out, const char *type, const char *body, size_t n, err *e)
{
    char mark[MULTIPART_BOUNDARY_MAX + 5];
    size_t n_mark = 0;
    slice s = {body, n}, line;
    status st = read_boundary(type, mark, &n_mark, e);
    out->n = 0;
    if (st)
        return st;
    if (!n) /* body may be NULL */
        return err_set(e, E_FORMAT, "the form has no part");
    /* The first boundary may begin the body. */
    const char *at = n >= n_mark - 2 && !memcmp(body, mark + 2, n_mark - 2) ? body
                     : (at = memmem(body, n, mark, n_mark))                 ? at + 2
                                                                            : NULL;
    if (!at)
        return err_set(e, E_FORMAT, "the form has no part");
    s = (slice){at + n_mark - 2, n - (size_t)(at - body) - (n_mark - 2)};
    while (s.n < 2 || memcmp(s.at, "--", 2)) {
        if (!take_line(&s, &line) || skip_blanks(line).n)
            return err_set(e, E_FORMAT, "the form has no end");
        if (out->n == MULTIPART_MAX)
            return err_set(e, E_LIMIT, "the form has more than %d parts", MULTIPART_MAX);
        multipart_field *f = &out->field[out->n];
        if ((st = read_heads(&s, f, e)))
            return st;
        const char *end = memmem(s.at, s.n, mark, n_mark);
        /* Nothing is between the empty line and the boundary. */
        bool empty = s.n >= n_mark - 2 && !memcmp(s.at, mark + 2, n_mark - 2);
        if (!end && !empty)
            return err_set(e, E_FORMAT, "the form has no end");
        f->at = s.at;
        f->n = empty ? 0 : (size_t)(end - s.at);
        size_t skip = empty ? n_mark - 2 : f->n + n_mark;
        s = (slice){s.at + skip, s.n - skip};
        out->n++;
    }
    return OK;
}

const multipart_field *multipart_find(const multipart *m, const char *name)
{
    for (int32_t i = 0; i < m->n; i++)
        if (m->field[i].n_name == strlen(name) &&
            !memcmp(m->field[i].name, name, m->field[i].n_name))
            return &m->field[i];
    return NULL;
}
