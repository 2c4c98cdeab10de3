/* chat_replay.c - see chat_replay.h. */
#include "tests/chat_replay.h"
#include "tests/test.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <inttypes.h>

static uint64_t fnv(const char *s, size_t n)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * UINT64_C(0x100000001b3);
    return h;
}

void chat_check_tiles(const chat_prompt *p)
{
    size_t at = 0;
    for (size_t i = 0; i < p->n_segments; i++) {
        CHECK_EQ(p->segment[i].at, at);
        CHECK(p->segment[i].n > 0);
        at += p->segment[i].n;
    }
    CHECK_EQ(at, p->text.n);
    CHECK(utf8_valid(str_text(&p->text), p->text.n));
}

/* want: the hash of the text; null: the conversation is refused; "": no reference. */
static bool check_line(int line, const jtree *c, const jtree *want, const chat_format *f,
                       void (*check)(const chat_prompt *p, const carat_chat_options *opt))
{
    const jtree *m = jtree_get(c, "messages"), *tools = jtree_get(c, "tools");
    const jtree *effort = jtree_get(c, "effort");
    carat_chat_options opt = {.thinking = jtree_truthy(jtree_get(c, "thinking")),
                              .preserve_thinking = jtree_truthy(jtree_get(c, "preserve")),
                              .drop_thinking = jtree_truthy(jtree_get(c, "drop")),
                              .continue_last = jtree_truthy(jtree_get(c, "continue")),
                              .no_generation_prompt = !jtree_truthy(jtree_get(c, "generate")),
                              .reasoning_effort = effort ? effort->s : NULL,
                              .date = "2026-11-29"};
    chat_prompt p;
    err e = {0};
    status st =
        chat_render(f, m->s, m->n, tools ? tools->s : NULL, tools ? tools->n : 0, &opt, &p, &e);
    if (want->kind == JTREE_NULL || !want->n) {
        CHECK_MSG(want->kind != JTREE_NULL || (st && *e.text), "line %d, template %s: not refused",
                  line, f->name);
        chat_prompt_free(&p);
        return false;
    }
    char hash[20];
    CHECK_MSG(!st, "line %d, template %s: %s", line, f->name, e.text);
    snprintf(hash, sizeof hash, "%016" PRIx64, fnv(p.text.at, p.text.n));
    CHECK_MSG(!strcmp(hash, want->s), "line %d, template %s: another text than Jinja's:\n%s", line,
              f->name, p.text.at);
    chat_check_tiles(&p);
    if (check)
        check(&p, &opt);
    chat_prompt_free(&p);
    return true;
}

void chat_lines(const char *path, void (*each)(void *user, int line, const jtree *c), void *user)
{
    AUTO_MEM char *text;
    size_t n_text;
    err e = {0};
    int line = 0;
    CHECK_OK(file_read_all(test_path(path), 4 << 20, &text, &n_text, &e), e);
    for (char *at = text, *end; at < text + n_text; at = end + 1) {
        AUTO(arena_free) arena mem = {0};
        const jtree *c;
        end = memchr(at, '\n', (size_t)(text + n_text - at));
        CHECK(end);
        CHECK_OK(jtree_parse(at, (size_t)(end - at), "fixtures", 10, &mem, &c, &e), e);
        each(user, ++line, c);
    }
}

enum { FORMATS_MAX = 16 };
typedef struct replay {
    const replay_template *t;
    int n, compared[FORMATS_MAX];
    void (*check)(const chat_prompt *p, const carat_chat_options *opt);
} replay;

static void replay_line(void *user, int line, const jtree *c)
{
    replay *r = user;
    const jtree *want = jtree_get(c, "want")->first;
    for (int k = 0; k < r->n; k++, want = want->next)
        r->compared[k] += check_line(line, c, want, r->t[k].f, r->check);
}

void chat_replay(const char *path, const replay_template *t, int n, int n_least,
                 void (*check)(const chat_prompt *p, const carat_chat_options *opt))
{
    replay r = {.t = t, .n = n, .check = check};
    CHECK(n <= FORMATS_MAX);
    chat_lines(path, replay_line, &r);
    for (int k = 0; k < n; k++)
        CHECK_MSG(r.compared[k] >= n_least, "%s: %d conversations", t[k].f->name, r.compared[k]);
}

void chat_recognised(const replay_template *t, int n)
{
    char path[200], *text;
    size_t n_text;
    err e = {0};
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "tests/data/chat/%s", t[i].path);
        CHECK_OK(file_read_all(test_path(path), 1 << 20, &text, &n_text, &e), e);
        for (const text_family *const *x = text_families; *x; x++)
            CHECK_MSG(chat_format_of(*x, text, n_text) == (*x == t[i].f->family ? t[i].f : NULL),
                      "%s as a template of %s", t[i].path, (*x)->name);
        mem_free(text);
    }
}
