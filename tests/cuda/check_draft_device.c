/* check_draft_device.c - a smaller model that drafts on a device of its own, a GPU beside the model's
 * (here the same one, opened again) or the CPU: answers are those without a drafter, and on a GPU
 * as many tokens are drafted as on the model's own.
 */
#include "base/mem.h"
#include "tests/cuda/check_int.h"
#include "tests/splits_rig.h"
#include "tests/test.h"

#include <stdio.h>
#include <stdlib.h>

static status answers(const split_jobs *j, const char *path, const char *draft, const char *where,
                      int32_t n_devices, split_said *out, err *e)
{
    const split_place at = {.split = n_devices > 1 ? "layers" : NULL, .n = n_devices, .gpu = true};
    const carat_model_options o = {.draft = draft, .draft_device = where};
    carat_device_memory mem[CARAT_DEVICES_MAX];
    carat_model *m = NULL;
    status st = splits_open(path, o, at, &m, e);
    st = st ? st : splits_answer(m, j, out, e);
    if (!st && where) { /* the last one is the drafter's, and holds its weights at least */
        int32_t n = carat_memory(m, mem);
        if (n != n_devices + 1 || !mem[n - 1].used_bytes)
            st = err_set(e, E_ARG, "%d devices, the drafter's has %llu bytes", n,
                         (unsigned long long)mem[n - 1].used_bytes);
    }
    carat_model_close(m);
    return st;
}

void check_draft_device(rig *g)
{
    static const struct {
        const char *draft;
        int32_t n; /* GPUs that share the model */
    } places[] = {{"cuda:0", 2}, {"cpu", 1}, {"cuda:0", 1}, {"cpu", 2}};
    split_jobs j = {.session = {.n_ctx = 192, .chunk = 32, .checkpoint_mb = -1},
                    .n = g->quick ? 2 : 4,
                    .n_slots = 2,
                    .n_tokens = g->quick ? 4 : SPLITS_TOKENS,
                    .longest = g->quick ? 20 : 90,
                    .seed = 9,
                    .n_draft = 3};
    if (!my_turn(g, "draftdevice"))
        return;
    const char *path = test_path("models/demo.gguf"), *draft = path;
    split_said *none = mem_calloc((size_t)(3 * j.n), sizeof *none);
    split_said *beside = none + j.n, *apart = beside + j.n;
    err e = {0};
    status st = none ? OK : err_memory(&e, "a check", (size_t)(3 * j.n) * sizeof *none);
    st = st ? st : answers(&j, path, NULL, NULL, 1, none, &e);
    st = st ? st : answers(&j, path, draft, NULL, 1, beside, &e);
    for (int i = 0; i < (g->quick ? 2 : 4) && !st; i++) {
        char at[48];
        snprintf(at, sizeof at, "%s, model on %d", places[i].draft, places[i].n);
        if ((st = answers(&j, path, draft, places[i].draft, places[i].n, apart, &e)))
            break;
        const int32_t n = splits_drafted(apart, j.n), more = n - splits_drafted(beside, j.n);
        verdict(g, "draftdevice", text("%s: the first that differs", at),
                1 + splits_differ(none, apart, j.n), 0);
        verdict(g, "draftdevice", text("%s: nothing is drafted", at), n == 0, 0);
        if (i % 2 == 0) /* a GPU */
            verdict(g, "draftdevice", text("%s: drafts more or less", at), abs(more), 0);
    }
    if (st)
        failed(g, "draftdevice", e.text);
    mem_free(none);
}
