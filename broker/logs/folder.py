"""The data folder: which process has it, which broker it belongs to, whether its last stop was clean.

DIR, DIR/.lock              locked for the life of the process, a second broker is refused; `.lock` says what the last run left
                            (lock.py)
DIR/meta.properties         Kafka's file: version 0 (broker.id, cluster.id), as ours, or version 1 (node.id, cluster.id);
                            another broker's or cluster's is refused. `directory.id` (KIP-858) is added where it lacks.
                            Once there is a metadata store, `penstock.metadata.store=metadata.db` and its id are added,
                            which Kafka leaves unread; of a member of a cluster `penstock.zookeeper`
DIR/penstock-checkpoints    where each log begins and ends, as it was written last (pyx/log/checkpoint.py)
DIR/penstock-log-ends       where each log ends, for the start after a kill -9 (pyx/log/endslots.pxd)
DIR/penstock-clock          the latest time that its broker knew (lasttime.py); in the first folder only
DIR/.ballast                space that is given up when the disk is full (ballast.py)
DIR/.kafka_cleanshutdown    there = the last stop flushed everything; taken away at start. Ours holds a copy of
                            `penstock-checkpoints`, and of a member of a cluster its incarnations:
                            {"version": 0, "checkpoints": "...", "incarnations": ["..."]}
DIR/metadata.db             the embedded store (in the first folder of `log.dirs` only)
DIR/metadata.db.changes     how many changes it has seen (store/sound.py)
DIR/metadata.db.backup      a copy of it, and the one before, `metadata.db.backup.1` (backups.py)
DIR/<topic>-<partition>/    a partition's log;  DIR/*-delete: a deleted one whose removal was cut short
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from penstock.broker.configs.flushes import Flushes
from penstock.broker.logs.lock import UNKNOWN, InUseError, Last, Lock
from penstock.broker.uuids import new_uuid, uuid_text
from penstock.config import ConfigError, parse_properties
from penstock.durable import boot_id, replace_file, sync_folder
from penstock.pyx.log.checkpoint import KAFKAS_STOP, OURS, settle
from penstock.pyx.log.partitionfolder import LOG_FOLDER_FILES

META, STORE = LOG_FOLDER_FILES
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
DIRECTORY_ID = "directory.id"
"""The key in meta.properties of the folder's own id: it tells this folder from whatever else is at its path one day."""
HAS_STORE = "penstock.metadata.store"
"""The key in meta.properties that says: this broker has a metadata store. A start without one is then no first start."""
STORE_ID = "penstock.metadata.store.id"
"""The key in meta.properties of the id of the metadata store that this broker had last: another one isn't its own."""


MEMBER = "penstock.zookeeper"
"""The key in meta.properties that says: this broker is a member of a cluster, whose metadata is there."""


class FolderError(Exception):
    """The data folder can't be used; the text is one sentence for the user."""


class FolderUnusableError(FolderError):
    """The disk refuses it: another folder may still serve."""


@dataclass(frozen=True)
class Identity:
    """What meta.properties says; `directory_id` and `store_id` are "" where it says none."""

    cluster_id: str
    directory_id: str
    has_store: bool
    store_id: str
    member_of: str = ""


class DataFolder:
    """A data folder that this process owns from `open` to `close`."""

    def __init__(self, path: Path, lock: Lock, identity: Identity, was_clean: bool, last: Last) -> None:
        self.path = path
        self.cluster_id = identity.cluster_id
        self.directory_id = identity.directory_id  # "" until `take_id`, of a folder that had none
        self.was_clean = was_clean
        self.is_unknown = last.boot_id == UNKNOWN
        """Nobody can tell whether the machine was started since its logs were opened last: `.lock` is lost."""
        self.power_cut = not self.is_unknown and (not last.boot_id or last.boot_id != boot_id())
        """The machine was started since, or `.lock` never said under which start they were opened. Not of one that is lost:
        then the cut would take what rot has changed."""
        self.was_flushed = last.flushed  # as the transactions of its last run were
        self.incarnations = last.incarnations
        """Those of which one has to be the store's newest one, or else the folder isn't as its broker's last run left it."""
        self._incarnation = ""
        self.has_store = identity.has_store  # whether its broker had a metadata store when it was here last
        self.store_id = identity.store_id  # of that one; "" if it isn't known
        self.member_of = identity.member_of  # where the metadata of its broker's cluster is; "" of a single node's
        self._lock = lock

    @classmethod
    def open(cls, path: Path, node_id: int, cluster_id: str | None = None, *, flushes: Flushes = Flushes.NONE) -> DataFolder:
        """Create the folder if need be, lock it, check that it is this broker's. Raises FolderError.

        cluster_id: of the broker's other folders; None for the first. flushes: which transactions are flushed from now on.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = Lock.take(path)
        except OSError as error:
            raise FolderUnusableError(f"the data folder `{path}` can't be used: {error.strerror}") from None
        except InUseError as error:
            raise FolderError(
                f"the data folder `{path}` is in use by another broker (process {error.holder}); stop it or choose another "
                "`--data`"
            ) from None
        try:
            has_logs = any(path.glob("*-*/"))
            is_new = not (path / META).exists() and not has_logs  # Not one that somebody took `meta.properties` out of.
            identity = _meta(path, node_id, cluster_id)
            last = lock.last
            if lock.was_empty and identity.has_store:
                last = Last(UNKNOWN)  # Kafka leaves it so; here somebody emptied it.
            clean = path / CLEAN_SHUTDOWN
            was_clean = clean.exists()
            # After a clean stop all is on the disk: a cut from now on is the only one that can take something. So it is where
            # nothing lies. After any other end what was written without a flush may still be lost, though this run flushes.
            began = boot_id() if was_clean or not has_logs else last.boot_id
            # What a clean stop has left is whole wherever it was moved to; of what a kill has left a copy may be older.
            incarnations = stop_incarnations(path) if was_clean else last.incarnations if lock.is_original else ()
            last = last._replace(incarnations=incarnations)
            settle(path, stop_text(path))
            lock.write(Last(began, flushes if was_clean or is_new else min(flushes, last.flushed), incarnations))
            # From here on a crash must not look like a clean stop.
            clean.unlink(missing_ok=True)
            sync_folder(path)
        except OSError as error:
            lock.release()
            raise FolderUnusableError(f"the data folder `{path}` can't be used: {error.strerror}") from None
        except FolderError:
            lock.release()
            raise
        return cls(path, lock, identity, was_clean, last)

    def opened(self) -> None:
        """Its logs are open: what a power cut has left of them is known; in a cluster it is dealt with, too. Raises OSError."""
        if self._incarnation:
            self.incarnations = (self._incarnation,)
        self._lock.write(Last(boot_id(), self._lock.read().flushed, self.incarnations))

    def begin_incarnation(self, incarnation: str, newest: str, *, is_known: bool) -> None:
        """Its broker is about to register under an incarnation; `newest` is the store's up to then. is_known: the folder is as
        the last run left it. Else it names no incarnation before its logs are open (`opened`). Raises OSError."""
        self._incarnation = incarnation
        self.incarnations = tuple(filter(None, (incarnation, newest))) if is_known else ()
        self._lock.write(self._lock.read()._replace(incarnations=self.incarnations))

    def take_id(self) -> str:
        """The folder's id, written to meta.properties if it had none. Raises OSError."""
        if not self.directory_id:
            made = uuid_text(new_uuid())
            self._put({DIRECTORY_ID: made})
            self.directory_id = made
        return self.directory_id

    def mark_store(self, store_id: str) -> None:
        """Write down in meta.properties that there is a metadata store, and which one. Raises OSError."""
        if not self.has_store or self.store_id != store_id:
            self._put({HAS_STORE: STORE, STORE_ID: store_id})
            self.has_store, self.store_id = True, store_id

    def join(self, place: str) -> None:
        """Write down in meta.properties that its broker is a member of a cluster, whose metadata is there. Raises OSError."""
        if self.member_of != place:
            self._put({MEMBER: place})
            self.member_of = place

    def _put(self, values: Mapping[str, str]) -> None:
        """Give keys of meta.properties these values; all other lines stay as they are."""
        file = self.path / META
        lines = file.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if line.partition("=")[0].strip() not in values]
        replace_file(file, ("\n".join([*kept, *(f"{key}={value}" for key, value in values.items())]) + "\n").encode())

    def close(self, *, clean: bool) -> None:
        """Let the folder go; `clean` = everything is flushed and checkpointed."""
        if clean:
            mark_clean(self.path, self.incarnations)
        self._lock.release()


def mark_clean(path: Path, incarnations: Sequence[str] = ()) -> None:
    """Say in a folder that everything is flushed, what its checkpoints are, and of which incarnations it is. Raises OSError."""
    said: dict[str, object] = {"version": 0}
    if incarnations:
        said["incarnations"] = list(incarnations)
    with suppress(OSError, UnicodeDecodeError):  # There are none, or the next start says what is wrong with them.
        said["checkpoints"] = (path / OURS).read_bytes().decode("ascii")
    replace_file(path / CLEAN_SHUTDOWN, json.dumps(said).encode())


def stop_text(path: Path) -> bytes | None:
    """What a folder's checkpoints held at the clean stop that was the last one there, by its mark; KAFKAS_STOP: it was Apache
    Kafka's. None: there was none, or its mark doesn't say it, as that of an older Penstock."""
    try:
        text = (path / CLEAN_SHUTDOWN).read_bytes()
        said = json.loads(text or '{"brokerEpoch": -1}')  # Older Kafkas leave it empty.
        if "brokerEpoch" in said:
            return KAFKAS_STOP
        held = said.get("checkpoints")
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return held.encode() if isinstance(held, str) else None


def stop_incarnations(path: Path) -> tuple[str, ...]:
    """The incarnations of the clean stop that was the last one in a folder, by its mark; none of one node."""
    try:
        said = json.loads((path / CLEAN_SHUTDOWN).read_bytes()).get("incarnations", [])
    except (OSError, ValueError, AttributeError):
        return ()
    return tuple(one for one in said if isinstance(one, str)) if isinstance(said, list) else ()


def disown(path: Path, lock: Lock) -> None:
    """Say in a stopped broker's folder that its logs aren't as the last run left them: in a cluster they have to catch up
    before they count. Raises OSError."""
    if stop_incarnations(path):
        said = json.loads((path / CLEAN_SHUTDOWN).read_bytes())
        del said["incarnations"]
        replace_file(path / CLEAN_SHUTDOWN, json.dumps(said).encode())
    lock.forget_incarnations()


def _meta(path: Path, node_id: int, expected: str | None) -> Identity:
    """What meta.properties says; it is written where there is none."""
    file = path / META
    if not file.exists():
        cluster_id = expected or uuid_text(new_uuid())
        directory_id = uuid_text(new_uuid())
        text = f"version=0\nbroker.id={node_id}\ncluster.id={cluster_id}\n{DIRECTORY_ID}={directory_id}\n"
        replace_file(file, text.encode())
        return Identity(cluster_id, directory_id, has_store=False, store_id="")
    owner, meta = read_meta(file, node_id)
    cluster_id = meta["cluster.id"]
    if owner != node_id:
        raise FolderError(
            f"the data folder `{path}` belongs to broker {owner}, not to {node_id}: set `broker.id={owner}`; or, if it is this "
            f"broker's and its {META} is damaged, put `{_owner_key(meta)}={node_id}` into that"
        )
    if expected is not None and cluster_id != expected:
        raise FolderError(
            f"the data folder `{path}` belongs to cluster {cluster_id}, the other folders to {expected}: take it out of "
            f"`log.dirs`; or, if one {META} is damaged, put the same `cluster.id` into all of them (the next start compares it "
            "with the metadata store's and says the right one)"
        )
    return Identity(cluster_id, meta.get(DIRECTORY_ID, ""), HAS_STORE in meta, meta.get(STORE_ID, ""), member_of(meta))


def member_of(meta: Mapping[str, str]) -> str:
    """Where the metadata of a broker's cluster is, by its meta.properties; "" of a single node."""
    # Members of before had the cluster's id in place of their store's, and didn't say where it is.
    return meta.get(MEMBER) or ("zookeeper" if meta.get(STORE_ID) == meta["cluster.id"] else "")


def cluster_of(path: Path, node_id: int) -> tuple[str | None, str]:
    """The cluster that a folder says it belongs to, and where that has its metadata ("": it is a single node's); None: it says
    none yet. Raises FolderError, OSError."""
    file = path / META
    if not file.exists():
        return None, ""
    _, meta = read_meta(file, node_id)
    return meta["cluster.id"], member_of(meta)


def read_meta(file: Path, node_id: int) -> tuple[int, dict[str, str]]:
    """Whose a meta.properties is, and its keys, if it can be one. Raises FolderError, OSError."""
    content = file.read_bytes()
    try:
        text = content.decode("utf-8")
        if not text.strip("\0 \r\n"):
            raise ConfigError("it holds nothing" if not text.strip() else "it holds zeros only")
        if any(ord(char) < 32 and char not in "\t\n\r\f" for char in text):
            raise ConfigError("it holds bytes that are no text")
        meta = parse_properties(text, META)
        owner = _owner_key(meta)
        for key in (owner, "cluster.id"):
            if not meta.get(key):
                raise ConfigError(f"`{key}` is missing")
        if re.fullmatch(r"-?[0-9]{1,10}", meta[owner]) is None:
            raise ConfigError(f"`{owner}={meta[owner]}` is not a whole number")
        if STORE_ID in meta and re.fullmatch(r"[A-Za-z0-9_-]{22}", meta[STORE_ID]) is None:
            raise ConfigError(f"`{STORE_ID}={meta[STORE_ID]}` is not an id")
    except UnicodeDecodeError:
        why = "it holds bytes that are no text"
    except ValueError as error:
        why = str(error)
    else:
        return int(meta[owner]), meta
    raise FolderError(
        f"`{file}` is damaged: {why}. It should hold version, broker.id (version 1: node.id) and cluster.id: put a copy of it "
        f"back; or write it again, `version=0`, `broker.id={node_id}` and `cluster.id=` with the id that the other log folders "
        "have, one on each line (if the id isn't known, write any: the next start compares it with the metadata store's "
        "and says the right one)"
    )


def _owner_key(meta: Mapping[str, str]) -> str:
    """The key that says which broker's it is."""
    return "node.id" if meta.get("version") == "1" else "broker.id"
