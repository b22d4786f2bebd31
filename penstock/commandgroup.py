"""Groups of sub-commands, whose help has a whole sentence of each."""

from __future__ import annotations

import click

WHOLE = 1_000  # characters; click cuts a sentence off after what is left of one line


class Group(click.Group):
    """A group whose list of commands wraps lines."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list into the help."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl([(name, made.get_short_help_str(WHOLE)) for name, made in commands.items() if made is not None])
