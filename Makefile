# Every target is one line of Python, so that make is a convenience and not a need.
# ARGS is handed on: make test ARGS="tests/unit -x", make demo ARGS="--nodes 50".

PYTHON ?= python3
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench soak openstack release-check mutate envtest-assets generate picture lock sbom manifests env clean

help demo test lint format bench soak openstack release-check mutate envtest-assets generate picture lock sbom manifests env clean:
	@$(PYTHON) .dev/run.py $@ $(ARGS)
