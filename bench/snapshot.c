/* snapshot.c - times of taking and restoring an exact copy of what a session remembers.
 *
 *     build/bench_snapshot MODEL.gguf [TOKENS] [DEVICE] [KV TYPE]
 *
 * The first copy includes the time to get its memory, later copies reuse it; both are shown. After
 * each restore one more token is evaluated; its logits must be bit-identical every time.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "base/order.h"
#include "base/rng.h"
#include "carat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 5 };

static int fail(const carat_error *e)
{
    fprintf(stderr, "bench_snapshot: %s\n", e->text);
    return 1;
}

static void print(const char *what, double *ms, int n, uint64_t n_bytes)
{
    qsort(ms, (size_t)n, sizeof *ms, order_doubles);
    printf("%-14s median %8.2f ms  fastest %8.2f  slowest %8.2f  %6.1f GB/s\n", what, ms[n / 2],
           ms[0], ms[n - 1], (double)n_bytes * 1e-6 / ms[n / 2]);
}

/* One round trip: restores, then takes the state again. All rows are copied again, because a
 * restored session knows of no copy of them. logits receives the row of the next token. */
static carat_status round_trip(carat_session *s, carat_snapshot **p, const int32_t *ids, int32_t n,
                               float *logits, double ms[2], carat_error *e)
{
    carat_status st;
    carat_reset(s);
    double start = clock_ms();
    if ((st = carat_snapshot_restore(s, *p, e)))
        return st;
    ms[1] = clock_ms() - start;
    if ((st = carat_eval(s, ids, n + 1, logits, NULL, e)))
        return st;
    if (!carat_rewind(s, n))
        return CARAT_E_NUMERIC;
    carat_snapshot_free(*p);
    *p = NULL;
    start = clock_ms();
    st = carat_snapshot_take(s, p, e);
    ms[0] = clock_ms() - start;
    return st;
}

static carat_status measure(carat_session *s, const int32_t *ids, int32_t n, float *logits,
                            size_t n_vocab, carat_error *e)
{
    double take[REPEATS], back[REPEATS], ms[2] = {0, 0}, start = clock_ms();
    carat_snapshot *p = NULL;
    carat_status st = carat_snapshot_take(s, &p, e);
    uint64_t n_bytes = p ? carat_snapshot_bytes(p) : 0;
    double first = clock_ms() - start;
    int n_same = 0;
    for (int i = 0; i < REPEATS && !st; i++) {
        float *to = logits + (i ? n_vocab : 0);
        st = round_trip(s, &p, ids, n, to, ms, e);
        take[i] = ms[0];
        back[i] = ms[1];
        n_same += !st && i && !memcmp(logits, to, n_vocab * sizeof *to);
    }
    carat_snapshot_free(p);
    if (st)
        return st;
    printf("%.1f MB of %d tokens\n", (double)n_bytes * 1e-6, n);
    print("first take", &first, 1, n_bytes);
    print("take", take, REPEATS, n_bytes);
    print("restore", back, REPEATS, n_bytes);
    printf("%d of %d restored sessions go on as the first did\n", n_same, REPEATS - 1);
    return n_same == REPEATS - 1 ? CARAT_OK : CARAT_E_NUMERIC;
}

int main(int argc, char **argv)
{
    carat_error e = {0};
    carat_model *m = NULL;
    carat_session *s = NULL;
    carat_model_info info;
    int32_t n = argc > 2 ? atoi(argv[2]) : 32768;
    if (argc < 2 || n < 2 || n > 1 << 24) {
        fprintf(stderr, "usage: %s MODEL.gguf [TOKENS] [DEVICE] [KV TYPE]\n", argv[0]);
        return 2;
    }
    carat_model_options mo = {.device = argc > 3 ? argv[3] : NULL};
    carat_session_options so = {.n_ctx = n + 1,
                                .n_outputs = 1,
                                .checkpoint_mb = -1,
                                .kv_k = argc > 4 ? argv[4] : NULL,
                                .kv_v = argc > 4 ? argv[4] : NULL};
    if (carat_model_open(argv[1], &mo, &m, &e) || carat_session_open(m, &so, &s, &e))
        return fail(&e);
    carat_model_get_info(m, &info);
    printf("%s on %s\n", info.name, info.device);
    size_t n_vocab = (size_t)info.n_vocab;
    int32_t *ids = mem_calloc((size_t)n + 1, sizeof *ids);
    float *logits = mem_calloc(2 * n_vocab, sizeof *logits);
    uint64_t rng = 5;
    if (!ids || !logits)
        return 1;
    for (int32_t i = 0; i <= n; i++)
        ids[i] = (int32_t)rng_below(&rng, n_vocab);
    if (carat_eval(s, ids, n, NULL, NULL, &e) || measure(s, ids, n, logits, n_vocab, &e))
        return fail(&e);
    mem_free(logits);
    mem_free(ids);
    carat_session_close(s);
    carat_model_close(m);
    return 0;
}
