/* check.c - cuda_check: the CUDA device against the CPU reference, in one run.
 *
 *     cuda_check [--quick | --brief] [--ops | --models] [--part I/N] [--card CAPABILITY]
 *                [--record FILE | --compare FILE] [SUBSTRING]
 *     cuda_check --soak MINUTES   (check_expert_soak.c)
 *     cuda_check --links [LIST]   (check_links.c)
 *
 * Prints a line per check, then a summary. Exit status 0 only if something ran and all agreed. It
 * links the library and the fidelity models of tests/, and needs no files but tests/data.
 * --quick: small shapes; --brief: of those, the 1st, 2nd, 5th, 10th, 17th ... of each check, so
 * that every kind of check stays. --ops: single ops alone; --models: whole passes and sessions
 * alone. --part I/N: every Nth check from the Ith on, with an Nth of the processors. The work
 * around an op's reference has one thread, so tools/gpu_check.sh runs parts of the ops side by
 * side. Models run alone: they are thousands of short passes, and processes that share a GPU would
 * only delay each other. --card 8.6: with the kernels of such a card (backend/cuda/cards.c).
 * --record FILE writes a hash of the bits that came from the GPU for each verdict, --compare FILE
 * says where those of another build differ: for changes that must leave every bit as it is. Checks
 * that depend on time (drafts, experts fetched early) may differ between two runs of one build. The
 * wrappers' check downloads what each op reads and what its output held before, so its bits follow
 * the order of ops and the places of results too.
 */
#include "apps/commands.h"
#include "tests/cuda/check_int.h"
#include "backend/cuda/cuda_int.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/pool.h"
#include "tests/test.h"

#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of the programs carat synth alone is linked: it makes models for checks. */
const command *const commands[] = {&command_synth, NULL};

/* ---- What tests/fidelity_model.c expects of a test runner ---------------------------------- */

void test_register(test_case *t)
{
    (void)t;
}
_Noreturn void test_fail(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printf("FAIL  %s:%d: ", file, line);
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
    exit(1);
}
uint64_t test_seed(void)
{
    return 1;
}
const char *test_path(const char *rel)
{
    return rel;
}
const char *test_temp(const char *name)
{
    static char path[128][256];
    static int n;
    char *p = path[n++ % 128];
    snprintf(p, sizeof path[0], "/tmp/cuda-check-%d-%s", (int)getpid(), name);
    return p;
}

/* ---- Verdicts ------------------------------------------------------------------------------ */

bool wanted(const rig *g, const char *name)
{
    return !g->only || strstr(name, g->only);
}

/* Each check begins with random numbers of its own, by its name and its place among those of that
 * name: else its inputs would depend on the other checks of the run. */
static void draw_anew(rig *g, const char *name)
{
    if (strncmp(g->turn_name, name, sizeof g->turn_name - 1))
        g->n_named = 0;
    snprintf(g->turn_name, sizeof g->turn_name, "%s", name);
    g->rng = (uint64_t)++g->n_named;
    for (const char *c = name; *c; c++)
        g->rng = rng_mix(g->rng + (unsigned char)*c);
}

/* The 1st, 2nd, 5th, 10th, 17th, ... check of a name's first word: of many the later ones differ
 * less. */
static bool is_sample(const char *name)
{
    enum { NAMES = 256 };
    static struct {
        char name[48];
        int n;
    } seen[NAMES];
    char word[sizeof seen->name];
    int i = 0, root = 0;
    snprintf(word, sizeof word, "%.*s", (int)strcspn(name, " "), name);
    while (i < NAMES - 1 && *seen[i].name && strcmp(seen[i].name, word))
        i++;
    memcpy(seen[i].name, word, sizeof word);
    const int n = ++seen[i].n;
    while (root * root + 1 < n)
        root++;
    return root * root + 1 == n;
}

bool my_turn(rig *g, const char *name)
{
    if (!wanted(g, name))
        return false;
    draw_anew(g, name);
    if (g->brief && !is_sample(name))
        return false;
    return g->n_turn++ % g->parts == g->part;
}

/* Keeps the slowest check, because the full set must stay short. */
static void keep_slowest(rig *g, const char *name, const char *shape)
{
    double now = clock_ms();
    if (now - g->last_ms > g->slowest_ms) {
        g->slowest_ms = now - g->last_ms;
        snprintf(g->slowest, sizeof g->slowest, "%s %s", name, shape);
    }
    g->last_ms = now;
}

/* ---- Bits ---------------------------------------------------------------------------------- */

static uint64_t bits; /* of what was downloaded since the last verdict */
static void (*plain_download)(device *d, void *to, const void *from, size_t n_bytes);
static void hash_download(device *d, void *to, const void *from, size_t n_bytes)
{
    plain_download(d, to, from, n_bytes);
    const unsigned char *at = to;
    uint64_t word;
    for (; n_bytes; n_bytes -= n_bytes < sizeof word ? n_bytes : sizeof word, at += sizeof word) {
        word = n_bytes; /* of the last, which may be shorter */
        memcpy(&word, at, n_bytes < sizeof word ? n_bytes : sizeof word);
        bits = rng_mix(bits ^ word);
    }
}

/* A line of a record: the hash, then the check's name and shape. */
enum { RECORD_LINE = 256 };
static struct {
    FILE *to;
    char (*line)[RECORD_LINE]; /* of the other build, in its order */
    int n, at, n_same, n_differ, n_new;
} record;

static void note_bits(const char *name, const char *shape)
{
    char line[RECORD_LINE];
    const int hash = 16;
    snprintf(line, sizeof line, "%016llx %s, %s\n", (unsigned long long)bits, name, shape);
    bits = 0;
    if (record.to)
        fputs(line, record.to);
    if (!record.line)
        return;
    for (int i = record.at; i < record.n; i++) {
        if (strcmp(record.line[i] + hash, line + hash))
            continue;
        const bool same = !memcmp(record.line[i], line, (size_t)hash);
        record.n_same += same;
        record.n_differ += !same;
        record.at = i + 1;
        if (!same)
            printf("DIFF  %s", line + hash + 1);
        return;
    }
    record.n_new++;
}

static bool open_record(rig *g, const char *path, bool compare)
{
    enum { LINES = 1 << 17 };
    FILE *f = fopen(path, compare ? "r" : "w");
    plain_download = g->gpu->download;
    g->gpu->download = hash_download;
    if (!compare)
        return (record.to = f) != NULL;
    record.line = f ? mem_alloc(LINES * sizeof *record.line) : NULL;
    while (record.line && record.n < LINES && fgets(record.line[record.n], RECORD_LINE, f))
        record.n++;
    if (f)
        fclose(f);
    return record.n > 0;
}

/* False: bits differ, or nothing could be compared. */
static bool close_record(void)
{
    bool ok = !record.line || (record.n_same && !record.n_differ);
    if (record.line)
        printf("%d verdicts with the recorded bits, %d with others, %d that were not recorded\n",
               record.n_same, record.n_differ, record.n_new);
    if (record.to)
        ok = !fclose(record.to);
    mem_free(record.line);
    return ok;
}

void failed(rig *g, const char *name, const char *why)
{
    g->n_run++;
    g->n_failed++;
    printf("FAIL  %-14s %s\n", name, why);
    fflush(stdout);
}

void verdict(rig *g, const char *name, const char *shape, double error, double bound)
{
    bool ok = error <= bound; /* false for NaN */
    g->n_run++;
    g->n_failed += !ok;
    printf("%s  %-14s %-44s %9.2e  of %7.0e\n", ok ? "ok  " : "FAIL", name, shape, error, bound);
    note_bits(name, shape);
    fflush(stdout);
    keep_slowest(g, name, shape);
}

static int32_t few_most = RIG_FEW;

void few_rows(int32_t n)
{
    few_most = n;
}
bool of_prompt(int32_t rows)
{
    return rows > few_most;
}

/* ---- Two devices --------------------------------------------------------------------------- */

float *draw(rig *g, size_t n, double sigma)
{
    float *v = mem_alloc(n * sizeof *v);
    for (size_t i = 0; v && i < n; i++) {
        /* a sum of four uniforms: nearly normal, and fast */
        uint64_t u = rng_next(&g->rng);
        int64_t s = (int64_t)((u & 0xffff) + (u >> 16 & 0xffff) + (u >> 32 & 0xffff) + (u >> 48));
        v[i] = (float)(sigma * (double)(s - 131070) / 37837.0);
    }
    if (!v)
        test_fail(__FILE__, __LINE__, "no memory for %zu values", n);
    return v;
}

void both_begin(rig *g, both *b, const step *st)
{
    static float *nan;
    size_t n = (size_t)1 << 20;
    if (!nan) {
        nan = mem_alloc(n);
        memset(nan, 0xff, n);
    }
    pass_begin(&b->ref, g->ref, st, g->ref_scratch, g->scratch_bytes);
    pass_begin(&b->gpu, g->gpu, st, g->gpu_scratch, g->scratch_bytes);
    size_t poison = g->quick ? (size_t)8 << 20 : (size_t)256 << 20;
    for (size_t at = 0; at + n <= poison && at + n <= g->scratch_bytes; at += n)
        g->gpu->upload(g->gpu, (char *)g->gpu_scratch + at, nan, n);
}

void both_mat(rig *g, both *b, mat m[2], const float *from, int32_t rows, int32_t heads,
              int32_t cols)
{
    size_t n = (size_t)rows * (size_t)heads * (size_t)cols * sizeof *from;
    m[0] = pass_mat(&b->ref, rows, heads, cols);
    m[1] = pass_mat(&b->gpu, rows, heads, cols);
    if (pass_failed(&b->ref) || pass_failed(&b->gpu))
        return;
    memcpy(m[0].at, from, n);
    g->gpu->upload(g->gpu, m[1].at, from, n);
}

float *gpu_rows(rig *g, mat m)
{
    size_t width = (size_t)mat_width(m);
    size_t span = (size_t)(m.rows - 1) * (size_t)m.stride + width;
    float *all = mem_alloc(span * sizeof *all);
    g->gpu->download(g->gpu, all, m.at, span * sizeof *all);
    for (int32_t r = 1; r < m.rows; r++)
        memmove(all + (size_t)r * width, all + (size_t)r * (size_t)m.stride, width * sizeof *all);
    return all;
}

double both_error(rig *g, both *b, mat ref, mat gpu)
{
    double diff = 0, sum = 0;
    bool bad = false;
    if (pass_failed(&b->ref) || pass_failed(&b->gpu)) {
        printf("      %s\n", b->ref.e.text[0] ? b->ref.e.text : b->gpu.e.text);
        return NAN;
    }
    float *got = gpu_rows(g, gpu);
    int32_t width = mat_width(ref);
    for (int32_t r = 0; r < ref.rows; r++)
        for (int32_t i = 0; i < width; i++) {
            double x = mat_row(ref, r)[i], y = got[(size_t)r * (size_t)width + (size_t)i];
            if (x == y || (isnan(x) && isnan(y)))
                continue;
            if (!isfinite(x - y) && !bad) {
                printf("      row %d column %d: %g, expected %g\n", r, i, y, x);
                bad = true;
            }
            diff += (x - y) * (x - y);
            sum += x * x;
        }
    mem_free(got);
    return bad ? NAN : diff / (sum > 0 ? sum : 1);
}

bool pair_make(rig *g, pair *p, num_type type, int32_t n_in, int32_t n_out, int32_t n_mat,
               double sigma, bool gather)
{
    uint64_t row = 0;
    size_t rows = (size_t)n_out * (size_t)n_mat;
    *p = (pair){0};
    if (!num_row_bytes(type, (uint64_t)n_in, &row)) {
        failed(g, "weight", "a shape that its format cannot hold: the check is wrong");
        return false;
    }
    p->bytes = mem_alloc(rows * row);
    float *v = draw(g, (size_t)n_in, sigma);
    const num_format *f = num_format_of(type);
    for (size_t at = 0; !f->encode && at < rows * row; at++)
        ((uint8_t *)p->bytes)[at] = (uint8_t)rng_next(&g->rng);
    for (size_t at = 0; !f->encode && at < rows * row; at += (size_t)f->block_bytes)
        num_set_factor(type, (uint8_t *)p->bytes + at,
                       (float)(sigma * (0.5 + 0.05 * (double)rng_below(&g->rng, 10))));
    for (size_t r = 0; f->encode && r < rows; r++) {
        for (int32_t i = 0; i < n_in; i++) /* a cheap way to make rows differ */
            v[i] = v[i] * 0.75f +
                   (float)(sigma * 0.66 * ((double)(rng_next(&g->rng) >> 40) * 0x1p-23 - 1));
        f->encode(v, (char *)p->bytes + r * row, n_in);
    }
    mem_free(v);
    p->w[0] = (weight){.name = "test",
                       .type = type,
                       .n_in = n_in,
                       .n_out = n_out,
                       .n_mat = n_mat,
                       .data = p->bytes,
                       .row_bytes = row,
                       .mat_bytes = row * (size_t)n_out,
                       .n_bytes = row * rows,
                       .gather = gather};
    static float factor[64]; /* of each matrix */
    for (int i = 0; i < 64; i++)
        factor[i] = 0.7f + 0.01f * (float)i;
    if (type == NUM_NVFP4 && !gather && n_mat <= 64)
        p->w[0].factor = factor;
    p->w[1] = p->w[0];
    err e = {0};
    if (g->gpu->weight_load(g->gpu, &p->w[1], &e)) {
        failed(g, "weight_load", e.text);
        return false;
    }
    return true;
}

bool pair_fill(rig *g, pair *p, int32_t n, float v)
{
    const uint64_t rng = g->rng;
    bool ok = pair_make(g, p, NUM_F32, n, 1, 1, 1.0, false);
    g->rng = rng;
    for (int32_t i = 0; ok && i < n; i++)
        ((float *)p->bytes)[i] = v;
    if (ok)
        g->gpu->upload(g->gpu, p->w[1].packed, p->bytes, (size_t)n * sizeof v);
    return ok;
}

void pair_bias(rig *g, pair *p)
{
    if (rng_below(&g->rng, 2) == 0)
        pair_biased(g, p);
}

void pair_biased(rig *g, pair *p)
{
    const weight *w = &p->w[0];
    pair b;
    if (!pair_make(g, &b, NUM_F32, w->n_out, 1, w->n_mat, 0.5, false))
        return;
    p->bias_bytes = b.bytes;
    for (int i = 0; i < 2; i++) {
        p->bias[i] = b.w[i];
        p->w[i].bias = &p->bias[i];
    }
}

void pair_free(rig *g, pair *p)
{
    g->gpu->weight_free(g->gpu, &p->w[1]);
    if (p->bias_bytes)
        g->gpu->weight_free(g->gpu, &p->bias[1]);
    mem_free(p->bias_bytes);
    mem_free(p->bytes);
    *p = (pair){0};
}

void chain_init(chain *c, int32_t n, int32_t first, int32_t n_vocab)
{
    memset(c, 0, sizeof *c);
    for (int32_t i = 0; i < n; i++) {
        c->token[i] = (i * 7919 + 13) % (n_vocab ? n_vocab : 1);
        c->pos[i] = c->index[i] = first + i;
        c->first[i] = first;
        c->last[i] = first + n - 1;
        c->newest[i] = c->index[i];
        c->out_row[i] = i;
    }
    const row_keys keys = {c->index, c->first, c->last, c->newest};
    c->st = (step){
        .prompt = of_prompt(n),
        .all = {.n = n, .token = c->token, .pos = c->pos, .seq = c->seq, .keys = {keys, keys}},
        .out_row = c->out_row,
        .n_seqs = 1,
        .n_kv = 1,
        .kv = c->kv};
}

char *text(const char *fmt, ...)
{
    static char line[128];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    return line;
}

int main(int argc, char **argv)
{
    rig g = {.rng = 7, .parts = 1};
    bool only_ops = false, only_models = false;
    double soak_minutes = 0;
    const char *recorded = NULL;
    bool compare = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--quick")) {
            g.quick = true;
        } else if (!strcmp(argv[i], "--brief")) {
            g.quick = g.brief = true;
        } else if (!strcmp(argv[i], "--ops")) {
            only_ops = true;
        } else if (!strcmp(argv[i], "--models")) {
            only_models = true;
        } else if (!strcmp(argv[i], "--links")) {
            return check_links(i + 1 < argc ? argv[i + 1] : NULL);
        } else if (!strcmp(argv[i], "--soak") && i + 1 < argc) {
            soak_minutes = atof(argv[++i]);
            if (!(soak_minutes > 0 && soak_minutes < 1e5)) {
                printf("--soak: minutes are needed, not %s\n", argv[i]);
                return 2;
            }
        } else if (!strcmp(argv[i], "--part") && i + 1 < argc) {
            if (sscanf(argv[++i], "%d/%d", &g.part, &g.parts) != 2 || g.parts < 1 || g.part < 0 ||
                g.part >= g.parts) {
                printf("--part: I/N is needed, I from 0 to N - 1, not %s\n", argv[i]);
                return 2;
            }
        } else if (!strcmp(argv[i], "--card") && i + 1 < argc) {
            setenv("CARAT_CARD", argv[++i], 1);
        } else if ((!strcmp(argv[i], "--record") || !strcmp(argv[i], "--compare")) &&
                   i + 1 < argc) {
            compare = !strcmp(argv[i], "--compare");
            recorded = argv[++i];
        } else {
            g.only = argv[i];
        }
    }
    int32_t n_threads = (pool_default_threads() + g.parts - 1) / g.parts;
    if (device_open_cuda(&g.gpu, NULL, &g.e) ||
        device_open_cpu(&g.ref, &(cpu_options){.reference = true, .n_threads = n_threads}, &g.e)) {
        printf("%s\n", g.e.text);
        return 2;
    }
    printf("%s\n", g.gpu->name);
    if (recorded && !open_record(&g, recorded, compare)) {
        printf("%s cannot be %s\n", recorded, compare ? "read, or has no line" : "written");
        return 2;
    }
    g.scratch_bytes = g.quick ? (size_t)64 << 20 : (size_t)2 << 30;
    g.ref_scratch = g.ref->alloc(g.ref, g.scratch_bytes);
    g.gpu_scratch = g.gpu->alloc(g.gpu, g.scratch_bytes);
    if (!g.ref_scratch || !g.gpu_scratch) {
        printf("no memory for the scratch\n");
        return 2;
    }
    double start = g.last_ms = clock_ms();
    if (soak_minutes > 0) {
        check_expert_soak(&g, soak_minutes);
        only_ops = only_models = true;
    }
    if (!only_models) {
        check_ops(&g);
        check_families(&g);
        check_recur(&g);
        check_lora(&g);
        check_scores_of_pages(&g);
        check_plans(&g);
    }
    double ops = clock_ms();
    if (!only_ops) {
        check_models(&g);
        check_towers(&g);
        check_audio_towers(&g);
        check_sessions(&g);
        check_caches(&g);
        check_commit(&g);
        check_page_moves(&g);
        check_taps(&g);
        check_drafts(&g);
        check_mtp(&g);
        check_rounds(&g);
        check_nextn(&g);
        check_pool(&g);
        check_pool_drafts(&g);
        check_draft_device(&g);
        check_expert_slots(&g);
        check_rank_slots(&g);
        check_placements(&g);
        check_stages(&g);
        check_overlap(&g);
        check_tensor(&g);
        check_faults(&g);
        check_offload(&g);
        check_prefetch(&g);
    }
    double models = clock_ms();
    if (g.gpu->failed(g.gpu, &g.e))
        failed(&g, "device", g.e.text);
    printf("%d checks, %d failed   (ops %.1f s, models %.1f s; slowest %.1f s: %s)\n", g.n_run,
           g.n_failed, (ops - start) / 1e3, (models - ops) / 1e3, g.slowest_ms / 1e3, g.slowest);
    fflush(stdout);
    g.ref->release(g.ref, g.ref_scratch, g.scratch_bytes);
    g.gpu->release(g.gpu, g.gpu_scratch, g.scratch_bytes);
    device_close(g.ref);
    device_close(g.gpu);
    const bool same = close_record();
    return g.n_failed || !same || (!g.n_run && g.parts == 1);
}
