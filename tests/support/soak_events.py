"""What happens to the pipeline of a soak run, and what its operators do about it: one function an event.

Those `UNDER_LOAD` may come at any moment. Those `AT_REST` come while the round's writers rest, and send what they need
themselves; what only an operator can decide happens to the topic `stormy`: its partitions must stop with words, and what the
words advise is done.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Mapping
from itertools import pairwise

from support.harness import BrokerProcess
from support.logs import put_back
from support.patience import until
from support.soak_world import (
    DEDUPED,
    GROWING,
    LIMIT_S,
    MONTH_S,
    OFTEN_MS,
    PARTITIONS,
    RETENTION_MS,
    SOURCES,
    STORMY,
    Soak,
    Wrong,
)
from support.stages import StageProcess

DELETED_MAX = 20  # rows of one statement


def kill_a_source(soak: Soak) -> None:
    source = soak.sources[soak.dice.choice(SOURCES)]
    source.kill()
    source.start()


def kill_the_hub(soak: Soak) -> None:
    soak.hub.kill()
    soak.hub.start()


def cut_the_power(soak: Soak) -> None:
    if soak.disk is None:
        kill_the_hub(soak)
        return
    soak.disk.cut()
    soak.hub.kill()
    soak.disk.unmount()
    soak.disk.mount()
    lock = soak.hub.data / ".lock"
    if lock.exists() and len(lines := lock.read_text().splitlines()) == 3:
        process, boot_id, flushed = lines
        lock.write_text(f"{process}\n{boot_id[::-1]}\n{flushed}\n")  # as if another start of the machine had left it
    soak.hub.start()


def kill_a_stage(soak: Soak) -> None:
    stage = soak.dice.choice((soak.mirror, soak.dedupe))
    stage.kill()
    stage.start(await_started=False)


def stop_a_stage(soak: Soak) -> None:
    stage = soak.dice.choice((soak.mirror, soak.dedupe))
    if stage.running:
        stage.signal(signal.SIGTERM)
        code = stage.wait()
        if code == -signal.SIGTERM and not stage.text():
            soak.events["stopped before it could attend to signals"] += 1
        elif code not in (0, 1):
            raise Wrong(f"{stage.command} ended with {code}:\n{stage.text()[-3000:]}")
    stage.start(await_started=False)


def pause(soak: Soak) -> None:
    every: list[StageProcess | BrokerProcess] = [soak.mirror, soak.dedupe, soak.hub, *soak.sources.values()]
    paused = soak.dice.choice(every)
    if isinstance(paused, StageProcess) and not paused.running:
        return
    paused.signal(signal.SIGSTOP)
    time.sleep(soak.dice.uniform(0.5, 6))
    paused.signal(signal.SIGCONT)


def run_two_mirrors(soak: Soak) -> None:
    soak.second.start(await_started=False)
    time.sleep(soak.dice.uniform(1, 8))
    soak.second.kill()


def add_a_topic(soak: Soak) -> None:
    name = f"{GROWING}-{len(soak.topics)}"
    source = soak.sources[soak.dice.choice(SOURCES)]
    for one in [source] if soak.dice.random() < 0.5 else list(soak.sources.values()):
        soak.ask(one, lambda admin: admin.create_topics({name: PARTITIONS}))
    for one in soak.sources.values():  # a writer would make it with the broker's default
        found = soak.ask(one, lambda admin: admin.metadata([name], refresh=True))
        if name not in found.topics:
            soak.ask(one, lambda admin: admin.create_topics({name: PARTITIONS}))
    soak.topics.append(name)
    soak.partitions[name] = PARTITIONS


def grow_a_topic(soak: Soak) -> None:
    """Its lanes wait for the target's topic to have as many partitions; the operator grows all of them."""
    topic = soak.dice.choice([one for one in soak.topics if one.startswith(GROWING)])
    soak.await_copied(topic)
    count = soak.partitions[topic] = soak.partitions[topic] + 1
    for broker in (*soak.sources.values(), soak.hub):
        soak.ask(broker, lambda admin: admin.create_partitions({topic: count}))


def delete_and_create(soak: Soak) -> None:
    """Half of the time while the mirror is away, before all of it was copied."""
    source = soak.dice.choice(SOURCES)
    soak.await_copied(STORMY)
    if soak.dice.random() < 0.5:
        soak.mirror.kill()
        soak.write(source, soak.dice.randrange(1 << 30))
    soak.ask(soak.sources[source], lambda admin: admin.delete_topics([STORMY]))
    lost = soak.ledger.lost(STORMY, source)
    soak.ask(soak.sources[source], lambda admin: admin.create_topics({STORMY: PARTITIONS}))
    soak.operate(source, f"the topic was recreated, {lost} ids with it")


def trim_under_the_mirror(soak: Soak) -> None:
    """The mirror is away for longer than the source keeps records, by its retention or by a command."""
    source = soak.dice.choice(SOURCES)
    broker = soak.sources[source]
    soak.await_copied(STORMY)
    ends = soak.ends(source, STORMY)
    soak.mirror.kill()
    soak.write(source, soak.dice.randrange(1 << 30))
    went = {partition for partition, end in soak.ends(source, STORMY).items() if end > ends[partition]}
    if soak.dice.random() < 0.5:
        soak.ask(broker, lambda admin: admin.delete_records({(STORMY, partition): -1 for partition in range(PARTITIONS)}))
    else:
        soak.set_config(broker, STORMY, "retention.ms=1000")
        until(lambda: soak.starts(source, STORMY) == soak.ends(source, STORMY), "retention", broker.log_text)
        soak.set_config(broker, STORMY, f"retention.ms={RETENTION_MS}")
    lost = soak.ledger.lost(STORMY, source)
    found = {row["partition"] for row in soak.lanes() if (row["source"], row["state"]) == (source, "lost")}
    if found != went:
        raise Wrong(f"{source} lost records of {went}, and the status of a mirror that is away names {found}: {soak.lanes()}")
    soak.mirror.start(await_started=False)
    soak.operate(source, f"{lost} ids went by retention")


def restore_a_source(soak: Soak) -> None:
    """Yesterday's copy takes the place of the topic's log: what was sent since is gone there, but was copied.

    Half of the time it grows beyond the mirror's positions before the mirror sees it again.
    """
    source = soak.dice.choice(SOURCES)
    broker = soak.sources[source]
    _stop(broker)
    kept = soak.folder / "yesterday"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(broker.data, kept)
    broker.start()
    soak.write(source, soak.dice.randrange(1 << 30))
    for topic in soak.topics:
        soak.await_copied(topic)
    ends = soak.ends(source, STORMY)
    broker.stop()
    outgrown = soak.dice.random() < 0.5
    if outgrown:
        soak.mirror.kill()
    for partition in range(PARTITIONS):
        put_back(kept / f"{STORMY}-{partition}", broker.data)
    broker.start()
    while outgrown and any(soak.ends(source, STORMY)[partition] <= end for partition, end in ends.items()):
        soak.write(source, soak.dice.randrange(1 << 30))
    soak.operate(source, f"the source was restored from a copy{' and has outgrown it' if outgrown else ''}")


def trim_under_dedupe(soak: Soak) -> None:
    """Dedupe is away for longer than the aggregate keeps records."""
    soak.await_copied(STORMY)
    soak.wait_for(soak.is_deduped, "dedupe to be done")
    soak.dedupe.kill()
    read = soak.ledger.safe(STORMY)
    for source in SOURCES:
        soak.write(source, soak.dice.randrange(1 << 30))
    end = time.monotonic() + LIMIT_S
    while not soak.is_copied(STORMY) and time.monotonic() < end:  # not `wait_for`, which would start dedupe
        time.sleep(0.2)
    for source in SOURCES:
        soak.ledger.copied(STORMY, source)
    soak.ask(soak.hub, lambda admin: admin.delete_records({(STORMY, p): -1 for p in range(PARTITIONS)}))
    lost = soak.ledger.trimmed(STORMY, read)
    soak.dedupe.start(await_started=False)
    _let_dedupe_go_on(soak, "are gone before they were read", f"{lost} ids went by retention")


def restore_the_aggregate(soak: Soak) -> None:
    """Yesterday's copy takes the place of dedupe's input: what came since is gone there, but was read.

    Half of the time it grows beyond dedupe's positions before dedupe sees it again.
    """
    soak.settle()
    _stop(soak.hub)
    kept = soak.folder / "older"
    shutil.rmtree(kept, ignore_errors=True)
    for partition in range(PARTITIONS):
        shutil.copytree(soak.hub.data / f"{STORMY}-{partition}", kept / f"{STORMY}-{partition}")
    soak.hub.start()
    soak.write_everywhere()
    soak.settle()
    ends = soak.ends("hub", STORMY)
    outgrown = soak.dice.random() < 0.5
    if outgrown:
        soak.dedupe.kill()
    _stop(soak.hub)
    for partition in range(PARTITIONS):
        put_back(kept / f"{STORMY}-{partition}", soak.hub.data)
    soak.hub.start()
    soak.restored.add(STORMY)
    while outgrown and any(soak.ends("hub", STORMY)[partition] <= end for partition, end in ends.items()):
        soak.write_everywhere()
        until(lambda: soak.is_copied(STORMY), "the aggregate to grow", soak.mirror.text)
    for source in SOURCES:
        soak.ledger.copied(STORMY, source)
    if outgrown:
        soak.dedupe.start(await_started=False)
    _let_dedupe_go_on(soak, "", f"the aggregate was restored from a copy{' and has outgrown it' if outgrown else ''}")
    soak.write_everywhere()  # the mirror's positions say again where the aggregate ends


def _let_dedupe_go_on(soak: Soak, said: str, why: str) -> None:
    """Do for each partition of dedupe that stops what the words say, until all have gone on."""
    end = time.monotonic() + LIMIT_S
    while not soak.is_deduped(allowed=STORMY):
        soak.keep_going()
        for row in soak.deduped():
            if row["state"] == "stopped":
                if said not in row["why"] or "penstock dedupe position" not in row["why"]:
                    raise Wrong(f"the words don't say what happened, or give no way on: {row['why']}")
                soak.events["partitions of dedupe that an operator let go on"] += 1
                soak.run("dedupe", "position", f"{STORMY}:{row['partition']}", "--at", "earliest", "--because", why)
        if time.monotonic() > end:
            raise Wrong(f"dedupe did not go on: {soak.deduped()}\n{soak.dedupe.text()[-4000:]}")
        time.sleep(0.3)


def _stop(broker: BrokerProcess) -> None:
    if broker.stop() != 0:
        raise Wrong(f"a broker did not stop well:\n{broker.log_text()[-3000:]}")


def shift_a_clock(soak: Soak) -> None:
    """A part of the pipeline runs with a clock that is a month ahead or behind, which is set right later.

    Nothing expires, no night is loaded, and leader epochs only grow. A source whose clock is behind refuses records, since they
    are of its future, and its writers give up. The aggregate takes them: its topics take records of any time.
    """
    soak.settle()
    part = soak.dice.choice((*soak.brokers, "mirror", "dedupe", "night"))
    ahead_s = soak.dice.choice((MONTH_S, -MONTH_S))
    soak.clock.set_ahead(ahead_s)
    soak.events[f"a clock a month {'ahead' if ahead_s > 0 else 'behind'}: {part}"] += 1
    if part == "night":
        _refuse_nights(soak, soak.clock.environment)
    elif part in soak.brokers:
        _with_wrong_clock(soak, part)
    else:
        stage = {"mirror": soak.mirror, "dedupe": soak.dedupe}[part]
        stage.kill()
        stage.environment = soak.clock.environment
        stage.start(await_started=False)
        soak.write_everywhere()
        soak.settle()
        stage.environment = {}
        soak.clock.set_ahead(0)


def _with_wrong_clock(soak: Soak, part: str) -> None:
    broker = soak.brokers[part]
    epochs, starts = [soak.leader_epochs(broker)], soak.log_starts(broker)
    broker.kill()
    broker.environment = soak.clock.environment
    broker.start()
    epochs.append(soak.leader_epochs(broker))
    soak.write_everywhere()
    time.sleep(2 * OFTEN_MS / 1000)  # what is old enough would go now
    if part == "hub":
        _refuse_nights(soak, {})
    soak.settle()
    broker.environment = {}
    soak.clock.set_ahead(0)
    if soak.dice.random() < 0.5:
        broker.kill()
        broker.start()
        epochs.append(soak.leader_epochs(broker))
    soak.settle()
    if soak.log_starts(broker) != starts:
        raise Wrong(f"records of {part} expired: {starts} became {soak.log_starts(broker)}")
    for before, after in pairwise(epochs):
        if any(after[tp] <= epoch for tp, epoch in before.items()):
            raise Wrong(f"leader epochs of {part} don't grow: {epochs}")


def _refuse_nights(soak: Soak, environment: Mapping[str, str]) -> None:
    """No night is loaded while the clocks of the night and of the aggregate are apart."""
    command = ["etl", "--night", "yesterday", *soak.covering(None)]
    said = soak.tried(*command, codes=(1,), environment=environment).stderr
    if "clock shows" not in said or "hint:" not in said:
        raise Wrong(f"a night was refused, and not because of a clock: {said}")


def fill_a_disk(soak: Soak) -> None:
    """The disk of a broker or of dedupe's stores is full for a while.

    A source's writers wait. Mirror or dedupe say what they wait for, and go on by themselves.
    """
    if not soak.disks:  # only root mounts some
        return
    soak.settle()
    name = soak.dice.choice(sorted(soak.disks))
    disk = soak.disks[name]
    soak.events[f"a full disk: {name}"] += 1
    said = len(soak.brokers[name].log_text()) if name in soak.brokers else 0
    writers: list[threading.Thread] = []

    def feel() -> bool:
        """Whether it was noticed; until then more is written, and what has become free is taken again."""
        if not any(writer.is_alive() for writer in writers):
            writers[:] = soak.writers()
        # What a broker's ballast gives is for its own appends, so that positions can say that their partitions are stalled.
        if name == "dedupe" or " is full: clients' appends are refused" not in soak.brokers[name].log_text()[said:]:
            disk.fill()
            return any(row["state"] == "stalled" for row in soak.deduped()) if name == "dedupe" else False
        return name in soak.sources or any(row["state"] == "stalled" for row in (*soak.lanes(), *soak.deduped()))

    disk.fill()
    try:
        soak.wait_for(feel, f"the full disk of {name} to be felt")
        time.sleep(soak.dice.uniform(0, 3))
    finally:
        disk.drain()
        for writer in writers:
            writer.join()
    soak.settle()


def load_a_night(soak: Soak) -> None:
    """Both tables, each compared with what was read of its topic."""
    soak.load(next(soak.nights))


def delete_rows(soak: Soak) -> None:
    """A table's owner deletes rows. The audit names them; a reload asks what is to become of them."""
    if soak.last_night is None:
        load_a_night(soak)
    soak.settle()
    topic = soak.dice.choice(DEDUPED)
    ledger, place = soak.tables[topic], soak.table(topic)
    gone = set(soak.dice.sample(sorted(ledger.rows), min(len(ledger.rows), soak.dice.randint(1, DELETED_MAX))))
    soak.spark.sql(f"DELETE FROM delta.`{place}` WHERE id IN ({', '.join(map(repr, sorted(gone)))})")
    ledger.delete(gone)
    soak.events["rows deleted"] += len(gone)
    soak.compare()
    choice = soak.dice.choice((None, "keep", "restore"))
    if choice is None or not gone:
        return
    night = soak.dice.choice(sorted(ledger.named))
    reload = ("etl", "--night", night, "--table", topic, "--reload")
    said = soak.tried(*reload, codes=(1,)).stderr
    if "--deleted keep" not in said:
        raise Wrong(f"a reload over deleted rows was refused without a way on: {said}")
    soak.run(*reload, "--deleted", choice)
    ledger.reload(night, restore=choice == "restore")
    soak.events[f"nights loaded again: {choice}"] += 1
    soak.compare()


UNDER_LOAD = (kill_a_source, kill_the_hub, cut_the_power, kill_a_stage, stop_a_stage, pause, run_two_mirrors)
AT_REST = (
    add_a_topic, grow_a_topic, delete_and_create, trim_under_the_mirror, restore_a_source, restore_the_aggregate,
    trim_under_dedupe, shift_a_clock, fill_a_disk, load_a_night, delete_rows,
)  # fmt: skip
