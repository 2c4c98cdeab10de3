/* grammar_test.c - grammars against a matcher that tries everything (tests/grammar_plain.h): every
 * bit of every mask along random texts of random grammars, then what GBNF can say, what is
 * refused, chat markers, limits, and tables that are too small for what they hold. */
#include "tests/grammar_plain.h"
#include "tests/test.h"
#include "tests/toy_vocab.h"
#include "base/mem.h"
#include "base/rng.h"

/* ---- Random grammars, every bit of the mask ---- */

static const char *const atoms[] = {"a", "b", "\xC3\xA9", "ab", "\"", "\\", " ", "ba", "\n", "<"};

static gx *random_set(gx_builder *b, uint64_t *rng)
{
    static const gx_range pool[] = {{'a', 'a'},       {'a', 'b'}, {'"', '"'},
                                    {'\\', '\\'},     {0, 31},    {0xE9, 0xE9},
                                    {0x80, 0x10FFFF}, {' ', '~'}, {'a', 'z'}};
    gx_range r[3];
    int32_t n = (int32_t)rng_below(rng, 4);
    for (int32_t i = 0; i < n; i++)
        r[i] = pool[rng_below(rng, 9)];
    return gx_set(b, r, n, !n || rng_below(rng, 2));
}

static gx *random_gx(gx_builder *b, uint64_t *rng, int depth)
{
    static const char *const words[] = {"<a>", "ba"};
    gx_list l = {0};
    int n = (int)rng_below(rng, 4);
    switch (rng_below(rng, depth ? 9 : 3)) {
    case 0:
    case 1:
        return gx_text(b, atoms[rng_below(rng, 10)]);
    case 2:
        return random_set(b, rng);
    case 3:
    case 4:
        for (int i = 0; i < n; i++)
            gx_add(b, &l, random_gx(b, rng, depth - 1));
        return gx_seq(b, &l);
    case 5:
        for (int i = 0; i <= n; i++)
            gx_add(b, &l, random_gx(b, rng, depth - 1));
        return gx_alt(b, &l);
    case 6: {
        int32_t min = (int32_t)rng_below(rng, 3), max = min + (int32_t)rng_below(rng, 12);
        if (rng_below(rng, 8) == 0)
            return gx_without(b, words, 1 + (int32_t)rng_below(rng, 2));
        return gx_repeat(b, random_gx(b, rng, depth - 1), min, rng_below(rng, 2) ? -1 : max);
    }
    default:
        return gx_ref(b, (int32_t)rng_below(rng, 3));
    }
}

typedef struct pieces {
    char s[64][24];
    tree_token tok[64];
    int32_t n;
} pieces;

/* All bytes that matter, then random strings, two tokens that end and one that is nothing. */
static void random_pieces(pieces *p, uint64_t *rng)
{
    static const char bytes[] = "ab \"\\<>\n\xC3\xA9\xAA\xE2\x96\x81\xF0";
    for (p->n = 0; p->n < (int32_t)sizeof bytes - 1; p->n++) {
        p->s[p->n][0] = bytes[p->n];
        p->tok[p->n] = (tree_token){p->s[p->n], 1, false};
    }
    for (; p->n < 61; p->n++) {
        size_t n = 0;
        for (uint64_t k = 1 + rng_below(rng, 8); k > 0; k--) {
            const char *atom = atoms[rng_below(rng, 10)];
            memcpy(p->s[p->n] + n, atom, strlen(atom));
            n += strlen(atom);
        }
        /* Cut at any byte, as pieces of byte-level vocabularies are. */
        size_t from = rng_below(rng, 4) ? 0 : rng_below(rng, n);
        size_t len = rng_below(rng, 4) ? n - from : 1 + rng_below(rng, n - from);
        p->tok[p->n] = (tree_token){p->s[p->n] + from, len, false};
    }
    p->tok[p->n++] = (tree_token){"end", 3, true};
    p->tok[p->n++] = (tree_token){NULL, 0, false};
    p->tok[p->n++] = (tree_token){NULL, 0, true};
}

static bool bit(const uint64_t *bits, int32_t i)
{
    return bits[i >> 6] >> (i & 63) & 1;
}

/* Compares all there is to know after text. Returns false when either matcher gave up. */
static bool same_mask(const plain *p, const gx *x, grammar_run *r, const pieces *v, const str *text)
{
    const uint64_t *bits;
    err e = {0};
    str next = {0};
    int32_t n_allowed, count = 0;
    bool known = true;
    int whole = plain_match(p, x, str_text(text), text->n, false);
    status st = grammar_mask(r, &bits, &n_allowed, &e);
    if (st == E_LIMIT && strstr(e.text, "too ambiguous"))
        return false;
    CHECK_MSG(!st || st == E_FORMAT, "%s", e.text);
    known = whole >= 0;
    if (known)
        CHECK_EQ(grammar_may_end(r), whole);
    for (int32_t i = 0; i < v->n && known; i++) {
        int want = v->tok[i].eog ? whole : 0;
        bool ok = false;
        if (!v->tok[i].eog && v->tok[i].n) {
            str_cut(&next, 0);
            str_put(&next, text->at, text->n);
            str_put(&next, v->tok[i].s, v->tok[i].n);
            want = plain_match(p, x, next.at, next.n, true);
        }
        known = want >= 0;
        CHECK_MSG(!known || bit(bits, i) == want, "after '%s', token '%.*s' is %d, expected %d",
                  str_text(text), (int)v->tok[i].n, v->tok[i].s, bit(bits, i), want);
        count += bit(bits, i);
        AUTO(grammar_end) grammar_run copy;
        grammar_clone(&copy, r);
        CHECK_OK(grammar_accept(&copy, i, &ok, &e), e);
        CHECK_EQ(ok, bit(bits, i));
    }
    if (known)
        CHECK_EQ(count, n_allowed);
    str_free(&next);
    return known;
}

/* A random text of the grammar; every mask on the way. Returns the masks compared. */
static int random_text(const plain *p, const gx *x, matcher *m, const pieces *v, uint64_t *rng)
{
    grammar_run r;
    err e = {0};
    AUTO(str_free) str text = {0};
    int compared = 0;
    CHECK_OK(grammar_begin(&r, m, &e), e);
    while (text.n < 12 && same_mask(p, x, &r, v, &text)) {
        const uint64_t *bits;
        bool ok;
        compared++;
        if (grammar_mask(&r, &bits, NULL, NULL))
            break;
        int32_t i, tries = 0;
        do
            i = (int32_t)rng_below(rng, (uint64_t)v->n);
        while ((!bit(bits, i) || v->tok[i].eog) && ++tries < 500);
        if (tries == 500)
            break;
        CHECK_OK(grammar_accept(&r, i, &ok, &e), e);
        CHECK(ok);
        str_put(&text, v->tok[i].s, v->tok[i].n);
    }
    grammar_end(&r);
    return compared;
}

PLAIN_TEST(grammar_masks_are_those_of_the_plain_matcher)
{
    uint64_t rng = test_seed();
    int n_built = 0, n_masks = 0, n_refused = 0;
    for (int round = 0; round < 300; round++) {
        err e = {0};
        AUTO(gx_free) gx_builder b;
        gx_begin(&b, NULL, &e);
        grammar *g = NULL;
        gx *body[3];
        for (int i = 0; i < 3; i++)
            gx_new_rule(&b, "r");
        for (int i = 0; i < 3; i++)
            body[i] = random_gx(&b, &rng, 3);
        for (int i = 0; i < 3; i++)
            b.rule[i].body = body[i];
        gx *start = random_gx(&b, &rng, 3);
        AUTO(plain_close) plain p;
        CHECK(plain_open(&p, &b)); /* before the build adds rules of its own */
        status st = grammar_build(&g, &b, start);
        if (st) {
            n_refused++;
            CHECK_MSG(st == E_UNSUPPORTED || st == E_FORMAT || st == E_LIMIT, "%s", e.text);
            if (st == E_FORMAT)
                CHECK_EQ(plain_match(&p, start, "", 0, true), 0);
        } else {
            pieces v;
            token_tree *t = NULL;
            matcher *m = NULL;
            n_built++;
            random_pieces(&v, &rng);
            CHECK_OK(token_tree_build(&t, v.tok, v.n, &e), e);
            CHECK_OK(matcher_open(&m, g, t, &e), e);
            for (int k = 0; k < 2; k++)
                n_masks += random_text(&p, start, m, &v, &rng);
            matcher_close(m);
            token_tree_close(t);
            grammar_close(g);
        }
    }
    printf("%d grammars, %d refused, %d masks\n", n_built, n_refused, n_masks);
    CHECK(n_built > 150 && n_masks > 600);
}

/* ---- Words ---- */

/* Words of letters, signs and digits, and texts cut out of them. */
static token_tree *words_tree(uint64_t *rng, char (*word)[40], int32_t n)
{
    static const char sign[] = "-_.@ \"\\<,09Az";
    AUTO_MEM tree_token *tok = mem_calloc((size_t)n, sizeof *tok);
    token_tree *t;
    err e = {0};
    CHECK(tok);
    for (int32_t i = 0; i < n; i++) {
        size_t len = 1 + rng_below(rng, rng_below(rng, 4) ? 9 : 39);
        for (size_t k = 0; k < len; k++)
            word[i][k] = i < 128              ? (char)i
                         : rng_below(rng, 12) ? (char)('a' + rng_below(rng, 26))
                                              : sign[rng_below(rng, sizeof sign - 1)];
        tok[i] = (tree_token){word[i], i < 128 ? 1 : len, false};
    }
    CHECK_OK(token_tree_build(&t, tok, n, &e), e);
    return t;
}

/* Masks of what is looped and counted, which leave most of the tree unwalked, against the bytes of
 * each token, one after the other. */
TEST(grammar_masks_of_words_are_what_their_bytes_say)
{
    enum { N = 3000 };
    static const char *const gbnf[] = {
        "root ::= [a-z0-9_-]{1,64} \"!\"",
        "root ::= [a-zA-Z]{2,12} (\".\" [a-z]{1,5})*",
        "root ::= ([a-z0-9]+ (\"-\" [a-z0-9]+)* \".\")+ [a-zA-Z]{2,12}",
        "root ::= [a-z]{7} | [a-z0-9]{3,9} \"-\" [^\"]{4}",
        "root ::= ([a-z] [a-z_]){3,} | [a-z.]{5} [a-y]*",
        "root ::= [a-z]{4} [\\x00-\\x7e]{0,6} | [a-z]{5}",
        "root ::= word+\nword ::= [a-z]{3,5} \"-\"? | \"(\" word{1,40} \")\"",
        "root ::= [^ \"]{3,30} \"\\\"\"",
    };
    static char word[N][40];
    uint64_t rng = test_seed();
    token_tree *t = words_tree(&rng, word, N);
    err e = {0};
    for (size_t k = 0; k < 6 * (sizeof gbnf / sizeof *gbnf); k++) {
        const char *source = gbnf[k / 6];
        grammar *g;
        matcher *m;
        grammar_run r, copy;
        const uint64_t *bits;
        bool ok;
        CHECK_OK(grammar_from_gbnf(&g, source, strlen(source), NULL, &e), e);
        CHECK_OK(matcher_open(&m, g, t, &e), e);
        CHECK_OK(grammar_begin(&r, m, &e), e);
        for (int steps = 0; steps < 30 && !grammar_mask(&r, &bits, NULL, NULL); steps++) {
            int32_t next = -1, n_allowed = 0;
            uint64_t had[(N + 63) / 64];
            memcpy(had, bits, sizeof had);
            for (int32_t i = 0; i < N; i++) {
                grammar_clone(&copy, &r);
                CHECK_OK(grammar_accept(&copy, i, &ok, &e), e);
                grammar_end(&copy);
                CHECK_MSG(ok == bit(had, i), "%s: step %d, token '%.*s' is %d", source, steps,
                          (int)(t->at[i + 1] - t->at[i]), t->bytes + t->at[i], bit(had, i));
                if (ok && (next < 0 || !rng_below(&rng, (uint64_t)++n_allowed)))
                    next = i;
            }
            if (next < 0)
                break;
            CHECK_OK(grammar_accept(&r, next, &ok, &e), e);
        }
        grammar_end(&r);
        matcher_close(m);
        grammar_close(g);
    }
    token_tree_close(t);
}

/* ---- GBNF ---- */

typedef struct follower {
    grammar *g;
    token_tree *t;
    matcher *m;
} follower;

/* Every byte is a token, 256 ends. */
static void open_bytes(follower *f, const char *gbnf)
{
    static char byte[256];
    tree_token tok[257];
    err e = {0};
    for (int i = 0; i < 256; i++) {
        byte[i] = (char)i;
        tok[i] = (tree_token){&byte[i], 1, false};
    }
    tok[256] = (tree_token){NULL, 0, true};
    CHECK_OK(grammar_from_gbnf(&f->g, gbnf, strlen(gbnf), NULL, &e), e);
    CHECK_OK(token_tree_build(&f->t, tok, 257, &e), e);
    CHECK_OK(matcher_open(&f->m, f->g, f->t, &e), e);
}

static void close_all(follower *f)
{
    matcher_close(f->m);
    token_tree_close(f->t);
    grammar_close(f->g);
}

static bool is_text(follower *f, const char *s, size_t n)
{
    AUTO(grammar_end) grammar_run r;
    err e = {0};
    bool ok, whole;
    CHECK_OK(grammar_begin(&r, f->m, &e), e);
    CHECK_OK(grammar_accept_bytes(&r, s, n, &ok, &e), e);
    whole = ok && grammar_may_end(&r);
    return whole;
}

TEST(grammar_gbnf_says_what_llama_cpp_means)
{
    static const struct {
        const char *gbnf, *yes[5], *no[5];
    } row[] = {
        {"root ::= \"a\" | \"b\" \"c\"", {"a", "bc"}, {"", "b", "ac", "abc", "bca"}},
        {"root ::= [a-c0-9]+ # comment\n", {"a", "09", "abc"}, {"", "d", "a d"}},
        {"root ::= [^a-c\"]*", {"", "xyz", "\xC3\xA9"}, {"a", "x\"", "\xC3"}},
        {"root ::= \"\\x41\\u00e9\\n\\\"\" .", {"A\xC3\xA9\n\"z"}, {"A\xC3\xA9\n\"", "A"}},
        {"root ::= (\"ab\"){2,3}", {"abab", "ababab"}, {"", "ab", "abababab"}},
        {"root ::= \"a\"{,3} \"b\"{2,}", {"bb", "aaabb", "bbbbb"}, {"b", "aaaabb"}},
        {"root ::= \"a\"? \"b\"*\n", {"", "a", "ab", "bbb"}, {"aa", "ba"}},
        {"root ::= item (\",\" item)*\nitem ::=\n  [0-9]+ |\n  \"(\" root \")\"\n",
         {"1", "1,(2,3),4", "((1))"},
         {"", "1,", "(1", "1)"}},
        {"root ::= \"[\" ws \"]\"\nws ::= ([ \\t\\n] ws)?", {"[]", "[ \t\n ]"}, {"[", "[x]"}},
        {"root ::= as bs\nas ::= \"a\" as \"b\" | \"\"\nbs ::= \"\" | \"b\" bs",
         {"", "aabbb", "b", "ab"},
         {"aab", "ba"}},
        {"root ::= [\\]\\-x]+", {"]-x"}, {"y"}},
        {"root ::= \"x\"{100,200}", {NULL}, {"x", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        follower f;
        open_bytes(&f, row[i].gbnf);
        for (int k = 0; k < 5; k++) {
            if (row[i].yes[k])
                CHECK_MSG(is_text(&f, row[i].yes[k], strlen(row[i].yes[k])), "%s: %s", row[i].gbnf,
                          row[i].yes[k]);
            if (row[i].no[k])
                CHECK_MSG(!is_text(&f, row[i].no[k], strlen(row[i].no[k])), "%s: %s", row[i].gbnf,
                          row[i].no[k]);
        }
        close_all(&f);
    }
}

TEST(grammar_counts_far_without_growing)
{
    follower f;
    str s = {0};
    open_bytes(&f, "root ::= \"x\"{1000,100000} \"[\" ([a-z]{2,3} \",\"){50,60} \"]\"");
    CHECK(f.g->n_nodes < 500);
    for (int i = 0; i < 100000; i++)
        str_putc(&s, 'x');
    str_putc(&s, '[');
    for (int i = 0; i < 55; i++)
        str_puts(&s, i % 2 ? "ab," : "abc,");
    str_putc(&s, ']');
    CHECK(is_text(&f, s.at, s.n));
    CHECK(!is_text(&f, s.at + 99001, s.n - 99001));
    CHECK(!is_text(&f, s.at, s.n - 1));
    str_putc(&s, 'x');
    s.at[s.n - 1] = 0;
    memmove(s.at + 1, s.at, s.n - 1);
    s.at[0] = 'x';
    CHECK(!is_text(&f, s.at, s.n));
    str_free(&s);
    close_all(&f);
}

TEST(grammar_refuses_what_it_cannot_follow)
{
    static const struct {
        const char *gbnf;
        status st;
        const char *says;
    } row[] = {
        {"", E_FORMAT, "no rule named root"},
        {"root = \"a\"", E_FORMAT, "line 1, column 1"},
        {"root ::= a", E_FORMAT, "rule a and does not define it"},
        {"root ::= \"a", E_FORMAT, "without its closing quote"},
        {"root ::= [a", E_FORMAT, "without its closing bracket"},
        {"root ::= (\"a\"", E_FORMAT, "not closed"},
        {"root ::= \"a\")", E_FORMAT, "a closing parenthesis too many"},
        {"root ::= \"a\"\nroot ::= \"b\"", E_FORMAT,
         "line 2, column 1: a rule that is defined twice"},
        {"root ::= \"a\"{3,2}", E_FORMAT, "end is before its beginning"},
        {"root ::= \"a\"{}", E_FORMAT, "without a number"},
        {"root ::= [b-a]", E_FORMAT, "end is before its beginning"},
        {"root ::= \"\\q\"", E_FORMAT, "an escape that GBNF does not have"},
        {"root ::= \"\\ud800\"", E_FORMAT, "no Unicode character"},
        {"root ::= \"\xFF\"", E_FORMAT, "not UTF-8"},
        {"root ::= \"a\"{99999999}", E_LIMIT, "more than 1048576 times"},
        {"root ::= <[12]>", E_FORMAT, "tokens by number"},
        {"root ::= root \"a\" | \"b\"", E_UNSUPPORTED, "rule root begins with itself"},
        {"root ::= x? y\nx ::= \"a\"\ny ::= z \"b\"\nz ::= x* y | \"c\"", E_UNSUPPORTED,
         "(left recursion)"},
        {"root ::= \"a\" root", E_FORMAT, "matches no text at all"},
        {"root ::= [^\\U00000000-\\U0010FFFF]", E_FORMAT, "matches no text at all"},
        {"root ::= [ab]* \"a\" [ab]{18}", E_LIMIT, "too complex"},
        {"root ::= \"x\"************* ", E_LIMIT, "repeats a repetition"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        grammar *g;
        err e = {0};
        status st = grammar_from_gbnf(&g, row[i].gbnf, strlen(row[i].gbnf), NULL, &e);
        CHECK_MSG(st == row[i].st && strstr(e.text, row[i].says) && !g, "%s: %s: %s", row[i].gbnf,
                  carat_status_name(st), e.text);
    }
    /* Deep and wide texts: refused or built, in bounded time. */
    AUTO(str_free) str s = {0};
    grammar *g;
    err e = {0};
    str_puts(&s, "root ::= ");
    for (int i = 0; i < 100000; i++)
        str_putc(&s, '(');
    CHECK_STATUS(grammar_from_gbnf(&g, s.at, s.n, NULL, &e), E_LIMIT);
    str_cut(&s, 0);
    str_puts(&s, "root ::= r0\n");
    for (int i = 0; i < 15000; i++)
        str_printf(&s, "r%d ::= r%d\n", i, i + 1);
    str_puts(&s, "r15000 ::= \"a\"\n");
    err_clear(&e);
    CHECK_OK(grammar_from_gbnf(&g, s.at, s.n, NULL, &e), e);
    CHECK(g->n_nodes < 20000);
    grammar_close(g);
    str_cut(&s, 0);
    str_puts(&s, "root ::= r0\n");
    for (int i = 0; i < 20000; i++)
        str_printf(&s, "r%d ::= \"b\" r%d\n", i, i + 1);
    CHECK_STATUS(grammar_from_gbnf(&g, s.at, s.n, NULL, &e), E_LIMIT);
    str_cut(&s, 0);
    str_puts(&s, "root ::= \"\"");
    for (int i = 0; i < 20000; i++)
        str_printf(&s, " | \"%d\"", i * 7919);
    err_clear(&e);
    CHECK_OK(grammar_from_gbnf(&g, s.at, s.n, NULL, &e), e);
    grammar_close(g);
}

/* A recursive rule that matches the empty text, by way of another one, hides nothing: what stands
 * behind it may stand first. Whether it is empty is known after some rounds, in any order of rules.
 */
TEST(grammar_left_recursion_behind_recursive_empty_rules_is_refused)
{
    static const char *const rule[] = {"r ::= a r \"x\" | \"y\"\n", "a ::= b | \"(\" a \")\"\n",
                                       "b ::= c c | \"[\" b \"]\"\n",
                                       "c ::= \"\" | \"<\" c \">\"\n"};
    for (int order = 0; order < 256; order++) {
        char text[400] = "root ::= r\n";
        int at[4] = {order & 3, order >> 2 & 3, order >> 4 & 3, order >> 6}, seen = 0;
        for (int i = 0; i < 4; i++) {
            strcat(text, rule[at[i]]);
            seen |= 1 << at[i];
        }
        if (seen != 15)
            continue;
        grammar *g;
        err e = {0};
        status st = grammar_from_gbnf(&g, text, strlen(text), NULL, &e);
        CHECK_MSG(st == E_UNSUPPORTED && strstr(e.text, "rule r begins with itself") && !g,
                  "%s: %s: %s", text, carat_status_name(st), e.text);
        char *behind = strstr(text, "a r \"x\""); /* a character before r makes it a fine rule */
        memcpy(behind, "a \"x\" r", 7);
        follower f;
        open_bytes(&f, text);
        CHECK(is_text(&f, "([<>])xxy", 9) && is_text(&f, "y", 1) && !is_text(&f, "x", 1));
        close_all(&f);
    }
    /* b is empty by way of a, which leads back to b: whichever comes first. In the last r, a is
     * called before b, so the search for empty rules looks at b while it does not know a yet. */
    static const char *const part[] = {
        "r ::= \"q\" a | b r \"x\" | \"y\"\n", "r ::= b r \"x\" | \"q\" a | \"y\"\n",
        "r ::= a b r \"x\" | \"y\"\n", "a ::= \"\" | \"(\" a b \")\"\n",
        "b ::= a | \"[\" b \"]\"\n"};
    for (int order = 0; order < 18; order++) {
        static const int at[6][3] = {{0, 3, 4}, {0, 4, 3}, {3, 0, 4},
                                     {3, 4, 0}, {4, 0, 3}, {4, 3, 0}};
        char text[300] = "";
        for (int i = 0; i < 3; i++)
            strcat(text, part[at[order % 6][i] ? at[order % 6][i] : order / 6]);
        strcat(text, "root ::= r\n");
        grammar *g;
        err e = {0};
        status st = grammar_from_gbnf(&g, text, strlen(text), NULL, &e);
        CHECK_MSG(st == E_UNSUPPORTED && strstr(e.text, "begins with itself") && !g, "%s: %s", text,
                  e.text);
    }
}

TEST(grammar_nests_as_deep_as_it_says)
{
    follower f;
    str s = {0};
    open_bytes(&f, "root ::= \"(\" root \")\" | \"x\"");
    for (int n = 1; n < 2 * GRAMMAR_MAX_DEPTH; n++) {
        str_cut(&s, 0);
        for (int i = 0; i < n; i++)
            str_putc(&s, '(');
        str_putc(&s, 'x');
        for (int i = 0; i < n; i++)
            str_putc(&s, ')');
        CHECK_MSG(is_text(&f, s.at, s.n) == (n <= GRAMMAR_MAX_DEPTH), "depth %d", n);
    }
    str_free(&s);
    close_all(&f);
}

/* More states than the tables hold, with runs that must survive the forgetting. */
TEST(grammar_forgets_and_goes_on)
{
    enum { N = 12, LENGTH = 700 };
    follower f;
    grammar_run run[N];
    uint64_t rng = test_seed();
    char text[N][LENGTH];
    err e = {0};
    bool ok;
    open_bytes(&f, "root ::= item{1,100000}\nitem ::= \"a\" | \"(\" item{1,90000} \")\"");
    for (int i = 0; i < N; i++)
        CHECK_OK(grammar_begin(&run[i], f.m, &e), e);
    for (int k = 0; k < LENGTH; k++)
        for (int i = 0; i < N; i++) {
            char c = "aaaa(()"[rng_below(&rng, 7)];
            CHECK_OK(grammar_accept_bytes(&run[i], &c, 1, &ok, &e), e);
            if (!ok)
                CHECK_OK(grammar_accept_bytes(&run[i], &(char){c = 'a'}, 1, &ok, &e), e);
            CHECK(ok);
            text[i][k] = c;
        }
    for (int k = 0; k < 40; k++) { /* long runs of counted states */
        grammar_run r;
        CHECK_OK(grammar_begin(&r, f.m, &e), e);
        for (int i = 0; i < 3000; i++)
            CHECK_OK(grammar_accept_bytes(&r, i == k ? "(" : "a", 1, &ok, &e), e);
        grammar_end(&r);
    }
    CHECK(matcher_flushes(f.m) > 1);
    for (int i = 0; i < N; i++) {
        grammar_run fresh;
        const uint64_t *bits;
        uint64_t had[5];
        CHECK_OK(grammar_mask(&run[i], &bits, NULL, &e), e);
        memcpy(had, bits, sizeof had);
        CHECK_OK(grammar_begin(&fresh, f.m, &e), e);
        CHECK_OK(grammar_accept_bytes(&fresh, text[i], LENGTH, &ok, &e), e);
        CHECK(ok);
        CHECK_EQ(fresh.state, run[i].state);
        CHECK_OK(grammar_mask(&fresh, &bits, NULL, &e), e);
        CHECK(!memcmp(had, bits, sizeof had));
        grammar_end(&fresh);
        grammar_end(&run[i]);
    }
    close_all(&f);
}

TEST(grammar_ambiguity_has_a_limit)
{
    follower f;
    grammar_run r;
    err e = {0};
    bool ok = true;
    status st = OK;
    open_bytes(&f, "root ::= x*\nx ::= \"a\" x \"b\" | \"a\" x \"c\" | \"a\" y | \"a\"\n"
                   "y ::= \"a\" x \"d\" | \"a\" y \"e\" | \"a\" x x");
    CHECK_OK(grammar_begin(&r, f.m, &e), e);
    for (int i = 0; i < 400 && ok && !st; i++)
        st = grammar_accept_bytes(&r, "a", 1, &ok, &e);
    CHECK_EQ(st, E_LIMIT);
    CHECK(strstr(e.text, "ambiguous"));
    grammar_end(&r);
    close_all(&f);
}

/* ---- Tokens of a vocabulary ---- */

TEST(grammar_markers_are_tokens_and_never_spelled)
{
    AUTO_PTR(toy_free) toy *words = toy_gemma();
    err e = {0};
    token_tree *t;
    grammar *g;
    matcher *m;
    grammar_run r;
    const uint64_t *bits;
    bool ok;
    int32_t n;
    const char *gbnf = "root ::= <|tool_call> \"a\"+ <tool_call|> | \"<|tool\"";
    CHECK_OK(token_tree_open(&t, words->v, &e), e);
    CHECK_OK(grammar_from_gbnf(&g, gbnf, strlen(gbnf), NULL, &e), e);
    CHECK_OK(matcher_open(&m, g, t, &e), e);
    CHECK_OK(grammar_begin(&r, m, &e), e);
    int32_t open = vocab_find(words->v, "<|tool_call>", 12),
            shut = vocab_find(words->v, "<tool_call|>", 12);
    int32_t a = vocab_find(words->v, "a", 1), less = vocab_find(words->v, "<", 1);
    CHECK(open >= 0 && shut >= 0 && a >= 0 && less >= 0);
    CHECK_OK(grammar_mask(&r, &bits, &n, &e), e);
    CHECK(bit(bits, open) && bit(bits, less) && !bit(bits, shut) && !bit(bits, a));
    CHECK_OK(grammar_accept(&r, shut, &ok, &e), e);
    CHECK(!ok);
    CHECK_OK(grammar_accept(&r, open, &ok, &e), e);
    CHECK(ok);
    CHECK_OK(grammar_accept(&r, a, &ok, &e), e);
    CHECK(ok);
    CHECK_OK(grammar_mask(&r, &bits, &n, &e), e);
    CHECK(bit(bits, shut) && bit(bits, a) && !bit(bits, open) && !grammar_may_end(&r));
    for (int32_t id = 0; id < vocab_n(words->v); id++)
        CHECK(!vocab_is_eog(words->v, id) || !bit(bits, id));
    CHECK_OK(grammar_accept(&r, shut, &ok, &e), e);
    CHECK(ok && grammar_must_end(&r));
    CHECK_OK(grammar_mask(&r, &bits, &n, &e), e);
    for (int32_t id = 0; id < vocab_n(words->v); id++)
        CHECK_EQ(bit(bits, id), vocab_is_eog(words->v, id));
    grammar_end(&r);
    grammar_end(&r);
    matcher_close(m);
    grammar_close(g);
    gbnf = "root ::= <|nothing>";
    CHECK_OK(grammar_from_gbnf(&g, gbnf, strlen(gbnf), NULL, &e), e);
    CHECK_STATUS(matcher_open(&m, g, t, &e), E_UNSUPPORTED);
    CHECK(strstr(e.text, "<|nothing>"));
    grammar_close(g);
    token_tree_close(t);
}

static status follow_once(void *arg, err *e)
{
    const char *gbnf =
        "root ::= (a{30} | <|tool_call> b)+\na ::= [^b]\nb ::= \"(\" b \")\" | \"x\"";
    toy *words = arg;
    token_tree *t = NULL;
    grammar *g = NULL;
    matcher *m = NULL;
    grammar_run r = {0};
    const uint64_t *bits;
    status st = grammar_from_gbnf(&g, gbnf, strlen(gbnf), NULL, e);
    if (!st)
        st = token_tree_open(&t, words->v, e);
    if (!st)
        st = matcher_open(&m, g, t, e);
    if (!st && !(st = grammar_begin(&r, m, e)))
        st = grammar_mask(&r, &bits, NULL, e);
    grammar_end(&r);
    matcher_close(m);
    token_tree_close(t);
    grammar_close(g);
    return st;
}

TEST(grammar_every_allocation_may_fail)
{
    AUTO_PTR(toy_free) toy *words = toy_gemma();
    test_every_allocation(follow_once, words);
}
