/* names.c - see names.h. */
#include "apps/hub/names.h"

#include "base/utf8.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool has_end(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);
    return n >= m && !strcasecmp(s + n - m, tail);
}

static bool is_alnum(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* ---- What is valid ------------------------------------------------------------------------- */

/* One half of OWNER/REPO: letters and digits, single '-', '_' or '.' between them. */
static bool half_valid(const char *s, size_t n)
{
    if (!n || !is_alnum(s[0]) || !is_alnum(s[n - 1]))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!is_alnum(s[i]) && (!strchr("-_.", s[i]) || !is_alnum(s[i + 1])))
            return false;
    return true;
}

bool repo_valid(const char *repo)
{
    const char *slash = strchr(repo, '/');
    size_t n = strlen(repo);
    return slash && n < REPO_MAX && half_valid(repo, (size_t)(slash - repo)) &&
           half_valid(slash + 1, n - (size_t)(slash - repo) - 1);
}

bool file_valid(const char *path)
{
    size_t n = strlen(path), from = 0;
    if (!n || n >= FILE_MAX || !utf8_valid(path, n))
        return false;
    for (size_t i = 0; i <= n; i++) {
        if (i < n && ((unsigned char)path[i] < 0x20 || path[i] == 0x7f || path[i] == '\\'))
            return false;
        if (i < n && path[i] != '/')
            continue;
        /* A part that begins with a dot is "..", ".", or a hidden file. */
        if (i == from || path[from] == '.' || i - from > 240)
            return false;
        from = i + 1;
    }
    return true;
}

bool revision_valid(const char *r)
{
    size_t n = strlen(r);
    if (!n || n >= REPO_MAX || strstr(r, "..") || !is_alnum(r[0]))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!is_alnum(r[i]) && !strchr("-_./", r[i]))
            return false;
    return true;
}

bool hex_valid(const char *text, size_t n)
{
    return strspn(text, "0123456789abcdef") == n && strlen(text) == n;
}

/* ---- Names of files ------------------------------------------------------------------------ */

bool is_model_file(const char *path)
{
    const char *name = base_name(path);
    return has_end(path, ".gguf") && !strcasestr(name, "mmproj") && !strcasestr(name, "imatrix") &&
           strncasecmp(name, "mtp-", 4) && !strcasestr(name, "-mtp-");
}

/* Five digits at s, or -1. */
static int five_digits(const char *s)
{
    int v = 0;
    for (int i = 0; i < 5; i++) {
        if (s[i] < '0' || s[i] > '9')
            return -1;
        v = 10 * v + (s[i] - '0');
    }
    return v;
}

bool split_name(const char *path, int *no, int *count, size_t *n_stem)
{
    static const char shape[] = "-NNNNN-of-NNNNN.gguf";
    size_t n = strlen(path), m = sizeof shape - 1;
    if (n <= m || !has_end(path, ".gguf"))
        return false;
    const char *tail = path + n - m;
    *no = tail[0] == '-' ? five_digits(tail + 1) : -1;
    *count = strncmp(tail + 6, "-of-", 4) ? -1 : five_digits(tail + 10);
    *n_stem = n - m;
    return *no >= 1 && *count >= *no && *count <= PARTS_MAX;
}

/* "Q4_K_M", "IQ2_XXS", "TQ1_0", "BF16", "MXFP4": is the word of n characters a quantisation? */
static bool is_quant(const char *s, size_t n)
{
    static const char *const heads[] = {"Q", "IQ", "TQ", "F", "BF", "FP", "MXFP", "NVFP"};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        size_t m = strlen(heads[i]);
        if (n <= m || strncasecmp(s, heads[i], m) || s[m] < '0' || s[m] > '9')
            continue;
        bool plain = true;
        for (size_t k = m; k < n; k++)
            plain = plain && (is_alnum(s[k]) || s[k] == '_');
        if (plain && n < 24)
            return true;
    }
    return false;
}

/* The name without folder, split numbers and ending. */
static void stem_of(const char *path, char out[QUANT_MAX])
{
    const char *name = base_name(path);
    int no, count;
    size_t n;
    if (!split_name(name, &no, &count, &n))
        n = strlen(name) - (has_end(name, ".gguf") ? 5 : 0);
    if (n >= QUANT_MAX)
        n = QUANT_MAX - 1;
    n -= utf8_partial_tail(name, n);
    for (size_t i = 0; i < n; i++) /* a label stands after a colon, and is a folder's name */
        out[i] = name[i] == ':' || name[i] == ' ' ? '_' : name[i];
    out[n] = 0;
}

void quant_of(const char *path, char out[QUANT_MAX])
{
    char stem[QUANT_MAX];
    stem_of(path, stem);
    for (size_t end = strlen(stem); end;) {
        size_t from = end;
        while (from && stem[from - 1] != '-' && stem[from - 1] != '.')
            from--;
        if (is_quant(stem + from, end - from)) {
            if (from >= 4 && !strncasecmp(stem + from - 4, "-UD-", 4))
                from -= 3;
            size_t n = end - from;
            for (size_t i = 0; i < n; i++)
                out[i] = (char)(stem[from + i] >= 'a' && stem[from + i] <= 'z' ? stem[from + i] - 32
                                                                               : stem[from + i]);
            out[n] = 0;
            return;
        }
        end = from ? from - 1 : 0;
    }
    memcpy(out, stem, strlen(stem) + 1);
}

void quant_among(const char *path, const char *const *paths, size_t n, char out[QUANT_MAX])
{
    char other[QUANT_MAX];
    int no, count;
    size_t n_stem, n_own = strlen(path);
    bool split = split_name(path, &no, &count, &n_stem);
    if (split)
        n_own = n_stem;
    quant_of(path, out);
    for (size_t i = 0; i < n; i++) {
        size_t m = strlen(paths[i]);
        if (!is_model_file(paths[i]))
            continue;
        if (split_name(paths[i], &no, &count, &n_stem))
            m = n_stem;
        if (m == n_own && !strncmp(path, paths[i], m)) /* itself, or another part */
            continue;
        quant_of(paths[i], other);
        if (!strcmp(out, other)) {
            stem_of(path, out);
            return;
        }
    }
}

/* Is the tag this label, in any case, or its end after a dash: Q4_K_XL of UD-Q4_K_XL? */
static bool quant_fits(const char *quant, const char *tag)
{
    size_t n = strlen(quant), m = strlen(tag);
    return m && n >= m && !strcasecmp(quant + n - m, tag) && (n == m || quant[n - m - 1] == '-');
}

int quant_rank(const char *quant)
{
    return quant_fits(quant, "Q4_K_M") ? 0 : quant_fits(quant, "Q8_0") ? 1 : 2;
}

/* llama-server's rule: the tag and then '.' or '-', anywhere in the path, in any case. */
static bool tag_in_path(const char *path, const char *tag)
{
    size_t m = strlen(tag);
    for (const char *at = path; (at = strcasestr(at, tag)); at++)
        if (at[m] == '.' || at[m] == '-')
            return true;
    return false;
}

int choose_file(const char *const *paths, size_t n, const char *tag)
{
    static const char *const preferred[] = {"Q4_K_M", "Q8_0", ""};
    int no, count;
    size_t n_stem;
    /* Whole labels first: Q4_0 is not the "Q4_0-" of a name with more words behind it. */
    for (int whole = 1; whole >= 0; whole--)
        for (size_t k = 0; k < (tag ? 1 : sizeof preferred / sizeof *preferred); k++)
            for (size_t i = 0; i < n; i++) {
                const char *want = tag ? tag : preferred[k];
                char quant[QUANT_MAX];
                if (!is_model_file(paths[i]) ||
                    (split_name(paths[i], &no, &count, &n_stem) && no != 1))
                    continue;
                quant_of(paths[i], quant);
                if (!*want  ? whole == 0
                    : whole ? !strcasecmp(quant, want)
                            : tag_in_path(paths[i], want))
                    return (int)i;
            }
    return -1;
}

/* ---- What users type ----------------------------------------------------------------------- */

/* Cuts "https://HOST/" or "HOST/" off, where HOST is a hub. */
static const char *without_host(const char *text, const char *endpoint)
{
    static const char *const hosts[] = {"huggingface.co", "www.huggingface.co", "hf.co"};
    const char *rest = text;
    if (!strncmp(rest, "https://", 8) || !strncmp(rest, "http://", 7))
        rest = strstr(rest, "//") + 2;
    else if (!strncmp(rest, "hf://", 5))
        return rest + 5;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        size_t n = strlen(hosts[i]);
        if (!strncasecmp(rest, hosts[i], n) && rest[n] == '/')
            return rest + n + 1;
    }
    size_t n = endpoint ? strlen(endpoint) : 0;
    if (n && !strncmp(text, endpoint, n) && text[n] == '/')
        return text + n + 1;
    return text;
}

/* Copies s[0..n) if it is shorter than cap. */
static bool take(char *out, size_t cap, const char *s, size_t n)
{
    if (n >= cap)
        return false;
    memcpy(out, s, n);
    out[n] = 0;
    return true;
}

/* The rest of an address behind OWNER/REPO: /resolve/REV/FILE or /blob/REV/FILE. */
static bool parse_file(const char *s, model_name *n)
{
    const char *rev = !strncmp(s, "/resolve/", 9) ? s + 9 : !strncmp(s, "/blob/", 6) ? s + 6 : NULL;
    const char *slash = rev ? strchr(rev, '/') : NULL;
    if (!slash || !take(n->revision, sizeof n->revision, rev, (size_t)(slash - rev)))
        return false;
    return take(n->file, sizeof n->file, slash + 1, strcspn(slash + 1, "?#")) &&
           file_valid(n->file) && revision_valid(n->revision);
}

bool name_parse(const char *text, const char *endpoint, model_name *n)
{
    *n = (model_name){0};
    const char *s = without_host(text, endpoint);
    size_t len = strcspn(s, "/:");
    if (s[len] == '/') {
        if (!half_valid(s, len) || !take(n->owner, sizeof n->owner, s, len))
            return false;
        s += len + 1;
        len = strcspn(s, "/:?#");
    }
    if (!half_valid(s, len) || !take(n->repo, sizeof n->repo, s, len) ||
        strlen(n->owner) + len + 2 > REPO_MAX)
        return false;
    s += len;
    if (*s == '/' && s[1] && s != text)
        return *n->owner && parse_file(s, n);
    if (*s == '/' || *s == '?' || *s == '#')
        return true;
    if (*s != ':')
        return !*s;
    s++;
    len = strlen(s);
    if (!len || !take(n->quant, sizeof n->quant, s, len))
        return false;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)s[i] <= ' ' || strchr(":/\\\"'", s[i]) || s[i] == 0x7f)
            return false;
    if (!strcasecmp(n->quant, "latest")) /* a habit from elsewhere: no choice at all */
        n->quant[0] = 0;
    return true;
}

bool name_fits(const model_name *n, const char *repo, const char *quant)
{
    const char *slash = strchr(repo, '/'), *name = slash ? slash + 1 : repo;
    size_t len = strlen(n->repo), m = strlen(name);
    if (*n->owner && (!slash || strlen(n->owner) != (size_t)(slash - repo) ||
                      strncasecmp(n->owner, repo, (size_t)(slash - repo))))
        return false;
    if (has_end(n->repo, "-gguf"))
        len -= 5;
    if (has_end(name, "-gguf"))
        m -= 5;
    if (len != m || strncasecmp(n->repo, name, m))
        return false;
    return !*n->quant || quant_fits(quant, n->quant);
}
