"""A real Prometheus over processes of a test, with the rules and dashboards of deploy/monitoring."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from penstock.ports import hold_ports
from support.packages import ROOT
from support.patience import until

MONITORING = ROOT / "deploy" / "monitoring"
ABSENT = "Prometheus isn't there: `make monitoring-test` installs it"
PROGRAMS = ("prometheus", "promtool", "prometheus-node-exporter")
MINUTE_S = 0.5  # of the rules' minutes: hours pass in half a minute
SCRAPE_MS = 1000


def is_there() -> bool:
    """Whether this machine has what these tests start."""
    return all(shutil.which(name) for name in PROGRAMS)


def generate(out: Path, *options: str) -> None:
    """Let the generator write rules and dashboards into a folder."""
    command = [sys.executable, str(MONITORING / "generate.py"), "--out", str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def expressions(dashboard: Path) -> list[str]:
    """Each query of a dashboard as it stands there, of panels and variables."""
    made = json.loads(dashboard.read_text())
    queries = [one["query"]["query"] for one in made["templating"]["list"] if one["type"] == "query"]
    return queries + [target["expr"] for panel in made["panels"] for target in panel.get("targets", [])]


def panel_queries(dashboard: Path) -> list[tuple[str, str]]:
    """Panel and query, as Grafana asks Prometheus if all of each variable is chosen."""
    made = json.loads(dashboard.read_text())
    found = [(panel["title"], target["expr"]) for panel in made["panels"] for target in panel.get("targets", [])]
    interval = f"{4 * SCRAPE_MS}ms"
    return [(title, re.sub(r"\$(\w+)", ".*", query.replace("$__rate_interval", interval))) for title, query in found]


class Exporter:
    """Debian's prometheus-node-exporter, with its text collector alone."""

    def __init__(self, folder: Path) -> None:
        self.textfile = folder / "textfile" / "penstock-etl.prom"
        self.textfile.parent.mkdir(parents=True)
        self.address = f"127.0.0.1:{hold_ports(1)[0]}"
        command = ["prometheus-node-exporter", "--collector.disable-defaults", "--collector.textfile"]
        command += [f"--collector.textfile.directory={self.textfile.parent}", f"--web.listen-address={self.address}"]
        with (folder / "exporter.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


class Prometheus:
    """Debian's Prometheus on a free port, with the committed rules in which a minute lasts MINUTE_S."""

    def __init__(self, folder: Path, *bounds: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        generate(folder, "--minute", str(MINUTE_S), *bounds)
        self._targets = folder / "targets.json"
        self.watch()
        config = {
            "global": {"scrape_interval": f"{SCRAPE_MS}ms", "evaluation_interval": "500ms"},
            "rule_files": [str(folder / "rules" / "*.yml")],
            "scrape_configs": [
                {
                    "job_name": "penstock",
                    "file_sd_configs": [{"files": [str(self._targets)], "refresh_interval": "1s"}],
                }
            ],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        self.address = f"127.0.0.1:{hold_ports(1)[0]}"
        self.log_path = folder / "prometheus.log"
        command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        command += [f"--web.listen-address={self.address}", "--query.lookback-delta=5s"]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(self._is_ready, "Prometheus to be ready", self.log_path.read_text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()

    def watch(self, *targets: tuple[str, str, str, str]) -> None:
        """Scrape these from now on: part, datacenter, instance, address."""
        made = [
            {"targets": [address], "labels": {"part": part, "datacenter": datacenter, "instance": instance}}
            for part, datacenter, instance, address in targets
        ]
        beside = self._targets.with_suffix(".new")
        beside.write_text(json.dumps(made))
        beside.replace(self._targets)

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self.log_path.read_text()
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5):
                return True
        except OSError:
            return False

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and number of each series that an expression has now."""
        found = self.ask("query", query=expression)["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def firing(self) -> dict[str, list[dict[str, str]]]:
        """The alerts that fire now by name, each with its labels and annotations."""
        found: dict[str, list[dict[str, str]]] = {}
        for one in self.ask("alerts")["alerts"]:
            if one["state"] == "firing":
                found.setdefault(one["labels"]["alertname"], []).append({**one["labels"], **one["annotations"]})
        return found

    def await_firing(self, name: str, **labels: str) -> dict[str, str]:
        """Wait until an alert fires, with these labels; its labels and annotations."""

        def fitting() -> list[dict[str, str]]:
            return [one for one in self.firing().get(name, []) if labels.items() <= one.items()]

        until(lambda: self._pause() or bool(fitting()), f"{name} to fire", lambda: self._state(name))
        return fitting()[0]

    def await_clear(self, *names: str) -> None:
        """Wait until none of these alerts fires."""
        until(
            lambda: self._pause() or not self.firing().keys() & set(names),
            f"{' and '.join(names)} to end",
            lambda: self._state(*names),
        )

    @staticmethod
    def _pause() -> bool:
        time.sleep(0.2)
        return False

    def _state(self, *names: str) -> str:
        """What an alert sees: for whoever reads why it didn't come."""
        rules = [rule for group in self.ask("rules")["groups"] for rule in group["rules"] if rule["name"] in names]
        seen = {rule["query"]: self.query(rule["query"]) for rule in rules}
        health = [(one["labels"], one["health"], one["lastError"]) for one in self.ask("targets")["activeTargets"]]
        return json.dumps({"fire": list(self.firing()), "see": seen, "targets": health}, indent=1)

    def lacking(self, queries: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Those that give no data now."""
        return [(title, query) for title, query in queries if not self.query(query)]
