# These do everything, set-up included:  make demo   make test   make nightly
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
NIGHTLY := $(VENV)/.nightly
DEMO := $(VENV)/.demo
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
NEEDS_JAVA := Spark needs Java 17 or newer: install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) and run this again.
NEEDS_PYTHON := Millrace needs Python 3.11 or newer: install it, or name one with make PYTHON=/path/to/python3.11, and run this again.
NEEDS_VENV := Python cannot make virtual environments here: install its venv package (Debian, Ubuntu: apt-get install python3-venv) and run this again.

# Tests start many processes, and each would compile again all that it imports: four seconds of Spark and pandas.
unexport PYTHONDONTWRITEBYTECODE

# Tests of a process share a Spark session, and keep about one core busy.
WORKERS ?= 2
XDIST := -n $(WORKERS) --dist worksteal
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

.PHONY: help demo test nightly check check-lab docs test-gate test-nightly machine clean

help:
	@echo "make demo     run a filter and two joins of TPC-H with Millrace and with Spark, and compare"
	@echo "make test     check style and types and run the tests of every change"
	@echo "make nightly  run the tests that take longer: more examples, the laboratory, pages, notebooks, installations"
	@echo "make docs     build the site of docs/ into build/site"
	@echo "make clean    remove what these made here"

demo: $(DEMO)
	@$(BIN)/millrace demo

test: $(READY)
	@$(MAKE) --no-print-directory -j2 $(SYNC) check test-gate

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src/millrace

test-gate: $(READY)
	$(BIN)/python -m pytest $(XDIST) -m "not nightly" --durations=25 tests

nightly: $(NIGHTLY)
	@$(MAKE) --no-print-directory -j2 $(SYNC) check-lab docs test-nightly

# The laws again, with more examples; everything that is marked nightly; each figure, whole and broken, and each
# benchmark, at its smallest size.
test-nightly: $(NIGHTLY)
	MILLRACE_PROFILE=nightly $(BIN)/python -m pytest $(XDIST) -m "nightly or law" --durations=25 tests lab

check-lab: $(NIGHTLY)
	$(BIN)/mypy

docs: $(NIGHTLY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# What is installed is so again when it has changed. The demo installs its own extra alone, tests add what they need,
# and the nightly tests the rest; Python compiles of these what it imports.
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check -c constraints.txt

$(BIN)/python: | machine
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(NEEDS_VENV)" >&2; exit 1; }

$(DEMO): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV)"
	@$(PIP) -e '.[demo]'
	@touch $@

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what the tests need into $(VENV)"
	@$(PIP) --no-compile -e '.[cli,connect,demo,lookups,report,streams,dev]'
	@touch $@

$(NIGHTLY): lab/requirements.txt $(READY)
	@echo "installing what the nightly tests need into $(VENV)"
	@$(PIP) --no-compile -e '.[cli,connect,demo,lookups,report,streams,dev,nightly,docs]' -r lab/requirements.txt
	@touch $@

machine:
	@"$(JAVA)" -version 2>&1 | awk -F'[".]' '/version "/ { found = ($$2 >= 17) } END { exit !found }' \
		|| { echo "$(NEEDS_JAVA)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "$(NEEDS_PYTHON)" >&2; exit 1; }

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist spark-warehouse
