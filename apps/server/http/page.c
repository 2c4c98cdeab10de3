/* page.c - the chat page: two forms, the policy, the tags. apps/web/ has the page itself. */
#include "apps/server/http/page.h"

#include "apps/embed.h"
#include "apps/server/http/exchange.h"
#include "apps/server/http/head.h"
#include "apps/server/models/info.h"
#include "base/hash.h"
#include "base/sha.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The policy ---- */

/* Adds " 'sha256-...'". */
static void put_source(const char *bytes, size_t n, str *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char hex[65];
    unsigned char sum[33] = {0};
    sha_stream s;
    sha256_init(&s);
    sha_put(&s, bytes, n);
    sha_text(&s, hex);
    for (int i = 0; i < 32; i++)
        sum[i] = (unsigned char)strtoul((char[]){hex[2 * i], hex[2 * i + 1], 0}, NULL, 16);
    str_puts(out, " 'sha256-");
    for (int i = 0; i < 33; i += 3) {
        uint32_t bits = (uint32_t)sum[i] << 16 | (uint32_t)sum[i + 1] << 8 | sum[i + 2];
        for (int k = 0; k < (i < 30 ? 4 : 3); k++)
            str_putc(out, digits[bits >> (18 - 6 * k) & 63]);
    }
    str_puts(out, "='");
}

/* The sources of all texts between open and close. */
static void put_sources(const char *page, size_t n, const char *open, const char *close, str *out)
{
    const char *end = page + n;
    const char *at = page;
    while ((at = memmem(at, (size_t)(end - at), open, strlen(open)))) {
        at += strlen(open);
        const char *stop = memmem(at, (size_t)(end - at), close, strlen(close));
        if (!stop)
            return;
        put_source(at, (size_t)(stop - at), out);
        at = stop;
    }
}

void page_policy(const char *page, size_t n, str *out)
{
    str_puts(out, "default-src 'none'; script-src");
    put_sources(page, n, "<script>", "</script>", out);
    str_puts(out, "; style-src");
    put_sources(page, n, "<style>", "</style>", out);
    str_puts(out, "; worker-src blob:; connect-src 'self'; img-src data:; font-src data:; "
                  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
}

/* ---- The page ---- */

#ifdef CARAT_PAGE
EMBED("carat_page", CARAT_PAGE);
EMBED("carat_page_gz", CARAT_PAGE_GZ);
EMBEDDED const char carat_page_begin[], carat_page_end[];
EMBEDDED const char carat_page_gz_begin[], carat_page_gz_end[];

static struct {
    str policy;
    char tag[24], tag_gz[28]; /* each form has a tag of its own */
} page;
static pthread_once_t page_once = PTHREAD_ONCE_INIT;

static void make_page(void)
{
    size_t n = (size_t)(carat_page_end - carat_page_begin);
    uint64_t hash = hash64(carat_page_begin, n);
    snprintf(page.tag, sizeof page.tag, "\"%016llx\"", (unsigned long long)hash);
    snprintf(page.tag_gz, sizeof page.tag_gz, "\"%016llx-gz\"", (unsigned long long)hash);
    page_policy(carat_page_begin, n, &page.policy);
}

void handle_page(exchange *x)
{
    pthread_once(&page_once, make_page);
    bool gzip = accepts_gzip(x->header(x, "Accept-Encoding"));
    if (page.policy.bad) { /* never the page without its policy */
        problem p = {0};
        problem_set(&p, 503, "", "no memory for the page");
        reply_problem(x, &p);
        return;
    }
    x->type = "text/html; charset=utf-8";
    x->policy = page.policy.at;
    x->tag = gzip ? page.tag_gz : page.tag;
    x->encoding = gzip ? "gzip" : NULL;
    x->file = gzip ? carat_page_gz_begin : carat_page_begin;
    x->n_file = (size_t)((gzip ? carat_page_gz_end : carat_page_end) - x->file);
    x->status = 200;
    if (names_tag(x->header(x, "If-None-Match"), x->tag)) {
        x->status = 304;
        x->n_file = 0;
    }
}
#else
void handle_page(exchange *x)
{
    handle_live(x);
}
#endif
