/* grammar_trim.c - after the automata are built: checks, and tables for fast matching.
 *
 *   - Lines to nodes that reach no end are removed. So every text that matching allows can be
 *     completed, and no mask leads into a dead end.
 *   - Left recursion is refused, because following it would never end.
 *   - Bytes that no automaton distinguishes share a class. Each character kind lists one byte per
 *     class.
 *   - Nodes that accept any run of safe characters are marked (see tree_node).
 */
#include "text/grammar_int.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <string.h>

/* ---- Blind alleys ---- */

static bool lives(const grammar *g, int32_t node)
{
    return g->node[node].flags & NODE_PRODUCTIVE;
}

static bool call_lives(const grammar *g, const g_call *c)
{
    return lives(g, c->to) && (c->min == 0 || lives(g, c->entry));
}

static bool leads_on(const grammar *g, const g_node *n)
{
    if (n->flags & NODE_FINAL)
        return true;
    for (int32_t i = 0; i < n->n_arcs; i++)
        if (lives(g, g->arc[n->arc + i].to))
            return true;
    for (int32_t i = 0; i < n->n_specials; i++)
        if (lives(g, g->special[n->special + i].to))
            return true;
    for (int32_t i = 0; i < n->n_calls; i++)
        if (call_lives(g, &g->call[n->call + i]))
            return true;
    return false;
}

/* Runs after calls refer to entry nodes. Later nodes come first, because most lines lead to later
 * nodes. */
static void find_living(grammar *g, rules *r)
{
    bool more = true;
    while (more) {
        more = false;
        for (int32_t i = g->n_nodes - 1; i >= 0; i--) {
            g_node *n = &g->node[i];
            if (n->flags & NODE_PRODUCTIVE)
                continue;
            if (!gx_work(r->b, 1 + (uint64_t)n->n_arcs / 8 + (uint64_t)n->n_calls))
                return;
            if (leads_on(g, n)) {
                n->flags |= NODE_PRODUCTIVE;
                more = true;
            }
        }
    }
}

static void take_out_dead(grammar *g)
{
    for (int32_t i = 0; i < g->n_nodes; i++) {
        g_node *n = &g->node[i];
        int32_t k, m;
        for (k = m = 0; k < n->n_arcs; k++)
            if (lives(g, g->arc[n->arc + k].to))
                g->arc[n->arc + m++] = g->arc[n->arc + k];
        n->n_arcs = m;
        for (k = m = 0; k < n->n_specials; k++)
            if (lives(g, g->special[n->special + k].to))
                g->special[n->special + m++] = g->special[n->special + k];
        n->n_specials = m;
        for (k = m = 0; k < n->n_calls; k++) {
            g_call c = g->call[n->call + k];
            if (!call_lives(g, &c))
                continue;
            if (!lives(g, c.entry))
                c.max = 0; /* optional, and without a text: never entered */
            g->call[n->call + m++] = c;
        }
        n->n_calls = m;
        if (n->flags & NODE_FINAL && !n->n_arcs && !n->n_specials && !n->n_calls)
            n->flags |= NODE_LAST;
    }
}

/* ---- Left recursion ---- */

typedef struct left {
    grammar *g;
    rules *r;
    const int32_t *frame;
    int32_t n_frames;
    int32_t *frame_at; /* [n_nodes]: per entry node, its frame's index in frame[] */
    bool *nullable;    /* [n_frames] */
    uint32_t *seen;    /* [n_nodes] */
    uint32_t epoch;
    int32_t *todo;                     /* [n_nodes] */
    int32_t *edge, n_edges, cap_edges; /* frames entered before any byte is read */
    int32_t *edge_at;                  /* [n_frames + 1] */
} left;

static bool passes(const left *l, const g_call *c)
{
    return c->min == 0 || l->nullable[l->frame_at[c->entry]];
}

/* Visits the nodes that the frame's entry reaches without a byte. True: the frame may end at one of
 * them. with_edges: records the frames entered on the way. */
static bool look(left *l, int32_t frame, bool with_edges)
{
    const grammar *g = l->g;
    bool end = false;
    int32_t n = 0, entry = l->r->info[l->frame[frame]].entry;
    l->epoch++;
    l->seen[entry] = l->epoch;
    l->todo[n++] = entry;
    while (n) {
        const g_node *x = &g->node[l->todo[--n]];
        end |= (x->flags & NODE_FINAL) != 0;
        if (!gx_work(l->r->b, 1 + (uint64_t)x->n_calls))
            return false;
        for (int32_t i = 0; i < x->n_calls; i++) {
            const g_call *c = &g->call[x->call + i];
            if (with_edges && c->max > 0) {
                if (l->n_edges == l->cap_edges) {
                    int32_t cap = l->cap_edges ? 2 * l->cap_edges : 256;
                    int32_t *edge = mem_realloc(l->edge, (size_t)cap, sizeof *edge);
                    if (!edge) {
                        gx_fail(l->r->b, E_MEMORY, "no memory for a grammar");
                        return false;
                    }
                    l->edge = edge;
                    l->cap_edges = cap;
                }
                l->edge[l->n_edges++] = l->frame_at[c->entry];
            }
            if (passes(l, c) && l->seen[c->to] != l->epoch) {
                l->seen[c->to] = l->epoch;
                l->todo[n++] = c->to;
            }
        }
    }
    return end;
}

static void refuse_cycles(left *l)
{
    enum { NEW, OPEN, DONE };
    gx_builder *b = l->r->b;
    uint8_t *state = mem_calloc((size_t)l->n_frames + 1, 1);
    int32_t *path = mem_calloc((size_t)l->n_frames + 1, 2 * sizeof *path);
    int32_t *cursor = path ? path + l->n_frames + 1 : NULL;
    if (!state || !path)
        gx_fail(b, E_MEMORY, "no memory for a grammar");
    for (int32_t root = 0; root < l->n_frames && !b->st; root++) {
        int32_t n = 0;
        if (state[root] != NEW)
            continue;
        path[n++] = root;
        state[root] = OPEN;
        cursor[root] = l->edge_at[root];
        while (n && !b->st) {
            int32_t at = path[n - 1];
            if (cursor[at] == l->edge_at[at + 1]) {
                state[at] = DONE;
                n--;
                continue;
            }
            int32_t to = l->edge[cursor[at]++];
            if (state[to] == OPEN)
                gx_fail(b, E_UNSUPPORTED,
                        "the grammar's rule %s begins with itself (left recursion), which is not "
                        "supported; write it as a repetition",
                        b->rule[l->frame[to]].name);
            if (state[to] == NEW) {
                state[to] = OPEN;
                cursor[to] = l->edge_at[to];
                path[n++] = to;
            }
        }
    }
    mem_free(path);
    mem_free(state);
}

static void refuse_left_recursion(grammar *g, rules *r, const int32_t *frame, int32_t n_frames)
{
    left l = {.g = g, .r = r, .frame = frame, .n_frames = n_frames};
    bool more = true;
    l.frame_at = mem_calloc((size_t)g->n_nodes, sizeof *l.frame_at);
    l.seen = mem_calloc((size_t)g->n_nodes, sizeof *l.seen);
    l.todo = mem_calloc((size_t)g->n_nodes, sizeof *l.todo);
    l.nullable = mem_calloc((size_t)n_frames, 1);
    l.edge_at = mem_calloc((size_t)n_frames + 1, sizeof *l.edge_at);
    if (!l.frame_at || !l.seen || !l.todo || !l.nullable || !l.edge_at) {
        gx_fail(r->b, E_MEMORY, "no memory for a grammar");
        more = false;
    } else {
        for (int32_t i = 0; i < n_frames; i++)
            l.frame_at[r->info[frame[i]].entry] = i;
    }
    while (more && !r->b->st) {
        more = false;
        for (int32_t i = n_frames - 1; i >= 0; i--)
            if (!l.nullable[i] && look(&l, i, false))
                l.nullable[i] = more = true;
    }
    for (int32_t i = 0; i < n_frames && !r->b->st; i++) {
        look(&l, i, true);
        l.edge_at[i + 1] = l.n_edges;
    }
    if (!r->b->st)
        refuse_cycles(&l);
    mem_free(l.edge);
    mem_free(l.edge_at);
    mem_free(l.nullable);
    mem_free(l.todo);
    mem_free(l.seen);
    mem_free(l.frame_at);
}

/* ---- Safe characters ---- */

/* The safe characters as byte ranges: well-formed UTF-8 without control characters, quote,
 * backslash and less-than sign. */
enum { SAFE_ASCII = 4 };
static const utf8_row *safe_row(int i)
{
    static const utf8_row ascii[SAFE_ASCII] = {
        {1, {0x20}, {0x21}}, {1, {0x23}, {0x3B}}, {1, {0x3D}, {0x5B}}, {1, {0x5D}, {0x7E}}};
    return i < SAFE_ASCII ? &ascii[i] : &utf8_wide[i - SAFE_ASCII];
}

/* True: all characters of the row lead from node to the same node *to. *to < 0: any one node, then
 * stored in *to. finals: true if all characters lead to final nodes instead. */
static bool row_leads(const grammar *g, int32_t node, const utf8_row *row, int byte, bool finals,
                      int32_t *to)
{
    if (byte == row->n) {
        if (finals)
            return g->node[node].flags & NODE_FINAL;
        if (*to < 0)
            *to = node;
        return *to == node;
    }
    const g_node *n = &g->node[node];
    int lo = row->lo[byte], hi = row->hi[byte];
    for (int32_t i = 0; i < n->n_arcs && lo <= hi; i++) {
        const g_arc *a = &g->arc[n->arc + i];
        if (a->hi < lo)
            continue;
        if (a->lo > lo || !row_leads(g, a->to, row, byte + 1, finals, to))
            return false;
        lo = a->hi + 1;
    }
    return lo > hi;
}

static bool safe_leads(const grammar *g, int32_t node, bool finals, int32_t *to)
{
    for (int i = 0; i < SAFE_ASCII + UTF8_WIDE_ROWS; i++)
        if (!row_leads(g, node, safe_row(i), 0, finals, to))
            return false;
    return true;
}

static void mark_safe(grammar *g, rules *r, const int32_t *frame, int32_t n_frames)
{
    for (int32_t i = 0; i < g->n_nodes; i++) {
        int32_t to = -1, same;
        if (g->node[i].n_arcs && safe_leads(g, i, false, &to)) {
            same = to;
            if (to == i || safe_leads(g, to, false, &same))
                g->node[i].flags |= NODE_SAFE_LOOP;
        }
    }
    for (int32_t i = 0; i < n_frames; i++) {
        g_node *n = &g->node[r->info[frame[i]].entry];
        if (safe_leads(g, r->info[frame[i]].entry, true, NULL))
            n->flags |= NODE_SAFE_CHAR;
    }
}

static void find_classes(grammar *g)
{
    bool edge[257] = {true};
    for (int32_t i = 0; i < g->n_nodes; i++)
        for (int32_t k = 0; k < g->node[i].n_arcs; k++) {
            const g_arc *a = &g->arc[g->node[i].arc + k];
            edge[a->lo] = edge[a->hi + 1] = true;
        }
    int32_t n = 0;
    for (int c = 0; c < 256; c++) {
        n += edge[c];
        g->class_of[c] = (uint8_t)(n - 1);
    }
    g->n_classes = n;
    for (int c = 255; c >= 0; c--)
        g->class_end[c] = (uint16_t)(edge[c + 1] || c == 255 ? c + 1 : g->class_end[c + 1]);
}

/* Lists the ASCII bytes of each character kind (char_kind), one per byte class. */
static void list_kinds(grammar *g)
{
    memset(g->kind_first, -1, sizeof g->kind_first);
    for (int c = 127; c >= 0; c--) {
        int16_t *first = &g->kind_first[char_kind((uint32_t)c)];
        bool same = *first >= 0 && g->class_of[*first] == g->class_of[c];
        g->kind_next[c] = same ? g->kind_next[*first] : *first;
        *first = (int16_t)c;
    }
}

status grammar_finish(grammar *g, rules *r, const int32_t *frame, int32_t n_frames)
{
    for (int32_t i = 0; i < g->n_calls; i++)
        g->call[i].entry = r->info[g->call[i].entry].entry;
    find_living(g, r);
    if (!r->b->st && !lives(g, g->start))
        gx_fail(r->b, E_FORMAT, "the grammar matches no text at all");
    if (r->b->st)
        return r->b->st;
    take_out_dead(g);
    refuse_left_recursion(g, r, frame, n_frames);
    if (r->b->st)
        return r->b->st;
    mark_safe(g, r, frame, n_frames);
    find_classes(g);
    list_kinds(g);
    return OK;
}
