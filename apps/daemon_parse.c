/* daemon_parse.c - parses lines of the daemon's protocol; reads and writes its files of ids.
 *
 * A line comes from another program and may hold anything. Every line gives a request; `bad` marks
 * one whose arguments are missing, malformed or out of range.
 */
#include "apps/daemon_int.h"
#include "apps/ids.h"
#include "base/map.h"
#include "base/mem.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_MAX = 8 };

static bool parse_whole(const char *word, int64_t least, int64_t most, int64_t *out)
{
    char *end;
    if (!word || !((*word >= '0' && *word <= '9') || *word == '-'))
        return false;
    errno = 0;
    long long v = strtoll(word, &end, 10);
    if (errno || *end || v < least || v > most)
        return false;
    *out = v;
    return true;
}

static bool word32(const char *word, int64_t least, int32_t *out)
{
    int64_t v;
    if (!parse_whole(word, least, INT32_MAX, &v))
        return false;
    *out = (int32_t)v;
    return true;
}

void daemon_greedy(carat_sampling *s)
{
    carat_sampling_neutral(s);
    s->temperature = 0;
}

bool daemon_parse_samp(char *text, daemon_request *r)
{
    static const char *const names[7] = {
        "temperature",     "top_p", "top_k", "repeat_penalty", [5] = "frequency_penalty",
        "presence_penalty"};
    double v[7] = {0, 1, 0, 1, [4] = -1}; /* 4: the seed */
    carat_sampling *s = &r->sampling;
    int n = 0;
    for (char *at = text; at; n++) {
        char *end, *comma = strchr(at, ',');
        if (comma)
            *comma++ = 0;
        if (n == 7 || !*at || *at == ' ')
            return false;
        v[n] = strtod(at, &end);
        if (*end || !isfinite(v[n]))
            return false;
        at = comma;
    }
    daemon_greedy(s);
    for (int i = 0; i < 7; i++)
        if (names[i] && !carat_sampling_set(s, carat_sampling_find(names[i]), v[i]))
            return false;
    if (v[4] < -1 || v[4] > UINT32_MAX || v[4] != floor(v[4]))
        return false;
    r->seed_given = v[4] >= 0;
    s->seed = r->seed_given ? (uint32_t)v[4] : 0;
    return true;
}

static bool parse_snap(char *text, daemon_request *r)
{
    char *colon = strchr(text, ':');
    int64_t pos;
    if (!colon)
        return false;
    *colon = 0;
    if (!parse_whole(text, INT32_MIN, INT32_MAX, &pos) ||
        !word32(colon + 1, INT32_MIN, &r->snap_slot))
        return false;
    r->snap_pos = pos;
    r->has_snap = true;
    return true;
}

/* Splits the line into words and parses samp= and snap=. Returns the number of other words. */
static int cut_word(daemon_request *r, char *line, char *word[WORDS_MAX])
{
    int n = 0;
    for (char *save, *w = strtok_r(line, " \t\r", &save); w; w = strtok_r(NULL, " \t\r", &save)) {
        if (n && !strncmp(w, "samp=", 5))
            r->bad |= !daemon_parse_samp(w + 5, r);
        else if (n && !strncmp(w, "snap=", 5))
            r->bad |= !parse_snap(w + 5, r);
        else if (n < WORDS_MAX)
            word[n++] = w;
    }
    return n;
}

static daemon_kind command_kind(char *const word[], int n)
{
    static const struct {
        const char *name;
        daemon_kind kind;
    } known[] = {{"quit", DAEMON_QUIT},         {"exit", DAEMON_QUIT},
                 {"RESTORE", DAEMON_RESTORE},   {"generate", DAEMON_GENERATE},
                 {"SNAPSHOT", DAEMON_SNAPSHOT}, {"FREE_SNAPSHOT", DAEMON_FREE},
                 {"LIST_SLOTS", DAEMON_LIST},   {"park", DAEMON_PARK},
                 {"unpark", DAEMON_UNPARK},     {"compress", DAEMON_COMPRESS}};
    if (!n)
        return DAEMON_NOTHING;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(word[0], known[i].name))
            return known[i].kind;
    if (n == 2 && ((!strcmp(word[0], "free") && !strcmp(word[1], "drafter")) ||
                   (!strcmp(word[0], "drafter") && !strcmp(word[1], "free"))))
        return DAEMON_FREE_DRAFTER;
    /* A word that begins with a dot or contains a slash is a path. */
    return word[0][0] == '.' || strchr(word[0], '/') ? DAEMON_PROMPT : DAEMON_UNKNOWN;
}

static bool parse_park(daemon_request *r, char *const word[], int n)
{
    const char *what = n > 1 ? word[1] : "all";
    r->target = strcmp(what, "draft") != 0;
    r->draft = strcmp(what, "target") != 0;
    return n <= 2 && (!strcmp(what, "all") || !strcmp(what, "target") || !strcmp(what, "draft"));
}

/* PATH KEEP_X1000 [DRAFTER] [nopark] */
static bool parse_compress(daemon_request *r, char *const word[], int n)
{
    int32_t keep;
    r->no_park = n > 3 && !strcmp(word[n - 1], "nopark");
    n -= r->no_park;
    r->path = word[1];
    r->scorer = n > 3 ? word[3] : NULL;
    if (n < 3 || n > 4 || !word32(word[2], 10, &keep) || keep > 990)
        return false;
    r->keep = keep * 1e-3;
    return true;
}

void daemon_parse(daemon_request *r, char *line)
{
    char *word[WORDS_MAX] = {NULL};
    *r = (daemon_request){0};
    daemon_greedy(&r->sampling);
    int n = cut_word(r, line, word);
    bool good = true;
    r->kind = command_kind(word, n);
    switch (r->kind) {
    case DAEMON_PROMPT:
        r->path = word[0];
        good = n == 2 && word32(word[1], 1, &r->n_gen);
        break;
    case DAEMON_RESTORE:
        r->path = word[2];
        good = n == 4 && word32(word[1], 0, &r->slot) && r->slot < DAEMON_SLOTS &&
               word32(word[3], 1, &r->n_gen);
        break;
    case DAEMON_GENERATE:
        r->path = word[1];
        r->out = word[3];
        good = n == 4 && word32(word[2], 1, &r->n_gen);
        break;
    case DAEMON_SNAPSHOT:
    case DAEMON_FREE:
        good = n == 2 && word32(word[1], INT32_MIN, &r->slot);
        break;
    case DAEMON_PARK:
    case DAEMON_UNPARK:
        good = parse_park(r, word, n);
        break;
    case DAEMON_COMPRESS:
        good = parse_compress(r, word, n);
        break;
    default:
        break;
    }
    r->bad |= !good;
}

void daemon_request_free(daemon_request *r)
{
    mem_free(r->ids);
    *r = (daemon_request){0};
}

/* ---- Files -------------------------------------------------------------------------------------
 */

status daemon_read_ids(daemon_request *r, bool counted, err *e)
{
    status st = ids_read(r->path, &r->ids, &r->n, e);
    if (st || !counted)
        return st;
    if (r->n < 1 || (uint32_t)r->ids[0] != (uint32_t)(r->n - 1))
        return err_set(e, E_FORMAT, "%s: the first number is not the count of the ids that follow",
                       r->path);
    memmove(r->ids, r->ids + 1, (size_t)--r->n * sizeof *r->ids);
    return OK;
}

status daemon_write_ids(const char *path, const int32_t *ids, int64_t n, err *e)
{
    file_out f = {0};
    status st = file_out_open(&f, path, e);
    for (int64_t i = -1; i < n && !st; i++) {
        uint32_t u = i < 0 ? (uint32_t)n : (uint32_t)ids[i];
        unsigned char b[4] = {(unsigned char)u, (unsigned char)(u >> 8), (unsigned char)(u >> 16),
                              (unsigned char)(u >> 24)};
        st = file_out_write(&f, b, 4, e);
    }
    if (!st)
        return file_out_commit(&f, e);
    if (f.path)
        file_out_discard(&f);
    return st;
}
