/* convert_int.h - the parts of carat convert: configuration, vocabulary, weights (convert.c). */
#ifndef APPS_CONVERT_INT_H
#define APPS_CONVERT_INT_H

#include "base/map.h"
#include "model/gemma4_shapes.h"
#include "base/json.h"
#include "model/table.h"
#include "format/safetensors.h"
#include "text/family.h"
#include "text/jtree.h"

enum { CONVERT_JSON_MAX = 512 << 20 }; /* a tokenizer.json is 33 MB */

/* Parses dir/name. If the file is missing and not required: OK with *out NULL. */
status convert_read_json(json_t **out, const char *dir, const char *name, bool required, err *e);

/* ---- config.json ---- */

/* The fields of one object, with their first failure: callers list fields without checks. */
typedef struct config_fields {
    const json_t *object;
    const char *path;
    status st;
    err *e;
} config_fields;

const json_t *config_get(const config_fields *f, const char *key); /* null counts as absent */
void config_refuse(config_fields *f, const char *key, const char *expected);
int32_t config_whole(config_fields *f, const char *key); /* 0 to INT32_MAX; 8.0 is 8 */
int32_t config_whole_or(config_fields *f, const char *key, int32_t otherwise);
double config_real(config_fields *f, const char *key);
double config_real_or(config_fields *f, const char *key, double otherwise);
/* A whole number from lo to hi, spelled as an integer or with zeros after the point. False leaves
 * *out. */
bool config_integer(const json_t *v, int64_t lo, int64_t hi, int32_t *out);
bool config_truth(config_fields *f, const char *key); /* absent: false */
/* Appends the names of keys that are not in the list. unknown NULL: not wanted. */
void config_list_unknown(const config_fields *f, const char *const *known, str *unknown);

/* Keys that leave the logits unchanged, or that these models never set: for training, for other
 * programs, or token ids, which the tokenizer's files state. */
#define CONFIG_WITHOUT_EFFECT                                                                      \
    "architectures", "attention_dropout", "auto_map", "_attn_implementation",                      \
        "_experts_implementation", "_name_or_path", "bos_token_id", "eos_token_id",                \
        "pad_token_id", "dtype", "torch_dtype", "initializer_range", "use_cache",                  \
        "transformers_version", "output_router_logits", "router_aux_loss_coef",                    \
        "router_jitter_noise", "chunk_size_feed_forward", "id2label", "label2id",                  \
        "is_encoder_decoder", "output_attentions", "output_hidden_states", "problem_type",         \
        "return_dict"

/* An option with one value that has no effect, besides null and false; NULL: there is none. */
typedef struct neutral_option {
    const char *key, *neutral;
} neutral_option;

/* Whether both name the same thing: published files spell functions and types in several ways. */
bool config_same(const char *have, const char *want);
/* Whether an option's value has no effect: absent, null, false, zero, the neutral text by any of
 * its names, or a rotation that changes nothing. */
bool config_is_neutral(const json_t *v, const char *neutral);
/* The kind of a rotation; sections of pairs by axis mean nothing for texts, and a linear one by 1
 * changes nothing. A factor without a kind is no rotation that the reference defines. */
const char *config_rope_kind(const json_t *rope);
/* One rotation: default, linear, or YaRN. What `rope` does not state is taken from f's own keys,
 * else *theta and *part keep their values. rope NULL: f's own keys alone. part NULL: whole heads
 * are expected. more: keys that the caller reads; ends with NULL; may be NULL. */
void config_rope(config_fields *f, const json_t *rope, const char *const *more, double *theta,
                 double *part, rope_scaling *y);

/* layer_types: "sliding_attention" or "full_attention" for each layer. */
void convert_gemma4_layers(config_fields *f, gemma4_shape *s);
/* rope_parameters: {"full_attention": {...}, "sliding_attention": {...}}. A proportional rotation
 * turns a part of the pairs, with frequencies divided by `factor`; a default one heeds neither. */
void convert_gemma4_rope(config_fields *f, gemma4_shape *s);
/* per_layer_config: newer files state the differences between layers in a table by layer number,
 * not in global_*. The layers' kinds, and the sizes of both kinds, are set. */
void convert_gemma4_overrides(config_fields *f, gemma4_shape *s);

/* A list with an entry for each layer; NULL: there is none, or f failed. */
const json_t *config_by_layer(config_fields *f, const char *key, int32_t n_layer);
/* Sets is[il] where that list has `yes`, clears it where it has `no`; refuses other entries. */
void config_kinds(config_fields *f, const char *key, int32_t n_layer, bool *is, const char *yes,
                  const char *no);

/* What config.json says of a family's models beside the keys of its table (model/table.h). */
typedef struct config_family {
    const shape_family *shapes;
    const char *types[6];          /* values of model_type, or "beginning*"; ends with NULL */
    const neutral_option *options; /* that no published file sets; ends with a NULL key */
    const char *const *more;       /* keys that `read` reads, or that say nothing; ends with NULL */
    void (*read)(config_fields *f, model_shape *s); /* values that no row reads */
    bool tied;        /* the head is the embedding, if no field says so */
    const char *flag; /* a field that is true in these models alone; NULL: none */
    void (*whole)(config_fields *f, model_shape *s); /* the same of all of config.json, or NULL */
} config_family;

/* config.json, or the text_config of a multimodal one. *s: mem_free. unknown: as
 * convert_read_shape. */
status config_read_shape(const config_family *c, const json_t *config, const char *path,
                         model_shape **s, str *unknown, err *e);
bool config_is_type(const config_family *c, const char *type);
/* E_UNSUPPORTED: a model_type that no family has; with those that are converted. */
status config_refuse_type(const char *path, const char *type, err *e);
extern const config_family config_families[]; /* ends with shapes NULL: convert_families.c */

/* Reads config.json, or the text_config of a multimodal one, to a shape (mem_free). unknown
 * receives the names of unknown keys, separated by ", "; may be NULL. E_UNSUPPORTED: of no known
 * family. */
status convert_read_shape(const json_t *config, const char *path, model_shape **s, str *unknown,
                          err *e);

/* Whether the configuration is that of a drafter, of any family. */
bool convert_is_draft(const json_t *config);
/* The same for drafters. dir_name: the directory's name, which tells the layout of some.
 * E_UNSUPPORTED for families that carat does not run: the sentence names them. */
status convert_draft_shape(const json_t *config, const char *path, const char *dir_name,
                           model_shape **s, str *unknown, err *e); /* convert_draft_config.c */

/* ---- Weights ---- */

enum { CONVERT_SOURCES_MAX = 16 };

/* One tensor of the new file and its sources. */
typedef struct convert_item {
    shape_tensor t;
    const tensor *source[CONVERT_SOURCES_MAX]; /* each gives the same number of rows */
    const tensor **experts;                    /* of all experts, instead of source; mem_free */
    int32_t n_sources;                         /* 0: computed, or zeros for a bias */
    uint64_t first_row;                        /* of the source */
    num_type type;
} convert_item;

/* ---- What sentence-transformers adds to a model: convert_sentence.c ---- */

enum { SENTENCE_DENSE_MAX = 2 };
typedef struct sentence_modules {
    int32_t pooling; /* as GGUF files number it; 0: none */
    int32_t n_dense, n_out[SENTENCE_DENSE_MAX];
    safetensors dense[SENTENCE_DENSE_MAX];
    json_t *config; /* config_sentence_transformers.json; NULL: there is none */
} sentence_modules;

/* A directory without modules.json: OK, and *x is zeroed. */
status sentence_modules_read(sentence_modules *x, const char *dir, err *e);
void sentence_modules_free(sentence_modules *x); /* safe on a zeroed or freed one */
/* Sets what the shape has of it. E_UNSUPPORTED: the family has no place for it. */
status sentence_modules_apply(const sentence_modules *x, model_shape *s, const char *dir,
                              str *notes, err *e);
/* The tensor "2_Dense.linear.weight" of the first dense layer, or that of the second; else NULL. */
const tensor *sentence_modules_find(const sentence_modules *x, const char *name);
status sentence_modules_put(const sentence_modules *x, gguf_writer *w, err *e);

typedef struct convert_job {
    const model_shape *s;
    const safetensors *from;
    const sentence_modules *sentence; /* NULL: none */
    bool *used;                       /* [tensors of from], of a model; mem_free */
    convert_item *at;                 /* [n]; mem_free */
    int32_t n;
    /* Reads the written file as a program that runs it does, before it gets its name, `path`. */
    status (*check)(const struct convert_job *j, const file_map *m, const char *path, err *e);
} convert_job;

static inline const tensor *convert_source(const convert_item *it, uint64_t i)
{
    return it->experts ? it->experts[i] : it->source[i];
}

/* Checks for the same shape, and for floats. */
status convert_check_source(const shape_tensor *t, const tensor *src, const char *path, err *e);
/* Items whose source has another order of elements (hf_change.every and .turned):
 * convert_turned.c. */
static inline bool convert_is_turned(const convert_item *it)
{
    return it->t.change.turned || it->t.change.every;
}
/* Whether it has two sources, NAME_blocks and NAME_scales, which are MXFP4. */
bool convert_in_blocks(const convert_item *it);
status convert_check_turned(const convert_item *it, const char *path, err *e);
/* Row r of an item in blocks, and of another. */
void convert_block_row(const convert_item *it, uint64_t r, unsigned char *to);
void convert_turned_row(const convert_item *it, uint64_t r, float *x);
/* Items of towers whose source has another order: convert_tower.c. */
bool convert_is_pictured(const convert_item *it);
void convert_pictured_row(const convert_item *it, uint64_t r, float *x);
/* As tensor_check_row. */
status convert_check_pictured(const convert_item *it, uint64_t r, const float *x, err *e);
/* Values of a type of floats that convert_check_source takes. */
void convert_floats(num_type type, const unsigned char *from, float *x, uint64_t n);
/* Row r of an item as floats. Not of an item in blocks. */
void convert_decode_row(const convert_item *it, uint64_t r, float *x);

/* The tokenizer data of a directory. */
typedef struct convert_vocab {
    json_t *generation, *config;
    const text_family *family;
    const tokenizer_name *kind; /* what model and pre the file will state */
    /* tokenizer.json: pieces may hold U+0000, which jansson's keys cannot. tokenizer_config.json:
     * states "no longest text" as an integer of 31 digits, which jansson refuses. NULL: no file. */
    const jtree *tokenizer, *tokenizer_config;
    char *template;     /* Jinja source, or NULL */
    int32_t n;          /* tokens; 0: the directory has no tokenizer */
    int32_t most;       /* ids must be below it; 0: any that carat reads */
    gguf_string *piece; /* [n], into the trees */
    int32_t *type;      /* [n] */
    float *score;       /* [n] */
    gguf_string *merge; /* [n_merges] */
    uint64_t n_merges;
    bool space_first; /* of kinds with SPACE_FIRST */
    arena mem;
} convert_vocab;

/* ---- convert_scores.c ---- */

/* Fills v->score by the merges of v. */
status convert_scores(convert_vocab *v, err *e);
/* Whether tokenizer.json spells spaces as SentencePiece does, and falls back to bytes;
 * *space_first: a space stands before a text. */
bool convert_is_spaced(const jtree *tokenizer, bool *space_first);

status convert_vocab_read(convert_vocab *v, const char *dir, err *e);
/* The part of it that reads v->tokenizer, for v->family. */
status convert_vocab_take(convert_vocab *v, err *e);
/* Cuts or extends the vocabulary to n tokens, the rows of the embedding. */
status convert_vocab_fit(convert_vocab *v, int32_t n, err *e);
status convert_vocab_put(const convert_vocab *v, gguf_writer *w,
                         err *e);          /* also general.sampling.* */
void convert_vocab_free(convert_vocab *v); /* safe on a zeroed or freed one */

/* Source and target of one conversion. */
typedef struct convert_request {
    const char *dir, *out;
    const weight_mix *mix;
    const char *name; /* general.name; NULL: the directory's name */
    int32_t n_threads;
    str *unknown; /* see convert_read_shape; NULL: not wanted */
    str *notes;   /* receives a sentence about what the files lack; NULL: not wanted */
    /* Of drafters: the model's file, for checks and the tokenizer, and the dialect; may be NULL. */
    const char *target, *dialect;
    const char *mmproj; /* the file for the vision tower; NULL: none is written */
} convert_request;

/* Writes the file of a job, which appears only after j->check. words and target are sources of a
 * tokenizer, and may be NULL. */
status convert_write(const convert_request *r, const convert_job *j, const convert_vocab *words,
                     const gguf *target, uint64_t *n_bytes, err *e);
/* A drafter: convert_draft.c. r->mix NULL: Q8_0. */
status convert_draft(const convert_request *r, const json_t *config, uint64_t *n_bytes, err *e);

/* The vision tower of a checkpoint: convert_tower.c. E_ARG: it has none. */
status convert_tower(const convert_request *r, const json_t *config, uint64_t *n_bytes, err *e);

/* Converts a model. mix NULL: bf16, of drafters Q8_0. *n_bytes: the size of the new file. */
status convert_model(const convert_request *r, uint64_t *n_bytes, err *e); /* convert.c */

/* ---- The tensors of a model: convert_items.c ---- */

/* Finds every tensor of the shape in the files: j->at. n_vocab may shrink to the tokenizer's size.
 * Tensors that are left over are refused, unless the format allows it. */
status convert_plan_items(convert_job *j, model_shape *s, const weight_mix *mix, int32_t n_tokens,
                          str *notes, err *e);
bool convert_has_head(const tensor_set *t); /* of its own, besides the embedding */
/* Notes norms that look as if another program had added 1 to them before. */
void convert_note_shifted_norms(const convert_job *j, str *notes);

/* ---- Adapters: convert_lora.c ---- */

/* Where the row or column i of the file is in the checkpoint. */
uint64_t convert_place_before(const hf_change *c, uint64_t i);
/* Is the directory an adapter of PEFT? */
bool convert_is_lora(const char *dir);
status convert_lora(const convert_request *r, uint64_t *n_bytes, err *e);

#endif
