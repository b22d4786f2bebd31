"""The stage of a pipeline's file, as operators' commands ask for it: its topics, positions and folders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import click

from penstock.config import Config
from penstock.dedupe.folder import FolderError, StoreFolder, owner
from penstock.dedupe.ids import IdSource
from penstock.dedupe.position import DedupePosition
from penstock.failpoints import arm_from_environment
from penstock.pipeline import job
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.metadata import TopicInfo
from penstock.pipeline.options import AS_JSON, PIPELINE_FILE, SET, Invocation, Timeouts, timeout_option, with_options
from penstock.pipeline.stages.address import one_partition
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pyx.ids.store import RocksError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class StageView(Invocation):
    """The stage that a pipeline's file describes, and how answers are shown."""

    config: Config
    topic: str = ""
    """The topic that is meant; empty: all."""

    def with_topic(self, topic: str) -> StageView:
        """The stage with one of its topics. Raises UsageError for one that it doesn't read."""
        topics = job.deduped(self.config)
        if topic not in topics:
            raise click.UsageError(f"dedupe reads {', '.join(topics)}, not `{topic}`")
        return replace(self, topic=topic)

    def each(self) -> list[StageView]:
        """The stage with each of its topics."""
        return [self.with_topic(topic) for topic in job.deduped(self.config)]

    @property
    def group(self) -> str:
        """The group of its positions."""
        return job.dedupe_group(self.config)

    def input(self, partition: int) -> TopicPartition:
        """An input partition."""
        return self.topic, partition

    def output(self, partition: int) -> TopicPartition:
        """The output partition beside it."""
        return job.deduped(self.config)[self.topic], partition

    def folder(self, partition: int) -> StoreFolder:
        """The folder of its store, on this machine."""
        return StoreFolder.of(Path(self.config["penstock.dedupe.data"]), self.input(partition))

    def owner(self, partition: int, position: DedupePosition) -> str:
        """What the ids in that folder must belong to."""
        source = IdSource(self.config["penstock.dedupe.id"])
        return owner(self.output(partition), position.output_id, source, position.losses)


def _refuse(context: click.Context, _: click.Parameter, given: str | None) -> None:
    if given is not None:
        form = "TOPIC, for example flights" if context.info_name == "status" else "TOPIC:P, for example flights:3"
        raise click.UsageError(f"instead of -p and --topic give {form}")


OF_EARLIER_DAYS = click.option("-p", "--partition", "--topic", is_eager=True, expose_value=False, hidden=True, callback=_refuse)


def view_command(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options that all of them share; they come to the command as `stage: StageView`."""

    def with_stage(path: Path, overrides: tuple[str, ...], as_json: bool, timeouts: Timeouts, **rest: Any) -> T:
        config = job.load(path, overrides, "dedupe")
        arm_from_environment()
        try:
            return command(stage=StageView(config["bootstrap.servers"], {}, as_json, timeouts, config=config), **rest)
        except (FolderError, RocksError, OperatorNeeded) as error:
            raise click.ClickException(str(error)) from None

    return with_options(with_stage, command, (
        AS_JSON,
        timeout_option(),
        SET,
        PIPELINE_FILE,
        OF_EARLIER_DAYS,
    ))  # fmt: skip


ADDRESS = click.argument("address", metavar="TOPIC:P", type=one_partition)


def partition_command(command: Callable[..., T]) -> Callable[..., T]:
    """Add them and TOPIC:P, which comes to the command as `stage`, with that topic, and `partition: int`."""

    def with_partition(stage: StageView, address: TopicPartition, **rest: Any) -> T:
        return command(stage=stage.with_topic(address[0]), partition=address[1], **rest)

    return view_command(with_options(with_partition, command, [ADDRESS]))


async def both_topics(admin: Admin, stage: StageView) -> tuple[TopicInfo, TopicInfo]:
    """Input and output topic as the cluster has them. Raises ClickException."""
    names = [stage.input(0)[0], stage.output(0)[0]]
    cluster = await admin.metadata(names, refresh=True)
    for name in names:
        if name not in cluster.topics:
            raise click.ClickException(f"topic `{name}` is not there")
    return cluster.topics[names[0]], cluster.topics[names[1]]


def counts_differ(stage: StageView, read: TopicInfo, written: TopicInfo) -> str:
    """How many partitions input and output have, in words, where that isn't the same."""
    before, behind = len(read.partitions), len(written.partitions)
    return "" if before == behind else f"`{stage.topic}` has {before} partitions and `{stage.output(0)[0]}` {behind}"
