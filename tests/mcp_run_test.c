/* mcp_run_test.c - `carat run --mcp` and `carat mcp`: consent, refusal, Ctrl-C, the bundled model
 * and a fake server (mcp_rig.h). */
#include "tests/mcp_rig.h"
#include "tests/spawn.h"
#include "tests/test.h"
#include "base/map.h"
#include "base/mem.h"

#include <signal.h>
#include <termios.h>
#include <unistd.h>

/* The server of mcp_rig_file has ended. */
static void expect_ended(void)
{
    char *text;
    size_t n;
    err e = {0};
    CHECK_OK(file_read_all(test_temp("pid"), 64, &text, &n, &e), e);
    int pid = atoi(text);
    mem_free(text);
    CHECK(pid > 1);
    for (int i = 0; i < 3000 && !kill(pid, 0); i++)
        usleep(10000);
    CHECK(kill(pid, 0) < 0);
}

static void need_bundled(void)
{
    if (access(test_path("models/demo.gguf"), R_OK))
        test_skip("there is no models/demo.gguf");
}

#define ASK "What is the weather in Oslo?"

TEST(mcp_run_calls_tools_that_are_allowed)
{
    need_bundled();
    const char *file = mcp_rig_file("weather");
    spawned r;
    spawn_carat(&r, NULL,
                ARGS("run", "--greedy", "--mcp", file, "--tools-auto", "get_weather", ASK));
    CHECK_EQ(r.code, 0);
    CHECK_STR(str_text(&r.out), "The result is: 18 degrees and sunny\n");
    CHECK(strstr(str_text(&r.err), "call fake/get_weather {\"city\":\"Oslo\"}"));
    spawned_free(&r);
    expect_ended();
    /* Nobody can be asked. */
    spawn_check(0, "The result is: error: this call was refused",
                "is not run: there is no terminal", ARGS("run", "--greedy", "--mcp", file, ASK));
    spawn_check(1, NULL, "there is no MCP server 'nome'", ARGS("run", "--mcp", "nome", ASK));
    spawn_check(2, NULL, "--tools-auto has no effect without --mcp",
                ARGS("run", "--tools-auto", "x", ASK));
    spawn_check(1, NULL, "--tools-auto rm: no MCP server has such a tool",
                ARGS("run", "--mcp", file, "--tools-auto", "rm", ASK));
}

TEST(mcp_run_asks_before_a_call)
{
    need_bundled();
    char state[512];
    terminal t;
    snprintf(state, sizeof state, "XDG_STATE_HOME=%s", test_temp("state"));
    terminal_open(&t, ARGS(state, "TERM=xterm"),
                  ARGS("run", "--greedy", "-c", "4096", "--mcp", mcp_rig_file("weather")));
    terminal_expect(&t, ">>> ");
    terminal_type(&t, ASK "\r");
    terminal_expect(&t, "{\"city\":\"Oslo\"}");
    terminal_expect(&t, "[n]o: ");
    terminal_type(&t, "\033[200~y\033[201~"); /* a paste is no answer */
    terminal_expect(&t, "\a");
    terminal_type(&t, "n");
    terminal_expect(&t, "no\r\n");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/clear\r");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, ASK "\r");
    terminal_expect(&t, "[n]o: ");
    terminal_type(&t, "a");
    terminal_expect(&t, "always");
    terminal_expect(&t, "The result is: 18 degrees");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/clear\r");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, ASK "\r");
    terminal_expect(&t, "The result is: 18 degrees"); /* without a question */
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/tools\r");
    terminal_expect(&t, "get_weather (fake, without a question)");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/quit\r");
    CHECK_EQ(terminal_close(&t), 0);
    expect_ended();
}

TEST(mcp_run_ctrl_c_ends_a_call_and_twice_the_program)
{
    need_bundled();
    char state[512];
    terminal t;
    snprintf(state, sizeof state, "XDG_STATE_HOME=%s", test_temp("state"));
    terminal_open(&t, ARGS(state, "TERM=xterm"),
                  ARGS("run", "--greedy", "-c", "4096", "--mcp", mcp_rig_file("storm"),
                       "--tools-auto", "get_weather"));
    terminal_expect(&t, ">>> ");
    for (int i = 0; i < 2; i++) {
        terminal_type(&t, ASK "\r");
        terminal_expect(&t, "call fake");
        terminal_expect(&t, "{\"city\":\"Oslo\"}");
        if (i) { /* two signals; of two SIGINTs at once a process sees one */
            kill(t.pid, SIGINT);
            kill(t.pid, SIGTERM);
            break;
        }
        terminal_type(&t, "\x03");
        terminal_expect(&t, "stopped get_weather");
        terminal_expect(&t, ">>> ");
        terminal_type(&t, "/clear\r");
        terminal_expect(&t, ">>> ");
    }
    terminal_close(&t);
    expect_ended();
}

TEST(mcp_run_ctrl_d_at_the_question_refuses)
{
    need_bundled();
    terminal t;
    terminal_open(&t, ARGS("TERM=xterm"),
                  ARGS("run", "--greedy", "--mcp", mcp_rig_file("weather"), ASK));
    terminal_expect(&t, "[n]o: ");
    terminal_type(&t, "\x04");
    terminal_expect(&t, "| stop]"); /* the model was told */
    CHECK_EQ(terminal_close(&t), 0);
    expect_ended();
}

/* Two signals at the question of a single answer: the terminal shows again what is typed. */
TEST(mcp_run_gives_the_terminal_back_from_the_question)
{
    need_bundled();
    AUTO(terminal_close) terminal t;
    struct termios now;
    terminal_open(&t, ARGS("TERM=xterm"),
                  ARGS("run", "--greedy", "--mcp", mcp_rig_file("weather"), ASK));
    terminal_expect(&t, "[n]o: ");
    static const int at_once[] = {SIGSTOP, SIGINT, SIGTERM, SIGCONT};
    for (size_t i = 0; i < 4; i++)
        kill(t.pid, at_once[i]);
    expect_ended();
    CHECK(!tcgetattr(t.fd, &now) && (now.c_lflag & ECHO) && (now.c_lflag & ICANON));
}

TEST(mcp_command_ends_its_server_at_the_second_signal)
{
    terminal t;
    terminal_open(&t, ARGS("TERM=xterm"),
                  ARGS("mcp", "call", mcp_rig_file("clings"), "echo", "{}"));
    for (int i = 0; i < 3000 && access(test_temp("pid"), R_OK); i++)
        usleep(10000);
    usleep(200000);
    kill(t.pid, SIGINT);
    kill(t.pid, SIGTERM);
    terminal_close(&t);
    expect_ended();
}

TEST(mcp_command_lists_and_calls)
{
    const char *file = mcp_rig_file("markup"), *settings = test_temp("config.toml");
    char text[1024];
    spawned r;
    spawn_check(0, "echo([a], [b])\nGives its arguments back.\n", NULL, ARGS("mcp", "tools", file));
    spawn_carat(&r, &(spawn_options){.out_tty = true}, ARGS("mcp", "call", file, "echo", "{}"));
    CHECK_EQ(r.code, 0);
    CHECK(strstr(str_text(&r.out), "<script>") && strstr(str_text(&r.out), "^[]0;title"));
    CHECK(!memchr(r.out.at, 0x1b, r.out.n));
    spawned_free(&r);
    spawn_check(2, NULL, "there is no tool 'rm'", ARGS("mcp", "call", file, "rm"));
    /* The tool itself says that it failed. */
    spawn_check(1, "words", NULL, ARGS("mcp", "call", mcp_rig_file("kinds"), "echo", "{}"));
    spawn_check(2, NULL, "expected list, tools NAME, or call", ARGS("mcp", "start"));
    int n = snprintf(text, sizeof text,
                     "[mcp.one]\ncommand = \"%s\"\nargs = [\"--mcp-fake\", \"plain\"]\n"
                     "[mcp.two]\nurl = \"http://127.0.0.1:1/mcp\"\n",
                     mcp_rig_program());
    test_write(settings, text, (size_t)n);
    spawn_check(0, "two              http://127.0.0.1:1/mcp", NULL,
                ARGS("mcp", "list", "--config", settings));
    spawn_check(0, "42", NULL,
                ARGS("mcp", "call", "one", "add", "{\"a\":2,\"b\":40}", "--config", settings));
    spawn_check(1, NULL, "cannot reach 127.0.0.1:1",
                ARGS("mcp", "tools", "two", "--config", settings));
}
