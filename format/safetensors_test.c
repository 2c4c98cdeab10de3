/* safetensors_test.c - safetensors as written by others, and every way in which a file can lie.
 *
 * Headers are JSON of this file's making: good ones give names, shapes, types and bytes; of bad
 * ones each says one thing wrong. Sharded sets are found through their index.
 */
#include "tests/test.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"
#include "format/safetensors.h"
#include "num/num.h"

#include <sys/stat.h>
#include <unistd.h>

/* length, header, n bytes of data */
static void file_of(str *s, const char *head, uint64_t said, size_t n_data)
{
    for (int i = 0; i < 8; i++)
        str_putc(s, (char)(said >> 8 * i));
    str_puts(s, head);
    for (size_t i = 0; i < n_data; i++)
        str_putc(s, (char)i);
}

static status open_str(str *s, err *e)
{
    safetensors st;
    AUTO_MEM char *copy = mem_alloc(s->n + 1);
    CHECK(copy && !s->bad);
    memcpy(copy, s->at, s->n);
    copy = mem_realloc(copy, s->n, 1); /* exactly sized: ASan sees one byte too many */
    status r = safetensors_open_bytes(&st, copy, s->n, "test.safetensors", e);
    safetensors_close(&st);
    safetensors_close(&st);
    str_free(s);
    return r;
}

static void check_head(const char *head, size_t n_data, status want, const char *words)
{
    str s = {0};
    err e = {0};
    file_of(&s, head, strlen(head), n_data);
    status st = open_str(&s, &e);
    CHECK_MSG(st == want, "%s gives %s: %s", head, carat_status_name(st), e.text);
    CHECK_MSG(strstr(e.text, words), "\"%s\" does not say \"%s\"", e.text, words);
}

TEST(safetensors_good_heads)
{
    check_head("{}", 0, OK, "");
    check_head("{\"__metadata__\":{\"format\":\"pt\"}}   ", 0, OK, "");
    check_head("{\"a\":{\"dtype\":\"BF16\",\"shape\":[3,2],\"data_offsets\":[0,12]},"
               "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[12,16]}}",
               16, OK, "");
    check_head("{\"a\":{\"dtype\":\"U8\",\"shape\":[1,2,1,2,1],\"data_offsets\":[0,4]}}", 4, OK,
               "");
}

TEST(safetensors_refuses_bad_heads)
{
#define ONE(body) "{\"the.tensor\":{" body "}}"
    static const struct {
        const char *head;
        status want;
        const char *words;
    } bad[] = {
        {"[]", E_FORMAT, "no JSON object"},
        {"{\"a\":", E_FORMAT, "not valid JSON"},
        {"{\"a\":{},\"a\":{}}", E_FORMAT, "duplicate"},
        {"{\"\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", E_FORMAT, "name"},
        {"{\"the.tensor\":7}", E_FORMAT, "no dtype"},
        {ONE("\"shape\":[1],\"data_offsets\":[0,1]"), E_FORMAT, "no dtype"},
        {ONE("\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[0,1]"), E_UNSUPPORTED,
         "F8_E4M3"},
        {ONE("\"dtype\":\"U8\",\"data_offsets\":[0,1]"), E_FORMAT, "shape"},
        {ONE("\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]"), E_FORMAT, "shape"},
        {ONE("\"dtype\":\"U8\",\"shape\":[1.5],\"data_offsets\":[0,1]"), E_FORMAT, "shape"},
        {ONE("\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]"), E_FORMAT, "zero"},
        {ONE("\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,"
             "1]"),
         E_FORMAT, "shape"},
        {ONE("\"dtype\":\"U8\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,1]"), E_FORMAT,
         "overflows"},
        {ONE("\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,1,1,1],\"data_offsets\":[0,1]"),
         E_FORMAT, ""},
        {ONE("\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,1]"), E_FORMAT,
         "overflows"},
        {ONE("\"dtype\":\"U8\",\"shape\":[99999999999999999999],\"data_offsets\":[0,1]"), E_FORMAT,
         ""},
        {ONE("\"dtype\":\"U8\",\"shape\":[1]"), E_FORMAT, "data_offsets"},
        {ONE("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]"), E_FORMAT, "data_offsets"},
        {ONE("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]"), E_FORMAT, "data_offsets"},
        {ONE("\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[-1,0]"), E_FORMAT, "data_offsets"},
        {ONE("\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]"), E_FORMAT, "truncated"},
        {ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,3]"), E_FORMAT, "needs 4"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[3,7]}}",
         E_FORMAT, "overlap"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_head(bad[i].head, 8, bad[i].want, bad[i].words);
    /* A name longer than any index should hold, and brackets deeper than any stack should. */
    AUTO(str_free) str s = {0};
    str_puts(&s, "{\"");
    for (int i = 0; i < 256; i++)
        str_putc(&s, 'n');
    str_puts(&s, "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}");
    check_head(s.at, 8, E_FORMAT, "256 bytes");
    str_cut(&s, 0);
    str_puts(&s, "{\"a\":");
    for (int i = 0; i < 100000; i++)
        str_putc(&s, '[');
    check_head(s.at, 0, E_FORMAT, "depth");
}

TEST(safetensors_refuses_bad_lengths)
{
    static const uint64_t said[] = {0, 1, 3, 1000, 1ull << 32, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        str s = {0};
        err e = {0};
        file_of(&s, "{}", said[i], 0);
        CHECK_STATUS(open_str(&s, &e), E_FORMAT);
        CHECK_MSG(strstr(e.text, "not a safetensors file"), "%s", e.text);
    }
    str s = {0};
    str_puts(&s, "short");
    CHECK_STATUS(open_str(&s, NULL), E_FORMAT);
}

/* One below, at, and one above what is read. */
TEST(safetensors_at_the_limits_of_the_reader)
{
    for (int n = 15; n <= 17; n++) {
        AUTO(str_free) str head = {0};
        str_puts(&head, "{\"a\":{\"dtype\":\"I8\",\"shape\":[");
        for (int i = 0; i < n; i++)
            str_puts(&head, i ? ",1" : "1");
        str_puts(&head, "],\"data_offsets\":[0,1]}}");
        check_head(str_text(&head), 1, n <= 16 ? OK : E_FORMAT, n <= 16 ? "" : "no valid shape");
    }
    for (int n = TENSOR_NAME_MAX - 1; n <= TENSOR_NAME_MAX + 1; n++) {
        AUTO(str_free) str head = {0};
        str_puts(&head, "{\"");
        for (int i = 0; i < n; i++)
            str_putc(&head, 'a');
        str_puts(&head, "\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}");
        check_head(str_text(&head), 1, n <= TENSOR_NAME_MAX ? OK : E_FORMAT,
                   n <= TENSOR_NAME_MAX ? "" : "a tensor name of");
    }
    check_head("{\"\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, E_FORMAT,
               "a tensor name of 0");
    for (uint64_t n = (100 << 20); n <= (100 << 20) + 1; n++) { /* only the length is there */
        str s = {0};
        err e = {0};
        file_of(&s, "{}", n, 0);
        CHECK_STATUS(open_str(&s, &e), E_FORMAT);
    }
}

/* A set of as many files as are read, and of one more. */
PLAIN_TEST(safetensors_at_the_limit_of_files)
{
    enum { PARTS = 4096 };
    const char *dir = test_temp("parts");
    AUTO(str_free) str file = {0};
    mkdir(dir, 0755);
    file_of(&file, "{}", 2, 0);
    for (int n = PARTS - 1; n <= PARTS + 1; n++) {
        AUTO(str_free) str index = {0};
        AUTO(safetensors_close) safetensors s;
        err e = {0};
        str_puts(&index, "{\"weight_map\":{");
        for (int i = 0; i < n; i++) {
            char name[32];
            snprintf(name, sizeof name, "p%d.safetensors", i);
            str_printf(&index, "%s\"t%d\":\"%s\"", i ? "," : "", i, name);
            if (n == PARTS - 1 || i >= PARTS - 1)
                test_write_in(dir, name, str_text(&file), file.n);
        }
        str_puts(&index, "}}");
        test_write_in(dir, "model.safetensors.index.json", str_text(&index), index.n);
        status st = safetensors_open(&s, dir, &e);
        CHECK_EQ(st != OK, 1); /* the files lack the tensors; the limit comes first */
        CHECK_MSG((strstr(e.text, "4096") != NULL) == (n > PARTS), "%d files: %s", n, e.text);
    }
}

TEST(safetensors_flipped_bytes_never_crash)
{
    static const char head[] =
        "{\"a\":{\"dtype\":\"BF16\",\"shape\":[3,2],\"data_offsets\":[0,12]},"
        "\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[12,16]}}";
    uint64_t seed = test_seed();
    for (int round = 0; round < 20000; round++) {
        str s = {0};
        file_of(&s, head, strlen(head), 16);
        for (uint64_t k = rng_below(&seed, 4) + 1; k; k--)
            s.at[rng_below(&seed, s.n)] = (char)rng_next(&seed);
        open_str(&s, NULL);
    }
}

static void write_file(const char *path, const str *s)
{
    test_write(path, s->at, s->n);
}

static void write_text(const char *path, const char *text)
{
    AUTO(str_free) str s = {0};
    str_puts(&s, text);
    write_file(path, &s);
}

static void write_shard(const char *path, const char *name, char first)
{
    char head[128];
    AUTO(str_free) str s = {0};
    snprintf(head, sizeof head,
             "{\"%s\":{\"dtype\":\"I8\",\"shape\":[2,3],\"data_offsets\":[0,6]}}", name);
    file_of(&s, head, strlen(head), 6);
    s.at[s.n - 6] = first;
    write_file(path, &s);
}

static status open_and_close(void *path, err *e)
{
    AUTO(safetensors_close) safetensors s;
    status st = safetensors_open(&s, path, e);
    return st;
}

#define CHECK_SET(path, want, words)                                                               \
    do {                                                                                           \
        err e_ = {0};                                                                              \
        CHECK_STATUS(open_and_close((void *)(path), &e_), want);                                   \
        CHECK_MSG(strstr(e_.text, words), "\"%s\" does not say \"%s\"", e_.text, words);           \
    } while (0)

TEST(safetensors_sharded_set)
{
    const char *dir = test_temp("model");
    char a[600], b[600], index[600];
    safetensors s;
    err e = {0};
    mkdir(dir, 0755);
    snprintf(a, sizeof a, "%s/m-1.safetensors", dir);
    snprintf(b, sizeof b, "%s/m-2.safetensors", dir);
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", dir);
    CHECK_SET(dir, E_IO, "has neither");
    write_shard(a, "one", 11);
    write_shard(b, "two", 22);
    write_text(index, "{\"weight_map\":{\"two\":\"m-2.safetensors\",\"one\":\"m-1.safetensors\"}}");
    CHECK_OK(safetensors_open(&s, dir, &e), e);
    CHECK_EQ(s.tensors.n, 2);
    CHECK_EQ(s.n_parts, 2);
    const tensor *t = tensor_find(&s.tensors, "one");
    CHECK(t && t->bytes[0] == 11 && t->ne[0] == 3 && t->ne[1] == 2 && t->n_dims == 2);
    t = tensor_find(&s.tensors, "two");
    CHECK(t && t->bytes[0] == 22 && t->part == 0);
    safetensors_close(&s);
    CHECK_SET(index, OK, "");
    CHECK_SET(a, OK, "");
    test_every_allocation(open_and_close, index);
    test_every_allocation(open_and_close, a);

    write_text(index, "{\"weight_map\":{\"one\":\"m-2.safetensors\"}}");
    CHECK_SET(dir, E_FORMAT, "is not in");
    write_text(index, "{\"weight_map\":{\"one\":\"../model/m-1.safetensors\"}}");
    CHECK_SET(dir, E_FORMAT, "no plain file");
    write_text(index, "{\"weight_map\":{\"one\":7}}");
    CHECK_SET(dir, E_FORMAT, "no plain file");
    write_text(index, "{\"weight_map\":{}}");
    CHECK_SET(dir, E_FORMAT, "no weight_map");
    write_text(index, "{\"weight_map\":{\"one\":\"missing.safetensors\"}}");
    CHECK_SET(dir, E_IO, "missing.safetensors");
    write_shard(b, "one", 22);
    write_text(index, "{\"weight_map\":{\"one\":\"m-1.safetensors\",\"x\":\"m-2.safetensors\"}}");
    CHECK_SET(dir, E_FORMAT, "two tensors named one");
    unlink(a);
    unlink(b);
    unlink(index);
    rmdir(dir);
}
