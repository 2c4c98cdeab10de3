# cuda_runs.sh - what cuda_table.sh, cuda_compare.sh and server_table.sh share; sourced. $dir: where models are.

# The loading and the tests of a report of `carat bench --json`: name, depth, tokens/s, spread, ns.
# A test with drafts has three lines: "spec", and in the place of ns, times 1e9, "round" (the time of
# a pass over that of a plain token) and "gain" (the speed over plain).
tests() {
    awk -F'[:,]' '
        /"load_ms"/ { printf "load 0 0 0 %g\n", $2 * 1e6 }
        /"n_prompt"/ { p = $2 + 0 } /"n_gen"/ { g = $2 + 0 } /"n_depth"/ { d = $2 + 0 }
        /"n_streams"/ { s = $2 + 0 } /"median_ts"/ { ts = $2 + 0 }
        /"spec"/ { spec = $2 ~ /true/ } /"plain"/ { spec = 2 }
        /"kv_global_bytes"/ { printf "kv 0 0 0 %g\n", $2 * 1e9 }
        /"tail_ms"/ { printf "tail %d 0 0 %g\n", d, $2 * 1e6 }
        /"pool_used"/ { printf "keys%s %d 0 0 %g\n", s, d, $2 * 1e9 }
        /"speedup"/ { printf "gain%s %d 0 0 %g\n", s ? s : "", d, $2 * 1e9 }
        /"round"/ { printf "round%s %d 0 0 %g\n", s ? s : "", d, $2 * 1e9 }
        /"spread"/ && spec < 2 {
            printf "%s%s %d %g %g %g\n", spec ? "spec" : "", p ? "p" p : s ? "x" s : "n" g, d, ts, 100 * $2,
                (p ? p : s ? s : 1) * 1e9 / ts
        }'
}

# make_model PROGRAM NAME; NAME-planted: attention lies in one block of ten; NAME-skewS: routers use
# experts by a Zipf law.
make_model() {
    local how=() name=$2
    case $name in
    *-planted) how=(--attention-density 0.1) name=${name%-planted} ;;
    *-skew*) how=(--expert-skew "${name##*-skew}") name=${name%-skew*} ;;
    esac
    [ -e "$dir/$2.gguf" ] || "$1" synth "$name" "$dir/$2.gguf" "${how[@]}" >&2
}

gpu_line() {
    local line
    line=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1)
    echo "${line:-no GPU}"
}
