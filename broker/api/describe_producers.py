"""DescribeProducers (KIP-664): the producer state of partitions, to find hanging transactions. Version 0."""

from penstock.broker.context import Call, Context
from penstock.errors import KafkaError
from penstock.pyx.wire.messages import DescribeProducersRequest, DescribeProducersResponse

KEY, VERSIONS = 61, (0, 0)


async def handle(context: Context, request: DescribeProducersRequest, call: Call) -> DescribeProducersResponse:
    """Answer per partition."""
    response = DescribeProducersResponse()
    for topic in {one.name: one for one in request.topics}.values():
        indexes = dict.fromkeys(topic.partition_indexes)
        answers = [await _one(context, topic.name, index) async for index in call.turns.each(indexes)]
        response.topics.append(DescribeProducersResponse.TopicResponse(name=topic.name, partitions=answers))
    return response


async def _one(context: Context, name: str, index: int) -> DescribeProducersResponse.PartitionResponse:
    answer = DescribeProducersResponse.PartitionResponse(partition_index=index)
    try:
        producers = await context.topics.ask(name, index, context.log_manager.producers, name, index)
    except KafkaError as error:
        answer.error_code, answer.error_message = error.code, error.what
        return answer
    answer.active_producers = [
        DescribeProducersResponse.ProducerState(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            last_sequence=producer.last_sequence,
            last_timestamp=producer.last_timestamp_ms,
            coordinator_epoch=producer.coordinator_epoch,
            current_txn_start_offset=producer.txn_first_offset,
        )
        for producer in producers
    ]
    return answer
