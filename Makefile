# Every target works from a fresh clone: Python 3.11 or newer, Rust and the package registries are all it
# needs. What it makes lies in .venv, target, dist and site; `make clean` takes them away again.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
VENV_STAMP := $(VENV)/.made
# OBJECTS=1 builds what speaks to S3, GCS and Azure too, which takes some minutes more.
OBJECTS ?=
FEATURES := pyo3/extension-module$(if $(OBJECTS),$(shell printf ,objects))
BUILD_STAMP := $(VENV)/.built$(if $(OBJECTS),-objects)
# A second build of the extension with planted faults: a fault test that finds nothing in it shows nothing.
MUTANTS_PYTHON := $(CURDIR)/target/mutants-python
MUTANTS_STAMP := $(MUTANTS_PYTHON)/.made
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find rust -name '*.rs' -o -name Cargo.toml -o -name '*.sql')

# pyo3 asks this interpreter what to build for, so that the result does not depend on the caller's PATH.
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python

# Hundreds of tests start a program of ours: without its bytecode each start takes half as long again.
unexport PYTHONDONTWRITEBYTECODE
# A process for each processor; whoever is done takes over from the others.
AT_ONCE ?= -n auto --dist worksteal

# Installs what the package and some of its extras need.
define install
$(BIN)/python -c 'import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	print(*p["dependencies"], *(one for extra in sys.argv[1:] for one in p["optional-dependencies"][extra]), sep="\n")' \
	$(1) > $(VENV)/requirements.txt
$(BIN)/python -m pip install --quiet --disable-pip-version-check -r $(VENV)/requirements.txt
endef

.PHONY: help setup demo test tools mutants lint docs bench bench-peers bench-postgres faults wheel clean
.DEFAULT_GOAL := help

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' Makefile

setup: $(BUILD_STAMP) ## Make .venv with every tool and build the extension into it

demo: $(BUILD_STAMP) ## Show what Holdfast does, in a minute
	$(BIN)/python -m holdfast demo

test: $(BUILD_STAMP) $(MUTANTS_STAMP) tools ## Run the Rust tests, the Python tests, the fault tests and the mutants
	cargo test --workspace --locked
	HOLDFAST_MUTANTS_PYTHON=$(MUTANTS_PYTHON) $(BIN)/python -m pytest $(AT_ONCE)
	$(MAKE) mutants

# What the fault tests use beside Python and Rust.
tools:
	@sh tests/faults/tools.sh

mutants: $(BUILD_STAMP) ## Break each rule on purpose and see that a test notices
	$(BIN)/python tests/mutants.py

lint: $(BUILD_STAMP) ## Check formatting, lints, types and the extension's stubs
	cargo fmt --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest holdfast._core

docs: $(VENV)/.with-docs ## Build the documentation and the API reference into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(BUILD_STAMP) $(VENV)/.with-bench ## Measure and rewrite docs/BENCHMARKS.md (ONLY=gateway: one section)
	$(BIN)/python benches/run.py $(ONLY)

bench-peers: $(BUILD_STAMP) $(VENV)/.with-bench tools ## Measure the same job on Holdfast and its peers, each in an environment of its own
	$(BIN)/python benches/run.py peers

bench-postgres: $(BUILD_STAMP) $(VENV)/.with-bench ## Measure it on a PostgreSQL of its own beside DBOS (RECORDS=10000000: grow so far)
	HOLDFAST_BENCH_RECORDS=$${RECORDS:-100000} $(BIN)/python benches/run.py postgres

faults: $(BUILD_STAMP) $(MUTANTS_STAMP) tools ## Run the property and fault tests for a long time
	PROPTEST_CASES=$${PROPTEST_CASES:-20000} cargo test --workspace --locked --release
	HOLDFAST_FAULT_SECONDS=$${HOLDFAST_FAULT_SECONDS:-300} HOLDFAST_MUTANTS_PYTHON=$(MUTANTS_PYTHON) \
	$(BIN)/python -m pytest --hypothesis-profile=long --timeout=3600 $(AT_ONCE)

# Linked here as usual, the wheel would ask for this machine's glibc (2.34 where it is 2.36). zig links against
# the symbols of glibc 2.17, so the wheel is manylinux2014 and runs on every Linux that has a Python 3.11. The
# remapped prefixes keep the paths of the building machine out of it.
wheel: $(VENV)/.with-wheel ## Build sdist and wheel into dist/ and try them in empty environments
	rm -rf dist
	$(BIN)/maturin sdist --out dist
	PATH="$(CURDIR)/$(BIN):$$PATH" \
	RUSTFLAGS="$$RUSTFLAGS --remap-path-prefix=$(CURDIR)=. --remap-path-prefix=$${CARGO_HOME:-$$HOME/.cargo}=cargo" \
	$(BIN)/maturin build --release --locked --zig --compatibility manylinux2014 --out dist \
	--features pyo3/extension-module,objects
	$(BIN)/python tests/wheel_check.py dist $(WHEEL_CHECK)

clean: ## Remove everything that the other targets made
	rm -rf $(VENV) dist site target .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f python/holdfast/_core*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Made anew when pyproject.toml changes, so that no removed dependency lingers.
$(VENV_STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Holdfast needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1);" \
		       "say which one to use: make PYTHON=python3.12 ..." >&2; exit 1; }
	@command -v cargo >/dev/null || { echo "Holdfast is built with Rust: see https://rustup.rs" >&2; exit 1; }
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(call install,dev otel parquet)
	touch $@

# What only the documentation, the benchmarks or the wheel need.
$(VENV)/.with-%: $(VENV_STAMP)
	$(call install,$*)
	touch $@

# The release profile for everything: built from nothing it takes less time than the dev profile (28 s
# against 36 s on two cores), and what the tests run is then what users get.
$(BUILD_STAMP): $(VENV_STAMP) $(RUST_SOURCES)
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --release --locked --quiet --features $(FEATURES)
	touch $@

$(MUTANTS_STAMP): $(BUILD_STAMP) $(shell find python -name '*.py')
	RUSTC_WORKSPACE_WRAPPER=$(CURDIR)/tests/mutants-rustc \
	cargo build --locked --quiet -p holdfast-bridge --features pyo3/extension-module
	rm -rf $(MUTANTS_PYTHON)
	mkdir -p $(MUTANTS_PYTHON)
	cp -R python/holdfast $(MUTANTS_PYTHON)/holdfast
	cp target/debug/lib_core.so $(MUTANTS_PYTHON)/holdfast/_core.abi3.so
	touch $@
