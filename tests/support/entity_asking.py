"""Configs, quotas and credentials, asked of one broker and altered through one: a test says which."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from penstock.pyx.wire import messages as wire
from support.asking import Serving
from support.config_asking import alter, alteration
from support.harness import WireConnection

TOPIC, BROKER, GROUP = 2, 4, 32
SET, DELETE, APPEND = range(3)
Parts = Mapping[str, str | None]
"""An entity of quotas: names by type; None: the default one."""


def alter_configs(broker: Serving, kind: int, name: str, operation: int = SET, **configs: str) -> None:
    """Alter configs of a resource, `segment_ms="5"` for segment.ms=5."""
    asked = alteration(kind, name, operation, **{key.replace("_", "."): text for key, text in configs.items()})
    with WireConnection(broker.bootstrap) as connection:
        assert alter(connection, asked) == [(0, "")]


def own_configs(broker: Serving, kind: int, name: str) -> dict[str, str | None]:
    """Those that were set for a resource itself."""
    own = wire.DescribeConfigsRequest
    resource = own.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    with WireConnection(broker.bootstrap) as connection:
        (result,) = connection.ask(own(resources=[resource]), 4).results
    assert result.error_code == 0, result
    source = {TOPIC: 1, BROKER: 2 if name else 3, GROUP: 8}[kind]
    return {entry.name: entry.value for entry in result.configs if entry.config_source == source}


def set_quotas(broker: Serving, parts: Parts, **values: float | None) -> None:
    """Set quotas of an entity; None: remove one."""
    own = wire.AlterClientQuotasRequest
    entity = [own.EntityData(entity_type=kind, entity_name=name) for kind, name in parts.items()]
    ops = [own.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()]
    with WireConnection(broker.bootstrap) as connection:
        (entry,) = connection.ask(own(entries=[own.EntryData(entity=entity, ops=ops)]), 1).entries
    assert entry.error_code == 0, entry


def quotas(broker: Serving) -> dict[tuple[tuple[str, str | None], ...], dict[str, float]]:
    """All quotas, by entity."""
    with WireConnection(broker.bootstrap) as connection:
        entries = connection.ask(wire.DescribeClientQuotasRequest(), 1).entries
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {one.key: one.value for one in entry.values}
        for entry in entries
    }


def set_password(broker: Serving, user: str, password: bytes | None, iterations: int = 4096) -> None:
    """Give a user a SCRAM-SHA-256 credential; None: take it away."""
    own = wire.AlterUserScramCredentialsRequest
    if password is None:
        request = own(deletions=[own.ScramCredentialDeletion(name=user, mechanism=1)])
    else:
        salted = hashlib.pbkdf2_hmac("sha256", password, b"salt", iterations)
        given = own.ScramCredentialUpsertion(
            name=user, mechanism=1, iterations=iterations, salt=b"salt", salted_password=salted
        )
        request = own(upsertions=[given])
    with WireConnection(broker.bootstrap) as connection:
        (result,) = connection.ask(request, 0).results
    assert result.error_code == 0, result


def passwords(broker: Serving) -> dict[str, list[tuple[int, int]]]:
    """Mechanisms and iterations of all users that have credentials."""
    with WireConnection(broker.bootstrap) as connection:
        results = connection.ask(wire.DescribeUserScramCredentialsRequest(users=None), 0).results
    return {one.user: [(info.mechanism, info.iterations) for info in one.credential_infos] for one in results}
