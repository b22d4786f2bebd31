"""Makes Prometheus' rules, promtool's tests of them, Grafana's dashboards and the runbook out of alerts.py and panels.py.

`python3 deploy/monitoring/generate.py` writes what is committed, into its own folder. `--out mine --rejects 0.05` makes others.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import yaml
from alerts import ALERTS, Alert, Case
from panels import DASHBOARDS, HERE, Dashboard, Panel, Variable

FOLDER = Path(__file__).resolve().parent
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
DURATION = re.compile(r"\{(\d+)([smhd])(:s)?\}")
LABEL = re.compile(r"<(\w+)>")
QUOTED = r"""'{{ reReplaceAll "'" "'\\\\''" $labels.\1 }}'"""
HEAD = "# Made by deploy/monitoring/generate.py out of alerts.py: change it there.\n"
BEGIN, END = "<!-- made by generate.py -->", "<!-- until here -->"
SOURCE = {"datasource": {"type": "prometheus", "uid": "${datasource}"}}


class Bounds:
    """What operators may want otherwise, and how long a minute is, which tests shorten."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self._second = chosen.minute / 60
        self._named = {name: getattr(chosen, name) for name in ("disk", "grace", "hangs", "missing", "rejects", "window")}

    def fill(self, text: str) -> str:
        """Put bounds and durations where {30m}, {30m:s} or a bound's name stands."""
        for name, value in self._named.items():
            text = re.sub(rf"\{{{name}(:s)?\}}", lambda found, value=value: f"{{{value}{found[1] or ''}}}", text)
        return re.sub(r"\{([\d.]+)\}", r"\1", DURATION.sub(self._duration, text))

    def _duration(self, found: re.Match[str]) -> str:
        if found[3] or self._second != 1:
            seconds = int(found[1]) * SECONDS[found[2]] * self._second
            return f"{seconds:g}" if found[3] else f"{round(1000 * seconds)}ms"
        return found[1] + found[2]


def rules(name: str, bounds: Bounds) -> dict[str, Any]:
    """A file of Prometheus' rules."""
    made = [
        {
            "alert": alert.name,
            "expr": bounds.fill(alert.expression),
            "for": bounds.fill(alert.wait),
            "labels": {"severity": alert.severity},
            "annotations": {"summary": bounds.fill(alert.summary), "hint": LABEL.sub(QUOTED, bounds.fill(alert.hint))},
        }
        for alert in ALERTS[name]
    ]
    return {"groups": [{"name": f"penstock-{name}", "rules": made}]}


def rule_tests(name: str, bounds: Bounds) -> dict[str, Any]:
    """A file of `promtool test rules`: each alert's cases, by minutes of 60 seconds."""
    made = []
    for alert in ALERTS[name]:
        for case in alert.cases:
            expected = [] if case.labels is None else [_expected(alert, case, bounds)]
            look = {"eval_time": f"{case.at}m", "alertname": alert.name, "exp_alerts": expected}
            given = [{"series": one, "values": values} for one, values in case.series.items()]
            made.append({"interval": "1m", "input_series": given, "alert_rule_test": [look]})
    return {"rule_files": [f"../rules/{name}.yml"], "evaluation_interval": "1m", "tests": made}


def _expected(alert: Alert, case: Case, bounds: Bounds) -> dict[str, Any]:
    labels = case.labels or {}

    def said(text: str) -> str:
        text = re.sub(r"\{\{ if \$labels\.(\w+) \}\}(.*?)\{\{ end \}\}", lambda one: one[2] if labels.get(one[1]) else "", text)
        text = re.sub(r"\{\{ \$value[^}]*\}\}", case.value, text)
        return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda one: labels[one[1]], text)

    hint = LABEL.sub(lambda one: "'" + labels[one[1]].replace("'", "'\\''") + "'", bounds.fill(alert.hint))
    annotations = {"summary": said(bounds.fill(alert.summary)), "hint": said(hint)}
    return {"exp_labels": {**labels, "severity": alert.severity}, "exp_annotations": annotations}


def dashboard(table: Dashboard) -> dict[str, Any]:
    """Grafana's JSON of a dashboard."""
    panels: list[dict[str, Any]] = []
    y = 0
    for question, row in table.rows.items():
        panels.append({"type": "row", "title": question, "collapsed": False, "panels": [], "gridPos": _place(0, y, 24, 1)})
        y += 1
        x = height = 0
        for panel in row:
            if x + panel.width > 24:
                x, y = 0, y + height
            height = 4 if panel.kind == "stat" else 8
            panels.append(_panel(panel, _place(x, y, panel.width, height)))
            x += panel.width
        y += height
    for number, one in enumerate(panels, 1):
        one["id"] = number
    return {
        "uid": table.uid,
        "title": table.title,
        "tags": ["penstock"],
        "schemaVersion": 38,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_source(), *map(_variable, table.variables)]},
        "annotations": {"list": []},
        "links": [],
        "panels": panels,
    }


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0}


def _variable(table: Variable) -> dict[str, Any]:
    return {
        "name": table.name,
        "label": table.label,
        "type": "query",
        **SOURCE,
        "query": {"query": table.query, "refId": table.name},
        "refresh": 2,  # at each change of the time
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "hide": 0,
    }


def _panel(table: Panel, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if table.red_from is not None:
        steps.append({"color": "red", "value": table.red_from})
    custom: dict[str, Any] = {}
    if table.kind == "timeseries":
        custom = {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}
        if table.stacked:
            custom["stacking"] = {"mode": "normal", "group": "A"}
    options: dict[str, Any] = {
        "stat": {
            "reduceOptions": {"calcs": ["lastNotNull"], "values": False},
            "colorMode": "background",
            "graphMode": "none",
            "textMode": "value",
        },
        "timeseries": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "table": {"showHeader": True, "frameIndex": 0},
    }[table.kind]
    instant = table.kind != "timeseries"
    targets = [
        {
            "refId": "ABCDEF"[number],
            **SOURCE,
            "expr": query.replace("$here", HERE).replace("$rate", "$__rate_interval"),
            "legendFormat": legend,
            "instant": instant,
            "range": not instant,
            **({"format": "table"} if table.kind == "table" else {}),
        }
        for number, (query, legend) in enumerate(table.queries)
    ]
    defaults: dict[str, Any] = {"unit": table.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    if table.unit not in ("percentunit", "none"):
        defaults["min"] = 0
    if custom:
        defaults["custom"] = custom
    return {
        "type": table.kind,
        "title": table.title,
        **({"description": table.says} if table.says else {}),
        "gridPos": place,
        **SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
    }


def runbook(bounds: Bounds) -> str:
    """The table of README.md: what each alert means, and what to do."""
    lines = ["| alert | severity | fires when | what to do |", "| --- | --- | --- | --- |"]
    for alert in (one for table in ALERTS.values() for one in table):
        after = bounds.fill(alert.wait)
        when = f"`{bounds.fill(alert.expression)}`" + ("" if after == "0m" else f" for {after}")
        when = when.replace("|", "\\|")
        hint = re.sub(r"<(\w+)>|\{\{ \$labels\.(\w+) \}\}", lambda one: (one[1] or one[2]).upper(), bounds.fill(alert.hint))
        hint = hint.replace("|", "\\|")
        lines.append(f"| {alert.name} | {alert.severity} | {when} | {alert.runbook} `{hint}` |")
    return "\n".join(lines) + "\n"


def text_of(made: dict[str, Any]) -> str:
    """YAML as people read it: keys in their order, no anchors."""

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            super().increase_indent(flow, False)

    return HEAD + yaml.dump(made, Dumper=Plain, sort_keys=False, width=128, allow_unicode=True)


def files(bounds: Bounds) -> dict[str, str]:
    """All that is made, by its path."""
    made = {}
    for name in ALERTS:
        made[f"rules/{name}.yml"] = text_of(rules(name, bounds))
        made[f"rules-tests/{name}.yml"] = text_of(rule_tests(name, bounds))
    for name, table in DASHBOARDS.items():
        made[f"dashboards/{name}.json"] = json.dumps(dashboard(table), indent=1, ensure_ascii=False) + "\n"
    head, _, rest = (FOLDER / "README.md").read_text(encoding="utf-8").partition(BEGIN)
    made["README.md"] = f"{head}{BEGIN}\n{runbook(bounds)}{END}{rest.partition(END)[2]}"
    return made


def main() -> None:
    """Write all files into a folder."""
    parser = argparse.ArgumentParser(description="Makes Prometheus' rules and Grafana's dashboards.")
    parser.add_argument("--out", type=Path, default=FOLDER, help="The folder into which they go.")
    parser.add_argument("--disk", default="4h", help="Warn of a disk that is full within this time.")
    parser.add_argument("--grace", default="1h", help="How late a night may be.")
    parser.add_argument("--hangs", default="30s", help="How long a disk or a thread may not answer.")
    parser.add_argument("--missing", default="26h", help="How long a host that loads nights may show no figures of them.")
    parser.add_argument("--rejects", default="0.01", help="The share of rejects that a night may have.")
    parser.add_argument("--window", default="1d", help="For how long dedupe has to remember ids.")
    parser.add_argument("--minute", type=float, default=60, help="How many seconds a minute of a rule has; for tests.")
    chosen = parser.parse_args()
    for name in ("disk", "grace", "hangs", "missing", "window"):
        if not re.fullmatch(r"\d+[smhd]", getattr(chosen, name)):
            parser.error(f"--{name}: `{getattr(chosen, name)}` is no duration; 90m, 4h and 7d are some")
    for name, text in files(Bounds(chosen)).items():
        path = chosen.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
