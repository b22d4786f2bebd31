"""What a broker shows of itself by HTTP: the page of a scrape, health, who is connected. It only gathers: figures live beside
what they measure. In reading order:

service      the HTTP server of one broker, and what it puts together for a page
health       whether the broker lives and serves
families     every metric: its name, type, labels, and what it means
bounds       what keeps a page small
topics       what topics take and give
requests     how many requests there were, and how long their phases took
connections  connections, the threads that serve them, the control plane's loop
partitions   partitions and their logs
groups       how far groups are behind
replication  what a broker of a cluster counts of replicas, elections and its lease
cluster      the broker among others, its log folders, its clock
clients      `/clients`: who is connected, in JSON
"""
