"""The audit as a table for people."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text


def render(audit: dict[str, Any]) -> Group:
    """A table with a line a hop, and one sentence that says what it comes to."""
    of = f"the table `{audit['table']}`" if audit["table"] else "the table"
    table = Table(title=f"Records at every hop, counted from the logs and {of}")
    table.add_column("hop")
    columns = ["records", "expected", "dropped", "waiting", *(["left out"] if audit["gaps"] else [])]
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("")
    for hop in audit["hops"]:
        expected = "" if hop["expected"] is None else f"{hop['expected']:,}"
        rest = [f"{hop[name]:,}" if hop[name] else "" for name in ("dropped", "waiting", "left_out")[: len(columns) - 2]]
        mark = Text("ok, by the stages' notes: it is compacted" if hop["by_notes"] else "ok", "green")
        if hop["standing"]:
            mark = Text(f"ok, but {len(hop['standing'])} of its partitions stand still", "yellow")
        if hop["trouble"]:
            mark = Text(hop["trouble"], "red")
        elif hop["note"]:
            mark = Text(f"cannot tell: {hop['note']}", "yellow")
        table.add_row(hop["name"], f"{hop['records']:,}", expected, *rest, mark)
    if audit["parts_at"]:
        line = Text(f"The counts differ first at: {audit['parts_at']}", "red")
    elif audit["untold"]:
        line = Text(f"Cannot tell whether every record is accounted for: see {', '.join(audit['untold'])}.", "yellow")
    elif audit["complete"]:
        line = Text("Complete: every record is accounted for at every hop.", "green")
    else:
        line = Text("No count parts from another; some records are still on their way.", "yellow")
    lines = [line]
    for hop in audit["hops"]:
        lines += [Text(f"{hop['name']}, partition {each}, is {why}", "yellow") for each, why in hop["standing"].items()]
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
    if audit["not_audited"]:
        lines.append(Text(f"Mirrored and not audited: {', '.join(audit['not_audited'])}.", "yellow"))
    return Group(table, *lines)
