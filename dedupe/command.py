"""`penstock dedupe`: the stage itself, and beside it what an operator asks or decides."""

from __future__ import annotations

import os
from pathlib import Path

import click

from penstock import log
from penstock.dedupe import commands
from penstock.dedupe.folder import FolderError
from penstock.dedupe.service import Dedupe
from penstock.durable import PRIVATE_UMASK
from penstock.errors import KafkaError
from penstock.failpoints import arm_from_environment
from penstock.pipeline import job
from penstock.pipeline.options import SET
from penstock.pipeline.stages import stage


@click.group("dedupe", invoke_without_command=True)
@click.option("--config", "path", type=click.Path(path_type=Path), help="The pipeline's file.")
@SET
@click.pass_context
def command(context: click.Context, path: Path | None, overrides: tuple[str, ...]) -> None:
    """Drop messages whose id was seen before, exactly once. Without a sub-command: run the stage.

    Exit codes: 0 stopped as asked, 1 failed or with partitions that stopped, 2 wrong configuration, 4 another process of the
    same stage took over.

    Example: penstock dedupe --config pipeline.properties
    """  # fmt: skip
    file = stage.own_file(context, path, overrides)
    if file is None:
        return
    log.setup()
    arm_from_environment()
    os.umask(PRIVATE_UMASK)
    stage.run(Dedupe(job.load(file, overrides, "dedupe")), (KafkaError, FolderError))


for _side_door in commands.ALL:
    command.add_command(_side_door)
