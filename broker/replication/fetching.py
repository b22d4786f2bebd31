"""The fetcher threads and the connections that they need: threads say what they want, the control plane dials.

A thread fetches from each leader over one connection of its own. It can't dial by itself: names are looked up, and hands are
shaken, on the loop (`peers.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock import log
from penstock.broker import tasks
from penstock.broker.configs.brokerconfig import BrokerConfig
from penstock.broker.replication.peers import Peers
from penstock.errors import KafkaError
from penstock.pyx.log.logmanager import LogManager
from penstock.pyx.net.fetcher import Fetchers, News

AGAIN_S, AGAIN_MOST_S = 0.1, 1.0
"""How long it waits before it dials a leader again that couldn't be reached: twice as long each time."""

_log = log.get(__name__)


class Fetching:
    """Of one broker."""

    def __init__(self, node_id: int, config: BrokerConfig, logs: LogManager, peers: Peers, folders: int) -> None:
        self.threads = Fetchers(
            logs,
            node_id,
            config["num.replica.fetchers"] or min(folders, 4),
            wait_ms=config["replica.fetch.wait.max.ms"],
            min_bytes=config["replica.fetch.min.bytes"],
            partition_bytes=config["replica.fetch.max.bytes"],
            answer_bytes=config["replica.fetch.response.max.bytes"],
        )
        self._peers = peers
        self._running = tasks.Group("fetching")
        self._dialling: set[tuple[int, int]] = set()
        self._unreached: set[int] = set()  # leaders of which the log says that they can't be reached
        self.refused_truncations = 0
        """Cuts below a replica's high watermark, which its leader wanted."""
        self.begun_again = 0
        """Replicas that were emptied and copied again, as they might have kept what was deleted."""

    def start(self) -> None:
        """Begin to fetch."""
        self.threads.start()
        asyncio.get_running_loop().add_reader(self.threads.news_fd, self._take)

    async def stop(self) -> None:
        """End the threads."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.threads.news_fd)
        await self._running.stop()
        await loop.run_in_executor(None, self.threads.stop)

    def set_broker_epoch(self, epoch: int) -> None:
        """Fetch under this registration from now on."""
        self.threads.set_broker_epoch(epoch)

    def _take(self) -> None:
        said: dict[tuple[int, int], list[News]] = {}
        for news in self.threads.take_news():
            if news.kind in ("wanted", "disconnected"):
                if (news.leader, news.thread) not in self._dialling:
                    self._dialling.add((news.leader, news.thread))
                    self._running.start(self._dial(news.leader, news.thread))
            elif news.kind == "begun_again":
                self.begun_again += 1  # Its log says why.
            else:
                self.refused_truncations += news.kind == "refused"
                said.setdefault((news.leader, news.error), []).append(news)
        for alike in said.values():
            _say(alike)

    async def _dial(self, leader: int, thread: int) -> None:
        """Until there is a connection, or nothing is fetched from that leader any more. One that is gone isn't dialled."""
        wait_s = AGAIN_S
        try:
            await self._peers.until_known(leader)
            while self.threads.follows(leader):
                try:
                    sock = await self._peers.dial(leader)
                except OSError as error:
                    self._say_unreached(leader, error)
                    await asyncio.sleep(wait_s)
                    await self._peers.until_known(leader)
                    wait_s = min(2 * wait_s, AGAIN_MOST_S)
                else:
                    self.threads.connect(leader, thread, sock.detach())
                    if leader in self._unreached:
                        _log.info("the leader %d is reached again: what it leads is fetched", leader)
                        self._unreached.discard(leader)
                    return
            self._unreached.discard(leader)
        finally:
            self._dialling.discard((leader, thread))

    def _say_unreached(self, leader: int, error: OSError) -> None:
        """Once, until it is reached, or followed no more."""
        if leader not in self._unreached:
            self._unreached.add(leader)
            _log.warning("nothing is fetched from the leader %d, which is dialled again and again: %s", leader, error)


def _say(alike: Sequence[News]) -> None:
    """What one leader has answered to fetches of some partitions."""
    first, more = alike[0], len(alike) - 1
    others = f" (and {more} more partitions)" if more else ""
    _log.warning(
        "topic=%s partition=%d%s leader=%d: %s", first.topic, first.partition, others, first.leader, KafkaError(first.error)
    )
