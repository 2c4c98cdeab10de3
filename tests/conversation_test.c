/* conversation_test.c - conversations of carat run on a terminal, key by key: commands, pastes, the
 * history. terminal_test.c has files, settings and kept conversations.
 */
#include "tests/spawn.h"
#include "tests/test.h"
#include "tests/toy_model.h"
#include "base/map.h"
#include "base/mem.h"

#include <sys/stat.h>

/* The line about a round begins a line, though the answer is in the middle of one. */
TEST(cli_rounds_are_traced_in_lines_of_their_own)
{
    terminal t;
    terminal_open(&t, ARGS("TERM=xterm", "NO_COLOR=1"),
                  ARGS("run", "--greedy", "--draft", "mtp", "--spec-trace", "-n", "60",
                       "Count from 1 to 60."));
    terminal_expect(&t, "\n[mtp: ");
    terminal_expect(&t, "\n[mtp: ");
    CHECK_EQ(terminal_close(&t), 0);
}

TEST(cli_conversation_on_a_terminal)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 1 << 20});
    char state[512], saved[600];
    terminal t;
    snprintf(state, sizeof state, "XDG_STATE_HOME=%s", test_temp("state"));
    snprintf(saved, sizeof saved, "/save %s\r", test_temp("saved.json"));
    terminal_open(
        &t, ARGS(state, "TERM=xterm", "NO_COLOR=1"),
        ARGS("run", "-m", m, "--raw", "--seed", "1", "-c", "65536", "--ignore-eog", "-n", "30"));
    terminal_expect(&t, "/help lists the commands");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/help\r");
    terminal_expect(&t, "/quit");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "half a line\x03"); /* drops it */
    terminal_expect(&t, "Ctrl-D or /quit leaves");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/nonsense\r");
    terminal_expect(&t, "there is no command /nonsense");
    terminal_type(&t, "/save \r");
    terminal_expect(&t, "/save needs a file");
    terminal_type(&t, "/temp hot\r");
    terminal_expect(&t, "expected a number");
    terminal_type(&t, "/seed 1e12\r");
    terminal_expect(&t, "expected a whole number from 0 to 4294967295");
    terminal_type(&t, "/temp 0.5\r");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/tokens the cat\r");
    terminal_expect(&t, " tokens\r\n");
    terminal_type(&t, "Hello\r");
    terminal_expect(&t, "answer 30 tokens");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "one \\\r");
    terminal_expect(&t, "... ");
    terminal_type(&t, "two\r");
    terminal_expect(&t, "answer 30 tokens");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "\"\"\"three\r");
    terminal_expect(&t, "... ");
    terminal_type(&t, "four\"\"\"\r");
    terminal_expect(&t, "answer 30 tokens");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/limit 0\r");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "Go on\r");
    terminal_expect_answer(&t);
    terminal_type(&t, "\x03"); /* a signal now: it stops the answer, not the program */
    terminal_expect(&t, "stopped");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/stats\r");
    terminal_expect(&t, "last turn");
    terminal_type(&t, saved);
    terminal_expect(&t, "saved ");
    terminal_type(&t, "/undo\r");
    terminal_expect(&t, "took back");
    terminal_type(&t, "/clear\r");
    terminal_expect(&t, "is empty");
    terminal_type(&t, "/quit\r");
    CHECK_EQ(terminal_close(&t), 0);
    AUTO_MEM char *history;
    size_t n;
    err e = {0};
    CHECK_OK(file_read_all(test_temp("state/carat/history"), 1 << 20, &history, &n, &e), e);
    CHECK(!strstr(history, "Hello") && strstr(history, "/quit")); /* after /clear */
}

/* The second to end keeps the history of the first. */
TEST(cli_two_conversations_at_once_keep_both_histories)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 1 << 20});
    char state[512], *history;
    terminal t, other;
    size_t n;
    err e = {0};
    snprintf(state, sizeof state, "XDG_STATE_HOME=%s", test_temp("state"));
    terminal_open(&t, ARGS(state, "TERM=xterm", "NO_COLOR=1"), ARGS("run", "-m", m, "--raw"));
    terminal_expect(&t, ">>> ");
    terminal_open(&other, ARGS(state, "TERM=xterm", "NO_COLOR=1"), ARGS("run", "-m", m, "--raw"));
    terminal_expect(&other, ">>> ");
    terminal_type(&other, "/temp 0.25\r");
    terminal_expect(&other, ">>> ");
    terminal_type(&other, "/quit\r");
    CHECK_EQ(terminal_close(&other), 0);
    terminal_type(&t, "/temp 0.75\r");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/quit\r");
    CHECK_EQ(terminal_close(&t), 0);
    CHECK_OK(file_read_all(test_temp("state/carat/history"), 1 << 20, &history, &n, &e), e);
    CHECK(strstr(history, "0.25") && strstr(history, "0.75"));
    mem_free(history);
    struct stat sb;
    CHECK(!stat(test_temp("state/carat/history"), &sb) && (sb.st_mode & 077) == 0);
}

TEST(cli_a_paste_of_several_lines_is_one_message)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 1 << 20});
    char state[512], saved[600], *text;
    size_t n;
    err e = {0};
    terminal t;
    snprintf(state, sizeof state, "XDG_STATE_HOME=%s", test_temp("state"));
    snprintf(saved, sizeof saved, "/save %s\r", test_temp("pasted.json"));
    terminal_open(&t, ARGS(state, "TERM=xterm", "NO_COLOR=1", "LC_ALL=C"),
                  ARGS("run", "-m", m, "--seed", "1", "-c", "65536", "--ignore-eog", "-n", "5"));
    terminal_expect(&t, "\033[?2004h");
    terminal_type(&t, "\033[200~early\rbird\033[201~"); /* while the model loads */
    terminal_expect(&t, ">>> ");
    terminal_expect(&t, "bird");
    terminal_type(&t, "\r");
    terminal_expect(&t, "answer 5 tokens");
    terminal_expect(&t, ">>> ");
    /* CR, CR LF and LF as line ends; a bell and a colour, which are dropped. Typed, the first
     * line would be a command and the last one would ask for a further line. */
    terminal_type(&t, "\033[200~/quit\rtwo \303\251\007\033[31m\r\nthree\n\\\033[201~");
    terminal_expect(&t, "three");
    terminal_type(&t, "!\r");
    terminal_expect(&t, "answer 5 tokens");
    terminal_expect(&t, ">>> ");
    /* A paste within a line is inserted. A paste of one line may be a command. */
    terminal_type(&t, "a \033[200~b\rc\033[201~ d\r");
    terminal_expect(&t, "answer 5 tokens");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "\033[200~/stats\033[201~\r");
    terminal_expect(&t, "last turn");
    terminal_expect(&t, ">>> ");
    /* A paste during an answer. */
    terminal_type(&t, "/limit 0\r");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "Go on\r");
    terminal_expect_answer(&t);
    terminal_type(&t, "\033[200~x\ry\033[201~");
    terminal_type(&t, "\x03");
    terminal_expect(&t, "stopped");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/limit 5\x01\x0b"); /* Ctrl-A, Ctrl-K: deletes the line */
    terminal_type(&t, "/limit 5\r");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "\033[200~x\ry\033[201~\r");
    terminal_expect(&t, "answer 5 tokens");
    terminal_type(&t, saved);
    terminal_expect(&t, "saved ");
    terminal_type(&t, "/quit\r");
    terminal_expect(&t, "\033[?2004l");
    CHECK_EQ(terminal_close(&t), 0);
    CHECK_OK(file_read_all(test_temp("pasted.json"), 1 << 20, &text, &n, &e), e);
    CHECK_MSG(strstr(text, "\"/quit\\ntwo \303\251[31m\\nthree\\n\\\\!\""), "%s", text);
    CHECK_MSG(strstr(text, "\"early\\nbird\""), "%s", text);
    CHECK_MSG(strstr(text, "\"a b\\nc d\""), "%s", text);
    CHECK_MSG(strstr(text, "\"x\\ny\""), "%s", text);
    mem_free(text);
}

TEST(cli_end_of_input_leaves_the_conversation)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    char state[512];
    terminal t;
    snprintf(state, sizeof state, "XDG_STATE_HOME=%s", test_temp("state"));
    terminal_open(&t, ARGS(state, "TERM=dumb"), ARGS("run", "-m", m, "--raw"));
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "\x04");
    CHECK_EQ(terminal_close(&t), 0);
}
