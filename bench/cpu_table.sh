#!/usr/bin/env bash
# The table of the CPU: carat against another llama-bench, in turns, as markdown.
#
#     bench/cpu_table.sh PEER [DIR [ROWS]]
#
# PEER is a llama-bench (or another carat). DIR holds the model files, which `carat synth` makes when
# they are missing: 3.4 GB for e2b q4_k_m, 33 GB for all. ROWS picks lines by a pattern over their
# names, such as 'e2b-q4_k_m' or 'decode'. R is the number of repetitions where they are short
# (default 5). CARAT names the program. The machine should be idle: a line that took much longer than
# its neighbours, or with a wide spread, is worth a second run.
set -euo pipefail
peer=${1:?usage: bench/cpu_table.sh PEER [DIR [ROWS]]}
dir=${2:-.}
want=${3:-.}
carat=${CARAT:-./carat}
reps=${R:-5}

# model, threads, repetitions, what to ask of carat bench, at least, hoped for
rows=(
    "e2b-q4_k_m 2 $reps -p,0,-n,64 1.30 1.45"
    "e2b-q4_k_m 2 $reps -p,512,-n,0 2.4 3.3"
    "e2b-q4_k_m 1 $reps -p,0,-n,32 1.1 1.3"
    "e2b-q4_k_m 1 $reps -p,256,-n,0 2.4 3.3"
    "e2b-q4_k_m 2 2 -p,0,-n,64,-d,8192 1.55 1.75"
    "e2b-q4_k_m 2 1 -p,4096,-n,0 2.6 3.6"
    "e2b-q8_0 2 $reps -p,0,-n,32 1.30 1.45"
    "e2b-q8_0 2 $reps -p,512,-n,0 2.4 3.3"
    "e2b-q4_0 2 $reps -p,0,-n,32 1.30 1.45"
    "e2b-q4_0 2 $reps -p,512,-n,0 2.4 3.3"
    "e4b-q4_k_m 2 $reps -p,0,-n,32 1.25 -"
    "e4b-q4_k_m 2 3 -p,512,-n,0 2.3 -"
    "e4b-q4_k_m 1 3 -p,0,-n,16 1.1 -"
    "e4b-q4_k_m 1 2 -p,256,-n,0 2.3 -"
    "e4b-q4_k_m 2 1 -p,0,-n,32,-d,8192 1.25 -"
    "e4b-q4_k_m 2 1 -p,4096,-n,0 2.3 -"
    "26b-a4b-q4_k_m 2 3 -p,0,-n,32 1.25 -"
    "26b-a4b-q4_k_m 2 2 -p,512,-n,0 2.0 -"
)

out=$(mktemp)
trap 'rm -f "$out"' EXIT
echo "$("$carat" version), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(date -u +%F)"
echo
echo "| file | threads | test | depth | carat, tokens/s | spread | of ceiling | other, tokens/s | spread | ratio | must | aim |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
for row in "${rows[@]}"; do
    read -r model threads n ask must aim <<<"$row"
    [[ "$row ${ask//,/ }" =~ $want ]] || continue
    file=$dir/$model.gguf
    if [ ! -e "$file" ]; then
        "$carat" synth "${model%-q*}" "$file" --type "${model##*-}" >&2
    fi
    if ! "$carat" bench -m "$file" -t "$threads" -r "$n" ${ask//,/ } --vs "$peer" >"$out" 2>&1; then
        echo "| $model | $threads | ${ask//,/ } | | failed: $(tail -1 "$out") |"
        continue
    fi
    # prefill 512 0 1.5 s 334.97 ±84.1 % 361 GFLOP/s 18 % int8 45.46 ±61.5 % 7.37
    sed -n -E "s/^(prefill|decode) +([0-9]+) +([0-9]+) +[0-9.]+ [mu]?s +([0-9.]+) +± *([0-9.]+) % +[0-9.]+ [A-Z]+\/s +([0-9]+ % [a-z0-9]+) +([0-9.]+) +± *([0-9.]+) % +([0-9.]+)$/| $model | $threads | \1 \2 | \3 | \4 | ±\5 % | \6 | \7 | ±\8 % | \9 | $must | $aim |/p" "$out"
done
