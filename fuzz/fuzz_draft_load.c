/* fuzz_draft_load.c - drafters' files with chosen faults, bound and joined to a target.
 *
 *     family | { fault tensor-or-key value:16 }
 *
 * A file of the smallest sizes is made of each family that carat runs: DFlash in two dialects, with
 * Laguna's gates, with DSpark's correction, and Gemma 4's assistant, dense and with clusters. Each
 * fault changes a dimension, a type, a name or a key, or takes a tensor or key away. The file is
 * refused with a sentence, or it is bound, and then fits the target or is refused with a sentence.
 */
#include "fuzz/fuzz.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/dflash.h"
#include "model/draft_kind.h"
#include "model/gemma4.h"
#include "model/gemma4_mtp.h"
#include "model/model.h"

#include <string.h>

enum {
    D = 8,
    HD = 4, /* of a head */
    VOCAB = 16,
    TENSORS_MAX = 64,
    KEYS_MAX = 24,
    FAULTS_MAX = 16,
    FILE_MOST = 1 << 14,
    U32 = 4,
    TEXT = 8,
    ARRAY = 9
};

typedef struct made_tensor {
    char name[48];
    uint64_t ne[2];
    uint32_t n_dims, type;
    bool gone;
} made_tensor;

typedef struct made_key {
    char name[64];
    int64_t value; /* of a list: the first item */
    int32_t n;     /* items of a list; 0: one number */
    int32_t step;  /* from an item to the next */
    bool gone;
} made_key;

typedef struct made_file {
    const char *arch;
    made_tensor t[TENSORS_MAX];
    made_key k[KEYS_MAX];
    int n_tensors, n_keys;
} made_file;

static void add(made_file *f, const char *name, uint64_t n_in, uint64_t n_out)
{
    made_tensor *t = &f->t[f->n_tensors++];
    *t = (made_tensor){.ne = {n_in, n_out ? n_out : 1}, .n_dims = n_out ? 2 : 1, .type = NUM_F32};
    snprintf(t->name, sizeof t->name, "%s", name);
}

static void key(made_file *f, const char *tail, int64_t value, int32_t n)
{
    made_key *k = &f->k[f->n_keys++];
    *k = (made_key){.value = value, .n = n, .step = strstr(tail, "pattern") ? -1 : 1};
    snprintf(k->name, sizeof k->name, "%s.%s", f->arch, tail);
}

static void add_dflash(made_file *f, const char *arch, bool laguna, bool dspark)
{
    bool old = strcmp(arch, "dflash") != 0;
    f->arch = arch;
    add(f, old ? "dflash.fc.weight" : "fc.weight", (uint64_t)2 * D, D);
    add(f, old ? "dflash.hidden_norm.weight" : "enc.output_norm.weight", D, 0);
    add(f, "output_norm.weight", D, 0);
    add(f, "blk.0.attn_norm.weight", D, 0);
    add(f, "blk.0.attn_q.weight", D, 2 * HD);
    add(f, "blk.0.attn_k.weight", D, HD);
    add(f, "blk.0.attn_v.weight", D, HD);
    add(f, "blk.0.attn_output.weight", 2 * HD, D);
    add(f, "blk.0.attn_q_norm.weight", HD, 0);
    add(f, "blk.0.attn_k_norm.weight", HD, 0);
    add(f, "blk.0.ffn_norm.weight", D, 0);
    add(f, "blk.0.ffn_gate.weight", D, 2 * HD);
    add(f, "blk.0.ffn_up.weight", D, 2 * HD);
    add(f, "blk.0.ffn_down.weight", 2 * HD, D);
    if (laguna) {
        add(f, "blk.0.attn_gate.weight", D, 2);
        add(f, "enc.aux_norm.weight", D, 2);
    }
    if (dspark) {
        add(f, "markov_w1.weight", 8, VOCAB);
        add(f, "markov_w2.weight", 8, VOCAB);
        add(f, "conf_proj.weight", D, 1);
        add(f, "conf_proj.bias", 1, 0);
    }
    key(f, "block_size", 8, 0);
    key(f, "mask_token_id", 4, 0);
    key(f, "target_layers", 2, 2);
    key(f, "target_layer_ids", 1, 2);
    key(f, "attention.sliding_window", 16, 0);
    key(f, "attention.sliding_window_pattern", 1, 1);
    key(f, "context_length", 4096, 0);
    key(f, "vocab_size", VOCAB, 0);
    key(f, "rope.freq_base", 10000, 0);
    key(f, "sample_from_anchor", 0, 0);
}

static void add_assistant(made_file *f, bool clusters)
{
    f->arch = "gemma4-assistant";
    add(f, "token_embd.weight", D, VOCAB);
    add(f, "nextn.pre_projection.weight", (uint64_t)2 * D, D);
    add(f, "nextn.post_projection.weight", D, D);
    add(f, "output_norm.weight", D, 0);
    add(f, "rope_freqs.weight", HD / 2, 0);
    for (int il = 0; il < 2; il++) {
        static const struct {
            const char *tail;
            uint64_t n_in, n_out;
        } rows[] = {{"attn_norm", D, 0},
                    {"attn_q", D, 2 * HD},
                    {"attn_q_norm", HD, 0},
                    {"attn_output", 2 * HD, D},
                    {"post_attention_norm", D, 0},
                    {"ffn_norm", D, 0},
                    {"ffn_gate", D, 8},
                    {"ffn_up", D, 8},
                    {"ffn_down", 8, D},
                    {"post_ffw_norm", D, 0},
                    {"layer_output_scale", 1, 0}};
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            char name[48];
            snprintf(name, sizeof name, "blk.%d.%s.weight", il, rows[i].tail);
            add(f, name, rows[i].n_in, rows[i].n_out);
        }
    }
    if (clusters) {
        add(f, "masked_embd_centroids.weight", D, 4);
        add(f, "masked_embd_ordering", VOCAB, 0);
        f->t[f->n_tensors - 1].type = NUM_I32;
    }
    key(f, "block_count", 2, 0);
    key(f, "embedding_length", D, 0);
    key(f, "attention.sliding_window", 16, 0);
    key(f, "attention.sliding_window_pattern", 1, 2);
    key(f, "attention.head_count", 2, 0);
    key(f, "feed_forward_length", 8, 0);
    key(f, "centroid_top_k", 2, 0);
    key(f, "context_length", 4096, 0);
}

static void make_family(made_file *f, unsigned family)
{
    switch (family % 6) {
    case 0:
        add_dflash(f, "dflash", false, false);
        break;
    case 1:
        add_dflash(f, "qwen35-dflash-draft", false, false);
        break;
    case 2:
        add_dflash(f, "dflash", true, false);
        break;
    case 3:
        add_dflash(f, "dflash", false, true);
        break;
    case 4:
        add_assistant(f, false);
        break;
    default:
        add_assistant(f, true);
    }
}

static void apply(made_file *f, uint8_t fault, uint8_t which, uint16_t value)
{
    made_tensor *t = &f->t[which % f->n_tensors];
    made_key *k = &f->k[which % f->n_keys];
    switch (fault % 10) {
    case 0:
        t->gone = true;
        break;
    case 1:
    case 2:
        t->ne[fault % 10 - 1] = value;
        break;
    case 3:
        t->type = value % 48;
        break;
    case 4:
        t->name[value % (sizeof t->name - 1)] = (char)(value >> 8);
        break;
    case 5:
        k->gone = true;
        break;
    case 6:
        k->value = (int16_t)value;
        break;
    case 7:
        k->n = value % 16;
        break;
    case 8:
        if (f->n_tensors < TENSORS_MAX) { /* the same in another layer */
            f->t[f->n_tensors] = *t;
            if (!strncmp(t->name, "blk.", 4))
                f->t[f->n_tensors].name[4] = (char)('0' + value % 10);
            f->n_tensors++;
        }
        break;
    default:
        t->n_dims = value % 3;
    }
}

static void put(str *s, uint64_t v, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++)
        str_putc(s, (char)(v >> 8 * i));
}

static void put_text(str *s, const char *text)
{
    put(s, strlen(text), 8);
    str_puts(s, text);
}

/* The file's bytes; the data of all tensors are ones, and those of integers count. */
static void write_file(const made_file *f, str *s)
{
    uint64_t n_keys = 1, n_tensors = 0, at = 0;
    for (int i = 0; i < f->n_keys; i++)
        n_keys += !f->k[i].gone;
    for (int i = 0; i < f->n_tensors; i++)
        n_tensors += !f->t[i].gone;
    str_puts(s, "GGUF");
    put(s, 3, 4);
    put(s, n_tensors, 8);
    put(s, n_keys, 8);
    put_text(s, "general.architecture");
    put(s, TEXT, 4);
    put_text(s, f->arch);
    for (int i = 0; i < f->n_keys; i++) {
        const made_key *k = &f->k[i];
        if (k->gone)
            continue;
        put_text(s, k->name);
        put(s, k->n ? ARRAY : U32, 4);
        if (k->n) {
            put(s, U32, 4);
            put(s, (uint64_t)k->n, 8);
        }
        for (int j = 0; j < (k->n ? k->n : 1); j++)
            put(s, (uint64_t)(k->value + j * k->step), 4);
    }
    for (int i = 0; i < f->n_tensors; i++) {
        const made_tensor *t = &f->t[i];
        uint64_t row = 0;
        if (t->gone)
            continue;
        put_text(s, t->name);
        put(s, t->n_dims, 4);
        for (uint32_t d = 0; d < t->n_dims; d++)
            put(s, t->ne[d], 8);
        put(s, t->type, 4);
        put(s, at, 8);
        num_row_bytes(t->type, t->ne[0], &row);
        at += (row * (t->n_dims > 1 ? t->ne[1] : 1) + 31) / 32 * 32;
    }
    while (s->n % 32)
        str_putc(s, 0);
    size_t head = s->n, all = at < FILE_MOST ? (size_t)at : FILE_MOST;
    static char data[FILE_MOST];
    if (!data[2])
        for (size_t i = 0; i < sizeof data; i++)
            data[i] = "\0\0\200\77"[i % 4]; /* 1.0f */
    str_put(s, data, all);
    for (int i = 0, n = 0; i < f->n_tensors && !s->bad; i++) {
        const made_tensor *t = &f->t[i];
        bool ids = t->type == NUM_I32 && !t->gone && t->ne[0] <= VOCAB && all >= 4 * VOCAB;
        for (n = 0; ids && n < VOCAB; n++) /* the last tensor of its family */
            s->at[head + all - 4 * VOCAB + 4 * (size_t)n] = (char)n,
                                               memset(s->at + head + all - 4 * VOCAB +
                                                          4 * (size_t)n + 1,
                                                      0, 3);
    }
}

/* Joins the drafter to a target of two layers. */
static void join(model *m, err *e)
{
    static const float ones[HD] = {1, 1, 1, 1};
    static const weight norm = {
        .name = "norm", .type = NUM_F32, .n_in = HD, .n_out = 1, .n_mat = 1, .data = ones};
    static const weight table = {.name = "table", .n_in = D, .n_out = VOCAB, .n_mat = 1};
    kv_spec kv[2] = {{.layer = 0, .window = 16, .n_head_kv = 1, .head_dim = HD, .k_norm = &norm},
                     {.layer = 1, .n_head_kv = 1, .head_dim = HD, .k_norm = &norm}};
    const model target = {.arch = &gemma4_arch,
                          .name = "target",
                          .n_layer = 8,
                          .n_embd = D,
                          .n_vocab = VOCAB,
                          .window = 16,
                          .embd = &table,
                          .head = &table,
                          .embd_scale = 1,
                          .n_kv = 2,
                          .kv = kv};
    status st = m->arch->bind == gemma4_mtp_bind ? gemma4_mtp_attach(m, &target, e)
                                                 : dflash_attach(m, &target, e);
    fuzz_check(!st == !e->status && (!st || e->text[0]), "a failure without a sentence");
}

FUZZ(draft_load)
{
    static made_file f;
    str s = {0};
    gguf g = {0};
    model m = {0};
    err e = {0};
    const char *what;
    if (n < 1)
        return;
    memset(&f, 0, sizeof f);
    make_family(&f, data[0]);
    for (size_t i = 1, k = 0; i + 4 <= n && k < FAULTS_MAX; i += 4, k++)
        apply(&f, data[i], data[i + 1], (uint16_t)(data[i + 2] | data[i + 3] << 8));
    write_file(&f, &s);
    void *copy = s.bad ? NULL : mem_aligned(16, s.n);
    if (copy) {
        memcpy(copy, s.at, s.n);
        status st = gguf_open_bytes(&g, copy, s.n, "fuzz", &e);
        if (!st && draft_kind_of(&g, &what) != DRAFT_NONE && !draft_kind_check(&g, &e)) {
            st = model_bind(&m, &g, &e);
            fuzz_check(!st == !e.status && (!st || e.text[0]), "a failure without a sentence");
            fuzz_check(n >= 5 || !st, e.text);
            if (!st)
                join(&m, &e);
            fuzz_check(n >= 5 || !e.status, e.text);
        }
        model_free(&m);
        gguf_close(&g);
    }
    mem_free(copy);
    str_free(&s);
}
