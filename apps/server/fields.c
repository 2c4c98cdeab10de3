/* fields.c - reading single fields of a request, with checks of kind and range.
 *
 * Numbers are read as they are spelled: 1e400 is out of range, not infinity. Whole numbers must be
 * whole, lists have limits. Each problem names its field. known.c decides about fields that no
 * parser reads; sampling.c has the fields of sampling.
 */
#include "apps/server/jsonw.h"
#include "apps/server/request.h"
#include "base/show.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Problems ---- */

bool problem_set(problem *p, int http, const char *param, const char *fmt, ...)
{
    if (p->status)
        return false;
    va_list ap;
    p->status = http;
    show_into(p->param, sizeof p->param, param ? param : "");
    va_start(ap, fmt);
    show_format(p->text, sizeof p->text, fmt, ap);
    va_end(ap);
    return false;
}

/* The field at the start of a sentence: "messages[3].content is ...", "tools[0]: ...". */
static void param_of(const char *text, char *out, size_t cap)
{
    size_t n = strcspn(text, " :,;");
    *out = 0;
    if ((!strncmp(text, "messages", 8) || !strncmp(text, "tools", 5)) && n < cap) {
        memcpy(out, text, n);
        out[n] = 0;
    }
}

bool problem_from(problem *p, const err *e)
{
    static const int http[] = {
        [CARAT_E_ARG] = 400,       [CARAT_E_FORMAT] = 400,      [CARAT_E_IO] = 500,
        [CARAT_E_MEMORY] = 503,    [CARAT_E_UNSUPPORTED] = 400, [CARAT_E_LIMIT] = 400,
        [CARAT_E_CANCELLED] = 503, [CARAT_E_NUMERIC] = 500};
    char param[sizeof p->param];
    param_of(e->text, param, sizeof param);
    int code =
        e->status > 0 && (size_t)e->status < sizeof http / sizeof *http ? http[e->status] : 500;
    problem_set(p, code, param, "%s", *e->text ? e->text : "carat failed without a reason");
    if (e->status == CARAT_E_MEMORY && !p->retry_s)
        p->retry_s = 1;
    return false;
}

bool keep_text(request *rq, problem *p, const char *s, size_t n, const char **out)
{
    *out = arena_strndup(&rq->mem, s, n);
    return *out || problem_set(p, 503, "", "no memory for a request of this size");
}

/* ---- One member ---- */

static bool wrong_kind(problem *p, const char *key, const jtree *v, const char *want)
{
    return problem_set(p, 400, key, "'%s' is %s; expected %s", key, jtree_kind_name(v), want);
}

bool field_text(problem *p, const jtree *o, const char *key, const char **out)
{
    const jtree *v = jtree_get(o, key);
    if (!v)
        return true;
    if (v->kind != JTREE_STRING)
        return wrong_kind(p, key, v, "a string");
    if (strlen(v->s) != v->n) /* what follows would not be seen */
        return problem_set(p, 400, key, "'%s' has a zero character", key);
    *out = v->s;
    return true;
}

bool field_bool(problem *p, const jtree *o, const char *key, bool *out)
{
    const jtree *v = jtree_get(o, key);
    if (!v)
        return true;
    if (v->kind != JTREE_TRUE && v->kind != JTREE_FALSE)
        return wrong_kind(p, key, v, "true or false");
    *out = v->kind == JTREE_TRUE;
    return true;
}

bool tree_real(const jtree *v, double min, double max, double *out)
{
    if (!jtree_is(v, JTREE_INTEGER) && !jtree_is(v, JTREE_REAL))
        return false;
    double d = strtod(v->s, NULL);
    if (!(d >= min && d <= max))
        return false;
    *out = d;
    return true;
}

bool tree_int(const jtree *v, int64_t min, int64_t max, int64_t *out)
{
    int64_t whole;
    if (jtree_is(v, JTREE_INTEGER)) {
        errno = 0;
        whole = strtoll(v->s, NULL, 10);
        if (errno)
            return false;
    } else {
        double d; /* 16.0 and 1e3 are whole too */
        if (!tree_real(v, -9e15, 9e15, &d) || d != floor(d))
            return false;
        whole = (int64_t)d;
    }
    if (whole < min || whole > max)
        return false;
    *out = whole;
    return true;
}

bool field_int(problem *p, const jtree *o, const char *key, int64_t min, int64_t max, int64_t *out)
{
    const jtree *v = jtree_get(o, key);
    if (!v || tree_int(v, min, max, out))
        return true;
    if (v->kind != JTREE_INTEGER && v->kind != JTREE_REAL)
        return wrong_kind(p, key, v, "a whole number");
    return problem_set(p, 400, key,
                       "'%s' is %.40s; expected a whole number from %" PRId64 " to %" PRId64, key,
                       v->s, min, max);
}

bool field_real(problem *p, const jtree *o, const char *key, double min, double max, double *out)
{
    const jtree *v = jtree_get(o, key);
    if (!v || tree_real(v, min, max, out))
        return true;
    if (v->kind != JTREE_INTEGER && v->kind != JTREE_REAL)
        return wrong_kind(p, key, v, "a number");
    return problem_set(p, 400, key, "'%s' is %.40s; expected a number from %g to %g", key, v->s,
                       min, max);
}

bool tree_says(const jtree *v, const char *word)
{
    return jtree_is(v, JTREE_STRING) && v->n == strlen(word) && !memcmp(v->s, word, v->n);
}

static const char *const kind_names[] = {
    [JTREE_STRING] = "a string", [JTREE_ARRAY] = "an array", [JTREE_OBJECT] = "an object"};

bool field_kind(problem *p, const jtree *o, const char *key, jtree_kind kind, const jtree **out)
{
    const jtree *v = jtree_get(o, key);
    if (v && v->kind != kind)
        return wrong_kind(p, key, v, kind_names[kind]);
    *out = v;
    return true;
}

/* ---- Speculation ---- */

static bool field_int32(problem *p, const jtree *o, const char *key, int32_t min, int32_t max,
                        int32_t *out)
{
    int64_t v = *out;
    if (!field_int(p, o, key, min, max, &v))
        return false;
    *out = (int32_t)v;
    return true;
}

/* What llama-server has as speculative.n_min and speculative.p_min: when to draft nothing. carat
 * decides that by measured times, so they are checked and have no effect. */
static bool read_draft_rules(const jtree *o, problem *p)
{
    int64_t n_min = 0;
    double p_min = 0;
    return field_int(p, o, "n_min", 0, INT32_MAX, &n_min) &&
           field_real(p, o, "p_min", 0, 1, &p_min);
}

/* Speculative decoding: true, false, or an object. It changes how long an answer takes, and no
 * token. */
static bool read_speculation(request *rq, const request_limits *lim, problem *p)
{
    static const char *const names[] = {"enabled", "n_max", "tree_max", "n_min", "p_min"};
    enum { NAMES = sizeof names / sizeof *names };
    const jtree *v = jtree_get(rq->body, "speculative");
    carat_speculation *s = &rq->speculation;
    int64_t n_max = -1;
    bool on = true;
    if (!field_int(p, rq->body, "speculative.n_max", 0, SPECULATION_MAX, &n_max))
        return false;
    if (v && v->kind != JTREE_OBJECT) {
        if (!field_bool(p, rq->body, "speculative", &on))
            return false;
    } else if (v) {
        for (const jtree *m = v->first; m; m = m->next) {
            int i = 0;
            while (i < NAMES && strcmp(m->key, names[i]))
                i++;
            if (i == NAMES && jtree_truthy(m) && !lim->lenient)
                return problem_set(p, 400, "speculative",
                                   "'speculative' has the unknown member '%.100s'; expected "
                                   "enabled, n_max, tree_max, n_min or p_min",
                                   m->key);
        }
        if (!field_bool(p, v, "enabled", &on) ||
            !field_int(p, v, "n_max", 0, SPECULATION_MAX, &n_max) ||
            !field_int32(p, v, "tree_max", -1, SPECULATION_MAX, &s->tree_max) ||
            !read_draft_rules(v, p))
            return false;
    }
    s->off = !on || n_max == 0;
    s->n_max = n_max > 0 ? (int32_t)n_max : 0;
    return true;
}

/* "auto", "off" or a share: prompt compression. */
static bool read_compression(request *rq, problem *p)
{
    const jtree *v = jtree_get(rq->body, "compress");
    rq->compress_given = v != NULL;
    if (!v || tree_says(v, "off") || v->kind == JTREE_FALSE)
        return true;
    rq->compresses = true;
    if (tree_says(v, "auto") || tree_real(v, 0.01, 0.99, &rq->compress.ratio))
        return true;
    return problem_set(p, 400, "compress",
                       "'compress' is %.40s; expected \"auto\", \"off\", or the share of tokens "
                       "that texts keep, from 0.01 to 0.99",
                       v->s ? v->s : jtree_kind_name(v));
}

bool read_common(request *rq, const request_limits *lim, problem *p)
{
    const jtree *b = rq->body;
    rq->sampling = lim->sampling;
    rq->sampling.seed = 0;
    rq->sampling.n_top_logprobs = 0;
    return field_text(p, b, "model", &rq->model) && field_bool(p, b, "stream", &rq->stream) &&
           field_bool(p, b, "return_progress", &rq->progress) && read_sampling(rq, b, lim, p) &&
           read_token_rules(rq, b, lim, p) && read_speculation(rq, lim, p) &&
           field_text(p, b, "sparse", &rq->sparse) && read_compression(rq, p);
}

bool read_max_tokens(request *rq, const char *const *keys, problem *p)
{
    for (; *keys; keys++) {
        int64_t v = -1;
        if (!field_int(p, rq->body, *keys, -1, INT32_MAX, &v))
            return false;
        if (!v && rq->api != API_COMPLETIONS)
            return problem_set(p, 400, *keys, "'%s' is 0; an answer has at least one token", *keys);
        rq->no_answer |= !v;
        if (v > 0 && (!rq->max_tokens || v < rq->max_tokens))
            rq->max_tokens = v;
    }
    return true;
}

bool read_stops(request *rq, const char *key, problem *p)
{
    const jtree *v = jtree_get(rq->body, key);
    bool list = jtree_is(v, JTREE_ARRAY);
    size_t count = list ? v->count : 1;
    if (!v)
        return true;
    if (!list && v->kind != JTREE_STRING)
        return wrong_kind(p, key, v, "a string or an array of strings");
    if (count > REQUEST_MAX_STOPS)
        return problem_set(p, 400, key, "'%s' has %zu strings; at most %d", key, count,
                           REQUEST_MAX_STOPS);
    rq->stop = arena_array(&rq->mem, count + 1, sizeof *rq->stop);
    if (!rq->stop)
        return problem_set(p, 503, "", "no memory for '%s'", key);
    for (const jtree *i = list ? v->first : v; i; i = list ? i->next : NULL) {
        if (i->kind != JTREE_STRING)
            return problem_set(p, 400, key, "'%s' holds %s; expected strings", key,
                               jtree_kind_name(i));
        if (i->n > REQUEST_MAX_STOP || strlen(i->s) != i->n)
            return problem_set(p, 400, key,
                               "'%s' holds a string that is longer than %d bytes or "
                               "has a zero character",
                               key, REQUEST_MAX_STOP);
        if (i->n)
            rq->stop[rq->n_stop++] = i->s;
    }
    return true;
}

/* ---- Thinking ---- */

bool read_effort(request *rq, const jtree *o, const char *key, const char *field, problem *p)
{
    static const struct {
        const char *name;
        double share;
    } tiers[] = {{"minimal", 1.0 / 16}, {"low", 0.125}, {"medium", 0.5}, {"high", 1},
                 {"xhigh", 2},          {"x-high", 2},  {"max", 4}};
    const jtree *v = jtree_get(o, key);
    if (!v)
        return true;
    if (v->kind != JTREE_STRING)
        return problem_set(p, 400, field, "'%s' is %s; expected a string", field,
                           jtree_kind_name(v));
    if (!strcmp(v->s, "none")) {
        rq->think = THINK_OFF;
        return true;
    }
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++)
        if (!strcmp(v->s, tiers[i].name)) {
            rq->think = THINK_ON;
            rq->effort = tiers[i].share;
            rq->effort_name = tiers[i].name;
            return true;
        }
    return problem_set(p, 400, field,
                       "'%s' is \"%.40s\"; expected none, minimal, low, medium, high, xhigh or max",
                       field, v->s);
}

static bool read_thinking_object(request *rq, const jtree *t, problem *p)
{
    const char *type = NULL;
    if (!field_text(p, t, "type", &type) ||
        !field_int(p, t, "budget_tokens", 0, INT32_MAX, &rq->think_max) ||
        !field_int(p, t, "reply_budget", 0, INT32_MAX, &rq->reserve))
        return false;
    if (!type)
        return problem_set(p, 400, "thinking.type", "'thinking.type' is missing");
    if (!strcmp(type, "disabled"))
        rq->think = THINK_OFF;
    else if (!strcmp(type, "enabled") || !strcmp(type, "adaptive"))
        rq->think = THINK_ON;
    else
        return problem_set(p, 400, "thinking.type",
                           "'thinking.type' is \"%.40s\"; expected enabled, adaptive or disabled",
                           type);
    return true;
}

/* The template reads these variables, and carat sets them from the request. Names that the template
 * does not read have no effect and pass. */
static bool check_kwargs(const jtree *kw, problem *p)
{
    static const char *const own[] = {"messages", "tools", "bos_token"};
    char field[64];
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (jtree_get(kw, own[i])) {
            snprintf(field, sizeof field, "chat_template_kwargs.%s", own[i]);
            return problem_set(p, 400, field,
                               "'%s' is not supported: the prompt's own '%s' cannot be replaced",
                               field, own[i]);
        }
    return true;
}

bool read_continue(request *rq, bool ends_with_assistant, problem *p)
{
    const jtree *kw = jtree_get(rq->body, "chat_template_kwargs");
    bool prompt = true, goes_on;
    if (!field_bool(p, rq->body, "add_generation_prompt", &prompt) ||
        !field_bool(p, kw, "add_generation_prompt", &prompt))
        return false;
    bool said =
        jtree_get(rq->body, "add_generation_prompt") || jtree_get(kw, "add_generation_prompt");
    goes_on = ends_with_assistant && prompt;
    if (!field_bool(p, rq->body, "continue_final_message", &goes_on))
        return false;
    if (goes_on && !ends_with_assistant)
        return problem_set(p, 400, "continue_final_message",
                           "'continue_final_message' is set, and the last message is not the "
                           "assistant's");
    if (goes_on && said && prompt && jtree_get(rq->body, "continue_final_message"))
        return problem_set(p, 400, "continue_final_message",
                           "'continue_final_message' and 'add_generation_prompt' exclude each "
                           "other");
    rq->continue_last = goes_on;
    rq->no_generation_prompt = !prompt && !goes_on;
    return true;
}

bool read_thinking(request *rq, problem *p)
{
    const jtree *t = NULL, *kw = NULL;
    bool on = false;
    int64_t budget = -1;
    if (!field_kind(p, rq->body, "thinking", JTREE_OBJECT, &t) ||
        !field_kind(p, rq->body, "chat_template_kwargs", JTREE_OBJECT, &kw) ||
        !field_int(p, rq->body, "reasoning_budget_tokens", -1, INT32_MAX, &budget) ||
        !field_int(p, rq->body, "thinking_budget_tokens", -1, INT32_MAX, &budget) ||
        !field_int(p, rq->body, "thinking_token_budget", -1, INT32_MAX, &budget) ||
        !field_bool(p, rq->body, "enable_thinking", &on) ||
        !field_bool(p, kw, "enable_thinking", &on) || !check_kwargs(kw, p) ||
        !field_bool(p, kw, "preserve_thinking", &rq->preserve_thinking) ||
        !read_effort(rq, kw, "reasoning_effort", "chat_template_kwargs.reasoning_effort", p))
        return false;
    rq->drop_thinking = jtree_get(kw, "preserve_thinking") && !rq->preserve_thinking;
    if (jtree_get(rq->body, "enable_thinking") || jtree_get(kw, "enable_thinking"))
        rq->think = on ? THINK_ON : THINK_OFF;
    if (budget >= 0)
        rq->think_max = budget;
    if (budget == 0)
        rq->think = THINK_OFF;
    return !t || read_thinking_object(rq, t, p);
}
