#!/bin/sh
# engine_oracle.sh TREE MODELS OUT [DEVICES] - what the sessions and batches of a built tree compute, as text.
#
# A session is a batch of one slot, so tests that compare the two cannot see a mistake of both. This
# records what a build computes (bench/record.c): `diff` of the files of two builds says what differs.
#
#     tools/engine_oracle.sh ../before /tmp/models before.txt
#     tools/engine_oracle.sh . /tmp/models after.txt && diff before.txt after.txt
#     tools/engine_oracle.sh . /tmp/models shared.txt cpu,cpu && diff after.txt shared.txt
#
# TREE has libcarat.a and carat, built by `make`. MODELS is a folder of small models, which are made
# where they are missing. Both records come from one machine: random weights depend on its libm.
set -eu
[ $# = 3 ] || [ $# = 4 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2; }
tree=$1 models=$2 out=$3 devices=${4:-cpu}
here=$(dirname "$0")
mkdir -p "$models"
program=$(mktemp) && trap 'rm -f "$program"' EXIT
${CC:-cc} -O1 -std=gnu11 -I"$tree/include" -o "$program" "$here/../bench/record.c" "$tree/libcarat.a" \
    -ljansson -lxxhash -lzstd -lm -ldl -pthread
need() {
    [ -f "$models/$1.gguf" ] || "$tree/carat" synth "$1" "$models/$1.gguf" >/dev/null
}
while read -r model drafter; do
    need "$model"
    echo "##### $model $drafter"
    case $drafter in
    *tiny*) need "$drafter"; "$program" "$models/$model.gguf" "$models/$drafter.gguf" "$devices" ;;
    *) "$program" "$models/$model.gguf" "${drafter:-none}" "$devices" ;;
    esac
done >"$out" <<END
tiny-all
tiny-all lookup
tiny-all mtp-tiny
tiny-all dflash-tiny
tiny-moe mtp-tiny
tiny-gemma3
tiny-gpt-oss lookup
tiny-qwen3 lookup
tiny-qwen3moe
tiny-qwen35 lookup
tiny-nextn nextn
tiny-laguna lookup
tiny-llama3
tiny-embeddinggemma
END
