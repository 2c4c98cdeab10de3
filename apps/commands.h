/* commands.h - the subcommands, each defined in the file of its name. */
#ifndef APPS_COMMANDS_H
#define APPS_COMMANDS_H

#include "apps/options.h"

extern const command command_convert;
extern const command command_daemon;
extern const command command_inspect;
extern const command command_bench;
extern const command command_kld;
extern const command command_logits;
extern const command command_quantize;
extern const command command_run;
extern const command command_serve;
extern const command command_synth;

extern const command *const commands[]; /* main.c; ends with NULL */

#endif
