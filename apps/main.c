/* main.c - the program: finds the subcommand and runs it.
 *
 * It first settles two things for all subcommands. File descriptors 0, 1 and 2 are open. A write
 * past a file-size limit fails with an error and raises no signal. `--man` prints the manual page,
 * `--markdown` prints docs/cli.md; the Makefile writes both files.
 */
#include "apps/commands.h"

#include "apps/complete.h"
#include "apps/config.h"
#include "apps/licences.h"

#include "base/nearest.h"
#include "base/show.h"
#include "carat.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

/* In a program that starts without stdin, stdout or stderr, the next opened files would get their
 * numbers, and messages would go into those files. The missing ones are opened in the wrong
 * direction, so that every use of them fails. */
static void keep_standard_files(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            _exit(1);
}

static const command *find_command(const char *name)
{
    for (const command *const *c = commands; *c; c++)
        if (!strcmp((*c)->name, name))
            return *c;
    return NULL;
}

static const char *nearest_command(const char *name)
{
    const char *names[COMMANDS_MAX];
    size_t n = 0;
    for (const command *const *c = commands; *c && n < COMMANDS_MAX; c++)
        names[n++] = (*c)->name;
    return nearest_word(name, names, n);
}

/* What people type from habit with other programs, and what carat has instead. */
static const struct habit {
    const char *word, *instead;
} habits[] = {
    {"ps", "`carat serve` answers it: curl http://127.0.0.1:8080/api/ps lists the loaded models"},
    {"stop", "Ctrl-C ends a server; curl http://127.0.0.1:8080/models/unload -d '{\"model\": "
             "\"NAME\"}' unloads one of its models"},
    {"push", "carat sends no models anywhere"},
    {"chat", "carat run"},
    {"cli", "carat run"},
    {"llama-cli", "carat run"},
    {"llama-server", "carat serve"},
    {"load", "carat run -m MODEL, carat serve -m MODEL"},
    {"signin", "carat has no accounts; HF_TOKEN is the token of the hub"},
    {"login", "carat has no accounts; HF_TOKEN is the token of the hub"},
    {"launch", "carat connect CLIENT --start"},
    {"delete", "carat rm NAME"},
    {"remove", "carat rm NAME"},
    {"download", "carat pull MODEL"},
    {"get", "carat pull MODEL"},
    {"search", "models are searched for on the hub's pages; carat pull --names lists short names"},
    {NULL, NULL}};

static int unknown_command(const char *name)
{
    const char *near = nearest_command(name);
    const struct habit *h = habits;
    while (h->word && strcmp(h->word, name))
        h++;
    fprintf(stderr, "carat: there is no command '%s'", SHOWN(name));
    if (h->word)
        fprintf(stderr, "; instead: %s", h->instead);
    else if (*name == '-')
        fputs("; options stand behind one, as in carat run -m MODEL", stderr);
    else if (near)
        fprintf(stderr, "; did you mean '%s'?", near);
    else if (strchr(name, ' '))
        fputs("; carat run answers a prompt", stderr);
    fputs("\nTry 'carat help'.\n", stderr);
    return 2;
}

static int print_version(int n, char **arg)
{
    bool licences = n == 1 && (!strcmp(arg[0], "--licences") || !strcmp(arg[0], "--licenses"));
    if (n == 1 && !strcmp(arg[0], "--help")) {
        printf("Usage: carat version [--licences]\n\n%s.\n", OPTIONS_VERSION);
        return options_printed();
    }
    if (n && !licences) {
        fprintf(stderr, "carat: version takes --licences and nothing else: '%s'\n", SHOWN(arg[0]));
        return 2;
    }
    if (licences)
        fputs(licences_text(), stdout);
    else
        printf("carat %s\n", carat_version());
    return options_printed();
}

int main(int argc, char **argv)
{
    keep_standard_files();
    signal(SIGXFSZ, SIG_IGN); /* a write past a file-size limit fails, and its caller cleans up */
    if (argc < 2) {
        options_print_commands(commands, stderr);
        return 2;
    }
    const char *name = argv[1];
    if (!strcmp(name, "ls"))
        name = "list";
    if (!strcmp(name, "version") || !strcmp(name, "--version") || !strcmp(name, "-v")) {
        return print_version(argc - 2, argv + 2);
    }
    if (!strcmp(name, "--man")) { /* the Makefile makes carat.1 with it */
        options_print_man(commands, stdout);
        return options_printed();
    }
    if (!strcmp(name, "--markdown")) { /* the Makefile makes docs/cli.md with it */
        options_print_markdown(commands, stdout);
        return options_printed();
    }
    if (!strcmp(name, "__complete")) { /* the scripts of `carat completion` ask this */
        complete_print(argc - 2, argv + 2);
        return options_printed();
    }
    bool help = !strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h");
    if (help && argc < 3) {
        options_print_commands(commands, stdout);
        return options_printed();
    }
    if (help)
        name = argv[2];
    if (help && (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h")))
        name = "help";
    if (help && (!strcmp(name, "help") || !strcmp(name, "version"))) {
        printf("Usage: carat %s\n\n%s.\n",
               strcmp(name, "help") ? "version [--licences]" : "help [COMMAND]",
               strcmp(name, "help") ? OPTIONS_VERSION : OPTIONS_HELP);
        return options_printed();
    }
    const command *c = find_command(name);
    if (!c)
        return unknown_command(name);
    if (help) {
        options_print_help(c, stdout);
        return options_printed();
    }
    alias_ask(config_own_name, NULL); /* nothing is read before a name is looked for */
    return c->run(c, argc - 2, argv + 2);
}
