/* tools.c - declarations of tools and the choice among them, in three shapes.
 *
 *     nested (chat)       {"type": "function", "function": {"name", "description", "parameters"}}
 *     flat (responses)    {"type": "function", "name", "description", "parameters"}
 *     anthropic           {"name", "description", "input_schema"}
 *
 * All become the nested shape. Tools of other types that the client runs become functions
 * (tool_kinds.h). Tools that a host would run, such as web search, are left out in the flat and the
 * anthropic shape, because their clients always send them; the log and the answer say so. In the
 * nested shape they are refused.
 */
#include "apps/jsonw.h"
#include "apps/server/dialects/tool_kinds.h"
#include "base/show.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void leave_out(request *rq, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    if (rq->n_left_out++ >= REQUEST_MAX_WARNINGS)
        return;
    va_start(ap, fmt);
    show_format(text, sizeof text, fmt, ap);
    va_end(ap);
    json_text(&rq->left_out, NULL, text);
}

/* ---- Declarations ---- */

/* A list of tools, for problems. */
typedef struct tool_list {
    const char *field; /* "tools", "input[2].tools" */
    tools_shape shape;
    const char *space; /* the namespace that holds it, or NULL */
    int32_t origin; /* the index of that namespace; -1: that of each tool; -2: none is the body's */
} tool_list;

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

static const jtree *schema_of(const tool_form *t)
{
    const jtree *v = jtree_get(t->from, "parameters");
    return v ? v : jtree_get(t->from, "input_schema");
}

/* A custom tool takes any text. A grammar of that text is told to the model, not enforced. */
static void describe_custom(const tool_form *t, str *o)
{
    const jtree *f = jtree_get(t->from, "format"), *inner = jtree_get(f, "grammar");
    f = inner ? inner : f; /* of chats */
    const jtree *rules = jtree_get(f, "definition"), *syntax = jtree_get(f, "syntax");
    const jtree *own = jtree_get(t->from, "description");
    if (jtree_is(own, JTREE_STRING))
        str_printf(o, "%s\n\n", own->s);
    str_puts(o, "`input` is the text that the tool gets.");
    if (jtree_is(rules, JTREE_STRING))
        str_printf(o, " It follows this grammar%s%s%s:\n%s", syntax ? " (" : "",
                   jtree_is(syntax, JTREE_STRING) ? syntax->s : "", syntax ? ")" : "", rules->s);
}

static void put_description(str *o, const tool_form *t)
{
    const jtree *own = jtree_get(t->from, "description");
    const jtree *wide = jtree_get(t->from, "display_width_px");
    const jtree *high = jtree_get(t->from, "display_height_px");
    str text = {0};
    if (!t->kind || (jtree_is(own, JTREE_STRING) && t->kind->description)) {
        if (own)
            json_tree(o, "description", own);
        return;
    }
    if (!t->kind->description)
        describe_custom(t, &text);
    else
        str_puts(&text, t->kind->description);
    if (jtree_is(wide, JTREE_INTEGER) && jtree_is(high, JTREE_INTEGER))
        str_printf(&text, " The screen has %s times %s pixels.", wide->s, high->s);
    json_text_n(o, "description", str_text(&text), text.n);
    o->bad |= text.bad;
    str_free(&text);
}

static void put_tool(str *o, const tool_form *t)
{
    const jtree *schema = schema_of(t);
    json_open(o, NULL, '{');
    json_text(o, "type", "function");
    json_open(o, "function", '{');
    json_text(o, "name", t->name);
    put_description(o, t);
    if (schema) {
        json_tree(o, "parameters", schema);
    } else if (t->kind) {
        json_key(o, "parameters");
        str_puts(o, t->kind->parameters);
    }
    if (jtree_get(t->from, "response"))
        json_tree(o, "response", jtree_get(t->from, "response"));
    if (jtree_get(t->from, "strict"))
        json_tree(o, "strict", jtree_get(t->from, "strict"));
    json_close(o, "}}");
}

/* The name that the model is told: with the namespace before it. */
static bool name_tool(request *rq, const tool_list *in, tool_form *t, problem *p)
{
    char name[2 * REQUEST_MAX_NAME + 2];
    t->name = t->own;
    t->space = in->space;
    if (!in->space)
        return true;
    size_t n = strlen(in->space);
    bool joined = n && strchr("_.", in->space[n - 1]);
    snprintf(name, sizeof name, "%s%s%s", in->space, joined ? "" : ".", t->own);
    return keep_text(rq, p, name, strlen(name), &t->name);
}

static bool add_tool(request *rq, const tool_list *in, tool_form *t, problem *p)
{
    enum { FIRST = 16 };
    int32_t n = rq->n_tools;
    if (n == REQUEST_MAX_TOOLS)
        return problem_set(p, 400, in->field, "'%s' has too many tools; at most %d", in->field,
                           REQUEST_MAX_TOOLS);
    if (n == 0 || (n >= FIRST && !(n & (n - 1)))) {
        tool_form *more = arena_array(&rq->mem, n < FIRST ? FIRST : 2 * (size_t)n, sizeof *more);
        if (!more)
            return problem_set(p, 503, "", "no memory for '%s'", in->field);
        if (n)
            memcpy(more, rq->tool, (size_t)n * sizeof *more);
        rq->tool = more;
    }
    if (!name_tool(rq, in, t, p))
        return false;
    rq->tool[rq->n_tools++] = *t;
    if (!rq->tools.n)
        json_open(&rq->tools, NULL, '[');
    put_tool(&rq->tools, t);
    return true;
}

static bool drop_tool(request *rq, const tool_list *in, size_t i, const jtree *v)
{
    const char *type = jtree_get(v, "type")->s;
    jtree_pass(v);
    if (in->origin == -1 && rq->tool_dropped)
        rq->tool_dropped[i] = true;
    leave_out(rq, "'%s[%zu]', a tool of type %.60s, is left out: %s", in->field, i, type,
              tool_kind_why(type));
    return true;
}

/* Does the client run this tool? Two types say so themselves. */
static bool runs_at_client(const jtree *t, const char *type)
{
    const jtree *where = jtree_get(jtree_get(t, "environment"), "type");
    if (!strcmp(type, "shell"))
        return !where || tree_says(where, "local");
    return strcmp(type, "tool_search") != 0 || tree_says(jtree_get(t, "execution"), "client");
}

static bool declare_tools(request *rq, const jtree *list, const tool_list *in, problem *p);

static bool declare_namespace(request *rq, const jtree *t, const tool_list *in, size_t i,
                              problem *p)
{
    const jtree *name = jtree_get(t, "name"), *list = jtree_get(t, "tools");
    char field[128];
    snprintf(field, sizeof field, "%s[%zu].name", in->field, i);
    if (!check_name(p, field, name))
        return false;
    snprintf(field, sizeof field, "%s[%zu].tools", in->field, i);
    if (in->space || (list && list->kind != JTREE_ARRAY))
        return problem_set(p, 400, field, "'%s' is no list of functions", field);
    tool_list inner = {field, in->shape, name->s, in->origin == -1 ? (int32_t)i : in->origin};
    return !list || declare_tools(rq, list, &inner, p);
}

/* What the tool is: *t for a function, or for a kind that the client runs. *done: it was left out,
 * or declared already. */
static bool classify_tool(request *rq, const jtree *v, size_t i, const tool_list *in, tool_form *t,
                          bool *done, problem *p)
{
    char field[128];
    const jtree *type = jtree_get(v, "type");
    snprintf(field, sizeof field, "%s[%zu]", in->field, i);
    *t = (tool_form){.from = v, .origin = in->origin == -1 ? (int32_t)i : in->origin};
    *done = false;
    if (v->kind != JTREE_OBJECT)
        return problem_set(p, 400, field, "'%s' is %s; expected an object", field,
                           jtree_kind_name(v));
    if (in->shape == TOOLS_BARE)
        return true;
    if (in->shape == TOOLS_ANTHROPIC &&
        (!type || tree_says(type, "custom") || jtree_get(v, "input_schema")))
        return true;
    if (!jtree_is(type, JTREE_STRING))
        return problem_set(p, 400, field, "'%s.type' is %s; expected \"function\"", field,
                           jtree_kind_name(type));
    if (in->shape == TOOLS_NESTED) {
        bool custom = tree_says(type, "custom");
        if (!custom && !tree_says(type, "function"))
            return problem_set(p, 400, field,
                               "'%s.type' is \"%.40s\"; expected \"function\" or \"custom\"", field,
                               type->s);
        t->kind = custom ? tool_kind_find(TOOLS_FLAT, "custom") : NULL;
        t->from = jtree_get(v, type->s);
        return jtree_is(t->from, JTREE_OBJECT) ||
               problem_set(p, 400, field, "'%s.%s' is %s; expected an object", field, type->s,
                           jtree_kind_name(t->from));
    }
    if (tree_says(type, "function") && in->shape == TOOLS_FLAT)
        return true;
    if (tree_says(type, "namespace") && in->shape == TOOLS_FLAT) {
        *done = true;
        return declare_namespace(rq, v, in, i, p);
    }
    t->kind = tool_kind_find(in->shape, type->s);
    if (t->kind && runs_at_client(v, type->s))
        return true;
    *done = true;
    return drop_tool(rq, in, i, v);
}

static bool declare_tool(request *rq, const jtree *v, size_t i, const tool_list *in, problem *p)
{
    tool_form t;
    char field[160];
    bool done;
    if (!classify_tool(rq, v, i, in, &t, &done, p) || done)
        return !p->status;
    const jtree *name = jtree_get(t.from, "name"), *schema = schema_of(&t);
    const jtree *d = jtree_get(t.from, "description");
    const char *inner = in->shape != TOOLS_NESTED ? "" : t.kind ? ".custom" : ".function";
    bool named = !t.kind || !t.kind->name || name;
    snprintf(field, sizeof field, "%s[%zu]%s.name", in->field, i, inner);
    if (named && !check_name(p, field, name))
        return false;
    t.own = named ? name->s : t.kind->name;
    if (schema && schema->kind != JTREE_OBJECT) {
        snprintf(field, sizeof field, "%s[%zu]%s.%s", in->field, i, inner, schema->key);
        return problem_set(p, 400, field, "'%s' is %s; expected a JSON schema, an object", field,
                           jtree_kind_name(schema));
    }
    if (d && d->kind != JTREE_STRING) {
        snprintf(field, sizeof field, "%s[%zu]%s.description", in->field, i, inner);
        return problem_set(p, 400, field, "'%s' is %s; expected a string", field,
                           jtree_kind_name(d));
    }
    return add_tool(rq, in, &t, p);
}

static bool declare_tools(request *rq, const jtree *list, const tool_list *in, problem *p)
{
    size_t i = 0;
    if (list->count > REQUEST_MAX_TOOLS)
        return problem_set(p, 400, in->field, "'%s' has %zu entries; at most %d", in->field,
                           list->count, REQUEST_MAX_TOOLS);
    for (const jtree *t = list->first; t; t = t->next)
        if (!declare_tool(rq, t, i++, in, p))
            return false;
    return true;
}

/* `functions`, the predecessor of `tools`: a list of the function objects. */
static bool read_functions(request *rq, problem *p)
{
    const jtree *list;
    static const tool_list in = {"functions", TOOLS_BARE, NULL, -1};
    if (!field_kind(p, rq->body, "functions", JTREE_ARRAY, &list) || !list)
        return !p->status;
    if (list->count && rq->tools.n)
        return problem_set(p, 400, "functions", "'functions' and 'tools' exclude each other");
    if (!declare_tools(rq, list, &in, p))
        return false;
    rq->functions = rq->n_tools > 0;
    return true;
}

/* Tools that items of the input bring: additional_tools, and what a search of tools has found. */
static bool declare_items(request *rq, const jtree *items, bool before, problem *p)
{
    char field[64];
    size_t i = 0;
    for (const jtree *v = items ? items->first : NULL; v; v = v->next, i++) {
        const jtree *item = request_item(rq, v), *type = jtree_get(item, "type");
        const jtree *list = jtree_get(item, "tools");
        if (!list ||
            !(tree_says(type, "additional_tools") || tree_says(type, "tool_search_output")))
            continue;
        if (before)
            snprintf(field, sizeof field, "previous_response_id");
        else
            snprintf(field, sizeof field, "input[%zu].tools", i);
        if (list->kind != JTREE_ARRAY)
            return problem_set(p, 400, field, "'%s' is %s; expected an array", field,
                               jtree_kind_name(list));
        tool_list in = {field, TOOLS_FLAT, NULL, -2};
        if (!declare_tools(rq, list, &in, p))
            return false;
    }
    return true;
}

bool read_tools(request *rq, tools_shape shape, problem *p)
{
    const jtree *list, *items = jtree_get(rq->body, "input");
    const tool_list in = {"tools", shape, NULL, -1};
    if (!field_kind(p, rq->body, "tools", JTREE_ARRAY, &list))
        return false;
    rq->tool_dropped = arena_array(&rq->mem, list ? list->count + 1 : 1, sizeof *rq->tool_dropped);
    if (!rq->tool_dropped)
        return problem_set(p, 503, "", "no memory for 'tools'");
    if (list && !declare_tools(rq, list, &in, p))
        return false;
    if (rq->api == API_RESPONSES &&
        (!declare_items(rq, rq->history, true, p) ||
         !declare_items(rq, jtree_is(items, JTREE_ARRAY) ? items : NULL, false, p)))
        return false;
    if (shape == TOOLS_NESTED && !read_functions(rq, p))
        return false;
    if (rq->tools.n)
        json_close(&rq->tools, "]");
    return !rq->tools.bad || problem_set(p, 503, "", "no memory for 'tools'");
}

const tool_form *request_tool(const request *rq, const char *name)
{
    for (int32_t i = 0; i < rq->n_tools; i++)
        if (!strcmp(rq->tool[i].name, name))
            return &rq->tool[i];
    return NULL;
}

/* ---- The choice ---- */

/* Is t the tool of this type and name? type NULL: any type; name NULL: any of the type. */
static bool is_tool(const tool_form *t, const char *type, const char *name)
{
    const char *own = t->kind ? t->kind->type : "function";
    return (!type || !strcmp(type, own)) &&
           (!name || !strcmp(t->own, name) || !strcmp(t->name, name));
}

static int32_t find_tool(const request *rq, const char *type, const char *name)
{
    for (int32_t i = 0; i < rq->n_tools; i++)
        if (is_tool(&rq->tool[i], type, name))
            return i;
    return -1;
}

static bool must_call(request *rq, const char *type, const jtree *holder, problem *p)
{
    const char *field = rq->functions ? "function_call" : "tool_choice", *name = NULL;
    const tool_kind *kind = type ? tool_kind_find(TOOLS_FLAT, type) : NULL;
    problem none = {0};
    rq->choice = TOOLS_REQUIRED;
    if (!field_text(&none, holder, "name", &name) || (!name && !(kind && kind->name)))
        return problem_set(p, 400, field, "'%s' names no %s", field, type ? type : "tool");
    int32_t i = find_tool(rq, type, name);
    if (i >= 0)
        rq->only = rq->tool[i].name;
    return i >= 0 ||
           problem_set(p, 400, field,
                       "'%s' names \"%.60s\", which is not among the %s that the model has", field,
                       name ? name : type, rq->functions ? "functions" : "tools");
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

/* One entry of the allowed tools: a namespace stands for all its tools. *n: how many it names. */
static bool allow_tool(request *rq, const jtree *t, tools_shape shape, const char *field,
                       bool *taken, problem *p)
{
    const jtree *type = jtree_get(t, "type");
    const char *kind = jtree_is(type, JTREE_STRING) ? type->s : "function", *name = NULL;
    bool space = !strcmp(kind, "namespace"), any = false;
    const tool_kind *known = tool_kind_find(TOOLS_FLAT, kind);
    if (shape == TOOLS_FLAT && !space && !known && strcmp(kind, "function") != 0)
        return true; /* a host runs it, so it was left out of the declarations, too */
    if (shape == TOOLS_NESTED)
        t = jtree_get(t, kind);
    if (!field_text(p, t, "name", &name))
        return false;
    if (!name && !(known && known->name))
        return problem_set(p, 400, "tool_choice", "'%s' names no function", field);
    for (int32_t i = 0; i < rq->n_tools; i++) {
        const tool_form *f = &rq->tool[i];
        if (space ? !f->space || strcmp(f->space, name) != 0 : !is_tool(f, kind, name))
            continue;
        any = true;
        if (taken[i]) /* named before */
            continue;
        taken[i] = true;
        if (!rq->allowed.n)
            json_open(&rq->allowed, NULL, '[');
        put_tool(&rq->allowed, f);
    }
    return any || (known && known->name) ||
           problem_set(p, 400, "tool_choice", "'%s' names \"%.60s\", which is not among the tools",
                       field, name);
}

/* {"mode": "auto" or "required", "tools": [...]}: only these tools may be called. The prompt still
 * declares all tools, so that the cached prefix of the conversation stays valid. If none of the
 * allowed tools is declared, calls are banned. */
static bool allow_tools(request *rq, const jtree *c, tools_shape shape, problem *p)
{
    const jtree *list, *mode;
    bool *taken = arena_array(&rq->mem, (size_t)rq->n_tools + 1, sizeof *taken);
    char field[80];
    size_t i = 0;
    if (!taken)
        return problem_set(p, 503, "", "no memory for 'tool_choice'");
    if (shape == TOOLS_NESTED)
        c = jtree_get(c, "allowed_tools");
    mode = jtree_get(c, "mode");
    list = jtree_get(c, "tools");
    if (!tree_says(mode, "auto") && !tree_says(mode, "required"))
        return problem_set(p, 400, "tool_choice",
                           "'tool_choice' allows tools and has no 'mode', \"auto\" or "
                           "\"required\"");
    if (!jtree_is(list, JTREE_ARRAY) || !list->count || list->count > REQUEST_MAX_TOOLS)
        return problem_set(p, 400, "tool_choice",
                           "'tool_choice' allows tools; its 'tools' must list 1 to %d of them",
                           REQUEST_MAX_TOOLS);
    for (const jtree *t = list->first; t; t = t->next, i++) {
        snprintf(field, sizeof field, "tool_choice.tools[%zu]", i);
        if (!allow_tool(rq, t, shape, field, taken, p))
            return false;
    }
    if (rq->allowed.n)
        json_close(&rq->allowed, "]");
    else if (tree_says(mode, "required"))
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
        return tree_says(type, "tool") ? must_call(rq, NULL, c, p) : choice_word(rq, type->s, p);
    }
    if (tree_says(type, "function") || tree_says(type, "custom"))
        return must_call(rq, type->s, shape == TOOLS_NESTED ? jtree_get(c, type->s) : c, p);
    if (tree_says(type, "allowed_tools"))
        return allow_tools(rq, c, shape, p);
    if (shape == TOOLS_FLAT && tool_kind_find(shape, type->s))
        return must_call(rq, type->s, c, p);
    if (shape == TOOLS_FLAT)
        return problem_set(p, 400, "tool_choice",
                           "'tool_choice' asks for a call of \"%.40s\", and carat has no such "
                           "tool: %s",
                           type->s, tool_kind_why(type->s));
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
        return must_call(rq, "function", c, p);
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
                       "tools%s",
                       rq->n_left_out ? " that carat or the client can run" : "");
}
