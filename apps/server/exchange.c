/* exchange.c - see exchange.h. */
#include "apps/server/exchange.h"

#include "apps/server/begin.h"

#include <string.h>

void reply_problem(exchange *x, const problem *p)
{
    str_cut(&x->out, 0);
    x->errors->error(p, &x->out);
    x->status = p->status;
    x->retry_s = p->retry_s;
}

pick_state exchange_pick_within(exchange *x, const char *name, int timeout_ms, problem *p)
{
    catalog *c = x->s->catalog;
    if (x->m)
        return PICK_DONE;
    pick_state st = x->wanted ? PICK_WAITS : catalog_pick(c, name, x, p);
    return st == PICK_WAITS ? catalog_wait(c, x, timeout_ms, p) : st;
}

bool exchange_pick(exchange *x, const char *name, problem *p)
{
    beginning made = {0};
    bool ok = !name || !*name || beginning_find(&made, name, p);
    ok = ok && exchange_pick_within(x, made.name ? made.from : name, -1, p) == PICK_DONE;
    beginning_free(&made);
    return ok;
}

bool exchange_pick_query(exchange *x)
{
    problem p = {0};
    x->no_load = query_has(x, "autoload", "false");
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
