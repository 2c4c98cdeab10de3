/* metrics.h - counters and histograms for Prometheus. Thread-safe without locks. */
#ifndef APPS_SERVER_METRICS_H
#define APPS_SERVER_METRICS_H

#include "base/str.h"
#include "carat.h"

#include <stdatomic.h>
#include <stdint.h>

enum { HISTOGRAM_MAX = 16 };

typedef struct histogram {
    const double *bound; /* upper bounds in seconds, ascending */
    int n;
    atomic_ullong count[HISTOGRAM_MAX + 1]; /* the last: above all bounds */
    atomic_ullong sum_us;
} histogram;

typedef enum metrics_route {
    ROUTE_CHAT,
    ROUTE_COMPLETIONS,
    ROUTE_RESPONSES,
    ROUTE_MESSAGES,
    ROUTE_OTHER,
    ROUTE_COUNT
} metrics_route;

typedef struct metrics {
    histogram ttft, per_token, queue, request;
    atomic_ullong answers[ROUTE_COUNT][6]; /* by the first digit of the status */
    atomic_ullong cancelled, refused_full, expired;
    atomic_ullong shorter, shorter_from, shorter_to; /* prompts, and their tokens */
} metrics;

void metrics_init(metrics *m);
void histogram_add(histogram *h, double seconds);
void metrics_count(metrics *m, metrics_route r, int status);
/* A prompt of `from` tokens was shortened to `to`. */
void metrics_count_shorter(metrics *m, int64_t from, int64_t to);
/* The gauges of one scrape: of each loaded model, and of the server. */
typedef struct metrics_model {
    const char *name; /* a label; NULL: none, because it is the one loaded at the start */
    carat_batch_info batch;
    uint64_t weight_bytes, kv_tokens, kv_capacity;
    carat_expert_info experts; /* zeros: the devices hold all */
    carat_expert_info on_device[CARAT_DEVICES_MAX];
    carat_device_memory device[CARAT_DEVICES_MAX];
    const carat_device_plan *plan; /* of each device; NULL: unknown */
    int32_t n_devices;
} metrics_model;

typedef struct metrics_now {
    const metrics_model *model;
    int32_t n_models, n_offered;
    int32_t n_active;
    bool ready;
    double busy_s; /* of the thread of passes */
} metrics_now;
void metrics_put(metrics *m, const metrics_now *now, str *o);

#endif
