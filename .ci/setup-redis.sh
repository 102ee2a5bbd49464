#!/bin/sh
# Redis of the distribution, which tests/benchmark/test_servers.py drives beside others. Without root, or where the
# distribution has none, nothing is done here: these tests are skipped.
set -eu

command -v redis-server >/dev/null 2>&1 && exit 0
command -v apt-get >/dev/null 2>&1 || exit 0
if [ "$(id -u)" = 0 ]; then
    as_root=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo"
else
    exit 0
fi
echo "shardd: installing redis-server"
$as_root apt-get update -qq
# RUNLEVEL: its service is not started
$as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y --no-install-recommends redis-server >/dev/null ||
    echo "shardd: the package could not be installed; its tests are skipped" >&2
