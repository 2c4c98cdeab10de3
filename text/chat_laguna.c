/* chat_laguna.c - conversations in the Laguna formats.
 *
 *     <EOS><system>...tools...</system>\n
 *     <user> ... </user>\n
 *     <assistant><think>...</think> content <tool_call>...</tool_call></assistant>\n
 *     <tool_response>...</tool_response>\n
 *     <assistant><think>          or </think>, which means: no thought
 *
 * <EOS> stands for the token of that name. The older template (v2, also called v5) puts a line feed
 * after every opening and before every closing mark, keeps all thoughts and spells out how to call.
 * The newer one (v8) has no line feeds and shows thoughts only if thinking is on.
 *
 * <user>, <system> and <tool_response> are no tokens of their own but plain text, so text of a
 * conversation can contain them; <assistant>, <think> and <tool_call> are tokens, and it cannot.
 *
 * Differences from the templates: parts of text are joined, where the templates drop them; the role
 * developer is the role system; with continue_last, the turn of a last assistant message without
 * calls stays open, and white space at its end is kept.
 */
#include "text/laguna.h"

#define DEFAULT_SYSTEM                                                                             \
    "You are a helpful, conversationally-fluent assistant made by Poolside. You are here to be "   \
    "helpful to users through natural language conversations."

typedef struct laguna {
    chat_writer *w;
    const carat_chat_options *opt;
    const talk_turn *m;
    size_t n;
    bool lines; /* v2/v5: marks stand on lines of their own */
} laguna;

/* A mark, and the line feed that the older template puts beside it. */
static void open_mark(laguna *l, const char *mark)
{
    chat_lit(l->w, mark);
    chat_lit(l->w, l->lines ? "\n" : "");
}

static void close_mark(laguna *l, const char *mark)
{
    chat_lit(l->w, l->lines ? "\n" : "");
    chat_lit(l->w, mark);
}

/* rstrip() of the template. */
static talk_text without_end(talk_text t)
{
    talk_text trimmed = chat_trimmed(t);
    return trimmed.n ? (talk_text){t.s, (size_t)(trimmed.s + trimmed.n - t.s)} : trimmed;
}

static void put_tools(laguna *l, const jtree *tools)
{
    char where[TALK_WHERE];
    size_t i = 0;
    chat_lit(l->w, "### Tools\n\nYou may call functions to assist with the user query.\n"
                   "All available function signatures are listed below:\n<available_tools>\n");
    for (const jtree *t = tools->first; t && !l->w->st; t = t->next, i++) {
        chat_tool_place(t, i, where);
        if (!chat_function_of(l->w, t, where))
            return;
        chat_put_json(l->w, t, where);
        chat_lit(l->w, "\n");
    }
    chat_lit(l->w, "</available_tools>");
    if (!l->lines)
        return;
    chat_lit(l->w, l->opt->thinking
                       ? "\n\nWrap your thinking in '<think>', '</think>' tags, followed by a "
                         "function call. For each function call, return an unescaped XML-like "
                         "object with function name and arguments within '<tool_call>' and "
                         "'</tool_call>' tags, like here:\n<think> your thoughts here </think>\n"
                       : "\n\nFor each function call, return an unescaped XML-like object with "
                         "function name and arguments within '<tool_call>' and '</tool_call>' "
                         "tags, like here:\n");
    chat_lit(l->w, "<tool_call>function-name\n<arg_key>argument-key</arg_key>\n"
                   "<arg_value>value-of-argument-key</arg_value>\n</tool_call>");
}

/* system: the text of the first message, or NULL for the default. */
static void put_system(laguna *l, const talk_text *system, const jtree *tools)
{
    talk_text text = system ? without_end(*system) : (talk_text){"", 0};
    bool any = !system || text.n;
    if (!any && !tools && (l->lines || !l->opt->thinking))
        return;
    open_mark(l, "<system>");
    if (any && l->lines)
        chat_lit(l->w, "\n");
    if (system)
        chat_put_text(l->w, text);
    else
        chat_lit(l->w, DEFAULT_SYSTEM);
    if (tools) {
        chat_lit(l->w, any || l->lines ? "\n\n" : "");
        put_tools(l, tools);
    }
    close_mark(l, "</system>\n");
}

static void put_call(laguna *l, const talk_turn *m, size_t i)
{
    char where[TALK_WHERE];
    const char *end = l->lines ? "\n" : "";
    const talk_text *name = chat_call_name(l->w, m, i);
    const jtree *a = name ? chat_arguments(l->w, m, i, where) : NULL;
    if (!name)
        return;
    chat_lit(l->w, "<tool_call>");
    chat_put(l->w, name->s, name->n);
    chat_lit(l->w, end);
    for (const jtree *it = a ? a->first : NULL; it && !l->w->st; it = it->next) {
        chat_lit(l->w, "<arg_key>");
        chat_put(l->w, it->key, it->n_key);
        chat_lit(l->w, "</arg_key>");
        chat_lit(l->w, end);
        chat_lit(l->w, "<arg_value>");
        chat_put_value(l->w, it, where);
        chat_lit(l->w, "</arg_value>");
        chat_lit(l->w, end);
    }
    chat_lit(l->w, "</tool_call>");
    chat_lit(l->w, end);
}

static talk_text thought_of(const talk_turn *m)
{
    talk_text a = m->thought[TALK_REASONING];
    return a.s ? a : m->thought[TALK_REASONING_CONTENT];
}

static void put_assistant(laguna *l, size_t i)
{
    const talk_turn *m = &l->m[i];
    talk_text whole = chat_text_of(l->w, m, NULL), content = whole;
    talk_text thought = thought_of(m), own;
    open_mark(l, "<assistant>");
    if (l->lines) {
        if (chat_split_thought(&content, "<think>", "</think>", &own) && !thought.n)
            thought = own;
        if (thought.n) {
            chat_lit(l->w, "<think>\n");
            chat_put_text(l->w, chat_trimmed(thought));
            chat_lit(l->w, "\n");
        }
        chat_lit(l->w, "</think>\n");
        content = chat_trimmed(content);
    } else {
        chat_lit(l->w, l->opt->thinking ? "<think>" : "");
        if (l->opt->thinking)
            chat_put_text(l->w, thought);
        chat_lit(l->w, "</think>");
    }
    chat_put_text(l->w, content);
    if (chat_goes_on(l->opt, l->m, l->n, i)) { /* the white space that was trimmed from its end */
        const char *end = content.s + content.n;
        chat_put(l->w, end, (size_t)(whole.s + whole.n - end));
        return;
    }
    if (content.n && l->lines)
        chat_lit(l->w, "\n");
    for (size_t k = 0; k < m->n_calls && !l->w->st; k++)
        put_call(l, m, k);
    chat_lit(l->w, "</assistant>\n");
}

static void put_message(laguna *l, size_t i)
{
    static const char *const marks[][2] = {{"<system>", "</system>\n"},
                                           {"<system>", "</system>\n"},
                                           {"<user>", "</user>\n"},
                                           {"<assistant>", "</assistant>\n"},
                                           {"<tool_response>", "</tool_response>\n"}};
    const talk_turn *m = &l->m[i];
    if (m->role == TALK_ASSISTANT) {
        put_assistant(l, i);
        return;
    }
    open_mark(l, marks[m->role][0]);
    chat_put_text(l->w, chat_text_of(l->w, m, NULL));
    close_mark(l, marks[m->role][1]);
}

void laguna_render(chat_writer *w, const chat_format *f, const carat_talk *t,
                   const carat_chat_options *opt)
{
    laguna l = {.w = w, .opt = opt, .lines = f->revision == LAGUNA_LINES};
    const talk_turn *m = l.m = t->turn;
    talk_text system = {"", 0};

    l.n = t->n;
    for (size_t i = 0; i < l.n; i++)
        chat_refuse_results(w, &m[i]);
    bool given = talk_is_system(&m[0]);
    if (given)
        system = chat_text_of(w, &m[0], NULL);
    chat_lit(w, LAGUNA_EOS);
    put_system(&l, given ? &system : NULL, chat_tools(t));
    for (size_t i = given; i < l.n && !w->st; i++)
        put_message(&l, i);
    if (opt->no_generation_prompt || chat_goes_on(opt, m, l.n, l.n - 1) || w->st)
        return;
    open_mark(&l, "<assistant>");
    chat_lit(w, opt->thinking ? "<think>" : "</think>");
    w->p->starts_thinking = opt->thinking;
}

/* Landmarks of the Jinja source, where a line feed in a literal is spelled \n. */
const chat_format *laguna_recognise(const char *t, size_t n)
{
    if (!chat_says(t, n, LAGUNA_EOS) || !chat_says(t, n, "<assistant>") ||
        !chat_says(t, n, "<tool_response>") || !chat_says(t, n, "<arg_key>"))
        return NULL;
    return &laguna_formats[chat_says(t, n, "<user>\\n") ? LAGUNA_LINES : LAGUNA_COMPACT];
}
