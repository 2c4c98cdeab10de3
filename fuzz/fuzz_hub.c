/* fuzz_hub.c - what a hub and the store say: header lines, addresses, listings, manifests, names.
 *
 *     which | bytes
 *
 * Nothing outside of the rules may come out: a path that leaves its folder, a number below -1, an
 * address with spaces.
 */
#include "fuzz/fuzz.h"
#include "apps/hub/listing.h"
#include "apps/hub/names.h"
#include "apps/hub/store.h"
#include "apps/hub/wire.h"

#include <stdio.h>
#include <string.h>

/* Each is compared with all in turn, for each: twice as many take eight times as long. */
enum { PATHS = 16 };

static void lines(const char *s, size_t n)
{
    static reply r; /* of 17 KB */
    static char out[URL_MAX];
    reply_clear(&r);
    for (size_t at = 0; at < n;) {
        const char *end = memchr(s + at, '\n', n - at);
        size_t len = end ? (size_t)(end - (s + at)) + 1 : n - at;
        reply_take(&r, s + at, len);
        at += len;
    }
    fuzz_check(r.code >= 0 && r.code < 600 && r.length >= -1 && r.linked_size >= -1, "numbers");
    fuzz_check(r.range_from >= -1 && r.range_to >= r.range_from && r.range_total >= -1, "a range");
    fuzz_check(r.range_total < 0 || r.range_to < r.range_total, "a range beyond its total");
    fuzz_check(wait_s(&r, 3) <= WAIT_MAX_S, "a wait");
    if (url_resolve("https://hub.example/a/b?c=d", r.location, out))
        fuzz_check(url_valid(out) && !strpbrk(out, " \r\n"), "an address");
    if (url_resolve("http://[::1]:80", r.next, out)) {
        char host[URL_PART_MAX];
        url_host(out, host);
        fuzz_check(!url_same_origin(out, "https://hub.example") || url_is_https(out), "an origin");
    }
}

/* Names, one a line: what is chosen is a first file, and its label finds a file of that label. */
static void choices(char *s, size_t n)
{
    const char *paths[PATHS];
    size_t n_paths = 0;
    char label[QUANT_MAX], typed[REPO_MAX + QUANT_MAX];
    name_parts parsed;
    s[n] = 0;
    for (char *line = strtok(s, "\n"); line && n_paths < PATHS; line = strtok(NULL, "\n"))
        if (file_valid(line))
            paths[n_paths++] = line;
    for (size_t i = 0; i < n_paths; i++) {
        int no = -7, count = -7;
        size_t n_stem = 7;
        if (split_name(paths[i], &no, &count, &n_stem))
            fuzz_check(no >= 1 && no <= count && count <= PARTS_MAX && n_stem < strlen(paths[i]),
                       "a part");
        else
            fuzz_check(no == -7 && count == -7 && n_stem == 7, "outputs of a failed call");
        if (!is_first_file(paths[i]))
            continue;
        quant_among(paths[i], paths, n_paths, label);
        fuzz_check(*label && file_valid(label[0] == '.' ? "x" : label) && !strpbrk(label, "/: "),
                   "a label");
        snprintf(typed, sizeof typed, "own/Repo:%s", label);
        fuzz_check(name_parse(typed, NULL, &parsed), "a label that cannot be typed");
        int at = choose_file(paths, n_paths, label);
        fuzz_check(strlen(label) + 1 == QUANT_MAX || (at >= 0 && is_first_file(paths[at])),
                   "a label that finds nothing");
    }
    int at = choose_file(paths, n_paths, NULL);
    fuzz_check(at < 0 || is_first_file(paths[at]), "a choice");
}

static void hits(const char *s, size_t n)
{
    static hub_hits h;
    err e = {0};
    if (listing_take_hits(&h, s, n, &e))
        fuzz_check(*e.text, "refused without a reason");
    fuzz_check(h.n >= 0 && h.n <= HUB_HITS_MAX, "how many hits");
    for (int i = 0; i < h.n; i++)
        fuzz_check(repo_valid(h.at[i].repo) && strlen(h.at[i].changed) % 10 == 0, "a hit");
}

static void files(const char *s, size_t n)
{
    listing l = {0};
    err e = {0};
    const char *paths[PATHS];
    size_t n_paths = 0;
    if (listing_take_tree(&l, s, n, "fuzz", &e))
        fuzz_check(*e.text, "refused without a reason");
    for (size_t i = 0; i < l.n; i++) {
        const hub_file *f = &l.file[i];
        fuzz_check(file_valid(f->path) && !strstr(f->path, "..//"), "a path");
        fuzz_check(!*f->sha256 != !*f->git_sha1, "a hash");
        if (n_paths < PATHS)
            paths[n_paths++] = f->path;
    }
    hits(s, n);
    int at = choose_file(paths, n_paths, NULL);
    char quant[QUANT_MAX];
    fuzz_check(at < (int)n_paths, "a choice");
    if (at >= 0) {
        quant_among(paths[at], paths, n_paths, quant);
        fuzz_check(*quant && !strpbrk(quant, "/:"), "a label");
    }
    listing_free(&l);
}

static void stored(const char *s, size_t n)
{
    manifest m;
    arena mem = {0};
    err e = {0};
    if (manifest_parse(&m, s, n, "fuzz", &mem, &e)) {
        fuzz_check(*e.text, "refused without a reason");
    } else {
        fuzz_check(repo_valid(m.repo) && file_valid(m.quant) && m.n_files > 0, "a manifest");
        for (int32_t i = 0; i < m.n_files; i++)
            fuzz_check(file_valid(m.file[i].path) && hex_valid(m.file[i].sha256, 64), "a file");
    }
    arena_free(&mem);
}

FUZZ(hub)
{
    static char text[4096];
    name_parts name;
    if (!n)
        return;
    const char *s = (const char *)data + 1;
    size_t len = n - 1;
    switch (data[0] % 4) {
    case 0:
        lines(s, len);
        break;
    case 1:
        if (len && *s != '[' && len < sizeof text) {
            memcpy(text, s, len);
            choices(text, len);
            break;
        }
        files(s, len);
        break;
    case 2:
        stored(s, len);
        break;
    default:
        len = len < 511 ? len : 511;
        memcpy(text, s, len);
        text[len] = 0;
        if (name_parse(text, "https://hub.example", &name))
            fuzz_check(!strchr(name.repo, '/') && !strchr(name.quant, '/'), "a name");
    }
}
