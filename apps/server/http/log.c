/* log.c - the log: a line per request on stderr, as text or JSON. And --trace: a JSON file per
 * request, with its body, its prompt and its sampled tokens, for bug reports.
 *
 * The log never has text of a conversation; a trace has all of it, so its file has mode 0600.
 */
#include "apps/server/http/exchange.h"
#include "apps/jsonw.h"
#include "base/clock.h"
#include "base/map.h"
#include "base/show.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static bool as_json(const server *s)
{
    return !strcmp(s->o->log, "json");
}

static void put_time(char out[32])
{
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, 32 - n, ".%03dZ", (int)(now.tv_nsec / 1000000));
}

/* One write per line, so that lines of several threads do not mix. */
static void emit(str *line)
{
    if (!line->bad) {
        str_putc(line, '\n');
        fwrite(line->at, 1, line->n, stderr);
    }
    str_free(line);
}

void log_line(const server *s, const char *fmt, ...)
{
    char text[1024], when[32];
    str o = {0};
    va_list ap;
    if (!strcmp(s->o->log, "off"))
        return;
    va_start(ap, fmt);
    show_format(text, sizeof text, fmt, ap);
    va_end(ap);
    put_time(when);
    if (as_json(s)) {
        json_open(&o, NULL, '{');
        json_text(&o, "time", when);
        json_text(&o, "level", "info");
        json_text(&o, "message", text);
        json_close(&o, "}");
    } else {
        str_printf(&o, "%s %s", when, text);
    }
    emit(&o);
}

void log_exchange(const exchange *x)
{
    char when[32];
    str o = {0};
    const usage *u = &x->used;
    char path[512];
    double rate = u->decode_ms > 0 ? 1000 * (double)u->generated / u->decode_ms : 0;
    if (!strcmp(x->s->o->log, "off"))
        return;
    put_time(when);
    show_into(path, sizeof path, x->path);
    json_open(&o, NULL, '{');
    json_text(&o, "time", when);
    json_text(&o, "level", x->status >= 500 ? "error" : "info");
    json_text(&o, "id", x->id);
    json_text(&o, "method", SHOWN(x->method));
    json_text(&o, "path", path);
    json_int(&o, "status", x->status);
    json_number(&o, "ms", clock_ms() - x->start_ms);
    if (u->prompt || u->generated) {
        json_int(&o, "prompt", u->prompt);
        json_int(&o, "cached", u->cached);
        json_int(&o, "generated", u->generated);
        json_number(&o, "queue_ms", u->queue_ms);
        json_number(&o, "ttft_ms", x->ttft_ms);
        json_number(&o, "tokens_per_s", rate);
        if (u->rounds) {
            json_int(&o, "draft_rounds", u->rounds);
            json_int(&o, "drafted", u->drafted);
            json_int(&o, "accepted", u->accepted);
        }
    }
    if (x->note)
        json_text(&o, "note", x->note);
    json_close(&o, "}");
    if (!as_json(x->s)) {
        str line = {0};
        str_printf(&line, "%s %s %s %s %d %.0f ms", when, x->id, SHOWN(x->method), path, x->status,
                   clock_ms() - x->start_ms);
        if (u->prompt || u->generated)
            str_printf(&line, ", prompt %lld (%lld cached), %lld tokens at %.1f/s",
                       (long long)u->prompt, (long long)u->cached, (long long)u->generated, rate);
        if (u->rounds)
            str_printf(&line, " (%lld of %lld drafts accepted in %lld rounds)",
                       (long long)u->accepted, (long long)u->drafted, (long long)u->rounds);
        if (x->note)
            str_printf(&line, ", %s", x->note);
        str_free(&o);
        o = line;
    }
    emit(&o);
}

/* ---- Traces ---- */

static void put_id_list(str *o, const char *key, const int32_t *ids, int64_t n)
{
    json_open(o, key, '[');
    for (int64_t i = 0; i < n; i++)
        json_int(o, NULL, ids[i]);
    json_close(o, "]");
}

static void put_answer(str *o, const choice *c, const trace_prompt *p)
{
    static const char *const kinds[] = {"reasoning", "text", "call"};
    json_open(o, NULL, '{');
    put_id_list(o, "prompt_ids", p->ids, p->n);
    put_id_list(o, "sampled_ids", p->sampled, p->n_sampled);
    json_open(o, "parts", '[');
    for (int32_t i = 0; i < c->n_parts; i++) {
        const part *q = &c->part[i];
        json_open(o, NULL, '{');
        json_text(o, "kind", kinds[q->kind]);
        if (q->name)
            json_text(o, "name", q->name);
        json_text_n(o, "text", str_text(&q->text), q->text.n);
        json_close(o, "}");
    }
    json_close(o, "]");
    json_text(o, "finish", c->over && !c->failed ? carat_finish_name(c->finish) : "failed");
    json_int(o, "reused", c->t.n_reused);
    json_text(o, "reuse", c->t.reuse);
    json_close(o, "}");
}

void trace_write(const exchange *x, const answer *a, const trace_prompt *p, int32_t n)
{
    char path[1200], when[32];
    str o = {0};
    file_out f = {0};
    err e = {0};
    put_time(when);
    json_open(&o, NULL, '{');
    json_text(&o, "id", x->id);
    json_text(&o, "time", when);
    json_text(&o, "version", carat_version());
    json_text(&o, "model", x->m->info.name);
    json_text(&o, "path", SHOWN(x->path));
    json_tree(&o, "request", a->rq->body);
    json_open(&o, "answers", '[');
    for (int32_t i = 0; i < n; i++)
        put_answer(&o, &a->choice[i], &p[i]);
    json_close(&o, "]");
    json_text(&o, "note", x->note);
    json_close(&o, "}\n");
    snprintf(path, sizeof path, "%.1000s/%s.json", x->s->o->trace_dir, x->id);
    if (o.bad)
        log_line(x->s, "%s: no memory for a trace", path);
    else if (file_out_open_private(&f, path, &e) || file_out_write(&f, o.at, o.n, &e) ||
             file_out_commit(&f, &e))
        log_line(x->s, "%s", e.text);
    file_out_discard(&f);
    str_free(&o);
}
