/* pull_int.h - the parts of a pull that preview.c shares: from a name to the files of a model. */
#ifndef APPS_HUB_PULL_INT_H
#define APPS_HUB_PULL_INT_H

#include "apps/hub/alias.h"
#include "apps/hub/download.h"
#include "apps/hub/hub.h"
#include "apps/hub/names.h"
#include "apps/hub/store.h"

typedef struct pull {
    const hub_ask *ask;
    place p;
    net net;
    name_parts name;
    listing list;
    char repo[REPO_MAX], quant[QUANT_MAX];
    char alias[ALIAS_MAX]; /* what a short name stands for; "": the name was a whole one */
    const char *revision;
    bool previews;      /* nothing will be pulled */
    manifest m;         /* what will be written */
    const char **paths; /* [list.n] */
    hub_file *file;     /* [m.n_files], of list */
    int n_model;        /* files of the model itself; a vision tower comes after them */
    download down;      /* of the file at work */
    hub_progress said;
    double said_ms;
    uint64_t before; /* bytes of the files that are done */
    uint64_t came;   /* and of these, bytes that were sent */
    arena mem;
} pull;

/* Asks the hub what the repository of x->ask has, and which file is meant: *first, of x->list.
 * E_ARG, E_IO, E_FORMAT, E_CANCELLED as hub_pull. */
status pull_begin(pull *x, const hub_ask *ask, int *first, err *e);
/* Fills x->m and x->file with the files of the model that begins with x->list.file[first]. */
status pull_set(pull *x, int first, err *e);
/* The address of a file at the hub; NULL: no memory. */
const char *pull_address(pull *x, const char *path);
/* A sentence for the user, by the progress function. E_CANCELLED. */
status pull_tell(pull *x, const char *note, err *e);
void pull_end(pull *x); /* safe on a zeroed one */

/* Of the files of a repository the one for this machine, where a short name leaves that open; and a
 * sentence about a model that would not run here. */
status pull_choose_by_memory(pull *x, int *first, err *e);

#endif
