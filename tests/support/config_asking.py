"""Values that are tried for configs, and the requests that carry them."""

from __future__ import annotations

from typing import Any

from penstock.broker.configs.properties import INT_MAX, LONG_MAX, MIB
from penstock.config import WholeNumber
from penstock.pyx.wire import messages as m
from support.harness import WireConnection

ODD = (
    "", " ", "x", "0", "-1", "1", "+5", " 12 ", "1e3", "0x10", "\uff11\uff12", "1_0", "-0", "1.5", "NaN", "-inf", "1e999",
    "9" * 20, "TRUE", "a,b", ",", "delete,", "delete,,compact", " compact , delete ", "1:1", "1:1,x", "\uff11:1", "*", "gzip",
    *(str(edge + step) for edge in (INT_MAX, LONG_MAX, -INT_MAX - 1, -LONG_MAX - 1, MIB) for step in (-1, 0, 1)),
)  # fmt: skip


def texts(prop: Any) -> list[str]:
    """What is tried as the value of a config: odd texts, and its bounds."""
    bounds = [prop.parse.minimum, prop.parse.maximum] if isinstance(prop.parse, WholeNumber) else []
    edges = [str(bound + step) for bound in bounds if bound is not None for step in (-1, 0, 1)]
    return list(dict.fromkeys([*ODD, *edges]))


def alteration(kind: int, name: str, operation: int, **configs: str) -> Any:
    own = m.IncrementalAlterConfigsRequest
    listed = [own.AlterableConfig(name=key, config_operation=operation, value=text) for key, text in configs.items()]
    return own.AlterConfigsResource(resource_type=kind, resource_name=name, configs=listed)


def alter(wire: WireConnection, *resources: Any, validate_only: bool = False) -> list[tuple[int, str]]:
    request = m.IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
    return [(one.error_code, one.error_message or "") for one in wire.ask(request, 1).responses]


def create(wire: WireConnection, topics: dict[str, dict[str, str]], validate_only: bool = False) -> list[tuple[int, str]]:
    own = m.CreateTopicsRequest
    wanted = [
        own.CreatableTopic(
            name=name, num_partitions=1, replication_factor=1,
            configs=[own.CreatableTopicConfig(name=key, value=text) for key, text in configs.items()],
        )
        for name, configs in topics.items()
    ]  # fmt: skip
    answer = wire.ask(own(topics=wanted, timeout_ms=60_000, validate_only=validate_only), 7)
    return [(one.error_code, one.error_message or "") for one in answer.topics]
