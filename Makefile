PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Test workers, by default one per core; JOBS=0 runs the tests in a single process.
JOBS ?= auto
# Arguments for the target's program, for example: make demo ARGS="--help"
ARGS ?=
# The tests build all their models and data sets, and need no Hub.
TEST_ENV := HF_HUB_OFFLINE=1

# Folder with Multi30k: train, val and test_2016_flickr as .en and .de, plain or .gz.
MULTI30K ?=

# Tests from every folder that take a second or two each.
QUICK := $(addprefix tests/,cli/test_convert.py cli/test_evaluate.py conversion/layouts/test_tutorials.py \
	conversion/test_fields.py data/test_batching.py data/test_encoding.py data/test_reading.py export/test_formats.py \
	fast/test_fast.py fast/test_chunked_loss.py inference/test_scoring.py pretrained/test_sizes.py model/test_loss.py \
	model/test_configuration.py model/test_checks.py scripts/benchmarks/test_measure.py search/test_beams.py \
	serving/test_application.py text/test_casing.py documents/test_html.py training/test_arguments.py \
	training/test_search_tuning.py test_errors.py test_files.py)

# pytest's report of the cases that the reliability tests tried.
RELIABILITY_REPORT := build/reliability.xml
# The clone in which mutants are applied.
MUTATION := build/mutation

# The tools of `make sbom` and `make audit` have a separate environment, so that they do not list themselves.
AUDIT_VENV := build/audit-venv
AUDIT_STAMP := $(AUDIT_VENV)/.installed
SBOM := build/sbom.cdx.json

DIST_VENV := build/dist-venv
DIST_STAMP := $(DIST_VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo benchmark gpu-report quick test test-all test-reliability test-matrix test-newest mutation coverage \
	docs lint format sbom audit dist clean

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

benchmark: $(STAMP) ## Measure speed and memory against other implementations (ARGS="--help" lists the options)
	$(BIN)/python scripts/benchmark.py $(or $(ARGS),all)

gpu-report: ## Test and benchmark on a GPU in ten minutes, without .venv (PYTHON=, MULTI30K=FOLDER, ARGS="--help")
	$(PYTHON) scripts/gpu_report.py $(ARGS) --output_dir runs/gpu $(if $(MULTI30K),--multi30k $(MULTI30K))

quick: $(STAMP) ## Run a few tests from every folder, in under a minute
	$(TEST_ENV) $(BIN)/python -m pytest -q -n $(JOBS) -m "not slow" $(QUICK)

test: lint docs ## Run linters and type checks, build the site, and run the fast tests
	$(TEST_ENV) $(BIN)/python -m pytest -q -n $(JOBS) -m "not slow"

test-all: lint docs ## Like test, with the slow tests
	$(TEST_ENV) $(BIN)/python -m pytest -q -n $(JOBS)

test-reliability: $(STAMP) ## Run all reliability cases, such as kills and fuzzing, and update docs/reliability.md
	RELIABILITY=full $(TEST_ENV) $(BIN)/python -m pytest -q -n $(JOBS) --junitxml=$(RELIABILITY_REPORT) tests/reliability
	$(BIN)/python tests/reliability/table.py docs/reliability.md $(RELIABILITY_REPORT)

test-matrix: $(STAMP) ## Run the fast tests on other Pythons and the oldest and newest transformers; update the table
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[matrix]"
	rm -rf build/matrix
	$(BIN)/nox

test-newest: $(STAMP) ## Run the fast tests with the newest releases, beyond pins and bounds (ARGS="TESTS")
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[matrix]"
	$(TEST_ENV) $(BIN)/nox --session newest $(if $(ARGS),-- $(ARGS))

mutation: $(STAMP) ## Count how many of 200 mutants of the library the fast tests kill (ARGS="--help")
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[mutation]"
	rm -rf $(MUTATION) && git clone --quiet . $(MUTATION)
	cd $(MUTATION) && PYTHONPATH=$(abspath $(MUTATION)) $(TEST_ENV) $(abspath $(BIN))/python -m pytest -q -n $(JOBS) -m "not slow" \
		--cov --cov-context=test --cov-report= --junitxml=tests.xml
	cd $(MUTATION) && PYTHONPATH=$(abspath $(MUTATION)) $(abspath $(BIN))/python tests/reliability/mutation.py $(ARGS)

coverage: $(STAMP) ## Measure line and branch coverage of the library by the fast tests; fails below 95 %
	$(TEST_ENV) $(BIN)/python -m pytest -q -n $(JOBS) -m "not slow" --cov --cov-report=term:skip-covered

# The variable silences a notice about a successor of mkdocs.
docs: $(STAMP) ## Build the site in build/site; fails on broken links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

lint: $(STAMP) ## Check with ruff, mypy and import-linter, without changes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## Sort imports, apply safe fixes, format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(AUDIT_STAMP): constraints.txt
	$(PYTHON) -m venv $(AUDIT_VENV)
	$(AUDIT_VENV)/bin/python -m pip install --quiet --constraint constraints.txt cyclonedx-bom pip-audit
	@touch $@

sbom: $(STAMP) $(AUDIT_STAMP) ## Write the software bill of materials of .venv to build/sbom.cdx.json (CycloneDX)
	$(AUDIT_VENV)/bin/cyclonedx-py environment $(VENV) --pyproject pyproject.toml --mc-type library \
		--output-reproducible --output-file $(SBOM)
	@echo $(SBOM)

audit: $(AUDIT_STAMP) ## Check the pinned requirements for vulnerabilities known to PyPI; fails if it cannot
	$(AUDIT_VENV)/bin/pip-audit --strict --disable-pip --no-deps --progress-spinner off --requirement constraints.txt

$(DIST_STAMP):
	$(PYTHON) -m venv $(DIST_VENV)
	$(DIST_VENV)/bin/python -m pip install --quiet --constraint constraints.txt build twine
	@touch $@

dist: $(DIST_STAMP) ## Build sdist and wheel in dist, and check their metadata
	rm -rf dist
	$(DIST_VENV)/bin/python -m build --outdir dist .
	$(DIST_VENV)/bin/twine check --strict dist/*

clean: ## Remove the environment, caches and build output
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
