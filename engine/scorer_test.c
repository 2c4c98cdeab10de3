/* scorer_test.c - pages that a small model scores: which token belongs to which page, keys that are
 * kept between two choices, and sessions and batches whose pools go by it.
 */
#include "engine/scorer.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"
#include "engine/batch_int.h"
#include "engine/round.h"
#include "tests/fidelity_model.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <string.h>

enum { CTX = 1280, KEEP = 512, PROMPT = 900, ANSWER = 140 };

/* The scorer has bytes and merges of its own; the target has characters. */
static carat_model *open_both(const char *draft)
{
    const carat_model_options o = {.n_threads = 1,
                                   .draft = draft,
                                   .scorer = toy_model_write(&(toy_model_file){
                                       .base = "qwen3", .words = "qwen2", .n_ctx_train = 4096})};
    return toy_model_open(&(toy_model_file){.n_ctx_train = CTX, .scale = 4}, &o);
}

static void draw(const carat_model *m, int32_t *ids, int64_t n, uint64_t *rng)
{
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)rng_below(rng, (uint64_t)m->core.n_vocab);
}

/* The same, token by token and byte by byte: byte_page[b] is the page of byte b. */
static void plain_scores(const carat_model *m, const int32_t *ids, int64_t n, float *score)
{
    const vocab *from = m->text, *to = m->scorer->text;
    int64_t n_pages = (n + KV_PAGE - 1) / KV_PAGE;
    AUTO(str_free) str text = {0};
    AUTO(id_list_free) id_list list = {0};
    carat_session *s;
    err e = {0};
    AUTO_MEM int32_t *byte_page = mem_alloc((size_t)n * 64 * sizeof *byte_page);
    for (int64_t i = 0; i < n; i++) {
        size_t len;
        const char *at = vocab_text(from, ids[i], true, &len);
        for (size_t b = 0; b < len; b++)
            byte_page[text.n + b] = (int32_t)(i / KV_PAGE);
        str_put(&text, at, len);
    }
    CHECK_OK(vocab_encode(to, text.at, text.n, SPECIAL_NONE, &list, &e), e);
    CHECK_OK(carat_session_open(m->scorer, &(carat_session_options){.n_ctx = 4096}, &s, &e), e);
    float *value = mem_alloc((size_t)list.n * sizeof *value);
    CHECK_OK(carat_importance(s, list.at, list.n, value, &e), e);
    for (int64_t p = 0; p < n_pages; p++) {
        size_t at = 0;
        double sum = 0, count = 0;
        for (int64_t i = 0; i < list.n; i++) {
            size_t len;
            vocab_text(to, list.at[i], true, &len);
            if (byte_page[at + len / 2] == p) {
                sum += value[i];
                count++;
            }
            at += len;
        }
        CHECK(at == text.n);
        score[p] = count > 0 ? (float)(sum / count) : 0;
    }
    mem_free(value);
    carat_session_close(s);
}

PLAIN_TEST(scorer_gives_each_page_the_mean_of_its_tokens)
{
    AUTO_MODEL *m = open_both(NULL);
    float got[PROMPT / KV_PAGE + 1], want[PROMPT / KV_PAGE + 1];
    static const int64_t lengths[] = {200, 700, 704, 450, PROMPT}; /* on, and back */
    int32_t ids[PROMPT];
    uint64_t rng = test_seed();
    page_scorer *s;
    err e = {0};
    draw(m, ids, PROMPT, &rng);
    CHECK_OK(page_scorer_open(&s, m, CTX, &e), e);
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        int64_t n = lengths[k];
        CHECK_OK(page_scorer_ask(s, ids, n, got, &e), e);
        plain_scores(m, ids, n, want);
        for (int64_t p = 0; p < (n + KV_PAGE - 1) / KV_PAGE; p++)
            CHECK_MSG(fabsf(got[p] - want[p]) <= 1e-6f * want[p], "%lld tokens, page %lld: %g, %g",
                      (long long)n, (long long)p, got[p], want[p]);
    }
    /* Less than the tail of a text: nothing is known. */
    CHECK_OK(page_scorer_ask(s, ids, 1, got, &e), e);
    CHECK_EQ(got[0], 0);
    page_scorer_close(s);
}

static carat_session_options pool_of(int32_t keep)
{
    return (carat_session_options){.n_ctx = CTX,
                                   .chunk = 64,
                                   .checkpoint_mb = -1,
                                   .kv_resident = keep,
                                   .kv_policy = "drafter",
                                   .kv_tau = 48};
}

/* After a prompt the pages that may leave and did not are those of the largest scores. */
TEST(scorer_decides_which_pages_stay)
{
    AUTO_MODEL *m = open_both(NULL);
    const carat_session_options o = pool_of(KEEP);
    int32_t ids[PROMPT];
    float score[PROMPT / KV_PAGE + 1], least = INFINITY, most = 0;
    uint64_t rng = test_seed();
    AUTO_SESSION *s;
    err e = {0};
    draw(m, ids, PROMPT, &rng);
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    CHECK_OK(carat_eval(s, ids, PROMPT, NULL, NULL, &e), e);
    plain_scores(m, ids, PROMPT, score);
    const residency *r = &s->b.slot->t.kv.pager->r;
    int64_t last = PROMPT / 64 * 64; /* the last chunk's beginning: where the choice was made */
    for (int32_t p = 0; p < last / KV_PAGE; p++) {
        if (residency_is_protected(r, p) || p >= last / KV_PAGE - RESIDENCY_TAIL)
            continue;
        if (r->page[p].place >= 0)
            least = score[p] < least ? score[p] : least;
        else
            most = score[p] > most ? score[p] : most;
    }
    CHECK_MSG(least >= most * 0.999f && most > 0, "the least that stays %g, the most that left %g",
              least, most);
    CHECK(s->b.slot->t.kv.pager->n_reselected > 0);
}

typedef struct said {
    int32_t id[ANSWER], n;
    carat_status st;
} said;

static bool keep(void *user, const carat_event *ev)
{
    said *r = user;
    if (ev->kind == CARAT_EV_TOKEN && r->n < ANSWER)
        r->id[r->n++] = ev->id;
    return true;
}

static void done(void *user, carat_status st, const carat_error *e, const carat_timings *t)
{
    said *r = user;
    (void)e;
    r->st = st;
    CHECK_STR(t->lossy, "drafter");
}

/* Alone, with drafts, and side by side in a pool that is too small: the same answers. */
PLAIN_TEST(scorer_choices_depend_on_tokens_alone)
{
    enum { JOBS = 3 };
    AUTO_MODEL *m = open_both("lookup");
    carat_generate_options g = {.max_tokens = ANSWER};
    carat_batch_options bo = {.session = pool_of(KEEP), .n_slots = JOBS};
    const carat_session_options so = pool_of(KEEP);
    static int32_t ids[JOBS][PROMPT];
    said want[JOBS] = {{.n = 0}}, got[JOBS] = {{.n = 0}};
    uint64_t rng = test_seed();
    carat_session *s;
    AUTO_BATCH *b;
    err e = {0};
    carat_sampling_default(m, &g.sampling);
    g.sampling.temperature = 0;
    g.sampling.ignore_eog = true;
    CHECK_OK(carat_session_open(m, &so, &s, &e), e);
    for (int i = 0; i < JOBS; i++) {
        said fast = {.n = 0};
        draw(m, ids[i], 90, &rng);
        for (int k = 90; k < PROMPT; k++) /* it repeats, so lookup drafts */
            ids[i][k] = k % 70 ? ids[i][k - 90] : k % m->core.n_vocab;
        g.speculation.off = true;
        CHECK_OK(carat_generate(s, ids[i], PROMPT - 37 * i, &g, keep, &want[i], NULL, &e), e);
        /* Of a fixed length: else measured times decide whether it drafts. */
        g.speculation = (carat_speculation){.n_max = 7, .tree_max = -1, .fixed = true};
        carat_reset(s);
        CHECK_OK(carat_generate(s, ids[i], PROMPT - 37 * i, &g, keep, &fast, NULL, &e), e);
        CHECK(fast.n == ANSWER && !memcmp(fast.id, want[i].id, sizeof fast.id));
        carat_reset(s);
    }
    CHECK(s->b.rounds->n_accepted > 0);
    carat_session_close(s);
    bo.session.kv_pool = 1024;
    CHECK_OK(carat_batch_open(m, &bo, &b, &e), e);
    for (int i = 0; i < JOBS; i++) {
        const carat_job j = {.ids = ids[i],
                             .n = PROMPT - 37 * i,
                             .opt = &g,
                             .fn = keep,
                             .done = done,
                             .user = &got[i]};
        CHECK_OK(carat_batch_submit(b, &j, NULL, NULL, &e), e);
    }
    while (carat_batch_step(b))
        ;
    for (int i = 0; i < JOBS; i++) {
        CHECK_EQ(got[i].st, OK);
        CHECK(got[i].n == ANSWER && !memcmp(got[i].id, want[i].id, sizeof got[i].id));
    }
}

TEST(a_plan_has_the_memory_of_scorers)
{
    AUTO_MODEL *m = open_both(NULL);
    carat_batch_options bo = {.session = pool_of(KEEP), .n_slots = 3};
    carat_session_options so = pool_of(KEEP);
    carat_memory_plan with, without, three, own;
    err e = {0}, small = {0};
    CHECK_OK(carat_plan(m, &so, &with, &e), e);
    CHECK_OK(carat_plan_batch(m, &bo, &three, &e), e);
    so.kv_policy = "lru";
    CHECK_OK(carat_plan(m, &so, &without, &e), e);
    CHECK_EQ(without.scorer_bytes, 0);
    CHECK_EQ(with.total_bytes - without.total_bytes, with.scorer_bytes);
    CHECK_EQ(with.device[0].total_bytes, with.total_bytes);
    CHECK_OK(carat_plan(m->scorer, &(carat_session_options){.checkpoint_mb = -1}, &own, &e), e);
    uint64_t weights = own.device[0].weight_bytes, each = with.scorer_bytes - weights;
    CHECK(with.scorer_bytes > weights);
    CHECK_EQ(three.scorer_bytes, weights + 3 * each);
    with.device[0].available_bytes = with.device[0].total_bytes - 1;
    CHECK_EQ(carat_plan_check(m, &with, &small), E_MEMORY);
    CHECK_MSG(strstr(small.text, "for the scorer of pages"), "%s", small.text);
}

TEST(scorers_that_make_no_sense_are_refused_with_a_sentence)
{
    const char *toy = toy_model_write(&(toy_model_file){.n_ctx_train = CTX});
    const carat_session_options o = pool_of(KEEP);
    carat_model *m = toy_model_open(&(toy_model_file){.n_ctx_train = CTX}, NULL);
    carat_session *s;
    fidelity f;
    err none = {0}, alien = {0}, gone = {0};
    CHECK_EQ(carat_session_open(m, &o, &s, &none), E_ARG);
    CHECK_MSG(strstr(none.text, "--kv-scorer"), "%s", none.text);
    carat_model_close(m);
    fidelity_open(&f, "qwen3");
    const char *mute = fidelity_write(&f, NULL);
    CHECK_OK(carat_model_open(toy, &(carat_model_options){.scorer = mute}, &m, &alien), alien);
    CHECK_EQ(carat_session_open(m, &o, &s, &alien), E_ARG);
    CHECK_MSG(strstr(alien.text, "no vocabulary"), "%s", alien.text);
    carat_model_close(m);
    fidelity_close(&f);
    CHECK_EQ(carat_model_open(toy, &(carat_model_options){.scorer = "/nowhere.gguf"}, &m, &gone),
             E_IO);
    CHECK_MSG(strstr(gone.text, "/nowhere.gguf"), "%s", gone.text);
}
