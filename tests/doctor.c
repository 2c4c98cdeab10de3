/* doctor.c - see doctor.h. */
#include "tests/doctor.h"
#include "tests/test.h"
#include "num/num.h"

void doctor_gguf(const char *from, const char *to, const doctor_change *c)
{
    static const float zeros[32];
    static const uint64_t ne[] = {32, 1, 1, 1};
    AUTO(gguf_close) gguf g;
    gguf_writer *w;
    err e = {0};
    CHECK_OK(gguf_open(&g, from, false, NULL, NULL, &e), e);
    CHECK_OK(gguf_create(&w, to, &e), e);
    for (uint64_t i = 0; i < g.n_values; i++) {
        const char *key = g.value[i].key;
        if (c->arch && !strcmp(key, "general.architecture"))
            gguf_put_string(w, key, c->arch, strlen(c->arch));
        else if (!(c->drop && !strcmp(key, c->drop)) && !(c->key && !strcmp(key, c->key)) &&
                 !(c->list && !strcmp(key, c->list)))
            gguf_put_value(w, &g.value[i]);
    }
    if (c->key)
        gguf_put_u32(w, c->key, c->value);
    if (c->list)
        gguf_put_u32s(w, c->list, c->item, c->n_items);
    for (uint64_t i = 0; i < g.tensors.n; i++) {
        const tensor *t = &g.tensors.at[i];
        if (!c->drop || strcmp(t->name, c->drop) != 0)
            gguf_put_tensor(w, c->rename && !strcmp(t->name, c->rename) ? c->as : t->name, t->type,
                            t->n_dims, t->ne);
    }
    if (c->add)
        gguf_put_tensor(w, c->add, NUM_F32, 1, ne);
    CHECK_OK(gguf_write_header(w, &e), e);
    for (uint64_t i = 0; i < g.tensors.n; i++) {
        const tensor *t = &g.tensors.at[i];
        if (!c->drop || strcmp(t->name, c->drop) != 0)
            CHECK_OK(gguf_write_data(w, t->bytes, (size_t)t->n_bytes, &e), e);
    }
    if (c->add)
        CHECK_OK(gguf_write_data(w, zeros, sizeof zeros, &e), e);
    CHECK_OK(gguf_commit(w, &e), e);
}
