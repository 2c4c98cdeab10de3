/* fit_report.h - what a model needs on this machine: for `carat fit`, and for the page of a server.
 */
#ifndef APPS_FIT_REPORT_H
#define APPS_FIT_REPORT_H

#include "apps/hub/hub.h"
#include "base/json.h"
#include "carat.h"

/* A model, its plan here, and what is known of both. */
typedef struct fit_report {
    hub_view view;     /* of a model of a hub */
    model_found found; /* of one that is here */
    const char *name, *path;
    uint64_t n_bytes; /* of its files; 0: unknown */
    carat_model *m;
    carat_model_info info;
    carat_memory_plan plan;
    bool runs;
    err why;           /* it does not */
    double read_bytes; /* per second, measured; 0: not */
} fit_report;

/* A model that is here, else one of a hub, whose head alone is read (apps/hub/preview.c). paths: a
 * file counts, too. The caller always calls fit_free. */
status fit_find(fit_report *r, const hub_ask *ask, bool paths, err *e);
/* Plans it with these options: a session, or a batch of n_slots of it. That a model does not run is
 * in the report. E_ARG: the options; E_CANCELLED. */
status fit_plan(fit_report *r, const carat_model_options *mo, const carat_session_options *so,
                int32_t n_slots, err *e);
/* 0: unknown. */
double fit_tokens_per_second(const fit_report *r);
/* NULL: no memory. */
json_t *fit_json(const fit_report *r);
void fit_free(fit_report *r);

#endif
