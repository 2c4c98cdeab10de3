/* run_model.c - which model `carat run` takes, and opening it, which other commands use too. */
#include "apps/hub/alias.h"
#include "apps/named.h"
#include "apps/run_int.h"

#include <string.h>
#include <sys/stat.h>

/* True of "gemma4", "llama3.2:1b", "google/gemma-3-4b" and "model.gguf": one word with the name of
 * a family of models and a number, the name of a model file, or a short name that is mistyped. */
static bool looks_like_model(const char *word)
{
    static const char *const families[] = {"gemma", "llama",    "qwen",    "mistral", "mixtral",
                                           "phi",   "deepseek", "gpt-oss", "granite", "smollm"};
    size_t n = strlen(word);
    if (strspn(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:/-") != n)
        return false;
    if (strcasestr(word, "gguf"))
        return true;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const char *at = strcasestr(word, families[i]);
        if (at && strpbrk(at, "0123456789:"))
            return true;
    }
    char near[ALIAS_MAX];
    return strpbrk(word, "0123456789") && alias_near(word, near);
}

bool run_has_dashes(int argc, char **argv)
{
    for (int i = 0; i < argc; i++)
        if (!strcmp(argv[i], "--"))
            return true;
    return false;
}

status run_take_model(run_options *o, int *n_words, char ***words, bool literal, err *e)
{
    struct stat sb;
    model_found found = {0};
    err why = {0};
    if (o->model_typed || !*n_words || literal)
        return OK;
    const char *word = **words;
    size_t n = strlen(word);
    bool gguf = n > 5 && !strcasecmp(word + n - 5, ".gguf");
    bool there = !stat(word, &sb), file = there && S_ISREG(sb.st_mode);
    bool path = there && strchr("/.", *word) && strchr(word, '/');
    if (path && !file)
        return err_set(e, E_ARG,
                       "%s is %s and no model. (carat run -- %s ... takes the word as part of the "
                       "prompt)",
                       word, S_ISDIR(sb.st_mode) ? "a directory" : "no regular file", word);
    if (path && !gguf && *n_words == 1)
        return err_set(e, E_ARG,
                       "%s is a file whose name does not end in .gguf: carat run -m %s takes it as "
                       "a model, -p as a prompt, -f as a part of one",
                       word, word);
    if ((gguf && file) || (!file && (model_known(word) || run_is_made(word)))) {
        o->model = word;
        ++*words;
        --*n_words;
        return OK;
    }
    if (!there && hub_may_bring(word)) {
        o->hub.repo = word;
        o->model = NULL;
        ++*words;
        --*n_words;
        return OK;
    }
    if (file && *n_words > 1)
        term_note("'%s' is a file but its name is read as part of the prompt: carat run -p FILE "
                  "reads a prompt",
                  word);
    if (file || !looks_like_model(word))
        return OK;
    status st = model_find(word, &found, &why);
    if (!st && !stat(found.path, &sb)) { /* it has just come */
        model_found_free(&found);
        return OK;
    }
    model_found_free(&found);
    return err_set(e, E_ARG, "%s%s (carat run -- %s ... takes the word as part of the prompt)",
                   st ? why.text : word, st ? "." : ": there is no such file.", word);
}

static void show_log(void *user, const char *text)
{
    (void)user;
    term_progress_clear();
    term_put(stderr, text, strlen(text));
}

status run_open_model(const char *path, const run_options *o, carat_model **m, err *e)
{
    carat_model_options mo = {.n_threads = (int32_t)o->threads,
                              .no_mmap = o->no_mmap,
                              .exact_f32 = o->exact,
                              .reference = o->reference,
                              .overcommit = o->overcommit,
                              .isa = o->isa,
                              .wrap = o->wrap,
                              .draft = o->draft.drafter,
                              .draft_device = o->draft.device,
                              .scorer = o->pool.scorer,
                              .progress = term_progress,
                              .log = show_log};
    status st = options_repack(o->repack, &mo.no_repack, e);
    if (!st)
        st = mmproj_options_apply(&o->mmproj, &mo, e);
    if (!o->sees)
        mo.mmproj = NULL;
    lora_files loras = {0};
    if (!st)
        st = lora_options_apply(&o->lora, &loras, &mo, e);
    device_options_apply(&o->where, &mo);
    *m = NULL;
    if (!st)
        st = named_open(path, &mo, m, e);
    lora_files_free(&loras);
    return st;
}
