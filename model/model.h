/* model.h - a model file bound to shapes and weights, and the registry of architectures.
 *
 * Three steps: model_bind reads shapes and finds weights (no device, nothing large touched);
 * model_plan computes the cost of a context; model_load puts the weights on the device. A loaded
 * model is read-only and may serve many sessions.
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H

#include "model/res_stream.h"
#include "backend/ops.h"
#include "format/gguf.h"
#include "kv/kv.h"

typedef struct model model;
typedef struct model_lora model_lora;

/* The publisher's recommendation, for values that the file does not state. */
typedef struct model_sampling {
    float temperature, top_p, min_p;
    int32_t top_k;
} model_sampling;

typedef struct model_arch {
    const char *name;   /* general.architecture */
    bool tower;         /* makes embeddings of pictures, for a model of another file: vision.h */
    const char *prefix; /* of the names of layers' tensors, before blk.N; NULL: none */
    model_sampling sampling;
    status (*bind)(model *m, err *e);
    /* Logits [p->st->out.n, n_vocab] of the wanted rows; without wanted rows a mat without rows. In
     * a hidden pass the normed input of the head, [p->st->out.n, n_embd], instead. */
    mat (*forward)(pass *p, const model *m, const kv_layout *kv);
    /* Sets the side of every weight and store, from m->layer_side and m->expert_side. */
    status (*divide)(model *m, err *e);
    /* Of a tensor split (tensor_split.h). at_rank: points the copy of the architecture's own data
     * at that of its layers; NULL: the family is not split so. kv_of: the store that a layer reads,
     * -1 in a recurrent layer; NULL: that of its number. */
    void (*at_rank)(model *rank);
    int32_t (*kv_of)(const model *m, int32_t il);
    const struct model_arch *nextn; /* how its NextN layers bind, as a drafter; NULL: it has none */
    const struct model_arch *audio; /* how its audio tower binds (audio.h); NULL: it has none */
} model_arch;

/* NULL: no architecture that carat runs as a model. */
const model_sampling *model_usual_sampling(const char *arch);

/* The first fields of every struct of a layer. rope: of `side`; an array by side has those of the
 * other sides beside it. NULL: the layer does not rotate. */
typedef struct model_layer {
    int8_t side; /* the index of its device: pass.h */
    const rope *rope;
} model_layer;
#define MODEL_LAYER                                                                                \
    union {                                                                                        \
        model_layer common;                                                                        \
        struct {                                                                                   \
            int8_t side;                                                                           \
            const rope *rope;                                                                      \
        };                                                                                         \
    }

/* Host memory until model_load copies it to its side's device. */
typedef struct model_table {
    const void **at;
    size_t n_bytes;
    int8_t side;
    bool moved;
} model_table;

/* A layer's experts. up NULL: gate holds both. Of a tensor split each rank has a list of its own
 * weights, whose segments are its parts (weight.segment). */
typedef struct model_experts {
    weight *gate, *up, *down;
    int32_t il, n_experts, n_used; /* n_used: of a row */
    /* Floats: the router; the weight of the norm before it; what it adds to choose, or NULL. */
    const weight *router, *router_in, *router_bias;
} model_experts;

enum { MODEL_TABLES_MAX = 8 + 4 * PASS_SIDES_MAX };

struct model {
    const model_arch *arch;
    gguf file;        /* owned */
    const char *name; /* general.name or the file's name */
    int32_t n_layer, n_embd, n_vocab, n_ctx_train, window;
    int32_t joined_from; /* this layer and all later ones belong on one device */
    /* What a drafter borrows; NULL where an architecture has none. head: of a tensor split the
     * rank's rows of it (model_head). */
    const weight *embd, *head;
    const weight
        *answers; /* of a reranker's file: the head's rows of "yes" and "no"; host memory */
    float embd_scale, softcap; /* softcap 0: none */
    int32_t n_kv;              /* layers that own keys */
    kv_spec *kv;               /* [n_kv] */
    int32_t n_recur;           /* recurrent layers */
    recur_view *recur;         /* [n_recur]: their shapes and sides; journal_rows is the layout's */
    uint64_t n_params, n_params_active, active_bytes; /* active: per decoded token, with the head */
    int32_t n_suppress;
    const int32_t *suppress; /* ids never generated */
    void *layers;       /* [n_layer] the architecture's structs, which begin with MODEL_LAYER */
    size_t layer_bytes; /* of one */
    void *impl;         /* the architecture's own data, in mem */
    size_t impl_bytes;
    int32_t n_ranks; /* 0: not split by tensors */
    model *rank;     /* [n_ranks - 1] the other ranks, which borrow all but their structs */
    struct ranks *ranks;
    int32_t n_deep;     /* deepstack: so many of the first layers add rows of pictures */
    bool turns_by_axes; /* its rotation has sections for time, row and column */
    bool axes;          /* rows of passes have positions on these axes: it sees pictures */
    bool encoder;       /* tokens see later ones: a text is computed in one pass, and there is no
                           head that would write another */
    bool *claimed;      /* [tensors of the file], in mem: bound, or known to be unneeded */
    weight **weights;   /* all weights of the forward pass, and of adapters, for loading */
    int32_t n_weights, weights_cap;
    model_table *tables; /* small computed arrays (rotation frequencies, id lists) */
    int32_t n_tables;
    model_lora *loras; /* [n_loras] adapters: lora.h */
    int32_t n_loras;
    int32_t n_sides;        /* 1: not divided */
    model_experts *experts; /* [n_expert_layers], layers with experts in ascending order */
    int32_t n_expert_layers;
    int8_t *layer_side, *expert_side; /* [n_layer] each: the layer's side; its experts' */
    device *dev[PASS_SIDES_MAX];      /* borrowed; dev[PASS_MAIN] is NULL until loaded */
    carat_progress_fn progress;       /* of towers: asked before each layer; may be NULL */
    void *progress_user;
    arena mem;
};

/* Takes ownership of g (and zeroes it) on success and on failure. */
status model_bind(model *m, gguf *g, err *e);
/* The same of the file's NextN layers, which draft for the model of the same file or of another.
 * E_UNSUPPORTED where the architecture has none. */
status model_bind_nextn(model *m, gguf *g, err *e);
/* The same of the audio tower that an mmproj file has beside the vision tower, or alone. */
status model_bind_audio(model *m, gguf *g, err *e);
/* The number of NextN layers that a file states; 0 where its architecture has none. */
int32_t model_nextn_layers(const gguf *g);
/* Divides m between devices, before planning and loading: a side for each layer and for each
 * layer's experts, [n_layer] each. others[i] is the device of side 1 + i and outlives m. The
 * embeddings go with the first layer. E_ARG, with a sentence, for an impossible division. */
status model_place(model *m, device *const *others, int32_t n_others, const int8_t *layer_side,
                   const int8_t *expert_side, err *e);
/* The number of layers on a side. */
int32_t model_layers_on(const model *m, int32_t side);
/* The layer that w belongs to; -1: none. */
int32_t model_layer_of(const model *m, const weight *w);
/* What w takes of d's memory. A device in the host's memory may read it from the file. */
uint64_t model_weight_bytes(const device *d, const weight *w);
/* dev outlives m. progress may be NULL; it is called with "bytes loaded". */
status model_load(model *m, device *dev, carat_progress_fn progress, void *user, err *e);
/* Gives back what the weights take on the device, and takes it again: the same numbers, perhaps
 * elsewhere. No pass may run in between. */
void model_unload_weights(model *m);
status model_load_weights(model *m, carat_progress_fn progress, void *user, err *e);
void model_free(model *m); /* safe on a zeroed or freed model */

/* The costs of one side. */
typedef struct model_side_costs {
    size_t scratch_bytes;                 /* of a pass */
    uint64_t repack_bytes, largest_bytes; /* of all copied weights; of the largest */
    uint64_t table_bytes;                 /* of the computed tables */
    uint64_t file_bytes;                  /* of its weights in the file */
    page_query_size query;                /* of a row with logits */
    uint64_t crossing_bytes;              /* that come from other sides, for a row */
} model_side_costs;

/* The costs of a pass of `rows` rows, `outs` of them with logits. */
typedef struct model_costs {
    uint64_t flops, weight_bytes;
    model_side_costs side[PASS_SIDES_MAX];
} model_costs;

/* Runs dry passes on dev, which need not hold the weights, and on the model's other devices: a pass
 * of a prompt's rows, and, where that makes a difference and all rows want logits, one of answers.
 * taps: those of the planned passes; may be NULL. */
status model_plan(const model *m, device *dev, const kv_layout *kv, int32_t rows, int32_t outs,
                  const pass_taps *taps, model_costs *c, err *e);

/* The scratch of each side for a hidden pass of `rows` rows of prompts, `outs` of them wanted. */
status model_plan_hidden(const model *m, device *dev, const kv_layout *kv, int32_t rows,
                         int32_t outs, size_t scratch_bytes[PASS_SIDES_MAX], err *e);

/* The same for a pass whose `rows` rows are asked what they attend to (pass.tail). *n_layers: how
 * many layers answer; 0: the family does not. */
status model_plan_tail(const model *m, device *dev, const kv_layout *kv, int32_t rows,
                       size_t scratch_bytes[PASS_SIDES_MAX], int32_t *n_layers, err *e);

/* The hidden pass with the head over `slice` of the wanted rows after it. */
status model_plan_head(const model *m, device *dev, const kv_layout *kv, int32_t rows, int32_t outs,
                       int32_t slice, size_t scratch_bytes[PASS_SIDES_MAX], err *e);

/* The forward pass over the rows of p's step: the logits [wanted rows, n_vocab]; of a hidden pass
 * the normed hidden rows [wanted rows, n_embd]. In p's scratch. Errors stay in p (pass_failed). */
mat model_forward(pass *p, const model *m, const kv_layout *kv);
/* The logits [x->rows, n_vocab] of rows that a hidden pass gave, as another pass would compute them
 * that is no hidden one. On m's main side, where the pass is: of a drafter's pass side p->target.
 * x: [n_x] the same rows on m's sides 0 to n_x - 1; a rank of a head that is cut gets a copy if its
 * side is none of these. */
mat model_head(pass *p, const model *m, const mat *x, int32_t n_x);
/* For architectures whose layers pass on rows alone: embeds the tokens, runs every layer, and ends
 * as model_finish does. `layer` gets the normed stream h and adds its results to s->x. After its
 * keys are stored it may cut s->x down to the wanted rows where model_cuts_rows says so; if none
 * are left, it returns at once. Else it ends with res_leave. */
typedef void model_layer_fn(pass *p, const model *m, int32_t il, const kv_layout *kv, res_stream *s,
                            mat h);
/* The norm that layer il begins with; of n_layer: that of the output head. */
typedef const weight *model_norm_fn(const model *m, int32_t il);
mat model_run(pass *p, const model *m, const kv_layout *kv, model_layer_fn *layer,
              model_norm_fn *norm, float eps);
/* Whether only the wanted rows go on in layer il: it is the last, and no tap reads it. */
bool model_cuts_rows(const pass *p, const model *m, int32_t il);
/* For architectures: the end of a forward pass, after the last layer. The wanted rows of the
 * stream, normed; through the head, unless the pass is a hidden one. */
mat model_finish(pass *p, const model *m, res_stream *s, const weight *norm);

/* For architectures, inside model/ only: a weight of the given shape. If it is missing: E_FORMAT,
 * or *w stays empty (n_in == 0) if optional. n_mat is 1 except for experts. Adds to the totals. */
typedef struct model_want {
    const char *name;
    int64_t n_in, n_out, n_mat; /* n_out 0: take the file's */
    bool optional;
    bool gather; /* rows are gathered, never multiplied */
    bool flat;   /* the tensor's matrices follow each other, as rows of one */
    bool folded; /* its first three dims are one row, its fourth the rows */
    bool f32;    /* must be F32 (norms, scales) */
    bool host;   /* read by the host alone: not loaded */
    bool
        own_scale; /* NAME.scale of NVFP4 is a weight of the family, and no factor of the product */
    int64_t of_rows,
        row;       /* of_rows > 0: the tensor has that many rows; n_out of them, from `row` */
    double active; /* share read per token: 1, k/E for experts, 0 for gathered tables */
} model_want;
status model_weight(model *m, weight *w, const model_want *want, err *e);
/* w is loaded with the model's weights from now on. */
status model_remember(model *m, weight *w, err *e);
/* The tensor of that name, as one that has a place; NULL: there is none. A file with a tensor that
 * has none when bind returns is refused (unplaced.h). */
const tensor *model_claim(model *m, const char *name);
/* The same for the tensors of the layers from lo on and below hi; outside: for all others. */
void model_claim_layers(model *m, int32_t lo, int32_t hi, bool outside);
/* Registers n_bytes at *at, in m->mem, for a move to the main device. E_LIMIT at
 * MODEL_TABLES_MAX. */
status model_add_table(model *m, const void **at, size_t n_bytes, err *e);
/* Registers the same bytes for another side: *at becomes that side's copy. */
status model_copy_table(model *m, const void *const *table, const void **at, int8_t side, err *e);

#endif
