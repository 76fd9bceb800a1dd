# Everything runs in .venv, which `make setup` makes. KEEP=1 make demo leaves the demo's service running.
PYTHON_IN_VENV := .venv/bin/python
# So that processes read the byte code that the first one wrote. Without it, each process of `make test` compiles all tests.
unexport PYTHONDONTWRITEBYTECODE
SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help setup generate update-messages demo demo-rest-s3 package test test-package test-slow test-correctness test-chaos test-ledger test-writers test-soak test-deletes test-faults test-security test-monitoring test-deploy test-mutations lint audit sbom requirements image-size jar-digests reporter bench-reporter bench-rewrite bench-s3 bench-width bench-memory \
	bench-decode-once bench-planning bench-equality-deletes bench-upserts bench-fleet bench-cluster bench-unit-costs bench-events \
	scale-model clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-23s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Make .venv, find or install Java, fetch the jars; quick and offline the second time
	@deploy/setup.sh >&2  # the output of other targets may be JSON

demo: setup ## Watch it work: 112 small files become 4, then debt is paid beside a writer (KEEP=1: leave it running)
	@$(PYTHON_IN_VENV) -m deploy.demo $(if $(filter-out 0,$(KEEP)),--keep)

demo-rest-s3: setup ## The demo on a REST catalog and an S3 server instead of local files
	@deploy/setup.sh rest-s3
	@$(PYTHON_IN_VENV) -m deploy.demo --on rest-s3 $(if $(filter-out 0,$(KEEP)),--keep)

test: setup ## Run the tests, all but slow ones and security, in four processes
	@$(PYTHON_IN_VENV) -m tests.services.java_archive 2>.venv/java-archive.log & \
		$(PYTHON_IN_VENV) -m pytest --collect-only -qq >.venv/collected.log 2>&1 & \
		deploy/setup.sh rest-s3 && { wait || true; }
	@$(PYTHON_IN_VENV) -m pytest -m 'not slow and not security' -n 4

audit: setup ## Known vulnerabilities of the image's Python packages (needs a vulnerability service; ARGS="--service osv")
	@deploy/setup.sh tools
	@$(PYTHON_IN_VENV) -m deploy.audit $(ARGS)

sbom: setup ## Write dist/firnline.cdx.json: the Python packages and jars of the image, with digests (CycloneDX)
	@deploy/setup.sh tools
	@$(PYTHON_IN_VENV) -m deploy.sbom

requirements: setup ## Write the image's lists of Python packages with their digests (ARGS="--upgrade")
	@deploy/setup.sh tools
	@deploy/docker/lock.sh $(ARGS)

image-size: setup ## Measure how large the image gets, without Docker, and write it to deploy/docker/size.json
	@$(PYTHON_IN_VENV) -m deploy.image_size

jar-digests: setup ## Fetch all jars anew and write their digests to compactor/spark/jars.sha256
	@$(PYTHON_IN_VENV) -m deploy.jar_digests

test-package: setup ## Run the unit tests of one package, without Spark or servers (PACKAGE=planning)
	@test -n "$(PACKAGE)" -a -d "tests/unit/$(PACKAGE)" || { echo "PACKAGE is the name of a folder in tests/unit"; exit 2; }
	@$(PYTHON_IN_VENV) -m pytest -q -n 0 tests/unit/$(PACKAGE)

test-slow: setup ## Run the slow tests, and the property tests with all their examples
	@deploy/setup.sh rest-s3
	@$(PYTHON_IN_VENV) -m pytest -m slow
	@TEST_EXAMPLES=all $(PYTHON_IN_VENV) -m pytest -m 'not slow' -n 2 tests/properties tests/contracts tests/unit

test-correctness: setup ## Every kind of table, writer and engine, then 300 generated tables, row by row (ARGS="--help")
	@$(PYTHON_IN_VENV) -m tests.correctness $(ARGS)

test-deletes: setup ## Deletes rebased, carried, converted, compacted again: rows in six engines (ARGS="--help")
	@$(PYTHON_IN_VENV) -m tests.correctness.delete_paths $(ARGS)

test-chaos: setup ## Rewrites interleaved at random with other writers, against a serial model (ARGS="--help")
	@$(PYTHON_IN_VENV) -m tests.chaos $(ARGS)

test-ledger: setup ## The ledger against a recount after each step of 500 random histories, PyIceberg and Spark (ARGS="--help")
	@$(PYTHON_IN_VENV) -m tests.ledger $(ARGS)

test-soak: setup ## Half an hour beside writers that never stop: rows, debt, memory, threads, open files (ARGS="--help")
	@deploy/setup.sh rest-s3
	@deploy/setup.sh prometheus
	@$(PYTHON_IN_VENV) -m tests.soak $(ARGS)

test-faults: setup ## Break the broker, catalog, store, disk and processes beside the service; over an hour (ARGS="--help")
	@deploy/setup.sh rest-s3
	@$(PYTHON_IN_VENV) -m tests.faults $(ARGS)

test-writers: setup ## Kafka Connect, Flink, Spark and PyIceberg beside the service: each commit heard in 3 s, every row (ARGS="--help")
	@deploy/setup.sh rest-s3
	@$(PYTHON_IN_VENV) -m tests.writers $(ARGS)

test-security: setup ## Planted secrets, hostile events and requests, TLS, SASL, OAuth2, tampered jars and wheels (ARGS="-k tls")
	@deploy/setup.sh rest-s3
	@deploy/setup.sh image-packages
	@$(PYTHON_IN_VENV) -m pytest -q -s -n 0 -m security $(ARGS) tests/security

test-monitoring: setup ## Alerts and dashboards: promtool's tests, and a real Prometheus that scrapes a working service
	@deploy/setup.sh prometheus
	@$(PYTHON_IN_VENV) -m pytest -q -s -rs tests/unit/deploy/test_alerts.py tests/unit/deploy/test_dashboards.py \
		tests/integration/test_service.py -k "alert or dashboard or promtool or expressions or runbook or waiting_events or prometheus"

test-deploy: setup ## The image built, run beside a real broker and stopped (where docker is); compose file and manifests
	@$(PYTHON_IN_VENV) -m pytest -s -rs tests/unit/deploy/test_deployment.py tests/unit/deploy/test_kubernetes.py tests/integration/test_image.py

test-mutations: setup ## Break every rule on purpose, see that a test notices (ARGS="--rule 2,18")
	@$(PYTHON_IN_VENV) -m tests.mutations $(ARGS)

lint: setup ## Check style, types and the direction of imports
	@$(PYTHON_IN_VENV) -m ruff check
	@$(PYTHON_IN_VENV) -m ruff format --check
	@$(PYTHON_IN_VENV) -m mypy
	@.venv/bin/lint-imports

bench-rewrite: setup ## Rewrite speed beside a copy, Spark, Polars and PyArrow (CASES="a b c d f g"; default a)
	@$(PYTHON_IN_VENV) -m tests.benchmarks.bench_rewrite $(CASES)

bench-s3: setup ## Bytes that pass through the compactor when it rewrites inside S3
	@$(PYTHON_IN_VENV) -m tests.benchmarks.bench_s3

bench-width: setup ## What rewritten wide tables cost their readers: 10, 200 and 2,000 columns
	@$(PYTHON_IN_VENV) -m tests.benchmarks.bench_width

bench-memory: setup ## Peak memory of a splice of 10 GB and of an encode
	@$(PYTHON_IN_VENV) -m tests.benchmarks.bench_memory

bench-decode-once: setup ## 500 commits into one bucket: how often a byte is decoded and copied
	@$(PYTHON_IN_VENV) -m tests.benchmarks.bench_decode_once

bench-planning: setup ## Planning a table of a million files, beside Java and Spark (ARGS="--help")
	@$(PYTHON_IN_VENV) -m tests.benchmarks.bench_planning $(ARGS)

bench-equality-deletes: setup ## What 1 to 100 equality delete files cost a scan in Spark and PyIceberg (ARGS="--help")
	@$(PYTHON_IN_VENV) -m tests.benchmarks.bench_equality_deletes $(ARGS)

bench-upserts: setup ## One hour of upserts as Flink writes them, compressed in time: rewrites, delete files (ARGS="--help")
	@$(PYTHON_IN_VENV) -m tests.benchmarks.bench_upserts $(ARGS)

bench-fleet: setup ## The service on 1,000 tables: latency, catalog calls, processor time, memory (ARGS="--help")
	@deploy/setup.sh rest-s3
	@$(PYTHON_IN_VENV) -m tests.benchmarks.bench_fleet $(ARGS)

bench-reporter: setup ## What the metrics reporter adds to a commit of Spark (ARGS="--help"; needs a JDK)
	@$(PYTHON_IN_VENV) -m tests.benchmarks.bench_reporter $(ARGS)

bench-cluster: setup ## Slots of a real Spark cluster that grows: how soon they follow, how much of their time is used (ARGS="--help")
	@$(PYTHON_IN_VENV) -m tests.benchmarks.bench_cluster $(ARGS)

bench-events: setup ## How many commit events of each format one core decodes in a second (ARGS="--help")
	@$(PYTHON_IN_VENV) -m tests.benchmarks.bench_events $(ARGS)

bench-unit-costs: setup ## What one event, look, count, run and table costs; inputs of scale-model (ARGS="--help")
	@deploy/setup.sh rest-s3
	@$(PYTHON_IN_VENV) -m tests.benchmarks.bench_unit_costs $(ARGS)

scale-model: setup ## Services, executors, calls and dollars for a large lake: a calculation (ARGS="--help")
	@$(PYTHON_IN_VENV) -m tests.benchmarks.scale_model $(ARGS)

generate: setup ## Write the generated pages under docs/ and the Grafana dashboards
	@$(PYTHON_IN_VENV) -m deploy.generate
	@$(PYTHON_IN_VENV) -m tests.mutations.page
	@$(PYTHON_IN_VENV) -m tests.benchmarks.scale_model --page > docs/scale.md

update-messages: setup ## Write the messages for invalid input anew (tests/contracts/invalid_input.yaml); read the difference
	@$(PYTHON_IN_VENV) -m tests.contracts.invalid_input

reporter: setup ## Build dist/firnline-iceberg-reporter-VERSION.jar: with it Java writers announce their commits (needs a JDK)
	@$(PYTHON_IN_VENV) -m deploy.reporter.build

package: setup reporter ## Build wheel, sdist and the reporter's jar into dist/ (needs a JDK)
	@$(PYTHON_IN_VENV) -m build --no-isolation

clean: ## Remove .venv and everything that was built
	@rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
