/* inspect.c - carat inspect: the content of a GGUF file and the memory that running it takes.
 *
 * The content comes from format/ and works for any model. The memory plan comes from the public
 * header, for models that carat runs. No weights are loaded.
 */
#include "apps/commands.h"
#include "apps/device_options.h"
#include "apps/inspect_int.h"
#include "apps/hub/hub.h"
#include "apps/kv_options.h"
#include "apps/lora_options.h"
#include "apps/mmproj_options.h"
#include "apps/named.h"
#include "apps/term.h"
#include "base/str.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct {
    int64_t n_ctx;
    kv_options kv;
    mmproj_options mmproj;
    lora_options lora;
    device_options where;
    const char *repack, *target, *draft_device, *gpu, *image;
    bool json;
} inspect_options;

static const option table[] = {
    OPT_INT(inspect_options, n_ctx, "ctx", 'c', "N", 1, 1 << 30,
            "plan for N tokens of context (default: the model's own)"),
    OPT_KV(inspect_options),
    OPT_LORA(inspect_options),
    OPT_MMPROJ(inspect_options),
    OPT_STR(inspect_options, gpu, "gpu", 0, "SIZE,...",
            "only print the plans of carat run on cards of these sizes, "
            "which need not be here: 24GB, or free memory: 23936MiB; 24GB+12GB: two together"),
    OPT_DEVICE_OR_SIZES(inspect_options,
                        "with --gpu: its compute capability, 8.0, 8.6 (default), 8.9, 9.0, 10.0 or "
                        "12.0",
                        "gpus|device|gpu"),
    OPT_REPACK(inspect_options),
    OPT_STR(inspect_options, target, "target", 0, "FILE",
            "of a drafter: what it costs beside this model; of an adapter: whether it fits it"),
    OPT_STR(inspect_options, draft_device, "draft-device", 0, "NAME",
            "of a drafter (dflash, nextn, a model): it is on this device: cpu, cuda or cuda:N",
            "target",
            .words = "cpu cuda cuda:0 cuda:1"),
    OPT_STR(inspect_options, image, "image", 0, "FILE", "what this picture costs the vision tower"),
    OPT_FLAG(inspect_options, json, "json", 'j', "print JSON"),
    OPT_END};

/* ---- Counting ------------------------------------------------------------------------------ */

/* PREFIX.expert_used_count / PREFIX.expert_count; 1 if the file lacks them. */
static double expert_share(const gguf *g)
{
    gguf_string arch;
    char key[128];
    int64_t used, total;
    if (!gguf_get_string(g, "general.architecture", &arch) || arch.n > 64)
        return 1;
    snprintf(key, sizeof key, "%.*s.expert_used_count", (int)arch.n, arch.at);
    if (!gguf_get_i64(g, key, &used))
        return 1;
    snprintf(key, sizeof key, "%.*s.expert_count", (int)arch.n, arch.at);
    if (!gguf_get_i64(g, key, &total) || total <= 0 || used < 0 || used > total)
        return 1;
    return (double)used / (double)total;
}

/* Parameters, and those that one token reads: experts by the share that is used; no tables that are
 * only looked up; the embedding if it is the head too. */
static void count_parameters(inspect_report *r)
{
    const gguf *g = r->g;
    double share = expert_share(g), active = 0;
    bool own_head = tensor_find(&g->tensors, "output.weight") != NULL;
    for (uint64_t i = 0; i < g->tensors.n; i++) {
        const tensor *t = &g->tensors.at[i];
        r->n_of_type[t->type]++;
        r->bytes_of_type[t->type] += t->n_bytes;
        if (!strncmp(t->name, "rope_", 5)) /* computed, not learned */
            continue;
        r->n_params += t->n_elements;
        if (!strcmp(t->name, "per_layer_token_embd.weight") ||
            (own_head && !strcmp(t->name, "token_embd.weight")))
            continue;
        active += (double)t->n_elements * (text_ends_with(t->name, "_exps.weight") ? share : 1);
    }
    r->n_active = (uint64_t)active;
}

/* ---- Text ---------------------------------------------------------------------------------- */

/* 1234567 as "1.23 M"; steps of 1000. */
static const char *amount(uint64_t v, char *buf, size_t cap)
{
    static const char *const unit[] = {"", " K", " M", " B", " T"};
    double x = (double)v;
    int u = 0;
    for (; x >= 1000 && u < 4; u++)
        x /= 1000;
    snprintf(buf, cap, u ? "%.2f%s" : "%.0f%s", x, unit[u]);
    return buf;
}

static const char *size_text(uint64_t v, char *buf, size_t cap)
{
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double x = (double)v;
    int u = 0;
    for (; x >= 1024 && u < 4; u++)
        x /= 1024;
    snprintf(buf, cap, u ? "%.2f %s" : "%.0f %s", x, unit[u]);
    return buf;
}

/* At most `most` bytes of file text, on one line. */
static void print_text(const char *s, uint64_t n, uint64_t most)
{
    uint64_t shown = n < most ? n : most;
    while (shown < n && shown && ((unsigned char)s[shown] & 0xc0) == 0x80)
        shown--; /* not inside a character */
    putchar('"');
    for (uint64_t i = 0, from = 0; i <= shown; i++)
        if (i == shown || s[i] == '\n') {
            term_put_name(stdout, s + from, (size_t)(i - from), 0);
            if (i < shown)
                fputs("\\n", stdout);
            from = i + 1;
        }
    putchar('"');
    if (shown < n)
        printf("... (%" PRIu64 " bytes)", n);
}

static void print_array(const gguf_value *v)
{
    uint64_t at = 0;
    gguf_string s;
    int64_t i;
    double f;
    putchar('[');
    for (uint64_t k = 0; k < v->count && k < INSPECT_ITEMS; k++) {
        if (k)
            fputs(", ", stdout);
        if (v->item == GGUF_STRING && gguf_next_string(v, &at, &s))
            print_text(s.at, s.n, 24);
        else if (v->item == GGUF_BOOL && gguf_item_i64(v, k, &i))
            fputs(i ? "true" : "false", stdout);
        else if (gguf_item_i64(v, k, &i))
            printf("%" PRId64, i);
        else if (gguf_item_f64(v, k, &f))
            printf("%.7g", f);
        else
            fputs("[...]", stdout);
    }
    if (v->count > INSPECT_ITEMS)
        printf(", ... %" PRIu64 " in all", v->count);
    putchar(']');
}

static void put_value(const gguf_value *v)
{
    gguf_string s;
    int64_t i;
    double f;
    fputs("  ", stdout);
    term_put_name(stdout, v->key, strlen(v->key), 42);
    putchar(' ');
    if (v->kind == GGUF_ARRAY)
        print_array(v);
    else if (gguf_value_string(v, &s))
        print_text(s.at, s.n, 64);
    else if (v->kind == GGUF_BOOL && gguf_value_i64(v, &i))
        fputs(i ? "true" : "false", stdout);
    else if (gguf_value_i64(v, &i))
        printf("%" PRId64, i);
    else if (gguf_value_f64(v, &f))
        printf("%.7g", f);
    putchar('\n');
}

static void put_plan(const inspect_report *r)
{
    const carat_memory_plan *p = &r->plan;
    char a[32];
    if (!p->n_ctx) {
        fputs("\nMemory\n  no plan: ", stdout);
        term_put(stdout, r->why_not.text, strlen(r->why_not.text));
        putchar('\n');
        return;
    }
    const struct {
        const char *what;
        uint64_t v;
        bool if_any;
    } line[] = {{"weights, from the file", p->weight_bytes, false},
                {"weights, repacked for speed", p->repack_bytes, false},
                {"keys and values, window layers", p->kv_swa_bytes, false},
                {"keys and values, global layers", p->kv_global_bytes, false},
                {"recurrent states", p->recurrent_bytes, true},
                {"scratch", p->scratch_bytes, false},
                {"the scorer of pages", p->scorer_bytes, true},
                {"the vision tower, at work", p->vision_bytes, true},
                {"the audio tower, at work", p->audio_bytes, true},
                {"pictures and sounds, as rows", p->picture_bytes, true},
                {"all at work", p->total_bytes, false},
                {"available now", p->available_bytes, false}};
    printf("\nMemory for %" PRId32 " tokens of context, chunks of %" PRId32 "\n", p->n_ctx,
           p->chunk);
    for (size_t i = 0; i < sizeof line / sizeof *line; i++)
        if (line[i].v || !line[i].if_any)
            printf("  %-32s %12s\n", line[i].what, size_text(line[i].v, a, sizeof a));
    printf("\nDevice %s: %s\n", r->model->device, r->model->device_why);
    device_print_plan(stdout, p);
    device_print_kernels(stdout, r->weight, r->n_weights);
    fputs("\nKeys and values\n", stdout);
    kv_print_kinds(stdout, r->kind, r->n_kinds < INSPECT_KINDS ? r->n_kinds : INSPECT_KINDS);
    if (r->n_kinds > INSPECT_KINDS)
        printf("  and %d kinds more\n", r->n_kinds - INSPECT_KINDS);
}

static void put_report(const inspect_report *r, const char *target)
{
    const gguf *g = r->g;
    char a[32], b[32], shape[96];
    term_put_name(stdout, g->path, strlen(g->path), 0);
    printf("\n  GGUF version %" PRIu32 ", %s in %" PRId32 " file%s, %" PRIu64 " tensors\n",
           g->version, size_text(g->file_bytes, a, sizeof a), g->n_parts, g->n_parts > 1 ? "s" : "",
           g->tensors.n);
    printf("  %s parameters, %s read per token\n", amount(r->n_params, a, sizeof a),
           amount(r->n_active, b, sizeof b));
    puts("\nMetadata");
    for (uint64_t i = 0; i < g->n_values; i++)
        put_value(&g->value[i]);
    inspect_words_put(&r->words);
    puts("\nTypes");
    for (uint32_t t = 0; t < NUM_TYPE_END; t++)
        if (r->n_of_type[t])
            printf("  %-8s %5" PRIu64 " tensors %12s\n", num_name(t), r->n_of_type[t],
                   size_text(r->bytes_of_type[t], a, sizeof a));
    puts("\nTensors");
    for (uint64_t i = 0; i < g->tensors.n; i++) {
        const tensor *t = &g->tensors.at[i];
        tensor_shape_text(t, shape, sizeof shape);
        fputs("  ", stdout);
        term_put_name(stdout, t->name, strlen(t->name), 36);
        printf(" %-8s %-22s %12s\n", num_name(t->type), shape, size_text(t->n_bytes, a, sizeof a));
    }
    if (r->lora.is_adapter)
        inspect_lora_put(&r->lora);
    else if (!r->vision.is_tower && r->draft.kind == DRAFT_NONE)
        put_plan(r);
    if (r->vision.is_tower || r->vision.tower)
        inspect_vision_put(&r->vision);
    if (r->draft.kind != DRAFT_NONE || r->draft.own || (target && !r->lora.is_adapter))
        inspect_draft_put(&r->draft, target);
}

/* ---- The command --------------------------------------------------------------------------- */

typedef struct inspection {
    const inspect_options *o;
    model_found file, target;
    carat_model_options model_options;
    carat_session_options session;
    gguf g;
    carat_model *m;
    carat_model_info info;
    inspect_report r;
} inspection;

/* Plans of sessions on GPUs that need not be here. */
static status plan_gpus(inspection *x, err *e)
{
    const inspect_options *o = x->o;
    if (o->image)
        return err_set(e, E_ARG, "--gpu prints plans alone: omit --image");
    const bool named = o->where.device && strcmp(o->where.device, "auto");
    if (o->where.gpu_mb || device_lists_gpus(&o->where) || named)
        return err_set(e, E_ARG, "%s that are here: --gpu has sizes of its own",
                       o->where.gpu_mb ? "--gpu-mb is the memory of GPUs"
                       : named         ? "--device is for devices"
                                       : "--gpus are the numbers of GPUs");
    x->session.n_outputs = 1; /* as carat run */
    if (o->target) { /* the plan of that model with this one beside it */
        x->model_options.draft = x->file.path;
        x->model_options.draft_device = o->draft_device;
    }
    return inspect_gpus(o->target ? x->target.path : x->file.path, o->gpu, &x->model_options,
                        &x->session, o->json, e);
}

static status plan_model(inspection *x, const inspect_picture *picture, err *e)
{
    inspect_report *r = &x->r;
    if (named_open(x->file.path, &x->model_options, &x->m, &r->why_not) ||
        carat_plan(x->m, &x->session, &r->plan, &r->why_not))
        return OK;
    r->n_kinds = carat_plan_kv(x->m, &x->session, r->kind, INSPECT_KINDS, NULL);
    r->n_weights = carat_plan_weights(x->m, r->weight, INSPECT_KINDS);
    carat_model_get_info(x->m, &x->info);
    r->model = &x->info;
    r->n_active = x->info.n_params_active; /* the model knows which tensors it does not use */
    return x->info.mmproj ? inspect_vision_open(&r->vision, x->info.mmproj, picture, e) : OK;
}

/* A model, a drafter or a tower. */
static status inspect_model(inspection *x, err *e)
{
    const inspect_options *o = x->o;
    const inspect_picture picture = {o->image, x->model_options.image_tokens};
    const char *path = x->file.path;
    inspect_report *r = &x->r;
    status st = OK;
    inspect_draft_open(&r->draft, path, &x->g);
    r->vision.is_tower = inspect_is_tower(&x->g);
    if (r->vision.is_tower && (st = inspect_vision_open(&r->vision, path, &picture, e)))
        return st;
    if (o->target)
        r->draft.own = false; /* the whole model drafts for the other one */
    if (o->target || r->draft.own)
        inspect_draft_plan(&r->draft, path, o->target ? x->target.path : path, o->draft_device,
                           &x->model_options, &x->session);
    if ((!o->target || r->draft.kind == DRAFT_NONE) && (st = plan_model(x, &picture, e)))
        return st;
    if (o->image && !r->vision.tower && !r->vision.is_tower)
        return err_set(e, E_ARG, "%s is no vision tower and has none beside it (--image)", path);
    inspect_words_read(&r->words, &x->g, x->m);
    return OK;
}

static status inspect_file(inspection *x, err *e)
{
    const inspect_options *o = x->o;
    inspect_report *r = &x->r;
    status st = gguf_open(&x->g, x->file.path, false, NULL, NULL, e);
    if (st)
        return st;
    r->g = &x->g;
    count_parameters(r);
    inspect_lora_open(&r->lora, &x->g, o->target ? x->target.path : NULL);
    if (r->lora.is_adapter && o->draft_device)
        return err_set(e, E_ARG, "%s is an adapter, no drafter (--draft-device)", x->file.path);
    if (!r->lora.is_adapter && (st = inspect_model(x, e)))
        return st;
    if (o->json)
        return inspect_json(r, e);
    put_report(r, o->target);
    return OK;
}

/* What the options ask for and the file does not give. */
static status answer_asked(const inspection *x, err *e)
{
    const inspect_options *o = x->o;
    const inspect_report *r = &x->r;
    const err *why = NULL;
    if (r->lora.is_adapter) {
        if (o->target && !r->lora.fits)
            why = r->lora.known ? &r->lora.misfit : &r->lora.why_not;
    } else if ((!r->draft.known || r->draft.own) && r->why_not.status &&
               (o->n_ctx || kv_options_given(&o->kv) || o->where.device || o->where.strict)) {
        why = &r->why_not;
    } else if (o->target && !r->draft.plan.n_ctx) {
        why = r->draft.known ? &r->draft.plan_why : &r->draft.why_not;
    }
    return why ? err_set(e, why->status, "%s", why->text) : OK;
}

static int run_inspect(const command *c, int argc, char **argv)
{
    inspect_options o = {0};
    int n_operands, stop = options_parse(c, argc, argv, &o, &n_operands);
    inspection x = {.o = &o, .model_options = {.vocab_only = true}};
    lora_files loras = {0};
    err e = {0};
    status st;
    if (stop)
        return stop - 1;
    term_init();
    device_options_apply(&o.where, &x.model_options);
    if ((st = options_repack(o.repack, &x.model_options.no_repack, &e)) ||
        (st = mmproj_options_apply(&o.mmproj, &x.model_options, &e)) ||
        (st = lora_options_apply(&o.lora, &loras, &x.model_options, &e)) ||
        (st = model_find(argv[0], &x.file, &e)) ||
        (o.target && (st = model_find(o.target, &x.target, &e))))
        goto out;
    x.session.n_ctx = (int32_t)o.n_ctx;
    kv_options_apply(&o.kv, &x.session);
    if ((st = o.gpu ? plan_gpus(&x, &e) : inspect_file(&x, &e)) || (st = term_flush(&e)))
        goto out;
    if (!o.gpu)
        st = answer_asked(&x, &e);
out:
    lora_files_free(&loras);
    inspect_draft_close(&x.r.draft);
    inspect_vision_close(&x.r.vision);
    carat_model_close(x.m);
    gguf_close(&x.g);
    model_found_free(&x.file);
    model_found_free(&x.target);
    return term_exit(st, &e);
}

const command command_inspect = {
    .name = "inspect",
    .operands = "FILE",
    .summary = "Show what a model file holds and what running it would cost",
    .about =
        "Prints the metadata, the tensors, the parameters and, for models that carat runs, the\n"
        "memory that a session needs. FILE may be the name of a model (carat list). Works for "
        "every\n"
        "GGUF file and loads nothing. Of a drafter\n"
        "it prints what the drafter sees and drafts, contradictions in the file, and with\n"
        "--target what it costs beside its model. Any model may draft for a larger one. Of a "
        "vision\n"
        "tower (an mmproj file), and of a model with one beside it, it prints what a picture "
        "costs.\n"
        "\n"
        "With --gpu it prints what carat run would choose on a card of that size: context, format\n"
        "of keys, experts and layers on the host. No GPU is needed.",
    .options = table,
    .n_operands_min = 1,
    .n_operands_max = 1,
    .run = run_inspect};
