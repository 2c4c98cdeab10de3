/* decode_test.c - files of pictures against Pillow, and files that are refused. */
#include "image/image_test_int.h"
#include "base/map.h"
#include "base/mem.h"

static void read_file(const char *name, char **bytes, size_t *n)
{
    char path[256];
    err e = {0};
    snprintf(path, sizeof path, "fuzz/corpus/%s", name);
    CHECK_OK(file_read_all(test_path(path), 1 << 20, bytes, n, &e), e);
}

TEST(decode_reads_what_pillow_reads)
{
    FILE *f = fopen(test_path("tests/data/images/decode.txt"), "r");
    int n_files = 0, w, h;
    char name[128], outcome[16], want[TEST_DIGEST], got[TEST_DIGEST], *bytes;
    CHECK(f);
    while (fscanf(f, "%127s %15s %d %d %16s", name, outcome, &w, &h, want) == 5) {
        size_t n;
        image m = {0};
        image_head head;
        err e = {0};
        read_file(name, &bytes, &n);
        if (!strcmp(outcome, "refused")) {
            CHECK_STATUS(image_head_read(&head, bytes, n, name, &e), E_UNSUPPORTED);
            CHECK_STATUS(image_decode(&m, bytes, n, name, NULL), E_UNSUPPORTED);
        } else {
            CHECK_OK(image_head_read(&head, bytes, n, name, &e), e);
            CHECK_OK(image_decode(&m, bytes, n, name, &e), e);
            CHECK_MSG(head.width == w && head.height == h && m.width == w && m.height == h,
                      "%s: %d x %d, expected %d x %d", name, m.width, m.height, w, h);
            CHECK_MSG(!strcmp(test_image_digest(&m, got), want), "%s: other pixels", name);
        }
        image_free(&m);
        mem_free(bytes);
        n_files++;
    }
    fclose(f);
    CHECK(n_files >= 65);
}

/* The sentence of a refusal. */
static const char *refusal(const void *bytes, size_t n, status want)
{
    static err e;
    image m = {5, 6, NULL};
    e = (err){0};
    CHECK_STATUS(image_decode(&m, bytes, n, "a.png", &e), want);
    CHECK(m.width == 5 && m.height == 6 && !m.rgb);
    return e.text;
}

TEST(decode_names_files_that_it_does_not_read)
{
    static const char cmyk[] = "jpeg/cmyk";
    AUTO_MEM char *bytes;
    size_t n;
    CHECK(strstr(refusal("", 0, E_UNSUPPORTED), "an empty file"));
    CHECK(strstr(refusal("GIF89a..", 8, E_UNSUPPORTED), "a GIF file; pictures are read from PNG"));
    CHECK(strstr(refusal("\0\0\0\x18"
                         "ftypheic",
                         12, E_UNSUPPORTED),
                 "a HEIC file"));
    CHECK(strstr(refusal("%PDF-1.7", 8, E_UNSUPPORTED), "a PDF file"));
    CHECK(strstr(refusal("hello", 5, E_UNSUPPORTED), "no picture"));
    read_file(cmyk, &bytes, &n);
    CHECK(strstr(refusal(bytes, n, E_UNSUPPORTED), "in CMYK"));
}

/* Every file cut anywhere is refused with a sentence, or it is whole but for what is behind the
 * pixels. At half of the bytes no picture is whole. */
TEST(decode_refuses_files_that_end_early)
{
    static const char *const names[] = {"png/rgb8",   "png/palette4-interlaced",
                                        "jpeg/420",   "jpeg/444-progressive",
                                        "webp/lossy", "webp/lossless"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        AUTO_MEM char *bytes;
        size_t n;
        read_file(names[i], &bytes, &n);
        CHECK(strstr(refusal(bytes, n - n / 4, E_FORMAT), " ends in "));
        for (size_t cut = 12; cut < n; cut += 1 + n / 50) {
            AUTO(image_free) image m = {0};
            err e = {0};
            status st = image_decode(&m, bytes, cut, names[i], &e);
            CHECK_MSG((st == OK) == !!m.rgb && (!st || e.text[0]), "%s at %zu", names[i], cut);
            CHECK_MSG(st == E_FORMAT || cut > n / 2, "%s at %zu of %zu is read", names[i], cut, n);
        }
    }
}

static void put_be(uint8_t *p, uint32_t v, int n_bytes)
{
    while (n_bytes--) {
        p[n_bytes] = (uint8_t)v;
        v >>= 8;
    }
}

/* CRC-32 of PNG, bit by bit. */
static uint32_t crc(const uint8_t *p, size_t n)
{
    uint32_t c = 0xffffffff;
    for (size_t i = 0; i < n; i++) {
        c ^= p[i];
        for (int k = 0; k < 8; k++)
            c = c & 1 ? 0xedb88320 ^ c >> 1 : c >> 1;
    }
    return ~c;
}

/* The picture of a small file in a header that says another size. */
static status announced(const char *name, uint32_t w, uint32_t h, image_head *head, err *e)
{
    AUTO_MEM char *bytes;
    size_t n;
    read_file(name, &bytes, &n);
    uint8_t *p = (uint8_t *)bytes;
    if (!strncmp(name, "png", 3)) {
        put_be(p + 16, w, 4);
        put_be(p + 20, h, 4);
        put_be(p + 29, crc(p + 12, 17), 4);
    } else if (!strncmp(name, "jpeg", 4)) {
        size_t at = 2;
        while (p[at + 1] != 0xc0 && p[at + 1] != 0xc2)
            at += 2 + (size_t)(p[at + 2] << 8 | p[at + 3]);
        put_be(p + at + 5, h, 2);
        put_be(p + at + 7, w, 2);
    } else { /* VP8L: 14 bits of each side less one */
        uint32_t bits = (w - 1) | (h - 1) << 14;
        for (int i = 0; i < 4; i++)
            p[21 + i] = (uint8_t)((p[21 + i] & (i == 3 ? 0xf0 : 0)) | (bits >> 8 * i & 255));
    }
    int64_t before = mem_count();
    status st = image_head_read(head, bytes, n, name, e);
    CHECK(mem_count() - before < 40); /* small things of libpng, and no pixels */
    AUTO(image_free) image m = {0};
    /* A JPEG file that says it is at its end is a picture with a grey rest. */
    CHECK_STATUS(image_decode(&m, bytes, n, name, NULL),
                 st || !strncmp(name, "jpeg", 4) ? st : E_FORMAT);
    return st;
}

TEST(decode_refuses_pictures_beyond_the_limits_by_their_headers)
{
    static const char *const names[] = {"png/rgb8", "jpeg/420", "jpeg/420-progressive",
                                        "webp/lossless"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        image_head head = {.width = -1};
        err e = {0};
        bool webp = !strncmp(names[i], "webp", 4); /* ends at 16383 by its format */
        CHECK_STATUS(announced(names[i], 10000, 10000, &head, &e), E_LIMIT);
        CHECK(strstr(e.text, "a picture of 10000 x 10000 pixels; at most 16384 a side"));
        CHECK_EQ(head.width, -1);
        CHECK_STATUS(announced(names[i], 8192, 8193, &head, NULL), E_LIMIT);
        if (!webp) {
            CHECK_STATUS(announced(names[i], 16385, 1, &head, NULL), E_LIMIT);
            CHECK_STATUS(announced(names[i], 1, 16385, &head, NULL), E_LIMIT);
        }
        CHECK_STATUS(announced(names[i], webp ? 16383 : 16384, 64, &head, NULL), OK);
        CHECK_EQ(head.height, 64);
        CHECK_STATUS(announced(names[i], 8192, SANITIZED ? 64 : 8192, &head, NULL), OK);
    }
    err e = {0};
    image_head head;
    CHECK_STATUS(announced("png/rgb8", 0xffffffff, 0xffffffff, &head, &e), E_FORMAT);
}

/* Two hundred scans of a progressive file: its last scan again and again. */
TEST(decode_refuses_endless_scans)
{
    AUTO_MEM char *bytes;
    size_t n, last = 0;
    read_file("jpeg/420-progressive", &bytes, &n);
    for (size_t at = 0; at + 1 < n; at++)
        if ((uint8_t)bytes[at] == 0xff && (uint8_t)bytes[at + 1] == 0xda)
            last = at;
    size_t scan = n - 2 - last, total = n + 200 * scan;
    AUTO_MEM char *many = mem_alloc(total);
    CHECK(last && many);
    memcpy(many, bytes, n - 2);
    for (int i = 0; i < 200; i++)
        memcpy(many + n - 2 + (size_t)i * scan, bytes + last, scan);
    memcpy(many + total - 2, bytes + n - 2, 2);
    CHECK(strstr(refusal(many, total, E_LIMIT), "more than 100 scans"));
}

typedef struct test_file {
    char *bytes;
    size_t n;
} test_file;

static status decode_failing(void *arg, err *e)
{
    const test_file *f = arg;
    AUTO(image_free) image m = {0};
    status st = image_decode(&m, f->bytes, f->n, "a.png", e);
    return st;
}

TEST(decode_survives_failed_allocations)
{
    test_file f;
    read_file("png/exif-6", &f.bytes, &f.n);
    test_every_allocation(decode_failing, &f);
    mem_free(f.bytes);
}
