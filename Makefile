# Two commands matter: `make reproduce` and `make test`. Each sets up what it needs first.
# Variables: PYTHON (3.11 or 3.12), ARGS (passed on to kit or pytest), KIT_LOCK=cpu|cuda.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin

.PHONY: help setup reproduce test lint lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv from the hashed lock that fits this host (nothing to do where it is up to date)
	@$(PYTHON) -m kit.setup_env setup

reproduce: setup ## run the scenarios and give a verdict; ARGS="--help" lists the options
	@exec $(BIN)/kit reproduce $(ARGS)

lint: setup ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy

# Torch with more threads than this fights the server for the cores of a small host.
test: lint ## lint, then every test (Docker's where an engine answers); ARGS="-k name" narrows them
	@if $(BIN)/python -c 'import docker; docker.from_env(timeout=5).ping()' 2>/dev/null; then \
	  echo "Docker Engine answers: its tests run too."; marks=(); \
	else \
	  echo "No Docker Engine answers: tests marked docker are left out."; marks=(-m "not docker"); \
	fi; \
	OMP_NUM_THREADS=1 exec $(BIN)/python -m pytest "$${marks[@]}" $(ARGS)

lock: ## make the locks in locks/ anew from the .in files and pyproject.toml
	@$(PYTHON) -m kit.setup_env lock

clean: ## remove the environment and caches; runs/, pairs/ and golden/ stay
	rm -rf .venv .venv.tmp .venv.old .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
