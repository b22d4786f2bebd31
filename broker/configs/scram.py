"""SCRAM credentials (KIP-554): stored as RFC 5802 keys beside a user's quotas, described without their secrets.

The client sends its salted password; what is kept is the stored key and the server key made of it, which let a
broker check a login but not make one. Kafka's text: `salt=..,stored_key=..,server_key=..,iterations=N`, the
first three in base64, under `SCRAM-SHA-256` or `SCRAM-SHA-512`. No client can log in by them yet.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from penstock.errors import ErrorCode, KafkaError

# Number on the wire -> (name, hash).
MECHANISMS = {1: ("SCRAM-SHA-256", "sha256"), 2: ("SCRAM-SHA-512", "sha512")}
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16_384
_TEXT = re.compile(r"salt=[\w+/=]*,stored_key=[\w+/=]+,server_key=[\w+/=]+,iterations=(\d{1,9})", re.ASCII)


class Upsertion(NamedTuple):
    """A credential as a client sends it."""

    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


def check(user: str, mechanism: int, iterations: int = MIN_ITERATIONS) -> None:
    """Raise KafkaError for a credential that can't be."""
    if not user:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism not in MECHANISMS:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if iterations < MIN_ITERATIONS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if iterations > MAX_ITERATIONS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")


def text_of_credential(given: Upsertion) -> str:
    """What is stored of a credential that was checked. Raises KafkaError if it has no password."""
    if not given.salted_password:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salted password must not be empty")
    _, digest = MECHANISMS[given.mechanism]
    client_key = hmac.digest(given.salted_password, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    server_key = hmac.digest(given.salted_password, b"Server Key", digest)
    parts = {"salt": given.salt, "stored_key": stored_key, "server_key": server_key}
    texts = [f"{name}={b64encode(value).decode()}" for name, value in parts.items()]
    return ",".join([*texts, f"iterations={given.iterations}"])


def check_text(text: str) -> None:
    """Raise ValueError unless it is what `text_of_credential` makes."""
    found = _TEXT.fullmatch(text)
    if found is None or not MIN_ITERATIONS <= int(found[1]) <= MAX_ITERATIONS:
        raise ValueError("a SCRAM credential should be `salt=..,stored_key=..,server_key=..,iterations=N`")


def credentials_of(configs: Mapping[str, str]) -> Iterable[tuple[int, int]]:
    """(mechanism, iterations) of each credential among a user's configs."""
    for number, (name, _) in MECHANISMS.items():
        if name in configs:
            yield number, int(configs[name].rpartition("iterations=")[2])
