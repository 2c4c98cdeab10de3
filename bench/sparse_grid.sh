#!/usr/bin/env bash
# What sparse attention loses with the bundled model: needles, mass, divergence (bench/sparse_recall.c).
#
#     bench/sparse_grid.sh DIR [PROCESSES [TEXTS]]
#
# Texts of 8K, 16K and 31K tokens, eight needles at each of three depths; TEXTS (7) of each length. Long texts come
# first, with the settings in two parts. The whole grid takes 50 minutes of a core; PROCESSES (1) run side by side.
# Lines go to DIR/*.jsonl; at the end tools/sparse_table.py prints the table. BENCH names the program.
set -euo pipefail
here=$(dirname "$0")/..
dir=$1
bench=${BENCH:-$here/build/bench_sparse_recall}
model=${MODEL:-$here/models/demo.gguf}
parts=("off flash:0.5 flash:0.7 skip:50 skip:1000" "off flash:0.8 flash:0.9 flash:1 skip:200 skip:5000")
mkdir -p "$dir"
jobs=$(mktemp)
trap 'rm -f "$jobs"' EXIT
for tokens in 31000 16000 8000; do
    for ((i = 0; i < ${3:-7}; i++)); do
        cases=$dir/cases-$tokens-$i
        python3 "$here/tools/demo/recall_cases.py" --kind several --tokens $tokens --texts 1 --first "$i" >"$cases"
        for part in 0 1; do
            printf '%s\n' "$bench $model $cases 32768 ${parts[part]} > $dir/$tokens-$i-$part.jsonl"
        done
    done
done >"$jobs"
xargs -P "${2:-1}" -d '\n' -n 1 bash -c <"$jobs"
python3 "$here/tools/sparse_table.py" "$dir"/*.jsonl
