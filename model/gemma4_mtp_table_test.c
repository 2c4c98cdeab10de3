/* gemma4_mtp_table_test.c - assistants of the smallest sizes at the limits of the reader: one
 * below, at, and one above.
 */
#include "model/model.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>

enum { D = 2, TARGET = 2 };

typedef struct sizes {
    int32_t n_layer, head_dim, n_clusters, top_k, n_head; /* n_head 0: one */
} sizes;

typedef struct tensors {
    gguf_writer *w;
    uint64_t n_floats[2048];
    int32_t n;
} tensors;

static void put(tensors *t, int32_t il, const char *tail, uint64_t n_in, uint64_t n_out)
{
    char name[64];
    const uint64_t ne[2] = {n_in, n_out};
    snprintf(name, sizeof name, "blk.%d.%s", (int)il, tail);
    gguf_put_tensor(t->w, il < 0 ? tail : name, NUM_F32, n_out ? 2 : 1, ne);
    t->n_floats[t->n++] = n_in * (n_out ? n_out : 1);
}

static void put_layer(tensors *t, int32_t il, uint64_t hd, uint64_t n_head)
{
    put(t, il, "attn_norm.weight", D, 0);
    put(t, il, "attn_q.weight", D, n_head * hd);
    put(t, il, "attn_q_norm.weight", hd, 0);
    put(t, il, "attn_output.weight", n_head * hd, D);
    put(t, il, "post_attention_norm.weight", D, 0);
    put(t, il, "ffn_norm.weight", D, 0);
    put(t, il, "ffn_gate.weight", D, 2);
    put(t, il, "ffn_up.weight", D, 2);
    put(t, il, "ffn_down.weight", 2, D);
    put(t, il, "post_ffw_norm.weight", D, 0);
    put(t, il, "layer_output_scale.weight", 1, 0);
}

static status bind_of(const sizes *s, err *e)
{
    static const float ones[4096] = {1};
    static char path[1024];
    static tensors t;
    uint64_t vocab = s->n_clusters ? (uint64_t)s->n_clusters : 4;
    gguf g = {0};
    AUTO(model_free) model m = {0};
    if (!*path)
        snprintf(path, sizeof path, "%s", test_temp("limits.gguf"));
    t = (tensors){.n = 0};
    CHECK_OK(gguf_create(&t.w, path, e), *e);
    gguf_put_string(t.w, "general.architecture", "gemma4-assistant", 16);
    if (s->top_k)
        gguf_put_u32(t.w, "gemma4-assistant.centroid_top_k", (uint32_t)s->top_k);
    put(&t, -1, "token_embd.weight", D, vocab);
    put(&t, -1, "nextn.pre_projection.weight", 2 * TARGET, D);
    put(&t, -1, "nextn.post_projection.weight", D, TARGET);
    put(&t, -1, "output_norm.weight", D, 0);
    if (s->n_clusters)
        put(&t, -1, "masked_embd_centroids.weight", D, vocab);
    for (int32_t il = 0; il < s->n_layer; il++)
        put_layer(&t, il, (uint64_t)s->head_dim, s->n_head ? (uint64_t)s->n_head : 1);
    if (s->n_clusters)
        gguf_put_tensor(t.w, "masked_embd_ordering", NUM_I32, 1, &vocab);
    CHECK_OK(gguf_write_header(t.w, e), *e);
    for (int32_t i = 0; i < t.n; i++)
        for (uint64_t left = t.n_floats[i], n; left; left -= n) {
            n = left < 4096 ? left : 4096;
            CHECK_OK(gguf_write_data(t.w, ones, (size_t)n * sizeof *ones, e), *e);
        }
    for (int32_t i = 0; i < s->n_clusters; i++)
        CHECK_OK(gguf_write_data(t.w, &i, sizeof i, e), *e);
    CHECK_OK(gguf_commit(t.w, e), *e);
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, e), *e);
    status st = model_bind(&m, &g, e);
    if (!st)
        CHECK_EQ(m.n_layer, s->n_layer);
    return st;
}

TEST(assistants_at_the_limits_of_the_reader)
{
    enum { LAYERS = 64, HEAD = 8192, CLUSTERS = 8192, TOP = 256, HEADS = 65536 };
    static const struct {
        sizes s;
        const char *word; /* NULL: it is bound */
    } want[] = {
        {{1, 2, 0, 0, 0}, NULL},
        {{0, 2, 0, 0, 0}, "1 to 64 layers"},
        {{LAYERS - 1, 2, 0, 0, 0}, NULL},
        {{LAYERS, 2, 0, 0, 0}, NULL},
        {{LAYERS + 1, 2, 0, 0, 0}, "1 to 64 layers"},
        {{1, HEAD - 2, 0, 0, 0}, NULL},
        {{1, HEAD, 0, 0, 0}, NULL},
        {{1, HEAD + 1, 0, 0, 0}, "8193, expected 1 to 8192"},
        {{1, HEAD + 2, 0, 0, 0}, "8194, expected 1 to 8192"},
        {{1, HEAD - 1, 0, 0, 0}, "an even number"},
        {{1, 2, 0, 0, HEADS}, NULL},
        {{1, 2, 0, 0, HEADS + 1}, "head_count 65537: expected 1 to 65536"},
        {{1, 2, CLUSTERS - 1, 1, 0}, NULL},
        {{1, 2, CLUSTERS, 1, 0}, NULL},
        {{1, 2, CLUSTERS + 1, 1, 0}, "8193, expected 1 to 8192"},
        {{1, 2, 300, TOP - 1, 0}, NULL},
        {{1, 2, 300, TOP, 0}, NULL},
        {{1, 2, 300, TOP + 1, 0}, "centroid_top_k = 257"},
        {{1, 2, 8, 7, 0}, NULL},
        {{1, 2, 8, 8, 0}, NULL},
        {{1, 2, 8, 9, 0}, "centroid_top_k = 9"},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const sizes *s = &want[i].s;
        err e = {0};
        status st = bind_of(s, &e);
        CHECK_MSG(!st == !want[i].word, "%d layers, heads of %d, %d clusters, top %d: %s",
                  s->n_layer, s->head_dim, s->n_clusters, s->top_k, e.text);
        CHECK_MSG(!st || strstr(e.text, want[i].word), "%s", e.text);
    }
}
