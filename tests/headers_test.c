/* headers_test.c - the public headers, as compilers of C and C++ see them. */
#include "base/str.h"
#include "tests/test.h"

PLAIN_TEST(public_headers_compile_as_c_and_cpp_without_warnings)
{
    char line[4096];
    AUTO(str_free) str said = {0};
    if (SANITIZED)
        test_skip("compilers are not sanitized");
    snprintf(line, sizeof line, "sh '%s' %s 2>&1", test_path("tools/headers.sh"),
             test_brief() ? "brief" : "");
    FILE *f = popen(line, "r");
    CHECK(f);
    for (int c; (c = fgetc(f)) != EOF;)
        str_putc(&said, (char)c);
    int code = pclose(f);
    CHECK_MSG(!code, "tools/headers.sh: %s", str_text(&said));
    if (!strstr(str_text(&said), "tried: "))
        test_skip("no compiler is installed");
}
