"""What deploy/monitoring/generate.py makes: the committed files, rules by promtool, dashboards by Grafana's own types."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from penstock.cli import root
from support.prometheus import ABSENT, MONITORING, expressions, generate, panel_queries

RULES = sorted((MONITORING / "rules").glob("*.yml"))
DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason=ABSENT)


def promtool(*words: object) -> str:
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_is_committed_is_what_the_tables_make(tmp_path: Path) -> None:
    generate(tmp_path)
    made = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    there = {name: (MONITORING / name).read_text() for name in made}
    assert made == there, "python3 deploy/monitoring/generate.py makes them"
    others = {path.relative_to(MONITORING) for path in MONITORING.rglob("*.yml")} | {
        path.relative_to(MONITORING) for path in MONITORING.rglob("*.json")
    }
    assert others - made.keys() == {Path("prometheus.yml")}


@needs_promtool
def test_prometheus_takes_the_rules_and_the_configuration() -> None:
    promtool("check", "rules", *RULES)
    promtool("check", "config", "--syntax-only", MONITORING / "prometheus.yml")


@needs_promtool
@pytest.mark.parametrize("rules", RULES, ids=lambda path: path.stem)
def test_each_alert_fires_and_does_not(rules: Path) -> None:
    cases = MONITORING / "rules-tests" / rules.name
    promtool("test", "rules", cases)
    looked: dict[str, set[bool]] = {}
    for case in yaml(cases)["tests"]:
        for look in case["alert_rule_test"]:
            looked.setdefault(look["alertname"], set()).add(bool(look["exp_alerts"]))
    assert looked == {rule["alert"]: {True, False} for rule in yaml(rules)["groups"][0]["rules"]}


@needs_promtool
def test_other_bounds_stand_in_the_rules_and_their_words(tmp_path: Path) -> None:
    generate(tmp_path, "--disk", "12h", "--grace", "2h", "--rejects", "0.25", "--window", "7d", "--missing", "3d")
    for name in ("broker", "pipeline"):
        promtool("check", "rules", tmp_path / "rules" / f"{name}.yml")
    text = (tmp_path / "rules" / "broker.yml").read_text() + (tmp_path / "rules" / "pipeline.yml").read_text()
    for words in ("[1h], 43200) < 0", "is full within 12h", ") + 7200", "> 0.25", "< 604800", "less than 7d", "for: 3d"):
        assert words in text


def yaml(path: Path) -> Any:
    import yaml as reader

    return reader.safe_load(path.read_text())


@pytest.mark.parametrize("rules", RULES, ids=lambda path: path.stem)
def test_the_commands_of_hints_are_there(rules: Path) -> None:
    """Each `penstock` of a hint or of the runbook is a command, with the options and arguments that it takes."""
    commands = 0
    for rule in yaml(rules)["groups"][0]["rules"]:
        hint = rule["annotations"]["hint"]
        for stage in ("mirror", "dedupe"):
            text = hint.replace("{{ $labels.stage }}", stage).replace("{{ $labels.part }}", stage)
            # promtool's cases have a hostile name.
            text = re.sub(r"""'\{\{ reReplaceAll "'" "'\\\\''" \$labels\.(\w+) \}\}'""", r"\1", text)
            assert "{{" not in text
            for line in re.split(r"; | \| | \|\| ", text):
                words = shlex.split(line)
                if words[0] == "penstock":
                    parse(root, words[1:])
                    commands += 1
        assert hint.count("\n") == 0 and rule["annotations"]["summary"].rstrip("%")[-1] == "."
    assert commands > 3


def parse(command: click.Command, words: list[str]) -> None:
    """Let click read a command line, and run nothing. Raises click.UsageError."""
    context = click.Context(command)
    while isinstance(command, click.Group) and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no `{' '.join(words)}`"
        command, words = found, words[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    command.parse_args(context, ["/dev/null" if word.startswith("/") else word for word in words])


@needs_promtool
@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_prometheus_can_read_each_query_of_a_dashboard(dashboard: Path, tmp_path: Path) -> None:
    queries = panel_queries(dashboard)
    rules = [{"record": f"query:{number}", "expr": query} for number, (_, query) in enumerate(queries)]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", tmp_path / "rules.json")


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_grafanas_types_keep_all_that_a_dashboard_says(dashboard: Path) -> None:
    """Read and written by the types that Grafana publishes: a key that they don't know would be gone."""
    from grafana_foundation_sdk.cog import plugins
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    plugins.register_default_plugins()

    def through(ours: dict[str, Any]) -> Any:
        return json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(ours)))

    ours = json.loads(dashboard.read_text())
    assert list(lost(ours, through(ours))) == []
    unknown = {**ours, "unknown": 1}
    assert list(lost(unknown, through(unknown))) == [".unknown"]


def lost(ours: Any, theirs: Any, place: str = "") -> Any:
    """Where something of ours isn't the same in theirs, which may have more."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name, value in ours.items():
            yield from lost(value, theirs.get(name, ...), f"{place}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, value in enumerate(ours):
            yield from lost(value, theirs[number], f"{place}[{number}]")
    elif ours != theirs:
        yield place


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_whole(dashboard: Path) -> None:
    """Each panel has a place of its own, a unit and a title of its own; each variable that a query names is there."""
    made = json.loads(dashboard.read_text())
    panels = made["panels"]
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    assert all(panel["fieldConfig"]["defaults"]["unit"] for panel in panels if panel["type"] != "row")
    named = {name for query in expressions(dashboard) for name in re.findall(r"\$(\w+)", query)}
    assert named - {"__rate_interval"} == {one["name"] for one in made["templating"]["list"]} - {"datasource"}


def test_the_generator_names_what_it_lacks() -> None:
    done = subprocess.run(
        [sys.executable, str(MONITORING / "generate.py"), "--disk", "soon"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "`soon` is no duration" in done.stderr
