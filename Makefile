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
TESTS ?= tests
# A test that failed is run once more, against machines that stall; the summary names it, as a defect to be reported.
SIDE_BY_SIDE = $(PYTEST) --reruns 1 -raR --dist loadfile --no-loadscope-reorder -n
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
# Not what make sets by itself, such as AS, the assembler.
option = $(if $(and $($(1)),$(filter-out default,$(origin $(1)))),$(2) $(call quoted,$($(1))))
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

# Of a release: tools/release.py, and the image of the architecture that this machine has.
COMPILER = $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt setuptools ziglang
RELEASE = $(COMPILER) && $(BIN)/python tools/release.py
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
ARCHITECTURE = $(patsubst aarch64,arm64,$(patsubst x86_64,amd64,$(shell uname -m)))
BASE = $(if $(filter arm64,$(ARCHITECTURE)),trainyard/torch:arm64)
IMAGE_NAME = $(shell echo '$(IMAGE)' | tr A-Z a-z)

.PHONY: help bundle setup packages run lab browser lint test test-quick test-slow test-all test-each test-plain test-clouds \
	test-clouds-slow test-courses test-wheel test-hosted soak-elastic soak fuzz conformance test-kubelet \
	bench newest types site slides diagrams wheel release reproduce image image-push image-index pins clean

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

packages: bundle
	@$(SETUP) --packages

lint: packages  ## the hooks of .pre-commit-config.yaml on all files: style, types, import contract, notebooks, templates
	$(BIN)/pre-commit run --all-files

test: browser  ## lint, then unit, node, cluster, notebook and browser tests, but for the slow ones
	$(call each_of,lint test-quick)

test-quick:
	$(SIDE_BY_SIDE) $(WORKERS) -m "not slow" $(TESTS)

test-slow: browser  ## the tests that `make test` leaves out, but for those that take minutes
	$(SIDE_BY_SIDE) $(WORKERS) -m "slow and not long" tests

test-all: browser  ## every test, those that take minutes as well; those of pods in plain mode, too
	$(call each_of,lint test-each test-plain)

test-wheel: setup  ## pip install the kit from a folder of wheels (3 GB, WHEELS=), offline; quickstart, course, notebooks
	$(if $(WHEELS),TRAINYARD_WHEELS=$(call quoted,$(WHEELS))) $(PYTEST) tests/cluster/test_wheels.py

test-hosted: setup  ## notebooks that set themselves up in a container without privileges, with packages of its own (9 GB)
	$(COMPILER)
	$(PYTEST) tests/cluster/test_hosted.py

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

conformance: setup  ## Kubernetes' conformance suite on a local cluster; FOCUS=REGEX, SUITE=NodeConformance or sigs, AS=USER, PROCESSES=
	$(BIN)/python -m tests.conformance $(call option,FOCUS,--focus) $(call option,SUITE,--suite) \
		$(call option,AS,--as) $(call option,PROCESSES,--processes)

test-kubelet: setup  ## notebooks on a node of containerd, runc and Kubernetes' own kubelet, as root; NOTEBOOKS="01 05"
	$(BIN)/python -m tests.kubelet $(NOTEBOOKS)

bench: setup  ## measure this kit beside its peers, in one run
	$(BIN)/python -m bench

site: setup  ## build this version's web site of README, executed notebooks and docs in build/site; BASE=/path/ at its server
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python build/site-environment
	VIRTUAL_ENV=build/site-environment $(BIN)/uv pip install --quiet -c constraints.txt myst-nb sphinx sphinx-book-theme
	build/site-environment/bin/python tools/build_site.py $(call option,BASE,--base)

# What no range lets in, such as a new major release, is in the list that ends the report.
newest: NEWEST = build/newest
newest: setup  ## try the newest releases of all dependencies: unit tests, a cluster; reports/newest.txt has what is new
	$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python $(NEWEST)
	$(BIN)/uv pip install --quiet --python $(NEWEST)/bin/python uv
	$(NEWEST)/bin/python tools/install_packages.py --newest
	mkdir -p reports
	$(BIN)/uv pip freeze --python $(NEWEST)/bin/python | awk -F== 'NR == FNR { pin[$$1] = $$2; next } \
		$$1 in pin && pin[$$1] != $$2 { print $$1 ": " pin[$$1] " -> " $$2 }' constraints.txt - | tee reports/newest.txt
	$(BIN)/uv pip list --outdated --python $(NEWEST)/bin/python | tee -a reports/newest.txt
	$(NEWEST)/bin/python -m pytest -n $(WORKERS) --dist loadfile -m "not slow" tests/unit tests/cluster/test_runs.py \
		--ignore tests/unit/test_environment.py \
		--deselect tests/unit/test_trainer_image.py::test_the_image_has_what_the_programs_declare

types: setup  ## measure by pyright how much of kitlib's public API has types
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python build/types-environment
	VIRTUAL_ENV=build/types-environment $(BIN)/uv pip install --quiet -c constraints.txt "pyright[nodejs]"
	-PYTHONPATH=. build/types-environment/bin/pyright --pythonpath $(BIN)/python --verifytypes kitlib --ignoreexternal

slides:  ## make build/slides.html of docs/slides.md; needs Node.js
	npm install --silent --no-save --no-package-lock --prefix build @marp-team/marp-cli@4.5.1
	mkdir -p build/images && cp docs/images/*.svg build/images/
	build/node_modules/.bin/marp docs/slides.md --output build/slides.html

diagrams:  ## render docs/diagrams as pictures; needs Node.js
	npm install --silent --no-save --no-package-lock --prefix build @terrastruct/d2@0.1.33
	cp tools/diagrams.mjs build/ && node build/diagrams.mjs

wheel: setup  ## make the control plane a Python package for machines without Go, in dist/
	$(COMPILER)
	$(BIN)/python tools/wheel.py --output dist

release: packages  ## what a release publishes, in dist/, and what is missing here; PARTS=, NEED=, TAG= as tools/release.py
	$(RELEASE) $(call option,TAG,--tag) $(addprefix --part ,$(PARTS)) $(addprefix --need ,$(NEED))

reproduce: packages  ## build the wheels of dist/ again, compiling everything, and compare: ten minutes on two cores
	$(RELEASE) --compare dist

image:  ## the trainers' image for this architecture; needs Docker
	$(if $(BASE),docker build --tag $(BASE) images/torch-arm64)
	docker build --file images/trainer/Dockerfile $(BASE:%=--build-arg BASE=%) --tag trainyard/trainer:$(ARCHITECTURE) .

image-push:
	docker tag trainyard/trainer:$(ARCHITECTURE) $(IMAGE_NAME):$(VERSION)-$(ARCHITECTURE)
	docker push $(IMAGE_NAME):$(VERSION)-$(ARCHITECTURE)

image-index:
	docker buildx imagetools create --tag $(IMAGE_NAME):$(VERSION) $(addprefix $(IMAGE_NAME):$(VERSION)-,amd64 arm64)

pins: setup  ## write constraints.txt anew from the environment
	$(BIN)/python tools/pin.py

clean:  ## delete the environment, the reports and the caches of tools; clusters and the control plane stay
	rm -rf $(VENV) reports build dist .pytest_cache .ruff_cache .import_linter_cache *.egg-info
