"""`penstock dedupe`: the stage itself, and what an operator asks or decides."""

from __future__ import annotations

import os

from penstock.config import Config
from penstock.dedupe import commands
from penstock.dedupe.folder import FolderError
from penstock.dedupe.service import Dedupe
from penstock.durable import PRIVATE_UMASK
from penstock.errors import KafkaError
from penstock.pipeline.stages.stage import stage_command


def _make(config: Config) -> Dedupe:
    os.umask(PRIVATE_UMASK)
    return Dedupe(config)


@stage_command("dedupe", _make, (KafkaError, FolderError))
def command() -> None:
    """Drop messages whose id was seen before, exactly once. Without a sub-command: run the stage.

    Exit codes: 0 stopped as asked, 1 failed or with partitions that stopped, 2 wrong configuration, 4 another process of the
    same stage took over.

    Example: penstock dedupe --config pipeline.properties
    """


for _side_door in commands.ALL:
    command.add_command(_side_door)
