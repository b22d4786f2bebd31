"""Copies topics of any number of source clusters into one target cluster, exactly once, batches as they are.

The target is the truth: a partition's position is committed on the target in the transaction that carries its batches,
and a mirror that starts asks the target where it was. In reading order:

command      `penstock mirror`, and what an operator asks and decides
service      the mirror as a process: a lane for each partition of each source
source       a source cluster: who it is, and why a topic of it is refused
target       a topic on the target, as the lanes that write to it need it
creation     a topic is made on the target as the sources have it
worker       one partition of one source, copied exactly once
identity     the names under which a partition's copy is known
position     where a partition's copy stands, kept on the target
targetloss   what a target has lost of a copy
decisions    where a lane begins, what it leaves out, that it tries again
recount      what was copied before a position was lost
sourcerange  what a skip sets aside of a source's log
status       where every lane stands, seen from any host
"""

if __name__ != "penstock.mirror":
    raise ImportError("`mirror` is a part of penstock: `import penstock.mirror`")
