"""The broker's control plane. `from penstock.broker import Broker` gives a broker inside this process. In reading order:

command         `penstock broker`
server          one broker: what is started in which order, and stopped in the reverse
check           `penstock broker --check`: whether a start could work, without a change to anything
kernelfeatures  which of the kernel's features this process has
context         the broker's parts, as each handler gets them
clustermember   this broker as one of a cluster: what handlers ask of it, and what it counts
endpoint        where a listener is reached
dispatch        from a request's bytes to its handler and back
refusal         an answer that carries one error code wherever its API has a place for it
patience        how long a request waits for work that may wait for a disk
servicetime     how long a request's service works on the loop, and how long it waits
turns           a handler with much to do lets the loop do other work now and then
tasks           tasks that run for as long as the broker does
mounts          mounts, as the kernel lists them
listeners       listeners: names, addresses and limits
descriptors     how many file descriptors the broker has, and what they are enough for
metadata        what a start does about the metadata store: opens it, or refuses it with the ways on
backups         backups of the metadata store
topic           one topic and its partitions; what names topics may have
transactionmessages  what brokers ask each other of transactions, as values
assignments     which brokers a partition may be put on by hand
resources       what has configs: topics, brokers, groups, loggers
acls            the operations that an ACL may be about; there is no authorizer
clock           the clock by which records grow old; it does not jump ahead with the wall clock
lasttime        the latest time that a broker knew, for its next start
uuids           ids as Kafka makes and writes them
epochs          the epoch of a start: above all before, and above what a copy of the folders doesn't know
inprocess       `Broker`: a broker inside this process
inprocesscluster  `Cluster`: several of them as one cluster
neighbours      what such a broker has from the cluster around it
links           links between brokers of one process, which a test cuts
faults          faults that a test plants in a broker inside its process
process         `penstock broker` as a process that its caller starts, kills and stops
pytest_plugin   fixtures for tests of programs that use Kafka
api/            the handlers: one file an API
cluster/        replication and the controller, as state machines
replication/    what feeds them in a running broker
coordination/   the group coordinator and the transaction coordinator
configs/        configs, in layers
logs/           log folders and the partitions' logs in them
topics/         all topics: at a start, made, changed, deleted
upkeep/         what is done to logs and disks without a request
store/          the metadata store
tools/          `penstock log`
metrics/        what a broker shows of itself by HTTP
doctor/         `penstock doctor`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if __name__ != "penstock.broker":
    raise ImportError("`broker` is a part of penstock: `import penstock.broker`")

if TYPE_CHECKING:
    from penstock.broker.inprocess import Broker
    from penstock.broker.inprocesscluster import Cluster

__all__ = ["Broker", "Cluster"]


def __getattr__(name: str) -> Any:
    # Loaded at its first use: an import of one module of the broker must not load all of them.
    if name == "Broker":
        from penstock.broker.inprocess import Broker

        return Broker
    if name == "Cluster":
        from penstock.broker.inprocesscluster import Cluster

        return Cluster
    raise AttributeError(f"module `penstock.broker` has no `{name}`")
