/* texts.c - see texts.h. */
#include "apps/texts.h"
#include "apps/term.h"
#include "base/map.h"
#include "base/mem.h"

#include <string.h>

enum {
    TEXTS_MAX = 1 << 20,
    TEXT_BYTES_MAX = 1 << 30,
    SLOTS = 16,     /* texts of a pass */
    PASS_ROWS = 512 /* of an encoder, at least: a few short texts */
};

/* ---- The list ---- */

static carat_status add(text_list *t, const char *text, size_t n, carat_error *e)
{
    if (!n)
        return err_set(e, E_ARG, "text %d is empty", t->n + 1);
    t->at[t->n] = text;
    t->bytes[t->n++] = n;
    return OK;
}

static carat_status make_room(text_list *t, size_t n, carat_error *e)
{
    if (!n || n > TEXTS_MAX)
        return err_set(e, E_ARG, "%zu texts: expected 1 to %d", n, TEXTS_MAX);
    t->at = mem_calloc(n, sizeof *t->at);
    t->bytes = mem_calloc(n, sizeof *t->bytes);
    return t->at && t->bytes ? OK : err_memory(e, "the list of texts", n * sizeof *t->at);
}

static carat_status read_lines(text_list *t, const char *file, carat_error *e)
{
    carat_status st;
    char *bytes = NULL;
    size_t n = 0, n_lines = 0;
    if (!file || !strcmp(file, "-")) {
        st = term_read_stdin(&t->lines, TEXT_BYTES_MAX, true, e);
    } else if (!(st = file_read_all(file, TEXT_BYTES_MAX, &bytes, &n, e))) {
        str_put(&t->lines, bytes, n);
        mem_free(bytes);
        st = t->lines.bad ? err_memory(e, file, n) : OK;
    }
    if (st)
        return st;
    const char *at = str_text(&t->lines), *end = at + t->lines.n;
    for (const char *p = at; p < end; p++)
        n_lines += *p == '\n' || p + 1 == end;
    st = make_room(t, n_lines, e);
    while (!st && at < end) {
        const char *line = memchr(at, '\n', (size_t)(end - at));
        line = line ? line : end;
        size_t length = (size_t)(line - at);
        length -= length && at[length - 1] == '\r';
        st = add(t, at, length, e);
        at = line + 1;
    }
    return st;
}

carat_status texts_read(text_list *t, char *const *words, int n_words, const char *file,
                        carat_error *e)
{
    carat_status st;
    *t = (text_list){0};
    if (n_words && file)
        st = err_set(e, E_ARG, "texts on the command line and --file %s: expected one of them",
                     file);
    else
        st = n_words ? make_room(t, (size_t)n_words, e) : read_lines(t, file, e);
    for (int i = 0; i < n_words && !st; i++)
        st = add(t, words[i], strlen(words[i]), e);
    if (st)
        texts_free(t);
    return st;
}

void texts_free(text_list *t)
{
    mem_free(t->at);
    mem_free(t->bytes);
    str_free(&t->lines);
    *t = (text_list){0};
}

/* ---- Vectors ---- */

typedef struct run {
    carat_batch *b;
    carat_error first; /* failure */
    int32_t n_running;
} run;

static void done(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    run *r = user;
    (void)t;
    r->n_running--;
    if (st && !r->first.status)
        r->first = *e;
}

/* As long as the longest text; of an encoder also as long as a few short ones. */
static int32_t context_of(const carat_model *m, const text_ids *text, int32_t n)
{
    carat_model_info info;
    int64_t longest = carat_model_is_encoder(m) ? PASS_ROWS : 1;
    carat_model_get_info(m, &info);
    for (int32_t i = 0; i < n; i++)
        longest = text[i].n > longest ? text[i].n : longest;
    return (int32_t)(longest < info.n_ctx_train ? longest : info.n_ctx_train);
}

carat_status texts_compute(carat_model *m, const text_ids *text, int32_t n, carat_pooling pooling,
                           const carat_session_options *so, float *to, carat_error *e)
{
    carat_batch_options bo = {.session = *so, .n_slots = n < SLOTS ? n : SLOTS};
    carat_model_info info;
    run r = {.n_running = 0};
    int32_t next = 0;
    carat_model_get_info(m, &info);
    bo.session.n_ctx = context_of(m, text, n);
    size_t width = pooling == CARAT_POOL_RANK ? 1 : (size_t)info.n_embd;
    carat_status st = carat_batch_open(m, &bo, &r.b, e);
    while (!st && (next < n || r.n_running)) {
        for (; !st && next < n && r.n_running < bo.n_slots; next++) {
            const carat_job job = {.ids = text[next].id,
                                   .n = text[next].n,
                                   .done = done,
                                   .user = &r,
                                   .embedding = to + (size_t)next * width,
                                   .pooling = pooling};
            if (!(st = carat_batch_submit(r.b, &job, NULL, NULL, e)))
                r.n_running++;
        }
        if (!st)
            carat_batch_step(r.b);
        if (!st && r.first.status)
            st = err_set(e, r.first.status, "%s", r.first.text);
        if (!st && term_interrupts())
            st = err_set(e, E_CANCELLED, "cancelled after %d of %d texts", next - r.n_running, n);
    }
    carat_batch_close(r.b);
    return st;
}
