/* api_stored.c - see api_stored.h. */
#include "apps/server/answers/api_stored.h"

#include "apps/jsonw.h"
#include "apps/server/answers/recording.h"
#include "apps/server/answers/stored.h"

#include <stdlib.h>
#include <string.h>

enum { ITEMS_DEFAULT = 20, ITEMS_MAX = 100 };

#define PREFIX "/v1/responses/"

static void refuse(exchange *x, int http, const char *param, const char *text, const char *word)
{
    problem p = {0};
    problem_set(&p, http, param, text, word);
    reply_problem(x, &p);
}

/* Copies the id out of a path that ends in `tail`. False: it is another path, and the answer says
 * so. A route that ends in an id takes any path below it (routes.c). */
static bool read_id(exchange *x, const char *tail, char id[ID_BYTES])
{
    const char *at = x->path + sizeof PREFIX - 1;
    size_t n = strcspn(at, "/");
    if (x->s->stored && n && n < ID_BYTES && !strcmp(at + n, tail)) {
        memcpy(id, at, n);
        id[n] = 0;
        return true;
    }
    refuse(x, 404, "response_id", "Response with id '%.60s' not found.", at);
    return false;
}

static bool read_page(exchange *x, size_t *limit, bool *ascending)
{
    const char *l = x->query(x, "limit"), *order = x->query(x, "order");
    bool up = order && !strcmp(order, "asc");
    size_t most = ITEMS_DEFAULT;
    if (order && !up && strcmp(order, "desc") != 0) {
        refuse(x, 400, "order", "'order' is '%.20s': expected asc or desc", order);
        return false;
    }
    if (l && (strspn(l, "0123456789") != strlen(l) || strlen(l) > 4 ||
              !(most = strtoul(l, NULL, 10)) || most > ITEMS_MAX)) {
        refuse(x, 400, "limit", "'limit' is '%.20s': expected 1 to 100", l);
        return false;
    }
    *limit = most;
    *ascending = up;
    return true;
}

static void put_page(exchange *x, const jtree *const *item, size_t n, bool more)
{
    str *o = &x->out;
    json_open(o, NULL, '{');
    json_text(o, "object", "list");
    json_open(o, "data", '[');
    for (size_t i = 0; i < n; i++)
        json_tree(o, NULL, item[i]);
    json_close(o, "]");
    json_tree(o, "first_id", n ? jtree_get(item[0], "id") : NULL);
    json_tree(o, "last_id", n ? jtree_get(item[n - 1], "id") : NULL);
    json_bool(o, "has_more", more);
    json_close(o, "}");
    x->status = 200;
}

/* items: an array as JSON. */
static void put_items(exchange *x, const str *items)
{
    arena mem = {.max_bytes = arena_limit_for(items->n)};
    const jtree *list, *page[ITEMS_MAX];
    const char *after = x->query(x, "after");
    size_t limit, n = 0, seen = 0;
    bool ascending, begun = !after;
    problem p = {0};
    err e = {0};
    if (!read_page(x, &limit, &ascending))
        return;
    if (jtree_parse(items->at, items->n, "the items", REQUEST_MAX_DEPTH, &mem, &list, &e)) {
        problem_from(&p, &e);
        reply_problem(x, &p);
        arena_free(&mem);
        return;
    }
    const jtree **all = arena_array(&mem, (size_t)list->count + 1, sizeof(const jtree *));
    for (const jtree *v = all ? list->first : NULL; v; v = v->next)
        all[seen++] = v;
    x->out.bad |= !all;
    bool more = false;
    for (size_t i = 0; i < seen && !more; i++) {
        const jtree *v = all[ascending ? i : seen - 1 - i];
        if (begun && n == limit)
            more = true;
        else if (begun)
            page[n++] = v;
        begun |= after && tree_says(jtree_get(v, "id"), after);
    }
    put_page(x, page, n, more);
    arena_free(&mem);
}

/* The stream of a response, from an event on. */
static void follow(exchange *x, const char *id)
{
    const char *after = x->query(x, "starting_after");
    recording_place at = {.name = id, .after = -1};
    recording_info i;
    if (!recording_poll(x->s->recordings, x->owner, id, &i)) {
        refuse(x, 400, "stream",
               "the stream of '%.60s' is not kept: a request with 'background' keeps it, for a few "
               "minutes after its end",
               id);
        return;
    }
    if (after && (strspn(after, "0123456789") != strlen(after) || !*after || strlen(after) > 15)) {
        refuse(x, 400, "starting_after", "'starting_after' is '%.20s': expected a number", after);
        return;
    }
    if (after)
        at.after = strtoll(after, NULL, 10);
    recording_follow(x->s->recordings, x, &at);
}

void handle_response(exchange *x)
{
    char id[ID_BYTES];
    bool list = strchr(x->path + sizeof PREFIX - 1, '/') != NULL;
    str items = {0};
    if (!read_id(x, list ? "/input_items" : "", id))
        return;
    if (x->query(x, "stream") && !query_has(x, "stream", "false")) {
        if (list)
            refuse(x, 400, "stream",
                   "'stream' is of a response, and '%.60s' is asked for its items", id);
        else
            follow(x, id);
        return;
    }
    json_open(&items, NULL, '[');
    bool found = list ? stored_items(x->s->stored, x->owner, id, false, &items)
                      : stored_get(x->s->stored, x->owner, id, &x->out);
    json_close(&items, "]");
    x->status = 200;
    x->out.bad |= items.bad;
    if (!found)
        refuse(x, 404, "response_id", "Response with id '%.60s' not found.", id);
    else if (list && !items.bad)
        put_items(x, &items);
    str_free(&items);
}

void handle_response_cancel(exchange *x)
{
    char id[ID_BYTES];
    if (!read_id(x, "/cancel", id))
        return;
    x->status = 200;
    switch (stored_cancel(x->s->stored, x->owner, id, &x->out)) {
    case STORED_NONE:
        refuse(x, 404, "response_id", "Response with id '%.60s' not found.", id);
        break;
    case STORED_NO_BACKGROUND:
        refuse(x, 400, "response_id",
               "'%.60s' is no response of 'background': only these can be "
               "cancelled",
               id);
        break;
    case STORED_CANCELLED:
        recording_remove(x->s->recordings, x->owner, id); /* this ends its answer */
        break;
    case STORED_OVER:
        break;
    }
}

void handle_response_delete(exchange *x)
{
    char id[ID_BYTES];
    if (!read_id(x, "", id))
        return;
    if (!stored_remove(x->s->stored, x->owner, id)) {
        refuse(x, 404, "response_id", "Response with id '%.60s' not found.", id);
        return;
    }
    recording_remove(x->s->recordings, x->owner, id); /* ends its answer, if it runs */
    json_open(&x->out, NULL, '{');
    json_text(&x->out, "id", id);
    json_text(&x->out, "object", "response");
    json_bool(&x->out, "deleted", true);
    json_close(&x->out, "}");
    x->status = 200;
}
