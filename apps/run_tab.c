/* run_tab.c - see run_tab.h.
 *
 * /file reads its argument as a shell does, so a word there may have quotes and backslashes. The
 * other commands with a file take the rest of the line as it is. In plain text the last word is
 * completed as a file. Names that a terminal would obey, or that are no UTF-8, are not offered.
 */
#include "apps/run_tab.h"

#include "apps/run_int.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool add_name(tab_choices *c, const char *name, size_t n, const char *end)
{
    if (c->n == TAB_MAX) {
        c->more = true;
        return true;
    }
    char *copy = mem_alloc(n + strlen(end) + 1);
    if (!copy)
        return false;
    memcpy(copy, name, n);
    strcpy(copy + n, end);
    c->at[c->n++] = copy;
    return true;
}

/* ---- The word in front of the cursor ------------------------------------------------------ */

typedef struct word {
    str text;    /* without its quotes */
    char quote;  /* an open one, or 0 */
    bool quoted; /* the line is read as a shell would */
} word;

/* The last word of a line that a shell would read. */
static void shell_word(word *w, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char ch = s[i];
        if (w->quote ? ch == w->quote : ch == '\'' || ch == '"')
            w->quote = w->quote ? 0 : ch;
        else if (ch == '\\' && w->quote != '\'' && i + 1 < n)
            str_putc(&w->text, s[++i]);
        else if (ch == ' ' && !w->quote)
            str_cut(&w->text, 0);
        else
            str_putc(&w->text, ch);
    }
}

/* In a name, characters that a shell takes for something else get a backslash. */
static void put_suffix(str *out, const char *s, size_t n, const word *w)
{
    for (size_t i = 0; i < n; i++) {
        if (w->quoted && !w->quote && strchr(" \t\\'\"$&|;<>(){}[]*?~`#!", s[i]))
            str_putc(out, '\\');
        str_putc(out, s[i]);
    }
}

/* ---- Files ----------------------------------------------------------------------------- */

/* Valid UTF-8 without characters that control a terminal. */
static bool harmless(const char *name)
{
    for (size_t n = strlen(name); n;) {
        uint32_t cp;
        bool ok;
        int len = utf8_decode(name, n, &cp, &ok);
        if (!ok || cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || (cp >= 0x2028 && cp <= 0x202e) ||
            (cp >= 0x2066 && cp <= 0x2069))
            return false;
        name += len;
        n -= (size_t)len;
    }
    return true;
}

/* The directory of a typed path, with ~ expanded. */
static void directory_of(str *dir, const char *path, size_t n)
{
    const char *home = getenv("HOME");
    if (n >= 2 && path[0] == '~' && path[1] == '/' && home) {
        str_puts(dir, home);
        path++;
        n--;
    }
    str_put(dir, path, n);
    if (!n)
        str_puts(dir, "./");
}

static bool find_files(tab_choices *c, const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t n_base = strlen(base);
    bool ok = true;
    str dir = {0};
    directory_of(&dir, path, (size_t)(base - path));
    DIR *d = dir.bad ? NULL : opendir(str_text(&dir));
    for (struct dirent *f; ok && d && (f = readdir(d));) {
        struct stat sb;
        const char *name = f->d_name;
        if (strncmp(name, base, n_base) || (name[0] == '.' && base[0] != '.') ||
            !strcmp(name, ".") || !strcmp(name, "..") || !harmless(name))
            continue;
        bool is_dir = !fstatat(dirfd(d), name, &sb, 0) && S_ISDIR(sb.st_mode);
        ok = add_name(c, name, strlen(name), is_dir ? "/" : "");
    }
    if (d)
        closedir(d);
    ok &= !dir.bad;
    str_free(&dir);
    return ok;
}

/* ---- Words of a command ------------------------------------------------------------------- */

static bool find_words(tab_choices *c, const char *list, const char *typed)
{
    size_t n_typed = strlen(typed);
    for (const char *at = list; at && *at; at += strspn(at, " ")) {
        size_t n = strcspn(at, " ");
        if (n >= n_typed && !strncmp(at, typed, n_typed) && !add_name(c, at, n, ""))
            return false;
        at += n;
    }
    return true;
}

static const slash_command *command_of(const char *line, size_t n)
{
    for (const slash_command *s = slash_commands; s->name; s++)
        if (strlen(s->name) == n && !memcmp(s->name, line, n))
            return s;
    return NULL;
}

static bool find_commands(tab_choices *c, const char *typed)
{
    for (const slash_command *s = slash_commands; s->name; s++)
        if (!strncmp(s->name, typed, strlen(typed)) && !add_name(c, s->name, strlen(s->name), ""))
            return false;
    return true;
}

/* ---- Together -------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static size_t common_length(const tab_choices *c)
{
    size_t n = c->n ? strlen(c->at[0]) : 0;
    for (size_t i = 1; i < c->n; i++)
        for (size_t k = 0; k < n; k++)
            if (c->at[i][k] != c->at[0][k])
                n = k;
    while (c->n && n && ((unsigned char)c->at[0][n] & 0xc0) == 0x80)
        n--; /* whole characters */
    return n;
}

static void make_insert(tab_choices *c, const word *w, size_t n_typed, bool words)
{
    size_t n = common_length(c);
    if (n > n_typed)
        put_suffix(&c->insert, c->at[0] + n_typed, n - n_typed, w);
    if (c->n != 1 || c->more || c->at[0][n - 1] == '/')
        return;
    if (w->quote)
        str_putc(&c->insert, w->quote);
    if (words || w->quoted)
        str_putc(&c->insert, ' ');
}

bool tab_find(const char *line, size_t n, tab_choices *c)
{
    word w = {0};
    const char *base;
    bool ok, words = true;
    *c = (tab_choices){0};
    size_t n_name = n && line[0] == '/' ? strcspn(line, " \t\n") : 0;
    n_name = n_name > n ? n : n_name;
    const slash_command *s = n_name ? command_of(line + 1, n_name - 1) : NULL;
    size_t at = n_name;
    while (at < n && strchr(" \t\n", line[at]))
        at++;
    if (n_name == n && n) { /* a command is being typed */
        str_put(&w.text, line + 1, n - 1);
        ok = find_commands(c, str_text(&w.text));
    } else if (s && s->kind == SLASH_WORD) {
        str_put(&w.text, line + at, n - at);
        ok = find_words(c, s->words, str_text(&w.text));
    } else if (s && s->kind == SLASH_NONE) {
        ok = true;
    } else {
        words = false;
        w.quoted = s && s->kind == SLASH_FILES;
        if (w.quoted)
            shell_word(&w, line + at, n - at);
        else if (s)
            str_put(&w.text, line + at, n - at);
        else
            for (at = n; at && !strchr(" \t\n", line[at - 1]); at--)
                ;
        if (!s)
            str_put(&w.text, line + at, n - at);
        /* Without a word there is nothing to complete in a message. */
        ok = (!s && !w.text.n) || find_files(c, str_text(&w.text));
    }
    if (c->n)
        qsort(c->at, c->n, sizeof *c->at, by_name);
    base = words ? NULL : strrchr(str_text(&w.text), '/');
    make_insert(c, &w, base ? strlen(base + 1) : w.text.n, words);
    ok &= !w.text.bad && !c->insert.bad;
    str_free(&w.text);
    if (!ok)
        tab_free(c);
    return ok;
}

void tab_free(tab_choices *c)
{
    for (size_t i = 0; i < c->n; i++)
        mem_free(c->at[i]);
    str_free(&c->insert);
    *c = (tab_choices){0};
}

void tab_print(const tab_choices *c, int columns)
{
    size_t widest = 1;
    for (size_t i = 0; i < c->n; i++)
        if (strlen(c->at[i]) > widest)
            widest = strlen(c->at[i]);
    widest += 2;
    size_t n_columns = columns > 0 && (size_t)columns > widest ? (size_t)columns / widest : 1;
    size_t n_rows = (c->n + n_columns - 1) / n_columns;
    for (size_t row = 0; row < n_rows; row++) {
        for (size_t i = row; i < c->n; i += n_rows)
            term_put_name(stderr, c->at[i], strlen(c->at[i]), i + n_rows < c->n ? (int)widest : 0);
        fputs("\n", stderr);
    }
    if (c->more)
        fputs("... and more\n", stderr);
}
