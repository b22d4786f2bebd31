"""The metadata store: a small tree of versioned nodes with ZooKeeper's semantics. In reading order:

base        what the control plane knows of its store
sharedtree  a tree in one SQLite file
embedded    the store of a single node: a session on such a tree
zookeeper   the store of a cluster: a session with a ZooKeeper
outcome     what became of a change whose answer was lost
sound       whether a store's file is what was written to it
values      a node's JSON, checked as it is read
"""
