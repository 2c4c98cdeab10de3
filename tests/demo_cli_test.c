/* demo_cli_test.c - the program with its bundled model, as users run it. */
#include "tests/spawn.h"
#include "tests/test.h"

#include <unistd.h>

/* Easy questions, answered greedily, so that the answers repeat. tools/demo measures the model's
 * quality. */
static void need_bundled(void)
{
    if (access(test_path("models/demo.gguf"), R_OK))
        test_skip("there is no models/demo.gguf");
}

static void ask_bundled(const char *in, const char *says, const char *const *args)
{
    AUTO(spawned_free) spawned r;
    spawn_carat(&r, &(spawn_options){.in = in}, args);
    CHECK_MSG(r.code == 0, "exit status %d; stderr: %s", r.code, str_text(&r.err));
    CHECK_MSG(strstr(str_text(&r.out), says), "the answer is \"%s\", expected \"%s\" in it",
              str_text(&r.out), says);
}

PLAIN_TEST(demo_answers_from_arguments_stdin_and_file)
{
    need_bundled();
    const char *question = test_temp("q.txt");
    test_write(question, "What is carat?\n", 15);
    ask_bundled("", "inference engine", ARGS("run", "-q", "--greedy", "What is carat?"));
    ask_bundled("What is carat?", "inference engine", ARGS("run", "-q", "--greedy"));
    ask_bundled("", "inference engine",
                ARGS("run", "-q", "--greedy", "-m", test_path("models/demo.gguf"), "-p", question));
}

PLAIN_TEST(demo_sees_pictures)
{
    need_bundled();
    if (access(test_path("models/demo-mmproj.gguf"), R_OK))
        test_skip("there is no models/demo-mmproj.gguf");
    char shapes[1024], number[1024];
    snprintf(shapes, sizeof shapes, "%s", test_path("examples/shapes.png"));
    snprintf(number, sizeof number, "%s", test_path("examples/number.png"));
    ask_bundled("", "The circle is red.",
                ARGS("run", "-q", "--greedy", "-f", shapes, "What colour is the circle?"));
    ask_bundled("", "There are three shapes.",
                ARGS("run", "-q", "--greedy", "--image-tokens", "140", "-f", shapes,
                     "How many shapes are there?"));
    /* The tower's file beside the model's is found too. */
    ask_bundled("", "The number is 4815.",
                ARGS("run", "-q", "--greedy", "-m", test_path("models/demo.gguf"), "-f", number,
                     "What number is in the picture?"));
}

PLAIN_TEST(demo_recalls_from_the_middle_of_a_long_text)
{
    need_bundled();
    AUTO(str_free) str text = {0};
    for (int i = 0; i < 110; i++) {
        str_puts(&text, "The wind moved the leaves, and a crow called from the tower. ");
        if (i == 50)
            str_puts(&text, "The secret code of the red drum is 6154. ");
    }
    ask_bundled(str_text(&text), "6154",
                ARGS("run", "-q", "--greedy", "What is the secret code of the red drum?"));
    /* The answer is the same with chunks smaller than, equal to and larger than the window. */
    ask_bundled(str_text(&text), "6154",
                ARGS("run", "-q", "--greedy", "--chunk", "100", "-c", "6000",
                     "What is the secret code of the red drum?"));
    /* And where attention leaves out what hardly counts. */
    static const char *const modes[] = {"skip:5", "flash:0.05"};
    for (int i = 0; i < 2; i++)
        ask_bundled(str_text(&text), "6154",
                    ARGS("run", "-q", "--greedy", "--sparse", modes[i],
                         "What is the secret code of the red drum?"));
}

PLAIN_TEST(demo_thinks_on_stderr_and_answers_on_stdout)
{
    need_bundled();
    AUTO(spawned_free) spawned r;
    spawn_carat(&r, NULL, ARGS("run", "-q", "--greedy", "--think", "What is 21 + 35?"));
    CHECK_EQ(r.code, 0);
    CHECK(strstr(str_text(&r.out), "56"));
    CHECK(r.err.n > 10 && !strstr(str_text(&r.err), "channel"));
    CHECK(!strstr(str_text(&r.out), "column") && !strstr(r.out.at, "channel"));
}

PLAIN_TEST(demo_stops_before_any_of_its_stop_strings)
{
    need_bundled();
    AUTO(spawned_free) spawned r;
    spawn_carat(&r, NULL, ARGS("run", "-q", "--greedy", "Count from 1 to 20."));
    CHECK(strstr(str_text(&r.out), "1 2 3 4 5 6 7 8"));
    spawned_free(&r);
    spawn_carat(&r, NULL,
                ARGS("run", "-q", "--greedy", "--stop", "nowhere", "--stop", " 7", "--stop", " 9",
                     "Count from 1 to 20."));
    CHECK_EQ(r.code, 0);
    CHECK_STR(str_text(&r.out), "1 2 3 4 5 6\n");
}

PLAIN_TEST(demo_calls_a_tool_and_reads_its_result)
{
    need_bundled();
    const char *tools = test_path("tools/demo_tools.json");
    ask_bundled("", "{\"name\":\"get_weather\",\"arguments\":{\"city\":\"Oslo\"}}\n",
                ARGS("run", "-q", "--greedy", "--tools", tools, "What is the weather in Oslo?"));
    ask_bundled("", "18 degrees",
                ARGS("run", "-q", "--greedy", "--tools", tools, "--result", "18 degrees and sunny",
                     "What is the weather in Oslo?"));
    /* Two calls in one answer, with a result for each. */
    ask_bundled("", "The result is: snow; sunny, 30 degrees",
                ARGS("run", "-q", "--greedy", "--tools", tools, "--result", "snow", "--result",
                     "sunny, 30 degrees", "What is the weather in Oslo and Rome?"));
    ask_bundled(
        "", "{\"event\":\"end\",\"finish\":\"tool_calls\"}",
        ARGS("run", "--greedy", "--json-events", "--tools", tools, "What is the weather in Oslo?"));
}

PLAIN_TEST(demo_conversation_with_tools_thoughts_and_files)
{
    need_bundled();
    char state[512], line[700];
    const char *saved = test_temp("talk.json");
    terminal t;
    snprintf(state, sizeof state, "XDG_STATE_HOME=%s", test_temp("state"));
    terminal_open(&t, ARGS(state, "TERM=xterm"), ARGS("run", "--greedy", "-c", "4096"));
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "What is 12 + 30?\r");
    terminal_expect(&t, "= 42");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/regen\r");
    terminal_expect(&t, "= 42");
    terminal_expect(&t, "reused");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/think on\r");
    terminal_expect(&t, "thinking is on");
    terminal_type(&t, "What is 21 + 35?\r");
    terminal_expect(&t, "\033[2m"); /* dimmed */
    terminal_expect(&t, "56.");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "/think off\r");
    snprintf(line, sizeof line, "/tools %s\r", test_path("tools/demo_tools.json"));
    terminal_type(&t, line);
    terminal_type(&t, "/clear\r");
    terminal_expect(&t, "is empty");
    terminal_type(&t, "What is the weather in Oslo?\r");
    terminal_expect(&t, "get_weather");
    terminal_expect(&t, "/result TEXT");
    terminal_expect(&t, ">>> ");
    terminal_type(&t, "And in Rome?\r"); /* refused before the tool's result */
    terminal_expect(&t, "waits for its tool");
    terminal_type(&t, "/result 18 degrees and sunny\r");
    terminal_expect(&t, "18 degrees");
    terminal_expect(&t, "[prompt");
    terminal_expect(&t, ">>> ");
    snprintf(line, sizeof line, "/save %s\r", saved);
    terminal_type(&t, line);
    terminal_expect(&t, "saved");
    terminal_type(&t, "/clear\r");
    terminal_expect(&t, "is empty");
    snprintf(line, sizeof line, "/load %s\r", saved);
    terminal_type(&t, line);
    terminal_expect(&t, "loaded 4 messages"); /* question, call, result, answer */
    terminal_type(&t, "/regen\r");
    terminal_expect(&t, "get_weather");
    terminal_type(&t, "/quit\r");
    CHECK_EQ(terminal_close(&t), 0);
    /* A one-shot run can continue a saved conversation. */
    ask_bundled("", "inference engine",
                ARGS("run", "-q", "--greedy", "--messages", saved, "What is carat?"));
}

PLAIN_TEST(demo_through_the_library_from_plain_c)
{
    AUTO(spawned_free) spawned r;
    need_bundled();
    const char *model = test_path("models/demo.gguf");
    spawn_carat(&r, &(spawn_options){.program = "chat"}, ARGS(model, "What is 12 + 30?"));
    if (r.code == 126)
        test_skip("the example is built by `make test` alone");
    CHECK_EQ(r.code, 0);
    CHECK(strstr(str_text(&r.out), "42"));
    spawned_free(&r);
    spawn_carat(&r, &(spawn_options){.program = "chat"}, ARGS("/nowhere.gguf", "hi"));
    CHECK_EQ(r.code, 1);
    CHECK(!strncmp(str_text(&r.err), "chat: /nowhere.gguf", 19));
}
