#!/bin/sh
# Everything that several GPUs must answer, in one call of less than ten minutes: links, bits of logits and
# text against one GPU, a GPU that stalls, and speed against one GPU, with the must and the aim of
# each row. One table at the end. Build first, anywhere: make cuda cuda-check.
#
#     tools/gpus_check.sh [--gpus LIST] [--dry] [DIRECTORY]    where carat and cuda_check are; default build/cuda
#
# LIST: the GPUs, as in 0,1,2,3 (default: all, at most four). A number may come again: 0,0 is one GPU
# opened twice, for a machine with one. Then rows of speed have no must but the last column of decoding.
# --dry: tiny models, CPU devices in the place of GPUs, so that the script itself can be tried anywhere;
# with cuda_check of the emulator in DIRECTORY (build/emu/check) if it is there.
# Run in the root of the source tree. Exit status 0 only if bits are equal, the stall ended, and no
# measured row is below its must.
set -u
gpus="" dry="" dir=build/cuda
while [ $# -gt 0 ]; do
    case $1 in
    --gpus) gpus=$2 && shift ;;
    --dry) dry=1 ;;
    -*) echo "gpus_check: $1: expected --gpus LIST or --dry" >&2 && exit 2 ;;
    *) dir=$1 ;;
    esac
    shift
done
out=$(mktemp -d "${TMPDIR:-/tmp}/gpus_check.XXXXXX") || exit 2
trap 'rm -rf "$out"' EXIT
table=$out/table
bad=0
start=$(date +%s)
end=$((start + ${GPUS_CHECK_SECONDS:-570}))
left() { echo $((end - $(date +%s))); }
say() { echo "$(($(date +%s) - start)) s: $*"; }
carat=$dir/carat
check=$dir/cuda_check
[ -x "$check" ] || check=$dir/emu/check
[ -x "$carat" ] || { echo "gpus_check: no carat in $dir: make cuda cuda-check builds it, or name its DIRECTORY" >&2 && exit 2; }
if [ -n "$dry" ]; then
    gpus=${gpus:-0,1,2,3}
    large=tiny-dense mixture=tiny-moe prompt=256 short=64 deep=128 gen=8
else
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null
    gpus=${gpus:-$(nvidia-smi --query-gpu=index --format=csv,noheader | head -4 | paste -sd,)}
    large=31b mixture=26b-a4b prompt=32768 short=4096 deep=65536 gen=64
fi
n_gpus=$(echo "$gpus" | tr , '\n' | grep -c .)
[ "$n_gpus" -ge 2 ] || { echo "gpus_check: two devices are needed, as in --gpus 0,1 or --gpus 0,0" >&2 && exit 2; }
apart=$(echo "$gpus" | tr , '\n' | sort -u | grep -c .)
# The options that name the first $1 devices.
first() { echo "$gpus" | cut -d, -f1-"$1"; }
devices() {
    if [ -n "$dry" ]; then
        echo "--device $(yes cpu | head -n "$1" | paste -sd,)"
    elif [ "$1" = 1 ]; then
        echo "--device cuda:$(first 1)"
    else
        echo "--gpus $(first "$1")"
    fi
}
counts="2 $([ "$n_gpus" -ge 4 ] && echo 4)"

# name, value, unit, must, aim: a row. A value below its must fails the check; with unit "us" one above it.
row() {
    verdict=$(awk -v v="$2" -v unit="$3" -v must="$4" 'BEGIN {
        if (must == "-") print "-"
        else if (v == "-") print "NOT RUN"
        else print (unit == "us" ? v <= must : v >= must) ? "ok" : "MISSED" }')
    printf '%-58s %10s %-5s %8s %8s  %s\n' "$1" "$2" "$3" "$4" "$5" "$verdict" >>"$table"
}
passed() { # name, 1 if it did
    [ "$2" = 1 ] && verdict=ok || verdict=FAILED
    printf '%-58s %10s %-5s %8s %8s  %s\n' "$1" "$verdict" "" equal equal "$verdict" >>"$table"
}
synth() { # size, file, options
    size=$1 file=$2
    shift 2
    # A part of a tiny model is less than a block of 256.
    case $size in tiny-*) set -- "$@" --type q8_0 ;; esac
    "$carat" synth "$@" "$size" "$file" >"$out/err" 2>&1 || { say "FAIL synth $size: $(tail -1 "$out/err")" && bad=1; }
}

# The splits that this carat has on these devices.
splits=layers
synth tiny-dense "$out/m.gguf"
# shellcheck disable=SC2046
"$carat" logits -m "$out/m.gguf" --tokens 2,3 $(devices 2) --split tensor -o "$out/several" 2>"$out/err" && splits="layers tensor"

# ---- Links ----
if [ -x "$check" ]; then
    for peers in on off; do
        CARAT_PEERS=$peers "$check" --links "$([ -n "$dry" ] && echo 0,0 || echo "$gpus")" >"$out/links" 2>&1 || {
            say "FAIL links: $(tail -1 "$out/links")" && bad=1
        }
        while read -r word a b _ reach _ rate _ us; do
            [ "$word" = link ] || continue
            row "copies from $a to $b, peer access $reach (asked: $peers)" "$rate" GB/s - -
            row "a token's activations from $a to $b" "$us" us - -
        done <"$out/links"
        while read -r word n _ us; do
            [ "$word" = reduction ] || continue
            # The must is of ranks that share one card.
            row "one reduction of 5376 floats, recorded, of $n (asked: $peers)" "$us" us \
                "$([ -z "$dry" ] && [ "$apart" = 1 ] && echo 6 || echo -)" -
        done <"$out/links"
    done
    say "links"
    # ---- A GPU that stalls, and what several do at the same time ----
    # In the emulator they take minutes, so a dry run has an op in their place.
    kind=--models parts="faults overlap stages tensor"
    [ -z "$dry" ] || kind=--ops parts=norm
    for part in $parts; do
        timeout "$(left)" "$check" ${dry:+--brief} "$kind" "$part" >"$out/part" 2>&1
        rc=$?
        grep -E '^FAIL' "$out/part"
        passed "cuda_check $part: $(tail -1 "$out/part" | cut -c1-24)" "$([ $rc = 0 ] && echo 1)"
    done
    say "cuda_check"
else
    say "no cuda_check in $dir: links and stalls are left out"
fi

# ---- Bits: logits of several families, and greedy text ----
tokens=2$(seq -s '' -f ',%g' 3 66)
sizes="tiny-dense tiny-moe tiny-ple tiny-qwen35-keys" # the last: recurrent layers that four ranks can share
[ -n "$dry" ] || sizes="$sizes e4b"
for size in $sizes; do
    synth "$size" "$out/m.gguf"
    for split in $splits; do
        # A tensor split adds in four parts, on one device too.
        # shellcheck disable=SC2046
        "$carat" logits -m "$out/m.gguf" --chunk 24 --tokens "$tokens" $(devices 1) --split "$split" \
            -o "$out/one" 2>"$out/err" ||
            {
                [ "$split" = tensor ] && continue # a family that is not split
                say "FAIL logits of $size: $(tail -1 "$out/err")"
                bad=1
            }
        for n in $counts; do
            # shellcheck disable=SC2046
            "$carat" logits -m "$out/m.gguf" --chunk 24 --tokens "$tokens" $(devices "$n") --split "$split" \
                -o "$out/several" 2>"$out/err"
            rc=$?
            if [ $rc != 0 ] && grep -qE 'cannot be divided|cannot be (used|split) .*tensor' "$out/err"; then
                continue # so few layers, or a family that is not split
            fi
            passed "logits of $size, $split on $n" "$([ $rc = 0 ] && cmp -s "$out/one" "$out/several" && echo 1)"
        done
    done
    rm -f "$out/m.gguf"
done
for n in $counts; do
    same=1
    for text in "What is 17 + 25?" "Tell me about the sea." "Copy this: a b c d"; do
        # shellcheck disable=SC2046
        "$carat" run --greedy -q -n 64 $(devices 1) "$text" </dev/null >"$out/one" 2>"$out/err" &&
            "$carat" run --greedy -q -n 64 $(devices "$n") "$text" </dev/null >"$out/several" 2>>"$out/err" &&
            cmp -s "$out/one" "$out/several" && [ -s "$out/one" ] && continue
        same=0
        tail -1 "$out/err"
    done
    passed "greedy text of the bundled model on $n" $same
done
say "bits"

# ---- Speed ----
synth $large "$out/large.gguf"
say "$large is written"
# Runs carat bench once; prints the tokens a second of the one test. Arguments: file, devices, options.
speed() {
    speed_of=$1 on=$2
    shift 2
    [ "$(left)" -gt 20 ] || { echo "no time is left" >"$out/err" && echo - && return; }
    # shellcheck disable=SC2046
    timeout "$(left)" "$carat" bench --json -r 1 -m "$speed_of" $(devices "$on") "$@" 2>"$out/err" |
        awk -F: '/"median_ts"/ { sub(/,.*/, "", $2); v = $2 } END { printf v ? "%.2f\n" : "-\n", v }'
}
# A row of several over one. Arguments: name, file, devices, "must aim", options.
ratio() {
    name=$1 file=$2 several_n=$3 bounds=$4
    shift 4
    key=$(echo "$file $*" | sed 's/--split [a-z]*//' | cksum | cut -d' ' -f1)
    # shellcheck disable=SC2046
    [ -s "$out/speed.$key" ] || speed "$file" 1 $(echo "$*" | sed 's/--split [a-z]*//') >"$out/speed.$key"
    one=$(cat "$out/speed.$key")
    several=$(speed "$file" "$several_n" "$@")
    value=$(awk -v a="$one" -v b="$several" 'BEGIN { if (a + 0 && b + 0) printf "%.3f", b / a; else printf "-" }')
    [ "$value" = - ] && say "no value for $name: $(tail -1 "$out/err")"
    # A must is of real GPUs, one each. Layers of one GPU over itself: decoding costs at most 3 %.
    if [ -n "$dry" ] || [ "$apart" -lt "$several_n" ]; then
        case $name in layers*decode*) [ -n "$dry" ] && bounds="- -" || bounds="0.97 1.0" ;; *) bounds="- -" ;; esac
    fi
    # shellcheck disable=SC2086
    row "$name ($one to $several tokens/s)" "$value" x $bounds
}
# The first pair of bounds is that of two, the second that of four.
of() { [ "$n" = 2 ] && echo "$1" || echo "$2"; }
for n in $counts; do
    ratio "layers on $n: decode $large" "$out/large.gguf" "$n" "$(of "0.97 1.0" "0.95 1.0")" -p 0 -n "$gen"
    ratio "layers on $n: prompt of $prompt, $large" "$out/large.gguf" "$n" "$(of "1.7 1.9" "3.0 3.6")" -p "$prompt" -n 0
done
CARAT_PEERS=off
export CARAT_PEERS
ratio "layers on 2, peer access off: prompt of $prompt, $large" "$out/large.gguf" 2 "1.6 1.8" -p "$prompt" -n 0
unset CARAT_PEERS
say "layers"
case $splits in
*tensor*)
    for n in $counts; do
        ratio "tensor on $n: decode $large" "$out/large.gguf" "$n" "$(of "1.45 1.7" "1.9 2.6")" -p 0 -n "$gen" --split tensor
        ratio "tensor on $n: decode $large @$deep" "$out/large.gguf" "$n" "$(of "1.5 1.75" "2.1 2.8")" -p 0 -n "$gen" -d "$deep" --blank-depth --split tensor
        ratio "tensor on $n: prompt of $short, $large" "$out/large.gguf" "$n" "$(of "1.6 1.85" "2.6 3.3")" -p "$short" -n 0 --split tensor
    done
    ratio "tensor on 2: decode of 16 streams, $large" "$out/large.gguf" 2 "1.5 1.8" -p 0 -n 64 -s 16 --split tensor
    CARAT_PEERS=off
    export CARAT_PEERS
    ratio "tensor on 2, peer access off: decode $large" "$out/large.gguf" 2 "1.2 1.4" -p 0 -n "$gen" --split tensor
    unset CARAT_PEERS
    rm -f "$out/large.gguf"
    synth $mixture "$out/mixture.gguf"
    ratio "tensor on 2: decode $mixture" "$out/mixture.gguf" 2 "1.1 1.3" -p 0 -n "$gen" --split tensor
    say "tensor"
    ;;
*) ratio "layers on 2: decode of 16 streams, $large" "$out/large.gguf" 2 "- -" -p 0 -n 64 -s 16 ;;
esac

printf '\n%-58s %10s %-5s %8s %8s\n' "over one device; GPUs $gpus" value unit must aim
cat "$table"
grep -qE '(FAILED|MISSED|NOT RUN)$' "$table" && bad=1
say "the end"
[ $bad = 0 ] && echo "gpus_check: nothing failed, nothing is below its must" || echo "gpus_check: something failed"
exit $bad
