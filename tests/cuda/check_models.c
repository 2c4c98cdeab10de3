/* check_models.c - whole tiny models on the CUDA device: against logits of transformers, against
 * the CPU reference with weights of blocks, on two GPUs, and their memory against its plan.
 */
#include "tests/cuda/check_int.h"
#include "base/mem.h"
#include "carat.h"
#include "model/model.h"
#include "model/shapes.h"
#include "tests/fidelity_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Logits of all tokens, in passes of at most chunk rows, of a prompt or of answers. With `last`
 * only the last token's logits are wanted, the others stay 0, and no other pass has an output. Host
 * memory; mem_free. */
static float *run_wanting(rig *g, device *dev, const model *m, const int32_t *ids, int32_t n,
                          int32_t chunk, bool prompt, bool last, num_type kv_type, err *e)
{
    kv_layout l = {0};
    kv_cache c = {0};
    kv_batch b = {0};
    void *scratch = dev == g->gpu ? g->gpu_scratch : g->ref_scratch;
    size_t width = (size_t)(m->encoder ? m->n_embd : m->n_vocab);
    float *out = mem_calloc((size_t)n * width, sizeof *out);
    status st;
    kv_want_layout want = {
        .spec = m->kv,
        .n = m->n_kv,
        .recur = m->recur,
        .n_recur = m->n_recur,
        .journal_rows = chunk < STEP_TREE_ROWS_MAX ? chunk : STEP_TREE_ROWS_MAX,
        .choice = {.k = {kv_type, false}, .v = {kv_type, false}, .single = KV_SINGLE_OFF},
        .n_ctx = n,
        .rows_max = chunk};
    if ((st = kv_layout_init(&l, &want, e)) || (st = kv_open(&c, dev, &l, e)) ||
        (st = kv_batch_init(&b, chunk, 1, &l, e)))
        goto out;
    for (int32_t at = 0; at < n && !st; at += chunk) {
        int32_t rows = n - at < chunk ? n - at : chunk;
        kv_want what = !last ? KV_WANT_ALL : at + rows == n ? KV_WANT_LAST : KV_WANT_NONE;
        const kv_rows add = {
            .token = ids + at, .n = rows, .both_ways = m->encoder, .final = prompt, .want = what};
        int32_t out0 = last ? n - 1 : at, outs = !last ? rows : what == KV_WANT_LAST;
        pass p;
        kv_batch_clear(&b);
        if ((st = kv_reserve(&c, rows, e)) || (st = kv_batch_add_rows(&b, &c, &add, e)))
            goto out;
        b.st.prompt = prompt;
        pass_begin(&p, dev, &b.st, scratch, g->scratch_bytes);
        if (g->meanwhile)
            g->meanwhile->upload(g->meanwhile, g->meanwhile_at, ids, sizeof *ids);
        mat y = model_forward(&p, m, &l);
        if (pass_failed(&p)) {
            st = err_set(e, p.e.status, "%s", p.e.text);
            goto out;
        }
        if (outs)
            dev->download(dev, out + (size_t)out0 * width, y.at,
                          (size_t)outs * width * sizeof *out);
        kv_commit(&c, rows);
    }
out:
    kv_batch_free(&b);
    kv_close(&c);
    kv_layout_free(&l);
    if (st) {
        mem_free(out);
        return NULL;
    }
    return out;
}

static float *run(rig *g, device *dev, const model *m, const int32_t *ids, int32_t n, int32_t chunk,
                  bool prompt, num_type kv_type, err *e)
{
    return run_wanting(g, dev, m, ids, n, chunk, prompt, false, kv_type, e);
}

static bool open_model(model *m, const char *path, err *e)
{
    gguf file = {0};
    return !gguf_open(&file, path, true, NULL, NULL, e) && !model_bind(m, &file, e);
}

/* Largest and root mean square difference; a NaN shows in both. */
static double distance(const float *got, const float *want, size_t n, double *top)
{
    double sum = 0;
    *top = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]);
        if (isinf(want[i]) && got[i] == want[i])
            continue;
        if (!isnan(*top) && !(d <= *top)) /* NaN is kept */
            *top = d;
        sum += d * d;
    }
    return sqrt(sum / (double)n);
}

static void compare(rig *g, const char *name, const char *shape, const float *got,
                    const float *want, size_t n, double bound_max, double bound_rms)
{
    double top, rms = distance(got, want, n, &top);
    char line[96];
    snprintf(line, sizeof line, "%s max %.1e rms", shape, top);
    verdict(g, name, line, top <= bound_max ? rms : NAN, bound_rms);
}

static void check_golden(rig *g, const char *name)
{
    static const int32_t chunks[] = {INT32_MAX, 64, 40, 7, 1}; /* the first: all tokens */
    fidelity f;
    model m = {0};
    err e = {0};
    fidelity_open(&f, name);
    const char *path = fidelity_write(&f, NULL);
    if (!open_model(&m, path, &e) || model_load(&m, g->gpu, NULL, NULL, &e)) {
        failed(g, "golden", e.text);
    } else {
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            int32_t chunk = chunks[i] < f.n_tokens ? chunks[i] : f.n_tokens;
            char shape[64];
            if (g->quick && chunk == 1)
                continue;
            snprintf(shape, sizeof shape, "%-8s chunks of %d", name, chunk);
            float *y =
                run(g, g->gpu, &m, f.tokens, f.n_tokens, chunk, of_prompt(chunk), NUM_F32, &e);
            if (y)
                compare(g, "golden", shape, y, f.logits, (size_t)f.n_tokens * (size_t)f.n_vocab,
                        1e-3, 1e-4);
            else
                failed(g, "golden", e.text);
            mem_free(y);
        }
    }
    model_free(&m);
    unlink(path);
    fidelity_close(&f);
}

/* The vectors of sentence-transformers, of texts in one pass each. */
static void check_encoder(rig *g, const char *name)
{
    fidelity f;
    model m = {0};
    err e = {0};
    int64_t pooling = 0;
    fidelity_open(&f, name);
    const char *path = fidelity_write(&f, NULL);
    bool ready = open_model(&m, path, &e) && !model_load(&m, g->gpu, NULL, NULL, &e);
    gguf_get_i64(&m.file, "gemma-embedding.pooling_type", &pooling);
    for (int32_t i = 0, n; ready && (n = fidelity_length(&f, i)); i++) {
        if (g->quick && n != 2 && n != 40) /* inside the windows, and past them on both sides */
            continue;
        float *y = run(g, g->gpu, &m, f.tokens, n, n, true, NUM_F32, &e);
        size_t width = (size_t)m.n_embd;
        if (!(ready = y != NULL))
            break;
        for (size_t c = 0; c < width; c++) {
            double sum = 0;
            for (int32_t r = pooling == POOLING_MEAN ? 0 : n - 1; r < n; r++)
                sum += (double)y[(size_t)r * width + c];
            y[c] = (float)(pooling == POOLING_MEAN ? sum / n : sum);
        }
        compare(g, "encoder", text("%-8s %d tokens", name, n), y, f.vectors + (size_t)i * width,
                width, 1e-3, 1e-4);
        mem_free(y);
    }
    if (!ready)
        failed(g, "encoder", e.text);
    model_free(&m);
    unlink(path);
    fidelity_close(&f);
}

/* Encodes every matrix of m that fits blocks of 32 in one of the formats, in turn. */
static void requantise(model *m, void **made, int *n_made)
{
    static const num_type types[] = {NUM_Q8_0, NUM_Q5_1, NUM_Q8_0, NUM_Q5_0, NUM_Q4_1, NUM_F16};
    for (int32_t i = 0; i < m->n_weights; i++) {
        weight *w = m->weights[i];
        num_type t = types[i % 6];
        uint64_t row;
        size_t rows = (size_t)w->n_out * (size_t)w->n_mat;
        if (w->n_out * w->n_mat == 1 || w->type != NUM_F32 || strstr(w->name, "gate_inp") ||
            strstr(w->name, "conv1d") || strstr(w->name, ".bias") ||
            !num_row_bytes(t, (uint64_t)w->n_in, &row))
            continue;
        char *to = mem_alloc(rows * row);
        for (size_t r = 0; r < rows; r++)
            num_format_of(t)->encode((const float *)w->data + r * (size_t)w->n_in, to + r * row,
                                     w->n_in);
        made[(*n_made)++] = to;
        w->type = t;
        w->data = to;
        w->row_bytes = row;
        w->mat_bytes = row * (size_t)w->n_out;
        w->n_bytes = row * rows;
    }
}

/* The distance of the CPU's int8 kernels from the reference on this model. It is large where a
 * rounding makes a router choose another expert, on every device. */
static double cpu_distance(rig *g, const char *path, const float *want, size_t n, fidelity *f)
{
    device *cpu = NULL;
    model m = {0};
    void *made[2048];
    int n_made = 0;
    err e = {0};
    double top, rms = NAN;
    if (device_open_cpu(&cpu, NULL, &e))
        return rms;
    if (open_model(&m, path, &e)) {
        requantise(&m, made, &n_made);
        float *y = model_load(&m, cpu, NULL, NULL, &e)
                       ? NULL
                       : run(g, cpu, &m, f->tokens, f->n_tokens, 64, true, NUM_F16, &e);
        if (y)
            rms = distance(y, want, n, &top);
        mem_free(y);
    }
    model_free(&m);
    device_close(cpu);
    for (int i = 0; i < n_made; i++)
        mem_free(made[i]);
    return rms;
}

/* Blocks, int8 activations and bf16 prefill against the reference's f64 sums: at most twice as far
 * as the CPU's int8 kernels. */
static void check_blocks(rig *g, const char *name)
{
    static const int32_t chunks[] = {64, 13, 1, 50};
    fidelity f;
    model m[2] = {{0}};
    void *made[2048];
    int n_made = 0;
    err e = {0};
    fidelity_open(&f, name);
    const char *path = fidelity_write(&f, NULL);
    bool ok = open_model(&m[0], path, &e) && open_model(&m[1], path, &e);
    for (int i = 0; ok && i < 2; i++) {
        requantise(&m[i], made, &n_made);
        ok = !model_load(&m[i], i ? g->gpu : g->ref, NULL, NULL, &e);
    }
    float *want = ok ? run(g, g->ref, &m[0], f.tokens, f.n_tokens, 64, true, NUM_F16, &e) : NULL;
    if (!want)
        failed(g, "blocks", e.text);
    size_t n = (size_t)f.n_tokens * (size_t)f.n_vocab;
    double bound = want ? 2 * cpu_distance(g, path, want, n, &f) : NAN;
    float *few[3] = {NULL};
    for (int i = 0; want && i < 4; i++) {
        char shape[64];
        snprintf(shape, sizeof shape, "%-8s chunks of %d", name, chunks[i]);
        float *y = run(g, g->gpu, &m[1], f.tokens, f.n_tokens, chunks[i], i == 0, NUM_F16, &e);
        if (y)
            compare(g, "blocks", shape, y, want, n, INFINITY, bound);
        else
            failed(g, "blocks", e.text);
        if (i)
            few[i - 1] = y;
        else
            mem_free(y);
    }
    for (int i = 0; i < 3; i += 2)
        if (few[i] && few[1])
            verdict(g, "blocks", text("%d rows a pass and 1: logits that differ", chunks[i + 1]),
                    memcmp(few[i], few[1], n * sizeof(float)) != 0, 0);
    for (int i = 0; i < 3; i++)
        mem_free(few[i]);
    mem_free(want);
    for (int i = 0; i < 2; i++)
        model_free(&m[i]);
    for (int i = 0; i < n_made; i++)
        mem_free(made[i]);
    unlink(path);
    fidelity_close(&f);
}

/* A prompt's logits are the same bits in passes of any number of rows, with weights of blocks and
 * of floats, over two streams and one. */
static void check_chunks(rig *g, const char *name)
{
    static const int32_t chunks[] = {1, 7, 33, 64, 100};
    static const num_type kv[] = {NUM_F16, NUM_F32};
    fidelity f;
    model m = {0};
    void *made[2048];
    int n_made = 0;
    err e = {0};
    fidelity_open(&f, name);
    const char *path = fidelity_write(&f, NULL);
    bool ok = open_model(&m, path, &e);
    if (ok) {
        requantise(&m, made, &n_made);
        ok = !model_load(&m, g->gpu, NULL, NULL, &e);
    }
    for (int t = 0; t < 2 && ok; t++) {
        size_t n = (size_t)f.n_tokens * (size_t)f.n_vocab * sizeof(float);
        float *all = run(g, g->gpu, &m, f.tokens, f.n_tokens, f.n_tokens, true, kv[t], &e);
        for (int i = 0; all && i < 5; i++) {
            float *y = g->quick && chunks[i] == 1
                           ? NULL
                           : run(g, g->gpu, &m, f.tokens, f.n_tokens, chunks[i], true, kv[t], &e);
            if (y)
                verdict(g, "chunks",
                        text("%-8s %s, %d rows a pass: logits that differ", name, num_name(kv[t]),
                             chunks[i]),
                        memcmp(y, all, n) != 0, 0);
            mem_free(y);
        }
        /* Passes without an output store their last keys too. */
        for (int i = 1; all && i < 4; i++) {
            size_t width = (size_t)f.n_vocab, at = (size_t)(f.n_tokens - 1) * width;
            float *y =
                run_wanting(g, g->gpu, &m, f.tokens, f.n_tokens, chunks[i], true, true, kv[t], &e);
            if (y)
                verdict(g, "chunks",
                        text("%-8s %s, %d rows a pass, one output: logits that differ", name,
                             num_name(kv[t]), chunks[i]),
                        memcmp(y + at, all + at, width * sizeof *y) != 0, 0);
            mem_free(y);
        }
        ok = all != NULL;
        mem_free(all);
    }
    if (!ok)
        failed(g, "chunks", e.text);
    model_free(&m);
    for (int i = 0; i < n_made; i++)
        mem_free(made[i]);
    unlink(path);
    fidelity_close(&f);
}

/* The logits of a model with weights of blocks on one more GPU, and again on the first while the
 * other is open and used in the middle of each pass. */
static void check_two_gpus(rig *g, const char *name)
{
    rig second = *g;
    fidelity f;
    model m[2] = {{0}};
    void *made[2048];
    float *y[3] = {NULL};
    int n_made = 0;
    err e = {0};
    fidelity_open(&f, name);
    const char *path = fidelity_write(&f, NULL);
    size_t n = (size_t)f.n_tokens * (size_t)f.n_vocab * sizeof *y[0];
    bool ok = open_model(&m[0], path, &e) && open_model(&m[1], path, &e);
    for (int i = 0; ok && i < 2; i++)
        requantise(&m[i], made, &n_made);
    ok = ok && !model_load(&m[0], g->gpu, NULL, NULL, &e) &&
         (y[0] = run(g, g->gpu, &m[0], f.tokens, f.n_tokens, 13, false, NUM_F16, &e));
    second.gpu = NULL;
    ok = ok && !device_open_cuda(&second.gpu, &(cuda_options){.device = 1}, &e) &&
         (second.gpu_scratch = second.gpu->alloc(second.gpu, g->scratch_bytes)) &&
         !model_load(&m[1], second.gpu, NULL, NULL, &e);
    if (ok) {
        g->meanwhile = second.gpu;
        g->meanwhile_at = second.gpu_scratch;
        second.meanwhile = g->gpu;
        second.meanwhile_at = g->gpu_scratch;
        ok = (y[1] =
                  run(&second, second.gpu, &m[1], f.tokens, f.n_tokens, 13, false, NUM_F16, &e)) &&
             (y[2] = run(g, g->gpu, &m[0], f.tokens, f.n_tokens, 13, false, NUM_F16, &e));
        g->meanwhile = NULL;
    }
    if (!ok)
        failed(g, "two gpus", e.text);
    for (int i = 1; ok && i < 3; i++)
        verdict(g, "two gpus", text("%-8s GPU %d beside another: logits that differ", name, i % 2),
                memcmp(y[0], y[i], n) != 0, 0);
    for (int i = 0; i < 3; i++)
        mem_free(y[i]);
    for (int i = 0; i < 2; i++)
        model_free(&m[i]);
    if (second.gpu) {
        second.gpu->release(second.gpu, second.gpu_scratch, g->scratch_bytes);
        device_close(second.gpu);
    }
    for (int i = 0; i < n_made; i++)
        mem_free(made[i]);
    unlink(path);
    fidelity_close(&f);
}

static bool second_gpu_is_here(void)
{
    device *d = NULL;
    err e = {0};
    bool here = !device_open_cuda(&d, &(cuda_options){.device = 1}, &e);
    device_close(d);
    return here;
}

/* The device memory of a working session equals its plan to the byte. What the driver took for it,
 * with recorded passes and whole pages, is within the plan's reserve: known where nothing else runs
 * on the GPU. */
void check_memory(rig *g, const char *name, const char *mmproj)
{
    static uint8_t rgb[40 * 30 * 3];
    static const float samples[4000];
    const carat_image_options least = {.n_tokens = 70};
    fidelity f;
    fidelity_open(&f, name);
    const char *path = fidelity_write(&f, NULL);
    carat_model_options mo = {.device = "cuda", .mmproj = mmproj};
    carat_media *picture = NULL, *sound = NULL;
    carat_model_info info;
    carat_session_options so = {.n_ctx = f.n_tokens, .chunk = 40, .checkpoint_mb = -1};
    carat_device_memory now[CARAT_DEVICES_MAX];
    carat_memory_plan plan;
    carat_model *m = NULL;
    carat_session *s = NULL;
    carat_error e = {0};
    carat_status st = carat_model_open(path, &mo, &m, &e);
    if (!st && !(st = carat_plan(m, &so, &plan, &e)))
        st = carat_session_open(m, &so, &s, &e);
    for (int64_t at = 0, n; at < f.n_tokens && !st; at = n) {
        n = at ? at + 1 : f.n_tokens / 2; /* passes of one row are recorded on the way */
        st = carat_eval(s, f.tokens, n, NULL, NULL, &e);
    }
    if (mmproj && !g->quick && !st &&
        !(st = carat_image_new(m, rgb, 40, 30, &least, &picture, &e))) {
        for (int32_t i = 1; i < f.n_tokens - 1 && i <= carat_media_n(picture); i++)
            f.tokens[i] = carat_media_id(picture) + 1 - i;
        st = carat_eval(s, f.tokens, f.n_tokens, NULL, NULL, &e);
    }
    if (!st)
        carat_model_get_info(m, &info);
    if (!st && info.hears && !(st = carat_sound_new(m, samples, 4000, &sound, &e))) {
        for (int32_t i = 0; i < carat_media_n(sound); i++)
            f.tokens[1 + i] = carat_media_id(sound) - i;
        st = carat_eval(s, f.tokens, f.n_tokens, NULL, NULL, &e);
    }
    if (st) {
        failed(g, "memory", e.text);
    } else {
        const carat_device_plan *p = &plan.device[0];
        carat_memory(m, now);
        double planned = (double)(p->total_bytes - p->reserve_bytes);
        double taken = (double)p->available_bytes - (double)now[0].available_bytes;
        verdict(g, "memory", text("%-8s bytes used beside %.0f planned", name, planned),
                fabs((double)now[0].used_bytes - planned), 0);
        if (g->parts == 1) /* other parts take memory of the same GPU */
            verdict(g, "memory", text("%-8s MiB taken from the device", name), taken * 0x1p-20,
                    (double)p->total_bytes * 0x1p-20);
    }
    carat_session_close(s);
    carat_media_free(picture);
    carat_media_free(sound);
    carat_model_close(m);
    unlink(path);
    fidelity_close(&f);
}

/* A turn for each model: `check --models "golden e2b"` runs one. */
static void of_each(rig *g, const char *what, const char *const *name,
                    void (*check)(rig *g, const char *name))
{
    for (; *name; name++)
        if (my_turn(g, text("%s %s", what, *name)))
            check(g, *name);
}

static void check_memory_of_text(rig *g, const char *name)
{
    check_memory(g, name, NULL);
}

void check_models(rig *g)
{
    of_each(g, "memory", fidelity_names, check_memory_of_text);
    of_each(g, "golden", fidelity_names, check_golden);
    of_each(g, "encoder", fidelity_encoders, check_encoder);
    of_each(g, "blocks", fidelity_names, check_blocks);
    of_each(g, "chunks", fidelity_names, check_chunks);
    if (my_turn(g, "two gpus") && second_gpu_is_here())
        check_two_gpus(g, "moe");
}
