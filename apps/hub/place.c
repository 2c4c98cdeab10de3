/* place.c - see place.h. The rules are those of Python's client of the hub, so that one login and
 * one cache serve both.
 */
#include "apps/hub/place.h"

#include "base/map.h"
#include "base/mem.h"
#include "base/str.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { TOKEN_MAX = 8192 };

static const char no_variable[] = "";

/* Its value, or "" where it is not set. */
static const char *variable(const char *name)
{
    const char *v = getenv(name);
    return v ? v : no_variable;
}

static bool is_true(const char *name)
{
    static const char *const words[] = {"1", "on", "yes", "true"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcasecmp(variable(name), words[i]))
            return true;
    return false;
}

static const char *home_dir(void)
{
    const char *home = variable("HOME");
    return *home == '/' ? home : NULL;
}

const char *path_join(arena *mem, const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    char *out = arena_alloc(mem, n + m + 2);
    if (!out)
        return NULL;
    memcpy(out, a, n);
    out[n] = '/';
    memcpy(out + n + 1, b, m + 1);
    return out;
}

const char *xdg_path(arena *mem, const char *name, const char *home, const char *tail)
{
    const char *v = variable(name);
    if (*v == '/')
        return path_join(mem, v, tail);
    if (!home_dir())
        return NULL;
    const char *base = path_join(mem, home_dir(), home);
    return base ? path_join(mem, base, tail) : NULL;
}

/* A value with ~ and $NAME or ${NAME} replaced, as Python's client reads these variables. */
static const char *expanded(arena *mem, const char *v)
{
    str out = {0};
    if (v[0] == '~' && (!v[1] || v[1] == '/') && home_dir()) {
        str_puts(&out, home_dir());
        v++;
    }
    while (*v) {
        bool braces = v[0] == '$' && v[1] == '{';
        const char *name = v + 1 + braces;
        size_t n = *v == '$' ? strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                            "0123456789_")
                             : 0;
        char key[128];
        if (!n || n >= sizeof key || (braces && name[n] != '}')) {
            str_putc(&out, *v++);
            continue;
        }
        memcpy(key, name, n);
        key[n] = 0;
        if (getenv(key))
            str_puts(&out, getenv(key));
        else
            str_put(&out, v, n + 1 + 2 * braces);
        v = name + n + braces;
    }
    const char *made = out.bad ? NULL : arena_strndup(mem, str_text(&out), out.n);
    str_free(&out);
    return made;
}

/* $HF_HOME, or its default. NULL: no memory, or no home. */
static const char *hf_home(arena *mem)
{
    if (*variable("HF_HOME"))
        return expanded(mem, variable("HF_HOME"));
    return xdg_path(mem, "XDG_CACHE_HOME", ".cache", "huggingface");
}

static const char *cache_dir(arena *mem)
{
    static const char *const names[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (*variable(names[i]))
            return expanded(mem, variable(names[i]));
    const char *home = hf_home(mem);
    return home ? path_join(mem, home, "hub") : NULL;
}

/* Without space at both ends. What is left goes into a header line, so it must be one word. */
static status take_token(place *p, const char *text, size_t n, const char *from, err *e)
{
    while (n && strchr(" \t\r\n", text[n - 1]))
        n--;
    while (n && strchr(" \t\r\n", *text))
        text++, n--;
    if (!n)
        return OK;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] <= ' ' || (unsigned char)text[i] >= 0x7f || n > TOKEN_MAX)
            return err_set(e, E_FORMAT, "%s holds no token: a token is one word", from);
    p->token_from = from;
    p->token = arena_strndup(&p->mem, text, n);
    return p->token ? OK : err_memory(e, "the token", n);
}

static status find_token(place *p, err *e)
{
    static const char *const names[] = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"};
    if (is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN"))
        return OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        status st = take_token(p, variable(names[i]), strlen(variable(names[i])), names[i], e);
        if (st || p->token)
            return st;
    }
    const char *home = hf_home(&p->mem);
    const char *path = *variable("HF_TOKEN_PATH") ? expanded(&p->mem, variable("HF_TOKEN_PATH"))
                       : home                     ? path_join(&p->mem, home, "token")
                                                  : NULL;
    char *text;
    size_t n;
    struct stat sb;
    if (!path || stat(path, &sb) || !S_ISREG(sb.st_mode) || !sb.st_size)
        return OK;
    status st = file_read_all(path, TOKEN_MAX, &text, &n, e);
    if (!st)
        st = take_token(p, text, n, path, e);
    mem_free(text);
    return st;
}

status place_read(place *p, bool with_token, err *e)
{
    *p = (place){0};
    size_t n = strlen(variable("HF_ENDPOINT"));
    while (n && variable("HF_ENDPOINT")[n - 1] == '/')
        n--;
    p->endpoint = n ? arena_strndup(&p->mem, variable("HF_ENDPOINT"), n) : "https://huggingface.co";
    p->store = xdg_path(&p->mem, "XDG_DATA_HOME", ".local/share", "carat");
    p->hf_cache = cache_dir(&p->mem);
    p->offline = is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE");
    bool home = home_dir() != NULL;
    status st = OK;
    if (!p->endpoint || (!p->store && (home || *variable("XDG_DATA_HOME") == '/')) ||
        (!p->hf_cache && home))
        st = err_memory(e, "the paths of models", 0);
    if (!st && with_token)
        st = find_token(p, e);
    if (st)
        place_free(p);
    return st;
}

void place_free(place *p)
{
    arena_free(&p->mem);
    *p = (place){0};
}

status make_dirs(const char *path, err *e)
{
    arena mem = {0};
    status st = OK;
    char *s = arena_strndup(&mem, path, strlen(path));
    if (!s)
        return err_memory(e, path, strlen(path));
    for (char *at = s + 1; !st; at++) {
        if (*at && *at != '/')
            continue;
        char end = *at;
        *at = 0;
        struct stat sb;
        /* Tried only where nothing is: on a read-only file system mkdir fails otherwise. */
        if (stat(s, &sb) && mkdir(s, 0700) && errno != EEXIST)
            st = err_errno(e, "create", s);
        *at = end;
        if (!end)
            break;
    }
    arena_free(&mem);
    return st;
}
