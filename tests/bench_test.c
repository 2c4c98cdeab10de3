/* bench_test.c - `carat bench`: its arithmetic, and the whole command on a tiny model. */
#include "apps/bench_int.h"
#include "apps/commands.h"
#include "tests/fidelity_model.h"
#include "tests/test.h"

#include <fcntl.h>
#include <jansson.h>
#include <unistd.h>

TEST(bench_median_and_spread)
{
    bench_samples s = {.ns = {50, 10, 30}, .n = 3};
    CHECK_NEAR(bench_median_ns(&s), 30, 0);
    CHECK_NEAR(bench_spread(&s), 20.0 / 30, 1e-12);
    s = (bench_samples){.ns = {40, 10}, .n = 2};
    CHECK_NEAR(bench_median_ns(&s), 25, 0);
    s = (bench_samples){.ns = {7}, .n = 1};
    CHECK_NEAR(bench_median_ns(&s), 7, 0);
    CHECK_NEAR(bench_spread(&s), 0, 0);
}

/* The short suite measures a moment. */
static void measure_briefly(void)
{
    if (test_brief())
        bench_ceilings_effort =
            (bench_effort){.rounds = 1, .loop_ms = 5, .read_min = 1 << 24, .read_max = 1 << 24};
}

PLAIN_TEST(bench_ceilings_are_plausible)
{
    measure_briefly();
    bench_ceilings c;
    err e = {0};
    CHECK_OK(bench_measure_ceilings(1, &c, &e), e);
    CHECK_EQ(c.n_threads, 1);
    /* Bounds from a small board to more than any core does; instrumented builds are slow. */
    CHECK(c.read_bytes > 1e8 && c.read_bytes < 1e12);
    CHECK(c.f32_flops > 1e7 && c.f32_flops < 1e12);
    CHECK(c.int8_ops > 1e7 && c.int8_ops < 1e13);
}

/* Runs the command with stdout in a file; returns its exit status and the JSON, if it is any. */
static int run_bench(const char *const *argv, json_t **out)
{
    const char *path = test_temp("bench.json");
    int argc = 0, keep = dup(1), fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    measure_briefly();
    while (argv[argc])
        argc++;
    CHECK(fd >= 0 && keep >= 0);
    fflush(stdout);
    dup2(fd, 1);
    int rc = command_bench.run(&command_bench, argc, (char **)argv);
    fflush(stdout);
    dup2(keep, 1);
    close(keep);
    close(fd);
    *out = json_load_file(path, 0, NULL);
    return rc;
}

static double real_of(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

enum { ARGS_MAX = 32 };

/* The report on a model of that kind; more: further arguments. */
static json_t *report(const char *kind, const char *const *more)
{
    AUTO(fidelity_close) fidelity f;
    json_t *root;
    fidelity_open(&f, kind);
    const char *argv[ARGS_MAX] = {"-m", fidelity_write(&f, NULL), "--json"};
    for (int n = 3; *more; n++) {
        CHECK(n < ARGS_MAX - 1);
        argv[n] = *more++;
    }
    CHECK_EQ(run_bench(argv, &root), 0);
    CHECK(root);
    return root;
}

PLAIN_TEST(bench_runs_answers_side_by_side)
{
    json_t *root = report("moe", ARGS("-p", "0", "-n", "6", "-d", "0,5", "-s", "3", "-r", "2", "-t",
                                      "2", "--device", "cpu"));
    const json_t *tests = json_object_get(root, "tests");
    CHECK_EQ(json_array_size(tests), 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *t = json_array_get(tests, i);
        CHECK_EQ(real_of(t, "n_streams"), i % 2 ? 3 : 0);
        CHECK_EQ(real_of(t, "n_gen"), 6);
        CHECK_EQ(real_of(t, "n_depth"), i < 2 ? 0 : 5);
        CHECK_EQ(json_array_size(json_object_get(t, "samples_ns")), 2);
        CHECK(real_of(t, "median_ts") > 0);
    }
    json_decref(root);
}

/* A picture and a sound, with the towers beside the model; a tower's time is a part of each. */
PLAIN_TEST(bench_measures_pictures_and_sounds)
{
    const char *make[] = {"tiny-mmproj-hears", test_temp("mmproj-F32.gguf")};
    CHECK_EQ(command_synth.run(&command_synth, 2, (char **)make), 0);
    json_t *root = report("dense", ARGS("-p", "0", "-n", "0", "--pictures", "70", "--sounds", "2",
                                        "-r", "2", "-t", "1", "--device", "cpu"));
    const json_t *tests = json_object_get(root, "tests");
    CHECK_EQ(json_array_size(tests), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *t = json_array_get(tests, i);
        CHECK_EQ(real_of(t, "n_picture"), i ? 0 : 70);
        CHECK_EQ(real_of(t, "n_seconds"), i ? 2 : 0);
        CHECK(real_of(t, "n_prompt") > 40 && real_of(t, "n_prompt") <= 70);
        CHECK(real_of(t, "tower_ms") > 0 && real_of(t, "tower_ms") * 1e6 < real_of(t, "avg_ns"));
    }
    json_decref(root);
}

/* Prompts that begin alike are kept once. */
PLAIN_TEST(bench_shares_what_prompts_have_in_common)
{
    double used[2];
    for (int k = 0; k < 2; k++) {
        json_t *root = report("moe", ARGS("-p", "0", "-n", "64", "-d", "256", "-s", "3", "-r", "1",
                                          "-t", "1", "--shared", k ? "250" : "0"));
        const json_t *t = json_array_get(json_object_get(root, "tests"), 1);
        CHECK_EQ(real_of(t, "n_shared"), k ? 250 : 0);
        used[k] = real_of(t, "pool_used");
        CHECK_EQ(real_of(t, "pool_shared") > 0, k == 1);
        json_decref(root);
    }
    CHECK_MSG(used[1] < 0.8 * used[0], "%g tokens of %g", used[1], used[0]);
}

PLAIN_TEST(bench_leaves_depths_blank)
{
    json_t *root = report(
        "moe", ARGS("-p", "0", "-n", "2", "-d", "100", "-r", "2", "-t", "1", "--blank-depth"));
    const json_t *t = json_array_get(json_object_get(root, "tests"), 0);
    CHECK_EQ(real_of(t, "n_depth"), 100);
    CHECK(real_of(t, "median_ts") > 0);
    json_decref(root);
}

PLAIN_TEST(bench_reports_every_test_in_json)
{
    static const int want[6][3] = {{16, 0, 0},  {5, 0, 0},  {0, 2, 0},
                                   {16, 0, 40}, {5, 0, 40}, {0, 2, 40}};
    json_t *root = report(
        "dense", ARGS("-p", "16,5", "-n", "2", "-d", "0,40", "-r", "2", "-t", "2", "-c", "8"));
    const json_t *tests = json_object_get(root, "tests");
    CHECK_EQ(json_array_size(tests), 6);
    for (size_t i = 0; i < 6; i++) {
        const json_t *t = json_array_get(tests, i);
        CHECK_EQ(real_of(t, "n_prompt"), want[i][0]);
        CHECK_EQ(real_of(t, "n_gen"), want[i][1]);
        CHECK_EQ(real_of(t, "n_depth"), want[i][2]);
        CHECK_EQ(json_array_size(json_object_get(t, "samples_ns")), 2);
        CHECK(real_of(t, "median_ts") > 0 && real_of(t, "avg_ns") > 0);
    }
    CHECK(real_of(json_object_get(root, "ceilings"), "read_bytes_per_second") > 0);
    CHECK(real_of(json_object_get(json_object_get(root, "model"), "plan"), "total_bytes") > 0);
    json_decref(root);
}

/* With scripted drafts: drafter and checks run, and as many drafts are accepted as asked. */
PLAIN_TEST(bench_scripts_drafts)
{
    json_t *root =
        report("dense", ARGS("-p", "0", "-n", "24", "-d", "9", "-s", "2", "-r", "1", "-t", "1",
                             "--spec", "lookup", "--accept-mean", "2", "--draft-max", "4"));
    const json_t *tests = json_object_get(root, "tests");
    CHECK_EQ(json_array_size(tests), 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *t = json_array_get(tests, i);
        bool spec = i % 4 >= 2;
        CHECK_EQ(real_of(t, "n_streams"), i % 2 ? 2 : 0);
        CHECK_EQ(real_of(t, "n_gen"), 24);
        CHECK(real_of(t, "median_ts") > 0);
        CHECK_EQ(json_is_string(json_object_get(t, "drafter")), spec);
        if (!spec)
            continue;
        /* The last rounds of an answer are cut by its length. */
        CHECK(real_of(t, "tokens_per_pass") > 2.3 && real_of(t, "tokens_per_pass") < 3.1);
        CHECK(real_of(t, "n_rounds") > 0 && real_of(t, "round") > 0 && real_of(t, "speedup") > 0);
        CHECK(real_of(t, "n_accepted") <= real_of(t, "n_drafted"));
        /* The prompt gives the first token of an answer, passes the other 23. Each pass has drafts,
         * except one for an answer's last token. */
        double answers = i % 2 ? 2 : 1, n = 23 * answers, passes = n - real_of(t, "n_accepted");
        CHECK(fabs(real_of(t, "tokens_per_pass") * passes - n) < 1e-6);
        CHECK(passes >= real_of(t, "n_rounds") && passes <= real_of(t, "n_rounds") + answers);
        CHECK(real_of(json_object_get(t, "plain"), "median_ts") > 0);
    }
    json_decref(root);
    root = report("dense", ARGS("-p", "0", "-n", "40", "-r", "1", "-t", "1", "--spec", "lookup",
                                "--accept", "1,1,0.5,0", "--draft-max", "7"));
    const json_t *t = json_array_get(json_object_get(root, "tests"), 1);
    CHECK(real_of(t, "tokens_per_pass") > 2.9 && real_of(t, "tokens_per_pass") < 4.01);
    json_decref(root);
}

TEST(bench_sets_every_op_beside_its_floor)
{
    json_t *root =
        report("moe", ARGS("-p", "16", "-n", "3", "-d", "20", "-r", "2", "-t", "1", "--floors"));
    const json_t *tests = json_object_get(root, "tests");
    for (size_t i = 0; i < 2; i++) {
        const json_t *t = json_array_get(tests, i), *ops = json_object_get(t, "ops");
        double ms = 0, best = 1e300;
        bool attends = false, routes = false;
        for (size_t k = 0; k < 2; k++) {
            double ns = json_number_value(json_array_get(json_object_get(t, "samples_ns"), k));
            best = ns < best ? ns : best;
        }
        for (size_t k = 0; k < json_array_size(ops); k++) {
            const json_t *o = json_array_get(ops, k);
            const char *name = json_string_value(json_object_get(o, "op"));
            ms += real_of(o, "ms");
            if (!strcmp(name, "attend"))
                attends |= real_of(o, "bytes") > 0 && real_of(o, "f32_ops") > 0;
            if (!strcmp(name, "moe_down")) /* of three rows or sixteen, 2 of 8 experts each */
                routes |= real_of(o, "bytes") > 0 && real_of(o, "floor_ms") > 0;
        }
        /* the ops of the fastest repetition, without those that filled the cache before */
        CHECK(ms > 0 && ms * 1e6 <= best);
        CHECK(attends && routes);
    }
    json_decref(root);
}

/* The same of passes with three answers: only those in which all answer are counted. */
TEST(bench_divides_a_pass_of_answers_into_reading_and_a_tail)
{
    json_t *root = report("moe", ARGS("-p", "0", "-n", "5", "-s", "3", "-d", "0,20", "-r", "2", "-t",
                                      "1", "--tail"));
    const json_t *tests = json_object_get(root, "tests");
    const double active = real_of(json_object_get(root, "model"), "active_bytes_per_token");
    double keys[2] = {0};
    CHECK_EQ(json_array_size(tests), 4);
    for (size_t i = 0; i < 2; i++) {
        const json_t *test = json_array_get(tests, 2 * i + 1), *t = json_object_get(test, "tail");
        const json_t *ops = json_object_get(t, "ops");
        double ms = 0;
        CHECK_EQ(real_of(test, "n_streams"), 3);
        CHECK(json_array_size(ops) > 8);
        for (size_t k = 0; k < json_array_size(ops); k++) {
            const json_t *o = json_array_get(ops, k);
            const double calls = real_of(o, "calls");
            CHECK_NEAR(calls, floor(calls + 0.5), 1e-9); /* every pass has the same */
            ms += real_of(o, "ms");
            if (!strcmp(json_string_value(json_object_get(o, "op")), "attend"))
                keys[i] += real_of(o, "bytes");
        }
        CHECK(real_of(t, "bytes") > 0.999 * active && real_of(t, "bytes") < 3 * active);
        CHECK_MSG(ms <= real_of(t, "token_ms") + 1e-9, "ops take %g ms of %g", ms,
                  real_of(t, "token_ms"));
        CHECK(real_of(t, "token_ms") <= real_of(test, "avg_ns") * 1e-6 / 5 + 1e-9);
    }
    CHECK_MSG(keys[0] > 0 && keys[1] > 3 * keys[0], "%g and %g bytes of keys", keys[0], keys[1]);
    json_decref(root);
}

/* A token's time is reading and a tail, and the tail is that of its parts. */
TEST(bench_divides_a_token_into_reading_and_a_tail)
{
    double bytes[2], active = 0;
    json_t *root =
        report("moe", ARGS("-p", "4", "-n", "3", "-d", "0,20", "-r", "2", "-t", "1", "--tail"));
    const json_t *tests = json_object_get(root, "tests");
    active = real_of(json_object_get(root, "model"), "active_bytes_per_token");
    CHECK_EQ(json_array_size(tests), 4);
    for (size_t i = 0; i < 4; i++) {
        const json_t *t = json_object_get(json_array_get(tests, i), "tail");
        const json_t *ops = json_object_get(t, "ops");
        double beyond = real_of(t, "between_ms"), read = 0;
        CHECK_EQ(t != NULL, i % 2);
        if (!t)
            continue;
        for (size_t k = 0; k < json_array_size(ops); k++) {
            beyond += real_of(json_array_get(ops, k), "beyond_ms");
            read += real_of(json_array_get(ops, k), "bytes");
        }
        bytes[i / 2] = real_of(t, "bytes");
        CHECK(json_array_size(ops) > 8 && real_of(t, "between_ms") > 0);
        CHECK_NEAR(read, bytes[i / 2], 1e-6 * read);
        CHECK_NEAR(real_of(t, "read_ms"), 1e3 * read / real_of(t, "read_bytes_per_second"), 1e-9);
        CHECK_NEAR(real_of(t, "token_ms"), real_of(t, "read_ms") + real_of(t, "tail_ms"), 1e-9);
        CHECK_NEAR(real_of(t, "tail_ms"), beyond, 1e-9);
        CHECK(real_of(t, "token_ms") <=
              real_of(json_array_get(tests, i), "avg_ns") * 1e-6 / 3 + 1e-9);
    }
    /* A row of the table of embeddings is not counted; a few keys are. */
    CHECK_MSG(bytes[1] > bytes[0] && fabs(bytes[0] - active) < 1e-3 * active,
              "%g and %g bytes of %g", bytes[0], bytes[1], active);
    json_decref(root);
}

PLAIN_TEST(bench_compares_with_another_program)
{
    char other[1024];
    snprintf(other, sizeof other, "%s", test_path("carat"));
    if (access(other, X_OK))
        test_skip("the program carat has not been built");
    json_t *root = report("dense", ARGS("-p", "8", "-n", "0", "-r", "1", "--vs", other));
    const json_t *t = json_array_get(json_object_get(root, "tests"), 0);
    CHECK(real_of(t, "ratio") > 0);
    CHECK(real_of(json_object_get(t, "other"), "avg_ts") > 0);
    json_decref(root);
}

TEST(bench_refuses_what_makes_no_sense)
{
    AUTO(fidelity_close) fidelity f;
    json_t *root;
    fidelity_open(&f, "dense");
    const char *model = fidelity_write(&f, NULL);
    const char *bad[][9] = {
        /* short runs: --vs runs carat first */
        {"-m", model, "-p", "5,x", NULL},
        {"-m", model, "-p", "-5", NULL},
        {"-m", model, "-p", "0", "-n", "0", NULL},
        {"-m", model, "-p", "", NULL},
        {"-m", model, "-p", "99999999", NULL},
        {"--vs", "/bin/true", NULL},
        {"-m", "/nonexistent", "-p", "5", NULL},
        {"-m", model, "-p", "5", "-n", "2", "--vs", "/nonexistent", NULL},
        {"-m", model, "-p", "5", "-n", "2", "--vs", "/bin/false", NULL},
        {"-m", model, "-d", "5000", NULL},
        {"-m", model, "-p", "0", "-n", "2", "--tail", "--floors", NULL},
        {"-m", model, "-p", "5", "--pictures", "69", NULL},
        {"-m", model, "-p", "5", "--pictures", "70", NULL}, /* no tower */
        {"-m", model, "-p", "5", "--sounds", "31", NULL},
        {"-m", model, "-p", "5", "--sounds", "1", NULL}, /* no tower */
        {"-m", model, "-p", "5", "-n", "2", "--vs", "/bin/true", NULL},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int rc = run_bench(bad[i], &root);
        CHECK_MSG(rc == 1 || rc == 2, "case %zu ends with %d", i, rc);
        json_decref(root);
    }
    CHECK_EQ(run_bench(ARGS("-m", model, "-p", "0", "-n", "4", "-s", "65"), &root), 2);
    json_decref(root);
    /* a pass of more rows than these answers have tokens */
    CHECK_EQ(run_bench(ARGS("-m", model, "-p", "0", "-n", "4", "-s", "64", "-r", "1"), &root), 0);
    json_decref(root);
    const char *wrong[][8] = {
        {"--accept", "0.5", NULL},
        {"--accept-mean", "2", NULL},
        {"--draft-max", "3", NULL},
        {"--spec", "lookup", "--accept", "", NULL},
        {"--spec", "lookup", "--accept", "0.5,", NULL},
        {"--spec", "lookup", "--accept", "1.5", NULL},
        {"--spec", "lookup", "--accept", "nan", NULL},
        {"--spec", "lookup", "--accept", "0.5", "--accept-mean", "2", NULL},
        {"--spec", "lookup", "--accept-mean", "64", NULL},
        {"--spec", "lookup", "--draft-max", "64", NULL},
        {"--spec", "lookup", "-n", "1", "-p", "0", NULL},
        {"--spec", "lookup", "--tail", NULL},
        {"--spec", "lookup", "--floors", NULL},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const char *argv[12] = {"-m", model};
        for (int n = 0; wrong[i][n]; n++)
            argv[2 + n] = wrong[i][n];
        CHECK_MSG(run_bench(argv, &root) == 2, "case %zu", i);
    }
    CHECK_EQ(run_bench(ARGS("-m", model, "-p", "0", "-n", "4", "--spec", "/nonexistent"), &root),
             1);
}
