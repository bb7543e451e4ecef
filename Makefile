.DEFAULT_GOAL := help
.PHONY: help demo test test-cluster e2e unit unit-arm64 fuzz nightly conformance bench lint docs lab cluster release clean

PYTEST := .venv/bin/pytest
# Tests wait for timers and processes, so more run at once than there are processors.
WORKERS := $$(($$(nproc) + 2))
# Options for pytest: make test ARGS='-k scheduler -x'
ARGS ?=
# Byte code is kept, whatever the shell says: rewriting the assertions of all tests takes longer than most tests.
export PYTHONDONTWRITEBYTECODE :=

help: ## show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

demo: ## watch a three-node cluster load-balance through IPVS
	@scripts/demo

test: ## run the tests, also those that send packets; of those that repeat others a part, drawn by a seed
	@scripts/setup test
	@$(PYTEST) $(ARGS)

unit: ## run the tests that need no kernel, browser or kubectl, with a tenth of the examples of each property
	@scripts/setup unit
	@$(PYTEST) -o testpaths=tests/unit -n $(WORKERS) --dist worksteal --hypothesis-profile quick -m 'not lab and not browser and not kubectl and not machine and not shells and not prometheus and not release' $(ARGS)

unit-arm64: ## run those in kernel, model and settings for arm64, in emulation of its processor
	@scripts/setup arm64
	@.venv/bin/python -m tests.arm64 $(ARGS)

fuzz: ## run the tests with hostile bytes and objects at length (EXAMPLES of each property; 10000 if not given)
	@scripts/setup unit
	@KROUTE_FUZZ_EXAMPLES=$(or $(EXAMPLES),10000) $(PYTEST) tests/unit/fuzz $(ARGS)

nightly: ## run every test at length, a day of trouble in an hour (with the seed SEED, or the date), on a cluster and for arm64 too, and make fuzz
	@scripts/setup test
	@failed=0; \
	KROUTE_LAB_THOROUGH=1 KROUTE_LAB_DAY=3600 KROUTE_LAB_SEED=$(or $(SEED),$(shell date +%Y%m%d)) \
		.venv/bin/python -m pytest -p tests.conformance.page_writer $(ARGS) || failed=1; \
	KROUTE_LAB_THOROUGH=1 $(MAKE) test-cluster || failed=1; \
	$(MAKE) unit-arm64 || failed=1; \
	KROUTE_FUZZ_EXAMPLES=10000 $(PYTEST) tests/unit/fuzz || failed=1; \
	exit $$failed

conformance: ## run the Kubernetes end-to-end tests that concern a proxy, and write docs/conformance.md
	@scripts/setup lab
	@KROUTE_LAB_THOROUGH=1 .venv/bin/python -m tests.conformance $(ARGS)

bench: ## measure kroute, and write docs/performance.md (ONLY=headline, datapath, announce: a part; QUICK=1: a few minutes, no page)
	@scripts/setup bench
	@.venv/bin/python -m $(if $(filter datapath announce,$(ONLY)),bench.$(ONLY) --publish,bench $(if $(QUICK),--quick,--publish) $(if $(ONLY),--only $(ONLY))) $(ARGS)
	@$(if $(QUICK)$(ONLY),,.venv/bin/python -m bench.datapath --publish)
	@$(if $(QUICK)$(ONLY),,.venv/bin/python -m bench.firewalls --publish)
	@$(if $(QUICK)$(ONLY),,.venv/bin/python -m bench.unasked --publish)
	@$(if $(QUICK)$(ONLY),,.venv/bin/python -m bench.outage --parts agent,servers --publish)
	@$(if $(QUICK)$(ONLY),,.venv/bin/python -m bench.hashing --publish)
	@$(if $(QUICK)$(ONLY),,.venv/bin/python -m bench.policies --publish)
	@$(if $(QUICK)$(ONLY),,.venv/bin/python -m bench.announce --publish)

lint: ## check style, types, the direction of imports, and the links of the pages
	@scripts/setup unit
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy --strict kroute tests/fakes
	.venv/bin/lint-imports
	.venv/bin/mkdocs build --strict

docs: ## write the pages as a web site to .site/
	@scripts/setup unit
	.venv/bin/mkdocs build --strict

lab: ## open a shell beside a running three-node cluster with kroute on it (NODE=node2: inside that node)
	@scripts/setup demo
	@.venv/bin/python -m tests.lab.run -i $(CURDIR)/.venv/bin/python -m tests.lab.shell $(NODE)

cluster: ## open a shell in a cluster of the real Kubernetes with kroute on it (KUBERNETES=DIRECTORY: its programs)
	@scripts/setup cluster
	@.venv/bin/python -m tests.cluster

test-cluster: ## run the tests on a cluster of the real Kubernetes; of those that repeat others a part, drawn by a seed
	@scripts/setup cluster
	@$(PYTEST) -o testpaths=tests/cluster -m cluster $(ARGS)

e2e: ## run Kubernetes' own end-to-end tests on such a cluster, and write their section of docs/conformance.md
	@scripts/setup cluster
	@.venv/bin/python -m tests.cluster.e2e $(ARGS)

release: ## build everything of a release into dist/ (IMAGE=REGISTRY/kroute: the image's name in its manifests)
	@IMAGE=$(IMAGE) scripts/release

clean: ## remove what the other targets made in this clone, and end its cluster
	@python3 -m tests.cluster.ended
	rm -rf dist .venv .cache .lab .site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@cache=$$(python3 -m tests.lab.places) && if [ -d "$$cache" ]; then \
		echo "Left in place, for all clones: $$(du -sh "$$cache" | cut -f1) of kernels and images." && \
		echo "To remove it: rm -rf $$cache"; fi
