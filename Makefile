# Symphony's commands. Each does the set-up it needs and may be repeated; none needs another first.
#
#   make install   .venv with everything, the guest toolchains       2-10 min the first time
#   make demo      serve the tiny model, run the examples over HTTP   1 min
#   make serve     the server on http://127.0.0.1:8700 until Ctrl-C
#   make compiled  the kernel's modules compiled, after a change of them   1 min
#   make check     format, lint, types, import direction              1 min
#   make test      check, then the whole suite                        23 to 28 min
#   make docs      the docs site, into build/site   seconds
#   make console   the web console that the gateway serves, from console/   seconds
#   make diagrams  the docs' diagrams, from tools/diagrams   seconds
#   make wheel     dist/: wheels and source distributions of server and client   2 min
#   make language-modules   the interpreters of source programs, whose Wasm is committed   1 min
#   make screenshots   the docs' pictures of the console, by Chromium   1 min
#   make bench     the benchmarks, figures on the screen                3 min
#   make schemathesis   requests made of /openapi.json, EACH a route    5 min
#   make fuzz      random programs, frames and modules: CALLS, SEED, MINUTES   10 min
#   make clean     remove all that the above made

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# Python keeps its bytecode, also where a shell says otherwise: each of a server's processes would
# compile our sources again, a second a start.
RUNNING := PYTHONDONTWRITEBYTECODE= PATH="$(CURDIR)/$(BIN):$$PATH"
AS := guest_sdk/assemblyscript
EXAMPLE_SOURCES := $(shell find examples guest_sdk -type f \( -name '*.rs' -o -name '*.ts' \
	-o -name 'Cargo.toml' -o -name 'asconfig.json' -o -name 'package.json' -o -name 'manifest.json' \) \
	-not -path '*/node_modules/*' -not -path '*/target/*' -not -path '*/build/*' 2>/dev/null)

NATIVE_SOURCES := $(wildcard kernel/symphony_kernel/executor/native/source/*.cpp kernel/symphony_kernel/executor/native/source/*.h)
HOSTCALLS_SOURCE := runtime/symphony_runtime/engine/hostcalls.c
KERNEL_SOURCES := $(shell find kernel/symphony_kernel -name '*.py')

.PHONY: help install system compiled wheel shipped-program language-modules console screenshots demo serve check format test docs diagrams react-run bench fuzz \
	schemathesis examples clean

help:
	@sed -n '2,18s/^# \{0,1\}//p' Makefile

install: system $(VENV)/installed build/toolchains build/native build/compiled

system:
	@echo "== install: what this system has to have (asks for root only if something is missing)"
	@bash tools/install_system.sh "$(PYTHON)" server guests

$(VENV)/installed: pyproject.toml client/pyproject.toml constraints.txt $(HOSTCALLS_SOURCE) tools/install_python.sh \
		tools/install_system.sh
	@bash tools/install_system.sh "$(PYTHON)" server
	@echo "== install: Python packages into $(VENV) (a few minutes; PyTorch is the large one)"
	@bash tools/install_python.sh "$(PYTHON)" $(VENV)
	@touch $@

build/toolchains: $(AS)/package-lock.json tools/install_toolchains.sh tools/install_system.sh
	@echo "== install: guest toolchains, Rust for wasm32 and AssemblyScript (a minute or two)"
	@bash tools/install_system.sh "$(PYTHON)" guests
	@bash tools/install_toolchains.sh $(AS)
	@mkdir -p build && touch $@

build/native: $(VENV)/installed $(NATIVE_SOURCES)
	@echo "== install: the model's kernels, compiled for this processor (under a minute)"
	@$(RUNNING) python -m symphony_kernel.executor.native
	@mkdir -p build && touch $@

build/compiled: $(VENV)/installed $(KERNEL_SOURCES)
	@echo "== compiled: the kernel's hot modules, by mypyc (a minute; SYMPHONY_COMPILED=0 does without)"
	@$(RUNNING) python -m symphony_kernel.compiled
	@mkdir -p build && touch $@

compiled: build/compiled

wheel: $(VENV)/installed
	@echo "== wheel: server (for this Python and this kind of machine) and client, into dist/ (two minutes)"
	@$(RUNNING) python tools/build_wheel.py dist

examples: build/examples

build/examples: $(VENV)/installed build/toolchains $(EXAMPLE_SOURCES)
	@echo "== examples: compiling every LIP in examples/ (under a minute)"
	@$(RUNNING) python tools/build_examples.py
	@touch $@

shipped-program: $(VENV)/installed build/toolchains
	@echo "== shipped-program: the LIP behind the OpenAI routes, whose Wasm is committed (seconds)"
	@$(RUNNING) python tools/build_shipped_program.py

language-modules: $(VENV)/installed
	@echo "== language-modules: QuickJS by clang, with the calls of lip (a minute; needs clang, lld, wasi-libc)"
	@$(RUNNING) python tools/language_modules.py
	@$(RUNNING) python -m tools.python_module

demo: system build/examples build/native build/compiled
	@echo "== demo: the server on the embedded tiny model, LIPs over HTTP (under a minute)"
	@$(RUNNING) python examples/demo.py

serve: $(VENV)/installed build/native build/compiled
	@echo "== serve: http://127.0.0.1:8700, data in .data/, Ctrl-C drains and stops"
	@$(RUNNING) symphony serve --data-dir .data

check: $(VENV)/installed
	@echo "== check: format, lint, types, import direction, words (about a minute)"
	@$(RUNNING) ruff format --check .
	@$(RUNNING) ruff check .
	@$(RUNNING) mypy
	@$(RUNNING) lint-imports
	@$(RUNNING) python tools/import_cycles.py
	@$(RUNNING) python tools/words.py
	@$(RUNNING) python tools/prose.py

format: $(VENV)/installed
	@$(RUNNING) ruff format .
	@$(RUNNING) ruff check --fix .
	@$(RUNNING) python tools/example_lines.py --write

build/console: console/package-lock.json
	@echo "== console: what bundles the console (seconds)"
	@npm ci --prefix console --silent --no-audit --no-fund
	@mkdir -p build && touch $@

console: build/console
	@echo "== console: the gateway's web page, whose files are committed (seconds)"
	@npm run --prefix console --silent check
	@npm run --prefix console --silent build

build/clients/installed: tests/clients/package-lock.json
	@echo "== clients: a coding agent that the suite runs (seconds; 400 MB)"
	@mkdir -p $(@D) && cp tests/clients/{package.json,package-lock.json,.npmrc} $(@D)
	@npm ci --prefix $(@D) --silent --ignore-scripts && touch $@ \
		|| echo "   it could not be installed: its test is skipped"

build/deploy-tools: tools/install_deploy_tools.sh
	@echo "== deploy-tools: promtool and Helm, which check deploy/ (seconds; 110 MB)"
	@bash tools/install_deploy_tools.sh $@ && touch $@ \
		|| echo "   they could not be fetched: their tests are skipped"

test: check build/examples build/native build/compiled build/console build/clients/installed build/deploy-tools
	@echo "== test: the whole suite, two files at a time (23 to 28 minutes on two cores)"
	@$(RUNNING) pytest -n 2 --dist loadfile --no-loadscope-reorder

docs: $(VENV)/installed
	@echo "== docs: the site, into build/site (seconds); any warning is an error"
	@$(RUNNING) NO_MKDOCS_2_WARNING=1 python -m mkdocs build --quiet --strict

diagrams: $(VENV)/installed
	@echo "== diagrams: docs/how-it-works/figures, from tools/diagrams"
	@$(RUNNING) python -m tools.diagrams

screenshots: build/examples build/native build/compiled
	@echo "== screenshots: the console's views, into docs/operate/figures (a minute)"
	@$(RUNNING) python -m tools.screenshots

react-run: build/examples build/native build/compiled
	@echo "== react-run: one run as a LIP and as a client, recorded for its diagram (seconds)"
	@$(RUNNING) python -m tools.react_run
	@$(RUNNING) python -m tools.diagrams

bench: build/examples build/native build/compiled
	@echo "== bench: absolute figures move with the machine, ratios do not (three minutes)"
	@$(RUNNING) python -m benchmarks.host_overhead
	@$(RUNNING) python -m benchmarks.decode

EACH ?= 100
CALLS ?= 1000000
SEED ?= 1
MINUTES ?= 0
schemathesis: $(VENV)/installed
	@echo "== schemathesis: $(EACH) requests a route, of each kind, others each time (some five minutes)"
	@$(RUNNING) SYMPHONY_SCHEMATHESIS=$(EACH) pytest tests/hostile/clients/test_schemathesis.py \
		tests/hostile/clients/test_odd_values.py

fuzz: $(VENV)/installed
	@echo "== fuzz: $(CALLS) calls from seed $(SEED), and what they found (some ten minutes a million)"
	@$(RUNNING) python -m tests.fuzz --calls $(CALLS) --seed $(SEED) --minutes $(MINUTES)

clean:
	@echo "== clean: everything that these commands made"
	@rm -rf $(VENV) build dist .data .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
	@find console examples guest_sdk -type d \( -name target -o -name node_modules -o -name build \) -prune -exec rm -rf {} +
	@rm -rf *.egg-info runtime/symphony_runtime/engine/_hostcalls.*.so
