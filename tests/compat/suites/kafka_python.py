"""kafka-python's own integration tests, out of its source distribution, against a broker from outside."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from suite import FAIL, PASS, SKIP, CheckError, Outcome, Run, expect, python_environment, python_source

NEEDS = "pip; a C compiler for python-snappy"
VERSION = "3.0.12"
PACKAGES = ("pytest", "pytest-mock", "pytest-timeout", "python-snappy", "lz4", "zstandard", "crc32c")
FILES = [f"test/integration/test_{part}_integration.py" for part in ("admin", "consumer", "producer")]
# It guesses a broker's release from what the broker tells of itself, and knows only Kafka's releases.
LEFT_OUT = "test_kafka_version_infer"
TEST_LIMIT_S, LIMIT_S = 60, 600
# Two helpers that the distribution leaves out; a broker from outside needs no more of them than this.
SERVICE = """\
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    close = dump_logs = open


class SpawnedService:
    pass
"""


def run(run: Run) -> Iterator[Outcome]:
    """Outcomes of its tests, when all are done."""
    source = python_source(run.cache, "kafka-python", VERSION)
    python = python_environment(run.cache, PACKAGES)
    _complete(source)
    host, _, port = run.bootstrap.partition(",")[0].partition(":")
    (run.work / "kafka").mkdir()
    changes = {
        "KAFKA_ROOT": str(run.work / "kafka"),
        "KAFKA_URI": f"kafka://{host}:{port}",
        "KAFKA_VERSION": "4.0",
        "PYTHONPATH": str(source),
    }
    report = run.work / "report.xml"
    pytest: list[str | Path] = [
        python,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        "-k",
        f"not {LEFT_OUT}",
    ]
    listed = run.done("collect", [*pytest, "--collect-only", "-q", *FILES], LIMIT_S, source, **changes)
    chosen = [one for one in re.findall(r"^test/\S+::\S+$", listed, re.MULTILINE) if run.wants(one)]
    flags = [f"--timeout={TEST_LIMIT_S}", "--tb=short", f"--junitxml={report}"]
    with contextlib.suppress(CheckError):  # pytest's exit code says that tests failed; the report says which.
        run.done("pytest", [*pytest, *flags, *chosen], LIMIT_S, source, **changes)
    expect(report.exists(), f"pytest made no report: {run.work / 'pytest.out'}")
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = FAIL if kinds & {"failure", "error"} else SKIP if "skipped" in kinds else PASS
        yield f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}", outcome


def _complete(source: Path) -> None:
    """What the distribution leaves out, and the id of the broker."""
    (source / "test" / "__init__.py").touch()
    if not (source / "test" / "service.py").exists():
        (source / "test" / "service.py").write_text(SERVICE)
    # A test places replicas on its own broker, whose id is 0; ours is 1.
    admin = source / FILES[0]
    admin.write_text(re.sub(r"\[\[\d+\], \[\d+\]\]", "[[1], [1]]", admin.read_text()))
