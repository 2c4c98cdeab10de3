/* compress.c - prompt compression: texts to tokens to values to spans, and a memory of spans.
 *
 *     messages -> compress_find -> for each text:
 *         remembered?                         -> its spans
 *         else text, question -> tokens of the scorer -> its values -> compress_choose
 *     -> compress_put -> messages that are rendered like any others
 *
 * text/compress.h has the rules; here is what needs a model. A text is scored alone, with its
 * question behind it: so its spans depend on no other message, and a longer conversation scores its
 * new texts only.
 */
#include "base/hash.h"
#include "base/mem.h"
#include "engine/compress_int.h"
#include "engine/engine_int.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    PART_LEAST = 64,           /* tokens of a text that a scorer must have room for */
    MEMORY_DEFAULT = 64 << 20, /* bytes */
    ENTRIES_MAX = 4096         /* texts in it: a look compares the hashes of all */
};

/* ---- The memory ------------------------------------------------------------------------------ */

/* The spans of a text, and the inputs that they depend on. */
typedef struct memo {
    uint64_t hash;
    const carat_model *model;
    int32_t n_ctx;
    double ratio;
    char *bytes; /* the text, then the question */
    size_t n_text, n_query;
    carat_span *span;
    int32_t n_spans;
    int64_t n_tokens, n_kept;
    uint64_t used; /* by order */
} memo;

struct carat_compressor {
    pthread_mutex_t lock; /* of all below */
    memo *at;             /* [ENTRIES_MAX] */
    int32_t n;
    size_t n_bytes, max_bytes;
    uint64_t clock;
};

carat_status carat_compressor_open(carat_compressor **out, size_t max_bytes, carat_error *e)
{
    carat_compressor *c = *out = mem_calloc(1, sizeof *c);
    if (c)
        c->at = mem_calloc(ENTRIES_MAX, sizeof *c->at);
    if (!c || !c->at) {
        if (c)
            mem_free(c->at);
        mem_free(c);
        *out = NULL;
        return err_memory(e, "the memory of shortened texts", ENTRIES_MAX * sizeof *c->at);
    }
    pthread_mutex_init(&c->lock, NULL);
    c->max_bytes = max_bytes ? max_bytes : MEMORY_DEFAULT;
    return OK;
}

static size_t memo_bytes(const memo *m)
{
    return m->n_text + m->n_query + (size_t)m->n_spans * sizeof *m->span;
}

static void forget(carat_compressor *c, int32_t i)
{
    c->n_bytes -= memo_bytes(&c->at[i]);
    mem_free(c->at[i].bytes);
    mem_free(c->at[i].span);
    c->at[i] = c->at[--c->n];
}

void carat_compressor_close(carat_compressor *c)
{
    if (!c)
        return;
    while (c->n)
        forget(c, c->n - 1);
    pthread_mutex_destroy(&c->lock);
    mem_free(c->at);
    mem_free(c);
}

static bool is_same(const memo *a, const memo *b)
{
    return a->hash == b->hash && a->model == b->model && a->n_ctx == b->n_ctx &&
           !memcmp(&a->ratio, &b->ratio, sizeof a->ratio) && a->n_text == b->n_text &&
           a->n_query == b->n_query && !memcmp(a->bytes, b->bytes, a->n_text + a->n_query);
}

/* The key of a text; bytes is to be freed. */
static status key_of(memo *key, const carat_scorer *s, double ratio, const compress_text *t, err *e)
{
    *key = (memo){.model = s->model,
                  .n_ctx = s->n_ctx,
                  .ratio = ratio,
                  .n_text = t->n,
                  .n_query = t->n_query};
    if (!(key->bytes = mem_alloc(t->n + t->n_query + 1)))
        return err_memory(e, "a text to shorten", t->n + t->n_query);
    memcpy(key->bytes, t->text, t->n);
    memcpy(key->bytes + t->n, t->query, t->n_query);
    key->hash = hash64(key->bytes, t->n + t->n_query);
    return OK;
}

/* Copies what is remembered of the key. *found: it is. */
static status recall(carat_compressor *c, arena *mem, const memo *key, carat_compressed_text *to,
                     bool *found, err *e)
{
    status st = OK;
    *found = false;
    pthread_mutex_lock(&c->lock);
    for (int32_t i = 0; i < c->n && !*found; i++) {
        memo *m = &c->at[i];
        if (!is_same(m, key))
            continue;
        carat_span *span = arena_array(mem, (size_t)m->n_spans, sizeof *span);
        *found = true;
        m->used = ++c->clock;
        if (!span) {
            st = err_memory(e, "the spans of a text", (size_t)m->n_spans * sizeof *span);
            break;
        }
        memcpy(span, m->span, (size_t)m->n_spans * sizeof *span);
        to->span = span;
        to->n_spans = m->n_spans;
        to->n_tokens = m->n_tokens;
        to->n_kept = m->n_kept;
    }
    pthread_mutex_unlock(&c->lock);
    return st;
}

/* Takes the key's bytes, unless they are too many. */
static status remember(carat_compressor *c, memo *key, const carat_compressed_text *t, err *e)
{
    memo m = *key;
    m.n_spans = t->n_spans;
    m.n_tokens = t->n_tokens;
    m.n_kept = t->n_kept;
    if (memo_bytes(&m) > c->max_bytes / 2)
        return OK;
    if (!(m.span = mem_calloc((size_t)m.n_spans, sizeof *m.span)))
        return err_memory(e, "the spans of a text", (size_t)m.n_spans * sizeof *m.span);
    key->bytes = NULL;
    memcpy(m.span, t->span, (size_t)m.n_spans * sizeof *m.span);
    pthread_mutex_lock(&c->lock);
    bool there = false;
    for (int32_t i = 0; i < c->n && !there; i++)
        there = is_same(&c->at[i], &m); /* another thread was faster */
    while (!there && c->n && (c->n == ENTRIES_MAX || c->n_bytes + memo_bytes(&m) > c->max_bytes)) {
        int32_t oldest = 0;
        for (int32_t i = 1; i < c->n; i++)
            oldest = c->at[i].used < c->at[oldest].used ? i : oldest;
        forget(c, oldest);
    }
    if (!there) {
        m.used = ++c->clock;
        c->n_bytes += memo_bytes(&m);
        c->at[c->n++] = m;
    }
    pthread_mutex_unlock(&c->lock);
    if (there) {
        mem_free(m.bytes);
        mem_free(m.span);
    }
    return OK;
}

/* ---- Values ---------------------------------------------------------------------------------- */

typedef struct scored {
    int32_t *ids; /* the text's tokens, then separator and question */
    int64_t n, n_query, n_tail;
    size_t *end;
    float *value;
} scored;

static void scored_free(scored *x)
{
    mem_free(x->ids);
    mem_free(x->end);
    mem_free(x->value);
}

/* Appends the tokens of a text to x->ids; *n: how many. */
static status append_tokens(const carat_model *m, const char *text, size_t n_bytes, scored *x,
                            int64_t have, int64_t *n, err *e)
{
    int64_t more = carat_tokenize(m, text, n_bytes, 0, NULL, 0, e);
    if (more < 0)
        return e && e->status ? e->status : E_MEMORY;
    int32_t *ids = mem_realloc(x->ids, (size_t)(have + more) + 1, sizeof *ids);
    if (!ids)
        return err_memory(e, "the tokens of a text", (size_t)(have + more) * sizeof *ids);
    x->ids = ids;
    if (carat_tokenize(m, text, n_bytes, 0, ids + have, more, e) != more)
        return e && e->status ? e->status : E_MEMORY;
    *n = more;
    return OK;
}

/* Where each token of the text ends. E_UNSUPPORTED: the tokens are of another text. */
static status find_ends(const carat_model *m, const compress_text *t, scored *x, err *e)
{
    size_t at = 0;
    bool same = true;
    x->end = mem_calloc((size_t)x->n + 1, sizeof *x->end);
    if (!x->end)
        return err_memory(e, "the tokens of a text", (size_t)x->n * sizeof *x->end);
    for (int64_t i = 0; i < x->n && same; i++) {
        const char *bytes;
        int32_t n = carat_token_bytes(m, x->ids[i], true, &bytes);
        same = n >= 0 && (size_t)n <= t->n - at && !memcmp(t->text + at, bytes, (size_t)n);
        at += same ? (size_t)n : 0;
        x->end[i] = at;
    }
    if (same && at == t->n)
        return OK;
    carat_model_info info;
    carat_model_get_info(m, &info);
    return err_set(
        e, E_UNSUPPORTED,
        "the scorer %.100s cannot read a text of the conversation: its tokens do not give "
        "it back byte for byte",
        info.name);
}

static status tokenize_all(const carat_model *m, const compress_text *t, scored *x, err *e)
{
    static const char gap[] = "\n\n";
    int64_t n_gap, n_query, skip;
    status st;
    if ((st = append_tokens(m, t->text, t->n, x, 0, &x->n, e)) || (st = find_ends(m, t, x, e)) ||
        (st = append_tokens(m, gap, sizeof gap - 1, x, x->n, &n_gap, e)) ||
        (st = append_tokens(m, t->query, t->n_query, x, x->n + n_gap, &n_query, e)))
        return st;
    skip = n_query > QUERY_MAX ? n_query - QUERY_MAX : 0;
    x->n_query = n_query - skip;
    x->n_tail = n_gap + x->n_query;
    int32_t *query = x->ids + x->n + n_gap;
    memmove(query, query + skip, (size_t)x->n_query * sizeof *query);
    return OK;
}

/* Less their mean, over their standard deviation: values of parts of a text become comparable. */
static void normalise(float *v, int64_t n)
{
    double mean = 0, square = 0;
    for (int64_t i = 0; i < n; i++)
        mean += (double)v[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        square += ((double)v[i] - mean) * ((double)v[i] - mean) / (double)n;
    for (int64_t i = 0; i < n; i++)
        v[i] = square > 0 ? (float)(((double)v[i] - mean) / sqrt(square)) : 0;
}

/* A text beyond the scorer's context goes in parts of about equal length, each with the question
 * behind it. */
static status score_text(const carat_scorer *s, scored *x, err *e)
{
    int32_t bos = carat_token_bos(s->model);
    int64_t extra = x->n_tail + (bos >= 0), most = s->n_ctx - extra;
    status st = OK;
    if (most < PART_LEAST)
        return err_set(e, E_LIMIT,
                       "the scorer's context of %d tokens has no room for a question of %lld",
                       s->n_ctx, (long long)x->n_query);
    int64_t parts = (x->n + most - 1) / most, size = (x->n + parts - 1) / parts;
    int32_t *ids = mem_calloc((size_t)(size + extra), sizeof *ids);
    float *value = mem_calloc((size_t)(size + extra), sizeof *value);
    x->value = mem_calloc((size_t)x->n + 1, sizeof *x->value);
    if (!ids || !value || !x->value)
        st = err_memory(e, "the values of a text", (size_t)(size + extra) * 2 * sizeof *value);
    for (int64_t at = 0; at < x->n && !st; at += size) {
        int64_t n = x->n - at < size ? x->n - at : size, k = 0;
        if (bos >= 0)
            ids[k++] = bos;
        memcpy(ids + k, x->ids + at, (size_t)n * sizeof *ids);
        memcpy(ids + k + n, x->ids + x->n, (size_t)x->n_tail * sizeof *ids);
        if ((st = s->score(s->user, ids, k + n + x->n_tail, value, e)))
            break;
        memcpy(x->value + at, value + k, (size_t)n * sizeof *value);
        if (parts > 1)
            normalise(x->value + at, n);
    }
    mem_free(value);
    mem_free(ids);
    return st;
}

/* ---- A text ---------------------------------------------------------------------------------- */

_Static_assert(sizeof(carat_span) == sizeof(text_span) &&
                   offsetof(carat_span, n) == offsetof(text_span, n),
               "spans are copied as bytes");

static status choose_spans(const compress_text *t, const scored *x, double ratio, arena *mem,
                           carat_compressed_text *to, err *e)
{
    compress_result r;
    status st =
        compress_choose(&(compress_input){.text = t->text,
                                          .n = t->n,
                                          .end = x->end,
                                          .id = x->ids,
                                          .value = x->value,
                                          .n_tokens = x->n,
                                          .query_id = x->ids + x->n + x->n_tail - x->n_query,
                                          .n_query = x->n_query,
                                          .query = t->query,
                                          .n_query_bytes = t->n_query,
                                          .keep = ratio > 0 ? ratio : compress_keep_of(x->n)},
                        &r, e);
    if (st)
        return st;
    carat_span *span = arena_array(mem, r.n, sizeof *span);
    if (span) {
        memcpy(span, r.span, r.n * sizeof *span);
        to->span = span;
        to->n_spans = (int32_t)r.n;
        to->n_tokens = x->n;
        to->n_kept = r.n_kept;
    } else {
        st = err_memory(e, "the spans of a text", r.n * sizeof *span);
    }
    compress_result_free(&r);
    return st;
}

/* Without spans: the text is too short to be worth it. */
static status shorten(carat_compressor *c, const carat_scorer *s, double ratio,
                      const compress_text *t, arena *mem, carat_compressed_text *to, err *e)
{
    memo key;
    scored x = {0};
    bool found = false;
    status st = key_of(&key, s, ratio, t, e);
    *to = (carat_compressed_text){
        .message = (int32_t)t->message, .part = (int32_t)t->part, .text = t->text, .n_text = t->n};
    if (!st)
        st = recall(c, mem, &key, to, &found, e);
    if (!st && !found && !(st = tokenize_all(s->model, t, &x, e)) && x.n >= COMPRESS_LEAST &&
        !(st = score_text(s, &x, e)) && !(st = choose_spans(t, &x, ratio, mem, to, e)))
        st = remember(c, &key, to, e);
    scored_free(&x);
    mem_free(key.bytes);
    return st;
}

/* ---- A conversation -------------------------------------------------------------------------- */

static status count_rendered(const carat_model *m, const carat_talk *t,
                             const carat_chat_options *chat, int64_t *n, err *e)
{
    carat_chat r = {0};
    status st = carat_talk_render(m, t, chat, &r, e);
    if (!st)
        *n = r.n_ids;
    carat_chat_free(&r);
    return st;
}

/* The least prompt that "auto" shortens. */
static int64_t least_of(const carat_compress_options *opt)
{
    return opt->least_tokens > 0 ? opt->least_tokens : CARAT_COMPRESS_FROM;
}

static status keep_all(carat_compressed *out, const char *why)
{
    snprintf(out->why, sizeof out->why, "%.*s", (int)sizeof out->why - 1, why);
    out->n_kept = out->n_original;
    return OK;
}

static status keep_short(carat_compressed *out, const char *what, const carat_compress_options *opt)
{
    char why[100];
    snprintf(why, sizeof why, "%s is shorter than %lld tokens", what, (long long)least_of(opt));
    return keep_all(out, why);
}

status compress_all(carat_compressor *c, const carat_scorer *s, double ratio,
                    const compress_texts *texts, str *now, carat_compressed *out, err *e)
{
    arena *mem = out->own;
    status st = OK;
    out->at = arena_array(mem, texts->n + 1, sizeof *out->at);
    if (!out->at)
        return err_memory(e, "the texts of a conversation", texts->n * sizeof *out->at);
    for (size_t i = 0; i < texts->n && !st; i++) {
        carat_compressed_text *to = &out->at[out->n];
        st = shorten(c, s, ratio, &texts->at[i], mem, to, e);
        if (st || !to->n_spans || to->span[0].n == to->n_text)
            continue;
        compress_join(to->text, (const text_span *)(const void *)to->span, (size_t)to->n_spans,
                      &now[i]);
        str_put(&now[i], to->text + to->n_text, texts->at[i].n_tail);
        out->n++;
        if (now[i].bad)
            st = err_memory(e, "a shortened text", now[i].n);
    }
    return st;
}

status compress_open(carat_compressed *out, err *e)
{
    *out = (carat_compressed){0};
    out->own = mem_calloc(1, sizeof(arena));
    return out->own ? OK : err_memory(e, "a conversation to shorten", sizeof(arena));
}

/* An error that leaves the conversation as it is where nobody insists. */
static status forgive(const carat_compress_options *opt, carat_compressed *out, status st, err *why,
                      err *e)
{
    if (opt->ratio <= 0 && st == E_UNSUPPORTED) {
        out->n = 0;
        return keep_all(out, why->text);
    }
    return err_set(e, st, "%s", why->text);
}

static status take_text(carat_compressed *out, str *s, err *e)
{
    if (s->bad)
        return err_memory(e, "a shortened conversation", s->n);
    out->n_text = s->n;
    out->text = str_take(s);
    return OK;
}

static const char all_code[] =
    "nothing is left out of the long texts: they are code between fences, which stays whole, or "
    "have no 512 tokens";

status compress_find_question(const carat_scorer *s, const char *text, size_t n, size_t *at, err *e)
{
    compress_text all = {.text = text, .n = n, .query = "", .part = -1};
    scored x = {0};
    status st = tokenize_all(s->model, &all, &x, e);
    size_t k = 0;
    if (!st && x.n > QUERY_MAX) {
        size_t to = x.end[x.n - 1 - QUERY_MAX];
        for (k = to; k && text[k - 1] != '\n';)
            k--;
        if (!k || to - k > 1024)
            for (k = to; k && text[k - 1] != ' ' && text[k - 1] != '\n';)
                k--;
    }
    if (!st)
        *at = k;
    scored_free(&x);
    return st;
}

/* A division inside a block of code between fences moves to the block's first line: code is kept or
 * left out as a whole. */
static size_t before_fence(const char *text, size_t n, size_t at)
{
    size_t begin = 0;
    char open = 0;
    for (size_t line = 0; line < at && line < n;) {
        size_t k = line + strspn(text + line, " \t>"), marks = 0;
        char mark = text[k] == '`' || text[k] == '~' ? text[k] : 0;
        while (mark && text[k + marks] == mark)
            marks++;
        if (marks >= 3 && (!open || open == mark)) {
            open = open ? 0 : mark;
            begin = line;
        }
        const char *end = memchr(text + line, '\n', n - line);
        line = end ? (size_t)(end - text) + 1 : n;
    }
    return open ? begin : at;
}

/* Divides a text that ends with its question: the end stays whole, and its last paragraph is what
 * the rest is shortened for, where this is the question of the whole conversation. */
static status divide_text(const carat_scorer *s, compress_text *t, err *e)
{
    size_t at = 0, end = t->n;
    status st = compress_find_question(s, t->text, t->n, &at, e);
    if (st)
        return st;
    at = before_fence(t->text, t->n, at);
    if (t->n_query >= t->n && !memcmp(t->query + t->n_query - t->n, t->text, t->n)) {
        size_t q = at;
        while (end > at && strchr(" \t\r\n", t->text[end - 1]))
            end--;
        for (size_t k = end; k > at + 1 && q == at; k--)
            if (t->text[k - 1] == '\n' && t->text[k - 2] == '\n')
                q = k;
        t->query = t->text + q;
        t->n_query = t->n - q;
    }
    t->n_tail = t->n - at;
    t->n = at;
    return OK;
}

/* Divides the texts that end with a question, and leaves out those that are short without it. */
static status divide_all(const carat_scorer *s, compress_texts *texts, err *e)
{
    status st = OK;
    size_t n = 0;
    for (size_t i = 0; i < texts->n && !st; i++) {
        compress_text t = texts->at[i];
        if (t.asks)
            st = divide_text(s, &t, e);
        if (t.n >= COMPRESS_LEAST)
            texts->at[n++] = t;
    }
    if (!st)
        texts->n = n;
    return st;
}

static status put_texts(const carat_talk *t, const compress_texts *texts, const str *now,
                        carat_compressed *out, err *e)
{
    carat_talk *to = arena_alloc(out->own, sizeof *to);
    if (to) {
        *to = (carat_talk){.mem = out->own};
        talk_copy(t, to);
        compress_put(texts, now, to);
    }
    if (!to || to->bad)
        return err_memory(e, "a shortened conversation", t->n * sizeof *t->turn);
    out->talk = to;
    return OK;
}

static status compress_messages(carat_compressor *c, const carat_scorer *s, const carat_talk *t,
                                const carat_compress_options *opt, carat_compressed *out, err *e)
{
    compress_texts texts;
    str *now = NULL;
    err why = {0};
    status st;
    if ((st = compress_find(t, COMPRESS_LEAST, out->own, &texts, e)))
        return st;
    if ((st = divide_all(s, &texts, &why)))
        return forgive(opt, out, st, &why, e);
    if (!texts.n)
        return keep_all(out, "no message that may be shortened is long enough");
    if (!(now = mem_calloc(texts.n, sizeof *now)))
        return err_memory(e, "the texts of a conversation", texts.n * sizeof *now);
    if ((st = compress_all(c, s, opt->ratio, &texts, now, out, &why)))
        st = forgive(opt, out, st, &why, e);
    else if (!out->n)
        st = keep_all(out, all_code);
    else
        st = put_texts(t, &texts, now, out, e);
    for (size_t i = 0; i < texts.n; i++)
        str_free(&now[i]);
    mem_free(now);
    return st;
}

carat_status carat_compress_chat(carat_compressor *c, const carat_model *m, const carat_scorer *s,
                                 const carat_talk *t, const carat_chat_options *chat,
                                 const carat_compress_options *opt, carat_compressed *out,
                                 carat_error *e)
{
    status st = compress_open(out, e);
    if (st || (st = count_rendered(m, t, chat, &out->n_original, e)))
        goto out;
    if (opt->ratio <= 0 && out->n_original < least_of(opt))
        st = keep_short(out, "the conversation", opt);
    else if (opt->ratio <= 0 && jtree_truthy(t->tools))
        st = keep_all(out, "the conversation has tools");
    else if (!(st = compress_messages(c, s, t, opt, out, e)) && out->talk)
        st = count_rendered(m, out->talk, chat, &out->n_kept, e);
out:
    if (st)
        carat_compressed_free(out);
    return st;
}

/* ---- A text without a chat format ------------------------------------------------------------ */

/* Does it spell control tokens? *n: its tokens. */
static status check_plain(const carat_model *m, const char *text, size_t n_bytes, int64_t *n,
                          err *e)
{
    int64_t special = carat_tokenize(m, text, n_bytes, CARAT_TOK_SPECIAL, NULL, 0, e);
    scored plain = {0}, with = {0};
    status st = append_tokens(m, text, n_bytes, &plain, 0, n, e);
    if (!st && special == *n) { /* the numbers may agree by chance */
        with.ids = mem_calloc((size_t)*n + 1, sizeof *with.ids);
        if (!with.ids)
            st = err_memory(e, "the tokens of a text", (size_t)*n * sizeof *with.ids);
        else if (carat_tokenize(m, text, n_bytes, CARAT_TOK_SPECIAL, with.ids, *n, e) != *n)
            st = E_MEMORY;
    }
    if (!st && (special != *n || memcmp(plain.ids, with.ids, (size_t)*n * sizeof *plain.ids)))
        st = err_set(e, E_UNSUPPORTED,
                     "the prompt spells control tokens, so it is a rendered conversation: only its "
                     "messages can be shortened");
    scored_free(&plain);
    scored_free(&with);
    return st;
}

carat_status carat_compress_text(carat_compressor *c, const carat_model *m, const carat_scorer *s,
                                 const char *text, size_t n, const carat_compress_options *opt,
                                 carat_compressed *out, carat_error *e)
{
    str now = {0};
    size_t at = 0, n_texts = 0;
    err why = {0};
    status st = compress_open(out, e);
    if (st || (st = check_plain(m, text, n, &out->n_original, e)))
        goto out;
    if (opt->ratio <= 0 && out->n_original < least_of(opt)) {
        st = keep_short(out, "the prompt", opt);
        goto out;
    }
    if (!(st = compress_find_question(s, text, n, &at, &why))) {
        compress_text t = {
            .text = text, .n = at, .part = -1, .query = text + at, .n_query = n - at};
        const compress_texts texts = {.at = &t, .n = at >= COMPRESS_LEAST};
        n_texts = texts.n;
        st = compress_all(c, s, opt->ratio, &texts, &now, out, &why);
    }
    if (st) {
        st = forgive(opt, out, st, &why, e);
    } else if (!out->n) {
        st = keep_all(out, n_texts ? all_code : "the prompt is not long enough");
    } else {
        str_put(&now, text + at, n - at);
        if (!(st = take_text(out, &now, e)))
            out->n_kept = carat_tokenize(m, out->text, out->n_text, 0, NULL, 0, e);
        if (!st && out->n_kept < 0)
            st = E_MEMORY;
    }
out:
    str_free(&now);
    if (st)
        carat_compressed_free(out);
    return st;
}

void carat_compressed_free(carat_compressed *x)
{
    mem_free(x->text);
    if (x->own)
        arena_free(x->own);
    mem_free(x->own);
    *x = (carat_compressed){0};
}
