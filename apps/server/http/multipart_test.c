/* multipart_test.c - forms as programs send them, and forms that are none. */
#include "apps/server/http/multipart.h"
#include "tests/test.h"

static const char type[] = "multipart/form-data; boundary=----WebKitFormBoundaryX";
#define B "------WebKitFormBoundaryX"

static void split(multipart *m, const char *body, size_t n)
{
    err e = {0};
    CHECK_OK(multipart_split(m, type, body, n, &e), e);
}

static void check_field(const multipart *m, const char *name, const char *file, const char *want,
                        size_t n)
{
    const multipart_field *f = multipart_find(m, name);
    CHECK_MSG(f, "no field %s", name);
    CHECK(f->n == n && !memcmp(f->at, want, n));
    CHECK(!f->file == !file);
    CHECK(!file || (f->n_file == strlen(file) && !memcmp(f->file, file, f->n_file)));
}

TEST(multipart_splits_forms)
{
    static const char body[] =
        "preamble\r\n" B
        "\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a;b=\\\"1.wav\""
        "\r\nContent-Type: audio/wav\r\n\r\nRIFF\0\r\n--\r\n-----\r\n\r\n" B
        "  \r\ncontent-disposition:form-data;name=model\r\n\r\nwhisper-1\r\n" B
        "\r\nContent-Disposition: form-data; name=\"empty\"\r\n\r\n\r\n" B
        "\r\nContent-Disposition: form-data; name=\"none\"\r\n\r\n" B "--\r\nepilogue";
    static multipart m;
    split(&m, body, sizeof body - 1);
    CHECK_EQ(m.n, 4);
    check_field(&m, "file", "a;b=\\\"1.wav", "RIFF\0\r\n--\r\n-----\r\n", 18);
    check_field(&m, "model", NULL, "whisper-1", 9);
    check_field(&m, "empty", NULL, "", 0);
    check_field(&m, "none", NULL, "", 0);
    CHECK(!multipart_find(&m, "prompt"));
    CHECK(multipart_is("Multipart/Form-Data") && !multipart_is("multipart/form-datax") &&
          !multipart_is(NULL) && !multipart_is("application/json"));
}

static void refuses(const char *of, const char *body, status want, const char *sentence)
{
    static multipart m;
    err e = {0};
    CHECK_STATUS(multipart_split(&m, of, body, strlen(body), &e), want);
    CHECK_MSG(strstr(e.text, sentence), "%s", e.text);
}

TEST(multipart_refuses_what_is_no_form)
{
    char many[8192] = "";
    const char *const part = B "\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb\r\n";
    refuses("application/json", "{}", E_FORMAT, "no multipart/form-data");
    refuses("multipart/form-data", "", E_FORMAT, "with a boundary");
    refuses("multipart/form-data; boundary=\"", "", E_FORMAT, "with a boundary");
    refuses("multipart/form-data; boundary=\"a", "", E_FORMAT, "with a boundary");
    refuses("multipart/form-data; boundary=", "", E_FORMAT, "with a boundary");
    refuses(type, "", E_FORMAT, "has no part");
    multipart none = {.n = 9};
    err e = {0};
    CHECK_EQ(multipart_split(&none, type, NULL, 0, &e), E_FORMAT); /* a request without a body */
    CHECK_EQ(none.n, 0);
    refuses(type, B, E_FORMAT, "no end");
    refuses(type, B "\r\n", E_FORMAT, "ends in its headers");
    refuses(type, B "x\r\n", E_FORMAT, "no end");
    refuses(type, B "\r\nContent-Disposition: form-data; name=\"a\"\r\n", E_FORMAT, "headers");
    refuses(type, B "\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb", E_FORMAT, "no end");
    refuses(type, B "\r\nContent-Disposition: form-data\r\n\r\nb\r\n" B "--", E_FORMAT, "no name");
    for (int i = 0; i <= MULTIPART_MAX; i++)
        strcat(many, part);
    refuses(type, many, E_LIMIT, "more than 64 parts");
}
