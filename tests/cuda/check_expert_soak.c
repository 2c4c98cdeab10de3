/* check_expert_soak.c - `cuda_check --soak MINUTES`: mixtures of which the GPU holds a part of the
 * experts, under load for a long time: answers side by side with lookup drafts, a pool of keys that
 * some must leave, checkpoints, cancelled jobs, copies that fail (in the emulator), parking.
 *
 * Every answer that ends must be the one that a session of the whole model gives alone. Prompts
 * begin alike, go on with random tokens and repeat some of them, so that drafts are accepted.
 */
#include "tests/cuda/check_int.h"
#include "backend/cuda/cuda_int.h"
#include "base/clock.h"
#include "base/rng.h"
#include "tests/fidelity_model.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CTX = 192, POOL = 512, SLOTS = 6, WAVE = 8, HEAD = 24, TAIL = 40, ANSWER = 24 };

typedef struct soak_job {
    int32_t prompt[HEAD + 2 * TAIL], n, id[ANSWER], n_ids, want[ANSWER], n_want;
    carat_generate_options opt;
    int64_t number;
    bool cancel, over;
    carat_status st;
    carat_finish finish;
    err why;
} soak_job;

typedef struct soak {
    rig *g;
    fidelity f;
    carat_model *whole, *some;
    carat_session *alone;
    soak_job job[WAVE];
    uint64_t rng;
    uint64_t n_answers, n_cancelled, n_failed, n_wrong, n_drafts, n_accepted, n_waves, n_preempted;
} soak;

static bool keep(void *user, const carat_event *ev)
{
    soak_job *j = user;
    if (ev->kind == CARAT_EV_TOKEN && j->n_ids < ANSWER)
        j->id[j->n_ids++] = ev->id;
    return true;
}

static void end(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    soak_job *j = user;
    j->over = true;
    j->st = st;
    j->finish = t->finish;
    if (st && e)
        j->why = *e;
}

static void draw_job(soak *s, soak_job *j)
{
    const int32_t heads = 3;
    int32_t from = (int32_t)rng_below(&s->rng, (uint64_t)heads) * 5;
    int32_t n = 4 + (int32_t)rng_below(&s->rng, TAIL - 4);
    *j = (soak_job){.n = HEAD};
    memcpy(j->prompt, s->f.tokens + from, HEAD * sizeof *j->prompt);
    for (int32_t i = 0; i < n; i++)
        j->prompt[j->n++] = s->f.tokens[rng_below(&s->rng, (uint64_t)s->f.n_tokens)];
    for (int32_t i = 0; i < n && rng_below(&s->rng, 2); i++, j->n++)
        j->prompt[j->n] = j->prompt[j->n - n];
    j->opt = (carat_generate_options){.max_tokens = 1 + (int32_t)rng_below(&s->rng, ANSWER)};
    carat_sampling_default(s->some, &j->opt.sampling);
    j->opt.sampling.ignore_eog = true;
    j->opt.sampling.seed = (uint32_t)(rng_next(&s->rng) >> 40);
    if (rng_below(&s->rng, 3))
        j->opt.sampling.temperature = 0;
    j->cancel = !rng_below(&s->rng, 6);
}

/* What a session of the whole model answers. */
static status ask_alone(soak *s, soak_job *j, err *e)
{
    soak_job a = *j;
    a.n_ids = 0;
    carat_reset(s->alone);
    status st = carat_generate(s->alone, a.prompt, a.n, &a.opt, keep, &a, NULL, e);
    memcpy(j->want, a.id, sizeof j->want);
    j->n_want = a.n_ids;
    return st;
}

static void judge(soak *s, const soak_job *j)
{
    bool cut = j->finish == CARAT_FINISH_CANCELLED;
    bool right = j->over && j->n_ids <= j->n_want && (cut || j->n_ids == j->n_want) &&
                 !memcmp(j->id, j->want, sizeof *j->id * (size_t)j->n_ids);
    if (j->over && j->st == E_CANCELLED && j->cancel) { /* while it waited for a slot */
        right = cut = !j->n_ids;
    } else if (j->over && j->st) { /* a copy for a prompt failed: the sentence says so */
        s->n_failed++;
        right = strstr(j->why.text, "copying experts") != NULL;
    }
    s->n_answers += !cut && !j->st;
    s->n_cancelled += cut;
    s->n_wrong += !right;
    if (!right)
        printf("soak: a wrong answer: %d of %d tokens, status %d, %s\n", j->n_ids, j->n_want, j->st,
               j->why.text);
}

/* A batch with more jobs than slots. */
static status wave(soak *s, err *e)
{
    carat_batch *b = NULL;
    carat_batch_info info;
    const carat_batch_options bo = {
        .session = {.n_ctx = CTX, .kv_pool = POOL, .chunk = 40, .kv_k = "f16"}, .n_slots = SLOTS};
    status st = carat_batch_open(s->some, &bo, &b, e);
    for (int i = 0; i < WAVE && !st; i++) {
        soak_job *j = &s->job[i];
        draw_job(s, j);
        const carat_job job = {
            .ids = j->prompt, .n = j->n, .opt = &j->opt, .fn = keep, .done = end, .user = j};
        if ((st = ask_alone(s, j, e)))
            break;
        st = carat_batch_submit(b, &job, &j->number, NULL, e);
        for (uint64_t k = rng_below(&s->rng, 6); k && !st; k--)
            carat_batch_step(b);
    }
    for (bool more = !st; more;) {
        soak_job *j = &s->job[rng_below(&s->rng, WAVE)];
        if (j->cancel && !rng_below(&s->rng, 8))
            carat_batch_cancel(b, j->number);
#ifdef EMU_CAN_FAIL
        if (!rng_below(&s->rng, 40))
            emu_fail_copy(1 + (int)rng_below(&s->rng, 4));
#endif
        more = carat_batch_step(b);
    }
#ifdef EMU_CAN_FAIL
    emu_fail_copy(0);
#endif
    if (!st) {
        carat_batch_get_info(b, &info, NULL, 0);
        s->n_drafts += info.n_drafted;
        s->n_accepted += info.n_accepted;
        s->n_preempted += info.n_preempted;
        for (int i = 0; i < WAVE; i++)
            judge(s, &s->job[i]);
    }
    carat_batch_close(b);
    s->n_waves++;
    return st;
}

/* One model with one share of its experts, for some waves. blocks: the CPU may compute some of the
 * others, and some may be fetched early. The whole model gives the right answers. */
static status campaign(soak *s, const char *path, bool blocks, double end_ms, err *e)
{
    static const char *const parts[] = {"40%", "50%", "0.75"};
    static const char *const cpus[] = {NULL, "0.5", "auto", "1"};
    static const char *const prefetch[] = {NULL, "off", "1", "2", "3", "4"};
    const char *cpu = blocks ? cpus[rng_below(&s->rng, 4)] : NULL;
    carat_model_options all = {.device = "cuda"}, o = all;
    o.draft = "lookup";
    o.experts_gpu = parts[rng_below(&s->rng, 3)];
    o.experts_cpu = cpu;
    o.n_threads = 3;
    if (blocks)
        o.experts_prefetch = prefetch[rng_below(&s->rng, 6)];
    const carat_session_options so = {
        .n_ctx = CTX, .chunk = 40, .checkpoint_mb = -1, .kv_k = "f16"};
    status st = carat_model_open(path, &all, &s->whole, e);
    st = st ? st : carat_model_open(path, &o, &s->some, e);
    st = st ? st : carat_session_open(s->whole, &so, &s->alone, e);
    for (int i = 0; i < 12 && !st && clock_ms() < end_ms; i++) {
        st = wave(s, e);
        if (!st && i % 4 == 3) {
            carat_model_park(s->some);
            st = carat_model_unpark(s->some, e);
        }
    }
    carat_session_close(s->alone);
    carat_model_close(s->some);
    carat_model_close(s->whole);
    s->alone = NULL;
    s->some = s->whole = NULL;
    return st;
}

void check_expert_soak(rig *g, double minutes)
{
    static const char *const names[] = {"laguna", "qwen35moe", "moe"};
    soak s = {.g = g, .rng = 11};
    err e = {0};
    status st = OK;
    double start_ms = clock_ms(), end_ms = start_ms + minutes * 60e3;
    for (int k = 0; !st && clock_ms() < end_ms; k = (k + 1) % 3) {
        char counts[300];
        fidelity_open(&s.f, names[k]);
        const char *path = fidelity_write(&s.f, &(fidelity_file){.type = NUM_Q8_0});
        snprintf(counts, sizeof counts, "%s.experts", path);
        st = campaign(&s, path, k < 2, end_ms, &e);
        unlink(counts);
        unlink(path);
        fidelity_close(&s.f);
        printf(
            "soak: %5.1f min, %llu waves, %llu answers, %llu cancelled, %llu whose copies failed, "
            "%llu of %llu drafts accepted, %llu left the pool, %llu wrong\n",
            (clock_ms() - start_ms) / 60e3, (unsigned long long)s.n_waves,
            (unsigned long long)s.n_answers, (unsigned long long)s.n_cancelled,
            (unsigned long long)s.n_failed, (unsigned long long)s.n_accepted,
            (unsigned long long)s.n_drafts, (unsigned long long)s.n_preempted,
            (unsigned long long)s.n_wrong);
        fflush(stdout);
    }
    if (st)
        failed(g, "expert soak", e.text);
    verdict(g, "expert soak", text("%llu answers: wrong ones", (unsigned long long)s.n_answers),
            (double)s.n_wrong, 0);
}
