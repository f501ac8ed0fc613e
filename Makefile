# Every target makes its environment first where that is missing or out of date.
#   PYTHON=/path/to/python3.10     the interpreter for .venv
#   PLANNER_PYTHON=/path/to/python the interpreter for .venv-planner
#   ARGS="-k boxing"               passed on to pytest, the demo or the experiments
#   QUICK=1                        experiments with fewer models, passes and steps

.DEFAULT_GOAL := help
.PHONY: help demo test test-rest test-all test-planner check testbed browser experiments clean venv venv-planner

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

PLANNER = PYTHON="$(PLANNER_PYTHON)" tools/bootstrap.sh .venv-planner test 3.13 3.12 3.11

venv:
	@tools/bootstrap.sh .venv oneflow,dev 3.10

demo: venv ## Train a GPT on CPU ranks as planned, then time ours beside experts' plans
	@.venv/bin/python -m experiments.demo $(ARGS)

test: venv ## Run tests of every kind (CPython 3.10 with OneFlow), 5 minutes on two cores
	@tools/test.sh .venv --part quick $(ARGS)

test-rest: venv ## Run what `make test` leaves out: more cases, plans on up to 8 ranks, testbeds
	@tools/test.sh .venv --part rest $(ARGS)

test-all: venv ## Run all tests
	@tools/test.sh .venv $(ARGS)

venv-planner:
	@$(PLANNER)

# It shows that autoddl imports, plans and generates on newer versions of Python and NumPy: for that two tests of
# each module run; `make test-all` runs all, as numbers do not depend on versions. Pytest leaves asserts as
# they are: to rewrite those of all modules is half of what each process collects with.
test-planner: ## Run a few tests of each module, without OneFlow, on the newest CPython found
	@$(PLANNER) || { \
	    code=$$?; \
	    if [ $$code -eq 2 ] && [ -z "$(PLANNER_PYTHON)" ]; then \
	        echo "test-planner: skipped, this machine has no newer Python than 3.10"; exit 0; \
	    fi; \
	    exit $$code; }; \
	tools/test.sh .venv-planner $(or $(ARGS),--assert plain --cases 1 --tests 2 --ignore tests/experiments --ignore tests/architecture --ignore tests/search/rivals)

check: venv ## Lint, check the format, the types and the import contracts
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy -p autoddl -p experiments
	@.venv/bin/mypy examples
	@.venv/bin/lint-imports --no-cache --no-logo

testbed: venv ## Install iproute2 if it is missing, then try the links of a testbed (as root)
	@sudo=; [ "$$(id -u)" -eq 0 ] || sudo=sudo; \
	PATH="$$PATH:/usr/sbin:/sbin"; export PATH; \
	if ! command -v ip >/dev/null || ! command -v tc >/dev/null; then \
	    $$sudo apt-get update && $$sudo apt-get install --yes --no-install-recommends iproute2 || exit; \
	fi; \
	$$sudo .venv/bin/python -B -m experiments.testbed --check $(ARGS)

browser: venv ## Install Debian's chromium if it is missing, then open pages of plans in it
	@sudo=; [ "$$(id -u)" -eq 0 ] || sudo=sudo; \
	if [ ! -x /usr/bin/chromium ]; then \
	    $$sudo apt-get update && $$sudo apt-get install --yes --no-install-recommends chromium || exit; \
	fi; \
	.venv/bin/pytest -q tests/autoddl/report/page/test_browser.py $(ARGS)

experiments: venv ## Run the experiments of the paper, as root for testbeds; write docs/results.md
	@.venv/bin/python -m experiments.figures $(if $(QUICK),--quick) $(ARGS)

clean: ## Remove outputs, builds and caches (environments stay: rm -rf .venv*)
	rm -rf out log build dist *.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name '.venv*' -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
