/* kld_test.c - `carat kld`: zero for equal formats, more for others, and a sentence for wrong
 * input. */
#include "base/json.h"
#include "base/map.h"
#include "tests/spawn.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <math.h>

static const char *ids_file(int n)
{
    err e = {0};
    file_out f = {0};
    const char *path = test_temp("ids.bin");
    CHECK_OK(file_out_open(&f, path, &e), e);
    for (int i = 0; i < n; i++) {
        uint32_t id = 8 + (uint32_t)(i * 37) % 200;
        uint8_t b[4] = {(uint8_t)id, (uint8_t)(id >> 8), 0, 0};
        CHECK_OK(file_out_write(&f, b, 4, &e), e);
    }
    CHECK_OK(file_out_commit(&f, &e), e);
    return path;
}

static json_t *kld(const char *const *args)
{
    AUTO(spawned_free) spawned r;
    err e = {0};
    json_t *v;
    spawn_carat(&r, NULL, args);
    CHECK_MSG(r.code == 0, "exit status %d: %s", r.code, str_text(&r.err));
    CHECK_OK(json_parse(&v, str_text(&r.out), r.out.n, "kld", &e), e);
    return v;
}

static double real(const json_t *v, const char *key)
{
    CHECK_MSG(json_is_number(json_object_get(v, key)), "no number %s", key);
    return json_number_value(json_object_get(v, key));
}

#define KLD(...) kld((const char *const[]){"kld", "--json", "--exact", __VA_ARGS__, NULL})

TEST(kld_of_equal_caches_is_zero_and_of_coarse_ones_is_not)
{
    const char *m = toy_model_write(&(toy_model_file){.base = "e2b"}), *ids = ids_file(100);
    json_t *v = KLD("-m", m, "--tokens", ids, "--base", "f32", "--kv-type", "f32");
    CHECK_EQ(real(v, "positions"), 100);
    CHECK(real(v, "mean") == 0 && real(v, "max") == 0 && real(v, "same_top") == 1);
    CHECK(real(v, "base_bytes") == real(v, "tested_bytes"));
    json_decref(v);
    double before = 0;
    static const char *const types[] = {"f16", "q8_0", "q5_1", "q4_0"};
    for (int i = 0; i < 4; i++) {
        v = KLD("-m", m, "--tokens", ids, "--base", "f32", "--kv-type", types[i], "--from", "10");
        CHECK_EQ(real(v, "positions"), 90);
        CHECK_MSG(real(v, "mean") > before, "%s: mean %g, the finer one had %g", types[i],
                  real(v, "mean"), before);
        CHECK(real(v, "mean") <= real(v, "p99") && real(v, "p99") <= real(v, "max"));
        CHECK(real(v, "base_bytes") > real(v, "tested_bytes"));
        before = real(v, "mean");
        json_decref(v);
    }
}

TEST(kld_of_sparse_attention_has_a_histogram_of_each_layer)
{
    const char *m = toy_model_write(&(toy_model_file){.wide_heads = true}), *ids = ids_file(400);
    json_t *v = KLD("-m", m, "--tokens", ids, "--base", "f32", "--kv-type", "f32", "--kv-single",
                    "off", "--sparse", "skip:1e-30");
    CHECK(real(v, "mean") == 0);
    json_decref(v);
    v = KLD("-m", m, "--tokens", ids, "--base", "f32", "--kv-type", "f32", "--sparse", "skip:1e6");
    CHECK(real(v, "mean") > 0);
    json_t *list = json_object_get(v, "sparse"), *x;
    size_t i;
    CHECK(json_array_size(list) > 0);
    json_array_foreach(list, i, x)
    {
        CHECK(real(x, "tiles") > real(x, "tiles_read") && real(x, "tiles_read") > 0);
        CHECK(real(x, "dropped_p99") > 0.05 && real(x, "dropped_max") <= 1);
        CHECK_EQ(json_array_size(json_object_get(x, "decades")), 9);
    }
    json_decref(v);
    AUTO(spawned_free) spawned r;
    spawn_carat(
        &r, NULL,
        (const char *const[]){"kld", "-m", m, "--tokens", ids, "--sparse", "skip:1e6", NULL});
    CHECK(r.code == 0 && strstr(str_text(&r.out), "skip:1e6") &&
          strstr(str_text(&r.err), "take a smaller scale"));
}

/* A text of several passes is one prompt, so the numbers are those of one pass. */
PLAIN_TEST(kld_of_block_selection_is_the_same_in_one_pass_and_in_several)
{
    const char *m = toy_model_write(&(toy_model_file){.wide_heads = true, .n_ctx_train = 1024}),
               *ids = ids_file(900);
    static const char *const settings[] = {"flash:0.7", "auto:300", "skip:1e-4"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        double one = -1;
        static const char *const chunks[] = {"900", "512", "200", "128"};
        for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++) {
            json_t *v = KLD("-m", m, "--tokens", ids, "--base", "f32", "--kv-type", "f32",
                            "--sparse", settings[i], "--chunk", chunks[k]);
            double mean = real(v, "mean");
            CHECK_EQ(real(v, "positions"), 900);
            one = k ? one : mean;
            CHECK_MSG(fabs(mean - one) <= 0.01 * one + 1e-9, "%s in passes of %s: %g, in one %g",
                      settings[i], chunks[k], mean, one);
            json_decref(v);
        }
    }
}

PLAIN_TEST(calibrate_sparse_recommends_a_scale_that_keeps_its_promise)
{
    const char *m = toy_model_write(&(toy_model_file){.wide_heads = true}), *ids = ids_file(400);
    AUTO(spawned_free) spawned r;
    json_t *v;
    err e = {0};
    spawn_carat(&r, NULL,
                (const char *const[]){"calibrate-sparse", "--json", "-m", m, "--tokens", ids,
                                      "--dropped", "0.2", NULL});
    CHECK_MSG(!r.code, "%s", str_text(&r.err));
    CHECK_OK(json_parse(&v, str_text(&r.out), r.out.n, "calibration", &e), e);
    double scale = real(v, "scale");
    CHECK(scale > 0 && real(v, "tokens") == 400);
    json_t *list = json_object_get(v, "trials"), *x;
    size_t i;
    bool found = false;
    json_array_foreach(list, i, x)
    {
        found |= real(x, "scale") == scale && real(x, "dropped_p99") <= 0.2;
        CHECK(real(x, "density") > 0 && real(x, "density") <= 1);
    }
    CHECK(found && i > 2);
    json_decref(v);
    spawned_free(&r);
    spawn_carat(&r, NULL,
                (const char *const[]){"calibrate-sparse", "-m", m, "--tokens", ids, NULL});
    CHECK(!r.code && strstr(str_text(&r.out), "--sparse skip:") &&
          strstr(str_text(&r.out), "400 tokens"));
}

TEST(kld_refuses_what_it_cannot_compare)
{
    const char *m = toy_model_write(&(toy_model_file){.base = "e2b"}), *ids = ids_file(20);
    const struct {
        int code;
        const char *says, *args[9];
    } bad[] = {
        {2, "either --tokens or --text", {"kld", "-m", m}},
        {2, "either --tokens or --text", {"kld", "-m", m, "--tokens", ids, "--text", ids}},
        {1, "--from 20 leaves none to count", {"kld", "-m", m, "--tokens", ids, "--from", "20"}},
        {1, "'q3_0' is no type", {"kld", "-m", m, "--tokens", ids, "--kv-type", "q3_0"}},
        {1, "'q3_0' is no type", {"kld", "-m", m, "--tokens", ids, "--base", "q3_0"}},
        {1,
         "expected off, auto, auto:TOKENS, skip:SCALE or flash:ALPHA",
         {"kld", "-m", m, "--tokens", ids, "--sparse", "half"}},
        {2, "either --tokens or --text", {"calibrate-sparse", "-m", m}},
        {1, "two tiles of keys", {"calibrate-sparse", "-m", m, "--tokens", ids}},
        {1, "nowhere.bin", {"kld", "-m", m, "--tokens", "/nowhere.bin"}},
        {1, "neither a list of 4-byte ids", {"kld", "-m", m, "--tokens", test_path("LICENSE")}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        AUTO(spawned_free) spawned r;
        spawn_carat(&r, NULL, bad[i].args);
        CHECK_MSG(r.code == bad[i].code && strstr(str_text(&r.err), bad[i].says) && !r.out.n,
                  "exit status %d, stderr \"%s\", expected \"%s\"", r.code, str_text(&r.err),
                  bad[i].says);
    }
}
