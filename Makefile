# make demo    set up, then run the main job (about 4 minutes on 2 cores)
# make test    set up, then run the fast tests (about 7 minutes on 2 cores)
# make test-all  the fast tests, then the slow ones
# make test-sweep  the tests that repeat one path of the code for every activation of the catalogue
# make check   set up, then lint, format and type checks
# make bench   measure speed here, with the machine's own vectors and with AVX2 (about 14 minutes)
# make docs    build the documentation site into build/docs (about three minutes)
# make gpu     on a machine with a GPU: numerics, races and benchmarks (docs/gpu.md)
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
# Its torch must be built with CUDA, so this may be the Python of the machine.
GPU_PYTHON ?= $(if $(wildcard $(READY)),$(BIN)/python,$(PYTHON))

.PHONY: setup demo test test-slow test-sweep test-all check bench docs gpu format generated lock clean

setup: $(READY)

# torch comes first: with it in place nothing else asks for another build of it.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "stamm needs Python 3.11, 3.12 or 3.13; this is " + sys.version.split()[0] + ". Set PYTHON=python3.11")'
	@echo "Setting up .venv (once; a few minutes, most of it torch)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $$(grep '^torch==' requirements.lock)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	@touch $(READY)

demo: $(READY)
	@$(BIN)/stamm run demo

# One thread a process: the tests run side by side, and results depend on the number of threads.
test: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not slow and not sweep"

test-slow: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "slow and not sweep"

test-sweep: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m sweep

test-all: test test-slow

check: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

bench: $(READY)
	@$(BIN)/python -m bench.cpu

docs: $(READY)
	@$(BIN)/python -m tools.docs_site build/docs

gpu:
	@PYTHONPATH="$(CURDIR)/src:$$PYTHONPATH" $(GPU_PYTHON) -m bench.gpu

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Emit the modules of the built-in activations again from their gradients.
generated: $(READY)
	@$(BIN)/python -m stamm.activations.codegen
	@$(BIN)/python -m stamm.activations.fused.coefficients

# Resolve requirements.in into requirements.lock in a throw-away environment.
lock:
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet $$(grep '^torch==' requirements.in)
	build/lock/bin/pip install --quiet -r requirements.in
	build/lock/bin/pip freeze --all --exclude pip | sed 's/+cpu//; s/^triton==.*/& ; sys_platform == "linux"/; s/^jwm.robotstxt==.*/& ; python_version < "3.13"/; s/^fasttext-numpy2-wheel==.*/& ; python_version < "3.13"\nfasttext-numpy2==0.10.4 ; python_version >= "3.13"/' > requirements.lock

clean:
	rm -rf .venv build
