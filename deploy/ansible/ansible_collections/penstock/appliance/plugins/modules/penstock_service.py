#!/usr/bin/python
"""Ansible module: a unit of Penstock's runs, now and with the machine, with the settings that stand in its files."""

from __future__ import annotations

DOCUMENTATION = r"""
module: penstock_service
short_description: Start a unit, and restart one that began before its files were changed
description:
  - Enables and starts a unit. Doesn't wait until it is ready; M(penstock.appliance.penstock_wait) does.
  - A unit whose process is older than one of the files in O(reads) is restarted. No handler does that, since what a play that
    was cut short has notified is forgotten, and the next run would find the files as they should be.
options:
  unit:
    description: The unit's name.
    type: str
    required: true
  reads:
    description: Files that it reads at its start.
    type: list
    elements: path
    default: []
author:
  - Penstock maintainers (@penstock)
"""

EXAMPLES = r"""
- name: Start the broker
  penstock.appliance.penstock_service:
    unit: penstock-broker.service
    reads: [/etc/penstock/server.properties]
"""

RETURN = r"""
did:
  description: What was done (in check mode, what would be).
  type: list
  elements: str
  returned: always
"""

import shlex
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

FIELDS = ("LoadState", "ActiveState", "SubState", "UnitFileState", "ExecMainStartTimestampMonotonic")
ENABLED = ("enabled", "enabled-runtime", "static", "alias")


def is_older(started_us: int, file: str) -> bool:
    """Whether a process that was started so long after the machine is older than a file's content."""
    path = Path(file)
    started = time.time() - time.monotonic() + started_us / 1_000_000
    return started_us > 0 and path.exists() and path.stat().st_mtime > started


def main() -> None:
    """Run by Ansible."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "reads": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    unit = module.params["unit"]
    did: list = []

    def systemctl(*words: str) -> str:
        code, out, err = module.run_command(["systemctl", *words])
        if code != 0:
            module.fail_json(msg=f"`systemctl {shlex.join(words)}` failed: {(err or out).strip()}", did=did)
        return out

    if not module.check_mode:
        systemctl("daemon-reload")
    shown = systemctl("show", unit, "--property", ",".join(FIELDS))
    now = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    if now["LoadState"] != "loaded":
        module.fail_json(msg=f"there is no unit {unit}", did=did)
    if now["UnitFileState"] not in ENABLED:
        did.append("enable")
    runs = now["ActiveState"] in ("active", "activating", "reloading")
    started_us = int(now["ExecMainStartTimestampMonotonic"] or 0)
    if not runs:
        did.append("start")
    elif any(is_older(started_us, file) for file in module.params["reads"]):
        did.append("restart")
    if not module.check_mode:
        for word in did:
            systemctl(word, *(["--no-block"] if word != "enable" else []), unit)
    module.exit_json(changed=bool(did), did=did)


if __name__ == "__main__":
    main()
