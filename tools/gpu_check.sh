#!/bin/sh
# Everything a GPU must answer, in one call of a few minutes: the ops of the CUDA device against the
# CPU reference, row invariance, tiny models against their golden logits; then, where the toolkit's
# checker is there, the quick checks once more under it. Build first, anywhere: make cuda-check.
#
#     tools/gpu_check.sh [PROGRAM]        default build/cuda/cuda_check
#
# Run in the root of the source tree. Exit status 0 only if all agreed.
set -u
check=${1:-build/cuda/cuda_check}
bad=0
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null
"$check" || bad=1
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
        echo "== $tool"
        timeout 100 compute-sanitizer --tool "$tool" --error-exitcode 9 "$check" --quick matmul \
            >/tmp/gpu_check.$$ 2>&1 || bad=1
        grep -E "ERROR SUMMARY|RACECHECK SUMMARY|Invalid|hazard|FAIL" /tmp/gpu_check.$$ | head -20
    done
    rm -f /tmp/gpu_check.$$
fi
[ $bad = 0 ] && echo "gpu_check: all agreed" || echo "gpu_check: something failed"
exit $bad
