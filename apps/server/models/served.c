/* served.c - see served.h. */
#include "apps/server/models/served.h"

#include "apps/named.h"
#include "apps/pool_options.h"
#include "apps/server/answers/live.h"
#include "apps/server/models/loras.h"
#include "apps/term.h"
#include "base/mem.h"

#include <string.h>

/* The model keeps it beyond the loading. */
static bool go_on_loading(void *user, const char *what, uint64_t done, uint64_t total)
{
    const served *m = user;
    if (!m->ask)
        return true;
    if (!strcmp(m->s->o->log, "text"))
        term_progress(NULL, what, done, total);
    return !m->ask->go_on || m->ask->go_on(m->ask->user);
}

static void find_marks(served *m)
{
    answer_model *a = &m->names;
    carat_marks marks;
    carat_model_get_marks(m->model, &marks);
    _Static_assert(sizeof a->marks == sizeof marks.all, "every mark has its place");
    memcpy(a->marks, marks.all, sizeof marks.all);
    a->n_marks = marks.n_all;
    a->call_open = marks.call_open;
    a->call_close = marks.call_close;
    m->thought_open = marks.thought_open;
    m->can_call = marks.calls;
    m->bars_calls = marks.bars_calls;
    for (int32_t id = 0; id < m->info.n_vocab && m->n_ends < 16; id++)
        if (carat_token_is_eog(m->model, id))
            m->ends[m->n_ends++] = id;
}

/* Logs the devices, and the memory of a slot; with a pool of keys, of all slots. */
static status tell_plan(const served *m, const carat_model *model, const carat_batch_options *batch,
                        err *e)
{
    const server *s = m->s;
    carat_model_info info;
    carat_memory_plan p;
    char states[160];
    bool pool = batch->session.kv_pool > 0 || batch->session.kv_resident;
    carat_status st =
        pool ? carat_plan_batch(model, batch, &p, e) : carat_plan(model, &batch->session, &p, e);
    if (st)
        return st;
    const char *whose = pool ? "all slots'" : "a slot's";
    carat_model_get_info(model, &info);
    log_line(s, "device %s: %s", info.device, info.device_why);
    if (*info.fit_text)
        log_line(s, "%s", info.fit_text);
    if (info.drafter)
        log_line(s, "drafter %s: %s", info.drafter, info.drafter_why);
    for (const char *at = info.drafter_notes; *at;) {
        int n = (int)strcspn(at, "\n");
        log_line(s, "drafter's file: %.*s", n, at);
        at += n + (at[n] != 0);
    }
    for (int32_t i = 0; i < p.n_devices; i++) {
        const carat_device_plan *d = &p.device[i];
        if (device_drafts_alone(d)) {
            log_line(s, "plan: the drafter on %s: %.1f MiB, reserve %.1f; %.1f available",
                     d->device, (double)d->draft_bytes * 0x1p-20,
                     (double)d->reserve_bytes * 0x1p-20, (double)d->available_bytes * 0x1p-20);
            continue;
        }
        log_line(s,
                 "plan: %d layers on %s: weights %.1f MiB, %s window caches %.1f and global "
                 "caches %.1f, scratch %.1f, reserve %.1f; %.1f available",
                 d->n_layers, d->device, (double)d->weight_bytes * 0x1p-20, whose,
                 (double)d->kv_swa_bytes * 0x1p-20, (double)d->kv_global_bytes * 0x1p-20,
                 (double)d->scratch_bytes * 0x1p-20, (double)d->reserve_bytes * 0x1p-20,
                 (double)d->available_bytes * 0x1p-20);
        if (p.n_devices > 1 && d->n_layers)
            log_line(s, "plan: layers %d to %d on %s; %.1f KiB come from other devices for a token",
                     d->first_layer, d->first_layer + d->n_layers - 1, d->device,
                     (double)d->crossing_bytes * 0x1p-10);
        if (d->recurrent_bytes)
            log_line(s, "plan: %s recurrent states on %s: %.1f MiB", whose, d->device,
                     (double)d->recurrent_bytes * 0x1p-20);
    }
    if (p.scorer_bytes)
        log_line(s, "plan: the scorer of pages: %.1f MiB of host memory",
                 (double)p.scorer_bytes * 0x1p-20);
    if (p.picture_bytes)
        log_line(s, "plan: the vision tower: %.1f MiB on %s; pictures: %.1f MiB of host memory",
                 (double)p.vision_bytes * 0x1p-20, p.device[0].device,
                 (double)p.picture_bytes * 0x1p-20);
    if (p.audio_bytes)
        log_line(s, "plan: the audio tower: %.1f MiB on %s", (double)p.audio_bytes * 0x1p-20,
                 p.device[0].device);
    if (device_plan_checkpoints(&p, states, sizeof states))
        log_line(s, "plan: %s", states);
    else if (p.checkpoint_bytes)
        log_line(s, "plan: checkpoints: at most %.1f MiB of host memory",
                 (double)p.checkpoint_bytes * 0x1p-20);
    if (p.checkpoint_bytes && info.on_gpu)
        log_line(s, "plan: the GPU locks that memory from the start (4352.0 MiB at most)");
    return OK;
}

typedef struct loading {
    served *m;
    carat_batch_options batch;
} loading;

/* The options of a model that scores: nothing but the CPU, one text at a time. */
static void be_scorer(carat_model_options *mo, carat_batch_options *bo)
{
    mo->device = "cpu";
    mo->gpus = mo->gpu_split = mo->split = NULL;
    mo->draft = mo->draft_device = NULL;
    mo->draft_bytes = NULL;
    mo->n_draft_bytes = mo->gpu_layers = 0;
    mo->cpu_experts = mo->strict = false;
    mo->scorer = NULL;
    mo->mmproj = NULL;
    bo->session = (carat_session_options){.chunk = bo->session.chunk, .checkpoint_mb = -1};
    bo->n_slots = 1;
}

/* Longer texts are scored in parts. */
static void scorer_length(const carat_model *model, carat_batch_options *bo)
{
    carat_model_info info;
    carat_model_get_info(model, &info);
    bo->session.n_ctx = info.n_ctx_train < SCORER_CTX ? info.n_ctx_train : SCORER_CTX;
}

/* Before weights are read: is there room for the batch? */
static carat_status before_weights(void *user, const carat_model *model, carat_error *e)
{
    loading *l = user;
    served *m = l->m;
    if (m->ask->scorer)
        scorer_length(model, &l->batch);
    carat_status st = tell_plan(m, model, &l->batch, e);
    if (st || (st = carat_plan_batch(model, &l->batch, &m->total, e)))
        return st;
    if (!m->ask->scorer)
        device_tell_facts(model);
    m->model = (carat_model *)(size_t)model; /* for `room`; it is not open yet */
    carat_model_get_info(model, &m->info);
    st = m->ask->room ? m->ask->room(m->ask->user, m, &m->total, e)
                      : carat_plan_check(model, &m->total, e);
    m->model = NULL;
    m->info = (carat_model_info){0};
    return st;
}

/* What requests need of a model whose batch is b. */
static status describe(served *m, const served_ask *ask, carat_batch *b, err *e)
{
    const serve_options *o = m->s->o;
    carat_session_options so = m->session;
    m->n_ctx = so.n_ctx = carat_batch_n_ctx(b);
    carat_batch_info info;
    carat_batch_get_info(b, &info, NULL, 0);
    so.kv_pool = 0; /* the plan of one slot */
    so.kv_resident = info.kept_tokens;
    if (info.kept_tokens) {
        log_line(m->s,
                 "pool of keys: %d tokens for %d slots of up to %d, each with at most %d in it "
                 "(%s%s%s); "
                 "longer conversations are lossy",
                 info.pool_tokens, info.n_slots, m->n_ctx, info.kept_tokens, info.policy,
                 info.policy_why[0] ? ", because " : "", info.policy_why);
    } else if (o->kv_pool && !ask->scorer) {
        log_line(m->s,
                 "pool of keys: %d tokens for %d slots of up to %d; those without room wait in the "
                 "queue or in host memory",
                 info.pool_tokens, info.n_slots, m->n_ctx);
    }
    m->n_slots = info.n_slots;
    status st = carat_plan(m->model, &so, &m->plan, e);
    if (st)
        return st;
    carat_sampling_default(m->model, &m->limits.sampling);
    sample_options_apply(&o->sample, &m->limits.sampling, NULL); /* checked at the start */
    m->limits.n_vocab = m->info.n_vocab;
    m->limits.lenient = o->lenient;
    m->limits.images = m->info.mmproj != NULL;
    m->limits.sounds = m->info.hears;
    m->limits.could_see = !m->limits.images && carat_image_token(m->model) >= 0;
    m->limits.pictures = &m->s->pictures;
    carat_meta template;
    if (carat_model_find_meta(m->model, "tokenizer.chat_template", &template) &&
        template.kind == CARAT_META_TEXT) {
        m->limits.chat_template = template.text;
        m->limits.n_chat_template = (size_t) template.n_text;
    }
    m->names.name = ask->name ? ask->name : m->info.name;
    m->names.model = m->model;
    find_marks(m);
    return OK;
}

/* A line of the log says what --sparse means for the model. */
static status tell_sparse(const served *m, err *e)
{
    char text[320];
    const char *sparse = m->session.sparse;
    status st = sparse ? carat_sparse_describe(m->model, sparse, text, sizeof text, e) : OK;
    if (sparse && !st)
        log_line(m->s, "sparse attention %s: %s", sparse, text);
    return st;
}

/* What a model does without. */
static void tell(void *user, const char *text)
{
    log_line(user, "%.*s", (int)strcspn(text, "\n"), text);
}

static status load(served *m, const served_ask *ask, err *e)
{
    const serve_options *o = m->s->o;
    loading l = {.m = m};
    carat_model_options mo = {.n_threads = (int32_t)o->threads,
                              .no_mmap = o->no_mmap,
                              .exact_f32 = o->exact,
                              .reference = o->reference,
                              .overcommit = o->overcommit,
                              .isa = o->isa,
                              .progress = go_on_loading,
                              .progress_user = m,
                              .log = tell,
                              .log_user = m->s};
    carat_batch_options bo = {
        .session = {.n_ctx = o->n_ctx ? (int32_t)o->n_ctx : ask->n_ctx, .chunk = (int32_t)o->chunk},
        .n_slots = (int32_t)o->parallel,
        .queue_max = (int32_t)o->queue,
        .gap_ms = o->token_gap_ms ? (int32_t)o->token_gap_ms : -1};
    device_options_apply(&o->where, &mo);
    kv_options_apply(&o->kv, &bo.session);
    cache_options_apply(&o->cache, &bo.session);
    draft_options_apply(&o->draft, &mo, &bo.session);
    mmproj_options_apply(&o->mmproj, &mo, NULL); /* checked at the start */
    if (m->s->scorer && scorer_is_shared(o->compress.model, o->kv_scorer))
        mo.scorer_model = m->s->scorer->model;
    else
        mo.scorer = o->kv_scorer;
    bo.session.sparse = o->sparse;
    pool_tokens_read(o->kv_pool, &bo.session.kv_pool, NULL); /* checked at the start */
    bool auto_pool = bo.session.kv_pool < 0;
    if (auto_pool)
        bo.session.kv_pool = 0;
    if (o->kv_policy || o->kv_keep || auto_pool)
        bo.session.kv_resident = o->kv_keep ? (int32_t)o->kv_keep : -1;
    bo.session.kv_policy = o->kv_policy;
    bo.session.kv_tau = (int32_t)o->kv_tau;
    bo.session.kv_host_mb = (int32_t)o->kv_host_mb;
    if (ask->scorer)
        be_scorer(&mo, &bo);
    m->session = bo.session;
    l.batch = bo;
    mo.session = &bo.session;
    mo.n_sessions = bo.n_slots;
    mo.planned = before_weights; /* instead of that of device_options_apply */
    mo.planned_user = &l;
    lora_files loras = {0};
    arena mem = {0}; /* of names of adapters */
    status st = lora_options_apply(&o->lora, &loras, &mo, e);
    if (!st)
        mo.n_loras =
            ask->scorer ? 0 : loras_of_made(m->s, ask->path, ask->loras, &loras, mo.n_loras, &mem);
    st = st ? st : named_open(ask->path, &mo, &m->model, e);
    lora_files_free(&loras);
    arena_free(&mem);
    if (!strcmp(o->log, "text"))
        term_progress_clear();
    if (st)
        return st;
    carat_model_get_info(m->model, &m->info);
    if (!m->info.has_vocab)
        return err_set(e, E_UNSUPPORTED, "%s has no vocabulary: it cannot be served",
                       ask->path ? ask->path : "the bundled model");
    if (ask->scorer)
        m->session = (bo = l.batch).session;
    if ((st = replay_open(&m->calls, e)) || (st = carat_compressor_open(&m->shortened, 0, e)) ||
        (st = carat_batch_open(m->model, &bo, &m->batch, e)))
        return st;
    st = describe(m, ask, m->batch, e);
    return st ? st : tell_sparse(m, e);
}

status served_open(served **out, server *s, const served_ask *ask, err *e)
{
    served *m = mem_calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return err_memory(e, "a model", sizeof *m);
    m->s = s;
    m->ask = ask;
    m->path = ask->path;
    pthread_rwlock_init(&m->batch_lock, NULL);
    status st = load(m, ask, e);
    m->ask = NULL;
    if (st)
        served_close(m);
    else
        *out = m;
    return st;
}

void served_halt(served *m)
{
    pthread_rwlock_wrlock(&m->batch_lock);
    carat_batch *b = m->batch;
    m->batch = NULL;
    pthread_rwlock_unlock(&m->batch_lock);
    carat_batch_close(b);
    waker_go(&m->s->waker);
}

void served_close(served *m)
{
    if (!m)
        return;
    carat_batch_close(m->batch);
    replay_close(m->calls);
    carat_compressor_close(m->shortened);
    carat_model_close(m->model);
    pthread_rwlock_destroy(&m->batch_lock);
    mem_free(m);
}

bool served_refresh(served *m, carat_batch_info *info, carat_slot_info *slots)
{
    pthread_rwlock_rdlock(&m->batch_lock);
    bool there = m->batch != NULL;
    if (there)
        carat_batch_get_info(m->batch, info, slots, SLOTS_MAX);
    pthread_rwlock_unlock(&m->batch_lock);
    return there;
}

status served_submit(served *m, const carat_job *job, int64_t *id, bool *queue_full, err *e)
{
    pthread_rwlock_rdlock(&m->batch_lock);
    status st = m->batch ? carat_batch_submit(m->batch, job, id, queue_full, e) : E_CANCELLED;
    pthread_rwlock_unlock(&m->batch_lock);
    if (!st)
        passes_wake(m->s);
    return st;
}

void served_cancel(served *m, int64_t id)
{
    pthread_rwlock_rdlock(&m->batch_lock);
    if (m->batch)
        carat_batch_cancel(m->batch, id);
    pthread_rwlock_unlock(&m->batch_lock);
    passes_wake(m->s);
}

status served_ask_slot(served *m, const carat_slot_ask *ask, err *e)
{
    pthread_rwlock_rdlock(&m->batch_lock);
    status st = m->batch ? carat_batch_ask_slot(m->batch, ask, e)
                         : err_set(e, E_CANCELLED, "the server is about to end");
    pthread_rwlock_unlock(&m->batch_lock);
    if (!st)
        passes_wake(m->s);
    return st;
}

status served_write_snapshot(served *m, const carat_snapshot *p, const char *path,
                             uint64_t *n_bytes, err *e)
{
    pthread_rwlock_rdlock(&m->batch_lock);
    status st = m->batch ? carat_batch_write_snapshot(m->batch, p, path, n_bytes, e)
                         : err_set(e, E_CANCELLED, "the server is about to end");
    pthread_rwlock_unlock(&m->batch_lock);
    return st;
}

status served_read_snapshot(served *m, const char *path, carat_snapshot **p, uint64_t *n_bytes,
                            err *e)
{
    *p = NULL;
    pthread_rwlock_rdlock(&m->batch_lock);
    status st = m->batch ? carat_batch_read_snapshot(m->batch, path, p, n_bytes, e)
                         : err_set(e, E_CANCELLED, "the server is about to end");
    pthread_rwlock_unlock(&m->batch_lock);
    return st;
}
