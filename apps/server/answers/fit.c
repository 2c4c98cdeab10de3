/* fit.c - see fit.h.
 *
 * Messages are dropped in steps of an eighth of the context. So a conversation that grows by a turn
 * loses nothing more for some turns: its prompt begins with the same tokens, which are not computed
 * again. The answer gets an eighth, too, unless the request wants less: a context of carat never
 * shifts while it answers, as ollama's does.
 */
#include "apps/server/answers/fit.h"

#include <string.h>

enum { PARTS = 8, STAYS = -1 };

/* Tokens of the context that the answer gets. "shift": false asks for none to be kept. */
static int64_t answer_room(const stream *st)
{
    const request *rq = &st->rq;
    int64_t most = st->x->m->n_ctx / PARTS;
    most = rq->max_tokens > 0 && rq->max_tokens < most ? rq->max_tokens : most;
    return rq->shift && most > 1 ? most : 1;
}

static bool refuse(const stream *st, const char *field, const char *what, int64_t n, problem *p)
{
    p->n_prompt = n;
    p->n_ctx = st->x->m->n_ctx;
    p->code = "context_length_exceeded";
    return problem_set(p, 400, field,
                       "%s: %lld tokens, and the context holds %d, at least one of "
                       "them for the answer",
                       what, (long long)n, st->x->m->n_ctx);
}

/* ---- Conversations ---- */

typedef struct units {
    const carat_talk *all;
    int32_t *unit;   /* per message: its number among those that may be dropped, or STAYS */
    int32_t n_units; /* a call and its results are one */
    carat_talk kept; /* without the oldest of them */
} units;

/* Numbers the messages that may be dropped, the oldest first. */
static void number_units(units *u)
{
    const talk_turn *m = u->all->turn;
    size_t n = u->all->n, last_user = SIZE_MAX;
    size_t tail = 0; /* the last message; of results, their call */
    int32_t of_call = STAYS;
    for (size_t i = 0; i < n; i++) {
        if (m[i].role == TALK_USER)
            last_user = i;
        if (m[i].role != TALK_TOOL)
            tail = i;
    }
    for (size_t i = 0; i < n; i++) {
        if (i >= tail || i == last_user || talk_is_system(&m[i])) {
            u->unit[i] = of_call = STAYS;
        } else if (m[i].role == TALK_TOOL && of_call != STAYS) {
            u->unit[i] = of_call;
        } else {
            u->unit[i] = u->n_units++;
            of_call = m[i].role == TALK_ASSISTANT ? u->unit[i] : STAYS;
        }
    }
}

static bool is_dropped(const units *u, size_t i, int32_t n_dropped)
{
    return u->unit[i] != STAYS && u->unit[i] < n_dropped;
}

/* Keeps all but the oldest n_dropped units, and counts the tokens. */
static bool count_kept(stream *st, units *u, int32_t n_dropped, int64_t *n, problem *p)
{
    u->kept.n = 0;
    for (size_t i = 0; i < u->all->n; i++)
        if (!is_dropped(u, i, n_dropped))
            u->kept.turn[u->kept.n++] = u->all->turn[i];
    return prompt_count(st, &u->kept, n, p);
}

/* The fewest units without which the prompt has at most `goal` tokens, else all. */
static bool choose_units(stream *st, units *u, int64_t goal, int32_t *n_dropped, int64_t *n,
                         problem *p)
{
    int32_t lo = 1, hi = u->n_units;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (!count_kept(st, u, mid, n, p))
            return false;
        if (*n <= goal)
            hi = mid;
        else
            lo = mid + 1;
    }
    *n_dropped = hi;
    return count_kept(st, u, hi, n, p);
}

/* Tokens that a prompt of n shall have after the cut, a whole number of steps below. */
static int64_t goal_below(const stream *st, int64_t n)
{
    int64_t n_ctx = st->x->m->n_ctx, step = n_ctx / PARTS > 0 ? n_ctx / PARTS : 1;
    int64_t over = n + answer_room(st) - n_ctx;
    return n - (over + step - 1) / step * step;
}

/* Makes the kept messages those of the request. */
static bool use_kept(stream *st, const units *u, int32_t dropped, prompt *q, problem *p)
{
    request *rq = &st->rq;
    int64_t before = q->n;
    size_t n = u->all->n;
    for (size_t i = 0; i < n; i++)
        st->cut.n_messages += is_dropped(u, i, dropped);
    rq->talk = u->kept;
    if (!prompt_render(st, q, NULL, p))
        return false;
    st->cut.n_tokens = before - q->n;
    log_line(st->x->s,
             "%s: the prompt has %lld tokens, and the context holds %d: the oldest %d of its %zu "
             "messages are left out, with %lld tokens",
             st->x->id, (long long)before, st->x->m->n_ctx, st->cut.n_messages, n,
             (long long)st->cut.n_tokens);
    return true;
}

static bool fit_talk(stream *st, prompt *q, problem *p)
{
    request *rq = &st->rq;
    units u = {.all = &rq->talk, .kept = {.mem = rq->talk.mem}};
    int32_t dropped = 0, n_ctx = st->x->m->n_ctx;
    int64_t n = q->n, goal = goal_below(st, q->n);
    u.unit = arena_array(&rq->mem, rq->talk.n + 1, sizeof *u.unit);
    talk_copy(&rq->talk, &u.kept);
    if (!u.unit || u.kept.bad)
        return problem_set(p, 503, "", "no memory for a request");
    number_units(&u);
    if (u.n_units && !choose_units(st, &u, goal, &dropped, &n, p))
        return false;
    if (n >= n_ctx)
        return refuse(st, "messages",
                      u.n_units ? "the system messages, the tools and the last messages are longer "
                                  "than the context even without all others"
                                : "the system messages, the tools and the last message are longer "
                                  "than the context",
                      n, p);
    return !dropped || (n > goal && q->n < n_ctx) || use_kept(st, &u, dropped, q, p);
}

/* ---- One prompt ---- */

static size_t char_start(const char *s, size_t n, size_t at)
{
    while (at < n && ((unsigned char)s[at] & 0xc0) == 0x80)
        at++;
    return at;
}

/* The conversation of /api/generate: its last text loses its beginning. */
static bool fit_text(stream *st, prompt *q, problem *p)
{
    request *rq = &st->rq;
    const talk_turn *given = talk_last(&rq->talk);
    const talk_text text = given->shape == TALK_WHOLE ? given->part->text : (talk_text){0};
    talk_part rest = {.kind = TALK_TEXT};
    carat_talk cut = {.mem = rq->talk.mem};
    int64_t before = q->n, n = 0, goal = st->x->m->n_ctx - answer_room(st);
    if (!text.n)
        return refuse(st, "prompt", "the prompt is longer than the context", before, p);
    size_t lo = 1, hi = text.n, from; /* the first byte that stays is among these */
    talk_copy(&rq->talk, &cut);
    if (cut.bad)
        return problem_set(p, 503, "", "no memory for a request");
    talk_last(&cut)->part = &rest;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        from = char_start(text.s, text.n, mid);
        rest.text = (talk_text){text.s + from, text.n - from};
        if (!prompt_count(st, &cut, &n, p))
            return false;
        if (n <= goal)
            hi = mid;
        else
            lo = mid + 1;
    }
    from = char_start(text.s, text.n, hi);
    if (from == text.n)
        return refuse(st, "system", "the system message leaves the prompt no room", before, p);
    talk_set_text(&rq->talk, text.s + from, text.n - from);
    st->cut.n_bytes = (int64_t)from;
    if (rq->talk.bad)
        return problem_set(p, 503, "", "no memory for a request");
    if (!prompt_render(st, q, NULL, p))
        return false;
    st->cut.n_tokens = before - q->n;
    return true;
}

/* Tokens in the middle of a text that the model continues. */
static void fit_raw(stream *st, prompt *q)
{
    int64_t goal = st->x->m->n_ctx - answer_room(st), n_cut = q->n - goal;
    int64_t keep = st->rq.num_keep < 0 || st->rq.num_keep > goal / 2 ? goal / 2 : st->rq.num_keep;
    memmove(q->ids + keep, q->ids + keep + n_cut, (size_t)(goal - keep) * sizeof *q->ids);
    q->n = goal;
    st->cut.n_tokens = n_cut;
}

bool fit_prompt(stream *st, prompt *q, problem *p)
{
    int32_t n_ctx = st->x->m->n_ctx;
    int64_t before = q->n;
    bool is_talk = st->rq.api == API_OLLAMA_CHAT;
    if (q->n + (is_talk ? answer_room(st) : 1) <= n_ctx)
        return true;
    if (!st->rq.truncate)
        return q->n < n_ctx || refuse(st, is_talk ? "messages" : "prompt",
                                      "the prompt is longer than the context, and 'truncate' is "
                                      "false",
                                      q->n, p);
    if (is_talk)
        return fit_talk(st, q, p);
    if (st->rq.n_prompts)
        fit_raw(st, q);
    else if (!fit_text(st, q, p))
        return false;
    log_line(st->x->s,
             "%s: the prompt has %lld tokens, and the context holds %d: its %s, %lld tokens, is "
             "left out",
             st->x->id, (long long)before, n_ctx, st->rq.n_prompts ? "middle" : "beginning",
             (long long)st->cut.n_tokens);
    return true;
}
