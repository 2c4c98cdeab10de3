/* options_print.c - the tables of options as --help, as the man page and as docs/cli.md. */
#include "apps/options.h"

#include "apps/term.h"
#include "apps/term_wrap.h"
#include "carat.h"

#include <string.h>

static const char *before_value(const option *o)
{
    return !o->arg ? "" : o->kind == OPTION_MAYBE ? "[=" : " ";
}

static void print_left(const option *o, char *buf, size_t cap)
{
    char letter[8] = "    ";
    if (o->letter)
        snprintf(letter, sizeof letter, "-%c, ", o->letter);
    snprintf(buf, cap, "  %s--%s%s%s%s", letter, o->name, before_value(o), o->arg ? o->arg : "",
             o->kind == OPTION_MAYBE ? "]" : "");
}

/* Where lines of help end. */
static int width_of(FILE *out)
{
    int columns = term_columns(out);
    return columns ? columns : 100;
}

/* Paragraphs; an indented one keeps its lines. */
static void put_paragraphs(FILE *out, const char *s, int width)
{
    while (*s) {
        const char *end = strstr(s, "\n\n");
        size_t n = end ? (size_t)(end - s) : strlen(s);
        fputc('\n', out);
        if (*s == ' ')
            fprintf(out, "%.*s\n", (int)n, s);
        else
            wrap_words(out, s, n, 0, 0, width);
        s += n + (end ? 2 : 0);
    }
}

/* ---- Groups of options ---- */

typedef struct option_form {
    void (*heading)(const char *title, bool first, FILE *out); /* NULL: the list has no title */
    void (*row)(const option *o, FILE *out);
} option_form;

/* Is this one of the command's first options? */
static bool is_first(const command *c, const option *o)
{
    size_t n = strlen(o->name);
    for (const char *at = c->first ? c->first : ""; *at; at += strspn(at, " ")) {
        size_t len = strcspn(at, " ");
        if (len == n && !memcmp(at, o->name, n))
            return true;
        at += len;
    }
    return false;
}

static void put_first(const command *c, const option_form *f, FILE *out)
{
    f->heading("Used most", true, out);
    for (const char *at = c->first; *at; at += strspn(at, " ")) {
        char name[64];
        size_t n = strcspn(at, " ");
        snprintf(name, sizeof name, "%.*s", (int)n, at);
        f->row(options_find(c->options, name), out);
        at += n;
    }
}

static void put_options(const command *c, const option_form *f, FILE *out)
{
    const char *title = NULL; /* of a group of which no row is printed yet */
    bool waits = true;
    if (c->first)
        put_first(c, f, out);
    for (const option *o = c->options; o && o->name; o++) {
        if (o->kind == OPTION_HEADING) {
            title = o->arg;
            waits = true;
        } else if (o->help && !is_first(c, o)) {
            if (waits)
                f->heading(title, !c->first, out);
            waits = false;
            f->row(o, out);
        }
    }
}

static void help_heading(const char *title, bool first, FILE *out)
{
    (void)first;
    fprintf(out, "\n%s:\n", title ? title : "Options");
}

static void help_row(const option *o, FILE *out)
{
    char left[80];
    print_left(o, left, sizeof left);
    wrap_row(out, left, o->help, 30, width_of(out));
}

static const option_form help_form = {help_heading, help_row};

void options_print_help(const command *c, FILE *out)
{
    int width = width_of(out);
    fprintf(out, "Usage: carat %s%s%s%s\n\n%s.\n", c->name,
            c->options && c->options->name ? " [OPTIONS]" : "", c->operands[0] ? " " : "",
            c->operands, c->summary);
    if (c->about)
        put_paragraphs(out, c->about, width);
    put_options(c, &help_form, out);
}

static const struct {
    const char *name, *help;
} environment[] = {
    {"CARAT_ISA",
     "instruction set of the CPU kernels where no --isa names one: amx, avx512bf16, avx512, "
     "avx2, neon or portable"},
    {"CARAT_NAME", "an option of run and serve: CARAT_KV_TYPE=q8_0 is --kv-type q8_0"},
    {"CARAT_NO_HISTORY", "if set, run keeps no conversations and no typed lines"},
    {"HF_TOKEN", "a token for gated and private repositories: carat help pull"}};
enum { ENVIRONMENT = sizeof environment / sizeof *environment };

void options_print_commands(const command *const *list, FILE *out)
{
    char left[80];
    int width = width_of(out), indent = 0;
    for (const command *const *c = list; *c; c++) {
        int n = (int)strlen((*c)->name) + 4;
        indent = n > indent ? n : indent;
    }
    fputs("Usage: carat COMMAND [OPTIONS] [OPERANDS]\n\nCommands:\n", out);
    for (; *list; list++) {
        snprintf(left, sizeof left, "  %s", (*list)->name);
        wrap_row(out, left, (*list)->summary, indent, width);
    }
    wrap_row(out, "  help", OPTIONS_HELP, indent, width);
    wrap_row(out, "  version", OPTIONS_VERSION, indent, width);
    fputs("\nEnvironment:\n", out);
    for (int i = 0; i < ENVIRONMENT; i++) {
        snprintf(left, sizeof left, "  %s", environment[i].name);
        wrap_row(out, left, environment[i].help, indent, width);
    }
    fputs("\n'carat help COMMAND' lists the options of a command.\n", out);
}

int options_printed(void)
{
    if (!fflush(stdout) && !ferror(stdout))
        return 0;
    fputs("carat: cannot write to standard output\n", stderr);
    return 1;
}

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

static void man_heading(const char *title, bool first, FILE *out)
{
    (void)first;
    if (title)
        fprintf(out, ".PP\n.B %s\n", title);
}

static void man_row(const option *o, FILE *out)
{
    fputs(".TP\n", out);
    if (o->letter)
        fprintf(out, "\\fB\\-%c\\fR, ", o->letter);
    fputs("\\fB\\-\\-", out);
    roff(out, o->name);
    fputs("\\fR", out);
    if (o->arg)
        fprintf(out, "%s\\fI%s\\fR%s", before_value(o), o->arg, o->kind == OPTION_MAYBE ? "]" : "");
    fputs("\n", out);
    roff(out, o->help);
    fputs("\n", out);
}

static const option_form man_form = {man_heading, man_row};

void options_print_man(const command *const *list, FILE *out)
{
    fprintf(out, ".TH CARAT 1 \"\" \"carat %s\" \"User Commands\"\n", carat_version());
    fputs(".SH NAME\ncarat \\- run language models\n.SH SYNOPSIS\n.B carat\n"
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
        put_options(c, &man_form, out);
    }
    fputs(".SH ENVIRONMENT\n", out);
    for (int i = 0; i < ENVIRONMENT; i++) {
        fprintf(out, ".TP\n.B %s\n", environment[i].name);
        roff(out, environment[i].help);
        fputs("\n", out);
    }
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
    fprintf(out, "--%s%s%s%s` | ", o->name, before_value(o), o->arg ? o->arg : "",
            o->kind == OPTION_MAYBE ? "]" : "");
    markdown(out, o->help, strlen(o->help));
    fputs(" |\n", out);
}

static void markdown_heading(const char *title, bool first, FILE *out)
{
    if (title)
        fprintf(out, "%s%s:\n\n", first ? "" : "\n", title);
    fputs("| option | |\n| --- | --- |\n", out);
}

/* Every name, range and usual value of a number of sampling. */
static void markdown_sampling(FILE *out)
{
    int32_t n;
    const carat_sampling_setting *s = carat_sampling_settings(&n);
    fputs("## Numbers of sampling\n\n"
          "Fields of requests in every API (ollama's in `options`), parameters of a Modelfile, "
          "keys of\n"
          "`/props`. `carat run` and `carat serve` have an option for each, `/set` and files of "
          "settings\n"
          "take both names. A GGUF file says its own under `general.sampling.`. The last column is "
          "the\n"
          "value where neither the file nor the model's family says one.\n\n"
          "| field | option | key of GGUF | from | to | | usual |\n"
          "| --- | --- | --- | --- | --- | --- | --- |\n",
          out);
    for (; n; n--, s++) {
        fprintf(out, "| `%s`%s%s%s | `--%s` | `%s` | %.10g | %.10g | ", s->name,
                s->also ? ", `" : "", s->also ? s->also : "", s->also ? "`" : "", s->flag, s->key,
                s->min, s->max);
        markdown(out, s->help, strlen(s->help));
        fprintf(out, " | %g |\n", s->usual);
    }
    fputc('\n', out);
}

static const option_form markdown_form = {markdown_heading, markdown_option};

void options_print_markdown(const command *const *list, FILE *out)
{
    fputs(
        "# The commands of carat\n\n"
        "`make cli` writes this page from the tables that the program parses its command\n"
        "line with: it is `carat --markdown`. `carat help COMMAND` and `carat(1)` say the same.\n\n"
        "Options and operands may be mixed. `--name VALUE`, `--name=VALUE`, `-x VALUE`,\n"
        "`-x=VALUE` and `-xNUMBER` are accepted, `--` ends the options. Numbers may end in `k`,\n"
        "which is 1024. Of an option given twice the last counts, unless it may be repeated.\n"
        "Options of llama.cpp with one dash (`-ngl`, `-sys`, `-fa`, `-np`, ...) are taken where\n"
        "carat has the same, and explained otherwise. An option without effect beside the others\n"
        "is refused; where a file of settings or the environment has it, there is a warning.\n\n",
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
        put_options(c, &markdown_form, out);
        fputc('\n', out);
    }
    markdown_sampling(out);
    fputs("## Environment\n\n", out);
    for (int i = 0; i < ENVIRONMENT; i++)
        fprintf(out, "- `%s`: %s\n", environment[i].name, environment[i].help);
    fputs("\n## Exit status\n\n0 on success, 1 on failure, 2 on wrong use, 130 when interrupted.\n",
          out);
}
