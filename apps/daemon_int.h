/* daemon_int.h - one line of the daemon's protocol, parsed. */
#ifndef APPS_DAEMON_INT_H
#define APPS_DAEMON_INT_H

#include "base/err.h"

enum { DAEMON_SLOTS = 64 };

typedef enum daemon_kind {
    DAEMON_UNKNOWN,
    DAEMON_NOTHING, /* an empty line */
    DAEMON_QUIT,
    DAEMON_PROMPT,
    DAEMON_RESTORE,
    DAEMON_GENERATE,
    DAEMON_SNAPSHOT,
    DAEMON_FREE,
    DAEMON_LIST,
    DAEMON_PARK,
    DAEMON_UNPARK,
    DAEMON_FREE_DRAFTER,
    DAEMON_COMPRESS
} daemon_kind;

/* Strings point into the line. */
typedef struct daemon_request {
    daemon_kind kind;
    bool bad; /* an argument is missing or out of range */
    char *path, *out;
    int32_t n_gen, slot;
    bool has_snap;
    int64_t snap_pos;
    int32_t snap_slot;
    bool target, draft; /* park, unpark: these models are meant */
    double keep;        /* compress: the share of tokens that stay */
    char *scorer;       /* the file of a model that scores; NULL: the target */
    bool no_park;       /* the target's weights stay meanwhile */
    carat_sampling sampling;
    bool seed_given; /* else every request draws one */
    int32_t *ids;    /* the prompt, after daemon_read_ids */
    int64_t n;
} daemon_request;

/* Parses the line in place. */
void daemon_parse(daemon_request *r, char *line);
void daemon_request_free(daemon_request *r);
/* Parses "temp,top_p,top_k,rep_pen,seed,freq_pen,pres_pen" in place; all but temp may be left
 * out. Without a seed, or with -1, the request draws one. */
bool daemon_parse_samp(char *text, daemon_request *r);
void daemon_greedy(carat_sampling *s);

/* Reads the int32 ids in the file r->path; counted: their uint32 count comes first. */
status daemon_read_ids(daemon_request *r, bool counted, err *e);
status daemon_write_ids(const char *path, const int32_t *ids, int64_t n, err *e);

#endif
