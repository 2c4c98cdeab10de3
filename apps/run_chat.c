/* run_chat.c - a conversation and its turns, in a one-shot run and in an interactive one.
 *
 * A conversation is kept as messages, not as tokens. Each turn hands the whole prompt to the
 * session, which reuses the part that it has computed already.
 */
#include "apps/run_int.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <errno.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

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
    c->messages.mem = &c->mem;
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
    answer_init(&c->out, format, false);
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

/* What was rendered shares texts with the messages, so it goes before they do. */
static void forget_prompt(chat *c)
{
    carat_compressed_free(&c->last);
    arena_free(&c->prompt_mem);
    c->prompt = (carat_talk){.mem = &c->prompt_mem};
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
    str_free(&c->deleted);
    if (c->s) {
        carat_cache_info cache;
        carat_session_cache(c->s, &cache);
        if (cache.last_error[0])
            term_note("kept conversations: %s", cache.last_error);
    }
    carat_session_close(c->s);
    forget_prompt(c);
    arena_free(&c->mem);
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
    const jtree *list = NULL;
    arena mem = {0};
    char *text = NULL;
    size_t n;
    str array = {0};
    status st = file_read_all(path, TALK_BYTES, &text, &n, e);
    if (!st && !(st = jtree_parse(text, n, path, CONVERSATION_DEPTH, &mem, &list, e))) {
        bool one = jtree_is(list, JTREE_OBJECT); /* a single tool without its list */
        str_printf(&array, one ? "[%s]" : "%s", text);
        if (!one && !jtree_is(list, JTREE_ARRAY))
            st = err_set(e, E_FORMAT, "%s: expected an array of tool declarations", path);
        else if (array.bad)
            st = chat_no_memory(e);
    }
    mem_free(text);
    arena_free(&mem);
    if (st) {
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

/* A turn at the end; returns how many were there. chat_put_turns ends it. */
static size_t add_turn(chat *c, talk_role role)
{
    size_t before = c->messages.n;
    talk_add(&c->messages, role, "messages", (int32_t)before);
    return before;
}

static void put_text(chat *c, const char *text, size_t n)
{
    const talk_text kept = talk_keep(&c->messages, text, n);
    talk_set_text(&c->messages, kept.s, kept.n);
}

status chat_put_turns(chat *c, size_t before, err *e)
{
    if (!c->messages.bad)
        return OK;
    c->messages.n = before;
    c->messages.bad = false;
    return chat_no_memory(e);
}

static status append_user(chat *c, const char *text, size_t n, bool pictured, err *e)
{
    status st = check_utf8("the prompt", text, n, e);
    if (st)
        return st;
    size_t before = add_turn(c, TALK_USER);
    if (pictured)
        chat_put_user(c, text, n);
    else
        put_text(c, text, n);
    if ((st = chat_put_turns(c, before, e)))
        return st;
    if (pictured && c->n_next)
        c->n_next = c->n_spoken = 0;
    return OK;
}

/* The files as a message before the one that asks, because the last one is never shortened. */
static status add_files_apart(chat *c, const char *text, size_t n, err *e)
{
    status st = append_user(c, str_text(&c->files), c->files.n, false, e);
    if (st)
        return st;
    if ((st = append_user(c, text, n, true, e))) {
        c->messages.n--;
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
    if (!c->title && n && utf8_valid(text, n))
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

/* The last turn that is no tool result, if it has calls, and the number of results after it. */
static const talk_turn *pending_calls(const chat *c, size_t *n_results)
{
    const talk_turn *m = c->messages.turn;
    size_t i = c->messages.n;
    *n_results = 0;
    while (i-- > 0 && m[i].role == TALK_TOOL)
        ++*n_results;
    return i != (size_t)-1 && m[i].n_calls ? &m[i] : NULL;
}

int chat_open_calls(const chat *c)
{
    size_t n_results;
    const talk_turn *m = pending_calls(c, &n_results);
    return m && m->n_calls > n_results ? (int)(m->n_calls - n_results) : 0;
}

const char *chat_open_call(const chat *c, const char **arguments)
{
    size_t n_results;
    const talk_turn *m = pending_calls(c, &n_results);
    const talk_call *call = m && m->n_calls > n_results ? &m->call[n_results] : NULL;
    *arguments = call && jtree_is(call->arguments, JTREE_STRING) ? call->arguments->s : NULL;
    return call ? call->name.s : NULL;
}

status chat_add_result(chat *c, const char *text, err *e)
{
    size_t n_results;
    const talk_turn *m = pending_calls(c, &n_results);
    status st = check_utf8("the result", text, strlen(text), e);
    if (st)
        return st;
    if (!m || m->n_calls <= n_results)
        return err_set(e, E_ARG, "there is no open tool call to give a result for");
    const talk_call call = m->call[n_results];
    size_t before = add_turn(c, TALK_TOOL);
    put_text(c, text, strlen(text));
    if (!c->messages.bad) {
        talk_last(&c->messages)->call_id = call.id;
        talk_last(&c->messages)->name = call.name;
    }
    return chat_put_turns(c, before, e);
}

/* ---- One turn -------------------------------------------------------------------------- */

/* Adds the generated answer to the conversation. */
static status keep_answer(chat *c, err *e)
{
    const answer *a = &c->out;
    if (c->raw) {
        str_put(&c->raw_text, str_text(&a->content), a->content.n);
        return c->raw_text.bad ? chat_no_memory(e) : OK;
    }
    carat_talk *t = &c->messages;
    size_t before = add_turn(c, TALK_ASSISTANT);
    put_text(c, str_text(&a->content), a->content.n);
    if (!t->bad && a->reasoning.n)
        talk_last(t)->thought[TALK_REASONING_CONTENT] =
            talk_keep(t, str_text(&a->reasoning), a->reasoning.n);
    for (size_t i = 0; i < answer_count_calls(a) && !t->bad; i++) {
        char id[64];
        talk_call call = talk_keep_call(t, &a->said.turn->call[i]);
        call.id = talk_keep(t, id, (size_t)snprintf(id, sizeof id, "call_%zu_%zu", before, i));
        talk_put_call(t, call);
    }
    return chat_put_turns(c, before, e);
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

void chat_gather(const chat *c, carat_talk *out)
{
    if (c->system) {
        talk_add(out, TALK_SYSTEM, "messages", 0);
        talk_set_text(out, c->system, strlen(c->system));
    }
    for (size_t i = 0; i < c->messages.n; i++) {
        talk_turn m = c->messages.turn[i];
        m.list = "messages";
        m.index = (int32_t)out->n;
        talk_add(out, m.role, m.list, m.index);
        if (!out->bad)
            *talk_last(out) = m;
    }
}

static status render_chat(chat *c, carat_chat *out, err *e)
{
    *out = (carat_chat){0};
    forget_prompt(c);
    if (c->raw)
        return render_raw(c, out, e);
    carat_chat_options opt = {.thinking = c->thinking,
                              .preserve_thinking = c->o.preserve_thinking,
                              .drop_thinking = c->o.drop_thinking,
                              .reasoning_effort = c->o.effort};
    const char *tools = chat_offered_tools(c);
    carat_talk *t = &c->prompt;
    chat_gather(c, t);
    status st = talk_check(t, e);
    if (!st && tools)
        st = jtree_parse(tools, strlen(tools), "tools", CONVERSATION_DEPTH, t->mem, &t->tools, e);
    if (!st && c->compresses)
        st = shorten_prompt(c, t, &opt, e);
    return st ? st : carat_talk_render(c->m, c->last.talk ? c->last.talk : t, &opt, out, e);
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
    bool any = c->out.content.n || answer_count_calls(&c->out);
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
    if (c->messages.turn[i].role != TALK_USER)
        return;
    conversations_put_text(&c->deleted, &c->messages.turn[i], false);
    str_putc(&c->deleted, 0);
}

static bool cut_after_last_user(chat *c, bool with_it)
{
    str_cut(&c->deleted, 0);
    for (size_t i = c->messages.n; i-- > 0;)
        if (c->messages.turn[i].role == TALK_USER) {
            if (with_it)
                note_deleted(c, i);
            c->messages.n = i + (with_it ? 0 : 1);
            return true;
        }
    return false;
}

bool chat_undo(chat *c)
{
    if (!c->raw) {
        bool cut = cut_after_last_user(c, true);
        if (!c->messages.n && !c->named)
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
    str_cut(&c->deleted, 0);
    for (size_t i = 0; i < c->messages.n; i++)
        note_deleted(c, i);
    forget_prompt(c);
    arena_free(&c->mem);
    c->messages = (carat_talk){.mem = &c->mem};
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
    str text = {0};
    chat_put_saved(c, &text, NULL);
    str_putc(&text, '\n');
    status st = text.bad ? chat_no_memory(e) : file_replace(path, false, text.at, text.n, e);
    str_free(&text);
    return st;
}

status chat_take_messages(chat *c, const carat_talk *from, const char *what, err *e)
{
    arena mem = {0};
    carat_talk turns = {.mem = &mem};
    pictures loaded = {0};
    const talk_turn *first = from->n ? from->turn : NULL;
    bool system = first && first->role == TALK_SYSTEM && first->shape == TALK_WHOLE;
    status st = OK;
    for (size_t i = system; i < from->n && !st; i++)
        st = chat_load_turn(c, &turns, &from->turn[i], &loaded, what, e);
    /* It may have U+0000, at which a system message of carat ends. */
    if (!st && system)
        st = chat_set_system(c, first->part->text.s, e);
    if (st) {
        arena_free(&mem);
    } else {
        forget_prompt(c);
        arena_free(&c->mem);
        c->mem = mem;
        c->messages = turns;
        c->messages.mem = &c->mem;
        chat_use_pictures(c, &loaded);
    }
    pictures_free(&loaded);
    return st;
}

/* A list of messages, or an object that has one under "messages". */
status chat_load(chat *c, const char *path, err *e)
{
    kept_talk file;
    status st = conversations_read_file(&file, path, true, e);
    if (!st)
        st = chat_take_messages(c, &file.talk, path, e);
    kept_free(&file);
    return st;
}
