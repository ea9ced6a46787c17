# Everything runs in a virtual environment of its own, made on first use.
# `make demo` and `make test` are all that a newcomer needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
DEMO := $(VENV)/.ready-demo
OUT ?= out
PORT ?= 8080
# The least share of lines and branches of each package that the tests must reach, in percent: `make coverage` fails below it.
FLOOR ?= 85

.PHONY: help setup demo serve-demo test test-fast test-hosts test-lowest coverage lint vulnerabilities docs reference dist release-check bench figures soak clean

# What `make test-fast` leaves out: research, the console, crashes, and single tests marked `slow`.
SLOW := lab console store/faults server/test_faults.py cluster
RUNTIME := lab onnx client tables cluster postgres
# Old packages beside new ones that they do not know yet, and a pandas that warns about itself.
OLD := -W ignore::DeprecationWarning -W "ignore:invalid value encountered in cast:RuntimeWarning" \
  --ignore=tests/server/test_schema.py
# There is a process of tests on every core, and one more: many tests wait for servers, disks and other processes.
# Threads inside of them would only wait for each other. Each gets tests that lie side by side, so that browsers and
# servers of a module start once, and takes from the others when it is done.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal
FAST := -m "not slow and not chromium" --ignore=src/indknn_lab $(addprefix --ignore=tests/,$(SLOW))

help:
	@echo "make demo        private predictions on real data, in a minute or two; a report in $(OUT)/demo.html"
	@echo "make serve-demo  the same data behind a console in the browser, at port $(PORT)"
	@echo "make test        all tests; the slowest 15 are listed"
	@echo "make test-fast   the product without crashes and browsers, in less than a minute: for while you work"
	@echo "make test-hosts  a cluster in network namespaces, with its links cut and delayed; needs root and an idle machine"
	@echo "make test-lowest the tests of a few seconds each, with the oldest packages that pyproject.toml allows; needs uv"
	@echo "make coverage    all tests, and which lines they reach, at least $(FLOOR)%: a page in $(OUT)/coverage"
	@echo "make lint        ruff, mypy --strict, import-linter, and how large the house may be (tools/house.py)"
	@echo "make vulnerabilities  known vulnerabilities of what is installed, by pip-audit; needs the internet"
	@echo "make docs        the documentation site, in $(OUT)/site; 'make reference' writes its generated pages anew"
	@echo "make dist        wheel and sdist, in dist/"
	@echo "make release-check  what can be checked of a release on one machine: build, install, quickstart, lints"
	@echo "make bench       benchmarks, as ratios to peers"
	@echo "make figures     write the results of out/reproduce into the documents"
	@echo "make soak        crash a store a few thousand times: kill -9, power cuts; kill a server a hundred times;"
	@echo "                 play a thousand histories with and without one person; cut links and kill nodes of a"
	@echo "                 cluster in network namespaces a thousand times, which needs root"
	@echo "make setup       only the environment"
	@echo "make clean       remove everything made"

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py $(wildcard src/indknn/core/*.c src/indknn/records/indexes/*.c src/indknn/records/indexes/*.h)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

# The demonstration needs less than the tests, so a fresh clone shows it sooner.
$(DEMO): pyproject.toml setup.py
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -e $(STAMP) || echo "installing into $(VENV) ..."
	@test -e $(STAMP) || $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[server]'
	@touch $@

demo: $(DEMO)
	$(BIN)/indknn demo --out $(OUT)/demo.html

serve-demo: $(DEMO)
	@test -e $(OUT)/demo.store || $(BIN)/indknn demo --store $(OUT)/demo.store
	$(BIN)/indknn serve $(OUT)/demo.store --port $(PORT)

test: setup
	$(PYTEST) -m "not hosts" --durations=15

# Several hosts on one machine time out if tests run beside them.
test-hosts: setup
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q -m hosts tests/cluster/hosts

test-fast: setup
	$(PYTEST) $(FAST)

test-lowest:
	uv pip compile -q --resolution lowest-direct $(addprefix --extra ,$(RUNTIME)) pyproject.toml -o $(OUT)/lowest.txt
	uv venv -q --clear -p $(PYTHON) $(OUT)/lowest
	uv pip install -q -p $(OUT)/lowest/bin/python -r $(OUT)/lowest.txt -c $(OUT)/lowest.txt -e . \
	  'pytest>=8,<9' pytest-xdist pytest-cov hypothesis mpmath onnx pandas playwright polars build setuptools
	$(OUT)/lowest/bin/python -m pytest -q -n auto -m "not slow and not chromium and not ray" $(OLD)

coverage: setup
	$(PYTEST) -m "not hosts" --cov --cov-report=html:$(OUT)/coverage
	@for package in indknn indknn_lab; do \
	  echo "coverage of $$package, in percent, at least $(FLOOR):"; \
	  $(BIN)/coverage report --include="src/$$package/*" --format=total --fail-under=$(FLOOR) || exit 1; \
	done

lint: setup
	$(BIN)/ruff check src tests benchmarks examples tools
	$(BIN)/ruff format --check src tests benchmarks examples tools
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports
	$(BIN)/python -m tools.house

# Not a part of `make test`: the advisories change without us. They come from the package index in use, and a mirror may
# have none.
vulnerabilities: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-audit
	@$(BIN)/python -m pip freeze --exclude-editable > $(VENV)/frozen.txt
	$(BIN)/pip-audit --strict --no-deps --disable-pip --progress-spinner=off -r $(VENV)/frozen.txt

# A warning is an error (but not with --quiet): a page that is in no menu, a link or an anchor that leads nowhere, a docstring that cannot be read.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open $(OUT)/site/index.html"

reference: setup
	$(BIN)/python -m tools.reference

dist: setup
	$(BIN)/python -m build --outdir dist

release-check: setup
	$(BIN)/python -m tools.release

bench: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,bench]'
	$(BIN)/python benchmarks/noise.py
	$(BIN)/python benchmarks/scan.py --out $(OUT)/bench

figures: setup
	$(BIN)/indknn reproduce write-docs --out $(OUT)/reproduce

soak: setup
	PYTHONPATH=tests $(BIN)/python -m store.faults.soak
	PYTHONPATH=tests $(BIN)/python -m server.soak
	PYTHONPATH=tests $(BIN)/python -m coupled.soak
	PYTHONPATH=tests $(BIN)/python -m cluster.soak
	PYTHONPATH=tests $(BIN)/python -m cluster.hosts.soak

clean:
	rm -rf $(VENV) $(OUT) .coverage build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
