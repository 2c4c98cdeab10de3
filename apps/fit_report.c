/* fit_report.c - see fit_report.h. */
#include "apps/fit_report.h"

#include "apps/hub/names.h"
#include "apps/named.h"
#include "base/str.h"

#include <string.h>
#include <sys/stat.h>

/* Bytes of a file that is here, or of all parts of a split set. */
static uint64_t size_of_files(const char *path)
{
    int no, count = 0;
    size_t n_stem;
    struct stat sb;
    if (!split_name(path, &no, &count, &n_stem))
        return stat(path, &sb) ? 0 : (uint64_t)sb.st_size;
    uint64_t sum = 0;
    for (no = 1; no <= count; no++) {
        str part = {0};
        str_printf(&part, "%.*s-%05d-of-%05d%s", (int)n_stem, path, no, count,
                   path + n_stem + strlen("-NNNNN-of-NNNNN"));
        sum += part.bad || stat(part.at, &sb) ? 0 : (uint64_t)sb.st_size;
        str_free(&part);
    }
    return sum;
}

status fit_find(fit_report *r, const hub_ask *ask, bool paths, err *e)
{
    const char *what = ask->what;
    struct stat sb;
    bool here = !ask->file && !ask->revision && ((paths && !stat(what, &sb)) || model_known(what));
    status st = here ? model_find(what, &r->found, e) : hub_preview(ask, &r->view, e);
    if (st)
        return st;
    r->name = here ? r->found.name : r->view.name;
    r->path = here ? r->found.path : r->view.path;
    r->n_bytes = here ? size_of_files(r->path) : r->view.n_bytes;
    return OK;
}

status fit_plan(fit_report *r, const carat_model_options *mo, const carat_session_options *so,
                int32_t n_slots, err *e)
{
    const carat_batch_options batch = {.session = *so, .n_slots = n_slots};
    status st = named_open(r->path, mo, &r->m, &r->why);
    if (!st) {
        carat_model_get_info(r->m, &r->info);
        st = n_slots > 1 ? carat_plan_batch(r->m, &batch, &r->plan, &r->why)
                         : carat_plan(r->m, so, &r->plan, &r->why);
    }
    if (!st)
        st = carat_plan_check(r->m, &r->plan, &r->why);
    r->runs = !st;
    hub_view_sentence(&r->view, &r->why);
    if (st == E_ARG || st == E_CANCELLED) /* of the options, not of the model */
        return err_set(e, st, "%s", r->why.text);
    return OK;
}

double fit_tokens_per_second(const fit_report *r)
{
    double bytes = (double)r->info.active_bytes_per_token;
    return r->read_bytes > 0 && bytes > 0 ? r->read_bytes / bytes : 0;
}

json_t *fit_json(const fit_report *r)
{
    const carat_memory_plan *p = &r->plan;
    json_t *others = json_array();
    for (size_t i = 0; i < r->view.n_others; i++)
        json_array_append_new(others, json_pack("{s:s, s:I}", "quant", r->view.other[i].quant,
                                                "bytes", (json_int_t)r->view.other[i].n_bytes));
    json_t *o = json_pack(
        "{s:o, s:b, s:b, s:I, s:I, s:o, s:s?, s:s?, s:i, s:I, s:I, s:I, s:f, s:f, s:o}", "name",
        json_lossy_text(r->name, strlen(r->name)), "here", r->view.path == NULL, "runs", r->runs,
        "bytes", (json_int_t)r->n_bytes, "tower_bytes", (json_int_t)r->view.tower_bytes, "problem",
        r->runs ? json_null() : json_lossy_text(r->why.text, strlen(r->why.text)), "device",
        r->info.device, "given_up", r->runs ? r->info.fit_text : NULL, "context", (int)p->n_ctx,
        "total_bytes", (json_int_t)p->total_bytes, "available_bytes",
        (json_int_t)p->available_bytes, "active_bytes_per_token",
        (json_int_t)r->info.active_bytes_per_token, "read_bytes_per_second", r->read_bytes,
        "tokens_per_second_at_most", fit_tokens_per_second(r), "files", others);
    return o;
}

void fit_free(fit_report *r)
{
    carat_model_close(r->m);
    hub_view_free(&r->view);
    model_found_free(&r->found);
    *r = (fit_report){0};
}
