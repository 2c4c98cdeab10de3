#!/bin/sh
# Fails when the map in DESIGN.md misses a source file, or names one that does not exist.
#
# In the section "## The map" a heading "### backend/cpu/" sets the folder; a file name in backquotes
# below it is in that folder, unless it has a path of its own. Several names may share their
# backquotes: `cpu.c cpu_int.h`. Unit tests (*_test.c) need no line. In the tour, docs/cuda.md and
# docs/extending.md, names with a path are looked up too.
set -eu
cd "$(dirname "$0")/.."
files=$(mktemp)
trap 'rm -f "$files"' EXIT
git ls-files -co --exclude-standard | while read -r f; do [ -e "$f" ] && echo "$f"; done >"$files"
awk '
function is_file(w) { return w ~ /^[A-Za-z0-9_\/.-]+\.(c|h|cu|cuh|cpp|sh|py)$/ }
# The names in a paragraph, which may break its lines inside of backquotes.
function look(text,   part, word, n, m, i, j, w) {
    n = split(text, part, "`")
    for (i = 2; i <= n; i += 2) {
        m = split(part[i], word, " ")
        for (j = 1; j <= m; j++) {
            w = word[j]
            if (!is_file(w) || (w !~ /\// && (!map || folder == "")))
                continue
            if (w !~ /\//)
                w = folder w
            if (!(w in exists)) {
                print from ": " w " does not exist"
                bad = 1
            }
            if (map)
                named[w] = 1
        }
    }
}
function finish() { if (looks) look(text); text = ""; from = FILENAME ":" FNR }
FNR == NR {
    exists[$0] = 1
    if (is_file($0) && $0 !~ /_test\.c$/)
        wanted[$0] = 1
    next
}
FNR == 1 { finish(); looks = FILENAME != "DESIGN.md"; map = 0 }
/^#|^- |^$|^\|/ { finish() }
FILENAME == "DESIGN.md" && /^## / { map = $0 == "## The map"; looks = map || $0 ~ /^## The tour/; folder = "" }
/^### / { folder = $2 ~ /\/$/ ? $2 : "" }
{ text = text " " $0 }
END {
    finish()
    for (f in wanted)
        if (!(f in named)) {
            print "the map in DESIGN.md does not name " f
            bad = 1
        }
    exit bad
}' "$files" DESIGN.md $(ls docs/cuda.md docs/extending.md 2>/dev/null)
