/* options_foreign.c - the options that users of llama.cpp, ollama and vLLM type, and their meaning
 * here, where that is more than another name (which the option's row has).
 *
 * Most of them have one dash and several letters, so without this table -ngl would be -n. A row
 * names carat's option, or gives the reason why there is none. Nothing is taken and ignored: a
 * value passes without effect only where carat does what it asks for in any case.
 */
#include "apps/commands.h"

#include <string.h>

#define ONE_THREADS "carat has one number of threads for prompts and answers: -t N"
#define BY_LAYERS                                                                                  \
    "several GPUs share a model by its layers (--gpus 0,1), or each has a part of every layer "    \
    "(--split tensor)"
#define BY_THE_SYSTEM "the system does that: taskset and numactl choose processors and memory"
#define OF_THE_DRAFTER                                                                             \
    "the drafter runs as it was made: --draft names it, and --draft-device a device for it"
#define NO_SOUND "carat hears sounds and speaks none: its answers are text"
#define SELF_EXTEND "carat does not stretch a context: the model's own length counts"
#define DOWNLOADS "carat pull OWNER/REPO fetches models from a hub"
#define PLACES                                                                                     \
    "tensors are not placed by name: --gpu-layers N and --cpu-experts divide a model, and "        \
    "--experts-gpu PART says how many experts the GPU holds"
#define SLOTS "carat looks for the conversation with the longest equal beginning by itself"

#define FULL "an answer ends where the context is full: carat drops nothing of a conversation"
#define LOG_LINES "carat serve --log FORM is text, json or off; each line has its time"
#define DRAFT_LENGTHS "carat chooses lengths by measured times: --draft-max N is the longest"

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
     .values = (const foreign_value[]){{.value = "none", .name = "device", .to = "cpu"}, {0}},
     .name = "device"},
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
     .name = "split",
     .values = (const foreign_value[]){{.value = "layer", .name = "split", .to = "layers"},
                                       {.value = "none", .name = "split", .to = "none"},
                                       {.value = "tensor", .name = "split", .to = "tensor"},
                                       {.value = "*", .name = ""},
                                       {0}},
     .says = BY_LAYERS},
    {.words = "-ts --tensor-split", .name = "gpu-split"},
    {.words = "-cmoe --cpu-moe", .name = "cpu-experts", .value = "true"},
    {.words = "-ncmoe --n-cpu-moe -ncffn --n-cpu-ffn", .takes = true, .says = PLACES},
    {.words = "-ot --override-tensor", .takes = true, .says = PLACES},
    {.words = "--experts-early", .name = "experts-prefetch"}, /* its name until November 2026 */
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
    {.words = "-tb --threads-batch", .takes = true, .says = ONE_THREADS},
    {.words = "-C -Cr -Cb -Crb --cpu-mask --cpu-range --numa",
     .takes = true,
     .says = BY_THE_SYSTEM},
    /* Context, batches, caches. */
    {.words = "-b --batch-size",
     .takes = true,
     .says = "--chunk N (or -ub N) is the prompt tokens per pass"},
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
    {.words = "-hft --hf-token",
     .takes = true,
     .says = "the environment has the token: HF_TOKEN=..."},
    {.words = "-mu --model-url -dr --docker-repo", .takes = true, .says = DOWNLOADS},
    {.words = "-cl --cache-list", .says = "carat list shows the models of this machine"},
    {.words = "--no-mmproj", .name = "mmproj", .value = "none"},
    {.words = "-mmu --mmproj-url", .takes = true, .says = DOWNLOADS},
    {.words = "-mv -hfv -hfrv -hffv", .takes = true, .says = NO_SOUND},
    /* Drafters. */
    {.words = "-hfd -hfrd --hf-repo-draft --spec-draft-hf",
     .takes = true,
     .says = "carat pull fetches the drafter, and --draft takes its name"},
    {.words = "-devd --device-draft --spec-draft-device",
     .values = (const foreign_value[]){{.value = "none", .name = "draft-device", .to = "cpu"}, {0}},
     .name = "draft-device"},
    {.words = "-ngld -cd -td -tbd -ctkd -ctvd -otd -ncmoed -Cd -Crd -Cbd -Crbd",
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
    {.words = "--ignore-eos", .name = "ignore-eog", .value = "true"},
    {.words = "-j", .takes = true, .says = "--json-schema FILE takes a file"},
    {.words = "-l", .takes = true, .says = "--logit-bias ID=X adds X to the logit of a token"},
    {.words = "-bs --backend-sampling", .says = "carat chooses where it samples"},
    /* Server, logs. */
    {.words = "-lv --verbosity --log-verbosity", .takes = true, .says = "--verbose says more"},
    {.words = "-ag --agent -no-ag --no-agent", .says = "carat serve runs no tools"},
    /* The rest of llama-server and llama-cli. */
    {.words = "--version --usage --completion-bash",
     .says = "carat version, carat help COMMAND and carat completion SHELL print that"},
    {.words = "--cpu-strict --prio --poll --cpu-mask-batch --cpu-range-batch --cpu-strict-batch "
              "--prio-batch --poll-batch",
     .takes = true,
     .says = BY_THE_SYSTEM},
    {.words = "--kv-unified-per-slot",
     .takes = true,
     .says = "--ctx N is the context of each request"},
    {.words = "-n", .name = "tokens"},
    {.words = "--keep",
     .takes = true,
     .values = (const foreign_value[]){{.value = "0"}, {0}},
     .says = FULL},
    {.words = "--no-context-shift", .met = true},
    {.words = "--context-shift", .says = FULL},
    {.words = "--swa-full",
     .says = "carat goes back in a window by checkpoints: --checkpoint-mb N is their memory"},
    {.words = "--cache-idle-slots --no-cache-idle-slots",
     .says = "carat keeps idle conversations in memory and in --kv-cache-dir DIR by itself"},
    {.words = "-p --prompt -f --file",
     .takes = true,
     .says = "requests have prompts; carat run answers one"},
    {.words = "--seed --logit-bias --grammar --json-schema",
     .takes = true,
     .says = "requests have a field for it"},
    {.words = "--perf --show-timings --no-warmup --no-display-prompt --no-escape "
              "--no-skip-chat-parsing --jinja --op-offload --mmproj-auto --mmproj-offload --ui "
              "--webui --slots --metrics --embedding --embeddings --rerank --reranking "
              "--cache-prompt --models-autoload --no-log-jsonl --no-cors-credentials --simple-io",
     .met = true},
    {.words = "--no-perf --no-show-timings", .name = "quiet", .value = "true"},
    {.words = "--warmup", .says = "carat computes no empty pass before the first one"},
    {.words = "--display-prompt --verbose-prompt",
     .says = "carat tokenize shows the tokens of a prompt"},
    {.words = "--spm-infill",
     .says = "the model's family says in which order infill has its parts"},
    {.words = "--sampler-seq --sampling-seq",
     .takes = true,
     .says = "--samplers LIST has their names, in order"},
    {.words = "--adaptive-target --adaptive-decay",
     .takes = true,
     .says = "carat has no such sampler: carat help run lists those that it has"},
    {.words = "--pooling", .takes = true, .says = "the model file says how its vectors come about"},
    {.words = "--embd-normalize --embd-normalise",
     .takes = true,
     .values = (const foreign_value[]){{.value = "2"}, {0}},
     .says = "vectors have length 1, as in the API of OpenAI"},
    {.words = "--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx "
              "--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast",
     .takes = true,
     .says = "carat turns as the model file says: carat convert writes a file with other numbers"},
    {.words = "--override-kv --hf-overrides",
     .takes = true,
     .says = "carat takes every number of a model from its file"},
    {.words = "--no-host --no-op-offload",
     .says = "the plan says what each device computes and holds: carat inspect prints it"},
    {.words = "--no-mmproj-auto --language-model-only", .name = "mmproj", .value = "none"},
    {.words = "-mmdev --mmproj-device",
     .takes = true,
     .says = "the vision tower is where the model is"},
    {.words = "--no-mmproj-offload", .says = "the vision tower is where the model is"},
    {.words = "--image-min-tokens --mtmd-batch-max-tokens",
     .takes = true,
     .says = "--image-tokens N is the most of a picture, and carat chooses the rest"},
    {.words = "--video --video-fps --video-timestamp-interval --video-ffmpeg-dir",
     .takes = true,
     .says = "carat sees no video"},
    {.words = "--audio", .takes = true, .says = "-f FILE takes sounds, and pictures"},
    {.words = "--rpc", .takes = true, .says = "carat computes on this machine alone"},
    {.words = "-lzm --lazy-mode",
     .takes = true,
     .values = (const foreign_value[]){{.value = "auto"}, {0}},
     .says = "the system reads mapped files when they are needed"},
    {.words = "--list-devices",
     .says = "nvidia-smi lists GPUs; --verbose says which one a model takes, and why"},
    {.words = "--check-tensors", .says = "carat pull checks the hash of every file"},
    {.words = "--control-vector --control-vector-scaled --control-vector-layer-range",
     .takes = true,
     .says = "carat applies no control vectors"},
    {.words = "--tags", .takes = true, .says = "--alias NAME is the name for clients"},
    {.words = "--reuse-port", .says = "a reverse proxy divides requests among servers"},
    {.words = "--path --ui-config --webui-config --ui-config-file --webui-config-file",
     .takes = true,
     .says = "the page is part of the program, and keeps its settings in the browser"},
    {.words = "--no-ui --no-webui", .says = "the page takes nothing until it is opened"},
    {.words = "--no-slots", .says = "--api-key KEY protects all paths"},
    {.words = "--props", .says = "settings change by a restart"},
    {.words = "--cors-methods --cors-headers",
     .takes = true,
     .says = "--cors ORIGINS answers with what its paths take"},
    {.words = "--cors-credentials", .says = "--cors ORIGINS never allows credentials"},
    {.words = "--api-prefix --root-path",
     .takes = true,
     .says = "a reverse proxy adds a prefix (docs/clients.md)"},
    {.words = "--ui-mcp-proxy --webui-mcp-proxy", .says = "carat serve runs no tools"},
    {.words = "--no-ui-mcp-proxy --no-webui-mcp-proxy", .met = true},
    {.words = "--tools --tools-runtime --mcp-servers-config --mcp-servers-json",
     .takes = true,
     .says = "carat serve runs no tools: requests name theirs"},
    {.words = "--ssl-key-file --ssl-cert-file --ssl-keyfile --ssl-certfile --ssl-ca-certs "
              "--ssl-cert-reqs",
     .takes = true,
     .says = "carat has no TLS: put a reverse proxy in front"},
    {.words = "--chat-template-kwargs --default-chat-template-kwargs",
     .takes = true,
     .says = "requests have chat_template_kwargs; --think, --no-think and --effort are options"},
    {.words = "--sse-ping-interval",
     .values = (const foreign_value[]){{.value = "-1", .name = "ping", .to = "0"}, {0}},
     .name = "ping",
     .takes = true},
    {.words = "--threads-http --api-server-count",
     .takes = true,
     .says = "each connection has its thread: --connections N is the most"},
    {.words = "--no-cache-prompt --no-enable-prefix-caching",
     .says = "carat always reuses what is equal: answers do not depend on it"},
    {.words = "--cache-reuse",
     .takes = true,
     .values = (const foreign_value[]){{.value = "0"}, {0}},
     .says = "carat reuses the equal beginning of a prompt, and no parts behind it"},
    {.words = "--models-preset",
     .takes = true,
     .says = "--preset NAME takes a preset of --config FILE"},
    {.words = "--no-jinja --chat-template --chat-template-file --in-prefix --in-suffix",
     .takes = true,
     .says = "carat follows the template of the model file; --raw takes a prompt as it is"},
    {.words = "--in-prefix-bos --skip-chat-parsing --no-prefill-assistant --prefill-assistant",
     .says = "carat follows the template of the model file; --raw takes a prompt as it is"},
    {.words = "--reasoning-format",
     .takes = true,
     .values = (const foreign_value[]){{.value = "auto"}, {.value = "deepseek"}, {0}},
     .says = "thoughts come apart from the answer"},
    {.words = "--reasoning-budget",
     .name = "think-max",
     .takes = true,
     .values = (const foreign_value[]){{.value = "-1"},
                                       {.value = "0", .name = "no-think", .to = "true"},
                                       {0}},
     .says = "expected -1, 0 or a number of tokens"},
    {.words = "--reasoning-budget-message",
     .takes = true,
     .says = "a thought ends as the model's template ends it"},
    {.words = "--reasoning-preserve", .name = "preserve-thinking", .value = "true"},
    {.words = "--no-reasoning-preserve", .name = "drop-thinking", .value = "true"},
    {.words = "--log-disable --disable-log-requests --no-enable-log-requests",
     .name = "log",
     .value = "off"},
    {.words = "--log-jsonl", .name = "log", .value = "json"},
    {.words = "--log-file", .takes = true, .says = "the log goes to stderr: 2> FILE"},
    {.words = "--log-prompts-dir",
     .takes = true,
     .says = "carat serve --trace DIR writes requests there"},
    {.words = "--log-colors", .takes = true, .says = LOG_LINES},
    {.words = "-v --verbose --log-verbose --log-prefix --no-log-prefix --log-timestamps "
              "--no-log-timestamps",
     .says = LOG_LINES},
    {.words = "--offline", .says = "HF_HUB_OFFLINE=1 in the environment does that"},
    {.words =
         "--spec-draft-threads --threads-draft --spec-draft-threads-batch --threads-batch-draft "
         "--spec-draft-cpu-mask --cpu-mask-draft --spec-draft-cpu-range --cpu-range-draft "
         "--spec-draft-cpu-strict --cpu-strict-draft --spec-draft-prio --prio-draft "
         "--spec-draft-poll --poll-draft --spec-draft-cpu-mask-batch --cpu-mask-batch-draft "
         "--spec-draft-cpu-range-batch --cpu-range-batch-draft --spec-draft-cpu-strict-batch "
         "--cpu-strict-batch-draft --spec-draft-prio-batch --prio-batch-draft "
         "--spec-draft-poll-batch --poll-batch-draft --spec-draft-type-k --cache-type-k-draft "
         "--spec-draft-type-v --cache-type-v-draft --spec-draft-override-tensor "
         "--override-tensor-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe --n-cpu-moe-draft "
         "--spec-draft-ngl --gpu-layers-draft "
         "--n-gpu-layers-draft --spec-draft-ctx-size --ctx-size-draft --spec-draft-replace",
     .takes = true,
     .says = OF_THE_DRAFTER},
    {.words = "--spec-draft-cpu-moe --cpu-moe-draft --spec-draft-backend-sampling "
              "--no-spec-draft-backend-sampling",
     .says = OF_THE_DRAFTER},
    {.words = "--spec-draft-n-min --draft-min --draft-n-min --spec-draft-p-min --draft-p-min "
              "--spec-draft-p-split --draft-p-split",
     .takes = true,
     .says = DRAFT_LENGTHS},
    {.words =
         "--spec-ngram-mod-n-min --spec-ngram-mod-n-max --spec-ngram-mod-n-match "
         "--spec-ngram-simple-size-n --spec-ngram-simple-size-m --spec-ngram-simple-min-hits "
         "--spec-ngram-map-k-size-n --spec-ngram-map-k-size-m --spec-ngram-map-k-min-hits "
         "--spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-size-m --spec-ngram-map-k4v-min-hits "
         "--spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits",
     .takes = true,
     .says = DRAFT_LENGTHS},
    {.words = "--spec-type",
     .takes = true,
     .values = (const foreign_value[]){{.value = "none", .name = "draft", .to = "none"},
                                       {.value = "ngram-simple", .name = "draft", .to = "lookup"},
                                       {.value = "ngram-map-k", .name = "draft", .to = "lookup"},
                                       {.value = "ngram-map-k4v", .name = "draft", .to = "lookup"},
                                       {.value = "ngram-mod", .name = "draft", .to = "lookup"},
                                       {.value = "ngram-cache", .name = "draft", .to = "lookup"},
                                       {.value = "draft-mtp", .name = "draft", .to = "nextn"},
                                       {0}},
     .says = "--draft WHAT names the drafter: auto, lookup, nextn or a file"},
    {.words = "--spec-synth-len --spec-synth-rates",
     .takes = true,
     .says = "carat bench --spec measures drafts"},
    {.words = "--spec-default", .name = "draft", .value = "lookup"},
    {.words = "--embd-gemma-default", .name = "hf-repo", .value = "embeddinggemma"},
    {.words = "--gpt-oss-20b-default", .name = "hf-repo", .value = "gpt-oss:20b"},
    {.words = "--gpt-oss-120b-default", .name = "hf-repo", .value = "gpt-oss:120b"},
    {.words = "--vision-gemma-4b-default", .name = "hf-repo", .value = "gemma3:4b"},
    {.words = "--vision-gemma-12b-default", .name = "hf-repo", .value = "gemma3:12b"},
    {.words = "--fim-qwen-30b-default", .name = "hf-repo", .value = "qwen3-coder:30b"},
    {.words = "--fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default "
              "--fim-qwen-7b-spec --fim-qwen-14b-spec",
     .says = "carat does not run Qwen2.5: --fim-qwen-30b-default is Qwen3-Coder"},
    {.words = "--server-base",
     .takes = true,
     .says = "carat run computes here; docs/clients.md has programs that ask a server"},
    {.words = "--prompt-cache --prompt-cache-all --prompt-cache-ro",
     .takes = true,
     .says = "conversations are kept by themselves: --resume continues one"},
    {.words = "--slot-save-path",
     .takes = true,
     .says = "carat serve has slots; conversations are kept by themselves: --resume continues one"},
    {.words = "-o --output --output-file",
     .takes = true,
     .says = "the answer goes to stdout: > FILE"},
    /* ollama. */
    {.words = "--think",
     .takes = true,
     .values = (const foreign_value[]){{.value = "low", .name = "effort", .to = "low"},
                                       {.value = "medium", .name = "effort", .to = "medium"},
                                       {.value = "high", .name = "effort", .to = "high"},
                                       {.value = "max", .name = "effort", .to = "xhigh"},
                                       {0}},
     .says = "expected true, false, low, medium, high or max"},
    {.words = "--hidethinking", .says = "--no-think answers without a thought"},
    {.words = "--nowordwrap", .says = "lines are wrapped in a terminal alone"},
    {.words = "--insecure", .says = "HF_ENDPOINT=http://HOST in the environment names another hub"},
    {.words = "--dimensions --truncate",
     .takes = true,
     .says = "carat embed has --dimensions and --truncate"},
    {.words = "--experimental --experimental-yolo --experimental-websearch",
     .says = "carat runs no tools: --tools FILE lets the model call yours"},
    /* vLLM. */
    {.words = "--max-model-len",
     .values = (const foreign_value[]){{.value = "auto"}, {.value = "-1"}, {0}},
     .name = "ctx"},
    {.words = "--max-num-batched-tokens",
     .takes = true,
     .says = "--chunk N is the prompt tokens per pass"},
    {.words = "--gpu-memory-utilization",
     .takes = true,
     .says = "carat takes what a plan needs, and --gpu-mb N bounds that"},
    {.words = "-tp --tensor-parallel-size -pp --pipeline-parallel-size -dp --data-parallel-size",
     .takes = true,
     .values = (const foreign_value[]){{.value = "1"}, {0}},
     .says = BY_LAYERS},
    {.words = "--dtype",
     .takes = true,
     .values = (const foreign_value[]){{.value = "auto"}, {0}},
     .says = "weights are as the file has them: carat quantize writes another"},
    {.words = "--quantization",
     .takes = true,
     .says = "weights are as the file has them: carat quantize writes another"},
    {.words = "--kv-cache-dtype",
     .takes = true,
     .values = (const foreign_value[]){{.value = "auto"},
                                       {.value = "float16", .name = "kv-type", .to = "f16"},
                                       {.value = "bfloat16", .name = "kv-type", .to = "bf16"},
                                       {0}},
     .says = "--kv-type TYPE is one of carat's: q8_0 has 8.5 bits"},
    {.words = "--enable-prefix-caching --enable-auto-tool-choice --enable-chunked-prefill "
              "--trust-remote-code --async-scheduling --enable-server-load-tracking",
     .met = true},
    {.words = "--tool-call-parser --reasoning-parser", .takes = true, .met = true},
    {.words = "--no-trust-remote-code", .says = "carat runs no code of models"},
    {.words = "--enforce-eager", .says = "carat chooses when it records passes"},
    {.words = "--no-enable-chunked-prefill", .says = "--chunk N is the prompt tokens per pass"},
    {.words = "--download-dir",
     .takes = true,
     .says = "XDG_DATA_HOME in the environment says where models are"},
    {.words = "--tokenizer --tokenizer-mode",
     .takes = true,
     .says = "a model file has its tokenizer"},
    {.words = "--revision --code-revision --tokenizer-revision",
     .takes = true,
     .says = "carat pull --revision REV pulls that version"},
    {.words = "--swap-space --cpu-offload-gb",
     .takes = true,
     .says = "--kv-host-mb N is for keys, --experts-gpu PART and --gpu-layers N for weights"},
    {.words = "--block-size --compilation-config --attention-backend "
              "--distributed-executor-backend --scheduling-policy",
     .takes = true,
     .says = "carat chooses how it computes"},
    {.words = "--allowed-origins",
     .takes = true,
     .says = "--cors ORIGINS has them with commas between"},
    {.words = "--speculative-config --speculative-model",
     .takes = true,
     .says = "--draft WHAT names the drafter: auto, lookup, nextn or a file"},
    {.words = "--enable-lora", .met = true},
    {.words = "--lora-modules --max-loras --max-lora-rank",
     .takes = true,
     .says = "--lora FILE[:SCALE] names an adapter, a GGUF file (carat convert makes it)"},
    {.words = "--limit-mm-per-prompt --mm-processor-kwargs",
     .takes = true,
     .says = "--image-tokens N is the most of a picture; a request has up to 16"},
    {.words = "--guided-decoding-backend --structured-outputs-config --tool-parser-plugin",
     .takes = true,
     .says = "carat enforces schemas, grammars and calls by itself"},
    {.words = "--task --runner --convert",
     .takes = true,
     .says = "the model file says what it is for"},
    {.words = "--load-format --model-impl --config-format",
     .takes = true,
     .values = (const foreign_value[]){{.value = "auto"}, {.value = "gguf"}, {0}},
     .says = "carat reads GGUF files: carat convert makes them of safetensors"},
    {.words = "--generation-config",
     .takes = true,
     .values = (const foreign_value[]){{.value = "auto"}, {0}},
     .says = "the options of sampling come before what the model file says"},
    {.words = "--override-generation-config",
     .takes = true,
     .says = "the options of sampling are --temp, --top-p and so on"},
    {.words = "--disable-uvicorn-access-log", .name = "log", .value = "off"},
    {.words = "--disable-log-stats", .says = LOG_LINES},
    {.words = "--enable-expert-parallel -ep", .says = BY_LAYERS},
    {.words = "--enable-reasoning", .met = true},
    {.words = "--response-role",
     .takes = true,
     .values = (const foreign_value[]){{.value = "assistant"}, {0}},
     .says = "answers have the role assistant"},
    {.words = "--chat-template-content-format",
     .takes = true,
     .values = (const foreign_value[]){{.value = "auto"}, {0}},
     .says = "carat follows the template of the model file"},
    {.words = "--middleware --uvicorn-log-level", .takes = true, .says = LOG_LINES},
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

bool foreign_find(const char *word, foreign_option *out)
{
    size_t n = strcspn(word, "=");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (among(table[i].words, word, n)) {
            *out = table[i];
            return true;
        }
    for (const command *const *c = commands; *c; c++)
        for (const option *o = (*c)->options; o && o->name; o++)
            if (o->also && among(o->also, word, n)) {
                *out = (foreign_option){.words = o->also, .name = o->name};
                return true;
            }
    return false;
}

const option *options_find_any(const option *rows, const char *name)
{
    char word[64] = "--";
    const option *o = options_find(rows, name);
    for (size_t i = 0; name[i] && i < sizeof word - 3; i++)
        word[2 + i] = (char)(name[i] == '_' ? '-' : name[i]);
    foreign_option f;
    if (o || strlen(name) > sizeof word - 3 || !foreign_find(word, &f))
        return o;
    return f.name && !f.value && !f.values ? options_find(rows, f.name) : NULL;
}

const foreign_value *foreign_find_value(const foreign_option *f, const char *value)
{
    const foreign_value *v = f->values;
    while (v && v->value && strcmp(v->value, value) && strcmp(v->value, "*"))
        v++;
    return v && v->value ? v : NULL;
}
