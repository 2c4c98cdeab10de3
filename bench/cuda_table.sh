#!/usr/bin/env bash
# The tables of the GPU: what carat must reach there and what it does, as markdown.
#
#     bench/cuda_table.sh [DIR [RUNS]]
#
# DIR (default /dev/shm) holds the model files, which `carat synth` makes when they are missing: 66 GB
# for all, 38 GB of models with planted attention and 8 GB of drafters. RUNS picks runs by a pattern over their names, such as '31b', 'cache',
# 'draft' or 'auto'. CARAT names the program (default build/cuda/carat). The runs without drafts take
# about eight minutes on an H200, most of them prompts of 128K tokens: 'base' alone takes three.
set -euo pipefail
dir=${1:-/dev/shm}
want=${2:-.}
carat=${CARAT:-build/cuda/carat}
# shellcheck source=bench/cuda_runs.sh
. "$(dirname "$0")/cuda_runs.sh"

# A run is one process of `carat bench`: its name, the model, the cache's type, what to measure.
# @NAME is a drafter, made by `carat synth` like a model.
runs=(
    "base-e2b         e2b     f16 -p 4096 -n 128 -d 0,32768 -r 3"
    "base-e4b         e4b     f16 -p 4096 -n 128 -d 0,32768 -r 3"
    "base-26b         26b-a4b f16 -p 512,4096 -n 128 -r 5"
    "base-26b-32k     26b-a4b f16 -p 4096 -n 128 -d 32768 -r 3"
    "base-26b-128k    26b-a4b f16 -p 2048 -n 128 -d 65536,131072 -r 3"
    "base-31b         31b     f16 -p 4096 -n 128 -d 0,32768 -r 3"
    "base-31b-64k     31b     f16 -p 2048 -n 128 -d 65536 -r 3"
    "tail-31b         31b     f16 -p 0 -n 128 -d 0,32768 -r 3 --tail"
    "tail-27b         qwen3.6-27b f16 -p 0 -n 128 -d 0 -r 3 --tail"
    "tail-26b         26b-a4b f16 -p 0 -n 128 -d 0,32768 -r 3 --tail"
    "tail-a3b         qwen3.6-35b-a3b f16 -p 0 -n 128 -d 0 -r 3 --tail"
    "tail-e4b         e4b     f16 -p 0 -n 128 -d 0 -r 3 --tail"
    "qwen3-0.6b       qwen3-0.6b f16 -p 4096,32768 -n 128 -r 3"
    "laguna-xs        laguna-xs f16 -p 4096 -n 128 -d 0,32768 -r 3"
    "qwen-27b         qwen3.6-27b f16 -p 4096 -n 128 -d 0,32768 -r 3"
    "qwen-27b-128k    qwen3.6-27b f16 -p 0 -n 64 -d 131072 -r 2"
    "qwen-27b-verify  qwen3.6-27b f16 -p 0 -n 128 -d 1024 -r 3 --spec lookup --draft-max 7 --accept-mean 3"
    "qwen-a3b         qwen3.6-35b-a3b f16 -p 4096 -n 128 -d 0,32768 -r 3"
    "qwen-a3b-128k    qwen3.6-35b-a3b f16 -p 0 -n 64 -d 131072 -r 2"
    "experts-26b      26b-a4b-skew0.8 f16 -p 4096 -n 256 -r 3"
    "experts-26b-all  26b-a4b-skew0.8 f16 -p 4096 -n 256 -r 3 --experts-gpu 100%"
    "experts-26b-75   26b-a4b-skew0.8 f16 -p 4096 -n 256 -r 3 --experts-gpu 75%"
    "experts-26b-75-off  26b-a4b-skew0.8 f16 -p 0 -n 512 -r 3 --experts-gpu 75% --experts-prefetch off"
    "experts-26b-50   26b-a4b-skew0.8 f16 -p 4096 -n 256 -r 3 --experts-gpu 50%"
    "experts-26b-50-off  26b-a4b-skew0.8 f16 -p 0 -n 512 -r 3 --experts-gpu 50% --experts-prefetch off"
    "experts-26b-25   26b-a4b-skew0.8 f16 -p 4096 -n 256 -r 3 --experts-gpu 25%"
    "experts-26b-25-off  26b-a4b-skew0.8 f16 -p 0 -n 512 -r 3 --experts-gpu 25% --experts-prefetch off"
    "experts-26b-75-help  26b-a4b-skew0.8 f16 -p 0 -n 512 -r 3 --experts-gpu 75% --experts-cpu auto --experts-prefetch off"
    "experts-26b-50-help  26b-a4b-skew0.8 f16 -p 0 -n 512 -r 3 --experts-gpu 50% --experts-cpu auto --experts-prefetch off"
    "experts-26b-25-help  26b-a4b-skew0.8 f16 -p 0 -n 512 -r 3 --experts-gpu 25% --experts-cpu auto --experts-prefetch off"
    "experts-26b-75-early 26b-a4b-skew0.8 f16 -p 0 -n 512 -r 3 --experts-gpu 75% --experts-cpu auto"
    "experts-26b-50-early 26b-a4b-skew0.8 f16 -p 0 -n 512 -r 3 --experts-gpu 50% --experts-cpu auto"
    "experts-26b-25-early 26b-a4b-skew0.8 f16 -p 0 -n 512 -r 3 --experts-gpu 25% --experts-cpu auto"
    "experts-26b-flat 26b-a4b-skew0 f16 -p 4096 -n 256 -r 3 --experts-gpu 50%"
    "experts-26b-flat-early 26b-a4b-skew0 f16 -p 0 -n 512 -r 3 --experts-gpu 50% --experts-cpu auto"
    "experts-26b-cpu  26b-a4b-skew0 f16 -p 0 -n 32 -r 3 --cpu-experts"
    "experts-a3b-50   qwen3.6-35b-a3b-skew0.8 f16 -p 4096 -n 256 -r 3 --experts-gpu 50%"
    "experts-xs-50    laguna-xs-skew0.8 f16 -p 4096 -n 256 -r 3 --experts-gpu 50%"
    "experts-a3b-all  qwen3.6-35b-a3b-skew0.8 f16 -p 0 -n 512 -r 3"
    "experts-a3b-75-early qwen3.6-35b-a3b-skew0.8 f16 -p 0 -n 512 -r 3 --experts-gpu 75% --experts-cpu auto"
    "experts-a3b-50-early qwen3.6-35b-a3b-skew0.8 f16 -p 0 -n 512 -r 3 --experts-gpu 50% --experts-cpu auto"
    "experts-a3b-25-early qwen3.6-35b-a3b-skew0.8 f16 -p 0 -n 512 -r 3 --experts-gpu 25% --experts-cpu auto"
    "experts-xs-all  laguna-xs-skew0.8 f16 -p 0 -n 512 -r 3"
    "experts-xs-75-early laguna-xs-skew0.8 f16 -p 0 -n 512 -r 3 --experts-gpu 75% --experts-cpu auto"
    "experts-xs-50-early laguna-xs-skew0.8 f16 -p 0 -n 512 -r 3 --experts-gpu 50% --experts-cpu auto"
    "experts-xs-25-early laguna-xs-skew0.8 f16 -p 0 -n 512 -r 3 --experts-gpu 25% --experts-cpu auto"
    "verify-31b-8     31b     f16 -p 0 -n 128 -d 1024,65536 -r 3 --spec lookup --draft-max 7 --accept-mean 3"
    "verify-31b-16    31b     f16 -p 0 -n 128 -d 1024,65536 -r 3 --spec lookup --draft-max 15 --accept-mean 3"
    "verify-31b-32    31b     f16 -p 0 -n 128 -d 1024 -r 3 --spec lookup --draft-max 31 --accept-mean 3"
    "verify-26b-4     26b-a4b f16 -p 0 -n 128 -d 1024 -r 3 --spec lookup --draft-max 3 --accept-mean 2"
    "verify-26b-8     26b-a4b f16 -p 0 -n 128 -d 1024 -r 3 --spec lookup --draft-max 7 --accept-mean 3"
    "verify-26b-16    26b-a4b f16 -p 0 -n 128 -d 1024 -r 3 --spec lookup --draft-max 15 --accept-mean 3"
    "streams-26b      26b-a4b f16 -p 0 -n 128 -s 4,16,32,64 -r 3"
    "pool-26b-at4k    26b-a4b f16 -p 0 -n 256 -d 4096 -r 3"
    "pool-26b         26b-a4b f16 -p 0 -n 256 -d 65536,131072,261888 -r 3 --kv-pool 4096"
    "pool-26b-whole   26b-a4b f16 -p 0 -n 64 -d 261888 -r 3 --blank-depth"
    "pool-31b-at4k    31b     f16 -p 0 -n 256 -d 4096 -r 3"
    "pool-31b         31b     f16 -p 0 -n 256 -d 65536,131072,261888 -r 3 --kv-pool 4096"
    "pool-31b-whole   31b     f16 -p 0 -n 64 -d 261888 -r 3 --blank-depth"
    "long-26b         26b-a4b f16 -p 262144 -n 0 -r 1 --kv-pool 8192"
    "long-26b-whole   26b-a4b f16 -p 262144 -n 0 -r 1"
    "sparse-26b-exact 26b-a4b-planted f16 -p 65536,131072,262144 -n 0 -r 1"
    "sparse-26b-flash 26b-a4b-planted f16 -p 65536,131072,262144 -n 0 -r 1 --sparse flash:0.1"
    "sparse-26b-skip  26b-a4b-planted f16 -p 65536,131072,262144 -n 0 -r 1 --sparse skip:500"
    "sparse-31b-exact 31b-planted f16 -p 65536,131072,262144 -n 0 -r 1"
    "sparse-31b-flash 31b-planted f16 -p 65536,131072,262144 -n 0 -r 1 --sparse flash:0.1"
    "sparse-31b-skip  31b-planted f16 -p 65536,131072,262144 -n 0 -r 1 --sparse skip:500"
    "alike-26b        26b-a4b f16 -p 0 -n 64 -d 16384 -s 16 -r 2 --shared 16320"
    "alike-26b-apart  26b-a4b f16 -p 0 -n 64 -d 16384 -s 16 -r 2"
    "draft-31b-block7  31b     f16 -p 0 -n 128 -d 1024,65536 -r 3 --spec @dflash-31b --draft-max 7 --accept-mean 3"
    "draft-31b-block15 31b     f16 -p 0 -n 128 -d 1024 -r 3 --spec @dflash-31b --draft-max 15 --accept-mean 4"
    "draft-31b-steps4  31b     f16 -p 0 -n 128 -d 1024 -r 3 --spec @mtp-31b --draft-max 4 --accept-mean 2.5"
    "draft-26b-block3  26b-a4b f16 -p 0 -n 128 -d 1024 -r 3 --spec @dflash-26b --draft-max 3 --accept-mean 2"
    "draft-26b-steps2  26b-a4b f16 -p 0 -n 128 -d 1024 -r 3 --spec @mtp-26b --draft-max 2 --accept-mean 1.5"
    "draft-e4b-steps3  e4b     f16 -p 0 -n 128 -d 1024 -r 3 --spec @mtp-e4b --draft-max 3 --accept-mean 2"
    "draft-26b-streams 26b-a4b f16 -p 0 -n 128 -d 1024 -s 8,64 -r 3 --spec @dflash-26b --accept-mean 2.5"
    "draft-31b-storm   31b     f16 -p 0 -n 512 -d 1024 -r 3 --spec lookup --accept-mean 0"
)
# Lengths that the engine chooses, against fixed ones, for six profiles of acceptance.
profiles=(0.95,0.95,0.95,0.95,0.95,0.95,0.95 0.7,0.7,0.7,0.7,0.7,0.7,0.7 0.4,0.4,0.4,0.4,0.4,0.4,0.4
    0.05 0.94,0.68,0.7,0.82,0.86,0.84,0.93 0.9,0.9,0.2)
for i in "${!profiles[@]}"; do
    for n in 0 1 2 3 5 7; do
        length=$([ "$n" = 0 ] || echo "--draft-max $n")
        runs+=("auto-$((i + 1))-$n 31b f16 -p 0 -n 256 -d 1024 -r 3 --spec @dflash-31b --accept ${profiles[i]} $length")
    done
done
for model in 26b-a4b 31b; do
    for kv in f16 q8_0 q4_0 tq3_0; do
        runs+=("cache-$model-$kv $model $kv -p 0 -n 64 -d 32768,131072 -r 3")
    done
done

# run, test, depth: at least so many tokens/s, and hoped for; or a factor. "round" is the time of one
# round over that of a plain token, at most; with lookup, of a pass over so many rows. "streams" is the
# speed of all over that of one; "cache" the speed
# over that with f16; "pool" the speed with a pool of keys over that at depth 4096, "pool-*-whole" the same
# over that of the whole cache, and "kv" the bytes of keys of the whole cache over those with the pool;
# "long-*-whole" is that of prompts. "alike" is the speed with a prompt's first tokens shared over that without,
# and "keys16" the tokens of keys without over those with. "sparse" is the speed of a prompt over that of exact attention.
# "load" is seconds, at most, from a file in the page cache. "tail" is milliseconds of a token, at most, beyond the
# reading of its bytes at the rate that the same run measures.
wants='
base-e2b n128 0 600 900
base-e2b n128 32768 500 750
base-e2b p4096 0 40000 70000
base-e2b p4096 32768 25000 45000
base-e4b n128 0 400 650
base-e4b n128 32768 350 550
base-e4b p4096 0 25000 45000
base-e4b p4096 32768 17000 30000
base-26b n128 0 400 700
base-26b p512 0 14000 20000
base-26b p4096 0 22000 35000
base-26b-32k n128 32768 360 560
base-26b-32k p4096 32768 13000 20000
base-26b-128k n128 65536 340 520
base-26b-128k n128 131072 310 450
base-26b-128k p2048 65536 10000 16000
base-26b-128k p2048 131072 7000 11000
qwen3-0.6b p32768 0 60000 100000
laguna-xs n128 0 450 650
laguna-xs n128 32768 420 600
laguna-xs p4096 0 25000 38000
qwen-27b n128 0 165 220
qwen-27b n128 32768 150 195
qwen-27b p4096 0 6500 9500
qwen-27b p4096 32768 5500 8000
qwen-27b-128k n64 131072 120 150
qwen-27b-verify round 1024 1.35 1.2
qwen-a3b n128 0 480 700
qwen-a3b n128 32768 450 640
qwen-a3b p4096 0 25000 40000
qwen-a3b p4096 32768 21000 33000
qwen-a3b-128k n64 131072 380 520
base-31b load 0 6 3
base-31b n128 0 150 210
base-31b n128 32768 130 180
base-31b p4096 0 5500 8500
base-31b p4096 32768 3800 6000
base-31b-64k n128 65536 120 160
base-31b-64k p2048 65536 3000 5000
tail-31b tail 0 1.5 0.8
tail-27b tail 0 1.5 0.95
tail-26b tail 0 0.88 0.57
tail-a3b tail 0 0.95 0.64
verify-31b-8 round 1024 1.27 1.15
verify-31b-8 round 65536 1.35 1.2
verify-31b-16 round 1024 1.6 1.35
verify-31b-16 round 65536 1.9 1.5
verify-31b-32 round 1024 2.2 1.6
verify-26b-4 round 1024 1.45 1.3
verify-26b-8 round 1024 1.7 1.5
verify-26b-16 round 1024 2.2 1.8
streams-26b x4 0 2.5 -
draft-31b-block7 round 1024 1.5 1.35
draft-31b-block7 round 65536 1.6 1.4
draft-31b-block15 round 1024 2.0 1.6
draft-31b-steps4 round 1024 1.45 1.3
draft-26b-block3 round 1024 1.95 1.65
draft-26b-steps2 round 1024 1.8 1.5
draft-e4b-steps3 round 1024 1.8 1.5
draft-26b-streams gain8 1024 1.3 1.6
draft-26b-streams gain64 1024 0.98 1.0
draft-31b-storm gain 1024 0.97 0.99
streams-26b x16 0 6 -
cache-26b-a4b-q8_0 n64 32768 1 -
cache-26b-a4b-q8_0 n64 131072 1 -
cache-26b-a4b-q4_0 n64 131072 1 -
cache-26b-a4b-tq3_0 n64 131072 1 -
cache-31b-q8_0 n64 32768 1 -
cache-31b-q8_0 n64 131072 1 -
cache-31b-q4_0 n64 131072 1 -
cache-31b-tq3_0 n64 131072 1 -
pool-26b n256 65536 0.95 0.98
pool-26b n256 131072 0.95 0.98
pool-26b n256 261888 0.95 0.98
pool-31b n256 65536 0.95 0.98
pool-31b n256 131072 0.95 0.98
pool-31b n256 261888 0.95 0.98
pool-26b-whole n64 261888 1.5 1.7
pool-31b-whole n64 261888 1.6 1.8
pool-31b-whole kv 0 40 -
long-26b-whole p262144 0 1.7 1.9
sparse-26b-flash p65536 0 1.12 1.18
sparse-26b-flash p131072 0 1.28 1.35
sparse-26b-flash p262144 0 1.6 1.7
sparse-31b-flash p65536 0 1.15 1.22
sparse-31b-flash p131072 0 1.35 1.45
sparse-31b-flash p262144 0 1.7 1.85
alike-26b x16 16384 1.0 1.1
alike-26b keys16 16384 12 15
'

found=$(mktemp)
said=$(mktemp)
trap 'rm -f "$found" "$said"' EXIT

for run in "${runs[@]}"; do
    read -r name model kv ask <<<"$run"
    [[ "$name" =~ $want ]] || continue
    make_model "$carat" "$model"
    if [[ "$ask" =~ @([a-z0-9-]+) ]]; then
        make_model "$carat" "${BASH_REMATCH[1]}"
        ask=${ask/@${BASH_REMATCH[1]}/$dir/${BASH_REMATCH[1]}.gguf}
    fi
    start=$SECONDS
    # shellcheck disable=SC2086 # a list of words
    if "$carat" bench --device cuda --strict -m "$dir/$model.gguf" --kv-type "$kv" $ask --json \
        >"$said" 2>"$said.err"; then
        tests <"$said" | sed "s/^/$name $model $kv /" >>"$found"
    else
        echo "$name failed: $(tail -1 "$said.err")"
    fi
    rm -f "$said.err"
    echo "$name: $((SECONDS - start)) s" >&2
done

echo "$("$carat" version), $(gpu_line), $(date -u +%F)"
echo
echo "| run | cache | test | depth | tokens/s | spread | pass, ms | counted as | must | aim | |"
echo "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
awk -v wants="$wants" '
    BEGIN {
        n = split(wants, line, "\n")
        for (i = 1; i <= n; i++)
            if (split(line[i], w, " ") == 5) {
                must[w[1] " " w[2] " " w[3]] = w[4]
                aim[w[1] " " w[2] " " w[3]] = w[5]
            }
    }
    FNR == NR {
        if ($1 ~ /^streams/ && $4 ~ /^n/) one[$2] = $6
        if ($1 ~ /^cache/ && $3 == "f16") f16[$2 $5] = $6
        if ($1 ~ /^pool-.*-at4k$/ && $4 ~ /^n/) shallow[$2] = $6
        if ($1 ~ /^(pool|long)-[^-]*$/) pooled[$2 $5 ($4 ~ /^[np]/ ? "" : $4)] = $4 == "kv" ? $8 : $6
        if ($1 ~ /^sparse-.*-exact$/) exact[$2 $4] = $6
        if ($1 ~ /-apart$/) apart[$2 $4] = $4 ~ /^keys/ ? $8 : $6
        next
    }
    {
        key = $1 " " $4 " " $5
        if ($4 ~ /^(load|kv|keys)/ && !(key in must))
            next
        share = $4 ~ /^(round|gain)/
        as = $4 == "tail" ? $8 / 1e6 : $4 == "kv" ? $8 / (pooled[$2 0 "kv"] ? pooled[$2 0 "kv"] : $8) : $4 ~ /^keys/ ? apart[$2 $4] / $8 : \
             $1 ~ /-whole$/ && pooled[$2 $5] ? pooled[$2 $5] / $6 : $1 ~ /^pool/ && shallow[$2] ? $6 / shallow[$2] : \
             $1 ~ /^sparse/ && exact[$2 $4] ? $6 / exact[$2 $4] : \
             $1 ~ /^alike/ && apart[$2 $4] ? $6 / apart[$2 $4] : \
             $4 == "load" || share ? $8 / 1e9 : $1 ~ /^streams/ ? $6 / one[$2] : \
             $1 ~ /^cache/ && f16[$2 $5] ? $6 / f16[$2 $5] : $6
        asked = key in must
        ok = $4 ~ /^(load|tail|round)/ ? as <= must[key] : as >= must[key]
        printf "| %s | %s | %s | %d | %.1f | ±%.1f %% | %.3f | %s | %s | %s | %s |\n", $1, $3, $4, $5,
            $6, $7, $8 / 1e6, as == $6 ? "" : sprintf($4 == "load" ? "%.2f s" : $4 == "tail" ? "%.2f ms" : "%.2f x", as), must[key], aim[key],
            asked ? (ok ? "met" : "missed") : ""
    }' "$found" "$found"
