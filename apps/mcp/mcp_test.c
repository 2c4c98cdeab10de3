/* mcp_test.c - the client against servers that do what servers must not do (tests/mcp_rig.h). */
#include "apps/mcp/mcp.h"
#include "base/clock.h"
#include "base/map.h"
#include "tests/mcp_rig.h"
#include "tests/test.h"

#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 1 << 20 };

typedef struct told {
    char text[2048];
} told;

static void tell(void *user, const char *sentence)
{
    told *t = user;
    size_t n = strlen(t->text);
    snprintf(t->text + n, sizeof t->text - n, "%s\n", sentence);
}

static bool log_here(const char *server, char *path, size_t cap)
{
    snprintf(path, cap, "%s-%s.log", test_temp("mcp"), server);
    return true;
}

/* A set with one server, of that mode. */
typedef struct rig {
    mcp_specs specs;
    mcp_set *set;
    told told;
    str out;
    bool failed;
    err e;
} rig;

static status open_set(rig *r)
{
    const mcp_set_options o = {.specs = &r->specs, .log = log_here, .tell = tell, .user = &r->told};
    return mcp_set_open(&r->set, &o, NULL, &r->e);
}

static void open_mode(rig *r, const char *mode, double timeout_s)
{
    *r = (rig){.set = NULL};
    mcp_rig_specs(&r->specs, mode, 60);
    CHECK_OK(open_set(r), r->e);
    r->specs.at[0].timeout_s = timeout_s; /* a loaded machine may begin slowly */
}

static const char *call(rig *r, const char *name, const char *arguments)
{
    str_cut(&r->out, 0);
    CHECK_OK(mcp_set_call(r->set, name, arguments, MOST, NULL, &r->out, &r->failed, &r->e), r->e);
    return str_text(&r->out);
}

static void close_rig(rig *r)
{
    str_free(&r->out);
    mcp_set_close(r->set);
    mcp_specs_free(&r->specs);
    CHECK(waitpid(-1, NULL, WNOHANG) < 0); /* no child is left, and no zombie */
}

#define CHECK_SAYS(text, part)                                                                     \
    CHECK_MSG(strstr(text, part), "\"%s\" does not say \"%s\"", text, part)

TEST(mcp_calls_a_tool_of_a_program)
{
    rig r;
    const char *revision;
    open_mode(&r, "plain", 20);
    CHECK_EQ(mcp_set_count(r.set), 2);
    CHECK_STR(mcp_set_at(r.set, 1)->name, "add");
    CHECK_STR(mcp_set_title(r.set, "fake", &revision), "fake 1");
    CHECK_STR(revision, "2025-06-18");
    CHECK_STR(call(&r, "add", "{\"a\":2,\"b\":40}"), "42");
    CHECK(!r.failed);
    CHECK_STR(call(&r, "echo", " "), "{}");
    CHECK_SAYS(call(&r, "echo", "[1]"), "not a JSON object");
    CHECK(r.failed);
    CHECK_SAYS(call(&r, "echo", "{\"a\":"), "error: ");
    CHECK_STATUS(mcp_set_call(r.set, "rm", "{}", MOST, NULL, &r.out, &r.failed, &r.e), E_ARG);
    str tools = {0};
    mcp_set_put_tools(r.set, &tools);
    CHECK_SAYS(tools.at, "\"parameters\":{\"type\":\"object\"");
    str_free(&tools);
    close_rig(&r);
}

TEST(mcp_reads_a_list_in_pages)
{
    rig r;
    open_mode(&r, "pages", 20);
    CHECK_EQ(mcp_set_count(r.set), 3);
    CHECK_STR(mcp_set_at(r.set, 2)->name, "third");
    close_rig(&r);
}

/* What cannot begin ends in one sentence. */
TEST(mcp_refuses_servers_that_do_not_begin)
{
    static const char *const cases[][2] = {{"endless", "pages without end"},
                                           {"mute", "does not answer initialize within 0.3 s"},
                                           {"future", "speaks revision 2030-01-01"},
                                           {"bare", "has no tools"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r = {.set = NULL};
        mcp_rig_specs(&r.specs, cases[i][0], i == 1 ? 0.3 : 20);
        CHECK(open_set(&r));
        CHECK_SAYS(r.e.text, cases[i][1]);
        CHECK(!r.set);
        close_rig(&r);
    }
}

/* The call fails with a sentence, and the next one works where the server does. */
TEST(mcp_survives_servers_that_misbehave)
{
    static const char *const cases[][2] = {{"hang", "does not answer tools/call within 0.3 s"},
                                           {"other_id", "does not answer tools/call within 0.3 s"},
                                           {"dies", "ended with status 3; its last words: "
                                                    "Traceback: the last words"},
                                           {"flood", "floods: more than 100000 messages"},
                                           {"huge", "message of more than 16 MiB"},
                                           {"halves", "invalid Unicode"},
                                           {"refuses", "no such thing"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r;
        open_mode(&r, cases[i][0], i < 2 ? 0.3 : 60);
        CHECK_SAYS(call(&r, "echo", "{}"), cases[i][1]);
        CHECK(r.failed);
        if (i == 2) /* a new process */
            CHECK_SAYS(call(&r, "echo", "{}"), cases[i][1]);
        close_rig(&r);
    }
}

TEST(mcp_reads_past_noise_and_answers_requests)
{
    rig r;
    AUTO_MEM char *log;
    size_t n;
    open_mode(&r, "noise", 20);
    CHECK_STR(call(&r, "add", "{\"a\":1,\"b\":1}"), "2");
    close_rig(&r);
    open_mode(&r, "asks", 20);
    CHECK_STR(call(&r, "echo", "{}"), "result 0, error -32601");
    close_rig(&r);
    open_mode(&r, "words", 20);
    CHECK_STR(call(&r, "add", "{\"a\":1,\"b\":1}"), "2");
    close_rig(&r);
    char path[300];
    log_here("fake", path, sizeof path);
    CHECK_OK(file_read_all(path, 1 << 22, &log, &n, &r.e), r.e);
    CHECK(strstr(log, "stderr: 0 words and words") && strstr(log, "stdout: Welcome!"));
    CHECK(!memchr(log, 0x1b, n)); /* it is safe to look at */
}

TEST(mcp_waits_longer_for_a_server_that_tells_of_progress)
{
    rig r;
    open_mode(&r, "progress", 1); /* the call takes 1.8 s */
    CHECK_STR(call(&r, "add", "{\"a\":1,\"b\":1}"), "2");
    close_rig(&r);
}

TEST(mcp_results_are_text)
{
    rig r;
    open_mode(&r, "kinds", 20);
    CHECK_STR(call(&r, "echo", "{}"),
              "error: words\n[a picture, image/png, about 6 bytes; not passed on to you]\n"
              "[a sound, audio/wav, about 3 bytes; not passed on to you]\n[link x: file:///x]\n"
              "[file:///y]\ninside\n[file:///z, a/b, about 3 bytes; not passed on to you]\n"
              "[content of a kind that carat does not know: hologram]");
    CHECK(r.failed);
    close_rig(&r);
    open_mode(&r, "structured", 20);
    CHECK_STR(call(&r, "echo", "{}"), "{\"n\":7}");
    close_rig(&r);
    open_mode(&r, "markup", 20);
    CHECK_SAYS(call(&r, "echo", "{}"), "<script>"); /* the model sees it; a terminal does not */
    str_cut(&r.out, 0);
    CHECK_OK(mcp_set_call(r.set, "echo", "{}", 10, NULL, &r.out, &r.failed, &r.e), r.e);
    CHECK_SAYS(str_text(&r.out), "<script>al\n[cut here: ");
    close_rig(&r);
}

/* A program gets what env names and the usual, and no descriptor of ours. */
TEST(mcp_programs_inherit_little)
{
    rig r;
    int open_ = dup(1);
    setenv("FAKE_SECRET", "token", 1);
    setenv("HOME", "/home/x", 1);
    open_mode(&r, "env", 20);
    CHECK_STR(call(&r, "echo", "{}"), "own /home/x/home/x!, secret none, files 3");
    close_rig(&r);
    close(open_);
}

TEST(mcp_ends_a_server_that_does_not_want_to)
{
    rig r;
    open_mode(&r, "stubborn", 20);
    double start = clock_ms();
    close_rig(&r);
    CHECK(clock_ms() - start < 20000);
}

/* One that ends between two requests is noticed, and the next call starts it again. */
TEST(mcp_notices_servers_that_end_while_nothing_is_asked)
{
    rig r = {.set = NULL};
    str big = {0};
    mcp_rig_specs(&r.specs, "brief", 60);
    double start = clock_ms();
    CHECK(open_set(&r));
    CHECK_SAYS(r.e.text, "ended with status 3; its last words: had enough");
    CHECK(clock_ms() - start < 30000);
    close_rig(&r);
    open_mode(&r, "tired", 0.1);
    str_puts(&big, "{\"text\":\"");
    for (int i = 0; i < 1 << 17; i++)
        str_puts(&big, "xxxx");
    str_puts(&big, "\"}");
    call(&r, "echo", big.at); /* it ends while the cancellation of this call is sent */
    r.specs.at[0].timeout_s = 20;
    CHECK_STR(call(&r, "add", "{\"a\":2,\"b\":40}"), "42");
    str_free(&big);
    close_rig(&r);
}

/* A full pipe: the server does not read what is sent. */
TEST(mcp_does_not_wait_for_a_server_that_does_not_read)
{
    rig r;
    str big = {0};
    open_mode(&r, "deaf", 0.3);
    str_puts(&big, "{\"text\":\"");
    for (int i = 0; i < 1 << 20; i++)
        str_putc(&big, 'x');
    str_puts(&big, "\"}");
    CHECK_SAYS(call(&r, "echo", big.at), "does not answer tools/call within 0.3 s");
    str_free(&big);
    close_rig(&r);
}

static bool stop_soon(void *user)
{
    int *left = user;
    return --*left > 0;
}

TEST(mcp_a_user_ends_a_call)
{
    rig r;
    int left = 2;
    open_mode(&r, "hang", 60);
    const mcp_watch w = {stop_soon, &left};
    CHECK_STATUS(mcp_set_call(r.set, "echo", "{}", MOST, &w, &r.out, &r.failed, &r.e), E_CANCELLED);
    close_rig(&r);
}

TEST(mcp_a_changed_tool_is_not_allowed_any_more)
{
    rig r;
    bool changed;
    open_mode(&r, "changes", 20);
    mcp_set_allow(r.set, "echo");
    mcp_set_allow(r.set, "add");
    mcp_set_refresh(r.set, NULL, &changed);
    CHECK(!changed && mcp_set_find(r.set, "echo")->allowed);
    call(&r, "add", "{}");
    mcp_set_refresh(r.set, NULL, &changed);
    CHECK(changed);
    CHECK(!mcp_set_find(r.set, "echo")->allowed);
    CHECK(mcp_set_find(r.set, "add")->allowed);
    close_rig(&r);
}

static void *use(void *arg)
{
    mcp_set *set = arg;
    for (int i = 0; i < 8; i++) {
        AUTO(str_free) str out = {0};
        bool failed, changed;
        err e = {0};
        CHECK_OK(mcp_set_call(set, "add", "{\"a\":2,\"b\":40}", MOST, NULL, &out, &failed, &e), e);
        CHECK_STR(str_text(&out), "42");
        mcp_set_refresh(set, NULL, &changed);
        mcp_set_put_offer(set, NULL, NULL, &out);
        CHECK(!out.bad && strstr(out.at, "\"name\":\"echo\""));
    }
    return NULL;
}

/* As the server has it: every connection is a thread. */
TEST(mcp_several_threads_call_and_refresh)
{
    enum { THREADS = 3 };
    pthread_t t[THREADS];
    rig r;
    open_mode(&r, "changes", 60);
    for (int i = 0; i < THREADS; i++)
        CHECK(!pthread_create(&t[i], NULL, use, r.set));
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    close_rig(&r);
}

/* Two servers with the same tools; and tools that are none. */
TEST(mcp_names_are_unique_and_fit_for_models)
{
    rig r = {.set = NULL};
    static const char *const automatic[] = {"b/add", "a_echo", "dots.and spaces"};
    err e = {0};
    for (int i = 0; i < 2; i++) {
        json_t *v = json_pack("{s:s, s:[s, s]}", "command", mcp_rig_program(), "args", "--mcp-fake",
                              i ? "odd" : "plain");
        CHECK_OK(mcp_specs_add(&r.specs, i ? "b" : "a", v, MCP_OWN, NULL, &e), e);
        json_decref(v);
    }
    mcp_set_options o = {
        .specs = &r.specs, .automatic = automatic, .n_automatic = 3, .tell = tell, .user = &r.told};
    CHECK_OK(mcp_set_open(&r.set, &o, NULL, &r.e), r.e);
    static const char *const names[] = {"a_echo", "a_add", "b_echo", "b_add", "dots_and_spaces"};
    CHECK_EQ(mcp_set_count(r.set), 5);
    for (size_t i = 0; i < 5; i++) {
        CHECK_STR(mcp_set_at(r.set, i)->name, names[i]);
        CHECK_EQ(mcp_set_at(r.set, i)->automatic, i == 0 || i == 3 || i == 4);
        CHECK(strstr(json_string_value(json_object_get(
                         json_object_get(mcp_set_at(r.set, i)->declared, "function"), "name")),
                     names[i]));
    }
    CHECK_SAYS(r.told.text, "left out schema: its inputSchema is not an object");
    CHECK_SAYS(r.told.text, "left out task: it runs as a task alone");
    CHECK_SAYS(r.told.text, "left out echo: it is in the list twice");
    mcp_set_close(r.set);
    static const char *const twice[] = {"echo"};
    o.automatic = twice;
    o.n_automatic = 1;
    CHECK_STATUS(mcp_set_open(&r.set, &o, NULL, &r.e), E_ARG);
    CHECK_SAYS(r.e.text, "--tools-auto echo");
    close_rig(&r);
}

/* SERVER/TOOL of --tools-auto is a tool of that server alone, whatever others call theirs. */
TEST(mcp_automatic_means_a_tool_of_the_server_that_is_named)
{
    rig r = {.set = NULL};
    static const char *const automatic[] = {"a/add"};
    for (int i = 0; i < 2; i++) {
        json_t *v = json_pack("{s:s, s:[s, s]}", "command", mcp_rig_program(), "args", "--mcp-fake",
                              i ? "posing" : "plain");
        CHECK_OK(mcp_specs_add(&r.specs, i ? "b" : "a", v, MCP_OWN, NULL, &r.e), r.e);
        json_decref(v);
    }
    const mcp_set_options o = {.specs = &r.specs, .automatic = automatic, .n_automatic = 1};
    CHECK_OK(mcp_set_open(&r.set, &o, NULL, &r.e), r.e);
    CHECK_EQ(mcp_set_count(r.set), 5);
    for (size_t i = 0; i < 5; i++)
        CHECK_EQ(mcp_set_at(r.set, i)->automatic, i == 1);
    close_rig(&r);
}

/* ---- Addresses ---- */

static void open_http(rig *r, mcp_http_rig *h, const char *mode, double timeout_s)
{
    *r = (rig){.set = NULL};
    mcp_http_open(h, mode);
    mcp_http_specs(&r->specs, h, timeout_s);
}

TEST(mcp_calls_a_tool_at_an_address)
{
    static const char *const modes[] = {"plain", "json", "drops", "lost"};
    for (size_t i = 0; i < 4; i++) {
        mcp_http_rig h;
        rig r;
        open_http(&r, &h, modes[i], 20);
        CHECK_OK(open_set(&r), r.e);
        CHECK_STR(call(&r, "add", "{\"a\":2,\"b\":40}"), "42");
        CHECK_STR(call(&r, "add", "{\"a\":2,\"b\":40}"), "42");
        mcp_set_close(r.set);
        r.set = NULL;
        close_rig(&r);
        mcp_http_close(&h);
        CHECK_EQ(h.n_without_version, 0);
        CHECK_EQ(h.n_without_session, i == 1 ? h.n_posts - 1 : 0);
        CHECK_EQ(h.n_sessions, i == 3 ? 2 : 1);
        CHECK_EQ(h.n_gets, i == 2 ? 3 : 0);
        CHECK_EQ(h.n_deletes, i == 1 ? 0 : 1);
    }
}

/* A call that the server has taken is not sent a second time, in another session. */
TEST(mcp_sends_no_call_twice)
{
    AUTO(mcp_http_close) mcp_http_rig h;
    rig r;
    open_http(&r, &h, "forgets", 20);
    CHECK_OK(open_set(&r), r.e);
    CHECK_SAYS(call(&r, "add", "{}"), "has ended the session");
    CHECK(r.failed);
    CHECK_EQ(h.n_posts, 4); /* initialize, initialized, tools/list and the call */
    CHECK_EQ(h.n_sessions, 1);
    close_rig(&r);
}

TEST(mcp_refuses_addresses_that_are_no_servers)
{
    static const char *const cases[][2] = {
        {"moved", "answers 307 and names http://127.0.0.1:1/secret"},
        {"denied", "refuses access (401: invalid_token)"},
        {"page", "nothing that is an answer"},
        {"gone", "answers 404; is it an MCP endpoint?"},
        {"mute", "does not answer initialize within 0.3 s"},
        {"future", "speaks revision"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO(mcp_http_close) mcp_http_rig h;
        rig r;
        open_http(&r, &h, cases[i][0], i == 4 ? 0.3 : 20);
        CHECK(open_set(&r));
        CHECK_SAYS(r.e.text, cases[i][1]);
        CHECK(!strstr(r.e.text, "/mcp")); /* a path may hold a key */
        close_rig(&r);
    }
    rig r = {.set = NULL};
    mcp_http_rig gone = {.url = "http://127.0.0.1:1/mcp"};
    mcp_http_specs(&r.specs, &gone, 20);
    CHECK(open_set(&r));
    CHECK_SAYS(r.e.text, "cannot reach 127.0.0.1:1");
    close_rig(&r);
}

TEST(mcp_survives_addresses_that_misbehave)
{
    static const char *const cases[][2] = {{"hang", "does not answer tools/call within 0.3 s"},
                                           {"other_id", "nothing that is an answer"},
                                           {"halves", "invalid Unicode"},
                                           {"huge", "message of more than 16 MiB"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        AUTO(mcp_http_close) mcp_http_rig h;
        rig r;
        open_http(&r, &h, cases[i][0], 60);
        CHECK_OK(open_set(&r), r.e);
        r.specs.at[0].timeout_s = i == 0 ? 0.3 : 60;
        CHECK_SAYS(call(&r, "echo", "{}"), cases[i][1]);
        CHECK(r.failed);
        close_rig(&r);
    }
}

/* Lists and calls; whatever was opened is freed. */
static status list_and_call(void *arg, err *e)
{
    rig *r = arg;
    const mcp_set_options o = {.specs = &r->specs};
    bool failed, changed;
    str out = {0};
    mcp_set *set = NULL;
    status st = mcp_set_open(&set, &o, NULL, e);
    if (!st)
        st = mcp_set_call(set, "echo", "{\"a\":\"b\"}", MOST, NULL, &out, &failed, e);
    if (!st && (failed || strcmp(str_text(&out), "{\"a\":\"b\"}") != 0))
        st = err_set(e, E_MEMORY, "%s", str_text(&out));
    str_cut(&out, 0);
    if (!st) {
        mcp_set_refresh(set, NULL, &changed);
        mcp_set_put_tools(set, &out);
        mcp_set_put_offer(set, NULL, NULL, &out);
        st = out.bad ? err_memory(e, "tools", 1) : OK;
    }
    if (!st && !strstr(out.at, "\"parameters\":{\"type\":\"object\""))
        st = err_set(e, E_FORMAT, "no parameters: %s", out.at);
    str_free(&out);
    mcp_set_close(set);
    return st;
}

/* A server that starts quickly, and whose allocations are not counted: three answers in their
 * order.
 */
TEST(mcp_out_of_memory)
{
    static const char script[] =
        "say() { echo '{\"jsonrpc\":\"2.0\",\"id\":'\"$1\"',\"result\":'\"$2\"'}'; }\n"
        "read a; say 1 '{\"protocolVersion\":\"2025-06-18\",\"capabilities\":{\"tools\":{}}}'\n"
        "read a; read a; say 2 "
        "'{\"tools\":[{\"name\":\"echo\",\"inputSchema\":{\"type\":\"object\"}}]}'\n"
        "read a; say 3 '{\"content\":[{\"type\":\"text\",\"text\":\"{\\\"a\\\":\\\"b\\\"}\"}]}'\n"
        "read a";
    rig r = {.set = NULL};
    json_t *v = json_pack("{s:s, s:[s, s]}", "command", "sh", "args", "-c", script);
    CHECK_OK(mcp_specs_add(&r.specs, "fake", v, MCP_OWN, NULL, &r.e), r.e);
    json_decref(v);
    test_every_allocation(list_and_call, &r);
    close_rig(&r);
}

/* ---- Settings ---- */

static status add_text(mcp_specs *s, const char *text, mcp_file kind, err *e)
{
    json_t *v = json_loads(text, 0, NULL);
    CHECK(v);
    status st = mcp_specs_add(s, "x", v, kind, "/etc", e);
    json_decref(v);
    return st;
}

TEST(mcp_settings_are_checked)
{
    static const char *const bad[][2] = {
        {"{}", "either command or url"},
        {"{\"command\":\"a\",\"url\":\"http://b\"}", "either command or url"},
        {"{\"command\":3}", "command: expected a string"},
        {"{\"comand\":\"a\"}", "did you mean 'command'?"},
        {"{\"command\":\"a\",\"args\":\"b\"}", "args: expected an array"},
        {"{\"command\":\"a\",\"args\":[1]}", "args: expected an array of strings"},
        {"{\"command\":\"a\",\"env\":{\"A=B\":\"c\"}}", "env: expected names"},
        {"{\"command\":\"a\",\"env\":{\"A\":1}}", "env: expected names"},
        {"{\"command\":\"a\",\"timeout\":0}", "timeout: expected seconds"},
        {"{\"command\":\"a\",\"timeout\":\"1\"}", "timeout: expected seconds"},
        {"{\"command\":\"a\",\"headers\":{\"A\":\"b\"}}", "headers are for one with a url"},
        {"{\"url\":\"http://b\",\"cwd\":\"/\"}", "are for one with a command"},
        {"[]", "expected a table"}};
    AUTO(mcp_specs_free) mcp_specs s = {.n = 0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = {0};
        CHECK_STATUS(add_text(&s, bad[i][0], MCP_OWN, &e), E_ARG);
        CHECK_SAYS(e.text, bad[i][1]);
        CHECK_EQ(s.n, 0);
    }
    err e = {0};
    CHECK_OK(add_text(&s, "{\"command\":\"a\",\"cwd\":\"b\",\"timeout\":2.5}", MCP_OWN, &e), e);
    CHECK_STR(s.at[0].cwd, "/etc/b");
    CHECK_NEAR(s.at[0].timeout_s, 2.5, 0);
    CHECK_STATUS(add_text(&s, "{\"command\":\"a\"}", MCP_OWN, &e), E_ARG);
    CHECK_SAYS(e.text, "two MCP servers 'x'");
    mcp_specs_free(&s);
    err none = {0};
    CHECK_STATUS(add_text(&s, "{\"type\":\"sse\",\"url\":\"http://b\"}", MCP_FOREIGN, &none),
                 E_UNSUPPORTED);
}

/* As Claude Desktop, LM Studio and Cline write it. */
TEST(mcp_reads_files_of_other_programs)
{
    static const char text[] =
        "{\"globalShortcut\":\"\",\"mcpServers\":{\"filesystem\":{\"command\":\"npx\",\"args\":[\"-"
        "y\",\"@modelcontextprotocol/server-filesystem\",\"/Users/x/Desktop\"]},\"github\":{"
        "\"command\":\"docker\",\"args\":[\"run\",\"-i\"],\"env\":{\"TOKEN\":\"<t>\"},"
        "\"autoApprove\":[\"search\"],\"timeout\":30000},\"off\":{\"command\":\"x\",\"disabled\":"
        "true},\"hf-mcp-server\":{\"type\":\"http\",\"url\":\"https://huggingface.co/mcp\","
        "\"headers\":{\"Authorization\":\"Bearer <T>\"}},\"@upstash/context7-mcp\":{\"command\":"
        "\"npx\"},\"github.com/modelcontextprotocol/servers/tree/main/src/sequentialthinking\":{"
        "\"command\":\"npx\"}}}";
    AUTO(mcp_specs_free) mcp_specs s = {.n = 0};
    err e = {0};
    const char *path = test_temp("claude_desktop_config.json");
    test_write(path, text, sizeof text - 1);
    CHECK_OK(mcp_specs_add_file(&s, path, &e), e);
    CHECK_EQ(s.n, 5);
    CHECK_STR(s.at[0].arg[2], "/Users/x/Desktop");
    CHECK_STR(s.at[1].env[0], "TOKEN=<t>");
    CHECK_NEAR(s.at[1].timeout_s, 30, 0);
    CHECK_STR(s.at[2].header[0], "Authorization: Bearer <T>");
    CHECK_STR(s.at[3].name, "context7-mcp");
    CHECK_STR(s.at[4].name, "sequentialthinking");
    mcp_specs_free(&s);
    test_write(path, "{\"mcpServers\":{}}", 17);
    CHECK_STATUS(mcp_specs_add_file(&s, path, &e), E_ARG);
    err none = {0};
    test_write(path, "{\"servers\":{}}", 14);
    CHECK_STATUS(mcp_specs_add_file(&s, path, &none), E_FORMAT);
}
