/* check_faults.c - a GPU of several that share a model's layers fails, or does not go on: in the
 * middle of a prompt, of an answer's token, and in a copy to the next GPU. The call ends with a
 * sentence, and so does every later one of that model. Another model answers, and closing
 * waits for nothing.
 *
 * The emulator fails and stalls launches and copies (emu_trace.h), and counts waits that would
 * never end. On a GPU a function of the host holds a stream up.
 */
#include "base/mem.h"
#include "backend/cuda/cuda_int.h"
#include "engine/batch_int.h"
#include "engine/stages.h"
#include "tests/cuda/check_int.h"
#include "tests/fidelity_model.h"
#ifdef EMU_CAN_FAIL
#include "tests/cuda/emu_trace.h"
#else
#include <time.h>
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STAGES = 3, PROMPT = 24, WARM = 4 };
typedef enum moment { IN_PROMPT, IN_TOKEN, IN_COPY, MOMENTS } moment;
static const char *const moment_name[] = {"a prompt", "a token", "a copy"};

static cudaStream_t stream_of(const carat_model *m, int32_t k)
{
    return ((cuda_device *)model_device(m, stage_side(m, k))->self)->stream;
}

static void set_patience(const carat_model *m, int32_t ms)
{
    for (int32_t k = 0; k < STAGES; k++)
        ((cuda_device *)model_device(m, stage_side(m, k))->self)->stall_ms = ms;
}

typedef struct failing {
    const char *split, *experts; /* split NULL: by layers; experts: the part that has slots, or NULL */
    carat_model *m;
    carat_session *s;
    const fidelity *f;
    float *x;
} failing;

static const char *name_of(const failing *t)
{
    return t->split ? (t->experts ? "rank with slots" : "rank")
           : t->experts ? "stage with slots"
                        : "stage";
}

static status open_failing(failing *t, const char *path, err *e)
{
    const carat_session_options so = {.n_ctx = 64, .chunk = 8, .checkpoint_mb = -1};
    const carat_model_options o = {.gpus = "0,0,0",
                                   .split = t->split,
                                   .experts_gpu = t->experts,
                                   .experts_cpu = t->split ? NULL : t->experts,
                                   .n_threads = 1};
    status st = carat_model_open(path, &o, &t->m, e);
    st = st ? st : carat_session_open(t->m, &so, &t->s, e);
    st = st ? st : carat_eval(t->s, t->f->tokens, PROMPT, t->x, NULL, e);
    for (int32_t i = 0; i < WARM && !st; i++) /* recorded and replayed */
        st = carat_append(t->s, t->f->tokens + PROMPT + i, 1, false, t->x, e);
    return st;
}

static void close_failing(failing *t)
{
    carat_session_close(t->s);
    carat_model_close(t->m);
    t->s = NULL;
    t->m = NULL;
}

static status run(failing *t, bool prompt, err *e)
{
    if (!prompt)
        return carat_append(t->s, t->f->tokens + PROMPT + WARM, 1, false, t->x, e);
    carat_reset(t->s);
    return carat_eval(t->s, t->f->tokens, PROMPT, t->x, NULL, e);
}

/* Devices that would be waited for again. */
static int not_given_up(const carat_model *m)
{
    int n = 0;
    for (int32_t k = 0; k < STAGES; k++)
        n += !((cuda_device *)model_device(m, stage_side(m, k))->self)->stalled;
    return n;
}

/* The failed call, and a later one. kept: devices that the first one has not given up. */
static int wrong_ends(failing *t, bool prompt, int *kept)
{
    int n_wrong = 0;
    for (int i = 0; i < 2; i++) {
        err e = {0};
        status st = run(t, prompt || i, &e);
        *kept = i ? *kept : not_given_up(t->m);
        n_wrong += st != E_IO || !strstr(e.text, "cuda");
        if (st != E_IO)
            printf("       ended with %d: %s\n", (int)st, e.text);
    }
    return n_wrong;
}

/* Does another model on the same GPU answer? 1: it does not. */
static int other_fails(failing *t, const char *path)
{
    const carat_session_options so = {.n_ctx = 64, .chunk = 8, .checkpoint_mb = -1};
    carat_model *m = NULL;
    carat_session *s = NULL;
    int n_wrong = 0;
    err e = {0};
    if (carat_model_open(path, &(carat_model_options){.device = "cuda"}, &m, &e) ||
        carat_session_open(m, &so, &s, &e) || carat_eval(s, t->f->tokens, 8, t->x, NULL, &e))
        n_wrong++;
    carat_session_close(s);
    carat_model_close(m);
    return n_wrong;
}

#ifdef EMU_CAN_FAIL
/* The number of the launch or copy on stage k that the fault shall hit; 0: it has none, because the
 * first rank's stream has the recording of all. */
static int hit(failing *t, int32_t k, moment when, err *e)
{
    const int id = emu_stream_number(stream_of(t->m, k));
    size_t n_ops, crossing = (size_t)t->m->core.n_embd * sizeof(float);
    int n = 0, at = 0;
    emu_trace_begin(1, 1);
    status st = run(t, when != IN_TOKEN, e);
    const emu_traced *op = emu_trace_end(&n_ops);
    for (size_t i = 0; i < n_ops && !st; i++) {
        if (op[i].stream != id)
            continue;
        n++;
        if (when == IN_COPY && op[i].to && op[i].n_bytes >= crossing && !at &&
            (k < STAGES - 1 || t->split))
            at = op[i].n_bytes % crossing ? 0 : n;
    }
    return st ? -1 : when == IN_COPY ? at : n / 2;
}

static status check_fault(rig *g, const char *path, const fidelity *f, const failing *of, int32_t k,
                          moment when, emu_fault how, err *e)
{
    failing t = {.split = of->split,
                 .experts = of->experts,
                 .f = f,
                 .x = mem_alloc((size_t)f->n_vocab * sizeof(float))};
    const int waits = emu_waits_forever();
    status st = t.x ? open_failing(&t, path, e) : err_memory(e, "a check", 0);
    int n = st ? 0 : hit(&t, k, when, e);
    if (!st && n > 0 && when == IN_TOKEN) /* the token came; the next one is another */
        st = carat_rewind(t.s, PROMPT + WARM) ? OK : err_set(e, E_ARG, "no way back");
    if (!st && n > 0) {
        set_patience(t.m, 0);
        emu_fault_after(stream_of(t.m, k), n, how);
        int kept = 0, wrong = wrong_ends(&t, when != IN_TOKEN, &kept) + other_fails(&t, path);
        close_failing(&t);
        const char *what = text("%s %d %s in %s", name_of(of), k,
                                how == EMU_STALL ? "stalls" : "fails", moment_name[when]);
        char name[96];
        snprintf(name, sizeof name, "%s", what);
        verdict(g, "faults", text("%s: ends without a sentence", name), wrong, 0);
        verdict(g, "faults", text("%s: waits that never end", name), emu_waits_forever() - waits,
                0);
        if (how == EMU_STALL)
            verdict(g, "faults", text("%s: devices that are not given up", name), kept, 0);
    } else if (!st && n < 0) {
        st = e->status;
    }
    close_failing(&t);
    mem_free(t.x);
    return st;
}
#else
static volatile bool held;

static void hold(void *user)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    (void)user;
    while (held)
        nanosleep(&pause, NULL);
}

static status check_held(rig *g, const char *path, const fidelity *f, const failing *of, int32_t k,
                         bool prompt, err *e)
{
    const char *what = name_of(of);
    failing t = {.split = of->split,
                 .experts = of->experts,
                 .f = f,
                 .x = mem_alloc((size_t)f->n_vocab * sizeof(float))};
    status st = t.x ? open_failing(&t, path, e) : err_memory(e, "a check", 0);
    if (!st) {
        set_patience(t.m, 500);
        held = true;
        cudaLaunchHostFunc(stream_of(t.m, k), hold, NULL);
        int kept = 0, wrong = wrong_ends(&t, prompt, &kept);
        held = false; /* memory of one GPU is freed when all of its streams get on */
        wrong += other_fails(&t, path);
        verdict(
            g, "faults",
            text("%s %d is held up in %s: ends without a sentence", what, k, moment_name[!prompt]),
            wrong, 0);
        verdict(g, "faults",
                text("%s %d is held up in %s: devices that are not given up", what, k,
                     moment_name[!prompt]),
                kept, 0);
    }
    close_failing(&t);
    mem_free(t.x);
    return st;
}
#endif

/* Devices of a ring, this one included. */
static int ring_of(const device *d)
{
    const cuda_device *c = d->self, *at = c->peer;
    int n = 1;
    for (; at && at != c && n < 100; at = at->peer)
        n++;
    return n;
}

/* Copies go from one to the next, and past one, in any order. Then the devices are closed. */
static status check_rings(rig *g, err *e)
{
    enum { ENDS = 4 };
    static const int to[][2] = {{0, 1}, {2, 3}, {0, 3}, {1, 2}, {0, 1}, {3, 0}},
                     n_after[] = {2, 2, 4, 4, 4, 4}, closed[] = {3, 0, 2, 1};
    device *d[ENDS] = {NULL};
    void *at[ENDS] = {NULL};
    int n_wrong = 0;
    status st = OK;
    for (int i = 0; i < ENDS && !st; i++)
        if (!(st = device_open_cuda(&d[i], NULL, e)) && !(at[i] = d[i]->alloc(d[i], 64)))
            st = err_memory(e, "a check", 64);
    for (int i = 0; i < 6 && !st; i++) {
        device *from = d[to[i][0]], *other = d[to[i][1]];
        from->send(from, other, at[to[i][1]], at[to[i][0]], 64, SEND_BEHIND_BOTH);
        n_wrong += ring_of(from) != n_after[i] || ring_of(other) != n_after[i];
    }
    for (int k = 0; k < ENDS; k++) {
        const int i = closed[k];
        if (at[i])
            d[i]->release(d[i], at[i], 64);
        device_close(d[i]);
        for (int j = k + 1; j < ENDS && !st; j++)
            n_wrong += ring_of(d[closed[j]]) != ENDS - 1 - k;
    }
    if (!st)
        verdict(g, "faults", "devices that do not know each other", n_wrong, 0);
    return st;
}

#ifdef EMU_CAN_FAIL
static bool tells_lost(const carat_model *m, int gpu)
{
    char text[48];
    snprintf(text, sizeof text, "; GPU %d is passed over: GPU %d", gpu, gpu);
    const char *at = strstr(m->device_why, text);
    return at && !strstr(at + strlen(text), text);
}

/* Without a device's name a model takes the first GPU that can be opened. */
static status check_lost(rig *g, const char *path, err *e)
{
    enum { GPUS = 2 };
    const carat_model_options none = {0}, named = {.device = "cuda:0"};
    int n_wrong = 0;
    status st = OK;
    setenv("CARAT_PROMPTS", "bf16", 1); /* else the second is timed, for minutes */
    for (int lost = -1; lost < GPUS && !st; lost++) {
        carat_model *m = NULL;
        err why = {0};
        emu_lose_gpu(lost);
        st = carat_model_open(path, &none, &m, e);
        const device *d = st ? NULL : device_bare(m->dev);
        n_wrong += !d || d->kind != DEVICE_CUDA || d->number != (lost == 0) ||
                   (lost == 0) != tells_lost(m, 0);
        carat_model_close(m);
        m = NULL;
        n_wrong += (carat_model_open(path, &named, &m, &why) != OK) != (lost == 0);
        carat_model_close(m);
    }
    emu_lose_gpu(-1);
    unsetenv("CARAT_PROMPTS");
    if (!st)
        verdict(g, "faults", "models on a GPU beside one that is lost", n_wrong, 0);
    return st;
}

/* A model that does not fit one GPU takes two. One of them is lost when it is opened for the n-th
 * time: alone, beside the other, or after the choice. The model is on the other one, or on the CPU.
 */
static status check_lost_later(rig *g, err *e)
{
    enum { GPUS = 2, OPENS = 8 };
    const carat_session_options so = {.n_ctx = 64, .chunk = 16, .checkpoint_mb = -1};
    const carat_model_options o = {.gpu_mb = (int64_t)(g->gpu->reserve_bytes >> 20) + 4,
                                   .session = &so};
    int n_wrong = 0, n_lost = 0, n_kept = 0, n_told = 0;
    status st = OK;
    fidelity f;
    fidelity_open(&f, "moe");
    const char *path = fidelity_write(&f, NULL);
    setenv("CARAT_PROMPTS", "bf16", 1);
    for (int lost = 0; lost < GPUS && !st; lost++)
        for (int n = 1; n <= OPENS && !st; n++) {
            carat_model *m = NULL;
            emu_lose_gpu_at(lost, n);
            st = carat_model_open(path, &o, &m, e);
            const bool came = emu_lost_gpu() == lost;
            emu_lose_gpu(-1);
            for (int32_t k = 0; !st && k < m->n_stages; k++) {
                const device *d = device_bare(model_device(m, stage_side(m, k)));
                n_wrong += came && d->kind == DEVICE_CUDA && d->number == lost;
                n_kept += came && d->kind == DEVICE_CUDA;
            }
            n_wrong += !st && !came && m->n_stages != GPUS;
            n_told += came && !st && tells_lost(m, lost);
            n_lost += came;
            carat_model_close(m);
            if (!came)
                break;
        }
    emu_lose_gpu(-1);
    unsetenv("CARAT_PROMPTS");
    unlink(path);
    fidelity_close(&f);
    if (!st)
        verdict(g, "faults",
                text("GPUs lost while they are chosen (%d times, %d models on the other, %d told): "
                     "wrong devices",
                     n_lost, n_kept, n_told),
                n_wrong + (n_lost < 4) + (n_kept < n_lost) + (n_told < n_lost), 0);
    return st;
}

/* A tensor split over all GPUs but the one that cannot be opened, whichever it is, which is told
 * once. What the GPUs are refused for is told: a model is split once. */
static status check_lost_rank(rig *g, const char *path, err *e)
{
    enum { GPUS = 2 };
    int n_wrong = 0;
    const carat_model_options all = {.split = "tensor", .card = "8.6", .strict = true};
    carat_model_options plain = all, named = all;
    carat_model *m = NULL;
    setenv("CARAT_PROMPTS", "bf16", 1);
    err why = {0};
    const status refused = carat_model_open(path, &all, &m, &why);
    n_wrong += refused != E_UNSUPPORTED || !strstr(why.text, "cuda");
    if (n_wrong)
        printf("       %d: %s\n", (int)refused, why.text);
    carat_model_close(m);
    plain.strict = named.strict = false;
    named.gpus = "0,1";
    status st = OK;
    for (int lost = 0; lost < GPUS && !st; lost++) {
        m = NULL;
        emu_lose_gpu(lost);
        st = carat_model_open(path, &plain, &m, e);
        const device *d = st ? NULL : device_bare(m->dev);
        n_wrong += !st && (d->kind != DEVICE_CUDA || d->number == lost || m->n_stages != 1 ||
                           m->core.n_ranks != 1 || !tells_lost(m, lost));
        carat_model_close(m);
        m = NULL;
        n_wrong += carat_model_open(path, &named, &m, &why) == OK;
        carat_model_close(m);
    }
    emu_lose_gpu(-1);
    unsetenv("CARAT_PROMPTS");
    if (!st)
        verdict(g, "faults", "a tensor split beside a GPU that is lost", n_wrong, 0);
    return st;
}
#endif

static void check_split(rig *g, const failing *of)
{
    fidelity f;
    err e = {0};
    status st = OK;
    const bool stages = !of->split && !of->experts;
    if (!my_turn(g, "faults"))
        return;
    fidelity_open(&f, of->experts ? "qwen3moe" : "qwen3");
    const char *path =
        fidelity_write(&f, of->experts ? &(fidelity_file){.type = NUM_Q8_0} : NULL);
    if (stages)
        st = check_rings(g, &e);
#ifdef EMU_CAN_FAIL
    if (of->split && !of->experts)
        st = check_lost_rank(g, path, &e);
    else if (stages)
        st = st ? st : check_lost(g, path, &e);
    if (stages)
        st = st ? st : check_lost_later(g, &e);
#endif
    for (int32_t k = g->brief; k < (g->brief ? 2 : STAGES) && !st; k++)
        for (int i = 0; i < MOMENTS && !st; i++) {
#ifdef EMU_CAN_FAIL
            st = check_fault(g, path, &f, of, k, (moment)i, EMU_FAIL, &e);
            st = st ? st : check_fault(g, path, &f, of, k, (moment)i, EMU_STALL, &e);
#else
            st = i < IN_COPY ? check_held(g, path, &f, of, k, i == IN_PROMPT, &e) : OK;
#endif
        }
    if (st)
        failed(g, "faults", e.text);
    char counts[300];
    snprintf(counts, sizeof counts, "%s.experts", path);
    unlink(counts);
    unlink(path);
    fidelity_close(&f);
}

void check_faults(rig *g)
{
    check_split(g, &(failing){0});
    check_split(g, &(failing){.split = "tensor"});
    check_split(g, &(failing){.experts = "50%"});
    check_split(g, &(failing){.split = "tensor", .experts = "50%"});
}
