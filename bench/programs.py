"""The load programs, compiled at their first use and kept under the hash of their sources."""

from __future__ import annotations

import ctypes.util
import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parent / "programs"
FLAGS = ["-O2", "-std=gnu17", "-Wall", "-Wextra", "-Wno-unused-function"]
LIBRARIES = {"rdkafka": ["-l:librdkafka.so.1"]}


class ProgramError(RuntimeError):
    """A load program can't be built, or failed; the text ends with what it said."""


class Programs:
    """Builds into `folder`: requests, fetch, floor, rdkafka."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        """The program, compiled if need be. Raises ProgramError."""
        source = SOURCES / f"{name}.c"
        if name in LIBRARIES and not ctypes.util.find_library(name):
            raise ProgramError(f"lib{name} is not installed")
        digest = hashlib.sha256(source.read_bytes() + (SOURCES / "common.h").read_bytes()).hexdigest()[:12]
        program = self._folder / f"{name}-{digest}"
        if not program.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            aside = program.with_suffix(f".{os.getpid()}")  # others may be building it, too
            command = ["cc", *FLAGS, "-o", str(aside), str(source), *LIBRARIES.get(name, [])]
            try:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
            except FileNotFoundError:
                raise ProgramError("`cc` is not installed; Debian has it in `build-essential`") from None
            if done.returncode != 0:
                raise ProgramError(f"`{name}.c` does not compile: {done.stderr[-2000:]}")
            aside.rename(program)
        return program

    def start(self, name: str, *words: str, **options: object) -> subprocess.Popen[str]:
        """Start a program; options are `--name value`, `_` for `-`. Standard output is its own pipe."""
        given = [text for key, value in options.items() for text in (f"--{key.replace('_', '-')}", str(value))]
        command = [str(self.path(name)), *words, *given]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def start_idle(self, name: str, *words: str, **options: object) -> subprocess.Popen[str]:
        """The same, and it gets the processor time that nobody else wants.

        For clients that only make the broker busy while others are measured: on few cores those others would wait for
        them instead of the broker.
        """
        process = self.start(name, *words, **options)
        os.sched_setscheduler(process.pid, os.SCHED_IDLE, os.sched_param(0))
        return process

    def run(self, name: str, *words: str, **options: object) -> list[dict[str, Any]]:
        """Run a program to its end: the JSON objects that it printed, the last one being the whole."""
        return ended(self.start(name, *words, **options))


def ended(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Wait for a program: the JSON objects that it printed. Raises ProgramError for a failure and for refused requests."""
    try:
        said, complained = process.communicate()
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.returncode != 0:
        raise ProgramError(f"{Path(str(process.args[0])).name} failed: {(complained or said).strip()[-500:]}")  # type: ignore[index]
    printed: list[dict[str, Any]] = [json.loads(line) for line in said.splitlines()]
    if printed[-1].get("errors"):
        raise ProgramError(f"{printed[-1]['errors']} answers had errors, the first one {printed[-1].get('first_error')}")
    return printed
