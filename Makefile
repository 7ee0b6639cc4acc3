# Every target makes the virtual environment it needs. PYTHON chooses the interpreter (3.11 or newer), VENV the folder.
PYTHON ?= python3
VENV ?= .venv

BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo demo-gptq demo-awq test unit lint format bench conformance clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY)  ## inspect, plan, load and ask a small real model over two processes, with an adapter and without
	@PATH="$(abspath $(BIN)):$$PATH" tools/demo.sh

demo-gptq: $(READY)  ## the same with the model quantised to 4 bits by auto-gptq, on first use
	@PATH="$(abspath $(BIN)):$$PATH" tools/demo.sh gptq

demo-awq: $(READY)  ## the same with the model quantised to 4 bits by autoawq, on first use
	@PATH="$(abspath $(BIN)):$$PATH" tools/demo.sh awq

test: lint  ## everything that continuous integration checks
	$(BIN)/python -m pytest -n 2 --dist worksteal

unit: $(READY)  ## the tests without those that drive the whole product in processes of its own
	$(BIN)/python -m pytest -n 2 --dist worksteal $(addprefix --ignore=tests/,integration packaging bench docs tools)

lint: $(READY)  ## style, types and import directions
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# ROUNDS=5, SIZE=tiny|3g|7b|3g-4bit|serve|adapters, PEERS="transformers vllm", CACHE="hot cold", BALLAST=load|start|off, ONLY="floor loadmaster-tp2-auto"
bench: $(READY)  ## measure loading beside other libraries; options are variables, see docs/benchmark.md
	$(BIN)/python -m bench $(if $(SIZE),--size $(SIZE)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(filter undefined,$(origin PEERS)),,--peers $(PEERS)) \
		$(if $(CACHE),--cache $(CACHE)) $(if $(BALLAST),--ballast $(BALLAST)) $(if $(ONLY),--only $(ONLY)) $(BENCH)

# ONLY="4b-g64" PRODUCERS="auto-gptq autoawq gptqmodel"
conformance: $(READY)  ## compare with files that real producers quantise, see docs/conformance.md
	$(BIN)/python -m conformance $(if $(PRODUCERS),--producers $(PRODUCERS)) $(if $(ONLY),--only $(ONLY)) $(CONFORMANCE)

clean:  ## remove the environment, caches and build output
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find framework hookspecs engine plugins tests tools bench conformance -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so a broken installation is repeated, and a finished one is reused.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "loadmaster needs Python 3.11 or newer; set PYTHON=...")'
	@echo "installing into $(VENV), once; this takes a minute or two"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev,demo]'
	@touch $@
