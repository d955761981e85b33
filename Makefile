# make demo   sets everything up in .venv and runs the main job
# make check  lint, types, unit and property tests with few examples
# make test   demo, lint, types and tests of every kind: what CI runs
# make test-full  the same with all examples, the whole crash matrix, soak and browser; prints the slowest tests
#             KAFKALOG_SOAK_SECONDS=3600 (40) and KAFKALOG_STATE_MACHINE_EXAMPLES=2000 (100) make its longest tests longer,
#             KAFKALOG_SIMULATION_STEPS=100000 (4000 and 6000) the simulations of object roots
#             KAFKALOG_SEED=N repeats what a run has sampled
#             KAFKALOG_KAFKA_VERSION=4.1.0 runs the tests of tests/interop with another Kafka than 4.3.1
# make test-spark SPARK=4.3.0  the tests that start Spark, all cases, with that version of it (no Delta) in .venv-spark-4.3.0
# make test-stores  the contract of object stores, and stores in trouble, with MinIO (needs Go) and Azurite (needs npm)
# make test-clients  clients in Java, Python, Go and JavaScript at the server (needs Go and npm)
# make differential  Spark's Kafka source and sink beside this package on the same data, DIFFERENTIAL_ARGS="--parts batch"
# make bench-server  kafkalog serve beside a broker; likewise bench-many-cores, bench-object-store, bench-follow,
#             bench-growth and the other programs of benchmarks/, with BENCH_ARGS="--help"
# make docs   all pages and the reference of the Python API as a site with a search, build/docs/html/index.html
# Requirements: Python 3.10 to 3.14 and make. Java 17 or newer is looked for, and installed when that is
# possible (scripts/bootstrap.sh). PYTHON=... picks the interpreter for a new .venv.

SHELL := /bin/sh
VENV := .venv
PY := $(VENV)/bin/python
PYTEST_ARGS ?=
BENCH_ARGS ?=
DIFFERENTIAL_ARGS ?=
SPARK ?= 4.3.0

# Everything the project starts listens on this machine alone.
export SPARK_LOCAL_IP ?= 127.0.0.1
# Spark's Python workers run in the same environment.
export PYSPARK_PYTHON := $(CURDIR)/$(PY)
# Thousands of short-lived Python processes are started: none but the first is to compile the package again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo check test test-full test-spark test-stores test-clients docs lint pytest bench differential java chromium clean help

help:
	@sed -n '1,/^$$/s/^# \{0,1\}//p' Makefile

demo: $(VENV)/.installed java
	$(VENV)/bin/kafkalog warm-up
	$(PY) jobs/demo.py

check: export KAFKALOG_TIER = check
check: $(VENV)/.installed-test
	$(MAKE) --jobs 2 lint pytest-check

test: $(VENV)/.installed-test
	$(MAKE) demo
	$(MAKE) --jobs 2 lint pytest

test-full: export KAFKALOG_TIER = full
test-full: PYTEST_ARGS += --durations 40
test-full: chromium $(VENV)/.installed-test
	$(MAKE) demo
	$(MAKE) --jobs 2 lint pytest PYTEST_ARGS="$(PYTEST_ARGS)"

lint: $(VENV)/.installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# Three processes on two cores: some tests wait for other processes.
pytest-check: $(VENV)/.installed-test
	$(PY) -m pytest -n 3 -q tests/unit tests/property -m "not interop and not spark" $(PYTEST_ARGS)

# The tests' Java processes live for seconds: for them the second compiler, and checking Spark's classes, cost more than
# they gain.
QUICK_JAVA := -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote
pytest: export SPARK_SUBMIT_OPTS ?= $(QUICK_JAVA)
# So for their Python processes: numpy would start a thread more in each.
pytest: export OPENBLAS_NUM_THREADS ?= 1
# Three processes on two cores: half of the time such tests wait for a broker, a stream or another process. One that
# crashes ends the run: with another in its place, pytest-xdist would wait for its tests for good.
pytest: $(VENV)/.installed-test java
	$(PY) -m pytest -n 3 --dist loadgroup --no-loadscope-reorder --max-worker-restart 0 $(PYTEST_ARGS)

# An environment of its own for each Spark.
SPARK_VENV := .venv-spark-$(SPARK)
test-spark: export KAFKALOG_TIER ?= full
test-spark: export PYSPARK_PYTHON := $(CURDIR)/$(SPARK_VENV)/bin/python
test-spark: export SPARK_SUBMIT_OPTS ?= $(QUICK_JAVA)
test-spark: export OPENBLAS_NUM_THREADS ?= 1
test-spark: $(SPARK_VENV)/.installed-test java
	$(SPARK_VENV)/bin/python -m pytest --durations 20 tests/spark tests/notebooks tests/unit/spark $(PYTEST_ARGS)

test-stores: export KAFKALOG_TEST_STORES = s3proxy,minio,azurite
test-stores: $(VENV)/.installed-test java
	$(PY) -m pytest -q tests/interop/objects/test_store_contract.py tests/interop/objects/test_faults.py $(PYTEST_ARGS)

test-clients: export KAFKALOG_TEST_CLIENTS = 1
test-clients: $(VENV)/.installed-test java
	@sh scripts/bootstrap.sh kcat
	$(PY) -m pytest -q tests/clients tests/interop/server/test_clients.py $(PYTEST_ARGS)

bench: $(VENV)/.installed-test java
	$(PY) benchmarks/bench_spark.py $(BENCH_ARGS)

# bench-server, bench-many-cores, bench-object-store, bench-follow, bench-stream, bench-growth and the others
bench-%: $(VENV)/.installed-test java
	$(PY) benchmarks/bench_$(subst -,_,$*).py $(BENCH_ARGS)

differential: export SPARK_SUBMIT_OPTS ?= $(QUICK_JAVA)
differential: export OPENBLAS_NUM_THREADS ?= 1
differential: $(VENV)/.installed-test java
	$(PY) benchmarks/compare_kafka_source.py $(DIFFERENTIAL_ARGS)

# An environment of its own: the site is built without this package and what it needs.
DOCS_VENV := .venv-docs
docs: $(DOCS_VENV)/.installed
	$(DOCS_VENV)/bin/python scripts/make_site.py

java:
	@sh scripts/bootstrap.sh java

chromium:
	@sh scripts/bootstrap.sh chromium

$(VENV)/.made: scripts/bootstrap.sh
	@sh scripts/bootstrap.sh venv $(VENV) "$(PYTHON)"
	@touch $@

$(VENV)/.installed: $(VENV)/.made setup.cfg pyproject.toml
	@echo "Installing this package, Spark and all else that it needs in $(VENV): a minute, or more on a slow network"
	@$(PY) -m pip install --quiet --editable ".[spark]"
	@touch $@

# In one call: after the one above, pip would replace the newest Spark with the one that Delta allows.
$(VENV)/.installed-test: $(VENV)/.made setup.cfg pyproject.toml
	@echo "Installing this package and what its tests need in $(VENV): a minute, or more on a slow network"
	@$(PY) -m pip install --quiet --editable ".[test]"
	@touch $(VENV)/.installed $@

# Without Delta, whose release accepts one Spark alone.
$(SPARK_VENV)/.installed-test: setup.cfg pyproject.toml scripts/bootstrap.sh
	@sh scripts/bootstrap.sh venv $(SPARK_VENV) "$(PYTHON)"
	@echo "Installing this package, Spark $(SPARK) and what the tests need in $(SPARK_VENV): a minute, or more on a slow network"
	@$(SPARK_VENV)/bin/python -m pip install --quiet --editable ".[test-without-delta]" "pyspark==$(SPARK)"
	@touch $@

$(DOCS_VENV)/.installed: docs/site/requirements.txt scripts/bootstrap.sh
	@sh scripts/bootstrap.sh venv $(DOCS_VENV) "$(PYTHON)"
	@$(DOCS_VENV)/bin/python -m pip install --quiet --requirement docs/site/requirements.txt
	@touch $@

clean:
	rm -rf $(VENV) .venv-spark-* $(DOCS_VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find pyspark_kafkalog tests jobs benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
