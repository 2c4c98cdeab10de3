/* check_draft_device.c - a drafter on a device of its own, a GPU beside the model's (here the same one,
 * opened again) or the CPU: answers are those without a drafter, and on a GPU each has as many
 * drafted tokens as with the drafter on the model's own. A smaller model reads tokens alone; DFlash
 * and NextN read hidden states, embeddings and logits that cross.
 */
#include "base/mem.h"
#include "tests/cuda/check_int.h"
#include "tests/splits_rig.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>

/* size NULL: the bundled model drafts for itself. */
static const split_case drafters[] = {
    {.name = "a model"},
    {.name = "NextN", .size = "tiny-qwen35-keys", .more = "--nextn", .draft = "nextn"},
    {.name = "DFlash", .size = "tiny-qwen35-keys", .draft = "dflash-tiny-qwen35"},
    {.name = "DSpark", .size = "tiny-dense", .draft = "dflash-tiny-dspark"}};
static const struct {
    const char *draft, *split;
    int32_t n; /* GPUs that share the model */
} places[] = {{"cuda:0", "layers", 2}, {"cpu", NULL, 1},      {"cuda:0", NULL, 1},
              {"cpu", "layers", 2},    {"cuda:0", "tensor", 2}};
enum { DRAFTERS = sizeof drafters / sizeof *drafters, PLACES = sizeof places / sizeof *places };

static status answers(const split_jobs *j, const char *path, carat_model_options o, int32_t at,
                      split_said *out, err *e)
{
    const split_place on = {.split = places[at].split, .n = places[at].n, .gpu = true};
    carat_device_memory mem[CARAT_DEVICES_MAX];
    carat_model *m = NULL;
    status st = splits_open(path, o, on, &m, e);
    st = st ? st : splits_answer(m, j, out, e);
    if (!st && o.draft_device) { /* the last one is the drafter's, and holds its weights at least */
        int32_t n = carat_memory(m, mem);
        if (n != on.n + 1 || !mem[n - 1].used_bytes)
            st = err_set(e, E_ARG, "%d devices, the drafter's has %llu bytes", n,
                         (unsigned long long)mem[n - 1].used_bytes);
    }
    carat_model_close(m);
    return st;
}

/* How many answers have other numbers of drafted tokens. */
static int32_t others(const split_said *a, const split_said *b, int32_t n)
{
    int32_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += a[i].n_drafted != b[i].n_drafted;
    return sum;
}

static status check_place(rig *g, const split_case *c, const split_jobs *j, const char *path,
                          carat_model_options o, int32_t at, split_said *said, err *e)
{
    split_said *none = said, *beside = none + j->n, *apart = beside + j->n;
    char name[80];
    status st = answers(j, path, (carat_model_options){0}, at, none, e);
    st = st ? st : answers(j, path, o, at, beside, e);
    o.draft_device = places[at].draft;
    if (st || (st = answers(j, path, o, at, apart, e)))
        return st;
    snprintf(name, sizeof name, "%s on %s, model on %d, %s", c->name, places[at].draft, places[at].n,
             places[at].split ? places[at].split : "whole");
    verdict(g, "draftdevice", text("%s: the first that differs", name),
            1 + splits_differ(none, apart, j->n), 0);
    verdict(g, "draftdevice", text("%s: nothing is drafted", name),
            splits_drafted(apart, j->n) == 0, 0);
    if (strcmp(places[at].draft, "cpu") != 0)
        verdict(g, "draftdevice", text("%s: answers with more or less drafts", name),
                others(beside, apart, j->n), 0);
    return OK;
}

void check_draft_device(rig *g)
{
    const split_jobs j = {.session = {.n_ctx = 192, .chunk = 32, .checkpoint_mb = -1},
                          .n = g->quick ? 2 : 4,
                          .n_slots = 2,
                          .n_tokens = g->quick ? 4 : SPLITS_TOKENS,
                          .longest = g->quick ? 20 : 90,
                          .seed = 9,
                          .n_draft = 3};
    if (!my_turn(g, "draftdevice"))
        return;
    split_said *said = mem_calloc((size_t)(3 * j.n), sizeof *said);
    err e = {0};
    status st = said ? OK : err_memory(&e, "a check", (size_t)(3 * j.n) * sizeof *said);
    for (int32_t i = 0; i < DRAFTERS && !st; i++) {
        carat_model_options o;
        const char *path = split_case_write(&drafters[i], &o);
        o.draft = o.draft ? o.draft : path;
        for (int32_t at = 0; at < (g->quick ? 2 : PLACES) && !st; at++)
            if (!places[at].split || strcmp(places[at].split, "tensor") != 0 || drafters[i].draft)
                st = check_place(g, &drafters[i], &j, path, o, at, said, &e);
    }
    if (st)
        failed(g, "draftdevice", e.text);
    mem_free(said);
}
