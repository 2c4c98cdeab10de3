/* run_tab_test.c - what Tab inserts and lists, for commands, words and files. */
#include "apps/run_tab.h"
#include "tests/test.h"

#include <sys/stat.h>
#include <unistd.h>

static void touch(const char *name)
{
    FILE *f = fopen(name, "w");
    CHECK(f && !fclose(f));
}

static void check_tab(const char *line, const char *insert, size_t n, const char *first)
{
    AUTO(tab_free) tab_choices c;
    CHECK(tab_find(line, strlen(line), &c));
    CHECK_MSG(!strcmp(str_text(&c.insert), insert), "%s: inserts '%s', expected '%s'", line,
              str_text(&c.insert), insert);
    CHECK_MSG(c.n == n, "%s: %zu choices, expected %zu", line, c.n, n);
    if (first)
        CHECK_STR(c.at[0], first);
}

static void enter_files(void)
{
    const char *dir = test_temp("files");
    CHECK(!mkdir(dir, 0700) && !chdir(dir) && !setenv("HOME", dir, 1));
    CHECK(!mkdir("sub", 0700));
    static const char *const names[] = {"notes one.txt", "notes two.txt", "Zebra",
                                        ".hidden",       "sub/deep.c",    "bad\033[2J",
                                        "bad\377",       "m\303\244h",    "m\303\266w"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        touch(names[i]);
}

TEST(tab_completes_commands_and_their_words)
{
    check_tab("/fi", "le ", 1, "file");
    check_tab("/s", "", 6, "save");
    check_tab("/", "", 19, "clear");
    check_tab("/nothing", "", 0, NULL);
    check_tab("/think o", "", 2, "off");
    check_tab("/think of", "f ", 1, "off");
    check_tab("/set temp", " ", 1, "temp");
    check_tab("/set top", "-", 3, "top-k");
    check_tab("/show  set", "tings ", 1, "settings");
    check_tab("/quit x", "", 0, NULL);
    check_tab("", "", 0, NULL);
}

TEST(tab_completes_files)
{
    enter_files();
    check_tab("/file no", "tes\\ ", 2, "notes one.txt");
    check_tab("/file notes\\ o", "ne.txt ", 1, "notes one.txt");
    check_tab("/file 'notes o", "ne.txt' ", 1, "notes one.txt");
    check_tab("/file Zebra \"notes t", "wo.txt\" ", 1, "notes two.txt");
    check_tab("/file su", "b/", 1, "sub/");
    check_tab("/file sub/", "deep.c ", 1, "deep.c");
    check_tab("/file ~/Z", "ebra ", 1, "Zebra");
    check_tab("/load notes o", "ne.txt", 1, "notes one.txt");
    check_tab("/file .h", "idden ", 1, ".hidden");
    check_tab("/file bad", "", 0, NULL);
    check_tab("/file /nowhere/x", "", 0, NULL);
    check_tab("/file m", "", 2, "m\303\244h"); /* they share a byte, and no character */
    check_tab("look at sub/d", "eep.c", 1, "deep.c");
    check_tab("look at ", "", 0, NULL);
    check_tab("/file ", "", 6, "Zebra");
}

static status find_all(void *arg, err *e)
{
    tab_choices c;
    (void)arg;
    if (!tab_find("/file no", 8, &c))
        return err_memory(e, "names", 1);
    tab_free(&c);
    return tab_find("/s", 2, &c) ? (tab_free(&c), OK) : err_memory(e, "names", 1);
}

TEST(tab_without_memory)
{
    enter_files();
    test_every_allocation(find_all, NULL);
}
