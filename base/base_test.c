/* base_test.c - the ground floor, on which everything else relies without asking.
 *
 * Errors keep their first sentence, readers remember a short read, arithmetic catches overflow in
 * products, sums and round-ups. The pool runs every chunk once, through thousands of loops. Files
 * are there whole or not at all, through links and beside devices.
 */
#include "tests/test.h"
#include "base/arena.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/show.h"
#include "base/str.h"
#include "base/utf8.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

TEST(err_keeps_the_first_sentence_and_no_control_bytes)
{
    err e = {0};
    CHECK_STATUS(err_set(&e, E_FORMAT, "name \x1b[2J%s", "x"), E_FORMAT);
    CHECK_STATUS(err_set(&e, E_IO, "second"), E_IO);
    CHECK_STR(e.text, "name ^[[2Jx");
    CHECK_EQ(e.status, E_FORMAT);
    err cut = {0};
    char name[sizeof cut.text + 8];
    memset(name, 'a', sizeof name);
    strcpy(name + sizeof cut.text - 2, "\xC3\xBC"); /* cut in the middle of this one */
    err_set(&cut, E_FORMAT, "%s", name);
    CHECK_EQ(strlen(cut.text), sizeof cut.text - 2);
    CHECK(utf8_valid(cut.text, strlen(cut.text)));
}

/* Times for timed waits: whole, later by as much as was asked, and of the clock of the condition.
 */
TEST(clock_times_of_waits)
{
    const int64_t at[] = {0, 999999999, 1000000000, 1500000000, INT64_C(123456789987654321)};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        struct timespec t = clock_timespec(at[i]);
        CHECK(t.tv_nsec >= 0 && t.tv_nsec < 1000000000 &&
              (int64_t)t.tv_sec * 1000000000 + t.tv_nsec == at[i]);
    }
    const double ms[] = {-5, 0, 0.5, 600, 86400e3, 1e300};
    const int64_t late[] = {
        0, 0, 500000, 600000000, INT64_C(86400000000000), INT64_C(366) * 86400 * 1000000000};
    for (size_t i = 0; i < sizeof ms / sizeof *ms; i++) {
        int64_t before = clock_ns();
        struct timespec t = clock_after_ms(ms[i]);
        int64_t after = clock_ns(), got = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
        CHECK_MSG(got >= before + late[i] && got <= after + late[i], "%g ms", ms[i]);
    }
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t never;
    clock_cond_init(&never);
    pthread_mutex_lock(&lock);
    int64_t from = clock_ns();
    struct timespec until = clock_after_ms(20);
    int why = 0;
    while (!why)
        why = pthread_cond_timedwait(&never, &lock, &until);
    CHECK(why == ETIMEDOUT && clock_ns() - from >= 20000000);
    pthread_mutex_unlock(&lock);
    pthread_cond_destroy(&never);
}

TEST(a_name_from_outside_cannot_drive_a_terminal)
{
    static const struct {
        const char *raw, *name, *text, *json;
    } cases[] = {
        {"plain \xC3\xBC\xE4\xBD\xA0", "plain \xC3\xBC\xE4\xBD\xA0", "plain \xC3\xBC\xE4\xBD\xA0",
         "plain \xC3\xBC\xE4\xBD\xA0"},
        {"\x1b]0;t\x07", "^[]0;t^G", "^[]0;t^G", "\x1b]0;t\x07"}, /* JSON has no raw C0 */
        {"a\nb\tc", "a^Jb^Ic", "a\nb\tc", "a\nb\tc"},
        {"\x7f\xC2\x9B"
         "2J",
         "^?<009B>2J", "^?<009B>2J", "\\u007f\\u009b2J"},
        {"x\xE2\x80\xAEy\xE2\x81\xA6z", "x<202E>y<2066>z", "x<202E>y<2066>z", "x\\u202ey\\u2066z"},
        {"\xE2\x80\x8F|\xE2\x80\xA8", "<200F>|<2028>", "\xE2\x80\x8F|\xE2\x80\xA8",
         "\\u200f|\\u2028"},
        {"\xC0\xAF\xFF", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD",
         "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", "\\ufffd\\ufffd\\ufffd"},
        {"", "", "", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO(str_free) str o = {0};
        size_t n = strlen(cases[i].raw);
        CHECK_STR(SHOWN(cases[i].raw), cases[i].name);
        show_put(&o, cases[i].raw, n, SHOW_NAME);
        CHECK_STR(str_text(&o), cases[i].name);
        str_cut(&o, 0);
        show_put(&o, cases[i].raw, n, SHOW_TEXT);
        CHECK_STR(str_text(&o), cases[i].text);
        str_cut(&o, 0);
        show_put_json(&o, cases[i].raw, n);
        CHECK_STR(str_text(&o), cases[i].json);
    }
    char small[6];
    CHECK_STR(show_into(small, sizeof small, "ab\x1b\x1b"), "ab^[");
}

TEST(reader_remembers_a_short_read)
{
    unsigned char b[] = {1, 2, 3, 4, 5};
    reader r = reader_of(b, sizeof b);
    CHECK_EQ(rd_u32(&r), 0x04030201);
    CHECK_EQ(rd_u16(&r), 0);
    CHECK(r.bad);
    CHECK_EQ(rd_u8(&r), 0); /* sticky, although a byte is left */
}

TEST(checked_arithmetic_catches_the_round_up)
{
    uint64_t v;
    CHECK(!ck_align(UINT64_MAX - 3, 32, &v));
    CHECK(!ck_align(8, 24, &v));
    CHECK(ck_align(33, 32, &v) && v == 64);
    CHECK(!ck_mul(UINT64_MAX / 2, 3, &v));
}

TEST(utf8_accepts_exactly_the_well_formed)
{
    CHECK(utf8_valid("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 10));
    const char *bad[] = {"\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                         "\x80",     "\xe2\x82",     "\xf8"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_MSG(!utf8_valid(bad[i], strlen(bad[i])), "case %zu", i);
    for (uint32_t c = 0; c <= 0x10ffff; c++) {
        char s[4];
        uint32_t back;
        bool ok;
        int n = utf8_encode(c, s);
        CHECK_EQ(utf8_decode(s, (size_t)n, &back, &ok), n);
        CHECK_EQ(back, c >= 0xd800 && c <= 0xdfff ? 0xfffd : c);
        for (int k = 1; k < n; k++)
            CHECK_EQ(utf8_partial_tail(s, (size_t)k), k);
        CHECK_EQ(utf8_partial_tail(s, (size_t)n), 0);
    }
    CHECK_EQ(utf8_partial_tail("\xed\xa0", 2), 0); /* a surrogate never becomes well-formed */
}

TEST(str_grows_cuts_and_drops)
{
    str s = {0};
    for (int i = 0; i < 1000; i++)
        str_printf(&s, "%d,", i);
    CHECK(!s.bad && strstr(s.at, ",999,"));
    str_drop(&s, 2);
    CHECK(!strncmp(s.at, "1,2,", 4));
    str_cut(&s, 3);
    CHECK_STR(str_text(&s), "1,2");
    str_free(&s);
    CHECK_STR(str_text(&s), "");
}

static void count_chunk(void *arg, int32_t chunk, int32_t thread)
{
    (void)thread;
    atomic_fetch_add(&((atomic_int *)arg)[chunk], 1);
}

TEST(pool_runs_every_chunk_once_for_many_loops)
{
    err e = {0};
    pool *p;
    CHECK_OK(pool_open(&p, 4, &e), e);
    for (int loop = 0; loop < 3000; loop++) {
        atomic_int hit[64] = {0};
        int n = 1 + loop % 64;
        pool_run(p, n, count_chunk, hit);
        for (int i = 0; i < n; i++)
            CHECK_EQ(hit[i], 1);
        if (loop % 500 == 0)
            usleep(2000); /* long enough for the workers to fall asleep */
    }
    pool_close(p);
}

static void deep_chunk(void *arg, int32_t chunk, int32_t thread)
{
    volatile char tile[512 << 10];
    (void)thread;
    for (size_t i = 0; i < sizeof tile; i += 4096)
        tile[i] = (char)chunk;
    atomic_fetch_add((atomic_int *)arg, 1);
    usleep(1000); /* so that the workers get some */
}

TEST(pool_threads_have_stacks_for_kernels_whatever_the_default)
{
    pthread_attr_t small;
    atomic_int n = 0;
    err e = {0};
    pool *p;
#ifdef __SANITIZE_THREAD__
    test_skip("the thread sanitizer starts threads of its own, which need more");
#endif
    CHECK(!pthread_attr_init(&small) && !pthread_attr_setstacksize(&small, 128 << 10));
    CHECK(!pthread_setattr_default_np(&small));
    CHECK_OK(pool_open(&p, 4, &e), e);
    pool_run(p, 64, deep_chunk, &n);
    CHECK_EQ(n, 64);
    pool_close(p);
    pthread_attr_destroy(&small);
}

TEST(file_out_leaves_nothing_behind_unless_committed)
{
    err e = {0};
    const char *path = test_temp("out");
    file_out f;
    CHECK_OK(file_out_open(&f, path, &e), e);
    CHECK_OK(file_out_write(&f, "abc", 3, &e), e);
    file_out_discard(&f);
    CHECK(access(path, F_OK));
    CHECK_OK(file_out_open(&f, path, &e), e);
    CHECK_OK(file_out_write(&f, "abc", 3, &e), e);
    CHECK_OK(file_out_pad(&f, 32, &e), e);
    CHECK_OK(file_out_commit(&f, &e), e);
    for (int direct = 0; direct < 2; direct++) {
        AUTO(file_map_close) file_map m;
        CHECK_OK(file_map_open(&m, path, direct, NULL, NULL, &e), e);
        CHECK_EQ(m.n_bytes, 32);
        CHECK(!memcmp(m.bytes, "abc\0", 4));
    }
    file_map m;
    CHECK_STATUS(file_map_open(&m, "/nonexistent/x", false, NULL, NULL, &e), E_IO);
    CHECK_STR(e.text, "/nonexistent/x: cannot open: No such file or directory");
}

TEST(arena_is_aligned_and_zeroed)
{
    AUTO(arena_free) arena a = {0};
    for (size_t n = 1; n < 200000; n = n * 3 + 1) {
        unsigned char *p = arena_alloc(&a, n);
        CHECK(p && (uintptr_t)p % 16 == 0 && !p[0] && !p[n - 1]);
        memset(p, 0xff, n);
    }
    CHECK(!arena_array(&a, SIZE_MAX / 2, 4));
    arena_free(&a);
}

static void write_text(const char *path, const char *text)
{
    err e = {0};
    file_out f;
    CHECK_OK(file_out_open(&f, path, &e), e);
    CHECK_OK(file_out_write(&f, text, strlen(text), &e), e);
    CHECK_OK(file_out_commit(&f, &e), e);
}

static void check_text(const char *path, const char *expected)
{
    err e = {0};
    AUTO_MEM char *text;
    size_t n;
    CHECK_OK(file_read_all(path, 100, &text, &n, &e), e);
    CHECK_STR(text, expected);
}

TEST(file_out_writes_through_symbolic_links)
{
    char dir[1024], link[1100], file[1100], loop[1100];
    struct stat sb;
    err e = {0};
    file_out f;
    snprintf(dir, sizeof dir, "%s", test_temp("links"));
    snprintf(link, sizeof link, "%s/link", dir);
    snprintf(file, sizeof file, "%s/file", dir);
    snprintf(loop, sizeof loop, "%s/loop", dir);
    CHECK(!mkdir(dir, 0700) && !symlink("second", link));
    CHECK(!symlinkat(file, AT_FDCWD, strcat(strcpy(loop, dir), "/second")));
    write_text(link, "new"); /* a chain, relative and absolute, whose end is not there yet */
    check_text(file, "new");
    write_text(link, "newer");
    check_text(file, "newer");
    CHECK(!lstat(link, &sb) && S_ISLNK(sb.st_mode));
    CHECK(!lstat(loop, &sb) && S_ISLNK(sb.st_mode));
    snprintf(loop, sizeof loop, "%s/loop", dir);
    CHECK(!symlink("loop", loop));
    CHECK_STATUS(file_out_open(&f, loop, &e), E_IO);
    CHECK(strstr(e.text, "too many symbolic links"));
}

TEST(file_out_private_replaces_a_link_and_is_of_its_owner_alone)
{
    char dir[1024], link[1100], file[1100];
    struct stat sb;
    err e = {0};
    file_out f;
    snprintf(dir, sizeof dir, "%s", test_temp("private"));
    snprintf(link, sizeof link, "%s/link", dir);
    snprintf(file, sizeof file, "%s/file", dir);
    CHECK(!mkdir(dir, 0700) && !symlink("file", link));
    write_text(file, "old");
    CHECK_OK(file_out_open_private(&f, link, &e), e);
    CHECK_OK(file_out_write(&f, "new", 3, &e), e);
    CHECK_OK(file_out_commit(&f, &e), e);
    check_text(file, "old");
    check_text(link, "new");
    CHECK(!lstat(link, &sb) && S_ISREG(sb.st_mode) && (sb.st_mode & 0777) == 0600);
    CHECK(!stat(file, &sb) && (sb.st_mode & 0777) == (0666 & ~umask(022)));
}

static atomic_bool umask_done;

static void *write_files(void *path)
{
    for (int i = 0; i < 200; i++)
        write_text(path, "x");
    atomic_store(&umask_done, true);
    return NULL;
}

/* A thread that creates a file at the wrong moment must not get mode 0666. */
TEST(file_out_leaves_the_umask_of_the_process_alone)
{
    pthread_t t;
    char path[512], other[512];
    struct stat sb;
    umask(077);
    snprintf(path, sizeof path, "%s", test_temp("written"));
    snprintf(other, sizeof other, "%s", test_temp("other"));
    CHECK(!pthread_create(&t, NULL, write_files, path));
    while (!atomic_load(&umask_done)) {
        int fd = open(other, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        CHECK(fd >= 0 && !fstat(fd, &sb) && !close(fd) && !unlink(other));
        CHECK_EQ(sb.st_mode & 0777, 0600);
    }
    pthread_join(t, NULL);
    CHECK(!stat(path, &sb) && (sb.st_mode & 0777) == 0600);
}

TEST(file_out_writes_into_a_device_and_never_over_it)
{
    file_out f;
    err e = {0};
    struct stat sb;
    CHECK_OK(file_out_open(&f, "/dev/null", &e), e);
    CHECK_OK(file_out_write(&f, "x", 1, &e), e);
    CHECK_OK(file_out_commit(&f, &e), e);
    CHECK(!stat("/dev/null", &sb) && S_ISCHR(sb.st_mode));
    CHECK_OK(file_out_open(&f, "/dev/full", &e), e);
    CHECK_OK(file_out_write(&f, "x", 1, &e), e);
    CHECK_STATUS(file_out_commit(&f, &e), E_IO);
    CHECK(strstr(e.text, "/dev/full"));
    err_clear(&e);
    CHECK_STATUS(file_out_open(&f, "/tmp", &e), E_IO);
}

static void write_line(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");
    CHECK(f && fputs(text, f) >= 0 && !fclose(f));
}

TEST(a_model_in_the_page_cache_is_not_in_its_own_way)
{
    const char *max = test_temp("memory.max"), *now = test_temp("memory.current");
    const char *stat = test_temp("memory.stat");
    char dir[512];
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(max, '/') - max), max);
    CHECK(mem_group_room(dir) == UINT64_MAX);
    write_line(max, "max\n");
    CHECK(mem_group_room(dir) == UINT64_MAX);
    write_line(max, "1000\n");
    write_line(now, "900\n");
    CHECK_EQ(mem_group_room(dir), 100);
    write_line(stat, "anon 250\nfile 650\nshmem 50\ninactive_file 400\nactive_file 200\n");
    CHECK_EQ(mem_group_room(dir), 700);
    write_line(now, "1400\n"); /* more than the limit, for a moment */
    write_line(stat, "inactive_file 0\n");
    CHECK_EQ(mem_group_room(dir), 0);
    CHECK(mem_available_bytes() > 0);
}
