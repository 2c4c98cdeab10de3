/* inspect_int.h - the report of carat inspect, as text and as JSON. */
#ifndef APPS_INSPECT_INT_H
#define APPS_INSPECT_INT_H

#include "carat.h"
#include "format/gguf.h"
#include "num/num.h"

enum {
    INSPECT_ITEMS = 8, /* items of a long array that are shown */
    INSPECT_KINDS = 32 /* kinds of layers by their stores of keys and values */
};

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
} inspect_report;

status inspect_json(const inspect_report *r, err *e); /* one object on stdout */

#endif
