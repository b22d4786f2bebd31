"""Consumer groups of KIP-848: the broker assigns, members only heartbeat.

state       members, epochs, who owns what; changed by its records alone, live as at load
records     those records as Kafka's bytes
events      the events that only a consumer group knows, and their answers
machine     step(): heartbeats, leaving, time
commits     who may commit; offsets themselves are `broker/coordination/groupoffsets.py`'s, as in classic groups
writing     append, then apply, then answer
update      one member's way through a heartbeat: subscription, group epoch, target, its own assignment
reconcile   from what a member has to what it shall have, revoking before assigning
assignors   `uniform` and `range`
classic     members of the classic protocol inside such a group
embedded    what those send each other, as bytes
conversion  a classic group becomes one, and back
settings    the config resource of a group

Subscriptions by regular expression are evaluated by `groupcoordinator.py` with `regex.py`.
"""
