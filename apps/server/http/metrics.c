/* metrics.c - see metrics.h. The text format of Prometheus, version 0.0.4; base units are seconds
 * and bytes, counters end in _total. */
#include "apps/server/http/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

static const double long_bounds[] = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300};
static const double short_bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.02, 0.03,
                                      0.05,  0.075,  0.1,   0.2,  0.5,  1};

void metrics_init(metrics *m)
{
    histogram *all[] = {&m->ttft, &m->queue, &m->request};
    for (int i = 0; i < 3; i++) {
        all[i]->bound = long_bounds;
        all[i]->n = sizeof long_bounds / sizeof *long_bounds;
    }
    m->per_token.bound = short_bounds;
    m->per_token.n = sizeof short_bounds / sizeof *short_bounds;
}

void histogram_add(histogram *h, double seconds)
{
    int i = 0;
    while (i < h->n && seconds > h->bound[i])
        i++;
    atomic_fetch_add_explicit(&h->count[i], 1, memory_order_relaxed);
    if (seconds > 0)
        atomic_fetch_add_explicit(&h->sum_us, (unsigned long long)(seconds * 1e6),
                                  memory_order_relaxed);
}

void metrics_count(metrics *m, metrics_route r, int status)
{
    int digit = status / 100;
    atomic_fetch_add_explicit(&m->answers[r][digit > 5 ? 5 : digit], 1, memory_order_relaxed);
}

static void head(str *o, const char *name, const char *type, const char *help)
{
    str_printf(o, "# HELP carat_%s %s\n# TYPE carat_%s %s\n", name, help, name, type);
}

static void number(str *o, const char *name, const char *type, const char *help, double v)
{
    head(o, name, type, help);
    str_printf(o, "carat_%s %.10g\n", name, v);
}

static void put_histogram(str *o, const char *name, const char *help, histogram *h)
{
    unsigned long long sum = 0;
    head(o, name, "histogram", help);
    for (int i = 0; i < h->n; i++) {
        sum += atomic_load_explicit(&h->count[i], memory_order_relaxed);
        str_printf(o, "carat_%s_bucket{le=\"%g\"} %llu\n", name, h->bound[i], sum);
    }
    sum += atomic_load_explicit(&h->count[h->n], memory_order_relaxed);
    str_printf(o, "carat_%s_bucket{le=\"+Inf\"} %llu\ncarat_%s_sum %.6f\ncarat_%s_count %llu\n",
               name, sum, name,
               (double)atomic_load_explicit(&h->sum_us, memory_order_relaxed) * 1e-6, name, sum);
}

static double resident_bytes(void)
{
    long long pages = 0, all = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%lld %lld", &all, &pages) != 2)
        pages = 0;
    if (f)
        fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static void put_requests(metrics *m, str *o)
{
    static const char *const routes[] = {"chat", "completions", "responses", "messages", "other"};
    head(o, "requests_total", "counter", "Requests answered, by endpoint and class of status.");
    for (int r = 0; r < ROUTE_COUNT; r++)
        for (int d = 2; d <= 5; d++)
            str_printf(o, "carat_requests_total{endpoint=\"%s\",status=\"%dxx\"} %llu\n", routes[r],
                       d, atomic_load_explicit(&m->answers[r][d], memory_order_relaxed));
}

/* A label's value. Names of files may hold anything; line ends would break the format. */
static void put_label(str *o, const char *name, const char *value)
{
    str_printf(o, "%s=\"", name);
    for (const char *c = value; *c; c++) {
        if (*c == '"' || *c == '\\')
            str_putc(o, '\\');
        str_putc(o, (unsigned char)*c < ' ' ? ' ' : *c);
    }
    str_putc(o, '"');
}

/* The labels of device j. Two GPUs of one kind have the same name. */
static void put_device_labels(const metrics_model *m, int32_t j, str *o)
{
    put_label(o, "device", m->device[j].device);
    if (m->n_devices > 1)
        str_printf(o, ",index=\"%" PRId32 "\"", j);
    if (m->name) {
        str_putc(o, ',');
        put_label(o, "model", m->name);
    }
}

/* Where the layers of divided models are, what goes from device to device, and experts in slots. */
static const struct {
    const char *name, *type, *help;
    bool slots;
} division[] = {
    {"device_layers", "gauge", "Layers of a divided model on each of its devices.", false},
    {"device_crossing_bytes", "gauge",
     "Bytes that come from other devices, for each token that a divided model computes.", false},
    {"device_expert_slots", "gauge",
     "Experts of its layers, or its parts of experts, that a device of a divided model holds.",
     true},
    {"device_expert_hits_total", "counter",
     "Pairs of row and expert that found it on the device of their layer.", true},
    {"device_expert_misses_total", "counter", "Those that did not.", true}};

static uint64_t division_value(const metrics_model *m, int32_t j, int k)
{
    const carat_expert_info *x = &m->on_device[j];
    const uint64_t v[] = {(uint64_t)m->plan[j].n_layers, m->plan[j].crossing_bytes,
                          (uint64_t)x->n_slots, x->n_hits, x->n_misses};
    return v[k];
}

static void put_division(const metrics_now *now, str *o)
{
    for (int k = 0; k < (int)(sizeof division / sizeof *division); k++) {
        bool begun = false;
        for (int32_t i = 0; i < now->n_models; i++) {
            const metrics_model *m = &now->model[i];
            for (int32_t j = 0; j < m->n_devices && m->n_devices > 1 && m->plan; j++) {
                if (division[k].slots && !m->on_device[j].n_slots)
                    continue;
                if (!begun)
                    head(o, division[k].name, division[k].type, division[k].help);
                begun = true;
                str_printf(o, "carat_%s{", division[k].name);
                put_device_labels(m, j, o);
                str_printf(o, "} %" PRIu64 "\n", division_value(m, j, k));
            }
        }
    }
}

static void put_devices(const metrics_now *now, str *o)
{
    static const char *const what[] = {"used", "available"};
    head(o, "device_memory_bytes", "gauge",
         "Memory of each device: that the model uses, and that is still to be had.");
    for (int32_t i = 0; i < now->n_models; i++)
        for (int32_t j = 0; j < 2 * now->model[i].n_devices; j++) {
            const metrics_model *m = &now->model[i];
            const carat_device_memory *d = &m->device[j / 2];
            str_puts(o, "carat_device_memory_bytes{");
            put_label(o, "state", what[j % 2]);
            str_putc(o, ',');
            put_device_labels(m, j / 2, o);
            str_printf(o, "} %" PRIu64 "\n", j % 2 ? d->available_bytes : d->used_bytes);
        }
}

void metrics_count_shorter(metrics *m, int64_t from, int64_t to)
{
    atomic_fetch_add(&m->shorter, 1);
    atomic_fetch_add(&m->shorter_from, (unsigned long long)from);
    atomic_fetch_add(&m->shorter_to, (unsigned long long)to);
}

static void put_value(str *o, const char *name, const metrics_model *m, double value)
{
    str_printf(o, "carat_%s", name);
    if (m->name) {
        str_putc(o, '{');
        put_label(o, "model", m->name);
        str_putc(o, '}');
    }
    str_printf(o, " %.10g\n", value);
}

/* What is known of each model. value: an expression of m. */
#define ROW(name, type, help, value)                                                               \
    head(o, name, type, help);                                                                     \
    for (const metrics_model *m = now->model; m < now->model + now->n_models; m++)                 \
    put_value(o, name, m, (double)(value))
static void put_models(const metrics_now *now, str *o)
{
    ROW("queue_depth", "gauge", "Generations that wait for a slot.", m->batch.n_queued);
    ROW("slots_busy", "gauge", "Generations at work.", m->batch.n_busy);
    ROW("slots", "gauge", "Generations that can be at work side by side.", m->batch.n_slots);
    ROW("generations_total", "counter", "Generations begun.", m->batch.n_jobs);
    ROW("prompt_tokens_total", "counter", "Prompt tokens, cached ones included.",
        m->batch.n_prompt);
    ROW("prefix_hit_tokens_total", "counter", "Prompt tokens found in a cache.", m->batch.n_reused);
    ROW("generated_tokens_total", "counter", "Tokens sampled.", m->batch.n_generated);
    ROW("passes_total", "counter", "Forward passes.", m->batch.n_passes);
    ROW("pass_rows_total", "counter", "Rows of all passes.", m->batch.n_rows);
    ROW("pass_seconds_total", "counter", "Time in passes.", m->batch.pass_ms * 1e-3);
    ROW("draft_rounds_total", "counter", "Passes over an answer that checked drafts.",
        m->batch.n_rounds);
    ROW("drafted_tokens_total", "counter", "Tokens drafted.", m->batch.n_drafted);
    ROW("accepted_draft_tokens_total", "counter", "Drafts that an answer has.",
        m->batch.n_accepted);
    ROW("sparse_prompts_total", "counter", "Prompts whose attention left keys out.",
        m->batch.n_sparse);
    ROW("sparse_tiles_total", "counter",
        "Tiles of keys that rows saw whose attention may leave keys out.", m->batch.n_tiles);
    ROW("sparse_tiles_kept_total", "counter", "Those that were read.", m->batch.n_tiles_kept);
    ROW("kv_tokens", "gauge", "Tokens whose keys and values are kept.", m->kv_tokens);
    ROW("kv_usage_ratio", "gauge", "The same as a share of what fits.",
        m->kv_capacity ? (double)m->kv_tokens / (double)m->kv_capacity : 0);
    ROW("kv_bytes", "gauge", "Memory for keys and values.", m->batch.kv_bytes);
    ROW("kv_pool_tokens", "gauge", "Size of the pool of keys, in tokens.", m->batch.pool_tokens);
    ROW("kv_pool_free_tokens", "gauge", "Its free part.", m->batch.pool_free);
    ROW("kv_pool_shared_tokens", "gauge", "The part that several conversations or states share.",
        m->batch.pool_shared);
    ROW("kv_paged_out", "gauge", "Conversations whose keys wait in host memory.",
        m->batch.n_paged_out);
    ROW("kv_preempted_total", "counter", "How often one had to leave the pool.",
        m->batch.n_preempted);
    ROW("kv_pages_out_total", "counter", "Pages of keys copied to the host.", m->batch.n_pages_out);
    ROW("kv_pages_in_total", "counter", "Those that came back.", m->batch.n_pages_in);
    ROW("kv_host_bytes", "gauge", "Memory of the host for keys outside the pool.",
        m->batch.pool_host_bytes);
    ROW("kv_host_file_bytes", "gauge", "The same in a file.", m->batch.pool_file_bytes);
    ROW("checkpoints", "gauge", "States of conversations to go back to.",
        m->batch.cache.n_checkpoints);
    ROW("checkpoint_bytes", "gauge", "Memory that they take, of that which is kept for them.",
        m->batch.cache.checkpoint_bytes);
    ROW("checkpoint_files", "gauge", "Those kept on disk.", m->batch.cache.n_files);
    ROW("checkpoint_file_bytes", "gauge", "Disk space for them.", m->batch.cache.file_bytes);
    ROW("checkpoint_files_failed_total", "counter", "Files that could not be written.",
        m->batch.cache.n_failed);
    ROW("checkpoint_files_rejected_total", "counter", "Damaged files that were removed.",
        m->batch.cache.n_rejected);
    ROW("weight_bytes", "gauge", "Memory for weights.", m->weight_bytes);
    ROW("expert_slots", "gauge", "Experts that the GPU holds, of all layers; 0: it holds all.",
        m->experts.n_slots);
    ROW("expert_bytes", "gauge", "Memory of the GPU for them, stages and tables.",
        m->experts.device_bytes);
    ROW("expert_hits_total", "counter", "Pairs of row and expert that found it on the GPU.",
        m->experts.n_hits);
    ROW("expert_misses_total", "counter", "Those that read it from the host's memory or a stage.",
        m->experts.n_misses);
    ROW("expert_cpu_total", "counter", "Of the latter, those whose products the CPU computed.",
        m->experts.n_cpu);
    ROW("expert_cpu_bytes_total", "counter", "Bytes of experts that it read for them.",
        m->experts.cpu_bytes);
    ROW("expert_prefetch_total", "counter", "Experts copied to the GPU before their layer chose.",
        m->experts.n_prefetched);
    ROW("expert_prefetch_used_total", "counter", "Those of them that it chose.",
        m->experts.n_prefetched_used);
    ROW("expert_prefetch_waited_total", "counter",
        "Of those, how many were still on their way when it chose.",
        m->experts.n_prefetched_waited);
    ROW("expert_prefetch_bytes_total", "counter", "Bytes of all of them.",
        m->experts.prefetch_bytes);
    ROW("expert_swaps_total", "counter", "Experts copied to the GPU in another's place.",
        m->experts.n_swaps);
    ROW("expert_swap_bytes_total", "counter", "Their bytes.", m->experts.swap_bytes);
    ROW("expert_stream_bytes_total", "counter", "Bytes of experts copied for prompts.",
        m->experts.stream_bytes);
    ROW("expert_read_bytes_total", "counter",
        "Bytes of experts that products read from the host's memory.", m->experts.read_bytes);
    ROW("expert_wait_seconds_total", "counter",
        "Time for the bus: prompts waited for copies, or misses took it.",
        m->experts.wait_ms * 1e-3);
    ROW("expert_bus_bytes_per_second", "gauge", "The bus to the GPU, measured at the start.",
        m->experts.bus_bytes_s);
    ROW("expert_copies_failed_total", "counter", "Experts whose copy failed.", m->experts.n_failed);
}

void metrics_put(metrics *m, const metrics_now *now, str *o)
{
    int32_t loaded = 0;
    for (int32_t i = 0; i < now->n_models; i++)
        loaded += now->model[i].n_devices > 0;
    number(o, "ready", "gauge", "1 when requests are taken: the first model is loaded.",
           now->ready);
    number(o, "models", "gauge", "Models that the server may load.", now->n_offered);
    number(o, "models_loaded", "gauge", "Models that are loaded.", loaded);
    put_requests(m, o);
    number(o, "requests_active", "gauge", "Requests being answered.", now->n_active);
    number(o, "busy_seconds_total", "counter",
           "Time of the thread of passes while it had work: passes, and all between them.",
           now->busy_s);
    number(o, "requests_cancelled_total", "counter", "Requests whose client went away.",
           (double)atomic_load(&m->cancelled));
    number(o, "requests_refused_total", "counter", "Requests refused because the queue was full.",
           (double)atomic_load(&m->refused_full));
    number(o, "connections_expired_total", "counter",
           "Connections closed because their request header was not complete in time.",
           (double)atomic_load(&m->expired));
    number(o, "compressed_prompts_total", "counter", "Prompts that were shortened.",
           (double)atomic_load(&m->shorter));
    number(o, "compressed_original_tokens_total", "counter", "Their tokens before.",
           (double)atomic_load(&m->shorter_from));
    number(o, "compressed_kept_tokens_total", "counter", "And after.",
           (double)atomic_load(&m->shorter_to));
    put_models(now, o);
    put_devices(now, o);
    put_division(now, o);
    number(o, "resident_memory_bytes", "gauge", "Resident memory of the process.",
           resident_bytes());
    put_histogram(o, "time_to_first_token_seconds", "From a request to its first token.", &m->ttft);
    put_histogram(o, "time_per_output_token_seconds", "Between tokens of one answer.",
                  &m->per_token);
    put_histogram(o, "queue_seconds", "From a request to a free slot.", &m->queue);
    put_histogram(o, "request_seconds", "From a request to the end of its answer.", &m->request);
}
