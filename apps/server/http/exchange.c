/* exchange.c - see exchange.h. */
#include "apps/server/http/exchange.h"

#include "apps/server/answers/begin.h"

#include <string.h>
#include <strings.h>

void reply_problem(exchange *x, const problem *p)
{
    str_cut(&x->out, 0);
    x->errors->error(p, &x->out);
    x->status = p->status;
    x->retry_s = p->retry_s;
}

/* May this request load a model? As llama-server's router, the query says it, else the options. */
static bool may_load(const exchange *x)
{
    const char *v = x->query(x, "autoload");
    return v ? !strcmp(v, "true") || !strcmp(v, "1") : !x->s->o->no_autoload;
}

pick_state exchange_pick_within(exchange *x, const char *name, int timeout_ms, problem *p)
{
    catalog *c = x->s->catalog;
    if (x->m)
        return PICK_DONE;
    x->no_load = !may_load(x);
    pick_state st = x->wanted ? PICK_WAITS : catalog_pick(c, name, x, p);
    return st == PICK_WAITS ? catalog_wait(c, x, timeout_ms, p) : st;
}

bool exchange_begin(exchange *x, const char *name, beginning *b, problem *p)
{
    if (name && *name && !beginning_find(b, name, p))
        return false;
    const char *own = b->name ? NULL : catalog_made(x->s->catalog, name ? name : "");
    return !own || beginning_find(b, own, p);
}

const char *exchange_weights(exchange *x, const beginning *b)
{
    catalog *c = x->s->catalog;
    const char *own = catalog_made(c, b->name);
    const jtree *file = jtree_get(b->body, "file");
    x->exact = true;
    if (own && !strcasecmp(own, b->name))
        return own;
    if (jtree_truthy(jtree_get(b->body, "bundled")))
        return "bundled";
    return jtree_is(file, JTREE_STRING) && catalog_own_name(c, file->s) ? file->s : b->from;
}

const offer_view *exchange_base_of(exchange *x, const char *name, const offer_view *list, int32_t n,
                                   beginning *b)
{
    problem p = {0};
    const char *base = beginning_find(b, name, &p) && b->name
                           ? catalog_own_name(x->s->catalog, exchange_weights(x, b))
                           : NULL;
    for (int32_t i = 0; base && strcasecmp(base, b->name) && i < n; i++)
        if (!strcasecmp(list[i].name, base))
            return &list[i];
    return NULL;
}

bool exchange_pick(exchange *x, const char *name, problem *p)
{
    beginning made = {0};
    bool ok = exchange_begin(x, name, &made, p);
    const char *picks = ok && made.name ? exchange_weights(x, &made) : name;
    ok = ok && exchange_pick_within(x, picks, -1, p) == PICK_DONE;
    beginning_free(&made);
    return ok;
}

bool exchange_pick_query(exchange *x)
{
    problem p = {0};
    if (exchange_pick(x, x->query(x, "model"), &p))
        return true;
    reply_problem(x, &p);
    return false;
}

void exchange_release(exchange *x)
{
    catalog_release(x->s->catalog, x);
}

bool query_has(const exchange *x, const char *key, const char *value)
{
    const char *v = x->query(x, key);
    return v && !strcmp(v, value);
}
