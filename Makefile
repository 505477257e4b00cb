# Two commands a newcomer needs: `make tune` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest --numprocesses auto --max-worker-restart 0 --dist worksteal
SPECIES = $(BIN)/python -m experiments.tune --dataset=species --model=mlp --widths=128,64 --optimizer=adam \
	--steps=60 --epsilon=2 --space=clip_norm=1
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.PHONY: tune test test_rest test_all test_fast test_opacus durations audit_the_tests fuzz_clipping coverage lint typecheck figures_quick benchmarks docs dist clean

tune: $(VENV)/installed
	@echo "1. One private run with the learning rate that Adam usually has, and the whole epsilon"
	$(SPECIES) --method=untuned --space=learning_rate=0.001
	@echo "2. The rate tuned over three decades, for the same epsilon"
	$(SPECIES) --score_on_training --space='learning_rate=loguniform(0.001,1)'
	@echo "Runs 1 and 2 are two releases of the same records, and together they cost more than epsilon 2."
	@echo "Only a demonstration on a public table may look twice. On your own records, tune at once."

# The cheaper tests, some of every file: tests/helpers/tiers.py says which.
test: $(VENV)/installed_for_tests
	$(PYTEST) -m "not slow" tests

# The tests that `make test` leaves out: proofs of every tuner, audits, figures, killed processes.
test_rest: $(VENV)/installed_for_tests
	$(PYTEST) -m slow tests

# Both in one session.
test_all: $(VENV)/installed_for_tests
	$(PYTEST) tests

# A contributor's first verdict: the cheapest tests of every file.
test_fast: $(VENV)/installed_for_tests
	$(PYTEST) -m fast tests

# Opacus' trainings as runs; in none of the above, since PyTorch is several GB.
test_opacus: $(VENV)/installed_for_opacus
	$(BIN)/python -m pytest tests/bridges/test_opacus_training.py

# Runs all tests and writes how long each took, from which it follows what `make test` runs.
durations: $(VENV)/installed_for_tests
	$(PYTEST) --record_durations tests

# Plants every wiring mistake there is in a copy, one at a time; fails if its tests do not notice.
audit_the_tests: $(VENV)/installed_for_tests
	$(BIN)/python tests/planted_mistakes.py --planted-only

# Random losses, fully optimised: whether a row moves a clipped sum by more than the clip norm.
fuzz_clipping: SECONDS ?= 600
fuzz_clipping: $(VENV)/installed_for_tests
	PYTHONPATH=. $(BIN)/python tests/helpers/fuzz_clipping.py --seconds $(SECONDS)

# `make test`, and the lines of the library that it does not execute; fails below a floor.
coverage: $(VENV)/installed_for_tests
	$(PYTEST) -m "not slow" --cov=dpjax --cov-report=term-missing --cov-fail-under=65 tests

lint: $(VENV)/installed_for_tests
	$(BIN)/ruff check dpjax experiments tests docs/*.py
	$(BIN)/ruff format --check dpjax experiments tests docs/*.py
	$(BIN)/python tests/prose.py

typecheck: $(VENV)/installed_for_tests
	$(BIN)/python -m mypy

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info[:2] in ((3, 11), (3, 12), (3, 13)) else f"dpjax needs Python 3.11, 3.12 or 3.13; this is {sys.version.split()[0]}: pass another, as in  make tune PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing dpjax into $(VENV) (about a minute, once)"
	$(INSTALL) --editable '.[tables]'
	@$(BIN)/python -c "import matplotlib.font_manager, experiments.tune"  # Kept: bytecode, a list of fonts.
	@touch $@

$(VENV)/installed_for_tests: $(VENV)/installed
	@echo "Installing the test, bridges, federated and tables extras into $(VENV)"
	$(INSTALL) --editable '.[test,bridges,federated,tables]'
	@touch $@

$(VENV)/installed_for_opacus: $(VENV)/installed_for_tests
	@echo "Installing the opacus extra into $(VENV)"
	$(INSTALL) --editable '.[opacus]'
	@touch $@

$(VENV)/installed_for_docs: $(VENV)/installed_for_tests
	@echo "Installing the docs extra into $(VENV)"
	$(INSTALL) --editable '.[docs]'
	@touch $@

# The documentation site, in site/: warnings are errors, notebooks are executed, links inside the
# site are followed. Needs no network.
docs: $(VENV)/installed_for_docs
	rm -rf site jupyter_execute
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -d build/docs -c docs . site
	rm -rf jupyter_execute
	$(BIN)/python docs/check_links.py site

# Every figure's small version, with rows and pictures under runs/figures.
figures_quick: $(VENV)/installed_for_tests
	$(BIN)/python -m experiments.figures --quick

# Steps of everyone at their best, candidates side by side, memory: rows, which docs/performance.md
# quotes. Hours; goes on where it was stopped.
benchmarks: $(VENV)/installed_for_tests
	$(BIN)/python -m experiments.benchmarks --out_dir=docs/benchmarks

# Wheel and source distribution in dist/, each installed and run in a clean environment.
dist: $(VENV)/installed
	rm -rf dist
	$(INSTALL) build
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python tests/try_distribution.py dist/*.whl dist/*.tar.gz

clean:
	rm -rf $(VENV) build dist site jupyter_execute *.egg-info
