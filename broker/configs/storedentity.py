"""Whether an entity can have a config that the store says it has: configs of groups, SCRAM credentials, quotas."""

from __future__ import annotations

from penstock.broker.configs.entities import Entity
from penstock.broker.configs.groupresource import parse_group_config
from penstock.broker.configs.quotas import text_of_quota
from penstock.broker.configs.scram import MECHANISMS, check_text
from penstock.broker.store.base import BadValueError
from penstock.errors import KafkaError


def check_stored(entity: Entity, key: str, text: str) -> None:
    """Raise BadValueError for a config that no such entity can have."""
    try:
        if entity.group is not None:
            parse_group_config(key, text)
        elif any(key == name for name, _ in MECHANISMS.values()):
            check_text(text)
        else:
            text_of_quota(entity, key, float(text))
    except KafkaError as error:
        raise BadValueError(entity.path, error.what) from None
    except ValueError as error:
        raise BadValueError(entity.path, f"`{key}`: {error}") from None
