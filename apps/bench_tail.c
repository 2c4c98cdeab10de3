/* bench_tail.c - `carat bench --tail`: the part of a decoded token's time that is not reading.
 *
 *     token = bytes / rate + tail
 *     tail  = sum over ops of (time - bytes / rate) + the time between ops
 *
 * Bytes are weights, keys, values and states of recurrent layers, each read once. The rate is that
 * of a loop which only reads, or on a GPU of a kernel which does. On a CPU the wrapper "time" times
 * ops in the tests themselves. On a GPU they are timed in passes of their own, in which kernels do
 * not overlap (backend/cuda/op_times.c): there the time between ops is negative where kernels of
 * the real pass overlap for longer than the gaps between them.
 */
#include "apps/bench_int.h"
#include "base/mem.h"

#include <stdlib.h>

enum { LINES_MAX = 40 };

double bench_op_tail_ms(const bench_tail *t, const carat_op_time *op)
{
    return (op->ms - (double)op->bytes / t->rate * 1e3) / t->n_passes;
}

static void add_up(const bench_test *t, bench_tail *s)
{
    double bytes = 0, ms = 0;
    for (int32_t i = 0; i < t->n_ops; i++) {
        bytes += (double)t->ops[i].bytes;
        ms += t->ops[i].ms;
    }
    s->bytes = bytes / s->n_passes;
    s->read_ms = s->bytes / s->rate * 1e3;
    s->ops_ms = ms / s->n_passes;
    s->tail_ms = s->token_ms - s->read_ms;
    qsort(t->ops, (size_t)t->n_ops, sizeof *t->ops, bench_longest_first);
}

void bench_tail_of_cpu(const bench_setup *b, bench_test *t)
{
    t->tail = (bench_tail){.token_ms = (double)t->ops_ns * 1e-6 / t->n_passes,
                           .rate = b->ceilings.read_bytes,
                           .n_passes = t->n_passes};
    add_up(t, &t->tail);
}

status bench_tail_of_gpu(carat_model *m, carat_session *s, const int32_t *ids, bench_test *t,
                         err *e)
{
    status st = carat_time_passes(m, e);
    for (int32_t i = 0; i < t->n_gen && !st; i++)
        st = carat_append(s, ids + t->n_depth + i, 1, false, NULL, e);
    return st ? st : bench_take_tail(m, t, e);
}

status bench_take_tail(carat_model *m, bench_test *t, err *e)
{
    carat_pass_times p;
    if (!t->ops && !(t->ops = mem_calloc(BENCH_OPS_MAX, sizeof *t->ops)))
        return err_memory(e, "the table of ops", BENCH_OPS_MAX * sizeof *t->ops);
    t->n_ops = carat_timed_passes(m, &p, t->ops, BENCH_OPS_MAX);
    if (!p.n_split)
        return err_set(e, E_ARG,
                       "--tail: no pass of %d tokens was timed op by op: more are needed (-n)",
                       t->n_gen);
    t->tail = (bench_tail){.token_ms = bench_median_ns(&t->ours) * 1e-6 / t->n_gen,
                           .rate = p.read_bytes,
                           .n_passes = p.n_split,
                           .pass_ms = p.pass_ms,
                           .n_kernels = p.n_kernels,
                           .nothings_ms = p.n_kernels * p.launch_ms};
    add_up(t, &t->tail);
    return OK;
}

static void print_op(const bench_tail *s, const carat_op_time *t, FILE *f)
{
    double n = s->n_passes, ms = t->ms / n;
    fprintf(f, "  %-12s %-7s %6d -> %6d %6.1f %9.2f %9.3f %9.3f %9.3f\n", t->op, t->type, t->n_in,
            t->n_out, (double)t->n_calls / n, 1e3 * t->ms / (double)t->n_calls, ms,
            ms - bench_op_tail_ms(s, t), bench_op_tail_ms(s, t));
}

static void print_sum(const char *what, double ms, double read_ms, FILE *f)
{
    fprintf(f, "  %-53s %9.3f", what, ms);
    if (read_ms >= 0)
        fprintf(f, " %9.3f %9.3f\n", read_ms, ms - read_ms);
    else
        fprintf(f, " %19.3f\n", ms);
}

void bench_print_tail(const bench_test *t, FILE *f)
{
    const bench_tail *s = &t->tail;
    const char *what = t->n_streams ? "pass" : "token";
    char line[64];
    fprintf(f,
            "  op           type      n_in ->  n_out  calls   us each        ms   read ms"
            "   tail ms   (of a %s)\n",
            what);
    for (int32_t i = 0; i < t->n_ops; i++)
        if (i < LINES_MAX)
            print_op(s, &t->ops[i], f);
    print_sum("all ops", s->ops_ms, s->read_ms, f);
    if (s->n_kernels) {
        print_sum("between the ops, on the GPU", s->pass_ms - s->ops_ms, -1, f);
        print_sum("the host, between passes", s->token_ms - s->pass_ms, -1, f);
    } else {
        print_sum("between the ops", s->token_ms - s->ops_ms, -1, f);
    }
    snprintf(line, sizeof line, "a %s, which reads %.3f GB at %.0f GB/s", what, s->bytes * 1e-9,
             s->rate * 1e-9);
    print_sum(line, s->token_ms, s->read_ms, f);
    if (s->n_kernels) {
        snprintf(line, sizeof line, "%d kernels that do nothing take", s->n_kernels);
        fprintf(f, "  %-53s %9.3f\n", line, s->nothings_ms);
    }
    fflush(f);
}
