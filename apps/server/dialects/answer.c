/* answer.c - see answer.h. */
#include "apps/server/dialects/answer.h"

#include "apps/jsonw.h"
#include "apps/server/dialects/tool_kinds.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

const dialect *dialect_of(api_kind api)
{
    static const dialect *const all[] = {[API_CHAT] = &chat_dialect,
                                         [API_COMPLETIONS] = &completions_dialect,
                                         [API_RESPONSES] = &responses_dialect,
                                         [API_MESSAGES] = &messages_dialect,
                                         [API_LLAMA] = &llama_dialect,
                                         [API_INFILL] = &llama_dialect,
                                         [API_OLLAMA_CHAT] = &ollama_chat_dialect,
                                         [API_OLLAMA_GENERATE] = &ollama_generate_dialect};
    return all[api];
}

void make_id(char out[ID_BYTES], const char *prefix)
{
    static const char hex[] = "0123456789abcdef";
    unsigned char r[16]; /* random: a client cannot guess the id of another's response */
    size_t n = strlen(prefix);
    if (getrandom(r, sizeof r, 0) != sizeof r) { /* never seen; ids must still differ */
        int64_t now = clock_ns();
        memset(r, 0, sizeof r);
        memcpy(r, &now, sizeof now);
    }
    memcpy(out, prefix, n);
    for (size_t i = 0; i < sizeof r; i++) {
        out[n++] = hex[r[i] >> 4];
        out[n++] = hex[r[i] & 15];
    }
    out[n] = 0;
}

void make_seed(uint32_t *seed)
{
    if (getrandom(seed, sizeof *seed, 0) != sizeof *seed)
        *seed = (uint32_t)clock_ns();
}

bool answers_init(answer *a, const request *rq, const answer_model *m, int32_t n)
{
    *a = (answer){.rq = rq, .m = m, .n = n, .open_part = -1};
    a->created = (int64_t)time(NULL);
    a->start_ms = clock_ms();
    a->choice = mem_calloc((size_t)n, sizeof *a->choice);
    make_id(a->id, dialect_of(rq->api)->id_prefix);
    return a->choice != NULL;
}

void answers_free(answer *a)
{
    for (int32_t i = 0; a->choice && i < a->n; i++) {
        choice *c = &a->choice[i];
        for (int32_t k = 0; k < c->n_parts; k++) {
            str_free(&c->part[k].text);
            mem_free(c->part[k].name);
            mem_free(c->part[k].span);
        }
        mem_free(c->part);
        mem_free(c->token);
        mem_free(c->prompt);
        mem_free(c->span.at);
        mem_free(c->stop);
    }
    mem_free(a->choice);
    *a = (answer){0};
}

static void *grown(answer *a, void *p, int32_t n, int32_t *cap, size_t size)
{
    if (n < *cap)
        return p;
    int32_t want = *cap ? *cap * 2 : 8;
    void *q = mem_realloc(p, (size_t)want, size);
    if (!q)
        a->bad = true;
    else
        *cap = want;
    return q ? q : p;
}

static int32_t answer_add_part(answer *a, choice *c, part_kind kind)
{
    c->part = grown(a, c->part, c->n_parts, &c->cap_parts, sizeof *c->part);
    if (a->bad)
        return -1;
    part *p = &c->part[c->n_parts];
    *p = (part){.kind = kind};
    if (kind == PART_CALL)
        make_id(p->id, dialect_of(a->rq->api)->call_prefix);
    else
        make_id(p->id, kind == PART_TEXT ? "msg_" : "rs_");
    return c->n_parts++;
}

/* Keeps the tokens of a call as they were sampled, for replay.h. */
static void follow_call(answer *a, choice *c, int32_t id)
{
    id_span *s = &c->span;
    if (id == a->m->call_open) {
        s->n = 0;
        s->whole = false;
    } else if (!s->n || s->whole) {
        return;
    }
    s->at = grown(a, s->at, s->n, &s->cap, sizeof *s->at);
    if (!a->bad)
        s->at[s->n++] = id;
    s->whole = id == a->m->call_close;
}

static token_entry entry_of(const carat_event *ev)
{
    token_entry t = {.id = ev->id, .logprob = ev->logprob, .n_top = ev->n_top, .rank = ev->rank};
    if (t.n_top > 20)
        t.n_top = 20;
    if (t.n_top)
        memcpy(t.top, ev->top, (size_t)t.n_top * sizeof *t.top);
    return t;
}

/* Whether the tokens shown are those of the text alone. With the prompt before it, an answer has
 * all its tokens, those without text too: a reader counts them from the end. */
static bool tokens_are_text(const answer *a)
{
    return a->rq->logprobs && !a->rq->echo && a->m->model;
}

static void take_token(answer *a, choice *c, const carat_event *ev)
{
    for (int32_t i = 0; i < a->m->n_marks && !a->rq->echo && !tokens_are_text(a); i++)
        if (ev->id == a->m->marks[i])
            return;
    c->token = grown(a, c->token, c->n_tokens, &c->cap_tokens, sizeof *c->token);
    if (!a->bad)
        c->token[c->n_tokens++] = entry_of(ev);
}

static void take_prompt_token(answer *a, choice *c, const carat_event *ev)
{
    c->prompt = grown(a, c->prompt, c->n_prompt, &c->cap_prompt, sizeof *c->prompt);
    if (!a->bad)
        c->prompt[c->n_prompt++] = entry_of(ev);
}

/* Shows the tokens that the text of ev is made of. Those before it, such as the end of a thought
 * and the white space behind, are dropped; those behind it wait for their text. */
static void show_tokens_of(answer *a, choice *c, const carat_event *ev)
{
    str all = {0};
    const char *bytes = "";
    int32_t n = 0, keep = c->n_shown;
    if (c->n_over &&
        (n = carat_token_bytes(a->m->model, c->token[c->n_shown - 1].id, false, &bytes)) > 0)
        str_put(&all, bytes + (size_t)n - c->n_over, c->n_over);
    for (int32_t i = c->n_shown; i < c->n_tokens; i++)
        if ((n = carat_token_bytes(a->m->model, c->token[i].id, false, &bytes)) > 0)
            str_put(&all, bytes, (size_t)n);
    const char *at = all.n ? memmem(all.at, all.n, ev->text, ev->n_text) : NULL;
    a->bad |= all.bad;
    /* Without it the text has characters in place of invalid bytes: it is made of all tokens. */
    size_t from = at ? (size_t)(at - all.at) : 0, to = at ? from + ev->n_text : all.n;
    size_t pos = c->n_over;
    c->n_over = pos > to ? pos - to : 0;
    for (int32_t i = c->n_shown; i < c->n_tokens; i++) {
        n = carat_token_bytes(a->m->model, c->token[i].id, false, &bytes);
        size_t end = pos + (n > 0 ? (size_t)n : 0);
        if (pos >= to) { /* its text is still held */
            memmove(c->token + keep, c->token + i, (size_t)(c->n_tokens - i) * sizeof *c->token);
            c->n_tokens -= i - keep;
            break;
        }
        if (end > from) {
            c->token[keep++] = c->token[i];
            c->n_over = end > to ? end - to : 0;
        }
        pos = end;
        if (i + 1 == c->n_tokens)
            c->n_tokens = keep;
    }
    c->n_shown = keep;
    str_free(&all);
}

/* The tokens of a thought or a call have no logprobs. */
static void drop_tokens(choice *c)
{
    c->n_tokens = c->n_shown;
    c->n_over = 0;
}

static int32_t take_piece(answer *a, choice *c, part_kind kind, const carat_event *ev, bool *opened)
{
    int32_t i = c->n_parts - 1, shown_before = c->n_shown;
    /* Text comes after the tokens that it is made of. */
    if (kind != PART_TEXT)
        drop_tokens(c);
    else if (tokens_are_text(a))
        show_tokens_of(a, c, ev);
    else
        c->n_shown = c->n_tokens;
    if (i < 0 || c->part[i].kind != kind) {
        i = answer_add_part(a, c, kind);
        if (i >= 0)
            c->part[i].token_from = shown_before;
        *opened = true;
    }
    if (i < 0)
        return -1;
    part *p = &c->part[i];
    p->token_to = c->n_shown;
    str_put(&p->text, ev->text, ev->n_text);
    a->bad |= p->text.bad;
    return a->bad ? -1 : i;
}

/* The call whose pieces come, or a new one. */
static part *growing_call(answer *a, choice *c, const carat_event *ev, bool *opened)
{
    int32_t i = c->n_parts - 1;
    if (i >= 0 && c->part[i].open)
        return &c->part[i];
    if ((i = answer_add_part(a, c, PART_CALL)) < 0)
        return NULL;
    *opened = true;
    c->part[i].open = true;
    c->part[i].name = mem_strdup(ev->name);
    a->bad |= !c->part[i].name;
    return &c->part[i];
}

static int32_t put_in_call(answer *a, choice *c, part *p, const carat_event *ev)
{
    str_put(&p->text, ev->text, ev->n_text);
    a->bad |= p->text.bad;
    return a->bad ? -1 : (int32_t)(p - c->part);
}

/* A call of a tool that is no function has another form than its arguments, so it comes whole. Its
 * tokens are kept for logprobs: what is no call after all is text. */
static int32_t take_call_part(answer *a, choice *c, const carat_event *ev, bool *opened)
{
    const tool_form *t = request_tool(a->rq, ev->name);
    if (t && t->kind && t->kind->call)
        return -1;
    part *p = growing_call(a, c, ev, opened);
    return p ? put_in_call(a, c, p, ev) : -1;
}

static int32_t take_call(answer *a, choice *c, const carat_event *ev, bool *opened)
{
    part *p = growing_call(a, c, ev, opened);
    drop_tokens(c);
    if (!p)
        return -1;
    p->open = false;
    c->n_calls++;
    if (!c->span.whole && p > c->part && p[-1].kind == PART_CALL) {
        /* Two calls between the same marks: no tokens are one of them alone. */
        mem_free(p[-1].span);
        p[-1].span = NULL;
    }
    if (c->span.whole) { /* the part owns it now */
        p->span = c->span.at;
        p->n_span = c->span.n;
        c->span = (id_span){0};
    }
    return *opened ? put_in_call(a, c, p, ev) : -1; /* else its pieces were all */
}

bool is_whole_call(const part *q)
{
    return q->kind == PART_CALL && !q->open;
}

int32_t answers_take(answer *a, const choice_event *h, bool *opened)
{
    choice *c = &a->choice[h->choice];
    const carat_event *ev = &h->ev;
    *opened = false;
    if (h->done) {
        c->over = true;
        c->failed = h->status != CARAT_OK;
        c->t = h->timings;
        if (!c->failed)
            c->finish = h->timings.finish;
        if (c->finish == CARAT_FINISH_CANCELLED && c->n_calls)
            c->finish = CARAT_FINISH_TOOL_CALLS; /* cancelled after its one call */
        return -1;
    }
    switch (ev->kind) {
    case CARAT_EV_TOKEN:
        c->n_sampled++;
        if (a->m->call_open >= 0)
            follow_call(a, c, ev->id);
        if (a->rq->logprobs || a->rq->return_tokens)
            take_token(a, c, ev);
        return -1;
    case CARAT_EV_PROMPT_TOKEN:
        take_prompt_token(a, c, ev);
        return -1;
    case CARAT_EV_REASONING:
        return take_piece(a, c, PART_REASONING, ev, opened);
    case CARAT_EV_CONTENT:
        return take_piece(a, c, PART_TEXT, ev, opened);
    case CARAT_EV_TOOL_CALL:
        return take_call(a, c, ev, opened);
    case CARAT_EV_CALL_PART:
        return take_call_part(a, c, ev, opened);
    case CARAT_EV_END:
        c->finish = ev->finish;
        c->by_stop_id = ev->by_stop_id;
        c->stop_id = ev->stop_id;
        if (ev->stop) {
            mem_free(c->stop);
            c->stop = mem_strdup(ev->stop);
            a->bad |= !c->stop;
        }
        return -1;
    case CARAT_EV_PREFILL:
        break;
    }
    return -1;
}

/* ---- What several dialects write ---- */

usage answer_usage(const answer *a)
{
    usage u = {.shorter = &a->shorter};
    int32_t per = a->rq->n > 0 ? a->rq->n : 1;
    for (int32_t i = 0; i < a->n; i++) {
        const carat_timings *t = &a->choice[i].t;
        int64_t n = a->choice[i].n_sampled; /* the timings of a failed answer are empty */
        if (i % per == 0) {                 /* the prompt of n answers counts once */
            u.prompt += t->n_prompt || !n ? t->n_prompt : a->n_prompt;
            u.cached += t->n_reused;
            u.computed += t->n_prompt || !n ? t->n_computed : a->n_prompt;
        }
        u.generated += t->n_generated > n ? t->n_generated : n;
        u.thinking += t->n_thinking;
        u.rounds += t->n_rounds;
        u.drafted += t->n_drafted;
        u.accepted += t->n_accepted;
        u.drafter = t->drafter ? t->drafter : u.drafter;
        u.sparse = t->sparse ? t->sparse : u.sparse;
        u.sparse_value = t->sparse ? (double)t->sparse_value : u.sparse_value;
        u.sparse_auto |= t->sparse_auto;
        u.tiles += t->n_tiles;
        u.tiles_kept += t->n_tiles_kept;
        if (t->dropped_p99 < 0 || t->dropped_p99 > u.dropped_p99)
            u.dropped_p99 = t->dropped_p99;
        if (t->lossy && (!u.lossy || t->n_exact < u.exact))
            u.exact = t->n_exact;
        u.lossy = t->lossy ? t->lossy : u.lossy;
        u.offloaded_experts |= t->offloaded_experts;
        u.expert_hits += t->n_expert_hits;
        u.expert_misses += t->n_expert_misses;
        u.expert_cpu += t->n_expert_cpu;
        u.expert_bytes += t->expert_bytes;
        u.expert_wait_ms += t->expert_wait_ms;
        u.prefill_ms += t->prefill_ms;
        u.decode_ms += t->decode_ms;
        u.queue_ms += t->queue_ms;
    }
    return u;
}

void event_open(str *o, const char *type)
{
    if (type)
        str_printf(o, "event: %s\n", type);
    str_puts(o, "data: ");
    json_open(o, NULL, '{');
    if (type)
        json_text(o, "type", type);
}

void event_close(str *o)
{
    json_close(o, "}\n\n");
}

static void put_sparse(const usage *u, str *o)
{
    if (!u->sparse && !u->sparse_auto)
        return;
    json_open(o, "sparse_attention", '{');
    json_text(o, "mode", u->sparse ? u->sparse : "off");
    json_bool(o, "auto", u->sparse_auto);
    if (u->sparse)
        json_number(o, !strcmp(u->sparse, "flash") ? "alpha" : "scale", u->sparse_value);
    json_number(o, "density", u->tiles ? (double)u->tiles_kept / (double)u->tiles : 1);
    if (u->sparse && u->dropped_p99 >= 0) /* block selection has no certificate */
        json_number(o, "dropped_p99", u->dropped_p99);
    json_close(o, "}");
}

static void put_experts(const usage *u, str *o)
{
    uint64_t n = u->expert_hits + u->expert_misses;
    if (!u->offloaded_experts)
        return;
    json_open(o, "experts", '{');
    json_number(o, "hit_rate", n ? (double)u->expert_hits / (double)n : 1);
    json_int(o, "uses", (int64_t)n);
    if (u->expert_cpu)
        json_int(o, "cpu_uses", (int64_t)u->expert_cpu);
    json_int(o, "bytes_moved", (int64_t)u->expert_bytes);
    json_number(o, "wait_ms", u->expert_wait_ms);
    json_close(o, "}");
}

void put_extras(const usage *u, str *o)
{
    put_sparse(u, o);
    put_experts(u, o);
    if (u->shorter && u->shorter->at) {
        json_key(o, "compression");
        compress_put_json(o, u->shorter);
    }
    if (!u->lossy)
        return;
    json_open(o, "kv_pool", '{');
    json_text(o, "policy", u->lossy);
    json_bool(o, "lossy", true);
    json_int(o, "exact_tokens", u->exact);
    json_close(o, "}");
}

void put_call_text(const part *q, const char *argument, const char *key, str *o)
{
    arena mem = {0};
    const jtree *all = NULL;
    err e = {0};
    if (jtree_parse(str_text(&q->text), q->text.n, "the arguments", REQUEST_MAX_DEPTH, &mem, &all,
                    &e))
        all = NULL;
    const jtree *text = jtree_get(all, argument);
    if (jtree_is(text, JTREE_STRING))
        json_text_n(o, key, text->s, text->n);
    else
        json_text_n(o, key, str_text(&q->text), q->text.n);
    arena_free(&mem);
}

void put_warnings(const request *rq, str *o)
{
    if (!rq->left_out.n)
        return;
    json_open(o, "warnings", '[');
    json_ready(o, NULL, rq->left_out.at, rq->left_out.n);
    if (rq->n_left_out > REQUEST_MAX_WARNINGS)
        json_text(o, NULL, "and more");
    json_close(o, "]");
}

void put_parts(str *o, const choice *c, part_kind kind)
{
    for (int32_t i = 0; i < c->n_parts; i++)
        if (c->part[i].kind == kind)
            str_put(o, str_text(&c->part[i].text), c->part[i].text.n);
}

int32_t count_parts(const choice *c, part_kind kind)
{
    int32_t n = 0;
    for (int32_t i = 0; i < c->n_parts; i++)
        n += c->part[i].kind == kind;
    return n;
}

const char *model_name(const answer *a)
{
    return *a->rq->model ? a->rq->model : a->m->name;
}

/* The bytes of a token may be part of a character: then U+FFFD stands for them. */
static int32_t token_shown(const answer *a, int32_t id, str *shown, const char **bytes)
{
    *bytes = "";
    int32_t n = a->m->model ? carat_token_bytes(a->m->model, id, true, bytes) : 0;
    n = n < 0 ? 0 : n;
    str_cut(shown, 0);
    for (int32_t i = 0; i < n;) {
        uint32_t cp;
        bool ok;
        int len = utf8_decode(*bytes + i, (size_t)(n - i), &cp, &ok);
        if (ok)
            str_put(shown, *bytes + i, (size_t)len);
        else
            str_puts(shown, "\xEF\xBF\xBD");
        i += len;
    }
    return n;
}

static void put_token_text(const answer *a, int32_t id, str *o)
{
    const char *bytes;
    str shown = {0};
    int32_t n = token_shown(a, id, &shown, &bytes);
    json_text_n(o, "token", str_text(&shown), shown.n);
    json_open(o, "bytes", '[');
    for (int32_t i = 0; i < n; i++)
        json_int(o, NULL, (unsigned char)bytes[i]);
    json_close(o, "]");
    o->bad |= shown.bad;
    str_free(&shown);
}

/* JSON has no infinity. A banned token gets -9999, as in OpenAI's API. */
static double finite_logprob(float l)
{
    return l >= -9999 ? l : -9999;
}

static void put_token(const answer *a, int32_t id, float logprob, str *o)
{
    json_int(o, "id", id);
    put_token_text(a, id, o);
    json_number(o, "logprob", finite_logprob(logprob));
}

void put_logprobs(const answer *a, const choice *c, int32_t from, int32_t to, str *o,
                  const char *key)
{
    int32_t n_top = a->rq->sampling.n_top_logprobs;
    json_open(o, key, '[');
    for (int32_t i = from; i < to; i++) {
        const token_entry *t = &c->token[i];
        json_open(o, NULL, '{');
        put_token(a, t->id, t->logprob, o);
        json_open(o, "top_logprobs", '[');
        for (int32_t k = 0; k < t->n_top && k < n_top; k++) {
            json_open(o, NULL, '{');
            put_token(a, t->top[k].id, t->top[k].logprob, o);
            json_close(o, "}");
        }
        json_close(o, "]}");
    }
    json_close(o, "]");
}

static void put_old_key(const answer *a, const carat_logprob *l, size_t from, str *o)
{
    str shown = {0}, key = {0};
    const char *bytes;
    token_shown(a, l->id, &shown, &bytes);
    jtree_put_string(&key, str_text(&shown), shown.n);
    str_putc(&key, ':');
    if (key.n && !o->bad && !memmem(o->at + from, o->n - from, key.at, key.n)) {
        json_key(o, NULL); /* the comma */
        str_put(o, key.at, key.n);
        str_printf(o, "%.9g", finite_logprob(l->logprob));
    }
    o->bad |= key.bad || shown.bad;
    str_free(&key);
    str_free(&shown);
}

/* Two tokens may have the same text, and keys are unique: the likelier token, which comes first,
 * keeps the key. own: the token itself is in it, likely or not. */
static void put_old_top(const answer *a, const token_entry *t, bool own, str *o)
{
    json_open(o, NULL, '{');
    size_t from = o->n;
    for (int32_t k = 0; k < t->n_top && k < a->rq->sampling.n_top_logprobs; k++)
        put_old_key(a, &t->top[k], from, o);
    if (own)
        put_old_key(a, &(carat_logprob){t->id, t->logprob}, from, o);
    json_close(o, "}");
}

void put_stop_reason(const answer *a, const choice *c, const char *finish, str *o)
{
    if (!finish || !a->rq->n_stop_ids)
        return;
    if (c->by_stop_id)
        json_int(o, "stop_reason", c->stop_id);
    else
        json_text(o, "stop_reason", c->stop);
}

bool prompt_is_own(const request *rq, int32_t i)
{
    return i % rq->n == 0 || (rq->stream && rq->api == API_COMPLETIONS);
}

const choice *prompt_of(const answer *a, int32_t i)
{
    return &a->choice[prompt_is_own(a->rq, i) ? i : i - i % a->rq->n];
}

/* The characters that begin in a token of a text. Control tokens are no part of it. */
static int64_t n_chars(const answer *a, int32_t id)
{
    const char *bytes = "";
    int32_t n = a->m->model ? carat_token_bytes(a->m->model, id, false, &bytes) : 0;
    int64_t count = 0;
    for (int32_t i = 0; i < n; i++)
        count += (bytes[i] & 0xc0) != 0x80;
    return count;
}

int64_t put_old_logprobs(const answer *a, const choice *before, const choice *c, int32_t from,
                         int32_t to, int64_t offset, str *o)
{
    int32_t n_before = before ? before->n_prompt : 0, n = n_before + to - from;
    str shown = {0};
    const char *bytes;
#define ENTRY(i) ((i) < n_before ? &before->prompt[i] : &c->token[from + (i)-n_before])
    json_open(o, "tokens", '[');
    for (int32_t i = 0; i < n; i++) {
        token_shown(a, ENTRY(i)->id, &shown, &bytes);
        json_text_n(o, NULL, str_text(&shown), shown.n);
    }
    json_close(o, "]");
    json_open(o, "token_logprobs", '[');
    for (int32_t i = 0; i < n; i++)
        if (i < n_before && !ENTRY(i)->rank)
            json_nothing(o, NULL);
        else
            json_number(o, NULL, finite_logprob(ENTRY(i)->logprob));
    json_close(o, "]");
    json_open(o, "top_logprobs", '[');
    for (int32_t i = 0; i < n; i++)
        if (i < n_before && !ENTRY(i)->rank)
            json_nothing(o, NULL);
        else
            put_old_top(a, ENTRY(i), before && a->rq->sampling.n_top_logprobs > 0, o);
    json_close(o, "]");
    json_open(o, "text_offset", '[');
    for (int32_t i = 0; i < n; i++) {
        json_int(o, NULL, offset);
        offset += n_chars(a, ENTRY(i)->id);
    }
    json_close(o, "]");
#undef ENTRY
    o->bad |= shown.bad;
    str_free(&shown);
    return offset;
}

static void put_ranked(const answer *a, const carat_logprob *l, int32_t rank, str *o)
{
    str shown = {0};
    const char *bytes;
    char key[16];
    snprintf(key, sizeof key, "%d", (int)l->id);
    token_shown(a, l->id, &shown, &bytes);
    json_open(o, key, '{');
    json_number(o, "logprob", finite_logprob(l->logprob));
    json_int(o, "rank", rank);
    json_text_n(o, "decoded_token", str_text(&shown), shown.n);
    json_close(o, "}");
    o->bad |= shown.bad;
    str_free(&shown);
}

void put_prompt_logprobs(const answer *a, const choice *c, str *o)
{
    if (a->rq->prompt_logprobs < 0)
        return;
    json_open(o, "prompt_logprobs", '[');
    for (int32_t i = 0; i < c->n_prompt; i++) {
        const token_entry *t = &c->prompt[i];
        if (!t->rank) {
            json_nothing(o, NULL);
            continue;
        }
        json_open(o, NULL, '{');
        put_ranked(a, &(carat_logprob){t->id, t->logprob}, t->rank, o);
        for (int32_t k = 0; k < t->n_top && k < a->rq->prompt_logprobs; k++)
            if (t->top[k].id != t->id)
                put_ranked(a, &t->top[k], k + 1, o);
        json_close(o, "}");
    }
    json_close(o, "]");
}

void put_progress(const answer *a, const carat_event *ev, str *o)
{
    json_open(o, "prompt_progress", '{');
    json_int(o, "total", ev->n_total);
    json_int(o, "cache", ev->n_reused);
    json_int(o, "processed", ev->n_done);
    json_number(o, "time_ms", clock_ms() - a->start_ms);
    json_close(o, "}");
}

void put_timings(const answer *a, str *o)
{
    usage u = answer_usage(a);
    json_open(o, "timings", '{');
    json_int(o, "cache_n", u.cached);
    json_int(o, "prompt_n", u.computed);
    json_number(o, "prompt_ms", u.prefill_ms);
    json_number(o, "prompt_per_second", u.prefill_ms > 0 ? 1000 * (double)u.computed / u.prefill_ms : 0);
    json_int(o, "predicted_n", u.generated);
    json_number(o, "predicted_ms", u.decode_ms);
    json_number(o, "predicted_per_second",
                u.decode_ms > 0 ? 1000 * (double)u.generated / u.decode_ms : 0);
    json_number(o, "queue_ms", u.queue_ms);
    if (u.drafter) {
        json_text(o, "drafter", u.drafter);
        json_int(o, "draft_rounds", u.rounds);
        json_int(o, "draft_n", u.drafted);
        json_int(o, "draft_n_accepted", u.accepted);
    }
    if (a->rq->api != API_LLAMA) /* it stands in `usage`, which that dialect has not */
        u.shorter = NULL;
    put_extras(&u, o);
    json_text(o, "reuse", a->n && a->choice[0].t.reuse ? a->choice[0].t.reuse : "");
    json_close(o, "}");
}

void openai_error(const problem *p, str *o)
{
    static const struct {
        int status;
        const char *type;
    } types[] = {{401, "authentication_error"}, {403, "permission_error"},
                 {404, "not_found_error"},      {429, "rate_limit_error"},
                 {501, "not_supported_error"},  {503, "unavailable_error"}};
    const char *type = p->status >= 500 ? "server_error" : "invalid_request_error";
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == p->status)
            type = types[i].type;
    json_open(o, NULL, '{');
    json_open(o, "error", '{');
    json_text(o, "message", p->text);
    json_text(o, "type", type);
    json_text(o, "param", *p->param ? p->param : NULL);
    json_text(o, "code", p->code);
    if (p->n_ctx) {
        json_int(o, "n_prompt_tokens", p->n_prompt);
        json_int(o, "n_ctx", p->n_ctx);
    }
    json_close(o, "}}");
}

void openai_head(const answer *a, const char *object, str *o)
{
    json_text(o, "id", a->id);
    json_text(o, "object", object);
    json_int(o, "created", a->created);
    json_text(o, "model", model_name(a));
    json_text(o, "system_fingerprint", "carat");
}

void openai_usage(const answer *a, str *o)
{
    usage u = answer_usage(a);
    json_open(o, "usage", '{');
    json_int(o, "prompt_tokens", u.prompt);
    json_int(o, "completion_tokens", u.generated);
    json_int(o, "total_tokens", u.prompt + u.generated);
    json_open(o, "prompt_tokens_details", '{');
    json_int(o, "cached_tokens", u.cached);
    json_close(o, "}");
    json_open(o, "completion_tokens_details", '{');
    json_int(o, "reasoning_tokens", u.thinking);
    json_int(o, "accepted_prediction_tokens", u.accepted);
    json_int(o, "rejected_prediction_tokens", u.drafted - u.accepted);
    json_close(o, "}");
    put_extras(&u, o);
    json_close(o, "}");
}

void openai_end(const answer *a, const char *object, str *o)
{
    if (a->rq->include_usage) {
        event_open(o, NULL);
        openai_head(a, object, o);
        json_empty(o, "choices", "[]");
        openai_usage(a, o);
        put_timings(a, o);
        event_close(o);
    }
    str_puts(o, "data: [DONE]\n\n");
}

void openai_fail(answer *a, const problem *p, str *o)
{
    (void)a;
    str_puts(o, "data: ");
    openai_error(p, o);
    str_puts(o, "\n\n");
}
