/* build_test.c - the Makefile, in a folder of its own that borrows the sources. */
#include "base/str.h"
#include "tests/test.h"

#include <limits.h>
#include <unistd.h>

static void borrow(const char *dir, const char *name)
{
    char link[4096], target[PATH_MAX];
    snprintf(link, sizeof link, "%s/%s", dir, name);
    CHECK(realpath(test_path(name), target) && !symlink(target, link));
}

/* What make prints in dir, whose name has a blank. */
static void make_prints(const char *dir, const char *words, str *out)
{
    char line[4096];
    snprintf(line, sizeof line, "cd '%s' && env -u MAKEFLAGS -u CFLAGS -u BUILD make V=1 %s 2>&1",
             dir, words);
    FILE *f = popen(line, "r");
    CHECK(f);
    str_cut(out, 0);
    for (int c; (c = fgetc(f)) != EOF;)
        str_putc(out, (char)c);
    CHECK_MSG(!pclose(f), "make %s: %s", words, str_text(out));
}

TEST(objects_depend_on_compiler_and_flags)
{
    static const char *const borrowed[] = {
        "Makefile", "apps",  "backend", "base",  "engine", "format", "image", "include",
        "kv",       "model", "num",     "sound", "spec",   "text",   "tools", "LICENSE"};
    char line[4096];
    AUTO(str_free) str out = {0};
    const char *dir = test_temp("a tree");
    if (system("make --version && ${CC:-cc} --version") || SANITIZED)
        test_skip("no make, no compiler, or sanitized");
    snprintf(line, sizeof line, "mkdir '%s'", dir);
    CHECK(!system(line));
    for (size_t i = 0; i < sizeof borrowed / sizeof *borrowed; i++)
        borrow(dir, borrowed[i]);
    make_prints(dir, "build/base/err.o", &out);
    CHECK(strstr(str_text(&out), "-o build/base/err.o"));
    make_prints(dir, "build/base/err.o", &out);
    CHECK_MSG(strstr(str_text(&out), "up to date"), "again: %s", str_text(&out));
    make_prints(dir, "build/base/err.o CFLAGS=-DOTHER=1", &out);
    CHECK_MSG(strstr(str_text(&out), "-DOTHER=1"), "other flags: %s", str_text(&out));
    make_prints(dir, "-n build/base/err.o SAN=-fsanitize=address", &out);
    CHECK_MSG(strstr(str_text(&out), "-o build/base/err.o"), "sanitized: %s", str_text(&out));
    make_prints(dir, "clean build/base/err.o", &out);
    CHECK(strstr(str_text(&out), "-o build/base/err.o"));
    make_prints(dir, "build/base/err.o", &out);
    /* As a build with CUDA leaves it; then a header changes. */
    snprintf(line, sizeof line,
             "cd '%s' && mkdir -p build/backend/cuda/experts && touch header.h "
             "build/backend/cuda/experts/prefetch.o && "
             "echo build/backend/cuda/experts/prefetch.o: header.h "
             ">build/backend/cuda/experts/prefetch.d",
             dir);
    CHECK(!system(line));
    make_prints(dir, "-n build/backend/cuda/experts/prefetch.o", &out);
    CHECK_MSG(strstr(str_text(&out), "up to date"), "again: %s", str_text(&out));
    snprintf(line, sizeof line, "touch -d '1 hour' '%s/header.h'", dir);
    CHECK(!system(line));
    make_prints(dir, "-n build/backend/cuda/experts/prefetch.o", &out);
    CHECK_MSG(strstr(str_text(&out), "-o build/backend/cuda/experts/prefetch.o"), "%s",
              str_text(&out));
    make_prints(dir, "-n", &out);
    CHECK_MSG(strstr(str_text(&out), "-o build/carat"), "make alone: %s", str_text(&out));
}
