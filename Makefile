# The developer's front door. Every target sets up what it needs; the second time that takes no time.
PYTHON ?= python3
PORT ?= 3000
BIN := .venv/bin
POLICY := data/policies/SmolLM2-135M-Instruct

.PHONY: setup run ui test test-one lint format bench bench-gpu lock clean

setup: .venv/.ready $(POLICY)/config.json

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

$(POLICY)/config.json: | .venv/.ready
	$(BIN)/python scripts/fetch_demo_policy.py

run: setup
	$(BIN)/dg launch --job gsm_symbolic_rebuild
	$(BIN)/dg launch --job needs_care_rebuild

ui: setup
	$(BIN)/dg dev --host 127.0.0.1 --port $(PORT)

# Files keep their order: by the number of their tests, those of few and long ones would come last.
test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# One test or file: `make test-one T=tests/test_trace.py`.
test-one: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(T)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# `make bench BENCH=--quick` runs every part on a few rows.
bench: setup
	$(BIN)/python -m benchmarks.book $(BENCH)

bench-gpu: setup
	$(BIN)/python -m benchmarks.book --gpu

# The newest versions that pyproject.toml allows, in an environment of their own; run the tests with them.
lock:
	rm -rf .cache/lock
	$(PYTHON) -m venv .cache/lock
	.cache/lock/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	(head -n 1 constraints.txt; .cache/lock/bin/python -m pip freeze --exclude-editable) > .cache/constraints.txt
	mv .cache/constraints.txt constraints.txt

# The environment and the caches of the tools; assets, run history and policies stay.
clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
