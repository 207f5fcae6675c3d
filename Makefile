# Two commands do everything, set-up included:  make demo   and   make test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := $(VENV)/.demo
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)
NEEDS_JAVA := Spark needs Java 17 or newer: install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) and run this again.
NEEDS_PYTHON := Millrace needs Python 3.11 or newer: install it, or name one with make PYTHON=/path/to/python3.11, and run this again.
NEEDS_VENV := Python cannot make virtual environments here: install its venv package (Debian, Ubuntu: apt-get install python3-venv) and run this again.

# Five runs side by side. Two wait mostly for the JVM: SQL against Spark with streams, and other tests of the shared
# Spark session. Two compute: the laws of the eddy, and the laboratory's tests with more of the engine's. The last has all
# others, which wait mostly for servers and sessions of their own.
SQL := tests/sql/test_cases.py tests/sql/test_fuzz.py tests/streams
ENGINE := tests/engine/migration tests/engine/state tests/engine/policies tests/engine/spill
SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)

.PHONY: help demo test check docs test-sql test-spark test-eddy test-engine test-rest test-lab machine clean

help:
	@echo "make demo   run four joins of TPC-H with Millrace and with Spark SQL, and compare"
	@echo "make test   check style and types and run all tests"
	@echo "make docs   build the site of docs/ into build/site"
	@echo "make clean  remove what the two made here"

demo: $(DEMO)
	@$(BIN)/millrace demo

test: $(READY)
	@$(MAKE) --no-print-directory -j6 $(SYNC) check test-sql test-spark test-eddy test-engine test-rest

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(MAKE) --no-print-directory docs

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

test-sql: $(READY)
	$(BIN)/python -m pytest -m spark -p no:cacheprovider $(SQL)

test-spark: $(READY)
	$(BIN)/python -m pytest -m spark --durations=25 $(addprefix --ignore=,$(SQL))

test-eddy: $(READY)
	$(BIN)/python -m pytest -m "not spark" -p no:cacheprovider tests/engine/eddy

test-engine: $(READY)
	$(BIN)/python -m pytest -m "not spark and not slow" -p no:cacheprovider lab
	$(BIN)/python -m pytest -m "not spark" -p no:cacheprovider $(ENGINE)

# Each figure, whole and broken, and each benchmark, at its smallest size: a quarter of an hour.
test-lab: $(READY)
	$(BIN)/python -m pytest -m slow -p no:cacheprovider lab

test-rest: $(READY)
	$(BIN)/python -m pytest -m "not spark" -p no:cacheprovider $(addprefix --ignore=,lab tests/engine/eddy $(ENGINE))

# The environment is made once, and again when what is to be installed has changed. The demo installs its own extra
# alone, and tests add the rest.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

$(DEMO): pyproject.toml constraints.txt | machine
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "$(NEEDS_VENV)" >&2; exit 1; }
	$(PIP) -e '.[demo]'
	@touch $@

$(READY): lab/requirements.txt $(DEMO)
	$(PIP) -e '.[cli,connect,demo,lookups,report,streams,dev,docs]' -r lab/requirements.txt
	@touch $@

machine:
	@"$(JAVA)" -version 2>&1 | awk -F'[".]' '/version "/ { found = ($$2 >= 17) } END { exit !found }' \
		|| { echo "$(NEEDS_JAVA)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| { echo "$(NEEDS_PYTHON)" >&2; exit 1; }

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist spark-warehouse
