"""Ansible callback plugin: kills ansible-playbook a moment after it has begun a task, as an operator's mishap would.

PENSTOCK_KILL_AT says which one, counted from 1; PENSTOCK_KILL_FILE gets its name. Only the process itself is killed: what it
had started on a host goes on to its end, beside the next run.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

MOMENT_S = 0.5


class CallbackModule(CallbackBase):  # type: ignore[misc]  # Ansible has no types
    """Found by its name."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "kill_at"

    def __init__(self) -> None:
        super().__init__()
        self._left = int(os.environ["PENSTOCK_KILL_AT"])
        self._file = Path(os.environ["PENSTOCK_KILL_FILE"])

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """Counts down."""
        self._left -= 1
        if self._left == 0:
            self._file.write_text(task.get_name())
            threading.Timer(MOMENT_S, os.kill, (os.getpid(), signal.SIGKILL)).start()
