/* encode_lattice.c - f32 rows to IQ1, IQ2 and IQ3, by search. lattice.h says what a block holds.
 *
 * For a given scale the best entry of a vector of four or eight values is found exactly: all
 * entries are looked at. The error of an entry is the sum of that of its two halves, each a byte of
 * the entry, so the errors of all possible halves are computed first. Tables are in the order of
 * the second half: entries come in runs that share it, so its error is added once, to the least of
 * the run. LANES vectors go through the entries side by side, each with its own scale, and first
 * only the least error of each run is kept: a minimum is one instruction. Sums of a lane have one
 * order, so the bytes are the same whatever the compiler makes of the loops.
 *
 * Of a block of 256:
 *   1. per group, some scales are tried, each followed by the least-squares scale for its entries;
 *   2. the largest gives the factor of the block, and the others whole numbers of it;
 *   3. with whole scales, entries again, then the factor by least squares, while the error falls.
 */
#include "num/lattice.h"
#include "num/num_int.h"

#ifdef __SSE__
#include <xmmintrin.h>
#endif

enum {
    LANES = 16,
    FOURS = LANES / 4,
    VECTORS_MAX = QK / 4,
    GROUPS_MAX = 16,
    HALVES = 256,
    LEVELS_MAX = 8
};

typedef struct lattice_search {
    int type, width, n_vec, n_groups, n_runs;
    int levels;    /* of a value in an entry */
    int scale_top; /* scales are 0 to this */
    int n_shifts;  /* 2 in IQ1: an entry lies above or below the values */
    const uint16_t *entry;
    uint16_t run[HALVES + 1];   /* [n_runs + 1]: first entries, and the number of all */
    float level[2][LEVELS_MAX]; /* of each shift */
    /* Of the block: magnitudes (see fix_signs) and importance, [value][vector]. */
    float a[8][VECTORS_MAX], w[8][VECTORS_MAX];
    uint8_t negative[QK / 8];
} lattice_search;

typedef struct lattice_fit {
    uint16_t index[VECTORS_MAX];
    uint8_t down[VECTORS_MAX]; /* the shift, as a bit */
    float error[VECTORS_MAX];  /* less the sum of w a^2 */
} lattice_fit;

static void open_search(lattice_search *s, num_type type)
{
    s->type = (int)type;
    s->width = lattice_width(s->type);
    s->n_vec = QK / s->width;
    s->n_groups = type == NUM_IQ2_XS || type == NUM_IQ2_S || type == NUM_IQ1_M ? 16 : 8;
    s->n_shifts = lattice_shifts(s->type) ? 2 : 1;
    int n_entries = s->n_shifts == 2                          ? 2048
                    : type == NUM_IQ2_S                       ? 1024
                    : type == NUM_IQ2_XS || type == NUM_IQ3_S ? 512
                                                              : 256;
    s->levels = s->width == 8 ? 3 : 8;
    s->scale_top = s->n_shifts == 2 ? 7 : 15;
    s->entry = num_lattice(type);
    s->n_runs = 0;
    for (int k = 0; k < n_entries; k++)
        if (!k || s->entry[k] >> 8 != s->entry[k - 1] >> 8)
            s->run[s->n_runs++] = (uint16_t)k;
    s->run[s->n_runs] = (uint16_t)n_entries;
    for (int l = 0; l < s->levels; l++) {
        int y = lattice_size(s->type, (uint32_t)l, 0);
        s->level[0][l] = lattice_unit(s->type) * (float)(s->n_shifts == 2 ? y + 1 : y);
        s->level[1][l] = lattice_unit(s->type) * (float)(y - 1);
    }
}

/* Signs become bits, values magnitudes. Where the number of minuses must be even and is not, the
 * sign that matters least is wrong, and its magnitude is negative. In IQ1, which has no signs, they
 * are the values themselves. */
static void fix_signs(lattice_search *s, const float *x)
{
    bool even = s->type == NUM_IQ2_XXS || s->type == NUM_IQ2_XS || s->type == NUM_IQ3_XXS;
    for (int k = 0; k < QK / 8; k++) {
        int odd = 0, flip = 0;
        float least = INFINITY;
        s->negative[k] = 0;
        for (int i = 0; i < 8; i++) {
            int at = 8 * k + i, v = at / s->width, of = at % s->width;
            bool minus = x[at] < 0;
            s->a[of][v] = s->n_shifts == 2 ? x[at] : fabsf(x[at]);
            s->negative[k] |= (uint8_t)(minus << i);
            odd ^= minus;
            if (s->w[of][v] * fabsf(x[at]) < least) {
                least = s->w[of][v] * fabsf(x[at]);
                flip = i;
            }
        }
        if (even && odd) {
            int at = 8 * k + flip;
            s->negative[k] ^= (uint8_t)(1 << flip);
            s->a[at % s->width][at / s->width] *= -1;
        }
    }
}

typedef float four __attribute__((vector_size(16)));

/* Four minima. Which of two equal ones does not matter. */
static inline four least_of(four a, four b)
{
#ifdef __SSE__
    return _mm_min_ps(a, b);
#else
    int32_t less __attribute__((vector_size(16))) = a < b;
    return (four)((less & (__typeof__(less))a) | (~less & (__typeof__(less))b));
#endif
}

/* The errors of half h, under the bytes that are possible. */
static void half_errors(const lattice_search *s, int down, int h, int v0, const float *scale,
                        four (*sum)[FOURS])
{
    int n = s->width / 2, bits = 16 / s->width, n_rows = 1;
    uint8_t row[HALVES] = {0};
    memset(sum[0], 0, sizeof sum[0]);
    for (int k = 0; k < n; k++) {
        const float *a = s->a[h * n + k] + v0, *w = s->w[h * n + k] + v0;
        int known = n_rows;
        /* Level 0 comes last: it writes over the sums to which the others add. */
        for (int l = s->levels - 1; l >= 0; l--) {
            float e[LANES];
            four more[FOURS];
            for (int i = 0; i < LANES; i++) {
                float y = scale[i] * s->level[down][l];
                e[i] = w[i] * (y * (y - 2 * a[i]));
            }
            memcpy(more, e, sizeof more);
            for (int r = 0; r < known; r++) {
                uint8_t to = (uint8_t)(row[r] | l << bits * k);
                for (int i = 0; i < FOURS; i++)
                    sum[to][i] = sum[row[r]][i] + more[i];
                if (l)
                    row[n_rows++] = to;
            }
        }
    }
}

/* The least errors of each run's entries, and of all. */
static void least_errors(const lattice_search *s, four (*low)[FOURS], four (*high)[FOURS],
                         four (*run)[FOURS], float *to)
{
    const four inf = {INFINITY, INFINITY, INFINITY, INFINITY};
    four all[FOURS] = {inf, inf, inf, inf};
    for (int r = 0; r < s->n_runs; r++) {
        const uint16_t *entry = s->entry + s->run[r], *end = s->entry + s->run[r + 1];
        const four *x = low[*entry & 255], *y = high[*entry >> 8];
        four a = x[0], b = x[1], c = x[2], d = x[3];
        while (++entry < end) {
            x = low[*entry & 255];
            a = least_of(a, x[0]);
            b = least_of(b, x[1]);
            c = least_of(c, x[2]);
            d = least_of(d, x[3]);
        }
        const four e[FOURS] = {a + y[0], b + y[1], c + y[2], d + y[3]};
        for (int i = 0; i < FOURS; i++)
            all[i] = least_of(all[i], run[r][i] = e[i]);
    }
    memcpy(to, all, sizeof all);
}

/* The best entries of vectors v0 to v0 + LANES, of which each has its scale. */
static void best_entries(const lattice_search *s, int down, int v0, const float *scale,
                         lattice_fit *f)
{
    four low[HALVES][FOURS], high[HALVES][FOURS], run[HALVES][FOURS];
    float *least = f->error + v0;
    half_errors(s, down, 0, v0, scale, low);
    half_errors(s, down, 1, v0, scale, high);
    least_errors(s, low, high, run, least);
    for (int i = 0; i < LANES; i++) {
        int r = 0;
        while (r < s->n_runs - 1 && run[r][i / 4][i % 4] > least[i])
            r++;
        int k = s->run[r], last = s->run[r + 1] - 1;
        float other = high[s->entry[k] >> 8][i / 4][i % 4];
        while (k < last && low[s->entry[k] & 255][i / 4][i % 4] + other > least[i])
            k++;
        f->index[v0 + i] = (uint16_t)k;
        f->down[v0 + i] = (uint8_t)down;
    }
}

/* In IQ1_S the entries of a group have one shift. */
static void better_shifts(const lattice_search *s, lattice_fit *f, const lattice_fit *t)
{
    int per = s->type == LATTICE_IQ1_S ? 4 : 1;
    for (int v = 0; v < s->n_vec; v += per) {
        double a = 0, b = 0;
        for (int i = v; i < v + per; i++) {
            a += f->error[i];
            b += t->error[i];
        }
        for (int i = v; b < a && i < v + per; i++) {
            f->index[i] = t->index[i];
            f->down[i] = t->down[i];
            f->error[i] = t->error[i];
        }
    }
}

/* The best entries for a scale of each group. */
static void fit_entries(const lattice_search *s, const float *scale, lattice_fit *f)
{
    int per = s->n_vec / s->n_groups;
    for (int down = 0; down < s->n_shifts; down++) {
        lattice_fit t;
        for (int v0 = 0; v0 < s->n_vec; v0 += LANES) {
            float of[LANES];
            for (int i = 0; i < LANES; i++)
                of[i] = scale[(v0 + i) / per];
            best_entries(s, down, v0, of, down ? &t : f);
        }
        if (down)
            better_shifts(s, f, &t);
    }
}

static double group_error(const lattice_search *s, const lattice_fit *f, int g)
{
    int per = s->n_vec / s->n_groups;
    double e = 0;
    for (int v = g * per; v < (g + 1) * per; v++)
        e += f->error[v];
    return e;
}

static void keep_group(const lattice_search *s, lattice_fit *to, const lattice_fit *f, int g)
{
    int per = s->n_vec / s->n_groups;
    memcpy(to->index + g * per, f->index + g * per, (size_t)per * sizeof *f->index);
    memcpy(to->down + g * per, f->down + g * per, (size_t)per * sizeof *f->down);
    memcpy(to->error + g * per, f->error + g * per, (size_t)per * sizeof *f->error);
}

/* Sums of w a y and w y y of a group, y its values for a scale of 1. */
static void group_sums(const lattice_search *s, const lattice_fit *f, int g, double *ay, double *yy)
{
    int per = s->n_vec / s->n_groups, bits = 16 / s->width, mask = (1 << bits) - 1;
    *ay = *yy = 0;
    for (int v = g * per; v < (g + 1) * per; v++)
        for (int i = 0; i < s->width; i++) {
            float y = s->level[f->down[v]][s->entry[f->index[v]] >> bits * i & mask];
            *ay += (double)s->w[i][v] * s->a[i][v] * y;
            *yy += (double)s->w[i][v] * y * y;
        }
}

/* A scale of each group, as a real number. */
static void real_scales(const lattice_search *s, float *scale)
{
    /* The largest magnitude over the level it may become. Of two bits and less, most values lie
     * beyond the largest level. */
    static const float ends[2][4] = {{0.75f, 0.9f, 1.05f, 1.25f}, {1.1f, 1.5f, 1.9f, 2.5f}};
    float most[GROUPS_MAX] = {0};
    double best[GROUPS_MAX] = {0};
    int per = s->n_vec / s->n_groups;
    for (int v = 0; v < s->n_vec; v++)
        for (int i = 0; i < s->width; i++) {
            float a = s->a[i][v]; /* of a sign that is wrong, it becomes the least level */
            most[v / per] = fmaxf(most[v / per], s->n_shifts == 2 ? fabsf(a) : a);
        }
    for (int g = 0; g < s->n_groups; g++)
        scale[g] = 0;
    for (size_t k = 0; k < 4; k++) {
        float tried[GROUPS_MAX];
        lattice_fit f;
        for (int g = 0; g < s->n_groups; g++)
            tried[g] = most[g] / (s->level[0][s->levels - 1] * ends[s->n_shifts - 1][k]);
        fit_entries(s, tried, &f);
        for (int g = 0; g < s->n_groups; g++) {
            double ay, yy;
            group_sums(s, &f, g, &ay, &yy);
            if (ay > 0 && ay * ay > best[g] * yy) {
                best[g] = ay * ay / yy;
                scale[g] = (float)(ay / yy);
            }
        }
    }
}

/* A block in progress. */
typedef struct lattice_block {
    lattice_fit fit;
    uint8_t sc[GROUPS_MAX], d_bytes[2];
    float d;
    double error;
} lattice_block;

/* The whole scales near b->sc, with the entries that are best for each. */
static void whole_scales(const lattice_search *s, lattice_block *b)
{
    double least[GROUPS_MAX];
    uint8_t first[GROUPS_MAX];
    memcpy(first, b->sc, sizeof first);
    for (int step = 0; step < 3; step++) { /* 0, 1, -1 */
        int by = step == 2 ? -1 : step;
        float tried[GROUPS_MAX];
        lattice_fit f;
        for (int g = 0; g < s->n_groups; g++)
            tried[g] = b->d * (float)(2 * (first[g] + by) + 1);
        fit_entries(s, tried, &f);
        for (int g = 0; g < s->n_groups; g++) {
            int sc = first[g] + by;
            double e = group_error(s, &f, g);
            if (sc < 0 || sc > s->scale_top || (step && e >= least[g]))
                continue;
            least[g] = e;
            b->sc[g] = (uint8_t)sc;
            keep_group(s, &b->fit, &f, g);
        }
    }
    b->error = 0;
    for (int g = 0; g < s->n_groups; g++)
        b->error += least[g];
}

static void search_block(const lattice_search *s, lattice_block *b)
{
    float scale[GROUPS_MAX], most = 0;
    real_scales(s, scale);
    for (int g = 0; g < s->n_groups; g++)
        most = fmaxf(most, scale[g]);
    b->d = st_f16(b->d_bytes, most / (float)(2 * s->scale_top + 1));
    for (int g = 0; g < s->n_groups; g++) {
        float r = b->d > 0 ? 0.5f * (scale[g] / b->d - 1) : 0;
        b->sc[g] = (uint8_t)(clamp_float(r, 0, (float)s->scale_top) + 0.5f);
    }
    whole_scales(s, b);
    for (int round = 0; round < 2; round++) {
        double ay = 0, yy = 0;
        for (int g = 0; g < s->n_groups; g++) {
            double p, q, m = 2 * b->sc[g] + 1;
            group_sums(s, &b->fit, g, &p, &q);
            ay += m * p;
            yy += m * m * q;
        }
        lattice_block t = *b;
        t.d = st_f16(t.d_bytes, yy > 0 ? (float)(ay / yy) : 0);
        if (t.d == b->d || t.d <= 0)
            return;
        whole_scales(s, &t);
        if (t.error >= b->error)
            return;
        *b = t;
    }
}

/* The inverse of lattice_take, of entries, signs and scales; the block is zeroed before. Of IQ1,
 * negative[k] says whether entry k is shifted down. */
static void put_group(int type, uint8_t *b, int j, const uint16_t *index, const uint8_t *negative,
                      const uint8_t *scale)
{
    switch (type) {
    case LATTICE_IQ2_XXS:
    case LATTICE_IQ3_XXS: {
        bool three = type == LATTICE_IQ3_XXS;
        uint32_t word = (uint32_t)scale[0] << 28;
        for (int k = 0; k < (three ? 8 : 4); k++)
            b[2 + 8 * j + k] = (uint8_t)index[k];
        for (int k = 0; k < 4; k++)
            word |= (uint32_t)(negative[k] & 127) << 7 * k;
        st_u32(three ? b + 66 + 4 * j : b + 6 + 8 * j, word);
        break;
    }
    case LATTICE_IQ2_XS:
        for (int k = 0; k < 4; k++)
            st_u16(b + 2 + 8 * j + 2 * k, index[k] | (uint32_t)(negative[k] & 127) << 9);
        b[66 + j] = (uint8_t)(scale[0] | scale[1] << 4);
        break;
    case LATTICE_IQ2_S:
        for (int k = 0; k < 4; k++) {
            b[2 + 4 * j + k] = (uint8_t)index[k];
            b[34 + 4 * j + k] = negative[k];
            b[66 + j] |= (uint8_t)(index[k] >> 8 << 2 * k);
        }
        b[74 + j] = (uint8_t)(scale[0] | scale[1] << 4);
        break;
    case LATTICE_IQ1_S: {
        uint32_t word = (uint32_t)scale[0] << 12 | (uint32_t)negative[0] << 15;
        for (int k = 0; k < 4; k++) {
            b[2 + 4 * j + k] = (uint8_t)index[k];
            word |= (uint32_t)(index[k] >> 8) << 3 * k;
        }
        st_u16(b + 34 + 2 * j, word);
        break;
    }
    case LATTICE_IQ1_M: {
        uint8_t *sc = b + 48 + j / 2 * 2;
        uint32_t both = (uint32_t)(scale[0] | scale[1] << 3) << 6 * (j % 2);
        st_u16(sc, ld_u16(sc) | both);
        for (int k = 0; k < 4; k++) {
            b[4 * j + k] = (uint8_t)index[k];
            b[32 + 2 * j + k / 2] |= (uint8_t)((index[k] >> 8 | negative[k] << 3) << 4 * (k % 2));
        }
        break;
    }
    default: /* IQ3_S */
        for (int k = 0; k < 8; k++) {
            b[2 + 8 * j + k] = (uint8_t)index[k];
            b[66 + j] |= (uint8_t)(index[k] >> 8 << k);
        }
        memcpy(b + 74 + 4 * j, negative, 4);
        b[106 + j / 2] |= (uint8_t)(scale[0] << 4 * (j % 2));
        break;
    }
}

/* The factor of a block; IQ1_M has a nibble of it in each of four words. */
static void put_factor(int type, uint8_t *b, const uint8_t *d)
{
    if (type != LATTICE_IQ1_M) {
        memcpy(b, d, 2);
        return;
    }
    for (int k = 0; k < 4; k++)
        b[49 + 2 * k] |= (uint8_t)((ld_u16(d) >> 4 * k & 15) << 4);
}

static void weigh(num_type type, const float *src, const float *importance, uint8_t *to, int64_t n)
{
    lattice_search s;
    open_search(&s, type);
    for (; n > 0; n -= QK, src += QK, importance += importance ? QK : 0) {
        float x[QK], w[QK];
        lattice_block b;
        num_take(src, importance, x, w, QK);
        for (int i = 0; i < QK; i++)
            s.w[i % s.width][i / s.width] = w[i];
        fix_signs(&s, x);
        search_block(&s, &b);
        memset(to, 0, (size_t)lattice_block_bytes(s.type));
        for (int j = 0; j < 8; j++) {
            const uint8_t *bits = s.n_shifts == 2 ? b.fit.down + 4 * j : s.negative + 4 * j;
            put_group(s.type, to, j, b.fit.index + j * s.n_vec / 8, bits,
                      b.sc + j * s.n_groups / 8);
        }
        put_factor(s.type, to, b.d_bytes);
        to += lattice_block_bytes(s.type);
    }
}

#define WEIGH(name, TYPE)                                                                          \
    NUM_WEIGH(name)                                                                                \
    {                                                                                              \
        weigh(TYPE, src, importance, dst, n);                                                      \
    }
WEIGH(iq2_xxs, NUM_IQ2_XXS)
WEIGH(iq2_xs, NUM_IQ2_XS)
WEIGH(iq2_s, NUM_IQ2_S)
WEIGH(iq3_xxs, NUM_IQ3_XXS)
WEIGH(iq3_s, NUM_IQ3_S)
WEIGH(iq1_s, NUM_IQ1_S)
WEIGH(iq1_m, NUM_IQ1_M)
