/* options.c - the parser of command lines, --help, the man page and docs/cli.md, all from one
 * table.
 *
 * A row of the table holds the offset of the option's field in the command's struct. So no command
 * has a parser of its own, and every option is documented. An error names the option and the
 * expected values. It appears before any file is opened.
 */
#include "apps/options.h"

#include "base/show.h"
#include "carat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int misuse(const command *c, const char *what, const char *name, const char *more)
{
    fprintf(stderr, "carat %s: %s%s%s\n", c->name, what, SHOWN(name), SHOWN(more));
    fprintf(stderr, "Try 'carat %s --help'.\n", c->name);
    return 3;
}

static const option *find_long(const command *c, const char *name, size_t n)
{
    for (const option *o = c->options; o && o->name; o++)
        if (strlen(o->name) == n && !strncmp(o->name, name, n))
            return o;
    return NULL;
}

static const option *find_letter(const command *c, char letter)
{
    for (const option *o = c->options; o && o->name; o++)
        if (o->letter == letter)
            return o;
    return NULL;
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

static int store_value(const command *c, const option *o, const char *value, void *opts)
{
    char *field = (char *)opts + o->offset;
    if (o->kind == OPTION_FLAG) {
        *(bool *)field = true;
        return 0;
    }
    if (o->kind == OPTION_STR) {
        *(const char **)field = value;
        return 0;
    }
    if (o->kind == OPTION_LIST) {
        option_list *list = (option_list *)field;
        if (list->n == OPTION_LIST_MAX)
            return misuse(c, "--", o->name, " was given too often");
        list->at[list->n++] = value;
        return 0;
    }
    double v;
    char range[128];
    if (!parse_number(value, &v) || v < o->min || v > o->max ||
        (o->kind == OPTION_INT && v != (double)(int64_t)v)) {
        snprintf(range, sizeof range, "=%.40s: expected %s from %.10g to %.10g", value,
                 o->kind == OPTION_INT ? "a whole number" : "a number", o->min, o->max);
        return misuse(c, "--", o->name, range);
    }
    if (o->kind == OPTION_INT)
        *(int64_t *)field = (int64_t)v;
    else
        *(double *)field = v;
    return 0;
}

int options_parse(const command *c, int argc, char **argv, void *opts, int *n_operands)
{
    int n = 0, bad;
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
            return 1;
        }
        const option *o;
        const char *value = NULL;
        if (a[1] == '-') {
            size_t len = strcspn(a + 2, "=");
            o = find_long(c, a + 2, len);
            if (a[2 + len] == '=')
                value = a + 3 + len;
        } else {
            o = find_letter(c, a[1]);
            if (a[2])
                value = a + 2;
        }
        if (!o)
            return misuse(c, "unknown option ", a, "");
        if (o->kind == OPTION_FLAG && value)
            return misuse(c, "--", o->name, " takes no value");
        if (o->kind != OPTION_FLAG && !value) {
            if (i + 1 >= argc)
                return misuse(c, "--", o->name, " needs a value");
            value = argv[++i];
        }
        if ((bad = store_value(c, o, value, opts)))
            return bad;
    }
    if (n < c->n_operands_min)
        return misuse(c, "missing operand: expected ", c->operands, "");
    if (c->n_operands_max >= 0 && n > c->n_operands_max)
        return misuse(c, "unexpected operand ", argv[c->n_operands_max], "");
    *n_operands = n;
    return 0;
}

static void print_left(const option *o, char *buf, size_t cap)
{
    char letter[8] = "    ";
    if (o->letter)
        snprintf(letter, sizeof letter, "-%c, ", o->letter);
    snprintf(buf, cap, "  %s--%s%s%s", letter, o->name, o->arg ? " " : "", o->arg ? o->arg : "");
}

status options_repack(const char *text, bool *off, err *e)
{
    *off = text && !strcmp(text, "off");
    if (!text || *off || !strcmp(text, "auto"))
        return OK;
    return err_set(e, E_ARG, "--repack %.40s: expected auto or off", text);
}

void options_print_help(const command *c, FILE *out)
{
    fprintf(out, "Usage: carat %s%s%s%s\n\n%s.\n", c->name,
            c->options && c->options->name ? " [OPTIONS]" : "", c->operands[0] ? " " : "",
            c->operands, c->summary);
    if (c->about)
        fprintf(out, "\n%s\n", c->about);
    if (c->options && c->options->name)
        fprintf(out, "\nOptions:\n");
    for (const option *o = c->options; o && o->name; o++) {
        char left[80];
        print_left(o, left, sizeof left);
        fprintf(out, "%-30s%s%s\n", left,
                strlen(left) >= 30 ? "\n                              " : "", o->help);
    }
}

static const char environment_isa[] =
    "the instruction set of the CPU kernels (avx512bf16, avx512, avx2, neon, portable) where no\n"
    "option names one; a name that this processor lacks is an error\n";

/* In roff a backslash, and a dot or quote at the start of a line, are commands. */
static void roff(FILE *out, const char *s)
{
    bool start = true;
    for (; *s; s++) {
        if (start && (*s == '.' || *s == '\''))
            fputs("\\&", out);
        if (*s == '\\')
            fputs("\\e", out);
        else if (*s == '-')
            fputs("\\-", out);
        else
            fputc(*s, out);
        start = *s == '\n';
    }
}

static void roff_paragraphs(FILE *out, const char *s)
{
    const char *cut;
    for (; (cut = strstr(s, "\n\n")); s = cut + 2) {
        char para[4096];
        snprintf(para, sizeof para, "%.*s", (int)(cut - s), s);
        roff(out, para);
        fputs("\n.PP\n", out);
    }
    roff(out, s);
    fputc('\n', out);
}

void options_print_man(const command *const *list, FILE *out)
{
    fprintf(out, ".TH CARAT 1 \"\" \"carat %s\" \"User Commands\"\n", carat_version());
    fputs(".SH NAME\ncarat \\- run Gemma 4 models\n.SH SYNOPSIS\n.B carat\n"
          ".I COMMAND\n[\\fIOPTIONS\\fR] [\\fIOPERANDS\\fR]\n.SH COMMANDS\n",
          out);
    for (; *list; list++) {
        const command *c = *list;
        fprintf(out, ".SS carat %s ", c->name);
        roff(out, c->operands);
        fputs("\n", out);
        roff(out, c->summary);
        fputs(".\n", out);
        if (c->about) {
            fputs(".PP\n", out);
            roff_paragraphs(out, c->about);
        }
        for (const option *o = c->options; o && o->name; o++) {
            fputs(".TP\n", out);
            if (o->letter)
                fprintf(out, "\\fB\\-%c\\fR, ", o->letter);
            fputs("\\fB\\-\\-", out);
            roff(out, o->name);
            fputs("\\fR", out);
            if (o->arg)
                fprintf(out, " \\fI%s\\fR", o->arg);
            fputs("\n", out);
            roff(out, o->help);
            fputs("\n", out);
        }
    }
    fputs(".SH ENVIRONMENT\n.TP\n.B CARAT_ISA\n", out);
    fputs(environment_isa, out);
    fputs(".SH EXIT STATUS\n0 on success, 1 on failure, 2 on wrong use, 130 when interrupted.\n",
          out);
}

/* What Markdown would take for markup gets a backslash. */
static void markdown(FILE *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strchr("\\`*_<>[]|#", s[i]))
            fputc('\\', out);
        fputc(s[i], out);
    }
}

/* Paragraphs; an indented one is printed as code. */
static void markdown_paragraphs(FILE *out, const char *s)
{
    while (*s) {
        const char *end = strstr(s, "\n\n");
        size_t n = end ? (size_t)(end - s) : strlen(s);
        if (*s == ' ')
            fprintf(out, "```\n%.*s\n```\n\n", (int)n, s);
        else {
            markdown(out, s, n);
            fputs("\n\n", out);
        }
        s += n + (end ? 2 : 0);
    }
}

static void markdown_option(const option *o, FILE *out)
{
    fputs("| `", out);
    if (o->letter)
        fprintf(out, "-%c`, `", o->letter);
    fprintf(out, "--%s%s%s` | ", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
    markdown(out, o->help, strlen(o->help));
    fputs(" |\n", out);
}

void options_print_markdown(const command *const *list, FILE *out)
{
    fputs(
        "# The commands of carat\n\n"
        "`make cli` writes this page from the tables that the program parses its command\n"
        "line with: it is `carat --markdown`. `carat help COMMAND` and `carat(1)` say the same.\n\n"
        "Options and operands may be mixed. `--name VALUE`, `--name=VALUE`, `-x VALUE` and\n"
        "`-xVALUE` are accepted, `--` ends the options. Numbers may end in `k`, which is 1024.\n"
        "Of an option given twice the last counts, unless it may be repeated.\n\n",
        out);
    for (; *list; list++) {
        const command *c = *list;
        fprintf(out, "## carat %s\n\n`carat %s%s%s%s`\n\n", c->name, c->name,
                c->options && c->options->name ? " [OPTIONS]" : "", c->operands[0] ? " " : "",
                c->operands);
        markdown(out, c->summary, strlen(c->summary));
        fputs(".\n\n", out);
        if (c->about)
            markdown_paragraphs(out, c->about);
        if (!c->options || !c->options->name)
            continue;
        fputs("| option | |\n| --- | --- |\n", out);
        for (const option *o = c->options; o->name; o++)
            markdown_option(o, out);
        fputc('\n', out);
    }
    fputs("## Environment\n\n`CARAT_ISA`: ", out);
    fputs(environment_isa, out);
    fputs("\n## Exit status\n\n0 on success, 1 on failure, 2 on wrong use, 130 when interrupted.\n",
          out);
}
