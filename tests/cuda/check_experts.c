/* check_experts.c - mixtures of which the GPU holds a part of the experts, against the same model
 * as a whole: logits and answers must be bit-identical, whatever is in a slot, on its way, staged
 * or read from the host. Slots change hands between passes, copies fail, and the model is parked.
 * Also of models whose layers several devices on one GPU share.
 */
#include "tests/cuda/check_int.h"
#include "backend/experts.h"
#include "base/map.h"
#include "base/mem.h"
#include "engine/engine_int.h"
#include "tests/fidelity_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CTX = 128, PROMPT = 50, STEPS = 8, ANSWER = 8, JOBS = 2 };

typedef struct experts_rig {
    rig *g;
    const char *name, *type, *part, *gpus; /* gpus NULL: one device */
    const char *split;                     /* "tensor"; NULL: by layers */
    fidelity f;
    carat_model *whole, *some;
    carat_session *a, *b;
    float *x, *y; /* logits */
    size_t n_vocab;
} experts_rig;

static void say(experts_rig *r, const char *what, double n)
{
    verdict(r->g, r->split ? "tensor slots" : "experts",
            text("%-9s %-5s %4s%s%s: %s", r->name, r->type, r->part, r->gpus ? " on " : "",
                 r->gpus ? r->gpus : "", what),
            n, 0);
}

/* With fewer slots than experts by far, some are exchanged in a few passes. */
static bool half(const experts_rig *r)
{
    return !strcmp(r->part, "50%");
}

static double differs(const experts_rig *r)
{
    return memcmp(r->x, r->y, r->n_vocab * sizeof *r->x) != 0;
}

/* n tokens from `from` on as a prompt, then n_steps more one by one, in both. */
static status follow_from(experts_rig *r, int32_t from, int32_t n, int32_t n_steps, double *wrong,
                          err *e)
{
    status st = carat_eval(r->a, r->f.tokens + from, n, r->x, NULL, e);
    st = st ? st : carat_eval(r->b, r->f.tokens + from, n, r->y, NULL, e);
    *wrong = st ? 1 : differs(r);
    for (int32_t i = 0; i < n_steps && !st; i++) {
        const int32_t *id = r->f.tokens + (from + n + 7 * i) % r->f.n_tokens;
        st = carat_append(r->a, id, 1, false, r->x, e);
        st = st ? st : carat_append(r->b, id, 1, false, r->y, e);
        *wrong += st ? 1 : differs(r);
    }
    return st;
}

static status follow(experts_rig *r, int32_t n, int32_t n_steps, double *wrong, err *e)
{
    return follow_from(r, 0, n, n_steps, wrong, e);
}

typedef struct answer {
    int32_t id[ANSWER], n;
    carat_status st;
    carat_timings t;
} answer;
static bool keep_token(void *user, const carat_event *ev)
{
    answer *a = user;
    if (ev->kind == CARAT_EV_TOKEN && a->n < ANSWER)
        a->id[a->n++] = ev->id;
    return true;
}
static void keep_end(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    (void)e;
    ((answer *)user)->st = st;
    ((answer *)user)->t = *t;
}

/* Greedy answers side by side, with drafts where the model has a drafter. */
static status answer_all(carat_model *m, const fidelity *f, answer *to, err *e)
{
    carat_batch *b;
    const carat_batch_options bo = {
        .session = {.n_ctx = CTX, .chunk = 40, .checkpoint_mb = -1, .kv_k = "f16"},
        .n_slots = JOBS};
    carat_status st = carat_batch_open(m, &bo, &b, e);
    for (int i = 0; i < JOBS && !st; i++) {
        carat_generate_options o = {.max_tokens = ANSWER};
        to[i] = (answer){.n = 0};
        carat_sampling_default(m, &o.sampling);
        o.sampling.temperature = 0;
        o.sampling.ignore_eog = true;
        const carat_job j = {.ids = f->tokens + i,
                             .n = 1 + 9 * i,
                             .opt = &o,
                             .fn = keep_token,
                             .done = keep_end,
                             .user = &to[i]};
        st = carat_batch_submit(b, &j, NULL, NULL, e);
    }
    while (!st && carat_batch_step(b))
        ;
    carat_batch_close(b);
    return st;
}

static status side_by_side(experts_rig *r, err *e)
{
    answer want[JOBS], got[JOBS];
    double wrong = 0;
    status st = answer_all(r->whole, &r->f, want, e);
    st = st ? st : answer_all(r->some, &r->f, got, e);
    for (int i = 0; i < JOBS && !st; i++)
        wrong += got[i].st != CARAT_OK || got[i].n != want[i].n ||
                 memcmp(got[i].id, want[i].id, sizeof(int32_t) * (size_t)want[i].n);
    if (st)
        return st;
    say(r, "answers side by side, with drafts, that differ", wrong);
    wrong = 0;
    for (int i = 0; i < JOBS; i++) {
        const carat_timings *t = &got[i].t, *w = &want[i].t;
        wrong +=
            w->offloaded_experts || w->n_expert_hits || w->expert_bytes || w->expert_wait_ms > 0;
        /* bytes without misses: what prompts copied, and exchanges of slots */
        wrong += !t->offloaded_experts || !t->n_expert_hits || t->expert_wait_ms < 0 ||
                 (t->n_expert_misses && !t->expert_bytes);
    }
    say(r, "answers with a wrong account of experts", wrong);
    return OK;
}

#ifdef EMU_CAN_FAIL
static void set_restless(const carat_model *m, bool on)
{
    carat_expert_info info;
    for (int32_t i = 0; i < m->n_sides; i++)
        if (carat_experts_on(m, i, &info))
            model_device(m, i)->experts->set_restless(model_device(m, i), on);
}

/* Of a device. */
static int32_t most_layers(const carat_model *m)
{
    carat_expert_info info;
    int32_t most = 0;
    for (int32_t i = 0; i < m->n_sides; i++)
        if (carat_experts_on(m, i, &info) && info.n_layers > most)
            most = info.n_layers;
    return most;
}

/* Copies fail: into a slot, which changes nothing; for a prompt, whose pass fails alone. */
static status copies_that_fail(experts_rig *r, err *e)
{
    double wrong = 0;
    carat_expert_info before, after;
    err why = {0};
    carat_experts(r->some, &before);
    status st = OK;
    set_restless(r->some, true); /* else few slots change hands by now */
    for (int n = 0; n < 3 && !st; n++) {
        double one;
        emu_fail_copy(1 + n % 3);
        st = follow_from(r, 5 * n, 3, 6, &one, e);
        wrong += one;
    }
    emu_fail_copy(0);
    set_restless(r->some, false);
    carat_experts(r->some, &after);
    if (st)
        return st;
    say(r, "passes that differ while copies to slots fail", wrong);
    say(r, "no such copy failed", after.n_failed == before.n_failed);
    int n_failed = 0;
    wrong = 0;
    carat_reset(r->a);
    st = carat_eval(r->a, r->f.tokens, PROMPT, r->x, NULL, e);
    /* A failure in the first layer's copies is made good; a layer has at most a few. */
    for (int n = 1; n <= 12 * r->some->n_sides && !st && !n_failed; n++) {
        carat_reset(r->b);
        emu_fail_copy(n);
        status failure = carat_eval(r->b, r->f.tokens, PROMPT, r->y, NULL, &why);
        emu_fail_copy(0);
        n_failed += failure != OK;
        wrong += failure ? failure != E_IO || !strstr(why.text, "copying experts") : differs(r);
        why = (err){0};
    }
    carat_reset(r->b);
    say(r, "prompts whose copies fail: no sentence, or other logits", wrong);
    if (most_layers(r->some) > 1)
        say(r, "no such prompt failed", !n_failed);
    return st;
}
#endif

/* Is something amiss on one of the devices: it took more than was planned, its slots or tables are
 * wrong, or its account lacks something? */
static status check_devices(experts_rig *r, const carat_session_options *so, err *e)
{
    carat_expert_info all, info, sum = {0};
    carat_device_memory mem[CARAT_DEVICES_MAX];
    carat_memory_plan plan;
    double beyond = 0, other = 0, wrong = 0, mute = 0;
    status st = carat_plan(r->some, so, &plan, e);
    if (st)
        return st;
    if (!carat_experts(r->some, &all))
        return err_set(e, E_ARG, "all experts are on the device");
    carat_memory(r->some, mem);
    for (int32_t i = 0; i < r->some->n_sides; i++) {
        device *d = model_device(r->some, i);
        const carat_device_plan *p = &plan.device[i];
        if (!carat_experts_on(r->some, i, &info)) /* its layers have none */
            continue;
        mute += !info.n_hits || !info.n_misses || !info.n_streamed || !info.read_bytes ||
                !(info.bus_bytes_s > 0) || !(info.wait_ms > 0) ||
                info.device_bytes != p->expert_bytes;
        const uint64_t planned = p->total_bytes - p->reserve_bytes;
        beyond += mem[i].used_bytes > planned;
        other += r->split && mem[i].used_bytes != planned; /* those open nothing for early ones */
        wrong += d->experts->n_wrong(d);
        sum.n_experts += info.n_experts;
        sum.n_slots += info.n_slots;
        sum.n_layers = info.n_layers + (r->split ? 0 : sum.n_layers); /* each rank has all */
        sum.n_hits += info.n_hits;
        sum.n_swaps += info.n_swaps;
        sum.host_bytes += info.host_bytes;
    }
    mute += half(r) && !sum.n_swaps;
    say(r, "devices where nothing was counted, copied or streamed", mute);
    say(r, "devices with bytes beyond the plan", beyond);
    say(r, "devices with other bytes than planned", other);
    say(r, "slots and tables that are wrong", wrong);
    say(r, "accounts of devices are not the model's",
        sum.n_experts != all.n_experts || sum.n_slots != all.n_slots || sum.n_hits != all.n_hits ||
            sum.n_layers != all.n_layers || sum.n_swaps != all.n_swaps ||
            sum.host_bytes != all.host_bytes);
    return OK;
}

static status check_part(experts_rig *r, err *e)
{
    const carat_session_options so = {
        .n_ctx = CTX, .chunk = 40, .checkpoint_mb = -1, .kv_k = "f16"};
    double wrong;
    status st;
    if ((st = carat_session_open(r->whole, &so, &r->a, e)) ||
        (st = carat_session_open(r->some, &so, &r->b, e)) ||
        (st = follow(r, PROMPT, STEPS, &wrong, e)))
        return st;
    say(r, "a long prompt and steps: passes that differ", wrong);
    if ((st = follow(r, 3, STEPS, &wrong, e)))
        return st;
    say(r, "a short prompt and steps: passes that differ", wrong);
    if ((st = check_devices(r, &so, e)) || (st = side_by_side(r, e)))
        return st;
#ifdef EMU_CAN_FAIL
    if ((st = copies_that_fail(r, e)))
        return st;
#endif
    carat_reset(r->a); /* or one session has keys of an answer where the other has a prompt's */
    carat_reset(r->b);
    carat_model_park(r->some);
    if ((st = carat_model_unpark(r->some, e)) || (st = follow(r, PROMPT / 2, 4, &wrong, e)))
        return st;
    say(r, "after it was parked: passes that differ", wrong);
    return OK;
}

/* The counts of a run are beside the model's file. What is no such file of this model is ignored,
 * and stays. */
static status check_counts(experts_rig *r, const char *path, const carat_model_options *o, err *e)
{
    static const char other[] = "carat experts\nand something else";
    char counts[300], back[sizeof other] = "";
    carat_expert_info info = {0};
    carat_model *m;
    snprintf(counts, sizeof counts, "%s.experts", path);
    say(r, "no counts were kept", access(counts, R_OK) != 0);
    FILE *to = fopen(counts, "wb");
    if (to) {
        fwrite(other, 1, sizeof other, to);
        fclose(to);
    }
    status st = carat_model_open(path, o, &m, e);
    if (st)
        return st;
    carat_experts(m, &info);
    say(r, "a damaged file of counts would be replaced", info.counts_file != NULL);
    carat_model_close(m);
    if ((to = fopen(counts, "rb"))) {
        say(r, "a damaged file of counts was changed",
            fread(back, 1, sizeof back, to) != sizeof other || memcmp(back, other, sizeof other));
        fclose(to);
    }
    unlink(counts);
    return OK;
}

/* Of a tensor split the whole model is on one device, as one rank. */
enum { PLACES = 6 };
typedef struct place {
    const char *part, *gpus, *gpu_split;
} place;
static const place by_layers[PLACES] = {{"50%", NULL, NULL},    {"50%", "0,0", NULL},
                                        {"50%", "0,0", "1,2"},  {"0.6", NULL, NULL},
                                        {"0.6", "0,0,0", NULL}, {"0.9", NULL, NULL}};
static const place by_tensors[PLACES] = {{"50%", "0,0", NULL},     {"0.6", "0,0,0,0", NULL},
                                         {"50%", NULL, NULL},      {"0.6", "0,0,0", NULL},
                                         {"50%", "0,0,0,0", NULL}, {"0.9", "0,0", NULL}};

/* gpu_layers: the CPU has the layers before them, with their experts; 0: none. */
static void check_file(experts_rig *r, const char *path, int32_t gpu_layers)
{
    const place *c = r->split ? by_tensors : by_layers;
    err e = {0};
    carat_model_info info;
    const carat_model_options whole = {
        .device = "cuda", .split = r->split, .gpu_layers = gpu_layers, .experts_gpu = "100%"};
    status st = carat_model_open(path, &whole, &r->whole, &e);
    if (!st) {
        carat_model_get_info(r->whole, &info);
        r->n_vocab = (size_t)info.n_vocab;
        r->x = mem_calloc(2 * r->n_vocab, sizeof *r->x);
        r->y = r->x + r->n_vocab;
    }
    for (int i = 0; i < (r->g->quick || gpu_layers ? 2 : PLACES) && !st; i++) {
        const carat_model_options o = {.device = c[i].gpus ? NULL : "cuda",
                                       .gpus = r->gpus = c[i].gpus,
                                       .gpu_split = c[i].gpu_split,
                                       .split = r->split,
                                       .gpu_layers = gpu_layers,
                                       .draft = "lookup",
                                       .experts_prefetch = r->split ? "off" : NULL,
                                       .experts_gpu = r->part = c[i].part};
        st = carat_model_open(path, &o, &r->some, &e);
        if (st == E_ARG && c[i].gpus && !r->split) { /* too few layers for so many */
            e = (err){0};
            st = OK;
            continue;
        }
        st = st ? st : check_part(r, &e);
        carat_session_close(r->b);
        carat_session_close(r->a);
        carat_model_close(r->some);
        r->a = r->b = NULL;
        r->some = NULL;
        st = st ? st : check_counts(r, path, &o, &e);
    }
    if (st)
        failed(r->g, r->split ? "tensor slots" : "experts",
               text("%s %s: %s", r->name, r->type, e.text));
    mem_free(r->x);
    carat_model_close(r->whole);
    r->whole = NULL;
}

/* Budgets of MiB, of which the reserve of the device is the most: what is used stays within them,
 * more never means fewer experts, and what is too little has a sentence. Counts of earlier runs are
 * read, unless they are another model's. gpus NULL: one device; else two that share the memory, of
 * layers, or of ranks, which leave nothing to the CPU. */
static void check_budgets(rig *g, const char *gpus, const char *split)
{
    fidelity f;
    carat_expert_info info;
    carat_device_memory mem[CARAT_DEVICES_MAX];
    char counts[300];
    double beyond = 0, wasted = 0, fewer = 0, mute = 0, lost = 0;
    int32_t before = -1, n_refused = 0, n_host = 0, n_part = 0, n_whole = 0;
    uint64_t reserve = (gpus ? 2 : 1) * g->gpu->reserve_bytes;
    const char *what = split ? "budgets of ranks" : gpus ? "budgets of two" : "budgets";
    const char *group = split ? "tensor slots" : "experts";
    fidelity_open(&f, "moe");
    const char *path = fidelity_write(&f, NULL);
    snprintf(counts, sizeof counts, "%s.experts", path);
    const carat_session_options so = {.n_ctx = 64, .chunk = 16, .checkpoint_mb = -1};
    for (int64_t mb = (int64_t)(reserve >> 20) + 1; mb < (int64_t)(reserve >> 20) + 24; mb++) {
        carat_model *m = NULL;
        carat_session *s = NULL;
        err e = {0};
        const carat_model_options o = {.device = gpus ? NULL : "cuda",
                                       .gpus = gpus,
                                       .split = split,
                                       .gpu_mb = mb,
                                       .experts_prefetch = gpus ? "off" : NULL,
                                       .session = &so};
        status st = carat_model_open(path, &o, &m, &e);
        status late = st ? OK : carat_session_open(m, &so, &s, &e);
        lost += late != OK; /* the session for which room was left */
        n_refused += st != OK;
        st = st ? st : late;
        mute += st && (st != E_MEMORY || !strstr(e.text, "MiB"));
        if (!st) {
            bool part = carat_experts(m, &info);
            carat_model_info about;
            carat_model_get_info(m, &about);
            int32_t slots = part ? info.n_slots : INT32_MAX;
            if (!part && about.fit >= CARAT_FIT_EXPERTS) { /* the CPU computes experts, or layers */
                slots = -1;
                n_host++;
            }
            carat_memory(m, mem);
            const uint64_t used = mem[0].used_bytes + (gpus ? mem[1].used_bytes : 0) + reserve;
            beyond += used > (uint64_t)mb << 20;
            wasted += part && used + (512 << 10) < (uint64_t)mb << 20;
            fewer += slots < before;
            before = slots;
            n_part += part;
            n_whole += slots == INT32_MAX;
        }
        carat_session_close(s);
        carat_model_close(m);
    }
    verdict(g, group, text("%s: exceeded", what), beyond, 0);
    verdict(g, group, text("%s: half a MiB has no slots", what), wasted, 0);
    verdict(g, group, text("%s: fewer experts in a larger one", what), fewer, 0);
    verdict(g, group, text("%s: no sentence", what), mute, 0);
    verdict(g, group, text("%s: a model that fits, and its session does not", what), lost, 0);
    verdict(g, group,
            text("%s: %d too small, %d without slots, %d of a part, %d of all", what, n_refused,
                 n_host, n_part, n_whole),
            (n_host > 0) == (split != NULL) || (!split && !n_part) || !n_whole, 0);
    unlink(counts);
    unlink(path);
    fidelity_close(&f);
}

/* The bundled model, whose text must be the same. split: "tensor", of a whole rank and two with
 * slots; or NULL. */
static void check_bundled(rig *g, const char *split)
{
    static const char *const part[] = {"100%", "50%", "25%"};
    const carat_session_options so = {.n_ctx = 128, .checkpoint_mb = -1};
    int32_t id[32];
    answer text_of[3] = {{.n = 0}};
    double wrong = 0;
    err e = {0};
    char *bytes = NULL;
    size_t n_bytes = 0;
    status st = file_read_all("models/demo.gguf", 64 << 20, &bytes, &n_bytes, &e);
    for (int i = 0; i < 3 && !st; i++) {
        const carat_model_options o = {.device = split && i ? NULL : "cuda",
                                       .gpus = split && i ? "0,0" : NULL,
                                       .split = split,
                                       .experts_gpu = part[i],
                                       .session = &so};
        carat_generate_options go = {.max_tokens = ANSWER};
        carat_model *m = NULL;
        carat_session *s = NULL;
        static const char words[] = "What is the capital of France?";
        int64_t n = 0;
        st = carat_model_open_bytes(bytes, n_bytes, "demo", &o, &m, &e);
        st = st ? st : carat_session_open(m, &so, &s, &e);
        if (!st) {
            n = carat_tokenize(m, words, sizeof words - 1, 0, id, 32, &e);
            carat_sampling_default(m, &go.sampling);
            go.sampling.temperature = 0;
            go.sampling.ignore_eog = true;
            st = carat_generate(s, id, n, &go, keep_token, &text_of[i], NULL, &e);
        }
        wrong += text_of[i].n != ANSWER ||
                 memcmp(text_of[i].id, text_of[0].id, sizeof(int32_t) * ANSWER) != 0;
        carat_session_close(s);
        carat_model_close(m);
    }
    mem_free(bytes);
    if (st)
        failed(g, split ? "tensor slots" : "experts", e.text);
    else
        verdict(g, split ? "tensor slots" : "experts", "bundled model: greedy texts that differ",
                wrong, 0);
}

/* Ranks of a tensor split keep the counts of the model, whatever their number, and other splits
 * read them. */
static void check_counts_of_ranks(rig *g, const char *name, num_type type)
{
    static const char *const gpus[] = {"0", "0,0", "0,0,0", "0,0,0,0"};
    const carat_session_options so = {.n_ctx = CTX, .chunk = 40, .checkpoint_mb = -1};
    fidelity f;
    char counts[300], *bytes[2] = {NULL};
    size_t n_bytes[2] = {0};
    double differ = 0;
    err e = {0};
    carat_expert_info info = {0};
    carat_model *m = NULL;
    fidelity_open(&f, name);
    const fidelity_file v = {.type = type};
    const char *path = fidelity_write(&f, &v);
    snprintf(counts, sizeof counts, "%s.experts", path);
    status st = OK;
    for (int i = 0; i < 4 && !st; i++) {
        const carat_model_options o = {.gpus = gpus[i], .split = "tensor", .experts_gpu = "50%"};
        carat_session *s = NULL;
        unlink(counts);
        st = carat_model_open(path, &o, &m, &e);
        st = st ? st : carat_session_open(m, &so, &s, &e);
        st = st ? st : carat_eval(s, f.tokens, PROMPT, NULL, NULL, &e);
        for (int32_t k = 0; k < STEPS && !st; k++)
            st = carat_append(s, f.tokens + k, 1, false, NULL, &e);
        carat_session_close(s);
        carat_model_close(m);
        st = st ? st : file_read_all(counts, 1 << 20, &bytes[i > 0], &n_bytes[i > 0], &e);
        differ += i && !st &&
                  (n_bytes[0] != n_bytes[1] || memcmp(bytes[0], bytes[1], n_bytes[0]) != 0);
        if (i)
            mem_free(bytes[1]);
    }
    const carat_model_options layers = {.device = "cuda", .experts_gpu = "50%"};
    st = st ? st : carat_model_open(path, &layers, &m, &e);
    if (st) {
        failed(g, "tensor slots", text("counts, %s: %s", name, e.text));
    } else {
        carat_experts(m, &info);
        carat_model_close(m);
        verdict(g, "tensor slots", text("counts, %s: those that differ", name), differ, 0);
        verdict(g, "tensor slots", text("counts, %s: not read without a split", name),
                !info.counts_file, 0);
    }
    mem_free(bytes[0]);
    unlink(counts);
    unlink(path);
    fidelity_close(&f);
}

void check_expert_slots(rig *g)
{
    static const char *const names[] = {"moe", "laguna", "qwen35moe", "qwen3moe"};
    static const num_type types[] = {NUM_Q8_0, NUM_F32, NUM_BF16};
    if (my_turn(g, "experts"))
        check_budgets(g, NULL, NULL);
    if (my_turn(g, "experts"))
        check_budgets(g, "0,0", NULL);
    if (my_turn(g, "experts"))
        check_bundled(g, NULL);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < (g->quick ? 2 : 3); k++) {
            if (!my_turn(g, "experts") || (g->quick && i && k))
                continue;
            experts_rig r = {.g = g, .name = names[i], .type = num_name(types[k])};
            fidelity_open(&r.f, names[i]);
            const fidelity_file v = {.type = types[k] == NUM_F32 ? 0 : types[k]};
            const char *path = fidelity_write(&r.f, &v);
            char counts[300];
            check_file(&r, path, 0);
            if (!i && !k) { /* in both, the CPU has the first layers */
                r.type = "q8_0, CPU first";
                check_file(&r, path, 2);
            }
            snprintf(counts, sizeof counts, "%s.experts", path);
            unlink(counts);
            unlink(path);
            fidelity_close(&r.f);
        }
}

/* Allocations of the host that fail while ranks with slots are opened: a sentence, and the next one
 * opens. Not all of them, because a model takes thousands. */
static void check_failing_ranks(rig *g)
{
    const carat_model_options o = {.gpus = "0,0", .split = "tensor", .experts_gpu = "50%"};
    const fidelity_file v = {.type = NUM_BF16};
    fidelity f;
    double wrong = 0;
    int64_t n = 0, n_failed = 0;
    fidelity_open(&f, "gpt-oss");
    const char *path = fidelity_write(&f, &v);
    for (bool hit = true; hit; n += 1 + n / (g->quick ? 2 : 8)) {
        carat_model *m = NULL;
        err e = {0};
        mem_fail_after(n);
        const status st = carat_model_open(path, &o, &m, &e);
        hit = mem_fail_hit();
        mem_fail_after(-1);
        const bool is_wrong = hit ? st != E_MEMORY || m != NULL : st != OK;
        if (is_wrong)
            printf("allocation %" PRId64 "%s: status %d, %s\n", n, hit ? " fails" : "", st, e.text);
        wrong += is_wrong;
        n_failed += hit;
        carat_model_close(m);
    }
    verdict(g, "tensor slots", text("%d failing allocations: other ends", (int)n_failed), wrong, 0);
    unlink(path);
    fidelity_close(&f);
}

/* Ranks of a tensor split, each with slots for its part of every expert (of floats, and of the
 * bundled model), or for some of the experts. */
void check_rank_slots(rig *g)
{
    static const struct {
        const char *name;
        num_type type;
    } files[] = {{"gpt-oss", NUM_BF16},
                 {"qwen3moe", NUM_Q8_0},
                 {"moe", NUM_Q8_0},
                 {"moe", NUM_F32},
                 {"gpt-oss", NUM_Q8_0}};
    for (int i = 0; i < 2; i++)
        if (my_turn(g, "tensor slots"))
            check_counts_of_ranks(g, files[i].name, files[i].type);
    if (my_turn(g, "tensor slots"))
        check_budgets(g, "0,0", "tensor");
    if (my_turn(g, "tensor slots"))
        check_failing_ranks(g);
    if (my_turn(g, "tensor slots"))
        check_bundled(g, "tensor");
    for (int i = 0; i < (g->quick ? 2 : 5); i++) {
        if (!my_turn(g, "tensor slots"))
            continue;
        const num_type type = files[i].type;
        experts_rig r = {
            .g = g, .name = files[i].name, .type = num_name(type), .split = "tensor"};
        fidelity_open(&r.f, r.name);
        const fidelity_file v = {.type = type == NUM_F32 ? 0 : type};
        const char *path = fidelity_write(&r.f, &v);
        check_file(&r, path, 0);
        unlink(path);
        fidelity_close(&r.f);
    }
}
