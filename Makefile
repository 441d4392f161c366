# Everything sets itself up: on a fresh machine with Python 3.11, `make demo` or `make test` is the only command needed.
#
#   make demo     trains MNIST with one worker and with two, measures what that gains, and writes a report
#   make test     `make check`, and the whole test suite beside it
#   make test-long     the few tests that take too long to be run every time
#   make simulate      the C core in every order that a seed decides (SECONDS=60 SEED=1)
#   make mutants  plants bugs in a copy, one at a time, and tells which of them no test notices; takes hours
#   make check    lint, types, layers
#   make docs     builds the documentation into build/docs, and checks every link inside it
#   make wheels   builds what a release consists of into dist/, and tries each piece in a clean environment
#   make bench    measures Hora beside its peers and puts the numbers into the README and docs/benchmarks.md
#   make bench-hosts   the same between two hosts, made of namespaces of this machine; needs root
#   make clean    removes everything that the above made

PYTHON ?= $(firstword $(shell command -v python3.11 python3 python 2>/dev/null))
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
# Modules are compiled when they are imported first; most never are. That must be kept, or every one of the hundreds of
# processes that tests start compiles torch again, for four seconds.
INSTALL := install --quiet --no-compile
export PYTHONDONTWRITEBYTECODE :=
# Two files at a time; tests start several processes themselves. Never without -n: of a test that ends its process only
# another process can tell.
PYTEST_ARGS ?= -n 2 --durations=40 --durations-min=4 -m "not long"
MUTANTS ?= --c 100 --python 100 --seed 1

# Stamps: the environment is made once, and again only when a file it was made from changes.
CREATED   := $(VENV)/.created
RUN_READY := $(VENV)/.run-ready
DEV_READY := $(VENV)/.dev-ready
RELEASE_READY := $(VENV)/.release-ready
PEERS_READY := $(VENV)/.peers-ready
INSTALLED := $(VENV)/.installed
MPICH     := $(VENV)-mpich/.ready
MXNET     := $(VENV)-mxnet/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-long simulate mutants check lint types layers docs wheels bench bench-hosts clean

help:
	@sed -n 's/^#   //p' Makefile

$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "Hora needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V). Try: make PYTHON=/path/to/python3.11" >&2; exit 3; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(RUN_READY): requirements/run.txt | $(CREATED)
	@echo "Setting up $(VENV), once; this takes a minute or two."
	$(PIP) $(INSTALL) -r requirements/run.txt
	@touch $@

$(DEV_READY): requirements/dev.txt requirements/docs.txt requirements/frameworks.txt $(RUN_READY)
	$(PIP) $(INSTALL) -r requirements/dev.txt
	@touch $@

$(RELEASE_READY): requirements/release.txt $(DEV_READY)
	$(PIP) $(INSTALL) -r requirements/release.txt
	@touch $@

$(PEERS_READY): requirements/peers.txt $(DEV_READY)
	$(PIP) $(INSTALL) -r requirements/peers.txt
	@touch $@

# The C core is compiled here, into src/hora/transport/; without a compiler Hora is installed without it.
$(INSTALLED): pyproject.toml setup.py $(wildcard native/*.c native/*.h native/preload/*.c) | $(RUN_READY)
	$(PIP) $(INSTALL) --no-build-isolation --no-deps --editable .
	@touch $@

# MPICH for the tests, beside $(VENV), which has Open MPI. Everything else is taken from $(VENV).
$(MPICH): requirements/mpich.txt | $(INSTALLED)
	$(BIN)/python -m venv --without-pip $(@D)
	$(PIP) --python $(@D)/bin/python $(INSTALL) -r requirements/mpich.txt
	@site='import sysconfig; print(sysconfig.get_path("purelib"))' && echo "import site; site.addsitedir('$$($(BIN)/python \
	    -c "$$site")')" > "$$($(@D)/bin/python -c "$$site")/everything-else.pth"
	@touch $@

# MXNet for the tests, beside $(VENV), whose numpy is too new for it. Hora is the same.
$(MXNET): requirements/mxnet.txt | $(INSTALLED)
	$(BIN)/python -m venv --without-pip $(@D)
	$(PIP) --python $(@D)/bin/python $(INSTALL) -r requirements/mxnet.txt
	@echo "$(CURDIR)/src" > "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/hora.pth"
	@touch $@

demo: $(RUN_READY) $(INSTALLED)
	@$(BIN)/python examples/demo.py

test: $(DEV_READY) $(MPICH) $(MXNET)
	@$(MAKE) --no-print-directory check >$(VENV)/check.log 2>&1 & checking=$$!; \
	    $(BIN)/python -m pytest $(PYTEST_ARGS); tested=$$?; \
	    wait $$checking; checked=$$?; cat $(VENV)/check.log; exit $$((tested || checked))

test-long: $(DEV_READY) $(INSTALLED) $(MXNET)
	$(BIN)/python -m pytest -n 1 -m long --durations=40

mutants: $(DEV_READY) $(INSTALLED)
	$(BIN)/python -m tests.mutants $(MUTANTS)

# The C core under a scheduler that a seed decides: `make simulate SECONDS=600 SEED=7`.
SECONDS ?= 60
SEED    ?= 1
simulate: $(DEV_READY)
	$(BIN)/python -m tests.native --seconds $(SECONDS) --seed $(SEED)

check: lint types layers

lint: $(DEV_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV_READY) $(INSTALLED)
	$(BIN)/mypy

layers: $(DEV_READY) $(INSTALLED)
	$(BIN)/lint-imports --no-logo

# A link that leads nowhere is a warning, and a warning is an error. -E: pages that only link to what was changed are read too.
docs: $(DEV_READY) $(INSTALLED)
	$(BIN)/python -m sphinx -q -E -W --keep-going -b html -d build/doctrees docs build/docs
	@echo "Open build/docs/index.html"

wheels: $(RELEASE_READY)
	$(BIN)/python .ci/wheels.py

bench: $(PEERS_READY) $(INSTALLED)
	$(BIN)/hora bench allreduce -np 2 --json bench/results/allreduce-2.json
	$(BIN)/hora bench allreduce -np 4 --sizes 4K,1M,64M --json bench/results/allreduce-4.json
	$(BIN)/hora bench gradients -np 2 --json bench/results/gradients-2.json
	$(BIN)/hora bench train -np 2 --json bench/results/train-2.json
	for framework in tensorflow keras jax; do $(BIN)/hora bench train --framework $$framework --models resnet50,mnist \
	    --json bench/results/train-$$framework-2.json || exit 1; done
	$(BIN)/hora bench launch -np 2 --json bench/results/launch-2.json
	$(BIN)/hora bench elastic --json bench/results/elastic-3.json
	$(BIN)/python bench/readme.py

bench-hosts: $(DEV_READY) $(INSTALLED)
	$(BIN)/python -m tests.cluster hora bench allreduce -H h1:1,h2:1 --json bench/results/hosts-2.json
	$(BIN)/python -m tests.cluster --rate 1gbit \
	    hora bench allreduce -H h1:2,h2:2 --sizes 4,4K,1M,64M --json bench/results/hosts-4.json
	$(BIN)/python -m tests.cluster hora bench train -H h1:1,h2:1 --json bench/results/train-hosts-2.json
	$(BIN)/python -m tests.cluster --rate 1gbit \
	    hora bench train -H h1:1,h2:1 --json bench/results/train-hosts-2-1gbit.json
	$(BIN)/python -m tests.cluster hora bench launch -H h1:2,h2:2 --rounds 21 --json bench/results/hosts-launch.json
	$(BIN)/python -m tests.cluster hora bench elastic -H h1:2,h2:2 --json bench/results/elastic-hosts-4.json
	$(BIN)/python bench/readme.py

clean:
	rm -rf $(VENV) $(VENV)-mpich $(VENV)-mxnet build dist src/*.egg-info src/hora/transport/_core.so src/hora/transport/_alloc.so
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +
