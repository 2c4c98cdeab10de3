/* sparse.c - attention that leaves keys out: options as texts, settings as keys, the account. */
#include "engine/sparse.h"
#include "engine/batch_int.h"
#include "base/decimal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Do kernels leave keys out of prompts, or of answers? */
static bool leaves_out(const device *d, const kv_spec *s, const sparse_choice *c, bool prompt)
{
    const kv_view kv = {.k_type = NUM_F16,
                        .v_type = NUM_F16,
                        .n_head_kv = s->n_head_kv,
                        .head_dim = s->head_dim,
                        .wide = s->wide};
    sparse_rule rule = {.skip = c->skip, .alpha = c->alpha};
    if (d->narrow_sparse)
        d->narrow_sparse(d, &kv, prompt, &rule);
    return rule.skip > 0 || rule.alpha > 0;
}

/* Formats that a device's kernels do not take are refused by its passes. */
static status check_support(const carat_model *m, const char *text, const sparse_choice *c, err *e)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->core.n_kv; i++) {
        const kv_spec *s = &m->core.kv[i];
        const device *d = model_device(m, s->side); /* core.dev is not set before loading */
        if (s->window)
            continue;
        n++;
        if (!leaves_out(d, s, c, true) && !leaves_out(d, s, c, false))
            return err_set(e, E_UNSUPPORTED,
                           "sparse attention '%s': %s has no kernel for it in heads of %d", text,
                           d->name, s->head_dim);
    }
    if (!n)
        return err_set(e, E_UNSUPPORTED,
                       "sparse attention '%s': every attention layer of %s has a window, and "
                       "windows are computed whole",
                       text, m->core.name);
    return OK;
}

/* Which rows leave keys out. */
static const char *rows_named(const carat_model *m, const sparse_choice *c)
{
    bool prompts = false, answers = false;
    for (int32_t i = 0; i < m->core.n_kv; i++) {
        const kv_spec *s = &m->core.kv[i];
        const device *d = model_device(m, s->side);
        prompts |= !s->window && leaves_out(d, s, c, true);
        answers |= !s->window && c->skip > 0 && leaves_out(d, s, c, false);
    }
    return !answers ? "prompt" : prompts ? "prompt and answer" : "answer, prompts are exact";
}

/* ---- Where it is faster -------------------------------------------------------------------- */

/* The setting of "auto". Published settings are 0.08 to 0.22. The bundled model reads everything
 * with it, and finds every needle also with larger ones (docs/sparse.md). */
static const float auto_alpha = 0.1f;

/* Whole prompts of at least `from` tokens were measured to be faster with it. */
static const struct {
    const char *arch;
    device_kind kind;
    int32_t head_dim;
    int64_t from;
} measured[] = {
    {"gemma4", DEVICE_CUDA, 512, 32768},
    {"gemma4", DEVICE_CPU, 512, 16384},
};

static int64_t measured_from(const char *arch, device_kind kind, int32_t head_dim)
{
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++)
        if (!strcmp(measured[i].arch, arch) && measured[i].kind == kind &&
            measured[i].head_dim == head_dim)
            return measured[i].from;
    return 0;
}

/* The least length that is measured to win for every layer without a window; 0: none is. *kv: the
 * layer that says so. */
static int64_t auto_from(const carat_model *m, const kv_spec **kv)
{
    int64_t from = 0;
    *kv = NULL;
    for (int32_t i = 0; i < m->core.n_kv; i++) {
        const kv_spec *s = &m->core.kv[i];
        if (s->window)
            continue;
        const device *d = device_bare(model_device(m, s->side));
        int64_t n = measured_from(m->core.arch->name, d->kind, s->head_dim);
        *kv = s;
        if (!n || !d->select_timed)
            return 0;
        from = n > from ? n : from;
    }
    return from;
}

/* ---- Settings ------------------------------------------------------------------------------ */

/* A number that follows `word:` and is all of the rest; k is 1024. */
static bool number_after(const char *text, const char *word, double *x)
{
    size_t n = strlen(word);
    char *end;
    if (strncmp(text, word, n) || text[n] != ':' || !text[n + 1])
        return false;
    double v = decimal_read(text + n + 1, &end);
    if (end == text + n + 1)
        return false;
    if ((*end == 'k' || *end == 'K') && !end[1]) { /* as in every number of the command line */
        v *= 1024;
        end++;
    }
    if (*end)
        return false;
    *x = v;
    return true;
}

static status read_choice(sparse_choice *c, const carat_model *m, const char *text,
                          const sparse_choice *otherwise, err *e)
{
    double x = 0;
    *c = text ? (sparse_choice){0} : *otherwise;
    if (!text || !strcmp(text, "off"))
        return OK;
    if (!strcmp(text, "auto")) {
        const kv_spec *kv;
        err no = {0};
        int64_t from = auto_from(m, &kv);
        *c = (sparse_choice){.from = INT64_MAX};
        if (from && !check_support(m, text, c, &no))
            *c = (sparse_choice){.alpha = auto_alpha, .from = from};
        return OK;
    }
    if (number_after(text, "auto", &x)) {
        if (!(x >= 1 && x <= INT32_MAX) || x != (double)(int64_t)x)
            return err_set(e, E_ARG,
                           "sparse attention '%s': expected auto:TOKENS with 1 token or more, the "
                           "least length of a prompt",
                           text);
        *c = (sparse_choice){.alpha = auto_alpha, .from = (int64_t)x};
        return check_support(m, text, c, e);
    }
    if (number_after(text, "flash", &x)) {
        if (!(x > 0 && x <= 1))
            return err_set(e, E_ARG,
                           "sparse attention '%s': expected flash:ALPHA with ALPHA above 0 and at "
                           "most 1 (off keeps every block)",
                           text);
        c->alpha = (float)x;
        return check_support(m, text, c, e);
    }
    if (!number_after(text, "skip", &x))
        return err_set(
            e, E_ARG,
            "sparse attention '%s': expected off, auto, auto:TOKENS, skip:SCALE or flash:ALPHA",
            text);
    if (!(x >= 0 && x <= 1e6))
        return err_set(e, E_ARG,
                       "sparse attention '%s': expected skip:SCALE with SCALE from 0 (drops "
                       "nothing) to 1000000",
                       text);
    c->skip = (float)x;
    return c->skip > 0 ? check_support(m, text, c, e) : OK;
}

status sparse_parse(sparse_choice *c, const carat_model *m, const char *text,
                    const sparse_choice *otherwise, err *e)
{
    sparse_choice read;
    status st = read_choice(&read, m, text, otherwise, e);
    if (!st)
        *c = read;
    return st;
}

status sparse_decide(sparse_choice *c, const carat_model *m, const char *text, int64_t n,
                     const session_shape *s, err *e)
{
    err no = {0};
    status st = sparse_parse(c, m, text, &s->sparse, e);
    if (st || !c->from)
        return st ? st : sparse_fits(*c, s, e);
    const sparse_choice chosen = {.skip = c->skip, .alpha = c->alpha};
    if (n < c->from || sparse_fits(chosen, s, &no))
        c->skip = c->alpha = 0;
    return OK;
}

carat_status carat_sparse_describe(const carat_model *m, const char *sparse, char *text, size_t cap,
                                   carat_error *e)
{
    const kv_spec *kv;
    sparse_choice c;
    status st = sparse_parse(&c, m, sparse, &(sparse_choice){0}, e);
    if (st)
        return st;
    bool never = c.from == INT64_MAX;
    err why = {0};
    if (never && !auto_from(m, &kv) && kv)
        snprintf(text, cap, "off: in heads of %d of %s no length was measured to win on %s",
                 kv->head_dim, m->core.arch->name, model_device(m, kv->side)->name);
    else if (never && check_support(m, sparse, &c, &why))
        snprintf(text, cap, "off: %s", why.text);
    else if (c.from && !never)
        snprintf(text, cap, "flash:%g in prompts of %lld tokens or more", (double)c.alpha,
                 (long long)c.from);
    else if (sparse_name(c))
        snprintf(text, cap, "%s in every %s", sparse, rows_named(m, &c));
    else
        snprintf(text, cap, "off");
    return OK;
}

uint64_t sparse_key(sparse_choice c)
{
    uint32_t skip, alpha;
    memcpy(&skip, &c.skip, sizeof skip);
    memcpy(&alpha, &c.alpha, sizeof alpha);
    return skip | (uint64_t)alpha << 32;
}

sparse_choice sparse_of_key(uint64_t key)
{
    sparse_choice c = {0};
    uint32_t skip = (uint32_t)key, alpha = (uint32_t)(key >> 32);
    memcpy(&c.skip, &skip, sizeof skip);
    memcpy(&c.alpha, &alpha, sizeof alpha);
    return c;
}

const char *sparse_name(sparse_choice c)
{
    return c.alpha > 0 ? "flash" : c.skip > 0 ? "skip" : NULL;
}

int32_t sparse_rows(sparse_choice c, int64_t at, int64_t left, int32_t rows)
{
    if (left <= rows)
        return (int32_t)left;
    if (c.alpha <= 0)
        return rows;
    int64_t n = (at + rows) / SPARSE_TILE * SPARSE_TILE - at;
    return n > 0 ? (int32_t)n : 0;
}

status sparse_fits(sparse_choice c, const session_shape *s, err *e)
{
    if (c.alpha <= 0 || c.from)
        return OK;
    if (s->chunk < SPARSE_TILE && s->chunk < s->n_ctx)
        return err_set(e, E_ARG,
                       "block selection (--sparse flash) in passes of %d tokens is not possible: "
                       "expected %d or more (--chunk)",
                       s->chunk, SPARSE_TILE);
    if (s->kv_resident)
        return err_set(e, E_ARG,
                       "block selection (--sparse flash) needs all keys on the device, and this "
                       "session keeps some of them on the host (--kv-pool, --kv-keep)");
    return OK;
}

/* -1: no pair has a certificate. */
static double quantile(const sparse_stats *t, double q)
{
    for (int32_t i = 0; i < SPARSE_BINS; i++)
        if (t->bin[i])
            return sparse_quantile(t, q);
    return -1;
}

int32_t carat_session_sparse(carat_session *s, carat_sparse_layer *list, int32_t cap, bool clear)
{
    sparse_stats *all = s->b.slot->t.stats;
    int32_t n = 0, n_layer = s->b.m->core.n_layer;
    for (int32_t il = 0; all && il < n_layer; il++) {
        const sparse_stats *t = &all[il];
        if (!t->n_tiles)
            continue;
        if (n < cap) {
            carat_sparse_layer *x = &list[n];
            *x = (carat_sparse_layer){.layer = il,
                                      .n_tiles = t->n_tiles,
                                      .n_kept = t->n_kept,
                                      .dropped_p50 = quantile(t, 0.5),
                                      .dropped_p99 = quantile(t, 0.99),
                                      .dropped_max = quantile(t, 1)};
            for (int32_t i = 0; i < SPARSE_BINS; i++) {
                int32_t decade = (i + SPARSE_STEPS - 1) / SPARSE_STEPS;
                x->bin[decade] += t->bin[i];
            }
        }
        n++;
    }
    if (clear && all)
        memset(all, 0, (size_t)n_layer * sizeof *all);
    return n;
}
