/* forms.c - the fields of structured output, of several servers.
 *
 *     response_format, text.format                          OpenAI
 *     output_config.format, output_format                   Anthropic
 *     grammar, json_schema                                  llama-server
 *     guided_json, guided_regex, guided_choice,
 *     guided_grammar, structured_outputs                    vLLM
 *
 * All become rq->format and rq->schema, the source of one grammar. A second form in a request is
 * refused.
 */
#include "apps/jsonw.h"
#include "apps/server/dialects/request.h"

#include <string.h>

/* Sets the form. False: the request has one already. */
static bool take_form(request *rq, const char *field, format_kind kind, problem *p)
{
    if (rq->format != FORMAT_TEXT)
        return problem_set(p, 400, field, "'%s' and '%s' exclude each other", field,
                           rq->form_field);
    rq->format = kind;
    rq->form_field = field;
    return true;
}

static bool take_source(request *rq, const char *field, format_kind kind, const char *s, size_t n,
                        problem *p)
{
    rq->schema = s;
    rq->n_schema = n;
    return take_form(rq, field, kind, p);
}

/* The grammar compiler takes text. */
static bool take_schema(request *rq, const char *field, const jtree *schema, problem *p)
{
    str text = {0};
    const char *kept = NULL;
    json_tree(&text, NULL, schema);
    bool ok = !text.bad && keep_text(rq, p, str_text(&text), text.n, &kept);
    size_t n = text.n;
    str_free(&text);
    if (!ok)
        return problem_set(p, 503, "", "no memory for '%s'", field);
    return take_source(rq, field, FORMAT_JSON_SCHEMA, kept, n, p);
}

bool read_format(request *rq, const jtree *f, const char *field, bool flat, problem *p)
{
    const char *type = NULL;
    const jtree *schema = NULL, *holder = f;
    if (!f)
        return true;
    if (!field_text(p, f, "type", &type))
        return false;
    if (!type)
        return problem_set(p, 400, field, "'%s.type' is missing", field);
    if (!strcmp(type, "text"))
        return true;
    bool any = !strcmp(type, "json_object");
    if (!any && strcmp(type, "json_schema"))
        return problem_set(p, 400, field,
                           "'%s.type' is \"%.40s\"; expected text, json_object or json_schema",
                           field, type);
    if (!any && !flat && !field_kind(p, f, "json_schema", JTREE_OBJECT, &holder))
        return false;
    schema = jtree_get(holder, "schema");
    if (schema && schema->kind != JTREE_OBJECT && schema->kind != JTREE_TRUE)
        return problem_set(p, 400, field, "'%s' has a schema that is %s; expected an object", field,
                           jtree_kind_name(schema));
    if (!schema && !any)
        return problem_set(p, 400, field, "'%s' is of type json_schema, and has no schema", field);
    return schema ? take_schema(rq, field, schema, p) : take_form(rq, field, FORMAT_JSON_OBJECT, p);
}

/* A schema: an object, or the JSON text of one. */
bool read_schema(request *rq, const char *field, const jtree *v, problem *p)
{
    if (v->kind == JTREE_STRING)
        return take_source(rq, field, FORMAT_JSON_SCHEMA, v->s, v->n, p);
    if (v->kind != JTREE_OBJECT && v->kind != JTREE_TRUE)
        return problem_set(p, 400, field, "'%s' is %s; expected a JSON schema", field,
                           jtree_kind_name(v));
    return take_schema(rq, field, v, p);
}

static void put_alternative(str *o, const jtree *choice)
{
    static const char hex[] = "0123456789ABCDEF";
    str_putc(o, '"');
    for (size_t i = 0; i < choice->n; i++) {
        unsigned char c = (unsigned char)choice->s[i];
        if (c == '"' || c == '\\')
            str_putc(o, '\\');
        if (c < ' ') {
            str_puts(o, "\\x");
            str_putc(o, hex[c >> 4]);
            c = (unsigned char)hex[c & 15];
        }
        str_putc(o, (char)c);
    }
    str_putc(o, '"');
}

/* One of several strings, as GBNF. */
static bool read_choice(request *rq, const char *field, const jtree *v, problem *p)
{
    str text = {0};
    const char *kept = NULL;
    if (v->kind != JTREE_ARRAY || !v->count || v->count > REQUEST_MAX_WORDS)
        return problem_set(p, 400, field, "'%s' is %s; expected an array of 1 to %d strings", field,
                           jtree_kind_name(v), REQUEST_MAX_WORDS);
    str_puts(&text, "root ::= ");
    for (const jtree *i = v->first; i; i = i->next) {
        if (i->kind != JTREE_STRING) {
            str_free(&text);
            return problem_set(p, 400, field, "'%s' holds %s; expected strings", field,
                               jtree_kind_name(i));
        }
        put_alternative(&text, i);
        if (i->next)
            str_puts(&text, " | ");
    }
    bool ok = !text.bad && keep_text(rq, p, str_text(&text), text.n, &kept);
    size_t n = text.n;
    str_free(&text);
    if (!ok)
        return problem_set(p, 503, "", "no memory for '%s'", field);
    return take_source(rq, field, FORMAT_GRAMMAR, kept, n, p);
}

static bool read_string(request *rq, const char *field, format_kind kind, const jtree *v,
                        problem *p)
{
    if (v->kind != JTREE_STRING)
        return problem_set(p, 400, field, "'%s' is %s; expected a string", field,
                           jtree_kind_name(v));
    return !v->n || take_source(rq, field, kind, v->s, v->n, p);
}

static bool read_structured(request *rq, const jtree *o, problem *p)
{
    static const char *const harmless[] = {"disable_fallback", "disable_any_whitespace",
                                           "disable_additional_properties"};
    for (const jtree *v = o ? o->first : NULL; v; v = v->next) {
        bool ok = v->kind == JTREE_NULL;
        for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
            ok |= !strcmp(v->key, harmless[i]) && v->kind == JTREE_FALSE;
        if (!strcmp(v->key, "disable_fallback") || ok)
            continue;
        if (!strcmp(v->key, "json"))
            ok = read_schema(rq, "structured_outputs.json", v, p);
        else if (!strcmp(v->key, "regex"))
            ok = read_string(rq, "structured_outputs.regex", FORMAT_REGEX, v, p);
        else if (!strcmp(v->key, "grammar"))
            ok = read_string(rq, "structured_outputs.grammar", FORMAT_GRAMMAR, v, p);
        else if (!strcmp(v->key, "choice"))
            ok = read_choice(rq, "structured_outputs.choice", v, p);
        else if (!strcmp(v->key, "json_object"))
            ok = v->kind != JTREE_TRUE ||
                 take_form(rq, "structured_outputs.json_object", FORMAT_JSON_OBJECT, p);
        else
            ok = problem_set(p, 400, "structured_outputs",
                             "'structured_outputs' has \"%.60s\", which is not supported; "
                             "expected json, regex, choice, grammar or json_object",
                             v->key);
        if (!ok)
            return false;
    }
    return true;
}

bool read_forms(request *rq, problem *p)
{
    const jtree *b = rq->body, *v, *structured;
    if ((v = jtree_get(b, "grammar")) && !read_string(rq, "grammar", FORMAT_GRAMMAR, v, p))
        return false;
    if ((v = jtree_get(b, "json_schema")) && !read_schema(rq, "json_schema", v, p))
        return false;
    if ((v = jtree_get(b, "guided_json")) && !read_schema(rq, "guided_json", v, p))
        return false;
    bool object = false;
    if (!field_bool(p, b, "guided_json_object", &object) ||
        (object && !take_form(rq, "guided_json_object", FORMAT_JSON_OBJECT, p)))
        return false;
    if ((v = jtree_get(b, "guided_regex")) && !read_string(rq, "guided_regex", FORMAT_REGEX, v, p))
        return false;
    if ((v = jtree_get(b, "guided_choice")) && !read_choice(rq, "guided_choice", v, p))
        return false;
    if ((v = jtree_get(b, "guided_grammar")) &&
        !read_string(rq, "guided_grammar", FORMAT_GRAMMAR, v, p))
        return false;
    return field_kind(p, b, "structured_outputs", JTREE_OBJECT, &structured) &&
           read_structured(rq, structured, p);
}
