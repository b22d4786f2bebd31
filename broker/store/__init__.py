"""The metadata store: a small tree of versioned nodes with ZooKeeper's semantics."""
