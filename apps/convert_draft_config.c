/* convert_draft_config.c - config.json of a drafter to a shape.
 *
 * Four layouts: z-lab's DFlash, Laguna's, DeepSpec's DSpark, and that of speculators, which puts
 * the keys of the layers into transformer_layer_config. A key may occur at the top or inside
 * dflash_config; two that contradict each other are an error. Nothing has a default but the layout
 * of the block, whose published defaults differ by family (below). The values are compared with the
 * tensors in convert_draft.c.
 */
#include "apps/convert_int.h"
#include "base/mem.h"
#include "model/dflash_shapes.h"
#include "model/draft_kind.h"
#include "model/gemma4_mtp_shapes.h"

#include <inttypes.h>

/* The objects in which a key may be; unused ones are NULL. */
typedef struct draft_config {
    config_fields at[3]; /* dflash_config, the top, transformer_layer_config */
    const char *path;
    err *e;
    status st;
} draft_config;

static void fail(draft_config *c, status st)
{
    if (!c->st)
        c->st = st;
}

/* The first object that has the key, whose values must agree; NULL: none has it. */
static config_fields *holder(draft_config *c, const char *key)
{
    config_fields *found = NULL;
    for (int i = 0; i < 3; i++) {
        const json_t *v = c->at[i].object ? config_get(&c->at[i], key) : NULL;
        if (v && found && !json_equal(v, config_get(found, key)))
            fail(c, err_set(c->e, E_FORMAT, "%s: two values of %s contradict each other", c->path,
                            key));
        if (v && !found)
            found = &c->at[i];
    }
    return found;
}

static const json_t *value(draft_config *c, const char *key)
{
    const config_fields *f = holder(c, key);
    return f ? config_get(f, key) : NULL;
}

static int32_t number(draft_config *c, const char *key)
{
    config_fields *f = holder(c, key);
    if (!f)
        f = &c->at[1]; /* names the key as missing */
    int32_t v = config_whole(f, key);
    fail(c, f->st);
    return v;
}

static double fraction(draft_config *c, const char *key)
{
    config_fields *f = holder(c, key);
    if (!f)
        f = &c->at[1];
    double v = config_real(f, key);
    fail(c, f->st);
    return v;
}

static dflash_choice choice(draft_config *c, const char *key)
{
    config_fields *f = holder(c, key);
    if (!f)
        return DFLASH_OPEN;
    bool v = config_truth(f, key);
    fail(c, f->st);
    return v ? DFLASH_YES : DFLASH_NO;
}

/* Refuses an option unless its value has no effect: absent, null, false, or `neutral`. */
static void refuse_option(draft_config *c, const char *key, const char *neutral)
{
    const json_t *v = value(c, key);
    const char *text = json_string_value(v);
    if (config_is_neutral(v, neutral))
        return;
    fail(c, err_set(c->e, E_UNSUPPORTED, "%s: %s is %.80s, expected %s", c->path, key,
                    text ? text : "set", neutral ? neutral : "none"));
}

/* ---- DFlash -------------------------------------------------------------------------------- */

/* Which layers of the target: ids count from 0 and name the layer whose output is captured. The ids
 * for EAGLE are one higher. */
static void read_captured(draft_config *c, dflash_shape *s)
{
    static const char *const keys[] = {"target_layer_ids", "aux_hidden_state_layer_ids",
                                       "eagle_aux_hidden_state_layer_ids"};
    bool any = false;
    for (int k = 0; k < 3 && !c->st; k++) {
        const json_t *list = value(c, keys[k]);
        size_t n = json_array_size(list);
        if (!list)
            continue;
        if (!json_is_array(list) || n < 1 || n > DFLASH_SHAPE_FEATURES) {
            fail(c, err_set(c->e, E_FORMAT, "%s: %s is no list of 1 to %d layers", c->path, keys[k],
                            DFLASH_SHAPE_FEATURES));
            return;
        }
        for (size_t i = 0; i < n; i++) {
            const json_t *v = json_array_get(list, i);
            int32_t id = 0, from = k == 2; /* of the number of the first layer */
            if (!config_integer(v, from, SHAPE_LAYERS_MAX - 1 + from, &id)) {
                fail(c, err_set(c->e, E_FORMAT, "%s: entry %zu of %s is no layer", c->path, i,
                                keys[k]));
                return;
            }
            id -= from;
            if (any && (n != (size_t)s->n_features || s->feature[i] != id)) {
                fail(c, err_set(c->e, E_FORMAT, "%s: %s contradicts the other list of layers",
                                c->path, keys[k]));
                return;
            }
            if (!any)
                s->feature[i] = id;
        }
        s->n_features = (int32_t)n;
        any = true;
    }
    if (!any)
        fail(c, err_set(c->e, E_FORMAT,
                        "%s: target_layer_ids is missing: which layers of the target does the "
                        "drafter see?",
                        c->path));
}

/* The base of one rotation, which must be that of all layers so far. */
static void take_base(draft_config *c, dflash_shape *s, const json_t *rope, const char *where)
{
    config_fields alone = {NULL, c->path, OK, c->e};
    rope_scaling stretched = {0};
    double theta = 0;
    config_rope(&alone, rope, NULL, &theta, NULL, &stretched);
    if (!alone.st && stretched.kind)
        alone.st = err_set(c->e, E_UNSUPPORTED, "%s: rope_type is yarn, expected default", c->path);
    if (!alone.st && theta != 0 && s->theta > 0 && theta != s->theta)
        alone.st = err_set(c->e, E_UNSUPPORTED,
                           "%s: rope_theta is %g and %s.rope_theta %g: a drafter has one base",
                           c->path, s->theta, where, theta);
    fail(c, alone.st);
    s->theta = theta != 0 ? theta : s->theta;
}

/* One base for all layers. Other kinds of rotation are refused. */
static void read_base(draft_config *c, dflash_shape *s)
{
    const json_t *nested = value(c, "rope_parameters");
    bool by_layer = false, plain = false;
    const char *key;
    json_t *v;
    refuse_option(c, "rope_scaling", NULL);
    if (value(c, "rope_theta"))
        s->theta = fraction(c, "rope_theta");
    json_object_foreach((json_t *)nested, key, v)
    {
        plain |= !json_is_object(v) && !json_is_null(v);
        by_layer |= json_is_object(v);
        if (json_is_object(v))
            take_base(c, s, v, key);
    }
    if (nested && (plain || !by_layer)) /* this refuses a mixture of both forms */
        take_base(c, s, nested, "rope_parameters");
    if (!c->st && !(s->theta > 0))
        fail(c, err_set(c->e, E_FORMAT, "%s: rope_theta is missing", c->path));
}

/* The one window of all sliding layers: from a list by layer, or one number. */
static int32_t read_window(draft_config *c, const dflash_shape *s)
{
    const json_t *list = value(c, "sliding_windows");
    int32_t window = 0;
    if (!list)
        return number(c, "sliding_window");
    if (json_array_size(list) != (size_t)s->n_layer) {
        fail(c, err_set(c->e, E_FORMAT, "%s: sliding_windows is no list with an entry per layer",
                        c->path));
        return 0;
    }
    for (int32_t il = 0; il < s->n_layer; il++) {
        int32_t v = 0;
        if (!s->swa[il])
            continue;
        if (!config_integer(json_array_get(list, (size_t)il), 1, 1 << 24, &v) ||
            (window && v != window)) {
            fail(c, err_set(c->e, E_UNSUPPORTED,
                            "%s: sliding_windows differ or are none: sliding layers have one "
                            "window",
                            c->path));
            return 0;
        }
        window = v;
    }
    return window;
}

static void read_kinds(draft_config *c, dflash_shape *s)
{
    const json_t *list = value(c, "layer_types");
    bool any = false;
    if (c->st || s->n_layer < 1 || s->n_layer > DFLASH_SHAPE_LAYERS)
        return; /* table_check reports this */
    if (list && json_array_size(list) != (size_t)s->n_layer)
        fail(c, err_set(c->e, E_FORMAT, "%s: layer_types has %zu entries for %" PRId32 " layers",
                        c->path, json_array_size(list), s->n_layer));
    for (int32_t il = 0; il < s->n_layer && list && !c->st; il++) {
        const char *kind = json_string_value(json_array_get(list, (size_t)il));
        any |= s->swa[il] = kind && !strcmp(kind, "sliding_attention");
        if (!kind || (!s->swa[il] && strcmp(kind, "full_attention") != 0))
            fail(c, err_set(c->e, E_FORMAT,
                            "%s: layer_types is no list of sliding_attention and full_attention",
                            c->path));
    }
    if (!list && choice(c, "use_sliding_window") == DFLASH_YES)
        fail(c, err_set(c->e, E_FORMAT,
                        "%s: layer_types is missing, and use_sliding_window is true", c->path));
    /* All layers slide, and see the whole block. */
    if (!any && choice(c, "use_swa") == DFLASH_YES) {
        for (int32_t il = 0; il < s->n_layer; il++)
            s->swa[il] = true;
        s->causal = DFLASH_NO;
        s->window = value(c, "swa_window_size") ? number(c, "swa_window_size") : read_window(c, s);
    } else if (any) {
        s->window = read_window(c, s);
    }
}

static void read_causality(draft_config *c, dflash_shape *s)
{
    static const char *const keys[] = {"is_causal", "causal", "sliding_window_non_causal"};
    for (int i = 0; i < 3 && !c->st; i++) {
        dflash_choice v = choice(c, keys[i]);
        if (i == 2 && v != DFLASH_OPEN) /* false is the rule for open configurations */
            v = v == DFLASH_YES ? DFLASH_NO : DFLASH_OPEN;
        if (v == DFLASH_OPEN)
            continue;
        if (s->causal != DFLASH_OPEN && s->causal != v)
            fail(c, err_set(c->e, E_FORMAT, "%s: %s contradicts another key about causality",
                            c->path, keys[i]));
        s->causal = v;
    }
}

/* Without a key: DeepSpec's files (with markov_rank, even 0, or called *_block7) predict from slot
 * 0 on, all others from slot 1. */
static void read_anchor(draft_config *c, dflash_shape *s, const char *dir_name)
{
    dflash_choice a = choice(c, "sample_from_anchor"), b = choice(c, "query_zero_predicts_next");
    size_t n = strlen(dir_name);
    if (a != DFLASH_OPEN && b != DFLASH_OPEN && a != b)
        fail(c, err_set(c->e, E_FORMAT,
                        "%s: sample_from_anchor and query_zero_predicts_next contradict each other",
                        c->path));
    a = a == DFLASH_OPEN ? b : a;
    s->anchor_first = a == DFLASH_YES;
    if (a == DFLASH_OPEN && !s->laguna)
        s->anchor_first =
            value(c, "markov_rank") || (n > 7 && !strcmp(dir_name + n - 7, "_block7"));
}

static void read_dspark(draft_config *c, dflash_shape *s)
{
    const json_t *rank = value(c, "markov_rank");
    const char *kind = json_string_value(value(c, "markov_head_type"));
    s->markov_rank = rank ? number(c, "markov_rank") : 0;
    if (!s->markov_rank)
        return;
    if (kind && strcmp(kind, "vanilla") != 0)
        fail(c, err_set(c->e, E_UNSUPPORTED,
                        "%s: markov_head_type is %.40s; carat runs the plain bigram correction "
                        "(vanilla) alone",
                        c->path, kind));
    if (choice(c, "confidence_head_with_markov") == DFLASH_NO)
        fail(c, err_set(c->e, E_UNSUPPORTED,
                        "%s: confidence_head_with_markov is false; carat reads a confidence head "
                        "over the hidden state and the correction",
                        c->path));
    /* Without the key the tensor decides: convert_draft.c looks. */
    s->confidence = choice(c, "enable_confidence_head") != DFLASH_NO;
}

/* The class of the configuration, for families by name; "" if it has none. */
static const char *class_name(const json_t *config)
{
    const char *method = json_string_value(json_object_get(config, "speculators_model_type"));
    const char *class =
        json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
    return class ? class : method ? method : "";
}

static const char *const dflash_keys[] = {
    "architectures", "auto_map", "model_type", "speculators_model_type", "speculators_version",
    "speculators_config", "algorithm", "hidden_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "intermediate_size", "hidden_act", "vocab_size",
    "draft_vocab_size", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters",
    "max_position_embeddings", "block_size", "num_target_layers", "layer_types", "sliding_window",
    "sliding_windows", "sliding_window_non_causal", "use_sliding_window", "max_window_layers",
    "final_logit_softcapping", "tie_word_embeddings", "is_causal", "causal", "dflash_config",
    "target_layer_ids", "mask_token_id", "use_swa", "swa_window_size", "attention_sink_bias",
    "aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids", "transformer_layer_config",
    "sample_from_anchor", "query_zero_predicts_next", "markov_rank", "markov_head_type",
    "enable_confidence_head", "confidence_head_with_markov", "confidence_head_alpha", "gating",
    "num_experts", "attention_bias", "mlp_bias", "quantization_config", "shift_label",
    /* for training, for other programs, or ids that the tokenizer's files state */
    "attention_dropout", "attn_implementation", "_attn_implementation", "_name_or_path",
    "bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype", "initializer_range",
    "transformers_version", "use_cache", "return_dict", "output_attentions", "output_hidden_states",
    "is_encoder_decoder", "chunk_size_feed_forward", "id2label", "label2id", "problem_type",
    "tie_weights", NULL};

static status read_dflash(const json_t *config, const char *path, const char *dir_name,
                          dflash_shape *s, str *unknown, err *e)
{
    const json_t *inner = json_object_get(config, "dflash_config");
    const json_t *layer = json_object_get(config, "transformer_layer_config");
    draft_config c = {
        {{inner, path, OK, e}, {config, path, OK, e}, {layer, path, OK, e}}, path, e, OK};
    const char *alien = draft_alien_class(class_name(config), strlen(class_name(config)));
    const json_t *eagle = value(&c, "eagle_aux_hidden_state_layer_ids");
    *s = (dflash_shape){.family = &dflash_shapes, .name = "converted", .softcap = -1};
    if (alien)
        return err_set(e, E_UNSUPPORTED, "%s is %s", path, alien);
    if (value(&c, "shift_label") && !json_is_false(value(&c, "shift_label")))
        return err_set(e, E_UNSUPPORTED, "%s is %s", path, draft_alien_class("domino", 6));
    if (eagle && !json_is_object(inner) && !value(&c, "block_size"))
        return err_set(e, E_UNSUPPORTED, "%s is %s", path,
                       value(&c, "mask_token_id") ? draft_alien_class("peagle", 6)
                                                  : draft_alien_class("eagle3", 6));
    s->laguna = strstr(class_name(config), "Laguna") != NULL ||
                (json_is_string(value(&c, "model_type")) &&
                 !strcmp(json_string_value(value(&c, "model_type")), "laguna"));
    s->n_embd = number(&c, "hidden_size");
    s->n_layer = number(&c, "num_hidden_layers");
    s->n_head = number(&c, "num_attention_heads");
    s->n_head_kv = number(&c, "num_key_value_heads");
    s->head_dim = number(&c, "head_dim");
    s->n_ff = number(&c, "intermediate_size");
    s->n_vocab = number(&c, "vocab_size");
    s->n_ctx_train = number(&c, "max_position_embeddings");
    s->block_size = number(&c, "block_size");
    s->mask_id = number(&c, "mask_token_id");
    s->eps = fraction(&c, "rms_norm_eps");
    s->n_target_layer = value(&c, "num_target_layers") ? number(&c, "num_target_layers") : 0;
    if (value(&c, "final_logit_softcapping"))
        s->softcap = fraction(&c, "final_logit_softcapping");
    read_captured(&c, s);
    read_base(&c, s);
    read_kinds(&c, s);
    read_causality(&c, s);
    read_dspark(&c, s);
    read_anchor(&c, s, dir_name);
    if (value(&c, "draft_vocab_size") && number(&c, "draft_vocab_size") != s->n_vocab)
        fail(&c, err_set(e, E_UNSUPPORTED,
                         "%s: draft_vocab_size is %" PRId32 " of %" PRId32
                         " tokens; carat does not run a drafter with a reduced vocabulary",
                         path, number(&c, "draft_vocab_size"), s->n_vocab));
    if (s->laguna && s->markov_rank)
        fail(&c,
             err_set(e, E_UNSUPPORTED, "%s is %s", path, draft_alien_class("lagunadspark", 12)));
    refuse_option(&c, "hidden_act", "silu");
    refuse_option(&c, "gating", "per-head");
    refuse_option(&c, "attention_bias", NULL);
    refuse_option(&c, "mlp_bias", NULL);
    refuse_option(&c, "attention_sink_bias", NULL);
    refuse_option(&c, "num_experts", NULL);
    refuse_option(&c, "quantization_config", NULL);
    for (int i = 0; i < 3; i++)
        if (c.at[i].object)
            config_list_unknown(&c.at[i], dflash_keys, unknown);
    return c.st ? c.st : table_check(&s->common, path, e);
}

/* ---- MTP ----------------------------------------------------------------------------------- */

static status read_mtp(const json_t *config, const char *path, gemma4_mtp_shape *s, str *unknown,
                       err *e)
{
    static const char *const known[] = {
        "model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "num_global_key_value_heads", "head_dim",
        "global_head_dim", "per_layer_config", "sliding_window", "layer_types", "rope_parameters",
        "num_kv_shared_layers", "attention_k_eq_v", "vocab_size", "max_position_embeddings",
        "rms_norm_eps", "final_logit_softcapping", "hidden_activation", "tie_word_embeddings",
        "attention_bias", "enable_moe_block", "hidden_size_per_layer_input",
        /* of parts that an assistant does not have, or for other programs */
        "architectures", "attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id",
        "dtype", "torch_dtype", "initializer_range", "transformers_version", "use_cache",
        "moe_intermediate_size", "num_experts", "top_k_experts", "use_double_wide_mlp",
        "vocab_size_per_layer_input", "use_bidirectional_attention", "_name_or_path", NULL};
    const json_t *text = json_object_get(config, "text_config");
    config_fields top = {config, path, OK, e}, f = {text, path, OK, e};
    gemma4_shape *g = mem_calloc(1, sizeof *g);
    const char *act;
    if (!g)
        return err_memory(e, path, sizeof *g);
    *s = (gemma4_mtp_shape){.family = &gemma4_mtp_shapes, .name = "converted"};
    if (!json_is_object(text))
        config_refuse(&f, "text_config", "object");
    s->n_target_embd = config_whole(&top, "backbone_hidden_size");
    s->n_embd = config_whole(&f, "hidden_size");
    s->n_ff = config_whole(&f, "intermediate_size");
    s->n_layer = config_whole(&f, "num_hidden_layers");
    s->n_vocab = config_whole(&f, "vocab_size");
    s->n_head = config_whole(&f, "num_attention_heads");
    s->n_head_kv = config_whole(&f, "num_key_value_heads");
    s->n_head_kv_global = config_whole_or(&f, "num_global_key_value_heads", s->n_head_kv);
    s->head_dim = config_whole(&f, "head_dim");
    s->head_dim_global = config_whole_or(&f, "global_head_dim", s->head_dim);
    s->window = config_whole(&f, "sliding_window");
    s->n_ctx_train = config_whole(&f, "max_position_embeddings");
    s->eps = config_real(&f, "rms_norm_eps");
    if (config_truth(&top, "use_ordered_embeddings")) {
        s->n_centroids = config_whole(&top, "num_centroids");
        s->centroid_top_k = config_whole(&top, "centroid_intermediate_top_k");
    }
    g->n_layer = s->n_layer;
    if (s->n_layer <= MTP_LAYERS_MAX) {
        convert_gemma4_layers(&f, g);
        memcpy(s->swa, g->swa, sizeof s->swa);
        g->head_dim = s->head_dim;
        g->head_dim_global = s->head_dim_global;
        g->n_head_kv = s->n_head_kv;
        g->n_head_kv_global = s->n_head_kv_global;
        convert_gemma4_overrides(&f, g);
        s->head_dim_global = g->head_dim_global;
        s->n_head_kv_global = g->n_head_kv_global;
    }
    convert_gemma4_rope(&f, g);
    s->theta = g->theta;
    s->theta_swa = g->theta_swa;
    s->rotary_part = g->rotary_part;
    s->rope_factor = g->rope_factor;
    mem_free(g);
    act = json_string_value(config_get(&f, "hidden_activation"));
    if (act && !config_same(act, "gelu_pytorch_tanh"))
        config_refuse(&f, "hidden_activation", "gelu_pytorch_tanh");
    if (!f.st && config_whole_or(&f, "num_kv_shared_layers", s->n_layer) != s->n_layer)
        config_refuse(&f, "num_kv_shared_layers", "number of all layers: an assistant has no keys");
    if (config_truth(&f, "enable_moe_block"))
        config_refuse(&f, "enable_moe_block", "false");
    if (config_whole_or(&f, "hidden_size_per_layer_input", 0))
        config_refuse(&f, "hidden_size_per_layer_input", "zero");
    if (config_get(&f, "final_logit_softcapping"))
        config_refuse(&f, "final_logit_softcapping", "null: the drafter's logits have no cap");
    if (config_truth(&f, "attention_bias"))
        config_refuse(&f, "attention_bias", "false");
    if (text)
        config_list_unknown(&f, known, unknown);
    f.st = top.st ? top.st : f.st;
    return f.st ? f.st : table_check(&s->common, path, e);
}

/* -------------------------------------------------------------------------------------------- */

static bool is_assistant(const json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    return strstr(class_name(config), "Gemma4Assistant") ||
           strstr(class_name(config), "Gemma4UnifiedAssistant") ||
           (type && !strncmp(type, "gemma4", 6) && strstr(type, "assistant"));
}

bool convert_is_draft(const json_t *config)
{
    const char *class = class_name(config);
    return is_assistant(config) || json_object_get(config, "dflash_config") ||
           json_object_get(config, "speculators_model_type") || strstr(class, "DFlash") ||
           strstr(class, "DSpark") || strstr(class, "Speculator") ||
           draft_alien_class(class, strlen(class));
}

status convert_draft_shape(const json_t *config, const char *path, const char *dir_name,
                           model_shape **out, str *unknown, err *e)
{
    status st;
    *out = NULL;
    if (is_assistant(config)) {
        gemma4_mtp_shape *s = mem_calloc(1, sizeof *s);
        if (!s)
            return err_memory(e, path, sizeof *s);
        if (!(st = read_mtp(config, path, s, unknown, e)))
            *out = &s->common;
        else
            mem_free(s);
    } else {
        dflash_shape *s = mem_calloc(1, sizeof *s);
        if (!s)
            return err_memory(e, path, sizeof *s);
        if (!(st = read_dflash(config, path, dir_name, s, unknown, e)))
            *out = &s->common;
        else
            mem_free(s);
    }
    return st;
}
