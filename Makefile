# Everything a developer types. `make setup` is implied by the others.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
PYTHON ?=

.DEFAULT_GOAL := help
.PHONY: help demo setup browser check lint test test-interop docs mutants fuzz bench bench-quick format clean

# Packages that are heavy, or that need other versions than the rest: an environment each, for the tests of that name. It has the
# extra of that name, or the one that EXTRA_NAME says, and what tests/interop/NAME.txt pins, which wins over constraints.txt.
INTEROP := wandb mlflow tensorboard tinker hud torch
TESTS_torch := tests/interop/test_torch_trl.py  # one environment for all that needs torch and nothing of its own
EXTRA_tinker := tokens
EXTRA_hud := tokens

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(BIN)/.demo ## sample and grade a real language model here: no key, no GPU, no hub
	@$(BIN)/windrow models pull
	$(BIN)/windrow collect examples/demo.jsonl --model local -k 4 --temperature 0.8 --max-tokens 96 --out runs/demo
	@echo
	@$(BIN)/windrow stats runs/demo
	@echo
	@echo "Try next:"
	@echo "  . $(BIN)/activate"
	@echo "  windrow show runs/demo                     every rollout, a line each; with an id, its transcript"
	@echo "  windrow collect examples/demo.jsonl --model local -k 8 --temperature 0.8 --max-tokens 96 --out runs/demo"
	@echo "                                             four more samples a task: what is there is kept"
	@echo "  windrow collect tasks.jsonl --model NAME --base-url http://HOST:PORT/v1 -k 4"
	@echo "                                             your own tasks, your own endpoint"

$(BIN)/.demo: pyproject.toml .ci/venv
	.ci/venv $(VENV) $(PYTHON)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[local]'
	@touch $@

setup: $(STAMP) ## make .venv with the package (editable) and the pinned tools

$(STAMP): pyproject.toml constraints.txt .ci/venv
	.ci/venv $(VENV) $(PYTHON)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps miniwob
	@touch $@

browser: $(STAMP) ## have a Chromium for the tests of the web: Debian's, or Playwright's own
	.ci/chromium $(BIN)/python

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint ## linters, types, layers and the fast tests: under a minute
	$(BIN)/python -m pytest -q -n auto -m "not slow" tests/unit

test: lint browser ## linters, then every test, the slow ones too
	$(BIN)/windrow models pull
	$(BIN)/python -m compileall -q src tests  # the tests start the command hundreds of times
	$(BIN)/python -m pytest -q -n 2 tests

test-interop: $(INTEROP:%=test-interop-%) ## with the real packages, each in an environment of its own (.interop/)

test-interop-%: .interop/%/.stamp
	timeout 900 .interop/$*/bin/python -m pytest -q tests/interop/test_$*.py $(TESTS_$*)

test-interop-hud: $(STAMP)  # the command drives a server of theirs: each has an MCP of its own version

.PRECIOUS: .interop/%/.stamp
.interop/%/.stamp: pyproject.toml constraints.txt tests/interop/%.txt .ci/venv
	@mkdir -p .interop
	.ci/venv .interop/$* $(PYTHON)
	awk -F== '{name = tolower($$1); gsub(/[-_.]+/, "-", name)} !seen[name]++' tests/interop/$*.txt constraints.txt > .interop/$*/pins.txt
	timeout 1500 .interop/$*/bin/python -m pip install --quiet --disable-pip-version-check -c .interop/$*/pins.txt \
	    -r tests/interop/$*.txt -e '.[$(or $(EXTRA_$*),$*)]' pytest pytest-asyncio pytest-timeout pytest-randomly hypothesis
	@touch $@

docs: $(STAMP) ## write docs/cli.md from the commands, the matrix of other systems, and docs/demo.svg from a real run
	$(BIN)/python docs/generate_cli.py
	$(BIN)/python docs/generate_matrix.py
	$(BIN)/windrow models pull
	$(BIN)/python docs/record_demo.py

fuzz: $(STAMP) ## a hundred times the inputs of tests/fuzz: an hour or two
	WINDROW_FUZZ=100 $(BIN)/python -m pytest -q -n 2 --timeout 20000 tests/fuzz

mutants: $(STAMP) ## break the code on purpose: the tests must notice
	$(BIN)/python tests/mutants/run.py

bench: $(STAMP) ## write bench/RESULTS.md: windrow beside the floor and its peers (first time: installs those)
	$(BIN)/python bench/all.py

bench-quick: $(STAMP) ## rollouts per second against the floor, in a minute
	$(BIN)/python bench/quick.py

format: $(STAMP) ## let ruff format and fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what was made here: the venv, caches, builds (never runs/)
	rm -rf $(VENV) .interop dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
