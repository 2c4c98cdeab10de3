/* grammar_build.c - rules to deterministic automata.
 *
 * Each frame is built in two steps: a nondeterministic automaton with empty lines (the sketch),
 * then the subset construction. Calls of other frames and special tokens are symbols like bytes.
 * So each frame is deterministic. Matching has more than one reading only where calls compete with
 * each other or with bytes.
 *
 *     expression --draw--> sketch (points, lines, empty lines) --determine--> nodes and arcs
 */
#include "text/grammar_int.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { LINE_EMPTY, LINE_BYTES, LINE_SPECIAL, LINE_CALL };
enum { FEW_SLOTS = 256 };

typedef struct line {
    int32_t kind, to, next; /* next line of the same point; -1: none */
    int32_t a, b, c;        /* BYTES: lo, hi. SPECIAL: index. CALL: rule, min, max */
} line;

/* The first and last point of a rule's copy in a sketch. */
typedef struct instance {
    int32_t rule, in, out;
} instance;

typedef struct subset {
    int32_t at, n; /* into members */
} subset;

typedef struct work {
    rules r;
    grammar *g;
    gx_builder *b;
    /* The sketch of the current frame. */
    int32_t *point; /* first line; -1: none */
    int32_t n_points, cap_points;
    line *line;
    int32_t n_lines, cap_lines;
    int32_t out;           /* its last point */
    uint32_t *seen, epoch; /* [cap_points]: visited by the closure of this epoch */
    int32_t *todo;         /* [cap_points] */
    /* Its subsets; subset i is node base + i. */
    subset *set;
    int32_t n_sets, cap_sets, base;
    int32_t *member;
    int32_t n_members, cap_members;
    int32_t *slot; /* hash of subsets: index + 1 */
    int32_t n_slots;
    /* Rules with a frame, in order of first use. */
    int32_t *frame;
    int32_t n_frames, cap_frames;
    int32_t cap_nodes, cap_arcs, cap_specials, cap_calls;
} work;

/* Grows an array of n elements for one more. */
static bool room(work *w, void **at, int32_t n, int32_t *cap, size_t size)
{
    if (w->b->st)
        return false;
    if (n < *cap)
        return true;
    int32_t more = *cap ? *cap * 2 : 64;
    void *p = mem_realloc(*at, (size_t)more, size);
    if (!p) {
        w->b->st = E_MEMORY;
        err_memory(w->b->e, "a grammar's automaton", (size_t)more * size);
        return false;
    }
    *at = p;
    *cap = more;
    return true;
}

/* ---- Sketches ---- */

static int32_t new_point(work *w)
{
    int32_t cap = w->cap_points;
    if (w->n_points >= 4 * GRAMMAR_MAX_NODES)
        gx_fail(w->b, E_LIMIT, "the grammar is too large: one of its parts has more than %d places",
                4 * GRAMMAR_MAX_NODES);
    if (!room(w, (void **)&w->point, w->n_points, &w->cap_points, sizeof *w->point))
        return 0;
    if (cap != w->cap_points) {
        size_t n = (size_t)w->cap_points;
        uint32_t *seen = mem_realloc(w->seen, n, sizeof *seen);
        w->seen = seen ? seen : w->seen;
        int32_t *todo = mem_realloc(w->todo, n, sizeof *todo);
        w->todo = todo ? todo : w->todo;
        if (!seen || !todo) {
            w->cap_points = cap;
            gx_fail(w->b, E_MEMORY, "no memory for a grammar's automaton");
            return 0;
        }
        memset(w->seen + cap, 0, (n - (size_t)cap) * sizeof *seen);
    }
    w->point[w->n_points] = -1;
    return w->n_points++;
}

static void draw_line(work *w, int32_t from, line l)
{
    if (!gx_work(w->b, 1) ||
        !room(w, (void **)&w->line, w->n_lines, &w->cap_lines, sizeof *w->line))
        return;
    l.next = w->point[from];
    w->line[w->n_lines] = l;
    w->point[from] = w->n_lines++;
}

static void draw_empty(work *w, int32_t from, int32_t to)
{
    draw_line(w, from, (line){.kind = LINE_EMPTY, .to = to});
}

static void draw_byte(work *w, int32_t from, int32_t lo, int32_t hi, int32_t to)
{
    draw_line(w, from, (line){.kind = LINE_BYTES, .to = to, .a = lo, .b = hi});
}

/* Characters lo..hi, all of one UTF-8 length, without surrogates. The range is split until every
 * combination of bytes between the bytes of lo and of hi is inside it. */
static void draw_same_length(work *w, uint32_t lo, uint32_t hi, int32_t from, int32_t to)
{
    char a[4], z[4];
    int n = utf8_encode(lo, a);
    for (int i = 1; i < n; i++) {
        uint32_t mask = (1u << (6 * i)) - 1;
        if ((lo & ~mask) == (hi & ~mask))
            continue;
        if (lo & mask) {
            draw_same_length(w, lo, lo | mask, from, to);
            draw_same_length(w, (lo | mask) + 1, hi, from, to);
            return;
        }
        if ((hi & mask) != mask) {
            draw_same_length(w, lo, (hi & ~mask) - 1, from, to);
            draw_same_length(w, hi & ~mask, hi, from, to);
            return;
        }
    }
    utf8_encode(hi, z);
    for (int i = 0; i < n; i++) {
        int32_t next = i == n - 1 ? to : new_point(w);
        draw_byte(w, from, (uint8_t)a[i], (uint8_t)z[i], next);
        from = next;
    }
}

static void draw_chars(work *w, uint32_t lo, uint32_t hi, int32_t from, int32_t to)
{
    /* One row per UTF-8 length, without the surrogates, which are invalid in text. */
    static const uint32_t part[][2] = {
        {0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}};
    for (int i = 0; i < 5 && !w->b->st; i++) {
        uint32_t a = lo > part[i][0] ? lo : part[i][0], z = hi < part[i][1] ? hi : part[i][1];
        if (a <= z)
            draw_same_length(w, a, z, from, to);
    }
}

/* Text without the words of x (Aho-Corasick): one point per proper prefix of a word, and all steps
 * except those that complete a word. Words are ASCII, so other characters lead to the start. */
static void draw_without(work *w, const gx *x, int32_t from, int32_t to)
{
    enum { MAX = 128 }; /* prefixes: words are chat markers */
    char prefix[MAX][32];
    int32_t at[MAX], n = 1, multi = new_point(w);
    prefix[0][0] = 0;
    for (int32_t i = 0; i < x->n; i++)
        for (size_t k = 1; k < strlen(x->word[i]); k++) {
            char p[32] = {0};
            int32_t same = 0;
            if (k >= sizeof p || n == MAX) {
                gx_fail(w->b, E_LIMIT, "a grammar excludes too many or too long words");
                return;
            }
            memcpy(p, x->word[i], k);
            for (int32_t j = 0; j < n; j++)
                same |= !strcmp(prefix[j], p);
            if (!same)
                memcpy(prefix[n++], p, sizeof p);
        }
    for (int32_t i = 0; i < n; i++) {
        at[i] = new_point(w);
        draw_empty(w, at[i], multi);
        draw_empty(w, at[i], to);
    }
    draw_empty(w, from, at[0]);
    if (x->min)
        draw_byte(w, multi, 0x80, 0xFF, at[0]);
    else
        draw_chars(w, 0x80, 0x10FFFF, multi, at[0]);
    for (int32_t i = 0; i < n && !w->b->st; i++)
        for (int c = 0; c < 128; c++) {
            /* best: the longest suffix of prefix + c that begins a word. whole: a word ends. */
            char s[40];
            size_t len = strlen(prefix[i]);
            int32_t best = 0;
            bool whole = false;
            memcpy(s, prefix[i], len);
            s[len++] = (char)c;
            s[len] = 0;
            for (int32_t j = 0; j < x->n && c; j++) {
                size_t wn = strlen(x->word[j]);
                whole |= wn <= len && !memcmp(s + len - wn, x->word[j], wn);
            }
            for (int32_t j = 1; j < n && c; j++) {
                size_t pn = strlen(prefix[j]);
                if (pn <= len && !memcmp(s + len - pn, prefix[j], pn) && pn > strlen(prefix[best]))
                    best = j;
            }
            if (!whole)
                draw_byte(w, at[i], c, c, at[best]);
        }
}

static void draw(work *w, gx *x, int32_t from, int32_t to, const instance *in);

static void draw_rule(work *w, int32_t rule, int32_t from, int32_t to, const instance *in)
{
    if (in && in->rule == rule && to == in->out && w->r.info[rule].tail) {
        draw_empty(w, from, in->in);
    } else if (w->r.info[rule].copied) {
        instance copy = {.rule = rule, .in = new_point(w), .out = to};
        draw_empty(w, from, copy.in);
        draw(w, w->b->rule[rule].body, copy.in, to, &copy);
    } else {
        draw_line(w, from, (line){.kind = LINE_CALL, .to = to, .a = rule, .b = 1, .c = 1});
    }
}

static void draw_repeat(work *w, gx *x, int32_t from, int32_t to, const instance *in)
{
    gx *body = x->part[0];
    int32_t min = x->min, max = x->max;
    bool out = gx_written_out(&w->r, x);
    if (gx_nullable(&w->r, body))
        min = 0; /* the texts stay the same, and no empty rounds are counted */
    if (!out) {
        int32_t next = max < 0 ? new_point(w) : to, rule = rules_frame_of(&w->r, body);
        draw_line(
            w, from,
            (line){.kind = LINE_CALL, .to = next, .a = rule, .b = min, .c = max < 0 ? min : max});
        if (max >= 0)
            return;
        from = next;
        min = 0;
    }
    if (max == 1) {
        if (!min)
            draw_empty(w, from, to);
        draw(w, body, from, to, in); /* in: `to` may be the end of the rule */
        return;
    }
    for (int32_t i = 0; i < (max < 0 ? min : max) && !w->b->st; i++) {
        int32_t next = new_point(w);
        if (i >= min)
            draw_empty(w, from, to);
        draw(w, body, from, next, NULL);
        from = next;
    }
    if (max < 0) {
        int32_t loop = new_point(w);
        draw_empty(w, from, loop);
        draw(w, body, loop, loop, NULL);
        from = loop;
    }
    draw_empty(w, from, to);
}

/* Draws paths from `from` to `to` that spell x. Adds no line into `from` or out of `to`. */
static void draw(work *w, gx *x, int32_t from, int32_t to, const instance *in)
{
    if (!gx_work(w->b, 1))
        return;
    switch (x->kind) {
    case GX_SEQ:
        for (int32_t i = 0; i < x->n; i++) {
            int32_t next = i == x->n - 1 ? to : new_point(w);
            draw(w, x->part[i], from, next, in);
            from = next;
        }
        if (!x->n)
            draw_empty(w, from, to);
        break;
    case GX_ALT:
        for (int32_t i = 0; i < x->n; i++)
            draw(w, x->part[i], from, to, in);
        break;
    case GX_BYTES:
        for (size_t i = 0; i < x->n_bytes; i++) {
            int32_t next = i == x->n_bytes - 1 ? to : new_point(w);
            draw_byte(w, from, (uint8_t)x->s[i], (uint8_t)x->s[i], next);
            from = next;
        }
        if (!x->n_bytes)
            draw_empty(w, from, to);
        break;
    case GX_SET:
        for (int32_t i = 0; i < x->n; i++)
            draw_chars(w, x->range[i].lo, x->range[i].hi, from, to);
        break;
    case GX_SPECIAL:
        draw_line(w, from, (line){.kind = LINE_SPECIAL, .to = to, .a = x->rule});
        break;
    case GX_RULE:
        draw_rule(w, x->rule, from, to, in);
        break;
    case GX_REPEAT:
        draw_repeat(w, x, from, to, in);
        break;
    case GX_WITHOUT:
        draw_without(w, x, from, to);
        break;
    }
}

/* ---- Subsets ---- */

static int by_int(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* Adds the points that p reaches by empty lines to the current members. Points with empty lines
 * only are left out, so that subsets that differ only in such points become one node. */
static void close_over(work *w, int32_t p)
{
    int32_t n = 0;
    if (w->seen[p] == w->epoch)
        return;
    w->seen[p] = w->epoch;
    w->todo[n++] = p;
    while (n && !w->b->st) {
        bool matters;
        uint64_t steps = 0;
        p = w->todo[--n];
        matters = p == w->out;
        for (int32_t l = w->point[p]; l >= 0; l = w->line[l].next) {
            int32_t to = w->line[l].to;
            if (w->line[l].kind != LINE_EMPTY) {
                matters = true;
            } else if (w->seen[to] != w->epoch) {
                w->seen[to] = w->epoch;
                w->todo[n++] = to;
            }
            steps++;
        }
        gx_work(w->b, steps);
        if (matters &&
            room(w, (void **)&w->member, w->n_members, &w->cap_members, sizeof *w->member))
            w->member[w->n_members++] = p;
    }
}

static bool grow_slots(work *w)
{
    int32_t n = w->n_slots ? w->n_slots * 2 : FEW_SLOTS;
    int32_t *slot = mem_calloc((size_t)n, sizeof *slot);
    if (!slot) {
        gx_fail(w->b, E_MEMORY, "no memory for a grammar's automaton");
        return false;
    }
    mem_free(w->slot);
    w->slot = slot;
    w->n_slots = n;
    return true;
}

static uint32_t hash_ints(const int32_t *v, int32_t n)
{
    uint64_t h = 1469598103934665603u;
    for (int32_t i = 0; i < n; i++)
        h = (h ^ (uint32_t)v[i]) * 1099511628211u;
    return (uint32_t)(h ^ h >> 32);
}

static int32_t *find_slot(work *w, const int32_t *v, int32_t n)
{
    for (uint32_t i = hash_ints(v, n);; i++) {
        int32_t *slot = &w->slot[i & (uint32_t)(w->n_slots - 1)];
        const subset *s = *slot ? &w->set[*slot - 1] : NULL;
        if (!s || (s->n == n && !memcmp(w->member + s->at, v, (size_t)n * sizeof *v)))
            return slot;
    }
}

/* The node of the members from index `from` on; new if no equal subset exists. */
static int32_t node_of(work *w, int32_t from)
{
    int32_t n = w->n_members - from;
    if (w->b->st)
        return 0;
    if (n > 1) /* the array may be NULL while it has no member */
        qsort(w->member + from, (size_t)n, sizeof *w->member, by_int);
    if (w->n_sets * 2 >= w->n_slots) {
        if (!grow_slots(w))
            return 0;
        for (int32_t i = 0; i < w->n_sets; i++)
            *find_slot(w, w->member + w->set[i].at, w->set[i].n) = i + 1;
    }
    int32_t *slot = find_slot(w, w->member + from, n);
    if (*slot) {
        w->n_members = from;
        return w->base + *slot - 1;
    }
    if (w->base + w->n_sets >= GRAMMAR_MAX_NODES)
        gx_fail(w->b, E_LIMIT, "the grammar is too complex: its automata need more than %d nodes",
                GRAMMAR_MAX_NODES);
    if (!room(w, (void **)&w->set, w->n_sets, &w->cap_sets, sizeof *w->set))
        return 0;
    w->set[w->n_sets] = (subset){from, n};
    *slot = ++w->n_sets;
    return w->base + w->n_sets - 1;
}

/* The node that the subset's lines like `like` lead to; for bytes, the lines that contain a. */
static int32_t target(work *w, subset s, const line *like)
{
    int32_t from = w->n_members;
    w->epoch++;
    for (int32_t i = 0; i < s.n && !w->b->st; i++) {
        uint64_t steps = 1;
        for (int32_t l = w->point[w->member[s.at + i]]; l >= 0; l = w->line[l].next) {
            const line *x = &w->line[l];
            bool same =
                x->kind == like->kind &&
                (x->kind == LINE_BYTES ? x->a <= like->a && like->a <= x->b
                                       : x->a == like->a && x->b == like->b && x->c == like->c);
            steps++;
            if (same)
                close_over(w, x->to);
        }
        gx_work(w->b, steps);
    }
    return node_of(w, from);
}

static void put_byte_range(work *w, subset s)
{
    grammar *g = w->g;
    bool edge[257] = {0}, any[256] = {0};
    int32_t first = g->n_arcs;
    for (int32_t i = 0; i < s.n; i++)
        for (int32_t l = w->point[w->member[s.at + i]]; l >= 0; l = w->line[l].next) {
            const line *x = &w->line[l];
            if (x->kind != LINE_BYTES)
                continue;
            edge[x->a] = edge[x->b + 1] = true;
            memset(any + x->a, 1, (size_t)(x->b - x->a + 1));
            gx_work(w->b, 1);
        }
    for (int32_t lo = 0, hi; lo < 256 && !w->b->st; lo = hi + 1) {
        for (hi = lo; hi < 255 && !edge[hi + 1]; hi++)
            ;
        if (!any[lo])
            continue;
        int32_t to = target(w, s, &(line){.kind = LINE_BYTES, .a = lo});
        g_arc *last = g->n_arcs > first ? &g->arc[g->n_arcs - 1] : NULL;
        if (last && last->to == to && last->hi + 1 == lo)
            last->hi = (uint8_t)hi;
        else if (room(w, (void **)&g->arc, g->n_arcs, &w->cap_arcs, sizeof *g->arc))
            g->arc[g->n_arcs++] = (g_arc){(uint8_t)lo, (uint8_t)hi, to};
    }
}

static void want_frame(work *w, int32_t rule)
{
    if (w->r.info[rule].wanted ||
        !room(w, (void **)&w->frame, w->n_frames, &w->cap_frames, sizeof *w->frame))
        return;
    w->r.info[rule].wanted = true;
    w->frame[w->n_frames++] = rule;
}

static void put_symbols(work *w, subset s, g_node *node)
{
    grammar *g = w->g;
    for (int32_t i = 0; i < s.n; i++)
        for (int32_t l = w->point[w->member[s.at + i]]; l >= 0 && !w->b->st; l = w->line[l].next) {
            line x = w->line[l];
            bool known = false;
            if (x.kind == LINE_SPECIAL) {
                for (int32_t k = node->special; k < g->n_special_arcs; k++)
                    known |= g->special[k].special == x.a;
                if (known || !room(w, (void **)&g->special, g->n_special_arcs, &w->cap_specials,
                                   sizeof *g->special))
                    continue;
                g->special[g->n_special_arcs] = (g_special){x.a, target(w, s, &x)};
                g->n_special_arcs++;
            } else if (x.kind == LINE_CALL) {
                for (int32_t k = node->call; k < g->n_calls && gx_work(w->b, 1); k++)
                    known |=
                        g->call[k].entry == x.a && g->call[k].min == x.b && g->call[k].max == x.c;
                if (known ||
                    !room(w, (void **)&g->call, g->n_calls, &w->cap_calls, sizeof *g->call))
                    continue;
                want_frame(w, x.a);
                g->call[g->n_calls] = (g_call){x.a, x.b, x.c, target(w, s, &x)};
                g->n_calls++;
            }
        }
}

static void put_node(work *w, int32_t i)
{
    grammar *g = w->g;
    subset s = w->set[i];
    g_node node = {.arc = g->n_arcs, .special = g->n_special_arcs, .call = g->n_calls};
    for (int32_t k = 0; k < s.n; k++)
        node.flags |= w->member[s.at + k] == w->out ? NODE_FINAL : 0;
    put_byte_range(w, s);
    put_symbols(w, s, &node);
    node.n_arcs = g->n_arcs - node.arc;
    node.n_specials = g->n_special_arcs - node.special;
    node.n_calls = g->n_calls - node.call;
    if (room(w, (void **)&g->node, g->n_nodes, &w->cap_nodes, sizeof *g->node))
        g->node[g->n_nodes++] = node;
}

static void build_frame(work *w, int32_t rule)
{
    w->n_points = w->n_lines = w->n_sets = w->n_members = 0;
    if (w->n_slots > FEW_SLOTS)
        w->n_slots = FEW_SLOTS; /* most frames are small, so a large table costs only time */
    if (w->n_slots)
        memset(w->slot, 0, (size_t)w->n_slots * sizeof *w->slot);
    w->epoch++;
    w->base = w->g->n_nodes;
    instance whole = {.rule = rule, .in = new_point(w)};
    w->out = whole.out = new_point(w);
    draw(w, w->b->rule[rule].body, whole.in, whole.out, &whole);
    if (w->b->st)
        return;
    close_over(w, whole.in);
    w->r.info[rule].entry = node_of(w, 0);
    for (int32_t i = 0; i < w->n_sets && !w->b->st; i++)
        put_node(w, i);
}

static void name_specials(work *w)
{
    grammar *g = w->g;
    if (!w->b->n_specials)
        return;
    if (!(g->special_name = mem_calloc((size_t)w->b->n_specials, sizeof *g->special_name))) {
        gx_fail(w->b, E_MEMORY, "no memory for a grammar's special tokens");
        return;
    }
    for (int32_t i = 0; i < w->b->n_specials; i++)
        strncpy(g->special_name[i], w->b->special[i], sizeof *g->special_name - 1);
    g->n_specials = w->b->n_specials;
}

status grammar_build(grammar **out, gx_builder *b, gx *start)
{
    work w = {.b = b, .r = {.b = b}};
    *out = NULL;
    int32_t root = gx_new_rule(b, "(the text)");
    if (!b->st)
        b->rule[root].body = start;
    if (!b->st && !(w.g = mem_calloc(1, sizeof *w.g)))
        gx_fail(b, E_MEMORY, "no memory for a grammar");
    if (!b->st && !rules_learn(&w.r, b)) {
        want_frame(&w, root);
        for (int32_t i = 0; i < w.n_frames && !b->st; i++)
            build_frame(&w, w.frame[i]);
        name_specials(&w);
    }
    if (!b->st) {
        w.g->start = w.r.info[root].entry;
        grammar_finish(w.g, &w.r, w.frame, w.n_frames);
    }
    mem_free(w.point);
    mem_free(w.line);
    mem_free(w.seen);
    mem_free(w.todo);
    mem_free(w.set);
    mem_free(w.member);
    mem_free(w.slot);
    mem_free(w.frame);
    rules_free(&w.r);
    if (b->st)
        grammar_close(w.g);
    else
        *out = w.g;
    return b->st;
}

void grammar_close(grammar *g)
{
    if (!g)
        return;
    mem_free(g->special_name);
    mem_free(g->call);
    mem_free(g->special);
    mem_free(g->arc);
    mem_free(g->node);
    mem_free(g);
}
