/* run_pictures.c - pictures of a conversation: files and paths that become parts of messages, and
 * soft tokens in prompts. Sounds are pictures here but where they differ (apps/media/pictures.h):
 * their parts are of another kind.
 *
 * A message with pictures has parts instead of a text. While the conversation is at work a picture
 * is a part whose number is its place in chat.pictures. In a saved conversation it is {"type":
 * "image_url", ...} with the whole file as a data URI, as in OpenAI's requests, a sound {"type":
 * "input_audio", ...}: so it can be read where the file is no more.
 *
 * A path in a typed text becomes "picture N", N its place among the pictures of the prompt. Its
 * text part remembers that as a mention: where older messages are dropped, N is another. In a saved
 * conversation mentions are "spoken": [[OFFSET, NUMBER], ...], and NUMBER counts the pictures and
 * sounds of its messages.
 */
#include "apps/media/soft.h"
#include "apps/talk_json.h"
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

static void mark_used(const carat_talk *t, bool *used)
{
    for (size_t i = 0; i < t->n; i++)
        for (size_t k = 0; k < t->turn[i].n_parts; k++)
            if (t->turn[i].part[k].number >= 0)
                used[t->turn[i].part[k].number] = true;
}

static const char *kind_of(const picture *p);
static bool is_sound(const picture *p);
static int count_kind(const pictures *l, int32_t n, bool sounds);

/* Writes what a text part says of pictures anew, after the list has become l. */
static void speak_anew(arena *mem, talk_part *part, const int32_t *to, const pictures *l)
{
    size_t done = 0;
    str now = {0};
    for (size_t i = 0; i < part->n_mentions; i++) {
        talk_mention *x = &part->mention[i];
        size_t at = x->at;
        x->number = to[x->number];
        const picture *p = &l->at[x->number];
        size_t word = strlen(kind_of(p)) + 1; /* and a blank */
        str_put(&now, part->text.s + done, at - done);
        x->at = now.n;
        str_put(&now, part->text.s + at, word);
        str_printf(&now, "%d", count_kind(l, x->number + 1, is_sound(p)));
        done = at + word + strspn(part->text.s + at + word, "0123456789");
    }
    str_put(&now, part->text.s + done, part->text.n - done);
    const char *kept = now.bad ? NULL : arena_strndup(mem, now.at, now.n);
    if (kept)
        part->text = (talk_text){kept, now.n};
    str_free(&now);
}

/* Pictures of the messages get other numbers. Their parts were made here, so they may be written.
 */
static void renumber(chat *c, const int32_t *to, const pictures *l)
{
    for (size_t i = 0; i < c->messages.n; i++)
        for (size_t k = 0; k < c->messages.turn[i].n_parts; k++) {
            talk_part *part = (talk_part *)(uintptr_t)&c->messages.turn[i].part[k];
            if (part->number >= 0)
                part->number = to[part->number];
            if (part->n_mentions)
                speak_anew(&c->mem, part, to, l);
        }
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
    mark_used(&c->messages, used);
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
    renumber(c, to, &rest);
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
static void make_part(carat_talk *t, talk_part *part, const picture *p, int32_t number)
{
    const char *name = SHOWN(base_name_of(p->name));
    *part = (talk_part){.kind = is_sound(p) ? TALK_AUDIO : TALK_IMAGE,
                        .name = is_sound(p) ? "audio" : "image",
                        .text = talk_keep(t, name, strlen(name)),
                        .number = number};
}

/* Room for the mentions of a text; NULL: no memory, or it is not wanted. */
static talk_mention *mentions(carat_talk *t, int32_t n)
{
    talk_mention *at = n ? arena_array(t->mem, (size_t)n, sizeof *at) : NULL;
    t->bad |= n && !at;
    return at;
}

/* A text, with what it says of pictures: paths became that at its end. */
static talk_part text_part(chat *c, talk_text words)
{
    talk_part part = {.kind = TALK_TEXT, .name = "text", .text = words, .number = -1};
    part.mention = mentions(&c->messages, c->n_spoken);
    for (int32_t i = 0; i < c->n_spoken && part.mention; i++) {
        const picture_name *x = &c->spoken[i];
        char says[32];
        int len = says_number(says, &c->pictures, x->number);
        /* The text may be another one. */
        if (x->from_end <= words.n &&
            !strncmp(words.s + (words.n - x->from_end), says, (size_t)len))
            part.mention[part.n_mentions++] = (talk_mention){words.n - x->from_end, x->number};
    }
    return part;
}

void chat_put_user(chat *c, const char *text, size_t n)
{
    carat_talk *t = &c->messages;
    const talk_text words = talk_keep(t, text, n);
    talk_part part;
    if (!c->n_next) {
        talk_set_text(t, words.s, words.n);
        return;
    }
    for (int i = 0; i < c->n_next; i++) {
        make_part(t, &part, &c->pictures.at[c->next[i]], c->next[i]);
        talk_put_part(t, part);
    }
    if (n)
        talk_put_part(t, text_part(c, words));
}

void chat_take_back(chat *c)
{
    int32_t number[PICTURES_MAX];
    int n = 0;
    const talk_turn *last = talk_last(&c->messages);
    for (size_t k = 0; last && k < last->n_parts; k++) {
        const talk_part *part = &last->part[k];
        if (part->number >= 0 && n < PICTURES_MAX)
            number[n++] = part->number;
        /* The text may be sent again as it was. */
        for (size_t i = 0; i < part->n_mentions && i < PICTURES_MAX; i++) {
            c->spoken[i] =
                (picture_name){part->text.n - part->mention[i].at, part->mention[i].number};
            c->n_spoken = (int32_t)i + 1;
        }
    }
    chat_undo(c);
    memcpy(c->next, number, (size_t)n * sizeof *number);
    c->n_next = n;
    if (n)
        term_note("its %s%s with the next message (/file none drops %s)", kind_of_all(c, number, n),
                  n > 1 ? "s go" : " goes", n > 1 ? "them" : "it");
}

/* ---- Saved conversations --------------------------------------------------------------------- */

/* A picture with its file as a data URI, a sound as bare base64. */
static void put_file(const picture *p, str *o)
{
    static const char *const images[] = {
        [IMAGE_PNG] = "png", [IMAGE_JPEG] = "jpeg", [IMAGE_WEBP] = "webp"};
    static const char *const sounds[] = {
        [SOUND_WAV] = "wav", [SOUND_FLAC] = "flac", [SOUND_MP3] = "mp3", [SOUND_OGG] = "ogg"};
    const char *type = is_sound(p) ? "input_audio" : "image_url";
    str data = {0};
    if (!is_sound(p))
        str_printf(&data, "data:image/%s;base64,", images[p->head.format]);
    base64_put(&data, p->bytes, p->n);
    json_text(o, "type", type);
    json_open(o, type, '{');
    json_text_n(o, is_sound(p) ? "data" : "url", str_text(&data), data.n);
    if (is_sound(p))
        json_text(o, "format", sounds[sound_format_of(p->bytes, p->n)]);
    json_close(o, "}");
    o->bad |= data.bad;
    str_free(&data);
}

typedef struct saving {
    const chat *c;
    int32_t to[PICTURES_MAX]; /* numbers of pictures in the file */
} saving;

/* A talk_part_writer: pictures, and texts that name some. */
static bool put_saved_part(void *user, const talk_part *part, str *o)
{
    const saving *s = user;
    if (part->number < 0 && !part->n_mentions)
        return false;
    json_open(o, NULL, '{');
    if (part->number >= 0) {
        put_file(&s->c->pictures.at[part->number], o);
        talk_put_text_json(o, "name", part->text);
    } else {
        json_text(o, "type", "text");
        talk_put_text_json(o, "text", part->text);
        json_open(o, "spoken", '[');
        for (size_t i = 0; i < part->n_mentions; i++) {
            json_open(o, NULL, '[');
            json_int(o, NULL, (int64_t)part->mention[i].at);
            json_int(o, NULL, s->to[part->mention[i].number]);
            json_close(o, "]");
        }
        json_close(o, "]");
    }
    json_close(o, "}");
    return true;
}

void chat_put_saved(const chat *c, str *o, const char *key)
{
    bool used[PICTURES_MAX] = {false};
    saving s = {.c = c};
    int32_t n = 0;
    mark_used(&c->messages, used);
    for (int i = 0; i < PICTURES_MAX; i++)
        s.to[i] = used[i] ? n++ : 0;
    arena mem = {0};
    carat_talk all = {.mem = &mem};
    chat_gather(c, &all);
    talk_put_json(o, key, &all, put_saved_part, &s);
    o->bad |= all.bad;
    arena_free(&mem);
}

/* The picture of a part, as it is saved or as requests have it, into the list. */
static status load_part(const talk_part *part, pictures *to, const char *what, err *e)
{
    const jtree *url = jtree_get(part->from, "image_url");
    const jtree *audio = jtree_get(part->from, "input_audio");
    const talk_text data = talk_string(jtree_get(audio, "data"));
    talk_text text = talk_string(jtree_is(url, JTREE_OBJECT) ? jtree_get(url, "url") : url);
    char label[112];
    str path = {0};
    status st;
    snprintf(label, sizeof label, "%s", part->text.s ? part->text.s : what);
    if (data.s)
        return pictures_add_base64(to, data.s, data.n, label, e);
    if (!text.s)
        text = talk_string(jtree_get(audio, "url"));
    if (!text.s)
        return err_set(e, E_FORMAT,
                       "%s: a picture or sound without its data (image_url, input_audio)", what);
    if (!strncasecmp(text.s, "file:", 5)) { /* of the user's own machine */
        put_path(&path, text.s, text.n, false);
        st = path.bad ? err_memory(e, what, path.n) : pictures_add_file(to, str_text(&path), e);
        str_free(&path);
        return st;
    }
    if (strncasecmp(text.s, "data:", 5) != 0)
        return err_set(e, E_UNSUPPORTED,
                       "%s: a file at an address, which is not fetched: only data: and file: "
                       "are read",
                       what);
    return pictures_add_url(to, NULL, text.s, text.n, label, e);
}

/* A whole number from 0 to most; -1: it is none. */
static int64_t index_of(const jtree *v, int64_t most)
{
    int64_t n = jtree_is(v, JTREE_INTEGER) && v->n < 16 ? strtoll(v->s, NULL, 10) : -1;
    return n <= most ? n : -1;
}

/* Of what a text part of a file says of its message's pictures, l->at[first] and after it, holds
 * what is so: the text may have been changed since. */
static void load_mentions(carat_talk *t, talk_part *part, const jtree *from, const pictures *l,
                          int32_t first)
{
    const jtree *spoken = jtree_get(from, "spoken");
    const talk_text text = part->text;
    size_t end = 0;
    if (!jtree_is(spoken, JTREE_ARRAY) || !text.s)
        return;
    part->mention =
        mentions(t, spoken->count < PICTURES_MAX ? (int32_t)spoken->count : PICTURES_MAX);
    for (const jtree *v = spoken->first; v && part->mention && part->n_mentions < PICTURES_MAX;
         v = v->next) {
        const jtree *place = jtree_is(v, JTREE_ARRAY) ? v->first : NULL;
        int64_t at = index_of(place, (int64_t)text.n - 1);
        int64_t number = index_of(place ? place->next : NULL, l->n - 1);
        char says[32];
        if (at < (int64_t)end || number < first)
            continue;
        size_t n = (size_t)says_number(says, l, (int32_t)number);
        if (strncmp(text.s + at, says, n) != 0 || isdigit((unsigned char)text.s[(size_t)at + n]))
            continue;
        end = (size_t)at + n;
        part->mention[part->n_mentions++] = (talk_mention){(size_t)at, (int32_t)number};
    }
}

status chat_load_turn(const chat *c, carat_talk *out, const talk_turn *m, pictures *to,
                      const char *what, err *e)
{
    int32_t first = to->n;
    status st = OK;
    talk_put_turn(out, m);
    for (size_t k = 0; k < m->n_parts && !out->bad && !st; k++) {
        talk_part *part = (talk_part *)(uintptr_t)&talk_last(out)->part[k]; /* made above */
        part->number = -1;
        if (m->part[k].kind == TALK_TEXT)
            load_mentions(out, part, m->part[k].from, to, first);
        if (m->part[k].kind != TALK_IMAGE && m->part[k].kind != TALK_AUDIO)
            continue;
        if (!(st = load_part(&m->part[k], to, what, e)) &&
            !(st = check_takes(c, &to->at[to->n - 1], e)))
            make_part(out, part, &to->at[to->n - 1], to->n - 1);
    }
    return st || !out->bad ? st : err_memory(e, "the conversation", 256);
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
