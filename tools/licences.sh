#!/bin/sh
# licences.sh - the licences of carat and of the files of other projects that are part of it.
#
#     tools/licences.sh text       what `carat version --licences` prints
#     tools/licences.sh debian     paragraphs of a Debian copyright file, after that of carat
#     tools/licences.sh library    the same of a package without the chat page
#
# The lattices in num/grids.h have their text beside them; all else is the chat page's. A line of
# the list below: project, its name in apps/web/vendor/VENDOR, licence, files, text in
# apps/web/vendor/licences/. A text without a line is an error.
set -eu
cd "$(dirname "$0")/../apps/web/vendor"
list='KaTeX|katex|MIT|katex.min.js katex.min.css|katex
KaTeX fonts|katex|OFL-1.1|fonts/*.woff2|katex-fonts
markdown-it|markdown-it|MIT|markdown-it.umd.min.js|markdown-it
linkify-it|linkify-it|MIT|markdown-it.umd.min.js|linkify-it
mdurl|mdurl|MIT|markdown-it.umd.min.js|mdurl
uc.micro|uc.micro|MIT|markdown-it.umd.min.js|uc.micro
punycode.js|punycode.js|MIT|markdown-it.umd.min.js|punycode
entities|entities|BSD-2-Clause|markdown-it.umd.min.js|entities
highlight.js|highlight.js|BSD-3-Clause|highlight.min.js|highlight'

for text in licences/*.txt; do
    name=${text#licences/}
    printf '%s\n' "$list" | grep -q "|${name%.txt}\$" || { echo "licences.sh: $text is in no line" >&2; exit 1; }
done
version_of() {
    v=$(sed -n "/^#/s/^.* $1 \([0-9][0-9.]*[0-9]\).*/\1/p" VENDOR | head -n 1)
    [ -n "$v" ] || { echo "licences.sh: VENDOR has no version of $1" >&2; exit 1; }
    printf '%s' "$v"
}
each() {
    printf '%s\n' "$list" | while IFS='|' read -r project name licence files text; do
        version=$(version_of "$name")
        "$1"
    done
}
row() {
    printf '  %-14s%-9s%s\n' "$project" "$version" "$licence"
}
whole() {
    printf '\n==== %s %s: %s\n\n' "$project" "$version" "$licence"
    cat "licences/$text.txt"
}
# Holders and text of the licence in $1, whose short name is $2.
terms() {
    grep -i '^ *copyright' "$1" | sed 's/^ *[Cc]opyright *//; s/^/ /'
    printf 'License: %s\n' "$2"
    sed 's/[[:space:]]*$//; s/^$/./; s/^/ /' "$1"
}
paragraph() {
    printf '\nFiles:'
    # Some projects are inside one file of another: a paragraph names no file twice.
    case $text in linkify-it | mdurl | uc.micro | punycode | entities) printf ' %s' "apps/web/vendor/licences/$text.txt" ;;
    *) for file in $files; do printf ' apps/web/vendor/%s' "$file"; done ;; esac
    printf '\nComment: %s %s, in %s\nCopyright:\n' "$project" "$version" "$files"
    terms "licences/$text.txt" "$licence-$text"
}
lattices=../../../num/grids.licence.txt
lattices_paragraph() {
    printf '\nFiles: num/grids.h num/grids.licence.txt\nComment: lattices of ggml-common.h of llama.cpp\nCopyright:\n'
    terms "$lattices" MIT-llama.cpp
}
set -f
case ${1:-} in
text)
    printf 'carat is under the Apache License, version 2.0. Its text is the last one below.\n\n'
    printf 'The chat page of carat serve has parts of other projects, under their own licences:\n\n'
    each row
    printf '\nThe lattices of the weight formats IQ1, IQ2 and IQ3 (num/grids.h) are those of llama.cpp, under MIT.\n'
    each whole
    printf '\n==== llama.cpp (lattices): MIT\n\n'
    cat "$lattices"
    printf '\n==== carat: Apache-2.0\n'
    cat ../../../LICENSE
    ;;
debian)
    each paragraph
    lattices_paragraph
    ;;
library) lattices_paragraph ;;
*) echo "usage: tools/licences.sh text|debian|library" >&2; exit 2 ;;
esac
