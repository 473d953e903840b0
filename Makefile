# The two to start with: make demo, make test. Everything else is a part of them.
SHELL := /bin/bash
CARGO ?= cargo

.DEFAULT_GOAL := help
.PHONY: help setup setup-test build demo test check unit test-compose bench

help: ## What there is
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## Install what building and the demo need and isn't there
	@scripts/setup.sh build demo

setup-test:
	@scripts/setup.sh build demo test

build: ## Build the optimised binaries
	@scripts/setup.sh build
	$(CARGO) build --release --bins

demo: ## Start a cluster, declare a service, break it, watch it come back
	@scripts/setup.sh build demo
	@scripts/demo.sh

test: setup-test check unit test-compose ## Everything that must be green: format, lints, all tests

check:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	@scripts/units.sh

# The binaries first: the black-box tests run them.
unit:
	$(CARGO) build --workspace --bins
	@scripts/unit.sh

test-compose: ## Bring up docker-compose.yml, break it, watch it converge
	@scripts/setup.sh build test
	@scripts/test-compose.sh

bench: build ## Measure how fast a declaration becomes true
	target/release/driftless bench
