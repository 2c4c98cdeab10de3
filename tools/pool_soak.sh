#!/bin/sh
# Sixteen clients on a pool of keys that holds five of them, for SECONDS (default 600, in parts of 300): every answer is
# compared with the one that was given alone, and the server's memory must stay flat. Needs build/carat_test.
#
#     sh tools/pool_soak.sh [SECONDS]
set -eu
cd "$(dirname "$0")/.."
left=${1:-600}
while [ "$left" -gt 0 ]; do
    part=$((left < 300 ? left : 300))
    POOL_SECONDS=$part build/carat_test sixteen_clients_of_a_pool
    left=$((left - part))
done
