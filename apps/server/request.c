/* request.c - one body to one request: JSON, the check of known.c, the dialect's parser. */
#include "apps/server/request.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool request_parse(request *rq, api_kind api, const char *body, size_t n, const request_limits *lim,
                   problem *p)
{
    static bool (*const parsers[])(request *, const request_limits *,
                                   problem *) = {[API_CHAT] = chat_parse,
                                                 [API_COMPLETIONS] = completions_parse,
                                                 [API_RESPONSES] = responses_parse,
                                                 [API_MESSAGES] = messages_parse};
    err e = {0};
    rq->api = api;
    rq->model = "";
    rq->n = 1;
    rq->think_max = rq->reserve = -1;
    rq->mem.max_bytes = arena_limit_for(n);
    if (jtree_parse(body, n, "the body", REQUEST_MAX_DEPTH, &rq->mem, &rq->body, &e))
        return problem_from(p, &e);
    if (rq->body->kind != JTREE_OBJECT)
        return problem_set(p, 400, "", "the body is %s; expected a JSON object",
                           jtree_kind_name(rq->body));
    if (check_fields(rq, lim, p))
        parsers[api](rq, lim, p);
    if (!p->status && (rq->messages.bad || rq->tools.bad || rq->allowed.bad || rq->origin.bad ||
                       rq->tool_origin.bad))
        problem_set(p, 503, "", "no memory for a request of this size");
    return !p->status;
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

static int32_t origin_of(const str *origins, int32_t i)
{
    int32_t at = i;
    if (origins->n >= ((size_t)i + 1) * sizeof at)
        memcpy(&at, origins->at + (size_t)i * sizeof at, sizeof at);
    return at;
}

bool problem_of(const request *rq, problem *p, const err *e)
{
    static const char *const lists[] = {[API_CHAT] = "messages",
                                        [API_COMPLETIONS] = "prompt",
                                        [API_RESPONSES] = "input",
                                        [API_MESSAGES] = "messages"};
    static const char *const heads[] = {
        [API_RESPONSES] = "instructions", [API_MESSAGES] = "system"};
    char field[64];
    int n, n_tool;
    int32_t i = index_in(e->text, "messages", &n), tool = index_in(e->text, "tools", &n_tool);
    const char *rest = e->text;
    if (tool >= 0) {
        snprintf(field, sizeof field, "%s[%d]", rq->functions ? "functions" : "tools",
                 (int)origin_of(&rq->tool_origin, tool));
        rest += n_tool;
    } else if (i >= 0 && rq->api != API_CHAT) {
        int32_t at = origin_of(&rq->origin, i);
        if (at < 0)
            snprintf(field, sizeof field, "%s", heads[rq->api]);
        else
            snprintf(field, sizeof field, "%s[%d]", lists[rq->api], (int)at);
        rest += n;
        rest += strcspn(rest, " :"); /* skips members of the rendered message */
    } else if (rq->api == API_RESPONSES && !strncmp(e->text, "messages", 8)) {
        snprintf(field, sizeof field, "input");
        rest += 8;
    } else {
        return problem_from(p, e);
    }
    err own = {.status = e->status};
    snprintf(own.text, sizeof own.text, "%s%.900s", field, rest);
    problem_from(p, &own);
    snprintf(p->param, sizeof p->param, "%s", field);
    return false;
}

void request_free(request *rq)
{
    str_free(&rq->messages);
    str_free(&rq->tools);
    str_free(&rq->allowed);
    str_free(&rq->origin);
    str_free(&rq->tool_origin);
    arena_free(&rq->mem);
    *rq = (request){0};
}
