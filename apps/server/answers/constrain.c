/* constrain.c - the constraint of an answer: which tokens are allowed next.
 *
 *     a form (forms.c)             the text after the thought follows its grammar
 *     tool_choice, strict tools    calls are forced or limited to some tools; arguments follow
 *                                  their schema
 *     both                         calls, or an answer of that form
 *     other tools                  text is free; a mark of calls may be prose. Where what follows
 *                                  it begins a call, the name is declared, and the arguments
 *                                  follow their schema if it can be compiled
 *     always                       the turn does not end before it has text
 *
 * If the client gave the beginning of the answer, that beginning counts: the grammar follows it
 * before the first token is sampled. Forced calls come after it.
 *
 * Each job has its own constraint, whose state is the position in that answer.
 */
#include "apps/server/answers/constrain.h"

#include "apps/server/answers/live.h"
#include "base/clock.h"
#include "base/mem.h"

#include <string.h>

struct constraint {
    carat_mask mask;
    carat_grammar *grammar; /* or NULL */
    const served *m;
    carat_place *place;
    int32_t where; /* of carat_place_next */
    bool lazy;     /* the grammar applies inside calls only */
    bool spoken, lost;
};

/* ---- Answers are not empty ---- */

static enum carat_mask_use constraint_fill(void *user, uint32_t *allowed, int32_t n_vocab)
{
    const constraint *c = user;
    if ((c->where & CARAT_IN_CALL) && c->lazy && !c->lost) {
        const carat_mask *g = carat_grammar_mask(c->grammar);
        return g->fill(g->user, allowed, n_vocab);
    }
    if (c->spoken || (c->where & CARAT_IN_THOUGHT))
        return CARAT_MASK_NONE;
    memset(allowed, 0xff, (size_t)(n_vocab + 31) / 32 * sizeof *allowed);
    for (int32_t i = 0; i < c->m->n_ends; i++)
        allowed[c->m->ends[i] / 32] &= ~(UINT32_C(1) << c->m->ends[i] % 32);
    if (n_vocab % 32) /* bits past the last token stay 0 */
        allowed[n_vocab / 32] &= (UINT32_C(1) << n_vocab % 32) - 1;
    return CARAT_MASK_APPLY;
}

static bool is_blank(const served *m, int32_t id)
{
    const char *bytes = "";
    int32_t n = carat_token_bytes(m->model, id, true, &bytes);
    for (int32_t i = 0; i < n; i++)
        if (!strchr(" \t\r\n", bytes[i]) || !bytes[i])
            return false;
    return true;
}

/* Free text may leave the grammar, for example by a thought in the middle of an answer or by a mark
 * of calls in prose. From then on calls are unconstrained. */
static void follow_forced_call(constraint *c, int32_t id)
{
    const carat_mask *g = carat_grammar_mask(c->grammar);
    g->accept(g->user, id);
    c->lost = *carat_grammar_failure(c->grammar) != 0;
}

static void constraint_accept(void *user, int32_t id)
{
    constraint *c = user;
    if (c->lazy && !c->lost)
        follow_forced_call(c, id);
    c->where = carat_place_next(c->place, id);
    if (!(c->where & (CARAT_IN_THOUGHT | CARAT_IN_MARK)) && !c->spoken)
        c->spoken = !is_blank(c->m, id);
}

/* ---- Grammars ---- */

static bool has_strict_tool(const request *rq)
{
    return rq->tools.n && strstr(rq->tools.at, "\"strict\":true") != NULL;
}

/* *any: there is a grammar. *lazy: it applies inside calls only. False: the form and the tools
 * exclude each other. */
static bool choose_grammar(const request *rq, carat_grammar_options *o, bool *any, bool *lazy,
                           problem *p)
{
    bool calls = rq->tools.n && rq->choice != TOOLS_NONE;
    bool waits = calls && rq->choice == TOOLS_AUTO && !rq->allowed.n && !has_strict_tool(rq) &&
                 rq->format == FORMAT_TEXT;
    bool free_form = rq->format == FORMAT_GRAMMAR || rq->format == FORMAT_REGEX;
    if (calls && free_form && rq->choice != TOOLS_REQUIRED)
        return problem_set(p, 400, rq->form_field,
                           "'%s' and 'tools' exclude each other unless 'tool_choice' is \"none\" "
                           "or \"required\"",
                           rq->form_field);
    *lazy = waits;
    *any = calls || rq->format != FORMAT_TEXT;
    if (calls) { /* calls, or an answer of the form */
        o->content_json = rq->format == FORMAT_JSON_OBJECT;
        o->content_schema = rq->format == FORMAT_JSON_SCHEMA ? rq->schema : NULL;
        o->n_content_schema = rq->n_schema;
        o->kind = CARAT_GRAMMAR_TOOLS;
        const str *tools = rq->allowed.n ? &rq->allowed : &rq->tools;
        o->source = tools->at;
        o->n_source = tools->n;
        o->must_call = rq->choice == TOOLS_REQUIRED;
        o->only_tool = rq->only;
        o->one_call = rq->one_call;
        return true;
    }
    o->source = rq->schema;
    o->n_source = rq->n_schema;
    switch (rq->format) {
    case FORMAT_TEXT:
        break;
    case FORMAT_JSON_OBJECT:
        o->kind = CARAT_GRAMMAR_JSON;
        break;
    case FORMAT_JSON_SCHEMA:
        o->kind = CARAT_GRAMMAR_JSON_SCHEMA;
        break;
    case FORMAT_GRAMMAR:
        o->kind = CARAT_GRAMMAR_GBNF;
        break;
    case FORMAT_REGEX:
        o->kind = CARAT_GRAMMAR_REGEX;
        break;
    }
    return true;
}

/* The field to blame. why: the error of the grammar, or "". */
static const char *field_of(const request *rq, const carat_grammar_options *o, const char *why)
{
    bool of_content = strstr(why, "the schema at ") && !strstr(why, "the schema at tools[");
    if (o->kind == CARAT_GRAMMAR_TOOLS && !(o->content_schema && of_content))
        return rq->functions ? "functions" : "tools";
    return rq->form_field;
}

/* First all tools are strict; if a schema cannot be compiled, only those that say "strict". If
 * calls are optional and even that fails, there is no grammar. */
static carat_status open_grammar(constraint *c, carat_grammar_options *o, err *e)
{
    bool tools = o->kind == CARAT_GRAMMAR_TOOLS;
    err first = {0};
    o->strict = tools;
    carat_status st = carat_grammar_open(c->m->model, o, &c->grammar, tools ? &first : e);
    if (st && st != CARAT_E_CANCELLED && tools) {
        o->strict = false;
        st = carat_grammar_open(c->m->model, o, &c->grammar, e);
    }
    if (!st || st == CARAT_E_MEMORY || st == CARAT_E_CANCELLED || !c->lazy)
        return st;
    c->lazy = false;
    return CARAT_OK;
}

/* Follows the beginning of the answer that the client gave. */
static bool follow_prefill(constraint *c, const request *rq, const char *form, problem *p)
{
    err e = {0};
    if (!rq->prefill || c->lazy || !c->grammar || rq->choice == TOOLS_REQUIRED)
        return true;
    if (!carat_grammar_follow(c->grammar, rq->prefill, rq->n_prefill, &e))
        return true;
    const char *field = rq->api == API_RESPONSES ? "input" : "messages";
    if (e.status == CARAT_E_MEMORY)
        return problem_from(p, &e);
    return problem_set(p, 400, field,
                       "'%s' ends with the beginning of an answer that does not have the form "
                       "that '%s' asks for",
                       field, form);
}

/* Compiling stops when the client leaves, when the server shuts down, and at its deadline. */
typedef struct compiling {
    server *s;
    int fd;
    double until_ms;
} compiling;

static bool is_over(void *user)
{
    const compiling *c = user;
    return atomic_load(&c->s->state) == SERVER_DRAINING || clock_ms() > c->until_ms ||
           client_left(c->fd);
}

bool constraint_open(constraint **out, served *m, const constraint_plan *plan, problem *p)
{
    const request *rq = plan->rq;
    compiling who = {m->s, plan->fd, plan->until_ms};
    carat_grammar_options o = {.thinking = plan->thinking,
                               .starts_thinking = plan->starts_thinking,
                               .cancelled = is_over,
                               .user = &who};
    constraint *c;
    bool any = false, lazy = false;
    err e = {0};
    *out = NULL;
    if (!choose_grammar(rq, &o, &any, &lazy, p))
        return false;
    if (!any && (rq->api == API_COMPLETIONS || rq->sampling.ignore_eog))
        return true;
    c = mem_calloc(1, sizeof *c);
    if (!c || !(c->place = carat_place_open(m->model, plan->starts_thinking))) {
        mem_free(c);
        return problem_set(p, 503, "", "no memory for a request");
    }
    c->m = m;
    c->where = plan->starts_thinking ? CARAT_IN_THOUGHT : 0;
    c->lazy = any && lazy;
    c->mask = (carat_mask){.fill = constraint_fill, .accept = constraint_accept, .user = c};
    carat_status st = any ? open_grammar(c, &o, &e) : CARAT_OK;
    if (st) {
        constraint_close(c);
        if (st == CARAT_E_CANCELLED && atomic_load(&m->s->state) != SERVER_DRAINING &&
            clock_ms() > plan->until_ms)
            return problem_set(p, 400, rq->n > 1 ? "n" : field_of(rq, &o, ""),
                               "'n' is %d: the grammars of so many answers take more than %d "
                               "seconds to compile",
                               rq->n, CONSTRAINT_MAX_MS / 1000);
        if (st == CARAT_E_CANCELLED) {
            p->retry_s = 5;
            return problem_set(p, 503, "", "the server is shutting down");
        }
        if (st == CARAT_E_MEMORY)
            return problem_from(p, &e);
        return problem_set(p, 400, field_of(rq, &o, e.text), "'%s': %.900s",
                           field_of(rq, &o, e.text), e.text);
    }
    if (!follow_prefill(c, rq, any ? field_of(rq, &o, "") : "", p)) {
        constraint_close(c);
        return false;
    }
    *out = c;
    return true;
}

void constraint_close(constraint *c)
{
    if (!c)
        return;
    carat_grammar_close(c->grammar);
    carat_place_close(c->place);
    mem_free(c);
}

const carat_mask *constraint_mask(constraint *c)
{
    return !c ? NULL : c->grammar && !c->lazy ? carat_grammar_mask(c->grammar) : &c->mask;
}

const char *constraint_failure(const constraint *c)
{
    return c && c->grammar ? carat_grammar_failure(c->grammar) : "";
}
