#!/bin/sh
# The ten largest source files and the ten longest C functions (by lines, braces in column one).
set -eu
cd "$(dirname "$0")/.."
git ls-files '*.c' '*.h' '*.cu' '*.py' | xargs wc -l | grep -v ' total$' | sort -rn | head -10
echo
git ls-files '*.c' '*.cu' | xargs awk '
FNR == 1 { start = 0 }
/^[a-zA-Z_].*\(/ { name = $0; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name) }
/^{/ { start = FNR }
/^}/ { if (start) printf "%5d %s:%d %s\n", FNR - start, FILENAME, start, name; start = 0 }
' | sort -rn | head -10
