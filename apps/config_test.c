/* config_test.c - TOML as its specification has it; settings, their order and their errors. */
#include "apps/commands.h"
#include "apps/config.h"
#include "tests/spawn.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <sys/stat.h>

static const toml *parsed(arena *mem, const char *text)
{
    const toml *root;
    err e = {0};
    CHECK_OK(toml_parse(&root, text, strlen(text), "t", mem, &e), e);
    return root;
}

/* The value at a path of keys, separated by '/'. */
static const toml *at(const toml *t, const char *path)
{
    char key[64];
    for (; t && *path; path += path[strlen(key)] ? strlen(key) + 1 : strlen(key)) {
        snprintf(key, sizeof key, "%.*s", (int)strcspn(path, "/"), path);
        t = toml_get(t, key);
    }
    CHECK_MSG(t, "no %s", path);
    return t;
}

TEST(toml_reads_what_the_specification_shows)
{
    AUTO(arena_free) arena mem = {0};
    const toml *t = parsed(
        &mem, "\xef\xbb\xbf# a comment\r\n"
              "key = \"value\" # behind\n"
              "bare-key_1 = 1\n1234 = 2\n\"127.0.0.1\" = 3\n'quoted \"x\"' = 4\n"
              "name.\"a.b\" . c = true\nname.d = false\n"
              "int1 = +99\nint2 = 1_000\nhex = 0xDEAD_beef\noct = 0o755\nbin = 0b1101\n"
              "flt1 = +1.0\nflt2 = -0.01\nflt3 = 5e+22\nflt4 = 6.626e-34\nflt5 = 224_617.445_991\n"
              "inf = -inf\n"
              "esc = \"tab\\t quote\\\" \\u00e9 \\U0001F600\"\n"
              "multi = \"\"\"\nRoses\nViolets\"\"\"\n"
              "fold = \"\"\"The \\\n\n   fox.\\\n  \"\"\"\n"
              "quotes = \"\"\"a \"\" b\"\"\"\"\"\n"
              "raw = 'C:\\x'\nraws = '''\nI [dw]on't\n'''\n"
              "arr = [ 1, [\"a\", 'b'], # c\n  2.5, ]\nempty = []\n"
              "point = { x = 1, y.z = \"\" }\nnone = {}\n"
              "[table]\nk = 1\n[table.sub.\"dog\"]\nk = 2\n[ j . 'l' ]\nk = 3\n[j]\nm=4\n"
              "[fruit]\napple.color = 1\n[fruit.apple.taste]\nsweet = true\n");
    CHECK_STR(at(t, "key")->text, "value");
    CHECK_EQ(at(t, "1234")->integer, 2);
    CHECK_EQ(at(t, "127.0.0.1")->integer, 3);
    CHECK_EQ(at(t, "quoted \"x\"")->integer, 4);
    CHECK(at(t, "name/a.b/c")->truth && !at(t, "name/d")->truth);
    CHECK(at(t, "int1")->integer == 99 && at(t, "int2")->integer == 1000);
    CHECK(at(t, "hex")->integer == 0xdeadbeef && at(t, "oct")->integer == 0755 &&
          at(t, "bin")->integer == 13);
    CHECK(at(t, "flt1")->real == 1 && at(t, "flt2")->real == -0.01 && at(t, "flt3")->real == 5e22);
    CHECK(at(t, "flt4")->real == 6.626e-34 && at(t, "flt5")->real == 224617.445991 &&
          at(t, "inf")->real < -1e300);
    CHECK_STR(at(t, "esc")->text, "tab\t quote\" \xc3\xa9 \xf0\x9f\x98\x80");
    CHECK_STR(at(t, "multi")->text, "Roses\nViolets");
    CHECK_STR(at(t, "fold")->text, "The fox.");
    CHECK_STR(at(t, "quotes")->text, "a \"\" b\"\"");
    CHECK_STR(at(t, "raw")->text, "C:\\x");
    CHECK_STR(at(t, "raws")->text, "I [dw]on't\n");
    CHECK_STR(at(t, "arr")->first->next->first->next->text, "b");
    CHECK(at(t, "arr")->last->real == 2.5 && !at(t, "empty")->first);
    CHECK(at(t, "point/x")->integer == 1 && !*at(t, "point/y/z")->text);
    CHECK(at(t, "table/k")->integer == 1 && at(t, "table/sub/dog/k")->integer == 2);
    CHECK(at(t, "j/l/k")->integer == 3 && at(t, "j/m")->integer == 4);
    CHECK(at(t, "fruit/apple/taste/sweet")->truth);
    CHECK_EQ(at(t, "bare-key_1")->line, 3);
}

TEST(toml_reads_dates_and_arrays_of_tables)
{
    static const char *const dates[] = {"1979-05-27T07:32:00Z",
                                        "1979-05-27T00:32:00.999999-07:00",
                                        "1979-05-27t07:32:00z",
                                        "1979-05-27 07:32:00",
                                        "1979-05-27",
                                        "2000-02-29",
                                        "07:32:00",
                                        "00:32:60.999999"};
    AUTO(arena_free) arena mem = {0};
    char text[64];
    for (size_t i = 0; i < sizeof dates / sizeof *dates; i++) {
        snprintf(text, sizeof text, "a = [%s, 1] # c\n", dates[i]);
        const toml *v = at(parsed(&mem, text), "a")->first;
        CHECK_EQ(v->kind, TOML_DATE);
        CHECK_STR(v->text, dates[i]);
        CHECK_EQ(v->next->integer, 1);
    }
    const toml *t =
        parsed(&mem, "[[fruits]]\nname = \"apple\"\n[fruits.physical]\ncolor = \"red\"\n"
                     "[[fruits.varieties]]\nname = \"a\"\n[[fruits.varieties]]\n"
                     "name = \"b\"\n[[ fruits ]]\n[[fruits]]\nname = \"banana\"\n"
                     "[[fruits.varieties]]\nname = \"c\"\n[other]\nx = 1\n");
    const toml *f = at(t, "fruits");
    CHECK_EQ(f->kind, TOML_ARRAY);
    CHECK_STR(at(f->first, "name")->text, "apple");
    CHECK_STR(at(f->first, "physical/color")->text, "red");
    CHECK_STR(at(at(f->first, "varieties")->last, "name")->text, "b");
    CHECK(!f->first->next->first);
    CHECK_STR(at(f->last, "name")->text, "banana");
    CHECK(f->last == f->first->next->next);
    CHECK_STR(at(at(f->last, "varieties")->first, "name")->text, "c");
    CHECK_EQ(at(t, "other/x")->integer, 1);
}

TEST(toml_refuses_what_the_specification_forbids)
{
    static const char *const bad[][2] = {{"a = 1\na = 2", "2: 'a' was given already, in line 1"},
                                         {"a.b = 1\na = 2", "given already"},
                                         {"[a]\n[a]", "[a] was given already"},
                                         {"[a]\nb.c = 1\n[a.b]", "given already"},
                                         {"a = {b = 1}\n[a.c]", "given already"},
                                         {"a = {b = 1}\na.c = 2", "given already"},
                                         {"a = 1\n[a]", "given already"},
                                         {"[x.y]\n[x]\ny.z = 1", "given already"},
                                         {"= 1", "expected a key"},
                                         {"a = ", "expected a value"},
                                         {"a", "expected '='"},
                                         {"a = 1 b = 2", "end of the line"},
                                         {"a = \"x", "closing quote"},
                                         {"a = \"x\ny\"", "closing quote"},
                                         {"a = 'x\n'", "closing quote"},
                                         {"a = \"\"\"x", "closing quote"},
                                         {"a = \"\\q\"", "escape"},
                                         {"a = \"\\ud800\"", "no character"},
                                         {"a = \"\\u12\"", "hexadecimal"},
                                         {"a = 01", "expected a value"},
                                         {"a = 1__0", "expected a value"},
                                         {"a = _1", "expected a value"},
                                         {"a = 1_", "expected a value"},
                                         {"a = 1.", "expected a value"},
                                         {"a = .5", "expected a value"},
                                         {"a = 1e", "expected a value"},
                                         {"a = 0x", "expected a value"},
                                         {"a = +0x1", "expected a value"},
                                         {"a = 99999999999999999999", "expected a value"},
                                         {"a = yes", "expected a value"},
                                         {"a = True", "expected a value"},
                                         {"a = [1 2]", "expected ','"},
                                         {"a = [1", "expected ','"},
                                         {"a = {b = 1,}", "expected a key"},
                                         {"a = {b = 1\n}", "expected ','"},
                                         {"[a", "expected ']'"},
                                         {"[]", "expected a key"},
                                         {"[[a]", "expected ']]'"},
                                         {"[[a]]\n[a]", "[a] was given already"},
                                         {"[a]\n[[a]]", "[[a]] was given already"},
                                         {"a = []\n[[a]]", "[[a]] was given already"},
                                         {"a = [{b = 1}]\n[a.c]", "given already"},
                                         {"[a.b]\n[[a]]", "[[a]] was given already"},
                                         {"[[a.b]]\n[a]\nb.c = 1", "given already"},
                                         {"[[a]]\nb = 1\nb = 2", "given already"},
                                         {"a = 2023-02-29", "calendar"},
                                         {"a = 1900-02-29", "calendar"},
                                         {"a = 1979-13-01", "calendar"},
                                         {"a = 1979-00-01", "calendar"},
                                         {"a = 1979-05-27T", "calendar"},
                                         {"a = 1979-05-27T07:32", "calendar"},
                                         {"a = 1979-05-27T07:32:00.", "calendar"},
                                         {"a = 1979-05-27T07:32:00+7:00", "calendar"},
                                         {"a = 1979-05-27 7:32:00", "end of the line"},
                                         {"a = 1979-05-27 99", "calendar"},
                                         {"a = 24:00:00", "calendar"},
                                         {"a = 07:60:00", "calendar"},
                                         {"a = 07:32:61", "calendar"},
                                         {"a = 07:32:00Z", "calendar"},
                                         {"a = \"\x01\"", "control character"},
                                         {"# \x01", "control character"},
                                         {"a = \"\x7f\"", "control"},
                                         {"a\r= 1", "expected '='"},
                                         {"\"\"\"a\"\"\" = 1", "expected '='"},
                                         {"a = \xff", "not UTF-8"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        AUTO(arena_free) arena mem = {0};
        const toml *root;
        err e = {0};
        status st = toml_parse(&root, bad[i][0], strlen(bad[i][0]), "t", &mem, &e);
        CHECK_MSG(st == E_FORMAT && strstr(e.text, bad[i][1]), "%s: %s '%s', expected '%s'",
                  bad[i][0], carat_status_name(st), e.text, bad[i][1]);
    }
}

/* Keys whose hashes share a beginning, and many keys: each is found, none is confused. */
TEST(toml_finds_each_of_many_keys)
{
    enum { N = 20000 };
    AUTO(arena_free) arena mem = {0};
    AUTO(str_free) str text = {0};
    const toml *root;
    err e = {0};
    for (int i = 0; i < N; i++)
        str_printf(&text, "[t.k%d]\nv = %d\n", i, i);
    CHECK_OK(toml_parse(&root, text.at, text.n, "t", &mem, &e), e);
    for (int i = 0; i < N; i++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", i);
        CHECK_EQ(toml_get(toml_get(toml_get(root, "t"), key), "v")->integer, i);
    }
    CHECK(!toml_get(toml_get(root, "t"), "k20000"));
    str_puts(&text, "[t.k77]\n");
    CHECK_EQ(toml_parse(&root, text.at, text.n, "t", &mem, &e), E_FORMAT);
    CHECK(strstr(e.text, "line 155"));
}

static const char settings[] =
    "version = 1\n"
    "[defaults]\ntemperature = 0.7\nctx = \"4k\"\nstop = [\"a\", \"b\"]\n"
    "[presets.code]\nmodel = \"own/Code\"\nsystem = \"You\\nwrite C.\"\n"
    "temp = 0.1\nthink = false\nkv_type = \"q8_0\"\n"
    "[presets.quick]\nfrom = \"code\"\ntokens = 5\ntemp = 0\n"
    "[serve]\nport = 9000\nctx = 2048\n";

static status take(void *arg, err *e)
{
    AUTO(config_free) config f = {0};
    status st = config_take(&f, arg, strlen(arg), "/dir/c.toml", false, e);
    return st;
}

TEST(config_errors_name_file_line_and_what_was_meant)
{
    static const char *const bad[][2] = {
        {"[defaults]\ntemprature = 1",
         "/dir/c.toml:2: there is no setting 'temprature'; did you mean 'temp"},
        {"[default]\n", "did you mean 'defaults'?"},
        {"x = 1", "'x' stands above all tables: settings belong under [defaults]"},
        {"[run]\ntemp = 1", "no setting 'run'"},
        {"[defaults]\ntemp = true", "expected a number, found true or false"},
        {"[defaults]\nraw = 1", "expected true or false, found a whole number"},
        {"[defaults]\nsystem = 1", "expected a string"},
        {"[defaults]\nstop = [1]", "array of strings"},
        {"[defaults]\npreset = \"x\"", "no setting 'preset'"},
        {"defaults = 1", "should be a table"},
        {"[presets]\na = 1", "should be a table"},
        {"[presets.a]\nfrom = \"b\"", "no preset 'b'"},
        {"[presets.a]\nfrom = \"b\"\n[presets.b]\nfrom = \"a\"", "itself from another"},
        {"names = 1", "expected [names]"},
        {"[names]\na = 1", "a: expected a string, found a whole number"},
        {"[names]\n\"own/a\" = \"gemma4\"", "'own/a' is no short name"},
        {"[names]\na = \"gema5\"", "2: 'a' stands for 'gema5' in [names]"},
        {"[names]\na = \"../x\"", "neither OWNER/REPO:QUANT nor"},
        {"[names]\na = \"A\"", "2: 'a': the names of [names] lead in a circle"},
        {"[names]\na = \"b\"\nb = \"c\"\nc = \"b\"", "lead in a circle"},
        {"version = 2", "reads version 1"},
        {"[serve]\napi-key = \"x\"", "chmod 600"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = {0};
        status st = take((void *)bad[i][0], &e);
        CHECK_MSG(st == E_ARG && strstr(e.text, bad[i][1]), "%s: '%s', expected '%s'", bad[i][0],
                  e.text, bad[i][1]);
    }
    err e = {0};
    CHECK_OK(take((void *)settings, &e), e);
    CHECK_OK(
        take((void *)"[names]\na = \"b\"\nb = \"gpt-oss\"\n\"gemma4:e4b\" = \"o/r:Q8_0\"\n", &e),
        e);
    CHECK_OK(take((void *)"[serve]\nmodel = [\"a\", \"b\"]\nmodels = [\"c\"]\n", &e), e);
}

static status take_and_apply(void *arg, err *e)
{
    static char opts[65536]; /* larger than any command's options */
    AUTO(config_free) config f = {0};
    (void)arg;
    memset(opts, 0, sizeof opts);
    status st = config_take(&f, settings, strlen(settings), "/dir/c.toml", false, e);
    if (!st)
        st = config_apply(&f, &command_run, "quick", opts, e);
    return st;
}

TEST(config_without_memory)
{
    test_every_allocation(take_and_apply, NULL);
}

static void runs(int code, const char *out, const char *says, const char *const *args)
{
    AUTO(spawned_free) spawned s;
    spawn_carat(&s, NULL, args);
    CHECK_MSG(s.code == code, "exit status %d, expected %d; stderr: %s", s.code, code,
              str_text(&s.err));
    CHECK_MSG(!out || strstr(str_text(&s.out), out), "'%s' should hold '%s'", str_text(&s.out),
              out);
    CHECK_MSG(!says || strstr(str_text(&s.err), says), "'%s' should hold '%s'", str_text(&s.err),
              says);
}

TEST(config_presets_environment_and_command_line_in_order)
{
    const char *dir = test_temp("config");
    char path[600], made[900];
    CHECK(!mkdir(dir, 0700));
    snprintf(path, sizeof path, "%s/carat", dir);
    CHECK(!mkdir(path, 0700));
    snprintf(path, sizeof path, "%s/carat/config.toml", dir);
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(settings, f) >= 0);
    const char *toy = toy_model_write(&(toy_model_file){.n_ctx_train = 4096});
    fprintf(f, "[presets.toy]\nmodel = \"%s\"\nraw = true\ngreedy = true\ntokens = 3\n", toy);
    fclose(f);
    CHECK(!setenv("XDG_CONFIG_HOME", dir, 1));
    runs(0, "temp = 0.7   # defaults in", NULL, ARGS("config"));
    runs(0, "presets: code quick toy", NULL, ARGS("config"));
    runs(0, "port = 9000   # serve in", NULL, ARGS("config"));
    runs(0, "ctx = 2048   # serve in", NULL, ARGS("config"));
    runs(0, "stop = [\"a\", \"b\"]", NULL, ARGS("config"));
    runs(0, "temp = 0   # presets.quick in", NULL, ARGS("config", "--preset", "quick"));
    runs(0, "no-think = true   # presets.code in", NULL, ARGS("config", "--preset", "quick"));
    runs(0, "system = \"You\\nwrite C.\"", NULL, ARGS("config", "--preset", "code"));
    runs(2, NULL, "no preset 'cod'; did you mean 'code'?", ARGS("config", "--preset", "cod"));
    runs(0, "settings: none", NULL, ARGS("config", "--no-config"));
    runs(1, NULL, "No such file", ARGS("config", "--config", "/nonexistent.toml"));
    snprintf(made, sizeof made, "%s:", path);
    setenv("CARAT_TEMP", "0.5", 1);
    runs(0, "temp = 0.5   # CARAT_TEMP", NULL, ARGS("config", "--preset", "code"));
    setenv("CARAT_TEMP", "hot", 1);
    runs(2, NULL, "CARAT_TEMP: temp=hot: expected a number", ARGS("run", "hi"));
    unsetenv("CARAT_TEMP");
    /* The program itself: the preset's model answers, and the command line goes before it. */
    spawned a, b;
    spawn_carat(&a, NULL, ARGS("run", "--preset", "toy", "Hello"));
    CHECK_EQ(a.code, 0);
    CHECK(strstr(str_text(&a.err), "answer 3 tokens"));
    spawn_carat(&b, NULL, ARGS("run", "--preset", "toy", "-n", "2", "Hello"));
    CHECK(strstr(str_text(&b.err), "answer 2 tokens"));
    spawned_free(&a);
    spawned_free(&b);
    f = fopen(path, "w");
    CHECK(f && fputs("[defaults]\ntemp = \"warm\"\n", f) >= 0 && !fclose(f));
    runs(2, NULL, "temp=warm: expected a number", ARGS("run", "hi"));
    runs(0, NULL, NULL, ARGS("run", "--no-config", "-q", "-n", "1", "-m", toy, "--raw", "hi"));
}
