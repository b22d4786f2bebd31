"""Produce and Fetch: requests read, carried out on the logs, and answered. In reading order:

versions        the versions that are served, and what holds from which one on
produce         Produce, carried out in a connection's own buffer
acks            produces that wait until other replicas have their records
waiting         what all requests have that wait
leaders         who leads a partition that a client asked another broker for
produceflush    Produce to partitions with flush.messages
producerequest  a Produce request: its limits, what it says before its topics, and the walk over them
refusals        batches that were refused and will come again: a later one isn't taken before them
verification    which partitions of a Produce request their transaction's coordinator has to know first
fetch           Fetch: a request becomes a job
fetchset        the partitions that a client fetches
sessions        fetch sessions
fetchread       whether there is enough to answer, and the ranges to answer with
fetchconvert    records in the formats that clients can read
fetchanswer     the answer of a job
"""
