/* commands.c - the list of subcommands, in the order of help and docs/cli.md. */
#include "apps/commands.h"

const command *const commands[] = {&command_run,        &command_serve,
                                   &command_history,    &command_pull,
                                   &command_list,       &command_show,
                                   &command_rm,         &command_create,
                                   &command_cp,         &command_config,
                                   &command_bench,      &command_inspect,
                                   &command_convert,    &command_quantize,
                                   &command_synth,      &command_logits,
                                   &command_kld,        &command_calibrate_sparse,
                                   &command_importance, &command_tokenize,
                                   &command_daemon,     &command_completion,
                                   NULL};
