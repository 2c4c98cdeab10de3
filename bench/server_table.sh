#!/usr/bin/env bash
# What `carat serve` gives of a GPU, as markdown: answers side by side against those of `carat bench`,
# prompts beside answers, and what parts of prompts take, which bounds the gap between tokens.
#
#     bench/server_table.sh [DIR [MODEL]]
#
# DIR (default /dev/shm) holds the model file, which `carat synth` makes with words when it is missing:
# MODEL is 26b-a4b, 17 GB. CARAT names the program (default build/cuda/carat), DEVICE the device
# (default cuda), SECONDS_OF_LOAD the time of each of five loads (default 5). With the model there it is
# to end within 100 s on an H200. Of that, 64 prompts and answers at once take 6 s, so they are measured
# once on each side, after a warm-up. Both sides have the same keys: prompts of 512 tokens, answers of 256.
set -euo pipefail
dir=${1:-/dev/shm}
name=${2:-26b-a4b}
carat=${CARAT:-build/cuda/carat}
device=${DEVICE:-cuda}
seconds=${SECONDS_OF_LOAD:-5}
here=$(dirname "$0")
# shellcheck source=bench/cuda_runs.sh
. "$here/cuda_runs.sh"

model=$dir/$name-words.gguf
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
[ -e "$model" ] || "$carat" synth "$name" "$model" --vocab "$here/../models/demo.gguf" --full-vocab >&2

"$carat" bench --device "$device" -m "$model" -p 8,32,64,128,256,512 -n 256 -d 512 -s 4,16,64 -r 1 --json \
    >"$work/bench.json"
tests <"$work/bench.json" >"$work/bench"

# load CLIENTS ROUNDS OPTION...: the lines of server_load.py against a server with these options; ROUNDS
# of answers side by side, then the load.
load() {
    local clients=$1 rounds=$2 url
    shift 2
    : >"$work/log"
    "$carat" serve --device "$device" -m "$model" --parallel 64 --ctx 1024 --port 0 "$@" >"$work/log" 2>&1 &
    server=$!
    until url=$(grep -om1 'http://[^ ]*:[0-9]*' "$work/log"); do
        kill -0 "$server" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
        sleep 0.2
    done
    until curl -sf "$url/health" >"$work/health"; do
        kill -0 "$server" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
        sleep 0.2
    done
    python3 "$here/../tools/server_load.py" "$url" --clients "$clients" --prompt 512 --tokens 256 \
        --rounds "$rounds" --seconds "$seconds" --csv | tail -n +2
    kill "$server"
    wait "$server" || true
    server=
}
# Answers side by side want prompts that are over early: they are off the clock.
load 4,16,64 1 --token-gap 0 >"$work/whole"
load 16,64 0 >"$work/load"

echo "$("$carat" version), $(gpu_line), $(date -u +%F); $name, prompts of 512, answers of 256 tokens"
echo
echo "| answers side by side | carat bench, tokens/s | carat serve | share | must | the server between passes, us |"
echo "| --- | --- | --- | --- | --- | --- |"
awk -F'[ ,]' 'FNR == NR { if ($1 ~ /^x/) batch[substr($1, 2)] = $3; next }
    { share = $3 / batch[$1]
      printf "| %d | %.0f | %.0f | %.3f | 0.97 %s | %d |\n", $1, batch[$1], $3, share, (share >= 0.97 ? "met" : "missed"), $12 }' \
    "$work/bench" "$work/whole"
echo
echo "| clients that ask again and again | tokens/s | first token, ms: median, 99 % | between tokens, ms: median, 99 % | must |"
echo "| --- | --- | --- | --- | --- |"
awk -F, 'FNR == 1 { file++ }
    { must = $1 != 16 || file < 2 ? "" : sprintf("2600 %s; 14 ms %s", $6 >= 2600 ? "met" : "missed", $11 <= 14 ? "met" : "missed")
      first = $9 ? sprintf("%.0f, %.0f", $7, $8) : "none came in time"
      printf "| %d%s | %.0f | %s | %.2f, %.2f | %s |\n", $1, file < 2 ? ", --token-gap 0" : "", $6, first, $10, $11, must }' \
    "$work/whole" "$work/load"
echo
echo "| rows of a part of a prompt | ms |"
echo "| --- | --- |"
awk '$1 ~ /^p/ { printf "| %d | %.2f |\n", substr($1, 2), $5 / 1e6 }' "$work/bench"
