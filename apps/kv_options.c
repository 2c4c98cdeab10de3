/* kv_options.c - the options of key/value formats, and the table of the resulting layout.
 *
 * The library checks the formats, because it knows the model's heads. This file only decides which
 * option sets keys and which sets values.
 */
#include "apps/kv_options.h"

#include <inttypes.h>

enum { KINDS_SHOWN = 64 };

const char *kv_options_k(const kv_options *o)
{
    return o->k ? o->k : o->type;
}

const char *kv_options_v(const kv_options *o)
{
    return o->v ? o->v : o->type ? o->type : o->k;
}

void kv_options_apply(const kv_options *o, carat_session_options *so)
{
    so->kv_k = kv_options_k(o);
    so->kv_v = kv_options_v(o);
    so->kv_layers = o->layers;
    so->kv_single = o->single;
}

void kv_options_apply_exact(const kv_options *o, carat_session_options *so)
{
    kv_options_apply(o, so);
    so->kv_k = so->kv_k ? so->kv_k : "f16";
}

bool kv_options_given(const kv_options *o)
{
    return o->type || o->k || o->v || o->layers || o->single;
}

void kv_print_kinds(FILE *f, const carat_kv_kind *kind, int32_t n)
{
    bool divided = false;
    for (int32_t i = 0; i < n; i++)
        divided |= kind[i].device != kind[0].device;
    fprintf(
        f, "  layers  first  kind          heads   slots  keys      values         MiB  read by\n");
    for (int32_t i = 0; i < n; i++) {
        const carat_kv_kind *k = &kind[i];
        char window[32] = "global";
        if (k->window)
            snprintf(window, sizeof window, "window %" PRId32, k->window);
        fprintf(f,
                "  %6" PRId32 "  %5" PRId32 "  %-11s %3" PRId32 " x %-4" PRId32 " %6" PRId32
                "  %-8s  %-8s  %8.1f  %s%s%s%s\n",
                k->n_layers, k->first, window, k->n_head_kv, k->head_dim, k->n_slots, k->k,
                k->single ? "(keys)" : k->v, (double)k->n_bytes * 0x1p-20, k->slow ? "SLOW: " : "",
                k->kernel, divided ? ", on " : "", divided ? k->device : "");
    }
}

carat_status kv_print_plan(FILE *f, const carat_model *m, const carat_session_options *so,
                           carat_error *e)
{
    carat_kv_kind kind[KINDS_SHOWN];
    int32_t n = carat_plan_kv(m, so, kind, KINDS_SHOWN, e);
    if (n < 0)
        return e->status;
    kv_print_kinds(f, kind, n < KINDS_SHOWN ? n : KINDS_SHOWN);
    if (n > KINDS_SHOWN)
        fprintf(f, "  and %d kinds more\n", n - KINDS_SHOWN);
    return CARAT_OK;
}
