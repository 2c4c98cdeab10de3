/* connect_test.c - `carat connect` against a server, against what is none, and starting a program.
 */
#include "tests/hub_rig.h"
#include "tests/server_rig.h"
#include "tests/spawn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define RUN(code, out, says, ...)                                                                  \
    spawn_check(code, out, says, (const char *const[]){"connect", __VA_ARGS__, NULL})

TEST(connect_tells_and_starts)
{
    static const char program[] =
        "#!/bin/sh\necho \"<$ANTHROPIC_API_KEY>$ANTHROPIC_BASE_URL $ANTHROPIC_MODEL $*\"\n";
    static const char reader[] = "#!/bin/sh\ncat \"$2\"; echo \"$3\"\n";
    served s;
    char url[64], path[1100], dir[1024], says[200];
    start_toy(&s, ARGS("--alias", "it's 5"));
    snprintf(url, sizeof url, "http://127.0.0.1:%d", s.port);
    RUN(0, "export ANTHROPIC_MODEL='it'\\''s 5'\n", "carat serve --ctx 64k", "claude", "--url",
        url);
    RUN(0, "model_context_window = 512\n", NULL, "codex", "--url", url);
    RUN(0, "\"limit\":{\"context\":512", NULL, "opencode", "--url", url);
    RUN(0, "    model: \"it's 5\"\n", NULL, "continue", "--url", url);
    RUN(0, "\"max_tokens\": 512", NULL, "zed", "--url", url);
    RUN(0, "aider --model openai/other\n", NULL, "aider", "--url", url, "-m", "other");
    snprintf(says, sizeof says, "export OPENAI_API_BASE=%s/v1\n", url);
    RUN(0, says, NULL, "aider", "--url", url);
    RUN(2, NULL, "carat leaves as it is", "zed", "--start", "--url", url);
    RUN(2, NULL, "need --start", "claude", "x", "--url", url);
    RUN(2, NULL, "not a name of a model", "claude", "-m", "a\nb", "--url", url);
    RUN(2, NULL, "not a name of a model", "codex", "-m", "b\xff", "--url", url);
    RUN(2, NULL, "not a name of a model", "claude", "-m",
        "a\xc2\x9b"
        "b",
        "--url", url);
    snprintf(dir, sizeof dir, "%s", test_temp("x"));
    *strrchr(dir, '/') = 0;
    snprintf(path, sizeof path, "%s:/usr/bin:/bin", dir);
    setenv("PATH", path, 1);
    setenv("XDG_STATE_HOME", dir, 1);
    RUN(2, NULL, "there is no program 'claude' in PATH", "claude", "--start", "--url", url);
    test_write(test_temp("claude"), program, strlen(program));
    test_write(test_temp("cn"), reader, strlen(reader));
    CHECK(!chmod(test_temp("claude"), 0700) && !chmod(test_temp("cn"), 0700));
    setenv("ANTHROPIC_API_KEY", "of another server", 1);
    snprintf(says, sizeof says, "<>%s it's 5 -p hi\n", url);
    RUN(0, says, NULL, "claude", "--start", "--url", url, "--", "-p", "hi");
    RUN(0, "    roles: [chat, edit, apply]\n    capabilities: [tool_use]\nword\n", NULL, "continue",
        "--start", "--url", url, "word");
    /* This machine's server is asked without a proxy. */
    setenv("http_proxy", "http://127.0.0.1:1", 1);
    RUN(0, "model_context_window = 512\n", NULL, "codex", "--url", url);
    unsetenv("http_proxy");
    stop(&s);
    RUN(0, "export ANTHROPIC_MODEL=carat\n", "no server answers at", "claude", "--url", url);
    RUN(1, NULL, "no server answers at", "claude", "--start", "--url", url);
}

TEST(connect_to_what_is_no_server)
{
    static hub_rig r;
    served s;
    char url[64];
    hub_rig_open(&r, "own/Model-GGUF");
    RUN(1, NULL, "but not with a list of models", "claude", "--url", r.endpoint);
    hub_rig_close(&r);
    start_toy(&s, ARGS("--api-key", "right"));
    snprintf(url, sizeof url, "http://127.0.0.1:%d/v1/", s.port);
    RUN(2, NULL, "wants another key", "claude", "--url", url);
    RUN(0, "ANTHROPIC_AUTH_TOKEN=right\n", NULL, "claude", "--url", url, "--api-key", "right");
    stop(&s);
    RUN(2, NULL, "did you mean claude?", "clude");
    RUN(2, NULL, "expected an address", "claude", "--url", "x y");
    RUN(2, NULL, "expected an address", "claude", "--url", "file:///etc/passwd");
}

TEST(connect_asks_at_the_port_of_the_settings)
{
    static const char *const files[][2] = {{"[serve]\nport = 1\n", ":1\n"},
                                           {"[defaults]\nport = 2\n", ":2\n"},
                                           {"[defaults]\nport = 3\n[serve]\nport = 4\n", ":4\n"}};
    char path[1024];
    snprintf(path, sizeof path, "%s", test_temp("settings.toml"));
    setenv("CARAT_CONFIG", path, 1);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        test_write(path, files[i][0], strlen(files[i][0]));
        RUN(0, files[i][1], "no server answers at http://127.0.0.1:", "claude");
    }
    setenv("CARAT_PORT", "5", 1);
    RUN(0, ":5\n", NULL, "claude");
    setenv("CARAT_PORT", "x", 1);
    RUN(2, NULL, "expected a whole number from 0 to 65535", "claude");
    setenv("CARAT_PORT", "0", 1);
    RUN(2, NULL, "--url says which", "claude");
    unsetenv("CARAT_PORT");
    test_write(path, "[serve", 6);
    RUN(1, NULL, "settings.toml:1: ", "claude");
    unsetenv("CARAT_CONFIG");
}
