/* loras.c - see loras.h; and /lora-adapters: a model's adapters and the scales of answers that name
 * none, as llama-server has it. */
#include "apps/server/models/loras.h"

#include "apps/hub/made.h"
#include "apps/server/answers/token_rules.h"
#include "apps/jsonw.h"
#include "apps/server/models/info.h"
#include "apps/server/models/served.h"
#include "base/mem.h"

#include <string.h>
#include <strings.h>
#include <sys/stat.h>

/* ---- Of made models ---- */

static bool same_weights(const char *a, const char *b)
{
    struct stat x, y;
    return a && b ? !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino
                  : a == b;
}

static bool has_file(const lora_files *f, int32_t n, const char *path)
{
    for (int32_t i = 0; i < n; i++)
        if (!strcmp(f->at[i].path, path))
            return true;
    return false;
}

/* Sorts the adapters of made models: first those that the model had, in their old order, then new
 * ones. Returns how many files are to be loaded. */
static int32_t as_before(lora_history *had, lora_files *f, int32_t first, int32_t n)
{
    int32_t at = first;
    for (int32_t k = 0; k < had->n; k++)
        for (int32_t i = at; i < n; i++)
            if (!strcmp(f->at[i].path, had->path[k])) {
                carat_lora l = f->at[i];
                memmove(&f->at[at + 1], &f->at[at], (size_t)(i - at) * sizeof l);
                f->at[at++] = l;
                break;
            }
    had->more = at < n;
    return had->alone ? at : n;
}

void loras_forget(lora_history *had)
{
    for (int32_t i = 0; i < had->n; i++)
        mem_free(had->path[i]);
    had->n = 0;
}

void loras_remember(const served *m, lora_history *had)
{
    carat_lora_info l;
    loras_forget(had);
    for (int32_t i = m->s->o->lora.files.n; carat_lora_at(m->model, i, &l); i++)
        if ((had->path[had->n] = mem_strdup(l.path)))
            had->n++;
}

int32_t loras_of_made(server *s, const char *weights, lora_history *had, lora_files *f, int32_t n,
                      arena *mem)
{
    const made_model *made;
    const int32_t first = n;
    size_t n_made = 0;
    err e = {0};
    if (made_list(mem, &made, &n_made, &e))
        log_line(s, "adapters of made models: %s", e.text);
    for (size_t i = 0; i < n_made; i++) {
        const char **adapter, *path;
        size_t n_own;
        int32_t n_ctx;
        if (made_adapters(&made[i], mem, &adapter, &n_own, NULL) || !n_own ||
            made_weights(&made[i], mem, &path, &n_ctx, NULL) || !same_weights(path, weights))
            continue;
        for (size_t k = 0; k < n_own; k++) {
            e = (err){0};
            if (has_file(f, n, adapter[k]))
                continue;
            if (n == LORA_FILES_MAX)
                err_set(&e, E_LIMIT, "a model has at most %d adapters", LORA_FILES_MAX);
            else
                lora_check(weights, &adapter[k], 1, &e);
            if (e.status)
                log_line(s, "%s goes without its adapter %s: %s", made[i].name, adapter[k], e.text);
            else
                f->at[n++] = (carat_lora){.path = adapter[k], .scale = 0};
        }
    }
    return as_before(had, f, first, n);
}

int32_t loras_scales(const served *m, float scale[LORA_FILES_MAX])
{
    carat_lora_info l;
    int32_t n = 0;
    for (; n < m->s->o->lora.files.n && carat_lora_at(m->model, n, &l); n++)
        scale[n] = l.scale;
    return n;
}

void loras_set_again(served *m, const float *scale, int32_t n)
{
    float all[LORA_FILES_MAX];
    carat_lora_info l;
    int32_t n_all = 0;
    for (; carat_lora_at(m->model, n_all, &l); n_all++)
        all[n_all] = n_all < n ? scale[n_all] : l.scale;
    if (n)
        carat_lora_set_scales(m->model, all, n_all, NULL); /* each was a scale before */
}

/* The number of the adapter of this file; -1: it is not loaded. */
static int32_t number_of(const served *m, const char *path)
{
    carat_lora_info l;
    for (int32_t i = 0; carat_lora_at(m->model, i, &l); i++)
        if (!strcmp(l.path, path))
            return i;
    return -1;
}

const char *loras_lacking(const beginning *b, const served *m)
{
    for (const jtree *v = b->adapters ? b->adapters->first : NULL; v; v = v->next)
        if (number_of(m, v->s) < 0)
            return v->s;
    return NULL;
}

bool loras_may_load(const beginning *b, const served *m, const char *lacking, problem *p)
{
    carat_lora_info l;
    err e = {0};
    if (carat_lora_at(m->model, LORA_FILES_MAX - 1, &l))
        err_set(&e, E_LIMIT, "the model has %d adapters already, as many as may be",
                LORA_FILES_MAX);
    else
        lora_check(m->path, &lacking, 1, &e);
    return !e.status || problem_set(p, 500, "model", "the adapter %.300s of \"%.100s\": %.400s",
                                    lacking, b->name, e.text);
}

/* ---- Of requests ---- */

/* The adapter of --lora of this name; -1: none. As in names of models, case does not matter, but
 * for two that differ by it alone. */
static int32_t named(const served *m, const char *name)
{
    return lora_find(m->model, m->s->o->lora.files.n, name);
}

bool loras_has(const served *m, const char *name)
{
    return named(m, name) >= 0;
}

bool loras_choose(request *rq, const beginning *b, const served *m, problem *p)
{
    carat_lora_info l;
    int32_t n = 0,
            id = b->name || catalog_own_name(m->s->catalog, rq->model) ? -1 : named(m, rq->model);
    if (rq->lora || (!b->adapters && id < 0))
        return true;
    lora_wish *w = arena_array(&rq->mem, LORA_FILES_MAX, sizeof *w);
    if (!w)
        return problem_set(p, 503, "", "no memory for a list of adapters");
    if (id >= 0)
        w[n++] = (lora_wish){.id = id, .scale = 1};
    for (int32_t i = 0; b->adapters && i < LORA_FILES_MAX && carat_lora_at(m->model, i, &l); i++)
        w[n++] = (lora_wish){.id = i, .scale = l.scale};
    for (const jtree *v = b->adapters ? b->adapters->first : NULL; v; v = v->next)
        w[number_of(m, v->s)].scale = 1; /* all are loaded */
    rq->lora = w;
    rq->n_loras = n;
    return true;
}

bool loras_refuse(exchange *x, const char *name, problem *p)
{
    beginning b = {0};
    bool ok = exchange_begin(x, name, &b, p);
    if (ok && (b.adapters ||
               (!b.name && !catalog_own_name(x->s->catalog, name) && loras_has(x->m, name))))
        ok =
            problem_set(p, 400, "model",
                        "\"%.100s\" has an adapter, and this path computes without adapters", name);
    beginning_free(&b);
    return ok;
}

offer_view *loras_add_views(exchange *x, const offer_view *list, int32_t *n, arena *mem)
{
    catalog *c = x->s->catalog;
    served *loaded[PASSES_MAX];
    int32_t n_loaded = catalog_hold(c, loaded), n_all = *n;
    offer_view *all =
        arena_array(mem, (size_t)n_all + (size_t)n_loaded * LORA_FILES_MAX + 1, sizeof *all);
    if (all)
        memcpy(all, list, (size_t)n_all * sizeof *all);
    for (int32_t k = 0; k < n_loaded && all; k++) {
        const char *base = catalog_own_name(c, catalog_name(loaded[k]));
        const offer_view *of = NULL;
        carat_lora_info l;
        for (int32_t i = 0; i < *n && base && !of; i++)
            of = strcmp(list[i].name, base) ? NULL : &list[i];
        for (int32_t i = 0;
             of && i < x->s->o->lora.files.n && carat_lora_at(loaded[k]->model, i, &l); i++) {
            bool taken = false;
            for (int32_t j = 0; j < n_all; j++)
                taken |= !strcasecmp(all[j].name, l.name);
            const char *name = taken ? NULL : arena_strndup(mem, l.name, strlen(l.name));
            if (!name)
                continue; /* a model is meant, or the same adapter of another model */
            all[n_all] = *of;
            all[n_all].source = OFFER_ADAPTER;
            all[n_all].parent = of->name;
            all[n_all++].name = name;
        }
    }
    catalog_drop(c, loaded, n_loaded);
    *n = n_all;
    return all;
}

/* ---- /lora-adapters ---- */

static void put_loras(exchange *x)
{
    str *o = &x->out;
    carat_lora_info l;
    json_open(o, NULL, '[');
    for (int32_t i = 0; carat_lora_at(x->m->model, i, &l); i++) {
        json_open(o, NULL, '{');
        json_int(o, "id", i);
        json_text(o, "name", l.name);
        json_text(o, "path", l.path);
        json_number(o, "scale", (double)l.scale);
        json_int(o, "rank", l.rank_most);
        json_text(o, "task_name", "");
        json_text(o, "prompt_prefix", "");
        json_close(o, "}");
    }
    json_close(o, "]");
    x->status = 200;
}

/* Adapters that the list does not name get the scale 0. */
static bool set_scales(exchange *x, arena *mem, problem *p)
{
    float scale[LORA_FILES_MAX] = {0};
    const jtree *body;
    lora_wish *wish = NULL;
    carat_lora_use *use;
    carat_lora_info l;
    int32_t n_wishes = 0, n = 0;
    err e = {0};
    if (jtree_parse(x->body, x->n_body, "the request", 8, mem, &body, &e))
        return problem_from(p, &e);
    if (!jtree_is(body, JTREE_ARRAY))
        return problem_set(p, 400, "", "the body is not a list of {\"id\": N, \"scale\": S}");
    if (!read_lora_list(body, "", mem, &wish, &n_wishes, p) ||
        !loras_named(wish, n_wishes, x->m->model, mem, &use, p))
        return false;
    while (carat_lora_at(x->m->model, n, &l))
        n++;
    for (int32_t i = 0; i < n_wishes; i++)
        scale[use[i].id] = use[i].scale;
    return !carat_lora_set_scales(x->m->model, scale, n, &e) || problem_from(p, &e);
}

void handle_loras(exchange *x)
{
    if (exchange_pick_query(x))
        put_loras(x);
}

void handle_loras_set(exchange *x)
{
    arena mem = {0};
    problem p = {0};
    if (!exchange_pick_query(x))
        return;
    if (set_scales(x, &mem, &p)) {
        json_open(&x->out, NULL, '{');
        json_bool(&x->out, "success", true);
        json_close(&x->out, "}");
        x->status = 200;
    } else {
        reply_problem(x, &p);
    }
    arena_free(&mem);
}
