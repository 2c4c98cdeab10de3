#!/bin/sh
# Fails when DESIGN.md does not name a source file.
set -eu
cd "$(dirname "$0")/.."
bad=0
for f in $(git ls-files '*.c' '*.h' '*.cu' '*.sh' '*.py' | grep -v '_test\.c$'); do
    grep -q "$(basename "$f")" DESIGN.md || { echo "DESIGN.md does not name $f"; bad=1; }
done
exit $bad
