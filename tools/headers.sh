#!/bin/sh
# Fails where a compiler does not read a public header without a warning: each header of include/ by
# itself, as C and as C++, in old and new standards, with -pedantic. Also fails on a
# header that is longer than a reader holds. Prints the compilers that were tried.
#
#     tools/headers.sh [brief]      brief: C11 and C++17 alone
set -eu
cd "$(dirname "$0")/../include"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0 tried=
for header in *.h carat/*.h; do
    printf '#include "%s"\nint main(void) { return 0; }\n' "$header" >"$work/$(echo "$header" | tr / _).c"
    [ "$(wc -l <"$header")" -le 400 ] || { echo "include/$header is longer than 400 lines"; bad=1; }
done
# $1 compiler, $2 language, $3 standards.
try() {
    command -v "$1" >/dev/null 2>&1 || return 0
    : >"$work/empty"
    "$1" -x "$2" -fsyntax-only "$work/empty" 2>/dev/null || return 0
    tried="$tried $1"
    for standard in $3; do
        "$1" -std="$standard" -x "$2" -fsyntax-only "$work/empty" 2>/dev/null || continue
        "$1" -std="$standard" -pedantic -Wall -Wextra -Werror -I. -x "$2" -fsyntax-only "$work"/*.c || {
            echo "$1 -std=$standard does not read the public headers"
            bad=1
        }
    done
}
c='c11 c2x' cpp='c++11 c++17 c++2b'
[ "${1:-}" != brief ] || c=c11 cpp=c++17
for cc in gcc clang; do try $cc c "$c"; done
for cc in g++ clang++; do try $cc c++ "$cpp"; done
echo "tried:$tried"
[ -n "$tried" ] || echo "no compiler was found"
exit $bad
