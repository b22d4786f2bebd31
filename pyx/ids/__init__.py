"""Ids of records.

store    those that a dedupe worker has seen, in memory and in RocksDB
place    the partition that an id belongs to by Kafka's murmur2
siphash  a hash under a secret key: whoever doesn't know the key can't choose bytes that collide
"""
