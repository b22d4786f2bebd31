"""Brokers as one cluster: the machines of `broker/cluster/`, fed by a ZooKeeper, by other brokers and by this broker's logs.

In reading order:

session          the metadata store of a cluster: one ZooKeeper session after the other
homes            whether a broker's log folders are those that its cluster knows
brokerid         registering under this broker's id, and who else may have it
commits          waiting until records are committed
leaseholder      the lease of the session: renewed by writes, told to the data plane
replicalogs      the logs of this broker's replicas, between machines and data plane
proposals        what this broker proposes as a leader: other ISRs
isolation        which partitions this broker leads and serves to no client, once the lease is over
replicas         the replicas that this broker holds: roles from the controller become roles of logs and work for fetchers
reading          what a controller reads of the store
pictures         what the controller tells all brokers of all topics (UpdateMetadata)
sender           what a controller sends through
electedepochs    which controller epochs the metadata store has seen elected
electioncount    how many leaders this broker has elected as the controller
termevents       the events of a controller's term, one queue, and the work that puts them there
storedtopics     the topics of the store, as a controller follows them
topicdeletions   topics that somebody wants to be deleted
leadermoves      leaders that are moved by somebody's wish
term             one controller epoch of this broker: its machine, fed, and its decisions carried out
controllership   who the controller is
departures       which brokers are gone, and who leads what they led: said in the log
topics           the topics of a cluster, as handlers see them: changes go into the store, the picture comes from the controller
wire             what brokers say to each other, between values and Kafka's messages
peers            connections to other brokers
requests         requests to other brokers, as values
transactionwire  what brokers ask each other of transactions, between values and Kafka's messages
queues           questions to other brokers, many in a request
transactions     what this broker asks others of transactions
fetching         the fetcher threads, and the connections that they want
moves            what others lead by now that this broker led, as it finds by itself in the metadata store
leftovers        what deleted topics have left in the log folders of a broker that was away
configchanges    configs of topics that another broker has altered
growth           a single node becomes the first broker of a cluster
trial            `penstock broker --check`: whether a ZooKeeper lets this broker join
joining          the start of a broker that joins a cluster
diskreports      log folders that are full: the controller has others lead what this broker led there
hangwatch        a broker whose disk hangs leaves its cluster, until the disk answers
member           one broker as a member: its parts, what others ask of it, and what it sends
membership       its life: a session after the other, and the registration in each
"""
