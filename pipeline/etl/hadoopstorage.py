"""A table at hdfs:// or s3a://, asked through Hadoop's own file systems in the JVM that Spark will run in.

That JVM is started for the first question, before Spark is: a night needs it anyway, and whatever Spark is told of the place
(`spark.hadoop.*`, HADOOP_CONF_DIR, credentials, Kerberos) holds for both. A client in Python would need all of it a second
time; pyarrow's has no put that the store may refuse, and reads HDFS by a C library that PySpark doesn't bring. The files are
small, rejects aside, and of the rows two columns are read.

HDFS renames atomically, and refuses a name that is there.

S3 has neither rename nor link, but a put with `If-None-Match: *`, which the store refuses where the key is there. Hadoop's
client sends it if it is asked to; its plain `create` looks, and then puts, so that two may come through. Delta's commits are
made by the same call: s3logstore.py. Some stores take any put: before the first plan a file that is there is created once more,
and a store that lets that happen is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from penstock.config import Config
from penstock.pipeline.etl import s3logstore, session
from penstock.pipeline.etl.errors import EtlError
from penstock.pipeline.etl.storage import SIDE_FOLDER, Storage

PROBE = f"{SIDE_FOLDER}/created-once"
ABSENT = ("java.io.FileNotFoundException",)
WRITE_BYTES = 1 << 20  # handed to the JVM at a time
PRESENT = ("org.apache.hadoop.fs.FileAlreadyExistsException", s3logstore.REFUSED)


class HadoopStorage(Storage):
    """The files behind a Hadoop file system."""

    def __init__(self, uri: str, config: Config) -> None:
        self.uri = uri
        self.workspace = _state_folder() / "etl" / f"{uri.rpartition('/')[2]}-{hashlib.sha256(uri.encode()).hexdigest()[:12]}"
        self._config = config
        self._connected: Any = None
        self._connected_in: Any = None
        self._commits: dict[str, bytes] = {}

    def read(self, name: str) -> bytes:
        with self._failures(name), contextlib.closing(self._open(name)) as stream:
            return bytes(stream.readAllBytes())

    def read_commit(self, name: str) -> bytes:
        if name not in self._commits:
            self._commits[name] = self.read(name)
        return self._commits[name]

    def file(self, name: str) -> BinaryIO:
        with self._failures(name):
            length = int(self._fs.getFileStatus(self._path(name)).getLen())
            return cast(BinaryIO, io.BufferedReader(_Reader(self._open(name), length, partial(self._failures, name))))

    @contextlib.contextmanager
    def written(self, name: str) -> Iterator[BinaryIO]:
        with self._failures(name):
            stream = self._fs.create(self._path(name), False)
        try:
            with io.BufferedWriter(_Writer(stream, partial(self._failures, name)), WRITE_BYTES) as file:
                yield cast(BinaryIO, file)
        except BaseException:
            self.remove(name)
            raise

    def names(self, folder: str) -> list[str]:
        try:
            with self._failures(folder):
                return sorted(str(found.getPath().getName()) for found in self._fs.listStatus(self._path(folder)))
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        with self._failures(name):
            self._fs.delete(self._path(name), False)

    @property
    def _jvm(self) -> Any:
        return session.gateway(self._config, self.workspace / "spark")

    @property
    def _fs(self) -> Any:
        jvm = self._jvm
        if self._connected_in is not jvm:  # one JVM may end, and another one start, while nights are waited for
            self._connected_in = jvm
            self._connected = jvm.org.apache.hadoop.fs.Path(self.uri).getFileSystem(session.hadoop_settings(self._config))
        return self._connected

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{name}")

    def _open(self, name: str) -> Any:
        return self._fs.open(self._path(name))

    @contextlib.contextmanager
    def _failures(self, name: str) -> Iterator[None]:
        """Turn what Java throws inside into FileNotFoundError, FileExistsError, or an EtlError with its cause."""
        from py4j.protocol import Py4JError, Py4JJavaError

        try:
            yield
        except Py4JJavaError as error:
            thrown = str(error.java_exception.getClass().getName())
            if thrown in ABSENT:
                raise FileNotFoundError(f"{self.uri}/{name}") from None
            if thrown in PRESENT:
                raise FileExistsError(f"{self.uri}/{name}") from None
            raise EtlError(f"`{self.uri}/{name}` can't be reached: {session.cause(error)}") from error
        except (Py4JError, ConnectionError) as error:
            raise EtlError(f"`{self.uri}/{name}` can't be reached: {session.cause(error)}") from error


class HdfsStorage(HadoopStorage):
    """A table at hdfs://."""

    def create(self, name: str, data: bytes, before: Callable[[], None]) -> None:
        self._rename(self._aside(name, data), name, "NONE", before)

    def replace(self, name: str, data: bytes, before: Callable[[], None]) -> None:
        aside = self._aside(name, data)
        with contextlib.suppress(FileNotFoundError):
            self._rename(aside, name, "OVERWRITE", before)

    def _aside(self, name: str, data: bytes) -> str:
        folder, _, last = name.rpartition("/")
        aside = f"{folder}/.{last}.{uuid.uuid4().hex}.tmp"
        with self._failures(aside), contextlib.closing(self._fs.create(self._path(aside), True)) as stream:
            stream.write(data)
            stream.hsync()
        return aside

    def _rename(self, aside: str, name: str, how: str, before: Callable[[], None]) -> None:
        before()
        jvm = self._jvm
        rename = getattr(jvm.org.apache.hadoop.fs, "Options$Rename")
        options = session.array(rename, [getattr(rename, how)])
        target = self._path(name)
        try:
            with self._failures(name):
                context = jvm.org.apache.hadoop.fs.FileContext.getFileContext(target.toUri(), self._fs.getConf())
                context.rename(self._path(aside), target, options)
        except FileExistsError:
            self.remove(aside)
            raise


class S3Storage(HadoopStorage):
    """A table at s3a://."""

    def __init__(self, uri: str, config: Config) -> None:
        super().__init__(uri, config)
        self._proved = False

    def create(self, name: str, data: bytes, before: Callable[[], None]) -> None:
        self._prove()
        try:
            self._put(name, data, before, overwrite=False)
        except FileExistsError:
            # The client repeats a put whose answer was lost, and meets its own.
            if self.read(name) != data:
                raise

    def replace(self, name: str, data: bytes, before: Callable[[], None]) -> None:
        self._put(name, data, before, overwrite=True)

    def _put(self, name: str, data: bytes, before: Callable[[], None], *, overwrite: bool) -> None:
        with self._failures(name):
            builder = self._fs.createFile(self._path(name))
            stream = (builder.overwrite(True) if overwrite else builder.must(s3logstore.CONDITION, True)).build()
            stream.write(data)
        try:
            before()
        except BaseException:
            stream.abort()
            raise
        with self._failures(name):
            stream.close()

    def _prove(self) -> None:
        """See that the store refuses to create what is there. Raises EtlError."""
        for _ in range(0 if self._proved else 2):
            try:
                self._put(PROBE, uuid.uuid4().hex.encode(), lambda: None, overwrite=False)
            except FileExistsError:
                self._proved = True
                return
        if not self._proved:
            raise EtlError(
                f"`{self.uri}`: the store took a file that was to be created only if it isn't there, so that one load could"
                " write over another's commit; it has to know conditional puts (`If-None-Match: *`)"
            )


class _Reader(io.RawIOBase):
    """A stream of the JVM as a file."""

    def __init__(self, stream: Any, length: int, failures: Callable[[], AbstractContextManager[None]]) -> None:
        self._stream = stream
        self._failures = failures
        self._length = length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), max(0, self._length - self._at))
        with self._failures():
            self._stream.seek(min(self._at, self._length))
            data = bytes(self._stream.readNBytes(wanted))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


class _Writer(io.RawIOBase):
    """A file of the JVM's that is written from its beginning to its end."""

    def __init__(self, stream: Any, failures: Callable[[], AbstractContextManager[None]]) -> None:
        self._stream = stream
        self._failures = failures
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        with self._failures():
            self._stream.write(bytes(data))
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            with self._failures():
                self._stream.close()
        super().close()


def _state_folder() -> Path:
    """Where this machine keeps what it needs of tables that lie elsewhere: a systemd unit's own folder, else the user's."""
    given = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "penstock"
