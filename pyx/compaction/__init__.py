"""Compaction: a pass over one log, and what it is made of. In reading order:

cleaner        a broker's compaction passes, for its control plane
cleaning       a pass: what its two halves share
cleankeys      the first half: each key's newest offset into the map
cleansegments  the second half: what stays of a group of segments
cleaned        what a group of segments becomes
offsetmap      the newest offset of each key
txntrack       which transactions a walk over batches is in
pace           how fast a broker's cleaners read and write
"""
