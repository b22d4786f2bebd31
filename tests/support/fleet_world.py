"""Datacenters on the machines of a fleet, and the inventory that describes them to Ansible."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from support.machines import Fleet, Machine, Plays
from support.packages import COLLECTION

DISKS_USED = 2  # of three: the last one is for what comes later
HIDDEN = "hunter2-of-the-store"


class Release(NamedTuple):
    """A version of Penstock, and the bundle that installs it."""

    version: str
    archive: Path

    @property
    def variables(self) -> dict[str, object]:
        """Those of an inventory that name it."""
        return {"penstock_version": self.version, "penstock_bundle": str(self.archive)}


class World:
    """The fleet as the inventory describes it: the last datacenter is the aggregate."""

    def __init__(self, fleet: Fleet, release: Release, datacenters: Sequence[str]) -> None:
        self.fleet = fleet
        self.datacenters = datacenters
        self.inventory = fleet.folder / f"{datacenters[0]}.json"
        self._disks_of: dict[str, Sequence[int]] = dict.fromkeys(datacenters, range(DISKS_USED))
        self.plays = Plays(COLLECTION, fleet, self.inventory, release.variables)
        self.plays.variables |= {
            "penstock_aggregate": datacenters[-1],
            "penstock_settle_seconds": 1,
            "etl_calendar": "*-*-* 00:20:00 UTC",  # tests choose when nights are loaded
            "broker_topics": {"flights": {"partitions": 2}},
            "pipeline_properties": {
                "topics": "flights",
                "penstock.etl.schema": "id STRING NOT NULL, day DATE NOT NULL, carrier STRING",
                "penstock.etl.event.day": "day",
                # No night of these tests asks a store for anything; Spark won't start without the secret.
                "spark.hadoop.fs.s3a.secret.key": "${file:penstock.secrets:s3.key}",
            },
            "pipeline_secrets": {"s3.key": HIDDEN},
        }
        for datacenter in datacenters:
            fleet.add(f"{datacenter}-1", disks=3)
        self.describe()

    def machine(self, datacenter: str) -> Machine:
        """The one of a datacenter."""
        return self.fleet.machines[f"{datacenter}-1"]

    def address(self, datacenter: str) -> str:
        """Of its broker."""
        return f"{self.machine(datacenter).address}:9092"

    def describe(self, **disks_of: Sequence[int]) -> None:
        """Write the inventory; `disks_of`: the numbers of a datacenter's disks, if they aren't what they were (at first: the
        first two)."""
        self._disks_of |= disks_of
        groups: dict[str, object] = {}
        for datacenter in self.datacenters:
            machine = self.machine(datacenter)
            disks = [machine.disks[number] for number in self._disks_of[datacenter]]
            host = {"ansible_host": machine.address, "disks_devices": disks}
            groups[datacenter] = {"hosts": {machine.name: host}, "vars": {"penstock_datacenter": datacenter}}
        groups["brokers"] = {"hosts": {f"{one}-1": {} for one in self.datacenters}}
        for group in ("mirrors", "dedupers", "etl"):
            groups[group] = {"hosts": {f"{self.datacenters[-1]}-1": {}}}
        self.inventory.write_text(json.dumps({"all": {"children": groups}}))

    def main_pid(self, datacenter: str, unit: str = "penstock-broker") -> str:
        """The process of a unit."""
        return self.machine(datacenter).ssh(f"systemctl show --property MainPID --value {unit}").strip()

    def log_folders(self, datacenter: str) -> list[str]:
        """Those of its broker."""
        shown = self.machine(datacenter).ssh("sed -n s/^log.dirs=//p /etc/penstock/server.properties")
        return shown.strip().split(",")

    def spread(self, datacenter: str, folder: str) -> list[str]:
        """Make a topic `spread` with records in both log folders of a broker; answers those that lie in this one."""
        bootstrap = self.address(datacenter)
        self.fleet.penstock("topics", "create", "spread", "-p", "4", "-b", bootstrap)
        # Each has a key of its own: a producer puts what has none into one partition for a while.
        lines = "\n".join(f"{number}:{number}" for number in range(400))
        self.fleet.penstock("produce", "spread", "--key-separator", ":", "-b", bootstrap, text=lines)
        names = self.machine(datacenter).ssh(f"ls {folder}").split()
        there = {int(name.rpartition("-")[2]) for name in names if name.startswith("spread-")}
        shown = self.fleet.penstock("consume", "spread", "--from", "earliest", "--json", "-b", bootstrap)
        kept = [one["value"] for one in map(json.loads, shown.splitlines()) if one["partition"] in there]
        assert 0 < len(kept) < 400
        return sorted(kept)

    def spread_left(self, datacenter: str) -> list[str]:
        """What is still in that topic."""
        return sorted(self.fleet.penstock("consume", "spread", "--from", "earliest", "-b", self.address(datacenter)).split())
