"""Clients of any cluster that speaks Kafka's protocol. In reading order:

client       the asyncio core: connections, metadata, coordinators, when to try again
connection   one connection to a broker
backoff      pauses between tries
metadata     what a client knows of a cluster: brokers, topics, leaders
properties   the clients' properties: Kafka's names and defaults
partitionlists  partitions and offsets as requests list them
fanout       one question to several brokers
topics       topics: create, grow, delete
configs      configs of topics, brokers, groups
logs         offsets of logs, log folders
groups       committed offsets, groups
admin        `Admin`: a client with all of these as its methods
fetcher      raw batches out of a cluster
sender       batches to partition leaders, in order, sent again as the same bytes
transaction  raw batches in, exactly once
partitioner  which partition a record goes to
outgoing     records to send, as columns
recordid     ids for records that have none
producer     `Producer`
consumer     `Consumer`
membership   a consumer's membership of its group
assignors    how a group's leader shares partitions out
background   an asyncio loop in a thread, under the synchronous clients
"""
