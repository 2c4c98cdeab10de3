/* layout.c - how large each layer's store of keys and values is. See kv.h for the ring's proof. */
#include "base/bytes.h"
#include "kv/kv.h"

/* Slots a store needs. A ring of W + n - 1 is the proven minimum for passes of n rows; a context
 * that never exceeds it needs no ring at all, and then slot == index. */
static int32_t slots_needed(int32_t window, int32_t n_ctx, int32_t rows_max)
{
    if (!window)
        return n_ctx;
    int64_t ring = (int64_t)window + rows_max - 1;
    return ring < n_ctx ? (int32_t)ring : n_ctx;
}

static status view_init(kv_view *v, const kv_spec *s, int32_t id, num_type k_type, num_type v_type,
                        int32_t n_slots, err *e)
{
    uint64_t k_row, v_row;
    *v = (kv_view){.id = id,
                   .k_type = k_type,
                   .v_type = v_type,
                   .n_head_kv = s->n_head_kv,
                   .head_dim = s->head_dim,
                   .window = s->window,
                   .n_slots = n_slots};
    if (!num_row_bytes(k_type, (uint64_t)s->head_dim, &k_row) ||
        !num_row_bytes(v_type, (uint64_t)s->head_dim, &v_row))
        return err_set(e, E_UNSUPPORTED, "keys of %s and values of %s do not fit heads of %d",
                       num_name(k_type), num_name(v_type), s->head_dim);
    v->k_row_bytes = k_row;
    v->v_row_bytes = v_row;
    return OK;
}

status kv_layout_init(kv_layout *l, const kv_spec *spec, int32_t n, num_type k_type,
                      num_type v_type, int32_t n_ctx, int32_t rows_max, err *e)
{
    *l = (kv_layout){.n = n, .n_ctx = n_ctx, .rows_max = rows_max};
    if (n_ctx < 1 || rows_max < 1)
        return err_set(e, E_ARG, "a context of %d tokens in passes of %d rows: expected 1 or more",
                       n_ctx, rows_max);
    /* A pass longer than the context cannot happen; without this cut it would size the rings. */
    if (l->rows_max > n_ctx)
        l->rows_max = n_ctx;
    l->view = arena_array(&l->mem, (size_t)n, sizeof *l->view);
    if (!l->view)
        return err_memory(e, "the key/value layout", (size_t)n * sizeof *l->view);
    for (int32_t i = 0; i < n; i++) {
        int32_t n_slots = slots_needed(spec[i].window, n_ctx, l->rows_max);
        status st = view_init(&l->view[i], &spec[i], i, k_type, v_type, n_slots, e);
        if (st) {
            kv_layout_free(l);
            return st;
        }
        uint64_t rows = (uint64_t)n_slots * (uint64_t)spec[i].n_head_kv;
        uint64_t bytes = rows * (l->view[i].k_row_bytes + l->view[i].v_row_bytes);
        if (spec[i].window) {
            l->ring_bytes += bytes;
            if (n_slots > l->n_ring_slots)
                l->n_ring_slots = n_slots;
        } else {
            l->linear_bytes += bytes;
        }
    }
    return OK;
}

void kv_layout_free(kv_layout *l)
{
    arena_free(&l->mem);
    *l = (kv_layout){0};
}
