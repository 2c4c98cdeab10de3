/* completion_test.c - the scripts of `carat completion` in their shells, and `carat __complete`.
 *
 * A shell that is not installed is skipped, by a test of its own. */
#include "apps/commands.h"
#include "apps/complete.h"
#include "tests/spawn.h"
#include "tests/test.h"

#include <unistd.h>

/* Runs a command of the shell in an empty home directory. */
static void run_shell(str *out, const char *fmt, const char *a, const char *b, const char *c)
{
    char line[4096];
    const char *settings = test_temp("config.toml");
    FILE *f = fopen(settings, "w");
    CHECK(f && fputs("[presets.code]\nmodel = 'm'\n[presets.quick]\nfrom = 'code'\n", f) > 0);
    fclose(f);
    CHECK(!setenv("HOME", test_temp("home"), 1) &&
          !setenv("XDG_STATE_HOME", test_temp("state"), 1) && !setenv("CARAT_CONFIG", settings, 1));
    snprintf(line, sizeof line, fmt, a, b, c);
    fflush(stdout);
    CHECK((f = popen(line, "r")));
    str_cut(out, 0);
    for (int ch; (ch = fgetc(f)) != EOF;)
        str_putc(out, (char)ch);
    pclose(f);
}

static void need_shell(const char *name)
{
    str out = {0};
    run_shell(&out, "command -v %s 2>&1%s%s", name, "", "");
    bool there = out.n > 0;
    str_free(&out);
    if (!there)
        test_skip("that shell is not installed");
}

/* A link to the program beside the tests, and its script for a shell in a file. The lines of shells
 * do not quote the link's name, and the folder of the source may have a blank. */
static const char *program(void)
{
    static char path[1024];
    const char *link = test_temp("carat");
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 16);
    CHECK(n > 0);
    path[n] = 0;
    strcpy(strrchr(path, '/'), "/carat");
    CHECK(!access(link, F_OK) || !symlink(path, link));
    return link;
}

static const char *script(const char *shell, const char *name)
{
    const char *path = test_temp(name);
    AUTO(str_free) str out = {0};
    run_shell(&out, "%s completion %s > '%s'", program(), shell, path);
    return path;
}

static const struct {
    const char *line, *want; /* want: a line of the answer */
    bool only;               /* and no other */
} cases[] = {
    {"ru", "run", true},
    {"run --format ", "json", false},
    {"run --format=j", "json", true},
    {"run --no-mma", "--no-mmap", true},
    {"serve --log t", "text", true},
    {"history se", "search", true},
    {"completion ", "fish", false},
    {"help quan", "quantize", true},
    {"run --kv-type q8", "q8_0", true},
    {"run --preset co", "code", true},
    {"serve --preset=q", "quick", true},
    {"fit gpt-os", "gpt-oss:20b", false},
};

static bool has_line(const str *out, const char *want, const char *before)
{
    char line[64];
    snprintf(line, sizeof line, "%s%s", before, want);
    for (const char *at = str_text(out); *at; at += strcspn(at, "\n"), at += *at == '\n')
        if (!strncmp(at, line, strlen(line)) && strchr("\t\n", at[strlen(line)]))
            return true;
    return false;
}

static size_t n_lines(const str *out)
{
    size_t n = 0;
    for (size_t i = 0; i < out->n; i++)
        n += out->at[i] == '\n';
    return n;
}

TEST(completion_in_bash)
{
    need_shell("bash");
    const char *path = script("bash", "carat.bash");
    AUTO(str_free) str out = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run_shell(
            &out,
            "COMP_LINE='%s %s' bash --norc --noprofile -c '. \"%s\"; COMP_POINT=${#COMP_LINE}; "
            "_carat; printf \"%%s\\n\" \"${COMPREPLY[@]}\"'",
            program(), cases[i].line, path);
        CHECK_MSG(has_line(&out, cases[i].want, "") && (!cases[i].only || n_lines(&out) == 1),
                  "%s: %s", cases[i].line, str_text(&out));
    }
    /* Where bash cuts words at ':', the answer has what follows it. */
    const char *file = test_temp("a:b.gguf");
    fclose(fopen(file, "w"));
    char line[600];
    snprintf(line, sizeof line, "inspect %.*s", (int)(strlen(file) - 6), file);
    run_shell(&out,
              "COMP_LINE='%s %s' bash --norc --noprofile -c '. \"%s\"; COMP_POINT=${#COMP_LINE}; "
              "_carat; printf \"%%s\\n\" \"${COMPREPLY[@]}\"'",
              program(), line, path);
    CHECK_STR(str_text(&out), "b.gguf\n");
}

TEST(completion_in_fish)
{
    need_shell("fish");
    const char *path = script("fish", "carat.fish"), *home = test_temp("fish");
    setenv("XDG_DATA_HOME", home, 1); /* fish makes folders there */
    setenv("XDG_CONFIG_HOME", home, 1);
    setenv("XDG_CACHE_HOME", home, 1);
    AUTO(str_free) str out = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run_shell(&out, "fish --no-config -c 'source %s; complete -C \"%s %s\"'", path, program(),
                  cases[i].line);
        const char *word = strrchr(cases[i].line, ' '), *equals = strchr(cases[i].line, '=');
        char before[64] = ""; /* fish repeats the option */
        if (word && equals)
            snprintf(before, sizeof before, "%.*s", (int)(equals - word), word + 1);
        CHECK_MSG(has_line(&out, cases[i].want, before) && (!cases[i].only || n_lines(&out) == 1),
                  "%s: %s", cases[i].line, str_text(&out));
    }
}

/* _arguments needs a line editor, so an interactive zsh runs on a terminal that zpty makes. */
TEST(completion_in_zsh)
{
    need_shell("zsh");
    const char *dir = test_temp("functions");
    AUTO(str_free) str out = {0};
    run_shell(&out, "mkdir '%s'; %s completion zsh > '%s/_carat'", dir, program(), dir);
    run_shell(&out,
              "zsh -f -c 'zmodload zsh/zpty; zpty z zsh -f -i; zpty -w z \"fpath=($1 \\$fpath); "
              "autoload -Uz compinit; compinit -u -D; print REA\\DY\"; "
              "zpty -r -m z line \"*READY*\"; "
              "zpty -w -n z \"$2 run --no-mma\"$'\\''\\t'\\''; "
              "zpty -r -m z line \"*--no-mmap*\" && print -r -- found; zpty -d z' zsh '%s' '%s'%s",
              dir, program(), "");
    CHECK_MSG(strstr(str_text(&out), "found"), "%s", str_text(&out));
}

TEST(completion_by_the_program)
{
    str out = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *cut = strrchr(cases[i].line, ' ');
        run_shell(&out, "%s __complete %s%s", program(), cases[i].line, cut && !cut[1] ? "''" : "");
        CHECK_MSG(has_line(&out, cases[i].want, "") && (!cases[i].only || n_lines(&out) == 1),
                  "%s: %s", cases[i].line, str_text(&out));
    }
    static const char *const none[] = {
        "run --model=",     "nothing x", "run --nothing=x",   "run -",
        "run --format xml", "run \"\"",  "run -m -m -m -m x", "history show x y z"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        run_shell(&out, "%s __complete %s 2>&1; echo $?%s", program(), none[i], "");
        CHECK_MSG(strstr(str_text(&out), "0\n"), "%s: %s", none[i], str_text(&out));
    }
    str_free(&out);
    AUTO(spawned_free) spawned r;
    spawn_carat(&r, NULL, ARGS("completion", "powershell"));
    CHECK(r.code == 2 && strstr(str_text(&r.err), "bash, zsh or fish"));
}

/* Lists of choices name options that exist. */
TEST(completion_of_values_that_options_name)
{
    static const struct {
        const char *command, *name;
        complete_kind kind;
    } want[] = {{"run", "preset", COMPLETE_PRESET},    {"run", "model", COMPLETE_MODEL},
                {"run", "file", COMPLETE_FILE},        {"run", "resume", COMPLETE_TALK},
                {"run", "format", COMPLETE_WORDS},     {"run", "repack", COMPLETE_WORDS},
                {"serve", "log", COMPLETE_WORDS},      {"run", "temp", COMPLETE_NONE},
                {"run", "kv-single", COMPLETE_WORDS},  {"serve", "trace", COMPLETE_DIR},
                {"convert", "dialect", COMPLETE_WORDS}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        for (const command *const *c = commands; *c; c++)
            if (!strcmp((*c)->name, want[i].command)) {
                const option *o = options_find((*c)->options, want[i].name);
                CHECK_MSG(o && complete_option(o).kind == want[i].kind, "%s --%s", want[i].command,
                          want[i].name);
            }
}
