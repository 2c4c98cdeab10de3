/* unread.c - members of a request that no parser has read.
 *
 * known.c rules over the fields at the top of a body. Below them each parser reads the members that
 * it knows, and jtree_get notes which these are. This file finds the others after the parsers have
 * run, and says that they have no effect: the request goes on, because clients decorate their
 * messages and tools in many ways.
 *
 * An object of which no member was read is passed on as a whole, such as a schema or the arguments
 * of a call, or its holder was left out and named; it is not searched.
 */
#include "apps/server/dialects/request.h"

#include <stdio.h>
#include <string.h>

/* A member of an object or an item of an array, and what holds it. */
typedef struct place {
    const struct place *up;
    const char *key; /* NULL: an item */
    size_t i;
} place;

typedef struct finds {
    request *rq;
    const char *key[REQUEST_MAX_WARNINGS]; /* named already: each item of a list may have it */
    size_t n;
} finds;

/* Names, states and marks of caches say nothing to the model. */
static bool is_decoration(const char *key)
{
    static const char *const names[] = {"annotations",
                                        "cache_control",
                                        "caller",
                                        "created_at",
                                        "data",
                                        "description",
                                        "display_number",
                                        "eager_input_streaming",
                                        "encrypted_content",
                                        "end_turn",
                                        "execution",
                                        "id",
                                        "include_obfuscation",
                                        "index",
                                        "logprobs",
                                        "max_characters",
                                        "max_output_length",
                                        "media_type",
                                        "name",
                                        "object",
                                        "phase",
                                        "role",
                                        "server_label",
                                        "signature",
                                        "status",
                                        "strict",
                                        "summary",
                                        "type"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(key, names[i]))
            return true;
    return false;
}

static void put_place(str *out, const place *at)
{
    if (!at)
        return;
    put_place(out, at->up);
    if (at->key)
        str_printf(out, "%s%.60s", at->up ? "." : "", at->key);
    else
        str_printf(out, "[%zu]", at->i);
}

static void say_place(finds *f, const place *at)
{
    str path = {0};
    for (size_t i = 0; i < f->n; i++)
        if (!strcmp(f->key[i], at->key))
            return;
    if (f->n == REQUEST_MAX_WARNINGS)
        return;
    f->key[f->n++] = at->key;
    put_place(&path, at);
    leave_out(f->rq, "'%s' has no effect", str_text(&path));
    f->rq->left_out.bad |= path.bad;
    str_free(&path);
}

static void search(finds *f, const jtree *v, const place *at)
{
    bool any = false;
    size_t i = 0;
    if (v->use == JTREE_PASSED)
        return;
    for (const jtree *m = v->kind == JTREE_OBJECT ? v->first : NULL; m && !any; m = m->next)
        any = m->use != JTREE_UNREAD;
    for (const jtree *m = v->first; m; m = m->next, i++) {
        place here = {at, v->kind == JTREE_OBJECT ? m->key : NULL, i};
        if (v->kind == JTREE_ARRAY || m->use != JTREE_UNREAD)
            search(f, m, &here);
        else if (any && !tree_is_empty(m) && m->kind != JTREE_FALSE && !is_decoration(m->key))
            say_place(f, &here);
    }
}

void say_unread(request *rq)
{
    finds f = {.rq = rq};
    for (const jtree *m = rq->body->first; m; m = m->next) {
        place here = {NULL, m->key, 0};
        if (strcmp(m->key, "options") != 0) /* known.c has read it */
            search(&f, m, &here);
    }
}
