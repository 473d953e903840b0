#!/usr/bin/env bash
# Installs what is missing, by what it's for: build, demo, test, compose. Quick where nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=target/venv
# The Python client's packages; another version list makes the environment anew.
PYTHON_PACKAGES="grpcio==1.85.* grpcio-tools==1.85.*"

# Some users' paths leave the system's programs out.
PATH="$PATH:/usr/sbin:/sbin"
missing=()
need() { # COMMAND PACKAGE
    command -v "$1" > /dev/null || missing+=("$2")
}

install_missing() {
    [ ${#missing[@]} -gt 0 ] || return 0
    local run=()
    if [ "$(id -u)" != 0 ]; then
        if sudo -n true 2> /dev/null; then run=(sudo -n); else refuse; fi
    fi
    command -v apt-get > /dev/null || refuse
    echo "installing: ${missing[*]}"
    # RUNLEVEL=1 keeps packages from starting their services; the tests start their own.
    "${run[@]}" env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get update -qq || refuse
    "${run[@]}" env RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null || refuse
}

refuse() {
    echo "missing: ${missing[*]}" >&2
    echo "install them as root, e.g.: apt-get install ${missing[*]}" >&2
    exit 1
}

make_venv() {
    local stamp="$VENV/.made-of"
    if [ -x "$VENV/bin/python" ] && [ "$(cat "$stamp" 2> /dev/null)" = "$PYTHON_PACKAGES" ]; then return 0; fi
    echo "making $VENV with $PYTHON_PACKAGES"
    rm -rf "$VENV"
    mkdir -p target
    python3 -m venv "$VENV"
    # shellcheck disable=SC2086 # a list of words
    if ! "$VENV/bin/pip" install -q --disable-pip-version-check $PYTHON_PACKAGES; then
        echo "cannot install $PYTHON_PACKAGES: is PyPI, or the index that pip is configured for, within reach?" >&2
        exit 1
    fi
    echo "$PYTHON_PACKAGES" > "$stamp"
}

if ! command -v cargo > /dev/null; then
    echo "cargo is missing: install Rust 1.95 or newer from https://rustup.rs" >&2
    exit 1
fi

for part in "$@"; do
    case $part in
        build)
            need cc gcc
            need protoc protobuf-compiler # etcd-client's build script runs it
            ;;
        demo)
            need python3 python3
            need curl curl
            ;;
        test)
            need etcd etcd-server
            need ip iproute2 # networks that tests pull the cable of
            need strace strace # what kills a process at any step
            need iptables iptables # what lets some of it through
            need prometheus prometheus # and promtool
            python3 -c 'import venv, ensurepip' 2> /dev/null || missing+=(python3-venv)
            ;;
        compose)
            need dockerd docker.io
            docker compose version > /dev/null 2>&1 || need docker-compose docker-compose
            need debootstrap debootstrap
            need iptables iptables
            need ip iproute2
            need strip binutils
            ;;
    esac
done
install_missing
for part in "$@"; do
    [ "$part" != test ] || make_venv
done
