# Every target does its own set-up and is quick the second time.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
APT    := build-essential python3-dev python3-venv librocksdb-dev libsnappy-dev liblz4-dev libzstd-dev \
          zlib1g-dev kcat ccache
APT_JAVA := default-jdk-headless maven

# Installs the Debian packages of a list that are missing; says so before it asks for rights.
define install
	@mkdir -p build
	@missing=""; for p in $(1); do dpkg -s $$p 2>/dev/null | grep -q '^Status: install ok' || missing="$$missing $$p"; done; \
	 if [ -n "$$missing" ]; then \
	   sudo=""; [ "$$(id -u)" = 0 ] || sudo=sudo; \
	   echo "installing Debian packages$${sudo:+ (sudo asks for your password)}:$$missing"; \
	   $$sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends $$missing; \
	 fi
endef

export PATH := $(CURDIR)/$(BIN):$(PATH)

# Python's byte code is compiled ahead, as an installation does: where PYTHONDONTWRITEBYTECODE is set, each broker would otherwise
# compile the 12,000 lines of messages.py at every start, for 0.3 s and 20 MiB.
FOLDERS := bench broker dedupe mirror pipeline pyx

.PHONY: build demo test check ext clean
build: build/stamp-venv ext jars

# All Debian packages that a run of .ci/run needs, in one go: its parts run side by side, and only one apt-get can.
.PHONY: debian-packages
debian-packages:
	$(call install,$(APT) $(APT_JAVA) $(APT_DEB) $(APT_DISKS) $(APT_FUZZ) $(APT_MONITORING))

build/stamp-apt: Makefile
	$(call install,$(APT))
	@touch $@

build/stamp-java: Makefile
	$(call install,$(APT_JAVA))
	@touch $@

# The packages that requirements.lock pins. It holds for the Pythons of Debian 12 and 13 on the boxes' processor; any other gets the
# newest packages that pyproject.toml allows. What builds source distributions comes first, so that pip fetches no other tools for that.
IS_LOCKED := import platform, sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 13)) or platform.machine() != "x86_64")
PIP := PENSTOCK_MODULES=record.crc $(BIN)/python -m pip install -q --no-build-isolation
build/stamp-venv: build/stamp-apt pyproject.toml requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@if $(BIN)/python -c '$(IS_LOCKED)'; then set -e; \
	   grep -E '^(pip|setuptools|wheel|cython)==' requirements.lock > build/tools.lock; \
	   $(PIP) --require-hashes --no-deps -r build/tools.lock; \
	   $(PIP) --require-hashes --no-deps -r requirements.lock; \
	   $(PIP) --no-deps -e .; \
	 else set -e; \
	   echo "requirements.lock is for Python 3.11 and 3.13 on x86_64: pip chooses the packages for this one"; \
	   $(PIP) --upgrade pip 'setuptools>=77' wheel 'Cython>=3.1,<4'; \
	   $(PIP) -e '.[etl,demo,bench,test,deploy]'; \
	 fi
	@touch $@

# Moves the pins of requirements.lock and of the wheels that the Debian packages carry; look at the difference before it is committed.
# `make lock KEEP=1` leaves the pins that stand, and adds those of new packages.
KEEP ?=
.PHONY: lock
lock: build/stamp-venv
	$(BIN)/python deploy/lock.py $(if $(KEEP),--keep)

# The Cython modules, compiled in place; only what changed is translated and compiled again.
SOURCES := setup.py $(shell find penstock $(FOLDERS) -name '*.py[xd]' -o -name '*.api' -o -name '*.py' ! -name messages.py)
ext: build/stamp-ext
build/stamp-ext: build/stamp-venv $(SOURCES)
	@flock build/lock $(BIN)/python setup.py -q build_ext --inplace --parallel 2
	@$(BIN)/python -m compileall -q --invalidation-mode checked-hash penstock $(FOLDERS)
	@touch $@

# The jars of Spark's Kafka source and of Delta, through Maven.
.PHONY: jars
jars: build/stamp-venv build/stamp-java
	@$(BIN)/python -m penstock.pipeline.etl.jars

demo: build
	$(BIN)/penstock demo $(if $(ALL),--all) $(if $(KILL),--kill) $(if $(CLUSTER),--cluster)

# The reference of the client library, out of its docstrings: build/reference/penstock/pipeline.html.
.PHONY: reference
reference: ext
	$(BIN)/python deploy/reference.py build/reference
	@echo "build/reference/penstock/pipeline.html"

# Ours and Apache Kafka in turn, on a machine that does nothing else: `make bench BENCH="--rounds 3 --only produce"`.
BENCH ?=
.PHONY: bench
bench: build
	$(BIN)/penstock bench $(BENCH)

# Each checker by itself, as many at a time as there are processors; what one prints stays together.
CHECKS := check-mypy check-ansible check-stubs check-cython check-ruff check-imports check-spelling
.PHONY: $(CHECKS)
check: ext
	@$(MAKE) --no-print-directory --keep-going --output-sync=target -j $$(nproc) $(CHECKS)
check-ruff:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
check-cython:
	$(BIN)/cython-lint pyx
check-mypy:
	$(BIN)/mypy
# Each stub against its compiled module; tests/layout/stubs.allow says where they may differ.
STUBS := $(subst /,.,$(basename $(shell find pyx -name '*.pyi')))
check-stubs:
	$(BIN)/stubtest --ignore-disjoint-bases --allowlist tests/layout/stubs.allow $(addprefix penstock.,$(STUBS))
check-imports:
	$(BIN)/lint-imports
# Prose, comments and all else that git has, except the links to the folders.
check-spelling:
	@git ls-files -z -- . ':!*.lock' $(FOLDERS:%=':!penstock/%') | xargs -0 $(BIN)/codespell
check-ansible:
	cd deploy/ansible && ansible-lint --offline --strict --profile production

# Two of the processes that run tests start with those that have JVMs (tests/conftest.py); the others' tests wait more than they
# compute: with two more processes than processors, two processors were idle for a third of a run. The byte code of tests is kept:
# without it, each process would spend longer on their source than on all else at its start.
TESTS_AT_A_TIME ?= $(shell n=$$(($$(nproc) + 4)); echo $$((n > 8 ? 8 : n)))
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -q -n $(TESTS_AT_A_TIME) --dist loadgroup --no-loadscope-reorder
# Needs Java and Maven (installed if they are missing) and, the first time, the network: Apache Kafka and Spark's jars.
test: build
	$(call install,$(APT_DEB) $(APT_DISKS))
	@echo "the tests need Java and Maven and, the first time, the network (Apache Kafka, Spark, Ansible); make test-quick runs those that don't"
	PYTHONPATH=tests $(BIN)/python -m support.spark_classes & $(PYTEST) --durations=50 tests; code=$$?; wait; exit $$code

# The tests that need none of it, or some of them: `make test-quick TESTS=tests/unit`.
TESTS ?= tests
.PHONY: test-quick
test-quick: ext
	$(PYTEST) -m "not kafka and not spark" --ignore tests/deploy $(TESTS)

# sdist -> wheel -> an empty virtual environment outside the checkout, where all that is promised of a package is tried.
# WHEEL: one that is there already, instead of another that is made.
WHEEL ?=
.PHONY: package package-wheel
package: build/stamp-venv
	$(BIN)/python tests/package/run.py $(if $(WHEEL),--wheel $(WHEEL))
package-wheel: build/stamp-venv
	$(BIN)/python tests/package/run.py --make build/package

# Debian 13 (Python 3.13, RocksDB 9.10) in a chroot below build/, which is made the first time: the tree is built there, its quick
# tests run, and the package is tried; as root.
TESTS_13 ?= tests/unit tests/property tests/pipeline
DEBIAN_13 := PYTHONPATH=tests $(PYTHON) -m support.debian13
.PHONY: debian-13
debian-13:
	$(call install,debootstrap)
	$(DEBIAN_13) --checkout make test-quick package TESTS="$(TESTS_13)"

# Wheels with RocksDB and the codecs inside, for the Pythons of Debian 12 and 13, into dist/; to be built on Debian 12, which has no
# Python 3.13 of its own.
WHEELS ?= dist
PYTHON_313 ?= $(shell python3.13 -c 'import sys; print(sys.executable)' 2>/dev/null)
.PHONY: wheels wheels-test
wheels: ext
	@test -n "$(PYTHON_313)" || { echo "there is no python3.13 for the second wheel, and Debian 12 has none"; \
	  echo "hint: make wheels PYTHON_313=PATH, with a Python that pyenv or uv installed"; exit 1; }
	flock build/lock $(BIN)/python deploy/wheels.py --out $(WHEELS) $(BIN)/python $(PYTHON_313)

# Each of them in empty environments, on this Debian and on Debian 13; as root.
wheels-test: wheels
	$(call install,debootstrap)
	PYTHONPATH=tests $(BIN)/python tests/package/wheels.py $(BIN)/python $(PYTHON_313)

# The Debian packages, into dist/deb: REVISION sets a rebuild of the same version apart, ETL=1 builds penstock-etl too.
REVISION ?=
ETL ?=
# systemd: what the package needs on a box, and what judges its units.
APT_DEB := dpkg-dev python3-venv systemd
# Disks whose power is cut.
APT_DISKS := xfsprogs
.PHONY: deb bundle
deb: ext $(if $(ETL),jars)
	$(call install,$(APT_DEB))
	$(BIN)/python deploy/deb/build.py --revision "$(REVISION)" $(if $(ETL),--etl)

# All that a box without network needs, as one archive: dist/penstock-bundle-VERSION.tar.
bundle:
	rm -rf dist/deb dist/bundle
	$(MAKE) deb ETL=1
	$(BIN)/python deploy/deb/bundle.py --out dist/bundle --tar dist/penstock-bundle-$$(ls dist/deb | sed -n 's/^penstock-\([0-9][^_]*\)_.*/\1/p').tar dist/deb/*.deb

# All that a release publishes, with its checksums, in dist/release. Only what a commit has gets in.
.PHONY: release
release: build/stamp-venv
	$(BIN)/python deploy/release.py begin
	$(MAKE) wheels WHEELS=dist/release
	$(MAKE) bundle
	flock build/lock $(BIN)/python -m build --sdist --no-isolation --outdir dist/release
	$(BIN)/python deploy/release.py end

# From nothing to a running pipeline on machines of its own (systemd-nspawn, and one that is emulated; as root), with plays killed
# at every task (PENSTOCK_DEPLOY_KILLS=5: at every fifth).
APT_DEPLOY := debootstrap systemd-container xfsprogs fdisk iproute2 openssh-client qemu-system-x86
.PHONY: deploy-test
deploy-test: build
	$(call install,$(APT_DEPLOY) $(APT_DEB))
	PENSTOCK_NO_SKIPS=1 PENSTOCK_DEPLOY_MACHINES=1 $(BIN)/pytest -q --timeout 3600 tests/deploy

# A real Prometheus over a running pipeline: every query of the dashboards, alerts fired and cleared. Debian starts both services.
APT_MONITORING := prometheus prometheus-node-exporter
.PHONY: monitoring-test
monitoring-test: build
	$(call install,$(APT_MONITORING) $(APT_DISKS))
	PENSTOCK_NO_SKIPS=1 CROWD=10000 $(BIN)/pytest -q tests/monitoring tests/unit/broker/test_metrics_crowd.py

# Random admin work under kill -9, judged by a model of all that was acknowledged: `make faults KILLS=20 SEED=7`.
KILLS ?= 200
SEED ?=
.PHONY: faults
faults: ext
	PYTHONPATH=tests $(BIN)/python -m support.admin_run --kills $(KILLS) $(if $(SEED),--seed $(SEED))

# A cluster's machines against a simulated ZooKeeper, network and disks, by seeds. `PENSTOCK_SIM_SEED=1234` plays one alone.
SEEDS ?= 100000
.PHONY: simulate
simulate: ext
	PENSTOCK_SIM_RUNS=$(SEEDS) $(BIN)/pytest -q -n 2 --timeout 36000 tests/sim/test_cluster_sim.py

# Guards of the product that are taken out of a copy of the tree, one at a time: tests have to fail without each. `MUTANTS=KAFKA`.
MUTANTS ?=
.PHONY: mutants
mutants: ext
	PYTHONPATH=tests $(BIN)/python -m mutants.run $(MUTANTS)

# Mirror and dedupe, then the load, killed and paused at every failpoint, with our brokers and with Apache Kafka on either side.
.PHONY: failpoints failpoints-stages failpoints-load
failpoints: failpoints-stages failpoints-load
EVERY_FAILPOINT = PENSTOCK_NO_SKIPS=1 PENSTOCK_FAILPOINTS_ALL=1 $(BIN)/pytest -q -n 2
failpoints-stages: build
	$(EVERY_FAILPOINT) tests/faults/test_mirror_kill.py tests/faults/test_mirror_fence.py tests/faults/test_mirror_decisions.py \
	  tests/faults/test_dedupe_kill.py tests/faults/test_dedupe_pause.py tests/faults/test_dedupe_decisions.py
failpoints-load: build
	$(EVERY_FAILPOINT) tests/spark/test_etl_kills.py

# Clients, stages, nights and the audit on three nodes of Apache Kafka, of which one at a time is killed for what it leads.
.PHONY: failovers
failovers: build
	@PYTHONPATH=tests $(BIN)/python -m support.spark_classes
	PENSTOCK_NO_SKIPS=1 PENSTOCK_FAILPOINTS_ALL=1 $(BIN)/pytest -q -m kafka tests/clients/test_moving_cluster.py \
	  tests/clients/test_truncated_logs.py tests/spark/test_moving_nights.py

# Nights on a Spark cluster, and into tables at hdfs:// and s3a://. NameNode and DataNode come from Maven; the S3 server is built as
# a Go module, which takes minutes and a Go of 1.25 or newer (Debian 12 has none).
S3_SERVER := github.com/versity/versitygw/cmd/versitygw@v1.8.0
.PHONY: remote-tables
remote-tables: build build/s3/versitygw
	$(BIN)/python -m penstock.pipeline.etl.jars --s3a
	PENSTOCK_NO_SKIPS=1 PENSTOCK_REMOTE_TABLES=1 $(BIN)/pytest -q tests/spark/test_spark_cluster.py tests/spark/test_remote_tables.py

build/s3/versitygw:
	@command -v go >/dev/null || { echo "make remote-tables needs Go 1.25 or newer to build an S3 server"; exit 1; }
	GOBIN=$(CURDIR)/build/s3 GOFLAGS=-buildvcs=false go install $(S3_SERVER)

# A broker's disk loses what wasn't flushed, again and again, while a mirror copies into it; needs root.
CUTS ?= 100
.PHONY: powercuts
powercuts: ext
	$(call install,$(APT_DISKS))
	PENSTOCK_NO_SKIPS=1 PENSTOCK_CUTS=$(CUTS) PENSTOCK_SEED=$(SEED) $(BIN)/pytest -q --timeout 7200 tests/faults/test_power_cut.py

# The whole pipeline under kills, pauses, power cuts and what operators have to decide, for SOAK seconds; power cuts need root.
SOAK ?= 3600
.PHONY: soak
soak: build
	$(call install,$(APT_DISKS))
	PYTHONPATH=tests $(BIN)/python -m support.soak --seconds $(SOAK) $(if $(SEED),--seed $(SEED))

# Three brokers around three ZooKeeper servers, under load, killed, paused, restarted, expelled, cut off, for SOAK seconds; power
# cuts need root.
.PHONY: cluster-soak
cluster-soak: build
	PYTHONPATH=tests $(BIN)/python -m support.cluster_run --seconds $(SOAK) $(if $(SEED),--seed $(SEED))

# Every parser under coverage-guided fuzzing with address and undefined-behaviour sanitizers, SECONDS each.
APT_FUZZ := clang libclang-rt-14-dev
SECONDS ?= 10
RUNS ?= -1
FUZZ_JOBS ?= 1
.PHONY: fuzz fuzz-modules
fuzz-modules: build
	$(call install,$(APT_FUZZ))
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(PIP) -e '.[fuzz]'
	PYTHONPATH=tests $(BIN)/python -m fuzz.build
fuzz: fuzz-modules
	PYTHONPATH=tests $(BIN)/python -m fuzz.run --seconds $(SECONDS) --runs $(RUNS) --jobs $(FUZZ_JOBS)

# Others' programs and test suites against one broker, or three; the first run fetches and builds them. `make compat SUITES=kcat`.
SUITES ?= kcat java_tools old_java kafka_python librdkafka franz_go kafka_go record_formats
BROKERS ?= 1
.PHONY: compat compat-cluster
compat: build
	@test -n "$(strip $(SUITES))" || { echo "SUITES names no suite"; exit 1; }
	@failed=""; for suite in $(SUITES); do $(BIN)/python tests/compat/run.py $$suite --brokers $(BROKERS) || failed="$$failed $$suite"; done; \
	 test -z "$$failed" || { echo "not as they must be:$$failed"; exit 1; }
compat-cluster:
	@$(MAKE) --no-print-directory compat BROKERS=3

# All that proves the hard promises, or some of it: `make prove PARTS="faults powercuts"`; tests/PROVED.md says how each ended.
PARTS ?=
.PHONY: prove
prove: build
	$(BIN)/python tests/prove.py $(PARTS)

clean:
	rm -rf build dist *.egg-info pyx/*.so pyx/*/*.so pyx/wire/messages.py
