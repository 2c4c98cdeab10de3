/* set.c - the servers of a run, and their tools under names that a model may use.
 *
 * A tool keeps its own name where no other has it; otherwise the server's name stands before it. So
 * a second server cannot take the place of a tool that the user has allowed: the name is then
 * neither's. What the user has allowed belongs to a server, a name and a declaration.
 */
#include "apps/mcp/mcp_int.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ABOUT_MAX = 4096,        /* bytes of a description */
    DECLARED_MAX = 64 << 10, /* of a declaration as JSON */
    ALL_MAX = 1 << 20,       /* of all of them */
    TOOLS_MAX = 512,         /* a request to the server may have twice as many */
    NAME_MAX_BYTES = 64,     /* of a name for the model */
    OWN_MAX = 256            /* of a server's name for it */
};

typedef struct source {
    mcp_client *client;
    const char *name;
    json_t *list; /* as it sent it */
    bool busy;    /* a request is under way */
} source;

/* The tools at one time. */
typedef struct offer {
    mcp_tool *tool;
    size_t n;
    json_t *declared; /* an array, of which each tool has one */
    arena mem;
} offer;

struct mcp_set {
    mcp_set_options o;
    source server[MCP_SERVERS_MAX];
    size_t n;
    pthread_mutex_t lock; /* of offer and of busy */
    pthread_cond_t idle;
    offer now;
};

static void tell(const mcp_set *s, const char *server, const char *tool, const char *why)
{
    char text[640];
    if (!s->o.tell)
        return;
    snprintf(text, sizeof text, "MCP server '%s': left out %.128s: %.400s", server, tool, why);
    s->o.tell(s->o.user, text);
}

/* ---- The tools ---- */

static void put_name(char out[NAME_MAX_BYTES + 1], const char *server, const char *own)
{
    int n = server ? snprintf(out, NAME_MAX_BYTES + 1, "%s_%s", server, own)
                   : snprintf(out, NAME_MAX_BYTES + 1, "%s", own);
    (void)n; /* it may be cut */
    for (char *c = out; *c; c++)
        if (!((*c >= '0' && *c <= '9') || (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
              *c == '_' || *c == '-'))
            *c = '_';
}

static bool has_name(const offer *f, const char *name, size_t but)
{
    for (size_t i = 0; i < f->n; i++)
        if (i != but && !strcmp(f->tool[i].name, name))
            return true;
    return false;
}

/* Names that two tools have get the server's name in front, and then a number. */
static bool make_unique(offer *f)
{
    char name[NAME_MAX_BYTES + 1];
    bool *twice = arena_array(&f->mem, f->n + 1, sizeof *twice);
    for (size_t i = 0; twice && i < f->n; i++)
        twice[i] = has_name(f, f->tool[i].name, i);
    for (size_t i = 0; twice && i < f->n; i++) {
        mcp_tool *t = &f->tool[i];
        if (!twice[i])
            continue;
        put_name(name, t->server, t->own);
        for (int k = 2; has_name(f, name, i); k++) {
            char number[16];
            size_t n = (size_t)snprintf(number, sizeof number, "_%d", k);
            size_t at = strlen(name) + n > NAME_MAX_BYTES ? NAME_MAX_BYTES - n : strlen(name);
            put_name(name, t->server, t->own);
            at = at < strlen(name) ? at : strlen(name);
            strcpy(name + at, number);
        }
        if (!(t->name = arena_strndup(&f->mem, name, strlen(name))))
            return false;
    }
    return twice != NULL;
}

/* The declaration for the model. NULL: no memory. */
static json_t *declare(const char *name, const json_t *tool, const char **about)
{
    const json_t *schema = json_object_get(tool, "inputSchema");
    const char *says = json_string_value(json_object_get(tool, "description"));
    says = says ? says : json_string_value(json_object_get(tool, "title"));
    size_t n = says ? strlen(says) : 0;
    if (n > ABOUT_MAX)
        for (n = ABOUT_MAX; n && ((unsigned char)says[n] & 0xc0) == 0x80; n--)
            ;
    json_t *fn =
        json_pack("{s:s, s:o}", "name", name, "description", json_stringn(says ? says : "", n));
    if (fn && schema && json_object_set_new(fn, "parameters", json_deep_copy(schema))) {
        json_decref(fn); /* no memory */
        fn = NULL;
    }
    json_t *out = fn ? json_pack("{s:s, s:O}", "type", "function", "function", fn) : NULL;
    *about = json_string_value(json_object_get(fn, "description"));
    json_decref(fn);
    return out;
}

/* Why a tool is left out; NULL: it is not. *name: its own. */
static const char *unfit(const json_t *tool, const char **name)
{
    const json_t *own = json_object_get(tool, "name"),
                 *schema = json_object_get(tool, "inputSchema");
    const char *task =
        json_string_value(json_object_get(json_object_get(tool, "execution"), "taskSupport"));
    *name = json_string_value(own);
    *name = *name ? *name : "";
    if (!**name || strlen(*name) != json_string_length(own) || strlen(*name) > OWN_MAX)
        return "it has no name, or one that is too long";
    if (schema && !json_is_object(schema))
        return "its inputSchema is not an object";
    if (task && !strcmp(task, "required"))
        return "it runs as a task alone, which carat does not do";
    return NULL;
}

/* Adds a tool, unless it is not fit, which is told. */
static status add_tool(const mcp_set *s, const source *from, const json_t *tool, offer *f,
                       size_t *n_bytes, err *e)
{
    char name[NAME_MAX_BYTES + 1];
    const char *own, *about = "", *why = unfit(tool, &own);
    err no = {0};
    if (!why && f->n == TOOLS_MAX)
        why = "there are 512 tools already";
    for (size_t i = 0; i < f->n && !why; i++)
        if (!strcmp(f->tool[i].own, own) && !strcmp(f->tool[i].server, from->name))
            why = "it is in the list twice";
    put_name(name, NULL, own);
    json_t *d = why ? NULL : declare(name, tool, &about);
    char *text = d ? json_dumps(d, JSON_COMPACT) : NULL;
    bool short_ = !why && (json_was_short() || !text);
    if (text && strlen(text) > DECLARED_MAX)
        why = "its declaration is longer than 64 KiB";
    else if (text && strlen(text) > ALL_MAX - *n_bytes)
        why = "all declarations together are longer than 1 MiB";
    else if (text && !short_ && s->o.accept && s->o.accept(s->o.user, d, &no))
        why = no.text;
    *n_bytes += text && !why ? strlen(text) : 0;
    free(text);
    if (why || short_) {
        json_decref(d);
        if (why)
            tell(s, from->name, *own ? own : "a tool", why);
        return short_ ? err_memory(e, from->name, 256) : OK;
    }
    mcp_tool *t = &f->tool[f->n++];
    *t = (mcp_tool){.name = arena_strndup(&f->mem, name, strlen(name)),
                    .own = arena_strndup(&f->mem, own, strlen(own)),
                    .server = from->name,
                    .about = about,
                    .declared = d};
    return json_array_append_new(f->declared, d) || !t->name || !t->own
               ? err_memory(e, from->name, 256)
               : OK;
}

/* Is "NAME" or "SERVER/NAME" this tool? A name alone means the only tool of that name. What begins
 * with the name of a server and a '/' means that server, also where another one has such a tool. */
static bool means(const mcp_set *s, const offer *f, const char *word, const mcp_tool *t)
{
    for (size_t i = 0; i < s->n; i++) {
        size_t n = strlen(s->server[i].name);
        if (!strncmp(word, s->server[i].name, n) && word[n] == '/')
            return s->server[i].name == t->server && !strcmp(word + n + 1, t->own);
    }
    if (strcmp(word, t->own) != 0)
        return !strcmp(word, t->name);
    for (size_t i = 0; i < f->n; i++)
        if (&f->tool[i] != t && !strcmp(f->tool[i].own, word))
            return false;
    return true;
}

static void take_consent(const mcp_set *s, offer *f)
{
    for (size_t i = 0; i < f->n; i++) {
        mcp_tool *t = &f->tool[i];
        for (size_t k = 0; k < s->o.n_automatic; k++)
            t->automatic |= means(s, f, s->o.automatic[k], t);
        for (size_t k = 0; k < s->now.n; k++) {
            const mcp_tool *was = &s->now.tool[k];
            t->allowed |= was->allowed && !strcmp(was->server, t->server) &&
                          !strcmp(was->own, t->own) && json_equal(was->declared, t->declared);
        }
    }
}

static void offer_free(offer *f)
{
    json_decref(f->declared);
    arena_free(&f->mem);
    *f = (offer){.n = 0};
}

static status make_offer(const mcp_set *s, offer *f, err *e)
{
    size_t n = 0, n_bytes = 0;
    status st = OK;
    json_was_short();
    *f = (offer){.declared = json_array()};
    for (size_t i = 0; i < s->n; i++)
        n += json_array_size(s->server[i].list);
    f->tool = arena_array(&f->mem, n + 1, sizeof *f->tool);
    if (!f->tool || !f->declared)
        st = err_memory(e, "tools", n * sizeof *f->tool);
    for (size_t i = 0; i < s->n && !st; i++)
        for (size_t k = 0; k < json_array_size(s->server[i].list) && !st; k++)
            st = add_tool(s, &s->server[i], json_array_get(s->server[i].list, k), f, &n_bytes, e);
    if (!st && !make_unique(f))
        st = err_memory(e, "tools", n * sizeof *f->tool);
    for (size_t i = 0; i < f->n && !st; i++)
        if (json_object_set_new(json_object_get(f->tool[i].declared, "function"), "name",
                                json_string(f->tool[i].name)))
            st = err_memory(e, "tools", 256);
    if (!st && json_was_short())
        st = err_memory(e, "tools", 256);
    if (st)
        offer_free(f);
    else
        take_consent(s, f);
    return st;
}

/* ---- Turns ---- */

static status take_turn(mcp_set *s, source *v, const mcp_watch *w, err *e)
{
    status st = OK;
    pthread_mutex_lock(&s->lock);
    while (v->busy && !st) {
        struct timespec until = clock_after_ms(TURN_MS);
        pthread_cond_timedwait(&s->idle, &s->lock, &until);
        if (v->busy && w && w->go_on && !w->go_on(w->user))
            st = err_set(e, E_CANCELLED, "interrupted");
    }
    v->busy = v->busy || !st;
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* A turn without a wait: false where a request is under way. */
static bool try_turn(mcp_set *s, source *v)
{
    pthread_mutex_lock(&s->lock);
    bool free_ = !v->busy;
    v->busy = true;
    pthread_mutex_unlock(&s->lock);
    return free_;
}

static void end_turn(mcp_set *s, source *v)
{
    pthread_mutex_lock(&s->lock);
    v->busy = false;
    pthread_cond_broadcast(&s->idle);
    pthread_mutex_unlock(&s->lock);
}

/* ---- Opening and closing ---- */

static status check_automatic(const mcp_set *s, err *e)
{
    for (size_t k = 0; k < s->o.n_automatic; k++) {
        bool found = false;
        for (size_t i = 0; i < s->now.n && !found; i++)
            found = means(s, &s->now, s->o.automatic[k], &s->now.tool[i]);
        if (!found)
            return err_set(e, E_ARG,
                           "--tools-auto %.100s: no MCP server has such a tool, or two have it "
                           "(then SERVER/NAME)",
                           s->o.automatic[k]);
    }
    return OK;
}

status mcp_set_open(mcp_set **out, const mcp_set_options *o, const mcp_watch *w, err *e)
{
    mcp_set *s = *out = mem_calloc(1, sizeof *s);
    status st = OK;
    if (!s)
        return err_memory(e, "MCP servers", sizeof *s);
    s->o = *o;
    pthread_mutex_init(&s->lock, NULL);
    clock_cond_init(&s->idle);
    for (size_t i = 0; i < o->specs->n && !st; i++) { /* all begin at once */
        char path[4096];
        const mcp_spec *spec = &o->specs->at[i];
        bool logs = o->log && o->log(spec->name, path, sizeof path);
        s->server[i].name = spec->name;
        st = mcp_client_open(&s->server[i].client, spec, logs ? path : NULL, e);
        s->n = i + 1;
    }
    for (size_t i = 0; i < s->n && !st; i++)
        st = mcp_client_list(s->server[i].client, w, &s->server[i].list, e);
    if (!st)
        st = make_offer(s, &s->now, e);
    if (!st)
        st = check_automatic(s, e);
    if (st) {
        mcp_set_close(s);
        *out = NULL;
    }
    return st;
}

void mcp_set_close(mcp_set *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->n; i++) {
        mcp_client_close(s->server[i].client);
        json_decref(s->server[i].list);
    }
    offer_free(&s->now);
    pthread_cond_destroy(&s->idle);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

/* ---- Use ---- */

void mcp_set_refresh(mcp_set *s, const mcp_watch *w, bool *changed)
{
    bool any = false;
    *changed = false;
    for (size_t i = 0; i < s->n; i++) {
        source *v = &s->server[i];
        json_t *list = NULL;
        err e = {0};
        if (!try_turn(s, v))
            continue;
        if (mcp_client_changed(v->client) && !mcp_client_list(v->client, w, &list, &e)) {
            any = any || !json_equal(list, v->list);
            pthread_mutex_lock(&s->lock);
            json_decref(v->list);
            v->list = list;
            pthread_mutex_unlock(&s->lock);
        }
        end_turn(s, v);
        if (e.status && e.status != E_CANCELLED && s->o.tell)
            s->o.tell(s->o.user, e.text);
    }
    offer next;
    pthread_mutex_lock(&s->lock);
    if (any && !make_offer(s, &next, NULL)) {
        offer_free(&s->now);
        s->now = next;
        *changed = true;
    }
    pthread_mutex_unlock(&s->lock);
}

/* The server of the tool of that name, and the tool's own name, which the caller frees. */
static status look_up(mcp_set *s, const char *name, source **v, char **own, err *e)
{
    *v = NULL;
    *own = NULL;
    pthread_mutex_lock(&s->lock);
    const mcp_tool *t = mcp_set_find(s, name);
    for (size_t i = 0; t && i < s->n; i++)
        if (s->server[i].name == t->server)
            *v = &s->server[i];
    if (t)
        *own = mem_strdup(t->own);
    pthread_mutex_unlock(&s->lock);
    if (!t)
        return err_set(e, E_ARG, "there is no tool '%.80s'", name);
    return *own ? OK : err_memory(e, "a call", 64);
}

static status parse_arguments(const char *text, json_t **out, err *e)
{
    *out = NULL;
    if (!text || !text[strspn(text, " \t\r\n")])
        *out = json_object();
    else if (json_parse_words(out, text, strlen(text), "the arguments", e))
        return e->status;
    if (!*out)
        return err_memory(e, "a call", 64);
    if (json_is_object(*out))
        return OK;
    json_decref(*out);
    *out = NULL;
    return err_set(e, E_FORMAT, "the arguments are not a JSON object");
}

status mcp_set_call(mcp_set *s, const char *name, const char *arguments, size_t max,
                    const mcp_watch *w, str *out, bool *failed, err *e)
{
    source *v;
    char *own;
    json_t *args = NULL;
    err why = {0};
    *failed = true;
    status st = look_up(s, name, &v, &own, e);
    if (st)
        return st;
    st = parse_arguments(arguments, &args, &why);
    if (!st && !(st = take_turn(s, v, w, &why))) {
        st = mcp_client_call(v->client, own, args, w, out, failed, &why);
        end_turn(s, v);
    }
    json_decref(args);
    mem_free(own);
    if (st == E_CANCELLED || st == E_MEMORY)
        return err_set(e, st, "%s", why.text);
    if (st) {
        *failed = true;
        str_cut(out, 0);
        str_printf(out, "error: %s", why.text);
    }
    result_cut(out, max);
    return out->bad ? err_memory(e, "a result", out->n) : OK;
}

void mcp_set_put_tools(mcp_set *s, str *out)
{
    pthread_mutex_lock(&s->lock);
    json_was_short();
    char *text = json_dumps(s->now.declared, JSON_COMPACT);
    pthread_mutex_unlock(&s->lock);
    str_puts(out, text ? text : "");
    out->bad |= json_was_short() || !text;
    free(text);
}

void mcp_set_put_offer(mcp_set *s, mcp_accept *accept, void *user, str *out)
{
    pthread_mutex_lock(&s->lock);
    json_was_short();
    str_putc(out, '[');
    for (size_t i = 0; i < s->now.n; i++) {
        const mcp_tool *t = &s->now.tool[i];
        err no = {0};
        json_t *v = json_pack("{s:s, s:s, s:b, s:O}", "name", t->name, "server", t->server, "auto",
                              t->automatic, "declared", t->declared);
        if (v && accept && accept(user, t->declared, &no))
            json_object_set_new(v, "left_out", json_string(no.text));
        char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
        json_decref(v);
        str_puts(out, i ? "," : "");
        str_puts(out, text ? text : "");
        out->bad |= !text;
        free(text);
    }
    str_putc(out, ']');
    out->bad |= json_was_short();
    pthread_mutex_unlock(&s->lock);
}

size_t mcp_set_count(const mcp_set *s)
{
    return s->now.n;
}

const mcp_tool *mcp_set_at(const mcp_set *s, size_t i)
{
    return &s->now.tool[i];
}

const mcp_tool *mcp_set_find(const mcp_set *s, const char *name)
{
    for (size_t i = 0; i < s->now.n; i++)
        if (!strcmp(s->now.tool[i].name, name))
            return &s->now.tool[i];
    return NULL;
}

void mcp_set_allow(mcp_set *s, const char *name)
{
    for (size_t i = 0; i < s->now.n; i++)
        if (!strcmp(s->now.tool[i].name, name))
            s->now.tool[i].allowed = true;
}

const char *mcp_set_title(const mcp_set *s, const char *server, const char **revision)
{
    for (size_t i = 0; i < s->n; i++)
        if (!strcmp(s->server[i].name, server)) {
            *revision = mcp_client_revision(s->server[i].client);
            return mcp_client_title(s->server[i].client);
        }
    *revision = "";
    return "";
}
