"""Classes of ours in Spark's JVM.

Spark's own compiler of expressions, Janino, compiles them, so that neither a JDK nor a jar of ours has to be there. It takes
generic types for raw ones, and no lambdas. A source has a folder of its own, by its hash: what another version compiled is
never taken for it.
"""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.durable import replace_file


@dataclass(frozen=True)
class JavaClass:
    """A public class, by its name with its package, and its source."""

    name: str
    source: str

    def load_into(self, jvm: Any, below: Path) -> None:
        """Let the JVM find the class, in a folder below this one, where it is compiled unless it is there: the first that a JVM
        compiles takes it 2 s."""
        folder = self._folder(below)
        last = self._file(below, self.name)
        if not last.is_file():
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.cook(self.source)
            last.parent.mkdir(parents=True, exist_ok=True)
            # The class itself is there last, so those inside it are there if it is.
            for name, code in sorted(dict(compiler.getBytecodes()).items(), key=lambda one: -len(one[0])):
                replace_file(self._file(below, name), bytes(code))
        # Not by the JVM's class path: an archive of classes (CDS) takes no folder there.
        jvm.java.lang.Thread.currentThread().getContextClassLoader().addURL(
            jvm.java.io.File(str(folder.absolute())).toURI().toURL()
        )

    def pack(self, below: Path) -> Path:
        """Its class files as a jar, for executors. They have been compiled."""
        folder = self._folder(below)
        jar = folder / "classes.jar"
        with zipfile.ZipFile(jar, "w") as packed:
            for file in sorted(folder.rglob("*.class")):
                packed.write(file, file.relative_to(folder))
        return jar

    def _folder(self, below: Path) -> Path:
        return below / hashlib.sha256(self.source.encode()).hexdigest()[:16]

    def _file(self, below: Path, name: str) -> Path:
        return self._folder(below).joinpath(*name.split(".")).with_suffix(".class")
