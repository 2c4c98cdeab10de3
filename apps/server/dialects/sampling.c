/* sampling.c - the fields of sampling, and of tokens that may come or end an answer.
 *
 *     numbers                                          carat/sampling_settings.h
 *     samplers, dry_sequence_breakers, logit_bias      llama-server's
 *     stop_token_ids, bad_words, allowed_token_ids,
 *     min_tokens                                       vLLM's
 *
 * The names are those of llama-server, vLLM, ollama and LM Studio. All but the lists of texts
 * become the engine's settings here. Texts become tokens when the model is known: token_rules.c.
 */
#include "apps/server/dialects/request.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- Numbers ---- */

static bool read_number(const jtree *o, const char *name, const carat_sampling_setting *is,
                        carat_sampling *s, problem *p)
{
    double v = carat_sampling_get(s, is);
    int64_t whole = (int64_t)v;
    if (is->whole ? !field_int(p, o, name, (int64_t)is->min, (int64_t)is->max, &whole)
                  : !field_real(p, o, name, is->min, is->max, &v))
        return false;
    if (jtree_get(o, name))
        carat_sampling_set(s, is, is->whole ? (double)whole : v);
    return true;
}

/* ---- Lists ---- */

/* An array of at most `most` items, or nothing. *v: NULL if absent. */
static bool read_list(const jtree *o, const char *key, size_t most, const jtree **v, problem *p)
{
    const jtree *list;
    if (!field_kind(p, o, key, JTREE_ARRAY, &list))
        return false;
    if (list && list->count > most)
        return problem_set(p, 400, key, "'%s' has %zu entries; at most %zu", key, list->count,
                           most);
    *v = list;
    return true;
}

static bool read_words(request *rq, const jtree *o, const char *key, size_t most, const char ***out,
                       int32_t *n, problem *p)
{
    const jtree *v = NULL;
    if (!read_list(o, key, most, &v, p) || !v)
        return !p->status;
    const char **words = arena_array(&rq->mem, v->count + 1, sizeof *words);
    int32_t n_words = 0;
    if (!words)
        return problem_set(p, 503, "", "no memory for '%s'", key);
    for (const jtree *i = v->first; i; i = i->next) {
        if (i->kind != JTREE_STRING)
            return problem_set(p, 400, key, "'%s' holds %s; expected strings", key,
                               jtree_kind_name(i));
        if (!i->n || i->n > REQUEST_MAX_STOP || strlen(i->s) != i->n)
            return problem_set(p, 400, key,
                               "'%s' holds a string that is empty, longer than %d bytes or has a "
                               "zero character",
                               key, REQUEST_MAX_STOP);
        words[n_words++] = i->s;
    }
    *out = words;
    *n = n_words;
    return true;
}

static bool read_ids(request *rq, const jtree *o, const char *key, int32_t n_vocab, int32_t **out,
                     int32_t *n, problem *p)
{
    const jtree *v = NULL;
    int64_t n_ids;
    if (!read_list(o, key, (size_t)n_vocab, &v, p) || !v || !v->count)
        return !p->status;
    if (!field_ids(&rq->mem, key, v, n_vocab, out, &n_ids, p))
        return false;
    *n = (int32_t)n_ids; /* at most n_vocab */
    return true;
}

/* An array of names, or a text of letters, in llama-server's spelling. */
static bool read_order(const jtree *o, carat_sampling *s, problem *p)
{
    const jtree *v = jtree_get(o, "samplers");
    bool letters = jtree_is(v, JTREE_STRING);
    char name[2] = {0};
    int n = 0;
    if (!v)
        return true;
    if (!letters && v->kind != JTREE_ARRAY)
        return problem_set(p, 400, "samplers",
                           "'samplers' is %s; expected an array of names or a string of letters",
                           jtree_kind_name(v));
    memset(s->order, 0, sizeof s->order);
    const jtree *i = letters ? NULL : v->first;
    for (size_t k = 0; letters ? k < v->n : i != NULL; k++) {
        carat_sampler is = CARAT_SAMPLER_NONE;
        if (letters)
            *name = v->s[k];
        if (letters || i->kind == JTREE_STRING)
            is = carat_sampler_named(letters ? name : i->s);
        if (!is)
            return problem_set(p, 400, "samplers", "'samplers' has \"%.40s\"; expected %s",
                               letters                   ? name
                               : i->kind == JTREE_STRING ? i->s
                                                         : jtree_kind_name(i),
                               &CARAT_SAMPLER_LIST[2]);
        for (int j = 0; j < n; j++)
            if (s->order[j] == is)
                return problem_set(p, 400, "samplers", "'samplers' has \"%s\" twice",
                                   carat_sampler_name(is));
        s->order[n++] = is;
        i = letters ? NULL : i->next;
    }
    if (!n) { /* no sampler at all: the model's own probabilities */
        s->order[0] = CARAT_SAMPLER_TEMPERATURE;
        s->temperature = 1;
        s->dynatemp_range = 0;
    }
    return true;
}

static bool read_breakers(request *rq, const jtree *o, carat_sampling *s, problem *p)
{
    static const char key[] = "dry_sequence_breakers";
    const char **words = NULL;
    int32_t n = 0;
    if (!read_words(rq, o, key, REQUEST_MAX_BREAKERS, &words, &n, p) || !words)
        return !p->status;
    if (!n)
        return problem_set(p, 400, key, "'%s' is empty; expected 1 to %d strings", key,
                           REQUEST_MAX_BREAKERS);
    s->dry_breakers = words;
    s->n_dry_breakers = n;
    return true;
}

/* A bias is a number, or false for a ban. -100, the minimum of OpenAI's API, is a ban, too. */
static bool read_bias(const jtree *v, float *out)
{
    double d = -100;
    if (!jtree_is(v, JTREE_FALSE) && !tree_real(v, -1e6, 1e6, &d))
        return false;
    *out = d <= -100 ? -INFINITY : (float)d;
    return true;
}

/* What an entry is about: an id, or the tokens of a text. */
static bool read_bias_what(const jtree *v, int32_t n_vocab, int32_t *id, const char **text,
                           size_t *n)
{
    const jtree *first = v->first;
    const char *words = NULL;
    size_t n_words = 0;
    int64_t number = -1;
    if (v->key) { /* a member of an object: the key is the id */
        char *end;
        errno = 0;
        number = strtoll(v->key, &end, 10);
        if (end == v->key || *end || v->n_key != (size_t)(end - v->key)) {
            words = v->key;
            n_words = v->n_key;
        } else if (errno) {
            return false;
        }
    } else if (!jtree_is(v, JTREE_ARRAY) || v->count != 2) {
        return false;
    } else if (first->kind == JTREE_STRING) {
        words = first->s;
        n_words = first->n;
    } else if (!tree_int(first, 0, INT32_MAX, &number)) {
        return false;
    }
    if (words ? !n_words : number < 0 || number >= n_vocab)
        return false;
    *text = words;
    *n = n_words;
    *id = (int32_t)number;
    return true;
}

static bool read_biases(request *rq, const jtree *o, const request_limits *lim, problem *p)
{
    const jtree *v = jtree_get(o, "logit_bias");
    if (!v)
        return true;
    if (v->kind != JTREE_OBJECT && v->kind != JTREE_ARRAY)
        return problem_set(p, 400, "logit_bias",
                           "'logit_bias' is %s; expected an object of token ids and numbers",
                           jtree_kind_name(v));
    if (!v->count)
        return true;
    if (v->count > REQUEST_MAX_BIASES)
        return problem_set(p, 400, "logit_bias", "'logit_bias' has %zu entries; at most %d",
                           v->count, REQUEST_MAX_BIASES);
    carat_logit_bias *b = arena_array(&rq->mem, v->count, sizeof *b);
    rq->text_bias = arena_array(&rq->mem, v->count, sizeof *rq->text_bias);
    if (!b || !rq->text_bias)
        return problem_set(p, 503, "", "no memory for 'logit_bias'");
    int32_t n = 0;
    for (const jtree *i = v->first; i; i = i->next) {
        const jtree *value = v->kind == JTREE_OBJECT ? i : i->first ? i->first->next : NULL;
        text_bias t = {0};
        int32_t id = 0;
        if (!read_bias_what(i, lim->n_vocab, &id, &t.text, &t.n))
            return problem_set(p, 400, "logit_bias",
                               "'logit_bias' has \"%.40s\" for a token id; ids are 0 to %d",
                               i->key ? i->key : jtree_kind_name(i), lim->n_vocab - 1);
        if (!read_bias(value, &t.bias))
            return problem_set(p, 400, "logit_bias",
                               "'logit_bias' of %s%.40s is no number from -100 to 100",
                               t.text ? "" : "a token", t.text ? t.text : "");
        if (t.text)
            rq->text_bias[rq->n_text_bias++] = t;
        else
            b[n++] = (carat_logit_bias){id, t.bias};
    }
    rq->sampling.bias = b;
    rq->sampling.n_bias = n;
    return true;
}

/* ---- Both ---- */

bool read_sampling(request *rq, const jtree *o, const request_limits *lim, problem *p)
{
    carat_sampling *s = &rq->sampling;
    int64_t seed = -1;
    int32_t n;
    const carat_sampling_setting *all = carat_sampling_settings(&n);
    for (int32_t i = 0; i < n; i++)
        if ((all[i].also && !read_number(o, all[i].also, &all[i], s, p)) ||
            !read_number(o, all[i].name, &all[i], s, p))
            return false;
    bool draws = true;
    if (s->dry_base < 1) /* as in llama-server */
        s->dry_base = lim->sampling.dry_base;
    if (!field_bool(p, o, "do_sample", &draws))
        return false;
    if (!draws) { /* as in Transformers: the likeliest token, whatever the temperature */
        s->temperature = s->dynatemp_range = 0;
        s->mirostat = 0;
    }
    if (!field_bool(p, o, "ignore_eos", &s->ignore_eog) ||
        !field_int(p, o, "seed", INT64_MIN, INT64_MAX, &seed) || !read_order(o, s, p) ||
        !read_breakers(rq, o, s, p) || !read_biases(rq, o, lim, p))
        return false;
    if (jtree_get(o, "seed")) {
        rq->seed_given = seed != -1;
        s->seed = (uint32_t)seed;
    }
    return true;
}

bool read_token_rules(request *rq, const jtree *o, const request_limits *lim, problem *p)
{
    int64_t least = rq->min_tokens;
    if (!field_int(p, o, "min_tokens", 0, INT32_MAX, &least) ||
        !read_ids(rq, o, "stop_token_ids", lim->n_vocab, &rq->stop_ids, &rq->n_stop_ids, p) ||
        !read_ids(rq, o, "allowed_token_ids", lim->n_vocab, &rq->only_ids, &rq->n_only_ids, p) ||
        !read_words(rq, o, "bad_words", REQUEST_MAX_WORDS, &rq->bad_words, &rq->n_bad_words, p))
        return false;
    if (rq->n_stop_ids > REQUEST_MAX_STOPS)
        return problem_set(p, 400, "stop_token_ids", "'stop_token_ids' has %d entries; at most %d",
                           rq->n_stop_ids, REQUEST_MAX_STOPS);
    rq->min_tokens = (int32_t)least;
    return true;
}

bool read_prompt_logprobs(request *rq, problem *p)
{
    int64_t top = -1;
    if (!field_int(p, rq->body, "prompt_logprobs", 0, REQUEST_MAX_LOGPROBS, &top))
        return false;
    rq->prompt_logprobs = (int32_t)top;
    return true;
}
