/* alias.c - see alias.h. */
#include "apps/hub/alias.h"

#include "apps/hub/names.h"
#include "base/nearest.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { STEPS_MAX = 8 }; /* of names that stand for names */

_Static_assert(ALIAS_MAX >= REPO_MAX + QUANT_MAX, "a name of a model fits");

/* As of 2026-11. A model of a repository. A name without a tag means the row that comes first.
 * Repositories are those that have a vision tower beside the model where there is one, and Q4_K_M
 * or what the publisher made instead of it. */
static const struct alias {
    const char *base;
    const char *tags; /* with spaces between */
    const char *repo;
} table[] = {
    {"gemma4", "e4b", "ggml-org/gemma-4-E4B-it-GGUF"},
    {"gemma4", "e2b", "ggml-org/gemma-4-E2B-it-GGUF"},
    {"gemma4", "12b", "unsloth/gemma-4-12b-it-GGUF"},
    {"gemma4", "26b 26b-a4b", "ggml-org/gemma-4-26B-A4B-it-GGUF"},
    {"gemma4", "31b", "ggml-org/gemma-4-31B-it-GGUF"},
    {"gemma3", "4b", "ggml-org/gemma-3-4b-it-GGUF"},
    {"gemma3", "270m", "ggml-org/gemma-3-270m-it-GGUF"},
    {"gemma3", "1b", "ggml-org/gemma-3-1b-it-GGUF"},
    {"gemma3", "12b", "ggml-org/gemma-3-12b-it-GGUF"},
    {"gemma3", "27b", "ggml-org/gemma-3-27b-it-GGUF"},
    {"embeddinggemma", "300m", "ggml-org/embeddinggemma-300M-qat-q4_0-GGUF"},
    {"gpt-oss", "20b", "ggml-org/gpt-oss-20b-GGUF"},
    {"gpt-oss", "120b", "ggml-org/gpt-oss-120b-GGUF"},
    {"qwen3", "8b", "Qwen/Qwen3-8B-GGUF"},
    {"qwen3", "0.6b", "unsloth/Qwen3-0.6B-GGUF"},
    {"qwen3", "1.7b", "ggml-org/Qwen3-1.7B-GGUF"},
    {"qwen3", "4b", "Qwen/Qwen3-4B-GGUF"},
    {"qwen3", "14b", "ggml-org/Qwen3-14B-GGUF"},
    {"qwen3", "30b 30b-a3b", "Qwen/Qwen3-30B-A3B-GGUF"},
    {"qwen3", "32b", "unsloth/Qwen3-32B-GGUF"},
    {"qwen3", "235b 235b-a22b", "unsloth/Qwen3-235B-A22B-GGUF"},
    {"qwen3-coder", "30b 30b-a3b", "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF"},
    {"qwen3-embedding", "0.6b", "Qwen/Qwen3-Embedding-0.6B-GGUF"},
    {"qwen3.5", "9b", "lmstudio-community/Qwen3.5-9B-GGUF"},
    {"qwen3.5", "0.8b", "ggml-org/Qwen3.5-0.8B-GGUF"},
    {"qwen3.5", "2b", "bartowski/Qwen_Qwen3.5-2B-GGUF"},
    {"qwen3.5", "4b", "unsloth/Qwen3.5-4B-GGUF"},
    {"qwen3.5", "27b", "unsloth/Qwen3.5-27B-GGUF"},
    {"qwen3.6", "27b", "ggml-org/Qwen3.6-27B-GGUF"},
    {"qwen3.6", "35b 35b-a3b", "unsloth/Qwen3.6-35B-A3B-GGUF"},
    {"qwen3.8", "27b", "unsloth/Qwen3.8-27B-GGUF"},
    {"llama3.2", "3b", "bartowski/Llama-3.2-3B-Instruct-GGUF"},
    {"llama3.2", "1b", "bartowski/Llama-3.2-1B-Instruct-GGUF"},
    {"llama3.1", "8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF"},
    {"llama3.3", "70b", "bartowski/Llama-3.3-70B-Instruct-GGUF"},
    {"mistral", "7b", "bartowski/Mistral-7B-Instruct-v0.3-GGUF"},
    {"mistral-nemo", "12b", "bartowski/Mistral-Nemo-Instruct-2407-GGUF"},
    {"mistral-small3.1", "24b", "ggml-org/Mistral-Small-3.1-24B-Instruct-2503-GGUF"},
    {"mistral-small3.2", "24b", "unsloth/Mistral-Small-3.2-24B-Instruct-2506-GGUF"},
    {"ministral-3", "8b", "mistralai/Ministral-3-8B-Instruct-2512-GGUF"},
    {"mixtral", "8x7b", "TheBloke/Mixtral-8x7B-Instruct-v0.1-GGUF"},
    {"laguna-xs.2", "33b", "Lucebox/Laguna-XS.2-GGUF"},
};
enum { ROWS = sizeof table / sizeof *table };

static alias_own_fn ask_own;
static const void *ask_user;

void alias_ask(alias_own_fn fn, const void *user)
{
    ask_own = fn;
    ask_user = user;
}

bool alias_row(size_t i, char name[ALIAS_MAX], const char **repo)
{
    if (i >= ROWS)
        return false;
    const struct alias *r = &table[i];
    snprintf(name, ALIAS_MAX, "%s:%.*s", r->base, (int)strcspn(r->tags, " "), r->tags);
    *repo = r->repo;
    return true;
}

static bool first_of_base(size_t i)
{
    return !i || strcmp(table[i].base, table[i - 1].base) != 0;
}

/* "it-q8_0" behind a tag: the quantisation, or the end of the text where there is none. NULL: it
 * says something else. */
static const char *quant_behind(const char *rest)
{
    static const char *const tuned[] = {"-instruct", "-it"};
    for (size_t i = 0; i < sizeof tuned / sizeof *tuned; i++) {
        size_t n = strlen(tuned[i]);
        if (!strncasecmp(rest, tuned[i], n) && (!rest[n] || rest[n] == '-')) {
            rest += n;
            break;
        }
    }
    rest += *rest == '-';
    return !*rest || quant_valid(rest) ? rest : NULL;
}

/* The quantisation that a tag asks of a row, "" for none in particular; NULL: another row's. */
static const char *tag_fits(size_t i, const char *tag)
{
    if (!*tag || !strcasecmp(tag, "latest"))
        return first_of_base(i) ? "" : NULL;
    for (const char *at = table[i].tags; *at;) {
        size_t n = strcspn(at, " ");
        const char *quant =
            !strncasecmp(tag, at, n) && (!tag[n] || tag[n] == '-') ? quant_behind(tag + n) : NULL;
        if (quant)
            return quant;
        at += n + (at[n] == ' ');
    }
    return NULL;
}

static void find_in_table(const char *what, char out[ALIAS_MAX])
{
    size_t n = strcspn(what, ":");
    const char *tag = what[n] ? what + n + 1 : "";
    for (size_t i = 0; i < ROWS; i++) {
        const char *quant = strlen(table[i].base) == n && !strncasecmp(what, table[i].base, n)
                                ? tag_fits(i, tag)
                                : NULL;
        if (!quant)
            continue;
        int len = snprintf(out, ALIAS_MAX, "%s%s", table[i].repo, *quant ? ":" : "");
        for (; *quant && len < ALIAS_MAX - 1; quant++)
            out[len++] = (char)(*quant >= 'a' && *quant <= 'z' ? *quant - 32 : *quant);
        out[len] = 0;
        return;
    }
}

status alias_follow(const char *what, alias_own_fn fn, const void *user, char out[ALIAS_MAX],
                    bool *own, err *e)
{
    char name[ALIAS_MAX] = "", next[ALIAS_MAX] = "";
    name_parts parts;
    *own = false;
    *out = 0;
    size_t n = strlen(what);
    if (!n || n >= QUANT_MAX || strcspn(what, " /\t\n") < n)
        return OK;
    memcpy(name, what, n + 1);
    for (int steps = 0; fn; steps++) {
        *next = 0;
        status st = fn(user, name, next, e);
        if (st)
            return st;
        if (!*next)
            break;
        if (steps == STEPS_MAX || !strcasecmp(next, what))
            return err_set(e, E_ARG,
                           "'%s': the names of [names] lead in a circle, or through more than %d "
                           "names, at '%.100s'",
                           what, STEPS_MAX, name);
        *own = true;
        memcpy(name, next, sizeof name);
        if (strchr(name, '/'))
            break;
    }
    if (!strchr(name, '/'))
        find_in_table(name, next);
    else
        memcpy(next, name, sizeof next);
    if (*own && (!*next || !name_parse(next, NULL, &parts) || !*parts.owner))
        return err_set(e, E_ARG,
                       "'%s' stands for '%.200s' in [names], which is neither OWNER/REPO:QUANT nor "
                       "a short name that carat knows",
                       what, name);
    memcpy(out, next, sizeof next);
    return OK;
}

status alias_find(const char *what, char out[ALIAS_MAX], bool *own, err *e)
{
    return alias_follow(what, ask_own, ask_user, out, own, e);
}

bool alias_near(const char *what, char out[ALIAS_MAX])
{
    char names[ROWS][ALIAS_MAX];
    const char *words[ROWS], *bases[ROWS], *repo;
    size_t n_bases = 0;
    for (size_t i = 0; i < ROWS; i++) {
        alias_row(i, names[i], &repo);
        words[i] = names[i];
        if (first_of_base(i))
            bases[n_bases++] = table[i].base;
    }
    const char *near = nearest_word(what, words, ROWS);
    near = near ? near : nearest_word(what, bases, n_bases);
    if (near)
        snprintf(out, ALIAS_MAX, "%s", near);
    return near != NULL;
}
