/* api_recording.c - see api_recording.h. */
#include "apps/server/answers/api_recording.h"

#include "apps/server/answers/recording.h"
#include "apps/jsonw.h"
#include "apps/server/dialects/request.h"

#include <stdlib.h>
#include <string.h>

enum { LOOKUP_MAX = 1024 }; /* names in a request */

static void refuse(exchange *x, const char *param, const char *text, const char *word)
{
    problem p = {0};
    problem_set(&p, 400, param, text, word);
    reply_problem(x, &p);
}

void handle_stream(exchange *x)
{
    const char *from = x->query(x, "from");
    recording_place at = {
        .name = x->query(x, "conv_id"), .event = x->header(x, "Last-Event-ID"), .after = -1};
    if (!at.name && !at.event) {
        refuse(x, "conv_id", "conv_id is missing: %s", "the X-Conversation-Id of the request");
        return;
    }
    if (from && !at.event) {
        if (!*from || strspn(from, "0123456789") != strlen(from) || strlen(from) > 18) {
            refuse(x, "from", "from is '%.30s': expected a number of bytes", from);
            return;
        }
        at.by_byte = true;
        at.from = strtoull(from, NULL, 10);
    }
    recording_follow(x->s->recordings, x, &at);
}

void handle_stream_delete(exchange *x)
{
    const char *name = x->query(x, "conv_id");
    if (!name) {
        refuse(x, "conv_id", "conv_id is missing: %s", "the X-Conversation-Id of the request");
        return;
    }
    recording_remove(x->s->recordings, x->owner, name); /* a second time does nothing */
    x->status = 204;
}

static void put_info(exchange *x, const char *name)
{
    recording_info i;
    str *o = &x->out;
    if (!recording_poll(x->s->recordings, x->owner, name, &i))
        return;
    json_open(o, NULL, '{');
    json_text(o, "conversation_id", name);
    json_bool(o, "is_done", i.over);
    json_int(o, "total_bytes", (int64_t)i.n_bytes);
    json_int(o, "started_at", i.begun_at);
    json_int(o, "completed_at", i.ended_at);
    json_close(o, "}");
}

void handle_streams_lookup(exchange *x)
{
    arena mem = {.max_bytes = arena_limit_for(x->n_body)};
    const jtree *body, *ids = NULL;
    problem p = {0};
    err e = {0};
    if (jtree_parse(x->body, x->n_body, "the body", REQUEST_MAX_DEPTH, &mem, &body, &e))
        problem_from(&p, &e);
    else if (!jtree_is(ids = jtree_get(body, "conversation_ids"), JTREE_ARRAY) ||
             ids->count > LOOKUP_MAX)
        problem_set(&p, 400, "conversation_ids",
                    "'conversation_ids': expected a list of at most %d", LOOKUP_MAX);
    for (const jtree *v = p.status ? NULL : ids->first; v && !p.status; v = v->next)
        if (!jtree_is(v, JTREE_STRING))
            problem_set(&p, 400, "conversation_ids",
                        "'conversation_ids' has something else than "
                        "strings");
    if (p.status) {
        reply_problem(x, &p);
    } else {
        json_open(&x->out, NULL, '[');
        for (const jtree *v = ids->first; v; v = v->next)
            put_info(x, v->s);
        json_close(&x->out, "]");
        x->status = 200;
    }
    arena_free(&mem);
}
