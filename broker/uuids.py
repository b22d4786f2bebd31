"""Ids as Kafka makes and writes them: of topics, clusters, log folders, and of the metadata store."""

from __future__ import annotations

import base64
import uuid


def new_uuid() -> bytes:
    """A random id of 16 bytes, none that Kafka reserves (0, 1) and none whose text starts with `-`."""
    while True:
        made = uuid.uuid4().bytes
        if int.from_bytes(made, "big") > 1 and not uuid_text(made).startswith("-"):
            return made


def uuid_text(identity: bytes) -> str:
    """Kafka's text of an id: base64 for URLs, 22 characters."""
    return base64.urlsafe_b64encode(identity).decode().rstrip("=")


def uuid_bytes(text: str) -> bytes:
    """The 16 bytes of Kafka's text of an id. Raises ValueError."""
    identity = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(identity) != 16:
        raise ValueError(f"`{text}` is not an id of 16 bytes")
    return identity
