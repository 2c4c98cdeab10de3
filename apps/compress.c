/* compress.c - see compress.h. */
#include "apps/compress.h"

#include "apps/jsonw.h"
#include "apps/named.h"
#include "apps/term.h"
#include "base/show.h"

#include <string.h>
#include <sys/stat.h>

enum { CTX_LEAST = 4096 }; /* tokens of the first session of a scorer */

bool compress_wanted(const compress_options *o)
{
    return o->what && strcmp(o->what, "off") != 0;
}

status compress_options_read(const compress_options *o, carat_compress_options *to, bool *on,
                             err *e)
{
    bool wanted = compress_wanted(o);
    carat_compress_options read = {0};
    err why = {0};
    if (wanted && carat_compress_parse(o->what, &read, &why))
        return err_set(e, E_ARG, "--compress: %s", why.text);
    *to = read;
    *on = wanted;
    return OK;
}

/* ---- The scorer ------------------------------------------------------------------------------ */

static carat_status score(void *user, const int32_t *ids, int64_t n, float *out, carat_error *e)
{
    scorer *x = user;
    if (x->s && carat_session_n_ctx(x->s) < n)
        scorer_rest(x);
    if (!x->s) {
        carat_session_options o = x->plan;
        int32_t most = x->face.n_ctx;
        o.n_ctx = most < CTX_LEAST ? most : CTX_LEAST;
        while (o.n_ctx < n)
            o.n_ctx = o.n_ctx > most / 2 ? most : 2 * o.n_ctx;
        carat_status st = carat_session_open((carat_model *)(size_t)x->model, &o, &x->s, e);
        if (st)
            return st;
    }
    term_watch(x->s);
    carat_status st = carat_importance(x->s, ids, n, out, e);
    term_watch(NULL);
    return st;
}

bool scorer_is_shared(const char *a, const char *b)
{
    struct stat x, y;
    return a && b &&
           (!strcmp(a, b) ||
            (!stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino));
}

status scorer_open(scorer *x, carat_model *m, const scorer_ask *ask, err *e)
{
    carat_model_info info;
    carat_model_options mo = {.n_threads = ask->threads,
                              .isa = ask->isa,
                              .overcommit = ask->overcommit,
                              .device = "cpu",
                              .progress = term_progress};
    *x = (scorer){.model = m, .plan = {.n_outputs = 1, .checkpoint_mb = -1}};
    if (scorer_is_shared(ask->path, ask->pages)) {
        x->model = carat_model_page_scorer(m);
    } else if (ask->path) {
        status st = named_open(strcmp(ask->path, "bundled") ? ask->path : NULL, &mo, &x->own, e);
        if (st)
            return st;
        x->model = x->own;
    }
    carat_model_get_info(x->model, &info);
    if (!info.has_vocab) {
        scorer_close(x);
        return err_set(e, E_UNSUPPORTED,
                       "--compress-model: %.100s has no vocabulary, so it reads "
                       "no text",
                       info.name);
    }
    int32_t most = info.n_ctx_train < SCORER_CTX ? info.n_ctx_train : SCORER_CTX;
    x->face = (carat_scorer){.model = x->model, .n_ctx = most, .score = score, .user = x};
    return OK;
}

void scorer_rest(scorer *x)
{
    carat_session_close(x->s);
    x->s = NULL;
}

void scorer_close(scorer *x)
{
    scorer_rest(x);
    carat_model_close(x->own);
    *x = (scorer){0};
}

/* ---- Telling --------------------------------------------------------------------------------- */

void compress_note(const carat_compressed *x, double ms)
{
    if (x->n)
        term_note("[compressed in %.2f s: %lld of %lld prompt tokens, %d %s]", ms * 1e-3,
                  (long long)x->n_kept, (long long)x->n_original, (int)x->n,
                  x->n == 1 ? "text" : "texts");
    else
        term_note("[not compressed: %s]", SHOWN(x->why));
}

static void put_gone(FILE *f, const char *text, size_t n)
{
    bool dim = term_is_tty(f);
    if (!n)
        return;
    fputs(dim ? "" : "[-", f);
    term_set(f, TERM_DIM);
    term_put(f, text, n);
    term_set(f, TERM_PLAIN);
    fputs(dim ? "" : "-]", f);
}

void compress_show(FILE *f, const carat_compressed *x)
{
    for (int32_t i = 0; i < x->n; i++) {
        const carat_compressed_text *t = &x->at[i];
        size_t at = 0;
        fprintf(f, "--- message %d", (int)t->message + 1);
        if (t->part >= 0)
            fprintf(f, ", part %d", (int)t->part + 1);
        fprintf(f, ": %lld of %lld tokens\n", (long long)t->n_kept, (long long)t->n_tokens);
        for (int32_t k = 0; k < t->n_spans; k++) {
            put_gone(f, t->text + at, t->span[k].at - at);
            term_put(f, t->text + t->span[k].at, t->span[k].n);
            at = t->span[k].at + t->span[k].n;
        }
        put_gone(f, t->text + at, t->n_text - at);
        fputs("\n", f);
    }
}

static void put_text(str *o, const compression_report *t, int32_t prompt,
                     const carat_compressed_text *x)
{
    bool mapped = t->origin && x->message < t->n_origin;
    int32_t message = mapped ? t->origin[x->message] : x->message;
    json_open(o, NULL, '{');
    json_int(o, t->prompts ? "prompt" : "message", t->prompts ? prompt : message);
    json_int(o, "bytes", (int64_t)x->n_text);
    json_int(o, "tokens", x->n_tokens);
    json_int(o, "kept_tokens", x->n_kept);
    json_open(o, "kept", '[');
    for (int32_t i = 0; i < x->n_spans; i++) {
        json_open(o, NULL, '[');
        json_int(o, NULL, (int64_t)x->span[i].at);
        json_int(o, NULL, (int64_t)(x->span[i].at + x->span[i].n));
        json_close(o, "]");
    }
    json_close(o, "]");
    if (x->part >= 0)
        json_int(o, "part", x->part);
    json_close(o, "}");
}

void compress_put_json(str *out, const compression_report *t)
{
    int64_t before = 0, after = 0;
    const char *why = NULL;
    for (int32_t i = 0; i < t->n; i++) {
        before += t->at[i].n_original;
        after += t->at[i].n_kept;
        why = !t->at[i].n && !why ? t->at[i].why : why;
    }
    json_open(out, NULL, '{');
    json_int(out, "original_tokens", before);
    json_int(out, "kept_tokens", after);
    if (t->scorer)
        json_text(out, "scorer", t->scorer);
    json_number(out, "ms", t->ms);
    if (why)
        json_text(out, "why", why);
    json_open(out, "texts", '[');
    for (int32_t i = 0; i < t->n; i++)
        for (int32_t k = 0; k < t->at[i].n; k++)
            put_text(out, t, i, &t->at[i].at[k]);
    json_close(out, "]}");
}
