/* options.c - the parser of command lines, and options set by name.
 *
 * A row of the table holds the offset of the option's field in the command's struct. So no command
 * has a parser of its own, and every option is documented. An error names the option and the
 * expected values. It appears before any file is opened.
 */
#include "apps/options.h"

#include "base/nearest.h"
#include "base/show.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int misuse(const command *c, const char *what, const char *name, const char *more)
{
    fprintf(stderr, "carat %s: %s%s%s\n", c->name, what, SHOWN(name), SHOWN(more));
    fprintf(stderr, "Try 'carat %s --help'.\n", c->name);
    return 3;
}

static bool same_name(const char *row, const char *name, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!row[i] || row[i] != (name[i] == '_' ? '-' : name[i]))
            return false;
    return !row[n];
}

static const option *find_long(const option *table, const char *name, size_t n)
{
    for (const option *o = table; o && o->name; o++)
        if (o->kind != OPTION_HEADING && same_name(o->name, name, n))
            return o;
    return NULL;
}

const option *options_find(const option *table, const char *name)
{
    return find_long(table, name, strlen(name));
}

static const option *find_letter(const command *c, char letter)
{
    for (const option *o = c->options; o && o->name; o++)
        if (o->letter == letter)
            return o;
    return NULL;
}

/* The option whose name is most like this one or begins with it, or NULL. */
static const char *nearest_option(const option *table, const char *name)
{
    const char *names[OPTION_ROWS_MAX] = {0};
    size_t n = 0;
    for (const option *o = table; o && o->name && n < OPTION_ROWS_MAX; o++)
        if (o->kind != OPTION_HEADING)
            names[n++] = o->name;
    const char *near = nearest_word(name, names, n);
    for (size_t i = 0; i < n && !near && *name; i++)
        if (!strncmp(names[i], name, strlen(name)))
            near = names[i];
    return near;
}

static int misuse_unknown(const command *c, const char *arg)
{
    char name[64];
    const char *near = NULL;
    const option *letter = arg[1] == '-' ? NULL : find_letter(c, arg[1]);
    char more[160] = "";
    if (letter && letter->kind != OPTION_FLAG)
        snprintf(more, sizeof more, "; the value of -%c stands apart: -%c %.60s", arg[1], arg[1],
                 arg + 2);
    if (arg[1] == '-') {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(arg + 2, "="), arg + 2);
        near = nearest_option(c->options, name);
    }
    if (near)
        snprintf(more, sizeof more, "; did you mean --%s?", near);
    return misuse(c, "unknown option ", arg, more);
}

bool options_number(const char *text, double *v)
{
    char *end;
    errno = 0;
    double x = strtod(text, &end);
    if (end == text || errno == ERANGE)
        return false;
    if ((*end == 'k' || *end == 'K') && !end[1]) {
        x *= 1024;
        end++;
    }
    if (*end || x != x)
        return false;
    *v = x;
    return true;
}

/* The layer that has set each row; 0: none has. Without marks every call may set a row. */
static unsigned char *mark_of(const option *table, const option *o, option_marks *m)
{
    return m && o - table < OPTION_ROWS_MAX ? &m->layer[o - table] : NULL;
}

/* name: as the user spells it. value: NULL for a flag that is set. A first value of a list from
 * this layer replaces those of a later layer. */
static status store_value(const option *table, const option *o, const char *name, const char *value,
                          void *opts, option_marks *m, int layer, err *e)
{
    char *field = (char *)opts + o->offset;
    unsigned char *mark = mark_of(table, o, m);
    if (mark && *mark && *mark < layer)
        return OK;
    if (o->kind == OPTION_FLAG) {
        *(bool *)field = !value || !strcmp(value, "true");
        if (value && !*(bool *)field && strcmp(value, "false"))
            return err_set(e, E_ARG, "%.60s=%.40s: expected true or false", name, value);
    } else if (!value) {
        return err_set(e, E_ARG, "%.60s needs a value", name);
    } else if (o->kind == OPTION_STR || o->kind == OPTION_MAYBE) {
        *(const char **)field = value;
    } else if (o->kind == OPTION_LIST || o->kind == OPTION_FILES) {
        option_list *list = (option_list *)field;
        if (mark && *mark != layer)
            list->n = 0;
        int most = o->kind == OPTION_FILES ? OPTION_FILES_MAX : OPTION_LIST_MAX;
        if (list->n == most)
            return err_set(e, E_ARG, "%.60s was given too often: it takes up to %d values", name,
                           most);
        list->at[list->n++] = value;
    } else {
        double v;
        if (!options_number(value, &v) || v < o->min || v > o->max ||
            (o->kind == OPTION_INT && v != (double)(int64_t)v))
            return err_set(e, E_ARG, "%.60s=%.40s: expected %s from %.10g to %.10g", name, value,
                           o->kind == OPTION_INT ? "a whole number" : "a number", o->min, o->max);
        if (o->kind == OPTION_INT)
            *(int64_t *)field = (int64_t)v;
        else
            *(double *)field = v;
    }
    if (mark)
        *mark = (unsigned char)layer;
    return OK;
}

status options_set(const option *table, const char *name, const char *value, void *opts,
                   option_marks *m, int layer, err *e)
{
    const option *o = options_find_any(table, name);
    if (o)
        return store_value(table, o, name, value, opts, m, layer, e);
    const char *near = nearest_option(table, name);
    return err_set(e, E_ARG, "there is no option '%.60s'%s%s%s", name,
                   near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static bool is_number(const char *word)
{
    return *word && !word[strspn(word, "0123456789")];
}

static bool is_file(const char *word)
{
    struct stat sb;
    return word[0] != '-' && !stat(word, &sb) && S_ISREG(sb.st_mode);
}

int options_parse(const command *c, int argc, char **argv, void *opts, int *n_operands)
{
    option_marks m = {0};
    int bad = options_parse_marked(c, argc, argv, opts, n_operands, &m);
    return bad ? bad : options_check(c, opts, &m, NULL);
}

/* The words of one command line that are not yet read. */
typedef struct word_list {
    const command *c;
    char **at;
    int i, n; /* at[i] is being read */
    void *opts;
    option_marks *marks;
} word_list;

static int set_foreign(word_list *w, const char *word, const char *name, const char *value,
                       const char *says)
{
    const option *o = options_find(w->c->options, name);
    err e = {0};
    char text[320];
    if (o && !store_value(w->c->options, o, o->name, value, w->opts, w->marks,
                          OPTION_LAYER_COMMAND_LINE, &e))
        return 0;
    if (o)
        snprintf(text, sizeof text, ": --%.250s", e.text);
    else
        snprintf(text, sizeof text, ": carat %s has no --%s%s%s", w->c->name, name,
                 says ? "; " : "", says ? says : "");
    return misuse(w->c, word, text, "");
}

/* The value of an option of llama.cpp: after "=", or the next word. Returns NULL if there is none.
 */
static const char *foreign_text(word_list *w, const foreign_option *f, const char *equal)
{
    if (equal)
        return equal + 1;
    const char *next = w->i + 1 < w->n ? w->at[w->i + 1] : NULL;
    bool optional = foreign_find_value(f, "") != NULL;
    if (!next || (optional && !foreign_find_value(f, next)))
        return optional ? "" : NULL;
    w->i++;
    return next;
}

/* Reads an option of llama.cpp: sets its option here, or says why there is none. */
static int take_foreign(word_list *w, const foreign_option *f)
{
    const option *row = f->name ? options_find(w->c->options, f->name) : NULL;
    char *arg = w->at[w->i], *equal = strchr(arg, '=');
    char word[64], text[200];
    snprintf(word, sizeof word, "%.*s", equal ? (int)(equal - arg) : (int)strlen(arg), arg);
    bool takes = f->takes || (row && !f->value && row->kind != OPTION_FLAG);
    const char *value = takes ? foreign_text(w, f, equal) : NULL;
    if (equal && !takes)
        return misuse(w->c, word, " takes no value", "");
    if (takes && !value && (f->name || f->values))
        return misuse(w->c, word, " needs a value", "");
    const foreign_value *v = value ? foreign_find_value(f, value) : NULL;
    if (f->met || (v && !v->name))
        return 0;
    if (v && *v->name)
        return set_foreign(w, word, v->name, v->to, f->says);
    if (row && !v && f->note)
        fprintf(stderr, "carat %s: %s is --%s: %s\n", w->c->name, word, f->name, f->note);
    if (f->name && !v)
        return set_foreign(w, word, f->name, f->value ? f->value : value, f->says);
    snprintf(text, sizeof text, "%s%.60s: ", value ? " " : "", value ? value : "");
    return misuse(w->c, word, text, f->says);
}

/* Words of llama.cpp have a meaning where a model runs. */
static bool foreign_of(const command *c, const char *word, foreign_option *out)
{
    return options_find(c->options, "device") && foreign_find(word, out) && !out->numbers;
}

/* --think=false sets the flag that says the opposite, where there is one. */
static int take_flag(word_list *w, const option *o, const char *value)
{
    const option *rows = w->c->options;
    char name[80], word[80];
    snprintf(name, sizeof name, "no-%s", o->name);
    snprintf(word, sizeof word, "--%.70s", o->name);
    const option *other = options_find(rows, strncmp(o->name, "no-", 3) != 0 ? name : o->name + 3);
    bool on = !strcmp(value, "true") || !strcmp(value, "1");
    bool off = !strcmp(value, "false") || !strcmp(value, "0");
    bool turned = off && other && other->kind == OPTION_FLAG;
    foreign_option f;
    if (!on && !off && foreign_of(w->c, word, &f))
        return take_foreign(w, &f);
    err e = {0};
    if (!store_value(rows, turned ? other : o, o->name,
                     on || turned ? "true"
                     : off        ? "false"
                                  : value,
                     w->opts, w->marks, OPTION_LAYER_COMMAND_LINE, &e))
        return 0;
    return misuse(w->c, "--", e.text, "");
}

/* Reads one option of the command's table, in which value is what stands in the same word. */
static int take_option(word_list *w, const option *o, const char *value)
{
    if (o->kind == OPTION_FLAG && value)
        return take_flag(w, o, value);
    if (o->kind == OPTION_MAYBE && !value)
        value = w->i + 1 < w->n && is_number(w->at[w->i + 1]) ? w->at[++w->i] : "";
    if (o->kind != OPTION_FLAG && !value) {
        if (w->i + 1 >= w->n)
            return misuse(w->c, "--", o->name, " needs a value");
        value = w->at[++w->i];
    }
    bool apart = value == w->at[w->i];
    do {
        err e = {0};
        if (store_value(w->c->options, o, o->name, value, w->opts, w->marks,
                        OPTION_LAYER_COMMAND_LINE, &e))
            return misuse(w->c, "--", e.text, "");
    } while (apart && o->kind == OPTION_FILES && w->i + 1 < w->n && is_file(w->at[w->i + 1]) &&
             (value = w->at[++w->i]));
    return 0;
}

/* -x, -x=VALUE, or -xNUMBER where the option takes a number: other words of several letters are no
 * clusters. */
static const option *find_short(const command *c, const char *word, const char **value)
{
    const option *o = find_letter(c, word[1]);
    bool number = o && (o->kind == OPTION_INT || o->kind == OPTION_REAL);
    *value = NULL;
    if (!o || !word[2])
        return o;
    if (word[2] == '=' && o->kind != OPTION_FLAG)
        *value = word + 3;
    else if (number && strchr("0123456789.-", word[2]))
        *value = word + 2;
    return *value ? o : NULL;
}

static int take_word(word_list *w)
{
    const char *a = w->at[w->i], *value = NULL;
    const option *o;
    foreign_option f;
    if (a[1] == '-') {
        size_t len = strcspn(a + 2, "=");
        o = find_long(w->c->options, a + 2, len);
        if (a[2 + len] == '=')
            value = a + 3 + len;
    } else {
        o = find_short(w->c, a, &value);
    }
    if (o) {
        const char *next = value ? value : w->i + 1 < w->n ? w->at[w->i + 1] : "";
        if (a[1] != '-' && foreign_find(a, &f) && f.numbers && strcmp(f.name, o->name) &&
            o->kind == OPTION_STR && options_find(w->c->options, f.name) && is_number(next))
            return misuse(w->c, "", f.says, "");
        return take_option(w, o, value);
    }
    return foreign_of(w->c, a, &f) ? take_foreign(w, &f) : misuse_unknown(w->c, a);
}

int options_parse_marked(const command *c, int argc, char **argv, void *opts, int *n_operands,
                         option_marks *m)
{
    int n = 0, bad;
    bool only_operands = false;
    word_list w = {.c = c, .at = argv, .n = argc, .opts = opts, .marks = m};
    for (; w.i < argc; w.i++) {
        char *a = argv[w.i];
        if (only_operands || a[0] != '-' || !a[1]) {
            argv[n++] = a;
        } else if (!strcmp(a, "--")) {
            only_operands = true;
        } else if (!strcmp(a, "--help") || !strcmp(a, "-h")) {
            options_print_help(c, stdout);
            return 1 + options_printed();
        } else if ((bad = take_word(&w))) {
            return bad;
        }
    }
    if (n < c->n_operands_min)
        return misuse(c, "missing operand: expected ", c->operands, "");
    if (c->n_operands_max >= 0 && n > c->n_operands_max)
        return misuse(c, "unexpected operand ", argv[c->n_operands_max], "");
    *n_operands = n;
    return 0;
}

status options_repack(const char *text, bool *off, err *e)
{
    bool is_off = text && !strcmp(text, "off");
    if (text && !is_off && strcmp(text, "auto") != 0)
        return err_set(e, E_ARG, "--repack %.40s: expected auto or off", text);
    *off = is_off;
    return OK;
}
