/* tools.c - declarations of tools and the choice among them, in three shapes.
 *
 *     nested (chat)       {"type": "function", "function": {"name", "description", "parameters"}}
 *     flat (responses)    {"type": "function", "name", "description", "parameters"}
 *     anthropic           {"name", "description", "input_schema"}
 *
 * All become the nested shape. Tools that the server would run, such as web search, are left out in
 * the flat and the anthropic shape, because their clients always send them. In the nested shape
 * they are refused.
 */
#include "apps/server/jsonw.h"
#include "apps/server/request.h"

#include <stdio.h>
#include <string.h>

static bool check_name(problem *p, const char *field, const jtree *name)
{
    if (!jtree_is(name, JTREE_STRING) || !name->n)
        return problem_set(p, 400, field, "'%s' is %s; expected a name", field,
                           jtree_is(name, JTREE_STRING) ? "empty" : jtree_kind_name(name));
    bool bad = name->n > REQUEST_MAX_NAME;
    for (size_t i = 0; i < name->n && !bad; i++)
        bad = (unsigned char)name->s[i] <= ' ' || strchr("{}:\"'`<>|\177", name->s[i]);
    return !bad || problem_set(p, 400, field,
                               "'%s' is no usable name: at most %d bytes, without spaces, braces, "
                               "quotes, colons and control characters",
                               field, REQUEST_MAX_NAME);
}

static void put_tool(str *o, const jtree *f, const char *schema_key)
{
    json_open(o, NULL, '{');
    json_text(o, "type", "function");
    json_open(o, "function", '{');
    json_tree(o, "name", jtree_get(f, "name"));
    if (jtree_get(f, "description"))
        json_tree(o, "description", jtree_get(f, "description"));
    if (jtree_get(f, schema_key))
        json_tree(o, "parameters", jtree_get(f, schema_key));
    if (jtree_get(f, "response"))
        json_tree(o, "response", jtree_get(f, "response"));
    if (jtree_get(f, "strict"))
        json_tree(o, "strict", jtree_get(f, "strict"));
    json_close(o, '}');
    json_close(o, '}');
}

/* *f: the object with name and parameters; NULL: the tool is left out. */
static bool find_function(const jtree *t, size_t i, tools_shape shape, const jtree **f, problem *p)
{
    char field[64];
    const jtree *type = jtree_get(t, "type");
    snprintf(field, sizeof field, "tools[%zu]", i);
    *f = t;
    if (t->kind != JTREE_OBJECT)
        return problem_set(p, 400, field, "'%s' is %s; expected an object", field,
                           jtree_kind_name(t));
    if (shape == TOOLS_ANTHROPIC) {
        bool custom = !type || (jtree_is(type, JTREE_STRING) && !strcmp(type->s, "custom"));
        if (!custom && !jtree_get(t, "input_schema"))
            *f = NULL;
        return true;
    }
    if (!jtree_is(type, JTREE_STRING))
        return problem_set(p, 400, field, "'%s.type' is %s; expected \"function\"", field,
                           jtree_kind_name(type));
    if (strcmp(type->s, "function")) {
        *f = NULL;
        return shape == TOOLS_FLAT ||
               problem_set(p, 400, field, "'%s.type' is \"%.40s\"; expected \"function\"", field,
                           type->s);
    }
    if (shape == TOOLS_NESTED) {
        *f = jtree_get(t, "function");
        if (!jtree_is(*f, JTREE_OBJECT))
            return problem_set(p, 400, field, "'%s.function' is %s; expected an object", field,
                               jtree_kind_name(*f));
    }
    return true;
}

static bool read_declaration(request *rq, const jtree *t, size_t i, tools_shape shape, problem *p)
{
    const char *schema_key = shape == TOOLS_ANTHROPIC ? "input_schema" : "parameters";
    const jtree *f, *schema, *d;
    char field[80];
    if (!find_function(t, i, shape, &f, p))
        return false;
    if (!f)
        return true;
    const char *in = shape == TOOLS_NESTED ? ".function" : "";
    snprintf(field, sizeof field, "tools[%zu]%s.name", i, in);
    if (!check_name(p, field, jtree_get(f, "name")))
        return false;
    schema = jtree_get(f, schema_key);
    if (schema && schema->kind != JTREE_OBJECT) {
        snprintf(field, sizeof field, "tools[%zu]%s.%s", i, in, schema_key);
        return problem_set(p, 400, field, "'%s' is %s; expected a JSON schema, an object", field,
                           jtree_kind_name(schema));
    }
    d = jtree_get(f, "description");
    if (d && d->kind != JTREE_STRING) {
        snprintf(field, sizeof field, "tools[%zu]%s.description", i, in);
        return problem_set(p, 400, field, "'%s' is %s; expected a string", field,
                           jtree_kind_name(d));
    }
    if (!rq->tools.n)
        str_putc(&rq->tools, '[');
    put_tool(&rq->tools, f, schema_key);
    int32_t origin = (int32_t)i;
    str_put(&rq->tool_origin, (const char *)&origin, sizeof origin);
    return true;
}

/* `functions`, the predecessor of `tools`: a list of the function objects. */
static bool read_functions(request *rq, problem *p)
{
    const jtree *list, *f;
    size_t i = 0;
    char field[80];
    if (!field_kind(p, rq->body, "functions", JTREE_ARRAY, &list) || !list)
        return !p->status;
    if (list->count > REQUEST_MAX_TOOLS)
        return problem_set(p, 400, "functions", "'functions' has %zu entries; at most %d",
                           list->count, REQUEST_MAX_TOOLS);
    if (list->count && rq->tools.n)
        return problem_set(p, 400, "functions", "'functions' and 'tools' exclude each other");
    for (f = list->first; f; f = f->next, i++) {
        const jtree *schema = jtree_get(f, "parameters");
        snprintf(field, sizeof field, "functions[%zu].name", i);
        if (!check_name(p, field, jtree_get(f, "name")))
            return false;
        snprintf(field, sizeof field, "functions[%zu].parameters", i);
        if (schema && schema->kind != JTREE_OBJECT)
            return problem_set(p, 400, field, "'%s' is %s; expected a JSON schema, an object",
                               field, jtree_kind_name(schema));
        str_putc(&rq->tools, rq->tools.n ? ',' : '[');
        put_tool(&rq->tools, f, "parameters");
        rq->functions = true;
    }
    if (rq->functions)
        str_putc(&rq->tools, ']');
    return true;
}

bool read_tools(request *rq, tools_shape shape, problem *p)
{
    const jtree *list;
    size_t i = 0;
    if (!field_kind(p, rq->body, "tools", JTREE_ARRAY, &list))
        return false;
    if (list && list->count > REQUEST_MAX_TOOLS)
        return problem_set(p, 400, "tools", "'tools' has %zu entries; at most %d", list->count,
                           REQUEST_MAX_TOOLS);
    for (const jtree *t = list ? list->first : NULL; t; t = t->next)
        if (!read_declaration(rq, t, i++, shape, p))
            return false;
    if (rq->tools.n)
        str_putc(&rq->tools, ']');
    if (shape == TOOLS_NESTED && !read_functions(rq, p))
        return false;
    return !rq->tools.bad || problem_set(p, 503, "", "no memory for 'tools'");
}

/* ---- The choice ---- */

/* The declaration of a tool that was not left out, for put_tool, or NULL. *place: its index. */
static const jtree *find_tool(const request *rq, const char *name, tools_shape shape, size_t *place)
{
    const jtree *list = jtree_get(rq->body, rq->functions ? "functions" : "tools"), *f;
    *place = 0;
    for (const jtree *t = list ? list->first : NULL; t; t = t->next, ++*place) {
        problem none = {0};
        f = t;
        if (!rq->functions && !find_function(t, *place, shape, &f, &none))
            continue;
        if (f && !strcmp(jtree_get(f, "name")->s, name))
            return f;
    }
    return NULL;
}

static bool must_call(request *rq, const jtree *holder, tools_shape shape, problem *p)
{
    const jtree *name = jtree_get(holder, "name");
    const char *field = rq->functions ? "function_call" : "tool_choice";
    size_t place;
    rq->choice = TOOLS_REQUIRED;
    if (!jtree_is(name, JTREE_STRING))
        return problem_set(p, 400, field, "'%s' names no function", field);
    rq->only = name->s;
    return find_tool(rq, name->s, shape, &place) ||
           problem_set(p, 400, field, "'%s' names \"%.60s\", which is not among the %s", field,
                       name->s, rq->functions ? "functions" : "tools");
}

static bool choice_word(request *rq, const char *word, problem *p)
{
    if (!strcmp(word, "auto"))
        rq->choice = TOOLS_AUTO;
    else if (!strcmp(word, "none"))
        rq->choice = TOOLS_NONE;
    else if (!strcmp(word, "required") || !strcmp(word, "any"))
        rq->choice = TOOLS_REQUIRED;
    else
        return problem_set(p, 400, "tool_choice",
                           "'tool_choice' is \"%.40s\"; expected auto, none, required or an "
                           "object that names a tool",
                           word);
    return true;
}

/* {"mode": "auto" or "required", "tools": [...]}: only these tools may be called. The prompt still
 * declares all tools, so that the cached prefix of the conversation stays valid. Tools that were
 * left out of the declarations are left out here, too; if no other remains, calls are banned. */
static bool allow_tools(request *rq, const jtree *c, tools_shape shape, problem *p)
{
    const jtree *list, *mode, *type, *name, *f;
    const jtree *tools = jtree_get(rq->body, "tools");
    bool *taken = arena_array(&rq->mem, tools ? tools->count + 1 : 1, sizeof *taken);
    char field[80];
    size_t i = 0, place;
    if (!taken)
        return problem_set(p, 503, "", "no memory for 'tool_choice'");
    if (shape == TOOLS_NESTED)
        c = jtree_get(c, "allowed_tools");
    mode = jtree_get(c, "mode");
    list = jtree_get(c, "tools");
    if (!jtree_is(mode, JTREE_STRING) || (strcmp(mode->s, "auto") && strcmp(mode->s, "required")))
        return problem_set(p, 400, "tool_choice",
                           "'tool_choice' allows tools and has no 'mode', \"auto\" or "
                           "\"required\"");
    if (!jtree_is(list, JTREE_ARRAY) || !list->count || list->count > REQUEST_MAX_TOOLS)
        return problem_set(p, 400, "tool_choice",
                           "'tool_choice' allows tools; its 'tools' must list 1 to %d of them",
                           REQUEST_MAX_TOOLS);
    for (const jtree *t = list->first; t; t = t->next, i++) {
        type = jtree_get(t, "type");
        if (shape == TOOLS_FLAT && jtree_is(type, JTREE_STRING) && strcmp(type->s, "function"))
            continue;
        name = jtree_get(shape == TOOLS_NESTED ? jtree_get(t, "function") : t, "name");
        snprintf(field, sizeof field, "tool_choice.tools[%zu]", i);
        if (!jtree_is(name, JTREE_STRING))
            return problem_set(p, 400, "tool_choice", "'%s' names no function", field);
        if (!(f = find_tool(rq, name->s, shape, &place)))
            return problem_set(p, 400, "tool_choice",
                               "'%s' names \"%.60s\", which is not among the tools", field,
                               name->s);
        if (taken[place]) /* named before */
            continue;
        taken[place] = true;
        if (!rq->allowed.n)
            str_putc(&rq->allowed, '[');
        put_tool(&rq->allowed, f, "parameters");
    }
    if (rq->allowed.n)
        str_putc(&rq->allowed, ']');
    else if (!strcmp(mode->s, "required"))
        return problem_set(p, 400, "tool_choice",
                           "'tool_choice' asks for a call, and carat has none of the tools that "
                           "it allows");
    else
        rq->choice = TOOLS_NONE;
    return !rq->allowed.n || choice_word(rq, mode->s, p);
}

static bool choice_object(request *rq, const jtree *c, tools_shape shape, problem *p)
{
    const jtree *type = jtree_get(c, "type");
    bool off = false;
    if (!jtree_is(type, JTREE_STRING))
        return problem_set(p, 400, "tool_choice", "'tool_choice.type' is %s; expected a string",
                           jtree_kind_name(type));
    if (shape == TOOLS_ANTHROPIC) {
        if (!field_bool(p, c, "disable_parallel_tool_use", &off))
            return false;
        rq->one_call = off;
        return !strcmp(type->s, "tool") ? must_call(rq, c, shape, p) : choice_word(rq, type->s, p);
    }
    if (!strcmp(type->s, "function"))
        return must_call(rq, shape == TOOLS_NESTED ? jtree_get(c, "function") : c, shape, p);
    if (!strcmp(type->s, "allowed_tools"))
        return allow_tools(rq, c, shape, p);
    return problem_set(p, 400, "tool_choice",
                       "'tool_choice.type' is \"%.40s\"; expected \"function\" or "
                       "\"allowed_tools\"",
                       type->s);
}

/* `function_call`, the predecessor of `tool_choice`. */
static bool read_function_call(request *rq, problem *p)
{
    const jtree *c = jtree_get(rq->body, "function_call");
    if (!c)
        return true;
    if (!rq->functions)
        return problem_set(p, 400, "function_call",
                           "'function_call' needs 'functions'; with 'tools' it is 'tool_choice'");
    if (c->kind == JTREE_OBJECT)
        return must_call(rq, c, TOOLS_NESTED, p);
    if (jtree_is(c, JTREE_STRING) && (!strcmp(c->s, "auto") || !strcmp(c->s, "none")))
        return choice_word(rq, c->s, p);
    return problem_set(p, 400, "function_call",
                       "'function_call' is none of \"auto\", \"none\" and {\"name\": ...}");
}

bool read_tool_choice(request *rq, tools_shape shape, problem *p)
{
    const jtree *c = jtree_get(rq->body, "tool_choice");
    bool parallel = true;
    if (shape != TOOLS_ANTHROPIC) {
        if (!field_bool(p, rq->body, "parallel_tool_calls", &parallel))
            return false;
        rq->one_call = !parallel || rq->functions;
    }
    if (shape == TOOLS_NESTED && !read_function_call(rq, p))
        return false;
    if (!c)
        return true;
    if (c->kind == JTREE_STRING && shape != TOOLS_ANTHROPIC) {
        if (!choice_word(rq, c->s, p))
            return false;
    } else if (c->kind != JTREE_OBJECT) {
        return problem_set(p, 400, "tool_choice", "'tool_choice' is %s; expected %s",
                           jtree_kind_name(c),
                           shape == TOOLS_ANTHROPIC ? "an object" : "a string or an object");
    } else if (!choice_object(rq, c, shape, p)) {
        return false;
    }
    return rq->choice != TOOLS_REQUIRED || rq->tools.n ||
           problem_set(p, 400, "tool_choice",
                       "'tool_choice' asks for a call, and there are no "
                       "tools");
}
