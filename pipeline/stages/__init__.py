"""What mirror and dedupe share. In reading order:

stage        mirror and dedupe as processes: set out, go on, close
topics       which topics are copied, and what they are called on the target
lanes        the partitions of one input, each fed, fenced and stopped by itself
lane         one partition on its way: what waits for it, its turns
lanewatch    looks at the logs of lanes, for what lanes can't see by themselves
laneview     what a process shows of its lanes: states, lags, turns that hang
lanecounts   what the worker of a lane counts
outlook      what a process knows of the logs that a lane reads
figures      figures of a stage for Prometheus
completion   what a stop lets come to its end: turns, commits
memory       what the lanes of a process hold, and when nothing more is fetched
position     where a partition stands, as it is committed beside an offset
noted        the same as it can be read in positions of any version
state        which state a partition is in
status       the same for operators, who ask the clusters
sourcelog    the log that a lane reads, held against what its position notes of it
outputlog    the log that a lane writes, held against what its position notes of it
heldback     logs in which an open transaction holds back what lies behind it
ranges       ranges of offsets as a position notes them
recordcount  how many records a batch holds, and how many of them in some ranges
identity     taking a transactional id: for good, or again only if nobody else has it since
failures     what a failure calls for: another try, a start over, an operator
stagetopics  topics that stages make
smalltopic   small compacted topics of ours, read whole
address      how an operator names a partition, and a place in its log
hints        the commands by which an operator goes on, as messages name them
decision     what an operator decides about a partition, in one transaction
quarantine   the topic of what doesn't go on, and of what operators decided
batches      a source batch with a new header, or rebuilt, as the target takes it
"""
