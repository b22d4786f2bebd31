"""`penstock mirror`."""

from __future__ import annotations

from pathlib import Path

import click

from penstock import log
from penstock.errors import KafkaError
from penstock.failpoints import arm_from_environment
from penstock.mirror.service import Mirror
from penstock.pipeline import job
from penstock.pipeline.service import run_until_stopped
from penstock.pipeline.transaction import Fenced


@click.command("mirror")
@click.option("--config", "path", required=True, type=click.Path(path_type=Path), help="The pipeline's file.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a property.")
@click.option(
    "--new-source",
    "new_sources",
    multiple=True,
    metavar="NAME",
    help="This source is new (or created anew) though the target has data: copy it from its start.",
)
def command(path: Path, overrides: tuple[str, ...], new_sources: tuple[str, ...]) -> None:
    """Copy topics of all source clusters into the aggregate cluster, exactly once.

    Example: penstock mirror --config pipeline.properties
    """  # fmt: skip
    log.setup()
    config = job.load(path, overrides)
    known = job.sources(config)
    for name in new_sources:
        if name not in known:
            raise click.ClickException(f"no source `{name}` in `{path}`: there are {', '.join(known)}")
    arm_from_environment()
    mirror = Mirror(config, frozenset(new_sources))
    try:
        run_until_stopped(f"mirror {mirror.name}", mirror.start, mirror.run, mirror.close)
    except Fenced as error:
        raise click.ClickException(
            f"a newer mirror named `{mirror.name}` took over ({error}); only one may run: stop one, or give "
            "it another `penstock.mirror.name`"
        ) from None
    except KafkaError as error:
        raise click.ClickException(str(error)) from None
    stopped = mirror.stopped()
    if stopped:
        raise click.ClickException("; ".join(f"{name} stopped: {why}" for name, why in stopped.items()))
