/* synth.c - carat synth: a model file of any size with seeded random weights.
 *
 * For tests, and for measuring speed and memory, which do not depend on the values of the weights.
 * The files are complete GGUF files for any engine; the generated text is noise. Magnitudes match
 * those of a trained model, so activations stay finite through any number of layers.
 */
#include "apps/commands.h"
#include "apps/synth_blocks.h"
#include "apps/synth_skew.h"
#include "apps/synth_vocab.h"
#include "apps/term.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "format/gguf_stream.h"
#include "model/model.h"
#include "model/table.h"

#include <math.h>

typedef struct {
    const char *type, *vocab, *dialect;
    bool full_vocab, nextn, hollow;
    int64_t seed, n_threads, n_layer;
    double density, skew;
} synth_options;

static const option table[] = {
    OPT_STR(synth_options, type, "type", 't', "TYPE",
            "quantisation (default q4_k_m, of drafters q8_0)"),
    OPT_INT(synth_options, seed, "seed", 's', "N", 0, 1e15, "of the random numbers (default 1)"),
    OPT_STR(synth_options, vocab, "vocab", 0, "FILE",
            "take the tokenizer of this GGUF file, or none (default: a made-up one, if any)"),
    OPT_FLAG(synth_options, full_vocab, "full-vocab", 0,
             "with --vocab: made-up words up to the size's own number of tokens", "vocab"),
    OPT_INT(synth_options, n_layer, "layers", 0, "N", 1, SHAPE_LAYERS_MAX,
            "stop after N layers (default all)"),
    OPT_FLAG(synth_options, nextn, "nextn", 0,
             "with the NextN (MTP) layer of the published checkpoint, for --draft nextn"),
    OPT_REAL(synth_options, density, "attention-density", 0, "D", 0.001, 1,
             "of Gemma 4: attention without a window lies in D of the blocks of 128 keys"),
    OPT_REAL(
        synth_options, skew, "expert-skew", 0, "S", 0, 2,
        "experts are used by a Zipf law, the r-th in proportion to 1 / r^S; 0: evenly (default: "
        "as random routers do)"),
    OPT_FLAG(synth_options, hollow, "hollow", 0,
             "no matrices: holes in the file take their places, for carat inspect and plans"),
    OPT_STR(synth_options, dialect, "dialect", 0, "NAME",
            "of a drafter: names of keys and tensors (default llama.cpp)",
            .words = "llama.cpp lucebox ik"),
    OPT_INT(synth_options, n_threads, "threads", 0, "N", 1, 256, "threads (default: all cores)"),
    OPT_END};

/* What the threads that fill tensors see. */
typedef struct {
    const model_shape *s;
    const shape_tensor *list;
    const num_type *type; /* [n] */
    synth_blocks *blocks[NUM_TYPE_END];
    synth_pool **pool; /* [n] of led matrices; else NULL */
    uint64_t seed;
    bool lively; /* a test model: every feature affects the logits */
    double skew; /* of routers; below 0: they are random */
} job;

/* Rows of a router, each with the length that makes its expert as common as it shall be. */
static void fill_router(const job *j, uint64_t i, uint64_t first, uint64_t n_rows, float sigma,
                        float *dst)
{
    const shape_tensor *t = &j->list[i];
    uint64_t seed = rng_mix(j->seed + i * 0x9e3779b97f4a7c15u);
    float factor[SKEW_RANKS], length = sigma * sqrtf((float)t->ne[0]);
    synth_skew_factors(factor, (int32_t)t->ne[1], j->skew, seed);
    for (uint64_t r = 0; r < n_rows; r++)
        synth_skew_row(dst + r * t->ne[0], t->ne[0], length * factor[first + r],
                       rng_mix(seed + first + r));
}

/* Standard deviation of a matrix's entries. A product with a vector of unit size should have
 * entries of unit size, hence 1 / sqrt(n_in), with two exceptions. */
static float sigma_of(const job *j, const shape_tensor *t)
{
    if (t->role == ROLE_EMBD) /* as the head it gives logits of a few units; its input is normed */
        return (j->lively ? 5.0f : 3.0f) / sqrtf((float)t->ne[0]);
    if (t->fan_in > 0)
        return 1 / sqrtf(t->fan_in);
    return (j->lively ? 1.2f : 1.0f) / sqrtf((float)t->ne[0]);
}

/* Fills rows around 1 or, biases, around 0: all f32. */
static void fill_vector(const job *j, const shape_tensor *t, uint64_t seed, float *out, uint64_t n)
{
    float wobble = j->lively ? 0.3f : 0.1f, centre = 1;
    if (t->role == ROLE_ROPE_FACTORS || t->role == ROLE_IDS) {
        j->s->family->compute(j->s, t, out);
        return;
    }
    if (t->role == ROLE_LOW || t->role == ROLE_HIGH) { /* few activations are beyond the bounds */
        float bound = (j->lively ? 1.2f : 6.0f) + (float)rng_unit(&seed);
        out[0] = t->role == ROLE_LOW ? -bound : bound;
        return;
    }
    if (t->role == ROLE_BIAS) {
        for (uint64_t i = 0; i < n; i++)
            out[i] = wobble * (float)rng_normal(&seed);
        return;
    }
    if (t->role == ROLE_DECAY) { /* -exp(A_log), A_log around 0 */
        for (uint64_t i = 0; i < n; i++)
            out[i] = -expf((float)rng_normal(&seed));
        return;
    }
    if (t->centre > 0 && !j->lively)
        centre = t->centre;
    if (t->role == ROLE_SCALE && t->ne[0] == 1) { /* the scale of a whole layer */
        out[0] = 0.7f + (j->lively ? 0.4f : 0.25f) * (float)rng_unit(&seed);
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        out[i] = centre * (1 + wobble * (float)rng_normal(&seed));
}

/* The led ones of rows [first, first + n) of a tensor, or of a vector's entries. */
static void fill_led(const job *j, uint64_t i, uint64_t seed, uint64_t first, uint64_t n, void *dst)
{
    const shape_tensor *t = &j->list[i];
    uint64_t row_bytes = 0;
    num_row_bytes(j->type[i], t->ne[0], &row_bytes);
    for (uint64_t r = first; t->led_period && r < first + n; r++) {
        uint64_t at = r % t->led_period;
        if (at != t->led && at != t->led + t->led_period / 2)
            continue;
        if (j->pool[i])
            synth_pool_fill(j->pool[i], rng_mix(seed + r), (char *)dst + (r - first) * row_bytes,
                            t->ne[0]);
        else
            ((float *)dst)[r - first] = t->lean;
    }
}

static status fill_tensor(void *user, uint64_t i, uint64_t first, uint64_t n_rows, void *dst,
                          err *e)
{
    const job *j = user;
    const shape_tensor *t = &j->list[i];
    uint64_t seed = rng_mix(rng_mix(j->seed + i * 0x9e3779b97f4a7c15u) + first);
    (void)e;
    if (t->n_dims == 1 || t->role == ROLE_NORM) {
        fill_vector(j, t, seed, dst, n_rows * t->ne[0]);
        fill_led(j, i, seed, 0, n_rows * t->ne[0], dst);
    } else if (j->skew >= 0 && synth_skew_is_router(t)) {
        fill_router(j, i, first, n_rows, sigma_of(j, t), dst);
    } else {
        synth_blocks_fill(j->blocks[j->type[i]], seed, sigma_of(j, t), dst, n_rows * t->ne[0]);
        fill_led(j, i, seed, first, n_rows, dst);
    }
    if (j->skew >= 0) {
        uint64_t row_bytes = 0;
        num_row_bytes(j->type[i], t->ne[0], &row_bytes);
        synth_skew_silence(t, first, n_rows, dst, row_bytes);
    }
    return OK;
}

/* Writes a list with one entry per token, extended to n tokens. The added words are made up and all
 * different. No merge makes them, so no text encodes to them. */
static status put_longer(gguf_writer *w, const gguf_value *v, int32_t n, err *e)
{
    enum { NORMAL = 1, WORD_BYTES = 16 };
    size_t of = (size_t)n;
    bool words = !strcmp(v->key, "tokenizer.ggml.tokens");
    gguf_string *text = words ? mem_calloc(of, sizeof *text) : NULL;
    char *made = words ? mem_calloc(of, WORD_BYTES) : NULL;
    float *score = words ? NULL : mem_calloc(of, sizeof *score);
    int32_t *type = words ? NULL : mem_calloc(of, sizeof *type);
    uint64_t at = 0;
    double real;
    int64_t whole;
    status st = OK;
    if (words ? !text || !made : !score || !type) {
        st = err_memory(e, "a vocabulary", of * WORD_BYTES);
        goto out;
    }
    for (int32_t i = 0; i < n; i++) {
        bool there = (uint64_t)i < v->count;
        if (words && (!there || !gguf_next_string(v, &at, &text[i]))) {
            char *to = made + (size_t)i * WORD_BYTES;
            text[i] = (gguf_string){.at = to,
                                    .n = (size_t)snprintf(to, WORD_BYTES, "\xE2\x96\x81w%d", i)};
        } else if (!words) {
            score[i] = there && gguf_item_f64(v, (uint64_t)i, &real) ? (float)real : 0;
            type[i] = there && gguf_item_i64(v, (uint64_t)i, &whole) ? (int32_t)whole : NORMAL;
        }
    }
    if (words)
        gguf_put_strings(w, v->key, text, of);
    else if (!strcmp(v->key, "tokenizer.ggml.scores"))
        gguf_put_f32s(w, v->key, score, of);
    else
        gguf_put_i32s(w, v->key, type, of);
out:
    mem_free(type);
    mem_free(score);
    mem_free(made);
    mem_free(text);
    return st;
}

/* Copies tokenizer.* of another file, for n tokens. */
static status take_vocab(gguf_writer *w, const gguf *from, int32_t n, bool drafter, err *e)
{
    const gguf_value *tokens = gguf_find(from, "tokenizer.ggml.tokens");
    status st = OK;
    if (!tokens)
        return err_set(e, E_FORMAT, "%s: has no tokenizer (tokenizer.ggml.tokens)", from->path);
    for (uint64_t i = 0; i < from->n_values && !st; i++) {
        const gguf_value *v = &from->value[i];
        const char *name = strncmp(v->key, "tokenizer.", 10) ? NULL : v->key + 10;
        if (!name || (drafter && !strcmp(name, "ggml.mask_token_id"))) /* it states its own */
            continue;
        if (tokens->count < (uint64_t)n &&
            (!strcmp(name, "ggml.tokens") || !strcmp(name, "ggml.scores") ||
             !strcmp(name, "ggml.token_type")))
            st = put_longer(w, v, n, e);
        else
            gguf_put_value(w, v);
    }
    return st;
}

static void put_general(gguf_writer *w, const model_shape *s, const weight_mix *mix)
{
    char name[96];
    snprintf(name, sizeof name, "%.32s-%.32s, random weights", s->family->title, s->name);
    const char *kind = s->family->tower ? "mmproj" : "model";
    gguf_put_string(w, "general.type", kind, strlen(kind));
    gguf_put_string(w, "general.name", name, strlen(name));
    gguf_put_u32(w, "general.file_type", (uint32_t)mix->file_type);
    gguf_put_u32(w, "general.quantization_version", 2);
    char buf[TABLE_ARCH];
    const model_sampling *usual = model_usual_sampling(table_arch(s, buf));
    if (s->family->drafter || !usual)
        return;
    gguf_put_i32(w, "general.sampling.top_k", usual->top_k);
    gguf_put_f32(w, "general.sampling.top_p", usual->top_p);
    gguf_put_f32(w, "general.sampling.temp", usual->temperature);
}

typedef struct recipe {
    model_shape *s; /* already checked */
    const weight_mix *mix;
    const gguf *vocab; /* NULL: none */
    bool no_vocab;     /* nor a made-up one */
    const synth_options *o;
} recipe;

static status put_vocab(gguf_writer *w, const recipe *r, err *e)
{
    const model_shape *s = r->s;
    char buf[TABLE_ARCH];
    if (s->family->tower)
        return OK;
    if (r->vocab)
        return take_vocab(w, r->vocab, s->n_vocab, s->family->drafter, e);
    if (!r->no_vocab)
        return synth_vocab_put(w, s->family->arch, table_arch(s, buf), s->n_vocab, e);
    gguf_put_string(w, "tokenizer.ggml.model", "no_vocab", 8);
    return OK;
}

/* Vectors, which are read when a model is opened, and holes in the place of matrices. */
static status write_hollow(gguf_writer *w, job *j, const stream_tensor *rows, int32_t n, err *e)
{
    status st = OK;
    for (int32_t i = 0; i < n && !st; i++) {
        if (j->list[i].n_dims > 1) {
            st = gguf_write_hole(w, e);
            continue;
        }
        size_t n_bytes = (size_t)(rows[i].n_rows * rows[i].row_bytes);
        void *data = mem_alloc(n_bytes);
        if (!data)
            return err_memory(e, j->list[i].name, n_bytes);
        st = fill_tensor(j, (uint64_t)i, 0, rows[i].n_rows, data, e);
        if (!st)
            st = gguf_write_data(w, data, n_bytes, e);
        mem_free(data);
    }
    return st;
}

/* Writes the file, from the list of tensors on. */
static status write_model(const char *path, const recipe *r, uint64_t *n_bytes, err *e)
{
    model_shape *s = r->s;
    const weight_mix *mix = r->mix;
    job j = {.s = s,
             .seed = (uint64_t)r->o->seed,
             .lively = strstr(s->name, "tiny") != NULL,
             .skew = r->o->skew};
    gguf_writer *w = NULL;
    pool *threads = NULL;
    int32_t n = s->family->list(s, NULL, 0);
    shape_tensor *list = mem_calloc((size_t)n, sizeof *list);
    num_type *type = mem_calloc((size_t)n, sizeof *type);
    synth_pool **led = mem_calloc((size_t)n, sizeof *led);
    stream_tensor *rows = mem_calloc((size_t)n, sizeof *rows);
    status st = OK;

    if (!list || !type || !led || !rows) {
        st = err_memory(e, "the list of tensors", (size_t)n * sizeof *list);
        goto out;
    }
    s->family->list(s, list, n);
    bool routed = false;
    for (int32_t i = 0; i < n; i++)
        routed |= synth_skew_is_router(&list[i]);
    if (j.skew >= 0 && !routed) {
        st = err_set(e, E_ARG, "%s: has no experts whose use could follow a law", s->name);
        goto out;
    }
    j.list = list;
    j.type = type;
    j.pool = led;
    if ((st = gguf_create(&w, path, e)))
        goto out;
    s->family->put(w, s);
    put_general(w, s, mix);
    if ((st = put_vocab(w, r, e)))
        goto out;
    for (int32_t i = 0; i < n; i++) {
        type[i] = weight_mix_type(mix, list, n, i);
        rows[i].n_rows = list[i].ne[1] * list[i].ne[2] * list[i].ne[3];
        num_row_bytes(type[i], list[i].ne[0], &rows[i].row_bytes);
        gguf_put_tensor(w, list[i].name, type[i], list[i].n_dims, list[i].ne);
        if (type[i] != NUM_I32 && !j.blocks[type[i]] &&
            (st = synth_blocks_open(&j.blocks[type[i]], type[i], e)))
            goto out;
        /* Formats without an encoder have no rows that lean: keys are chosen less sharply. */
        if (list[i].led_period && list[i].n_dims > 1 && num_format_of(type[i])->encode &&
            (st = synth_pool_open(&led[i], type[i], sigma_of(&j, &list[i]), list[i].lean, e)))
            goto out;
    }
    if (r->o->hollow)
        gguf_expect_holes(w);
    if ((st = pool_open(&threads, (int32_t)r->o->n_threads, e)) || (st = gguf_write_header(w, e)))
        goto out;
    uint64_t planned = gguf_planned_bytes(w);
    const stream_source from = {rows, (uint64_t)n, fill_tensor, &j, term_progress, NULL};
    if ((st = r->o->hollow ? write_hollow(w, &j, rows, n, e) : gguf_stream(w, &from, threads, e)))
        goto out;
    st = gguf_commit(w, e);
    w = NULL;
    if (!st)
        *n_bytes = planned;
out:
    gguf_discard(w);
    pool_close(threads);
    for (int t = 0; t < NUM_TYPE_END; t++)
        synth_blocks_close(j.blocks[t]);
    for (int32_t i = 0; led && i < n; i++)
        synth_pool_close(led[i]);
    mem_free(rows);
    mem_free(led);
    mem_free(type);
    mem_free(list);
    return st;
}

static int run_synth(const command *c, int argc, char **argv)
{
    synth_options o = {.seed = 1, .skew = -1, .n_threads = pool_default_threads()};
    int n_operands, stop = options_parse(c, argc, argv, &o, &n_operands);
    model_shape *s = NULL;
    gguf vocab = {0};
    err e = {0};
    status st = OK;
    uint64_t n_bytes = 0;
    double start_ms = clock_ms();
    bool with_vocab = o.vocab && strcmp(o.vocab, "none") != 0;
    if (stop)
        return stop - 1;
    term_init();
    term_watch(NULL); /* Ctrl-C stops the writing and leaves no partial file */
    if ((st = shape_named(argv[0], &s, &e)))
        goto out;
    const weight_mix *mix = weight_mix_named(o.type ? o.type : s->family->mix);
    if (o.dialect && !(s->family->dialect && s->family->dialect(s, o.dialect))) {
        st = err_set(&e, E_ARG, "%s: there is no dialect %s; the dialects are %s", argv[0],
                     o.dialect, s->family->dialects ? s->family->dialects : "llama.cpp alone");
        goto out;
    }
    if (!mix) {
        st = err_set(&e, E_ARG, "there is no type %s; the types are %s, %s", o.type,
                     weight_mix_names, weight_mix_quantize_names);
        goto out;
    }
    if (o.nextn && !s->family->set_nextn) {
        st = err_set(&e, E_ARG, "%s: models of this family have no NextN layers", argv[0]);
        goto out;
    }
    if (o.vocab && s->family->tower) {
        st = err_set(&e, E_ARG, "%s: a tower has no vocabulary (--vocab)", argv[0]);
        goto out;
    }
    if (o.nextn)
        s->family->set_nextn(s, 1);
    if (o.density > 0 && !s->family->plant) {
        st = err_set(&e, E_ARG, "%s: attention is planted in models of Gemma 4 alone", argv[0]);
        goto out;
    }
    if (o.density > 0)
        s->family->plant(s, o.density);
    if (o.n_layer && o.n_layer < s->n_layer)
        s->family->cut(s, (int32_t)o.n_layer);
    if (with_vocab) {
        char arch[TABLE_ARCH];
        if ((st = gguf_open(&vocab, o.vocab, false, NULL, NULL, &e)) ||
            (!s->family->drafter && (st = synth_vocab_check(&vocab, table_arch(s, arch), &e))))
            goto out;
        const gguf_value *tokens = gguf_find(&vocab, "tokenizer.ggml.tokens");
        if (tokens && tokens->count <= INT32_MAX &&
            (!o.full_vocab || tokens->count > (uint64_t)s->n_vocab))
            s->n_vocab = (int32_t)tokens->count;
    }
    if ((st = s->family->check(s, argv[0], &e)))
        goto out;
    const recipe r = {s, mix, with_vocab ? &vocab : NULL, o.vocab && !with_vocab, &o};
    st = write_model(argv[1], &r, &n_bytes, &e);
out:
    gguf_close(&vocab);
    mem_free(s);
    return term_wrote(argv[1], n_bytes, start_ms, st, &e);
}

const command command_synth = {
    .name = "synth",
    .operands = "SIZE OUT.gguf",
    .summary = "Write a model file with random weights, for speed tests",
    .about =
        "SIZE is of Gemma 4 e2b, e4b, 12b, 26b-a4b, 31b, or for tests tiny-dense, tiny-moe,\n"
        "tiny-ple, tiny-all, tiny-wide, tiny-many; of Gemma 3 gemma3-270m, gemma3-1b, gemma3-4b,\n"
        "gemma3-12b, gemma3-27b, tiny-gemma3; of EmbeddingGemma embeddinggemma-300m,\n"
        "tiny-embeddinggemma; of gpt-oss gpt-oss-20b, gpt-oss-120b, tiny-gpt-oss;\n"
        "of Qwen3 qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b,\n"
        "qwen3-14b, qwen3-32b, qwen3-30b-a3b, qwen3-235b-a22b, qwen3-coder-30b-a3b,\n"
        "qwen3-embedding-0.6b, qwen3-embedding-4b, qwen3-embedding-8b, tiny-qwen3, "
        "tiny-qwen3-reranker,\n"
        "tiny-qwen3moe; of Qwen3-VL qwen3-vl-2b, qwen3-vl-4b, qwen3-vl-8b, qwen3-vl-32b,\n"
        "qwen3-vl-30b-a3b, qwen3-vl-235b-a22b, tiny-qwen3-vl, tiny-qwen3-vl-moe; of Qwen3.5 to\n"
        "3.8 qwen3.5-0.8b, qwen3.5-2b,\n"
        "qwen3.5-4b, qwen3.5-9b, qwen3.6-27b, qwen3.8-27b, qwen3.6-35b-a3b, tiny-qwen35,\n"
        "tiny-qwen35moe, tiny-qwen35-keys, tiny-qwen35moe-keys; of Laguna laguna-xs,\n"
        "tiny-laguna, tiny-laguna-heads; of Llama and Mistral llama-2-7b,\n"
        "llama-3.2-1b, llama-3.2-3b, llama-3.1-8b, llama-3.3-70b, mistral-7b, mistral-nemo-12b,\n"
        "mistral-small-24b, mixtral-8x7b, ministral-3-3b, ministral-3-8b, ministral-3-14b,\n"
        "tiny-llama3, tiny-mixtral, tiny-ministral3.\n"
        "Vision towers: of Gemma 4 mmproj-e2b, mmproj-e4b, mmproj-12b, mmproj-26b, mmproj-31b; of\n"
        "Qwen mmproj-qwen-9b, mmproj-qwen-27b; of Qwen3-VL mmproj-qwen3-vl-2b, -4b, -8b, -32b,\n"
        "-30b-a3b, -235b-a22b; for tests tiny-mmproj-clamped, tiny-mmproj-standard,\n"
        "tiny-mmproj-flat, tiny-mmproj-qwen, tiny-mmproj-qwen3-vl. With a part for sound: "
        "mmproj-e2b, mmproj-e4b,\n"
        "mmproj-12b, tiny-mmproj-hears, tiny-mmproj-flat-hears.\n"
        "Drafters (see --draft): dflash-26b, dflash-31b, dflash-laguna-xs, mtp-e2b, mtp-e4b,\n"
        "mtp-12b, mtp-26b, mtp-31b, and for tests dflash-tiny, dflash-tiny-laguna, "
        "dflash-tiny-xs,\n"
        "dflash-tiny-qwen35, dflash-tiny-dspark, dflash-tiny-wide, mtp-tiny, mtp-tiny-ordered,\n"
        "mtp-tiny-wide, with the --dialect llama.cpp, lucebox or ik (dflash) or old (mtp). The "
        "file has every key and tensor of a\n"
        "published one, and a tokenizer if --vocab says which. TYPE is f32, f16, bf16, q8_0,\n"
        "q4_0, q4_1, q5_0, q5_1, q6_k, iq4_nl, iq4_xs, mxfp4, nvfp4, tq1_0, tq2_0, q1_0, q2_0, or\n"
        "one of the mixes q2_k, q3_k_m, q4_k_s, q4_k_m, q5_k_s, q5_k_m, iq1_s, iq1_m, iq2_xxs, "
        "iq2_xs,\n"
        "iq2_s, iq2_m, iq3_xxs, iq3_xs, iq3_s, iq3_m.\n"
        "With --attention-density D a query of a layer without a window attends to the keys whose\n"
        "distance is a multiple of 128 / D tokens, and to those close by: with 0.1 to one block "
        "of\n"
        "128 keys in ten. So attention that leaves keys out (--sparse) has something to find.",
    .options = table,
    .n_operands_min = 2,
    .n_operands_max = 2,
    .run = run_synth};
