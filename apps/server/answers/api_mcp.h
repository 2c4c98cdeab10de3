/* api_mcp.h - tools of MCP servers for the chat page: the list, and a call that its user allowed.
 */
#ifndef APPS_SERVER_API_MCP_H
#define APPS_SERVER_API_MCP_H

#include "apps/server/http/exchange.h"

void handle_mcp_tools(exchange *x);
void handle_mcp_call(exchange *x);

#endif
