/* hybrid_test.c - a trained tiny Qwen3.5 (tests/data/hybrid.gguf, tools/hybrid.py) recalls and
 * copies.
 *
 *     q7 b2 x9 k4 m1 a8;x9b2a8q7m1k4      pairs, then each letter again with its digit
 *     =hgtqwez=hgtqwez=hgtqwez            letters, then the same again and again
 *
 * Other tests compare rows with rows of the same engine, or of another on random weights. Here an
 * answer is right or wrong: the recurrent states must hold what was read in any cut into passes,
 * after drafts that were taken back, after snapshots and in company. The vocabulary is of bytes:
 * an id is its byte.
 *
 * Right answers lead by several logits (LEAD), so all instruction sets give the same texts.
 */
#include "engine/batch_int.h"
#include "tests/round_rig.h"
#include "base/mem.h"
#include "base/rng.h"
#include "tests/test.h"

#include <math.h>

enum {
    PAIRS = 6,
    RECALL = 5 * PAIRS + 1, /* bytes of the first line, with its end */
    ASKED = 3 * PAIRS,      /* the first byte of its answers */
    TEXTS_MAX = 12,
    COPIED = 100 /* tokens of an answer; texts of training end after 80 */
};
static const float LEAD = 1;

static int texts(void)
{
    return test_brief() ? 3 : TEXTS_MAX;
}

typedef struct text {
    int32_t id[CTX];
    int32_t n;      /* up to the second '=' */
    int32_t n_word; /* letters that are copied */
} text;

static void put(text *t, int c)
{
    t->id[t->n++] = c;
}

/* The first k of 0..25 in random order. */
static void draw_letters(int32_t *letter, int32_t k, uint64_t *rng)
{
    int32_t all[26];
    for (int32_t i = 0; i < 26; i++)
        all[i] = 'a' + i;
    for (int32_t i = 0; i < k; i++) {
        int32_t j = i + (int32_t)rng_below(rng, (uint64_t)(26 - i)), other = all[i];
        letter[i] = all[j];
        all[j] = other;
        all[i] = letter[i];
    }
}

static text draw_text(uint64_t *rng)
{
    text t = {.n_word = 6 + (int32_t)rng_below(rng, 5)};
    int32_t key[26], digit[PAIRS], order[26], word[26];
    draw_letters(key, PAIRS, rng);
    draw_letters(order, 26, rng);
    draw_letters(word, t.n_word, rng);
    for (int32_t i = 0; i < PAIRS; i++) {
        digit[i] = '0' + (int32_t)rng_below(rng, 10);
        put(&t, key[i]);
        put(&t, digit[i]);
        put(&t, i < PAIRS - 1 ? ' ' : ';');
    }
    for (int32_t i = 0; i < 26; i++)
        if (order[i] - 'a' < PAIRS) {
            put(&t, key[order[i] - 'a']);
            put(&t, digit[order[i] - 'a']);
        }
    put(&t, '\n');
    put(&t, '=');
    for (int32_t i = 0; i < t.n_word; i++)
        put(&t, word[i]);
    put(&t, '=');
    return t;
}

/* Token i of the answer. */
static int32_t copied(const text *t, int32_t i)
{
    i %= t->n_word + 1;
    return i == t->n_word ? '=' : t->id[t->n - 1 - t->n_word + i];
}

static const char *path(void)
{
    return test_path("tests/data/hybrid.gguf");
}

static carat_model *open_model(const char *draft)
{
    carat_model *m;
    err e = {0};
    CHECK_OK(carat_model_open(path(), &(carat_model_options){.draft = draft}, &m, &e), e);
    return m;
}

static carat_session *open_session(carat_model *m, int32_t chunk, int32_t n_outputs)
{
    carat_session *s;
    err e = {0};
    const carat_session_options o = {
        .n_ctx = CTX, .chunk = chunk, .n_outputs = n_outputs, .checkpoint_mb = -1};
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    return s;
}

static carat_generate_options greedy(int32_t n)
{
    return (carat_generate_options){
        .max_tokens = n, .sampling = {.top_p = 1, .repeat_penalty = 1, .ignore_eog = true}};
}

/* By how much token id leads all others; negative: it does not. */
static float lead(const float *logits, int32_t n_vocab, int32_t id)
{
    float other = -INFINITY;
    for (int32_t i = 0; i < n_vocab; i++)
        other = i != id && logits[i] > other ? logits[i] : other;
    return logits[id] - other;
}

/* ---- Right answers ------------------------------------------------------------------------- */

/* All digits are asked for in one pass; the bytes of the answers are given. */
TEST(hybrid_recalls_and_leads_by_far)
{
    AUTO_MODEL *m = open_model(NULL);
    AUTO_SESSION *s = open_session(m, 64, CTX);
    uint64_t rng = 11;
    float least = INFINITY;
    int32_t n_vocab = m->core.n_vocab, n_sure = 0, n_asked = 0;
    AUTO_MEM float *logits = mem_alloc((size_t)CTX * (size_t)n_vocab * sizeof *logits);
    err e = {0};
    CHECK(logits);
    for (int trial = 0; trial < texts(); trial++) {
        text t = draw_text(&rng);
        for (int32_t i = 0, n = t.n; i < COPIED; i++)
            t.id[n + i] = copied(&t, i);
        int32_t ids[CTX];
        char spelled[CTX];
        for (int32_t i = 0; i < t.n; i++)
            spelled[i] = (char)t.id[i];
        CHECK_EQ(carat_tokenize(m, spelled, (size_t)t.n, 0, ids, CTX, &e), t.n);
        CHECK(!memcmp(ids, t.id, (size_t)t.n * sizeof *ids));
        carat_reset(s);
        CHECK_OK(carat_append(s, t.id, t.n + COPIED, true, logits, &e), e);
        for (int32_t i = 0; i < t.n + COPIED - 1; i++) {
            bool digit = i >= ASKED && i < RECALL - 1 && (i - ASKED) % 2 == 0;
            if (!digit && i < t.n - 1)
                continue;
            float by = lead(logits + (size_t)i * (size_t)n_vocab, n_vocab, t.id[i + 1]);
            n_asked++;
            n_sure += by > LEAD;
            least = by < least ? by : least;
        }
    }
    printf("%d of %d answers lead by more than %g; the least lead is %.2f\n", n_sure, n_asked,
           (double)LEAD, (double)least);
    CHECK_EQ(n_sure, n_asked);
}

/* The answers to one text, token by token from a session: the six digits, each after its letter,
 * then the letters. */
static void check_answers(carat_session *s, const text *t, const carat_generate_options *how,
                          int32_t n_copied, const char *what)
{
    carat_generate_options o = *how;
    err e = {0};
    o.max_tokens = 1;
    for (int32_t i = ASKED; i < RECALL - 1; i += 2) {
        AUTO_PTR(heard_free) heard *h = heard_new();
        CHECK_OK(carat_generate(s, t->id, i + 1, &o, heard_event, h, NULL, &e), e);
        CHECK_MSG(h->n == 1 && h->id[0] == t->id[i + 1], "%s: %c, expected %c", what, h->id[0],
                  t->id[i + 1]);
    }
    AUTO_PTR(heard_free) heard *h = heard_new();
    o.max_tokens = n_copied;
    CHECK_OK(carat_generate(s, t->id, t->n, &o, heard_event, h, NULL, &e), e);
    CHECK_EQ(h->n, n_copied);
    for (int32_t i = 0; i < h->n; i++)
        CHECK_MSG(h->id[i] == copied(t, i), "%s: token %d is %d, expected %c", what, i, h->id[i],
                  copied(t, i));
}

TEST(hybrid_answers_in_chunks_of_any_size)
{
    static const int32_t chunks[] = {1, 2, 3, 7, 16, 33, 64};
    AUTO_MODEL *m = open_model(NULL);
    carat_generate_options how = greedy(1);
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        AUTO_SESSION *s = open_session(m, chunks[i], 0);
        uint64_t rng = 11;
        char what[32];
        snprintf(what, sizeof what, "chunks of %d", chunks[i]);
        for (int trial = 0; trial < (texts() + 2) / 3; trial++) {
            text t = draw_text(&rng);
            check_answers(s, &t, &how, COPIED, what); /* each prompt extends or rebuilds */
        }
    }
}

/* Keys and values of four bits still answer: the leads are large. */
TEST(hybrid_answers_with_keys_in_every_format)
{
    static const char *const types[] = {"f32",  "bf16", "q8_0", "q5_1",
                                        "q5_0", "q4_1", "q4_0", "iq4_nl"};
    AUTO_MODEL *m = open_model(NULL);
    carat_generate_options how = greedy(1);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const carat_session_options o = {.n_ctx = CTX, .kv_k = types[i], .checkpoint_mb = -1};
        AUTO_SESSION *s;
        uint64_t rng = 11;
        err e = {0};
        CHECK_OK(carat_session_open(m, &o, &s, &e), e);
        text t = draw_text(&rng);
        check_answers(s, &t, &how, 60, types[i]);
    }
}

/* ---- Drafts -------------------------------------------------------------------------------- */

/* Drafts that are right up to a chosen depth and wrong after it: the states go back. */
TEST(hybrid_answers_after_drafts_that_were_taken_back)
{
    static const char *const drafters[] = {"lookup", "nextn"};
    for (int k = 0; k < 2; k++) {
        uint64_t rng = 11;
        AUTO(pair_close) pair p;
        pair_open_of(&p, path(), drafters[k], (carat_session_options){.chunk = 24});
        for (int trial = 0; trial < texts(); trial++) {
            text t = draw_text(&rng);
            request q = {.n = t.n, .o = greedy(40)};
            memcpy(q.ids, t.id, (size_t)t.n * sizeof *t.id);
            pair_compare(&p, &q, 1 + trial % 8, trial / 2 % 2, trial % 3 != 2, &rng, drafters[k],
                         trial);
            pair_same(&p, drafters[k], trial);
            /* The plain answer, which the other is compared with, is the right one. */
            for (int32_t i = 0; i < 39; i++) /* the last token is not computed */
                CHECK_EQ(session_timeline(p.plain)->id[t.n + i], copied(&t, i));
        }
    }
}

typedef struct stats {
    int n_rounds, n_drafted, n_accepted, slot[SLOTS];
} stats;

static void stats_round(void *user, const carat_round *r)
{
    stats *t = user;
    t->n_rounds++;
    t->n_drafted += r->n_drafted;
    t->n_accepted += r->n_accepted;
    for (int i = 0; i < r->n_accepted && i < SLOTS; i++)
        t->slot[i]++;
}

/* Golden values: the share of rounds that accept draft i and all before it. The NextN layer was
 * trained for three steps; later ones go on from its own states. */
PLAIN_TEST(hybrid_nextn_drafts_are_accepted)
{
    enum { N = 6, PROFILED = 12 }; /* drafts; texts of the golden values, sanitized too */
    static const double golden[N] = {1, 1, 0.99, 0.97, 0.965, 0.965};
    static const struct {
        const char *name;
        carat_speculation how;
    } kinds[] = {
        {"chain", {.n_max = N, .tree_max = -1, .fixed = true}},
        {"tree", {.n_max = N, .tree_max = 2 * N, .fixed = true}},
    };
    AUTO_MODEL *m = open_model("nextn");
    for (int k = 0; k < 2; k++) {
        AUTO_SESSION *s = open_session(m, 24, 0);
        uint64_t rng = 11;
        stats a = {0};
        carat_generate_options how = greedy(1);
        how.speculation = kinds[k].how;
        how.on_round = stats_round;
        how.round_user = &a;
        for (int trial = 0; trial < PROFILED; trial++) {
            text t = draw_text(&rng);
            check_answers(s, &t, &how, COPIED, kinds[k].name);
        }
        printf("%s: %d rounds, %d of %d drafts accepted, %.2f per round:", kinds[k].name,
               a.n_rounds, a.n_accepted, a.n_drafted, (double)a.n_accepted / a.n_rounds);
        for (int i = 0; i < N; i++)
            printf(" %.3f", (double)a.slot[i] / a.n_rounds);
        printf("\n");
        CHECK((double)a.n_accepted / a.n_rounds >= 5.8);
        for (int i = 0; i < N; i++)
            CHECK_MSG(fabs((double)a.slot[i] / a.n_rounds - golden[i]) <= 0.02,
                      "%s: draft %d is accepted in %.3f of the rounds, expected %.2f",
                      kinds[k].name, i + 1, (double)a.slot[i] / a.n_rounds, golden[i]);
    }
}

/* ---- Snapshots, checkpoints, company -------------------------------------------------------- */

/* A snapshot in the middle of the pairs, and one in the middle of a copy. */
TEST(hybrid_answers_after_snapshots)
{
    static const char *const drafters[] = {NULL, "nextn"};
    for (int k = 0; k < 2; k++) {
        AUTO_MODEL *m = open_model(drafters[k]);
        AUTO_SESSION *s = open_session(m, 16, 0);
        carat_generate_options how = greedy(1);
        uint64_t rng = 11;
        err e = {0};
        for (int trial = 0; trial < (texts() + 1) / 2; trial++) {
            text t = draw_text(&rng), other = draw_text(&rng);
            carat_snapshot *pairs, *copy;
            carat_reset(s);
            CHECK_OK(carat_append(s, t.id, ASKED - 7, false, NULL, &e), e);
            CHECK_OK(carat_snapshot_take(s, &pairs, &e), e);
            check_answers(s, &t, &how, 11, "before");
            CHECK_OK(carat_snapshot_take(s, &copy, &e), e);
            check_answers(s, &other, &how, 20, "another text");
            CHECK_OK(carat_snapshot_restore(s, pairs, &e), e);
            check_answers(s, &t, &how, COPIED, "from within the pairs");
            check_answers(s, &other, &how, 20, "another text again");
            CHECK_OK(carat_snapshot_restore(s, copy, &e), e);
            int64_t n = carat_session_n_past(s);
            for (int32_t i = 0; i < 11; i++)
                t.id[t.n + i] = copied(&t, i);
            heard *h = heard_new();
            carat_generate_options more = greedy(30);
            CHECK_OK(carat_generate(s, t.id, t.n + 11, &more, heard_event, h, NULL, &e), e);
            CHECK(n >= t.n);
            for (int32_t i = 0; i < h->n; i++)
                CHECK_MSG(h->id[i] == copied(&t, 11 + i), "from within a copy: token %d", i);
            heard_free(h);
            carat_snapshot_free(pairs);
            carat_snapshot_free(copy);
        }
    }
}

/* A copy of n tokens from a session that takes the whole prompt at once. */
static void check_copy(carat_session *s, const text *t, int32_t n, const char *what)
{
    carat_generate_options how = greedy(n);
    AUTO_PTR(heard_free) heard *h = heard_new();
    err e = {0};
    CHECK_OK(carat_generate(s, t->id, t->n, &how, heard_event, h, NULL, &e), e);
    CHECK_EQ(h->n, n);
    for (int32_t i = 0; i < n; i++)
        CHECK_MSG(h->id[i] == copied(t, i), "%s: token %d is %d, expected %c", what, i, h->id[i],
                  copied(t, i));
}

/* Texts with one first line go on from the checkpoint at its end, and each goes on from its own. */
TEST(hybrid_answers_from_checkpoints)
{
    AUTO_MODEL *m = open_model("nextn");
    AUTO_SESSION *s;
    carat_generate_options one = greedy(1);
    uint64_t rng = 11;
    err e = {0};
    int n_restored = 0;
    enum { SHARED = RECALL + 1 }; /* 32 tokens: fewer are computed again */
    const carat_session_options o = {.n_ctx = CTX, .chunk = 16, .checkpoint_mb = 16};
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    text t[TEXTS_MAX], first = draw_text(&rng);
    CHECK_OK(carat_generate(s, first.id, SHARED, &one, NULL, NULL, NULL, &e), e);
    for (int i = 0; i < texts(); i++) {
        t[i] = draw_text(&rng);
        memcpy(t[i].id, first.id, RECALL * sizeof *first.id);
        check_copy(s, &t[i], 40, "after a shared line");
        n_restored += !strcmp(carat_session_reuse(s, NULL), "restored");
    }
    for (int i = 0; i < texts(); i++) {
        check_copy(s, &t[i], COPIED, "again");
        n_restored += !strcmp(carat_session_reuse(s, NULL), "restored");
    }
    printf("%d of %d prompts began at a checkpoint\n", n_restored, 2 * texts());
    CHECK(n_restored >= 2 * texts() - 1);
}

TEST(hybrid_answers_in_company)
{
    enum { JOBS = 6 };
    AUTO_MODEL *m = open_model("nextn");
    AUTO_BATCH *b;
    text t[JOBS];
    heard *h[JOBS];
    uint64_t rng = 11;
    err e = {0};
    carat_generate_options how = greedy(60);
    const carat_batch_options o = {.session = {.n_ctx = CTX, .chunk = 24}, .n_slots = 3};
    CHECK_OK(carat_batch_open(m, &o, &b, &e), e);
    for (int i = 0; i < JOBS; i++) {
        int64_t id;
        t[i] = draw_text(&rng);
        h[i] = heard_new();
        const carat_job asked = {
            .ids = t[i].id, .n = t[i].n, .opt = &how, .fn = heard_event, .user = h[i]};
        CHECK_OK(carat_batch_submit(b, &asked, &id, NULL, &e), e);
    }
    while (carat_batch_step(b))
        ;
    for (int i = 0; i < JOBS; i++) {
        CHECK_EQ(h[i]->n, 60);
        for (int32_t k = 0; k < h[i]->n; k++)
            CHECK_MSG(h[i]->id[k] == copied(&t[i], k), "job %d: token %d is %d, expected %c", i, k,
                      h[i]->id[k], copied(&t[i], k));
        heard_free(h[i]);
    }
}
