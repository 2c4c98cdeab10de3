/* check_nextn.c - drafts by a NextN layer on the CUDA device: those of transformers, the same again
 * from recorded passes and after a snapshot; answers with them have the tokens of answers without.
 */
#include "tests/cuda/check_int.h"
#include "tests/fidelity_model.h"
#include "engine/batch_int.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { CTX = 256, ANSWER = 24, RANKS = DRAFT_RANKS_MAX };

typedef struct nextn_rig {
    rig *g;
    const char *name;
    fidelity f;
    carat_model *plain, *fast;
} nextn_rig;

static status open_session(carat_model *m, const char *kv, carat_session **s, err *e)
{
    const carat_session_options o = {.n_ctx = CTX, .chunk = 24, .checkpoint_mb = -1, .kv_k = kv};
    return carat_session_open(m, &o, s, e);
}

/* What the drafter says after all of the session's tokens and one more. */
static status propose(carat_session *s, const int32_t *id, int32_t slots, proposal *out, err *e)
{
    drafter *d = s->b.rounds->d[DRAFTER_MODEL];
    const draft_ask a = {.s = s->b.slot->t.draft[DRAFTER_MODEL],
                         .target = &s->b.slot->t.kv,
                         .id = id,
                         .n = s->b.slot->t.kv.n_past + 1,
                         .n_slots = slots,
                         .n_ranks = RANKS,
                         .out = out};
    memset(out, 0, sizeof *out);
    return d->class->propose(d, &a, 1, e);
}

static int differ(const proposal *a, const proposal *b)
{
    int n = a->n_slots != b->n_slots;
    for (int32_t i = 0; i < a->n_slots && i < b->n_slots; i++)
        for (int32_t k = 0; k < RANKS; k++)
            n += a->id[i][k] != b->id[i][k] || a->logp[i][k] != b->logp[i][k];
    return n;
}

/* The largest distance from the logarithms of transformers; tokens by rank may swap where the GPU
 * rounds otherwise, so ranks are compared by their logarithms alone, and the best by its token. */
static status check_golden(nextn_rig *x, const char *kv, err *e)
{
    const gguf *g = &x->f.golden;
    const gguf_value *prompts = gguf_find(g, "fidelity.nextn.prompts");
    const gguf_value *id = gguf_find(g, "fidelity.nextn.id");
    const gguf_value *logp = gguf_find(g, "fidelity.nextn.logp");
    int64_t drafts = 0, n_other = 0, n_again = 0;
    carat_session *s;
    carat_snapshot *k = NULL;
    proposal p, again;
    double far = 0;
    status st = open_session(x->fast, kv, &s, e);
    if (!gguf_get_i64(g, "fidelity.nextn.drafts", &drafts) || !prompts || !id || !logp)
        st = err_set(e, E_FORMAT, "the golden file has no drafts");
    for (uint64_t i = 0; i < prompts->count && !st; i++) {
        int64_t n = 0, want_id = -1;
        double want = 0;
        gguf_item_i64(prompts, i, &n);
        if (n < 2)
            continue;
        if ((st = carat_append(s, x->f.tokens + s->b.slot->t.kv.n_past,
                               n - 1 - s->b.slot->t.kv.n_past, false, NULL, e)) ||
            (st = propose(s, x->f.tokens, (int32_t)drafts, &p, e)) ||
            (st = propose(s, x->f.tokens, (int32_t)drafts, &again, e)))
            break;
        n_again += differ(&again, &p);
        for (int64_t r = 0; r < drafts * RANKS; r++) {
            uint64_t at = i * (uint64_t)(drafts * RANKS) + (uint64_t)r;
            gguf_item_i64(id, at, &want_id);
            gguf_item_f64(logp, at, &want);
            far = fmax(far, fabs((double)p.logp[r / RANKS][r % RANKS] - want));
            n_other += r % RANKS == 0 && p.id[r / RANKS][0] != want_id;
        }
        if (!(st = carat_snapshot_take(s, &k, e)) && !(st = carat_snapshot_restore(s, k, e)) &&
            !(st = propose(s, x->f.tokens, (int32_t)drafts, &again, e)))
            n_again += differ(&again, &p);
        carat_snapshot_free(k);
        k = NULL;
    }
    carat_session_close(s);
    if (st)
        return st;
    verdict(x->g, "nextn", text("%s %s: logarithms", x->name, kv), far, 0.02);
    verdict(x->g, "nextn", text("%s %s: best tokens that differ", x->name, kv), (double)n_other, 0);
    verdict(x->g, "nextn", text("%s %s: drafts that differ when repeated", x->name, kv),
            (double)n_again, 0);
    return OK;
}

typedef struct answer {
    int32_t id[ANSWER], n;
} answer;

static bool keep_token(void *user, const carat_event *ev)
{
    answer *r = user;
    if (ev->kind == CARAT_EV_TOKEN && r->n < ANSWER)
        r->id[r->n++] = ev->id;
    return true;
}

static status check_answers(nextn_rig *x, err *e)
{
    carat_session *plain = NULL, *fast = NULL;
    int n_differ = 0;
    int64_t n_drafted = 0;
    status st = open_session(x->plain, "f16", &plain, e);
    st = st ? st : open_session(x->fast, "f16", &fast, e);
    for (int32_t width = 1; width <= 7 && !st; width += 2) {
        carat_generate_options o = {.max_tokens = ANSWER};
        answer want = {.n = 0}, got = {.n = 0};
        carat_timings t = {0};
        o.sampling = (carat_sampling){.top_p = 1, .repeat_penalty = 1, .ignore_eog = true};
        carat_reset(plain);
        carat_reset(fast);
        if ((st = carat_generate(plain, x->f.tokens, 20 + width, &o, keep_token, &want, NULL, e)))
            break;
        o.speculation = (carat_speculation){
            .n_max = width, .tree_max = width % 4 == 3 ? 2 * width : -1, .fixed = true};
        st = carat_generate(fast, x->f.tokens, 20 + width, &o, keep_token, &got, &t, e);
        n_drafted += t.n_drafted;
        n_differ += got.n != want.n || memcmp(got.id, want.id, sizeof got.id) != 0;
    }
    if (!st && fast->b.rounds->failed[DRAFTER_MODEL])
        st = err_set(e, E_NUMERIC, "%s", fast->b.rounds->why.text);
    carat_session_close(plain);
    carat_session_close(fast);
    if (!st)
        verdict(x->g, "nextn", text("%s: answers that differ", x->name),
                n_drafted ? n_differ : (double)NAN, 0);
    return st;
}

void check_nextn(rig *g)
{
    static const char *const names[] = {"qwen35-nextn", "qwen35moe-nextn"};
    for (int i = 0; i < 2; i++) {
        if (!my_turn(g, "nextn"))
            continue;
        nextn_rig x = {.g = g, .name = names[i]};
        err e = {0};
        fidelity_open(&x.f, names[i]);
        const char *path = fidelity_write(&x.f, NULL);
        status st = carat_model_open(path, &(carat_model_options){.device = "cuda"}, &x.plain, &e);
        st = st ? st
                : carat_model_open(path, &(carat_model_options){.device = "cuda", .draft = "nextn"},
                                   &x.fast, &e);
        st = st ? st : check_golden(&x, "f32", &e);
        st = st || g->quick ? st : check_golden(&x, "f16", &e);
        if (st || (st = check_answers(&x, &e)))
            failed(g, "nextn", e.text);
        carat_model_close(x.fast);
        carat_model_close(x.plain);
        unlink(path);
        fidelity_close(&x.f);
    }
}
