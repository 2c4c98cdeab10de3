/* snapshot_file.c - writes snapshots as files, and reads them as untrusted input.
 *
 * A section is a sequence of blocks: a u32 size, its top bit set if the block is compressed, then
 * that many bytes. Each block holds ZIP_BLOCK raw bytes, the last one the rest. A number from the
 * file is compared with the value that the layout requires before memory is allocated by it.
 */
#include "kv/snapshot_file.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/zip.h"
#include "kv/paging.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static const char head_mark[8] = "caratkv\n", tail_mark[8] = "kvcarat\n";

enum section { LAYOUT, IDS, RINGS, LINEAR, STATES, PAGING, SECTIONS_MAX };
enum { HEAD_BYTES = 16, TAIL_BYTES = 24, ENTRY_BYTES = 40 };
enum { TABLE_BYTES_MAX = 8 + 16 + SECTIONS_MAX * ENTRY_BYTES };
#define PACKED 0x80000000u

typedef struct entry {
    uint64_t at, stored, raw, hash, stride;
} entry;

static bool has_section(int s, int32_t n_recur, bool paging)
{
    return s < STATES || (s == STATES ? n_recur > 0 : paging);
}

static size_t table_bytes(int32_t n_recur, bool paging)
{
    int n = 0;
    for (int s = 0; s < SECTIONS_MAX; s++)
        n += has_section(s, n_recur, paging);
    return 8 + 16 + (size_t)n * ENTRY_BYTES;
}

/* ---- Layouts as words --------------------------------------------------------------------- */

void kv_layout_words(const kv_layout *l, str *s)
{
    for (int32_t i = 0; i < l->n_whole; i++) {
        const kv_view *v = &l->whole[i];
        str_printf(s, "%d window %d heads %d x %d keys %s%s values %s%s%s\n", i, v->window,
                   v->n_head_kv, v->head_dim, num_name(v->k_type), v->k_rot ? "+rot" : "",
                   num_name(v->v_type), v->v_rot ? "+rot" : "", v->single ? " in one stream" : "");
    }
    for (int32_t i = 0; i < l->n_recur_whole; i++) {
        const recur_view *v = &l->recur_whole[i];
        str_printf(s, "recurrent %d keys %d x %d values %d x %d taps %d", i, v->n_k, v->dk, v->n_v,
                   v->dv, v->n_taps);
        if (v->block)
            str_printf(s, " blocks of %d", v->block);
        str_printf(s, "\n");
    }
}

/* The element size if all rows are plain numbers of one size; else 1. */
static uint64_t stride_of(const kv_view *v, int32_t n)
{
    uint64_t stride = 0;
    for (int32_t i = 0; i < n; i++) {
        const num_type type[2] = {v[i].k_type, v[i].v_type};
        for (int k = 0; k < 2; k++) {
            uint64_t size = type[k] == NUM_F32                          ? 4
                            : type[k] == NUM_F16 || type[k] == NUM_BF16 ? 2
                                                                        : 1;
            if (stride && size != stride)
                return 1;
            stride = size;
        }
    }
    return stride ? stride : 1;
}

/* ---- Writing ------------------------------------------------------------------------------- */

typedef struct writer {
    file_out f;
    zip *z;
    hash_stream *h;
    unsigned char *block;
    size_t n_block;
    entry entry[SECTIONS_MAX];
    entry *now;
    int n_vain; /* consecutive blocks that did not compress */
    err *e;
} writer;

static status put_hashed(writer *w, const void *bytes, size_t n)
{
    hash_put(w->h, bytes, n);
    w->now->stored += n;
    return file_out_write(&w->f, bytes, n, w->e);
}

static void le(unsigned char *to, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        to[i] = (unsigned char)(v >> (8 * i));
}

static status write_block(writer *w)
{
    enum { VAIN_MAX = 4, TRY_AGAIN = 16 };
    const void *at = w->block;
    size_t n = 0;
    unsigned char size[4];
    status st;
    if (!w->n_block)
        return OK;
    /* Incompressible data mostly stays so: after failures only some blocks are tried. */
    if (w->n_vain < VAIN_MAX || w->n_vain % TRY_AGAIN == 0)
        n = zip_pack(w->z, w->block, w->n_block, (size_t)w->now->stride, &at);
    w->n_vain = n ? 0 : w->n_vain + 1;
    le(size, n ? n | PACKED : w->n_block, 4);
    if ((st = put_hashed(w, size, 4)) ||
        (st = put_hashed(w, n ? at : w->block, n ? n : w->n_block)))
        return st;
    w->n_block = 0;
    return OK;
}

static status put_raw(writer *w, const unsigned char *bytes, size_t n)
{
    w->now->raw += n;
    while (n) {
        size_t take = ZIP_BLOCK - w->n_block < n ? ZIP_BLOCK - w->n_block : n;
        memcpy(w->block + w->n_block, bytes, take);
        w->n_block += take;
        bytes += take;
        n -= take;
        if (w->n_block == ZIP_BLOCK) {
            status st = write_block(w);
            if (st)
                return st;
        }
    }
    return OK;
}

static void begin_section(writer *w, enum section s, uint64_t stride)
{
    w->now = &w->entry[s];
    *w->now = (entry){.at = w->f.at, .stride = stride};
    w->n_block = 0;
    w->n_vain = 0;
    hash_restart(w->h);
}

static status end_section(writer *w)
{
    status st = write_block(w);
    w->now->hash = hash_value(w->h);
    return st;
}

/* The segments of a snapshot of n rows, root first, and the bytes written of each. */
typedef struct segments {
    const kv_segment **at;
    size_t *done;
    int n_at;
    int64_t n;
} segments;

/* Writes one stream of one store: per head, the rows of the whole chain. */
static status put_stream(writer *w, const segments *c, const kv_view *v, size_t row_bytes)
{
    status st;
    for (int32_t h = 0; h < v->n_head_kv; h++)
        for (int i = 0; i < c->n_at; i++) {
            const kv_segment *g = c->at[i];
            int64_t end = i + 1 < c->n_at ? c->at[i + 1]->from : c->n;
            int64_t rows = g->to - g->from;
            const unsigned char *at = g->rows + c->done[i] + (size_t)h * (size_t)rows * row_bytes;
            if ((st = put_raw(w, at, (size_t)(end - g->from) * row_bytes)))
                return st;
        }
    for (int i = 0; i < c->n_at; i++)
        c->done[i] += (size_t)v->n_head_kv * (size_t)(c->at[i]->to - c->at[i]->from) * row_bytes;
    return OK;
}

static status put_linear(writer *w, const kv_snapshot *k)
{
    segments c = {.n = k->n};
    status st = OK;
    for (const kv_segment *g = k->linear; g; g = g->parent)
        c.n_at++;
    c.at = mem_calloc((size_t)c.n_at, sizeof *c.at);
    c.done = mem_calloc((size_t)c.n_at, sizeof *c.done);
    if (!c.at || !c.done) {
        st = err_memory(w->e, "a snapshot", (size_t)c.n_at * sizeof *c.at);
        goto out;
    }
    int at = c.n_at;
    for (const kv_segment *g = k->linear; g; g = g->parent)
        c.at[--at] = g;
    for (int32_t i = 0; i < k->n_views && !st; i++) {
        const kv_view *v = &k->view[i];
        if (v->window)
            continue;
        st = put_stream(w, &c, v, v->k_row_bytes);
        if (!st && v->v_row_bytes)
            st = put_stream(w, &c, v, v->v_row_bytes);
    }
out:
    mem_free(c.done);
    mem_free(c.at);
    return st;
}

static status put_paging(writer *w, const kv_paging *p)
{
    size_t n = kv_paging_packed_bytes(p);
    unsigned char *bytes = mem_alloc(n);
    if (!bytes)
        return err_memory(w->e, "a snapshot", n);
    kv_paging_pack(p, bytes);
    begin_section(w, PAGING, 4);
    status st = put_raw(w, bytes, n);
    mem_free(bytes);
    return st ? st : end_section(w);
}

static status put_sections(writer *w, const kv_snapshot *k, const kv_file_id *id)
{
    uint64_t stride = stride_of(k->view, k->n_views);
    status st;
    begin_section(w, LAYOUT, 1);
    if ((st = put_raw(w, (const unsigned char *)str_text(&id->layout), id->layout.n)) ||
        (st = end_section(w)))
        return st;
    begin_section(w, IDS, 4);
    for (int64_t i = 0; i < k->n; i++) {
        unsigned char b[4];
        le(b, (uint32_t)(id->ids ? id->ids : k->ids)[i], 4);
        if ((st = put_raw(w, b, 4)))
            return st;
    }
    if ((st = end_section(w)))
        return st;
    begin_section(w, RINGS, stride);
    if ((st = put_raw(w, k->rings, k->ring_bytes)) || (st = end_section(w)))
        return st;
    begin_section(w, LINEAR, stride);
    if ((st = put_linear(w, k)) || (st = end_section(w)))
        return st;
    if (k->n_recur) {
        begin_section(w, STATES, sizeof(float));
        if ((st = put_raw(w, k->states, k->state_bytes)) || (st = end_section(w)))
            return st;
    }
    return k->paging ? put_paging(w, k->paging) : OK;
}

static status put_table(writer *w, const kv_snapshot *k, const kv_file_id *id)
{
    unsigned char table[TABLE_BYTES_MAX], tail[TAIL_BYTES], *at = table;
    size_t n = table_bytes(k->n_recur, k->paging);
    status st;
    le(at, (uint64_t)k->n, 8);
    le(at + 8, id->model[0], 8);
    le(at + 16, id->model[1], 8);
    at += 24;
    for (int i = 0; i < SECTIONS_MAX; i++) {
        const entry *t = &w->entry[i];
        if (!has_section(i, k->n_recur, k->paging))
            continue;
        const uint64_t field[5] = {t->at, t->stored, t->raw, t->hash, t->stride};
        for (int f = 0; f < 5; f++)
            le(at + 8 * f, field[f], 8);
        at += ENTRY_BYTES;
    }
    le(tail, n, 8);
    le(tail + 8, hash64(table, n), 8);
    memcpy(tail + 16, tail_mark, 8);
    if ((st = file_out_write(&w->f, table, n, w->e)))
        return st;
    return file_out_write(&w->f, tail, TAIL_BYTES, w->e);
}

status kv_snapshot_write(const kv_snapshot *k, const char *path, const kv_file_id *id,
                         uint64_t *n_bytes, err *e)
{
    writer w = {.z = zip_open(), .h = hash_open(), .block = mem_alloc(ZIP_BLOCK), .e = e};
    unsigned char head[HEAD_BYTES] = {0};
    status st;
    if (!w.z || !w.h || !w.block) {
        st = err_memory(e, path, ZIP_BLOCK);
        goto out;
    }
    if ((st = file_out_open_private(&w.f, path, e)))
        goto out;
    flock(w.f.fd, LOCK_EX); /* marks the temporary as in use; advisory, so a failure is harmless */
    memcpy(head, head_mark, 8);
    le(head + 8, kv_file_version(k->n_recur, k->paging), 4);
    if ((st = file_out_write(&w.f, head, sizeof head, e)) || (st = put_sections(&w, k, id)) ||
        (st = put_table(&w, k, id)))
        goto out;
    uint64_t written = w.f.at;
    if (!(st = file_out_commit(&w.f, e)))
        *n_bytes = written;
out:
    file_out_discard(&w.f);
    mem_free(w.block);
    hash_close(w.h);
    zip_close(w.z);
    return st;
}

/* ---- Reading ------------------------------------------------------------------------------- */

typedef struct file_in {
    int fd;
    const char *path;
    uint64_t n_bytes;
    uint64_t n; /* tokens */
    entry entry[SECTIONS_MAX];
    zip *z;
    hash_stream *h;
    unsigned char *block;
    err *e;
} file_in;

static status damaged(const file_in *f, const char *what)
{
    return err_set(f->e, E_FORMAT, "%s: %s", f->path, what);
}

static status read_at(const file_in *f, uint64_t at, void *to, size_t n)
{
    unsigned char *p = to;
    while (n) {
        ssize_t got = pread(f->fd, p, n, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return err_set(f->e, E_IO, "%s: cannot read: %s", f->path, strerror(errno));
        if (!got)
            return damaged(f, "ends too early");
        p += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return OK;
}

static status read_table(file_in *f, const kv_file_id *id, const kv_layout *l)
{
    unsigned char head[HEAD_BYTES], table[TABLE_BYTES_MAX], tail[TAIL_BYTES];
    size_t n = table_bytes(l->n_recur, id->pool);
    status st;
    if (f->n_bytes < HEAD_BYTES + n + TAIL_BYTES || f->n_bytes > INT64_MAX)
        return damaged(f, "too short to be a saved conversation");
    uint64_t table_at = f->n_bytes - TAIL_BYTES - n;
    if ((st = read_at(f, 0, head, sizeof head)) || (st = read_at(f, table_at, table, n)) ||
        (st = read_at(f, f->n_bytes - TAIL_BYTES, tail, sizeof tail)))
        return st;
    reader h = reader_of(head + 8, 8), t = reader_of(tail, 16), r = reader_of(table, n);
    if (memcmp(head, head_mark, 8) || memcmp(tail + 16, tail_mark, 8))
        return damaged(f, "no saved conversation, or one that was cut");
    if (rd_u32(&h) != kv_file_version(l->n_recur, id->pool) || rd_u32(&h))
        return damaged(f, "saved by another version of carat");
    if (rd_u64(&t) != n || rd_u64(&t) != hash64(table, n))
        return damaged(f, "its table is damaged");
    f->n = rd_u64(&r);
    if (rd_u64(&r) != id->model[0] || rd_u64(&r) != id->model[1])
        return damaged(f, "saved with another model");
    uint64_t at = HEAD_BYTES;
    for (int i = 0; i < SECTIONS_MAX; i++) {
        entry *x = &f->entry[i];
        if (!has_section(i, l->n_recur, id->pool))
            continue;
        *x = (entry){rd_u64(&r), rd_u64(&r), rd_u64(&r), rd_u64(&r), rd_u64(&r)};
        if (x->at != at || x->stored > table_at - at || !x->stride || x->stride > 4)
            return damaged(f, "its sections are not where they should be");
        at += x->stored;
    }
    return at == table_at ? OK : damaged(f, "its sections do not fill it");
}

/* Reads a section of exactly n raw bytes. */
static status read_section(const file_in *f, enum section s, unsigned char *to, uint64_t n)
{
    const entry *x = &f->entry[s];
    uint64_t at = x->at, end = x->at + x->stored;
    status st;
    if (x->raw != n)
        return damaged(f, "a section is not as long as this model's would be");
    hash_restart(f->h);
    while (n) {
        unsigned char head[4];
        size_t want = n < ZIP_BLOCK ? (size_t)n : ZIP_BLOCK;
        if (end - at < 4 || (st = read_at(f, at, head, 4)))
            return end - at < 4 ? damaged(f, "a section is cut") : st;
        reader r = reader_of(head, 4);
        uint32_t word = rd_u32(&r);
        uint32_t size = word & ~PACKED;
        bool packed = word & PACKED;
        at += 4;
        if (size > ZIP_BLOCK || size > end - at || (!packed && size != want))
            return damaged(f, "a block has an impossible size");
        hash_put(f->h, head, 4);
        if ((st = read_at(f, at, packed ? f->block : to, size)))
            return st;
        hash_put(f->h, packed ? f->block : to, size);
        if (packed && !zip_unpack(f->z, f->block, size, (size_t)x->stride, to, want))
            return damaged(f, "a block does not unpack");
        at += size;
        to += want;
        n -= want;
    }
    if (at != end || hash_value(f->h) != x->hash)
        return damaged(f, "a checksum is wrong");
    return OK;
}

static status check_layout(const file_in *f, const kv_file_id *id)
{
    if (f->entry[LAYOUT].raw != id->layout.n)
        return damaged(f, "saved with other formats of keys and values");
    unsigned char *text = mem_alloc(id->layout.n + 1);
    if (!text)
        return err_memory(f->e, f->path, id->layout.n);
    status st = read_section(f, LAYOUT, text, id->layout.n);
    if (!st && memcmp(text, str_text(&id->layout), id->layout.n))
        st = damaged(f, "saved with other formats of keys and values");
    mem_free(text);
    return st;
}

static status read_token_ids(const file_in *f, int32_t **ids)
{
    size_t n = (size_t)f->n;
    unsigned char *b = mem_alloc(n * 4);
    *ids = mem_alloc(n * sizeof **ids);
    status st = b && *ids ? read_section(f, IDS, b, n * 4) : err_memory(f->e, f->path, n * 4);
    for (size_t i = 0; i < n && !st; i++) {
        reader r = reader_of(b + 4 * i, 4);
        (*ids)[i] = (int32_t)rd_u32(&r);
    }
    mem_free(b);
    return st;
}

/* The pager's records, which are of the pool that the caller has. */
static status read_paging(const file_in *f, uint64_t pool, kv_snapshot *k)
{
    uint64_t n = f->entry[PAGING].raw, most = (f->n + 64) * (16 + 4 * PASS_SIDES_MAX);
    unsigned char *bytes = n && n <= most ? mem_alloc((size_t)n) : NULL;
    const char *why;
    if (!n || n > most)
        return damaged(f, "the records of its pool have an impossible size");
    status st = bytes ? read_section(f, PAGING, bytes, n) : err_memory(f->e, f->path, (size_t)n);
    if (!st && !(k->paging = kv_paging_unpack(bytes, (size_t)n, (int64_t)f->n, &why)))
        st = why ? damaged(f, why) : err_memory(f->e, f->path, (size_t)n);
    if (!st && kv_paging_key(k->paging) != pool)
        st = damaged(f, "saved with another pool of keys (--kv-pool, --kv-policy, --kv-tau)");
    mem_free(bytes);
    return st;
}

static status read_rows(const file_in *f, const kv_layout *l, uint64_t pool, kv_snapshot **out)
{
    int32_t *ids = NULL;
    kv_snapshot *k = NULL;
    status st = read_token_ids(f, &ids);
    if (!st)
        st = kv_snapshot_new(&(kv_snapshot_want){.layout = l, .ids = ids, .n = (int64_t)f->n}, &k,
                             f->e);
    mem_free(ids);
    if (!st)
        st = read_section(f, RINGS, k->rings, k->ring_bytes);
    if (!st)
        st = read_section(f, LINEAR, k->linear->rows, k->linear->n_bytes);
    if (!st && l->n_recur)
        st = read_section(f, STATES, k->states, k->state_bytes);
    if (!st && pool)
        st = read_paging(f, pool, k);
    if (st) {
        kv_snapshot_drop(k);
        return st;
    }
    k->linear->filled = k->filled = k->from_disk = true;
    *out = k;
    return OK;
}

status kv_snapshot_read_fd(int fd, const char *path, const kv_file_id *id, const kv_layout *l,
                           kv_snapshot **out, err *e)
{
    file_in f = {.fd = fd, .path = path, .e = e};
    struct stat sb;
    status st;
    *out = NULL;
    if (fstat(fd, &sb))
        return err_set(e, E_IO, "%s: cannot read: %s", path, strerror(errno));
    if (!S_ISREG(sb.st_mode))
        return damaged(&f, "not a file");
    f.n_bytes = (uint64_t)sb.st_size;
    f.z = zip_open();
    f.h = hash_open();
    f.block = mem_alloc(ZIP_BLOCK);
    if (!f.z || !f.h || !f.block) {
        st = err_memory(e, path, ZIP_BLOCK);
        goto out;
    }
    if ((st = read_table(&f, id, l)) || (st = check_layout(&f, id)))
        goto out;
    if (f.n < 1 || f.n > (uint64_t)l->n_ctx) {
        st = err_set(e, E_LIMIT, "%s: %llu tokens, and the context holds %d", path,
                     (unsigned long long)f.n, l->n_ctx);
        goto out;
    }
    st = read_rows(&f, l, id->pool, out);
out:
    mem_free(f.block);
    hash_close(f.h);
    zip_close(f.z);
    return st;
}

status kv_snapshot_read(const char *path, const kv_file_id *id, const kv_layout *l,
                        kv_snapshot **out, err *e)
{
    /* Does not follow links, and does not wait for the writer of a pipe. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat sb;
    status st;
    *out = NULL;
    if (fd < 0)
        return err_set(e, E_IO, "%s: cannot read: %s", path, strerror(errno));
    /* Checksums find damage, not forgery: in a directory that others may write to, such as /tmp,
     * another user's file could put words into a conversation. */
    if (!fstat(fd, &sb) && sb.st_uid != geteuid())
        st = err_set(e, E_IO, "%s: not read: the file is another user's", path);
    else
        st = kv_snapshot_read_fd(fd, path, id, l, out, e);
    close(fd);
    return st;
}
