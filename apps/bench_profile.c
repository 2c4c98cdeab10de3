/* bench_profile.c - `carat bench --floors`: one test's time per op, beside the least time of the
 * machine.
 *
 * The wrapper "time" (backend/wrap.c) measures each op and counts the bytes that it must read and
 * the operations that it must do. A floor is the larger of two times: bytes over the measured
 * memory bandwidth, and operations over the measured rate of their multiplier. An op that finds its
 * data in a cache can beat its floor. The total adds the floors, as if nothing overlapped.
 */
#include "apps/bench_int.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdlib.h>

enum { LINES_MAX = 24 };

double bench_floor_ms(const bench_ceilings *c, const carat_op_time *t, const char **bound)
{
    double read = (double)t->bytes / c->read_bytes, f32 = (double)t->f32_ops / c->f32_flops;
    double int8 = (double)t->int8_ops / c->int8_ops, most = read;
    *bound = read > 0 ? "read" : "";
    if (int8 > most) {
        most = int8;
        *bound = "int8";
    }
    if (f32 > most) {
        most = f32;
        *bound = "f32";
    }
    return most * 1e3;
}

int bench_longest_first(const void *a, const void *b)
{
    double x = ((const carat_op_time *)a)->ms, y = ((const carat_op_time *)b)->ms;
    return (y > x) - (y < x);
}

status bench_keep_ops(carat_model *m, bench_test *t, int64_t ns, int32_t n_passes, err *e)
{
    if (t->ops && (double)ns * t->n_passes >= (double)t->ops_ns * n_passes) {
        carat_op_times(m, NULL, 0, true);
        return OK;
    }
    if (!t->ops && !(t->ops = mem_calloc(BENCH_OPS_MAX, sizeof *t->ops)))
        return err_memory(e, "the table of ops", BENCH_OPS_MAX * sizeof *t->ops);
    t->n_ops = carat_op_times(m, t->ops, BENCH_OPS_MAX, true);
    t->ops_ns = ns;
    t->n_passes = n_passes;
    qsort(t->ops, (size_t)t->n_ops, sizeof *t->ops, bench_longest_first);
    return OK;
}

static void print_op(const bench_setup *b, const carat_op_time *t, double total_ms, FILE *f)
{
    const char *bound;
    double floor_ms = bench_floor_ms(&b->ceilings, t, &bound);
    fprintf(f, "  %-12s %-5s %5d %7d -> %6d %8" PRId64 " %10.2f %5.1f %%", t->op, t->type, t->rows,
            t->n_in, t->n_out, t->n_calls, t->ms, 100 * t->ms / total_ms);
    if (*bound)
        fprintf(f, " %10.2f  %4.0f %% %s", floor_ms, 100 * floor_ms / t->ms, bound);
    fputc('\n', f);
}

void bench_print_ops(const bench_setup *b, const bench_test *t, FILE *f)
{
    double total_ms = (double)t->ops_ns * 1e-6, floors = 0, ops_ms = 0, rest = 0;
    fprintf(f, "  op           type   rows    n_in ->  n_out    calls         ms   share   floor ms"
               "  reached\n");
    for (int32_t i = 0; i < t->n_ops; i++) {
        const char *bound;
        floors += bench_floor_ms(&b->ceilings, &t->ops[i], &bound);
        ops_ms += t->ops[i].ms;
        if (i < LINES_MAX)
            print_op(b, &t->ops[i], total_ms, f);
        else
            rest += t->ops[i].ms;
    }
    if (rest > 0)
        fprintf(f, "  %-50s %10.2f %5.1f %%\n", "other ops", rest, 100 * rest / total_ms);
    fprintf(f, "  %-50s %10.2f %5.1f %%\n", "between the ops", total_ms - ops_ms,
            100 * (total_ms - ops_ms) / total_ms);
    fprintf(f, "  %-50s %10.2f         %10.2f  %4.0f %%\n", "total", total_ms, floors,
            100 * floors / total_ms);
    fflush(f);
}
