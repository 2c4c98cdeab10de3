/* bench.c - `carat bench`: speed, beside the limits of this machine and beside other programs.
 *
 * The tests are those of llama-bench: -p N times a prompt of N tokens, -n N times N tokens computed
 * one by one, -d D puts D tokens into the cache before the clock starts. Tokens are random; nothing
 * is sampled. One session serves all tests. Each depth is computed once; later repetitions and
 * tests restore it from a snapshot, off the clock.
 */
#include "apps/bench_int.h"
#include "apps/commands.h"
#include "apps/device_options.h"
#include "apps/draft_options.h"
#include "apps/sparse_options.h"
#include "apps/kv_options.h"
#include "apps/pool_options.h"
#include "apps/run_int.h"
#include "apps/term.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/rng.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS_MAX = 64, TOKENS_MAX = 1 << 24, WARM_PROMPT = 64, WARM_GEN = 2 };

typedef struct bench_options {
    const char *model, *prompt, *gen, *depth, *streams, *pictures, *sounds, *vs, *isa, *repack;
    kv_options kv;
    mmproj_options mmproj;
    lora_options lora;
    pool_options pool;
    device_options where;
    int64_t reps, threads, chunk, shared;
    const char *spec, *accept;
    draft_options draft;
    const char *sparse;
    double accept_mean;
    bool json, floors, tail, ceilings, no_mmap, overcommit, blank;
} bench_options;

static const option table[] = {
    OPT_STR(bench_options, model, "model", 'm', "FILE",
            "a GGUF file, or the name of a model (carat list); default: the bundled one"),
    OPT_STR(bench_options, prompt, "prompt", 'p', "LIST", "prompt lengths (default: 512)"),
    OPT_STR(bench_options, gen, "gen", 'n', "LIST", "numbers of decoded tokens (default: 128)"),
    OPT_STR(bench_options, depth, "depth", 'd', "LIST", "tokens already in the cache (default: 0)"),
    OPT_STR(bench_options, streams, "streams", 's', "LIST",
            "also decode this many answers side by side"),
    OPT_INT(bench_options, shared, "shared", 0, "N", 0, TOKENS_MAX,
            "so many tokens at the start of their prompts are the same", "streams"),
    OPT_FLAG(bench_options, blank, "blank-depth", 0,
             "do not compute the tokens of --depth: their keys and values are zeros", "depth"),
    OPT_INT(bench_options, reps, "reps", 'r', "N", 1, BENCH_REPS_MAX, "repetitions (default: 5)"),
    OPT_THREADS(bench_options),
    OPT_INT(bench_options, chunk, "chunk", 'c', "N", 1, 1 << 20, "prompt tokens per pass"),
    OPT_LORA(bench_options),
    OPT_KV(bench_options),
    OPT_POOL(bench_options),
    OPT_STR(bench_options, spec, "spec", 0, "WHAT",
            "also decode with drafts of this drafter: a FILE, a DIR, auto or lookup"),
    OPT_STR(bench_options, accept, "accept", 0, "LIST",
            "script the drafts: the chance of each slot after accepted ones", "spec"),
    OPT_REAL(bench_options, accept_mean, "accept-mean", 0, "X", 0, DRAFT_TOKENS_MAX,
             "script the drafts: so many are accepted per round", "spec"),
    OPT_DRAFT_SIZES(bench_options, "spec"),
    OPT_SPARSE(bench_options),
    OPT_STR(bench_options, pictures, "pictures", 0, "LIST",
            "also measure pictures, of at most so many tokens each: 70 to 1120"),
    OPT_STR(bench_options, sounds, "sounds", 0, "LIST",
            "also measure sounds, of so many seconds each: 1 to 30"),
    OPT_STR(bench_options, mmproj.file, "mmproj", 0, "WHAT",
            "load the towers too, which the plan then has: a FILE or auto (default: auto with "
            "--pictures or --sounds, else none)"),
    OPT_STR(bench_options, vs, "vs", 0, "PROGRAM", "compare with this llama-bench, or other carat"),
    OPT_DEVICE_AND_CARD(bench_options, CARD_HELP),
    OPT_REPACK(bench_options),
    OPT_ISA(bench_options),
    OPT_FLAG(bench_options, floors, "floors", 0, "also time each op, against what it must cost"),
    OPT_FLAG(bench_options, tail, "tail", 0,
             "also show what of a decoded token's time is not reading, by op"),
    OPT_FLAG(bench_options, ceilings, "ceilings", 0, "only measure what the machine can do"),
    OPT_FLAG(bench_options, json, "json", 0, "print JSON"),
    OPT_NO_MMAP(bench_options),
    OPT_OVERCOMMIT(bench_options),
    OPT_END};

static const char about[] =
    "Lists are numbers with commas between them; 0 leaves that kind of test out. A time\n"
    "is the median of the repetitions. The spread is half the distance between the\n"
    "slowest and the fastest. With --vs, both programs run every repetition in turn. The\n"
    "ratio is the other's time divided by carat's: above 1, carat is faster.\n"
    "\n"
    "With --streams, \"x 4\" is four answers of --gen tokens in one batch, greedy, after\n"
    "prompts of --depth tokens. Every pass has a row of each answer. The speed is that of\n"
    "all answers together, while all are being computed. With --shared their prompts\n"
    "begin with the same tokens, whose keys are stored once; the line then also has the\n"
    "tokens of keys that all answers take.\n"
    "\n"
    "The tokens of --depth take long to compute. --blank-depth leaves that out: times are\n"
    "those of a full cache, but its keys and values are zeros.\n"
    "\n"
    "GB/s counts the weights that a decoded token reads, not the KV cache. GFLOP/s counts\n"
    "the matrix products of a prompt. Layers after the last one that stores keys are computed\n"
    "for the last token alone, and are counted so.\n"
    "\n"
    "With --pictures, \"picture\" is the time until a new picture's soft tokens are in the\n"
    "cache, and how much of it the vision tower takes; with --sounds, \"sound\" is the same\n"
    "of a new sound.\n"
    "\n"
    "With --spec, \"spec\" is the decoding test with drafts: a pass verifies them. The\n"
    "table has the time of such a pass over that of a plain token, and the tokens that it\n"
    "gives. It is checked that the answers are those of plain decoding. --draft-max N\n"
    "always drafts N tokens; without it carat chooses the number as in an answer. Drafts\n"
    "for random text are not accepted. So --accept and --accept-mean replace them, after\n"
    "the drafter has computed them, by drafts that are accepted as often as asked.\n"
    "\n"
    "With --floors a table op by op follows each test, for its fastest repetition. It has\n"
    "the time taken, and the least time: that of reading the op's weights, keys and\n"
    "values once, or of its multiplications, at the measured rates of the machine.\n"
    "\"Reached\" is the least time divided by the time taken.\n"
    "\n"
    "With --tail a table follows each decoding test: the time of a token (with --streams: of\n"
    "a pass), the bytes that it reads over the rate at which the device reads memory,\n"
    "measured in the same run, and the difference, by op. That time is exact. On a GPU, ops\n"
    "are timed in passes of their own, in which kernels do not overlap. So the time between\n"
    "ops is less than nothing where kernels of the real pass overlap for longer than the\n"
    "gaps between them. The last line is what as many kernels take that do nothing.";

/* An option that is a list, and what its numbers count. */
typedef struct list_rule {
    const char *name;
    int32_t least, most;
    const char *what;
} list_rule;

/* "512,4096": whole numbers, ascending or not. */
static status parse_list(const list_rule *rule, const char *text, int32_t list[BENCH_LIST_MAX],
                         int *n, err *e)
{
    int32_t read[BENCH_LIST_MAX];
    int n_read = 0;
    for (const char *at = text;;) {
        char *end;
        errno = 0;
        long v = strtol(at, &end, 10);
        if (end != at && (*end == 'k' || *end == 'K')) {
            v = v > TOKENS_MAX ? v : v * 1024;
            end++;
        }
        if (end == at || errno || v < rule->least || v > rule->most || (*end && *end != ','))
            return err_set(e, E_ARG,
                           "--%s=%.60s: expected numbers from %d to %d with commas between%s",
                           rule->name, text, rule->least, rule->most, rule->what);
        if (n_read == BENCH_LIST_MAX)
            return err_set(e, E_ARG, "--%s: more than %d numbers", rule->name, BENCH_LIST_MAX);
        read[n_read++] = (int32_t)v;
        if (!*end)
            break;
        at = end + 1;
    }
    memcpy(list, read, (size_t)n_read * sizeof *list);
    *n = n_read;
    return OK;
}

/* All tests, by depth; *n_tokens is the longest timeline any of them needs. */
static status plan_tests(const bench_options *o, bench_test **tests, int *n, int32_t *n_tokens,
                         err *e)
{
    int32_t p[BENCH_LIST_MAX], g[BENCH_LIST_MAX], d[BENCH_LIST_MAX], s[BENCH_LIST_MAX];
    int32_t c[BENCH_LIST_MAX], h[BENCH_LIST_MAX];
    int n_p, n_g, n_d, n_s = 0, n_c = 0, n_h = 0;
    static const list_rule tokens[] = {
        {"prompt", 0, TOKENS_MAX, ""}, {"gen", 0, TOKENS_MAX, ""}, {"depth", 0, TOKENS_MAX, ""}};
    static const list_rule of_streams = {"streams", 1, STREAMS_MAX, ": answers side by side"},
                           of_pictures = {"pictures", 70, 1120, ": tokens of a picture"},
                           of_sounds = {"sounds", 1, CARAT_SOUND_PIECE_SECONDS, ": seconds"};
    status st;
    if ((st = parse_list(&tokens[0], o->prompt, p, &n_p, e)) ||
        (st = parse_list(&tokens[1], o->gen, g, &n_g, e)) ||
        (st = parse_list(&tokens[2], o->depth, d, &n_d, e)) ||
        (o->streams && (st = parse_list(&of_streams, o->streams, s, &n_s, e))) ||
        (o->pictures && (st = parse_list(&of_pictures, o->pictures, c, &n_c, e))) ||
        (o->sounds && (st = parse_list(&of_sounds, o->sounds, h, &n_h, e))))
        return st;
    int n_decode = n_g * (1 + n_s) * (o->spec ? 2 : 1); /* plain ones, then those with drafts */
    bench_test *list =
        mem_calloc((size_t)n_d * (size_t)(n_p + n_decode) + (size_t)(n_c + n_h), sizeof *list);
    int n_list = 0;
    int32_t most = 0;
    if (!list)
        return err_memory(e, "the tests", sizeof *list);
    for (int i = 0; i < n_d; i++)
        for (int j = 0; j < n_p + n_decode; j++) {
            bench_test t = {.n_depth = d[i]};
            int k = j - n_p, set = k >= 0 ? k / n_g % (1 + n_s) : 0;
            if (k < 0)
                t.n_prompt = p[j];
            else
                t.n_gen = g[k % n_g];
            if (set) {
                t.n_streams = s[set - 1];
                t.n_shared = o->shared < t.n_depth ? (int32_t)o->shared : t.n_depth;
            }
            t.spec = k >= n_g * (1 + n_s);
            if (!bench_tokens(&t))
                continue;
            if (t.spec && t.n_gen < 2 && !st)
                st = err_set(e, E_ARG, "--spec measures answers of 2 tokens or more");
            int32_t end = t.n_depth + t.n_prompt + t.n_gen;
            most = end > most ? end : most;
            list[n_list++] = t;
        }
    for (int i = 0; i < n_c; i++) {
        list[n_list++] = (bench_test){.n_picture = c[i], .n_prompt = c[i]};
        most = c[i] > most ? c[i] : most;
    }
    for (int i = 0; i < n_h; i++) {
        int32_t n_soft = BENCH_SOUND_TOKENS * h[i];
        list[n_list++] = (bench_test){.n_seconds = h[i], .n_prompt = n_soft};
        most = n_soft > most ? n_soft : most;
    }
    if (!st && !n_list)
        st = err_set(e, E_ARG, "nothing to measure: --prompt and --gen are both 0");
    if (st) {
        mem_free(list);
        return st;
    }
    *tests = list;
    *n = n_list;
    *n_tokens = most;
    return OK;
}

/* What a test runs on. */
typedef struct bench_rig {
    carat_model *m;
    carat_session *s;
    int32_t *ids;
    carat_snapshot *deep; /* of the session at the depth of the last tests, or NULL */
    uint64_t deep_bytes;  /* that it may take */
    bool blank;           /* depths are not computed */
} bench_rig;

/* Brings the session to exactly n tokens of the timeline. */
static status go_to(bench_rig *rig, int32_t n, err *e)
{
    if (!n) {
        carat_reset(rig->s);
        return OK;
    }
    if (rig->blank)
        return carat_pretend(rig->s, rig->ids, n, e);
    if (rig->deep && carat_snapshot_n(rig->deep) == n)
        return carat_snapshot_restore(rig->s, rig->deep, e);
    carat_snapshot_free(rig->deep);
    rig->deep = NULL;
    status st = carat_eval(rig->s, rig->ids, n, NULL, NULL, e);
    if (st)
        return st;
    /* Without memory for a snapshot the depth is computed again: slower, same result. */
    uint64_t free_bytes = mem_available_bytes();
    err none = {0};
    if (!free_bytes || rig->deep_bytes < free_bytes / 2)
        carat_snapshot_take(rig->s, &rig->deep, &none);
    return OK;
}

/* The test once, on the clock; also used to warm up with fewer tokens. */
static status run_once(bench_rig *rig, const bench_test *t, int64_t *ns, err *e)
{
    carat_session *s = rig->s;
    const int32_t *ids = rig->ids;
    status st = go_to(rig, t->n_depth, e);
    if (st)
        return st;
    carat_op_times(rig->m, NULL, 0, true);
    int64_t start = clock_ns(), n = t->n_depth;
    if (t->n_prompt) {
        st = carat_eval(s, ids, n + t->n_prompt, NULL, NULL, e);
    } else {
        for (int32_t i = 0; i < t->n_gen && !st; i++)
            st = carat_append(s, ids + n + i, 1, false, NULL, e);
    }
    if (!st)
        *ns = clock_ns() - start;
    return st;
}

static status run_test(const bench_setup *b, bench_rig *rig, bench_test *t, err *e)
{
    bench_test warm = *t;
    int64_t ns;
    warm.n_prompt = warm.n_prompt > WARM_PROMPT ? WARM_PROMPT : warm.n_prompt;
    warm.n_gen = warm.n_gen > WARM_GEN ? WARM_GEN : warm.n_gen;
    /* If the depth is computed again, that is the warm-up. */
    status st = t->n_depth ? go_to(rig, t->n_depth, e) : OK;
    if (!st && (!t->n_depth || rig->deep || rig->blank))
        st = run_once(rig, &warm, &ns, e);
    for (int32_t rep = 0; rep < b->n_reps && !st; rep++) {
        term_progress(NULL, t->n_prompt ? "prefill" : "decode", (uint64_t)rep, (uint64_t)b->n_reps);
        if (term_interrupts())
            return err_set(e, E_CANCELLED, "interrupted");
        if ((st = run_once(rig, t, &ns, e)))
            break;
        t->ours.ns[t->ours.n++] = ns;
        if ((b->floors || (b->tail && !b->info.on_gpu)) &&
            (st = bench_keep_ops(rig->m, t, ns, bench_tokens(t), e)))
            break;
        if (b->other)
            st = bench_run_other(b, t, e);
    }
    term_progress_clear();
    if (!b->tail || !t->n_gen || st)
        return st;
    if (!b->info.on_gpu)
        bench_tail_of_cpu(b, t);
    else if (!(st = go_to(rig, t->n_depth, e)))
        st = bench_tail_of_gpu(rig->m, rig->s, rig->ids, t, e);
    return st;
}

/* The answer without drafts and with, in turn. */
static status run_spec(const bench_setup *b, bench_rig *rig, bench_test *t, err *e)
{
    size_t n = (size_t)t->n_gen;
    bench_answer plain = {.id = mem_calloc(n, sizeof *plain.id)};
    bench_answer spec = {.id = mem_calloc(n, sizeof *spec.id)};
    status st = plain.id && spec.id ? OK : err_memory(e, "the answers", 2 * n * sizeof *plain.id);
    for (int32_t rep = -1; rep < b->n_reps && !st; rep++) { /* the first warms up */
        bench_test before = *t;
        term_progress(NULL, "draft", (uint64_t)(rep < 0 ? 0 : rep), (uint64_t)b->n_reps);
        if ((st = go_to(rig, t->n_depth, e)) ||
            (st = bench_generate(b, rig->s, rig->ids, t, NULL, &plain, e)) ||
            (st = go_to(rig, t->n_depth, e)) ||
            (st = bench_generate(b, rig->s, rig->ids, t, &plain, &spec, e)))
            break;
        if (rep < 0) {
            *t = before;
            continue;
        }
        t->plain.ns[t->plain.n++] = plain.ns;
        t->ours.ns[t->ours.n++] = spec.ns;
    }
    term_progress_clear();
    mem_free(plain.id);
    mem_free(spec.id);
    return st;
}

enum { CEILINGS_HOLD_MS = 2000 };

/* Other work on the machine varies, and virtual processors move: a ceiling is the best rate
 * measured before or after a test. Tests that are over sooner share a measurement, which takes
 * longer than they do. */
static status raise_ceilings(bench_setup *b, err *e)
{
    bench_ceilings c, *best = &b->ceilings;
    if (best->n_threads && clock_ms() - b->ceilings_ms < CEILINGS_HOLD_MS)
        return OK;
    status st = bench_measure_ceilings(b->n_threads, &c, e);
    if (st)
        return st;
    b->ceilings_ms = clock_ms();
    best->n_threads = c.n_threads;
    best->read_bytes = c.read_bytes > best->read_bytes ? c.read_bytes : best->read_bytes;
    best->f32_flops = c.f32_flops > best->f32_flops ? c.f32_flops : best->f32_flops;
    best->int8_ops = c.int8_ops > best->int8_ops ? c.int8_ops : best->int8_ops;
    return OK;
}

static status run_tests(bench_setup *b, const carat_session_options *so, carat_model *m,
                        bench_test *tests, int n_tests, err *e)
{
    int32_t n_tokens = so->n_ctx;
    bench_rig rig = {
        .m = m, .blank = b->blank, .ids = mem_calloc((size_t)n_tokens, sizeof *rig.ids)};
    uint64_t rng = 4;
    status st;

    if (!rig.ids) {
        st = err_memory(e, "the tokens", (size_t)n_tokens * sizeof *rig.ids);
        goto out;
    }
    for (int32_t i = 0; i < n_tokens; i++)
        rig.ids[i] = (int32_t)rng_below(&rng, (uint64_t)b->info.n_vocab);
    if ((st = carat_plan(m, so, &b->plan, e)) || (st = carat_session_open(m, so, &rig.s, e)))
        goto out;
    b->chunk = b->plan.chunk;
    rig.deep_bytes = b->plan.kv_swa_bytes + b->plan.kv_global_bytes;
    if (!b->json)
        bench_print_head(b, stdout);
    term_watch(rig.s);
    for (int i = 0; i < n_tests && !st; i++) {
        st = bench_is_medium(&tests[i]) ? bench_run_medium(b, m, rig.s, &tests[i], e)
             : tests[i].n_streams       ? bench_run_streams(b, m, so, &tests[i], e)
             : tests[i].spec            ? run_spec(b, &rig, &tests[i], e)
                                        : run_test(b, &rig, &tests[i], e);
        if (st || (!b->info.on_gpu && (st = raise_ceilings(b, e))))
            break;
        if (!b->json)
            bench_print_test(b, &tests[i], stdout);
        if (b->floors && !b->json)
            bench_print_ops(b, &tests[i], stdout);
        if (tests[i].tail.n_passes && !b->json)
            bench_print_tail(&tests[i], stdout);
    }
    carat_device_memory used[CARAT_DEVICES_MAX];
    int32_t n_devices = carat_memory(m, used);
    for (int32_t i = 0; i < n_devices; i++)
        b->used_bytes[i] = used[i].used_bytes;
    if (rig.s)
        carat_session_get_pool(rig.s, &b->pool);
    if (!st && !b->json) {
        bench_print_foot(b, stdout);
        device_print_experts(stdout, m);
    }
out:
    term_watch(NULL);
    carat_snapshot_free(rig.deep);
    carat_session_close(rig.s);
    mem_free(rig.ids);
    return st;
}

static int only_ceilings(const bench_options *o)
{
    bench_ceilings c;
    err e = {0};
    bool ok = true;
    if (bench_measure_ceilings((int32_t)o->threads, &c, &e)) {
        term_error(&e);
        return 1;
    }
    if (o->json)
        ok = bench_print_json(NULL, &c, NULL, 0);
    else
        bench_print_ceilings(&c, stdout);
    return ok ? 0 : 1;
}

static bench_setup setup_of(const bench_options *o)
{
    const char *k = kv_options_k(&o->kv) ? kv_options_k(&o->kv) : "f16";
    return (bench_setup){.model_path = o->model,
                         .other = o->vs,
                         .kv_k = k,
                         .kv_v = kv_options_v(&o->kv) ? kv_options_v(&o->kv) : k,
                         .kv_layers = o->kv.layers,
                         .kv_single = o->kv.single,
                         .n_threads = (int32_t)(o->threads ? o->threads : pool_default_threads()),
                         .n_reps = (int32_t)o->reps,
                         .chunk = (int32_t)o->chunk,
                         .json = o->json,
                         .floors = o->floors,
                         .tail = o->tail,
                         .blank = o->blank,
                         .script = {.drafter = o->spec,
                                    .n_max = (int32_t)o->draft.max,
                                    .tree_max = (int32_t)o->draft.tree}};
}

/* Refuses options that contradict each other. */
static status check_options(const bench_options *o, err *e)
{
    if (o->vs && !o->model)
        return err_set(e, E_ARG, "--vs needs a file that both programs can open: name one with -m");
    if (o->tail && o->floors)
        return err_set(e, E_ARG,
                       "--floors times ops by themselves, --tail in whole passes: one of "
                       "the two");
    if (o->spec && (o->tail || o->floors))
        return err_set(e, E_ARG, "--tail and --floors time answers without drafts: omit --spec");
    if (o->blank && (o->spec || o->streams))
        return err_set(e, E_ARG, "--blank-depth has no tokens for --spec or --streams to continue");
    return OK;
}

/* A CPU's ops are timed by a wrapper. A GPU with a wrapper records no passes. So what the model is
 * on is found out first. */
static status open_model(const bench_options *o, run_options *ro, bench_setup *b, carat_model **m,
                         err *e)
{
    status st;
    ro->wrap = o->floors ? "time" : NULL;
    for (;;) {
        double start_ms = clock_ms();
        if ((st = run_open_model(o->model, ro, m, e)))
            return st;
        b->load_ms = clock_ms() - start_ms;
        term_progress_clear();
        carat_model_get_info(*m, &b->info);
        if (!o->tail || ro->wrap || b->info.on_gpu)
            return OK;
        carat_model_close(*m);
        ro->wrap = "time";
    }
}

static int run_bench(const command *c, int argc, char **argv)
{
    bench_options o = {.prompt = "512", .gen = "128", .depth = "0", .reps = 5, .accept_mean = -1};
    int n_operands, bad = options_parse(c, argc, argv, &o, &n_operands), n_tests = 0;
    bench_test *tests = NULL;
    carat_model *m = NULL;
    int32_t n_tokens = 0;
    err e = {0};
    status st;

    if (bad)
        return bad - 1;
    term_init();
    term_watch(NULL);
    if (o.ceilings)
        return only_ceilings(&o);
    bench_setup b = setup_of(&o);
    if ((st = check_options(&o, &e)) ||
        (st = bench_script_read(&b.script, o.accept, o.accept_mean, &e)) ||
        (st = plan_tests(&o, &tests, &n_tests, &n_tokens, &e)))
        goto out;
    if (o.spec) /* the last round, too, has room for all its drafts */
        n_tokens += DRAFT_TOKENS_MAX + 1;
    /* No checkpoints: a reused prefix would not be measured. */
    carat_session_options so = {
        .n_ctx = n_tokens, .chunk = b.chunk, .n_outputs = 1, .checkpoint_mb = -1};
    kv_options_apply(&o.kv, &so);
    if ((st = pool_options_apply(&o.pool, &so, &e)))
        goto out;
    draft_options_apply(&o.draft, NULL, &so);
    so.sparse = o.sparse;
    o.where.session = &so;
    run_options ro = {.threads = o.threads, /* 0: each device chooses */
                      .isa = o.isa,
                      .where = o.where,
                      .repack = o.repack,
                      .no_mmap = o.no_mmap,
                      .draft = {.drafter = o.spec, .device = o.draft.device},
                      .pool = o.pool,
                      .mmproj = o.mmproj,
                      .lora = o.lora,
                      .sees = o.mmproj.file || o.pictures || o.sounds};
    ro.overcommit = o.overcommit;
    if ((st = open_model(&o, &ro, &b, &m, &e)))
        goto out;
    if (!kv_options_given(&o.kv))
        b.kv_k = b.kv_v = b.info.fit_kv;
    /* The CPU's limits say nothing about a GPU. */
    if (!b.info.on_gpu && (st = raise_ceilings(&b, &e)))
        goto out;
    if ((st = run_tests(&b, &so, m, tests, n_tests, &e)))
        goto out;
    if (b.json && !bench_print_json(&b, &b.ceilings, tests, n_tests))
        st = err_set(&e, E_IO, "cannot write the report");
out:
    carat_model_close(m);
    for (int i = 0; i < n_tests; i++)
        mem_free(tests[i].ops);
    mem_free(tests);
    mem_free(b.script.accept);
    if (st == E_CANCELLED) /* only Ctrl-C cancels here */
        return EXIT_INTERRUPTED;
    return term_exit_use(st, &e);
}

const command command_bench = {
    .name = "bench",
    .operands = "",
    .summary = "Measure speed, also against the limits of the machine and another program",
    .about = about,
    .options = table,
    .run = run_bench};
