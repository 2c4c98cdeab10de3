/* options_foreign.c - the options that users of llama.cpp type, and their meaning here.
 *
 * Most of them have one dash and several letters, so without this table -ngl would be -n. A row
 * names carat's option, or gives the reason why there is none. Nothing is taken and ignored: a
 * value passes without effect only where carat does what it asks for in any case.
 */
#include "apps/options.h"

#include "carat.h"

#include <string.h>

#define ONE_THREADS "carat has one number of threads for prompts and answers: -t N"
#define ONE_GPU "a model runs on one GPU, and --device cuda:N chooses it"
#define BY_THE_SYSTEM "the system does that: taskset and numactl choose processors and memory"
#define OF_THE_DRAFTER "the drafter runs where the model runs, and as it was made: --draft names it"
#define NO_SOUND "carat reads no sound and writes none"
#define SELF_EXTEND "carat does not stretch a context: the model's own length counts"
#define DOWNLOADS "carat pull OWNER/REPO fetches models from a hub"
#define PLACES                                                                                     \
    "tensors are not placed by name: --gpu-layers N and --cpu-experts divide a model, and "        \
    "--experts-gpu PART says how many experts the GPU holds"
#define SLOTS "carat looks for the conversation with the longest equal beginning by itself"

#define OTHER_WORDS(kind, field, json, also, key, flag, others, ...)                               \
    {.words = (others), .name = (flag)},

static const foreign_option table[] = {
    /* Where it runs. */
    {.words = "-ngl --n-gpu-layers",
     .name = "gpu-layers",
     .values = (const foreign_value[]){{.value = "0", .name = "device", .to = "cpu"},
                                       {.value = "all", .name = "all-layers-on-gpu", .to = "true"},
                                       {.value = "auto"},
                                       {.value = "-1"},
                                       {.value = "99", .name = "all-layers-on-gpu", .to = "true"},
                                       {.value = "999", .name = "all-layers-on-gpu", .to = "true"},
                                       {.value = "100", .name = "all-layers-on-gpu", .to = "true"},
                                       {0}},
     .note = "the last N layers on the GPU, the others on the CPU"},
    {.words = "-dev",
     .name = "device",
     .values = (const foreign_value[]){{.value = "none", .name = "device", .to = "cpu"}, {0}}},
    {.words = "-mg --main-gpu",
     .name = "device",
     .values = (const foreign_value[]){{.value = "0", .name = "device", .to = "cuda:0"},
                                       {.value = "1", .name = "device", .to = "cuda:1"},
                                       {.value = "2", .name = "device", .to = "cuda:2"},
                                       {.value = "3", .name = "device", .to = "cuda:3"},
                                       {.value = "4", .name = "device", .to = "cuda:4"},
                                       {.value = "5", .name = "device", .to = "cuda:5"},
                                       {.value = "6", .name = "device", .to = "cuda:6"},
                                       {.value = "7", .name = "device", .to = "cuda:7"},
                                       {.value = "*", .name = ""},
                                       {0}},
     .says = "expected the number of a GPU, 0 to 7"},
    {.words = "-sm --split-mode",
     .takes = true,
     .values = (const foreign_value[]){{.value = "none"}, {.value = "layer"}, {0}},
     .says = ONE_GPU},
    {.words = "-ts --tensor-split", .takes = true, .says = ONE_GPU},
    {.words = "-cmoe --cpu-moe", .name = "cpu-experts", .value = "true"},
    {.words = "-ncmoe --n-cpu-moe -ncffn --n-cpu-ffn", .takes = true, .says = PLACES},
    {.words = "-ot --override-tensor", .takes = true, .says = PLACES},
    {.words = "-kvo --kv-offload", .met = true},
    {.words = "-nkvo --no-kv-offload",
     .says =
         "keys and values are where the layers are: --kv-pool N keeps part of them on the host"},
    {.words = "-fit --fit",
     .takes = true,
     .values = (const foreign_value[]){{.value = "on"}, {0}},
     .says = "carat always plans for the memory there is: --overcommit goes beyond it"},
    {.words = "-fitt --fit-target",
     .takes = true,
     .says = "--gpu-mb N says how much of the GPU's memory carat may take"},
    {.words = "-fitc --fit-ctx",
     .takes = true,
     .says = "-c N sets the context, and the plan is checked"},
    {.words = "-lm --load-mode",
     .takes = true,
     .values = (const foreign_value[]){{.value = "auto"},
                                       {.value = "mmap"},
                                       {.value = "none", .name = "no-mmap", .to = "true"},
                                       {0}},
     .says = "expected mmap or none; --no-mmap reads the file"},
    {.words = "-dio --direct-io", .says = "--no-mmap reads the file instead of mapping it"},
    {.words = "-ndio --no-direct-io --mmap", .met = true},
    {.words = "-mmp",
     .takes = true,
     .values = (const foreign_value[]){{.value = "1"},
                                       {.value = "0", .name = "no-mmap", .to = "true"},
                                       {0}},
     .says = "expected 0 or 1"},
    {.words = "-nr --no-repack", .name = "repack", .value = "off"},
    {.words = "-fa --flash-attn",
     .takes = true,
     .values = (const foreign_value[]){{.value = ""},
                                       {.value = "on"},
                                       {.value = "auto"},
                                       {.value = "1"},
                                       {.value = "true"},
                                       {.value = "enabled"},
                                       {.value = "off", .name = ""},
                                       {.value = "0", .name = ""},
                                       {.value = "false", .name = ""},
                                       {.value = "disabled", .name = ""},
                                       {0}},
     .says = "attention always works without a matrix of scores"},
    /* Threads. */
    {.words = "--num-thread", .name = "threads"},
    {.words = "-tb --threads-batch", .takes = true, .says = ONE_THREADS},
    {.words = "-C -Cr -Cb -Crb --cpu-mask --cpu-range --numa",
     .takes = true,
     .says = BY_THE_SYSTEM},
    /* Context, batches, caches. */
    {.words = "--ctx-size --num-ctx", .name = "ctx"},
    {.words = "-ub --ubatch-size --num-batch", .name = "chunk"},
    {.words = "-b --batch-size",
     .takes = true,
     .says = "--chunk N (or -ub N) is the prompt tokens per pass"},
    {.words = "-ctk --cache-type-k", .name = "kv-k"},
    {.words = "-ctv --cache-type-v", .name = "kv-v"},
    {.words = "-dt --defrag-thold",
     .takes = true,
     .says = "the cache of carat needs no defragmentation"},
    {.words = "-np --parallel",
     .name = "parallel",
     .values = (const foreign_value[]){{.value = "-1"}, {0}},
     .says = "carat serve answers several at once"},
    {.words = "-cb --cont-batching", .met = true},
    {.words = "-nocb --no-cont-batching",
     .says = "carat serve always batches: --parallel 1 answers in turn"},
    {.words = "-kvu --kv-unified",
     .says = "carat serve --kv-pool N shares one pool among all requests"},
    {.words = "-no-kvu --no-kv-unified", .met = true},
    {.words = "-cram --cache-ram",
     .name = "checkpoint-mb",
     .values = (const foreign_value[]){{.value = "-1", .name = ""}, {0}},
     .says = "expected a number of MiB; --checkpoint-mb N is the same"},
    {.words = "-ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step",
     .takes = true,
     .says = "--checkpoint-mb N limits checkpoints by their memory"},
    {.words = "-sps --slot-prompt-similarity", .takes = true, .says = SLOTS},
    {.words = "-gan -gaw --grp-attn-n --grp-attn-w", .takes = true, .says = SELF_EXTEND},
    /* Models. */
    {.words = "-hf -hfr", .name = "hf-repo"},
    {.words = "-hff", .name = "hf-file"},
    {.words = "-hft --hf-token",
     .takes = true,
     .says = "the environment has the token: HF_TOKEN=..."},
    {.words = "-mu --model-url -dr --docker-repo", .takes = true, .says = DOWNLOADS},
    {.words = "-cl --cache-list", .says = "carat list shows the models of this machine"},
    {.words = "-a", .name = "alias"},
    {.words = "-mm", .name = "mmproj"},
    {.words = "--image", .name = "file"},
    {.words = "--no-mmproj", .name = "mmproj", .value = "none"},
    {.words = "-mmu --mmproj-url", .takes = true, .says = DOWNLOADS},
    {.words = "-mv -hfv -hfrv -hffv", .takes = true, .says = NO_SOUND},
    {.words = "--lora --lora-scaled",
     .takes = true,
     .says = "carat applies no adapters: merge them first"},
    /* Drafters. */
    {.words = "-md --model-draft --spec-draft-model", .name = "draft"},
    {.words = "-hfd -hfrd --hf-repo-draft --spec-draft-hf",
     .takes = true,
     .says = "carat pull fetches the drafter, and --draft takes its name"},
    {.words = "--draft-n --spec-draft-n-max", .name = "draft-max"},
    {.words = "-ngld -devd -cd -td -tbd -ctkd -ctvd -otd -ncmoed -Cd -Crd -Cbd -Crbd",
     .takes = true,
     .says = OF_THE_DRAFTER},
    {.words = "-cmoed", .says = OF_THE_DRAFTER},
    {.words = "-lcs --lookup-cache-static -lcd --lookup-cache-dynamic",
     .takes = true,
     .says = "--draft lookup searches the prompt and the answer, without a file"},
    /* Prompts and conversations. */
    {.words = "-s",
     .name = "seed",
     .numbers = true,
     .says = "-s is the system message here, and --seed N the seed"},
    {.words = "-sys --system-prompt", .name = "system"},
    {.words = "-sysf --system-prompt-file",
     .takes = true,
     .says = "the system message is a text: --system \"$(cat FILE)\""},
    {.words = "-st --single-turn", .name = "single-turn", .value = "true"},
    {.words = "-cnv --conversation", .name = "interactive", .value = "true"},
    {.words = "-no-cnv --no-conversation", .name = "raw", .value = "true"},
    {.words = "-if --interactive-first", .name = "interactive", .value = "true"},
    {.words = "-mli --multiline-input",
     .says = "a pasted text is one message, and \"\"\" begins one of several lines"},
    {.words = "-co --color",
     .says = "colours are on where the output is a terminal, unless NO_COLOR is set"},
    {.words = "-bf --binary-file", .takes = true, .says = "a prompt is text: -p FILE reads it"},
    {.words = "-ptc --print-token-count",
     .takes = true,
     .says = "the line after each answer has the counts"},
    {.words = "-e --escape", .says = "a shell writes escapes: $'a\\nb'"},
    {.words = "-sp --special", .says = "--json-events has each token of the answer with its id"},
    {.words = "-rea --reasoning",
     .takes = true,
     .values = (const foreign_value[]){{.value = "on", .name = "think", .to = "true"},
                                       {.value = "off", .name = "no-think", .to = "true"},
                                       {.value = "auto"},
                                       {0}},
     .says = "expected on, off or auto"},
    /* Sampling. */
    CARAT_SAMPLING_SETTINGS(OTHER_WORDS, ){
        .words = "--predict --n-predict --num-predict --max-tokens", .name = "tokens"},
    {.words = "--ignore-eos", .name = "ignore-eog", .value = "true"},
    {.words = "-r --reverse-prompt", .name = "stop"},
    {.words = "-jf --json-schema-file", .name = "json-schema"},
    {.words = "-j", .takes = true, .says = "--json-schema FILE takes a file"},
    {.words = "--grammar-file", .name = "grammar"},
    {.words = "-l", .takes = true, .says = "--logit-bias ID=X adds X to the logit of a token"},
    {.words = "-bs --backend-sampling", .says = "carat chooses where it samples"},
    /* Server, logs. */
    {.words = "-to", .name = "timeout"},
    {.words = "-lv --verbosity --log-verbosity", .takes = true, .says = "--verbose says more"},
    {.words = "-ag --agent -no-ag --no-agent", .says = "carat serve runs no tools"},
};

/* Is `word`, of n bytes, one of the blank-separated words of list? */
static bool among(const char *list, const char *word, size_t n)
{
    for (const char *at = list; *at; at += strspn(at, " ")) {
        size_t len = strcspn(at, " ");
        if (len == n && !memcmp(at, word, n))
            return true;
        at += len;
    }
    return false;
}

const foreign_option *foreign_find(const char *word)
{
    size_t n = strcspn(word, "=");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (among(table[i].words, word, n))
            return &table[i];
    return NULL;
}

const option *options_find_any(const option *rows, const char *name)
{
    char word[64] = "--";
    const option *o = options_find(rows, name);
    for (size_t i = 0; name[i] && i < sizeof word - 3; i++)
        word[2 + i] = (char)(name[i] == '_' ? '-' : name[i]);
    const foreign_option *f = o || strlen(name) > sizeof word - 3 ? NULL : foreign_find(word);
    return f && f->name && !f->value && !f->values ? options_find(rows, f->name) : o;
}

const foreign_value *foreign_find_value(const foreign_option *f, const char *value)
{
    const foreign_value *v = f->values;
    while (v && v->value && strcmp(v->value, value) && strcmp(v->value, "*"))
        v++;
    return v && v->value ? v : NULL;
}
