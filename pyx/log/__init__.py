"""The log of a partition: segments, indexes, producer state, recovery, appends and reads. In reading order:

partition      the log as the network threads see it: found, held, asked for its offsets, waited for
topictally     what is counted of topics
partitionlog   what a partition is inside: its locks, its folder, its offsets
role           what this broker does for a partition, and how far other replicas have come
lease          until when this broker surely leads what it leads
replicas       roles taken and lost, and what other replicas fetch from their leader
logstate       of that the folder's content: segments, ends, producers, as recovery finds it and appends go on with it
origin         who appends
append         appends: validated, given their offsets, written, indexed
validator      records validated, and where it must be, rewritten
producerstate  what a log knows of its producers and their transactions
read           ranges of a log for a fetch, aborted transactions, the search by time
segment        a file of batches and its indexes; walks over batches
room           blocks and zeros behind the batches, for the appends to come
index          the offset index, and what all index files have in common
timeindex      the time index
txnindex       the index of aborted transactions
checks         what the index files of a sealed segment should be
proof          segments proved by their batches, where neither this process nor their checks can say that they are right
epochs         leader epochs, and where each one began
epochproof     leader epochs proved by batches, and learned from them
recovery       a log folder opened: what of it is believed, and what is walked again
batchorder     whether batches follow one another as they should
damage         bytes that are no right batch: found, and set aside
swap           new files in the place of a group of segments
upkeep         rolling, flushing, retention
removals       below which offset a log may lack tombstones and markers, as compaction has removed them
truncation     a log that is open, cut: its leader hasn't what goes
followerask    what a follower's fetch names, and whether it fits still
following      a follower's log: what its fetch names, what becomes of the answer
lifecycle      a log opened, halted, closed
openfiles      files of logs, closed where descriptors run short
files          whole reads and writes of files; which errors of the disk pass
writeout       bytes of a file written out while more are written to it
pagecache      what of a file is in the page cache
endslots       where each log of a log folder ends, for the start after a kill -9
partitionfolder  a partition's folder, renamed or removed
checkpoint     what a log folder says of its partitions beside their logs
amendment      what is true of one log and the checkpoints don't say yet
logconfig      a topic's configs as its logs need them
logtable       opens and drops logs: which ones a broker leads, and the folders that they lie in
replicatable   what the control plane tells of roles, and hears of replicas
logmanager     all of that with reads and appends on top: the logs of a broker, for its control plane
"""
