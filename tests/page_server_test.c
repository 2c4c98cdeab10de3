/* page_server_test.c - the chat page as the server sends it. tools/page_check.py uses it in a
 * browser. */
#include "apps/server/http/head.h"
#include "apps/server/http/page.h"
#include "tests/server_rig.h"

#include <string.h>
#include <unistd.h>

TEST(page_accepts_gzip)
{
    static const struct {
        const char *value;
        bool yes;
    } cases[] = {{NULL, false},
                 {"", false},
                 {"gzip", true},
                 {"GZIP", true},
                 {"x-gzip", true},
                 {"deflate, gzip;q=0.5, br", true},
                 {"gzip;q=0", false},
                 {"gzip ; q=0.000, *", false},
                 {"*", true},
                 {"*;q=0", false},
                 {"identity, br", false},
                 {"gzipped", false},
                 {"gzip;level=9;q=0.1", true},
                 {",,, ;q,gzip", true},
                 {";;;=q=;,", false},
                 {"br;q=1.0, gzip;q=nan", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_MSG(accepts_gzip(cases[i].value) == cases[i].yes, "case %zu: %s", i, cases[i].value);
}

TEST(page_names_tags)
{
    CHECK(!names_tag(NULL, "\"a\""));
    CHECK(!names_tag("", "\"a\""));
    CHECK(!names_tag("\"a-gz\"", "\"a\""));
    CHECK(!names_tag("a", "\"a\""));
    CHECK(names_tag("*", "\"a\""));
    CHECK(names_tag("\"b\", W/\"a\"", "\"a\""));
    CHECK(names_tag("\"b\",\"a\" ", "\"a\""));
}

TEST(page_policy_names_its_scripts)
{
    /* printf abc | openssl dgst -sha256 -binary | base64 */
    static const char abc[] = "'sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0='";
    static const char text[] = "<style>abc</style><script type=x>no</script><script>abc</script>"
                               "<style></style><script>open";
    AUTO(str_free) str out = {0};
    page_policy(text, sizeof text - 1, &out);
    const char *script = strstr(out.at, "script-src"), *style = strstr(out.at, "style-src");
    CHECK(script && strstr(script, abc) && script < style && strstr(style, abc));
    CHECK(strstr(style, "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"));
    CHECK(!strstr(out.at, "unsafe"));
}

static status make_policy(void *arg, err *e)
{
    AUTO(str_free) str out = {0};
    (void)arg;
    page_policy("<script>x</script>", 18, &out);
    bool bad = out.bad;
    return bad ? err_set(e, E_MEMORY, "no memory") : OK;
}

TEST(page_policy_without_memory)
{
    test_every_allocation(make_policy, NULL);
}

/* What gzip(1) makes of it. */
static void unzip(const str *in, str *out)
{
    char path[] = "/tmp/carat_page_XXXXXX", line[80], buf[16384];
    int fd = mkstemp(path);
    size_t n;
    CHECK(fd >= 0 && write(fd, in->at, in->n) == (ssize_t)in->n);
    close(fd);
    snprintf(line, sizeof line, "gzip -dc < %s", path);
    FILE *f = popen(line, "r");
    CHECK(f);
    while ((n = fread(buf, 1, sizeof buf, f)))
        str_put(out, buf, n);
    CHECK_EQ(pclose(f), 0);
    unlink(path);
}

/* The value of a header, up to the end of its line. */
static void header_of(const response *r, const char *name, char *value, size_t n_value)
{
    const char *at = strstr(r->head.at, name);
    CHECK_MSG(at, "no %s in %s", name, r->head.at);
    at += strlen(name) + 2;
    snprintf(value, n_value, "%.*s", (int)strcspn(at, "\r\n"), at);
}

/* A body as the page makes it, with n_turns before the last question. */
static void put_page_body(str *body, int n_turns)
{
    str_cut(body, 0);
    str_puts(body,
             "{\"model\":\"toy\",\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"}");
    for (int i = 0; i < n_turns; i++)
        str_puts(body, ",{\"role\":\"user\",\"content\":\"What did I say before this?\"},"
                       "{\"role\":\"assistant\",\"content\":\"I cannot know that.\"}");
    str_puts(body, ",{\"role\":\"user\",\"content\":\"And now?\"}],\"stream\":true,"
                   "\"stream_options\":{\"include_usage\":true},\"return_progress\":true,"
                   "\"temperature\":0,\"max_tokens\":4,"
                   "\"chat_template_kwargs\":{\"enable_thinking\":false}}");
    CHECK(!body->bad);
}

/* What apps/web/full.js relies on: the code of the refusal, and counts of prompts that are too long
 * for the context, from the same body. */
TEST(server_page_counts_a_conversation_that_is_too_long)
{
    AUTO(stop) served s;
    response r;
    AUTO(str_free) str body = {0};
    start_toy(&s, NULL);
    for (int n_turns = 0; n_turns <= 100; n_turns += 100) {
        bool fits = !n_turns;
        put_page_body(&body, n_turns);
        http_call(&r, &s, "POST", "/v1/chat/completions", NULL, body.at);
        CHECK_EQ(r.status, fits ? 200 : 400);
        CHECK(!!strstr(r.body.at, "\"code\":\"context_length_exceeded\"") != fits);
        response_free(&r);
        http_call(&r, &s, "POST", "/tokenize", NULL, body.at);
        CHECK_EQ(r.status, 200);
        CHECK(strstr(r.body.at, "\"max_model_len\":512"));
        const char *count = strstr(r.body.at, "\"count\":");
        CHECK(count && atol(count + strlen("\"count\":")) > 0);
        CHECK((atol(count + strlen("\"count\":")) < 512) == fits);
        response_free(&r);
    }
}

TEST(server_page_is_compressed_and_plain)
{
    AUTO(stop) served s;
    AUTO(response_free) response plain, small, again;
    char tag[64], tag_gz[64], policy[1024], line[128];
    AUTO(str_free) str whole = {0}, expected = {0};
    start_toy(&s, NULL);
    http_call(&plain, &s, "GET", "/", NULL, NULL);
    http_call(&small, &s, "GET", "/", "Accept-Encoding: br, gzip\r\n", NULL);
    CHECK_EQ(plain.status, 200);
    CHECK_EQ(small.status, 200);
    CHECK(strstr(plain.head.at, "Content-Type: text/html; charset=utf-8"));
    CHECK(!strstr(plain.head.at, "Content-Encoding"));
    CHECK(strstr(small.head.at, "Content-Encoding: gzip"));
    CHECK(strstr(plain.head.at, "Vary: Accept-Encoding"));
    CHECK(strstr(plain.head.at, "Cache-Control: no-cache"));
    unzip(&small.body, &whole);
    CHECK(whole.n == plain.body.n && !memcmp(whole.at, plain.body.at, whole.n));
    CHECK_MSG(plain.body.n < 1200 * 1024 && small.body.n < 520 * 1024, "%zu and %zu bytes",
              plain.body.n, small.body.n);
    /* The policy fits the page: every script and style that is sent, none that is not. */
    header_of(&plain, "Content-Security-Policy", policy, sizeof policy);
    page_policy(plain.body.at, plain.body.n, &expected);
    CHECK(!strcmp(policy, expected.at));
    CHECK(!strstr(policy, "unsafe") && !strstr(policy, "http"));
    char *libraries = strstr(plain.body.at, "<script type");
    CHECK(libraries);
    *libraries = 0; /* the elements of the page are in front of them */
    CHECK(!strstr(plain.body.at, " style=\"") && !strstr(plain.body.at, " onclick="));
    /* Browsers that have it are told so. */
    header_of(&plain, "ETag", tag, sizeof tag);
    header_of(&small, "ETag", tag_gz, sizeof tag_gz);
    CHECK(strcmp(tag, tag_gz));
    snprintf(line, sizeof line, "If-None-Match: %s\r\nAccept-Encoding: gzip\r\n", tag_gz);
    http_call(&again, &s, "GET", "/", line, NULL);
    CHECK_EQ(again.status, 304);
    CHECK_EQ(again.body.n, 0);
    CHECK(strstr(again.head.at, "ETag: ") && strstr(again.head.at, "Content-Security-Policy: "));
    response_free(&again);
    snprintf(line, sizeof line, "If-None-Match: %s\r\n", tag_gz);
    http_call(&again, &s, "GET", "/", line, NULL);
    CHECK_EQ(again.status, 200);
    response_free(&again);
    http_call(&again, &s, "HEAD", "/", NULL, NULL);
    CHECK_EQ(again.status, 200);
    CHECK_EQ(again.body.n, 0);
}
