/* unplaced.c - see unplaced.h. */
#include "model/unplaced.h"
#include "base/str.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* How names of tensors begin that a text model does without. Behind "model." and the name of a
 * multimodal wrapper they count too. */
static const char *const towers[] = {
    /* GGUF: projector files, and files that hold the towers beside the text model */
    "v.",
    "a.",
    "mm.",
    "clip.",
    "mmproj.",
    /* safetensors */
    "vision_tower.",
    "vision_model.",
    "vision_encoder.",
    "vision_embedder.",
    "vision_projector.",
    "vision_projection.",
    "visual.",
    "audio_tower.",
    "audio_model.",
    "audio_encoder.",
    "audio_projector.",
    "audio_projection.",
    "embed_vision.",
    "embed_audio.",
    "multi_modal_projector.",
    "multimodal_projector.",
    "mm_projector.",
};

/* How names end of tables that carat computes from the configuration. rope_freqs.weight is none of
 * them: its divisors stand in no configuration, so a model that does not read them is another one.
 */
static const char *const computed[] = {
    "rotary_emb.inv_freq",
    "rotary_emb.original_inv_freq",
    "rotary_embd.inv_freq",
    "attn_rot_embd",
};

static const char *after(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(name, prefix, n) ? name : name + n;
}

bool unplaced_is_allowed(const char *name)
{
    const char *bare = after(after(after(name, "model."), "thinker."), "model.");
    for (size_t i = 0; i < sizeof towers / sizeof *towers; i++)
        if (!strncmp(bare, towers[i], strlen(towers[i])))
            return true;
    for (size_t i = 0; i < sizeof computed / sizeof *computed; i++)
        if (text_ends_with(name, computed[i]))
            return true;
    return false;
}

void unplaced_add(unplaced *u, const char *name)
{
    size_t at = strlen(u->names);
    if (u->n++ < 3)
        snprintf(u->names + at, sizeof u->names - at, "%s%.60s", at ? ", " : "", name);
}

/* What a name usually says about the file. */
static const char *hint_of(const char *names)
{
    static const struct {
        const char *part, *hint;
    } hints[] = {
        {"lora_", ": parts of an adapter, which must be merged into the weights first"},
        {"base_layer", ": parts of an adapter, which must be merged into the weights first"},
        {"rope_freqs", ": divisors of this rotation are not supported"},
        {"cls.", ": heads of rerankers are not supported"},
        {"score.", ": heads of classifiers are not supported"},
        {"classifier.", ": heads of classifiers are not supported"},
        {"_scale", ": quantised with scales that carat does not read"},
        {".scale", ": multipliers of products are not supported"},
        {".qzeros", ": quantised in a form that carat does not read"},
        {".biases", ": quantised by MLX, which carat does not read"},
        {".bias", ": this bias is not supported"},
    };
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++)
        if (strstr(names, hints[i].part))
            return hints[i].hint;
    return "";
}

status unplaced_refuse(const unplaced *u, const char *path, const char *kind, err *e)
{
    if (!u->n)
        return OK;
    return err_set(e, E_UNSUPPORTED, "%s: %" PRIu64 " tensor%s no place in %s: %s%s%s", path, u->n,
                   u->n > 1 ? "s have" : " has", kind, u->names, u->n > 3 ? ", ..." : "",
                   hint_of(u->names));
}
