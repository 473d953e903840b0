#!/usr/bin/env bash
# The cluster of docker-compose.yml, brought up and broken by tests/tests/compose. Says SKIPPED, and why, where that
# can't be done on this machine; DRIFTLESS_COMPOSE_REQUIRED=1 makes that a failure.
#
# Where no Docker engine answers, one is started in namespaces of its own (processes, mounts, network), so that its
# bridges, firewall rules and mounts are nobody else's, and no process of it outlives the script, however that ends.
set -euo pipefail
cd "$(dirname "$0")/.."

TARGET=$(realpath -m "${CARGO_TARGET_DIR:-target}")
# Bootstrapping a base takes minutes; it is made anew when what it is made of changes.
BASE_TAR=$TARGET/compose/base-$(cksum < deploy/docker/base.sh | cut -d ' ' -f 1).tar
TAG=${TAG:-test-$$}
ENGINE=''
ENGINE_DIR=''
export DRIFTLESS_BASE=${DRIFTLESS_BASE:-driftless-base:$TAG}
export DRIFTLESS_IMAGE=driftless:$TAG
export DRIFTLESS_ETCD_IMAGE=driftless-etcd:$TAG

skip() { # REASON
    printf '\nSKIPPED: the compose cluster was not tested: %s\n' "$1"
    [ "${DRIFTLESS_COMPOSE_REQUIRED:-0}" = 0 ] || exit 1
    exit 0
}

engine_answers() { docker info > /dev/null 2>&1; }

compose() {
    if docker compose version > /dev/null 2>&1; then echo "docker compose"; else echo docker-compose; fi
}

run_test() {
    local runner=(cargo test -p driftless-tests --test compose -- --nocapture)
    if cargo nextest --version > /dev/null 2>&1; then
        runner=(cargo nextest run -p driftless-tests --test compose --no-capture)
    fi
    DRIFTLESS_COMPOSE=$(compose) "${runner[@]}"
}

images() {
    if ! docker image inspect "$DRIFTLESS_BASE" > /dev/null 2>&1; then
        docker import "$BASE_TAR" "$DRIFTLESS_BASE" > /dev/null || return 1
    fi
    deploy/docker/pack.sh "$DRIFTLESS_BASE" "$TARGET/debug"
}

test_on_engine() {
    local status=0
    images && run_test || status=$?
    docker rmi -f "$DRIFTLESS_IMAGE" "$DRIFTLESS_ETCD_IMAGE" "driftless-base:$TAG" > /dev/null 2>&1 || true
    return "$status"
}

start_engine() { # DIR DRIVER
    dockerd --data-root "$1/$2" --exec-root "$1/exec-$2" --pidfile "$1/pid" --host "$DOCKER_HOST" \
        --storage-driver "$2" --cgroup-parent "/driftless-$TAG" --log-level warn > "$1/log" 2>&1 &
    local engine=$! _
    for _ in $(seq 600); do
        if engine_answers; then return 0; fi
        kill -0 "$engine" 2> /dev/null || return 1
        sleep 0.1
    done
    # The next one wants its socket, and its pid file gone.
    kill "$engine"
    wait "$engine" || true
    return 1
}

# Within the namespaces. Exits with 3 where no engine can be started.
inside() { # DIR
    ip link set lo up
    export DOCKER_HOST=unix://$1/socket
    if ! start_engine "$1" overlay2 && ! start_engine "$1" vfs; then
        tail -n 3 "$1/log" >&2
        exit 3
    fi
    local status=0
    test_on_engine || status=$?
    kill "$(cat "$1/pid")"
    wait
    exit "$status"
}

in_namespaces() {
    unshare --net --mount --pid --fork true 2> /dev/null || skip "no Docker engine answers, and namespaces can't be made"
    ENGINE_DIR=$(mktemp -d /var/tmp/driftless-engine.XXXXXX)
    trap end_engine EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    TAG=$TAG setpriv --pdeathsig KILL \
        unshare --net --mount --pid --fork --kill-child --mount-proc "$0" inside "$ENGINE_DIR" &
    ENGINE=$!
    local status=0
    wait "$ENGINE" || status=$?
    [ "$status" != 3 ] || skip "dockerd can't be started in namespaces of its own"
    return "$status"
}

end_engine() {
    # With the first process of the namespaces ends every other.
    kill -KILL "$ENGINE" 2> /dev/null || true
    wait "$ENGINE" 2> /dev/null || true
    # Those that end write to the last.
    until rm -rf "$ENGINE_DIR" 2> /dev/null; do sleep 0.1; done
    find /sys/fs/cgroup -depth -type d -path "*/driftless-$TAG*" -exec rmdir {} \; 2> /dev/null || true
}

if [ "${1:-}" = inside ]; then inside "$2"; fi

scripts/setup.sh compose || skip "what it needs can't be installed"
engine_answers || [ "$(id -u)" = 0 ] || skip "no Docker engine answers, and only root may start one"
engine_answers && docker image inspect "$DRIFTLESS_BASE" > /dev/null 2>&1 || deploy/docker/base.sh "$BASE_TAR" \
    || skip "no base for its images can be made"
cargo build --workspace --bins
cargo test -q -p driftless-tests --test compose --no-run
if engine_answers; then test_on_engine; else in_namespaces; fi
