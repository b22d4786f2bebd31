"""`penstock log`: read log folders, also of a running broker, and repair those of a stopped one."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from penstock.broker.logs.folder import META
from penstock.broker.logs.logdirs import is_remnant
from penstock.broker.tools.logfiles import Row, read_file
from penstock.broker.tools.logrepair import LOST, Repaired, RepairError, accept, repair
from penstock.broker.tools.logverify import verify
from penstock.commandgroup import Group
from penstock.errors import os_error_text

# What lies in a partition's folder is named by an offset; a folder may have others' files, such as a program's `spark.log`.
FILES = re.compile(r"[0-9]{20}\.(log|index|timeindex|txnindex|checks|snapshot|sequences)")


@click.group("log", cls=Group)
def command() -> None:
    """Read the files of logs (segments, indexes, snapshots, checkpoints), and repair damaged ones.

    Example: penstock log dump data/flights-0 --records
    """


@command.command("dump")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--records", is_flag=True, help="Open the batches; internal topics' records are decoded.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a row.")
def dump(paths: Sequence[Path], records: bool, as_json: bool) -> None:
    """Print what files hold, or all files of partition folders. Exit code 1 when something is damaged.

    Example: penstock log dump data/flights-0/00000000000000000000.log
    """
    damaged = False
    for path in _files(paths):
        if not as_json:
            click.echo(f"{path}:")
        with _in_words():
            for row in _unless_gone(path, read_file(path, with_records=records)):
                damaged = damaged or "damage" in row
                click.echo(json.dumps({"file": str(path), **row}, default=_plain) if as_json else _line(row))
    if damaged:
        raise SystemExit(1)


@command.command("verify")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
def verify_files(paths: Sequence[Path], as_json: bool) -> None:
    """Check every batch and index of log folders, or of a whole data folder, where logs begin and end, and that no segment is
    missing; say what is damaged or missing.

    A broker may run meanwhile: what it is copying or removing is left out, and files that it removes are counted. After a kill
    nothing is damaged that the next start builds again.

    Example: penstock log verify data
    """
    files = list(_files(paths))
    roots = [path for path in paths if path.is_dir()]
    with Progress(console=Console(stderr=True), transient=True) as progress, _in_words():
        task = progress.add_task("checking", total=len(files))
        found = verify(files, lambda folder: any(folder.is_relative_to(root) for root in roots), lambda: progress.advance(task))
    if as_json:
        click.echo(json.dumps(asdict(found)))
    else:
        for row in found.damage:
            click.echo(f"{row['file']} at {row['position']}: {row['damage']}")
        gone = f"; {found.gone} went away before they were read" if found.gone else ""
        click.echo(
            f"{found.files} files, {found.batches:,} batches, {found.records:,} records, {found.bytes:,} bytes{gone}; "
            f"damaged: {len(found.damage)}"
        )
    if found.damage:
        raise SystemExit(1)


@command.command("repair")
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...", type=click.Path(path_type=Path, exists=True))
@click.option("--json", "as_json", is_flag=True, help="A JSON object for each damaged range.")
def repair_folders(folders: Sequence[Path], as_json: bool) -> None:
    """Mend partitions' folders that the broker doesn't open, as records in them are damaged or missing.

    Restore the files from a copy if there is one. Else this moves the damaged bytes into files beside their segments and
    says which offsets are lost; the log then goes on without them, above every offset that it gave. The broker must be
    stopped.

    Example: penstock log repair data/flights-0
    """
    for folder in folders:
        try:
            found = repair(folder)
        except RepairError as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            raise click.ClickException(os_error_text(error)) from None
        for one in found:
            click.echo(json.dumps(one._asdict(), default=str) if as_json else _repaired(one))
        if not found and not as_json:
            click.echo(f"{folder}: nothing is damaged")


@command.command("accept")
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...", type=click.Path(path_type=Path, exists=True))
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option("--reason", default="accepted by an operator", show_default=True, help=f"Written to `{LOST}` in the folder.")
def accept_folders(folders: Sequence[Path], yes: bool, reason: str) -> None:
    """Let logs go on as they are by now, though records are missing at their beginning, their end or between segments.

    Restore the files from a copy if there is one. Else this shows which offsets are lost, and asks. The log then opens, and
    its next record gets an offset above every one that it gave before. The broker must be stopped.

    Example: penstock log accept data/flights-0
    """
    for folder in folders:
        try:
            lost = accept(folder, dry=True)
            for one in lost:
                click.echo(_repaired(one))
            if not lost:
                click.echo(f"{folder}: nothing is missing at its beginning, its end or between its segments")
                continue
            if not yes:
                click.confirm(f"Let `{folder}` go on without these records?", abort=True)
            accept(folder, reason)
            click.echo(f"{folder}: accepted")
        except RepairError as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            raise click.ClickException(os_error_text(error)) from None


def _repaired(one: Repaired) -> str:
    lost = f"offsets {one.first_offset} to {one.next_offset - 1} are lost"
    if one.next_offset < 0:
        lost = f"the log ends at offset {one.first_offset}"
    elif one.next_offset <= one.first_offset:
        lost = "no offset is lost"
    bytes_ = f"; {one.size_bytes} bytes are now in {one.set_aside}" if one.set_aside is not None else ""
    return f"{one.file} at {one.position}: {lost}{bytes_}"


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """The files meant: themselves, those of a partition's folder, or those of all partitions of a data folder.

    Raises ClickException for a folder that can't be read, or has nothing of a broker's: it would pass for a sound one.
    """
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = [Path(folder, name) for folder, names in _walk(path) for name in names]
        files = sorted(file for file in found if FILES.fullmatch(file.name))
        if not files and not (path / META).exists():
            raise click.ClickException(f"`{path}` has no file of a log: name a partition's folder, or a broker's data folder")
        yield from files


def _walk(path: Path) -> Iterator[tuple[str, list[str]]]:
    """A folder and those in it, without what the broker's next start removes there, and the names of their files."""
    for folder, below, names in os.walk(path, onerror=_refuse_unless_gone):
        below[:] = [name for name in below if not is_remnant(name)]
        yield folder, names


def _refuse_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        _refuse(error)


def _refuse(error: OSError) -> None:
    raise click.ClickException(f"`{error.filename}` can't be read: {error.strerror}") from None


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    """ClickException in place of ValueError, for a file of another kind, and of OSError, for one that can't be read."""
    try:
        yield
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        _refuse(error)


def _unless_gone(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows of a file, or one that says that it isn't there any more."""
    try:
        yield from rows
    except FileNotFoundError:
        if os.path.lexists(path):
            raise
        yield {"gone": "it went away before it was read"}


def _line(row: Row) -> str:
    inner = row.pop("records", None)
    text = "  " + " ".join(f"{name}={_text(value)}" for name, value in row.items() if value is not None)
    lines = [text]
    for record in inner or ():
        lines.append("    | " + " ".join(f"{name}={_text(value)}" for name, value in record.items() if value not in (None, [])))
    return "\n".join(lines)


def _text(value: object) -> str:
    if isinstance(value, bytes | memoryview):
        return bytes(value).decode(errors="backslashreplace")
    return str(value)


def _plain(value: object) -> object:
    return _text(value) if isinstance(value, bytes | memoryview) else str(value)
