"""Consumer groups of KIP-848: the broker assigns, members only heartbeat.

    state.py      members, epochs, who owns what; changed by its records alone, live as at load
    records.py    those records as Kafka's bytes
    machine.py    step(): heartbeats, leaving, time; offsets are `broker/groupoffsets.py`'s as in classic groups
    update.py     one member's way through a heartbeat: subscription, group epoch, target, its own assignment
    reconcile.py  from what a member has to what it shall have, revoking before assigning
    assignors.py  `uniform` and `range`
    classic.py    members of the classic protocol inside such a group
    conversion.py a classic group becomes one, and back
    patterns.py   subscriptions by regular expression, in linear time
    settings.py   the config resource of a group
"""
