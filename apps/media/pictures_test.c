/* pictures_test.c - pictures as requests bring them: their forms, their limits, and addresses that
 * are not connected to.
 */
#include "apps/media/fetch.h"
#include "apps/media/pictures.h"
#include "tests/test.h"
#include "base/mem.h"
#include "base/str.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define DOT                                                                                        \
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5Erk"   \
    "Jggg"

static status add_url(pictures *l, const picture_rules *r, const char *url, err *e)
{
    *e = (err){0};
    return pictures_add_url(l, r, url, strlen(url), "'url'", e);
}

TEST(pictures_of_data_uris)
{
    static const char *const good[] = {
        "data:image/png;base64," DOT "==", "data:image/png;base64," DOT,
        "DATA:IMAGE/JPEG;charset=utf-8;BASE64," DOT "\n==\r\n", "data:;base64," DOT,
        "data:application/octet-stream;base64," DOT};
    static const struct {
        const char *url, *sentence;
        status st;
    } bad[] = {
        {"data:image/png," DOT, "without \";base64,\"", E_FORMAT},
        {"data:image/png;base64" DOT, "without \";base64,\"", E_FORMAT},
        {"data:", "without \";base64,\"", E_FORMAT},
        {"data:text/html;base64," DOT, "of type text/html", E_UNSUPPORTED},
        {"data:image/png;base64,", "an empty file, neither a picture nor a sound", E_UNSUPPORTED},
        {"data:image/png;base64,Zm9vYmFy", "no picture", E_UNSUPPORTED},
        {"data:image/png;base64,R0lGODlhAQABAAAAACw=", "a GIF file", E_UNSUPPORTED},
        {"data:image/png;base64,iVBORw0KGgo=", "'url': ", E_FORMAT},
        {"data:image/png;base64,Zm9v Zg", "no base64: character 5 of 7", E_FORMAT},
        {"data:image/png;base64,Zm9-", "no base64: character 4 of 4", E_FORMAT},
        {"data:image/png;base64,Zm9vZ", "no base64: character 5 of 5", E_FORMAT},
        {"", "neither a data URI", E_UNSUPPORTED},
        {"photo.png", "neither a data URI", E_UNSUPPORTED},
        {"ftp://a/b.png", "neither a data URI", E_UNSUPPORTED},
        {"http://a/b.png", "--media-urls", E_UNSUPPORTED},
        {"file:///etc/passwd", "--media-path", E_UNSUPPORTED},
    };
    AUTO(pictures_free) pictures l = {0};
    err e = {0};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK_OK(add_url(&l, NULL, good[i], &e), e);
    CHECK_EQ(l.n, 5);
    CHECK(l.at[1].head.width == 1 && l.at[1].head.height == 1 && l.n_pixels == 5);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        status st = add_url(&l, NULL, bad[i].url, &e);
        CHECK_MSG(st == bad[i].st, "%s: %d (%s)", bad[i].url, (int)st, e.text);
        CHECK_MSG(strstr(e.text, bad[i].sentence) && !strncmp(e.text, "'url': ", 7), "%s", e.text);
        CHECK_EQ(l.n, 5);
    }
}

/* ---- Limits ---- */

static uint32_t crc_of(const uint8_t *p, size_t n)
{
    uint32_t crc = ~0u;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int b = 0; b < 8; b++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

static void put_be(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> (24 - 8 * i));
}

/* A PNG that says its size and ends. n: with zeros behind it. */
static status add_head(pictures *l, uint32_t w, uint32_t h, size_t n, err *e)
{
    uint8_t *p = mem_calloc(1, n + 64);
    CHECK(p);
    memcpy(p, "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR", 16);
    put_be(p + 16, w);
    put_be(p + 20, h);
    p[24] = 8;
    p[25] = 2;
    put_be(p + 29, crc_of(p + 12, 17));
    memcpy(p + 33, "\0\0\0\1IDAT", 8);
    *e = (err){0};
    return pictures_add(l, p, n + 64, "'p'", e);
}

TEST(pictures_that_are_too_many_or_too_large_take_no_memory)
{
    AUTO(pictures_free) pictures l = {0};
    err e;
    CHECK_STATUS(add_head(&l, 100000, 100000, 0, &e), E_LIMIT);
    CHECK_STATUS(add_head(&l, 16384, 16384, 0, &e), E_LIMIT);
    CHECK_STATUS(add_head(&l, 16385, 1, 0, &e), E_LIMIT);
    CHECK_EQ(l.n, 0);
    for (int i = 0; i < 4; i++)
        CHECK_OK(add_head(&l, 8192, 8192, 0, &e), e);
    CHECK_STATUS(add_head(&l, 1, 1, 0, &e), E_LIMIT);
    CHECK(strstr(e.text, "'p': the pictures have more than 268435456 pixels together"));
    pictures_free(&l);

    for (int i = 0; i < PICTURES_MAX; i++)
        CHECK_OK(add_head(&l, 10, 10, 0, &e), e);
    CHECK_STATUS(add_head(&l, 10, 10, 0, &e), E_LIMIT);
    CHECK(strstr(e.text, "more than 16 pictures"));
    CHECK_EQ(l.n, PICTURES_MAX);
    pictures_free(&l);

    CHECK_OK(add_head(&l, 10, 10, PICTURE_MAX_BYTES - 64, &e), e);
    CHECK_STATUS(add_head(&l, 10, 10, PICTURE_MAX_BYTES - 63, &e), E_LIMIT);
    CHECK(strstr(e.text, "a file of 20971521 bytes"));
    CHECK_OK(add_head(&l, 10, 10, PICTURE_MAX_BYTES - 64, &e), e);
    CHECK_OK(add_head(&l, 10, 10, PICTURE_MAX_BYTES - 64, &e), e);
    CHECK_STATUS(add_head(&l, 10, 10, PICTURE_MAX_BYTES - 64, &e), E_LIMIT);
    CHECK(strstr(e.text, "more than 67108864 bytes together"));
}

/* Requests take memory together: one that finds no room is told so, and what is freed is room. */
TEST(pictures_of_all_requests_have_a_bound_together)
{
    enum { LISTS = PICTURES_ALL_BYTES / PICTURE_MAX_BYTES / 3 + 1 };
    pictures l[LISTS] = {{0}};
    status st = OK;
    err e = {0};
    int n = 0;
    while (n < 3 * LISTS && !(st = add_head(&l[n / 3], 10, 10, PICTURE_MAX_BYTES - 64, &e)))
        n++;
    CHECK_EQ(n, PICTURES_ALL_BYTES / PICTURE_MAX_BYTES);
    CHECK_STATUS(st, E_MEMORY);
    CHECK_MSG(strstr(e.text, "'p': the pictures of other requests"), "%s", e.text);
    picture_drop_file(&l[0].at[0]);
    CHECK_OK(add_head(&l[LISTS - 1], 10, 10, PICTURE_MAX_BYTES - 64, &e), e);
    for (int i = 0; i < LISTS; i++)
        pictures_free(&l[i]);
    CHECK_OK(add_head(&l[0], 10, 10, PICTURE_MAX_BYTES - 64, &e), e);
    pictures_free(&l[0]);
}

/* ---- Files ---- */

TEST(pictures_of_a_directory_stay_below_it)
{
    static const char *const good[] = {"file://dot.png", "file:///dot.png", "file:sub/dot.png",
                                       "file://sub/dot.png"};
    static const char *const bad[] = {
        "file://../dot.png",    "file://sub/../dot.png", "file://./dot.png",   "file://link.png",
        "file://out/dot.png",   "file://sub//dot.png",   "file://sub",         "file://",
        "file://none.png",      "file://dot.png/",       "file:///etc/passwd", "file://fifo",
        "file://%2e%2e/dot.png"};
    char root[200], path[300], url[320];
    err e = {0};
    AUTO(pictures_free) pictures l = {0};
    snprintf(root, sizeof root, "%s", test_temp("media"));
    CHECK(!mkdir(root, 0700));
    uint8_t dot[] = {0x89, 'P', 'N', 'G', 13, 10, 26, 10, 0, 0,   0,   13,  'I', 'H',
                     'D',  'R', 0,   0,   0,  1,  0,  0,  0, 1,   8,   2,   0,   0,
                     0,    0,   0,   0,   0,  0,  0,  0,  1, 'I', 'D', 'A', 'T', 0};
    put_be(dot + 29, crc_of(dot + 12, 17));
    snprintf(path, sizeof path, "%s/sub", root);
    CHECK(!mkdir(path, 0700));
    test_write_in(root, "dot.png", dot, sizeof dot);
    test_write_in(root, "sub/dot.png", dot, sizeof dot);
    test_write_in(root, "../dot.png", dot, sizeof dot);
    snprintf(path, sizeof path, "%s/link.png", root);
    CHECK(!symlink("dot.png", path));
    snprintf(path, sizeof path, "%s/out", root);
    CHECK(!symlink("..", path));
    snprintf(path, sizeof path, "%s/fifo", root);
    CHECK(!mkfifo(path, 0600));
    picture_rules r = {.root = root};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK_MSG(!add_url(&l, &r, good[i], &e), "%s: %s", good[i], e.text);
    snprintf(url, sizeof url, "file://%s/sub/dot.png", root);
    CHECK_OK(add_url(&l, &r, url, &e), e);
    CHECK_EQ(l.n, 5);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_MSG(add_url(&l, &r, bad[i], &e) && !strncmp(e.text, "'url': ", 7), "%s was read: %s",
                  bad[i], e.text);
    CHECK_EQ(l.n, 5);
}

/* ---- Addresses ---- */

TEST(addresses_inside_a_network_are_not_public)
{
    static const struct {
        const char *text;
        bool is;
    } row[] = {{"8.8.8.8", true},
               {"1.1.1.1", true},
               {"127.0.0.1", false},
               {"127.255.255.255", false},
               {"0.0.0.0", false},
               {"10.1.2.3", false},
               {"11.0.0.0", true},
               {"172.15.255.255", true},
               {"172.16.0.0", false},
               {"172.31.255.255", false},
               {"172.32.0.0", true},
               {"192.168.1.1", false},
               {"169.254.169.254", false},
               {"100.64.0.1", false},
               {"100.128.0.1", true},
               {"224.0.0.1", false},
               {"255.255.255.255", false},
               {"2606:4700:4700::1111", true},
               {"::1", false},
               {"::", false},
               {"::ffff:127.0.0.1", false},
               {"64:ff9b::7f00:1", false},
               {"fe80::1", false},
               {"fd00::1", false},
               {"ff02::1", false},
               {"2002:7f00:1::", false},
               {"2001:0:7f00:1::", false},
               {"2001:db8::1", false},
               {"2001:4860::1", true}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct sockaddr_in a = {.sin_family = AF_INET};
        struct sockaddr_in6 b = {.sin6_family = AF_INET6};
        bool six = strchr(row[i].text, ':') != NULL;
        CHECK(inet_pton(six ? AF_INET6 : AF_INET, row[i].text,
                        six ? (void *)&b.sin6_addr : (void *)&a.sin_addr) == 1);
        const void *at = six ? (const void *)&b : (const void *)&a;
        CHECK_MSG(address_is_public(at) == row[i].is, "%s", row[i].text);
    }
    struct sockaddr_un_like {
        unsigned short family;
    } un = {AF_UNIX};
    CHECK(!address_is_public((const void *)&un));
}

TEST(a_server_on_this_machine_is_not_asked_for_pictures)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    char url[80];
    pictures l = {0};
    err e = {0};
    picture_rules r = {.fetch = picture_fetch};
    CHECK(!bind(fd, (const struct sockaddr *)&a, n) && !listen(fd, 4));
    CHECK(!getsockname(fd, (struct sockaddr *)&a, &n));
    for (int i = 0; i < 2; i++) {
        snprintf(url, sizeof url, "http://%s:%d/a.png", i ? "localhost" : "127.0.0.1",
                 ntohs(a.sin_port));
        CHECK_STATUS(add_url(&l, &r, url, &e), E_UNSUPPORTED);
        CHECK_MSG(strstr(e.text, "not of the public internet"), "%s", e.text);
    }
    CHECK(accept(fd, NULL, NULL) < 0); /* no connection was made */
    CHECK_STATUS(add_url(&l, &r, "http://user:word@example.com/", &e), E_FORMAT);
    close(fd);
    CHECK_EQ(l.n, 0);
}

static status every_way(void *arg, err *e)
{
    static const char url[] = "data:image/png;base64," DOT;
    AUTO(pictures_free) pictures l = {0};
    status st = pictures_add_url(&l, NULL, url, sizeof url - 1, "'url'", e);
    (void)arg;
    return st;
}

TEST(pictures_of_requests_survive_every_failed_allocation)
{
    test_every_allocation(every_way, NULL);
}
