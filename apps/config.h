/* config.h - settings from a file: defaults and named presets, which run and serve take.
 *
 *     $XDG_CONFIG_HOME/carat/config.toml
 *         version = 1                     may be left out
 *         [defaults]                      for run and serve
 *         temperature = 0.7
 *         [presets.code]                  carat run --preset code
 *         model = "own/Coder-GGUF:Q4_K_M"
 *         system = "You write C."
 *         [presets.quick]
 *         from = "code"                   and what that says
 *         [serve]                         for serve alone
 *         [names]                         short names of models, for every command
 *         coder = "own/Coder-GGUF:Q4_K_M"
 *         [mcp.files]                     tools of an MCP server (mcp_options.h)
 *
 * Keys are long names of options; '-' and '_' are equal. The command line comes first, then the
 * environment (CARAT_TEMP=0.5), the preset, [serve], [defaults], and what is built in.
 */
#ifndef APPS_CONFIG_H
#define APPS_CONFIG_H

#include "apps/hub/alias.h"
#include "apps/options.h"
#include "apps/toml.h"
#include "base/arena.h"

typedef struct config_options {
    const char *preset, *file;
    bool none;
} config_options;

#define OPT_CONFIG(T)                                                                              \
    OPT_STR(T, config.preset, "preset", 0, "NAME", "take the options of a preset (carat config)",  \
            .words = "@presets"),                                                                  \
        OPT_STR(T, config.file, "config", 0, "FILE",                                               \
                "settings (default: $XDG_CONFIG_HOME/carat/config.toml)"),                         \
        OPT_FLAG(T, config.none, "no-config", 0, "take no settings from files")

enum { CONFIG_MAX = 1 << 20 }; /* bytes of a file of settings */

/* Who sets an option; the first that does counts. */
enum {
    CONFIG_COMMAND_LINE = 1,
    CONFIG_ENVIRONMENT,
    CONFIG_PRESET,
    CONFIG_PRESET_FROM, /* the preset that this one is from */
    CONFIG_SERVE,
    CONFIG_DEFAULTS
};

/* The settings of one run of a command. Its strings must outlive the options. */
typedef struct config {
    const char *path; /* of the file that was read; NULL: none */
    const toml *root;
    option_marks marks;
    const char *origin[OPTION_ROWS_MAX]; /* of each row: "presets.code in FILE:12", "CARAT_TEMP" */
    arena mem;
} config;

/* options_parse for a command with OPT_CONFIG in its table: the command line, and then all of the
 * above. Returns as options_parse does. */
int config_parse(const command *c, int argc, char **argv, void *opts, int *n_operands, config *f);
/* Was this option given on the command line? */
bool config_typed(const config *f, const command *c, const char *name);
/* The i-th preset of what was read, and the model or preset that it is from, or "". NULL: past the
 * last. */
const char *config_preset(const config *f, int i, const char **about);
void config_free(config *f); /* safe on a zeroed or freed one */

/* Reads a file of settings and checks all of it. path NULL: the default one, which need not exist.
 */
status config_read(config *f, const char *path, err *e);
/* The same for text; dir: where relative paths begin. */
status config_take(config *f, const char *text, size_t n, const char *path, bool secret, err *e);
/* Checks [names]; alias.h finds what the names stand for. */
status config_check_names(const config *f, const toml *names, err *e);
/* An alias_own_fn: what a name stands for in [names] of the file that these options name, else of
 * the default one. */
status config_own_name(const void *user, const char *name, char out[ALIAS_MAX], err *e);
void config_names_from(const config_options *o); /* before there are threads */
/* Sets the options of a command from what was read, and from the environment. preset may be NULL.
 */
status config_apply(config *f, const command *c, const char *preset, void *opts, err *e);
/* A whole number that the settings or the environment give to an option of a command. *out stays
 * where they give none. Statuses as config_read. */
status config_number(const command *c, const char *name, int64_t *out, err *e);

#endif
