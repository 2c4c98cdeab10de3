#include "base/decimal.h"
#include "tests/test.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

TEST(decimal_has_a_point_in_a_locale_with_commas)
{
    char line[400], *end;
    const char *dir = test_temp("locales"), *text = "0.25,7";
    CHECK(!mkdir(dir, 0700) && !setenv("LOCPATH", dir, 1));
    snprintf(line, sizeof line, "localedef -i de_DE -f UTF-8 '%s/de_DE.UTF-8' >/dev/null 2>&1",
             dir);
    if (system(line) || !setlocale(LC_ALL, "de_DE.UTF-8"))
        test_skip("localedef cannot make a German locale here");
    CHECK(strtod("0,5", NULL) == 0.5);
    CHECK(decimal_read(text, &end) == 0.25 && end == text + 4);
}
