"""The operations that an ACL (KIP-11, KIP-290) may be about. There is no authorizer, so no ACL is kept: requests about them are
answered SECURITY_DISABLED, as by a Kafka without `authorizer.class.name`, so no operator believes that a rule holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from penstock.broker.dispatch import CloseConnection
from penstock.errors import ErrorCode, KafkaError

UNKNOWN = 0


class AclOperation(IntEnum):
    """What is done to the resource; the numbers are Kafka's."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


Op = AclOperation
# What can be done to a resource at all: without an authorizer anybody may do all of it.
TOPIC_OPERATIONS = (
    Op.READ, Op.WRITE, Op.CREATE, Op.DELETE, Op.ALTER, Op.DESCRIBE, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS,
)  # fmt: skip
CLUSTER_OPERATIONS = (
    Op.CREATE, Op.ALTER, Op.DESCRIBE, Op.CLUSTER_ACTION, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS, Op.IDEMPOTENT_WRITE,
)  # fmt: skip
GROUP_OPERATIONS = (Op.READ, Op.DELETE, Op.DESCRIBE, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS)


def operations_bits(operations: Iterable[AclOperation]) -> int:
    """A set of operations as answers carry it (KIP-430): bit n stands for operation n."""
    return sum(1 << operation for operation in operations)


def check_elements(*elements: int) -> None:
    """Raise CloseConnection if an element of a rule or filter is UNKNOWN: Kafka can't read such a request."""
    if UNKNOWN in elements:
        raise CloseConnection("an ACL or filter with an unknown element")


def no_authorizer() -> KafkaError:
    """What each request about ACLs is answered."""
    return KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
