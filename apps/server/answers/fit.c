/* fit.c - see fit.h.
 *
 * Messages are dropped in steps of an eighth of the context. So a conversation that grows by a turn
 * loses nothing more for some turns: its prompt begins with the same tokens, which are not computed
 * again. The answer gets an eighth, too, unless the request wants less: a context of carat never
 * shifts while it answers, as ollama's does.
 */
#include "apps/server/answers/fit.h"

#include "apps/server/dialects/jsonw.h"
#include "base/utf8.h"

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

typedef struct talk {
    const jtree *list; /* the messages */
    int32_t *unit;     /* per message: its number among those that may be dropped, or STAYS */
    int32_t n_units;   /* a call and its results are one */
} talk;

static bool is_role(const jtree *m, const char *role)
{
    return tree_says(jtree_get(m, "role"), role);
}

/* Numbers the messages that may be dropped, the oldest first. */
static void number_units(talk *t)
{
    int32_t i = 0, last_user = STAYS, of_call = STAYS;
    int32_t tail = 0; /* the last message; of results, their call */
    for (const jtree *m = t->list->first; m; m = m->next, i++) {
        if (is_role(m, "user"))
            last_user = i;
        if (!is_role(m, "tool"))
            tail = i;
    }
    i = 0;
    for (const jtree *m = t->list->first; m; m = m->next, i++) {
        if (i >= tail || i == last_user || is_role(m, "system") || is_role(m, "developer")) {
            t->unit[i] = of_call = STAYS;
        } else if (is_role(m, "tool") && of_call != STAYS) {
            t->unit[i] = of_call;
        } else {
            t->unit[i] = t->n_units++;
            of_call = is_role(m, "assistant") ? t->unit[i] : STAYS;
        }
    }
}

/* The messages without the oldest n_dropped units; where each was in the request. */
static void put_kept(const talk *t, int32_t n_dropped, str *out, str *origin)
{
    int32_t i = 0;
    str_cut(out, 0);
    str_cut(origin, 0);
    json_open(out, NULL, '[');
    for (const jtree *m = t->list->first; m; m = m->next, i++) {
        if (t->unit[i] != STAYS && t->unit[i] < n_dropped)
            continue;
        json_tree(out, NULL, m);
        str_put(origin, (const char *)&i, sizeof i);
    }
    json_close(out, ']');
}

static bool count_kept(stream *st, const talk *t, int32_t n_dropped, str *out, str *origin,
                       int64_t *n, problem *p)
{
    put_kept(t, n_dropped, out, origin);
    return out->bad || origin->bad ? problem_set(p, 503, "", "no memory for a request")
                                   : prompt_count(st, out, n, p);
}

/* The fewest units without which the prompt has at most `goal` tokens, else all. */
static bool choose_units(stream *st, const talk *t, int64_t goal, str *out, str *origin,
                         int32_t *n_dropped, int64_t *n, problem *p)
{
    int32_t lo = 1, hi = t->n_units;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (!count_kept(st, t, mid, out, origin, n, p))
            return false;
        if (*n <= goal)
            hi = mid;
        else
            lo = mid + 1;
    }
    if (!count_kept(st, t, hi, out, origin, n, p))
        return false;
    *n_dropped = hi;
    return true;
}

/* Tokens that a prompt of n shall have after the cut, a whole number of steps below. */
static int64_t goal_below(const stream *st, int64_t n)
{
    int64_t n_ctx = st->x->m->n_ctx, step = n_ctx / PARTS > 0 ? n_ctx / PARTS : 1;
    int64_t over = n + answer_room(st) - n_ctx;
    return n - (over + step - 1) / step * step;
}

/* Makes the kept messages those of the request. */
static bool use_kept(stream *st, const talk *t, const str *kept, const str *origin, int32_t dropped,
                     prompt *q, problem *p)
{
    request *rq = &st->rq;
    int64_t before = q->n;
    str_cut(&rq->messages, 0);
    str_put(&rq->messages, kept->at, kept->n);
    str_cut(&rq->origin, 0);
    str_put(&rq->origin, origin->at, origin->n);
    if (rq->messages.bad || rq->origin.bad)
        return problem_set(p, 503, "", "no memory for a request");
    if (!prompt_render(st, q, NULL, p))
        return false;
    for (size_t i = 0; i < t->list->count; i++)
        st->cut.n_messages += t->unit[i] != STAYS && t->unit[i] < dropped;
    st->cut.n_tokens = before - q->n;
    log_line(st->x->s,
             "%s: the prompt has %lld tokens, and the context holds %d: the oldest %d of its %zu "
             "messages are left out, with %lld tokens",
             st->x->id, (long long)before, st->x->m->n_ctx, st->cut.n_messages, t->list->count,
             (long long)st->cut.n_tokens);
    return true;
}

static bool fit_talk(stream *st, prompt *q, problem *p)
{
    request *rq = &st->rq;
    talk t = {0};
    str kept = {0}, origin = {0};
    err e = {0};
    int32_t dropped = 0, n_ctx = st->x->m->n_ctx;
    int64_t n = q->n, goal = goal_below(st, q->n);
    bool ok = true;
    if (jtree_parse(rq->messages.at, rq->messages.n, "messages", REQUEST_MAX_DEPTH + 2, &rq->mem,
                    &t.list, &e))
        return problem_from(p, &e);
    t.unit = arena_array(&rq->mem, t.list->count + 1, sizeof *t.unit);
    if (!t.unit)
        return problem_set(p, 503, "", "no memory for a request");
    number_units(&t);
    if (t.n_units)
        ok = choose_units(st, &t, goal, &kept, &origin, &dropped, &n, p);
    if (ok && n >= n_ctx)
        ok = refuse(st, "messages",
                    t.n_units ? "the system messages, the tools and the last messages are longer "
                                "than the context even without all others"
                              : "the system messages, the tools and the last message are longer "
                                "than the context",
                    n, p);
    else if (ok && dropped && (n <= goal || q->n >= n_ctx))
        ok = use_kept(st, &t, &kept, &origin, dropped, q, p);
    str_free(&kept);
    str_free(&origin);
    return ok;
}

/* ---- One prompt ---- */

/* The conversation of /api/generate with its last text from byte `from` on. */
static void put_text_from(const jtree *list, size_t from, str *out)
{
    str_cut(out, 0);
    json_open(out, NULL, '[');
    for (const jtree *m = list->first; m; m = m->next) {
        const jtree *text = jtree_get(m, "content");
        if (m->next) {
            json_tree(out, NULL, m);
            continue;
        }
        json_open(out, NULL, '{');
        json_tree(out, "role", jtree_get(m, "role"));
        json_text_n(out, "content", text->s + from, text->n - from);
        json_close(out, '}');
    }
    json_close(out, ']');
}

static size_t char_start(const char *s, size_t n, size_t at)
{
    while (at < n && ((unsigned char)s[at] & 0xc0) == 0x80)
        at++;
    return at;
}

static bool fit_text(stream *st, prompt *q, problem *p)
{
    request *rq = &st->rq;
    const jtree *list, *text = NULL;
    str out = {0};
    err e = {0};
    int64_t before = q->n, n = 0, goal = st->x->m->n_ctx - answer_room(st);
    if (jtree_parse(rq->messages.at, rq->messages.n, "messages", REQUEST_MAX_DEPTH + 2, &rq->mem,
                    &list, &e))
        return problem_from(p, &e);
    for (const jtree *m = list->first; m; m = m->next)
        text = jtree_get(m, "content");
    if (!text || !text->n)
        return refuse(st, "prompt", "the prompt is longer than the context", before, p);
    size_t lo = 1, hi = text->n; /* the first byte that stays is among these */
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        put_text_from(list, char_start(text->s, text->n, mid), &out);
        if (out.bad || !prompt_count(st, &out, &n, p))
            break;
        if (n <= goal)
            hi = mid;
        else
            lo = mid + 1;
    }
    size_t from = char_start(text->s, text->n, hi);
    if (out.bad)
        problem_set(p, 503, "", "no memory for a request");
    else if (!p->status && from == text->n)
        refuse(st, "system", "the system message leaves the prompt no room", before, p);
    if (!p->status) {
        put_text_from(list, from, &rq->messages);
        st->cut.n_bytes = (int64_t)from;
        if (rq->messages.bad)
            problem_set(p, 503, "", "no memory for a request");
        else if (prompt_render(st, q, NULL, p))
            st->cut.n_tokens = before - q->n;
    }
    str_free(&out);
    return !p->status;
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
