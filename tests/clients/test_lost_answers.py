"""A change whose answer is lost was made: our admin client doesn't take its own change for a refusal at the next try."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.broker import Broker
from penstock.errors import ErrorCode, KafkaError
from penstock.pipeline.clients.admin import Admin

Work = Callable[[Admin], Awaitable[object]]


def run(broker: Broker, work: Work) -> object:
    async def connected() -> object:
        async with Admin(broker.bootstrap) as admin:
            return await work(admin)

    return asyncio.run(connected())


async def prepare(admin: Admin) -> None:
    """A topic and a group."""
    await admin.create_topics({"there": 2})
    await admin.commit("readers", {("there", 0): (1, "")})


CHANGES: dict[str, tuple[Work, ErrorCode]] = {
    "CreateTopics": (lambda admin: admin.create_topics({"new": 1}), ErrorCode.TOPIC_ALREADY_EXISTS),
    "DeleteTopics": (lambda admin: admin.delete_topics(["there"]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "CreatePartitions": (lambda admin: admin.create_partitions({"there": 4}), ErrorCode.INVALID_PARTITIONS),
    "DeleteGroups": (lambda admin: admin.delete_groups(["readers"]), ErrorCode.GROUP_ID_NOT_FOUND),
}


@pytest.mark.parametrize("api", CHANGES)
@pytest.mark.parametrize("is_refused", [False, True])
def test_a_change_whose_answer_is_lost_is_made_once_and_succeeds(penstock_broker: Broker, api: str, is_refused: bool) -> None:
    """is_refused: the try after the lost one meets a broker that isn't responsible, and the one before isn't forgotten."""
    work, refusal = CHANGES[api]
    run(penstock_broker, prepare)
    lost = penstock_broker.faults.lose_answer(api)
    if is_refused:
        not_this_one = "COORDINATOR_NOT_AVAILABLE" if api == "DeleteGroups" else "NOT_CONTROLLER"
        penstock_broker.faults.error(api, not_this_one, nth=2)
    run(penstock_broker, work)
    assert lost.hits == 1
    with pytest.raises(KafkaError) as refused:
        run(penstock_broker, work)
    assert refused.value.code == refusal, "a change that was made before this client came"
