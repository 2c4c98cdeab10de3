/* settings_test.c - every number of sampling (carat/sampling_settings.h), in each way of this
 * program to set it: its ends are taken, what lies beyond is refused in a sentence with the name
 * that the user typed. request_test.c has the fields of requests.
 */
#include "apps/commands.h"
#include "apps/config.h"
#include "apps/modelfile.h"
#include "apps/run_int.h"
#include "tests/test.h"
#include "tests/toy_model.h"

#include <math.h>
#include <string.h>

/* A way to set `name` to `value`; what the setting is then, in *is. */
typedef status setter(const char *name, const char *value, const carat_sampling_setting *what,
                      double *is, err *e);

static void take_options(const run_options *o, const carat_sampling_setting *what, double *is)
{
    err e = {0};
    carat_sampling s;
    carat_sampling_neutral(&s);
    CHECK_OK(sample_options_apply(&o->sample, &s, &e), e);
    *is = carat_sampling_get(&s, what);
}

static status by_option(const char *name, const char *value, const carat_sampling_setting *what,
                        double *is, err *e)
{
    run_options o = run_usual;
    status st = options_set(command_run.options, name, value, &o, NULL, 0, e);
    take_options(&o, what, is);
    return st;
}

static status by_config(const char *name, const char *value, const carat_sampling_setting *what,
                        double *is, err *e)
{
    run_options o = run_usual;
    config f = {0};
    char text[128];
    snprintf(text, sizeof text, "[defaults]\n%s = %s\n", name, value);
    status st = config_take(&f, text, strlen(text), "c.toml", false, e);
    if (!st)
        st = config_apply(&f, &command_run, NULL, &o, e);
    config_free(&f);
    take_options(&o, what, is);
    return st;
}

static status by_modelfile(const char *name, const char *value, const carat_sampling_setting *what,
                           double *is, err *e)
{
    json_t *root = NULL;
    char text[128];
    snprintf(text, sizeof text, "FROM x\nPARAMETER %s %s\n", name, value);
    status st = modelfile_parse(&root, text, strlen(text), "m", e);
    if (!st)
        st = run_check_made("m", root, e);
    *is = json_number_value(json_object_get(json_object_get(root, "parameters"), what->name));
    if (!st && what->also && !strcmp(name, what->also))
        *is = json_number_value(json_object_get(json_object_get(root, "parameters"), name));
    json_decref(root);
    return st;
}

static chat conversation;

static status by_command(const char *name, const char *value, const carat_sampling_setting *what,
                         double *is, err *e)
{
    slash_result r = {0};
    char line[128];
    snprintf(line, sizeof line, "/set %s %s", name, value);
    status st = slash_run(&conversation, line, &r, e);
    *is = carat_sampling_get(&conversation.sampling, what);
    return st;
}

static void check_way(const char *way, setter *set, const char *name,
                      const carat_sampling_setting *what)
{
    for (int k = 0; k < 4; k++) {
        double step = what->whole ? 1 : 0.5, is = NAN;
        double v = k & 1 ? what->max + (k & 2 ? step : 0) : what->min - (k & 2 ? step : 0);
        char value[40];
        err e = {0};
        if (set == by_modelfile && v < 0 && what->min >= 0)
            continue; /* as usual: ollama has such numbers for that */
        snprintf(value, sizeof value, "%.10g", v);
        status st = set(name, value, what, &is, &e);
        if (k & 2)
            CHECK_MSG(st && strstr(e.text, name) && strstr(e.text, "expected"),
                      "%s: %s %s is taken, or refused in the sentence '%s'", way, name, value,
                      e.text);
        else
            CHECK_MSG(!st && fabs(is - v) <= 1e-6 * fabs(v), "%s: %s %s gives %g: %s", way, name,
                      value, is, e.text);
    }
}

TEST(numbers_of_sampling_are_set_in_every_way_within_their_range)
{
    const carat_model_options no_weights = {.vocab_only = true};
    err e = {0};
    int32_t n;
    const carat_sampling_setting *all = carat_sampling_settings(&n);
    CHECK_OK(carat_model_open(toy_model_write(NULL), &no_weights, &conversation.m, &e), e);
    conversation.o = run_usual;
    for (int32_t i = 0; i < n; i++)
        for (int k = 0; k < 3; k++) {
            const char *name = k == 0 ? all[i].name : k == 1 ? all[i].also : all[i].flag;
            if (!name)
                continue;
            check_way("an option", by_option, name, &all[i]);
            check_way("a file of settings", by_config, name, &all[i]);
            check_way("/set", by_command, name, &all[i]);
            if (k < 2)
                check_way("a Modelfile", by_modelfile, name, &all[i]);
        }
    carat_model_close(conversation.m);
}
