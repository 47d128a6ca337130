# The commands of the README. Everything is installed into .venv, simulators into .simulators, vLLM into .engines, LeRobot into .peers,
# other Pythons' into .pythons; `make clean` removes them.
# Another interpreter: make setup PYTHON=/path/to/python3.12

PYTHONS := $(if $(PYTHON),"$(PYTHON)",python3 python3.13 python3.12 python3.11)
# two processes of one thread each: torch's threads would fight over the cores
PYTEST := OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 2 --dist worksteal
# the long tests wait for processes of their own half of the time, and those of a file share what takes minutes to prepare
PYTEST_SLOW := OMP_NUM_THREADS=1 .venv/bin/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --timeout 900
# where it is set, each of the many processes that tests start would compile mmrl again
unexport PYTHONDONTWRITEBYTECODE
# each bundled plugin and simulator is a distribution of its own
PLUGINS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml sims/*/pyproject.toml))
# installed without what it needs: ManiSkill is gigabytes, see `make simulators`
BARE := sims/maniskill
STAMP := .venv/setup-done
INSTALL := .venv/bin/python tests/support/install.py .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help setup system simulators engines peers demo demo-robot test test-slow test-all test-turn test-pythons lint docs docs-pictures attack bench bench-gpu bench-gpu-bundle clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1 \2/p' Makefile | while read -r make name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

setup: $(STAMP)  ## create .venv and install what the demo and the tests need

system:  ## install what some tests need from Debian, as root: Chromium, Vulkan, OSMesa; tests skip what is missing
	tests/system.sh

simulators: $(STAMP)  ## install ManiSkill, Meta-World, LIBERO, robosuite, MuJoCo Playground, CALVIN and Gymnasium's families (8 GB) for their tests, each into an environment of its own
	tests/environments.sh maniskill metaworld gym libero robosuite playground calvin

engines: $(STAMP)  ## install vLLM's CPU build (4 GB) for its tests, into an environment of its own
	tests/environments.sh vllm

peers: $(STAMP)  ## install TRL and reasoning-gym, and LeRobot, verl, ms-swift, OpenEnv, verifiers, inspect-ai, BrowserGym and trackers (10 GB) each into an environment of its own, for the tests of adapters
	$(INSTALL) -c constraints.txt "trl>=1.16,<1.17" "reasoning-gym>=0.1.25,<0.2" "stable-baselines3>=2.4,<3"
	tests/environments.sh lerobot verl swift openenv verifiers inspect browsergym lmms trackers

demo: $(STAMP)  ## teach a tiny model to read handwritten digits: a warm start, then GRPO
	.venv/bin/python -m mmrl train configs/demo/digits.toml --overwrite

demo-robot: $(STAMP)  ## teach a tiny model to pick up what is named, in the embedded simulator: PPO
	.venv/bin/python -m mmrl train configs/demo/robot.toml --overwrite

test: $(STAMP)  ## the everyday tests
	$(PYTEST) -m "not slow and not long and not gpu"

test-slow: $(STAMP)  ## the long tests
	$(PYTEST_SLOW) -m "(slow or long) and not exhaustive and not gpu"

test-all: $(STAMP)  ## the everyday tests, and the long ones with all of their cases
	$(PYTEST) -m "not slow and not long and not gpu"
	$(PYTEST_SLOW) -m "(slow or long) and not gpu"

test-turn: $(STAMP)  ## of the tests that CI leaves out those that ran the longest ago, for MINUTES=30: tests/turns.json has the last runs
	OMP_NUM_THREADS=1 .venv/bin/python tests/support/exhaustive_turns.py $(if $(MINUTES),--minutes $(MINUTES))

test-pythons: $(STAMP)  ## install under Python 3.12 and 3.13 where they are, and test what needs no models
	tests/pythons.sh 3.12 3.13

lint: $(STAMP)  ## ruff, mypy and the import contracts
	.venv/bin/python -m ruff check
	.venv/bin/python -m ruff format --check
	.venv/bin/python -m mypy
	.venv/bin/python tests/support/contracts.py

docs: .venv/docs-done  ## build the documentation site into build/docs/site, without a network, and check it
	VERSIONS="$(VERSIONS)" OMP_NUM_THREADS=1 .venv/bin/python docs/site/docs_build.py

docs-pictures: .venv/docs-done  ## make the pictures of the first steps anew, from runs: a few minutes
	OMP_NUM_THREADS=1 .venv/bin/python docs/site/docs_pictures.py

attack: $(STAMP)  ## bad input of all kinds against everything, half an hour: what was tried, what held, what fell
	OMP_NUM_THREADS=1 .venv/bin/python tests/attack/run.py

bench: $(STAMP)  ## list the benchmarks; NAME=... runs one
ifdef NAME
	.venv/bin/python benchmarks/$(NAME).py
else
	@for file in $$(grep -l __main__ benchmarks/*.py); do printf '  make bench NAME=%-20s %s\n' "$$(basename "$$file" .py)" "$$(sed -n '1s/"""//gp' "$$file")"; done
endif

bench-gpu:  ## a self-test and the benchmarks on a GPU, nine minutes; PYTHON=... that has torch for it, SECONDS=..., PARTS=..., RESUME=FOLDER
	"$(or $(PYTHON),python3)" benchmarks/gpu_all.py $(if $(SECONDS),--seconds $(SECONDS)) $(if $(PARTS),--parts $(PARTS)) $(if $(RESUME),--resume "$(RESUME)")

bench-gpu-bundle: $(STAMP)  ## bring what a GPU machine without a network lacks for it into .gpu-bundle: PYTHON_VERSION=3.12
	.venv/bin/python benchmarks/gpu_bundle.py --python $(or $(PYTHON_VERSION),3.12)

clean:  ## remove .venv, .simulators, .engines, .peers, .pythons and the caches; runs/ stays
	rm -rf .venv .simulators .engines .peers .pythons .gpu-bundle .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis build dist

# The stamp makes a second run instant. A Python without ensurepip (Debian's, unless python3-venv is there) lends its own pip.
$(STAMP): Makefile pyproject.toml constraints.txt $(PLUGINS:=/pyproject.toml)
	@for python in $(PYTHONS) none; do \
	  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
	done; \
	if [ "$$python" = none ]; then \
	  echo 'mmrl needs Python 3.11 or later; tried: $(PYTHONS). Install one, or name it: make setup PYTHON=/path/to/python3.12' >&2; exit 1; \
	fi; \
	if .venv/bin/python -m pip --version >/dev/null 2>&1; then exit 0; fi; \
	echo "creating .venv with $$("$$python" -c 'import sys; print(sys.executable, sys.version.split()[0])')"; \
	if "$$python" -c 'import ensurepip' 2>/dev/null; then "$$python" -m venv --clear .venv; \
	else "$$python" -m venv --clear --without-pip .venv && "$$python" -m pip --python .venv/bin/python install -q pip; fi
	@echo 'installing mmrl and what it needs into .venv: a minute or a few'
	@.venv/bin/python -m pip uninstall -q -y mmrl 2>/dev/null  # the name of version 0.1, whose files would stay beside these
	@# uv is ten times faster; without it pip does the work
	@.venv/bin/python -m pip install -q -c constraints.txt uv || echo 'uv could not be installed: pip takes a few minutes' >&2
	@# built with what is here: an environment of its own for each of them would take longer than all else
	@$(INSTALL) -c constraints.txt hatchling editables setuptools
	@$(INSTALL) -c constraints.txt --no-build-isolation \
	  -e ".[train,quantized,board,ray,test,dev]" $(patsubst %,-e %,$(filter-out $(BARE),$(PLUGINS)))
	@$(INSTALL) --no-deps --no-build-isolation -e $(BARE)
	.venv/bin/python -m mmrl.compute.torchvision --install-pth
	@touch $@
	@echo 'ready: .venv/bin/mmrl, make demo, make test'

.venv/docs-done: $(STAMP)
	$(INSTALL) -c constraints.txt --no-build-isolation -e ".[docs]"
	@touch $@
