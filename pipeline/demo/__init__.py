"""The main job on real data: three datacenters' flights, mirrored, deduplicated, one complete table a night. In reading order:

command    `penstock demo`
run        starts everything, feeds day after day, kills parts if asked to, then audits and checks
flights    the data set: flights from New York in 2013, as events
collector  a datacenter's collector: sends flights and keeps a ledger of what was acknowledged
parts      the demo's processes
cluster    the aggregate as three brokers around a ZooKeeper
lag        how far each stage is behind the one before
scrape     how long the brokers' requests take
check      the table against the data set, by none of our own counters
progress   what a person sees while the demo runs
picture    the picture at its end
"""
