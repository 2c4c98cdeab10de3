/* run_pictures.c - pictures of a conversation: files and paths that become parts of messages, and
 * soft tokens in prompts. Sounds are pictures here but where they differ (apps/media/pictures.h):
 * their parts are {"type": "audio", ...}, and {"type": "input_audio", ...} as they are saved.
 *
 * A message with pictures has parts instead of a text. While the conversation is at work a picture
 * is {"type": "image", "number": N, "name": FILE}, N its place in chat.pictures. In a saved
 * conversation it is {"type": "image_url", ...} with the whole file as a data URI, as in OpenAI's
 * requests: so it can be read where the file is no more.
 *
 * A path in a typed text becomes "picture N", N its place among the pictures of the prompt. Its
 * text part remembers that, "spoken": [[OFFSET, NUMBER], ...]: where older messages are dropped, N
 * is another. In a saved conversation NUMBER counts the pictures and sounds of its messages.
 */
#include "apps/media/soft.h"
#include "apps/run_int.h"
#include "base/base64.h"
#include "base/mem.h"
#include "base/show.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

/* ---- The list ------------------------------------------------------------------------------ */

/* The number of a part that is a picture; -1: it is none. Parts of a loaded conversation that are
 * no pictures stay as they are, whatever members they have. */
static int32_t number_of(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *n = json_object_get(part, "number");
    json_int_t number = json_is_integer(n) ? json_integer_value(n) : -1;
    bool is_one = type && (!strcmp(type, "image") || !strcmp(type, "audio"));
    return is_one && number >= 0 && number < PICTURES_MAX ? (int32_t)number : -1;
}

static void mark_used(const json_t *messages, bool *used)
{
    size_t i, k;
    json_t *m, *part;
    json_array_foreach(messages, i, m)
        json_array_foreach(json_object_get(m, "content"), k, part) if (number_of(part) >= 0)
            used[number_of(part)] = true;
}

static void renumber(json_t *messages, const int32_t *to)
{
    size_t i, k;
    json_t *m, *part;
    json_array_foreach(messages, i, m)
        json_array_foreach(json_object_get(m, "content"), k, part) if (number_of(part) >= 0)
            json_integer_set(json_object_get(part, "number"), to[number_of(part)]);
}

static const char *kind_of(const picture *p);
static bool is_sound(const picture *p);
static int count_kind(const pictures *l, int32_t n, bool sounds);

/* Writes what a text part says of pictures anew, after the list has become l. */
static void speak_anew(json_t *part, const int32_t *to, const pictures *l)
{
    json_t *place, *spoken = json_object_get(part, "spoken"), *text = json_object_get(part, "text");
    const char *was = json_string_value(text);
    size_t i, done = 0;
    str now = {0};
    json_array_foreach(spoken, i, place)
    {
        int32_t k = to[json_integer_value(json_array_get(place, 1))];
        size_t at = (size_t)json_integer_value(json_array_get(place, 0));
        size_t word = strlen(kind_of(&l->at[k])) + 1; /* and a blank */
        str_put(&now, was + done, at - done);
        json_integer_set(json_array_get(place, 0), (json_int_t)now.n);
        json_integer_set(json_array_get(place, 1), k);
        str_put(&now, was + at, word);
        str_printf(&now, "%d", count_kind(l, k + 1, is_sound(&l->at[k])));
        done = at + word + strspn(was + at + word, "0123456789");
    }
    if (!spoken)
        return;
    str_puts(&now, was + done);
    if (!now.bad)
        json_string_setn(text, str_text(&now), now.n);
    str_free(&now);
}

static void free_list(pictures *l, carat_media **media)
{
    for (int i = 0; i < PICTURES_MAX; i++) {
        carat_media_free(media[i]);
        media[i] = NULL;
    }
    pictures_free(l);
}

/* Drops pictures that neither a message has nor the next one gets. */
static void sweep(chat *c)
{
    bool used[PICTURES_MAX] = {false};
    int32_t to[PICTURES_MAX] = {0};
    carat_media *media[PICTURES_MAX] = {NULL};
    pictures rest = {.keep = true};
    size_t i, k;
    json_t *m, *part;
    mark_used(c->messages, used);
    for (int32_t n = 0; n < c->n_next; n++)
        used[c->next[n]] = true;
    for (int32_t n = 0; n < c->pictures.n; n++) {
        if (!used[n])
            continue;
        if (pictures_move(&rest, &c->pictures, n, NULL)) /* no memory for the list itself */
            return;
        to[n] = rest.n - 1;
        media[to[n]] = c->media[n];
        c->media[n] = NULL;
    }
    renumber(c->messages, to);
    json_array_foreach(c->messages, i, m) json_array_foreach(json_object_get(m, "content"), k, part)
        speak_anew(part, to, &rest);
    for (int32_t n = 0; n < c->n_next; n++)
        c->next[n] = to[c->next[n]];
    for (int32_t n = 0; n < c->n_spoken; n++)
        c->spoken[n].number = to[c->spoken[n].number];
    free_list(&c->pictures, c->media);
    c->pictures = rest;
    memcpy(c->media, media, sizeof media);
}

void chat_count_anew(chat *c)
{
    sweep(c);
}

void chat_free_pictures(chat *c)
{
    free_list(&c->pictures, c->media);
    c->n_next = c->n_spoken = 0;
}

static const char *base_name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static bool is_sound(const picture *p)
{
    return p->n_samples > 0;
}

static const char *kind_of(const picture *p)
{
    return is_sound(p) ? "sound" : "picture";
}

/* Those among the first n of a list. */
static int count_kind(const pictures *l, int32_t n, bool sounds)
{
    int found = 0;
    for (int32_t i = 0; i < n; i++)
        found += is_sound(&l->at[i]) == sounds;
    return found;
}

/* "picture 2": what a text says of one of the list. Returns the length. */
static int says_number(char out[32], const pictures *l, int32_t k)
{
    const picture *p = &l->at[k];
    return snprintf(out, 32, "%s %d", kind_of(p), count_kind(l, k + 1, is_sound(p)));
}

/* "picture", "sound" or, where there are both, "file". */
static const char *kind_of_all(const chat *c, const int32_t *number, int n)
{
    const char *kind = n ? kind_of(&c->pictures.at[number[0]]) : "picture";
    for (int i = 1; i < n; i++)
        if (strcmp(kind, kind_of(&c->pictures.at[number[i]])) != 0)
            return "file";
    return kind;
}

const char *chat_next_kind(const chat *c)
{
    return kind_of_all(c, c->next, c->n_next);
}

static bool takes(const chat *c, bool sounds)
{
    return sounds ? c->info.hears : c->info.mmproj != NULL;
}

/* Why this conversation takes no such picture. */
static status check_takes(const chat *c, const picture *p, err *e)
{
    bool sounds = is_sound(p);
    if (c->raw)
        return err_set(e, E_UNSUPPORTED, "%s: a %s, and text without a chat format has none",
                       p->name, kind_of(p));
    if (takes(c, sounds))
        return OK;
    char why[128] = "";
    if (c->info.mmproj)
        snprintf(why, sizeof why, ": its mmproj file has no audio tower");
    else if ((sounds ? carat_sound_token(c->m) : carat_image_token(c->m)) >= 0)
        snprintf(why, sizeof why,
                 ": it is open without its %s tower, a file with mmproj in its name "
                 "(--mmproj FILE)",
                 sounds ? "audio" : "vision");
    return err_set(e, E_UNSUPPORTED, "%s: a %s, and %s %s none%s", p->name, kind_of(p),
                   c->info.name, sounds ? "hears" : "sees", why);
}

/* Models hear CARAT_SOUND_PIECE_SECONDS at a time. */
static void put_length(char *out, size_t cap, int64_t n_samples)
{
    const int64_t piece = CARAT_SOUND_PIECE_SECONDS * CARAT_SOUND_RATE;
    int n = snprintf(out, cap, "%.1f s", (double)n_samples / CARAT_SOUND_RATE);
    if (n_samples > piece)
        snprintf(out + n, cap - (size_t)n, " in pieces of %d s", CARAT_SOUND_PIECE_SECONDS);
}

static void tell_picture(const chat *c, int32_t k, int32_t n_tokens)
{
    const picture *p = &c->pictures.at[k];
    char size[64];
    if (c->quiet || c->out.format != ANSWER_TEXT)
        return;
    if (is_sound(p))
        put_length(size, sizeof size, p->n_samples);
    else
        snprintf(size, sizeof size, "%dx%d", p->head.width, p->head.height);
    term_note("[%s %d: %s, %s, %d tokens]", kind_of(p),
              count_kind(&c->pictures, k + 1, is_sound(p)), SHOWN(base_name_of(p->name)), size,
              n_tokens);
}

status chat_take_pictures(chat *c, pictures *from, err *e)
{
    int32_t n_tokens[PICTURES_MAX + 1], before = c->n_next; /* one more, before it is refused */
    status st = OK;
    if (c->pictures.n + from->n > PICTURES_MAX)
        sweep(c);
    c->pictures.keep = true;
    for (int32_t i = 0; i < from->n && !st; i++) {
        if (!(st = check_takes(c, &from->at[i], e)) &&
            !(st = picture_count(&from->at[i], c->m, &n_tokens[c->n_next], e)) &&
            !(st = pictures_move(&c->pictures, from, i, e)))
            c->next[c->n_next++] = c->pictures.n - 1;
    }
    for (int32_t i = before; i < c->n_next && !st; i++)
        tell_picture(c, c->next[i], n_tokens[i]);
    if (st)
        c->n_next = before;
    return st;
}

/* ---- Paths in a text ------------------------------------------------------------------------ */

static bool ends_in(const char *s, size_t n, const char *const *ends)
{
    for (; *ends; ends++) {
        size_t len = strlen(*ends);
        if (n > len && !strncasecmp(s + n - len, *ends, len))
            return true;
    }
    return false;
}

static bool is_sound_name(const char *s, size_t n)
{
    static const char *const ends[] = {".wav", ".flac", ".mp3", ".ogg", ".opus", NULL};
    return ends_in(s, n, ends);
}

static bool is_picture_name(const char *s, size_t n)
{
    static const char *const ends[] = {".png", ".jpg", ".jpeg", ".webp", NULL};
    return ends_in(s, n, ends) || is_sound_name(s, n);
}

static int hex_of(char c)
{
    const char *at = c ? strchr("0123456789abcdef", c | 0x20) : NULL;
    return at ? (int)(at - "0123456789abcdef") : -1;
}

/* A path as it is typed or dropped on a terminal: with backslashes, with ~, or as file://. */
static void put_path(str *out, const char *s, size_t n, bool quoted)
{
    static const char uri[] = "file://";
    bool is_uri = n > sizeof uri - 1 && !strncasecmp(s, uri, sizeof uri - 1);
    size_t i = is_uri ? sizeof uri - 1 : 0;
    if (is_uri && n - i > 9 && !strncasecmp(s + i, "localhost", 9))
        i += 9;
    if (!is_uri && n > 1 && s[0] == '~' && s[1] == '/' && getenv("HOME")) {
        str_puts(out, getenv("HOME"));
        i = 1;
    }
    for (; i < n; i++) {
        if (is_uri && s[i] == '%' && i + 2 < n && hex_of(s[i + 1]) >= 0 && hex_of(s[i + 2]) >= 0) {
            str_putc(out, (char)(hex_of(s[i + 1]) << 4 | hex_of(s[i + 2])));
            i += 2;
            continue;
        }
        if (!is_uri && !quoted && s[i] == '\\' && i + 1 < n)
            i++;
        str_putc(out, s[i]);
    }
}

/* Does a name end in front of s? */
static bool ends_name(const char *s)
{
    return !isalnum((unsigned char)*s) && (!*s || !strchr("_-/%", *s)) &&
           !(*s == '.' && isalnum((unsigned char)s[1]));
}

static bool begins_path(const char *s)
{
    return s[0] == '/' || !strncmp(s, "./", 2) || !strncmp(s, "../", 3) || !strncmp(s, "~/", 2) ||
           !strncasecmp(s, "file://", 7);
}

#define BEFORE_WORD " \t\n(" /* what a path may follow */

/* Is there such a file? *path gets its name. */
static bool exists(const char *s, size_t n, bool quoted, str *path)
{
    struct stat sb;
    str_cut(path, 0);
    put_path(path, s, n, quoted);
    return !path->bad && !memchr(str_text(path), 0, path->n) && !stat(str_text(path), &sb) &&
           S_ISREG(sb.st_mode);
}

enum { ENDS_MAX = 8 }; /* ends of a name with blanks that are tried: each asks the file system */

/* The length of the path to a picture that text begins with; 0: there is none. *path: its name,
 * also where *missing says that no file has it. A name without quotes may have blanks, so it ends
 * where a file is found. */
static size_t find_path(const char *text, str *path, bool *missing)
{
    char quote = text[0] == '\'' || text[0] == '"' ? text[0] : 0;
    const char *from = text + (quote != 0);
    *missing = false;
    if (!begins_path(from))
        return 0;
    if (quote) {
        size_t n = strcspn(from, (char[]){quote, '\n', 0});
        if (from[n] != quote || !is_picture_name(from, n))
            return 0;
        *missing = !exists(from, n, true, path);
        return n + 2;
    }
    size_t word = 0;
    while (from[word] && !strchr(" \t\n", from[word]))
        word += from[word] == '\\' && from[word + 1] ? 2 : 1;
    size_t first = 0;
    int tries = 0;
    for (size_t n = 1; n < PATH_MAX && from[n - 1] && from[n - 1] != '\n'; n++) {
        if (!is_picture_name(from, n) || !ends_name(from + n))
            continue;
        if (tries++ == ENDS_MAX)
            break;
        if (exists(from, n, false, path))
            return n;
        if (n <= word)
            first = n;
    }
    *missing = first > 0;
    if (first)
        exists(from, first, false, path);
    return first;
}

bool chat_begins_with_picture(const char *text)
{
    str path = {0};
    bool missing;
    size_t n = find_path(text, &path, &missing);
    str_free(&path);
    return n && !missing;
}

bool has_picture_path(const char *text)
{
    for (const char *at = text; at; at = strpbrk(at, BEFORE_WORD)) {
        at += strspn(at, BEFORE_WORD);
        if (chat_begins_with_picture(at))
            return true;
    }
    return false;
}

/* Files are read before any of them goes with the message: all or none. */
status chat_take_paths(chat *c, const char *text, str *out, err *e)
{
    pictures found = {0};
    str path = {0};
    bool word = true, told = false;
    int32_t n_spoken = 0;
    status st = OK;
    sweep(c); /* so that the numbers in the text are those of the list */
    for (const char *at = text; *at && !st;) {
        bool missing = false;
        size_t n = word && !c->raw ? find_path(at, &path, &missing) : 0;
        bool sounds = n && is_sound_name(str_text(&path), path.n);
        bool blind = n && !missing && !takes(c, sounds);
        if ((n && missing) || blind) {
            if (!told && blind)
                term_note("%s %s: %s stays a word of the text", c->info.name,
                          sounds ? "hears no sound" : "sees no pictures", SHOWN(str_text(&path)));
            else if (!told)
                term_note("%s: there is no such file, so it stays a word of the text",
                          SHOWN(str_text(&path)));
            told = true;
            n = 0;
        }
        if (n && !(st = pictures_add_file(&found, str_text(&path), e))) {
            const picture *p = &found.at[found.n - 1];
            c->spoken[n_spoken++] = (picture_name){out->n, c->pictures.n + found.n - 1};
            str_printf(out, "%s %d", kind_of(p),
                       count_kind(&c->pictures, c->pictures.n, is_sound(p)) +
                           count_kind(&found, found.n, is_sound(p)));
            at += n;
        }
        word = strchr(BEFORE_WORD, *at) != NULL;
        if (*at && !st)
            str_putc(out, *at++);
    }
    if (!st && (out->bad || path.bad))
        st = err_memory(e, "the message", out->n);
    if (!st)
        st = chat_take_pictures(c, &found, e);
    for (int32_t i = 0; i < n_spoken; i++)
        c->spoken[i].from_end = out->n - c->spoken[i].from_end;
    c->n_spoken = st ? 0 : n_spoken;
    pictures_free(&found);
    str_free(&path);
    return st;
}

/* ---- Messages ------------------------------------------------------------------------------- */

/* A part while the conversation is at work. */
static json_t *part_of(const picture *p, int32_t number)
{
    return json_pack("{s:s, s:i, s:s}", "type", is_sound(p) ? "audio" : "image", "number",
                     (int)number, "name", SHOWN(base_name_of(p->name)));
}

/* A text, with what it says of pictures: paths became that at its end. */
static json_t *text_part(const chat *c, json_t *words)
{
    json_t *part = json_pack("{s:s, s:O}", "type", "text", "text", words);
    json_t *spoken = c->n_spoken ? json_array() : NULL;
    size_t n = json_string_length(words);
    for (int32_t i = 0; i < c->n_spoken && spoken; i++) {
        const picture_name *x = &c->spoken[i];
        char says[32];
        int len = says_number(says, &c->pictures, x->number);
        const char *text = json_string_value(words);
        /* The text may be another one. */
        if (x->from_end <= n && !strncmp(text + (n - x->from_end), says, (size_t)len))
            json_array_append_new(
                spoken, json_pack("[I, i]", (json_int_t)(n - x->from_end), (int)x->number));
    }
    if (spoken)
        json_object_set_new(part, "spoken", spoken);
    return part;
}

json_t *chat_user_content(chat *c, const char *text, size_t n)
{
    json_t *words = json_stringn(text, n);
    if (!c->n_next || !words)
        return words;
    json_t *parts = json_array();
    bool ok = parts;
    for (int i = 0; i < c->n_next; i++)
        ok &= !json_array_append_new(parts, part_of(&c->pictures.at[c->next[i]], c->next[i]));
    if (n)
        ok &= !json_array_append_new(parts, text_part(c, words));
    json_decref(words);
    if (!ok) {
        json_decref(parts);
        return NULL;
    }
    c->n_next = c->n_spoken = 0;
    return parts;
}

/* The text may be sent again as it was. */
static void take_spoken(chat *c, const json_t *part)
{
    size_t i, n = json_string_length(json_object_get(part, "text"));
    json_t *place, *spoken = json_object_get(part, "spoken");
    json_array_foreach(spoken, i, place) if (i < PICTURES_MAX)
    {
        c->spoken[i] = (picture_name){n - (size_t)json_integer_value(json_array_get(place, 0)),
                                      (int32_t)json_integer_value(json_array_get(place, 1))};
        c->n_spoken = (int32_t)i + 1;
    }
}

void chat_take_back(chat *c)
{
    size_t i = json_array_size(c->messages), k;
    json_t *part;
    int32_t number[PICTURES_MAX];
    int n = 0;
    const json_t *last = i ? json_array_get(c->messages, i - 1) : NULL;
    json_array_foreach(json_object_get(last, "content"), k,
                       part) if (number_of(part) >= 0 && n < PICTURES_MAX) number[n++] =
        number_of(part);
    json_array_foreach(json_object_get(last, "content"), k, part) take_spoken(c, part);
    chat_undo(c);
    memcpy(c->next, number, (size_t)n * sizeof *number);
    c->n_next = n;
    if (n)
        term_note("its %s%s with the next message (/file none drops %s)", kind_of_all(c, number, n),
                  n > 1 ? "s go" : " goes", n > 1 ? "them" : "it");
}

static json_t *saved_sound(const picture *p, json_t *name)
{
    static const char *const format[] = {
        [SOUND_WAV] = "wav", [SOUND_FLAC] = "flac", [SOUND_MP3] = "mp3", [SOUND_OGG] = "ogg"};
    str data = {0};
    base64_put(&data, p->bytes, p->n);
    json_t *out = data.bad ? NULL
                           : json_pack("{s:s, s:{s:s, s:s}, s:O*}", "type", "input_audio",
                                       "input_audio", "data", data.at, "format",
                                       format[sound_format_of(p->bytes, p->n)], "name", name);
    str_free(&data);
    return out;
}

/* A part that is a picture, with its file as a data URI; of a sound as bare base64. */
static json_t *saved_part(const chat *c, const json_t *part)
{
    static const char *const type[] = {
        [IMAGE_PNG] = "png", [IMAGE_JPEG] = "jpeg", [IMAGE_WEBP] = "webp"};
    const picture *p = &c->pictures.at[number_of(part)];
    str uri = {0};
    if (is_sound(p))
        return saved_sound(p, json_object_get(part, "name"));
    str_printf(&uri, "data:image/%s;base64,", type[p->head.format]);
    base64_put(&uri, p->bytes, p->n);
    json_t *out = uri.bad ? NULL
                          : json_pack("{s:s, s:{s:s}, s:O*}", "type", "image_url", "image_url",
                                      "url", uri.at, "name", json_object_get(part, "name"));
    str_free(&uri);
    return out;
}

/* A part that is no picture. to: numbers of pictures in the file. */
static json_t *saved_words(json_t *part, const int32_t *to)
{
    json_t *place, *spoken = json_object_get(part, "spoken");
    size_t i;
    if (!spoken)
        return json_incref(part);
    json_t *out = json_deep_copy(part);
    json_array_foreach(json_object_get(out, "spoken"), i, place)
    {
        json_t *number = json_array_get(place, 1);
        json_integer_set(number, to[json_integer_value(number)]);
    }
    return out;
}

/* The message with its pictures as they are saved; itself where it has none. */
static json_t *saved_message(const chat *c, json_t *m, const int32_t *to)
{
    size_t k;
    json_t *part, *parts, *content = json_object_get(m, "content");
    if (!json_is_array(content))
        return json_incref(m);
    json_t *out = json_copy(m);
    bool ok = (parts = json_array()) && out;
    json_array_foreach(content, k, part) ok &= !json_array_append_new(
        parts, number_of(part) < 0 ? saved_words(part, to) : saved_part(c, part));
    if (!ok || json_object_set(out, "content", parts)) {
        json_decref(out);
        out = NULL;
    }
    json_decref(parts);
    return out;
}

json_t *chat_saved(const chat *c)
{
    size_t i;
    json_t *m, *all = json_array();
    bool ok = all, used[PICTURES_MAX] = {false};
    int32_t to[PICTURES_MAX] = {0}, n = 0;
    mark_used(c->messages, used);
    for (i = 0; i < PICTURES_MAX; i++)
        to[i] = used[i] ? n++ : 0;
    if (c->system)
        ok &= !json_array_append_new(
            all, json_pack("{s:s, s:s}", "role", "system", "content", c->system));
    json_array_foreach(c->messages, i, m) ok &=
        !json_array_append_new(all, saved_message(c, m, to));
    if (!ok)
        json_decref(all);
    return ok ? all : NULL;
}

/* The picture of a part, as it is saved or as requests have it, into the list. */
static status load_part(const json_t *part, pictures *to, const char *what, err *e)
{
    const json_t *url = json_object_get(part, "image_url"), *name = json_object_get(part, "name");
    const json_t *audio = json_object_get(part, "input_audio");
    const char *text = json_string_value(json_is_object(url) ? json_object_get(url, "url") : url);
    const char *data = json_string_value(json_object_get(audio, "data"));
    char label[112];
    str path = {0};
    status st;
    snprintf(label, sizeof label, "%s", json_is_string(name) ? json_string_value(name) : what);
    if (data)
        return pictures_add_base64(to, data, strlen(data), label, e);
    if (!text)
        text = json_string_value(json_object_get(audio, "url"));
    if (!text)
        return err_set(e, E_FORMAT,
                       "%s: a picture or sound without its data (image_url, input_audio)", what);
    if (!strncasecmp(text, "file:", 5)) { /* of the user's own machine */
        put_path(&path, text, strlen(text), false);
        st = path.bad ? err_memory(e, what, path.n) : pictures_add_file(to, str_text(&path), e);
        str_free(&path);
        return st;
    }
    if (strncasecmp(text, "data:", 5) != 0)
        return err_set(e, E_UNSUPPORTED,
                       "%s: a file at an address, which is not fetched: only data: and file: "
                       "are read",
                       what);
    return pictures_add_url(to, NULL, text, strlen(text), label, e);
}

static bool is_picture_part(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    static const char *const kinds[] = {"image_url", "image", "input_audio", "audio"};
    bool is_one = false;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        is_one |= type ? !strcmp(type, kinds[i])
                       : !json_object_get(part, "text") && json_object_get(part, kinds[i]);
    return is_one;
}

/* A text part of a file. Of what it says of its message's pictures, l->at[first] and after it,
 * holds what is so: the text may have been changed since. */
static json_t *loaded_words(json_t *part, const pictures *l, int32_t first)
{
    json_t *place, *spoken = json_object_get(part, "spoken"), *text = json_object_get(part, "text");
    size_t i, end = 0;
    if (!spoken)
        return json_incref(part);
    json_t *out = json_copy(part), *kept = json_array();
    json_array_foreach(spoken, i, place)
    {
        const json_t *at = json_array_get(place, 0), *number = json_array_get(place, 1);
        json_int_t a = json_is_integer(at) ? json_integer_value(at) : -1,
                   k = json_is_integer(number) ? json_integer_value(number) : -1;
        char says[32];
        if (a < (json_int_t)end || a >= (json_int_t)json_string_length(text) || k < first ||
            k >= l->n || json_array_size(kept) == PICTURES_MAX)
            continue;
        size_t n = (size_t)says_number(says, l, (int32_t)k);
        const char *words = json_string_value(text) + a;
        if (strncmp(words, says, n) != 0 || isdigit((unsigned char)words[n]))
            continue;
        end = (size_t)a + n;
        json_array_append_new(kept, json_pack("[I, I]", a, k));
    }
    if (json_array_size(kept))
        json_object_set(out, "spoken", kept);
    else
        json_object_del(out, "spoken");
    json_decref(kept);
    return out;
}

status chat_load_message(const chat *c, json_t *m, pictures *to, const char *what, json_t **out,
                         err *e)
{
    size_t k;
    int32_t first = to->n;
    json_t *part, *content = json_object_get(m, "content"), *parts;
    status st = OK;
    *out = NULL;
    if (!json_is_array(content)) {
        *out = json_incref(m);
        return OK;
    }
    *out = json_copy(m);
    parts = json_array();
    bool ok = *out && parts;
    json_array_foreach(content, k, part)
    {
        if (!is_picture_part(part)) {
            ok &= !json_array_append_new(parts, loaded_words(part, to, first));
            continue;
        }
        if ((st = load_part(part, to, what, e)) || (st = check_takes(c, &to->at[to->n - 1], e)))
            break;
        ok &= !json_array_append_new(parts, part_of(&to->at[to->n - 1], to->n - 1));
    }
    if (!st && (!ok || json_object_set(*out, "content", parts)))
        st = err_memory(e, "the conversation", 256);
    json_decref(parts);
    if (st) {
        json_decref(*out);
        *out = NULL;
    }
    return st;
}

void chat_use_pictures(chat *c, pictures *loaded)
{
    int32_t next[PICTURES_MAX], n = 0;
    for (int i = 0; i < c->n_next; i++) {
        if (!pictures_move(loaded, &c->pictures, c->next[i], NULL))
            next[n++] = loaded->n - 1;
        else
            term_note("%s no longer goes with the next message: there is no room beside the "
                      "pictures of this conversation",
                      SHOWN(c->pictures.at[c->next[i]].name));
    }
    chat_free_pictures(c);
    c->pictures = *loaded;
    c->pictures.keep = true;
    memcpy(c->next, next, (size_t)n * sizeof *next);
    c->n_next = n;
    *loaded = (pictures){0};
}

/* ---- Prompts -------------------------------------------------------------------------------- */

status chat_count_pictures(const chat *c, const carat_chat *prompt, int64_t *more, err *e)
{
    int32_t bad;
    return pictures_count(&c->pictures, c->m,
                          (picture_places){prompt->images, prompt->n_images, prompt->n_around},
                          more, &bad, e);
}

status chat_place_pictures(chat *c, carat_chat *prompt, err *e)
{
    int32_t *ids, bad;
    int64_t n;
    if (!prompt->n_images)
        return OK;
    status st = pictures_place(&c->pictures, c->m, c->media,
                               (picture_places){prompt->images, prompt->n_images, prompt->n_around},
                               prompt->ids, prompt->n_ids, &ids, &n, &bad, e);
    if (st)
        return st;
    mem_free(prompt->ids);
    prompt->ids = ids;
    prompt->n_ids = n;
    return OK;
}
