#!/bin/sh
# What only `make deb` needs: dpkg-deb, strip, xz and lintian. With root or sudo the missing packages are installed.
set -eu

missing=""
for each in dpkg-deb:dpkg strip:binutils xz:xz-utils lintian:lintian; do
    command -v "${each%%:*}" >/dev/null 2>&1 || missing="$missing ${each#*:}"
done
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ]; then
    as_root=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo"
else
    echo "shardd: missing packages, run as root: apt-get install -y --no-install-recommends$missing" >&2
    exit 1
fi
echo "shardd: installing$missing"
$as_root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends $missing >/dev/null
