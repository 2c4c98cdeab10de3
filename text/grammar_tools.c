/* grammar_tools.c - answers that may or must call the tools of a request.
 *
 *     answer = [ thought ] ( [ text ] { call } | call { call } | json )
 *     call   = call_open ... [ call_close ], in the family's syntax
 *
 * Of answers in messages a call is the last message, and thoughts and texts come before it:
 * gx_messages.
 *
 * Where an answer may begin as a call without a mark (begins_calls), it is one call or text.
 *
 * Where calls are free, several calls may stand between two marks, as models write them; and if
 * no tool is strict, other text in front of call_close.
 *
 * The markers are tokens; names and keys are plain text. The family's call parser reads the
 * arguments without repair. After a call the model ends its turn; the end is allowed wherever the
 * answer is complete.
 */
#include "text/json_schema_int.h"
#include "text/chat.h"

#include <stdio.h>
#include <string.h>

enum { MAX_CALLS = 128 }; /* in one answer: stops a model that calls without end */

typedef struct tool {
    const char *name;
    const jtree *parameters; /* NULL: none */
    bool strict;
} tool;

static const answer_syntax *syntax_of(const gx_builder *b)
{
    return b->how->answer;
}

static bool read_tool(gx_builder *b, const jtree *x, int i, tool *t)
{
    const jtree *f = jtree_get(x, "function"), *name = jtree_get(f, "name");
    if (!jtree_is(f, JTREE_OBJECT) || !jtree_is(name, JTREE_STRING) || !name->n)
        return gx_fail(b, E_FORMAT, "tools[%d].function.name must be a string", i);
    if (strlen(name->s) != name->n || name->s[strcspn(name->s, syntax_of(b)->name_not)] ||
        name->n > 200)
        return gx_fail(b, E_UNSUPPORTED,
                       "tools[%d].function.name \"%.60s\" cannot be written in this model's calls",
                       i, name->s);
    *t = (tool){.name = name->s,
                .parameters = jtree_get(f, "parameters"),
                .strict = jtree_is(jtree_get(f, "strict"), JTREE_TRUE)};
    return true;
}

/* anything: the rules for arguments without a schema; all tools share them. */
static gx *call_of(gx_builder *b, schema *anything, const tool *t, bool strict, int i)
{
    char where[96];
    gx *arguments;
    const call_pairs *pairs = syntax_of(b)->pairs;
    if (strict && !t->parameters) {
        arguments = gx_text(b, pairs ? "" : "{}");
    } else if (!strict && pairs) {
        arguments = value_any_pairs(anything, pairs);
    } else if (strict) {
        schema s = *anything;
        s.root = t->parameters;
        s.todo = NULL;
        s.n_todo = s.cap_todo = s.n_done = 0;
        snprintf(where, sizeof where, "tools[%d].function.parameters", i);
        arguments =
            pairs ? schema_pairs_of(&s, s.root, pairs, where) : schema_object_of(&s, s.root, where);
        schema_finish(&s);
        anything->any_value = s.any_value;
        anything->any_object = s.any_object;
        anything->any_string = s.any_string;
        anything->number = s.number;
    } else {
        arguments = value_any_object(anything);
    }
    return syntax_of(b)->call_grammar(b, t->name, arguments);
}

/* The grammar of an answer without calls, in JSON. */
static gx *content(gx_builder *b, arena *mem, const grammar_tools *o)
{
    const jtree *root = NULL;
    schema s;
    if (!b->st && o->schema && o->n_schema > GRAMMAR_MAX_SOURCE_BYTES)
        gx_fail(b, E_LIMIT, "a schema of %zu bytes; the most is %d", o->n_schema,
                GRAMMAR_MAX_SOURCE_BYTES);
    if (!b->st && o->schema)
        b->st =
            jtree_parse(o->schema, o->n_schema, "the schema", SCHEMA_MAX_DEPTH, mem, &root, b->e);
    schema_init(&s, b, mem, root, NULL);
    if (b->st)
        return gx_text(b, "");
    gx *x = root ? schema_of(&s, root, "") : value_any_object(&s);
    schema_finish(&s);
    return x;
}

/* What stands between the marks. many: one call or several. */
static gx *between_marks(gx_builder *b, gx *call, bool many)
{
    enum { SPACE_MAX = 8 };
    const char *space = syntax_of(b)->call_space, *list = syntax_of(b)->list_open;
    if (list) {
        gx *next = gx_seq2(b, gx_text(b, syntax_of(b)->list_next), call);
        gx *all = many ? gx_seq2(b, call, gx_repeat(b, next, 0, MAX_CALLS - 1)) : call;
        return gx_seq3(b, gx_seq2(b, gx_maybe(b, gx_text(b, " ")), gx_text(b, list)), all,
                       gx_text(b, syntax_of(b)->list_close));
    }
    if (!space)
        return call;
    if (!many)
        return gx_seq3(b, gx_text(b, space), call, gx_text(b, space));
    gx *before = gx_repeat(b, gx_alt2(b, gx_text(b, "\n"), gx_text(b, " ")), 0, SPACE_MAX);
    gx *behind = gx_repeat(b, gx_alt2(b, gx_text(b, "\n"), gx_text(b, " ")), 0, SPACE_MAX);
    return gx_seq2(b, gx_repeat(b, gx_seq2(b, before, call), 1, MAX_CALLS), behind);
}

/* Text that does not begin as a call does. */
static gx *not_a_call(gx_builder *b)
{
    const char *begins = syntax_of(b)->begins_calls;
    gx_range first[16] = {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};
    int32_t n = 3;
    for (; *begins && n < 16; begins++, n++)
        first[n] = (gx_range){(unsigned char)*begins, (unsigned char)*begins};
    return gx_maybe(
        b, gx_seq2(b, gx_set(b, first, n, true), gx_without_any(b, syntax_of(b)->content_not)));
}

static gx *answer(gx_builder *b, arena *mem, const grammar_tools *o, const jtree *tools)
{
    gx_list calls = {0};
    schema anything;
    int i = 0;
    bool json = o->json || o->schema, must = o->calls == CALLS_MUST;
    bool free = !json && !must && !o->one && !o->only, loose = free && !o->strict_all;
    schema_init(&anything, b, mem, NULL, syntax_of(b));
    if (!jtree_is(tools, JTREE_ARRAY))
        gx_fail(b, E_FORMAT, "tools must be an array");
    for (const jtree *x = b->st ? NULL : tools->first; x && !b->st; x = x->next, i++) {
        tool t = {0};
        gx_work(b, 1 + x->count);
        loose = loose && !jtree_is(jtree_get(jtree_get(x, "function"), "strict"), JTREE_TRUE);
        if (read_tool(b, x, i, &t) && (!o->only || !strcmp(o->only, t.name)))
            gx_add(b, &calls, call_of(b, &anything, &t, t.strict || o->strict_all, i));
    }
    if (!calls.n && o->only)
        gx_fail(b, E_FORMAT, "tool_choice names %.80s, which tools does not declare", o->only);
    else if (!calls.n)
        gx_fail(b, E_FORMAT, "tools is empty");
    if (syntax_of(b)->heads) {
        gx *text = json ? content(b, mem, o) : gx_without_any(b, syntax_of(b)->content_not);
        return gx_messages(b, gx_alt(b, &calls), must ? NULL : text, json);
    }
    gx *inside = between_marks(b, gx_alt(b, &calls), free);
    if (loose && !syntax_of(b)->begins_calls)
        inside = gx_seq2(b, inside, gx_without_any(b, syntax_of(b)->content_not));
    const char *close = syntax_of(b)->call_close, *begins = syntax_of(b)->begins_calls;
    gx *open = gx_special(b, syntax_of(b)->call_open);
    gx *call = gx_seq3(b, begins ? gx_maybe(b, open) : open, inside,
                       close ? gx_special(b, close) : gx_text(b, ""));
    if (syntax_of(b)->n_gap)
        call = gx_seq2(b, call, gx_repeat(b, gx_text(b, "\n"), 0, syntax_of(b)->n_gap));
    if (begins)
        return must ? call : gx_alt2(b, call, json ? content(b, mem, o) : not_a_call(b));
    gx *all = gx_repeat(b, call, must || json, o->one ? 1 : MAX_CALLS);
    if (must)
        return all;
    if (json)
        return gx_alt2(b, all, content(b, mem, o));
    return gx_seq2(b, gx_without_any(b, syntax_of(b)->content_not), all);
}

status grammar_from_tools(grammar **g, const grammar_tools *o, const grammar_setting *how, err *e)
{
    gx_builder b;
    arena mem = {.max_bytes = arena_limit_for(o->n_tools + o->n_schema)};
    const jtree *tools = NULL;
    *g = NULL;
    gx_begin(&b, how, e);
    if (!how || !how->answer || !how->answer->read_call)
        return err_set(e, E_UNSUPPORTED, "answers of this model have no tool calls");
    if (!how->answer->call_grammar)
        return err_set(e, E_UNSUPPORTED, "carat has no grammar for the tool calls of this model");
    if (o->n_tools > CHAT_MAX_JSON_BYTES / 16)
        return err_set(e, E_LIMIT, "tools has %zu bytes; the most is %d", o->n_tools,
                       CHAT_MAX_JSON_BYTES / 16);
    status st = jtree_parse(o->tools, o->n_tools, "tools", SCHEMA_MAX_DEPTH, &mem, &tools, e);
    if (!st)
        st = grammar_build(g, &b,
                           how->answer->heads ? answer(&b, &mem, o, tools)
                                              : gx_after_thought(&b, answer(&b, &mem, o, tools)));
    gx_free(&b);
    arena_free(&mem);
    return st;
}
