# Trainyard: `make help` lists what can be asked for. Each target is a task of tools/dev.py, which has some more;
# make passes VARIABLE=value on in the environment.
.DEFAULT_GOAL := help
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$python; break; }; done)
TARGETS = help setup run lab lint test test-all bench gpu conformance test-kubelet soak wheel release site

.PHONY: $(TARGETS)
$(TARGETS):
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later on PATH: install one, or say make PYTHON=/path/to/python3"; exit 1; }
	@"$(PYTHON)" tools/dev.py $@
