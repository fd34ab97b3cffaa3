# One virtual environment in the project's root; nothing is reinstalled while these two files stay the same.
# PYTHON: the first of these that is a supported version, or the one you name.
PYTHONS := python3 python3.11 python3.12 python3.13 python3.14
PYTHON ?= $(shell for python in $(PYTHONS); do \
  $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs
PYTEST_ARGS ?=
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check
# One thread per worker: more would only wait for each other.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

SEEDS ?= $(shell seq 0 99)
SEED_TESTS ?= tests/estimators/test_mlp.py tests/estimators/test_cv.py tests/compare/test_answer.py

.PHONY: setup demo test test-all test-data test-seeds test-oldest test-installs lint check docs links dist bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || test -n "$(PYTHON)" || { echo "no Python from 3.11 to 3.14 found: install one, or pass PYTHON=/path/to/python"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e ".[dev]"
	@touch $@

$(DOCS_STAMP): $(STAMP)
	$(PIP) -e ".[dev,docs]"
	@touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

# Some seven minutes on two cores. Tests that wait for processes may fail on a busy machine: what fails is run once more, alone, and
# must pass then.
test: $(STAMP)
	$(PYTEST) -n 2 -m "not slow" $(PYTEST_ARGS) || $(PYTEST) --last-failed --last-failed-no-failures none $(PYTEST_ARGS)

# `make test` and the rest: kills, clusters, compilers, processes.
test-all: test
	$(PYTEST) -n 2 -m slow $(PYTEST_ARGS) || $(PYTEST) --last-failed --last-failed-no-failures none $(PYTEST_ARGS)

test-data: $(STAMP)
	RLPLOSS_TEST_NETWORK=1 $(BIN)/python -m pytest -m network $(PYTEST_ARGS)

# Estimators and comparisons must be green with any seed; two at a time, about two hours for all. SEEDS="3 14" for some of them.
test-seeds: $(STAMP)
	@mkdir -p build/seeds
	@printf '%s\n' $(SEEDS) | OMP_NUM_THREADS=1 xargs -P 2 -I{} sh -c 'RLPLOSS_TEST_SEED=$$1 $(BIN)/python -m pytest -p no:cacheprovider \
	  $(SEED_TESTS) $(PYTEST_ARGS) > build/seeds/$$1.log 2>&1 && echo "seed $$1: $$(tail -n 1 build/seeds/$$1.log)" \
	  || { echo "seed $$1 failed: see build/seeds/$$1.log"; exit 1; }' sh {}

# Every package at the oldest version that pyproject.toml promises, in an environment of its own; `make setup` has the newest ones.
OLDEST := build/oldest
# Old packages warn of newer ones that they use.
OLD_WARNINGS := -W ignore::DeprecationWarning -W ignore::PendingDeprecationWarning -W ignore::FutureWarning
test-oldest: $(STAMP)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(OLDEST)
	$(BIN)/uv pip install --quiet --resolution lowest-direct --python $(OLDEST) -e ".[dev]"
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n 2 -m "not slow" $(OLD_WARNINGS) $(PYTEST_ARGS)

# Wheel and sdist in fresh environments, with every set of extras; writes the table of docs/tested.md.
# INSTALL_PYTHONS="python3.11 python3.13" for several Pythons.
INSTALL_PYTHONS ?= $(BIN)/python
test-installs: $(STAMP)
	$(BIN)/python -m tests.installs $(INSTALL_PYTHONS)

# PART=store, checkpoints, files, fuzz, guided or long; TORTURE_ARGS="--kills 20 --cases 1000 --runs 200" changes the sizes.
.PHONY: torture
torture: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture $(PART) $(TORTURE_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test

# The site, in site/: open site/index.html. Code is executed, figures are drawn, and a warning is an error.
docs: $(DOCS_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -d build/docs/trees docs build/docs/html
	rm -rf site && cp -R build/docs/html site
	@echo "site/index.html"

# Links that leave the site; needs the network.
links: $(DOCS_STAMP)
	$(BIN)/python -m sphinx -b linkcheck --quiet -d build/docs/trees docs build/docs/links

# Wheel and source distribution, in dist/.
dist: $(DOCS_STAMP)
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/python -m twine check --strict dist/*

# Every number of docs/results, README and figures, trained where rows are missing: hours at first; it resumes. CHECK=--check trains
# nothing new. STUDIES="paper survey" for some of them.
STUDIES ?=
.PHONY: results
results: $(DOCS_STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python docs/run_results.py $(STUDIES) $(CHECK)

bench: $(STAMP)
	$(BIN)/python -m benchmarks.run

# How many modules and functions a reader opens to follow one loss, one fit, one reproduce, one compare.
.PHONY: walk
walk: $(STAMP)
	$(BIN)/python -m benchmarks.walk

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist site
