#!/bin/sh
# Prometheus of the distribution, which scrapes a server in tests/doors/test_prometheus.py. Without root, or where the
# distribution has none, nothing is done here: these tests are skipped.
set -eu

command -v prometheus >/dev/null 2>&1 && exit 0
command -v apt-get >/dev/null 2>&1 || exit 0
if [ "$(id -u)" = 0 ]; then
    as_root=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo"
else
    exit 0
fi
echo "shardd: installing prometheus"
$as_root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends prometheus >/dev/null ||
    echo "shardd: the package could not be installed; its tests are skipped" >&2
