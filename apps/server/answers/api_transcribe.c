/* api_transcribe.c - see api_transcribe.h.
 *
 * Speech is cut into pieces of at most 30 seconds, because models hear no more at a time. Each
 * piece is asked for in a chat of its own, without thinking, and is a segment of the answer: models
 * give no times of words.
 */
#include "apps/server/answers/api_transcribe.h"

#include "apps/server/answers/generate.h"
#include "apps/jsonw.h"
#include "apps/server/http/multipart.h"
#include "base/base64.h"
#include "base/mem.h"
#include "sound/sound.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECE = CARAT_SOUND_PIECE_SECONDS * SOUND_RATE,
    STEP = SOUND_RATE / 50,  /* of looking for a quiet place */
    LEAST = SOUND_RATE / 50, /* shorter ones have no token */
    PIECE_TOKENS = 1024      /* of a text: models may repeat themselves for ever */
};

/* Samples of all requests at once, beside those of the file that is being decoded. */
enum { SAMPLES_ALL_BYTES = 512 << 20 };
static atomic_llong samples_bytes;

typedef enum reply_format { REPLY_JSON, REPLY_TEXT, REPLY_VERBOSE } reply_format;

typedef struct transcription {
    multipart form;
    str model, language, prompt, temperature;
    reply_format format;
    sound sound;
    long long held; /* of samples_bytes */
    str text, segments;
    int32_t n_segments;
    bool cut; /* a segment has PIECE_TOKENS */
} transcription;

/* ---- Reading ---- */

static bool is_text(const multipart_field *f, const char *text)
{
    return f->n == strlen(text) && !memcmp(f->at, text, f->n);
}

static bool read_reply(transcription *t, const multipart_field *f, problem *p)
{
    static const char *const names[] = {
        [REPLY_JSON] = "json", [REPLY_TEXT] = "text", [REPLY_VERBOSE] = "verbose_json"};
    for (int i = 0; i < 3; i++)
        if (is_text(f, names[i])) {
            t->format = (reply_format)i;
            return true;
        }
    return problem_set(p, 400, "response_format",
                       "'response_format' is \"%.*s\"; expected json, text or verbose_json",
                       (int)(f->n < 40 ? f->n : 40), f->at);
}

/* A number from 0 to 2, which is passed on as it stands. */
static bool read_temperature(transcription *t, const multipart_field *f, problem *p)
{
    char text[32], *end;
    snprintf(text, sizeof text, "%.*s", (int)(f->n < 31 ? f->n : 31), f->at);
    double v = strtod(text, &end);
    if (end == text || end != text + f->n || !(v >= 0 && v <= 2))
        return problem_set(p, 400, "temperature",
                           "'temperature' is \"%s\"; expected a number from 0 to 2", text);
    str_cut(&t->temperature, 0);
    json_number(&t->temperature, NULL, v);
    return true;
}

static bool read_field(transcription *t, const multipart_field *f, problem *p)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(f->n_name < 63 ? f->n_name : 63), f->name);
    if (!strcmp(name, "file"))
        return true;
    if (!strcmp(name, "response_format"))
        return read_reply(t, f, p);
    if (!strcmp(name, "temperature"))
        return read_temperature(t, f, p);
    str *texts[] = {&t->model, &t->language, &t->prompt};
    static const char *const names[] = {"model", "language", "prompt"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(name, names[i])) {
            if (f->n > 4096)
                return problem_set(p, 400, name, "'%s' has %zu bytes; at most 4096 are read", name,
                                   f->n);
            str_cut(texts[i], 0);
            str_put(texts[i], f->at, f->n);
            return true;
        }
    if (!strcmp(name, "stream") && is_text(f, "false"))
        return true;
    if (!strcmp(name, "timestamp_granularities[]") && is_text(f, "segment"))
        return true;
    return problem_set(p, 400, name,
                       "'%s' is not supported by this path, or not with that value: it takes file, "
                       "model, language, prompt, temperature and response_format, and tells whole "
                       "segments of whole answers",
                       name);
}

static void hold(transcription *t, long long n)
{
    atomic_fetch_add(&samples_bytes, n - t->held);
    t->held = n;
}

static bool read_sound(transcription *t, problem *p)
{
    static pthread_mutex_t decoding = PTHREAD_MUTEX_INITIALIZER;
    const multipart_field *f = multipart_find(&t->form, "file");
    err e = {0};
    if (!f)
        return problem_set(p, 400, "file", "'file' is missing: the sound to be transcribed");
    if (f->n > PICTURE_MAX_BYTES)
        return problem_set(p, 400, "file", "'file' has %zu bytes; at most %d are read", f->n,
                           PICTURE_MAX_BYTES);
    pthread_mutex_lock(&decoding);
    status st = sound_decode(&t->sound, f->at, f->n, "'file'", &e);
    if (!st)
        hold(t, t->sound.cap * (long long)sizeof(float));
    pthread_mutex_unlock(&decoding);
    if (st) {
        problem_from(p, &e);
        snprintf(p->param, sizeof p->param, "file");
        return false;
    }
    if (t->sound.n < LEAST)
        return problem_set(p, 400, "file",
                           "'file' has a sound of %d milliseconds, which is too short",
                           (int)(t->sound.n * 1000 / SOUND_RATE));
    return atomic_load(&samples_bytes) <= SAMPLES_ALL_BYTES ||
           problem_set(p, 503, "", "the sounds of other requests take all memory for sounds");
}

static bool read_form(transcription *t, exchange *x, problem *p)
{
    err e = {0};
    if (multipart_split(&t->form, x->header(x, "Content-Type"), x->body, x->n_body, &e))
        return problem_set(p, 400, "", "%s; this path takes multipart/form-data", e.text);
    for (int32_t i = 0; i < t->form.n; i++)
        if (!read_field(t, &t->form.field[i], p))
            return false;
    return read_sound(t, p);
}

/* ---- Pieces ---- */

int64_t transcript_cut(const float *at, int64_t n, int64_t from)
{
    int64_t best = from + PIECE;
    double least = 0;
    if (n - from <= PIECE)
        return n;
    for (int64_t i = from + PIECE / 4 * 3; i + STEP <= from + PIECE; i += STEP) {
        double sum = 0;
        for (int64_t k = i; k < i + STEP; k++)
            sum += (double)at[k] * (double)at[k];
        if (i == from + PIECE / 4 * 3 || sum <= least) {
            least = sum;
            best = i + STEP / 2;
        }
    }
    return best;
}

/* Samples as a WAV file in base64: floats, as they are. */
static void put_wav(str *o, const float *x, int64_t n)
{
    const uint32_t size = (uint32_t)n * 4, rate = SOUND_RATE;
    str wav = {0};
    const uint32_t head[] = {size + 36, 16, 1u << 16 | 3, rate, rate * 4, 32u << 16 | 4, size};
    uint8_t le[sizeof head];
    for (size_t i = 0; i < sizeof head; i++)
        le[i] = (uint8_t)(head[i / 4] >> (8 * (i % 4)));
    str_puts(&wav, "RIFF");
    str_put(&wav, (const char *)le, 4);
    str_puts(&wav, "WAVEfmt ");
    str_put(&wav, (const char *)le + 4, 20);
    str_puts(&wav, "data");
    str_put(&wav, (const char *)le + 24, 4);
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        const char b[] = {(char)bits, (char)(bits >> 8), (char)(bits >> 16), (char)(bits >> 24)};
        str_put(&wav, b, sizeof b);
    }
    base64_put(o, wav.at, wav.n);
    o->bad |= wav.bad;
    str_free(&wav);
}

static void put_words(const transcription *t, str *o)
{
    str words = {0};
    str_puts(&words, "Transcribe the following speech segment in ");
    if (t->language.n == 2)
        str_printf(&words, "the language with the ISO 639-1 code \"%s\"", str_text(&t->language));
    else
        str_puts(&words, t->language.n ? str_text(&t->language) : "its original language");
    str_puts(&words, ". Only output the transcription, with no newlines.");
    if (t->prompt.n)
        str_printf(&words, " Context: %s", str_text(&t->prompt));
    json_text_n(o, "text", str_text(&words), words.n);
    o->bad |= words.bad;
    str_free(&words);
}

/* The chat that asks for one piece. */
static void put_chat(const transcription *t, const float *x, int64_t n, str *o)
{
    str data = {0};
    put_wav(&data, x, n);
    json_open(o, NULL, '{');
    if (t->model.n)
        json_text_n(o, "model", t->model.at, t->model.n);
    json_bool(o, "enable_thinking", false);
    json_int(o, "max_tokens", PIECE_TOKENS);
    if (t->temperature.n)
        json_ready(o, "temperature", t->temperature.at, t->temperature.n);
    json_open(o, "messages", '[');
    json_open(o, NULL, '{');
    json_text(o, "role", "user");
    json_open(o, "content", '[');
    json_open(o, NULL, '{');
    json_text(o, "type", "input_audio");
    json_open(o, "input_audio", '{');
    json_text_n(o, "data", str_text(&data), data.n);
    json_close(o, "}}");
    json_open(o, NULL, '{');
    json_text(o, "type", "text");
    put_words(t, o);
    json_close(o, "}]}]}");
    o->bad |= data.bad;
    str_free(&data);
}

static void add_segment(transcription *t, int64_t from, int64_t to, const char *text, size_t n,
                        bool cut)
{
    while (n && strchr(" \n\t", *text))
        text++, n--;
    while (n && strchr(" \n\t", text[n - 1]))
        n--;
    if (t->text.n && n)
        str_putc(&t->text, ' ');
    str_put(&t->text, text, n);
    json_open(&t->segments, NULL, '{');
    json_int(&t->segments, "id", t->n_segments++);
    json_number(&t->segments, "start", (double)from / SOUND_RATE);
    json_number(&t->segments, "end", (double)to / SOUND_RATE);
    json_text_n(&t->segments, "text", text, n);
    if (cut)
        json_text(&t->segments, "finish_reason", "length");
    t->cut = t->cut || cut;
    json_close(&t->segments, "}");
}

/* The answer in x->out as a segment. */
static bool take_answer(transcription *t, exchange *x, int64_t from, int64_t to, problem *p)
{
    arena mem = {.max_bytes = arena_limit_for(x->out.n)};
    const jtree *all = NULL;
    err e = {0};
    bool ok = !jtree_parse(x->out.at, x->out.n, "the answer", REQUEST_MAX_DEPTH, &mem, &all, &e) ||
              problem_from(p, &e);
    const jtree *choices = ok ? jtree_get(all, "choices") : NULL;
    const jtree *message = choices ? jtree_get(choices->first, "message") : NULL;
    const jtree *text = message ? jtree_get(message, "content") : NULL;
    const jtree *why = choices ? jtree_get(choices->first, "finish_reason") : NULL;
    if (ok)
        add_segment(t, from, to, jtree_is(text, JTREE_STRING) ? text->s : "",
                    jtree_is(text, JTREE_STRING) ? text->n : 0, tree_says(why, "length"));
    arena_free(&mem);
    return ok;
}

/* False: x has the problem already, or *p. */
static bool ask(transcription *t, exchange *x, int64_t from, int64_t to, problem *p)
{
    const char *given = x->body;
    size_t n_given = x->n_body;
    str body = {0};
    put_chat(t, t->sound.at + from, to - from, &body);
    bool ok = !body.bad || problem_set(p, 503, "", "no memory for a piece of the sound");
    if (ok) {
        x->body = body.at;
        x->n_body = body.n;
        str_cut(&x->out, 0);
        x->status = 0; /* that of the piece before */
        handle_generation(x, API_CHAT);
        ok = x->status == 200 && take_answer(t, x, from, to, p);
    }
    x->body = given;
    x->n_body = n_given;
    str_free(&body);
    return ok;
}

/* ---- Writing ---- */

static void put_reply(const transcription *t, exchange *x)
{
    str *o = &x->out;
    str_cut(o, 0);
    if (t->format == REPLY_TEXT) {
        str_put(o, str_text(&t->text), t->text.n);
        str_putc(o, '\n');
        x->type = "text/plain; charset=utf-8";
    } else {
        json_open(o, NULL, '{');
        if (t->format == REPLY_VERBOSE) {
            json_text(o, "task", "transcribe");
            if (t->language.n)
                json_text_n(o, "language", t->language.at, t->language.n);
            json_number(o, "duration", (double)t->sound.n / SOUND_RATE);
        }
        json_text_n(o, "text", str_text(&t->text), t->text.n);
        if (t->cut)
            json_text(o, "finish_reason", "length");
        if (t->format == REPLY_VERBOSE) {
            json_open(o, "segments", '[');
            json_ready(o, NULL, str_text(&t->segments), t->segments.n);
            json_close(o, "]");
        }
        json_close(o, "}");
    }
    o->bad |= t->text.bad || t->segments.bad;
}

void handle_transcription(exchange *x)
{
    problem p = {0};
    transcription *t = mem_calloc(1, sizeof *t);
    bool ok = t ? read_form(t, x, &p) : problem_set(&p, 503, "", "no memory for a form");
    for (int64_t from = 0, to; ok && from < t->sound.n; from = to) {
        to = transcript_cut(t->sound.at, t->sound.n, from);
        if (from && t->sound.n - from < LEAST)
            break;
        ok = ask(t, x, from, to, &p);
    }
    if (ok)
        put_reply(t, x);
    else if (p.status)
        reply_problem(x, &p);
    if (t) {
        str *texts[] = {&t->model,       &t->language, &t->prompt,
                        &t->temperature, &t->text,     &t->segments};
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
            str_free(texts[i]);
        sound_free(&t->sound);
        hold(t, 0);
    }
    mem_free(t);
}
