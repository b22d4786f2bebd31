"""Consumer groups of the classic protocol: the members assign, the broker brings them together.

state      members, generations, and their record
events     requests and answers
machine    step(): time, SyncGroup, Heartbeat, LeaveGroup, load
joining    JoinGroup
rebalance  from collecting members to the next generation
commits    offsets: `broker/coordination/groupoffsets.py` is what is shared with the other protocol's groups
"""
