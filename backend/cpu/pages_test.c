/* pages_test.c - summaries of pages on every instruction set against the reference, and the
 * reference against the keys as they were given: every format, rotated, one stream, shuffled pages.
 * Looks at pages against the keys as they were given.
 */
#include "backend/cpu/cpu_test_int.h"
#include "backend/cpu/table_ops_int.h"
#include "backend/key_walk.h"

enum { HEADS = 2, PAGES = 5, SLOTS = 8 * KV_PAGE, DIM_MOST = 512 };

typedef struct fixture {
    kv_view v;
    kv_base base;
    kv_page page[PAGES];
    rope turn;
    weight norm;
    float inv[DIM_MOST / 2], w[DIM_MOST];
    float *key; /* [PAGES * KV_PAGE][HEADS][dim]: as attention meets them, before rounding */
    size_t n_bytes;
} fixture;

static void open_view(fixture *f, num_type t, bool rot, bool single, int32_t dim, uint64_t *rng)
{
    uint64_t row;
    *f = (fixture){0};
    CHECK(num_row_bytes(t, (uint64_t)dim, &row));
    test_fill(f->w, (size_t)dim, 0.2f, rng);
    for (int32_t i = 0; i < dim; i++)
        f->w[i] += 1;
    for (int32_t i = 0; i < dim / 8; i++)
        f->inv[i] = (float)pow(1e4, -2.0 * i / dim);
    f->turn = (rope){.n_pairs = dim / 2, .inv_freq = f->inv, .n_turning = dim / 8};
    f->norm = (weight){.n_in = dim, .n_out = 1, .n_mat = 1, .data = f->w};
    f->v = (kv_view){.kind = STORE_LINEAR,
                     .k_type = t,
                     .v_type = t,
                     .n_head_kv = HEADS,
                     .head_dim = dim,
                     .n_slots = SLOTS,
                     .n_keys = SLOTS,
                     .k_row_bytes = row,
                     .v_row_bytes = single ? 0 : row,
                     .k_rot = rot,
                     .single = single,
                     .k_weight = &f->norm,
                     .k_rope = &f->turn};
    f->n_bytes = (size_t)HEADS * SLOTS * row;
    f->base.k = mem_alloc(f->n_bytes);
    f->key = mem_alloc((size_t)PAGES * KV_PAGE * HEADS * (size_t)dim * 4);
    CHECK(f->base.k && f->key);
    memset(f->base.k, 0xff, f->n_bytes);
}

/* Draws a key, stores it as the format has it and keeps what attention makes of it. */
static void store_key(fixture *f, int32_t t, int32_t pos, int32_t head, uint64_t *rng)
{
    int32_t dim = f->v.head_dim, half = dim / 2;
    float x[DIM_MOST], *key = f->key + ((size_t)t * HEADS + (size_t)head) * (size_t)dim;
    size_t place = key_walk(&f->v, &f->base, t).place;
    char *row = key_row(&f->v, f->base.k, f->v.k_row_bytes, head, place);
    test_fill(x, (size_t)dim, 1, rng);
    if (f->v.k_rot)
        num_rotate(x, dim);
    num_format_of(f->v.k_type)->encode(x, row, dim);
    num_format_of(f->v.k_type)->decode(row, key, dim);
    if (!f->v.single)
        return;
    if (f->v.k_rot)
        num_unrotate(key, dim);
    for (int32_t i = 0; i < half; i++) {
        double a = (double)key[i] * f->w[i], b = (double)key[i + half] * f->w[i + half];
        double c = cos((double)pos * f->inv[i]), s = sin((double)pos * f->inv[i]);
        key[i] = (float)(a * c - b * s);
        key[i + half] = (float)(a * s + b * c);
    }
}

/* Pages that begin at every second position of a context, in places out of order. */
static void fill_pages(fixture *f, bool paged, uint64_t *rng)
{
    static const int32_t place[PAGES] = {6, 1, 4, 0, 7};
    for (int32_t i = 0; i < PAGES; i++)
        f->page[i] = (kv_page){place[i] * KV_PAGE, 2 * i * KV_PAGE};
    f->base.page = paged ? f->page : NULL;
    for (int32_t t = 0; t < PAGES * KV_PAGE; t++)
        for (int32_t h = 0; h < HEADS; h++)
            store_key(f, t, paged ? f->page[t / KV_PAGE].pos + t % KV_PAGE : t, h, rng);
}

static void close_view(fixture *f)
{
    mem_free(f->base.k);
    mem_free(f->key);
}

/* The middle and the half width of a dim, or its mean. */
static float part_of(const page_sums *s, const fixture *f, int32_t h, int32_t row, int part, int i)
{
    const uint16_t *scale = page_scales(s, &f->v, h, row) + i / PAGE_SUM_GROUP * 2 + part;
    if (s->parts == PAGE_SUM_MEAN)
        return num_bf16_to_f32(page_mean(s, &f->v, h, row)[i]);
    return num_bf16_to_f32(*scale) * (part ? (float)page_widths(s, &f->v, h, row)[i]
                                           : (float)page_middles(s, &f->v, h, row)[i]);
}

/* Smallest and largest values of a page's keys, and their sums. */
typedef struct page_range {
    float lo[DIM_MOST], hi[DIM_MOST];
    double sum[DIM_MOST];
} page_range;

static const float *key_of(const fixture *f, int32_t t, int32_t h)
{
    return f->key + ((size_t)t * HEADS + (size_t)h) * (size_t)f->v.head_dim;
}

static void range_of(const fixture *f, int32_t page, int32_t h, page_range *r)
{
    for (int32_t i = 0; i < f->v.head_dim; i++) {
        r->lo[i] = INFINITY;
        r->hi[i] = -INFINITY;
        r->sum[i] = 0;
        for (int32_t t = page * KV_PAGE; t < (page + 1) * KV_PAGE; t++) {
            float x = key_of(f, t, h)[i];
            r->sum[i] += x;
            r->lo[i] = x < r->lo[i] ? x : r->lo[i];
            r->hi[i] = x > r->hi[i] ? x : r->hi[i];
        }
    }
}

/* No product of a random query with a key of the page is above the bound. slack: of keys */
static void check_products(const fixture *f, const page_sums *s, int32_t page, int32_t h,
                           int32_t row, double slack, uint64_t *rng)
{
    float q[DIM_MOST];
    int32_t dim = f->v.head_dim;
    for (int k = 0; k < 3; k++) {
        double bound = 0;
        test_fill(q, (size_t)dim, 1, rng);
        for (int32_t i = 0; i < dim; i++) {
            q[i] = k == 1 && i % 7 ? 0 : q[i];
            bound += (double)q[i] * part_of(s, f, h, row, 0, i) +
                     fabs((double)q[i]) * ((double)part_of(s, f, h, row, 1, i) + slack);
        }
        for (int32_t t = page * KV_PAGE; t < (page + 1) * KV_PAGE; t++) {
            double x = 0;
            for (int32_t i = 0; i < dim; i++)
                x += (double)q[i] * key_of(f, t, h)[i];
            CHECK_MSG(x <= bound + 1e-12 * fabs(bound), "a product of %.9g above a bound of %.9g",
                      x, bound);
        }
    }
}

/* Bounds hold, and are no wider than two steps of the largest value of a dim's group. */
static void check_bounds(const fixture *f, const page_sums *s, const page_range *r, int32_t h,
                         int32_t row, double slack)
{
    for (int32_t i = 0, dim = f->v.head_dim; i < dim; i++) {
        int32_t from = i / PAGE_SUM_GROUP * PAGE_SUM_GROUP;
        double m = part_of(s, f, h, row, 0, i), w = part_of(s, f, h, row, 1, i), top = 0;
        for (int32_t k = from; k < from + PAGE_SUM_GROUP && k < dim; k++)
            top = fmax(top, fmax(fabs((double)r->lo[k]), fabs((double)r->hi[k])));
        CHECK_MSG(m - w <= r->lo[i] + slack && m + w >= r->hi[i] - slack,
                  "bounds [%g, %g] of %g, %g", m - w, m + w, (double)r->lo[i], (double)r->hi[i]);
        CHECK_NEAR(m - w, r->lo[i], top / 80 + slack + 1e-28);
        CHECK_NEAR(m + w, r->hi[i], top / 80 + slack + 1e-28);
    }
}

static void check_sums(const fixture *f, const page_sums *s, int32_t first, int32_t row, int32_t n,
                       uint64_t *rng)
{
    page_range r;
    double slack = f->v.single ? 1e-5 : 0; /* keys that are made are rounded */
    for (int32_t p = 0; p < n; p++)
        for (int32_t h = 0; h < HEADS; h++) {
            range_of(f, first + p, h, &r);
            for (int32_t i = 0; i < f->v.head_dim && s->parts == PAGE_SUM_MEAN; i++)
                CHECK_NEAR(part_of(s, f, h, row + p, 0, i), r.sum[i] / KV_PAGE,
                           1e-5 + fabs(r.sum[i] / KV_PAGE) / 200);
            if (s->parts == PAGE_SUM_MEAN)
                continue;
            check_bounds(f, s, &r, h, row + p, slack);
            check_products(f, s, first + p, h, row + p, slack, rng);
        }
}

static page_sums open_sums(const kv_view *v, int32_t n_rows, int32_t parts)
{
    page_sums s = {.n_rows = n_rows, .parts = parts};
    s.at = mem_alloc(page_sums_bytes(&s, v));
    CHECK(s.at);
    memset(s.at, 0xff, page_sums_bytes(&s, v));
    return s;
}

static void check_view(device *d, const fixture *f, int32_t parts, uint64_t *rng)
{
    enum { ROWS = PAGES + 3 };
    page_sums s = open_sums(&f->v, ROWS, parts);
    d->sum_pages(d, &f->v, &f->base, &s, 1, 2, PAGES - 1);
    check_sums(f, &s, 1, 2, PAGES - 1, rng);
    for (int32_t h = 0; h < HEADS; h++) /* no other row is touched */
        for (int32_t r = 0; r < ROWS; r++)
            CHECK(isnan(part_of(&s, f, h, r, 0, 0)) == (r < 2 || r >= PAGES + 1));
    test_free(s.at);
}

/* What rescore_pages says, from the keys as they were given. */
static float log_share(const fixture *f, const page_rescore *l, int32_t page, int32_t r, int32_t h)
{
    int32_t dim = f->v.head_dim, head = h / (l->q.heads / HEADS);
    const float *q = mat_row(l->q, r) + (size_t)h * (size_t)dim;
    double sum = 0;
    for (int32_t t = (l->first + page) * KV_PAGE; t < (l->first + page + 1) * KV_PAGE; t++) {
        float key[DIM_MOST];
        double x = 0;
        memcpy(key, f->key + ((size_t)t * HEADS + (size_t)head) * (size_t)dim, (size_t)dim * 4);
        if (f->v.k_rot && !f->v.single)
            num_unrotate(key, dim);
        for (int32_t i = 0; i < dim; i++)
            x += (double)q[i] * key[i];
        sum += exp(x * l->scale);
    }
    return (float)log(sum);
}

/* Seven rows of three heads for each of the keys', in a matrix with wider rows: more queries than a
 * task takes at a time, with `many` heads. */
static void check_rescore(device *d, const fixture *f, bool many, uint64_t *rng)
{
    int32_t rows = 7, heads = HEADS * (many ? 20 : 3), n = PAGES - 1, stride = rows * heads + 2;
    mat q = test_mat(rows, heads, f->v.head_dim + 4);
    q.cols = f->v.head_dim;
    float *to = mem_alloc((size_t)(n * stride) * sizeof *to);
    CHECK(to);
    test_fill(q.at, (size_t)rows * (size_t)q.stride, 0.5f, rng);
    for (int32_t i = 0; i < n * stride; i++)
        to[i] = 77;
    const page_rescore l = {q, 0.3f, 1, n, to, stride};
    d->rescore_pages(d, &f->v, &f->base, &l);
    for (int32_t i = 0; i < n; i++) {
        for (int32_t j = 0; j < rows * heads; j++) {
            float want = log_share(f, &l, i, j / heads, j % heads), got = to[i * stride + j];
            CHECK_MSG(fabsf(got - want) <= 2e-3f, "page %d, query %d: %g, expected %g", i, j,
                      (double)got, (double)want);
        }
        CHECK(to[i * stride + rows * heads] == 77 && to[i * stride + rows * heads + 1] == 77);
    }
    mem_free(to);
    test_free(q.at);
}

static void check_view_of(device *d, const fixture *f, int mode, uint64_t *rng)
{
    check_view(d, f, PAGE_SUM_BOUNDS, rng);
    check_view(d, f, PAGE_SUM_MEAN, rng);
    check_rescore(d, f, mode == 4, rng);
}

/* first, stride: of the modes; the next format begins with the next mode. */
static void check_formats(device *d, int first, int stride, uint64_t *rng)
{
    static const num_type types[] = {NUM_F32,  NUM_F16,  NUM_BF16, NUM_Q8_0,   NUM_Q5_1,
                                     NUM_Q5_0, NUM_Q4_1, NUM_Q4_0, NUM_IQ4_NL, NUM_TQ3_0};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int mode = (first + (int)i) % stride; mode < 8; mode += stride) {
            fixture f;
            bool rot = mode & 1, single = mode & 2, paged = mode & 4;
            bool floats = types[i] == NUM_F32 || types[i] == NUM_F16 || types[i] == NUM_BF16;
            if (rot ? floats : types[i] == NUM_TQ3_0) /* tq3_0 always rotates */
                continue;
            open_view(&f, types[i], rot, single, mode & 4 ? 256 : 128, rng);
            fill_pages(&f, paged, rng);
            check_view_of(d, &f, mode, rng);
            close_view(&f);
        }
}

PLAIN_TEST(page_sums_of_every_format)
{
    uint64_t rng = test_seed();
    device *ref = test_device(NULL, (cpu_options){.reference = true});
    CHECK(ref);
    check_formats(ref, 0, 1, &rng);
    device_close(ref);
    for (int i = 0; i < N_ISA; i++) {
        device *d = test_device(every_isa[i], (cpu_options){0});
        if (!d)
            continue;
        check_formats(d, i, test_brief() ? 3 : 1, &rng);
        device_close(d);
    }
}

/* A page of keys that are unusual; what is not finite is in dim 5 of head 1. */
typedef enum odd_keys {
    ODD_ZERO,
    ODD_NEGATIVE,
    ODD_ONE_VALUE,
    ODD_OUTLIER,
    ODD_TINY,
    ODD_HUGE,
    ODD_DENORMAL,
    N_FINITE,
    ODD_NAN = N_FINITE,
    ODD_INFINITE,
    ODD_LARGEST,
    N_ODD
} odd_keys;

static float odd_value(odd_keys kind, int32_t t, int32_t h, int32_t i, float x)
{
    bool hit = h == 1 && t % KV_PAGE == 9 && i == 5;
    switch (kind) {
    case ODD_ZERO:
        return 0;
    case ODD_NEGATIVE:
        return -fabsf(x) - 1;
    case ODD_ONE_VALUE:
        return 0.1f * (float)(i - 3);
    case ODD_OUTLIER:
        return i % 50 == 7 ? 1e4f + x : x;
    case ODD_TINY:
        return 1e-30f * x;
    case ODD_HUGE:
        return 5e36f * x;
    case ODD_DENORMAL:
        return 1e-41f * x;
    case ODD_NAN:
        return hit ? NAN : x;
    case ODD_INFINITE:
        return hit ? -INFINITY : x;
    default:
        return hit ? 3e38f : x;
    }
}

static void fill_odd(fixture *f, odd_keys kind, uint64_t *rng)
{
    for (int32_t t = 0; t < PAGES * KV_PAGE; t++)
        for (int32_t h = 0; h < HEADS; h++) {
            float *key = f->key + ((size_t)t * HEADS + (size_t)h) * (size_t)f->v.head_dim;
            test_fill(key, (size_t)f->v.head_dim, 1, rng);
            for (int32_t i = 0; i < f->v.head_dim; i++)
                key[i] = t / KV_PAGE == 1 ? odd_value(kind, t, h, i, key[i]) : key[i];
            memcpy(key_row(&f->v, f->base.k, f->v.k_row_bytes, h, (size_t)t), key,
                   (size_t)f->v.k_row_bytes);
        }
}

/* Page 1 is odd, and its neighbours are not. */
static void check_odd(const fixture *f, const page_sums *s, odd_keys kind, uint64_t *rng)
{
    check_sums(f, s, 0, 0, 1, rng);
    check_sums(f, s, 2, 2, PAGES - 2, rng);
    if (kind < N_FINITE) {
        check_sums(f, s, 1, 1, 1, rng);
        return;
    }
    for (int32_t i = 0; i < f->v.head_dim; i++)
        for (int part = 0; part < 2; part++) {
            CHECK(isnan(part_of(s, f, 1, 1, part, i)) == (i < PAGE_SUM_GROUP));
            CHECK(!isnan(part_of(s, f, 0, 1, part, i)));
        }
    for (int32_t i = 0; i < PAGE_SUM_GROUP && i < f->v.head_dim; i++)
        CHECK(!page_middles(s, &f->v, 1, 1)[i] && !page_widths(s, &f->v, 1, 1)[i]);
}

PLAIN_TEST(page_bounds_of_odd_keys_hold_with_the_same_bits)
{
    static const int32_t dims[] = {256, 36, 320};
    uint64_t rng = test_seed();
    AUTO_PTR(device_close) device *ref = test_device(NULL, (cpu_options){.reference = true});
    CHECK(ref);
    for (int n = 0; n < 3 * N_ODD; n++) {
        fixture f;
        open_view(&f, NUM_F32, false, false, dims[n % 3], &rng);
        fill_odd(&f, (odd_keys)(n / 3), &rng);
        page_sums want = open_sums(&f.v, PAGES, PAGE_SUM_BOUNDS);
        ref->sum_pages(ref, &f.v, &f.base, &want, 0, 0, PAGES);
        check_odd(&f, &want, (odd_keys)(n / 3), &rng);
        for (int i = 0; i < N_ISA; i++) {
            device *d = test_device(every_isa[i], (cpu_options){0});
            page_sums got = open_sums(&f.v, PAGES, PAGE_SUM_BOUNDS);
            if (d) {
                d->sum_pages(d, &f.v, &f.base, &got, 0, 0, PAGES);
                CHECK(!memcmp(got.at, want.at, page_sums_bytes(&want, &f.v)));
                device_close(d);
            }
            test_free(got.at);
        }
        test_free(want.at);
        close_view(&f);
    }
}

TEST(page_sums_keep_a_nan_in_a_mean)
{
    uint64_t rng = test_seed();
    for (int ref = 0; ref < 2; ref++) {
        fixture f;
        AUTO_PTR(device_close) device *d = test_device(NULL, (cpu_options){.reference = ref});
        CHECK(d);
        open_view(&f, NUM_F32, false, false, 128, &rng);
        fill_odd(&f, ODD_NAN, &rng);
        page_sums s = open_sums(&f.v, PAGES, PAGE_SUM_MEAN);
        d->sum_pages(d, &f.v, &f.base, &s, 0, 0, PAGES);
        CHECK(isnan(part_of(&s, &f, 1, 1, 0, 5)));
        CHECK(!isnan(part_of(&s, &f, 1, 1, 0, 4)) && !isnan(part_of(&s, &f, 0, 1, 0, 5)));
        test_free(s.at);
        close_view(&f);
    }
}

/* Ranges of every magnitude side by side. */
TEST(page_bounds_round_outwards)
{
    enum { DIM = 4 };
    kv_view v = {.n_head_kv = 1, .head_dim = DIM};
    page_sums s = open_sums(&v, 1, PAGE_SUM_BOUNDS);
    uint64_t rng = test_seed();
    for (int n = 0; n < 100000; n++) {
        float lo[DIM], hi[DIM], most = ldexpf(1, (int)(rng_next(&rng) % 275) - 149);
        for (int i = 0; i < DIM; i++) {
            float x = most * (float)(rng_unit(&rng) - 0.5),
                  y = most * (float)(rng_unit(&rng) - 0.5);
            x *= n % 3 == 0 ? ldexpf(1, -(int)(rng_next(&rng) % 30)) : 1;
            lo[i] = x < y ? x : y;
            hi[i] = n % 5 == 0 ? lo[i] : x > y ? x : y;
        }
        cpu_put_bounds(&s, &v, 0, 0, lo, hi);
        const uint16_t *scale = page_scales(&s, &v, 0, 0);
        for (int i = 0; i < DIM; i++) {
            double m = (double)num_bf16_to_f32(scale[0]) * page_middles(&s, &v, 0, 0)[i];
            double w = (double)num_bf16_to_f32(scale[1]) * page_widths(&s, &v, 0, 0)[i];
            CHECK_MSG(m - w <= lo[i] && hi[i] <= m + w, "[%.9g, %.9g] of %.9g, %.9g", m - w, m + w,
                      (double)lo[i], (double)hi[i]);
        }
    }
    test_free(s.at);
}

TEST(page_rescores_give_no_share_to_a_nan)
{
    uint64_t rng = test_seed();
    for (int ref = 0; ref < 2; ref++) {
        fixture f;
        float to[PAGES * HEADS];
        AUTO_PTR(device_close) device *d = test_device(NULL, (cpu_options){.reference = ref});
        CHECK(d);
        open_view(&f, NUM_F32, false, false, 128, &rng);
        fill_pages(&f, false, &rng);
        float *bad = (float *)(void *)key_row(&f.v, f.base.k, f.v.k_row_bytes, 1, KV_PAGE + 9);
        mat q = test_mat(1, HEADS, 128);
        test_fill(q.at, HEADS * 128, 1, &rng);
        for (int k = 0; k < 2; k++) {
            bad[5] = k ? INFINITY : NAN;
            q.at[128 + 5] = 1;
            d->rescore_pages(d, &f.v, &f.base, &(page_rescore){q, 1, 0, PAGES, to, HEADS});
            for (int32_t i = 0; i < PAGES * HEADS; i++)
                CHECK(i == HEADS + 1 ? to[i] == -INFINITY : isfinite(to[i]));
        }
        test_free(q.at);
        close_view(&f);
    }
}

/* ---- Watching ------------------------------------------------------------------------------ */

enum { WATCH_ROWS = 5, WATCH_GROUP = 3, WATCH_PAGES = 700, VOTE = 1 << PAGE_VOTE_BITS };

static page_sums random_sums(const kv_view *v, int32_t parts, uint64_t *rng)
{
    page_sums s = open_sums(v, WATCH_PAGES, parts);
    size_t n = (size_t)HEADS * WATCH_PAGES * (size_t)v->head_dim;
    uint16_t *scale = page_scales(&s, v, 0, 0), odd[] = {0x7fc0, 0x7f7f}; /* NaN, 3e38 */
    for (size_t i = 0; i < n && parts == PAGE_SUM_MEAN; i++)
        page_mean(&s, v, 0, 0)[i] = num_f32_to_bf16((float)(rng_unit(rng) - 0.5));
    for (size_t i = 0; i < 2 * n && parts == PAGE_SUM_BOUNDS; i++)
        page_middles(&s, v, 0, 0)[i] = (int8_t)(rng_next(rng) % 256 - 128);
    for (size_t i = 0; i < (size_t)HEADS * WATCH_PAGES * 2 && parts == PAGE_SUM_BOUNDS; i++)
        scale[i] = num_f32_to_bf16((float)rng_unit(rng) / 256);
    for (int32_t i = 0; i < 2; i++) /* products that are no number, or infinite */
        if (parts == PAGE_SUM_MEAN)
            page_mean(&s, v, 0, 33 + i)[0] = odd[i];
        else
            page_scales(&s, v, 0, 33 + i)[i] = odd[i];
    return s;
}

static void watch_on(device *d, const kv_view *v, const page_sums *s, mat q, uint64_t *votes)
{
    test_pass t;
    size_t room = page_watch_room(WATCH_PAGES, v->head_dim);
    page_watch w = {.seq = 0, .pos = 102, .n_pages = WATCH_PAGES - 3, .sums = s};
    AUTO_MEM float *memory = mem_alloc(room * sizeof *memory);
    CHECK(memory);
    w.votes[PASS_MAIN] = votes;
    w.room[PASS_MAIN] = memory;
    test_pass_open(&t, 1 << 20);
    pass *p = test_pass_begin(&t, d, WATCH_ROWS, 100); /* rows 2 to 4 are watched, */
    t.seq[3] = 1;                                      /* but not another sequence's */
    d->op->watch_pages(p, q, v, 0.7f, &w);
    CHECK_OK(p->e.status, p->e);
    test_pass_close(&t);
}

TEST(page_watch_agrees_with_the_reference)
{
    uint64_t rng = test_seed();
    AUTO_PTR(device_close) device *ref = test_device(NULL, (cpu_options){.reference = true});
    CHECK(ref);
    for (int i = 0; i < N_ISA; i++) {
        device *d = test_device(every_isa[i], (cpu_options){0});
        for (int mode = 0; d && mode < 4; mode++) {
            kv_view v = {.k_type = NUM_F16, .n_head_kv = HEADS, .head_dim = 128, .k_rot = mode & 1};
            page_sums s = random_sums(&v, mode & 2 ? PAGE_SUM_BOUNDS : PAGE_SUM_MEAN, &rng);
            mat q = test_mat(WATCH_ROWS, HEADS * WATCH_GROUP, v.head_dim);
            uint64_t got[WATCH_PAGES] = {0}, want[WATCH_PAGES] = {0};
            double sum = 0;
            test_fill(q.at, (size_t)q.rows * (size_t)q.stride, 0.3f, &rng);
            watch_on(d, &v, &s, q, got);
            watch_on(ref, &v, &s, q, want);
            for (int k = 0; k < WATCH_PAGES; k++) {
                double x = (double)got[k] / VOTE, y = (double)want[k] / VOTE;
                CHECK_MSG(fabs(x - y) <= 1e-6 + 2e-4 * y, "%s, mode %d: page %d has %g, not %g",
                          every_isa[i], mode, k, x, y);
                sum += x;
            }
            CHECK_NEAR(sum, 2 * HEADS * WATCH_GROUP, 1e-3); /* two rows */
            CHECK(got[WATCH_PAGES - 3] == 0 && got[WATCH_PAGES - 1] == 0);
            test_free(q.at);
            test_free(s.at);
        }
        if (d)
            device_close(d);
    }
}

/* Votes of heads h0 .. h0 + n - 1 of q, which share the KV heads from kv0 on, are added. */
static void watch_some(device *d, const page_sums *s, mat q, int32_t h0, int32_t n, int32_t kv0,
                       int32_t n_kv, uint64_t *votes)
{
    const kv_view all = {.n_head_kv = HEADS, .head_dim = q.cols};
    kv_view v = {.k_type = NUM_F16, .n_head_kv = n_kv, .head_dim = q.cols};
    page_sums own = open_sums(&v, WATCH_PAGES, PAGE_SUM_BOUNDS);
    size_t n_codes = (size_t)n_kv * WATCH_PAGES * 2 * (size_t)q.cols;
    memcpy(own.at, page_middles(s, &all, kv0, 0), n_codes);
    memcpy(page_scales(&own, &v, 0, 0), page_scales(s, &all, kv0, 0),
           (size_t)n_kv * WATCH_PAGES * 4 * (size_t)page_sum_groups(q.cols));
    q.at += (size_t)h0 * (size_t)q.cols;
    q.heads = n;
    watch_on(d, &v, &own, q, votes);
    test_free(own.at);
}

/* As ranks of a tensor split divide heads: by KV heads, and with copies of KV heads. */
TEST(page_votes_are_the_same_however_heads_are_divided)
{
    enum { GROUP = 6 };
    uint64_t rng = test_seed();
    for (int i = -1; i < N_ISA; i++) {
        device *d = test_device(i < 0 ? NULL : every_isa[i], (cpu_options){.reference = i < 0});
        if (!d)
            continue;
        kv_view v = {.k_type = NUM_F16, .n_head_kv = HEADS, .head_dim = 128};
        page_sums s = random_sums(&v, PAGE_SUM_BOUNDS, &rng);
        mat q = test_mat(WATCH_ROWS, HEADS * GROUP, v.head_dim);
        uint64_t all[WATCH_PAGES] = {0}, two[WATCH_PAGES] = {0}, more[WATCH_PAGES] = {0};
        test_fill(q.at, (size_t)q.rows * (size_t)q.stride, 0.3f, &rng);
        watch_some(d, &s, q, 0, HEADS * GROUP, 0, HEADS, all);
        for (int32_t h = HEADS - 1; h >= 0; h--) {
            watch_some(d, &s, q, h * GROUP, GROUP, h, 1, two);
            watch_some(d, &s, q, h * GROUP + 2, GROUP - 2, h, 1, more);
            watch_some(d, &s, q, h * GROUP, 2, h, 1, more);
        }
        CHECK(!memcmp(all, two, sizeof all) && !memcmp(all, more, sizeof all));
        test_free(q.at);
        test_free(s.at);
        device_close(d);
    }
}
