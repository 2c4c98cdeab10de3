#!/bin/sh
# Everything a GPU must answer, in one call of a few minutes: the ops of the CUDA device against the
# CPU reference, row invariance, tiny models against their golden logits; greedy answers of the
# bundled model on both devices; all of these once more with the kernels of a card of 8.6; logits of
# published widths beside the CPU's; how many of
# its answers depend on company; then, where the toolkit's checker is there, the quick checks once more
# under it. Build first, anywhere: make cuda cuda-check.
#
#     tools/gpu_check.sh [DIRECTORY]        where carat and cuda_check are; default build/cuda
#
# Run in the root of the source tree. Exit status 0 only if all agreed.
set -u
dir=${1:-build/cuda}
check=$dir/cuda_check
out=/tmp/gpu_check.$$
bad=0
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null
start=$(date +%s)
since() { echo "$(($(date +%s) - start)) s"; }
# One part a processor, for the reference is what takes the time: of four times as many parts as
# processors all end about together. $1: "own" or a card to imitate; $2: --quick or nothing.
n=$(($(nproc) * 4))
kernels() {
    [ "$1" = own ] || export CARAT_CARD="$1"
    for kind in --models --ops; do
        [ $kind = --models ] && quick= || quick=$2
        seq 0 $((n - 1)) | xargs -P "$(nproc)" -n 1 \
            sh -c '"$1" $4 $5 --part "$6/$2" >"$3.$4.$6" 2>&1 || echo "FAIL  part $6 of $4 ended with $?" >>"$3.$4.$6"' \
            sh "$check" "$n" "$out" $kind "$quick"
        echo "$1: $kind: $(since)"
    done
    cat $out.--* | grep -vE '^(ok|cuda|[0-9]+ checks|NVIDIA)'
    cat $out.--* | awk -v want=$((2 * n)) '/^[0-9]+ checks/ { ran += $1; bad += $3; parts++ }
        END { printf "%d checks, %d failed, in %d parts of %d; ", ran, bad, parts, want
              exit bad || parts != want }' || bad=1
    since
    rm -f $out.--*
    unset CARAT_CARD
}
kernels own ""
kernels 8.6 --quick
"$check" --models memory >"$out.memory" 2>&1 || { # what a session takes of a GPU that it has alone
    bad=1
    grep -v '^ok' "$out.memory"
}
echo "memory alone: $(tail -1 "$out.memory"); $(since)"

same=0
while read -r prompt; do
    "$dir/carat" run --greedy -q -n 256 --device cpu "$prompt" </dev/null >$out.cpu 2>$out.err &&
        "$dir/carat" run --greedy -q -n 256 --device cuda "$prompt" </dev/null >$out.gpu 2>>$out.err &&
        "$dir/carat" run --greedy -q -n 256 --device cuda --card 8.6 "$prompt" \
            </dev/null >$out.gpu86 2>>$out.err
    if [ $? = 0 ] && [ -s $out.cpu ] && cmp -s $out.cpu $out.gpu && cmp -s $out.cpu $out.gpu86; then
        same=$((same + 1))
    else
        bad=1
        echo "FAIL  answers differ: $prompt"
        cat $out.err
    fi
done <<'END'
What is 2+2?
Tell me about the sea.
Write a poem about a cat.
Who are you?
What is 17 + 25?
What is 91 - 38?
What is 6 * 7?
Sort these words: pear apple fig
Reverse these words: one two three
Copy this: a b c d e f g
How many words are in: the cat sat on the mat
What is the largest of 3 19 7?
What does carat do?
Which model does carat run?
What is the capital of France?
Say hello.
What is 123 + 456?
Sort these numbers: 9 4 7 1
Copy this: xylophone
Are you a person?
END
[ $same = 20 ] || bad=1
echo "$same of 20 greedy answers are the CPU's, on this card and as 8.6; $(since)"

# Widths that people have, which tiny models lack: the logits of 100 tokens against the CPU's in f32.
# A pass of that many rows takes other kernels than an answer. A wrong head or row gives 1 and more;
# rounding, which random weights amplify, 0.001 to 0.06. Random routers tie often: of mixtures a few layers.
tokens=2$(seq -s '' -f ',%g' 1003 1101)
while read -r size layers; do
    model=$out.$size.gguf
    said=
    if "$dir/carat" synth ${layers:+--layers $layers} "$size" "$model" >$out.err 2>&1 &&
        "$dir/carat" logits -m "$model" --all --tokens "$tokens" --device cpu --exact -o $out.x 2>$out.err &&
        "$dir/carat" logits -m "$model" --all --tokens "$tokens" --device cuda -o $out.own 2>$out.err &&
        "$dir/carat" logits -m "$model" --all --tokens "$tokens" --device cuda --card 8.6 -o $out.as86 2>$out.err; then
        own=$(python3 tools/logits_distance.py $out.x $out.own 0.15 100) || own="FAIL $own"
        as86=$(python3 tools/logits_distance.py $out.x $out.as86 0.15 100) || as86="FAIL $as86"
        said="$own, as 8.6 $as86"
    else
        said="FAIL $(tail -1 $out.err)"
    fi
    case $said in *FAIL*) bad=1 ;; esac
    echo "logits of $size${layers:+, $layers layers,} beside the CPU's: $said; $(since)"
    rm -f "$model"
done <<'END'
e2b
12b
gemma3-1b
qwen3-1.7b
qwen3.6-35b-a3b 8
qwen3-30b-a3b 8
26b-a4b 6
gpt-oss-20b 4
END

# No answer may depend on company or on what is reused.
timeout 120 python3 tools/server_answers.py "$dir/carat" --device cuda || bad=1
since

# A sixth of the quick checks of most kernels: the checker is a hundred times slower.
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck; do
        for ops in matmul attend moe norm together; do
            {
                timeout 150 compute-sanitizer --tool "$tool" --error-exitcode 9 \
                    "$check" --quick --part 0/6 "$ops" >"$out.$tool.$ops" 2>&1
                rc=$?
                echo "== $tool $ops: $([ $rc = 124 ] && echo 'not done in time' || tail -1 "$out.$tool.$ops")"
                if [ $rc != 0 ]; then
                    touch $out.bad
                    grep -E '^FAIL|^=+ (Error|Warning|Invalid|Uninit| +and )' "$out.$tool.$ops" |
                        sed 's/ \[[0-9]* hazards\]//' | sort | uniq -c | sort -rn | head -20
                fi
            } &
        done
    done
    wait
    [ -e $out.bad ] && bad=1
    since
fi
rm -f $out.*
[ $bad = 0 ] && echo "gpu_check: all agreed" || echo "gpu_check: something failed"
exit $bad
