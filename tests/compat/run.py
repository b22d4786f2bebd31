"""Runs others' programs and test suites against a broker and compares with the tests that must pass.

    python tests/compat/run.py                          the suites and what each needs
    python tests/compat/run.py kcat                     one suite against a broker of its own
    python tests/compat/run.py librdkafka --only '^009' --bootstrap HOST:PORT
    python tests/compat/run.py kcat --update            add tests that pass now to allowed/kcat.txt

The list of a suite only grows. The exit code is 1 when a test of the list failed or didn't run, when there is no list, or when
no test passed or failed: a run of nothing proves nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from suite import FAIL, PASS, FetchError, Run  # noqa: E402

from penstock.broker.process import BrokerProcess  # noqa: E402

SUITES = ("kcat", "java_tools", "old_java", "kafka_python", "librdkafka", "franz_go", "kafka_go", "record_formats")
# What the suites take for granted of a broker.
PROPERTIES: dict[str, object] = {
    "broker.id": 1,
    "num.partitions": 3,
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": True,
}
# kafka-go's tests have an address of their own.
LISTEN = {"kafka_go": "localhost:9092"}


def cache_folder() -> Path:
    """Where suites are kept, outside of the tree: `$XDG_CACHE_HOME/penstock-compat`, by default under `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock-compat"


@contextlib.contextmanager
def broker_at(bootstrap: str | None, suite: str) -> Iterator[tuple[str, Path | None]]:
    """The address of the given broker, or of ours for as long as it is needed, and where its logs are."""
    if bootstrap is not None:
        yield bootstrap, None
        return
    with tempfile.TemporaryDirectory(prefix="penstock-compat-") as folder:
        properties = dict(PROPERTIES)
        address = LISTEN.get(suite)
        if address is not None:
            properties["advertised.listeners"] = f"PLAINTEXT://{address}"
        broker = BrokerProcess(Path(folder) / "broker", properties)
        if address is not None:
            broker.port = int(address.rpartition(":")[2])
        broker.start()
        try:
            yield address or broker.bootstrap, broker.data
        finally:
            broker.close()


def listed(suite: str, group_protocol: str = "classic") -> Path:
    """The file with the names of the tests that must pass."""
    return HERE / "allowed" / f"{suite}{'' if group_protocol == 'classic' else '-' + group_protocol}.txt"


def judge(outcomes: dict[str, str], path: Path, only: Run, update: bool) -> list[str]:
    """What is wrong: tests of the list that didn't pass, no list, no test. Tells of passing tests that aren't in it, or adds
    them."""
    must = set(path.read_text().split("\n")) - {""} if path.exists() else set()
    nothing = []
    if not must and not update:
        nothing.append(f"{path.name}: it lists no test that must pass (--update makes the list)")
    if not any(outcome in (PASS, FAIL) for outcome in outcomes.values()):
        nothing.append("no test was run" + (f": `--only {only.only}` fits none" if only.only else ""))
    passed = {name for name, outcome in outcomes.items() if outcome == PASS}
    wrong = [f"{name}: {outcomes.get(name, 'did not run')}" for name in sorted(must - passed) if only.wants(name)]
    new = sorted(passed - must)
    if update and new:
        path.write_text("".join(f"{name}\n" for name in sorted(must | passed)))
    for name in new:
        print(f"{'added' if update else 'passes and is not in ' + path.name + ' (--update adds it)'}: {name}")
    return nothing + wrong


def run_suite(suite: str, bootstrap: str | None, runs: Path, update: bool = False, **wishes: object) -> list[str]:
    """One suite; prints PASS, FAIL or SKIP for each test and gives back what is wrong. Its files go to `runs`/suite.

    Raises FetchError when the suite can't be fetched or built.
    """
    module = importlib.import_module(f"suites.{suite}")
    cache = cache_folder()
    work = runs / suite
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    outcomes: dict[str, str] = {}
    with broker_at(bootstrap, suite) as (address, log_dir):
        run = Run(address, work, cache, log_dir=log_dir, **wishes)  # type: ignore[arg-type]
        for name, outcome in module.run(run):
            outcomes[name] = outcome
            print(outcome, name, flush=True)
    counts = ", ".join(f"{list(outcomes.values()).count(word)} {word}" for word in ("PASS", "FAIL", "SKIP"))
    print(f"{suite}: {counts}; files in {work}")
    return judge(outcomes, listed(suite, run.group_protocol), run, update)


def main() -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("suite", nargs="?", choices=SUITES)
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="a broker that runs already (default: one of ours)")
    parser.add_argument("--only", default="", metavar="REGEX", help="tests whose names match")
    parser.add_argument("--group-protocol", default="classic", choices=("classic", "consumer"), help="librdkafka only")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time, where a suite can")
    parser.add_argument("--runs", type=Path, default=cache_folder() / "runs", help="where files of the run go")
    parser.add_argument("--update", action="store_true", help="add tests that pass to the list; none is ever removed")
    given = parser.parse_args()
    if given.suite is None:
        for suite in SUITES:
            print(f"{suite:14} {importlib.import_module(f'suites.{suite}').NEEDS}")
        return 0
    wishes = {"only": given.only, "group_protocol": given.group_protocol, "jobs": given.jobs}
    try:
        wrong = run_suite(given.suite, given.bootstrap, given.runs, given.update, **wishes)
    except FetchError as error:
        print(f"{given.suite}: {error}", file=sys.stderr)
        return 2
    for one in wrong:
        print(f"not as it must be: {one}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
