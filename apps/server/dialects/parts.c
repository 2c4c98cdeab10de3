/* parts.c - see parts.h. */
#include "apps/server/dialects/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tokens of a picture, as carat_image_options counts them. */
enum { TOKENS_LEAST = 70, TOKENS_MOST = 1120, TOKENS_NATIVE = -1 };

bool read_image_tokens(request *rq, problem *p)
{
    const jtree *v = jtree_get(rq->body, "image_tokens");
    int64_t n = 0;
    if (tree_says(v, "native"))
        n = TOKENS_NATIVE;
    else if (v && !tree_int(v, TOKENS_LEAST, TOKENS_MOST, &n))
        return problem_set(p, 400, "image_tokens",
                           "'image_tokens' is %.40s; expected a whole number from %d to %d, or "
                           "\"native\"",
                           v->s ? v->s : jtree_kind_name(v), TOKENS_LEAST, TOKENS_MOST);
    rq->image_tokens = (int32_t)n;
    return true;
}

static bool read_detail(const request *rq, const picture_source *s, int32_t *n, problem *p)
{
    static const struct {
        const char *word;
        int32_t n;
    } words[] = {{"low", TOKENS_LEAST}, {"high", TOKENS_MOST}, {"original", TOKENS_NATIVE}};
    *n = rq->image_tokens;
    if (!s->detail || tree_says(s->detail, "auto"))
        return true;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (tree_says(s->detail, words[i].word)) {
            *n = words[i].n;
            return true;
        }
    return problem_set(
        p, 400, s->field, "'%s' has the detail %.40s; expected low, auto, high or original",
        s->field, jtree_is(s->detail, JTREE_STRING) ? s->detail->s : jtree_kind_name(s->detail));
}

/* A problem of apps/media: its sentence begins with the field. */
static bool refuse_picture(const char *field, const err *e, problem *p)
{
    err own = *e;
    if (own.status == CARAT_E_IO) /* a file or an address that the client has named */
        own.status = CARAT_E_ARG;
    problem_from(p, &own);
    snprintf(p->param, sizeof p->param, "%s", field);
    return false;
}

bool problem_of_picture(problem *p, const picture *of, const err *e)
{
    char field[sizeof of->name];
    size_t n = strlen(of->name);
    bool quoted = n > 1 && *of->name == '\'';
    snprintf(field, sizeof field, "%.*s", (int)(quoted ? n - 2 : n), of->name + quoted);
    return refuse_picture(field, e, p);
}

/* Whether the model takes such files; found: by its bytes. */
static bool takes_kind(const request *rq, const picture_source *s, bool is_sound, problem *p)
{
    const request_limits *l = rq->lim;
    if (is_sound ? l->sounds : l->images)
        return true;
    return problem_set(p, 400, s->field,
                       "'%s' is %s, and %s input is not supported by this model%s", s->field,
                       is_sound ? "sound" : "an image", is_sound ? "audio" : "image",
                       l->could_see ? ": it is loaded without its mmproj file (--mmproj)" : "");
}

int32_t take_picture(request *rq, const picture_source *s, problem *p)
{
    const jtree *v = s->url ? s->url : s->base64;
    char name[112];
    int32_t n_tokens;
    err e = {0};
    if ((!s->any || !rq->lim->sounds) && !takes_kind(rq, s, s->sound, p))
        return -1;
    if (!jtree_is(v, JTREE_STRING)) {
        problem_set(p, 400, s->field, "'%s' is %s without %s", s->field,
                    s->sound ? "sound" : "an image", s->url ? "a URL that is a string" : "data");
        return -1;
    }
    if (!read_detail(rq, s, &n_tokens, p))
        return -1;
    snprintf(name, sizeof name, "'%s'", s->field);
    bool uri = s->url || (v->n > 5 && !strncmp(v->s, "data:", 5));
    if (uri ? pictures_add_url(&rq->pictures, rq->lim->pictures, v->s, v->n, name, &e)
            : pictures_add_base64(&rq->pictures, v->s, v->n, name, &e)) {
        refuse_picture(s->field, &e, p);
        return -1;
    }
    bool is_sound = rq->pictures.at[rq->pictures.n - 1].n_samples > 0;
    if (s->any ? !takes_kind(rq, s, is_sound, p)
               : is_sound != s->sound &&
                     !problem_set(p, 400, s->field, "'%s' is %s; expected %s", s->field,
                                  is_sound ? "sound" : "an image", s->sound ? "sound" : "an image"))
        return -1;
    rq->pictures.at[rq->pictures.n - 1].n_tokens = n_tokens;
    return rq->pictures.n - 1;
}

int32_t take_sound(request *rq, const jtree *v, const char *field, problem *p)
{
    picture_source s = {.url = jtree_get(v, "url"), .field = field, .sound = true};
    s.base64 = s.url ? NULL : jtree_get(v, "data");
    jtree_get(v, "format"); /* read, so that no log calls it useless: the file says what it is */
    return take_picture(rq, &s, p);
}

/* ---- Content ---- */

static bool is_sound_at(const request *rq, int32_t number)
{
    return number >= 0 && rq->pictures.at[number].n_samples > 0;
}

void put_picture(request *rq, int32_t number)
{
    bool heard = is_sound_at(rq, number);
    talk_put_part(&rq->talk, (talk_part){.kind = heard ? TALK_AUDIO : TALK_IMAGE,
                                         .name = heard ? "audio" : "image",
                                         .number = number});
}

void put_text(request *rq, talk_text text)
{
    talk_put_part(&rq->talk,
                  (talk_part){.kind = TALK_TEXT, .name = "text", .text = text, .number = -1});
}

/* A mark: MARK_BEGIN, S for a sound or I, a number, MARK_END. */
enum { MARK_BEGIN = 0xFF, MARK_END = 0xFE };

void mark_picture(str *text, const request *rq, int32_t number)
{
    str_printf(text, "%c%c%d%c", MARK_BEGIN, is_sound_at(rq, number) ? 'S' : 'I', (int)number,
               MARK_END);
}

bool has_picture(const str *text)
{
    return text->n && memchr(text->at, MARK_BEGIN, text->n);
}

void put_content(request *rq, const str *text)
{
    carat_talk *t = &rq->talk;
    t->bad |= text->bad;
    talk_text all = talk_keep(t, str_text(text), text->n);
    const char *at = all.s, *end = at + all.n, *mark;
    if (!has_picture(text)) {
        talk_set_text(t, all.s, all.n);
        return;
    }
    while (!t->bad && at < end) {
        mark = memchr(at, MARK_BEGIN, (size_t)(end - at));
        mark = mark ? mark : end;
        if (mark > at)
            put_text(rq, (talk_text){at, (size_t)(mark - at)});
        if (mark == end)
            break;
        put_picture(rq, (int32_t)strtol(mark + 2, NULL, 10));
        at = (const char *)memchr(mark, MARK_END, (size_t)(end - mark)) + 1;
    }
}

bool take_prefill(request *rq)
{
    const talk_turn *m = talk_last(&rq->talk);
    bool plain = true;
    str text = {0};
    for (size_t i = 0; i < m->n_parts; i++) {
        plain &= m->part[i].kind == TALK_TEXT;
        if (m->part[i].text.s)
            str_put(&text, m->part[i].text.s, m->part[i].text.n);
    }
    rq->talk.bad |= text.bad;
    talk_text all = talk_keep(&rq->talk, str_text(&text), text.n);
    str_free(&text);
    rq->prefill = all.n ? all.s : NULL;
    rq->n_prefill = all.n;
    rq->thought = m->thought[TALK_REASONING_CONTENT].n || m->thought[TALK_REASONING].n;
    return plain;
}

/* ---- Prompts ---- */

bool read_pictured_prompt(request *rq, const jtree *v, raw_prompt *out, problem *p)
{
    static const char *const names[] = {"prompt_string", "multimodal_data"};
    const jtree *text = jtree_get(v, names[0]), *list = jtree_get(v, names[1]);
    size_t n_marks = 0, n = list && list->kind == JTREE_ARRAY ? list->count : 0, i = 0;
    if (!check_members(v, "prompt", names, 2, p))
        return false;
    if (!jtree_is(text, JTREE_STRING) || (list && list->kind != JTREE_ARRAY))
        return problem_set(p, 400, "prompt",
                           "'prompt' is an object; expected 'prompt_string', a string, and "
                           "'multimodal_data', an array of strings");
    for (const char *at = text->s, *end = at + text->n;
         (at = memmem(at, (size_t)(end - at), PICTURE_MARK, sizeof PICTURE_MARK - 1));
         at += sizeof PICTURE_MARK - 1)
        n_marks++;
    if (n_marks != n && n)
        return problem_set(p, 400, "prompt",
                           "'prompt.prompt_string' has the mark " PICTURE_MARK " %zu times, and "
                           "'multimodal_data' has %zu items",
                           n_marks, n);
    *out = (raw_prompt){.text = text->s, .n = text->n, .first_picture = rq->pictures.n};
    for (const jtree *it = n ? list->first : NULL; it; it = it->next) {
        char field[64];
        snprintf(field, sizeof field, "prompt.multimodal_data[%zu]", i++);
        if (take_picture(rq, &(picture_source){.base64 = it, .field = field}, p) < 0)
            return false;
        out->n_pictures++;
    }
    return true;
}
