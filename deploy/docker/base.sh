#!/usr/bin/env bash
# Makes a base for images from Debian's packages, where none can be pulled. As root:
#
#   deploy/docker/base.sh base.tar && docker import base.tar driftless-base
#
# It is this machine's own release, since binaries that were built here want its C library; with etcd, and with python3
# for the examples. Bootstrapping takes minutes; a file that is there already is left as it is.
set -euo pipefail
tar=${1:?usage: base.sh FILE}
[ ! -f "$tar" ] || exit 0
# shellcheck disable=SC1091 # the machine's own
. /etc/os-release
[ "$ID" = debian ] || { echo "this is no Debian, whose packages the base is made of" >&2; exit 1; }

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
# The mirror that apt uses; else debootstrap's own.
# shellcheck disable=SC2016 # apt fills it in
mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $VERSION_CODENAME" 2> /dev/null | head -n 1 || true)
debootstrap --variant=minbase --include=etcd-server,etcd-client,python3 \
    "$VERSION_CODENAME" "$made/root" ${mirror:+"$mirror"} > "$made/log" 2>&1 \
    || { tail -n 5 "$made/log" >&2; exit 1; }
rm -rf "$made/root"/var/{lib/apt/lists,cache/apt/archives}/* "$made/root"/usr/share/{doc,locale,man}/*
# In one move, so that a broken attempt is no base.
mkdir -p "$(dirname "$tar")"
tar --one-file-system -C "$made/root" -cf "$tar.part" .
mv "$tar.part" "$tar"
