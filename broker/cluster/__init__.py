"""Replication and the controller, as pure state machines: events in, decisions out; no process, socket, file or clock.

`broker/replication/` feeds them, and `tests/sim/cluster_world.py` does so with faults of every kind. The rules R1 to R5,
which make each election safe however wrong the suspicion was, stand where they are kept: R1 in `controller`, R2 and
R3 in `leader`, R4 in `follower`, R5 in `elections`; the laws that follow from them (I1 to I13) in `tests/sim/cluster_laws.py`.

What every record passes runs without Python: there `acks`, `follower`, and of `leader`, `replica` and `lease` what is said of
fetches and produces, are the specification of `pyx/log/`, and property tests hold both side by side. In reading order:

leaderandisr  the state of one partition, and its node in the metadata store
elections     who may lead, who is in sync: from one state to the next
messages      what brokers say to each other about replicas
log           what the machines have to know of a replica's log
leader        the leader's marks of its replicas, the high watermark, proposals for the ISR
follower      fetching, truncation by epochs, the follower's high watermark
replica       one replica's role and epochs
acks          produces with acks=all that wait
roles         which controller a broker obeys
metadata      what a controller has told a broker by UpdateMetadata, and in which order
registration  a broker's registration, its epoch, and whether its logs are whole
fulldisks     which log folders count as full
hungdisks     whether a broker leaves its cluster since a disk hangs
lease         for how long a broker may believe that its session lives
placement     on which brokers new partitions go
planning      what the controller wants a partition's state to be
controller    the one writer of partition states
balance       which partitions their preferred leaders should lead again
"""
