/* request.c - one body to one request: JSON, the check of known.c, the dialect's parser. */
#include "apps/server/dialects/parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool keep_alive_parse(const char *text, int64_t *ms)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = {{"ns", 1e-6}, {"us", 1e-3}, {"ms", 1}, {"s", 1e3}, {"m", 60e3}, {"h", 3600e3}};
    const double most = 1e15; /* thousands of years */
    bool negative = *text == '-';
    double sum = 0;
    const char *at = text + (negative || *text == '+');
    if (!*at)
        return false;
    while (*at) {
        char *end;
        if (strspn(at, "0123456789.") == 0)
            return false;
        size_t digits = strspn(at, "0123456789.");
        double v = strtod(at, &end), scale = 0;
        if (end != at + digits) /* "1.2.3", "1e5": strtod reads another length */
            return false;
        at = end;
        if (!*at && end == text + digits + (negative || *text == '+'))
            scale = 1e3; /* a number alone */
        for (size_t i = 0; i < sizeof units / sizeof *units && scale <= 0; i++) {
            size_t n = strlen(units[i].unit);
            if (!strncmp(at, units[i].unit, n) && !strchr("nusmh", at[n] ? at[n] : '!')) {
                scale = units[i].ms;
                at += n;
            }
        }
        if (scale <= 0)
            return false;
        sum += v * scale;
    }
    *ms = negative && sum > 0 ? KEEP_FOREVER : sum > most ? (int64_t)most : (int64_t)sum;
    return true;
}

bool keep_alive_read(const jtree *body, int64_t *ms, problem *p)
{
    const jtree *v = jtree_get(body, "keep_alive");
    double seconds;
    if (!v || v->kind == JTREE_NULL) {
        *ms = KEEP_DEFAULT;
        return true;
    }
    if (v->kind == JTREE_STRING && keep_alive_parse(v->s, ms))
        return true;
    if (tree_real(v, -1e12, 1e12, &seconds)) {
        *ms = seconds < 0 ? KEEP_FOREVER : (int64_t)(seconds * 1000);
        return true;
    }
    return problem_set(p, 400, "keep_alive",
                       "'keep_alive' is no duration: expected a number of seconds, or text like "
                       "\"5m\"");
}

bool request_open(request *rq, api_kind api, const char *body, size_t n, problem *p)
{
    rq->api = api;
    rq->model = "";
    rq->n = 1;
    rq->think_max = rq->reserve = rq->prompt_logprobs = -1;
    return body_parse(&rq->mem, body, n, &rq->body, p) &&
           field_text(p, rq->body, "model", &rq->model) &&
           keep_alive_read(rq->body, &rq->keep_ms, p);
}

bool request_read(request *rq, const request_limits *lim, problem *p)
{
    static bool (*const parsers[])(request *, const request_limits *,
                                   problem *) = {[API_CHAT] = chat_parse,
                                                 [API_COMPLETIONS] = completions_parse,
                                                 [API_RESPONSES] = responses_parse,
                                                 [API_MESSAGES] = messages_parse,
                                                 [API_LLAMA] = llama_parse,
                                                 [API_INFILL] = infill_parse,
                                                 [API_OLLAMA_CHAT] = ollama_chat_parse,
                                                 [API_OLLAMA_GENERATE] = ollama_generate_parse};
    err e = {0};
    rq->lim = lim;
    rq->turns.max_bytes = rq->mem.max_bytes;
    rq->talk.mem = &rq->turns;
    if (check_fields(rq, lim, p) && read_image_tokens(rq, p))
        parsers[rq->api](rq, lim, p);
    rq->lim = NULL;
    if (!p->status)
        say_unread(rq);
    if (!p->status && talk_check(&rq->talk, &e))
        problem_of(rq, p, &e);
    if (!p->status && (rq->tools.bad || rq->allowed.bad || rq->left_out.bad))
        problem_set(p, 503, "", "no memory for a request of this size");
    if (!p->status && rq->tools.n &&
        jtree_parse(rq->tools.at, rq->tools.n, "tools", REQUEST_MAX_DEPTH, &rq->turns,
                    &rq->talk.tools, &e))
        problem_from(p, &e);
    return !p->status;
}

bool request_parse(request *rq, api_kind api, const char *body, size_t n, const request_limits *lim,
                   problem *p)
{
    return request_open(rq, api, body, n, p) && request_read(rq, lim, p);
}

/* The number after `name[` at the start of the text, or -1. *n: the length of "name[number]". */
static int32_t index_in(const char *text, const char *name, int *n)
{
    char form[32];
    int32_t i = -1;
    *n = 0;
    snprintf(form, sizeof form, "%s[%%" SCNd32 "]%%n", name);
    return sscanf(text, form, &i, n) == 1 && *n > 0 ? i : -1;
}

bool problem_of(const request *rq, problem *p, const err *e)
{
    /* How the places of a dialect's turns begin. */
    static const char *const lists[API_KINDS][2] = {[API_RESPONSES] = {"input", "instructions"},
                                                    [API_MESSAGES] = {"messages", "system"},
                                                    [API_OLLAMA_CHAT] = {"messages"},
                                                    [API_OLLAMA_GENERATE] = {"prompt", "system"}};
    char field[64] = "";
    int n_tool;
    int32_t tool = index_in(e->text, "tools", &n_tool);
    const char *rest = e->text;
    size_t n = strcspn(rest, ".: "), n_list = strcspn(rest, "[.: ");
    if (tool >= 0) {
        int32_t at = tool < rq->n_tools ? rq->tool[tool].origin : tool;
        if (at < 0)
            snprintf(field, sizeof field, "input");
        else
            snprintf(field, sizeof field, "%s[%d]", rq->functions ? "functions" : "tools", (int)at);
        rest += n_tool;
    } else if (rq->api == API_RESPONSES && n == 8 && !strncmp(rest, "messages", 8)) {
        snprintf(field, sizeof field, "input");
        rest += n;
    }
    for (int i = 0; i < 3 && !*field && (int)rq->api < API_KINDS; i++) {
        const char *list = i < 2 ? lists[rq->api][i] : ORIGIN_STORED;
        if (list && n < sizeof field && strlen(list) == n_list && !strncmp(rest, list, n_list)) {
            memcpy(field, rest, n);
            rest += strcspn(rest, " :"); /* skips members of OpenAI's form */
        }
    }
    if (!*field)
        return problem_from(p, e);
    err own = {.status = e->status};
    snprintf(own.text, sizeof own.text, "%s%.900s", field, rest);
    problem_from(p, &own);
    snprintf(p->param, sizeof p->param, "%s", field);
    return false;
}

void request_free(request *rq)
{
    str_free(&rq->tools);
    str_free(&rq->allowed);
    str_free(&rq->left_out);
    pictures_free(&rq->pictures);
    arena_free(&rq->turns);
    arena_free(&rq->mem);
    *rq = (request){0};
}
