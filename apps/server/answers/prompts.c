/* prompts.c - a request to prompts, and prompts to jobs with budgets.
 *
 *     messages -> --system -> shortened? -> template -> sampled calls put back -> tokens -> fit.c?
 *     prompt                -> shortened?                                      -> tokens -> fit.c?
 */
#include "apps/server/answers/generate_int.h"

#include "apps/server/answers/fit.h"
#include "apps/server/answers/infill.h"
#include "apps/media/soft.h"
#include "apps/server/dialects/parts.h"
#include "apps/server/answers/token_rules.h"
#include "base/clock.h"
#include "base/mem.h"

#include <string.h>

enum {
    RESERVE_MAX = 4096 /* tokens kept for the answer after a thought, by default */
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

bool is_conversation(const request *rq)
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

/* Writes a conversation as the template does, with what comes before it (begin.h): that is *begun,
 * in an arena that the caller frees, also after a problem. */
static bool render(const stream *st, const carat_talk *own, carat_talk *begun, carat_chat *chat,
                   problem *p)
{
    const request *rq = &st->rq;
    const served *m = st->x->m;
    carat_chat_options opt = chat_options(st);
    err e = {0};
    beginning_put(&st->made, own, m->s->o->system, begun);
    if (rq->manner)
        beginning_add(begun, rq->manner);
    if (talk_check(begun, &e))
        return problem_of(rq, p, &e);
    /* With tool_choice none the tools stay in the prompt, so that the cached prefix of the
     * conversation stays valid. Where calls cannot be barred, the model does not see tools. */
    if (rq->choice == TOOLS_NONE && !m->bars_calls)
        begun->tools = NULL;
    return !carat_talk_render(m->model, begun, &opt, chat, &e) || problem_of(rq, p, &e);
}

/* A sentence about picture k of the request; -1: about none. */
static bool problem_of_number(const stream *st, int32_t k, problem *p, const err *e)
{
    return k < 0 ? problem_from(p, e) : problem_of_picture(p, &st->rq.pictures.at[k], e);
}

static bool count_pictures(const stream *st, const int32_t *images, int32_t n, int32_t n_around,
                           int64_t *more, problem *p)
{
    err e = {0};
    int32_t bad;
    return !pictures_count(&st->rq.pictures, st->x->m->model, (picture_places){images, n, n_around},
                           more, &bad, &e) ||
           problem_of_number(st, bad, p, &e);
}

bool prompt_count(stream *st, const carat_talk *t, int64_t *n, problem *p)
{
    carat_chat chat = {0};
    arena mem = {.max_bytes = st->rq.turns.max_bytes};
    carat_talk begun = {.mem = &mem};
    int64_t more;
    bool ok = render(st, t, &begun, &chat, p) &&
              count_pictures(st, chat.images, chat.n_images, chat.n_around, &more, p);
    if (ok)
        *n = chat.n_ids + more;
    carat_chat_free(&chat);
    arena_free(&mem);
    return ok;
}

/* Says once that a call's arguments are no JSON object: the call stands in the history of every
 * later request. */
static void log_odd_arguments(const stream *st, const char *odd)
{
    server *s = st->x->s;
    uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (const char *c = odd; *c; c++)
        h = (h ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
    const size_t n = sizeof s->odd_calls / sizeof *s->odd_calls;
    if (*odd && atomic_exchange(&s->odd_calls[h % n], h) != h)
        log_line(s,
                 "%s: the arguments of the call %s are no JSON object: the model gets them as "
                 "text in one",
                 st->x->id, odd);
}

bool prompt_render(stream *st, prompt *out, str *text, problem *p)
{
    request *rq = &st->rq;
    const served *m = st->x->m;
    carat_chat chat = {0};
    arena mem = {.max_bytes = st->rq.turns.max_bytes};
    carat_talk begun = {.mem = &mem};
    if (!render(st, &rq->talk, &begun, &chat, p)) {
        carat_chat_free(&chat);
        arena_free(&mem);
        return false;
    }
    int32_t *replayed = NULL;
    int64_t n = chat.n_ids;
    if (m->names.call_open >= 0)
        replayed = replay_apply(
            m->calls,
            &(replay_prompt){&begun, chat.ids, chat.n_ids, m->names.call_open, m->names.call_close},
            &n);
    int64_t more = 0;
    bool counted = count_pictures(st, chat.images, chat.n_images, chat.n_around, &more, p);
    out->ids = counted ? copy_ids(st, replayed ? replayed : chat.ids, n, p) : NULL;
    mem_free(replayed);
    arena_free(&mem);
    out->n = n + more;
    out->n_ids = n;
    out->images = chat.n_images ? copy_ids(st, chat.images, chat.n_images, p) : NULL;
    out->n_images = chat.n_images;
    out->starts_thinking = chat.starts_thinking;
    out->no_thoughts = chat.no_thoughts;
    log_odd_arguments(st, chat.odd_arguments);
    if (text)
        str_put(text, chat.text, chat.n_text);
    carat_chat_free(&chat);
    return out->ids && (out->images || !out->n_images);
}

/* A text with marks of pictures, piece by piece: so a mark joins nothing. ids NULL: counts. */
static int64_t encode_pieces(const carat_model *m, const raw_prompt *r, int32_t flags,
                             int32_t placeholder, int32_t *ids, int64_t cap, err *e)
{
    const char *at = r->text, *end = at + r->n;
    int64_t n = 0;
    for (int32_t i = 0; i <= r->n_pictures; i++) {
        const char *mark = i < r->n_pictures ? memmem(at, (size_t)(end - at), PICTURE_MARK,
                                                      sizeof PICTURE_MARK - 1)
                                             : end;
        int64_t more = carat_tokenize(m, at, (size_t)(mark - at), flags, ids ? ids + n : NULL,
                                      ids ? cap - n : 0, e);
        if (more < 0)
            return -1;
        n += more;
        flags &= ~CARAT_TOK_BOS;
        at = mark + (i < r->n_pictures ? sizeof PICTURE_MARK - 1 : 0);
        if (i < r->n_pictures && ids)
            ids[n] = placeholder;
        n += i < r->n_pictures;
    }
    return n;
}

static bool encode_pictured(stream *st, const raw_prompt *r, int32_t flags, prompt *out, problem *p)
{
    const carat_model *m = st->x->m->model;
    int32_t placeholder = carat_image_token(m), *images = copy_ids(st, NULL, r->n_pictures, p);
    err e = {0};
    int64_t n = encode_pieces(m, r, flags, placeholder, NULL, 0, &e), more, n_places = 0;
    out->ids = n < 0 || !images ? NULL : copy_ids(st, NULL, n, p);
    if (n < 0 || (out->ids && encode_pieces(m, r, flags, placeholder, out->ids, n, &e) < 0))
        return problem_from(p, &e);
    for (int64_t i = 0; out->ids && i < n; i++)
        n_places += out->ids[i] == placeholder;
    if (n_places > r->n_pictures)
        return problem_set(p, 400, "prompt",
                           "'prompt.prompt_string' spells the placeholder of a picture beside the "
                           "mark " PICTURE_MARK);
    for (int32_t i = 0; out->ids && i < r->n_pictures; i++)
        images[i] = r->first_picture + i;
    if (!out->ids || !count_pictures(st, images, r->n_pictures, 0, &more, p))
        return false;
    out->n_ids = n;
    out->n = n + more;
    out->images = images;
    out->n_images = r->n_pictures;
    return true;
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
    if (r->n_pictures)
        return encode_pictured(st, r, flags, out, p);
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
                       .talk = &rq->talk,
                       .chat = chat_options(st),
                       .prompt = rq->n_prompts ? rq->prompt : NULL,
                       .n_prompts = rq->n_prompts};
    for (int32_t i = 0; i < rq->n_prompts; i++)
        if (rq->prompt[i].ids || rq->prompt[i].n_pictures)
            return problem_set(p, 400, "compress", "'compress' shortens texts, and the prompt %s",
                               rq->prompt[i].ids ? "is token ids" : "has pictures");
    return shorten_start(&st->shortened, &ask, p);
}

/* The results take the place of what the client sent. */
static void use_shorter(stream *st)
{
    request *rq = &st->rq;
    server *s = st->x->s;
    int32_t n;
    double ms;
    const carat_compressed *x = shorten_results(st->shortened, &n, &ms);
    for (int32_t i = 0; i < n; i++) {
        if (!x[i].n)
            continue;
        metrics_count_shorter(&s->m, x[i].n_original, x[i].n_kept);
        if (rq->n_prompts) {
            rq->prompt[i].text = x[i].text;
            rq->prompt[i].n = x[i].n_text;
        } else {
            rq->talk.turn = x[i].talk->turn;
            rq->talk.n = x[i].talk->n;
        }
    }
}

pick_state prompts_shorten(stream *st, int timeout_ms, problem *p)
{
    const request *rq = &st->rq;
    carat_compress_options opt;
    if (!wants_shorter(st, &opt))
        return PICK_DONE;
    if (!st->shortened && !start_shortening(st, &opt, p))
        return PICK_FAILED;
    pick_state done = shorten_wait(st->shortened, rq, st->x->fd, timeout_ms, p);
    if (done == PICK_DONE)
        use_shorter(st);
    return done;
}

/* What usage says of it. */
static bool tell_shorter(stream *st, problem *p)
{
    request *rq = &st->rq;
    compression_report *t = &st->a.shorter;
    if (!st->shortened)
        return true;
    int32_t *origin = arena_array(&rq->mem, rq->talk.n + 1, sizeof *origin);
    if (!origin)
        return problem_set(p, 503, "", "no memory for a request");
    for (size_t i = 0; i < rq->talk.n; i++)
        origin[i] = rq->talk.turn[i].index;
    t->at = shorten_results(st->shortened, &t->n, &t->ms);
    t->scorer = shorten_scorer(st->shortened);
    t->origin = origin;
    t->n_origin = (int32_t)rq->talk.n;
    t->prompts = rq->n_prompts > 0;
    return true;
}

/* The soft tokens of a prompt's pictures in the place of the placeholders. */
static bool expand(stream *st, prompt *q, problem *p)
{
    request *rq = &st->rq;
    carat_model *m = st->x->m->model;
    err e = {0};
    if (!q->n_images)
        return true;
    if (!st->media)
        st->media = arena_array(&rq->mem, PICTURES_MAX, sizeof *st->media);
    if (!st->media)
        return problem_set(p, 503, "", "no memory for a request");
    int32_t *ids = NULL, bad;
    int64_t n = 0;
    if (pictures_place(&rq->pictures, m, st->media, (picture_places){q->images, q->n_images, 0},
                       q->ids, q->n_ids, &ids, &n, &bad, &e))
        return problem_of_number(st, bad, p, &e);
    q->ids = copy_ids(st, ids, n, p);
    q->n = n;
    mem_free(ids);
    return q->ids != NULL;
}

/* A template may leave pictures out: Gemma 4's of late April does so in results of tools. */
static void tell_unseen(stream *st)
{
    request *rq = &st->rq;
    if (!is_conversation(rq) || st->cut.n_messages || st->prompt->n_images == rq->pictures.n)
        return; /* those of messages that were cut are told with these */
    leave_out(rq, "the prompt has %d of the request's %d pictures, by the model's chat template",
              st->prompt->n_images, rq->pictures.n);
    log_line(st->x->s, "%s: the prompt has %d of the request's %d pictures", st->x->id,
             st->prompt->n_images, rq->pictures.n);
}

bool prompts_make(stream *st, problem *p)
{
    request *rq = &st->rq;
    bool may_cut = (rq->api == API_OLLAMA_CHAT || rq->api == API_OLLAMA_GENERATE) && !rq->infill;
    st->n_prompts = rq->n_prompts ? rq->n_prompts : 1;
    st->prompt = arena_array(&rq->mem, (size_t)st->n_prompts, sizeof *st->prompt);
    if (!st->prompt)
        return problem_set(p, 503, "", "no memory for a request");
    for (int32_t i = 0; i < st->n_prompts; i++) {
        prompt *q = &st->prompt[i];
        bool ok = rq->n_prompts ? encode_prompt(st, &rq->prompt[i], q, p)
                  : rq->infill  ? infill_encode(rq, st->x->m, &q->ids, &q->n, p)
                                : prompt_render(st, q, NULL, p);
        if (!ok || (may_cut && !fit_prompt(st, q, p)) || !too_long(st, q->n, p) ||
            !expand(st, q, p) || !too_long(st, q->n, p))
            return false;
    }
    tell_unseen(st);
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

bool prompts_to_jobs(stream *st, problem *p)
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
    st->a.cut = st->cut;
    if (!tell_shorter(st, p) || !token_rules_make(rq, st->x->m->model, p))
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
        token_rules_set(rq, prompt_is_own(rq, i), o);
        o->speculation = rq->speculation;
        o->parse = is_conversation(rq);
        o->starts_thinking = q->starts_thinking;
        o->no_thoughts = q->no_thoughts;
        o->no_calls = rq->tools.n && rq->choice == TOOLS_NONE && st->x->m->bars_calls;
        o->tools_json = rq->tools.n && rq->choice != TOOLS_NONE ? rq->tools.at : NULL;
        o->call_parts = rq->stream && dialect_of(rq->api)->call_parts;
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
