"""Configs: which there are, in which layer each is set, and what is in force. In reading order:

properties     the broker's properties: Kafka's names, types, defaults and bounds, and ours
brokerconfig   the broker's properties in force, in layers
topicconfig    the configs of topics, and the broker property behind each
groupconfig    what all groups obey
groupresource  the configs of one group of the consumer protocol
confignodes    nodes of configs in the store, and how other brokers hear of changes
brokernodes    what was altered at run time for brokers: in the store and in force
entities       configs of users, client ids and addresses in the store
quotas         client quotas: stored and described
scram          SCRAM credentials: stored and described
storedentity   whether an entity can have a config that the store says it has
flushes        which transactions are flushed
features       the cluster's features and the level of each
"""
