/* options_needs.c - options that have no effect in their combination, by the `needs` of their rows.
 *
 * The command line is refused, because its author is there. Settings of a file, a preset or the
 * environment are made for several commands, so they lead to a warning.
 */
#include "apps/options.h"

#include "base/show.h"

#include <string.h>

enum { TERM_MAX = 120, TEXT_MAX = 400 };

/* The last options that were checked, for facts that are known later. */
static struct {
    const command *c;
    option_marks marks;
} checked;

static const void *field_of(const option *o, const void *opts)
{
    return (const char *)opts + o->offset;
}

static bool is_off(const char *text)
{
    return !text || !strcmp(text, "off") || !strcmp(text, "none");
}

/* Whether the option asks for something. marked: the user gave it. A number that the user gave asks
 * unless it is 0. A number that was not given is its default: defaults of 0 and below ask for
 * nothing. */
static bool is_on(const option *o, const void *opts, bool marked)
{
    const void *field = field_of(o, opts);
    switch (o->kind) {
    case OPTION_FLAG:
        return *(const bool *)field;
    case OPTION_INT:
        return marked ? *(const int64_t *)field != 0 : *(const int64_t *)field > 0;
    case OPTION_REAL:
        return marked ? *(const double *)field != 0 : *(const double *)field > 0;
    case OPTION_STR:
    case OPTION_MAYBE:
        return !is_off(*(const char *const *)field);
    default:
        return ((const option_list *)field)->n > 0;
    }
}

/* "name" or "name=VALUE" of one alternative. */
static bool holds(const command *c, const void *opts, const option_marks *m, char *what)
{
    char *equal = strchr(what, '=');
    if (equal)
        *equal = 0;
    const option *o = options_find(c->options, what);
    bool on = o && is_on(o, opts, m->layer[o - c->options]);
    if (on && equal)
        on = !strcmp(*(const char *const *)field_of(o, opts), equal + 1);
    if (equal)
        *equal = '=';
    return on;
}

/* Appends "--kv-policy drafter" for "kv-policy=drafter". */
static void put_option(char text[TEXT_MAX], const char *before, const char *what)
{
    size_t n = strlen(text);
    snprintf(text + n, TEXT_MAX - n, "%s--%s", before, what);
    for (char *equal = strchr(text + n, '='); equal; equal = NULL)
        *equal = ' ';
}

/* Is this term fulfilled? Otherwise text says what is missing: "without --a or --b". */
static bool term_holds(const command *c, const void *opts, const option_marks *m, const char *term,
                       size_t n, char text[TEXT_MAX])
{
    char copy[TERM_MAX];
    snprintf(copy, sizeof copy, "%.*s", (int)n, term);
    text[0] = 0;
    if (*copy == '!') {
        put_option(text, "with ", copy + 1);
        return !holds(c, opts, m, copy + 1);
    }
    for (char *save, *w = strtok_r(copy, "|", &save); w; w = strtok_r(NULL, "|", &save)) {
        if (holds(c, opts, m, w))
            return true;
        put_option(text, *text ? " or " : "without ", w);
    }
    return false;
}

/* The first term that is not fulfilled, in words; false: all are. Facts count as fulfilled. */
static bool lacks(const command *c, const option *o, const void *opts, const option_marks *m,
                  char text[TEXT_MAX])
{
    for (const char *at = o->needs ? o->needs + (*o->needs == '~') : NULL; at && *at;) {
        size_t n = strcspn(at, "&");
        if (*at != '@' && !term_holds(c, opts, m, at, n, text))
            return true;
        at += n;
        at += *at == '&';
    }
    return false;
}

int options_check(const command *c, const void *opts, const option_marks *m,
                  const char *const *origin)
{
    char text[TEXT_MAX];
    checked.c = c;
    checked.marks = *m;
    for (const option *o = c->options; o && o->name; o++) {
        unsigned char layer = m->layer[o - c->options];
        if (!is_on(o, opts, layer))
            checked.marks.layer[o - c->options] = 0;
        if (!layer || !o->needs || !is_on(o, opts, layer) || !lacks(c, o, opts, m, text))
            continue;
        const char *where = origin ? origin[o - c->options] : NULL;
        fprintf(stderr, "carat %s: --%s%s%s has no effect %s\n", c->name, o->name,
                where ? ", set by " : "", where ? SHOWN(where) : "", text);
        if (layer != OPTION_LAYER_COMMAND_LINE || *o->needs == '~')
            continue;
        fprintf(stderr, "Try 'carat %s --help'.\n", c->name);
        return 3;
    }
    return 0;
}

static bool needs_fact(const char *needs, const char *fact)
{
    size_t n = strlen(fact);
    for (const char *at = needs; at && (at = strchr(at, '@')); at++)
        if (!strncmp(at + 1, fact, n) && (!at[1 + n] || at[1 + n] == '&'))
            return true;
    return false;
}

void options_tell_fact(const char *fact, bool holds_here, const char *because)
{
    for (const option *o = checked.c ? checked.c->options : NULL; o && o->name && !holds_here; o++)
        if (checked.marks.layer[o - checked.c->options] && needs_fact(o->needs, fact))
            fprintf(stderr, "carat %s: --%s has no effect: %s\n", checked.c->name, o->name,
                    because);
}
