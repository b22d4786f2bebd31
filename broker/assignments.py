"""Which brokers a partition may be put on by hand."""

from collections import Counter
from collections.abc import Sequence

from penstock.broker.context import Context
from penstock.errors import ErrorCode, KafkaError


def check_assignment(context: Context, replicas: Sequence[int]) -> None:
    """Raise KafkaError INVALID_REPLICA_ASSIGNMENT unless a partition can live on these brokers."""
    why = ""
    if not replicas:
        why = "The manual partition assignment includes an empty replica list."
    for broker_id, times in Counter(replicas).items():
        if times > 1:
            why = f"The manual partition assignment includes the broker {broker_id} more than once."
        elif broker_id not in context.topics.brokers:
            why = f"The manual partition assignment includes broker {broker_id}, but no such broker is registered."
    if why:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, why)
