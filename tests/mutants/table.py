"""Guards of the product that are taken out, one at a time, and the tests that have to fail without them.

The simulators' own mutants are patches of Python functions (`sim/test_cluster_mutants.py`, `sim/test_others_bugs.py`,
`sim/test_transaction_mutants.py`). What is compiled can't be patched: here a guard is a piece of source text, which `run.py`
replaces in a copy of the tree. Bugs that Apache Kafka and others have published are listed by their names.
"""

from __future__ import annotations

from dataclasses import dataclass

UNIT = "tests/unit/pyx"
ACKS, FOLLOWING, LEASE = f"{UNIT}/test_acks.py", f"{UNIT}/test_following.py", f"{UNIT}/test_lease.py"
GUARD, MARKERS = f"{UNIT}/test_verification_guard.py", "tests/unit/broker/test_markers.py"
HANGING = "tests/unit/broker/test_hanging_transactions.py"


@dataclass(frozen=True)
class Mutant:
    """A guard, what stands there without it, and the tests of which at least one fails then.

    guard: text that the file has exactly once. tests: by pytest's names; `FILE` or `FILE::TEST`.
    """

    file: str
    guard: str
    broken: str
    tests: tuple[str, ...]

    @property
    def module(self) -> str | None:
        """What has to be compiled, by its name in `setup.py`; None: nothing, it is Python."""
        if self.file.endswith(".py"):
            return None
        return self.file.removeprefix("pyx/").removesuffix(".pyx").replace("/", ".")


MUTANTS = {
    "KAFKA-8400: a fetch that is refused moves marks": Mutant(
        "pyx/log/replicas.pyx",
        "    if fetch.diverged:\n        return 0\n",
        "    if fetch.diverged:\n        _move_mark(mark, fetch, p)\n        return 0\n",
        (f"{ACKS}::test_what_a_leader_refuses_a_replica",),
    ),
    "KAFKA-9835: a read ends at the log's end instead of the high watermark": Mutant(
        "pyx/log/read.pyx",
        "    out.end = end_of(p, isolation)\n",
        "    out.end = end_of(p, ISOLATION_LOG_END) if isolation != ISOLATION_COMMITTED else end_of(p, isolation)\n",
        (f"{ACKS}::test_a_read_ends_where_its_bounds_were_taken",),
    ),
    "KAFKA-9807: a read of what is committed ends at the high watermark": Mutant(
        "pyx/log/read.pyx",
        "    out.end = end_of(p, isolation)\n",
        "    out.end = p.high_watermark if isolation == ISOLATION_COMMITTED else end_of(p, isolation)\n",
        (f"{ACKS}::test_a_read_ends_where_its_bounds_were_taken",),
    ),
    "KAFKA-18723: a follower takes what its leader's log has by now": Mutant(
        "pyx/log/following.pyx",
        "            if not last_epoch <= header.leader_epoch <= ask.leader_epoch:\n",
        "            if False:\n",
        (f"{FOLLOWING}::test_of_a_leader_whose_log_grew_anew_only_what_follows_is_taken",),
    ),
    "KAFKA-10706: a follower names an epoch in which it wrote nothing": Mutant(
        "pyx/log/replicas.pyx",
        "        _forget_empty_epochs(p)\n",
        "        pass\n",
        ("tests/property/test_replica_model.py",),
    ),
    "KIP-279: a follower cuts where its leader's epoch ends": Mutant(
        "pyx/log/following.pyx",
        "    offset = max(min(end_offset, epochs_end_up_to(&p.log.epochs, epoch, p.log.log_end)), <int64_t>0)\n",
        "    offset = max(min(end_offset, p.log.log_end), <int64_t>0)\n",
        (f"{FOLLOWING}::test_a_log_that_parts_is_cut_where_its_own_epoch_ends", "tests/property/test_follower_model.py"),
    ),
    "KAFKA-14704: the high watermark comes before the records": Mutant(
        "pyx/log/following.pyx",
        "        wake = raise_high_watermark(p, min(high_watermark, p.log.log_end))\n",
        "        wake = raise_high_watermark(p, high_watermark)\n",
        ("tests/property/test_follower_model.py",),
    ),
    "KAFKA-15221: a fetch of before a restart": Mutant(
        "pyx/log/replicas.pyx",
        "    if fetch.broker_epoch < mark.broker_epoch:\n",
        "    if False:\n",
        (f"{ACKS}::test_what_a_leader_refuses_a_replica",),
    ),
    "Redpanda 3039: a lead that was lost and won again acknowledges what was cut": Mutant(
        "pyx/log/partition.pyx",
        "p.role != ROLE_LEADER or p.leads_since > leader_epoch:\n        answer",
        "p.role != ROLE_LEADER:\n        answer",
        (f"{ACKS}::test_a_lead_that_was_lost_and_won_again_acknowledges_nothing_of_before",),
    ),
    "KIP-951: a refusal names no leader": Mutant(
        "pyx/request/leaders.pyx",
        "    return out.broker != NO_BROKER\n",
        "    return False\n",
        (f"{UNIT}/test_leaders.py",),
    ),
    "KIP-890: something may come between a question to the coordinator and its append": Mutant(
        "pyx/log/append.pyx",
        "        return 0 if guard_counts(&p.log.producers, e, part.guard) else NOT_ENOUGH_REPLICAS\n",
        "        return 0\n",
        (GUARD,),
    ),
    "KIP-890: a marker ends the transaction that its epoch begins": Mutant(
        "pyx/log/producerstate.pyx",
        "        if origin == MARKER and header.producer_epoch == e.epoch and e.txn_first_offset != NO_OFFSET:\n",
        "        if False:\n",
        (f"{MARKERS}::test_of_transactions_v2_a_later_transaction_is_none_of_a_markers",),
    ),
    "KAFKA-9777: a coordinator without a picture takes each partition for a deleted one": Mutant(
        "broker/coordination/delivery.py",
        "            if await cluster.is_gone(partition, topic_id):\n",
        "            if True:\n",
        (f"{MARKERS}::test_a_partition_that_is_not_known_waits_until_its_deletion_is",),
    ),
    "a request for markers that hung in a connection": Mutant(
        "broker/coordination/markers.py",
        "        return (sender_epoch, number) < newest\n",
        "        return False\n",
        (f"{MARKERS}::test_a_request_that_hung_in_a_connection_ends_no_later_transaction",),
    ),
    "a broker says what becomes of a transaction that coordinates it no more": Mutant(
        "broker/coordination/hangingtransactions.py",
        "        if stored.get(index) == (broker, epoch)\n",
        "        if True\n",
        (f"{HANGING}::test_an_answer_counts_that_the_store_confirms",),
    ),
    "a lead that is lost while its coordinator answers": Mutant(
        "broker/coordination/hangingtransactions.py",
        "for index, lead in before.items() if after.get(index) is lead\n",
        "for index in before\n",
        (f"{HANGING}::test_a_coordinator_answers_for_what_it_leads_until_the_end",),
    ),
    "a lead that begins after states of transactions were lost": Mutant(
        "broker/coordination/hangingtransactions.py",
        "        if unclean_epoch != NO_EPOCH or self._are_states_lost:\n",
        "        if unclean_epoch != NO_EPOCH:\n",
        (f"{HANGING}::test_every_lead_is_suspect_once_states_were_lost",),
    ),
    "another transaction is open when a hanging one is ended": Mutant(
        "broker/coordination/hangingtransactions.py",
        "        return producer is not None and producer.txn_first_offset == one.first_offset\n",
        "        return True\n",
        (f"{HANGING}::test_another_transaction_that_is_open_by_then_is_left_alone",),
    ),
    "a later transaction's marker ends a hanging one": Mutant(
        "broker/coordination/hangingtransactions.py",
        "    if fate is Fate.LISTED and is_earlier:\n",
        "    if False:\n",
        (f"{HANGING}::test_the_end_of_a_later_transaction_is_none_of_an_earlier_ones",),
    ),
    "a marker for the lead of before": Mutant(
        "broker/coordination/markers.py",
        "        if leader_epoch not in (ANY_EPOCH, offsets.leader_epoch):\n",
        "        if False:\n",
        (f"{MARKERS}::test_a_marker_for_another_lead_is_refused",),
    ),
    "a marker for a former topic of the name": Mutant(
        "broker/coordination/markers.py",
        '        if topic_id not in (b"", held):\n',
        "        if False:\n",
        (f"{MARKERS}::test_a_marker_for_a_former_topic_ends_no_transaction_in_the_next_one",),
    ),
    "a marker of a coordinator that was replaced": Mutant(
        "pyx/log/producerstate.pyx",
        "        if coordinator_epoch < e.coordinator_epoch:\n",
        "        if False:\n",
        (f"{MARKERS}::test_a_late_marker_of_an_older_coordinator_ends_nothing",),
    ),
    "a coordinator that was replaced writes into its successor's log": Mutant(
        "pyx/log/append.pyx",
        "    elif not serves_clients(p) or (part.led_since != NO_EPOCH and p.leads_since > part.led_since):\n",
        "    elif not serves_clients(p):\n",
        ("tests/unit/broker/test_moving_coordinators.py::test_a_coordinator_that_has_not_heard_of_its_end_appends_nothing",),
    ),
    "the lease: it begins when its write is answered": Mutant(
        "broker/replication/leaseholder.py",
        "                renew(self._lease, sent_ms)\n",
        "                renew(self._lease, boottime_ms())\n",
        ("tests/unit/broker/test_leaseholder.py::test_a_lease_begins_when_its_write_was_sent",),
    ),
    "the lease: acks=1 are taken without it": Mutant(
        "pyx/log/append.pyx",
        "    elif part.lease_until_ms != NULL and not p.sole and lease_is_over(part.lease_until_ms):\n",
        "    elif False:\n",
        (LEASE,),
    ),
    "the lease: a log's end is told without it": Mutant(
        "pyx/log/replicatable.pyx",
        "latest and not atomic_load32(&p.sole) and lease_is_over(logset_lease(self.set))",
        "False",
        (LEASE,),
    ),
    "the lease: coordinators answer without it": Mutant(
        "broker/coordination/shell.py",
        "        if cluster is not None and cluster.lease_is_over():\n",
        "        if False:\n",
        ("tests/unit/broker/test_moving_coordinators.py::test_nothing_is_coordinated_while_the_lease_is_over",),
    ),
}
