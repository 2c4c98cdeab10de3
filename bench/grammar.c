/* grammar.c - times grammars: `make bench-grammar`, or build/bench_grammar [REPEATS].
 *
 * The vocabulary is made here: 262144 tokens. About 190000 are words of syllables with and without
 * a space in front, 32000 are characters and words of two- and three-byte characters, 24000 are
 * pieces of code and JSON (quotes, brackets, line ends, indents, joined with letters); the rest are
 * runs of spaces and line ends, digits, and all bytes.
 *
 * For each grammar one of its texts is followed token by token. Each step computes the mask and
 * takes the longest allowed token, as a model that writes this text would. `first`: with a new
 * matcher, as in the first generation; `again`: the same text a second time. Times are processor
 * times of this thread, in microseconds; `compile` and `open` happen once per generation.
 */
#include "text/grammar_int.h"
#include "base/mem.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N_TOKENS = 262144, MAX_STEPS = 4096 };

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* ---- A vocabulary ---- */

static void put_syllable(uint64_t *rng, str *s)
{
    static const char onset[] = "bcdfghjklmnprstvwz", vowel[] = "aeiou", coda[] = "nrstl";
    str_putc(s, onset[rng_below(rng, 18)]);
    str_putc(s, vowel[rng_below(rng, 5)]);
    if (rng_below(rng, 2))
        str_putc(s, coda[rng_below(rng, 5)]);
}

static void word(uint64_t *rng, str *s)
{
    if (rng_below(rng, 2))
        str_putc(s, ' ');
    for (uint64_t n = 1 + rng_below(rng, 4); n > 0; n--)
        put_syllable(rng, s);
    if (!rng_below(rng, 4))
        str_cut(s, s->n - 1);
    if (!rng_below(rng, 6) && s->at[0] >= 'a')
        s->at[0] &= ~32;
}

static void foreign(uint64_t *rng, str *s)
{
    static const int from[] = {0xC3, 0xD0, 0xE0, 0xE4, 0xE5, 0xEC};
    for (uint64_t n = 1 + rng_below(rng, 4); n > 0; n--) {
        int lead = from[rng_below(rng, 6)];
        str_putc(s, (char)lead);
        str_putc(s, (char)(0xA0 + rng_below(rng, 32)));
        if (lead >= 0xE0)
            str_putc(s, (char)(0x80 + rng_below(rng, 64)));
    }
}

static void code(uint64_t *rng, str *s)
{
    static const char *const bit[] = {"\"",   "\",", "\":",  "{\"", "[",    "]",   "}",   "\\n",
                                      "\n",   "\t",  "    ", "<",   ">",    "/",   "();", "\\\"",
                                      ": \"", "_",   "-",    "=",   "\r\n", "\\u", "},",  "</"};
    for (uint64_t n = 1 + rng_below(rng, 3); n > 0; n--) {
        str_puts(s, bit[rng_below(rng, 24)]);
        if (!rng_below(rng, 3))
            put_syllable(rng, s);
    }
}

static token_tree *make_tree(double *us)
{
    str all = {0};
    size_t *at = mem_calloc(N_TOKENS + 1, sizeof *at);
    tree_token *tok = mem_calloc(N_TOKENS, sizeof *tok);
    uint64_t rng = 7;
    token_tree *t = NULL;
    err e = {0};
    for (int i = 0; i < N_TOKENS; i++) {
        str s = {0};
        if (i < 256) {
            str_putc(&s, (char)i);
        } else if (i < 256 + 62) {
            for (int k = 0; k < 1 + (i - 256) / 2; k++)
                str_putc(&s, i % 2 ? ' ' : '\n');
        } else if (i % 11 == 0) {
            code(&rng, &s);
        } else if (i % 8 == 0) {
            foreign(&rng, &s);
        } else {
            word(&rng, &s);
        }
        str_put(&all, s.at, s.n);
        at[i + 1] = all.n;
        str_free(&s);
    }
    for (int i = 0; i < N_TOKENS; i++)
        tok[i] = (tree_token){all.at + at[i], at[i + 1] - at[i], false};
    tok[N_TOKENS - 1] = (tree_token){NULL, 0, true};
    double from = now_us();
    if (token_tree_build(&t, tok, N_TOKENS, &e))
        fprintf(stderr, "%s\n", e.text);
    *us = now_us() - from;
    mem_free(tok);
    mem_free(at);
    str_free(&all);
    return t;
}

/* ---- One text ---- */

typedef struct timing {
    int n;
    double us[MAX_STEPS], accept_us;
} timing;

static int compare_us(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The longest allowed token with which the text continues. */
static int32_t next_token(const token_tree *t, const uint64_t *bits, const char *s, size_t n)
{
    int32_t best = -1;
    size_t depth = 0;
    for (int32_t i = 1; i < t->n_nodes && depth < n;) {
        const tree_node *x = &t->node[i];
        if (x->depth != depth + 1)
            break;
        if (x->byte != (uint8_t)s[depth]) {
            i = (int32_t)x->end;
            continue;
        }
        for (uint32_t k = x->token; k < t->node[i + 1].token; k++)
            if (bits[t->order[k] >> 6] >> (t->order[k] & 63) & 1)
                best = t->order[k];
        depth++;
        i++;
    }
    return best;
}

static bool follow_text(matcher *m, const token_tree *t, const char *s, timing *out)
{
    grammar_run r;
    err e = {0};
    size_t n = strlen(s), at = 0;
    bool ok = true;
    *out = (timing){.n = 0};
    if (grammar_begin(&r, m, &e))
        return false;
    for (;;) {
        const uint64_t *bits;
        double from = now_us();
        if (grammar_mask(&r, &bits, NULL, &e)) {
            fprintf(stderr, "%s\n", e.text);
            ok = false;
            break;
        }
        out->us[out->n++] = now_us() - from;
        if (at == n || out->n == MAX_STEPS)
            break;
        int32_t id = next_token(t, bits, s + at, n - at);
        if (id < 0) {
            fprintf(stderr, "the text leaves the grammar at: %.40s\n", s + at);
            ok = false;
            break;
        }
        from = now_us();
        grammar_accept(&r, id, &ok, &e);
        out->accept_us += now_us() - from;
        at += t->at[id + 1] - t->at[id];
    }
    ok = ok && grammar_may_end(&r);
    grammar_end(&r);
    return ok;
}

static double mean(const timing *t)
{
    double sum = 0;
    for (int i = 0; i < t->n; i++)
        sum += t->us[i];
    return sum / t->n;
}

static void bench(const char *name, const char *source, bool schema, const char *text,
                  const token_tree *t, int repeats)
{
    timing *first = mem_alloc(sizeof *first), *again = mem_alloc(sizeof *again);
    double best[5] = {1e30, 1e30, 1e30, 1e30, 1e30};
    int n = 0, nodes = 0;
    for (int k = 0; k < repeats; k++) {
        grammar *g;
        matcher *m = NULL;
        err e = {0};
        double a = now_us();
        status st = schema ? grammar_from_schema(&g, source, source ? strlen(source) : 0, NULL, &e)
                           : grammar_from_gbnf(&g, source, strlen(source), NULL, &e);
        double b = now_us();
        if (!st)
            st = matcher_open(&m, g, t, &e);
        double c = now_us();
        if (st || !follow_text(m, t, text, first) || !follow_text(m, t, text, again)) {
            fprintf(stderr, "%s: %s\n", name, e.text);
            exit(1);
        }
        qsort(first->us, (size_t)first->n, sizeof *first->us, compare_us);
        double v[] = {b - a, c - b, mean(first), first->us[first->n - 1], mean(again)};
        for (int i = 0; i < 5; i++)
            best[i] = v[i] < best[i] ? v[i] : best[i];
        n = first->n;
        nodes = g->n_nodes;
        matcher_close(m);
        grammar_close(g);
    }
    printf("%-22s %6d %7d %9.0f %7.0f %9.1f %9.1f %9.2f %9.2f\n", name, n, nodes, best[0], best[1],
           best[2], best[3], best[4], again->accept_us / n);
    mem_free(first);
    mem_free(again);
}

static const char person[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":"
    "\"integer\","
    "\"minimum\":0,\"maximum\":150},\"email\":{\"type\":\"string\",\"format\":\"email\"},\"tags\":{"
    "\"type\":"
    "\"array\",\"items\":{\"enum\":[\"red\",\"green\",\"blue\"]}},\"address\":{\"type\":\"object\","
    "\"properties\":{\"street\":{\"type\":\"string\"},\"city\":{\"type\":\"string\",\"maxLength\":"
    "80},"
    "\"since\":{\"type\":\"string\",\"format\":\"date\"}},\"required\":[\"street\",\"city\"]}},"
    "\"required\":["
    "\"name\",\"age\",\"tags\"]}";
static const char person_text[] = "{\"name\": \"Marin Tolaset Benur\", \"age\": 42, \"email\": "
                                  "\"tola@benur.example.org\", \"tags\": "
                                  "[\"red\", \"blue\"], \"address\": {\"street\": \"12 Lorinat "
                                  "Sebenar, second floor\", \"city\": "
                                  "\"Porto Salinas\", \"since\": \"2019-07-01\"}}";
static const char tree[] = "{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":"
                           "\"string\"},\"kids\":{\"type\":"
                           "\"array\",\"items\":{\"$ref\":\"#/$defs/"
                           "n\"}}},\"required\":[\"v\",\"kids\"]}},\"$ref\":\"#/$defs/n\"}";
static const char json_gbnf[] =
    "root ::= object\n"
    "value ::= object | array | string | number | (\"true\" | \"false\" | \"null\") ws\n"
    "object ::= \"{\" ws ( string \":\" ws value (\",\" ws string \":\" ws value)* )? \"}\" ws\n"
    "array ::= \"[\" ws ( value (\",\" ws value)* )? \"]\" ws\n"
    "string ::= \"\\\"\" ( [^\"\\\\\\x7F\\x00-\\x1F] | \"\\\\\" ([\"\\\\bfnrt] | \"u\" "
    "[0-9a-fA-F]{4}) )* \"\\\"\" ws\n"
    "number ::= (\"-\"? ([0-9] | [1-9] [0-9]{0,15})) (\".\" [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws\n"
    "ws ::= | \" \" | \"\\n\" [ \\t]{0,20}\n";

int main(int argc, char **argv)
{
    int repeats = argc > 1 ? atoi(argv[1]) : 9;
    double us;
    token_tree *t = make_tree(&us);
    str deep = {0}, names = {0}, essay = {0};
    for (int i = 0; i < 12; i++)
        str_printf(&deep, "{\"v\": \"Benar %d toles\", \"kids\": [", i);
    for (int i = 0; i < 12; i++)
        str_puts(&deep, "]}");
    str_puts(&names, "{\"type\":\"array\",\"items\":{\"enum\":[");
    for (int i = 0; i < 500; i++)
        str_printf(&names, "%s\"tolas %d benar\"", i ? "," : "", i * 37);
    str_puts(&names, "]}}");
    str_puts(&essay, "\"");
    for (int i = 0; i < 60; i++)
        str_printf(&essay, "Sobenar tolis, %d marin. ", i);
    str_puts(&essay, "\"");
    printf("tree of %d tokens: %d nodes, %.1f MiB, %.0f ms\n\n", N_TOKENS, t->n_nodes,
           (double)token_tree_bytes(t) / 1048576, us / 1e3);
    printf("%-22s %6s %7s %9s %7s %9s %9s %9s %9s\n", "grammar", "masks", "nodes", "compile",
           "open", "first", "worst", "again", "accept");
    bench("any JSON object", NULL, true, person_text, t, repeats);
    bench("schema: person", person, true, person_text, t, repeats);
    bench("schema: tree, 12 deep", tree, true, deep.at, t, repeats);
    bench("schema: 500 names", names.at, true, "[\"tolas 37 benar\", \"tolas 18463 benar\"]", t,
          repeats);
    bench("schema: 2000 letters", "{\"type\":\"string\",\"maxLength\":2000}", true, essay.at, t,
          repeats);
    bench("schema: email", "{\"type\":\"string\",\"format\":\"email\"}", true,
          "\"tola.benur@marin-sol.benar.example.org\"", t, repeats);
    bench("schema: 64 letters", "{\"type\":\"string\",\"pattern\":\"^[a-z0-9_-]{1,64}$\"}", true,
          "\"tolas_benar-marin_42_solis_karin-tolas_benarsol\"", t, repeats);
    bench("GBNF: JSON", json_gbnf, false, person_text, t, repeats);
    bench("GBNF: letters", "root ::= ([a-zA-Z]+ [ ,.\\n]*)+", false,
          "Tolas benar marin, solis. Karin tolas", t, repeats);
    bench("GBNF: ( [^()] )", "root ::= \"(\" ([^()]* | root)* \")\"", false,
          "(tolas (benar (marin) solis) karin (tolas (x)))", t, repeats);
    str_free(&deep);
    str_free(&names);
    str_free(&essay);
    token_tree_close(t);
    return 0;
}
