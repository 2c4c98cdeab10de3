#!/bin/sh
# Prints docs/cards.md: what carat run chooses on common cards for published models, by the planner
# (carat inspect --gpu) over files without weights (carat synth --hollow). No GPU is needed.
# Usage: tools/cards.sh ./carat
set -eu
carat=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

cat <<'EOF'
# Cards and models

What `carat run -m FILE` chooses without options on a card with nothing else on it ([gpu.md](gpu.md#it-fits-by-itself)
says in which order). `make cards` writes this page from the planner, `make docs` compares. The plans are those of Q4_K_M and
Q8_0 files of the published shapes; `carat inspect --gpu 24GB FILE` prints the plan of any other file.

*Computed tokens/s* are the card's nominal bandwidth divided by the bytes of weights that a token reads, for models that are
wholly on the GPU. They are no measurements: they are an upper bound at an empty context, of which GPUs reach about 60 to 80 %.
EOF

# SIZE, name, nominal GB/s, compute capability
while read -r size bandwidth card name; do
    printf '\n## %s: %s, %s GB/s\n\n' "$size" "$name" "$bandwidth"
    echo '| model | file | context | keys | on the GPU | computed tokens/s |'
    echo '| --- | --- | --- | --- | --- | --- |'
    while read -r shape title; do
        for type in q4_k_m q8_0; do
            file=$dir/$shape-$type.gguf
            [ -e "$file" ] || "$carat" synth --hollow --vocab none -t "$type" "$shape" "$file" >/dev/null 2>&1
            "$carat" inspect --json --card "$card" --gpu "$size" "$file" 2>/dev/null | awk -v model="$title" \
                -v type="$(echo "$type" | tr a-z A-Z)" -v bandwidth="$bandwidth" '
                { key = $1; gsub(/[":]/, "", key); value = $0; sub(/^[^:]*: */, "", value); gsub(/[",]/, "", value); v[key] = value }
                END {
                    if (v["problem"] != "" || v["context"] == "") {
                        printf "| %s | %s | | | does not fit | |\n", model, type
                        exit
                    }
                    on = "all"; speed = sprintf("%d", bandwidth * 1e9 / v["active_bytes_per_token"])
                    if (v["experts"] > 0) on = sprintf("%d %% of the experts", 100 * v["expert_slots"] / v["experts"])
                    else if (v["given_up"] == "experts") on = "all but the experts"
                    if (v["gpu_layers"] < v["layers"]) on = sprintf("%d of %d layers", v["gpu_layers"], v["layers"])
                    if (on != "all") speed = ""
                    printf "| %s | %s | %d | %s | %s | %s |\n", model, type, v["context"], v["keys"], on, speed
                }'
        done
    done <<'EOF'
e2b Gemma 4 E2B
e4b Gemma 4 E4B
12b Gemma 4 12B
26b-a4b Gemma 4 26B-A4B
31b Gemma 4 31B
qwen3.6-27b Qwen3.6 27B
qwen3.6-35b-a3b Qwen3.6 35B-A3B
laguna-xs Laguna XS
EOF
done <<'EOF'
8GB 448 8.6 RTX 3070
12GB 360 8.6 RTX 3060
16GB 717 8.9 RTX 4080
24GB 1008 8.9 RTX 4090
32GB 1792 12.0 RTX 5090
EOF
