/* lora_options.c - see lora_options.h. */
#include "apps/lora_options.h"

#include "apps/named.h"
#include "base/mem.h"

#include <string.h>
#include <sys/stat.h>

/* FILE:SCALE, unless a file has the whole word as its name. */
static status read_word(const char *word, carat_lora *l, char **own, err *e)
{
    const char *colon = strrchr(word, ':');
    struct stat sb;
    double scale;
    *l = (carat_lora){.path = word, .scale = 1};
    if (!colon || colon == word || !stat(word, &sb))
        return OK;
    if (!options_number(colon + 1, &scale) || !(scale >= -1e4 && scale <= 1e4))
        return err_set(e, E_ARG, "--lora %s: expected FILE or FILE:SCALE, SCALE up to 10000", word);
    if (!(*own = mem_strdup(word)))
        return err_memory(e, "a path", strlen(word));
    (*own)[colon - word] = 0;
    *l = (carat_lora){.path = *own, .scale = (float)scale};
    return OK;
}

status lora_options_apply(const lora_options *o, lora_files *f, carat_model_options *mo, err *e)
{
    if (o->files.n > LORA_FILES_MAX)
        return err_set(e, E_ARG, "--lora: %d adapters, at most %d", o->files.n, LORA_FILES_MAX);
    for (int i = 0; i < o->files.n; i++) {
        status st = read_word(o->files.at[i], &f->at[i], &f->own[i], e);
        if (st)
            return st;
        if (o->unapplied)
            f->at[i].scale = 0;
    }
    mo->loras = f->at;
    mo->n_loras = o->files.n;
    return OK;
}

status lora_check(const char *model, const char *const *adapter, size_t n, err *e)
{
    carat_lora l[LORA_FILES_MAX];
    carat_model_options mo = {.vocab_only = true, .loras = l, .n_loras = (int32_t)n};
    carat_model *m = NULL;
    if (n > LORA_FILES_MAX)
        return err_set(e, E_ARG, "%zu adapters, at most %d", n, LORA_FILES_MAX);
    for (size_t i = 0; i < n; i++)
        l[i] = (carat_lora){.path = adapter[i], .scale = 1};
    status st = named_open(model, &mo, &m, e);
    carat_model_close(m);
    return st;
}

void lora_files_free(lora_files *f)
{
    for (int i = 0; i < LORA_FILES_MAX; i++)
        mem_free(f->own[i]);
    *f = (lora_files){0};
}
