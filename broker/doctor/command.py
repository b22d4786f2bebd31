"""`penstock doctor`."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import click

from penstock.broker.configs.brokerconfig import load
from penstock.broker.doctor import checks, facts


@click.command("doctor")
@click.option("--config", "config_path", metavar="FILE", type=click.Path(path_type=Path), help="The broker's properties.")
@click.option("--data", "data", metavar="DIR", multiple=True, type=click.Path(path_type=Path), help="A log folder.")
@click.option("--all", "show_all", is_flag=True, help="Show also what is good.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(config_path: Path | None, data: tuple[Path, ...], show_all: bool, as_json: bool) -> None:
    """Look at kernel, limits and the disks of log folders, and say what a broker would want otherwise and why. Changes nothing.

    Which folders these are, the broker's properties say (`--config`), or `--data`; without both no disk is looked at.

    Exit codes: 0 nothing loses data or keeps the broker from serving (there may be warnings), 1 something does.

    Example: penstock doctor --config /etc/penstock/server.properties
    """
    folders = list(data)
    if config_path is not None:
        config = load(config_path)
        given = config["log.dirs"] or config["log.dir"] or ""
        folders += [Path(word.strip()) for word in given.split(",") if word.strip()]
    found = facts.gather(list(dict.fromkeys(folders)))
    findings = checks.check_all(found)
    bad = any(one.level == "bad" for one in findings)
    if as_json:
        document = {"facts": dataclasses.asdict(found), "findings": [dataclasses.asdict(one) for one in findings]}
        print(json.dumps(document, indent=1))
    else:
        for one in findings:
            if show_all or one.level != "good":
                _say(one)
        counts = {level: sum(one.level == level for one in findings) for level in ("bad", "warning", "unseen", "good")}
        print(", ".join(f"{count} {level}" for level, count in counts.items()))
    sys.exit(1 if bad else 0)


def _say(finding: checks.Finding) -> None:
    print(f"{finding.level:8} {finding.name}: {finding.found}; wanted: {finding.wanted}")
    if finding.level in ("warning", "bad"):
        if finding.why:
            print(f"         {finding.why}")
        if finding.do:
            print(f"         -> {finding.do}")
