/* forbid.c - see forbid.h. */
#include "engine/forbid.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

static status check_list(const char *what, const int32_t *ids, int64_t n, int32_t n_vocab, err *e)
{
    if (n < 0 || n > FORBID_IDS_MAX || (n && !ids))
        return err_set(e, E_ARG, "%s has %lld tokens: expected 0 to %d, and a pointer to them",
                       what, (long long)n, FORBID_IDS_MAX);
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return err_set(e, E_ARG, "%s has token %d, and ids end at %d", what, ids[i],
                           n_vocab - 1);
    return OK;
}

static status copy_ids(int32_t **to, const int32_t *ids, int64_t n, err *e)
{
    *to = mem_calloc((size_t)n + 1, sizeof **to);
    if (!*to)
        return err_memory(e, "lists of tokens", (size_t)n * sizeof **to);
    if (n)
        memcpy(*to, ids, (size_t)n * sizeof **to);
    return OK;
}

static status copy_bad(forbidden *f, const carat_model *m, const carat_generate_options *o, err *e)
{
    int64_t n = 0;
    status st;
    if (o->n_bad < 0 || o->n_bad > FORBID_LISTS_MAX || (o->n_bad && !o->bad))
        return err_set(e, E_ARG, "%d lists of bad tokens; 0 to %d are possible", o->n_bad,
                       FORBID_LISTS_MAX);
    for (int32_t i = 0; i < o->n_bad; i++) {
        if ((st =
                 check_list("a list of bad tokens", o->bad[i].at, o->bad[i].n, m->core.n_vocab, e)))
            return st;
        if (!o->bad[i].n)
            return err_set(e, E_ARG, "list %d of bad tokens is empty", i);
        n += o->bad[i].n;
        if (n > FORBID_IDS_MAX)
            return err_set(e, E_ARG, "more than %d bad tokens", FORBID_IDS_MAX);
    }
    f->bad = mem_calloc((size_t)o->n_bad + 1, sizeof *f->bad);
    if (!f->bad)
        return err_memory(e, "lists of tokens", (size_t)o->n_bad * sizeof *f->bad);
    f->bad_ids = mem_calloc((size_t)n + 1, sizeof *f->bad_ids);
    if (!f->bad_ids)
        return err_memory(e, "lists of tokens", (size_t)n * sizeof *f->bad_ids);
    int32_t *at = f->bad_ids;
    for (int32_t i = 0; i < o->n_bad; i++) {
        memcpy(at, o->bad[i].at, (size_t)o->bad[i].n * sizeof *at);
        f->bad[i] = (carat_tokens){at, o->bad[i].n};
        at += o->bad[i].n;
    }
    f->n_bad = o->n_bad;
    return OK;
}

/* The tokens that end a turn, unless they are ignored, and the stop ids. */
static status list_ends(forbidden *f, const carat_model *m, const carat_generate_options *o, err *e)
{
    int32_t n = 0;
    bool eog = m->text && !o->sampling.ignore_eog;
    for (int32_t id = 0; eog && id < m->core.n_vocab; id++)
        n += vocab_is_eog(m->text, id);
    f->end = mem_calloc((size_t)(n + o->n_stop_ids) + 1, sizeof *f->end);
    if (!f->end)
        return err_memory(e, "lists of tokens", (size_t)n * sizeof *f->end);
    for (int32_t id = 0; eog && id < m->core.n_vocab; id++)
        if (vocab_is_eog(m->text, id))
            f->end[f->n_end++] = id;
    for (int32_t i = 0; i < o->n_stop_ids; i++)
        f->end[f->n_end++] = o->stop_ids[i];
    f->min_tokens = o->min_tokens;
    return OK;
}

static status copy_only(forbidden *f, const carat_model *m, const carat_generate_options *o, err *e)
{
    size_t words = ((size_t)m->core.n_vocab + 31) / 32;
    status st = check_list("only_ids", o->only_ids, o->n_only_ids, m->core.n_vocab, e);
    if (st)
        return st;
    if (!o->n_only_ids)
        return err_set(e, E_ARG, "only_ids is empty: no token could be sampled");
    f->only = mem_calloc(words, sizeof *f->only);
    if (!f->only)
        return err_memory(e, "lists of tokens", words * sizeof *f->only);
    for (int32_t i = 0; i < o->n_only_ids; i++)
        f->only[o->only_ids[i] >> 5] |= UINT32_C(1) << (o->only_ids[i] & 31);
    return OK;
}

status forbidden_open(forbidden *f, const carat_model *m, const carat_generate_options *o, err *e)
{
    status st;
    *f = (forbidden){.n_vocab = m->core.n_vocab};
    if ((st = check_list("stop_ids", o->stop_ids, o->n_stop_ids, m->core.n_vocab, e)))
        return st;
    if (o->n_stop_ids && (st = copy_ids(&f->stop, o->stop_ids, o->n_stop_ids, e)))
        goto out;
    f->n_stop = o->n_stop_ids;
    if (o->n_bad && (st = copy_bad(f, m, o, e)))
        goto out;
    if (o->min_tokens > 0 && (st = list_ends(f, m, o, e)))
        goto out;
    if (o->only_ids)
        st = copy_only(f, m, o, e);
out:
    if (st)
        forbidden_free(f);
    return st;
}

void forbidden_free(forbidden *f)
{
    mem_free(f->only);
    mem_free(f->bad_ids);
    mem_free(f->bad);
    mem_free(f->end);
    mem_free(f->stop);
    *f = (forbidden){0};
}

bool forbids_any(const forbidden *f, int64_t n_generated)
{
    return f->n_bad || f->only || n_generated < f->min_tokens;
}

void forbid_tokens(const forbidden *f, const int32_t *past, int64_t n, int64_t n_generated,
                   float *logits)
{
    for (int32_t i = 0; n_generated < f->min_tokens && i < f->n_end; i++)
        logits[f->end[i]] = -INFINITY;
    for (int32_t i = 0; i < f->n_bad; i++) {
        int64_t before = f->bad[i].n - 1;
        if (before <= n &&
            !memcmp(f->bad[i].at, past + (n - before), (size_t)before * sizeof *past))
            logits[f->bad[i].at[before]] = -INFINITY;
    }
    if (f->only)
        for (int32_t id = 0; id < f->n_vocab; id++)
            if (!(f->only[id >> 5] >> (id & 31) & 1))
                logits[id] = -INFINITY;
}

bool forbid_is_stop(const forbidden *f, int32_t id)
{
    for (int32_t i = 0; i < f->n_stop; i++)
        if (f->stop[i] == id)
            return true;
    return false;
}

/* Placeholder tokens have logits, but a text answer must never contain them. */
void ban_place_holders(const carat_model *m, float *logits)
{
    int32_t n = 0;
    const int32_t *id = m->text ? vocab_never_sampled(m->text, &n) : NULL;
    for (int32_t i = 0; i < n; i++)
        logits[id[i]] = -INFINITY;
}

void drop_place_holders(const carat_model *m, row_logits *x)
{
    int32_t left = 0;
    for (int32_t i = 0; i < x->n_candidates; i++)
        if (!m->text || !vocab_is_never_sampled(m->text, x->candidates[i].id))
            x->candidates[left++] = x->candidates[i];
    x->n_candidates = left;
}
