"""`penstock log`: log folders read and repaired without a broker. In reading order:

logcommand  the command
logfiles    the files of a log folder, read one by one for people
logends     whether a log begins and ends where its checkpoints say
logverify   folders checked, beside a running broker too
logrepair   a partition's folder whose `.log` files are damaged is mended
"""
