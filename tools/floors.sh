#!/bin/sh
# Fails on an #include that points to a folder above (DESIGN.md has the order). A folder may include
# its own headers and those of the folders below it. Everyone may include include/carat.h and
# include/carat_bench.h, which include nothing of ours but their parts in include/carat/. Programs include carat.h, base/, image/ and sound/; apps/ and the server also text/jtree.h and text/talk.h; the
# file tools (convert, synth, quantize, imatrix, inspect) also format/, num/, model/ and text/. Tests may
# include everything.
set -eu
cd "$(dirname "$0")/.."
git ls-files -co --exclude-standard '*.c' '*.h' '*.cu' '*.cuh' | awk '
BEGIN {
    n = split("base image sound num format backend backend/cpu backend/cuda kv text model spec engine apps/hub apps/mcp apps/media apps apps/server/dialects apps/server", f, " ")
    for (i = 1; i <= n; i++) floor[f[i]] = i
    # The rest of the server is one floor: a connection starts an answer, an answer holds its model, and a model its answers.
    floor["apps/server/http"] = floor["apps/server/answers"] = floor["apps/server/models"] = floor["apps/server"]
    # text/ has no tensors: it stands on base/ alone, whatever is drawn below it.
    only["text"] = " base text "
    # Pictures and sound stand on base/ alone too.
    only["image"] = " base image "
    only["sound"] = " base sound "
    only["apps/hub"] = " base apps/hub "
    only["apps/mcp"] = " base apps/hub apps/mcp "
    only["apps/media"] = " base image sound apps/hub apps/media "
    only["apps"] = " base apps/hub apps/mcp apps/media apps "
    # Dialects are data: requests read and answers written, with no connection, model or thread.
    only["apps/server/dialects"] = " base apps/media apps apps/server/dialects "
    server = " base apps/hub apps/mcp apps/media apps apps/server/dialects apps/server/http apps/server/answers apps/server/models apps/server "
    only["apps/server"] = only["apps/server/http"] = only["apps/server/answers"] = only["apps/server/models"] = server
}
{
    file = $0
    if (file ~ /_test(_int)?\.[ch]$/ || file ~ /^(tests|fuzz|include|bench|tools|examples)\//) next
    dir = file; sub(/\/[^\/]*$/, "", dir)
    sub(/^backend\/cuda\/.*/, "backend/cuda", dir) # its folders are subjects of one floor
    if (!(dir in floor)) { print file ": not in a folder that DESIGN.md lists"; bad = 1; next }
    while ((getline line < file) > 0) {
        if (line !~ /^#include "/) continue
        inc = line; sub(/^#include "/, "", inc); sub(/".*/, "", inc)
        if (inc == "carat.h" || inc == "carat_bench.h" || inc ~ /^carat\/[a-z]+\.h$/) continue
        to = inc; sub(/\/[^\/]*$/, "", to)
        sub(/^backend\/cuda\/.*/, "backend/cuda", to)
        if (!(to in floor)) { print file ": includes " inc ", which is no folder that DESIGN.md lists"; bad = 1; continue }
        ok = floor[to] <= floor[dir]
        if (dir in only && index(only[dir], " " to " ") == 0) ok = 0
        if (dir == "apps" && file ~ /^apps\/(convert|synth|quantize|imatrix|inspect)[a-z_]*\.[ch]$/ && to ~ /^(format|num|model|text)$/) ok = 1
        # Requests and saved conversations are read with text/jtree.h, whose numbers keep their spelling, into text/talk.h.
        if (dir ~ /^apps($|\/server)/ && inc ~ /^text\/(jtree|talk)\.h$/) ok = 1
        if (dir ~ /^apps($|\/server)/ && (to == "image" || to == "sound")) ok = 1
        if (inc ~ /_int\.h$/ && to != dir) ok = 0
        if (!ok) { print file ": includes " inc ", which is above it or private"; bad = 1 }
    }
    close(file)
}
END { exit bad }'
