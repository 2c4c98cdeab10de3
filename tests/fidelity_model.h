/* fidelity_model.h - tiny models of every family made from a recipe, and what transformers computes
 * for them.
 *
 * tests/data/fidelity/NAME.golden holds metadata, tensor recipe, prompt and logits; the weights
 * are drawn here, bit-identical to those of tools/fidelity_fixtures.py and
 * fidelity_families.py (the former has the formula).
 * The writer can make every generation of model files in circulation, and broken ones.
 */
#ifndef TESTS_FIDELITY_MODEL_H
#define TESTS_FIDELITY_MODEL_H

#include "format/gguf.h"

extern const char *const fidelity_names[];    /* "all", "e2b", ...; ends with NULL */
extern const char *const fidelity_encoders[]; /* with vectors instead of logits; ends with NULL */

typedef struct fidelity {
    const char *name;
    char arch[32]; /* the model's general.architecture */
    gguf golden;
    int32_t n_tokens, n_vocab, n_layer, n_shared;
    int32_t window;  /* of models without one a small number, for sizes of chunks */
    bool has_states; /* recurrent layers: no rewinding but to pending rows and snapshots */
    bool has_rings;
    int32_t *tokens;
    const float *logits;         /* [n_tokens, n_vocab]; NULL: of an encoder */
    const float *vectors;        /* of an encoder: [n_embd] of each text (fidelity_length) */
    double floor_max, floor_rms; /* distance of transformers' own f32 and f64 results */
} fidelity;

void fidelity_open(fidelity *f, const char *name); /* a failure fails the test */
void fidelity_close(fidelity *f);
/* The number of tokens of text i of an encoder; 0: there are no more. */
int32_t fidelity_length(const fidelity *f, int32_t i);

/* How the model file differs from the plain one; zeroed: the plain one. */
typedef struct fidelity_file {
    bool unused_kv;     /* shared layers carry keys and values that nothing may read */
    bool split_experts; /* ffn_gate_exps and ffn_up_exps instead of ffn_gate_up_exps */
    bool no_rope_freqs; /* the reader must know which pairs rotate */
    bool other_arity;   /* per-layer scalars as arrays (and a u32 array where i32 is usual) */
    bool no_ple_key;    /* embedding_length_per_layer_input left out */
    uint32_t type;      /* a num_type for matrices whose rows fit its blocks; 0 (f32): all f32 */
    const char *nan_tensor; /* element `nan_at` becomes NaN */
    uint64_t nan_at;
    const char *scaled_tensor; /* all elements times `scale` */
    float scale;
    const char *drop_key, *drop_tensor; /* left out */
    const char *set_key;                /* a number, replaced by a u32 of this value */
    uint32_t set_value;
    const char *const (*renamed)[2]; /* ends of keys and tensor names, and others; ends with NULL */
    bool fused_qkv;                  /* attn_qkv instead of attn_q, attn_k and attn_v */
    const char *add_tensor;          /* one more: a single f32 */
} fidelity_file;

/* Writes a model file into the test's temporary directory and returns its path. v may be NULL. */
const char *fidelity_write(const fidelity *f, const fidelity_file *v);
/* Numbers as all fixtures draw them: array i of a fixture with seed s has seed s + i. */
void fidelity_draw(float *w, uint64_t n, uint64_t seed, double mean, double sigma);
/* Hash of all weights in the golden file's order; equal to the key fidelity.fingerprint. */
uint64_t fidelity_fingerprint(const fidelity *f);

/* Opens a model and a session, computes 8 ids, takes a snapshot and restores it; for tests in which
 * allocations fail. */
status fidelity_restores(const char *path, const carat_model_options *mo, const int32_t *ids,
                         err *e);

#endif
