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

# A folder with Multi30k: train, val and test_2016_flickr, as .en and .de, compressed or not.
MULTI30K ?=

# Tests of every folder, each of a second or two.
QUICK := $(addprefix tests/,cli/test_convert.py cli/test_evaluate.py conversion/layouts/test_tutorials.py \
	conversion/test_fields.py data/test_batching.py data/test_encoding.py data/test_reading.py export/test_formats.py \
	fast/test_fast.py fast/test_chunked_loss.py inference/test_scoring.py inference/test_sizes.py model/test_loss.py \
	model/test_configuration.py model/test_checks.py scripts/benchmarks/test_measure.py search/test_beams.py \
	serving/test_application.py text/test_casing.py documents/test_html.py training/test_arguments.py \
	training/test_rdrop.py test_errors.py test_files.py)

# Where pytest reports what the reliability tests tried.
RELIABILITY_REPORT := build/reliability.xml
# The clone whose files the mutants change.
MUTATION := build/mutation

# The tools of `make sbom` and `make audit` have an environment of their own: they are no part of what they list.
AUDIT_VENV := build/audit-venv
AUDIT_STAMP := $(AUDIT_VENV)/.installed
SBOM := build/sbom.cdx.json

.DEFAULT_GOAL := help
.PHONY: help install demo benchmark gpu-report quick test test-all test-reliability test-matrix test-newest mutation coverage \
	docs lint format sbom audit clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## Create .venv with the pinned requirements

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[demo,dev]"
	@touch $@

demo: $(STAMP) ## Train, translate and plot on the built-in corpus (ARGS="--help" lists the options)
	$(BIN)/python scripts/train_translation.py scripts/recipes/demo.yaml $(ARGS)
	$(if $(ARGS),,$(BIN)/python scripts/robustness.py --model runs/demo --toy_corpus --card runs/demo/README.md)

benchmark: $(STAMP) ## Measure speed and memory beside other implementations (ARGS="--help" lists the options)
	$(BIN)/python scripts/benchmark.py $(or $(ARGS),all)

gpu-report: ## Check and measure on a GPU in ten minutes, without .venv (PYTHON=, MULTI30K=FOLDER, ARGS="--help")
	$(PYTHON) scripts/gpu_report.py $(ARGS) --output_dir runs/gpu $(if $(MULTI30K),--multi30k $(MULTI30K))

quick: $(STAMP) ## A check of every folder, in under a minute
	$(TEST_ENV) $(BIN)/python -m pytest -q -n $(JOBS) -m "not slow" $(QUICK)

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
