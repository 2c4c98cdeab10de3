/* commands.h - the subcommands, each defined in the file of its name. */
#ifndef APPS_COMMANDS_H
#define APPS_COMMANDS_H

#include "apps/options.h"

extern const command command_config;
extern const command command_completion;
extern const command command_connect;
extern const command command_convert;
extern const command command_daemon;
extern const command command_embed;
extern const command command_fit;
extern const command command_history;
extern const command command_imatrix;
extern const command command_importance;
extern const command command_inspect;
extern const command command_bench;
extern const command command_kld;
extern const command command_calibrate_sparse;
extern const command command_list;
extern const command command_create;
extern const command command_cp;
extern const command command_logits;
extern const command command_mcp;
extern const command command_pull;
extern const command command_quantize;
extern const command command_rerank;
extern const command command_rm;
extern const command command_run;
extern const command command_serve;
extern const command command_show;
extern const command command_synth;
extern const command command_tokenize;

enum { COMMANDS_MAX = 64 };
extern const command *const commands[]; /* commands.c; ends with NULL */

#endif
