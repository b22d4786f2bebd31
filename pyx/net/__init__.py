"""The network threads: sockets, connections, their memory, and the border to the control plane. In reading order:

border      what Python sees: starts and stops the threads, takes requests out, gives answers in
plane       a set of network threads: opens, stops and closes it; what a thread and a connection are, and their limits
reactor     the loop of one network thread: events, mail, deadlines, sweeps
acceptor    accepts connections and gives them to the network threads in turn
admission   how many connections may come in, and how fast
connection  opens and closes a connection; one turn of it
input       receives bytes, and the memory that they take
requests    serves Produce and Fetch, or gives them to workers; every other request goes to the control plane
transport   receives and sends: the one place where a connection's bytes pass
waiting     fetches that wait for a partition to grow or for their deadline
output      sends answers in the order of their requests
coldreader  threads that read what is not in the page cache, and send it
workers     threads for requests that take long: large payloads inflated, records converted or compressed again
control     the queue of requests for the control plane
mailbox     how other threads reach a network thread
closures    connections that were closed for what their peers did
counters    what a network thread counts
requesttimes  how long requests take, in which phases; those that are slow
phases      the names of those phases
histogram   durations counted in buckets
busytime    how long a thread works, and whether it is stuck
client      what a connection's client has said of itself
fetcher     threads that fetch from leaders what this broker follows
fetchlink   a fetcher thread's connection to one leader, and the partitions that it follows there
fetchrequest  writes a follower's fetches
fetchreply  reads their answers while they come
"""
