/* fidelity_test.c - carat against transformers, and carat against itself.
 *
 * Against transformers: logits of tiny models at every position of a prompt of more than eight
 * windows, in f32, for every chunk size that stresses the rings. Against itself, bit for bit: chunk
 * sizes, generations of files, edited prompts. The models and answers come from fidelity_model.h.
 */
#include "tests/fidelity_model.h"
#include "base/mem.h"
#include "base/rng.h"
#include "num/num.h"
#include "tests/test.h"

#include <inttypes.h>

/* Two f32 computations in different orders; transformers itself is within 1.5e-4 of its f64. */
static const double MAX_BOUND = 1e-3, RMS_BOUND = 1e-4;
enum { N_CTX = 160 }; /* holds the prompt of every model */

typedef struct {
    double max, rms;
    int32_t flips; /* positions where another token is the best */
} distance;

static int32_t best_of(const float *x, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

static distance distance_of(const float *a, const float *b, int32_t rows, int32_t cols)
{
    distance d = {0};
    double sum = 0;
    for (int32_t r = 0; r < rows; r++) {
        const float *x = a + (size_t)r * (size_t)cols, *y = b + (size_t)r * (size_t)cols;
        for (int32_t c = 0; c < cols; c++) {
            double t = fabs((double)x[c] - (double)y[c]);
            if (!(t <= d.max)) /* NaN lands here as well */
                d.max = t;
            sum += t * t;
        }
        d.flips += best_of(x, cols) != best_of(y, cols);
    }
    d.rms = sqrt(sum / ((double)rows * cols));
    return d;
}

static carat_model *open_model(const char *path, const carat_model_options *opt)
{
    err e = {0};
    carat_model *m = NULL;
    CHECK_OK(carat_model_open(path, opt, &m, &e), e);
    return m;
}

/* n_outputs is set too: then all_logits makes passes of chunk rows, and the rings are as small as
 * possible. */
static carat_session *open_session(carat_model *m, int32_t n_ctx, int32_t chunk, const char *kv)
{
    err e = {0};
    carat_session *s = NULL;
    carat_session_options opt = {.n_ctx = n_ctx, .chunk = chunk, .n_outputs = chunk, .kv_k = kv};
    CHECK_OK(carat_session_open(m, &opt, &s, &e), e);
    return s;
}

/* Logits of all rows in a fresh session; mem_free the result. */
static float *all_logits(const fidelity *f, carat_model *m, int32_t chunk, const char *kv)
{
    err e = {0};
    size_t n = (size_t)f->n_tokens * (size_t)f->n_vocab;
    float *out = mem_calloc(n, sizeof *out);
    AUTO_SESSION *s = open_session(m, N_CTX, chunk, kv);
    CHECK(out);
    CHECK_OK(carat_append(s, f->tokens, f->n_tokens, true, out, &e), e);
    CHECK_EQ(carat_session_n_past(s), f->n_tokens);
    return out;
}

static bool same_bits(const float *a, const float *b, int32_t rows, int32_t cols)
{
    return !memcmp(a, b, (size_t)rows * (size_t)cols * sizeof *a);
}

/* One model on one set of kernels: every chunk size against the reference and against the first. */
static void check_kernels(const fidelity *f, const char *path, const carat_model_options *opt,
                          const char *what)
{
    AUTO_MODEL *m = open_model(path, opt);
    int32_t w = f->window, chunks[] = {1, 7, w - 1, w, w + 1, f->n_tokens};
    AUTO_MEM float *first = NULL;
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        if (test_brief() && opt && opt->reference && i % 5)
            continue; /* the plain loops see one row at a time, so first and last say enough */
        float *x = all_logits(f, m, chunks[i], "f32");
        distance d = distance_of(x, f->logits, f->n_tokens, f->n_vocab);
        printf("  %s, %s, chunk %d: max %.1e rms %.1e\n", f->name, what, chunks[i], d.max, d.rms);
        CHECK_MSG(d.max <= MAX_BOUND && d.rms <= RMS_BOUND && !d.flips,
                  "%s, %s, chunk %d: max %.2e rms %.2e, %d of %d argmax differ", f->name, what,
                  chunks[i], d.max, d.rms, d.flips, f->n_tokens);
        CHECK_MSG(!first || same_bits(x, first, f->n_tokens, f->n_vocab),
                  "%s, %s: chunk %d gives other bits than chunk %d", f->name, what, chunks[i],
                  chunks[0]);
        if (first)
            mem_free(x);
        else
            first = x;
    }
}

static void check_model(const char *name)
{
    static const char *const isas[] = {"portable", "avx2", "avx512", "neon"};
    AUTO(fidelity_close) fidelity f;
    fidelity_open(&f, name);
    const char *path = fidelity_write(&f, NULL);
    carat_model_options opt = {.n_threads = 2, .reference = true};
    int n_run = 0;

    check_kernels(&f, path, &opt, "reference");
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        carat_model *m = NULL;
        opt = (carat_model_options){.n_threads = 2, .exact_f32 = true, .isa = isas[i]};
        if (carat_model_open(path, &opt, &m, NULL))
            continue; /* not this machine's */
        carat_model_close(m);
        check_kernels(&f, path, &opt, isas[i]);
        n_run++;
    }
    CHECK(n_run > 0);
}

PLAIN_TEST(fidelity_everything_on)
{
    check_model("all");
}

PLAIN_TEST(fidelity_like_e2b)
{
    check_model("e2b");
}

PLAIN_TEST(fidelity_like_26b)
{
    check_model("moe");
}

PLAIN_TEST(fidelity_like_31b)
{
    check_model("dense");
}

PLAIN_TEST(fidelity_like_12b)
{
    check_model("unified");
}

PLAIN_TEST(fidelity_wide_heads_odd_window)
{
    check_model("wide");
}

PLAIN_TEST(fidelity_qwen3)
{
    check_model("qwen3");
}

PLAIN_TEST(fidelity_qwen3_yarn)
{
    check_model("qwen3-yarn");
}

PLAIN_TEST(fidelity_qwen3moe)
{
    check_model("qwen3moe");
}

PLAIN_TEST(fidelity_llama)
{
    check_model("llama");
}

PLAIN_TEST(fidelity_llama_of_mistral)
{
    check_model("mistral");
}

PLAIN_TEST(fidelity_mixtral)
{
    check_model("mixtral");
}

PLAIN_TEST(fidelity_ministral3)
{
    check_model("ministral3");
}

PLAIN_TEST(fidelity_laguna)
{
    check_model("laguna");
}

PLAIN_TEST(fidelity_laguna_gate_per_element)
{
    check_model("laguna-element");
}

PLAIN_TEST(fidelity_gemma3)
{
    check_model("gemma3");
}

/* Sinks, biases, cut units, and YaRN whose blend ends between pairs. */
PLAIN_TEST(fidelity_gpt_oss)
{
    check_model("gpt-oss");
}

PLAIN_TEST(fidelity_gpt_oss_wide_heads)
{
    check_model("gpt-oss-wide");
}

PLAIN_TEST(fidelity_gemma3_without_windows)
{
    check_model("gemma3-plain");
}

PLAIN_TEST(fidelity_qwen35)
{
    check_model("qwen35");
}

PLAIN_TEST(fidelity_qwen35_uneven)
{
    check_model("qwen35-uneven");
}

PLAIN_TEST(fidelity_qwen35moe)
{
    check_model("qwen35moe");
}

/* Default options: what the device does to F32 weights for speed stays within the bounds. */
PLAIN_TEST(fidelity_with_default_options)
{
    for (const char *const *name = fidelity_names; *name; name++) {
        AUTO(fidelity_close) fidelity f;
        fidelity_open(&f, *name);
        check_kernels(&f, fidelity_write(&f, NULL), NULL, "default");
    }
}

/* Every generation of files says the same in other words: the results are bit-identical. */
PLAIN_TEST(fidelity_generations_of_files_agree)
{
    static const struct {
        const char *what;
        fidelity_file file;
        bool gemma4; /* of that family alone */
    } kinds[] = {
        {"keys and values in shared layers", {.unused_kv = true}, true},
        {"split experts", {.split_experts = true}, false},
        {"no rope_freqs", {.no_rope_freqs = true}, true},
        {"scalars as arrays", {.other_arity = true}, false},
        {"no soft cap key", {.drop_key = "gemma4.final_logit_softcapping"}, true},
        {"no rope span of window layers", {.drop_key = "gemma4.rope.dimension_count_swa"}, true},
        {"no rope span", {.drop_key = "gemma4.rope.dimension_count"}, true},
        {"all at once", {.unused_kv = true, .split_experts = true, .other_arity = true}, true},
    };
    for (const char *const *name = fidelity_names; *name; name++) {
        AUTO(fidelity_close) fidelity f;
        fidelity_open(&f, *name);
        carat_model *m = open_model(fidelity_write(&f, NULL), NULL);
        AUTO_MEM float *want = all_logits(&f, m, 7, "f32");
        carat_model_close(m);
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            if (kinds[i].gemma4 && strcmp(f.arch, "gemma4") != 0)
                continue;
            m = open_model(fidelity_write(&f, &kinds[i].file), NULL);
            float *x = all_logits(&f, m, 7, "f32");
            CHECK_MSG(same_bits(x, want, f.n_tokens, f.n_vocab), "%s: %s changes the logits",
                      f.name, kinds[i].what);
            mem_free(x);
            carat_model_close(m);
        }
        carat_model_options direct = {.no_mmap = true};
        m = open_model(fidelity_write(&f, NULL), &direct);
        float *x = all_logits(&f, m, 7, "f32");
        CHECK_MSG(same_bits(x, want, f.n_tokens, f.n_vocab), "%s: reading is not mapping", f.name);
        mem_free(x);
        carat_model_close(m);
    }
}

/* Files without per-layer embeddings may leave their width out. */
PLAIN_TEST(fidelity_absent_ple_key_is_zero)
{
    static const fidelity_file v = {.no_ple_key = true};
    AUTO(fidelity_close) fidelity f;
    fidelity_open(&f, "dense");
    check_kernels(&f, fidelity_write(&f, &v), NULL, "no ple key");
}

static bool has_experts(const fidelity *f)
{
    char key[64];
    snprintf(key, sizeof key, "%s.expert_count", f->arch);
    return gguf_find(&f->golden, key) != NULL;
}

/* An upper bound of what rounding keys and values costs on these models: about twice the measured
 * value. Where a router chooses, one rounding may change an expert and thereby everything: there
 * only chunk sizes are compared. */
PLAIN_TEST(fidelity_rounded_caches)
{
    static const struct {
        const char *kv;
        double max, rms;
    } kinds[] = {{"f16", 0.2, 0.015}, {"bf16", 1.0, 0.1}};
    for (const char *const *name = fidelity_names; *name; name++) {
        AUTO(fidelity_close) fidelity f;
        fidelity_open(&f, *name);
        AUTO_MODEL *m = open_model(fidelity_write(&f, NULL), NULL);
        for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
            AUTO_MEM float *first = all_logits(&f, m, 1, kinds[i].kv);
            distance d = distance_of(first, f.logits, f.n_tokens, f.n_vocab);
            printf("  %s, %s: max %.1e rms %.1e\n", f.name, kinds[i].kv, d.max, d.rms);
            bool routed = has_experts(&f);
            CHECK_MSG(routed || (d.max <= kinds[i].max && d.rms <= kinds[i].rms),
                      "%s, %s cache: max %.2e rms %.2e", f.name, kinds[i].kv, d.max, d.rms);
            AUTO_MEM float *x = all_logits(&f, m, f.window + 1, kinds[i].kv);
            CHECK(same_bits(x, first, f.n_tokens, f.n_vocab));
        }
    }
}

/* Bound of the distance of int8 activations: about twice the measured one; logits deviate by 5. */
static const double INT8_MAX_BOUND = 6, INT8_RMS_BOUND = 0.5;

/* One type of each kind that a file may store (backend/cpu/ tests all of them), against the
 * reference kernels, which decode weights and never round activations. Exact kernels must agree;
 * kernels that round activations to int8 may differ by a bound; in every kernel a row is
 * bit-identical in any company. */
static void check_types(const char *name)
{
    static const uint32_t types[] = {NUM_F16, NUM_BF16, NUM_Q8_0, NUM_Q4_0, NUM_Q5_1};
    AUTO(fidelity_close) fidelity f;
    fidelity_open(&f, name);
    bool routed = gguf_find(&f.golden, "gemma4.expert_count") != NULL;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        fidelity_file v = {.type = types[i]};
        const char *path = fidelity_write(&f, &v);
        AUTO_MEM float *want = NULL;
        for (int kind = 0; kind < 3; kind++) {
            static const char *const kinds[] = {"reference", "exact", "default"};
            carat_model_options opt = {
                .n_threads = 2, .reference = kind == 0, .exact_f32 = kind == 1};
            AUTO_MODEL *m = open_model(path, &opt);
            float *x = all_logits(&f, m, 1, "f32");
            want = want ? want : x;
            distance d = distance_of(x, want, f.n_tokens, f.n_vocab);
            printf("  %s, %s, %s: max %.1e rms %.1e\n", f.name, num_name(types[i]), kinds[kind],
                   d.max, d.rms);
            /* Rounded activations may change the choice of an expert, and thereby everything. */
            CHECK_MSG(kind == 2 ? routed || (d.max <= INT8_MAX_BOUND && d.rms <= INT8_RMS_BOUND)
                                : d.max <= MAX_BOUND && d.rms <= RMS_BOUND,
                      "%s, %s, %s: max %.2e rms %.2e from the reference kernels", f.name,
                      num_name(types[i]), kinds[kind], d.max, d.rms);
            for (int32_t chunk = 3; kind && chunk <= f.n_tokens; chunk *= test_brief() ? 25 : 5) {
                AUTO_MEM float *y = all_logits(&f, m, chunk, "f32");
                CHECK_MSG(same_bits(y, x, f.n_tokens, f.n_vocab),
                          "%s, %s, %s: chunk %d gives other bits than chunk 1", f.name,
                          num_name(types[i]), kinds[kind], chunk);
            }
            if (x != want)
                mem_free(x);
        }
    }
}

PLAIN_TEST(fidelity_stored_types_everything_on)
{
    check_types("all");
}

PLAIN_TEST(fidelity_stored_types_like_e2b)
{
    check_types("e2b");
}

PLAIN_TEST(fidelity_stored_types_wide_heads)
{
    check_types("wide");
}

/* Rows without wanted logits leave the pass at the last layer that owns keys; no result changes. */
PLAIN_TEST(fidelity_last_row_alone_is_the_last_of_all)
{
    for (const char *const *name = fidelity_names; *name; name++) {
        AUTO(fidelity_close) fidelity f;
        fidelity_open(&f, *name);
        AUTO_MODEL *m = open_model(fidelity_write(&f, NULL), NULL);
        float *all = all_logits(&f, m, 9, "f32"), last[320];
        CHECK(f.n_vocab <= 320);
        for (int64_t n = 1; n <= f.n_tokens; n += test_brief() ? 7 : 3) {
            err e = {0};
            AUTO_SESSION *s = open_session(m, N_CTX, 9, "f32");
            CHECK_OK(carat_eval(s, f.tokens, n, last, NULL, &e), e);
            CHECK_MSG(same_bits(last, all + (n - 1) * f.n_vocab, 1, f.n_vocab),
                      "%s: the last of %" PRId64 " rows differs when it is the only one wanted",
                      f.name, n);
        }
        mem_free(all);
    }
}

/* ---- One session, many prompts ---------------------------------------------------------- */

/* The last row's logits from an empty session; the caller frees them. */
static float *fresh_logits(const fidelity *f, carat_model *m, const int32_t *ids, int64_t n)
{
    err e = {0};
    float *x = mem_alloc((size_t)f->n_vocab * sizeof *x);
    AUTO_SESSION *fresh = open_session(m, N_CTX, 32, "f32");
    CHECK(x);
    CHECK_OK(carat_eval(fresh, ids, n, x, NULL, &e), e);
    return x;
}

/* The last row's logits from s, whatever it holds, are `want`. */
static void check_logits(const fidelity *f, carat_session *s, const int32_t *ids, int64_t n,
                         const float *want, const char *what, int64_t *reused)
{
    err e = {0};
    AUTO_MEM float *got = mem_alloc((size_t)f->n_vocab * sizeof *got);
    CHECK(got);
    CHECK_OK(carat_eval(s, ids, n, got, reused, &e), e);
    CHECK_EQ(carat_session_n_past(s), n);
    CHECK_MSG(same_bits(got, want, 1, f->n_vocab), "%s, %s: not what a fresh session gives",
              f->name, what);
}

static void check_like_fresh(const fidelity *f, carat_model *m, carat_session *s,
                             const int32_t *ids, int64_t n, const char *what, int64_t *reused)
{
    AUTO_MEM float *want = fresh_logits(f, m, ids, n);
    check_logits(f, s, ids, n, want, what, reused);
}

PLAIN_TEST(session_edited_prompt_equals_a_fresh_session)
{
    for (const char *const *name = fidelity_names; *name; name++) {
        AUTO(fidelity_close) fidelity f;
        fidelity_open(&f, *name);
        AUTO_MODEL *m = open_model(fidelity_write(&f, NULL), NULL);
        AUTO_MEM float *whole = fresh_logits(&f, m, f.tokens, f.n_tokens);
        for (int32_t back = 1; back <= f.n_tokens; back += back < (test_brief() ? 3 : 20) ? 1
                                                           : test_brief()                 ? 37
                                                                                          : 13) {
            int32_t ids[256];
            char what[64];
            int64_t reused = -1, at = f.n_tokens - back;
            carat_session *s = open_session(m, N_CTX, 5, "f32");
            memcpy(ids, f.tokens, (size_t)f.n_tokens * sizeof *ids);
            check_logits(&f, s, ids, f.n_tokens, whole, "first", &reused);
            CHECK_EQ(reused, 0);
            ids[at] = ids[at] == 9 ? 10 : 9;
            snprintf(what, sizeof what, "edited %d back", back);
            check_like_fresh(&f, m, s, ids, f.n_tokens, what, &reused);
            CHECK_MSG(reused >= 0 && reused <= at, "%s: claims to reuse %" PRId64 " of %" PRId64,
                      what, reused, at);
            /* One token back needs the window - 1 keys before it: the ring still has them. */
            if (back == 1)
                CHECK_EQ(reused, at);
            carat_session_close(s);
        }
    }
}

PLAIN_TEST(session_extends_shortens_and_repeats)
{
    AUTO(fidelity_close) fidelity f;
    fidelity_open(&f, "all");
    AUTO_MODEL *m = open_model(fidelity_write(&f, NULL), NULL);
    AUTO_SESSION *s = open_session(m, N_CTX, 5, "f32");
    int64_t reused = -1;
    check_like_fresh(&f, m, s, f.tokens, 60, "first 60", &reused);
    CHECK_EQ(reused, 0);
    check_like_fresh(&f, m, s, f.tokens, 61, "one more", &reused);
    CHECK_EQ(reused, 60);
    check_like_fresh(&f, m, s, f.tokens, 90, "29 more", &reused);
    CHECK_EQ(reused, 61);
    /* The same prompt again: logits are not kept, so its last token is computed once more. */
    check_like_fresh(&f, m, s, f.tokens, 90, "again", &reused);
    CHECK_EQ(reused, 89);
    check_like_fresh(&f, m, s, f.tokens, 40, "half", &reused);
    check_like_fresh(&f, m, s, f.tokens, 1, "one", &reused);
    carat_reset(s);
    CHECK_EQ(carat_session_n_past(s), 0);
    /* The timeline is forgotten; the checkpoint at the end of the prompt of 90 is not. */
    check_like_fresh(&f, m, s, f.tokens, 100, "after reset", &reused);
    CHECK_EQ(reused, 90);
}

PLAIN_TEST(session_rewinds_within_the_ring_and_says_when_it_cannot)
{
    for (const char *const *name = fidelity_names; *name; name++) {
        AUTO(fidelity_close) fidelity f;
        fidelity_open(&f, *name);
        AUTO_MODEL *m = open_model(fidelity_write(&f, NULL), NULL);
        AUTO_MEM float *whole = fresh_logits(&f, m, f.tokens, f.n_tokens);
        int n_yes = 0, n_no = 0;
        for (int32_t back = 0; back <= f.n_tokens; back += back < (test_brief() ? 3 : 24) ? 1
                                                           : test_brief()                 ? 37
                                                                                          : 19) {
            carat_session *s = open_session(m, N_CTX, 4, "f32");
            int64_t reused = -1, to = f.n_tokens - back;
            check_logits(&f, s, f.tokens, f.n_tokens, whole, "before", NULL);
            bool ok = carat_rewind(s, to);
            CHECK_EQ(carat_session_n_past(s), ok ? to : f.n_tokens);
            check_logits(&f, s, f.tokens, f.n_tokens, whole, "after a rewind", &reused);
            if (ok && to < f.n_tokens) /* a checkpoint may reach further than a state does */
                CHECK(f.has_states ? reused >= to : reused == to);
            n_yes += ok;
            n_no += !ok;
            carat_session_close(s);
        }
        CHECK_MSG(n_yes >= (f.has_states ? 1 : 2) && (n_no > 0) == (f.has_rings || f.has_states),
                  "%s: %d rewinds granted, %d refused", f.name, n_yes, n_no);
    }
}

/* Random edits, extensions, cuts and rewinds on one session, each compared with a fresh one. */
PLAIN_TEST(session_survives_random_edits)
{
    for (const char *const *name = fidelity_names; *name; name++) {
        AUTO(fidelity_close) fidelity f;
        uint64_t rng = test_seed();
        fidelity_open(&f, *name);
        AUTO_MODEL *m = open_model(fidelity_write(&f, NULL), NULL);
        for (int round = 0; round < test_trials(4); round++) {
            int32_t ids[N_CTX], chunk = 1 + (int32_t)rng_below(&rng, 12);
            int64_t n = 1 + (int64_t)rng_below(&rng, 40);
            AUTO_SESSION *s = open_session(m, N_CTX, chunk, "f32");
            memcpy(ids, f.tokens, (size_t)f.n_tokens * sizeof *ids);
            for (int step = 0; step < 20; step++) {
                if (rng_below(&rng, 3) == 0) {
                    int64_t at = n - 1 - (int64_t)rng_below(&rng, (uint64_t)n);
                    ids[at] = 8 + (int32_t)rng_below(&rng, (uint64_t)f.n_vocab - 8);
                } else if (rng_below(&rng, 4) == 0) {
                    n = 1 + (int64_t)rng_below(&rng, (uint64_t)n);
                } else {
                    n += (int64_t)rng_below(&rng, 9);
                }
                n = n > f.n_tokens ? f.n_tokens : n;
                if (rng_below(&rng, 4) == 0)
                    (void)carat_rewind(s, (int64_t)rng_below(&rng, 100));
                check_like_fresh(&f, m, s, ids, n, "random edits", NULL);
            }
        }
    }
}

TEST(session_errors_are_sentences)
{
    AUTO(fidelity_close) fidelity f;
    err e = {0};
    float logits[320];
    fidelity_open(&f, "dense");
    AUTO_MODEL *m = open_model(fidelity_write(&f, NULL), NULL);
    AUTO_SESSION *s = open_session(m, 50, 8, "f32");
    CHECK_STATUS(carat_eval(s, f.tokens, 51, logits, NULL, &e), E_LIMIT);
    CHECK(strstr(e.text, "51") && strstr(e.text, "50"));
    err_clear(&e);
    int32_t bad[3] = {2, 320, 5};
    CHECK_STATUS(carat_eval(s, bad, 3, logits, NULL, &e), E_ARG);
    CHECK(strstr(e.text, "320"));
    err_clear(&e);
    bad[1] = -1;
    CHECK_STATUS(carat_eval(s, bad, 3, logits, NULL, &e), E_ARG);
    err_clear(&e);
    CHECK_STATUS(carat_eval(s, bad, 0, logits, NULL, &e), E_ARG);
    /* A refused call leaves a session that works. */
    check_like_fresh(&f, m, s, f.tokens, 50, "after refusals", NULL);
}

/* ---- Broken files ------------------------------------------------------------------------ */

PLAIN_TEST(nan_weights_are_reported)
{
    static const struct {
        const char *model, *tensor;
    } at[] = {
        {"all", "blk.0.attn_q.weight"},       {"all", "blk.8.ffn_down.weight"},
        {"all", "blk.2.attn_norm.weight"},    {"all", "per_layer_model_proj.weight"},
        {"all", "output_norm.weight"},        {"dense", "blk.5.layer_output_scale.weight"},
        {"moe", "blk.1.ffn_gate_inp.weight"}, {"dense", "token_embd.weight"},
    };
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        AUTO(fidelity_close) fidelity f;
        err e = {0};
        AUTO_MODEL *m = NULL;
        float logits[320];
        fidelity_open(&f, at[i].model);
        fidelity_file v = {.nan_tensor = at[i].tensor};
        /* Refusing the file outright would do as well. */
        status st = carat_model_open(fidelity_write(&f, &v), NULL, &m, &e);
        if (!st) {
            AUTO_SESSION *s = open_session(m, N_CTX, 8, "f32");
            st = carat_eval(s, f.tokens, f.n_tokens, logits, NULL, &e);
        }
        CHECK_MSG(st == E_NUMERIC || st == E_FORMAT, "NaN in %s gives %s", at[i].tensor,
                  carat_status_name(st));
        CHECK(strlen(e.text) > 20);
    }
}

static void check_refused(const char *model, const fidelity_file *v, const char *what)
{
    AUTO(fidelity_close) fidelity f;
    err e = {0};
    carat_model *m = NULL;
    fidelity_open(&f, model);
    status st = carat_model_open(fidelity_write(&f, v), NULL, &m, &e);
    CHECK_MSG((st == E_FORMAT || st == E_UNSUPPORTED) && !m, "%s: %s gives %s (%s)", model, what,
              carat_status_name(st), e.text);
    CHECK_MSG(strlen(e.text) > 20, "%s: %s: no sentence", model, what);
    printf("  %s\n", e.text);
}

TEST(contradictory_metadata_is_refused)
{
    static const struct {
        const char *key;
        uint32_t value;
    } set[] = {
        {"block_count", 0},
        {"block_count", 10},
        {"block_count", 0xffffffff},
        {"embedding_length", 95},
        {"embedding_length", 0},
        {"feed_forward_length", 161},
        {"attention.head_count", 3},
        {"attention.head_count", 0},
        {"attention.head_count_kv", 3},
        {"attention.head_count_kv", 0},
        {"attention.key_length", 66},
        {"attention.value_length", 32},
        {"attention.key_length_swa", 0},
        {"attention.value_length_swa", 64},
        {"attention.sliding_window", 0},
        {"attention.shared_kv_layers", 9},
        {"attention.shared_kv_layers", 8}, /* no global layer left to share */
        {"attention.shared_kv_layers", 0}, /* and no keys in the last three layers */
        {"attention.shared_kv_layers", 0xfffffff0},
        {"embedding_length_per_layer_input", 8},
        {"expert_used_count", 9},
        {"expert_used_count", 0},
        {"expert_count", 7},
        {"expert_feed_forward_length", 47},
    };
    for (size_t i = 0; i < sizeof set / sizeof *set; i++) {
        char key[80], what[120];
        snprintf(key, sizeof key, "gemma4.%s", set[i].key);
        snprintf(what, sizeof what, "%s = %u", set[i].key, set[i].value);
        fidelity_file v = {.set_key = key, .set_value = set[i].value};
        check_refused("all", &v, what);
    }
}
