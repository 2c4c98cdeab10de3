/* grammar_match_int.h - a matcher: its states (grammar_match.c) and their masks (grammar_mask.c).
 */
#ifndef TEXT_GRAMMAR_MATCH_INT_H
#define TEXT_GRAMMAR_MATCH_INT_H

#include "text/grammar_int.h"

enum {
    MAX_VISITS = 4 * GRAMMAR_MAX_CONFIGS, /* configs visited while finding one state */
    N_MASKS = 256,                        /* 8 MiB for Gemma's vocabulary, when all are used */
    N_SEEN = 4 * MAX_VISITS,
    REACH_STATES = 32,            /* states found by a search over character kinds */
    REACH_PATH = REACH_STATES + 4 /* REACH_STATES, and the bytes of one character */
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
    uint64_t n_flushes;
};

status matcher_make_step(matcher *m, int32_t symbol, int32_t column, int32_t *to, err *e);

/* *to: successor of the last state of the path. symbol: a byte, or 256 + the index of a special
 * token. May renumber the states, including those of the path. */
static inline status matcher_step(matcher *m, int32_t symbol, int32_t *to, err *e)
{
    const grammar *g = m->g;
    int32_t column = symbol < 256 ? g->class_of[symbol] : g->n_classes + symbol - 256;
    int32_t from = m->path[m->n_path - 1];
    *to = m->row[(size_t)from * (size_t)m->width + (size_t)column];
    return *to != STATE_UNKNOWN ? OK : matcher_make_step(m, symbol, column, to, e);
}

#endif
