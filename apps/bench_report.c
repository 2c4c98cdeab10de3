/* bench_report.c - the table and the JSON of `carat bench`.
 *
 * The test objects of the JSON have the field names of llama-bench, so that one script reads both,
 * and so that --vs can run another carat.
 */
#include "apps/bench_int.h"
#include "apps/term.h"
#include "base/json.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void sorted_copy(const bench_samples *s, int64_t *to)
{
    memcpy(to, s->ns, (size_t)s->n * sizeof *to);
    qsort(to, (size_t)s->n, sizeof *to, by_value);
}

double bench_median_ns(const bench_samples *s)
{
    int64_t x[BENCH_REPS_MAX];
    if (!s->n)
        return 0;
    sorted_copy(s, x);
    return 0.5 * ((double)x[(s->n - 1) / 2] + (double)x[s->n / 2]);
}

double bench_spread(const bench_samples *s)
{
    int64_t x[BENCH_REPS_MAX];
    if (!s->n)
        return 0;
    sorted_copy(s, x);
    return 0.5 * (double)(x[s->n - 1] - x[0]) / bench_median_ns(s);
}

/* Operations of matrix products per token of a chunk. */
static double flops_per_token(const bench_setup *b)
{
    return (double)b->plan.chunk_flops / b->plan.chunk;
}

static double rate(const bench_test *t, const bench_samples *s)
{
    return s->n ? bench_tokens(t) / (bench_median_ns(s) * 1e-9) : 0;
}

/* Of a picture's or sound's time, what the passes over its tokens alone do not take. */
static double tower_ms(const bench_test *t)
{
    return (bench_median_ns(&t->ours) - bench_median_ns(&t->plain)) * 1e-6;
}

/* The time of a pass over one answer, over that of a plain token. */
static double round_ratio(const bench_test *t)
{
    double plain = bench_median_ns(&t->plain), per_token = bench_passes_per_token(t);
    return plain > 0 && per_token > 0 ? bench_median_ns(&t->ours) / per_token / plain : 0;
}

/* ---- The table --------------------------------------------------------------------------- */

void bench_print_ceilings(const bench_ceilings *c, FILE *f)
{
    fprintf(f, "ceilings  memory read %.1f GB/s, f32 %.0f GFLOP/s, int8 %.0f GOP/s (%d thread%s)\n",
            c->read_bytes * 1e-9, c->f32_flops * 1e-9, c->int8_ops * 1e-9, c->n_threads,
            c->n_threads == 1 ? "" : "s");
}

void bench_print_head(const bench_setup *b, FILE *f)
{
    const carat_model_info *i = &b->info;
    const carat_memory_plan *p = &b->plan;
    char states[48] = "", scorer[48] = "", vision[48] = "", audio[48] = "";
    if (p->recurrent_bytes)
        snprintf(states, sizeof states, " states %.1f,", (double)p->recurrent_bytes * 0x1p-20);
    if (p->scorer_bytes)
        snprintf(scorer, sizeof scorer, ", scorer %.1f", (double)p->scorer_bytes * 0x1p-20);
    if (p->vision_bytes)
        snprintf(vision, sizeof vision, ", vision tower %.1f", (double)p->vision_bytes * 0x1p-20);
    if (p->audio_bytes)
        snprintf(audio, sizeof audio, ", audio tower %.1f", (double)p->audio_bytes * 0x1p-20);
    fputs("model     ", f);
    term_put_name(f, i->name, strlen(i->name), 0);
    fprintf(f, ", %s, %.4g M weights, %.4g M active, %.1f MB; loaded in %.2f s\n", i->file_type,
            (double)i->n_params * 1e-6, (double)i->n_params_active * 1e-6,
            (double)i->weight_bytes * 1e-6, b->load_ms * 1e-3);
    fprintf(f, "device    %s (%s); cache %s keys, %s values; passes of %d tokens\n", i->device,
            i->device_why, b->kv_k, b->kv_v, b->chunk);
    if (b->ceilings.n_threads)
        bench_print_ceilings(&b->ceilings, f);
    fprintf(f,
            "plan      %.1f MiB: weights %.1f, copies %.1f, window caches %.1f, global caches %.1f,"
            "%s scratch %.1f%s%s%s\n\n",
            (double)p->total_bytes * 0x1p-20, (double)p->weight_bytes * 0x1p-20,
            (double)p->repack_bytes * 0x1p-20, (double)p->kv_swa_bytes * 0x1p-20,
            (double)p->kv_global_bytes * 0x1p-20, states, (double)p->scratch_bytes * 0x1p-20,
            scorer, vision, audio);
    fprintf(f, "test            depth        time   tokens/s   spread          rate  of ceiling");
    fprintf(f, b->other ? "   other t/s   spread   ratio\n" : "\n");
    fflush(f);
}

static void print_time(FILE *f, double ns)
{
    if (ns < 1e6)
        fprintf(f, "%8.1f us", ns * 1e-3);
    else if (ns < 1e9)
        fprintf(f, "%8.2f ms", ns * 1e-6);
    else
        fprintf(f, "%8.3f s ", ns * 1e-9);
}

/* The share of the machine's limit, if that was measured. */
static void print_share(FILE *f, double rate, double ceiling, const char *what)
{
    if (ceiling > 0)
        fprintf(f, "  %3.0f %% %s", 100 * rate / ceiling, what);
    else
        fprintf(f, "  %10s", "-");
}

void bench_print_test(const bench_setup *b, const bench_test *t, FILE *f)
{
    double r = rate(t, &t->ours);
    char what[16] = "prefill";
    if (bench_is_medium(t))
        snprintf(what, sizeof what, t->n_picture ? "picture" : "sound");
    else if (t->n_streams)
        snprintf(what, sizeof what, t->spec ? "spec x %d" : "x %d", t->n_streams);
    else if (t->spec)
        snprintf(what, sizeof what, "spec");
    else if (t->n_gen)
        snprintf(what, sizeof what, "decode");
    fprintf(f, "%-8s%6d %7d ", what, bench_tokens(t), t->n_depth);
    print_time(f, bench_median_ns(&t->ours));
    fprintf(f, " %10.2f   ±%4.1f %%", r, 100 * bench_spread(&t->ours));
    if (bench_is_medium(t)) {
        fprintf(f, "  of it the tower %.2f ms", tower_ms(t));
    } else if (t->spec) {
        fprintf(f, "  %5.2f of plain, a pass %.2f, %.2f tokens each", r / rate(t, &t->plain),
                round_ratio(t), 1 / bench_passes_per_token(t));
    } else if (t->n_streams) { /* the weights that a pass of many rows reads are not known */
        fprintf(f, "  %7.2f ms/pass", bench_median_ns(&t->ours) * 1e-6 / t->n_gen);
        if (t->n_shared)
            fprintf(f, ", keys of %d tokens", t->pool_used);
    } else if (t->n_prompt) {
        double flops = flops_per_token(b) * r;
        fprintf(f, " %6.0f GFLOP/s", flops * 1e-9);
        print_share(f, flops, b->ceilings.int8_ops, "int8");
    } else {
        double bytes = (double)b->info.active_bytes_per_token * r;
        fprintf(f, "  %8.2f GB/s", bytes * 1e-9);
        print_share(f, bytes, b->ceilings.read_bytes, "read");
    }
    if (t->other.n)
        fprintf(f, "  %10.2f   ±%4.1f %%  %6.2f", rate(t, &t->other), 100 * bench_spread(&t->other),
                r / rate(t, &t->other));
    fputc('\n', f);
    fflush(f);
}

void bench_print_foot(const bench_setup *b, FILE *f)
{
    fprintf(f, "\nmemory    planned %.1f MiB, peak of the process %.1f MiB\n",
            (double)b->plan.total_bytes * 0x1p-20, (double)mem_peak_bytes() * 0x1p-20);
    for (int32_t i = 0; i < b->plan.n_devices && (b->info.on_gpu || b->plan.n_devices > 1); i++) {
        const carat_device_plan *d = &b->plan.device[i];
        fprintf(f, "          of %s: %.1f MiB planned, %.1f of them in reserve; %.1f in use\n",
                d->device, (double)d->total_bytes * 0x1p-20, (double)d->reserve_bytes * 0x1p-20,
                (double)b->used_bytes[i] * 0x1p-20);
    }
    if (b->pool.on)
        fprintf(f, "pool      %d tokens, %s: %lld choices, %lld pages out, %lld in, of %.2f MiB\n",
                b->pool.n_tokens, b->pool.policy, (long long)b->pool.n_reselected,
                (long long)b->pool.n_out, (long long)b->pool.n_in,
                (double)b->pool.page_bytes * 0x1p-20);
}

/* ---- JSON -------------------------------------------------------------------------------- */

static void put_real(json_t *o, const char *key, double v)
{
    json_object_set_new(o, key, json_real(isfinite(v) ? v : 0));
}

static void put_int(json_t *o, const char *key, uint64_t v)
{
    json_object_set_new(o, key, json_integer((json_int_t)v));
}

static void put_table_text(json_t *o, const char *key, const char *v)
{
    json_object_set_new(o, key, v ? json_lossy_text(v, strlen(v)) : json_null());
}

static void put_samples(json_t *o, const bench_test *t, const bench_samples *s)
{
    json_t *ns = json_array(), *ts = json_array();
    double n = bench_tokens(t), sum = 0, sum_ts = 0, var = 0, var_ts = 0;
    for (int32_t i = 0; i < s->n; i++) {
        double r = n / ((double)s->ns[i] * 1e-9);
        json_array_append_new(ns, json_integer(s->ns[i]));
        json_array_append_new(ts, json_real(isfinite(r) ? r : 0));
        sum += (double)s->ns[i] / s->n;
        sum_ts += r / s->n;
    }
    for (int32_t i = 0; i < s->n; i++) {
        var += pow((double)s->ns[i] - sum, 2) / (s->n > 1 ? s->n - 1 : 1);
        var_ts += pow(n / ((double)s->ns[i] * 1e-9) - sum_ts, 2) / (s->n > 1 ? s->n - 1 : 1);
    }
    put_int(o, "avg_ns", (uint64_t)sum);
    put_int(o, "stddev_ns", (uint64_t)sqrt(var));
    put_real(o, "avg_ts", sum_ts);
    put_real(o, "stddev_ts", sqrt(var_ts));
    put_real(o, "median_ts", rate(t, s));
    put_real(o, "spread", bench_spread(s));
    json_object_set_new(o, "samples_ns", ns);
    json_object_set_new(o, "samples_ts", ts);
}

static json_t *ops_json(const bench_setup *b, const bench_test *t)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < t->n_ops; i++) {
        const carat_op_time *op = &t->ops[i];
        const char *bound;
        json_t *o = json_object();
        put_table_text(o, "op", op->op);
        put_table_text(o, "type", op->type);
        put_int(o, "rows", (uint64_t)op->rows);
        put_int(o, "n_in", (uint64_t)op->n_in);
        put_int(o, "n_out", (uint64_t)op->n_out);
        put_int(o, "n_calls", (uint64_t)op->n_calls);
        put_real(o, "ms", op->ms);
        put_int(o, "bytes", op->bytes);
        put_int(o, "int8_ops", op->int8_ops);
        put_int(o, "f32_ops", op->f32_ops);
        put_real(o, "floor_ms", bench_floor_ms(&b->ceilings, op, &bound));
        put_table_text(o, "bound", bound);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *tail_json(const bench_test *t)
{
    const bench_tail *s = &t->tail;
    json_t *o = json_object(), *list = json_array();
    put_real(o, "token_ms", s->token_ms);
    put_real(o, "read_bytes_per_second", s->rate);
    put_real(o, "bytes", s->bytes);
    put_real(o, "read_ms", s->read_ms);
    put_real(o, "tail_ms", s->tail_ms);
    put_real(o, "between_ms", (s->n_kernels ? s->pass_ms : s->token_ms) - s->ops_ms);
    if (s->n_kernels) {
        put_real(o, "host_ms", s->token_ms - s->pass_ms);
        put_int(o, "n_kernels", (uint64_t)s->n_kernels);
        put_real(o, "nothings_ms", s->nothings_ms);
    }
    for (int32_t i = 0; i < t->n_ops; i++) {
        const carat_op_time *op = &t->ops[i];
        json_t *of = json_object();
        put_table_text(of, "op", op->op);
        put_table_text(of, "type", op->type);
        put_int(of, "n_in", (uint64_t)op->n_in);
        put_int(of, "n_out", (uint64_t)op->n_out);
        put_real(of, "calls", (double)op->n_calls / s->n_passes);
        put_real(of, "ms", op->ms / s->n_passes);
        put_real(of, "bytes", (double)op->bytes / s->n_passes);
        put_real(of, "beyond_ms", bench_op_tail_ms(s, op));
        json_array_append_new(list, of);
    }
    json_object_set_new(o, "ops", list);
    return o;
}

static json_t *test_json(const bench_setup *b, const bench_test *t)
{
    json_t *o = json_object();
    put_table_text(o, "model_filename", b->model_path ? b->model_path : "");
    put_table_text(o, "model_type", b->info.name);
    put_int(o, "model_size", b->info.weight_bytes);
    put_int(o, "model_n_params", b->info.n_params);
    put_int(o, "n_ubatch", (uint64_t)b->chunk);
    put_int(o, "n_threads", (uint64_t)b->n_threads);
    put_table_text(o, "type_k", b->kv_k);
    put_table_text(o, "type_v", b->kv_v);
    put_int(o, "n_prompt", (uint64_t)t->n_prompt);
    put_int(o, "n_gen", (uint64_t)t->n_gen);
    put_int(o, "n_depth", (uint64_t)t->n_depth);
    put_int(o, "n_streams", (uint64_t)t->n_streams);
    put_int(o, "n_picture", (uint64_t)t->n_picture);
    put_int(o, "n_seconds", (uint64_t)t->n_seconds);
    json_object_set_new(o, "spec", json_boolean(t->spec));
    put_samples(o, t, &t->ours);
    double r = rate(t, &t->ours);
    put_table_text(o, "drafter", t->spec ? b->info.drafter : NULL);
    if (bench_is_medium(t)) {
        put_real(o, "tower_ms", tower_ms(t));
    } else if (t->spec) {
        json_t *plain = json_object();
        put_samples(plain, t, &t->plain);
        json_object_set_new(o, "plain", plain);
        put_int(o, "draft_max", (uint64_t)b->script.n_max);
        put_real(o, "speedup", r / rate(t, &t->plain));
        put_real(o, "round", round_ratio(t));
        put_real(o, "tokens_per_pass", 1 / bench_passes_per_token(t));
        put_int(o, "n_rounds", (uint64_t)t->n_rounds);
        put_int(o, "n_drafted", (uint64_t)t->n_drafted);
        put_int(o, "n_accepted", (uint64_t)t->n_accepted);
    } else if (t->n_streams) {
        put_int(o, "n_shared", (uint64_t)t->n_shared);
        put_int(o, "pool_used", (uint64_t)t->pool_used);
        put_int(o, "pool_shared", (uint64_t)t->pool_shared);
        put_real(o, "ms_per_pass", bench_median_ns(&t->ours) * 1e-6 / t->n_gen);
    } else if (t->n_gen)
        put_real(o, "weight_bytes_per_second", (double)b->info.active_bytes_per_token * r);
    else
        put_real(o, "flops_per_second", flops_per_token(b) * r);
    if (t->tail.n_passes)
        json_object_set_new(o, "tail", tail_json(t));
    else if (t->n_ops)
        json_object_set_new(o, "ops", ops_json(b, t));
    if (t->other.n) {
        json_t *other = json_object();
        put_samples(other, t, &t->other);
        json_object_set_new(o, "other", other);
        put_real(o, "ratio", r / rate(t, &t->other));
    }
    return o;
}

static json_t *devices_json(const bench_setup *b)
{
    json_t *list = json_array();
    for (int32_t i = 0; i < b->plan.n_devices; i++) {
        const carat_device_plan *d = &b->plan.device[i];
        json_t *o = json_object();
        put_table_text(o, "device", d->device);
        put_int(o, "n_layers", (uint64_t)d->n_layers);
        put_int(o, "planned_bytes", d->total_bytes);
        put_int(o, "reserve_bytes", d->reserve_bytes);
        put_int(o, "used_bytes", b->used_bytes[i]);
        json_array_append_new(list, o);
    }
    return list;
}

static json_t *setup_json(const bench_setup *b)
{
    json_t *o = json_object(), *plan = json_object();
    put_table_text(o, "name", b->info.name);
    put_table_text(o, "file_type", b->info.file_type);
    put_table_text(o, "device", b->info.device);
    put_table_text(o, "device_why", b->info.device_why);
    put_int(o, "n_params_active", b->info.n_params_active);
    put_int(o, "active_bytes_per_token", b->info.active_bytes_per_token);
    put_real(o, "load_ms", b->load_ms);
    put_int(plan, "total_bytes", b->plan.total_bytes);
    put_int(plan, "weight_bytes", b->plan.weight_bytes);
    put_int(plan, "repack_bytes", b->plan.repack_bytes);
    put_int(plan, "kv_swa_bytes", b->plan.kv_swa_bytes);
    put_int(plan, "kv_global_bytes", b->plan.kv_global_bytes);
    put_int(plan, "recurrent_bytes", b->plan.recurrent_bytes);
    put_int(plan, "scorer_bytes", b->plan.scorer_bytes);
    put_int(plan, "scratch_bytes", b->plan.scratch_bytes);
    put_int(plan, "chunk_flops", b->plan.chunk_flops);
    json_object_set_new(o, "plan", plan);
    if (b->pool.on) {
        json_t *pool = json_object();
        put_table_text(pool, "policy", b->pool.policy);
        put_int(pool, "n_tokens", (uint64_t)b->pool.n_tokens);
        put_int(pool, "n_choices", (uint64_t)b->pool.n_reselected);
        put_int(pool, "pages_out", (uint64_t)b->pool.n_out);
        put_int(pool, "pages_in", (uint64_t)b->pool.n_in);
        put_int(pool, "page_bytes", b->pool.page_bytes);
        json_object_set_new(o, "pool", pool);
    }
    put_int(o, "peak_bytes", mem_peak_bytes());
    json_object_set_new(o, "devices", devices_json(b));
    return o;
}

bool bench_print_json(const bench_setup *b, const bench_ceilings *c, const bench_test *t, int n)
{
    json_was_short();
    json_t *root = json_object(), *ceil = json_object();
    put_table_text(root, "carat", carat_version());
    put_real(ceil, "read_bytes_per_second", c->read_bytes);
    put_real(ceil, "f32_flops_per_second", c->f32_flops);
    put_real(ceil, "int8_ops_per_second", c->int8_ops);
    put_int(ceil, "n_threads", (uint64_t)c->n_threads);
    if (!c->n_threads) { /* on a GPU none is measured */
        json_decref(ceil);
        ceil = json_null();
    }
    json_object_set_new(root, "ceilings", ceil);
    if (b) {
        json_t *tests = json_array();
        json_object_set_new(root, "model", setup_json(b));
        for (int i = 0; i < n; i++)
            json_array_append_new(tests, test_json(b, &t[i]));
        json_object_set_new(root, "tests", tests);
    }
    bool ok = !json_was_short() && root && json_write(stdout, root, JSON_INDENT(2));
    json_decref(root);
    return ok;
}
