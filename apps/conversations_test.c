/* conversations_test.c - kept conversations: numbers, titles, two writers, hostile files, no
 * memory. */
#include "apps/conversations.h"
#include "tests/spawn.h"
#include "tests/talk_json.h"
#include "tests/test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *enter_state(void)
{
    const char *dir = test_temp("state");
    CHECK(!setenv("XDG_STATE_HOME", dir, 1) && !unsetenv("CARAT_NO_HISTORY"));
    return dir;
}

/* The text of a file, which is the title as well. */
static str talk_of(const char *title)
{
    str t = {0};
    str_printf(
        &t,
        "{\"version\":1,\"title\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}",
        title, title);
    CHECK(!t.bad);
    return t;
}

static int64_t keep_new(const char *title)
{
    talk_place place = {0};
    str t = talk_of(title);
    bool moved;
    err e = {0};
    CHECK_OK(conversations_write(&place, &t, &moved, &e), e);
    CHECK(!moved);
    str_free(&t);
    return place.number;
}

TEST(conversations_are_numbered_found_and_removed)
{
    const char *dir = enter_state();
    char path[700];
    struct stat sb;
    AUTO(conversations_free) talk_list l;
    int64_t n;
    err e = {0};
    CHECK_OK(conversations_list(&l, &e), e);
    CHECK_EQ(l.n, 0);
    CHECK_STATUS(conversations_find(NULL, &n, &e), E_ARG);
    CHECK(strstr(e.text, "no conversation is kept"));
    CHECK_EQ(keep_new("red fish"), 1);
    CHECK_EQ(keep_new("Blue fish"), 2);
    CHECK_EQ(keep_new("bird"), 3);
    err_clear(&e);
    CHECK_OK(conversations_find(NULL, &n, &e), e);
    CHECK_EQ(n, 3);
    CHECK_OK(conversations_find("blue", &n, &e), e);
    CHECK_EQ(n, 2);
    CHECK_OK(conversations_find("1", &n, &e), e);
    CHECK_EQ(n, 1);
    n = 77;
    CHECK_STATUS(conversations_find("fish", &n, &e), E_ARG);
    CHECK_MSG(strstr(e.text, "2 conversations") && strstr(e.text, "2, 1"), "%s", e.text);
    err_clear(&e);
    CHECK_STATUS(conversations_find("9", &n, &e), E_ARG);
    CHECK_STATUS(conversations_find("cat", &n, NULL), E_ARG);
    CHECK_EQ(n, 77);
    snprintf(path, sizeof path, "%s/carat/conversations", dir);
    CHECK(!stat(path, &sb) && (sb.st_mode & 0777) == 0700);
    snprintf(path, sizeof path, "%s/carat/conversations/3.json", dir);
    CHECK(!stat(path, &sb) && (sb.st_mode & 0777) == 0600);
    /* A number that was removed is not given again. */
    CHECK_STATUS(conversations_remove(3, NULL), OK);
    CHECK_STATUS(conversations_remove(3, NULL), E_ARG);
    CHECK_EQ(keep_new("cat"), 4);
    CHECK_OK(conversations_list(&l, (err_clear(&e), &e)), e);
    CHECK(l.n == 3 && l.at[0].number == 4);
}

TEST(conversations_changed_by_another_program_become_new_ones)
{
    enter_state();
    talk_place mine = {0}, theirs;
    str t = talk_of("first");
    kept_talk read;
    bool moved;
    err e = {0};
    CHECK_OK(conversations_write(&mine, &t, &moved, &e), e);
    CHECK_OK(conversations_write(&mine, &t, &moved, &e), e);
    CHECK(!moved && mine.number == 1);
    CHECK_OK(conversations_read(1, &read, &theirs, &e), e);
    CHECK_STR(read.title, "first");
    CHECK_TALK(&read.talk, "[{\"role\":\"user\",\"content\":\"first\"}]");
    CHECK_OK(conversations_write(&theirs, &t, &moved, &e), e);
    CHECK(!moved && theirs.number == 1);
    CHECK_OK(conversations_write(&mine, &t, &moved, &e), e);
    CHECK(moved && mine.number == 2);
    CHECK_OK(conversations_remove(2, &e), e);
    CHECK_OK(conversations_write(&mine, &t, &moved, &e), e);
    CHECK(moved && mine.number == 3);
    kept_free(&read);
    str_free(&t);
}

/* Eight programs at once: every conversation has a number and a file of its own. */
TEST(conversations_of_many_programs_at_once)
{
    enter_state();
    enum { PROGRAMS = 8, EACH = 10 };
    conversations_wait_ms = PATIENCE_MS; /* a lock is given to no one in particular */
    fflush(stdout);
    for (int i = 0; i < PROGRAMS; i++)
        if (!fork()) {
            for (int k = 0; k < EACH; k++)
                keep_new("many");
            _exit(0);
        }
    for (int i = 0, how; i < PROGRAMS; i++)
        CHECK(wait(&how) > 0 && WIFEXITED(how) && !WEXITSTATUS(how));
    AUTO(conversations_free) talk_list l;
    err e = {0};
    CHECK_OK(conversations_list(&l, &e), e);
    CHECK_EQ(l.n, PROGRAMS * EACH);
    for (size_t i = 0; i < l.n; i++) {
        kept_talk k;
        CHECK_OK(conversations_read(l.at[i].number, &k, NULL, &e), e);
        kept_free(&k);
    }
}

TEST(conversations_beyond_the_limit_go_by_age)
{
    const char *dir = enter_state();
    char path[700];
    struct timespec times[2];
    keep_new("old");
    for (int i = 2; i <= TALKS_MAX + 3; i++) {
        snprintf(path, sizeof path, "%s/carat/conversations/%d.json", dir, i);
        FILE *f = fopen(path, "w");
        CHECK(f && fputs("{\"messages\":[]}", f) > 0 && !fclose(f));
        times[0] = times[1] = (struct timespec){1000 + i, 0};
        CHECK(!utimensat(AT_FDCWD, path, times, 0));
    }
    CHECK_EQ(keep_new("new"), TALKS_MAX + 4);
    AUTO(conversations_free) talk_list l;
    err e = {0};
    CHECK_OK(conversations_list(&l, &e), e);
    CHECK(l.n == TALKS_MAX && l.at[0].number == TALKS_MAX + 4 && l.at[1].number == 1);
    CHECK_EQ(l.at[l.n - 1].number, 6);
}

TEST(conversations_that_are_damaged_are_told)
{
    const char *dir = enter_state();
    static const char *const junk[] = {"", "[]", "{", "{\"messages\":1}", "\xff\xfe"};
    char path[700];
    keep_new("good");
    for (size_t i = 0; i < sizeof junk / sizeof *junk; i++) {
        snprintf(path, sizeof path, "%s/carat/conversations/%zu.json", dir, i + 10);
        FILE *f = fopen(path, "w");
        CHECK(f && fputs(junk[i], f) >= 0 && !fclose(f));
        kept_talk k;
        err e = {0};
        CHECK_STATUS(conversations_read((int64_t)i + 10, &k, NULL, &e), E_FORMAT);
        CHECK(!k.all && e.text[0]);
    }
    static const char *const others[] = {"0.json",     "01.json", "x.json",
                                         "5.json.tmp", "-5.json", "99999999999999999999.json"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(path, sizeof path, "%s/carat/conversations/%s", dir, others[i]);
        fclose(fopen(path, "w"));
    }
    snprintf(path, sizeof path, "%s/carat/conversations/77.json", dir);
    CHECK(!symlink("/etc/passwd", path));
    snprintf(path, sizeof path, "%s/carat/conversations/.lock", dir);
    FILE *f = fopen(path, "w");
    CHECK(f && fputs("999999999999999999999999999", f) > 0 && !fclose(f));
    talk_list l;
    err e = {0};
    CHECK_OK(conversations_list(&l, &e), e);
    CHECK_EQ(l.n, 1 + sizeof junk / sizeof *junk);
    conversations_free(&l);
    int64_t n;
    CHECK_OK(conversations_find("good", &n, &e), e);
    CHECK_EQ(keep_new("next"), 15);
}

TEST(conversations_without_a_place)
{
    talk_list l;
    err e = {0};
    CHECK(!setenv("XDG_STATE_HOME", "relative", 1) && !setenv("HOME", "", 1));
    CHECK_STATUS(conversations_list(&l, &e), E_UNSUPPORTED);
    CHECK(strstr(e.text, "no place for conversations"));
    CHECK(!setenv("XDG_STATE_HOME", "/proc/nowhere", 1));
    str t = talk_of("x");
    talk_place place = {0};
    bool moved = true;
    CHECK_STATUS(conversations_write(&place, &t, &moved, NULL), E_IO);
    CHECK(moved);
    str_free(&t);
}

static status write_and_read(void *arg, err *e)
{
    talk_place place = {0};
    kept_talk read;
    int64_t n;
    bool moved;
    status st = conversations_write(&place, arg, &moved, e);
    if (st || (st = conversations_find("last", &n, e)) ||
        (st = conversations_read(n, &read, NULL, e)))
        return st;
    kept_free(&read);
    return OK;
}

TEST(conversations_without_memory)
{
    enter_state();
    str t = talk_of("short of memory");
    test_every_allocation(write_and_read, &t);
    str_free(&t);
}

/* As carat wrote files before conversations were values: by another writer, with blanks. What is
 * read is freed before its copy is looked at. */
TEST(conversations_of_older_programs_are_read)
{
    static const char old[] =
        "{\n \"version\": 1,\n \"title\": \"a title\",\n \"model\": \"demo\",\n \"open\": "
        "\"/m.gguf\",\n \"tools\": \"[]\",\n \"messages\": [\n  {\"role\": \"system\", "
        "\"content\": "
        "\"Be short.\"},\n  {\"role\": \"user\", \"content\": [{\"type\": \"image_url\", "
        "\"image_url\": "
        "{\"url\": \"data:image/png;base64,AA==\"}, \"name\": \"a.png\"}, {\"type\": \"text\", "
        "\"text\": \"See picture 1\", \"spoken\": [[4, 0]]}]},\n  {\"role\": \"assistant\", "
        "\"content\": \"\", \"reasoning_content\": \"Look.\", \"tool_calls\": [{\"id\": "
        "\"call_1_0\", "
        "\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"n\\\": "
        "12345678901234567890}\"}}]},\n  {\"role\": \"tool\", \"tool_call_id\": \"call_1_0\", "
        "\"name\": "
        "\"f\", \"content\": \"x\\u0000y\"}\n ]\n}\n";
    static const char want[] =
        "[{\"role\":\"system\",\"content\":\"Be "
        "short.\"},{\"role\":\"user\",\"content\":[{\"type\":"
        "\"image\",\"name\":\"a.png\"},{\"type\":\"text\",\"text\":\"See picture 1\"}]},{\"role\":"
        "\"assistant\",\"reasoning_content\":\"Look.\",\"content\":\"\",\"tool_calls\":[{\"id\":"
        "\"call_1_0\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
        "\"{\\\"n\\\": "
        "12345678901234567890}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"call_1_0\","
        "\"name\":\"f\",\"content\":\"x\\u0000y\"}]";
    kept_talk k;
    arena mem = {0};
    carat_talk copy = {.mem = &mem};
    err e = {0};
    CHECK_OK(conversations_parse(&k, old, sizeof old - 1, "old", false, &e), e);
    CHECK(!strcmp(k.title, "a title") && !strcmp(k.model, "demo"));
    CHECK(!strcmp(k.open, "/m.gguf") && !strcmp(k.tools, "[]"));
    for (size_t i = 0; i < k.talk.n; i++)
        talk_put_turn(&copy, &k.talk.turn[i]);
    kept_free(&k);
    CHECK(!copy.bad);
    CHECK_TALK(&copy, want);
    /* Parts of kinds that carat does not know are written as they were. */
    static const char odd[] =
        "[{\"role\":\"user\",\"content\":[{\"type\":\"smell\",\"of\":[1,{\"a\":2.50}]}]}]";
    CHECK_STATUS(conversations_parse(&k, odd, sizeof odd - 1, "odd", false, &e), E_FORMAT);
    err_clear(&e);
    CHECK_OK(conversations_parse(&k, odd, sizeof odd - 1, "odd", true, &e), e);
    copy.n = 0;
    talk_put_turn(&copy, &k.talk.turn[0]);
    kept_free(&k);
    CHECK_TALK(&copy, odd);
    arena_free(&mem);
}
