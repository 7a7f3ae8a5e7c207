# Everything runs from .venv, which is made on first use: `make demo` and `make test` need only
# Python 3.11 or newer. `make PYTHON=/path/to/python3` chooses the Python.

VENV := .venv
STAMP := $(VENV)/.installed
RUN := $(VENV)/bin/python -m
CANDIDATES := $(PYTHON) python3.13 python3.12 python3.11 python3

# Asked of a candidate: shims of version managers can exist and not run, and Debian's Python has no
# ensurepip before python3-venv is installed.
USABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

# `make chaos` simulates this many worlds before it breaks real ones.
SIMULATED_SEEDS := 2000

BENCH_VENV := .venv-bench
BENCH_STAMP := $(BENCH_VENV)/.installed
BENCH_NEEDS := tests/benchmarks/requirements.txt

.PHONY: help demo test test-slow test-all chaos bench bench-quick lint clean

help:
	@echo "make demo       the whole job on real parts, as a story (under a minute)"
	@echo "make test       lint, contracts, types, and the tests on both databases"
	@echo "make test-slow  the tests that take longer"
	@echo "make test-all   both"
	@echo "make chaos      real processes killed, cut off and filled up for CHAOS_SECONDS (600)"
	@echo "make bench      every figure beside its peers, in bench-out/; bench-quick is smaller"
	@echo "make lint       lint, contracts and types only"
	@echo "make clean      removes .venv and everything generated"

demo: $(STAMP)
	@$(VENV)/bin/python examples/acme_outreach/demo.py

test: lint
	@echo "==> pytest: everything but the slow tests"
	@$(RUN) pytest -n 2 -m "not slow and not chaos"

test-slow: $(STAMP)
	@echo "==> pytest: the slow tests"
	@$(RUN) pytest -n 2 -m slow

test-all:
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-slow

chaos: $(STAMP)
	@$(RUN) tests.simulation --seeds $(SIMULATED_SEEDS)
	@$(RUN) pytest -q -m chaos tests
	@$(RUN) pytest -q -s tests/chaos/long_run.py

bench: $(BENCH_STAMP)
	@$(BENCH_VENV)/bin/python -m tests.benchmarks $(FIGURES)

bench-quick: $(BENCH_STAMP)
	@$(BENCH_VENV)/bin/python -m tests.benchmarks --quick $(FIGURES)

lint: $(STAMP)
	@echo "==> ruff: lint"
	@$(RUN) ruff check
	@echo "==> ruff: format"
	@$(RUN) ruff format --check
	@echo "==> import-linter: who may import whom"
	@$(VENV)/bin/python $(VENV)/bin/lint-imports
	@echo "==> mypy: strict"
	@$(RUN) mypy

# A .venv whose Python is gone is made anew.
ifneq ($(shell $(VENV)/bin/python -c "import pip; print('runs')" 2>/dev/null),runs)
.PHONY: $(STAMP)
endif

$(STAMP): pyproject.toml
	@if ! $(VENV)/bin/python -c "import pip; $(USABLE)" 2>/dev/null; then \
		for python in $(CANDIDATES); do \
			"$$python" -c "$(USABLE)" 2>/dev/null && break; python=; \
		done; \
		if [ -z "$$python" ]; then \
			echo "No usable Python 3.11 or newer: tried $(strip $(CANDIDATES))." >&2; \
			echo "Install one with its venv module (Debian: python3-venv)," >&2; \
			echo "or name one: make PYTHON=/path/to/python3" >&2; \
			exit 1; \
		fi; \
		echo "==> $(VENV): $$("$$python" --version)"; \
		"$$python" -m venv --clear $(VENV) || exit 1; \
	fi
	@echo "==> $(VENV): installing the package and its tools, about a minute the first time"
	@$(RUN) pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# The peers have an environment of their own: what they need must not become what the package has.
$(BENCH_STAMP): pyproject.toml $(BENCH_NEEDS) $(STAMP)
	@echo "==> $(BENCH_VENV): installing the package and its peers, about a minute the first time"
	@$(VENV)/bin/python -m venv --clear $(BENCH_VENV)
	@$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		--editable '.[all]' --requirement $(BENCH_NEEDS)
	@touch $@

clean:
	rm -rf $(VENV) $(BENCH_VENV) bench-out build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
