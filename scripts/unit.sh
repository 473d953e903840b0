#!/usr/bin/env bash
# Runs all tests, by nextest where it is installed (it runs each test in a process of its own), else by cargo test.
set -euo pipefail
cd "$(dirname "$0")/.."

if cargo nextest --version > /dev/null 2>&1; then
    exec cargo nextest run --workspace --no-fail-fast
fi
exec cargo test --workspace --no-fail-fast
