/* run_chat.c - a conversation and its turns, in a one-shot run and in an interactive one.
 *
 * A conversation is kept as messages, not as tokens. Each turn hands the whole prompt to the
 * session, which reuses the part that it has computed already.
 */
#include "apps/run_int.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <errno.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

enum { JSON_FILE_MAX = TALK_BYTES }; /* bytes of a tools or conversation file */

status check_utf8(const char *what, const char *text, size_t n, err *e)
{
    for (size_t at = 0; at < n;) {
        uint32_t cp;
        bool ok;
        int len = utf8_decode(text + at, n - at, &cp, &ok);
        if (!ok)
            return err_set(e, E_ARG, "%s is not valid UTF-8 at byte %zu", what, at);
        at += (size_t)len;
    }
    return OK;
}

static status chat_no_memory(err *e)
{
    return err_memory(e, "the conversation", 256);
}

/* ---- Open and close -------------------------------------------------------------------- */

/* Parses "1234=-5" or "7=-inf": a token id and the number added to its logit. */
static status parse_bias(const char *text, int32_t n_vocab, carat_logit_bias *out, err *e)
{
    char *end;
    errno = 0;
    long id = strtol(text, &end, 10);
    if (end == text || *end != '=' || errno || id < 0 || id >= n_vocab)
        return err_set(e, E_ARG, "--logit-bias %.40s: expected ID=X with an id from 0 to %d", text,
                       n_vocab - 1);
    const char *number = end + 1;
    float bias = strtof(number, &end);
    if (end == number || *end || !(bias <= FLT_MAX))
        return err_set(e, E_ARG, "--logit-bias %.40s: expected ID=X with a number X or -inf", text);
    *out = (carat_logit_bias){(int32_t)id, bias};
    return OK;
}

/* Takes the model's recommended settings and replaces those that the user gave. */
static status choose_sampling(chat *c, const run_options *o, err *e)
{
    carat_sampling *p = &c->sampling;
    status st;
    carat_sampling_default(c->m, p);
    if ((st = sample_options_apply(&o->sample, p, e)))
        return st;
    if (o->greedy)
        p->temperature = 0;
    if (c->seed_given)
        p->seed = (uint32_t)o->seed;
    p->ignore_eog = o->ignore_eog;
    for (int i = 0; i < o->logit_bias.n; i++)
        if ((st = parse_bias(o->logit_bias.at[i], c->info.n_vocab, &c->bias[i], e)))
            return st;
    p->bias = c->bias;
    p->n_bias = o->logit_bias.n;
    return OK;
}

bool effort_known(const char *level)
{
    static const char *const levels[] = {"minimal", "low", "medium", "high", "xhigh", "max", NULL};
    size_t i = 0;
    while (levels[i] && strcmp(levels[i], level))
        i++;
    return levels[i];
}

status chat_apply_settings(chat *c, err *e)
{
    if (c->o.effort && !effort_known(c->o.effort))
        return err_set(e, E_ARG, "effort %.40s: expected " EFFORT_LEVELS, c->o.effort);
    uint32_t seed = c->sampling.seed;
    c->seed_given = c->o.seed != RUN_UNSET;
    status st = choose_sampling(c, &c->o, e);
    if (!c->seed_given)
        c->sampling.seed = seed;
    c->max_tokens = (int32_t)c->o.n_tokens;
    return st;
}

char *chat_keep_text(chat *c, const char *text)
{
    char *block = mem_alloc(sizeof c->texts + strlen(text) + 1);
    if (!block)
        return NULL;
    memcpy(block, &c->texts, sizeof c->texts);
    c->texts = block;
    return strcpy(block + sizeof c->texts, text);
}

static status open_form(chat *c, bool starts_thinking, carat_grammar **g, err *e)
{
    carat_grammar_options o = {.kind = c->form_kind,
                               .source = c->form,
                               .n_source = c->n_form,
                               .thinking = c->thinking && !c->raw,
                               .starts_thinking = starts_thinking};
    return carat_grammar_open(c->m, &o, g, e);
}

/* Reads the schema or grammar of answers and compiles it once, to report errors early. */
static status load_form(chat *c, const run_options *o, err *e)
{
    enum { FORM_MAX = 1 << 20 };
    const char *path = o->schema_file ? o->schema_file : o->grammar_file;
    carat_grammar *g;
    err why = {0};
    if ((o->schema_file != NULL) + (o->grammar_file != NULL) + o->json > 1)
        return err_set(e, E_ARG, "--json, --json-schema and --grammar exclude each other");
    if (!path && !o->json)
        return OK;
    status st = path ? file_read_all(path, FORM_MAX, &c->form, &c->n_form, e) : OK;
    c->has_form = true;
    c->form_kind = o->schema_file    ? CARAT_GRAMMAR_JSON_SCHEMA
                   : o->grammar_file ? CARAT_GRAMMAR_GBNF
                                     : CARAT_GRAMMAR_JSON;
    if (st || !(st = open_form(c, false, &g, &why))) {
        if (!st)
            carat_grammar_close(g);
        return st;
    }
    return err_set(e, st, "%s%s%s", path ? path : "", path ? ": " : "", why.text);
}

/* What "auto" of --sparse comes to is told before the first prompt. */
static status tell_sparse(const chat *c, err *e)
{
    char text[320];
    const char *sparse = c->o.sparse;
    status st = sparse ? carat_sparse_describe(c->m, sparse, text, sizeof text, e) : OK;
    if (sparse && !st && !c->quiet && (c->o.verbose || !strncmp(sparse, "auto", 4)))
        term_note("sparse attention %s: %s", sparse, text);
    return st;
}

static status open_scorer(chat *c, err *e)
{
    const scorer_ask ask = {.path = c->o.compress.model,
                            .pages = c->o.pool.scorer,
                            .isa = c->o.isa,
                            .threads = (int32_t)c->o.threads,
                            .overcommit = c->o.overcommit};
    status st = scorer_open(&c->scorer, c->m, &ask, e);
    return st ? st : carat_compressor_open(&c->shortened, 0, e);
}

status chat_open(chat *c, const run_options *o, err *e)
{
    status st;
    *c = (chat){.o = *o, .raw = o->raw, .quiet = o->quiet};
    if ((st = compress_options_read(&o->compress, &c->compress, &c->compresses, e)))
        return st;
    if (o->think && o->no_think)
        return err_set(e, E_ARG, "--think and --no-think exclude each other");
    if (o->preserve_thinking && o->drop_thinking)
        return err_set(e, E_ARG, "--preserve-thinking and --drop-thinking exclude each other");
    carat_session_options so = {
        .n_ctx = (int32_t)o->n_ctx, .chunk = (int32_t)o->chunk, .n_outputs = 1};
    kv_options_apply(&o->kv, &so);
    if ((st = pool_options_apply(&o->pool, &so, e)))
        return st;
    cache_options_apply(&o->cache, &so);
    draft_options_apply(&o->draft, NULL, &so);
    so.sparse = o->sparse;
    run_options with = *o;
    with.where.session = &so;
    with.where.tell = o->verbose ? stderr : NULL;
    if ((st = run_open_model(o->model, &with, &c->m, e)))
        goto out;
    carat_model_get_info(c->m, &c->info);
    c->thinking = o->think || (c->info.thinks && !o->no_think);
    if ((st = tell_sparse(c, e)))
        goto out;
    if (o->verbose && c->info.drafter)
        term_note("drafter %s: %s", c->info.drafter, c->info.drafter_why);
    else if (o->verbose)
        term_note("drafter none");
    for (const char *at = o->verbose ? c->info.drafter_notes : ""; *at;) {
        int n = (int)strcspn(at, "\n");
        term_note("drafter's file: %.*s", n, at);
        at += n + (at[n] != 0);
    }
    if (!c->info.has_vocab) {
        st = err_set(e, E_UNSUPPORTED, "%s has no vocabulary, so it cannot read a prompt",
                     c->info.name);
        goto out;
    }
    if (!c->info.has_chat && !c->raw) {
        options_tell_fact("chat", false, "the model has no chat format");
        term_note("%s has no chat format: completing plain text", c->info.name);
        c->raw = true;
    }
    carat_marks marks;
    carat_model_get_marks(c->m, &marks);
    if (!c->raw && marks.thought_open < 0)
        options_tell_fact("thoughts", false, "the answers of this model have no thoughts");
    if ((st = chat_apply_settings(c, e)) || (st = load_form(c, o, e)))
        goto out;
    if (c->compresses && (st = open_scorer(c, e)))
        goto out;
    if ((st = carat_session_open(c->m, &so, &c->s, e)))
        goto out;
    pool_note_open(c->s);
    answer_format format = o->json_events ? ANSWER_EVENTS : o->format ? ANSWER_OBJECT : ANSWER_TEXT;
    if ((st = answer_init(&c->out, format, false, e)))
        goto out;
    c->messages = json_array();
    c->deleted = json_array();
    if (!c->messages || !c->deleted) {
        st = chat_no_memory(e);
        goto out;
    }
    if (o->system && (st = chat_set_system(c, o->system, e)))
        goto out;
    if (o->tools_file && (st = chat_load_tools(c, o->tools_file, e)))
        goto out;
    if (o->messages_file && (st = chat_load(c, o->messages_file, e)))
        goto out;
    if (c->raw && !o->raw && (o->tools_file || o->messages_file))
        st = err_set(e, E_UNSUPPORTED, "--%s: %s has no chat format",
                     o->tools_file ? "tools" : "messages", c->info.name);
out:
    if (st)
        chat_close(c);
    return st;
}

void chat_close(chat *c)
{
    if (c->s)
        term_watch(NULL); /* the session is closed below: no signal may cancel it any more */
    answer_free(&c->out);
    while (c->texts) {
        char *block = c->texts;
        memcpy(&c->texts, block, sizeof c->texts);
        mem_free(block);
    }
    chat_free_pictures(c);
    str_free(&c->files);
    str_free(&c->raw_text);
    str_free(&c->waiting);
    mem_free(c->form);
    mem_free(c->tools);
    mem_free(c->offered);
    mcp_set_close(c->mcp);
    mcp_specs_free(&c->specs);
    mem_free(c->system);
    json_decref(c->messages);
    json_decref(c->deleted);
    if (c->s) {
        carat_cache_info cache;
        carat_session_cache(c->s, &cache);
        if (cache.last_error[0])
            term_note("kept conversations: %s", cache.last_error);
    }
    carat_session_close(c->s);
    carat_compressed_free(&c->last);
    carat_talk_close(c->rendered);
    carat_compressor_close(c->shortened);
    scorer_close(&c->scorer);
    carat_model_close(c->m);
    *c = (chat){0};
}

/* ---- Messages ---------------------------------------------------------------------- */

status chat_set_system(chat *c, const char *text, err *e)
{
    char *copy = NULL;
    status st = text ? check_utf8("the system message", text, strlen(text), e) : OK;
    if (st)
        return st;
    if (text && *text && !(copy = mem_strdup(text)))
        return chat_no_memory(e);
    mem_free(c->system);
    c->system = copy;
    return OK;
}

/* The model gets the declarations as they are written in the file. Parsing only checks them. */
status chat_load_tools(chat *c, const char *path, err *e)
{
    json_t *list = NULL;
    char *text = NULL;
    str array = {0};
    status st = json_read_words(&list, &text, path, JSON_FILE_MAX, e);
    if (st)
        return st;
    if (json_is_object(list)) /* a single tool without its list */
        str_printf(&array, "[%s]", text);
    else
        str_puts(&array, text);
    bool fits = json_is_object(list) || json_is_array(list);
    json_decref(list);
    mem_free(text);
    if (!fits || array.bad) {
        st = fits ? chat_no_memory(e)
                  : err_set(e, E_FORMAT, "%s: expected an array of tool declarations", path);
        str_free(&array);
        return st;
    }
    char *before = c->tools;
    c->tools = str_take(&array);
    if ((st = chat_offer_tools(c, e))) {
        mem_free(c->tools);
        c->tools = before;
        return st;
    }
    mem_free(before);
    return OK;
}

void chat_drop_tools(chat *c)
{
    mem_free(c->tools);
    c->tools = NULL;
    chat_offer_tools(c, NULL);
}

static status append_user(chat *c, const char *text, size_t n, bool pictured, err *e)
{
    status st = check_utf8("the prompt", text, n, e);
    if (st)
        return st;
    json_t *content = pictured ? chat_user_content(c, text, n) : json_stringn(text, n);
    if (!content || json_array_append_new(
                        c->messages, json_pack("{s:s, s:o}", "role", "user", "content", content)))
        return chat_no_memory(e);
    return OK;
}

/* The files as a message before the one that asks, because the last one is never shortened. */
static status add_files_apart(chat *c, const char *text, size_t n, err *e)
{
    status st = append_user(c, str_text(&c->files), c->files.n, false, e);
    if (st)
        return st;
    if ((st = append_user(c, text, n, true, e))) {
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
        return st;
    }
    str_free(&c->files);
    c->n_files = 0;
    return OK;
}

/* c->files holds the files, and then the whole message. */
static status add_user_with_files(chat *c, const char *text, size_t n, err *e)
{
    size_t n_files_bytes = c->files.n;
    if (n && !c->raw)
        str_putc(&c->files, '\n');
    str_put(&c->files, text, n);
    str whole = c->files;
    int n_files = c->n_files;
    c->files = (str){0};
    c->n_files = 0;
    status st = whole.bad ? chat_no_memory(e) : chat_add_user(c, whole.at, whole.n, e);
    if (!st) {
        str_free(&whole);
        return OK;
    }
    whole.bad = false;
    str_cut(&whole, n_files_bytes);
    c->files = whole;
    c->n_files = n_files;
    return st;
}

status chat_add_user(chat *c, const char *text, size_t n, err *e)
{
    if (!c->title && n)
        chat_name(c, text);
    if (c->n_files && c->compresses && n && !c->raw)
        return add_files_apart(c, text, n, e);
    if (c->n_files)
        return add_user_with_files(c, text, n, e);
    if (c->raw) {
        c->raw_mark = c->raw_text.n;
        str_put(&c->raw_text, text, n);
        return c->raw_text.bad ? chat_no_memory(e) : OK;
    }
    return append_user(c, text, n, true, e);
}

static const char *message_role(const json_t *messages, size_t i)
{
    const char *role = json_string_value(json_object_get(json_array_get(messages, i), "role"));
    return role ? role : "";
}

/* The calls of the last message that is no tool result, and the number of results after it. */
static json_t *pending_calls(const chat *c, size_t *n_results)
{
    size_t i = json_array_size(c->messages);
    *n_results = 0;
    while (i-- > 0 && !strcmp(message_role(c->messages, i), "tool"))
        ++*n_results;
    if (i == (size_t)-1)
        return NULL;
    return json_object_get(json_array_get(c->messages, i), "tool_calls");
}

int chat_open_calls(const chat *c)
{
    size_t n_results;
    json_t *calls = pending_calls(c, &n_results);
    size_t n = json_array_size(calls);
    return n > n_results ? (int)(n - n_results) : 0;
}

const char *chat_open_call(const chat *c, const char **arguments)
{
    size_t n_results;
    json_t *calls = pending_calls(c, &n_results);
    const json_t *fn = json_object_get(json_array_get(calls, n_results), "function");
    *arguments = json_string_value(json_object_get(fn, "arguments"));
    return json_string_value(json_object_get(fn, "name"));
}

status chat_add_result(chat *c, const char *text, err *e)
{
    size_t n_results;
    json_t *calls = pending_calls(c, &n_results), *call = json_array_get(calls, n_results);
    status st = check_utf8("the result", text, strlen(text), e);
    if (st)
        return st;
    if (!call)
        return err_set(e, E_ARG, "there is no open tool call to give a result for");
    json_t *fn = json_object_get(call, "function");
    json_t *msg = json_pack("{s:s, s:O, s:O, s:s}", "role", "tool", "tool_call_id",
                            json_object_get(call, "id"), "name", json_object_get(fn, "name"),
                            "content", text);
    if (!msg || json_array_append_new(c->messages, msg))
        return chat_no_memory(e);
    return OK;
}

/* ---- One turn -------------------------------------------------------------------------- */

/* Adds the generated answer to the conversation. */
static status keep_answer(chat *c, err *e)
{
    const answer *a = &c->out;
    size_t n_calls = json_array_size(a->calls);
    if (c->raw) {
        str_put(&c->raw_text, str_text(&a->content), a->content.n);
        return c->raw_text.bad ? chat_no_memory(e) : OK;
    }
    json_t *msg = json_pack("{s:s, s:o}", "role", "assistant", "content",
                            json_stringn(str_text(&a->content), a->content.n));
    if (msg && a->reasoning.n)
        json_object_set_new(msg, "reasoning_content",
                            json_stringn(str_text(&a->reasoning), a->reasoning.n));
    json_t *calls = msg && n_calls ? json_array() : NULL;
    for (size_t i = 0; i < n_calls; i++) {
        json_t *call = json_array_get(a->calls, i);
        char id[64];
        snprintf(id, sizeof id, "call_%zu_%zu", json_array_size(c->messages), i);
        json_array_append_new(calls,
                              json_pack("{s:s, s:s, s:{s:O, s:O}}", "id", id, "type", "function",
                                        "function", "name", json_object_get(call, "name"),
                                        "arguments", json_object_get(call, "arguments")));
    }
    if (calls)
        json_object_set_new(msg, "tool_calls", calls);
    if (!msg || json_array_append_new(c->messages, msg))
        return chat_no_memory(e);
    return OK;
}

/* Shortens a prompt into c->last: a conversation, or with t NULL the raw text. */
static status shorten_prompt(chat *c, const carat_talk *t, const carat_chat_options *opt, err *e)
{
    double start_ms = clock_ms();
    status st = t ? carat_compress_chat(c->shortened, c->m, &c->scorer.face, t, opt, &c->compress,
                                        &c->last, e)
                  : carat_compress_text(c->shortened, c->m, &c->scorer.face, str_text(&c->raw_text),
                                        c->raw_text.n, &c->compress, &c->last, e);
    c->compress_ms = clock_ms() - start_ms;
    bool told = c->last.n || c->compress.ratio > 0 || c->o.verbose; /* auto mostly does nothing */
    if (!st && told && !c->quiet && c->out.format == ANSWER_TEXT)
        compress_note(&c->last, c->compress_ms);
    if (!st && c->o.compress.show)
        compress_show(stderr, &c->last);
    return st;
}

compression_report chat_told(const chat *c)
{
    carat_model_info info = {.name = NULL};
    if (c->compresses)
        carat_model_get_info(c->scorer.model, &info);
    return (compression_report){
        .at = &c->last, .n = 1, .ms = c->compress_ms, .scorer = info.name, .prompts = c->raw};
}

static status render_raw(chat *c, carat_chat *out, err *e)
{
    const char *text = str_text(&c->raw_text);
    size_t n_text = c->raw_text.n;
    status st;
    if (c->compresses && (st = shorten_prompt(c, NULL, NULL, e)))
        return st;
    if (c->last.text) {
        text = c->last.text;
        n_text = c->last.n_text;
    }
    int64_t n = carat_tokenize(c->m, text, n_text, CARAT_TOK_BOS | CARAT_TOK_SPECIAL, NULL, 0, e);
    if (n < 0)
        return e ? e->status : E_MEMORY;
    out->ids = mem_calloc((size_t)n, sizeof *out->ids);
    if (!out->ids)
        return chat_no_memory(e);
    out->n_ids =
        carat_tokenize(c->m, text, n_text, CARAT_TOK_BOS | CARAT_TOK_SPECIAL, out->ids, n, e);
    return out->n_ids < 0 ? (e ? e->status : E_MEMORY) : OK;
}

static status render_chat(chat *c, carat_chat *out, err *e)
{
    *out = (carat_chat){0};
    carat_compressed_free(&c->last);
    carat_talk_close(c->rendered);
    c->rendered = NULL;
    if (c->raw)
        return render_raw(c, out, e);
    json_t *all = json_array();
    if (all && c->system)
        json_array_append_new(all, json_pack("{s:s, s:s}", "role", "system", "content", c->system));
    if (!all || json_array_extend(all, c->messages)) {
        json_decref(all);
        return chat_no_memory(e);
    }
    char *text = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    carat_chat_options opt = {.thinking = c->thinking,
                              .preserve_thinking = c->o.preserve_thinking,
                              .drop_thinking = c->o.drop_thinking,
                              .reasoning_effort = c->o.effort};
    if (!text)
        return chat_no_memory(e);
    status st = carat_talk_open(&c->rendered, text, chat_offered_tools(c), e);
    free(text);
    if (!st && c->compresses)
        st = shorten_prompt(c, c->rendered, &opt, e);
    return st ? st
              : carat_talk_render(c->m, c->last.talk ? c->last.talk : c->rendered, &opt, out, e);
}

status chat_count(chat *c, int64_t *n, err *e)
{
    carat_chat prompt;
    status st = render_chat(c, &prompt, e);
    int64_t more = 0;
    if (!st && !(st = chat_count_pictures(c, &prompt, &more, e)))
        *n = prompt.n_ids + more;
    carat_chat_free(&prompt);
    return st;
}

status chat_answer(chat *c, err *e)
{
    carat_chat prompt;
    carat_grammar *form = NULL;
    carat_generate_options opt = {.sampling = c->sampling,
                                  .max_tokens = c->max_tokens,
                                  .stop = c->o.stop.at,
                                  .n_stop = c->o.stop.n,
                                  .parse = !c->raw,
                                  .on_round = c->o.spec_trace ? answer_print_round : NULL,
                                  .round_user = &c->out};
    chat_refresh_mcp(c);
    status st = render_chat(c, &prompt, e);
    opt.tools_json = chat_offered_tools(c);
    c->kept = false;
    answer_reset(&c->out);
    if (!st && c->has_form && !(st = open_form(c, prompt.starts_thinking, &form, e)))
        opt.mask = carat_grammar_mask(form);
    if (!st) {
        opt.starts_thinking = prompt.starts_thinking;
        opt.no_thoughts = prompt.no_thoughts;
        term_watch(c->s);
        st = chat_place_pictures(c, &prompt, e);
    }
    if (!st) {
        st = carat_generate(c->s, prompt.ids, prompt.n_ids, &opt, answer_show, &c->out, &c->timings,
                            e);
        answer_finish(&c->out);
        if (st && form && *carat_grammar_failure(form)) {
            err_clear(e);
            err_set(e, st, "%s", carat_grammar_failure(form));
        }
    }
    carat_grammar_close(form);
    carat_chat_free(&prompt);
    if (c->out.broken && !st)
        st = err_set(e, E_IO, "stdout: cannot write the answer");
    bool any = c->out.content.n || json_array_size(c->out.calls);
    /* A file or a pipe has a reader, who did not get the answer; a terminal has been closed. */
    bool lost = c->out.broken && !term_is_tty(stdout);
    c->kept = any && !lost && !keep_answer(c, st ? NULL : e);
    if (c->kept)
        chat_keep(c);
    if (!st && !c->quiet && c->out.format == ANSWER_TEXT) {
        answer_print_speed(&c->timings, c->s);
        pool_note_answer(c->s);
        if (c->o.verbose)
            device_print_experts(stderr, c->m);
    }
    return st;
}

/* ---- Going back ------------------------------------------------------------------------ */

/* Notes the text of a question that goes. */
static void note_deleted(chat *c, size_t i)
{
    str text = {0};
    if (strcmp(message_role(c->messages, i), "user"))
        return;
    conversations_put_text(&text, json_array_get(c->messages, i), false);
    json_array_append_new(c->deleted, json_stringn(str_text(&text), text.n));
    str_free(&text);
}

static bool cut_after_last_user(chat *c, bool with_it)
{
    size_t n = json_array_size(c->messages);
    json_array_clear(c->deleted);
    for (size_t i = n; i-- > 0;)
        if (!strcmp(message_role(c->messages, i), "user")) {
            if (with_it)
                note_deleted(c, i);
            for (size_t k = n; k-- > i + (with_it ? 0 : 1);)
                json_array_remove(c->messages, k);
            return true;
        }
    return false;
}

bool chat_undo(chat *c)
{
    if (!c->raw) {
        bool cut = cut_after_last_user(c, true);
        if (!json_array_size(c->messages) && !c->named)
            c->title = NULL; /* it was the first line of that question */
        if (cut && c->talk.number)
            chat_keep(c);
        return cut;
    }
    bool any = c->raw_text.n > c->raw_mark;
    str_cut(&c->raw_text, c->raw_mark);
    return any;
}

bool chat_drop_answer(chat *c)
{
    return !c->raw && cut_after_last_user(c, false);
}

void chat_clear(chat *c)
{
    json_array_clear(c->deleted);
    for (size_t i = 0; i < json_array_size(c->messages); i++)
        note_deleted(c, i);
    json_array_clear(c->messages);
    str_cut(&c->raw_text, 0);
    c->raw_mark = 0;
    chat_keep(c);
    c->talk = (talk_place){0};
    c->title = NULL;
    c->named = false;
}

/* ---- Files ----------------------------------------------------------------------------- */

status chat_save(const chat *c, const char *path, err *e)
{
    str lines = {0};
    status st;
    json_t *all = chat_saved(c);
    char *text = all ? json_dumps(all, JSON_INDENT(2)) : NULL;
    json_decref(all);
    if (!text)
        return chat_no_memory(e);
    str_puts(&lines, text);
    str_putc(&lines, '\n');
    st = lines.bad ? chat_no_memory(e) : file_replace(path, false, lines.at, lines.n, e);
    str_free(&lines);
    free(text);
    return st;
}

status chat_take_messages(chat *c, json_t *list, const char *what, err *e)
{
    const char *system = NULL;
    pictures loaded = {0};
    json_t *kept = json_array(), *one;
    status st = kept ? OK : chat_no_memory(e);
    if (!st && !json_is_array(list))
        st = err_set(e, E_FORMAT, "%s: expected an array of messages", what);
    for (size_t i = 0; !st && i < json_array_size(list); i++) {
        json_t *msg = json_array_get(list, i);
        const char *role = json_string_value(json_object_get(msg, "role"));
        const char *content = json_string_value(json_object_get(msg, "content"));
        if (!role)
            st = err_set(e, E_FORMAT, "%s: message %zu has no role", what, i + 1);
        else if (i == 0 && !strcmp(role, "system") && content)
            system = content;
        else if (!(st = chat_load_message(c, msg, &loaded, what, &one, e)) &&
                 json_array_append_new(kept, one))
            st = chat_no_memory(e);
    }
    if (!st && system)
        st = chat_set_system(c, system, e);
    if (!st) {
        json_decref(c->messages);
        c->messages = kept;
        kept = NULL;
        chat_use_pictures(c, &loaded);
    }
    pictures_free(&loaded);
    json_decref(kept);
    return st;
}

/* An array of messages, or an object that has one under "messages". */
status chat_load(chat *c, const char *path, err *e)
{
    json_t *file = NULL;
    status st = json_read_words(&file, NULL, path, JSON_FILE_MAX, e);
    if (!st)
        st = chat_take_messages(c, json_is_object(file) ? json_object_get(file, "messages") : file,
                                path, e);
    json_decref(file);
    return st;
}
