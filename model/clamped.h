/* clamped.h - products whose inputs and outputs have bounds: those of the towers of Gemma 4 E2B and
 * E4B. */
#ifndef MODEL_CLAMPED_H
#define MODEL_CLAMPED_H

#include "model/bind.h"

/* A product whose input and output are clamped; infinite bounds do nothing. */
typedef struct clamped_weight {
    weight w;
    float in_low, in_high, out_low, out_high;
} clamped_weight;

/* Rows of such a product in a family's table: its matrix in `at.w`, and its bounds, numbers of the
 * host that clamped_bind reads, where `when` says so. W is the file's own. */
#define CLAMPED(W, when, field, gguf_, hf_, role_, ...)                                            \
    T(ALWAYS, W(field.w), gguf_ ".weight", hf_ ".linear.weight", role_, __VA_ARGS__),              \
        T(when, ELSEWHERE, gguf_ ".input_min", hf_ ".input_min", LOW, ONE),                        \
        T(when, ELSEWHERE, gguf_ ".input_max", hf_ ".input_max", HIGH, ONE),                       \
        T(when, ELSEWHERE, gguf_ ".output_min", hf_ ".output_min", LOW, ONE),                      \
        T(when, ELSEWHERE, gguf_ ".output_max", hf_ ".output_max", HIGH, ONE)

/* The bounds of the product that table_bind has bound; name: of its tensors, without their ends.
 * Errors as of bind_tensor. */
status clamped_bind(const binder *b, clamped_weight *w, const char *name);
mat clamped_product(pass *p, mat x, const clamped_weight *w);
/* y[i] = w[i] x. Neighbours with equal bounds share the clamped input. */
void clamped_products(pass *p, mat *y, mat x, const clamped_weight *const *w, int n);

#endif
