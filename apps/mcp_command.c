/* mcp_command.c - `carat mcp`: the MCP servers of the settings, tried without a model. */
#include "apps/commands.h"
#include "apps/mcp_options.h"
#include "apps/term.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RESULT_BYTES = 4 << 20 };

typedef struct mcp_command_options {
    config_options config;
} mcp_command_options;

static const option table[] = {OPT_STR(mcp_command_options, config.file, "config", 0, "FILE",
                                       "settings (default: $XDG_CONFIG_HOME/carat/config.toml)"),
                               OPT_END};

static void put(const char *text)
{
    term_put_name(stdout, text, strlen(text), 0);
}

static void put_wide(const char *text, int cells)
{
    term_put_name(stdout, text, strlen(text), cells);
}

/* ---- list ---- */

static status list_servers(const config *f, err *e)
{
    mcp_specs all = {.n = 0};
    status st = mcp_options_all(f, &all, e);
    for (size_t i = 0; i < all.n && !st; i++) {
        put_wide(all.at[i].name, 16);
        putchar(' ');
        put(all.at[i].command ? all.at[i].command : all.at[i].url);
        for (const char *const *a = all.at[i].arg; all.at[i].command && *a; a++) {
            putchar(' ');
            put(*a);
        }
        putchar('\n');
    }
    if (!st && !all.n)
        term_note("no MCP servers: [mcp.NAME] with command or url in %s",
                  f->path ? f->path : "$XDG_CONFIG_HOME/carat/config.toml");
    mcp_specs_free(&all);
    return st;
}

/* ---- tools, call ---- */

/* The servers of one word: a name of the settings, or a file. */
static status open_word(const config *f, const char *word, mcp_specs *specs, mcp_set **set, err *e)
{
    const mcp_options o = {.servers = {.at = {word}, .n = 1}};
    const mcp_set_options so = {.specs = specs, .log = mcp_options_log, .tell = mcp_options_tell};
    status st = mcp_options_specs(&o, f, specs, e);
    return st ? st : mcp_set_open(set, &so, &mcp_until_interrupted, e);
}

/* The properties of a schema: "path, [head]", in brackets what may be left out. */
static void put_parameters(const json_t *fn)
{
    const json_t *schema = json_object_get(fn, "parameters");
    json_t *properties = json_object_get(schema, "properties"), *v;
    const json_t *required = json_object_get(schema, "required");
    const char *name;
    bool first = true;
    json_object_foreach(properties, name, v)
    {
        bool must = false;
        for (size_t i = 0; i < json_array_size(required); i++) {
            const char *r = json_string_value(json_array_get(required, i));
            must = must || (r && !strcmp(r, name));
        }
        fputs(first ? "" : ", ", stdout);
        fputs(must ? "" : "[", stdout);
        put(name);
        fputs(must ? "" : "]", stdout);
        first = false;
    }
}

static void list_tools(const mcp_set *set)
{
    const char *server = "", *revision;
    for (size_t i = 0; i < mcp_set_count(set); i++) {
        const mcp_tool *t = mcp_set_at(set, i);
        if (strcmp(server, t->server) != 0) {
            const char *title = mcp_set_title(set, t->server, &revision);
            printf("%s# ", *server ? "\n" : "");
            put(t->server);
            fputs(": ", stdout);
            put(title);
            printf(", protocol %s\n", revision);
        }
        server = t->server;
        put(t->name);
        putchar('(');
        put_parameters(json_object_get(t->declared, "function"));
        fputs(")\n", stdout);
        if (*t->about) {
            word_wrap w = {0};
            term_put_words(stdout, &w, t->about, strlen(t->about));
            term_end_words(stdout, &w);
            putchar('\n');
        }
    }
    if (!mcp_set_count(set))
        term_note("no tools");
}

static status call_tool(mcp_set *set, const char *tool, const char *arguments, bool *failed, err *e)
{
    str out = {0};
    status st =
        mcp_set_call(set, tool, arguments, RESULT_BYTES, &mcp_until_interrupted, &out, failed, e);
    if (!st) {
        term_put(stdout, str_text(&out), out.n);
        putchar('\n');
    }
    str_free(&out);
    return st;
}

static int run_mcp(const command *cmd, int argc, char **argv)
{
    mcp_command_options o = {0};
    int n, stop = options_parse(cmd, argc, argv, &o, &n);
    config f = {0};
    mcp_specs specs = {.n = 0};
    mcp_set *set = NULL;
    bool failed = false;
    err e = {0};
    if (stop)
        return stop - 1;
    term_init();
    term_watch(NULL);
    term_on_end(mcp_kill_all);
    const char *file = o.config.file ? o.config.file : getenv("CARAT_CONFIG");
    const char *what = argv[0];
    status st = config_read(&f, file && *file ? file : NULL, &e);
    if (!st && !strcmp(what, "list") && n == 1)
        st = list_servers(&f, &e);
    else if (!st && !strcmp(what, "tools") && n == 2) {
        if (!(st = open_word(&f, argv[1], &specs, &set, &e)))
            list_tools(set);
    } else if (!st && !strcmp(what, "call") && (n == 3 || n == 4)) {
        if (!(st = open_word(&f, argv[1], &specs, &set, &e)))
            st = call_tool(set, argv[2], n == 4 ? argv[3] : "{}", &failed, &e);
    } else if (!st) {
        st = err_set(&e, E_ARG, "expected list, tools NAME, or call NAME TOOL [JSON]");
    }
    if (!st)
        st = term_flush(&e);
    mcp_set_close(set);
    mcp_specs_free(&specs);
    config_free(&f);
    return failed && !st ? 1 : term_exit_use(st, &e);
}

const command command_mcp = {
    .name = "mcp",
    .operands = "list | tools NAME | call NAME TOOL [JSON]",
    .summary = "List the MCP servers of the settings and their tools, or call one",
    .about =
        "MCP servers have tools for a model: carat run --mcp NAME, carat serve --mcp NAME. They\n"
        "stand in the settings (carat help config):\n"
        "\n"
        "    [mcp.files]\n"
        "    command = \"npx\"\n"
        "    args = [\"-y\", \"@modelcontextprotocol/server-filesystem\", \"/tmp\"]\n"
        "    env = { TOKEN = \"${TOKEN}\" }\n"
        "    timeout = 60\n"
        "\n"
        "    [mcp.hub]\n"
        "    url = \"https://huggingface.co/mcp\"\n"
        "    headers = { Authorization = \"Bearer ${HF_TOKEN}\" }\n"
        "\n"
        "NAME may also be a JSON file with mcpServers, as Claude Desktop and LM Studio write it.\n"
        "A program gets PATH, HOME and the like of the environment, and what env names; ${NAME}\n"
        "is a variable's value. Its stderr goes to mcp-NAME.log in $XDG_STATE_HOME/carat.",
    .options = table,
    .n_operands_min = 1,
    .n_operands_max = 4,
    .run = run_mcp};
