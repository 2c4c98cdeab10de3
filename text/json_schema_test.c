/* json_schema_test.c - schemas by what they let through, by what they refuse, and by random texts
 * of theirs, which a plain validator below reads; calls by the parser that will read them. */
#include "text/grammar_int.h"
#include "text/jtree.h"
#include "tests/test.h"
#include "text/gemma4.h"
#include "tests/toy_vocab.h"
#include "base/rng.h"

typedef struct follower {
    grammar *g;
    token_tree *t;
    matcher *m;
} follower;

static token_tree *byte_tree(void)
{
    static char byte[256];
    tree_token tok[257];
    token_tree *t;
    err e = {0};
    for (int i = 0; i < 256; i++) {
        byte[i] = (char)i;
        tok[i] = (tree_token){&byte[i], 1, false};
    }
    tok[256] = (tree_token){NULL, 0, true};
    CHECK_OK(token_tree_build(&t, tok, 257, &e), e);
    return t;
}

static void open_schema(follower *f, const char *schema)
{
    err e = {0};
    status st = grammar_from_schema(&f->g, schema, schema ? strlen(schema) : 0, NULL, &e);
    CHECK_MSG(!st, "%s: %s", schema, e.text);
    f->t = byte_tree();
    CHECK_OK(matcher_open(&f->m, f->g, f->t, &e), e);
}

static void close_all(follower *f)
{
    matcher_close(f->m);
    token_tree_close(f->t);
    grammar_close(f->g);
}

static bool is_text(follower *f, const char *s)
{
    AUTO(grammar_end) grammar_run r;
    err e = {0};
    bool ok, whole;
    CHECK_OK(grammar_begin(&r, f->m, &e), e);
    CHECK_OK(grammar_accept_bytes(&r, s, strlen(s), &ok, &e), e);
    whole = ok && grammar_may_end(&r);
    return whole;
}

#define DATE_ROW "\"2024-02-28\"", "\"1999-12-31\""

static const struct {
    const char *schema, *yes[8], *no[8];
} row[] = {
    {NULL,
     {"{}", "{\"a\": [1, {\"b\": null}]}", "{\n  \"a\": true\n}"},
     {"1", "[]", "{\"a\"}", "{,}"}},
    {"{\"type\":\"string\"}",
     {"\"\"", "\"\xC3\xA9\\n\\u00e9\\ud83d\\ude00<\"", "\"\\/\""},
     {"\"\n\"", "\"\\ud83d\"", "\"\\x\"", "\"\\udc00\\ud800\"", "a", "\"a", "\"\xC3\""}},
    {"{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
     {"\"ab\"", "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"", "\"\\n\\u00e9\"",
      "\"\\ud83d\\ude00x\""},
     {"\"a\"", "\"abcd\"", "\"\""}},
    {"{\"type\":\"integer\"}",
     {"0", "-1", "123456789012345678"},
     {"01", "1.0", "-0", "1e3", "+1", "-"}},
    {"{\"type\":\"integer\",\"minimum\":-5,\"maximum\":123}",
     {"-5", "-1", "0", "9", "99", "100", "119", "123"},
     {"-6", "124", "-10", "200", "1000", "-0", "0123"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":17,\"exclusiveMaximum\":21.0}",
     {"18", "20"},
     {"17", "21", "2", "180"}},
    {"{\"type\":\"integer\",\"minimum\":1000}", {"1000", "1001", "99999"}, {"999", "0", "-1000"}},
    {"{\"type\":\"integer\",\"maximum\":-99}", {"-99", "-100", "-5000"}, {"-98", "0", "99"}},
    {"{\"type\":\"number\"}",
     {"0", "-0.5", "1e5", "1.25E-10", "-0"},
     {"1.", ".5", "1e", "1e999", "00"}},
    {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}",
     {"0", "1", "0.5", "1.0", "1.00", "0.000"},
     {"1.01", "-0.5", "2", "1e-1", "-0"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0}",
     {"0.01", "1", "12.5", "0.1"},
     {"0", "0.0", "0.00", "-1", "0."}},
    {"{\"type\":\"number\",\"minimum\":-2,\"exclusiveMaximum\":3}",
     {"-2", "-2.0", "-1.9", "0", "2.999", "-0.5"},
     {"-2.1", "3", "3.0", "-3"}},
    {"{\"type\":\"integer\",\"multipleOf\":7}",
     {"0", "7", "-14", "1001", "70000007"},
     {"8", "1", "00", "-0", "100", "7.0"}},
    {"{\"type\":\"number\",\"multipleOf\":5,\"minimum\":-7,\"exclusiveMaximum\":10}",
     {"-5", "0", "5"},
     {"-10", "10", "4", "-0"}},
    {"{\"multipleOf\":5}", {"5"}, {"\"a\"", "6", "{}"}},
    {"{\"type\":\"integer\",\"multipleOf\":10,\"minimum\":0}", {"0", "10", "12340"}, {"-10", "5"}},
    {"{\"type\":\"boolean\"}", {"true", "false"}, {"null", "True", "\"true\""}},
    {"{\"type\":[\"string\",\"null\"]}", {"\"a\"", "null"}, {"1", "nul"}},
    {"{\"type\":\"integer\",\"nullable\":true}", {"1", "null"}, {"\"a\""}},
    {"{\"enum\":[\"a\",\"ab\",1,null,[1,{\"x\":2}],\"\\\"\"]}",
     {"\"a\"", "\"ab\"", "1", "null", "[1, {\"x\": 2}]", "\"\\\"\""},
     {"\"b\"", "\"abc\"", "2", "[1]"}},
    {"{\"const\":null}", {"null"}, {"\"\"", "true"}},
    {"{\"type\":\"string\",\"enum\":[\"a\",1]}", {"\"a\""}, {"1"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
     "\"boolean\"},"
     "\"c\":{}},\"required\":[\"b\"]}",
     {"{\"b\":true}", "{\"a\":1,\"b\":true}", "{\"a\": 1, \"b\": true, \"c\": [\"x\"]}",
      "{\n  \"b\": false,\n  \"c\": {\"z\": 1}\n}"},
     {"{}", "{\"a\":1}", "{\"b\":true,\"a\":1}", "{\"b\":true,}", "{\"b\":true,\"d\":1}",
      "{,\"b\":true}", "{\"a\":1\"b\":true}"}},
    {"{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"integer\"}},"
     "\"additionalProperties\":{\"type\":\"string\"}}",
     {"{}", "{\"a\":1}", "{\"b\":2}", "{\"a\":1,\"b\":2,\"c\":\"x\"}", "{\"ab\":\"x\",\"\":\"y\"}",
      "{\"b\":2,\"ba\":\"\",\"c\\n\":\"\"}"},
     {"{\"a\":\"x\"}", "{\"b\":1,\"a\":\"1\"}", "{\"\\u0061\":\"x\"}", "{\"c\":1}",
      "{\"b\":1,\"b\":\"\"}"}},
    {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"},\"maxProperties\":2}",
     {"{}", "{\"x\":1}", "{\"x\":1,\"y\":2}"},
     {"{\"x\":1,\"y\":2,\"z\":3}", "{\"x\":\"\"}"}},
    {"{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}",
     {"{}", "{ }"},
     {"{\"a\":1}"}},
    {"{\"properties\":{\"a\":false},\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{}", "{\"b\":1}"},
     {"{\"a\":1}"}},
    {"{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"b\"]}",
     {"{\"b\":[]}", "{\"a\":1,\"b\":null}"},
     {"{}", "{\"a\":1}"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,\"maxItems\":3}",
     {"[1,2]", "[1, 2, 3]", "[\n1,\n2\n]"},
     {"[]", "[1]", "[1,2,3,4]", "[1,]", "[1 2]"}},
    {"{\"type\":\"array\",\"items\":{\"enum\":[1]},\"maxItems\":0}", {"[]"}, {"[1]"}},
    {"{\"type\":\"array\",\"items\":{\"enum\":[1]},\"minItems\":300}", {NULL}, {"[]", "[1,1,1]"}},
    {"{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":{\"type\":\"null\"}"
     ","
     "\"minItems\":1}",
     {"[1]", "[1,\"a\"]", "[1,\"a\",null,null]"},
     {"[]", "[\"a\"]", "[1,null]", "[1,\"a\",1]"}},
    {"{\"prefixItems\":[{\"type\":\"integer\"}],\"items\":false}", {"[]", "[1]"}, {"[1,1]"}},
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1}]}",
     {"1", "\"a\""},
     {"\"ab\"", "null"}},
    {"{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"},\"x\":{\"type\":"
     "\"integer\"}},\"required\":[\"k\"]},{\"type\":\"object\",\"properties\":{\"k\":{\"const\":"
     "\"b\"},"
     "\"y\":{\"type\":\"string\"}},\"required\":[\"k\",\"y\"]}]}",
     {"{\"k\":\"a\"}", "{\"k\":\"a\",\"x\":1}", "{\"k\":\"b\",\"y\":\"\"}"},
     {"{\"k\":\"b\"}", "{\"k\":\"a\",\"y\":\"\"}", "{}"}},
    {"{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},{\"$ref\":"
     "\"#/$defs/"
     "b\"}],\"$defs\":{\"b\":{\"type\":\"object\",\"properties\":{\"b\":{\"type\":\"null\"}}}}}",
     {"{\"a\":1}", "{\"a\":1,\"b\":null}"},
     {"{}", "{\"b\":null}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
     "\"integer\"}},"
     "\"anyOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
     {"{\"a\":1}", "{\"b\":1}", "{\"a\":1,\"b\":1}"},
     {"{}"}},
    {"{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":"
     "{"
     "\"anyOf\":[{\"$ref\":\"#/$defs/"
     "n\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"]}},\"$ref\":"
     "\"#/$defs/n\"}",
     {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"},
     {"{\"v\":1}", "{\"v\":1,\"next\":{}}"}},
    {"{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", {"[]", "[[],[[]]]"}, {"[1]", "[[]"}},
    {"true", {"1", "{}", "[null]", "\"x\""}, {"", "x"}},
    {"{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}-\\\\d+$\"}",
     {"\"AB-1\"", "\"ZZ-0123\""},
     {"\"A-1\"", "\"AB-\"", "\"xAB-1\""}},
    {"{\"type\":\"string\",\"pattern\":\"^\\\\x4a\\\\x4B\\\\u00e9\\\\x39[\\\\x2d-9]$\"}",
     {"\"JK\u00e99-\"", "\"JK\u00e995\""},
     {"\"JK\u00e99,\"", "\"KK\u00e99-\"", "\"jk\u00e99-\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[a-][-c][d-f]$\"}",
     {"\"a-d\"", "\"-cf\"", "\"-ce\""},
     {"\"b-d\"", "\"abd\"", "\"a--\""}},
    {"{\"type\":\"string\",\"pattern\":\"b+|^c\"}",
     {"\"b\"", "\"abba\"", "\"cx\""},
     {"\"a\"", "\"xc\"", "\"\""}},
    {"{\"type\":\"string\",\"pattern\":\"^(?:a|\\\\\\\\|\\\"|\\\\n)*?[^x]$\"}",
     {"\"a\\\\\\\"\\ny\"", "\"\\n\"", "\"\xC3\xA9\""},
     {"\"x\"", "\"ab\\u000ay\"", "\"\""}},
    {"{\"type\":\"string\",\"format\":\"date\"}",
     {DATE_ROW},
     {"\"2024-02-30\"", "\"2024-13-01\"", "\"24-01-01\""}},
    {"{\"type\":\"string\",\"format\":\"date-time\"}",
     {"\"2024-01-31T23:59:59Z\"", "\"2024-01-31T00:00:00.5+02:00\""},
     {"\"2024-01-31\"", "\"2024-01-31T24:00:00Z\"", "\"2024-01-31T23:59:59\""}},
    {"{\"type\":\"string\",\"format\":\"uuid\"}",
     {"\"123e4567-e89b-12d3-a456-426614174000\""},
     {"\"123e4567e89b12d3a456426614174000\"", "\"x\""}},
    {"{\"type\":\"string\",\"format\":\"ipv4\"}",
     {"\"0.0.0.0\"", "\"255.10.1.99\""},
     {"\"256.1.1.1\"", "\"1.1.1\""}},
    {"{\"type\":\"string\",\"format\":\"email\"}", {"\"a.b@c.de\""}, {"\"a@b\"", "\"@c.de\""}},
    {"{\"type\":\"string\",\"format\":\"date\",\"maxLength\":10}", {DATE_ROW}, {"\"2024-1-1\""}},
    {"{\"type\":\"string\",\"format\":\"email\",\"maxLength\":8}",
     {"\"ab@cd.ef\"", "\"a@b.cd\""},
     {"\"anything\"", "\"abcd@e.fg\"", "\"abcdef@g\""}},
    {"{\"type\":\"string\",\"format\":\"email\",\"maxLength\":254}",
     {"\"anna_b@example.com\""},
     {"\"anything\"", "\"@b.cd\""}},
    {"{\"type\":\"string\",\"format\":\"email\",\"minLength\":9}",
     {"\"abcd@e.fg\"", "\"abcdefghijklmnop@example.com\""},
     {"\"abc@d.ef\"", "\"anything at all\""}},
    {"{\"type\":\"string\",\"format\":\"uri\",\"minLength\":1,\"maxLength\":2083}",
     {"\"https://www.example.com/b/c.d?e=1\"", "\"ftp://x\""},
     {"\"a.example\"", "\"https://\"", "\"http://a b\""}},
    {"{\"type\":\"string\",\"format\":\"uri\",\"minLength\":12,\"maxLength\":12}",
     {"\"a://b/678901\""},
     {"\"a://b/67890\"", "\"a://b/6789012\"", "\"anything at a\""}},
    {"{\"anyOf\":[{\"not\":{}},{\"type\":\"null\"}]}", {"null"}, {"1", "{}"}},
    {"{\"type\":\"object\",\"propertyNames\":{\"type\":\"string\"},\"patternProperties\":{},"
     "\"additionalProperties\":{}}",
     {"{}", "{\"a\":1}"},
     {"[]"}},
    {"{\"type\":\"string\",\"format\":\"uri\"}",
     {"\"https://a.example:8080/b/c.d?e=%20#f\"", "\"ftp://x\""},
     {"\"a.example\"", "\"https://\"", "\"http://a b\"", "\"http://a/%2\""}},
    {"{\"type\":\"string\",\"format\":\"uri-of-some-kind\"}", {"\"anything\""}, {"1"}},
};

TEST(schema_lets_through_what_is_valid)
{
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        follower f;
        open_schema(&f, row[i].schema);
        for (int k = 0; k < 8; k++) {
            if (row[i].yes[k])
                CHECK_MSG(is_text(&f, row[i].yes[k]), "%s: %s", row[i].schema, row[i].yes[k]);
            if (row[i].no[k])
                CHECK_MSG(!is_text(&f, row[i].no[k]), "%s: %s", row[i].schema, row[i].no[k]);
        }
        close_all(&f);
    }
}

TEST(schema_refuses_by_name)
{
    static const struct {
        const char *schema;
        status st;
        const char *says;
    } bad[] = {
        {"", E_FORMAT, "the schema"},
        {"{", E_FORMAT, "the schema"},
        {"3", E_FORMAT, "where a schema (an object) must be"},
        {"false", E_FORMAT, "matches no text at all"},
        {"{\"not\":{\"type\":\"null\"}}", E_UNSUPPORTED, "at its root: not is not supported"},
        {"{\"not\":{}}", E_FORMAT, "matches no text at all"},
        {"{\"propertyNames\":{\"maxLength\":3}}", E_UNSUPPORTED, "propertyNames"},
        {"{\"pattern\":\"a\",\"minLength\":3}", E_UNSUPPORTED, "pattern together with minLength"},
        {"{\"properties\":{\"a\":{\"type\":\"number\",\"multipleOf\":0.5}}}", E_UNSUPPORTED,
         "at /properties/a: multipleOf is supported for whole"},
        {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":1,\"maximum\":6}", E_FORMAT,
         "no number is within"},
        {"{\"type\":\"integer\",\"multipleOf\":101}", E_LIMIT, "multipleOf leaves more"},
        {"{\"type\":\"array\",\"uniqueItems\":true}", E_UNSUPPORTED, "uniqueItems"},
        {"{\"patternProperties\":{\"a\":{}}}", E_UNSUPPORTED, "patternProperties"},
        {"{\"type\":\"strin\"}", E_FORMAT, "type must be"},
        {"{\"type\":\"number\",\"minimum\":0.5}", E_UNSUPPORTED, "minimum is supported at whole"},
        {"{\"type\":\"integer\",\"minimum\":\"1\"}", E_FORMAT, "minimum must be a number"},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", E_FORMAT, "no number is within"},
        {"{\"type\":\"string\",\"minLength\":-1}", E_FORMAT, "minLength must be"},
        {"{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", E_FORMAT, "less than minLength"},
        {"{\"type\":\"string\",\"minLength\":1e9}", E_LIMIT, "minLength is above"},
        {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", E_UNSUPPORTED, "look-around"},
        {"{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", E_UNSUPPORTED, "back references"},
        {"{\"type\":\"string\",\"pattern\":\"a^b\"}", E_UNSUPPORTED, "^ and $"},
        {"{\"type\":\"string\",\"pattern\":\"(a\"}", E_FORMAT, "not closed"},
        {"{\"type\":\"string\",\"pattern\":\"\\\\x4g\"}", E_FORMAT, "too few hexadecimal"},
        {"{\"type\":\"string\",\"pattern\":\"\\\\x/0\"}", E_FORMAT, "too few hexadecimal"},
        {"{\"type\":\"string\",\"pattern\":\"\\\\u12\"}", E_FORMAT, "too few hexadecimal"},
        {"{\"type\":\"string\",\"pattern\":\"[a\"}", E_FORMAT, "closing bracket"},
        {"{\"type\":\"string\",\"pattern\":\"[a-\"}", E_FORMAT, "closing bracket"},
        {"{\"type\":\"string\",\"pattern\":\"[c-a]\"}", E_FORMAT, "before its beginning"},
        {"{\"type\":\"string\",\"pattern\":\"[a-\\\\d]\"}", E_FORMAT, "ends in a class"},
        {"{\"type\":\"string\",\"pattern\":\"a)\"}", E_FORMAT, "too many"},
        {"{\"type\":\"string\",\"pattern\":\"*\"}", E_FORMAT, "repetition of nothing"},
        {"{\"type\":\"string\",\"pattern\":\"^[ab]*a[ab]{18}$\"}", E_LIMIT, "too complex"},
        {"{\"$ref\":\"#/$defs/x\"}", E_FORMAT, "refers to nothing"},
        {"{\"$ref\":\"http://x/y\"}", E_UNSUPPORTED, "is not supported"},
        {"{\"$ref\":\"#\"}", E_FORMAT, "circle"},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", E_UNSUPPORTED,
         "oneOf is supported only if"},
        {"{\"required\":[\"a\"],\"additionalProperties\":false}", E_FORMAT, "required names a"},
        {"{\"type\":\"string\",\"enum\":[1]}", E_FORMAT, "no value of enum"},
        {"{\"enum\":[\"ab\"],\"minLength\":5}", E_UNSUPPORTED, "minLength beside enum"},
        {"{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", E_UNSUPPORTED, "pattern is said"},
        {"{\"type\":\"array\",\"items\":[{}]}", E_UNSUPPORTED, "prefixItems"},
        {"{\"format\":\"uuid\",\"pattern\":\"^u[0-9]$\"}", E_UNSUPPORTED,
         "pattern together with format"},
        {"{\"format\":\"uuid\",\"maxLength\":35}", E_UNSUPPORTED,
         "maxLength 35 together with format"},
        {"{\"format\":\"date-time\",\"minLength\":21}", E_UNSUPPORTED, "minLength 21 together"},
        {"{\"format\":\"email\",\"maxLength\":5}", E_UNSUPPORTED, "maxLength 5 together"},
        {"{\"format\":\"uri\",\"minLength\":9,\"maxLength\":8}", E_FORMAT, "less than minLength"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        grammar *g;
        err e = {0};
        status st = grammar_from_schema(&g, bad[i].schema, strlen(bad[i].schema), NULL, &e);
        CHECK_MSG(st == bad[i].st && strstr(e.text, bad[i].says) && !g, "%s: %s: %s", bad[i].schema,
                  carat_status_name(st), e.text);
    }
}

/* ---- Random texts ---- */

/* Any text of the grammar: tokens drawn among those allowed, ends and closers more often. */
static bool random_text(follower *f, str *out, int32_t max, uint64_t *rng)
{
    AUTO(grammar_end) grammar_run r;
    err e = {0};
    bool ok;
    CHECK_OK(grammar_begin(&r, f->m, &e), e);
    while (!grammar_must_end(&r) && out->n < (size_t)max) {
        const uint64_t *bits;
        int32_t n, pick, id = -1;
        CHECK_OK(grammar_mask(&r, &bits, &n, &e), e);
        if (grammar_may_end(&r) && !rng_below(rng, 3))
            break;
        pick = (int32_t)rng_below(rng, (uint64_t)n);
        for (int32_t i = 0; i < token_tree_n(f->t); i++)
            if (bits[i >> 6] >> (i & 63) & 1 && pick-- == 0)
                id = i;
        for (const char *c = "\"}]"; *c && rng_below(rng, 2); c++)
            if (bits[*c >> 6] >> (*c & 63) & 1)
                id = *c;
        CHECK_OK(grammar_accept(&r, id, &ok, &e), e);
        CHECK(ok);
        if (id < 256)
            str_putc(out, (char)id);
        else
            break;
    }
    bool whole = grammar_may_end(&r);
    return whole;
}

/* A validator of the keywords in the schemas below, plain. */
static bool valid(const jtree *root, const jtree *s, const jtree *v);

static int64_t characters(const jtree *v)
{
    int64_t n = 0;
    for (size_t i = 0; i < v->n; i++)
        n += ((unsigned char)v->s[i] & 0xC0) != 0x80;
    return n;
}

static bool valid_type(const char *t, const jtree *v)
{
    switch (v->kind) {
    case JTREE_NULL:
        return !strcmp(t, "null");
    case JTREE_FALSE:
    case JTREE_TRUE:
        return !strcmp(t, "boolean");
    case JTREE_INTEGER:
        return !strcmp(t, "integer") || !strcmp(t, "number");
    case JTREE_REAL:
        return !strcmp(t, "number");
    case JTREE_STRING:
        return !strcmp(t, "string");
    case JTREE_ARRAY:
        return !strcmp(t, "array");
    default:
        return !strcmp(t, "object");
    }
}

static bool valid_members(const jtree *root, const jtree *s, const jtree *v)
{
    const jtree *p = jtree_get(s, "properties"), *more = jtree_get(s, "additionalProperties");
    const jtree *r = jtree_get(s, "required");
    for (const jtree *x = v->first; x; x = x->next) {
        const jtree *of = p ? jtree_get(p, x->key) : NULL;
        if (of ? !valid(root, of, x)
               : jtree_is(more, JTREE_FALSE) || (more && !valid(root, more, x)))
            return false;
    }
    for (r = r ? r->first : NULL; r; r = r->next)
        if (!jtree_has(v, r->s))
            return false;
    return true;
}

static bool valid(const jtree *root, const jtree *s, const jtree *v)
{
    const jtree *x, *n;
    if (s->kind == JTREE_TRUE)
        return true;
    if (jtree_get(s, "$ref")) {
        s = jtree_get(jtree_get(root, "$defs"), jtree_get(s, "$ref")->s + 8);
        return valid(root, s, v);
    }
    if ((x = jtree_get(s, "anyOf"))) {
        for (x = x->first; x && !valid(root, x, v); x = x->next)
            ;
        return x;
    }
    if ((x = jtree_get(s, "type")) && !valid_type(x->s, v))
        return false;
    if ((x = jtree_get(s, "enum"))) {
        for (x = x->first; x && (x->kind != v->kind || strcmp(x->s, v->s)); x = x->next)
            ;
        return x;
    }
    if ((n = jtree_get(s, "minLength")) && characters(v) < atoi(n->s))
        return false;
    if ((n = jtree_get(s, "maxLength")) && characters(v) > atoi(n->s))
        return false;
    if ((n = jtree_get(s, "minimum")) && strtod(v->s, NULL) < atoi(n->s))
        return false;
    if ((n = jtree_get(s, "maximum")) && strtod(v->s, NULL) > atoi(n->s))
        return false;
    if ((n = jtree_get(s, "minItems")) && (int)v->count < atoi(n->s))
        return false;
    if ((n = jtree_get(s, "maxItems")) && (int)v->count > atoi(n->s))
        return false;
    if ((x = jtree_get(s, "items")))
        for (const jtree *i = v->first; i; i = i->next)
            if (!valid(root, x, i))
                return false;
    return v->kind != JTREE_OBJECT || valid_members(root, s, v);
}

static const char *const samples[] = {
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":1,"
    "\"maxLength\":12},\"age\":{\"type\":\"integer\",\"minimum\":-30,\"maximum\":4711},\"tags\":{"
    "\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\\n\",\"\\\"\"]},\"minItems\":1,\"maxItems\":"
    "4}},"
    "\"required\":[\"name\",\"tags\"],\"additionalProperties\":false}",
    "{\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"l\":{\"anyOf\":[{\"type\":"
    "\"null\"},{"
    "\"$ref\":\"#/$defs/"
    "node\"}]},\"v\":{\"type\":\"number\",\"minimum\":-3,\"maximum\":12}},\"required\":["
    "\"l\"]}},\"$ref\":\"#/$defs/node\"}",
    "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"ab\":{\"type\":"
    "\"boolean\"}},"
    "\"additionalProperties\":{\"type\":\"string\",\"maxLength\":3}}",
    "{\"anyOf\":[{\"type\":\"integer\",\"minimum\":95,\"maximum\":1205},{\"type\":\"array\","
    "\"items\":{"
    "\"type\":\"string\"},\"maxItems\":2},{\"type\":\"number\",\"minimum\":-7,\"maximum\":-1}]}",
    "true",
    "{\"type\":\"object\"}",
};

TEST(schema_texts_are_valid)
{
    uint64_t rng = test_seed();
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        follower f;
        arena mem = {0};
        err e = {0};
        const jtree *s, *v;
        int n_whole = 0;
        open_schema(&f, samples[i]);
        CHECK_OK(jtree_parse(samples[i], strlen(samples[i]), "s", 64, &mem, &s, &e), e);
        for (int k = 0; k < 600; k++) {
            AUTO(str_free) str text = {0};
            if (random_text(&f, &text, 3000, &rng)) {
                n_whole++;
                status st = jtree_parse(str_text(&text), text.n, "a text", 300, &mem, &v, &e);
                CHECK_MSG(!st, "%s: %s: %s", samples[i], str_text(&text), e.text);
                CHECK_MSG(valid(s, s, v), "%s: %s", samples[i], str_text(&text));
            }
        }
        CHECK_MSG(n_whole > 300, "%s: %d whole", samples[i], n_whole);
        arena_free(&mem);
        close_all(&f);
    }
}

/* ---- Calls ---- */

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"strict\":true,\"parameters\":"
    "{"
    "\"type\":\"object\",\"properties\":{\"unit\":{\"enum\":[\"C\",\"F\"]},\"city\":{\"type\":"
    "\"string\"},"
    "\"days\":{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":14}}},"
    "\"required\":[\"city\"]}}},{\"type\":\"function\",\"function\":{\"name\":\"note\"}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"ping\",\"strict\":true}}]";

static grammar_setting how; /* every test is a process */

static const grammar_setting *gemma_setting(void)
{
    how.answer = gemma4_text.answer;
    return &how;
}

static void open_tools(follower *f, const grammar_tools *o, const vocab *v)
{
    err e = {0};
    CHECK_OK(grammar_from_tools(&f->g, o, gemma_setting(), &e), e);
    CHECK_OK(token_tree_open(&f->t, v, &e), e);
    CHECK_OK(matcher_open(&f->m, f->g, f->t, &e), e);
}

/* Follows text, in which markers are spelled, as tokens. */
static bool follows(follower *f, const vocab *v, const char *text)
{
    AUTO(id_list_free) id_list ids = {0};
    err e = {0};
    AUTO(grammar_end) grammar_run r;
    bool ok = true;
    CHECK_OK(vocab_encode(v, text, strlen(text), SPECIAL_ALL, &ids, &e), e);
    CHECK_OK(grammar_begin(&r, f->m, &e), e);
    for (int64_t i = 0; i < ids.n && ok; i++)
        CHECK_OK(grammar_accept(&r, ids.at[i], &ok, &e), e);
    ok = ok && grammar_may_end(&r);
    return ok;
}

#define Q "<|\"|>"
#define CALL(x) "<|tool_call>call:" x "<tool_call|>"

TEST(tool_grammar_says_how_calls_look)
{
    AUTO_PTR(toy_free) toy *words = toy_gemma();
    err e = {0};
    follower f;
    grammar_tools o = {.tools = tools, .n_tools = sizeof tools - 1, .calls = CALLS_MAY};
    static const char *const yes[] = {
        "",
        "Hello <b>",
        CALL("ping{}"),
        "I ask." CALL("get_weather{city:" Q "Rome" Q "}"),
        CALL("get_weather{city:" Q "a{b}:\"<|x" Q ",days:[1,14],unit:" Q "C" Q "}"),
        CALL("note{}") CALL("note{x:[" Q Q ",{y:null}],z:-1.5}")};
    static const char *const no[] = {CALL("get_weather{}"),
                                     CALL("nothing{}"),
                                     CALL("ping{a:1}"),
                                     CALL("get_weather{city:" Q "Rome" Q ",days:[15]}"),
                                     CALL("get_weather{unit:" Q "C" Q ",city:" Q "Rome" Q "}"),
                                     CALL("get_weather{city:\"Rome\"}"),
                                     "<|tool_call>call:ping{}",
                                     CALL("ping{}") "then"};
    open_tools(&f, &o, words->v);
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        CHECK_MSG(follows(&f, words->v, yes[i]), "%s", yes[i]);
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        CHECK_MSG(!follows(&f, words->v, no[i]), "%s", no[i]);
    close_all(&f);
    o.schema = "{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]}";
    o.n_schema = strlen(o.schema);
    open_tools(&f, &o, words->v);
    CHECK(follows(&f, words->v, "{\"a\":1}") &&
          follows(&f, words->v, CALL("ping{}") CALL("ping{}")));
    CHECK(!follows(&f, words->v, "Hello") && !follows(&f, words->v, "{\"a\":1}" CALL("ping{}")));
    CHECK(!follows(&f, words->v, "{\"a\":2}") && !follows(&f, words->v, ""));
    close_all(&f);
    o.schema = NULL;
    o.calls = CALLS_MUST;
    o.one = true;
    o.only = "ping";
    open_tools(&f, &o, words->v);
    CHECK(follows(&f, words->v, CALL("ping{}")));
    CHECK(!follows(&f, words->v, "") && !follows(&f, words->v, CALL("note{}")));
    CHECK(!follows(&f, words->v, CALL("ping{}") CALL("ping{}")));
    CHECK(!follows(&f, words->v, "<|channel>thought\nx<channel|>" CALL("ping{}")));
    close_all(&f);
    how.thought = THOUGHT_MAY;
    open_tools(&f, &o, words->v);
    CHECK(follows(&f, words->v, CALL("ping{}")));
    CHECK(follows(&f, words->v, "<|channel>thought\nx < y<channel|>" CALL("ping{}")));
    close_all(&f);
    how.thought = THOUGHT_INSIDE;
    open_tools(&f, &o, words->v);
    CHECK(!follows(&f, words->v, CALL("ping{}")));
    CHECK(follows(&f, words->v, "hm<channel|>" CALL("ping{}")));
    close_all(&f);
    o.only = "nobody";
    CHECK_STATUS(grammar_from_tools(&f.g, &o, gemma_setting(), &e), E_FORMAT);
    CHECK(strstr(e.text, "tool_choice names nobody"));
}

/* Random calls are read without repair, and their arguments are valid. */
TEST(tool_grammar_calls_are_read_strictly)
{
    AUTO_PTR(toy_free) toy *words = toy_gemma();
    err e = {0};
    follower f;
    uint64_t rng = test_seed();
    int n_read = 0;
    grammar_tools o = {
        .tools = tools, .n_tools = sizeof tools - 1, .calls = CALLS_MUST, .one = true};
    int32_t quote = vocab_find(words->v, Q, 5);
    open_tools(&f, &o, words->v);
    for (int k = 0; k < 500; k++) {
        AUTO(grammar_end) grammar_run r;
        AUTO(str_free) str text = {0}, name = {0}, arguments = {0};
        bool ok;
        CHECK_OK(grammar_begin(&r, f.m, &e), e);
        while (!grammar_may_end(&r) && text.n < 4000) {
            const uint64_t *bits;
            size_t n;
            int32_t count, pick, id = -1;
            CHECK_OK(grammar_mask(&r, &bits, &count, &e), e);
            pick = (int32_t)rng_below(&rng, (uint64_t)count);
            for (int32_t i = 0; i < token_tree_n(f.t); i++)
                if (bits[i >> 6] >> (i & 63) & 1 && pick-- == 0)
                    id = i;
            if (bits[quote >> 6] >> (quote & 63) & 1 && !rng_below(&rng, 6))
                id = quote;
            CHECK_OK(grammar_accept(&r, id, &ok, &e), e);
            CHECK(ok);
            const char *s = vocab_text(words->v, id, true, &n);
            str_put(&text, s, n);
        }
        if (grammar_may_end(&r)) {
            size_t open = strlen("<|tool_call>"), shut = strlen("<tool_call|>");
            const jtree *v;
            AUTO(arena_free) arena mem = {0};
            size_t n_bytes;
            const call_text call = {.s = text.at + open, .n = text.n - open - shut};
            CHECK(gemma_read_call(&call, &name, &arguments, &n_bytes));
            CHECK_OK(jtree_parse(arguments.at, arguments.n, "x", 300, &mem, &v, &e), e);
            if (!strcmp(name.at, "get_weather"))
                CHECK(jtree_is(jtree_get(v, "city"), JTREE_STRING));
            n_read++;
        }
    }
    CHECK_MSG(n_read > 250, "%d", n_read);
    close_all(&f);
}

static status compile_all(void *arg, err *e)
{
    const grammar_setting may = {.answer = gemma4_text.answer, .thought = THOUGHT_MAY};
    (void)arg;
    grammar *g = NULL;
    status st = grammar_from_schema(&g, samples[0], strlen(samples[0]), &may, e);
    grammar_close(g);
    if (!st)
        st = grammar_from_schema(&g, samples[2], strlen(samples[2]), NULL, e);
    if (st)
        return st;
    grammar_close(g);
    grammar_tools o = {.tools = tools, .n_tools = sizeof tools - 1};
    st = grammar_from_tools(&g, &o, gemma_setting(), e);
    grammar_close(g);
    return st;
}

TEST(schema_every_allocation_may_fail)
{
    test_every_allocation(compile_all, NULL);
}

static bool cancel_at(void *user)
{
    int *left = user;
    return --*left == 0;
}

/* 244 KB with 12,000 branches of 2,000 values each: compiling all of it takes 20 seconds. */
TEST(schema_compilation_has_a_budget_and_can_be_cancelled)
{
    AUTO(str_free) str s = {0};
    char word[40];
    grammar *g;
    err e = {0};
    int asked = 0;
    grammar_setting setting = {.cancelled = cancel_at, .user = &asked};
    str_puts(&s, "{\"a\":{\"enum\":[\"v\"");
    for (int i = 0; i < 2000; i++) {
        snprintf(word, sizeof word, ",\"v%d\"", i);
        str_puts(&s, word);
    }
    str_puts(&s, "]},\"type\":\"string\",\"anyOf\":[true");
    for (int i = 0; i < 12000; i++)
        str_puts(&s, ",{\"$ref\":\"#/a\",\"x\":1}");
    str_puts(&s, "]}");
    CHECK_STATUS(grammar_from_schema(&g, s.at, s.n, &setting, &e), E_LIMIT);
    CHECK_MSG(strstr(e.text, "more than 16777216 steps"), "%s", e.text);
    CHECK(asked < -1000); /* a thousand times and more in about a second */
    asked = 100;
    e = (err){0};
    CHECK_STATUS(grammar_from_schema(&g, s.at, s.n, &setting, &e), E_CANCELLED);
    CHECK_EQ(asked, 0); /* and never again */
}
