/* shard_test.c - cuts of a tensor split: parts make up the tensor again, heads stay with their
 * keys, sums are over the same segments for any number of ranks.
 */
#include "model/shard.h"
#include "base/mem.h"
#include "base/rng.h"
#include "model/table.h"
#include "tests/test.h"

#include <string.h>

static bool by_layer(const table_key *k)
{
    return k->kind == KEY_COUNTS || k->kind == KEY_LIST || k->of;
}

/* A key's value by its GGUF name; 0: the family has no such key. */
static int32_t number(const model_shape *s, const char *key, int32_t il)
{
    const family_table *t = s->family->table;
    for (int32_t i = 0; i < t->n_keys; i++)
        if (t->keys[i].gguf && !strcmp(t->keys[i].gguf, key))
            return (int32_t)table_value(s, &t->keys[i], by_layer(&t->keys[i]) ? il : 0);
    return 0;
}

typedef struct listed {
    model_shape *s;
    shape_tensor *t;
    int32_t n;
    const weight_mix *mix;
} listed;

static void list_open(listed *l, const char *size, const char *mix)
{
    err e = {0};
    CHECK_OK(shape_named(size, &l->s, &e), e);
    l->n = l->s->family->list(l->s, NULL, 0);
    CHECK(l->t = mem_calloc((size_t)l->n, sizeof *l->t));
    l->s->family->list(l->s, l->t, l->n);
    CHECK(l->mix = weight_mix_named(mix));
}

static void list_close(listed *l)
{
    mem_free(l->t);
    mem_free(l->s);
}

static int32_t find(const listed *l, int32_t il, const char *tail)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s", il, tail);
    for (int32_t i = 0; i < l->n; i++)
        if (!strcmp(l->t[i].name, name))
            return i;
    return -1;
}

static int32_t type_of(const listed *l, int32_t i)
{
    return i < 0 ? -1 : (int32_t)weight_mix_type(l->mix, l->t, l->n, i);
}

static shard_layer layer_of(const listed *l, int32_t il)
{
    const int32_t at = il < 0 ? 0 : il;
    const bool recurs = find(l, at, "ssm_a") >= 0;
    const int32_t experts = find(l, at, "ffn_down_exps.weight");
    return (shard_layer){.recurs = recurs,
                         .n_ff_exps = experts < 0 ? 0 : (int32_t)l->t[experts].ne[0],
                         .n_expert = experts < 0 ? 0 : (int32_t)l->t[experts].ne[2],
                         .n_head = number(l->s, "attention.head_count", at),
                         .n_head_kv = number(l->s, "attention.head_count_kv", at),
                         .n_k = number(l->s, "ssm.group_count", at),
                         .n_v = number(l->s, "ssm.time_step_rank", at),
                         .dk = number(l->s, "ssm.state_size", at),
                         .dv = number(l->s, "ssm.state_size", at),
                         .down = type_of(l, find(l, at, "ffn_down.weight")),
                         .down_exps = type_of(l, find(l, at, "ffn_down_exps.weight")),
                         .down_shexp = type_of(l, find(l, at, "ffn_down_shexp.weight"))};
}

static shard_tensor tensor_at(const listed *l, int32_t i)
{
    shard_tensor t = {l->t[i].name, (uint32_t)type_of(l, i), l->t[i].n_dims, {1, 1, 1}};
    for (int32_t d = 0; d < l->t[i].n_dims && d < 3; d++)
        t.ne[d] = (int64_t)l->t[i].ne[d];
    return t;
}

/* ---- Parts make up the whole ---------------------------------------------------------------- */

/* The reverse of shard_copy, written another way: element by element of a tensor of bytes, each
 * with the number of the span that it is in. */
static void put_back(const shard *s, const shard_tensor *t, const unsigned char *part,
                     unsigned char *to, unsigned char *seen)
{
    const num_format *f = num_format_of(t->type);
    const int64_t blocks = t->ne[0] / f->block_n, size = f->block_bytes;
    for (int64_t k = 0; k < t->ne[2]; k++)
        for (int64_t r = 0; r < t->ne[1]; r++)
            for (int64_t b = 0; b < blocks; b++) {
                int64_t along = s->axis == SHARD_IN ? b * f->block_n : r, place = 0, at = -1;
                for (int32_t i = 0; i < s->n; place += s->span[i++].n)
                    if (along >= s->span[i].first && along < s->span[i].first + s->span[i].n)
                        at = place + along - s->span[i].first;
                if (s->axis == SHARD_WHOLE)
                    at = along;
                if (s->axis == SHARD_MAT) {
                    if (k < s->span[0].first || k >= s->span[0].first + s->span[0].n)
                        continue;
                    int64_t from = ((k - s->span[0].first) * t->ne[1] + r) * blocks + b;
                    int64_t to_block = (k * t->ne[1] + r) * blocks + b;
                    memcpy(to + to_block * size, part + from * size, (size_t)size);
                    seen[to_block]++;
                    continue;
                }
                if (at < 0)
                    continue;
                int64_t n = place ? place : t->ne[1]; /* of the part, along its axis */
                int64_t from = s->axis == SHARD_IN
                                   ? (k * t->ne[1] + r) * (n / f->block_n) + at / f->block_n
                                   : (k * n + at) * blocks + b;
                int64_t whole = (k * t->ne[1] + r) * blocks + b;
                memcpy(to + whole * size, part + from * size, (size_t)size);
                seen[whole]++;
            }
}

static void comes_back(const shard_layer *layer, const shard_tensor *t, int32_t n_ranks)
{
    const num_format *f = num_format_of(t->type);
    const size_t blocks = (size_t)(t->ne[0] / f->block_n * t->ne[1] * t->ne[2]);
    const size_t bytes = blocks * (size_t)f->block_bytes;
    unsigned char *whole = mem_alloc(bytes), *back = mem_calloc(bytes, 1);
    unsigned char *part = mem_alloc(bytes), *seen = mem_calloc(blocks, 1);
    uint64_t state = rng_mix(bytes);
    err e = {0};
    CHECK(whole && back && part && seen);
    for (size_t i = 0; i < bytes; i++)
        whole[i] = (unsigned char)rng_next(&state);
    for (int32_t r = 0; r < n_ranks; r++) {
        shard s;
        CHECK_OK(shard_of(layer, t, shard_range_of(r, n_ranks), &s, &e), e);
        CHECK(shard_bytes(&s, t) <= bytes);
        memset(part, 0xee, bytes);
        shard_copy(&s, t, whole, part);
        if (s.axis != SHARD_NONE)
            put_back(&s, t, part, back, seen);
    }
    CHECK_MSG(!memcmp(whole, back, bytes), "%s of %d ranks", t->name, n_ranks);
    for (size_t i = 0; i < blocks; i++)
        CHECK(seen[i] >= 1);
    mem_free(whole);
    mem_free(back);
    mem_free(part);
    mem_free(seen);
}

TEST(shards_make_up_every_tensor_of_every_family)
{
    static const struct {
        const char *size, *mix;
    } of[] = {
        {"tiny-dense", "f32"},         {"tiny-moe", "bf16"},         {"tiny-ple", "f32"},
        {"tiny-all", "q8_0"},          {"tiny-qwen3", "f16"},        {"tiny-qwen3moe", "f32"},
        {"tiny-llama3", "f32"},        {"tiny-mixtral", "f32"},      {"tiny-ministral3", "f32"},
        {"tiny-gpt-oss", "f32"},       {"tiny-gemma3", "f32"},       {"tiny-qwen3-vl", "f32"},
        {"tiny-qwen3-vl-moe", "f32"},  {"tiny-qwen35-keys", "bf16"}, {"tiny-qwen3moe", "q8_0"},
        {"tiny-qwen35moe-keys", "f32"}};
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        listed l;
        int32_t n_cut = 0;
        list_open(&l, of[k].size, of[k].mix);
        for (int32_t i = 0; i < l.n; i++) {
            shard_layer layer = layer_of(&l, l.t[i].layer);
            shard_tensor t = tensor_at(&l, i);
            shard s;
            err e = {0};
            CHECK_OK(shard_of(&layer, &t, (shard_range){0, 1}, &s, &e), e);
            n_cut += s.n > 0;
            for (int32_t n = 1; n <= SHARD_SEGMENTS; n++)
                comes_back(&layer, &t, n);
        }
        CHECK(n_cut > 4);
        list_close(&l);
    }
}

/* A recurrent layer by hand, with more heads than the toys, in formats of blocks. */
TEST(shards_make_up_recurrent_layers_and_joined_projections)
{
    enum { K = 6, V = 18, DK = 16, DV = 32, CHANNELS = 2 * K * DK + V * DV };
    const shard_tensor fused = {"blk.0.attn_qkv.weight", NUM_Q8_0, 2, {64, (12 + 2 * 6) * DK, 1}};
    const shard_layer attends = {.n_head = 12, .n_head_kv = 6};
    const shard_layer layer = {.recurs = true, .n_k = K, .n_v = V, .dk = DK, .dv = DV};
    const shard_tensor t[] = {{"blk.0.attn_qkv.weight", NUM_Q8_0, 2, {64, CHANNELS, 1}},
                              {"blk.0.attn_gate.weight", NUM_Q4_0, 2, {64, V * DV, 1}},
                              {"blk.0.ssm_conv1d.weight", NUM_F32, 2, {4, CHANNELS, 1}},
                              {"blk.0.ssm_alpha.weight", NUM_F16, 2, {64, V, 1}},
                              {"blk.0.ssm_beta.weight", NUM_F16, 2, {64, V, 1}},
                              {"blk.0.ssm_a", NUM_F32, 1, {V, 1, 1}},
                              {"blk.0.ssm_dt.bias", NUM_F32, 1, {V, 1, 1}},
                              {"blk.0.ssm_norm.weight", NUM_F32, 1, {DV, 1, 1}},
                              {"blk.0.ssm_out.weight", NUM_Q8_0, 2, {V * DV, 64, 1}}};
    for (int32_t n = 1; n <= SHARD_SEGMENTS; n++)
        comes_back(&attends, &fused, n);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        for (int32_t n = 1; n <= SHARD_SEGMENTS; n++)
            comes_back(&layer, &t[i], n);
        shard s;
        err e = {0};
        CHECK_OK(shard_of(&layer, &t[i], (shard_range){1, 2}, &s, &e), e);
        if (!strstr(t[i].name, "norm"))
            CHECK(s.n == V / K || s.n == 2 + V / K); /* value head j is with key head j mod n_k */
    }
}

/* ---- Published models ----------------------------------------------------------------------- */

/* What the parts of a published model are, by its numbers alone. n_refused: tensors that cannot be
 * cut, of which `named` is the first. */
static void check_published(const char *size, const char *mix, int32_t n_refused, const char *named)
{
    listed l;
    int32_t n = 0;
    list_open(&l, size, mix);
    for (int32_t i = 0; i < l.n; i++) {
        shard_layer layer = layer_of(&l, l.t[i].layer);
        shard_tensor t = tensor_at(&l, i);
        err e = {0};
        shard one, s = {0};
        if (shard_of(&layer, &t, (shard_range){0, 1}, &one, &e)) {
            CHECK_MSG(n || (named && !strcmp(named, t.name)), "%s %s: %s", size, mix, e.text);
            CHECK_EQ(e.status, E_UNSUPPORTED);
            CHECK(strstr(e.text, t.name));
            n++;
            continue;
        }
        for (int32_t g = 1; g <= SHARD_SEGMENTS; g++)
            for (int32_t r = 0; r < g; r++) { /* a rank has its segments, side by side */
                shard_range of = shard_range_of(r, g);
                int64_t at[SHARD_SPANS_MAX] = {0};
                CHECK_OK(shard_of(&layer, &t, of, &s, &e), e);
                for (int32_t k = of.from; k < of.to && s.n; k++) {
                    CHECK_OK(shard_of(&layer, &t, (shard_range){k, k + 1}, &one, &e), e);
                    CHECK_EQ(one.n, s.n);
                    for (int32_t j = 0; j < s.n; j++) { /* a copied head is in several segments */
                        int64_t end = one.span[j].first - s.span[j].first + one.span[j].n;
                        CHECK(one.n && one.span[j].n > 0 && end <= s.span[j].n && end >= at[j]);
                        CHECK(one.span[j].first - s.span[j].first <= at[j]);
                        at[j] = end;
                    }
                }
                for (int32_t j = 0; j < s.n; j++)
                    CHECK_EQ(at[j], s.span[j].n);
            }
    }
    CHECK_MSG(n == n_refused, "%s %s: %d tensors are refused", size, mix, n);
    list_close(&l);
}

TEST(published_models_are_cut_or_refused_by_the_name_of_a_tensor)
{
    check_published("31b", "q4_k_m", 0, NULL);
    check_published("31b", "q8_0", 0, NULL);
    check_published("12b", "q4_k_m", 0, NULL);
    check_published("e4b", "q4_k_m", 0, NULL);
    check_published("e2b", "q4_k_m", 0, NULL);
    check_published("26b-a4b", "q4_k_m", 0, NULL);
    check_published("26b-a4b", "q8_0", 0, NULL);
    check_published("qwen3-32b", "q4_k_m", 0, NULL);
    check_published("llama-3.3-70b", "q4_k_m", 0, NULL);
    check_published("mistral-small-24b", "q4_k_m", 0, NULL);
    check_published("qwen3.6-27b", "q4_k_m", 0, NULL);
    check_published("gpt-oss-20b", "mxfp4", 0, NULL);
    check_published("qwen3-30b-a3b", "q4_k_m", 0, NULL);
    check_published("qwen3.6-35b-a3b", "q4_k_m", 0, NULL);
    check_published("laguna-xs", "q4_k_m", 0, NULL);
    check_published("gemma3-270m", "q8_0", 0, NULL);
    check_published("gemma3-27b", "q4_k_m", 0, NULL);
}

/* The cuts that the plan for the published models names. */
TEST(cuts_are_uneven_where_blocks_are)
{
    const int64_t dense[] = {17, 17, 16, 16}, experts[] = {6, 6, 5, 5};
    listed l;
    err e = {0};
    list_open(&l, "26b-a4b", "q8_0");
    shard_layer layer = layer_of(&l, 0);
    shard_tensor down = tensor_at(&l, find(&l, 0, "ffn_down.weight"));
    shard_tensor down_exps = tensor_at(&l, find(&l, 0, "ffn_down_exps.weight"));
    for (int32_t r = 0; r < SHARD_SEGMENTS; r++) {
        shard s;
        CHECK_OK(shard_of(&layer, &down, shard_range_of(r, 4), &s, &e), e);
        CHECK(s.partial && s.axis == SHARD_IN);
        CHECK_EQ(shard_size(&s), 32 * dense[r]);
        CHECK_OK(shard_of(&layer, &down_exps, shard_range_of(r, 4), &s, &e), e);
        CHECK_EQ(shard_size(&s), 32 * experts[r]);
    }
    list_close(&l);
}

/* Tiles that follow each other; the last of a vocabulary may have less, and four need four. */
TEST(vocabularies_are_cut_between_tiles)
{
    static const struct {
        int64_t n_vocab, first[SHARD_SEGMENTS + 1];
    } want[] = {{151936, {0, 37984, 75968, 113952, 151936}},
                {151669, {0, 37920, 75840, 113760, 151669}},
                {320, {0, 80, 160, 240, 320}},
                {49, {0, 16, 32, 48, 49}}};
    const shard_layer none = {.down = -1, .down_exps = -1, .down_shexp = -1};
    err e = {0};
    shard s;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        for (int32_t r = 0; r < SHARD_SEGMENTS; r++) {
            const shard_tensor t = {"output.weight", NUM_Q8_0, 2, {64, want[i].n_vocab, 1}};
            CHECK_OK(shard_of(&none, &t, shard_range_of(r, SHARD_SEGMENTS), &s, &e), e);
            CHECK(s.axis == SHARD_OUT && !s.partial && s.n == 1);
            CHECK_EQ(s.span[0].first, want[i].first[r]);
            CHECK_EQ(s.span[0].n, want[i].first[r + 1] - want[i].first[r]);
        }
    const shard_tensor few = {"output.weight", NUM_Q8_0, 2, {64, 48, 1}};
    CHECK_OK(shard_of(&none, &few, (shard_range){0, 1}, &s, &e), e);
    CHECK_EQ(s.axis, SHARD_WHOLE);
    CHECK_OK(shard_of(&none, &few, (shard_range){1, 2}, &s, &e), e);
    CHECK_EQ(s.axis, SHARD_NONE);
}

TEST(heads_stay_with_their_keys)
{
    static const struct {
        int32_t n_head, n_head_kv, ranks;
        shard_heads of[4];
    } want[] = {
        {32, 16, 4, {{0, 8, 0, 4}, {8, 8, 4, 4}, {16, 8, 8, 4}, {24, 8, 12, 4}}},
        {16, 2, 4, {{0, 4, 0, 1}, {4, 4, 0, 1}, {8, 4, 1, 1}, {12, 4, 1, 1}}},
        {16, 2, 2, {{0, 8, 0, 1}, {8, 8, 1, 1}}},
        {8, 1, 3, {{0, 4, 0, 1}, {4, 2, 0, 1}, {6, 2, 0, 1}}},
        {12, 6, 4, {{0, 4, 0, 2}, {4, 4, 2, 2}, {8, 2, 4, 1}, {10, 2, 5, 1}}},
    };
    err e = {0};
    shard_heads h;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        for (int32_t r = 0; r < want[i].ranks; r++) {
            shard_range of = shard_range_of(r, want[i].ranks);
            CHECK_OK(shard_heads_of(want[i].n_head, want[i].n_head_kv, of, &h, &e), e);
            CHECK(!memcmp(&h, &want[i].of[r], sizeof h));
            CHECK_EQ(h.n % h.kv_n, 0);
        }
    CHECK_EQ(shard_heads_of(6, 3, (shard_range){0, 1}, &h, &e), E_UNSUPPORTED);
    e = (err){0};
    CHECK_EQ(shard_heads_of(6, 2, (shard_range){0, 1}, &h, &e), E_UNSUPPORTED);
    e = (err){0};
    CHECK_EQ(shard_heads_of(3, 1, (shard_range){0, 1}, &h, &e), E_UNSUPPORTED);
}

TEST(what_cannot_be_cut_is_named)
{
    const shard_layer layer = {
        .n_head = 8, .n_head_kv = 4, .down = NUM_Q8_0, .down_exps = -1, .down_shexp = -1};
    const struct {
        shard_tensor t;
        const char *why;
    } want[] = {
        {{"blk.0.attn_new.weight", NUM_F32, 2, {64, 64, 1}}, "not known what its rows are"},
        {{"blk.0.ffn_down_exps.weight", NUM_Q8_0, 3, {256, 64, 8}}, "no matrix of the layer"},
        {{"blk.0.attn_output.weight", NUM_Q4_K, 2, {512, 64, 1}}, "inside a block of 256"},
        {{"blk.0.attn_q.weight", NUM_F32, 2, {64, 60, 1}}, "no multiple of the number of heads"},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        err e = {0};
        shard s = {.n = 7};
        CHECK_EQ(shard_of(&layer, &want[i].t, (shard_range){0, 4}, &s, &e), E_UNSUPPORTED);
        CHECK_MSG(strstr(e.text, want[i].why) && strstr(e.text, want[i].t.name), "%s", e.text);
        CHECK_EQ(s.n, 7);
    }
}
