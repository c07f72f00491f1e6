# Needs only python3 (3.11 or later, with pip), git and make. Everything is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
# The number of random graphs of a campaign: make campaign DECISIONS=500 VERDICTS=3000
DECISIONS ?= 5000
VERDICTS ?= 3000
# The number of examples of each property test, and of damaged models: make campaign EXAMPLES=600 DAMAGED=8000
EXAMPLES ?= 1200
DAMAGED ?= 40000
PROPERTIES = tests/test_properties.py tests/test_minimal_casts.py tests/write/test_constant_types.py \
  tests/decide/test_computed_constants.py tests/decide/test_positions.py tests/search/test_gated_graph.py \
  tests/search/test_graph_partition.py tests/search/test_trials.py
# The number of kills of each of six commands, and of concurrent runs of apply: make campaign KILLS=100 RUNS=1000
KILLS ?= 100
RUNS ?= 1000
# The number of damaged list files, of damaged models that are run, and of damaged states: make campaign LISTS=1000 MODELS=100 STATES=200
LISTS ?= 50000
MODELS ?= 6000
STATES ?= 3000
REAL = tests/corpus/test_corpus.py tests/corpus/test_check.py tests/corpus/test_evidence.py tests/corpus/test_tune.py \
  tests/corpus/test_batch_files.py tests/corpus/test_targets.py tests/corpus/test_quantized.py tests/test_conformance.py \
  tests/test_quantized_types.py tests/targets/test_kernel_runs.py tests/search tests/checker/test_segments.py \
  tests/training/test_known_truths.py tests/training/test_against_autocast.py
FAULTS = tests/cli/test_damaged_lists.py tests/files/test_jsonc.py tests/lists/test_validate_file.py \
  tests/test_damaged_model_runs.py tests/test_damaged_states.py tests/test_unwritable_places.py

# What can depend on the versions of the dependencies: models, the command line, schemas, templates and tables.
LOWEST = tests/model tests/decide tests/write tests/targets tests/run/test_sessions.py tests/test_golden.py \
  tests/lists/test_schema_check.py tests/show/test_renderers.py tests/show/test_check_html.py tests/cli/test_apply.py \
  tests/cli/test_main.py tests/cli/test_resolve.py tests/cli/test_validate.py tests/cli/test_view.py

CAMPAIGN = decisions verdicts properties corpus tools kills faults

.PHONY: demo test test-lowest docs lint check campaign release clean $(CAMPAIGN:%=campaign-%)

demo: .venv/installed       ## convert, explain, apply and run the bundled model
	@$(BIN)/mixlist demo

test: .venv/installed-dev   ## the whole test suite in random order, in up to four processes
	@$(BIN)/python -m pytest -n auto --maxprocesses=4

test-lowest: .venv-lowest/installed   ## tests with the lowest versions that pyproject.toml allows
	MIXLIST_EXAMPLES=10 .venv-lowest/bin/python -m pytest -n auto --maxprocesses=4 $(LOWEST)

docs: .venv/installed-dev   ## the documentation site, into site/; a broken link or a missing page is an error
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --builder html docs site

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test            ## the checks of the code, and the whole test suite

# The parts run alone, too. `make --keep-going campaign` goes on after a part that fails.
CAMPAIGN_TESTS = $(BIN)/python -m pytest -n auto --maxprocesses=4 --timeout=7200

campaign: $(CAMPAIGN:%=campaign-%)   ## the long tests, all parts one after the other

campaign-decisions: .venv/installed-dev   ## decisions, compared with a second implementation of the rules
	MIXLIST_EXAMPLES=$(DECISIONS) $(CAMPAIGN_TESTS) tests/decide/test_reference.py

campaign-verdicts: .venv/installed-dev   ## verdicts of check, compared with a second implementation of the rules
	MIXLIST_EXAMPLES=$(VERDICTS) $(CAMPAIGN_TESTS) tests/checker/test_reference_verdict.py

campaign-properties: .venv/installed-dev   ## random models, and damaged ones
	MIXLIST_EXAMPLES=$(EXAMPLES) MIXLIST_FUZZ=$(DAMAGED) $(CAMPAIGN_TESTS) $(PROPERTIES) tests/test_fuzz_models.py

campaign-corpus: .venv/installed-dev   ## real models, the node tests of ONNX, planted overflows, trainings whose verdict is known
	MIXLIST_CAMPAIGN=1 $(CAMPAIGN_TESTS) $(REAL)

campaign-tools: .venv/installed-dev   ## lists for other tools and the release, each in an environment of its own
	MIXLIST_CAMPAIGN=1 $(CAMPAIGN_TESTS) --dist loadgroup -rP tests/corpus/test_export.py tests/corpus/test_recipes.py tests/test_release.py

campaign-kills: .venv/installed-dev   ## killed commands, and commands that write at the same time
	MIXLIST_KILLS=$(KILLS) MIXLIST_CONCURRENT=$(RUNS) $(BIN)/python -m pytest -rP --timeout=7200 tests/test_killed_commands.py tests/test_concurrent_applies.py

campaign-faults: .venv/installed-dev   ## damaged lists, models and states, full disks
	MIXLIST_LISTS=$(LISTS) MIXLIST_MODEL_RUNS=$(MODELS) MIXLIST_STATES=$(STATES) MIXLIST_CAMPAIGN=1 $(CAMPAIGN_TESTS) -rPs $(FAULTS)

release: .venv/installed-dev   ## check, build and describe the version of mixlist/version.py; print the commands that publish it
	@$(BIN)/python tools/release.py

clean:
	rm -rf .venv .venv-lowest build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"mixlist needs Python 3.11 or later, this is {sys.version.split()[0]}: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml
	@echo "installing mixlist, onnx and ONNX Runtime into .venv: about a minute"
	@$(BIN)/python -m pip install --quiet --editable '.[cpu]'
	@touch $@

.venv/installed-dev: .venv/installed
	@echo "installing the tools of the tests into .venv: about a minute"
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

# numpy 1.26 has no wheel for Python 3.13: use 3.11 or 3.12 here.
.venv-lowest/installed: pyproject.toml tools/lowest_versions.py
	$(PYTHON) -m venv .venv-lowest
	$(PYTHON) tools/lowest_versions.py > .venv-lowest/constraints.txt
	.venv-lowest/bin/python -m pip install --quiet --constraint .venv-lowest/constraints.txt --editable '.[test]'
	@touch $@
