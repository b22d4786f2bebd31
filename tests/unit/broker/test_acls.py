"""ACLs: which rules a filter means, which can't be, and that they outlive the broker."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.acls import (
    ANY,
    CLUSTER_NAME,
    Acl,
    AclFilter,
    AclOperation,
    Acls,
    PatternType,
    Permission,
    ResourceType,
    check,
    operations_bits,
)
from penstock.broker.store.embedded import EmbeddedStore
from penstock.errors import ErrorCode, KafkaError

EVERYTHING = AclFilter(ANY, None, PatternType.ANY, None, None, ANY, ANY)


def acl(name: str = "t", pattern: int = PatternType.LITERAL, **changes: Any) -> Acl:
    one = Acl(ResourceType.TOPIC, name, pattern, "User:a", "*", AclOperation.READ, Permission.ALLOW)
    return one._replace(**changes)


def wanted(**changes: Any) -> AclFilter:
    return EVERYTHING._replace(**changes)


LITERAL, PREFIXED, WILD = acl("flights"), acl("fli", PatternType.PREFIXED), acl("*")


@pytest.mark.parametrize(
    ("one", "meant"),
    [
        (EVERYTHING, {LITERAL, PREFIXED, WILD}),
        (wanted(resource_name="flights"), {LITERAL}),
        (wanted(resource_name="fli"), {PREFIXED}),
        (wanted(resource_name="*"), {WILD}),
        (wanted(resource_name="flights", pattern_type=PatternType.MATCH), {LITERAL, PREFIXED, WILD}),
        (wanted(resource_name="fli", pattern_type=PatternType.MATCH), {PREFIXED, WILD}),
        (wanted(resource_name="other", pattern_type=PatternType.MATCH), {WILD}),
        (wanted(resource_name="flights", pattern_type=PatternType.PREFIXED), set()),
        (wanted(pattern_type=PatternType.PREFIXED), {PREFIXED}),
        (wanted(pattern_type=PatternType.LITERAL), {LITERAL, WILD}),
        (wanted(resource_type=ResourceType.GROUP), set()),
        (wanted(principal="User:a", host="*", operation=AclOperation.READ), {LITERAL, PREFIXED, WILD}),
        (wanted(principal="User:b"), set()),
        (wanted(host="10.0.0.1"), set()),
        (wanted(operation=AclOperation.ALL), set()),
        (wanted(permission=Permission.DENY), set()),
    ],
)
def test_which_rules_a_filter_means(one: AclFilter, meant: set[Acl]) -> None:
    assert {rule for rule in (LITERAL, PREFIXED, WILD) if one.matches(rule)} == meant


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (acl(""), "empty resource name"),
        (acl(resource_type=ANY), "Invalid resourceType ANY"),
        (acl(resource_type=99), "Invalid resourceType UNKNOWN"),
        (acl(resource_type=ResourceType.CLUSTER), CLUSTER_NAME),
        (acl(pattern=PatternType.MATCH), "Invalid patternType MATCH"),
        (acl(operation=ANY), "Invalid operation ANY"),
        (acl(permission=ANY), "Invalid permissionType ANY"),
        (acl(principal="alice"), "no colon"),
    ],
)
def test_rules_that_can_not_be(wrong: Acl, says: str) -> None:
    with pytest.raises(KafkaError, match=says) as caught:
        check(wrong)
    assert caught.value.code == ErrorCode.INVALID_REQUEST
    check(acl(CLUSTER_NAME, resource_type=ResourceType.CLUSTER))


def stored(path: Path, work: Callable[[Acls], Awaitable[object]]) -> list[Acl]:
    """Do something with the ACLs of a store; answers what another broker would load of it."""

    async def run() -> list[Acl]:
        store = await EmbeddedStore.open(path)
        acls = Acls(store)
        await acls.load()
        await work(acls)
        again = Acls(store)
        await again.load()
        assert sorted(again.find(EVERYTHING)) == sorted(acls.find(EVERYTHING))
        assert len(again) == len(acls)
        await store.close()
        return sorted(again.find(EVERYTHING))

    return asyncio.run(run())


def test_rules_outlive_the_broker(tmp_path: Path) -> None:
    path = tmp_path / "store"
    group = acl("a/b %2F", resource_type=ResourceType.GROUP, operation=AclOperation.TWO_PHASE_COMMIT)
    other = acl(principal="User:b", permission=Permission.DENY, host="10.1.2.3")
    rules = [LITERAL, PREFIXED, WILD, group, acl(), other]
    assert stored(path, lambda acls: acls.add([*rules, LITERAL])) == sorted(rules)
    assert stored(path, lambda acls: acls.add([other])) == sorted(rules)
    gone: list[list[Acl]] = []

    async def remove(acls: Acls) -> None:
        gone.extend(await acls.remove([wanted(principal="User:b"), wanted(resource_name="t"), wanted(host="x")]))

    assert stored(path, remove) == sorted([LITERAL, PREFIXED, WILD, group])
    assert [set(one) for one in gone] == [{other}, {acl(), other}, set()]
    assert stored(path, lambda acls: acls.remove([EVERYTHING])) == []


def test_operations_are_bits_by_their_numbers() -> None:
    assert operations_bits([AclOperation.READ, AclOperation.ALTER_CONFIGS]) == 0b1000_0000_1000
