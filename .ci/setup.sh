#!/bin/sh
# Checks the tools and headers that the build needs; with root or sudo installs the missing Debian/Ubuntu packages,
# otherwise names them in one line and exits 1. Prints nothing and touches nothing when all are there.
set -eu

missing=""
need() { # package, then a command that succeeds when the package is not needed
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}

header() { printf '#include <%s>\n' "$1" | gcc -E -x c - -o /dev/null; }
sanitizers() { echo 'int main(void){return 0;}' | gcc -fsanitize=address,undefined -x c - -o /dev/null; }
python_is_recent() { python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; }
python_headers() {
    python3 -c 'import pathlib, sys, sysconfig; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'
}

check() {
    missing=""
    need gcc sanitizers
    need libc6-dev header stdlib.h
    need make command -v make
    need pkg-config command -v pkg-config
    need liburing-dev pkg-config --exists liburing
    need libxxhash-dev pkg-config --exists libxxhash
    need liblz4-dev pkg-config --exists liblz4
    need libzstd-dev pkg-config --exists libzstd
    need zlib1g-dev pkg-config --exists zlib
    need libssl-dev pkg-config --exists libssl libcrypto
    need openssl command -v openssl
    need libfuse3-dev pkg-config --exists fuse3
    need fuse3 command -v fusermount3
    need python3 python_is_recent
    need python3-venv python3 -c 'import venv, ensurepip'
    need python3-dev python_headers
}

check
[ -z "$missing" ] && exit 0

install="apt-get install -y --no-install-recommends$missing"
if ! command -v apt-get >/dev/null 2>&1; then
    echo "shardd: these packages are missing (Debian names):$missing" >&2
    exit 1
fi
if [ "$(id -u)" = 0 ]; then
    as_root=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo"
else
    echo "shardd: missing packages, run as root: $install" >&2
    exit 1
fi
echo "shardd: installing$missing"
$as_root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $as_root $install >/dev/null
check
if [ -n "$missing" ]; then
    echo "shardd: still missing after the installation:$missing (Python >= 3.11 is needed)" >&2
    exit 1
fi
