/* draft_state_test.c - a restored conversation drafts as well as before: rounds after snapshots,
 * checkpoints and files are those of a session that computed everything. The bundled model with its
 * trained DFlash drafter, whose layers slide and see all; prompts are longer than its windows.
 */
#include "carat.h"
#include "tests/test.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CTX = 1024, ROUNDS_MAX = 200, ANSWER = 48 };

typedef struct heard {
    int32_t id[2 * ANSWER], n;
    int32_t drafted[ROUNDS_MAX], accepted[ROUNDS_MAX], n_rounds, n_accepted;
    const char *reuse;
} heard;

static bool hear(void *user, const carat_event *ev)
{
    heard *h = user;
    if (ev->kind == CARAT_EV_TOKEN && h->n < 2 * ANSWER)
        h->id[h->n++] = ev->id;
    return true;
}

static void hear_round(void *user, const carat_round *r)
{
    heard *h = user;
    CHECK(h->n_rounds < ROUNDS_MAX);
    h->drafted[h->n_rounds] = r->n_drafted;
    h->accepted[h->n_rounds++] = r->n_accepted;
    h->n_accepted += r->n_accepted;
}

static carat_model *open_pair(void)
{
    char target[512], draft[512];
    carat_model *m;
    carat_error e = {0};
    snprintf(target, sizeof target, "%s", test_path("models/demo.gguf"));
    snprintf(draft, sizeof draft, "%s", test_path("models/demo-dflash.gguf"));
    if (access(target, R_OK) || access(draft, R_OK))
        test_skip("no bundled model with a DFlash drafter");
    CHECK_OK(
        carat_model_open(target, &(carat_model_options){.n_threads = 2, .draft = draft}, &m, &e),
        e);
    return m;
}

static carat_session *open_with(carat_model *m, const char *dir)
{
    carat_session *s;
    carat_error e = {0};
    const carat_session_options o = {.n_ctx = CTX, .chunk = 64, .cache_dir = dir};
    CHECK_OK(carat_session_open(m, &o, &s, &e), e);
    return s;
}

/* seed 0: greedy. */
static void generate_how(carat_session *s, const carat_model *m, const int32_t *ids, int64_t n,
                         carat_speculation how, uint32_t seed, heard *h)
{
    carat_error e = {0};
    carat_timings t;
    carat_generate_options o = {
        .max_tokens = ANSWER, .speculation = how, .on_round = hear_round, .round_user = h};
    *h = (heard){0};
    carat_sampling_default(m, &o.sampling);
    o.sampling.temperature = seed ? 0.9f : 0;
    o.sampling.seed = seed;
    o.sampling.ignore_eog = true;
    CHECK_OK(carat_generate(s, ids, n, &o, hear, h, &t, &e), e);
    h->reuse = t.reuse;
    CHECK(t.drafter && !strcmp(t.drafter, "dflash"));
}

static void generate(carat_session *s, const carat_model *m, const int32_t *ids, int64_t n,
                     heard *h)
{
    const carat_speculation chain = {.n_max = 7, .tree_max = -1, .fixed = true};
    generate_how(s, m, ids, n, chain, 0, h);
}

static void check_same_rounds(const heard *got, const heard *want, const char *what)
{
    CHECK_MSG(got->n == want->n && !memcmp(got->id, want->id, (size_t)got->n * sizeof *got->id),
              "%s: other tokens", what);
    CHECK_MSG(got->n_rounds == want->n_rounds &&
                  !memcmp(got->accepted, want->accepted, sizeof got->accepted) &&
                  !memcmp(got->drafted, want->drafted, sizeof got->drafted),
              "%s: %d rounds with %d accepted, expected %d with %d", what, got->n_rounds,
              got->n_accepted, want->n_rounds, want->n_accepted);
}

/* A text of the model's kind, and one token more per turn. Returns the number of tokens. */
static int64_t prompt_of(const carat_model *m, int32_t *ids, int64_t cap, const char *about)
{
    char text[4096];
    size_t n = 0;
    carat_error e = {0};
    for (int i = 0; i < 14 && n < sizeof text - 200; i++)
        n += (size_t)snprintf(text + n, sizeof text - n,
                              "The %s has %d doors and %d windows. Who counts them? ", about, i + 2,
                              3 * i + 1);
    int64_t k = carat_tokenize(m, text, n, CARAT_TOK_BOS, ids, cap, &e);
    CHECK_MSG(k > 150 && k <= cap, "%lld tokens", (long long)k);
    return k;
}

/* The conversation goes on after the answer h. */
static int64_t go_on(int32_t *ids, int64_t n, const heard *h)
{
    memcpy(ids + n, h->id, (size_t)h->n * sizeof *ids);
    memcpy(ids + n + h->n, ids + 5, 20 * sizeof *ids);
    return n + h->n + 20;
}

PLAIN_TEST(draft_state_follows_a_snapshot)
{
    AUTO_MODEL *m = open_pair();
    AUTO_SESSION *s = open_with(m, NULL), *restored = open_with(m, NULL);
    carat_model_info info;
    AUTO_PTR(carat_snapshot_free) carat_snapshot *k;
    carat_error e = {0};
    int32_t ids[CTX];
    heard first, went_on, after, fresh;
    int64_t n = prompt_of(m, ids, CTX, "house");
    carat_model_get_info(m, &info);
    CHECK_STR(info.drafter, "dflash");
    CHECK_STR(info.drafter_notes, ""); /* nothing in its file contradicts anything */
    generate(s, m, ids, n, &first);
    CHECK(first.n_rounds > 4 && first.n_accepted > 0);
    n = go_on(ids, n, &first);
    CHECK_OK(carat_snapshot_take(s, &k, &e), e);
    generate(s, m, ids, n, &went_on);
    CHECK_OK(carat_snapshot_restore(restored, k, &e), e);
    generate(restored, m, ids, n, &after);
    CHECK_STR(after.reuse, "extended");
    check_same_rounds(&after, &went_on, "after a snapshot");
    carat_session_close(restored);
    restored = open_with(m, NULL);
    generate(restored, m, ids, n, &fresh);
    check_same_rounds(&fresh, &went_on, "computed anew");
}

PLAIN_TEST(draft_state_follows_checkpoints)
{
    AUTO_MODEL *m = open_pair();
    AUTO_SESSION *s = open_with(m, NULL);
    int32_t ids[CTX], other[CTX];
    heard first, again, elsewhere, next, want;
    int64_t n = prompt_of(m, ids, CTX, "house"), n_other = prompt_of(m, other, CTX, "tower");
    generate(s, m, ids, n, &first);
    generate(s, m, ids, n, &again); /* regenerated */
    check_same_rounds(&again, &first, "regenerated");
    generate(s, m, other, n_other, &elsewhere);
    generate(s, m, ids, n, &again);
    CHECK_STR(again.reuse, "restored");
    check_same_rounds(&again, &first, "after another conversation");
    generate(s, m, other, n_other, &next);
    check_same_rounds(&next, &elsewhere, "the other conversation");
    n = go_on(ids, n, &first);
    generate(s, m, ids, n, &next);
    carat_session_close(s);
    s = open_with(m, NULL);
    generate(s, m, ids, n, &want);
    check_same_rounds(&next, &want, "the next turn");
}

/* Greedy and sampled, in chains of every length and in trees. */
PLAIN_TEST(draft_answers_are_those_without_drafts)
{
    static const carat_speculation how[] = {{.off = true},
                                            {.n_max = 1, .tree_max = -1, .fixed = true},
                                            {.n_max = 3, .tree_max = -1, .fixed = true},
                                            {.n_max = 7, .tree_max = -1, .fixed = true},
                                            {.n_max = 7, .tree_max = 12, .fixed = true},
                                            {.n_max = 5, .tree_max = 15, .fixed = true},
                                            {.n_max = 0}};
    enum { WAYS = sizeof how / sizeof *how };
    AUTO_MODEL *m = open_pair();
    AUTO_SESSION *s = open_with(m, NULL);
    int32_t ids[CTX];
    int64_t n = prompt_of(m, ids, CTX, "house");
    for (int sampled = 0; sampled < 3; sampled++) {
        heard plain, h;
        for (int i = 0; i < WAYS; i++) {
            generate_how(s, m, ids, n, how[i], sampled, &h);
            if (!i)
                plain = h;
            CHECK_MSG(h.n == plain.n && !memcmp(h.id, plain.id, (size_t)h.n * sizeof *h.id),
                      "seed %d, way %d: other tokens", sampled, i);
            CHECK(h.n_rounds > 0 || !how[i].fixed);
        }
    }
}

/* Calls fn with the path and size of each file of the directory; returns their number. */
static int each_file(const char *dir, void (*fn)(const char *path, int64_t n_bytes, void *arg),
                     void *arg)
{
    DIR *d = opendir(dir);
    int n = 0;
    CHECK(d);
    for (struct dirent *x; (x = readdir(d));) {
        char path[1024];
        struct stat sb;
        snprintf(path, sizeof path, "%s/%s", dir, x->d_name);
        if (stat(path, &sb) || !S_ISREG(sb.st_mode))
            continue;
        n++;
        if (fn)
            fn(path, (int64_t)sb.st_size, arg);
    }
    closedir(d);
    return n;
}

static void find_largest(const char *path, int64_t n_bytes, void *arg)
{
    int64_t *most = arg;
    (void)path;
    *most = n_bytes > *most ? n_bytes : *most;
}

/* A drafter's keys are fewer than the target's. */
static void remove_smaller(const char *path, int64_t n_bytes, void *arg)
{
    if (n_bytes < *(int64_t *)arg)
        CHECK(!unlink(path));
}

static void damage_smaller(const char *path, int64_t n_bytes, void *arg)
{
    if (n_bytes < *(int64_t *)arg)
        CHECK(!truncate(path, n_bytes / 2));
}

PLAIN_TEST(draft_state_follows_files)
{
    enum { WHOLE, DAMAGED, WITHOUT, WAYS };
    AUTO_MODEL *m = open_pair();
    int32_t ids[CTX];
    heard want;
    for (int way = WHOLE; way < WAYS; way++) {
        char dir[512];
        int64_t n = prompt_of(m, ids, CTX, "house"), largest = 0;
        heard first, got;
        snprintf(dir, sizeof dir, "%s%d", test_temp("kept"), way);
        carat_session *s = open_with(m, dir);
        generate(s, m, ids, n, &first);
        carat_session_close(s);
        int n_files = each_file(dir, find_largest, &largest);
        CHECK_EQ(n_files, 2);
        if (way != WHOLE)
            each_file(dir, way == DAMAGED ? damage_smaller : remove_smaller, &largest);
        if (way == WITHOUT)
            CHECK_EQ(each_file(dir, NULL, NULL), n_files / 2);
        n = go_on(ids, n, &first);
        if (way == WHOLE) {
            s = open_with(m, NULL);
            generate(s, m, ids, n, &want);
            carat_session_close(s);
        }
        s = open_with(m, dir);
        generate(s, m, ids, n, &got);
        CHECK_STR(got.reuse, "restored from disk");
        if (way == WHOLE)
            check_same_rounds(&got, &want, "from a file");
        /* Without the drafter's keys the answer is the same, and drafting begins anew. */
        CHECK(got.n == want.n && !memcmp(got.id, want.id, (size_t)got.n * sizeof *got.id));
        CHECK(got.n_rounds > 0);
        carat_session_close(s);
        each_file(dir, remove_smaller, &(int64_t){INT64_MAX});
        rmdir(dir);
    }
}
