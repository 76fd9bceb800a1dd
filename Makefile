# Everything runs in .venv, which `make setup` makes. KEEP=1 make demo leaves the demo's service running.
PYTHON_IN_VENV := .venv/bin/python
SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint bench-rewrite clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv, find or install Java, fetch the jars; quick and offline the second time
	@deploy/setup.sh

demo: setup ## Watch it work: 112 small files become 4, then debt is paid beside a writer (KEEP=1: leave it running)
	@.venv/bin/firnline demo $(if $(filter-out 0,$(KEEP)),--keep)

test: setup ## Run the tests, all but the slow ones
	@$(PYTHON_IN_VENV) -m pytest -m 'not slow'

test-slow: setup ## Run the slow tests
	@$(PYTHON_IN_VENV) -m pytest -m slow

lint: setup ## Check style, types and the direction of imports
	@$(PYTHON_IN_VENV) -m ruff check
	@$(PYTHON_IN_VENV) -m ruff format --check
	@$(PYTHON_IN_VENV) -m mypy
	@.venv/bin/lint-imports

bench-rewrite: setup ## Measure the rewrite engines against each other
	@$(PYTHON_IN_VENV) -m tests.benchmarks.bench_rewrite

clean: ## Remove .venv and everything that was built
	@rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
