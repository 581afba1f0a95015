# Everything a person does here. `make demo` and `make test` do all set-up themselves: a virtual environment in .venv
# with pinned packages, and Java 17 where none is found. `make help` lists the targets.

RUN := scripts/run.sh
PYTEST := $(RUN) python -m pytest
CODE := src tests benchmarks examples
# What a long run of `make bench-…` takes: e.g. make bench-count BENCH="--seconds 20 --keys 1000000"
BENCH :=
# Processes of the tests without Spark.
WORKERS := 3
# Files with a test that has a marker: to collect all the others takes a process longer than most tests.
marked = $(shell grep -rl --include='test_*.py' 'mark\.$(1)\b' tests)

.DEFAULT_GOAL := help
.PHONY: help setup prepared postgres demo demo-cdc demo-kafka test test-pure test-spark test-kill test-long test-versions simulate seeds kernels check format \
        bench-count bench-start bench-latency bench-scale bench-state bench-functions bench-expressions bench-uploads bench-space bench-memory bench-quiet soak bench-checkpoints bench-backpressure bench-postgres bench-kafka bench-regions experiments pictures docs dist freeze clean

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 16

.venv/set-up: constraints.txt pyproject.toml
	@scripts/setup.sh

setup: .venv/set-up  ## Virtual environment, pinned packages, Java (the other targets call it)

demo: setup  ## 336,776 real flights through a job that is killed twice; compares the result with a direct computation
	@$(RUN) python -m examples.flights

demo-cdc: setup postgres  ## PostgreSQL under load, revenue of customers from two tables in a Delta table, a kill; compares
	@$(RUN) python -m examples.revenue

demo-kafka: setup  ## Orders from a Kafka topic into totals in a topic and a Delta table, lag, a kill; compares
	@$(RUN) python -m examples.totals

# What all tiers need is made first. Then the three run side by side: what is pure takes both cores, Spark's tests and
# real processes that are killed mostly wait. All share one Kafka broker; HOLDFAST_KAFKA=host:port names another one.
test: setup  ## All tests but the long ones, in some ten minutes on two cores
	@$(MAKE) --no-print-directory --jobs 2 prepared
	@$(RUN) python -m examples.kafka.broker --quick $(MAKE) --no-print-directory --jobs 3 WORKERS=2 test-kill test-spark test-pure

prepared: .venv/kernels .venv/spark.jsa postgres

postgres: setup
	@scripts/find_postgres.sh >/dev/null

# Numba looks by itself whether a kernel has changed; without its cache each process would compile the same kernels.
# `make kernels` writes the list of those that tests need.
.venv/kernels: .venv/set-up tests/kernel_list.txt $(shell grep -rl holdfast.state.compiled src --include=*.py)
	@echo "Compiling kernels, for the tests"; $(RUN) python tests/kernel_list.py && touch $@

# The tests of files alone, as the tidy test, are part of `make check`. Alone they have three workers on two cores, because tests also wait: for servers,
# timers, disks; beside the others two, since each collects all tests once more, in seven seconds. They share one Kafka broker: a broker for each worker takes longer to start than all tests with Kafka.
test-pure: .venv/kernels postgres  ## The tests without Spark
	@$(RUN) python -m examples.kafka.broker --quick $(PYTEST) -n $(WORKERS) --dist worksteal --timeout 120 --durations 10 -m "not spark and not kill and not long" --ignore-glob "tests/test_tidy*" --ignore tests/docs/test_docs_site.py --ignore tests/installed/test_installed_dist.py

# Classes that a JVM of Spark's loads, kept so that each test with a session of its own starts in a third of the time.
.venv/spark.jsa: .venv/set-up tests/quick_jvm.py
	@echo "Keeping Spark's classes in an archive, for the tests"; $(RUN) python tests/quick_jvm.py 2>/dev/null

test-spark: .venv/kernels .venv/spark.jsa  ## The tests that share a Spark session
	$(PYTEST) --timeout 180 -m "spark and not kill and not long" tests/spark $(call marked,spark)

test-kill: .venv/kernels .venv/spark.jsa postgres  ## The tests that start and kill real processes
	$(PYTEST) --timeout 300 -m "kill and not long" $(call marked,kill)

test-long: .venv/spark.jsa postgres  ## At least 100 random, printed, replayable kills, and what else takes long
	$(PYTEST) --timeout 3600 -m long

test-versions: setup  ## The README's example with the lowest versions allowed, and on each Python found on the PATH
	$(PYTEST) --timeout 1200 -m long tests/installed

simulate: setup  ## One seed of the simulation again, with its whole trace: make simulate SEED=7
	@$(RUN) python tests/simulation/simulation_run.py $(SEED)

seeds: setup  ## Look anew for the seeds in which each broken rule and each failpoint shows, and write them down
	HOLDFAST_PIN_SEEDS=1 $(RUN) python -m pytest -q -p no:xdist --timeout 3600 -m "long or not long" \
		-k "broken_rule or test_jobs_balance_whatever or broadcast_state_is_the_same or (rows_said_to_be_lost and not many_lives)" \
		tests/simulation tests/execution

kernels: setup  ## Note anew which kernels the tests without Spark compile, so that `make test` compiles them first
	rm -rf src/holdfast/kernels/compiled build/kernel_list.txt
	PYTHONPATH=tests $(MAKE) --no-print-directory --old-file .venv/kernels test-pure PYTEST="$(PYTEST) -p kernel_list --ignore tests/kernels/test_kernels_list.py"
	sort -u build/kernel_list.txt -o tests/kernel_list.txt

check: setup  ## Style, types, import direction, sizes, the documentation site
	$(RUN) ruff check --no-cache $(CODE)
	$(RUN) ruff format --no-cache --check $(CODE)
	$(RUN) mypy
	$(RUN) mypy --strict examples/typed_job.py
	$(RUN) basedpyright examples/typed_job.py
	$(PYTEST) -q tests/test_tidy.py tests/test_tidy_rooms.py tests/docs/test_docs_site.py tests/installed/test_installed_dist.py -m "not long"

format: setup  ## Rewrite the code in the project's style
	$(RUN) ruff format $(CODE)
	$(RUN) ruff check --fix $(CODE)

bench-count: setup  ## Throughput of a keyed count, end to end, as one JSON line (options: BENCH="--seconds 60 …")
	@$(RUN) python -m benchmarks.count --json $(BENCH)

bench-scale: setup  ## What the driver costs with 1 to 64 TaskManagers, as one JSON line
	@$(RUN) python -m benchmarks.scale --json $(BENCH)

bench-start: setup  ## What start() costs, first, second and again, as one JSON line (BENCH="--against ../older")
	@$(RUN) python -m benchmarks.start --json $(BENCH)

bench-latency: setup  ## From new data to committed state, and until published, as one JSON line
	@$(RUN) python -m benchmarks.latency --json $(BENCH)

bench-state: setup  ## The state table alone
	@$(RUN) python -m benchmarks.state $(BENCH)

bench-functions: setup  ## A user's function alone, by row or by batch
	@$(RUN) python -m benchmarks.functions $(BENCH)

bench-expressions: setup  ## Expressions in Spark's SQL, alone and beside transform, as one JSON line
	@$(RUN) python -m benchmarks.expressions --json $(BENCH)

bench-uploads: setup  ## The tail of upload latencies, with and without hedging, in manual time, as one JSON line
	@$(RUN) python -m benchmarks.uploads --json $(BENCH)

bench-checkpoint-path: setup  ## The requests that a checkpoint waits for, in manual time, as one JSON line
	@$(RUN) python -m benchmarks.checkpoint_path --json $(BENCH)

bench-space: setup  ## Bytes stored for each changed byte of a table in memory, as one JSON line
	@$(RUN) python -m benchmarks.space --json $(BENCH)

bench-memory: setup  ## The driver's memory over 3,600 batches with one checkpoint at the end, as one JSON line
	@$(RUN) python -m benchmarks.driver_memory --json $(BENCH)

bench-quiet: setup  ## Processor time of a job with little to do, and of a job without input, as one JSON line
	@$(RUN) python -m benchmarks.quiet --json $(BENCH)

soak: setup  ## What every process of a job holds over hours, as one JSON line (BENCH="--minutes 180 --plot soak.svg")
	@$(RUN) python -m benchmarks.soak --json $(BENCH)

bench-checkpoints: setup  ## Checkpoints of large state with and without a changelog (BENCH="--state-mb 1200 …")
	@$(RUN) python -m benchmarks.checkpoints $(BENCH)

bench-backpressure: setup  ## Checkpoints while batches take 10 s, and what aligned barriers would wait, as one JSON line
	@$(RUN) python -m benchmarks.backpressure --json $(BENCH)

bench-failover: setup  ## From the kill of a process to the next batch with all subtasks, as one JSON line (BENCH="--kills 5")
	@$(RUN) python -m benchmarks.failover --json $(BENCH)

experiments: setup  ## The documents' experiments with pictures, in about an hour (BENCH=--quick: 10 minutes)
	@$(RUN) python -m benchmarks.experiments $(BENCH)

bench-postgres: setup postgres  ## PostgreSQL's snapshot and changes, beside pg_recvlogical, as one JSON line
	@$(RUN) python -m benchmarks.postgres --json $(BENCH)

bench-regions: setup  ## Checkpoints of 5,000 regions that fail now and then, simulated and on Spark, as one JSON line
	@$(RUN) python -m benchmarks.regions --json $(BENCH)

bench-kafka: setup  ## JSON messages from a local Kafka broker into a keyed count, beside the bare client, as one JSON line
	@$(RUN) python -m benchmarks.kafka --json $(BENCH)

pictures: setup  ## Pictures of a running job's page anew, and the README's from docs/measurements/peers.json
	mkdir -p build/pictures
	HOLDFAST_SCREENSHOTS=build/pictures $(PYTEST) -q tests/ui/test_ui_browser.py
	for each in docs/pictures/page-*.png; do cp build/pictures/$${each##*/} docs/pictures/; done
	$(RUN) python -m benchmarks.picture docs/measurements/peers.json docs/pictures/figures.svg

docs: setup  ## The documentation site, in build/site; without a warning, or not at all
	@$(RUN) python scripts/build_site.py

dist: setup  ## Wheel, sdist and bill of materials of the last commit, checked, in dist/
	@$(RUN) python scripts/dist.py

freeze: setup  ## Print what is installed, as constraints.txt holds it
	@.venv/bin/python -m pip list --format=freeze --exclude-editable --exclude pip

clean:  ## Remove what was made: the environment, caches, leftovers of Spark
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse metastore_db derby.log
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -name '*.egg-info' -type d -prune -exec rm -rf {} +
	rm -rf src/holdfast/kernels/compiled
