#!/usr/bin/env bash
# Has systemd read the units of deploy/systemd, where it is installed.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v systemd-analyze > /dev/null; then
    echo "SKIPPED: the systemd units were not verified: systemd-analyze is not installed"
    exit 0
fi
units=$(mktemp -d)
trap 'rm -rf "$units"' EXIT
# It asks for programs that are there; ours need not be installed.
for unit in deploy/systemd/*.service; do
    sed "s#/usr/local/bin/driftless#$(command -v true)#" "$unit" > "$units/${unit##*/}"
done
# It says more than that it fails: of what it doesn't know, for instance, it only warns.
said=$(systemd-analyze --man=no verify "$units"/*.service 2>&1) || { echo "$said" >&2; exit 1; }
if grep -F "$units" <<< "$said" >&2; then exit 1; fi
