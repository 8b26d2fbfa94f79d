# Everything here works on a fresh machine with Python >= 3.11, make and a C compiler: the first target that needs the
# virtual environment makes it. What drives the device needs a C++ compiler besides: the first target that needs the
# native parts builds them. `make` alone lists the targets.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/ready
NATIVE := $(VENV)/native
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: test-proving test-executing help check-states run-device run storm soak vendor-probe bench test nightly diagrams mutants bench-checker lint native

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

check-states: $(READY)  ## prove the executor's protocol (ARGS="--run 'exit 1*'", ARGS=my.module:RULEBOOK)
	$(BIN)/check-states $(ARGS)

run-device: $(NATIVE)  ## decode prompts on the simulated device, against oracle and baseline (ARGS="--tokens 64")
	$(BIN)/calexec run-device $(ARGS)

run: $(NATIVE)  ## decode prompts for many clients through the executor (ARGS="--faults 0.05 --cancel 0.1 --seed 7")
	$(BIN)/calexec run $(ARGS)

storm: $(NATIVE)  ## a thousand random events for each of a hundred seeds (ARGS="--seeds 1-10 --processes 2")
	$(BIN)/calexec storm $(ARGS)

soak: $(NATIVE)  ## 20,000 jobs: does anything grow? report and plot in build/ (ARGS="--jobs 1000000 --faults 0.01")
	@mkdir -p build
	$(BIN)/calexec soak --report build/soak.json --plot build/soak.png $(ARGS)

vendor-probe: $(NATIVE)  ## ask the device about every vendor fact (ARGS="-s reset_clears_kv=0")
	$(BIN)/calexec vendor-probe $(ARGS)

bench: $(NATIVE)  ## speed and fairness against baseline and goals; half an hour (ARGS="--lines tpot,floor --tokens 200")
	$(BIN)/calexec bench $(ARGS)

# What proves computes and nothing else; what executes has threads and deadlines, and mostly waits. So they run side by
# side, each in a process of its own; with ARGS it is one.
PYTEST  := $(BIN)/python -X dev -W error -m pytest -m "not nightly"
PROVING := tests/checker tests/diagrams tests/examples tests/machines tests/protocol

test: lint $(NATIVE)  ## ruff, mypy, and the fast tests (ARGS="tests/runtime -k kv")
ifneq ($(ARGS),)
	$(PYTEST) $(ARGS)
else
	@$(MAKE) --no-print-directory --keep-going -j2 test-proving test-executing
endif

test-proving: $(NATIVE)
	@$(PYTEST) -o cache_dir=.pytest_cache/proving $(PROVING) >$(VENV)/proving.log 2>&1; code=$$?; \
	echo; cat $(VENV)/proving.log; exit $$code

test-executing: $(NATIVE)
	@$(PYTEST) $(PROVING:%=--ignore=%)

nightly: lint $(NATIVE)  ## every run of the campaign, and every test
	$(BIN)/check-states --tier nightly
	$(BIN)/python -X dev -W error -m pytest -m "nightly or not nightly"

diagrams: $(READY)  ## draw the tables, the joint protocol and a counterexample
	$(BIN)/python -m diagrams

mutants: $(READY)  ## remove every guard conjunct and update in turn; writes docs/mutants.md
	$(BIN)/python -m checker.mutants --markdown docs/mutants.md

bench-checker: $(READY)  ## the C engine against SPIN and the Python engine
	$(BIN)/python -m checker.bench

native: $(READY)  ## build the device's libraries (CALRT_ROOT=<vendor SDK>, BUILD_TYPE=Debug)
	@CALRT_ROOT='$(CALRT_ROOT)' BUILD_TYPE='$(BUILD_TYPE)' $(BIN)/python -m runtime.build_native
	@touch $(NATIVE)

lint: $(READY)  ## ruff and mypy --strict
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# Only what the environment consists of: the code itself is read from the tree (an editable install).
$(READY): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -C wheel.cmake=false -e '.[dev]'
	@touch $@

# Installs the same package again, now with the libraries: the environment alone has none.
$(NATIVE): $(READY) $(shell find runtime/native -type f -name '[!.]*')
	@$(MAKE) --no-print-directory native
