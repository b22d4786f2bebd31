"""A follower's real log beside the simulator's, through the same answers, elections, kills and starts.

The simulator's log (`sim/cluster_log.py`) and the follower's machine (`broker/cluster/follower.py`) have been tried by
thousands of seeds; here the real log has to do what they do: the same asks, decisions, ends, epochs, high watermarks and
records, after each event. Leaders are picked at will, also such as no controller elects, so that cuts below the high
watermark come up.

Changes of the data plane that it was seen to find: a high watermark above the log end; a cut below the high watermark; an
append for which R4 isn't looked at; a cut to the leader's end alone, not to the own end of the epoch; epochs that outlive a
cut; a `removed_below` that is taken over in memory alone. That the amendment isn't written is found by
`faults/test_truncation_kill.py`.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from sim.cluster_log import Batch, ReplicaLog

from penstock.broker.cluster import follower, leader
from penstock.broker.cluster.leaderandisr import LeaderAndIsr
from penstock.broker.cluster.messages import Fetch, Fetched
from penstock.errors import ErrorCode
from penstock.pyx.log.logmanager import FollowerAsk, FollowResult
from support.followed import BROKER_EPOCH, KEY, Follower, sent

SEEDS = range(60)
STEPS = 120
OWN = 0
OTHERS = (1, 2, 3)
SEEN = ("stale", "foreign", "cut", "appended", "lowered", "refused", "starts", "taken over", "begun again")


class Pair:
    """The real log, the model's, and the logs of those that lead in turn."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.real = Follower(root, segment_bytes=self.random.choice([250, 400, 1 << 20]))
        self.log = ReplicaLog()
        self.others = {broker: ReplicaLog() for broker in OTHERS}
        self.state = LeaderAndIsr(1, 0, OTHERS)
        self.role = "fenced"
        self.high_watermark = self.noted = 0
        self.numbers = 0
        self.answers: list[tuple[FollowerAsk, Fetch, Fetched, list[Batch]]] = []
        self.seen: Counter[str] = Counter()

    def step(self) -> None:
        events = {
            self.write: 4, self.fetch: 10, self.late: 2, self.elect: 2, self.copy: 3, self.rot: 1, self.upkeep: 1,
            self.note: 2, self.kill: 1, self.stop: 1,
        }  # fmt: skip
        event = self.random.choices(list(events), list(events.values()))[0]
        event()
        self.check()

    def write(self) -> None:
        """The leader appends."""
        log = self.others[self.state.leader]
        for _ in range(self.random.randint(1, 4)):
            self.numbers += 1
            log.append([(self.state.leader_epoch, self.numbers)])

    def elect(self) -> None:
        """A leader of a new epoch, whatever its log has; sometimes uncleanly."""
        epoch = self.state.leader_epoch + self.random.randint(1, 2)
        unclean = epoch if self.random.random() < 0.3 else self.state.unclean_epoch
        self.state = LeaderAndIsr(
            self.random.choice(OTHERS), epoch, OTHERS, unclean_epoch=unclean, partition_epoch=self.state.partition_epoch + 1
        )
        self.follow()

    def follow(self) -> None:
        state = self.state
        self.real.follow(state.leader, state.leader_epoch, state.unclean_epoch, state.partition_epoch)
        self.role = "follower"

    def copy(self) -> None:
        """One of the others becomes a part of the leader's log."""
        source = self.others[self.state.leader]
        target = self.others[self.random.choice(OTHERS)]
        if source is not target:
            target.batches = source.batches[: self.random.randint(0, source.end)]

    def ask(self) -> tuple[FollowerAsk, Fetch] | None:
        asked = self.real.logs.follower_ask(*KEY)
        assert (asked is not None) == (self.role == "follower")
        if asked is None:
            return None
        fetch = follower.ask(OWN, BROKER_EPOCH, self.state.leader_epoch, self.log)
        assert asked[:5] == (self.state.leader, fetch.broker_epoch, fetch.leader_epoch, fetch.offset, fetch.last_epoch)
        return asked, fetch

    def fetch(self) -> None:
        asked = self.ask()
        if asked is None:
            return
        log = self.others[self.state.leader]
        if asked[1].offset > log.end and asked[1].last_epoch < 0:
            return
        answer, batches = self.answer(asked[1], log)
        self.answers.append((*asked, answer, batches))
        if self.random.random() < 0.8:
            self.take(*self.answers[-1])

    def answer(self, fetch: Fetch, log: ReplicaLog) -> tuple[Fetched, list[Batch]]:
        """As a leader answers; its high watermark is what it believes."""
        committed = self.random.randint(0, log.end + 1)
        diverging = leader.find_divergence(fetch, log)
        if diverging is not None:
            return Fetched(0, committed, fetch.offset, diverging), []
        removed_below = self.random.choice((0, 0, fetch.offset + self.random.randint(1, 9)))
        if removed_below and fetch.offset and self.random.random() < 0.3:
            return Fetched(ErrorCode.OFFSET_OUT_OF_RANGE, removed_below=removed_below), []
        batches = log.batches[fetch.offset : fetch.offset + self.random.randint(0, 6)]
        if batches and self.random.random() < 0.1:  # its log was cut and grew again before the bytes were read
            at = self.random.randrange(len(batches))
            epoch = self.random.randint(0, self.state.leader_epoch + 1)
            batches = [*batches[:at], *((epoch, number) for _, number in batches[at:])]
        return Fetched(0, committed, fetch.offset + len(batches), removed_below=removed_below), batches

    def late(self) -> None:
        """An answer comes again, or late."""
        if self.answers:
            self.take(*self.random.choice(self.answers[-6:]))

    def take(self, asked: FollowerAsk, fetch: Fetch, answer: Fetched, batches: list[Batch]) -> None:
        """Both logs get the answer."""
        logs = self.real.logs
        if answer.error:
            result = logs.follower_begin(*KEY, asked, 0, answer.removed_below)
        elif answer.diverging is not None:
            result = logs.follower_cut(*KEY, asked, *answer.diverging)
        else:
            data = sent(fetch.offset, batches)
            if self.random.random() < 0.3 and batches:
                data += sent(fetch.offset + len(batches), [(fetch.leader_epoch, 0)])[: self.random.randint(1, 60)]
            result = logs.follower_append(*KEY, asked, data, answer.high_watermark, 0, answer.removed_below)
        if not follower.fits(fetch, self.role == "follower", BROKER_EPOCH, self.state.leader_epoch, self.log):
            accepted = follower.accept([epoch for epoch, _ in batches], fetch.leader_epoch, fetch.last_epoch)
            assert result == (FollowResult.ROTTEN if batches and not accepted else FollowResult.STALE)
            self.seen["stale"] += 1
            return
        epochs = [epoch for epoch, _ in batches]
        decisions = follower.on_fetched(fetch, answer, epochs, self.state, self.log, self.high_watermark)
        if decisions and decisions[0] == follower.Append(0) and batches:
            assert result == FollowResult.ROTTEN
            self.seen["foreign"] += 1
            return
        assert result == (FollowResult.REFUSED if isinstance(decisions[0], follower.Stop) else FollowResult.DONE)
        for decision in decisions:
            match decision:
                case follower.Truncate(offset):
                    self.seen["begun again"] += bool(answer.error)
                    self.seen["cut"] += offset < self.log.end
                    self.log.cut(offset)
                    self.noted = min(self.noted, offset)  # the amendment says so
                case follower.SetRemovedBelow(offset):
                    self.log.removed_below = offset
                    self.seen["taken over"] += 1
                case follower.Append(count):
                    self.log.append(batches[:count])
                    self.seen["appended"] += count
                case follower.SetHighWatermark(offset):
                    self.seen["lowered"] += offset < self.high_watermark
                    self.high_watermark = offset
                case follower.Stop():
                    self.role = "offline"
                    self.seen["refused"] += 1

    def rot(self) -> None:
        """Bytes that a cable has changed: nothing of the answer is appended."""
        asked = self.ask()
        if asked is None:
            return
        epoch = self.state.leader_epoch
        data = bytearray(sent(asked[1].offset, [(epoch, 1), (epoch, 2)]))
        data[self.random.choice([-1, -40])] ^= 1
        result = self.real.logs.follower_append(*KEY, asked[0], bytes(data), 0)
        assert result == FollowResult.ROTTEN
        gap = sent(asked[1].offset - 1, [(epoch, 1)]) if asked[1].offset else b"\0" * 70
        assert self.real.logs.follower_append(*KEY, asked[0], gap, 0) == FollowResult.ROTTEN

    def upkeep(self) -> None:
        self.real.logs.upkeep(*KEY, 1_700_000_100_000)
        if self.random.random() < 0.5:
            self.real.logs.flush(*KEY)

    def note(self) -> None:
        self.real.logs.write_checkpoints()
        self.noted = self.high_watermark

    def kill(self) -> None:
        self.real.kill()
        self.begin()

    def stop(self) -> None:
        self.real.stop()
        self.noted = self.high_watermark
        self.begin()

    def begin(self) -> None:
        """The role is told anew; the high watermark is the checkpoint's."""
        self.role = "fenced"
        self.high_watermark = min(self.noted, self.log.end)
        self.seen["starts"] += 1
        if self.random.random() < 0.8:
            self.follow()

    def check(self) -> None:
        logs = self.real.logs
        offsets = logs.offsets(*KEY)
        assert (offsets.log_start, offsets.high_watermark, offsets.log_end) == (0, self.high_watermark, self.log.end)
        assert self.real.content() == self.log.batches
        assert logs.replica_state(*KEY).removed_below == self.log.removed_below
        last = self.log.last_epoch
        for epoch in range(last + 1):
            found, end = self.log.epoch_end(epoch)
            if found >= 0:
                assert logs.offset_for_epoch(*KEY, epoch) == (found, end)
        starts = {epoch: i for i, (epoch, _) in reversed(list(enumerate(self.log.batches)))}
        lines = (self.real.folder / "leader-epoch-checkpoint").read_text().split("\n")[2:-1] if starts else []
        assert lines == [f"{epoch} {start}" for epoch, start in sorted(starts.items())]


def test_a_followers_log_is_the_simulators(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        pair = Pair(tmp_path / str(seed), seed)
        try:
            for _ in range(STEPS):
                pair.step()
            pair.kill()
            pair.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        pair.real.logs.delete(*KEY)
        seen += pair.seen
    assert all(seen[what] >= 20 for what in SEEN), seen
