"""Named places where a test may stop, delay, fail or kill a process.

Off unless `PENSTOCK_FAILPOINTS` is set when the process starts, for example
`PENSTOCK_FAILPOINTS="mirror.offsets_sent=kill@3,dedupe.published=delay:200"`:

| action        | effect at the n-th passage (`@n`, default 1; `delay` acts at each passage from the n-th on) |
| ------------- | -------------------------------------------------------------------------------------------- |
| `kill`        | the process ends by SIGKILL: nothing is flushed, no handler runs                               |
| `stop`        | the process stops by SIGSTOP until a SIGCONT comes                                           |
| `error`       | `FailpointError` is raised                                                                   |
| `delay:MS`    | the thread sleeps                                                                            |

A module declares its names once with `declare`; `declared()` lets a test enumerate them all, so a
write, publish, commit or fsync that gains a failpoint gains its test with it. A name that nobody
declared is refused by `arm_from_environment`, which the commands call once their modules are imported.
"""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass

ENVIRONMENT = "PENSTOCK_FAILPOINTS"


class FailpointError(RuntimeError):
    """Raised by a failpoint whose action is `error`."""


class SpecError(ValueError):
    """What should be armed is written wrongly or names no failpoint."""


@dataclass
class _Armed:
    action: str
    at_passage: int
    delay_ms: int
    passages: int = 0


_declared: dict[str, str] = {}
_armed: dict[str, _Armed] = {}


def declare(name: str, where: str) -> str:
    """Register a failpoint's name with a few words on the step it stands at; returns the name."""
    if name in _declared:
        raise ValueError(f"failpoint `{name}` is declared twice")
    _declared[name] = where
    return name


def declared(prefix: str = "") -> dict[str, str]:
    """Every declared name that starts with prefix, with its words, in order of declaration."""
    return {name: where for name, where in _declared.items() if name.startswith(prefix)}


_SPEC = re.compile(r"(?P<name>[^=\s]+)=(?:(?P<kind>kill|stop|error)|delay:(?P<ms>[0-9]{1,9}))(?:@(?P<at>[1-9][0-9]{0,8}))?")


def _parse(spec: str) -> tuple[str, _Armed]:
    match = _SPEC.fullmatch(spec.strip())
    if match is None:
        raise SpecError(f"failpoint `{spec.strip()}` is not `name=kill|stop|error|delay:MS[@n]`, n from 1")
    if match["name"] not in _declared:
        raise SpecError(f"no failpoint `{match['name']}`; there are: {', '.join(sorted(_declared))}")
    return match["name"], _Armed(match["kind"] or "delay", int(match["at"] or 1), int(match["ms"] or 0))


def arm(specs: str) -> None:
    """Arm the comma-separated specs, all or none. Raises SpecError for a bad spec or an undeclared name."""
    _armed.update([_parse(spec) for spec in specs.split(",") if spec.strip()])


def arm_from_environment() -> None:
    """Arm what `PENSTOCK_FAILPOINTS` names; nothing happens when it is not set.

    Raises SpecError.
    """
    arm(os.environ.get(ENVIRONMENT, ""))


def disarm() -> None:
    """Forget all armed failpoints."""
    _armed.clear()


def failpoint(name: str) -> None:
    """Pass the named place. Costs one dictionary look-up when nothing is armed."""
    armed = _armed.get(name)
    if armed is None:
        return
    armed.passages += 1
    if armed.action == "delay":
        if armed.passages >= armed.at_passage:
            time.sleep(armed.delay_ms / 1000)
    elif armed.passages == armed.at_passage:
        if armed.action == "error":
            raise FailpointError(name)
        os.kill(os.getpid(), signal.SIGKILL if armed.action == "kill" else signal.SIGSTOP)
