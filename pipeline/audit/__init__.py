"""Counts of records at every hop, taken from the logs and the table, side by side. In reading order:

command   `penstock audit`
counts    how many records a topic's log holds, by batch header
hops      each hop's count beside the one before it
snapshot  positions and ends that belong together, of a pipeline that may be running
accepted  differences that a person has accepted
report    the audit as a table for people
"""
