"""What a producer does once per record, from `send` to the open batch of a partition. In reading order:

partitioning  the partition that a record goes to
recordqueue   batches of a producer that records are appended to, and how much memory they take
enqueuer      a record on its way into that queue: checks, partition, batch
"""
