/* server_rig.h - a toy model behind `carat serve`, for the tests of the server. */
#ifndef TESTS_SERVER_RIG_H
#define TESTS_SERVER_RIG_H

#include "tests/auto.h"
#include "tests/http_client.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <signal.h>
#include <stdio.h>

#define ASK "\"messages\":[{\"role\":\"user\",\"content\":\"Say something.\"}]"

/* A toy model, whose greedy answers go on until they are cut. */
static inline void start_toy(served *s, const char *const *more)
{
    const char *args[24] = {"-m", toy_model_write(NULL), "--ctx", "512", "-t", "1"};
    int n = 6;
    while (more && *more)
        args[n++] = *more++;
    served_start(s, args);
}

static inline void stop(served *s)
{
    CHECK_EQ(served_stop(s, SIGTERM), 0);
}

/* Method on a stored response and what comes after its id; the body to out. Returns the status. */
static inline int call_response(const served *s, const char *method, const char *id,
                                const char *tail, const char *headers, str *out)
{
    AUTO(response_free) response r;
    char path[160];
    snprintf(path, sizeof path, "/v1/responses/%s%s", id, tail);
    http_call(&r, s, method, path, headers, NULL);
    int code = r.status;
    str_cut(out, 0);
    str_puts(out, str_text(&r.body));
    return code;
}

#endif
