/* generate.c - requests become jobs of the batch; events of the batch become answers.
 *
 *     body -> request (api_*.c) -> prompts and budgets (prompts.c) -> live -> stream, or one text
 *
 * The connection's thread pulls the stream. After --ping seconds without an event, as in a long
 * prefill, the stream gets the dialect's ping, so that clients and proxies do not time out.
 */
#include "apps/server/answers/generate_int.h"

#include "apps/server/models/api_ollama_info.h"
#include "apps/server/models/info.h"
#include "apps/server/models/loras.h"
#include "apps/jsonw.h"
#include "apps/server/answers/stored.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/order.h"
#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STATUS_GONE = 499, /* the client left; only the log shows this status */
    WANTED_MS = 500    /* between two looks at whether a recorded answer is wanted */
};

/* ---- Answers ---- */

static void keep_response(stream *st, const char *state, const problem *failed);

static void fail_stream(stream *st, const problem *p)
{
    st->over = true;
    if (st->background)
        keep_response(st, "failed", p);
    if (!st->x->note)
        st->x->note = "failed";
    if (st->rq.stream)
        st->d->fail(&st->a, p, &st->out);
}

/* At the end of a choice: a later call may be between the same marks. */
static void remember_calls(const stream *st, const choice *c)
{
    for (const part *q = c->part; q < c->part + c->n_parts; q++)
        if (q->span)
            replay_put(st->x->m->calls, q->id, q->name, str_text(&q->text), q->span, q->n_span);
}

/* Takes all events out of the mailbox. False: a choice failed, and p has the reason. */
static bool take_all(stream *st, problem *p)
{
    choice_event h;
    while (live_next(st->live, &h)) {
        bool opened;
        if (st->background && st->queued)
            keep_response(st, "in_progress", NULL);
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
        if (h.done)
            remember_calls(st, &st->a.choice[h.choice]);
        if (st->rq.stream)
            st->d->event(&st->a, &h, part_index, opened, first, &st->out);
    }
    if (live_over(st->live)) {
        st->over = true;
        keep_response(st, NULL, NULL);
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

/* Silence before a ping; -1: there is none. */
static int ping_ms_of(const stream *st)
{
    bool own = st->read && st->rq.ping_s != REQUEST_PING_OF_SERVER;
    int64_t s = own ? st->rq.ping_s : st->x->s->o->ping_s;
    return s > 0 ? (int)s * 1000 : -1;
}

/* Waits for events once. False: the client left. */
static bool step_stream(stream *st)
{
    int ping_ms = ping_ms_of(st), wait_ms = ping_ms;
    problem p = {0};
    if (st->kept && (wait_ms < 0 || wait_ms > WANTED_MS))
        wait_ms = WANTED_MS;
    switch (live_wait(st->live, st->x->fd, wait_ms)) {
    case LIVE_GONE:
        if (st->kept)
            return false; /* stream_close goes on with it */
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

/* The answer has the id that its client knows. */
static void name_answer(stream *st)
{
    if (*st->id)
        memcpy(st->a.id, st->id, sizeof st->id);
}

static void begin_answer(stream *st)
{
    name_answer(st);
    st->rq.stream |= st->alone; /* that of its recording */
    if (st->kept)
        recording_of_answer(st->kept, st->a.id);
    if (st->background)
        keep_response(st, "queued", NULL);
    st->d->begin(&st->a, &st->out);
}

/* A stream whose model is still being loaded: the headers are out, and the client gets pings. */
static bool step_loading(stream *st)
{
    exchange *x = st->x;
    problem p = {0};
    int fd = x->fd, ping_ms = (int)x->s->o->ping_s * 1000;
    bool pings = ping_ms > 0 && !st->alone;
    bool looks = st->kept && (!pings || ping_ms > WANTED_MS); /* is it wanted, between pings */
    if (st->kept && client_left(fd))
        return false; /* stream_close goes on with it */
    if (st->kept)
        x->fd = -1; /* a place in line is not lost with the client */
    pick_state picked = begin_stream(st, looks ? WANTED_MS : ping_ms, &p);
    x->fd = fd;
    switch (picked) {
    case PICK_WAITS:
        if (pings && (!looks || clock_ms() - st->last_ms >= ping_ms))
            ping(st);
        return true;
    case PICK_DONE:
        st->loading = false;
        if (st->rq.load_only) {
            ollama_loaded(&(answer){.rq = &st->rq, .m = &st->x->m->names}, &st->out);
            st->over = true;
        } else {
            begin_answer(st);
        }
        return true;
    case PICK_FAILED:
        break;
    }
    if (!st->kept && client_left(fd)) {
        x->note = "client gone";
        return false;
    }
    if (!stand_in(st))
        return false;
    name_answer(st);
    st->rq.stream = true;
    st->d->begin(&st->a, &st->out);
    fail_stream(st, &p);
    return true;
}

/* Waits for more of the stream, once. False: there is no more. */
static bool take_more(stream *st)
{
    str_cut(&st->out, 0);
    st->at = 0;
    if (st->kept && !recording_wanted(st->kept)) {
        st->x->note = "nobody wants it any more";
        st->over = true; /* a client that still reads gets an end, as it asked for one */
        return true;
    }
    if (!(st->loading ? step_loading(st) : step_stream(st)))
        return false;
    if (st->kept)
        recording_add(st->kept, &st->out);
    return !st->out.bad;
}

int64_t stream_read(stream *st, char *buf, size_t max)
{
    while (st->at >= st->out.n) {
        if (st->over)
            return 0;
        if (!take_more(st))
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
    choice_event h;
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

/* The client of a recorded stream has left: the answer goes on for those who come back. One of
 * `background` goes on to its end. */
static void finish_alone(stream *st)
{
    if (!st->over && (st->background || client_left(st->x->fd))) {
        st->x->note = st->alone ? "in the background" : "its client left";
        st->x->fd = -1;
        if (!st->background)
            recording_alone(st->kept);
        while (!st->over && take_more(st))
            ;
    }
    if (st->told && stored_runs(st->x->s->stored, st->x->owner, st->a.id))
        keep_response(st, "failed", &(problem){503, .text = "no memory for the answer"});
    recording_end(st->kept);
}

void stream_close(stream *st)
{
    if (!st)
        return;
    if (st->kept)
        finish_alone(st);
    if (st->live) {
        live_cancel(st->live);
        note_rest(st);
        note_answer(st);
        if (st->x->s->o->trace_dir)
            write_trace(st);
    }
    live_close(st->live);
    for (int32_t i = 0; st->media && i < PICTURES_MAX; i++)
        carat_media_free(st->media[i]); /* their model is held until the exchange ends */
    for (int32_t i = 0; st->held && i < st->a.n; i++)
        constraint_close(st->held[i]);
    answers_free(&st->a);
    shorten_close(st->shortened);
    request_free(&st->rq);
    beginning_free(&st->made);
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
    json_open(&st->history, NULL, '[');
    if (!stored_items(s->stored, st->x->owner, id->s, true, &st->history)) {
        if (stored_runs(s->stored, st->x->owner, id->s))
            return problem_set(p, 400, "previous_response_id",
                               "Previous response with id '%.60s' is not complete.", id->s);
        p->code = "previous_response_not_found";
        return problem_set(p, 400, "previous_response_id",
                           "Previous response with id '%.60s' not found.", id->s);
    }
    if (st->history.n > (size_t)s->o->max_body)
        return problem_set(p, 400, "previous_response_id",
                           "the conversation has %zu bytes, more than the limit of a request",
                           st->history.n);
    json_close(&st->history, "]");
    if (st->history.bad)
        return problem_set(p, 503, "", "no memory for the conversation");
    st->rq.mem.max_bytes += arena_limit_for(st->history.n);
    return !jtree_parse(st->history.at, st->history.n, "the conversation", REQUEST_MAX_DEPTH,
                        &st->rq.mem, &st->rq.history, &e) ||
           problem_from(p, &e);
}

/* Finds the items of the store that the input refers to. Unknown ones are refused by the parser. */
static bool take_references(stream *st, problem *p)
{
    const jtree *in = jtree_get(st->rq.body, "input");
    const server *s = st->x->s;
    str items = {0};
    err e = {0};
    size_t n = 0;
    if (st->api != API_RESPONSES || !s->stored || !jtree_is(in, JTREE_ARRAY))
        return true;
    const char **ids = arena_array(&st->rq.mem, in->count + 1, sizeof *ids);
    if (!ids)
        return problem_set(p, 503, "", "no memory for 'input'");
    for (const jtree *v = in->first; v; v = v->next)
        if (!request_item(&st->rq, v) && jtree_is(jtree_get(v, "id"), JTREE_STRING))
            ids[n++] = jtree_get(v, "id")->s;
    if (!n)
        return true;
    if (n > REQUEST_MAX_REFERENCES)
        return problem_set(p, 400, "input", "'input' refers to %zu items; at most %d", n,
                           REQUEST_MAX_REFERENCES);
    qsort(ids, n, sizeof *ids, order_texts);
    for (size_t i = 1; i < n; i++) /* else a short body could become a long prompt */
        if (!strcmp(ids[i - 1], ids[i]))
            return problem_set(p, 400, "input", "'input' refers to '%.60s' more than once", ids[i]);
    json_open(&items, NULL, '[');
    stored_find_items(s->stored, st->x->owner, ids, n, &items);
    json_close(&items, "]");
    bool ok = !items.bad || problem_set(p, 503, "", "no memory for the items of 'input'");
    if (ok && items.n > (size_t)s->o->max_body)
        ok = problem_set(p, 400, "input",
                         "the items that 'input' refers to have %zu bytes, more "
                         "than the limit of a request",
                         items.n);
    if (ok) {
        st->rq.mem.max_bytes += arena_limit_for(items.n);
        ok = !jtree_parse(items.at, items.n, "the items", REQUEST_MAX_DEPTH, &st->rq.mem,
                          &st->rq.referred, &e) ||
             problem_from(p, &e);
    }
    str_free(&items);
    return ok;
}

/* Keeps a complete response before the client learns its id. One of `background` is kept from its
 * beginning, in each of its states; NULL: it is complete. */
static void keep_response(stream *st, const char *state, const problem *failed)
{
    str object = {0}, input = {0}, output = {0}, before = {0};
    bool running = state && !failed;
    if (st->api != API_RESPONSES || (!st->rq.store && !st->told))
        return;
    st->queued = running && !strcmp(state, "queued");
    responses_object(&st->a, state, failed, &object);
    if (st->read)
        responses_items(&st->a, &input, &output);
    if (st->history.n > 2)
        str_put(&before, st->history.at + 1, st->history.n - 2);
    if (!object.bad && !input.bad && !output.bad && !before.bad)
        stored_put(st->x->s->stored, &(stored_response){.id = st->a.id,
                                                        .owner = st->x->owner,
                                                        .previous = st->rq.previous,
                                                        .object = &object,
                                                        .input = &input,
                                                        .output = &output,
                                                        .before = &before,
                                                        .background = st->background,
                                                        .running = running,
                                                        .again = st->told});
    st->told = st->background;
    str_free(&object);
    str_free(&input);
    str_free(&output);
    str_free(&before);
}

/* The fields of the request; what it leaves open is the made model's. */
static bool read_fields(stream *st, problem *p)
{
    request own = {0};
    request_limits lim = st->x->m->limits;
    bool ok = beginning_limits(&st->made, &own, &lim, p) && request_read(&st->rq, &lim, p) &&
              beginning_set(&st->rq, &own, p) && loras_choose(&st->rq, &st->made, st->x->m, p);
    request_free(&own);
    return ok;
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
        if (!exchange_begin(x, st->rq.model, &st->made, p))
            return PICK_FAILED;
        st->asked_ms = clock_ms();
        x->keep_ms = st->rq.keep_ms;
    }
    const char *name = st->made.name ? exchange_weights(x, &st->made) : st->rq.model;
    pick_state picked = exchange_pick_within(x, name, timeout_ms, p);
    if (picked != PICK_DONE || st->read)
        return picked;
    const char *lacking = loras_lacking(&st->made, x->m);
    if (lacking) { /* it was made since the model was loaded */
        if (!loras_may_load(&st->made, x->m, lacking, p))
            return PICK_FAILED;
        if (st->again)
            problem_set(p, 503, "model", "the adapter %.300s could not be loaded", lacking);
        if (st->again)
            return PICK_FAILED;
        st->again = true;
        catalog_again(x->s->catalog, x);
        return read_request(st, timeout_ms, p);
    }
    st->load_ms = clock_ms() - st->asked_ms;
    if (!take_history(st, p) || !take_references(st, p) || !read_fields(st, p))
        return PICK_FAILED;
    if (st->rq.left_out.n)
        log_line(x->s, "%s: %s%s", x->id, st->rq.left_out.at,
                 st->rq.n_left_out > REQUEST_MAX_WARNINGS ? ", and more" : "");
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
    if (carat_model_is_encoder(m->model))
        return ollama ? problem_set(p, 400, "", "\"%.100s\" does not support %s", name,
                                    rq->api == API_OLLAMA_CHAT ? "chat" : "generate")
                      : problem_set(p, 400, "model",
                                    "%.100s is an encoder: it makes vectors of texts "
                                    "(/v1/embeddings) and writes no text",
                                    name);
    if (is_conversation(rq) && !m->info.has_chat)
        return ollama ? problem_set(p, 400, "", "\"%.100s\" does not support chat", name)
                      : problem_set(p, 400, "",
                                    "this model has no chat format: only /v1/completions works");
    if (rq->think != THINK_ON || m->thought_open >= 0)
        return true;
    return ollama ? problem_set(p, 400, "think", "\"%.100s\" does not support thinking", name)
                  : problem_set(p, 400, "thinking",
                                "the request asks for thinking, and the answers of this model have "
                                "no thoughts");
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
    if ((picked = prompts_shorten(st, timeout_ms, p)) != PICK_DONE)
        return picked;
    if (!prompts_make(st, p) || !prompts_to_jobs(st, p))
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
    pick_state picked = begin_stream(st, 0, p); /* reads the body */
    const jtree *asked = st->rq.body ? jtree_get(st->rq.body, "stream") : NULL;
    st->background = st->api == API_RESPONSES && st->rq.body &&
                     jtree_truthy(jtree_get(st->rq.body, "background"));
    st->alone = st->background && !jtree_truthy(asked);
    if (picked == PICK_WAITS && !st->alone)
        picked = begin_stream(st, ping_ms > 0 ? ping_ms : -1, p);
    if (picked == PICK_WAITS && st->alone) {
        st->loading = true;
        return picked;
    }
    if (picked == PICK_WAITS && !jtree_truthy(asked))
        return begin_stream(st, -1, p);
    st->loading = picked == PICK_WAITS;
    return picked;
}

/* Whether the client asks for a stream that outlives its connection, and gets it. */
static bool begin_recording(stream *st, problem *p)
{
    exchange *x = st->x;
    const char *name = x->header(x, "X-Conversation-Id");
    if (st->d->type || (!name && !st->background))
        return true;
    if (st->alone && !x->s->stored)
        return problem_set(p, 400, "background",
                           "'background' needs 'stream' here: this server keeps no responses "
                           "(--responses)");
    if (name && (!*name || strlen(name) > RECORDING_NAME_MAX))
        return problem_set(p, 400, "X-Conversation-Id",
                           "X-Conversation-Id has %zu bytes: expected 1 to %d", strlen(name),
                           RECORDING_NAME_MAX);
    if (st->alone && !stand_in(st))
        return problem_set(p, 503, "", "no memory for a request");
    st->kept = recording_begin(x->s->recordings, x->owner, name, p);
    return st->kept != NULL;
}

static void open_answer_stream(stream *st)
{
    exchange *x = st->x;
    if (st->loading)
        ping(st);
    else
        begin_answer(st);
    if (st->kept)
        recording_add(st->kept, &st->out);
    x->status = 200;
    x->type = st->d->type ? st->d->type : "text/event-stream";
    x->stream = st;
}

/* The response, queued; the answer follows once it was sent. */
static void answer_at_once(stream *st)
{
    exchange *x = st->x;
    memcpy(st->id, st->a.id, sizeof st->id);
    if (st->loading) {
        st->rq.store = true; /* else reading the request fails */
        recording_of_answer(st->kept, st->id);
        keep_response(st, "queued", NULL);
    } else {
        begin_answer(st);
        recording_add(st->kept, &st->out);
    }
    responses_object(&st->a, "queued", NULL, &x->out);
    x->status = 200;
    x->close = true;
    x->rest = st;
}

void handle_generation(exchange *x, api_kind api)
{
    problem p = {0};
    const char *last = x->header(x, "Last-Event-ID");
    if (last && !dialect_of(api)->type) { /* the request again, of a client that came back */
        recording_follow(x->s->recordings, x, &(recording_place){.event = last});
        return;
    }
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
    if ((st->loading || st->rq.stream || st->alone) && !begin_recording(st, &p)) {
        reply_problem(x, &p);
        stream_close(st);
        return;
    }
    if (st->alone) {
        answer_at_once(st);
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

/* end_prompt follows in any case. */
static bool only_prompt(exchange *x, api_kind api, stream *st, prompt *q, str *text)
{
    problem p = {0};
    st->x = x;
    st->api = api;
    if (read_request(st, -1, &p) != PICK_DONE || !prompt_render(st, q, text, &p)) {
        reply_problem(x, &p);
        return false;
    }
    return true;
}

static void end_prompt(stream *st)
{
    request_free(&st->rq);
    beginning_free(&st->made);
    str_free(&st->history);
}

bool generation_reads(exchange *x, const char *body, size_t n, problem *p)
{
    stream st = {.x = x, .api = API_CHAT};
    prompt q = {0};
    const char *given = x->body;
    size_t n_given = x->n_body;
    x->body = body;
    x->n_body = n;
    bool ok = read_request(&st, -1, p) == PICK_DONE && prompt_render(&st, &q, NULL, p);
    if (ok && q.n >= x->m->n_ctx)
        ok = problem_set(p, 400, "", "it has %lld tokens, and the context holds %d", (long long)q.n,
                         (int)x->m->n_ctx);
    end_prompt(&st);
    x->body = given;
    x->n_body = n_given;
    return ok;
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
        json_close(&x->out, "}");
        x->status = 200;
    }
    end_prompt(&st);
}

/* The body without a field that no chat has. */
static bool without_field(exchange *x, const char *name, str *body, problem *p)
{
    arena mem = {.max_bytes = arena_limit_for(x->n_body)};
    const jtree *all = NULL;
    err e = {0};
    bool ok = !jtree_parse(x->body, x->n_body, "the body", REQUEST_MAX_DEPTH, &mem, &all, &e) ||
              problem_from(p, &e);
    json_open(body, NULL, '{');
    for (const jtree *m = ok ? all->first : NULL; m; m = m->next)
        if (strcmp(m->key, name))
            json_tree(body, m->key, m);
    json_close(body, "}");
    arena_free(&mem);
    return ok && (!body->bad || problem_set(p, 503, "", "no memory for a request of this size"));
}

void handle_tokens(exchange *x, bool strs)
{
    stream st = {0};
    prompt q = {0};
    str body = {0};
    problem p = {0};
    const char *given = x->body;
    size_t n_given = x->n_body;
    if (without_field(x, "return_token_strs", &body, &p)) {
        x->body = body.at;
        x->n_body = body.n;
        if (only_prompt(x, API_CHAT, &st, &q, NULL))
            put_tokens(x, q.ids, q.n_ids, false, strs); /* a picture is one: its placeholder */
        end_prompt(&st);
    } else {
        reply_problem(x, &p);
    }
    x->body = given;
    x->n_body = n_given;
    str_free(&body);
}

void handle_template(exchange *x)
{
    stream st = {0};
    prompt q = {0};
    str text = {0};
    if (only_prompt(x, API_CHAT, &st, &q, &text)) {
        json_open(&x->out, NULL, '{');
        json_text_n(&x->out, "prompt", str_text(&text), text.n);
        json_close(&x->out, "}");
        x->status = 200;
        x->out.bad |= text.bad;
    }
    str_free(&text);
    end_prompt(&st);
}
