"""The log folders and the partitions' logs in them, as the control plane sees them. In reading order:

lock           who has a log folder, and what its last run left
folder         one log folder: its id, whether its last stop was clean
overlap        log folders that are one folder, or lie in each other: refused
logdirs        all log folders: which of them work, and which one holds which partition
topiclogs      the logs behind the topics: opened, made, deleted, moved
folderthreads  threads for work that waits for a disk: each log folder has its own
opening        opens the logs at start, those with the least to recover first
adoption       topics that lie in the folders and that the store does not know: folders that Apache Kafka has left
movestate      the rules of a partition's move between log folders, without a disk, a loop or a clock
moving         carries these moves out
ballast        a file that holds space on a disk, to be removed when the disk is full
"""
