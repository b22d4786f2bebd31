"""The `penstock` command: one sub-command a part, loaded only when it is asked for."""

from __future__ import annotations

import importlib
import os
import sys

import click

from penstock import __version__
from penstock.config import ConfigError
from penstock.errors import KafkaError
from penstock.failpoints import SpecError
from penstock.log import LevelError

# Sub-command -> module whose `command` it is. Imported lazily: `penstock broker` must not pay for PySpark.
COMMANDS = {
    "broker": "penstock.broker.command",
    "mirror": "penstock.mirror.command",
    "dedupe": "penstock.dedupe.command",
    "etl": "penstock.pipeline.etl.command",
    "audit": "penstock.pipeline.audit.command",
    "topics": "penstock.pipeline.commands.topics",
    "groups": "penstock.pipeline.commands.groups",
    "configs": "penstock.pipeline.commands.configs",
    "produce": "penstock.pipeline.commands.produce",
    "consume": "penstock.pipeline.commands.consume",
    "log": "penstock.broker.tools.logcommand",
    "demo": "penstock.pipeline.demo.command",
    "bench": "penstock.bench.command",
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
    """Run the command line.

    What a user can cause - a wrong configuration or file, a cluster that refuses or can't be reached - is one
    sentence: exit code 2 for what was asked wrongly, 1 for what went wrong. A traceback is a bug of ours.
    """
    try:
        root.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except (ConfigError, SpecError, LevelError) as error:
        _say(error)
        sys.exit(2)
    except BrokenPipeError:
        # Whoever read our output has gone (`penstock audit | head`): Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (KafkaError, OSError) as error:
        _say(error)
        sys.exit(1)


def _say(error: Exception) -> None:
    click.echo(f"penstock: {error}", err=True)
