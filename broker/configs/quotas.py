"""Client quotas (KIP-13, KIP-546, KIP-612): which keys an entity may have, which entities a filter means.

Stored and described, not enforced. Entities are a user, a client id, both, or an address (`entities.py`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from penstock.broker.configs.entities import CLIENT_ID, DEFAULT, IP, USER, Entities, Entity
from penstock.errors import ErrorCode, KafkaError

LONG_MAX, INT_MAX = (1 << 63) - 1, (1 << 31) - 1
# Key -> (type, largest value); a double has no largest.
CLIENT_KEYS: Mapping[str, tuple[str, int | None]] = {
    "producer_byte_rate": ("a LONG", LONG_MAX),
    "consumer_byte_rate": ("a LONG", LONG_MAX),
    "request_percentage": ("a DOUBLE", None),
    "controller_mutation_rate": ("a DOUBLE", None),
}
IP_KEYS: Mapping[str, tuple[str, int | None]] = {"connection_creation_rate": ("an INT", INT_MAX)}
KEYS = {**CLIENT_KEYS, **IP_KEYS}
EXACT, IS_DEFAULT, SPECIFIED = range(3)
# Kafka takes a rate for a whole number when it is this near to one.
WHOLE = 1e-6
LOOK_UP_S = 5.0


class Component(NamedTuple):
    """What a filter asks of one entity type: an exact name, the default, or any."""

    kind: str
    match_type: int
    name: str | None


def _refuse(why: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> KafkaError:
    return KafkaError(code, why)


async def parse_entity(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """The entity of (type, name) pairs, of which a null name is the default. Raises KafkaError."""
    given = dict(parts)
    if not given:
        raise _refuse("Invalid empty client quota entity")
    for kind, name in given.items():
        if kind not in (USER, CLIENT_ID, IP):
            raise _refuse(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _refuse(f"Empty {kind} not supported")
    if IP in given and len(given) > 1:
        raise _refuse("Invalid quota entity combination, IP entity should not be combined with User or ClientId")
    ip = given.get(IP)
    if ip is not None and not await _resolvable(ip):
        raise _refuse(f"{ip} is not a valid IP or resolvable host.")
    names = {kind: DEFAULT if name is None else name for kind, name in given.items()}
    return Entity(names.get(USER), names.get(CLIENT_ID), names.get(IP))


async def _resolvable(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        pass
    else:
        return True
    loop = asyncio.get_running_loop()
    try:
        return bool(await asyncio.wait_for(loop.getaddrinfo(host, None), LOOK_UP_S))
    except (socket.gaierror, TimeoutError, UnicodeError):
        return False


def text_of_quota(entity: Entity, key: str, value: float) -> str:
    """The text that is stored for a quota. Raises KafkaError for a key or a value that can't be."""
    known = (CLIENT_KEYS if entity.ip is None else IP_KEYS).get(key)
    if known is None:
        raise _refuse(f"Invalid configuration key {key}")
    kind, most = known
    if not value > 0:
        raise _refuse(f"Quota {key} must be greater than 0")
    if most is None:
        return repr(value)
    if math.isinf(value) or value > most:
        raise _refuse(f"Proposed value for {key} is too large for {kind}.")
    if abs(value - round(value)) > WHOLE:
        raise _refuse(f"{key} cannot be a fractional value.")
    return str(round(value))


def quotas_of(configs: Mapping[str, str]) -> dict[str, float]:
    """The quotas among an entity's configs, which may hold SCRAM credentials too."""
    return {key: float(text) for key, text in configs.items() if key in KEYS}


def check_filter(components: list[Component]) -> None:
    """Raise KafkaError for a filter that can't be."""
    kinds = Counter(component.kind for component in components)
    for component in components:
        _check_component(component)
        if kinds[component.kind] > 1:
            raise _refuse(f"Entity type {component.kind} cannot appear more than once in the filter.")
    if IP in kinds and len(kinds) > 1:
        raise _refuse(
            "Invalid entity filter component combination. "
            "IP filter component should not be used with user or clientId filter component."
        )


def _check_component(component: Component) -> None:
    if component.kind == "":
        raise _refuse("Invalid empty entity type.")
    if component.kind not in (USER, CLIENT_ID, IP):
        raise _refuse(f"Unsupported entity type {component.kind}", ErrorCode.UNSUPPORTED_VERSION)
    if component.match_type == EXACT:
        if component.name is None:
            raise _refuse("Request specified MATCH_TYPE_EXACT, but set match string to null.")
    elif component.match_type not in (IS_DEFAULT, SPECIFIED):
        raise _refuse(f"Unknown match type {component.match_type}")
    elif component.name is not None:
        word = "DEFAULT" if component.match_type == IS_DEFAULT else "SPECIFIED"
        raise _refuse(f"Request specified MATCH_TYPE_{word}, but also specified a match string.")


def find(entities: Entities, components: list[Component], strict: bool) -> Iterator[tuple[Entity, dict[str, float]]]:
    """The entities with quotas that a filter means; strict: those with no other types beside the asked ones."""
    if strict and not components:
        return
    for entity, configs in entities:
        parts = dict(entity.parts())
        quotas = quotas_of(configs)
        fits = all(component.kind in parts and _fits(component, parts[component.kind]) for component in components)
        if quotas and fits and not (strict and len(parts) > len(components)):
            yield entity, quotas


def _fits(component: Component, name: str | None) -> bool:
    if component.match_type == EXACT:
        return name == component.name
    return component.match_type == SPECIFIED or name is None
