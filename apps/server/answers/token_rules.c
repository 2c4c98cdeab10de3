/* token_rules.c - see token_rules.h.
 *
 * A bad word is forbidden as it stands and after a space, for most vocabularies have tokens that
 * begin with the space before a word.
 */
#include "apps/server/answers/token_rules.h"

#include <string.h>
#include <strings.h>

/* The tokens of `before` and text, in the request's arena. */
static bool tokens_of(request *rq, const carat_model *m, const char *before, const char *text,
                      size_t n, carat_tokens *out, problem *p)
{
    size_t n_before = strlen(before);
    char *whole = arena_alloc(&rq->mem, n_before + n + 1);
    err e = {0};
    if (!whole)
        return problem_set(p, 503, "", "no memory for a request");
    memcpy(whole, before, n_before);
    memcpy(whole + n_before, text, n);
    out->n = carat_tokenize(m, whole, n_before + n, 0, NULL, 0, &e);
    if (out->n < 0)
        return problem_from(p, &e);
    int32_t *ids = arena_array(&rq->mem, (size_t)out->n + 1, sizeof *ids);
    if (!ids)
        return problem_set(p, 503, "", "no memory for a request");
    if (carat_tokenize(m, whole, n_before + n, 0, ids, out->n, &e) < 0)
        return problem_from(p, &e);
    out->at = ids;
    return true;
}

static bool same_tokens(const carat_tokens *a, const carat_tokens *b)
{
    return a->n == b->n && !memcmp(a->at, b->at, (size_t)a->n * sizeof *a->at);
}

static bool make_bad(request *rq, const carat_model *m, problem *p)
{
    if (!rq->n_bad_words)
        return true;
    rq->bad = arena_array(&rq->mem, 2 * (size_t)rq->n_bad_words, sizeof *rq->bad);
    if (!rq->bad)
        return problem_set(p, 503, "", "no memory for 'bad_words'");
    for (int32_t i = 0; i < rq->n_bad_words; i++) {
        const char *word = rq->bad_words[i] + strspn(rq->bad_words[i], " ");
        carat_tokens *plain = &rq->bad[rq->n_bad], *spaced = plain + 1;
        size_t n = strlen(word);
        if (!n) { /* spaces alone */
            word = rq->bad_words[i];
            n = strlen(word);
        }
        if (!tokens_of(rq, m, "", word, n, plain, p) || !tokens_of(rq, m, " ", word, n, spaced, p))
            return false;
        rq->n_bad += plain->n > 0;
        rq->n_bad += plain->n > 0 && spaced->n > 0 && !same_tokens(plain, spaced);
    }
    return true;
}

static bool make_bias(request *rq, const carat_model *m, problem *p)
{
    carat_sampling *s = &rq->sampling;
    carat_tokens t = {0};
    if (!rq->n_text_bias)
        return true;
    carat_logit_bias *all = arena_array(&rq->mem, REQUEST_MAX_BIASES, sizeof *all);
    if (!all)
        return problem_set(p, 503, "", "no memory for 'logit_bias'");
    if (s->n_bias)
        memcpy(all, s->bias, (size_t)s->n_bias * sizeof *all);
    s->bias = all;
    for (int32_t i = 0; i < rq->n_text_bias; i++) {
        const text_bias *b = &rq->text_bias[i];
        if (!tokens_of(rq, m, "", b->text, b->n, &t, p))
            return false;
        if (t.n > REQUEST_MAX_BIASES - s->n_bias)
            return problem_set(
                p, 400, "logit_bias",
                "'logit_bias' names more than %d tokens, those of its texts included",
                REQUEST_MAX_BIASES);
        for (int64_t k = 0; k < t.n; k++)
            all[s->n_bias++] = (carat_logit_bias){t.at[k], b->bias};
    }
    return true;
}

int32_t lora_find(const carat_model *m, int32_t n, const char *name)
{
    carat_lora_info l;
    int32_t near = -1;
    for (int32_t i = 0; i < n && carat_lora_at(m, i, &l); i++) {
        if (!strcmp(name, l.name))
            return i;
        if (near < 0 && !strcasecmp(name, l.name))
            near = i;
    }
    return near;
}

bool loras_named(const lora_wish *wish, int32_t n, const carat_model *m, arena *mem,
                 carat_lora_use **out, problem *p)
{
    carat_lora_use *use = arena_array(mem, (size_t)n + 1, sizeof *use);
    if (!use)
        return problem_set(p, 503, "lora", "no memory for a list of adapters");
    for (int32_t i = 0; i < n; i++) {
        carat_lora_info l;
        int32_t id = wish[i].name ? lora_find(m, INT32_MAX, wish[i].name) : wish[i].id;
        if (id < 0 && wish[i].name)
            return problem_set(p, 400, "lora",
                               "the model has no adapter '%.100s' (GET /lora-adapters lists them)",
                               wish[i].name);
        if (!carat_lora_at(m, id, &l))
            return problem_set(p, 400, "lora",
                               "the model has no adapter %d (GET /lora-adapters lists them)", id);
        use[i] = (carat_lora_use){id, wish[i].scale};
    }
    *out = use;
    return true;
}

bool token_rules_make(request *rq, const carat_model *m, problem *p)
{
    return (!rq->lora || loras_named(rq->lora, rq->n_loras, m, &rq->mem, &rq->loras, p)) &&
           make_bad(rq, m, p) && make_bias(rq, m, p) &&
           (!rq->n_prediction ||
            tokens_of(rq, m, "", rq->prediction, rq->n_prediction, &rq->predicted, p));
}

/* The most logprobs that a field asks for, per token of the prompt; 0: no field does. */
static int32_t prompt_top(const request *rq)
{
    int32_t top = rq->prompt_logprobs, echoed = rq->sampling.n_top_logprobs;
    if (rq->echo && rq->logprobs && echoed > top)
        top = echoed;
    return top > 0 ? top : rq->prompt_logprobs == 0 || (rq->echo && rq->logprobs);
}

void token_rules_set(const request *rq, bool first, carat_generate_options *o)
{
    o->stop_ids = rq->stop_ids;
    o->n_stop_ids = rq->n_stop_ids;
    o->bad = rq->bad;
    o->n_bad = rq->n_bad;
    o->only_ids = rq->only_ids;
    o->n_only_ids = rq->n_only_ids;
    o->min_tokens = rq->min_tokens;
    o->no_answer = rq->no_answer;
    o->sparse = rq->sparse;
    o->loras = rq->loras;
    o->n_loras = rq->n_loras;
    o->predicted = rq->predicted.at;
    o->n_predicted = rq->predicted.n;
    o->n_prompt_logprobs = first ? prompt_top(rq) : 0;
}
