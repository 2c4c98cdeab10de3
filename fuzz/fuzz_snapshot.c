/* fuzz_snapshot.c - any bytes as a saved conversation of a small layout.
 *
 * The target first makes the checksums right, because nearly every input would end there: it tests
 * the code behind them.
 */
#include "fuzz/fuzz.h"
#include "base/hash.h"
#include "kv/snapshot_file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TAIL = 24, ENTRY = 40, SECTIONS = 4, TABLE = 24 + SECTIONS * ENTRY };

static uint64_t get(const uint8_t *p)
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static void put(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static void make_checksums_right(uint8_t *file, size_t n)
{
    if (n < TAIL + TABLE)
        return;
    uint8_t *table = file + n - TAIL - TABLE;
    for (int i = 0; i < SECTIONS; i++) {
        uint8_t *x = table + 24 + i * ENTRY;
        uint64_t at = get(x), stored = get(x + 8);
        if (at <= n && stored <= n - at)
            put(x + 24, hash64(file + at, (size_t)stored));
    }
    put(table + TABLE + 8, hash64(table, TABLE));
}

FUZZ(snapshot)
{
    static const kv_spec spec[2] = {{.window = 4, .n_head_kv = 2, .head_dim = 32},
                                    {.n_head_kv = 1, .head_dim = 32}};
    const kv_want_layout want = {.spec = spec,
                                 .n = 2,
                                 .choice = {.k = {NUM_F16, false}, .v = {NUM_Q8_0, false}},
                                 .n_ctx = 64,
                                 .rows_max = 8};
    kv_layout l;
    kv_file_id id = {.model = {1, 2}};
    kv_snapshot *k = NULL;
    err e = {0};
    int fd = memfd_create("snapshot", MFD_CLOEXEC);
    uint8_t *copy = malloc(n ? n : 1);
    if (fd < 0 || !copy || kv_layout_init(&l, &want, &e))
        abort();
    kv_layout_words(&l, &id.layout);
    memcpy(copy, data, n);
    make_checksums_right(copy, n);
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
