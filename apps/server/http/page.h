/* page.h - the chat page at /, which is part of the program, plain and compressed. */
#ifndef APPS_SERVER_PAGE_H
#define APPS_SERVER_PAGE_H

#include "base/str.h"

#include <stddef.h>

struct exchange;

/* GET /. The page with its policy and its tag: compressed for clients that accept gzip, else plain;
 * status 304 if the client has it. Any thread. A build without the page answers like /health/live.
 */
void handle_page(struct exchange *x);

/* The Content-Security-Policy of a page: its own styles and scripts, by their SHA-256, and no
 * other. A page has `<style>`...`</style>` and `<script>`...`</script>` without attributes; a
 * script with attributes is data. Without memory out->bad is set. */
void page_policy(const char *page, size_t n, str *out);

#endif
