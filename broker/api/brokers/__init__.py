"""What brokers ask each other, a file an API as in the folder above; loaded once a broker joins a cluster.

leader_and_isr       the controller tells roles
stop_replica         the controller takes replicas
update_metadata      the controller tells who lives and leads
alter_partition      a leader proposes another ISR
controlled_shutdown  a broker that stops hands over what it leads

`read` makes the values of `broker/cluster/messages.py` of a message, in a thread: such requests may be large.
"""
