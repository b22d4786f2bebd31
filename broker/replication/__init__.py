"""Replication in a running broker: what feeds the state machines of `broker/cluster` and carries out their decisions.

wire      what brokers say to each other, between values and Kafka's messages
peers     connections to other brokers
requests  requests to other brokers, as values
"""
