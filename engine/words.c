/* words.c - the text half of carat.h: a model's vocabulary and chat format for its callers.
 *
 * Nothing is decided here. The calls check what a C program may get wrong (no text, an id out of
 * range, a model without a vocabulary), hand over to text/, and turn what comes back into memory
 * that the caller owns. They touch no weights and no session, so any thread may be in them.
 */
#include "engine/engine_int.h"
#include "engine/media.h"
#include "text/place.h"
#include "base/mem.h"

#include <string.h>

static status check_text(const carat_model *m, err *e)
{
    if (m->text)
        return OK;
    return err_set(e, E_UNSUPPORTED, "%s: has no vocabulary, so it takes token ids only",
                   m->core.file.path);
}

int64_t carat_tokenize(const carat_model *m, const char *text, size_t n_bytes, int32_t flags,
                       int32_t *ids, int64_t cap, carat_error *e)
{
    id_list list = {0};
    int64_t n = -1;
    if (check_text(m, e))
        return -1;
    if (!text && n_bytes) {
        err_set(e, E_ARG, "carat_tokenize: no text");
        return -1;
    }
    int32_t bos = vocab_bos(m->text);
    if ((flags & CARAT_TOK_BOS) && bos >= 0 && id_list_put(&list, bos, e))
        goto out;
    if (vocab_encode(m->text, text, n_bytes, flags & CARAT_TOK_SPECIAL ? SPECIAL_ALL : SPECIAL_USER,
                     &list, e))
        goto out;
    n = list.n;
    int64_t fit = ids && cap > 0 ? (n < cap ? n : cap) : 0;
    if (fit)
        memcpy(ids, list.at, (size_t)fit * sizeof *ids);
out:
    id_list_free(&list);
    return n;
}

int32_t carat_token_bytes(const carat_model *m, int32_t id, bool special, const char **bytes)
{
    size_t n = 0;
    const char *at = m->text ? vocab_text(m->text, id, special, &n) : NULL;
    *bytes = at ? at : "";
    return at ? (int32_t)n : -1;
}

int32_t carat_token_bos(const carat_model *m)
{
    return m->text ? vocab_bos(m->text) : -1;
}

bool carat_token_is_eog(const carat_model *m, int32_t id)
{
    return m->text && vocab_is_eog(m->text, id);
}

static void add_mark(const carat_model *m, carat_marks *marks, const char *piece)
{
    const int32_t most = sizeof marks->all / sizeof *marks->all;
    int32_t id = vocab_mark(m->text, piece);
    if (id >= 0 && marks->n_all < most)
        marks->all[marks->n_all++] = id;
}

void carat_model_get_marks(const carat_model *m, carat_marks *marks)
{
    const text_family *f = m->text ? vocab_family(m->text) : NULL;
    const answer_syntax *a = text_answer_syntax(m->chat, f);
    *marks = (carat_marks){-1, -1, -1, -1, false, {0}, 0, false};
    if (!a)
        return;
    marks->thought_open = vocab_mark(m->text, a->thought_open);
    marks->thought_close = vocab_mark(m->text, a->thought_close);
    marks->call_open = a->begins_calls ? -1 : vocab_mark(m->text, a->call_open);
    marks->call_close = vocab_mark(m->text, a->call_close);
    marks->calls = a->read_call != NULL;
    marks->bars_calls = marks->calls && (a->heads || marks->call_open >= 0);
    for (const char *const *piece = a->content_not; *piece; piece++)
        add_mark(m, marks, *piece);
    add_mark(m, marks, f->eos);
}

struct carat_place {
    answer_place at;
};

carat_place *carat_place_open(const carat_model *m, bool starts_thinking)
{
    carat_place *p = mem_calloc(1, sizeof *p);
    if (p)
        place_begin(&p->at, m->text, m->chat, starts_thinking);
    return p;
}

int32_t carat_place_next(carat_place *p, int32_t id)
{
    place_next(&p->at, id);
    return (p->at.thinking ? CARAT_IN_THOUGHT : 0) | (p->at.calling ? CARAT_IN_CALL : 0) |
           (p->at.marking ? CARAT_IN_MARK : 0);
}

void carat_place_close(carat_place *p)
{
    mem_free(p);
}

typedef struct open_talk {
    carat_talk talk; /* the first, so that its address is that of both */
    arena mem;
} open_talk;

carat_status carat_talk_open(carat_talk **t, const char *messages_json, const char *tools_json,
                             carat_error *e)
{
    size_t n = messages_json ? strlen(messages_json) : 0;
    size_t n_tools = tools_json ? strlen(tools_json) : 0;
    *t = NULL;
    if (!messages_json)
        return err_set(e, E_ARG, "carat_talk_open: no messages");
    open_talk *o = mem_calloc(1, sizeof *o);
    if (!o)
        return err_memory(e, "a conversation", sizeof *o);
    o->mem.max_bytes = arena_limit_for(n + n_tools);
    o->talk.mem = &o->mem;
    status st = chat_read(&o->talk, messages_json, n, tools_json, n_tools, e);
    if (st)
        carat_talk_close(&o->talk);
    else
        *t = &o->talk;
    return st;
}

void carat_talk_close(carat_talk *t)
{
    open_talk *o = (open_talk *)(void *)t;
    if (!o)
        return;
    arena_free(&o->mem);
    mem_free(o);
}

static status check_chat(const carat_model *m, carat_error *e)
{
    status st = check_text(m, e);
    if (!st && !m->chat && !(st = model_check_writes(m, e)))
        st = err_set(e, E_UNSUPPORTED,
                     "%s: has no chat format that carat knows; it can complete plain text",
                     m->core.file.path);
    return st;
}

carat_status carat_chat_render(const carat_model *m, const char *messages_json,
                               const char *tools_json, const carat_chat_options *opt,
                               carat_chat *out, carat_error *e)
{
    carat_talk *t = NULL;
    *out = (carat_chat){0};
    status st = check_chat(m, e);
    if (!st && !(st = carat_talk_open(&t, messages_json, tools_json, e)))
        st = carat_talk_render(m, t, opt, out, e);
    carat_talk_close(t);
    return st;
}

carat_status carat_talk_render(const carat_model *m, const carat_talk *t,
                               const carat_chat_options *opt, carat_chat *out, carat_error *e)
{
    chat_prompt p = {0};
    id_list list = {0};
    status st;

    *out = (carat_chat){0};
    if ((st = check_chat(m, e)) || (st = chat_render_talk(m->chat, t, opt, &p, e)))
        goto out;
    /* A placeholder alone would be answered as if the picture was seen. */
    const char *lacks = p.n_others                                  ? "video input is"
                        : p.n_sounds && !media_hears(m)             ? "audio input is"
                        : p.n_images > p.n_sounds && !media_path(m) ? "image input is"
                                                                    : NULL;
    if (lacks) {
        st = err_set(e, E_UNSUPPORTED, "%s not supported by this model%s", lacks,
                     p.n_others ? "" : ": it was opened without that tower (mmproj)");
        goto out;
    }
    if ((st = chat_tokenize(m->text, &p, opt && opt->raw_markers, &list, e)))
        goto out;
    out->starts_thinking = p.starts_thinking;
    const answer_syntax *a = text_answer_syntax(m->chat, m->chat->family);
    out->no_thoughts = a && a->heads && !(opt && opt->thinking);
    memcpy(out->odd_arguments, p.odd_arguments, sizeof out->odd_arguments);
    out->images = p.image;
    out->n_images = p.n_images;
    out->n_around = p.n_around;
    p.image = NULL;
    out->n_text = p.text.n;
    out->text = str_take(&p.text);
    out->n_ids = list.n;
    out->ids = list.at;
    list = (id_list){0};
out:
    id_list_free(&list);
    chat_prompt_free(&p);
    return st;
}

void carat_chat_free(carat_chat *c)
{
    mem_free(c->ids);
    mem_free(c->images);
    mem_free(c->text);
    *c = (carat_chat){0};
}
