"""Who the controller of a cluster is."""

from __future__ import annotations

import asyncio

from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.client import Client
from penstock.pyx.wire import requests

ANSWER_S = 5.0  # where controllers have lost their majority, brokers wait for one for longer than an operator does


async def controller(client: Client) -> int:
    """The node that is the controller; -1: nobody says within ANSWER_S. Raises KafkaError.

    Metadata doesn't say it in a cluster of KRaft: it names any broker that lives, so that old clients have one to ask. This
    question has connections of its own: as long as a broker doesn't answer it, nothing else is answered on its connection.
    """
    answer = None
    try:
        async with asyncio.timeout(ANSWER_S):
            for node in (await client.metadata([])).brokers:
                try:
                    answer = await client.send(node, requests.quorum_request(), purpose="quorum")
                    break
                except KafkaError as error:
                    if error.code == ErrorCode.UNSUPPORTED_VERSION:  # Kafka with ZooKeeper.
                        return (await client.metadata([], refresh=True)).controller_id
                    if not error.retriable:
                        raise
    except TimeoutError:
        return -1
    if answer is None:
        return -1
    parts = [part for topic in answer.topics for part in topic.partitions if not part.error_code]
    return parts[0].leader_id if parts else -1
