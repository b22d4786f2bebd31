"""Clients of today read what producers of old have sent: message sets of formats 0 and 1, in every codec, next to batches.

The sets come by Produce 0 to 2, as those producers send them. One topic is stored in today's format, as by default; the
other as it was sent (`message.format.version`), so that the broker converts for each fetch. Both are written once, then each
client reads them.
Stored sets, served as they are, are null keys and null values to librdkafka from 2.5 to 2.14, and end kafkajs.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from confluent_kafka.admin import AdminClient, NewTopic
from suite import Outcome, Run, each, expect, node_modules, python_environment, tool

from penstock.errors import ErrorCode
from penstock.pyx.record.builder import BatchBuilder
from penstock.pyx.record.codec import CODEC_IDS
from penstock.pyx.wire import requests
from penstock.pyx.wire.connection import WireConnection
from support.messagesets import Message, pack_set, wrap

NEEDS = "pip; node and npm for the clients in JavaScript"
CONFLUENT = ("2.5.3", "2.8.0", "2.11.0", "2.14.0")
NODE = {"kafkajs": "2.2.4", "@platformatic/kafka": "1.35.0", "kafka-node": "5.0.0"}
CODECS = ("none", "gzip", "snappy", "lz4")
# kafkajs knows gzip alone, kafka-node gzip and snappy; what others need is a module of native code.
PLAIN = ("none", "gzip")
COUNT = 5
TIME_MS = 1_700_000_000_000
LIMIT_S = 60

PYTHON = """
import json, sys
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
bootstrap, count, *topics = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "formats", "enable.auto.commit": False})
consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in topics])
for _ in range(int(count) * len(topics)):
    message = consumer.poll(30)
    if message is None:
        sys.exit("no more records")
    if message.error():
        sys.exit(str(message.error()))
    key, value = message.key(), message.value()
    print(json.dumps([message.topic(), message.offset(), key and key.decode(), value and value.decode()]))
consumer.close()
"""
KAFKAJS = """
const {Kafka, logLevel} = require("kafkajs");
const [bootstrap, count, ...topics] = process.argv.slice(1);
const kafka = new Kafka({brokers: bootstrap.split(","), logLevel: logLevel.NOTHING});
const consumer = kafka.consumer({groupId: "kafkajs-" + process.pid});
let left = count * topics.length;
(async () => {
  await consumer.connect();
  await consumer.subscribe({topics, fromBeginning: true});
  consumer.on(consumer.events.CRASH, event => { console.error(event.payload.error); process.exit(1); });
  await consumer.run({eachMessage: async ({topic, message}) => {
    const text = data => data === null ? null : data.toString();
    console.log(JSON.stringify([topic, Number(message.offset), text(message.key), text(message.value)]));
    if (--left === 0) setImmediate(() => consumer.disconnect().then(() => process.exit(0)));
  }});
})();
"""
PLATFORMATIC = """
const {Consumer, MessagesStreamModes} = require("@platformatic/kafka");
const [bootstrap, count, ...topics] = process.argv.slice(1);
const consumer = new Consumer({clientId: "c", groupId: "platformatic-" + process.pid, bootstrapBrokers: bootstrap.split(",")});
let left = count * topics.length;
(async () => {
  const stream = await consumer.consume({topics, mode: MessagesStreamModes.EARLIEST, autocommit: false});
  stream.on("error", error => { console.error(error); process.exit(1); });
  for await (const message of stream) {
    const text = data => data == null ? null : data.toString();
    console.log(JSON.stringify([message.topic, Number(message.offset), text(message.key), text(message.value)]));
    if (--left === 0) process.exit(0);
  }
})();
"""
KAFKA_NODE = """
const {Consumer, KafkaClient} = require("kafka-node");
const [kafkaHost, count, ...topics] = process.argv.slice(1);
const client = new KafkaClient({kafkaHost});
const wanted = topics.map(topic => ({topic, partition: 0, offset: 0}));
const consumer = new Consumer(client, wanted, {autoCommit: false, fromOffset: true});
let left = count * topics.length;
consumer.on("error", error => { console.error(error); process.exit(1); });
consumer.on("message", message => {
  console.log(JSON.stringify([message.topic, message.offset, message.key, message.value]));
  if (--left === 0) process.exit(0);
});
"""
SCRIPTS = {"kafkajs": KAFKAJS, "@platformatic/kafka": PLATFORMATIC, "kafka-node": KAFKA_NODE}


class Written(NamedTuple):
    """Two topics with the same records, and these: keys and values in the order of their offsets."""

    topics: list[str]
    records: list[list[str]]


def old_set(version: int, codec: str, part: list[list[str]]) -> bytes:
    """What a producer sends by this version of Produce: format 0, from version 2 on format 1."""
    magic = int(version == 2)
    stamp = TIME_MS if magic else -1
    plain = [Message(n, key.encode(), value.encode(), stamp) for n, (key, value) in enumerate(part)]
    if codec == "none":
        return pack_set(magic, plain)
    return wrap(magic, plain, CODEC_IDS[codec], len(plain) - 1, timestamp_ms=stamp)


def new_batch(part: list[list[str]]) -> bytes:
    builder = BatchBuilder()
    for key, value in part:
        builder.append(key.encode(), value.encode(), TIME_MS)
    return builder.build()


def send(connection: WireConnection, topic: str, version: int, records: bytes) -> None:
    """Produce; a leader that hasn't heard yet that it leads is asked again."""
    request, deadline = requests.produce_request(topic, {0: records}), time.monotonic() + LIMIT_S
    error = ErrorCode.NOT_LEADER_OR_FOLLOWER
    while error == ErrorCode.NOT_LEADER_OR_FOLLOWER and time.monotonic() < deadline:
        ((answer,),) = [one.partition_responses for one in connection.ask(request, version).responses]
        error = answer.error_code
    expect(error == ErrorCode.NONE, topic, "produce", version, "error", error)


def create(run: Run, topic: str, stored_as: str) -> str:
    """A topic of one partition; the address of its leader."""
    admin = AdminClient({"bootstrap.servers": run.bootstrap})
    wanted = NewTopic(topic, 1, run.copies, config={"message.format.version": stored_as})
    admin.create_topics([wanted])[topic].result(LIMIT_S)
    seen = admin.list_topics(topic, timeout=LIMIT_S)
    leader = seen.brokers[seen.topics[topic].partitions[0].leader]
    return f"{leader.host}:{leader.port}"


def write(run: Run, codecs: tuple[str, ...]) -> Written:
    """The topics, each with sets of every version and codec, and a batch of today after each of them."""
    topics = [f"formats-{kind}-{uuid4().hex[:8]}" for kind in ("converted", "kept")]
    records: list[list[str]] = []
    sets: list[tuple[int, bytes]] = []
    for version, codec in itertools.product(range(3), codecs):
        old, new = (
            [[f"key {len(records) + n}", f"value {len(records) + n} " * 5] for n in range(first, first + COUNT)]
            for first in (0, COUNT)
        )
        records += old + new
        sets += [(version, old_set(version, codec, old)), (requests.PRODUCE_VERSION, new_batch(new))]
    for topic, stored_as in zip(topics, ("3.0", "0.8.2"), strict=True):
        with WireConnection(create(run, topic, stored_as)) as leader:
            for version, sent in sets:
                send(leader, topic, version, sent)
    return Written(topics, records)


def read(run: Run, name: str, written: Written, command: list[str | Path], **changes: str) -> None:
    """A client reads both topics from their beginnings."""
    said = run.done(name, [*command, run.bootstrap, str(len(written.records)), *written.topics], LIMIT_S, run.work, **changes)
    seen: dict[str, list[list[str]]] = {topic: [] for topic in written.topics}
    for topic, offset, key, value in (json.loads(line) for line in said.splitlines() if line.startswith('["')):
        expect(offset == len(seen[topic]), topic, "offset", offset, "after", len(seen[topic]), "records")
        seen[topic].append([key, value])
    for topic, found in seen.items():
        expect(found == written.records, topic, "gave", found, "for", written.records)


def confluent(run: Run, version: str, written: Written) -> None:
    python = python_environment(run.cache, [f"confluent-kafka=={version}"])
    read(run, f"confluent_{version}", written, [python, "-c", PYTHON])


def node(run: Run, name: str, written: Written) -> None:
    modules = node_modules(run.cache, f"{name}@{NODE[name]}")
    read(run, label(name), written, [tool("node"), "-e", SCRIPTS[name], "--"], NODE_PATH=str(modules))


def label(name: str) -> str:
    return name.strip("@").replace("/", "_")


def run(run: Run) -> Iterator[Outcome]:
    """Outcomes of all clients, in order."""
    every = {f"confluent_{version}": partial(confluent, version=version) for version in CONFLUENT}
    few = {label(name): partial(node, name=name) for name in NODE}
    for clients, codecs in ((every, CODECS), (few, PLAIN)):
        chosen = {name: client for name, client in clients.items() if run.wants(name)}
        if chosen:
            written = write(run, codecs)
            yield from each(run, {name: partial(client, written=written) for name, client in chosen.items()})
