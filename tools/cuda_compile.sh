#!/bin/sh
# Compiles every CUDA file for compute capability 8.6 and 9.0, and links nothing: do they compile, and has no
# kernel its arguments on its stack? A call that takes them by reference puts them there: the products of one
# row took 1.6 times as long with 432 bytes of stack.
#
#     tools/cuda_compile.sh NVCC [SECONDS]
#
# An object stays in a cache, under a hash of the compiler's version, its options, the file and all that it
# includes of this tree; so only files that changed are compiled. The cache is $CARAT_CUDA_CACHE, else
# carat-cuda in $XDG_CACHE_HOME or ~/.cache. With SECONDS, compilations end after that time, and what is left
# is named: the next run goes on with it. Run in the root of the tree. Exit status 1: a file does not compile.
set -eu
nvcc=$1
seconds=${2:-0}
cache=${CARAT_CUDA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/carat-cuda}
mkdir -p "$cache"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
version=$("$nvcc" --version | tail -n 2)
start=$(date +%s)

# The file and those that it includes by names in quotes, each once.
closure() {
    printf '%s\n' "$1" >"$tmp/queue"
    : >"$tmp/seen"
    while [ -s "$tmp/queue" ]; do
        sort -u "$tmp/queue" >"$tmp/now"
        cat "$tmp/now" >>"$tmp/seen"
        # shellcheck disable=SC2046 # names of this tree have no blanks
        sed -n 's/^ *# *include *"\([^"]*\)".*/\1/p' $(cat "$tmp/now") | sort -u | while read -r f; do
            for p in "$f" "include/$f"; do
                if [ -f "$p" ] && ! grep -qxF "$p" "$tmp/seen"; then echo "$p"; fi
            done
        done >"$tmp/queue"
    done
    sort -u "$tmp/seen"
}

: >"$tmp/todo"
n=0
for f in backend/cuda/*.cu backend/cuda/*/*.cu; do
    # wgmma exists on compute capability 9.0 alone.
    case $f in
    *_hopper.cu) arch="-gencode arch=compute_90a,code=sm_90a" ;;
    *) arch="-gencode arch=compute_86,code=sm_86 -gencode arch=compute_90,code=sm_90" ;;
    esac
    flags="-std=c++17 -O3 --extended-lambda -Iinclude -I. $arch"
    # shellcheck disable=SC2046
    key=$({ echo "$version $flags $f"; cat $(closure "$f"); } | sha256sum | cut -d ' ' -f 1)
    n=$((n + 1))
    if [ -f "$cache/$key.o" ]; then
        touch "$cache/$key.o"
    else
        echo "$(wc -c <"$f") $f $key $flags" >>"$tmp/todo"
    fi
done
# The longest sources take the compiler longest. They come first, so that no processor waits at the end; where
# time is short they come last, so that most files have their turn.
sort -n $([ "$seconds" -gt 0 ] || echo -r) "$tmp/todo" | cut -d ' ' -f 2- >"$tmp/list"
export nvcc cache tmp seconds start
# shellcheck disable=SC2016 # expanded by the shell that xargs starts
[ ! -s "$tmp/list" ] || xargs -P "$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)" -L 1 sh -c '
    f=$1 key=$2
    shift 2
    left=0
    if [ "$seconds" -gt 0 ]; then
        left=$((seconds + start - $(date +%s)))
        if [ "$left" -le 0 ]; then
            echo "$f" >>"$tmp/left"
            exit 0
        fi
    fi
    rc=0
    timeout "$left" "$nvcc" "$@" -Xptxas -v -c -o "$cache/$key.part.$$" "$f" >"$tmp/$key.told" 2>&1 || rc=$?
    grep -v "^ptxas info" "$tmp/$key.told" | grep -v "bytes stack frame\|^$" || :
    # What is spilled has its stores; more stack without them is a copy of arguments.
    awk "/Function properties for/ { name = \$NF } /bytes stack frame, 0 bytes spill stores/ && \$1 > 300 {
        print file \": \" \$1 \" bytes of stack in \" name; bad = 1 } END { exit bad }" file="$f" "$tmp/$key.told" || [ "$rc" -ne 0 ] || rc=1
    if [ "$rc" -eq 0 ]; then
        mv "$cache/$key.part.$$" "$cache/$key.o"
    else
        rm -f "$cache/$key.part.$$"
        if [ "$left" -gt 0 ] && [ "$rc" -eq 124 ]; then echo "$f" >>"$tmp/left"; else echo "$f" >>"$tmp/bad"; fi
    fi' sh <"$tmp/list"
# Objects that no run of a month asked for.
find "$cache" -name '*.o' -mtime +30 -delete
n_todo=$(wc -l <"$tmp/list")
n_left=0
if [ -f "$tmp/left" ]; then
    n_left=$(wc -l <"$tmp/left")
    echo "not compiled within $seconds s:" $(cat "$tmp/left")
fi
n_bad=0
if [ -f "$tmp/bad" ]; then n_bad=$(wc -l <"$tmp/bad"); fi
echo "$((n - n_todo)) of $n CUDA files are as they were, $((n_todo - n_left - n_bad)) compiled in $(($(date +%s) - start)) s"
echo "$((n - n_left - n_bad)) passed, $n_bad failed, $n_left skipped"
[ "$n_bad" -eq 0 ]
