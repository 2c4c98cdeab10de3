/* generate.c - requests become jobs of the batch; events of the batch become answers.
 *
 *     body -> request (api_*.c) -> prompts and budgets -> live -> stream, or one text
 *
 * The connection's thread pulls the stream. After --ping seconds without an event, as in a long
 * prefill, the stream gets the dialect's ping, so that clients and proxies do not time out.
 */
#include "apps/server/generate.h"

#include "apps/server/api_ollama_info.h"
#include "apps/server/constrain.h"
#include "apps/server/infill.h"
#include "apps/server/jsonw.h"
#include "apps/server/live.h"
#include "apps/server/shorten.h"
#include "apps/server/stored.h"
#include "apps/server/token_rules.h"
#include "base/clock.h"
#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    RESERVE_MAX = 4096, /* tokens kept for the answer after a thought, by default */
    STATUS_GONE = 499   /* the client left; only the log shows this status */
};

typedef struct prompt {
    int32_t *ids;
    int64_t n;
    bool starts_thinking;
} prompt;

struct stream {
    exchange *x;
    api_kind api;
    const dialect *d;
    request rq;
    answer a;
    prompt *prompt;
    int32_t n_prompts;
    live_job *job;
    constraint **held; /* one per job */
    live *live;
    carat_logit_bias *bias; /* the request's, and the ban of tool_choice none */
    str history;            /* the items of the conversation that the request continues, as JSON */
    str out;
    size_t at; /* bytes of out that were sent */
    double last_ms, asked_ms, load_ms;
    bool over;
    bool loading;          /* the client gets pings before there is an answer */
    bool read;             /* the request's fields are */
    shortening *shortened; /* NULL: the prompts are as the client sent them */
};

/* ---- Prompts ---- */

static bool too_long(const stream *st, int64_t n, problem *p)
{
    int32_t n_ctx = st->x->m->n_ctx;
    if (n < n_ctx)
        return true;
    p->n_prompt = n;
    p->n_ctx = n_ctx;
    p->code = "context_length_exceeded";
    if (st->rq.api == API_MESSAGES) /* Claude Code compacts its context on these words */
        return problem_set(p, 400, "messages", "prompt is too long: %lld tokens > %d maximum",
                           (long long)n, n_ctx - 1);
    static const char *const fields[] = {
        [API_CHAT] = "messages",         [API_COMPLETIONS] = "prompt",
        [API_RESPONSES] = "input",       [API_LLAMA] = "prompt",
        [API_INFILL] = "input_prefix",   [API_OLLAMA_CHAT] = "messages",
        [API_OLLAMA_GENERATE] = "prompt"};
    return problem_set(p, 400, fields[st->rq.api],
                       "the prompt has %lld tokens, and the context holds %d, at least one of "
                       "them for the answer",
                       (long long)n, n_ctx);
}

static bool is_conversation(const request *rq)
{
    return !rq->n_prompts && !rq->infill;
}

static int32_t *copy_ids(stream *st, const int32_t *ids, int64_t n, problem *p)
{
    int32_t *out = arena_array(&st->rq.mem, (size_t)n + 1, sizeof *out);
    if (!out)
        problem_set(p, 503, "", "no memory for a prompt of %lld tokens", (long long)n);
    else if (ids)
        memcpy(out, ids, (size_t)n * sizeof *out);
    return out;
}

static bool wants_thought(const stream *st)
{
    const request *rq = &st->rq;
    if (rq->think != THINK_DEFAULT)
        return rq->think == THINK_ON;
    const served *m = st->x->m;
    const serve_options *o = m->s->o;
    bool by_itself = m->info.thinks || (rq->thinks_by_default && m->thought_open >= 0);
    return (o->think || (by_itself && !o->no_think)) && !rq->prefill;
}

/* Puts the conversation with --system's message in front into out, where it begins with none of its
 * own; else out stays empty. */
static bool add_system(const request *rq, const char *system, str *out, problem *p)
{
    arena mem = {0};
    err e = {0};
    const jtree *all, *role;
    if (!system)
        return true;
    if (jtree_parse(rq->messages.at, rq->messages.n, "messages", REQUEST_MAX_DEPTH + 2, &mem, &all,
                    &e)) {
        arena_free(&mem);
        return problem_from(p, &e);
    }
    role = all->first ? jtree_get(all->first, "role") : NULL;
    if (!jtree_is(role, JTREE_STRING) ||
        (strcmp(role->s, "system") && strcmp(role->s, "developer"))) {
        str_putc(out, '[');
        json_open(out, NULL, '{');
        json_text(out, "role", "system");
        json_text(out, "content", system);
        json_close(out, '}');
        if (all->first)
            str_putc(out, ',');
        str_put(out, rq->messages.at + 1, rq->messages.n - 1);
    }
    arena_free(&mem);
    return !out->bad || problem_set(p, 503, "", "no memory for the system message");
}

static carat_chat_options chat_options(const stream *st)
{
    const request *rq = &st->rq;
    return (carat_chat_options){.thinking = wants_thought(st),
                                .preserve_thinking = rq->preserve_thinking,
                                .drop_thinking = rq->drop_thinking,
                                .reasoning_effort = rq->effort_name,
                                .no_generation_prompt = rq->no_generation_prompt,
                                .continue_last = rq->continue_last};
}

/* Renders a conversation to tokens. text may be NULL. */
static bool render_conversation(stream *st, prompt *out, str *text, problem *p)
{
    request *rq = &st->rq;
    const served *m = st->x->m;
    carat_chat_options opt = chat_options(st);
    carat_chat chat = {0};
    err e = {0};
    str begun = {0};
    const char *tools = rq->tools.n ? rq->tools.at : NULL;
    if (!add_system(rq, m->s->o->system, &begun, p)) {
        str_free(&begun);
        return false;
    }
    const str *messages = begun.n ? &begun : &rq->messages;
    if (carat_chat_render(m->model, messages->at, tools, &opt, &chat, &e)) {
        err own = {0}; /* names messages by number, so the client's own list must make the error */
        if (begun.n && carat_chat_render(m->model, rq->messages.at, tools, &opt, &chat, &own))
            e = own;
        carat_chat_free(&chat);
        str_free(&begun);
        return problem_of(rq, p, &e);
    }
    int32_t *replayed = NULL;
    int64_t n = chat.n_ids;
    if (m->names.call_open >= 0)
        replayed = replay_apply(m->calls,
                                &(replay_prompt){messages->at, messages->n, chat.ids, chat.n_ids,
                                                 m->names.call_open, m->names.call_close},
                                &n);
    out->ids = copy_ids(st, replayed ? replayed : chat.ids, n, p);
    mem_free(replayed);
    str_free(&begun);
    out->n = n;
    out->starts_thinking = chat.starts_thinking;
    if (text)
        str_put(text, chat.text, chat.n_text);
    carat_chat_free(&chat);
    return out->ids != NULL;
}

static bool encode_prompt(stream *st, const raw_prompt *r, prompt *out, problem *p)
{
    const served *m = st->x->m;
    bool has_bos = r->n >= 5 && !memcmp(r->text, "<bos>", 5);
    int32_t flags = CARAT_TOK_SPECIAL | (has_bos ? 0 : CARAT_TOK_BOS);
    err e = {0};
    if (r->ids) {
        out->ids = copy_ids(st, r->ids, r->n_ids, p);
        out->n = r->n_ids;
        return out->ids != NULL;
    }
    out->n = carat_tokenize(m->model, r->text, r->n, flags, NULL, 0, &e);
    if (out->n < 0)
        return problem_from(p, &e);
    if (!out->n)
        return problem_set(p, 400, "prompt",
                           "'prompt' is empty, and this model has no token to "
                           "begin with");
    out->ids = copy_ids(st, NULL, out->n, p);
    if (out->ids)
        carat_tokenize(m->model, r->text, r->n, flags, out->ids, out->n, &e);
    return out->ids != NULL;
}

/* ---- Prompt compression ---- */

/* The option of the server is about conversations; a raw prompt is shortened if its request says
 * so. */
static bool wants_shorter(const stream *st, carat_compress_options *opt)
{
    const request *rq = &st->rq;
    const server *s = st->x->s;
    *opt = rq->compress_given ? rq->compress : s->compress;
    return rq->compress_given ? rq->compresses : s->compresses && is_conversation(rq);
}

static bool start_shortening(stream *st, const carat_compress_options *opt, problem *p)
{
    const request *rq = &st->rq;
    shorten_ask ask = {.m = st->x->m,
                       .opt = *opt,
                       .messages = rq->messages.at,
                       .tools = rq->tools.n ? rq->tools.at : NULL,
                       .chat = chat_options(st),
                       .prompt = rq->n_prompts ? rq->prompt : NULL,
                       .n_prompts = rq->n_prompts};
    for (int32_t i = 0; i < rq->n_prompts; i++)
        if (rq->prompt[i].ids)
            return problem_set(p, 400, "compress",
                               "'compress' shortens texts, and the prompt is token ids");
    return shorten_start(&st->shortened, &ask, p);
}

/* The results take the place of what the client sent. */
static bool use_shorter(stream *st, problem *p)
{
    request *rq = &st->rq;
    server *s = st->x->s;
    int32_t n;
    double ms;
    const carat_compressed *x = shorten_results(st->shortened, &n, &ms);
    for (int32_t i = 0; i < n; i++) {
        if (!x[i].text)
            continue;
        metrics_count_shorter(&s->m, x[i].n_original, x[i].n_kept);
        if (rq->n_prompts) {
            rq->prompt[i].text = x[i].text;
            rq->prompt[i].n = x[i].n_text;
        } else {
            str_cut(&rq->messages, 0);
            str_put(&rq->messages, x[i].text, x[i].n_text);
        }
    }
    return !rq->messages.bad || problem_set(p, 503, "", "no memory for a request");
}

static pick_state shorten_prompts(stream *st, int timeout_ms, problem *p)
{
    const request *rq = &st->rq;
    carat_compress_options opt;
    if (!wants_shorter(st, &opt))
        return PICK_DONE;
    if (!st->shortened && !start_shortening(st, &opt, p))
        return PICK_FAILED;
    pick_state done = shorten_wait(st->shortened, rq, st->x->fd, timeout_ms, p);
    return done == PICK_DONE && !use_shorter(st, p) ? PICK_FAILED : done;
}

/* What usage says of it. */
static void tell_shorter(stream *st)
{
    shorter_told *t = &st->a.shorter;
    if (!st->shortened)
        return;
    t->at = shorten_results(st->shortened, &t->n, &t->ms);
    t->scorer = shorten_scorer(st->shortened);
    t->origin = st->rq.n_prompts ? NULL : (const int32_t *)(const void *)st->rq.origin.at;
    t->n_origin = st->rq.n_prompts ? 0 : (int32_t)(st->rq.origin.n / sizeof(int32_t));
    t->prompts = st->rq.n_prompts > 0;
}

static bool make_prompts(stream *st, problem *p)
{
    request *rq = &st->rq;
    st->n_prompts = rq->n_prompts ? rq->n_prompts : 1;
    st->prompt = arena_array(&rq->mem, (size_t)st->n_prompts, sizeof *st->prompt);
    if (!st->prompt)
        return problem_set(p, 503, "", "no memory for a request");
    for (int32_t i = 0; i < st->n_prompts; i++) {
        prompt *q = &st->prompt[i];
        bool ok = rq->n_prompts ? encode_prompt(st, &rq->prompt[i], q, p)
                  : rq->infill  ? infill_encode(rq, st->x->m, &q->ids, &q->n, p)
                                : render_conversation(st, q, NULL, p);
        if (!ok)
            return false;
        if (!too_long(st, q->n, p))
            return false;
    }
    return true;
}

/* ---- Budgets ---- */

static int32_t at_most(int64_t v, int64_t max)
{
    return (int32_t)(v < max ? v : max);
}

/* The thinking budget: the client's, else a share of the server's. Part of max_tokens is always
 * kept for the answer. */
static void set_thinking(const stream *st, carat_generate_options *o)
{
    const request *rq = &st->rq;
    const served *m = st->x->m;
    int64_t think_max = m->s->o->think_max;
    int64_t most = think_max > 0 ? think_max : m->n_ctx / 2;
    int64_t reserve = rq->reserve >= 0 ? rq->reserve : o->max_tokens / 4;
    if (m->thought_open < 0)
        return; /* the model cannot think */
    if (rq->think_max > 0)
        o->max_thinking = at_most(rq->think_max, INT32_MAX);
    else if (rq->effort > 0)
        o->max_thinking = at_most((int64_t)(rq->effort * (double)most) + 1, INT32_MAX);
    if (rq->reserve < 0 && reserve > RESERVE_MAX)
        reserve = RESERVE_MAX;
    o->answer_reserve = at_most(reserve, o->max_tokens - 1);
}

/* tool_choice none bans the marker that begins a call. The tools stay in the prompt, so that the
 * cached prefix of the conversation stays valid. */
static bool ban_calls(stream *st, problem *p)
{
    carat_sampling *s = &st->rq.sampling;
    int32_t mark = st->x->m->names.call_open;
    if (st->rq.choice != TOOLS_NONE || !st->rq.tools.n || mark < 0)
        return true;
    st->bias = arena_array(&st->rq.mem, (size_t)s->n_bias + 1, sizeof *st->bias);
    if (!st->bias)
        return problem_set(p, 503, "", "no memory for a request");
    if (s->n_bias)
        memcpy(st->bias, s->bias, (size_t)s->n_bias * sizeof *st->bias);
    st->bias[s->n_bias++] = (carat_logit_bias){mark, -INFINITY};
    s->bias = st->bias;
    return true;
}

static bool make_jobs(stream *st, problem *p)
{
    request *rq = &st->rq;
    int32_t n = st->n_prompts * rq->n;
    st->job = arena_array(&rq->mem, (size_t)n, sizeof *st->job);
    st->held = arena_array(&rq->mem, (size_t)n, sizeof *st->held);
    if (!st->job || !st->held || !answers_init(&st->a, rq, &st->x->m->names, n))
        return problem_set(p, 503, "", "no memory for a request");
    st->a.start_ms = st->x->start_ms;
    st->a.load_ms = st->load_ms;
    st->a.n_prompt = st->prompt[0].n;
    tell_shorter(st);
    if (!token_rules_make(rq, st->x->m->model, p) || !ban_calls(st, p))
        return false;
    if (!rq->seed_given)
        make_seed(&rq->sampling.seed);
    double until_ms = clock_ms() + CONSTRAINT_MAX_MS;
    for (int32_t i = 0; i < n; i++) {
        const prompt *q = &st->prompt[i / rq->n];
        carat_generate_options *o = &st->job[i].opt;
        int64_t room = st->x->m->n_ctx - q->n;
        st->job[i].ids = q->ids;
        st->job[i].n = q->n;
        o->sampling = rq->sampling;
        o->sampling.seed += (uint32_t)(i % rq->n);
        if (rq->logprobs && o->sampling.n_top_logprobs < 1)
            o->sampling.n_top_logprobs = 1; /* the engine then reports the token's own logprob */
        o->max_tokens = at_most(rq->max_tokens > 0 ? rq->max_tokens : room, room);
        o->stop = rq->stop;
        o->n_stop = rq->n_stop;
        token_rules_set(rq, i % rq->n == 0, o);
        o->speculation = rq->speculation;
        o->parse = is_conversation(rq);
        o->starts_thinking = q->starts_thinking;
        o->tools_json = rq->tools.n ? rq->tools.at : NULL;
        if (o->parse)
            set_thinking(st, o);
        bool may_think = o->parse && wants_thought(st) && !rq->prefill && !rq->thought;
        constraint_plan plan = {rq, may_think, q->starts_thinking, st->x->fd, until_ms};
        if (!constraint_open(&st->held[i], st->x->m, &plan, p))
            return false;
        o->mask = constraint_mask(st->held[i]);
    }
    return true;
}

/* ---- Answers ---- */

static void keep_response(stream *st);

static void fail_stream(stream *st, const problem *p)
{
    st->over = true;
    if (!st->x->note)
        st->x->note = "failed";
    if (st->rq.stream)
        st->d->fail(&st->a, p, &st->out);
}

static void remember_call(const stream *st, const happening *h, int32_t part_index)
{
    const part *q = part_index >= 0 ? &st->a.choice[h->choice].part[part_index] : NULL;
    if (q && q->span)
        replay_put(st->x->m->calls, q->id, q->name, str_text(&q->text), q->span, q->n_span);
}

/* Takes all events out of the mailbox. False: a choice failed, and p has the reason. */
static bool take_all(stream *st, problem *p)
{
    happening h;
    while (live_next(st->live, &h)) {
        bool opened;
        int32_t first = st->a.choice[h.choice].n_shown;
        int32_t part_index = answers_take(&st->a, &h, &opened);
        if (h.done && h.status == CARAT_E_CANCELLED) { /* only the end of the server cancels */
            st->x->note = "shut down";
            return problem_set(p, 503, "",
                               "the server was shut down before the answer was complete: %lld "
                               "tokens of it had been sampled",
                               (long long)st->a.choice[h.choice].n_sampled);
        }
        if (h.done && h.status) {
            err e = {.status = h.status};
            const char *why = constraint_failure(st->held[h.choice]);
            snprintf(e.text, sizeof e.text, "%s", *why ? why : h.error);
            return problem_from(p, &e);
        }
        if (st->a.bad)
            return problem_set(p, 503, "", "no memory for the answer");
        remember_call(st, &h, part_index);
        if (st->rq.stream)
            st->d->event(&st->a, &h, part_index, opened, first, &st->out);
    }
    if (live_over(st->live)) {
        st->over = true;
        keep_response(st);
        if (st->rq.stream)
            st->d->end(&st->a, &st->out);
    }
    return true;
}

/* An answer that says nothing, for pings and failures before there is one. */
static bool stand_in(stream *st)
{
    static const answer_model unknown = {.name = "", .call_open = -1, .call_close = -1};
    return st->a.choice || answers_init(&st->a, &st->rq, &unknown, 1);
}

static void ping(stream *st)
{
    if (!stand_in(st))
        st->out.bad = true;
    else if (st->d->beat)
        st->d->beat(&st->a, &st->out);
    else
        str_puts(&st->out, st->d->ping);
    st->last_ms = clock_ms();
}

/* Waits for events once. False: the client left. */
static bool step_stream(stream *st)
{
    int ping_ms = (int)st->x->s->o->ping_s * 1000;
    problem p = {0};
    switch (live_wait(st->live, st->x->fd, ping_ms > 0 ? ping_ms : -1)) {
    case LIVE_GONE:
        st->x->note = "client gone";
        atomic_fetch_add(&st->x->s->m.cancelled, 1);
        return false;
    case LIVE_BROKEN:
        problem_set(&p, 503, "", "no memory for the answer");
        break;
    case LIVE_EVENTS:
        take_all(st, &p);
        break;
    case LIVE_QUIET:
        break;
    }
    if (p.status) {
        fail_stream(st, &p);
        if (!st->rq.stream)
            reply_problem(st->x, &p);
    }
    double now = clock_ms();
    if (st->out.n)
        st->last_ms = now;
    else if (st->rq.stream && ping_ms > 0 && now - st->last_ms >= ping_ms)
        ping(st);
    return true;
}

static pick_state begin_stream(stream *st, int timeout_ms, problem *p);

/* A stream whose model is still being loaded: the headers are out, and the client gets pings. */
static bool step_loading(stream *st)
{
    problem p = {0};
    switch (begin_stream(st, (int)st->x->s->o->ping_s * 1000, &p)) {
    case PICK_WAITS:
        ping(st);
        return true;
    case PICK_DONE:
        st->loading = false;
        if (st->rq.load_only) {
            ollama_loaded(&(answer){.rq = &st->rq, .m = &st->x->m->names}, &st->out);
            st->over = true;
        } else {
            st->d->begin(&st->a, &st->out);
        }
        return true;
    case PICK_FAILED:
        break;
    }
    if (client_left(st->x->fd)) {
        st->x->note = "client gone";
        return false;
    }
    if (!stand_in(st))
        return false;
    st->rq.stream = true;
    st->d->begin(&st->a, &st->out);
    fail_stream(st, &p);
    return true;
}

int64_t stream_read(stream *st, char *buf, size_t max)
{
    while (st->at >= st->out.n) {
        str_cut(&st->out, 0);
        st->at = 0;
        if (st->over)
            return 0;
        if (!(st->loading ? step_loading(st) : step_stream(st)) || st->out.bad)
            return -1;
    }
    size_t n = st->out.n - st->at;
    n = n < max ? n : max;
    memcpy(buf, st->out.at + st->at, n);
    st->at += n;
    return (int64_t)n;
}

static void note_answer(stream *st)
{
    exchange *x = st->x;
    double first = live_first_ms(st->live);
    x->used = answer_usage(&st->a);
    if (first > 0) {
        x->ttft_ms = first - x->start_ms;
        histogram_add(&x->s->m.ttft, x->ttft_ms * 1e-3);
        histogram_add(&x->s->m.queue, x->used.queue_ms * 1e-3);
    }
}

/* Takes the last events, which are not sent, for the counts in the log. */
static void note_rest(stream *st)
{
    happening h;
    bool opened;
    while (live_wait(st->live, -1, 0) == LIVE_EVENTS)
        while (live_next(st->live, &h))
            answers_take(&st->a, &h, &opened);
}

static void write_trace(stream *st)
{
    int32_t n = st->a.n;
    trace_prompt *t = mem_calloc((size_t)n, sizeof *t);
    for (int32_t i = 0; t && i < n; i++) {
        t[i].ids = st->job[i].ids;
        t[i].n = st->job[i].n;
        t[i].sampled = live_sampled(st->live, i, &t[i].n_sampled);
    }
    if (t)
        trace_write(st->x, &st->a, t, n);
    mem_free(t);
}

void stream_close(stream *st)
{
    if (!st)
        return;
    if (st->live) {
        live_cancel(st->live);
        note_rest(st);
        note_answer(st);
        if (st->x->s->o->trace_dir)
            write_trace(st);
    }
    live_close(st->live);
    for (int32_t i = 0; st->held && i < st->a.n; i++)
        constraint_close(st->held[i]);
    answers_free(&st->a);
    shorten_close(st->shortened);
    request_free(&st->rq);
    str_free(&st->out);
    str_free(&st->history);
    mem_free(st);
}

/* Waits for the whole answer. */
static void answer_whole(stream *st)
{
    exchange *x = st->x;
    while (!st->over)
        if (!step_stream(st)) {
            x->status = STATUS_GONE;
            return;
        }
    if (x->status)
        return; /* failed */
    st->d->whole(&st->a, &x->out);
    x->status = 200;
}

static bool is_ollama(api_kind api)
{
    return api == API_OLLAMA_CHAT || api == API_OLLAMA_GENERATE;
}

/* Finds the conversation that a request of /v1/responses continues. */
static bool take_history(stream *st, problem *p)
{
    const jtree *id = jtree_get(st->rq.body, "previous_response_id");
    const server *s = st->x->s;
    err e = {0};
    if (st->api != API_RESPONSES || !jtree_truthy(id) || !jtree_is(id, JTREE_STRING))
        return true; /* another kind is refused by the parser */
    if (!s->stored)
        return problem_set(p, 400, "previous_response_id",
                           "'previous_response_id' is not supported: this server keeps no "
                           "responses (--responses)");
    str_puts(&st->history, "[");
    if (!stored_items(s->stored, st->x->owner, id->s, true, &st->history)) {
        p->code = "previous_response_not_found";
        return problem_set(p, 400, "previous_response_id",
                           "Previous response with id '%.60s' not found.", id->s);
    }
    if (st->history.n > (size_t)s->o->max_body)
        return problem_set(p, 400, "previous_response_id",
                           "the conversation has %zu bytes, more than the limit of a request",
                           st->history.n);
    str_puts(&st->history, "]");
    if (st->history.bad)
        return problem_set(p, 503, "", "no memory for the conversation");
    st->rq.mem.max_bytes += arena_limit_for(st->history.n);
    return !jtree_parse(st->history.at, st->history.n, "the conversation", REQUEST_MAX_DEPTH,
                        &st->rq.mem, &st->rq.history, &e) ||
           problem_from(p, &e);
}

/* Keeps a complete response before the client learns its id. */
static void keep_response(stream *st)
{
    str object = {0}, input = {0}, output = {0}, before = {0};
    if (st->api != API_RESPONSES || !st->rq.store)
        return;
    responses_record(&st->a, &object, &input, &output);
    if (st->history.n > 2)
        str_put(&before, st->history.at + 1, st->history.n - 2);
    if (!object.bad && !input.bad && !output.bad && !before.bad)
        stored_put(st->x->s->stored, &(stored_response){.id = st->a.id,
                                                        .owner = st->x->owner,
                                                        .previous = st->rq.previous,
                                                        .object = &object,
                                                        .input = &input,
                                                        .output = &output,
                                                        .before = &before});
    str_free(&object);
    str_free(&input);
    str_free(&output);
    str_free(&before);
}

/* The model is picked before the fields that need its vocabulary and defaults are read. A call that
 * waits may be repeated. */
static pick_state read_request(stream *st, int timeout_ms, problem *p)
{
    exchange *x = st->x;
    if (!st->rq.body) {
        if (!request_open(&st->rq, st->api, x->body, x->n_body, p) ||
            (is_ollama(st->api) && !ollama_plain_name(&st->rq.mem, &st->rq.model, p)))
            return PICK_FAILED;
        st->asked_ms = clock_ms();
        x->keep_ms = st->rq.keep_ms;
    }
    pick_state picked = exchange_pick_within(x, st->rq.model, timeout_ms, p);
    if (picked != PICK_DONE || st->read)
        return picked;
    st->load_ms = clock_ms() - st->asked_ms;
    if (!take_history(st, p) || !request_read(&st->rq, &x->m->limits, p))
        return PICK_FAILED;
    st->read = true;
    st->rq.store &= x->s->stored != NULL;
    return picked;
}

/* What a model must be able to do for this request. */
static bool check_model(const stream *st, problem *p)
{
    const request *rq = &st->rq;
    const served *m = st->x->m;
    const char *name = *rq->model ? rq->model : m->names.name;
    bool ollama = is_ollama(rq->api);
    if (is_conversation(rq) && !m->info.has_chat)
        return ollama ? problem_set(p, 400, "", "\"%.100s\" does not support chat", name)
                      : problem_set(p, 400, "",
                                    "this model has no chat format: only /v1/completions works");
    if (ollama && rq->think == THINK_ON && m->thought_open < 0)
        return problem_set(p, 400, "think", "\"%.100s\" does not support thinking", name);
    return true;
}

/* A request of ollama's without a prompt: the model is there now. */
static void reply_loaded(stream *st)
{
    exchange *x = st->x;
    answer a = {.rq = &st->rq, .m = &x->m->names};
    ollama_loaded(&a, &x->out);
    x->status = 200;
}

static pick_state begin_stream(stream *st, int timeout_ms, problem *p)
{
    exchange *x = st->x;
    pick_state picked = read_request(st, timeout_ms, p);
    if (picked != PICK_DONE)
        return picked;
    answers_free(&st->a); /* the one of the pings */
    if (!check_model(st, p))
        return PICK_FAILED;
    if (st->rq.load_only)
        return PICK_DONE;
    if ((picked = shorten_prompts(st, timeout_ms, p)) != PICK_DONE)
        return picked;
    if (!make_prompts(st, p) || !make_jobs(st, p))
        return PICK_FAILED;
    live_plan plan = {.job = st->job,
                      .n = st->a.n,
                      .one_call = st->rq.one_call,
                      .keep_ids = x->s->o->trace_dir != NULL};
    return live_open(&st->live, x->m, &plan, p) ? PICK_DONE : PICK_FAILED;
}

/* A model that loads quickly, and a prompt that is shortened quickly, cost no request its status:
 * only after --ping seconds the headers of a stream are sent, and pings. Whole answers wait. */
static pick_state begin_patiently(stream *st, problem *p)
{
    int ping_ms = (int)st->x->s->o->ping_s * 1000;
    pick_state picked = begin_stream(st, ping_ms > 0 ? ping_ms : -1, p);
    const jtree *asked = st->rq.body ? jtree_get(st->rq.body, "stream") : NULL;
    if (picked == PICK_WAITS && !jtree_truthy(asked))
        return begin_stream(st, -1, p);
    st->loading = picked == PICK_WAITS;
    return picked;
}

static void open_answer_stream(stream *st)
{
    exchange *x = st->x;
    if (st->loading)
        ping(st);
    else
        st->d->begin(&st->a, &st->out);
    x->status = 200;
    x->type = st->d->type ? st->d->type : "text/event-stream";
    x->stream = st;
}

void handle_generation(exchange *x, api_kind api)
{
    problem p = {0};
    stream *st = mem_calloc(1, sizeof *st);
    if (!st) {
        problem_set(&p, 503, "", "no memory for a request");
        reply_problem(x, &p);
        return;
    }
    st->x = x;
    st->api = api;
    st->d = dialect_of(api);
    st->last_ms = clock_ms();
    if (begin_patiently(st, &p) == PICK_FAILED) {
        reply_problem(x, &p);
        if (p.status == 503 && client_left(x->fd)) {
            x->status = STATUS_GONE;
            x->note = "client gone";
        }
        stream_close(st);
        return;
    }
    if (st->rq.load_only && !st->loading) {
        reply_loaded(st);
        stream_close(st);
        return;
    }
    if (st->loading || st->rq.stream) {
        open_answer_stream(st);
        return;
    }
    answer_whole(st);
    stream_close(st);
}

/* ---- Prompts without answers ---- */

static bool only_prompt(exchange *x, api_kind api, stream *st, prompt *q, str *text)
{
    problem p = {0};
    st->x = x;
    st->api = api;
    if (read_request(st, -1, &p) != PICK_DONE || !render_conversation(st, q, text, &p)) {
        reply_problem(x, &p);
        return false;
    }
    return true;
}

void handle_count(exchange *x, api_kind api)
{
    stream st = {0};
    prompt q = {0};
    if (only_prompt(x, api, &st, &q, NULL)) {
        json_open(&x->out, NULL, '{');
        if (api != API_MESSAGES)
            json_text(&x->out, "object", "response.input_tokens");
        json_int(&x->out, "input_tokens", q.n);
        json_close(&x->out, '}');
        x->status = 200;
    }
    request_free(&st.rq);
    str_free(&st.history);
}

void handle_template(exchange *x)
{
    stream st = {0};
    prompt q = {0};
    str text = {0};
    if (only_prompt(x, API_CHAT, &st, &q, &text)) {
        json_open(&x->out, NULL, '{');
        json_text_n(&x->out, "prompt", str_text(&text), text.n);
        json_close(&x->out, '}');
        x->status = 200;
        x->out.bad |= text.bad;
    }
    str_free(&text);
    request_free(&st.rq);
    str_free(&st.history);
}
