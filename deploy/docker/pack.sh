#!/usr/bin/env bash
# Packs built binaries into images on a given base, for machines that reach no registry:
#
#   deploy/docker/pack.sh BASE [BINARIES]      e.g. deploy/docker/pack.sh debian:bookworm-slim target/release
#
# Makes driftless:local and driftless-etcd:local (or other names, by DRIFTLESS_IMAGE and DRIFTLESS_ETCD_IMAGE), which
# docker-compose.yml asks for. A base may come from deploy/docker/base.sh; with etcd in it, nothing is fetched.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
base=${1:?usage: pack.sh BASE [BINARIES]}
binaries=${2:-$here/../../target/release}

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
for name in driftless driftless-supervisor; do
    # Without what only a debugger reads; most of a build without optimisation.
    strip --strip-debug -o "$context/$name" "$binaries/$name"
done
cp "$here/ready.sh" "$context/driftless-ready"

# The builder that needs no plugin: these files use nothing of the other.
export DOCKER_BUILDKIT=0
build() { # IMAGE FILE
    docker build -q --build-arg BASE="$base" -t "$1" -f "$here/$2" "$context" 2> "$context/.said" \
        || { cat "$context/.said" >&2; exit 1; }
}
build "${DRIFTLESS_IMAGE:-driftless:local}" packed.Dockerfile
build "${DRIFTLESS_ETCD_IMAGE:-driftless-etcd:local}" etcd.Dockerfile
