/* licences_test.c - the program says whose work is in it. */
#include "tests/spawn.h"
#include "tests/test.h"

TEST(version_names_the_licences_of_all_that_the_program_embeds)
{
    static const char *const said[] = {
        "KaTeX ",           "KaTeX fonts",    "SIL OPEN FONT LICENSE",
        "Khan Academy",     "markdown-it ",   "linkify-it ",
        "Vitaly Puzrin",    "highlight.js ",  "Ivan Sagalaev",
        "entities ",        "punycode.js",    "Mathias Bynens",
        "uc.micro ",        "mdurl ",         "llama.cpp",
        "The ggml authors", "Apache License", "END OF TERMS AND CONDITIONS"};
    static const char *const spelled[] = {"--licences", "--licenses"};
    for (int i = 0; i < 2; i++) {
        AUTO(spawned_free) spawned r;
        spawn_carat(&r, NULL, ARGS("version", spelled[i]));
        CHECK_EQ(r.code, 0);
        for (size_t k = 0; k < sizeof said / sizeof *said; k++)
            CHECK_MSG(strstr(str_text(&r.out), said[k]), "no '%s'", said[k]);
    }
}
