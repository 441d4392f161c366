# Everything sets itself up: on a fresh machine with Python 3.11, `make demo` or `make test` is the only command needed.
#
#   make demo     trains a small model with one worker and with two, and prints what it gained
#   make test     `make check`, then the whole test suite
#   make check    lint, types, layers
#   make bench    measures Hora beside its peers and puts the numbers into the README
#   make bench-hosts   the same between two hosts, made of namespaces of this machine; needs root
#   make clean    removes everything that the above made

PYTHON ?= $(firstword $(shell command -v python3.11 python3 python 2>/dev/null))
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
PYTEST_ARGS ?= -n 2  # two files at a time; tests start several processes themselves

# Stamps: the environment is made once, and again only when a file it was made from changes.
CREATED   := $(VENV)/.created
RUN_READY := $(VENV)/.run-ready
DEV_READY := $(VENV)/.dev-ready
INSTALLED := $(VENV)/.installed
MPICH     := $(VENV)-mpich/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types layers bench bench-hosts clean

help:
	@sed -n 's/^#   //p' Makefile

$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Hora needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=/path/to/python3.11" >&2; exit 3; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(RUN_READY): requirements/run.txt | $(CREATED)
	@echo "Setting up $(VENV), once; this takes a minute or two."
	$(PIP) install --quiet -r requirements/run.txt
	@touch $@

$(DEV_READY): requirements/dev.txt $(RUN_READY)
	$(PIP) install --quiet -r requirements/dev.txt
	@touch $@

# The C core is compiled here, into src/hora/transport/; without a compiler Hora is installed without it.
$(INSTALLED): pyproject.toml setup.py $(wildcard native/*.c native/*.h native/preload/*.c) | $(RUN_READY)
	$(PIP) install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

# MPICH for the tests, beside $(VENV), which has Open MPI. Everything else is taken from $(VENV).
$(MPICH): requirements/mpich.txt | $(INSTALLED)
	$(BIN)/python -m venv --without-pip $(@D)
	$(PIP) --python $(@D)/bin/python install --quiet -r requirements/mpich.txt
	@site='import sysconfig; print(sysconfig.get_path("purelib"))' && echo "import site; site.addsitedir('$$($(BIN)/python \
	    -c "$$site")')" > "$$($(@D)/bin/python -c "$$site")/everything-else.pth"
	@touch $@

demo: $(RUN_READY) $(INSTALLED)
	@$(BIN)/python examples/demo.py

test: check $(MPICH)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: lint types layers

lint: $(DEV_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV_READY) $(INSTALLED)
	$(BIN)/mypy

layers: $(DEV_READY) $(INSTALLED)
	$(BIN)/lint-imports --no-logo

bench: $(DEV_READY) $(INSTALLED)
	$(BIN)/hora bench allreduce -np 2 --json bench/results/allreduce-2.json
	$(BIN)/hora bench allreduce -np 4 --sizes 4K,1M,64M --json bench/results/allreduce-4.json
	$(BIN)/hora bench gradients -np 2 --json bench/results/gradients-2.json
	$(BIN)/hora bench train -np 2 --json bench/results/train-2.json
	$(BIN)/hora bench launch -np 2 --json bench/results/launch-2.json
	$(BIN)/python bench/readme.py

bench-hosts: $(DEV_READY) $(INSTALLED)
	$(BIN)/python -m tests.cluster --rate 1gbit \
	    hora bench allreduce -H h1:2,h2:2 --sizes 4K,1M,64M --json bench/results/hosts-4.json
	$(BIN)/python -m tests.cluster hora bench launch -H h1:2,h2:2 --json bench/results/hosts-launch.json
	$(BIN)/python bench/readme.py

clean:
	rm -rf $(VENV) $(VENV)-mpich build dist src/*.egg-info src/hora/transport/_core.so src/hora/transport/_alloc.so
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +
