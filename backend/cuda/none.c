/* none.c - the CUDA device in a build without kernels: it plans (plan_only.c) and opens no GPU.
 *
 * Host code of this folder is in every build. Launchers and calls of the runtime that nothing here
 * defines are made by the Makefile (never.c): they fail, and a plan calls none of them. What a plan
 * does ask of the files with kernels is repeated here: the shared memory that blocks take, by which
 * the host chooses kernels. tests/cuda/check_plan.c compares it with the kernels' own answers.
 */
#include "backend/cuda/attend/launch_attend.h"
#include "backend/cuda/attend/launch_skip.h"

#ifndef NONE_SIZES /* check_plan.c takes the rest */
#include "backend/cuda/none.h"

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 0;
    return cudaErrorNotSupported;
}

const char *cudaGetErrorString(cudaError_t e)
{
    (void)e;
    return "this carat was built without CUDA: `make cuda` builds one with it";
}

cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}
#endif

/* ---- Attention ------------------------------------------------------------------------------ */

/* From row to row in shared memory: an odd multiple of 16. */
static int line_bytes(int row)
{
    return row % 32 ? row : row + 16;
}

/* split.cu: the least of two stages, and three. */
split_limits cu_split_limits(int largest)
{
    return (split_limits){.widest = largest >= 165568  ? 512
                                    : largest >= 84672 ? 256
                                                       : 128,
                          .stages_256 = largest >= 114624 ? 3 : 2,
                          .stages_512 = largest >= 232128 ? 3 : 2};
}

/* split8.cu: shared memory beside the stages. */
static int split8_fixed(int d, int keys, int n_pairs)
{
    int pairs = n_pairs > 8 ? 16 : 8, parts = d / 64 / (keys / 16), scores = keys + 8;
    return pairs * ((d + 32) * 2 + scores * 2 + parts * scores * 4 + 3 * 4) + 16;
}

static int split8_line(dev_kv kv)
{
    return line_bytes(kv.k_bytes) + line_bytes(kv.v_bytes);
}

int cu_split8_keys(dev_kv kv)
{
    enum { CARDS_99K = 99 << 10 };
    bool fits = 64 * split8_line(kv) + split8_fixed(512, 64, 16) <= CARDS_99K;
    return kv.head_dim == 512 && fits ? 64 : 32;
}

int cu_split8_bytes(dev_kv kv, int n_pairs, int stages)
{
    int d = kv.head_dim, keys = cu_split8_keys(kv);
    if (kv.single || (d != 256 && d != 512))
        return 0;
    return split8_fixed(d, keys, n_pairs) + stages * keys * split8_line(kv);
}

int cu_split512_stages(dev_kv kv, int largest)
{
    enum { MOST = 6, LEAST = 2, KEYS = 16, PAIRS = 8, MERGE_BYTES = 16 * 32 * 16 };
    bool kind = kv.k_kind == KV_Q8_0 || kv.k_kind == KV_Q4_0;
    if (kv.single)
        kind = kind && !kv.k_rot && kv.n_turning == 512 / 8 && kv.turns;
    else
        kind = (kind || kv.k_kind == KV_TQ3_0) && kv.k_kind == kv.v_kind;
    if (!kind || kv.head_dim != 512)
        return 0;
    int fixed =
        PAIRS * ((512 + 32) * 2 + 4) + (64 * SPLIT512_PAIRS + (kv.single ? 32 * 36 + 32 : 0)) * 16;
    for (int n = MOST; n >= LEAST; n--) {
        int ring = n * KEYS * line_bytes(kv.k_bytes);
        if (fixed + SPLIT512_PAIRS * (ring > MERGE_BYTES ? ring : MERGE_BYTES) <= largest)
            return n;
    }
    return 0;
}

/* ---- Skip-softmax --------------------------------------------------------------------------- */

/* Has a block room for two stages or more? */
static bool stages_fit(int fixed, int stage, int least, int blocks)
{
    enum { MOST = 6, LEAST = 2 };
    int all = cu_gpu.shared_block, half = cu_gpu.shared_sm / 2 - BLOCK_RESERVED;
    int n = (half - fixed) / stage;
    if (blocks == 1 || half > all || n < 3)
        n = (all - fixed) / stage;
    n = n < MOST ? n : MOST;
    return n >= LEAST && fixed + (n * stage > least ? n * stage : least) <= all;
}

bool cu_skip_fits(dev_kv kv)
{
    enum { WARPS = 8 };
    int d = kv.head_dim, keys = d == 128 ? 64 : 32, parts = WARPS / (keys / 16), columns = d / 64;
    int k = keys * line_bytes((kv.k_bytes + 15) / 16 * 16);
    int v = keys * line_bytes((kv.v_bytes + 15) / 16 * 16);
    bool fits = d == 128 || d == 256 || d == 512;
    for (int groups = 1; groups <= 2 && fits; groups++) {
        int pairs = 8 * groups, join = (WARPS - columns) * groups * 16 * 32 * 4;
        int scores = pairs * ((d + 32) * 2 + parts * (keys + 8) * 4 + 4);
        int values = pairs * (SKIP_TILES + 1) * 4 + (SKIP_TILES + 4) * 4;
        fits = stages_fit(scores, k, 0, 2) && stages_fit(values, pairs * (keys + 8) * 2 + v, join,
                                                         d == 512 && groups == 2 ? 1 : 2);
    }
    return fits;
}
