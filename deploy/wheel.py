"""Makes our wheel from the modules that `make ext` compiled, in seconds; `make package` proves that the sdist gives one, too.

The modules are put where setuptools would compile them to, so that it compiles nothing.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    """Writes one wheel into a folder."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=ROOT / "dist")
    out: Path = options.parse_args().out.absolute()
    tag = f"{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="wheel-", dir=ROOT / "build") as folder:
        base = Path(folder, "base")
        # By their sources: a tree may also hold modules of a source that is gone, or of another Python.
        for source in (ROOT / "pyx").rglob("*.pyx"):
            module = source.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
            if not module.is_file():
                sys.exit(f"`{module}` isn't compiled\nhint: make ext")
            target = base / f"lib.{tag}" / "penstock" / "pyx" / module.relative_to(ROOT / "pyx")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(module, target)
        command = [sys.executable, "setup.py", "-q", "build", "--build-base", str(base), "bdist_wheel"]
        command += ["--dist-dir", str(out), "--bdist-dir", str(Path(folder, "bdist"))]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"setup.py could not make a wheel:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
