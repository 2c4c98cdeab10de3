/* cli_test.c - the program as users run it: right use, wrong use, faults. */
#include "apps/hub/place.h"
#include "tests/spawn.h"
#include "tests/test.h"
#include "tests/toy_model.h"
#include "base/map.h"
#include "base/mem.h"

#include <glob.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Runs carat; checks the exit status and that stderr contains `says` (NULL: no check). */
static void run_and_check(const spawn_options *o, int code, const char *says,
                          const char *const *args)
{
    AUTO(spawned_free) spawned r;
    spawn_carat(&r, o, args);
    CHECK_MSG(r.code == code, "exit status %d, expected %d; stderr: %s", r.code, code,
              str_text(&r.err));
    CHECK_MSG(!says || strstr(str_text(&r.err), says), "stderr is \"%s\", expected \"%s\" in it",
              str_text(&r.err), says);
}

/* A failure prints one line that begins with "carat: " and nothing on stdout. */
static void check_refusal(const char *says, const char *const *args)
{
    AUTO(spawned_free) spawned r;
    spawn_carat(&r, NULL, args);
    CHECK_MSG(r.code == 1, "exit status %d; stderr: %s", r.code, str_text(&r.err));
    CHECK_EQ(r.out.n, 0);
    CHECK_MSG(!strncmp(str_text(&r.err), "carat: ", 7) && strstr(r.err.at, says) &&
                  strchr(r.err.at, '\n') == r.err.at + r.err.n - 1,
              "stderr is \"%s\", expected one sentence with \"%s\"", str_text(&r.err), says);
}

static const char *write_test_file(const char *name, const void *bytes, size_t n)
{
    const char *path = test_temp(name);
    test_write(path, bytes, n);
    return path;
}

static const char *write_ids(int32_t n)
{
    int32_t ids[1000];
    for (int32_t i = 0; i < n; i++)
        ids[i] = 5 + i * 7 % 200;
    return write_test_file("ids.bin", ids, (size_t)n * sizeof *ids);
}

/* ---- Wrong use ------------------------------------------------------------------------- */

TEST(cli_wrong_use_is_exit_2_and_points_to_help)
{
    run_and_check(NULL, 2, "Usage", (const char *const[]){NULL});
    run_and_check(NULL, 2, "no command 'frobnicate'", ARGS("frobnicate"));
    run_and_check(NULL, 2, "unknown option --frob", ARGS("run", "--frob"));
    run_and_check(NULL, 2, "unknown option -Z", ARGS("run", "-Z"));
    run_and_check(NULL, 2, "needs a value", ARGS("run", "-m"));
    run_and_check(NULL, 2, "expected a number from 0 to 100", ARGS("run", "--temp", "hot", "hi"));
    run_and_check(NULL, 2, "expected a whole number", ARGS("run", "--top-k=1.5", "hi"));
    run_and_check(NULL, 2, "--think yes: expected true, false, low, medium, high or max",
                  ARGS("run", "--think=yes", "hi"));
    run_and_check(NULL, 2, "greedy=yes: expected true or false", ARGS("run", "--greedy=yes", "hi"));
    run_and_check(NULL, 2, "--effort huge: expected minimal",
                  ARGS("run", "--effort", "huge", "hi"));
    run_and_check(NULL, 2, "--result has no effect without --tools",
                  ARGS("run", "--result", "18", "hi"));
    run_and_check(NULL, 2, "the prompt is empty", ARGS("run"));
    run_and_check(NULL, 2, "terminal", ARGS("run", "--interactive"));
    run_and_check(NULL, 2, "needs --model", ARGS("logits", "-m", "x"));
    run_and_check(NULL, 2, "exclude each other",
                  ARGS("logits", "-m", "x", "--tokens", "x", "-o", "x", "--all", "--last"));
    run_and_check(NULL, 0, NULL, ARGS("help"));
    run_and_check(NULL, 0, NULL, ARGS("help", "help"));
    run_and_check(NULL, 0, NULL, ARGS("help", "version"));
    run_and_check(NULL, 0, NULL, ARGS("help", "--help"));
    run_and_check(NULL, 0, NULL, ARGS("run", "--help"));
    run_and_check(NULL, 0, NULL, ARGS("daemon", "--help"));
    run_and_check(NULL, 2, "did you mean --kv-type", ARGS("run", "--kv", "f16", "hi"));
    run_and_check(NULL, 0, NULL, ARGS("--version"));
    run_and_check(NULL, 0, NULL, ARGS("-v"));
    /* What people type from habit with other programs. */
    run_and_check(NULL, 2, "api/ps", ARGS("ps"));
    run_and_check(NULL, 2, "models/unload", ARGS("stop", "x"));
    run_and_check(NULL, 1, "Modelfile: cannot open", ARGS("create", "x"));
    run_and_check(NULL, 2, "carat run -m MODEL", ARGS("-m", "x"));
    run_and_check(NULL, 2, "carat run answers", ARGS("What is it?"));
    run_and_check(NULL, 2, "is a directory and no model", ARGS("run", "/tmp"));
    run_and_check(NULL, 2, "is a directory and no model", ARGS("run", "/tmp", "hello"));
    run_and_check(NULL, 2, "does not end in .gguf", ARGS("run", "/proc/self/status"));
    run_and_check(NULL, 1, "-p names a file", ARGS("run", "-p", "hello"));
}

TEST(cli_files_that_are_not_there_or_not_models)
{
    const char *junk = write_test_file("junk.gguf", "GGUFnot really", 14);
    const char *empty = write_test_file("empty.gguf", "", 0);
    check_refusal("nowhere.gguf", ARGS("run", "-m", "/nowhere.gguf", "hi"));
    check_refusal("a directory, not a file", ARGS("run", "-m", "/tmp", "hi"));
    check_refusal("junk.gguf", ARGS("run", "-m", junk, "hi"));
    check_refusal("empty", ARGS("run", "-m", empty, "hi"));
    check_refusal("/nowhere.txt", ARGS("run", "-m", junk, "-p", "/nowhere.txt"));
    check_refusal("/dev/null: not a regular file", ARGS("run", "-m", "/dev/null", "hi"));
    check_refusal("/nowhere.bin",
                  ARGS("logits", "-m", junk, "--tokens", "/nowhere.bin", "-o", "/dev/null"));
}

TEST(cli_prompts_that_cannot_be)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096, .no_chat = true});
    check_refusal("not valid UTF-8 at byte 3", ARGS("run", "-m", m, "abc\xff\xfe"));
    check_refusal("and the context holds 64",
                  ARGS("run", "-q", "-m", m, "--raw", "-c", "64",
                       "a prompt of more than sixty-four tokens, since this vocabulary spells "
                       "nearly every letter as a token of its own"));
    check_refusal("made for at most 4096", ARGS("run", "-m", m, "--raw", "-c", "5000", "hi"));
    check_refusal("'f12' is no type", ARGS("run", "-m", m, "--raw", "--kv-k", "f12", "hi"));
    check_refusal("'f12' is no type", ARGS("run", "-m", m, "--raw", "--kv-type", "f12", "hi"));
    check_refusal("expected SPEC=TYPE", ARGS("run", "-m", m, "--raw", "--kv-layer", "swa", "hi"));
    check_refusal("layers that keep keys",
                  ARGS("run", "-m", m, "--raw", "--kv-layer", "600=q8_0", "hi"));
    check_refusal("on, off or auto", ARGS("run", "-m", m, "--raw", "--kv-single", "no", "hi"));
    check_refusal("has heads of", ARGS("run", "-m", m, "--raw", "--kv-type", "tq3_0", "hi"));
    check_refusal("nowhere.json",
                  ARGS("run", "-m", m, "--raw", "--json-schema", "/nowhere.json", "hi"));
    const char *bad = write_test_file("bad.json", "[{]", 3);
    run_and_check(NULL, 1, "not valid JSON: line 1, column 3",
                  ARGS("run", "-m", m, "--tools", bad, "hi"));
    run_and_check(&(spawn_options){.in = ""}, 2, "the prompt is empty", ARGS("run", "-m", m));
    run_and_check(&(spawn_options){.no_in = true}, 2, "the prompt is empty", ARGS("run", "-m", m));
    run_and_check(&(spawn_options){.no_in = true}, 1, "stdin",
                  ARGS("run", "-m", m, "--raw", "-p", "-", "hi"));
    run_and_check(&(spawn_options){.no_in = true}, 0, NULL,
                  ARGS("run", "-q", "-m", m, "--raw", "--seed", "1", "-n", "3", "hi"));
    /* In raw mode a prompt need not be UTF-8. */
    run_and_check(NULL, 0, NULL,
                  ARGS("run", "-q", "-m", m, "--raw", "--seed", "1", "-n", "3", "abc\xff\xfe"));
}

TEST(cli_a_model_name_in_front_of_the_prompt_is_the_model)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    const char *says = "there is no model 'gemma9' here";
    run_and_check(NULL, 2, says, ARGS("run", "--isa", "none", "gemma9", "hi"));
    run_and_check(NULL, 2, "there is no model 'gpt-os:20b' here; did you mean gpt-oss:20b?",
                  ARGS("run", "--isa", "none", "gpt-os:20b", "hi"));
    setenv("HF_HUB_OFFLINE", "1", 1); /* a short name would be pulled */
    run_and_check(NULL, 1, "HF_HUB_OFFLINE is set, so nothing is pulled",
                  ARGS("run", "gemma4", "hi"));
    unsetenv("HF_HUB_OFFLINE");
    run_and_check(NULL, 2, "carat pull google/gemma-4-E2B:Q4_K_M fetches it",
                  ARGS("run", "--isa", "none", "google/gemma-4-E2B:Q4_K_M"));
    run_and_check(NULL, 2, "model.gguf: there is no such file",
                  ARGS("run", "--isa", "none", "model.gguf", "hi"));
    run_and_check(NULL, 0, NULL, ARGS("run", "-q", "-n", "1", "--greedy", m, "hi"));
    run_and_check(NULL, 1, "is a file but its name",
                  ARGS("run", "--isa", "none", test_path("README.md"), "hi"));
    spawned r;
    spawn_carat(&r, NULL, ARGS("run", "--isa", "none", "gemma", "is", "and/or", "4", "words"));
    CHECK(!strstr(str_text(&r.err), "prompt"));
    spawned_free(&r);
    spawn_carat(&r, NULL, ARGS("run", "--isa", "none", "-m", m, "gemma4", "hi"));
    CHECK(!strstr(str_text(&r.err), "prompt"));
    spawned_free(&r);
    run_and_check(NULL, 1, "none", ARGS("run", "--isa", "none", "--", "gemma4", "hi"));
}

TEST(cli_context_larger_than_memory_names_both_numbers)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 1 << 24});
    AUTO(spawned_free) spawned r;
    spawn_carat(&r, NULL,
                ARGS("run", "-m", m, "--raw", "-c", "16777216", "--chunk", "16777216", "hi"));
    if (r.code == 0)
        test_skip("this machine has the memory for it");
    CHECK_EQ(r.code, 1);
    CHECK(strstr(str_text(&r.err), "needs") && strstr(r.err.at, "GiB are available"));
}

/* ---- Right use ------------------------------------------------------------------------- */

TEST(cli_answers_go_to_stdout_and_nothing_else_does)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    AUTO(spawned_free) spawned a, b, c;
    const char *const args[] = {"run",      "-m",           m,       "--raw", "-n", "50",
                                "--greedy", "--ignore-eog", "Hello", NULL};
    spawn_carat(&a, NULL, args);
    CHECK_EQ(a.code, 0);
    CHECK(a.out.n > 1 && a.out.at[a.out.n - 1] == '\n');
    CHECK(strstr(str_text(&a.err), "50 tokens"));
    /* The same prompt through stdin and from a file. */
    spawn_carat(&b, &(spawn_options){.in = "Hello"},
                ARGS("run", "-q", "-m", m, "--raw", "-n", "50", "--greedy", "--ignore-eog"));
    CHECK_EQ(b.code, 0);
    CHECK_EQ(b.err.n, 0);
    CHECK_STR(str_text(&a.out), str_text(&b.out));
    const char *file = write_test_file("prompt.txt", "Hel", 3);
    spawn_carat(&c, NULL,
                ARGS("run", "-q", "-m", m, "--raw", "-n", "50", "--greedy", "--ignore-eog", "-p",
                     file, "lo"));
    CHECK_EQ(c.code, 0);
    CHECK_STR(str_text(&a.out), str_text(&c.out));
}

PLAIN_TEST(cli_a_seed_repeats_an_answer)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    spawned r[3];
    for (int i = 0; i < 3; i++)
        spawn_carat(&r[i], NULL,
                    ARGS("run", "-q", "-m", m, "--raw", "-n", "40", "--ignore-eog", "--seed",
                         i < 2 ? "7" : "8", "-t", i ? "2" : "1", "Hello"));
    CHECK(r[0].out.n > 1);
    CHECK(r[0].out.n == r[1].out.n && !memcmp(r[0].out.at, r[1].out.at, r[0].out.n));
    CHECK(r[0].out.n != r[2].out.n || memcmp(r[0].out.at, r[2].out.at, r[0].out.n));
    for (int i = 0; i < 3; i++)
        spawned_free(&r[i]);
}

/* The ids of the sampled tokens, from a run with --json-events. */
static int sampled(const char *const *args, int32_t ids[64])
{
    AUTO(spawned_free) spawned r;
    spawn_carat(&r, NULL, args);
    CHECK_MSG(r.code == 0, "%s", str_text(&r.err));
    int n = 0;
    for (char *at = r.out.at; (at = strstr(at, "\"id\":")) && n < 64; at += 5)
        ids[n++] = (int32_t)strtol(at + 5, NULL, 10);
    return n;
}

TEST(cli_biases_and_penalties_reach_the_sampler)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    int32_t plain[64], other[64];
    char only[32], ban[32];
#define RUN_TOY "run", "-m", m, "--raw", "-n", "30", "--greedy", "--ignore-eog", "--json-events"
    CHECK_EQ(sampled(ARGS(RUN_TOY, "Hello"), plain), 30);
    snprintf(only, sizeof only, "%d=1e30", plain[3]);
    CHECK_EQ(sampled(ARGS(RUN_TOY, "--logit-bias", only, "Hello"), other), 30);
    for (int i = 0; i < 30; i++)
        CHECK_EQ(other[i], plain[3]);
    snprintf(ban, sizeof ban, "%d=-inf", plain[0]);
    snprintf(only, sizeof only, "%d=-inf", plain[3]);
    CHECK_EQ(sampled(ARGS(RUN_TOY, "--logit-bias", ban, "--logit-bias", only, "Hello"), other), 30);
    for (int i = 0; i < 30; i++)
        CHECK(other[i] != plain[0] && other[i] != plain[3]);
    /* The penalty is larger than every logit, so no token occurs twice. */
    const char *const penalty[] = {"--presence-penalty", "--frequency-penalty"};
    for (int k = 0; k < 2; k++) {
        CHECK_EQ(sampled(ARGS(RUN_TOY, penalty[k], "100", "Hello"), other), 30);
        for (int i = 0; i < 30; i++)
            for (int j = 0; j < i; j++)
                CHECK(other[i] != other[j]);
    }
#undef RUN_TOY
    check_refusal("expected ID=X with an id", ARGS("run", "-m", m, "--logit-bias", "9999=1", "hi"));
    check_refusal("expected ID=X with an id", ARGS("run", "-m", m, "--logit-bias", "7", "hi"));
    check_refusal("with a number X", ARGS("run", "-m", m, "--logit-bias", "7=nan", "hi"));
    check_refusal("with a number X", ARGS("run", "-m", m, "--logit-bias", "7=1x", "hi"));
    run_and_check(NULL, 2, "needs a value", ARGS("run", "-m", m, "hi", "--stop"));
    const char *many[2 * 65 + 4] = {"run", "hi"};
    for (int i = 0; i < 65; i++) {
        many[2 + 2 * i] = "--stop";
        many[3 + 2 * i] = "x";
    }
    run_and_check(NULL, 2, "given too often", many);
}

TEST(cli_events_are_lines_of_json)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    AUTO(spawned_free) spawned r;
    spawn_carat(&r, NULL,
                ARGS("run", "-m", m, "--raw", "--seed", "1", "-n", "20", "--ignore-eog",
                     "--json-events", "Hi"));
    CHECK_EQ(r.code, 0);
    int n_tokens = 0;
    for (char *line = strtok(r.out.at, "\n"); line; line = strtok(NULL, "\n")) {
        CHECK_MSG(!strncmp(line, "{\"event\":\"", 10) && line[strlen(line) - 1] == '}', "%s", line);
        n_tokens += !strncmp(line, "{\"event\":\"token\"", 16);
    }
    CHECK_EQ(n_tokens, 20);
}

PLAIN_TEST(cli_logits_are_the_same_in_any_chunks_and_whole_or_not_at_all)
{
    const char *m = toy_model_write(NULL), *ids = write_ids(100);
    const char *a = test_temp("a.f32"), *b = test_temp("b.f32"), *c = test_temp("c.f32");
    const char *last = test_temp("last.f32");
    file_map fa, fb, fl;
    err e = {0};
    run_and_check(NULL, 0, "100 tokens", ARGS("logits", "-m", m, "--tokens", ids, "-o", a));
    run_and_check(NULL, 0, NULL,
                  ARGS("logits", "-m", m, "--tokens", ids, "-o", b, "--chunk", "7", "-t", "2"));
    run_and_check(NULL, 0, NULL, ARGS("logits", "-m", m, "--tokens", ids, "-o", last, "--last"));
    CHECK_OK(file_map_open(&fa, a, false, NULL, NULL, &e), e);
    CHECK_OK(file_map_open(&fb, b, false, NULL, NULL, &e), e);
    CHECK_OK(file_map_open(&fl, last, false, NULL, NULL, &e), e);
    CHECK(fa.n_bytes == fb.n_bytes && fa.n_bytes % 400 == 0);
    CHECK(!memcmp(fa.bytes, fb.bytes, fa.n_bytes));
    CHECK_EQ(fl.n_bytes, fa.n_bytes / 100);
    CHECK(!memcmp(fl.bytes, fa.bytes + fa.n_bytes - fl.n_bytes, fl.n_bytes));
    file_map_close(&fa);
    file_map_close(&fb);
    file_map_close(&fl);

    check_refusal("/dev/full: cannot write",
                  ARGS("logits", "-m", m, "--tokens", ids, "-o", "/dev/full"));
    check_refusal("cannot create",
                  ARGS("logits", "-m", m, "--tokens", ids, "-o", "/nowhere/at/all.f32"));
    check_refusal(
        "neither a list of 4-byte ids",
        ARGS("logits", "-m", m, "--tokens", write_test_file("odd.bin", "1234x", 5), "-o", c));
    int32_t far[2] = {1, 1 << 30};
    check_refusal("token 1 of the prompt is 1073741824",
                  ARGS("logits", "-m", m, "--tokens", write_test_file("far.bin", far, 8), "-o", c));
    CHECK(access(c, F_OK) != 0); /* a failure leaves no file */
}

TEST(cli_nan_weights_are_named)
{
    const char *m = toy_model_write(&(toy_model_file){.nan_tensor = "output_norm.weight"});
    check_refusal("NaN", ARGS("run", "-q", "-m", m, "--raw", "hi"));
}

/* ---- Faults of the system ------------------------------------------------------------------ */

TEST(cli_stdout_full_or_closed_is_an_error_not_a_silence)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    const char *const args[] = {"run", "-q", "-m",           m,    "--raw", "--seed", "1",
                                "-n",  "20", "--ignore-eog", "hi", NULL};
    run_and_check(&(spawn_options){.out_path = "/dev/full"}, 1, "cannot write", args);
    run_and_check(&(spawn_options){.out_path = ""}, 1, "cannot write", args);
}

TEST(cli_help_that_cannot_be_written_is_an_error)
{
    const spawn_options full = {.out_path = "/dev/full"};
    run_and_check(NULL, 2, "nothing else", ARGS("version", "--license"));
    run_and_check(&full, 1, "cannot write", ARGS("version"));
    run_and_check(&full, 1, "cannot write", ARGS("version", "--licences"));
    run_and_check(&full, 1, "cannot write", ARGS("help"));
    run_and_check(&full, 1, "cannot write", ARGS("help", "run"));
    run_and_check(&full, 1, "cannot write", ARGS("run", "--help"));
    run_and_check(&full, 1, "cannot write", ARGS("--man"));
}

TEST(cli_a_limit_on_file_sizes_leaves_no_half_file)
{
    const char *path = test_temp("limited.gguf");
    struct rlimit small = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
    char found[600];
    AUTO(globfree) glob_t g;
    CHECK(!setrlimit(RLIMIT_FSIZE, &small));
    check_refusal("limited.gguf: cannot write", ARGS("synth", "tiny-all", path));
    snprintf(found, sizeof found, "%s*", path);
    CHECK_EQ(glob(found, 0, NULL, &g), GLOB_NOMATCH);
}

TEST(cli_a_conversation_that_cannot_be_kept_is_said)
{
    char text[6000];
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 8192});
    struct rlimit small = {.rlim_cur = 1000, .rlim_max = 1000};
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    CHECK(!setrlimit(RLIMIT_FSIZE, &small));
    run_and_check(NULL, 0, "kept conversations: ",
                  ARGS("run", "-m", m, "--device", "cpu", "--kv-cache-dir", test_temp("kept"), "-n",
                       "1", text));
}

PLAIN_TEST(cli_a_bench_that_is_interrupted_ends_with_130)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 1 << 20});
    run_and_check(&(spawn_options){.signal = SIGINT}, 130, NULL,
                  ARGS("bench", "-m", m, "-p", "0", "-n", "30000", "-t", "1"));
}

PLAIN_TEST(cli_a_reader_that_leaves_ends_it_quietly)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 1 << 20});
    run_and_check(
        &(spawn_options){.close_early = true}, 128 + SIGPIPE, NULL,
        ARGS("run", "-q", "-m", m, "--raw", "--seed", "1", "-c", "131072", "--ignore-eog", "hi"));
}

TEST(cli_interrupt_ends_the_answer_with_130)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 1 << 20});
    AUTO(spawned_free) spawned r;
    spawn_carat(&r, &(spawn_options){.signal = SIGINT},
                ARGS("run", "-m", m, "--raw", "--seed", "1", "-c", "131072", "--ignore-eog", "hi"));
    CHECK_EQ(r.code, 130);
    CHECK(r.out.n && r.out.at[r.out.n - 1] == '\n');
    CHECK(strstr(str_text(&r.err), "cancelled"));
}

/* The grammar allows one text only, so every instruction set writes the same bytes: a window title,
 * colours, a C1 control, a delete and a bell. */
PLAIN_TEST(cli_model_text_cannot_drive_the_terminal)
{
    static const char rule[] = "root ::= \"a\\x1b]0;owned\\x07b\\x1b[31mc\\x9bd\\x7f\\x08e\\n\"\n";
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 1 << 16});
    const char *grammar = write_test_file("escapes.gbnf", rule, sizeof rule - 1);
    const char *const args[] = {"run", "-q",        "-m",    m,    "--raw", "-n",
                                "100", "--grammar", grammar, "hi", NULL};
    AUTO(spawned_free) spawned tty, pipe;
    spawn_carat(&pipe, NULL, args);
    CHECK_STR(str_text(&pipe.out), "a\x1b]0;owned\x07"
                                   "b\x1b[31mc\xc2\x9b"
                                   "d\x7f\x08"
                                   "e\n");
    spawn_carat(&tty, &(spawn_options){.out_tty = true}, args);
    CHECK_EQ(tty.code, 0);
    CHECK(strstr(tty.out.at, "^["));
    for (size_t i = 0; i < tty.out.n; i++) {
        unsigned char c = (unsigned char)tty.out.at[i];
        CHECK_MSG((c >= 0x20 && c != 0x7f) || c == '\n' || c == '\r' || c == '\t',
                  "byte %zu is %02x", i, c);
        CHECK(!(c == 0xc2 && i + 1 < tty.out.n && (unsigned char)tty.out.at[i + 1] < 0xa0));
    }
}

/* The prompt tokens that `carat run` reports. */
static int prompt_tokens(const char *const *args)
{
    AUTO(spawned_free) spawned r;
    int n = 0;
    spawn_carat(&r, NULL, args);
    CHECK_MSG(r.code == 0, "%s", str_text(&r.err));
    const char *at = strstr(str_text(&r.err), "[prompt ");
    CHECK(at && sscanf(at, "[prompt %d", &n) == 1);
    return n;
}

TEST(cli_keeps_thoughts_of_tool_turns_where_it_is_asked_to)
{
    static const char talk[] =
        "[{\"role\":\"user\",\"content\":\"Hi\"},"
        "{\"role\":\"assistant\",\"reasoning_content\":\"Look it "
        "up.\",\"tool_calls\":[{\"id\":\"a\","
        "\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"1\"},"
        "{\"role\":\"assistant\",\"content\":\"One.\"}]";
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 1 << 16});
    const char *file = write_test_file("talk.json", talk, sizeof talk - 1);
    int plain = prompt_tokens(ARGS("run", "-m", m, "--messages", file, "-n", "1", "And?"));
    int kept = prompt_tokens(
        ARGS("run", "-m", m, "--messages", file, "-n", "1", "--preserve-thinking", "And?"));
    CHECK_MSG(kept > plain, "%d prompt tokens with the thought, %d without", kept, plain);
}

/* A drafter changes what stderr says, and nothing of the answer. */
TEST(cli_drafts_leave_the_answer_alone)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 1 << 16});
    static const char *const modes[] = {"none", "lookup", "auto"};
    spawned r[3];
    for (int i = 0; i < 3; i++) {
        spawn_carat(&r[i], NULL,
                    ARGS("run", "-m", m, "--draft", modes[i], "--spec-trace", "-v", "-n", "60",
                         "--greedy", "--ignore-eog", "--raw", "ab ab ab ab ab ab ab ab"));
        CHECK_MSG(r[i].code == 0, "%s", str_text(&r[i].err));
        CHECK_STR(str_text(&r[i].out), str_text(&r[0].out));
        CHECK_MSG(strstr(str_text(&r[i].err), i ? "drafter lookup: " : "drafter none"), "%s",
                  str_text(&r[i].err));
    }
    for (int i = 0; i < 3; i++)
        spawned_free(&r[i]);
    run_and_check(NULL, 1, "/nonexistent", ARGS("run", "-m", m, "--draft", "/nonexistent", "hi"));
    run_and_check(NULL, 2, "--draft-max", ARGS("run", "-m", m, "--draft-max", "64", "hi"));
    run_and_check(NULL, 2, "--draft-tree", ARGS("run", "-m", m, "--draft-tree", "-2", "hi"));
}

/* CARAT_ISA chooses the instruction set if --isa does not. */
TEST(cli_environment_pins_the_instruction_set)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 1 << 16});
    const char *const args[] = {"run", "-m", m, "--device", "cpu", "-v", "-n", "1", "hi", NULL};
    const char *const named[] = {"run", "-m", m, "-v", "-n", "1", "--isa", "portable", "hi", NULL};
    run_and_check(&(spawn_options){.env = "CARAT_ISA=portable"}, 0, "cpu (portable", args);
    run_and_check(&(spawn_options){.env = "CARAT_ISA=mmx"}, 1,
                  "carat: CARAT_ISA: instruction set mmx: expected ", args);
    run_and_check(&(spawn_options){.env = "CARAT_ISA=mmx"}, 0, "cpu (portable", named);
    CHECK(!setenv("CARAT_ISA", "", 1)); /* an empty value counts as unset */
    run_and_check(NULL, 0, "cpu (", args);
}

/* In Turkish the capital of i is another letter than I. */
TEST(cli_words_are_those_of_no_language)
{
    char line[400];
    const char *dir = test_temp("locales");
    CHECK(!mkdir(dir, 0700) && !setenv("LOCPATH", dir, 1));
    CHECK(!setenv("LSAN_OPTIONS", "detect_leaks=0", 1)); /* setlocale of glibc 2.36 leaks its paths */
    snprintf(line, sizeof line, "localedef -i tr_TR -f UTF-8 '%s/tr_TR.UTF-8' >/dev/null 2>&1",
             dir);
    if (system(line))
        test_skip("localedef cannot make a Turkish locale here");
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    run_and_check(&(spawn_options){.env = "LC_ALL=tr_TR.UTF-8"}, 0, NULL,
                  ARGS("inspect", "--gpu", "24GIB", m));
}

TEST(cli_verbose_says_how_many_tokens_a_pass_has)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    run_and_check(NULL, 0, "a context of 512 tokens, prompts in chunks of 40",
                  ARGS("run", "-m", m, "--device", "cpu", "-v", "--ctx", "512", "--chunk", "40",
                       "-n", "1", "hi"));
}

/* Names are escaped in pipes too, because the reader of a report may print it. The last use is
   answered by the bundled model, and a pipe takes an answer as it is. */
TEST(cli_names_cannot_drive_the_terminal)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    const char *evil = test_temp("\x1b]0;title\x07\xc2\x9b\xe2\x80\xae.gguf");
    CHECK(!symlink(m, evil));
    const char *const *const uses[] = {ARGS("\x1b[2J"),
                                       ARGS("run", "--\x1b[2J"),
                                       ARGS("run", "--top-k=\x1b[2J\xc2\x9b", "hi"),
                                       ARGS("inspect", evil),
                                       ARGS("inspect", "--json", evil),
                                       ARGS("run", "-q", "-m", evil, "--kv-type", "\x1b", "hi"),
                                       ARGS("run", "-n", "1", "\xe2\x80\xae/gemma4", "hi")};
    const size_t n = sizeof uses / sizeof *uses;
    for (size_t i = 0; i < n; i++) {
        AUTO(spawned_free) spawned r;
        spawn_carat(&r, NULL, uses[i]);
        for (int k = i + 1 == n; k < 2; k++) {
            const char *text = str_text(k ? &r.err : &r.out);
            CHECK_MSG(!strpbrk(text, "\x1b\x07") && !strstr(text, "\xc2\x9b") &&
                          !strstr(text, "\xe2\x80\xae"),
                      "use %zu: %s", i, text);
        }
    }
}

TEST(cli_termination_ends_a_conversation_and_an_answer)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 1 << 20});
    char state[512];
    static const int signals[] = {SIGTERM, SIGHUP};
    snprintf(state, sizeof state, "XDG_STATE_HOME=%s", test_temp("state"));
    for (int i = 0; i < 2; i++) {
        terminal t;
        terminal_open(&t, ARGS(state, "TERM=dumb"), ARGS("run", "-m", m, "--raw"));
        terminal_expect(&t, ">>> ");
        kill(t.pid, signals[i]);
        CHECK_EQ(terminal_close(&t), 128 + signals[i]);
        run_and_check(
            &(spawn_options){.signal = signals[i]}, 130, "cancelled",
            ARGS("run", "-m", m, "--raw", "--seed", "1", "-c", "131072", "--ignore-eog", "hi"));
    }
}

/* ---- Models that a server has made of others ---- */

static void write_made(const char *name, const char *fmt, const char *model)
{
    char path[700], text[1500];
    int n = snprintf(text, sizeof text, fmt, model);
    snprintf(path, sizeof path, "%s/carat/made/%s.json", getenv("XDG_DATA_HOME"), name);
    test_write(path, text, (size_t)n);
}

TEST(cli_models_made_of_others)
{
    static const char said[] = "[{\"role\":\"user\",\"content\":\"hi\"},"
                               "{\"role\":\"assistant\",\"content\":\"ho\"}]";
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    char dir[600];
    err e = {0};
    CHECK(!setenv("XDG_DATA_HOME", test_temp("data"), 1) && !setenv("HF_HOME", test_temp("hf"), 1));
    snprintf(dir, sizeof dir, "%s/carat/made", getenv("XDG_DATA_HOME"));
    CHECK_OK(make_dirs(dir, &e), e);
    write_made("Own%two",
               "{\"from\":\"x\",\"file\":\"%s\",\"system\":\"Be brief.\",\"messages\":[{\"role\":"
               "\"user\",\"content\":\"hi\"},{\"role\":\"assistant\",\"content\":\"ho\"}],"
               "\"parameters\":{\"temperature\":0,\"num_predict\":3,\"num_ctx\":900,\"top_k\":-1,"
               "\"stop\":[\"never said\"]}}",
               m);
    write_made("nothing", "{}%s", "");
    write_made("hot", "{\"from\":\"%s\",\"parameters\":{\"temperature\":\"hot\"}}", m);
    write_made("lost", "{\"from\":\"gone%s\"}", "");
    /* What it says is the same as options say, and these come first. */
    spawned own, plain;
    char messages[600];
    snprintf(messages, sizeof messages, "%s", test_temp("messages.json"));
    test_write(messages, said, sizeof said - 1);
    spawn_carat(&own, NULL, ARGS("run", "own/TWO", "and?"));
    CHECK_MSG(own.code == 0 && spawned_says(&own.err, "answer 3 tokens"), "%s", str_text(&own.err));
    spawn_carat(&plain, NULL,
                ARGS("run", "-m", m, "--messages", messages, "--system", "Be brief.", "--temp", "0",
                     "-n", "3", "--stop", "never said", "and?"));
    CHECK_MSG(plain.code == 0, "%s", str_text(&plain.err));
    CHECK_STR(str_text(&own.out), str_text(&plain.out));
    spawned_free(&own);
    spawn_carat(&own, NULL, ARGS("run", "-m", "Own/two", "-n", "2", "and?"));
    CHECK_MSG(spawned_says(&own.err, "answer 2 tokens"), "%s", str_text(&own.err));
    spawned_free(&own);
    spawned_free(&plain);
    run_and_check(NULL, 1, "which model it is made of", ARGS("run", "nothing", "hi"));
    run_and_check(NULL, 2, "expected a number", ARGS("run", "hot", "hi"));
    run_and_check(NULL, 1, "gone", ARGS("run", "lost", "hi"));
    run_and_check(NULL, 1, "other commands take the model", ARGS("inspect", "hot"));
    static const char *const shown[] = {"made of        x", "system         Be brief.",
                                        "parameter      num_ctx 900", "messages       2 before"};
    spawn_carat(&own, NULL, ARGS("show", "own/two"));
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        CHECK_MSG(!own.code && strstr(str_text(&own.out), shown[i]), "%s", str_text(&own.out));
    spawned_free(&own);
    spawn_carat(&own, NULL, ARGS("show", "--json", "own/two"));
    CHECK_MSG(!own.code && strstr(str_text(&own.out), "\"num_ctx\": 900"), "%s",
              str_text(&own.out));
    spawned_free(&own);
    run_and_check(NULL, 1, "which model it is made of", ARGS("show", "nothing"));
    run_and_check(NULL, 2, "gone", ARGS("show", "lost"));
    run_and_check(NULL, 0, "900", ARGS("run", "-v", "own/two", "and?")); /* its context */
    spawn_carat(&own, NULL, ARGS("list", "-q"));
    CHECK_STR(str_text(&own.out), "hot\nlost\nnothing\nOwn/two\n");
    spawned_free(&own);
    run_and_check(NULL, 0, NULL, ARGS("rm", "own/two"));
    run_and_check(NULL, 2, "no model", ARGS("rm", "own/two"));
}

TEST(cli_makes_models_by_modelfiles)
{
    static const struct {
        const char *text, *says; /* NULL: it is made */
    } cases[] = {
        {"FROM bundled\n", NULL},
        {"\xef\xbb\xbf# c\r\nfrom \"bundled\"\r\nsystem \"x\"\r\nPARAMETER seed 7\r\n", NULL},
        {"", "empty"},
        {"SYSTEM x", "FROM is missing"},
        {"FROM \n", "FROM is missing"},
        {"FROM no-such-model", "no model 'no-such-model'"},
        {"FROM /tmp", "a directory"},
        {"FROM bundled\nTEMPLATE {{.}}", ":2: TEMPLATE"},
        {"FROM bundled\nADAPTER", ":2: expected ADAPTER FILE"},
        {"FROM bundled\nHELLO x", ":2: no instruction"},
        {"FROM bundled\nPARAMETER", ":2: expected PARAMETER"},
        {"FROM bundled\nPARAMETER model /etc/passwd", "model: carat has no such setting"},
        {"FROM bundled\nPARAMETER temperature hot", "expected a number"},
        {"FROM bundled\nMESSAGE tool x", ":2: expected MESSAGE"},
        {"FROM bundled\nSYSTEM \"\"\"a\n\nb", ":2: \"\"\" without"},
        {"FROM bundled\xff", "UTF-8"}};
    char file[700], path[700], text[1500], *got;
    size_t n;
    err e = {0};
    CHECK(!setenv("XDG_DATA_HOME", test_temp("data"), 1) && !setenv("HF_HOME", test_temp("hf"), 1));
    snprintf(file, sizeof file, "%s", test_temp("Modelfile"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_write(file, cases[i].text, strlen(cases[i].text));
        AUTO(spawned_free) spawned r;
        spawn_carat(&r, NULL, ARGS("create", "made", "-f", file));
        CHECK_MSG(cases[i].says ? r.code && spawned_says(&r.err, cases[i].says) : !r.code, "%s: %s",
                  cases[i].text, str_text(&r.err));
    }
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    int len =
        snprintf(text, sizeof text,
                 "FROM %s\nPARAMETER temperature 0\nPARAMETER num_predict 4\nPARAMETER stop zz\n"
                 "PARAMETER stop \"<end>\"\nPARAMETER num_ctx 4096\nSYSTEM \"\"\"one\ntwo\"\"\"\n"
                 "MESSAGE user hi\nMESSAGE assistant ho ho\nLICENSE MIT\n",
                 m);
    test_write(file, text, (size_t)len);
    run_and_check(NULL, 0, "carat run own/made", ARGS("create", "own/made", "-f", file));
    run_and_check(NULL, 0, NULL, ARGS("cp", "OWN/made", "second"));
    spawned offered;
    spawn_carat(&offered, NULL, ARGS("__complete", "run", "-m", "sec"));
    CHECK_STR(str_text(&offered.out), "second\tmade of another\n");
    spawned_free(&offered);
    snprintf(path, sizeof path, "%s/carat/made/second.json", getenv("XDG_DATA_HOME"));
    CHECK_OK(file_read_all(path, 1 << 20, &got, &n, &e), e);
    snprintf(text, sizeof text,
             "\"parameters\":{\"temperature\":0,\"num_predict\":4,\"stop\":[\"zz\",\"<end>\"],"
             "\"num_ctx\":4096}");
    CHECK_MSG(strstr(got, text) && strstr(got, "\"one\\ntwo\"") && strstr(got, m) &&
                  strstr(got, "\"ho ho\"") && strstr(got, "MIT"),
              "%s", got);
    mem_free(got);
    run_and_check(NULL, 0, "answer 4 tokens", ARGS("run", "second", "and?"));
    run_and_check(NULL, 2, "no model 'none'", ARGS("cp", "none", "x"));
    run_and_check(NULL, 2, "no name for a model", ARGS("cp", "second", "../x"));
}
