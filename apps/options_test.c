/* options_test.c - options by name, the layers that set them, and "did you mean". */
#include "apps/commands.h"
#include "base/nearest.h"
#include "tests/test.h"
#include "apps/compress.h"

typedef struct sample_options {
    bool quiet, loud, plain;
    int64_t n;
    double temp;
    const char *name;
    option_list stop;
} sample_options;

static const option rows[] = {OPT_FLAG(sample_options, quiet, "quiet", 'q', "no output"),
                              OPT_INT(sample_options, n, "top-k", 'k', "N", 0, 100, "a number"),
                              OPT_REAL(sample_options, temp, "temp", 0, "X", 0, 2, "a number"),
                              OPT_STR(sample_options, name, "model", 'm', "FILE", "a file"),
                              OPT_LIST(sample_options, stop, "stop", 0, "TEXT", "texts"),
                              OPT_END};

static const command sample = {
    .name = "sample", .operands = "", .summary = "", .options = rows, .n_operands_max = -1};

TEST(options_are_set_by_name)
{
    sample_options o = {0};
    err e = {0};
    CHECK_OK(options_set(rows, "quiet", NULL, &o, NULL, 2, &e), e);
    CHECK_OK(options_set(rows, "top_k", "40", &o, NULL, 2, &e), e);
    CHECK_OK(options_set(rows, "temp", "0.5", &o, NULL, 2, &e), e);
    CHECK_OK(options_set(rows, "model", "x.gguf", &o, NULL, 2, &e), e);
    CHECK_OK(options_set(rows, "stop", "a", &o, NULL, 2, &e), e);
    CHECK_OK(options_set(rows, "stop", "b", &o, NULL, 2, &e), e);
    CHECK(o.quiet && o.n == 40 && o.temp == 0.5 && o.stop.n == 2);
    CHECK_STR(o.name, "x.gguf");
    CHECK_STR(o.stop.at[1], "b");
    CHECK_OK(options_set(rows, "quiet", "false", &o, NULL, 2, &e), e);
    CHECK(!o.quiet);

    static const struct {
        const char *name, *value, *says;
    } bad[] = {
        {"temp", "hot", "temp=hot: expected a number from 0 to 2"},
        {"top-k", "1.5", "top-k=1.5: expected a whole number from 0 to 100"},
        {"top-k", "101", "top-k=101: expected a whole number"},
        {"temp", NULL, "temp needs a value"},
        {"quiet", "yes", "quiet=yes: expected true or false"},
        {"top-p", "1", "there is no option 'top-p'; did you mean 'top-k'?"},
        {"temperatures", "1", "did you mean 'temp'?"},
        {"temperature", "hot", "temperature=hot: expected a number from 0 to 2"},
        {"", "1", "there is no option ''"},
        {"frobnicate", "1", "there is no option 'frobnicate'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err_clear(&e);
        CHECK_STATUS(options_set(rows, bad[i].name, bad[i].value, &o, NULL, 2, &e), E_ARG);
        CHECK_MSG(strstr(e.text, bad[i].says), "\"%s\", expected \"%s\"", e.text, bad[i].says);
    }
    CHECK(o.n == 40 && o.temp == 0.5);
    for (int i = o.stop.n; i < OPTION_LIST_MAX; i++)
        CHECK_STATUS(options_set(rows, "stop", "c", &o, NULL, 2, NULL), OK);
    CHECK_STATUS(options_set(rows, "stop", "c", &o, NULL, 2, NULL), E_ARG);
}

static const option flags[] = {OPT_FLAG(sample_options, quiet, "quiet", 'q', "no output"),
                               OPT_FLAG(sample_options, loud, "no-quiet", 0, "output"),
                               OPT_FLAG(sample_options, plain, "plain", 0, "no colours"), OPT_END};
static const command of_flags = {
    .name = "sample", .operands = "", .summary = "", .options = flags, .n_operands_max = -1};

TEST(flags_take_true_and_false)
{
    static const struct {
        const char *word;
        bool quiet, loud, plain;
    } cases[] = {{"--quiet", true, false, false},       {"--quiet=true", true, false, false},
                 {"--quiet=false", false, true, false}, {"--no-quiet=0", true, false, false},
                 {"--no-quiet=1", false, true, false},  {"--plain=1", false, false, true},
                 {"--plain=false", false, false, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sample_options o = {0};
        char word[32], *argv[] = {word};
        option_marks m = {{0}};
        int n;
        snprintf(word, sizeof word, "%s", cases[i].word);
        CHECK_EQ(options_parse_marked(&of_flags, 1, argv, &o, &n, &m), 0);
        CHECK_MSG(o.quiet == cases[i].quiet && o.loud == cases[i].loud && o.plain == cases[i].plain,
                  "%s", word);
    }
    /* What the command line says against a flag counts before the settings. */
    sample_options o = {0};
    char word[] = "--plain=false", *argv[] = {word};
    option_marks m = {{0}};
    int n;
    err e = {0};
    CHECK_EQ(options_parse_marked(&of_flags, 1, argv, &o, &n, &m), 0);
    CHECK_OK(options_set(flags, "plain", "true", &o, &m, 2, &e), e);
    CHECK(!o.plain);
}

/* The command line is parsed first, and what comes later does not change it. */
TEST(options_of_a_lower_layer_stay)
{
    char *argv[] = {(char[]){"word"}, (char[]){"--temp=1"}, (char[]){"--stop"}, (char[]){"x"}};
    sample_options o = {.n = -2};
    option_marks m = {{0}};
    int n_operands;
    err e = {0};
    CHECK_EQ(options_parse_marked(&sample, 4, argv, &o, &n_operands, &m), 0);
    CHECK_EQ(n_operands, 1);
    static const char *const settings[][3] = {
        {"2", "temp", "0.1"}, {"2", "top-k", "7"}, {"2", "stop", "y"},     {"3", "top-k", "8"},
        {"3", "model", "a"},  {"3", "model", "b"}, {"4", "quiet", "true"}, {"4", "model", "c"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        CHECK_OK(
            options_set(rows, settings[i][1], settings[i][2], &o, &m, atoi(settings[i][0]), &e), e);
    CHECK(o.temp == 1 && o.n == 7 && o.stop.n == 1 && o.quiet);
    CHECK_STR(o.stop.at[0], "x");
    CHECK_STR(o.name, "b");
    static const unsigned char who[] = {4, 2, 1, 3, 1};
    CHECK(!memcmp(m.layer, who, sizeof who));
    CHECK_EQ(options_find(rows, "temp") - rows, 2);
    CHECK(!options_find(rows, "tem") && !options_find(rows, "temps"));
}

TEST(options_tables_fit_their_marks)
{
    for (const command *const *c = commands; *c; c++) {
        int n = 0;
        for (const option *o = (*c)->options; o && o->name; o++, n++) {
            CHECK_MSG(o->kind == OPTION_HEADING || options_find((*c)->options, o->name) == o,
                      "%s --%s twice", (*c)->name, o->name);
            for (const option *p = (*c)->options; o->letter && p < o; p++)
                CHECK_MSG(p->letter != o->letter, "%s -%c twice", (*c)->name, o->letter);
        }
        CHECK_MSG(n < OPTION_ROWS_MAX, "%s has %d options", (*c)->name, n);
    }
}

/* Does every name in `needs` stand in the same table? */
static void check_needs(const command *c, const option *o)
{
    char copy[200], name[100];
    snprintf(copy, sizeof copy, "%s", o->needs + (*o->needs == '~'));
    for (char *save, *w = strtok_r(copy, "&|", &save); w; w = strtok_r(NULL, "&|", &save)) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(w + (*w == '!'), "="), w + (*w == '!'));
        CHECK_MSG(*w == '@' || options_find(c->options, name), "%s --%s needs %s", c->name, o->name,
                  w);
    }
}

TEST(options_need_only_options_that_exist)
{
    for (const command *const *c = commands; *c; c++)
        for (const option *o = (*c)->options; o && o->name; o++)
            if (o->needs)
                check_needs(*c, o);
}

/* The number of rows of an option in a list of --help. */
static int times_listed(const char *list, const option *o)
{
    char row[100];
    int n = 0;
    size_t len = (size_t)snprintf(row, sizeof row, "--%s", o->name);
    for (const char *at = list; (at = strstr(at, row)); at += len)
        n += at - list > 7 && at[-1] == ' ' && (at[-7] == '\n' || !memcmp(at - 7, "\n  -", 4)) &&
             strchr(" [\n", at[len]);
    return n;
}

TEST(help_lists_the_options_used_most_first_and_each_option_once)
{
    for (const command *const *c = commands; *c; c++) {
        AUTO_PTR(free) char *text = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        CHECK(out != NULL);
        options_print_help(*c, out);
        fclose(out);
        int n = 0;
        const option *o = (*c)->options;
        char *list = strstr(text, (*c)->first ? "\nUsed most:\n" : "\nOptions:\n");
        CHECK_MSG(list || !o || !o->name, "%s lists no options", (*c)->name);
        CHECK_MSG(!(*c)->first || (o->kind == OPTION_HEADING && !strstr(text, "\nOptions:\n")),
                  "%s has options without a group", (*c)->name);
        for (; list && o->name; o++)
            CHECK_MSG(times_listed(list, o) == !!o->help, "%s lists --%s %d times", (*c)->name,
                      o->name, times_listed(list, o));
        char *others = list ? strstr(list, "\n\n") : NULL;
        CHECK_EQ(others != NULL, (*c)->first != NULL);
        if (others)
            *others = 0;
        for (o = (*c)->options; others && o->name; o++)
            n += times_listed(list, o);
        CHECK_MSG(!others || n == 15, "%s lists %d options first", (*c)->name, n);
    }
}

/* Another name of an option is not the name of one, and means the same option everywhere. */
TEST(options_have_other_names_of_their_own)
{
    for (const command *const *c = commands; *c; c++)
        for (const option *o = (*c)->options; o && o->name; o++) {
            char words[160];
            snprintf(words, sizeof words, "%s", o->also ? o->also : "");
            CHECK(strlen(words) < sizeof words - 1);
            for (char *save, *w = strtok_r(words, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
                foreign_option f;
                CHECK_MSG(foreign_find(w, &f) && f.name && !strcmp(f.name, o->name) && !f.value,
                          "carat %s: %s of --%s", (*c)->name, w, o->name);
                CHECK_MSG(!options_find((*c)->options, w + 2), "carat %s %s", (*c)->name, w);
            }
        }
}

/* The text of a FILE that print writes to. */
static void printed_lists(const char *what, void (*print)(FILE *out))
{
    AUTO_PTR(free) char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    CHECK(out != NULL);
    print(out);
    fclose(out);
    CHECK_MSG(strstr(text, "seen"), "%s lacks an option with help", what);
    CHECK_MSG(!strstr(text, "unlisted"), "%s lists an option without help", what);
}

static const option half_listed[] = {OPT_STR(sample_options, name, "seen", 0, "FILE", "a file"),
                                     OPT_INT(sample_options, n, "unlisted", 0, "N", 0, 9, NULL),
                                     OPT_END};
static const command half = {
    .name = "half", .operands = "", .summary = "", .options = half_listed, .n_operands_max = 0};
static void print_half_help(FILE *out)
{
    options_print_help(&half, out);
}
static void print_half_markdown(FILE *out)
{
    const command *const list[] = {&half, NULL};
    options_print_markdown(list, out);
}
static void print_half_man(FILE *out)
{
    const command *const list[] = {&half, NULL};
    options_print_man(list, out);
}

TEST(options_without_help_are_taken_and_not_listed)
{
    sample_options o = {0};
    err e = {0};
    CHECK_OK(options_set(half_listed, "unlisted", "7", &o, NULL, 1, &e), e);
    CHECK_EQ(o.n, 7);
    printed_lists("--help", print_half_help);
    printed_lists("--markdown", print_half_markdown);
    printed_lists("--man", print_half_man);
}

typedef struct pool_rows {
    const char *pool, *policy;
    int64_t tau, most;
    bool raw, trace;
    double heat;
} pool_rows;

static const option needy[] = {
    OPT_STR(pool_rows, pool, "pool", 0, "N", "tokens"),
    OPT_STR(pool_rows, policy, "policy", 0, "NAME", "which", "pool"),
    OPT_INT(pool_rows, tau, "tau", 't', "N", 0, 100, "between", "pool|trace&!policy=lru"),
    OPT_INT(pool_rows, most, "most", 0, "N", 0, 100, "most", "policy=best"),
    OPT_FLAG(pool_rows, raw, "raw", 0, "raw"),
    OPT_FLAG(pool_rows, trace, "trace", 0, "trace", "!raw"),
    OPT_REAL(pool_rows, heat, "heat", 0, "X", 0, 9, "heat", "~trace"),
    OPT_END};

static const command pools = {
    .name = "pools", .operands = "", .summary = "", .options = needy, .n_operands_max = -1};

TEST(options_without_effect_are_refused)
{
    static const struct {
        const char *words[6];
        int result;
    } cases[] = {
        {{"--policy", "lru"}, 3},
        {{"--policy", "lru", "--pool", "5"}, 0},
        {{"--policy", "lru", "--pool", "none"}, 3},
        {{"--policy=none"}, 0},
        {{"--tau", "4"}, 3},
        {{"--tau", "0"}, 0},
        {{"--tau", "4", "--trace"}, 0},
        {{"--tau", "4", "--pool", "5"}, 0},
        {{"-t4", "--pool", "5", "--policy", "lru"}, 3},
        {{"--most", "4", "--pool", "5", "--policy", "lru"}, 3},
        {{"--most", "4", "--pool", "5", "--policy", "best"}, 0},
        {{"--trace", "--raw"}, 3},
        {{"--heat", "2"}, 0},
        {{"--tau=4", "word"}, 3},
        {{"-t=4", "--trace"}, 0},
        {{"-tx"}, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *argv[6];
        int n = 0, n_operands;
        pool_rows o = {0};
        for (; n < 6 && cases[i].words[n]; n++)
            argv[n] = (char *)(size_t)cases[i].words[n];
        CHECK_MSG(options_parse(&pools, n, argv, &o, &n_operands) == cases[i].result, "case %zu",
                  i);
    }
}

/* A setting of a file says nothing about this command line. */
TEST(options_of_settings_without_effect_are_taken)
{
    pool_rows o = {0};
    option_marks m = {{0}};
    err e = {0};
    CHECK_OK(options_set(needy, "policy", "lru", &o, &m, 2, &e), e);
    CHECK_EQ(options_check(&pools, &o, &m, NULL), 0);
}

TEST(nearest_word_of_a_mistyped_one)
{
    static const char *const words[] = {"temp", "top-k", "top-p", "repeat-penalty", "model", "raw"};
    static const char *const cases[][2] = {
        {"tmep", "temp"},        {"TEMP", "temp"},    {"topk", "top-k"},
        {"modle", "model"},      {"modell", "model"}, {"repeat", "repeat-penalty"},
        {"temperature", "temp"}, {"zzz", NULL},       {"", NULL},
        {"top-", "top-k"},       {"xyw", NULL},       {"rwa", "raw"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *got = nearest_word(cases[i][0], words, sizeof words / sizeof *words);
        CHECK_MSG(got == cases[i][1] || (got && cases[i][1] && !strcmp(got, cases[i][1])),
                  "%s: %s, expected %s", cases[i][0], got ? got : "none",
                  cases[i][1] ? cases[i][1] : "none");
    }
    char long_word[200];
    memset(long_word, 'a', 199);
    long_word[199] = 0;
    const char *const one[] = {long_word};
    CHECK(!nearest_word(long_word, words, 6) && !nearest_word("aaa", one, 1));
}

TEST(options_with_a_wrong_word_leave_the_settings_alone)
{
    bool off = true, on = true;
    err e = {0};
    carat_compress_options to, before;
    memset(&to, 0x5a, sizeof to);
    before = to;
    CHECK_STATUS(options_repack("of", &off, &e), E_ARG);
    CHECK(off);
    on = false;
    CHECK_STATUS(compress_options_read(&(compress_options){.what = "much"}, &to, &on, &e), E_ARG);
    CHECK(!on && !memcmp(&to, &before, sizeof to));
}
