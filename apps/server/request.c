/* request.c - one body to one request: JSON first, then the dialect's own parser. */
#include "apps/server/request.h"

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
    if (jtree_parse(body, n, "the body", REQUEST_MAX_DEPTH, &rq->mem, &rq->body, &e))
        return problem_from(p, &e);
    if (rq->body->kind != JTREE_OBJECT)
        return problem_set(p, 400, "", "the body is %s; expected a JSON object",
                           jtree_kind_name(rq->body));
    parsers[api](rq, lim, p);
    if (!p->status && (rq->messages.bad || rq->tools.bad || rq->allowed.bad))
        problem_set(p, 503, "", "no memory for a request of this size");
    return !p->status;
}

void request_free(request *rq)
{
    str_free(&rq->messages);
    str_free(&rq->tools);
    str_free(&rq->allowed);
    arena_free(&rq->mem);
    *rq = (request){0};
}
