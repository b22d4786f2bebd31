"""Consumer groups of KIP-848: the broker assigns, members only heartbeat.

    state.py      members, epochs, who owns what; changed by its records alone, live as at load
    records.py    those records as Kafka's bytes
    machine.py    step(): heartbeats, leaving, time
    commits.py    who may commit; offsets themselves are `broker/coordination/groupoffsets.py`'s, as in classic groups
    writing.py    append, then apply, then answer
    update.py     one member's way through a heartbeat: subscription, group epoch, target, its own assignment
    reconcile.py  from what a member has to what it shall have, revoking before assigning
    assignors.py  `uniform` and `range`
    classic.py    members of the classic protocol inside such a group
    embedded.py   what those tell each other, as bytes
    conversion.py a classic group becomes one, and back
    settings.py   the config resource of a group

Subscriptions by regular expression are evaluated by `groupcoordinator.py` with `regex.py`.
"""
