"""Where a stage is killed or paused: at each failpoint, with our brokers or Apache Kafka in some role.

`make failpoints` tries every pair of the two; a run of all tests those that a module names, since the whole takes long.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence

import pytest
from _pytest.mark.structures import ParameterSet

ROLES = ("ours", "source", "target", "both")  # what Apache Kafka is; `ours`: nothing
WHOLE = os.environ.get("PENSTOCK_FAILPOINTS_ALL") == "1"


def cells(failpoints: Iterable[str], few: Collection[tuple[str, str]], roles: Sequence[str] = ROLES) -> list[ParameterSet]:
    """Parameters `failpoint` and `role`: all pairs, or those of them that are tried in each run, which must be some of all."""
    pairs = [(name, role) for name in failpoints for role in roles]
    assert set(few) <= set(pairs), f"no such failpoint or role: {sorted(set(few) - set(pairs))}"
    return [pytest.param(*pair, marks=_marks(pair[1])) for pair in pairs if WHOLE or pair in few]


def roles(few: Collection[str]) -> list[ParameterSet]:
    """The parameter `role`: all, or those that are tried in each run, where one test passes all failpoints."""
    return [pytest.param(role, marks=_marks(role)) for role in ROLES if WHOLE or role in few]


def _marks(role: str) -> Collection[pytest.MarkDecorator]:
    return () if role == "ours" else (pytest.mark.kafka,)
