/* importance_test.c - `carat importance`: values of chunks as lines and as JSON, and a sentence for
 * wrong input. engine/importance_test.c compares the values themselves. */
#include "base/json.h"
#include "tests/fidelity_model.h"
#include "tests/spawn.h"
#include "tests/test.h"

enum { N = 100 };

static const char *write_ids(const fidelity *f)
{
    const char *path = test_temp("ids.bin");
    test_write(path, f->tokens, N * sizeof *f->tokens);
    return path;
}

static void run(spawned *r, const char *const *args)
{
    spawn_carat(r, NULL, args);
}

#define RUN(r, ...) run(r, (const char *const[]){"importance", __VA_ARGS__, NULL})

TEST(importance_command_prints_chunks)
{
    AUTO(fidelity_close) fidelity f;
    err e = {0};
    AUTO(spawned_free) spawned r;
    json_t *v;
    fidelity_open(&f, "qwen3");
    const char *model = fidelity_write(&f, NULL), *ids = write_ids(&f);
    RUN(&r, "-m", model, "--tokens", ids, "--chunk", "32", "--json");
    CHECK_MSG(r.code == 0, "exit status %d: %s", r.code, str_text(&r.err));
    CHECK_OK(json_parse(&v, str_text(&r.out), r.out.n, "importance", &e), e);
    spawned_free(&r);
    const json_t *values = json_object_get(v, "values"), *chunks = json_object_get(v, "chunks");
    CHECK_EQ(json_array_size(values), N);
    CHECK_EQ(json_array_size(chunks), 4);
    double sum = 0;
    for (size_t i = 0; i < 32; i++) {
        double x = json_number_value(json_array_get(values, i));
        CHECK(x > 0 && x < 1);
        sum += x / 32;
    }
    CHECK_NEAR(json_number_value(json_array_get(chunks, 0)), sum, 1e-6);
    json_decref(v);

    RUN(&r, "-m", model, "--tokens", ids, "--normal", "-n", "65");
    CHECK_MSG(r.code == 0, "exit status %d: %s", r.code, str_text(&r.err));
    CHECK_MSG(strstr(str_text(&r.out), "     64      65   "), "%s", str_text(&r.out));
    spawned_free(&r);

    RUN(&r, "-m", model, "--tokens", ids, "-n", "8");
    CHECK_EQ(r.code, 1);
    CHECK_MSG(strstr(str_text(&r.err), "8 tokens"), "%s", str_text(&r.err));
    spawned_free(&r);
    RUN(&r, "-m", model);
    CHECK_EQ(r.code, 2);
    spawned_free(&r);
    fidelity_close(&f);

    fidelity_open(&f, "moe"); /* the layers that see the whole text */
    RUN(&r, "-m", fidelity_write(&f, NULL), "--tokens", ids, "-n", "40");
    CHECK_MSG(r.code == 0, "exit status %d: %s", r.code, str_text(&r.err));
}
