/* grammar_gbnf.c - GBNF to expressions.
 *
 *     grammar = { rule }                        rule   = name "::=" alt
 *     alt     = seq { "|" seq }                 seq    = { item }
 *     item    = part [ * | + | ? | "{" m [ "," [ n ] ] "}" ]
 *     part    = "literal" | [class] | [^class] | . | ( alt ) | name | <marker>
 *
 * A rule ends where the next `name ::=` begins; inside parentheses line ends are white space. A
 * class and `.` stand for one whole character, never for a byte. Escapes, in literals and classes:
 * \n \r \t \\ \" \[ \] \xHH (a character up to U+00FF) \uHHHH \UHHHHHHHH.
 */
#include "text/grammar_int.h"
#include "base/utf8.h"
#include "base/str.h"

#include <string.h>

typedef struct gbnf {
    gx_builder *b;
    const char *s;
    size_t n, at;
    int depth;
    /* Hash table of rules by name, with open addressing: rule + 1, or 0. */
    int32_t slot[4 * GRAMMAR_MAX_RULES];
} gbnf;

static bool fail_at(gbnf *g, const char *what)
{
    size_t line = 1, from = 0;
    if (g->b->st)
        return false; /* the cursor may be past the end after an error */
    for (size_t i = 0; i < g->at; i++)
        if (g->s[i] == '\n') {
            line++;
            from = i + 1;
        }
    return gx_fail(g->b, E_FORMAT, "the grammar, line %zu, column %zu: %s", line, g->at - from + 1,
                   what);
}

static int gbnf_peek(const gbnf *g)
{
    return g->at < g->n ? (unsigned char)g->s[g->at] : -1;
}

static void skip_gbnf_space(gbnf *g)
{
    while (g->at < g->n) {
        char c = g->s[g->at];
        if (c == '#')
            while (g->at < g->n && g->s[g->at] != '\n')
                g->at++;
        else if (c == ' ' || c == '\t' || c == '\n' || c == '\r')
            g->at++;
        else
            break;
    }
}

static bool is_name(int c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_';
}

static size_t name_length(const gbnf *g)
{
    size_t n = 0;
    while (g->at + n < g->n && is_name((unsigned char)g->s[g->at + n]))
        n++;
    return n;
}

/* True: a rule begins at the cursor. */
static bool at_rule(gbnf *g)
{
    size_t n = name_length(g), from = g->at;
    if (!n)
        return false;
    g->at += n;
    skip_gbnf_space(g);
    bool is = g->n - g->at >= 3 && !memcmp(g->s + g->at, "::=", 3);
    g->at = from;
    return is;
}

/* The rule with the name at the cursor, new if unknown; moves past the name. */
static int32_t rule_here(gbnf *g)
{
    enum { MAX_NAME = 128, N_SLOTS = sizeof g->slot / sizeof *g->slot };
    size_t n = name_length(g);
    char name[MAX_NAME];
    uint32_t h = 2166136261u;
    if (n >= MAX_NAME) {
        fail_at(g, "a name longer than 127 bytes");
        return 0;
    }
    memcpy(name, g->s + g->at, n);
    name[n] = 0;
    g->at += n;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)name[i]) * 16777619u;
    for (;; h++) {
        int32_t *slot = &g->slot[h % N_SLOTS];
        if (!gx_work(g->b, 1)) /* a source may choose colliding names */
            return 0;
        if (!*slot) {
            int32_t r = gx_new_rule(g->b, name);
            if (g->b->st)
                return 0;
            return (*slot = r + 1) - 1;
        }
        if (!strcmp(g->b->rule[*slot - 1].name, name))
            return *slot - 1;
    }
}

/* ---- Characters ---- */

static bool gbnf_hex(gbnf *g, int digits, uint32_t *cp)
{
    uint32_t x = 0;
    for (int i = 0; i < digits; i++) {
        int v = hex_digit(gbnf_peek(g));
        if (v < 0)
            return fail_at(g, "an escape with too few hexadecimal digits");
        x = x << 4 | (uint32_t)v;
        g->at++;
    }
    if (x > 0x10FFFF || (x >= 0xD800 && x <= 0xDFFF))
        return fail_at(g, "an escape that is no Unicode character");
    *cp = x;
    return true;
}

static bool gbnf_char(gbnf *g, uint32_t *cp)
{
    bool ok;
    if (gbnf_peek(g) != '\\') {
        int n = utf8_decode(g->s + g->at, g->n - g->at, cp, &ok);
        if (!ok)
            return fail_at(g, "bytes that are not UTF-8");
        g->at += (size_t)n;
        return true;
    }
    g->at++;
    int c = gbnf_peek(g);
    if (c >= 0)
        g->at++;
    switch (c) {
    case 'x':
        return gbnf_hex(g, 2, cp);
    case 'u':
        return gbnf_hex(g, 4, cp);
    case 'U':
        return gbnf_hex(g, 8, cp);
    case 'n':
        *cp = '\n';
        return true;
    case 'r':
        *cp = '\r';
        return true;
    case 't':
        *cp = '\t';
        return true;
    case '\\':
    case '"':
    case '[':
    case ']':
    case '^':
    case '-':
        *cp = (uint32_t)c;
        return true;
    default:
        return fail_at(g, "an escape that GBNF does not have");
    }
}

static gx *read_literal(gbnf *g)
{
    str text = {0};
    g->at++;
    while (!g->b->st && gbnf_peek(g) != '"') {
        uint32_t cp;
        char c[4];
        if (g->at == g->n || g->s[g->at] == '\n')
            fail_at(g, "a literal without its closing quote");
        else if (gbnf_char(g, &cp))
            str_put(&text, c, (size_t)utf8_encode(cp, c));
    }
    g->at++;
    if (text.bad)
        gx_fail(g->b, E_MEMORY, "no memory for a literal");
    gx *x = gx_bytes(g->b, text.at, text.n);
    str_free(&text);
    return x;
}

static gx *gbnf_class(gbnf *g)
{
    enum { MAX_RANGES = 4096 };
    gx_range *r = gx_alloc(g->b, MAX_RANGES, sizeof *r);
    int32_t n = 0;
    g->at++;
    bool negate = gbnf_peek(g) == '^';
    g->at += negate;
    while (!g->b->st && gbnf_peek(g) != ']') {
        if (g->at == g->n)
            fail_at(g, "a class without its closing bracket");
        else if (n == MAX_RANGES)
            fail_at(g, "a class of more than 4096 ranges");
        else if (gbnf_char(g, &r[n].lo)) {
            r[n].hi = r[n].lo;
            if (gbnf_peek(g) == '-' && g->at + 1 < g->n && g->s[g->at + 1] != ']') {
                g->at++;
                if (gbnf_char(g, &r[n].hi) && r[n].hi < r[n].lo)
                    fail_at(g, "a range whose end is before its beginning");
            }
            n++;
        }
    }
    g->at++;
    return gx_set(g->b, r, n, negate);
}

static gx *read_marker(gbnf *g)
{
    const char *from = g->s + g->at, *end = memchr(from, '>', g->n - g->at);
    size_t n = end ? (size_t)(end - from) + 1 : 0;
    char name[64];
    if (!end || n >= sizeof name || memchr(from, '\n', n) || from[1] == '[') {
        fail_at(g, "no chat marker such as <|tool_call>; tokens by number are not supported");
        return gx_text(g->b, "");
    }
    memcpy(name, from, n);
    name[n] = 0;
    g->at += n;
    return gx_special(g->b, name);
}

/* ---- Structure ---- */

static gx *gbnf_alternatives(gbnf *g);

static gx *gbnf_item(gbnf *g)
{
    int c = gbnf_peek(g);
    if (c == '"')
        return read_literal(g);
    if (c == '[')
        return gbnf_class(g);
    if (c == '<')
        return read_marker(g);
    if (c == '.') {
        g->at++;
        return gx_set(g->b, NULL, 0, true);
    }
    if (is_name(c))
        return gx_ref(g->b, rule_here(g));
    if (c != '(')
        fail_at(g, "neither a literal, a class, a name nor a parenthesis");
    else if (++g->depth > GRAMMAR_MAX_NESTING)
        gx_fail(g->b, E_LIMIT, "the grammar nests parentheses deeper than %d", GRAMMAR_MAX_NESTING);
    if (g->b->st)
        return gx_text(g->b, "");
    g->at++;
    gx *x = gbnf_alternatives(g);
    if (gbnf_peek(g) != ')')
        fail_at(g, "a parenthesis that is not closed");
    g->at++;
    g->depth--;
    return x;
}

static bool read_count(gbnf *g, int32_t *v)
{
    int64_t x = 0;
    bool any = false;
    skip_gbnf_space(g);
    for (; gbnf_peek(g) >= '0' && gbnf_peek(g) <= '9'; g->at++, any = true)
        x = x > GRAMMAR_MAX_REPEAT ? x : x * 10 + (gbnf_peek(g) - '0');
    skip_gbnf_space(g);
    if (x > GRAMMAR_MAX_REPEAT)
        return gx_fail(g->b, E_LIMIT, "the grammar repeats more than %d times", GRAMMAR_MAX_REPEAT);
    if (any)
        *v = (int32_t)x;
    return any;
}

/* Reads the counts after "{": m}, m,} or m,n}. */
static gx *gbnf_counts(gbnf *g, gx *x)
{
    int32_t min = 0, max;
    bool any = read_count(g, &min);
    max = min;
    if (gbnf_peek(g) == ',') {
        g->at++;
        if (!read_count(g, &max))
            max = -1;
    } else if (!any) {
        fail_at(g, "a repetition without a number");
    }
    if (gbnf_peek(g) != '}')
        fail_at(g, "a repetition that is not closed");
    else if (max >= 0 && max < min)
        fail_at(g, "a repetition whose end is before its beginning");
    g->at++;
    return gx_repeat(g->b, x, min, max);
}

static gx *read_item(gbnf *g)
{
    enum { MAX_SUFFIXES = 8 }; /* x*+? is legal; builders recurse on each suffix */
    gx *x = gbnf_item(g);
    for (int n = 0;; n++) {
        skip_gbnf_space(g);
        int c = gbnf_peek(g);
        if (c != '*' && c != '+' && c != '?' && c != '{')
            return x;
        if (n == MAX_SUFFIXES)
            gx_fail(g->b, E_LIMIT, "the grammar repeats a repetition more than %d times", n);
        if (g->b->st)
            return x;
        g->at++;
        x = c == '{' ? gbnf_counts(g, x) : gx_repeat(g->b, x, c == '+', c == '?' ? 1 : -1);
    }
}

static gx *gbnf_sequence(gbnf *g)
{
    gx_list l = {0};
    for (;;) {
        skip_gbnf_space(g);
        int c = gbnf_peek(g);
        if (g->b->st || c < 0 || c == '|' || c == ')' || (!g->depth && at_rule(g)))
            return gx_seq(g->b, &l);
        gx_add(g->b, &l, read_item(g));
    }
}

static gx *gbnf_alternatives(gbnf *g)
{
    gx_list l = {0};
    for (;;) {
        gx_add(g->b, &l, gbnf_sequence(g));
        if (g->b->st || gbnf_peek(g) != '|')
            return gx_alt(g->b, &l);
        g->at++;
    }
}

static void read_rule(gbnf *g)
{
    if (!at_rule(g)) {
        fail_at(g, "no rule; one looks like: name ::= \"text\"");
        return;
    }
    size_t from = g->at;
    int32_t r = rule_here(g);
    skip_gbnf_space(g);
    g->at += 3;
    gx *body = gbnf_alternatives(g);
    if (g->b->st)
        return;
    if (g->b->rule[r].body) {
        g->at = from;
        fail_at(g, "a rule that is defined twice");
        return;
    }
    g->b->rule[r].body = body;
    if (gbnf_peek(g) == ')')
        fail_at(g, "a closing parenthesis too many");
}

static gx *read_gbnf(gbnf *g)
{
    int32_t root = -1;
    skip_gbnf_space(g);
    while (!g->b->st && g->at < g->n) {
        read_rule(g);
        skip_gbnf_space(g);
    }
    for (int32_t i = 0; !g->b->st && i < g->b->n_rules; i++) {
        if (!g->b->rule[i].body)
            gx_fail(g->b, E_FORMAT, "the grammar uses the rule %s and does not define it",
                    g->b->rule[i].name);
        else if (!strcmp(g->b->rule[i].name, "root"))
            root = i;
    }
    if (root < 0)
        gx_fail(g->b, E_FORMAT, "the grammar has no rule named root, where the text begins");
    return gx_ref(g->b, root);
}

static gx *gbnf_parse(gx_builder *b, const char *text, size_t n)
{
    if (n > GRAMMAR_MAX_SOURCE_BYTES)
        gx_fail(b, E_LIMIT, "a grammar of %zu bytes; the most is %d", n, GRAMMAR_MAX_SOURCE_BYTES);
    gbnf *g = gx_alloc(b, 1, sizeof *g);
    if (!g)
        return gx_text(b, "");
    g->b = b;
    g->s = text;
    g->n = n;
    return read_gbnf(g);
}

status grammar_from_gbnf(grammar **g, const char *text, size_t n, const grammar_setting *how,
                         err *e)
{
    gx_builder b;
    gx_begin(&b, how, e);
    *g = NULL;
    gx *root = gbnf_parse(&b, text, n);
    status st = grammar_build(g, &b, gx_after_thought(&b, root));
    gx_free(&b);
    return st;
}
