/* terminal_test.c - what a person does with `carat run`: files in messages, settings, one object.
 */
#include "tests/http_client.h"
#include "tests/spawn.h"
#include "tests/test.h"
#include "tests/toy_model.h"
#include "base/map.h"
#include "base/mem.h"

#include <errno.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *put_file(const char *name, const char *bytes, size_t n)
{
    const char *path = test_temp(name);
    test_write(path, bytes, n);
    return path;
}

static char *get_file(const char *path)
{
    char *text;
    size_t n;
    err e = {0};
    CHECK_OK(file_read_all(path, 1 << 20, &text, &n, &e), e);
    return text;
}

static void expect_run(int code, const char *out, const char *errs, const char *in,
                       const char *const *args)
{
    AUTO(spawned_free) spawned r;
    spawn_carat(&r, &(spawn_options){.in = in}, args);
    CHECK_MSG(r.code == code, "exit status %d, expected %d: %s", r.code, code, str_text(&r.err));
    CHECK_MSG(!out || spawned_says(&r.out, out), "stdout is \"%s\", expected \"%s\" in it",
              str_text(&r.out), out);
    CHECK_MSG(!errs || spawned_says(&r.err, errs), "stderr is \"%s\", expected \"%s\" in it",
              str_text(&r.err), errs);
}

/* A conversation with a state directory of the test's own. */
static void converse(terminal *t, const char *in, const char *const *args)
{
    static char state[512];
    snprintf(state, sizeof state, "XDG_STATE_HOME=%s", test_temp("state"));
    terminal_open_piped(t, in, ARGS(state, "TERM=xterm", "NO_COLOR=1"), args);
}

/* Types a line at the prompt and waits for what it says. */
static void say(terminal *t, const char *line, const char *answer)
{
    terminal_expect(t, ">>> ");
    terminal_type(t, line);
    terminal_type(t, "\r");
    terminal_expect(t, answer);
}

static void save_and_quit(terminal *t, const char *path)
{
    char line[700];
    snprintf(line, sizeof line, "/save %s", path);
    say(t, line, "saved");
    terminal_expect(t, ">>> ");
    terminal_type(t, "/bye\r");
    CHECK_EQ(terminal_close(t), 0);
}

TEST(run_files_that_are_no_text_are_refused)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    static const struct {
        const char *bytes;
        size_t n;
        const char *says;
    } bad[] = {{"GIF89a\0\1", 8, "a GIF file; pictures are read from PNG"},
               {"a text\0\1", 8, "byte 7 is 0x00"},
               {"ok\n\xff\xd8", 5, "byte 4 is 0xff"},
               {"\xff\xfeh\0", 4, "UTF-16"},
               {"\xed\xa0\x80", 3, "byte 1 is 0xed"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_run(1, NULL, bad[i].says, "",
                   ARGS("run", "-m", m, "-f", put_file("bad", bad[i].bytes, bad[i].n), "hi"));
    expect_run(1, NULL, "a directory", "", ARGS("run", "-m", m, "-f", "/tmp", "hi"));
    expect_run(1, NULL, "not a regular file", "", ARGS("run", "-m", m, "-f", "/dev/zero", "hi"));
    expect_run(1, NULL, "/nowhere", "", ARGS("run", "-m", m, "-f", "/nowhere", "hi"));
    const char *fifo = test_temp("fifo"), *large = test_temp("large");
    CHECK(!mkfifo(fifo, 0600));
    expect_run(1, NULL, "not a regular file", "", ARGS("run", "-m", m, "-f", fifo, "hi"));
    expect_run(1, NULL, "not a regular file", "", ARGS("run", "-m", fifo, "hi"));
    put_file("large", "x", 1);
    CHECK(!truncate(large, (16 << 20) + 1));
    expect_run(1, NULL, "more than 16777216 bytes", "", ARGS("run", "-m", m, "-f", large, "hi"));
}

/* A pattern of the shell gives words after the first; they are files too, the prompt is not. */
TEST(run_files_stand_in_front_of_the_words)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    const char *a = put_file("a b.txt", "\xef\xbb\xbfone\n", 7),
               *b = put_file("b.txt", "```two````", 10);
    const char *saved = test_temp("saved.json");
    char want[3000], line[1200];
    terminal t;
    converse(&t, NULL, ARGS("run", "-m", m, "-i", "-n", "2", "--ignore-eog", "-f", a, b, "and?"));
    snprintf(line, sizeof line, "/file '%s' %s", a, b);
    say(&t, line, "2 with ");
    say(&t, "/file none", "none; /file");
    snprintf(line, sizeof line, "/file %s", a);
    say(&t, line, "1 with ");
    say(&t, "/file /nowhere.txt", "/nowhere.txt: cannot open");
    say(&t, "/file $(id)", "need quotes");
    say(&t, "/show files", "1 with ");
    say(&t, "then?", "answer 2 tokens");
    say(&t, "/file", "none; /file");
    save_and_quit(&t, saved);
    AUTO_MEM char *text = get_file(saved);
    snprintf(want, sizeof want,
             "\"%s:\\n```\\none\\n```\\n\\n%s:\\n`````\\n```two````\\n`````\\n\\nand?\"", a, b);
    CHECK_MSG(strstr(text, want), "%s\nlacks %s", text, want);
    snprintf(want, sizeof want, "\"%s:\\n```\\none\\n```\\n\\nthen?\"", a);
    CHECK_MSG(strstr(text, want), "%s\nlacks %s", text, want);
}

/* A new size of the terminal ends no line that is being typed. */
TEST(run_goes_on_with_a_line_when_the_terminal_changes_its_size)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    const char *saved = test_temp("saved.json");
    terminal t;
    converse(&t, NULL, ARGS("run", "-m", m, "-n", "2", "--ignore-eog"));
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "\xc3\xa9one ");
    for (unsigned short i = 0; i < 3; i++) {
        struct winsize size = {.ws_row = 20, .ws_col = (unsigned short)(60 + i)};
        CHECK(!ioctl(t.fd, TIOCSWINSZ, &size));
        usleep(20000);
    }
    terminal_type(&t, "two\r");
    terminal_expect(&t, "answer 2 tokens");
    save_and_quit(&t, saved);
    AUTO_MEM char *text = get_file(saved);
    CHECK_MSG(strstr(text, "\xc3\xa9one two\""), "%s", text);
}

TEST(run_reads_a_piped_stdin_and_goes_on_at_the_terminal)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    const char *saved = test_temp("saved.json");
    terminal t;
    converse(&t, "from the pipe\n",
             ARGS("run", "-m", m, "-i", "-n", "2", "--ignore-eog", "and words"));
    terminal_expect(&t, "answer 2 tokens");
    say(&t, "typed", "answer 2 tokens");
    save_and_quit(&t, saved);
    char *text = get_file(saved);
    CHECK_MSG(strstr(text, "\"from the pipe\\n\\nand words\"") && strstr(text, "\"typed\""), "%s",
              text);
    mem_free(text);
    expect_run(2, NULL, "needs a terminal", "text", ARGS("run", "-m", m, "-i"));
}

TEST(run_settings_are_shown_changed_and_taken_back)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    const char *tools = test_path("tools/demo_tools.json"), *saved = test_temp("saved.json");
    char line[700];
    terminal t;
    converse(&t, NULL, ARGS("run", "-m", m, "--greedy", "-s", "Be kind.", "-c", "2048"));
    say(&t, "/system", "Be kind.");
    say(&t, "/show", "Be kind.");
    terminal_expect(&t, "tools      none");
    terminal_expect(&t, "temp 0,");
    snprintf(line, sizeof line, "/tools %s", tools);
    say(&t, line, "get_weather");
    say(&t, "/tools", "get_weather");
    say(&t, "/tools none", "tools      none");
    say(&t, "/set parameter temperature 0.25", "temperature is 0.25");
    say(&t, "/show settings", "temp 0.25,");
    say(&t, "/set num_predict 3", "num_predict is 3");
    say(&t, "/set top_k 7", "top_k is 7");
    say(&t, "/set", "top-k 7,");
    terminal_expect(&t, "limit 3 tokens");
    say(&t, "/set tmep 3", "did you mean 'temp'?");
    say(&t, "/set temp hot", "expected a number from 0 to 100");
    say(&t, "/set temp", "temp needs a value");
    say(&t, "/set num_ctx 3", "num_ctx is set when carat starts: carat run --ctx");
    say(&t, "/set ctx 3", "carat run --ctx");
    say(&t, "/set stop STOP", "stop is STOP");
    say(&t, "/set nothink", "thinking is off");
    say(&t, "/set format json", "JSON objects");
    say(&t, "/show settings", "form JSON");
    terminal_expect(&t, "stop       STOP");
    say(&t, "/set noformat", "any form");
    say(&t, "/set wordwrap", "on");
    say(&t, "/set quiet", "off");
    say(&t, "/show nothing", "expected system");
    say(&t, "/quti", "did you mean /quit?");
    say(&t, "/?", "/bye");
    say(&t, "/system none", "is removed");
    say(&t, "/system", "none; /system TEXT");
    save_and_quit(&t, saved);
}

PLAIN_TEST(run_prints_one_object)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    spawned r;
    arena mem = {0};
    spawn_carat(&r, NULL,
                ARGS("run", "-m", m, "--format", "json", "-n", "5", "--ignore-eog", "hi"));
    CHECK_MSG(r.code == 0, "%s", str_text(&r.err));
    /* jansson refuses U+0000, which the toy model may say. */
    const jtree *v = json_parsed(&mem, str_text(&r.out), r.out.n);
    CHECK(strchr(r.out.at, '\n') == r.out.at + r.out.n - 1);
    CHECK(jtree_is(jtree_get(v, "answer"), JTREE_STRING));
    CHECK(jtree_is(jtree_get(v, "thinking"), JTREE_STRING));
    CHECK(jtree_is(jtree_get(v, "calls"), JTREE_ARRAY));
    CHECK_STR(json_at(v, "finish")->s, "length");
    CHECK_STR(json_at(v, "usage.answer_tokens")->s, "5");
    CHECK(atoi(json_at(v, "usage.prompt_tokens")->s) > 0);
    CHECK(atof(json_at(v, "timings.prompt_ms")->s) > 0);
    arena_free(&mem);
    spawned_free(&r);
    expect_run(2, NULL, "expected text or json", "", ARGS("run", "--format", "yaml", "hi"));
    expect_run(2, NULL, "exclude each other", "",
               ARGS("run", "--format=json", "--json-events", "hi"));
    expect_run(
        0, "\n", NULL, "",
        ARGS("run", "-m", m, "--format", "text", "--seed", "1", "-n", "20", "--ignore-eog", "hi"));
    expect_run(1, "", "carat: ", "", ARGS("run", "-m", "/nowhere", "--format", "json", "hi"));
}

static int run_in_state(const char *out, const char *const *args)
{
    char state[512];
    AUTO(spawned_free) spawned r;
    snprintf(state, sizeof state, "XDG_STATE_HOME=%s", test_temp("state"));
    spawn_carat(&r, &(spawn_options){.env = state}, args);
    CHECK_MSG(!out || spawned_says(&r.out, out) || spawned_says(&r.err, out),
              "\"%s\" and \"%s\", expected \"%s\"", str_text(&r.out), str_text(&r.err), out);
    int code = r.code;
    return code;
}

/* In the middle of an answer: nobody reads the rest, and what was said is kept. */
TEST(run_keeps_a_conversation_whose_terminal_closes)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 1 << 20});
    terminal t;
    int how;
    converse(&t, NULL, ARGS("run", "-m", m, "--seed", "1", "-c", "131072", "--ignore-eog"));
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "first words\r");
    terminal_expect_answer(&t);
    close(t.fd);
    while (waitpid(t.pid, &how, 0) < 0 && errno == EINTR)
        ;
    str_free(&t.seen);
    CHECK_EQ(run_in_state("first words", ARGS("history")), 0);
}

TEST(run_keeps_conversations_and_resumes_them)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    terminal t;
    converse(&t, NULL, ARGS("run", "-m", m, "--seed", "1", "-n", "8", "--ignore-eog"));
    say(&t, "first words", "answer 8 tokens");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/bye\r");
    CHECK_EQ(terminal_close(&t), 0);
    converse(&t, NULL, ARGS("run", "-m", m, "--seed", "1", "-n", "8", "--ignore-eog"));
    say(&t, "second talk", "answer 8 tokens");
    say(&t, "/name a title", ">>> ");
    terminal_type(&t, "/bye\r");
    CHECK_EQ(terminal_close(&t), 0);
    CHECK_EQ(run_in_state("second talk", ARGS("history", "show", "title")), 0);
    CHECK_EQ(run_in_state("first words", ARGS("history")), 0);
    CHECK_EQ(run_in_state("first words", ARGS("history", "search", "FIRST")), 0);
    CHECK_EQ(run_in_state("no conversation has", ARGS("history", "search", "third")), 1);
    CHECK_EQ(run_in_state("\"number\":2", ARGS("history", "--json")), 0);
    /* The model is that of the conversation. */
    converse(&t, NULL, ARGS("run", "--seed", "1", "-n", "8", "--ignore-eog", "--resume"));
    terminal_expect(&t, "2 messages: a title");
    say(&t, "third words", "answer 8 tokens");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/bye\r");
    CHECK_EQ(terminal_close(&t), 0);
    CHECK_EQ(run_in_state("third words", ARGS("history", "2")), 0);
    CHECK_EQ(run_in_state("conversation 1", ARGS("run", "--seed", "1", "-n", "8", "--ignore-eog",
                                                 "--resume", "1", "more")),
             0);
    CHECK_EQ(run_in_state("user: more", ARGS("history", "show", "last")), 0);
    CHECK_EQ(run_in_state("removed 1", ARGS("history", "rm", "1")), 0);
    CHECK_EQ(run_in_state("there is no conversation 1", ARGS("history", "rm", "1")), 2);
    CHECK_EQ(run_in_state("there is no conversation 1", ARGS("run", "--resume=1", "hi")), 1);
    CHECK_EQ(run_in_state("expected list", ARGS("history", "frob")), 2);
    CHECK_EQ(run_in_state("expected list", ARGS("history", "rm")), 2);
    CHECK_EQ(run_in_state(NULL, ARGS("history", "rm", "--all")), 0);
    CHECK_EQ(run_in_state("no conversation is kept", ARGS("history")), 0);
}

/* Fails where a file of the state directory has this text. */
static void state_lacks(const char *text)
{
    char command[1400];
    snprintf(command, sizeof command, "! grep -rqa -- '%s' '%s'", text, test_temp("state"));
    CHECK_MSG(!system(command), "a file has '%s'", text);
}

/* A typed line is kept before anything else happens to the program, and nothing lies beside it. */
TEST(run_keeps_typed_lines_at_once)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    terminal t;
    char command[1400];
    for (int i = 0; i < 2; i++) {
        converse(&t, NULL, ARGS("run", "-m", m, "-n", "8", "--ignore-eog"));
        say(&t, i ? "typed-second" : "typed-first", "answer 8 tokens");
        snprintf(command, sizeof command,
                 "grep -q typed-first '%s/carat/history' && [ $(ls '%s/carat' | wc -l) = 2 ]%s",
                 test_temp("state"), test_temp("state"), i ? " " : "");
        CHECK_MSG(!system(command), "run %d", i);
        terminal_expect(&t, ">>> ");
        terminal_type(&t, "/bye\r");
        CHECK_EQ(terminal_close(&t), 0);
    }
    snprintf(command, sizeof command, "[ $(grep -c typed '%s/carat/history') = 2 ]",
             test_temp("state"));
    CHECK(!system(command));
}

/* The same, once the command before is done. */
static void later_lacks(terminal *t, const char *text)
{
    say(t, "/think", "thinking is");
    state_lacks(text);
}

/* Deleted questions are in no file: conversations, their titles, typed lines. */
TEST(run_forgets_what_is_deleted)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    terminal t;
    converse(&t, NULL, ARGS("run", "-m", m, "-n", "8", "--ignore-eog"));
    say(&t, "kept-word", "answer 8 tokens");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/bye\r");
    CHECK_EQ(terminal_close(&t), 0);
    converse(&t, NULL, ARGS("run", "-m", m, "-n", "8", "--ignore-eog"));
    say(&t, "zanzibar one", "answer 8 tokens");
    say(&t, "/name zanzibar title", "zanzibar title");
    say(&t, "/clear", "is empty");
    later_lacks(&t, "zanzibar");
    say(&t, "zanzibar two", "answer 8 tokens");
    say(&t, "/undo", "took back");
    later_lacks(&t, "zanzibar");
    say(&t, "hello", "answer 8 tokens"); /* its title is not that of the deleted question */
    say(&t, "zanzibar three", "answer 8 tokens");
    say(&t, "/undo", "took back");
    later_lacks(&t, "zanzibar");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/bye\r");
    CHECK_EQ(terminal_close(&t), 0);
    state_lacks("zanzibar");
    CHECK_EQ(run_in_state("kept-word", ARGS("history", "search", "kept-word")), 0);
    CHECK_EQ(run_in_state("hello", ARGS("history", "show", "last")), 0);
    /* A resumed conversation takes its file with it, and the lines of the run before. */
    converse(&t, NULL, ARGS("run", "-m", m, "-n", "8", "--ignore-eog", "--resume=kept-word"));
    say(&t, "/clear", "is empty");
    later_lacks(&t, "kept-word");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/bye\r");
    CHECK_EQ(terminal_close(&t), 0);
}

/* The tokens of a prompt with n words. */
static int tokens_of(const char *m, int n)
{
    AUTO(str_free) str line = {0};
    AUTO(spawned_free) spawned r;
    for (int i = 0; i < n; i++)
        str_puts(&line, "word ");
    spawn_carat(&r, &(spawn_options){.in = ""},
                ARGS("run", "-m", m, "-n", "1", "--ignore-eog", str_text(&line)));
    const char *at = strstr(str_text(&r.err), "[prompt ");
    CHECK_MSG(at, "%s", str_text(&r.err));
    int tokens = atoi(at + 8);
    return tokens;
}

/* A question that finds no room waits for /drop or /summary, which make room and ask it again. */
TEST(run_goes_on_when_the_context_is_full)
{
    /* Of the context of 512: one question fits, two do not. The last one fits alone, and leaves
     * less than a quarter free. */
    static const struct {
        int first, second;
        const char *command, *said;
    } cases[] = {{300, 300, "/drop", "dropped"},
                 {300, 300, "/summary", "anew"},
                 {300, 430, "/drop", "1 of"}};
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    int few = tokens_of(m, 10), more = tokens_of(m, 30);
    terminal t;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        str line[2] = {{0}};
        for (int k = 0; k < 2; k++) {
            int n_tokens = k ? cases[i].second : cases[i].first;
            for (int w = 10 + (n_tokens - few) * 20 / (more - few); w > 0; w--)
                str_puts(&line[k], "word ");
        }
        converse(&t, NULL,
                 ARGS("run", "-m", m, "-c", "512", "-n", "8", "--ignore-eog", "--no-history"));
        say(&t, "/drop", "nothing to drop");
        say(&t, "/drop x", "expected a number");
        say(&t, str_text(&line[0]), "answer 8 tokens");
        say(&t, str_text(&line[1]), "the context is full");
        say(&t, cases[i].command, cases[i].said);
        terminal_expect(&t, "answer 8 tokens"); /* of the question that waited */
        terminal_expect(&t, ">>> ");
        terminal_type(&t, "/bye\r");
        CHECK_EQ(terminal_close(&t), 0);
        str_free(&line[0]);
        str_free(&line[1]);
    }
}

/* Without older turns it finds no room either: /drop says so, and they stay. */
TEST(run_drops_no_turns_for_a_question_that_never_fits)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    char line[600], *saved;
    const char *path = test_temp("saved.json");
    size_t n, n_messages = 0;
    str words = {0};
    terminal t;
    err e = {0};
    for (int i = 0; i < 700; i++)
        str_puts(&words, "word ");
    converse(&t, NULL,
             ARGS("run", "-m", m, "-c", "512", "-n", "8", "--ignore-eog", "--no-history"));
    say(&t, "first words", "answer 8 tokens");
    say(&t, str_text(&words), "the context is full");
    say(&t, "/drop", "the prompt still has");
    snprintf(line, sizeof line, "/save %s", path);
    say(&t, line, "saved");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/bye\r");
    CHECK_EQ(terminal_close(&t), 0);
    CHECK_OK(file_read_all(path, 1 << 20, &saved, &n, &e), e);
    for (const char *at = saved; (at = strstr(at, "\"role\"")); at++)
        n_messages++;
    CHECK_MSG(n_messages == 2 && strstr(saved, "first words"), "%s", saved);
    mem_free(saved);
    str_free(&words);
}

TEST(run_keeps_nothing_where_it_is_told_so)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    terminal t;
    converse(&t, NULL, ARGS("run", "-m", m, "-n", "8", "--ignore-eog", "--no-history"));
    say(&t, "secret", "answer 8 tokens");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/bye\r");
    CHECK_EQ(terminal_close(&t), 0);
    CHECK(!setenv("CARAT_NO_HISTORY", "1", 1));
    converse(&t, NULL, ARGS("run", "-m", m, "-n", "8", "--ignore-eog"));
    say(&t, "secret", "answer 8 tokens");
    say(&t, "/set history", "not kept");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/bye\r");
    CHECK_EQ(terminal_close(&t), 0);
    CHECK(!unsetenv("CARAT_NO_HISTORY"));
    converse(&t, NULL, ARGS("run", "-m", m, "-n", "8", "--ignore-eog"));
    say(&t, "/set nohistory", "not kept");
    say(&t, "secret", "answer 8 tokens");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/bye\r");
    CHECK_EQ(terminal_close(&t), 0);
    CHECK_EQ(run_in_state("no conversation is kept", ARGS("history")), 0);
    char path[600];
    snprintf(path, sizeof path, "%s/carat/history", test_temp("state"));
    CHECK(access(path, F_OK)); /* the typed lines */
}

TEST(run_completes_with_tab)
{
    const char *m = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    char line[700];
    const char *path = put_file("only one.txt", "x\n", 2);
    terminal t;
    converse(&t, NULL, ARGS("run", "-m", m));
    say(&t, "/sta\t", "sampling");
    say(&t, "/think o\t", "off");
    terminal_type(&t, "\x03");
    snprintf(line, sizeof line, "/file %.*s\t", (int)(strrchr(path, '/') - path) + 2, path);
    say(&t, line, "1 with ");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/bye\r");
    CHECK_EQ(terminal_close(&t), 0);
}
