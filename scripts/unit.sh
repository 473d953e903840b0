#!/usr/bin/env bash
# Runs all tests, by nextest where it is installed (it runs each test in a process of its own), else by cargo test. Says in
# the end what could not be tested here.
set -euo pipefail
cd "$(dirname "$0")/.."

# Noted by the tests; see tests/src/skip.rs.
SKIPPED=${CARGO_TARGET_DIR:-target}/debug/skipped-tests
rm -f "$SKIPPED"
show_skipped() { if [ -s "$SKIPPED" ]; then sort -u "$SKIPPED" >&2; fi; }
trap show_skipped EXIT

if cargo nextest --version > /dev/null 2>&1; then
    cargo nextest run --workspace --no-fail-fast
else
    cargo test --workspace --no-fail-fast
fi
