/* metrics_test.c - each row of the table of models shows the number that its name means. */
#include "apps/server/http/metrics.h"
#include "base/str.h"
#include "tests/test.h"

/* The next number, which nothing else is, to a field, and the row that shows it. */
#define GIVE(name, field, unit)                                                                    \
    do {                                                                                           \
        x.field = (__typeof__(x.field))++n * (unit);                                               \
        str_printf(&want, "carat_" name " %d\n", n);                                               \
    } while (0)

TEST(metrics_of_models_show_a_number_each)
{
    metrics m = {0};
    metrics_model x = {0};
    const metrics_now now = {.model = &x, .n_models = 1};
    AUTO(str_free) str want = {0}, all = {0}, rows = {0};
    int n = 1000;
    metrics_init(&m);
    GIVE("queue_depth", batch.n_queued, 1);
    GIVE("slots_busy", batch.n_busy, 1);
    GIVE("slots", batch.n_slots, 1);
    GIVE("generations_total", batch.n_jobs, 1);
    GIVE("prompt_tokens_total", batch.n_prompt, 1);
    GIVE("prefix_hit_tokens_total", batch.n_reused, 1);
    GIVE("generated_tokens_total", batch.n_generated, 1);
    GIVE("passes_total", batch.n_passes, 1);
    GIVE("pass_rows_total", batch.n_rows, 1);
    GIVE("pass_seconds_total", batch.pass_ms, 1000);
    GIVE("draft_rounds_total", batch.n_rounds, 1);
    GIVE("drafted_tokens_total", batch.n_drafted, 1);
    GIVE("accepted_draft_tokens_total", batch.n_accepted, 1);
    GIVE("sparse_prompts_total", batch.n_sparse, 1);
    GIVE("sparse_tiles_total", batch.n_tiles, 1);
    GIVE("sparse_tiles_kept_total", batch.n_tiles_kept, 1);
    GIVE("kv_tokens", kv_tokens, 1);
    x.kv_capacity = x.kv_tokens * 4;
    str_puts(&want, "carat_kv_usage_ratio 0.25\n");
    GIVE("kv_bytes", batch.kv_bytes, 1);
    GIVE("kv_pool_tokens", batch.pool_tokens, 1);
    GIVE("kv_pool_free_tokens", batch.pool_free, 1);
    GIVE("kv_pool_shared_tokens", batch.pool_shared, 1);
    GIVE("kv_paged_out", batch.n_paged_out, 1);
    GIVE("kv_preempted_total", batch.n_preempted, 1);
    GIVE("kv_pages_out_total", batch.n_pages_out, 1);
    GIVE("kv_pages_in_total", batch.n_pages_in, 1);
    GIVE("kv_host_bytes", batch.pool_host_bytes, 1);
    GIVE("kv_host_file_bytes", batch.pool_file_bytes, 1);
    GIVE("checkpoints", batch.cache.n_checkpoints, 1);
    GIVE("checkpoint_bytes", batch.cache.checkpoint_bytes, 1);
    GIVE("checkpoint_files", batch.cache.n_files, 1);
    GIVE("checkpoint_file_bytes", batch.cache.file_bytes, 1);
    GIVE("checkpoint_files_failed_total", batch.cache.n_failed, 1);
    GIVE("checkpoint_files_rejected_total", batch.cache.n_rejected, 1);
    GIVE("weight_bytes", weight_bytes, 1);
    GIVE("expert_slots", experts.n_slots, 1);
    GIVE("expert_bytes", experts.device_bytes, 1);
    GIVE("expert_hits_total", experts.n_hits, 1);
    GIVE("expert_misses_total", experts.n_misses, 1);
    GIVE("expert_cpu_total", experts.n_cpu, 1);
    GIVE("expert_cpu_bytes_total", experts.cpu_bytes, 1);
    GIVE("expert_prefetch_total", experts.n_prefetched, 1);
    GIVE("expert_prefetch_used_total", experts.n_prefetched_used, 1);
    GIVE("expert_prefetch_waited_total", experts.n_prefetched_waited, 1);
    GIVE("expert_prefetch_bytes_total", experts.prefetch_bytes, 1);
    GIVE("expert_swaps_total", experts.n_swaps, 1);
    GIVE("expert_swap_bytes_total", experts.swap_bytes, 1);
    GIVE("expert_stream_bytes_total", experts.stream_bytes, 1);
    GIVE("expert_read_bytes_total", experts.read_bytes, 1);
    GIVE("expert_wait_seconds_total", experts.wait_ms, 1000);
    GIVE("expert_bus_bytes_per_second", experts.bus_bytes_s, 1);
    GIVE("expert_copies_failed_total", experts.n_failed, 1);

    metrics_put(&m, &now, &all);
    /* The rows between those of the server, which stand before and after. */
    const char *at = strstr(all.at, "\ncarat_compressed_kept_tokens_total 0\n") + 1;
    while (!strncmp(at = strchr(at, '\n') + 1, "# ", 2) || strncmp(at, "carat_resident", 14) != 0)
        if (*at != '#')
            str_put(&rows, at, (size_t)(strchr(at, '\n') + 1 - at));
        else if (!strncmp(at, "# TYPE ", 7)) /* counters alone end in _total */
            CHECK_EQ(strstr(at, " counter\n") == strchr(at, '\n') - 8,
                     !strncmp(strchr(at + 7, ' ') - 6, "_total", 6));
    CHECK_STR(rows.at, want.at);
    CHECK(!rows.bad && !want.bad);
}
