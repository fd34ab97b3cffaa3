# One virtual environment in the project's root; nothing is reinstalled while these two files stay the same.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_ARGS ?=

SEEDS ?= $(shell seq 0 99)
SEED_TESTS ?= tests/estimators/test_mlp.py tests/estimators/test_cv.py tests/compare/test_answer.py

.PHONY: setup demo test test-data test-seeds test-oldest lint check bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) not found: install Python 3.11 or pass PYTHON=/path/to/python"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: $(STAMP)
	# One thread per worker: more would only wait for each other. Tests that wait for processes may fail on a busy machine: what
	# fails is run once more, alone, and must pass then.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(PYTEST_ARGS) || OMP_NUM_THREADS=1 $(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(PYTEST_ARGS)

test-data: $(STAMP)
	RLPLOSS_TEST_NETWORK=1 $(BIN)/python -m pytest -m network $(PYTEST_ARGS)

# Estimators and comparisons must be green with any seed; two at a time, about two hours for all. SEEDS="3 14" for some of them.
test-seeds: $(STAMP)
	@mkdir -p build/seeds
	@printf '%s\n' $(SEEDS) | OMP_NUM_THREADS=1 xargs -P 2 -I{} sh -c 'RLPLOSS_TEST_SEED=$$1 $(BIN)/python -m pytest -p no:cacheprovider \
	  $(SEED_TESTS) $(PYTEST_ARGS) > build/seeds/$$1.log 2>&1 && echo "seed $$1: $$(tail -n 1 build/seeds/$$1.log)" \
	  || { echo "seed $$1 failed: see build/seeds/$$1.log"; exit 1; }' sh {}

# The oldest scikit-learn that is promised; `make test` has the newest.
test-oldest: $(STAMP)
	test -d build/oldest || $(BIN)/python -m pip install --quiet --no-deps --target build/oldest "scikit-learn==1.6.*"
	OMP_NUM_THREADS=1 PYTHONPATH=build/oldest $(BIN)/python -m pytest -n 2 tests/estimators $(PYTEST_ARGS)

# PART=store, checkpoints, fuzz, guided or long; TORTURE_ARGS="--kills 20 --cases 1000 --runs 200" changes the sizes.
.PHONY: torture
torture: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture $(PART) $(TORTURE_ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test

bench: $(STAMP)
	$(BIN)/python -m benchmarks.run

# How many modules and functions a reader opens to follow one loss, one fit, one reproduce, one compare.
.PHONY: walk
walk: $(STAMP)
	$(BIN)/python -m benchmarks.walk

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
