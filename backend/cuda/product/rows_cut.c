/* rows_cut.c - the cheapest of some hundreds of ways to cut a product of few rows into blocks.
 *
 *     block   warps / abreast slots of `tiles` tiles
 *     step    a unit of weights for each of the block's warps' tiles
 *     time    steps * (work of all blocks on the multiprocessor + one wait), plus fixed costs
 *
 * The work of a step grows with the tiles and warps on the multiprocessor. The wait does not,
 * because warps that begin together wait together. Fixed costs of a block are its start, the
 * activations, and the addition of sums. price_of has the prices in nanoseconds. They are fitted to
 * 9,000 times on an H200 (bench_matmul_cuda --cuts; 31B, 26B-A4B, E4B and E2B at 4 to 32 rows), so
 * that the chosen cut is nearly the fastest, not so that each time is right. bench/journal/ says
 * how well.
 */
#include "backend/cuda/product/rows_cut.h"

/* tile, warp: per step, for 8, 16 and 32 rows. staged, whole: 8 rows of a unit of activations,
 * copied with their step or all at the beginning. wait_tile, wait_rows, stage: the wait of a step,
 * by the warp's tiles, by 8 rows of them, and at the start of a stage; further blocks on the
 * multiprocessor hide a share of the last (apart). start, again: the first wave of blocks, and each
 * later one relative to it; CROWD more, once, for each warp of a block beyond CROWDED. spread,
 * join, leave: where the parts of a tile are in several blocks, once per launch; per tile, part and
 * 8 rows for the last block; per sum that a block leaves. */
typedef struct step_price {
    float tile[3], warp[3];
    float staged, whole;
    float wait_tile, wait_rows, stage, apart;
    float start, again;
    float spread, join, leave;
} step_price;

enum { CROWD = 150, CROWDED = 12 };

static step_price price_of(int32_t kind)
{
    switch (kind) {
    case PACK_Q6_K:
        return (step_price){.tile = {47, 61, 80},
                            .warp = {41, 49, 70},
                            .wait_tile = 8,
                            .wait_rows = 290,
                            .stage = 767,
                            .start = 4834,
                            .spread = 395,
                            .join = 14.7f,
                            .leave = 154};
    case PACK_Q4_0:
    case PACK_Q5_0: /* like Q4_0; not measured */
        return (step_price){.tile = {10, 35, 110},
                            .warp = {51, 38, 18},
                            .staged = 20.5f,
                            .whole = 15.4f,
                            .wait_tile = 350,
                            .stage = 410,
                            .apart = 0.09f,
                            .start = 3000,
                            .again = 0.53f,
                            .spread = 2200,
                            .join = 34.2f,
                            .leave = 91.3f};
    default: /* Q4_K, Q8_0; the others are not measured */
        return (step_price){.tile = {22.5f, 35.3f, 108},
                            .warp = {51.3f, 38.1f, 18.2f},
                            .staged = 20.5f,
                            .whole = 15.4f,
                            .wait_tile = 23.3f,
                            .wait_rows = 231.3f,
                            .stage = 891,
                            .start = 3380,
                            .again = 1,
                            .spread = 2200,
                            .join = 34.2f,
                            .leave = 91.3f};
    }
}

int32_t rows_own(const rows_shape *s, rows_cut c)
{
    return c.spread == ROWS_SPREAD ? c.abreast : s->shares;
}

int32_t rows_steps(const rows_shape *s, rows_cut c)
{
    int32_t own = rows_own(s, c), turns = own / c.abreast;
    /* Whether the last round of the last turn has no unit at all. */
    bool none =
        own == s->shares && (s->unit_rounds - 1) * s->shares + (turns - 1) * c.abreast >= s->n_unit;
    return turns * s->unit_rounds - none;
}

/* Up to 8 rows where a multiprocessor has 100 KB: blocks without whole rows are several there, and
 * hide each other's waits. Fitted to 400 times of 31B's products on an H200 as 8.6, so that the
 * chosen cuts are nearly the fastest. */
static step_price price_here(const rows_shape *s, const rows_needs *k, const rows_gpu *gpu)
{
    enum { LARGE = 128 << 10 };
    step_price p = price_of(s->kind);
    if (gpu->shared >= LARGE || k->n_8 > 1 || s->pieces > 1)
        return p;
    if (s->kind == PACK_Q6_K) {
        p.wait_rows = 29, p.stage = 77;
    } else if (s->kind != PACK_Q4_0 && s->kind != PACK_Q5_0) {
        p.wait_rows = 116, p.stage = 535, p.apart = 2, p.again = 0.5f;
    }
    return p;
}

/* Blocks of n_tile tiles of the result; no block has tiles of two products. */
static int32_t blocks_of(const rows_shape *s, int32_t n_tile)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_jobs; i++)
        n += (s->n_out[i] + 16 * n_tile - 1) / (16 * n_tile);
    return n;
}

/* Tiles of a block; of a gated product those of W and of W'. */
static int32_t slots_of(const rows_needs *k, rows_cut c)
{
    return c.warps / c.abreast * k->tiles;
}

/* The estimated time of a multiprocessor for `blocks` blocks, `fit` at a time. */
static double time_of(const rows_shape *s, const rows_needs *k, const step_price p, rows_cut c,
                      int32_t blocks, int32_t fit)
{
    const int32_t by = k->n_8 == 4 ? 2 : k->n_8 - 1;
    const int32_t waves = (blocks + fit - 1) / fit, at_once = blocks < fit ? blocks : fit;
    const double steps = rows_steps(s, c);
    double block = c.warps * (k->tiles * p.tile[by] + p.warp[by]); /* a step */
    double wait = k->tiles * (p.wait_tile + k->n_8 * p.wait_rows);
    double time = p.start * (1 + (waves - 1) * (fit > 1 ? p.again : 1));
    if (c.warps > CROWDED)
        time += CROWD * (c.warps - CROWDED);
    if (c.x == ROWS_WHOLE) {
        time += p.whole * blocks * steps * c.abreast * k->n_8;
    } else {
        block += p.staged * k->n_8 * c.abreast;
        wait += p.stage / c.x / (1 + p.apart * (at_once - 1));
    }
    time += steps * (blocks * block + waves * wait);
    if (c.spread == ROWS_SPREAD)
        time += p.spread + p.join * slots_of(k, c) * k->n_8 * s->shares +
                p.leave * blocks * c.warps * k->tiles * k->n_8;
    return time;
}

/* Shared memory of a block. */
static size_t shared_of(const rows_shape *s, const rows_needs *k, rows_cut c)
{
    int32_t own = rows_own(s, c);
    int32_t x = c.abreast * (c.x == ROWS_WHOLE ? rows_steps(s, c) : 2 * c.x);
    int32_t sums = c.abreast > 1 && c.abreast < own ? slots_of(k, c) * own * k->n_8 : 0;
    return (size_t)(c.warps * k->tiles * k->per_tile + x * k->n_8 * k->per_x + sums * 512);
}

static bool wanted(rows_cut c, rows_cut only)
{
    return (!only.tiles || c.tiles == only.tiles) && (!only.warps || c.warps == only.warps) &&
           (!only.abreast || c.abreast == only.abreast) && (!only.x || c.x == only.x) &&
           (!only.spread || c.spread == only.spread) && (!only.piece || c.piece == only.piece);
}

static void try_cut(rows_plan *best, const rows_shape *s, const rows_needs *k, const rows_gpu *gpu,
                    rows_cut c)
{
    int32_t slots = slots_of(k, c), n_tile = s->glu ? slots / 2 : slots;
    if (s->glu && slots % 4) /* tiles of W in pairs: 32 outputs are a group of the int8 copy */
        return;
    int32_t groups = blocks_of(s, n_tile), spread = s->shares / rows_own(s, c);
    size_t need = shared_of(s, k, c) + (size_t)k->fixed;
    groups *= s->pieces;
    size_t sums = (size_t)groups * (size_t)(s->shares * n_tile * 16 * s->rows);
    if (need > gpu->shared || (spread > 1 && (s->glu || groups > ROWS_GROUPS || sums > ROWS_SUMS)))
        return;
    /* The blocks of the multiprocessor that has most. */
    int32_t here = (groups * spread + gpu->processors - 1) / gpu->processors;
    int32_t fit = (int32_t)((gpu->shared + 1024) / (need + 1024)), warps = k->warps / c.warps;
    double time = time_of(s, k, price_here(s, k, gpu), c, here, fit < warps ? fit : warps);
    if (!best->shared || time < best->time)
        *best = (rows_plan){c, need - (size_t)k->fixed, time};
}

/* Tries blocks of 4 to 24 warps. Parts that are not abreast take turns, or have blocks of their
 * own; sums are the same either way. */
void rows_try(rows_plan *best, const rows_shape *s, const rows_needs *k, const rows_gpu *gpu,
              rows_cut only)
{
    for (int32_t warps = 4; warps <= k->warps; warps += 4)
        for (int32_t n = 1; n <= s->shares && n <= warps && warps % n == 0; n *= 2)
            for (int32_t spread = ROWS_TOGETHER; spread <= (n < s->shares ? ROWS_SPREAD : 1);
                 spread++)
                for (int32_t x = 1; x <= ROWS_WHOLE; x++) {
                    rows_cut c = {k->tiles, warps, n, x, spread, 8 * k->n_8};
                    /* A stage of several steps does not cross turns. */
                    bool one_turn = rows_own(s, c) == n && x < s->unit_rounds;
                    if ((x == 1 || x == ROWS_WHOLE || one_turn) && wanted(c, only))
                        try_cut(best, s, k, gpu, c);
                }
}
