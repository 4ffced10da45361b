# Two commands: `make train` trains a first policy, `make test` runs all checks. Both create .venv if it is missing.
# PIP_ARGS is passed to pip: with PyTorch's CPU wheels, a machine without a GPU downloads much less.

PYTHON ?= python3
VENV := .venv
LOWEST := .venv-lowest
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt
ENV := InvertedPendulum-v5
STEPS := 81920
# Hides the notice about MkDocs 2 that Material prints on every build.
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs
RUN := runs/ppo/$(ENV)/$(shell date +%Y%m%d-%H%M%S)-seed42

# Small networks and small arrays: more threads make them slower.
export OMP_NUM_THREADS := 1

.PHONY: train test test-lowest test-extras docs docs-serve format clean help

help:
	@echo "make train    set up, train PPO on $(ENV) for about a minute, plot its learning curve"
	@echo "make test     set up, then lint, type check and test"
	@echo "make test-lowest    test the lowest versions that pyproject.toml allows, and list what was installed"
	@echo "make test-extras    install each extra into an empty environment and run what README shows for it"
	@echo "make docs     set up, then build the site into site/; make docs-serve serves it while you write"
	@echo "make format   format the code"
	@echo "make clean    remove .venv and caches (runs/ stays)"

train: $(VENV)/.installed
	$(BIN)/minerva train ppo --env $(ENV) --total-steps $(STEPS) --out-dir $(RUN)
	@curve=$$($(BIN)/minerva plot $(RUN)) && echo "Learning curve: $$curve"

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@command -v node >/dev/null || [ -n "$(CI)" ] || echo "Node is not installed (Debian: nodejs): the formula check is skipped."
	@{ ! command -v node >/dev/null && [ -z "$(CI)" ]; } || $(BIN)/minerva annotate minerva --check --tests tests
	@{ ! command -v node >/dev/null && [ -z "$(CI)" ]; } || $(BIN)/minerva annotate examples/one_file --check
	$(BIN)/python -m pytest -n 2

# Left out: what uses PyTorch alone, which is the version of `make test`, and the project's own tools. The site is built, not
# looked at.
test-lowest: $(LOWEST)/.installed
	$(LOWEST)/bin/python -m pip freeze --exclude-editable
	NO_MKDOCS_2_WARNING=1 $(LOWEST)/bin/python -m mkdocs build --strict --quiet --site-dir $(LOWEST)/site
	$(LOWEST)/bin/python -m pytest -n 2 $(foreach part,objectives acceleration annotate docs benchmarks,--ignore=tests/$(part))

test-extras:
	$(PYTHON) benchmarks/installing.py --out benchmarks/results/installing.json

docs: $(VENV)/.installed-docs
	$(MKDOCS) build --strict
	@echo "View it with: $(BIN)/python -m http.server --directory site"

docs-serve: $(VENV)/.installed-docs
	$(MKDOCS) serve

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(LOWEST) build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamp files: setup runs again only when its dependencies have changed.

$(VENV)/.installed: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing Minerva into $(VENV) (a few minutes the first time) ..."
	@$(PIP) -e ".[mujoco,report]"
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing Minerva and the development tools into $(VENV) (a few minutes the first time) ..."
	@$(PIP) -e ".[dev]"
	@touch $@ $(VENV)/.installed $(VENV)/.installed-docs

$(VENV)/.installed-docs: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing Minerva and the documentation tools into $(VENV) (a few minutes the first time) ..."
	@$(PIP) -e ".[docs]"
	@touch $@

$(LOWEST)/.installed: pyproject.toml constraints-lowest.txt
	@echo "Installing the lowest versions into $(LOWEST) (a few minutes) ..."
	@$(PYTHON) -m venv --clear $(LOWEST)
	@$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints-lowest.txt -e ".[dev]"
	@touch $@

constraints-lowest.txt: pyproject.toml constraints.txt benchmarks/lowest_versions.py
	@$(PYTHON) benchmarks/lowest_versions.py > $@

$(VENV)/.made:
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" \
		|| { echo "Minerva needs Python 3.11 or newer; $(PYTHON) is older or missing. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c "import ensurepip, venv" 2>/dev/null \
		|| { echo "Python's venv module is missing; install it with: sudo apt install python3-venv"; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@
