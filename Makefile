# normplace: `make` alone prints this help.
.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types docs clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
JOBS ?= 2

help: ## show what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

setup: $(VENV)/.demo ## install normplace with what the demo needs, into .venv

demo: $(VENV)/.demo ## run the laptop-scale studies and write the report
	$(BIN)/normplace study extrapolation --scale laptop --out runs
	$(BIN)/normplace study postdeg --scale laptop --out runs
	$(BIN)/normplace study deepergcn --scale laptop --out runs
	$(BIN)/normplace study causalrn --scale laptop --out runs
	$(BIN)/normplace study periln --scale laptop --out runs
	$(BIN)/normplace report runs --out runs/report.html

test: $(VENV)/.dev ## run every test
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

lint: $(VENV)/.dev ## check style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.dev ## check types
	$(BIN)/basedpyright --pythonpath $(BIN)/python

docs: $(VENV)/.docs ## build the documentation into site/
	$(BIN)/mkdocs build --strict --quiet
	@echo "The documentation is at $(CURDIR)/site/index.html"

clean: ## remove the environment and what was made
	rm -rf $(VENV) runs site dist

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "normplace needs Python 3.11 or newer; set PYTHON=python3.11, for example." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# torch goes first and pinned, so that no later package pulls another build of it.
$(VENV)/.torch: $(BIN)/python constraints.txt
	$(PIP) torch numpy
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) --editable '.[lab,charts,graphs]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo pyproject.toml
	$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.demo pyproject.toml
	$(PIP) --editable '.[docs]'
	@touch $@
