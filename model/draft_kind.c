/* draft_kind.c - see draft_kind.h. The families: DFlash (arXiv 2602.06036), its variants, and the
 * methods that were published beside it.
 */
#include "model/draft_kind.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ---- Families that carat does not run ------------------------------------------------------ */

static const char
    eagle[] = "an EAGLE-3 head, which drafts token by token with keys of its own; "
              "carat does not run it",
    peagle[] = "a P-EAGLE head, a parallel form of EAGLE-3; carat does not run it",
    dflash2[] = "a DFlash2 drafter, which needs convolutions inside the block and a "
                "walk over candidates; carat does not run it",
    domino[] = "a Domino drafter, which corrects every slot by a recurrent unit; "
               "carat does not run it",
    muse[] = "a Muse assistant, which fits no target that carat runs",
    sinks[] = "a drafter with attention sinks or an embedding for the mask, as MiMo's; "
              "carat does not run it",
    hyper[] = "a DSpark drafter of DeepSeek with hyper-connections; carat does not "
              "run it",
    reduced[] = "a drafter with a reduced vocabulary (d2t) and a head of its own; "
                "carat does not run it",
    gemma_style[] = "a drafter with Gemma's own layers (four norms each), not those "
                    "of DFlash; carat does not run it",
    gated[] = "a DSpark drafter with a gated or recurrent correction; carat runs the "
              "plain bigram correction alone",
    laguna_dspark[] = "a Laguna drafter with DSpark's correction; carat runs each "
                      "alone, not both",
    nextn[] =
        "an MTP head of Qwen's kind, which belongs inside the target's file; carat runs those "
        "in the model's file (--draft nextn)",
    early_dspark[] = "a DSpark drafter in an early format; convert the checkpoint "
                     "again";

/* Parts of tensor names. The first mark that occurs names the family, so marks of a family stand
 * before those that it shares with others. */
static const struct {
    const char *part, *what;
} marks[] = {
    {"selector_", dflash2},
    {"candidate_selector", dflash2},
    {"attention_conv", dflash2},
    {"mlp_conv", dflash2},
    {"_conv_base", dflash2},
    {"attn_conv", dflash2},
    {"ffn_conv", dflash2},
    {"codebook", dflash2},
    {"input_embedding_scale", dflash2},
    {"prefix_gru", domino},
    {"domino", domino},
    {"embed_proj", domino},
    {"midlayer", eagle},
    {"encoder.fc", muse},
    {"encoder.output_norm_enc", muse},
    {"hc_", hyper},
    {"hyper_connection", hyper},
    {"attn_sinks", sinks},
    {"attention_sink", sinks},
    {"self_attn.sinks", sinks},
    {"mask_embedding", sinks},
    {"markov_head.gate_proj", gated},
    {"markov_head.joint_proj", gated},
    {"markov_gate", gated},
    {"markov_joint", gated},
};

/* Classes in configurations, and architectures of GGUF files: parts of the name, in lower case
 * without signs. */
static const struct {
    const char *part, *what;
} classes[] = {
    {"peagle", peagle},
    {"eagle", eagle},
    {"dflash2", dflash2},
    {"domino", domino},
    {"lagunadspark", laguna_dspark},
    {"museglimmer", muse},
    {"gemma4dspark", gemma_style},
    {"gemma4dflash", gemma_style},
};

static bool contains(const char *text, const char *part)
{
    return strstr(text, part) != NULL;
}

/* Lower case, letters and digits alone. */
static void squeeze(const char *name, size_t n, char *out, size_t cap)
{
    size_t k = 0;
    for (size_t i = 0; i < n && k + 1 < cap; i++)
        if (isalnum((unsigned char)name[i]))
            out[k++] = (char)tolower((unsigned char)name[i]);
    out[k] = 0;
}

const char *draft_alien_class(const char *name, size_t n)
{
    char plain[128];
    squeeze(name, n, plain, sizeof plain);
    if (!strcmp(plain, "mtp"))
        return nextn;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (contains(plain, classes[i].part))
            return classes[i].what;
    return NULL;
}

/* The end of a name without ".weight" and ".bias". */
static bool ends_as(const char *name, const char *tail)
{
    static const char *const suffix[] = {"", ".weight", ".bias"};
    size_t n = strlen(name), m = strlen(tail);
    for (int i = 0; i < 3; i++) {
        size_t k = strlen(suffix[i]);
        if (n >= m + k && !strcmp(name + n - k, suffix[i]) && !memcmp(name + n - k - m, tail, m))
            return true;
    }
    return false;
}

const char *draft_alien_tensors(const tensor_set *t)
{
    bool laguna = false, markov = false;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        for (uint64_t k = 0; k < t->n; k++)
            if (contains(t->at[k].name, marks[i].part))
                return marks[i].what;
    for (uint64_t k = 0; k < t->n; k++) {
        const char *name = t->at[k].name;
        if (ends_as(name, "d2t") || ends_as(name, "t2d"))
            return reduced;
        laguna |= contains(name, "aux_norm") || contains(name, "aux_hidden_norm");
        markov |= contains(name, "markov");
    }
    return laguna && markov ? laguna_dspark : NULL;
}

/* Of DFlash's layers alone: assistants have four norms a layer too. */
static const char *alien_layers(const tensor_set *t)
{
    static const char *const tails[] = {"pre_feedforward_layernorm",
                                        "post_feedforward_layernorm",
                                        "layer_scalar",
                                        "post_ffw_norm",
                                        "layer_output_scale",
                                        NULL};
    for (uint64_t k = 0; k < t->n; k++)
        for (int i = 0; tails[i]; i++)
            if (ends_as(t->at[k].name, tails[i]))
                return gemma_style;
    return NULL;
}

/* ---- GGUF ---------------------------------------------------------------------------------- */

static bool is_text(gguf_string s, const char *text)
{
    return s.n == strlen(text) && !memcmp(s.at, text, (size_t)s.n);
}

static bool has_end(gguf_string s, const char *tail)
{
    size_t n = strlen(tail);
    return s.n >= n && !memcmp(s.at + s.n - n, tail, n);
}

/* Keys of other families in files of the architecture dflash. */
static const char *alien_keys(const gguf *g, gguf_string arch)
{
    static const struct {
        const char *tail, *what;
    } keys[] = {
        {"conv_kernel_size", dflash2},     {"selector_rank", dflash2},
        {"selector_top_k", dflash2},       {"hyper_connection.count", hyper},
        {"dflash.domino.enabled", domino}, {"shift_label", domino},
        {"attention.sink_bias", sinks},
    };
    char key[160];
    int64_t v;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(key, sizeof key, "%.*s.%s", (int)arch.n, arch.at, keys[i].tail);
        if (gguf_get_i64(g, key, &v) && v > 0)
            return keys[i].what;
    }
    for (uint64_t i = 0; i < g->n_values; i++)
        if (contains(g->value[i].key, ".domino."))
            return domino;
    return NULL;
}

/* Companion files have the architecture of their model, its embedding and head, and one layer. */
static bool only_nextn(const tensor_set *t)
{
    if (tensor_find(t, "blk.0.attn_norm.weight"))
        return false;
    for (uint64_t i = 0; i < t->n; i++)
        if (contains(t->at[i].name, ".nextn."))
            return true;
    return false;
}

draft_kind draft_kind_of(const gguf *g, const char **what)
{
    gguf_string arch;
    *what = NULL;
    if (!gguf_get_string(g, "general.architecture", &arch) || arch.n > 64)
        return DRAFT_NONE;
    if (is_text(arch, "gemma4-assistant") || is_text(arch, "gemma4_assistant") ||
        is_text(arch, "gemma4_mtp")) {
        *what = "an MTP assistant of Gemma 4";
        return DRAFT_MTP;
    }
    if (is_text(arch, "dflash") || has_end(arch, "dflash-draft")) {
        if (!(*what = alien_keys(g, arch)) && !(*what = draft_alien_tensors(&g->tensors)))
            *what = alien_layers(&g->tensors);
        if (*what)
            return DRAFT_ALIEN;
        *what = "a DFlash drafter";
        return DRAFT_DFLASH;
    }
    if ((is_text(arch, "qwen35") || is_text(arch, "qwen35moe")) && only_nextn(&g->tensors)) {
        *what = "the NextN (MTP) layer of a model, without the model";
        return DRAFT_NEXTN;
    }
    *what = is_text(arch, "dspark") ? early_dspark : draft_alien_class(arch.at, (size_t)arch.n);
    return *what ? DRAFT_ALIEN : DRAFT_NONE;
}

status draft_kind_check(const gguf *g, err *e)
{
    const char *what;
    if (draft_kind_of(g, &what) == DRAFT_ALIEN)
        return err_set(e, E_UNSUPPORTED, "%s is %s", g->path, what);
    return OK;
}
