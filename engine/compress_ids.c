/* compress_ids.c - compression of a prompt that is tokens: its runs of text are shortened as the
 * texts of a conversation are (compress.c), and control tokens stay.
 */
#include "base/mem.h"
#include "base/utf8.h"
#include "engine/compress_int.h"
#include "engine/engine_int.h"

#include <string.h>

/* A run of tokens that are text, or of control tokens. */
typedef struct stretch {
    int64_t from, to; /* ids */
    char *text;       /* NULL: control tokens */
    size_t n, head;   /* head: bytes at its begin that stay */
    bool may;         /* be shortened */
} stretch;

/* A prompt being shortened. */
typedef struct stretches {
    const carat_model *m;
    const int32_t *ids; /* [n_ids] */
    int64_t n_ids;
    stretch *at; /* [n] */
    size_t n;
    compress_texts texts; /* what is shortened, and owner[i] the stretch of text i */
    size_t *owner;
    str *now;    /* what text i becomes; at NULL: it stays */
    size_t tail; /* bytes at the end of the only text that are its question and stay */
} stretches;

/* The bytes of a token that is text; 0: it is a control token, or a mark of the chat format; -1: it
 * is no token. */
static int32_t text_of(const carat_model *m, const carat_marks *marks, int32_t id,
                       const char **bytes)
{
    for (int32_t i = 0; i < marks->n_all; i++)
        if (marks->all[i] == id)
            return 0;
    return carat_token_is_eog(m, id) ? 0 : carat_token_bytes(m, id, false, bytes);
}

/* Splits the ids, and reads their texts into the arena. */
static status read_stretches(stretches *x, arena *mem, err *e)
{
    const carat_model *m = x->m;
    const int32_t *ids = x->ids;
    int64_t n = x->n_ids;
    str text = {0};
    carat_marks marks;
    status st = OK;
    carat_model_get_marks(m, &marks);
    if (!(x->at = arena_array(mem, (size_t)n + 1, sizeof *x->at)))
        return err_memory(e, "a prompt to shorten", (size_t)n * sizeof *x->at);
    for (int64_t i = 0; i < n && !st; i++) {
        const char *bytes = "", *next;
        int32_t len = text_of(m, &marks, ids[i], &bytes);
        stretch *last = x->n ? &x->at[x->n - 1] : NULL;
        if (len < 0) {
            st = err_set(e, E_ARG, "token %lld of the prompt is %d, which is no id of the model",
                         (long long)i, (int)ids[i]);
            break;
        }
        if (!last || (last->n == 0) != (len == 0)) {
            last = &x->at[x->n++];
            *last = (stretch){.from = i};
            str_cut(&text, 0);
        }
        str_put(&text, bytes, (size_t)len);
        last->to = i + 1;
        last->n += (size_t)len;
        bool ends = i + 1 == n || (text_of(m, &marks, ids[i + 1], &next) > 0) != (len > 0);
        if (ends && last->n)
            last->text = text.bad ? NULL : arena_strndup(mem, text.at, text.n);
        if (text.bad || (ends && last->n && !last->text))
            st = err_memory(e, "a prompt to shorten", text.n);
    }
    str_free(&text);
    return st;
}

/* Which stretches may be shortened: x->at[i].may and .head. The question is the last one with more
 * than a few tokens. */
static stretch *choose_stretches(stretches *x)
{
    enum { QUESTION_LEAST = 8 };
    static const char user[] = "user\n";
    bool marked = false; /* a control token other than the first has come */
    stretch *question = NULL;
    for (size_t i = 0; i < x->n; i++) {
        stretch *s = &x->at[i];
        if (!s->text) {
            marked |= s->from > 0 || s->to - s->from > 1 || x->ids[0] != carat_token_bos(x->m);
            continue;
        }
        bool from_user = s->n > sizeof user && !memcmp(s->text, user, sizeof user - 1);
        s->head = marked && from_user ? sizeof user - 1 : 0;
        s->may = (!marked || from_user) && utf8_valid(s->text, s->n);
        question = s->to - s->from >= QUESTION_LEAST ? s : question;
    }
    return question;
}

/* The texts that are shortened, with their question. */
static status list_stretches(const carat_scorer *s, stretches *x, const stretch *question, err *e)
{
    compress_texts *texts = &x->texts;
    size_t at = 0;
    for (size_t i = 0; i < x->n && question; i++) {
        const stretch *y = &x->at[i];
        if (y->may && y != question && y->n - y->head >= COMPRESS_LEAST) {
            x->owner[texts->n] = i;
            texts->at[texts->n++] = (compress_text){.text = y->text + y->head,
                                                    .n = y->n - y->head,
                                                    .part = -1,
                                                    .query = question->text + question->head,
                                                    .n_query = question->n - question->head};
        }
    }
    if (texts->n || !question || !question->may)
        return OK;
    const char *text = question->text + question->head;
    size_t n = question->n - question->head;
    status st = compress_find_question(s, text, n, &at, e);
    if (!st && at >= COMPRESS_LEAST) {
        x->owner[0] = (size_t)(question - x->at);
        x->tail = n - at;
        texts->at[texts->n++] = (compress_text){
            .text = text, .n = at, .part = -1, .query = text + at, .n_query = n - at};
    }
    return st;
}

/* The ids of all stretches, shortened ones from their new texts; ids as they were where these are
 * more. */
static status join_stretches(const stretches *x, int32_t *out, int64_t *n_out, err *e)
{
    const int64_t n = x->n_ids;
    size_t k = 0;
    int64_t at = 0;
    for (size_t i = 0; i < x->n; i++) {
        const stretch *y = &x->at[i];
        const str *shorter = k < x->texts.n && x->owner[k] == i ? &x->now[k++] : NULL;
        int64_t some = y->to - y->from;
        if (shorter && shorter->at) {
            str all = {0};
            str_put(&all, y->text, y->head);
            str_put(&all, shorter->at, shorter->n);
            str_put(&all, y->text + y->n - x->tail, x->tail);
            some = all.bad ? -1 : carat_tokenize(x->m, all.at, all.n, 0, out + at, n - at, e);
            bool bad = all.bad;
            str_free(&all);
            if (some < 0)
                return bad ? err_memory(e, "a shortened prompt", (size_t)n) : E_MEMORY;
        } else if (some <= n - at) {
            memcpy(out + at, x->ids + y->from, (size_t)some * sizeof *out);
        }
        if (some > n - at) {
            memcpy(out, x->ids, (size_t)n * sizeof *out);
            *n_out = n;
            return OK;
        }
        at += some;
    }
    *n_out = at;
    return OK;
}

carat_status carat_compress_ids(carat_compressor *c, const carat_model *m, const carat_scorer *s,
                                const int32_t *ids, int64_t n, const carat_compress_options *opt,
                                int32_t *out, int64_t *n_out, carat_error *e)
{
    carat_compressed spans;
    stretches x = {.m = m, .ids = ids, .n_ids = n};
    status st = compress_open(&spans, e);
    if (st || (st = read_stretches(&x, spans.own, e)))
        goto out;
    x.texts.at = arena_array(spans.own, x.n + 1, sizeof *x.texts.at);
    x.owner = arena_array(spans.own, x.n + 1, sizeof *x.owner);
    x.now = mem_calloc(x.n + 1, sizeof *x.now);
    if (!x.texts.at || !x.owner || !x.now) {
        st = err_memory(e, "a prompt to shorten", x.n * sizeof *x.texts.at);
        goto out;
    }
    if (!(st = list_stretches(s, &x, choose_stretches(&x), e)) &&
        !(st = compress_all(c, s, opt->ratio, &x.texts, x.now, &spans, e)))
        st = join_stretches(&x, out, n_out, e);
out:
    for (size_t i = 0; i < x.texts.n && x.now; i++)
        str_free(&x.now[i]);
    mem_free(x.now);
    carat_compressed_free(&spans);
    return st;
}
