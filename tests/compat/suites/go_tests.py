"""Go clients' own tests, run as `go test -json` tells them; shared by the suites of kafka-go and franz-go."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from suite import FAIL, PASS, SKIP, CheckError, Outcome, Run, call

BUILD_LIMIT_S, LIMIT_S = 1200, 900
VERDICTS = {"pass": PASS, "fail": FAIL, "skip": SKIP}


def outcomes(run: Run, package: Path, pattern: str, **changes: str) -> Iterator[Outcome]:
    """Outcomes of a package's tests whose names match Go's pattern, when all are done."""
    program = run.work / "program.test"
    call(["go", "test", "-c", "-o", program, "."], package, BUILD_LIMIT_S)
    flags = [f"-test.timeout={LIMIT_S - 20}s", "-test.v=test2json", f"-test.run={pattern}"]
    with contextlib.suppress(CheckError):
        run.done("go", [program, *flags], LIMIT_S, package, **changes)
    said = (run.work / "go.out").read_bytes()
    (run.work / "go.raw").write_bytes(said)
    events = call(["go", "tool", "test2json", "sh", "-c", f"cat '{run.work / 'go.raw'}'"], run.work)
    found: dict[str, str] = {}
    for line in events.splitlines():
        event = json.loads(line)
        name = event.get("Test")
        if name and run.wants(name):
            found[name] = VERDICTS.get(event["Action"], found.get(name, FAIL))
    yield from sorted(found.items())
