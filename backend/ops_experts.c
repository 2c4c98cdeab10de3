/* ops_experts.c - the ops of mixtures of experts: routers, the products of the chosen experts, and
 * the expansion of a whole mixture. See ops.c.
 */
#include "backend/lora.h"
#include "backend/ops_int.h"
#include "backend/ranks.h"

#include <math.h>

static routing routing_of(pass *p, int32_t rows, int32_t k)
{
    routing r = {.rows = rows, .k = k};
    size_t n = (size_t)rows * (size_t)k;
    r.id = pass_temp(p, n * sizeof *r.id);
    r.weight = pass_temp(p, n * sizeof *r.weight);
    return r;
}

static bool can_choose(int32_t k, int32_t n, const route_rule *rule)
{
    return k > 0 && k <= n && is_vector(rule->scale, n) && is_vector(rule->bias, n) &&
           (rule->sigmoid || !rule->bias);
}

static const route_rule plain_rule = {.factor = 1};

static bool router_fits(pass *p, mat x, const weight *w, int32_t k, const route_rule *rule)
{
    return pass_shapes(p, "router",
                       w && x.heads == 1 && x.cols == w->n_in && w->n_mat == 1 &&
                           can_choose(k, w->n_out, rule));
}

routing op_router(pass *p, mat x, const weight *w, int32_t k, const route_rule *rule)
{
    rule = rule ? rule : &plain_rule;
    if (!p->dev->op->router)
        return op_route(p, op_matmul(p, x, w), k, rule);
    if (!router_fits(p, x, w, k, rule))
        return (routing){.rows = x.rows, .k = k};
    routing r = routing_of(p, x.rows, k);
    stats_product(p, x.rows, w, 1);
    if (!pass_failed(p) && lora_adapts(p, w))
        lora_router(p, &r, x, w, rule);
    else if (!pass_failed(p))
        p->dev->op->router(p, &r, x, w, rule);
    return r;
}

mat op_glu_router(pass *p, mat x, const weight *gate, const weight *up, act_kind act, mat z,
                  const expert_router *to, routing *r)
{
    const expert_router by = {to->w, to->k, to->rule ? to->rule : &plain_rule};
    if (!p->dev->op->glu_router || lora_adapts_either(p, gate, up) || lora_adapts(p, to->w)) {
        mat y = op_glu(p, x, gate, up, act);
        *r = op_router(p, z, to->w, to->k, to->rule);
        return y;
    }
    *r = (routing){.rows = z.rows, .k = to->k};
    if (!ops_glu_fits(p, x, gate, up, act) || !router_fits(p, z, by.w, by.k, by.rule))
        return (mat){0};
    mat y = ops_glu_room(p, x, gate, up);
    *r = routing_of(p, z.rows, to->k);
    stats_product(p, z.rows, to->w, 1);
    if (!pass_failed(p))
        p->dev->op->glu_router(p, &y, x, gate, up, act, r, z, &by);
    return y;
}

routing op_route(pass *p, mat logits, int32_t k, const route_rule *rule)
{
    rule = rule ? rule : &plain_rule;
    if (!pass_shapes(p, "route", logits.heads == 1 && can_choose(k, logits.cols, rule)))
        return (routing){.rows = logits.rows, .k = k};
    routing r = routing_of(p, logits.rows, k);
    if (!pass_failed(p))
        p->dev->op->route(p, r, logits, rule);
    return r;
}

/* Every pair of row and expert reads a matrix, until all are read; of some experts so many pairs
 * fewer. */
static void stats_experts(pass *p, routing r, const weight *w)
{
    double pairs = (double)r.rows * r.k;
    if (w->n_mat_all)
        pairs *= (double)w->n_mat / w->n_mat_all;
    stats_product(p, (int64_t)ceil(pairs), w, pairs < w->n_mat ? pairs / w->n_mat : 1);
}

mat op_moe_glu(pass *p, mat x, routing *r, const weight *gate, const weight *up, act_kind act)
{
    if (gate && gate->segment) { /* a rank's part of gate and up in one */
        up = &gate->segment[1];
        gate = &gate->segment[0];
    }
    bool fits = gate && x.heads == 1 && x.cols == gate->n_in && x.rows == r->rows &&
                (up ? up->n_in == gate->n_in && up->n_out == gate->n_out && up->n_mat == gate->n_mat
                    : gate->n_out % 2 == 0);
    if (!pass_shapes(p, "moe_glu", fits) || !ops_knows_act(p, "moe_glu", act))
        return (mat){0};
    mat y = pass_mat(p, x.rows, r->k, up ? gate->n_out : gate->n_out / 2);
    stats_experts(p, *r, gate);
    if (up)
        stats_experts(p, *r, up);
    if (pass_failed(p))
        return y;
    if (lora_adapts_either(p, gate, up))
        lora_moe_glu(p, &y, x, r, gate, up, act);
    else
        p->dev->op->moe_glu(p, &y, x, r, gate, up, act);
    return y;
}

static bool down_fits(pass *p, mat x, routing r, const weight *down)
{
    if (!pass_shapes(p, "moe_down",
                     down && x.heads == r.k && x.cols == down->n_in && x.rows == r.rows))
        return false;
    stats_experts(p, r, down);
    return true;
}

static void moe_down_to(pass *p, mat y, mat x, routing r, const weight *down)
{
    if (!pass_failed(p) && lora_adapts(p, down))
        lora_moe_down(p, y, x, r, down);
    else if (!pass_failed(p))
        p->dev->op->moe_down(p, y, x, r, down);
}

mat op_moe_down(pass *p, mat x, routing r, const weight *down)
{
    if (down && down->segment)
        return ranks_moe_down(p, x, r, down);
    if (!down_fits(p, x, r, down))
        return (mat){0};
    mat y = pass_mat(p, x.rows, 1, down->n_out);
    moe_down_to(p, y, x, r, down);
    return y;
}

bool op_moe_down_segments(pass *p, const mat *y, mat x, routing r, const weight *w, int32_t n)
{
    bool can = p->dev->op->moe_down_segments && n <= RANKS_MAX && x.heads == r.k;
    for (int32_t i = 0; i < n && can; i++)
        can = !lora_adapts(p, &w[i]);
    if (!can)
        return false;
    if (!pass_failed(p) && !p->dev->op->moe_down_segments(p, y, x, r, w, n))
        return false;
    for (int32_t i = 0; i < n; i++)
        stats_experts(p, r, &w[i]);
    return true;
}

branch op_moe_branch(pass *p, mat x, routing r, const weight *down, const weight *norm)
{
    branch b = {.w = norm};
    if (!p->dev->op->moe_parts || (down && (down->segment || lora_adapts(p, down)))) {
        b.y = op_moe_down(p, x, r, down);
        return b;
    }
    if (!down_fits(p, x, r, down))
        return b;
    b.y = pass_mat(p, x.rows, 1, down->n_out);
    size_t mark = pass_mark(p);
    mat parts = pass_mat(p, x.rows, r.k, down->n_out);
    if (!pass_failed(p) && p->dev->op->moe_parts(p, parts, x, r, down)) {
        b.parts = parts.at;
        b.k = r.k;
    }
    if (p->dry || !b.parts) { /* a dry pass plans for both */
        pass_release(p, mark);
        moe_down_to(p, b.y, x, r, down);
    }
    return b;
}

/* Whether the shared expert is whole, or absent. */
static bool shares_fit(const mixture *m, int32_t n_in)
{
    const weight *f = m->shared_factor;
    if (!m->shared_gate)
        return !m->shared_up && !m->shared_down && !f;
    return m->shared_up && m->shared_down && m->shared_down->n_out == m->down->n_out &&
           (!f || (f->n_in == n_in && f->n_out == 1));
}

static bool mixture_adapted(const pass *p, const mixture *m)
{
    for (int32_t i = 0; i < m->down->n_segments; i++)
        if (lora_adapts(p, &m->down->segment[i]))
            return true;
    return lora_adapts_either(p, m->gate, m->up) || lora_adapts_either(p, m->down, m->router) ||
           lora_adapts_either(p, m->shared_gate, m->shared_up) ||
           lora_adapts_either(p, m->shared_down, m->shared_factor);
}

mat op_mixture(pass *p, mat x, const mixture *m)
{
    if (!pass_shapes(p, "mixture",
                     m && m->router && m->gate && m->down && x.heads == 1 &&
                         x.cols == m->router->n_in && shares_fit(m, x.cols)))
        return (mat){0};
    if (p->dev->op->mixture && p->here == m->gate->side && !mixture_adapted(p, m)) {
        size_t mark = pass_mark(p);
        mat y = {0};
        if (m->down->segment) {
            if (ranks_mixture(p, &y, x, m))
                return y;
        } else {
            y = pass_mat(p, x.rows, 1, m->down->n_out);
            if (pass_failed(p) || p->dev->op->mixture(p, y, x, m, NULL))
                return y;
        }
        pass_release(p, mark);
    }
    routing to;
    const expert_router choose = {m->router, m->k, m->rule};
    mat y = {0};
    if (m->shared_gate) {
        y = op_glu_router(p, x, m->shared_gate, m->shared_up, m->act, x, &choose, &to);
        y = op_matmul(p, y, m->shared_down);
    } else {
        to = op_router(p, x, m->router, m->k, m->rule);
    }
    if (m->shared_factor)
        y = op_act_mul(p, op_matmul(p, x, m->shared_factor), y, ACT_SIGMOID);
    visit v = op_visit(p, m->gate->side, &x, &to);
    mat e = op_moe_glu(p, x, &to, m->gate, m->up, m->act);
    e = op_moe_down(p, e, to, m->down);
    e = op_return(p, v, e);
    return m->shared_gate ? op_add(p, mat_bare(y), e) : e;
}

mat op_moe_matmul(pass *p, mat x, routing r, const weight *w)
{
    if (!pass_shapes(p, "moe_matmul", w && x.heads == 1 && x.cols == w->n_in && x.rows == r.rows))
        return (mat){0};
    mat y = pass_mat(p, x.rows, r.k, w->n_out);
    stats_experts(p, r, w);
    if (!pass_failed(p))
        p->dev->op->moe_matmul(p, y, &x, r, w);
    return y;
}

void op_renumber(pass *p, mat best, routing r, const int32_t *list, int32_t n_list, int32_t n)
{
    if (pass_shapes(p, "renumber",
                    best.heads == 2 && best.rows == r.rows && n > 0 && n_list % n == 0 &&
                        !mat_copied(best)))
        p->dev->op->renumber(p, best, r, list, n_list, n);
}
