# The daily commands. `make` alone lists them.

VENV := .venv
SMOKE := 3.11:smoke 3.12:smoke 3.13:smoke 3.14:smoke
BIN := $(VENV)/bin
PYTHON ?= $(shell tools/find_python.sh)
JAVA_EXTRA := $(shell tools/have_java.sh || echo ,java)

.PHONY: help quickstart examples test lint fast-test spark-test nightly smoke properties filter-fuzz simulate kill-trials takeover-kills damage-trials power-cuts hostile-clients mutated-frames growth lake-trials invariants versions exams bench bench-paimon bench-union bench-pipelines bench-peers pipeline-invariants pipeline-kills cluster-exam mutants proofs proofs-page build site wheels wheel-test proto core clean

help:
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

quickstart: $(VENV)/quickstart-ready ## set up, then the main job on real data, explained step by step
	$(BIN)/forebay quickstart

examples: $(VENV)/dev-ready build ## run examples/: what lakes and streams are used for, with checks
	set -e; for name in warehouse_acceleration partial_update rollup live_and_lake live_pipeline change_capture dimension_join live_dimension; do \
	  $(BIN)/python examples/$$name.py; echo; done

test: $(VENV)/dev-ready build ## set up, then lint, types and all tests
	tools/check.sh

lint: $(VENV)/dev-ready build ## style, types and the direction of imports
	tools/check.sh lint

fast-test: $(VENV)/dev-ready build ## the tests that need no Spark
	$(BIN)/python -m pytest -m "not spark and not slow"

spark-test: $(VENV)/dev-ready build ## the tests that drive Spark
	$(BIN)/python -m pytest -m "spark and not slow"

nightly: $(VENV)/dev-ready build ## all long runs, which `make test` leaves out: NIGHTLY="simulate exams" make nightly
	tools/nightly.sh

properties: $(VENV)/dev-ready build ## the property tests on new examples: 2,000 each, where make test has 15
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -m "not slow" --timeout 3600 \
	  $$(git grep -l hypothesis -- 'tests/**/test_*.py')

filter-fuzz: $(VENV)/dev-ready build ## random filters on random tables by every reader: FILTER_SEEDS=500 make filter-fuzz
	FILTER_SEEDS=$${FILTER_SEEDS:-500} $(BIN)/python -m pytest tests/filters --timeout 3600
	FILTER_SEEDS=$${SPARK_FILTER_SEEDS:-20} $(BIN)/python -m pytest tests/spark/test_spark_filters_random.py --timeout 3600

simulate: $(VENV)/dev-ready build ## the whole server under one seed, and one bucket: SIM_SEEDS=5000 SIM_FIRST_SEED=0 make simulate
	PYTHONHASHSEED=0 SIM_SEEDS=$${SIM_SEEDS:-5000} $(BIN)/python -m tests.simulation.run --bucket $(SIM_ARGS)
	PYTHONHASHSEED=0 SIM_SEEDS=$${SIM_SEEDS:-5000} $(BIN)/python -m tests.simulation.run $(SIM_ARGS)

kill-trials: $(VENV)/dev-ready build ## kill -9 under load, 100 times with each engine and client
	KILL_ROUNDS=$${KILL_ROUNDS:-100} $(BIN)/python -m pytest tests/reliability --timeout 3600

takeover-kills: $(VENV)/dev-ready build ## servers of one store fail under load, and standbys take over, 50 times with each of six loads
	TAKEOVER_ROUNDS=$${TAKEOVER_ROUNDS:-50} $(BIN)/python -m pytest tests/reliability/test_takeovers.py --timeout 7200

damage-trials: $(VENV)/dev-ready build ## damage to each kind of file of a stopped and of a killed server, in each way
	CORRUPTION_ROUNDS=$${CORRUPTION_ROUNDS:-1} $(BIN)/python -m pytest tests/reliability/test_corruption.py

lake-trials: $(VENV)/dev-ready build ## lake tables: crashes, kills and failures at many steps, and long random histories
	PAIMON_KILLS=$${PAIMON_KILLS:-30} PAIMON_SEEDS=$${PAIMON_SEEDS:-10} ICEBERG_STEPS=1 \
	  UNION_EXAMPLES=$${UNION_EXAMPLES:-100} PAIMON_COMMITS=$${PAIMON_COMMITS:-1000} PAIMON_RACES=$${PAIMON_RACES:-20} \
	  $(BIN)/python -m pytest tests/paimon/maintain tests/paimon/test_random_histories.py \
	  tests/paimon/commit/test_races.py tests/paimon/compact/test_process_races.py tests/lake/test_iceberg_lake_failures.py \
	  tests/unionread/test_union_random.py --timeout 3600

power-cuts: $(VENV)/dev-ready build ## real power cuts of an ext4 on a loop device under load (root): POWER_CUTS=20 make power-cuts
	$(BIN)/python -m tests.reliability.power_cuts $(POWER_CUTS_ARGS)

hostile-clients: $(VENV)/dev-ready build ## hostile and slow clients: memory of the server, waiting time of others
	$(BIN)/python -m tests.reliability.hostile_clients $(HOSTILE_ARGS)

mutated-frames: $(VENV)/dev-ready build ## mutated requests against a server beside an honest client: FRAMES=20000 make mutated-frames
	$(BIN)/python -m tests.reliability.mutated_frames --frames $${FRAMES:-200000} $(MUTATED_ARGS)

growth: $(VENV)/dev-ready build ## what 5,000 tables, 2,000 partitions, 10,000 scans and 20,000 writers take: GROWTH_ARGS=--write make growth
	$(BIN)/python -m tests.server.test_growth $(GROWTH_ARGS)

invariants: $(VENV)/dev-ready build ## transfers while everything fails, 30 minutes: INVARIANT_SECONDS=60 make invariants
	INVARIANT_SECONDS=$${INVARIANT_SECONDS:-1800} $(BIN)/python -m pytest tests/invariants -s

pipeline-invariants: $(VENV)/dev-ready build ## lake streams while everything fails, 10 minutes: PIPELINE_SECONDS=60 make pipeline-invariants
	PIPELINE_SECONDS=$${PIPELINE_SECONDS:-600} $(BIN)/python -m pytest tests/pipelines/test_pipelines.py -m slow -s

mutants: $(VENV)/dev-ready build ## a trial of the tests: random faults in our modules: MUTANTS=60 MUTANTS_SEED=1 make mutants
	$(BIN)/python -m tools.mutants $(MUTANTS_ARGS)

proofs: $(VENV)/dev-ready build ## all long trials, resumable, and the table of docs/correctness.md: PROOFS="simulate exams" make proofs
	$(BIN)/python -m tools.proofs $(PROOFS_ARGS)

proofs-page: $(VENV)/dev-ready ## write that table again: which counts are current, and which are stale
	$(BIN)/python -m tools.proofs --page

pipeline-kills: $(VENV)/dev-ready build ## three pipelines into live tables while everything is killed: PIPELINE_KILLS=40 make pipeline-kills
	PIPELINE_KILLS=$${PIPELINE_KILLS:-40} $(BIN)/python -m pytest tests/pipelines/test_live_pipelines.py -m slow -s

versions: ## tests on the lowest and newest versions of the dependencies: VERSIONS="3.11:lowest" make versions
	tools/versions.sh $(VERSIONS)

smoke: $(VENV)/dev-ready build ## a short trial on each supported Python but that of .venv: server, client, transactions, a lake
	tools/versions.sh $(filter-out $(shell $(BIN)/python -c 'import sys; print("%d.%d:smoke" % sys.version_info[:2])' 2>&1),$(SMOKE))

exams: $(VENV)/dev-ready build ## other people's software against our server, and ours against a real Fluss cluster
	tools/exams.sh

cluster-exam: $(VENV)/dev-ready build ## the pipelines on a real Fluss cluster, Spark standalone and S3, with kills: CLUSTER_KILLS=10 make cluster-exam
	$(BIN)/pip install -q 'moto[server]>=5' boto3
	CLUSTER_KILLS=$${CLUSTER_KILLS:-10} $(BIN)/python -m pytest tests/foreign/test_foreign_scale_out.py -m slow -s

bench: $(VENV)/dev-ready build ## measure us and our peers in one run; write docs/benchmarks.md
	$(BIN)/python -m benchmarks

bench-paimon: $(VENV)/dev-ready build ## the same for the lake engine; write its part of docs/benchmarks.md
	$(BIN)/python -m benchmarks paimon --out docs/benchmarks.md

bench-union: $(VENV)/dev-ready build ## the same for tiering and union reads; write its part of docs/benchmarks.md
	$(BIN)/python -m benchmarks union --out docs/benchmarks.md

bench-pipelines: $(VENV)/dev-ready build ## the same for lake tables in Spark; write its part of docs/benchmarks.md
	$(BIN)/python -m benchmarks pipelines --out docs/benchmarks.md

bench-peers: $(VENV)/dev-ready build ## our server beside Java Fluss in one run; write its part of docs/benchmarks.md
	$(BIN)/python -m benchmarks peers --out docs/benchmarks.md

build: $(VENV)/dev-ready ## compile the kernels after a change
	$(BIN)/python tools/build_kernels.py

site: build/site-env/ready ## the documentation site, in build/site: python -m http.server -d build/site
	NO_MKDOCS_2_WARNING=1 build/site-env/bin/python -m mkdocs build --strict --quiet

wheels: ## a wheel for each CPython that is on this machine, and the source distribution, in dist/
	$(PYTHON) tools/build_wheels.py $(WHEEL_VERSIONS)

wheel-test: ## install each wheel of dist/ in a new environment where no compiler is found, and use it
	$(PYTHON) tools/try_wheel.py

core: ## the lines of the core and of its satellites, beside those of a commit: CORE_SINCE=main make core
	$(PYTHON) -m tools.core_size $(CORE_SINCE)

proto: ## generate the protobuf code after a change of fluss.proto
	tools/generate_protocol.sh

clean: ## remove everything that can be made again
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache quickstart-data
	find src -name '*.so' -delete -o -name '*.c' -path '*forebay*' -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/quickstart-ready: pyproject.toml setup.py
	tools/make_venv.sh $(VENV) "$(PYTHON)" ".[quickstart$(JAVA_EXTRA)]"
	touch $@

# Without Forebay: the API reference is read from the sources, so that the site needs no compiler.
build/site-env/ready: pyproject.toml
	$(PYTHON) -m venv build/site-env
	build/site-env/bin/pip install -q --disable-pip-version-check --upgrade 'pip>=25.1'
	build/site-env/bin/pip install -q --group site
	touch $@

$(VENV)/dev-ready: pyproject.toml setup.py
	tools/make_venv.sh $(VENV) "$(PYTHON)" ".[dev$(JAVA_EXTRA)]"
	touch $@ $(VENV)/quickstart-ready
