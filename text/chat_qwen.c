/* chat_qwen.c - conversations in the Qwen formats, in each revision of their template.
 *
 *     <|im_start|>system\n[tools] system text<|im_end|>\n
 *     <|im_start|>user\n ... <|im_end|>\n
 *     <|im_start|>assistant\n<think>\n...\n</think>\n\n content
 * <tool_call>...</tool_call><|im_end|>\n
 *     <|im_start|>user\n<tool_response>\n...\n</tool_response><|im_end|>\n
 *     <|im_start|>assistant\n
 *
 * Tools and calls have two spellings: JSON (Qwen3, and Qwen3-VL, whose answers have no thoughts
 * unless it is a Thinking variant), and <function=f><parameter=k> (Qwen3-Coder and everything after
 * it). The thought of an assistant
 * message is its reasoning_content or, except in Qwen3.8, the part of its content before </think>.
 * Thoughts before the last question are dropped, unless preserve_thinking says otherwise.
 *
 * Differences from the templates, in every revision; each replaces an exception or Python text:
 *   - The role developer is the role system. Where a template takes one system message, at the
 *     beginning only, all system messages are that one, wherever they stand.
 *   - Null content is empty content; parts of text are joined.
 *   - System messages behind the first are turns, as in Qwen3, where Qwen3-VL's template drops
 * them.
 *   - A thought may be called reasoning instead of reasoning_content.
 *   - Thinking variants always open a thought. Without thinking it is closed at once.
 *   - With continue_last, the turn of a last assistant message without calls stays open, and white
 *     space at its end is kept.
 */
#include "text/qwen.h"

#include <string.h>

static const chat_media marks = {
    .mark = {[TALK_IMAGE] = "<|vision_start|><|image_pad|><|vision_end|>",
             [TALK_VIDEO] = "<|vision_start|><|video_pad|><|vision_end|>"}};

typedef struct qwen {
    chat_writer *w;
    int32_t revision;
    const carat_chat_options *opt;
    const talk_turn *m;
    const talk_text *text; /* per message: its content */
    size_t n;
    int64_t last_query; /* thoughts after this message are kept */
} qwen;

static void put_text(qwen *q, talk_text t)
{
    chat_put_marked(q->w, &marks, t);
}

static bool trims(const qwen *q)
{
    return q->revision >= QWEN_35;
}

static bool sees(const qwen *q)
{
    return trims(q) || q->revision == QWEN_3_VL || q->revision == QWEN_3_OPENS;
}

/* Tools, calls and thoughts as in Qwen3. */
static bool of_qwen3(const qwen *q)
{
    return q->revision == QWEN_3 || q->revision == QWEN_3_OPENS;
}

static bool opens_thought(const qwen *q)
{
    return trims(q) || q->revision == QWEN_3_OPENS;
}

/* The content as the revision reads it. */
static talk_text content_of(const qwen *q, size_t i)
{
    return trims(q) ? chat_trimmed(q->text[i]) : q->text[i];
}

/* ---- The system block ---- */

#define CALL_EXAMPLE                                                                               \
    "<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n"    \
    "</parameter>\n<parameter=example_parameter_2>\n"
#define CALL_RULES                                                                                 \
    "- Required parameters MUST be specified\n- You may provide optional reasoning for your "      \
    "function call in natural language BEFORE the function call, but NOT after\n- If there is no " \
    "function call available, answer the question like normal with your current knowledge and do " \
    "not tell the user about function calls\n</IMPORTANT>"

/* The tools as one JSON object per line. */
static void put_json_tools(qwen *q, const jtree *tools)
{
    char where[TALK_WHERE];
    size_t i = 0;
    for (const jtree *t = tools->first; t && !q->w->st; t = t->next, i++) {
        chat_tool_place(t, i, where);
        if (!chat_function_of(q->w, t, where))
            return;
        chat_lit(q->w, "\n");
        chat_put_json(q->w, t, where);
    }
    chat_lit(q->w, "\n</tools>");
}

/* The type of a parameter: a word, or the list of words in Python's spelling. */
static void put_type(qwen *q, const jtree *type, const char *where)
{
    bool list = type->kind == JTREE_ARRAY;
    if (list)
        chat_lit(q->w, "[");
    for (const jtree *it = list ? type->first : type; it; it = list ? it->next : NULL) {
        if (list &&
            (it->kind != JTREE_STRING || memchr(it->s, '\'', it->n) || memchr(it->s, '\\', it->n)))
            chat_fail(q->w, E_FORMAT, "%s: a type is %s, not a word", where, jtree_kind_name(it));
        if (it->kind == JTREE_OBJECT)
            chat_fail(q->w, E_FORMAT, "%s: a type is an object, not a word", where);
        chat_lit(q->w, list ? "'" : "");
        chat_put_python(q->w, it, where);
        chat_lit(q->w, list ? "'" : "");
        chat_lit(q->w, list && it->next ? ", " : "");
    }
    if (list)
        chat_lit(q->w, "]");
}

static void put_element(qwen *q, const char *name, size_t n, const jtree *v, const char *where)
{
    chat_lit(q->w, "\n<");
    chat_put(q->w, name, n);
    chat_lit(q->w, ">");
    chat_put_python(q->w, v, where);
    chat_lit(q->w, "</");
    chat_put(q->w, name, n);
    chat_lit(q->w, ">");
}

static void put_coder_description(qwen *q, const jtree *of, const char *where)
{
    const jtree *text = jtree_get(of, "description");
    if (!jtree_has(of, "description"))
        return;
    if (text && text->kind != JTREE_STRING) {
        chat_fail(q->w, E_FORMAT, "%s: a description is %s, not a string", where,
                  jtree_kind_name(text));
        return;
    }
    chat_lit(q->w, "\n<description>");
    put_text(q, text ? chat_trimmed((talk_text){text->s, text->n}) : (talk_text){"None", 4});
    chat_lit(q->w, "</description>");
}

/* The members that no element of their own shows. */
static void put_other_members(qwen *q, const jtree *of, const char *const *shown, const char *where)
{
    for (const jtree *it = jtree_is(of, JTREE_OBJECT) ? of->first : NULL; it; it = it->next)
        if (!text_is_one_of(shown, it->key, it->n_key))
            put_element(q, it->key, it->n_key, it, where);
}

static void put_coder_tool(qwen *q, const jtree *tool, size_t i)
{
    char where[TALK_WHERE];
    chat_tool_place(tool, i, where);
    const jtree *f = chat_function_of(q->w, tool, where), *name = jtree_get(f, "name");
    const jtree *params = jtree_get(f, "parameters"), *map = jtree_get(params, "properties");
    if (!f)
        return;
    chat_lit(q->w, "\n<function>\n<name>");
    chat_put(q->w, name->s, name->n);
    chat_lit(q->w, "</name>");
    put_coder_description(q, f, where);
    chat_lit(q->w, "\n<parameters>");
    for (const jtree *p = jtree_is(map, JTREE_OBJECT) ? map->first : NULL; p; p = p->next) {
        chat_lit(q->w, "\n<parameter>\n<name>");
        chat_put(q->w, p->key, p->n_key);
        chat_lit(q->w, "</name>");
        if (jtree_has(p, "type")) {
            static const jtree none = {.kind = JTREE_NULL};
            const jtree *type = jtree_get(p, "type");
            chat_lit(q->w, "\n<type>");
            put_type(q, type ? type : &none, where);
            chat_lit(q->w, "</type>");
        }
        put_coder_description(q, p, where);
        put_other_members(q, p, STRINGS("name", "type", "description"), where);
        chat_lit(q->w, "\n</parameter>");
    }
    put_other_members(q, params, STRINGS("type", "properties"), where);
    chat_lit(q->w, "\n</parameters>");
    put_other_members(q, f, STRINGS("type", "name", "description", "parameters"), where);
    chat_lit(q->w, "\n</function>");
}

/* system: the first message is one. */
static void put_system_qwen3(qwen *q, bool system, const jtree *tools)
{
    if (!system && !tools)
        return;
    chat_lit(q->w, "<|im_start|>system\n");
    if (system)
        put_text(q, content_of(q, 0));
    if (tools) {
        chat_lit(q->w, system ? "\n\n" : "");
        chat_lit(q->w,
                 "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                 "You are provided with function signatures within <tools></tools> XML tags:\n"
                 "<tools>");
        put_json_tools(q, tools);
        chat_lit(q->w,
                 "\n\nFor each function call, return a json object with function name and "
                 "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
                 "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>");
    }
    chat_lit(q->w, "<|im_end|>\n");
}

static void put_system_coder(qwen *q, bool system, const jtree *tools)
{
    size_t i = 0;
    if (!system && !tools)
        return;
    chat_lit(q->w, "<|im_start|>system\n");
    if (system)
        put_text(q, content_of(q, 0));
    else
        chat_lit(q->w, "You are Qwen, a helpful AI assistant that can interact with a computer to "
                       "solve tasks.");
    if (tools) {
        chat_lit(q->w, "\n\n# Tools\n\nYou have access to the following tools:\n\n<tools>");
        for (const jtree *t = tools->first; t && !q->w->st; t = t->next)
            put_coder_tool(q, t, i++);
        chat_lit(q->w,
                 "\n</tools>\n\nIf you choose to call a tool ONLY reply in the following format "
                 "with NO suffix:\n\n" CALL_EXAMPLE "value_2\n</parameter>\n</function>\n"
                 "</tool_call>\n\n<IMPORTANT>\nReminder:\n- Function calls MUST follow the "
                 "specified format: the tool calling block MUST begin with an opening <tool_call> "
                 "tag and end with a closing </tool_call> tag.\n" CALL_RULES);
    }
    chat_lit(q->w, "<|im_end|>\n");
}

/* Qwen3.8's instruction about the effort of a thought; "" for the middle one. */
static const char *effort_text(qwen *q)
{
    static const char *const low[] = {"low", "minimal", NULL}, *const medium[] = {"medium", NULL};
    static const char *const high[] = {"xhigh", "x-high", "high", "max", NULL};
    const char *effort = q->opt->reasoning_effort ? q->opt->reasoning_effort : "xhigh";
    size_t n = strlen(effort);
    if (q->revision != QWEN_38 || !q->opt->thinking || text_is_one_of(medium, effort, n))
        return "";
    if (text_is_one_of(low, effort, n))
        return "Reasoning effort is set to low. Keep your thinking brief and focused, moving "
               "directly to the conclusion without unnecessary elaboration.";
    if (!text_is_one_of(high, effort, n))
        chat_fail(q->w, E_ARG,
                  "the reasoning effort is \"%.40s\"; this model knows low, medium and xhigh",
                  effort);
    return "Reasoning effort is set to xhigh. Please think carefully through the task, validate "
           "key assumptions, consider plausible alternatives, and prioritize correctness, "
           "consistency, and clarity in the final answer.";
}

/* Qwen3.5 and later. The n_system first messages are the system message. */
static void put_system_qwen35(qwen *q, size_t n_system, const jtree *tools)
{
    const char *effort = effort_text(q);
    bool any_text = false;
    for (size_t i = 0; i < n_system; i++)
        any_text |= content_of(q, i).n > 0;
    if (!tools && !*effort && !(n_system && (any_text || q->revision < QWEN_38)))
        return;
    chat_lit(q->w, "<|im_start|>system\n");
    chat_lit(q->w, effort);
    if (*effort && (tools || any_text))
        chat_lit(q->w, "\n\n");
    if (tools) {
        chat_lit(q->w, "# Tools\n\nYou have access to the following functions:\n\n<tools>");
        put_json_tools(q, tools);
        chat_lit(q->w,
                 "\n\nIf you choose to call a function ONLY reply in the following format with NO "
                 "suffix:\n\n" CALL_EXAMPLE "This is the value for the second parameter\nthat can "
                 "span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\n"
                 "Reminder:\n- Function calls MUST follow the specified format: an inner "
                 "<function=...></function> block must be nested within <tool_call></tool_call> "
                 "XML tags\n" CALL_RULES);
    }
    for (size_t i = 0, n_put = tools != NULL; i < n_system; i++) {
        talk_text t = content_of(q, i);
        if (!t.n)
            continue;
        chat_lit(q->w, n_put++ ? "\n\n" : "");
        put_text(q, t);
    }
    chat_lit(q->w, "<|im_end|>\n");
}

/* ---- Calls ---- */

static void put_json_call(qwen *q, const talk_turn *m, size_t i)
{
    char where[TALK_WHERE];
    const talk_text *name = chat_call_name(q->w, m, i);
    const jtree *a = name ? chat_arguments(q->w, m, i, where) : NULL;
    const jtree *given = m->call[i].arguments;
    if (!name)
        return;
    chat_lit(q->w, "<tool_call>\n{\"name\": \"");
    chat_put(q->w, name->s, name->n);
    chat_lit(q->w, "\", \"arguments\": ");
    if (!a)
        chat_lit(q->w, "{}");
    else if (given->kind == JTREE_STRING && !chat_is_wrapped(a))
        chat_put(q->w, given->s, given->n); /* the text that the model wrote */
    else
        chat_put_json(q->w, a, where);
    chat_lit(q->w, "}\n</tool_call>");
}

static void put_xml_call(qwen *q, const talk_turn *m, size_t i)
{
    char where[TALK_WHERE];
    const talk_text *name = chat_call_name(q->w, m, i);
    const jtree *a = name ? chat_arguments(q->w, m, i, where) : NULL;
    if (!name)
        return;
    chat_lit(q->w, "<tool_call>\n<function=");
    chat_put(q->w, name->s, name->n);
    chat_lit(q->w, ">\n");
    for (const jtree *it = a ? a->first : NULL; it && !q->w->st; it = it->next) {
        chat_lit(q->w, "<parameter=");
        chat_put(q->w, it->key, it->n_key);
        chat_lit(q->w, ">\n");
        if (q->revision >= QWEN_36 || it->kind == JTREE_ARRAY || it->kind == JTREE_OBJECT)
            chat_put_value(q->w, it, where);
        else
            chat_put_python(q->w, it, where);
        chat_lit(q->w, "\n</parameter>\n");
    }
    chat_lit(q->w, "</function>\n</tool_call>");
}

/* ---- Turns ---- */

static void put_thought_block(qwen *q, talk_text thought)
{
    chat_lit(q->w, "<think>\n");
    put_text(q, thought);
    chat_lit(q->w, "\n</think>\n\n");
}

static void put_calls_after(qwen *q, const talk_turn *m, bool content)
{
    const char *first = !content ? "" : trims(q) ? "\n\n" : "\n";
    for (size_t i = 0; i < m->n_calls && !q->w->st; i++) {
        chat_lit(q->w, i ? "\n" : first);
        if (of_qwen3(q) || q->revision == QWEN_3_VL)
            put_json_call(q, m, i);
        else
            put_xml_call(q, m, i);
    }
}

static void put_assistant(qwen *q, size_t i)
{
    const talk_turn *m = &q->m[i];
    talk_text content = content_of(q, i), thought = m->thought[TALK_REASONING_CONTENT];
    thought = thought.s ? thought : m->thought[TALK_REASONING];
    if (!thought.s && q->revision != QWEN_38 && q->revision != QWEN_3_VL)
        chat_split_thought(&content, "<think>", "</think>", &thought);

    bool current = (int64_t)i > q->last_query;
    talk_text shown = content;
    chat_lit(q->w, "<|im_start|>assistant\n");
    if (of_qwen3(q)) {
        if (current && (i + 1 == q->n || thought.n)) {
            put_thought_block(q, chat_without_lines(thought, true, true));
            shown = chat_without_lines(content, true, false);
        }
    } else if (q->revision != QWEN_3_VL) {
        bool keep = q->revision == QWEN_36   ? q->opt->preserve_thinking
                    : q->revision == QWEN_38 ? !q->opt->drop_thinking
                                             : false;
        if (current || keep)
            put_thought_block(q, chat_trimmed(thought));
    }
    put_text(q, shown);
    if (chat_goes_on(q->opt, q->m, q->n, i)) { /* the white space that was trimmed from its end */
        const char *end = shown.s + shown.n, *all = q->text[i].s + q->text[i].n;
        chat_put(q->w, end, (size_t)(all - end));
        return;
    }
    put_calls_after(q, m, trims(q) ? chat_trimmed(content).n > 0 : content.n > 0);
    chat_lit(q->w, "<|im_end|>\n");
}

static void put_coder_assistant(qwen *q, size_t i)
{
    const talk_turn *m = &q->m[i];
    talk_text content = content_of(q, i);
    chat_lit(q->w, "<|im_start|>assistant");
    if (!m->n_calls) {
        chat_lit(q->w, "\n");
        put_text(q, content);
        if (chat_goes_on(q->opt, q->m, q->n, i))
            return;
    } else if (chat_trimmed(content).n) {
        chat_lit(q->w, "\n");
        put_text(q, chat_trimmed(content));
        chat_lit(q->w, "\n");
    }
    for (size_t k = 0; k < m->n_calls && !q->w->st; k++) {
        chat_lit(q->w, "\n");
        put_xml_call(q, m, k);
    }
    chat_lit(q->w, "<|im_end|>\n");
}

/* Results in a row share one user turn. */
static void put_result(qwen *q, size_t i, bool first)
{
    bool coder = q->revision == QWEN_3_CODER;
    if (first || q->m[i - 1].role != TALK_TOOL)
        chat_lit(q->w, coder ? "<|im_start|>user\n" : "<|im_start|>user");
    chat_lit(q->w, coder ? "<tool_response>\n" : "\n<tool_response>\n");
    put_text(q, content_of(q, i));
    chat_lit(q->w, coder ? "\n</tool_response>\n" : "\n</tool_response>");
    if (i + 1 == q->n || q->m[i + 1].role != TALK_TOOL)
        chat_lit(q->w, "<|im_end|>\n");
}

static void put_turn(qwen *q, size_t i)
{
    const talk_turn *m = &q->m[i];
    chat_lit(q->w, talk_is_system(m) ? "<|im_start|>system\n" : "<|im_start|>user\n");
    put_text(q, content_of(q, i));
    chat_lit(q->w, "<|im_end|>\n");
}

/* The last user message that is no result of a tool. False: none. */
static bool find_query(qwen *q)
{
    static const char open[] = "<tool_response>", close[] = "</tool_response>";
    q->last_query = (int64_t)q->n - 1;
    for (size_t i = q->n; i-- > 0 && !q->w->st;) {
        if (q->m[i].role != TALK_USER)
            continue;
        talk_text t = content_of(q, i);
        bool result = t.n >= sizeof open - 1 && !memcmp(t.s, open, sizeof open - 1) &&
                      t.n >= sizeof close - 1 &&
                      !memcmp(t.s + t.n - (sizeof close - 1), close, sizeof close - 1);
        if (!result) {
            q->last_query = (int64_t)i;
            return true;
        }
    }
    return false;
}

static void put_beginning_of_answer(qwen *q)
{
    bool thinking = q->opt->thinking;
    chat_lit(q->w, "<|im_start|>assistant\n");
    if (q->revision == QWEN_3_CODER || q->revision == QWEN_3_VL)
        return;
    if (!thinking)
        chat_lit(q->w, "<think>\n\n</think>\n\n");
    else if (opens_thought(q))
        chat_lit(q->w, "<think>\n");
    q->w->p->starts_thinking = thinking && opens_thought(q);
}

/* The turns with the system's in front, in their order. Returns how many of these there are. */
static size_t gather_system(talk_turn *out, const carat_talk *t)
{
    size_t n_system = 0, n_others = 0;
    for (size_t i = 0; i < t->n; i++)
        if (talk_is_system(&t->turn[i]))
            out[n_system++] = t->turn[i];
    for (size_t i = 0; i < t->n; i++)
        if (!talk_is_system(&t->turn[i]))
            out[n_system + n_others++] = t->turn[i];
    return n_system;
}

void qwen_render(chat_writer *w, const chat_format *f, const carat_talk *t,
                 const carat_chat_options *opt)
{
    qwen q = {.w = w, .revision = f->revision, .opt = opt, .n = t->n};
    talk_turn *m = arena_array(w->mem, q.n, sizeof *m);
    talk_text *text = arena_array(w->mem, q.n, sizeof *text);
    const jtree *tools = chat_tools(t);
    size_t n_system, i;

    q.m = m;
    q.text = text;
    if (!m || !text) {
        chat_fail(w, E_MEMORY, "no memory for %zu messages", q.n);
        return;
    }
    memcpy(m, t->turn, q.n * sizeof *m);
    n_system = trims(&q) ? gather_system(m, t) : talk_is_system(&m[0]);
    for (i = 0; i < q.n; i++) {
        text[i] = chat_text_of(w, &m[i], sees(&q) ? &marks : NULL);
        chat_refuse_results(w, &m[i]);
    }
    if (w->st)
        return;
    if (!find_query(&q) && trims(&q))
        chat_fail(w, E_FORMAT,
                  "messages has no message of the user, and this model's template needs one");
    if (of_qwen3(&q) || q.revision == QWEN_3_VL)
        put_system_qwen3(&q, n_system > 0, tools);
    else if (q.revision == QWEN_3_CODER)
        put_system_coder(&q, n_system > 0, tools);
    else
        put_system_qwen35(&q, n_system, tools);
    for (i = n_system; i < q.n && !w->st; i++) {
        if (m[i].role == TALK_ASSISTANT && q.revision == QWEN_3_CODER)
            put_coder_assistant(&q, i);
        else if (m[i].role == TALK_ASSISTANT)
            put_assistant(&q, i);
        else if (m[i].role == TALK_TOOL)
            put_result(&q, i, i == n_system);
        else
            put_turn(&q, i);
    }
    if (!opt->no_generation_prompt && !chat_goes_on(opt, q.m, q.n, q.n - 1) && !w->st)
        put_beginning_of_answer(&q);
}

/* ---- Recognising a template ---- */

/* Landmarks of the Jinja source. */
const chat_format *qwen_recognise(const char *t, size_t n)
{
    if (!chat_says(t, n, "<|im_start|>") || !chat_says(t, n, "<tool_call>") ||
        !chat_says(t, n, "<tool_response>"))
        return NULL;
    bool thinks = chat_says(t, n, "</think>") && chat_says(t, n, "enable_thinking");
    if (chat_says(t, n, "<function="))
        return !thinks ? chat_says(t, n, "<parameters>") ? &qwen_formats[QWEN_3_CODER] : NULL
               : chat_says(t, n, "reasoning_effort")  ? &qwen_formats[QWEN_38]
               : chat_says(t, n, "preserve_thinking") ? &qwen_formats[QWEN_36]
                                                      : &qwen_formats[QWEN_35];
    if (!chat_says(t, n, "<function-name>"))
        return NULL;
    if (thinks)
        return &qwen_formats[QWEN_3];
    if (chat_says(t, n, "</think>")) /* the end of the prompt decides */
        return chat_says(t, n, "<|im_start|>assistant\\n<think>\\n'") ? &qwen_formats[QWEN_3_OPENS]
                                                                      : NULL;
    return chat_says(t, n, "<|image_pad|>") ? &qwen_formats[QWEN_3_VL] : NULL;
}
