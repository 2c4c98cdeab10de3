/* check_draft_device.c - a drafter on a device of its own, a GPU beside the model's (here the same one,
 * opened again) or the CPU: answers are those without a drafter, and on a GPU each has as many
 * drafted tokens as with the drafter on the model's own. A smaller model reads tokens alone; DFlash
 * and NextN read hidden states, embeddings and logits that cross.
 *
 * In the emulator the order of copies between the devices is traced, and the drafter's device fails
 * and stalls (emu_trace.h).
 */
#include "base/mem.h"
#include "backend/cuda/cuda_int.h"
#include "engine/engine_int.h"
#include "spec/work.h"
#include "tests/cuda/check_int.h"
#include "tests/splits_rig.h"
#include "tests/test.h"
#ifdef EMU_CAN_FAIL
#include "tests/cuda/emu_trace.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- The order of what crosses ----------------------------------------------------------------
 */

#ifdef EMU_CAN_FAIL
enum { ROWS = 72, COLS = 16, PASSES = 6 }; /* rows of a prompt: chunks of prompts may overlap */

/* An op of the device that the pass is on. */
static void copy_some(pass *p, mat x)
{
    x.rows /= 2;
    op_copy(p, pass_mat(p, x.rows, 1, COLS), x);
}

/* A pass as a drafter's: rows go to its device and are read there, and rows come back. Every other
 * pass has them at another place of its scratch. */
static status cross(const draft_work *w, int32_t i, err *e)
{
    static chain c;
    pass p;
    chain_init(&c, ROWS, 0, 0);
    c.st.prompt = true;
    work_begin(w, &p, &c.st);
    if (i % 2)
        pass_mat(&p, ROWS / 2, 1, COLS);
    pass_turn(&p, 1);
    mat x = pass_mat(&p, ROWS, 1, COLS);
    op_cross(&p, PASS_MAIN, (mat *const[]){&x}, 1);
    copy_some(&p, x);
    op_cross(&p, 1, (mat *const[]){&x}, 1);
    copy_some(&p, x);
    pass_end(&p);
    return pass_failed(&p) ? err_set(e, p.e.status, "%s", p.e.text) : OK;
}

/* The op of stream `of` that was enqueued last before `at`, or first behind it; NULL: none. */
static const emu_traced *neighbour(const emu_traced *op, size_t n, size_t at, int of, bool next)
{
    for (size_t i = at; next ? ++i < n : i-- > 0;)
        if (op[i].stream == of)
            return &op[i];
    return NULL;
}

/* A copy waits for all that its receiver was given before, and what the receiver is given later
 * waits for the copy. apart: the drafter has a device of its own; else the target's second one has
 * the embeddings. */
static status check_order(rig *g, bool apart, err *e)
{
    const work_sizes sizes = {.bytes = {1 << 20, 1 << 20}};
    device *dev[2] = {NULL, NULL};
    draft_work w = {0};
    const int n_want = 2 * PASSES;
    int n_crossings = 0, n_early = 0, n_late = 0;
    size_t n = 0;
    status st = device_open_cuda(&dev[0], NULL, e);
    st = st ? st : device_open_cuda(&dev[1], NULL, e);
    model target = {.n_sides = 2 - apart};
    memcpy(target.dev, apart ? dev + 1 : dev, (apart ? 1 : 2) * sizeof *dev);
    const draft_sizes z = {.dev = dev[0], .target_dev = apart ? dev[1] : NULL};
    st = st ? st : work_open(&w, &target, &z, &sizes, e);
    emu_trace_begin(1, 3);
    for (int32_t i = 0; i < PASSES && !st; i++)
        st = cross(&w, i, e);
    const emu_traced *op = emu_trace_end(&n);
    if (!st) {
        const int a = emu_stream_number(((cuda_device *)dev[0]->self)->stream),
                  b = emu_stream_number(((cuda_device *)dev[1]->self)->stream);
        for (size_t i = 0; i < n; i++) {
            if (!op[i].to || op[i].n_bytes != (size_t)ROWS * COLS * sizeof(float) ||
                (op[i].stream != a && op[i].stream != b))
                continue;
            const int to = op[i].stream == a ? b : a;
            const emu_traced *before = neighbour(op, n, i, to, false),
                             *next = neighbour(op, n, i, to, true);
            n_crossings++;
            n_early += before && !emu_ends_before(before, &op[i]);
            n_late += next && !emu_ends_before(&op[i], next);
        }
        const char *what = apart ? "a drafter's own device" : "embeddings elsewhere";
        verdict(g, "draftdevice order", text("%s: %d of %d copies", what, n_crossings, n_want),
                n_crossings != n_want, 0);
        verdict(g, "draftdevice order", text("%s: copies into what is still read", what), n_early,
                0);
        verdict(g, "draftdevice order", text("%s: ops that do not wait for their copy", what),
                n_late, 0);
    }
    work_close(&w);
    device_close(dev[1]);
    device_close(dev[0]);
    return st;
}

/* ---- Failures ------------------------------------------------------------------------------ */

enum { PROMPT = 8, ANSWER = 8 };

typedef struct heard {
    int32_t id[ANSWER], n;
    carat_timings t;
} heard;

static bool hear(void *user, const carat_event *ev)
{
    heard *h = user;
    if (ev->kind == CARAT_EV_TOKEN && h->n < ANSWER)
        h->id[h->n++] = ev->id;
    return true;
}

static cuda_device *held_cuda(const carat_model *m, int32_t i)
{
    return held_device(m, i)->self;
}

/* What the model answers, while the drafter's device fails or does not go on from its n-th launch
 * or copy on; 0: it does not. st: of opening; *ended: of the answer. */
static status answer(const char *path, const carat_model_options *o, int n, emu_fault how,
                     heard *out, err *ended, err *e)
{
    const carat_session_options so = {.n_ctx = 64, .chunk = PROMPT, .checkpoint_mb = -1};
    carat_generate_options opt = {.max_tokens = ANSWER,
                                  .speculation = {.n_max = 3, .tree_max = -1, .fixed = true}};
    int32_t ids[PROMPT];
    carat_model *m = NULL;
    carat_session *s = NULL;
    for (int32_t i = 0; i < PROMPT; i++)
        ids[i] = 5 + 7 * i + i * i;
    *out = (heard){.n = 0};
    status st = splits_open(path, *o, (split_place){.gpu = true}, &m, e);
    st = st ? st : carat_session_open(m, &so, &s, e);
    if (!st) {
        carat_sampling_default(m, &opt.sampling);
        opt.sampling.temperature = 0;
        opt.sampling.ignore_eog = true;
        for (int32_t i = 0; i < n_held_devices(m); i++)
            held_cuda(m, i)->stall_ms = 0;
        if (n)
            emu_fault_after(((cuda_device *)m->draft_dev->self)->stream, n, how);
        ended->status = carat_generate(s, ids, PROMPT, &opt, hear, out, &out->t, ended);
    }
    carat_session_close(s);
    carat_model_close(m);
    return st;
}

/* The answer is the one without a fault. If the device does not go on, it may end with a sentence.
 * Neither it nor closing the model waits for ever. */
static status check_faulty(rig *g, const split_case *c, err *e)
{
    static const int at[] = {1, 7, 60};
    const int waits = emu_waits_forever();
    int n_wrong = 0, n_ended = 0, n_drafted = 0;
    carat_model_options o;
    const char *path = split_case_write(c, &o);
    heard want, got;
    err ended = {0};
    o.draft = o.draft ? o.draft : path;
    o.draft_device = "cuda:0";
    status st = answer(path, &o, 0, EMU_FAIL, &want, &ended, e);
    if (!st && (ended.status || !want.t.n_drafted))
        st = err_set(e, E_ARG, "drafts without a fault: %s",
                     want.t.n_drafted ? ended.text : "none");
    for (int i = 0; i < 6 && !st; i++) {
        ended = (err){0};
        st = answer(path, &o, at[i / 2], i % 2 ? EMU_STALL : EMU_FAIL, &got, &ended, e);
        const bool same = !memcmp(got.id, want.id, (size_t)got.n * sizeof *got.id),
                   sentence = i % 2 && ended.status == E_IO && strstr(ended.text, "cuda");
        n_ended += ended.status != OK;
        n_drafted += got.t.n_drafted >= want.t.n_drafted;
        n_wrong += !same || (ended.status ? !sentence : got.n != want.n);
        if (ended.status && !sentence)
            printf("       ended with %d: %s\n", (int)ended.status, ended.text);
    }
    if (st)
        return st;
    verdict(g, "draftdevice faults", text("%s, %d end with an error: wrong ends", c->name, n_ended),
            n_wrong, 0);
    verdict(g, "draftdevice faults", text("%s: as many drafts as without", c->name), n_drafted, 0);
    verdict(g, "draftdevice faults", text("%s: waits that never end", c->name),
            emu_waits_forever() - waits, 0);
    return OK;
}
#endif

void check_draft_device(rig *g)
{
    const split_jobs j = {.session = {.n_ctx = 192, .chunk = 32, .checkpoint_mb = -1},
                          .n = g->quick ? 2 : 4,
                          .n_slots = 2,
                          .n_tokens = g->quick ? 4 : SPLITS_TOKENS,
                          .longest = g->quick ? 20 : 90,
                          .seed = 9,
                          .n_draft = 3};
    err e = {0};
#ifdef EMU_CAN_FAIL
    for (int apart = 0; apart < 2; apart++)
        if (my_turn(g, "draftdevice order") && check_order(g, apart, &e))
            failed(g, "draftdevice order", e.text);
    static const split_case faulty[] = {
        {.name = "DFlash", .size = "tiny-dense", .draft = "dflash-tiny"},
        {.name = "a model"}};
    for (int i = 0; i < 2; i++)
        if (my_turn(g, "draftdevice faults") && check_faulty(g, &faulty[i], &e))
            failed(g, "draftdevice faults", e.text);
#endif
    if (!my_turn(g, "draftdevice"))
        return;
    split_said *said = mem_calloc((size_t)(3 * j.n), sizeof *said);
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
