"""Topics and their partitions, as the broker knows and stores them. In reading order:

nodes      a topic's nodes in the metadata store, read and written
marks      what the store notes of changes that are under way
image      the picture of all topics in memory
changes    topics that come, grow, change and go
restoring  the topics at a start
"""
