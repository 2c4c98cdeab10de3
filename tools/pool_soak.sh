#!/bin/sh
# Sixteen clients on a pool of keys that holds five of them, for SECONDS (default 600): every answer is compared with the one
# that was given alone, and the server's memory must stay flat. Needs build/carat_test and build/carat.
#
#     sh tools/pool_soak.sh [SECONDS]
set -eu
cd "$(dirname "$0")/.."
POOL_SECONDS=${1:-600} build/carat_test -v sixteen_clients_of_a_pool
