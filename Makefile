# Two commands a newcomer needs: `make tune` and `make test`. Both set up .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

QUICK_FIGURES := $(addprefix papernot_steinke.figure_,1 2 3 4 5 6 7 8) \
  $(addprefix ding_wu.,figure_1 figure_2 table_1 figure_selectors table_released) \
  $(addprefix dpareto.figure_,1 2 3) \
  $(addprefix dp_hype.figure_,2 3 4 5 6 7 8 9 10 11 12 13) federation.figure_training

.PHONY: tune test lint figures_quick clean

tune: $(VENV)/installed
	$(BIN)/python -m experiments.tune

test: $(VENV)/installed_for_tests
	$(BIN)/python -m pytest --numprocesses auto --dist loadfile tests

lint: $(VENV)/installed_for_tests
	$(BIN)/ruff check dpjax experiments tests

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info[:2] in ((3, 11), (3, 12), (3, 13)) else f"dpjax needs Python 3.11, 3.12 or 3.13; this is {sys.version.split()[0]}: pass another, as in  make tune PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing dpjax into $(VENV) (about a minute, once)"
	$(INSTALL) --editable .
	@touch $@

$(VENV)/installed_for_tests: $(VENV)/installed
	@echo "Installing the test, federated and pareto extras into $(VENV)"
	$(INSTALL) --editable '.[test,federated,pareto]'
	@touch $@

# Every figure's small version, with rows and pictures under runs/figures.
figures_quick: $(VENV)/installed_for_tests
	for figure in $(QUICK_FIGURES); do \
	  $(BIN)/python -m experiments.figures.$$figure --quick || exit 1; \
	done

clean:
	rm -rf $(VENV) build *.egg-info
