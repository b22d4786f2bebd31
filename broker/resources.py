"""What has configs, and how they are read, checked and changed: topics, brokers, groups, loggers (KIP-133, KIP-412).

Each kind of resource is one class; DescribeConfigs, AlterConfigs and IncrementalAlterConfigs find it by its number
on the wire in `RESOURCES`. Loggers have levels and no configs, so only the incremental request changes them, and
their levels last until the broker stops.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from penstock import log
from penstock.broker.configs.brokerconfig import ConfigSource, Described
from penstock.broker.configs.confignodes import OVERTAKEN, TRIES, ConfigNode
from penstock.broker.configs.entities import Entity
from penstock.broker.configs.groupresource import check_group_configs, describe_group
from penstock.broker.configs.properties import SCHEMA
from penstock.broker.configs.topicconfig import ConfigType, check_topic_configs
from penstock.broker.context import Context
from penstock.broker.store.base import StoreError
from penstock.broker.topic import check_name
from penstock.broker.turns import Turns
from penstock.errors import ErrorCode, KafkaError

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
# The logger above all of ours, and what it is called on the wire.
ROOT_LOGGER, ROOT = "penstock", "root"
TRACE = 5
LOG_LEVELS = {
    "DEBUG": logging.DEBUG,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "INFO": logging.INFO,
    "TRACE": TRACE,
    "WARN": logging.WARNING,
}


A = TypeVar("A", bound="Asked")
R = TypeVar("R")

_log = log.get(__name__)


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, why)


class Resource(Protocol):
    """A kind of resource with configs that are kept. All of its methods raise KafkaError."""

    def names(self, context: Context) -> Iterable[str]:
        """Every resource of the kind that can be described."""
        ...

    def describe(self, context: Context, name: str) -> list[Described]:
        """The configs in force of one resource."""
        ...

    async def own(self, context: Context, name: str) -> ConfigNode:
        """The texts that were set for the resource itself, as the store has them; also checks that it may be altered. Raises
        StoreError, too."""
        ...

    def check(self, context: Context, name: str, texts: Mapping[str, str]) -> None:
        """Whether these may be all its own texts, by the code that will use them."""
        ...

    async def replace(self, context: Context, name: str, texts: Mapping[str, str], own: ConfigNode) -> None:
        """Make these, which are checked, all its own texts, where they were `own`; durable and in force when it returns.
        Raises StoreError, too, one of OVERTAKEN if others have altered them meanwhile."""
        ...


class TopicResource:
    """Topics; their configs hold for the next append."""

    def names(self, context: Context) -> Iterable[str]:
        """All topics."""
        return [topic.name for topic in context.topics.all()]

    def describe(self, context: Context, name: str) -> list[Described]:
        """All configs, wherever they come from."""
        check_name(name)
        topic = context.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' is unknown.")
        return context.config.describe_topic(topic.configs)

    async def own(self, context: Context, name: str) -> ConfigNode:
        """The topic's own."""
        if not name:
            raise _invalid("Default topic resources are not allowed.")
        check_name(name)
        return await context.topics.own_configs(name)

    def check(self, context: Context, name: str, texts: Mapping[str, str]) -> None:
        """By the table of topic configs and what logs take."""
        check_topic_configs(context.config, texts)

    async def replace(self, context: Context, name: str, texts: Mapping[str, str], own: ConfigNode) -> None:
        """Store them and give them to the logs."""
        await context.topics.alter_configs(name, texts, own)


class BrokerResource:
    """This broker by its id, and all brokers by the empty name."""

    def names(self, context: Context) -> Iterable[str]:
        """The brokers that live, each of which describes itself, and all brokers if something was altered for them."""
        return [*map(str, context.topics.brokers), *([""] if context.config.dynamic_default else [])]

    def describe(self, context: Context, name: str) -> list[Described]:
        """All properties of this broker; of all brokers only those that were altered."""
        if not name:
            return context.config.describe_default_broker()
        expected = f"{context.node_id} or empty string"
        check_broker_id(context, name, f"Unexpected broker id, expected {expected}, but received {name}", "Broker")
        return context.config.describe_broker()

    async def own(self, context: Context, name: str) -> ConfigNode:
        """Those that were altered at run time."""
        if name:
            check_broker_id(context, name, f"Unexpected broker id, expected {context.node_id}, but received {name}", "Node")
        return await context.broker_nodes.own(default=not name)

    def check(self, context: Context, name: str, texts: Mapping[str, str]) -> None:
        """By the table of properties; most can't be altered."""
        context.config.check(texts, default=not name)

    async def replace(self, context: Context, name: str, texts: Mapping[str, str], own: ConfigNode) -> None:
        """Store them and give them to every log, whose settings may come from them."""
        swapping = await context.broker_nodes.replace(texts, own, default=not name)
        unknown = [key for key in texts if key not in SCHEMA.properties]
        if unknown:
            _log.warning("kept without effect, no properties of this broker: %s", ", ".join(sorted(unknown)))
        await context.topics.logs.swapped(swapping)


class GroupResource:
    """Groups of the consumer protocol; one need not exist to have configs."""

    def names(self, context: Context) -> Iterable[str]:
        """Those that have configs of their own."""
        return [entity.group for entity, _ in context.entities if isinstance(entity.group, str)]

    def describe(self, context: Context, name: str) -> list[Described]:
        """All configs of a group, which come from the broker's properties unless it has its own."""
        if not name:
            raise _invalid("Group name must not be empty")
        return describe_group(context.config, context.entities.get(Entity(group=name)))

    async def own(self, context: Context, name: str) -> ConfigNode:
        """The group's own."""
        if not name:
            raise _invalid("Default group resources are not allowed.")
        return await context.entities.own(Entity(group=name))

    def check(self, context: Context, name: str, texts: Mapping[str, str]) -> None:
        """By the table of group configs and the broker's bounds."""
        check_group_configs(context.config, texts)

    async def replace(self, context: Context, name: str, texts: Mapping[str, str], own: ConfigNode) -> None:
        """Store them; each member gets them with a heartbeat."""
        await context.entities.replace(Entity(group=name), texts, own)


class ClientMetricsResource:
    """Subscriptions to clients' metrics (KIP-714), of which there are none: no metrics are collected."""

    def names(self, context: Context) -> Iterable[str]:
        """None."""
        return []

    def describe(self, context: Context, name: str) -> list[Described]:
        """Nothing."""
        if not name:
            raise _invalid("Client metrics subscription name must not be empty")
        return []

    async def own(self, context: Context, name: str) -> ConfigNode:
        """Refuses."""
        raise _invalid("This broker collects no metrics of clients.")

    def check(self, context: Context, name: str, texts: Mapping[str, str]) -> None:
        """Not asked, as `own` refuses."""

    async def replace(self, context: Context, name: str, texts: Mapping[str, str], own: ConfigNode) -> None:
        """Not asked, as `own` refuses."""


class Loggers:
    """This broker's loggers by name; `root` is the one above all of them."""

    def names(self, context: Context) -> Iterable[str]:
        """The brokers that live, each of which describes its own."""
        return list(map(str, context.topics.brokers))

    def describe(self, context: Context, name: str) -> list[Described]:
        """The level in force of every logger."""
        if not name:
            raise _invalid("Broker id must not be empty")
        check_broker_id(context, name, f"Unexpected broker id, expected {context.node_id} but received {name}", "Broker")
        return [
            Described(
                logger, _level_name(logger), ConfigSource.BROKER_LOGGER, ConfigType.UNKNOWN, "The level of a logger.",
                read_only=False, synonyms=(),
            )
            for logger in _loggers()
        ]  # fmt: skip

    def check(self, context: Context, name: str, levels: Mapping[str, str | None]) -> None:
        """Whether these loggers can be given these levels; None = that of the logger above."""
        check_broker_id(context, name, f"Unexpected node id. Expected {context.node_id}, but received {name}", "Node")
        known = _loggers()
        for logger, level in levels.items():
            if logger == ROOT and level is None:
                raise _invalid("Removing the log level of the root logger is not allowed")
            if logger not in known:
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"Logger {logger} does not exist!")
            if level is not None and level not in LOG_LEVELS:
                why = f"Cannot set the log level of {logger} to {level} as it is not a supported log level. "
                why += f"Valid log levels are {', '.join(LOG_LEVELS)}"
                raise KafkaError(ErrorCode.INVALID_CONFIG, why)

    def set_levels(self, levels: Mapping[str, str | None]) -> None:
        """Give loggers levels that are checked."""
        for logger, level in levels.items():
            _logger(logger).setLevel(logging.NOTSET if level is None else LOG_LEVELS[level])


def _loggers() -> list[str]:
    found = logging.root.manager.loggerDict
    names = {name for name in tuple(found) if name.startswith(f"{ROOT_LOGGER}.")}
    return [ROOT, *sorted(names)]


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(ROOT_LOGGER if name == ROOT else name)


def _level_name(logger: str) -> str:
    level = _logger(logger).getEffectiveLevel()
    # The nearest level that has a name, for one in between.
    return min(LOG_LEVELS, key=lambda name: abs(LOG_LEVELS[name] - level))


def check_broker_id(context: Context, name: str, unexpected: str, what: str) -> None:
    """Raise KafkaError INVALID_REQUEST unless the resource's name is this broker's id."""
    if not name.isascii() or not name.removeprefix("-").isdigit() or len(name) > len("-2147483648"):
        raise _invalid(f"{what} id must be an integer, but it is: {name}")
    if int(name) != context.node_id:
        raise _invalid(unexpected)


class Asked(Protocol):
    """A resource of AlterConfigs or IncrementalAlterConfigs."""

    resource_type: int
    resource_name: str


async def alter_each(
    asked: Sequence[A], answer: Callable[..., R], alter: Callable[[A], Awaitable[None]], turns: Turns
) -> list[R]:
    """Alter one resource after the other; one that fails does not touch the others. Of one that is asked for twice both
    fail."""
    times = Counter((one.resource_type, one.resource_name) for one in asked)
    answers = []
    async for one in turns.each(asked):
        code, why = 0, None
        try:
            if times[one.resource_type, one.resource_name] > 1:
                raise _invalid("Each resource must appear at most once.")
            await alter(one)
        except KafkaError as error:
            code, why = error.code, error.what
        except StoreError as error:
            _log.error("the configs of %s can't be stored: %s", one.resource_name or "all", error)
            code, why = ErrorCode.KAFKA_STORAGE_ERROR, str(error)
        answers.append(
            answer(error_code=code, error_message=why, resource_type=one.resource_type, resource_name=one.resource_name)
        )
    return answers


async def alter_stored(context: Context, alter: Callable[[], Awaitable[None]]) -> None:
    """Alter a resource's configs: read what it has, and replace that. In a cluster others may alter them in between: then it is
    done again, on what they have left. Raises KafkaError, StoreError."""
    async with context.config_changes:
        for _ in range(TRIES - 1):
            try:
                return await alter()
            except OVERTAKEN as error:
                _log.debug("others have altered %s meanwhile", error.path)
        await alter()


LOGGERS = Loggers()
RESOURCES: dict[int, Resource] = {
    TOPIC: TopicResource(),
    BROKER: BrokerResource(),
    GROUP: GroupResource(),
    CLIENT_METRICS: ClientMetricsResource(),
}
