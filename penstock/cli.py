"""The `penstock` command: one sub-command a part, loaded only when it is asked for."""

from __future__ import annotations

import importlib
import sys

import click

from penstock import __version__
from penstock.config import ConfigError

# Sub-command -> module whose `command` it is. Imported lazily: `penstock broker` must not pay for PySpark.
COMMANDS = {
    "broker": "penstock.broker.command",
    "mirror": "penstock.mirror.command",
    "dedupe": "penstock.dedupe.command",
    "etl": "penstock.pipeline.etl.command",
    "audit": "penstock.pipeline.audit.command",
    "demo": "penstock.pipeline.demo.command",
}


class Lazy(click.Group):
    """A group whose commands are imported at their first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        module = COMMANDS.get(name)
        if module is None:
            return None
        command = importlib.import_module(module).command
        assert isinstance(command, click.Command)
        return command


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="penstock")
def root() -> None:
    """Events collected everywhere, mirrored once, deduplicated once, one complete table a night."""


def main() -> None:
    """Run the command line; a wrong configuration is one sentence and exit code 2."""
    try:
        root.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except ConfigError as error:
        click.echo(f"penstock: {error}", err=True)
        sys.exit(2)
