/* fuzz_request.c - bodies of HTTP requests to plain requests, in every dialect.
 *
 *     which | body
 *
 * `which` is an api_kind, or behind these a form of embeddings. A body is refused with a status of
 * 4xx and a sentence, or becomes JSON that parses again.
 */
#include "fuzz/fuzz.h"
#include "apps/compress.h"
#include "apps/server/dialects/embed_form.h"
#include "apps/server/dialects/request.h"
#include "base/utf8.h"

#include <string.h>

#if CARAT_FUZZ
/* Writing an answer names tokens, which needs a model; here nothing is written. */
int32_t carat_token_bytes(const carat_model *m, int32_t id, bool special, const char **bytes)
{
    (void)m, (void)id, (void)special;
    *bytes = "";
    return -1;
}
void compress_put_json(str *out, const compression_report *t)
{
    (void)out, (void)t;
}
#endif

static void check_json(const str *s)
{
    arena mem = {0};
    const jtree *v;
    err e = {0};
    if (s->n)
        fuzz_check(!jtree_parse(s->at, s->n, "what was made", 80, &mem, &v, &e), e.text);
    arena_free(&mem);
}

static void check_refusal(const problem *p)
{
    fuzz_check(p->status >= 400 && p->status < 500 && *p->text, "refused without a reason");
    fuzz_check(utf8_valid(p->text, strlen(p->text)) || strlen(p->text) >= sizeof p->text - 4,
               "a sentence that is no text");
}

/* Whoever reads it relies on this. */
static void check_talk(const carat_talk *t)
{
    fuzz_check(!t->bad, "a conversation without memory was taken");
    for (size_t i = 0; i < t->n; i++) {
        const talk_turn *m = &t->turn[i];
        fuzz_check(m->role < TALK_ROLES && m->list, "a turn without role or place");
        fuzz_check(m->shape != TALK_WHOLE || (m->n_parts == 1 && m->part->text.s), "no text");
        for (size_t k = 0; k < m->n_parts; k++)
            fuzz_check(m->part[k].name && utf8_valid(m->part[k].text.s ? m->part[k].text.s : "",
                                                     m->part[k].text.n),
                       "a part without a name, or with bad bytes");
    }
}

static void embed(embed_api api, const char *body, size_t n)
{
    embed_request rq = {0};
    problem p = {0};
    if (embed_open(&rq, api, body, n, false, &p) && embed_read(&rq, 1000, 64, &p))
        fuzz_check(rq.n_inputs <= EMBED_INPUTS_MAX && rq.dimensions <= 64, "out of range");
    else
        check_refusal(&p);
    embed_free(&rq);
}

FUZZ(request)
{
    enum { EMBED_APIS = EMBED_OLLAMA_OLD + 1 };
    static const request_limits lim = {.n_vocab = 1000, .images = true};
    const char *body = (const char *)data + 1;
    request rq = {0};
    problem p = {0};
    if (!n)
        return;
    int which = data[0] % (API_KINDS + EMBED_APIS);
    if (which >= API_KINDS) {
        embed((embed_api)(which - API_KINDS), body, n - 1);
        return;
    }
    if (request_parse(&rq, (api_kind)which, body, n - 1, &lim, &p)) {
        check_talk(&rq.talk);
        check_json(&rq.tools);
        fuzz_check(!p.status && rq.n >= 1 && rq.max_tokens >= 0, "out of range");
    } else {
        check_refusal(&p);
    }
    request_free(&rq);
}
