/* lookup.c - how many drafts of lookup an editing task accepts: the prompt is a text, the answer is
 * the same text after an edit. No model computes: the answer is given, and drafts are checked
 * against it as a pass would check them.
 *
 *     build/bench_lookup [-n SLOTS] MODEL.gguf BEFORE AFTER [BEFORE AFTER ...]
 *
 * MODEL has the tokenizer. Prints, for each pair and for all, the tokens of a round (the accepted
 * drafts and the one that the pass itself gives), and how often a slot was accepted when the slots
 * before it were: the list that `carat bench --spec lookup --accept LIST` takes.
 */
#include "base/map.h"
#include "base/mem.h"
#include "engine/engine_int.h"
#include "spec/drafter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_MOST = 4 << 20, SLOTS = 15 };

typedef struct stats {
    int64_t n_tokens, n_rounds, n_plain; /* n_plain: rounds without a draft */
    int64_t asked[DRAFT_SLOTS_MAX], accepted[DRAFT_SLOTS_MAX];
} stats;

static void add_stats(stats *t, const stats *more)
{
    t->n_tokens += more->n_tokens;
    t->n_rounds += more->n_rounds;
    t->n_plain += more->n_plain;
    for (int i = 0; i < DRAFT_SLOTS_MAX; i++) {
        t->asked[i] += more->asked[i];
        t->accepted[i] += more->accepted[i];
    }
}

static void print_stats(const char *name, const stats *t, int32_t n_slots)
{
    printf("%-40s %6lld tokens, %5.2f a round, %4.1f %% of the rounds without a draft;", name,
           (long long)t->n_tokens, (double)t->n_tokens / (double)(t->n_rounds ? t->n_rounds : 1),
           100 * (double)t->n_plain / (double)(t->n_rounds ? t->n_rounds : 1));
    for (int32_t i = 0; i < n_slots; i++)
        printf("%c%.2f", i ? ',' : ' ',
               t->asked[i] ? (double)t->accepted[i] / (double)t->asked[i] : 0.0);
    printf("\n");
}

/* Appends the tokens of a file to ids[0..n). */
static status read_tokens(const carat_model *m, const char *path, int32_t **ids, int64_t *n, err *e)
{
    char *text = NULL;
    size_t n_text = 0;
    status st = file_read_all(path, TEXT_MOST, &text, &n_text, e);
    int64_t cap = *n + (int64_t)n_text + 2;
    int32_t *more = st ? NULL : mem_realloc(*ids, (size_t)cap, sizeof **ids);
    if (!st && !more)
        st = err_memory(e, path, (size_t)cap * sizeof **ids);
    if (!st) {
        *ids = more;
        int64_t got = carat_tokenize(m, text, n_text, 0, more + *n, cap - *n, e);
        st = got < 0 ? (status)-got : OK;
        *n += got > 0 ? got : 0;
    }
    mem_free(text);
    return st;
}

/* The drafts of one answer, ids[n_prompt..n), round after round. */
static status edit(drafter *d, const int32_t *ids, int64_t n_prompt, int64_t n, int32_t n_slots,
                   stats *t, err *e)
{
    static proposal p;
    draft_state *s;
    status st = d->class->state_open(d, &s, e);
    for (int64_t at = n_prompt + 1; at < n && !st;) {
        const draft_ask a = {
            .s = s, .id = ids, .n = at, .n_slots = n_slots, .n_ranks = 1, .out = &p};
        int32_t k = 0;
        if ((st = d->class->propose(d, &a, 1, e)))
            break;
        for (; k < p.n_slots && at + k < n; k++) {
            t->asked[k]++;
            if (p.id[k][0] != ids[at + k])
                break;
            t->accepted[k]++;
        }
        t->n_rounds++;
        t->n_plain += !p.n_slots;
        t->n_tokens += at + k < n ? k + 1 : n - at;
        at += k + 1;
    }
    d->class->state_close(d, s);
    return st;
}

static status edit_pair(const carat_model *m, draft_model *lookup, char *const *path,
                        int32_t n_slots, stats *all, err *e)
{
    int32_t *ids = NULL;
    int64_t n_prompt = 0, n;
    stats t = {0};
    drafter *d = NULL;
    status st = read_tokens(m, path[0], &ids, &n_prompt, e);
    n = n_prompt;
    st = st ? st : read_tokens(m, path[1], &ids, &n, e);
    const draft_sizes z = {.n_ctx = (int32_t)n + 1, .n_seqs = 1, .n_slots = n_slots};
    st = st ? st : draft_lookup.open(lookup, &z, &d, e);
    if (!st)
        st = edit(d, ids, n_prompt, n, n_slots, &t, e);
    if (!st) {
        print_stats(path[1], &t, n_slots);
        add_stats(all, &t);
    }
    if (d)
        draft_lookup.close(d);
    mem_free(ids);
    return st;
}

int main(int argc, char **argv)
{
    int32_t n_slots = SLOTS;
    int first = 1;
    if (argc > 2 && !strcmp(argv[1], "-n")) {
        n_slots = atoi(argv[2]);
        first = 3;
    }
    if (argc - first < 3 || (argc - first) % 2 == 0 || n_slots < 1 || n_slots > DRAFT_SLOTS_MAX) {
        fprintf(stderr, "usage: bench_lookup [-n SLOTS] MODEL.gguf BEFORE AFTER [...]\n");
        return 2;
    }
    carat_model *m = NULL;
    draft_model *lookup = NULL;
    stats all = {0};
    err e = {0};
    const carat_model_options o = {.device = "cpu"};
    status st = carat_model_open(argv[first], &o, &m, &e);
    st = st ? st : draft_model_open(&draft_lookup, &m->core, NULL, &lookup, &e);
    for (int i = first + 1; i + 1 < argc && !st; i += 2)
        st = edit_pair(m, lookup, &argv[i], n_slots, &all, &e);
    if (st)
        fprintf(stderr, "bench_lookup: %s\n", e.text);
    else
        print_stats("all", &all, n_slots);
    draft_model_close(lookup);
    carat_model_close(m);
    return st != OK;
}
