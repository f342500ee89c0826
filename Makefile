# Every target sets up .venv from pyproject.toml and constraints.txt when it is missing or stale.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOWEST := .venv-lowest
LOWEST_TESTS := $(addprefix tests/,cli decisions evaluation kernels losses metrics plot spaces test_default_device.py test_package.py lab/training transport trees)

.PHONY: demo test test-lowest lint format bench bench-quick docs figures fuzz mutation clean

demo: $(READY)
	$(BIN)/earthwork demo

# One thread for each of the two workers: torch would otherwise start two in both.
# Fails where less is covered than pyproject.toml asks for.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --cov

# Beside the oldest packages that pyproject.toml allows. Their own warnings are not ours to mend.
test-lowest: $(LOWEST)/.ready
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -n 2 -o filterwarnings=default --disable-warnings $(LOWEST_TESTS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# dlordinal asks for torchvision, which its EMD loss does not need.
bench bench-quick: $(READY)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps dlordinal==2.7.0
	$(BIN)/python -m benchmarks $(if $(filter bench-quick,$@),--quick)

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

figures: $(READY)
	$(BIN)/python scripts/docs_figures.py
	for example in $(filter-out %/common.py,$(wildcard examples/gallery/*.py)); do $(BIN)/python $$example || exit 1; done

# Looks for wrong numbers and parsers that fall over for as long as it is told to: make fuzz MINUTES=30
MINUTES ?= 5
fuzz: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[fuzz]"
	$(BIN)/python scripts/fuzz --minutes $(MINUTES)

# Breaks spaces and transport in small ways and counts what the tests notice. SAMPLE=0 for all of them, which takes hours;
# OPTIONS are those of scripts/mutation, such as --again.
SAMPLE ?= 400
mutation: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[mutation]"
	OMP_NUM_THREADS=1 PYTHONPATH=scripts/mutation $(BIN)/python scripts/mutation --sample $(SAMPLE) $(OPTIONS) < /dev/null

clean:
	rm -rf $(VENV) $(LOWEST) build dist site .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

# The extras of the library itself; what only experiments and tests need may be of any version.
$(LOWEST)/.ready: pyproject.toml constraints-lowest.txt
	rm -rf $(LOWEST) && $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt \
		-e ".[fast,exact,cli,trees,plot,metrics,evaluate,train]" pytest pytest-xdist hypothesis
	touch $@
