/* pull.c - `carat pull`, and the bar that every pull shows. */
#include "apps/commands.h"
#include "apps/hub/alias.h"
#include "apps/hub/made.h"
#include "apps/hub_options.h"
#include "apps/term.h"
#include "base/clock.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { RATE_WINDOW_MS = 5000, BAR_CELLS = 24 };

typedef struct pull_options {
    const char *file, *revision;
    int64_t connections;
    bool quiet, no_mmproj, names;
} pull_options;

static const option table[] = {
    OPT_STR(pull_options, file, "file", 0, "PATH", "this file of the repository, instead of QUANT"),
    OPT_STR(pull_options, revision, "revision", 0, "REV",
            "a branch, tag or commit (default: main)"),
    OPT_INT(pull_options, connections, "connections", 0, "N", 1, 32,
            "connections side by side (default: 4)"),
    OPT_FLAG(
        pull_options, no_mmproj, "no-mmproj", 0,
        "leave out the repository's mmproj file, without which the model sees and hears nothing"),
    OPT_FLAG(pull_options, names, "names", 0, "list the short names that carat knows, and stop"),
    OPT_FLAG(pull_options, quiet, "quiet", 'q', "print the model's name alone"),
    OPT_END};

/* ---- The bar ------------------------------------------------------------------------------- */

typedef struct bar {
    bool quiet;
    hub_phase phase;
    const char *file;     /* of the last report; the pointer tells files apart */
    double since_ms;      /* begin of the window for the rate */
    uint64_t since_bytes; /* that had come then */
    double rate;          /* bytes per second */
    uint64_t came;        /* bytes that were sent */
} bar;

/* The rate of the last seconds, from windows that follow each other. What was here already is no
 * rate. */
static void take_rate(bar *b, const hub_progress *p)
{
    double now = clock_ms();
    b->came = p->came;
    if (!b->since_ms) {
        b->since_ms = now;
        b->since_bytes = p->came;
    }
    double ms = now - b->since_ms;
    if (ms > 500)
        b->rate = (double)(p->came - b->since_bytes) / ms * 1e3;
    if (ms > RATE_WINDOW_MS) { /* half of the window stays */
        b->since_bytes += (p->came - b->since_bytes) / 2;
        b->since_ms += ms / 2;
    }
}

static void draw(const bar *b, const hub_progress *p)
{
    char cells[BAR_CELLS + 1], line[256], left[32] = "";
    uint64_t total = p->all_total ? p->all_total : 1;
    double share = (double)p->all_done / (double)total;
    int full = (int)(share * BAR_CELLS);
    for (int i = 0; i < BAR_CELLS; i++)
        cells[i] = i < full ? '#' : '.';
    cells[BAR_CELLS] = 0;
    double unit = total >= 1000000000 ? 1e-9 : 1e-6;
    if (p->phase == HUB_CHECKING && p->done < p->total) {
        snprintf(line, sizeof line, "[%s] checking %.0f%%", cells,
                 (double)p->done / (double)(p->total ? p->total : 1) * 100);
        term_status(line);
        return;
    }
    double s = b->rate > 0 ? (double)(total - p->all_done) / b->rate : -1;
    if (s >= 3600 && s < 360000)
        snprintf(left, sizeof left, "  %d h %02d min left", (int)(s / 3600), (int)s / 60 % 60);
    else if (s >= 1 && s < 3600)
        snprintf(left, sizeof left, "  %d:%02d left", (int)s / 60, (int)s % 60);
    snprintf(line, sizeof line, "[%s] %.*f / %.*f %s  %.1f MB/s%s", cells, unit == 1e-9 ? 2 : 0,
             (double)p->all_done * unit, unit == 1e-9 ? 2 : 0, (double)total * unit,
             unit == 1e-9 ? "GB" : "MB", b->rate * 1e-6, left);
    term_status(line);
}

static bool show(void *user, const hub_progress *p)
{
    bar *b = user;
    if (term_interrupts())
        return false;
    take_rate(b, p);
    if (b->quiet)
        return true;
    if (*p->note)
        term_note("%s", p->note);
    if (p->phase == HUB_PULLING && b->file != p->file && p->done < p->total)
        term_note("%s", p->file);
    b->file = p->phase >= HUB_PULLING ? p->file : NULL;
    if (p->phase == HUB_PULLING || p->phase == HUB_CHECKING)
        draw(b, p);
    else
        term_progress_clear();
    return true;
}

/* A pull with its bar and notes on stderr; *found as hub_pull. ask->user not NULL: without them.
 * Ctrl-C: E_CANCELLED. */
static status pull_shown(const hub_ask *ask, model_found *found, err *e)
{
    bar b = {.quiet = ask->user != NULL};
    hub_ask with = *ask;
    with.progress = show;
    with.user = &b;
    status st = hub_pull(&with, found, e);
    term_progress_clear();
    if (st || b.quiet || !b.came)
        return st;
    char *tower = NULL;
    if (found->path)
        mmproj_find(found->path, &tower, NULL);
    term_note("pulled %s: %.*f %s%s%s", found->name, b.came >= 1000000000 ? 2 : 1,
              (double)b.came * (b.came >= 1000000000 ? 1e-9 : 1e-6),
              b.came >= 1000000000 ? "GB" : "MB", tower ? "; " : "", mmproj_gives(tower));
    mem_free(tower);
    return st;
}

status hub_options_take(const hub_options *o, const char **model, model_found *found, err *e)
{
    *found = (model_found){0};
    if (!o->repo && !o->file)
        return OK;
    if (!o->repo)
        return err_set(e, E_ARG, "--hf-file needs --hf-repo");
    if (*model)
        return err_set(e, E_ARG, "-m and -hf both name a model");
    /* What is here is taken without asking the hub: `carat pull` brings newer files. */
    status st = OK;
    if (o->file || !model_known(o->repo) || model_find(o->repo, found, NULL))
        st = pull_shown(&(hub_ask){.what = o->repo, .file = o->file}, found, e);
    if (!st)
        *model = found->path;
    return st;
}

bool hub_may_bring(const char *word)
{
    char repo[ALIAS_MAX];
    bool own;
    arena mem = {0};
    struct stat sb;
    const made_model *made = NULL;
    if (!stat(word, &sb) || alias_find(word, repo, &own, NULL) || !*repo)
        return false;
    if (!own && !strpbrk(word, "0123456789:-")) /* a name of the user is meant, whatever it is */
        return false;
    bool is_made = !made_find(word, &mem, &made, NULL) && made;
    arena_free(&mem);
    return !is_made && !model_known(word);
}

status hub_bring(char *const *words, int n, err *e)
{
    for (int i = 0; i < n; i++) {
        model_found found = {0};
        if (!hub_may_bring(words[i]))
            continue;
        status st = pull_shown(&(hub_ask){.what = words[i]}, &found, e);
        model_found_free(&found);
        if (st)
            return st;
    }
    return OK;
}

/* ---- carat pull ---------------------------------------------------------------------------- */

static int print_names(void)
{
    char name[ALIAS_MAX];
    const char *repo;
    for (size_t i = 0; alias_row(i, name, &repo); i++)
        printf("%-22s %s\n", name, repo);
    return options_printed();
}

static int run_pull(const command *c, int argc, char **argv)
{
    pull_options o = {0};
    int n, stop = options_parse(c, argc, argv, &o, &n), code = 0;
    if (stop)
        return stop - 1;
    if (o.names && !n)
        return print_names();
    if (o.names || !n) {
        fprintf(stderr, "carat: pull %s\nTry 'carat help pull'.\n",
                n ? "--names pulls no model"
                  : "needs the name of a model: NAME:TAG or OWNER/REPO[:QUANT]");
        return 2;
    }
    term_init();
    term_watch(NULL);
    for (int i = 0; i < n && !term_interrupts(); i++) {
        model_found found;
        err e = {0};
        status st = pull_shown(&(hub_ask){.what = argv[i],
                                          .file = o.file,
                                          .revision = o.revision,
                                          .no_mmproj = o.no_mmproj,
                                          .connections = (int)o.connections,
                                          .user = o.quiet ? &o : NULL},
                               &found, &e);
        if (st == E_CANCELLED)
            term_note("interrupted; carat pull %s continues where this stopped", argv[i]);
        else if (st)
            term_error(&e);
        if (st)
            code = st == E_CANCELLED ? EXIT_INTERRUPTED : st == E_ARG && code < 2 ? 2 : 1;
        else {
            printf("%s\n", found.name);
            fflush(stdout);
        }
        model_found_free(&found);
    }
    return code;
}

const command command_pull = {
    .name = "pull",
    .operands = "MODEL...",
    .summary = "Pull models from the Hugging Face hub into the store",
    .about =
        "MODEL is OWNER/REPO[:QUANT], or a short name such as gemma4:e4b or gpt-oss:20b-q8_0\n"
        "(--names lists them; [names] in the settings adds others).\n"
        "Without QUANT it takes Q4_K_M, else Q8_0, else the first GGUF file. Files that are here "
        "are\n"
        "not pulled again, an interrupted pull continues, and every file's hash is checked. "
        "Prints\n"
        "the model's name, which -m of every command and the first word of carat run take.\n\n"
        "HF_TOKEN (or 'hf auth login') is for gated and private repositories, HF_ENDPOINT names\n"
        "another hub, https_proxy and no_proxy are obeyed.",
    .options = table,
    .n_operands_min = 0,
    .n_operands_max = -1,
    .run = run_pull};
