/* engine.c - models: open, own, describe, close.
 *
 * Opening takes these steps: file, shapes, vocabulary, chat format, devices, memory check, weights.
 * Closing undoes them. A model opened for its vocabulary alone has a device too, because plans are
 * dry passes on it, but no weights.
 */
#include "carat_bench.h"
#include "engine/engine_int.h"
#include "engine/experts.h"
#include "engine/media.h"
#include "engine/text_file.h"
#include "base/clock.h"
#include "base/mem.h"
#include "model/draft_kind.h"

#include <string.h>

/* ---- What the file calls its type ------------------------------------------------------ */

/* The values of general.file_type in published files. */
static const char *file_type_name(int64_t n)
{
    static const struct {
        int64_t n;
        const char *name;
    } known[] = {{0, "F32"},      {1, "F16"},      {2, "Q4_0"},    {3, "Q4_1"},    {7, "Q8_0"},
                 {8, "Q5_0"},     {9, "Q5_1"},     {10, "Q2_K"},   {11, "Q3_K_S"}, {12, "Q3_K_M"},
                 {13, "Q3_K_L"},  {14, "Q4_K_S"},  {15, "Q4_K_M"}, {16, "Q5_K_S"}, {17, "Q5_K_M"},
                 {18, "Q6_K"},    {19, "IQ2_XXS"}, {20, "IQ2_XS"}, {21, "Q2_K_S"}, {22, "IQ3_XS"},
                 {23, "IQ3_XXS"}, {24, "IQ1_S"},   {25, "IQ4_NL"}, {26, "IQ3_S"},  {27, "IQ3_M"},
                 {28, "IQ2_S"},   {29, "IQ2_M"},   {30, "IQ4_XS"}, {31, "IQ1_M"},  {32, "BF16"},
                 {36, "TQ1_0"},   {37, "TQ2_0"},   {38, "MXFP4"},  {39, "NVFP4"},  {40, "Q1_0"},
                 {41, "Q2_0"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].n == n)
            return known[i].name;
    return NULL;
}

static const char *commonest_type(const gguf *g)
{
    uint64_t bytes[NUM_TYPE_END] = {0};
    uint32_t best = 0;
    for (uint64_t i = 0; i < g->tensors.n; i++) {
        const tensor *t = &g->tensors.at[i];
        if (t->type < NUM_TYPE_END && (bytes[t->type] += t->n_bytes) > bytes[best])
            best = t->type;
    }
    return num_name(best);
}

static status name_file_type(carat_model *m, err *e)
{
    int64_t n;
    const char *name = NULL;
    if (gguf_get_i64(&m->core.file, "general.file_type", &n))
        name = file_type_name(n);
    m->file_type = mem_strdup(name ? name : commonest_type(&m->core.file));
    if (!m->file_type)
        return err_memory(e, "the model", 16);
    for (char *c = m->file_type; *c; c++)
        if (*c >= 'a' && *c <= 'z')
            *c = (char)(*c - 'a' + 'A');
    return OK;
}

/* ---- Opening --------------------------------------------------------------------------- */

/* Plans count tables where a device has memory of its own. main: the device of side 0. */
static void count_model(carat_model *m, const model *core, int32_t main)
{
    for (int32_t i = 0; i < core->n_weights; i++)
        m->taken_bytes[main + core->weights[i]->side] += core->weights[i]->packed_bytes;
    for (int32_t i = 0; i < core->n_tables; i++) {
        const int32_t at = main + core->tables[i].side;
        if (core->tables[i].moved && !held_device(m, at)->host_memory)
            m->taken_bytes[at] += core->tables[i].n_bytes;
    }
}

static void count_taken(carat_model *m)
{
    for (int32_t i = 0; i < m->n_sides; i++)
        m->taken_bytes[i] += experts_bytes(m, i);
    count_model(m, &m->core, PASS_MAIN);
    for (int k = 0; k < DRAFTERS_MAX; k++)
        if (m->draft[k])
            count_model(m, &m->draft[k]->core, m->draft_dev ? m->n_sides : PASS_MAIN);
    if (media_tower(m))
        count_model(m, media_tower(m), PASS_MAIN);
    if (media_audio_tower(m))
        count_model(m, media_audio_tower(m), PASS_MAIN);
    m->taken_bytes[PASS_MAIN] += media_taken(m);
}

/* Memory of each GPU that is free; 0: the device has none of its own. */
static void free_of_gpus(const carat_model *m, uint64_t n_bytes[CARAT_DEVICES_MAX])
{
    for (int32_t i = 0; i < n_held_devices(m); i++) {
        const device *d = held_device(m, i);
        n_bytes[i] = d->available_bytes ? d->available_bytes(d) : 0;
    }
}

/* A part of the reserve that every plan has: the driver took it while weights were loaded. */
static void count_reserve(carat_model *m, const uint64_t before[CARAT_DEVICES_MAX])
{
    uint64_t now[CARAT_DEVICES_MAX];
    const int32_t n = n_held_devices(m);
    free_of_gpus(m, now);
    for (int32_t i = 0; i < n; i++) {
        uint64_t kept = now[i], most = 0;
        for (int32_t k = i; k < n && memory_of_first(m, i); k++)
            if (same_memory(held_device(m, i), held_device(m, k))) {
                kept += m->taken_bytes[k];
                most += held_device(m, k)->reserve_bytes;
            }
        uint64_t lost = before[i] > kept ? before[i] - kept : 0;
        m->reserve_taken[i] = lost < most ? lost : most;
    }
}

static status load_weights(carat_model *m, const carat_model_options *opt, err *e)
{
    uint64_t before[CARAT_DEVICES_MAX];
    free_of_gpus(m, before);
    status st = experts_open(m, e);
    if (st || (st = model_load(&m->core, m->dev, opt->progress, opt->progress_user, e)) ||
        (st = experts_fill(m, e)))
        return st;
    if ((st = drafters_load(m, opt, e)) || (st = media_load(m, opt, e)))
        return st;
    m->loaded = true;
    count_taken(m);
    count_reserve(m, before);
    return OK;
}

/* A drafter has neither an embedding nor keys of its own, so it answers nothing. Nor does an
 * adapter. */
static status refuse_drafter(const gguf *g, err *e)
{
    const char *what;
    if (lora_is_adapter(g))
        return err_set(e, E_UNSUPPORTED,
                       "%s is an adapter of another model: give it with --lora beside that",
                       g->path);
    draft_kind kind = draft_kind_of(g, &what);
    if (kind == DRAFT_ALIEN)
        return draft_kind_check(g, e);
    if (kind != DRAFT_NONE)
        return err_set(e, E_UNSUPPORTED,
                       "%s is %s, which drafts for another model: give it with --draft", g->path,
                       what);
    return OK;
}

static status open_scorer(carat_model *m, const carat_model_options *opt, err *e)
{
    const carat_model_options o = {.n_threads = opt->n_threads,
                                   .no_mmap = opt->no_mmap,
                                   .vocab_only = opt->vocab_only,
                                   .overcommit = opt->overcommit,
                                   .isa = opt->isa,
                                   .device = "cpu",
                                   .progress = opt->progress,
                                   .progress_user = opt->progress_user};
    const carat_bytes *b = opt->scorer_bytes;
    m->scorer = opt->scorer_model;
    m->lent_scorer = m->scorer != NULL;
    if (m->scorer)
        return OK;
    return b ? carat_model_open_bytes(b->at, b->n, b->name, &o, &m->scorer, e)
             : carat_model_open(opt->scorer, &o, &m->scorer, e);
}

/* Takes g, on success and on failure. */
static status open_gguf(gguf *g, const carat_model_options *opt, carat_model **out, err *e)
{
    static const carat_model_options none;
    double start_ms = clock_ms();
    carat_model *m = mem_calloc(1, sizeof *m);
    status st;

    opt = opt ? opt : &none;
    if (!m) {
        gguf_close(g);
        return err_memory(e, "the model", sizeof *m);
    }
    m->overcommit = opt->overcommit;
    m->plan_only = opt->plan_gpu_mb[0] > 0;
    m->strict = opt->strict;
    m->progress = opt->progress;
    m->progress_user = opt->progress_user;
    pthread_mutex_init(&m->tree_lock, NULL);
    pthread_mutex_init(&m->pass_lock, NULL);
    pthread_mutex_init(&m->lora_lock, NULL);
    if ((st = refuse_drafter(g, e))) {
        gguf_close(g);
        goto out;
    }
    if ((st = model_bind(&m->core, g, e)))
        goto out;
    if (m->core.arch->tower) {
        st = err_set(e, E_UNSUPPORTED,
                     "%s is a vision tower, which makes embeddings of pictures: it "
                     "writes no text",
                     m->core.file.path);
        goto out;
    }
    m->direct = opt->no_mmap && m->core.file.part; /* bytes of the caller's are the caller's */
    if ((st = name_file_type(m, e)))
        goto out;
    if ((st = text_from_gguf(&m->core.file, m->core.n_vocab, &m->text, &m->chat, e)) ||
        (st = rank_open(m, e)))
        goto out;
    if ((st = drafters_open(m, opt, e)) || (st = lora_open(m, opt, e)))
        goto out;
    if ((st = media_open(m, opt, e)) || (st = open_device(m, opt, e)) ||
        (st = lora_check_devices(m, e)))
        goto out;
    if ((opt->scorer || opt->scorer_bytes || opt->scorer_model) &&
        (st = open_scorer(m, opt, e))) /* plans ask how much it takes */
        goto out;
    if (opt->planned && (st = drafters_that_fit(m, opt, opt->planned, opt->planned_user, e)))
        goto out;
    if (!opt->vocab_only && (st = load_weights(m, opt, e)))
        goto out;
    m->load_ms = clock_ms() - start_ms;
    *out = m;
    m = NULL;
out:
    carat_model_close(m);
    return st;
}

/* path NULL: bytes. */
static status open_once(const char *path, const carat_bytes *bytes, const carat_model_options *opt,
                        carat_model **m, err *e)
{
    gguf g = {0};
    status st = path ? gguf_open(&g, path, opt && opt->no_mmap, opt ? opt->progress : NULL,
                                 opt ? opt->progress_user : NULL, e)
                     : gguf_open_bytes(&g, bytes->at, bytes->n,
                                       bytes->name ? bytes->name : "model in memory", e);
    return st ? st : open_gguf(&g, opt, m, e);
}

/* A model is split by tensors once and for good. If --split auto chose that and the model cannot be
 * split so, or does not fit so, it is opened again. */
static status open_model(const char *path, const carat_bytes *bytes, const carat_model_options *opt,
                         carat_model **m, err *e)
{
    err why = {0};
    *m = NULL;
    if (!opt || !split_is_open(opt))
        return open_once(path, bytes, opt, m, e);
    status st = open_once(path, bytes, opt, m, &why);
    if (st != E_MEMORY && st != E_UNSUPPORTED)
        return st ? err_set(e, st, "%s", why.text) : OK;
    carat_model_options o = *opt;
    o.split = "layers";
    st = open_once(path, bytes, &o, m, e);
    if (!st)
        tell_split(*m, o.split, why.text);
    return st;
}

carat_status carat_model_open(const char *path, const carat_model_options *opt, carat_model **m,
                              carat_error *e)
{
    *m = NULL;
    return path ? open_model(path, NULL, opt, m, e)
                : err_set(e, E_ARG, "carat_model_open: no path");
}

carat_status carat_model_open_bytes(const void *bytes, size_t n_bytes, const char *name,
                                    const carat_model_options *opt, carat_model **m, carat_error *e)
{
    const carat_bytes b = {bytes, n_bytes, name};
    *m = NULL;
    return bytes ? open_model(NULL, &b, opt, m, e)
                 : err_set(e, E_ARG, "carat_model_open_bytes: no bytes");
}

void carat_model_close(carat_model *m)
{
    if (!m)
        return;
    sampler *spare = atomic_load(&m->spare_sampler);
    if (spare)
        sampler_free(spare);
    mem_free(spare);
    if (!m->lent_scorer)
        carat_model_close(m->scorer);
    token_tree_close(m->tree);
    vocab_close(m->text);
    drafters_close(m);
    experts_free(m);
    media_close(m);
    model_free(&m->core);
    device_close(m->dev);
    for (int32_t i = 1; i < m->n_sides; i++)
        device_close(m->other[i - 1]);
    mem_free(m->file_type);
    mem_free(m->answers);
    pthread_mutex_destroy(&m->lora_lock);
    pthread_mutex_destroy(&m->pass_lock);
    pthread_mutex_destroy(&m->tree_lock);
    mem_free(m);
}

carat_model *carat_model_page_scorer(carat_model *m)
{
    return m->scorer;
}

void carat_model_park(carat_model *m)
{
    if (m->scorer && !m->lent_scorer)
        carat_model_park(m->scorer);
    pthread_mutex_lock(&m->pass_lock);
    if (m->loaded) {
        experts_close(m);
        media_unload_weights(m);
        model_unload_weights(&m->core);
        if (!m->draft_parked)
            drafters_unload_weights(m);
        m->loaded = false;
        m->parked = true;
        memset(m->taken_bytes, 0, sizeof m->taken_bytes);
    }
    pthread_mutex_unlock(&m->pass_lock);
}

carat_status carat_model_unpark(carat_model *m, carat_error *e)
{
    status st = m->scorer && !m->lent_scorer ? carat_model_unpark(m->scorer, e) : OK;
    if (st)
        return st;
    pthread_mutex_lock(&m->pass_lock);
    if (m->parked) {
        st = experts_open(m, e);
        st = st ? st : model_load_weights(&m->core, m->progress, m->progress_user, e);
        st = st ? st : experts_fill(m, e);
        st = st || m->draft_parked ? st : drafters_load_weights(m, e);
        st = st ? st : media_load_weights(m, e);
        if (st) {
            experts_close(m);
            media_unload_weights(m);
            if (!m->draft_parked)
                drafters_unload_weights(m);
            model_unload_weights(&m->core);
        } else {
            count_taken(m);
        }
        m->loaded = !st;
        m->parked = st != OK;
    }
    pthread_mutex_unlock(&m->pass_lock);
    return st;
}

status model_check_loaded(const carat_model *m, err *e)
{
    if (m->loaded)
        return OK;
    if (m->parked)
        return err_set(e, E_ARG, "%s: its weights are parked", m->core.file.path);
    return err_set(e, E_ARG, "%s: opened for its vocabulary alone, so it cannot compute",
                   m->core.file.path);
}

status model_check_writes(const carat_model *m, err *e)
{
    if (!m->core.encoder)
        return OK;
    return err_set(e, E_UNSUPPORTED,
                   "%s is an encoder: it makes vectors of texts (carat embed, /v1/embeddings) and "
                   "writes no text",
                   m->core.name);
}

void carat_model_get_info(const carat_model *m, carat_model_info *info)
{
    const model *c = &m->core;
    const draft_model *d = main_drafter(m);
    *info = (carat_model_info){.name = c->name,
                               .architecture = c->arch->name,
                               .file_type = m->file_type,
                               .device = m->dev->name,
                               .device_why = m->device_why,
                               .on_gpu = device_bare(m->dev)->kind == DEVICE_CUDA,
                               .fit = m->fit.level,
                               .fit_text = m->fit.text,
                               .fit_ctx = m->fit.n_ctx,
                               .fit_kv = m->fit.kv ? m->fit.kv : "f16",
                               .n_layer = c->n_layer,
                               .n_embd = c->n_embd,
                               .n_vocab = c->n_vocab,
                               .n_ctx_train = c->n_ctx_train,
                               .window = c->window,
                               .drafter = d ? d->class->name : NULL,
                               .drafter_why = d ? d->why : NULL,
                               .drafter_notes = d && d->notes ? d->notes : "",
                               .n_params = c->n_params,
                               .n_params_active = c->n_params_active,
                               .weight_bytes = c->file.data_bytes,
                               .active_bytes_per_token = c->active_bytes,
                               .mmproj = media_path(m),
                               .hears = media_hears(m),
                               .has_vocab = m->text != NULL,
                               .has_chat = m->text && m->chat,
                               .thinks = m->text && m->chat && m->chat->thinks};
}

static carat_device_memory memory_of(const device *d)
{
    return (carat_device_memory){d->name, d->used_bytes(d),
                                 d->available_bytes ? d->available_bytes(d)
                                                    : mem_available_bytes()};
}

_Static_assert((int)CARAT_DEVICES_MAX == (int)PASS_SIDES_MAX,
               "each device of a model is a side of its passes, or of its drafter's");

int32_t carat_memory(const carat_model *m, carat_device_memory list[CARAT_DEVICES_MAX])
{
    for (int32_t i = 0; i < n_held_devices(m); i++)
        list[i] = memory_of(held_device(m, i));
    return n_held_devices(m);
}

static int32_t op_times(const device_op_time *from, int32_t n, carat_op_time *list, int32_t cap)
{
    n = n < cap ? n : cap;
    for (int32_t i = 0; i < n; i++)
        list[i] = (carat_op_time){from[i].op,       from[i].type,    from[i].rows, from[i].n_in,
                                  from[i].n_out,    from[i].n_calls, from[i].ms,   from[i].bytes,
                                  from[i].int8_ops, from[i].f32_ops};
    return n;
}

int32_t carat_op_times(carat_model *m, carat_op_time *list, int32_t cap, bool clear)
{
    device_op_time from[DEVICE_OP_TIMES_MAX];
    return op_times(from, device_op_times(m->dev, from, DEVICE_OP_TIMES_MAX, clear), list, cap);
}

status carat_time_passes(carat_model *m, err *e)
{
    if (!m->dev->time_passes || n_held_devices(m) > 1)
        return err_set(e, E_UNSUPPORTED,
                       "times of passes are taken of models on one GPU alone: %s is on %s",
                       m->core.name, n_held_devices(m) > 1 ? "several devices" : m->dev->name);
    return m->dev->time_passes(m->dev, e);
}

int32_t carat_timed_passes(carat_model *m, carat_pass_times *t, carat_op_time *list, int32_t cap)
{
    device_pass_times from = {0};
    if (m->dev->timed_passes)
        m->dev->timed_passes(m->dev, &from);
    *t = (carat_pass_times){from.read_bytes, from.launch_ms, from.pass_ms,
                            from.n_whole,    from.n_split,   from.n_kernels};
    return op_times(from.ops, from.n_ops, list, cap);
}

bool carat_input_sums_at(const carat_model *m, int32_t i, carat_input_sums *out)
{
    device_inputs x;
    if (!device_inputs_at(m->dev, i, &x))
        return false;
    *out = (carat_input_sums){x.name, x.n_in, x.n_mat, x.sum, x.n};
    return true;
}
