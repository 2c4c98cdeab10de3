/* loras.c - /lora-adapters: a model's adapters and the scales of answers that name none, as
 * llama-server has it. */
#include "apps/server/models/info.h"

#include "apps/server/answers/token_rules.h"
#include "apps/server/dialects/jsonw.h"
#include "apps/server/models/served.h"

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
        json_close(o, '}');
    }
    json_close(o, ']');
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
        json_close(&x->out, '}');
        x->status = 200;
    } else {
        reply_problem(x, &p);
    }
    arena_free(&mem);
}
