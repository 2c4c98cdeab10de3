/* metrics.c - see metrics.h. The text format of Prometheus, version 0.0.4; base units are seconds
 * and bytes, counters end in _total. */
#include "apps/server/metrics.h"
#include "base/mem.h"

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

/* What JSON and labels agree on: quotes and backslashes are escaped; a device's name has neither
 * line ends nor control characters. */
static void put_devices(const metrics_now *now, str *o)
{
    static const char *const what[] = {"used", "available"};
    head(o, "device_memory_bytes", "gauge",
         "Memory of each device: that the model uses, and that is still to be had.");
    for (int32_t i = 0; i < now->n_devices; i++)
        for (int k = 0; k < 2; k++) {
            const carat_device_memory *d = &now->device[i];
            str_puts(o, "carat_device_memory_bytes{device=\"");
            for (const char *c = d->device; *c; c++) {
                if (*c == '"' || *c == '\\')
                    str_putc(o, '\\');
                str_putc(o, *c);
            }
            str_printf(o, "\",state=\"%s\"} %" PRIu64 "\n", what[k],
                       k ? d->available_bytes : d->used_bytes);
        }
}

void metrics_put(metrics *m, const metrics_now *now, str *o)
{
    const carat_batch_info *b = &now->batch;
    number(o, "ready", "gauge", "1 when the model is loaded and requests are taken.", now->ready);
    put_requests(m, o);
    number(o, "requests_active", "gauge", "Requests being answered.", now->n_active);
    number(o, "requests_cancelled_total", "counter", "Requests whose client went away.",
           (double)atomic_load(&m->cancelled));
    number(o, "requests_refused_total", "counter", "Requests refused because the queue was full.",
           (double)atomic_load(&m->refused_full));
    number(o, "connections_expired_total", "counter",
           "Connections closed because their request header was not complete in time.",
           (double)atomic_load(&m->expired));
    number(o, "queue_depth", "gauge", "Generations that wait for a slot.", b->n_queued);
    number(o, "slots_busy", "gauge", "Generations at work.", b->n_busy);
    number(o, "slots", "gauge", "Generations that can be at work side by side.", b->n_slots);
    number(o, "generations_total", "counter", "Generations begun.", (double)b->n_jobs);
    number(o, "prompt_tokens_total", "counter", "Prompt tokens, cached ones included.",
           (double)b->n_prompt);
    number(o, "prefix_hit_tokens_total", "counter", "Prompt tokens found in a cache.",
           (double)b->n_reused);
    number(o, "generated_tokens_total", "counter", "Tokens sampled.", (double)b->n_generated);
    number(o, "passes_total", "counter", "Forward passes.", (double)b->n_passes);
    number(o, "pass_rows_total", "counter", "Rows of all passes.", (double)b->n_rows);
    number(o, "pass_seconds_total", "counter", "Time in passes.", b->pass_ms * 1e-3);
    number(o, "draft_rounds_total", "counter", "Passes over an answer that checked drafts.",
           (double)b->n_rounds);
    number(o, "drafted_tokens_total", "counter", "Tokens drafted.", (double)b->n_drafted);
    number(o, "accepted_draft_tokens_total", "counter", "Drafts that an answer has.",
           (double)b->n_accepted);
    number(o, "kv_tokens", "gauge", "Tokens whose keys and values are kept.",
           (double)now->kv_tokens);
    number(o, "kv_usage_ratio", "gauge", "The same as a share of what fits.",
           now->kv_capacity ? (double)now->kv_tokens / (double)now->kv_capacity : 0);
    number(o, "kv_bytes", "gauge", "Memory for keys and values.", (double)b->kv_bytes);
    number(o, "checkpoints", "gauge", "States of conversations to go back to.",
           (double)b->cache.n_checkpoints);
    number(o, "checkpoint_bytes", "gauge", "Memory for them.", (double)b->cache.checkpoint_bytes);
    number(o, "checkpoint_files", "gauge", "Those kept on disk.", (double)b->cache.n_files);
    number(o, "checkpoint_file_bytes", "gauge", "Disk space for them.",
           (double)b->cache.file_bytes);
    number(o, "checkpoint_files_failed_total", "counter", "Files that could not be written.",
           (double)b->cache.n_failed);
    number(o, "checkpoint_files_rejected_total", "counter", "Damaged files that were removed.",
           (double)b->cache.n_rejected);
    number(o, "weight_bytes", "gauge", "Memory for weights.", (double)now->weight_bytes);
    put_devices(now, o);
    number(o, "resident_memory_bytes", "gauge", "Resident memory of the process.",
           resident_bytes());
    put_histogram(o, "time_to_first_token_seconds", "From a request to its first token.", &m->ttft);
    put_histogram(o, "time_per_output_token_seconds", "Between tokens of one answer.",
                  &m->per_token);
    put_histogram(o, "queue_seconds", "From a request to a free slot.", &m->queue);
    put_histogram(o, "request_seconds", "From a request to the end of its answer.", &m->request);
}
