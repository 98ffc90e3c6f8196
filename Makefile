PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One worker for each core; JOBS=0 runs the tests in a single process.
JOBS ?= auto
# Arguments of the demo or the benchmark, for example: make demo ARGS="--help"
ARGS ?=
# Every model and data set that the tests use is made on the spot.
TEST_ENV := HF_HUB_OFFLINE=1

# On a machine with a GPU, `make gpu-check PYTHON=python3` uses a Python that has torch and the extra `train` already,
# and makes no environment.
GPU_PYTHON := $(if $(filter command,$(origin PYTHON)),$(PYTHON),$(BIN)/python)
GPU_STAMP := $(if $(filter command,$(origin PYTHON)),,$(STAMP))
GPU_RUN := $(TEST_ENV) PYTHONPATH=$(CURDIR) $(GPU_PYTHON)
GPU_JOBS ?= 8
GPU_TESTS := tests/gpu tests/model tests/inference tests/training/test_trainer.py
# Parts of the GPU's benchmark, each of at most ten minutes and with a folder of its own in runs/gpu.
PART ?= train generate memory multi30k
GPU_OPTIONS := --device cuda --dtype bfloat16 --preset base --vocab_size 37000
# A folder with Multi30k: train.en, train.de, val.* and test_2016_flickr.*, compressed or not.
MULTI30K ?=
multi30k_file = $(firstword $(wildcard $(MULTI30K)/$(1)) $(wildcard $(MULTI30K)/$(1).gz) $(MULTI30K)/$(1))
multi30k_pair = --$(1)_source_file $(call multi30k_file,$(2).en) --$(1)_target_file $(call multi30k_file,$(2).de)

# Where pytest reports what the reliability tests tried.
RELIABILITY_REPORT := build/reliability.xml
# The clone whose files the mutants change.
MUTATION := build/mutation

# The tools of `make sbom` and `make audit` have an environment of their own: they are no part of what they list.
AUDIT_VENV := build/audit-venv
AUDIT_STAMP := $(AUDIT_VENV)/.installed
SBOM := build/sbom.cdx.json

.DEFAULT_GOAL := help
.PHONY: help install demo benchmark gpu-check gpu-benchmark gpu-train gpu-generate gpu-memory gpu-multi30k test test-all \
	test-reliability test-matrix test-newest mutation coverage docs lint format sbom audit clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## Create .venv with the pinned requirements

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[demo,dev]"
	@touch $@

demo: $(STAMP) ## Train, translate and plot on the built-in corpus (ARGS="--help" lists the options)
	$(BIN)/python scripts/train_translation.py scripts/recipes/demo.yaml $(ARGS)

benchmark: $(STAMP) ## Measure speed and memory beside other implementations (ARGS="--help" lists the options)
	$(BIN)/python scripts/benchmark.py $(or $(ARGS),all)

gpu-check: $(GPU_STAMP) ## The tests of a GPU and the fast tests on it (PYTHON=python3: a Python that has torch, no .venv)
	TEST_DEVICE=cuda $(GPU_RUN) -m pytest -q -n $(GPU_JOBS) -W default -m "not slow" $(GPU_TESTS) $(ARGS)

gpu-benchmark: $(addprefix gpu-,$(PART)) ## Measure on a GPU (PART=train, generate, memory or multi30k; MULTI30K=FOLDER)

gpu-train: $(GPU_STAMP)
	$(GPU_RUN) scripts/benchmark.py train $(GPU_OPTIONS) --tokens 25000 --max_tokens 50000 --steps 20 --rounds 5 \
		--baselines marian --torch_compile --packing --output_dir runs/gpu/train $(if $(MULTI30K),$(call multi30k_pair,train,train)) $(ARGS)

gpu-generate: $(GPU_STAMP)
	$(GPU_RUN) scripts/benchmark.py generate $(GPU_OPTIONS) --batch_size 1 128 --num_beams 1 4 --rounds 5 \
		--baselines marian ctranslate2 --torch_compile --output_dir runs/gpu/generate $(ARGS)

gpu-memory: $(GPU_STAMP)
	$(GPU_RUN) scripts/benchmark.py memory $(GPU_OPTIONS) --memory_tokens 25000 --baselines marian \
		--output_dir runs/gpu/memory $(ARGS)

# Repeated, it goes on from the last checkpoint.
gpu-multi30k: $(GPU_STAMP)
	@test -n "$(MULTI30K)" || { echo "gpu-multi30k: MULTI30K is not set; name the folder of the corpus" >&2; exit 2; }
	$(GPU_RUN) scripts/train_translation.py scripts/recipes/multi30k_narrow.yaml \
		$(call multi30k_pair,train,train) $(call multi30k_pair,validation,val) \
		$(call multi30k_pair,test,test_2016_flickr) --output_dir runs/gpu/multi30k \
		$(if $(wildcard runs/gpu/multi30k/checkpoint-*),--resume_from_checkpoint last) $(ARGS)

test: lint docs ## Linters, type checks, the site and the fast tests
	$(TEST_ENV) $(BIN)/python -m pytest -q -n $(JOBS) -m "not slow"

test-all: lint docs ## The same with the slow tests
	$(TEST_ENV) $(BIN)/python -m pytest -q -n $(JOBS)

test-reliability: $(STAMP) ## Kills, full disks, damaged files, fuzz: all cases, and the table of docs/reliability.md
	RELIABILITY=full $(TEST_ENV) $(BIN)/python -m pytest -q -n $(JOBS) --junitxml=$(RELIABILITY_REPORT) tests/reliability
	$(BIN)/python tests/reliability/table.py docs/reliability.md $(RELIABILITY_REPORT)

test-matrix: $(STAMP) ## The fast tests at the oldest and newest transformers and on other Pythons, and their table
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[matrix]"
	rm -rf build/matrix
	$(BIN)/nox

test-newest: $(STAMP) ## The fast tests with the newest release of everything, without pins and bounds (ARGS="TESTS")
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[matrix]"
	$(TEST_ENV) $(BIN)/nox --session newest $(if $(ARGS),-- $(ARGS))

mutation: $(STAMP) ## How many of 200 small changes to the library the fast tests notice (ARGS="--help")
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[mutation]"
	rm -rf $(MUTATION) && git clone --quiet . $(MUTATION)
	cd $(MUTATION) && PYTHONPATH=$(abspath $(MUTATION)) $(TEST_ENV) $(abspath $(BIN))/python -m pytest -q -n $(JOBS) -m "not slow" \
		--cov --cov-context=test --cov-report= --junitxml=tests.xml
	cd $(MUTATION) && PYTHONPATH=$(abspath $(MUTATION)) $(abspath $(BIN))/python tests/reliability/mutation.py $(ARGS)

coverage: $(STAMP) ## Lines and branches of the library that the fast tests reach; below 95 % it fails
	$(TEST_ENV) $(BIN)/python -m pytest -q -n $(JOBS) -m "not slow" --cov --cov-report=term:skip-covered

# Without the notice that there is a successor of mkdocs.
docs: $(STAMP) ## The site, into build/site; fails at a link that leads nowhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

lint: $(STAMP) ## ruff, mypy and the layers of imports; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Sort imports, apply safe fixes, lay out the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(AUDIT_STAMP): constraints.txt
	$(PYTHON) -m venv $(AUDIT_VENV)
	$(AUDIT_VENV)/bin/python -m pip install --quiet --constraint constraints.txt cyclonedx-bom pip-audit
	@touch $@

sbom: $(STAMP) $(AUDIT_STAMP) ## Software bill of materials of .venv: build/sbom.cdx.json, in CycloneDX
	$(AUDIT_VENV)/bin/cyclonedx-py environment $(VENV) --pyproject pyproject.toml --mc-type library \
		--output-reproducible --output-file $(SBOM)
	@echo $(SBOM)

audit: $(AUDIT_STAMP) ## Look the pinned requirements up in PyPI's list of known vulnerabilities; fails where it cannot
	$(AUDIT_VENV)/bin/pip-audit --strict --disable-pip --no-deps --progress-spinner off --requirement constraints.txt

clean: ## Remove the environment, caches and build products
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
