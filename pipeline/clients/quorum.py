"""Who the controller of a cluster is."""

from __future__ import annotations

import asyncio

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.client import ANY_NODE, Client
from penstock.pyx.wire import requests

ANSWER_S = 5.0  # where controllers have lost their majority, brokers wait for one for longer than an operator does


async def controller(client: Client) -> int:
    """The node that is the controller; -1: nobody says within ANSWER_S. Raises KafkaError.

    Metadata doesn't say it in a cluster of KRaft: it names any broker that lives, so that old clients have one to ask.
    """
    try:
        async with asyncio.timeout(ANSWER_S):
            answer = await client.send(ANY_NODE, requests.quorum_request())
    except TimeoutError:
        return -1
    except KafkaError as error:
        if error.code == ErrorCode.UNSUPPORTED_VERSION:  # Kafka with ZooKeeper.
            return (await client.metadata([], refresh=True)).controller_id
        if not error.retriable:
            raise
        return -1
    parts = [part for topic in answer.topics for part in topic.partitions if not part.error_code]
    return parts[0].leader_id if parts else -1
