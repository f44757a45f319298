# normplace: `make` alone prints this help.
.DEFAULT_GOAL := help
.PHONY: help setup demo studies test lint types docs clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
JOBS ?= 2
TEST_JOBS ?= 3

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

setup: $(VENV)/.demo ## install normplace and the dependencies of the demo into .venv

demo: $(VENV)/.demo ## audit and move a model, run a part of each study and write the report, in minutes
	@$(BIN)/normplace demo --out runs --jobs $(JOBS)

studies: $(VENV)/.demo ## run the five studies in full at laptop scale and write the report
	$(BIN)/normplace study extrapolation --out runs --jobs $(JOBS)
	$(BIN)/normplace study postdeg --out runs --jobs $(JOBS)
	$(BIN)/normplace study deepergcn --out runs --jobs $(JOBS)
	$(BIN)/normplace study causalrn --out runs --jobs $(JOBS)
	$(BIN)/normplace study periln --out runs --jobs $(JOBS)
	$(BIN)/normplace report runs --out runs/report.html

# One thread for each of the processes: more would compete for the same cores. One worker more than two cores, because many
# tests wait for a process that they start. Workers and every such process read compiled modules, also where the environment
# forbids to write them.
test: $(VENV)/.dev ## run all tests
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_JOBS) --dist worksteal

lint: $(VENV)/.dev ## check style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.dev ## check types
	$(BIN)/basedpyright --pythonpath $(BIN)/python

docs: $(VENV)/.docs ## build the documentation into site/
	$(BIN)/zensical build --strict
	@echo "The documentation is at $(CURDIR)/site/index.html"

clean: ## remove .venv and generated files
	rm -rf $(VENV) runs site .cache dist

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "normplace needs Python 3.11 or newer; set PYTHON=python3.11, for example." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# Install the pinned torch first, so that no other package installs another build.
$(VENV)/.torch: $(BIN)/python constraints.txt
	$(PIP) torch numpy
	@touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) --editable '.[charts,graphs]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo pyproject.toml
	$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)/.docs: $(VENV)/.demo pyproject.toml
	$(PIP) --editable '.[docs]'
	@touch $@
