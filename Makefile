# Everything runs in .venv, which the first target that needs it creates.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python

.PHONY: help environment demo test test-all lint unit engine lab bench bench-decide bench-facts clean

help:
	@echo "make demo    boot a throwaway node, serve a model on it, ask it, run again, clean up (KEEP=1 keeps it)"
	@echo "make environment  .venv with gpuwright, pyinfra and what tests need; the other targets make it themselves"
	@echo "make test    everything that CI runs: lint, types, unit tests, a real engine, real nodes (needs root)"
	@echo "make test-all  all of that, and every engine's own code asked again: four installs of 9-10 GB, one at a time"
	@echo "make lint    ruff and mypy"
	@echo "make unit    tests that need no node"
	@echo "make engine  starts vLLM's CPU build on tiny models; compiles kernels of llama.cpp for two generations of cards"
	@echo "make lab     tests on real nodes (needs root)"
	@echo "make bench   what a decision and a converged run cost, beside pyinfra's floor and Ansible (needs root)"
	@echo "make bench-decide  what a decision costs, over 1,000 rigs"
	@echo "make bench-facts  what looking costs: 200 rigs gathered and planned in one run, a node over SSH (needs root)"
	@echo "make clean   remove .venv and what tests left here; tear down the lab"

environment: $(VENV)/installed

$(VENV)/installed: pyproject.toml tools/environment.sh
	@PYTHON=$(PYTHON) tools/environment.sh $(VENV)

demo: environment
	@$(RUN) -m tools.demo

test: lint unit engine lab

test-all: test
	@$(RUN) -m pytest -m slow -v --durations=15

lint: environment
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -m mypy

unit: environment
	@$(RUN) -m pytest -m "not lab and not engine and not slow" -q -n 2

engine: environment
	@$(RUN) -m pytest -m engine -q

lab: environment
	@$(RUN) -m pytest -m lab -v -n 2 --dist loadfile --durations=15

bench: environment
	@tools/environment.sh $(VENV) bench
	@$(RUN) -m benchmarks.decide
	@$(RUN) -m benchmarks.converged

bench-decide: environment
	@$(RUN) -m benchmarks.decide

bench-facts: environment
	@$(RUN) -m benchmarks.fleet_facts --node

clean:
	@if [ -x $(RUN) ]; then $(RUN) -m tests.lab clean; fi
	@rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
