"""The daily commands, against any Kafka cluster. In reading order:

common   what they share: where the cluster is, how an answer is shown, how a time is written
topics   `penstock topics`
produce  `penstock produce`
consume  `penstock consume`
arrow    records as Arrow columns in a Parquet or Arrow file
groups   `penstock groups`
configs  `penstock configs`
clients  `penstock clients`
cluster  `penstock cluster`
check    `penstock check`
config   `penstock config`
"""
