"""What tests of moves between log folders ask of a broker that has several."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

from penstock.errors import raise_for
from penstock.failpoints import ENVIRONMENT
from penstock.pyx.record.rawbatch import records, split
from penstock.pyx.wire.message import Message
from penstock.pyx.wire.messages import AlterReplicaLogDirsRequest, DescribeLogDirsRequest, FetchResponse
from penstock.pyx.wire.requests import (
    FETCH_VERSION,
    METADATA_VERSION,
    create_topic,
    fetch_request,
    metadata_request,
    patiently,
    produce,
)
from support.dataplane import batch
from support.harness import BrokerProcess, WireConnection
from support.patience import until

Key = tuple[str, int]
NAMES = ("a", "b", "c")
LEFTOVER = re.compile(r"\.[0-9a-f]{32}-(future|delete)$")


class Folders:
    """A broker with three log folders, `a`, `b` and `c`."""

    def __init__(self, root: Path, **properties: object) -> None:
        self.paths = {name: root / name for name in NAMES}
        others = f"{self.paths['b']},{self.paths['c']}"
        settings = {"log.dirs": others, "log.retention.ms": -1, **properties}
        of_process = [ENVIRONMENT, "LD_PRELOAD", "FAULT_CTL"]
        environment = {name: str(settings.pop(name)) for name in of_process if name in settings}
        self.broker = BrokerProcess(self.paths["a"], settings, environment=environment).start()

    def create(self, topic: str, partitions: int, **configs: object) -> None:
        """Create a topic that is spread over the folders."""
        create_topic(self.broker.bootstrap, topic, partitions, {k.replace("_", "."): str(v) for k, v in configs.items()})

    def ask(self, key: Key, to: str) -> int:
        """Ask for a move; the error code."""
        own = AlterReplicaLogDirsRequest
        topic = own.AlterReplicaLogDirTopic(name=key[0], partitions=[key[1]])
        asked = own(dirs=[own.AlterReplicaLogDir(path=str(self.paths[to]), topics=[topic])])
        with WireConnection(self.broker.bootstrap) as connection:
            answer = connection.ask(asked, 2)
        code: int = answer.results[0].partitions[0].error_code
        return code

    def described(self) -> dict[Key, tuple[list[str], list[str]]]:
        """Of each partition: the folders that it lies in, and those that it is on its way to, as DescribeLogDirs says."""
        found: dict[Key, tuple[list[str], list[str]]] = {}
        with WireConnection(self.broker.bootstrap) as connection:
            answer = connection.ask(DescribeLogDirsRequest(topics=None), 4)
        for result in answer.results:
            assert result.error_code == 0
            for topic in result.topics:
                for partition in topic.partitions:
                    lists = found.setdefault((topic.name, partition.partition_index), ([], []))
                    lists[partition.is_future_key].append(Path(result.log_dir).name)
        return found

    def settle(self) -> dict[Key, str]:
        """Wait until nothing moves any more; where each partition lies."""
        until(lambda: not any(to for _, to in self.described().values()), "the moves' end", self.broker.log_text)
        places = self.described()
        assert all(len(lies) == 1 for lies, _ in places.values()), places
        return {key: lies[0] for key, (lies, _) in places.items()}

    def on_disk(self, key: Key) -> list[str]:
        """The folders that have the partition under its name."""
        return [name for name, path in self.paths.items() if (path / f"{key[0]}-{key[1]}").is_dir()]

    def leftovers(self) -> list[str]:
        """What moves and deletions have not removed yet."""
        found = (entry.name for path in self.paths.values() for entry in path.iterdir())
        return [name for name in found if LEFTOVER.search(name)]

    def put(self, key: Key, value: bytes) -> None:
        """Produce one record; returns when it is acknowledged."""

        def attempt() -> None:
            with WireConnection(self.broker.bootstrap) as connection:
                produce(connection, key[0], {key[1]: batch([value])})

        patiently(attempt, 60)

    def values(self, key: Key) -> list[bytes]:
        """Every record of a partition."""
        found: list[bytes] = []
        offset = 0
        with WireConnection(self.broker.bootstrap) as connection:
            while True:
                asked = fetch_request(key[0], key[1], offset, 1 << 20, 0)
                answer: FetchResponse = patiently(partial(_fetched, connection, asked), 60)
                raws = split(answer.responses[0].partitions[0].records or b"")
                if not raws:
                    return found
                for raw in raws:
                    found += [record.value or b"" for record in records(raw) if record.offset >= offset]
                    offset = raw.next_offset

    def serves(self, key: Key) -> bool:
        """Whether Metadata names the partition's leader."""
        with WireConnection(self.broker.bootstrap) as connection:
            topic = connection.ask(metadata_request(key[0]), METADATA_VERSION).topics[0]
        return any(one.partition_index == key[1] and one.leader_id >= 0 for one in topic.partitions)


def _fetched(connection: WireConnection, asked: Message) -> FetchResponse:
    answer: FetchResponse = connection.ask(asked, FETCH_VERSION)
    raise_for(answer.responses[0].partitions[0].error_code, "fetch")
    return answer
