/* inspect_lora.c - what `carat inspect` says of an adapter, alone and beside the model that
 * --target names. */
#include "apps/inspect_int.h"
#include "apps/term.h"

#include <stdio.h>

void inspect_lora_open(inspect_lora *x, gguf *g, const char *target)
{
    carat_model *m = NULL;
    x->is_adapter = lora_is_adapter(g);
    if (!x->is_adapter || lora_read(g, &x->is, &x->why_not))
        return;
    x->known = true;
    const carat_lora l = {g->path, 1};
    const carat_model_options mo = {.vocab_only = true, .device = "cpu", .loras = &l, .n_loras = 1};
    x->asked = target != NULL;
    if (target && !carat_model_open(target, &mo, &m, &x->misfit))
        x->fits = true;
    carat_model_close(m);
}

static void put_sentence(const char *before, const err *why)
{
    fputs(before, stdout);
    term_put(stdout, why->text, strlen(why->text));
    putchar('\n');
}

void inspect_lora_put(const inspect_lora *x)
{
    const lora_file *f = &x->is;
    char rank[40];
    puts("\nAdapter");
    if (!x->known) {
        put_sentence("  refused: ", &x->why_not);
        return;
    }
    if (f->rank == f->most)
        snprintf(rank, sizeof rank, "%d", f->rank);
    else
        snprintf(rank, sizeof rank, "%d to %d", f->rank, f->most);
    printf("  LoRA for models of %s: %d tensors, rank %s, alpha %g\n", f->arch, f->n_pairs, rank,
           (double)f->alpha);
    if (x->fits)
        puts("  fits the model: --lora applies it");
    else if (x->asked)
        put_sentence("  does not fit: ", &x->misfit);
}

json_t *inspect_lora_json(const inspect_lora *x)
{
    const lora_file *f = &x->is;
    if (!x->known)
        return json_pack("{s:s}", "error", x->why_not.text);
    json_t *o = json_pack("{s:s, s:s, s:i, s:i, s:i, s:f}", "kind", "lora", "architecture", f->arch,
                          "tensors", (int)f->n_pairs, "rank", (int)f->rank, "rank_most",
                          (int)f->most, "alpha", (double)f->alpha);
    if (x->asked)
        json_object_set_new(o, "fits", json_boolean(x->fits));
    if (x->asked && !x->fits)
        json_object_set_new(o, "why_not", json_lossy_text(x->misfit.text, strlen(x->misfit.text)));
    return o;
}
