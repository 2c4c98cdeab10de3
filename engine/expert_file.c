/* expert_file.c - see expert_file.h. */
#include "engine/expert_file.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/map.h"
#include "base/mem.h"

#include <inttypes.h>

enum { VERSION = 1, FILE_MOST = 64 << 20 /* 1024 layers of 4096 experts take 32 MiB */ };
static const char magic[] = "carat experts\n";
enum { MAGIC = sizeof magic - 1 };

static void forget(const expert_counts *l, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        memset(l[i].count, 0, (size_t)l[i].n_experts * sizeof *l[i].count);
}

static status read_layers(const char *path, reader *r, const expert_counts *l, int32_t n, err *e)
{
    uint32_t n_layers = rd_u32(r);
    if (n_layers != (uint32_t)n)
        return err_set(e, E_FORMAT, "%s: has %" PRIu32 " layers with experts, and the model %d",
                       path, n_layers, n);
    for (int32_t i = 0; i < n; i++) {
        uint32_t layer = rd_u32(r), n_experts = rd_u32(r);
        if (layer != (uint32_t)l[i].layer || n_experts != (uint32_t)l[i].n_experts)
            return err_set(e, E_FORMAT,
                           "%s: has %" PRIu32 " experts in layer %" PRIu32
                           ", and the model %d in layer %d",
                           path, n_experts, layer, l[i].n_experts, l[i].layer);
        for (int32_t k = 0; k < l[i].n_experts; k++)
            l[i].count[k] = rd_u64(r);
    }
    if (r->bad || reader_left(r))
        return err_set(e, E_FORMAT, "%s: is damaged: its length does not fit its layers", path);
    return OK;
}

status expert_file_read(const char *path, uint64_t model, const expert_counts *l, int32_t n, err *e)
{
    char *bytes = NULL;
    size_t n_bytes = 0;
    forget(l, n);
    status st = file_read_all(path, FILE_MOST, &bytes, &n_bytes, e);
    if (st)
        return st;
    reader r = reader_of(bytes, n_bytes);
    const void *head = rd_bytes(&r, MAGIC);
    if (!head || memcmp(head, magic, MAGIC) || n_bytes < MAGIC + 8) {
        st = err_set(e, E_FORMAT, "%s: not a file of expert counts that carat wrote", path);
        goto out;
    }
    reader tail = reader_of(bytes + n_bytes - 8, 8);
    r.end -= 8;
    uint32_t version = rd_u32(&r);
    if (hash64(bytes, n_bytes - 8) != rd_u64(&tail))
        st = err_set(e, E_FORMAT, "%s: is damaged: its checksum is wrong", path);
    else if (version != VERSION)
        st = err_set(e, E_FORMAT, "%s: is of version %" PRIu32 ", and this carat reads %d", path,
                     version, VERSION);
    else if (rd_u64(&r) != model)
        st = err_set(e, E_FORMAT, "%s: belongs to another model", path);
    else
        st = read_layers(path, &r, l, n, e);
out:
    if (st)
        forget(l, n);
    mem_free(bytes);
    return st;
}

typedef struct writer {
    file_out f;
    hash_stream *h;
    status st;
    err *e;
} writer;

static void put_number(writer *w, uint64_t v, int n_bytes)
{
    unsigned char b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (unsigned char)(v >> 8 * i);
    hash_put(w->h, b, (size_t)n_bytes);
    if (!w->st)
        w->st = file_out_write(&w->f, b, (size_t)n_bytes, w->e);
}

status expert_file_write(const char *path, uint64_t model, const expert_counts *l, int32_t n,
                         err *e)
{
    writer w = {.h = hash_open(), .e = e};
    if (!w.h)
        return err_memory(e, path, 64);
    if ((w.st = file_out_open(&w.f, path, e))) {
        hash_close(w.h);
        return w.st;
    }
    hash_put(w.h, magic, MAGIC);
    w.st = file_out_write(&w.f, magic, MAGIC, e);
    put_number(&w, VERSION, 4);
    put_number(&w, model, 8);
    put_number(&w, (uint64_t)n, 4);
    for (int32_t i = 0; i < n; i++) {
        put_number(&w, (uint64_t)l[i].layer, 4);
        put_number(&w, (uint64_t)l[i].n_experts, 4);
        for (int32_t k = 0; k < l[i].n_experts; k++)
            put_number(&w, l[i].count[k], 8);
    }
    put_number(&w, hash_value(w.h), 8);
    hash_close(w.h);
    if (!w.st)
        return file_out_commit(&w.f, e);
    file_out_discard(&w.f);
    return w.st;
}
