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
        if (same_name(o->name, name, n))
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

/* Words with one dash that users of llama-server type. */
static const option *find_spelled(const option *table, const char *word)
{
    static const char *const words[][2] = {
        {"-hf", "hf-repo"}, {"-hfr", "hf-repo"}, {"-hff", "hf-file"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(word, words[i][0]))
            return options_find(table, words[i][1]);
    return NULL;
}

/* The option whose name is most like this one or begins with it, or NULL. */
static const char *nearest_option(const option *table, const char *name)
{
    const char *names[OPTION_ROWS_MAX] = {0};
    size_t n = 0;
    for (const option *o = table; o && o->name && n < OPTION_ROWS_MAX; o++)
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
    if (arg[1] == '-') {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(arg + 2, "="), arg + 2);
        near = nearest_option(c->options, name);
    }
    char more[96] = "";
    if (near)
        snprintf(more, sizeof more, "; did you mean --%s?", near);
    return misuse(c, "unknown option ", arg, more);
}

/* Numbers are written 4096, 1e5, or 4k and 8K (k and K: times 1024). */
static bool parse_number(const char *text, double *v)
{
    char *end;
    errno = 0;
    *v = strtod(text, &end);
    if (end == text || errno == ERANGE)
        return false;
    if ((*end == 'k' || *end == 'K') && !end[1]) {
        *v *= 1024;
        end++;
    }
    return !*end && *v == *v;
}

/* The layer that has set each row; 0: none has. Without marks every call may set a row. */
static unsigned char *mark_of(const option *table, const option *o, option_marks *m)
{
    return m && o - table < OPTION_ROWS_MAX ? &m->layer[o - table] : NULL;
}

/* value: NULL for a flag that is set. A first value of a list from this layer replaces those of a
 * later layer. */
static status store_value(const option *table, const option *o, const char *value, void *opts,
                          option_marks *m, int layer, err *e)
{
    char *field = (char *)opts + o->offset;
    unsigned char *mark = mark_of(table, o, m);
    if (mark && *mark && *mark < layer)
        return OK;
    if (o->kind == OPTION_FLAG) {
        *(bool *)field = !value || !strcmp(value, "true");
        if (value && !*(bool *)field && strcmp(value, "false"))
            return err_set(e, E_ARG, "%s=%.40s: expected true or false", o->name, value);
    } else if (!value) {
        return err_set(e, E_ARG, "%s needs a value", o->name);
    } else if (o->kind == OPTION_STR || o->kind == OPTION_MAYBE) {
        *(const char **)field = value;
    } else if (o->kind == OPTION_LIST || o->kind == OPTION_FILES) {
        option_list *list = (option_list *)field;
        if (mark && *mark != layer)
            list->n = 0;
        int most = o->kind == OPTION_FILES ? OPTION_FILES_MAX : OPTION_LIST_MAX;
        if (list->n == most)
            return err_set(e, E_ARG, "%s was given too often: it takes up to %d values", o->name,
                           most);
        list->at[list->n++] = value;
    } else {
        double v;
        if (!parse_number(value, &v) || v < o->min || v > o->max ||
            (o->kind == OPTION_INT && v != (double)(int64_t)v))
            return err_set(e, E_ARG, "%s=%.40s: expected %s from %.10g to %.10g", o->name, value,
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
    const option *o = options_find(table, name);
    if (o)
        return store_value(table, o, value, opts, m, layer, e);
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
    return options_parse_marked(c, argc, argv, opts, n_operands, NULL);
}

int options_parse_marked(const command *c, int argc, char **argv, void *opts, int *n_operands,
                         option_marks *m)
{
    int n = 0;
    bool only_operands = false;
    for (int i = 0; i < argc; i++) {
        char *a = argv[i];
        if (only_operands || a[0] != '-' || !a[1]) {
            argv[n++] = a;
            continue;
        }
        if (!strcmp(a, "--")) {
            only_operands = true;
            continue;
        }
        if (!strcmp(a, "--help") || !strcmp(a, "-h")) {
            options_print_help(c, stdout);
            return 1 + options_printed();
        }
        const option *o;
        const char *value = NULL;
        if (a[1] == '-') {
            size_t len = strcspn(a + 2, "=");
            o = find_long(c->options, a + 2, len);
            if (a[2 + len] == '=')
                value = a + 3 + len;
        } else if (!(o = find_spelled(c->options, a))) {
            o = find_letter(c, a[1]);
            if (a[2])
                value = a + 2;
        }
        if (!o)
            return misuse_unknown(c, a);
        if (o->kind == OPTION_FLAG && value)
            return misuse(c, "--", o->name, " takes no value");
        if (o->kind == OPTION_MAYBE && !value)
            value = i + 1 < argc && is_number(argv[i + 1]) ? argv[++i] : "";
        if (o->kind != OPTION_FLAG && !value) {
            if (i + 1 >= argc)
                return misuse(c, "--", o->name, " needs a value");
            value = argv[++i];
        }
        bool apart = value == argv[i];
        do {
            err e = {0};
            if (store_value(c->options, o, value, opts, m, OPTION_LAYER_COMMAND_LINE, &e))
                return misuse(c, "--", e.text, "");
        } while (apart && o->kind == OPTION_FILES && i + 1 < argc && is_file(argv[i + 1]) &&
                 (value = argv[++i]));
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
    *off = text && !strcmp(text, "off");
    if (!text || *off || !strcmp(text, "auto"))
        return OK;
    return err_set(e, E_ARG, "--repack %.40s: expected auto or off", text);
}
