"""Benchmarks: Penstock's broker and Apache Kafka in turn, with the same clients; start reading at `run.py`."""
