# Every target sets itself up in .venv; a second call finds it there.

PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3,$(shell command -v $(name))))
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
READY_BARS := $(VENV)/ready-bars

.PHONY: demo test test-ranks test-others bars lint clean
.DEFAULT_GOAL := test

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

$(READY_BARS): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev,clients]'
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev,bars]'  # a newer spmd-types
	command -v chromedriver || apt-get install --yes --quiet chromium chromium-driver \
	|| echo "no chromium: python -m tests.page will say so"
	touch $@

# Two ranks on this machine train a small Llama, and a page of the run is written; run it twice to
# see the second start load.
demo: $(READY)
	OMP_NUM_THREADS=1 LOCKSTEP_STORE=$(CURDIR)/.lockstep \
	$(BIN)/torchrun --standalone --nproc-per-node 2 examples/train_llama.py
	$(BIN)/lockstep report runs/latest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Two processes beside each other, each with half of the work.
EXAMPLES := tests/ranks/test_examples.py

# Hundreds of processes import the package: none of them has to compile it.
test: lint
	$(BIN)/python -m compileall -q lockstep tests
	$(MAKE) --no-print-directory --jobs 2 --output-sync=target test-ranks test-others

test-ranks: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(filter-out $(EXAMPLES),$(wildcard tests/ranks/test_*.py))

test-others: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(wildcard tests/test_*.py) $(EXAMPLES)

# What the project claims, each by the command that shows it; some need other people's packages.
bars: $(READY_BARS)
	OMP_NUM_THREADS=1 $(BIN)/python -m bench.bars

clean:
	rm -rf $(VENV) .lockstep build dist *.egg-info
