# Every target creates .venv from both pyproject.toml and constraints.txt if it is missing or out of date; `make demo` has a
# smaller environment of its own.
PYTHON ?= python3
VENV := .venv
SCRIPTS := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN := $(VENV)/$(SCRIPTS)
READY := $(VENV)/.ready
DEMO := .venv-demo
LOWEST := .venv-lowest
CORE := $(wildcard csrc/*.h csrc/*.cpp csrc/tests/*.cpp)
INSTALL := -m pip install --quiet --disable-pip-version-check
# What depends on packages that are older there, PyTorch among them; what takes longest is left out.
LOWEST_TESTS := $(addprefix tests/,cli evaluation kernels/cpu metrics plot test_package.py transport/test_exact.py transport/test_golden.py transport/test_oracles.py transport/test_sinkhorn.py trees) lab/tests/cli lab/tests/training
# Leaves out the slowest tests, which are about processes and machine code.
LOWEST_CHOICE := not random_moments and not full_disk and not two_processes and not leaves_its_buffers and not another_thread

.PHONY: core sanitize demo test test-lowest test-torch lint format bench bench-quick study docs package figures fuzz mutation mutation-gpu clean

# The compiled kernels, next to the package's source files: after a change of csrc, and to see what the compiler says.
core:
	cmake -S csrc -B build/core
	cmake --build build/core --parallel 2

# Every operation of the kernels on random spaces under the sanitizers of GCC or Clang: make sanitize CASES=20000 CXX=clang++
CASES ?= 2000
sanitize:
	for kind in address undefined thread; do \
		cmake -S csrc -B build/$$kind -DEW_DRIVER=ON -DEW_OPTIMIZE=-O1 -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_COMPILER=$(CXX) \
			-DCMAKE_CXX_FLAGS="-g1 -fno-omit-frame-pointer -fsanitize=$$kind -fno-sanitize-recover=all" && \
		cmake --build build/$$kind --parallel 2 --target driver && build/$$kind/driver $(CASES) || exit 1; \
	done

demo: $(DEMO)/.ready
	$(DEMO)/$(SCRIPTS)/earthwork demo

# One thread for each of the two workers; torch would otherwise start two in both.
# Fails if coverage is below the limit in pyproject.toml.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --cov

# With the oldest packages that pyproject.toml allows. Warnings of old packages are ignored.
test-lowest: $(LOWEST)/.ready
	OMP_NUM_THREADS=1 $(LOWEST)/$(SCRIPTS)/python -m pytest -n 2 -o filterwarnings=default --disable-warnings \
		--hypothesis-profile few -k "$(LOWEST_CHOICE)" $(LOWEST_TESTS)

# With any version of PyTorch: make test-torch TORCH=2.8.0, or TORCH=newest. Warnings of other versions are ignored.
TORCH ?= newest
TESTS ?= tests lab src
test-torch: .venv-torch-$(TORCH)/.ready
	OMP_NUM_THREADS=1 .venv-torch-$(TORCH)/$(SCRIPTS)/python -m pytest -n 2 -o filterwarnings=default --disable-warnings \
		--hypothesis-profile few $(TESTS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CORE)
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows $(wildcard .github/workflows/*.yml)
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/zizmor --offline --quiet .github

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CORE)

# dlordinal depends on torchvision, which its EMD loss does not need.
bench bench-quick: $(READY)
	-$(BIN)/python $(INSTALL) --no-deps dlordinal==2.7.0
	$(BIN)/python -m benchmarks $(if $(filter bench-quick,$@),--quick)

# Which loss should I use? All tasks of lab/PROTOCOL.md whose data is in $EARTHWORK_DATA, those held out at the end.
study: $(READY)
	$(BIN)/earthwork study losses --out docs/results/study
	$(BIN)/earthwork study losses --out docs/results/study --task reviews --task intents-journeys --task images
	$(BIN)/earthwork study page --out docs/results/study --docs docs
	$(BIN)/earthwork study answer --out docs/results/study | $(BIN)/python scripts/insert_table.py README.md study -
	$(BIN)/earthwork study boosting --out docs/results
	$(BIN)/earthwork study boosting-table --out docs/results | sed '/^\*\*/,$$d' | $(BIN)/python scripts/insert_table.py docs/guides/tables.md boosting -

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The sdist and the wheel in dist/, checked; the README's example with the wheel in an empty environment.
package: $(READY)
	$(BIN)/python scripts/check_package.py

figures: $(READY)
	$(BIN)/earthwork demo --out docs/figures/demo
	$(BIN)/python scripts/docs_figures.py
	$(BIN)/python scripts/docs_build/notebook.py
	for example in $(filter-out %/common.py,$(wildcard examples/gallery/*.py)); do $(BIN)/python $$example || exit 1; done

# Searches for wrong numbers, misread files and parser crashes for a given time: make fuzz MINUTES=30. `make test` has a
# short run of it.
MINUTES ?= 5
fuzz: $(READY)
	$(BIN)/python $(INSTALL) -c constraints.txt -e ".[fuzz]"
	$(BIN)/python scripts/fuzz --minutes $(MINUTES)

# Changes spaces, ops and transport in small ways and counts what the tests detect. SAMPLE=0 for all mutants, which takes hours;
# OPTIONS are those of scripts/mutation, such as --again.
SAMPLE ?= 400
mutation: $(READY)
	$(BIN)/python $(INSTALL) -c constraints.txt -e ".[mutation]"
	OMP_NUM_THREADS=1 PYTHONPATH=scripts/mutation $(BIN)/python scripts/mutation --sample $(SAMPLE) $(OPTIONS) < /dev/null

# The same for the Triton kernels, which mutmut cannot change.
mutation-gpu: $(READY)
	OMP_NUM_THREADS=1 TRITON_INTERPRET=1 $(BIN)/python -W ignore scripts/mutation/gpu.py --sample $(SAMPLE) $(OPTIONS)

clean:
	rm -rf $(VENV) $(DEMO) $(LOWEST) .venv-torch-* build dist site .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

PROJECTS := pyproject.toml lab/pyproject.toml

# Installing again compiles what has changed.
$(READY): $(PROJECTS) constraints.txt $(CORE) csrc/CMakeLists.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) -c constraints.txt -e ".[dev]" -e "./lab[study]"
	touch $@

$(DEMO)/.ready: $(PROJECTS) constraints.txt
	test -x $(DEMO)/$(SCRIPTS)/python || $(PYTHON) -m venv $(DEMO)
	$(DEMO)/$(SCRIPTS)/python $(INSTALL) -c constraints.txt -e . -e ./lab
	touch $@

$(addprefix .venv-torch-,$(TORCH)/.ready): $(PROJECTS) scripts/torch_environment.py
	$(PYTHON) scripts/torch_environment.py $(@D) $(TORCH) -e ".[test]" -e "./lab[study]"
	touch $@

# The extras that users install; packages that only tests need may have any version.
$(LOWEST)/.ready: $(PROJECTS) constraints-lowest.txt scripts/torch_environment.py
	rm -rf $(LOWEST)
	$(PYTHON) scripts/torch_environment.py $(LOWEST) $(shell sed -n 's/^torch==//p' constraints-lowest.txt) -c constraints-lowest.txt \
		-e ".[exact,cli,trees,plot,metrics]" -e "./lab[train]" pytest pytest-xdist hypothesis
	touch $@
