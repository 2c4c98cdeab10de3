/* grammar_match.c - following a grammar: lazily built states.
 *
 * A state is the set of all readings of the text so far. A reading (config) is a node of an
 * automaton and the top cell of its stack. A cell holds the call to return from, the number of
 * passes of the called frame so far, and the cell below. Equal cells are stored once, and so are
 * equal states. The successors and the mask of a state are therefore computed once and reused: a
 * small grammar soon costs one table lookup per byte.
 *
 * All tables have a fixed size. When one is full, it keeps only the states of live runs and of the
 * current walk.
 */
#include "text/grammar_match_int.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROW_BYTES = 4 << 20, /* of all states: sets the number of states */
    MIN_STATES = 2048,   /* at least, even above ROW_BYTES */
    MAX_STATES = 1 << 14,
    MAX_CELLS = 1 << 15
};

static uint32_t hash3(int32_t a, int32_t b, int32_t c)
{
    uint64_t h = ((uint64_t)(uint32_t)a << 32 | (uint32_t)b) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 29 ^ (uint32_t)c) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(h ^ h >> 32);
}

/* ---- Opening and closing ---- */

static status find_specials(matcher *m, err *e)
{
    for (int32_t i = 0; i < m->g->n_specials; i++) {
        const char *name = m->g->special_name[i];
        int32_t id = m->t->v ? vocab_find(m->t->v, name, strlen(name)) : -1;
        if (id < 0)
            return err_set(e, E_UNSUPPORTED,
                           "the grammar needs the token %s, which this model "
                           "does not have",
                           name);
        m->special_id[i] = id;
    }
    return OK;
}

static int32_t power_of_two(int32_t n)
{
    int32_t p = 1;
    while (p < n)
        p *= 2;
    return p;
}

static size_t row_bytes(const matcher *m)
{
    return (size_t)m->cap_states * (size_t)m->width * sizeof *m->row;
}

static size_t matcher_bytes(const matcher *m)
{
    return sizeof *m + row_bytes(m) + (size_t)m->cap_states * sizeof *m->state +
           (size_t)m->cap_configs * sizeof *m->config + MAX_CELLS * sizeof *m->cell +
           (size_t)m->n_state_slots * 4 + MAX_CELLS * 12 +
           (size_t)N_MASKS * (size_t)m->t->n_words * 8 + (size_t)m->t->max_depth * 4;
}

status matcher_open(matcher **out, const grammar *g, const token_tree *t, err *e)
{
    matcher *m = mem_calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return err_memory(e, "following a grammar", sizeof *m);
    m->g = g;
    m->t = t;
    m->width = g->n_classes + g->n_specials;
    m->cap_states = ROW_BYTES / (m->width * (int32_t)sizeof *m->row);
    m->cap_states = m->cap_states < MIN_STATES   ? MIN_STATES
                    : m->cap_states > MAX_STATES ? MAX_STATES
                                                 : m->cap_states;
    m->cap_configs = 4 * m->cap_states + 2 * MAX_VISITS;
    m->n_state_slots = power_of_two(2 * m->cap_states);
    m->n_cells = 1;
    for (int i = 0; i < N_MASKS; i++)
        m->mask[i].state = -1;
    m->row = mem_alloc(row_bytes(m));
    m->state = mem_alloc((size_t)m->cap_states * sizeof *m->state);
    m->config = mem_alloc((size_t)m->cap_configs * sizeof *m->config);
    m->cell = mem_calloc(MAX_CELLS, sizeof *m->cell);
    m->state_slot = mem_calloc((size_t)m->n_state_slots, sizeof *m->state_slot);
    m->cell_slot = mem_calloc(2 * MAX_CELLS, sizeof *m->cell_slot);
    m->cell_map = mem_alloc(MAX_CELLS * sizeof *m->cell_map);
    m->bits = mem_alloc((size_t)N_MASKS * (size_t)t->n_words * sizeof *m->bits + 1);
    m->path = mem_calloc((size_t)t->max_depth + 2 + REACH_PATH, sizeof *m->path);
    status st = OK;
    if (!m->row || !m->state || !m->config || !m->cell || !m->state_slot || !m->cell_slot ||
        !m->cell_map || !m->bits || !m->path)
        st = err_memory(e, "following a grammar", matcher_bytes(m));
    if (!st)
        st = find_specials(m, e);
    if (st)
        matcher_close(m);
    else
        *out = m;
    return st;
}

void matcher_close(matcher *m)
{
    if (!m)
        return;
    mem_free(m->path);
    mem_free(m->bits);
    mem_free(m->cell_map);
    mem_free(m->cell_slot);
    mem_free(m->state_slot);
    mem_free(m->cell);
    mem_free(m->config);
    mem_free(m->state);
    mem_free(m->row);
    mem_free(m);
}

/* ---- Tables ---- */

static int32_t *cell_place(matcher *m, const cell *c)
{
    for (uint32_t i = hash3(c->call, c->parent, c->passed);; i++) {
        int32_t *slot = &m->cell_slot[i & (2 * MAX_CELLS - 1)];
        const cell *x = *slot ? &m->cell[*slot - 1] : NULL;
        if (!x || (x->call == c->call && x->parent == c->parent && x->passed == c->passed))
            return slot;
    }
}

static int32_t *state_place(matcher *m, const config *c, int32_t n, bool end)
{
    uint32_t h = (uint32_t)n * 2 + end;
    for (int32_t i = 0; i < n; i++)
        h = hash3(c[i].node, c[i].cell, (int32_t)h);
    for (;; h++) {
        int32_t *slot = &m->state_slot[h & (uint32_t)(m->n_state_slots - 1)];
        const state *s = *slot ? &m->state[*slot - 1] : NULL;
        if (!s ||
            (s->n == n && s->end == end && !memcmp(m->config + s->at, c, (size_t)n * sizeof *c)))
            return slot;
    }
}

static void clear_row(matcher *m, int32_t s)
{
    int32_t *row = m->row + (size_t)s * (size_t)m->width;
    for (int32_t i = 0; i < m->width; i++)
        row[i] = STATE_UNKNOWN;
}

static void mark_live(matcher *m, int32_t s)
{
    if (s < 0 || m->state[s].live)
        return;
    m->state[s].live = true;
    for (int32_t i = 0; i < m->state[s].n; i++)
        for (int32_t c = m->config[m->state[s].at + i].cell; !m->cell_map[c]; c = m->cell[c].parent)
            m->cell_map[c] = 1;
}

/* Compacts the live cells. A parent is older than its cell, so it has already moved. */
static void keep_cells(matcher *m)
{
    int32_t n = 1;
    memset(m->cell_slot, 0, 2 * MAX_CELLS * sizeof *m->cell_slot);
    m->cell_map[0] = 0;
    for (int32_t i = 1; i < m->n_cells; i++) {
        if (!m->cell_map[i])
            continue;
        m->cell[n] = m->cell[i];
        m->cell[n].parent = m->cell_map[m->cell[i].parent];
        *cell_place(m, &m->cell[n]) = n + 1;
        m->cell_map[i] = n++;
    }
    m->n_cells = n;
}

static int by_config(const void *a, const void *b)
{
    const config *x = a, *y = b;
    return x->node != y->node   ? (x->node < y->node ? -1 : 1)
           : x->cell != y->cell ? (x->cell < y->cell ? -1 : 1)
                                : 0;
}

/* Drops all states but those of runs and of the walk. Cells keep their order, so the configs of a
 * state stay sorted. */
static void forget(matcher *m)
{
    int32_t n = 0, n_configs = 0;
    m->n_flushes++;
    memset(m->cell_map, 0, MAX_CELLS * sizeof *m->cell_map);
    m->cell_map[0] = 1;
    for (int32_t i = 0; i < m->n_states; i++)
        m->state[i].live = false;
    for (grammar_run *r = m->runs; r; r = r->next)
        mark_live(m, r->state);
    for (int32_t i = 0; i < m->n_path; i++)
        mark_live(m, m->path[i]);
    keep_cells(m);
    memset(m->state_slot, 0, (size_t)m->n_state_slots * sizeof *m->state_slot);
    for (int i = 0; i < N_MASKS; i++)
        m->mask[i].state = -1;
    for (int32_t i = 0; i < m->n_states; i++) {
        state s = m->state[i];
        if (!s.live)
            continue;
        for (int32_t k = 0; k < s.n; k++) {
            config c = m->config[s.at + k];
            m->config[n_configs + k] = (config){c.node, m->cell_map[c.cell]};
        }
        int32_t *row = m->row + (size_t)i * (size_t)m->width;
        row[0] = n; /* the new index, until rows are cleared */
        m->state[n] = (state){.at = n_configs, .n = s.n, .mask = -1, .end = s.end};
        *state_place(m, m->config + n_configs, s.n, s.end) = n + 1;
        n_configs += s.n;
        n++;
    }
    for (grammar_run *r = m->runs; r; r = r->next)
        r->state = r->state < 0 ? r->state : m->row[(size_t)r->state * (size_t)m->width];
    for (int32_t i = 0; i < m->n_path; i++)
        m->path[i] = m->row[(size_t)m->path[i] * (size_t)m->width];
    m->n_states = n;
    m->n_configs = n_configs;
    for (int32_t i = 0; i < n; i++)
        clear_row(m, i);
}

/* Makes room for one more state, and for the configs and cells of its search. */
static status make_state_room(matcher *m, err *e)
{
    for (int tries = 0; tries < 2; tries++) {
        if (m->n_states < m->cap_states && m->n_configs + MAX_VISITS <= m->cap_configs &&
            m->n_cells + MAX_VISITS < MAX_CELLS)
            return OK;
        if (!tries)
            forget(m);
    }
    return err_set(e, E_LIMIT,
                   "the grammar is too ambiguous: its states do not fit in carat's tables");
}

/* ---- Finding a state ---- */

/* Queues a config, once per search. False: too many configs. */
static bool visit_state(matcher *m, int32_t node, int32_t c)
{
    for (uint32_t i = hash3(node, c, 0);; i++) {
        uint32_t k = i & (N_SEEN - 1);
        if (m->seen[k].epoch != m->epoch) {
            if (m->n_visits == MAX_VISITS)
                return false;
            m->n_visits++;
            m->seen[k].epoch = m->epoch;
            m->seen[k].c = (config){node, c};
            m->todo[m->n_todo++] = m->seen[k].c;
            return true;
        }
        if (m->seen[k].c.node == node && m->seen[k].c.cell == c)
            return true;
    }
}

/* Enters the called frame, above parent. A stack that is too deep drops this reading. */
static bool enter(matcher *m, int32_t call, int32_t parent, int32_t passed)
{
    const g_call *c = &m->g->call[call];
    cell x = {call, parent, passed, m->cell[parent].depth + 1};
    if (c->max == 1 && m->g->node[c->to].flags & NODE_LAST)
        return visit_state(m, c->entry, parent); /* tail call: nothing to return to */
    if (x.depth > GRAMMAR_MAX_DEPTH)
        return true;
    int32_t *slot = cell_place(m, &x);
    if (!*slot) {
        m->cell[m->n_cells] = x;
        *slot = ++m->n_cells;
    }
    return visit_state(m, c->entry, *slot - 1);
}

/* Returns from the frame above cell c. */
static bool leave(matcher *m, int32_t c)
{
    cell x = m->cell[c];
    if (!c) {
        m->found_end = true;
        return true;
    }
    const g_call *call = &m->g->call[x.call];
    bool ok = x.passed + 1 < call->min || visit_state(m, call->to, x.parent);
    return ok && (x.passed + 1 >= call->max || enter(m, x.call, x.parent, x.passed + 1));
}

static bool look_at(matcher *m, config c)
{
    const g_node *n = &m->g->node[c.node];
    bool ok = true;
    if (n->n_arcs || n->n_specials)
        m->found[m->n_found++] = c;
    if (n->flags & NODE_FINAL)
        ok = leave(m, c.cell);
    for (int32_t i = 0; i < n->n_calls && ok; i++) {
        const g_call *call = &m->g->call[n->call + i];
        if (call->min == 0)
            ok = visit_state(m, call->to, c.cell);
        if (call->max > 0 && ok)
            ok = enter(m, n->call + i, c.cell, 0);
    }
    return ok;
}

static void begin_finding(matcher *m)
{
    if (!++m->epoch) {
        memset(m->seen, 0, sizeof m->seen);
        m->epoch = 1;
    }
    m->n_found = m->n_todo = m->n_visits = 0;
    m->found_end = false;
}

static void sort_found(matcher *m)
{
    if (m->n_found > 24) {
        qsort(m->found, (size_t)m->n_found, sizeof *m->found, by_config);
        return;
    }
    for (int32_t i = 1; i < m->n_found; i++) {
        config c = m->found[i];
        int32_t k = i;
        for (; k > 0 && by_config(&m->found[k - 1], &c) > 0; k--)
            m->found[k] = m->found[k - 1];
        m->found[k] = c;
    }
}

/* The state of all configs reachable from the queued ones. */
static status finish_finding(matcher *m, bool ok, int32_t *out, err *e)
{
    while (m->n_todo && ok)
        ok = look_at(m, m->todo[--m->n_todo]);
    m->spent += (uint64_t)m->n_visits + 4;
    if (!ok || m->n_found > GRAMMAR_MAX_CONFIGS)
        return err_set(e, E_LIMIT, "the grammar is too ambiguous: a text has more than %d readings",
                       GRAMMAR_MAX_CONFIGS);
    *out = STATE_DEAD;
    if (!m->n_found && !m->found_end)
        return OK;
    sort_found(m);
    int32_t *slot = state_place(m, m->found, m->n_found, m->found_end);
    if (!*slot) {
        state *s = &m->state[m->n_states];
        *s = (state){.at = m->n_configs, .n = m->n_found, .mask = -1, .end = m->found_end};
        memcpy(m->config + s->at, m->found, (size_t)m->n_found * sizeof *m->found);
        m->n_configs += m->n_found;
        clear_row(m, m->n_states);
        *slot = ++m->n_states;
    }
    *out = *slot - 1;
    return OK;
}

static int32_t arc_of(const grammar *g, const g_node *n, int byte)
{
    int32_t lo = 0, hi = n->n_arcs;
    while (lo < hi) {
        int32_t mid = (lo + hi) / 2;
        const g_arc *a = &g->arc[n->arc + mid];
        if (byte < a->lo)
            hi = mid;
        else if (byte > a->hi)
            lo = mid + 1;
        else
            return a->to;
    }
    return -1;
}

static int32_t special_of(const grammar *g, const g_node *n, int32_t special)
{
    for (int32_t i = 0; i < n->n_specials; i++)
        if (g->special[n->special + i].special == special)
            return g->special[n->special + i].to;
    return -1;
}

status matcher_make_step(matcher *m, int32_t symbol, int32_t column, int32_t *to, err *e)
{
    const grammar *g = m->g;
    status st = make_state_room(m, e);
    if (st)
        return st;
    int32_t from = m->path[m->n_path - 1];
    bool ok = true;
    begin_finding(m);
    for (int32_t i = 0; i < m->state[from].n && ok; i++) {
        config c = m->config[m->state[from].at + i];
        const g_node *n = &g->node[c.node];
        int32_t next = symbol < 256 ? arc_of(g, n, symbol) : special_of(g, n, symbol - 256);
        if (next >= 0)
            ok = visit_state(m, next, c.cell);
    }
    st = finish_finding(m, ok, to, e);
    if (!st)
        m->row[(size_t)from * (size_t)m->width + (size_t)column] = *to;
    return st;
}

/* ---- Runs ---- */

static void join(grammar_run *r, matcher *m, int32_t at)
{
    *r = (grammar_run){.m = m, .state = at, .next = m->runs};
    if (m->runs)
        m->runs->prev = r;
    m->runs = r;
}

status grammar_begin(grammar_run *r, matcher *m, err *e)
{
    int32_t at;
    *r = (grammar_run){0};
    status st = make_state_room(m, e);
    if (st)
        return st;
    begin_finding(m);
    bool ok = visit_state(m, m->g->start, 0);
    st = finish_finding(m, ok, &at, e);
    if (!st && at == STATE_DEAD)
        st = err_set(e, E_LIMIT, "the grammar nests deeper than %d at its beginning",
                     GRAMMAR_MAX_DEPTH);
    if (!st)
        join(r, m, at);
    return st;
}

void grammar_clone(grammar_run *r, const grammar_run *from)
{
    join(r, from->m, from->state);
}

void grammar_end(grammar_run *r)
{
    if (!r->m)
        return;
    if (r->next)
        r->next->prev = r->prev;
    if (r->prev)
        r->prev->next = r->next;
    else
        r->m->runs = r->next;
    *r = (grammar_run){0};
}

status grammar_accept_bytes(grammar_run *r, const char *s, size_t n, bool *ok, err *e)
{
    matcher *m = r->m;
    status st = OK;
    bool fits = true;
    m->path[0] = r->state;
    m->n_path = 1;
    for (size_t i = 0; i < n && fits && !st; i++) {
        int32_t to;
        st = matcher_step(m, (unsigned char)s[i], &to, e);
        fits = !st && to != STATE_DEAD;
        if (fits)
            m->path[0] = to;
    }
    if (fits)
        r->state = m->path[0];
    m->n_path = 0;
    if (!st)
        *ok = fits;
    return st;
}

status grammar_accept(grammar_run *r, int32_t id, bool *ok, err *e)
{
    matcher *m = r->m;
    const token_tree *t = m->t;
    if (id < 0 || id >= t->n) {
        *ok = false;
        return OK;
    }
    for (int32_t i = 0; i < m->g->n_specials; i++) {
        int32_t to;
        if (m->special_id[i] != id)
            continue;
        m->path[0] = r->state;
        m->n_path = 1;
        status st = matcher_step(m, 256 + i, &to, e);
        m->n_path = 0;
        if (st)
            return st;
        if (to != STATE_DEAD) {
            r->state = to;
            *ok = true;
            return OK;
        }
    }
    if (t->eog[id] || t->at[id + 1] == t->at[id]) {
        *ok = t->eog[id] && grammar_may_end(r);
        return OK;
    }
    return grammar_accept_bytes(r, t->bytes + t->at[id], t->at[id + 1] - t->at[id], ok, e);
}

bool grammar_may_end(const grammar_run *r)
{
    return r->m->state[r->state].end;
}

bool grammar_must_end(const grammar_run *r)
{
    return r->m->state[r->state].end && !r->m->state[r->state].n;
}

uint64_t matcher_flushes(const matcher *m)
{
    return m->n_flushes;
}
