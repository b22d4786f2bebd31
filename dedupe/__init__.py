"""Drops messages whose id was seen before; the output topic is the write-ahead log and the truth.

One worker an input partition. RocksDB holds the ids; whatever it lacks after a crash is read again from the output. In
reading order:

command     `penstock dedupe`
commands    `penstock dedupe accept`, `position` and its other sub-commands
status      `penstock dedupe status`: where each partition stands, seen from any host
stageview   the stage of a pipeline's file, as those commands ask for it
service     the stage as a process: a worker for each input partition
worker      one input partition, deduplicated exactly once
settings    what all workers of a stage share
inputs      what a worker reads: its partition, and that of moved records
seenids     the ids that a worker has seen, in memory and in its folder
counts      what a worker counts for whoever scrapes the process
figures     the figures of a stage beside those of its lanes
progress    what a worker says of its work
topics      the topics of a worker: which there are, and whether they are the same as before
opening     batches opened a few at a time; those that can't be opened are set aside
ids         where a record's id is: its key, a header, or a field of its value
sift        which records go on: ids looked up, repeats left out, batches rebuilt
movedtopic  records that belong into another partition, on their way there
position    where a worker stands in its input, committed with its output
repair      after a crash: ids that the output topic has and the store lacks
folder      a worker's folder: one process at a time, one output topic
snapshot    copies of a store that is in use, and a store made of one
quarantine  what a partition sets aside, as batches for the quarantine topic
"""

if __name__ != "penstock.dedupe":
    raise ImportError("`dedupe` is a part of penstock: `import penstock.dedupe`")
