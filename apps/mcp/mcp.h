/* mcp.h - tools of MCP servers (Model Context Protocol): programs that carat starts, or addresses.
 *
 *     mcp_specs   which servers there are, as a file of settings says      servers.c
 *     mcp_client  one server: its process or address, requests, answers    client.c
 *         a child process with pipes                                       process.c, stdio.c
 *         POST by libcurl, answered by JSON or by a stream of events       http.c, events.c
 *     mcp_set     the servers of a run: their tools under unique names     set.c
 *
 * A server is a stranger: it may hang, flood, end, or answer with anything. Every wait has a
 * deadline, and every text a limit. What a server sends is data: it runs nothing here, and a
 * request of its own (sampling, roots, elicitation) is refused. Revisions of the protocol:
 * 2025-11-25 and those before it.
 *
 * A client reads what its server sends only while a request of ours waits. A server that writes at
 * other times fills its pipe and waits.
 */
#ifndef APPS_MCP_MCP_H
#define APPS_MCP_MCP_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

#include <jansson.h>

/* ---- Which servers ---- */

typedef struct mcp_spec {
    const char *name;
    const char *command; /* NULL: the server is at url */
    const char *const *arg, *const *env,
                                *const *header; /* end with NULL; "NAME=VALUE", "Name: V" */
    const char *cwd;                            /* NULL: where carat is */
    const char *url;
    double timeout_s; /* of one request */
} mcp_spec;

enum { MCP_SERVERS_MAX = 32, MCP_NAME_MAX = 64 };
#define MCP_TIMEOUT_S 60.0

typedef struct mcp_specs {
    mcp_spec at[MCP_SERVERS_MAX];
    size_t n;
    arena mem;
} mcp_specs;

/* How strict a reader is: settings of carat's own know every key, and a timeout is in seconds.
 * Other programs have keys of their own, which are left alone, and may count milliseconds. */
typedef enum mcp_file { MCP_OWN, MCP_FOREIGN } mcp_file;

/* Adds one server: an object with command, args, env, cwd, or with url and headers; and timeout.
 * dir: where a relative cwd begins; NULL: where carat is. A server of this name must not be there
 * yet. On failure s is as before. */
status mcp_specs_add(mcp_specs *s, const char *name, const json_t *o, mcp_file kind,
                     const char *dir, err *e);
/* Adds the servers of a file with "mcpServers", as Claude Desktop and LM Studio write it. Those
 * that it disables are left out. */
status mcp_specs_add_file(mcp_specs *s, const char *path, err *e);
void mcp_specs_free(mcp_specs *s); /* safe on a zeroed or freed one */

/* ---- One server ---- */

/* Asked at least every 100 ms of a wait; false ends it with E_CANCELLED. NULL in a field: none. */
typedef struct mcp_watch {
    bool (*go_on)(void *user);
    void *user;
} mcp_watch;

typedef struct mcp_client mcp_client;

/* Starts the program; says nothing to it yet. log: a file for what the server writes to stderr, and
 * for its log messages; NULL: none. spec must outlive the client. */
status mcp_client_open(mcp_client **out, const mcp_spec *spec, const char *log, err *e);
void mcp_client_close(mcp_client *c); /* ends the program; c may be NULL */
/* The tools, as the protocol has them; json_decref. Begins the session where that is to be done. */
status mcp_client_list(mcp_client *c, const mcp_watch *w, json_t **tools, err *e);
/* Calls one of them. *out: its result as text; *failed: the result says that the tool failed. A
 * server that has ended is started again. */
status mcp_client_call(mcp_client *c, const char *tool, const json_t *arguments, const mcp_watch *w,
                       str *out, bool *failed, err *e);
bool mcp_client_changed(const mcp_client *c); /* its tools may be others than at the last list */
/* What it calls itself and its revision of the protocol; "" before the first list. */
const char *mcp_client_title(const mcp_client *c);
const char *mcp_client_revision(const mcp_client *c);

/* Ends the programs of all clients at once, and waits for none: for the end of the process.
 * Async-signal-safe. */
void mcp_kill_all(void);

/* ---- All servers of a run ---- */

typedef struct mcp_tool {
    const char *name; /* for the model: letters, digits, '_' and '-', and unique in the set */
    const char *own, *server;
    const char *about;      /* its description, or "" */
    const json_t *declared; /* in OpenAI's form */
    bool automatic;         /* --tools-auto */
    bool allowed;           /* the user said "always"; gone when the tool's declaration changes */
} mcp_tool;

typedef struct mcp_set mcp_set;
/* May a model be offered this declaration? The error says why not. */
typedef status mcp_accept(void *user, const json_t *declared, err *e);

typedef struct mcp_set_options {
    const mcp_specs *specs;       /* must outlive the set */
    const char *const *automatic; /* [n_automatic] NAME or SERVER/NAME; must outlive the set */
    size_t n_automatic;
    /* The log of a server of that name; false: none. */
    bool (*log)(const char *server, char *path, size_t cap);
    mcp_accept *accept;                             /* NULL: every declaration */
    void (*tell)(void *user, const char *sentence); /* of a tool that is left out, and why */
    void *user;
} mcp_set_options;

/* Starts all servers and lists their tools. One that fails ends them all. */
status mcp_set_open(mcp_set **out, const mcp_set_options *o, const mcp_watch *w, err *e);
void mcp_set_close(mcp_set *s); /* s may be NULL */

/* ---- Of any thread. A server has one request at a time; others wait for their turn ---- */

/* Lists anew where a server said that its tools have changed. *changed: any is another. A server
 * that fails keeps its tools, and the sentence is told. One that is busy is left for later. */
void mcp_set_refresh(mcp_set *s, const mcp_watch *w, bool *changed);
/* Calls a tool by its name for the model, with the arguments as the model wrote them. out: the
 * result for the model, of about max bytes at most, also where the call failed. E_CANCELLED,
 * E_MEMORY and E_ARG, for a name that no tool has, are errors; whatever a server does is a result
 * with *failed. */
status mcp_set_call(mcp_set *s, const char *name, const char *arguments, size_t max,
                    const mcp_watch *w, str *out, bool *failed, err *e);
/* The declarations as a JSON array in OpenAI's form. */
void mcp_set_put_tools(mcp_set *s, str *out);
/* A JSON array of {"name", "server", "auto", "declared"}, for the chat page. accept: as in the
 * options, of a model that is known now; NULL: none. A tool that it refuses has its sentence as
 * "left_out". */
void mcp_set_put_offer(mcp_set *s, mcp_accept *accept, void *user, str *out);

/* ---- Of the thread that refreshes alone ---- */

size_t mcp_set_count(const mcp_set *s);
const mcp_tool *mcp_set_at(const mcp_set *s, size_t i);
const mcp_tool *mcp_set_find(const mcp_set *s, const char *name); /* NULL: there is none */
void mcp_set_allow(mcp_set *s, const char *name);
/* What a server calls itself, and its revision of the protocol. */
const char *mcp_set_title(const mcp_set *s, const char *server, const char **revision);

#endif
