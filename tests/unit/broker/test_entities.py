"""Configs of users, client ids, addresses and groups: what is kept, what goes, and what other brokers would read."""

import asyncio
import base64
import hashlib
import secrets
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.configs import quotas
from penstock.broker.configs.entities import DEFAULT, Entities, Entity, Name
from penstock.broker.configs.scram import Upsertion, credentials_of, text_of_credential
from penstock.broker.store.embedded import EmbeddedStore
from penstock.errors import ErrorCode, KafkaError

NAMES: st.SearchStrategy[Name] = st.sampled_from(["a", "b/c", "<default>", "ü %", DEFAULT])
ENTITIES = st.one_of(
    NAMES.map(lambda name: Entity(user=name)),
    NAMES.map(lambda name: Entity(client_id=name)),
    st.tuples(NAMES, NAMES).map(lambda names: Entity(*names)),
    NAMES.map(lambda name: Entity(ip=name)),
    NAMES.map(lambda name: Entity(group=name)),
)
CHANGES = st.dictionaries(
    ENTITIES, st.dictionaries(st.sampled_from(["x", "y"]), st.none() | st.sampled_from(["1", "2"]), max_size=2), max_size=4
)

FOLDER = tempfile.TemporaryDirectory()


@settings(max_examples=25, deadline=None, database=None, derandomize=True)
@given(st.lists(CHANGES, max_size=6))
def test_what_is_altered_is_what_is_loaded(rounds: list[dict[Entity, dict[str, str | None]]]) -> None:
    model: dict[Entity, dict[str, str]] = {}

    async def run() -> None:
        store = await EmbeddedStore.open(Path(FOLDER.name, secrets.token_hex(8)))
        entities = Entities(store)
        await entities.load()
        for changes in rounds:
            await entities.alter(changes)
            for entity, texts in changes.items():
                whole = {**model.get(entity, {}), **texts}
                model[entity] = {key: text for key, text in whole.items() if text is not None}
        again = Entities(store)
        await again.load()
        expected = {entity: texts for entity, texts in model.items() if texts}
        assert dict(entities) == dict(again) == expected
        await store.close()

    asyncio.run(run())


def test_nothing_is_left_of_a_user_without_configs() -> None:
    async def run() -> None:
        store = await EmbeddedStore.open(Path(FOLDER.name, secrets.token_hex(8)))
        entities = Entities(store)
        user, pair = Entity(user="u"), Entity(user="u", client_id="c")
        await entities.alter({user: {"x": "1"}, pair: {"x": "1"}})
        await entities.alter({pair: {"x": None}, user: {"x": None}})
        assert await store.children("/config/users") == []
        await store.close()

    asyncio.run(run())


def entity(*parts: tuple[str, str | None]) -> Entity:
    return asyncio.run(quotas.parse_entity(parts))


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ((), "empty client quota entity"),
        ((("user", ""),), "Empty user"),
        ((("host", "a"),), "Unhandled client quota entity type: host"),
        ((("ip", "1.1.1.1"), ("user", "a")), "IP entity should not"),
        ((("ip", "not an address"),), "not a valid IP"),
    ],
)
def test_entities_that_can_not_be(parts: tuple[tuple[str, str | None], ...], says: str) -> None:
    with pytest.raises(KafkaError, match=says):
        entity(*parts)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("producer_byte_rate", 1000.0, "1000"),
        ("producer_byte_rate", 999.9999999, "1000"),
        ("request_percentage", 0.5, "0.5"),
        ("producer_byte_rate", 1.5, None),
        ("producer_byte_rate", 1e30, None),
        ("producer_byte_rate", float("inf"), None),
        ("producer_byte_rate", 0.0, None),
        ("consumer_byte_rate", float("nan"), None),
        ("connection_creation_rate", 1.0, None),
        ("speed", 1.0, None),
    ],
)
def test_quotas_that_can_be(key: str, value: float, text: str | None) -> None:
    if text is None:
        with pytest.raises(KafkaError) as caught:
            quotas.text_of_quota(entity(("user", "a")), key, value)
        assert caught.value.code == ErrorCode.INVALID_REQUEST
    else:
        assert quotas.text_of_quota(entity(("user", "a")), key, value) == text


A, A_C, D, C, LOCAL = (
    Entity(user="a"), Entity(user="a", client_id="c"), Entity(user=DEFAULT), Entity(client_id="c"), Entity(ip="::1"),
)  # fmt: skip
EXACT, IS_DEFAULT, SPECIFIED = quotas.EXACT, quotas.IS_DEFAULT, quotas.SPECIFIED


@pytest.mark.parametrize(
    ("components", "strict", "meant"),
    [
        ([], False, {A, A_C, D, C, LOCAL}),
        ([], True, set()),
        ([("user", EXACT, "a")], False, {A, A_C}),
        ([("user", EXACT, "a")], True, {A}),
        ([("user", IS_DEFAULT, None)], False, {D}),
        ([("user", SPECIFIED, None)], False, {A, A_C, D}),
        ([("user", SPECIFIED, None)], True, {A, D}),
        ([("user", SPECIFIED, None), ("client-id", SPECIFIED, None)], True, {A_C}),
        ([("client-id", SPECIFIED, None)], True, {C}),
        ([("ip", EXACT, "::1")], False, {LOCAL}),
        ([("ip", EXACT, "::2")], False, set()),
    ],
)
def test_which_entities_a_filter_means(components: list[tuple[str, int, str | None]], strict: bool, meant: set[Entity]) -> None:
    async def run() -> set[Entity]:
        store = await EmbeddedStore.open(Path(FOLDER.name, secrets.token_hex(8)))
        entities = Entities(store)
        await entities.alter({one: {"producer_byte_rate": "1"} for one in (A, A_C, D, C, LOCAL)})
        await entities.alter({Entity(user="scram"): {"SCRAM-SHA-256": "iterations=4096"}})
        wanted = [quotas.Component(*component) for component in components]
        quotas.check_filter(wanted)
        found = {one for one, _ in quotas.find(entities, wanted, strict)}
        await store.close()
        return found

    assert asyncio.run(run()) == meant


@pytest.mark.parametrize(
    "components",
    [
        [("user", SPECIFIED, None), ("user", SPECIFIED, None)],
        [("user", 9, None)],
        [("user", EXACT, None)],
        [("user", IS_DEFAULT, "a")],
        [("user", SPECIFIED, "a")],
        [("", SPECIFIED, None)],
        [("host", SPECIFIED, None)],
        [("user", SPECIFIED, None), ("ip", SPECIFIED, None)],
    ],
)
def test_filters_that_can_not_be(components: list[tuple[str, int, str | None]]) -> None:
    with pytest.raises(KafkaError):
        quotas.check_filter([quotas.Component(*component) for component in components])


def test_scram_keys_are_those_of_rfc_7677() -> None:
    """The example of RFC 7677: password `pencil`, whose salted form the client makes."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", salt, 4096)
    text = text_of_credential(Upsertion(1, 4096, salt, salted))
    assert base64.b64encode(salted).decode() not in text
    assert "stored_key=WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=" in text
    assert "server_key=wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=" in text
    assert list(credentials_of({"SCRAM-SHA-256": text, "producer_byte_rate": "1"})) == [(1, 4096)]
