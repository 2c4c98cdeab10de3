/* bench_spec.c - `carat bench --spec`: answers with drafts, beside the same answers without.
 *
 * Drafter, checking pass, commit and roll-back are real. With --accept or --accept-mean the tokens
 * that the drafter proposes are replaced, so that the wanted number of them is right: random
 * weights, and random prompts, would accept nothing. For that each answer is computed without
 * drafts first. Both answers are compared, too.
 */
#include "apps/bench_int.h"
#include "apps/term.h"
#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SCRIPT_ROUNDS = 4096 };

static status read_chances(const char *list, float chance[BENCH_SLOTS_MAX], int32_t *n, err *e)
{
    float read[BENCH_SLOTS_MAX];
    int32_t n_read = 0;
    for (const char *at = list;;) {
        char *end;
        double v = strtod(at, &end);
        if (end == at || !(v >= 0 && v <= 1) || (*end && *end != ','))
            return err_set(
                e, E_ARG, "--accept=%.60s: expected numbers from 0 to 1 with commas between", list);
        if (n_read == BENCH_SLOTS_MAX)
            return err_set(e, E_ARG, "--accept: more than %d numbers", BENCH_SLOTS_MAX);
        read[n_read++] = (float)v;
        if (!*end)
            break;
        at = end + 1;
    }
    memcpy(chance, read, (size_t)n_read * sizeof *chance);
    *n = n_read;
    return OK;
}

status bench_script_read(bench_script *s, const char *list, double mean, err *e)
{
    double owed = 0;
    uint64_t rng = 6;
    status st;
    if (!list && mean < 0)
        return OK;
    if (list && mean >= 0)
        return err_set(e, E_ARG, "--accept and --accept-mean exclude each other");
    if (!s->drafter)
        return err_set(e, E_ARG, "%s needs --spec", list ? "--accept" : "--accept-mean");
    if (list && (st = read_chances(list, s->chance, &s->n_chance, e)))
        return st;
    /* With a mean, slots before it are accepted, the one that it divides now and then. */
    for (; !list && s->n_chance < BENCH_SLOTS_MAX && s->n_chance <= mean; s->n_chance++)
        s->chance[s->n_chance] = (float)fmin(mean - s->n_chance, 1);
    /* Slots after the last number are never accepted. */
    if (s->n_chance < BENCH_SLOTS_MAX)
        s->chance[s->n_chance++] = 0;
    s->accept = mem_calloc(SCRIPT_ROUNDS, sizeof *s->accept);
    if (!s->accept)
        return err_memory(e, "the script", SCRIPT_ROUNDS * sizeof *s->accept);
    s->n_accept = SCRIPT_ROUNDS;
    for (int32_t i = 0; i < SCRIPT_ROUNDS; i++) {
        int32_t a = 0;
        if (list) {
            while (a < s->n_chance && rng_unit(&rng) < (double)s->chance[a])
                a++;
        } else { /* the whole numbers around the mean, in turn */
            owed += mean;
            a = (int32_t)floor(owed + 1e-9);
            owed -= a;
        }
        s->accept[i] = a;
    }
    return OK;
}

carat_generate_options bench_answer_options(const bench_setup *b, const bench_test *t,
                                            carat_script *script, const int32_t *answer)
{
    const bench_script *s = &b->script;
    carat_generate_options opt = {.sampling = {.top_p = 1, .repeat_penalty = 1, .ignore_eog = true},
                                  .max_tokens = t->n_gen};
    if (!answer) {
        opt.speculation.off = true;
        return opt;
    }
    opt.speculation =
        (carat_speculation){.n_max = s->n_max, .tree_max = s->tree_max, .fixed = s->n_max > 0};
    if (s->n_accept) {
        *script = (carat_script){.answer = answer,
                                 .n_answer = t->n_gen,
                                 .accept = s->accept,
                                 .n_accept = s->n_accept,
                                 .chance = s->chance,
                                 .n_chance = s->n_chance};
        opt.script = script;
    }
    return opt;
}

void bench_count_rounds(bench_test *t, const carat_timings *tm)
{
    t->n_tokens += tm->n_generated > 0 ? tm->n_generated - 1 : 0; /* the first is the prompt's */
    t->n_rounds += tm->n_rounds;
    t->n_drafted += tm->n_drafted;
    t->n_accepted += tm->n_accepted;
}

double bench_passes_per_token(const bench_test *t)
{
    return t->n_tokens > 0 ? (double)(t->n_tokens - t->n_accepted) / (double)t->n_tokens : 1;
}

status bench_same_answer(const int32_t *plain, const int32_t *spec, int32_t n, err *e)
{
    for (int32_t i = 0; i < n; i++)
        if (plain[i] != spec[i])
            return err_set(e, E_NUMERIC,
                           "with drafts, token %d of an answer is %d, without it is %d: answers "
                           "must not differ",
                           i, spec[i], plain[i]);
    return OK;
}

typedef struct taker {
    bench_answer *a;
    int32_t cap;
} taker;

static bool take_event(void *user, const carat_event *ev)
{
    taker *k = user;
    if (ev->kind == CARAT_EV_TOKEN && k->a->n < k->cap)
        k->a->id[k->a->n++] = ev->id;
    return !term_interrupts();
}

status bench_generate(const bench_setup *b, carat_session *s, const int32_t *ids, bench_test *t,
                      const bench_answer *plain, bench_answer *a, err *e)
{
    carat_script script;
    carat_timings tm;
    taker k = {a, t->n_gen};
    carat_generate_options opt = bench_answer_options(b, t, &script, plain ? plain->id : NULL);
    a->n = 0;
    status st = carat_generate(s, ids, t->n_depth ? t->n_depth : 1, &opt, take_event, &k, &tm, e);
    if (st)
        return st;
    if (term_interrupts())
        return err_set(e, E_CANCELLED, "interrupted");
    if (a->n < 2 || (plain && a->n != plain->n))
        return err_set(e, E_ARG,
                       "an answer of %d tokens cannot be measured: expected 2 or more, and as many "
                       "as without drafts",
                       a->n);
    /* The prompt's pass gives the first token. */
    a->ns = (int64_t)(tm.decode_ms * 1e6 * t->n_gen / (a->n - 1));
    if (!plain)
        return OK;
    bench_count_rounds(t, &tm);
    return bench_same_answer(plain->id, a->id, a->n, e);
}
