/* test.h - one registry of tests, each run in its own process.
 *
 *     TEST(ring_keeps_every_live_key) { CHECK_EQ(lost_keys(), 0); }
 *
 * A failed CHECK prints where and what, and ends that test only. test_seed() is fixed per test;
 * TEST_SEED= in the environment repeats a printed one. test_path() names files beside the sources.
 */
#ifndef TESTS_TEST_H
#define TESTS_TEST_H

#include "base/err.h"
#include "tests/auto.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sanitizer builds take many times as long, and their memory grows in another way. */
#if defined(__has_feature) /* clang */
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#elif __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

#if defined(__SANITIZE_ADDRESS__)
enum { ADDRESSES = 1 };
#else
enum { ADDRESSES = 0 };
#endif

/* ThreadSanitizer takes longest: tests of arithmetic show it a part of their shapes. */
#if defined(__SANITIZE_THREAD__)
enum { RACES = 1 };
#else
enum { RACES = 0 };
#endif

/* The suite has two lengths. The short one runs with every change: a test shows itself a part of
 * its shapes, and LONG_TESTs are left out. TEST_LONG=1 in the environment asks for the long one.
 * Sanitizer builds always show a part, because a fault of memory shows at the first visit of a
 * line. */
bool test_brief(void);

/* How often a test repeats itself with other random draws. */
static inline int test_trials(int n)
{
    return test_brief() ? (n + 4) / 5 : n;
}

/* In which suites a test is. */
typedef enum { TEST_ALWAYS, TEST_LONG, TEST_PLAIN } test_when;

typedef struct test_case {
    const char *name, *file;
    void (*fn)(void);
    test_when when;
    float seconds; /* of the last run, for the order */
    struct test_case *next;
} test_case;

void test_register(test_case *t);
_Noreturn void test_fail(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void test_skip(const char *why); /* counted and named; never silent */
uint64_t test_seed(void);
/* root/rel, where root is the source tree; valid until the next call. */
const char *test_path(const char *rel);
/* A fresh path in this test's own temporary directory, removed afterwards. Valid until the test
 * ends. */
const char *test_temp(const char *name);
/* Writes a file, whole. */
void test_write(const char *path, const void *bytes, size_t n);
void test_write_in(const char *dir, const char *name, const void *bytes, size_t n);
/* Calls fn(arg) with the 1st, 2nd, ... allocation failing until it succeeds without a failure.
 * fn returns a status; every failing round must return E_MEMORY and leak nothing (ASan looks). */
void test_every_allocation(status (*fn)(void *arg, err *e), void *arg);

/* The words of a command line, ending with NULL. */
#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

#define TEST(id) TEST_OF(id, TEST_ALWAYS)
/* A test that takes seconds, and whose mistakes shorter tests see too: in the long suite alone. */
#define LONG_TEST(id) TEST_OF(id, TEST_LONG)
/* A test of results that takes seconds, and whose lines shorter tests go through too: under
 * AddressSanitizer in the long suite alone. tools/mutate_places.py --plain says which. */
#define PLAIN_TEST(id) TEST_OF(id, TEST_PLAIN)
#define TEST_OF(id, when)                                                                          \
    static void test_##id(void);                                                                   \
    __attribute__((constructor)) static void test_reg_##id(void)                                   \
    {                                                                                              \
        static test_case t = {#id, __FILE__, test_##id, when, 0, NULL};                            \
        test_register(&t);                                                                         \
    }                                                                                              \
    static void test_##id(void)

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond))                                                                               \
            test_fail(__FILE__, __LINE__, "%s", #cond);                                            \
    } while (0)
#define CHECK_MSG(cond, ...)                                                                       \
    do {                                                                                           \
        if (!(cond))                                                                               \
            test_fail(__FILE__, __LINE__, __VA_ARGS__);                                            \
    } while (0)
#define CHECK_EQ(a, b)                                                                             \
    do {                                                                                           \
        long long a_ = (long long)(a), b_ = (long long)(b);                                        \
        if (a_ != b_)                                                                              \
            test_fail(__FILE__, __LINE__, "%s is %lld, expected %s = %lld", #a, a_, #b, b_);       \
    } while (0)
#define CHECK_STR(a, b)                                                                            \
    do {                                                                                           \
        const char *a_ = (a), *b_ = (b);                                                           \
        if (!a_ || !b_ || strcmp(a_, b_))                                                          \
            test_fail(__FILE__, __LINE__, "%s is \"%s\", expected \"%s\"", #a, a_ ? a_ : "NULL",   \
                      b_ ? b_ : "NULL");                                                           \
    } while (0)
#define CHECK_NEAR(a, b, tol)                                                                      \
    do {                                                                                           \
        double a_ = (a), b_ = (b);                                                                 \
        if (!(fabs(a_ - b_) <= (tol)))                                                             \
            test_fail(__FILE__, __LINE__, "%s is %.9g, expected %.9g within %g", #a, a_, b_,       \
                      (double)(tol));                                                              \
    } while (0)
/* For calls that take an err: CHECK_OK(call(..., &e), e). */
#define CHECK_OK(call, e)                                                                          \
    do {                                                                                           \
        status st_ = (call);                                                                       \
        if (st_)                                                                                   \
            test_fail(__FILE__, __LINE__, "%s: %s: %s", #call, carat_status_name(st_), (e).text);  \
    } while (0)
#define CHECK_STATUS(call, want)                                                                   \
    do {                                                                                           \
        status st_ = (call), want_ = (want);                                                       \
        if (st_ != want_)                                                                          \
            test_fail(__FILE__, __LINE__, "%s gives %s, expected %s", #call,                       \
                      carat_status_name(st_), carat_status_name(want_));                           \
    } while (0)

#endif
