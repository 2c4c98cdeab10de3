/* tensor_state_test.c - what a conversation leaves goes from one split of a model to any other:
 * snapshots, their files, and conversations on disk.
 *
 * CPU devices stand for GPUs.
 */
#include "base/mem.h"
#include "base/str.h"
#include "carat.h"
#include "engine/batch_int.h"
#include "engine/disk.h"
#include "kv/paging.h"
#include "tests/synth_file.h"
#include "tests/test.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How a model is split. The first two have the same bits, and so have all others. */
static const struct split {
    const char *device, *split;
} splits[] = {{"cpu", NULL},         {"cpu,cpu,cpu", "layers"}, {"cpu", "tensor"},
              {"cpu,cpu", "tensor"}, {"cpu,cpu,cpu", "tensor"}, {"cpu,cpu,cpu,cpu", "tensor"}};
enum { SPLITS = sizeof splits / sizeof *splits, N = 100, BEFORE = 90, MAX_VOCAB = 512 };

typedef struct rig {
    carat_model *m;
    carat_batch *b; /* writes and reads files */
    carat_session *s;
} rig;

static const carat_session_options options = {.n_ctx = 128, .chunk = 32, .checkpoint_mb = -1};

static void rig_open(rig *r, const char *path, const carat_session_options *so, int k)
{
    carat_error e = {0};
    carat_batch_options bo = {.session = *so, .n_slots = 1};
    carat_model_options o = {.device = splits[k].device, .split = splits[k].split, .n_threads = 1};
    CHECK_OK(carat_model_open(path, &o, &r->m, &e), e);
    CHECK_OK(carat_batch_open(r->m, &bo, &r->b, &e), e);
    CHECK_OK(carat_session_open(r->m, so, &r->s, &e), e);
}

static void rig_close(rig *r)
{
    carat_session_close(r->s);
    carat_batch_close(r->b);
    carat_model_close(r->m);
}

static bool same_bits(int a, int b)
{
    return (a < 2) == (b < 2);
}

/* A snapshot of every split goes to every other by a file. What follows has the bits of a session
 * that went on by itself, where the two compute the same; and the same bits on all splits else. */
static void moves_everywhere(const char *size)
{
    const char *path = synth_file(size, "f32", NULL, NULL);
    int32_t ids[N];
    rig r[SPLITS];
    static float want[SPLITS][MAX_VOCAB], got[MAX_VOCAB], other[2][MAX_VOCAB];
    bool has_other[2] = {0};
    carat_error e = {0};
    for (int i = 0; i < N; i++)
        ids[i] = (7 + 31 * i + i * i) % 320;
    for (int k = 0; k < SPLITS; k++)
        rig_open(&r[k], path, &options, k);
    const size_t bytes = (size_t)r[0].m->core.n_vocab * sizeof *got;
    CHECK(bytes <= sizeof got);
    uint64_t n_bytes = 0;
    for (int from = 0; from < SPLITS; from++) {
        char name[32];
        carat_snapshot *p;
        uint64_t n;
        snprintf(name, sizeof name, "%d.carat-kv", from);
        const char *file = test_temp(name);
        CHECK_OK(carat_eval(r[from].s, ids, BEFORE, NULL, NULL, &e), e);
        CHECK_OK(carat_snapshot_take(r[from].s, &p, &e), e);
        CHECK_OK(carat_batch_write_snapshot(r[from].b, p, file, &n, &e), e);
        n_bytes = from ? n_bytes : carat_snapshot_bytes(p);
        CHECK_EQ(carat_snapshot_bytes(p), n_bytes);
        carat_snapshot_free(p);
        CHECK_OK(carat_eval(r[from].s, ids, N, want[from], NULL, &e), e);
        CHECK(from < 1 || from == 2 || !memcmp(want[from], want[from - 1], bytes));
    }
    for (int from = 0; from < SPLITS; from++)
        for (int to = 0; to < SPLITS; to++) {
            char name[32];
            carat_snapshot *p;
            uint64_t n;
            int64_t reused;
            snprintf(name, sizeof name, "%d.carat-kv", from);
            CHECK_OK(carat_batch_read_snapshot(r[to].b, test_temp(name), &p, &n, &e), e);
            CHECK_OK(carat_snapshot_restore(r[to].s, p, &e), e);
            CHECK_OK(carat_eval(r[to].s, ids, N, got, &reused, &e), e);
            CHECK_EQ(reused, BEFORE);
            carat_snapshot_free(p);
            float *as = same_bits(from, to) ? want[to] : other[to < 2];
            if (!same_bits(from, to) && !has_other[to < 2])
                memcpy(as, got, bytes);
            has_other[to < 2] |= !same_bits(from, to);
            CHECK_MSG(!memcmp(got, as, bytes), "%s from split %d to %d", size, from, to);
        }
    for (int k = 0; k < SPLITS; k++)
        rig_close(&r[k]);
}

/* Rings and shared keys; one KV head on several ranks; states of uneven parts. */
PLAIN_TEST(snapshots_go_from_any_split_to_any_other)
{
    moves_everywhere("tiny-ple");
    moves_everywhere("tiny-qwen3");
    moves_everywhere("tiny-qwen35-keys");
}

/* What the pager of a session knows: pages, scores, votes. */
static void put_paging(carat_session *s, str *to)
{
    kv_paging *p = kv_paging_new(&session_timeline(s)->kv);
    CHECK(p);
    size_t n = kv_paging_packed_bytes(p);
    unsigned char *bytes = mem_alloc(n);
    CHECK(bytes);
    kv_paging_pack(p, bytes);
    str_put(to, (const char *)bytes, n);
    mem_free(bytes);
    kv_paging_free(p);
}

static const carat_session_options scored = {.n_ctx = 1024,
                                             .chunk = 64,
                                             .checkpoint_mb = 16,
                                             .kv_resident = 512,
                                             .kv_policy = "scored",
                                             .kv_tau = 8};

/* Votes have the same sums under every split, at every token between two choices of pages. */
PLAIN_TEST(votes_for_pages_are_the_same_under_every_split)
{
    enum { LONG = 800, MORE = 20 };
    static const char *const sizes[] = {"tiny-qwen3", "tiny-wide"};
    int32_t ids[LONG + MORE];
    for (int i = 0; i < LONG + MORE; i++)
        ids[i] = (7 + 31 * i + i * i) % 320;
    for (int i = 0; i < 2; i++) {
        AUTO(str_free) str want = {0};
        for (int k = 0; k < SPLITS; k++) {
            AUTO(str_free) str got = {0};
            carat_pool_info info;
            carat_error e = {0};
            rig r;
            rig_open(&r, synth_file(sizes[i], "f32", NULL, NULL), &scored, k);
            CHECK_OK(carat_eval(r.s, ids, LONG, NULL, NULL, &e), e);
            for (int t = 0; t < MORE; t++) {
                CHECK_OK(carat_append(r.s, ids + LONG + t, 1, false, NULL, &e), e);
                put_paging(r.s, k == 0 || k == 2 ? &want : &got);
            }
            carat_session_get_pool(r.s, &info);
            CHECK_STR(info.policy, "scored");
            CHECK_MSG(info.n_in > 0 && info.n_reselected > 2, "%lld pages came back, %lld choices",
                      (long long)info.n_in, (long long)info.n_reselected);
            CHECK_MSG(k == 0 || k == 2 ||
                          (got.n == want.n && !memcmp(str_text(&got), str_text(&want), got.n)),
                      "%s, split %d", sizes[i], k);
            if (k == 1)
                str_cut(&want, 0);
            rig_close(&r);
        }
    }
}

/* A conversation goes through splits by the directory, each time with votes that wait for a choice.
 * Logits behind its last token. */
static void go_through(const char *path, const char *dir, const int *way, int n_hops, float *logits)
{
    enum { LONG = 700, EACH = 6 };
    int32_t ids[LONG + 16 * EACH];
    carat_session_options o = scored;
    o.cache_dir = test_temp(dir);
    for (int i = 0; i < LONG + 16 * EACH; i++)
        ids[i] = (7 + 31 * i + i * i) % 320;
    for (int h = 0; h < n_hops; h++) {
        const carat_model_options mo = {
            .device = splits[way[h]].device, .split = splits[way[h]].split, .n_threads = 1};
        const int n = LONG + h * EACH;
        carat_model *m;
        carat_session *s;
        carat_error e = {0};
        int64_t reused;
        CHECK_OK(carat_model_open(path, &mo, &m, &e), e);
        CHECK_OK(carat_session_open(m, &o, &s, &e), e);
        CHECK_OK(carat_eval(s, ids, n + 1, NULL, &reused, &e), e);
        CHECK_EQ(reused, h ? n : 0);
        for (int t = 1; t < EACH; t++)
            CHECK_OK(carat_append(s, ids + n + t, 1, false, logits, &e), e);
        CHECK(session_timeline(s)->kv.pager->n_watched > 0);
        carat_session_close(s);
        carat_model_close(m);
    }
}

PLAIN_TEST(conversations_with_votes_go_from_any_split_to_any_other)
{
    enum { HOPS = 6 };
    static const int ways[][HOPS] = {{0, 0, 0, 0, 0, 0},
                                     {0, 1, 0, 1, 1, 0},
                                     {2, 2, 2, 2, 2, 2},
                                     {2, 3, 4, 5, 3, 2},
                                     {5, 2, 4, 3, 5, 4}};
    const char *path = synth_file("tiny-qwen3", "f32", NULL, NULL);
    static float want[MAX_VOCAB], got[MAX_VOCAB];
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const bool first = ways[i][1] == ways[i][0];
        char dir[16];
        snprintf(dir, sizeof dir, "way-%zu", i);
        go_through(path, dir, ways[i], HOPS, first ? want : got);
        CHECK_MSG(first || !memcmp(got, want, sizeof got), "way %zu", i);
    }
}

/* A conversation that a program kept on disk is found by one with another split. */
static void kept(const char *dir, carat_session_options o)
{
    enum { LONG = 700 };
    const char *path = synth_file("tiny-qwen3", "f32", NULL, NULL);
    static float logits[SPLITS][MAX_VOCAB];
    int32_t ids[LONG];
    carat_error e = {0};
    o.n_ctx = 1024;
    o.checkpoint_mb = 16;
    o.cache_dir = test_temp(dir);
    for (int i = 0; i < LONG; i++)
        ids[i] = (7 + 31 * i + i * i) % 320;
    for (int k = 0; k < SPLITS; k++) {
        carat_model *m;
        carat_session *s;
        int64_t reused;
        carat_model_options mo = {
            .device = splits[k].device, .split = splits[k].split, .n_threads = 1};
        CHECK_OK(carat_model_open(path, &mo, &m, &e), e);
        CHECK_OK(carat_session_open(m, &o, &s, &e), e);
        CHECK_OK(carat_eval(s, ids, LONG, logits[k], &reused, &e), e);
        CHECK_MSG(k ? reused >= LONG - 64 : !reused, "%s, split %d: %lld", dir, k,
                  (long long)reused);
        CHECK_MSG(!k || k == 2 || !memcmp(logits[k], logits[k - 1], sizeof *logits), "%s, split %d",
                  dir, k);
        carat_session_close(s);
        carat_model_close(m);
    }
}

/* All files of conversations in a directory, in the order of their names. */
static void read_kept(const char *dir, str *to)
{
    char part[512];
    struct dirent **list;
    int n = scandir(dir, &list, NULL, alphasort), n_files = 0;
    CHECK(n > 0);
    for (int i = 0; i < n; i++) {
        const bool is = strstr(list[i]->d_name, ".carat-kv") != NULL;
        snprintf(part, sizeof part, "%s/%.200s", dir, list[i]->d_name);
        FILE *f = is ? fopen(part, "rb") : NULL;
        CHECK(f || !is);
        for (size_t k; f && (k = fread(part, 1, sizeof part, f)) > 0;)
            str_put(to, part, k);
        if (f)
            fclose(f);
        n_files += is;
        free(list[i]);
    }
    free(list);
    CHECK(n_files > 0);
}

/* Heads are in the order of the model, once each, also on pages
 * in the host's memory. */
PLAIN_TEST(files_of_ranks_are_the_same_byte_for_byte)
{
    enum { LONG = 700 };
    int32_t ids[LONG];
    for (int i = 0; i < LONG; i++)
        ids[i] = (7 + 31 * i + i * i) % 320;
    static const char *const policies[] = {NULL, "lru", "scored", "snapkv"};
    for (int pool = 0; pool < 4; pool++) {
        const char *path = synth_file("tiny-qwen3", "f32", NULL, NULL);
        str want = {0};
        for (int k = 2; k < SPLITS; k++) {
            char dir[32];
            carat_session_options o = options;
            carat_model_options mo = {
                .device = splits[k].device, .split = splits[k].split, .n_threads = 1};
            carat_model *m;
            carat_session *s;
            carat_error e = {0};
            str got = {0};
            snprintf(dir, sizeof dir, "ranks-%d-%d", pool, k);
            o.n_ctx = 1024;
            o.checkpoint_mb = 16;
            o.cache_dir = test_temp(dir);
            o.kv_resident = pool ? 512 : 0;
            o.kv_policy = policies[pool];
            CHECK_OK(carat_model_open(path, &mo, &m, &e), e);
            CHECK_OK(carat_session_open(m, &o, &s, &e), e);
            CHECK_OK(carat_eval(s, ids, LONG, NULL, NULL, &e), e);
            carat_session_close(s); /* writes */
            carat_model_close(m);
            read_kept(o.cache_dir, k == 2 ? &want : &got);
            CHECK_MSG(k == 2 ||
                          (got.n == want.n && !memcmp(str_text(&got), str_text(&want), got.n)),
                      "pool %d, split %d: %zu bytes, %zu", pool, k, got.n, want.n);
            str_free(&got);
        }
        str_free(&want);
    }
}

PLAIN_TEST(kept_conversations_are_found_under_another_split)
{
    kept("exact", options);
    carat_session_options o = options;
    o.kv_resident = 512;
    o.kv_policy = "lru";
    kept("pool", o); /* keys of the oldest tokens are in the host's memory */
    o.kv_policy = "scored";
    kept("scored", o);
}
