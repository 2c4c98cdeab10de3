/* table.h - a family of models as rows, and the verbs that read them.
 *
 * A family has one table of keys and two of tensors: of the model, and of a layer. The same rows
 * read and check a GGUF file, write one, read and check config.json, name the tensors of both, and
 * bind weights. So `inspect`, `convert`, `synth`, `quantize` and the loader cannot disagree.
 *
 * A row names a field of the family's shape (keys) or a weight of its structs (tensors) by its
 * offset: F() and W() in a family's file. No struct begins with such a field, so 0 is none.
 * Keys are in the order in which a file has them. A row may refer to fields of rows above it.
 *
 * A quirk of one family is a plain function that a row or the entry names; rows stay dull.
 */
#ifndef MODEL_TABLE_H
#define MODEL_TABLE_H

#include "model/shapes.h"

#include <stddef.h>

/* ---- Keys ---- */

typedef enum key_kind {
    KEY_COUNT,   /* int32_t; u32 in GGUF */
    KEY_REAL,    /* double; f32 in GGUF */
    KEY_FLAG,    /* bool */
    KEY_COUNTS,  /* int32_t[LAYERS_MAX]; in GGUF one number, or a list where layers differ */
    KEY_UNIFORM, /* int32_t; a file may have a list whose items are equal or 0 */
    KEY_LIST,    /* the same, always written as a list */
    KEY_FLAGS,   /* bool[LAYERS_MAX]; a list in GGUF */
    KEY_YARN     /* rope_scaling: the keys rope.scaling.* */
} key_kind;

enum {
    MAY_LACK = 1,        /* a GGUF file: the value is `otherwise` or `value` */
    CONFIG_MAY_LACK = 2, /* a config.json: `otherwise`, or 0 */
    READ_ONLY = 4,       /* not written to GGUF files */
    CONFIG_BY_HAND = 16, /* apps/convert_families.c reads `config`, which is here for messages */
    OMIT_ZERO = 32,      /* not written if it is 0 */
    WRITE_ONLY = 8,      /* not read from GGUF files: a tensor tells it */
    TOLD = 64 /* a tensor tells it (family_table.tell); a file that has it says the same */
};

typedef struct table_key {
    const char *gguf;   /* after the architecture's name and a dot; NULL: in no GGUF file */
    const char *config; /* NULL: in no config.json */
    size_t at;          /* F(field); 0: none, for keys with one value that carat supports */
    key_kind kind;
    double least, most;
    int how;            /* MAY_LACK and the like */
    double value;       /* of files that lack the key; what is written for at == 0 */
    size_t otherwise;   /* F(field) whose value an absent key has */
    size_t upto, below; /* F(field) that is another bound, inclusive and not */
    int32_t (*of)(const model_shape *s, int32_t il); /* a layer's number, instead of the field's */
    bool (*listed)(const model_shape *s);            /* COUNTS: whether a list is written */
    size_t plus;           /* F(field) that is added where the key is written */
    const char *or_gguf;   /* a second spelling of gguf, which is read too */
    const char *or_config; /* the same of config */
    const char *same_as;   /* another key of the same field, which must have the same value */
    bool (*when)(const model_shape *s); /* NULL: every model has the key */
} table_key;

/* K("block_count", "num_hidden_layers", F(n_layer), COUNT, 1, LAYERS_MAX, .how = ...) */
#define K(gguf_, config_, at_, kind_, least_, most_, ...)                                          \
    {                                                                                              \
        .gguf = gguf_, .config = config_, .at = at_, .kind = KEY_##kind_, .least = least_,         \
        .most = most_, __VA_ARGS__                                                                 \
    }

/* ---- Tensors ---- */

typedef bool tensor_when(const model_shape *s, int32_t il);

typedef struct table_tensor {
    tensor_when *when; /* ALWAYS: every model, every layer */
    size_t at;         /* W(weight); ELSEWHERE: the family binds it itself */
    const char *gguf;  /* of a layer: after blk.N. */
    const char *hf;    /* of a layer: after layers.N. ; "": not in safetensors */
    tensor_role role;
    int8_t ne[4];        /* numbers for family_table.dim; 0: none */
    bool may_lack;       /* a file need not have it */
    int8_t change;       /* for family_table.describe */
    const char *also[3]; /* names in other dialects (family_table.dialect); NULL: gguf */
    size_t each; /* F(number): so many tensors of the model, NAME.0.weight, NAME.1.weight, ... */
} table_tensor;

/* T(ALWAYS, W(wq), "attn_q.weight", "self_attn.q_proj.weight", MATRIX, D, Q). T_IF: a file may lack
 * it. T_AS(change, ...): with a change. */
#define TENSOR(when_, at_, gguf_, hf_, role_, ...)                                                 \
    .when = when_, .at = at_, .gguf = gguf_, .hf = hf_, .role = ROLE_##role_, .ne = {__VA_ARGS__}
#define T(...)                                                                                     \
    {                                                                                              \
        TENSOR(__VA_ARGS__)                                                                        \
    }
#define T_IF(...)                                                                                  \
    {                                                                                              \
        TENSOR(__VA_ARGS__), .may_lack = true                                                      \
    }
#define T_AS(change_, ...)                                                                         \
    {                                                                                              \
        TENSOR(__VA_ARGS__), .change = change_                                                     \
    }
/* With its names in the second, third and fourth dialect; a file may have any of them. */
#define ALSO(...) .also = {__VA_ARGS__}
#define T_ALSO(also_, ...)                                                                         \
    {                                                                                              \
        TENSOR(__VA_ARGS__), also_                                                                 \
    }
/* Embedding, last norm and head, for of_model; D and VOCAB are numbers of family_table.dim. Beside
 * a head of its own the embedding is one more matrix. */
#define T_TOKENS(norm_)                                                                            \
    T(table_tied, ELSEWHERE, "token_embd.weight", "embed_tokens.weight", EMBD, D, VOCAB),          \
        T(table_untied, ELSEWHERE, "token_embd.weight", "embed_tokens.weight", MATRIX, D, VOCAB),  \
        T(ALWAYS, norm_, "output_norm.weight", "norm.weight", NORM, D),                            \
        T(table_untied, ELSEWHERE, "output.weight", "", EMBD, D, VOCAB)
/* Rows that several families have, for of_layer, with their structs' names and their numbers of
 * dims. The gated unit: */
#define T_UNIT(when_)                                                                              \
    T(when_, W(gate), "ffn_gate.weight", "mlp.gate_proj.weight", MATRIX, D, FF),                   \
        T(when_, W(up), "ffn_up.weight", "mlp.up_proj.weight", MATRIX, D, FF),                     \
        T(when_, W(down), "ffn_down.weight", "mlp.down_proj.weight", FFN_DOWN, FF, D)
/* The units of experts, of width ff_, which bind_experts binds. hf_: of gate, up and down. */
#define T_EXPERTS(when_, ff_, gate_, up_, down_)                                                   \
    T(when_, ELSEWHERE, "ffn_gate_exps.weight", gate_, MATRIX, D, ff_, N_EXP),                     \
        T(when_, ELSEWHERE, "ffn_up_exps.weight", up_, MATRIX, D, ff_, N_EXP),                     \
        T(when_, ELSEWHERE, "ffn_down_exps.weight", down_, DOWN_EXPERTS, ff_, D, N_EXP)
#define T_MLP_EXPERTS(when_)                                                                       \
    T_EXPERTS(when_, FF_EXP, "mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight",     \
              "mlp.experts.*.down_proj.weight")
/* Queries, keys and values, which bind_qkv binds: */
#define T_QKV                                                                                      \
    T(ALWAYS, ELSEWHERE, "attn_q.weight", "self_attn.q_proj.weight", MATRIX, D, Q),                \
        T(ALWAYS, ELSEWHERE, "attn_k.weight", "self_attn.k_proj.weight", MATRIX, D, KV),           \
        T(ALWAYS, ELSEWHERE, "attn_v.weight", "self_attn.v_proj.weight", ATTN_V, D, KV)
/* The norms of heads: */
#define T_HEAD_NORMS                                                                               \
    T(ALWAYS, W(q_norm), "attn_q_norm.weight", "self_attn.q_norm.weight", QK_NORM, HD),            \
        T(ALWAYS, W(k_norm), "attn_k_norm.weight", "self_attn.k_norm.weight", QK_NORM, HD)
/* Gemma's norms around the gated unit, and after attention: */
#define T_GEMMA_UNIT                                                                               \
    T(ALWAYS, W(attn_post_norm), "post_attention_norm.weight", "post_attention_layernorm.weight",  \
      NORM, D),                                                                                    \
        T(ALWAYS, W(ffn_norm), "ffn_norm.weight", "pre_feedforward_layernorm.weight", NORM, D),    \
        T_UNIT(ALWAYS),                                                                            \
        T(ALWAYS, W(ffn_post_norm), "post_ffw_norm.weight", "post_feedforward_layernorm.weight",   \
          NORM, D)
#define ALWAYS NULL
#define ELSEWHERE 0

struct model;

enum { TABLE_ARCH = 64 };

/* ---- The entry of a family: shape_family.table ---- */

typedef struct family_table {
    const void *sizes; /* shapes with names; layers' numbers in their first item */
    int32_t n_sizes, n_keys, n_of_model, n_of_layer;
    const table_key *keys;
    const table_tensor *of_model, *of_layer;
    int64_t (*dim)(const model_shape *s, int32_t il, int8_t dim); /* a number of table_tensor.ne */
    /* Whether the numbers fit each other: else the status `bad`, with a sentence about `what`. */
    status (*agree)(const model_shape *s, status bad, const char *what, err *e);
    /* The rest may be NULL. */
    void (*fill)(model_shape *s, int32_t size); /* what differs between the layers of a size */
    /* general.architecture, where it is not shape_family.arch; perhaps in buf. */
    const char *(*arch)(const model_shape *s, char buf[TABLE_ARCH]);
    /* From a GGUF file what its tensors tell, before any key is read. */
    status (*tell)(const struct model *m, model_shape *s, err *e);
    /* From a GGUF file what no row reads, before the numbers are compared. */
    status (*read)(const struct model *m, model_shape *s, err *e);
    /* Writes keys of which no row tells whether and how. */
    void (*put)(gguf_writer *w, const char *arch, const model_shape *s);
    const char *prefix; /* of the names of layers' tensors, before blk.N; NULL: none */
    size_t dialect;     /* offset of the number of the dialect that is written; 0: one dialect */
    size_t nextn; /* offset of the number of NextN layers, which are listed behind the others */
    void (*describe)(const model_shape *s, const table_tensor *r, shape_tensor *t); /* quirks */
} family_table;

/* A family's rows, in arrays of these names. */
#define TABLE_ROWS TABLE_ROWS_OF(sizes)
#define TABLE_ROWS_OF(sizes_)                                                                      \
    .sizes = sizes_, .n_sizes = sizeof sizes_ / sizeof *sizes_, .keys = keys,                      \
    .n_keys = sizeof keys / sizeof *keys, .of_model = of_model,                                    \
    .n_of_model = sizeof of_model / sizeof *of_model, .of_layer = of_layer,                        \
    .n_of_layer = sizeof of_layer / sizeof *of_layer
/* The hooks of shape_family for that table. */
#define TABLE_HOOKS(shape, rows_)                                                                  \
    .table = &rows_, .shape_bytes = sizeof(shape), .named = table_named, .check = table_check,     \
    .list = table_list, .put = table_put

/* ---- Verbs ---- */

/* The hooks of shape_family, for families with tables. */
bool table_named(const char *size, model_shape *s);
status table_check(const model_shape *s, const char *what, err *e);
int32_t table_list(const model_shape *s, shape_tensor *out, int32_t cap);
void table_put(gguf_writer *w, const model_shape *s);
/* For shape_family.cut, where the layers that stay are as they were. */
void table_cut(model_shape *s, int32_t n_layer);
void table_put_keys(gguf_writer *w, const char *arch, const model_shape *s); /* all but the name */

/* general.architecture of the files that table_put writes; perhaps in buf. */
const char *table_arch(const model_shape *s, char buf[TABLE_ARCH]);
/* For table_tensor.when: whether the head is the embedding. */
tensor_when table_tied, table_untied;
/* The row's value of layer il, which fields for the whole model ignore. */
double table_value(const model_shape *s, const table_key *r, int32_t il);
/* Sets a row's field to a whole number: that of all layers. */
void table_set(model_shape *s, const table_key *r, int32_t v);
/* For family_table.agree: the status `bad` for heads that do not fit each other. */
status table_agree_heads(int32_t il, int32_t n_head, int32_t n_head_kv, int32_t head_dim,
                         status bad, const char *what, err *e);

#endif
