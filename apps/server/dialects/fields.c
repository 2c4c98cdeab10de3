/* fields.c - reading single fields of a request, with checks of kind and range.
 *
 * Numbers are read as they are spelled: 1e400 is out of range, not infinity. Whole numbers must be
 * whole, lists have limits. Each problem names its field. known.c decides about fields that no
 * parser reads; sampling.c has the fields of sampling.
 */
#include "apps/server/dialects/request.h"
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

bool field_ids(arena *mem, const char *field, const jtree *list, int32_t n_vocab, int32_t **out,
               int64_t *n, problem *p)
{
    int32_t *ids = arena_array(mem, list->count + 1, sizeof *ids);
    int64_t n_ids = 0, id;
    if (!ids)
        return problem_set(p, 503, "", "no memory for '%s'", field);
    for (const jtree *i = list->first; i; i = i->next) {
        if (!tree_int(i, 0, n_vocab - 1, &id))
            return problem_set(p, 400, field, "'%s' holds %.40s for a token id; ids are 0 to %d",
                               field, jtree_is(i, JTREE_INTEGER) ? i->s : jtree_kind_name(i),
                               n_vocab - 1);
        ids[n_ids++] = (int32_t)id;
    }
    *out = ids;
    *n = n_ids;
    return true;
}

bool field_prompt_ids(arena *mem, const char *field, const jtree *list, int32_t n_vocab,
                      raw_prompt *out, problem *p)
{
    int32_t *ids;
    int64_t n;
    if (!field_ids(mem, field, list, n_vocab, &ids, &n, p))
        return false;
    if (!n)
        return problem_set(p, 400, field, "'%s' holds an empty list of tokens", field);
    *out = (raw_prompt){.ids = ids, .n_ids = n};
    return true;
}

bool body_parse(arena *mem, const char *body, size_t n, const jtree **out, problem *p)
{
    const jtree *all;
    err e = {0};
    mem->max_bytes = arena_limit_for(n);
    if (jtree_parse(body, n, "the body", REQUEST_MAX_DEPTH, mem, &all, &e))
        return problem_from(p, &e);
    if (all->kind != JTREE_OBJECT)
        return problem_set(p, 400, "", "the body is %s; expected a JSON object",
                           jtree_kind_name(all));
    *out = all;
    return true;
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

bool tree_is_empty(const jtree *v)
{
    return v->kind == JTREE_NULL ||
           ((v->kind == JTREE_STRING || v->kind == JTREE_ARRAY || v->kind == JTREE_OBJECT) &&
            !jtree_truthy(v));
}

static bool lists(const field_name *list, const char *name, int api)
{
    while (list->name && (strcmp(list->name, name) != 0 || !(list->apis & 1u << api)))
        list++;
    return list->name;
}

bool fields_known(problem *p, const jtree *o, const field_name *list, int api)
{
    for (const jtree *m = o->first; m; m = m->next)
        if (!lists(list, m->key, api) && !tree_is_empty(m)) {
            p->code = "unknown_parameter";
            return problem_set(p, 400, m->key,
                               "'%.100s' is an unknown field; /openapi.json lists the fields of "
                               "each endpoint",
                               m->key);
        }
    return true;
}

bool check_members(const jtree *o, const char *field, const char *const *names, size_t n,
                   problem *p)
{
    str list = {0};
    for (const jtree *m = o ? o->first : NULL; m && !p->status; m = m->next) {
        size_t i = 0;
        while (i < n && strcmp(m->key, names[i]))
            i++;
        if (i < n || tree_is_empty(m))
            continue;
        for (i = 0; i < n; i++)
            str_printf(&list, "%s%s", i + 1 < n ? (i ? ", " : "") : " or ", names[i]);
        problem_set(p, 400, field, "'%s' has the unknown member '%.100s'; expected %s", field,
                    m->key, str_text(&list));
    }
    str_free(&list);
    return !p->status;
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
        if (!lim->lenient && !check_members(v, "speculative", names, NAMES, p))
            return false;
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

bool read_lora_list(const jtree *list, const char *field, arena *mem, lora_wish **out, int32_t *n,
                    problem *p)
{
    static const char *const names[] = {"id", "name", "scale"};
    if (list->count > REQUEST_MAX_LORAS)
        return problem_set(p, 400, field, "%zu adapters; at most %d", list->count,
                           REQUEST_MAX_LORAS);
    if (!(*out = arena_array(mem, list->count + 1, sizeof **out)))
        return problem_set(p, 503, field, "no memory for a list of adapters");
    *n = 0;
    for (const jtree *v = list->first; v; v = v->next) {
        int64_t id = -1;
        double scale = 1;
        lora_wish *w = &(*out)[(*n)++];
        *w = (lora_wish){0};
        if (v->kind != JTREE_OBJECT)
            return wrong_kind(p, *field ? field : "body", v, "a list of objects");
        if (!check_members(v, field, names, sizeof names / sizeof *names, p) ||
            !field_int(p, v, "id", 0, REQUEST_MAX_LORAS - 1, &id) ||
            !field_text(p, v, "name", &w->name) || !field_real(p, v, "scale", -1e4, 1e4, &scale))
            return false;
        if ((id < 0) == !w->name)
            return problem_set(p, 400, field, "an adapter is named by its id or by its name");
        w->id = (int32_t)id;
        w->scale = (float)scale;
    }
    return true;
}

static bool read_loras(request *rq, problem *p)
{
    const jtree *v = NULL;
    if (!field_kind(p, rq->body, "lora", JTREE_ARRAY, &v))
        return false;
    problem own = {0}; /* names a member of an item */
    return !v || read_lora_list(v, "lora", &rq->mem, &rq->lora, &rq->n_loras, &own) ||
           problem_set(p, own.status, "lora", "'lora': %s", own.text);
}

/* "auto", "off" or a share: prompt compression. */
static bool read_compression(request *rq, problem *p)
{
    const jtree *v = jtree_get(rq->body, "compress");
    rq->compress_given = v != NULL;
    if (!v || tree_says(v, "off") || v->kind == JTREE_FALSE)
        return true;
    rq->compresses = true;
    if (v->kind == JTREE_STRING && !strncmp(v->s, "auto", 4) &&
        !carat_compress_parse(v->s, &rq->compress, NULL))
        return true;
    if (tree_real(v, 0.01, 0.99, &rq->compress.ratio))
        return true;
    return problem_set(
        p, 400, "compress",
        "'compress' is %.40s; expected \"auto\", \"auto:TOKENS\", \"off\", or the share of tokens "
        "that texts keep, from 0.01 to 0.99",
        v->s ? v->s : jtree_kind_name(v));
}

bool read_common(request *rq, const request_limits *lim, problem *p)
{
    const jtree *b = rq->body;
    rq->sampling = lim->sampling;
    rq->sampling.seed = 0;
    rq->sampling.n_top_logprobs = 0;
    rq->ping_s = REQUEST_PING_OF_SERVER;
    return field_text(p, b, "model", &rq->model) && field_bool(p, b, "stream", &rq->stream) &&
           field_int(p, b, "sse_ping_interval", -1, REQUEST_MAX_PING_S, &rq->ping_s) &&
           field_bool(p, b, "return_progress", &rq->progress) && read_sampling(rq, b, lim, p) &&
           read_token_rules(rq, b, lim, p) && read_speculation(rq, lim, p) &&
           field_text(p, b, "sparse", &rq->sparse) && read_loras(rq, p) && read_compression(rq, p);
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

bool read_usage(request *rq, const jtree *stream_options, problem *p)
{
    const jtree *usage = NULL;
    return field_bool(p, stream_options, "include_usage", &rq->include_usage) &&
           field_kind(p, rq->body, "usage", JTREE_OBJECT, &usage) &&
           field_bool(p, usage, "include", &rq->include_usage);
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

/* OpenAI's models are trained for levels of verbosity; other models are told in words. */
bool read_verbosity(request *rq, const jtree *o, const char *field, problem *p)
{
    const jtree *v = jtree_get(o, "verbosity");
    if (tree_says(v, "low"))
        rq->manner = "Answer briefly, with what was asked and no more.";
    else if (tree_says(v, "high"))
        rq->manner = "Answer in detail, with explanations.";
    return !v || rq->manner || tree_says(v, "medium") ||
           problem_set(p, 400, field, "'%s' is %.40s; expected low, medium or high", field,
                       jtree_is(v, JTREE_STRING) ? v->s : jtree_kind_name(v));
}

static bool set_switch(request *rq, bool on)
{
    rq->think = on ? THINK_ON : THINK_OFF;
    return true;
}

static bool set_budget(request *rq, int64_t budget)
{
    rq->think_max = budget;
    return budget || set_switch(rq, false);
}

static bool read_thinking_object(request *rq, const jtree *t, problem *p)
{
    const char *type = NULL;
    int64_t budget = -1;
    if (!field_text(p, t, "type", &type) ||
        !field_int(p, t, "budget_tokens", 0, INT32_MAX, &budget) ||
        !field_int(p, t, "reply_budget", 0, INT32_MAX, &rq->reserve))
        return false;
    if (!type)
        return problem_set(p, 400, "thinking.type", "'thinking.type' is missing");
    if (!strcmp(type, "disabled"))
        set_switch(rq, false);
    else if (!strcmp(type, "enabled") || !strcmp(type, "adaptive"))
        set_switch(rq, true);
    else
        return problem_set(p, 400, "thinking.type",
                           "'thinking.type' is \"%.40s\"; expected enabled, adaptive or disabled",
                           type);
    return budget < 0 || set_budget(rq, budget);
}

/* A switch, as a boolean, or a level of effort. */
bool read_think(request *rq, const jtree *o, const char *key, const char *field, problem *p)
{
    const jtree *v = jtree_get(o, key);
    if (!v || v->kind == JTREE_STRING)
        return read_effort(rq, o, key, field, p);
    if (v->kind != JTREE_TRUE && v->kind != JTREE_FALSE)
        return problem_set(p, 400, field, "'%s' is %s; expected true, false or a level", field,
                           jtree_kind_name(v));
    return set_switch(rq, v->kind == JTREE_TRUE);
}

/* What a request says about thoughts, with the names of several servers; later ones win. */
static bool read_switches(request *rq, const jtree *kw, problem *p)
{
    static const char *const switches[] = {"enable_thinking", "thinking", "think"};
    static const char *const budgets[] = {"reasoning_budget_tokens", "thinking_budget_tokens",
                                          "thinking_token_budget", "thinking_budget",
                                          "reasoning_budget"};
    char field[64];
    bool on = false;
    int64_t budget = -1;
    if (!field_bool(p, rq->body, "enable_thinking", &on))
        return false;
    if (jtree_get(rq->body, "enable_thinking"))
        set_switch(rq, on);
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        snprintf(field, sizeof field, "chat_template_kwargs.%s", switches[i]);
        if (!field_bool(p, kw, switches[i], &on))
            return false;
        if (jtree_get(kw, switches[i]))
            set_switch(rq, on);
    }
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++)
        if (!field_int(p, rq->body, budgets[i], -1, INT32_MAX, &budget))
            return false;
    if (!field_int(p, kw, "thinking_budget", -1, INT32_MAX, &budget))
        return false;
    return budget < 0 || set_budget(rq, budget);
}

/* OpenRouter's `reasoning`: an effort or a budget, and a switch. OpenAI's has the effort and how to
 * summarise thoughts, which carat returns whole. */
bool read_reasoning(request *rq, const request_limits *lim, problem *p)
{
    static const char *const names[] = {"effort",  "max_tokens", "enabled",
                                        "exclude", "summary",    "generate_summary"};
    const jtree *r = NULL;
    bool on = true, hidden = false;
    int64_t most = -1;
    if (!field_kind(p, rq->body, "reasoning", JTREE_OBJECT, &r) ||
        (!lim->lenient && !check_members(r, "reasoning", names, sizeof names / sizeof *names, p)) ||
        !read_effort(rq, r, "effort", "reasoning.effort", p) ||
        !field_int(p, r, "max_tokens", 0, INT32_MAX, &most) || !field_bool(p, r, "enabled", &on) ||
        !field_bool(p, r, "exclude", &hidden))
        return false;
    if (hidden)
        return problem_set(
            p, 400, "reasoning.exclude",
            "'reasoning.exclude' is not supported: leave 'reasoning_content' unread");
    if (jtree_get(r, "enabled") || most > 0)
        set_switch(rq, on);
    return most < 0 || set_budget(rq, most);
}

static bool is_word(char c)
{
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool has_word(const char *text, size_t n_text, const char *word)
{
    const char *end = text + n_text;
    size_t n = strlen(word);
    for (const char *at = text; n && (at = memmem(at, (size_t)(end - at), word, n)); at++)
        if ((at == text || !is_word(at[-1])) && (at + n == end || !is_word(at[n])))
            return true;
    return false;
}

/* The template reads these variables, and carat sets some of them from the request. Names that the
 * template does not read have no effect and pass. */
static bool check_kwargs(const jtree *kw, const request_limits *lim, problem *p)
{
    static const char *const known[] = {
        "enable_thinking",      "thinking",         "think",
        "thinking_budget",      "reasoning_effort", "preserve_thinking",
        "add_generation_prompt"};
    static const char *const own[] = {"messages", "tools", "bos_token"};
    char field[128];
    for (const jtree *m = kw ? kw->first : NULL; m; m = m->next) {
        bool set_here = false, fixed = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            set_here |= !strcmp(m->key, known[i]);
        for (size_t i = 0; i < sizeof own / sizeof *own; i++)
            fixed |= !strcmp(m->key, own[i]);
        snprintf(field, sizeof field, "chat_template_kwargs.%.90s", m->key);
        if (fixed && m->kind != JTREE_NULL)
            return problem_set(p, 400, field,
                               "'%s' is not supported: the prompt's own '%s' cannot be replaced",
                               field, m->key);
        if (!set_here && m->kind != JTREE_NULL && lim->chat_template &&
            has_word(lim->chat_template, lim->n_chat_template, m->key))
            return problem_set(p, 400, field,
                               "'%s' is not supported: the model's template reads it, and carat "
                               "renders the prompt without it",
                               field);
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

bool read_thinking(request *rq, const request_limits *lim, problem *p)
{
    const jtree *t = jtree_get(rq->body, "thinking"), *kw = NULL;
    if (!field_kind(p, rq->body, "chat_template_kwargs", JTREE_OBJECT, &kw) ||
        !check_kwargs(kw, lim, p) || !read_switches(rq, kw, p) ||
        !field_bool(p, kw, "preserve_thinking", &rq->preserve_thinking) ||
        !read_effort(rq, kw, "reasoning_effort", "chat_template_kwargs.reasoning_effort", p) ||
        !read_think(rq, rq->body, "think", "think", p))
        return false;
    rq->drop_thinking = jtree_get(kw, "preserve_thinking") && !rq->preserve_thinking;
    if (jtree_is(t, JTREE_TRUE) || jtree_is(t, JTREE_FALSE))
        return set_switch(rq, t->kind == JTREE_TRUE);
    return field_kind(p, rq->body, "thinking", JTREE_OBJECT, &t) &&
           (!t || read_thinking_object(rq, t, p));
}
