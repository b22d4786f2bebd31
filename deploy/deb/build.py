"""Builds the Debian packages: `penstock-VERSION`, and `penstock-etl-VERSION` with PySpark and its jars.

Each version is a package of its own under /opt/penstock/VERSION, so several lie side by side and
/opt/penstock/current, a link, says which one runs. A package holds a virtual environment on Debian's own Python: our
wheel, the wheels of `requirements.lock` (each file must have the hash that stands there), byte code, the systemd units and
an SBOM. System libraries stay Debian's: dpkg-shlibdeps says which ones, and their security updates come by apt.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

from penstock import __version__

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
UNITS = ROOT / "deploy" / "units"
WORK = ROOT / "build" / f"deb-{os.getpid()}"  # two builds at a time don't meet
# The modules that are packed were compiled for the Python that runs this: Debian has to have the same, 12 3.11 and 13 3.13.
PYTHON_PACKAGE = f"python{sys.version_info.major}.{sys.version_info.minor}"
SYSTEM_PYTHON = f"/usr/bin/{PYTHON_PACKAGE}"
SITE = Path("lib", PYTHON_PACKAGE, "site-packages")
JRE = "default-jre-headless | java17-runtime-headless"


def main() -> None:
    """Builds what is asked for into a folder and prints the packages' paths."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--out", type=Path, default=ROOT / "dist" / "deb")
    options.add_argument("--revision", default="", help="sets a rebuild of the same version apart: VERSION+REVISION")
    options.add_argument("--etl", action="store_true", help="build penstock-etl too")
    options.add_argument("--fast", action="store_true", help="hardly compress: for tests")
    given = options.parse_args()
    if not re.fullmatch(r"[a-z0-9.]*", given.revision):
        sys.exit(f"the revision `{given.revision}` isn't made of small letters, digits and dots")
    if not Path(SYSTEM_PYTHON).exists():
        sys.exit(
            f"the package needs {SYSTEM_PYTHON}, and this Debian has none\nhint: rm -r .venv; make PYTHON=/usr/bin/python3"
        )
    os.umask(0o022)
    os.environ["SOURCE_DATE_EPOCH"] = _said(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]).strip() or "0"
    release = f"{__version__}+{given.revision}" if given.revision else __version__
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        print(Package("penstock", release, given.out, given.fast).build(_fill_base))
        if given.etl:
            print(Package("penstock-etl", release, given.out, given.fast).build(_fill_etl))
    finally:
        shutil.rmtree(WORK, ignore_errors=True)


class Package:
    """One Debian package on its way: the tree that it installs, then the file."""

    def __init__(self, name: str, release: str, out: Path, fast: bool) -> None:
        self.name = name
        self.release = release
        self.tree = WORK / name
        self.prefix = self.tree / "opt" / "penstock" / release
        self._out = out
        self._fast = fast

    @property
    def site(self) -> Path:
        """Where its Python packages lie."""
        return self.prefix / SITE

    def build(self, fill: Callable[[Package], dict[str, str]]) -> Path:
        """Fills the tree and packs it; returns the file."""
        self.prefix.mkdir(parents=True)
        control = fill(self)
        self._forget_build_paths()
        # The byte code's source names are those on the box, and it is never compared with the source: dpkg keeps both.
        compiled = ["-q", "-s", str(self.tree), "-p", "/", "--invalidation-mode", "unchecked-hash"]
        _run([SYSTEM_PYTHON, "-m", "compileall", *compiled, str(self.site)])
        _write(self.prefix / "share" / "penstock" / f"{self.name}.cdx.json", _sbom(self))
        licence = (HERE / "copyright").read_text().replace("@RELEASE@", self.release).replace("@PACKAGE@", self.name)
        _write(self.tree / "usr" / "share" / "doc" / f"{self.name}-{self.release}" / "copyright", licence)
        return self._pack(control)

    def _forget_build_paths(self) -> None:
        """Drops pip's notes of the file that a package was installed from."""
        for note in self.site.glob("*.dist-info/direct_url.json"):
            note.unlink()
            record = note.with_name("RECORD")
            kept = [line for line in record.read_text().splitlines() if "direct_url.json" not in line]
            record.write_text("\n".join(kept) + "\n")

    def _pack(self, control: dict[str, str]) -> Path:
        files = sorted(path for path in self.tree.rglob("*") if path.is_file() and not path.is_symlink())
        meta = self.tree / "DEBIAN"
        fields = {
            "Package": f"{self.name}-{self.release}",
            "Version": self.release,
            "Architecture": _said(["dpkg", "--print-architecture"]).strip(),
            "Maintainer": "Penstock <root@localhost>",
            "Section": "net",
            "Priority": "optional",
            "Installed-Size": str(sum(path.stat().st_size for path in files) // 1024),
            **control,
        }
        _write(meta / "control", "".join(f"{name}: {value}\n" for name, value in fields.items()))
        sums = (f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(self.tree)}\n" for path in files)
        _write(meta / "md5sums", "".join(sums))
        for script in ("postinst", "prerm", "postrm"):
            source = HERE / f"{self.name}.{script}"
            if source.is_file():
                _write(meta / script, source.read_text().replace("@RELEASE@", self.release), 0o755)
        target = self._out / f"{self.name}-{self.release}_{self.release}_{fields['Architecture']}.deb"
        level = ["-Zzstd", "-z1" if self._fast else "-z12"]
        _run(["dpkg-deb", "--root-owner-group", *level, "--build", str(self.tree), str(target)])
        return target


def _fill_base(package: Package) -> dict[str, str]:
    """The virtual environment with Penstock, the units, and who it runs as."""
    _run([SYSTEM_PYTHON, "-m", "venv", "--without-pip", "--symlinks", str(package.prefix)])
    python = str(package.prefix / "bin" / PYTHON_PACKAGE)
    install = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-compile"]
    locked = ["--require-hashes", "--only-binary", ":all:", "-r", str(HERE / "requirements.lock")]
    _run([*install, *locked])
    _run([*install, str(_wheel())])
    # What stays in `bin` is the interpreter and the command, which sees nothing of its caller's Python settings.
    kept = {"python", "python3", PYTHON_PACKAGE}
    for path in (package.prefix / "bin").iterdir():
        if path.name not in kept:
            path.unlink()
    shebang = f"#!/opt/penstock/{package.release}/bin/python3 -I"
    _write(package.prefix / "bin" / "penstock", f"{shebang}\nfrom penstock.cli import main\n\nmain()\n", 0o755)
    _write(package.prefix / "pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = false\n")
    units = package.prefix / "lib" / "systemd" / "system"
    units.mkdir(parents=True)
    for unit in sorted(UNITS.iterdir()):
        shutil.copy(unit, units / unit.name)
    _write(package.prefix / "lib" / "sysusers.d" / "penstock.conf", (HERE / "penstock.sysusers").read_text())
    libraries = _libraries(package)
    return {
        "Depends": ", ".join([PYTHON_PACKAGE, "systemd", *libraries]),
        "Description": "data-pipeline appliance: broker, mirror, dedupe\n"
        " Speaks Kafka's protocol and keeps Kafka's files. Versions lie side by side\n"
        " under /opt/penstock; the link `current` there says which one runs.",
    }


def _fill_etl(package: Package) -> dict[str, str]:
    """PySpark, what reads its tables, and the jars, into the environment of the package that it depends on."""
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--require-hashes"]
    _run([*install, "-r", str(HERE / "requirements-etl.lock"), "--target", str(package.site)])
    shutil.rmtree(package.site / "bin", ignore_errors=True)
    jars = package.prefix / "share" / "penstock" / "jars"
    for text in json.loads(_said([sys.executable, "-c", LIST_JARS])):
        jar = Path(text)
        (jars / jar.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(jar, jars / jar.parent.name)
    return {
        "Depends": ", ".join([f"penstock-{package.release}", JRE]),
        "Description": "nightly tables of a Penstock pipeline, by PySpark\n"
        " PySpark, its Kafka source and Delta for the Penstock of the same version.",
    }


LIST_JARS = """\
import json
from penstock.pipeline.etl import jars
print(json.dumps([str(path) for path in jars.spark_jars(s3a=True)]))
"""


def _wheel() -> Path:
    wheels = WORK / "wheels"
    _run([sys.executable, str(ROOT / "deploy" / "wheel.py"), "--out", str(wheels)])
    (wheel,) = wheels.glob("*.whl")
    return wheel


def _libraries(package: Package) -> list[str]:
    """The Debian packages of the libraries that the compiled modules link."""
    scratch = WORK / "shlibdeps"
    _write(scratch / "debian" / "control", "Source: penstock\n\nPackage: penstock\nArchitecture: any\n")
    (package.tree / "DEBIAN").mkdir(exist_ok=True)  # by this it knows the tree of a package
    # Libraries that a wheel brings along lie beside its modules, under names that no package of Debian's has.
    private = list(package.site.glob("*.libs"))
    modules = [path for path in package.site.rglob("*.so") if path.is_file()]
    options = ["-O", "--warnings=0", f"-S{package.tree}", "--ignore-missing-info", *(f"-l{path}" for path in private)]
    said = _said(["dpkg-shlibdeps", *options, *(f"-e{path}" for path in modules)], scratch)
    found = said.strip().removeprefix("shlibs:Depends=")
    return [one.strip() for one in found.split(",") if one.strip()]


def _sbom(package: Package) -> str:
    """What the package carries, as CycloneDX."""
    components = []
    for meta in sorted(package.site.glob("*.dist-info/METADATA")):
        head = meta.read_text(errors="replace").split("\n\n", 1)[0]
        fields = dict(re.findall(r"^(Name|Version|License-Expression|License): (.*)$", head, re.M))
        name, version = fields["Name"], fields["Version"]
        component: dict[str, object] = {"type": "library", "name": name, "version": version}
        component["purl"] = f"pkg:pypi/{name.lower()}@{version}"
        licence = fields.get("License-Expression") or fields.get("License", "")
        if licence:
            component["licenses"] = [{"license": {"name": licence}}]
        components.append(component)
    for jar in sorted(package.prefix.glob("share/penstock/jars/*/*.jar")):
        digest = hashlib.sha256(jar.read_bytes()).hexdigest()
        components.append({"type": "library", "name": jar.name, "hashes": [{"alg": "SHA-256", "content": digest}]})
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, f'{package.name} {package.release}')}",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": package.name, "version": package.release}},
        "components": components,
    }
    return json.dumps(document, indent=1) + "\n"


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _said(command: list[str], folder: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command[:4])} ... failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def _run(command: list[str]) -> None:
    _said(command)


if __name__ == "__main__":
    main()
