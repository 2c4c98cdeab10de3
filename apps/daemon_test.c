/* daemon_test.c - parsing of the protocol; replies and streamed tokens of the running daemon,
 * compared with the library's results. */
#include "apps/daemon_int.h"
#include "base/map.h"
#include "base/mem.h"
#include "tests/spawn.h"
#include "tests/test.h"
#include "tests/toy_model.h"

enum { N = 90, CTX = 256 };

static daemon_request parse_line(const char *line)
{
    static char copy[1024];
    daemon_request r;
    snprintf(copy, sizeof copy, "%s", line);
    daemon_parse(&r, copy);
    return r;
}

TEST(daemon_lines_become_requests)
{
    daemon_request r = parse_line("/a/b 5 samp=0.5,0.9,40,1.1,7,0.1,0.2 snap=3:9");
    CHECK(r.kind == DAEMON_PROMPT && !r.bad && r.n_gen == 5);
    CHECK_STR(r.path, "/a/b");
    CHECK_NEAR(r.sampling.temperature, 0.5, 0);
    CHECK_NEAR(r.sampling.top_p, 0.9, 1e-7);
    CHECK(r.sampling.top_k == 40 && r.sampling.seed == 7);
    CHECK_NEAR(r.sampling.frequency_penalty, 0.1, 1e-7);
    CHECK_NEAR(r.sampling.presence_penalty, 0.2, 1e-7);
    CHECK(r.has_snap && r.snap_pos == 3 && r.snap_slot == 9);
    r = parse_line("./p samp=1 7\r");
    CHECK(r.kind == DAEMON_PROMPT && !r.bad && r.n_gen == 7 && !r.has_snap);
    CHECK_NEAR(r.sampling.top_p, 1, 0);
    CHECK(parse_line("RESTORE 63 x 1").kind == DAEMON_RESTORE && !parse_line("RESTORE 63 x 1").bad);
    CHECK(parse_line("generate a 3 b").kind == DAEMON_GENERATE);
    CHECK(parse_line("unpark").kind == DAEMON_UNPARK && parse_line("unpark").target);
    CHECK(parse_line("park draft").kind == DAEMON_PARK && !parse_line("park draft").target);
    CHECK(parse_line("").kind == DAEMON_NOTHING && parse_line("  \t").kind == DAEMON_NOTHING);
    CHECK(parse_line("free drafter").kind == DAEMON_FREE_DRAFTER);
    CHECK(parse_line("drafter free").kind == DAEMON_FREE_DRAFTER);
    CHECK(parse_line("exit").kind == DAEMON_QUIT);
    r = parse_line("compress /a 50 d.gguf nopark");
    CHECK(r.kind == DAEMON_COMPRESS && !r.bad && r.no_park);
    CHECK_NEAR(r.keep, 0.05, 1e-12);
    CHECK_STR(r.path, "/a");
    CHECK_STR(r.scorer, "d.gguf");
    r = parse_line("compress /a 990 nopark");
    CHECK(!r.bad && r.no_park && !r.scorer);
    static const char *const unknown[] = {"hello",           "parked", "snapshot 1",
                                          "compressed a 50", "free",   "RESTORE_CHAIN 1 - /a 5"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        CHECK_MSG(parse_line(unknown[i]).kind == DAEMON_UNKNOWN, "%s", unknown[i]);
    static const char *const bad[] = {"/a",
                                      "/a 0",
                                      "/a -3",
                                      "/a 5x",
                                      "/a 99999999999999999999",
                                      "/a 5 6",
                                      "/a 5 samp=",
                                      "/a 5 samp=x",
                                      "/a 5 samp=nan",
                                      "/a 5 samp=1,2",
                                      "/a 5 samp=1,1,1.5",
                                      "/a 5 samp=0,1,0,1,0,0,0,0",
                                      "/a 5 samp=0,1,0,1,-2",
                                      "/a 5 samp=0,1,0,0",
                                      "/a 5 samp=0,,1",
                                      "/a 5 snap=5",
                                      "/a 5 snap=a:b",
                                      "RESTORE 64 /a 5",
                                      "RESTORE -1 /a 5",
                                      "RESTORE 1 /a",
                                      "generate a 5",
                                      "generate a 0 b",
                                      "SNAPSHOT",
                                      "SNAPSHOT x",
                                      "FREE_SNAPSHOT",
                                      "park everything",
                                      "compress",
                                      "compress /a",
                                      "compress /a 9",
                                      "compress /a 991",
                                      "compress /a 0.5",
                                      "compress /a 50 b c",
                                      "compress /a 50 b c nopark"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_MSG(parse_line(bad[i]).bad, "%s", bad[i]);
}

/* ---- From outside ------------------------------------------------------------------------------
 */

typedef struct {
    carat_model *m;
    char model[512], a[512], b[512], counted[512], out[512], empty[512];
    int32_t ids[N], other[N];
} fixture;

static void write_prompt(const char *path, const int32_t *ids, int64_t n, bool counted)
{
    file_out f;
    err e = {0};
    int32_t count = (int32_t)n;
    CHECK_OK(file_out_open(&f, path, &e), e);
    if (counted)
        CHECK_OK(file_out_write(&f, &count, 4, &e), e);
    CHECK_OK(file_out_write(&f, ids, (size_t)n * 4, &e), e);
    CHECK_OK(file_out_commit(&f, &e), e);
}

static fixture begin_daemon(void)
{
    fixture f;
    snprintf(f.model, sizeof f.model, "%s", toy_model_write(NULL));
    snprintf(f.a, sizeof f.a, "%s", test_temp("a.ids"));
    snprintf(f.b, sizeof f.b, "%s", test_temp("b.ids"));
    snprintf(f.counted, sizeof f.counted, "%s", test_temp("counted.ids"));
    snprintf(f.out, sizeof f.out, "%s", test_temp("out.ids"));
    snprintf(f.empty, sizeof f.empty, "%s", test_temp("empty.ids"));
    f.m = toy_model_open(NULL, NULL);
    for (int i = 0; i < N; i++) {
        f.ids[i] = 40 + i * 7 % 50;
        f.other[i] = i < 60 ? f.ids[i] : 40 + i * 11 % 50;
    }
    write_prompt(f.a, f.ids, N, false);
    write_prompt(f.b, f.other, N, false);
    write_prompt(f.counted, f.ids, N, true);
    write_prompt(f.empty, f.ids, 0, false);
    return f;
}

typedef struct {
    int32_t ids[CTX];
    int n;
} tokens;

static bool keep_token(void *user, const carat_event *ev)
{
    tokens *t = user;
    if (ev->kind == CARAT_EV_TOKEN)
        t->ids[t->n++] = ev->id;
    return true;
}

/* The tokens that the library generates. */
static tokens expected_answer(const fixture *f, const int32_t *ids, int32_t n, const char *samp)
{
    AUTO_SESSION *s;
    carat_error e = {0};
    tokens t = {.n = 0};
    char copy[64];
    carat_generate_options o = {.max_tokens = n};
    daemon_greedy(&o.sampling);
    if (samp) {
        snprintf(copy, sizeof copy, "%s", samp);
        daemon_request r = {0};
        CHECK(daemon_parse_samp(copy, &r));
        o.sampling = r.sampling;
    }
    o.sampling.ignore_eog = true;
    CHECK_OK(carat_session_open(f->m, &(carat_session_options){.n_ctx = CTX}, &s, &e), e);
    CHECK_OK(carat_generate(s, ids, N, &o, keep_token, &t, NULL, &e), e);
    return t;
}

/* Runs the daemon on these lines, with stderr as the token stream. */
static spawned converse(const fixture *f, const char *lines, bool with_stream)
{
    spawned r;
    const char *const with[] = {"daemon", "-m",           f->model,      "-c", "256",      "-t",
                                "1",      "--ignore-eos", "--stream-fd", "2",  "--device", "cpu",
                                NULL};
    const char *const without[] = {"daemon", "-m",           f->model,   "-c",  "256", "-t",
                                   "1",      "--ignore-eos", "--device", "cpu", NULL};
    spawn_carat(&r, &(spawn_options){.in = lines}, with_stream ? with : without);
    return r;
}

static size_t expect_tokens(const spawned *r, size_t at, const tokens *t)
{
    const int32_t end = -1;
    size_t n = (size_t)t->n * 4;
    CHECK_MSG(r->err.n >= at + n + 4, "%zu bytes on the stream", r->err.n);
    CHECK(!memcmp(r->err.at + at, t->ids, n));
    CHECK(!memcmp(r->err.at + at + n, &end, 4));
    return at + n + 4;
}

/* Compares the beginning of each reply line, in order. */
static void expect_lines(const spawned *r, const char *const *line)
{
    const char *at = str_text(&r->out);
    for (int i = 0; line[i]; i++) {
        CHECK_MSG(!strncmp(at, line[i], strlen(line[i])), "reply %d is \"%.100s\", expected \"%s\"",
                  i, at, line[i]);
        at = strchr(at, '\n');
        CHECK(at);
        at++;
    }
    CHECK_MSG(!*at, "and then: %s", at);
}

TEST(daemon_answers_what_the_library_answers)
{
    fixture f = begin_daemon();
    char lines[8192];
    snprintf(lines, sizeof lines,
             "%s 20\n"
             "%s 20 samp=0.8,0.95,40,1.1,7 snap=60:5\n"
             "LIST_SLOTS\n"
             "RESTORE 5 %s 15\n"
             "RESTORE 5 %s 15 samp=1,1,0,1,3\n"
             "%s 20 samp=0.8,0.95,40,1.1,7\n"
             "SNAPSHOT 63\n"
             "LIST_SLOTS\n"
             "park\n%s 5\nRESTORE 5 %s 5\ngenerate %s 5 %s\npark\n"
             "unpark target\n"
             "%s 20\n"
             "FREE_SNAPSHOT 5\n"
             "RESTORE 5 %s 5\n"
             "generate %s 12 %s\n"
             "quit\nnever read\n",
             f.a, f.a, f.b, f.b, f.a, f.a, f.b, f.counted, f.out, f.a, f.a, f.counted, f.out);
    spawned r = converse(&f, lines, true);
    CHECK_EQ(r.code, 0);
    static const char *const want[] = {
        "[daemon] ready vocab=",
        "ok N=90 gen=20 prefill_s=",
        "ok N=90 gen=20 prefill_s=",
        "[snap] slots=5\n",
        "ok N=90 gen=15 prefix_len=60 (RESTORE slot=5) stream_fd=2\n",
        "ok N=90 gen=15 prefix_len=60 (RESTORE slot=5) stream_fd=2\n",
        "ok N=90 gen=20",
        "[snap] inline slot=63 cur_pos=109\n",
        "[snap] slots=5,63\n",
        "[park] target released\n",
        "err target_parked\n",
        "err target_parked\n",
        "err target_parked\n",
        "[unpark] target restored\n",
        "ok N=90 gen=20",
        "[snap] freed slot=5\n",
        "err empty_slot\n",
        "ok N=90 gen=12 prefill_s=",
        NULL};
    expect_lines(&r, want);
    CHECK(strstr(str_text(&r.out), "decode_tok_s=") && strstr(str_text(&r.out), "out="));
    tokens greedy = expected_answer(&f, f.ids, 20, NULL),
           b = expected_answer(&f, f.other, 15, NULL);
    tokens hot = expected_answer(&f, f.ids, 20, "0.8,0.95,40,1.1,7"),
           b1 = expected_answer(&f, f.other, 15, "1,1,0,1,3");
    tokens none = {.n = 0};
    size_t at = expect_tokens(&r, 0, &greedy);
    at = expect_tokens(&r, at, &hot);
    at = expect_tokens(&r, at, &b);
    at = expect_tokens(&r, at, &b1);
    at = expect_tokens(&r, at, &hot); /* the same seed gives the same answer */
    for (int i = 0; i < 5; i++)       /* park; two refused; park again; unpark */
        at = expect_tokens(&r, at, &none);
    at = expect_tokens(&r, at, &greedy);
    at = expect_tokens(&r, at, &none);
    CHECK_EQ(at, r.err.n);
    char *bytes;
    size_t n;
    err e = {0};
    CHECK_OK(file_read_all(f.out, 1 << 20, &bytes, &n, &e), e);
    int32_t count = 12;
    CHECK(n == 13 * 4 && !memcmp(bytes, &count, 4) && !memcmp(bytes + 4, greedy.ids, 12 * 4));
    mem_free(bytes);
    spawned_free(&r);
    carat_model_close(f.m);
}

/* The seed that a reply names, after `from`. Moves *from behind it. */
static uint32_t said_seed(const char **from)
{
    const char *at = strstr(*from, " seed=");
    CHECK_MSG(at, "no seed in: %.200s", *from);
    *from = at + 6;
    return (uint32_t)strtoul(at + 6, NULL, 10);
}

/* Sampled requests without a seed: each draws its own, and names it. With it the answer is the same
 * again. Greedy requests have none. */
TEST(daemon_draws_a_seed_where_none_is_given)
{
    fixture f = begin_daemon();
    char lines[8192], again[1024];
    uint32_t seed[5];
    snprintf(lines, sizeof lines,
             "%s 20 samp=5\n%s 20 samp=5\ngenerate %s 20 %s samp=5\n%s 20 samp=5,1,0,1,-1\n"
             "%s 5 snap=40:1\nRESTORE 1 %s 20 samp=5,1\n%s 20 samp=5,1,0,1,9\nquit\n",
             f.a, f.a, f.counted, f.out, f.a, f.a, f.a, f.a);
    spawned r = converse(&f, lines, true);
    CHECK_EQ(r.code, 0);
    const char *at = str_text(&r.out);
    for (int i = 0; i < 5; i++) {
        seed[i] = said_seed(&at);
        for (int k = 0; k < i; k++)
            CHECK_MSG(seed[i] != seed[k], "seeds %d and %d are %u", k, i, seed[i]);
    }
    CHECK(!strstr(at, "seed=")); /* the last one was given */
    tokens first = {.n = 20};
    CHECK(r.err.n > 84 && memcmp(r.err.at, r.err.at + 84, 80));
    memcpy(first.ids, r.err.at, 80);
    spawned_free(&r);
    snprintf(again, sizeof again, "%s 20 samp=5,1,0,1,%u\nquit\n", f.a, seed[0]);
    r = converse(&f, again, true);
    CHECK_EQ(expect_tokens(&r, 0, &first), r.err.n);
    spawned_free(&r);
    carat_model_close(f.m);
}

/* Drafters, pools and the drafter's weights that come and go leave the answer as it is. */
TEST(daemon_drafts_without_changing_answers)
{
    fixture f = begin_daemon();
    char lines[8192];
    tokens greedy = expected_answer(&f, f.ids, 20, NULL), none = {.n = 0};
    snprintf(lines, sizeof lines,
             "%s 20\npark draft\npark draft\n%s 20\nunpark draft\nunpark draft\n%s 20\n"
             "park\nunpark draft\n%s 20\nunpark\n%s 20\nquit\n",
             f.a, f.a, f.a, f.a, f.a);
    static const char *const sets[][4] = {{"--draft", "lookup", "--draft-max", "4"},
                                          {"--draft", "none", NULL, NULL},
                                          {"--sparse", "off", NULL, NULL}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        const char *args[20] = {"daemon", "-m",           f.model,       "-c", "256",      "-t",
                                "1",      "--ignore-eos", "--stream-fd", "2",  "--device", "cpu"};
        for (int k = 0; k < 4 && sets[i][k]; k++)
            args[12 + k] = sets[i][k];
        AUTO(spawned_free) spawned r;
        spawn_carat(&r, &(spawn_options){.in = lines}, args);
        CHECK_MSG(r.code == 0, "%s: %s", sets[i][0], str_text(&r.err));
        static const char *const want[] = {
            "[daemon] ready",           "ok N=90 gen=20",         "ok N=90 gen=20",
            "ok N=90 gen=20",           "[park] target released", "err target_parked",
            "[unpark] target restored", "ok N=90 gen=20",         NULL};
        expect_lines(&r, want);
        size_t at = expect_tokens(&r, 0, &greedy);
        static const bool answers[] = {false, false, true,  false, false, true,
                                       false, false, false, false, true};
        for (size_t k = 0; k < sizeof answers / sizeof *answers; k++)
            at = expect_tokens(&r, at, answers[k] ? &greedy : &none);
        CHECK_EQ(at, r.err.n);
    }
    carat_model_close(f.m);
}

static void synth_file(const char *size, const char *path, const char *more)
{
    AUTO(spawned_free) spawned r;
    spawn_carat(&r, &(spawn_options){0}, (const char *const[]){"synth", size, path, more, NULL});
    CHECK_MSG(r.code == 0, "%s: %s", size, str_text(&r.err));
}

/* Drafters with weights of their own: these go and come back, and the answers stay the same. */
TEST(daemon_parks_the_weights_of_drafters)
{
    static const struct {
        const char *model, *nextn, *drafter; /* drafter NULL: the model's own layer */
    } pairs[] = {{"tiny-dense", NULL, "mtp-tiny"},
                 {"tiny-dense", NULL, "dflash-tiny"},
                 {"tiny-qwen35", "--nextn", NULL}};
    static const char *const want[] = {"[daemon] ready",
                                       "ok N=8",
                                       "[park] draft released",
                                       "ok N=8",
                                       "[unpark] draft restored",
                                       "ok N=8",
                                       "[park] draft released",
                                       "[park] target released",
                                       "[unpark] target restored",
                                       "ok N=8",
                                       "[unpark] draft restored",
                                       "ok N=8",
                                       NULL};
    static const int32_t ids[] = {5, 6, 7, 8, 9, 10, 11, 12};
    char lines[4096], model[512], draft[512], prompt[512];
    snprintf(prompt, sizeof prompt, "%s", test_temp("ids"));
    snprintf(model, sizeof model, "%s", test_temp("model.gguf"));
    snprintf(draft, sizeof draft, "%s", test_temp("draft.gguf"));
    FILE *file = fopen(prompt, "wb");
    CHECK(file && fwrite(ids, sizeof ids, 1, file) == 1 && !fclose(file));
    snprintf(lines, sizeof lines,
             "%s 12\npark draft\npark draft\n%s 12\nunpark draft\nunpark draft\n%s 12\n"
             "park draft\npark target\nunpark target\n%s 12\nunpark draft\n%s 12\nquit\n",
             prompt, prompt, prompt, prompt, prompt);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        synth_file(pairs[i].model, model, pairs[i].nextn);
        if (pairs[i].drafter)
            synth_file(pairs[i].drafter, draft, NULL);
        AUTO(spawned_free) spawned r;
        spawn_carat(&r, &(spawn_options){.in = lines},
                    (const char *const[]){"daemon", "-m", model, "--draft",
                                          pairs[i].drafter ? draft : "nextn", "-c", "256", "-t",
                                          "1", "--device", "cpu", NULL});
        CHECK_MSG(r.code == 0, "%s: %s", pairs[i].model, str_text(&r.err));
        expect_lines(&r, want);
        const char *first = strstr(r.out.at, "ids=");
        size_t n = first ? strcspn(first, "\n") : 0;
        CHECK(n > 8);
        for (const char *at = first; at; at = strstr(at + 1, "ids="))
            CHECK_MSG(strcspn(at, "\n") == n && !memcmp(at, first, n), "%s: %s", pairs[i].model,
                      r.out.at);
    }
}

TEST(daemon_says_what_it_cannot_do)
{
    fixture f = begin_daemon();
    char lines[8192];
    snprintf(lines, sizeof lines,
             "hello\n\n%s\n%s 0\n%s 5\n/nowhere/x 5\n%s 5\nRESTORE 3 %s 5\nRESTORE x\n"
             "generate %s 5 /nowhere/at/all\ngenerate %s 5 %s\nSNAPSHOT 99\nSNAPSHOT\n"
             "FREE_SNAPSHOT 99\nLIST_SLOTS\nfree drafter\nunpark\npark draft\nLIST_SLOTS",
             f.a, f.a, f.empty, f.counted, f.a, f.counted, f.a, f.out);
    spawned r = converse(&f, lines, true);
    CHECK_EQ(r.code, 0);
    static const char *const want[] = {"[daemon] ready",
                                       "err unknown_command\n",
                                       "err bad_args\n",
                                       "err bad_args\n",
                                       "err empty_prompt\n",
                                       "err empty_prompt\n",
                                       "ok N=91 gen=5",
                                       "err empty_slot\n",
                                       "err bad_args\n",
                                       "err write_out\n",
                                       "err empty_prompt\n",
                                       "[snap] inline slot=99 cur_pos=-1\n",
                                       "err bad_args\n",
                                       "[snap] freed slot=99\n",
                                       "[snap] slots=\n",
                                       "[snap] slots=\n",
                                       NULL};
    expect_lines(&r, want);
    /* Every command but generate and the snapshot commands sends one -1: 5 before the answer, 2
     * after it, 1 for SNAPSHOT, 3 at the end. */
    CHECK_EQ(r.err.n, (size_t)(5 + 6 + 2 + 1 + 3) * 4);
    spawned_free(&r);
    snprintf(lines, sizeof lines, "%s 5\nRESTORE 1 %s 5\ngenerate %s 3 %s\n", f.a, f.a, f.counted,
             f.out);
    r = converse(&f, lines, false);
    static const char *const alone[] = {"[daemon] ready", "ok N=90 gen=5", "err empty_slot\n",
                                        "ok N=90 gen=3", NULL};
    expect_lines(&r, alone);
    CHECK_EQ(r.err.n, 0);
    spawned_free(&r);
    carat_model_close(f.m);
}

TEST(daemon_survives_long_lines_and_strange_ids)
{
    fixture f = begin_daemon();
    str in = {0};
    int32_t far[3] = {1, 2, 1 << 30};
    write_prompt(f.b, far, 3, false);
    for (int i = 0; i < 100000; i++)
        str_putc(&in, 'x');
    str_printf(&in, "\n%s 5\n%s 3\n", f.b, f.a);
    spawned r = converse(&f, in.at, true);
    static const char *const want[] = {"[daemon] ready", "err bad_args\n",
                                       "err token 2 of the prompt is", "ok N=90 gen=3", NULL};
    expect_lines(&r, want);
    spawned_free(&r);
    str_free(&in);
    const char *const no_stream[] = {"daemon", "-m", f.model, "--tokens-file", "x", NULL};
    spawn_carat(&r, &(spawn_options){.in = ""}, no_stream);
    CHECK(r.code == 1 && strstr(str_text(&r.err), "--stream-fd"));
    spawned_free(&r);
    const char *const once[] = {"daemon",
                                "-m",
                                f.model,
                                "-c",
                                "256",
                                "--tokens-file",
                                f.a,
                                "-n",
                                "9",
                                "--samp",
                                "0.8,0.95,40,1.1,7",
                                "--ignore-eos",
                                "--stream-fd",
                                "2",
                                "--device",
                                "cpu",
                                NULL};
    spawn_carat(&r, &(spawn_options){.in = ""}, once);
    CHECK_EQ(r.code, 0);
    tokens hot = expected_answer(&f, f.ids, 9, "0.8,0.95,40,1.1,7");
    CHECK_EQ(expect_tokens(&r, 0, &hot), r.err.n);
    spawned_free(&r);
    carat_model_close(f.m);
}

/* A conversation of a long text and a question, rendered. */
static void write_talk(const fixture *f, carat_chat *out)
{
    AUTO(str_free) str messages = {0};
    err e = {0};
    str_puts(&messages, "[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 40; i++)
        str_printf(&messages, "Sentence %d is about a stone. ", i);
    str_puts(&messages, "\"},{\"role\":\"user\",\"content\":\"Where is 41?\"}]");
    CHECK_OK(carat_chat_render(f->m, messages.at, NULL, NULL, out, &e), e);
    write_prompt(f->a, out->ids, out->n_ids, false);
}

TEST(daemon_compresses_prompts)
{
    fixture f = begin_daemon();
    char lines[8192];
    const int32_t end = -1;
    carat_chat chat;
    write_talk(&f, &chat);
    snprintf(lines, sizeof lines,
             "compress %s 300\ncompress %s 300 %s\ncompress %s 300 %s nopark\n"
             "free drafter\nfree drafter\npark\ncompress %s 300\ncompress %s 300 %s\n"
             "park draft\nunpark\ncompress %s 9\ncompress %s 300 /nowhere.gguf\n"
             "compress /nowhere 300\ngenerate %s 3 %s\n",
             f.a, f.a, f.model, f.a, f.model, f.a, f.a, f.model, f.a, f.a, f.counted, f.out);
    spawned r = converse(&f, lines, true);
    static const char *const want[] = {"[daemon] ready",
                                       "[drafter] freed\n",
                                       "[park] target released\n",
                                       "err target_parked\n",
                                       "[park] draft released\n",
                                       "[unpark] target restored\n",
                                       "err ",
                                       "err empty_prompt\n",
                                       "ok N=90 gen=3",
                                       NULL};
    CHECK_EQ(r.code, 0);
    expect_lines(&r, want);
    /* Four times the same ids, with -1 after each; and one alone for every other command. */
    const char *second = r.err.at;
    while (second < r.err.at + r.err.n && memcmp(second, &end, 4))
        second += 4;
    size_t n = (size_t)(second - r.err.at), at = n + 4;
    CHECK_MSG(n > 400 && n < (size_t)chat.n_ids * 4 / 2, "%zu of %lld ids", n / 4,
              (long long)chat.n_ids);
    CHECK(!memcmp(r.err.at, chat.ids, 8)); /* the template's own */
    CHECK(!memcmp(r.err.at + n - 40, chat.ids + chat.n_ids - 10, 40));
    for (int i = 0; i < 2; i++, at += n + 4)
        CHECK(!memcmp(r.err.at + at, r.err.at, n + 4));
    at += 4 * 4; /* free, free, park, compress while parked */
    CHECK(r.err.n >= at + n + 4 && !memcmp(r.err.at + at, r.err.at, n + 4));
    CHECK_EQ(r.err.n, at + n + 4 + 5 * 4);
    spawned_free(&r);
    carat_chat_free(&chat);
    carat_model_close(f.m);
}
