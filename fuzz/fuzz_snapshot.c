/* fuzz_snapshot.c - any bytes as a saved conversation of a small layout.
 *
 * The target first makes the checksums right, because nearly every input would end there: it tests
 * the code behind them. The version in an input says for which layout it is read: with or without
 * recurrent layers, with or without a pool of keys, whose files have a section more each. Recurrent
 * layers are read twice: row by row, and in blocks of prompts, of which a file may hold a started one.
 */
#include "fuzz/fuzz.h"
#include "base/hash.h"
#include "kv/paging.h"
#include "kv/snapshot_file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { VERSION_AT = 8, TAIL = 24, ENTRY = 40, CONTEXT = 256, HEAD = 4, BLOCK = 8 };

static void make_checksums_right(uint8_t *file, size_t n, size_t n_sections)
{
    size_t n_table = 24 + n_sections * ENTRY;
    if (n < TAIL + n_table)
        return;
    uint8_t *table = file + n - TAIL - n_table;
    for (size_t i = 0; i < n_sections; i++) {
        uint8_t *x = table + 24 + i * ENTRY;
        uint64_t at = fuzz_get64(x), stored = fuzz_get64(x + 8);
        if (at <= n && stored <= n - at)
            fuzz_put64(x + 24, hash64(file + at, (size_t)stored));
    }
    fuzz_put64(table + n_table + 8, hash64(table, n_table));
}

/* A device that has recurrent layers. It computes nothing here. */
static void no_conv(pass *p, mat y, mat x, const weight *w, const recur_view *rv)
{
    (void)p, (void)y, (void)x, (void)w, (void)rv;
}

static void no_delta(pass *p, mat o, mat c, mat a, mat b, const delta_gate *g, const recur_view *rv)
{
    (void)p, (void)o, (void)c, (void)a, (void)b, (void)g, (void)rv;
}

static void no_settle(device *d, const recur_view *v, const recur_base *base, int32_t n,
                      const recur_seq *s)
{
    (void)d, (void)v, (void)base, (void)n, (void)s;
}

static kernel_speed reads_all(const device *d, const kv_view *kv, char *text, size_t cap)
{
    (void)d;
    (void)kv;
    if (cap)
        *text = 0;
    return KERNEL_FULL;
}

static void read_as(const uint8_t *data, size_t n, int32_t n_recur, bool blocks, bool pool)
{
    static const device_ops ops = {.conv = no_conv, .delta = no_delta};
    device d = {.op = &ops,
                .attend_kernel = reads_all,
                .settle = no_settle,
                .recur_head = HEAD,
                .recur_block = BLOCK};
    static const kv_paging rules = {
        .policy = KV_POLICY_SCORED, .pool = 3, .tau = 100, .rows_max = 8};
    static const recur_view recur = {.n_k = 1, .n_v = 2, .dk = HEAD, .dv = HEAD, .n_taps = 3};
    static const kv_spec spec[2] = {{.window = 4, .n_head_kv = 2, .head_dim = 32},
                                    {.n_head_kv = 1, .head_dim = 32}};
    const kv_want_layout want = {.spec = spec,
                                 .n = 2,
                                 .recur = &recur,
                                 .n_recur = n_recur,
                                 .choice = {.k = {NUM_F16, false}, .v = {NUM_Q8_0, false}},
                                 .n_ctx = CONTEXT,
                                 .rows_max = 8,
                                 .dev = {blocks ? &d : NULL}};
    kv_layout l;
    kv_file_id id = {.model = {1, 2}, .pool = pool ? kv_paging_key(&rules) : 0};
    kv_snapshot *k = NULL;
    err e = {0};
    int fd = memfd_create("snapshot", MFD_CLOEXEC);
    uint8_t *copy = malloc(n ? n : 1);
    if (fd < 0 || !copy || kv_layout_init(&l, &want, &e))
        abort();
    kv_layout_words(&l, &id.layout);
    memcpy(copy, data, n);
    make_checksums_right(copy, n, 4 + (size_t)n_recur + pool);
    for (size_t at = 0; at < n;) {
        ssize_t put_now = write(fd, copy + at, n - at);
        if (put_now <= 0)
            abort();
        at += (size_t)put_now;
    }
    status st = kv_snapshot_read_fd(fd, "fuzz", &id, &l, &k, &e);
    if (!st != !!k || (st && !e.text[0]))
        abort();
    if (k && (k->n < 1 || k->n > l.n_ctx || !kv_snapshot_fits(k, &l)))
        abort();
    kv_snapshot_drop(k);
    str_free(&id.layout);
    kv_layout_free(&l);
    close(fd);
    free(copy);
}

FUZZ(snapshot)
{
    for (int version = 0; version < 4; version++) {
        const bool states = version & KV_FILE_STATES, pool = version & KV_FILE_PAGING;
        if (n > VERSION_AT ? data[VERSION_AT] != KV_FILE_VERSION + version : version)
            continue;
        read_as(data, n, states, false, pool);
        if (states)
            read_as(data, n, states, true, pool);
    }
}
