#!/bin/sh
# results.sh - tables made of bench/results.csv.
#
#     bench/results.sh                 README's table of speed: the newest figure of each kind
#     bench/results.sh list [PATTERN]  the newest figure of every kind whose line matches PATTERN
#     bench/results.sh write           puts the table between README's two markers
#     bench/results.sh take MACHINE REVISION COMMAND <TABLE >>bench/results.csv
#                                      lines of a table that cuda_table.sh or cpu_table.sh printed
#     bench/results.sh check           fails when README holds another table, or a line is damaged
#
# results.csv has a line per figure, is append-only and in order of dates. A field holds no comma and
# no quote. Two lines are of one kind when machine, program, model, kv, test and depth are equal:
# the later line is the newer measurement.
#
#     date      day of the measurement
#     revision  of the source; - where it was not noted
#     machine   h200: one NVIDIA H200; h200x2: two of one host. h100: one NVIDIA H100 of 80 GB. zen5-2c: two cores of a shared AMD Zen 5 host with AVX-512;
#               zen5-1c: one thread there. xeon-2c: two cores of a shared Intel Xeon host with AVX-512
#     program   carat, llama.cpp, or peer: figures that were given as a target's yardstick
#     model     size and weights; weights are random (carat synth) unless the model is `bundled`
#     kv        format of cached keys and values
#     test      decode, prompt N, N rows (one pass), N streams (answers in one batch), N clients, ...
#     depth     tokens in the cache before
#     value, unit, command, note
set -eu
cd "$(dirname "$0")/.."
csv=bench/results.csv
begin='<!-- speed: bench/results.sh write -->'
end='<!-- end of speed -->'

check_lines() {
    awk -F, '
        NR == 1 {
            if ($0 != "date,revision,machine,program,model,kv,test,depth,value,unit,command,note") {
                print FILENAME ": the first line does not name the columns"; bad = 1
            }
            next
        }
        NF != 12 || /"/ { print FILENAME ":" NR ": 12 fields without quotes expected"; bad = 1; next }
        $1 !~ /^20[0-9][0-9]-[01][0-9]-[0-3][0-9]$/ || $1 < last {
            print FILENAME ":" NR ": " $1 " is no date, or older than the line before"; bad = 1
        }
        $8 !~ /^[0-9]+$/ || $9 !~ /^[0-9.]+(e[-+][0-9]+)?$/ {
            print FILENAME ":" NR ": depth and value are numbers"; bad = 1
        }
        { last = $1 }
        END { exit bad }' "$csv"
}

speed() {
    awk -F, '
        # 232507 as 232,507
        function thousands(v,   n, s) {
            if (v + 0 < 1000)
                return v
            s = sprintf("%.0f", v)
            for (n = length(s) - 3; n > 0; n -= 3)
                s = substr(s, 1, n) "," substr(s, n + 1)
            return s
        }
        NR > 1 && $4 == "carat" && $10 == "tokens/s" && $6 == "f16" {
            at[$3 " " $5 " " $7 " " $8] = $9
        }
        END {
            n = split("h200 decode 0|h200 decode 32768|h200 prompt_4096 0|h200 prompt_4096 32768|" \
                      "zen5-2c decode 0|zen5-2c prompt_512 0", line, "|")
            split("H200, decode|H200, decode, 32K tokens before|H200, prompt of 4096|" \
                  "H200, prompt of 4096, 32K tokens before|CPU, decode|CPU, prompt of 512", says, "|")
            n_models = split("e2b e4b 26b-a4b 31b", model, " ")
            print "| tokens/s | E2B | E4B | 26B-A4B | 31B |"
            print "| --- | --- | --- | --- | --- |"
            for (i = 1; i <= n; i++) {
                split(line[i], w, " ")
                sub(/_/, " ", w[2])
                row = "| " says[i] " |"
                for (j = 1; j <= n_models; j++) {
                    v = at[w[1] " " model[j] " q4_k_m " w[2] " " w[3]]
                    row = row " " (v == "" ? "" : thousands(v) " ") "|"
                }
                print row
            }
        }' "$csv"
}

list() {
    awk -F, -v want="$1" '
        NR > 1 && $0 ~ want {
            key = $3 "," $4 "," $5 "," $6 "," $7 "," $8
            if (!(key in at)) order[++n] = key
            at[key] = $0
        }
        END {
            print "| machine | program | model | kv | test | depth | value | unit | date | revision | note |"
            print "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
            for (i = 1; i <= n; i++) {
                split(at[order[i]], f, ",")
                printf "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", f[3], f[4], f[5],
                    f[6], f[7], f[8], f[9], f[10], f[1], f[2], f[12]
            }
        }' "$csv"
}

# Columns are found by their names. A run of cuda_table.sh is called after its model: base-26b-32k.
take() {
    awk -F ' *[|] *' -v machine="$1" -v revision="$2" -v command="$3" -v date="$(date -u +%F)" '
        function line(program, model, kv, test, depth, value, unit, note) {
            if (value ~ /^[0-9.]+$/)
                printf "%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s\n", date, revision, machine, program, model, kv,
                    test, depth, value, unit, command, note
        }
        # n128, p4096, x4 or decode 64, prefill 512
        function test_of(t) {
            return t ~ /^(n|decode)/ ? "decode" : t ~ /^x/ ? substr(t, 2) " streams" : \
                   t ~ /^p[0-9]/ ? "prompt " substr(t, 2) : t ~ /^prefill/ ? "prompt " substr(t, 9) : t
        }
        $2 == "run" || $2 == "file" { delete at; for (i = 2; i < NF; i++) at[$i] = i; gpu = $2 == "run"; next }
        !("test" in at) || $2 ~ /^-*$/ { next }
        gpu {
            if (!match($2, /(e2b|e4b|26b|31b)/))
                next
            model = substr($2, RSTART, RLENGTH)
            model = (model == "26b" ? "26b-a4b" : model) " q4_k_m"
            t = $at["test"]
            if ($2 ~ /^rows/)
                line("carat", model, $at["cache"], (t ~ /^p/ ? substr(t, 2) : 1) " rows", 0, $at["pass, ms"], "ms", "one pass")
            else if (t == "load")
                line("carat", model, $at["cache"], t, 0, $at["pass, ms"] / 1000, "s", "from the page cache")
            else
                line("carat", model, $at["cache"], test_of(t), $at["depth"], $at["tokens/s"], "tokens/s", "spread " $at["spread"])
            next
        }
        {
            model = $2
            sub(/-q/, " q", model)
            threads = $at["threads"] " threads"
            line("carat", model, "f16", test_of($at["test"]), $at["depth"], $at["carat, tokens/s"], "tokens/s", threads)
            line("llama.cpp", model, "f16", test_of($at["test"]), $at["depth"], $at["other, tokens/s"], "tokens/s", threads)
        }'
}

# README.md with the table between its markers.
readme() {
    speed >"$tmp/speed"
    awk -v begin="$begin" -v end="$end" -v table="$tmp/speed" '
        $0 == end { inside = 0 }
        !inside { print }
        $0 == begin {
            n++
            inside = 1
            while ((getline line < table) > 0) print line
        }
        END { exit n != 1 || inside }' README.md
}

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
case "${1:-}" in
'') speed ;;
list) list "${2:-.}" ;;
write)
    readme >"$tmp/README.md"
    cp "$tmp/README.md" README.md
    ;;
take) take "${2:?MACHINE}" "${3:?REVISION}" "${4:?COMMAND}" ;;
check)
    check_lines
    readme >"$tmp/README.md" || { echo "README.md: the markers of the speed table are missing"; exit 1; }
    cmp -s "$tmp/README.md" README.md ||
        { echo "README.md: the speed table is not what bench/results.sh prints; run 'make results'"; exit 1; }
    ;;
*)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
