"""The group coordinator and the transaction coordinator. In reading order:

parts                   what the coordinators use of the broker
machines                what the pure state machines share: time as a value, actions, events
timers                  deadlines of the machines, one heap and one timer of the loop
leads                   the partitions of an internal topic that this broker leads
shell                   feeds the machines, appends what they decide, answers after the append
statelog                their records as bytes: Kafka's formats
coordinators            both coordinators, as the broker starts and stops them
groupcoordinator        groups of both protocols, and their offsets
classicgroups/          groups of the classic protocol as state machines
consumergroups/         groups of KIP-848 as state machines
groupoffsets            committing, fetching and expiring offsets, the same in both protocols
offsetrequest           requests that commit or delete offsets: what they ask for, what each partition is answered
offsets                 the committed offsets of one group, with those of open transactions
grouplag                how far groups are behind, in records and in seconds
transactioncoordinator  transactional ids, and the markers of their transactions
markers                 transaction markers, as the leader of a partition appends them
losses                  partitions of a transaction that may lack records of it, in a cluster
hangingtransactions     open transactions that no coordinator would end, in a cluster
delivery                the way of a transaction's markers to the leaders of its partitions, in a cluster
transactions/           a transactional id as a state machine
verification            whether a producer may begin its transaction in a partition: its coordinator is asked
transactionalproduce    a produce that begins a transaction in a partition
flushing                flushes that transactions wait for, shared
powercut                what a power cut has left of transactions, and what becomes of it
producerids             producer ids, taken from the store in blocks
"""
