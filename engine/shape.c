/* shape.c - what a session is: the context, chunks, outputs, rounds of drafts, formats and pool of
 * its options. Where these leave something open, plans of the session decide (plan.c).
 */
#include "engine/engine_int.h"
#include "engine/media.h"
#include "engine/stages.h"

enum {
    ROOMY_CHUNKS = 2,      /* chunks are so much longer where their memory is at most one part */
    ROOMY_PARTS = 16,      /* in so many of what the session leaves */
    DRAFT_DEFAULT = 15,    /* drafted tokens a round, unless more are asked for */
    ANSWER_ROWS_MAX = 128, /* of a batch: 128 MiB of logits at 262144 ids */
    POOL_MIN = 512         /* tokens: fewer pages would be copied more often than read */
};

/* The pool of keys that was asked for, against contexts of n_ctx tokens, which is at most the pool
 * afterwards: no timeline may hold more. */
static status plan_pool(const carat_model *m, const carat_session_options *opt,
                        session_shape *shape, int32_t *n_ctx, err *e)
{
    int64_t all = (int64_t)pages_of(*n_ctx) * KV_PAGE * shape->n_seqs;
    int64_t least = all < POOL_MIN ? all : POOL_MIN;
    if (!opt->kv_pool)
        return OK;
    if (shape->kv_resident && opt->kv_pool >= least && opt->kv_pool <= all) {
        shape->n_pool = pages_of(opt->kv_pool) * KV_PAGE; /* paging_shape has the rest to say */
        return OK;
    }
    if (opt->kv_pool < least)
        return err_set(
            e, E_ARG,
            "a pool of %d tokens for keys is too small: expected at least %lld (--kv-pool)",
            opt->kv_pool, (long long)least);
    if (opt->kv_pool > all && !opt->n_ctx && *n_ctx < m->core.n_ctx_train) {
        shape->n_pool = (int32_t)all; /* the context was shortened, and so is the pool */
        return OK;
    }
    if (opt->kv_pool > all)
        return err_set(e, E_ARG,
                       "a pool of %d tokens for keys is too large: %d contexts of %d tokens never "
                       "hold more than %lld (--kv-pool, --ctx)",
                       opt->kv_pool, shape->n_seqs, *n_ctx, (long long)all);
    shape->n_pool = pages_of(opt->kv_pool) * KV_PAGE;
    *n_ctx = *n_ctx < shape->n_pool ? *n_ctx : shape->n_pool;
    return OK;
}

/* Halves the context until its plan fits the available memory. */
static status longest_fit(const carat_model *m, session_shape *shape, err *e)
{
    carat_memory_plan plan;
    status st;
    for (;;) {
        if ((st = plan_costs(m, shape, NULL, &plan, e)))
            return st;
        if (plan_fits(m, &plan) || shape->n_ctx / 2 < N_CTX_MIN)
            return OK;
        shape->n_ctx /= 2;
        if (m->core.encoder)
            shape->chunk = shape->n_ctx;
        int64_t all = (int64_t)pages_of(shape->n_ctx) * KV_PAGE * shape->n_seqs;
        shape->n_pool = all < shape->n_pool ? (int32_t)all : shape->n_pool;
    }
}

/* Longer chunks, where their scratch and rings take little of the memory that is left. Weights made
 * bf16, and experts, then serve twice as many rows. Only for a single timeline on one GPU: others
 * would wait for the end of the pass, and stages want short chunks. */
static status longer_chunk(const carat_model *m, session_shape *shape, err *e)
{
    carat_memory_plan plan, longer;
    session_shape s = *shape;
    status st;
    s.chunk = s.n_ctx / ROOMY_CHUNKS < s.chunk ? s.n_ctx : s.chunk * ROOMY_CHUNKS;
    uint64_t taken, there;
    if (m->n_sides > 1 || m->dev->host_memory || s.n_seqs > 1 || shape_is_paged(&s) ||
        s.chunk <= shape->chunk)
        return OK;
    if ((st = plan_costs(m, shape, NULL, &plan, e)) || (st = plan_costs(m, &s, NULL, &longer, e)))
        return st;
    const uint64_t more = longer.total_bytes - plan.total_bytes;
    plan_model_sums(m, &plan, &taken, &there);
    if (taken + more < there && more <= (there - taken) / ROOMY_PARTS)
        *shape = s;
    return OK;
}

/* How many tokens are drafted at most, and the rows that check them. The logits of a row take
 * n_vocab floats of the device's scratch, so a batch bounds the rows of all answers. */
static void plan_rounds(const carat_model *m, const carat_session_options *opt,
                        session_shape *shape)
{
    int32_t most = 0, rows = shape->verify_rows;
    for (int i = 0; i < DRAFTERS_MAX; i++)
        if (m->draft[i] && m->draft[i]->n_slots > most)
            most = m->draft[i]->n_slots;
    int32_t wish = opt->draft_max ? opt->draft_max : DRAFT_DEFAULT;
    shape->draft_slots = wish < most ? wish : most;
    int32_t tree = opt->draft_tree ? opt->draft_tree : DRAFT_DEFAULT;
    int32_t nodes = tree > shape->draft_slots ? tree : shape->draft_slots;
    if (!rows)
        rows = shape->verify_rows = shape->draft_slots ? 1 + nodes : 1;
    rows *= shape->n_seqs;
    shape->answer_rows = rows < ANSWER_ROWS_MAX ? rows : ANSWER_ROWS_MAX;
}

/* A text of an encoder is in one pass, so the chunk is the context. Keys outlive no pass: nothing
 * is kept for later prompts. */
static status shape_encoder(const carat_model *m, const carat_session_options *opt,
                            session_shape *shape, int32_t *n_ctx, err *e)
{
    if (opt->kv_pool || opt->kv_resident)
        return err_set(e, E_ARG,
                       "%s is an encoder, whose keys live for one pass: there is no pool of them "
                       "(--kv-pool, --kv-resident)",
                       m->core.name);
    if (opt->chunk && opt->n_ctx > opt->chunk)
        return err_set(
            e, E_ARG,
            "%s computes a text in one pass: a context of %d tokens (--ctx) does not fit "
            "a chunk of %d (--chunk)",
            m->core.name, opt->n_ctx, opt->chunk);
    *n_ctx = opt->chunk && opt->chunk < *n_ctx ? opt->chunk : *n_ctx;
    shape->chunk = *n_ctx;
    shape->checkpoint_mb = -1;
    return OK;
}

status plan_shape(const carat_model *m, const carat_session_options *opt, int32_t n_seqs,
                  int32_t verify_rows, session_shape *shape, err *e)
{
    static const carat_session_options none;
    status st;

    opt = opt ? opt : &none;
    *shape = (session_shape){.n_seqs = n_seqs,
                             .verify_rows = verify_rows,
                             .draft_tree = opt->draft_tree,
                             .picture_rows = media_rows_max(m),
                             .checkpoint_mb = opt->checkpoint_mb};
    if ((st = sparse_parse(&shape->sparse, m, opt->sparse, &(sparse_choice){0}, e)))
        return st;
    const char *fitted = opt->kv_k || opt->kv_v || opt->kv_layers ? NULL : m->fit.kv;
    const kv_words words = {fitted ? fitted : opt->kv_k, opt->kv_v, opt->kv_layers, opt->kv_single};
    if ((st = kv_choice_parse(&shape->kv, &words, e)))
        return st;
    if (opt->n_ctx < 0 || opt->chunk < 0 || opt->n_outputs < 0)
        return err_set(e, E_ARG, "a session cannot have a negative context, chunk or output count");
    if (opt->n_ctx > m->core.n_ctx_train)
        return err_set(e, E_LIMIT,
                       "a context of %d tokens is too long: %s was made for at most %d (--ctx)",
                       opt->n_ctx, m->core.name, m->core.n_ctx_train);
    if (opt->draft_max < 0 || opt->draft_max > DRAFT_SLOTS_MAX || opt->draft_tree > DRAFT_SLOTS_MAX)
        return err_set(e, E_ARG,
                       "drafts of %d tokens a round, or trees of %d: expected at most %d "
                       "(--draft-max, --draft-tree)",
                       opt->draft_max, opt->draft_tree, DRAFT_SLOTS_MAX);
    if ((st = paging_options(opt, shape, e)))
        return st;
    shape->chunk = opt->chunk ? opt->chunk : m->fit.chunk ? m->fit.chunk : m->dev->chunk_rows;
    if (!opt->chunk && !m->fit.chunk &&
        m->experts) /* a chunk copies all experts that are on the host */
        shape->chunk *= EXPERT_CHUNKS;
    if (shape->sparse.alpha > 0 && shape->chunk < SPARSE_TILE)
        shape->chunk = SPARSE_TILE; /* whole query blocks */
    shape->chunk_least =
        opt->chunk || m->core.encoder || m->experts ? shape->chunk : STAGES_CHUNK_LEAST;
    int32_t n_ctx_max = opt->n_ctx ? opt->n_ctx : m->fit.n_ctx ? m->fit.n_ctx : m->core.n_ctx_train;
    if (m->core.encoder && (st = shape_encoder(m, opt, shape, &n_ctx_max, e)))
        return st;
    if (shape->kv_resident >= n_ctx_max)
        shape->kv_resident = 0;
    if ((st = plan_pool(m, opt, shape, &n_ctx_max, e)))
        return st;
    plan_rounds(m, opt, shape);
    shape->n_outputs = opt->n_outputs ? opt->n_outputs : OUTPUTS_DEFAULT;
    if (shape->n_outputs < shape->answer_rows) /* all of them may be in one pass */
        shape->n_outputs = shape->answer_rows;
    if (shape->chunk > n_ctx_max)
        shape->chunk = n_ctx_max;
    if (shape->n_outputs > n_ctx_max)
        shape->n_outputs = n_ctx_max;
    if (shape->answer_rows > shape->n_outputs)
        shape->answer_rows = shape->n_outputs;
    shape->n_ctx = n_ctx_max;
    bool chosen = shape->kv_resident < 0; /* then the least pool decides which context fits */
    shape->kv_resident = chosen ? POOL_MIN : shape->kv_resident;
    if (!opt->n_ctx && !m->fit.trying && (st = longest_fit(m, shape, e)))
        return st;
    shape->kv_resident = chosen ? -1 : shape->kv_resident;
    if (shape->chunk > shape->n_ctx)
        shape->chunk = shape->n_ctx;
    if (!opt->chunk && !m->fit.chunk && !m->fit.trying && !m->experts && !m->core.encoder &&
        (st = longer_chunk(m, shape, e)))
        return st;
    if ((st = sparse_fits(shape->sparse, shape, e)))
        return st;
    return paging_shape(m, shape, e);
}
