/* tasks_test.c - tools/tasks.py: its own checks, and a run against two servers of the program that
 * was built beside the tests. Skipped without python3. */
#include "base/str.h"
#include "tests/test.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Runs a line of the shell. Returns its exit status; *out receives what it printed. */
static int run_line(str *out, const char *line)
{
    fflush(stdout);
    FILE *f = popen(line, "r");
    CHECK(f);
    str_cut(out, 0);
    for (int c; (c = fgetc(f)) != EOF;)
        str_putc(out, (char)c);
    int end = pclose(f);
    return WIFEXITED(end) ? WEXITSTATUS(end) : -1;
}

static void need_python(void)
{
    str out = {0};
    bool there =
        run_line(&out, "python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>&1") == 0;
    str_free(&out);
    if (!there)
        test_skip("there is no python3 of version 3.9 or later");
}

PLAIN_TEST(tasks_judges_and_sandbox)
{
    char line[2048];
    AUTO(str_free) str out = {0};
    need_python();
    snprintf(line, sizeof line, "python3 '%s' check 2>&1", test_path("tools/tasks.py"));
    CHECK_MSG(run_line(&out, line) == 0 && !strncmp(str_text(&out), "ok", 2), "%s", str_text(&out));
}

/* Drafts and other threads change no answer, so neither the control nor the comparison may. */
PLAIN_TEST(tasks_finds_nothing_where_nothing_changes)
{
    char line[8192], carat[1024], tool[1024];
    const char *tasks = test_temp("tasks.jsonl");
    AUTO(str_free) str out = {0};
    ssize_t n = readlink("/proc/self/exe", carat, sizeof carat - 16);
    need_python();
    if (access(test_path("models/demo.gguf"), R_OK))
        test_skip("there is no models/demo.gguf");
    snprintf(tool, sizeof tool, "%s", test_path("tools/tasks.py"));
    CHECK(n > 0);
    carat[n] = 0;
    strcpy(strrchr(carat, '/'), "/carat");
    snprintf(
        line, sizeof line,
        "python3 '%s' make --sums 3 --tools 3 --recall 3 --tokens 600 > '%s' && python3 '%s' run "
        "'%s' --carat '%s' --common '--ctx 2k --parallel 2' --a= --b='--draft lookup' "
        "--clients 2 --most-lost 0 2>&1",
        tool, tasks, tool, tasks, carat);
    CHECK_MSG(run_line(&out, line) == 0, "%s", str_text(&out));
    CHECK_MSG(strstr(str_text(&out), "0 lost") && !strstr(str_text(&out), "failed:") &&
                  !strstr(str_text(&out), "other words"),
              "%s", str_text(&out));
}
