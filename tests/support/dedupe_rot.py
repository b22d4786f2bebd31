"""Batches that are right by header and checksum and corrupt inside, as a broker that believes headers stores them."""

from __future__ import annotations

import struct

from penstock.pipeline.clients.admin import TOPIC_RESOURCE
from penstock.pyx.record.crc import crc32c
from support.dedupe_world import World

PAYLOAD_AT = 61
CRC_AT = 17
CRC_FROM = 21  # the checksum covers what follows it


def corrupt(world: World, partition: int = 0, count: int = 3, codec: int = 4) -> bytes:
    """A batch of `count` records whose compressed payload is broken, with the right checksum; not in the ledger."""
    world.corrupt[partition] += count
    return corrupt_for(world, world.topic, partition, count, codec)


def corrupt_for(world: World, topic: str, partition: int = 0, count: int = 3, codec: int = 4) -> bytes:
    """The same for any topic, and counted nowhere."""
    world.admin(lambda admin: admin.alter_configs(TOPIC_RESOURCE, topic, {"penstock.validate.records": "headers"}))
    data = bytearray(world.batch(partition, [f"corrupt-{i}" for i in range(count)], codec, note=False))
    for at in range(PAYLOAD_AT, len(data)):
        data[at] ^= 0x5A
    struct.pack_into(">I", data, CRC_AT, crc32c(bytes(data[CRC_FROM:])))
    return bytes(data)
