/* tools_harmony.c - tools as gpt-oss' template shows them: a namespace of TypeScript types.
 *
 *     // DESCRIPTION
 *     type NAME = (_: {
 *     // DESCRIPTION
 *     KEY?: TYPE, // default: VALUE
 *     }) => any;
 *
 * The template's white space is kept, where it is odd, too: models have seen it. A tool without a
 * description has no comment; the template fails there.
 */
#include "text/gpt_oss.h"

#include <string.h>

typedef struct types {
    chat_writer *w;
    str out;
    const char *where; /* the tool, for error messages */
} types;

enum { LONGEST_ITEM = 50 }; /* characters of the type of an item; longer ones are any */

static bool is_word(const jtree *v, const char *word)
{
    return jtree_is(v, JTREE_STRING) && !strcmp(v->s, word);
}

/* A value in a sentence or list: a string as it is, others as Python's str() prints them. */
static void put_plain(types *t, const jtree *v)
{
    static const char *const word[] = {"None", "False", "True"};
    if (v->kind == JTREE_STRING)
        str_put(&t->out, v->s, v->n);
    else if (v->kind <= JTREE_TRUE)
        str_puts(&t->out, word[v->kind]);
    else if (v->kind >= JTREE_ARRAY)
        chat_fail(t->w, E_FORMAT, "%s: a type or an enum has %s, not a word or a number", t->where,
                  jtree_kind_name(v));
    else if (!jtree_put_python_number(&t->out, v))
        chat_fail(t->w, E_FORMAT, "%s: a number is too large for a double", t->where);
}

static void put_joined(types *t, const jtree *list, const char *between)
{
    if (list->kind != JTREE_ARRAY)
        chat_fail(t->w, E_FORMAT, "%s: an enum is %s, not an array", t->where,
                  jtree_kind_name(list));
    for (const jtree *it = list->first; it && !t->w->st; it = it->next) {
        put_plain(t, it);
        str_puts(&t->out, it->next ? between : "");
    }
}

static void put_json(types *t, const jtree *v)
{
    if (!jtree_put_python_json(&t->out, v))
        chat_fail(t->w, E_FORMAT, "%s: a number is too large for a double", t->where);
}

/* "// TEXT" behind `before`, if there is a description. */
static void put_description(types *t, const jtree *of, const char *before, const char *behind)
{
    const jtree *text = jtree_get(of, "description");
    if (!jtree_truthy(text))
        return;
    if (text->kind != JTREE_STRING)
        chat_fail(t->w, E_FORMAT, "%s: a description is %s, not a string", t->where,
                  jtree_kind_name(text));
    str_puts(&t->out, before);
    str_put(&t->out, text->s, text->n);
    str_puts(&t->out, behind);
}

static const jtree *member(const jtree *object, const char *key)
{
    const jtree *it = jtree_is(object, JTREE_OBJECT) ? object->first : NULL;
    while (it && strcmp(it->key, key))
        it = it->next;
    return it; /* which may be null */
}

static bool is_required(const jtree *schema, const jtree *property)
{
    const jtree *list = jtree_get(schema, "required");
    for (const jtree *it = jtree_is(list, JTREE_ARRAY) ? list->first : NULL; it; it = it->next)
        if (it->kind == JTREE_STRING && it->n == property->n_key &&
            !memcmp(it->s, property->key, it->n))
            return true;
    return false;
}

static void put_key(types *t, const jtree *schema, const jtree *property)
{
    str_put(&t->out, property->key, property->n_key);
    str_puts(&t->out, is_required(schema, property) ? ": " : "?: ");
}

static size_t count_chars(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xC0) != 0x80;
    return count;
}

static void put_type(types *t, const jtree *spec);

static void put_array(types *t, const jtree *spec)
{
    const jtree *items = jtree_get(spec, "items");
    size_t at = t->out.n;
    if (jtree_truthy(items))
        put_type(t, items);
    else
        str_puts(&t->out, "any");
    const char *s = str_text(&t->out) + at;
    size_t n = t->out.n - at;
    bool flat = is_word(jtree_get(items, "type"), "string"); /* whatever its enum says */
    bool vague = n == 15 && !memcmp(s, "object | object", n);
    if (flat || vague || count_chars(s, n) > LONGEST_ITEM) {
        str_cut(&t->out, at);
        str_puts(&t->out, flat ? "string" : "any");
    }
    str_puts(&t->out, "[]");
    if (jtree_truthy(jtree_get(spec, "nullable")))
        str_puts(&t->out, " | null");
}

static void put_variants(types *t, const jtree *list)
{
    for (const jtree *v = list->first; v && !t->w->st; v = v->next) {
        const jtree *value = member(v, "default");
        put_type(t, v);
        put_description(t, v, "// ", "");
        if (value) {
            str_puts(&t->out, "                    // default: ");
            put_json(t, value);
        }
        str_puts(&t->out, v->next ? " | \n" : "");
    }
}

static void put_object(types *t, const jtree *spec, const jtree *properties)
{
    str_puts(&t->out, "{\n");
    for (const jtree *p = properties->first; p && !t->w->st; p = p->next) {
        put_key(t, spec, p);
        str_puts(&t->out, "\n                ");
        put_type(t, p);
        str_puts(&t->out, p->next ? ", " : "");
    }
    str_puts(&t->out, "}");
}

static void put_type(types *t, const jtree *spec)
{
    const jtree *type = jtree_get(spec, "type"), *one_of = jtree_get(spec, "oneOf");
    const jtree *choice = jtree_get(spec, "enum"), *map = jtree_get(spec, "properties");
    if (t->w->st)
        return;
    if (is_word(type, "array")) {
        put_array(t, spec);
    } else if (jtree_is(type, JTREE_ARRAY) && type->first) {
        put_joined(t, type, " | ");
    } else if (jtree_is(one_of, JTREE_ARRAY) && one_of->first) {
        put_variants(t, one_of);
    } else if (is_word(type, "string") && jtree_truthy(choice)) {
        str_puts(&t->out, "\"");
        put_joined(t, choice, "\" | \"");
        str_puts(&t->out, "\"");
    } else if (is_word(type, "string")) {
        str_puts(&t->out, jtree_truthy(jtree_get(spec, "nullable")) ? "string | null" : "string");
    } else if (is_word(type, "number") || is_word(type, "integer")) {
        str_puts(&t->out, "number");
    } else if (is_word(type, "boolean")) {
        str_puts(&t->out, "boolean");
    } else if (is_word(type, "object") && jtree_is(map, JTREE_OBJECT) && map->first) {
        put_object(t, spec, map);
    } else {
        str_puts(&t->out, is_word(type, "object") ? "object" : "any");
    }
}

static void put_default(types *t, const jtree *spec)
{
    const jtree *value = member(spec, "default");
    bool listed = jtree_truthy(jtree_get(spec, "enum"));
    bool variants = !listed && jtree_truthy(jtree_get(spec, "oneOf"));
    if (!value)
        return;
    str_puts(&t->out, variants ? "// default: " : ", // default: ");
    if ((listed || variants) && value->kind == JTREE_STRING)
        str_put(&t->out, value->s, value->n);
    else
        put_json(t, value);
}

static void put_tool(types *t, const jtree *f)
{
    const jtree *name = jtree_get(f, "name"), *parameters = jtree_get(f, "parameters");
    const jtree *map = jtree_get(parameters, "properties");
    const jtree *text = jtree_get(f, "description");
    if (text) {
        str_puts(&t->out, "// ");
        str_put(&t->out, text->s, text->n);
        str_puts(&t->out, "\n");
    }
    str_puts(&t->out, "type ");
    str_put(&t->out, name->s, name->n);
    str_puts(&t->out, " = ");
    if (!jtree_is(map, JTREE_OBJECT) || !map->first) {
        str_puts(&t->out, "() => any;\n\n");
        return;
    }
    str_puts(&t->out, "(_: {\n");
    for (const jtree *p = map->first; p && !t->w->st; p = p->next) {
        put_description(t, p, "// ", "\n");
        put_key(t, parameters, p);
        put_type(t, p);
        put_default(t, p);
        str_puts(&t->out, ",\n");
    }
    str_puts(&t->out, "}) => any;\n\n");
}

void harmony_put_tools(chat_writer *w, const jtree *tools)
{
    char where[TALK_WHERE];
    types t = {.w = w, .where = where};
    size_t i = 0;
    chat_lit(w, "## functions\n\nnamespace functions {\n\n");
    for (const jtree *tool = tools->first; tool && !w->st; tool = tool->next, i++) {
        chat_tool_place(tool, i, where);
        const jtree *f = chat_function_of(w, tool, where);
        if (f)
            put_tool(&t, f);
    }
    if (t.out.bad)
        chat_fail(w, E_MEMORY, "no memory for the tools");
    chat_put(w, str_text(&t.out), t.out.n);
    chat_lit(w, "} // namespace functions");
    str_free(&t.out);
}
