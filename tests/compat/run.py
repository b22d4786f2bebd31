"""Runs others' programs and test suites against a broker and compares with the tests that must pass.

    python tests/compat/run.py                          the suites and what each needs
    python tests/compat/run.py kcat                     one suite against a broker of its own
    python tests/compat/run.py kcat --brokers 3         against three, around a ZooKeeper of its own
    python tests/compat/run.py kcat --brokers 3 --apache   against three nodes of Apache Kafka, to compare with
    python tests/compat/run.py librdkafka --only '^009' --bootstrap HOST:PORT
    python tests/compat/run.py kcat --update            add tests that pass now to allowed/kcat.txt

With several brokers allowed/kcat-3-brokers.txt says what differs: `+ NAME` must pass there only, `- NAME` need not pass there.
The list of a suite only grows. The exit code is 1 when a test of the list failed or didn't run, when there is no list, or when
no test passed or failed: a run of nothing proves nothing.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from servers import Servers, serving  # noqa: E402
from suite import FAIL, PASS, FetchError, Run  # noqa: E402

SUITES = ("kcat", "java_tools", "old_java", "kafka_python", "librdkafka", "franz_go", "kafka_go", "record_formats")


def cache_folder() -> Path:
    """Where suites are kept, outside of the tree: `$XDG_CACHE_HOME/penstock-compat`, by default under `~/.cache`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock-compat"


def listed(suite: str, group_protocol: str = "classic") -> Path:
    """The file with the names of the tests that must pass."""
    return HERE / "allowed" / f"{suite}{'' if group_protocol == 'classic' else '-' + group_protocol}.txt"


def difference(path: Path, brokers: int) -> Path:
    """The file that says what differs from a list with so many brokers; for one it need not be there."""
    return path.with_name(f"{path.stem}-{brokers}-brokers.txt")


def names_in(path: Path) -> set[str]:
    """The lines of a list; none if it isn't there."""
    return set(path.read_text().split("\n")) - {""} if path.exists() else set()


def must_pass(path: Path, brokers: int = 1) -> set[str]:
    """The names of the tests that must pass with so many brokers. Raises ValueError for a line that is no difference."""
    must = names_in(path)
    if brokers > 1:
        for line in names_in(difference(path, brokers)):
            sign, _, name = line.partition(" ")
            if sign not in ("+", "-") or (sign == "-") != (name in must):
                raise ValueError(f"{difference(path, brokers).name}: `{line}` is no difference from {path.name}")
            must ^= {name}
    return must


def differences(one: set[str], several: set[str]) -> set[str]:
    """The lines that say how what must pass with several brokers differs from what must pass with one."""
    return {f"+ {name}" for name in several - one} | {f"- {name}" for name in one - several}


def judge(outcomes: dict[str, str], path: Path, only: Run, update: bool, brokers: int = 1) -> list[str]:
    """What is wrong: tests of the list that didn't pass, no list, no test. Tells of passing tests that aren't in it, or adds
    them: those that pass with several brokers alone go to the file of the difference."""
    must = must_pass(path, brokers)
    nothing = []
    if not must and not update:
        nothing.append(f"{path.name}: it lists no test that must pass (--update makes the list)")
    if not any(outcome in (PASS, FAIL) for outcome in outcomes.values()):
        nothing.append("no test was run" + (f": `--only {only.only}` fits none" if only.only else ""))
    passed = {name for name, outcome in outcomes.items() if outcome == PASS}
    wrong = [f"{name}: {outcomes.get(name, 'did not run')}" for name in sorted(must - passed) if only.wants(name)]
    new = sorted(passed - must)
    file = path if brokers == 1 else difference(path, brokers)
    if update and new:
        lines = must | passed if brokers == 1 else differences(names_in(path), must | passed)
        file.write_text("".join(f"{line}\n" for line in sorted(lines)))
    for name in new:
        print(f"{'added' if update else 'passes and is not in ' + file.name + ' (--update adds it)'}: {name}")
    return nothing + wrong


def run_suite(
    suite: str,
    bootstrap: str | None,
    runs: Path,
    update: bool = False,
    brokers: int = 1,
    is_apache: bool = False,
    **wishes: object,
) -> list[str]:
    """One suite; prints PASS, FAIL or SKIP for each test and gives back what is wrong. Its files go to `runs`/suite.

    Without `bootstrap` it gets so many servers of its own. Raises FetchError when the suite can't be fetched or built.
    """
    module = importlib.import_module(f"suites.{suite}")
    cache = cache_folder()
    work = runs / (suite + (f"-{brokers}-brokers" if brokers > 1 else "") + ("-apache" if is_apache else ""))
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    outcomes: dict[str, str] = {}
    given = nullcontext(Servers(bootstrap, None)) if bootstrap is not None else serving(suite, brokers, is_apache, work)
    with given as (address, log_dir):
        run = Run(address, work, cache, brokers=brokers, log_dir=log_dir, **wishes)  # type: ignore[arg-type]
        for name, outcome in module.run(run):
            outcomes[name] = outcome
            print(outcome, name, flush=True)
    counts = ", ".join(f"{list(outcomes.values()).count(word)} {word}" for word in ("PASS", "FAIL", "SKIP"))
    print(f"{suite}: {counts}; files in {work}")
    return judge(outcomes, listed(suite, run.group_protocol), run, update, brokers)


def main() -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("suite", nargs="?", choices=SUITES)
    parser.add_argument("--bootstrap", metavar="HOST:PORT[,...]", help="brokers that run already (default: ours are started)")
    parser.add_argument("--brokers", type=int, default=1, choices=(1, 3), help="how many there are")
    parser.add_argument("--apache", action="store_true", help="start nodes of Apache Kafka in place of our brokers")
    parser.add_argument("--only", default="", metavar="REGEX", help="tests whose names match")
    parser.add_argument("--group-protocol", default="classic", choices=("classic", "consumer"), help="librdkafka only")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time, where a suite can")
    parser.add_argument("--runs", type=Path, default=cache_folder() / "runs", help="where files of the run go")
    parser.add_argument("--update", action="store_true", help="add tests that pass to the list; none is ever removed")
    given = parser.parse_args()
    if given.apache and given.bootstrap is not None:
        parser.error("--apache starts servers and --bootstrap names some that run: leave one of them out")
    if given.suite is None:
        for suite in SUITES:
            print(f"{suite:14} {importlib.import_module(f'suites.{suite}').NEEDS}")
        return 0
    wishes = {"only": given.only, "group_protocol": given.group_protocol, "jobs": given.jobs}
    try:
        wrong = run_suite(given.suite, given.bootstrap, given.runs, given.update, given.brokers, given.apache, **wishes)
    except FetchError as error:
        print(f"{given.suite}: {error}", file=sys.stderr)
        return 2
    for one in wrong:
        print(f"not as it must be: {one}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
