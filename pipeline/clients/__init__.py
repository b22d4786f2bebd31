"""Clients of any cluster that speaks Kafka's protocol. In reading order:

client            the asyncio core: connections, metadata, coordinators, when to try again
connection        one connection to a broker
backoff           pauses between tries
metadata          what a client knows of a cluster: brokers, topics, leaders
properties        the clients' properties: Kafka's names and defaults

admin             `Admin`: a client with the functions of the next six as its methods
topics            create, grow, delete topics
configs           configs of topics, brokers, loggers, groups
quorum            who the controller is
logs              offsets of logs, deleted records, log folders
groups            committed offsets, members and lists of groups
opentransactions  transactions that are open in partitions
fanout            one question to several brokers at once
partitionlists    partitions and offsets as requests list them
truncation        whether a log still has what was read of it

fetcher           raw batches out of a cluster
fetchrequest      Fetch requests, and what answers say of each partition
sender            batches to partition leaders, in order, sent again as the same bytes
produceframe      Produce requests as bytes, and what answers say of each partition
transaction       raw batches in, exactly once
background        an asyncio loop in a thread, and what the synchronous clients on it share

producer          `Producer`: records in
producerrecord    what users see of what they send: record, metadata, batch
interceptors      a chain of interceptors around what is sent
queuehandler      hooks at each stage of the queue
partitioner       which partition a record goes to, of many at once
outgoing          records to send, as columns
recordid          ids for records that have none
delivery          a record on its way, and its batch
accumulator       a producer's batches until they are sent, its memory
dispatcher        a producer's batches to the sender: identity, sequence, failures

consumer          `Consumer`: records out
arrow             polled columns as record batches of Arrow
positions         the partitions that are read: position, fetching, pause
partitionbuffer   what was fetched of one partition and not yet given out
subscription      the topics of a group's member, when it joins
commits           what a consumer commits, and when
groupmember       one member of one group, whichever protocol that has
membership        the same where a member shares partitions out (KIP-62)
consumergroup     the same where the coordinator shares partitions out (KIP-848)
assignors         how a group's leader shares partitions out
racks             which members have a replica in their rack
stickiness        how `sticky` and `cooperative-sticky` do that
streams           `ConsumerConnector`: records out as streams, one for each thread
simpleconsumer    `SimpleConsumer`: fetches at offsets that the caller keeps
"""
