/* grammar_int.h - expressions, and the automata compiled from them.
 *
 * A source (GBNF, a JSON schema, tools) becomes expressions `gx` in a builder: a graph in one arena
 * whose rules may refer to each other. grammar_build.c compiles each rule that cannot be copied
 * into its users to one deterministic automaton (a frame) over bytes, special tokens and calls of
 * other frames. grammar_match.c runs the frames with a stack.
 *
 * Builder calls return no error. The builder keeps the first error; every later call returns a
 * placeholder expression that is safe to use and means nothing.
 */
#ifndef TEXT_GRAMMAR_INT_H
#define TEXT_GRAMMAR_INT_H

#include "base/arena.h"
#include "base/str.h"
#include "text/family.h"
#include "text/grammar.h"

typedef enum gx_kind {
    GX_SEQ,     /* the parts in sequence; no parts: the empty text */
    GX_ALT,     /* one of the parts; no parts: matches nothing */
    GX_BYTES,   /* these bytes */
    GX_SET,     /* one character of these ranges */
    GX_SPECIAL, /* one special token */
    GX_RULE,    /* the body of a rule */
    GX_REPEAT,  /* part[0], min to max times */
    GX_WITHOUT  /* text without any of the words; min 1: any bytes, min 0: well-formed UTF-8 */
} gx_kind;

typedef struct gx_range {
    uint32_t lo, hi; /* code points, both included */
} gx_range;

typedef struct gx gx;
struct gx {
    gx_kind kind;
    int32_t n;         /* parts, ranges or words */
    gx **part;         /* SEQ, ALT, REPEAT */
    const char *s;     /* BYTES */
    size_t n_bytes;    /* BYTES */
    gx_range *range;   /* SET: ascending, disjoint */
    const char **word; /* WITHOUT: NUL-terminated */
    int32_t rule;      /* RULE: its index; SPECIAL: index of its name */
    int32_t min, max;  /* REPEAT; max < 0: unlimited */
    /* Set by grammar_rules.c. */
    int32_t size;  /* approximate number of nodes of its automaton; 0: not counted yet */
    int32_t frame; /* rule made from this expression for counted repetition; -1: none */
};

typedef struct gx_rule {
    const char *name; /* for messages */
    gx *body;         /* NULL: used but not defined yet */
    bool apart;       /* never copied into its users, because it has many */
} gx_rule;

typedef struct gx_list {
    gx **at;
    int32_t n, cap;
} gx_list;

typedef struct gx_builder gx_builder;
struct gx_builder {
    const grammar_setting *how;
    uint64_t work; /* steps so far, at most GRAMMAR_MAX_BUILD */
    arena mem;
    gx_rule *rule;
    int32_t n_rules, cap_rules;
    const char *special[GRAMMAR_MAX_SPECIALS];
    int32_t n_specials;
    status st;
    err *e;
};

void gx_begin(gx_builder *b, const grammar_setting *how, err *e);
void gx_free(gx_builder *b);
/* Counts steps of about 50 ns. False: the budget is spent, the caller has cancelled, or an error
 * occurred earlier. Every loop whose length depends on the source counts its steps. */
bool gx_work(gx_builder *b, uint64_t steps);
bool gx_fail(gx_builder *b, status st, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void *gx_alloc(gx_builder *b, size_t n, size_t size); /* NULL: the builder has an error */

gx *gx_bytes(gx_builder *b, const char *s, size_t n); /* copies */
gx *gx_text(gx_builder *b, const char *s);
gx *gx_special(gx_builder *b, const char *name);
gx *gx_set(gx_builder *b, const gx_range *r, int32_t n, bool negate); /* any order, may overlap */
gx *gx_repeat(gx_builder *b, gx *x, int32_t min, int32_t max);
gx *gx_maybe(gx_builder *b, gx *x);
gx *gx_without(gx_builder *b, const char *const *word, int32_t n);
void gx_add(gx_builder *b, gx_list *l, gx *x);
gx *gx_seq(gx_builder *b, const gx_list *l);
gx *gx_alt(gx_builder *b, const gx_list *l);
gx *gx_seq2(gx_builder *b, gx *x, gx *y);
gx *gx_seq3(gx_builder *b, gx *x, gx *y, gx *z);
gx *gx_alt2(gx_builder *b, gx *x, gx *y);
int32_t gx_new_rule(gx_builder *b, const char *name); /* body NULL until set; name is copied */
gx *gx_ref(gx_builder *b, int32_t rule);

/* x after the thought that b->how allows or requires. */
gx *gx_after_thought(gx_builder *b, gx *x);
/* An answer in messages (answer_heads), behind its first role: thoughts, then one of: a call (its
 * message; NULL: none), the text x of the last message (NULL: none). Where either may come, so may
 * texts of the commentary channel before it. Without thoughts it is the last one alone. json: a
 * type may say so. */
gx *gx_messages(gx_builder *b, gx *call, gx *x, bool json);
/* gx_without for a list that ends in NULL. */
gx *gx_without_any(gx_builder *b, const char *const *word);
/* Parses a regular expression of JSON Schema's `pattern`, for the contents of a string. json: the
 * contents are spelled as between JSON quotes, else raw. where: for messages. */
gx *regex_parse(gx_builder *b, const char *s, size_t n, bool json, const char *where);
/* One character of a JSON string, in any spelling or (plain) in its usual spelling. */
gx *json_char(gx_builder *b, bool plain);
/* Appends the usual spelling of a character between JSON quotes; it holds no NUL byte. */
void json_put_char(str *out, uint32_t cp);

/* ---- Automata ---- */

/* Character kinds. A grammar often treats all characters of a kind alike. Every character has
 * exactly one kind; each common sign is a kind of its own. */
enum {
    KIND_SMALL = 0,   /* a..z; first, because most tokens have some */
    KIND_WIDE = 2,    /* beyond ASCII */
    KIND_BROKEN = 31, /* invalid bytes, such as a token's part of a character */
    N_KINDS = 32
};
int32_t char_kind(uint32_t cp);

/* Bytes lo..hi lead to node `to`. */
typedef struct g_arc {
    uint8_t lo, hi;
    int32_t to;
} g_arc;

typedef struct g_special {
    int32_t special, to;
} g_special;

/* Passes the frame with first node `entry` min to max times, then continues at `to`. */
typedef struct g_call {
    int32_t entry, min, max, to;
} g_call;

enum {
    NODE_FINAL = 1,      /* the frame's text may end here */
    NODE_LAST = 2,       /* final, and nothing can follow */
    NODE_SAFE_LOOP = 4,  /* all safe characters (tree_node) lead to one node: this node, or a
                            node from which all safe characters lead back to it */
    NODE_SAFE_CHAR = 8,  /* entry of a frame; each safe character alone is a text of the frame */
    NODE_PRODUCTIVE = 16 /* while building: some text leads from here to the frame's end */
};

typedef struct g_node {
    int32_t arc, n_arcs; /* ascending, disjoint */
    int32_t special, n_specials;
    int32_t call, n_calls;
    int32_t flags;
} g_node;

struct grammar {
    g_node *node;
    g_arc *arc;
    g_special *special;
    g_call *call;
    int32_t n_nodes, n_arcs, n_special_arcs, n_calls;
    int32_t start; /* entry of the start frame */
    uint8_t class_of[256];
    uint16_t class_end[256]; /* [byte]: the first byte after its class */
    int32_t n_classes;
    /* Per character kind, a list of bytes below 128, one per byte class; -1 ends the list. */
    int16_t kind_first[N_KINDS], kind_next[128];
    char (*special_name)[64];
    int32_t n_specials;
};

/* Compiles the rules of b. start: the expression for the whole text. Frees nothing of b. */
status grammar_build(grammar **g, gx_builder *b, gx *start);

/* Properties of a rule, found before automata are built (grammar_rules.c). */
typedef struct rule_info {
    int32_t size;  /* approximate number of nodes of its automaton, copied rules included */
    int32_t entry; /* first node of its frame; -1: not built yet */
    bool nullable; /* matches the empty text */
    bool copied;   /* copied into its users: it is small, and recursive only if it is a tail loop */
    bool tail;     /* refers to itself, in last positions only: a loop */
    bool wanted;   /* its frame is used */
} rule_info;

typedef struct rules {
    gx_builder *b;
    rule_info *info; /* [b->n_rules], grown with it */
    int32_t cap;
} rules;

status rules_learn(rules *r, gx_builder *b);
void rules_free(rules *r);
bool gx_nullable(rules *r, const gx *x);
/* True: the automaton writes out the rounds of x (a REPEAT). False: matching counts them. */
bool gx_written_out(rules *r, gx *x);
/* The rule made from the body x of a counted repetition. */
int32_t rules_frame_of(rules *r, gx *x);

/* grammar_trim.c. Runs after all frames are built. Removes lines to nodes that reach no end,
 * refuses left recursion, and fills the tables for fast matching. frame [n_frames]: the rules with
 * a frame. */
status grammar_finish(grammar *g, rules *r, const int32_t *frame, int32_t n_frames);

/* ---- token_tree ---- */

/* The tree in preorder: the descendants of node i are i+1 .. end-1. */
typedef struct tree_node {
    uint32_t end;
    uint32_t token; /* tokens that end here: order[token] up to the next node's token */
    uint16_t depth; /* 1: one byte */
    uint8_t byte;
    /* Length in characters of the longest token here or below, if all these tokens consist of at
     * most SAFE_MAX safe characters; else UNSAFE. Safe: well-formed UTF-8, no control character,
     * none of " \ <. */
    uint8_t safe;
    uint32_t kinds; /* bit k: a token here or below has a character of kind k */
} tree_node;

enum { SAFE_MAX = 64, UNSAFE = 255 };

struct token_tree {
    tree_node *node; /* [n_nodes + 1]; node 0 is the root, of depth 0 */
    int32_t n_nodes;
    int32_t *order;
    int32_t n_order;
    uint32_t *at; /* [n + 1] offsets into bytes; tokens outside the tree have no bytes */
    char *bytes;
    uint8_t *eog; /* [n] */
    int32_t n, n_words, max_depth;
    uint64_t *safe_mask[SAFE_MAX + 1]; /* [L]: tokens of at most L safe characters; owned by [0] */
    int32_t safe_max;                  /* length of the longest safe token; last distinct mask */
    uint64_t *kind_mask[N_KINDS];      /* tokens with a character of that kind; owned by [0] */
    uint32_t unsafe_kinds;             /* bit k: kind k has unsafe characters */
    uint64_t *tree_mask;               /* tokens of the tree */
    uint64_t *eog_mask;
    const vocab *v; /* to find special tokens; NULL: none */
};

/* One token, as input of token_tree_build. */
typedef struct tree_token {
    const char *s;
    size_t n; /* 0: not matched by bytes */
    bool eog;
} tree_token;

/* tok [n]. Texts are copied. */
status token_tree_build(token_tree **t, const tree_token *tok, int32_t n, err *e);

#endif
