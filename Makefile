# Two commands a newcomer needs: `make tune` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest --numprocesses auto --max-worker-restart 0
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.PHONY: tune test test_opacus test_fast audit_the_tests fuzz_clipping coverage lint typecheck figures_quick docs dist clean

tune: $(VENV)/installed
	$(BIN)/python -m experiments.tune --repetitions=logarithmic --mean=4 --score_on_training

# The quick tests, which fail below a floor of the library's lines executed, then the others.
test: $(VENV)/installed_for_tests
	$(PYTEST) --dist worksteal -m "not slow" --cov=dpjax --cov-report= --cov-fail-under=65 tests
	$(PYTEST) --dist loadfile -m slow tests

# Opacus' training as a candidate; not in `make test`, since PyTorch is several GB.
test_opacus: $(VENV)/installed_for_opacus
	$(BIN)/python -m pytest tests/bridges/test_opacus_training.py

# A contributor's verdict in about 90 seconds on 2 cores: without the tests marked slow.
test_fast: $(VENV)/installed_for_tests
	$(PYTEST) --dist worksteal -m "not slow" tests

# Plants every wiring mistake there is in a copy, one at a time; fails if its tests do not notice.
audit_the_tests: $(VENV)/installed_for_tests
	$(BIN)/python tests/planted_mistakes.py --planted-only

# Random losses, fully optimised: whether a row moves a clipped sum by more than the clip norm.
fuzz_clipping: SECONDS ?= 600
fuzz_clipping: $(VENV)/installed_for_tests
	PYTHONPATH=. $(BIN)/python tests/helpers/fuzz_clipping.py --seconds $(SECONDS)

# The lines of the library that the quick tests do not execute.
coverage: $(VENV)/installed_for_tests
	$(PYTEST) --dist worksteal -m "not slow" --cov=dpjax --cov-report=term-missing tests

lint: $(VENV)/installed_for_tests
	$(BIN)/ruff check dpjax experiments tests docs/*.py
	$(BIN)/ruff format --check dpjax experiments tests docs/*.py

typecheck: $(VENV)/installed_for_tests
	$(BIN)/python -m mypy

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info[:2] in ((3, 11), (3, 12), (3, 13)) else f"dpjax needs Python 3.11, 3.12 or 3.13; this is {sys.version.split()[0]}: pass another, as in  make tune PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing dpjax into $(VENV) (about a minute, once)"
	$(INSTALL) --editable .
	@touch $@

$(VENV)/installed_for_tests: $(VENV)/installed
	@echo "Installing the test, bridges, federated, pareto and tables extras into $(VENV)"
	$(INSTALL) --editable '.[test,bridges,federated,pareto,tables]'
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

# Wheel and source distribution in dist/, each installed and run in a clean environment.
dist: $(VENV)/installed
	rm -rf dist
	$(INSTALL) build
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python tests/try_distribution.py dist/*.whl dist/*.tar.gz

clean:
	rm -rf $(VENV) build dist site jupyter_execute *.egg-info
