"""The audit as a table for people."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from penstock.hints import quoted

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

LEFT_LOGS = "logs left in partition"
"""What places are called at which logs are counted: those of a partition that the mirror has left for another one."""
LOST_OFFSETS = "offsets of lost copies in partition"
"""The same of the offsets whose copies the target has lost, so that an operator let the mirror go on without them."""


def render(audit: dict[str, Any]) -> Group:
    """A table with a line a hop, and one sentence that says what it comes to."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    of = f"the table `{audit['table']}`" if audit["table"] else "the table"
    table = Table(title=f"Records at every hop, counted from the logs and {of}")
    table.add_column("hop")
    columns = ["records", "expected", "dropped", "waiting", *(["left out"] if audit["gaps"] else [])]
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("")
    for hop in audit["hops"]:
        expected = "" if hop["expected"] is None else f"{hop['expected']:,}"
        rest = [_number(hop[name]) if hop[name] != 0 else "" for name in ("dropped", "waiting", "left_out")[: len(columns) - 2]]
        mark = Text("ok, by the stages' notes: it is compacted" if hop["by_notes"] else "ok", "green")
        if hop["standing"]:
            mark = Text(f"ok, but {len(hop['standing'])} of its partitions stand still", "yellow")
        if hop["trouble"]:
            mark = Text(hop["trouble"], "red")
        elif hop["open"]:
            mark = Text("cannot tell: an open transaction holds records back", "yellow")
        elif hop["left_logs"]:
            mark = Text("cannot tell: it goes on in another log", "yellow")
        elif hop["note"]:
            mark = Text(f"cannot tell: {hop['note']}", "yellow")
        table.add_row(hop["name"], _number(hop["records"]), expected, *rest, mark)
    if audit["parts_at"]:
        line = Text(f"The counts differ first at: {audit['parts_at']}", "red")
    elif audit["untold"]:
        line = Text(f"Cannot tell whether every record is accounted for: see {', '.join(audit['untold'])}.", "yellow")
    elif audit["complete"]:
        line = Text("Complete: every record is accounted for at every hop.", "green")
    else:
        line = Text("No count parts from another; some records are still on their way.", "yellow")
    return Group(table, line, *_remarks(audit))


def difference_text(place: str, difference: int) -> str:
    """A difference with its sign and what is counted at the place."""
    units = {LEFT_LOGS: "logs", LOST_OFFSETS: "offsets"}
    return f"{difference:+,} {next((unit for name, unit in units.items() if place.startswith(name)), 'records')}"


def _number(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"


def _remarks(audit: dict[str, Any]) -> list[Text]:
    """Further sentences: what stands still, and what is explained by a decision."""
    from rich.text import Text

    lines = []
    for hop in audit["hops"]:
        lines += [Text(f"{hop['name']}, partition {each}, is {why}", "yellow") for each, why in hop["standing"].items()]
        lines += [Text(f"{hop['name']}: {words}", "yellow") for words in (*hop["open"], hop["left_logs"]) if words]
    if audit["gaps"]:
        places = [f"{gap['hop']}:{gap['partition']} offsets {gap['first']} to {gap['last']}" for gap in audit["gaps"]]
        lines.append(Text(f"Left out by operators (and nothing else is missing): {'; '.join(places)}.", "yellow"))
    lacking = [f"{hop['without_id']:,} of {hop['name']}" for hop in audit["hops"] if hop["without_id"]]
    if lacking:
        lines.append(Text(f"Without an id, so that repeats of them aren't seen: {'; '.join(lacking)}.", "yellow"))
    again = [f"{hop['again']:,} of {hop['name']}" for hop in audit["hops"] if hop["again"] > 0]
    if again:
        why = "since an operator had it copied or read again, or began in another log"
        lines.append(Text(f"Beyond what one reading of the log gives, {why}: {'; '.join(again)}.", "yellow"))
    for hop in audit["hops"]:
        lines += [Text(f"Others changed the {hop['name']}: {_change(change)}.", "yellow") for change in hop["changes"]]
        lines += [
            Text(f"Accepted at {hop['name']}: {place}, {difference_text(place, one['difference'])}, on "
                 f"{_moment(one['at_ms'])}, because "
                 f"{one['because']}", "yellow")
            for place, one in hop["accepted"].items()
        ]  # fmt: skip
    if audit["not_audited"]:
        lines.append(Text(f"Mirrored and not audited: {', '.join(audit['not_audited'])}.", "yellow"))
    return lines


def _change(change: dict[str, Any]) -> str:
    """What a commit of others did, in words."""
    did = [f"{change[name]:,} rows {name}" for name in ("removed", "added", "updated") if change[name]]
    did += ["how many rows isn't known"] if change["untold"] is None else []
    nights = [f"{night or 'none'}: {-rows:+,}" for night, rows in change["nights"].items() if rows]
    where = f", by night {', '.join(nights)}" if nights else ""
    what = f"{change['operation']}{' ' + change['condition'] if change['condition'] else ''}"
    if change["commits"] > 1:
        what = f"{change['commits']:,} commits, {what}, the first of them"
    return f"{what} (version {change['version']}, {_moment(change['time_ms'])}): {', '.join(did) or 'no row is missing'}{where}"


def _moment(time_ms: int) -> str:
    return datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def hint(audit: dict[str, Any], file: object) -> str:
    """What to do about differences that nobody has accepted, given the pipeline's file; empty where there are none."""
    if not any(hop["unaccepted"] for hop in audit["hops"]):
        return ""
    table = f" --table {quoted(audit['table'])}" if audit["table"] else ""
    command = f"penstock audit accept --config {quoted(file)}{table} --because TEXT"
    return f"hint: where nobody can mend a difference, `{command}` accepts just these"
