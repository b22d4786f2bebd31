"""Brokers as one cluster: the machines of `broker/cluster/`, fed by a ZooKeeper, by other brokers and by this broker's logs.

In reading order:

session         the metadata store of a cluster: one ZooKeeper session after the other
registration    this broker's registration, and who else may have its id
commits         waiting until records are committed
leaseholder     the lease of the session: renewed by writes, told to the data plane
replicas        the replicas that this broker holds: roles from the controller become roles of logs and work for fetchers
controllership  who the controller is; and if it is this broker, its machine, fed
reading         what a new controller reads of the store
pictures        what the controller tells all brokers of all topics (UpdateMetadata)
topics          the topics of a cluster, as handlers see them: changes go into the store, the picture comes from the controller
wire            what brokers say to each other, between values and Kafka's messages
peers           connections to other brokers
requests        requests to other brokers, as values
queues          questions to other brokers, many in a request
transactions    what this broker asks others of transactions
fetching        the fetcher threads, and the connections that they want
leftovers       what deleted topics have left in the log folders of a broker that was away
configchanges   configs of topics that another broker has altered
growth          a single node becomes the first broker of a cluster
joining         the start of a broker that joins a cluster
member          all of it together: one broker's membership
"""
