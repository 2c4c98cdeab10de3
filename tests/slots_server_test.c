/* slots_server_test.c - /slots/N?action=save, restore and erase: a conversation goes on in another
 * slot and another server without being computed again, and nothing else gets into a slot.
 */
#include "tests/server_rig.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COUNT                                                                                      \
    "\"prompt\":\"one two three four five six seven eight nine ten eleven twelve\","               \
    "\"temperature\":0,\"n_predict\":"

static const char *directory(void)
{
    static char dir[1024];
    snprintf(dir, sizeof dir, "%s", test_temp("slots"));
    return dir;
}

/* Posts, and checks the status and a part of the body. */
static void says(const served *s, const char *path, const char *body, int want, const char *text)
{
    AUTO(response_free) response r;
    http_post(&r, s, path, body);
    CHECK_MSG(r.status == want && strstr(str_text(&r.body), text), "%s %s: %d %s, expected %d %s",
              path, body, r.status, str_text(&r.body), want, text);
}

/* The tokens of the prompt that were in the cache, and the answer's text. A cache with a window
 * goes back one token and no more, so the slot must not hold an answer when it is saved. */
static int64_t cached(const served *s, const char *n_predict, char *text, size_t cap)
{
    AUTO(response_free) response r;
    char body[256];
    snprintf(body, sizeof body, "{" COUNT "%s}", n_predict);
    http_post(&r, s, "/completion", body);
    CHECK_EQ(r.status, 200);
    const char *n = strstr(r.body.at, "\"cache_n\":"), *t = strstr(r.body.at, "\"content\":");
    CHECK_MSG(n && t, "%s", r.body.at);
    snprintf(text, cap, "%.60s", t);
    int64_t v = strtoll(n + strlen("\"cache_n\":"), NULL, 10);
    return v;
}

/* Saves slot 0. Returns how many tokens it has. */
static int64_t saved(const served *s, const char *name)
{
    AUTO(response_free) response r;
    char body[64];
    snprintf(body, sizeof body, "{\"filename\":\"%s\"}", name);
    http_post(&r, s, "/slots/0?action=save", body);
    const char *n = strstr(str_text(&r.body), "\"n_saved\":");
    CHECK_MSG(r.status == 200 && n && strstr(n, "\"n_written\":"), "%s", str_text(&r.body));
    int64_t v = strtoll(n + strlen("\"n_saved\":"), NULL, 10);
    return v;
}

TEST(slots_are_saved_restored_and_erased)
{
    AUTO(stop) served s;
    char first[64], again[64], file[1200], link[1200];
    struct stat sb;
    start_toy(&s, ARGS("--parallel", "1", "--checkpoint-mb", "0", "--slot-save-path", directory()));
    says(&s, "/slots/0?action=save", "{\"filename\":\"a\"}", 400, "without tokens");
    CHECK_EQ(cached(&s, "4", first, sizeof first), 0);
    says(&s, "/slots/0?action=erase", "{}", 200, "\"n_erased\":");
    CHECK_EQ(cached(&s, "1", again, sizeof again), 0);
    CHECK(saved(&s, "a.bin") > 10);
    says(&s, "/slots/0?action=erase", "", 200, "\"id_slot\":0");
    says(&s, "/slots/0?action=restore", "{\"filename\":\"a.bin\"}", 200, "\"n_restored\":");
    CHECK(cached(&s, "4", again, sizeof again) > 10);
    CHECK_STR(again, first);
    /* A slot that answers is waited for. */
    str seen = {0};
    int fd = http_begin(
        &s, "/completion",
        "{\"prompt\":\"one "
        "two\",\"temperature\":0,\"n_predict\":200,\"ignore_eos\":true,\"stream\":true}");
    CHECK(http_read_until(fd, &seen, "data:"));
    CHECK(saved(&s, "long") > 200);
    close(fd);
    str_free(&seen);
    int64_t n = saved(&s, "cut");
    /* What is no file of a slot, and no slot. */
    static const char *const bad[] = {"{}",
                                      "{\"filename\":\"\"}",
                                      "{\"filename\":\"../a.bin\"}",
                                      "{\"filename\":\"/etc/passwd\"}",
                                      "{\"filename\":\"..\"}",
                                      "{\"filename\":\"a\\nb\"}",
                                      "{\"filename\":7}",
                                      "[]",
                                      "{"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        says(&s, "/slots/0?action=save", bad[i], 400, "error");
        says(&s, "/slots/0?action=restore", bad[i], 400, "error");
    }
    says(&s, "/slots/0?action=restore", "{\"filename\":\"b\"}", 400, "b");
    says(&s, "/slots/1?action=erase", "{}", 400, "there is no slot 1");
    says(&s, "/slots/-1?action=erase", "{}", 400, "no number of a slot");
    says(&s, "/slots/0x?action=erase", "{}", 400, "no number of a slot");
    says(&s, "/slots/0", "{}", 400, "save, restore or erase");
    says(&s, "/slots/0?action=look", "{}", 400, "save, restore or erase");
    snprintf(file, sizeof file, "%s/junk", directory());
    test_write(file, "no snapshot", 11);
    says(&s, "/slots/0?action=restore", "{\"filename\":\"junk\"}", 400, "junk");
    /* A file that was cut, and a link out of the directory. */
    snprintf(file, sizeof file, "%s/cut", directory());
    CHECK(!stat(file, &sb) && !truncate(file, sb.st_size - 1));
    says(&s, "/slots/0?action=restore", "{\"filename\":\"cut\"}", 400, "cut");
    snprintf(link, sizeof link, "%s/link", directory());
    CHECK(!symlink("/etc/passwd", link));
    says(&s, "/slots/0?action=restore", "{\"filename\":\"link\"}", 400, "link");
    CHECK_EQ(saved(&s, "after"), n); /* nothing is lost */
    stop(&s);
    /* Another program with the same model, and another slot. */
    start_toy(&s, ARGS("--parallel", "2", "--checkpoint-mb", "0", "--slot-save-path", directory()));
    says(&s, "/slots/1?action=restore", "{\"filename\":\"a.bin\"}", 200, "\"n_read\":");
    CHECK(cached(&s, "4", again, sizeof again) > 10);
    CHECK_STR(again, first);
    stop(&s);
    /* Another model, and another format of keys. */
    served_start(&s, ARGS("-m", toy_model_write(&(toy_model_file){.seed = 9}), "--ctx", "512", "-t",
                          "1", "--slot-save-path", directory()));
    says(&s, "/slots/0?action=restore", "{\"filename\":\"a.bin\"}", 400,
         "saved with another model");
    stop(&s);
    start_toy(&s, ARGS("--kv-type", "q8_0", "--slot-save-path", directory()));
    says(&s, "/slots/0?action=restore", "{\"filename\":\"a.bin\"}", 400,
         "saved with other formats of keys and values");
}

TEST(slots_are_refused_without_a_directory)
{
    AUTO(stop) served s;
    start_toy(&s, NULL);
    says(&s, "/slots/0?action=save", "{\"filename\":\"a\"}", 501, "--slot-save-path DIR");
    says(&s, "/slots/0?action=erase", "{}", 200, "\"n_erased\":0");
}

/* The file of a slot has no keys of a drafter. The answer after a restore is the same, with drafts
 * that were computed anew. */
TEST(slots_are_restored_beside_a_drafter)
{
    served s;
    char first[64], again[64];
    start_toy(&s, ARGS("--parallel", "1", "--checkpoint-mb", "0", "--draft", toy_model_write(NULL),
                       "--slot-save-path", directory()));
    CHECK_EQ(cached(&s, "60,\"ignore_eos\":true", first, sizeof first), 0);
    says(&s, "/slots/0?action=erase", "{}", 200, "\"n_erased\":");
    CHECK_EQ(cached(&s, "1", again, sizeof again), 0);
    CHECK(saved(&s, "drafts") > 10);
    /* Another conversation in the slot, so the drafter's keys are of that one. */
    says(&s, "/completion", "{\"prompt\":\"other words than those\",\"n_predict\":9}", 200,
         "content");
    says(&s, "/slots/0?action=restore", "{\"filename\":\"drafts\"}", 200, "\"n_restored\":");
    CHECK(cached(&s, "60,\"ignore_eos\":true", again, sizeof again) > 10);
    CHECK_STR(again, first);
    stop(&s);
}
