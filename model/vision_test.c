/* vision_test.c - vision towers: spellings of keys, what is refused, budgets. */
#include "model/vision.h"
#include "tests/table_file.h"
#include "tests/test.h"

static table_file f;

/* Opens the file as it is now; the caller frees m. */
static status opens(model *m, err *e)
{
    *e = (err){0};
    return table_file_bind(&f, m, e);
}

static gguf_value text_value(const char *key, const char *text, unsigned char buf[80])
{
    memset(buf, 0, 80);
    buf[0] = (unsigned char)strlen(text);
    memcpy(buf + 8, text, strlen(text));
    return (gguf_value){
        .key = key, .kind = GGUF_STRING, .count = 1, .bytes = buf, .n_bytes = 8 + strlen(text)};
}

TEST(vision_reads_every_tower)
{
    static const struct {
        const char *size, *projector;
        int32_t n_out, patch, merge;
    } want[] = {{"tiny-mmproj-clamped", "gemma4v", 96, 4, 3},
                {"tiny-mmproj-standard", "gemma4v", 96, 4, 3},
                {"tiny-mmproj-flat", "gemma4uv", 96, 12, 1},
                {"tiny-mmproj-qwen", "qwen3vl_merger", 64, 4, 2},
                {"tiny-mmproj-qwen3-vl", "qwen3vl_merger", 64, 4, 2}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        model m;
        err e;
        CHECK(table_file_make(&f, want[i].size));
        CHECK_OK(opens(&m, &e), e);
        const vision *v = vision_of(&m);
        CHECK(v);
        CHECK_STR(v->projector, want[i].projector);
        CHECK_EQ(v->n_out, want[i].n_out);
        CHECK_EQ(v->rule.patch, want[i].patch);
        CHECK_EQ(v->rule.merge, want[i].merge);
        CHECK_EQ(v->n_deep, strstr(want[i].size, "qwen3-vl") ? 2 : 0);
        /* Gemma's tower computes 2 x - 1, Qwen's file says so, and 12B takes x as it is. */
        float half = want[i].merge > 1 ? 0.5f : 0;
        for (int c = 0; c < 3; c++)
            CHECK(v->rule.mean[c] == half && v->rule.std[c] == 1 - half);
        model_free(&m);
        table_file_free(&f);
    }
}

/* A file of its first years names the projector in clip.projector_type. Sound is left alone. */
TEST(vision_takes_both_spellings_and_leaves_sound_alone)
{
    unsigned char buf[80], other[80];
    model m;
    err e;
    CHECK(table_file_make(&f, "tiny-mmproj-qwen"));
    gguf_value *v = table_file_key(&f, "clip.vision.projector_type");
    *v = text_value("clip.projector_type", "qwen3vl_merger", buf);
    f.tensor[f.n_tensors] = (table_file_tensor){
        .name = "a.blk.0.conv_dw.weight", .ne = {5, 4, 1, 1}, .n_dims = 2, .type = NUM_F32};
    f.n_tensors++;
    CHECK_OK(opens(&m, &e), e);
    model_free(&m);
    /* The new key counts where a file has both. */
    f.key[f.n_keys++] = text_value("clip.vision.projector_type", "ldp", other);
    CHECK_STATUS(opens(&m, &e), E_UNSUPPORTED);
    CHECK(strstr(e.text, "the vision tower 'ldp' is not supported (these are: gemma4v, gemma4uv"));
    table_file_free(&f);
}

TEST(vision_refuses_by_name)
{
    static const unsigned char off[] = {0}, deep[] = {0, 1}, two[8] = {0};
    static const float nought[3] = {1, 0, 1};
    model m;
    err e;
    CHECK(table_file_make(&f, "tiny-mmproj-qwen"));
    *table_file_key(&f, "clip.has_vision_encoder") = (gguf_value){.key = "clip.has_vision_encoder",
                                                                  .kind = GGUF_BOOL,
                                                                  .count = 1,
                                                                  .bytes = off,
                                                                  .n_bytes = 1};
    CHECK_STATUS(opens(&m, &e), E_UNSUPPORTED);
    CHECK(strstr(e.text, "has no tower for pictures"));
    table_file_reset(&f);
    *table_file_key(&f, "clip.vision.is_deepstack_layers") =
        (gguf_value){.key = "clip.vision.is_deepstack_layers",
                     .kind = GGUF_ARRAY,
                     .item = GGUF_BOOL,
                     .count = 2,
                     .bytes = deep,
                     .n_bytes = 2};
    CHECK_STATUS(opens(&m, &e), E_FORMAT);
    CHECK(strstr(e.text, "v.deepstack.1.norm.weight"));
    table_file_reset(&f);
    gguf_value list = {.key = "clip.vision.image_std",
                       .kind = GGUF_ARRAY,
                       .item = GGUF_F32,
                       .count = 3,
                       .bytes = (const unsigned char *)nought,
                       .n_bytes = 12};
    *table_file_key(&f, "clip.vision.image_std") = list;
    CHECK_STATUS(opens(&m, &e), E_FORMAT);
    CHECK(strstr(e.text, "item 1 of clip.vision.image_std is 0"));
    list.count = 2;
    list.bytes = two;
    list.n_bytes = 8;
    *table_file_key(&f, "clip.vision.image_std") = list;
    CHECK_STATUS(opens(&m, &e), E_FORMAT);
    table_file_reset(&f);
    /* A bound or a layer that nothing reads would be another model. */
    f.tensor[f.n_tensors] = (table_file_tensor){
        .name = "v.blk.0.attn_q.input_max", .ne = {1, 1, 1, 1}, .n_dims = 1, .type = NUM_F32};
    f.n_tensors++;
    CHECK_STATUS(opens(&m, &e), E_UNSUPPORTED);
    CHECK(strstr(e.text, "v.blk.0.attn_q.input_max"));
    table_file_free(&f);
}

/* Gemma fills a budget, Qwen keeps within it, whatever the shape of the picture. Budget 0: its own
 * size. */
TEST(vision_keeps_to_the_budget)
{
    static const char *const sizes[] = {"tiny-mmproj-clamped", "tiny-mmproj-qwen"};
    for (int i = 0; i < 2; i++) {
        model m;
        err e;
        CHECK(table_file_make(&f, sizes[i]));
        CHECK_OK(opens(&m, &e), e);
        for (int32_t budget = 0; budget <= VISION_BUDGET_MAX; budget += budget ? 35 : 70)
            for (int32_t w = 1; w < 9000; w = w * 3 / 2 + 1)
                for (int32_t h = 1; h < 9000; h = h * 3 / 2 + 1) {
                    image_rule r;
                    image_grid g;
                    int32_t most = budget ? budget : VISION_BUDGET_MAX;
                    status st = vision_grid(&m, budget, w, h, &r, &g, "a.png", NULL);
                    bool strip = w > 200 * h || h > 200 * w;
                    CHECK_MSG(st == ((i || !budget) && strip ? E_LIMIT : OK), "%d: %d x %d", budget,
                              w, h);
                    if (!st)
                        CHECK_MSG(g.n_tokens >= 1 && g.n_tokens <= most, "%d: %d x %d is %d",
                                  budget, w, h, g.n_tokens);
                }
        model_free(&m);
        table_file_free(&f);
    }
}
