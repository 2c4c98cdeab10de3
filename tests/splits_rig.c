/* splits_rig.c - see splits_rig.h. */
#include "tests/splits_rig.h"
#include "base/err.h"
#include "base/rng.h"
#include "tests/synth_file.h"
#include "tests/test.h"

#include <math.h>
#include <string.h>

enum {
    WIDTH = 40,
    HEIGHT = 30,
    BEFORE = 5,
    LOWEST = 5,
    PICTURE_TOKENS = 70,
    ROOM = 1024,
    WAITING = 8
};

carat_status splits_open(const char *path, carat_model_options o, split_place at, carat_model **m,
                         carat_error *e)
{
    static const char *const gpus[SPLITS_MAX] = {"0", "0,0", "0,0,0", "0,0,0,0"};
    static const char *const cpus[SPLITS_MAX] = {"cpu", "cpu,cpu", "cpu,cpu,cpu",
                                                 "cpu,cpu,cpu,cpu"};
    const int32_t n = at.n ? at.n : 1;
    o.device = at.gpu ? NULL : cpus[n - 1];
    o.gpus = at.gpu ? gpus[n - 1] : NULL;
    o.n_threads = at.gpu ? 0 : 1;
    o.split = at.split;
    o.gpu_split = at.parts;
    o.overcommit = at.gpu;
    return carat_model_open(path, &o, m, e);
}

static carat_status new_picture(carat_model *m, uint64_t seed, carat_media **out, carat_error *e)
{
    static uint8_t rgb[WIDTH * HEIGHT * 3];
    const carat_image_options o = {.n_tokens = PICTURE_TOKENS};
    for (size_t i = 0; i < sizeof rgb; i++)
        rgb[i] = (uint8_t)rng_mix(i + (seed << 32));
    return carat_image_new(m, rgb, WIDTH, HEIGHT, &o, out, e);
}

/* ids: [ROOM]. Their number goes to n. */
static carat_status make_prompt(const carat_model *m, const split_jobs *j, int32_t i,
                                const carat_media *picture, int32_t *ids, int64_t *n,
                                carat_error *e)
{
    uint64_t pair = j->seed + (uint64_t)i / 2, own = rng_mix(j->seed + (uint64_t)i);
    const int32_t half = j->longest / 2, n_picture = picture ? carat_media_n(picture) : 0;
    carat_model_info info;
    carat_model_get_info(m, &info);
    const uint64_t n_ids = (uint64_t)(j->n_ids ? j->n_ids : info.n_vocab - LOWEST);
    if (j->texts) {
        *n = carat_tokenize(m, j->texts[i], strlen(j->texts[i]), CARAT_TOK_BOS | CARAT_TOK_SPECIAL,
                            ids, ROOM, e);
        return *n < 0      ? e->status
               : *n > ROOM ? err_set(e, CARAT_E_LIMIT, "a prompt of %lld tokens", (long long)*n)
                           : CARAT_OK;
    }
    *n = half + (int32_t)rng_below(&own, (uint64_t)(j->longest - half + 1)) + n_picture;
    if (*n > ROOM || j->longest < 2 * BEFORE)
        return err_set(e, CARAT_E_ARG, "prompts of up to %d tokens", j->longest);
    for (int32_t k = 0; k < *n; k++) {
        const bool of_picture = k >= BEFORE && k < BEFORE + n_picture;
        uint64_t *from = k < half ? &pair : &own;
        ids[k] = of_picture ? carat_media_id(picture) - (k - BEFORE)
                            : LOWEST + (int32_t)rng_below(from, n_ids);
    }
    return CARAT_OK;
}

static bool keep(void *user, const carat_event *ev)
{
    split_said *a = user;
    if (ev->kind != CARAT_EV_TOKEN || a->n == SPLITS_TOKENS)
        return true;
    a->id[a->n] = ev->id;
    for (int32_t i = 0; i < ev->n_top && i < SPLITS_TOP; i++)
        a->logprob[a->n][i] = ev->top[i].logprob;
    a->n++;
    return true;
}

static void ended(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    split_said *a = user;
    a->done = true;
    a->st = st;
    if (e)
        a->e = *e;
    a->n_drafted = (int32_t)t->n_drafted;
}

static carat_status submit(carat_model *m, carat_batch *b, const split_jobs *j, int32_t i,
                           split_said *out, carat_error *e)
{
    int32_t ids[ROOM];
    carat_generate_options g = {
        .max_tokens = j->n_tokens,
        .speculation = {.n_max = j->n_draft, .fixed = j->n_draft > 0},
    };
    carat_job job = {.ids = ids, .opt = &g, .fn = keep, .done = ended, .user = out};
    carat_status st =
        j->pictures ? new_picture(m, j->seed + (uint64_t)i, &out->picture, e) : CARAT_OK;
    st = st ? st : make_prompt(m, j, i, out->picture, ids, &job.n, e);
    carat_sampling_default(m, &g.sampling);
    g.sampling.ignore_eog = true;
    g.sampling.n_top_logprobs = SPLITS_TOP;
    g.sampling.seed = (uint32_t)i;
    if (i % 2 == 0)
        g.sampling.temperature = 0;
    return st ? st : carat_batch_submit(b, &job, NULL, NULL, e);
}

carat_status splits_answer(carat_model *m, const split_jobs *j, split_said *out, carat_error *e)
{
    carat_batch *b = NULL;
    const carat_batch_options o = {.session = j->session, .n_slots = j->n_slots};
    memset(out, 0, (size_t)j->n * sizeof *out);
    carat_status st = carat_batch_open(m, &o, &b, e);
    for (int32_t i = 0; i < j->n && !st; i++) {
        st = submit(m, b, j, i, &out[i], e);
        carat_batch_step(b); /* so they are at different tokens */
        while (!st && i >= WAITING && !out[i - WAITING].done)
            carat_batch_step(b);
    }
    for (int32_t i = 0; i < j->n && !st; i++) {
        while (!out[i].done)
            carat_batch_step(b);
        if (out[i].st)
            st = err_set(e, out[i].st, "answer %d: %s", i, out[i].e.text);
        else if (out[i].n != j->n_tokens)
            st = err_set(e, CARAT_E_NUMERIC, "answer %d has %d tokens", i, out[i].n);
    }
    carat_batch_close(b);
    for (int32_t i = 0; i < j->n; i++) {
        carat_media_free(out[i].picture);
        out[i].picture = NULL;
    }
    return st;
}

int32_t splits_differ(const split_said *a, const split_said *b, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (a[i].n != b[i].n || memcmp(a[i].id, b[i].id, sizeof a->id) != 0 ||
            memcmp(a[i].logprob, b[i].logprob, sizeof a->logprob) != 0)
            return i;
    return -1;
}

int32_t splits_drafted(const split_said *a, int32_t n)
{
    int32_t all = 0;
    for (int32_t i = 0; i < n; i++)
        all += a[i].n_drafted;
    return all;
}

/* ---- Cases ---------------------------------------------------------------------------------- */

#define SOME                                                                                       \
    .session = {.n_ctx = 256, .chunk = 16, .checkpoint_mb = -1}, .n = 5, .n_slots = 3,             \
    .n_tokens = 12, .longest = 60, .seed = 7

static const char *const questions[] = {
    "<|turn>user\nWhat is carat?<turn|>\n<|turn>model\n",
    "<|turn>user\nWhat is the weather in Oslo?<turn|>\n<|turn>model\n",
    "<|turn>user\nWhich number comes after twelve?<turn|>\n<|turn>model\n"};

const split_case split_cases[SPLIT_CASES] = {
    {"pictures on axes", "tiny-qwen35-keys", NULL, "tiny-mmproj-qwen", NULL, {SOME, .pictures = 1}},
    {"pictures", "tiny-ple", NULL, "tiny-mmproj-clamped", NULL, {SOME, .pictures = true}},
    {"a NextN layer", "tiny-qwen35-keys", "--nextn", NULL, "nextn", {SOME, .n_draft = 4}},
    {"DFlash", "tiny-qwen35-keys", NULL, NULL, "dflash-tiny-qwen35", {SOME, .n_draft = 4}},
    {"an MTP assistant", "tiny-dense", NULL, NULL, "mtp-tiny", {SOME, .n_draft = 4}},
    /* the oldest pages of every rank leave its memory */
    {"a pool",
     "tiny-qwen3",
     NULL,
     NULL,
     NULL,
     {.session =
          {.n_ctx = 768, .chunk = 64, .checkpoint_mb = -1, .kv_resident = 512, .kv_policy = "lru"},
      .n = 3,
      .n_slots = 2,
      .n_tokens = 12,
      .longest = 700,
      .seed = 7}},
    /* the model's queries choose pages, at the ends of prompts and three times in an answer */
    {"a pool by votes",
     "tiny-dense",
     NULL,
     NULL,
     "mtp-tiny",
     {.session = {.n_ctx = 768,
                  .chunk = 64,
                  .checkpoint_mb = -1,
                  .kv_resident = 512,
                  .kv_policy = "scored",
                  .kv_tau = 8},
      .n = 3,
      .n_slots = 2,
      .n_tokens = SPLITS_TOKENS,
      .longest = 700,
      .seed = 7,
      .n_draft = 4}},
    {"a pool chosen once",
     "tiny-qwen35-keys",
     NULL,
     NULL,
     NULL,
     {.session =
          {.n_ctx = 768, .chunk = 64, .checkpoint_mb = -1, .kv_resident = 512, .kv_policy = "snapkv"},
      .n = 3,
      .n_slots = 2,
      .n_tokens = 12,
      .longest = 700,
      .seed = 7}},
    {"the bundled model",
     NULL,
     NULL,
     NULL,
     NULL,
     {.session = {.n_ctx = 256, .chunk = 16},
      .n = 3,
      .n_slots = 3,
      .n_tokens = SPLITS_TOKENS,
      .texts = questions}},
};

const char *split_case_write(const split_case *c, carat_model_options *o)
{
    const bool own = c->draft && !strcmp(c->draft, "nextn");
    *o = (carat_model_options){.draft = own ? c->draft : NULL};
    if (c->tower)
        o->mmproj = synth_file(c->tower, "f32", NULL, NULL);
    if (c->draft && !own)
        o->draft = synth_file(c->draft, "f32", NULL, NULL);
    return c->size ? synth_file(c->size, "f32", c->more, NULL) : test_path("models/demo.gguf");
}

double splits_distance(const float *a, const float *b, size_t n)
{
    double d = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        all += (double)a[i] * a[i];
    }
    return sqrt(d / all);
}
