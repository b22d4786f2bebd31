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
from penstock.dedupe.position import Position
from penstock.pipeline import job
from penstock.pipeline.clients.admin import Admin
from penstock.pipeline.clients.client import TopicPartition
from penstock.pipeline.clients.metadata import TopicInfo
from penstock.pipeline.options import PIPELINE_FILE, SET, Invocation, Timeouts, timeout_option, with_options
from penstock.pipeline.stages.failures import OperatorNeeded
from penstock.pyx.ids.store import RocksError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Stage(Invocation):
    """The stage that a pipeline's file describes, the topic that was `named`, and how answers are shown."""

    config: Config
    named: str | None

    @property
    def topic(self) -> str:
        """The topic that is meant. Raises UsageError for one that the stage doesn't read, or none of several."""
        topics = job.deduped(self.config)
        if self.named is None and len(topics) > 1:
            raise click.UsageError(f"dedupe reads {', '.join(topics)}: say with --topic which one is meant")
        if self.named is not None and self.named not in topics:
            raise click.UsageError(f"dedupe reads {', '.join(topics)}, not `{self.named}`")
        return self.named or next(iter(topics))

    def each(self) -> list[Stage]:
        """The stage with each of its topics, or with the one that was named."""
        topics = job.deduped(self.config) if self.named is None else [self.topic]
        return [replace(self, named=topic) for topic in topics]

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

    def owner(self, partition: int, position: Position) -> str:
        """What the ids in that folder must belong to."""
        return owner(self.output(partition), position.output_id, IdSource(self.config["penstock.dedupe.id"]))


def stage_command(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options that all of them share; they come to the command as `stage: Stage`."""

    def with_stage(
        path: Path, overrides: tuple[str, ...], as_json: bool, timeouts: Timeouts, topic: str | None, **rest: Any
    ) -> T:
        config = job.load(path, overrides, "dedupe")
        try:
            stage = Stage(config["bootstrap.servers"], {}, as_json, timeouts, config=config, named=topic)
            return command(stage=stage, **rest)
        except (FolderError, RocksError, OperatorNeeded) as error:
            raise click.ClickException(str(error)) from None

    return with_options(with_stage, command, (
        click.option("--json", "as_json", is_flag=True, help="The answer as JSON."),
        timeout_option(),
        SET,
        PIPELINE_FILE,
        click.option("--topic", help="The input topic that is meant; of several, status shows all."),
    ))  # fmt: skip


async def both_topics(admin: Admin, stage: Stage) -> tuple[TopicInfo, TopicInfo]:
    """Input and output topic as the cluster has them. Raises ClickException."""
    names = [stage.input(0)[0], stage.output(0)[0]]
    cluster = await admin.metadata(names, refresh=True)
    for name in names:
        if name not in cluster.topics:
            raise click.ClickException(f"topic `{name}` is not there")
    return cluster.topics[names[0]], cluster.topics[names[1]]


def counts_differ(stage: Stage, read: TopicInfo, written: TopicInfo) -> str:
    """How many partitions input and output have, in words, where that isn't the same."""
    before, behind = len(read.partitions), len(written.partitions)
    return "" if before == behind else f"`{stage.topic}` has {before} partitions and `{stage.output(0)[0]}` {behind}"
