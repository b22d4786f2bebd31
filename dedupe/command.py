"""`penstock dedupe`."""

from __future__ import annotations

from pathlib import Path

import click

from penstock import log
from penstock.dedupe.folder import FolderError
from penstock.dedupe.service import Dedupe
from penstock.errors import KafkaError
from penstock.failpoints import arm_from_environment
from penstock.pipeline import job
from penstock.pipeline.service import run_until_stopped
from penstock.pipeline.transaction import Fenced


@click.command("dedupe")
@click.option("--config", "path", required=True, type=click.Path(path_type=Path), help="The pipeline's file.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a property.")
def command(path: Path, overrides: tuple[str, ...]) -> None:
    """Drop messages whose id was seen before, exactly once.

    Example: penstock dedupe --config pipeline.properties
    """
    log.setup()
    arm_from_environment()
    stage = Dedupe(job.load(path, overrides))
    try:
        run_until_stopped(f"dedupe {stage.name}", stage.start, stage.run, stage.close)
    except Fenced as error:
        raise click.ClickException(
            f"a newer dedupe worker of stage `{stage.name}` took over ({error}); only one may run for a partition"
        ) from None
    except (KafkaError, FolderError) as error:
        raise click.ClickException(str(error)) from None
    stopped = stage.stopped()
    if stopped:
        raise click.ClickException("; ".join(f"{name} stopped: {why}" for name, why in stopped.items()))
