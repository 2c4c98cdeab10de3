/* formats.c - the formats of keys and values, and their names in options.
 *
 * A format is a number format with or without rotation before encoding (num/tq3.c says what
 * rotation is for). Parsing knows no model: kv_layout_init refuses rules for layers that do not
 * exist.
 */
#include "kv/kv.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const num_type types[] = {NUM_F32,  NUM_F16,  NUM_BF16, NUM_Q8_0,   NUM_Q5_1,
                                 NUM_Q5_0, NUM_Q4_1, NUM_Q4_0, NUM_IQ4_NL, NUM_TQ3_0};
enum { N_TYPES = sizeof types / sizeof *types, NAME_MAX_SHOWN = 40 };

static const char list[] = "f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl or tq3_0";

/* "f16", "q8_0", "q4_0+rot". E_UNSUPPORTED: unknown, or a format of weights only. */
static status parse_format(const char *name, size_t n, kv_format *f, err *e)
{
    static const char suffix[] = "+rot";
    size_t tail = sizeof suffix - 1, stem = n;
    bool rot = n > tail && !strncasecmp(name + n - tail, suffix, tail);
    if (rot)
        stem -= tail;
    int shown = (int)(n < NAME_MAX_SHOWN ? n : NAME_MAX_SHOWN);
    for (int i = 0; i < N_TYPES; i++) {
        const num_format *t = num_format_of(types[i]);
        if (strlen(t->name) != stem || strncasecmp(t->name, name, stem) != 0)
            continue;
        if (rot && t->block_n == 1)
            return err_set(e, E_UNSUPPORTED,
                           "'%.*s': only formats in blocks can be rotated, and %s is not one",
                           shown, name, t->name);
        *f = (kv_format){types[i], rot || types[i] == NUM_TQ3_0};
        return OK;
    }
    return err_set(e, E_UNSUPPORTED, "'%.*s' is no type for keys and values: expected %s", shown,
                   name, list);
}

const char *kv_format_name(kv_format f, char *buf, size_t cap)
{
    bool said = f.type == NUM_TQ3_0; /* TQ3_0 is always rotated: not said */
    snprintf(buf, cap, "%s%s", num_name(f.type), f.rot && !said ? "+rot" : "");
    return buf;
}

/* "17": digits only, below a bound beyond all models. */
static bool parse_layer(const char *text, size_t n, int32_t *layer)
{
    int32_t x = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9' || x > 99999)
            return false;
        x = x * 10 + (text[i] - '0');
    }
    if (n)
        *layer = x;
    return n > 0;
}

static bool parse_spec(const char *text, size_t n, kv_rule *r)
{
    const char *dash = memchr(text, '-', n);
    size_t first = dash ? (size_t)(dash - text) : n;
    kv_rule x = {.layers = KV_RULE_LAYERS};
    if (n == 6 && !strncasecmp(text, "global", n))
        x.layers = KV_RULE_GLOBAL;
    else if (n == 3 && !strncasecmp(text, "swa", n))
        x.layers = KV_RULE_WINDOW;
    else if (!parse_layer(text, first, &x.first))
        return false;
    else if (!dash)
        x.last = x.first;
    else if (!parse_layer(dash + 1, n - first - 1, &x.last) || x.first > x.last)
        return false;
    *r = x;
    return true;
}

/* One "SPEC=TYPE" of n bytes. */
static status parse_rule(const char *text, size_t n, kv_rule *r, err *e)
{
    const char *eq = memchr(text, '=', n);
    status st;
    if (!eq || !parse_spec(text, (size_t)(eq - text), r))
        return err_set(e, E_ARG,
                       "'%.*s': expected SPEC=TYPE, where SPEC is global, swa, a layer or "
                       "first-last",
                       (int)(n < NAME_MAX_SHOWN ? n : NAME_MAX_SHOWN), text);
    const char *type = eq + 1;
    size_t n_type = n - (size_t)(type - text);
    const char *slash = memchr(type, '/', n_type);
    size_t n_k = slash ? (size_t)(slash - type) : n_type;
    if ((st = parse_format(type, n_k, &r->k, e)))
        return st;
    r->v = r->k;
    return slash ? parse_format(slash + 1, n_type - n_k - 1, &r->v, e) : OK;
}

static status parse_rules(kv_choice *c, const char *text, err *e)
{
    status st;
    for (const char *at = text;; at++) {
        size_t n = strcspn(at, ",");
        if (c->n_rules == KV_RULES_MAX)
            return err_set(e, E_LIMIT, "--kv-layer has more than %d entries", KV_RULES_MAX);
        if ((st = parse_rule(at, n, &c->rule[c->n_rules++], e)))
            return st;
        at += n;
        if (!*at)
            return OK;
    }
}

status kv_choice_parse(kv_choice *out, const kv_words *w, err *e)
{
    static const char *const singles[] = {"auto", "on", "off"};
    kv_choice c = {.k = {NUM_F16, false}};
    status st;
    if (w->k && (st = parse_format(w->k, strlen(w->k), &c.k, e)))
        return st;
    c.v = c.k;
    if (w->v && (st = parse_format(w->v, strlen(w->v), &c.v, e)))
        return st;
    for (int i = 0; w->single; i++) {
        if (i == 3)
            return err_set(e, E_ARG, "--kv-single '%.40s': expected on, off or auto", w->single);
        if (!strcmp(w->single, singles[i])) {
            c.single = (kv_single)i;
            break;
        }
    }
    if (w->layers && (st = parse_rules(&c, w->layers, e)))
        return st;
    *out = c;
    return OK;
}
