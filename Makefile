# nvc-py: every task of people and CI. `make help` lists them.
#
# PYTHON   interpreter that the installed commands start (default: the system's, not the first in PATH)
# PREFIX, DESTDIR   as usual for `make install`

PYTHON ?= $(shell tools/interpreter)
PREFIX ?= /usr/local
DESTDIR ?=
PYTEST_FLAGS ?=
JOBS ?= $(shell nproc)
VENV := .venv/bin
# Trees of Debian 13 and of sid with newer engines, for test-engines: made when they are not there, about 1 GB each.
USERLAND ?= $(HOME)/.cache/nvc-py/trixie
USERLAND_SID ?= $(HOME)/.cache/nvc-py/sid
# CRI-O, built from its Go module where there is a Go; runs in USERLAND_SID.
CRIO ?= $(if $(shell command -v go),$(if $(USERLAND_SID),$(HOME)/.cache/nvc-py/crio))
MEASURED ?=
C_FILES = find native tests -name "*.[ch]"
KUBELET := build/kube/kubelet.binpb
# Programs of Kubernetes, built by test-kubernetes when they are not there.
KUBERNETES ?= $(HOME)/.cache/nvc-py/kubernetes
KUBERNETES_VERSION ?= 1.36.3
# Minimal trees of Debian and what is fetched for them, for test-fresh: some 2 GB.
FRESH ?= $(HOME)/.cache/nvc-py/fresh
comma := ,

.PHONY: all help demo test test-engines test-fresh check fmt build install uninstall bench bench-gpu bench-scale clean bootstrap bootstrap-venv bootstrap-runtimes native test-gpu test-sanitize soak fuzz soak-sequences wheel deb image man docs test-docs test-kubernetes

all: build

help:
	@sed -n 's/^## //p' Makefile

## demo           run a real container with our hook (GPU if there is one, else the simulated machine)
demo: bootstrap-runtimes native
	@$(VENV)/python -m tools.demo

## test           every test that this machine can run
test: bootstrap native
	@$(MAKE) -s -q -C native tests PYTHON='$(PYTHON)' 2>/dev/null || echo "building the native tests (native/test, half a minute)" >&2
	@$(MAKE) -s -C native tests PYTHON='$(PYTHON)'
	@# grpc's threads and forks of one process do not go together: by themselves
	GRPC_ENABLE_FORK_SUPPORT=1 NVC_MUST_RUN=$$(test "$$(id -u)" = 0 && echo root,system) tools/alone $(VENV)/pytest -n $(JOBS) $(PYTEST_FLAGS) tests/nvc/kube
	NVC_MUST_RUN=$$(test "$$(id -u)" = 0 && echo root,system) tools/alone $(VENV)/pytest -n $(JOBS) $(PYTEST_FLAGS) --ignore=tests/engines --ignore=tests/kubernetes --ignore=tests/nvc/kube tests

## soak-sequences random sequences of hostile calls on the simulated manager: SEQUENCES= of them (default 10000), from SEED= on
soak-sequences: bootstrap native
	@$(MAKE) -s -C native tests PYTHON='$(PYTHON)'
	NVC_SEQUENCES=$(or $(SEQUENCES),10000) NVC_SEQUENCES_SEED=$(or $(SEED),1) $(VENV)/pytest -q tests/native/test_sequences.py

## soak           all ways to a GPU beside a hostile neighbour, until each has its goal of rounds or took SECONDS= (default 1800);
##                faults, kills at each system call. NVC_SOAK_COUNTS=FILE gets the counts
soak: bootstrap native
	@$(MAKE) -s -C native tests PYTHON='$(PYTHON)'
	NVC_MUST_RUN=root,system NVC_SOAK_SECONDS=$(or $(SECONDS),1800) NVC_SOAK_EVERY=1 $(VENV)/pytest -q -s tests/soak

## fuzz           every parser on mutated samples: EXAMPLES= inputs each (default 20000); libFuzzer for native code: make -C native fuzz
fuzz: bootstrap
	NVC_FUZZ_EXAMPLES=$(or $(EXAMPLES),20000) $(VENV)/pytest -q --timeout=0 -n $(JOBS) tests/fuzz

## test-engines   Docker, containerd (CRI too), CRI-O, Podman, LXC, Incus, Slurm with the installed commands (as root; installs packages).
##                USERLAND= and USERLAND_SID= leave the newer engines out, CRIO= CRI-O; MEASURED=docs/measured/engines.md writes that page
test-engines: bootstrap native
	@tools/bootstrap '$(PYTHON)' engines
	@test -z '$(USERLAND)' || tools/userland '$(USERLAND)'
	@test -z '$(USERLAND_SID)' || tools/userland '$(USERLAND_SID)' sid
	@test -z '$(CRIO)' || tools/crio '$(CRIO)'
	@prefix=$$(mktemp -d /tmp/nvc-engines.XXXXXX) && trap 'rm -rf "$$prefix"' EXIT && chmod 755 "$$prefix" && \
	$(MAKE) -s install PREFIX="$$prefix" DESTDIR= && \
	NVC_TEST_PREFIX="$$prefix" NVC_USERLAND='$(USERLAND)' NVC_USERLAND_SID='$(USERLAND_SID)' NVC_CRIO='$(CRIO)' \
	NVC_MUST_RUN=root,system,engines$(if $(USERLAND),$(comma)userland)$(if $(USERLAND_SID),$(comma)userland-sid)$(if $(CRIO),$(comma)crio) \
	$(VENV)/pytest -n $(JOBS) --dist loadfile $(PYTEST_FLAGS) $(if $(MEASURED),--measured=$(MEASURED)) tests/engines

## test-kubernetes a real control plane, kubelet and containerd with simulated GPUs (as root; needs Go, and half an hour the first time).
##                KUBERNETES= where the programs are built, KUBERNETES_VERSION= which; PYTEST_FLAGS= selects tests;
##                STARTS= of acceptance 1 (default 100), PODS= beside restarts and of the device plugin (default 40, 100),
##                KILLS= of driver, kubelet, containerd (default 25), NODES= for scale (default 100; the acceptance has 1000),
##                QPS= requests a second of the scheduler there (default 50, its own),
##                ALONE= seconds of a pod without driver, API server and kubelet (default 30; the acceptance has 3600);
##                NVC_KUBERNETES_MACHINE=real for this machine's own GPUs (tried with -k share_is_a_few)
test-kubernetes: bootstrap native image
	@tools/kubernetes/build '$(KUBERNETES)' '$(KUBERNETES_VERSION)'
	@tools/bootstrap '$(PYTHON)' kubernetes
	NVC_KUBERNETES='$(KUBERNETES)/$(KUBERNETES_VERSION)' NVC_MUST_RUN=root \
	NVC_KUBERNETES_COUNTS='starts=$(STARTS) pods=$(PODS) kills=$(KILLS) nodes=$(NODES) qps=$(QPS) alone=$(ALONE)' \
	unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private \
	sh -eu tests/support/programs/enter_kubernetes.sh $(VENV)/python -m pytest $(PYTEST_FLAGS) tests/kubernetes

## test-fresh     make demo, deb and test as on a fresh Debian 12 and 13, and the package's life there (as root; needs debootstrap; an hour).
##                STEPS="demo deb test package", TREES="bookworm trixie", JOBS= and PYTEST_FLAGS= select
test-fresh:
	@tools/fresh '$(FRESH)'

## check          format, lint, types, import contracts, C warnings; changes nothing
check: bootstrap-venv
	$(VENV)/ruff format --check .
	@$(C_FILES) | xargs $(VENV)/clang-format --dry-run -Werror
	$(VENV)/ruff check .
	$(VENV)/mypy
	$(VENV)/lint-imports
	$(MAKE) -s -C native check

## fmt            rewrite the sources in the project's format
fmt: bootstrap-venv
	$(VENV)/ruff format .
	$(C_FILES) | xargs $(VENV)/clang-format -i
	$(VENV)/ruff check --fix .

## build          native libraries, byte-compiled Python
build: native
	$(PYTHON) -m compileall -q nvc hook rpc

# A build that takes half a minute says so; one with nothing to do says nothing.
native: $(KUBELET)
	@$(MAKE) -s -q -C native all PYTHON='$(PYTHON)' 2>/dev/null || echo "building the native parts (native/, half a minute)" >&2
	@$(MAKE) -s -C native all PYTHON='$(PYTHON)'

# The kubelet's interfaces, for nvc.kube.wire; written in one step, because other targets may be reading it.
$(KUBELET): $(wildcard nvc/kube/proto/*.proto) | bootstrap-venv
	@mkdir -p $(@D)
	@$(VENV)/python -m grpc_tools.protoc -Invc/kube/proto --descriptor_set_out=$@.new $^ && mv $@.new $@

## install        into PREFIX (and DESTDIR for packages): commands, manual pages, completion, units; enables nothing.
##                EXTRAS=kube: what nvc-py kube needs, too; kept by later ones, EXTRAS=none leaves it out
install: bootstrap-venv native
	@PYTHON='$(PYTHON)' PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' EXTRAS='$(EXTRAS)' tools/install

## uninstall      remove what install put there, unless an engine names it
uninstall:
	@PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' tools/uninstall

## deb            a Debian package in dist/ (VERSION=... for another version)
deb: bootstrap native
	@VERSION='$(VERSION)' packaging/deb

## image          the image of packaging/chart in dist/: an OCI layout in one file, for `ctr images import`
image: bootstrap native
	@PYTHON='$(PYTHON)' packaging/image

## wheel          a wheel in dist/, for pip
wheel: bootstrap native
	@mkdir -p dist
	@PYTHONPATH=. $(VENV)/python packaging/build_wheel.py dist

## man            the manual pages, in build/man
man: bootstrap
	@PYTHONPATH=. $(VENV)/python packaging/manual.py build/man && echo build/man

## docs           the documentation as a site, readable without internet, in build/docs/site (as root: with pictures of programs)
docs: bootstrap-runtimes native
	@tools/bootstrap '$(PYTHON)' venv docs
	@$(VENV)/python -m tools.docs

## test-docs      the site in a headless browser: search, links, quick start, no request to another host
test-docs: docs
	$(VENV)/pytest $(PYTEST_FLAGS) tests/docs

## bench          measure; prints ratios of one run as a table
bench: bootstrap-runtimes native
	@$(VENV)/python -m tools.bench $(BENCH_FLAGS)

## bench-gpu      services beside neighbours on this machine's GPU, in each way of sharing, as a page with a plot (as root; 25 minutes).
##                NVC_BENCH_SECONDS=, NVC_BENCH_WINDOW=, NVC_BENCH_ROWS= as in tests/gpu/bench/test_services.py
bench-gpu: bootstrap native
	NVC_GPU_PARTS=services NVC_MUST_RUN=root,system,gpu $(VENV)/pytest -s tests/gpu/bench

## bench-scale    measure an agent with hundreds of containers against its goals, on the simulated driver; some 10 minutes, as root
bench-scale: bootstrap native
	@$(VENV)/python -m tools.bench_scale $(BENCH_FLAGS)

## test-gpu       the GPU suite (needs a machine with an NVIDIA GPU, as root)
test-gpu:
	tests/gpu/run.sh

## test-sanitize  the native tests under ASan and UBSan
test-sanitize:
	$(MAKE) -s -C native sanitize

## clean          remove everything that make made
clean:
	rm -rf build dist *.egg-info .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
	@if [ -f native/Makefile ]; then $(MAKE) -s -C native clean; fi

# Each target's set-up; the interpreter may be one of the things that are installed.
bootstrap-venv:
	@tools/bootstrap '$(PYTHON)' venv

bootstrap-runtimes:
	@tools/bootstrap '$(PYTHON)' venv runtimes

bootstrap:
	@tools/bootstrap '$(PYTHON)' venv runtimes packages
