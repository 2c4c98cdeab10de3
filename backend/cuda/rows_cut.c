/* rows_cut.c - which of some hundreds of ways to cut a product of few rows is about the quickest.
 *
 * A block has warps / abreast slots of `tiles` tiles; a step is a unit of each of its warps' tiles.
 * What a multiprocessor spends on a step grows with the tiles and warps that it has at once, and
 * beside that there is a wait that does not, because warps that began together wait together. Then
 * come what blocks cost as such: starting, activations, adding the sums of several. price_of has
 * the numbers, in nanoseconds.
 *
 * They are fitted to 9,000 times on an H200 (bench_matmul_cuda --cuts, of 31B, 26B-A4B, E4B and
 * E2B at 4 to 32 rows) so that the cut chosen is as quick as the quickest, not so that each time is
 * right: bench/journal/few-rows.md says how well.
 */
#include "backend/cuda/rows_cut.h"

/* By 8, 16 and 32 rows: for each tile and for each warp, a step. For 8 rows of a unit: staged with
 * its step, or with all at the beginning. Waiting, once a step: for a warp's tiles, and for each 8
 * rows of them; where a stage begins, less where `apart` more blocks are there to go on. Starting a
 * wave of blocks, and one after it. Where blocks have a part of a tile each: once; for the last to
 * come, for each tile, part and 8 rows; for what each leaves. */
typedef struct step_price {
    float tile[3], warp[3];
    float staged, whole;
    float wait_tile, wait_rows, stage, apart;
    float start, again;
    float spread, join, leave;
} step_price;

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
    /* The last round of the last turn, where no part has a unit left. */
    bool none = own == s->shares &&
                (s->unit_rounds - 1) * s->shares + (turns - 1) * c.abreast >= s->n_unit;
    return turns * s->unit_rounds - none;
}

/* Blocks of n_tile tiles of the result each; products have none in common. */
static int32_t blocks_of(const rows_shape *s, int32_t n_tile)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_jobs; i++)
        n += (s->n_out[i] + 16 * n_tile - 1) / (16 * n_tile);
    return n;
}

/* Tiles of a block, of W and W' where the product is gated. */
static int32_t slots_of(const rows_needs *k, rows_cut c)
{
    return c.warps / c.abreast * k->tiles;
}

/* About how long a multiprocessor takes for `blocks` blocks, `fit` at a time. */
static double time_of(const rows_shape *s, const rows_needs *k, rows_cut c, int32_t blocks,
                      int32_t fit)
{
    const step_price p = price_of(s->kind);
    const int32_t by = k->n_8 == 4 ? 2 : k->n_8 - 1;
    const int32_t waves = (blocks + fit - 1) / fit, at_once = blocks < fit ? blocks : fit;
    const double steps = rows_steps(s, c);
    double block = c.warps * (k->tiles * p.tile[by] + p.warp[by]); /* a step */
    double wait = k->tiles * (p.wait_tile + k->n_8 * p.wait_rows);
    double time = p.start * (1 + (waves - 1) * (fit > 1 ? p.again : 1));
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
           (!only.spread || c.spread == only.spread);
}

static void try_cut(rows_plan *best, const rows_shape *s, const rows_needs *k, const rows_gpu *gpu,
                    rows_cut c)
{
    int32_t slots = slots_of(k, c), n_tile = s->glu ? slots / 2 : slots;
    if (s->glu && slots % 4) /* tiles of W in pairs: 32 outputs are a group of the int8 copy */
        return;
    int32_t groups = blocks_of(s, n_tile), spread = s->shares / rows_own(s, c);
    size_t need = shared_of(s, k, c);
    size_t sums = (size_t)groups * (size_t)(s->shares * n_tile * 16 * s->rows);
    if (need > gpu->shared || (spread > 1 && (s->glu || groups > ROWS_GROUPS || sums > ROWS_SUMS)))
        return;
    /* Of the multiprocessor that gets most blocks. */
    int32_t here = (groups * spread + gpu->processors - 1) / gpu->processors;
    int32_t fit = (int32_t)((gpu->shared + 1024) / (need + 1024)), warps = k->warps / c.warps;
    double time = time_of(s, k, c, here, fit < warps ? fit : warps);
    if (!best->shared || time < best->time)
        *best = (rows_plan){c, need, time};
}

/* Blocks of 4 to 24 warps. Parts that are not abreast have their turn after, or blocks of their
 * own, which changes no sum. */
void rows_try(rows_plan *best, const rows_shape *s, const rows_needs *k, const rows_gpu *gpu,
              rows_cut only)
{
    for (int32_t warps = 4; warps <= k->warps; warps += 4)
        for (int32_t n = 1; n <= s->shares && n <= warps && warps % n == 0; n *= 2)
            for (int32_t spread = ROWS_TOGETHER; spread <= (n < s->shares ? ROWS_SPREAD : 1);
                 spread++)
                for (int32_t x = 1; x <= ROWS_WHOLE; x++) {
                    rows_cut c = {k->tiles, warps, n, x, spread};
                    /* A stage for several steps is of one turn's. */
                    bool one_turn = rows_own(s, c) == n && x < s->unit_rounds;
                    if ((x == 1 || x == ROWS_WHOLE || one_turn) && wanted(c, only))
                        try_cut(best, s, k, gpu, c);
                }
}
