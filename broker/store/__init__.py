"""The metadata store: a small tree of versioned nodes with ZooKeeper's semantics. In reading order:

base              what the control plane knows of its store
sharedtree        a tree in one SQLite file
embedded          the store of a single node: a session on such a tree
zookeeper         the store of a cluster, in a ZooKeeper
zookeepersession  what is asked in a session with it, until somebody knows the answer
outcome           what became of a change whose answer was lost
zookeeperclient   kazoo as all that uses it
sound             whether a store's file is what was written to it
values            a node's JSON, checked as it is read
"""
