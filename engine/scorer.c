/* scorer.c - see scorer.h. */
#include "engine/scorer.h"
#include "base/mem.h"
#include "base/str.h"
#include "engine/engine_int.h"

#include <string.h>

enum {
    CHUNK = 256,
    STATES_MB = 256, /* of recurrent layers, which cannot go back without a checkpoint */
    PER_TOKEN = sizeof(int32_t) + sizeof(float), /* ids and values */
    PARTS = 4 /* a text that is too long loses whole quarters of the scorer's context, so that the
                next texts begin like it */
};

struct page_scorer {
    const carat_model *target;
    carat_session *s;
    str text;
    int64_t *page_end; /* [pages_cap] where each page's bytes end */
    int64_t pages_cap;
    id_list ids;
    float *value; /* [value_cap] */
    int64_t value_cap;
};

static int32_t least(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* A quarter more tokens than the target's, because they may be shorter. */
static carat_session_options options_for(const carat_model *m, int32_t n_ctx)
{
    return (carat_session_options){.n_ctx = least(n_ctx + n_ctx / 4 + CHUNK, m->core.n_ctx_train),
                                   .chunk = CHUNK,
                                   .checkpoint_mb = m->core.n_recur ? STATES_MB : -1};
}

static status check_given(const carat_model *target, err *e)
{
    return target->scorer
               ? OK
               : err_set(e, E_ARG,
                         "the policy \"drafter\" scores pages by a small model, and none was "
                         "given: expected --kv-scorer FILE");
}

status page_scorer_bytes(const carat_model *target, int32_t n_ctx, int32_t n_seqs,
                         uint64_t *n_bytes, err *e)
{
    const carat_model *m = target->scorer;
    carat_memory_plan plan;
    status st = check_given(target, e);
    if (st)
        return st;
    const carat_session_options o = options_for(m, n_ctx);
    if ((st = carat_plan(m, &o, &plan, e)))
        return st;
    uint64_t weights = plan.device[PASS_MAIN].weight_bytes;
    uint64_t tokens = importance_bytes(plan.n_ctx) + (uint64_t)plan.n_ctx * PER_TOKEN +
                      (uint64_t)pages_of(n_ctx) * sizeof(int64_t);
    *n_bytes = weights + (uint64_t)n_seqs * (plan.total_bytes - weights + tokens);
    return OK;
}

status page_scorer_open(page_scorer **out, const carat_model *target, int32_t n_ctx, err *e)
{
    carat_model *m = target->scorer;
    status st = check_given(target, e);
    *out = NULL;
    if (st)
        return st;
    if (!m->text || !target->text)
        return err_set(e, E_ARG, "%s has no vocabulary: a scorer reads the text of tokens",
                       m->text ? target->core.name : m->core.name);
    page_scorer *s = *out = mem_calloc(1, sizeof *s);
    if (!s)
        return err_memory(e, "a scorer", sizeof *s);
    s->target = target;
    const carat_session_options o = options_for(m, n_ctx);
    st = carat_session_open(m, &o, &s->s, e);
    st = st ? st : importance_check(s->s, e);
    if (st) {
        page_scorer_close(s);
        *out = NULL;
    }
    return st;
}

void page_scorer_close(page_scorer *s)
{
    if (!s)
        return;
    carat_session_close(s->s);
    id_list_free(&s->ids);
    str_free(&s->text);
    mem_free(s->value);
    mem_free(s->page_end);
    mem_free(s);
}

/* The text of the tokens, and where the bytes of each page end. */
static status spell(page_scorer *s, const int32_t *ids, int64_t n, err *e)
{
    int64_t n_pages = (n + KV_PAGE - 1) / KV_PAGE;
    if (n_pages > s->pages_cap) {
        void *at = mem_realloc(s->page_end, (size_t)n_pages, sizeof *s->page_end);
        if (!at)
            return err_memory(e, "scores of pages", (size_t)n_pages * sizeof *s->page_end);
        s->page_end = at;
        s->pages_cap = n_pages;
    }
    str_cut(&s->text, 0);
    for (int64_t i = 0; i < n; i++) {
        size_t len;
        const char *bytes = vocab_text(s->target->text, ids[i], true, &len);
        if (bytes)
            str_put(&s->text, bytes, len);
        s->page_end[i / KV_PAGE] = (int64_t)s->text.n;
    }
    return s->text.bad ? err_memory(e, "the text of a context", s->text.n) : OK;
}

/* The importance of the scorer's tokens; *first: of them, the first that has one. */
static status measure(page_scorer *s, int64_t *first, err *e)
{
    int64_t n = s->ids.n, n_ctx = carat_session_n_ctx(s->s), part = n_ctx / PARTS;
    int64_t from = n > n_ctx ? (n - n_ctx + part - 1) / part * part : 0;
    if (n > s->value_cap) {
        void *at = mem_realloc(s->value, (size_t)n, sizeof *s->value);
        if (!at)
            return err_memory(e, "scores of pages", (size_t)n * sizeof *s->value);
        s->value = at;
        s->value_cap = n;
    }
    status st = OK;
    if (n - from > CARAT_IMPORTANCE_TAIL)
        st = carat_importance(s->s, s->ids.at + from, n - from, s->value + from, e);
    else
        from = n; /* too short a text: every page is worth the same */
    if (!st)
        *first = from;
    return st;
}

/* Each token's value goes to the page that has the middle of its bytes. */
static void gather(const page_scorer *s, int64_t first, int64_t n_pages, float *score)
{
    const vocab *v = s->target->scorer->text;
    int64_t at = 0, page = 0, n_of = 0;
    double sum = 0;
    memset(score, 0, (size_t)n_pages * sizeof *score);
    for (int64_t i = 0; i < s->ids.n; i++) {
        size_t len = 0;
        vocab_text(v, s->ids.at[i], true, &len);
        int64_t middle = at + (int64_t)len / 2;
        while (page < n_pages - 1 && middle >= s->page_end[page]) {
            page++;
            sum = n_of = 0;
        }
        at += (int64_t)len;
        if (i < first)
            continue;
        sum += s->value[i];
        score[page] = (float)(sum / (double)++n_of);
    }
}

status page_scorer_ask(page_scorer *s, const int32_t *ids, int64_t n, float *score, err *e)
{
    const vocab *v = s->target->scorer->text;
    int64_t first = 0;
    status st;
    s->ids.n = 0;
    if ((st = spell(s, ids, n, e)))
        return st;
    if (vocab_bos(v) >= 0 && (st = id_list_put(&s->ids, vocab_bos(v), e)))
        return st;
    if ((st = vocab_encode(v, s->text.at, s->text.n, SPECIAL_NONE, &s->ids, e)) ||
        (st = measure(s, &first, e)))
        return st;
    gather(s, first, (n + KV_PAGE - 1) / KV_PAGE, score);
    return OK;
}
