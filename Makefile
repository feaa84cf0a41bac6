# The developer's front door. Every target sets up what it needs; the second time that takes no time.
PYTHON ?= python3
PORT ?= 3000
BIN := .venv/bin
POLICY := data/policies/SmolLM2-135M-Instruct

.PHONY: setup run ui test lint format bench bench-gpu

setup: .venv/.ready $(POLICY)/config.json

.venv/.ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
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

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python -m benchmarks.book

bench-gpu: setup
	$(BIN)/python -m benchmarks.book --gpu
