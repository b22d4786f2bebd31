"""ElectLeaders (KIP-183, KIP-460): elect preferred or, at a loss, unclean leaders. Versions 0-2.

In a cluster the controller answers. An unclean election is an operator's word that what no live replica holds is lost: the
longest log of the live replicas leads, and a lost or damaged one begins again, empty, if there is no other.

One node leads all that it can, so an election is never needed: ELECTION_NOT_NEEDED for each partition that is
named, and those that weren't named (null = all) aren't answered.
"""

from collections.abc import Mapping

from penstock.broker.clustermember import ClusterMember
from penstock.broker.context import Call, Context
from penstock.errors import ErrorCode, KafkaError
from penstock.pyx.wire.messages import ElectLeadersRequest, ElectLeadersResponse

KEY, VERSIONS = 43, (0, 2)
PREFERRED, UNCLEAN = 0, 1
NOBODY = {
    PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}

Topic = ElectLeadersResponse.ReplicaElectionResult
Partition = ElectLeadersResponse.PartitionResult


async def handle(context: Context, request: ElectLeadersRequest, call: Call) -> ElectLeadersResponse:
    """Answer per partition."""
    response = ElectLeadersResponse()
    if request.election_type not in (PREFERRED, UNCLEAN):
        response.error_code = ErrorCode.INVALID_REQUEST
    elif context.cluster is not None:
        return await _in_cluster(context.cluster, request, call)
    if request.topic_partitions is None:
        response.replica_election_results = [Topic(topic=topic.name, partition_result=[]) for topic in context.topics.all()]
        return response
    for asked in request.topic_partitions:
        results = [
            _one(context, asked.topic, index, request.election_type) async for index in call.turns.each(asked.partitions)
        ]
        response.replica_election_results.append(Topic(topic=asked.topic, partition_result=results))
    return response


async def _in_cluster(cluster: ClusterMember, request: ElectLeadersRequest, call: Call) -> ElectLeadersResponse:
    named = request.topic_partitions
    asked = None if named is None else [(one.topic, index) for one in named for index in one.partitions]
    unclean = request.election_type == UNCLEAN
    found = await cluster.on_elect_leaders(asked, unclean=unclean, timeout_ms=max(0, request.timeout_ms))
    if found is None:  # Version 0 has no place for the whole answer's error.
        found = dict.fromkeys(asked or (), int(ErrorCode.NOT_CONTROLLER)) if call.api_version == 0 else {}
        return ElectLeadersResponse(error_code=ErrorCode.NOT_CONTROLLER, replica_election_results=_results(found))
    return ElectLeadersResponse(replica_election_results=_results(found))


def _results(found: Mapping[tuple[str, int], int]) -> list[Topic]:
    topics: dict[str, Topic] = {}
    for (name, index), code in sorted(found.items()):
        topic = topics.setdefault(name, Topic(topic=name, partition_result=[]))
        why = None if code == ErrorCode.NONE else str(KafkaError(code, f"{name}-{index}"))
        topic.partition_result.append(Partition(partition_id=index, error_code=code, error_message=why))
    return list(topics.values())


def _one(context: Context, name: str, index: int, election_type: int) -> Partition:
    topic = context.topics.get(name)
    if election_type not in (PREFERRED, UNCLEAN):
        code, why = ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}"
    elif topic is None:
        code, why = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {name}"
    elif not 0 <= index < len(topic.partitions):
        code, why = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {name}-{index}"
    elif topic.partitions[index].leader < 0:
        # Its log is not open yet, or its disk has failed.
        code, why = NOBODY[election_type], f"Partition {name}-{index} has no replica that could lead it."
    else:
        code, why = ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."
    return Partition(partition_id=index, error_code=code, error_message=why)
