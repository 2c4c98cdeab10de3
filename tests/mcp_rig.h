/* mcp_rig.h - an MCP server for tests, with every misbehaviour: as a program, which is the test
 * binary itself (--mcp-fake MODE), or at an address of this machine.
 *
 * Tools: "echo" gives its arguments back, "add" adds a and b. The mode says what else happens; the
 * list is in mcp_rig.c.
 */
#ifndef TESTS_MCP_RIG_H
#define TESTS_MCP_RIG_H

#include "apps/mcp/mcp.h"

#include <pthread.h>
#include <stdatomic.h>

_Noreturn void mcp_fake_main(const char *mode);

/* One server of that mode, as a program, under the name "fake". */
void mcp_rig_specs(mcp_specs *s, const char *mode, double timeout_s);
/* The words of its command line: argv[0], "--mcp-fake", mode. */
const char *mcp_rig_program(void);

/* A file with this server. Its process writes its id into test_temp("pid"). */
const char *mcp_rig_file(const char *mode);

typedef struct mcp_http_rig {
    const char *mode;
    int listener;
    char url[64];
    pthread_t thread;
    atomic_bool stop;
    atomic_int n_posts, n_gets, n_deletes, n_without_session, n_without_version, n_sessions;
} mcp_http_rig;

void mcp_http_open(mcp_http_rig *r, const char *mode);
void mcp_http_specs(mcp_specs *s, const mcp_http_rig *r, double timeout_s);
void mcp_http_close(mcp_http_rig *r);

#endif
