#!/usr/bin/env bash
# Two builds of carat on one GPU, in turns, on the same model files: is the new one as fast?
#
#     bench/cuda_compare.sh OLD NEW [DIR [RUNS]]
#
# OLD and NEW are programs. DIR (default /dev/shm) holds the model files, which NEW makes when they
# are missing: 38 GB for all. RUNS picks runs by a pattern over their names, such as '31b' or
# 'streams'. Each run is four processes, old new new old, so that a clock that drifts favours neither.
# A line per test: the mean of both processes' medians, how far the old one's two are apart, and
# time old / new, so that above 1 is better. Lines below 0.99 are marked. All runs take about five
# minutes on an H200.
set -euo pipefail
old=${1:?usage: bench/cuda_compare.sh OLD NEW [DIR [RUNS]]}
new=${2:?usage: bench/cuda_compare.sh OLD NEW [DIR [RUNS]]}
dir=${3:-/dev/shm}
want=${4:-.}
# shellcheck source=bench/cuda_runs.sh
. "$(dirname "$0")/cuda_runs.sh"

# Name, model, what to measure. -p 2 to 32 are passes of few rows, -s answers side by side.
runs=(
    "e2b         e2b     -p 8,512,4096 -n 128 -r 5"
    "26b         26b-a4b -p 4,8,512,4096 -n 128 -r 5"
    "26b-32k     26b-a4b -p 2048 -n 64 -d 32768 -r 3"
    "streams-26b 26b-a4b -p 0 -n 128 -s 4,16,32,64 -r 3"
    "31b         31b     -p 2,4,8,16,32,512,4096 -n 64 -r 3"
    "31b-32k     31b     -p 2048 -n 32 -d 32768 -r 2"
)

found=$(mktemp)
said=$(mktemp)
trap 'rm -f "$found" "$said" "$said.err"' EXIT
for run in "${runs[@]}"; do
    read -r name model ask <<<"$run"
    [[ "$name" =~ $want ]] || continue
    make_model "$new" "$model"
    start=$SECONDS
    for which in old new new old; do
        # shellcheck disable=SC2086 # a list of words
        if "${!which}" bench --device cuda -m "$dir/$model.gguf" $ask --json >"$said" 2>"$said.err"; then
            tests <"$said" | sed "s/^/$name $which /" >>"$found"
        else
            echo "$name: $which failed: $(tail -1 "$said.err")"
        fi
    done
    echo "$name: $((SECONDS - start)) s" >&2
done

echo "old: $("$old" version); new: $("$new" version); $(gpu_line), $(date -u +%F)"
echo
echo "| run | test | depth | old, tokens/s | new, tokens/s | old apart | old / new | |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- |"
awk '
    $3 == "load" { next }
    {
        key = $1 " | " $3 " | " $4
        if (!(key in seen))
            order[++n] = key
        seen[key] = 1
        k = key SUBSEP $2
        sum[k] += $5
        count[k]++
        if (!(k in most) || $5 > most[k]) most[k] = $5
        if (!(k in least) || $5 < least[k]) least[k] = $5
    }
    END {
        for (i = 1; i <= n; i++) {
            o = order[i] SUBSEP "old"
            w = order[i] SUBSEP "new"
            if (!count[o] || !count[w])
                continue
            a = sum[o] / count[o]
            b = sum[w] / count[w]
            printf "| %s | %.1f | %.1f | %.1f %% | %.3f | %s |\n", order[i], a, b,
                100 * (most[o] / least[o] - 1), b / a, b / a < 0.99 ? "slower" : ""
        }
    }' "$found"
