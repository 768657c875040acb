# Each target does all its own set-up: scripts/uv finds or fetches uv, and uv brings Python and the locked packages.

UV := sh scripts/uv
RUN := $(UV) run --locked
PYTEST := $(RUN) $(if $(COVERAGE),coverage run -m) pytest -n auto --maxprocesses 8
OLDEST := 3.12
# Runs something on the oldest Python that is supported where the machine has it, and where not says so and does the other.
on-oldest = if $(UV) python find --no-python-downloads --no-project $(OLDEST) >/dev/null 2>&1; then \
		$(UV) run --locked --isolated --python $(OLDEST) $(1); \
	else \
		echo "Python $(OLDEST) is not on this machine: $@ did NOT run on the oldest Python that is supported."; \
		$(2); \
	fi
# Where the tests are that need a program of the system.
SYSTEM := tests/system packages/reflexr-agent/tests/test_litellm_proxy.py

.DEFAULT_GOAL := help
.PHONY: help demo test test-oldest test-system check format-check lint types layering verify generate coverage \
	coverage-report wheels build chaos bench docs fmt clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F '|' '{ printf "%-22s %s\n", $$1, $$2 }'

demo: ## watch rules fire on a short log, or on yours: make demo LOG=path; again, and it continues
	@$(UV) run --locked --no-dev python -m oncall --database build/oncall.db $${LOG:+"$$LOG"}

test: ## run the tests
	$(if $(COVERAGE),@rm -rf build/coverage)
	$(PYTEST) -m "not system"

test-oldest: ## run the tests, or some: make test-oldest TESTS=path, on the oldest Python that is supported
	@$(call on-oldest,pytest -n auto --maxprocesses 8 -m "not system" $(TESTS),true)

test-system: ## run the tests that need a program of the system, such as a browser, once what is missing is installed
	$(RUN) python -m scripts.programs
	REFLEXR_TEST_LITELLM=$(CURDIR)/build/litellm/bin/litellm $(PYTEST) -n 0 -m system $(SYSTEM)

check: format-check lint types verify coverage wheels docs ## everything that must hold

format-check: ## is everything formatted?
	$(RUN) ruff format --check

lint: ## ruff
	$(RUN) ruff check

types: ## pyright, strict
	$(RUN) pyright

layering: ## does each package import only what its layer may? (part of the tests too)
	$(RUN) pytest -q tests/test_layering.py

verify: ## regenerate what is generated and fail on a difference
	$(RUN) python -m scripts.generate --check

generate: ## write what is generated: the JSON Schemas and the reference pages
	$(RUN) python -m scripts.generate

coverage: ## run the tests and hold them to 100 % of lines and branches
	@$(MAKE) --no-print-directory test COVERAGE=yes
	@$(MAKE) --no-print-directory coverage-report

coverage-report:
	@$(RUN) coverage combine --quiet
	$(RUN) coverage report

build: ## build the distributions that are published into build/dist
	$(RUN) python -m scripts.wheels build

wheels: ## install each wheel alone into an empty environment of the oldest Python and run its own tests there
	@$(call on-oldest,python -m scripts.wheels check,$(RUN) python -m scripts.wheels check)

chaos: ## kill and pause processes, and the server: make chaos SECONDS=600 SEED=7, or without a seed
	@REFLEXR_CHAOS_SECONDS=$(or $(SECONDS),60) REFLEXR_CHAOS_SEED=$(SEED) \
		$(RUN) pytest -q -s -n 0 packages/reflexr-sql/tests/test_chaos.py -k after_a_chaos

bench: ## measure each benchmark beside its raw limit; writes build/bench.json
	$(RUN) python -m benchmarks $(ARGS)

docs: ## build the documentation into build/site
	$(RUN) --group docs zensical build --clean --strict

fmt: ## format, and fix what can be fixed
	$(RUN) ruff check --fix
	$(RUN) ruff format

clean: ## remove what was built, and the environment
	rm -rf build dist .venv .tools .cache .hypothesis .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
