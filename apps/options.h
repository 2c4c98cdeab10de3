/* options.h - one table per subcommand, read by the parser, --help, the man page, completion and
 * settings of files. Those of `run` and `serve` are in options.def.
 *
 *     typedef struct { const char *model; int64_t n_ctx; bool json; } inspect_options;
 *     static const option inspect_table[] = {
 *         OPT_STR(inspect_options, model, "model", 'm', "FILE", "the GGUF file"),
 *         OPT_INT(inspect_options, n_ctx, "ctx", 'c', "N", 0, 1 << 30, "tokens of context"),
 *         OPT_FLAG(inspect_options, json, "json", 0, "print JSON"),
 *         OPT_END};
 *
 * Accepted: --name VALUE, --name=VALUE, -x VALUE, -x=VALUE, -xNUMBER, flags, "--" ends options.
 * Options and operands may be mixed. An unknown option or a value out of range gives one sentence
 * on stderr and exit status 2. Letters do not form clusters: -ngl is one word, which
 * options_foreign.c knows or which is refused. Of an option given twice the last value counts; an
 * OPT_LIST keeps every value. An OPT_MAYBE takes --name=VALUE, --name, and --name N where the next
 * word is a number.
 * After -x VALUE of an OPT_FILES, the words that follow and name existing files are values too.
 */
#ifndef APPS_OPTIONS_H
#define APPS_OPTIONS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum option_kind {
    OPTION_FLAG,
    OPTION_INT,
    OPTION_REAL,
    OPTION_STR,
    OPTION_MAYBE, /* a string that may be left out: then it is "" */
    OPTION_LIST,
    OPTION_FILES,  /* a list; words after a value that name files belong to it: --file *.c */
    OPTION_HEADING /* no option: `arg` is the title, in --help, of the rows that follow; name "" */
} option_kind;

enum {
    OPTION_LIST_MAX = 64,   /* values of one repeatable option */
    OPTION_FILES_MAX = 256, /* of one OPT_FILES: a pattern of the shell may be many */
    OPTION_ROWS_MAX = 160,  /* rows of a table */
    OPTION_LAYER_COMMAND_LINE = 1
};

/* The values of a repeatable option, in the order given. The strings are argv's. */
typedef struct option_list {
    const char *at[OPTION_FILES_MAX];
    int n;
} option_list;

typedef struct option {
    const char *name; /* long name without dashes; NULL ends the table */
    char letter;      /* or 0 */
    option_kind kind;
    const char *arg; /* "FILE"; NULL for flags */
    double min, max; /* numbers */
    size_t offset;   /* of the field: bool, int64_t, double, const char *, option_list */
    const char
        *help; /* one line, lower case, no full stop; NULL: the option is taken and not listed */
    /* When the option has an effect; NULL: always. Terms with "&" between them must all hold; in a
     * term "a|b" one of the options must be on, "a=VALUE" must have that value, "!a" must be off,
     * and "@fact" is told later by options_tell_fact. "~" in front: never more than a warning. */
    const char *needs;
    const char *words; /* what completion offers for the value, with blanks between. "@models",
                          "@presets" or "@conversations" in front: those of this machine, too.
                          NULL: by `arg` */
    const char *also;  /* what other programs call it, with dashes and blanks between; or NULL */
} option;

/* `needs` follows the help, and may be left out; so may .words = and .also = behind it. */
#define OPT_FLAG(T, field, name, letter, ...)                                                      \
    {                                                                                              \
        name, letter, OPTION_FLAG, NULL, 0, 0, offsetof(T, field), .help = __VA_ARGS__             \
    }
#define OPT_INT(T, field, name, letter, arg, min, max, ...)                                        \
    {                                                                                              \
        name, letter, OPTION_INT, arg, min, max, offsetof(T, field), .help = __VA_ARGS__           \
    }
#define OPT_REAL(T, field, name, letter, arg, min, max, ...)                                       \
    {                                                                                              \
        name, letter, OPTION_REAL, arg, min, max, offsetof(T, field), .help = __VA_ARGS__          \
    }
#define OPT_STR(T, field, name, letter, arg, ...)                                                  \
    {                                                                                              \
        name, letter, OPTION_STR, arg, 0, 0, offsetof(T, field), .help = __VA_ARGS__               \
    }
#define OPT_LIST(T, field, name, letter, arg, ...)                                                 \
    {                                                                                              \
        name, letter, OPTION_LIST, arg, 0, 0, offsetof(T, field), .help = __VA_ARGS__              \
    }
#define OPT_MAYBE(T, field, name, letter, arg, ...)                                                \
    {                                                                                              \
        name, letter, OPTION_MAYBE, arg, 0, 0, offsetof(T, field), .help = __VA_ARGS__             \
    }
#define OPT_FILES(T, field, name, letter, arg, ...)                                                \
    {                                                                                              \
        name, letter, OPTION_FILES, arg, 0, 0, offsetof(T, field), .help = __VA_ARGS__             \
    }
#define OPT_GROUP(title)                                                                           \
    {                                                                                              \
        .name = "", .kind = OPTION_HEADING, .arg = title                                           \
    }
#define OPT_END                                                                                    \
    {                                                                                              \
        .name = NULL                                                                               \
    }

/* Options of every command that computes with a model; the fields have the same names there. */
#define OPT_THREADS(T)                                                                             \
    OPT_INT(T, threads, "threads", 't', "N", 0, 4096, "threads (default: the physical cores)",     \
            .also = "--num-thread")
#define OPT_CHUNK(T)                                                                               \
    OPT_INT(T, chunk, "chunk", 0, "N", 0, 1 << 24, "prompt tokens per pass (default: by device)",  \
            .also = "-ub --ubatch-size --num-batch")
#define OPT_EXACT(T) OPT_FLAG(T, exact, "exact", 0, "f32 activations in matrix products")
#define OPT_REFERENCE(T)                                                                           \
    OPT_FLAG(T, reference, "reference", 0, "the plain reference kernels (slow)")
#define OPT_REPACK(T)                                                                              \
    OPT_STR(T, repack, "repack", 0, "WHEN",                                                        \
            "weights rearranged at load for speed: auto (default) or off", .words = "auto off")
#define OPT_ISA(T)                                                                                 \
    OPT_STR(T, isa, "isa", 0, "NAME",                                                              \
            "CPU kernels: portable, avx2, avx512, avx512bf16, amx or neon",                        \
            .words = "portable avx2 avx512 avx512bf16 amx neon")
#define OPT_WRAP(T)                                                                                \
    OPT_STR(T, wrap, "wrap", 0, "LIST", "trace, time or check every op, on stderr",                \
            .words = "trace time check")
#define OPT_NO_MMAP(T) OPT_FLAG(T, no_mmap, "no-mmap", 0, "read the file instead of mapping it")
#define OPT_OVERCOMMIT(T)                                                                          \
    OPT_FLAG(T, overcommit, "overcommit", 0, "continue even if the plan exceeds the memory")

typedef struct command {
    const char *name;
    const char *operands; /* as printed: "FILE" or "[PROMPT...]" */
    const char *summary;  /* one line */
    const char *about;    /* paragraphs for --help and the man page; may be NULL */
    const option *options;
    const char *first; /* options that --help shows first, by long name, with blanks between. NULL:
                          the table has no headings */
    int n_operands_min, n_operands_max; /* max < 0: any */
    /* Parses the options with options_parse and runs. Returns the exit status: 0 done, 1 failed,
     * 2 wrong use. */
    int (*run)(const struct command *c, int argc, char **argv);
} command;

/* Fills opts, in which the caller has set the defaults. Moves the operands to the front of argv and
 * counts them in *n_operands. Returns 0, or the exit status + 1: 1 after
 * --help, 2 where that could not be written, 3 on wrong use. */
int options_parse(const command *c, int argc, char **argv, void *opts, int *n_operands);

/* Which layer has set each row of a table: 0 none, 1 the command line, higher numbers what yields
 * to it, such as the environment or a file of presets. Starts zeroed. */
typedef struct option_marks {
    unsigned char layer[OPTION_ROWS_MAX];
} option_marks;
/* options_parse, which also marks the rows that the command line has set, and leaves options_check
 * to the caller. */
int options_parse_marked(const command *c, int argc, char **argv, void *opts, int *n_operands,
                         option_marks *m);
/* Sets one option by a name that options_find_any knows; a sentence repeats that name. value: as on
 * the command line; of a flag "true", "false" or NULL, which is true. Strings are not copied: they
 * must outlive opts. Where a lower layer has set the option, nothing happens. Within one layer the
 * last value counts, and a list keeps every value. m may be NULL: then the value always counts.
 * E_ARG with a sentence for an unknown name ("did you mean") or a bad value; opts is then
 * unchanged. */
status options_set(const option *table, const char *name, const char *value, void *opts,
                   option_marks *m, int layer, err *e);
/* Looks at every option that was set, and at what it needs. One without effect ends the command if
 * the command line set it: the result is 3, as of options_parse. Otherwise there is a warning.
 * origin: where each row was set, or NULL. */
int options_check(const command *c, const void *opts, const option_marks *m,
                  const char *const *origin);
/* A fact about the model or the machine, which the command knows once the model is open. Warns of
 * each option of the last options_check that needs it. because: "the model runs on the CPU". */
void options_tell_fact(const char *fact, bool holds, const char *because);
/* Numbers are written 4096, 1e5, or 4k and 8K (k and K: times 1024). *v: only on success. */
bool options_number(const char *text, double *v);
/* The row with this long name, in which '-' and '_' are equal, or NULL. Its number is the
 * difference to table. */
const option *options_find(const option *table, const char *name);
/* The same, also for a name that another program or an API has for the option (options_foreign.c):
 * "temperature", "max_tokens". */
const option *options_find_any(const option *table, const char *name);

/* A value of such an option that needs a translation. */
typedef struct foreign_value {
    const char *value; /* "*": every other one; NULL ends the list */
    const char *name;  /* carat's option; NULL: carat does so in any case; "": refused */
    const char *to;    /* the value of that option */
} foreign_value;

/* An option of another program, as its users type it (options_foreign.c). */
typedef struct foreign_option {
    const char *words; /* its spellings, with blanks between them */
    const char *name;  /* carat's option; NULL: none */
    const char *value; /* of that option; NULL: the word after the option */
    const foreign_value *values;
    const char *says; /* a hint beside a refusal; without `name` the reason of it */
    const char *note; /* said where the option is taken, because its meaning differs a little */
    bool takes;       /* a value follows, also where `name` is NULL */
    bool met;         /* carat does so in any case */
    bool numbers;     /* the letter means something else here: a number as its value is refused */
} foreign_option;

/* Also where a row's `also` is the word. False: there is none. */
bool foreign_find(const char *word, foreign_option *out);
const foreign_value *foreign_find_value(const foreign_option *f, const char *value); /* or NULL */

/* Reads the value of --repack (NULL: not given) into *off, for carat_model_options.no_repack. */
status options_repack(const char *text, bool *off, err *e);
#define OPTIONS_HELP "This list, or the help of a command"
#define OPTIONS_VERSION "The version; with --licences those of carat and what is part of it"
/* Lines end at the terminal's width; elsewhere after at most 100 characters. */
void options_print_help(const command *c, FILE *out);
void options_print_commands(const command *const *list, FILE *out); /* what `carat help` says */
/* The exit status after printing: 1, with a message, if stdout took less than everything. */
int options_printed(void);
void options_print_man(const command *const *list, FILE *out); /* the whole carat(1) page, roff */
void options_print_markdown(const command *const *list, FILE *out); /* docs/cli.md */

#endif
