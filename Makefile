# `make demo` and `make test` need Python >= 3.11, pip and make; all else is set up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two workers: tests compile many small programs, and compiling uses a core each. Each begins with half of them, in order
# (worksteal), so that few modules are set up and traced by both, and takes from the other when it has nothing left.
# Programs that one command compiled are loaded by the next (see tests/conftest.py). Bytecode is kept too, even where the
# environment says otherwise: many tests start processes, which would compile every module.
PYTEST := PYTHONDONTWRITEBYTECODE= JAX_COMPILATION_CACHE_DIR=$(CURDIR)/$(VENV)/programs $(BIN)/python -m pytest -n 2 --dist worksteal

# What is installed is what requirements/ names, by hash; the ranges of pyproject.toml are for whoever installs the package.
# A lock file is whole, so nothing is resolved (--no-deps): for `name[extra]` pip would take the newest release of `name`,
# which has no hash here. `make lint` asks pip whether anything is missing.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOCKED := $(PIP) --no-deps --require-hashes -r

.PHONY: help demo federation-demo test test-changed test-slow test-browser test-wheel test-all docs lint format lock licences reference install clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 20

demo: $(VENV)/ready ## train a private model on the built-in synthetic population, in two minutes
	rm -rf demo
	$(BIN)/sotto demo --out demo

federation-demo: $(VENV)/dev ## train across four processes: a server and three silos, with masked sums, over TLS on this machine
	rm -rf federation-demo
	$(BIN)/sotto federate demo --out federation-demo

test: $(VENV)/dev ## the tests, about four minutes on two cores
	$(PYTEST) -m "not slow and not browser" --ignore tests/browser

test-changed: $(VENV)/dev ## deliberate faults in the rooms that a branch, or the last few commits, changed
	SOTTOVOCE_FAULTS=changed $(PYTEST) -m slow tests/broken_builds

test-slow: $(VENV)/dev ## the slower tests: every fault, long attacks, processes of their own; three quarters of an hour
	HYPOTHESIS_PROFILE=thorough $(PYTEST) -m "(slow or hypothesis) and not browser"

test-browser: $(VENV)/browser ## export, keyboard and watch, in a real browser; screenshots go to test-artefacts/
	$(PYTEST) --dist loadfile -m browser tests/browser

test-wheel: $(VENV)/dev ## wheel and sdist into dist/: they install into a fresh environment, and the demo runs there
	$(BIN)/python tools/try_wheel.py

test-all: test test-slow test-browser test-wheel ## every test there is

docs: $(VENV)/docs ## the documentation as a site, into site/; a link that leads nowhere is an error
	rm -rf site
	$(BIN)/python -m sphinx -q -n -W --keep-going docs site

lint: $(VENV)/dev ## ruff, types, who may import whom, licences, what is installed, and the generated reference
	$(BIN)/python -m pip --disable-pip-version-check check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python tools/licences.py --check
	$(BIN)/python tools/reference.py --check

format: $(VENV)/dev ## put the code in its usual form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(VENV)/dev ## write requirements/ anew from the ranges; UPGRADE=--upgrade takes the newest
	$(BIN)/python tools/lock.py $(UPGRADE)

licences: $(VENV)/browser $(VENV)/docs ## write docs/reference/licences.md
	$(BIN)/python tools/licences.py

reference: $(VENV)/dev ## write the pages of docs/reference that follow from the code
	$(BIN)/python tools/reference.py

install: $(VENV)/dev ## set up .venv for development

$(VENV)/ready: packages/evidence/pyproject.toml packages/sottovoce/pyproject.toml requirements/core.lock
	$(PYTHON) -m venv $(VENV)
	$(LOCKED) requirements/core.lock
	$(PIP) --no-deps --no-build-isolation -e packages/evidence -e packages/sottovoce
	touch $@

$(VENV)/dev: $(VENV)/ready requirements/dev.lock
	$(LOCKED) requirements/dev.lock
	touch $@

# The page is tried in Debian's chromium, and npm has the part of it that runs models.
$(VENV)/browser: $(VENV)/dev requirements/browser.lock
	missing=; for each in chromium npm; do command -v $$each >/dev/null || missing="$$missing $$each"; done; \
	[ -z "$$missing" ] || { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing; } \
	  || { echo "error: the tests in a browser need$$missing; on Debian: apt-get install$$missing" >&2; exit 1; }
	$(LOCKED) requirements/browser.lock
	$(BIN)/python -m sottovoce.web.keyboard.vendor
	touch $@

$(VENV)/docs: $(VENV)/ready requirements/docs.lock
	$(LOCKED) requirements/docs.lock
	touch $@

clean: ## remove what was built
	rm -rf $(VENV) demo federation-demo dist site test-artefacts packages/sottovoce/src/sottovoce/web/keyboard/vendor
