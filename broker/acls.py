"""ACLs (KIP-11, KIP-290): which principal may do what to which resource. Stored and described, not enforced.

Nodes as Kafka's ZooKeeper had them: `/kafka-acl/<Type>/<name>` for a literal name,
`/kafka-acl-extended/prefixed/<Type>/<name>` for all names that begin so, each
`{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Read","host":"*"}]}`.
Names are percent-encoded, since a group may be called `a/b`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from penstock.broker.store.base import Create, Delete, NoNodeError, Operation, Set, Store, paths, unquoted
from penstock.broker.store.values import Fields
from penstock.broker.turns import Turns
from penstock.errors import ErrorCode, KafkaError

CLUSTER_NAME = "kafka-cluster"
WILDCARD = "*"
UNKNOWN, ANY = 0, 1


class ResourceType(IntEnum):
    """What an ACL is about; names as in the store, spelt in capitals."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How an ACL's (or a filter's) name is meant; ANY and MATCH are for filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """What is done to the resource."""

    ALL = 2
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
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Whether it is forbidden or allowed."""

    DENY = 2
    ALLOW = 3


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


def has_unknown(rule: Acl | AclFilter) -> bool:
    """Whether an element is UNKNOWN: Kafka closes the connection that sends such a rule or filter."""
    return UNKNOWN in (rule.resource_type, rule.pattern_type, rule.operation, rule.permission)


class Acl(NamedTuple):
    """One rule, in the numbers of the wire."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class AclFilter(NamedTuple):
    """Which rules are meant; None and ANY match everything."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches(self, acl: Acl) -> bool:
        """Whether a rule is meant."""
        return (
            self.resource_type in (ANY, acl.resource_type)
            and self._names(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (ANY, acl.operation)
            and self.permission in (ANY, acl.permission)
        )

    def _names(self, acl: Acl) -> bool:
        """Whether the name fits: as it is written, or (MATCH) as the rule would apply to it."""
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.resource_name is None:
            return True
        if self.pattern_type != PatternType.MATCH:
            return self.resource_name == acl.resource_name
        if acl.pattern_type == PatternType.PREFIXED:
            return self.resource_name.startswith(acl.resource_name)
        return acl.resource_name in (self.resource_name, WILDCARD)


def _camel(member: IntEnum) -> str:
    """A member as the store spells it: `TransactionalId`."""
    return member.name.title().replace("_", "")


_RESOURCE_TYPES = {_camel(one): one.value for one in ResourceType}
_OPERATIONS = {_camel(one): one.value for one in AclOperation}
_PERMISSIONS = {_camel(one): one.value for one in Permission}


def check(acl: Acl) -> None:
    """Raise KafkaError INVALID_REQUEST for a rule that can't be."""
    why = ""
    if acl.resource_type not in _RESOURCE_TYPES.values():
        why = f"Invalid resourceType {_name(acl.resource_type)}"
    elif acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        why = f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    elif not acl.resource_name:
        why = "Invalid empty resource name"
    elif acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        why = f"Invalid patternType {_name(acl.pattern_type)}"
    elif acl.operation not in _OPERATIONS.values():
        why = f"Invalid operation {_name(acl.operation)}"
    elif acl.permission not in _PERMISSIONS.values():
        why = f"Invalid permissionType {_name(acl.permission)}"
    elif ":" not in acl.principal:
        why = (
            f"Could not parse principal from `{acl.principal}` "
            "(no colon is present separating the principal type from the principal name)"
        )
    if why:
        raise KafkaError(ErrorCode.INVALID_REQUEST, why)


def _name(number: int) -> str:
    return {ANY: "ANY", PatternType.MATCH: "MATCH"}.get(number, "UNKNOWN")


class Acls:
    """All ACLs, in memory and in the store. Changes are durable when they return, and made one after the other."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changes = asyncio.Lock()
        self._by_resource: dict[tuple[int, str, int], list[Acl]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_resource.values()))

    async def load(self) -> None:
        """Read all of them; called once at start."""
        for root, pattern in ((paths.ACLS, PatternType.LITERAL), (paths.PREFIXED_ACLS, PatternType.PREFIXED)):
            for kind in ResourceType:
                for name in await self._children(f"{root}/{_word(kind)}"):
                    path = f"{root}/{_word(kind)}/{name}"
                    node = Fields.read(path, (await self._store.get(path))[0])
                    key = (kind.value, unquoted(name), pattern.value)
                    self._by_resource[key] = [_of_json(key, Fields(path, one)) for one in node.several("acls")]

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._store.children(path)
        except NoNodeError:
            return []

    def find(self, wanted: AclFilter) -> list[Acl]:
        """The rules that a filter means, those of one resource together."""
        return [acl for acls in self._by_resource.values() for acl in acls if wanted.matches(acl)]

    async def add(self, acls: Iterable[Acl]) -> None:
        """Add rules that are checked; one that is there already changes nothing."""
        async with self._changes:
            new = [acl for acl in dict.fromkeys(acls) if acl not in self._by_resource.get(acl[:3], ())]
            after = {acl[:3]: list(self._by_resource.get(acl[:3], ())) for acl in new}
            for acl in new:
                after[acl[:3]].append(acl)
            await self._store_resources(after)

    async def remove(self, filters: Iterable[AclFilter]) -> list[list[Acl]]:
        """Take away what the filters mean; answers it for each filter."""
        async with self._changes:
            meant: list[list[Acl]] = []
            turns = Turns()
            for wanted in filters:
                await turns.take()
                meant.append(self.find(wanted))
            gone = {acl for acls in meant for acl in acls}
            after = {
                key: [acl for acl in self._by_resource[key] if acl not in gone] for key in {acl[:3] for acl in gone}
            }
            await self._store_resources(after)
            return meant

    async def _store_resources(self, after: dict[tuple[int, str, int], list[Acl]]) -> None:
        operations: list[Operation] = []
        for key, acls in after.items():
            kind, name, pattern = key
            path = paths.acls(_word(kind), name, prefixed=pattern == PatternType.PREFIXED)
            data = json.dumps({"version": 1, "acls": [_to_json(acl) for acl in acls]}).encode()
            if not acls:
                operations.append(Delete(path))
            elif key in self._by_resource:
                operations.append(Set(path, data))
            else:
                operations.append(Create(path, data, parents=True))
        if operations:
            await self._store.multi(operations)
        self._by_resource.update(after)
        for key in [key for key, acls in after.items() if not acls]:
            del self._by_resource[key]


def _word(number: int) -> str:
    return _camel(ResourceType(number))


def _to_json(acl: Acl) -> dict[str, str]:
    return {
        "principal": acl.principal,
        "permissionType": _camel(Permission(acl.permission)),
        "operation": _camel(AclOperation(acl.operation)),
        "host": acl.host,
    }


def _of_json(key: tuple[int, str, int], entry: Fields) -> Acl:
    """A rule, checked as those of clients are. Raises BadValueError."""
    operation = _OPERATIONS.get(entry.text("operation"), UNKNOWN)
    permission = _PERMISSIONS.get(entry.text("permissionType"), UNKNOWN)
    acl = Acl(*key, entry.text("principal"), entry.text("host"), operation, permission)
    try:
        check(acl)
    except KafkaError as error:
        raise entry.wrong(error.what) from None
    return acl
