/* tensor_test.c - models split by tensors: the same bits on one device, two, three and four; what
 * cannot be split is refused.
 *
 * CPU devices stand for GPUs (device "cpu,cpu" and longer).
 */
#include "base/mem.h"
#include "carat.h"
#include "engine/engine_int.h"
#include "tests/fidelity_model.h"
#include "tests/splits_rig.h"
#include "tests/synth_file.h"
#include "tests/test.h"

#include <string.h>

enum { RANKS = SPLITS_MAX, N_PROMPT = 70, JOBS = 5 };

static carat_model *open_split(const char *path, int32_t n_ranks)
{
    carat_model *m;
    carat_error e = {0};
    CHECK_OK(splits_open(path, (carat_model_options){0},
                         (split_place){.split = "tensor", .n = n_ranks}, &m, &e),
             e);
    CHECK_EQ(m->core.n_ranks, n_ranks);
    return m;
}

/* A prompt, and with it a second one that shares its first half. */
typedef struct prompt {
    int32_t n, n_vocab;
    const int32_t *ids;
} prompt;

/* Logits behind the prompt, in chunks and then token by token; and of another end of it, for which
 * the session goes back. [2][n_vocab] */
static void evaluate(carat_model *m, const prompt *t, int32_t chunk, float *logits)
{
    carat_session *s;
    carat_error e = {0};
    carat_session_options o = {.n_ctx = t->n + 8, .chunk = chunk};
    int32_t *other = mem_alloc((size_t)t->n * sizeof *other);
    CHECK(other);
    memcpy(other, t->ids, (size_t)t->n * sizeof *other);
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    for (int32_t n = t->n - 3; n <= t->n; n++)
        CHECK_OK(carat_eval(s, t->ids, n, logits, NULL, &e), e);
    for (int32_t i = t->n - 2; i < t->n; i++)
        other[i] = (t->ids[i] + 1) % t->n_vocab;
    CHECK_OK(carat_eval(s, other, t->n, logits + t->n_vocab, NULL, &e), e);
    carat_session_close(s);
    mem_free(other);
}

/* How much later tokens attend to each, by queries of all heads of all ranks. */
static void importance(carat_model *m, const prompt *t, float *out)
{
    carat_session *s;
    carat_error e = {0};
    CHECK_OK(carat_session_open(m, &(carat_session_options){.n_ctx = t->n + 8}, &s, &e), e);
    CHECK_OK(carat_importance(s, t->ids, t->n, out, &e), e);
    carat_session_close(s);
}

/* near: how far the sums of segments may be from those of whole rows. */
static void same_on_any_number(const char *path, const prompt *t, double near)
{
    const int32_t chunks[] = {7, 64, 1};
    carat_error e = {0};
    carat_model *whole, *m[RANKS];
    CHECK_OK(carat_model_open(path, &(carat_model_options){.device = "cpu"}, &whole, &e), e);
    CHECK_EQ(t->n_vocab, whole->core.n_vocab);
    size_t n = 2 * (size_t)t->n_vocab;
    float *one = mem_calloc(n, sizeof *one), *more = mem_calloc(n, sizeof *more);
    CHECK(one && more);
    for (int32_t r = 0; r < RANKS; r++)
        m[r] = open_split(path, r + 1);
    for (int i = 0; i < test_trials(3); i++) {
        evaluate(whole, t, chunks[i], more);
        evaluate(m[0], t, chunks[i], one);
        CHECK_MSG(splits_distance(more, one, n) <= near, "%s is %g off", path,
                  splits_distance(more, one, n));
        for (int32_t r = 1; r < RANKS; r++) {
            evaluate(m[r], t, chunks[i], more);
            CHECK_MSG(!memcmp(one, more, n * sizeof *one), "%s on %d devices, chunks of %d", path,
                      r + 1, chunks[i]);
        }
    }
    for (int32_t r = 0; r < RANKS; r++)
        carat_model_close(m[r]);
    carat_model_close(whole);
    mem_free(one);
    mem_free(more);
}

static void random_prompt(int32_t *ids, int32_t n, int32_t n_vocab)
{
    for (int32_t i = 0; i < n; i++)
        ids[i] = (7 + 31 * i + i * i) % n_vocab;
}

/* Experts with gate and up in one tensor and in two, with biases, beside a dense unit, and with
 * parts of different sizes. */
PLAIN_TEST(tensor_splits_of_mixtures_compute_the_same)
{
    static const char *const sizes[] = {"tiny-moe", "tiny-all", "tiny-qwen3moe", "tiny-mixtral",
                                        "tiny-gpt-oss"};
    int32_t ids[N_PROMPT];
    random_prompt(ids, N_PROMPT, 320);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        same_on_any_number(synth_file(sizes[i], "f32", NULL, NULL),
                           &(prompt){N_PROMPT, i < 2 ? 320 : 512, ids}, 0.01);
}

/* Hidden units of one to three blocks are not cut: ranks have some of the experts, and a shared
 * expert whole. */
PLAIN_TEST(tensor_splits_by_whole_experts_compute_the_same)
{
    static const struct {
        const char *size, *type;
        int32_t n_vocab;
    } of[] = {{"tiny-wide", "q8_0", 512},
              {"tiny-qwen3moe", "q8_0", 512},
              {"tiny-qwen35moe-keys", "q8_0", 320},
              {"tiny-gpt-oss", "mxfp4", 512}};
    int32_t ids[N_PROMPT];
    random_prompt(ids, N_PROMPT, 320);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const char *path = synth_file(of[i].size, of[i].type, NULL, NULL);
        carat_model *m = open_split(path, 1);
        int32_t n_some = 0;
        for (int32_t k = 0; k < m->core.n_weights; k++)
            n_some += m->core.weights[k]->n_mat_all > 0;
        CHECK_MSG(n_some, "%s in %s", of[i].size, of[i].type);
        carat_model_close(m);
        same_on_any_number(path, &(prompt){N_PROMPT, of[i].n_vocab, ids}, 0.1);
    }
}

/* Layers with states: uneven key heads, three tiles of values; two tiles, and experts beside. */
PLAIN_TEST(tensor_splits_of_recurrent_layers_compute_the_same)
{
    int32_t ids[N_PROMPT];
    random_prompt(ids, N_PROMPT, 320);
    same_on_any_number(synth_file("tiny-qwen35-keys", "f32", NULL, NULL),
                       &(prompt){N_PROMPT, 320, ids}, 1e-3);
    same_on_any_number(synth_file("tiny-qwen35-keys", "bf16", NULL, NULL),
                       &(prompt){N_PROMPT, 320, ids}, 0.05);
    same_on_any_number(synth_file("tiny-qwen35moe-keys", "f32", NULL, NULL),
                       &(prompt){N_PROMPT, 320, ids}, 0.01);
}

/* Parts in several pieces are copied again when weights that were given back are loaded. */
TEST(weights_of_ranks_are_given_back_and_loaded_again)
{
    carat_model *m = open_split(synth_file("tiny-qwen35-keys", "bf16", NULL, NULL), 3);
    const prompt t = {8, 320, (const int32_t[]){1, 2, 3, 4, 5, 6, 7, 8}};
    float before[2 * 320], after[2 * 320];
    err e = {0};
    int32_t n_pieces = 0;
    for (int32_t i = 0; i < m->core.n_weights; i++) {
        const weight *w = m->core.weights[i];
        n_pieces += w->pieces != NULL;
        CHECK(!w->pieces || !w->packed == !!w->data); /* no two copies */
    }
    CHECK(n_pieces > 0);
    evaluate(m, &t, 8, before);
    model_unload_weights(&m->core);
    for (int32_t i = 0; i < m->core.n_weights; i++)
        CHECK(!m->core.weights[i]->pieces || !m->core.weights[i]->data);
    CHECK_OK(model_load_weights(&m->core, NULL, NULL, &e), e);
    evaluate(m, &t, 8, after);
    CHECK(!memcmp(before, after, sizeof before));
    carat_model_close(m);
}

/* Queries, keys and values in one tensor: each is a part of it. */
PLAIN_TEST(tensor_splits_of_joined_projections_compute_the_same)
{
    fidelity f;
    fidelity_open(&f, "qwen3");
    const char *path = fidelity_write(&f, &(fidelity_file){.fused_qkv = true});
    same_on_any_number(path, &(prompt){f.n_tokens, f.n_vocab, f.tokens}, 1e-3);
    fidelity_close(&f);
}

/* Some toys have six heads, which do not go by four. */
static bool can_be_split(const char *path)
{
    carat_model *m;
    carat_error e = {0};
    carat_model_options o = {.device = "cpu", .split = "tensor"};
    if (!carat_model_open(path, &o, &m, &e)) {
        carat_model_close(m);
        return true;
    }
    CHECK_EQ(e.status, CARAT_E_UNSUPPORTED);
    CHECK_MSG(strstr(e.text, "cannot be cut into 4 equal parts"), "%s: %s", path, e.text);
    return false;
}

PLAIN_TEST(tensor_splits_compute_the_same_on_any_number_of_devices)
{
    static const char *const dense[] = {"e2b",        "dense",        "unified", "qwen3",
                                        "qwen3-yarn", "llama",        "mistral", "ministral3",
                                        "gemma3",     "gemma3-plain", NULL};
    int32_t n_split = 0;
    for (const char *const *name = dense; *name; name++) {
        fidelity f;
        fidelity_open(&f, *name);
        const char *path = fidelity_write(&f, NULL);
        if (can_be_split(path)) {
            same_on_any_number(path, &(prompt){f.n_tokens, f.n_vocab, f.tokens}, 1e-3);
            n_split++;
        }
        fidelity_close(&f);
    }
    CHECK(n_split >= 3);
}

/* Five blocks of hidden units on four segments: parts differ in size. */
PLAIN_TEST(tensor_splits_of_blocks_compute_the_same)
{
    int32_t ids[N_PROMPT];
    random_prompt(ids, N_PROMPT, 320);
    same_on_any_number(synth_file("tiny-qwen3", "f32", NULL, NULL), &(prompt){N_PROMPT, 512, ids},
                       1e-3);
    same_on_any_number(synth_file("tiny-llama3", "bf16", NULL, NULL), &(prompt){N_PROMPT, 512, ids},
                       0.05);
    same_on_any_number(synth_file("tiny-dense", "q8_0", NULL, NULL), &(prompt){N_PROMPT, 320, ids},
                       0.1);
    same_on_any_number(synth_file("tiny-dense", "q4_0", NULL, NULL), &(prompt){N_PROMPT, 320, ids},
                       0.1);
}

PLAIN_TEST(importance_is_the_same_on_any_number_of_devices)
{
    int32_t ids[N_PROMPT];
    float one[N_PROMPT], more[N_PROMPT];
    const prompt t = {N_PROMPT, 320, ids};
    random_prompt(ids, N_PROMPT, 320);
    const char *path = synth_file("tiny-qwen3", "f32", NULL, NULL);
    for (int32_t r = 1; r <= RANKS; r++) {
        carat_model *m = open_split(path, r);
        importance(m, &t, r == 1 ? one : more);
        CHECK(r == 1 || !memcmp(one, more, sizeof one));
        carat_model_close(m);
    }
}

/* Lookup proposes, the ranks verify: the text is the one without drafts. */
PLAIN_TEST(drafts_by_lookup_change_no_answer_of_a_tensor_split)
{
    const char *path = synth_file("tiny-dense", "f32", NULL, NULL);
    const split_jobs j = {.session = {.n_ctx = 128, .chunk = 16},
                          .n = JOBS,
                          .n_slots = 3,
                          .n_tokens = 12,
                          .longest = N_PROMPT,
                          .n_ids = 7}; /* what repeats is proposed */
    split_said plain[JOBS], drafted[JOBS];
    carat_error e = {0};
    carat_model *m = open_split(path, 1), *d;
    CHECK_OK(splits_open(path, (carat_model_options){.draft = "lookup"},
                         (split_place){.split = "tensor", .n = 2}, &d, &e),
             e);
    CHECK_OK(splits_answer(m, &j, plain, &e), e);
    CHECK_EQ(splits_drafted(plain, JOBS), 0);
    CHECK_OK(splits_answer(d, &j, drafted, &e), e);
    CHECK(splits_drafted(drafted, JOBS) > 0);
    CHECK_EQ(splits_differ(plain, drafted, JOBS), -1);
    carat_model_close(m);
    carat_model_close(d);
}

/* ---- The head ------------------------------------------------------------------------------- */

/* Each rank has its rows of the head, also where it is the token table, of which the first rank has
 * all. */
static void check_head(const carat_model *m, const char *name)
{
    const model *first = &m->core;
    const tensor *t = tensor_find(&first->file.tensors, name);
    int64_t at = 0;
    CHECK(t && first->embd->n_out == first->n_vocab && t->ne[1] == (uint64_t)first->n_vocab);
    for (int32_t r = 0; r < first->n_ranks; r++) {
        const weight *w = (r ? &first->rank[r - 1] : first)->head;
        CHECK_STR(w->name, name);
        CHECK_EQ(w->side, r);
        CHECK_EQ(w->n_out_all, first->n_vocab);
        CHECK(w->data == (const char *)t->bytes + (size_t)at * w->row_bytes);
        CHECK(w->n_out > 0 && w->n_bytes == (size_t)w->n_out * w->row_bytes);
        at += w->n_out;
    }
    CHECK_EQ(at, first->n_vocab);
}

/* Scores of a prompt's tokens: the head over rows of hidden passes. */
typedef struct scores {
    float logprob[N_PROMPT];
    int32_t n;
} scores;

static bool take_score(void *user, const carat_event *ev)
{
    scores *s = user;
    if (ev->kind == CARAT_EV_PROMPT_TOKEN && s->n < N_PROMPT)
        s->logprob[s->n++] = ev->logprob;
    return true;
}

static scores score(carat_model *m, const int32_t *ids)
{
    scores out = {.n = 0};
    carat_session *s;
    carat_error e = {0};
    carat_generate_options o = {.max_tokens = 1, .n_prompt_logprobs = 1};
    carat_sampling_default(m, &o.sampling);
    CHECK_OK(carat_session_open(m, &(carat_session_options){.n_ctx = 2 * N_PROMPT}, &s, &e), e);
    CHECK_OK(carat_generate(s, ids, N_PROMPT, &o, take_score, &out, NULL, &e), e);
    carat_session_close(s);
    return out;
}

PLAIN_TEST(heads_are_cut_and_score_prompts_the_same)
{
    static const struct {
        const char *size, *head;
    } of[] = {{"tiny-dense", "token_embd.weight"}, {"tiny-llama3", "output.weight"}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const char *path = synth_file(of[i].size, "f32", NULL, NULL);
        int32_t ids[N_PROMPT];
        scores one, more;
        random_prompt(ids, N_PROMPT, 320);
        for (int32_t r = 1; r <= RANKS; r++) {
            carat_model *m = open_split(path, r);
            check_head(m, of[i].head);
            more = score(m, ids);
            one = r == 1 ? more : one;
            CHECK_EQ(more.n, N_PROMPT);
            CHECK_MSG(!memcmp(&one, &more, sizeof one), "%s on %d devices", of[i].size, r);
            carat_model_close(m);
        }
    }
}

/* ---- Memory, failures, refusals ------------------------------------------------------------- */

TEST(plans_of_tensor_splits_are_what_is_taken)
{
    const char *path = synth_file("tiny-dense", "q8_0", NULL, NULL);
    for (int32_t r = 1; r <= RANKS; r++) {
        carat_model *m = open_split(path, r);
        carat_session_options o = {.n_ctx = 100, .chunk = 16, .checkpoint_mb = -1};
        carat_device_memory before[CARAT_DEVICES_MAX], after[CARAT_DEVICES_MAX];
        carat_memory_plan plan;
        carat_session *s;
        carat_error e = {0};
        CHECK_OK(carat_plan(m, &o, &plan, &e), e);
        CHECK_EQ(plan.n_devices, r);
        CHECK_EQ(carat_memory(m, before), r);
        CHECK_OK(carat_session_open(m, &o, &s, &e), e);
        carat_memory(m, after);
        for (int32_t i = 0; i < r; i++) {
            const carat_device_plan *p = &plan.device[i];
            CHECK_EQ(after[i].used_bytes - before[i].used_bytes,
                     p->kv_swa_bytes + p->kv_global_bytes + p->scratch_bytes);
            CHECK(p->scratch_bytes && p->kv_swa_bytes && p->kv_global_bytes);
            CHECK_EQ(p->n_layers, m->core.n_layer);
        }
        carat_session_close(s);
        carat_model_close(m);
    }
}

static status broken(const device *d, err *e)
{
    return err_set(e, E_IO, "%s: broken", d->name);
}

static void no_add(pass *p, mat y, mat a, mat b)
{
    (void)y, (void)a, (void)b;
    if (!pass_failed(p) && !p->dry)
        err_set(&p->e, E_IO, "this rank adds no more");
}

/* In the middle of a pass, or behind it: the others do not wait for it. */
TEST(any_rank_may_fail_a_pass)
{
    int32_t ids[N_PROMPT];
    carat_model *m = open_split(synth_file("tiny-dense", "f32", NULL, NULL), 4);
    carat_session_options o = {.n_ctx = 100, .checkpoint_mb = -1};
    carat_session *s;
    carat_error e = {0};
    random_prompt(ids, N_PROMPT, 320);
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    for (int32_t i = 0; i < 4; i++) {
        device *d = model_device(m, i);
        const device_ops *op = d->op;
        device_ops bad = *op;
        d->failed = broken;
        CHECK_STATUS(carat_eval(s, ids, 8, NULL, NULL, &e), E_IO);
        d->failed = NULL;
        e = (carat_error){0};
        bad.add = no_add;
        d->op = &bad;
        CHECK_STATUS(carat_eval(s, ids, 8, NULL, NULL, &e), E_IO);
        CHECK(strstr(e.text, "adds no more"));
        d->op = op;
        e = (carat_error){0};
        CHECK_EQ(carat_session_n_past(s), 0);
    }
    CHECK_OK(carat_eval(s, ids, 8, NULL, NULL, &e), e);
    carat_session_close(s);
    carat_model_close(m);
}

static void no_norm(pass *p, mat *y, mat x, const weight *w, float eps)
{
    (void)y, (void)x, (void)w, (void)eps;
    if (!pass_failed(p) && !p->dry)
        err_set(&p->e, E_IO, "this rank norms nothing");
}

static const device_ops *counted;
static int32_t n_adds;
static void count_add(pass *p, mat y, mat a, mat b)
{
    n_adds += !p->dry;
    counted->add(p, y, a, b);
}

/* A rank that fails before the first meeting comes to none: the others end there. */
TEST(a_rank_that_comes_to_no_meeting_ends_the_others)
{
    const int32_t ids[2] = {1, 2};
    carat_model *m = open_split(synth_file("tiny-dense", "f32", NULL, NULL), 4);
    carat_session *s;
    carat_error e = {0};
    device *first = model_device(m, 0), *last = model_device(m, 3);
    const device_ops *op = last->op;
    device_ops bad = *op, counts = *first->op;
    counted = first->op;
    CHECK_OK(carat_session_open(m, &(carat_session_options){.n_ctx = 64}, &s, &e), e);
    bad.rms_norm = no_norm;
    counts.add = count_add;
    last->op = &bad;
    first->op = &counts;
    CHECK_STATUS(carat_eval(s, ids, 2, NULL, NULL, &e), E_IO);
    CHECK(strstr(e.text, "norms nothing"));
    CHECK_EQ(n_adds, 0);
    last->op = op;
    first->op = counted;
    e = (carat_error){0};
    CHECK_OK(carat_eval(s, ids, 2, NULL, NULL, &e), e);
    carat_session_close(s);
    carat_model_close(m);
}

static status open_and_run(void *arg, err *e)
{
    const int32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const carat_model_options mo = {.device = "cpu,cpu", .split = "tensor", .n_threads = 1};
    return fidelity_restores(arg, &mo, ids, e);
}

TEST(a_tensor_split_survives_every_failing_allocation)
{
    test_every_allocation(open_and_run,
                          (void *)(size_t)synth_file("tiny-dense", "f32", NULL, NULL));
}

static status plan_slots(void *path, err *e)
{
    const carat_model_options o = {.vocab_only = true,
                                   .split = "tensor",
                                   .experts_gpu = "50%",
                                   .plan_gpu_mb = {4000, 4000}};
    carat_expert_info x[2] = {{0}};
    carat_model *m = NULL;
    status st = carat_model_open(path, &o, &m, e);
    for (int i = 0; i < 2 && !st; i++)
        CHECK(carat_experts_on(m, i, &x[i]) && x[i].n_slots);
    CHECK(st || x[0].n_slots == x[1].n_slots);
    carat_model_close(m);
    return st;
}

TEST(ranks_with_slots_survive_every_failing_allocation)
{
    test_every_allocation(plan_slots,
                          (void *)(size_t)synth_file("tiny-moe", "f32", NULL, NULL));
}

static void refused(const char *path, carat_model_options o, const char *part)
{
    carat_model *m;
    carat_error e = {0};
    o.split = "tensor";
    CHECK(carat_model_open(path, &o, &m, &e) != CARAT_OK);
    CHECK_MSG(!m && strstr(e.text, part), "%s", e.text);
}

TEST(what_a_tensor_split_cannot_do_is_refused)
{
    const char *dense = synth_file("tiny-dense", "f32", NULL, NULL);
    refused(dense, (carat_model_options){.device = "cpu,cpu", .gpu_layers = 1}, "--gpu-layers");
    refused(dense, (carat_model_options){.device = "cpu,cpu", .gpu_split = "1,1"}, "--gpu-split");
    refused(dense, (carat_model_options){.device = "cpu,cpu,cpu,cpu,cpu"}, "at most 4");
    refused(synth_file("tiny-moe", "f32", NULL, NULL),
            (carat_model_options){.device = "cpu,cpu", .experts_gpu = "50%"}, "need a GPU");
    refused(synth_file("tiny-qwen35", "f32", NULL, NULL),
            (carat_model_options){.device = "cpu,cpu"},
            "2 key heads for 6 value heads, expected 4 or more");
}
