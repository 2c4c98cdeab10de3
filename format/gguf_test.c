/* gguf_test.c - GGUF written and read back, and every way in which a file can lie.
 *
 * Files are built byte by byte, each wrong in one place, and refused with a sentence about that
 * place; then a good one is cut after every byte, and its bytes are turned one by one. What the
 * writer wrote reads back equal, mapped and direct, in one part and in several.
 */
#include "tests/test.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"
#include "format/gguf.h"
#include "num/num.h"

#include <unistd.h>

/* ---- Files made by hand: every field is said, so every field can lie ---------------------- */

static void u32(str *s, uint32_t v)
{
    char b[4] = {(char)v, (char)(v >> 8), (char)(v >> 16), (char)(v >> 24)};
    str_put(s, b, 4);
}

static void u64(str *s, uint64_t v)
{
    u32(s, (uint32_t)v);
    u32(s, (uint32_t)(v >> 32));
}

static void text(str *s, const char *t)
{
    u64(s, strlen(t));
    str_puts(s, t);
}

static void header(str *s, uint32_t version, uint64_t n_tensors, uint64_t n_values)
{
    str_put(s, "GGUF", 4);
    u32(s, version);
    u64(s, n_tensors);
    u64(s, n_values);
}

static void value_u32(str *s, const char *key, uint32_t v)
{
    text(s, key);
    u32(s, GGUF_U32);
    u32(s, v);
}

static void record(str *s, const char *name, uint32_t n_dims, uint64_t ne0, uint64_t ne1,
                   uint32_t type, uint64_t offset)
{
    text(s, name);
    u32(s, n_dims);
    if (n_dims > 0)
        u64(s, ne0);
    for (uint32_t i = 1; i < n_dims && i < 8; i++)
        u64(s, i == 1 ? ne1 : 1);
    u32(s, type);
    u64(s, offset);
}

static void data(str *s, size_t n)
{
    while (s->n % 32)
        str_putc(s, 0);
    for (size_t i = 0; i < n; i++)
        str_putc(s, (char)i);
}

/* Opens s (and frees it); says what came of it. */
static status open_str(str *s, err *e)
{
    gguf g;
    AUTO_MEM void *copy =
        mem_aligned(64, s->n + 1); /* exactly sized below: ASan sees one byte too many */
    CHECK(copy && !s->bad);
    memcpy(copy, s->at, s->n);
    status st = gguf_open_bytes(&g, copy, s->n, "test.gguf", e);
    gguf_close(&g);
    str_free(s);
    return st;
}

#define CHECK_REFUSED(s, want, words)                                                              \
    do {                                                                                           \
        err e_ = {0};                                                                              \
        CHECK_STATUS(open_str(&(s), &e_), want);                                                   \
        CHECK_MSG(strstr(e_.text, words), "\"%s\" does not say \"%s\"", e_.text, words);           \
        CHECK_MSG(strstr(e_.text, "test.gguf"), "\"%s\" does not name the file", e_.text);         \
    } while (0)

TEST(gguf_smallest_file)
{
    for (uint32_t version = 2; version <= 3; version++) {
        str s = {0};
        err e = {0};
        header(&s, version, 1, 1);
        value_u32(&s, "a", 7);
        record(&s, "t", 1, 4, 0, NUM_F32, 0);
        data(&s, 16);
        CHECK_OK(open_str(&s, &e), e);
    }
}

TEST(gguf_refuses_what_is_no_gguf)
{
    str s = {0};
    str_puts(&s, "GGML or something else entirely");
    CHECK_REFUSED(s, E_FORMAT, "does not begin with GGUF");
    header(&s, 1, 0, 0);
    CHECK_REFUSED(s, E_UNSUPPORTED, "version 1");
    header(&s, 4, 0, 0);
    CHECK_REFUSED(s, E_UNSUPPORTED, "version 4");
    header(&s, 3u << 24, 0, 0);
    CHECK_REFUSED(s, E_UNSUPPORTED, "big-endian");
    str_puts(&s, "GGU");
    CHECK_REFUSED(s, E_FORMAT, "does not begin");
    str_puts(&s, "GGUF\3");
    CHECK_REFUSED(s, E_FORMAT, "ends inside its header");
    str_put(&s, "\2\0\0\0\0\0\0\0{\"", 10);
    CHECK_REFUSED(s, E_FORMAT, "carat convert");
    str_puts(&s, "version https://git-lfs.github.com/spec/v1");
    CHECK_REFUSED(s, E_FORMAT, "git lfs pull");
    str_puts(&s, "<!DOCTYPE html>");
    CHECK_REFUSED(s, E_FORMAT, "web page");
}

TEST(gguf_refuses_incredible_counts)
{
    static const uint64_t huge[] = {1000, 1ull << 31, 1ull << 60, UINT64_MAX};
    for (int i = 0; i < 4; i++) {
        str s = {0};
        header(&s, 3, huge[i], 0);
        CHECK_REFUSED(s, E_FORMAT, "tensors does not fit");
        header(&s, 3, 0, huge[i]);
        CHECK_REFUSED(s, E_FORMAT, "metadata values does not fit");
        header(&s, 3, 0, 1);
        text(&s, "k");
        u32(&s, GGUF_ARRAY);
        u32(&s, GGUF_U64);
        u64(&s, huge[i]);
        u64(&s, 1);
        CHECK_REFUSED(s, E_FORMAT, "items do not fit");
        header(&s, 3, 0, 1);
        text(&s, "k");
        u32(&s, GGUF_ARRAY);
        u32(&s, GGUF_STRING);
        u64(&s, huge[i]);
        CHECK_REFUSED(s, E_FORMAT, "items do not fit");
        header(&s, 3, 0, 1);
        text(&s, "k");
        u32(&s, GGUF_STRING);
        u64(&s, huge[i]);
        str_puts(&s, "short");
        CHECK_REFUSED(s, E_FORMAT, "does not fit");
        header(&s, 3, 0, 1);
        u64(&s, huge[i]); /* key length */
        str_puts(&s, "kkkkkkkkkkkkkkkkk");
        CHECK_REFUSED(s, E_FORMAT, "metadata key");
    }
}

TEST(gguf_refuses_bad_values)
{
    str s = {0};
    header(&s, 3, 0, 1);
    text(&s, "k");
    u32(&s, 13);
    u64(&s, 0);
    CHECK_REFUSED(s, E_FORMAT, "unknown kind 13");
    header(&s, 3, 0, 2);
    value_u32(&s, "same", 1);
    value_u32(&s, "same", 1);
    CHECK_REFUSED(s, E_FORMAT, "same occurs twice");
    header(&s, 3, 0, 1);
    u64(&s, 3);
    str_put(&s, "a\0b", 3);
    u32(&s, GGUF_U64);
    u64(&s, 0);
    CHECK_REFUSED(s, E_FORMAT, "NUL");
    header(&s, 3, 0, 1);
    text(&s, "k");
    u32(&s, GGUF_ARRAY);
    for (int depth = 0; depth < 6; depth++) {
        u32(&s, GGUF_ARRAY);
        u64(&s, 1);
    }
    u32(&s, GGUF_U8);
    u64(&s, 0);
    CHECK_REFUSED(s, E_FORMAT, "nested");
    static const uint32_t aligns[] = {0, 1, 4, 24, 33, 1u << 17, 1u << 31};
    for (size_t i = 0; i < sizeof aligns / sizeof *aligns; i++) {
        header(&s, 3, 0, 1);
        value_u32(&s, "general.alignment", aligns[i]);
        CHECK_REFUSED(s, E_FORMAT, "power of two");
    }
    header(&s, 3, 0, 1);
    text(&s, "general.alignment");
    u32(&s, GGUF_STRING);
    text(&s, "32");
    CHECK_REFUSED(s, E_FORMAT, "power of two");
}

TEST(gguf_refuses_bad_tensors)
{
    static const struct {
        uint32_t n_dims;
        uint64_t ne0, ne1;
        uint32_t type;
        uint64_t offset;
        status want;
        const char *words;
    } bad[] = {
        {0, 0, 0, NUM_F32, 0, E_FORMAT, "0 dimensions"},
        {5, 1, 1, NUM_F32, 0, E_FORMAT, "5 dimensions"},
        {UINT32_MAX, 1, 1, NUM_F32, 0, E_FORMAT, "dimensions"},
        {1, 0, 0, NUM_F32, 0, E_FORMAT, "zero"},
        {2, 4, 0, NUM_F32, 0, E_FORMAT, "zero"},
        {2, 1ull << 33, 1ull << 33, NUM_F32, 0, E_FORMAT, "overflows"},
        {2, 1ull << 32, 1ull << 31, NUM_F32, 0, E_FORMAT, "overflows"},
        {1, UINT64_MAX, 0, NUM_F32, 0, E_FORMAT, "overflows"},
        {1, 1ull << 61, 0, NUM_F64, 0, E_FORMAT, "overflows"},
        {1, 33, 0, NUM_Q8_0, 0, E_FORMAT, "whole number of blocks"},
        {2, 128, 2, NUM_Q4_K, 0, E_FORMAT, "whole number of blocks"},
        {1, 4, 0, 5, 0, E_UNSUPPORTED, "type 5"},
        {1, 4, 0, 4000000000u, 0, E_UNSUPPORTED, "type 4000000000"},
        {1, 4, 0, NUM_F32, 4, E_FORMAT, "multiple of 32"},
        {1, 4, 0, NUM_F32, 64, E_FORMAT, "past the end"},
        {1, 1 << 20, 0, NUM_F32, 0, E_FORMAT, "past the end"},
        {1, 4, 0, NUM_F32, UINT64_MAX - 31, E_FORMAT, "past the end"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        str s = {0};
        header(&s, 3, 1, 0);
        record(&s, "the.tensor", bad[i].n_dims, bad[i].ne0, bad[i].ne1, bad[i].type, bad[i].offset);
        data(&s, 64);
        err e = {0};
        CHECK_STATUS(open_str(&s, &e), bad[i].want);
        CHECK_MSG(strstr(e.text, bad[i].words), "case %zu: \"%s\"", i, e.text);
        CHECK_MSG(strstr(e.text, "the.tensor"), "case %zu: \"%s\"", i, e.text);
    }
}

/* Groups of 128 in 34 bytes, as files had them before id 42 meant groups of 64 in 18. */
TEST(gguf_says_that_old_files_of_q2_0_must_be_converted)
{
    str s = {0};
    header(&s, 3, 2, 0);
    record(&s, "a", 1, 4096, 0, NUM_Q2_0, 0);
    record(&s, "b", 1, 4096, 0, NUM_Q2_0, 1088);
    data(&s, 2 * 1088);
    CHECK_REFUSED(s, E_FORMAT, "groups of 128");
    header(&s, 3, 2, 0);
    record(&s, "a", 1, 4096, 0, NUM_Q2_0, 0);
    record(&s, "b", 1, 4096, 0, NUM_Q2_0, 1152);
    data(&s, 1152 + 1088);
    CHECK_REFUSED(s, E_FORMAT, "groups of 128");
    header(&s, 3, 2, 0);
    record(&s, "a", 1, 4096, 0, NUM_Q2_0, 0);
    record(&s, "b", 1, 4096, 0, NUM_Q2_0, 1152);
    data(&s, 2 * 1152);
    err e = {0};
    CHECK_OK(open_str(&s, &e), e);
}

TEST(gguf_refuses_twins_and_overlaps)
{
    str s = {0};
    header(&s, 3, 2, 0);
    record(&s, "t", 1, 4, 0, NUM_F32, 0);
    record(&s, "t", 1, 4, 0, NUM_F32, 32);
    data(&s, 64);
    CHECK_REFUSED(s, E_FORMAT, "two tensors named t");
    for (int order = 0; order < 2; order++) {
        header(&s, 3, 3, 0);
        record(&s, "a", 1, 16, 0, NUM_F32, order ? 64 : 0); /* 64 bytes: reaches 0..63 or 64.. */
        record(&s, "b", 1, 16, 0, NUM_F32, order ? 0 : 32);
        record(&s, "c", 1, 4, 0, NUM_F32, order ? 32 : 96);
        data(&s, 128);
        CHECK_REFUSED(s, E_FORMAT, "overlap");
    }
    header(&s, 3, 2, 0);
    record(&s, "a", 1, 4, 0, NUM_F32, 0);
    record(&s, "b", 1, 4, 0, NUM_F32, 0);
    data(&s, 64);
    CHECK_REFUSED(s, E_FORMAT, "overlap");
    header(&s, 3, 2, 0); /* out of order, and fine */
    record(&s, "a", 1, 8, 0, NUM_F32, 32);
    record(&s, "b", 1, 8, 0, NUM_F32, 0);
    data(&s, 64);
    err e = {0};
    CHECK_OK(open_str(&s, &e), e);
}

TEST(gguf_misaligned_memory_is_refused)
{
    static _Alignas(16) unsigned char b[64];
    gguf g;
    err e = {0};
    CHECK_STATUS(gguf_open_bytes(&g, b + 1, 32, "m", &e), E_ARG);
}

/* ---- A whole file, through the writer ------------------------------------------------------ */

static status write_sample(const char *path, err *e)
{
    static const int32_t i32s[] = {-1, 0, 7};
    static const uint32_t u32s[] = {1, 4000000000u};
    static const float f32s[] = {0.5f, -2};
    static const bool bools[] = {true, false, true};
    static const gguf_string strings[] = {{"one", 3}, {"", 0}, {"two\0x", 5}};
    gguf_writer *w;
    status st = gguf_create(&w, path, e);
    if (st)
        return st;
    gguf_put_string(w, "general.architecture", "test", 4);
    gguf_put_u32(w, "u", 4000000000u);
    gguf_put_i32(w, "i", -5);
    gguf_put_f32(w, "f", 0.25f);
    gguf_put_bool(w, "b", true);
    gguf_put_u32s(w, "us", u32s, 2);
    gguf_put_i32s(w, "is", i32s, 3);
    gguf_put_f32s(w, "fs", f32s, 2);
    gguf_put_bools(w, "bs", bools, 3);
    gguf_put_strings(w, "ss", strings, 3);
    gguf_put_strings(w, "empty", NULL, 0);
    uint64_t ne[] = {32, 3, 2};
    gguf_put_tensor(w, "first", NUM_Q8_0, 3, ne);
    gguf_put_tensor(w, "second", NUM_F32, 1, (uint64_t[]){5});
    gguf_put_tensor(w, "third", NUM_F16, 2, (uint64_t[]){3, 1});
    uint64_t planned = gguf_planned_bytes(w);
    if ((st = gguf_write_header(w, e)))
        goto out;
    CHECK_EQ(gguf_planned_bytes(w), planned);
    unsigned char bytes[34 * 6 + 20 + 6];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 7);
    /* In pieces that do not match the tensors. */
    if ((st = gguf_write_data(w, bytes, 100, e)) ||
        (st = gguf_write_data(w, bytes + 100, sizeof bytes - 100, e)))
        goto out;
    CHECK_EQ(gguf_planned_bytes(w), planned);
    return gguf_commit(w, e);
out:
    gguf_discard(w);
    return st;
}

static void check_sample(const char *path, bool direct)
{
    AUTO(gguf_close) gguf g;
    err e = {0};
    int64_t i;
    double f;
    bool b;
    gguf_string s;
    CHECK_OK(gguf_open(&g, path, direct, NULL, NULL, &e), e);
    CHECK_EQ(g.version, 3);
    CHECK_EQ(g.n_values, 11);
    CHECK_EQ(g.n_parts, 1);
    CHECK(gguf_get_string(&g, "general.architecture", &s) && s.n == 4 && !memcmp(s.at, "test", 4));
    CHECK(gguf_get_i64(&g, "u", &i) && i == 4000000000);
    CHECK(gguf_get_i64(&g, "i", &i) && i == -5);
    CHECK(gguf_get_f64(&g, "i", &f) && f == -5);
    CHECK(gguf_get_f64(&g, "f", &f) && f == 0.25);
    CHECK(!gguf_get_i64(&g, "f", &i));
    CHECK(gguf_get_bool(&g, "b", &b) && b);
    CHECK(!gguf_get_bool(&g, "none", &b) && !gguf_get_i64(&g, "us", &i));
    CHECK(!gguf_get_string(&g, "u", &s) && !gguf_get_f64(&g, "b", &f));
    CHECK(gguf_item_i64(gguf_find(&g, "us"), 1, &i) && i == 4000000000);
    CHECK(!gguf_item_i64(gguf_find(&g, "us"), 2, &i));
    CHECK(gguf_item_i64(gguf_find(&g, "is"), 0, &i) && i == -1);
    CHECK(gguf_item_f64(gguf_find(&g, "fs"), 1, &f) && f == -2);
    CHECK(gguf_item_i64(gguf_find(&g, "bs"), 2, &i) && i == 1);
    CHECK(!gguf_item_i64(gguf_find(&g, "ss"), 0, &i));
    uint64_t at = 0;
    const gguf_value *ss = gguf_find(&g, "ss");
    CHECK(gguf_next_string(ss, &at, &s) && s.n == 3 && !memcmp(s.at, "one", 3));
    CHECK(gguf_next_string(ss, &at, &s) && s.n == 0);
    CHECK(gguf_next_string(ss, &at, &s) && s.n == 5);
    CHECK(!gguf_next_string(ss, &at, &s));
    CHECK_EQ(gguf_find(&g, "empty")->count, 0);
    CHECK_EQ(g.tensors.n, 3);
    const tensor *t = tensor_find(&g.tensors, "first");
    CHECK(t && t->n_dims == 3 && t->ne[1] == 3 && t->ne[3] == 1 && t->n_elements == 192);
    CHECK_EQ(t->n_bytes, 204);
    CHECK_EQ(t->bytes[203], (unsigned char)(203 * 7));
    t = tensor_find(&g.tensors, "second");
    CHECK(t && t->bytes[0] == (unsigned char)(204 * 7) && (uintptr_t)t->bytes % 32 == 0);
    t = tensor_find(&g.tensors, "third");
    CHECK(t && t->bytes[5] == (unsigned char)(229 * 7));
    CHECK(!tensor_find(&g.tensors, "fourth"));
    CHECK_EQ(g.data_bytes, 230);
    gguf_close(&g);
}

TEST(gguf_round_trip_mapped_and_direct)
{
    const char *path = test_temp("sample.gguf");
    err e = {0};
    CHECK_OK(write_sample(path, &e), e);
    check_sample(path, false);
    check_sample(path, true);
}

TEST(gguf_copied_values_are_equal)
{
    const char *path = test_temp("a.gguf"), *copy = test_temp("b.gguf");
    gguf g, h;
    gguf_writer *w;
    err e = {0};
    CHECK_OK(write_sample(path, &e), e);
    CHECK_OK(gguf_open(&g, path, false, NULL, NULL, &e), e);
    CHECK_OK(gguf_create(&w, copy, &e), e);
    for (uint64_t i = 0; i < g.n_values; i++)
        gguf_put_value(w, &g.value[i]);
    CHECK_OK(gguf_write_header(w, &e), e);
    CHECK_OK(gguf_commit(w, &e), e);
    CHECK_OK(gguf_open(&h, copy, false, NULL, NULL, &e), e);
    CHECK_EQ(h.n_values, g.n_values);
    for (uint64_t i = 0; i < g.n_values; i++) {
        const gguf_value *a = &g.value[i], *b = &h.value[i];
        CHECK_STR(a->key, b->key);
        CHECK(a->kind == b->kind && a->item == b->item && a->count == b->count);
        CHECK(a->n_bytes == b->n_bytes && !memcmp(a->bytes, b->bytes, (size_t)a->n_bytes));
    }
    gguf_close(&g);
    gguf_close(&h);
}

TEST(gguf_every_truncation_is_refused)
{
    const char *path = test_temp("whole.gguf");
    AUTO_MEM char *bytes;
    size_t n;
    err e = {0};
    CHECK_OK(write_sample(path, &e), e);
    CHECK_OK(file_read_all(path, 1 << 20, &bytes, &n, &e), e);
    /* The last tensor's 6 bytes are followed by padding, which may be missing. */
    for (size_t cut = 0; cut < n - 26; cut++) {
        str s = {0};
        str_put(&s, bytes, cut);
        if (!cut)
            str_put(&s, "", 0);
        err f = {0};
        status st = open_str(&s, &f);
        CHECK_MSG(st == E_FORMAT, "%zu of %zu bytes give %s", cut, n, carat_status_name(st));
    }
}

TEST(gguf_flipped_bytes_never_crash)
{
    const char *path = test_temp("whole.gguf");
    AUTO_MEM char *bytes;
    size_t n;
    err e = {0};
    uint64_t seed = test_seed();
    CHECK_OK(write_sample(path, &e), e);
    CHECK_OK(file_read_all(path, 1 << 20, &bytes, &n, &e), e);
    for (int round = 0; round < 20000; round++) {
        str s = {0};
        str_put(&s, bytes, n);
        for (uint64_t k = rng_below(&seed, 4) + 1; k; k--)
            s.at[rng_below(&seed, n)] = (char)rng_next(&seed);
        open_str(&s, NULL);
    }
}

static status open_and_close(void *path, err *e)
{
    AUTO(gguf_close) gguf g;
    status st = gguf_open(&g, path, true, NULL, NULL, e);
    return st;
}

static status write_only(void *path, err *e)
{
    return write_sample(path, e);
}

TEST(gguf_every_allocation_may_fail)
{
    const char *path = test_temp("sample.gguf");
    test_every_allocation(write_only, (void *)path);
    test_every_allocation(open_and_close, (void *)path);
}

TEST(gguf_values_that_do_not_fit_leave_the_output_alone)
{
    static const unsigned char most[8] = {255, 255, 255, 255, 255, 255, 255, 255};
    gguf_value v = {.kind = GGUF_U64, .bytes = most, .n_bytes = 8};
    int64_t i = 7;
    CHECK(!gguf_value_i64(&v, &i));
    v = (gguf_value){.kind = GGUF_ARRAY, .item = GGUF_U64, .count = 1, .bytes = most, .n_bytes = 8};
    CHECK(!gguf_item_i64(&v, 0, &i));
    CHECK_EQ(i, 7);
    gguf_string s = {"before", 6}; /* a text that is longer than its value */
    uint64_t at = 0;
    v = (gguf_value){
        .kind = GGUF_ARRAY, .item = GGUF_STRING, .count = 1, .bytes = most, .n_bytes = 8};
    CHECK(!gguf_next_string(&v, &at, &s));
    CHECK_STR(s.at, "before");
    CHECK_EQ(s.n, 6);
    CHECK_EQ(at, 0);
}

TEST(gguf_writer_reports_misuse)
{
    const char *path = test_temp("never.gguf");
    gguf_writer *w;
    err e = {0};
    CHECK_OK(gguf_create(&w, path, &e), e);
    gguf_put_tensor(w, "odd", NUM_Q4_K, 1, (uint64_t[]){100});
    CHECK_STATUS(gguf_write_header(w, &e), E_ARG);
    CHECK(strstr(e.text, "odd"));
    gguf_discard(w);
    e = (err){0};
    CHECK_OK(gguf_create(&w, path, &e), e);
    gguf_put_tensor(w, "half", NUM_F32, 1, (uint64_t[]){100});
    CHECK_OK(gguf_write_header(w, &e), e);
    CHECK_OK(gguf_write_data(w, path, 8, &e), e);
    CHECK_STATUS(gguf_commit(w, &e), E_ARG);
    CHECK_MSG(strstr(e.text, "half") && strstr(e.text, "8 of its 400"), "%s", e.text);
    CHECK_EQ(access(path, F_OK), -1); /* and nothing is left */
    CHECK_STATUS(gguf_create(&w, test_temp("no-folder/x.gguf"), NULL), E_IO);
    CHECK(!w);
}

static bool refuse_progress(void *user, const char *what, uint64_t done, uint64_t total)
{
    (void)user, (void)what, (void)done, (void)total;
    return false;
}

TEST(gguf_open_reports_files_it_cannot_have)
{
    gguf g;
    err e = {0};
    CHECK_STATUS(gguf_open(&g, "/nonexistent.gguf", false, NULL, NULL, &e), E_IO);
    CHECK(strstr(e.text, "/nonexistent.gguf"));
    gguf_close(&g);
    CHECK_STATUS(gguf_open(&g, "/tmp", false, NULL, NULL, NULL), E_IO);
    const char *path = test_temp("sample.gguf");
    e = (err){0};
    CHECK_OK(write_sample(path, &e), e);
    CHECK_STATUS(gguf_open(&g, path, true, refuse_progress, NULL, NULL), E_CANCELLED);
}

/* ---- Split sets ---------------------------------------------------------------------------- */

/* Part i of n with one tensor; lies are told by the last arguments. */
static void write_part(const char *path, int no, int n, int n_tensors_said, const char *name)
{
    AUTO(str_free) str s = {0};
    header(&s, 3, 1, n_tensors_said >= 0 ? 3 : 2);
    text(&s, "split.no");
    u32(&s, GGUF_U16);
    str_putc(&s, (char)no);
    str_putc(&s, 0);
    text(&s, "split.count");
    u32(&s, GGUF_U16);
    str_putc(&s, (char)n);
    str_putc(&s, 0);
    if (n_tensors_said >= 0) {
        text(&s, "split.tensors.count");
        u32(&s, GGUF_I32);
        u32(&s, (uint32_t)n_tensors_said);
    }
    record(&s, name, 1, 8, 0, NUM_F32, 0);
    data(&s, 32);
    s.at[s.n - 1] = (char)(100 + no);
    test_write(path, s.at, s.n);
}

TEST(gguf_split_sets)
{
    const char *part[3] = {test_temp("m-00001-of-00003.gguf"), test_temp("m-00002-of-00003.gguf"),
                           test_temp("m-00003-of-00003.gguf")};
    static const char *const names[] = {"a", "b", "c"};
    gguf g;
    err e = {0};
    for (int i = 0; i < 3; i++)
        write_part(part[i], i, 3, i ? -1 : 3, names[i]);
    CHECK_OK(gguf_open(&g, part[0], false, NULL, NULL, &e), e);
    CHECK_EQ(g.tensors.n, 3);
    CHECK_EQ(g.n_parts, 3);
    for (int i = 0; i < 3; i++) {
        const tensor *t = tensor_find(&g.tensors, names[i]);
        CHECK(t && t->part == i && t->bytes[31] == 100 + i);
    }
    gguf_close(&g);
    test_every_allocation(open_and_close, (void *)part[0]);

#define CHECK_SPLIT(path, words)                                                                   \
    do {                                                                                           \
        err e_ = {0};                                                                              \
        CHECK_STATUS(gguf_open(&g, path, false, NULL, NULL, &e_), E_FORMAT);                       \
        CHECK_MSG(strstr(e_.text, words), "\"%s\" does not say \"%s\"", e_.text, words);           \
    } while (0)
    CHECK_SPLIT(part[1], "open the first");
    write_part(part[2], 2, 3, -1, "a");
    CHECK_SPLIT(part[0], "two tensors named a");
    write_part(part[2], 1, 3, -1, "c");
    CHECK_SPLIT(part[0], "file 2 of 3, expected 3 of 3");
    write_part(part[2], 2, 4, -1, "c");
    CHECK_SPLIT(part[0], "file 3 of 4, expected 3 of 3");
    write_part(part[2], 2, 3, -1, "c");
    write_part(part[0], 0, 3, 4, "a");
    CHECK_SPLIT(part[0], "split.tensors.count is 4, the files hold 3");
    write_part(part[0], 7, 3, 3, "a");
    CHECK_SPLIT(part[0], "below split.count");
    const char *renamed = test_temp("m.gguf");
    write_part(renamed, 0, 3, 3, "a");
    CHECK_SPLIT(renamed, "-00001-of-00003.gguf");
    write_part(part[0], 0, 3, 3, "a");
    unlink(part[1]);
    CHECK_STATUS(gguf_open(&g, part[0], false, NULL, NULL, &e), E_IO);
    CHECK_MSG(strstr(e.text, "m-00002-of-00003.gguf"), "%s", e.text);
    str s = {0};
    header(&s, 3, 0, 2);
    value_u32(&s, "split.count", 3);
    value_u32(&s, "split.no", 0);
    CHECK_REFUSED(s, E_UNSUPPORTED, "from memory");
}
