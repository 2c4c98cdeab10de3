/* pool_options.c - see pool_options.h. */
#include "apps/pool_options.h"
#include "apps/term.h"
#include "base/err.h"

#include <string.h>

carat_status pool_scorer_check(const char *policy, const char *scorer, carat_error *e)
{
    bool asked = policy && !strcmp(policy, "drafter");
    if (asked && !scorer)
        return err_set(e, E_ARG,
                       "--kv-policy drafter needs a small model that scores pages: expected "
                       "--kv-scorer FILE");
    return OK;
}

carat_status pool_tokens_read(const char *text, int32_t *tokens, carat_error *e)
{
    double n = 0;
    bool any = text && options_number(text, &n);
    if (!text || !strcmp(text, "auto")) {
        *tokens = text ? -1 : 0;
        return OK;
    }
    if (!any || !(n >= 1 && n <= 1 << 30) || n != (double)(int32_t)n)
        return err_set(e, E_ARG, "--kv-pool %.40s: expected auto or a number of tokens", text);
    *tokens = (int32_t)n;
    return OK;
}

carat_status pool_options_apply(const pool_options *o, carat_session_options *so, carat_error *e)
{
    carat_status st = pool_scorer_check(o->policy, o->scorer, e);
    if (st || (st = pool_tokens_read(o->tokens, &so->kv_resident, e)))
        return st;
    so->kv_policy = o->policy;
    so->kv_tau = (int32_t)o->tau;
    so->kv_host_mb = (int32_t)o->host_mb;
    return OK;
}

void pool_note_open(const carat_session *s)
{
    carat_pool_info p;
    carat_session_get_pool(s, &p);
    if (p.why[0])
        term_note("pool of keys: %s", p.why);
    if (p.on && p.policy_why[0])
        term_note("pool of keys: %s, because %s", p.policy, p.policy_why);
}

void pool_note_answer(const carat_session *s)
{
    carat_pool_info p;
    carat_session_get_pool(s, &p);
    if (p.lossy)
        term_note("[pool of %d tokens, %s: %lld tokens are on the host, %.1f MiB | %lld pages out, "
                  "%lld in, %lld choices | not every token saw the whole context]",
                  p.n_tokens, p.policy, (long long)p.n_paged_out, (double)p.host_bytes * 0x1p-20,
                  (long long)p.n_out, (long long)p.n_in, (long long)p.n_reselected);
}
