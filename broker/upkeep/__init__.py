"""What is done to logs, disks and connections without a request. In reading order:

periodic    rolls and drops old segments, flushes by policy, writes checkpoints
pending     what appends and fetches leave to be done: rolled segments are flushed, doubtful index files proved
logcleaner  which compacted log is due, and which thread compacts it
disks       what happens when a disk fails or is full
space       the space on the disks of log folders
pulse       whether the loop comes in time, and whether the network threads move
slowrequests  requests that took long, said in the log
watch       figures of the network threads that an operator should know, and whose connections they closed, said in the log
"""
