/* completion.c - `carat completion SHELL`: a script for bash, zsh or fish, from the tables.
 *
 * Commands, options and what their values are stand in the script. Names of models and presets and
 * numbers of conversations change, so the script asks `carat __complete` for them.
 */
#include "apps/commands.h"
#include "apps/complete.h"

#include "base/show.h"

#include <string.h>

/* ---- bash ------------------------------------------------------------------------------ */

/* COMP_WORDS is cut at ':' and '=', which names and options hold. So the line is read again up to
 * the cursor, and what stands in front of the last such character is taken off the answers. */
static const char bash_frame[] =
    "_carat() {\n"
    "    local line=${COMP_LINE:0:COMP_POINT} cur prev what kind list cut i\n"
    "    local -a words\n"
    "    read -ra words <<<\"$line\"\n"
    "    [[ $line == *[[:space:]] || ${#words[@]} -eq 0 ]] && words+=(\"\")\n"
    "    cur=${words[${#words[@]}-1]}\n"
    "    COMPREPLY=()\n"
    "    if ((${#words[@]} <= 2)); then\n"
    "        COMPREPLY=($(compgen -W \"$_carat_commands\" -- \"$cur\"))\n"
    "        return\n"
    "    fi\n"
    "    prev=${words[${#words[@]}-2]}\n"
    "    if [[ $cur == --*=* ]]; then\n"
    "        prev=${cur%%=*}\n"
    "        cur=${cur#*=}\n"
    "    fi\n"
    "    what=$(_carat_what \"${words[1]}\" \"$prev\")\n"
    "    if [[ -z $what && $cur == -* ]]; then\n"
    "        COMPREPLY=($(compgen -W \"$(_carat_options \"${words[1]}\")\" -- \"$cur\"))\n"
    "        return\n"
    "    fi\n"
    "    [[ -z $what ]] && what=$(_carat_operand \"${words[1]}\")\n"
    "    kind=${what%% *}\n"
    "    list=${what#\"$kind\"}\n"
    "    if [[ $kind == model || $kind == talk || $kind == preset ]]; then\n" /* with the words of
                                                                                 the list */
    "        while IFS=$'\\t' read -r i _; do\n"
    "            COMPREPLY+=(\"$i\")\n"
    "        done < <(\"${words[0]}\" __complete \"${words[@]:1}\" 2>/dev/null)\n"
    "    else\n"
    "        COMPREPLY=($(compgen -W \"$list\" -- \"$cur\"))\n"
    "    fi\n"
    "    if [[ $kind == file || $kind == model || $kind == dir ]]; then\n"
    "        [[ $kind == dir ]] && i=-d || i=-f\n"
    "        compopt -o filenames 2>/dev/null\n"
    "        while read -r i; do\n"
    "            COMPREPLY+=(\"$i\")\n"
    "        done < <(compgen $i -- \"$cur\")\n"
    "    fi\n"
    "    cut=${cur%\"${cur##*[:=]}\"}\n"
    "    for i in \"${!COMPREPLY[@]}\"; do\n"
    "        COMPREPLY[i]=${COMPREPLY[i]#\"$cut\"}\n"
    "    done\n"
    "}\n"
    "complete -F _carat carat\n";

static const char *kind_word(complete_kind k)
{
    /* Short names are asked of the program, as presets are. */
    static const char *const names[] = {
        [COMPLETE_NONE] = "none",    [COMPLETE_FILE] = "file", [COMPLETE_DIR] = "dir",
        [COMPLETE_MODEL] = "model",  [COMPLETE_TALK] = "talk", [COMPLETE_PRESET] = "preset",
        [COMPLETE_SHORT] = "preset", [COMPLETE_HUB] = "model", [COMPLETE_WORDS] = "words"};
    return names[k];
}

static void bash_what(complete_what what)
{
    printf("echo '%s%s%s' ;;\n", kind_word(what.kind), *what.words ? " " : "", what.words);
}

static void print_bash(void)
{
    printf("# bash completion of carat; carat completion bash prints it\n_carat_commands='");
    for (const command *const *c = commands; *c; c++)
        printf("%s ", (*c)->name);
    printf("help version'\n\n_carat_options() {\n    case $1 in\n");
    for (const command *const *c = commands; *c; c++) {
        printf("    %s) echo '", (*c)->name);
        for (const option *o = (*c)->options; o && o->name; o++) {
            if (!o->help)
                continue;
            if (o->letter)
                printf("-%c ", o->letter);
            printf("--%s ", o->name);
        }
        printf("--help' ;;\n");
    }
    printf("    esac\n}\n\n# What the value of an option is; nothing for a flag.\n"
           "_carat_what() {\n    case \"$1 $2\" in\n");
    for (const command *const *c = commands; *c; c++)
        for (const option *o = (*c)->options; o && o->name; o++) {
            if (!o->arg || !o->help)
                continue;
            printf("    '%s --%s'", (*c)->name, o->name);
            if (o->letter)
                printf(" | '%s -%c'", (*c)->name, o->letter);
            printf(") ");
            bash_what(complete_option(o));
        }
    printf(
        "    esac\n}\n\n# What stands where no option is.\n_carat_operand() {\n    case $1 in\n");
    for (const command *const *c = commands; *c; c++) {
        printf("    %s) ", (*c)->name);
        bash_what(complete_operand(*c, 0, NULL));
    }
    printf("    help) echo \"words $_carat_commands\" ;;\n    esac\n}\n\n%s", bash_frame);
}

/* ---- zsh ------------------------------------------------------------------------------- */

/* In single quotes, with a backslash in front of what _arguments and _describe would take apart. */
static void zsh_text(const char *s)
{
    for (; *s; s++) {
        if (*s == '\'')
            fputs("'\\''", stdout);
        else if (strchr("[]:\\`", *s))
            printf("\\%c", *s);
        else
            putchar(*s);
    }
}

static void zsh_action(complete_what what, const char *arg)
{
    static const char *const action[] = {[COMPLETE_NONE] = " ",
                                         [COMPLETE_FILE] = "_files",
                                         [COMPLETE_DIR] = "_files -/",
                                         [COMPLETE_MODEL] = "_carat_names files",
                                         [COMPLETE_HUB] = "_carat_names files",
                                         [COMPLETE_TALK] = "_carat_names",
                                         [COMPLETE_PRESET] = "_carat_names",
                                         [COMPLETE_WORDS] = NULL};
    putchar(':');
    zsh_text(arg);
    if (action[what.kind])
        printf(":%s", action[what.kind]);
    else {
        fputs(":(", stdout);
        zsh_text(what.words);
        putchar(')');
    }
}

static void zsh_option(const option *o)
{
    bool maybe = o->kind == OPTION_MAYBE;
    printf("            ");
    const char *many = o->kind == OPTION_LIST || o->kind == OPTION_FILES ? "*" : "";
    if (o->letter && *many)
        printf("'*'");
    else if (o->letter)
        printf("'(-%c --%s)'", o->letter, o->name);
    if (o->letter)
        printf("{-%c%s,--%s%s}'[", o->letter, o->arg ? "+" : "", o->name, o->arg ? "=" : "");
    else
        printf("'%s--%s%s[", many, o->name, !o->arg ? "" : maybe ? "=-" : "=");
    zsh_text(o->help);
    fputs(maybe ? "]:" : "]", stdout);
    if (o->arg)
        zsh_action(complete_option(o), o->arg);
    printf("' \\\n");
}

static void print_zsh(void)
{
    printf("#compdef carat\n# zsh completion of carat; carat completion zsh prints it\n\n"
           "# Names that carat knows; with \"files\" also files.\n"
           "_carat_names() {\n"
           "    local -a lines names\n"
           "    lines=(${(f)\"$(_call_program names $_carat_program __complete "
           "${(q)words[1,CURRENT]} 2>/dev/null)\"})\n"
           "    names=(${${${lines//:/\\\\:}//$'\\t'/:}%%:})\n"
           "    _describe -t names name names\n"
           "    [[ $1 == files ]] && _files\n"
           "}\n\n"
           "_carat() {\n"
           "    local curcontext=$curcontext state line ret=1 _carat_program=$words[1]\n"
           "    typeset -A opt_args\n"
           "    _arguments -C '1:command:->command' '*::argument:->argument' && ret=0\n"
           "    case $state in\n"
           "    command)\n        local -a commands\n        commands=(\n");
    for (const command *const *c = commands; *c; c++) {
        printf("            '%s:", (*c)->name);
        zsh_text((*c)->summary);
        printf("'\n");
    }
    printf("            'help:This list, or the help of a command'\n            'version:The "
           "version'\n"
           "        )\n        _describe -t commands command commands && ret=0\n        ;;\n"
           "    argument)\n        case $words[1] in\n");
    for (const command *const *c = commands; *c; c++) {
        printf("        %s)\n            _arguments -s -S \\\n", (*c)->name);
        for (const option *o = (*c)->options; o && o->name; o++)
            if (o->help)
                zsh_option(o);
        printf("            '(- *)--help[how to use it]' \\\n            ");
        complete_what what = complete_operand(*c, 0, NULL);
        if ((*c)->n_operands_max != 0)
            printf("'*");
        else
            printf("'");
        if ((*c)->n_operands_max == 0)
            printf("(-)--help[]' && ret=0\n");
        else {
            if (what.kind == COMPLETE_TALK) /* its words are among the names */
                printf(":operand:_carat_names");
            else
                zsh_action(what, "operand");
            printf("' && ret=0\n");
        }
        printf("            ;;\n");
    }
    printf("        help)\n            local -a commands\n            commands=(");
    for (const command *const *c = commands; *c; c++)
        printf("%s ", (*c)->name);
    printf(")\n            _describe -t commands command commands && ret=0\n            ;;\n"
           "        esac\n        ;;\n    esac\n    return ret\n}\n\n"
           "if [[ $funcstack[1] == _carat ]]; then\n    _carat \"$@\"\nelse\n"
           "    compdef _carat carat\nfi\n");
}

/* ---- fish ------------------------------------------------------------------------------ */

static void fish_text(const char *s)
{
    putchar('\'');
    for (; *s; s++) {
        if (*s == '\'' || *s == '\\')
            putchar('\\');
        putchar(*s);
    }
    putchar('\'');
}

static void fish_what(complete_what what)
{
    static const char *const flags[] = {[COMPLETE_NONE] = " -x",
                                        [COMPLETE_FILE] = " -r -F",
                                        [COMPLETE_DIR] = " -x -a '(__fish_complete_directories)'",
                                        [COMPLETE_MODEL] = " -r -F -a '(__carat_names)'",
                                        [COMPLETE_HUB] = " -r -F -a '(__carat_names)'",
                                        [COMPLETE_TALK] = " -x -a '(__carat_names)'",
                                        [COMPLETE_PRESET] = " -x -a '(__carat_names)'",
                                        [COMPLETE_WORDS] = NULL};
    if (flags[what.kind])
        fputs(flags[what.kind], stdout);
    else
        printf(" -x -a '%s'", what.words);
}

static void print_fish(void)
{
    printf("# fish completion of carat; carat completion fish prints it\n"
           "function __carat_names\n"
           "    set -l words (commandline -opc) (commandline -ct)\n"
           "    $words[1] __complete $words[2..-1] 2>/dev/null\n"
           "end\n\n"
           "complete -c carat -f\n");
    for (const command *const *c = commands; *c; c++) {
        printf("complete -c carat -n __fish_use_subcommand -a %s -d ", (*c)->name);
        fish_text((*c)->summary);
        printf("\n");
    }
    printf("complete -c carat -n __fish_use_subcommand -a help -d 'This list, or the help of a "
           "command'\ncomplete -c carat -n __fish_use_subcommand -a version -d 'The version'\n"
           "complete -c carat -n '__fish_seen_subcommand_from help' -a '");
    for (const command *const *c = commands; *c; c++)
        printf("%s ", (*c)->name);
    printf("'\n");
    for (const command *const *c = commands; *c; c++) {
        printf("\n");
        complete_what what = complete_operand(*c, 0, NULL);
        if (what.kind != COMPLETE_NONE) {
            bool files = what.kind == COMPLETE_FILE || what.kind == COMPLETE_MODEL ||
                         what.kind == COMPLETE_HUB;
            printf("complete -c carat -n '__fish_seen_subcommand_from %s'%s", (*c)->name,
                   files ? " -F" : "");
            if (what.kind == COMPLETE_WORDS)
                printf(" -a '%s'", what.words);
            else if (what.kind == COMPLETE_DIR)
                printf(" -a '(__fish_complete_directories)'");
            else if (what.kind != COMPLETE_FILE)
                printf(" -a '(__carat_names)'");
            printf("\n");
        }
        for (const option *o = (*c)->options; o && o->name; o++) {
            if (!o->help)
                continue;
            printf("complete -c carat -n '__fish_seen_subcommand_from %s'", (*c)->name);
            if (o->letter)
                printf(" -s %c", o->letter);
            printf(" -l %s", o->name);
            if (o->arg && o->kind != OPTION_MAYBE)
                fish_what(complete_option(o));
            printf(" -d ");
            fish_text(o->help);
            printf("\n");
        }
    }
}

/* ---- The command ----------------------------------------------------------------------- */

static int run_completion(const command *c, int argc, char **argv)
{
    int n_operands, bad = options_parse(c, argc, argv, NULL, &n_operands);
    if (bad)
        return bad - 1;
    if (!strcmp(argv[0], "bash"))
        print_bash();
    else if (!strcmp(argv[0], "zsh"))
        print_zsh();
    else if (!strcmp(argv[0], "fish"))
        print_fish();
    else {
        fprintf(stderr, "carat completion: there is none for %s: expected bash, zsh or fish\n",
                SHOWN(argv[0]));
        return 2;
    }
    if (!fflush(stdout) && !ferror(stdout))
        return 0;
    fputs("carat completion: cannot write to standard output\n", stderr);
    return 1;
}

const command command_completion = {
    .name = "completion",
    .operands = "SHELL",
    .summary = "A script with which bash, zsh or fish completes carat's command line",
    .about = "`make install` and the packages put the scripts where the shells look for them. By "
             "hand:\n\n"
             "    carat completion bash > ~/.local/share/bash-completion/completions/carat\n"
             "    carat completion zsh  > DIR/_carat       (DIR in $fpath, before compinit)\n"
             "    carat completion fish > ~/.config/fish/completions/carat.fish",
    .n_operands_min = 1,
    .n_operands_max = 1,
    .run = run_completion};
