/* kv_bytes_test.c - bytes of keys and values of the published sizes, against arithmetic by hand.
 *
 * Layouts are those of a session with passes of 512 rows. That a cache allocates exactly its layout
 * is checked where caches are opened (kv_oracle_test.c). With -v this prints the table of KV bytes.
 * The file also checks which layers attention may read through f16.
 */
#include "kv/pager.h"
#include "kv/snapshot.h"
#include "model/gemma4_shapes.h"
#include "model/model.h"
#include "model/qwen35.h"
#include "tests/rig_model.h"
#include "tests/test.h"

enum { CHUNK = 512 };

static void open_layout(const gemma4_shape *s, const char *type, const char *single, int32_t n_ctx,
                        kv_layout *l)
{
    static const float freq[1] = {1};
    static const rope turn = {.n_pairs = 1, .inv_freq = freq, .n_turning = 1, .turns = freq};
    static const weight norm = {.name = "k_norm"};
    kv_spec spec[SHAPE_LAYERS_MAX];
    int32_t n = s->n_layer - s->n_kv_shared;
    for (int32_t i = 0; i < n; i++)
        spec[i] = (kv_spec){.window = s->swa[i] ? s->window : 0,
                            .n_head_kv = gemma4_n_head_kv(s, i),
                            .head_dim = gemma4_head_dim(s, i),
                            .k_is_v = s->k_eq_v && !s->swa[i],
                            .k_norm = &norm,
                            .k_rope = &turn};
    kv_want_layout w = {.spec = spec, .n = n, .n_ctx = n_ctx, .rows_max = CHUNK};
    err e = {0};
    CHECK_OK(kv_choice_parse(&w.choice, &(kv_words){.k = type, .single = single}, &e), e);
    CHECK_OK(kv_layout_init(l, &w, &e), e);
}

static uint64_t planned(const gemma4_shape *s, const char *type, const char *single, int32_t n_ctx)
{
    AUTO(kv_layout_free) kv_layout l;
    open_layout(s, type, single, n_ctx, &l);
    uint64_t bytes = l.all.ring + l.all.linear;
    return bytes;
}

/* Bytes per token of the global layers and per slot of the window layers, as published. */
TEST(kv_bytes_of_published_sizes)
{
    static const struct {
        const char *name;
        uint64_t global, window; /* f16, two streams */
        int32_t n_window, n_ctx_max;
        bool k_is_v;
    } sizes[] = {{"e2b", 6144, 12288, 512, 131072, false},
                 {"e4b", 16384, 40960, 512, 131072, false},
                 {"12b", 16384, 327680, 1024, 262144, true},
                 {"26b-a4b", 20480, 204800, 1024, 262144, true},
                 {"31b", 81920, 819200, 1024, 262144, true}};
    static const struct {
        const char *type;
        double of_f16;
        bool single; /* auto keeps one stream */
    } types[] = {{"f16", 1, true},
                 {"q8_0", 0.53125, true},
                 {"q5_0", 0.34375, true},
                 {"q4_0", 0.28125, true},
                 {"tq3_0", 0.21875, false}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        gemma4_shape s;
        CHECK(gemma4_shape_named(sizes[i].name, &s));
        CHECK_EQ(s.n_ctx_train, sizes[i].n_ctx_max);
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            printf("| %s | %s |", sizes[i].name, types[t].type);
            for (int32_t n_ctx = 8192; n_ctx <= 262144; n_ctx *= n_ctx == 65536 ? 4 : 8) {
                int32_t n = n_ctx < sizes[i].n_ctx_max ? n_ctx : sizes[i].n_ctx_max;
                double slots = sizes[i].n_window + CHUNK - 1;
                double global = (double)sizes[i].global * n,
                       window = (double)sizes[i].window * slots;
                double two = types[t].of_f16 * (global + window);
                double one = types[t].of_f16 * (global / 2 + window);
                bool single = types[t].single && sizes[i].k_is_v;
                CHECK_EQ(planned(&s, types[t].type, "off", n), two);
                CHECK_EQ(planned(&s, types[t].type, NULL, n), single ? one : two);
                printf(" %.0f | %.0f |", two * 0x1p-20, (single ? one : two) * 0x1p-20);
            }
            printf("\n");
        }
    }
}

/* 31B at 256K tokens of f16 with a pool of 4,096, on a device that scores all layers at once:
 * global layers take a 40th of what they take without a pool, in two streams. Summaries have two
 * codes and a 32nd of two scales a dim; scores, queries and the stage of looks are the rest. */
TEST(kv_bytes_of_a_pool)
{
    enum { N_CTX = 262144, POOL = 4096, PAGES = N_CTX / KV_PAGE };
    gemma4_shape s;
    AUTO(kv_layout_free) kv_layout l;
    device d = {.watch_rooms = 64};
    CHECK(gemma4_shape_named("31b", &s));
    open_layout(&s, "f16", "off", N_CTX, &l);
    l.dev[PASS_MAIN] = &d;
    page_query_size q = {0};
    size_t dims = 0;
    for (int32_t i = 0; i < l.n; i++) {
        const kv_view *v = &l.view[i];
        if (v->window)
            continue;
        dims += (size_t)v->n_head_kv * (size_t)v->head_dim;
        q.layers++;
        q.heads = s.n_head;
        q.floats += (size_t)s.n_head * (size_t)v->head_dim;
    }
    CHECK_EQ(dims, 81920 / 4);
    double rooms = q.layers * 4.0 * (double)page_watch_room(PAGES, 512);
    double scored = (double)kv_pager_bytes(&l, KV_POLICY_SCORED, PASS_MAIN);
    CHECK_EQ(scored - rooms - PAGES * 8.0, (2 + 2 * 2 / 128.0) * (double)dims * PAGES);
    double pool = 81920.0 * POOL + scored + (double)kv_rescore_bytes(&l, &q, PASS_MAIN) +
                  (double)kv_queries_bytes(&q);
    printf("%.1f MiB whole, %.1f MiB with a pool: 1/%.2f\n", 81920.0 * N_CTX * 0x1p-20,
           pool * 0x1p-20, 81920.0 * N_CTX / pool);
    CHECK(40 * pool < 81920.0 * N_CTX);
}

/* Recurrent layers of the published sizes, in KiB: a checkpoint's states; keys and values of a
 * token in f16; a row of both banks of the journals. */
TEST(kv_bytes_of_recurrent_layers)
{
    static const struct {
        const char *name;
        double states, token, row;
    } sizes[] = {{"qwen3.5-0.8b", 19728, 12, 1442.25},
                 {"qwen3.5-4b", 51456, 32, 2694},
                 {"qwen3.6-27b", 153216, 64, 6930},
                 {"qwen3.6-35b-a3b", 64320, 20, 3367.5}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        qwen35_shape s = {.family = &qwen35_shapes};
        recur_view view[SHAPE_LAYERS_MAX];
        kv_spec spec[SHAPE_LAYERS_MAX];
        kv_want_layout w = {
            .spec = spec, .recur = view, .journal_rows = 64, .n_ctx = 64, .rows_max = 64};
        AUTO(kv_layout_free) kv_layout l;
        err e = {0};
        CHECK(qwen35_shapes.named(sizes[i].name, &s.common));
        for (int32_t il = 0; il < s.n_layer; il++)
            if (s.full[il])
                spec[w.n++] = (kv_spec){.n_head_kv = s.n_head_kv, .head_dim = s.head_dim};
            else
                view[w.n_recur++] = (recur_view){
                    .n_k = s.n_k, .n_v = s.n_v, .dk = s.dk, .dv = s.dv, .n_taps = s.n_taps};
        CHECK_OK(kv_choice_parse(&w.choice, &(kv_words){.k = "f16"}, &e), e);
        CHECK_OK(kv_layout_init(&l, &w, &e), e);
        CHECK_EQ((double)kv_state_bytes(&l, 0), sizes[i].states * 1024);
        CHECK_EQ((double)l.all.linear, sizes[i].token * 1024 * 64);
        CHECK_EQ((double)(l.all.recur - kv_state_bytes(&l, 0)), sizes[i].row * 1024 * 64);
    }
}

/* Attention goes through f16 only where no norm can produce an element above 65504: in queries, in
 * keys, and, with one stream, in queries times the keys' weight. */
TEST(kv_is_wide_where_norms_reach_beyond_f16)
{
    static const struct {
        float norm;
        bool windows, globals;
    } cases[] = {
        {RIG_QK_NORM, false, false}, {100, false, true}, {5000, true, true}, {NAN, true, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        gguf g;
        AUTO(model_free) model m;
        err e = {0};
        CHECK_OK(gguf_open(&g, rig_model_of(128, 256, cases[i].norm), false, NULL, NULL, &e), e);
        CHECK_OK(model_bind(&m, &g, &e), e);
        for (int32_t k = 0; k < m.n_kv; k++) {
            CHECK_EQ(m.kv[k].k_is_v, !m.kv[k].window);
            CHECK_EQ(m.kv[k].wide, m.kv[k].window ? cases[i].windows : cases[i].globals);
        }
    }
}
