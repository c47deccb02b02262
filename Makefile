# One command per intention; `make` alone lists them. Everything runs inside .venv, made on first use.

PYTHON  ?= python3
EXTRAS  ?= dev,docs,demo,bench,dask,test-hf,finetune,report,browser,scale
BIN     := .venv/bin
STAMP   := .venv/.installed
GLUE    ?= ../shared/data/glue
ADAPTERS ?= ../shared/models/minilm-glue
PYTEST_ARGS ?= -n 2 --dist loadfile
SOURCES := src tests docs/hooks $(wildcard examples benchmarks)

.DEFAULT_GOAL := help
.PHONY: help setup format lint types unit unit-4.57 docs test demo figures bench-bytes bench-core bench-evaluate bench-formats bench-models bench-scale clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

# torch goes first and alone, so that the pinned build is in place before anything else asks for it.
$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv (once; again when pyproject.toml or constraints.txt change)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt torch
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	@printf '%s\n' '$(EXTRAS)' > $@

setup: $(STAMP)  ## create .venv and install the package with its tools

format: $(STAMP)  ## rewrite the code in the house style
	@$(BIN)/ruff check --quiet --fix $(SOURCES)
	@$(BIN)/ruff format --quiet $(SOURCES)

lint: $(STAMP)  ## check style, change nothing
	@echo "lint";  $(BIN)/ruff check --quiet $(SOURCES) && $(BIN)/ruff format --quiet --check $(SOURCES)

types: $(STAMP)  ## check types
	@echo "types"; $(BIN)/mypy --no-error-summary

unit: $(STAMP)
	@echo "tests"; $(BIN)/pytest $(PYTEST_ARGS)

# The oldest supported transformers, in an environment of its own; it shares nothing with .venv but the tests.
OLD       := .venv-4.57
OLD_STAMP := $(OLD)/.installed
HF_TESTS  := tests/test_layers.py tests/test_surgery.py tests/test_hf.py tests/test_integrations.py tests/test_bundle.py

$(OLD_STAMP): pyproject.toml constraints-4.57.txt
	@test -x $(OLD)/bin/python || $(PYTHON) -m venv $(OLD)
	@echo "installing transformers 4.57 into $(OLD) (once)"
	@$(OLD)/bin/python -m pip install -qq --disable-pip-version-check -c constraints-4.57.txt torch
	@$(OLD)/bin/python -m pip install -qq --disable-pip-version-check -c constraints-4.57.txt -e '.[test-hf]' pytest pytest-xdist hypothesis scipy
	@touch $@

unit-4.57: $(OLD_STAMP)  ## the model tests on transformers 4.57
	@echo "tests on transformers 4.57"; $(OLD)/bin/python -m pytest -p no:cacheprovider $(PYTEST_ARGS) $(HF_TESTS)

# Quietly, mkdocs does not count warnings, and --strict would let them pass.
docs: $(STAMP)  ## build the pages, broken links are errors
	@echo "docs";  site=$$(mktemp -d) && trap 'rm -rf "$$site"' EXIT && \
	{ NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir "$$site/pages" >"$$site/log" 2>&1 || \
	{ cat "$$site/log"; false; }; }

test:  ## everything a change must pass: lint, types, tests, docs
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory types
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory unit-4.57
	@$(MAKE) --no-print-directory docs
	@echo "all good"

demo: $(STAMP)  ## compress a real model, reload it, compare
	@$(BIN)/python examples/demo.py

figures: $(STAMP)  ## redraw docs/img, and the page of the measured sweep in docs/reports
	@$(BIN)/python examples/figures.py
	@$(BIN)/python examples/report.py

bench-bytes: $(STAMP)  ## token tables as codes: accuracy, coding, reading
	@$(BIN)/python benchmarks/bytes.py

bench-core: $(STAMP)  ## time and quality of every method
	@$(BIN)/python benchmarks/core.py

bench-evaluate: $(STAMP)  ## evaluation beside transformers.pipeline, its interval, and fine-tuning
	@$(BIN)/python benchmarks/evaluate.py --data $(GLUE) --adapters $(ADAPTERS)

bench-formats: $(STAMP)  ## what it costs to read each format of tables
	@$(BIN)/python benchmarks/formats.py

bench-scale: $(STAMP)  ## tables on disk: beside memory, limits, two workers
	@$(BIN)/python benchmarks/scale.py

bench-models: $(STAMP)  ## latency, calibration, time and memory of a compressed model
	@$(BIN)/python benchmarks/models.py

clean:  ## remove everything that can be made again
	@rm -rf .venv build dist out site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find src tests docs examples benchmarks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
