#!/usr/bin/env bash
# The whole story in a minute: a cluster, a service, a crash, and how it comes back. Leaves nothing running.
#
# Builds without optimisation, since that is what takes longest on a cold machine; DEMO_PROFILE=release for the other.
set -euo pipefail
cd "$(dirname "$0")/.."

PROFILE=${DEMO_PROFILE:-dev}
TARGET=${CARGO_TARGET_DIR:-target}
BIN=$TARGET/$([ "$PROFILE" = dev ] && echo debug || echo "$PROFILE")/driftless

if [ -t 1 ]; then BOLD=$'\e[1m' DIM=$'\e[2m' OFF=$'\e[0m'; else BOLD='' DIM='' OFF=''; fi
say() { printf '\n%s%s%s\n' "$BOLD" "$*" "$OFF"; }
run() {
    printf '%s$ driftless %s%s\n' "$DIM" "$*" "$OFF"
    "$BIN" "$@"
}
millis() { echo $(($(date +%s%N) / 1000000)); }

DATA=''
DEV=''

# Whatever still runs out of our data dir; nothing else is ever signalled.
left_over() {
    local pid cwd
    for pid in /proc/[0-9]*; do
        cwd=$(readlink "$pid/cwd" 2> /dev/null || true)
        if [[ $cwd == "$DATA"/* ]] || tr '\0' ' ' 2> /dev/null < "$pid/cmdline" | grep -qF "$DATA/"; then
            echo "${pid#/proc/}"
        fi
    done
}

clean_up() {
    local status=$?
    trap - EXIT INT TERM
    if [ -n "$DEV" ] && kill -0 "$DEV" 2> /dev/null; then
        "$BIN" delete service web --timeout 10s > /dev/null 2>&1 || true
        kill "$DEV" 2> /dev/null || true
        wait "$DEV" 2> /dev/null || true
    fi
    if [ -n "$DATA" ]; then
        local pids
        pids=$(left_over | grep -vx "$$" || true)
        # shellcheck disable=SC2086 # a list of pids
        [ -z "$pids" ] || kill -KILL $pids 2> /dev/null || true
        if [ "$status" != 0 ] && [ -f "$DATA/dev.log" ]; then
            say "The cluster's last words"
            tail -n 20 "$DATA/dev.log"
        fi
        rm -rf "$DATA"
    fi
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# name pid port, one line an instance.
instances() {
    "$BIN" get instances -l app=web -o json | python3 -c '
import json, sys
for i in json.load(sys.stdin)["items"]:
    s = i.get("status", {})
    print(i["metadata"]["name"], s.get("pid", 0), s.get("ports", {}).get("http", 0))'
}

say "Building (minutes the first time, seconds later)"
cargo build --profile "$PROFILE" --bins

DATA=$(mktemp -d "${TMPDIR:-/tmp}/driftless-demo.XXXXXX")
PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export DRIFTLESS_SERVER=127.0.0.1:$PORT

say "A cluster on this machine: server, controller and agent in one process"
printf '%s$ driftless dev --data-dir %s --listen %s &%s\n' "$DIM" "$DATA" "$DRIFTLESS_SERVER" "$OFF"
"$BIN" dev --data-dir "$DATA/cluster" --listen "$DRIFTLESS_SERVER" > "$DATA/dev.log" 2>&1 &
DEV=$!
until "$BIN" get nodes -o name > "$DATA/nodes" 2> /dev/null && [ -s "$DATA/nodes" ]; do
    kill -0 "$DEV" 2> /dev/null || { echo "the cluster did not start" >&2; exit 1; }
    sleep 0.1
done
run wait "$(cat "$DATA/nodes")" --for ready --timeout 20s

say "Declare three copies of a web server, and wait until that is true"
run apply -f examples/web.yaml --wait --timeout 60s
run get service,instances -o wide

say "Every instance answers"
while read -r name pid port; do
    page=$(curl -fsS --max-time 5 -o /dev/null -w '%{http_code}' "http://127.0.0.1:$port/")
    printf '  %-24s pid %-8s http://127.0.0.1:%s/  ->  %s\n' "$name" "$pid" "$port" "$page"
done < <(instances)

say "Kill one of the processes, the hard way"
read -r victim pid port < <(instances | head -n 1)
printf '%s$ kill -KILL %s   # %s%s\n' "$DIM" "$pid" "$victim" "$OFF"
started=$(millis)
kill -KILL "$pid"
until [ "$(instances | awk -v n="$victim" '$1 == n { print $2 }')" != "$pid" ]; do
    [ $(($(millis) - started)) -lt 20000 ] || { echo "it is not replaced after 20 s" >&2; exit 1; }
done
"$BIN" wait service web --for ready --timeout 20s > /dev/null 2>&1
until curl -fsS --max-time 1 -o /dev/null "http://127.0.0.1:$(instances | awk -v n="$victim" '$1 == n { print $3 }')/" 2> /dev/null; do
    [ $(($(millis) - started)) -lt 20000 ] || { echo "it does not answer after 20 s" >&2; exit 1; }
done
took=$(($(millis) - started))
run get instances
printf '\n%s%s is back and answers, after %s ms; the others were not touched.%s\n' "$BOLD" "$victim" "$took" "$OFF"

say "Delete it; the processes go first, then the records"
run delete service web

cat << END

${BOLD}That was it, and nothing is left running.${OFF} Try it by hand:

  $BIN dev                                   # in one terminal
  $BIN apply -f examples/web.yaml --wait     # in another
  $BIN get instances -w                      # and in a third
  $BIN scale service web --replicas 10
  $BIN describe service web
  $BIN --help
END
