#!/usr/bin/env bash
# cpu_table.sh - the CPU's table as Markdown: carat and another program, which take turns.
#
#     bench/cpu_table.sh PEER [DIR [ROWS]]
#
# PEER is a llama-bench (or another carat). DIR holds the model files, which `carat synth` makes when
# they are missing: 3.4 GB for e2b q4_k_m, 33 GB for all. ROWS is a pattern that picks lines, such as
# 'e2b-q4_k_m' or 'decode'. R is the number of repetitions of short tests (default 5). CARAT names the
# program. The machine should be idle: repeat a line with a wide spread. `bench/results.sh take` makes
# lines of results.csv from the table.
set -euo pipefail
peer=${1:?usage: bench/cpu_table.sh PEER [DIR [ROWS]]}
dir=${2:-.}
want=${3:-.}
carat=${CARAT:-./carat}
reps=${R:-5}

# All lines take about an hour and a half, 'e2b-q4_k_m' a sixth of it.
# model, threads, repetitions, arguments of carat bench, the ratio that must be reached, the aim
rows=(
    "e2b-q4_k_m 2 $reps -p,0,-n,64 1.30 1.45"
    "e2b-q4_k_m 2 $reps -p,512,-n,0 2.4 3.3"
    "e2b-q4_k_m 1 $reps -p,0,-n,32 1.1 1.3"
    "e2b-q4_k_m 1 $reps -p,256,-n,0 2.4 3.3"
    "e2b-q4_k_m 2 2 -p,0,-n,64,-d,8192 1.55 1.75"
    "e2b-q4_k_m 2 1 -p,4096,-n,0 2.6 3.6"
    "e2b-q8_0 2 $reps -p,0,-n,32 1.30 1.45"
    "e2b-q8_0 2 $reps -p,512,-n,0 2.4 3.3"
    "e2b-q8_0 1 3 -p,0,-n,32 1.1 1.3"
    "e2b-q8_0 1 2 -p,256,-n,0 2.4 3.3"
    "e2b-q8_0 2 1 -p,0,-n,64,-d,8192 1.55 1.75"
    "e2b-q8_0 2 1 -p,4096,-n,0 2.6 3.6"
    "e2b-q4_0 2 $reps -p,0,-n,32 1.30 1.45"
    "e2b-q4_0 2 $reps -p,512,-n,0 2.4 3.3"
    "e2b-q4_0 1 3 -p,0,-n,32 1.1 1.3"
    "e2b-q4_0 1 2 -p,256,-n,0 2.4 3.3"
    "e2b-q4_0 2 1 -p,0,-n,64,-d,8192 1.55 1.75"
    "e2b-q4_0 2 1 -p,4096,-n,0 2.6 3.6"
    "e4b-q4_k_m 2 $reps -p,0,-n,32 1.25 -"
    "e4b-q4_k_m 2 3 -p,512,-n,0 2.3 -"
    "e4b-q4_k_m 1 3 -p,0,-n,16 1.1 -"
    "e4b-q4_k_m 1 2 -p,256,-n,0 2.3 -"
    "e4b-q4_k_m 2 1 -p,0,-n,32,-d,8192 1.25 -"
    "e4b-q4_k_m 2 1 -p,4096,-n,0 2.3 -"
    "qwen3-0.6b-q4_k_m 2 $reps -p,0,-n,64 1.2 1.4"
    "qwen3-0.6b-q4_k_m 2 $reps -p,512,-n,0 2.5 4"
    "qwen3.6-35b-a3b-q4_k_m 2 ${R_BIG:-3} -p,0,-n,32 1.3 1.5"
    "qwen3.6-35b-a3b-q4_k_m 2 ${R_BIG:-2} -p,512,-n,0 3 4"
    "26b-a4b-q4_k_m 2 ${R_BIG:-3} -p,0,-n,32 1.25 -"
    "26b-a4b-q4_k_m 2 ${R_BIG:-2} -p,512,-n,0 2.0 -"
)

# Both programs together cannot hold a file of more than half the memory. So each repetition is two
# processes, one after the other. Prints the line of the table.
apart() {
    local model=$1 threads=$2 n=$3 ask=$4 must=$5 aim=$6 file=$7 ours=() theirs=() i
    local other=(-m "$file" -t "$threads" -r 1 $ask -o json)
    for ((i = 0; i < n; i++)); do
        ours+=("$("$carat" bench -m "$file" -t "$threads" -r 1 $ask --json | speed)")
        theirs+=("$("$peer" "${other[@]}" 2>/dev/null | speed)")
    done
    printf '%s\n' "${ours[@]}" "${theirs[@]}" | awk -v n="$n" -v head="$model | $threads | ${ask#-p 0 }" \
        -v tail="$must | $aim" '
        function sorted(from, to,   i, j, t) {
            for (i = from; i <= to; i++)
                for (j = i + 1; j <= to; j++)
                    if (v[j] < v[i]) { t = v[i]; v[i] = v[j]; v[j] = t }
        }
        function median(from, to) { return (v[int((from + to) / 2)] + v[int((from + to + 1) / 2)]) / 2 }
        { v[NR] = $1 }
        END {
            sorted(1, n); sorted(n + 1, 2 * n)
            a = median(1, n); b = median(n + 1, 2 * n)
            printf "| %s | 0 | %.2f | ±%.1f %% | | %.2f | ±%.1f %% | %.2f | %s |\n", head, a,
                50 * (v[n] - v[1]) / a, b, 50 * (v[2 * n] - v[n + 1]) / b, b ? a / b : 0, tail
        }'
}
# tokens per second of the one test in the JSON of either program
speed() { sed -n 's/.*"avg_ts": *\([0-9.]*\).*/\1/p' | head -1; }

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
    if [ "$(stat -Lc %s "$file")" -gt $(($(awk '/^MemTotal/ { print $2 }' /proc/meminfo) * 512)) ]; then
        apart "$model" "$threads" "$n" "${ask//,/ }" "$must" "$aim" "$file"
        continue
    fi
    if ! "$carat" bench -m "$file" -t "$threads" -r "$n" ${ask//,/ } --vs "$peer" >"$out" 2>&1; then
        echo "| $model | $threads | ${ask//,/ } | | failed: $(tail -1 "$out") |"
        continue
    fi
    # prefill 512 0 1.5 s 334.97 ±84.1 % 361 GFLOP/s 18 % int8 45.46 ±61.5 % 7.37
    sed -n -E "s/^(prefill|decode) +([0-9]+) +([0-9]+) +[0-9.]+ [mu]?s +([0-9.]+) +± *([0-9.]+) % +[0-9.]+ [A-Z]+\/s +([0-9]+ % [a-z0-9]+) +([0-9.]+) +± *([0-9.]+) % +([0-9.]+)$/| $model | $threads | \1 \2 | \3 | \4 | ±\5 % | \6 | \7 | ±\8 % | \9 | $must | $aim |/p" "$out"
done
