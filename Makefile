# make demo    set up, then run the main job (about 4 minutes on 2 cores)
# make test    set up, then run the fast tests (about 7 minutes on 2 cores)
# make test-all  the fast tests, then the slow ones
# make test-sweep  the tests that repeat one path of the code for every activation of the catalogue
# make check   set up, then lint, format and type checks
# make bench   measure speed here, with the machine's own vectors and with AVX2 (about 14 minutes)
# make docs    build the documentation site into build/docs (about three minutes); PLAYGROUND=1 adds a page
#              in which the model of ARM answers (default runs/demo/arms/xielu, with its ONNX export; needs npm)
# make gpu     on a machine with a GPU: numerics, races and benchmarks (docs/gpu.md)
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
ARM ?= runs/demo/arms/xielu
# Its torch must be built with CUDA, so this may be the Python of the machine.
GPU_PYTHON ?= $(if $(wildcard $(READY)),$(BIN)/python,$(PYTHON))

.PHONY: setup demo test test-slow test-sweep test-all check bench docs gpu format generated lock clean

setup: $(READY)

# torch comes first: with it in place nothing else asks for another build of it.
$(READY): requirements.in requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "stamm needs Python 3.11, 3.12 or 3.13; this is " + sys.version.split()[0] + ". Set PYTHON=python3.11")'
	@echo "Setting up .venv (once; a few minutes, most of it torch)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $$(grep '^torch==' requirements.in)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
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
	@$(BIN)/python -m tools.docs_site build/docs $(if $(PLAYGROUND),--playground $(ARM))

gpu:
	@PYTHONPATH="$(CURDIR)/src:$$PYTHONPATH" $(GPU_PYTHON) -m bench.gpu

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# Emit the modules of the built-in activations again from their gradients.
generated: $(READY)
	@$(BIN)/python -m stamm.activations.codegen
	@$(BIN)/python -m stamm.activations.fused.coefficients

# Resolve requirements.in into requirements.lock, with the hash of every file that may be installed.
# torch and what its CUDA build brings are left out: which build is right depends on the machine.
NOT_LOCKED := torch cuda-bindings cuda-pathfinder cuda-toolkit $(addprefix nvidia-,cublas \
  cuda-cupti cuda-nvrtc cuda-runtime cudnn-cu13 cufft cufile curand cusolver cusparse \
  cusparselt-cu13 nccl-cu13 nvjitlink nvshmem-cu13 nvtx)
lock:
	test -x build/lock/bin/uv || { $(PYTHON) -m venv build/lock && build/lock/bin/pip install --quiet uv; }
	build/lock/bin/uv pip compile requirements.in --quiet --universal --python-version 3.11 \
	  --generate-hashes --no-annotate --custom-compile-command "make lock" \
	  $(addprefix --no-emit-package ,$(NOT_LOCKED)) -o requirements.lock

clean:
	rm -rf .venv build
