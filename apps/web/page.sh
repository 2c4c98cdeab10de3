#!/bin/sh
# page.sh - makes the chat page, one file that fetches nothing: sh apps/web/page.sh >page.html
#
# A line of index.html whose second word is one of these is replaced by a file:
#   include FILE   as it is
#   inert FILE     source code that a script of the page reads: "<" is written as U+E000, so that no
#                  parser of HTML sees a tag or a comment in it
#   fonts FILE     a style sheet of vendor/ whose fonts become part of it: of each font the woff2
#                  file alone, as a data: address
#   escaped FILE   text that is shown
#   rows FILE      source code of C whose last lines are JavaScript, after the preprocessor ($CC, or cc)
# Needs awk, base64 and a C compiler.
set -eu
cd "$(dirname "$0")"
LC_ALL=C
CC=${CC:-cc}
export LC_ALL CC
exec awk '
function fail(text) { print "page.sh: " text > "/dev/stderr"; failed = 1; exit 1 }
function base64(file,   all, line, cmd) {
    cmd = "base64 \"" file "\""
    while ((cmd | getline line) > 0)
        all = all line
    if (close(cmd) || all == "")
        fail(file ": cannot be read")
    return all
}
function fonts(css,   out, at, name, rest) {
    while (match(css, /url\(fonts\/[A-Za-z0-9_-]+\.woff2\) format\("woff2"\)/)) {
        out = out substr(css, 1, RSTART - 1)
        name = substr(css, RSTART + 4)
        sub(/\).*/, "", name)
        out = out "url(data:font/woff2;base64," base64("vendor/" name) ") format(\"woff2\")"
        css = substr(css, RSTART + RLENGTH)
        sub(/^(,url\(fonts\/[A-Za-z0-9_-]+\.(woff|ttf)\) format\("(woff|truetype)"\))*/, "", css)
    }
    out = out css
    if (out ~ /url\([^d]/)
        fail("a style sheet of vendor/ fetches a file")
    return out
}
$2 == "rows" && NF >= 3 {
    n = 0
    cmd = ENVIRON["CC"] " -E -P -x c -I../../include " $3
    while ((cmd | getline line) > 0) {
        n = n || line ~ /^const /
        if (n)
            print line
    }
    if (close(cmd) || !n)
        fail($3 ": the preprocessor does not read it")
    next
}
$2 ~ /^(include|inert|fonts|escaped)$/ && NF >= 3 {
    n = 0
    while ((getline line < $3) > 0) {
        n++
        if ($2 == "include" && line ~ /<!--|<\/?[sS][cC][rR][iI][pP][tT]|<\/[sS][tT][yY][lL][eE]/)
            fail($3 ": \"" line "\" would end the script or the style it is part of")
        if ($2 == "inert") {
            if (line ~ /\356\200\200/)
                fail($3 " has a U+E000")
            if (line ~ /^\/\/# sourceMappingURL=/)
                continue
            gsub(/</, "\356\200\200", line)
        }
        if ($2 == "fonts")
            line = fonts(line)
        if ($2 == "escaped") {
            gsub(/&/, "\\&amp;", line)
            gsub(/</, "\\&lt;", line)
        }
        print line
    }
    if (!n)
        fail($3 ": cannot be read")
    next
}
{ print }
END { exit failed }' index.html
