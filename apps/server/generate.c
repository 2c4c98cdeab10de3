/* generate.c - requests become jobs of the batch; events of the batch become answers.
 *
 *     body -> request (api_*.c) -> prompts and budgets -> live -> stream, or one text
 *
 * The connection's thread pulls the stream. After --ping seconds without an event, as in a long
 * prefill, the stream gets the dialect's ping, so that clients and proxies do not time out.
 */
#include "apps/server/generate.h"

#include "apps/server/constrain.h"
#include "apps/server/jsonw.h"
#include "apps/server/live.h"
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
    const dialect *d;
    request rq;
    answer a;
    prompt *prompt;
    int32_t n_prompts;
    live_job *job;
    constraint **held; /* one per job */
    live *live;
    carat_logit_bias *bias; /* the request's, and the ban of tool_choice none */
    str out;
    size_t at; /* bytes of out that were sent */
    double last_ms;
    bool over;
};

/* ---- Prompts ---- */

static bool too_long(const stream *st, int64_t n, problem *p)
{
    int32_t n_ctx = st->x->s->n_ctx;
    if (n < n_ctx)
        return true;
    p->n_prompt = n;
    p->n_ctx = n_ctx;
    p->code = "context_length_exceeded";
    if (st->rq.api == API_MESSAGES) /* Claude Code compacts its context on these words */
        return problem_set(p, 400, "messages", "prompt is too long: %lld tokens > %d maximum",
                           (long long)n, n_ctx - 1);
    static const char *const fields[] = {
        [API_CHAT] = "messages", [API_COMPLETIONS] = "prompt", [API_RESPONSES] = "input"};
    return problem_set(p, 400, fields[st->rq.api],
                       "the prompt has %lld tokens, and the context holds %d, at least one of "
                       "them for the answer",
                       (long long)n, n_ctx);
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
    const server *s = st->x->s;
    return (s->o->think || (s->info.thinks && !s->o->no_think)) && !rq->prefill;
}

/* Renders a conversation to tokens. text may be NULL. */
static bool render_conversation(stream *st, prompt *out, str *text, problem *p)
{
    request *rq = &st->rq;
    const server *s = st->x->s;
    carat_chat_options opt = {.thinking = wants_thought(st),
                              .preserve_thinking = rq->preserve_thinking,
                              .drop_thinking = rq->drop_thinking,
                              .reasoning_effort = rq->effort_name,
                              .no_generation_prompt = rq->no_generation_prompt,
                              .continue_last = rq->continue_last};
    carat_chat chat = {0};
    err e = {0};
    if (carat_chat_render(s->model, rq->messages.at, rq->tools.n ? rq->tools.at : NULL, &opt, &chat,
                          &e))
        return problem_of(rq, p, &e);
    int32_t *replayed = NULL;
    int64_t n = chat.n_ids;
    if (s->names.call_open >= 0)
        replayed =
            replay_apply(s->calls,
                         &(replay_prompt){rq->messages.at, rq->messages.n, chat.ids, chat.n_ids,
                                          s->names.call_open, s->names.call_close},
                         &n);
    out->ids = copy_ids(st, replayed ? replayed : chat.ids, n, p);
    mem_free(replayed);
    out->n = n;
    out->starts_thinking = chat.starts_thinking;
    if (text)
        str_put(text, chat.text, chat.n_text);
    carat_chat_free(&chat);
    return out->ids != NULL;
}

static bool encode_prompt(stream *st, const raw_prompt *r, prompt *out, problem *p)
{
    const server *s = st->x->s;
    bool has_bos = r->n >= 5 && !memcmp(r->text, "<bos>", 5);
    int32_t flags = CARAT_TOK_SPECIAL | (has_bos ? 0 : CARAT_TOK_BOS);
    err e = {0};
    if (r->ids) {
        out->ids = copy_ids(st, r->ids, r->n_ids, p);
        out->n = r->n_ids;
        return out->ids != NULL;
    }
    out->n = carat_tokenize(s->model, r->text, r->n, flags, NULL, 0, &e);
    if (out->n < 0)
        return problem_from(p, &e);
    if (!out->n)
        return problem_set(p, 400, "prompt",
                           "'prompt' is empty, and this model has no token to "
                           "begin with");
    out->ids = copy_ids(st, NULL, out->n, p);
    if (out->ids)
        carat_tokenize(s->model, r->text, r->n, flags, out->ids, out->n, &e);
    return out->ids != NULL;
}

static bool make_prompts(stream *st, problem *p)
{
    request *rq = &st->rq;
    bool raw = rq->api == API_COMPLETIONS;
    st->n_prompts = raw ? rq->n_prompts : 1;
    st->prompt = arena_array(&rq->mem, (size_t)st->n_prompts, sizeof *st->prompt);
    if (!st->prompt)
        return problem_set(p, 503, "", "no memory for a request");
    for (int32_t i = 0; i < st->n_prompts; i++) {
        prompt *q = &st->prompt[i];
        if (raw ? !encode_prompt(st, &rq->prompt[i], q, p) : !render_conversation(st, q, NULL, p))
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
    const server *s = st->x->s;
    int64_t most = s->o->think_max > 0 ? s->o->think_max : s->n_ctx / 2;
    int64_t reserve = rq->reserve >= 0 ? rq->reserve : o->max_tokens / 4;
    if (s->thought_open < 0)
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
    int32_t mark = st->x->s->names.call_open;
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
    if (!st->job || !st->held || !answers_init(&st->a, rq, &st->x->s->names, n))
        return problem_set(p, 503, "", "no memory for a request");
    st->a.start_ms = st->x->start_ms;
    st->a.n_prompt = st->prompt[0].n;
    if (!ban_calls(st, p))
        return false;
    if (!rq->seed_given)
        make_seed(&rq->sampling.seed);
    double until_ms = clock_ms() + CONSTRAINT_MAX_MS;
    for (int32_t i = 0; i < n; i++) {
        const prompt *q = &st->prompt[i / rq->n];
        carat_generate_options *o = &st->job[i].opt;
        int64_t room = st->x->s->n_ctx - q->n;
        st->job[i].ids = q->ids;
        st->job[i].n = q->n;
        o->sampling = rq->sampling;
        o->sampling.seed += (uint32_t)(i % rq->n);
        if (rq->logprobs && o->sampling.n_top_logprobs < 1)
            o->sampling.n_top_logprobs = 1; /* the engine then reports the token's own logprob */
        o->max_tokens = at_most(rq->max_tokens > 0 ? rq->max_tokens : room, room);
        o->stop = rq->stop;
        o->n_stop = rq->n_stop;
        o->speculation = rq->speculation;
        o->parse = rq->api != API_COMPLETIONS;
        o->starts_thinking = q->starts_thinking;
        o->tools_json = rq->tools.n ? rq->tools.at : NULL;
        if (o->parse)
            set_thinking(st, o);
        bool may_think = o->parse && wants_thought(st) && !rq->prefill && !rq->thought;
        constraint_plan plan = {rq, may_think, q->starts_thinking, st->x->fd, until_ms};
        if (!constraint_open(&st->held[i], st->x->s, &plan, p))
            return false;
        o->mask = constraint_mask(st->held[i]);
    }
    return true;
}

/* ---- Answers ---- */

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
        replay_put(st->x->s->calls, q->id, q->name, str_text(&q->text), q->span, q->n_span);
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
        if (st->rq.stream)
            st->d->end(&st->a, &st->out);
    }
    return true;
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
    else if (st->rq.stream && ping_ms > 0 && now - st->last_ms >= ping_ms) {
        str_puts(&st->out, st->d->ping);
        st->last_ms = now;
    }
    return true;
}

int64_t stream_read(stream *st, char *buf, size_t max)
{
    while (st->at >= st->out.n) {
        str_cut(&st->out, 0);
        st->at = 0;
        if (st->over)
            return 0;
        if (!step_stream(st) || st->out.bad)
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
    request_free(&st->rq);
    str_free(&st->out);
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

static bool begin_stream(stream *st, api_kind api, problem *p)
{
    exchange *x = st->x;
    if (!request_parse(&st->rq, api, x->body, x->n_body, &x->s->limits, p))
        return false;
    if (api != API_COMPLETIONS && !x->s->info.has_chat)
        return problem_set(p, 400, "", "this model has no chat format: only /v1/completions works");
    if (!make_prompts(st, p) || !make_jobs(st, p))
        return false;
    live_plan plan = {.job = st->job,
                      .n = st->a.n,
                      .one_call = st->rq.one_call,
                      .keep_ids = x->s->o->trace_dir != NULL};
    return live_open(&st->live, x->s, &plan, p);
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
    st->d = dialect_of(api);
    st->last_ms = clock_ms();
    if (!begin_stream(st, api, &p)) {
        reply_problem(x, &p);
        if (p.status == 503 && client_left(x->fd)) {
            x->status = STATUS_GONE;
            x->note = "client gone";
        }
        stream_close(st);
        return;
    }
    if (st->rq.stream) {
        st->d->begin(&st->a, &st->out);
        x->status = 200;
        x->type = "text/event-stream";
        x->stream = st;
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
    if (!request_parse(&st->rq, api, x->body, x->n_body, &x->s->limits, &p) ||
        !render_conversation(st, q, text, &p)) {
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
}
