"""Consumer groups of the classic protocol: the members assign, the broker brings them together.

    state.py      members, generations, and their record
    events.py     requests and answers
    machine.py    step(): time, SyncGroup, Heartbeat, LeaveGroup, load
    joining.py    JoinGroup
    rebalance.py  from collecting members to the next generation
    commits.py    offsets: `broker/coordination/groupoffsets.py` is what is shared with the other protocol's groups
"""
