/* grammar_match.c - following a grammar: lazily built states, and masks.
 *
 * A state is the set of all readings of the text so far. A reading (config) is a node of an
 * automaton and the top cell of its stack. A cell holds the call to return from, the number of
 * passes of the called frame so far, and the cell below. Equal cells are stored once, and so are
 * equal states. The successors and the mask of a state are therefore computed once and reused: a
 * small grammar soon costs one table lookup per byte.
 *
 * Most of a mask is found without walking the tree. Inside strings, masks of safe characters apply.
 * In words, lists and text without certain signs, masks by kind of character apply: from the state
 * follow the kinds allowed in any order, and the number of characters.
 *
 * All tables have a fixed size. When one is full, it keeps only the states of live runs and of the
 * current walk.
 */
#include "text/grammar_int.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum {
    ROW_BYTES = 4 << 20, /* of all states: sets the number of states */
    MIN_STATES = 2048,   /* at least, even above ROW_BYTES */
    MAX_STATES = 1 << 14,
    MAX_CELLS = 1 << 15,
    MAX_VISITS = 4 * GRAMMAR_MAX_CONFIGS, /* configs visited while finding one state */
    N_MASKS = 256,                        /* 8 MiB for Gemma's vocabulary, when all are used */
    N_SEEN = 4 * MAX_VISITS,
    REACH_STATES = 32,                       /* states found by a search over character kinds */
    REACH_PATH = REACH_STATES + 4,           /* REACH_STATES, and the bytes of one character */
    REACH_WORK = GRAMMAR_MAX_MASK_WORK / 32, /* steps for finding them */
    REACH_LEAST = 3,                         /* characters; for fewer, the walk is short */
    REACH_ANY = INT32_MAX
};
enum { STATE_DEAD = -1, STATE_UNKNOWN = -2 };

typedef struct config {
    int32_t node, cell;
} config;

typedef struct cell {
    int32_t call, parent; /* parent 0: the bottom, where the text ends */
    int32_t passed, depth;
} cell;

typedef struct state {
    int32_t at, n; /* configs */
    int32_t mask;  /* -1: none */
    bool end;      /* the text may end */
    bool live;     /* used only while states are dropped */
} state;

typedef struct mask {
    int32_t state; /* -1: unused */
    int32_t n_allowed;
} mask;

struct matcher {
    const grammar *g;
    const token_tree *t;
    int32_t special_id[GRAMMAR_MAX_SPECIALS];
    int32_t width; /* of a row: byte classes, then specials */
    state *state;
    int32_t n_states, cap_states;
    int32_t *row; /* [cap_states][width] */
    config *config;
    int32_t n_configs, cap_configs;
    cell *cell; /* [0] is the bottom */
    int32_t n_cells;
    int32_t *state_slot, *cell_slot, n_state_slots; /* hash tables: index + 1; cells: 2 MAX_CELLS */
    int32_t *cell_map;
    mask mask[N_MASKS];
    int32_t next_mask;
    uint64_t *bits; /* [N_MASKS][n_words] */
    int32_t *path;  /* [max_depth + 2 + REACH_PATH]: states of the current walk; never dropped */
    int32_t n_path;
    grammar_run *runs;
    /* The state being found. */
    config found[MAX_VISITS], todo[MAX_VISITS];
    int32_t n_found, n_todo, n_visits;
    bool found_end;
    struct {
        config c;
        uint32_t epoch;
    } seen[N_SEEN];
    uint32_t epoch;
    uint64_t spent; /* on this mask */
    matcher_work work;
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

size_t matcher_bytes(const matcher *m)
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
    m->work.flushes++;
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
    return err_set(e, E_LIMIT, "a grammar is followed in too many places at once for its tables");
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
    m->work.steps++;
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

/* *to: successor of the last state of the path. symbol: a byte, or 256 + the index of a special
 * token. May renumber the states, including those of the path. */
static status step(matcher *m, int32_t symbol, int32_t *to, err *e)
{
    const grammar *g = m->g;
    int32_t column = symbol < 256 ? g->class_of[symbol] : g->n_classes + symbol - 256;
    int32_t from = m->path[m->n_path - 1];
    *to = m->row[(size_t)from * (size_t)m->width + (size_t)column];
    if (*to != STATE_UNKNOWN)
        return OK;
    status st = make_state_room(m, e);
    if (st)
        return st;
    from = m->path[m->n_path - 1];
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

/* ---- Masks ---- */

/* A number of safe characters that may certainly follow. */
static int32_t safe_run(const matcher *m, const state *s)
{
    int32_t most = 0;
    for (int32_t i = 0; i < s->n; i++) {
        config c = m->config[s->at + i];
        int32_t flags = m->g->node[c.node].flags, run = 0;
        if (flags & NODE_SAFE_LOOP) {
            run = SAFE_MAX;
        } else if (flags & NODE_SAFE_CHAR && c.cell) {
            const cell *x = &m->cell[c.cell];
            const g_call *call = &m->g->call[x->call];
            run = call->entry == c.node ? call->max - x->passed : 0;
        }
        most = run > most ? run : most;
    }
    return most > SAFE_MAX ? SAFE_MAX : most;
}

/* How many characters of given kinds may follow a state, in any order. The search is breadth first:
 * path[0 .. n) holds the states reached, path[0] the start. */
typedef struct reach {
    uint32_t kinds;
    int32_t n, after[REACH_STATES]; /* per state: characters of the shortest path to it */
    int32_t chars;                  /* every text of at most this many characters may follow */
    bool exact;                     /* and no longer text may */
    bool ends, goes_on;             /* at the current length: some text is refused; some goes on */
    bool goes_back, full;           /* a path returned to an earlier state; hit a limit */
} reach;

/* Follows one byte from the state at path[REACH_STATES + depth], on the way from state i. The
 * result goes to the next path entry or, after a character's last byte, into the states. False: the
 * byte is refused or a limit is hit. */
static bool follow(matcher *m, reach *r, int32_t i, int32_t depth, int byte, bool last)
{
    err none = {0};
    int32_t to, k = 0;
    m->n_path = REACH_STATES + depth + 1;
    if (r->full || m->spent > REACH_WORK || step(m, byte, &to, &none)) {
        r->full = true;
        return false;
    }
    if (to == STATE_DEAD) {
        r->ends = true;
        return false;
    }
    if (!last) {
        m->path[m->n_path] = to;
        return true;
    }
    r->goes_on = true;
    while (k < r->n && m->path[k] != to)
        k++;
    if (k < r->n) {
        r->goes_back |= r->after[k] <= r->after[i];
    } else if (k < REACH_STATES) {
        r->after[k] = r->after[i] + 1;
        m->path[r->n++] = to;
    } else {
        r->full = true;
    }
    return true;
}

/* Follows all characters of a row of byte ranges, with one byte for each byte class. */
static void follow_wide(matcher *m, reach *r, int32_t i, const utf8_row *w, int32_t depth)
{
    bool last = depth + 1 == w->n;
    if (depth > 3)
        return; /* no character is longer */
    for (int b = w->lo[depth]; b <= w->hi[depth]; b = m->g->class_end[b])
        if (follow(m, r, i, depth, b, last) && !last)
            follow_wide(m, r, i, w, depth + 1);
}

/* Follows all characters of a kind from state i. */
static void follow_kind(matcher *m, reach *r, int32_t i, int32_t kind)
{
    const grammar *g = m->g;
    m->path[REACH_STATES] = m->path[i];
    for (int k = 0; kind == KIND_WIDE && k < UTF8_WIDE_ROWS; k++)
        follow_wide(m, r, i, &utf8_wide[k], 0);
    for (int b = g->kind_first[kind]; b >= 0; b = g->kind_next[b])
        follow(m, r, i, 0, b, true);
}

/* Sets chars and exact for r->kinds. False: chars is below `least`. */
static bool find_reach(matcher *m, reach *r, int32_t least)
{
    r->n = 1;
    for (int32_t i = 0; i < r->n; i++) {
        if (i && r->after[i] > r->after[i - 1]) { /* all shorter texts are followed */
            if (r->ends)
                break;
            r->goes_on = false;
        }
        r->chars = r->after[i];
        /* The last kind first: only that kind is new since the previous search. */
        for (int32_t kind = N_KINDS - 1; kind >= 0; kind--) {
            if (r->kinds >> kind & 1)
                follow_kind(m, r, i, kind);
            if ((r->ends || r->full) && r->chars < least)
                return false;
            if (r->full)
                return true;
        }
    }
    if (r->ends)
        r->exact = !r->goes_on && !r->goes_back;
    else
        r->chars = REACH_ANY;
    return true;
}

/* Adds kinds unless they reduce the reach. */
static bool widen_table(matcher *m, reach *best, uint32_t kinds)
{
    reach r = {.kinds = best->kinds | kinds};
    if (r.kinds == best->kinds)
        return true;
    if (!find_reach(m, &r, best->chars) || (best->exact && !r.exact))
        return false;
    *best = r;
    return true;
}

/* The kind of small letters, and all kinds that do not reduce its reach in any order. No kinds if
 * small letters alone have a short reach: few tokens lack them, so masks would not pay. */
static reach find_kinds(matcher *m)
{
    reach best = {.kinds = (uint32_t)1 << KIND_SMALL};
    uint32_t begin = 0; /* kinds that may come next */
    for (int32_t i = 1; i <= REACH_STATES; i++)
        m->path[i] = m->path[0];
    if (!find_reach(m, &best, REACH_LEAST)) {
        m->n_path = 1;
        return (reach){0};
    }
    for (int32_t kind = 0; kind < KIND_BROKEN; kind++) {
        reach r = {.n = 1};
        follow_kind(m, &r, 0, kind);
        begin |= (uint32_t)(!r.ends && !r.full) << kind;
    }
    if (best.chars < REACH_ANY) /* the tree counts safe characters only */
        begin &= ~m->t->unsafe_kinds;
    uint32_t wide = begin & (uint32_t)1 << KIND_WIDE; /* most expensive, so last */
    begin &= ~wide;
    if (!widen_table(m, &best, begin)) /* all together, else one by one */
        for (int32_t kind = 0; kind < KIND_BROKEN; kind++)
            widen_table(m, &best, begin & (uint32_t)1 << kind);
    widen_table(m, &best, wide);
    m->n_path = 1;
    return best;
}

/* Sets the tokens within the reach r, and clears all others. */
static void set_reach(const token_tree *t, const reach *r, uint64_t *bits)
{
    const uint64_t *from = r->chars < REACH_ANY ? t->safe_mask[r->chars] : t->tree_mask;
    memcpy(bits, from, (size_t)t->n_words * sizeof *bits);
    for (int k = 0; k < N_KINDS; k++)
        for (int32_t i = 0; !(r->kinds >> k & 1) && i < t->n_words; i++)
            bits[i] &= ~t->kind_mask[k][i];
}

/* Walks the tree from the state at path[0]. Skips the tokens already decided: tokens of at most
 * `safe` safe characters, and tokens decided by r. */
static status walk(matcher *m, uint64_t *bits, int32_t safe, const reach *r, err *e)
{
    const token_tree *t = m->t;
    int32_t known = r->exact ? UNSAFE : r->chars;
    for (int32_t i = 1; i < t->n_nodes;) {
        const tree_node *x = &t->node[i];
        if (x->safe <= safe || (!(x->kinds & ~r->kinds) && x->safe <= known)) {
            i = (int32_t)x->end;
            continue;
        }
        m->n_path = x->depth;
        int32_t to =
            m->row[(size_t)m->path[m->n_path - 1] * (size_t)m->width + m->g->class_of[x->byte]];
        m->work.nodes++;
        if (to == STATE_UNKNOWN) {
            status st = step(m, x->byte, &to, e);
            if (!st && m->spent > GRAMMAR_MAX_MASK_WORK)
                st = err_set(e, E_LIMIT,
                             "the grammar is too complex: finding the tokens that may "
                             "follow takes more than %d steps",
                             GRAMMAR_MAX_MASK_WORK);
            if (st)
                return st;
        }
        if (to == STATE_DEAD) {
            i = (int32_t)x->end;
            continue;
        }
        m->path[x->depth] = to;
        for (uint32_t k = x->token; k < t->node[i + 1].token; k++)
            bits[t->order[k] >> 6] |= (uint64_t)1 << (t->order[k] & 63);
        i++;
    }
    m->n_path = 1;
    return OK;
}

static status fill_allowed(matcher *m, uint64_t *bits, err *e)
{
    const token_tree *t = m->t;
    size_t n = (size_t)t->n_words;
    int32_t safe = safe_run(m, &m->state[m->path[0]]);
    status st;
    m->spent = 0;
    reach r = {0};
    if (!safe)
        r = find_kinds(m);
    if (r.kinds)
        set_reach(t, &r, bits);
    else
        memcpy(bits, t->safe_mask[safe], n * sizeof *bits);
    m->spent = 0;
    if ((st = walk(m, bits, safe, &r, e)))
        return st;
    for (int32_t i = 0; i < m->g->n_specials; i++) {
        int32_t to;
        if ((st = step(m, 256 + i, &to, e)))
            return st;
        if (to != STATE_DEAD)
            bits[m->special_id[i] >> 6] |= (uint64_t)1 << (m->special_id[i] & 63);
    }
    if (m->state[m->path[0]].end)
        for (size_t i = 0; i < n; i++)
            bits[i] |= t->eog_mask[i];
    return OK;
}

status grammar_mask(grammar_run *r, const uint64_t **bits, int32_t *n_allowed, err *e)
{
    matcher *m = r->m;
    size_t n_words = (size_t)m->t->n_words;
    int32_t i = m->state[r->state].mask;
    m->work.masks++;
    m->work.masks_cached += i >= 0;
    if (i < 0) {
        i = m->next_mask;
        m->next_mask = (i + 1) % N_MASKS;
        if (m->mask[i].state >= 0)
            m->state[m->mask[i].state].mask = -1;
        m->mask[i].state = -1;
        uint64_t *to = m->bits + (size_t)i * n_words;
        m->path[0] = r->state;
        m->n_path = 1;
        status st = fill_allowed(m, to, e);
        m->n_path = 0;
        if (st)
            return st;
        int32_t count = 0;
        for (size_t k = 0; k < n_words; k++)
            count += __builtin_popcountll(to[k]);
        m->mask[i] = (mask){r->state, count};
        m->state[r->state].mask = i;
    }
    *bits = m->bits + (size_t)i * n_words;
    if (n_allowed)
        *n_allowed = m->mask[i].n_allowed;
    if (!m->mask[i].n_allowed)
        return err_set(e, E_FORMAT,
                       "the grammar cannot go on: no token of this model continues the text, or it "
                       "nests deeper than %d",
                       GRAMMAR_MAX_DEPTH);
    return OK;
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
    *ok = true;
    m->path[0] = r->state;
    m->n_path = 1;
    for (size_t i = 0; i < n && *ok && !st; i++) {
        int32_t to;
        st = step(m, (unsigned char)s[i], &to, e);
        *ok = !st && to != STATE_DEAD;
        if (*ok)
            m->path[0] = to;
    }
    if (*ok)
        r->state = m->path[0];
    m->n_path = 0;
    return st;
}

status grammar_accept(grammar_run *r, int32_t id, bool *ok, err *e)
{
    matcher *m = r->m;
    const token_tree *t = m->t;
    *ok = false;
    if (id < 0 || id >= t->n)
        return OK;
    for (int32_t i = 0; i < m->g->n_specials; i++) {
        int32_t to;
        if (m->special_id[i] != id)
            continue;
        m->path[0] = r->state;
        m->n_path = 1;
        status st = step(m, 256 + i, &to, e);
        m->n_path = 0;
        if (st)
            return st;
        if (to != STATE_DEAD) {
            r->state = to;
            *ok = true;
            return OK;
        }
    }
    if (t->eog[id]) {
        *ok = grammar_may_end(r);
        return OK;
    }
    if (t->at[id + 1] == t->at[id])
        return OK;
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

matcher_work matcher_worked(const matcher *m)
{
    return m->work;
}
