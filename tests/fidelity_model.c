/* fidelity_model.c - see fidelity_model.h. The formula is in tools/fidelity_fixtures.py. */
#include "tests/fidelity_model.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"
#include "num/num.h"
#include "tests/test.h"

const char *const fidelity_names[] = {
    "all",     "e2b",           "moe",        "dense",    "unified",
    "wide",    "qwen3",         "qwen3-yarn", "qwen3moe", "llama",
    "mistral", "mixtral",       "ministral3", "laguna",   "laguna-element",
    "qwen35",  "qwen35-uneven", "qwen35moe",  "gemma3",   "gemma3-plain",
    "gpt-oss", "gpt-oss-wide",  NULL};

const char *const fidelity_encoders[] = {"encoder", "encoder-plain", NULL};

/* One tensor of the recipe. */
typedef struct {
    char name[64];
    uint64_t ne[TENSOR_DIMS_MAX], n;
    int32_t n_dims;
    uint64_t seed; /* of its random stream */
    double mean, sigma;
    bool unused; /* keys and values of a layer that borrows them */
} recipe;

static int64_t get_i64(const gguf *g, const char *key)
{
    int64_t v = 0;
    CHECK_MSG(gguf_get_i64(g, key, &v), "the golden file has no number %s", key);
    return v;
}

static const gguf_value *get_array(const gguf *g, const char *key)
{
    const gguf_value *v = gguf_find(g, key);
    CHECK_MSG(v && v->kind == GGUF_ARRAY, "the golden file has no array %s", key);
    return v;
}

/* A number of the model, or `otherwise`. */
static int32_t get_of_model(const fidelity *f, const char *key, int32_t otherwise)
{
    char full[128];
    int64_t v = otherwise;
    snprintf(full, sizeof full, "%s.%s", f->arch, key);
    gguf_get_i64(&f->golden, full, &v);
    return (int32_t)v;
}

void fidelity_open(fidelity *f, const char *name)
{
    enum { NO_WINDOW = 12 };
    gguf_string arch;
    err e = {0};
    str rel = {0};
    *f = (fidelity){.name = name};
    str_printf(&rel, "tests/data/fidelity/%s.golden", name);
    CHECK_OK(gguf_open(&f->golden, test_path(str_text(&rel)), true, NULL, NULL, &e), e);
    str_free(&rel);

    const gguf *g = &f->golden;
    const tensor *logits = tensor_find(&g->tensors, "logits");
    const tensor *vectors = tensor_find(&g->tensors, "vectors");
    const gguf_value *ids = get_array(g, "fidelity.tokens");
    CHECK(vectors ? vectors->type == NUM_F32
                  : logits && logits->type == NUM_F32 && logits->ne[1] == ids->count);
    /* the reader keeps tensor data aligned */
    f->logits = logits ? (const float *)logits->bytes : NULL;
    f->n_vocab = logits ? (int32_t)logits->ne[0] : 0;
    f->vectors = vectors ? (const float *)vectors->bytes : NULL;
    f->n_tokens = (int32_t)ids->count;
    snprintf(f->arch, sizeof f->arch, "gemma4");
    if (gguf_get_string(g, "fidelity.arch", &arch))
        snprintf(f->arch, sizeof f->arch, "%.*s", (int)arch.n, arch.at);
    f->window = get_of_model(f, "attention.sliding_window", 0);
    f->has_rings = f->window > 0;
    f->has_states = !strncmp(f->arch, "qwen35", 6);
    f->window = f->window ? f->window : NO_WINDOW;
    f->n_layer = get_of_model(f, "block_count", 0);
    f->n_shared = get_of_model(f, "attention.shared_kv_layers", 0);
    CHECK(gguf_get_f64(g, "fidelity.floor_max", &f->floor_max));
    CHECK(gguf_get_f64(g, "fidelity.floor_rms", &f->floor_rms));
    CHECK(f->tokens = mem_calloc((size_t)f->n_tokens, sizeof *f->tokens));
    for (int32_t i = 0; i < f->n_tokens; i++) {
        int64_t id = 0;
        CHECK(gguf_item_i64(ids, (uint64_t)i, &id));
        f->tokens[i] = (int32_t)id;
    }
}

void fidelity_close(fidelity *f)
{
    gguf_close(&f->golden);
    mem_free(f->tokens);
    *f = (fidelity){0};
}

static bool starts(const char *s, const char *with)
{
    return !strncmp(s, with, strlen(with));
}

/* All tensors of the recipe; mem_free the result. */
static recipe *read_recipe(const fidelity *f, uint64_t *n)
{
    const gguf *g = &f->golden;
    const gguf_value *names = get_array(g, "fidelity.tensor.name");
    const gguf_value *ne = get_array(g, "fidelity.tensor.ne");
    const gguf_value *mean = get_array(g, "fidelity.tensor.mean");
    const gguf_value *sigma = get_array(g, "fidelity.tensor.sigma");
    uint64_t seed = (uint64_t)get_i64(g, "fidelity.seed"), at = 0;
    recipe *r = mem_calloc(names->count, sizeof *r);
    CHECK(r && ne->count == 4 * names->count && mean->count == names->count &&
          sigma->count == names->count);
    for (uint64_t i = 0; i < names->count; i++) {
        gguf_string s = {0};
        CHECK(gguf_next_string(names, &at, &s) && s.n < sizeof r->name);
        memcpy(r[i].name, s.at, s.n);
        CHECK(gguf_item_f64(mean, i, &r[i].mean) && gguf_item_f64(sigma, i, &r[i].sigma));
        r[i].seed = seed + i;
        r[i].n = 1;
        for (int d = 0; d < 4; d++) {
            int64_t v = 0;
            CHECK(gguf_item_i64(ne, 4 * i + (uint64_t)d, &v) && v > 0);
            r[i].ne[d] = (uint64_t)v;
            r[i].n *= (uint64_t)v;
            if (v > 1 || d == 0)
                r[i].n_dims = d + 1;
        }
        const char *leaf = strchr(starts(r[i].name, "blk.") ? r[i].name + 4 : "", '.');
        r[i].unused = leaf && (starts(leaf, ".attn_k") || starts(leaf, ".attn_v")) &&
                      atoi(r[i].name + 4) >= f->n_layer - f->n_shared;
    }
    *n = names->count;
    return r;
}

void fidelity_draw(float *w, uint64_t n, uint64_t seed, double mean, double sigma)
{
    const double unit = 1.0 / 37837.22772; /* deviation of a sum of four uniform 16-bit integers */
    uint64_t state = rng_mix(seed);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t u = rng_next(&state);
        int64_t s = (int64_t)((u & 0xffff) + (u >> 16 & 0xffff) + (u >> 32 & 0xffff) + (u >> 48));
        w[i] = (float)(mean + sigma * ((double)(s - 131070) * unit));
    }
}

/* The weights of one tensor; mem_free the result. */
static float *draw_weights(const recipe *r)
{
    float *w = mem_calloc(r->n, sizeof *w);
    CHECK(w);
    fidelity_draw(w, r->n, r->seed, r->mean, r->sigma);
    return w;
}

uint64_t fidelity_fingerprint(const fidelity *f)
{
    uint64_t n = 0, h = 0;
    AUTO_MEM recipe *r = read_recipe(f, &n);
    for (uint64_t i = 0; i < n; i++) {
        AUTO_MEM float *w = draw_weights(&r[i]);
        uint64_t sum = 0;
        for (uint64_t j = 0; j < r[i].n; j++) {
            uint32_t bits;
            memcpy(&bits, &w[j], 4);
            sum += rng_mix(bits | j << 32);
        }
        h = rng_mix(h + sum);
    }
    return h;
}

static bool same(const char *a, const char *b)
{
    return b && !strcmp(a, b);
}

/* The name under which the file has a key or tensor; valid until the next call. */
static const char *name_in(const fidelity_file *v, const char *name)
{
    static char other[160];
    for (int i = 0; v->renamed && v->renamed[i][0]; i++)
        if (text_ends_with(name, v->renamed[i][0])) {
            snprintf(other, sizeof other, "%.*s%s", (int)(strlen(name) - strlen(v->renamed[i][0])),
                     name, v->renamed[i][1]);
            return other;
        }
    return name;
}

/* The golden file's keys of the model as the variant wants them. */
static void put_values(gguf_writer *w, const fidelity *f, const fidelity_file *v)
{
    const gguf *g = &f->golden;
    gguf_put_string(w, "general.architecture", f->arch, strlen(f->arch));
    gguf_put_string(w, "general.name", f->name, strlen(f->name));
    gguf_put_string(w, "tokenizer.ggml.model", "no_vocab", 8);
    for (uint64_t i = 0; i < g->n_values; i++) {
        const gguf_value *x = &g->value[i];
        const char *leaf = strchr(x->key, '.');
        if (!starts(x->key, f->arch) || same(x->key, v->drop_key))
            continue;
        if (v->no_ple_key && text_ends_with(x->key, "per_layer_input"))
            continue;
        bool per_layer = same(leaf, ".feed_forward_length") ||
                         same(leaf, ".attention.head_count_kv") ||
                         same(leaf, ".attention.head_count");
        if (same(x->key, v->set_key)) {
            gguf_put_u32(w, x->key, v->set_value);
        } else if (v->other_arity && per_layer) {
            uint32_t items[64];
            for (int32_t il = 0; il < f->n_layer; il++) {
                int64_t n = 0;
                CHECK(x->kind == GGUF_ARRAY ? gguf_item_i64(x, (uint64_t)il, &n)
                                            : gguf_get_i64(g, x->key, &n));
                items[il] = (uint32_t)n;
            }
            gguf_put_u32s(w, x->key, items, (uint64_t)f->n_layer);
        } else if (v->other_arity && text_ends_with(x->key, "sliding_window_pattern")) {
            int32_t items[64]; /* integers instead of bools */
            for (int32_t il = 0; il < f->n_layer; il++) {
                int64_t n = 0;
                CHECK(gguf_item_i64(x, (uint64_t)il, &n));
                items[il] = (int32_t)n;
            }
            gguf_put_i32s(w, x->key, items, (uint64_t)f->n_layer);
        } else {
            gguf_value renamed = *x;
            renamed.key = name_in(v, x->key);
            gguf_put_value(w, &renamed);
        }
    }
}

/* The tensors of the file and their types. */
static bool wanted(const recipe *r, const fidelity_file *v)
{
    return !(r->unused && !v->unused_kv) && !same(r->name, v->drop_tensor);
}

static bool is_split(const recipe *r, const fidelity_file *v)
{
    return v->split_experts && text_ends_with(r->name, "ffn_gate_up_exps.weight");
}

/* Matrices that files quantise: tensors of two dimensions and more, except the router and the
 * projection to per-layer embeddings. */
static uint32_t type_of(const recipe *r, const fidelity_file *v)
{
    const num_format *f = num_format_of(v->type);
    bool matrix = r->n_dims > 1 && !text_ends_with(r->name, "ffn_gate_inp.weight") &&
                  !text_ends_with(r->name, ".bias") && !text_ends_with(r->name, "per_layer_model_proj.weight");
    return matrix && r->ne[0] % (uint64_t)f->block_n == 0 ? v->type : NUM_F32;
}

/* Declares one tensor for the queries, keys and values of a layer, which follow each other. */
static void put_fused(gguf_writer *w, const recipe *r, const fidelity_file *v)
{
    uint64_t ne[2] = {r->ne[0], r[0].ne[1] + r[1].ne[1] + r[2].ne[1]};
    char name[64];
    snprintf(name, sizeof name, "blk.%d.attn_qkv.weight", atoi(r->name + 4));
    CHECK(text_ends_with(r[1].name, "attn_k.weight") && text_ends_with(r[2].name, "attn_v.weight"));
    gguf_put_tensor(w, name, type_of(r, v), 2, ne);
}

static bool is_fused(const recipe *r, const fidelity_file *v)
{
    return v->fused_qkv && (text_ends_with(r->name, "attn_q.weight") || text_ends_with(r->name, "attn_k.weight") ||
                            text_ends_with(r->name, "attn_v.weight"));
}

static void put_split(gguf_writer *w, const recipe *r)
{
    uint64_t ne[3] = {r->ne[0], r->ne[1] / 2, r->ne[2]};
    int il = atoi(r->name + 4);
    for (int half = 0; half < 2; half++) {
        AUTO(str_free) str name = {0};
        str_printf(&name, "blk.%d.ffn_%s_exps.weight", il, half ? "up" : "gate");
        gguf_put_tensor(w, str_text(&name), NUM_F32, 3, ne);
    }
}

static void write_split(gguf_writer *w, const recipe *r, const float *x)
{
    err e = {0};
    uint64_t n_half = r->ne[0] * r->ne[1] / 2;
    for (uint64_t half = 0; half < 2; half++)
        for (uint64_t ex = 0; ex < r->ne[2]; ex++)
            CHECK_OK(gguf_write_data(w, x + (2 * ex + half) * n_half, n_half * sizeof *x, &e), e);
}

static void write_encoded(gguf_writer *w, const recipe *r, uint32_t type, const float *x)
{
    err e = {0};
    uint64_t n_bytes = 0;
    CHECK(num_row_bytes(type, r->n, &n_bytes)); /* rows are whole blocks, so all of it is */
    AUTO_MEM void *bytes = mem_alloc(n_bytes);
    CHECK(bytes);
    num_format_of(type)->encode(x, bytes, (int64_t)r->n);
    CHECK_OK(gguf_write_data(w, bytes, n_bytes, &e), e);
}

const char *fidelity_write(const fidelity *f, const fidelity_file *v)
{
    static const fidelity_file plain;
    static int n_written;
    char file[64];
    snprintf(file, sizeof file, "%s-%d.gguf", f->name, n_written++);
    const char *path = test_temp(file);
    const tensor *rope = tensor_find(&f->golden.tensors, "rope_freqs.weight");
    gguf_writer *w = NULL;
    uint64_t n = 0;
    AUTO_MEM recipe *r = read_recipe(f, &n);
    err e = {0};

    if (!v)
        v = &plain;
    CHECK_OK(gguf_create(&w, path, &e), e);
    put_values(w, f, v);
    for (uint64_t i = 0; i < n; i++) {
        if (wanted(&r[i], v) && is_split(&r[i], v))
            put_split(w, &r[i]);
        else if (is_fused(&r[i], v) && text_ends_with(r[i].name, "attn_q.weight"))
            put_fused(w, &r[i], v);
        else if (wanted(&r[i], v) && !is_fused(&r[i], v))
            gguf_put_tensor(w, name_in(v, r[i].name), type_of(&r[i], v), r[i].n_dims, r[i].ne);
    }
    if (rope && !v->no_rope_freqs)
        gguf_put_tensor(w, rope->name, rope->type, rope->n_dims, rope->ne);
    if (v->add_tensor)
        gguf_put_tensor(w, v->add_tensor, NUM_F32, 1, (const uint64_t[]){1});
    CHECK_OK(gguf_write_header(w, &e), e);
    for (uint64_t i = 0; i < n; i++) {
        if (!wanted(&r[i], v))
            continue;
        float *x = draw_weights(&r[i]);
        if (same(r[i].name, v->nan_tensor))
            x[v->nan_at] = NAN;
        for (uint64_t k = 0; k < r[i].n && same(r[i].name, v->scaled_tensor); k++)
            x[k] *= v->scale;
        if (is_split(&r[i], v))
            write_split(w, &r[i], x);
        else
            write_encoded(w, &r[i], type_of(&r[i], v), x);
        mem_free(x);
    }
    if (rope && !v->no_rope_freqs)
        CHECK_OK(gguf_write_data(w, rope->bytes, rope->n_bytes, &e), e);
    if (v->add_tensor)
        CHECK_OK(gguf_write_data(w, &(const float){1}, sizeof(float), &e), e);
    CHECK_OK(gguf_commit(w, &e), e);
    return path;
}

int32_t fidelity_length(const fidelity *f, int32_t i)
{
    const gguf_value *v = get_array(&f->golden, "fidelity.lengths");
    int64_t n = 0;
    return i < (int32_t)v->count && gguf_item_i64(v, (uint64_t)i, &n) ? (int32_t)n : 0;
}

/* Both sides must draw the same weights, or the comparison means nothing. */
TEST(fidelity_weights_are_those_of_the_reference)
{
    for (int i = 0;; i++) {
        int n = sizeof fidelity_names / sizeof *fidelity_names - 1;
        const char *one = i < n ? fidelity_names[i] : fidelity_encoders[i - n], **name = &one;
        fidelity f;
        int64_t want = 0;
        if (!one)
            break;
        fidelity_open(&f, *name);
        const gguf_value *v = gguf_find(&f.golden, "fidelity.fingerprint");
        CHECK(v && v->kind == GGUF_U64);
        memcpy(&want, v->bytes, 8); /* above 2^63 at times: not a number for gguf_get_i64 */
        CHECK_MSG(fidelity_fingerprint(&f) == (uint64_t)want, "%s: other weights", *name);
        CHECK(f.n_tokens >= 8 * f.window);
        CHECK(gguf_find(&f.golden, "general.architecture"));
        fidelity_close(&f);
    }
}

status fidelity_restores(const char *path, const carat_model_options *mo, const int32_t *ids,
                         err *e)
{
    const carat_session_options so = {.n_ctx = 32, .chunk = 8, .checkpoint_mb = -1};
    carat_model *m;
    carat_session *s = NULL;
    carat_snapshot *p = NULL;
    status st = carat_model_open(path, mo, &m, e);
    if (st)
        return st;
    if (!(st = carat_session_open(m, &so, &s, e)) && !(st = carat_eval(s, ids, 8, NULL, NULL, e)) &&
        !(st = carat_snapshot_take(s, &p, e)))
        st = carat_snapshot_restore(s, p, e);
    carat_snapshot_free(p);
    carat_session_close(s);
    carat_model_close(m);
    return st;
}
