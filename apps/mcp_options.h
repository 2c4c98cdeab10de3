/* mcp_options.h - the options on tools of MCP servers, and [mcp.NAME] of the settings.
 *
 *     [mcp.files]                         carat run --mcp files
 *     command = "npx"
 *     args = ["-y", "@modelcontextprotocol/server-filesystem", "/tmp"]
 *     env = { TOKEN = "${TOKEN}" }        what it gets beside PATH, HOME and the like
 *     cwd = "~/work"
 *     timeout = 60                        seconds for one request
 *     [mcp.hub]
 *     url = "https://huggingface.co/mcp"
 *     headers = { Authorization = "Bearer ${HF_TOKEN}" }
 *
 * A subcommand has a field `mcp_options mcp` in its struct and OPT_MCP(type of the struct) in its
 * table.
 */
#ifndef APPS_MCP_OPTIONS_H
#define APPS_MCP_OPTIONS_H

#include "apps/config.h"
#include "apps/mcp/mcp.h"
#include "apps/options.h"

typedef struct mcp_options {
    option_list servers, automatic;
    bool none;
    int64_t rounds;
} mcp_options;

enum { MCP_ROUNDS_MAX = 1000 };
/* The values of options that were not given. */
#define MCP_OPTIONS_NONE                                                                           \
    {                                                                                              \
        .rounds = 16                                                                               \
    }

/* needs: when tools can be used at all, or NULL. */
#define OPT_MCP(T, needs)                                                                          \
    OPT_LIST(T, mcp.servers, "mcp", 0, "NAME",                                                     \
             "offer the model the tools of this MCP server of the settings, or of those in a "     \
             "JSON file with mcpServers; repeatable",                                              \
             needs),                                                                               \
        OPT_FLAG(T, mcp.none, "no-mcp", 0, "offer no tools of MCP servers"),                       \
        OPT_LIST(T, mcp.automatic, "tools-auto", 0, "TOOL",                                        \
                 "run this tool of an MCP server without a question; TOOL or SERVER/TOOL; "        \
                 "repeatable",                                                                     \
                 "mcp")

/* The servers that the options name. f: the settings. E_ARG: there is none of that name. */
status mcp_options_specs(const mcp_options *o, const config *f, mcp_specs *out, err *e);
/* All servers of the settings. */
status mcp_options_all(const config *f, mcp_specs *out, err *e);
/* Checks [mcp]. secret: nobody but the owner may read the file. */
status mcp_options_check(const config *f, const toml *servers, bool secret, err *e);
/* For programs at a terminal: Ctrl-C ends a wait, and sentences are notes. */
extern const mcp_watch mcp_until_interrupted;
void mcp_options_tell(void *user, const char *sentence);
/* Where the words of a server go: mcp-NAME.log in the folder of kept conversations. */
bool mcp_options_log(const char *server, char *path, size_t cap);

#endif
