/* inspect_int.h - the report of carat inspect, as text and as JSON. */
#ifndef APPS_INSPECT_INT_H
#define APPS_INSPECT_INT_H

#include "carat.h"
#include "base/json.h"
#include "model/audio.h"
#include "model/draft_kind.h"
#include "model/lora.h"
#include "model/model.h"
#include "model/vision.h"

enum {
    INSPECT_ITEMS = 8,  /* items of a long array that are shown */
    INSPECT_KINDS = 32, /* kinds of layers by their stores of keys and values */
    INSPECT_FEATURES = 16,
    INSPECT_ENDS = 8,
    INSPECT_COSTS = 6 /* budgets of a picture */
};

/* A drafter's facts: inspect_draft.c. */
typedef struct inspect_draft {
    draft_kind kind; /* DRAFT_NONE: the file is no drafter */
    bool own;        /* the NextN layer of a model's file: kind is DRAFT_NONE */
    char what[200];  /* "a DFlash drafter" */
    bool known;      /* else why_not says why it cannot be used */
    err why_not;
    model core; /* bound */
    char family[80];
    const char *dialect;
    int32_t n_layer, n_sliding, n_embd, n_target_embd, n_head, n_ff;
    int32_t window;             /* 0: none, or not stated */
    char head[80], notes[2048]; /* notes: a line each */
    /* Of DFlash alone. n_features 0: the file lists none that make sense. */
    int32_t n_features, feature[INSPECT_FEATURES], block, n_drafts, mask_id, n_causal;
    bool anchor_first;
    uint64_t token_bytes, state_bytes; /* of its keys, in f16: by token, and of all windows */
    /* With --target. */
    carat_memory_plan plan; /* of both; n_ctx 0: none, and plan_why says why */
    err plan_why;
} inspect_draft;

/* Fills *d, which is zeroed. Only a drafter that carat runs gets more than a kind. */
void inspect_draft_open(inspect_draft *d, const char *path, const gguf *g);
/* where: the device of a smaller model, if it is not the target's; or NULL. */
void inspect_draft_plan(inspect_draft *d, const char *path, const char *target, const char *where,
                        const carat_model_options *opt, const carat_session_options *so);
void inspect_draft_close(inspect_draft *d);
void inspect_draft_put(const inspect_draft *d, const char *target); /* target NULL: none given */
json_t *inspect_draft_json(const inspect_draft *d);

/* The vocabulary: inspect_words.c. */
typedef struct inspect_words {
    bool known; /* else the file has none, or is not a model that carat runs */
    char model[32], pre[32];
    uint64_t n_tokens, n_merges;
    int32_t bos;                       /* raw prompts begin with it; -1: none */
    int32_t end[INSPECT_ENDS], n_ends; /* tokens that end an answer; n_ends may exceed the list */
    bool chat;                         /* the template is known */
    const carat_model *m;              /* must outlive this */
} inspect_words;

void inspect_words_read(inspect_words *w, const gguf *g, const carat_model *m); /* m may be NULL */
void inspect_words_put(const inspect_words *w);
json_t *inspect_words_json(const inspect_words *w);

/* A vision tower's facts, and those of the audio tower in its file: inspect_vision.c. */
typedef struct inspect_cost {
    int32_t budget; /* 0: the picture's own size */
    image_grid grid;
    double tflop; /* about */
} inspect_cost;
typedef struct inspect_vision {
    bool is_tower; /* the file itself is one; else it is the tower beside a model, or there is none
                    */
    model core;    /* bound */
    const vision *tower; /* NULL: why_not says why */
    err why_not;
    int32_t width, height; /* of the picture */
    inspect_cost cost[INSPECT_COSTS];
    int32_t n_costs;
    model ears;         /* bound, if hears or deaf is set */
    const audio *hears; /* NULL: the file has no audio tower, or `deaf` says why */
    err deaf;
} inspect_vision;

/* What to count: a picture's file, or NULL for one of a usual size; tokens as
 * carat_model_options.image_tokens has them, 0: several numbers of them. */
typedef struct inspect_picture {
    const char *file;
    int32_t tokens;
} inspect_picture;

bool inspect_is_tower(const gguf *g);
/* Fills *v, which is zeroed, with the tower in a file. Fails for a picture that cannot be read. */
status inspect_vision_open(inspect_vision *v, const char *path, const inspect_picture *picture,
                           err *e);
void inspect_vision_close(inspect_vision *v);
void inspect_vision_put(const inspect_vision *v);
json_t *inspect_vision_json(const inspect_vision *v);
json_t *inspect_audio_json(const inspect_vision *v);

/* An adapter's facts: inspect_lora.c. */
typedef struct inspect_lora {
    bool is_adapter, known; /* known: carat takes it; else why_not says why it does not */
    lora_file is;
    err why_not;
    bool asked, fits; /* beside a model; else misfit says why not */
    err misfit;
} inspect_lora;

/* target: a model's file; NULL: none. */
void inspect_lora_open(inspect_lora *x, gguf *g, const char *target);
void inspect_lora_put(const inspect_lora *x);
json_t *inspect_lora_json(const inspect_lora *x);

typedef struct inspect_report {
    const gguf *g;
    uint64_t n_of_type[NUM_TYPE_END], bytes_of_type[NUM_TYPE_END];
    uint64_t n_params, n_active;   /* active: read per token, the head included */
    const carat_model_info *model; /* NULL: not a model that carat runs */
    carat_memory_plan plan;        /* n_ctx 0: none */
    carat_kv_kind kind[INSPECT_KINDS];
    int32_t n_kinds; /* may exceed INSPECT_KINDS */
    carat_weight_kind weight[INSPECT_KINDS];
    int32_t n_weights;
    err why_not; /* why there is no model or no plan */
    inspect_draft draft;
    inspect_vision vision;
    inspect_lora lora;
    inspect_words words;
} inspect_report;

status inspect_json(const inspect_report *r, err *e); /* one object on stdout */

/* inspect_gpu.c: the plans of sessions on GPUs of these sizes ("24GB,8GB"), to stdout. */
status inspect_gpus(const char *path, const char *sizes, const carat_model_options *opt,
                    const carat_session_options *so, bool json, err *e);

#endif
