/* cli_options_test.c - options as users of other programs type them, and options that have no
 * effect.
 */
#include "tests/spawn.h"
#include "tests/test.h"
#include "tests/toy_model.h"
#include "base/map.h"
#include "base/mem.h"

#include <string.h>

static void expect_with(const spawn_options *o, int code, const char *says, const char *const *args)
{
    AUTO(spawned_free) spawned r;
    spawn_carat(&r, o, args);
    CHECK_MSG(r.code == code, "%s %s: exit status %d, expected %d; stderr: %s", args[0],
              args[1] ? args[1] : "", r.code, code, str_text(&r.err));
    CHECK_MSG(!says || spawned_says(&r.err, says), "%s %s: \"%s\", expected \"%s\" in it", args[0],
              args[1] ? args[1] : "", str_text(&r.err), says);
}

static void expect(int code, const char *says, const char *in, const char *const *args)
{
    expect_with(&(spawn_options){.in = in}, code, says, args);
}

static void expect_without_gpu(int code, const char *says, const char *const *args)
{
    expect_with(&(spawn_options){.env = "CUDA_VISIBLE_DEVICES="}, code, says, args);
}

/* The words of llama.cpp, and a part of what carat says of each; NULL: it is taken. */
PLAIN_TEST(options_of_llama_cpp_are_taken_or_explained)
{
    static const struct {
        const char *word, *value, *says;
    } cases[] = {
        {"-ngl", "99", NULL},
        {"-ngl", "all", NULL},
        {"-ngl", "0", NULL},
        {"-ngl", NULL, "-ngl"},
        {"-fa", "on", NULL},
        {"-fa", NULL, NULL},
        {"-fa", "off", "-fa off"},
        {"--think=false", NULL, NULL},
        {"--think=high", NULL, NULL},
        {"--no-think=false", NULL, NULL},
        {"--no-think=1", NULL, NULL},
        {"--greedy=0", NULL, NULL},
        {"--max-model-len", "64", NULL},
        {"--dtype", "float16", "carat quantize"},
        {"--tool-call-parser", "hermes", NULL},
        {"--reasoning-budget", "0", NULL},
        {"--spec-type", "ngram-mod", NULL},
        {"--spec-draft-threads", "2", "--draft names it"},
        {"--rope-freq-base", "10000", "carat convert"},
        {"--prompt-cache", "x", "--resume"},
        {"--response-role", "assistant", NULL},
        {"--response-role", "user", "the role assistant"},
        {"-mmdev", "none", "vision tower is where"},
        {"-mv", "x", "its answers are text"},
        {"--hidethinking", NULL, "--no-think"},
        {"--slot-save-path", "x", "--resume"},
        {"--tensor-parallel-size", "2", "--gpus 0,1"},
        {"--flash-attn=auto", NULL, NULL},
        {"-np", "2", "-np"},
        {"-st", NULL, NULL},
        {"-sm", "none", NULL},
        {"-sm", "layer", NULL},
        {"-sm", "tensor", NULL},
        {"-sm", "row", "-sm row"},
        {"-ctk", "q8_0", NULL},
        {"-ctv", "f99", "f99"},
        {"-cnv", NULL, "interactive"},
        {"-md", "lookup", NULL},
        {"-mli", NULL, "-mli"},
        {"-tb", "4", "-tb"},
        {"-ub", "64", NULL},
        {"-b", "64", "--chunk"},
        {"-ot", "x=CPU", "-ot"},
        {"-ncmoe", "3", "-ncmoe"},
        {"-dev", "none", NULL},
        {"-mg", "x", "-mg x"},
        {"-ts", "3,1", "--gpus"},
        {"-sysf", "x", "-sysf"},
        {"-rea", "off", NULL},
        {"-s", "42", "--seed"},
        {"-jf", "/nowhere", "nowhere"},
        {"-xyz", NULL, "unknown option -xyz"},
        {"-tx", NULL, "-t x"},
        {"-ignore", NULL, "unknown option"},
        {"--ignore-eos", NULL, NULL},
        {"--n-predict", "3", NULL},
        {"--cache-type-k=q8_0", NULL, NULL},
        {"--lora", "x", "No such file"},
    };
    const char *model = toy_model_write(&(toy_model_file){.n_ctx_train = 512});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        /* Words that lack their value stand last. */
        bool last = cases[i].says && !cases[i].value && !strcmp(cases[i].word, "-ngl");
        const char *const args[] = {"run",
                                    last ? "--quiet" : cases[i].word,
                                    cases[i].value ? cases[i].value : "--quiet",
                                    "-m",
                                    model,
                                    "-n",
                                    "1",
                                    "hi",
                                    last ? cases[i].word : NULL,
                                    NULL};
        AUTO(spawned_free) spawned r;
        spawn_carat(&r, &(spawn_options){0}, args);
        CHECK_MSG((r.code == 0) == !cases[i].says, "%s %s: status %d: %s", cases[i].word, args[2],
                  r.code, str_text(&r.err));
        CHECK_MSG(!cases[i].says || spawned_says(&r.err, cases[i].says), "%s: %s", cases[i].word,
                  str_text(&r.err));
    }
    expect(2, "-st", NULL, ARGS("serve", "-st"));
    expect(2, "carat serve has no --single-turn", NULL, ARGS("serve", "-m", model, "-st"));
    expect(2, "--system: the text is not valid UTF-8", NULL,
           ARGS("serve", "-m", "none.gguf", "--system", "a\xff"));
    expect(2, "--stall: --token-gap=60001: expected a whole number from 0 to 60000", NULL,
           ARGS("serve", "-m", "none.gguf", "--stall", "60001"));
    expect(2, "--gpu-split has no effect without --gpus or --device", NULL,
           ARGS("run", "-m", model, "--gpu-split", "1,2", "hi"));
    expect(1, "--gpu-split is for layers: with --split tensor all devices have equal parts", NULL,
           ARGS("run", "-m", model, "--device", "cpu,cpu", "--split", "tensor", "--gpu-split",
                "1,2", "hi"));
    expect(2, "-fa 0", NULL, ARGS("bench", "-fa", "0"));
    expect(2, "--streams=2,x: expected numbers from 1 to 64", NULL, ARGS("bench", "-s", "2,x"));
    expect(2, "unknown option -ngl", NULL, ARGS("list", "-ngl", "99"));
}

/* -sys is the system message and not the letters s, y and s. */
PLAIN_TEST(options_of_llama_cpp_set_the_system_message)
{
    const char *model = toy_model_write(&(toy_model_file){.n_ctx_train = 512});
    AUTO(spawned_free) spawned a, b;
    spawn_carat(&a, &(spawn_options){0},
                ARGS("run", "-m", model, "-n", "4", "--temp", "0", "-sys", "terse", "hello"));
    spawn_carat(&b, &(spawn_options){0},
                ARGS("run", "-m", model, "-n", "4", "--temp", "0", "--system", "terse", "hello"));
    CHECK_EQ(a.code, 0);
    CHECK(a.out.n == b.out.n && !memcmp(str_text(&a.out), str_text(&b.out), a.out.n));
}

PLAIN_TEST(options_without_effect_name_what_is_missing)
{
    static const struct {
        const char *command, *words[3], *says;
    } cases[] = {
        {"run", {"--kv-policy", "lru"}, "--kv-policy has no effect without --kv-pool"},
        {"run", {"--kv-tau", "9"}, "--kv-tau has no effect without --kv-pool"},
        {"run", {"--draft-max", "4"}, "--draft-max has no effect without --draft"},
        {"run", {"--kv-cache-mb", "4"}, "without --kv-cache-dir"},
        {"run", {"--compress-model", "bundled"}, "without --compress"},
        {"run", {"--raw", "--think"}, "--think has no effect with --raw"},
        {"run", {"--device=cpu", "--cpu-experts"}, "with --device cpu"},
        {"serve", {"--draft-tree", "4"}, "--draft-tree has no effect without --draft"},
        {"serve", {"--kv-tau", "4"}, "--kv-tau has no effect without --kv-policy"},
        {"bench", {"--draft-max", "4"}, "--draft-max has no effect without --spec"},
        {"bench", {"--kv-host-mb", "4"}, "--kv-host-mb has no effect without --kv-pool"},
        {"kld", {"--kv-policy", "lru"}, "--kv-policy has no effect without --kv-pool"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(2, cases[i].says, NULL,
               ARGS(cases[i].command, cases[i].words[0], cases[i].words[1]));
    expect(2, "--full-vocab has no effect without --vocab", NULL,
           ARGS("synth", "--full-vocab", "e2b", "/nowhere/x.gguf"));
}

/* What the machine lacks is known later, and said then. */
TEST(options_without_effect_on_a_cpu_are_said)
{
    const char *model = toy_model_write(
        &(toy_model_file){.base = "qwen3", .words = "qwen2", .n_ctx_train = 512}); /* dense */
    expect(0, "--mirostat-tau has no effect without --mirostat", NULL,
           ARGS("run", "-m", model, "-n", "1", "--mirostat-tau", "3", "hi"));
    expect(0, "--experts-gpu has no effect: the model has no experts", NULL,
           ARGS("run", "-m", model, "-n", "1", "--experts-gpu", "auto", "hi"));
    expect(0, "--experts-cpu has no effect: the model has no experts", NULL,
           ARGS("run", "-m", model, "-n", "1", "--experts-cpu", "auto", "hi"));
    expect(0, "--experts-prefetch has no effect: the model has no experts", NULL,
           ARGS("run", "-m", model, "-n", "1", "--experts-prefetch", "auto", "hi"));
    expect(0, "--all-layers-on-gpu has no effect with --device cpu", NULL,
           ARGS("run", "-m", model, "-n", "1", "--device", "cpu", "-ngl", "99", "hi"));
    expect_without_gpu(0, "--all-layers-on-gpu has no effect: the model runs on the CPU",
                       ARGS("run", "-m", model, "-n", "1", "-ngl", "99", "hi"));
    expect_without_gpu(
        0, "--all-layers-on-gpu has no effect: the model runs on the CPU",
        ARGS("logits", "-m", model, "--tokens", "1,2", "-o", "/dev/null", "-ngl", "all"));
    expect_without_gpu(1, "--gpu-layers and --cpu-experts need a GPU, and the model is on the CPU",
                       ARGS("run", "-m", model, "-n", "1", "-ngl", "1", "hi"));
    expect_without_gpu(1, "--gpu-layers and --cpu-experts need a GPU, and the model is on the CPU",
                       ARGS("run", "-m", model, "-n", "1", "-cmoe", "hi"));
    AUTO(spawned_free) spawned r; /* of two devices one is in the place of a GPU */
    spawn_carat(&r, NULL,
                ARGS("run", "-m", model, "-n", "1", "--device", "cpu,cpu", "-ngl", "1", "hi"));
    CHECK_MSG(r.code == 0 && !spawned_says(&r.err, "no effect"), "%s", str_text(&r.err));
    expect(1, "with at most 8)", NULL,
           ARGS("run", "-m", model, "--device", "cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu", "hi"));
}

TEST(grammars_come_from_stdin)
{
    const char *model = toy_model_write(&(toy_model_file){.n_ctx_train = 512});
    expect(0, NULL, "root ::= [a-z]\n",
           ARGS("run", "-m", model, "-n", "8", "--grammar", "/dev/stdin", "hi"));
    expect(1, "cannot both read stdin", "root ::= [a-z]\n",
           ARGS("run", "-m", model, "-n", "8", "--grammar", "/dev/stdin", "-p", "-"));
    expect(1, "the file is empty", "",
           ARGS("run", "-m", model, "-n", "8", "--grammar", "/dev/stdin", "hi"));
}

/* Another name for the token that opens a turn: then the vocabulary has no chat format. */
static void take_chat_format(const char *path)
{
    static const char mark[] = "<|start_header_id|>";
    char *bytes, *at;
    size_t n;
    err e = {0};
    CHECK_OK(file_read_all(path, 1 << 24, &bytes, &n, &e), e);
    for (at = bytes; (at = memmem(at, n - (size_t)(at - bytes), mark, sizeof mark - 1));)
        *at = '['; /* in the list of tokens, and in a template */
    test_write(path, bytes, n);
    mem_free(bytes);
}

TEST(options_of_conversations_need_a_model_with_a_chat_format)
{
    const char *path = test_temp("plain.gguf");
    expect(0, NULL, NULL, ARGS("synth", "--layers", "1", "tiny-llama3", path));
    take_chat_format(path);
    expect(1, "--tools: ", NULL, ARGS("run", "-m", path, "--tools", "tools/demo_tools.json", "hi"));
    expect(1, "--messages: ", "[{\"role\": \"user\", \"content\": \"hi\"}]",
           ARGS("run", "-m", path, "--messages", "/dev/stdin"));
    expect(2, "--messages has no effect with --raw", NULL,
           ARGS("run", "-m", path, "--raw", "--messages", "none.json"));
    static const char *const options[][2] = {
        {"--system=x", "--system has no effect: the model has no chat format"},
        {"--think", "--think has no effect: the model has no chat format"},
        {"--effort=low", "--effort has no effect: the model has no chat format"}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        expect(0, options[i][1], NULL, ARGS("run", "-m", path, options[i][0], "-n", "1", "hi"));
}
