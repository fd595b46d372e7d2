# Set-up happens once, in .venv, and again when pyproject.toml or constraints.txt changes.
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check -qq
CODE := src tests scripts $(if $(wildcard benchmarks/*.py),benchmarks)
# The back ends of `taglio compare`.
BACKENDS ?= openvino nncf onnxsim litert onnx2tf torch qkeras
BENCH ?= prediction quality
ARGS ?=

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help quickstart test test-avx2 test-fast coverage test-suite test-onnx test-fuzz test-slow backends test-backends lint bench docs docs-serve test-docs reference dist clean core dev full

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "make %-13s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

quickstart: core ## install taglio in .venv and run its demonstration
	@PYTHONDONTWRITEBYTECODE= $(VENV)/bin/taglio quickstart $(ARGS)

# Two at a time (ARGS="-n 0": one). What tests of several files share is made once for all (tests/conftest.py).
# Tests start hundreds of interpreters: byte code is kept even where the environment (a container's) forbids it.
TESTS := PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n 2 --dist worksteal
# Tests of devices and servers wait more than they compute, so two at a time leave processors idle.
test: dev ## run the tests that every change must pass (ARGS="tests/plan -x" for some)
	@$(TESTS) -n 3 -m 'not slow' $(ARGS)

# OpenVINO obeys this cap, and so does what taglio decides; ONNX Runtime has no such switch.
test-avx2: export ONEDNN_MAX_CPU_ISA := AVX2
test-avx2: test ## run them with OpenVINO's instruction set capped at AVX2: no VNNI, no bfloat16

test-fast: dev ## run those that take a minute: none starts a process, none goes the whole way, and properties get a tenth of their examples
	@TAGLIO_TEST_FAST=1 $(TESTS) -m 'not slow and not whole' $(ARGS)

# What tests/ has for these rooms, without what passes through them on the whole way; builders are tried one room
# further.
MEASURED := plan cluster/planning quantize error model
FURTHER := tests/components/test_build.py
coverage: dev ## measure branches of plan, cluster/planning, quantize, error and model that their own tests reach
	@$(TESTS) $(MEASURED:%=tests/%) $(FURTHER) $(MEASURED:%=--cov=src/taglio/%) --cov-branch --cov-report=term:skip-covered $(ARGS)

# About twenty minutes on two cores.
test-suite: test-onnx test-fuzz test-slow ## test all of ONNX's backend suite, random graphs, damaged files, and what is slow

test-onnx: dev ## test every case of the ONNX project's backend suite with its variants, and random graphs
	@$(PY) -m tests.backend_suite

# What each kind of damaged file gets of one core.
FUZZ_SECONDS ?= 300
test-fuzz: dev ## test damaged files, for FUZZ_SECONDS a kind
	@FUZZ_SECONDS=$(FUZZ_SECONDS) $(PY) -m pytest tests/fuzz

test-slow: dev ## test what is slow
	@$(PY) -m pytest -m slow

backends: core ## build the environments of the other back ends (BACKENDS="openvino torch" for some)
	@$(VENV)/bin/taglio backends add $(BACKENDS)

test-backends: dev backends ## test the rows of the other back ends
	@TAGLIO_TEST_BACKENDS='$(BACKENDS)' $(PY) -m pytest tests/compare/backends tests/runtimes $(ARGS)

lint: dev ## check style, security, format, types and that generated pages are current
	@$(PY) -m ruff check --output-format concise .
	@$(PY) -m ruff format --check --quiet . || { echo 'not formatted: run $(PY) -m ruff format .' >&2; exit 1; }
	@$(PY) -m mypy $(CODE)
	@$(PY) scripts/cli_docs.py --check
	@$(PY) scripts/layout_docs.py --check
	@$(PY) scripts/supported_docs.py --check
	@$(PY) scripts/operators_docs.py --check
	@$(if $(wildcard benchmarks/results),$(PY) scripts/results_docs.py --check)
	@$(PY) scripts/audit.py
	@$(PY) scripts/protocol.py --check

bench: core ## run the benchmarks (BENCH=quality ARGS="--cases digits" for a part; see benchmarks/METHOD.md)
	@for bench in $(BENCH); do $(PY) benchmarks/$$bench.py $(ARGS) || exit 1; done

test-docs: full ## build the site strictly (links), run every snippet and notebook (PAGE=detector for some)
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@$(PY) scripts/test_docs.py $(PAGE)

docs: full ## build the documentation's site in build/site
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo build/site/index.html

docs-serve: full ## show the site on http://127.0.0.1:8000 and follow changes
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs serve

reference: dev ## write the generated pages of docs/ again: cli, layout, supported, operators, results
	@$(PY) scripts/cli_docs.py
	@$(PY) scripts/layout_docs.py
	@$(PY) scripts/supported_docs.py
	@$(PY) scripts/operators_docs.py
	@$(PY) scripts/results_docs.py

dist: full ## build wheel and sdist in dist/ and check them: twine, a fresh environment, quick start, mypy
	@$(PY) scripts/dist.py

clean: ## remove .venv, caches and built packages; results in out/ stay
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
	@find $(CODE) training -name __pycache__ -prune -exec rm -rf {} +

core: ; @$(call install,core,.[openvino])

# Variables, because $(call) would split its arguments at the commas. `full` is also taken for `dev`, so it holds all of it.
EXTRAS := dev,cluster,serve,openvino,text,datasets
DEV := .[$(EXTRAS)]
FULL := .[$(EXTRAS),docs,release]
dev: ; @$(call install,dev,$(DEV))
full: ; @$(call install,full dev,$(FULL))

# $(call install,STAMPS,WHAT): the first stamp is what is asked for. A leftover .venv that cannot run pip is made again, as is one of another interpreter than the
# PYTHON asked for. The stamp holds what was installed and where, so a copied or moved repository does not go on running the
# code of the first one. Byte code is made when a module is first imported: for all of them it took 8 of 20 seconds.
define install
set -e; \
if ! $(PY) -c 'import sys, pip._internal.cli.main; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || $(OTHER_PYTHON); then \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "taglio needs Python 3.11 or newer; $(PYTHON) is: $$($(PYTHON) --version 2>&1)" >&2; \
		echo "Name another one: make $(or $(firstword $(MAKECMDGOALS)),test) PYTHON=python3.12" >&2; exit 1; }; \
	echo "making $(VENV) with $$($(PYTHON) --version)"; \
	rm -rf $(VENV); \
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$(PYTHON) cannot make a virtual environment: install its venv package (python3-venv)" >&2; exit 1; }; \
fi; \
if ! $(WANTED) | cmp -s - $(VENV)/taglio-$(firstword $(1)) || ! test -x $(VENV)/bin/taglio; then \
	echo "installing $(2) in $(VENV)"; \
	rm -f $(VENV)/taglio-*; \
	$(PIP) install --no-compile -c constraints.txt -e '$(2)'; \
	for stamp in core $(1); do $(WANTED) > $(VENV)/taglio-$$stamp; done; \
fi
endef

WANTED := { echo '$(CURDIR)'; cat pyproject.toml constraints.txt; }
WHICH := -c 'import sys; print(sys.version_info[:3], sys.base_prefix)'
OTHER_PYTHON := $(if $(filter file,$(origin PYTHON)),false,test "$$($(PYTHON) $(WHICH) 2>&1)" != "$$($(PY) $(WHICH) 2>&1)")
