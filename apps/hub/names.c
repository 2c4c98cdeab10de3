/* names.c - see names.h. */
#include "apps/hub/names.h"

#include "base/utf8.h"

#include <limits.h>
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

/* The numbers of a name that has the form of a part, whatever they are. */
static bool split_numbers(const char *path, int *no, int *count, size_t *n_stem)
{
    static const char shape[] = "-NNNNN-of-NNNNN.gguf";
    size_t n = strlen(path), m = sizeof shape - 1;
    if (n <= m || !has_end(path, ".gguf"))
        return false;
    const char *tail = path + n - m;
    int number = *tail == '-' ? five_digits(tail + 1) : -1;
    int of = strncmp(tail + 6, "-of-", 4) ? -1 : five_digits(tail + 10);
    if (number < 0 || of < 0)
        return false;
    *no = number;
    *count = of;
    *n_stem = n - m;
    return true;
}

static bool numbers_fit(int no, int count)
{
    return no >= 1 && no <= count && count <= PARTS_MAX;
}

bool split_name(const char *path, int *no, int *count, size_t *n_stem)
{
    int number, of;
    size_t n;
    if (!split_numbers(path, &number, &of, &n) || !numbers_fit(number, of))
        return false;
    *no = number;
    *count = of;
    *n_stem = n;
    return true;
}

bool split_broken(const char *path)
{
    int no, count;
    size_t n;
    return split_numbers(path, &no, &count, &n) && !numbers_fit(no, count);
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

bool quant_valid(const char *text)
{
    return is_quant(text, strlen(text));
}

/* The length of the name that begins at s without split numbers and ending. */
static size_t stem_length(const char *s)
{
    int no, count;
    size_t n = strlen(s);
    if (!split_numbers(s, &no, &count, &n) && has_end(s, ".gguf"))
        n -= 5;
    return n;
}

/* The name without folder, split numbers and ending. */
static void stem_of(const char *path, char out[QUANT_MAX])
{
    const char *name = base_name(path);
    size_t n = stem_length(name);
    if (n >= QUANT_MAX)
        n = QUANT_MAX - 1;
    n -= utf8_partial_tail(name, n);
    for (size_t i = 0; i < n; i++) /* a label stands after a colon, and is a folder's name */
        out[i] = (unsigned char)name[i] <= ' ' || strchr(":\\\"'", name[i]) ? '_' : name[i];
    out[n] = 0;
}

/* The last quantisation among the words of s[0..n), which '-' and '.' part; *len 0: none. */
static size_t quant_at(const char *s, size_t n, size_t *len)
{
    for (size_t end = n; end;) {
        size_t from = end;
        while (from && s[from - 1] != '-' && s[from - 1] != '.')
            from--;
        if (is_quant(s + from, end - from)) {
            if (from >= 3 && !strncasecmp(s + from - 3, "UD-", 3) &&
                (from == 3 || s[from - 4] == '-' || s[from - 4] == '.'))
                from -= 3;
            *len = end - from;
            return from;
        }
        end = from ? from - 1 : 0;
    }
    *len = 0;
    return 0;
}

void quant_of(const char *path, char out[QUANT_MAX])
{
    char stem[QUANT_MAX], whole[QUANT_MAX];
    size_t n;
    stem_of(path, whole);
    memcpy(stem, whole, sizeof stem);
    size_t at = quant_at(stem, strlen(stem), &n);
    const char *name = base_name(path), *folder = name > path ? name - 1 : path;
    size_t n_folder = 0;
    while (folder > path && folder[-1] != '/')
        folder--, n_folder++;
    if (!n && n_folder && n_folder < QUANT_MAX) { /* Q4_K_M/model-00001-of-00002.gguf */
        memcpy(stem, folder, n_folder);
        stem[n_folder] = 0;
        at = quant_at(stem, n_folder, &n);
    }
    for (size_t i = 0; i < n; i++) {
        char c = stem[at + i];
        out[i] = (char)(c >= 'a' && c <= 'z' ? c - 32 : c);
    }
    out[n] = 0;
    if (!n)
        memcpy(out, whole, strlen(whole) + 1);
}

/* Is the tag this label, in any case, or its end after a dash: Q4_K_XL of UD-Q4_K_XL? */
static bool quant_fits(const char *quant, const char *tag)
{
    size_t n = strlen(quant), m = strlen(tag);
    return m && n >= m && !strcasecmp(quant + n - m, tag) && (n == m || quant[n - m - 1] == '-');
}

/* Has the name this word, between any of "-_." or its ends? */
static bool has_word(const char *name, const char *word)
{
    size_t m = strlen(word);
    for (const char *at = name; (at = strcasestr(at, word)); at++)
        if ((at == name || strchr("-_.", at[-1])) && strchr("-_.", at[m]))
            return true;
    return false;
}

bool is_model_file(const char *path)
{
    const char *name = base_name(path);
    size_t n_quant;
    if (!has_end(path, ".gguf") || split_broken(path) || strcasestr(name, "mmproj") ||
        !strncasecmp(name, "mtp-", 4) || !strncasecmp(name, "imatrix", 7))
        return false;
    /* "NAME-imatrix.gguf" is a matrix; "NAME-imatrix-Q4_K_M.gguf" was quantised with one. */
    quant_at(name, stem_length(name), &n_quant);
    return n_quant || !strcasestr(name, "imatrix");
}

bool is_mmproj_file(const char *path)
{
    return has_end(path, ".gguf") && !split_broken(path) && strcasestr(base_name(path), "mmproj");
}

/* The model's part of a name: without folder, quantisation, "mmproj" and the marks around them. */
static void model_part(const char *path, char out[QUANT_MAX])
{
    static const char word[] = "mmproj";
    char stem[QUANT_MAX];
    size_t n, at;
    stem_of(path, stem);
    at = quant_at(stem, strlen(stem), &n);
    memmove(stem + at, stem + at + n, strlen(stem + at + n) + 1);
    char *mmproj = strcasestr(stem, word);
    if (mmproj)
        memmove(mmproj, mmproj + sizeof word - 1, strlen(mmproj + sizeof word - 1) + 1);
    at = strspn(stem, "-_.");
    n = strlen(stem + at);
    while (n && strchr("-_.", stem[at + n - 1]))
        n--;
    memcpy(out, stem + at, n);
    out[n] = 0;
}

/* 0: the tower's name has the model's; 1: that of none; 2: that of another. */
static int kinship(const char *tower, const char *model)
{
    char its[QUANT_MAX], own[QUANT_MAX];
    model_part(tower, its);
    model_part(model, own);
    return !strcasecmp(its, own) ? 0 : !*its || !strcasecmp(its, "model") ? 1 : 2;
}

int choose_mmproj(const char *const *paths, size_t n, const char *model)
{
    static const char *const order[] = {"BF16", "F16", "Q8_0", "F32"};
    enum { N = sizeof order / sizeof *order };
    size_t n_folder = (size_t)(base_name(model) - model);
    int best = -1, least = INT_MAX, no, count;
    for (size_t i = 0; i < n; i++) {
        char quant[QUANT_MAX];
        size_t n_stem;
        int cost = 0;
        if (!is_mmproj_file(paths[i]) || split_name(paths[i], &no, &count, &n_stem))
            continue;
        quant_of(paths[i], quant);
        while (cost < N && !quant_fits(quant, order[cost]))
            cost++;
        cost += (N + 1) * kinship(paths[i], model);
        if ((size_t)(base_name(paths[i]) - paths[i]) != n_folder ||
            strncmp(paths[i], model, n_folder) != 0)
            cost += 3 * (N + 1);
        if (cost < least) {
            least = cost;
            best = (int)i;
        }
    }
    return best;
}

bool is_first_file(const char *path)
{
    int no = 1, count;
    size_t n;
    return is_model_file(path) && (!split_name(path, &no, &count, &n) || no == 1);
}

/* A name of this kind belongs to a drafter, or to a model with a layer for drafts: the name does
 * not say which. */
bool names_drafter(const char *path)
{
    static const char *const words[] = {"mtp", "dflash", "dspark", "eagle", "eagle3", "draft"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (has_word(base_name(path), words[i]))
            return true;
    return has_word(base_name(path), "drafter") || has_word(base_name(path), "assistant");
}

void quant_among(const char *path, const char *const *paths, size_t n, char out[QUANT_MAX])
{
    char other[QUANT_MAX];
    size_t n_own = stem_length(path);
    quant_of(path, out);
    for (size_t i = 0; i < n; i++) {
        size_t m = stem_length(paths[i]);
        if (!is_model_file(paths[i]) ||
            (m == n_own && !strncmp(path, paths[i], m))) /* itself, or another part */
            continue;
        quant_of(paths[i], other);
        if (!strcmp(out, other)) {
            stem_of(path, out);
            return;
        }
    }
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

/* What speaks against a file, for a tag or without one; INT_MAX: it is no candidate. */
static int cost_of(const char *path, const char *tag)
{
    static const char *const preferred[] = {"Q4_K_M", "Q8_0"};
    enum { N = sizeof preferred / sizeof *preferred };
    char quant[QUANT_MAX], stem[QUANT_MAX];
    int late = names_drafter(path);
    if (!is_first_file(path))
        return INT_MAX;
    quant_of(path, quant);
    if (tag) {
        /* Whole labels first: Q4_0 is not the "Q4_0-" of a name with more words behind it. */
        stem_of(path, stem);
        return !strcmp(stem, tag)        ? 0
               : !strcasecmp(stem, tag)  ? 1
               : !strcasecmp(quant, tag) ? 2 + late
               : tag_in_path(path, tag)  ? 4 + late
                                         : INT_MAX;
    }
    int rank = 2 * N;
    for (int k = N - 1; k >= 0; k--)
        rank = !strcasecmp(quant, preferred[k])  ? k
               : rank < N                        ? rank
               : tag_in_path(path, preferred[k]) ? N + k
                                                 : rank;
    return late * (2 * N + 1) + rank;
}

int choose_file(const char *const *paths, size_t n, const char *tag)
{
    int best = -1, least = INT_MAX;
    for (size_t i = 0; i < n; i++) {
        int cost = cost_of(paths[i], tag);
        if (cost < least) {
            least = cost;
            best = (int)i;
        }
    }
    return best;
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
static bool parse_file(const char *s, name_parts *n)
{
    const char *rev = !strncmp(s, "/resolve/", 9) ? s + 9 : !strncmp(s, "/blob/", 6) ? s + 6 : NULL;
    const char *slash = rev ? strchr(rev, '/') : NULL;
    if (!slash || !take(n->revision, sizeof n->revision, rev, (size_t)(slash - rev)))
        return false;
    return take(n->file, sizeof n->file, slash + 1, strcspn(slash + 1, "?#")) &&
           file_valid(n->file) && revision_valid(n->revision);
}

static bool read_parts(const char *text, const char *endpoint, name_parts *n)
{
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

bool name_parse(const char *text, const char *endpoint, name_parts *n)
{
    name_parts read = {0};
    if (!read_parts(text, endpoint, &read))
        return false;
    *n = read;
    return true;
}

bool name_fits(const name_parts *n, const char *repo, const char *quant)
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
