/* complete.c - see complete.h.
 *
 * Kinds follow from the tables of options: a row's `words`, or what its value is called there
 * (FILE, DIR).
 */
#include "apps/complete.h"

#include "apps/commands.h"
#include "apps/config.h"
#include "apps/hub/alias.h"
#include "apps/hub/hub.h"
#include "apps/hub/made.h"
#include "apps/conversations.h"
#include "base/show.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { TALKS_SHOWN = 50 };

/* The names that a row's words begin with. */
static const struct {
    const char *word;
    complete_kind kind;
} names_of[] = {
    {"@models", COMPLETE_MODEL}, {"@presets", COMPLETE_PRESET}, {"@conversations", COMPLETE_TALK}};

complete_what complete_option(const option *o)
{
    const char *words = o->words;
    if (!o->arg)
        return (complete_what){COMPLETE_NONE, ""};
    if (!strcmp(o->name, "model"))
        words = "@models";
    for (size_t i = 0; words && i < sizeof names_of / sizeof *names_of; i++) {
        size_t n = strlen(names_of[i].word);
        if (!strncmp(words, names_of[i].word, n))
            return (complete_what){names_of[i].kind, words + n + (words[n] == ' ')};
    }
    if (words)
        return (complete_what){COMPLETE_WORDS, words};
    bool file = !strcmp(o->arg, "FILE") || !strcmp(o->arg, "PROGRAM");
    return (complete_what){file                     ? COMPLETE_FILE
                           : !strcmp(o->arg, "DIR") ? COMPLETE_DIR
                                                    : COMPLETE_NONE,
                           ""};
}

/* Reads the summary of operands, as "IN.gguf OUT.gguf TYPE": its word number `index`. */
complete_what complete_operand(const command *c, int index, const char *before)
{
    const char *at = c->operands;
    if (!strcmp(c->name, "history")) {
        if (index == 0)
            return (complete_what){COMPLETE_TALK, "list show search rm"};
        bool names = before && (!strcmp(before, "show") || !strcmp(before, "rm"));
        return (complete_what){names ? COMPLETE_TALK : COMPLETE_NONE, ""};
    }
    if (!strcmp(c->name, "completion"))
        return (complete_what){index ? COMPLETE_NONE : COMPLETE_WORDS, "bash zsh fish"};
    if (!strcmp(c->name, "run") || !strcmp(c->name, "serve")) /* the first word may be a model */
        return (complete_what){index ? COMPLETE_NONE : COMPLETE_MODEL, ""};
    if (!strcmp(c->name, "connect"))
        return (complete_what){index ? COMPLETE_NONE : COMPLETE_WORDS,
                               "claude codex opencode continue zed aider"};
    if (!strcmp(c->name, "fit"))
        return (complete_what){index ? COMPLETE_NONE : COMPLETE_HUB, ""};
    if (!strcmp(c->name, "pull"))
        return (complete_what){COMPLETE_SHORT, ""};
    for (; *at; at += strspn(at, " ")) {
        size_t n = strcspn(at, " ");
        bool many = n > 3 && !strncmp(at + n - 3, "...", 3);
        if (index == 0 || many) {
            if (!strncmp(at, "NAME", 4))
                return (complete_what){COMPLETE_MODEL, ""};
            if (!strncmp(at, "DIR", 3))
                return (complete_what){COMPLETE_DIR, ""};
            bool file = !strncmp(at, "FILE", 4) || (n > 5 && !strncmp(at + n - 5, ".gguf", 5));
            return (complete_what){file ? COMPLETE_FILE : COMPLETE_NONE, ""};
        }
        at += n;
        index--;
    }
    return (complete_what){COMPLETE_NONE, ""};
}

/* ---- __complete -------------------------------------------------------------------------- */

/* Prints a value that begins with `typed`. What a shell would read as a further line is left out.
 */
static void offer(const char *typed, const char *value, const char *about)
{
    if (strncmp(value, typed, strlen(typed)) || strpbrk(value, "\n\r\t"))
        return;
    printf("%s\t%s\n", SHOWN(value), SHOWN(about));
}

static void offer_words(const char *typed, const char *words)
{
    for (const char *at = words; *at; at += strspn(at, " ")) {
        char word[64];
        size_t n = strcspn(at, " ");
        snprintf(word, sizeof word, "%.*s", (int)n, at);
        offer(typed, word, "");
        at += n;
    }
}

static void offer_models(const char *typed)
{
    model_list l = {0};
    if (!model_list_read(&l, NULL))
        for (size_t i = 0; i < l.n; i++) {
            char size[32];
            snprintf(size, sizeof size, "%.1f GB", (double)l.at[i].n_bytes * 1e-9);
            offer(typed, l.at[i].name, size);
        }
    model_list_free(&l);
    arena mem = {0};
    const made_model *made;
    size_t n;
    if (!made_list(&mem, &made, &n, NULL))
        for (size_t i = 0; i < n; i++)
            offer(typed, made[i].name, "made of another");
    arena_free(&mem);
}

static void offer_short_names(const char *typed)
{
    char name[ALIAS_MAX];
    const char *repo;
    for (size_t i = 0; alias_row(i, name, &repo); i++)
        offer(typed, name, repo);
}

static void offer_conversations(const char *typed)
{
    talk_list l;
    if (conversations_list(&l, NULL))
        return;
    for (size_t i = 0; i < l.n && i < TALKS_SHOWN; i++) {
        kept_talk k;
        char number[32];
        if (conversations_read(l.at[i].number, &k, NULL, NULL))
            continue;
        snprintf(number, sizeof number, "%" PRId64, l.at[i].number);
        offer(typed, number, k.title ? k.title : "");
        kept_free(&k);
    }
    conversations_free(&l);
}

/* The presets of the file that --config or the environment names, else of the default one. */
static void offer_presets(const char *typed, int n_words, char **words)
{
    const char *file = getenv("CARAT_CONFIG"), *name, *about;
    config f = {0};
    for (int i = 0; i < n_words; i++)
        if (!strcmp(words[i], "--config") && i + 1 < n_words)
            file = words[i + 1];
        else if (!strncmp(words[i], "--config=", 9))
            file = words[i] + 9;
    if (!config_read(&f, file && *file ? file : NULL, NULL))
        for (int i = 0; (name = config_preset(&f, i, &about)); i++)
            offer(typed, name, about);
    config_free(&f);
}

static void offer_what(complete_what what, const char *typed, int n_words, char **words)
{
    offer_words(typed, what.words);
    if (what.kind == COMPLETE_SHORT || what.kind == COMPLETE_HUB)
        offer_short_names(typed);
    if (what.kind == COMPLETE_MODEL || what.kind == COMPLETE_HUB)
        offer_models(typed);
    else if (what.kind == COMPLETE_TALK)
        offer_conversations(typed);
    else if (what.kind == COMPLETE_PRESET)
        offer_presets(typed, n_words, words);
}

static const option *option_of(const command *c, const char *word, size_t n)
{
    for (const option *o = c->options; o && o->name; o++)
        if (o->kind != OPTION_HEADING &&
            (word[1] == '-' ? strlen(o->name) == n - 2 && !strncmp(o->name, word + 2, n - 2)
                            : o->letter && n == 2 && o->letter == word[1]))
            return o;
    return NULL;
}

static void offer_options(const command *c, const char *typed)
{
    for (const option *o = c->options; o && o->name; o++) {
        char text[64];
        snprintf(text, sizeof text, "--%s", o->name);
        if (o->help)
            offer(typed, text, o->help);
    }
    offer(typed, "--help", "how to use it");
}

int complete_print(int n_words, char **words)
{
    const char *typed = n_words ? words[n_words - 1] : "", *first = NULL;
    const command *c = NULL;
    const option *waits = NULL; /* the option whose value is the next word */
    int n_operands = 0;
    if (n_words <= 1) {
        for (const command *const *at = commands; *at; at++)
            offer(typed, (*at)->name, (*at)->summary);
        offer(typed, "help", "this list, or the help of a command");
        offer(typed, "version", "the version");
        return 0;
    }
    bool help = !strcmp(words[0], "help");
    for (const command *const *at = commands; *at; at++)
        if (help && n_words == 2)
            offer(typed, (*at)->name, (*at)->summary);
        else if (!strcmp((*at)->name, words[0]))
            c = *at;
    if (!c)
        return 0;
    for (int i = 1; i < n_words - 1; i++) {
        if (waits) {
            waits = NULL;
        } else if (words[i][0] == '-' && words[i][1]) {
            waits = option_of(c, words[i], strlen(words[i]));
            if (waits && (!waits->arg || waits->kind == OPTION_MAYBE))
                waits = NULL;
        } else if (!n_operands++) {
            first = words[i];
        }
    }
    const char *equals = strchr(typed, '=');
    if (waits) {
        offer_what(complete_option(waits), typed, n_words, words);
    } else if (typed[0] == '-' && typed[1] == '-' && equals) {
        const option *o = option_of(c, typed, (size_t)(equals - typed));
        if (o)
            offer_what(complete_option(o), equals + 1, n_words, words);
    } else if (typed[0] == '-') {
        offer_options(c, typed);
    } else {
        offer_what(complete_operand(c, n_operands, first), typed, n_words, words);
    }
    return 0;
}
