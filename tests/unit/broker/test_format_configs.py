"""`compression.type`, its levels, `message.format.version`, `penstock.validate.records`: from the words to what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.broker.configs.properties import SCHEMA
from penstock.broker.configs.topicconfig import log_config
from penstock.errors import KafkaError
from penstock.pipeline.clients.admin import TOPIC_RESOURCE, Admin
from penstock.pipeline.clients.fetcher import Fetcher
from penstock.pipeline.clients.producer import Producer
from support.harness import BrokerProcess

DEFAULTS = {name: prop.default for name, prop in SCHEMA.properties.items()}


@pytest.mark.parametrize(
    ("broker", "topic", "expected"),
    [
        ({}, {}, (-1, -1)),
        ({}, {"compression.type": "uncompressed"}, (0, -1)),
        ({}, {"compression.type": "gzip"}, (1, -1)),
        ({"compression.gzip.level": 9}, {"compression.type": "gzip"}, (1, 9)),
        ({}, {"compression.type": "snappy"}, (2, -1)),
        ({}, {"compression.type": "lz4"}, (3, -1)),
        ({}, {"compression.type": "lz4", "compression.lz4.level": "12"}, (3, 12)),
        ({"compression.type": "zstd"}, {}, (4, 3)),
        ({"compression.type": "zstd"}, {"compression.zstd.level": "-5"}, (4, -5)),
        ({"compression.type": "zstd"}, {"compression.type": "producer"}, (-1, -1)),
    ],
)
def test_codec_and_level(broker: dict[str, object], topic: dict[str, str], expected: tuple[int, int]) -> None:
    told = log_config({**DEFAULTS, **broker}, topic)
    assert (told["compression_codec"], told["compression_level"]) == expected


@pytest.mark.parametrize(
    ("version", "magic"),
    [
        ("0.8.0", 0), ("0.8.2.2", 0), ("0.9.0", 0), ("0.10.0-IV0", 1), ("0.10.2", 1), ("0.10.2.1", 1), ("0.11.0", 2),
        ("0.11.0-IV2", 2), ("1.0", 2), ("2.8-IV1", 2), ("3.0-IV1", 2), ("3.9", 2), ("3.9.1", 2), ("3.7-IV4", 2),
    ],
)  # fmt: skip
def test_message_format_version(version: str, magic: int) -> None:
    assert log_config({**DEFAULTS, "log.message.format.version": version}, {})["message_magic"] == magic
    assert log_config(DEFAULTS, {"message.format.version": version})["message_magic"] == magic
    assert log_config(DEFAULTS, {})["message_magic"] == 2


@pytest.mark.parametrize("version", ["", "2", "0.8", "0.7.2", "3.9-IV1", "0.10.2-IV1", "4.0", "3.x", "0.10.0-IV", "3.0-IV01"])
def test_versions_that_kafka_does_not_know(version: str) -> None:
    with pytest.raises(ValueError, match="is not a valid version"):
        SCHEMA.properties["log.message.format.version"].parse(version)


@pytest.mark.parametrize("number", range(3))
def test_validate_records(number: int) -> None:
    word = ("none", "headers", "full")[number]
    assert log_config({**DEFAULTS, "penstock.validate.records": word}, {})["validate_records"] == number
    assert log_config(DEFAULTS, {"penstock.validate.records": word})["validate_records"] == number
    assert log_config(DEFAULTS, {})["validate_records"] == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("compression.type", "none"),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("compression.lz4.level", "0"),
        ("compression.zstd.level", "23"),
        ("penstock.validate.records", "all"),
    ],
)
def test_wrong_words(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="is "):
        SCHEMA.properties[name].parse(value)


def write(broker: BrokerProcess, topic: str, key: bytes | None, codec: str = "none") -> None:
    with Producer(broker.bootstrap, compression_type=codec) as producer:
        producer.send(topic, key, b"value" * 20).result(30)


async def codecs(broker: BrokerProcess, topic: str, count: int) -> list[int]:
    """Of the batches in a topic."""
    async with Admin(broker.bootstrap) as admin:
        fetcher = Fetcher(admin)
        fetcher.assign({(topic, 0): 0})
        found: list[int] = []
        while len(found) < count:
            found += [batch.codec for fetched in await fetcher.fetch() for batch in fetched.batches]
        await fetcher.close()
    return found


def test_a_topics_codec_may_change(shared_broker: BrokerProcess, new_topic: Callable[[str], str]) -> None:
    topic = new_topic("codec")

    async def create() -> None:
        async with Admin(shared_broker.bootstrap) as admin:
            await admin.create_topics({topic: 1}, configs={"compression.type": "lz4"})

    async def alter(value: str) -> None:
        async with Admin(shared_broker.bootstrap) as admin:
            await admin.alter_configs(TOPIC_RESOURCE, topic, {"compression.type": value})

    asyncio.run(create())
    write(shared_broker, topic, b"k")
    for word in ("zstd", "uncompressed", "producer"):
        asyncio.run(alter(word))
        write(shared_broker, topic, b"k", "snappy")
    assert asyncio.run(codecs(shared_broker, topic, 4)) == [3, 4, 0, 2]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_compacted_topic_wants_keys(shared_broker: BrokerProcess, new_topic: Callable[[str], str], codec: str) -> None:
    topic = new_topic("compacted")

    async def create() -> None:
        async with Admin(shared_broker.bootstrap) as admin:
            await admin.create_topics({topic: 1}, configs={"cleanup.policy": "compact"})

    asyncio.run(create())
    write(shared_broker, topic, b"k", codec)
    with pytest.raises(KafkaError) as caught:
        write(shared_broker, topic, None, codec)
    assert caught.value.code == 87
