#!/usr/bin/python
"""Ansible module: wait for a unit of Penstock's as long as its start moves."""

from __future__ import annotations

DOCUMENTATION = r"""
module: penstock_wait
short_description: Wait until a unit is ready, for as long as its status line moves
description:
  - A broker that recovers large logs says how far it is; it is waited for until it serves, however long that takes.
  - Fails when the unit has failed, and when its status hasn't changed for a while.
options:
  unit:
    description: The unit's name.
    type: str
    required: true
  stalled_seconds:
    description: How long a status may stay the same before the unit counts as stuck.
    type: int
    default: 300
author:
  - Penstock maintainers (@penstock)
"""

EXAMPLES = r"""
- name: Wait until the broker serves
  penstock.appliance.penstock_wait:
    unit: penstock-broker.service
"""

RETURN = r"""
status:
  description: The unit's last status line.
  type: str
  returned: always
"""

import shlex
import time

from ansible.module_utils.basic import AnsibleModule

ASK_S = 0.5
FIELDS = ("ActiveState", "SubState", "StatusText", "NRestarts", "Result", "LoadState", "Job")


def main() -> None:
    """Run by Ansible."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "stalled_seconds": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    unit = module.params["unit"]
    if module.check_mode:
        module.exit_json(changed=False, status="")
    before: tuple = ()
    moved = time.monotonic()
    while True:
        code, out, err = module.run_command(["systemctl", "show", unit, "--property", ",".join(FIELDS)])
        if code != 0:
            module.fail_json(msg=f"systemctl can't say how {unit} is: {err.strip()}", status="")
        now = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
        status = now.get("StatusText", "")
        if now.get("LoadState") != "loaded":
            module.fail_json(msg=f"there is no unit {unit}", status=status)
        queued = now.get("Job", "0") not in ("", "0")  # a restart, perhaps: what is active is the process before it
        if now["ActiveState"] == "active" and not queued:
            module.exit_json(changed=False, status=status)
        if now["ActiveState"] in ("failed", "inactive") and not queued:
            command = ["journalctl", "--no-pager", "--quiet", "--lines", "15", "--output", "cat", "-u", unit]
            said = module.run_command(command)[1].strip()
            module.fail_json(msg=f"{unit} is {now['ActiveState']} ({now['Result']}). It said:\n{said}", status=status)
        state = (now["ActiveState"], now["SubState"], status)
        if state != before:
            before, moved = state, time.monotonic()
        if time.monotonic() - moved > module.params["stalled_seconds"]:
            module.fail_json(
                msg=f"{unit} is {now['ActiveState']} and its status hasn't changed for "
                f"{module.params['stalled_seconds']} s: `{status}`. Look at `journalctl -u {shlex.quote(unit)}`",
                status=status,
            )
        time.sleep(ASK_S)


if __name__ == "__main__":
    main()
