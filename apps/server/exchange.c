/* exchange.c - see exchange.h. */
#include "apps/server/exchange.h"

void reply_problem(exchange *x, const problem *p)
{
    str_cut(&x->out, 0);
    x->errors->error(p, &x->out);
    x->status = p->status;
    x->retry_s = p->retry_s;
}
