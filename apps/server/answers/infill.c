/* infill.c - see infill.h. */
#include "apps/server/answers/infill.h"

#include <string.h>

/* ---- Marks ---- */

static int32_t id_of_key(const carat_model *m, const char *key)
{
    carat_meta v;
    bool found = carat_model_find_meta(m, key, &v) && v.kind == CARAT_META_INT && v.i >= 0 &&
                 v.i < INT32_MAX;
    return found ? (int32_t)v.i : -1;
}

/* The token that a text is by itself; -1: none. A text is tried until one is a token. */
static int32_t id_of_piece(const carat_model *m, const char *const *pieces)
{
    for (; *pieces; pieces++) {
        int32_t id[2];
        int64_t n = carat_tokenize(m, *pieces, strlen(*pieces), CARAT_TOK_SPECIAL, id, 2, NULL);
        if (n == 1)
            return id[0];
    }
    return -1;
}

static int32_t find_mark(const carat_model *m, const char *key, const char *const *pieces)
{
    int32_t id = id_of_key(m, key);
    return id >= 0 ? id : id_of_piece(m, pieces);
}

infill_marks infill_find(const carat_model *m)
{
    static const char *const pre[] = {"<|fim_prefix|>", "<fim_prefix>", "<fim-prefix>", "<PRE>",
                                      NULL};
    static const char *const suf[] = {"<|fim_suffix|>", "<fim_suffix>", "<fim-suffix>", "<SUF>",
                                      NULL};
    static const char *const mid[] = {"<|fim_middle|>", "<fim_middle>", "<fim-middle>", "<MID>",
                                      NULL};
    static const char *const rep[] = {"<|fim_repo|>", "<|repo_name|>", "<reponame>", NULL};
    static const char *const sep[] = {"<|file_sep|>", "<|file_separator|>", NULL};
    return (infill_marks){.pre = find_mark(m, "tokenizer.ggml.fim_pre_token_id", pre),
                          .suf = find_mark(m, "tokenizer.ggml.fim_suf_token_id", suf),
                          .mid = find_mark(m, "tokenizer.ggml.fim_mid_token_id", mid),
                          .rep = find_mark(m, "tokenizer.ggml.fim_rep_token_id", rep),
                          .sep = find_mark(m, "tokenizer.ggml.fim_sep_token_id", sep)};
}

bool infill_possible(const infill_marks *k)
{
    return k->pre >= 0 && k->suf >= 0 && k->mid >= 0;
}

/* ---- The prompt ---- */

typedef struct ids {
    int32_t *at;
    int64_t n;
} ids;

typedef struct maker {
    request *rq;
    const carat_model *m;
    problem *p;
} maker;

/* The tokens of a text, in which marks are only text. */
static ids encode(const maker *k, const char *text, size_t n)
{
    err e = {0};
    ids x = {.n = carat_tokenize(k->m, text, n, 0, NULL, 0, &e)};
    x.at = x.n >= 0 ? arena_array(&k->rq->mem, (size_t)x.n + 1, sizeof *x.at) : NULL;
    if (x.n < 0)
        problem_from(k->p, &e);
    else if (!x.at)
        problem_set(k->p, 503, "", "no memory for a prompt of %lld tokens", (long long)x.n);
    else
        carat_tokenize(k->m, text, n, 0, x.at, x.n, &e);
    return x.at ? x : (ids){0};
}

/* Appends one text after another to `to`, whose array holds them. */
static void append(ids *to, ids x)
{
    if (x.n)
        memcpy(to->at + to->n, x.at, (size_t)x.n * sizeof *x.at);
    to->n += x.n;
}

static void append_id(ids *to, int32_t id)
{
    if (id >= 0)
        to->at[to->n++] = id;
}

static ids last_of(ids x, int64_t n)
{
    n = n < 0 ? 0 : n;
    return x.n <= n ? x : (ids){x.at + (x.n - n), n};
}

static ids first_of(ids x, int64_t n)
{
    n = n < 0 ? 0 : n;
    return x.n <= n ? x : (ids){x.at, n};
}

/* The other files as one text of tokens, each after its name. */
static ids encode_extra(const maker *k, const infill_marks *marks)
{
    static const char repo[] = "repository\n", between[] = "\n--- snippet ---\n";
    request *rq = k->rq;
    size_t n_all = 8;
    ids *piece = arena_array(&rq->mem, (size_t)rq->n_extra * 2 + 2, sizeof *piece);
    ids out = {0};
    if (!rq->n_extra || !piece) {
        if (!piece)
            problem_set(k->p, 503, "", "no memory for 'input_extra'");
        return out;
    }
    ids head = marks->rep >= 0 ? encode(k, repo, sizeof repo - 1) : out;
    n_all += (size_t)head.n;
    for (int32_t i = 0; i < rq->n_extra && !k->p->status; i++) {
        const char *name = rq->extra[i].name ? rq->extra[i].name : "file";
        bool named = marks->sep >= 0;
        piece[2 * i] =
            named ? encode(k, name, strlen(name)) : encode(k, between, sizeof between - 1);
        piece[2 * i + 1] = encode(k, rq->extra[i].text.text, rq->extra[i].text.n);
        n_all += (size_t)piece[2 * i].n + (size_t)piece[2 * i + 1].n + 4;
    }
    ids line = encode(k, "\n", 1);
    n_all += (size_t)rq->n_extra * (size_t)line.n;
    out.at = k->p->status ? NULL : arena_array(&rq->mem, n_all, sizeof *out.at);
    if (!out.at) {
        problem_set(k->p, 503, "", "no memory for 'input_extra'");
        return out;
    }
    append_id(&out, marks->rep);
    append(&out, head);
    for (int32_t i = 0; i < rq->n_extra; i++) {
        append_id(&out, marks->sep);
        append(&out, piece[2 * i]);
        if (marks->sep >= 0)
            append(&out, line);
        append(&out, piece[2 * i + 1]);
    }
    return out;
}

static bool refuse(const infill_marks *k, problem *p)
{
    const char *missing = k->pre < 0   ? "begins the text before a gap (fim_pre)"
                          : k->suf < 0 ? "begins the text after a gap (fim_suf)"
                                       : "stands for a gap (fim_mid)";
    p->code = "not_supported_error";
    return problem_set(p, 501, "",
                       "this model cannot fill gaps: its vocabulary has no token that %s", missing);
}

bool infill_encode(request *rq, const served *m, int32_t **out, int64_t *n, problem *p)
{
    enum { MARKS = 8 }; /* tokens that are no text */
    const infill_marks marks = infill_find(m->model);
    const maker k = {rq, m->model, p};
    if (!infill_possible(&marks))
        return refuse(&marks, p);
    ids before = encode(&k, rq->before.text, rq->before.n);
    ids typed = encode(&k, rq->typed.text, rq->typed.n);
    ids after = encode(&k, rq->after.text, rq->after.n);
    ids extra = encode_extra(&k, &marks);
    if (p->status)
        return false;
    /* The answer gets what it asks for, at most half of the context; the text before the gap gets
     * three quarters of the rest. */
    int64_t reserve = rq->max_tokens > 0 ? rq->max_tokens : m->n_ctx / 4;
    int64_t room = m->n_ctx - MARKS - (reserve < m->n_ctx / 2 ? reserve : m->n_ctx / 2);
    typed = last_of(typed, room / 2);
    room -= typed.n;
    int64_t n_after = after.n < room / 4 ? after.n : room / 4;
    before = last_of(before, room - n_after);
    after = first_of(after, room - before.n);
    extra = last_of(extra, room - before.n - after.n);
    ids x = {.at =
                 arena_array(&rq->mem, (size_t)(extra.n + before.n + typed.n + after.n) + MARKS + 1,
                             sizeof *x.at)};
    if (!x.at)
        return problem_set(p, 503, "", "no memory for a prompt");
    append(&x, extra);
    append_id(&x, rq->n_extra ? marks.sep : -1);
    x.n += carat_tokenize(m->model, "", 0, CARAT_TOK_BOS, x.at + x.n, 1, NULL) > 0;
    append_id(&x, marks.pre);
    append(&x, before);
    append(&x, typed);
    append_id(&x, marks.suf);
    append(&x, after);
    append_id(&x, marks.mid);
    *out = x.at;
    *n = x.n;
    return true;
}
