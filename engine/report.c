/* report.c - timings of a generation, and the words for how it ended.
 *
 * The clock is read in this file alone. Every path out of a generation ends its report, failed and
 * cancelled ones too, so that a caller's carat_timings never hold what an earlier call left there.
 */
#include "engine/report.h"
#include "base/clock.h"
#include "base/mem.h"

void report_begin(report *r, const carat_model *m)
{
    *r = (report){.start_ms = clock_ms()};
    r->mark_ms = r->start_ms;
    r->t.load_ms = m->load_ms;
    r->t.reuse = "new";
    r->t.finish = CARAT_FINISH_CANCELLED;
    r->t.drafter = main_drafter(m) ? main_drafter(m)->class->name : NULL;
}

void report_waited(report *r)
{
    r->t.queue_ms = clock_ms() - r->start_ms;
}

void report_prompt(report *r, int64_t n_prompt, const timeline *t)
{
    double now = clock_ms();
    r->t.n_prompt = n_prompt;
    r->t.n_reused = t->kv.n_past;
    r->t.reuse = t->reuse;
    experts_sum(t->m, &r->experts);
    r->mark_ms = now;
}

void report_computed(report *r, int64_t n_done)
{
    int64_t n = n_done - r->t.n_reused;
    r->t.n_computed = n > r->t.n_computed ? n : r->t.n_computed;
}

void report_prefilled(report *r)
{
    double now = clock_ms();
    r->t.prefill_ms = now - r->mark_ms;
    r->mark_ms = now;
}

void report_decoded(report *r)
{
    r->t.decode_ms = clock_ms() - r->mark_ms;
}

void report_sparse(report *r, const timeline *t)
{
    r->t.sparse = sparse_name(t->sparse);
    r->t.sparse_value = t->sparse.alpha > 0 ? t->sparse.alpha : t->sparse.skip;
    r->t.sparse_auto = t->sparse.from > 0;
    r->t.dropped_p99 = t->sparse.alpha > 0 ? -1 : 0; /* block selection has no certificate */
    for (int32_t il = 0; r->t.sparse && t->stats && il < t->m->core.n_layer; il++) {
        double p99 = sparse_quantile(&t->stats[il], 0.99);
        r->t.n_tiles += t->stats[il].n_tiles;
        r->t.n_tiles_kept += t->stats[il].n_kept;
        if (t->sparse.alpha <= 0)
            r->t.dropped_p99 = p99 > r->t.dropped_p99 ? p99 : r->t.dropped_p99;
    }
}

void report_pages(report *r, const timeline *t)
{
    r->t.lossy = paging_lossy(t);
    r->t.n_exact = r->t.lossy ? t->kv.pager->n_exact : 0;
}

void report_experts(report *r, const carat_model *m)
{
    expert_sums now;
    experts_sum(m, &now);
    r->t.offloaded_experts = now.offload;
    r->t.n_expert_hits = now.n_hits - r->experts.n_hits;
    r->t.n_expert_misses = now.n_misses - r->experts.n_misses;
    r->t.expert_bytes = now.n_bytes - r->experts.n_bytes;
    r->t.n_expert_cpu = now.n_cpu - r->experts.n_cpu;
    r->t.expert_wait_ms = now.wait_ms - r->experts.wait_ms;
}

void report_end(report *r, carat_timings *t)
{
    r->t.peak_bytes = mem_peak_bytes();
    if (t)
        *t = r->t;
}

const char *carat_finish_name(carat_finish f)
{
    static const char *const names[] = {[CARAT_FINISH_STOP] = "stop",
                                        [CARAT_FINISH_LENGTH] = "length",
                                        [CARAT_FINISH_TOOL_CALLS] = "tool_calls",
                                        [CARAT_FINISH_CANCELLED] = "cancelled"};
    return (unsigned)f < sizeof names / sizeof *names ? names[f] : "unknown";
}
