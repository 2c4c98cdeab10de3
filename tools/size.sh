#!/bin/sh
# The ten largest source files and the ten longest C functions and kernels (by lines, braces in column
# one). A test has the name that TEST() gives it, a kernel the one behind __launch_bounds__().
set -eu
cd "$(dirname "$0")/.."
git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.py' | xargs wc -l | grep -v ' total$' | sort -rn | head -10
echo
git ls-files '*.c' '*.cu' '*.cuh' | xargs awk '
FNR == 1 { head = "" }
# What stands before a brace in column one, since the last declaration ended.
/^{/ {
    start = FNR
    name = head
    while (match(name, /__(launch_bounds|attribute)__ *\([^()]*(\([^()]*(\([^()]*\)[^()]*)*\)[^()]*)*\)/))
        name = substr(name, 1, RSTART - 1) substr(name, RSTART + RLENGTH)
    if (match(name, /TEST\([a-z_0-9]+\)/))
        name = substr(name, RSTART + 5, RLENGTH - 6)
    else {
        sub(/ *\(.*/, "", name)
        sub(/.*[ *]/, "", name)
    }
}
/^}/ { if (start) printf "%5d %s:%d %s\n", FNR - start, FILENAME, start, name; start = 0; head = ""; next }
/^$|;$|^#|^\/|^ \*|^template[^(]*$/ { if (!start) head = "" ; next }
!start { head = head " " $0 }
' | sort -rn | head -10
