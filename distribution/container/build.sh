#!/bin/sh
# Builds the image with what is there. IMAGE: its name; BASE: another image with Python 3.11 or newer to build on;
# BUILD_ARGS: more options for the builder.
set -eu
cd "$(dirname "$0")/../.."

for builder in podman buildah docker; do
    command -v "$builder" >/dev/null 2>&1 && "$builder" info >/dev/null 2>&1 && break
    builder=""
done
if [ -z "$builder" ]; then
    echo "shardd: none of podman, buildah, docker works here" >&2
    exit 1
fi
set -- --file distribution/container/Containerfile --tag "${IMAGE:-shardd}" ${BASE:+--build-arg "BASE=$BASE"} .
[ "$builder" = docker ] || set -- --format docker "$@" # the format of OCI has no health check
exec "$builder" build ${BUILD_ARGS:-} "$@"
