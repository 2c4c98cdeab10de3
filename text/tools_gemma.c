/* tools_gemma.c - how Gemma 4 spells tools: values, and the declaration of a function.
 *
 *     declaration:NAME{description:<|"|>...<|"|>,parameters:{properties:{...},required:[...],
 *                      type:<|"|>OBJECT<|"|>}}
 *
 * The code follows each revision of the template member by member. It differs on purpose where the
 * published templates would print text that no model was trained on:
 *   - a schema `type` that is a list is read as its first type other than null, plus nullable;
 *   - a function's parameters or response without a type are objects (the templates omit the
 *     closing brace);
 *   - a property schema that is not an object (JSON Schema allows true and false) is an
 *     empty object.
 */
#include "text/gemma4.h"

#include <string.h>

static void put_quoted(chat_writer *w, const char *s, size_t n)
{
    chat_lit(w, GEMMA_QUOTE);
    chat_put(w, s, n);
    chat_lit(w, GEMMA_QUOTE);
}

static bool has_delimiter(const char *s, size_t n)
{
    return memmem(s, n, GEMMA_QUOTE, sizeof GEMMA_QUOTE - 1) != NULL;
}

static void refuse_delimiter(chat_writer *w, const char *s, size_t n, const char *where)
{
    if (has_delimiter(s, n))
        chat_fail(w, E_FORMAT,
                  "%s: a string contains %s, which ends strings in this model's tool syntax and "
                  "cannot be spelled inside one",
                  where, GEMMA_QUOTE);
}

static void put_tool_number(chat_writer *w, const jtree *v, const char *where)
{
    str s = {0};
    if (!jtree_put_python_number(&s, v))
        chat_fail(w, E_FORMAT, "%s: the number %.40s is too large for a double", where, v->s);
    else if (s.bad)
        chat_fail(w, E_MEMORY, "no memory for a number");
    else
        chat_put(w, s.at, s.n);
    str_free(&s);
}

/* NULL with an error set when there are members and no memory. */
static const jtree **sorted_keys(chat_writer *w, const jtree *object)
{
    const jtree **m = jtree_sorted(object, w->mem);
    if (!m && object->count)
        chat_fail(w, E_MEMORY, "no memory to sort %zu members", object->count);
    return m;
}

void tools_put_value(chat_writer *w, const jtree *v, bool quote_keys, bool check, const char *where)
{
    if (w->st)
        return;
    switch (v->kind) {
    case JTREE_NULL:
        chat_lit(w, w->python ? "None" : "null");
        break;
    case JTREE_FALSE:
        chat_lit(w, "false");
        break;
    case JTREE_TRUE:
        chat_lit(w, "true");
        break;
    case JTREE_INTEGER:
    case JTREE_REAL:
        put_tool_number(w, v, where);
        break;
    case JTREE_STRING:
        if (check)
            refuse_delimiter(w, v->s, v->n, where);
        put_quoted(w, v->s, v->n);
        break;
    case JTREE_ARRAY:
        chat_lit(w, "[");
        for (const jtree *it = v->first; it; it = it->next) {
            tools_put_value(w, it, quote_keys, check, where);
            if (it->next)
                chat_lit(w, ",");
        }
        chat_lit(w, "]");
        break;
    case JTREE_OBJECT: {
        const jtree **m = sorted_keys(w, v);
        chat_lit(w, "{");
        for (size_t i = 0; m && i < v->count; i++) {
            if (i)
                chat_lit(w, ",");
            if (check)
                refuse_delimiter(w, m[i]->key, m[i]->n_key, where);
            if (quote_keys)
                put_quoted(w, m[i]->key, m[i]->n_key);
            else
                chat_put(w, m[i]->key, m[i]->n_key);
            chat_lit(w, ":");
            tools_put_value(w, m[i], quote_keys, check, where);
        }
        chat_lit(w, "}");
        break;
    }
    }
}

void tools_put_members(chat_writer *w, const jtree *object, bool check, const char *where)
{
    const jtree **m = sorted_keys(w, object);
    for (size_t i = 0; m && i < object->count; i++) {
        if (i)
            chat_lit(w, ",");
        if (check)
            refuse_delimiter(w, m[i]->key, m[i]->n_key, where);
        chat_put(w, m[i]->key, m[i]->n_key);
        chat_lit(w, ":");
        tools_put_value(w, m[i], false, check, where);
    }
}

/* ---- Declarations ---- */

typedef struct declaration {
    chat_writer *w;
    int32_t revision;
    const char *where; /* "tools[1] (search)" */
} declaration;

/* The schema's type: a string, or NULL. For a list: its first item other than "null". */
static const jtree *schema_type_of(const jtree *schema)
{
    const jtree *t = jtree_get(schema, "type");
    if (jtree_is(t, JTREE_STRING))
        return t;
    if (jtree_is(t, JTREE_ARRAY))
        for (const jtree *it = t->first; it; it = it->next)
            if (it->kind == JTREE_STRING && strcmp(it->s, "null"))
                return it;
    return NULL;
}

static bool is_nullable(const jtree *schema)
{
    const jtree *t = jtree_get(schema, "type");
    if (jtree_truthy(jtree_get(schema, "nullable")))
        return true;
    if (jtree_is(t, JTREE_ARRAY))
        for (const jtree *it = t->first; it; it = it->next)
            if (it->kind == JTREE_STRING && !strcmp(it->s, "null"))
                return true;
    return false;
}

static bool type_is(const jtree *type, const char *upper)
{
    if (!type || type->n != strlen(upper))
        return false;
    for (size_t i = 0; i < type->n; i++) {
        char c = type->s[i];
        if ((c >= 'a' && c <= 'z' ? c - 32 : c) != upper[i])
            return false;
    }
    return true;
}

/* Types are ASCII words. Other bytes are not changed. */
static void put_upper(declaration *d, const jtree *s)
{
    chat_lit(d->w, GEMMA_QUOTE);
    for (size_t i = 0; s && i < s->n; i++) {
        char c = s->s[i];
        c = c >= 'a' && c <= 'z' ? (char)(c - 32) : c;
        chat_put(d->w, &c, 1);
    }
    chat_lit(d->w, GEMMA_QUOTE);
}

static void put_tool_text(declaration *d, const jtree *s)
{
    refuse_delimiter(d->w, s->s, s->n, d->where);
    put_quoted(d->w, s->s, s->n);
}

/* description:<|"|>...<|"|>, if the schema has one. */
static bool put_description(declaration *d, const jtree *schema)
{
    const jtree *text = jtree_get(schema, "description");
    if (!jtree_truthy(text))
        return false;
    if (!jtree_is(text, JTREE_STRING)) {
        chat_fail(d->w, E_FORMAT, "%s: a description is %s, not a string", d->where,
                  jtree_kind_name(text));
        return false;
    }
    chat_lit(d->w, "description:");
    put_tool_text(d, text);
    return true;
}

/* required:[<|"|>a<|"|>,...] */
static void put_required(declaration *d, const jtree *list)
{
    if (!jtree_is(list, JTREE_ARRAY)) {
        chat_fail(d->w, E_FORMAT, "%s: `required` is %s, not an array", d->where,
                  jtree_kind_name(list));
        return;
    }
    chat_lit(d->w, "required:[");
    for (const jtree *it = list->first; it; it = it->next) {
        if (it->kind != JTREE_STRING) {
            chat_fail(d->w, E_FORMAT, "%s: `required` holds %s, not a string", d->where,
                      jtree_kind_name(it));
            return;
        }
        put_tool_text(d, it);
        if (it->next)
            chat_lit(d->w, ",");
    }
    chat_lit(d->w, "]");
}

static void put_properties(declaration *d, const jtree *map, bool filter);

/* The members of an array's item schema, in dictsort order, nulls skipped. */
static void put_items(declaration *d, const jtree *items)
{
    const jtree **m = sorted_keys(d->w, items);
    bool any = false;
    chat_lit(d->w, "items:{");
    for (size_t i = 0; m && i < items->count && !d->w->st; i++) {
        if (m[i]->kind == JTREE_NULL)
            continue;
        if (any)
            chat_lit(d->w, ",");
        any = true;
        if (!strcmp(m[i]->key, "properties")) {
            chat_lit(d->w, "properties:{");
            if (m[i]->kind == JTREE_OBJECT)
                put_properties(d, m[i], false);
            chat_lit(d->w, "}");
        } else if (!strcmp(m[i]->key, "required")) {
            put_required(d, m[i]);
        } else if (!strcmp(m[i]->key, "type") && m[i]->kind == JTREE_STRING) {
            chat_lit(d->w, "type:");
            put_upper(d, m[i]);
        } else if (!strcmp(m[i]->key, "type") && m[i]->kind == JTREE_ARRAY) {
            chat_lit(d->w, "type:[");
            for (const jtree *it = m[i]->first; it; it = it->next) {
                if (it->kind == JTREE_STRING)
                    put_upper(d, it);
                if (it->next)
                    chat_lit(d->w, ",");
            }
            chat_lit(d->w, "]");
        } else {
            refuse_delimiter(d->w, m[i]->key, m[i]->n_key, d->where);
            chat_put(d->w, m[i]->key, m[i]->n_key);
            chat_lit(d->w, ":");
            tools_put_value(d->w, m[i], true, true, d->where);
        }
    }
    chat_lit(d->w, "}");
}

static void comma(declaration *d, bool *any)
{
    if (*any)
        chat_lit(d->w, ",");
    *any = true;
}

static void put_enum(declaration *d, const jtree *v, bool *any)
{
    const jtree *list = jtree_get(v, "enum");
    if (!jtree_truthy(list))
        return;
    comma(d, any);
    chat_lit(d->w, "enum:");
    tools_put_value(d->w, list, true, true, d->where);
}

/* The properties of an object. Without `properties`, its non-standard keys are the properties. */
static void put_object(declaration *d, const jtree *v)
{
    const jtree *map = jtree_get(v, "properties");
    chat_lit(d->w, "properties:{");
    if (jtree_is(map, JTREE_OBJECT))
        put_properties(d, map, false);
    else if (v->kind == JTREE_OBJECT)
        put_properties(d, v, true);
    chat_lit(d->w, "}");
}

/* The members after a property's description, in the order of the first April template: nullable
 * first. Before nested braces this template always prints a comma. */
static void put_first_april(declaration *d, const jtree *v, const jtree *type, bool *any)
{
    if (is_nullable(v)) {
        comma(d, any);
        chat_lit(d->w, "nullable:true");
    }
    if (type_is(type, "STRING")) {
        put_enum(d, v, any);
    } else if (type_is(type, "OBJECT")) {
        chat_lit(d->w, ",");
        put_object(d, v);
        if (jtree_truthy(jtree_get(v, "required"))) {
            chat_lit(d->w, ",");
            put_required(d, jtree_get(v, "required"));
        }
    } else if (type_is(type, "ARRAY")) {
        const jtree *items = jtree_get(v, "items");
        if (jtree_is(items, JTREE_OBJECT) && items->count) {
            chat_lit(d->w, ",");
            put_items(d, items);
        }
    }
}

static void put_later(declaration *d, const jtree *v, const jtree *type, bool *any)
{
    if (type_is(type, "STRING")) {
        put_enum(d, v, any);
    } else if (type_is(type, "ARRAY")) {
        const jtree *items = jtree_get(v, "items");
        if (jtree_is(items, JTREE_OBJECT) && items->count) {
            comma(d, any);
            put_items(d, items);
        }
    }
    if (is_nullable(v)) {
        comma(d, any);
        chat_lit(d->w, "nullable:true");
    }
    if (type_is(type, "OBJECT")) {
        if (v->kind == JTREE_OBJECT) {
            comma(d, any);
            put_object(d, v);
        }
        if (jtree_truthy(jtree_get(v, "required"))) {
            comma(d, any);
            put_required(d, jtree_get(v, "required"));
        }
    }
}

static bool is_standard(const char *key)
{
    static const char *const keys[] = {"description", "type", "properties", "required", "nullable"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(key, keys[i]))
            return true;
    return false;
}

/* P1:{...},P2:{...} filter: map is a schema, and its standard keys are not properties. The April
 * templates always filter, so they lose a property named "type". */
static void put_properties(declaration *d, const jtree *map, bool filter)
{
    const jtree **m = sorted_keys(d->w, map);
    bool any_property = false;
    filter |= d->revision < GEMMA4_JULY_SMALL;
    for (size_t i = 0; m && i < map->count && !d->w->st; i++) {
        const jtree *v = m[i], *type = schema_type_of(v);
        if (filter && is_standard(v->key))
            continue;
        if (any_property)
            chat_lit(d->w, ",");
        any_property = true;
        refuse_delimiter(d->w, v->key, v->n_key, d->where);
        chat_put(d->w, v->key, v->n_key);
        chat_lit(d->w, ":{");
        bool any = put_description(d, v);
        if (d->revision == GEMMA4_APRIL_FIRST)
            put_first_april(d, v, type, &any);
        else
            put_later(d, v, type, &any);
        if (any)
            chat_lit(d->w, ",");
        chat_lit(d->w, "type:");
        put_upper(d, type);
        chat_lit(d->w, "}");
    }
}

static void put_parameters(declaration *d, const jtree *params)
{
    const jtree *map = jtree_get(params, "properties"), *type = schema_type_of(params);
    chat_lit(d->w, ",parameters:{");
    if (jtree_truthy(map)) {
        if (!jtree_is(map, JTREE_OBJECT)) {
            chat_fail(d->w, E_FORMAT, "%s: `properties` is %s, not an object", d->where,
                      jtree_kind_name(map));
            return;
        }
        chat_lit(d->w, "properties:{");
        put_properties(d, map, false);
        chat_lit(d->w, "},");
    }
    if (jtree_truthy(jtree_get(params, "required"))) {
        put_required(d, jtree_get(params, "required"));
        chat_lit(d->w, ",");
    }
    chat_lit(d->w, "type:");
    if (type)
        put_upper(d, type);
    else
        put_quoted(d->w, "OBJECT", 6);
    chat_lit(d->w, "}");
}

void tools_put_declaration(chat_writer *w, const jtree *tool, size_t i, int32_t revision)
{
    char where[TALK_WHERE];
    declaration d = {w, revision, where};
    chat_tool_place(tool, i, where);
    const jtree *f = chat_function_of(w, tool, where), *name = jtree_get(f, "name");
    const jtree *text = jtree_get(f, "description"), *params = jtree_get(f, "parameters");
    const jtree *response = jtree_get(f, "response");

    if (!f)
        return;
    refuse_delimiter(w, name->s, name->n, where);
    chat_lit(w, "declaration:");
    chat_put(w, name->s, name->n);
    chat_lit(w, "{description:");
    if (text)
        put_tool_text(&d, text);
    else
        put_quoted(w, "", 0);
    if (jtree_truthy(params))
        put_parameters(&d, params);
    if (response) {
        const jtree *type = schema_type_of(response);
        chat_lit(w, ",response:{");
        if (put_description(&d, response))
            chat_lit(w, ",");
        chat_lit(w, "type:");
        if (type)
            put_upper(&d, type);
        else
            put_quoted(w, "OBJECT", 6);
        chat_lit(w, "}");
    }
    chat_lit(w, "}");
}
